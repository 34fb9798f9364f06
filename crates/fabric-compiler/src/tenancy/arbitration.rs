//! The low-priority VL arbitration table of a port: allocation of entries to lanes, and the service they guarantee.
//!
//! # Allocation
//!
//! A lane that is to be served at least every `d` entries, `d` a power of two, gets the entries `j, j + d, j + 2d, …`
//! (Alfaro et al., IEEE Transactions on Computers 2007). With the bits of each position reversed, such a sequence is an
//! aligned block of addresses, so the scheme is a binary buddy allocator: the lowest free block that is large enough is
//! taken. While nothing is released, the free blocks have distinct sizes, so a request fails only if too few entries are
//! free. After releases [`ArbitrationTable::defragment`] restores that for all requests, and
//! [`ArbitrationTable::make_room`] for one. A request takes O(log n) operations on a 64-bit set.
//!
//! Only the low-priority table is used, because the limit of the high-priority one is not reliable in all devices, and no
//! entry ever has weight 0.
//!
//! # Service
//!
//! An arbiter visits the entries in turn and sends packets of the lane until the weight of the entry (in units of 64 bytes)
//! is used up; the last packet is sent whole and may exceed it. [`ServiceCurve`] is the rate-latency service curve that
//! follows for a lane, whatever the other lanes send (network calculus, Le Boudec and Thiran), and [`packet_bound_s`] the
//! delay bound along a path.

use ib_wire::{VirtualLane, VlArbEntry};
use thiserror::Error;

/// The unit of weight, in bytes (IBA).
pub const WEIGHT_BYTES: u64 = 64;

/// The largest packet on the wire, in bytes: payload 4096, and at most 126 bytes of headers and CRCs (A-LANE-12).
pub const PACKET_BYTES_MAX: u64 = 4222;

/// The number of lanes that 4 bits can name.
const LANES_MAX: usize = 16;

/// The most bytes by which the last packet of a visit may exceed the weight of its entry.
pub const OVERSHOOT_BYTES: u64 = PACKET_BYTES_MAX - WEIGHT_BYTES;

/// Why a lane gets no entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ArbitrationError {
    #[error("an arbitration table must have 8, 16, 32 or 64 entries, got {0}")]
    Length(u8),
    #[error("the distance of entries must be a power of two up to {length}, got {distance}")]
    Distance { distance: u8, length: u8 },
    #[error("the weight of {entries} entries must be between 1 and {}, got {weight}", u32::from(*.entries) * 255)]
    Weight { weight: u32, entries: u8 },
    #[error("lane {0} already has entries")]
    Taken(VirtualLane),
    /// Too few entries are free (`free < needed`), or enough are free but not at equal distances.
    #[error("{needed} entries are needed, {free} are free")]
    Full { needed: u8, free: u8 },
}

/// The entries of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntrySequence {
    pub lane: VirtualLane,
    /// The weight of each entry; never 0.
    pub weight: u8,
    /// The first address of its block.
    address: u8,
    /// The number of entries: a power of two.
    count: u8,
}

impl EntrySequence {
    /// The number of entries.
    pub fn entries(&self) -> u8 {
        self.count
    }

    fn mask(&self) -> u64 {
        block(self.address, self.count)
    }
}

/// A move of a lane's entries to other positions. Devices must write the new entries before they clear the old ones, so
/// that the lane is never served less often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryMove {
    pub from: EntrySequence,
    pub to: EntrySequence,
}

/// Entries that nothing may be moved to: none, or those of [`ArbitrationTable::spared`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SparedEntries(u64);

/// Fills unused places of the list of sequences.
const UNUSED: EntrySequence =
    EntrySequence { lane: VirtualLane::MANAGEMENT, weight: 0, address: 0, count: 0 };

/// The entries of a port's table by lane. `Copy` and without allocations, because there are many ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArbitrationTable {
    length: u8,
    /// The number of lanes that have a sequence.
    lanes: u8,
    /// A bit for each address in use.
    taken: u64,
    /// Ordered by lane; the rest is [`UNUSED`].
    sequences: [EntrySequence; LANES_MAX],
}

