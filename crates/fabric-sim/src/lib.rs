//! Emulated InfiniBand switches and adapters.
//!
//! A [`Fabric`] is built from a topology and behaves like the devices it describes towards all software that
//! sends it datagrams: subnet management agents with tables, keys and port state machines; performance
//! agents; links that carry a packet only if they are up, routed, in its partition and have a lane for it. It
//! is strict where real hardware is strict and ibsim is not: M_Keys, partition enforcement, alias GUIDs. A
//! [`DeviceProfile`] says what kind of devices it consists of. `docs/sim-differences.md` lists all differences
//! from ibsim.
//!
//! The crate does no I/O and has no clock; random numbers come from a seed. The same calls give the same
//! results.
//!
//! | module | content |
//! |---|---|
//! | `fabric` | the state machine: datagrams and time in, deliveries out |
//! | `forwarding` | the forwarding pipeline: ports, forwarding tables, partitions, lanes |
//! | `mad_routing` | LID-routed and directed-route datagrams, to an agent and back |
//! | `vf_frames` | Ethernet frames of virtual functions |
//! | `link_model`, `link_queues` | a rate and a latency of links for what functions send; off by default |
//! | `agent` | subnet management and performance agents |
//! | `notices` | traps and their repetition |
//! | `links`, `recable`, `faults`, `set_faults` | link training, topology changes, injected faults |
//! | `adapter_send` | headers that an adapter adds to the MADs of its software |
//! | `install` | a plan written into all devices, without a subnet manager |
//! | `inspect` | read access for the operator of the emulation |
//! | `profile` | kinds of devices: sizes, capabilities, behaviour |
//! | `device`, `lazy_table` | registers and tables |
//! | [`traffic`] | packet-level simulation in time: flow control, arbitration, latency |
//! | [`scenario`] | workloads of clusters, and whether their guarantees were met |

mod adapter_send;
mod agent;
mod capacities;
mod counters;
mod device;
mod fabric;
mod faults;
mod forwarding;
mod function_view;
mod inspect;
mod install;
mod lazy_table;
mod link_model;
mod link_queues;
mod links;
mod mad_routing;
mod notices;
mod profile;
mod rates;
mod recable;
pub mod scenario;
mod set_faults;
pub mod traffic;
mod vf_frames;
mod vf_packets;

pub use adapter_send::BareDatagram;
pub use capacities::{BadCapacity, Capacities};
pub use counters::{Counters, LinkErrors, SlCounters};
pub use device::{DeviceId, PortId};
pub use fabric::{Fabric, FabricOutput};
pub use fabric_model::{DropReason, FunctionKey};
pub use faults::{InvalidProbability, Probability};
pub use function_view::{ToView, ViewPort};
pub use inspect::{DeviceView, PortForwarding, PortView, Statistics, TableView};
pub use install::InstallError;
pub use link_model::{
    LINK_LATENCY_MAX, LINK_RATE_MIN, LinkLoad, LinkModel, ModelledRate, ParseModelledRateError,
};
pub use profile::{
    AdapterDescription, AdapterProfile, BuiltInProfile, DeviceBehaviour, DeviceCapability, DeviceProfile,
    InheritedState, LinkProfile, SwitchDescription, SwitchProfile, UnknownCapability,
};
pub use recable::RecableError;
pub use set_faults::{SetConduct, SetFault, TakenEntries};
pub use vf_frames::{AttachFunctionError, FUNCTION_KEYS_MAX, FrameCounters, FunctionId, VirtualFunction};
pub use vf_packets::{AdapterFunction, FunctionPort};
