use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_pcg::Pcg64;

use super::*;
use crate::tenancy::service_curve::{HopDelay, ServiceCurve, packet_bound_s};

const LINK: u64 = 100_000_000_000;

fn lane(raw: u8) -> VirtualLane {
    VirtualLane::from_wire(raw).unwrap()
}

fn limits(entries: u8) -> TableLimits {
    TableLimits { link_bits_per_s: LINK, entries }
}

fn demand(raw: u8, rate: u64, gap_bytes: Option<u64>) -> LaneDemand {
    LaneDemand { lane: lane(raw), rate, gap_bytes }
}

/// Best effort and management.
fn reserved() -> [LaneDemand; 2] {
    [0, 1].map(|raw| LaneDemand::entry_only(lane(raw)))
}

/// The most that `count` lanes with the same rate and gap can be sold each, beside best effort and management.
fn most_of_equals(entries: u8, count: u8, gap_bytes: Option<u64>) -> u64 {
    let fits = |rate| {
        let lanes = (0..count).map(|at| demand(2 + at, rate, gap_bytes));
        limits(entries).fits(&reserved().into_iter().chain(lanes).collect::<Vec<_>>())
    };
    let (mut possible, mut impossible) = (0, LINK);
    while impossible - possible > 1 {
        let middle = possible.midpoint(impossible);
        if fits(middle) { possible = middle } else { impossible = middle }
    }
    possible
}

#[test]
fn short_and_long_tables_sell_most_of_a_link() {
    let percent = |entries, count| {
        (u64::from(count) * most_of_equals(entries, count, None)) as f64 / LINK as f64 * 100.0
    };
    // Entries, clusters, and what they get together.
    for (entries, count, least) in [
        (64, 1, 98.2),
        (32, 1, 98.2),
        (16, 1, 96.4),
        (8, 1, 91.9),
        (64, 6, 81.2),
        (8, 6, 76.5),
        (64, 13, 79.4),
    ] {
        let sold = percent(entries, count);
        assert!((least..least + 1.0).contains(&sold), "{entries} entries, {count} clusters: {sold:.2} %");
    }
}

#[test]
fn what_is_left_fits_and_little_more_does_not() {
    let sold = [reserved().to_vec(), vec![demand(2, LINK / 3, None), demand(4, LINK / 10, None)]].concat();
    for entries in [8, 12, 16, 64] {
        let left = limits(entries).left(&sold, lane(3)).unwrap();
        let with = |rate| {
            let mut sold = sold.clone();
            sold.insert(3, demand(3, rate, None));
            limits(entries).fits(&sold)
        };
        assert!(with(left) && !with(left + LINK / 500), "{entries} entries: {left}");
        assert!(left > LINK / 4, "{entries} entries: {left}");
    }
    // Best effort, management and six clusters have all entries.
    let full: Vec<LaneDemand> = (0..8).map(|raw| LaneDemand::entry_only(lane(raw))).collect();
    assert_eq!(limits(8).left(&full, lane(8)), None);
    assert!(limits(9).left(&full, lane(8)).is_some());
}

#[test]
fn a_shorter_wait_costs_rate() {
    let rates = [60_000, 80_000, 120_000].map(|gap| most_of_equals(64, 6, Some(gap)));
    assert!(rates.is_sorted() && rates[0] > 0 && rates[0] < rates[2], "{rates:?}");
    // Without waits to keep, the round is longer by a few units of weight.
    let any_wait = most_of_equals(64, 6, None);
    assert!(rates[2] <= any_wait + any_wait / 500, "{rates:?}, {any_wait}");
    // Five others need at least a packet each, and best effort one.
    assert_eq!(most_of_equals(64, 6, Some(6 * PACKET_BYTES_MAX - 1)), 0);
}