impl ArbitrationTable {
    /// An empty table of `length` entries: 8, 16, 32 or 64.
    pub fn new(length: u8) -> Result<Self, ArbitrationError> {
        let fits = length.is_power_of_two() && (8..=64).contains(&length);
        let table = Self { length, lanes: 0, taken: 0, sequences: [UNUSED; LANES_MAX] };
        fits.then_some(table).ok_or(ArbitrationError::Length(length))
    }

    /// The number of entries, used and free.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// The number of free entries.
    pub fn free(&self) -> u8 {
        self.length - self.taken.count_ones() as u8
    }

    /// Ordered by lane.
    pub fn sequences(&self) -> &[EntrySequence] {
        &self.sequences[..self.lanes.into()]
    }

    pub fn sequence(&self, lane: VirtualLane) -> Option<&EntrySequence> {
        self.sequences().iter().find(|sequence| sequence.lane == lane)
    }

    /// The position of a lane's first entry; the others follow at equal distances.
    pub fn first_entry(&self, lane: VirtualLane) -> Option<u8> {
        self.sequence(lane).map(|sequence| self.reversed(sequence.address))
    }

    /// Allocates entries for a lane that has none: at most `distance` apart, with a total weight of at least `weight`.
    pub fn request(
        &mut self,
        lane: VirtualLane,
        distance: u8,
        weight: u32,
    ) -> Result<EntrySequence, ArbitrationError> {
        self.request_at(lane, distance, weight, None)
    }

    /// Like [`Self::request`], but prefers the entries that start at position `first`, if they are free.
    pub fn request_at(
        &mut self,
        lane: VirtualLane,
        distance: u8,
        weight: u32,
        first: Option<u8>,
    ) -> Result<EntrySequence, ArbitrationError> {
        if !distance.is_power_of_two() || distance > self.length {
            return Err(ArbitrationError::Distance { distance, length: self.length });
        }
        let count = self.length / distance;
        let each = u8::try_from(weight.div_ceil(count.into())).ok().filter(|each| *each != 0);
        let each = each.ok_or(ArbitrationError::Weight { weight, entries: count })?;
        if self.sequence(lane).is_some() {
            return Err(ArbitrationError::Taken(lane));
        }
        let full = ArbitrationError::Full { needed: count, free: self.free() };
        let preferred = first.filter(|first| *first < distance).map(|first| self.reversed(first));
        let preferred = preferred.filter(|address| self.taken & block(*address, count) == 0);
        let address = preferred.or_else(|| self.lowest_free(count)).ok_or(full)?;
        let sequence = EntrySequence { lane, weight: each, address, count };
        self.taken |= sequence.mask();
        let index = self.sequences().partition_point(|other| other.lane < lane);
        self.sequences.copy_within(index..self.lanes.into(), index + 1);
        self.sequences[index] = sequence;
        self.lanes += 1;
        Ok(sequence)
    }

    /// Frees the entries of a lane; `None` if it has none.
    pub fn release(&mut self, lane: VirtualLane) -> Option<EntrySequence> {
        let index = self.sequences().iter().position(|sequence| sequence.lane == lane)?;
        let sequence = std::mem::replace(&mut self.sequences[index], UNUSED);
        self.sequences[index..self.lanes.into()].rotate_left(1);
        self.lanes -= 1;
        self.taken &= !sequence.mask();
        Some(sequence)
    }

    /// Moves sequences until a request fails only if too few entries are free. Weights and distances stay. The moves must be
    /// carried out in order.
    pub fn defragment(&mut self) -> Vec<EntryMove> {
        let mut moves = Vec::new();
        let mut size = 1;
        while size < self.length {
            match self.two_free(size) {
                Some((a, b)) => self.empty(b ^ size, a, size, &mut moves),
                None => size *= 2,
            }
        }
        moves
    }

