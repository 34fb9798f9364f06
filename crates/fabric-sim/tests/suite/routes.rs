//! LID-routed, directed and mixed routes; and how packets are dropped.

use fabric_sim::{DropReason, FabricOutput};
use ib_wire::{
    Attribute, Datagram, Lid, LidAddress, Mad, ManagementClass, Method, MulticastBlock, MulticastLid,
    NodeInfo, Pkey, PortMask, PortState, SlToVl, Status, VirtualLane,
};

use crate::world::World;

fn unicast(raw: u16) -> LidAddress {
    Lid::from_wire(raw).unwrap().into()
}

/// Get(NodeInfo) by LID, from `a`.
fn get_by_lid(world: &mut World, to: u16) -> Option<Mad> {
    let mad = Mad::new(ManagementClass::SUBNET_LID, Method::GET, Attribute::NODE_INFO, 0);
    world.send("a", Datagram::subnet_management(unicast(3), unicast(to), mad)).map(|d| d.mad)
}

fn guid_of(mad: &Mad) -> u64 {
    NodeInfo::decode(mad.smp_data()).unwrap().node_guid.to_wire()
}

#[test]
fn a_directed_route_records_its_return_path() {
    let mut world = World::new();
    let mad = world.try_get("c", Attribute::NODE_INFO, 0, None).unwrap();
    assert!(mad.is_returning());
    assert_eq!((1..=3).map(|hop| mad.return_path(hop).unwrap()).collect::<Vec<_>>(), [1, 5, 1]);
    assert_eq!(mad.hop_pointer(), 0, "it is back where it started");
    let info = NodeInfo::decode(mad.smp_data()).unwrap();
    assert_eq!(info.local_port.to_wire(), 1);
    assert_eq!(info.port_guid.to_wire(), info.node_guid.to_wire() + 1);
}

#[test]
fn directed_routes_pass_switches_only() {
    let mut world = World::new();
    let route = ib_wire::DirectedRoute::new([1, 2, 1, 5].map(|p| ib_wire::PortNum::new(p).unwrap())).unwrap();
    let mad = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &route);
    let datagram = Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad);
    assert!(world.send("a", datagram).is_none(), "adapter b is no switch");
    assert_eq!(world.fabric.statistics().drops[&DropReason::BadDirectedRoute], 1);
}

#[test]
fn a_directed_route_to_a_missing_port_is_dropped() {
    let mut world = World::new();
    for hop in [0, 3, 7, 200, 255] {
        let mut request = World::request(Method::GET, "left", Attribute::NODE_INFO, 0, None, [0; 64]);
        request.mad.0[7] = 2;
        request.mad.0[130] = hop;
        assert!(world.send("a", request).is_none(), "exit {hop}");
    }
    for count in [64, 255] {
        let mut request = World::request(Method::GET, "left", Attribute::NODE_INFO, 0, None, [0; 64]);
        request.mad.0[7] = count;
        assert!(world.send("a", request).is_none(), "{count} hops");
    }
}

#[test]
fn lids_are_reached_through_the_forwarding_tables() {
    let mut world = World::configured();
    let guids: Vec<u64> =
        (1..=6).map(|lid| guid_of(&get_by_lid(&mut world, lid).expect("every LID is reached"))).collect();
    let direct: Vec<u64> = ["left", "right", "a", "b", "c", "d"]
        .map(|name| guid_of(&world.try_get(name, Attribute::NODE_INFO, 0, None).unwrap()))
        .to_vec();
    assert_eq!(guids, direct);
}

#[test]
fn a_missing_or_wrong_entry_loses_packets() {
    let mut world = World::configured();
    let lost = |world: &World, reason| world.fabric.statistics().drops.get(&reason).copied().unwrap_or(0);
    let mut table = world.get("left", Attribute::LINEAR_FORWARDING, 0).unwrap();
    let right = table[5];

    table[5] = 0xff;
    world.set("left", Attribute::LINEAR_FORWARDING, 0, table).unwrap();
    assert!(get_by_lid(&mut world, 5).is_none());
    assert_eq!(lost(&world, DropReason::NoRoute), 1);
    assert_eq!(world.fabric.port_view(world.port_number("left", 1)).counters.relay_errors, 1);

    table[5] = 2;
    world.set("left", Attribute::LINEAR_FORWARDING, 0, table).unwrap();
    assert!(get_by_lid(&mut world, 5).is_none(), "it reaches b, which is not LID 5");
    assert_eq!(lost(&world, DropReason::WrongPort), 1);

    table[5] = right;
    world.set("left", Attribute::LINEAR_FORWARDING, 0, table).unwrap();
    assert!(get_by_lid(&mut world, 5).is_some(), "restored");
}

