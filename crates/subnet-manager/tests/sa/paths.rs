//! The content of path records, and which are found.

use fabric_model::decisions::ClusterDecision;
use fabric_model::generate::FatTree;
use fabric_model::tenancy::{Bandwidth, Class, LinkGrant, PairServiceLevel, SlMode};
use ib_wire::rmpp::{Receiver, RmppKind, Sender};
use ib_wire::sa::{ComponentMask, MultiPathRecord, PathRecord, Selector};
use ib_wire::{
    Attribute, Datagram, Gid, Guid, LinkWidth, Mad, Method, Mtu, Rate, ServiceLevel, ServiceLevelSet, Status,
    VirtualLane,
};
use subnet_manager::{Directory, ManagerFacts, SubnetAdministration};

use crate::visibility::overlapping;
use crate::world::{NOW, World, get, plain, query, request, table};

type P = PathRecord;

/// A fat-tree of two tiers: hosts 2 and 3 on one leaf, 2 and 16 on different ones.
fn one_partition() -> World {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    World::new(tree).with(0x8101, 2..=16)
}

/// A Get of the path from one host to another, with further components.
fn path_with(
    sa: &mut SubnetAdministration,
    from: u16,
    to: u16,
    more: &[(usize, &[u8])],
    mask: ComponentMask,
) -> Result<PathRecord, Status> {
    let (slid, dlid) = (from.to_be_bytes(), to.to_be_bytes());
    let mut pattern: Vec<(usize, &[u8])> = vec![(40, &dlid), (42, &slid)];
    pattern.extend(more);
    let mad = query::<P>(Method::GET, &pattern, mask | P::DLID | P::SLID);
    get(sa, &request(from, 0x7fff, mad))
}

fn path(sa: &mut SubnetAdministration, from: u16, to: u16) -> Result<PathRecord, Status> {
    path_with(sa, from, to, &[], ComponentMask::NONE)
}

#[test]
fn a_path_record_follows_the_plan_and_its_links() {
    let mut world = one_partition();
    world.groups = vec![(0x101, 3)];
    let found = path(&mut world.sa(), 2, 16).unwrap();
    assert_eq!((found.sgid, found.dgid), (world.gid(2), world.gid(16)));
    assert_eq!(found.slid.map(|lid| lid.to_wire()), Some(2));
    assert_eq!(found.dlid.map(|lid| lid.to_wire()), Some(16));
    assert_eq!((found.mtu, found.rate, found.sl.to_wire()), (Mtu::B2048, Rate::G100, 3));
    assert_eq!((found.pkey.unwrap().to_wire(), found.packet_life_time), (0x8101, 18));
    assert!(found.is_reversible);
    let selectors = [found.mtu_selector, found.rate_selector, found.packet_life_time_selector];
    assert_eq!(selectors, [Selector::Exactly; 3]);
}

/// A GetMulti from one host for the paths between two groups of hosts, as clients send it: with RMPP.
fn multi(world: &World, sources: &[u16], destinations: &[u16], mask: ComponentMask, count: u8) -> Mad {
    type M = MultiPathRecord;
    let mut mad = query::<M>(Method::GET_MULTI, &[(5, &[count])], mask);
    (mad.sa_data_mut()[15], mad.sa_data_mut()[16]) = (sources.len() as u8, destinations.len() as u8);
    for (place, host) in sources.iter().chain(destinations).enumerate() {
        mad.sa_data_mut()[24 + 16 * place..][..16].copy_from_slice(&world.gid(*host).0);
    }
    let data = mad.sa_data().to_vec();
    Sender::new(mad, data).unwrap().poll_transmit().unwrap()
}

