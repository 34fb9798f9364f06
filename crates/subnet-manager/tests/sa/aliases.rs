//! Alias GUIDs: addresses of a port with partitions of their own.

use std::collections::BTreeSet;

use fabric_model::intent::Alias;
use ib_wire::sa::{ComponentMask, GuidInfoRecord, McMemberRecord, PathRecord};
use ib_wire::{Attribute, Datagram, Gid, Grh, Guid, GuidBlock, Mad, Method, PartitionNumber, Status};
use subnet_manager::SubnetAdministration;

use crate::visibility::overlapping;
use crate::world::{NOW, World, exchange, get, plain, query, request, table};

/// Hosts 2 and 3 are in partitions 0x101 and 0x102, each with an alias in one of them at index 1 and 9; host 6 is in 0x102.
fn world() -> World {
    let mut world = overlapping().with(0x8102, [2, 3]);
    world.groups = vec![(0x101, 0), (0x102, 0)];
    for lid in [2, 3] {
        let table = [(1, 0x101), (9, 0x102)].map(|(index, partition)| {
            let partitions = BTreeSet::from([PartitionNumber::from_wire(partition).unwrap()]);
            (index, Alias { guid: alias(lid, index), partitions })
        });
        world.aliases.insert(lid, table.into());
    }
    world
}

fn alias(lid: u16, index: u8) -> Guid {
    Guid::from_wire(0xa11a_5000 + u64::from(lid) * 0x100 + u64::from(index)).unwrap()
}

fn gid(guid: Guid) -> Gid {
    Gid::unicast(Gid::DEFAULT_PREFIX, guid)
}

/// A request with a GRH.
fn from_gid(world: &World, lid: u16, source: Gid, mad: Mad) -> Datagram {
    let grh = Grh { source, destination: world.gid(1), traffic_class: 0, flow_label: 0, hop_limit: 1 };
    Datagram { grh: Some(grh), ..request(lid, 0x7fff, mad) }
}

fn path(source: Gid, destination: Gid) -> Mad {
    let pattern: [(usize, &[u8]); 2] = [(8, &destination.0), (24, &source.0)];
    query::<PathRecord>(Method::GET, &pattern, PathRecord::DGID | PathRecord::SGID)
}

#[test]
fn paths_to_an_alias_lead_to_its_port_in_its_partition() {
    let world = world();
    let mut sa = world.sa();
    let (one, nine) = (gid(alias(2, 1)), gid(alias(2, 9)));
    let found: PathRecord = get(&mut sa, &request(3, 0x7fff, path(world.gid(3), one))).unwrap();
    assert_eq!((found.dgid, found.dlid.map(|lid| lid.to_wire())), (one, Some(2)));
    assert_eq!(found.pkey.map(|key| key.to_wire()), Some(0x8101), "not 0x8102, which the port has, too");
    let found: PathRecord = get(&mut sa, &request(3, 0x7fff, path(world.gid(3), nine))).unwrap();
    assert_eq!(found.pkey.map(|key| key.to_wire()), Some(0x8102));
    // Functions of a port have its LID, so packets to and from them need a GRH, which clients send if there is a hop limit.
    let mut hop_limit = |from, source, to| {
        get::<PathRecord>(&mut sa, &from_gid(&world, from, source, path(source, to))).unwrap().hop_limit
    };
    assert_eq!(hop_limit(3, world.gid(3), nine), 64);
    assert_eq!(hop_limit(2, nine, world.gid(3)), 64);
    assert_eq!(hop_limit(2, nine, gid(alias(3, 9))), 64);
    assert_eq!(hop_limit(2, world.gid(2), world.gid(3)), 0);
    // Host 6 shares 0x102 with the port: it sees the alias there, and not the other.
    let status = |sa: &mut SubnetAdministration, to| {
        get::<PathRecord>(sa, &request(6, 0x7fff, path(world.gid(6), to))).map(|path| path.dgid)
    };
    assert_eq!(status(&mut sa, nine), Ok(nine));
    assert_eq!(status(&mut sa, one), Err(Status::SA_NO_RECORDS));
    assert_eq!(status(&mut sa, world.gid(2)), Ok(world.gid(2)));
}

