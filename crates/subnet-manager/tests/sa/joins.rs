//! Joining, leaving and creating multicast groups.

use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, Record, Selector};
use ib_wire::{Datagram, Gid, Guid, Mad, Method, Mtu, Pkey, QKey, Rate, ServiceLevel, Status};
use subnet_manager::SubnetAdministration;

use crate::visibility::overlapping;
use crate::world::{NOW, World, plain, query, request, table};

type M = McMemberRecord;

/// What a join names: the group, the port and how it joins.
const JOIN: ComponentMask = ComponentMask(M::MGID.0 | M::PORT_GID.0 | M::JOIN_STATE.0);
/// What creating a group needs besides.
const CREATE: ComponentMask =
    ComponentMask(JOIN.0 | M::QKEY.0 | M::PKEY.0 | M::SL.0 | M::TRAFFIC_CLASS.0 | M::FLOW_LABEL.0);

/// Partitions 0x101 and 0x102 have broadcast groups, 0x103 has none.
fn world() -> World {
    let mut world = overlapping();
    world.groups = vec![(0x101, 3), (0x102, 0)];
    world
}

/// The broadcast group of a partition of [`world`].
pub fn broadcast(partition: u16) -> Gid {
    let mut mgid = [0xff; 16];
    (mgid[1], mgid[4], mgid[5]) = (0x12, (partition >> 8) as u8 | 0x80, partition as u8);
    Gid(mgid)
}

/// A group that an application chose.
fn chosen(number: u16) -> Gid {
    let mut mgid = [0; 16];
    mgid[..4].copy_from_slice(&[0xff, 0x15, 0x12, 0x34]);
    mgid[14..].copy_from_slice(&number.to_be_bytes());
    Gid(mgid)
}

/// The record of a request for a group in partition 0x101.
fn record(world: &World, mgid: Gid, port: u16) -> McMemberRecord {
    McMemberRecord {
        mgid,
        port_gid: world.gid(port),
        qkey: QKey::from_wire(0x0b1b),
        mlid: None,
        mtu_selector: Selector::Exactly,
        mtu: Mtu::B2048,
        traffic_class: 0,
        pkey: Pkey::from_wire(0x8101),
        rate_selector: Selector::Exactly,
        rate: Rate::G10,
        packet_life_time_selector: Selector::Exactly,
        packet_life_time: 18,
        sl: ServiceLevel::from_wire(3).unwrap(),
        flow_label: 0,
        hop_limit: 0,
        scope: mgid.0[1] & 0xf,
        join_state: JoinState::FULL,
        proxy_join: false,
    }
}

fn mad(method: Method, record: &McMemberRecord, mask: ComponentMask) -> Mad {
    let mut mad = plain(method, McMemberRecord::ATTRIBUTE);
    mad.sa_data_mut()[..McMemberRecord::LEN].copy_from_slice(&record.encode());
    mad.set_component_mask(mask);
    mad
}

/// The record in the response to a Set or Delete of a port, or its status.
fn ask(
    sa: &mut SubnetAdministration,
    from: u16,
    method: Method,
    record: &McMemberRecord,
    mask: ComponentMask,
) -> Result<McMemberRecord, Status> {
    let answer = answer(sa, &request(from, 0x7fff, mad(method, record, mask)));
    let expected = if method == Method::SET { Method::GET_RESP } else { Method::DELETE_RESP };
    assert_eq!(answer.mad.method(), expected);
    match answer.mad.status() {
        Status::OK => {
            assert_eq!(answer.mad.sa_record_len(), McMemberRecord::LEN);
            Ok(McMemberRecord::decode(answer.mad.sa_data()).unwrap())
        }
        status => Err(status),
    }
}

fn answer(sa: &mut SubnetAdministration, datagram: &Datagram) -> Datagram {
    sa.handle_datagram(NOW, datagram);
    sa.poll_transmit(NOW).expect("an answer")
}

/// The members of a group, as the manager's own port sees them with an SM_Key.
fn members(sa: &mut SubnetAdministration, mgid: Gid) -> Vec<(Gid, u8)> {
    let mut mad = query::<McMemberRecord>(Method::GET_TABLE, &[(0, &mgid.0)], M::MGID);
    mad.set_sm_key(ib_wire::SmKey::from_wire(1));
    let records: Vec<McMemberRecord> = table(sa, &request(1, 0xffff, mad)).unwrap();
    records.iter().map(|record| (record.port_gid, record.join_state.0)).collect()
}

