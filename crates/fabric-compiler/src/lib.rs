//! Compiles a topology, intents and earlier decisions into a plan: every LID, forwarding entry, P_Key, multicast tree,
//! SL-to-VL and arbitration table of a fabric.
//!
//! [`compile`] is a pure function: no clock, no randomness, no I/O. Earlier decisions are kept while they are possible, and
//! the same arguments give the same plan. A [`Planner`] keeps intermediate results and plans a sequence of changes in a
//! fraction of the time.
//!
//! Order of decisions: LIDs (`addressing`), partition numbers and P_Key tables (`partitions`), unicast routes (`routing`),
//! broadcast groups (`multicast`), guarantees of clusters (`guarantees`, by the engine of [`tenancy`]), classes inside
//! guarantees, and last the route overrides of tenants (`route_overrides`). Later steps do not change earlier ones, except
//! that guarantees choose the up-ports towards hosts of their clusters.
//!
//! ```
//! use fabric_compiler::{compile, partitions_conf};
//! use fabric_model::{Decisions, Intents, generate::FatTree};
//!
//! let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate()?;
//! let (_, host) = tree.end_nodes().next().expect("the tree has hosts");
//! let (_, port) = host.ports().next().expect("hosts have ports");
//! let mut intents = Intents::new(port.guid);
//! intents.partitions = partitions_conf::parse("blue=0x101, ipoib : ALL_CAS=full;")?;
//!
//! let plan = compile(&tree, &intents, &Decisions::default())?;
//! assert_eq!(plan.adapter_ports().len(), 16);
//! assert_eq!(plan.groups().len(), 1);
//! // The decisions of a plan keep the next one as it is.
//! assert_eq!(compile(&tree, &intents, plan.decisions())?, plan);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod addressing;
mod adoption;
mod aliases;
pub mod arrangement;
mod assembly;
mod compiled;
mod fabric;
mod guarantees;
mod list_diff;
mod multicast;
pub mod packing;
mod partitions;
pub mod partitions_conf;
mod planner;
mod recompile;
mod route_overrides;
mod routing;
pub mod tenancy;

use std::sync::Arc;

use fabric_model::intent::PortName;
use fabric_model::plan::Basis;
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use ib_wire::{Guid, PartitionNumber, ServiceLevel};
use thiserror::Error;

pub use adoption::{Adoption, adopt};
pub use guarantees::GuaranteeError;
pub use planner::Planner;

use compiled::Compiled;

/// Why no plan can be compiled. Every variant names the object that is at fault and the limit it exceeds.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CompileError {
    /// [`Intents::manager`] is not the GUID of any port of the topology.
    #[error("no port of the fabric has the manager's port GUID {port_guid}")]
    ManagerMissing { port_guid: Guid },
    #[error("the manager's port {port_guid} has no cable")]
    ManagerUnplugged { port_guid: Guid },
    /// There are more end ports than LIDs that the smallest linear forwarding table can hold.
    #[error("{needed} end ports need a LID each, but the switches can forward to {available} at most")]
    LidsExhausted { needed: usize, available: usize },
    /// `port` is the adapter port, or the switch port that enforces its keys.
    #[error("port {port} needs {needed} P_Keys, but its table has {capacity} entries")]
    PkeyTableFull { port: PortName, needed: usize, capacity: usize },
    /// A guaranteed cluster names a port that the manager does not reach.
    #[error("cluster {cluster} names a port that is not on the fabric")]
    PortsMissing { cluster: String },
    /// The network cannot give a cluster the guarantee it requests.
    #[error("cluster {cluster} cannot be guaranteed its request: {reason}")]
    NotAdmitted { cluster: String, reason: GuaranteeError },
    /// Once a cluster has a guarantee, other service levels than 0 belong to clusters or to management.
    #[error(
        "the broadcast group of partition {partition} uses service level {sl}, but only service level 0 is allowed \
         once a cluster has a guarantee"
    )]
    GroupServiceLevel { partition: PartitionNumber, sl: ServiceLevel },
    /// Two owners claim a partition number, which would join their networks.
    #[error(
        "partition {partition} belongs to both {first:?} and {second:?}; every owner needs a number of its own"
    )]
    NumberShared { partition: PartitionNumber, first: String, second: String },
    /// A handed-over port carries tenants, the default partition ports of the site.
    #[error("port {port} is handed over, so the default partition (0x7fff) must not name it")]
    HandedOverInDefault { port: Guid },
    #[error(
        "port {port} is handed over, so partition {partition:?} of the site may have it as a limited member only"
    )]
    HandedOverFull { port: Guid, partition: String },
    /// A partition of a tenant has a member that was not handed over; `port` is `None` for a selector such as `ALL`.
    #[error(
        "partition {partition:?} belongs to a tenant, so its members must be handed-over ports named by GUID, got {}",
        port.map_or_else(|| "a selector of many ports".to_owned(), |port| port.to_string())
    )]
    OwnedPartitionOpen { partition: String, port: Option<Guid> },
    #[error(
        "a subnet manager runs at port {port}, which cannot be handed over while there are partitions of the site"
    )]
    ManagerHandedOver { port: Guid },
    /// The number of the management partition stays while handed-over ports have its key.
    #[error("partition {name:?} needs another number than {partition}, which the management partition has")]
    ManagementNumberTaken { partition: PartitionNumber, name: String },
    /// While full members of the default partition keep tenants out of it, the manager's port is in every partition of a
    /// tenant. `port` is that port, or the switch port that enforces its keys.
    #[error(
        "the manager's port needs {needed} P_Keys, one for every partition of a tenant while ports of the site are full \
         members of the default partition, but the table of {port} has {capacity} entries"
    )]
    ManagerKeysFull { port: PortName, needed: usize, capacity: usize },
    /// Two addresses have one GUID. `first` and `second` are the port GUIDs of their owners.
    #[error("alias GUID {alias} of port {second} is also an address of port {first}")]
    AliasShared { alias: Guid, first: Guid, second: Guid },
    #[error("an alias GUID of port {port} has index 0, which holds the GUID of the port itself")]
    AliasAtIndexZero { port: Guid },
    /// All 32,767 partition numbers are in use or reserved.
    #[error("no partition number is left for {name:?}")]
    PartitionsExhausted { name: String },
    /// No tree of switches joins the members of a group with hops that keep the fabric free of deadlocks.
    #[error("the members of partition {partition} cannot be joined to a group without a risk of deadlock")]
    GroupNotJoined { partition: PartitionNumber },
    /// Every multicast LID that all switches of a group can hold is in use on one of them.
    #[error("no multicast LID is left for partition {partition}: its switches can hold {capacity}")]
    MlidsExhausted { partition: PartitionNumber, capacity: u16 },
}

