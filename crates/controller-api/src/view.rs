//! Tenant views: the network of a cluster as its tenant sees and manages it.

use ib_wire::{Guid, Lid, PartitionNumber, ServiceLevel};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The `Upgrade` protocol of requests for a node's adapter in its view: frames of `ib_transport::framed`. The controller
/// sends the first frame, which names the adapter.
pub const PROTOCOL: &str = "heddle-view";

/// Status of a tenant's view: the network of a cluster as its tenant sees and manages it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ViewStatus {
    /// Partition number of the cluster on the wire (15 bits), for applications.
    #[schema(value_type = u16)]
    pub partition: PartitionNumber,
    /// Service level on the wire (0 to 15), for applications.
    #[schema(value_type = u8)]
    pub service_level: ServiceLevel,
    /// Partitions that the tenant created in the view, with their numbers on the wire.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<PartitionMapping>,
    /// Traffic classes that the tenant created in the view, with their service levels on the wire.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassMapping>,
    /// Nodes with their identifiers in the view.
    pub nodes: Vec<ViewNode>,
    /// Host name of the node that runs the tenant's subnet manager; absent while the default one manages the view.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// Whether the view holds written changes that have not been evaluated yet.
    pub pending: bool,
    /// Number of the change that the devices are programmed with; absent for the default configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<u64>,
    /// Last evaluated change with its verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub last_change: Option<serde_json::Value>,
}

/// Partition created in a view, and its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartitionMapping {
    /// Partition number in the view (15 bits).
    #[schema(value_type = u16)]
    pub view: PartitionNumber,
    /// Partition number on the wire (15 bits), for applications.
    #[schema(value_type = u16)]
    pub wire: PartitionNumber,
}

/// Traffic class created in a view, and its service level on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClassMapping {
    /// Service levels of the class in the view (0 to 15).
    #[schema(value_type = Vec<u8>)]
    pub view_sls: Vec<ServiceLevel>,
    /// Service level on the wire (0 to 15), for applications.
    #[schema(value_type = u8)]
    pub wire_sl: ServiceLevel,
    /// Smallest share of the cluster's bandwidth on any link while the other classes send, in permille.
    pub min_share_permille: u32,
}

/// Node of a cluster with its identifiers in the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ViewNode {
    /// Host name of the node.
    pub node: String,
    /// Node GUID of the adapter in the view.
    #[schema(value_type = String)]
    pub guid: Guid,
    /// Port GUID of the adapter in the view.
    #[schema(value_type = String)]
    pub port_guid: Guid,
    /// Default LID in the view; the tenant's subnet manager may assign another.
    #[schema(value_type = u16)]
    pub lid: Lid,
}
