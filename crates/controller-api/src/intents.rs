//! Desired state of a whole fabric, as people write it into a file that `heddle plan` reads.

use std::collections::BTreeSet;

use fabric_model::intent::LaneBuffer;
use fabric_model::tenancy::{Class, SlMode};
use fabric_model::{StatedHardware, SwitchModel};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cluster::{InvalidSubPartition, SubPartition, check_partitions};
use crate::{MemorySize, Name};

/// Most nodes of all clusters in a file together: more than the largest fabrics have hosts.
const NODES_MAX: u64 = 1 << 20;

/// Desired state of a whole fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SiteIntents {
    /// Name of the node that runs the subnet manager; the first host by default. No cluster is placed on it.
    pub manager: Option<String>,
    pub hosts: HostShape,
    pub devices: DeviceShape,
    /// Tenants that may own clusters; any tenant, if the list is empty.
    pub tenants: Vec<Name>,
    /// Clusters in the order of their requests.
    pub clusters: Vec<ClusterSpec>,
}

/// Resources of every host for virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostShape {
    pub cores: u32,
    pub memory: MemorySize,
    /// Virtual functions of its adapter.
    pub functions: u16,
}

impl Default for HostShape {
    fn default() -> Self {
        Self { cores: 32, memory: MemorySize::from_mib(128 * 1024), functions: 15 }
    }
}

/// Table sizes, lanes and model of every device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceShape {
    /// Data VLs of every port: 1, 2, 4, 8 or 15.
    pub lanes: u8,
    /// Entries of the low-priority arbitration table of every port.
    pub arbitration: u8,
    /// P_Keys that a port can hold and that a switch port can enforce.
    pub pkeys: u16,
    /// Multicast groups that a switch can forward separately.
    pub multicast: u16,
    /// Receive buffer of each VL of every port; not checked if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane_buffer: Option<LaneBuffer>,
    /// How the switches move packets to their outputs.
    pub switch_model: SwitchModel,
    /// Length of the longest cable, in metres.
    pub cable_metres: u16,
}

impl Default for DeviceShape {
    /// The least that common switches and adapters offer.
    fn default() -> Self {
        let StatedHardware { switch_model, cable_metres } = StatedHardware::default();
        Self {
            lanes: 8,
            arbitration: 64,
            pkeys: 64,
            multicast: 4096,
            lane_buffer: None,
            switch_model,
            cable_metres,
        }
    }
}

/// A cluster of an intents file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    pub tenant: Name,
    /// Unique within its tenant.
    pub name: Name,
    pub nodes: u32,
    /// Virtual cores of each node.
    #[serde(default = "one")]
    pub cores: u32,
    /// Memory of each node.
    #[serde(default = "usual_memory")]
    pub memory: MemorySize,
    /// Virtual functions of each node.
    #[serde(default = "one_function")]
    pub functions: u16,
    #[serde(default)]
    pub class: Class,
    #[serde(default)]
    pub sl_mode: SlMode,
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

/// Why intents are rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidIntents {
    #[error("cluster {cluster} is listed twice")]
    DuplicateCluster { cluster: String },
    #[error("cluster {cluster}: its tenant is not listed under tenants")]
    UnknownTenant { cluster: String },
    #[error("cluster {cluster}: {field} must be at least 1, got 0")]
    Zero { cluster: String, field: &'static str },
    #[error("all clusters together can have at most {NODES_MAX} nodes, got {nodes}")]
    TooManyNodes { nodes: u64 },
    #[error("cluster {cluster}: {reason}")]
    Partition { cluster: String, reason: InvalidSubPartition },
}

impl ClusterSpec {
    /// Unique name among all clusters: `TENANT/CLUSTER`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.tenant, self.name)
    }
}

impl SiteIntents {
    /// Checks the intents for contradictions; returns the first.
    pub fn check(&self) -> Result<(), InvalidIntents> {
        let mut names = BTreeSet::new();
        let mut nodes = 0_u64;
        for cluster in &self.clusters {
            let name = cluster.full_name();
            if !self.tenants.is_empty() && !self.tenants.contains(&cluster.tenant) {
                return Err(InvalidIntents::UnknownTenant { cluster: name });
            }
            for (count, field) in
                [(cluster.nodes, "nodes"), (cluster.cores, "cores"), (cluster.memory.mib(), "memory")]
            {
                if count == 0 {
                    return Err(InvalidIntents::Zero { cluster: name, field });
                }
            }
            nodes += u64::from(cluster.nodes);
            check_partitions(&cluster.partitions, cluster.nodes)
                .map_err(|reason| InvalidIntents::Partition { cluster: name.clone(), reason })?;
            if !names.insert(name.clone()) {
                return Err(InvalidIntents::DuplicateCluster { cluster: name });
            }
        }
        if nodes > NODES_MAX { Err(InvalidIntents::TooManyNodes { nodes }) } else { Ok(()) }
    }
}
