//! Hosts that run virtual machines.

use ib_wire::{Guid, PartitionNumber};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::agent::{Accelerator, VmState};
use crate::{MemorySize, Name};

/// Host that runs virtual machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// Name of the host. Once the host is bound to a port, the NodeDescription of its adapter is ignored.
    pub name: Name,
    /// GUID of the port that the host is bound to; absent until exactly one adapter with its name is discovered.
    #[schema(value_type = Option<String>)]
    pub port_guid: Option<Guid>,
    /// Availability of the host for virtual machines.
    pub state: HostState,
    /// Time at which the agent or the port was last heard of (RFC 3339), if it has been silent for longer than its limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub since: Option<Timestamp>,
    /// Virtualization method of the host; absent until its agent has probed it.
    pub accelerator: Option<Accelerator>,
    /// Cores available to virtual machines.
    pub cores: u32,
    /// Memory available to virtual machines.
    pub memory: MemorySize,
    /// Cores allocated to virtual machines.
    pub cores_used: u32,
    /// Memory allocated to virtual machines.
    pub memory_used: MemorySize,
    /// Number of virtual machines placed on the host.
    pub nodes: u32,
}

/// Availability of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HostState {
    /// The agent responds, and the port is on the fabric.
    Up,
    /// The agent does not respond.
    AgentSilent,
    /// The port that the host is bound to is not on the fabric.
    OffFabric,
    /// The port is on the fabric and closed, because the devices at its link do not take what isolates tenants.
    PortClosed,
    /// The host was added without a GUID, and no adapter, or more than one, has its name.
    Unbound,
}

/// Virtual machine that runs on a host but belongs to no known cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnlistedVm {
    /// Unique id of the virtual machine.
    pub id: Uuid,
    /// Name of the host that runs it.
    pub host: Name,
    /// Tenant and host name from its last spec; empty if the agent has none.
    pub label: String,
    /// State of the virtual machine.
    pub state: VmState,
    /// Partition numbers that the virtual machine may use; withheld from clusters while it exists.
    #[schema(value_type = Vec<u16>)]
    pub partitions: Vec<PartitionNumber>,
}

/// Request to add a host, or to change its properties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewHost {
    /// Unique name of the host.
    pub name: Name,
    /// GUID of the fabric port that identifies the host. Without it, the host is bound to the adapter with its name, as
    /// soon as exactly one is discovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub port_guid: Option<Guid>,
    /// Absolute path of the agent's unix socket.
    pub agent: String,
    /// Cores available to virtual machines, at least 1; in shared mode they may exceed the cores of the machine.
    pub cores: u32,
    /// Memory available to virtual machines, at least 1M.
    pub memory: MemorySize,
}

/// Request to bind a host to another port after its adapter was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostBinding {
    /// GUID of the new port, in hexadecimal with `0x`.
    #[schema(value_type = String)]
    pub port_guid: Guid,
}