#[test]
fn the_round_is_no_longer_than_the_rates_need() {
    let with = |rate| limits(64).compose(&[&reserved()[..], &[demand(2, rate, None)]].concat()).unwrap();
    let weight = |table: &[VlArbEntry]| table.iter().map(|entry| u32::from(entry.weight)).sum::<u32>();
    let [small, large] = [LINK / 10, LINK / 10 * 9].map(with);
    assert_eq!(small.len(), 3);
    // A tenth of a round with two other packets: 64 · 15 bytes.
    assert_eq!(weight(&small), 2 + 15);
    assert!(weight(&large) > 1000 && large.len() > 3);
    assert_eq!(limits(64).compose(&reserved()).unwrap().len(), 2);
}

#[test]
fn visits_send_their_weight_in_full_packets() {
    let sent = |weight: u64| weight.div_ceil(65) * 4122;
    for (wanted, entries) in (1..=255).map(|weight| (weight, 1)).chain((256..=510).map(|weight| (weight, 2)))
    {
        let weight = full_weight(wanted, entries);
        assert!((wanted..=wanted + 4 * entries).contains(&weight), "{wanted} in {entries}: {weight}");
        for each in [weight / entries, weight.div_ceil(entries)] {
            assert!(each <= 255 && sent(each) >= 64 * each, "{wanted} in {entries}: {each}");
        }
    }
    assert!(sent(65) < 64 * 65, "the control");
}

