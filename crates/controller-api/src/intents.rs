//! What is wanted of a whole fabric, as people write it into a file: `heddle plan` reads it.

use std::collections::BTreeSet;

use fabric_model::intent::LaneBuffer;
use fabric_model::tenancy::{Class, SlMode};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cluster::{SubPartition, check_partitions};
use crate::{MemorySize, Name};

/// Nodes that all clusters of a file may have together: more than the largest fabrics have hosts.
const NODES_MAX: u64 = 1 << 20;

/// What is wanted of a fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SiteIntents {
    /// The node that the subnet manager sits on, by its name; the first host, if none is named. No cluster gets it.
    pub manager: Option<String>,
    /// What each host has for virtual machines.
    pub hosts: HostShape,
    /// What devices can hold.
    pub devices: DeviceShape,
    /// Who may have clusters; everybody, if nobody is listed.
    pub tenants: Vec<Name>,
    /// The clusters, in the order they were asked for.
    pub clusters: Vec<ClusterSpec>,
}

/// What a host has for virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostShape {
    /// Cores.
    pub cores: u32,
    /// Memory.
    pub memory: MemorySize,
    /// Virtual functions of its adapter.
    pub functions: u16,
}

impl Default for HostShape {
    fn default() -> Self {
        Self { cores: 32, memory: MemorySize::from_mib(128 * 1024), functions: 15 }
    }
}

/// What devices can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceShape {
    /// Data lanes of every port: 1, 2, 4, 8 or 15.
    pub lanes: u8,
    /// Entries of every port's low-priority arbitration table.
    pub arbitration: u8,
    /// P_Keys that a port can hold, and that a switch port can enforce.
    pub pkeys: u16,
    /// Multicast groups that a switch can tell apart.
    pub multicast: u16,
    /// What each lane of every port has for packets that come in; not looked at, if nobody knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane_buffer: Option<LaneBuffer>,
}

/// What switches and adapters of the field have at least.
impl Default for DeviceShape {
    fn default() -> Self {
        Self { lanes: 8, arbitration: 64, pkeys: 64, multicast: 4096, lane_buffer: None }
    }
}

/// A virtual cluster that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Whose it is.
    pub tenant: Name,
    /// What it is called; one of a tenant's.
    pub name: Name,
    /// Virtual machines.
    pub nodes: u32,
    /// Virtual cores of each.
    #[serde(default = "one")]
    pub cores: u32,
    /// Memory of each.
    #[serde(default = "usual_memory")]
    pub memory: MemorySize,
    /// Virtual functions of each.
    #[serde(default = "one_function")]
    pub functions: u16,
    /// What the network is to promise it.
    #[serde(default)]
    pub class: Class,
    /// How its packets are told from others'.
    #[serde(default)]
    pub sl_mode: SlMode,
    /// PartitionsUpdate inside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<SubPartition>,
}

const fn one() -> u32 {
    1
}

const fn one_function() -> u16 {
    1
}

const fn usual_memory() -> MemorySize {
    MemorySize::from_mib(1024)
}

/// What cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidIntents {
    /// Two clusters of one tenant have one name.
    #[error("there are two clusters {0}")]
    DuplicateCluster(String),
    /// A cluster's tenant is not in the list.
    #[error("cluster {0}: its tenant is not listed under tenants")]
    UnknownTenant(String),
    /// A cluster has no node, or a node nothing.
    #[error("cluster {0}: {1} must be at least 1")]
    Zero(String, &'static str),
    /// More nodes than there can be.
    #[error("the clusters have more than {NODES_MAX} nodes")]
    TooManyNodes,
    /// A partition names a node that is not there, or one twice.
    #[error("cluster {0}, partition {1}: {2}")]
    Partition(String, Name, String),
}

impl ClusterSpec {
    /// How it is called among all clusters.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.tenant, self.name)
    }
}

impl SiteIntents {
    /// Whether all of it can be meant.
    pub fn check(&self) -> Result<(), InvalidIntents> {
        let mut names = BTreeSet::new();
        let mut nodes = 0_u64;
        for cluster in &self.clusters {
            let name = cluster.full_name();
            if !self.tenants.is_empty() && !self.tenants.contains(&cluster.tenant) {
                return Err(InvalidIntents::UnknownTenant(name));
            }
            for (count, what) in
                [(cluster.nodes, "nodes"), (cluster.cores, "cores"), (cluster.memory.mib(), "memory")]
            {
                if count == 0 {
                    return Err(InvalidIntents::Zero(name, what));
                }
            }
            nodes += u64::from(cluster.nodes);
            check_partitions(&cluster.partitions, cluster.nodes)
                .map_err(|(partition, what)| InvalidIntents::Partition(name.clone(), partition, what))?;
            if !names.insert(name.clone()) {
                return Err(InvalidIntents::DuplicateCluster(name));
            }
        }
        if nodes > NODES_MAX { Err(InvalidIntents::TooManyNodes) } else { Ok(()) }
    }
}
