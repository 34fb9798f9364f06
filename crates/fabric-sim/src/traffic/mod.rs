//! Packet-level simulation in time: virtual cut-through switches, credit-based flow control and VL
//! arbitration over the tables that the subnet manager wrote.
//!
//! A [`TrafficNetwork`] is a snapshot of the tables of a [`Fabric`](crate::Fabric). A [`Simulation`] moves
//! packets over it. A [`Workload`] posts messages; a [`Measure`] for each [`Tag`] has the results. The same
//! network, settings and workload give the same results, to the picosecond.
//!
//! The model:
//!
//! * A packet enters the receive buffer of a port's lane. Its output is determined when its head arrives; a
//!   packet that a table or filter stops is dropped there. It may leave as soon as its head has arrived, but
//!   not so early that the output would run ahead of the arriving bytes: from a slow to a fast link, the
//!   start is delayed.
//! * A packet leaves when the output is idle, the arbiter chooses its lane, it is the longest-waiting packet
//!   of that lane of that output, and the lane has credits for the whole packet. Packets of one buffer with
//!   different outputs do not block each other; only a full buffer blocks all packets towards it (A-LANE-16).
//! * Credits return when the last byte has left the buffer. The sender has them after the cable delay and the
//!   credit delay.
//! * An adapter has a queue of messages for each function and lane and cuts packets from them as they leave.
//!   Functions take turns within a lane; lanes are chosen by the adapter's arbitration tables. Packets
//!   between functions of the same port use a loopback without lanes.
//! * Lane 15 is served first and has no flow control; a port without a free management buffer drops the
//!   packet.
//! * Only the hop limit bounds the life of a packet, so a deadlock persists. [`Simulation::credit_loop`]
//!   finds it.

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

pub use arbiter::{Arbiter, ArbitrationTables};
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
