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
//!   of that lane of that output, and the lane has credits for the whole packet. Before that it passes the
//!   input of its switch, as the switch model says.
//! * Credits return when the last byte has left the buffer. The sender has them after the cable delay and the
//!   credit delay.
//! * An adapter has a queue of messages for each function and lane and cuts packets from them as they leave.
//!   Functions take turns within a lane; lanes are chosen by the adapter's arbitration tables. Packets
//!   between functions of the same port use a loopback without lanes.
//! * Lane 15 is served first and has no flow control; a port without a free management buffer drops the
//!   packet.
//! * Only the hop limit bounds the life of a packet, so a deadlock persists. [`Simulation::credit_loop`]
//!   finds it.
//!
//! # Switch models
//!
//! How packets get from the receive buffers of a switch to the queues of its outputs ([`SwitchModel`], A-LANE-16).
//! A queue of an output belongs to one lane; its order is the order in which packets join it. In all models a
//! packet occupies its receive buffer until its last byte has left the switch, so credits are the same. Subnet
//! management bypasses the inputs.
//!
//! * **Ideal outputs**: a packet joins the queue of its output at once. Any number of packets leave an input at
//!   the same time.
//! * **Limited speed-up** *s*: each receive buffer has a queue for every lane of every output. A lane of an output
//!   has room ahead of its arbiter for what one visit of an arbitration entry can ask for: a packet is fetched
//!   while fewer than 255 blocks are there, and its room is free again when it starts to leave. Inputs get
//!   the room in turn. An input moves one packet at a time, which takes it 1/*s* of the time in which the packet
//!   came over its link; its lanes with a packet that has room take turns. The packet may leave through its
//!   output from the moment at which the input starts to move it.
//! * **FIFO inputs**: the packets of a receive buffer join the queues of their outputs in the order of arrival,
//!   each when the one before it has left completely. The lanes of an input are independent of each other.
//!
//! A packet counts as uncontended if it found its lane empty in its receive buffer and at its output.
//!
//! [`SwitchModel`]: fabric_model::SwitchModel

mod arbiter;
mod audit;
mod event_queue;
mod events;
mod inputs;
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
    BLOCK_BYTES, BadTrafficSettings, Buffer, CREDITS_MAX, HEADER_BYTES, HEADER_BYTES_MAX, MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX, ROUTED_BYTES, TrafficSettings,
};
pub use simulation::{RunOutcome, Simulation, Totals};
pub use time::Time;
