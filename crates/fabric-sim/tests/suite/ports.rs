//! The port state machine, and what a Set may change.

use fabric_sim::Capacities;
use ib_wire::perf::{ALL_PORTS, CounterSelect, PortCounters, PortCountersExtended};
use ib_wire::{
    Attribute, DataLanes, Datagram, Guid, GuidBlock, Lid, LinkWidth, Lmc, Mad, ManagementClass, Method, Mtu,
    PhysicalState, Pkey, PortNum, PortState, SlToVl, SlToVlSelector, Status, VirtualLane, VlArbBlock,
    VlArbEntry, VlArbPart,
};

use crate::world::World;

#[test]
fn states_go_up_one_step_at_a_time() {
    let mut world = World::new();
    assert_eq!(world.port_info("c", 1).state, PortState::Initialize);
    assert_eq!(
        world.try_change_port_info("c", 1, |info| info.state = PortState::Active),
        Err(Status::INVALID_FIELD)
    );
    assert_eq!(world.change_port_info("c", 1, |info| info.state = PortState::Armed).state, PortState::Armed);
    assert_eq!(world.change_port_info("c", 1, |info| info.state = PortState::Armed).state, PortState::Armed);
    assert_eq!(
        world.change_port_info("c", 1, |info| info.state = PortState::Active).state,
        PortState::Active
    );
    assert_eq!(
        world.try_change_port_info("c", 1, |info| info.state = PortState::Armed),
        Err(Status::INVALID_FIELD)
    );
    assert_eq!(
        world.try_change_port_info("c", 1, |info| info.state = PortState::Unknown(9)),
        Err(Status::INVALID_FIELD)
    );
    assert_eq!(world.port_info("c", 1).state, PortState::Active, "a refused step changes nothing");
}

#[test]
fn a_port_without_a_peer_stays_down() {
    let mut world = World::new();
    let info = world.port_info("left", 3);
    assert_eq!((info.state, info.physical_state), (PortState::Down, PhysicalState::Polling));
    assert_eq!(
        world.try_change_port_info("left", 3, |info| info.state = PortState::Armed),
        Err(Status::INVALID_FIELD)
    );
}

#[test]
fn setting_a_port_down_retrains_both_ends() {
    let mut world = World::configured();
    world.change_port_info("right", 1, |info| info.state = PortState::Down);
    assert_eq!(world.port_info("right", 1).state, PortState::Initialize);
    assert_eq!(world.port_info("c", 1).state, PortState::Initialize);
}

#[test]
fn a_disabled_port_comes_back_when_it_polls() {
    let mut world = World::configured();
    let set = |world: &mut World, physical| {
        world.change_port_info("right", 1, |info| {
            info.state = PortState::Down;
            info.physical_state = physical;
        })
    };
    let info = set(&mut world, PhysicalState::Disabled);
    assert_eq!((info.state, info.physical_state), (PortState::Down, PhysicalState::Disabled));
    assert!(world.try_get("c", Attribute::NODE_INFO, 0, None).is_none());
    let info = set(&mut world, PhysicalState::Polling);
    assert_eq!((info.state, info.physical_state), (PortState::Initialize, PhysicalState::LinkUp));
    assert!(world.try_get("c", Attribute::NODE_INFO, 0, None).is_some());
}

#[test]
fn a_set_is_applied_whole_or_not_at_all() {
    let mut world = World::configured();
    let before = world.port_info("c", 1);
    let wrong: [fn(&mut ib_wire::PortInfo); 6] = [
        |info| info.operational_vls = DataLanes::Fifteen,
        |info| info.operational_vls = DataLanes::Unknown(9),
        |info| info.neighbor_mtu = Mtu::B4096,
        |info| info.link_width_enabled = LinkWidth(0x80),
        |info| (info.lid, info.lmc) = (Lid::from_wire(9), Lmc::from_wire(2).unwrap()),
        |info| info.state = PortState::Armed,
    ];
    for change in wrong {
        let result = world.try_change_port_info("c", 1, |info| {
            info.master_sm_lid = Lid::from_wire(77);
            change(info);
        });
        assert_eq!(result, Err(Status::INVALID_FIELD));
        assert_eq!(world.port_info("c", 1), before);
    }
    let aligned =
        |info: &mut ib_wire::PortInfo| (info.lid, info.lmc) = (Lid::from_wire(8), Lmc::from_wire(2).unwrap());
    assert!(world.try_change_port_info("c", 1, aligned).is_ok(), "control: an aligned LID is accepted");
}

#[test]
fn a_port_rejects_a_multicast_lid() {
    let mut world = World::configured();
    let mut data = world.port_info("c", 1).encode();
    data[32] &= 0xf0;
    data[33] &= 0x0f;
    data[16..18].copy_from_slice(&0xc001u16.to_be_bytes());
    assert_eq!(world.set("c", Attribute::PORT_INFO, 1, data), Err(Status::INVALID_FIELD));
}