/// The acknowledgement of a GetMulti, and the records of its response.
fn ask_multi(sa: &mut SubnetAdministration, from: u16, mad: Mad) -> Result<Vec<PathRecord>, Status> {
    let datagram = request(from, 0x7fff, mad);
    sa.handle_datagram(NOW, &datagram);
    let acknowledgement = sa.poll_transmit(NOW).unwrap().mad;
    assert_eq!((acknowledgement.rmpp().kind, acknowledgement.rmpp().segment), (RmppKind::Ack, 1));
    let mut receiver = Receiver::new();
    loop {
        let answer = sa.poll_transmit(NOW).expect("an answer").mad;
        assert_eq!(answer.method(), Method::GET_MULTI_RESP);
        if answer.status() != Status::OK {
            return Err(answer.status());
        }
        assert_eq!(answer.attribute(), Attribute::PATH_RECORD);
        let message = receiver.handle(&answer).unwrap();
        if let Some(mad) = receiver.poll_transmit() {
            sa.handle_datagram(NOW, &Datagram { mad, ..datagram.clone() });
        }
        if let Some(message) = message {
            let records = ib_wire::sa::records(&message.data, message.header.sa_record_len());
            return Ok(records.collect::<Result<_, _>>().unwrap());
        }
    }
}

#[test]
fn paths_between_groups_of_ports_are_found() {
    type M = MultiPathRecord;
    let world = one_partition();
    let mut sa = world.sa();
    let both = M::SOURCE_COUNT | M::DESTINATION_COUNT;
    let pairs = |records: Vec<PathRecord>| -> Vec<(Gid, Gid)> {
        records.into_iter().map(|record| (record.sgid, record.dgid)).collect()
    };
    let found = ask_multi(&mut sa, 2, multi(&world, &[2, 3], &[9, 16], both, 0)).unwrap();
    let gid = |host| world.gid(host);
    let all = [(gid(2), gid(9)), (gid(2), gid(16)), (gid(3), gid(9)), (gid(3), gid(16))];
    assert_eq!(pairs(found.clone()), all);
    assert_eq!(Ok(found[1].clone()), path(&mut sa, 2, 16), "each is the one that a single query finds");
    let two = ask_multi(&mut sa, 2, multi(&world, &[2, 3], &[9, 16], both | M::PATH_COUNT, 2)).unwrap();
    assert_eq!(pairs(two), all[..2]);
    for mask in [ComponentMask::NONE, M::SOURCE_COUNT, M::DESTINATION_COUNT] {
        let refused = ask_multi(&mut sa, 2, multi(&world, &[2], &[9], mask, 0));
        assert_eq!(refused, Err(Status::SA_INSUFFICIENT_COMPONENTS));
    }
    let mut foreign = multi(&world, &[2], &[9], both, 0);
    foreign.sa_data_mut()[24] = 0xff;
    assert_eq!(ask_multi(&mut sa, 2, foreign), Err(Status::SA_INVALID_GID));
}

#[test]
fn paths_to_ports_of_other_partitions_are_not_found() {
    type M = MultiPathRecord;
    let world = overlapping();
    let ends = multi(&world, &[2, 6], &[3, 6], M::SOURCE_COUNT | M::DESTINATION_COUNT, 0);
    let found = ask_multi(&mut world.sa(), 2, ends).unwrap();
    let found: Vec<(Gid, Gid)> = found.into_iter().map(|record| (record.sgid, record.dgid)).collect();
    assert_eq!(found, [(world.gid(2), world.gid(3))], "port 6 is treated as if it did not exist");
}

#[test]
fn requests_of_several_segments_are_refused() {
    let world = one_partition();
    let mut sa = world.sa();
    let mad = plain(Method::GET_MULTI, Attribute::MULTI_PATH_RECORD);
    let first = Sender::new(mad, vec![0; 400]).unwrap().poll_transmit().unwrap();
    sa.handle_datagram(NOW, &request(2, 0x7fff, first));
    assert_eq!(sa.poll_transmit(NOW).unwrap().mad.rmpp().kind, RmppKind::Stop);
    assert_eq!(sa.poll_transmit(NOW), None);
    assert_eq!(sa.counts().dropped, 1);
}

