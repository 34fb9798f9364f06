//! Lane sharing: VL arbitration tables and SLtoVL maps.
//!
//! A service level that loses its lane on a hop is discarded there first, before any weight is removed; a
//! lane gets its weight before a service level gets the lane. So no packet is ever on a lane without weight,
//! or on a lane of another cluster.
//!
//! A table of more than 32 entries is written in two blocks. Lanes get their new entries before they lose old
//! ones, so that no lane is served less often in between than before or after.

use fabric_model::plan::PortQos;
use ib_wire::{
    Attribute, PortNum, SMP_DATA_LEN, SlToVl, SlToVlSelector, VirtualLane, VlArbBlock, VlArbEntry, VlArbPart,
};

use super::{TwoPhases, two_phases};

/// A table block: attribute, modifier and data.
type Table = ((Attribute, u32), [u8; SMP_DATA_LEN]);

/// The VL arbitration tables of a port with these capacities. Lanes that the plan does not name have no
/// weight; the high-priority table is empty.
pub fn weights(sharing: &PortQos, port: PortNum, low: u8, high: u8) -> impl Iterator<Item = Table> {
    let parts = [VlArbPart::LowFirst, VlArbPart::LowSecond, VlArbPart::HighFirst, VlArbPart::HighSecond];
    let is_there =
        move |part: &VlArbPart| part.first_entry() < usize::from(if part.is_high() { high } else { low });
    parts.into_iter().filter(is_there).map(move |part| {
        let entry = |position: usize| match part.is_high() {
            true => None,
            false => sharing.low.get(part.first_entry() + position).copied(),
        };
        let block = VlArbBlock(std::array::from_fn(|position| entry(position).unwrap_or_default()));
        ((Attribute::VL_ARBITRATION, part.to_modifier(port)), block.encode())
    })
}

/// Entries of a table that is written in two blocks.
const ENTRIES: usize = 2 * VlArbBlock::ENTRIES;

/// The two blocks of a low-priority table.
pub type TwoParts = [VlArbBlock; 2];

/// The sequence of tables from `held` to `wanted`, the latter last. Between two of them the blocks may be
/// written in either order.
///
/// After every single write, a lane that is served before and after has all its old entries, or all its new
/// ones, or as many entries as before at the same distances; the best-effort lane has at least one entry.
/// Exception: if lanes have to swap positions and no other entries are free, these lanes have for one step
/// only the entries that they keep.
pub fn intermediate_tables(held: &TwoParts, wanted: &TwoParts) -> Vec<TwoParts> {
    let (mut now, wanted) = (Entries::of(held), Entries::of(wanted));
    let mut homes = now.by_lane();
    homes[0] = lowest(homes[0]);
    let mut has_stand_in = [false; LANES];
    let mut tables = Vec::new();
    while now != wanted {
        let next = now.towards(&wanted, &homes);
        now = match next == now {
            true => now.with_stand_in(&wanted, &mut homes, &mut has_stand_in).unwrap_or(wanted),
            false => next,
        };
        tables.push(now.parts());
    }
    tables
}

const LANES: usize = 16;

/// A set of positions, one bit each.
type Positions = u64;

fn lowest(positions: Positions) -> Positions {
    positions & positions.wrapping_neg()
}

/// Both blocks as one table.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entries([VlArbEntry; ENTRIES]);

impl Entries {
    fn of(parts: &TwoParts) -> Self {
        Self(std::array::from_fn(|at| parts[at / VlArbBlock::ENTRIES].0[at % VlArbBlock::ENTRIES]))
    }

    fn parts(&self) -> TwoParts {
        let part = |first| VlArbBlock(std::array::from_fn(|at| self.0[first + at]));
        [part(0), part(VlArbBlock::ENTRIES)]
    }

    /// The positions of the entries of each lane.
    fn by_lane(&self) -> [Positions; LANES] {
        let mut lanes = [0; LANES];
        for (at, entry) in self.0.iter().enumerate().filter(|(_, entry)| entry.weight != 0) {
            lanes[usize::from(entry.lane.to_wire())] |= 1 << at;
        }
        lanes
    }

