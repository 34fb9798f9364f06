//! Frames of virtual functions: where the tables let them go, what is counted and reported.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric_model::MacAddress;
use fabric_sim::{
    AttachFunctionError, Capacities, DropReason, FrameCounters, FunctionId, FunctionKey, VirtualFunction,
};
use ib_wire::notice::{Notice, Trap};
use ib_wire::{
    Attribute, Lid, Method, Mtu, MulticastBlock, MulticastLid, Pkey, PkeyBlock, PkeyBlockSelector, PortMask,
    PortState, ServiceLevel,
};
use proptest::prelude::*;

use crate::oracle;
use crate::world::World;

const BLUE: u16 = 0x8101;
const BLUE_LIMITED: u16 = 0x0101;
const RED: u16 = 0x8102;
const EVERYBODY: MacAddress = MacAddress::BROADCAST;

/// The LIDs that the world gives its adapters.
const LIDS: [(&str, u16); 4] = [("a", 3), ("b", 4), ("c", 5), ("d", 6)];

fn group(number: u16) -> MulticastLid {
    MulticastLid::from_wire(MulticastLid::MIN + number).unwrap()
}

fn key(raw: u16, group: Option<MulticastLid>) -> FunctionKey {
    FunctionKey { pkey: Pkey::from_wire(raw).unwrap(), group }
}

fn mac(node: &str, function: u8) -> MacAddress {
    let (_, lid) = LIDS.into_iter().find(|(name, _)| *name == node).unwrap();
    MacAddress::of_function(Lid::from_wire(lid).unwrap(), function)
}

fn frame(from: MacAddress, to: MacAddress, length: usize) -> Vec<u8> {
    let mut bytes = [to.bytes(), from.bytes()].concat();
    bytes.resize(length.max(14), 0);
    bytes
}

/// A configured world with attached functions.
struct Stage {
    world: World,
    receivers: Vec<FunctionId>,
}

impl Stage {
    /// Blue is on `b` and `c`, red on `d`; the groups of both reach all ports.
    fn new() -> Self {
        Self::on(World::configured())
    }

    fn on(world: World) -> Self {
        let mut stage = Self { world, receivers: Vec::new() };
        for (node, key) in [("b", BLUE), ("c", BLUE), ("d", RED)] {
            stage.give(node, 0, &[0x7fff, key]);
        }
        for switch in ["left", "right"] {
            stage.lead(switch, 0, &[1, 2, 5]);
            stage.lead(switch, 1, &[1, 2, 5]);
        }
        stage.attach("b", 1, BLUE, Some(0));
        stage.attach("c", 1, BLUE, Some(0));
        stage.attach("d", 1, RED, Some(1));
        stage
    }

    fn id(&self, node: &str, function: u8) -> FunctionId {
        FunctionId::new(self.world.port(node), function)
    }

    fn attach(&mut self, node: &str, function: u8, key: u16, to: Option<u16>) -> FunctionId {
        self.attach_with(node, function, &[(key, to)])
    }

    fn attach_with(&mut self, node: &str, function: u8, keys: &[(u16, Option<u16>)]) -> FunctionId {
        let (id, mac, sl) = (self.id(node, function), mac(node, function), ServiceLevel::default());
        let keys = keys.iter().map(|(raw, to)| key(*raw, to.map(group))).collect();
        self.world.fabric.attach(VirtualFunction { id, mac, keys, sl }).unwrap();
        id
    }

    fn give(&mut self, node: &str, port: u16, keys: &[u16]) {
        let mut block = PkeyBlock([None; 32]);
        block.0.iter_mut().zip(keys).for_each(|(entry, raw)| *entry = Pkey::from_wire(*raw));
        let modifier = PkeyBlockSelector { port, block: 0 }.to_modifier();
        self.world.set(node, Attribute::PKEY_TABLE, modifier, block.encode()).unwrap();
    }

    fn lead(&mut self, switch: &str, number: usize, exits: &[u8]) {
        let held = self.world.get(switch, Attribute::MULTICAST_FORWARDING, 0).unwrap();
        let mut block = MulticastBlock::decode(&held);
        block.0[number] = PortMask(exits.iter().fold(0, |mask, port| mask | 1 << port));
        self.world.set(switch, Attribute::MULTICAST_FORWARDING, 0, block.encode()).unwrap();
    }

