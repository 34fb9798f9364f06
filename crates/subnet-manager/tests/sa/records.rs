//! The content of the other records, and unsupported requests.

use fabric_model::generate::FatTree;
use ib_wire::sa::{
    self, ComponentMask, GuidInfoRecord, LinearForwardingRecord, LinkRecord, NodeRecord, PkeyTableRecord,
    PortInfoRecord, SmInfoRecord, SwitchInfoRecord,
};
use ib_wire::{Attribute, ClassPortInfo, Lid, Method, NodeKind, PortNum, SmState, Status};

use crate::visibility::overlapping;
use crate::world::{M_KEY, World, exchange, get, plain, query, request, table};

fn open() -> World {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    World::new(tree).with(0x8101, 1..=22)
}

#[test]
fn class_port_info_lists_the_capabilities() {
    let answer =
        exchange(&mut open().sa(), &request(2, 0x7fff, plain(Method::GET, Attribute::CLASS_PORT_INFO)));
    let answer = answer.unwrap().mad;
    let info = ClassPortInfo::decode(answer.sa_data()).unwrap();
    assert_eq!((info.base_version, info.class_version, answer.sa_record_len()), (1, 2, 0));
    assert!(info.capability.has(sa::capability::PORT_INFO_CAPABILITY_MATCH));
    assert!(info.capability.has(sa::capability::MULTICAST));
    assert!(info.capability2.has(sa::capability2::SEND_ONLY_FULL_MEMBERS));
    assert!(info.capability2.has(sa::capability2::FULL_PORT_INFO));
    assert!(info.capability2.has(sa::capability2::MULTICAST_FDB_TOP));
}

#[test]
fn a_node_is_found_by_any_of_its_components() {
    let world = open();
    let mut sa = world.sa();
    let mut found = |pattern: &[(usize, &[u8])], mask| {
        let mad = query::<NodeRecord>(Method::GET, pattern, mask);
        get::<NodeRecord>(&mut sa, &request(2, 0x7fff, mad)).map(|node| node.lid.unwrap().to_wire())
    };
    let host = world.topology.end_nodes().nth(4).unwrap().1.clone();
    let port_guid = world.guid(5).to_wire().to_be_bytes();
    assert_eq!(found(&[(0, &[0, 5])], NodeRecord::LID), Ok(5));
    assert_eq!(found(&[(24, &port_guid)], NodeRecord::PORT_GUID), Ok(5));
    assert_eq!(
        found(&[(0, &[0, 6]), (24, &port_guid)], NodeRecord::PORT_GUID | NodeRecord::LID),
        Err(Status::SA_NO_RECORDS)
    );
    assert_eq!(found(&[(16, &host.guid.to_wire().to_be_bytes())], NodeRecord::NODE_GUID), Ok(5));
    let mut name = [0; 64];
    name[..host.description.len()].copy_from_slice(host.description.as_bytes());
    assert_eq!(found(&[(44, &name)], NodeRecord::DESCRIPTION), Ok(5));
    assert_eq!(
        found(&[(6, &[NodeKind::Switch.to_wire()])], NodeRecord::KIND),
        Err(Status::SA_TOO_MANY_RECORDS)
    );
    assert_eq!(found(&[(0, &[0, 99])], NodeRecord::LID), Err(Status::SA_NO_RECORDS));
    assert_eq!(found(&[(0, &[0, 0])], NodeRecord::LID), Err(Status::SA_NO_RECORDS));
    assert_eq!(found(&[], ComponentMask::NONE), Err(Status::SA_TOO_MANY_RECORDS));
}

#[test]
fn a_node_record_names_its_port() {
    let world = open();
    let mad = query::<NodeRecord>(Method::GET, &[(0, &[0, 5])], NodeRecord::LID);
    let node: NodeRecord = get(&mut world.sa(), &request(2, 0x7fff, mad)).unwrap();
    assert_eq!(node.node_info.port_guid, world.guid(5));
    assert_eq!(node.node_info.local_port, PortNum::new(1).unwrap());
}