/// Demands of random lanes, rates and gaps, and a length of the table.
fn demands() -> impl Strategy<Value = (u8, Vec<LaneDemand>)> {
    let gap = prop_oneof![Just(None), (8_000..400_000_u64).prop_map(Some)];
    let rate = prop_oneof![Just(0), 0..LINK / 2, 0..LINK / 10, 0..LINK / 100];
    let lanes = prop::collection::btree_map(1..15_u8, (rate, gap), 1..8);
    let lanes = lanes.prop_map(|lanes| {
        let demands = lanes.into_iter().map(|(raw, (rate, gap))| demand(raw, rate, gap));
        std::iter::once(LaneDemand::entry_only(lane(0))).chain(demands).collect()
    });
    (prop_oneof![2..=64_u8, Just(8), Just(64)], lanes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn composed_tables_keep_every_demand((entries, demands) in demands(), round in 0..700_000_u64) {
        let limits = limits(entries);
        let tables = [limits.compose(&demands), limits.compose_round(&demands, round)];
        prop_assert_eq!(tables[0].is_some(), limits.fits(&demands));
        for table in tables.into_iter().flatten() {
            prop_assert!(table.len() <= usize::from(entries.min(32)));
            prop_assert!(table.iter().all(|entry| entry.weight > 0));
            for demand in &demands {
                prop_assert!(limits.keeps(&table, demand, LaneSet::EMPTY), "{:?} {:?}", demand, table);
                let curve = ServiceCurve::of(&table, demand.lane, LINK as f64 / 8.0).unwrap();
                prop_assert!(curve.rate_bytes_per_s * 8.0 >= demand.rate as f64 * (1.0 - 1e-12));
                let gap = demand.gap_bytes.map_or(f64::MAX, |gap| gap as f64 * 8.0 / LINK as f64);
                prop_assert!(curve.gap_s <= gap * (1.0 + 1e-12) && curve.gap_s <= curve.wait_s);
            }
        }
    }

    #[test]
    fn what_is_left_is_close_to_the_most_that_fits((entries, demands) in demands(), is_late in any::<bool>()) {
        let limits = limits(entries);
        let mut with: Vec<LaneDemand> = demands.iter().map(|demand| LaneDemand {
            gap_bytes: demand.gap_bytes.filter(|_| is_late), ..*demand
        }).collect();
        let left = limits.left(&with, lane(15));
        with.push(demand(15, 0, None));
        let mut fits = |rate| {
            with.last_mut().unwrap().rate = rate;
            limits.fits(&with)
        };
        prop_assert_eq!(left.is_some(), fits(0));
        if let Some(left) = left {
            prop_assert!(fits(left), "{}", left);
            prop_assert!(!fits(left + LINK / 100), "{}", left);
        }
    }

    #[test]
    fn demands_that_fit_also_fit_without_one_of_them((entries, demands) in demands(), gone in 0..8_usize) {
        let limits = limits(entries);
        if limits.fits(&demands) && gone < demands.len() {
            let mut rest = demands.clone();
            rest.remove(gone);
            prop_assert!(limits.fits(&rest));
            let mut lower = demands.clone();
            lower[gone].rate /= 2;
            prop_assert!(limits.fits(&lower));
            lower[gone].gap_bytes = None;
            prop_assert!(limits.fits(&lower));
        }
    }
}

/// An arbiter that serves packets of a tagged lane, which always has some, beside other lanes that do their worst.
///
/// Returns, after each packet, the time in bytes since the start, and the bytes of the tagged lane in whole units of weight.
fn served(table: &[VlArbEntry], tagged: VirtualLane, start: usize, random: &mut Pcg64) -> Vec<(u64, u64)> {
    let (mut time, mut own, mut all) = (0, 0, Vec::new());
    for entry in table.iter().cycle().skip(start).take(4 * table.len()) {
        let mut left = i64::from(entry.weight);
        // A lane may have nothing to send; the tagged one always has.
        while left > 0 && (entry.lane == tagged || random.random_bool(0.95)) {
            let bytes = match random.random_range(0..3) {
                0 => 64 * left as u64,
                1 => PACKET_BYTES_MAX,
                _ => random.random_range(30..=PACKET_BYTES_MAX),
            }
            .min(PACKET_BYTES_MAX);
            let units = bytes.div_ceil(WEIGHT_BYTES);
            left -= units as i64;
            time += bytes;
            own += if entry.lane == tagged { units * WEIGHT_BYTES } else { 0 };
            all.push((time, own));
        }
    }
    all
}

#[test]
fn service_curves_bound_a_packet_arbiter_from_any_instant() {
    let mut random = Pcg64::seed_from_u64(20);
    let mut closest = f64::MAX;
    for _ in 0..400 {
        let length = random.random_range(2..=32);
        let table: Vec<VlArbEntry> = (0..length)
            .map(|_| VlArbEntry {
                lane: lane(random.random_range(0..4)),
                weight: random.random_range(1..=255),
            })
            .collect();
        let Some(curve) = ServiceCurve::of(&table, lane(0), 1.0) else { continue };
        for start in 0..table.len() {
            for (time, own) in served(&table, lane(0), start, &mut random) {
                let least = curve.rate_bytes_per_s * (time as f64 - curve.wait_s);
                assert!(own as f64 + 1e-6 >= least, "{table:?} from {start}: {own} after {time}, {least}");
                closest = closest.min(own as f64 + 1e-6 - least);
            }
        }
    }
    assert!(closest < 5000.0, "some arbiter comes close: {closest}");
}

#[test]
fn service_curves_match_hand_computed_bounds() {
    let entry = |raw, weight| VlArbEntry { lane: lane(raw), weight };
    // Two visits in a round: 64 · 100 bytes after one other, 64 · 10 after two.
    let table = [entry(2, 100), entry(0, 1), entry(1, 1), entry(2, 10), entry(3, 50)];
    let curve = ServiceCurve::of(&table, lane(2), 1.0).unwrap();
    let (own, first, second) = (64.0 * 110.0, 2.0 * 4222.0, 64.0 * 50.0 + 4158.0);
    let rate = own / (own + first + second);
    assert!((curve.rate_bytes_per_s - rate).abs() < 1e-12);
    assert!((curve.gap_s - first).abs() < 1e-9);
    // From before the small visit on, the lane is late until the second gap is over.
    let wait = first + 640.0 + second - 640.0 / rate;
    assert!((curve.wait_s - wait).abs() < 1e-6, "{} {wait}", curve.wait_s);
    assert_eq!(ServiceCurve::of(&table, lane(4), 1.0), None);
    let alone = ServiceCurve::of(&table[..1], lane(2), 1.0).unwrap();
    assert_eq!((alone.rate_bytes_per_s, alone.wait_s), (1.0, 0.0));

    let hop = HopDelay { wait_s: curve.gap_s, link_bytes_per_s: 1.0, passage_s: 250.0 };
    assert!((packet_bound_s(&[hop; 3]) - 3.0 * (first + 4222.0 + 250.0)).abs() < 1e-6);
}
