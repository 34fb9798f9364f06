//! The fabric, as operators see it.

use ib_wire::{Guid, Lid, MulticastLid, PartitionNumber};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Name;

/// The fabric as it was last seen and programmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FabricStatus {
    /// How the subnet manager stands.
    pub state: FabricState,
    /// When the manager was last heard of, or the fabric last equal to its plan, if that is longer ago than a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub since: Option<Timestamp>,
    /// Switches that were seen.
    pub switches: u32,
    /// Adapters that were seen.
    pub adapters: u32,
    /// Cables that were seen.
    pub links: u32,
    /// PartitionsUpdate of clusters.
    pub partitions: Vec<PartitionStatus>,
    /// What plans found wanting, such as parts that the manager does not reach.
    pub findings: Vec<String>,
    /// Nodes and cables, in the format of ibnetdiscover.
    pub topology: String,
}

/// What came of reading every table back from the devices and judging it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Proof {
    /// Switches whose tables were read.
    pub switches: u32,
    /// Ports of adapters whose tables were read.
    pub ports: u32,
    /// What the tables do not keep; empty if all is well.
    pub findings: Vec<String>,
}

/// How the subnet manager stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FabricState {
    /// The manager does not answer.
    #[default]
    ManagerSilent,
    /// The fabric is not yet equal to the plan.
    Programming,
    /// The fabric is equal to the plan.
    Programmed,
    /// The manager answers, but the fabric has not become equal to the plan for longer than a limit.
    Stuck,
}

/// The partition of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartitionStatus {
    /// Its number.
    #[schema(value_type = u16)]
    pub number: PartitionNumber,
    /// Whose cluster.
    pub tenant: Name,
    /// Which cluster.
    pub cluster: Name,
    /// LID of its broadcast group.
    #[schema(value_type = Option<u16>)]
    pub group: Option<MulticastLid>,
    /// Its members.
    pub members: Vec<PartitionMember>,
}

/// A port in the partition of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartitionMember {
    /// The host.
    pub host: Name,
    /// Its port.
    #[schema(value_type = String)]
    pub port_guid: Guid,
    /// LID of that port.
    #[schema(value_type = Option<u16>)]
    pub lid: Option<Lid>,
}
