//! What moves and where it waits: packets, messages, queues, lanes and outputs, all in lists that are addressed by
//! number.

use super::arbiter::{Arbiter, LaneSet};
use super::message::{Message, Tag};
use super::network::{Headers, MANAGEMENT, NONE};
use super::time::Pace;
use crate::fabric::DropReason;

/// Lanes of a port, that of management included.
pub(crate) const LANES: u32 = 16;

/// A packet. Every hop looks at most of it, so it is one line of the cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Packet {
    pub headers: Headers,
    /// When its message was posted.
    pub posted: u64,
    /// Since when nothing was before it in its lane at its sender.
    pub head_since: u64,
    /// When all of it is where it is.
    pub tail: u64,
    pub message: u32,
    /// The next packet of its queue.
    pub next: u32,
    /// The port it is at or on its way to.
    pub at: u32,
    /// The output it is to leave by.
    pub out: u32,
    /// Bytes on the wire.
    pub bytes: u16,
    pub tag: Tag,
    pub blocks: u8,
    /// The lane it came by.
    pub lane: u8,
    /// The lane it is to leave by.
    pub out_lane: u8,
    pub hops: u8,
    /// Whether it has found its lane empty so far.
    pub alone: bool,
    /// Whether it is the last of its message to leave.
    pub is_last: bool,
}

/// A message that is not done with; it is one line of the cache too.
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
    pub alone: bool,
}

const _: () = assert!(size_of::<Posted>() == 64 && size_of::<Packet>() == 64);

/// What a queue is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Nothing: it is empty.
    Nothing,
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
    pub doing: Doing,
    /// Blocks of the first packet, while it waits.
    pub blocks: u8,
}

impl Fifo {
    pub const EMPTY: Self = Self { first: NONE, last: NONE, next: NONE, doing: Doing::Nothing, blocks: 0 };

    /// Whether nothing is in it and nothing on its way out.
    pub fn is_idle(&self) -> bool {
        self.first == NONE && self.doing == Doing::Nothing
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
    /// Bytes on the wire that were sent.
    pub bytes: u64,
}

/// Where packets leave: a port's link, or an adapter's way from one function to another. What every packet asks of it is
/// one line of the cache, its lowest lanes the next.
#[derive(Debug)]
#[repr(align(128))]
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
    /// Of the packet that is being sent: its lane and its blocks.
    pub lane: u8,
    pub blocks: u8,
    pub is_busy: bool,
    /// Whether it leads to a switch.
    pub to_switch: bool,
    /// Whether it is a switch's.
    pub is_switch: bool,
    /// Whether it is inside an adapter: no cable, no credits.
    pub is_inside: bool,
    pub lanes: [Lane; LANES as usize],
}

impl Output {
    /// Puts a packet, or the queue whose first it is, behind all that wait for its lane. Who is before it, if somebody is.
    #[inline]
    pub fn append(&mut self, waiting: u32, packet: &mut Packet) -> Option<u32> {
        let lane = packet.out_lane;
        let state = &mut self.lanes[usize::from(lane)];
        if state.first != NONE {
            packet.alone = false;
            return Some(std::mem::replace(&mut state.last, waiting));
        }
        let is_served = self.is_busy && self.lane == lane;
        self.waiting |= 1 << lane;
        (state.first, state.last, state.need) = (waiting, waiting, packet.blocks.into());
        packet.alone &= !is_served && (lane == MANAGEMENT || state.credits >= state.need);
        None
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

    /// What is or was at a place.
    pub fn get(&self, place: u32) -> Option<&T> {
        self.items.get(place as usize)
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