    /// Sends a frame and returns its receivers.
    fn send(&mut self, from: FunctionId, bytes: &[u8]) -> Vec<FunctionId> {
        self.world.fabric.send_frame(self.world.now, from, bytes, &mut self.receivers);
        self.world.collect();
        self.receivers.sort();
        self.receivers.clone()
    }

    /// Whether a frame from the first function of one node reaches that of another.
    fn reaches(&mut self, from: &str, to: &str) -> bool {
        let (sender, receiver) = (self.id(from, 1), self.id(to, 1));
        match self.send(sender, &frame(mac(from, 1), mac(to, 1), 100)).as_slice() {
            [] => false,
            [only] if *only == receiver => true,
            others => panic!("{from} sends to {to}, and {others:?} get it"),
        }
    }

    fn counters(&self, id: FunctionId) -> FrameCounters {
        self.world.fabric.functions().find(|(function, _)| function.id == id).unwrap().1.clone()
    }

    fn drops(&self, node: &str) -> BTreeMap<DropReason, u64> {
        self.counters(self.id(node, 1)).drops
    }
}

#[test]
fn frames_reach_their_partition_and_no_other() {
    let mut stage = Stage::new();
    assert!(stage.reaches("b", "c") && stage.reaches("c", "b"));
    assert!(!stage.reaches("b", "d") && !stage.reaches("d", "c"));
    assert_eq!(stage.drops("b"), [(DropReason::PartitionAtReceiver, 1)].into());
    assert_eq!(stage.world.port_info("d", 0).pkey_violations, 1);
    let b = stage.counters(stage.id("b", 1));
    assert_eq!((b.sent, b.received), (2, 1));
    let total = stage.world.fabric.statistics().frames;
    assert_eq!((total.sent, total.received), (4, 2));
}

#[test]
fn a_frame_violation_raises_the_same_trap_as_a_datagram() {
    let mut stage = Stage::new();
    stage.world.delivered.clear();
    assert!(!stage.reaches("b", "d"));
    assert_eq!(stage.world.traps(), [257]);
    let trap = &stage.world.delivered.iter().find(|(_, d)| d.mad.method() == Method::TRAP).unwrap().1;
    let notice = Notice::decode_smp(trap.mad.smp_data()).unwrap();
    let Some(Trap::BadPkey(details)) = notice.trap() else { panic!("{notice:?}") };
    assert_eq!(details.pkey, Pkey::from_wire(BLUE));
    assert_eq!(details.source.map(|lid| lid.to_wire()), Some(4));
    assert_eq!(details.source_qp.to_wire(), 0x101, "function 1");
    assert!(!stage.reaches("b", "d"));
    assert_eq!(stage.world.traps(), [257], "the next one is held back");
}

#[test]
fn removing_a_pkey_stops_its_pair_until_it_returns() {
    for (node, expected) in [("b", DropReason::PartitionAtSender), ("c", DropReason::PartitionAtReceiver)] {
        let mut stage = Stage::new();
        stage.give("a", 0, &[0xffff, RED]);
        stage.attach("a", 1, RED, Some(1));
        assert!(stage.reaches("b", "c") && stage.reaches("c", "b"));
        stage.give(node, 0, &[0x7fff]);
        assert!(!stage.reaches("b", "c") && !stage.reaches("c", "b"), "{node}");
        assert_eq!(stage.drops("b"), [(expected, 1)].into(), "{node}");
        assert!(stage.reaches("a", "d") && stage.reaches("d", "a"), "others are not affected");
        stage.give(node, 0, &[0x7fff, BLUE]);
        assert!(stage.reaches("b", "c") && stage.reaches("c", "b"), "restored");
    }
}

#[test]
fn removing_a_route_stops_one_direction() {
    let mut stage = Stage::new();
    let held = stage.world.get("left", Attribute::LINEAR_FORWARDING, 0).unwrap();
    let mut without = held;
    without[5] = 0xff;
    stage.world.set("left", Attribute::LINEAR_FORWARDING, 0, without).unwrap();
    assert!(!stage.reaches("b", "c"));
    assert!(stage.reaches("c", "b"), "the other direction has its route");
    assert_eq!(stage.drops("b"), [(DropReason::NoRoute, 1)].into());
    stage.world.set("left", Attribute::LINEAR_FORWARDING, 0, held).unwrap();
    assert!(stage.reaches("b", "c"));
}

