//! What is sent, and who decides about it.

use ib_wire::{Lid, Pkey, ServiceLevel};

use super::time::Time;
use crate::device::PortId;
use crate::fabric::DropReason;
use crate::vf_frames::FunctionId;

/// To whose account packets are measured: a cluster, a flow, whatever a scenario likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u16);

/// Which lanes a message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Data: the lanes that devices give to this service level.
    Data(ServiceLevel),
    /// Subnet management: lane 15 everywhere, before all others, without partitions and without room kept for it. Only
    /// who has a whole adapter can send it.
    Management,
}

/// Something that a virtual function sends to a port, in as many packets as it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who sends it. Functions need not be attached; a port of an adapter has all of them.
    pub from: FunctionId,
    /// Whom it is for. Messages to a LID of the sending port stay inside the adapter.
    pub to: Lid,
    /// Which lanes it takes.
    pub service: Service,
    /// The partition key of its packets; an adapter sends with keys of its table only.
    pub pkey: Pkey,
    /// Bytes of payload; 0 is a packet without any. More than [`MESSAGE_BYTES_MAX`](super::MESSAGE_BYTES_MAX) is dropped.
    pub bytes: u64,
    /// Payload of a packet, the last one excepted; `None` takes as much as the sending port may send.
    pub packet_bytes: Option<u16>,
    /// To whose account it goes.
    pub tag: Tag,
    /// Whatever the workload wants to be told with it.
    pub token: u64,
}

/// Who decides what is sent when. Called back while a [`Simulation`](super::Simulation) runs; it answers with [`WorkloadActions`].
pub trait Workload {
    /// The simulation begins.
    fn start(&mut self, actions: &mut WorkloadActions) {
        let _ = actions;
    }

    /// The last packet of a message has begun to leave its function. Who posts the next one now keeps the function busy
    /// without a gap.
    fn sent(&mut self, now: Time, message: &Message, actions: &mut WorkloadActions) {
        let _ = (now, message, actions);
    }

    /// All packets of a message have arrived; it was posted at `posted`.
    fn delivered(&mut self, now: Time, message: &Message, posted: Time, actions: &mut WorkloadActions) {
        let _ = (now, message, posted, actions);
    }

    /// All packets of a message have arrived or were dropped, at least one of them dropped. Who posts again at once what its
    /// own adapter refuses never comes to an end.
    fn lost(&mut self, now: Time, message: &Message, reason: DropReason, actions: &mut WorkloadActions) {
        let _ = (now, message, reason, actions);
    }

    /// A moment it asked for has come.
    fn woken(&mut self, now: Time, token: u64, actions: &mut WorkloadActions) {
        let _ = (now, token, actions);
    }
}

/// What a workload wants done.
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
    /// Sends a message now; it waits behind what its function has posted for the same lane before.
    pub fn post(&mut self, message: Message) {
        self.list.push(WorkloadAction::Post(message));
    }

    /// Asks for a call of [`Workload::woken`] at a moment, or now if that has passed.
    pub fn wake(&mut self, at: Time, token: u64) {
        self.list.push(WorkloadAction::Wake(at, token));
    }

    /// An adapter's port takes no more packets out of its buffers.
    pub fn stop_draining(&mut self, port: PortId) {
        self.list.push(WorkloadAction::Drain(port, false));
    }

    /// It takes packets out of its buffers again, those that wait at once.
    pub fn drain(&mut self, port: PortId) {
        self.list.push(WorkloadAction::Drain(port, true));
    }
}