#[test]
fn entries_above_the_top_of_the_table_are_not_used() {
    let mut world = World::configured();
    let mut info = world.switch_info("left");
    info.linear_fdb_top = 4;
    world.set("left", Attribute::SWITCH_INFO, 0, info.encode()).unwrap();
    assert!(get_by_lid(&mut world, 5).is_none());
    assert!(get_by_lid(&mut world, 4).is_some());
}

#[test]
fn a_forwarding_loop_ends_at_the_hop_limit() {
    let mut world = World::configured();
    let mut table = world.get("right", Attribute::LINEAR_FORWARDING, 0).unwrap();
    table[5] = 5;
    world.set("right", Attribute::LINEAR_FORWARDING, 0, table).unwrap();
    assert!(get_by_lid(&mut world, 5).is_none());
    assert_eq!(world.fabric.statistics().drops[&DropReason::HopLimit], 1);
}

#[test]
fn mixed_routes_start_and_end_by_lid() {
    let mut world = World::configured();
    let ask =
        |world: &mut World, dlid: LidAddress, source: LidAddress, destination: LidAddress, hops: &[u8]| {
            let route =
                ib_wire::DirectedRoute::new(hops.iter().map(|p| ib_wire::PortNum::new(*p).unwrap())).unwrap();
            let mut mad = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &route);
            mad.set_directed_ends(source, destination);
            let slid = if dlid == LidAddress::Permissive { dlid } else { unicast(3) };
            world.send("a", Datagram::subnet_management(slid, dlid, mad)).map(|d| guid_of(&d.mad))
        };
    let permissive = LidAddress::Permissive;
    let c = guid_of(&world.try_get("c", Attribute::NODE_INFO, 0, None).unwrap());
    assert_eq!(
        ask(&mut world, permissive, permissive, permissive, &[1, 5, 1]),
        Some(c),
        "directed all the way"
    );
    assert_eq!(
        ask(&mut world, unicast(2), unicast(3), permissive, &[1]),
        Some(c),
        "by LID to right, then port 1"
    );
    assert_eq!(
        ask(&mut world, permissive, permissive, unicast(5), &[1]),
        Some(c),
        "directed to left, then by LID"
    );
    assert_eq!(
        ask(&mut world, unicast(1), unicast(3), unicast(5), &[5]),
        Some(c),
        "by LID, directed, by LID"
    );
    assert_eq!(
        ask(&mut world, unicast(2), permissive, permissive, &[1, 5, 1]),
        Some(c),
        "a permissive start ignores the LID"
    );
    assert_eq!(ask(&mut world, permissive, unicast(3), permissive, &[1]), None, "by LID to nowhere");
}

#[test]
fn a_link_that_is_down_loses_packets_until_it_is_up_again() {
    let mut world = World::configured();
    let port = world.port_number("right", 1);
    assert!(world.fabric.unplug(world.now, port));
    assert!(get_by_lid(&mut world, 5).is_none());
    assert!(world.try_get("c", Attribute::NODE_INFO, 0, None).is_none());
    world.collect();
    assert_eq!(world.traps(), [128], "the switch reports it");
    assert!(world.switch_info("right").port_state_change);

    assert!(world.fabric.plug(world.now, port));
    assert!(
        world.try_get("c", Attribute::NODE_INFO, 0, None).is_some(),
        "management passes a link in Initialize"
    );
    assert!(!world.passes("b", "c", World::message(4, 5, 0xffff)), "data does not");
    for state in [PortState::Armed, PortState::Active] {
        world.change_port_info("c", 1, |info| info.state = state);
        world.change_port_info("right", 1, |info| info.state = state);
    }
    assert!(world.passes("b", "c", World::message(4, 5, 0xffff)), "an active link carries both");
}

#[test]
fn data_needs_a_lane_on_every_hop() {
    let mut world = World::configured();
    let message = |sl| {
        let mut datagram = World::message(4, 5, 0xffff);
        datagram.sl = ib_wire::ServiceLevel::from_wire(sl).unwrap();
        datagram
    };
    assert!(world.passes("b", "c", message(3)));
    let mut mapping = SlToVl([VirtualLane::default(); 16]);
    mapping.0[3] = VirtualLane::MANAGEMENT;
    let mut data = [0; 64];
    data[..8].copy_from_slice(&mapping.encode());
    // The hop from b's port 2 to the cable at port 5.
    world.set("left", Attribute::SL_TO_VL, 0x0205, data).unwrap();
    assert!(!world.passes("b", "c", message(3)), "lane 15 discards");
    assert!(world.passes("b", "c", message(2)), "another service level passes");
    assert!(world.passes("a", "c", World::message(3, 5, 0xffff)), "another hop is not affected");
    let live = world.try_change_port_info("left", 5, |info| info.operational_vls = ib_wire::DataLanes::Two);
    assert_eq!(live, Err(ib_wire::Status::INVALID_FIELD), "not while the link is up");
    world.resize_link(|info| info.operational_vls = ib_wire::DataLanes::Two);
    let mut mapping = SlToVl([VirtualLane::default(); 16]);
    mapping.0[4] = VirtualLane::from_wire(2).unwrap();
    data[..8].copy_from_slice(&mapping.encode());
    world.set("left", Attribute::SL_TO_VL, 0x0205, data).unwrap();
    assert!(!world.passes("b", "c", message(4)), "lane 2 does not exist on a port with two");
    assert!(world.passes("b", "c", message(5)));
}

