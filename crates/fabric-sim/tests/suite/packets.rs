//! InfiniBand packets of virtual functions: their delivery, what a machine cannot forge, and the port state that its driver receives.

use std::collections::BTreeMap;

use fabric_sim::{
    AdapterFunction, AttachFunctionError, DropReason, FunctionId, FunctionKey, FunctionPort, VirtualFunction,
};
use ib_wire::{
    Attribute, Datagram, Gid, Grh, Guid, GuidBlock, LidAddress, Mad, ManagementClass, Method, MulticastBlock,
    Packet, Pkey, PkeyBlock, PkeyBlockSelector, PortMask, PortState, QKey, QueuePair,
};

use crate::world::World;

const BLUE: u16 = 0x8101;
const BLUE_LIMITED: u16 = 0x0101;
const RED: u16 = 0x8102;
const DEFAULT_LIMITED: u16 = 0x7fff;

/// LIDs that the world gives its nodes.
const LIDS: [(&str, u16); 5] = [("left", 1), ("a", 3), ("b", 4), ("c", 5), ("d", 6)];
const GROUP: u16 = 0xc000;

fn lid(node: &str) -> u16 {
    LIDS.into_iter().find(|(name, _)| *name == node).unwrap().1
}

fn address(raw: u16) -> LidAddress {
    LidAddress::from_wire(raw).unwrap()
}

fn guid(node: &str, number: u8) -> Guid {
    Guid::from_wire(u64::from(lid(node)) << 8 | u64::from(number)).unwrap()
}

fn gid(guid: Guid) -> Gid {
    Gid::unicast(Gid::DEFAULT_PREFIX, guid)
}

fn pair(number: u8, low: u32) -> QueuePair {
    QueuePair::from_wire(u32::from(number) << 19 | low).unwrap()
}

/// An unreliable datagram. MADs have the length that is at hand.
#[derive(Clone)]
struct Sent(Datagram);

impl Sent {
    fn new(from: QueuePair, to: (&str, QueuePair), key: u16) -> Self {
        let mad = Mad::new(ManagementClass(0x30), Method::GET, Attribute::NODE_INFO, 0x5a5a_5a5a);
        let key = Pkey::from_wire(key).unwrap();
        let whole = Datagram::general_management(address(0x77), address(lid(to.0)), key, mad);
        Self(Datagram { sqp: from, dqp: to.1, qkey: QKey::from_wire(0x0b1b), ..whole })
    }

    fn with_grh(mut self, source: Guid, destination: Guid) -> Self {
        let (source, destination) = (gid(source), gid(destination));
        self.0.grh = Some(Grh { source, destination, traffic_class: 0, flow_label: 0, hop_limit: 64 });
        self
    }
}

/// A configured world. Blue has functions at `b` and `c`, red at `c` and `d`.
struct Stage(World);

impl Stage {
    fn new() -> Self {
        let mut stage = Self(World::configured());
        for (node, keys) in [("b", &[BLUE][..]), ("c", &[BLUE, RED]), ("d", &[RED])] {
            let keys: Vec<u16> = [DEFAULT_LIMITED].iter().chain(keys).copied().collect();
            stage.give(node, &keys);
        }
        for switch in ["left", "right"] {
            let mut block = MulticastBlock([PortMask(0); 32]);
            block.0[0] = PortMask(1 << 1 | 1 << 2 | 1 << 5);
            stage.0.set(switch, Attribute::MULTICAST_FORWARDING, 0, block.encode()).unwrap();
        }
        for (node, number, key) in
            [("b", 1, BLUE), ("c", 1, BLUE), ("c", 2, RED), ("c", 3, BLUE), ("d", 1, RED)]
        {
            stage.attach(node, number, &[key, DEFAULT_LIMITED]).unwrap();
        }
        for (node, numbers) in [("b", &[1][..]), ("c", &[1, 2, 3]), ("d", &[1])] {
            stage.register(node, numbers);
        }
        stage.0.fabric.take_function_ports();
        stage
    }

    fn id(&self, node: &str, number: u8) -> FunctionId {
        FunctionId::new(self.0.port(node), number)
    }

