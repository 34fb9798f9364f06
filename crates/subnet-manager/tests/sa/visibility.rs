//! Which requesters get a response, and about which ports.

use std::collections::BTreeSet;

use fabric_model::generate::FatTree;
use ib_wire::sa::{
    ComponentMask, GuidInfoRecord, LinearForwardingRecord, LinkRecord, McMemberRecord, NodeRecord,
    PathRecord, PkeyTableRecord, PortInfoRecord, Record, SmInfoRecord, SwitchInfoRecord,
};
use ib_wire::{Attribute, Datagram, Gid, Grh, LidAddress, Mad, Method, SmKey, Status};
use proptest::prelude::*;
use subnet_manager::SubnetAdministration;

use crate::world::{World, exchange, get, plain, query, request, table};

/// Sixteen hosts with overlapping partitions:
/// 0x101 has the full members 2, 3 and the limited ones 4, 5; 0x102 the full ones 5, 6; 0x103 holds 7 as both, 8 limited.
pub fn overlapping() -> World {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    World::new(tree)
        .with(0x8101, [2, 3])
        .with(0x101, [4, 5])
        .with(0x8102, [5, 6])
        .with(0x8103, [7])
        .with(0x103, [7, 8])
}

/// The ports that a host may see, by the rules alone: itself, the manager, and those it can communicate with.
fn known_to(world: &World, requester: u16) -> BTreeSet<u16> {
    let keys = |lid: u16| &world.keys[&lid];
    let talk = |a: u16, b: u16| {
        keys(a).iter().any(|x| keys(b).iter().any(|y| x & 0x7fff == y & 0x7fff && (x | y) & 0x8000 != 0))
    };
    world.keys.keys().copied().filter(|lid| *lid == requester || talk(requester, *lid)).collect()
}

fn lids_of<R: Record>(
    sa: &mut SubnetAdministration,
    requester: u16,
    key: u16,
    lid: fn(&R) -> Option<LidAddress>,
) -> BTreeSet<u16> {
    let everything = query::<R>(Method::GET_TABLE, &[], ComponentMask::NONE);
    let records: Vec<R> = table(sa, &request(requester, key, everything)).unwrap();
    records.iter().map(|record| lid(record).unwrap().to_wire()).collect()
}

#[test]
fn every_table_lists_exactly_the_reachable_ports() {
    let world = overlapping();
    let mut sa = world.sa();
    for requester in 2..=16 {
        let known = known_to(&world, requester);
        assert!(known.len() < world.keys.len(), "some ports must be hidden");
        assert_eq!(lids_of::<NodeRecord>(&mut sa, requester, 0x7fff, |r| r.lid), known);
        assert_eq!(lids_of::<PortInfoRecord>(&mut sa, requester, 0x7fff, |r| r.lid), known);
        assert_eq!(lids_of::<GuidInfoRecord>(&mut sa, requester, 0x7fff, |r| r.lid), known);
        assert_eq!(lids_of::<SmInfoRecord>(&mut sa, requester, 0x7fff, |r| r.lid), [1].into());
        assert_eq!(lids_of::<PkeyTableRecord>(&mut sa, requester, 0x7fff, |r| r.lid), [requester].into());
        let slid = requester.to_be_bytes();
        let own = query::<PathRecord>(Method::GET_TABLE, &[(42, &slid)], PathRecord::SLID);
        let paths: Vec<PathRecord> = table(&mut sa, &request(requester, 0x7fff, own)).unwrap();
        let reached: BTreeSet<u16> = paths.iter().map(|path| path.dlid.unwrap().to_wire()).collect();
        let itself = world.keys[&requester].iter().any(|key| key & 0x8000 != 0);
        let expected: BTreeSet<u16> = known.into_iter().filter(|lid| *lid != requester || itself).collect();
        assert_eq!(reached, expected, "paths of {requester}");
    }
}

