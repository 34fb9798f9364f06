//! Subscriptions to notices, and who gets which reports.

use std::time::Duration;

use ib_wire::notice::{
    GidEvent, InformInfo, InformInfoRecord, InformScope, Notice, Subscription, SwitchEvent, Trap,
};
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord};
use ib_wire::{Attribute, Datagram, Gid, LidAddress, Mad, Method, QueuePair, Status};
use subnet_manager::SubnetAdministration;

use crate::visibility::overlapping;
use crate::world::{NOW, World, plain, query, request, table};

/// A subscription to all generic notices of a number, or to all of them.
fn inform(number: Option<u16>, subscription: Subscription) -> InformInfo {
    InformInfo {
        gid: Gid::default(),
        lid_range_begin: Some(LidAddress::Permissive),
        lid_range_end: None,
        scope: InformScope::Generic,
        subscription,
        kind: InformInfo::ALL,
        number: number.unwrap_or(InformInfo::ALL),
        qp: QueuePair::GENERAL_MANAGEMENT,
        response_time: 18,
        producer_or_vendor: InformInfo::ALL_PRODUCERS,
    }
}

fn set(sa: &mut SubnetAdministration, port: u16, inform: &InformInfo) -> Status {
    let mut mad = plain(Method::SET, Attribute::INFORM_INFO);
    mad.sa_data_mut()[..InformInfo::LEN].copy_from_slice(&inform.encode());
    sa.handle_datagram(NOW, &request(port, if port == 1 { 0xffff } else { 0x7fff }, mad));
    let answer = sa.poll_transmit(NOW).expect("an answer");
    assert_eq!((answer.mad.method(), answer.dlid.to_wire()), (Method::GET_RESP, port));
    if answer.mad.status() == Status::OK {
        assert_eq!(InformInfo::decode(answer.mad.sa_data()).as_ref(), Ok(inform));
    }
    answer.mad.status()
}

fn subscribe(sa: &mut SubnetAdministration, port: u16, number: Option<u16>) {
    assert_eq!(set(sa, port, &inform(number, Subscription::Subscribe)), Status::OK);
}

/// Everything that is sent: to whom, and the notice. Every report is answered.
fn reports(sa: &mut SubnetAdministration, now: Duration) -> Vec<(u16, Trap)> {
    let mut all = Vec::new();
    while let Some(sent) = sa.poll_transmit(now) {
        if sent.mad.method() != Method::REPORT {
            continue;
        }
        let notice = Notice::decode(sent.mad.sa_data()).unwrap();
        all.push((sent.dlid.to_wire(), notice.trap().unwrap().clone()));
        sa.handle_datagram(now, &response(&sent));
    }
    all
}

fn response(report: &Datagram) -> Datagram {
    let mut mad: Mad = report.mad.clone();
    mad.set_method(Method::REPORT_RESP);
    Datagram { slid: report.dlid, dlid: report.slid, mad, ..report.clone() }
}

/// A fabric without a host.
fn without(world: &World, lid: u16) -> World {
    let mut after = world.clone();
    after.keys.insert(lid, Vec::new());
    after
}

#[test]
fn ports_that_come_and_go_are_reported_to_those_who_may_see_them() {
    let world = overlapping();
    let mut sa = world.sa();
    // Port 3 shares a partition with 2, port 6 does not, port 1 is the manager's.
    for port in [1, 3, 6] {
        subscribe(&mut sa, port, None);
    }
    subscribe(&mut sa, 4, Some(66));
    let after = without(&world, 2);
    sa.publish(after.directory());
    let gone = reports(&mut sa, NOW);
    let to: Vec<u16> = gone.iter().map(|(port, _)| *port).collect();
    assert_eq!(to, [3], "the manager's port goes on seeing it: {gone:?}");
    assert!(
        gone.iter()
            .all(|(_, trap)| { matches!(trap, Trap::GidOutOfService(event) if event.gid == world.gid(2)) })
    );
    sa.publish(world.directory());
    let came = reports(&mut sa, NOW);
    assert!(matches!(&came[..], [(3, Trap::GidInService(event))] if event.gid == world.gid(2)), "{came:?}");
    assert_eq!(sa.poll_timeout(), None, "everything was answered");
}

#[test]
fn groups_are_reported_in_their_partition() {
    let mut world = overlapping();
    world.groups = vec![(0x101, 0), (0x102, 0)];
    let mut sa = world.sa();
    for port in [1, 3, 6] {
        subscribe(&mut sa, port, Some(66));
        subscribe(&mut sa, port, Some(67));
    }
    let mut mgid = [0; 16];
    mgid[..2].copy_from_slice(&[0xff, 0x15]);
    let mut ask = |method, state| {
        type M = McMemberRecord;
        let gid = world.gid(2).0;
        let pattern: [(usize, &[u8]); 5] =
            [(0, &mgid), (16, &gid), (32, &[0, 0, 0, 9]), (40, &[0x81, 1]), (48, &[state])];
        let mask = M::MGID | M::PORT_GID | M::JOIN_STATE | M::QKEY | M::PKEY;
        let mask = mask | M::SL | M::TRAFFIC_CLASS | M::FLOW_LABEL;
        let mad = query::<McMemberRecord>(method, &pattern, mask);
        sa.handle_datagram(NOW, &request(2, 0x7fff, mad));
        assert_eq!(sa.poll_transmit(NOW).unwrap().mad.status(), Status::OK);
        let told = reports(&mut sa, NOW);
        told.into_iter().map(|(port, trap)| (port, trap.number())).collect::<Vec<_>>()
    };
    assert_eq!(ask(Method::SET, JoinState::FULL.0), [(1, 66), (3, 66)]);
    assert_eq!(ask(Method::SET, JoinState::NON_MEMBER.0), [], "it exists");
    assert_eq!(ask(Method::DELETE, JoinState::FULL.0), [(1, 67), (3, 67)]);
}

