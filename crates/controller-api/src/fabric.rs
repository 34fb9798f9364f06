//! The fabric as operators see it.

use fabric_model::LinkRate;
use fabric_model::tenancy::Bandwidth;
use ib_wire::{Guid, Lid, MulticastLid, PartitionNumber, PortNum};
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

/// Partitions of the site beside clusters: of storage, login nodes, bare metal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SitePartitions {
    /// Partitions in the format of OpenSM's partitions.conf, each with a number; empty if there are none.
    pub conf: String,
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

/// One direction of a link, and what of it is guaranteed to clusters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LinkStatus {
    /// Port that sends in this direction.
    pub from: LinkEnd,
    /// Port that receives in this direction.
    pub to: LinkEnd,
    /// Active rate of the link, such as `4xEDR`; absent if its ports do not report it. Nothing is guaranteed there.
    #[schema(value_type = Option<String>)]
    pub rate: Option<LinkRate>,
    /// Shares that are guaranteed to clusters, in the order of their ids.
    pub guaranteed: Vec<ClusterShare>,
}

impl LinkStatus {
    /// Sum of all shares.
    pub fn guaranteed_total(&self) -> Bandwidth {
        Bandwidth::from_bits_per_s(self.guaranteed.iter().map(|share| share.share.bits_per_s()).sum())
    }
}

/// End of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LinkEnd {
    /// Description of the switch or adapter.
    pub node: String,
    /// GUID of the switch or adapter, in hexadecimal with `0x`.
    #[schema(value_type = String)]
    pub node_guid: Guid,
    /// Number of the port.
    #[schema(value_type = u8)]
    pub port: PortNum,
}

/// Share of one direction of a link that is guaranteed to a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterShare {
    /// Name of the tenant that owns the cluster.
    pub tenant: Name,
    /// Name of the cluster.
    pub cluster: Name,
    /// Guaranteed rate on this link, in bits per second.
    #[schema(value_type = u64)]
    pub share: Bandwidth,
}
