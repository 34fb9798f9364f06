//! What a manager has to tell.

use fabric_model::intent::Capabilities;
use fabric_model::{BuildError, FabricPlan, Found, Topology};
use ib_wire::notice::Trap;
use ib_wire::{Attribute, Guid, PortNum, SmInfo, Status};

use crate::keys::Location;
use crate::mad_window::MadCounts;
use crate::survey::AttributeDifference;

/// What a manager has to tell.
#[derive(Debug)]
pub enum SmEvent {
    /// The fabric is known, or has changed; somebody may compile a plan for it and [`apply`](crate::Manager::apply) it.
    Discovered(Box<Discovery>),
    /// Not even the node the manager sits on answers.
    LocalNodeSilent,
    /// What was found is no fabric: two nodes with one GUID, a cable with three ends.
    Inconsistent(BuildError),
    /// What devices hold.
    Surveyed(Box<Found>),
    /// How devices differ from a plan.
    Compared(Vec<AttributeDifference>),
    /// The plan in force with the tables that devices hold.
    ReadBack(Box<FabricPlan>),
    /// The fabric is equal to the plan, but for what was refused.
    Programmed(MadCounts),
    /// Somebody did not answer in the middle of a pass: it is looked at, then the pass begins again.
    Interrupted,
    /// Somebody is there, but does not answer: broken, or under a key that is not ours.
    SilentLocation {
        /// Where; `None` is where the manager itself sits.
        location: Option<Location>,
        /// Who was last met there.
        last: Option<Guid>,
    },
    /// Somebody who has no key answers as a node that was met elsewhere. It is left out; no key is shown to it.
    Stranger {
        /// Where it sits.
        location: Option<Location>,
        /// Who it says it is.
        claims: Guid,
    },
    /// Where somebody was silent or a stranger, a node answers as itself now, or nobody is connected any more.
    LocationRecovered {
        /// Where.
        location: Option<Location>,
    },
    /// A node that answered before does not answer any more.
    NodeSilent {
        /// The node.
        node: Guid,
        /// What it was asked for.
        attribute: Attribute,
    },
    /// A node refused a request, or answered nonsense.
    RequestRefused {
        /// The node.
        node: Guid,
        /// What it was asked for.
        attribute: Attribute,
        /// The modifier.
        modifier: u32,
        /// Its status; `None` if the answer made no sense.
        status: Option<Status>,
    },
    /// Part of an attribute stayed as it was right after a Set: the node does not support it. Told once.
    Unsupported {
        /// The node.
        node: Guid,
        /// The attribute.
        attribute: Attribute,
        /// The modifier.
        modifier: u32,
    },
    /// Somebody else changed what a node holds; it is repaired.
    Drift {
        /// The node.
        node: Guid,
        /// The attribute.
        attribute: Attribute,
        /// The modifier.
        modifier: u32,
    },
    /// A node reported something. Nobody vouches for it.
    TrapReceived {
        /// The node, by the LID the report came from.
        node: Guid,
        /// What it says.
        trap: Trap,
    },
    /// Another subnet manager runs on the fabric, or says something else than before.
    ForeignManager {
        /// The node it runs on.
        node: Guid,
        /// The port.
        port: PortNum,
        /// What it says of itself; `None` if it is silent. No M_Key is ever shown to it, so a device may keep the
        /// question from it.
        info: Option<SmInfo>,
    },
    /// It does not run there any more.
    ForeignManagerGone {
        /// The node it ran on.
        node: Guid,
        /// The port.
        port: PortNum,
    },
}

/// What discovery found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// Nodes and cables.
    pub topology: Topology,
    /// What devices can hold.
    pub capabilities: Capabilities,
    /// The port the manager sits on.
    pub manager: Guid,
}