#[test]
fn port_infos_hide_the_mkey_and_have_the_planned_lids() {
    let world = open();
    let mut sa = world.sa();
    let everything = query::<PortInfoRecord>(Method::GET_TABLE, &[], ComponentMask::NONE);
    let all: Vec<PortInfoRecord> = table(&mut sa, &request(1, 0xffff, everything.clone())).unwrap();
    assert_eq!(all.len(), 16 + 6 * 9, "every host port, and every port of every switch");
    assert!(all.iter().all(|record| record.port_info.m_key.is_none()));
    let host = all.iter().find(|record| record.lid == Lid::from_wire(5).map(Into::into)).unwrap();
    assert_eq!((host.port, host.port_info.lid.unwrap().to_wire()), (1, 5));
    assert_eq!(host.port_info.master_sm_lid.unwrap().to_wire(), 1);
    // An M_Key cannot be guessed by matching it either.
    let mut guess = everything;
    guess.sa_data_mut()[4..12].copy_from_slice(&M_KEY.to_be_bytes());
    guess.set_component_mask(PortInfoRecord::M_KEY);
    let found: Vec<PortInfoRecord> = table(&mut sa, &request(1, 0xffff, guess)).unwrap();
    assert_eq!(found, []);
    let one = query::<PortInfoRecord>(
        Method::GET,
        &[(0, &[0, 17]), (2, &[3])],
        PortInfoRecord::LID | PortInfoRecord::PORT,
    );
    let port: PortInfoRecord = get(&mut sa, &request(2, 0x7fff, one)).unwrap();
    assert_eq!((port.lid.unwrap().to_wire(), port.port), (17, 3));
}

#[test]
fn the_manager_is_found_by_its_capability() {
    let mut sa = open().sa();
    // What `saquery -s` sends: the IsSM bit, and in the modifier that bits match individually.
    let mut mad =
        query::<PortInfoRecord>(Method::GET_TABLE, &[(24, &[0, 0, 0, 2])], PortInfoRecord::CAPABILITY);
    mad.set_modifier(1 << 31);
    let found: Vec<PortInfoRecord> = table(&mut sa, &request(2, 0x7fff, mad.clone())).unwrap();
    assert_eq!(found.iter().map(|record| record.lid.unwrap().to_wire()).collect::<Vec<_>>(), [1]);
    mad.sa_data_mut()[27] = 0;
    let all: Vec<PortInfoRecord> = table(&mut sa, &request(2, 0x7fff, mad.clone())).unwrap();
    assert!(all.len() > 1, "no bit is requested");
    mad.set_modifier(0);
    let without: Vec<PortInfoRecord> = table(&mut sa, &request(2, 0x7fff, mad)).unwrap();
    assert_eq!(without.len(), all.len() - 1, "the whole mask compares");

    let mad = query::<SmInfoRecord>(Method::GET, &[], ComponentMask::NONE);
    let manager: SmInfoRecord = get(&mut sa, &request(2, 0x7fff, mad)).unwrap();
    assert_eq!(manager.lid.unwrap().to_wire(), 1);
    let info = manager.sm_info;
    assert_eq!((info.sm_key, info.activity, info.priority, info.state), (None, 227, 5, SmState::Master));
}

#[test]
fn tables_are_those_of_the_plan() {
    let world = overlapping().with(0x8001, 1..=22);
    let plan = world.plan();
    let mut sa = world.sa();
    let all = |attribute: Attribute| request(1, 0xffff, plain(Method::GET_TABLE, attribute));
    let forwarding: Vec<LinearForwardingRecord> =
        table(&mut sa, &all(Attribute::LINEAR_FORWARDING_RECORD)).unwrap();
    for record in forwarding {
        let switch = plan.switches().find(|switch| Some(switch.lid.into()) == record.lid).unwrap();
        assert_eq!(record.ports.encode(), switch.linear_block(record.block));
    }
    let keys: Vec<PkeyTableRecord> = table(&mut sa, &all(Attribute::PKEY_TABLE_RECORD)).unwrap();
    assert_eq!(keys.len(), 22 * 2 + 16, "64 entries of every end port, and every switch port before a host");
    let own = plan.adapter_port(world.guid(5)).unwrap();
    let record = keys.iter().find(|record| record.lid == Some(own.lid.into())).unwrap();
    assert_eq!((record.port, record.block, record.pkeys), (1, 0, own.pkeys.block(0)));

    let switches: Vec<SwitchInfoRecord> = table(&mut sa, &all(Attribute::SWITCH_INFO_RECORD)).unwrap();
    assert!(switches.iter().all(|switch| switch.switch_info.linear_fdb_top == 22));
    let links: Vec<LinkRecord> = table(&mut sa, &all(Attribute::LINK_RECORD)).unwrap();
    for link in &links {
        let back = |other: &&LinkRecord| {
            (other.from_lid, other.from_port, other.to_lid, other.to_port)
                == (link.to_lid, link.to_port, link.from_lid, link.from_port)
        };
        assert_eq!(links.iter().filter(back).count(), 1, "every cable has two directions");
    }
    let guids: Vec<GuidInfoRecord> = table(&mut sa, &all(Attribute::GUID_INFO_RECORD)).unwrap();
    let of_host: Vec<&GuidInfoRecord> =
        guids.iter().filter(|record| record.lid == Some(own.lid.into())).collect();
    assert_eq!(of_host.iter().map(|record| record.block).collect::<Vec<_>>(), [0, 1, 2], "20 GUIDs");
    assert_eq!(of_host[0].guids.0[0], Some(own.guid));
    assert!(of_host.iter().flat_map(|record| record.guids.0).filter(Option::is_some).count() == 1);
}

