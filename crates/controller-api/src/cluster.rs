//! Virtual clusters and their nodes.

use std::collections::BTreeSet;
use std::fmt;

use fabric_model::tenancy::{Class, SlMode};
use ib_wire::PartitionNumber;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::agent::PacketStop;
use crate::{MemorySize, Name};

/// A virtual cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cluster {
    /// Its id; names may be used again, ids never.
    pub id: Uuid,
    /// Whose it is.
    pub tenant: Name,
    /// What it is called; one of a tenant's.
    pub name: Name,
    /// What is wanted.
    #[serde(flatten)]
    pub shape: ClusterShape,
    /// How far it is.
    pub phase: Phase,
    /// Why it failed, or what is being waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether its network carries, as its nodes have found out.
    #[serde(default)]
    pub network: NetworkState,
    /// Whether its hosts and the network answer.
    #[serde(default)]
    pub health: Health,
    /// Its partition on the fabric, once it has one.
    #[schema(value_type = Option<u16>)]
    pub partition: Option<PartitionNumber>,
    /// The partitions inside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<SubPartitionStatus>,
    /// Its nodes, in order.
    pub nodes: Vec<ClusterNode>,
    /// Public ssh host key of its nodes, one line. Told of a single cluster, not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
    /// Since when.
    #[schema(value_type = String)]
    pub created: Timestamp,
}

/// Whether what a cluster runs on answers. Its phase stays what it was: virtual machines run on while nobody can ask.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// The worst that is known.
    pub state: HealthState,
    /// When the oldest of the reasons began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub since: Option<Timestamp>,
    /// What does not answer, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

/// Whether what a cluster runs on answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HealthState {
    /// All of it.
    #[default]
    Ok,
    /// Some of it does not: a host, its port on the network, or the manager of the network.
    Degraded,
    /// None of its hosts answers.
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

/// What a cluster is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterShape {
    /// Virtual machines that are wanted.
    pub size: u32,
    /// Virtual cores of each.
    pub cores: u32,
    /// Memory of each.
    pub memory: MemorySize,
    /// How they get their cores and memory.
    pub mode: CpuMode,
    /// What they boot from.
    pub image: Name,
    /// What the network promises it.
    #[serde(default)]
    #[schema(value_type = ClassSchema)]
    pub class: Class,
    /// How its packets are told from others': `"cluster"` or `"path"`.
    #[serde(default)]
    #[schema(value_type = String)]
    pub sl_mode: SlMode,
}

/// A partition inside a cluster that is wanted. A node that is in one is in the cluster's own as a limited member, and so
/// reaches there only nodes that are in none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubPartition {
    /// What it is called; one of the cluster's.
    pub name: Name,
    /// Nodes that reach all its members, by number from 1.
    #[serde(default)]
    pub full: BTreeSet<u32>,
    /// Nodes that reach its full members only.
    #[serde(default)]
    pub limited: BTreeSet<u32>,
}

/// A partition inside a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubPartitionStatus {
    /// What it is called.
    pub name: Name,
    /// Its number on the fabric.
    #[schema(value_type = u16)]
    pub number: PartitionNumber,
    /// Nodes that reach all its members, by number from 1.
    pub full: BTreeSet<u32>,
    /// Nodes that reach its full members only.
    pub limited: BTreeSet<u32>,
}

/// PartitionsUpdate inside one cluster: a port holds few keys, and other clusters may be behind it too.
pub const SUB_PARTITIONS_MAX: usize = 8;

/// Whether partitions inside a cluster of so many nodes can be meant; else which cannot, and why.
pub fn check_partitions(partitions: &[SubPartition], nodes: u32) -> Result<(), (Name, String)> {
    let mut names = BTreeSet::new();
    for (index, partition) in partitions.iter().enumerate() {
        let wrong = |what: String| Err((partition.name.clone(), what));
        if index >= SUB_PARTITIONS_MAX {
            return wrong(format!("a cluster has {SUB_PARTITIONS_MAX} partitions inside at most"));
        }
        if !names.insert(&partition.name) {
            return wrong("there are two of this name".to_owned());
        }
        let mut all = partition.full.union(&partition.limited);
        if let Some(node) = all.find(|node| !(1..=nodes).contains(*node)) {
            return wrong(format!("there is no node {node}, only 1 to {nodes}"));
        }
        if let Some(node) = partition.full.intersection(&partition.limited).next() {
            return wrong(format!("node {node} is both full and limited"));
        }
    }
    Ok(())
}