#[test]
fn only_a_service_level_without_a_lane_on_a_hop_is_discarded() {
    let mut stage = Stage::new();
    let id = stage.id("b", 1);
    let (keys, sl) = ([key(BLUE, Some(group(0)))].into(), ServiceLevel::from_wire(3).unwrap());
    let function = VirtualFunction { id, mac: mac("b", 1), keys, sl };
    stage.world.fabric.attach(function).unwrap();
    // The hop from the port of b towards the other switch.
    let hop = 0x0205;
    let held = stage.world.get("left", Attribute::SL_TO_VL, hop).unwrap();
    let mut without = held;
    without[1] |= 0x0f;
    stage.world.set("left", Attribute::SL_TO_VL, hop, without).unwrap();
    assert!(!stage.reaches("b", "c"));
    assert_eq!(stage.drops("b"), [(DropReason::ServiceLevel, 1)].into());
    assert!(stage.reaches("c", "b"), "service level 0 in the other direction still passes");
    let everybody = stage.send(id, &frame(mac("b", 1), EVERYBODY, 100));
    assert_eq!(everybody, [stage.id("c", 1)], "and so do multicast frames, which use service level 0");
    stage.world.set("left", Attribute::SL_TO_VL, hop, held).unwrap();
    assert!(stage.reaches("b", "c"));
}

#[test]
fn links_that_are_down_or_not_active_carry_no_frames() {
    let mut stage = Stage::new();
    let uplink = stage.world.port_number("left", 5);
    stage.world.fabric.unplug(stage.world.now, uplink);
    assert!(!stage.reaches("b", "c"));
    stage.world.fabric.plug(stage.world.now, uplink);
    assert!(!stage.reaches("b", "c"), "it waits in Initialize");
    assert_eq!(stage.drops("b"), [(DropReason::LinkDown, 1), (DropReason::NotActive, 1)].into());
    for state in [PortState::Armed, PortState::Active] {
        for switch in ["left", "right"] {
            stage.world.change_port_info(switch, 5, |info| info.state = state);
        }
    }
    assert!(stage.reaches("b", "c"));
}

#[test]
fn switch_ports_enforce_partitions_of_frames_in_both_directions() {
    for (switch, port, inbound) in [("left", 2, true), ("right", 1, false)] {
        let mut stage = Stage::new();
        stage.give(switch, port, &[0x7fff, BLUE]);
        stage.world.change_port_info(switch, port.into(), |info| {
            (info.enforce_inbound, info.enforce_outbound) = (inbound, !inbound);
        });
        assert!(stage.reaches("b", "c"), "the switch port holds the key");
        stage.world.delivered.clear();
        stage.give(switch, port, &[0x7fff]);
        assert!(!stage.reaches("b", "c"), "{switch}");
        assert_eq!(stage.drops("b"), [(DropReason::PartitionAtSwitch, 1)].into());
        assert_eq!(stage.world.traps(), [259], "{switch}");
    }
}

#[test]
fn functions_of_one_port_reach_each_other_by_the_same_rules() {
    let mut stage = Stage::new();
    stage.give("b", 0, &[0x7fff, BLUE, RED]);
    let one = stage.id("b", 1);
    let two = stage.attach("b", 2, BLUE, Some(0));
    stage.attach("b", 3, RED, Some(1));
    let port = stage.world.port("b");
    let sent = stage.world.fabric.port_view(port).counters.transmit_packets;
    assert_eq!(stage.send(one, &frame(mac("b", 1), mac("b", 2), 60)), [two]);
    assert_eq!(
        stage.world.fabric.port_view(port).counters.transmit_packets,
        sent,
        "nothing left the adapter"
    );
    assert_eq!(stage.send(one, &frame(mac("b", 1), mac("b", 3), 60)), []);
    assert_eq!(stage.send(one, &frame(mac("b", 1), mac("b", 1), 60)), [], "not to itself");
    let expected = [(DropReason::PartitionAtReceiver, 1), (DropReason::NoFunction, 1)].into();
    assert_eq!(stage.drops("b"), expected);
    let heard = stage.send(one, &frame(mac("b", 1), EVERYBODY, 60));
    assert_eq!(heard, [two, stage.id("c", 1)], "inside and outside, once each");
}