#[test]
fn limited_members_see_full_members_only() {
    let world = overlapping();
    assert_eq!(known_to(&world, 4), [1, 2, 3, 4].into());
    assert_eq!(known_to(&world, 5), [1, 2, 3, 5, 6].into());
    assert_eq!(known_to(&world, 8), [1, 7, 8].into());
    assert_eq!(known_to(&world, 9), [1, 9].into());
}

#[test]
fn a_hidden_port_looks_exactly_like_a_missing_one() {
    let world = overlapping();
    let mut sa = world.sa();
    let (hidden, absent, seen) = (9u16, 999u16, 3u16);
    let mut answers = |mad: &dyn Fn(u16) -> Mad| {
        [hidden, absent, seen].map(|lid| {
            let mut answer = exchange(&mut sa, &request(2, 0x7fff, mad(lid))).unwrap().mad;
            answer.set_component_mask(ComponentMask::NONE);
            answer
        })
    };
    for method in [Method::GET, Method::GET_TABLE] {
        for (attribute, place, mask) in [
            (Attribute::NODE_RECORD, 0, NodeRecord::LID),
            (Attribute::PORT_INFO_RECORD, 0, PortInfoRecord::LID),
            (Attribute::PATH_RECORD, 40, PathRecord::DLID),
        ] {
            let [hidden, absent, seen] = answers(&|lid| {
                let mut mad = plain(method, attribute);
                mad.sa_data_mut()[place..place + 2].copy_from_slice(&lid.to_be_bytes());
                mad.set_component_mask(mask);
                mad
            });
            assert_eq!(hidden.0, absent.0, "{attribute:?} {method:?}");
            assert_ne!(seen.0, absent.0, "{attribute:?} {method:?}: what is known is answered");
        }
    }
    let (hidden, seen) = (world.gid(9), world.gid(3));
    let absent = Gid::unicast(Gid::DEFAULT_PREFIX, ib_wire::Guid::from_wire(0x77).unwrap());
    let mut by_gid = |dgid: Gid| {
        let pattern: [(usize, &[u8]); 2] = [(8, &dgid.0), (24, &world.gid(2).0)];
        let mad = query::<PathRecord>(Method::GET, &pattern, PathRecord::DGID | PathRecord::SGID);
        get::<PathRecord>(&mut sa, &request(2, 0x7fff, mad))
    };
    assert_eq!(by_gid(hidden), Err(Status::SA_NO_RECORDS));
    assert_eq!(by_gid(absent), Err(Status::SA_NO_RECORDS));
    assert!(by_gid(seen).is_ok());
}

#[test]
fn a_third_port_does_not_learn_of_foreign_partitions() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    let world = World::new(tree).with(0x8001, [2, 3]).with(0x8002, [2, 3, 6]);
    let mut sa = world.sa();
    let mut path = |requester: u16, key: Option<u16>| {
        let key_asked = key.unwrap_or(0).to_be_bytes();
        let pattern: [(usize, &[u8]); 3] =
            [(40, &3_u16.to_be_bytes()), (42, &2_u16.to_be_bytes()), (50, &key_asked)];
        let mask = PathRecord::DLID | PathRecord::SLID;
        let mask = if key.is_some() { mask | PathRecord::PKEY } else { mask };
        let mad = query::<PathRecord>(Method::GET, &pattern, mask);
        get::<PathRecord>(&mut sa, &request(requester, 0x7fff, mad)).map(|path| path.pkey.unwrap().to_wire())
    };
    assert_eq!((path(2, None), path(2, Some(0x8001))), (Ok(0x8001), Ok(0x8001)), "its own path");
    assert_eq!(path(6, None), Ok(0x8002), "of paths between others only what it shares");
    assert_eq!(path(6, Some(0x8002)), Ok(0x8002));
    assert_eq!(path(6, Some(0x8001)), Err(Status::SA_NO_RECORDS));
    assert_eq!(path(1, Some(0x8001)), Ok(0x8001), "the manager sees all");
}

