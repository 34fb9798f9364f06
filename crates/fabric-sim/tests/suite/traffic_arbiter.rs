//! The arbiter against a reference model written from the text of the specification, on every small case.
//!
//! The text (docs/assumptions.md, A-LANE-10, 12, 17 and 18): entries are visited in turn; a visit lasts while
//! weight is left and a packet waits in the entry's lane; a packet starts if any weight is left and is sent
//! whole; nothing is carried over; entries without weight are skipped. The high-priority table goes first,
//! until its limit is used up; then one packet of the low-priority table as soon as one waits.

use std::collections::VecDeque;
use std::sync::Arc;

use fabric_sim::traffic::{Arbiter, ArbitrationTables};
use ib_wire::{LaneSet, VirtualLane, VlArbEntry};

/// Lane and weight.
type Entry = (u8, u8);

/// One table, walked entry by entry.
#[derive(Clone)]
struct Walk {
    entries: Vec<Entry>,
    /// The visited entry and the weight that it has left.
    visit: Option<(usize, i32)>,
    /// Where the next visit starts to search.
    next: usize,
}

impl Walk {
    fn new(entries: &[Entry]) -> Self {
        Self { entries: entries.to_vec(), visit: None, next: 0 }
    }

    /// The lane that may start a packet, if this table has one.
    fn choose(&mut self, waits: impl Fn(u8) -> bool) -> Option<u8> {
        if let Some((place, left)) = self.visit {
            let lane = self.entries[place].0;
            if left > 0 && waits(lane) {
                return Some(lane);
            }
            self.visit = None;
            self.next = (place + 1) % self.entries.len();
        }
        for step in 0..self.entries.len() {
            let place = (self.next + step) % self.entries.len();
            let (lane, weight) = self.entries[place];
            if weight > 0 && lane < 15 && waits(lane) {
                self.visit = Some((place, weight.into()));
                return Some(lane);
            }
        }
        None
    }

    fn sent(&mut self, units: u16) {
        if let Some((_, left)) = &mut self.visit {
            *left -= i32::from(units);
        }
    }
}

/// Both tables.
#[derive(Clone)]
struct Model {
    high: Walk,
    low: Walk,
    limit: u8,
    /// Size of high-priority packets since the last low-priority one, in units.
    since_low: u32,
}

impl Model {
    fn next(&mut self, waits: impl Fn(u8) -> bool + Copy, units: impl Fn(u8) -> u16) -> Option<u8> {
        let is_reached = match self.limit {
            255 => false,
            0 => self.since_low > 0,
            limit => self.since_low >= u32::from(limit) * 64,
        };
        let order = if is_reached { [false, true] } else { [true, false] };
        for is_high in order {
            let table = if is_high { &mut self.high } else { &mut self.low };
            if let Some(lane) = table.choose(waits) {
                table.sent(units(lane));
                self.since_low = if is_high { self.since_low + u32::from(units(lane)) } else { 0 };
                return Some(lane);
            }
        }
        None
    }
}

fn tables(high: &[Entry], low: &[Entry], limit: u8) -> Arc<ArbitrationTables> {
    let entries = |table: &[Entry]| -> Vec<VlArbEntry> {
        let entry = |(lane, weight): &Entry| VlArbEntry {
            lane: VirtualLane::from_wire(*lane).unwrap(),
            weight: *weight,
        };
        table.iter().map(entry).collect()
    };
    Arc::new(ArbitrationTables::new(&entries(high), &entries(low), limit))
}

/// Packets of each lane in units, in queue order, and the number of choices after which each arrives.
type Arrivals = [Vec<(u16, usize)>];

/// Runs both on the same packets and compares every choice.
fn compare(high: &[Entry], low: &[Entry], limit: u8, arrivals: &Arrivals, turns: usize) {
    let mut arbiter = Arbiter::new(tables(high, low, limit));
    let mut model = Model { high: Walk::new(high), low: Walk::new(low), limit, since_low: 0 };
    let mut queues: Vec<VecDeque<(u16, usize)>> =
        arrivals.iter().map(|lane| lane.iter().copied().collect()).collect();
    for turn in 0..turns {
        let is_there = |lane: u8| {
            queues.get(usize::from(lane)).and_then(|queue| queue.front()).filter(|(_, at)| *at <= turn)
        };
        let ready: LaneSet = LaneSet::ALL.iter().filter(|lane| is_there(lane.to_wire()).is_some()).collect();
        let chosen = arbiter.choose(ready).map(VirtualLane::to_wire);
        let expected = model.next(|lane| is_there(lane).is_some(), |lane| is_there(lane).unwrap().0);
        assert_eq!(chosen, expected, "turn {turn}: high {high:?}, low {low:?}, limit {limit}, {arrivals:?}");
        if let Some(lane) = chosen {
            let (units, _) = queues[usize::from(lane)].pop_front().unwrap();
            arbiter.sent(units);
        }
    }
}

/// All lists of a length over some values.
fn lists<T: Copy>(values: &[T], length: usize) -> impl Iterator<Item = Vec<T>> {
    let count = values.len().pow(length as u32);
    (0..count).map(move |mut number| {
        (0..length)
            .map(|_| {
                let value = values[number % values.len()];
                number /= values.len();
                value
            })
            .collect()
    })
}

/// `count` packets for every lane, with sizes in rotation.
fn packets(lanes: usize, sizes: &[u16], count: usize) -> Vec<Vec<(u16, usize)>> {
    (0..lanes)
        .map(|lane| (0..count).map(|packet| (sizes[(packet + lane) % sizes.len()], 0)).collect())
        .collect()
}

