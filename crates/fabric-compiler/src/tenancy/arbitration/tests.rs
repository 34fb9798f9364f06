#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use super::*;

fn lane(raw: u8) -> VirtualLane {
    VirtualLane::from_wire(raw).unwrap()
}

/// Whether `count` entries at equal distances are free anywhere, by brute force.
fn is_possible(table: &ArbitrationTable, count: u8) -> bool {
    let positions = table.positions();
    let distance = table.length() / count;
    (0..distance).any(|first| {
        (first..table.length()).step_by(distance.into()).all(|at| positions[usize::from(at)].is_none())
    })
}

/// The used blocks, whichever lanes have them.
fn blocks(table: &ArbitrationTable) -> Vec<(u8, u8)> {
    let mut blocks: Vec<_> =
        table.sequences().iter().map(|sequence| (sequence.address, sequence.count)).collect();
    blocks.sort_unstable();
    blocks
}

fn distances_hold(table: &ArbitrationTable) {
    let positions = table.positions();
    for sequence in table.sequences() {
        let of_lane = |(at, entry): (usize, &Option<VlArbEntry>)| {
            entry.filter(|entry| entry.lane == sequence.lane).map(|_| at)
        };
        let at: Vec<usize> = positions.iter().enumerate().filter_map(of_lane).collect();
        assert_eq!(at.len(), usize::from(sequence.entries()));
        let distance = usize::from(table.length()) / at.len();
        assert!(at.windows(2).all(|pair| pair[1] - pair[0] == distance), "{table:?}");
        assert!(at[0] < distance);
    }
}

/// Every table of 8 entries that requests alone can lead to: a request fails only if too few entries are free.
#[test]
fn without_releases_every_request_that_fits_is_met() {
    for length in [8, 16] {
        let mut seen = BTreeSet::new();
        let mut open = vec![ArbitrationTable::new(length).unwrap()];
        while let Some(table) = open.pop() {
            distances_hold(&table);
            for distance in (0..8).map(|power| 1u8 << power).filter(|distance| *distance <= length) {
                let mut next = table;
                let count = length / distance;
                let free_lane = (0..15).map(lane).find(|lane| table.sequence(*lane).is_none());
                let Some(free_lane) = free_lane else { continue };
                match next.request(free_lane, distance, 60) {
                    Ok(sequence) => {
                        assert!(u32::from(sequence.weight) * u32::from(count) >= 60);
                        if seen.insert(blocks(&next)) {
                            open.push(next);
                        }
                    }
                    Err(ArbitrationError::Full { needed, free }) => assert!(needed > free, "{table:?}"),
                    Err(other) => panic!("{other}"),
                }
            }
        }
        assert!(seen.len() > 20, "{}", seen.len());
    }
}

/// Every table of 8 entries that requests and releases can lead to.
#[test]
fn after_defragmentation_every_request_that_fits_is_met() {
    let mut seen = BTreeSet::new();
    let mut open = vec![ArbitrationTable::new(8).unwrap()];
    let mut moved = 0;
    while let Some(table) = open.pop() {
        distances_hold(&table);
        let free_lane = (0..15).map(lane).find(|lane| table.sequence(*lane).is_none()).unwrap();
        for distance in [1, 2, 4, 8] {
            let mut next = table;
            let answer = next.request(free_lane, distance, 8);
            assert_eq!(answer.is_ok(), is_possible(&table, 8 / distance), "{table:?}");
            let mut tidy = table;
            moved += tidy.defragment().len();
            distances_hold(&tidy);
            assert_eq!(tidy.free(), table.free());
            assert_eq!(
                tidy.request(free_lane, distance, 8).is_ok(),
                table.free() >= 8 / distance,
                "{table:?}"
            );
            let mut roomy = table;
            let moves = roomy.make_room(8 / distance, SparedEntries::default());
            distances_hold(&roomy);
            assert_eq!((roomy.free(), roomy.entries().len()), (table.free(), table.entries().len()));
            let mut back = roomy;
            moves.iter().rev().for_each(|step| back.undo_move(step));
            assert_eq!(back, table);
            let is_met = roomy.request(free_lane, distance, 8).is_ok();
            assert_eq!(is_met, table.free() >= 8 / distance, "{table:?}");
            if answer.is_ok() && seen.insert(blocks(&next)) {
                open.push(next);
            }
        }
        for sequence in table.sequences().to_vec() {
            let mut next = table;
            assert_eq!(next.release(sequence.lane), Some(sequence));
            if seen.insert(blocks(&next)) {
                open.push(next);
            }
        }
    }
    // A block is taken whole or not, or is two halves: 2, 5, 26, 677.
    assert_eq!(seen.len(), 677);
    assert!(moved > 100, "{moved}");
}