/// The groups that a port sees.
fn groups(sa: &mut SubnetAdministration, port: u16) -> Vec<Gid> {
    let mad = query::<McMemberRecord>(Method::GET_TABLE, &[], ComponentMask::NONE);
    let records: Vec<McMemberRecord> = table(sa, &request(port, 0x7fff, mad)).unwrap();
    records.iter().map(|record| record.mgid).collect()
}

#[test]
fn a_port_joins_and_leaves_the_broadcast_group_of_its_partition() {
    let world = world();
    let mut sa = world.sa();
    let wanted = record(&world, broadcast(0x101), 2);
    assert_eq!(members(&mut sa, wanted.mgid), []);
    let joined = ask(&mut sa, 2, Method::SET, &wanted, JOIN).unwrap();
    let mlid = ib_wire::MulticastLid::from_wire(0xc000);
    assert_eq!(joined, McMemberRecord { mlid, ..wanted.clone() });
    // A limited member takes part, too.
    let limited = record(&world, broadcast(0x101), 4);
    ask(&mut sa, 4, Method::SET, &limited, JOIN).unwrap();
    assert_eq!(members(&mut sa, wanted.mgid), [(world.gid(2), 1), (world.gid(4), 1)]);
    let left = ask(&mut sa, 2, Method::DELETE, &wanted, JOIN).unwrap();
    assert_eq!(left.join_state, JoinState::default());
    assert_eq!(members(&mut sa, wanted.mgid), [(world.gid(4), 1)]);
    assert_eq!(ask(&mut sa, 2, Method::DELETE, &wanted, JOIN), Err(Status::SA_REQUEST_INVALID));
    assert_eq!(sa.counts().registrations, 3);
}

#[test]
fn join_states_add_up_and_are_given_up_one_by_one() {
    let world = world();
    let mut sa = world.sa();
    let state = |join_state| McMemberRecord { join_state, ..record(&world, broadcast(0x101), 2) };
    let mut join =
        |method, raw| ask(&mut sa, 2, method, &state(JoinState(raw)), JOIN).map(|record| record.join_state.0);
    assert_eq!(join(Method::SET, 1), Ok(1));
    assert_eq!(join(Method::SET, 4), Ok(5));
    assert_eq!(join(Method::DELETE, 2), Err(Status::SA_REQUEST_INVALID), "it has not joined so");
    assert_eq!(join(Method::DELETE, 3), Err(Status::SA_REQUEST_INVALID), "nor with both");
    assert_eq!(join(Method::DELETE, 1), Ok(4));
    assert_eq!(join(Method::DELETE, 4), Ok(0));
    assert_eq!(join(Method::SET, 0), Err(Status::SA_REQUEST_INVALID));
}

#[test]
fn a_group_lives_from_its_first_to_its_last_full_member() {
    let world = world();
    let mut sa = world.sa();
    let mgid = chosen(7);
    let of = |port, raw| McMemberRecord { join_state: JoinState(raw), ..record(&world, mgid, port) };
    assert_eq!(
        ask(&mut sa, 3, Method::SET, &of(3, 4), CREATE),
        Err(Status::SA_REQUEST_INVALID),
        "a send-only non-member creates no group"
    );
    let created = ask(&mut sa, 2, Method::SET, &of(2, 1), CREATE).unwrap();
    assert_eq!(created.mlid.map(|mlid| mlid.to_wire()), Some(0xc000), "that of the broadcast group");
    assert_eq!(groups(&mut sa, 3), [broadcast(0x101), mgid]);
    ask(&mut sa, 3, Method::SET, &of(3, 4), JOIN).unwrap();
    ask(&mut sa, 4, Method::SET, &of(4, 8), JOIN).unwrap();
    ask(&mut sa, 2, Method::DELETE, &of(2, 1), JOIN).unwrap();
    assert_eq!(members(&mut sa, mgid), [(world.gid(3), 4), (world.gid(4), 8)]);
    // A send-only full member keeps the group, a send-only non-member does not.
    ask(&mut sa, 4, Method::DELETE, &of(4, 8), JOIN).unwrap();
    assert_eq!(groups(&mut sa, 3), [broadcast(0x101)]);
    assert_eq!(ask(&mut sa, 3, Method::DELETE, &of(3, 4), JOIN), Err(Status::SA_REQUEST_INVALID));
    assert_eq!(
        ask(&mut sa, 3, Method::SET, &of(3, 1), JOIN),
        Err(Status::SA_INSUFFICIENT_COMPONENTS),
        "it has to be created again"
    );
}