#[test]
fn operational_lanes_follow_the_configured_capability() {
    for (count, lanes) in [(1, DataLanes::One), (4, DataLanes::Four), (15, DataLanes::Fifteen)] {
        let capacities = Capacities { lanes: DataLanes::from_count(count).unwrap(), ..Default::default() };
        let mut world = World::with(capacities, 1);
        let info = world.port_info("c", 1);
        assert_eq!((info.vl_cap, info.operational_vls), (lanes, lanes));
        assert!(world.try_change_port_info("c", 1, |info| info.operational_vls = DataLanes::One).is_ok());
        let more = world.try_change_port_info("c", 1, |info| info.operational_vls = DataLanes::Fifteen);
        assert_eq!(more.is_ok(), count == 15);
    }
}

#[test]
fn arbitration_tables_end_at_their_capacity() {
    for entries in [8u8, 16, 32, 40, 64] {
        let mut world = World::with(Capacities { arbitration_entries: entries, ..Default::default() }, 1);
        let port = PortNum::new(1).unwrap();
        let block = VlArbBlock([VlArbEntry { lane: VirtualLane::from_wire(2).unwrap(), weight: 7 }; 32]);
        for (name, part) in [("left", VlArbPart::LowFirst), ("c", VlArbPart::HighFirst)] {
            let stored =
                world.set(name, Attribute::VL_ARBITRATION, part.to_modifier(port), block.encode()).unwrap();
            let written = VlArbBlock::decode(&stored).0.iter().filter(|entry| entry.weight == 7).count();
            assert_eq!(written, usize::from(entries).min(32));
        }
        let second = world.set(
            "left",
            Attribute::VL_ARBITRATION,
            VlArbPart::LowSecond.to_modifier(port),
            block.encode(),
        );
        assert_eq!(second.is_ok(), entries > 32, "{entries} entries");
        if let Ok(stored) = second {
            let written = VlArbBlock::decode(&stored).0.iter().filter(|entry| entry.weight == 7).count();
            assert_eq!(written, usize::from(entries) - 32);
        }
        assert_eq!(world.get("left", Attribute::VL_ARBITRATION, 0x5_0001), Err(Status::INVALID_FIELD));
        assert_eq!(world.get("left", Attribute::VL_ARBITRATION, 0x1_0007), Err(Status::INVALID_FIELD));
    }
}

#[test]
fn sl_to_vl_maps_are_kept_per_hop_and_in_optimised_forms() {
    let one = SlToVl([VirtualLane::from_wire(1).unwrap(); 16]).encode();
    let mut data = [0; 64];
    data[..8].copy_from_slice(&one);
    let turn = |input, output| SlToVlSelector::Hop { input, output }.to_modifier();
    let read = |world: &mut World, input, output| {
        world.get("left", Attribute::SL_TO_VL, turn(input, output)).unwrap()[..8].to_vec()
    };

    let mut world = World::new();
    let before = read(&mut world, 2, 1);
    world.set("left", Attribute::SL_TO_VL, turn(1, 2), data).unwrap();
    assert_eq!(read(&mut world, 1, 2), one);
    assert_eq!(read(&mut world, 2, 1), before, "the other direction is another hop");
    let optimised = SlToVlSelector::AllInputs { output: 3 }.to_modifier();
    assert_eq!(
        world.set("left", Attribute::SL_TO_VL, optimised, data),
        Err(Status::INVALID_FIELD),
        "not offered"
    );

    let mut world = World::with(Capacities { optimised_sl_to_vl: true, ..Default::default() }, 1);
    assert_eq!(world.switch_info("left").optimised_sl_to_vl, 1);
    world.set("left", Attribute::SL_TO_VL, optimised, data).unwrap();
    assert!((0..=6).all(|input| read(&mut world, input, 3) == one));
    assert_ne!(read(&mut world, 1, 2), one);
    world.set("left", Attribute::SL_TO_VL, SlToVlSelector::AllHops.to_modifier(), data).unwrap();
    assert_eq!(read(&mut world, 1, 2), one);
    assert_eq!(world.get("left", Attribute::SL_TO_VL, turn(7, 1)), Err(Status::INVALID_FIELD));
}

#[test]
fn alias_guids_can_be_set_but_not_the_ports_own() {
    let mut world = World::new();
    let own = GuidBlock::decode(&world.get("c", Attribute::GUID_INFO, 0).unwrap()).0[0];
    let alias = Guid::from_wire(0xa11a5);
    let stored = world.set("c", Attribute::GUID_INFO, 0, GuidBlock([alias; 8]).encode()).unwrap();
    let block = GuidBlock::decode(&stored);
    assert_eq!((block.0[0], block.0[1], block.0[7]), (own, alias, alias));
    assert_eq!(world.get("c", Attribute::GUID_INFO, 0).unwrap(), stored, "it reads back");
    assert!(
        world.set("c", Attribute::GUID_INFO, 3, GuidBlock([alias; 8]).encode()).is_ok(),
        "32 GUIDs are 4 blocks"
    );
    assert_eq!(world.set("c", Attribute::GUID_INFO, 4, [0; 64]), Err(Status::INVALID_FIELD));
}