#[test]
fn an_alias_sees_its_own_partitions_only() {
    let world = world();
    let mut sa = world.sa();
    let (one, nine) = (gid(alias(2, 1)), gid(alias(2, 9)));
    let mut ask = |source, to| {
        get::<PathRecord>(&mut sa, &from_gid(&world, 2, source, path(source, to))).map(|path| path.dgid)
    };
    assert_eq!(ask(one, gid(alias(3, 1))), Ok(gid(alias(3, 1))));
    assert_eq!(ask(one, gid(alias(3, 9))), Err(Status::SA_NO_RECORDS));
    assert_eq!(ask(nine, world.gid(6)), Ok(world.gid(6)));
    assert_eq!(ask(one, world.gid(6)), Err(Status::SA_NO_RECORDS));
    assert_eq!(ask(world.gid(2), world.gid(6)), Ok(world.gid(6)), "the port itself is in both");
    // It does not speak for the other alias of its port.
    let other = from_gid(&world, 2, one, path(nine, world.gid(6)));
    assert_eq!(get::<PathRecord>(&mut sa, &other).map(|path| path.dgid), Err(Status::SA_NO_RECORDS));
}

#[test]
fn an_alias_is_believed_only_from_its_port() {
    let world = world();
    let mut sa = world.sa();
    let mad = || plain(Method::GET, Attribute::CLASS_PORT_INFO);
    let own = gid(alias(2, 1));
    assert!(exchange(&mut sa, &from_gid(&world, 2, own, mad())).is_some());
    assert_eq!(exchange(&mut sa, &from_gid(&world, 3, own, mad())), None);
    let unknown = gid(Guid::from_wire(0xa11a_9999).unwrap());
    assert_eq!(exchange(&mut sa, &from_gid(&world, 2, unknown, mad())), None);
    assert_eq!(sa.counts().dropped, 2);
}

/// A Set or Delete of a block of the GUID table of a port.
fn claim(
    sa: &mut SubnetAdministration,
    from: u16,
    method: Method,
    lid: u16,
    block: u8,
    entries: &[(usize, u64)],
) -> Result<GuidInfoRecord, Status> {
    let mut guids = GuidBlock([None; 8]);
    let mut mask = GuidInfoRecord::LID | GuidInfoRecord::BLOCK;
    for (entry, guid) in entries {
        guids.0[*entry] = Guid::from_wire(*guid);
        mask = mask | ComponentMask(GuidInfoRecord::GUID_0.0 << entry);
    }
    let record = GuidInfoRecord { lid: ib_wire::LidAddress::from_wire(lid), block, guids };
    let mut mad = plain(method, Attribute::GUID_INFO_RECORD);
    mad.sa_data_mut()[..GuidInfoRecord::LEN].copy_from_slice(&record.encode());
    mad.set_component_mask(mask);
    sa.handle_datagram(NOW, &request(from, 0x7fff, mad));
    let answer = sa.poll_transmit(NOW).expect("an answer").mad;
    match answer.status() {
        Status::OK => {
            assert_eq!(answer.sa_record_len(), GuidInfoRecord::LEN);
            Ok(GuidInfoRecord::decode(answer.sa_data()).unwrap())
        }
        status => Err(status),
    }
}