#[test]
fn moves_go_to_free_entries_and_keep_weight_and_number() {
    // Lanes 0..=7 fill a table of 8; then every second position is released.
    let mut table = ArbitrationTable::new(8).unwrap();
    for number in 0..8 {
        table.request(lane(number), 8, u32::from(number) + 1).unwrap();
    }
    for number in [0, 2, 4, 6] {
        table.release(lane(number)).unwrap();
    }
    let mut replay = table;
    for step in table.defragment() {
        assert_eq!(replay.taken & step.to.mask(), 0, "{step:?}");
        assert_eq!((step.from.weight, step.from.count), (step.to.weight, step.to.count));
        replay.taken = (replay.taken | step.to.mask()) & !step.from.mask();
    }
    assert_eq!(replay.taken, table.taken);
    assert!(table.request(lane(0), 2, 4).is_ok());
}

#[test]
fn requests_beyond_the_table_are_refused_with_the_reason() {
    assert_eq!(ArbitrationTable::new(7), Err(ArbitrationError::Length(7)));
    let mut table = ArbitrationTable::new(16).unwrap();
    assert_eq!(table.request(lane(1), 3, 1), Err(ArbitrationError::Distance { distance: 3, length: 16 }));
    assert_eq!(table.request(lane(1), 32, 1), Err(ArbitrationError::Distance { distance: 32, length: 16 }));
    assert_eq!(table.request(lane(1), 16, 256), Err(ArbitrationError::Weight { weight: 256, entries: 1 }));
    assert_eq!(table.request(lane(1), 16, 0), Err(ArbitrationError::Weight { weight: 0, entries: 1 }));
    table.request(lane(1), 2, 80).unwrap();
    assert_eq!(table.request(lane(1), 16, 1), Err(ArbitrationError::Taken(lane(1))));
    table.request(lane(2), 4, 40).unwrap();
    assert_eq!(table.request(lane(3), 2, 80), Err(ArbitrationError::Full { needed: 8, free: 4 }));
    assert_eq!(table.release(lane(9)), None);
    assert_eq!(table.entries().len(), 12);
    assert!(table.entries().iter().all(|entry| entry.weight == 10));
}