#[test]
fn multicast_follows_its_tables_to_members_of_the_partition() {
    let mut world = World::configured();
    let group = MulticastLid::from_wire(0xc001).unwrap();
    let join = |world: &mut World, switch: &str, ports: &[u8]| {
        let mut block = MulticastBlock([PortMask(0); 32]);
        block.0[group.table_index()] = PortMask(ports.iter().fold(0, |mask, port| mask | 1 << port));
        world.set(switch, Attribute::MULTICAST_FORWARDING, 0, block.encode()).unwrap();
    };
    join(&mut world, "left", &[1, 2, 5]);
    join(&mut world, "right", &[1, 2, 5]);
    let mut pkeys = ib_wire::PkeyBlock([None; 32]);
    pkeys.0[0] = Pkey::from_wire(0x8101);
    world.set("d", Attribute::PKEY_TABLE, 0, pkeys.encode()).unwrap();
    world.delivered.clear();
    let mut datagram = World::message(4, 5, 0xffff);
    datagram.dlid = LidAddress::Multicast(group);
    let from = world.port("b");
    world.fabric.handle_datagram(world.now, from, datagram);
    world.collect();
    let mut reached: Vec<_> = world
        .delivered
        .iter()
        .filter(|(_, d)| d.mad.method() != Method::TRAP)
        .map(|(port, _)| *port)
        .collect();
    reached.sort();
    let mut expected = vec![world.port("a"), world.port("c")];
    expected.sort();
    assert_eq!(reached, expected, "not back to b, not to d of another partition");
}

#[test]
fn a_datagram_without_response_is_reported_as_lost() {
    let mut world = World::configured();
    let mad = Mad::new(ManagementClass::SUBNET_LID, Method::GET, Attribute::SM_INFO, 0);
    let from = world.port("b");
    let datagram = Datagram::subnet_management(unicast(4), unicast(5), mad);
    world.fabric.handle_datagram(world.now, from, datagram);
    let Some(FabricOutput::Lost { port, reason, datagram }) = world.fabric.poll_output() else {
        panic!("not reported")
    };
    assert_eq!((port, reason, datagram.mad.method()), (from, DropReason::Unanswered, Method::GET));
}

#[test]
fn sm_info_reaches_the_software_behind_the_port() {
    let mut world = World::configured();
    let mad = Mad::new(ManagementClass::SUBNET_LID, Method::GET, Attribute::SM_INFO, 0);
    world.send("b", Datagram::subnet_management(unicast(4), unicast(3), mad));
    let manager = world.port("a");
    let (port, request) = world.delivered.pop().expect("the manager gets the request");
    assert_eq!((port, request.mad.attribute()), (manager, Attribute::SM_INFO));
    let mut answer = request.clone();
    answer.mad.set_method(Method::GET_RESP);
    (answer.slid, answer.dlid) = (request.dlid, request.slid);
    world.fabric.handle_datagram(world.now, manager, answer);
    world.collect();
    assert_eq!(world.delivered.pop().map(|(port, _)| port), Some(world.port("b")));
}

#[test]
fn unknown_attributes_methods_and_versions_get_an_error_status() {
    let mut world = World::configured();
    assert_eq!(world.get("c", Attribute(0x7777), 0), Err(Status::UNSUPPORTED_ATTRIBUTE));
    assert_eq!(world.get("c", Attribute::SWITCH_INFO, 0), Err(Status::UNSUPPORTED_ATTRIBUTE));
    assert_eq!(world.set("c", Attribute::NODE_INFO, 0, [0; 64]), Err(Status::UNSUPPORTED_ATTRIBUTE));
    let mut strange = World::request(Method(0x0f), "c", Attribute::NODE_INFO, 0, None, [0; 64]);
    assert_eq!(world.send("a", strange.clone()).unwrap().mad.status(), Status::UNSUPPORTED_METHOD);
    strange.mad.0[2] = 9;
    assert_eq!(world.send("a", strange).unwrap().mad.status(), Status::BAD_VERSION);
}