#[test]
fn limited_members_reach_full_members_only() {
    let mut stage = Stage::new();
    stage.give("b", 0, &[0x7fff, BLUE_LIMITED]);
    stage.give("d", 0, &[0x7fff, BLUE_LIMITED]);
    stage.attach("b", 1, BLUE_LIMITED, Some(0));
    stage.attach("d", 1, BLUE_LIMITED, Some(0));
    assert!(stage.reaches("b", "c") && stage.reaches("c", "d"));
    assert!(!stage.reaches("b", "d") && !stage.reaches("d", "b"));
    let b = stage.id("b", 1);
    assert_eq!(stage.send(b, &frame(mac("b", 1), EVERYBODY, 60)), [stage.id("c", 1)]);
    assert_eq!(stage.world.port_info("b", 0).pkey_violations, 1, "by d, and not by its own broadcast");
}

#[test]
fn a_function_ignores_a_pkey_that_its_port_does_not_hold() {
    let mut stage = Stage::new();
    // The port would accept it, because it holds the full key; but the function is a limited member.
    stage.attach("c", 1, BLUE_LIMITED, Some(0));
    assert!(!stage.reaches("b", "c"));
    assert_eq!(stage.drops("b"), [(DropReason::PartitionAtReceiver, 1)].into());
    stage.give("c", 0, &[0x7fff, BLUE, BLUE_LIMITED]);
    assert!(stage.reaches("b", "c"));
}

#[test]
fn broadcasts_and_multicasts_go_to_the_group_of_the_sender() {
    let mut stage = Stage::new();
    let (b, c) = (stage.id("b", 1), stage.id("c", 1));
    for to in ["ff:ff:ff:ff:ff:ff", "33:33:00:00:00:01", "01:00:5e:00:00:fb"] {
        assert_eq!(stage.send(b, &frame(mac("b", 1), to.parse().unwrap(), 60)), [c], "{to}");
    }
    // The group also reaches a and d, which do not hold the key: each is a violation.
    assert_eq!(stage.drops("b"), [(DropReason::PartitionAtReceiver, 6)].into());

    stage.lead("left", 0, &[2, 5]);
    stage.lead("right", 0, &[1, 5]);
    assert_eq!(stage.send(b, &frame(mac("b", 1), EVERYBODY, 60)), [c]);
    assert_eq!(stage.drops("b"), [(DropReason::PartitionAtReceiver, 6)].into(), "only to members now");

    stage.attach("c", 1, BLUE, None);
    assert_eq!(stage.send(b, &frame(mac("b", 1), EVERYBODY, 60)), [], "c has left the group");
    assert_eq!(stage.send(c, &frame(mac("c", 1), EVERYBODY, 60)), []);
    assert_eq!(stage.drops("c"), [(DropReason::NoGroup, 1)].into());
    assert!(stage.reaches("b", "c"), "the control");
}

#[test]
fn a_group_without_a_multicast_entry_is_dropped() {
    let mut stage = Stage::new();
    let b = stage.attach("b", 1, BLUE, Some(7));
    stage.attach("c", 1, BLUE, Some(7));
    assert_eq!(stage.send(b, &frame(mac("b", 1), EVERYBODY, 60)), []);
    assert_eq!(stage.drops("b"), [(DropReason::NoRoute, 1)].into());
    stage.lead("left", 7, &[2, 5]);
    stage.lead("right", 7, &[1, 5]);
    assert_eq!(stage.send(b, &frame(mac("b", 1), EVERYBODY, 60)), [stage.id("c", 1)]);
}