#[test]
fn paths_between_invisible_ports_are_hidden() {
    let world = overlapping();
    let mut sa = world.sa();
    let mut path = |requester: u16, from: u16, to: u16| {
        let pattern: [(usize, &[u8]); 2] = [(40, &to.to_be_bytes()), (42, &from.to_be_bytes())];
        let mad = query::<PathRecord>(Method::GET, &pattern, PathRecord::DLID | PathRecord::SLID);
        get::<PathRecord>(&mut sa, &request(requester, 0x7fff, mad)).map(|path| path.pkey.unwrap().to_wire())
    };
    // 2 sees 5 and 5 sees 6, but 2 does not see 6.
    assert_eq!(path(2, 5, 6), Err(Status::SA_NO_RECORDS));
    assert_eq!(path(2, 6, 5), Err(Status::SA_NO_RECORDS));
    assert_eq!(path(5, 5, 6), Ok(0x8102));
    // Between two visible ports, if they can communicate: 4 and 5 are limited members.
    assert_eq!(path(2, 3, 4), Ok(0x8101));
    assert_eq!(path(2, 4, 3), Ok(0x101));
    assert_eq!(path(2, 4, 5), Err(Status::SA_NO_RECORDS));
    // The manager sees all, but without a shared partition there is no path.
    assert_eq!(path(1, 5, 6), Ok(0x8102));
    assert_eq!(path(1, 4, 5), Err(Status::SA_NO_RECORDS));
}

#[test]
fn only_the_managers_port_sees_the_physical_topology() {
    let world = overlapping().with(0xffff, [2]);
    let mut sa = world.sa();
    let mut count = |requester: u16, attribute: Attribute| {
        let mut mad = plain(Method::GET_TABLE, attribute);
        mad.set_sm_key(SmKey::from_wire(1));
        let answer = request(requester, 0xffff, mad);
        match attribute {
            Attribute::SWITCH_INFO_RECORD => table::<SwitchInfoRecord>(&mut sa, &answer).unwrap().len(),
            Attribute::LINK_RECORD => table::<LinkRecord>(&mut sa, &answer).unwrap().len(),
            _ => table::<LinearForwardingRecord>(&mut sa, &answer).unwrap().len(),
        }
    };
    for (attribute, all) in [
        (Attribute::SWITCH_INFO_RECORD, 6),
        (Attribute::LINK_RECORD, 64),
        (Attribute::LINEAR_FORWARDING_RECORD, 6),
    ] {
        // A full member of the default partition sees switch ports, but not their tables; an SM_Key does not
        // help.
        assert_eq!(count(2, attribute), 0, "{attribute:?}");
        assert_eq!(count(1, attribute), all, "{attribute:?}");
    }
    let keys = lids_of::<PkeyTableRecord>(&mut sa, 1, 0xffff, |r| r.lid);
    assert_eq!(keys, world.keys.keys().copied().collect());
}

#[test]
fn in_an_open_subnet_every_port_sees_the_topology() {
    let world = overlapping();
    let manager = subnet_manager::ManagerFacts::default();
    let directory = subnet_manager::Directory::new(world.plan().into(), manager, world.facts()).open();
    let mut sa = SubnetAdministration::new();
    sa.publish(directory.into());
    let cables = request(2, 0x7fff, plain(Method::GET_TABLE, Attribute::LINK_RECORD));
    assert_eq!(table::<LinkRecord>(&mut sa, &cables).unwrap().len(), 64);
    let all: BTreeSet<u16> = world.keys.keys().copied().collect();
    assert_eq!(lids_of::<NodeRecord>(&mut sa, 2, 0x7fff, |r| r.lid), all);
    // An unknown sender is not a port of the owner.
    let mut stranger = cables;
    stranger.slid = LidAddress::from_wire(99).unwrap();
    assert_eq!(exchange(&mut sa, &stranger), None);
}

