//! The list of checks.

use clap::ValueEnum;
use controller_api::cluster::AdapterKind;
use serde::Serialize;

use super::device;
use super::isolation::Attempt;
use super::mpi::{self, Transport};
use super::pairs::{self, PairTool};

/// Groups of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// The port of each node, its address, and ping
    Network,
    /// Connections by address: rping, ucmatose
    RdmaCm,
    /// ibv_rc_pingpong, ibv_ud_pingpong
    Verbs,
    /// Latency and bandwidth of send, write, read and atomic operations
    Perftest,
    /// Latency and bandwidth of UCX
    Ucx,
    /// A ring, and latency and bandwidth by transport
    Mpi,
    /// Forged packets and foreign addresses, tried from inside
    Isolation,
}

impl Group {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::RdmaCm => "rdma-cm",
            Self::Verbs => "verbs",
            Self::Perftest => "perftest",
            Self::Ucx => "ucx",
            Self::Mpi => "mpi",
            Self::Isolation => "isolation",
        }
    }
}

/// How many nodes a check needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Any,
    Pair,
}

/// A check: what it needs, and what it does.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    pub group: Group,
    pub name: String,
    pub need: Need,
    /// Programs of the image that it runs, besides those of every Debian.
    pub tools: Vec<&'static str>,
    pub work: Work,
}

/// What a check does.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// The InfiniBand port of each node is active.
    Port,
    /// The network device of each node has the address of the node.
    Address(&'static str),
    /// Each node reaches the next.
    Ping,
    Pair(PairTool),
    Ring,
    Mpi(Transport),
    Isolation(Attempt),
}

impl Check {
    fn new(group: Group, name: &str, need: Need, tools: &[&'static str], work: Work) -> Self {
        Self { group, name: name.to_owned(), need, tools: tools.to_vec(), work }
    }

    /// The check for progress messages.
    pub fn title(&self) -> String {
        format!("{}: {}", self.group.word(), self.name)
    }
}

/// The checks for clusters with a kind of adapter, in the order in which they run; only those of some groups, if any are named.
pub fn checks(adapter: AdapterKind, only: &[Group]) -> Vec<Check> {
    let is_infiniband = adapter == AdapterKind::Infiniband;
    let mut checks = Vec::new();
    if is_infiniband {
        checks.push(Check::new(Group::Network, "port", Need::Any, &[], Work::Port));
    }
    let device = device(adapter);
    checks.extend([
        Check::new(Group::Network, device, Need::Any, &["ip"], Work::Address(device)),
        Check::new(Group::Network, "ping", Need::Pair, &["ping"], Work::Ping),
    ]);
    if is_infiniband {
        let pairs = pairs::TOOLS.iter();
        checks.extend(
            pairs.map(|tool| {
                Check::new(tool.group, tool.name, Need::Pair, &[tool.program], Work::Pair(*tool))
            }),
        );
    }
    checks.push(Check::new(Group::Mpi, "ring", Need::Pair, &["mpirun", "mpi-ring"], Work::Ring));
    let programs = ["mpirun", "mpi-pingpong", "mpi-bandwidth"];
    let transports = mpi::transports(adapter).iter();
    checks
        .extend(transports.map(|it| Check::new(Group::Mpi, it.name, Need::Pair, &programs, Work::Mpi(*it))));
    checks.extend(Attempt::of(adapter).iter().map(|attempt| {
        Check::new(Group::Isolation, attempt.name(), Need::Pair, attempt.tools(), Work::Isolation(*attempt))
    }));
    checks.retain(|check| only.is_empty() || only.contains(&check.group));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn names(adapter: AdapterKind) -> BTreeSet<String> {
        checks(adapter, &[]).iter().map(Check::title).collect()
    }

    #[test]
    fn ethernet_clusters_have_the_checks_that_need_no_adapter() {
        let (ethernet, infiniband) = (names(AdapterKind::Ethernet), names(AdapterKind::Infiniband));
        for title in ["network: eth0", "network: ping", "mpi: ring", "mpi: tcp", "isolation: forged frames"] {
            assert!(ethernet.contains(title), "{title}");
        }
        assert!(infiniband.contains("network: ib0") && infiniband.contains("perftest: ib_write_bw"));
        assert!(!ethernet.iter().any(|title| title.contains("ib")), "{ethernet:?}");
    }

    #[test]
    fn names_of_checks_are_unique() {
        for adapter in [AdapterKind::Ethernet, AdapterKind::Infiniband] {
            assert_eq!(names(adapter).len(), checks(adapter, &[]).len());
        }
    }

    #[test]
    fn only_named_groups_are_run() {
        let chosen = checks(AdapterKind::Infiniband, &[Group::Mpi, Group::Ucx]);
        assert!(!chosen.is_empty() && chosen.iter().all(|it| [Group::Mpi, Group::Ucx].contains(&it.group)));
    }
}