/// The table of a large switch is stored only as a prefix, and all members are at low ports.
#[test]
fn the_highest_group_works_for_every_switch_radix() {
    for radix in [6, 15, 16, 31, 32, 36, 64, 128, 254] {
        let mut stage = Stage::on(World::configured_on(radix));
        for (from, to) in [("b", "c"), ("c", "b")] {
            let (sender, receiver) = (stage.id(from, 1), stage.id(to, 1));
            let heard = stage.send(sender, &frame(mac(from, 1), EVERYBODY, 60));
            assert_eq!(heard, [receiver], "radix {radix}, from {from}: {:?}", stage.drops(from));
        }
        let d = stage.id("d", 1);
        assert_eq!(stage.send(d, &frame(mac("d", 1), EVERYBODY, 60)), [], "red is alone, radix {radix}");
        assert!(
            !stage.drops("d").contains_key(&DropReason::NoRoute),
            "radix {radix}: {:?}",
            stage.drops("d")
        );
    }
}

#[test]
fn malformed_and_spoofed_frames_are_dropped_and_counted() {
    let mut stage = Stage::new();
    let b = stage.id("b", 1);
    let (own, other) = (mac("b", 1), mac("c", 1));
    let cases: [(Vec<u8>, DropReason); 8] = [
        (frame(other, other, 60), DropReason::Spoofed),
        (frame(mac("b", 2), other, 60), DropReason::Spoofed),
        (frame(EVERYBODY, EVERYBODY, 60), DropReason::Spoofed),
        (frame(own, "52:54:00:00:00:01".parse().unwrap(), 60), DropReason::UnknownAddress),
        (frame(own, MacAddress::from_bytes([2, 0, 0, 1, 0, 0]), 60), DropReason::UnknownAddress),
        (frame(own, mac("c", 9), 60), DropReason::NoFunction),
        (frame(own, other, 60)[..13].to_vec(), DropReason::Malformed),
        (frame(own, other, 2049), DropReason::TooLarge),
    ];
    for (bytes, reason) in cases {
        let before = stage.drops("b").get(&reason).copied().unwrap_or(0);
        assert_eq!(stage.send(b, &bytes), [], "{reason:?}");
        assert_eq!(stage.drops("b")[&reason], before + 1, "{reason:?}");
    }
    // A LID that no port has, and that of a switch.
    for (lid, reason) in [(99, DropReason::NoRoute), (1, DropReason::NoFunction)] {
        let to = MacAddress::of_function(Lid::from_wire(lid).unwrap(), 1);
        assert_eq!(stage.send(b, &frame(own, to, 60)), []);
        assert!(stage.drops("b")[&reason] > 0, "{reason:?}");
    }
    let control = stage.send(b, &frame(own, other, 2048));
    assert_eq!(control, [stage.id("c", 1)], "the largest frame passes");
}

#[test]
fn a_frame_must_fit_the_smallest_mtu_of_its_path() {
    let mut stage = Stage::new();
    let (b, c) = (stage.id("b", 1), stage.id("c", 1));
    stage.world.resize_link(|info| info.neighbor_mtu = Mtu::B1024);
    assert_eq!(stage.send(b, &frame(mac("b", 1), mac("c", 1), 1025)), []);
    assert_eq!(stage.drops("b"), [(DropReason::TooLarge, 1)].into());
    assert_eq!(stage.send(b, &frame(mac("b", 1), mac("c", 1), 1024)), [c]);
}

#[test]
fn frames_count_at_every_port_they_pass() {
    let mut stage = Stage::new();
    let ports = [("b", 1), ("left", 5), ("right", 1)].map(|(node, port)| stage.world.port_number(node, port));
    let counters = |stage: &Stage| ports.map(|port| stage.world.fabric.port_view(port).counters);
    let before = counters(&stage);
    let b = stage.id("b", 1);
    stage.send(b, &frame(mac("b", 1), mac("c", 1), 101));
    for (before, after) in before.iter().zip(counters(&stage)) {
        assert_eq!(after.unicast_transmit_packets, before.unicast_transmit_packets + 1);
        assert_eq!(after.transmit_data, before.transmit_data + 8 + 26, "headers, and the payload in words");
    }
}

#[test]
fn injected_loss_applies_to_frames() {
    let mut stage = Stage::new();
    stage.world.fabric.set_loss(None, fabric_sim::Probability::ALWAYS);
    assert!(!stage.reaches("b", "c"));
    assert_eq!(stage.drops("b"), [(DropReason::Injected, 1)].into());
    stage.world.fabric.set_loss(None, fabric_sim::Probability::NEVER);
    assert!(stage.reaches("b", "c"));
}