#[test]
fn groups_are_visible_in_their_partition_only() {
    let mut world = overlapping();
    world.groups = vec![(0x101, 3), (0x7fff, 0)];
    let mut sa = world.sa();
    let mut groups = |requester: u16, sm_key: u64, pattern: &[(usize, &[u8])], mask| {
        let mut mad = query::<McMemberRecord>(Method::GET_TABLE, pattern, mask);
        mad.set_sm_key(SmKey::from_wire(sm_key));
        let records = table::<McMemberRecord>(&mut sa, &request(requester, 0x7fff, mad)).unwrap();
        let told = records.iter().map(|group| (group.pkey.unwrap().to_wire(), group.port_gid));
        told.collect::<Vec<_>>()
    };
    let nobody = Gid::default();
    assert_eq!(groups(4, 0, &[], ComponentMask::NONE), [(0x8101, nobody), (0xffff, nobody)]);
    assert_eq!(groups(9, 0, &[], ComponentMask::NONE), [(0xffff, nobody)]);
    assert_eq!(groups(9, 1, &[], ComponentMask::NONE), [(0xffff, nobody)], "an SM_Key proves nothing");
    assert_eq!(groups(1, 0, &[], ComponentMask::NONE).len(), 2);
    let mgid = [0xff, 0x12, 0xff, 0xff, 0x81, 0x01];
    assert_eq!(groups(4, 0, &[(0, &mgid), (6, &[0xff; 10])], McMemberRecord::MGID), [(0x8101, nobody)]);
    assert_eq!(groups(9, 0, &[(0, &mgid), (6, &[0xff; 10])], McMemberRecord::MGID), []);
    assert_eq!(groups(4, 0, &[(38, &[0x03])], McMemberRecord::MTU | McMemberRecord::MTU_SELECTOR).len(), 2);
    assert_eq!(groups(4, 0, &[(38, &[0x04])], McMemberRecord::MTU | McMemberRecord::MTU_SELECTOR), []);
}

#[test]
fn members_of_groups_are_visible_to_ports_that_reach_them() {
    let mut world = overlapping();
    world.groups = vec![(0x101, 3), (0x7fff, 0)];
    let mut sa = world.sa();
    for (port, partition) in [(2, 0x8101), (5, 0x8101), (2, 0xffff)] {
        let mgid =
            world.plan().groups().find(|group| group.partition.to_wire() == partition & 0x7fff).unwrap().mgid;
        let pattern: [(usize, &[u8]); 3] = [(0, &mgid.0), (16, &world.gid(port).0), (48, &[1])];
        let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
        let joined =
            exchange(&mut sa, &request(port, 0x7fff, query::<McMemberRecord>(Method::SET, &pattern, mask)));
        assert_eq!(joined.unwrap().mad.status(), Status::OK);
    }
    let mut members = |requester: u16, sm_key: u64, named: Option<u16>| {
        let gid = named.map(|lid| world.gid(lid).0).unwrap_or_default();
        let mask = named.map_or(ComponentMask::NONE, |_| McMemberRecord::PORT_GID);
        let mut mad = query::<McMemberRecord>(Method::GET_TABLE, &[(16, &gid)], mask);
        mad.set_sm_key(SmKey::from_wire(sm_key));
        let records = table::<McMemberRecord>(&mut sa, &request(requester, 0x7fff, mad)).unwrap();
        let told = records.iter().map(|group| (group.pkey.unwrap().to_wire(), group.port_gid));
        told.collect::<Vec<_>>()
    };
    assert_eq!(members(1, 1, None).len(), 3, "all, to the manager's port");
    assert_eq!(members(4, 0, Some(2)), [(0x8101, world.gid(2)), (0xffff, world.gid(2))]);
    assert_eq!(members(4, 0, Some(5)), [], "limited members are hidden from each other");
    assert_eq!(members(2, 0, Some(5)), [(0x8101, world.gid(5))]);
    assert_eq!(members(6, 0, Some(2)), [], "no port of its partitions");
}