#[test]
fn paths_to_and_from_the_manager_have_the_management_sl() {
    let mut world = one_partition().with(0x8101, [1]);
    world.groups = vec![(0x101, 3)];
    let level = |world: &World, from, to, key: u16| {
        let key = key.to_be_bytes();
        let more: &[(usize, &[u8])] = &[(50, &key)];
        path_with(&mut world.sa(), from, to, more, P::PKEY).map(|path| path.sl.to_wire())
    };
    assert_eq!((level(&world, 2, 1, 0x7fff), level(&world, 1, 2, 0x7fff)), (Ok(0), Ok(0)));
    world.decisions.management_sl = ServiceLevel::from_wire(15);
    assert_eq!((level(&world, 2, 1, 0x7fff), level(&world, 1, 2, 0x7fff)), (Ok(15), Ok(15)));
    assert_eq!(level(&world, 2, 16, 0x8101), Ok(3), "others have the service level of their partition");
    assert_eq!(level(&world, 2, 1, 0x8101), Ok(3), "in a partition of tenants the manager is one of them");
    let default = 0x7fff_u16.to_be_bytes();
    let at_level = |raw: u8| {
        let more: &[(usize, &[u8])] = &[(50, &default), (53, &[raw])];
        path_with(&mut world.sa(), 2, 1, more, P::PKEY | P::SL).is_ok()
    };
    assert!(at_level(15) && !at_level(0), "there is no path at another service level");
}

#[test]
fn paths_inside_a_guaranteed_cluster_have_its_service_level() {
    let mut world = one_partition();
    let before = world.directory();
    let bandwidth = Bandwidth::from_bits_per_s(1);
    let decision = ClusterDecision {
        ports: vec![world.guid(2), world.guid(16)],
        class: Class::Guaranteed { bandwidth, latency_ns: None },
        sl_mode: SlMode::Cluster,
        bound_ns: 1,
        links: vec![LinkGrant {
            port: world.plan().adapter_port(world.guid(2)).unwrap().name,
            lane: VirtualLane::from_wire(2).unwrap(),
            service_levels: vec![ServiceLevel::from_wire(5).unwrap()],
            share: bandwidth,
            wait_ns: None,
        }],
        pairs: Vec::new(),
        former_sls: ServiceLevelSet::EMPTY,
    };
    world.decisions.clusters.insert("c".to_owned(), decision.into());
    let level = |sa: &mut SubnetAdministration, from, to| path(sa, from, to).map(|path| path.sl.to_wire());
    let mut sa = world.sa();
    assert_eq!([(2, 16), (16, 2)].map(|(a, b)| level(&mut sa, a, b)), [Ok(5), Ok(5)]);
    assert_eq!([(2, 3), (3, 16)].map(|(a, b)| level(&mut sa, a, b)), [Ok(0), Ok(0)]);
    // During the change, no response has a service level that may be without lane.
    sa.announce(before.clone());
    assert_eq!(level(&mut sa, 2, 16), Ok(0));
    sa.publish(before);
    sa.announce(world.directory());
    assert_eq!(level(&mut sa, 2, 16), Ok(0));
}

