//! The low-priority arbitration table of a port: which entries serve which lane.
//!
//! A lane that is to be served every `d` entries, `d` a power of two, gets the entries `j, j + d, j + 2d …`. With the bits
//! of an entry's position reversed, such a sequence is an aligned block of addresses, so the table is filled by a buddy
//! allocator: the lowest free block that is large enough. As long as nothing is released a request fails only if too few
//! entries are free; after releases [`Table::defragment`] makes that true again, and [`Table::make_room`] for one request.
//!
//! [`ServiceCurve`] tells what a lane gets however the others behave.

use ib_wire::{VirtualLane, VlArbEntry};
use thiserror::Error;

/// Bytes of a unit of weight.
pub const WEIGHT_BYTES: u64 = 64;

/// The largest packet on the wire: 4096 bytes of payload, LRH 8, BTH 12, ICRC 4, VCRC 2.
pub const PACKET_BYTES_MAX: u64 = 4122;

/// Lanes that can be named.
const LANES_MAX: usize = 16;

/// Bytes by which the last packet of a visit may go beyond the weight.
pub const OVERSHOOT_BYTES: u64 = PACKET_BYTES_MAX - WEIGHT_BYTES;

/// Why a lane got no entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TableError {
    /// Tables have 8, 16, 32 or 64 entries.
    #[error("an arbitration table of {0} entries: 8, 16, 32 or 64 are possible")]
    Length(u8),
    /// A lane is to be served every so many entries, a power of two not above the length.
    #[error("entries at a distance of {distance}: a power of two up to {length} is possible")]
    Distance {
        /// What was asked for.
        distance: u8,
        /// Entries of the table.
        length: u8,
    },
    /// More weight than the entries can carry, or none.
    #[error("a weight of {weight} on {entries} entries: 1..={} is possible", u32::from(*.entries) * 255)]
    Weight {
        /// What was asked for.
        weight: u32,
        /// Entries at that distance.
        entries: u8,
    },
    /// The lane has entries already.
    #[error("lane {0} has entries already")]
    Taken(VirtualLane),
    /// Too few entries are free, or they do not lie together.
    #[error("{needed} entries are needed, {free} are free")]
    Full {
        /// Entries.
        needed: u8,
        /// Free entries; enough of them if they do not lie together.
        free: u8,
    },
}

/// The entries of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// The lane.
    pub lane: VirtualLane,
    /// Weight of each entry; never 0.
    pub weight: u8,
    /// Where its block of addresses begins.
    address: u8,
    /// Entries: a power of two.
    count: u8,
}

impl Sequence {
    /// How many entries serve the lane.
    pub fn entries(&self) -> u8 {
        self.count
    }

    fn mask(&self) -> u64 {
        block(self.address, self.count)
    }
}

/// A lane's entries copied to other ones. The copy is made before the old entries are given up, so that the lane is never
/// served more seldom than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The entries as they were.
    pub from: Sequence,
    /// The entries as they are now.
    pub to: Sequence,
}

/// Entries that nothing is to be moved to; none, unless [`Table::spared`] names some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spared(u64);

/// What stands where no lane has a sequence.
const NOBODY: Sequence = Sequence { lane: VirtualLane::MANAGEMENT, weight: 0, address: 0, count: 0 };

/// Which entries serve which lane. A port's table is small and there are many ports, so it is held in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    length: u8,
    /// Lanes that have a sequence.
    lanes: u8,
    /// A bit for each address that is taken.
    taken: u64,
    /// By lane, then [`NOBODY`].
    sequences: [Sequence; LANES_MAX],
}

impl Table {
    /// A table without entries.
    pub fn new(length: u8) -> Result<Self, TableError> {
        let fits = length.is_power_of_two() && (8..=64).contains(&length);
        let table = Self { length, lanes: 0, taken: 0, sequences: [NOBODY; LANES_MAX] };
        fits.then_some(table).ok_or(TableError::Length(length))
    }

    /// Entries it can have.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Entries that serve nobody.
    pub fn free(&self) -> u8 {
        self.length - self.taken.count_ones() as u8
    }

    /// What lanes have, by lane.
    pub fn sequences(&self) -> &[Sequence] {
        &self.sequences[..self.lanes.into()]
    }

    /// What a lane has.
    pub fn sequence(&self, lane: VirtualLane) -> Option<&Sequence> {
        self.sequences().iter().find(|sequence| sequence.lane == lane)
    }

    /// The position of a lane's first entry. The others follow at equal distances.
    pub fn first_entry(&self, lane: VirtualLane) -> Option<u8> {
        self.sequence(lane).map(|sequence| self.reversed(sequence.address))
    }