    /// Moves sequences until `count` entries, a power of two, are free at equal distances, if as many are free at all.
    ///
    /// As few entries as possible are moved, and only to entries that are free beforehand and not spared, so that the moves
    /// can be carried out in any order. Where that is impossible the table is defragmented. The entry at position 0 is not
    /// moved except by defragmentation.
    pub fn make_room(&mut self, count: u8, spared: SparedEntries) -> Vec<EntryMove> {
        let blocks = (count..self.length).step_by(count.max(1).into());
        let options = blocks.filter_map(|address| self.emptied(address, count, spared));
        let fewest =
            options.min_by_key(|(_, moves)| moves.iter().map(|step| u32::from(step.from.count)).sum::<u32>());
        match fewest {
            Some((table, moves)) if self.free() >= count => {
                *self = table;
                moves
            }
            _ => self.defragment(),
        }
    }

    /// Spares `entries` entries that start at position `first`.
    pub fn spared(&self, first: u8, entries: u8) -> SparedEntries {
        let is_sequence =
            entries.is_power_of_two() && entries <= self.length && first < self.length / entries;
        SparedEntries(if is_sequence { block(self.reversed(first), entries) } else { 0 })
    }

    /// Undoes a move, if the lane's entries are still where it put them.
    pub fn undo_move(&mut self, step: &EntryMove) {
        let lanes = usize::from(self.lanes);
        if let Some(sequence) = self.sequences[..lanes].iter_mut().find(|sequence| **sequence == step.to) {
            *sequence = step.from;
            self.taken = self.taken & !step.to.mask() | step.from.mask();
        }
    }

    /// The used entries, in order of their positions.
    pub fn entries(&self) -> Vec<VlArbEntry> {
        self.positions().into_iter().flatten().collect()
    }

    /// By position; `None` where an entry is free.
    pub fn positions(&self) -> Vec<Option<VlArbEntry>> {
        let mut positions = vec![None; self.length.into()];
        for sequence in self.sequences() {
            for address in sequence.address..sequence.address + sequence.count {
                positions[usize::from(self.reversed(address))] =
                    Some(VlArbEntry { lane: sequence.lane, weight: sequence.weight });
            }
        }
        positions
    }

    /// The position of an address, and the address of a position.
    fn reversed(&self, address: u8) -> u8 {
        address.reverse_bits() >> (8 - self.length.trailing_zeros())
    }

    fn lowest_free(&self, count: u8) -> Option<u8> {
        let mut free = !self.taken & block(0, self.length);
        let mut size = 1;
        while size < count {
            // An address stays if the second half of its block is free too.
            free &= free >> size;
            size *= 2;
        }
        let aligned = u64::MAX / block(0, count);
        let address = (free & aligned).trailing_zeros() as u8;
        (address < self.length).then_some(address)
    }

    /// The table after everything in a block of addresses was moved elsewhere; `None` if it does not fit.
    fn emptied(&self, address: u8, count: u8, spared: SparedEntries) -> Option<(Self, Vec<EntryMove>)> {
        let whole = block(address, count);
        let inside = self.sequences().iter().filter(|sequence| sequence.mask() & whole != 0);
        let mut inside: Vec<EntrySequence> = inside.copied().collect();
        inside.sort_by_key(|sequence| (std::cmp::Reverse(sequence.count), sequence.address));
        let mut table = *self;
        table.taken |= whole | spared.0;
        let mut moves = Vec::new();
        for from in inside {
            let to = EntrySequence { address: table.lowest_free(from.count)?, ..from };
            table.taken |= to.mask();
            moves.push(EntryMove { from, to });
        }
        for EntryMove { from, to } in &moves {
            if let Some(sequence) = table.sequences.iter_mut().find(|sequence| *sequence == from) {
                *sequence = *to;
            }
        }
        table.taken = table.sequences().iter().fold(0, |taken, sequence| taken | sequence.mask());
        Some((table, moves))
    }

    /// The lowest two free blocks of a size whose buddies are in use.
    fn two_free(&self, size: u8) -> Option<(u8, u8)> {
        let is_free = |address: u8| self.taken & block(address, size) == 0;
        let mut blocks = (0..self.length)
            .step_by(size.into())
            .filter(|address| is_free(*address) && !is_free(address ^ size));
        Some((blocks.next()?, blocks.next()?))
    }

