//! Turns a topology, intents and the decisions of before into a plan: every LID, forwarding entry, partition key and
//! multicast tree of a fabric.
//!
//! [`compile`] is a function and nothing else: no clock, no dice, no file. What was decided before stays unless it
//! cannot; the same arguments give the same plan. A [`Planner`] gives the plans of one change after the other, each in a
//! small part of the time.
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
pub mod arrangement;
mod assembly;
mod compiled;
mod detours;
mod difference;
mod fabric;
mod multicast;
mod partitions;
pub mod partitions_conf;
mod planner;
mod promises;
mod recompile;
mod routing;
pub mod tenancy;

use std::sync::Arc;

use fabric_model::intent::PortName;
use fabric_model::plan::Basis;
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use ib_wire::{Guid, PartitionNumber, ServiceLevel};
use thiserror::Error;

pub use adoption::{Adoption, adopt};
pub use planner::Planner;

use compiled::Compiled;

/// A plan that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CompileError {
    /// No port has the GUID that the manager's port is to have.
    #[error("no port of the fabric has the manager's port GUID {port_guid}")]
    ManagerMissing {
        /// The GUID.
        port_guid: Guid,
    },
    /// The manager's port has no cable.
    #[error("the manager's port {port_guid} has no cable")]
    ManagerUnplugged {
        /// Its GUID.
        port_guid: Guid,
    },
    /// More end ports than LIDs that every switch can forward to.
    #[error("{needed} end ports need a LID each, but the switches can forward to {available} at most")]
    LidsExhausted {
        /// End ports.
        needed: usize,
        /// LIDs.
        available: usize,
    },
    /// A port is to hold more keys than its table can.
    #[error("port {port} is to hold {needed} P_Keys, but its table has {capacity} entries")]
    PkeyTableFull {
        /// The port: an adapter's, or the switch port that enforces its keys.
        port: PortName,
        /// Keys.
        needed: usize,
        /// Entries.
        capacity: usize,
    },
    /// A cluster names a port that the fabric does not have.
    #[error("cluster {cluster} names a port that is not on the fabric")]
    PortsMissing {
        /// Its name.
        cluster: String,
    },
    /// What a cluster is to be promised cannot be kept.
    #[error("cluster {cluster} cannot be promised that: {reason}")]
    NotAdmitted {
        /// Its name.
        cluster: String,
        /// What is short, and where.
        reason: String,
    },
    /// A broadcast group is to use a level that is not everybody's, where levels belong to clusters or to management.
    #[error(
        "the broadcast group of partition {partition} is to use service level {sl}: only level 0 is everybody's \
         once a cluster was promised something"
    )]
    GroupLevel {
        /// The partition of the group.
        partition: PartitionNumber,
        /// The level.
        sl: ServiceLevel,
    },
    /// A partition number belongs to two owners, whose networks it would join.
    #[error("partition {partition} belongs to {first:?} and to {second:?}: each needs a number of its own")]
    NumberShared {
        /// The number.
        partition: PartitionNumber,
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// No partition number is left for a partition that asked for none.
    #[error("no partition number is left for {name:?}")]
    PartitionsExhausted {
        /// What people call it.
        name: String,
    },
    /// No switches join the members of a group so that packets to it hold links in the order of all others.
    #[error("the members of partition {partition} cannot be joined to a group without a risk of deadlock")]
    GroupNotJoined {
        /// The partition of the group.
        partition: PartitionNumber,
    },
    /// Every multicast LID that the switches of a group can hold belongs to another group there.
    #[error("no multicast LID is left for partition {partition}: its switches can hold {capacity}")]
    MlidsExhausted {
        /// The partition of the group.
        partition: PartitionNumber,
        /// Multicast LIDs that all its switches can hold.
        capacity: u16,
    },
}

/// Plans the part of a fabric that the manager reaches; what it does not reach is a finding of the plan.
///
/// Decisions of before hold as long as they can: LIDs also of ports that are absent, table indices of keys, LIDs of
/// groups, and the cables by which packets come to each port. Decisions that contradict each other or the fabric give
/// way in a fixed order.
pub fn compile(
    topology: &Topology,
    intents: &Intents,
    previous: &Decisions,
) -> Result<FabricPlan, CompileError> {
    Compiled::of(topology, intents, previous).map(|compiled| Arc::unwrap_or_clone(compiled.plan))
}

/// What [`compile`] makes of the decisions of a plan, sooner: while the fabric, the manager's port and what the devices
/// can hold are those that the plan was made for, LIDs and routes are taken from it. Tables that did not change are
/// shared with the plan. Whoever makes many changes has a [`Planner`], which is sooner still.
///
/// Whether they are the same is told by the plan's [`Basis`]; if not, everything is compiled. A plan that came from
/// elsewhere is believed as far as its basis fits.
pub fn recompile(
    topology: &Topology,
    intents: &Intents,
    previous: &FabricPlan,
) -> Result<FabricPlan, CompileError> {
    recompile_on(Basis::of(topology, intents), topology, intents, previous)
}

/// The same for who kept the [`Basis`] of the topology and the intents: to find it out again takes a while.
pub fn recompile_on(
    basis: Basis,
    topology: &Topology,
    intents: &Intents,
    previous: &FabricPlan,
) -> Result<FabricPlan, CompileError> {
    Compiled::after(basis, topology, intents, previous).map(|compiled| Arc::unwrap_or_clone(compiled.plan))
}
