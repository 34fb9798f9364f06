//! State of the simulation: packets, messages, queues, lanes and outputs, all in tables indexed by number.

use ib_wire::{LaneSet, VirtualLane};

use super::arbiter::Arbiter;
use super::message::Message;
use super::network::{Headers, NONE};
use super::settings::BLOCK_BYTES;
use super::time::Pace;
use crate::fabric::DropReason;

/// Lanes of a port, lane 15 included.
pub(crate) const LANES: u32 = 16;

/// A packet: what the switch at which it arrives needs. Half a cache line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub headers: Headers,
    /// Since when it has been first in its lane at the sender.
    pub head_since: u64,
    pub message: u32,
    /// The port at which it arrived last.
    pub at: u32,
    /// The output that it will leave or has left through.
    pub out: u32,
    /// The number of the lane on which it arrived, or [`LOOPBACK`](super::events::LOOPBACK).
    pub lane: u8,
    /// The lane on which it will leave or has left.
    pub out_lane: VirtualLane,
    pub hops: u8,
    /// Whether it has found its lane empty so far.
    pub uncontended: bool,
}

impl Packet {
    /// Size on the wire, in bytes.
    #[inline]
    pub fn bytes(&self) -> u16 {
        self.headers.payload + u16::from(self.headers.bytes)
    }

    #[inline]
    pub fn blocks(&self) -> u8 {
        blocks_of(self.bytes())
    }
}

/// Blocks of a packet of this size.
#[inline]
pub(crate) const fn blocks_of(bytes: u16) -> u8 {
    (bytes as u32).div_ceil(BLOCK_BYTES) as u8
}

/// What an output needs of a waiting packet. Kept apart from the packet, so that more of these fit into the
/// cache and sending one does not touch the packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueEntry {
    /// The next packet of its queue.
    pub next: u32,
    /// The receive buffer that it occupies.
    pub fifo: u32,
    /// Size on the wire.
    pub bytes: u16,
    /// Size of the next packet, in blocks.
    pub next_blocks: u8,
}

impl QueueEntry {
    pub const EMPTY: Self = Self { next: NONE, fifo: NONE, bytes: 0, next_blocks: 0 };
}

/// A message with packets outstanding. One cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Posted {
    pub message: Message,
    pub at: u64,
    /// Packets that have neither arrived nor been dropped.
    pub open: u32,
    /// Packets that were cut so far.
    pub made: u32,
    /// The next message of its function and lane.
    pub next: u32,
    pub packet_bytes: u16,
    pub lost: Option<DropReason>,
    /// Whether the next packet is its first and found its lane empty.
    pub uncontended: bool,
}

const _: () =
    assert!(size_of::<Posted>() == 64 && size_of::<Packet>() == 32 && size_of::<QueueEntry>() == 12);
const _: () = assert!(size_of::<Output>() == 64 && size_of::<Lane>() == 16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueStatus {
    /// No packet is queued.
    Idle,
    /// Its first packet waits for the output.
    Waiting,
    /// One of its packets is being sent.
    Sending,
}

/// Packets in order of arrival: of a function's lane, in a receive buffer that is not drained, or behind the
/// first packet of a FIFO input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fifo {
    pub first: u32,
    pub last: u32,
    /// The next queue that waits for the same lane of the same output.
    pub next: u32,
    pub status: QueueStatus,
    /// Size of the first packet while it waits, in blocks.
    pub blocks: u8,
    /// Whether the first packet is the last of its message.
    pub is_last: bool,
}

impl Fifo {
    pub const EMPTY: Self =
        Self { first: NONE, last: NONE, next: NONE, status: QueueStatus::Idle, blocks: 0, is_last: false };

    /// Whether no packet is queued or being sent.
    pub fn is_idle(&self) -> bool {
        self.first == NONE && self.status == QueueStatus::Idle
    }
}

/// Messages of a function for one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub first: u32,
    pub last: u32,
    pub out: u32,
    pub lane: VirtualLane,
}

/// One lane of an output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    /// The first waiting packet at a switch, or the first waiting function queue at an adapter.
    pub first: u32,
    pub last: u32,
    /// Free blocks in the buffer at the other end of the link.
    pub credits: u16,
    /// Blocks that the first waiting packet needs.
    pub need: u16,
    /// Bytes sent since the counter was last carried over.
    pub bytes: u32,
}

impl Lane {
    /// Whether the credits suffice for the first waiting packet.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.credits >= self.need
    }
}

/// All lanes of all outputs. Ordered by lane first, because most fabrics use few lanes and many outputs.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    outputs: usize,
    /// Bytes carried over from the counters of the lanes.
    bytes: Vec<u64>,
}