    /// Lanes that are served in both tables and do not have all their new entries yet. For best effort one
    /// new entry is sufficient.
    fn open_lanes(&self, wanted: &Self) -> [bool; LANES] {
        let (has, wants) = (self.by_lane(), wanted.by_lane());
        std::array::from_fn(|lane| {
            let is_done = if lane == 0 { wants[0] & has[0] != 0 } else { wants[lane] & !has[lane] == 0 };
            has[lane] != 0 && wants[lane] != 0 && !is_done
        })
    }

    /// The wanted table, except that lanes without all their new entries keep the entries at home.
    fn towards(&self, wanted: &Self, homes: &[Positions; LANES]) -> Self {
        let (open, has, wants) = (self.open_lanes(wanted), self.by_lane(), wanted.by_lane());
        let kept = (0..LANES).filter(|lane| open[*lane]);
        let kept = kept.fold(0, |kept, lane| kept | homes[lane] & has[lane] & !wants[lane]);
        Self(std::array::from_fn(|at| if kept >> at & 1 == 1 { self.0[at] } else { wanted.0[at] }))
    }

    /// A lane that others wait for moves to best-effort entries for a while, as many and at the same
    /// distances.
    fn with_stand_in(
        &self,
        wanted: &Self,
        homes: &mut [Positions; LANES],
        has_stand_in: &mut [bool; LANES],
    ) -> Option<Self> {
        let (open, has) = (self.open_lanes(wanted), self.by_lane());
        let free = has[0] & !lowest(has[0] & wanted.by_lane()[0]);
        let mut waited_for = (1..LANES).filter(|lane| open[*lane] && !has_stand_in[*lane]);
        let (lane, stand_in) = waited_for.find_map(|lane| {
            let count = homes[lane].count_ones() as usize;
            let distance = (count.is_power_of_two()).then(|| ENTRIES / count)?;
            let at = |first: usize| (first..ENTRIES).step_by(distance).fold(0, |all, at| all | 1u64 << at);
            let stand_in = (0..distance).map(at).find(|positions| positions & !free == 0)?;
            Some((lane, stand_in))
        })?;
        let entry = self.0[homes[lane].trailing_zeros() as usize];
        (homes[lane], has_stand_in[lane]) = (stand_in, true);
        Some(Self(std::array::from_fn(|at| if stand_in >> at & 1 == 1 { entry } else { self.0[at] })))
    }
}

/// The SLtoVL maps of all hops to an output port of a switch.
pub fn hops(sharing: &PortQos, output: PortNum, port_count: u8) -> impl Iterator<Item = Table> {
    let inputs = (0..=port_count).filter_map(PortNum::new).filter(move |input| *input != output);
    inputs.map(move |input| {
        let map = sharing.by_input.get(&input).unwrap_or(&sharing.otherwise);
        let selector = SlToVlSelector::Hop { input: input.to_wire(), output: output.to_wire() };
        ((Attribute::SL_TO_VL, selector.to_modifier()), encode(map))
    })
}

/// The SLtoVL map of an adapter port.
pub fn injection(sharing: &PortQos) -> Table {
    ((Attribute::SL_TO_VL, 0), encode(&sharing.otherwise))
}

/// The writes of one SLtoVL map: first the service levels that keep their lane, with all others discarded,
/// then the whole map.
pub fn sl_to_vl(held: Option<SlToVl>, wanted: SlToVl) -> TwoPhases<SlToVl> {
    let common = |held: &SlToVl| {
        let both = |sl: usize| if held.0[sl] == wanted.0[sl] { held.0[sl] } else { VirtualLane::MANAGEMENT };
        SlToVl(std::array::from_fn(both))
    };
    // A map that was not read is written once the lanes have their weights; emptying it would stop all
    // packets.
    let empty = wanted;
    let (shrink, grow) = two_phases(held, common, wanted, empty);
    TwoPhases {
        shrink: shrink.filter(|_| held.is_some()).into_iter().collect(),
        grow: grow.into_iter().collect(),
    }
}

/// Decodes an SLtoVL map from attribute data.
pub fn decode(data: &[u8; SMP_DATA_LEN]) -> SlToVl {
    SlToVl::decode(&std::array::from_fn(|byte| data[byte]))
}

