//! Topology changes at run time, and the source address of adapters.

use std::time::Duration;

use fabric_model::{LinkRate, ibnetdiscover};
use fabric_sim::{BareDatagram, DeviceProfile, RecableError};
use ib_wire::{
    Attribute, Datagram, Lid, LidAddress, Mad, ManagementClass, Method, Pkey, PortInfo, PortState, QueuePair,
};

use crate::world::{NET, World};

/// The test fabric without `d`, and with `e` on the same cable.
fn changed() -> fabric_model::Topology {
    let text = NET.replace("Hca 1 \"d\"", "caguid=0xe00\nHca 1 \"e\"").replace("\"d\"", "\"e\"");
    ibnetdiscover::parse(&text).unwrap()
}

#[test]
fn nodes_that_remain_keep_their_state_and_ids() {
    let mut world = World::configured();
    let before = (world.port("c"), world.port_info("c", 1).lid, world.port_info("right", 0).lid);
    world.now += Duration::from_secs(1);
    let (gone, now) = (world.port("d"), world.now);
    world.fabric.recable(now, &changed()).unwrap();
    world.collect();
    assert_eq!(world.traps(), [128], "the switch reports that a link went down and another came up");
    assert_eq!((world.port("c"), world.port_info("c", 1).lid, world.port_info("right", 0).lid), before);
    assert_eq!(world.port_info("c", 1).state, PortState::Active);
    let new = world.port("e");
    assert_eq!(world.fabric.state_of(new), PortState::Initialize);
    assert_eq!(world.fabric.lid(new), None, "it has factory defaults");
    assert_eq!(world.fabric.port_forwarding(gone).peer, None, "a missing node has no cables");
    assert_eq!(world.fabric.state_of(gone), PortState::Down);

    // It returns on its cable with its former state.
    let back = ibnetdiscover::parse(NET).unwrap();
    world.fabric.recable(world.now + Duration::from_secs(1), &back).unwrap();
    assert_eq!((world.port("d"), world.fabric.lid(gone)), (gone, Lid::from_wire(6)));
    assert_eq!(world.fabric.state_of(gone), PortState::Initialize);
}

#[test]
fn a_cable_of_another_rate_trains_at_its_rate() {
    let at_rate = |rate: &str| {
        let mut profile = DeviceProfile::default();
        profile.links.rates = vec![rate.parse().unwrap()];
        profile.furnish(&ibnetdiscover::parse(NET).unwrap()).unwrap()
    };
    let mut world = World::new();
    for rate in ["4xQDR", "4xHDR", "1xSDR", "4xFDR"] {
        let before = world.now;
        world.now += Duration::from_secs(1);
        world.fabric.recable(world.now, &at_rate(rate)).unwrap();
        let data = world.get("c", Attribute::PORT_INFO, 1 | PortInfo::EXTENDED_SPEEDS_KNOWN).unwrap();
        let info = PortInfo::decode(&data).unwrap();
        assert_eq!(LinkRate::active(&info, false), Some(rate.parse().unwrap()), "after {before:?}");
        assert_eq!(info.state, PortState::Initialize);
    }
    // Control: the same cables stay as they are.
    world.change_port_info("c", 1, |info| info.state = PortState::Armed);
    world.fabric.recable(world.now, &at_rate("4xFDR")).unwrap();
    assert_eq!(world.port_info("c", 1).state, PortState::Armed);
}

#[test]
fn a_node_cannot_change_its_kind_or_port_count() {
    let mut world = World::configured();
    let text = NET.replace("Switch 6 \"right\"", "Switch 8 \"right\"");
    let other = ibnetdiscover::parse(&text).unwrap();
    let guid = other[other.by_id("right").unwrap()].guid;
    // GUIDs are derived from the position in the file; the same node has the same one.
    assert_eq!(world.fabric.device_by_guid(guid), world.fabric.find_device("right"));
    assert_eq!(world.fabric.recable(world.now, &other), Err(RecableError::OtherDevice(guid)));
    assert_eq!(world.port_info("c", 1).state, PortState::Active, "and nothing has changed");
}

#[test]
fn an_adapter_sends_only_with_its_own_lid_and_pkeys() {
    let world = World::configured();
    let (a, own, other) = (world.port("a"), Lid::from_wire(3).unwrap(), Lid::from_wire(4).unwrap());
    let mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET, Attribute::CLASS_PORT_INFO, 0);
    let qp = QueuePair::GENERAL_MANAGEMENT;
    let bare = |slid: Option<Lid>, dlid: Option<Lid>| BareDatagram {
        slid: slid.map(LidAddress::from),
        dlid: dlid.map(LidAddress::from),
        sqp: qp,
        dqp: qp,
        mad: mad.clone(),
    };
    let sent = world.fabric.complete_datagram(a, bare(Some(other), Some(other))).unwrap();
    assert_eq!((sent.slid, sent.pkey), (own.into(), Pkey::DEFAULT_FULL));
    assert_eq!(world.fabric.complete_datagram(a, bare(None, None)), None, "without a destination");
    let foreign = Pkey::from_wire(0x8001).unwrap();
    let whole = |pkey| Datagram::general_management(other.into(), other.into(), pkey, mad.clone());
    assert_eq!(world.fabric.with_own_source(a, whole(Pkey::DEFAULT_FULL)).unwrap().slid, own.into());
    assert_eq!(world.fabric.with_own_source(a, whole(foreign)), None, "in a partition it is not in");
}

#[test]
fn a_manager_that_sent_a_trap_receives_the_repress() {
    let mut world = World::configured();
    let (master, other) = (world.port("a"), world.port("b"));
    let repress = |world: &mut World| {
        let mut mad = Mad::new(ManagementClass::SUBNET_LID, Method::TRAP_REPRESS, Attribute::NOTICE, 0);
        mad.set_transaction(ib_wire::TransactionId(0x77));
        let [from, to] = [3, 4].map(|lid| LidAddress::from(Lid::from_wire(lid).unwrap()));
        world.delivered.clear();
        world.fabric.handle_datagram(world.now, master, Datagram::subnet_management(from, to, mad));
        world.collect();
        world
            .delivered
            .iter()
            .any(|(port, datagram)| *port == other && datagram.mad.method() == Method::TRAP_REPRESS)
    };
    assert!(!repress(&mut world), "no software waits there");
    world.fabric.set_is_sm(world.now, other, true);
    assert!(repress(&mut world));
}