    /// Moves the sequences in the block at `from` to the free one at `to`. The block has no free entry, because free blocks
    /// of smaller sizes were joined before.
    fn empty(&mut self, from: u8, to: u8, size: u8, moves: &mut Vec<EntryMove>) {
        for sequence in &mut self.sequences[..self.lanes.into()] {
            if sequence.mask() & !block(from, size) == 0 {
                let old = *sequence;
                sequence.address = to + (sequence.address - from);
                self.taken = self.taken & !old.mask() | sequence.mask();
                moves.push(EntryMove { from: old, to: *sequence });
            }
        }
    }
}

/// The addresses of a block as a bit set.
fn block(address: u8, count: u8) -> u64 {
    let low = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
    low << address
}

/// The rate-latency service curve of a lane at one port, whatever other lanes send: no service for at most `wait_s`, then at
/// least `rate_bytes_per_s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceCurve {
    pub rate_bytes_per_s: f64,
    pub wait_s: f64,
}

/// The sizes of packets that other lanes send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketSizes {
    /// Any size: the last packet of a visit exceeds the weight by up to [`OVERSHOOT_BYTES`].
    AnySize,
    /// The largest size only, with weights that are multiples of it: nothing exceeds the weight.
    FullSize,
}

impl ServiceCurve {
    /// The service curve of a lane by the entries of a table, on a link of the given rate; `None` if it has no entry.
    pub fn of(
        entries: &[VlArbEntry],
        lane: VirtualLane,
        link_bytes_per_s: f64,
        packets: PacketSizes,
    ) -> Option<Self> {
        let visit = |entry: &VlArbEntry| {
            let weight = u64::from(entry.weight);
            match packets {
                PacketSizes::AnySize => WEIGHT_BYTES * weight + OVERSHOOT_BYTES,
                // 65 units hold the largest packet; the 38 bytes beyond it are not used.
                PacketSizes::FullSize => {
                    weight.div_ceil(PACKET_BYTES_MAX.div_ceil(WEIGHT_BYTES)) * PACKET_BYTES_MAX
                }
            }
        };
        let own = |entry: &VlArbEntry| match packets {
            PacketSizes::AnySize => WEIGHT_BYTES * u64::from(entry.weight),
            PacketSizes::FullSize => visit(entry),
        };
        let first = entries.iter().position(|entry| entry.lane == lane)?;
        let (mut gap, mut gap_max, mut quantum) = (0, 0, u64::MAX);
        // One round, from the lane's first entry back to it.
        for entry in entries[first + 1..].iter().chain(&entries[..=first]) {
            if entry.lane == lane {
                gap_max = gap_max.max(gap);
                quantum = quantum.min(own(entry));
                gap = 0;
            } else {
                gap += visit(entry);
            }
        }
        let (quantum, gap) = (quantum as f64, gap_max as f64);
        Some(Self {
            rate_bytes_per_s: link_bytes_per_s * quantum / (quantum + gap),
            wait_s: gap / link_bytes_per_s,
        })
    }
}

/// The delays at one port of a packet's path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopDelay {
    /// The longest time that other lanes take before the lane's next visit.
    pub wait_s: f64,
    pub link_bytes_per_s: f64,
    /// The time through the device to its output queue, and along the cable.
    pub passage_s: f64,
}

/// An upper bound on the time, in seconds, of a packet of the largest size along a path, if its own lane is empty and its
/// receiver accepts at link rate. At each hop it waits for all other lanes once, since a visit sends a packet of any size.
pub fn packet_bound_s(hops: &[HopDelay]) -> f64 {
    let packet_s = |hop: &HopDelay| PACKET_BYTES_MAX as f64 / hop.link_bytes_per_s;
    hops.iter().map(|hop| hop.wait_s + packet_s(hop) + hop.passage_s).sum()
}

#[cfg(test)]
mod tests;
