//! Requests that stock tools sent to OpenSM: the responses here have the form of OpenSM's.

use fabric_model::generate::FatTree;
use ib_wire::{Attribute, Mad, Method, Status};

use crate::joins::broadcast;
use crate::world::{World, exchange, request};

/// Captured requests to OpenSM and its responses, by name.
fn captured() -> Vec<(String, Mad, Mad)> {
    let text = include_str!("../../../../fixtures/mads/sa.json");
    let exchanges: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
    let mad = |exchange: &serde_json::Value, side: &str| {
        let digits = exchange[side].as_str().unwrap();
        let byte = |place: usize| u8::from_str_radix(&digits[2 * place..2 * place + 2], 16).unwrap();
        Mad(std::array::from_fn(byte))
    };
    let name = |exchange: &serde_json::Value| exchange["name"].as_str().unwrap().to_owned();
    exchanges.iter().map(|each| (name(each), mad(each, "request"), mad(each, "response"))).collect()
}

/// Requests without a record here, and why.
const EMPTY_HERE: [&str; 3] =
    ["gettable-mcmemberrecord-groups", "gettable-mcmemberrecord-members", "gettable-portinforecord"];

#[test]
fn captured_requests_of_stock_tools_are_answered() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    let world = World::new(tree).with(0x8001, 1..=22);
    let mut sa = world.sa();
    let offered = [
        Attribute::CLASS_PORT_INFO,
        Attribute::NODE_RECORD,
        Attribute::PORT_INFO_RECORD,
        Attribute::SM_INFO_RECORD,
        Attribute::LINK_RECORD,
        Attribute::GUID_INFO_RECORD,
        Attribute::PKEY_TABLE_RECORD,
        Attribute::PATH_RECORD,
        Attribute::MC_MEMBER_RECORD,
    ];
    let mut compared = 0;
    for (name, requested, theirs) in captured() {
        let is_read = [Method::GET, Method::GET_TABLE].contains(&requested.method());
        let answer = exchange(&mut sa, &request(1, 0xffff, requested.clone())).unwrap().mad;
        if !is_read || !offered.contains(&requested.attribute()) {
            continue;
        }
        // OpenSM decides about P_Key tables by SM_Key, not by requester.
        if theirs.status() == Status::OK {
            assert_eq!(answer.status(), Status::OK, "{name}");
        }
        assert_eq!(answer.method(), theirs.method(), "{name}");
        assert_eq!(answer.attribute(), theirs.attribute(), "{name}");
        assert_eq!(answer.modifier(), theirs.modifier(), "{name}");
        assert_eq!(answer.component_mask(), theirs.component_mask(), "{name}");
        assert_eq!(answer.sm_key(), None, "{name}");
        assert_eq!(answer.transaction(), requested.transaction(), "{name}");
        assert_eq!(answer.rmpp().version == 1, requested.method() == Method::GET_TABLE, "{name}");
        if !EMPTY_HERE.contains(&name.as_str()) && theirs.status() == Status::OK {
            assert_eq!(answer.sa_record_len(), theirs.sa_record_len(), "{name}");
        }
        compared += 1;
    }
    assert_eq!(compared, 14);
}

#[test]
fn a_path_record_equals_that_of_opensm() {
    let (_, requested, theirs) =
        captured().into_iter().find(|(name, ..)| name == "gettable-pathrecord").unwrap();
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    let world = World::new(tree).with(0xffff, 5..=6);
    let ours = exchange(&mut world.sa(), &request(5, 0xffff, requested)).unwrap().mad;
    let mut expected = *theirs.sa_data();
    expected[8..24].copy_from_slice(&world.gid(6).0);
    expected[24..40].copy_from_slice(&world.gid(5).0);
    // Here on one leaf with an MTU of 4096 at 100 Gb/s; there 2048 at 10.
    (expected[54], expected[55]) = (0x85, 0x90);
    assert_eq!(ours.sa_data()[..64], expected[..64]);
}

/// Join and leave of the IPv4 broadcast group of the default partition, by a port that has no other.
#[test]
fn a_join_and_a_leave_equal_those_of_opensm() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    let mut world = World::new(tree).with(0xffff, 5..=6);
    world.groups = vec![(0x7fff, 0)];
    let mut sa = world.sa();
    let mut ask = |wanted: &str| {
        let (_, mut requested, theirs) = captured().into_iter().find(|(name, ..)| name == wanted).unwrap();
        requested.sa_data_mut()[..16].copy_from_slice(&broadcast(0x7fff).0);
        requested.sa_data_mut()[16..32].copy_from_slice(&world.gid(5).0);
        let ours = exchange(&mut sa, &request(5, 0xffff, requested)).unwrap().mad;
        assert_eq!((ours.method(), ours.status()), (theirs.method(), theirs.status()));
        assert_eq!(ours.sa_record_len(), theirs.sa_record_len());
        let mut expected = *theirs.sa_data();
        expected[..16].copy_from_slice(&broadcast(0x7fff).0);
        expected[16..32].copy_from_slice(&world.gid(5).0);
        (ours, expected)
    };
    let (joined, expected) = ask("set-mcmemberrecord");
    assert_eq!(joined.sa_data()[..52], expected[..52]);
    // OpenSM returns the request with the join states that are left; here the rest is that of the group.
    let (left, expected) = ask("delete-mcmemberrecord");
    assert_eq!(left.sa_data()[..32], expected[..32]);
    assert_eq!(left.sa_data()[48..52], expected[48..52], "scope, and no join state");
}
