//! Makes a fabric equal to a plan, and nothing else: no LID, route or lane is chosen here.
//!
//! A [`Manager`] is a machine without I/O. It looks at the fabric along directed routes, many requests in flight at
//! once; hands out what it found ([`SmEvent::Discovered`]); takes a [`FabricPlan`](fabric_model::FabricPlan) that somebody
//! compiled from it ([`Manager::apply`]); reads the tables that are there, and writes those that differ, in an order in
//! which every step is safe: what is no longer allowed ends before anything new begins, and only when everything is in
//! place ports become active. Then it watches: traps and sweeps tell it where to look again.
//!
//! | module | what it does |
//! |---|---|
//! | `manager` | the phases, and the verbs the caller uses |
//! | `backlog` | reads and writes that wait for their turn |
//! | `window` | requests in flight: windows, retries, time limits |
//! | `keys` | a management key for every node, derived; where each may be shown |
//! | `look` | looking at the fabric: who is there, what has changed |
//! | `watch` | when to look at what |
//! | `traps` | what others send unasked |
//! | `observed` | what devices were last seen to hold, and how they are connected |
//! | `discovery` | from what was seen to a topology |
//! | `pass` | from what devices hold to what a plan says, step by step |
//! | `scope` | which devices a pass has to look at |
//! | `survey`, `read_back` | looking without touching, and reading what a plan speaks of |
//! | `program` | what has to be read and written for a plan |
//! | [`transition`] | the safe order from tables that are held to those of a plan |
//! | `unsupported` | what devices do not take |
//! | `sa` | answers what ports ask about the subnet; a machine of its own, [`SubnetAdministration`] |

mod backlog;
mod discovery_run;
mod event;
mod foreign_managers;
mod keys;
mod mad_window;
mod manager;
mod observed;
mod persistence;
mod program;
mod programming;
mod read_back;
mod sa;
mod scope;
mod survey;
mod sweep;
mod topology;
pub mod transition;
mod traps;
mod unsupported;

pub use event::{Discovery, SmEvent};
pub use keys::{Bindings, Location, SECRET_LEN_MIN, SecretTooShort, SiteSecret};
pub use mad_window::{MadCounts, MadLimits, MadProgress};
pub use manager::{Manager, ManagerSettings};
pub use persistence::PersistentState;
pub use sa::{Directory, ManagerFacts, NodeFacts, SaCounts, SubnetAdministration};
pub use scope::{ChangedDevices, changed_devices};
pub use survey::AttributeDifference;
pub use sweep::SweepSettings;
pub use unsupported::Unsupported;