/// Encodes an SLtoVL map as attribute data.
pub fn encode(map: &SlToVl) -> [u8; SMP_DATA_LEN] {
    let mut data = [0; SMP_DATA_LEN];
    data[..SlToVl::LEN].copy_from_slice(&map.encode());
    data
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lane(raw: u8) -> VirtualLane {
        VirtualLane::from_wire(raw).unwrap()
    }

    fn sharing() -> PortQos {
        let mut otherwise = SlToVl([VirtualLane::MANAGEMENT; 16]);
        otherwise.0[0] = lane(0);
        let mut granted = otherwise;
        granted.0[4] = lane(2);
        let low =
            (0..40).map(|position| VlArbEntry { lane: lane(position % 3), weight: position + 1 }).collect();
        PortQos { by_input: [(PortNum::new(2).unwrap(), granted)].into(), otherwise, low, high: Vec::new() }
    }

    #[test]
    fn weights_fill_the_low_table_and_the_high_one_is_empty() {
        let port = PortNum::new(9).unwrap();
        let tables: Vec<Table> = weights(&sharing(), port, 64, 32).collect();
        let modifiers: Vec<u32> = tables.iter().map(|((_, modifier), _)| *modifier).collect();
        assert_eq!(modifiers, [0x1_0009, 0x2_0009, 0x3_0009]);
        let second = VlArbBlock::decode(&tables[1].1);
        assert_eq!(second.0[7], VlArbEntry { lane: lane(0), weight: 40 });
        assert!(second.0[8..].iter().all(|entry| entry.weight == 0));
        assert!(VlArbBlock::decode(&tables[2].1).0.iter().all(|entry| entry.weight == 0));
    }

    #[test]
    fn every_hop_but_the_one_back_has_its_own_map() {
        let tables: Vec<Table> = hops(&sharing(), PortNum::new(3).unwrap(), 4).collect();
        let modifiers: Vec<u32> = tables.iter().map(|((_, modifier), _)| *modifier).collect();
        assert_eq!(modifiers, [0x003, 0x103, 0x203, 0x403]);
        assert_eq!(decode(&tables[2].1).0[4], lane(2));
        assert_eq!(decode(&tables[3].1).0[4], VirtualLane::MANAGEMENT);
    }

    #[test]
    fn a_service_level_is_discarded_while_it_changes_its_lane() {
        let before = SlToVl(std::array::from_fn(|sl| lane(sl as u8 % 8)));
        let mut wanted = before;
        (wanted.0[3], wanted.0[5]) = (lane(1), VirtualLane::MANAGEMENT);
        let TwoPhases { shrink, grow } = sl_to_vl(Some(before), wanted);
        let mut between = wanted;
        between.0[3] = VirtualLane::MANAGEMENT;
        assert_eq!((shrink, grow), (vec![between], vec![wanted]));
        assert!(sl_to_vl(Some(wanted), wanted).is_empty());
        assert_eq!(sl_to_vl(None, wanted).shrink, []);
    }

    /// Lanes with equidistant entries; position 0 belongs to best effort.
    #[derive(Clone, Debug)]
    struct Sequences(Vec<Option<(usize, usize)>>);

    impl Sequences {
        fn taken(&self) -> u64 {
            self.0.iter().flatten().fold(1, |taken, (first, count)| taken | class(*first, *count))
        }

        /// Gives a lane `count` entries at the first free position from `from` on.
        fn put(&mut self, lane: usize, count: usize, from: usize, taken: u64) {
            let distance = ENTRIES / count;
            let mut positions = (0..distance).map(|step| (from + step) % distance);
            if let Some(first) = positions.find(|first| taken & class(*first, count) == 0) {
                self.0[lane] = Some((first, count));
            }
        }

        fn table(&self) -> TwoParts {
            let mut entries = Entries([VlArbEntry { lane: lane(0), weight: 1 }; ENTRIES]);
            for (number, (first, count)) in
                self.0.iter().enumerate().filter_map(|(at, it)| Some((at, (*it)?)))
            {
                for at in (first..ENTRIES).step_by(ENTRIES / count) {
                    entries.0[at] = VlArbEntry { lane: lane(number as u8 + 1), weight: 100 };
                }
            }
            entries.parts()
        }
    }

    fn class(first: usize, count: usize) -> u64 {
        (first..ENTRIES).step_by(ENTRIES / count).fold(0, |all, at| all | 1 << at)
    }

    /// The largest number of entries of other lanes between two of a lane.
    fn gap(table: &TwoParts, lane: usize) -> usize {
        let served = Entries::of(table).by_lane();
        let all = served.iter().fold(0, |all, positions| all | positions);
        let first = served[lane].trailing_zeros() as usize;
        let (mut gap, mut most) = (0, 0);
        for at in (1..=ENTRIES).map(|step| (first + step) % ENTRIES).filter(|at| all >> at & 1 == 1) {
            gap = if served[lane] >> at & 1 == 1 { 0 } else { gap + 1 };
            most = most.max(gap);
        }
        most
    }

    /// All intermediate tables, for both orders of the two blocks.
    fn instants(held: &TwoParts, intermediate_tables: &[TwoParts]) -> Vec<TwoParts> {
        let mut before = *held;
        let mut all = Vec::new();
        for next in intermediate_tables {
            all.extend([[next[0], before[1]], [before[0], next[1]], *next]);
            before = *next;
        }
        all
    }

    /// Changes of lanes: which one, number of entries as a power of two, position.
    fn changes(count: usize) -> impl Strategy<Value = Vec<(usize, u32, usize)>> {
        proptest::collection::vec((0..8usize, 0..6u32, 0..ENTRIES), count)
    }

    /// Changes each lane at most once. A lane that moves gets positions that were free before.
    fn changed(before: &Sequences, changes: &[(usize, u32, usize)]) -> Sequences {
        let mut sequences = before.clone();
        let mut seen = [false; 8];
        for (lane, power, from) in changes {
            if std::mem::replace(&mut seen[*lane], true) {
                continue;
            }
            let taken = sequences.taken();
            match sequences.0[*lane] {
                None => sequences.put(*lane, 1 << power.saturating_sub(1), *from, taken),
                Some(_) if *power == 0 => sequences.0[*lane] = None,
                Some((_, count)) => sequences.put(*lane, count, *from, taken | before.taken()),
            }
        }
        sequences
    }

    proptest! {
        #[test]
        fn no_lane_is_served_less_often_during_a_change(
            first in changes(8),
            then in changes(5),
        ) {
            let held = changed(&Sequences(vec![None; 8]), &first);
            let wanted = changed(&held, &then);
            let (held, wanted) = (held.table(), wanted.table());
            let intermediate_tables = intermediate_tables(&held, &wanted);
            prop_assert_eq!(intermediate_tables.last().unwrap_or(&held), &wanted);
            let [before, after] = [&held, &wanted].map(|table| Entries::of(table).by_lane());
            for table in instants(&held, &intermediate_tables) {
                let served = Entries::of(&table).by_lane();
                for lane in (0..9).filter(|lane| before[*lane] != 0 && after[*lane] != 0) {
                    // Best effort may lend entries, except the first.
                    let both = before[lane] & after[lane] & if lane == 0 { 1 } else { u64::MAX };
                    prop_assert!(served[lane] != 0 && both & !served[lane] == 0, "lane {}", lane);
                    let most = gap(&held, lane).max(gap(&wanted, lane));
                    prop_assert!(lane == 0 || gap(&table, lane) <= most, "lane {}: {:?}", lane, table);
                }
            }
        }
    }

    #[test]
    fn two_lanes_swap_positions_through_best_effort_entries() {
        let held = Sequences(vec![Some((1, 4)), Some((2, 4))]).table();
        let wanted = Sequences(vec![Some((2, 4)), Some((1, 4))]).table();
        let intermediate_tables = intermediate_tables(&held, &wanted);
        assert_eq!(intermediate_tables.last(), Some(&wanted));
        for table in instants(&held, &intermediate_tables) {
            assert!([1, 2].iter().all(|lane| gap(&table, *lane) <= 15), "{table:?}");
        }
    }

    #[test]
    fn adding_or_removing_one_lane_needs_no_intermediate_table() {
        let [without, with] = [None, Some((1, 4))].map(|own| Sequences(vec![Some((2, 8)), own]).table());
        assert_eq!(intermediate_tables(&without, &with), [with]);
        assert_eq!(intermediate_tables(&with, &without), [without]);
        assert!(intermediate_tables(&with, &with).is_empty());
        let empty = [VlArbBlock([VlArbEntry::default(); 32]); 2];
        assert_eq!(intermediate_tables(&empty, &with), [with]);
    }
}
