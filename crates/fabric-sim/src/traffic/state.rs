//! What moves and where it waits: packets, messages, queues, lanes and outputs, all in lists that are addressed by
//! number.

use super::arbiter::{Arbiter, LaneSet};
use super::message::Message;
use super::network::{Headers, MANAGEMENT, NONE};
use super::settings::{BLOCK_BYTES, HEADER_BYTES};
use super::time::Pace;
use crate::fabric::DropReason;

/// Lanes of a port, that of management included.
pub(crate) const LANES: u32 = 16;

/// A packet: what the switch at which it arrives asks of it, twice in a line of the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub headers: Headers,
    /// Since when nothing was before it in its lane at its sender.
    pub head_since: u64,
    pub message: u32,
    /// The port at which it came last.
    pub at: u32,
    /// The output it is to leave by, or has left by.
    pub out: u32,
    /// The lane it came by.
    pub lane: u8,
    /// The lane it is to leave by, or has left by.
    pub out_lane: u8,
    pub hops: u8,
    /// Whether it has found its lane empty so far.
    pub uncontended: bool,
}

impl Packet {
    /// Bytes on the wire.
    #[inline]
    pub fn bytes(&self) -> u16 {
        self.headers.payload + HEADER_BYTES as u16
    }

    #[inline]
    pub fn blocks(&self) -> u8 {
        blocks_of(self.bytes())
    }
}

/// Blocks of a packet of so many bytes.
#[inline]
pub(crate) const fn blocks_of(bytes: u16) -> u8 {
    (bytes as u32).div_ceil(BLOCK_BYTES) as u8
}

/// What an output asks of a packet that waits for its turn. Apart from the packet, since many of these fit where few packets
/// do, and a packet that only moves on need not be looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueEntry {
    /// The next packet of its queue.
    pub next: u32,
    /// The lane's buffer that it is in.
    pub fifo: u32,
    /// Bytes on the wire.
    pub bytes: u16,
    /// Blocks of the next packet.
    pub next_blocks: u8,
}

impl QueueEntry {
    pub const EMPTY: Self = Self { next: NONE, fifo: NONE, bytes: 0, next_blocks: 0 };
}

/// A message that is not done with; it is one line of the cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Posted {
    pub message: Message,
    pub at: u64,
    /// Packets that have neither arrived nor been dropped.
    pub open: u32,
    /// Packets that were made.
    pub made: u32,
    /// The next message of its function and lane.
    pub next: u32,
    /// Payload of a packet.
    pub packet_bytes: u16,
    pub lost: Option<DropReason>,
    /// Whether its next packet is its first and found its lane empty.
    pub uncontended: bool,
}

const _: () =
    assert!(size_of::<Posted>() == 64 && size_of::<Packet>() == 32 && size_of::<QueueEntry>() == 12);
const _: () = assert!(size_of::<Output>() == 64 && size_of::<Lane>() == 16);

/// What a queue is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueStatus {
    /// Nothing: it is empty.
    Idle,
    /// Its first packet waits for its turn.
    Waiting,
    /// A packet of it is on its way out.
    Sending,
}

/// Packets in the order in which they came: of a function's lane, or those that a receiver does not take out of a lane's
/// buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fifo {
    pub first: u32,
    pub last: u32,
    /// The next queue that waits for the same lane of the same output.
    pub next: u32,
    pub status: QueueStatus,
    /// Blocks of the first packet, while it waits.
    pub blocks: u8,
    /// Whether the first packet is the last of its message to leave.
    pub is_last: bool,
}

impl Fifo {
    pub const EMPTY: Self =
        Self { first: NONE, last: NONE, next: NONE, status: QueueStatus::Idle, blocks: 0, is_last: false };

    /// Whether nothing is in it and nothing on its way out.
    pub fn is_idle(&self) -> bool {
        self.first == NONE && self.status == QueueStatus::Idle
    }
}

/// Where a function's messages for one lane wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub first: u32,
    pub last: u32,
    pub out: u32,
    pub lane: u8,
}

/// One lane of an output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    /// Who waits for it, in the order in which they will be served: packets at a switch, functions' queues at an adapter.
    pub first: u32,
    pub last: u32,
    /// Blocks of room behind the link.
    pub credits: u16,
    /// Blocks that the next packet needs.
    pub need: u16,
    /// Bytes on the wire that were sent, less those that were put down elsewhere.
    pub bytes: u32,
}

impl Lane {
    /// Whether there is room for the packet that is next.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.credits >= self.need
    }
}

/// All lanes of all outputs: of each lane all outputs, since most fabrics use few lanes and many outputs.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    outputs: usize,
    /// Bytes that the lanes themselves have no room to count.
    bytes: Vec<u64>,
}

