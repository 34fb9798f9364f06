//! Packets in time: virtual cut-through switches, credits and arbitration over the tables that management wrote.
//!
//! A [`TrafficNetwork`] is what the tables of a [`Fabric`](crate::Fabric) say at one moment. A [`Simulation`] moves packets over
//! it, driven by a [`Workload`] that decides what is sent, and tells what became of it: a [`Measure`] for each [`Tag`].
//! The same network, settings and workload give the same results, down to the picosecond.
//!
//! What is modelled, and how:
//!
//! * A packet comes into the buffer of a port's lane. Its way is decided when its head arrives; what a table or filter
//!   stops is dropped there. It may leave as soon as its head is there, so far ahead of its tail that a faster link behind
//!   never has to wait for bytes: on the way from a slow link to a fast one the start is put off.
//! * It leaves by its output when the output is free, the arbiter says its lane, nobody has waited longer for that lane of
//!   that output, and the buffer behind the link has room for all of it. Packets of a buffer that leave by different outputs
//!   do not wait for each other; only a buffer that is full stops all that would come (A-LANE-16).
//! * Room is given back when the last byte has left the buffer, and its sender knows after the cable and a delay.
//! * An adapter has for each function and lane a queue of messages, cut into packets as they leave; its functions take
//!   turns in a lane, its lanes by its own arbitration table. Between functions of the same port packets stay inside,
//!   on a path of their own that has no lanes.
//! * Lane 15 is served before all others and without credits; a port that has no room drops what comes.
//! * Nothing limits the life of a packet but the number of switches it may pass: links that wait for each other in a ring
//!   wait for ever. [`Simulation::credit_loop`] finds them.

mod arbiter;
mod audit;
mod event_queue;
mod events;
mod measure;
mod message;
mod network;
mod prefetch;
mod settings;
mod simulation;
mod source;
mod state;
mod time;

pub use arbiter::{Arbiter, ArbitrationTables, LaneSet};
pub use audit::{AuditError, BlockedBuffer};
pub use measure::{Histogram, Measure};
pub use message::{Message, Service, Tag, Workload, WorkloadActions};
pub use network::TrafficNetwork;
pub use settings::{
    BLOCK_BYTES, BadTrafficSettings, Buffer, CREDITS_MAX, HEADER_BYTES, MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX,
    ROUTED_BYTES, TrafficSettings,
};
pub use simulation::{RunOutcome, Simulation, Totals};
pub use time::Time;
