//! During a change of plans, only what both plans allow is answered.

use ib_wire::sa::{ComponentMask, McMemberRecord, NodeRecord, PathRecord};
use ib_wire::{Datagram, Method, Status, TransactionId};
use subnet_manager::SubnetAdministration;

use crate::visibility::overlapping;
use crate::world::{NOW, World, get, query, request, table};

fn path_key(sa: &mut SubnetAdministration, from: u16, to: u16) -> Option<u16> {
    let pattern: [(usize, &[u8]); 2] = [(40, &to.to_be_bytes()), (42, &from.to_be_bytes())];
    let mad = query::<PathRecord>(Method::GET, &pattern, PathRecord::DLID | PathRecord::SLID);
    match get::<PathRecord>(sa, &request(from, 0x7fff, mad)) {
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
fn a_growing_partition_is_visible_once_programmed() {
    let before = overlapping();
    let after = before.clone().with(0x8102, [9]);
    let mut sa = before.sa();
    let next = after.directory();
    assert_eq!(path_key(&mut sa, 6, 9), None);
    sa.announce(next.clone());
    assert_eq!(path_key(&mut sa, 6, 9), None);
    assert_eq!(path_key(&mut sa, 6, 5), Some(0x8102), "what does not change is always answered");
    sa.publish(next);
    assert_eq!(path_key(&mut sa, 6, 9), Some(0x8102));
}

#[test]
fn a_shrinking_partition_is_hidden_at_once() {
    let before = overlapping();
    let mut after = before.clone();
    after.keys.insert(6, vec![0x7fff]);
    let mut sa = before.sa();
    let next = after.directory();
    assert_eq!(path_key(&mut sa, 5, 6), Some(0x8102));
    sa.announce(next.clone());
    assert_eq!(path_key(&mut sa, 5, 6), None);
    assert_eq!(path_key(&mut sa, 5, 2), Some(0x101));
    sa.publish(next);
    assert_eq!(path_key(&mut sa, 5, 6), None);
    // The change is withdrawn.
    sa.publish(before.directory());
    assert_eq!(path_key(&mut sa, 5, 6), Some(0x8102));
}

#[test]
fn a_member_that_becomes_limited_counts_as_limited_at_once() {
    let before = overlapping();
    let mut after = before.clone();
    after.keys.insert(3, vec![0x7fff, 0x101]);
    assert_eq!(keys(&before, 3), [0x7fff, 0x8101]);
    let mut sa = before.sa();
    assert_eq!(path_key(&mut sa, 3, 4), Some(0x8101));
    sa.announce(after.directory());
    assert_eq!(path_key(&mut sa, 3, 4), None, "both are limited");
    assert_eq!(path_key(&mut sa, 3, 2), Some(0x101));
}

#[test]
fn during_a_change_paths_use_the_partition_that_stays() {
    let before = overlapping().with(0x8010, [9, 10]).with(0x8020, [9, 10]);
    let after = overlapping().with(0x8020, [9, 10]).with(0x8005, [9, 10]);
    let mut sa = before.sa();
    assert_eq!(path_key(&mut sa, 9, 10), Some(0x8010));
    sa.announce(after.directory());
    assert_eq!(path_key(&mut sa, 9, 10), Some(0x8020));
    sa.publish(after.directory());
    assert_eq!(path_key(&mut sa, 9, 10), Some(0x8005));
}

#[test]
fn several_announced_changes_all_apply() {
    let before = overlapping().with(0x8010, [9, 10]).with(0x8020, [9, 10]);
    let first = overlapping().with(0x8020, [9, 10]);
    let second = overlapping().with(0x8010, [9, 10]);
    let mut sa = before.sa();
    sa.announce(first.directory());
    sa.announce(second.directory());
    assert_eq!(path_key(&mut sa, 9, 10), None, "neither key is in all three");
    sa.publish(second.directory());
    assert_eq!(path_key(&mut sa, 9, 10), Some(0x8010));
}

#[test]
fn removed_groups_are_hidden_at_once() {
    let mut before = overlapping();
    before.groups = vec![(0x101, 0), (0x102, 0)];
    let mut after = before.clone();
    after.groups.pop();
    let mut sa = before.sa();
    let groups = |sa: &mut SubnetAdministration| {
        let mad = query::<McMemberRecord>(Method::GET_TABLE, &[], ComponentMask::NONE);
        table::<McMemberRecord>(sa, &request(5, 0x7fff, mad)).unwrap().len()
    };
    assert_eq!(groups(&mut sa), 2);
    sa.announce(after.directory());
    assert_eq!(groups(&mut sa), 1);
}

#[test]
fn a_transfer_is_aborted_when_its_records_are_hidden() {
    let before = overlapping().with(0x8001, 2..=16);
    let after = overlapping();
    let mut sa = before.sa();
    let mut mad = query::<NodeRecord>(Method::GET_TABLE, &[], ComponentMask::NONE);
    mad.set_transaction(TransactionId(7));
    let requested: Datagram = request(9, 0x7fff, mad);
    sa.handle_datagram(NOW, &requested);
    let first = sa.poll_transmit(NOW).unwrap();
    sa.announce(after.directory());
    let told = sa.poll_transmit(NOW).unwrap();
    assert_eq!(told.mad.rmpp().kind, ib_wire::rmpp::RmppKind::Abort);
    let mut receiver = ib_wire::rmpp::Receiver::new();
    receiver.handle(&first.mad).unwrap();
    let mad = receiver.poll_transmit().unwrap();
    sa.handle_datagram(NOW, &Datagram { mad, ..requested });
    assert_eq!(sa.poll_transmit(NOW), None, "nothing more of it is sent");
    assert_eq!(sa.poll_timeout(), None);
}
