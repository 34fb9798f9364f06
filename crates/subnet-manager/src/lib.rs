//! A subnet manager that makes a fabric equal to a plan. It decides nothing: LIDs, routes and lanes come from
//! the plan.
//!
//! A [`Manager`] is a state machine without I/O. It discovers the fabric along directed routes with many
//! requests in flight and reports it ([`SmEvent::Discovered`]). The caller compiles a
//! [`FabricPlan`](fabric_model::FabricPlan) and passes it to [`Manager::apply`]. The manager reads the tables
//! of the devices and writes those that differ, in an order in which every single write is safe. Afterwards
//! it keeps the fabric equal to the plan: traps and sweeps tell it what to check again.
//!
//! | module | content |
//! |---|---|
//! | `manager` | the phases, and the verbs of the caller |
//! | `manager_settings` | its settings |
//! | `answers` | responses, and requests without response |
//! | `discovery_run` | probes, reads and comparison with the known values |
//! | `sweep` | schedule of sweeps and rechecks |
//! | `traps` | traps and SMInfo requests of others |
//! | `foreign_managers` | subnet managers that the operator did not declare |
//! | `election`, `standby` | those that the operator declared: which of them is the master |
//! | `observed` | the last known attributes and cables of all nodes |
//! | `topology` | from observed nodes to a topology |
//! | `programming` | a programming run, stage by stage |
//! | `program` | the attributes to read and write for a plan |
//! | `scope` | the devices that a programming run concerns |
//! | [`transition`] | the safe order from held tables to those of a plan |
//! | `persistence` | the state that must be stored before anything is written |
//! | `posture` | what an operator wants to know before a takeover |
//! | `survey`, `read_back` | reading the tables of the fabric without writing |
//! | `verification` | reading back what was written, and what follows if it is not there |
//! | `keys`, `key_ring`, `rotation` | M_Keys: how they are derived, which node holds which, and how they change |
//! | `release` | leaving the fabric to another manager |
//! | `requests` | requests to nodes, with their M_Key |
//! | `registration` | asking ports to register at subnet administration |
//! | `entry_class` | what an entry is for: isolation, guarantee or other |
//! | `link_health` | links that flap or whose error counters grow |
//! | `lacks` | entries of the first two classes that devices do not take |
//! | `unsupported` | bits that devices do not support |
//! | `keys` | M_Keys and where each may be presented |
//! | `mad_window`, `backlog` | requests in flight and requests waiting |
//! | `sa` | subnet administration, a state machine of its own: [`SubnetAdministration`] |

mod adaptive_routing;
mod answers;
mod attribute_key;
mod backlog;
mod discovery_run;
mod election;
mod entry_class;
mod event;
mod foreign_managers;
mod group_trees;
mod key_ring;
mod keys;
mod lacks;
mod lifetimes;
mod link_health;
mod mad_window;
mod manager;
mod manager_settings;
mod observed;
mod persistence;
mod port_map;
mod posture;
mod program;
mod programming;
mod purpose;
mod read_back;
mod registration;
mod release;
mod requests;
mod rotation;
mod sa;
mod scope;
mod standby;
mod survey;
mod sweep;
mod topology;
pub mod transition;
mod traps;
mod unsupported;
mod verification;

pub use election::{ElectionStatus, ElectionTiming, Standing};
pub use entry_class::EntryClass;
pub use event::{Discovery, SmEvent};
pub use key_ring::{KeyBehind, KeyKind, KeyVersion, KeyVersions};
pub use keys::{Bindings, Location, OperatorKey, SECRET_LEN_MIN, SecretTooShort, SiteSecret};
pub use lacks::{Lack, LackAnswer, Lacks};
pub use link_health::{
    CounterPollCounts, DampedLink, DampedLinkReport, DampedLinkUse, DampingReason, ErrorCounts,
    LinkErrorCounter, LinkHealthError, LinkHealthSettings, LinkName,
};
pub use mad_window::{MadCounts, MadLimits, MadProgress};
pub use manager::Manager;
pub use manager_settings::ManagerSettings;
pub use persistence::PersistentState;
pub use port_map::PortMap;
pub use posture::{Grade, PostureFinding, PostureItem};
pub use release::{HeldKey, ReleaseRefused};
pub use rotation::{KeyStatus, RotationRefused, RotationTarget};
pub use sa::{
    Directory, ManagerFacts, MemberKind, NodeFacts, RememberedGroup, SaCounts, SubnetAdministration,
};
pub use scope::{ChangedDevices, changed_devices};
pub use standby::Standby;
pub use survey::{AttributeDifference, Survey};
pub use sweep::SweepSettings;
pub use unsupported::Unsupported;