#[test]
fn a_pair_of_switches_has_one_sl_in_both_directions() {
    let mut world = one_partition();
    let level = |raw| ServiceLevel::from_wire(raw).unwrap();
    let hosts = [2, 3, 8, 16];
    let ports: Vec<Guid> = hosts.iter().map(|host| world.guid(*host)).collect();
    let switch = |world: &World, port: Guid| world.plan().adapter_port(port).unwrap().peer.node;
    let mut switches: Vec<Guid> = ports.iter().map(|port| switch(&world, *port)).collect();
    switches.sort();
    switches.dedup();
    assert!(switches.len() > 2, "on several switches, two hosts on one");
    let mut pairs = Vec::new();
    for (at, a) in switches.iter().enumerate() {
        for b in &switches[at..] {
            pairs.push(PairServiceLevel { switches: (*a, *b), service_level: level(1 + pairs.len() as u8) });
        }
    }
    let class = Class::Guaranteed { bandwidth: Bandwidth::from_bits_per_s(1), latency_ns: None };
    let decision = ClusterDecision {
        ports: ports.clone(),
        class,
        sl_mode: SlMode::Path,
        bound_ns: 1,
        links: Vec::new(),
        pairs,
        former_sls: ServiceLevelSet::EMPTY,
    };
    let answered_sl = |sa: &mut SubnetAdministration, from, to| path(sa, from, to).map(|path| path.sl);
    world.decisions.clusters.insert("c".to_owned(), decision.clone().into());
    let before = world.directory();
    let mut sa = world.sa();
    let mut seen = std::collections::BTreeSet::new();
    for (from, a) in hosts.iter().zip(&ports) {
        for (to, b) in hosts.iter().zip(&ports) {
            let own = decision.service_level_between(switch(&world, *a), switch(&world, *b)).unwrap();
            assert_eq!(answered_sl(&mut sa, *from, *to), Ok(own), "{from} to {to}");
            seen.insert(own);
        }
        assert_eq!(answered_sl(&mut sa, *from, 4), Ok(level(0)), "other paths have none");
    }
    assert_eq!(seen.len(), decision.pairs.len());

    // While one of them changes, the others stay.
    let apart = PairServiceLevel::between(switch(&world, ports[0]), switch(&world, ports[3]));
    let mut after = decision.clone();
    let changed = after.pairs.iter_mut().find(|pair| pair.switches == apart).unwrap();
    changed.service_level = level(14);
    world.decisions.clusters.insert("c".to_owned(), after.into());
    sa.publish(before);
    sa.announce(world.directory());
    assert_eq!([(2, 16), (16, 3)].map(|(a, b)| answered_sl(&mut sa, a, b)), [Ok(level(0)); 2]);
    let stays = decision.service_level_between(switch(&world, ports[0]), switch(&world, ports[2])).unwrap();
    assert_eq!([(2, 8), (8, 3)].map(|(a, b)| answered_sl(&mut sa, a, b)), [Ok(stays); 2]);
    sa.publish(world.directory());
    assert_eq!([(2, 16), (16, 3)].map(|(a, b)| answered_sl(&mut sa, a, b)), [Ok(level(14)); 2]);
}

#[test]
fn a_path_has_the_smallest_mtu_and_the_slowest_rate() {
    let mut world = one_partition();
    world.trunk_mtu = Mtu::B1024;
    let mut facts = world.facts();
    // Host 16 has a slow link; its switch reports no rate.
    let slow = world.topology.end_nodes().nth(15).unwrap().1;
    let slow_facts = facts.iter_mut().find(|facts| facts.info.node_guid == slow.guid).unwrap();
    slow_facts.ports.values_mut().for_each(|info| info.link_width_active = LinkWidth::X1);
    let manager = ManagerFacts::default();
    let mut sa = SubnetAdministration::new();
    sa.publish(Directory::new(world.plan().into(), manager, facts).into());
    let mut able = |from, to| path(&mut sa, from, to).map(|path| (path.mtu, path.rate)).unwrap();
    assert_eq!(able(2, 3), (Mtu::B4096, Rate::G100), "on one switch");
    assert_eq!(able(2, 15), (Mtu::B1024, Rate::G100), "over a trunk");
    assert_eq!(able(2, 16), (Mtu::B1024, Rate::G25), "over a trunk to a slow host");
    assert_eq!(able(16, 2), (Mtu::B1024, Rate::G25));
    assert_eq!(able(16, 16), (Mtu::B4096, Rate::G25), "to itself, over its own link");
}

