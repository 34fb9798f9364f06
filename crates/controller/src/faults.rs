//! Parts of the site that do not work, and how long each may be silent or absent before it counts as such.

use std::collections::BTreeMap;
use std::time::Duration;

use controller_api::Name;
use jiff::Timestamp;
use uuid::Uuid;

/// Longest silence of an agent. It responds within 5 s even without news; a machine that is three times too slow is not
/// worth an alarm.
pub const AGENT_SILENCE_LIMIT: Duration = Duration::from_secs(15);

/// Longest silence of the subnet manager to heartbeats. While it compares a plan of 11,664 hosts it is busy for seconds.
pub const MANAGER_SILENCE_LIMIT: Duration = Duration::from_secs(15);

/// Longest absence of a host port from the fabric: an adapter that restarts, or a cable that is replugged, is back
/// sooner.
pub const PORT_ABSENCE_LIMIT: Duration = Duration::from_secs(5);

/// Longest time the devices may differ from the plan while the subnet manager responds: what a cold fabric of 11,664
/// hosts takes on a slow machine.
pub const PROGRAMMING_LIMIT: Duration = Duration::from_secs(120);

/// A part of the site that does not work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The subnet manager does not respond.
    ManagerSilent,
    /// The subnet manager responds, but the devices do not reach the plan.
    FabricStuck,
    /// The agent of a host does not respond: the state of its virtual machines is not known.
    AgentSilent(Name),
    /// The port of a host is not on the fabric: its virtual machines have no network.
    OffFabric(Name),
    /// The port of a host is closed, because its device does not take what isolates tenants: its virtual machines have no
    /// network.
    PortClosed(Name),
    /// The fabric can no longer carry the guarantee of the cluster with this id: it has best effort.
    GuaranteeWithdrawn(Uuid),
}

/// All current faults, with the time at which each began.
pub type Faults = BTreeMap<Fault, Timestamp>;