#[test]
fn nobody_joins_in_partitions_of_others_or_ends_their_membership() {
    let world = world();
    let mut sa = world.sa();
    ask(&mut sa, 2, Method::SET, &record(&world, broadcast(0x101), 2), JOIN).unwrap();
    ask(&mut sa, 2, Method::SET, &record(&world, chosen(1), 2), CREATE).unwrap();
    let invalid = Err(Status::SA_REQUEST_INVALID);
    // Another member of the partition names port 2.
    for method in [Method::SET, Method::DELETE] {
        assert_eq!(ask(&mut sa, 3, method, &record(&world, broadcast(0x101), 2), JOIN), invalid);
        assert_eq!(ask(&mut sa, 3, method, &record(&world, chosen(1), 2), JOIN), invalid);
    }
    // A port outside the partition is named, and one outside names a member.
    assert_eq!(ask(&mut sa, 2, Method::SET, &record(&world, broadcast(0x101), 6), JOIN), invalid);
    assert!(ask(&mut sa, 6, Method::SET, &record(&world, broadcast(0x101), 4), JOIN).is_err());
    // Whether a port exists that the requester must not see cannot be told from the status.
    let nobody = Gid::unicast(Gid::DEFAULT_PREFIX, Guid::from_wire(0xdead).unwrap());
    for mask in [JOIN, CREATE] {
        for mgid in [broadcast(0x101), broadcast(0x102), chosen(3)] {
            let hidden = record(&world, mgid, 2);
            let missing = McMemberRecord { port_gid: nobody, ..hidden.clone() };
            let told = ask(&mut sa, 6, Method::SET, &hidden, mask);
            assert!(told.is_err());
            assert_eq!(told, ask(&mut sa, 6, Method::SET, &missing, mask), "{mgid:?}");
        }
    }
    // Port 6 is in partition 0x102 only.
    for mask in [JOIN, CREATE] {
        let refused = ask(&mut sa, 6, Method::SET, &record(&world, broadcast(0x101), 6), mask);
        assert!(refused.is_err(), "{refused:?}");
    }
    assert_eq!(ask(&mut sa, 6, Method::SET, &record(&world, chosen(2), 6), CREATE), invalid);
    assert_eq!(ask(&mut sa, 6, Method::DELETE, &record(&world, chosen(1), 6), JOIN), invalid);
    let foreign = McMemberRecord {
        port_gid: Gid::unicast(0xfec0 << 48, world.guid(2)),
        ..record(&world, broadcast(0x101), 2)
    };
    assert_eq!(ask(&mut sa, 2, Method::SET, &foreign, JOIN), Err(Status::SA_INVALID_GID));
    assert_eq!(members(&mut sa, chosen(1)), [(world.gid(2), 1)]);
    assert_eq!(members(&mut sa, broadcast(0x101)), [(world.gid(2), 1)]);
    // The same port may do all of it in its own partition.
    let own = McMemberRecord {
        pkey: Pkey::from_wire(0x8102),
        sl: ServiceLevel::default(),
        ..record(&world, chosen(1), 6)
    };
    ask(&mut sa, 6, Method::SET, &own, CREATE).unwrap();
    assert_eq!(members(&mut sa, chosen(1)).len(), 2, "two groups of one GID in two partitions");
    assert_eq!(groups(&mut sa, 6).len(), 2);
}

