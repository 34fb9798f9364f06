//! Values of options of `heddle cluster create`.

use clap::ValueEnum;
use controller_api::cluster::{AdapterKind, CpuMode};
use fabric_model::tenancy::SlMode;

/// How cores and memory are assigned to virtual machines.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Mode {
    /// Cores are not pinned and may be overcommitted
    #[default]
    Shared,
    /// Each core is pinned to a core of the host, memory is fully backed, nothing is overcommitted
    Dedicated,
}

impl From<Mode> for CpuMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Shared => Self::Shared,
            Mode::Dedicated => Self::Dedicated,
        }
    }
}

/// Network adapter of a node.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum AdapterChoice {
    /// Ethernet card, eth0
    Ethernet,
    /// InfiniBand adapter with IP over ib0, for verbs, MPI over RDMA, and stock InfiniBand tools
    Infiniband,
}

impl From<AdapterChoice> for AdapterKind {
    fn from(adapter: AdapterChoice) -> Self {
        match adapter {
            AdapterChoice::Ethernet => Self::Ethernet,
            AdapterChoice::Infiniband => Self::Infiniband,
        }
    }
}

/// How service levels are assigned to a guaranteed cluster.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Levels {
    /// One service level for the cluster
    #[default]
    Cluster,
    /// A service level for each path
    Path,
}

impl From<Levels> for SlMode {
    fn from(levels: Levels) -> Self {
        match levels {
            Levels::Cluster => Self::Cluster,
            Levels::Path => Self::Path,
        }
    }
}
