//! Virtual clusters and their nodes.

use std::collections::BTreeSet;
use std::fmt;

use fabric_model::tenancy::{Class, SlMode};
use ib_wire::{PartitionNumber, PortNum};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::{MemorySize, Name};

/// Virtual cluster with its desired shape, its nodes and its current state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cluster {
    /// Unique id of the cluster; never reused, unlike its name.
    pub id: Uuid,
    /// Name of the tenant that owns the cluster.
    pub tenant: Name,
    /// Name of the cluster, unique within its tenant.
    pub name: Name,
    /// Desired shape of the cluster.
    #[serde(flatten)]
    pub shape: ClusterShape,
    /// Current phase of the cluster.
    pub phase: Phase,
    /// Reason for a failure, or what the cluster is waiting for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Result of the network check that the nodes run among themselves.
    #[serde(default)]
    pub network: NetworkState,
    /// Health of the hosts and the network that the cluster uses.
    #[serde(default)]
    pub health: Health,
    /// Partition number of the cluster on the fabric (15 bits); absent until one is assigned.
    #[schema(value_type = Option<u16>)]
    pub partition: Option<PartitionNumber>,
    /// Sub-partitions of the cluster, with their partition numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<SubPartitionStatus>,
    /// Nodes of the cluster, in order of their numbers.
    pub nodes: Vec<ClusterNode>,
    /// Public ssh host key of the nodes, one line; only in the answer for a single cluster, not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
    /// Time of the creation request (RFC 3339).
    #[schema(value_type = String)]
    pub created: Timestamp,
}

/// Health of the hosts and the network that a cluster uses. It does not change the phase: virtual machines keep running
/// while their host cannot be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Worst state of any host or network part that the cluster uses.
    pub state: HealthState,
    /// Time at which the oldest listed problem began (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub since: Option<Timestamp>,
    /// Problems, one sentence each; empty if the state is `ok`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// Health of the hosts and the network that a cluster uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HealthState {
    /// All hosts of the cluster and the subnet manager respond.
    #[default]
    Ok,
    /// A host, the fabric port of a host, or the subnet manager does not respond.
    Degraded,
    /// No host of the cluster responds.
    Unknown,
}

impl fmt::Display for HealthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Unknown => "unknown",
        })
    }
}

/// Desired size, resources and network class of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterShape {
    /// Number of nodes (virtual machines), 1 to 4096.
    pub size: u32,
    /// Virtual cores of each node, 1 to 512.
    pub cores: u32,
    /// Memory of each node, at least 128M.
    pub memory: MemorySize,
    /// Allocation mode of cores and memory.
    pub mode: CpuMode,
    /// Name of the image that the nodes boot.
    pub image: Name,
    /// Network service class of the cluster.
    #[serde(default)]
    #[schema(value_type = ClassSchema)]
    pub class: Class,
    /// Assignment of service levels: `"cluster"` for one per cluster, `"path"` for one per path.
    #[serde(default)]
    #[schema(value_type = String)]
    pub sl_mode: SlMode,
    /// Network adapter of each node.
    #[serde(default)]
    pub adapter: AdapterKind,
}

/// Desired sub-partition of a cluster. A node that is a member of any sub-partition becomes a limited member of the
/// cluster's own partition, and there reaches only nodes that are in no sub-partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubPartition {
    /// Name of the sub-partition, unique within its cluster.
    pub name: Name,
    /// Numbers of the full members, from 1; full members reach all members.
    #[serde(default)]
    pub full: BTreeSet<u32>,
    /// Numbers of the limited members, from 1; limited members reach full members only.
    #[serde(default)]
    pub limited: BTreeSet<u32>,
}

/// Sub-partition of a cluster with its partition number on the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubPartitionStatus {
    /// Name of the sub-partition, unique within its cluster.
    pub name: Name,
    /// Partition number on the fabric (15 bits).
    #[schema(value_type = u16)]
    pub number: PartitionNumber,
    /// Numbers of the full members, from 1; full members reach all members.
    pub full: BTreeSet<u32>,
    /// Numbers of the limited members, from 1; limited members reach full members only.
    pub limited: BTreeSet<u32>,
}

