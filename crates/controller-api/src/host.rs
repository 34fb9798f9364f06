//! The hosts on which virtual machines run.

use ib_wire::{Guid, PartitionNumber};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::agent::{Accelerator, VmState};
use crate::{MemorySize, Name};

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// Its name. What its adapter calls itself on the fabric means nothing once the host is bound to a port.
    pub name: Name,
    /// GUID of the port that the host is bound to; absent until exactly one adapter of its name was seen.
    #[schema(value_type = Option<String>)]
    pub port_guid: Option<Guid>,
    /// Whether its agent answers, and its port is on the fabric.
    pub state: HostState,
    /// When its agent or its port was last heard of, if either has been silent for longer than a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub since: Option<Timestamp>,
    /// How virtual machines run on it, once its agent has found out.
    pub accelerator: Option<Accelerator>,
    /// What virtual machines may use in all.
    pub cores: u32,
    /// Likewise.
    pub memory: MemorySize,
    /// What virtual machines were given.
    pub cores_used: u32,
    /// Likewise.
    pub memory_used: MemorySize,
    /// Virtual machines placed on it.
    pub nodes: u32,
}

/// Whether a host can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HostState {
    /// Its agent answers, and it is on the fabric.
    Up,
    /// Its agent does not answer.
    AgentSilent,
    /// The port it is bound to is not seen on the fabric.
    OffFabric,
    /// It was added without a GUID, and no adapter, or more than one, calls itself by its name.
    Unbound,
}

/// A virtual machine that a host runs and no cluster knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnlistedVm {
    /// Id of the virtual machine.
    pub id: Uuid,
    /// The host that runs it.
    pub host: Name,
    /// Tenant and host name, as they were when it was last ordered; empty if the agent does not know.
    pub label: String,
    /// Its state.
    pub state: VmState,
    /// Numbers of the partitions it may use. They are given to no cluster while it exists.
    #[schema(value_type = Vec<u16>)]
    pub partitions: Vec<PartitionNumber>,
}

/// Asks for a host to be used: its agent, and what may be given away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewHost {
    /// Its name.
    pub name: Name,
    /// GUID of its port on the fabric, which identifies it from then on. Without it, the host is bound to the adapter that
    /// calls itself by its name, as soon as exactly one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub port_guid: Option<Guid>,
    /// The socket of its agent.
    pub agent: String,
    /// Cores for virtual machines: in shared mode, threads that float over what the machine has.
    pub cores: u32,
    /// Memory for virtual machines.
    pub memory: MemorySize,
}

/// Asks for a host to be bound to another port: its adapter was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostBinding {
    /// GUID of the port.
    #[schema(value_type = String)]
    pub port_guid: Guid,
}
