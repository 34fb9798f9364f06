//! The link model: shares of lanes by the arbitration tables, what is never lost, bounds, and changes under way.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric_model::MacAddress;
use fabric_sim::{DropReason, FunctionId, FunctionKey, LinkLoad, LinkModel, ModelledRate, VirtualFunction};
use ib_wire::{
    Attribute, Lid, MulticastBlock, MulticastLid, Pkey, PkeyBlock, PkeyBlockSelector, PortMask, PortNum,
    ServiceLevel, VirtualLane, VlArbBlock, VlArbEntry, VlArbPart,
};
use proptest::prelude::*;

use crate::world::World;

/// The key that all ports have.
const EVERYBODY: u16 = 0xffff;

/// LIDs that the world gives its adapters.
const LIDS: [(&str, u16); 4] = [("a", 3), ("b", 4), ("c", 5), ("d", 6)];

/// 1 byte takes 1 µs.
const RATE: u64 = 8_000_000;

/// Headers and checksums of a frame on a link.
const OVERHEAD: usize = 34;

/// What a function may have waiting at such a rate.
const BOUND: u64 = 32 * 1024;

fn mac(node: &str, function: u8) -> MacAddress {
    let (_, lid) = LIDS.into_iter().find(|(name, _)| *name == node).unwrap();
    MacAddress::of_function(Lid::from_wire(lid).unwrap(), function)
}

fn same_rate(bits_per_s: u64) -> ModelledRate {
    format!("{bits_per_s}").parse().unwrap()
}

/// A configured world with the link model.
struct Stage {
    world: World,
    receivers: Vec<FunctionId>,
    /// Numbers that frames carry.
    sent: u32,
    /// Times of arrival, sender, receiver, number, length.
    arrived: Vec<(Duration, MacAddress, FunctionId, u32, usize)>,
}

impl Stage {
    fn new(latency_us: u64) -> Self {
        Self::at(same_rate(RATE), Duration::from_micros(latency_us))
    }

    fn at(rate: ModelledRate, latency: Duration) -> Self {
        let mut world = World::configured();
        world.fabric.set_link_model(world.now, Some(LinkModel { rate, latency }));
        Self { world, receivers: Vec::new(), sent: 0, arrived: Vec::new() }
    }

    fn id(&self, node: &str, function: u8) -> FunctionId {
        FunctionId::new(self.world.port(node), function)
    }

    /// Attaches a function that sends on a service level, which is the lane.
    fn attach(&mut self, node: &str, function: u8, sl: u8) -> FunctionId {
        let (id, mac) = (self.id(node, function), mac(node, function));
        let keys = [FunctionKey { pkey: Pkey::from_wire(EVERYBODY).unwrap(), group: None }].into();
        let sl = ServiceLevel::from_wire(sl).unwrap();
        self.world.fabric.attach(VirtualFunction { id, mac, keys, sl }).unwrap();
        id
    }

    /// Sends a numbered frame.
    fn send(&mut self, from: (&str, u8), to: MacAddress, length: usize) -> u32 {
        self.sent += 1;
        let mut frame = [&to.bytes()[..], &mac(from.0, from.1).bytes(), &self.sent.to_be_bytes()].concat();
        frame.resize(length.max(18), 0);
        let id = self.id(from.0, from.1);
        self.world.fabric.send_frame(self.world.now, id, &frame, &mut self.receivers);
        let at_once: Vec<FunctionId> = self.receivers.clone();
        at_once.into_iter().for_each(|receiver| self.note(receiver, &frame));
        self.collect();
        self.sent
    }

    fn note(&mut self, receiver: FunctionId, frame: &[u8]) {
        let from = MacAddress::from_bytes(frame[6..12].try_into().unwrap());
        let number = u32::from_be_bytes(frame[12..16].try_into().unwrap());
        self.arrived.push((self.world.now, from, receiver, number, frame.len()));
    }

    fn collect(&mut self) {
        self.world.collect();
        for (receiver, frame) in std::mem::take(&mut self.world.frames) {
            self.note(receiver, &frame);
        }
    }