/// Most sub-partitions of one cluster. A port holds few P_Keys, and nodes of other clusters may be behind the same port.
pub const SUB_PARTITIONS_MAX: usize = 8;

/// Checks the sub-partitions of a cluster whose nodes are numbered 1 to `nodes`.
///
/// # Errors
/// The first violation, in the order of the list: too many entries, a name used twice, an unknown node, or a node that is
/// listed as both full and limited.
pub fn check_partitions(partitions: &[SubPartition], nodes: u32) -> Result<(), InvalidSubPartition> {
    let mut names = BTreeSet::new();
    for (index, SubPartition { name, full, limited }) in partitions.iter().enumerate() {
        let partition = || name.clone();
        if index >= SUB_PARTITIONS_MAX {
            return Err(InvalidSubPartition::TooMany { partition: partition(), count: partitions.len() });
        }
        if !names.insert(name) {
            return Err(InvalidSubPartition::DuplicateName { partition: partition() });
        }
        if let Some(node) = full.union(limited).find(|node| !(1..=nodes).contains(*node)) {
            return Err(InvalidSubPartition::UnknownNode { partition: partition(), node: *node, nodes });
        }
        if let Some(node) = full.intersection(limited).next() {
            return Err(InvalidSubPartition::ConflictingMembership { partition: partition(), node: *node });
        }
    }
    Ok(())
}

/// Why the sub-partitions of a cluster are rejected. Every variant names the first invalid one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidSubPartition {
    #[error(
        "partition {partition}: a cluster can have at most {SUB_PARTITIONS_MAX} sub-partitions, got {count}"
    )]
    TooMany { partition: Name, count: usize },
    #[error("partition {partition}: the name is used twice")]
    DuplicateName { partition: Name },
    #[error("partition {partition}: there is no node {node}; nodes are numbered 1 to {nodes}")]
    UnknownNode { partition: Name, node: u32, nodes: u32 },
    #[error("partition {partition}: node {node} is listed as both full and limited member")]
    ConflictingMembership { partition: Name, node: u32 },
}

/// Allocation mode of cores and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CpuMode {
    /// Virtual cores float over the host's cores and may outnumber them.
    #[default]
    Shared,
    /// One pinned host core per virtual core, emulator threads on other cores, all memory backed; no overcommit.
    Dedicated,
}

impl fmt::Display for CpuMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Shared => "shared",
            Self::Dedicated => "dedicated",
        })
    }
}

/// Network adapter of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AdapterKind {
    /// Ethernet card, `eth0`: the fabric carries its frames.
    #[default]
    Ethernet,
    /// InfiniBand adapter with a GUID of its own: verbs, management datagrams, and IP over `ib0`.
    Infiniband,
}

impl fmt::Display for AdapterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ethernet => "ethernet",
            Self::Infiniband => "infiniband",
        })
    }
}

/// Phase in the life of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Accepted, but no node has a host yet.
    Requested,
    /// Every node has a host, and the cluster has a partition number.
    Placed,
    /// The fabric is programmed: exactly the nodes of the cluster reach each other.
    NetworkProgrammed,
    /// The virtual machines are starting.
    Starting,
    /// Every node has reported that it is ready, and the network check has passed on every node that runs it.
    Ready,
    /// The cluster is being removed.
    Deleting,
    /// The cluster could not be created; `reason` says why.
    Failed,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Requested => "requested",
            Self::Placed => "placed",
            Self::NetworkProgrammed => "network-programmed",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Deleting => "deleting",
            Self::Failed => "failed",
        })
    }
}

/// Result of the network check: every node must reach its successor in the ring of nodes and receive a broadcast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkState {
    /// No result: the check has not run, or the image has no `heddle-guest` that runs it.
    #[default]
    Unchecked,
    /// The check is running.
    Checking,
    /// Every node has reached its successor and received a broadcast.
    Carries,
    /// All nodes have been up for a minute and some have not passed the check; `reason` names them.
    Broken,
}

impl fmt::Display for NetworkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unchecked => "unchecked",
            Self::Checking => "checking",
            Self::Carries => "carries",
            Self::Broken => "broken",
        })
    }
}