#[test]
fn data_loss_at_a_port_spares_management() {
    let mut stage = Stage::new();
    let port = stage.world.port_number("right", 1);
    stage.world.fabric.set_data_loss(port, fabric_sim::Probability::ALWAYS);
    assert!(!stage.reaches("b", "c"));
    assert!(stage.world.get("c", Attribute::NODE_INFO, 0).is_ok());
    stage.world.fabric.set_data_loss(port, fabric_sim::Probability::NEVER);
    assert!(stage.reaches("b", "c"));
}

#[test]
fn the_port_of_the_last_drop_is_recorded_per_reason() {
    let mut stage = Stage::new();
    let place = |stage: &Stage, reason| {
        let at = stage.counters(stage.id("b", 1)).stops[&reason];
        (stage.world.fabric.id_of(at).to_owned(), stage.world.fabric.port_forwarding(at).number.to_wire())
    };
    let name = |stage: &Stage, node| stage.world.fabric.id_of(stage.world.port(node)).to_owned();
    // To a function of another partition: dropped at the receiver.
    assert!(!stage.reaches("b", "d"));
    assert_eq!(place(&stage, DropReason::PartitionAtReceiver), (name(&stage, "d"), 1));
    // On the path: at the output port of the switch, then at the input port.
    let port = stage.world.port_number("right", 1);
    stage.world.fabric.set_data_loss(port, fabric_sim::Probability::ALWAYS);
    assert!(!stage.reaches("b", "c"));
    assert_eq!(place(&stage, DropReason::Injected), (name(&stage, "right"), 1));
    let far = MacAddress::of_function(Lid::from_wire(99).unwrap(), 1);
    let b = stage.id("b", 1);
    assert_eq!(stage.send(b, &frame(mac("b", 1), far, 60)), []);
    assert_eq!(place(&stage, DropReason::NoRoute).0, name(&stage, "left"));
    // Multicast: at the switch without an entry for the group.
    stage.lead("right", 0, &[]);
    let everybody = MacAddress::from_bytes([0xff; 6]);
    assert_eq!(stage.send(b, &frame(mac("b", 1), everybody, 60)), []);
    assert_eq!(place(&stage, DropReason::NoRoute), (name(&stage, "right"), 5));
}

#[test]
fn functions_survive_a_reboot_but_need_the_tables_again() {
    let mut stage = Stage::new();
    let c = stage.world.fabric.find_device("c").unwrap();
    stage.world.fabric.reboot(stage.world.now, c);
    assert!(!stage.reaches("b", "c"));
    stage.world.change_port_info("c", 0, |info| info.lid = Lid::from_wire(5));
    for state in [PortState::Armed, PortState::Active] {
        for node in ["c", "right"] {
            stage.world.change_port_info(node, 1, |info| info.state = state);
        }
    }
    assert!(!stage.reaches("b", "c"), "it has lost its key");
    stage.give("c", 0, &[0x7fff, BLUE]);
    assert!(stage.reaches("b", "c"));
}

#[test]
fn attaching_replaces_a_function_or_is_rejected() {
    let mut stage = Stage::new();
    let b = stage.id("b", 1);
    assert!(stage.reaches("b", "c"));
    stage.attach("b", 1, BLUE, Some(0));
    assert_eq!(stage.counters(b).sent, 1, "the same again changes nothing");
    stage.attach("b", 1, BLUE, None);
    assert_eq!(stage.counters(b).sent, 0, "another configuration resets the counters");

    let (blue, sl) = (key(BLUE, None), ServiceLevel::default());
    let function = |id, mac| VirtualFunction { id, mac, keys: [blue].into(), sl };
    let mut attach = |id, mac| stage.world.fabric.attach(function(id, mac));
    let second = FunctionId::new(b.port(), 2);
    assert_eq!(
        attach(second, mac("b", 1)),
        Err(AttachFunctionError::AddressTaken { mac: mac("b", 1), owner: 1 })
    );
    let nowhere = "52:54:00:00:00:01".parse().unwrap();
    assert_eq!(attach(second, nowhere), Err(AttachFunctionError::BadAddress { mac: nowhere }));
    assert_eq!(attach(second, EVERYBODY), Err(AttachFunctionError::BadAddress { mac: EVERYBODY }));
    assert_eq!(attach(second, mac("b", 2)), Ok(()), "the control");
    let switch = FunctionId::new(stage.world.port_number("left", 1), 1);
    let refused = stage.world.fabric.attach(function(switch, mac("b", 9)));
    assert_eq!(refused, Err(AttachFunctionError::Switch));
}