#[test]
fn without_forwarding_entries_there_is_no_path() {
    let world = one_partition();
    let mut plan = fabric_model::plan::PlanParts {
        manager: world.plan().manager(),
        switches: world.plan().switches().cloned().collect(),
        adapter_ports: world.plan().adapter_ports().cloned().collect(),
        partitions: Vec::new(),
        groups: Vec::new(),
        findings: Vec::new(),
        decisions: fabric_model::Decisions::default(),
    };
    // No switch has a route to host 16; every switch except leaves sends packets for host 15 in a loop.
    for switch in &mut plan.switches {
        let mut exits = switch.linear.to_exits();
        exits[16] = 0xff;
        exits[15] = switch.ports.last().unwrap().number.to_wire();
        switch.linear = fabric_model::plan::LinearTable::from_exits(exits).into();
    }
    let manager = ManagerFacts::default();
    let plan = fabric_model::FabricPlan::from_parts(plan);
    let mut sa = SubnetAdministration::new();
    sa.publish(Directory::new(plan.into(), manager, world.facts()).into());
    assert_eq!(path(&mut sa, 2, 16), Err(Status::SA_NO_RECORDS));
    assert_eq!(path(&mut sa, 2, 15), Err(Status::SA_NO_RECORDS));
    // The path still exists, but not the return path.
    assert_eq!(path(&mut sa, 16, 2).map(|path| path.is_reversible), Ok(false));
    let reversible = path_with(&mut sa, 16, 2, &[(49, &[0x80])], P::IS_REVERSIBLE);
    assert_eq!(reversible, Err(Status::SA_NO_RECORDS));
    let either = path_with(&mut sa, 16, 2, &[(49, &[0])], P::IS_REVERSIBLE);
    assert!(either.is_ok(), "0 does not ask for anything");
    assert!(path(&mut sa, 2, 3).unwrap().is_reversible);
}

#[test]
fn a_requested_pkey_is_returned_if_both_ends_may_use_it() {
    let mut sa = overlapping().sa();
    let mut keyed = |from, to, key: u16| {
        path_with(&mut sa, from, to, &[(50, &key.to_be_bytes())], P::PKEY)
            .map(|path| path.pkey.unwrap().to_wire())
    };
    assert_eq!(keyed(2, 3, 0x8101), Ok(0x8101));
    assert_eq!(keyed(4, 2, 0x101), Ok(0x101));
    assert_eq!(keyed(4, 2, 0x8101), Ok(0x8101), "as requested");
    assert_eq!(keyed(2, 3, 0x7fff), Err(Status::SA_NO_RECORDS), "both are limited there");
    assert_eq!(keyed(2, 1, 0x7fff), Ok(0x7fff));
    assert_eq!(keyed(2, 3, 0x8102), Err(Status::SA_NO_RECORDS), "neither is in it");
    assert_eq!(keyed(5, 2, 0x8102), Err(Status::SA_NO_RECORDS), "one is in it");
    assert_eq!(keyed(2, 3, 0x8000), Err(Status::SA_NO_RECORDS), "no partition");
    assert_eq!(keyed(2, 3, 0x0000), Err(Status::SA_NO_RECORDS), "no partition");
}

#[test]
fn selectors_work_on_the_wire() {
    let mut sa = one_partition().sa();
    let mut find = |offset: usize, byte: u8, mask| path_with(&mut sa, 2, 16, &[(offset, &[byte])], mask);
    let mtu = P::MTU | P::MTU_SELECTOR;
    assert_eq!(find(54, 0x03, mtu).map(|path| path.mtu), Ok(Mtu::B2048), "more than 1024");
    assert_eq!(find(54, 0x04, mtu).map(|path| path.mtu), Err(Status::SA_NO_RECORDS), "more than 2048");
    assert_eq!(find(54, 0x43, mtu).map(|path| path.mtu), Ok(Mtu::B512), "less than 1024");
    assert_eq!(find(54, 0x83, mtu).map(|path| path.mtu), Ok(Mtu::B1024), "exactly 1024");
    assert_eq!(find(54, 0x85, mtu).map(|path| path.mtu), Err(Status::SA_NO_RECORDS), "exactly 4096");
    assert_eq!(find(54, 0xc5, mtu).map(|path| path.mtu), Ok(Mtu::B2048), "the largest there is");
    assert_eq!(find(54, 0x05, P::MTU).map(|path| path.mtu), Ok(Mtu::B2048), "no selector");
    let rate = P::RATE | P::RATE_SELECTOR;
    assert_eq!(find(55, 0x13, rate).map(|path| path.rate), Ok(Rate::G100), "more than 28 Gb/s");
    assert_eq!(find(55, 0x10, rate).map(|path| path.rate), Err(Status::SA_NO_RECORDS), "more than 100 Gb/s");
    assert_eq!(find(55, 0x87, rate).map(|path| path.rate), Ok(Rate::G40), "exactly 40 Gb/s");
    let life = P::PACKET_LIFE_TIME | P::PACKET_LIFE_TIME_SELECTOR;
    assert!(find(56, 0x40 | 19, life).is_ok() && find(56, 0x80 | 18, life).is_ok());
    assert!(find(56, 0x40 | 18, life).is_err() && find(56, 0x80 | 17, life).is_err());
    assert!(find(53, 0x00, P::SL).is_ok());
    assert!(find(53, 0x01, P::SL).is_err(), "the partition has another service level");
    assert!(find(44, 0x80, P::IS_RAW).is_err() && find(44, 0x00, P::IS_RAW).is_ok());
    assert!(find(48, 0x20, P::TRAFFIC_CLASS | P::SERVICE_ID_LOW | P::QOS_CLASS | P::HOP_LIMIT).is_ok());
}

