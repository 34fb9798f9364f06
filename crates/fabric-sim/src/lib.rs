//! Emulated InfiniBand switches and adapters.
//!
//! A [`Fabric`] is built from a topology and behaves, towards everybody who sends it datagrams, like the devices it
//! describes: subnet management agents with all their tables, keys and state machines; performance agents; links
//! that carry a packet only if they are up, routed, in its partition and have a lane for it. It is the ground all of
//! Heddle is developed and tested on, so it is strict where the field is strict, above all where the public ibsim is
//! not: management keys, partition enforcement, alias GUIDs (`docs/sim-differences.md` has the whole list).
//!
//! It is a machine without I/O: no socket, no clock, no dice but the seeded ones. The same datagrams at the same
//! times give the same answers.
//!
//! | module | what it does |
//! |---|---|
//! | `fabric` | datagrams and time in, deliveries out |
//! | `way` | link by link: forwarding tables, partitions and lanes |
//! | `travel` | how management goes that way, and directed routes |
//! | `forward` | how frames of virtual functions go that way |
//! | `agent` | who may ask, what is answered |
//! | `notices` | traps and their repetition |
//! | [`scenario`] | what clusters send in time, and what they got of what was promised |
//! | `links`, `recable`, `faults` | what changes underneath |
//! | `station` | what adapters make of what software hands over |
//! | `install` | a whole plan written at once, without a manager |
//! | [`traffic`] | packets in time: how fast, how late, who is in whose way |
//! | `device`, `grown` | what registers and tables hold |

mod adapter_send;
mod agent;
mod capacities;
mod counters;
mod device;
mod fabric;
mod faults;
mod forwarding;
mod inspect;
mod install;
mod lazy_table;
mod links;
mod mad_routing;
mod notices;
mod rates;
mod recable;
pub mod scenario;
pub mod traffic;
mod vf_frames;

pub use adapter_send::BareDatagram;
pub use capacities::{BadCapacity, Capacities};
pub use counters::Counters;
pub use device::{DeviceId, PortId};
pub use fabric::{DropReason, Fabric, FabricOutput};
pub use faults::{InvalidProbability, Probability};
pub use inspect::{DeviceView, PortForwarding, PortView, Statistics, TableView};
pub use install::InstallError;
pub use recable::RecableError;
pub use vf_frames::{
    AttachFunctionError, FUNCTION_KEYS_MAX, FrameCounters, FunctionId, FunctionKey, VirtualFunction,
};