/// How virtual machines get cores and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CpuMode {
    /// Virtual cores float over the cores of the host and may be more than those.
    #[default]
    Shared,
    /// A core for each virtual core, emulation elsewhere, memory fully backed, nothing overcommitted.
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

/// How far a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It was asked for.
    Requested,
    /// Every node has a host, and the cluster a partition.
    Placed,
    /// The fabric lets its nodes, and nobody else, talk to each other.
    NetworkProgrammed,
    /// Its virtual machines start.
    Starting,
    /// Every node has said so itself, and has found out that the network carries, unless it does not check.
    Ready,
    /// It is being taken down.
    Deleting,
    /// It cannot be; the reason says why.
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

/// Whether a network carries, as nodes find out together: each has to reach its successor and to hear a broadcast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkState {
    /// Nobody has checked it, or nodes cannot: their image has no `heddle-guest`, or an old one.
    #[default]
    Unchecked,
    /// It is being checked.
    Checking,
    /// Every node has reached its successor and heard a broadcast.
    Carries,
    /// Every node is up, and after a minute some have not; the reason says which.
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

/// A node of a cluster: a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterNode {
    /// Its id.
    pub id: Uuid,
    /// Its number in the cluster, from 1.
    pub number: u32,
    /// Its host name.
    pub name: String,
    /// Its address in the cluster's own network.
    pub address: String,
    /// Where it runs. Told to operators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Name>,
    /// How far it is.
    pub state: NodeState,
    /// Why, if it is not well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether it has found out that the network carries.
    #[serde(default)]
    pub network: NetworkState,
    /// Where packets that it sends stop, while they do. Told to operators only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<PacketStop>,
    /// When it was last known to be well, if it is `unknown` or `degraded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub since: Option<Timestamp>,
}

/// How far a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// It has a host, no more.
    Placed,
    /// Its virtual machine starts.
    Starting,
    /// It has said that it is ready.
    Ready,
    /// Its virtual machine has stopped.
    Stopped,
    /// It could not be started.
    Failed,
    /// It is being taken down.
    Leaving,
    /// Its host does not answer: nobody knows.
    Unknown,
    /// Its virtual machine runs, but its host is not on the network.
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

/// How a [`Class`] is written, for the description of the interface: the string `best-effort`, or an object `guaranteed`.
#[derive(ToSchema)]
#[schema(as = Class, rename_all = "kebab-case")]
#[allow(dead_code, reason = "only its description is used")]
enum ClassSchema {
    /// No guarantee: shares links with all others of its class.
    BestEffort,
    /// Service levels and lanes of its own on every link.
    Guaranteed {
        /// Bandwidth of every node while all send to all others, in bits per second.
        bandwidth: u64,
        /// Longest delay that a packet which finds its own lane empty may have, in nanoseconds.
        latency_ns: Option<u64>,
    },
}

/// Asks for a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCluster {
    /// What it is to be called.
    pub name: Name,
    /// Virtual machines.
    pub size: u32,
    /// Virtual cores of each.
    pub cores: u32,
    /// Memory of each.
    pub memory: MemorySize,
    /// How they get their cores and memory.
    #[serde(default)]
    pub mode: CpuMode,
    /// What they boot from.
    pub image: Name,
    /// What the network is to promise it: `"best-effort"`, or
    /// `{"guaranteed": {"bandwidth": bits per second, "latency_ns": nanoseconds}}`.
    #[serde(default)]
    #[schema(value_type = ClassSchema)]
    pub class: Class,
    /// How its packets are to be told from others': `"cluster"` for one service level, `"path"` for one by path.
    #[serde(default)]
    #[schema(value_type = String)]
    pub sl_mode: SlMode,
    /// PartitionsUpdate inside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<SubPartition>,
    /// Public keys that may log in, one line each as in `authorized_keys`.
    #[serde(default)]
    pub ssh_keys: Vec<String>,
    /// Whose it is to be; only operators may name another tenant than their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
}

/// Asks for other partitions inside a cluster, in place of all that are there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PartitionsUpdate {
    /// Those that are to be.
    pub partitions: Vec<SubPartition>,
}

/// Asks for a cluster to grow or shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeRequest {
    /// Virtual machines from now on. The last ones go first.
    pub size: u32,
}
