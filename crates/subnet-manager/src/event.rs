//! Events of the subnet manager.

use std::collections::BTreeSet;

use fabric_model::intent::Capabilities;
use fabric_model::{BuildError, FabricPlan, Topology};
use ib_wire::notice::Trap;
use ib_wire::{Attribute, Guid, LidAddress, PortNum, SmInfo, Status};

use crate::key_ring::KeyVersion;
use crate::keys::Location;
use crate::lacks::{Lack, Lacks};
use crate::link_health::{DampedLinkReport, LinkName};
use crate::mad_window::MadCounts;
use crate::survey::{AttributeDifference, Survey};

/// An event that [`Manager::poll_event`](crate::Manager::poll_event) reports.
#[derive(Debug)]
pub enum SmEvent {
    /// The fabric is known or has changed. Compile a plan for it and call [`apply`](crate::Manager::apply).
    Discovered(Box<Discovery>),
    /// Not even the node of the manager's own port answers.
    LocalNodeSilent,
    /// Every node that answers holds the current M_Key; `absent` ones will get it when they come back.
    KeysRotated { version: KeyVersion, absent: usize },
    /// The answers contradict each other, for example two nodes with one GUID or a cable with three ends.
    Inconsistent(BuildError),
    /// Result of [`survey`](crate::Manager::survey): the tables that devices hold, and the posture of the fabric.
    Surveyed(Box<Survey>),
    /// Result of [`compare`](crate::Manager::compare): the differences to a plan.
    Compared(Vec<AttributeDifference>),
    /// Result of [`read_back`](crate::Manager::read_back): the plan in force, with the tables that devices
    /// hold.
    ReadBack(Box<FabricPlan>),
    /// The fabric holds the plan, and what was written was read back. Requests that were refused concern addresses and
    /// routes only, or ports that are closed. Total MADs sent since the start.
    Programmed(MadCounts),
    /// A node did not answer during programming. It is rechecked, then programming starts again.
    Interrupted,
    /// A device is connected but does not answer: it is broken, or it has an M_Key of another site.
    SilentLocation {
        /// `None` means the manager's own node.
        location: Option<Location>,
        /// The node that was last seen there.
        last: Option<Guid>,
    },
    /// A device that does not know the M_Key claims the GUID of a node that was seen elsewhere. It is
    /// ignored, and no key is sent to it. [`Manager::rebind`](crate::Manager::rebind) accepts a node that was
    /// moved.
    Stranger { location: Option<Location>, claims: Guid },
    /// At a location with a silent device or a stranger, the right node answers now, or nothing is connected
    /// any more.
    LocationRecovered { location: Option<Location> },
    /// A node that answered before does not answer any more.
    NodeSilent { node: Guid, attribute: Attribute },
    /// A node refused a request, or its answer cannot be decoded.
    RequestRefused {
        node: Guid,
        attribute: Attribute,
        modifier: u32,
        /// `None` if the answer cannot be decoded.
        status: Option<Status>,
    },
    /// A Set left bits unchanged: the node does not support them. Reported once per attribute; the bits are
    /// not written again.
    Unsupported { node: Guid, attribute: Attribute, modifier: u32 },
    /// A device did not take an entry that isolates tenants or carries guarantees. Reported once; its port is closed, or
    /// nothing is guaranteed on its link, until [`SmEvent::LackEnded`]. [`SmEvent::Discovered`] follows, with other
    /// capabilities.
    Lacking(Lack),
    /// A device takes an entry that it did not take before, or the entry is not needed any more.
    LackEnded(Lack),
    /// A link flaps, or its error counters grow; or what becomes of such a link has changed. If plans do without it,
    /// [`SmEvent::Discovered`] follows.
    LinkDamped(Box<DampedLinkReport>),
    /// A damped link was quiet for long enough, or an operator restored it.
    LinkRestored { link: LinkName },
    /// Something other than this manager changed an attribute. It will be restored.
    Drift { node: Guid, attribute: Attribute, modifier: u32 },
    /// A node sent a trap. Traps are not authenticated.
    TrapReceived {
        /// The node that owns the source LID of the trap.
        node: Guid,
        trap: Trap,
    },
    /// A port asks subnet administration for more than its share and gets BUSY. Reported at most once a minute for each port.
    PortOverload {
        /// GUID of the port.
        port: Guid,
    },
    /// A port sends more than the limit at the service level that is reserved for management, and may delay others there.
    /// Reported at most once a minute for each port.
    ManagementFlood {
        /// GUID of the port.
        port: Guid,
        bytes_per_second: u64,
    },
    /// No other declared manager is the master: this one is. It was a candidate before.
    Elected,
    /// This master was stopped for a while, or cut off from the fabric: it is a candidate again.
    LeaseLost,
    /// Another declared manager is the master, or will be: this one sends nothing any more, and its caller should wait as a
    /// [`Standby`](crate::Standby).
    Yielded {
        /// `None` if this manager was stopped for so long that another one may have taken over.
        to: Option<Guid>,
    },
    /// A subnet manager ordered this one to give the fabric over, to stand by or the like: it was refused. Reported at most every
    /// 10 seconds.
    ClaimRefused {
        from: LidAddress,
        /// The attribute modifier of SMInfo: 1 is a handover.
        order: u32,
    },
    /// Another subnet manager runs on the fabric, or its state or priority changed.
    ForeignManager {
        node: Guid,
        port: PortNum,
        /// Its SMInfo; `None` if it does not answer. Requests to it carry no M_Key, so a device may drop
        /// them.
        info: Option<SmInfo>,
    },
    /// Another subnet manager is gone.
    ForeignManagerGone { node: Guid, port: PortNum },
}

/// The result of a discovery run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovery {
    pub topology: Topology,
    /// Table sizes and other limits of the devices, without what they lack.
    pub capabilities: Capabilities,
    /// What devices did not take although tenants or guarantees need it.
    pub lacks: Lacks,
    /// GUID of the manager's own port.
    pub manager: Guid,
    /// GUIDs of the ports of the other declared managers, present or not.
    pub standby_managers: BTreeSet<Guid>,
}