/// QDR 4x: 4.0 GB/s. The figures are those of a worked example (16 classes at distance 16, one of them at distance 2, 8
/// entries) that a simulation confirmed.
#[test]
fn service_curves_match_hand_computed_bounds() {
    const RATE: f64 = 4.0e9;
    let each = |lanes: u8, weight| -> Vec<VlArbEntry> {
        (0..lanes).map(|number| VlArbEntry { lane: lane(number % 15), weight }).collect()
    };
    // A sixteenth class is not a lane of its own here, so the tagged one is number 14, which occurs once.
    let curve = |entries: &[VlArbEntry], tagged, packets| {
        ServiceCurve::of(entries, lane(tagged), RATE, packets).unwrap()
    };
    let near = |value: f64, hand: f64, within: f64| assert!((value - hand).abs() <= within, "{value} {hand}");

    let full = curve(&each(16, 65), 14, PacketSizes::FullSize);
    near(full.wait_s * 1e6, 15.46, 0.005);
    near(full.rate_bytes_per_s * 8.0 / 1e9, 2.0, 0.001);
    let any = curve(&each(16, 65), 14, PacketSizes::AnySize);
    near(any.wait_s * 1e6, 30.8, 0.05);
    near(any.rate_bytes_per_s * 8.0 / 1e9, 1.05, 0.006);
    let heavy = curve(&each(16, 255), 14, PacketSizes::AnySize);
    near(heavy.wait_s * 1e6, 76.4, 0.05);
    near(heavy.rate_bytes_per_s * 8.0 / 1e9, 1.62, 0.005);
    let every_second: Vec<VlArbEntry> = (0..16)
        .map(|at| VlArbEntry { lane: lane(if at % 2 == 0 { 0 } else { 1 + at / 2 }), weight: 65 })
        .collect();
    let tagged = curve(&every_second, 0, PacketSizes::AnySize);
    near(tagged.wait_s * 1e6, 2.05, 0.005);
    near(tagged.rate_bytes_per_s / RATE, 0.336, 0.0005);
    near(curve(&every_second, 0, PacketSizes::FullSize).rate_bytes_per_s / RATE, 0.5, 1e-9);
    let short = curve(&each(8, 65), 7, PacketSizes::AnySize);
    near(short.wait_s * 1e6, 14.4, 0.05);

    // Four ports, 0.2 µs each, a message of one packet.
    let bound = |curve: ServiceCurve| {
        let hop = HopDelay { wait_s: curve.wait_s, link_bytes_per_s: RATE, passage_s: 0.2e-6 };
        packet_bound_s(&[hop; 4]) * 1e6
    };
    // Bounds for bursts add a packet at the slowest rate, which does not apply to a single packet.
    for (curve, burst_us) in [(full, 83.0), (any, 160.0), (heavy, 331.0), (tagged, 16.2), (short, 78.0)] {
        let rate = PACKET_BYTES_MAX as f64 / curve.rate_bytes_per_s * 1e6;
        near(bound(curve) + rate, burst_us, burst_us * 0.006);
    }
    let missing = ServiceCurve::of(&each(8, 65), lane(9), RATE, PacketSizes::AnySize);
    assert_eq!(missing, None);
}

/// Tables whose first entry is used, as in every port.
#[test]
fn most_moves_go_to_entries_that_were_free_before() {
    let (mut made, mut tidied) = (0, 0);
    for seed in 0..2000u32 {
        let mut table = ArbitrationTable::new(64).unwrap();
        table.request(lane(0), 64, 65).unwrap();
        let mut dice = seed.wrapping_mul(2_654_435_761) | 1;
        let mut roll = |sides: u32| {
            dice ^= dice << 13;
            dice ^= dice >> 17;
            dice ^= dice << 5;
            dice % sides
        };
        for _ in 0..40 {
            let own = lane(1 + roll(14) as u8);
            let distance = 1 << (1 + roll(6));
            if table.release(own).is_some() {
                continue;
            }
            let count = 64 / distance;
            let before = table;
            if table.request(own, distance, 64).is_ok() || table.free() < count {
                continue;
            }
            let moves = table.make_room(count, SparedEntries::default());
            let taken = |step: &EntryMove| before.taken & step.to.mask() != 0;
            if moves.iter().any(taken) {
                tidied += 1
            } else {
                made += 1
            }
            table.request(own, distance, 64).unwrap();
            distances_hold(&table);
            assert_eq!(table.first_entry(lane(0)), Some(0), "best effort stays");
            let stayed = |sequence: &&EntrySequence| moves.iter().all(|step| step.from.lane != sequence.lane);
            for sequence in before.sequences().iter().filter(stayed) {
                assert_eq!(table.sequence(sequence.lane), Some(sequence));
            }
        }
    }
    // The rest are tables with hardly any free entry.
    assert!(made > 1000 && tidied * 3 < made, "{made} {tidied}");
}