#[test]
fn notices_of_devices_reach_only_the_ports_that_the_operator_named() {
    let world = overlapping();
    let mut sa = world.sa();
    for port in [1, 2, 3] {
        subscribe(&mut sa, port, None);
        subscribe(&mut sa, port, Some(128));
    }
    let lid = LidAddress::from_wire(17);
    let notice = Notice::generic(Trap::LinkStateChanged(SwitchEvent { lid }), lid);
    let told = |sa: &mut SubnetAdministration, seconds, sender, notice: &Notice| {
        let now = NOW + Duration::from_secs(seconds);
        sa.forward(now, LidAddress::from_wire(sender).unwrap(), notice);
        let told: Vec<Datagram> = std::iter::from_fn(|| sa.poll_transmit(now)).collect();
        told.iter().for_each(|report| sa.handle_datagram(now, &response(report)));
        let issuer = |report: &Datagram| Notice::decode(report.mad.sa_data()).unwrap().issuer_gid;
        told.iter().map(|report| (report.dlid.to_wire(), issuer(report))).collect::<Vec<_>>()
    };
    let from = |lid: u16| world.gid(lid);
    assert_eq!(told(&mut sa, 0, 3, &notice), [(1, from(3))], "once, although two subscriptions match");
    assert_eq!(told(&mut sa, 0, 3, &notice), [], "not again in the same second");
    assert_eq!(told(&mut sa, 0, 2, &notice), [(1, from(2))], "the sender is the issuer, whatever it says");
    sa.set_event_ports([world.guid(3)].into());
    assert_eq!(told(&mut sa, 1, 3, &notice), [(1, from(3)), (3, from(3))]);
    let gone = Trap::GidOutOfService(GidEvent { gid: world.gid(2) });
    assert_eq!(told(&mut sa, 2, 3, &Notice::generic(gone, lid)), [], "only the manager says so");
    assert_eq!(told(&mut sa, 3, 99, &notice), [], "nobody has this LID");
}

#[test]
fn a_report_is_repeated_and_then_given_up() {
    let world = overlapping();
    let mut sa = world.sa();
    subscribe(&mut sa, 3, Some(65));
    sa.publish(without(&world, 2).directory());
    sa.publish(world.directory());
    sa.publish(without(&world, 2).directory());
    let mut now = NOW;
    let mut sent = Vec::new();
    for _ in 0..10 {
        while let Some(report) = sa.poll_transmit(now) {
            sent.push((now - NOW, report.mad.transaction()));
        }
        let Some(due) = sa.poll_timeout() else { break };
        now = due;
        sa.handle_timeout(now);
    }
    let seconds: Vec<u64> = sent.iter().map(|(at, _)| at.as_secs()).collect();
    assert_eq!(seconds, [0, 1, 2, 3, 4, 5], "one report after the other, three times each");
    assert_eq!(sent.iter().filter(|(_, transaction)| *transaction == sent[0].1).count(), 3);
    let counts = sa.counts();
    assert_eq!((counts.reports, counts.reports_dropped), (6, 2));
}

#[test]
fn only_the_subscriber_itself_ends_a_report() {
    let world = overlapping();
    let mut sa = world.sa();
    subscribe(&mut sa, 3, Some(65));
    sa.publish(without(&world, 2).directory());
    let report = sa.poll_transmit(NOW).unwrap();
    let stranger = Datagram { slid: LidAddress::from_wire(9).unwrap(), ..response(&report) };
    sa.handle_datagram(NOW, &stranger);
    assert!(sa.poll_timeout().is_some(), "it is still waited for");
    sa.handle_datagram(NOW, &response(&report));
    assert_eq!(sa.poll_timeout(), None);
}

#[test]
fn subscriptions_are_listed_limited_and_ended() {
    let world = overlapping();
    let mut sa = world.sa();
    let unknown = set(&mut sa, 3, &inform(Some(64), Subscription::Unsubscribe));
    assert_eq!(unknown, Status::SA_REQUEST_INVALID);
    subscribe(&mut sa, 3, Some(64));
    subscribe(&mut sa, 3, Some(64));
    subscribe(&mut sa, 6, Some(65));
    let mut listed = |port: u16| {
        let mad = query::<InformInfoRecord>(Method::GET_TABLE, &[], ComponentMask::NONE);
        let key = if port == 1 { 0xffff } else { 0x7fff };
        let records: Vec<InformInfoRecord> = table(&mut sa, &request(port, key, mad)).unwrap();
        records.iter().map(|record| (record.subscriber, record.inform_info.number)).collect::<Vec<_>>()
    };
    assert_eq!(listed(3), [(world.gid(3), 64)]);
    assert_eq!(listed(2), []);
    assert_eq!(listed(1), [(world.gid(3), 64), (world.gid(6), 65)]);
    assert_eq!(set(&mut sa, 3, &inform(Some(64), Subscription::Unsubscribe)), Status::OK);
    sa.publish(without(&world, 2).directory());
    assert_eq!(reports(&mut sa, NOW), []);
    let granted = (0..100).filter(|number| {
        set(&mut sa, 3, &inform(Some(1000 + number), Subscription::Subscribe)) == Status::OK
    });
    assert_eq!(granted.count(), 32);
}