    /// Lets the next thing happen; `false` if nothing is left.
    fn step(&mut self) -> bool {
        let Some(due) = self.world.fabric.poll_timeout() else { return false };
        self.world.now = self.world.now.max(due);
        self.world.fabric.handle_timeout(self.world.now);
        self.collect();
        true
    }

    fn run_until(&mut self, until: Duration) {
        while self.world.fabric.poll_timeout().is_some_and(|due| due <= until) {
            self.step();
        }
        self.world.now = until;
        self.world.fabric.handle_timeout(until);
        self.collect();
    }

    fn drain(&mut self) {
        // Traps repeat for ever, packets do not.
        while self.load().packets > 0 {
            assert!(self.step());
        }
    }

    fn load(&self) -> LinkLoad {
        self.world.fabric.link_load()
    }

    /// Keeps flows backlogged for some time, as far as their functions may.
    fn flood(&mut self, flows: &[((&str, u8), MacAddress, usize)], time: Duration) {
        let until = self.world.now + time;
        while self.world.now < until {
            for (from, to, length) in flows {
                while !self.world.fabric.is_congested(self.id(from.0, from.1)) {
                    self.send(*from, *to, *length);
                }
            }
            assert!(self.step());
        }
    }

    /// Bytes on the link that arrived from an address within some time.
    fn bytes_from(&self, from: MacAddress, begin: Duration, end: Duration) -> u64 {
        let within = |at: Duration| begin < at && at <= end;
        let found = self.arrived.iter().filter(|(at, sender, ..)| within(*at) && *sender == from);
        found.map(|(.., length)| (length + OVERHEAD) as u64).sum()
    }

    fn drops(&self, id: FunctionId) -> BTreeMap<DropReason, u64> {
        let (_, counters) = self.world.fabric.functions().find(|(function, _)| function.id == id).unwrap();
        counters.drops.clone()
    }

    /// Writes the low-priority table of a port, lanes with weights, and an empty high-priority one.
    fn arbitrate(&mut self, node: &str, port: u8, low: &[(u8, u8)]) {
        let entry = |(lane, weight)| VlArbEntry { lane: VirtualLane::from_wire(lane).unwrap(), weight };
        let mut blocks = [VlArbBlock([VlArbEntry::default(); 32]); 2];
        blocks[0].0.iter_mut().zip(low).for_each(|(to, from)| *to = entry(*from));
        let number = PortNum::new(port).unwrap();
        for (part, block) in [(VlArbPart::LowFirst, &blocks[0]), (VlArbPart::HighFirst, &blocks[1])] {
            self.world
                .set(node, Attribute::VL_ARBITRATION, part.to_modifier(number), block.encode())
                .unwrap();
        }
    }

    fn give_keys(&mut self, node: &str, keys: &[u16]) {
        let mut block = PkeyBlock([None; 32]);
        block.0.iter_mut().zip(keys).for_each(|(entry, raw)| *entry = Pkey::from_wire(*raw));
        let modifier = PkeyBlockSelector { port: 0, block: 0 }.to_modifier();
        self.world.set(node, Attribute::PKEY_TABLE, modifier, block.encode()).unwrap();
    }

    /// Lets a switch send to a LID through another port.
    fn reroute(&mut self, switch: &str, lid: usize, exit: u8) {
        let mut table = self.world.get(switch, Attribute::LINEAR_FORWARDING, 0).unwrap();
        table[lid] = exit;
        self.world.set(switch, Attribute::LINEAR_FORWARDING, 0, table).unwrap();
    }
}

