//! While a plan changes: only what holds before and after is told.

use ib_wire::sa::{ComponentMask, McMemberRecord, NodeRecord, PathRecord};
use ib_wire::{Datagram, Method, Status, TransactionId};
use subnet_manager::Administration;

use crate::visibility::overlapping;
use crate::world::{NOW, World, get, question, request, table};

fn path_key(administration: &mut Administration, from: u16, to: u16) -> Option<u16> {
    let pattern: [(usize, &[u8]); 2] = [(40, &to.to_be_bytes()), (42, &from.to_be_bytes())];
    let mad = question::<PathRecord>(Method::GET, &pattern, PathRecord::DLID | PathRecord::SLID);
    match get::<PathRecord>(administration, &request(from, 0x7fff, mad)) {
        Ok(path) => Some(path.pkey.unwrap().to_wire()),
        Err(status) => {
            assert_eq!(status, Status::SA_NO_RECORDS);
            None
        }
    }
}

fn keys(world: &World, lid: u16) -> Vec<u16> {
    world.keys[&lid].clone()
}

#[test]
fn a_partition_that_grows_is_told_when_it_is_there() {
    let before = overlapping();
    let after = before.clone().with(0x8102, [9]);
    let mut administration = before.administration();
    let next = after.directory();
    assert_eq!(path_key(&mut administration, 6, 9), None);
    administration.announce(next.clone());
    assert_eq!(path_key(&mut administration, 6, 9), None);
    assert_eq!(
        path_key(&mut administration, 6, 5),
        Some(0x8102),
        "what does not change is told all the time"
    );
    administration.publish(next);
    assert_eq!(path_key(&mut administration, 6, 9), Some(0x8102));
}

#[test]
fn a_partition_that_shrinks_is_hidden_before_it_is_gone() {
    let before = overlapping();
    let mut after = before.clone();
    after.keys.insert(6, vec![0x7fff]);
    let mut administration = before.administration();
    let next = after.directory();
    assert_eq!(path_key(&mut administration, 5, 6), Some(0x8102));
    administration.announce(next.clone());
    assert_eq!(path_key(&mut administration, 5, 6), None);
    assert_eq!(path_key(&mut administration, 5, 2), Some(0x101));
    administration.publish(next);
    assert_eq!(path_key(&mut administration, 5, 6), None);
    // Somebody thinks better of it.
    administration.publish(before.directory());
    assert_eq!(path_key(&mut administration, 5, 6), Some(0x8102));
}

#[test]
fn a_member_that_becomes_limited_counts_as_limited_at_once() {
    let before = overlapping();
    let mut after = before.clone();
    after.keys.insert(3, vec![0x7fff, 0x101]);
    assert_eq!(keys(&before, 3), [0x7fff, 0x8101]);
    let mut administration = before.administration();
    assert_eq!(path_key(&mut administration, 3, 4), Some(0x8101));
    administration.announce(after.directory());
    assert_eq!(path_key(&mut administration, 3, 4), None, "both are limited");
    assert_eq!(path_key(&mut administration, 3, 2), Some(0x101));
}

#[test]
fn a_partition_that_moves_is_told_by_the_key_that_stays() {
    let before = overlapping().with(0x8010, [9, 10]).with(0x8020, [9, 10]);
    let after = overlapping().with(0x8020, [9, 10]).with(0x8005, [9, 10]);
    let mut administration = before.administration();
    assert_eq!(path_key(&mut administration, 9, 10), Some(0x8010));
    administration.announce(after.directory());
    assert_eq!(path_key(&mut administration, 9, 10), Some(0x8020));
    administration.publish(after.directory());
    assert_eq!(path_key(&mut administration, 9, 10), Some(0x8005));
}

#[test]
fn several_changes_announced_one_after_the_other_all_count() {
    let before = overlapping().with(0x8010, [9, 10]).with(0x8020, [9, 10]);
    let first = overlapping().with(0x8020, [9, 10]);
    let second = overlapping().with(0x8010, [9, 10]);
    let mut administration = before.administration();
    administration.announce(first.directory());
    administration.announce(second.directory());
    assert_eq!(path_key(&mut administration, 9, 10), None, "neither key is in all three");
    administration.publish(second.directory());
    assert_eq!(path_key(&mut administration, 9, 10), Some(0x8010));
}

#[test]
fn groups_that_go_are_hidden_before() {
    let mut before = overlapping();
    before.groups = vec![(0x101, 0), (0x102, 0)];
    let mut after = before.clone();
    after.groups.pop();
    let mut administration = before.administration();
    let groups = |administration: &mut Administration| {
        let mad = question::<McMemberRecord>(Method::GET_TABLE, &[], ComponentMask::NONE);
        table::<McMemberRecord>(administration, &request(5, 0x7fff, mad)).unwrap().len()
    };
    assert_eq!(groups(&mut administration), 2);
    administration.announce(after.directory());
    assert_eq!(groups(&mut administration), 1);
}

#[test]
fn a_table_under_way_does_not_outlive_what_it_tells() {
    let before = overlapping().with(0x8001, 2..=16);
    let after = overlapping();
    let mut administration = before.administration();
    let mut mad = question::<NodeRecord>(Method::GET_TABLE, &[], ComponentMask::NONE);
    mad.set_transaction(TransactionId(7));
    let asked: Datagram = request(9, 0x7fff, mad);
    administration.handle_datagram(NOW, &asked);
    let first = administration.poll_transmit(NOW).unwrap();
    administration.announce(after.directory());
    let told = administration.poll_transmit(NOW).unwrap();
    assert_eq!(told.mad.rmpp().kind, ib_wire::rmpp::RmppKind::Abort);
    let mut receiver = ib_wire::rmpp::Receiver::new();
    receiver.handle(&first.mad).unwrap();
    let mad = receiver.poll_transmit().unwrap();
    administration.handle_datagram(NOW, &Datagram { mad, ..asked });
    assert_eq!(administration.poll_transmit(NOW), None, "nothing more of it is sent");
    assert_eq!(administration.poll_timeout(), None);
}
