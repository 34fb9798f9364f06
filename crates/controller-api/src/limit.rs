//! The limit that a rejected request exceeds, for programs: the extension member `limit` of problem details.

use fabric_model::intent::PortName;
use fabric_model::tenancy::Bandwidth;
use ib_wire::Guid;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::MemorySize;

/// Limit that the request exceeds; `kind` tells which. What was requested is always present; what the site has left is
/// present for operators only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Limit {
    /// Quota of the tenant.
    Quota {
        /// Resource whose quota would be exceeded.
        resource: QuotaResource,
        /// Allowed amount: a count, MiB for `memory`, bit/s for `bandwidth`.
        allowed: u64,
        /// Amount that would be used with the request, in the same unit.
        requested: u64,
    },
    /// Partition numbers of the site.
    PartitionNumbers {
        /// Numbers in use by clusters of all tenants; for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        in_use: Option<u32>,
        /// Numbers released less than ten minutes ago; for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quarantined: Option<u32>,
    },
    /// Hosts that can be used at all now.
    UsableHosts {
        /// Why each host cannot be used; for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hosts: Option<UnusableHosts>,
    },
    /// Cores, memory and virtual functions of hosts.
    HostCapacity {
        /// Number of new nodes requested.
        requested_nodes: u32,
        /// Virtual cores requested for each node.
        requested_cores: u32,
        /// Memory requested for each node.
        requested_memory: MemorySize,
        /// Number of such nodes that the hosts can take now; for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nodes_that_fit: Option<u32>,
        /// Resources left on the hosts; for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        available: Option<HostsLeft>,
    },
    /// Memory of the physical machines behind the hosts.
    MachineMemory {
        /// Number of new nodes requested.
        requested_nodes: u32,
        /// Memory requested for each node.
        requested_memory: MemorySize,
        /// Number of such nodes that the machines can take now; for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nodes_that_fit: Option<u32>,
    },
    /// Cores of the physical machines for dedicated nodes.
    DedicatedCores {
        /// Number of new nodes requested.
        requested_nodes: u32,
        /// Dedicated cores requested for each node.
        requested_cores: u32,
        /// Cores for dedicated nodes that are left on all machines; for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        available_cores: Option<u32>,
        /// Cores for dedicated nodes of all machines; for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total_cores: Option<u32>,
    },
    /// Network guarantee of a cluster.
    Guarantee {
        /// Number of nodes of the cluster with the request.
        requested_nodes: u32,
        /// Bandwidth requested for each node, in bit/s.
        #[serde(rename = "requested_bps")]
        #[schema(value_type = u64)]
        requested: Bandwidth,
        /// Latency bound requested, in nanoseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requested_latency_ns: Option<u64>,
        /// Number of the new nodes that would fit on unused hosts with this guarantee; for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nodes_that_fit: Option<usize>,
        /// Reason why the placed nodes cannot have the guarantee; for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<GuaranteeLimit>,
        /// Reason why the new nodes have no hosts of their own; for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        placement: Option<GuaranteeLimit>,
    },
    /// Entries of a P_Key table.
    PkeyTable {
        /// Table of a port; for operators.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        table: Option<PkeyTableUse>,
    },
}

/// Resource with a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaResource {
    Clusters,
    Nodes,
    Cores,
    Partitions,
    ExclusiveHosts,
    Memory,
    Bandwidth,
}

/// Hosts of a site of which none can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnusableHosts {
    /// Number of hosts of the site.
    pub total: usize,
    /// Number of hosts with clusters that the requested one cannot share a port with.
    pub excluded: usize,
    /// Number of other hosts whose agent does not respond.
    pub silent: usize,
    /// Number of other hosts whose port is not on the fabric.
    pub absent: usize,
}

/// Resources left on hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostsLeft {
    /// Number of hosts that can be used.
    pub hosts: usize,
    /// Most virtual cores left on one host.
    pub cores: u32,
    /// Most memory left on one host.
    pub memory: MemorySize,
}

/// Occupancy of a P_Key table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PkeyTableUse {
    /// Adapter port, or switch port that enforces its P_Keys.
    #[schema(value_type = PortNameSchema)]
    pub port: PortName,
    /// Number of P_Keys that the port needs.
    pub needed: usize,
    /// Number of entries of the table.
    pub capacity: usize,
}