impl Lanes {
    /// Lanes with credits for the given buffer of each output.
    pub fn new(capacity: &[u16]) -> Self {
        let lane = |blocks: &u16| Lane { first: NONE, last: NONE, credits: *blocks, need: 0, bytes: 0 };
        let lanes: Vec<Lane> = (0..LANES).flat_map(|_| capacity.iter().map(lane)).collect();
        Self { bytes: vec![0; lanes.len()], lanes, outputs: capacity.len() }
    }

    #[inline]
    pub fn get(&self, output: u32, lane: VirtualLane) -> &Lane {
        &self.lanes[lane.index() * self.outputs + output as usize]
    }

    #[inline]
    pub fn get_mut(&mut self, output: u32, lane: VirtualLane) -> &mut Lane {
        &mut self.lanes[lane.index() * self.outputs + output as usize]
    }

    /// Carries the byte counter of a lane over.
    #[cold]
    pub fn put_down(&mut self, output: u32, lane: VirtualLane) {
        let index = lane.index() * self.outputs + output as usize;
        self.bytes[index] += u64::from(std::mem::take(&mut self.lanes[index].bytes));
    }

    /// Bytes sent on a lane.
    pub fn bytes(&self, output: u32, lane: VirtualLane) -> u64 {
        let index = lane.index() * self.outputs + output as usize;
        self.bytes[index] + u64::from(self.lanes[index].bytes)
    }

    /// The lanes of an output.
    pub fn of(&self, output: u32) -> impl Iterator<Item = &Lane> {
        LaneSet::ALL.iter().map(move |lane| self.get(output, lane))
    }
}

/// An output: the link of a port, or the loopback of an adapter port. One cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Output {
    pub arbiter: Arbiter,
    /// When the current transmission ends.
    pub until: u64,
    /// The queue or receive buffer of the packet that is being sent.
    pub fifo: u32,
    /// The port that packets arrive at.
    pub to: u32,
    pub pace: Pace,
    /// Lanes with waiting packets.
    pub waiting: LaneSet,
    /// Lanes whose first waiting packet has enough credits.
    pub ready: LaneSet,
    /// Lane and size of the packet that is being sent.
    pub lane: VirtualLane,
    pub blocks: u8,
    pub is_busy: bool,
    /// Whether it leads to a switch.
    pub to_switch: bool,
    /// Whether it belongs to a switch.
    pub is_switch: bool,
    /// Whether it is the loopback of an adapter port: no cable, no credits.
    pub is_loopback: bool,
    /// Whether its link has forward error correction.
    pub has_fec: bool,
}

impl Output {
    /// Appends a packet, or the function queue that it is first in, to the queue of its lane. Returns the
    /// predecessor.
    #[inline]
    pub fn append(&mut self, state: &mut Lane, waiting: u32, packet: &mut Packet) -> Option<u32> {
        let lane = packet.out_lane;
        if state.first != NONE {
            packet.uncontended = false;
            return Some(std::mem::replace(&mut state.last, waiting));
        }
        let is_served = self.is_busy && self.lane == lane;
        self.waiting.insert(lane);
        (state.first, state.last, state.need) = (waiting, waiting, packet.blocks().into());
        self.set_ready(lane, state.has_room());
        packet.uncontended &= !is_served && (lane == VirtualLane::MANAGEMENT || state.has_room());
        None
    }

    /// Records whether the first waiting packet of a lane has enough credits.
    #[inline]
    pub fn set_ready(&mut self, lane: VirtualLane, is_ready: bool) {
        let this = LaneSet::of(lane);
        self.ready = if is_ready { self.ready | this } else { self.ready - this };
    }

    /// Records that no packet waits for a lane.
    #[inline]
    pub fn clear(&mut self, lane: VirtualLane) {
        self.waiting.remove(lane);
        self.ready.remove(lane);
    }
}

/// Items by number; numbers are reused.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub const fn new() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }

    pub fn insert(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.items[index as usize] = item;
                index
            }
            None => {
                self.items.push(item);
                self.items.len() as u32 - 1
            }
        }
    }

    /// Frees a number. The item keeps its value until the number is reused.
    pub fn free(&mut self, index: u32) {
        self.free.push(index);
    }

    pub fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, index: u32) -> &T {
        &self.items[index as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.items[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_counts_more_bytes_than_its_counter_holds() {
        let mut lanes = Lanes::new(&[10, 20]);
        let [third, fourth] = [3, 4].map(|number| VirtualLane::from_wire(number).unwrap());
        assert_eq!(lanes.of(1).map(|lane| lane.credits).collect::<Vec<_>>(), [20; LANES as usize]);
        lanes.get_mut(1, third).bytes = u32::MAX;
        lanes.put_down(1, third);
        lanes.get_mut(1, third).bytes = 7;
        assert_eq!(lanes.bytes(1, third), u64::from(u32::MAX) + 7);
        assert_eq!((lanes.bytes(0, third), lanes.bytes(1, fourth)), (0, 0));
    }
}
