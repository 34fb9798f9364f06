//! VL arbitration of an output port: weighted round robin in two priorities (IBA 7.6.9).
//!
//! The entries of a table are visited in order. A visit lasts while weight is left, in units of 64 bytes, and
//! the lane of the entry has a packet with enough credits. A packet starts if any weight is left and is sent
//! whole, so a visit can exceed its weight by less than one packet. Nothing is carried over to the next
//! visit. Entries without weight, and entries whose lane has nothing to send, are skipped (A-LANE-12).
//!
//! The high-priority table is served first, until it has sent as many bytes as its limit allows; then one
//! packet of the low-priority table may go. A low-priority packet restores the limit.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use ib_wire::{LaneSet, VirtualLane, VlArbEntry};

/// Longest table in entries.
const ENTRIES_MAX: usize = 64;

const LANES: usize = 16;

/// VLHighLimit without a bound.
const UNLIMITED: u8 = 255;

/// Units of 64 bytes in one unit of VLHighLimit, 4 KiB.
const LIMIT_UNITS: i32 = 4096 / 64;

/// VL arbitration tables of a port, prepared for lookup. Ports with equal tables can share them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArbitrationTables {
    high: Table,
    low: Table,
    high_limit: u8,
}

impl ArbitrationTables {
    /// Takes the tables and VLHighLimit of a port. Entries beyond the 64th are ignored.
    pub fn new(high: &[VlArbEntry], low: &[VlArbEntry], high_limit: u8) -> Self {
        Self { high: Table::of(high), low: Table::of(low), high_limit }
    }

    /// The lanes that have an entry with weight.
    pub fn served(&self) -> LaneSet {
        let is_served = |table: &Table, lane: VirtualLane| table.positions[lane.index()] != 0;
        let lanes = LaneSet::DATA.iter();
        lanes.filter(|lane| is_served(&self.high, *lane) || is_served(&self.low, *lane)).collect()
    }

    fn limit_units(&self) -> i32 {
        match self.high_limit {
            UNLIMITED => i32::MAX,
            // One packet of any size.
            0 => 1,
            limit => i32::from(limit) * LIMIT_UNITS,
        }
    }
}

/// The entries of a table that serve a data lane.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Table {
    /// Positions of the entries of each lane, as bits.
    positions: [u64; LANES],
    lanes: [VirtualLane; ENTRIES_MAX],
    weights: [u8; ENTRIES_MAX],
}

/// Without the lanes, which follow from the positions.
impl Hash for Table {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.positions, self.weights).hash(state);
    }
}

impl Table {
    fn of(entries: &[VlArbEntry]) -> Self {
        let mut table = Self {
            positions: [0; LANES],
            lanes: [VirtualLane::default(); ENTRIES_MAX],
            weights: [0; ENTRIES_MAX],
        };
        let served = entries
            .iter()
            .take(ENTRIES_MAX)
            .filter(|entry| entry.weight != 0 && entry.lane != VirtualLane::MANAGEMENT);
        for (position, entry) in served.enumerate() {
            table.positions[entry.lane.index()] |= 1 << position;
            (table.lanes[position], table.weights[position]) = (entry.lane, entry.weight);
        }
        table
    }

    /// Positions of the entries whose lane is in a set.
    fn positions_of(&self, ready: LaneSet) -> u64 {
        let (mut positions, mut left) = (0, ready);
        // Fewer instructions than the iterator: most sets are empty or have one member.
        while !left.is_empty() {
            let lane = left.first().unwrap_or_default();
            positions |= self.positions[lane.index()];
            left.remove(lane);
        }
        positions
    }
}

/// The current visit of a table.
#[derive(Clone, Copy, Debug, Default)]
struct Visit {
    position: u8,
    /// Units of weight left; 0 ends the visit.
    left: u16,
}

impl Visit {
    /// Continues the visit or moves to the next entry with a packet to send. Returns whether there is one.
    fn advance(&mut self, table: &Table, ready: LaneSet) -> bool {
        if self.left > 0 && ready.contains(table.lanes[usize::from(self.position)]) {
            return true;
        }
        self.left = 0;
        let positions = table.positions_of(ready);
        if positions == 0 {
            return false;
        }
        let first = u32::from(self.position) + 1;
        let step = positions.rotate_right(first % 64).trailing_zeros();
        self.position = ((first + step) % 64) as u8;
        self.left = table.weights[usize::from(self.position)].into();
        true
    }
}

/// Arbiter of one output port.
///
/// Call [`choose`](Self::choose), send the packet, and report its size with [`sent`](Self::sent) before the
/// next `choose`.
#[derive(Clone, Debug)]
pub struct Arbiter {
    tables: Arc<ArbitrationTables>,
    high: Visit,
    low: Visit,
    /// Units that the high-priority table may still send before the low-priority table gets a chance.
    high_left: i32,
    /// Whether the last choice came from the high-priority table.
    chose_high: bool,
}

impl Arbiter {
    /// An arbiter that starts at the first entries.
    pub fn new(tables: Arc<ArbitrationTables>) -> Self {
        // The position before the first.
        let start = Visit { position: ENTRIES_MAX as u8 - 1, left: 0 };
        let high_left = tables.limit_units();
        Self { tables, high: start, low: start, high_left, chose_high: false }
    }

    /// The lane to send from, of the lanes in `ready`: those with a packet for which there are credits.
    /// `None` if no entry serves any of them.
    #[inline]
    pub fn choose(&mut self, ready: LaneSet) -> Option<VirtualLane> {
        let tables = &*self.tables;
        let is_high_first = self.high_left > 0;
        for is_high in [is_high_first, !is_high_first] {
            let (visit, table) =
                if is_high { (&mut self.high, &tables.high) } else { (&mut self.low, &tables.low) };
            if visit.advance(table, ready) {
                self.chose_high = is_high;
                return Some(table.lanes[usize::from(visit.position)]);
            }
        }
        None
    }

    /// Accounts for the packet that was sent from the lane chosen last. `units` is its size in blocks of 64
    /// bytes, rounded up.
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