/// Two nodes are full members of an inner partition and limited members of their cluster's; one node is only
/// in the cluster's partition; one is a limited member there without being in the inner one.
#[test]
fn inner_partition_members_reach_it_and_full_cluster_members() {
    const INNER: u16 = 0x8103;
    let mut stage = Stage { world: World::configured(), receivers: Vec::new() };
    let inner = [(BLUE_LIMITED, Some(0)), (INNER, Some(1))];
    for (node, keys) in [("a", &inner[..]), ("b", &inner[..]), ("c", &[(BLUE, Some(0))]), ("d", &inner[..1])]
    {
        let table: Vec<u16> = keys.iter().map(|(key, _)| *key).collect();
        stage.give(node, 0, &table);
        stage.attach_with(node, 1, keys);
    }
    for switch in ["left", "right"] {
        stage.lead(switch, 0, &[1, 2, 5]);
        stage.lead(switch, 1, &[1, 2, 5]);
    }
    let may_talk = [("a", "b"), ("a", "c"), ("b", "c"), ("c", "d")];
    for (from, _) in LIDS {
        for (to, _) in LIDS.into_iter().filter(|(to, _)| *to != from) {
            let expected = may_talk.contains(&(from, to)) || may_talk.contains(&(to, from));
            assert_eq!(stage.reaches(from, to), expected, "{from} to {to}");
        }
    }
    let a = stage.id("a", 1);
    let heard = stage.send(a, &frame(mac("a", 1), EVERYBODY, 100));
    assert_eq!(heard, [stage.id("b", 1), stage.id("c", 1)], "each once");
}

#[test]
fn a_detached_function_neither_sends_nor_receives() {
    let mut stage = Stage::new();
    let (b, c) = (stage.id("b", 1), stage.id("c", 1));
    assert!(stage.reaches("b", "c"));
    assert!(stage.world.fabric.detach(c) && !stage.world.fabric.detach(c));
    assert!(!stage.reaches("b", "c"));
    assert_eq!(stage.send(c, &frame(mac("c", 1), mac("b", 1), 60)), []);
    assert_eq!(stage.counters(b).received, 0);
}

/// Random tables: everything that decides where frames go.
#[derive(Clone, Debug)]
struct Chaos {
    adapters: [AdapterChaos; 4],
    switches: [SwitchChaos; 2],
    unplugged: Option<(bool, u8)>,
}

/// Keys of the port; keys and groups of each of its functions.
type AdapterChaos = (Vec<u16>, [Vec<(u16, Option<u16>)>; 2]);

/// Exits by LID, exits of two groups; keys and enforcement, inbound and outbound, of each port.
type SwitchChaos = ([u8; 6], [u16; 2], Vec<(Vec<u16>, bool, bool)>);

fn chaos() -> impl Strategy<Value = Chaos> {
    let key = || prop::sample::select(vec![0xffff, 0x7fff, BLUE, BLUE_LIMITED, RED, 0x0102]);
    let keys = move || prop::collection::vec(key(), 0..6);
    let function = move || prop::collection::vec((key(), prop::option::of(0..2u16)), 1..4);
    let adapter = move || (keys(), [function(), function()]);
    let port = move || (keys(), any::<bool>(), any::<bool>());
    let exit = || prop_oneof![4 => prop::sample::select(vec![0, 1, 2, 5, 6]), 1 => Just(0xff_u8)];
    let switch = move || {
        let exits = [exit(), exit(), exit(), exit(), exit(), exit()];
        (exits, [0..128u16, 0..128u16], prop::collection::vec(port(), 6))
    };
    let adapters = [adapter(), adapter(), adapter(), adapter()];
    let unplugged = prop::option::of((any::<bool>(), prop::sample::select(vec![1u8, 2, 5, 6])));
    (adapters, [switch(), switch()], unplugged).prop_map(|(adapters, switches, unplugged)| Chaos {
        adapters,
        switches,
        unplugged,
    })
}