/// Two flows that meet at port 5 of the left switch, on lanes 1 and 2.
fn two_flows(lengths: [usize; 2]) -> [((&'static str, u8), MacAddress, usize); 2] {
    [(("a", 1), mac("c", 1), lengths[0]), (("b", 1), mac("d", 1), lengths[1])]
}

fn two_lanes(latency_us: u64) -> Stage {
    let mut stage = Stage::new(latency_us);
    for (node, sl) in [("a", 1), ("b", 2), ("c", 0), ("d", 0)] {
        stage.attach(node, 1, sl);
    }
    stage
}

#[test]
fn an_idle_path_takes_the_time_of_its_links() {
    let mut stage = two_lanes(50);
    let began = stage.world.now;
    stage.send(("a", 1), mac("c", 1), 966);
    assert!(stage.arrived.is_empty());
    stage.drain();
    let [(at, ..)] = stage.arrived[..] else { panic!("{:?}", stage.arrived) };
    assert_eq!(at - began, 3 * Duration::from_micros(966 + OVERHEAD as u64 + 50));
    assert_eq!(stage.load(), LinkLoad::default());
}

#[test]
fn rates_are_parts_of_those_of_links() {
    // The links of the world are 4xSDR, 8 Gb/s.
    let mut stage = Stage::at("1/1000".parse().unwrap(), Duration::ZERO);
    stage.attach("a", 1, 0);
    stage.attach("c", 1, 0);
    let began = stage.world.now;
    stage.send(("a", 1), mac("c", 1), 966);
    stage.drain();
    assert_eq!(stage.arrived[0].0 - began, Duration::from_millis(3));
}

#[test]
fn weights_of_three_to_one_serve_three_to_one() {
    let mut stage = two_lanes(50);
    // 3072 and 1024 bytes for each visit, and packets of 1024: visits are used up exactly.
    stage.arbitrate("left", 5, &[(1, 48), (2, 16)]);
    let flows = two_flows([1024 - OVERHEAD; 2]);
    stage.flood(&flows, Duration::from_millis(50));
    let begin = stage.world.now;
    stage.flood(&flows, Duration::from_secs(2));
    let bytes = [mac("a", 1), mac("b", 1)].map(|from| stage.bytes_from(from, begin, stage.world.now));
    let quantum = 3 * 1024;
    assert!(bytes[0].abs_diff(3 * bytes[1]) <= 2 * quantum, "{bytes:?}");
    assert!(bytes[0] + bytes[1] >= 2_000_000 - 2 * 1024, "the link never rests: {bytes:?}");
    // The control: equal weights.
    stage.arbitrate("left", 5, &[(1, 16), (2, 16)]);
    stage.flood(&flows, Duration::from_millis(100));
    let begin = stage.world.now;
    stage.flood(&flows, Duration::from_secs(1));
    let bytes = [mac("a", 1), mac("b", 1)].map(|from| stage.bytes_from(from, begin, stage.world.now));
    assert!(bytes[0].abs_diff(bytes[1]) <= quantum, "from the next packet on: {bytes:?}");
}

#[test]
fn flows_on_one_lane_share_by_arrival_whatever_their_weights() {
    let mut stage = Stage::new(0);
    for (node, sl) in [("a", 1), ("b", 1), ("c", 0), ("d", 0)] {
        stage.attach(node, 1, sl);
    }
    stage.arbitrate("left", 5, &[(1, 48), (2, 16)]);
    let flows = two_flows([990, 990]);
    stage.flood(&flows, Duration::from_millis(50));
    let begin = stage.world.now;
    stage.flood(&flows, Duration::from_secs(1));
    let bytes = [mac("a", 1), mac("b", 1)].map(|from| stage.bytes_from(from, begin, stage.world.now));
    assert!(bytes[0].abs_diff(bytes[1]) <= 40_000, "{bytes:?}");
}

#[test]
fn a_high_priority_lane_goes_first() {
    let mut stage = two_lanes(0);
    stage.arbitrate("left", 5, &[(2, 100)]);
    let mut high = VlArbBlock([VlArbEntry::default(); 32]);
    high.0[0] = VlArbEntry { lane: VirtualLane::from_wire(1).unwrap(), weight: 1 };
    let modifier = VlArbPart::HighFirst.to_modifier(PortNum::new(5).unwrap());
    stage.world.set("left", Attribute::VL_ARBITRATION, modifier, high.encode()).unwrap();
    // Without a limit nothing of the low-priority table goes while lane 1 has anything.
    stage.world.change_port_info("left", 5, |info| info.vl_high_limit = 255);
    let flows = two_flows([990, 990]);
    stage.flood(&flows, Duration::from_millis(50));
    let begin = stage.world.now;
    stage.flood(&flows, Duration::from_millis(500));
    assert_eq!(stage.bytes_from(mac("b", 1), begin, stage.world.now), 0);
    stage.world.change_port_info("left", 5, |info| info.vl_high_limit = 0);
    stage.flood(&flows, Duration::from_millis(500));
    assert!(stage.bytes_from(mac("b", 1), begin, stage.world.now) > 200_000, "one packet each");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Per round, a backlogged lane gets its weight, and less than one packet more.
    #[test]
    fn backlogged_lanes_get_their_weights(
        weights in [1u8..=100, 1u8..=100],
        lengths in [64usize..2000, 64usize..2000],
        latency_us in 0u64..2000,
    ) {
        let mut stage = two_lanes(latency_us);
        stage.arbitrate("left", 5, &[(1, weights[0]), (2, weights[1])]);
        let flows = two_flows(lengths);
        stage.flood(&flows, Duration::from_millis(200));
        let begin = stage.world.now;
        stage.flood(&flows, Duration::from_secs(1));
        let end = stage.world.now;
        let served = [mac("a", 1), mac("b", 1)].map(|from| stage.bytes_from(from, begin, end) as f64);
        // Sizes count in blocks of 64 bytes.
        let size = lengths.map(|length| (length + OVERHEAD) as f64);
        let least = [0, 1].map(|lane| f64::from(weights[lane]) * 64.0 * size[lane] / (size[lane] + 63.0));
        let most = [0, 1].map(|lane| f64::from(weights[lane]) * 64.0 + size[lane]);
        for (one, other) in [(0, 1), (1, 0)] {
            let (fewest, rounds) = (served[other] / most[other] - 2.0, served[one] / least[one]);
            prop_assert!(rounds >= fewest, "{served:?} of weights {weights:?}, sizes {size:?}");
        }
        let all = served[0] + served[1];
        prop_assert!(all >= 1e6 - 2.0 * size[0].max(size[1]), "the link rests: {all} bytes in 1 s");
    }

    #[test]
    fn a_lane_alone_gets_the_whole_link(weight in 1u8..=100, length in 64usize..2000, lane in 1u8..=2) {
        let mut stage = two_lanes(100);
        stage.arbitrate("left", 5, &[(1, weight), (2, 101 - weight)]);
        let flow = two_flows([length; 2])[usize::from(lane) - 1];
        stage.flood(&[flow], Duration::from_millis(50));
        let begin = stage.world.now;
        stage.flood(&[flow], Duration::from_secs(1));
        let size = (length + OVERHEAD) as u64;
        let bytes = stage.bytes_from(mac(flow.0.0, 1), begin, stage.world.now);
        prop_assert!(bytes.abs_diff(1_000_000) <= 2 * size, "{bytes} bytes in 1 s");
    }

    #[test]
    fn nothing_is_lost_duplicated_or_reordered(
        sends in prop::collection::vec((0usize..4, 0usize..4, 18usize..2000, 0u64..3000), 1..200),
        rate in prop::sample::select(vec![100_000u64, 8_000_000, 1_000_000_000]),
        latency_us in 0u64..10_000,
        changes in prop::collection::vec((0usize..200, 1u8..=60), 0..4),
    ) {
        let run = || {
            let mut stage = Stage::at(same_rate(rate), Duration::from_micros(latency_us));
            let functions: Vec<(&str, u8)> =
                vec![("a", 1), ("b", 1), ("b", 2), ("c", 1), ("d", 1), ("d", 2), ("c", 2), ("a", 2)];
            for (number, (node, function)) in functions.iter().enumerate() {
                stage.attach(node, *function, (number % 4) as u8);
            }
            let mut sent: BTreeMap<(MacAddress, FunctionId), Vec<u32>> = BTreeMap::new();
            for (place, (from, to, length, pause_us)) in sends.iter().enumerate() {
                for (_, weight) in changes.iter().filter(|(at, _)| *at == place) {
                    stage.arbitrate("left", 5, &[(0, *weight), (1, 5), (2, 61 - *weight), (3, 1)]);
                }
                let (from, to) = (functions[*from], functions[7 - *to]);
                let number = stage.send(from, mac(to.0, to.1), *length);
                sent.entry((mac(from.0, from.1), stage.id(to.0, to.1))).or_default().push(number);
                stage.run_until(stage.world.now + Duration::from_micros(*pause_us));
            }
            stage.drain();
            (sent, stage.arrived, stage.world.fabric.statistics().drops)
        };
        let (mut sent, arrived, drops) = run();
        prop_assert_eq!(&drops, &BTreeMap::new());
        let mut received: BTreeMap<(MacAddress, FunctionId), Vec<u32>> = BTreeMap::new();
        for (_, from, to, number, _) in &arrived {
            received.entry((*from, *to)).or_default().push(*number);
        }
        // A frame to oneself goes nowhere.
        sent.retain(|(from, to), _| received.contains_key(&(*from, *to)));
        prop_assert_eq!(&received, &sent);
        prop_assert_eq!(run().1, arrived, "the same calls give the same times");
    }
}

#[test]
fn a_function_that_never_stops_has_a_bound_and_starves_nobody() {
    let mut stage = two_lanes(50);
    stage.arbitrate("left", 5, &[(1, 10), (2, 10)]);
    stage.attach("c", 2, 1);
    let attack = [(("b", 1), mac("d", 1), 1500)];
    let mut most = 0;
    let until = stage.world.now + Duration::from_secs(3);
    let mut asked = Vec::new();
    while stage.world.now < until {
        stage.flood(&attack, Duration::from_millis(20));
        most = most.max(stage.load().waiting_bytes);
        asked.push((stage.world.now, stage.send(("a", 1), mac("c", 1), 100)));
    }
    assert!(stage.load().congested_functions == 1 && stage.world.fabric.is_congested(stage.id("b", 1)));
    assert!((BOUND..BOUND + 2 * 2048).contains(&most), "{most}");
    // On a lane of its own, a packet waits for one packet of the other lane at most.
    for (at, number) in asked.iter().rev().skip(1) {
        let found = stage.arrived.iter().find(|(.., got, _)| got == number).unwrap();
        let waited = found.0 - *at;
        assert!(waited < Duration::from_micros(3 * (134 + 50) + 1534), "{waited:?}");
    }
    assert_eq!(stage.drops(stage.id("b", 1)), BTreeMap::new(), "congestion loses nothing");
    stage.drain();
    assert!(!stage.world.fabric.is_congested(stage.id("b", 1)));
}

#[test]
fn a_link_that_is_cut_loses_what_it_was_to_carry() {
    let mut stage = two_lanes(50);
    let flows = two_flows([990, 990]);
    stage.flood(&flows, Duration::from_millis(100));
    let sent = u64::from(stage.sent);
    let left = stage.world.port_number("left", 5);
    stage.world.fabric.unplug(stage.world.now, left);
    stage.drain();
    let received = stage.arrived.len() as u64;
    let lost: u64 = ["a", "b"]
        .map(|node| stage.drops(stage.id(node, 1)))
        .iter()
        .map(|drops| {
            assert_eq!(drops.keys().collect::<Vec<_>>(), [&DropReason::LinkDown]);
            drops[&DropReason::LinkDown]
        })
        .sum();
    assert_eq!(received + lost, sent);
    assert!(lost > 20 && received > 20, "{lost} lost, {received} received");
    assert_eq!(stage.load(), LinkLoad::default());
    // The other cable is there.
    for lid in [5, 6] {
        stage.reroute("left", lid, 6);
    }
    stage.send(("a", 1), mac("c", 1), 500);
    stage.drain();
    assert_eq!(stage.arrived.len() as u64, received + 1);
}

#[test]
fn a_new_route_holds_for_what_has_not_reached_the_switch() {
    let mut stage = two_lanes(0);
    for _ in 0..10 {
        stage.send(("a", 1), mac("c", 1), 966);
    }
    // Three have reached the left switch.
    stage.run_until(stage.world.now + Duration::from_micros(3_500));
    stage.reroute("left", 5, 6);
    stage.drain();
    assert_eq!(stage.arrived.len(), 10);
    let sent = [5, 6].map(|port| {
        let port = stage.world.port_number("left", port);
        stage.world.fabric.port_view(port).counters.unicast_transmit_packets
    });
    let before = {
        let stage = two_lanes(0);
        let port = stage.world.port_number("left", 5);
        stage.world.fabric.port_view(port).counters.unicast_transmit_packets
    };
    assert_eq!([sent[0] - before, sent[1]], [3, 7]);
}

#[test]
fn a_key_that_is_taken_stops_what_has_not_arrived() {
    let mut stage = two_lanes(0);
    for _ in 0..10 {
        stage.send(("a", 1), mac("c", 1), 966);
    }
    stage.run_until(stage.world.now + Duration::from_micros(5_500));
    assert_eq!(stage.arrived.len(), 3);
    stage.give_keys("c", &[0x8123]);
    stage.drain();
    assert_eq!(stage.arrived.len(), 3);
    assert_eq!(stage.drops(stage.id("a", 1)), [(DropReason::PartitionAtReceiver, 7)].into());
}

#[test]
fn a_lane_without_an_entry_is_not_served() {
    let mut stage = two_lanes(0);
    stage.arbitrate("left", 5, &[(2, 10)]);
    for node in ["a", "b"] {
        let to = if node == "a" { "c" } else { "d" };
        for _ in 0..3 {
            stage.send((node, 1), mac(to, 1), 100);
        }
    }
    stage.drain();
    assert_eq!(stage.drops(stage.id("a", 1)), [(DropReason::Expired, 3)].into());
    assert_eq!(stage.drops(stage.id("b", 1)), BTreeMap::new());
    assert_eq!(stage.arrived.len(), 3);
}

#[test]
fn switching_the_model_off_lets_everything_arrive() {
    let mut stage = two_lanes(1000);
    for _ in 0..20 {
        stage.send(("a", 1), mac("c", 1), 500);
    }
    assert_eq!((stage.load().packets, stage.arrived.len()), (20, 0));
    stage.world.fabric.set_link_model(stage.world.now, None);
    stage.collect();
    assert_eq!(stage.arrived.len(), 20);
    assert_eq!((stage.world.fabric.link_model(), stage.load()), (None, LinkLoad::default()));
    stage.send(("a", 1), mac("c", 1), 500);
    assert_eq!(stage.arrived.len(), 21, "at once");
}

#[test]
fn the_rate_can_be_changed_while_packets_wait() {
    let mut stage = two_lanes(0);
    for _ in 0..10 {
        stage.send(("a", 1), mac("c", 1), 966);
    }
    let began = stage.world.now;
    let model = LinkModel { rate: same_rate(10 * RATE), latency: Duration::ZERO };
    stage.world.fabric.set_link_model(stage.world.now, Some(model));
    stage.drain();
    assert_eq!(stage.arrived.len(), 10);
    // The first was being sent; the others follow at the new rate.
    assert_eq!(stage.world.now - began, Duration::from_micros(1000 + 9 * 100 + 2 * 100));
}

#[test]
fn a_broadcast_reaches_each_member_once() {
    let mut stage = Stage::new(10);
    let groups = [0xc000, 0xc001].map(|raw| MulticastLid::from_wire(raw).unwrap());
    let keys = [0x8101, 0x8102];
    for switch in ["left", "right"] {
        let mut block = MulticastBlock([PortMask(0); 32]);
        (0..2).for_each(|group| block.0[group] = PortMask(1 << 1 | 1 << 2 | 1 << 5));
        stage.world.set(switch, Attribute::MULTICAST_FORWARDING, 0, block.encode()).unwrap();
    }
    for node in ["b", "c", "d"] {
        stage.give_keys(node, &[0x7fff, keys[0], keys[1]]);
    }
    // All are in the first partition, and `c` and the sender in the second as well.
    for (node, number, count) in [("b", 1, 2), ("b", 2, 1), ("c", 1, 2), ("c", 2, 1), ("d", 1, 1)] {
        let key = |place: usize| FunctionKey {
            pkey: Pkey::from_wire(keys[place]).unwrap(),
            group: Some(groups[place]),
        };
        let function = VirtualFunction {
            id: stage.id(node, number),
            mac: mac(node, number),
            keys: (0..count).map(key).collect(),
            sl: ServiceLevel::default(),
        };
        stage.world.fabric.attach(function).unwrap();
    }
    stage.send(("b", 1), MacAddress::BROADCAST, 100);
    let beside = stage.id("b", 2);
    assert_eq!(
        stage.arrived.iter().map(|it| it.2).collect::<Vec<_>>(),
        [beside],
        "inside the adapter at once"
    );
    stage.drain();
    let mut reached: Vec<FunctionId> = stage.arrived.iter().map(|it| it.2).collect();
    reached.sort();
    let mut members = vec![beside, stage.id("c", 1), stage.id("c", 2), stage.id("d", 1)];
    members.sort();
    assert_eq!(reached, members);
}

#[test]
fn a_looping_multicast_tree_ends() {
    let mut stage = Stage::new(0);
    let group = MulticastLid::from_wire(0xc000).unwrap();
    // Both cables between the switches: copies go round and multiply.
    for switch in ["left", "right"] {
        let mut block = MulticastBlock([PortMask(0); 32]);
        block.0[0] = PortMask(1 << 1 | 1 << 5 | 1 << 6);
        stage.world.set(switch, Attribute::MULTICAST_FORWARDING, 0, block.encode()).unwrap();
    }
    let id = stage.id("b", 1);
    let keys = [FunctionKey { pkey: Pkey::from_wire(EVERYBODY).unwrap(), group: Some(group) }].into();
    let function = VirtualFunction { id, mac: mac("b", 1), keys, sl: ServiceLevel::default() };
    stage.world.fabric.attach(function).unwrap();
    stage.send(("b", 1), MacAddress::BROADCAST, 64);
    stage.drain();
    assert!(stage.drops(id)[&DropReason::HopLimit] > 0);
}

/// What stops a frame without the model stops it with the model.
#[test]
fn the_model_changes_no_verdict() {
    type Change = fn(&mut Stage);
    let changes: [(&str, Change); 7] = [
        ("nothing", |_| {}),
        ("no key at the receiver", |stage| stage.give_keys("c", &[0x8123])),
        ("no key at the sender", |stage| stage.give_keys("a", &[0x8123])),
        ("no route", |stage| stage.reroute("right", 5, 0xff)),
        ("another route", |stage| stage.reroute("right", 5, 2)),
        ("no link", |stage| {
            let port = stage.world.port_number("right", 1);
            stage.world.fabric.unplug(stage.world.now, port);
        }),
        ("a loop", |stage| stage.reroute("right", 5, 5)),
    ];
    for (what, change) in changes {
        let verdict = |is_on: bool| {
            let mut stage = two_lanes(10);
            if !is_on {
                stage.world.fabric.set_link_model(stage.world.now, None);
            }
            change(&mut stage);
            for (to, length) in [(mac("c", 1), 100), (mac("c", 9), 100), (mac("c", 1), 4000)] {
                stage.send(("a", 1), to, length);
                stage.drain();
            }
            (stage.arrived.len(), stage.drops(stage.id("a", 1)))
        };
        assert_eq!(verdict(true), verdict(false), "{what}");
    }
}
