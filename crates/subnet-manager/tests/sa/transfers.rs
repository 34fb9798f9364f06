//! RMPP transfers: losses, silence, limits.

use std::time::Duration;

use fabric_model::generate::FatTree;
use ib_wire::rmpp::{Receiver, RmppKind};
use ib_wire::sa::{self, ComponentMask, NodeRecord, PathRecord};
use ib_wire::{Attribute, Datagram, Method, Status, TransactionId};
use subnet_manager::SubnetAdministration;

use crate::world::{NOW, World, plain, query, request, table};

/// Enough hosts for tables of many segments; all in one partition.
fn many() -> World {
    let tree = FatTree { radix: 16, ..FatTree::with_hosts(128) }.generate().unwrap();
    World::new(tree).with(0x8101, 2..=128)
}

fn nodes_wanted(requester: u16, transaction: u64) -> Datagram {
    let mut mad = query::<NodeRecord>(Method::GET_TABLE, &[], ComponentMask::NONE);
    mad.set_transaction(TransactionId(transaction));
    request(requester, 0x7fff, mad)
}

/// Carries datagrams in both directions, dropping those that `lose` selects, until nothing is left to send.
/// Returns the number of records.
fn transfer(
    requested: &Datagram,
    sa: &mut SubnetAdministration,
    mut lose: impl FnMut(u32) -> bool,
) -> Option<usize> {
    let (mut receiver, mut now, mut carried, mut arrived) = (Receiver::new(), NOW, 0, None);
    sa.handle_datagram(now, requested);
    loop {
        while let Some(answer) = sa.poll_transmit(now) {
            carried += 1;
            if lose(carried) {
                continue;
            }
            let message = receiver.handle(&answer.mad).unwrap();
            if let Some(mad) = receiver.poll_transmit() {
                carried += 1;
                if !lose(carried) {
                    sa.handle_datagram(now, &Datagram { mad, ..requested.clone() });
                }
            }
            if let Some(message) = message {
                let step = message.header.sa_record_len();
                arrived = Some(sa::records::<NodeRecord>(&message.data, step).count());
            }
        }
        let Some(next) = sa.poll_timeout() else { return arrived };
        now = next;
        sa.handle_timeout(now);
    }
}

#[test]
fn a_long_table_arrives_whichever_datagram_is_lost() {
    let world = many();
    let mut sa = world.sa();
    let segments = (128 * 112_u32).div_ceil(200);
    for lost in 0..=segments + 3 {
        let requested = nodes_wanted(2, u64::from(lost));
        assert_eq!(transfer(&requested, &mut sa, |number| number == lost), Some(128), "{lost} was lost");
    }
    assert_eq!(transfer(&nodes_wanted(2, 999), &mut sa, |number| number % 10 == 7), Some(128));
    assert_eq!(sa.counts().transfers_failed, 0);
}

#[test]
fn a_transfer_without_acknowledgements_is_aborted() {
    let mut sa = many().sa();
    assert_eq!(sa.poll_timeout(), None);
    sa.handle_datagram(NOW, &nodes_wanted(2, 1));
    let mut kinds = Vec::new();
    let mut now = NOW;
    loop {
        kinds.extend(std::iter::from_fn(|| sa.poll_transmit(now)).map(|sent| sent.mad.rmpp().kind));
        let Some(next) = sa.poll_timeout() else { break };
        assert!(next > now, "time has to pass");
        now = next;
        sa.handle_timeout(now);
    }
    assert_eq!(kinds, [RmppKind::Data, RmppKind::Data, RmppKind::Data, RmppKind::Data, RmppKind::Abort]);
    assert_eq!(sa.counts().transfers_failed, 1);
}

#[test]
fn a_table_of_one_datagram_needs_no_acknowledgement() {
    let mut sa = many().sa();
    let mad = query::<NodeRecord>(Method::GET_TABLE, &[(0, &[0, 3])], NodeRecord::LID);
    sa.handle_datagram(NOW, &request(2, 0x7fff, mad));
    assert!(sa.poll_transmit(NOW).is_some());
    assert_eq!((sa.poll_transmit(NOW), sa.poll_timeout()), (None, None));
    assert_eq!(sa.counts().transfers, 0);
}

#[test]
fn a_repeated_request_restarts_its_transfer() {
    let mut sa = many().sa();
    for _ in 0..20 {
        sa.handle_datagram(NOW, &nodes_wanted(2, 5));
        let first = sa.poll_transmit(NOW).unwrap();
        assert_eq!((first.mad.status(), first.mad.rmpp().segment), (Status::OK, 1));
        assert_eq!(sa.poll_transmit(NOW), None, "the old transfer is gone");
    }
    assert_eq!(transfer(&nodes_wanted(2, 5), &mut sa, |_| false), Some(128));
}

#[test]
fn software_without_acknowledgements_can_query_again() {
    let mut sa = many().sa();
    for transaction in 0..50 {
        sa.handle_datagram(NOW, &nodes_wanted(2, transaction));
        let first = sa.poll_transmit(NOW).unwrap();
        assert_eq!((first.mad.status(), first.mad.transaction()), (Status::OK, TransactionId(transaction)));
    }
}

/// Acknowledges the first segment of a transfer, so that it counts as active.
fn begin(sa: &mut SubnetAdministration, requested: &Datagram) -> Status {
    sa.handle_datagram(NOW, requested);
    let mut status = None;
    while let Some(answer) = sa.poll_transmit(NOW) {
        if answer.mad.transaction() != requested.mad.transaction() || answer.dlid != requested.slid {
            continue;
        }
        status.get_or_insert(answer.mad.status());
        let mut receiver = Receiver::new();
        if answer.mad.rmpp().segment == 1 && receiver.handle(&answer.mad).is_ok() {
            let mad = receiver.poll_transmit().unwrap();
            sa.handle_datagram(NOW, &Datagram { mad, ..requested.clone() });
        }
    }
    status.unwrap()
}