#[test]
fn tables_refuse_blocks_beyond_their_capacity() {
    let capacities = Capacities { linear_forwarding: 100, multicast_forwarding: 40, ..Default::default() };
    let mut world = World::with(capacities, 1);
    assert!(world.set("left", Attribute::LINEAR_FORWARDING, 1, [1; 64]).is_ok());
    assert_eq!(world.set("left", Attribute::LINEAR_FORWARDING, 2, [1; 64]), Err(Status::INVALID_FIELD));
    let partial = world.get("left", Attribute::LINEAR_FORWARDING, 1).unwrap();
    assert_eq!((partial[35], partial[36]), (1, 0xff), "entry 99 is the last");
    let mut info = world.switch_info("left");
    info.linear_fdb_top = 100;
    assert_eq!(world.set("left", Attribute::SWITCH_INFO, 0, info.encode()), Err(Status::INVALID_FIELD));
    info.linear_fdb_top = 99;
    assert!(world.set("left", Attribute::SWITCH_INFO, 0, info.encode()).is_ok());
    assert!(world.set("left", Attribute::MULTICAST_FORWARDING, 1, [0xff; 64]).is_ok());
    assert_eq!(world.set("left", Attribute::MULTICAST_FORWARDING, 2, [0xff; 64]), Err(Status::INVALID_FIELD));
    assert_eq!(
        world.set("left", Attribute::MULTICAST_FORWARDING, 1 << 28, [0xff; 64]),
        Err(Status::INVALID_FIELD)
    );
}

fn counters(
    world: &mut World,
    method: Method,
    to: u16,
    port: u8,
    select: CounterSelect,
) -> Option<(Status, PortCounters)> {
    let mut mad = Mad::new(ManagementClass::PERFORMANCE, method, Attribute::PORT_COUNTERS, 0);
    mad.perf_data_mut()[1] = port;
    mad.perf_data_mut()[2..4].copy_from_slice(&select.0.to_be_bytes());
    let address = |raw| Lid::from_wire(raw).unwrap().into();
    let answer =
        world.send("a", Datagram::general_management(address(3), address(to), Pkey::DEFAULT_FULL, mad))?.mad;
    Some((answer.status(), PortCounters::decode(answer.perf_data()).unwrap()))
}

#[test]
fn counters_count_packets_and_are_reset_one_by_one() {
    let mut world = World::configured();
    let port = world.port_number("right", 1);
    let before = world.fabric.port_view(port).counters;
    world.get("c", Attribute::NODE_INFO, 0).unwrap();
    let after = world.fabric.port_view(port).counters;
    assert_eq!(after.transmit_packets - before.transmit_packets, 1);
    assert_eq!(after.receive_data - before.receive_data, 72, "288 bytes are 72 words");

    let (status, read) = counters(&mut world, Method::GET, 2, 1, CounterSelect::ALL).unwrap();
    assert_eq!((status, u64::from(read.transmit_packets)), (Status::OK, after.transmit_packets));
    let (_, reset) = counters(&mut world, Method::SET, 2, 1, CounterSelect::TRANSMIT_PACKETS).unwrap();
    assert_eq!(reset.transmit_packets, 0);
    assert!(reset.receive_packets > 0, "what was not selected stays");
    let (status, all) = counters(&mut world, Method::GET, 2, ALL_PORTS, CounterSelect::ALL).unwrap();
    assert!(status == Status::OK && all.receive_packets > reset.receive_packets);
    let (status, _) = counters(&mut world, Method::GET, 2, 7, CounterSelect::ALL).unwrap();
    assert_eq!(status, Status::INVALID_FIELD);
}

#[test]
fn wide_counters_agree_with_narrow_ones() {
    let mut world = World::configured();
    let mut mad = Mad::new(ManagementClass::PERFORMANCE, Method::GET, Attribute::PORT_COUNTERS_EXT, 0);
    mad.perf_data_mut()[1] = 5;
    let address = |raw| Lid::from_wire(raw).unwrap().into();
    let (_, narrow) = counters(&mut world, Method::GET, 1, 5, CounterSelect::ALL).unwrap();
    let answer = world
        .send("a", Datagram::general_management(address(3), address(1), Pkey::DEFAULT_FULL, mad))
        .unwrap();
    let wide = PortCountersExtended::decode(answer.mad.perf_data()).unwrap();
    assert_eq!(wide.transmit_packets, u64::from(narrow.transmit_packets));
    assert_eq!(wide.transmit_packets, wide.transmit_unicast_packets + wide.transmit_multicast_packets);
}