#[test]
fn unknown_senders_get_no_response() {
    let world = overlapping();
    let mut sa = world.sa();
    let mad = || plain(Method::GET, Attribute::CLASS_PORT_INFO);
    let grh = |lid: u16| Grh {
        source: world.gid(lid),
        destination: world.gid(1),
        traffic_class: 3,
        flow_label: 7,
        hop_limit: 1,
    };
    let known = request(2, 0x7fff, mad());
    let mut answered = |datagram: &Datagram| exchange(&mut sa, datagram);
    assert!(answered(&known).is_some());
    assert!(answered(&request(2, 0xffff, mad())).is_some(), "the key of the receiver's own table");
    assert!(answered(&request(500, 0x7fff, mad())).is_none(), "no port has that LID");
    assert!(answered(&Datagram { slid: LidAddress::Permissive, ..known.clone() }).is_none());
    assert!(answered(&request(2, 0x8102, mad())).is_none(), "a partition the port is not in");
    assert!(answered(&request(2, 0x8101, mad())).is_none(), "a partition the manager is not in");
    let answer = answered(&Datagram { grh: Some(grh(2)), ..known.clone() }).unwrap();
    assert_eq!(answer.grh.map(|grh| (grh.source, grh.destination)), Some((world.gid(1), world.gid(2))));
    assert!(answered(&Datagram { grh: Some(grh(3)), ..known.clone() }).is_none(), "LID and GID of two ports");
    assert_eq!(sa.counts().dropped, 5);
    assert_eq!(exchange(&mut SubnetAdministration::new(), &known), None, "nothing was published");
}

#[test]
fn responses_return_to_the_sender_of_the_request() {
    let world = overlapping();
    let mut requested = request(4, 0x7fff, plain(Method::GET, Attribute::CLASS_PORT_INFO));
    requested.sqp = ib_wire::QueuePair::from_wire(77).unwrap();
    let answer = exchange(&mut world.sa(), &requested).unwrap();
    assert_eq!((answer.dlid, answer.dqp, answer.slid), (requested.slid, requested.sqp, requested.dlid));
    assert_eq!(answer.pkey.to_wire(), 0xffff, "a key of the manager's own table");
    assert_eq!(answer.mad.transaction(), requested.mad.transaction());
    assert_eq!((answer.mad.method(), answer.mad.status()), (Method::GET_RESP, Status::OK));
}

proptest! {
    #[test]
    fn no_port_learns_of_one_that_it_cannot_reach(
        memberships in proptest::collection::vec((2u16..=16, 1u16..=4, any::<bool>()), 0..40),
    ) {
        let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
        let world = memberships.iter().fold(World::new(tree), |world, (lid, partition, full)| {
            world.with(partition | if *full { 0x8000 } else { 0 }, [*lid])
        });
        let mut sa = world.sa();
        for requester in 2..=16 {
            let known = known_to(&world, requester);
            prop_assert_eq!(lids_of::<NodeRecord>(&mut sa, requester, 0x7fff, |r| r.lid), known.clone());
            let everything = query::<PathRecord>(Method::GET_TABLE, &[], ComponentMask::NONE);
            let paths: Vec<PathRecord> = table(&mut sa, &request(requester, 0x7fff, everything)).unwrap();
            for path in paths {
                let (from, to) = (path.slid.unwrap().to_wire(), path.dlid.unwrap().to_wire());
                prop_assert!(known.contains(&from) && known.contains(&to));
                let key = path.pkey.unwrap();
                let held = |lid: u16| world.keys[&lid].iter().filter_map(|raw| ib_wire::Pkey::from_wire(*raw));
                prop_assert!(held(from).any(|own| own == key), "the sender holds the key");
                prop_assert!(held(to).any(|own| key.is_accepted_by(own)), "the receiver takes it");
            }
        }
    }
}