impl Chaos {
    fn stage(&self) -> Stage {
        let mut stage = Stage { world: World::configured(), receivers: Vec::new() };
        for ((node, _), (keys, functions)) in LIDS.iter().zip(&self.adapters) {
            stage.give(node, 0, keys);
            for (number, keys) in (1..).zip(functions) {
                stage.attach_with(node, number, keys);
            }
        }
        for (switch, (exits, groups, ports)) in ["left", "right"].into_iter().zip(&self.switches) {
            let mut table = [0xff; 64];
            table[1..7].copy_from_slice(exits);
            stage.world.set(switch, Attribute::LINEAR_FORWARDING, 0, table).unwrap();
            for (number, mask) in groups.iter().enumerate() {
                let exits: Vec<u8> = (0..7).filter(|port| mask >> port & 1 == 1).collect();
                stage.lead(switch, number, &exits);
            }
            for (number, (keys, inbound, outbound)) in (1..).zip(ports) {
                stage.give(switch, number, keys);
                stage.world.change_port_info(switch, number.into(), |info| {
                    (info.enforce_inbound, info.enforce_outbound) = (*inbound, *outbound);
                });
            }
        }
        if let Some((is_left, port)) = self.unplugged {
            let port = stage.world.port_number(if is_left { "left" } else { "right" }, port);
            stage.world.fabric.unplug(Duration::ZERO, port);
        }
        stage
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Every function sends to every other and to all. The oracle reads the tables and shares no code with
    /// the emulation.
    #[test]
    fn frames_go_exactly_where_an_independent_walk_goes(chaos in chaos()) {
        let mut stage = chaos.stage();
        let senders: Vec<_> = LIDS.iter().flat_map(|(node, _)| [(*node, 1), (*node, 2)]).collect();
        for (node, number) in senders.clone() {
            let from = stage.id(node, number);
            for (to, function) in senders.clone() {
                let to = mac(to, function);
                let expected = oracle::unicast(&stage.world.fabric, from, to);
                let got = stage.send(from, &frame(mac(node, number), to, 60));
                prop_assert_eq!(&got, &expected.into_iter().collect::<Vec<_>>(), "{} {} to {}", node, number, to);
            }
            let hops = |stage: &Stage| stage.counters(from).drops.get(&DropReason::HopLimit).copied();
            let circles = hops(&stage);
            let expected = oracle::multicast(&stage.world.fabric, from);
            let mut got = stage.send(from, &frame(mac(node, number), EVERYBODY, 60));
            got.dedup();
            if circles == hops(&stage) {
                prop_assert_eq!(&got, &expected.into_iter().collect::<Vec<_>>(), "{} {}", node, number);
            } else {
                prop_assert!(got.iter().all(|id| expected.contains(id)), "{:?} {:?}", got, expected);
            }
        }
    }

    /// Bytes that are not frames do no harm and cannot spoof an address.
    #[test]
    fn arbitrary_frames_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..3000), own in any::<bool>()) {
        let mut stage = Stage::new();
        let b = stage.id("b", 1);
        let mut bytes = bytes;
        if own && bytes.len() >= 12 {
            bytes[6..12].copy_from_slice(&mac("b", 1).bytes());
        }
        let got = stage.send(b, &bytes);
        prop_assert!(got.iter().all(|id| *id == stage.id("c", 1)), "{:?}", got);
        prop_assert!(own || got.is_empty());
        prop_assert_eq!(stage.counters(b).sent, 1);
    }
}

#[test]
fn an_adapter_with_a_larger_mtu_takes_larger_frames() {
    let capacities = Capacities { mtu: Mtu::B4096, ..Capacities::default() };
    let mut stage = Stage { world: World::configured_with(capacities, 1), receivers: Vec::new() };
    stage.attach("b", 1, 0xffff, None);
    stage.attach("c", 1, 0xffff, None);
    let (b, c) = (stage.id("b", 1), stage.id("c", 1));
    assert_eq!(stage.send(b, &frame(mac("b", 1), mac("c", 1), 4096)), [c]);
    assert_eq!(stage.send(b, &frame(mac("b", 1), mac("c", 1), 4097)), []);
}