    fn attach(&mut self, node: &str, number: u8, keys: &[u16]) -> Result<(), AttachFunctionError> {
        let keys = keys.iter().map(|raw| Pkey::from_wire(*raw).unwrap()).collect();
        let function = AdapterFunction { id: self.id(node, number), guid: guid(node, number), keys };
        self.0.fabric.attach_adapter(function)
    }

    fn give(&mut self, node: &str, keys: &[u16]) {
        let mut block = PkeyBlock([None; 32]);
        block.0.iter_mut().zip(keys).for_each(|(entry, raw)| *entry = Pkey::from_wire(*raw));
        let modifier = PkeyBlockSelector { port: 0, block: 0 }.to_modifier();
        self.0.set(node, Attribute::PKEY_TABLE, modifier, block.encode()).unwrap();
    }

    /// The aliases of an adapter are those of some functions.
    fn register(&mut self, node: &str, numbers: &[u8]) {
        let mut block = GuidBlock([None; 8]);
        for number in numbers {
            block.0[usize::from(*number)] = Some(guid(node, *number));
        }
        self.0.set(node, Attribute::GUID_INFO, 0, block.encode()).unwrap();
    }

    /// Sends bytes, and returns what functions received.
    fn send_bytes(&mut self, from: FunctionId, packet: &[u8]) -> BTreeMap<FunctionId, Box<[u8]>> {
        self.0.packets.clear();
        self.0.fabric.send_packet(self.0.now, from, packet);
        self.0.collect();
        self.0.packets.drain(..).collect()
    }

    fn send(&mut self, from: FunctionId, sent: &Sent) -> Vec<FunctionId> {
        self.send_bytes(from, &sent.0.to_packet()).into_keys().collect()
    }

    fn drops(&self, id: FunctionId) -> BTreeMap<DropReason, u64> {
        let (_, counters) =
            self.0.fabric.adapter_functions().find(|(function, _)| function.id == id).unwrap();
        counters.drops.clone()
    }

    fn changed_ports(&mut self) -> Vec<FunctionPort> {
        self.0.fabric.take_function_ports()
    }
}

#[test]
fn a_packet_reaches_the_function_that_has_its_queue_pair() {
    let mut stage = Stage::new();
    let (from, to) = (stage.id("b", 1), stage.id("c", 3));
    let sent = Sent::new(pair(1, 0x40), ("c", pair(3, 0x99)), BLUE);
    let received = stage.send_bytes(from, &sent.0.to_packet());
    assert_eq!(received.keys().collect::<Vec<_>>(), [&to]);
    let packet = Packet::read(&received[&to]).unwrap();
    assert_eq!(packet.slid, Some(address(lid("b"))), "whatever the machine writes there");
    assert_eq!(packet.to_datagram(), None);
    assert_eq!(packet.payload, sent.0.mad.0);
    // By the adapter itself, to another function of the same port.
    let beside = Sent::new(pair(3, 1), ("c", pair(1, 7)), BLUE);
    assert_eq!(stage.send(to, &beside), [stage.id("c", 1)]);
}

#[test]
fn what_a_machine_forges_goes_nowhere() {
    let mut stage = Stage::new();
    let from = stage.id("b", 1);
    let right = Sent::new(pair(1, 5), ("c", pair(1, 5)), BLUE).with_grh(guid("b", 1), guid("c", 1));
    assert_eq!(stage.send(from, &right), [stage.id("c", 1)], "the control");
    let attempt = |change: &dyn Fn(&mut Datagram)| {
        let mut sent = right.clone();
        change(&mut sent.0);
        sent
    };
    let key = |raw| move |sent: &mut Datagram| sent.pkey = Pkey::from_wire(raw).unwrap();
    for (what, sent, reason) in [
        (
            "the GUID of another function",
            attempt(&|sent| {
                sent.grh = right.0.grh.map(|grh| Grh { source: gid(guid("c", 3)), ..grh });
            }),
            DropReason::Spoofed,
        ),
        ("a queue pair of another function", attempt(&|sent| sent.sqp = pair(2, 5)), DropReason::Spoofed),
        ("QP0 as the source", attempt(&|sent| sent.sqp = pair(0, 0)), DropReason::Spoofed),
        ("a P_Key of another tenant", attempt(&key(RED)), DropReason::PartitionAtSender),
        ("a full P_Key of a limited member", attempt(&key(0xffff)), DropReason::PartitionAtSender),
        ("QP0", attempt(&|sent| sent.dqp = pair(0, 0)), DropReason::Unanswered),
        (
            "a function of another tenant",
            attempt(&|sent| sent.dqp = pair(2, 5)),
            DropReason::PartitionAtReceiver,
        ),
        ("a queue pair of nobody", attempt(&|sent| sent.dqp = pair(9, 5)), DropReason::NoFunction),
        ("a LID of nobody", attempt(&|sent| sent.dlid = address(40)), DropReason::NoRoute),
    ] {
        let before = stage.drops(from).get(&reason).copied().unwrap_or(0);
        assert_eq!(stage.send(from, &sent), [], "{what}");
        assert_eq!(stage.drops(from).get(&reason), Some(&(before + 1)), "{what}: {:?}", stage.drops(from));
    }
    let whole = right.0.to_packet();
    for length in 0..whole.len() {
        assert!(stage.send_bytes(from, &whole[..length]).is_empty());
    }
    assert_eq!(stage.drops(from)[&DropReason::Malformed], whole.len() as u64);
    let unknown = stage.id("d", 9);
    assert_eq!(stage.send(unknown, &right), [], "a function that is not attached");
}