#[test]
fn members_of_a_partition_join_on_behalf_of_each_other() {
    let world = world();
    let mut sa = world.sa();
    let of_4 = record(&world, broadcast(0x101), 4);
    let joined = ask(&mut sa, 2, Method::SET, &of_4, JOIN).unwrap();
    assert!(joined.proxy_join && joined.port_gid == world.gid(4));
    assert_eq!(ask(&mut sa, 6, Method::DELETE, &of_4, JOIN), Err(Status::SA_REQUEST_INVALID));
    // Any of them may end that, and what the port itself joined only the port.
    assert!(ask(&mut sa, 3, Method::DELETE, &of_4, JOIN).is_ok());
    assert!(!ask(&mut sa, 4, Method::SET, &of_4, JOIN).unwrap().proxy_join);
    assert_eq!(ask(&mut sa, 3, Method::DELETE, &of_4, JOIN), Err(Status::SA_REQUEST_INVALID));
    assert_eq!(members(&mut sa, broadcast(0x101)), [(world.gid(4), 1)]);
}

#[test]
fn a_join_has_to_meet_what_the_group_is() {
    let world = world();
    let mut sa = world.sa();
    let own = record(&world, broadcast(0x101), 2);
    let other_sl = McMemberRecord { sl: ServiceLevel::from_wire(4).unwrap(), ..own.clone() };
    let other_qkey = McMemberRecord { qkey: QKey::from_wire(7), ..own.clone() };
    let other_key = McMemberRecord { pkey: Pkey::from_wire(0x8102), ..own.clone() };
    let other_mtu = McMemberRecord { mtu: Mtu::B4096, ..own.clone() };
    let other_rate = McMemberRecord { rate: Rate::G40, ..own.clone() };
    let cases = [
        (other_sl, M::SL),
        (other_qkey, M::QKEY),
        (other_key, M::PKEY),
        (other_mtu, M::MTU | M::MTU_SELECTOR),
        (other_rate, M::RATE | M::RATE_SELECTOR),
    ];
    for (wrong, mask) in cases {
        let refused = ask(&mut sa, 2, Method::SET, &wrong, JOIN | mask);
        assert!(refused.is_err(), "{mask:?}: {refused:?}");
        ask(&mut sa, 2, Method::SET, &own, JOIN | mask).unwrap();
    }
    let greater = McMemberRecord { mtu_selector: Selector::GreaterThan, mtu: Mtu::B1024, ..own.clone() };
    ask(&mut sa, 2, Method::SET, &greater, JOIN | M::MTU | M::MTU_SELECTOR).unwrap();
}

#[test]
fn what_cannot_be_is_not_created() {
    let world = world();
    let mut sa = world.sa();
    let own = record(&world, chosen(3), 2);
    let invalid = Err(Status::SA_REQUEST_INVALID);
    let with = |change: fn(&mut McMemberRecord)| {
        let mut changed = own.clone();
        change(&mut changed);
        changed
    };
    let extra = M::MTU | M::MTU_SELECTOR | M::RATE | M::RATE_SELECTOR;
    let wrong = [
        ("not multicast", with(|it| it.mgid.0[0] = 0xfe)),
        ("reserved flags", with(|it| it.mgid.0[1] = 0x25)),
        ("an assigned GID", with(|it| it.mgid.0[..4].copy_from_slice(&[0xff, 0x12, 0xa0, 0x1b]))),
        (
            "IPv4 in another partition",
            with(|it| it.mgid.0[..6].copy_from_slice(&[0xff, 0x12, 0x40, 0x1b, 0x81, 2])),
        ),
        ("a service level of others", with(|it| it.sl = ServiceLevel::from_wire(5).unwrap())),
        ("a larger MTU than the partition", with(|it| it.mtu = Mtu::B4096)),
        ("a faster rate than the port", with(|it| it.rate = Rate::G200)),
        ("a partition of others", with(|it| it.pkey = Pkey::from_wire(0x8102))),
    ];
    for (what, record) in wrong {
        assert_eq!(ask(&mut sa, 2, Method::SET, &record, CREATE | extra), invalid, "{what}");
    }
    for missing in
        [M::QKEY, M::PKEY, M::SL, M::TRAFFIC_CLASS, M::FLOW_LABEL, M::MGID, M::PORT_GID, M::JOIN_STATE]
    {
        let refused = ask(&mut sa, 2, Method::SET, &own, CREATE.without(missing));
        assert_eq!(refused, Err(Status::SA_INSUFFICIENT_COMPONENTS), "{missing:?}");
    }
    let no_broadcast =
        McMemberRecord { pkey: Pkey::from_wire(0x8103), port_gid: world.gid(7), ..own.clone() };
    assert_eq!(
        ask(&mut sa, 7, Method::SET, &no_broadcast, CREATE),
        Err(Status::SA_NO_RESOURCES),
        "a partition without a broadcast group has no tree"
    );
    assert_eq!(groups(&mut sa, 2), [broadcast(0x101)]);
    ask(&mut sa, 2, Method::SET, &own, CREATE | extra).unwrap();
    // IP groups of the partition.
    for signature in [[0x40, 0x1b], [0x60, 0x1b]] {
        let mut ip = record(&world, chosen(9), 2);
        ip.mgid.0[..6].copy_from_slice(&[0xff, 0x12, signature[0], signature[1], 0x81, 1]);
        let other_qkey = McMemberRecord { qkey: QKey::from_wire(1), ..ip.clone() };
        assert_eq!(ask(&mut sa, 2, Method::SET, &other_qkey, CREATE), invalid);
        ask(&mut sa, 2, Method::SET, &ip, CREATE).unwrap();
    }
    // GIDs that subnet administration assigns differ.
    let any = record(&world, Gid::default(), 2);
    let first = ask(&mut sa, 2, Method::SET, &any, CREATE).unwrap().mgid;
    let second = ask(&mut sa, 2, Method::SET, &any, CREATE).unwrap().mgid;
    assert!(first != second && first.is_multicast() && first.0[1..4] == [0x12, 0xa0, 0x1b]);
}