    /// Gives a lane entries not more than `distance` apart that carry a weight together.
    pub fn request(&mut self, lane: VirtualLane, distance: u8, weight: u32) -> Result<Sequence, TableError> {
        self.request_at(lane, distance, weight, None)
    }

    /// The same; the entries that begin at a position, if they are free.
    pub fn request_at(
        &mut self,
        lane: VirtualLane,
        distance: u8,
        weight: u32,
        first: Option<u8>,
    ) -> Result<Sequence, TableError> {
        if !distance.is_power_of_two() || distance > self.length {
            return Err(TableError::Distance { distance, length: self.length });
        }
        let count = self.length / distance;
        let each = u8::try_from(weight.div_ceil(count.into())).ok().filter(|each| *each != 0);
        let each = each.ok_or(TableError::Weight { weight, entries: count })?;
        if self.sequence(lane).is_some() {
            return Err(TableError::Taken(lane));
        }
        let full = TableError::Full { needed: count, free: self.free() };
        let preferred = first.filter(|first| *first < distance).map(|first| self.reversed(first));
        let preferred = preferred.filter(|address| self.taken & block(*address, count) == 0);
        let address = preferred.or_else(|| self.lowest_free(count)).ok_or(full)?;
        let sequence = Sequence { lane, weight: each, address, count };
        self.taken |= sequence.mask();
        let place = self.sequences().partition_point(|other| other.lane < lane);
        self.sequences.copy_within(place..self.lanes.into(), place + 1);
        self.sequences[place] = sequence;
        self.lanes += 1;
        Ok(sequence)
    }

    /// Takes back what a lane had.
    pub fn release(&mut self, lane: VirtualLane) -> Option<Sequence> {
        let place = self.sequences().iter().position(|sequence| sequence.lane == lane)?;
        let sequence = std::mem::replace(&mut self.sequences[place], NOBODY);
        self.sequences[place..self.lanes.into()].rotate_left(1);
        self.lanes -= 1;
        self.taken &= !sequence.mask();
        Some(sequence)
    }

    /// Moves sequences until free entries lie together: afterwards a request fails only if too few entries are free.
    /// The moves are to be made one after the other; weights and distances stay.
    pub fn defragment(&mut self) -> Vec<Move> {
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

    /// Moves sequences until so many entries, a power of two, are free at equal distances, if as many are free at all. As
    /// few entries as possible go, to such that are free before any has gone and are not spared; only where that does not
    /// do, the table is defragmented. What lies at the first position is never moved.
    pub fn make_room(&mut self, count: u8, spared: Spared) -> Vec<Move> {
        let blocks = (count..self.length).step_by(count.max(1).into());
        let ways = blocks.filter_map(|address| self.emptied(address, count, spared));
        let fewest =
            ways.min_by_key(|(_, moves)| moves.iter().map(|step| u32::from(step.from.count)).sum::<u32>());
        match fewest {
            Some((table, moves)) if self.free() >= count => {
                *self = table;
                moves
            }
            _ => self.defragment(),
        }
    }

    /// Entries at equal distances that nothing is to be moved to.
    pub fn spared(&self, first: u8, entries: u8) -> Spared {
        let is_sequence =
            entries.is_power_of_two() && entries <= self.length && first < self.length / entries;
        Spared(if is_sequence { block(self.reversed(first), entries) } else { 0 })
    }

    /// Puts a lane's entries back to where they were before a move, if they are where it took them.
    pub fn take_back(&mut self, step: &Move) {
        let lanes = usize::from(self.lanes);
        if let Some(sequence) = self.sequences[..lanes].iter_mut().find(|sequence| **sequence == step.to) {
            *sequence = step.from;
            self.taken = self.taken & !step.to.mask() | step.from.mask();
        }
    }

    /// The entries that serve a lane, in order of their positions.
    pub fn entries(&self) -> Vec<VlArbEntry> {
        self.positions().into_iter().flatten().collect()
    }

    /// What serves each position.
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

    /// The position at an address, and the other way round.
    fn reversed(&self, address: u8) -> u8 {
        address.reverse_bits() >> (8 - self.length.trailing_zeros())
    }

    fn lowest_free(&self, count: u8) -> Option<u8> {
        let mut free = !self.taken & block(0, self.length);
        let mut size = 1;
        while size < count {
            // An address stays if the one that begins the second half of its block is free too.
            free &= free >> size;
            size *= 2;
        }
        let aligned = u64::MAX / block(0, count);
        let address = (free & aligned).trailing_zeros() as u8;
        (address < self.length).then_some(address)
    }

    /// The table if everything in a block of addresses goes elsewhere; `None` if it does not fit there.
    fn emptied(&self, address: u8, count: u8, spared: Spared) -> Option<(Self, Vec<Move>)> {
        let whole = block(address, count);
        let inside = self.sequences().iter().filter(|sequence| sequence.mask() & whole != 0);
        let mut inside: Vec<Sequence> = inside.copied().collect();
        inside.sort_by_key(|sequence| (std::cmp::Reverse(sequence.count), sequence.address));
        let mut table = *self;
        table.taken |= whole | spared.0;
        let mut moves = Vec::new();
        for from in inside {
            let to = Sequence { address: table.lowest_free(from.count)?, ..from };
            table.taken |= to.mask();
            moves.push(Move { from, to });
        }
        for Move { from, to } in &moves {
            if let Some(sequence) = table.sequences.iter_mut().find(|sequence| *sequence == from) {
                *sequence = *to;
            }
        }
        table.taken = table.sequences().iter().fold(0, |taken, sequence| taken | sequence.mask());
        Some((table, moves))
    }

    /// The lowest two free blocks of a size whose buddies are not free.
    fn two_free(&self, size: u8) -> Option<(u8, u8)> {
        let is_free = |address: u8| self.taken & block(address, size) == 0;
        let mut blocks = (0..self.length)
            .step_by(size.into())
            .filter(|address| is_free(*address) && !is_free(address ^ size));
        Some((blocks.next()?, blocks.next()?))
    }

    /// Moves what lies in the block at `from` to the free one at `to`. The block is full or made of smaller sequences,
    /// because free blocks of smaller sizes were joined before.
    fn empty(&mut self, from: u8, to: u8, size: u8, moves: &mut Vec<Move>) {
        for sequence in &mut self.sequences[..self.lanes.into()] {
            if sequence.mask() & !block(from, size) == 0 {
                let old = *sequence;
                sequence.address = to + (sequence.address - from);
                self.taken = self.taken & !old.mask() | sequence.mask();
                moves.push(Move { from: old, to: *sequence });
            }
        }
    }
}

/// The addresses of a block as bits.
fn block(address: u8, count: u8) -> u64 {
    let low = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
    low << address
}

/// What a lane gets at one port whatever others do: nothing for at most a while, then a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceCurve {
    /// Bytes per second.
    pub rate_bytes_per_s: f64,
    /// The longest wait in seconds.
    pub wait_s: f64,
}

