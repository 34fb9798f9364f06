//! How lanes take turns on a link: two levels of weighted round robin.
//!
//! Entries of a table are visited in turn. A visit goes on while weight is left, in units of 64 bytes, and a packet with
//! room behind the link waits in the entry's lane. A packet is begun while any weight is left and sent whole, so a visit
//! may go beyond its weight by less than a packet. Nothing is carried over to the next visit. Entries without
//! weight, and those of a lane that has nothing to send, are passed over (A-LANE-12).
//!
//! The high-priority table goes first, until it has sent its limit of bytes; then one packet of the low-priority table
//! goes, as soon as one waits. A packet of the low-priority table gives the high one its whole limit back.

use std::sync::Arc;

use ib_wire::{VirtualLane, VlArbEntry};

/// Lanes, as bits.
pub type LaneSet = u16;

/// Entries of the longest table there is.
const ENTRIES_MAX: usize = 64;

/// Lanes that can be named.
const LANES: usize = 16;

/// A limit that never ends the turn of the high-priority table.
const UNLIMITED: u8 = 255;

/// Units of weight in a unit of the limit of the high-priority table, 4 KiB.
const LIMIT_UNITS: i32 = 4096 / 64;

/// The arbitration tables of a port, ready to be used. Ports with equal tables may share them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArbitrationTables {
    high: Table,
    low: Table,
    high_limit: u8,
}

impl ArbitrationTables {
    /// The tables and VLHighLimit of a port. Entries beyond the 64th do not exist.
    pub fn new(high: &[VlArbEntry], low: &[VlArbEntry], high_limit: u8) -> Self {
        Self { high: Table::of(high), low: Table::of(low), high_limit }
    }

    /// Lanes that some entry serves.
    pub fn served(&self) -> LaneSet {
        let served = |table: &Table| {
            table.positions.iter().enumerate().filter(|(_, at)| **at != 0).map(|(lane, _)| 1 << lane).sum()
        };
        let (high, low): (LaneSet, LaneSet) = (served(&self.high), served(&self.low));
        high | low
    }

    fn limit_units(&self) -> i32 {
        match self.high_limit {
            UNLIMITED => i32::MAX,
            // One packet, whatever its size.
            0 => 1,
            limit => i32::from(limit) * LIMIT_UNITS,
        }
    }
}

/// The entries of a table that serve a data lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Table {
    /// For each lane the places of its entries, as bits.
    positions: [u64; LANES],
    lanes: [u8; ENTRIES_MAX],
    weights: [u8; ENTRIES_MAX],
}

impl Table {
    fn of(entries: &[VlArbEntry]) -> Self {
        let mut table = Self { positions: [0; LANES], lanes: [0; ENTRIES_MAX], weights: [0; ENTRIES_MAX] };
        let served = entries
            .iter()
            .take(ENTRIES_MAX)
            .filter(|entry| entry.weight != 0 && entry.lane != VirtualLane::MANAGEMENT);
        for (place, entry) in served.enumerate() {
            let lane = entry.lane.to_wire();
            table.positions[usize::from(lane)] |= 1 << place;
            (table.lanes[place], table.weights[place]) = (lane, entry.weight);
        }
        table
    }

    /// The places of entries whose lane is one of a set.
    fn places(&self, ready: LaneSet) -> u64 {
        let (mut places, mut left) = (0, ready);
        while left != 0 {
            places |= self.positions[left.trailing_zeros() as usize];
            left &= left - 1;
        }
        places
    }
}

/// Where a table's round robin stands.
#[derive(Clone, Copy, Debug, Default)]
struct Visit {
    place: u8,
    /// Units of weight that are left; 0 if the visit is over.
    left: u16,
}

impl Visit {
    /// Goes on with this visit, or to the next entry that has something to send. Whether there is one.
    fn go_on(&mut self, table: &Table, ready: LaneSet) -> bool {
        if self.left > 0 && ready >> table.lanes[usize::from(self.place)] & 1 == 1 {
            return true;
        }
        self.left = 0;
        let places = table.places(ready);
        if places == 0 {
            return false;
        }
        let first = u32::from(self.place) + 1;
        let step = places.rotate_right(first % 64).trailing_zeros();
        self.place = ((first + step) % 64) as u8;
        self.left = table.weights[usize::from(self.place)].into();
        true
    }
}

/// Whose turn it is on one link.
#[derive(Clone, Debug)]
pub struct Arbiter {
    tables: Arc<ArbitrationTables>,
    high: Visit,
    low: Visit,
    /// Units that the high-priority table may begin a packet with before a low one gets its chance.
    high_left: i32,
    /// Whether the last choice was the high-priority table's.
    chose_high: bool,
}

impl Arbiter {
    /// An arbiter that has served nobody yet: it begins with the first entries.
    pub fn new(tables: Arc<ArbitrationTables>) -> Self {
        // One place before the first.
        let start = Visit { place: ENTRIES_MAX as u8 - 1, left: 0 };
        let high_left = tables.limit_units();
        Self { tables, high: start, low: start, high_left, chose_high: false }
    }

    /// The lane whose packet goes next, of those that have one with room behind the link. To be told by
    /// [`Arbiter::sent`] how large that packet is, before the next choice.
    #[inline]
    pub fn choose(&mut self, ready: LaneSet) -> Option<u8> {
        let tables = &*self.tables;
        let is_high_first = self.high_left > 0;
        for is_high in [is_high_first, !is_high_first] {
            let (visit, table) =
                if is_high { (&mut self.high, &tables.high) } else { (&mut self.low, &tables.low) };
            if visit.go_on(table, ready) {
                self.chose_high = is_high;
                return Some(table.lanes[usize::from(visit.place)]);
            }
        }
        None
    }

    /// The packet of the lane that was chosen last has this many units of 64 bytes, the last one begun counted whole.
    #[inline]
    pub fn sent(&mut self, units: u16) {
        if self.chose_high {
            self.high.left = self.high.left.saturating_sub(units);
            if self.tables.high_limit != UNLIMITED {
                self.high_left -= i32::from(units);
            }
        } else {
            self.low.left = self.low.left.saturating_sub(units);
            self.high_left = self.tables.limit_units();
        }
    }
}