/// Compiles a plan for the part of a fabric that the manager reaches. Unreached nodes become a finding of the plan.
///
/// # Contract
///
/// - Pure and deterministic: the same arguments give the same plan, in whatever order the topology lists its nodes.
/// - Stable: decisions of `previous` are kept while they are possible. These are LIDs (also of absent ports, up to 8,192),
///   indices of P_Keys, partition numbers, multicast LIDs and roots of groups, the cables over which each port is reached,
///   and the grants of clusters. Decisions that contradict each other or the fabric are dropped in a fixed order.
/// - Idempotent: compiling with the decisions of a plan gives that plan again.
/// - A guarantee that was given before and can no longer be met, because the fabric changed, is a finding of the plan. A
///   new or changed request that cannot be met is an error.
/// - Route overrides and classes that cannot be applied are findings, never errors.
pub fn compile(
    topology: &Topology,
    intents: &Intents,
    previous: &Decisions,
) -> Result<FabricPlan, CompileError> {
    Compiled::from_decisions(topology, intents, previous).map(|compiled| Arc::unwrap_or_clone(compiled.plan))
}

/// Rejects intents that no fabric could be compiled for: partition numbers with two owners, and handed-over ports where they
/// may not be. [`compile`] does the same first.
pub fn check_partitions(intents: &Intents) -> Result<(), CompileError> {
    partitions::check(intents)
}

/// Compiles like [`compile`] with the decisions of a plan, and gives the same result faster.
///
/// While the fabric, the manager's port and the capabilities of devices are those that the plan was compiled for, which
/// its [`Basis`] shows, LIDs and routes are copied from the plan. Otherwise everything is compiled. Tables that did not
/// change are shared with the plan. A plan from elsewhere is trusted as far as its basis matches; verify the result if its
/// origin is not trusted. For many changes in a row use a [`Planner`], which is faster still.
pub fn recompile(
    topology: &Topology,
    intents: &Intents,
    previous: &FabricPlan,
) -> Result<FabricPlan, CompileError> {
    recompile_on(Basis::of(topology, intents), topology, intents, previous)
}

/// Does what [`recompile()`] does, for callers that kept the [`Basis`] of the topology and the intents: computing it takes
/// time linear in the size of both. `basis` must be that of `topology` and `intents`.
pub fn recompile_on(
    basis: Basis,
    topology: &Topology,
    intents: &Intents,
    previous: &FabricPlan,
) -> Result<FabricPlan, CompileError> {
    Compiled::from_plan(basis, topology, intents, previous)
        .map(|compiled| Arc::unwrap_or_clone(compiled.plan))
}