#[test]
fn an_empty_table_is_one_segment_with_offset_0() {
    let mad = query::<NodeRecord>(Method::GET_TABLE, &[(0, &[0, 99])], NodeRecord::LID);
    let answer = exchange(&mut open().sa(), &request(2, 0x7fff, mad)).unwrap().mad;
    assert_eq!((answer.status(), answer.method()), (Status::OK, Method::GET_TABLE_RESP));
    let header = answer.rmpp();
    assert_eq!((header.version, header.flags.0, header.segment, header.payload_length()), (1, 7, 1, 20));
    assert_eq!(answer.sa_record_len(), 0);
}

#[test]
fn unsupported_requests_get_the_matching_status() {
    let mut sa = open().sa();
    let mut status = |method: Method, attribute: Attribute| {
        exchange(&mut sa, &request(2, 0x7fff, plain(method, attribute))).map(|answer| {
            assert_eq!(answer.mad.rmpp().version, 0, "a refusal is no table");
            assert!(answer.mad.method().is_response());
            answer.mad.status()
        })
    };
    let path = Attribute::PATH_RECORD;
    assert_eq!(status(Method::GET, path), Some(Status::OK));
    assert_eq!(status(Method::SET, Attribute::NODE_RECORD), Some(Status::UNSUPPORTED_ATTRIBUTE));
    assert_eq!(status(Method::DELETE, Attribute::NODE_RECORD), Some(Status::UNSUPPORTED_ATTRIBUTE));
    assert_eq!(status(Method::SET, Attribute::SERVICE_RECORD), Some(Status::UNSUPPORTED_ATTRIBUTE));
    assert_eq!(status(Method::GET, Attribute::SERVICE_RECORD), Some(Status::UNSUPPORTED_ATTRIBUTE));
    assert_eq!(status(Method::GET_TABLE, Attribute::CLASS_PORT_INFO), Some(Status::UNSUPPORTED_ATTRIBUTE));
    assert_eq!(status(Method::GET, Attribute(0x7777)), Some(Status::UNSUPPORTED_ATTRIBUTE));
    assert_eq!(status(Method::GET_MULTI, path), Some(Status::UNSUPPORTED_METHOD));
    assert_eq!(status(Method::GET_TRACE_TABLE, path), Some(Status::UNSUPPORTED_METHOD));
    assert_eq!(status(Method(0x7e), path), Some(Status::UNSUPPORTED_METHOD));
    for method in [Method::GET_RESP, Method::TRAP, Method::TRAP_REPRESS, Method::REPORT, Method::REPORT_RESP]
    {
        assert_eq!(status(method, path), None, "{method:?} wants no answer");
    }
    let mut old = plain(Method::GET, path);
    old.0[2] = 1;
    assert_eq!(exchange(&mut sa, &request(2, 0x7fff, old)).unwrap().mad.status(), Status::BAD_VERSION);
    let counts = sa.counts();
    assert_eq!((counts.requests, counts.records, counts.refused, counts.dropped), (11, 1, 10, 4));
}

#[test]
fn a_node_without_facts_has_paths_but_no_record() {
    let world = open();
    let silent = world.topology.end_nodes().nth(4).unwrap().1.guid;
    let facts = world.facts().into_iter().filter(|facts| facts.info.node_guid != silent);
    let manager = subnet_manager::ManagerFacts::default();
    let mut sa = subnet_manager::SubnetAdministration::new();
    sa.publish(subnet_manager::Directory::new(world.plan().into(), manager, facts).into());
    let node = query::<NodeRecord>(Method::GET, &[(0, &[0, 5])], NodeRecord::LID);
    let status = get::<NodeRecord>(&mut sa, &request(2, 0x7fff, node)).map(|_| ());
    assert_eq!(status, Err(Status::SA_NO_RECORDS));
    let path = query::<sa::PathRecord>(
        Method::GET,
        &[(40, &[0, 5]), (42, &[0, 2])],
        sa::PathRecord::DLID | sa::PathRecord::SLID,
    );
    let path: sa::PathRecord = get(&mut sa, &request(2, 0x7fff, path)).unwrap();
    assert_eq!(path.rate, ib_wire::Rate::G100, "its switch knows how fast the cable is");
}