impl Lanes {
    /// As many of each as outputs have room behind them.
    pub fn new(capacity: &[u16]) -> Self {
        let lane = |blocks: &u16| Lane { first: NONE, last: NONE, credits: *blocks, need: 0, bytes: 0 };
        let lanes: Vec<Lane> = (0..LANES).flat_map(|_| capacity.iter().map(lane)).collect();
        Self { bytes: vec![0; lanes.len()], lanes, outputs: capacity.len() }
    }

    #[inline]
    pub fn get(&self, output: u32, lane: u8) -> &Lane {
        &self.lanes[usize::from(lane) * self.outputs + output as usize]
    }

    #[inline]
    pub fn get_mut(&mut self, output: u32, lane: u8) -> &mut Lane {
        &mut self.lanes[usize::from(lane) * self.outputs + output as usize]
    }

    /// A lane that has counted as much as it can begins anew.
    #[cold]
    pub fn put_down(&mut self, output: u32, lane: u8) {
        let place = usize::from(lane) * self.outputs + output as usize;
        self.bytes[place] += u64::from(std::mem::take(&mut self.lanes[place].bytes));
    }

    /// Bytes on the wire that were sent.
    pub fn bytes(&self, output: u32, lane: u8) -> u64 {
        let place = usize::from(lane) * self.outputs + output as usize;
        self.bytes[place] + u64::from(self.lanes[place].bytes)
    }

    /// The lanes of an output.
    pub fn of(&self, output: u32) -> impl Iterator<Item = &Lane> {
        (0..LANES as u8).map(move |lane| self.get(output, lane))
    }
}

/// Where packets leave: a port's link, or an adapter's way from one function to another. One line of the cache.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Output {
    pub arbiter: Arbiter,
    /// Of the packet that is being sent: when it is through.
    pub until: u64,
    /// The function's queue, or the lane's buffer, that it comes from.
    pub fifo: u32,
    /// The port that packets come to.
    pub to: u32,
    pub pace: Pace,
    /// Lanes for which somebody waits.
    pub waiting: LaneSet,
    /// Those of them that have room for the next packet behind the link.
    pub ready: LaneSet,
    /// Of the packet that is being sent: its lane and its blocks.
    pub lane: u8,
    pub blocks: u8,
    pub is_busy: bool,
    /// Whether it leads to a switch.
    pub to_switch: bool,
    /// Whether it is a switch's.
    pub is_switch: bool,
    /// Whether it is inside an adapter: no cable, no credits.
    pub is_loopback: bool,
}

impl Output {
    /// Puts a packet, or the queue whose first it is, behind all that wait for its lane. Who is before it, if somebody is.
    #[inline]
    pub fn append(&mut self, state: &mut Lane, waiting: u32, packet: &mut Packet) -> Option<u32> {
        let lane = packet.out_lane;
        if state.first != NONE {
            packet.uncontended = false;
            return Some(std::mem::replace(&mut state.last, waiting));
        }
        let is_served = self.is_busy && self.lane == lane;
        self.waiting |= 1 << lane;
        (state.first, state.last, state.need) = (waiting, waiting, packet.blocks().into());
        self.set_ready(lane, state.has_room());
        packet.uncontended &= !is_served && (lane == MANAGEMENT || state.has_room());
        None
    }

    /// Notes whether the packet that is next in a lane has room behind the link.
    #[inline]
    pub fn set_ready(&mut self, lane: u8, is_ready: bool) {
        self.ready = self.ready & !(1 << lane) | LaneSet::from(is_ready) << lane;
    }

    /// Nobody waits for a lane any more.
    #[inline]
    pub fn clear(&mut self, lane: u8) {
        self.waiting &= !(1 << lane);
        self.ready &= !(1 << lane);
    }
}

/// Things by number; numbers are used again.
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
            Some(place) => {
                self.items[place as usize] = item;
                place
            }
            None => {
                self.items.push(item);
                self.items.len() as u32 - 1
            }
        }
    }

    /// The thing keeps its values until its number is used again.
    pub fn free(&mut self, place: u32) {
        self.free.push(place);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, place: u32) -> &T {
        &self.items[place as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, place: u32) -> &mut T {
        &mut self.items[place as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_counts_more_bytes_than_its_own_counter_has_room_for() {
        let mut lanes = Lanes::new(&[10, 20]);
        assert_eq!(lanes.of(1).map(|lane| lane.credits).collect::<Vec<_>>(), [20; LANES as usize]);
        lanes.get_mut(1, 3).bytes = u32::MAX;
        lanes.put_down(1, 3);
        lanes.get_mut(1, 3).bytes = 7;
        assert_eq!(lanes.bytes(1, 3), u64::from(u32::MAX) + 7);
        assert_eq!((lanes.bytes(0, 3), lanes.bytes(1, 4)), (0, 0));
    }
}