/// Limit of the network that prevents a guarantee; `kind` tells which. A link is named by the port that sends into it, a
/// host by its port GUID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum GuaranteeLimit {
    /// Bandwidth of a link.
    LinkBandwidth {
        /// Port that sends into the link.
        #[schema(value_type = PortNameSchema)]
        port: PortName,
        /// Bandwidth that the cluster needs on the link, in bit/s.
        #[serde(rename = "needed_bps")]
        #[schema(value_type = u64)]
        needed: Bandwidth,
        /// Bandwidth that is left on the link, in bit/s.
        #[serde(rename = "available_bps")]
        #[schema(value_type = u64)]
        available: Bandwidth,
    },
    /// Rate of a link that is unknown: nothing can be guaranteed on it.
    LinkRate {
        /// Port that sends into the link.
        #[schema(value_type = PortNameSchema)]
        port: PortName,
    },
    /// Virtual lanes of a link: all are owned by other clusters, or it has none for guaranteed clusters.
    Lanes {
        /// Port that sends into the link.
        #[schema(value_type = PortNameSchema)]
        port: PortName,
        /// Number of lanes for guaranteed clusters.
        lanes: u8,
    },
    /// Service levels that are free on every link of the cluster.
    ServiceLevels {
        /// Port that sends into the link with the fewest free service levels.
        #[schema(value_type = PortNameSchema)]
        port: PortName,
        /// Number of service levels that are free there.
        available: u8,
        /// Number of service levels for guaranteed clusters.
        usable: u8,
    },
    /// Entries of the arbitration table of a link.
    ArbitrationEntries {
        /// Port that sends into the link.
        #[schema(value_type = PortNameSchema)]
        port: PortName,
        /// Number of entries needed.
        needed: u8,
        /// Number of entries left.
        available: u8,
    },
    /// Time between two visits of the cluster's lane on a link, beside the clusters that are there.
    LinkLatency {
        /// Port that sends into the link.
        #[schema(value_type = PortNameSchema)]
        port: PortName,
        /// Longest wait that the requested latency allows on the link, in nanoseconds.
        wait_ns: u64,
    },
    /// Buffer of a lane at the far end of a link.
    LaneBuffer {
        /// Port that sends into the link.
        #[schema(value_type = PortNameSchema)]
        port: PortName,
        /// Bytes needed for a credit round trip and one packet.
        needed_bytes: u64,
        /// Bytes that the buffer has.
        available_bytes: u64,
    },
    /// Paths to a host: none has a free lane and enough bandwidth on every link.
    Paths {
        /// GUID of the host's port.
        #[schema(value_type = String)]
        host: Guid,
        /// Bandwidth needed for each host, in bit/s.
        #[serde(rename = "needed_bps")]
        #[schema(value_type = u64)]
        needed: Bandwidth,
    },
    /// Routes to a host: the forwarding tables have none.
    Routes {
        /// GUID of the host's port.
        #[schema(value_type = String)]
        host: Guid,
    },
    /// Hosts with a guarantee belong to one cluster, and this one belongs to another.
    HostTaken {
        /// GUID of the host's port.
        #[schema(value_type = String)]
        host: Guid,
        /// Cluster that the host belongs to: its id, or its number in the admission control.
        cluster: String,
    },
    /// Hosts that are unused and can hold a node.
    FreeHosts {
        /// Number of hosts needed.
        needed: usize,
        /// Number of such hosts.
        available: usize,
    },
    /// Machines behind unused hosts have too few cores or too little memory left.
    Machines {
        /// Number of hosts needed.
        needed: usize,
    },
    /// Worst-case latency of packets under load.
    Latency {
        /// Worst-case delay that can be guaranteed, in nanoseconds.
        possible_ns: u64,
    },
    /// Admission control was called with an inconsistent request: a defect of the controller.
    Defect {
        /// Description of the inconsistency.
        detail: String,
    },
}

/// Port identified by node GUID and port number.
#[derive(ToSchema)]
#[schema(as = PortName)]
#[allow(dead_code, reason = "only its description is used")]
struct PortNameSchema {
    /// GUID of the node, in hexadecimal with 0x.
    node: String,
    /// Number of the port on the node.
    port: u8,
}