#[test]
fn a_function_without_its_alias_is_cut_off() {
    let mut stage = Stage::new();
    let (from, to) = (stage.id("b", 1), stage.id("c", 1));
    let sent = Sent::new(pair(1, 5), ("c", pair(1, 5)), BLUE);
    stage.register("c", &[2]);
    assert_eq!(stage.send(from, &sent), []);
    let changed = stage.changed_ports();
    assert_eq!(changed.iter().map(|port| port.function).collect::<Vec<_>>(), [to, stage.id("c", 3)]);
    assert!(changed.iter().all(|port| port.info.state == PortState::Down));
    stage.register("c", &[1, 2]);
    assert_eq!(stage.send(from, &sent), [to]);
    assert_eq!(stage.changed_ports()[0].info.state, PortState::Active);
    stage.register("b", &[]);
    assert_eq!(stage.send(from, &sent), []);
}

#[test]
fn a_group_reaches_the_functions_that_hold_its_key() {
    let mut stage = Stage::new();
    let from = stage.id("b", 1);
    let mut sent = Sent::new(pair(1, 5), ("b", QueuePair::from_wire(0xff_ffff).unwrap()), BLUE);
    sent.0.dlid = address(GROUP);
    assert_eq!(stage.send(from, &sent), [stage.id("c", 1), stage.id("c", 3)]);
    // Those of the own port, too, but not the sender.
    assert_eq!(
        stage.send(stage.id("c", 3), &Sent(Datagram { sqp: pair(3, 5), ..sent.0.clone() })),
        [from, stage.id("c", 1)]
    );
    // A limited member is not heard by limited members.
    stage.attach("c", 1, &[BLUE_LIMITED]).unwrap();
    stage.attach("b", 1, &[BLUE_LIMITED]).unwrap();
    stage.give("b", &[DEFAULT_LIMITED, BLUE_LIMITED]);
    stage.give("c", &[DEFAULT_LIMITED, BLUE, BLUE_LIMITED]);
    sent.0.pkey = Pkey::from_wire(BLUE_LIMITED).unwrap();
    assert_eq!(stage.send(from, &sent), [stage.id("c", 3)]);
}