#[test]
fn a_port_gets_the_aliases_of_the_plan_and_no_others() {
    let world = world();
    let mut sa = world.sa();
    let planned = alias(2, 1).to_wire();
    let invalid = Err(Status::SA_REQUEST_INVALID);
    let entry =
        |record: Result<GuidInfoRecord, Status>, entry: usize| record.map(|record| record.guids.0[entry]);
    // By name, and "whatever I may have".
    for wanted in [planned, 0] {
        let granted = claim(&mut sa, 2, Method::SET, 2, 0, &[(1, wanted)]);
        assert_eq!(entry(granted, 1), Ok(Some(alias(2, 1))));
    }
    let granted = claim(&mut sa, 2, Method::SET, 2, 1, &[(1, 0)]);
    assert_eq!(entry(granted, 1), Ok(Some(alias(2, 9))));
    let nothing = claim(&mut sa, 2, Method::SET, 2, 0, &[(2, 0)]);
    assert_eq!(entry(nothing, 2), Ok(None), "the plan has none at this index");
    // GUIDs of others, of nobody, at another index, in place of the port's own, and for another port.
    let foreign = [alias(3, 1).to_wire(), world.guid(3).to_wire(), 0xdead, alias(2, 9).to_wire()];
    for guid in foreign {
        assert_eq!(claim(&mut sa, 2, Method::SET, 2, 0, &[(1, guid)]), invalid, "{guid:x}");
    }
    assert_eq!(claim(&mut sa, 2, Method::SET, 2, 0, &[(0, planned)]), invalid);
    assert_eq!(claim(&mut sa, 2, Method::SET, 3, 0, &[(1, 0)]), invalid);
    assert_eq!(claim(&mut sa, 2, Method::SET, 2, 99, &[(1, 0)]), invalid, "it has no such block");
    assert_eq!(sa.counts().registrations_refused, 7);
    // A Delete is answered, and the alias stays as long as the plan has it.
    let deleted = claim(&mut sa, 2, Method::DELETE, 2, 0, &[(1, planned)]);
    assert_eq!(entry(deleted, 1), Ok(None));
    // Drivers of adapters send all ones for entries to delete.
    assert_eq!(entry(claim(&mut sa, 2, Method::DELETE, 2, 0, &[(1, u64::MAX)]), 1), Ok(None));
    assert_eq!(
        claim(&mut sa, 2, Method::DELETE, 2, 0, &[(0, world.guid(2).to_wire())]),
        invalid,
        "its own GUID"
    );
    assert_eq!(claim(&mut sa, 3, Method::DELETE, 2, 0, &[(1, planned)]), invalid);
    assert!(get::<PathRecord>(&mut sa, &request(3, 0x7fff, path(world.gid(3), gid(alias(2, 1))))).is_ok());
}

#[test]
fn guid_records_show_the_aliases_that_the_requester_may_see() {
    let world = world();
    let mut sa = world.sa();
    let mut shown = |requester: u16| {
        let mad = query::<GuidInfoRecord>(Method::GET_TABLE, &[(0, &[0, 2])], GuidInfoRecord::LID);
        let key = if requester == 1 { 0xffff } else { 0x7fff };
        let records: Vec<GuidInfoRecord> = table(&mut sa, &request(requester, key, mad)).unwrap();
        records.iter().flat_map(|record| record.guids.0).flatten().collect::<Vec<_>>()
    };
    let all = [world.guid(2), alias(2, 1), alias(2, 9)];
    assert_eq!(shown(1), all);
    assert_eq!(shown(2), all);
    assert_eq!(shown(6), [world.guid(2), alias(2, 9)]);
    assert_eq!(shown(4), [world.guid(2), alias(2, 1)]);
    assert_eq!(shown(9), []);
}

#[test]
fn an_alias_joins_groups_of_its_own_partitions() {
    let world = world();
    let mut sa = world.sa();
    let mut join = |from: &dyn Fn(Mad) -> Datagram, member: Gid, partition: u16| {
        let plan = world.plan();
        let mgid = plan.groups().find(|group| group.partition.to_wire() == partition).unwrap().mgid;
        let pattern: [(usize, &[u8]); 3] = [(0, &mgid.0), (16, &member.0), (48, &[1])];
        let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
        let answer = exchange(&mut sa, &from(query::<McMemberRecord>(Method::SET, &pattern, mask)));
        answer.unwrap().mad.status()
    };
    let (one, nine) = (gid(alias(2, 1)), gid(alias(2, 9)));
    let as_alias = |mad| from_gid(&world, 2, one, mad);
    assert_eq!(join(&as_alias, one, 0x101), Status::OK);
    assert_ne!(join(&as_alias, one, 0x102), Status::OK, "its port is in it");
    assert_ne!(join(&as_alias, nine, 0x102), Status::OK, "it does not speak for others");
    // The port itself speaks for its aliases: some adapters send their requests without a GRH.
    let as_port = |mad| request(2, 0x7fff, mad);
    assert_eq!(join(&as_port, nine, 0x102), Status::OK);
    assert_ne!(join(&as_port, nine, 0x101), Status::OK);
    let as_other = |mad| request(3, 0x7fff, mad);
    assert_eq!(join(&as_other, one, 0x101), Status::SA_REQUEST_INVALID, "it joined itself");
}
