//! The fabric as operators see it.

use ib_wire::{Guid, Lid, MulticastLid, PartitionNumber};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Name;

/// Fabric as last discovered and programmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FabricStatus {
    /// State of the subnet manager and the programming.
    pub state: FabricState,
    /// Time of the last answer of the subnet manager, or of the last complete programming (RFC 3339), if that is longer
    /// ago than its limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub since: Option<Timestamp>,
    /// Number of switches discovered.
    pub switches: u32,
    /// Number of adapters discovered.
    pub adapters: u32,
    /// Number of links (cables) discovered.
    pub links: u32,
    /// Partitions of all clusters, sub-partitions included.
    pub partitions: Vec<PartitionStatus>,
    /// Shortcomings of the current plan, such as ports that the subnet manager cannot reach, and entries that devices refuse
    /// or ignore.
    pub findings: Vec<String>,
    /// Nodes and links in the text format of ibnetdiscover.
    pub topology: String,
}

/// Result of reading all tables back from the devices and verifying them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Proof {
    /// Number of switches whose tables were read.
    pub switches: u32,
    /// Number of adapter ports whose tables were read.
    pub ports: u32,
    /// Violations found in the tables, at most 1000; empty if there are none.
    pub findings: Vec<String>,
}

/// State of the subnet manager and the programming.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FabricState {
    /// The subnet manager does not respond.
    #[default]
    ManagerSilent,
    /// The devices do not match the plan yet.
    Programming,
    /// The devices match the plan.
    Programmed,
    /// The subnet manager responds, but the devices have not matched the plan for longer than the limit.
    Stuck,
}

/// Partition or sub-partition of a cluster on the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartitionStatus {
    /// Partition number on the fabric (15 bits).
    #[schema(value_type = u16)]
    pub number: PartitionNumber,
    /// Name of the tenant that owns the cluster.
    pub tenant: Name,
    /// Name of the cluster that uses the partition.
    pub cluster: Name,
    /// Multicast LID of the broadcast group; absent until one is assigned.
    #[schema(value_type = Option<u16>)]
    pub group: Option<MulticastLid>,
    /// Ports that are members of the partition.
    pub members: Vec<PartitionMember>,
}

/// Port that is a member of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartitionMember {
    /// Name of the host that owns the port.
    pub host: Name,
    /// GUID of the port, in hexadecimal with `0x`.
    #[schema(value_type = String)]
    pub port_guid: Guid,
    /// LID of the port; absent until one is assigned.
    #[schema(value_type = Option<u16>)]
    pub lid: Option<Lid>,
}