#[test]
fn requests_to_subnet_administration_name_their_function() {
    let mut stage = Stage::new();
    let from = stage.id("b", 1);
    let mut request = World::message(7, lid("a"), DEFAULT_LIMITED);
    request.mad.set_transaction(ib_wire::TransactionId(0x7_0000_0001));
    assert!(stage.send_bytes(from, &request.to_packet()).is_empty());
    let (port, arrived) = stage.0.delivered.pop().unwrap();
    assert_eq!(port, stage.0.port("a"));
    let grh = arrived.grh.unwrap();
    assert_eq!((arrived.slid, grh.source), (address(lid("b")), gid(guid("b", 1))));
    // Programs take the key at index 0. The adapter asks in the default partition, which the function is in.
    stage.send_bytes(from, &World::message(7, lid("a"), BLUE).to_packet());
    let (_, in_default) = stage.0.delivered.pop().unwrap();
    assert_eq!(in_default.pkey.to_wire(), DEFAULT_LIMITED);
    // The answer, as software at `a` sends it.
    let mut answer = arrived.clone();
    (answer.slid, answer.dlid) = (arrived.dlid, arrived.slid);
    answer.grh = Some(Grh { source: grh.destination, destination: grh.source, ..grh });
    answer.pkey = Pkey::from_wire(0xffff).unwrap();
    answer.mad.set_method(Method::GET_RESP);
    let to_other = Datagram {
        grh: answer.grh.map(|grh| Grh { destination: gid(guid("c", 1)), ..grh }),
        ..answer.clone()
    };
    stage.0.packets.clear();
    let software = stage.0.port("a");
    stage.0.fabric.handle_datagram(stage.0.now, software, answer.clone());
    stage.0.collect();
    let (function, packet) = stage.0.packets.pop().unwrap();
    let received = Packet::read(&packet).unwrap().to_datagram().unwrap();
    assert_eq!((function, received.grh, &received.mad), (from, None, &answer.mad));
    // A machine that claims to be another one is not heard; nobody at `b` has the other alias.
    let mut forged = request.clone();
    forged.grh = Some(Grh { source: gid(guid("c", 1)), ..grh });
    stage.0.delivered.clear();
    stage.send_bytes(from, &forged.to_packet());
    assert_eq!((stage.0.delivered.len(), stage.drops(from)[&DropReason::Spoofed]), (0, 1));
    stage.0.fabric.handle_datagram(stage.0.now, software, to_other);
    stage.0.collect();
    assert_eq!(stage.0.packets.len(), 0);
}

#[test]
fn drivers_are_told_what_changes() {
    let mut stage = Stage::new();
    let id = stage.id("b", 1);
    assert_eq!(stage.changed_ports(), []);
    let port = stage.0.fabric.function_port(id).unwrap();
    assert_eq!((port.first_queue_pair, port.queue_pairs), (1 << 19, 1 << 19));
    assert_eq!(port.keys.iter().map(|key| key.to_wire()).collect::<Vec<_>>(), [BLUE, DEFAULT_LIMITED]);
    stage.give("b", &[DEFAULT_LIMITED]);
    let changed = stage.changed_ports();
    assert_eq!(changed.len(), 1);
    assert_eq!(changed[0].keys, [Pkey::from_wire(DEFAULT_LIMITED).unwrap()]);
    stage.0.change_port_info("b", 0, |info| info.client_reregister = true);
    assert_eq!(stage.changed_ports()[0].registrations, changed[0].registrations + 1);
    let (port, now) = (stage.0.port("b"), stage.0.now);
    stage.0.fabric.unplug(now, port);
    assert_eq!(stage.changed_ports()[0].info.state, PortState::Down);
}

#[test]
fn functions_that_cannot_be_are_refused() {
    let mut stage = Stage::new();
    assert!(matches!(stage.attach("left", 1, &[BLUE]), Err(AttachFunctionError::Switch)));
    for number in [0, 32] {
        assert_eq!(stage.attach("b", number, &[BLUE]), Err(AttachFunctionError::BadNumber { number }));
    }
    let taken = AdapterFunction { id: stage.id("d", 2), guid: guid("b", 1), keys: [].into() };
    let refused = stage.0.fabric.attach_adapter(taken);
    assert_eq!(refused, Err(AttachFunctionError::GuidTaken { guid: guid("b", 1) }));
    let mac = fabric_model::MacAddress::of_function(ib_wire::Lid::from_wire(4).unwrap(), 1);
    let keys = [FunctionKey { pkey: Pkey::from_wire(BLUE).unwrap(), group: None }].into();
    let frames = VirtualFunction { id: stage.id("b", 1), mac, keys, sl: ib_wire::ServiceLevel::default() };
    assert_eq!(stage.0.fabric.attach(frames.clone()), Err(AttachFunctionError::OtherKind { number: 1 }));
    assert!(stage.0.fabric.detach_adapter(frames.id));
    stage.0.fabric.attach(frames).unwrap();
    assert_eq!(stage.attach("b", 1, &[BLUE]), Err(AttachFunctionError::OtherKind { number: 1 }));
}