#[test]
fn transfers_are_limited_per_port_and_in_total() {
    let mut sa = many().sa();
    let statuses: Vec<Status> =
        (0..6).map(|transaction| begin(&mut sa, &nodes_wanted(2, transaction))).collect();
    assert_eq!(statuses, [Status::OK, Status::OK, Status::OK, Status::OK, Status::BUSY, Status::BUSY]);
    assert_eq!(begin(&mut sa, &nodes_wanted(3, 1)), Status::OK, "another port has its own");
    let started = (4..=128).filter(|port| begin(&mut sa, &nodes_wanted(*port, 1)) == Status::OK).count();
    assert_eq!(started, 64 - 5);
    assert_eq!(sa.counts().busy, 2 + 125 - 59);
    // Short responses need no transfer.
    let one = query::<NodeRecord>(Method::GET_TABLE, &[(0, &[0, 3])], NodeRecord::LID);
    assert_eq!(table::<NodeRecord>(&mut sa, &request(100, 0x7fff, one)).map(|nodes| nodes.len()), Ok(1));
    // Later there is room again.
    let mut now = NOW;
    while let Some(next) = sa.poll_timeout() {
        now = next;
        sa.handle_timeout(now);
        while sa.poll_transmit(now).is_some() {}
    }
    assert!(now < NOW + Duration::from_secs(10));
    assert_eq!(begin(&mut sa, &nodes_wanted(2, 9)), Status::OK);
}

#[test]
fn no_port_can_acknowledge_for_another() {
    let mut sa = many().sa();
    let requested = nodes_wanted(2, 1);
    sa.handle_datagram(NOW, &requested);
    let first = sa.poll_transmit(NOW).unwrap();
    let mut receiver = Receiver::new();
    receiver.handle(&first.mad).unwrap();
    let acknowledged = receiver.poll_transmit().unwrap();
    sa.handle_datagram(NOW, &request(3, 0x7fff, acknowledged.clone()));
    assert_eq!(sa.poll_transmit(NOW), None);
    sa.handle_datagram(NOW, &Datagram { mad: acknowledged, ..requested });
    assert!(sa.poll_transmit(NOW).is_some());
}

#[test]
fn a_port_beyond_its_budget_waits_and_then_gets_busy() {
    let mut sa = many().sa();
    // All pairs of 128 hosts and all 152 ports, none with this MTU: much work, no records.
    let nothing =
        query::<PathRecord>(Method::GET_TABLE, &[(54, &[0x05])], PathRecord::MTU | PathRecord::MTU_SELECTOR);
    let numbered = |number: u64| {
        let mut mad = nothing.clone();
        mad.set_transaction(TransactionId(number));
        request(2, 0x7fff, mad)
    };
    let mut statuses = Vec::new();
    for number in 1..=60 {
        sa.handle_datagram(NOW, &numbered(number));
        let answer = sa.poll_transmit(NOW);
        statuses.push(answer.map(|answer| (answer.mad.transaction().0, answer.mad.status())));
    }
    let in_budget = (1 << 20) / (128 * 152 + 24 + 4);
    let answered = (1..=in_budget).map(|number| Some((number, Status::OK)));
    let refused = (in_budget + 2..=60).map(|number| Some((number, Status::BUSY)));
    assert_eq!(
        statuses,
        answered.chain([None]).chain(refused).collect::<Vec<_>>(),
        "one waits, the rest is refused"
    );
    sa.handle_datagram(NOW, &numbered(in_budget + 1));
    assert_eq!(sa.poll_transmit(NOW), None, "the one that waits is sent again");
    let one = query::<PathRecord>(
        Method::GET_TABLE,
        &[(40, &[0, 3]), (42, &[0, 2])],
        PathRecord::SLID | PathRecord::DLID,
    );
    let soon = NOW + Duration::from_millis(1);
    sa.handle_datagram(soon, &request(2, 0x7fff, one));
    assert_eq!(
        sa.poll_transmit(soon).unwrap().mad.status(),
        Status::OK,
        "small ones are answered a moment later"
    );
    assert!(table::<PathRecord>(&mut sa, &request(3, 0x7fff, nothing.clone())).is_ok(), "another port");
    sa.handle_datagram(NOW + Duration::from_secs(1), &request(2, 0x7fff, nothing));
    let later = sa.poll_transmit(NOW + Duration::from_secs(1)).unwrap();
    assert_eq!(later.mad.status(), Status::OK, "a second later");
    assert_eq!(sa.counts().busy, 60 - in_budget - 1);
    // The one that waited is answered, once, when its port has recovered.
    let due = sa.poll_timeout().unwrap();
    assert!(due > NOW && due < NOW + Duration::from_secs(4));
    sa.handle_timeout(due);
    let answer = sa.poll_transmit(due).unwrap();
    assert_eq!((answer.mad.transaction().0, answer.mad.status()), (in_budget + 1, Status::OK));
    assert_eq!((sa.poll_transmit(due), sa.poll_timeout()), (None, None));
}

#[test]
fn queued_responses_are_limited() {
    let mut sa = many().sa();
    for _ in 0..10_000 {
        sa.handle_datagram(NOW, &request(2, 0x7fff, plain(Method::GET, Attribute::CLASS_PORT_INFO)));
    }
    assert_eq!(std::iter::from_fn(|| sa.poll_transmit(NOW)).count(), 4096);
    assert_eq!(sa.counts().dropped, 10_000 - 4096);
}