/// The packets that other lanes may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packets {
    /// Any size: the last packet of a visit goes beyond the weight by up to [`OVERSHOOT_BYTES`].
    AnySize,
    /// All as large as they can be, with weights that are multiples of their size: nothing goes beyond.
    FullSize,
}

impl ServiceCurve {
    /// What the entries of a table give a lane on a link of a rate; `None` if the lane has none.
    pub fn of(
        entries: &[VlArbEntry],
        lane: VirtualLane,
        link_bytes_per_s: f64,
        packets: Packets,
    ) -> Option<Self> {
        let visit = |entry: &VlArbEntry| {
            let weight = u64::from(entry.weight);
            match packets {
                Packets::AnySize => WEIGHT_BYTES * weight + OVERSHOOT_BYTES,
                // 65 units hold the largest packet; what they hold beyond it is not sent.
                Packets::FullSize => {
                    weight.div_ceil(PACKET_BYTES_MAX.div_ceil(WEIGHT_BYTES)) * PACKET_BYTES_MAX
                }
            }
        };
        let own = |entry: &VlArbEntry| match packets {
            Packets::AnySize => WEIGHT_BYTES * u64::from(entry.weight),
            Packets::FullSize => visit(entry),
        };
        let first = entries.iter().position(|entry| entry.lane == lane)?;
        let (mut gap, mut gap_max, mut quantum) = (0, 0, u64::MAX);
        // Once around, from the lane's first entry back to it.
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

/// A port on the way of a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hop {
    /// Seconds that others take at most before the lane's next visit.
    pub wait_s: f64,
    /// Bytes per second of the link.
    pub link_bytes_per_s: f64,
    /// Seconds from the packet's arrival to where it waits, and along the cable.
    pub passage_s: f64,
}

/// By when a packet that finds its lane empty is through at the latest, in seconds, if its receiver takes what comes. At
/// every hop it waits for all others once: a visit begins with any packet, however large.
pub fn packet_bound_s(hops: &[Hop]) -> f64 {
    let packet_s = |hop: &Hop| PACKET_BYTES_MAX as f64 / hop.link_bytes_per_s;
    hops.iter().map(|hop| hop.wait_s + packet_s(hop) + hop.passage_s).sum()
}

#[cfg(test)]
mod tests;