#[test]
fn every_low_table_of_two_lanes_and_six_entries() {
    let entries: Vec<Entry> =
        [0, 1].into_iter().flat_map(|lane| [0, 1, 2, 3].map(|weight| (lane, weight))).collect();
    let mut cases = 0;
    for length in 1..=6 {
        for low in lists(&entries, length) {
            for sizes in [&[1][..], &[2], &[3, 1]] {
                compare(&[], &low, 0, &packets(2, sizes, 6), 14);
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 3 * (8 + 64 + 512 + 4096 + 32768 + 262_144));
}

/// All assignments of entries to four lanes, up to renaming of the lanes.
fn ownerships(length: usize) -> Vec<Vec<u8>> {
    let mut all = vec![Vec::new()];
    for _ in 0..length {
        let longer = all.iter().flat_map(|owners: &Vec<u8>| {
            let known = owners.iter().max().map_or(0, |last| last + 1);
            (0..=known.min(3)).map(move |lane| [&owners[..], &[lane]].concat())
        });
        all = longer.collect();
    }
    all
}

#[test]
fn every_low_table_of_four_lanes_and_eight_entries() {
    // Lanes 0 to 3, and renamed, with packets that fit into a visit, end it, or exceed it; some lanes are
    // empty for a while.
    let late: Vec<Vec<(u16, usize)>> = vec![
        vec![(1, 0), (2, 5), (1, 5)],
        vec![(2, 0), (1, 0), (3, 9)],
        vec![(1, 3), (1, 3), (1, 11)],
        vec![(3, 0), (1, 8), (2, 8)],
    ];
    let mut cases = 0;
    for length in 1..=8 {
        for owners in ownerships(length) {
            for weights in lists(&[1, 3], length) {
                let low: Vec<Entry> = owners.iter().copied().zip(weights).collect();
                compare(&[], &low, 0, &packets(4, &[1, 3, 2], 4), 17);
                let renamed: Vec<Entry> = low.iter().map(|(lane, weight)| (3 - lane, *weight)).collect();
                compare(&[], &renamed, 0, &late, 17);
                cases += 2;
            }
        }
    }
    // Ways to partition 1, 2, … 8 entries into at most four lanes, two weights each.
    let partitions = [1, 2, 5, 15, 51, 187, 715, 2795];
    let tables: u64 = partitions.iter().zip(1..).map(|(partitions, length)| partitions << length).sum();
    assert_eq!(cases, 2 * tables);
}

#[test]
fn every_low_table_of_eight_entries_with_a_zero_weight() {
    let entries: Vec<Entry> = vec![(0, 2), (1, 1), (2, 0), (3, 3)];
    for low in lists(&entries, 8) {
        compare(&[], &low, 0, &packets(4, &[1, 3, 2], 4), 18);
    }
}

#[test]
fn every_pattern_of_arrivals_on_every_small_table() {
    let entries: Vec<Entry> = (0..2).flat_map(|lane| [1, 3].map(|weight| (lane, weight))).collect();
    // Each of four packets arrives now or later: lanes and links become idle and busy again.
    let moments: Vec<(u16, usize)> =
        [1, 2].into_iter().flat_map(|units| [0, 3, 6].map(|at| (units, at))).collect();
    let arrivals: Vec<Vec<Vec<(u16, usize)>>> =
        lists(&moments, 4).map(|four| vec![four[..2].to_vec(), four[2..].to_vec()]).collect();
    for length in 1..=4 {
        for low in lists(&entries, length) {
            for arrivals in &arrivals {
                compare(&[], &low, 0, arrivals, 10);
            }
        }
    }
}

#[test]
fn every_pair_of_small_tables_with_every_limit() {
    let entries: Vec<Entry> = (0..3).flat_map(|lane| [1, 2].map(|weight| (lane, weight))).collect();
    for (high_length, low_length) in [(1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1)] {
        for high in lists(&entries, high_length) {
            for low in lists(&entries, low_length) {
                for limit in [0, 1, 2, 255] {
                    // Packets of one unit, and packets of which the second reaches a limit of 4 KiB.
                    for sizes in [&[1][..], &[40, 1]] {
                        compare(&high, &low, limit, &packets(3, sizes, 4), 14);
                    }
                }
            }
        }
    }
}

#[test]
fn every_pattern_of_arrivals_with_both_tables() {
    // Of packets of 33 units, two reach a limit of 4 KiB, unless a packet of the other table goes between them.
    let moments: Vec<(u16, usize)> = [(33, 0), (64, 0), (33, 3), (1, 5)].to_vec();
    let arrivals: Vec<Vec<Vec<(u16, usize)>>> = lists(&moments, 6)
        .map(|six| vec![six[..2].to_vec(), six[2..4].to_vec(), six[4..].to_vec()])
        .collect();
    let pairs: [(&[Entry], &[Entry]); 4] = [
        (&[(0, 1)], &[(1, 1), (2, 1)]),
        (&[(0, 255), (1, 2)], &[(2, 1), (0, 1)]),
        (&[(0, 0), (1, 40)], &[(0, 3), (2, 70), (1, 1)]),
        (&[(2, 4), (2, 4)], &[(0, 4), (1, 4), (15, 9)]),
    ];
    for (high, low) in pairs {
        for limit in [0, 1, 3, 254, 255] {
            for arrivals in &arrivals {
                compare(high, low, limit, arrivals, 12);
            }
        }
    }
}

#[test]
fn long_tables_with_a_lane_at_every_position() {
    for length in [32, 63, 64] {
        for own in 0..length {
            let low: Vec<Entry> =
                (0..length).map(|place| if place == own { (3, 200) } else { (place as u8 % 3, 7) }).collect();
            compare(&[], &low, 0, &packets(4, &[1, 65, 4, 30], 200), 700);
        }
    }
}