#[test]
fn a_port_cannot_create_groups_without_end() {
    let world = world();
    let mut sa = world.sa();
    let mut create = |port: u16, number: u32| {
        let mut mgid = chosen(0);
        mgid.0[12..].copy_from_slice(&number.to_be_bytes());
        let create = mad(Method::SET, &record(&world, mgid, port), CREATE);
        sa.handle_datagram(NOW, &request(port, 0x7fff, create));
        sa.poll_transmit(NOW).map(|answer| answer.mad.status())
    };
    let answers: Vec<_> = (0..1_000_000).map(|number| create(2, number)).collect();
    let count = |wanted| answers.iter().filter(|answer| **answer == wanted).count();
    assert_eq!(count(Some(Status::OK)), 256, "the limit of groups for one port");
    assert_eq!(count(None), 1, "one waits");
    assert_eq!(count(Some(Status::SA_NO_RESOURCES)) + count(Some(Status::BUSY)), 999_743);
    assert!(count(Some(Status::BUSY)) > 700_000, "the token bucket limits requests");
    assert_eq!(create(3, 0), Some(Status::OK), "others are not affected");
    let counts = sa.counts();
    assert_eq!((counts.registrations, counts.refused), (257, 999_743));
}

#[test]
fn ports_that_lose_their_partition_lose_their_membership() {
    let before = world();
    let mut after = before.clone();
    after.keys.insert(2, vec![0x7fff]);
    let mut sa = before.sa();
    for port in [2, 3] {
        ask(&mut sa, port, Method::SET, &record(&before, broadcast(0x101), port), JOIN).unwrap();
        ask(&mut sa, port, Method::SET, &record(&before, chosen(port), port), CREATE).unwrap();
    }
    let directory = after.directory();
    sa.announce(std::sync::Arc::clone(&directory));
    assert_eq!(ask(&mut sa, 2, Method::SET, &record(&before, broadcast(0x101), 2), JOIN).ok(), None);
    sa.publish(directory);
    assert_eq!(members(&mut sa, broadcast(0x101)), [(before.gid(3), 1)]);
    assert_eq!(members(&mut sa, chosen(2)), [], "its only member is gone");
    assert_eq!(members(&mut sa, chosen(3)), [(before.gid(3), 1)]);
    assert_eq!(groups(&mut sa, 3).len(), 2);
}

#[test]
fn a_port_without_the_default_partition_joins_the_group_of_its_cluster() {
    let world = crate::handed_over::site();
    let mut sa = world.sa();
    let mut join = |port: u16, key: u16| {
        let mad = mad(Method::SET, &record(&world, broadcast(0x101), port), JOIN);
        answer(&mut sa, &request(port, key, mad)).mad.status()
    };
    assert_eq!(join(2, 0x8101), Status::OK, "with the key of the cluster");
    assert_eq!(join(3, 0x7ffe), Status::OK, "with the key of the management partition");
    assert_ne!(join(4, 0x7ffe), Status::OK, "a port of no cluster");
}