/// Node of a cluster: one virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterNode {
    /// Unique id of the node.
    pub id: Uuid,
    /// Number within the cluster, from 1.
    pub number: u32,
    /// Host name inside the cluster.
    pub name: String,
    /// IPv4 address in the cluster's own network.
    pub address: String,
    /// Name of the host that runs the node; visible to operators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Name>,
    /// Current state of the node.
    pub state: NodeState,
    /// Reason for a state other than `ready`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Result of this node's network check.
    #[serde(default)]
    pub network: NetworkState,
    /// Place on the fabric where packets from this node are dropped, while they are; visible to operators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<PacketStop>,
    /// Time at which the node was last known to be well (RFC 3339), if its state is `unknown` or `degraded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub since: Option<Timestamp>,
}

/// Place on the fabric where packets are dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PacketStop {
    /// Name of the switch or adapter.
    pub node: String,
    /// Number of the port at which the packets arrived.
    #[schema(value_type = u8)]
    pub port: PortNum,
    /// Drop reason, as counted by `heddle sim-ctl … functions`.
    pub reason: String,
}

impl fmt::Display for PacketStop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {} ({})", self.node, self.port, self.reason)
    }
}

/// State of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// A host is assigned; nothing has been started.
    Placed,
    /// The virtual machine is starting.
    Starting,
    /// The guest has reported that it is ready.
    Ready,
    /// The virtual machine has stopped.
    Stopped,
    /// The virtual machine could not be started.
    Failed,
    /// The node is being removed.
    Leaving,
    /// The host does not respond, so the state is not known.
    Unknown,
    /// The virtual machine runs, but its host is off the fabric.
    Degraded,
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Placed => "placed",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Leaving => "leaving",
            Self::Unknown => "unknown",
            Self::Degraded => "degraded",
        })
    }
}

/// Network service class: the string `best-effort`, or an object with the key `guaranteed`.
#[derive(ToSchema)]
#[schema(as = Class, rename_all = "kebab-case")]
#[allow(dead_code, reason = "only its description is used")]
enum ClassSchema {
    /// No guarantee: links are shared with all other best-effort clusters.
    BestEffort,
    /// Dedicated service levels and virtual lanes on every link that the cluster uses.
    Guaranteed {
        /// Bandwidth of every node while all nodes send to all others, in bit/s.
        bandwidth: u64,
        /// Upper bound on the delay of a packet that finds its own lane empty, in nanoseconds.
        latency_ns: Option<u64>,
    },
}

/// Request to create a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCluster {
    /// Name of the new cluster, unique within its tenant.
    pub name: Name,
    /// Number of nodes (virtual machines), 1 to 4096.
    pub size: u32,
    /// Virtual cores of each node, 1 to 512.
    pub cores: u32,
    /// Memory of each node, at least 128M.
    pub memory: MemorySize,
    /// Allocation mode of cores and memory; `shared` by default.
    #[serde(default)]
    pub mode: CpuMode,
    /// Name of the image that the nodes boot.
    pub image: Name,
    /// Network service class: `"best-effort"` (default), or `{"guaranteed": {"bandwidth": bit/s, "latency_ns":
    /// nanoseconds}}`.
    #[serde(default)]
    #[schema(value_type = ClassSchema)]
    pub class: Class,
    /// Assignment of service levels: `"cluster"` (default) for one per cluster, `"path"` for one per path.
    #[serde(default)]
    #[schema(value_type = String)]
    pub sl_mode: SlMode,
    /// Network adapter of each node; `infiniband` by default if the image has a driver, else `ethernet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<AdapterKind>,
    /// Sub-partitions of the cluster, at most 8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<SubPartition>,
    /// Public keys that may log in, one line each as in `authorized_keys`; at most 64.
    #[serde(default)]
    pub ssh_keys: Vec<String>,
    /// Name of the owning tenant; required from operators, optional for a tenant, which can name only itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
}

/// Request to replace all sub-partitions of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PartitionsUpdate {
    /// Sub-partitions from now on, at most 8; an entry with a known name keeps its partition number.
    pub partitions: Vec<SubPartition>,
}

/// Request to grow or shrink a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeRequest {
    /// Number of nodes from now on, 1 to 4096; the highest-numbered nodes leave first.
    pub size: u32,
}
