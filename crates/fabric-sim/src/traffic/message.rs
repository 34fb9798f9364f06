//! Messages, and the workload that posts them.

use ib_wire::{Lid, Pkey, ServiceLevel};

use super::time::Time;
use crate::device::PortId;
use crate::fabric::DropReason;
use crate::vf_frames::FunctionId;

/// A tag of messages that are measured together, for example those of a cluster or a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u16);

/// The lanes that a message uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Data on the lanes that devices map this service level to.
    Data(ServiceLevel),
    /// Subnet management on lane 15: highest priority, no partition, no flow control. Requires a whole
    /// adapter, not only a virtual function.
    Management,
}

/// A message that a virtual function sends to a port, in as many packets as necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender. Functions need not be attached; every adapter port has all numbers.
    pub from: FunctionId,
    /// The receiving port. A message to a LID of the sending port stays inside the adapter.
    pub to: Lid,
    pub service: Service,
    /// P_Key of the packets. An adapter drops messages with a key that is not in its table.
    pub pkey: Pkey,
    /// Payload; 0 sends one packet without payload. Messages above
    /// [`MESSAGE_BYTES_MAX`](super::MESSAGE_BYTES_MAX) are dropped.
    pub bytes: u64,
    /// Payload of each packet but the last; `None` uses the MTU of the sending port.
    pub packet_bytes: Option<u16>,
    /// Bytes of each packet besides its payload: [`HEADER_BYTES`](super::HEADER_BYTES) to
    /// [`HEADER_BYTES_MAX`](super::HEADER_BYTES_MAX), and clamped to that.
    pub header_bytes: u8,
    pub tag: Tag,
    /// Passed back to the workload with every notification.
    pub token: u64,
}

/// A traffic generator. A running [`Simulation`](super::Simulation) calls it back; it responds with
/// [`WorkloadActions`], which are carried out in order right after the callback, at the same simulated time.
pub trait Workload {
    /// The simulation starts, at time 0.
    fn start(&mut self, actions: &mut WorkloadActions) {
        let _ = actions;
    }

    /// The last packet of a message has started to leave its function. A message posted now keeps the
    /// function busy without a gap.
    fn sent(&mut self, now: Time, message: &Message, actions: &mut WorkloadActions) {
        let _ = (now, message, actions);
    }

    /// All packets of a message have arrived. The message was posted at `posted`.
    fn delivered(&mut self, now: Time, message: &Message, posted: Time, actions: &mut WorkloadActions) {
        let _ = (now, message, posted, actions);
    }

    /// All packets of a message have arrived or were dropped, at least one was dropped. `reason` is that of
    /// the first drop.
    ///
    /// If the message was dropped by its own adapter, posting it again at once causes an endless loop; use
    /// [`WorkloadActions::wake`].
    fn lost(&mut self, now: Time, message: &Message, reason: DropReason, actions: &mut WorkloadActions) {
        let _ = (now, message, reason, actions);
    }

    /// A requested wakeup is due.
    fn woken(&mut self, now: Time, token: u64, actions: &mut WorkloadActions) {
        let _ = (now, token, actions);
    }
}

/// Actions that a workload requests in a callback.
#[derive(Debug, Default)]
pub struct WorkloadActions {
    pub(super) list: Vec<WorkloadAction>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum WorkloadAction {
    Post(Message),
    Wake(Time, u64),
    Drain(PortId, bool),
}

impl WorkloadActions {
    /// Posts a message now. It waits behind the messages of the same function and lane.
    pub fn post(&mut self, message: Message) {
        self.list.push(WorkloadAction::Post(message));
    }

    /// Requests a call of [`Workload::woken`] at time `at`, or now if that has passed.
    pub fn wake(&mut self, at: Time, token: u64) {
        self.list.push(WorkloadAction::Wake(at, token));
    }

    /// An adapter port stops taking data out of its receive buffers.
    pub fn stop_draining(&mut self, port: PortId) {
        self.list.push(WorkloadAction::Drain(port, false));
    }

    /// An adapter port takes data out of its receive buffers again, those that wait at once.
    pub fn drain(&mut self, port: PortId) {
        self.list.push(WorkloadAction::Drain(port, true));
    }
}
