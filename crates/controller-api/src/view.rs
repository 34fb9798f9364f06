//! The network of a cluster, as its tenant sees and manages it.

use ib_wire::{Guid, Lid, PartitionNumber, ServiceLevel};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The protocol that requests for the adapter of a node are upgraded to: frames of `ib_transport::framed`, of which the first
/// comes from the controller and says where one is.
pub const PROTOCOL: &str = "heddle-view";

/// The network of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ViewStatus {
    /// The partition that applications use on the wire.
    #[schema(value_type = u16)]
    pub partition: PartitionNumber,
    /// The service level that they use.
    #[schema(value_type = u8)]
    pub service_level: ServiceLevel,
    /// The partitions that were made in it, by what they are on the wire.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<PartitionMapping>,
    /// The classes into which its packets are divided, by their service levels on the wire.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassMapping>,
    /// The virtual machines under the names they have in it.
    pub nodes: Vec<ViewNode>,
    /// The virtual machine on which a subnet manager of the tenant's is; without one it is as by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// Whether something was written that has not been judged.
    pub pending: bool,
    /// The number of the wish that is in force; none is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<u64>,
    /// The last wish that was judged, with what was said about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub last_change: Option<serde_json::Value>,
}

/// A partition that a tenant has made in the network of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartitionMapping {
    /// Its number there.
    #[schema(value_type = u16)]
    pub view: PartitionNumber,
    /// Its number on the wire, which applications use.
    #[schema(value_type = u16)]
    pub wire: PartitionNumber,
}

/// A class of packets that a tenant has made in the network of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClassMapping {
    /// Its service levels there.
    #[schema(value_type = Vec<u8>)]
    pub view_sls: Vec<ServiceLevel>,
    /// The service level on the wire, which applications use.
    #[schema(value_type = u8)]
    pub wire_sl: ServiceLevel,
    /// What it has of the cluster's share where it has least, in thousandths, while the others have something to send too.
    pub min_share_permille: u32,
}

/// A virtual machine in the network of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ViewNode {
    /// Its host name.
    pub node: String,
    /// GUID of its adapter.
    #[schema(value_type = String)]
    pub guid: Guid,
    /// GUID of the adapter's port.
    #[schema(value_type = String)]
    pub port_guid: Guid,
    /// Its LID, unless a manager of the tenant's has given it another.
    #[schema(value_type = u16)]
    pub lid: Lid,
}