#[test]
fn ends_may_be_named_by_gid_or_lid_and_have_to_agree() {
    let world = one_partition();
    let mut sa = world.sa();
    let mut exchange = |dgid: Gid, dlid: u16, mask| {
        let pattern: [(usize, &[u8]); 3] = [(8, &dgid.0), (40, &dlid.to_be_bytes()), (42, &[0, 2])];
        let mad = query::<P>(Method::GET, &pattern, mask | P::SLID);
        get::<P>(&mut sa, &request(2, 0x7fff, mad)).map(|path| path.dlid.unwrap().to_wire())
    };
    assert_eq!(exchange(world.gid(5), 0, P::DGID), Ok(5));
    assert_eq!(exchange(world.gid(5), 5, P::DGID | P::DLID), Ok(5));
    assert_eq!(exchange(world.gid(5), 6, P::DGID | P::DLID), Err(Status::SA_NO_RECORDS));
    let elsewhere = Gid::unicast(0xfec0_0000_0000_0000, world.guid(5));
    assert_eq!(exchange(elsewhere, 0, P::DGID), Err(Status::SA_INVALID_GID), "another subnet");
    assert_eq!(exchange(Gid([0xff; 16]), 0, P::DGID), Err(Status::SA_NO_RECORDS), "a group");
    assert_eq!(exchange(Gid::default(), 0xc000, P::DLID), Err(Status::SA_NO_RECORDS), "a group");
    assert!(exchange(Gid::default(), 0, ComponentMask::NONE).is_ok(), "a Get of any path gets one");
}

#[test]
fn a_table_has_every_path_up_to_the_requested_number() {
    let mut sa = one_partition().sa();
    let mut count = |pattern: &[(usize, &[u8])], mask| {
        let mad = query::<P>(Method::GET_TABLE, pattern, mask);
        table::<P>(&mut sa, &request(2, 0x7fff, mad)).unwrap().len()
    };
    // 15 in the partition, and the manager.
    assert_eq!(count(&[(42, &[0, 2])], P::SLID), 16);
    assert_eq!(count(&[(40, &[0, 2])], P::DLID), 16);
    // All pairs of the partition; with the manager only in the default partition, in both directions.
    assert_eq!(count(&[], ComponentMask::NONE), 15 * 15 + 2 * 15 + 1);
    assert_eq!(count(&[(42, &[0, 2]), (40, &[0, 3])], P::SLID | P::DLID), 1);
    assert_eq!(count(&[(42, &[0, 2]), (49, &[0x01])], P::SLID | P::PATH_COUNT), 16, "one for each pair");
    assert_eq!(count(&[(42, &[0, 2]), (49, &[0x00])], P::SLID | P::PATH_COUNT), 0);
}
