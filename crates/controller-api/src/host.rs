//! The hosts on which virtual machines run.

use ib_wire::{Guid, PartitionNumber};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::agent::{Accelerator, VmState};
use crate::{MemorySize, Name};

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// What it is called; the same name its adapter has on the fabric.
    pub name: Name,
    /// The port by which it is on the fabric, once that port was seen.
    #[schema(value_type = Option<String>)]
    pub port_guid: Option<Guid>,
    /// Whether its agent answers.
    pub state: HostState,
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
    /// Its port was not seen on the fabric.
    OffFabric,
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
    /// What its adapter is called on the fabric.
    pub name: Name,
    /// The socket of its agent.
    pub agent: String,
    /// Cores for virtual machines: in shared mode, threads that float over what the machine has.
    pub cores: u32,
    /// Memory for virtual machines.
    pub memory: MemorySize,
}
