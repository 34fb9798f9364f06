//! Addresses and transactions of the exchange between a function and its view.

use ib_wire::{DirectedRoute, PortNum, Status};

use super::*;

const NOW: Duration = Duration::from_secs(1);
/// On the fabric: own LID, LID of the subnet manager.
const OWN: u16 = 4;
const MANAGER: u16 = 3;
/// The same in the view.
const OWN_THERE: u16 = 2;
const MANAGER_THERE: u16 = 9;
/// What the kernel writes: bits of its agent, too.
const TRANSACTION: TransactionId = TransactionId(0xdead_0007_0000_0042);

fn lid(raw: u16) -> Option<Lid> {
    Lid::from_wire(raw)
}

fn address(raw: u16) -> LidAddress {
    LidAddress::from_wire(raw).unwrap()
}

fn key(raw: u16) -> Pkey {
    Pkey::from_wire(raw).unwrap()
}

fn own() -> FunctionAddress {
    FunctionAddress { lid: lid(OWN), manager: lid(MANAGER), key: Some(key(0x8123)) }
}

fn there() -> ViewPort {
    ViewPort { lid: lid(OWN_THERE), manager: lid(MANAGER_THERE), key: Some(key(0xffff)) }
}

/// A view whose port is known.
fn view() -> FunctionView {
    let mut view = FunctionView::default();
    assert!(view.set_port(NOW, &own(), there()).is_empty());
    view
}

fn smp(dlid: u16, attribute: Attribute) -> Datagram {
    let mut mad = Mad::new(ManagementClass::SUBNET_LID, Method::GET, attribute, 1);
    mad.set_transaction(TRANSACTION);
    Datagram::subnet_management(address(OWN), address(dlid), mad)
}

fn sa(dlid: u16, pkey: u16, method: Method) -> Datagram {
    let class = ManagementClass::SUBNET_ADMINISTRATION;
    let mut mad = Mad::new(class, method, Attribute::NODE_RECORD, 0);
    mad.set_transaction(TRANSACTION);
    Datagram::general_management(address(OWN), address(dlid), key(pkey), mad)
}

fn sent(view: &mut FunctionView) -> Datagram {
    match view.poll_output() {
        Some(ToView::Datagram(datagram)) => *datagram,
        other => panic!("{other:?}"),
    }
}

/// Sends to the view; the datagram as it arrives there.
fn passed(view: &mut FunctionView, datagram: Datagram) -> Datagram {
    assert_eq!(view.take(NOW, &own(), datagram), Ok(None));
    sent(view)
}

/// The response to a request as the view sends it; its server has written the client into the transaction.
fn response(request: &Datagram, method: Method) -> Datagram {
    let mut response = request.clone();
    (response.slid, response.dlid) = (request.dlid, request.slid);
    response.mad.set_method(method);
    response.mad.set_transaction(TransactionId(request.mad.transaction().0 | 0x0203 << 48));
    response
}

#[test]
fn transactions_and_addresses_are_restored_exactly() {
    let mut view = view();
    for (request, there) in [
        (smp(7, Attribute::NODE_INFO), 7),
        (smp(MANAGER, Attribute::NODE_INFO), MANAGER),
        (smp(MANAGER, Attribute::SM_INFO), MANAGER_THERE),
        (sa(MANAGER, 0x8123, Method::GET), MANAGER_THERE),
        (sa(7, 0x8123, Method::GET), 7),
    ] {
        let asked = request.dlid;
        let arrived = passed(&mut view, request.clone());
        assert_eq!(arrived.dlid, address(there));
        assert_eq!(arrived.mad.transaction().0 >> 32, 0, "the server has room for its own");
        let answer = view.receive(&own(), response(&arrived, Method::GET_RESP)).unwrap();
        assert_eq!((answer.slid, answer.dlid), (asked, address(OWN)));
        assert_eq!((answer.mad.transaction(), answer.pkey), (TRANSACTION, request.pkey));
        assert_eq!(view.receive(&own(), response(&arrived, Method::GET_RESP)), None, "answered once");
    }
}

#[test]
fn partitions_of_the_view_replace_those_of_the_wire() {
    let mut view = view();
    let arrived = passed(&mut view, sa(MANAGER, 0x8123, Method::GET));
    assert_eq!(arrived.pkey, key(0xffff));
    let mut keyless = FunctionView::default();
    keyless.set_port(NOW, &own(), ViewPort { key: None, ..there() });
    let refused = keyless.take(NOW, &own(), sa(MANAGER, 0x8123, Method::GET));
    assert_eq!(refused, Err(DropReason::PartitionAtSender));
}

#[test]
fn the_default_partition_and_the_own_counters_stay_on_the_fabric() {
    let mut view = view();
    let stays = |view: &mut FunctionView, datagram: Datagram| {
        let left = view.take(NOW, &own(), datagram.clone()).unwrap();
        left.map(|left| (left.mad == datagram.mad, left.dlid))
    };
    for pkey in [0xffff, 0x7fff] {
        let left = stays(&mut view, sa(MANAGER, pkey, Method::GET));
        assert_eq!(left, Some((true, address(MANAGER))));
    }
    let counters = |dlid| {
        let mad = Mad::new(ManagementClass::PERFORMANCE, Method::GET, Attribute::PORT_COUNTERS, 0);
        Datagram::general_management(address(OWN), address(dlid), key(0x8123), mad)
    };
    for dlid in [OWN, OWN_THERE] {
        assert_eq!(stays(&mut view, counters(dlid)), Some((true, address(OWN))), "{dlid}");
    }
    assert_eq!(stays(&mut view, counters(7)), None, "of another port of the view");
    assert_eq!(sent(&mut view).dlid, address(7));
}

#[test]
fn directed_requests_go_at_once_and_come_back_at_their_last_hop() {
    let mut view = FunctionView::default();
    let route = DirectedRoute::new([1, 2].map(|hop| PortNum::new(hop).unwrap())).unwrap();
    let mut mad = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &route);
    mad.set_transaction(TRANSACTION);
    mad.set_hop_pointer(1);
    let request = Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad);
    let arrived = passed(&mut view, request);
    assert_eq!((arrived.mad.hop_pointer(), arrived.mad.hop_count()), (0, 2));
    let mut answer = response(&arrived, Method::GET_RESP);
    answer.mad.set_returning();
    let received = view.receive(&own(), answer).unwrap();
    assert!(received.mad.is_returning());
    assert_eq!((received.mad.hop_pointer(), received.mad.transaction()), (1, TRANSACTION));
    assert_eq!((received.slid, received.dlid), (LidAddress::Permissive, LidAddress::Permissive));
}

#[test]
fn directed_requests_of_others_reach_software_as_lid_routed_ones() {
    let mut view = view();
    let route = DirectedRoute::new([3, 1].map(|hop| PortNum::new(hop).unwrap())).unwrap();
    let mut mad = Mad::directed(Method::GET, Attribute::SM_INFO, 0, &route);
    mad.set_transaction(TransactionId(0xffff_0000_0000_0005));
    mad.set_return_path(1, 8);
    let request = Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad);
    let received = view.receive(&own(), request.clone()).unwrap();
    assert_eq!(received.mad.class(), ManagementClass::SUBNET_LID);
    assert_eq!(received.mad.transaction(), request.mad.transaction());
    let mut answer = received.clone();
    answer.mad.set_method(Method::GET_RESP);
    answer.mad.set_status(Status::BUSY);
    answer.mad.smp_data_mut()[20] = 0x33;
    let back = passed(&mut view, answer.clone());
    assert_eq!(back.mad.class(), ManagementClass::SUBNET_DIRECTED);
    assert!(back.mad.is_returning());
    assert_eq!((back.mad.hop_count(), back.mad.return_path(1)), (2, Some(8)));
    assert_eq!((back.mad.status(), back.mad.smp_data()[20]), (Status::BUSY, 0x33));
    assert_eq!(back.mad.transaction(), request.mad.transaction());
    // A second response is not the one to a directed request any more.
    assert_eq!(passed(&mut view, answer).mad.class(), ManagementClass::SUBNET_LID);
    for number in 0..3 * DIRECTED_MAX as u64 {
        let mut flood = request.clone();
        flood.mad.set_transaction(TransactionId(number));
        assert!(view.receive(&own(), flood).is_some());
    }
    assert_eq!(view.directed.len(), DIRECTED_MAX);
}

#[test]
fn segments_of_an_answer_keep_their_transaction() {
    let mut view = view();
    let request = passed(&mut view, sa(MANAGER, 0x8123, Method::GET_TABLE));
    let mut segment = response(&request, Method::GET_TABLE_RESP);
    let mut header = segment.mad.rmpp();
    header.flags = RmppFlags(RmppFlags::ACTIVE.0);
    segment.mad.set_rmpp(&header);
    for _ in 0..3 {
        let received = view.receive(&own(), segment.clone()).unwrap();
        assert_eq!((received.mad.transaction(), received.slid), (TRANSACTION, address(MANAGER)));
        // The acknowledgement has the method of the request.
        let mut ack = sa(MANAGER, 0x8123, Method::GET_TABLE);
        ack.mad.set_rmpp(&header);
        let ack = passed(&mut view, ack);
        assert_eq!((ack.mad.transaction(), ack.dlid), (request.mad.transaction(), request.dlid));
    }
}

#[test]
fn requests_from_the_view_and_their_answers_keep_their_transactions() {
    let mut view = view();
    let mut request = sa(OWN_THERE, 0xffff, Method::GET_TABLE);
    request.slid = address(MANAGER);
    let received = view.receive(&own(), request.clone()).unwrap();
    assert_eq!((received.slid, received.dlid), (address(MANAGER), address(OWN)));
    assert_eq!((received.pkey, received.mad.transaction()), (key(0x8123), TRANSACTION));
    let mut answer = sa(MANAGER, 0x8123, Method::GET_TABLE_RESP);
    answer.mad.set_transaction(TRANSACTION);
    let back = passed(&mut view, answer);
    assert_eq!((back.dlid, back.mad.transaction()), (address(MANAGER), TRANSACTION), "no alias of a manager");
    assert_eq!(back.pkey, key(0xffff));
}

#[test]
fn datagrams_wait_for_the_port_of_the_view() {
    let mut view = FunctionView::default();
    for _ in 0..HELD_MAX {
        assert_eq!(view.take(NOW, &own(), sa(MANAGER, 0x8123, Method::GET)), Ok(None));
    }
    let refused = view.take(NOW, &own(), sa(MANAGER, 0x8123, Method::GET));
    assert_eq!(refused, Err(DropReason::NoRoom));
    assert_eq!((view.poll_output(), view.poll_output()), (Some(ToView::PortQuery), None));
    // The query was lost.
    let again = NOW + QUERY_TIMEOUT;
    assert_eq!(view.take(again, &own(), sa(MANAGER, 0x8123, Method::GET)), Err(DropReason::NoRoom));
    assert_eq!((view.poll_output(), view.poll_output()), (Some(ToView::PortQuery), None));
    assert_eq!(view.set_port(NOW, &own(), there()).len(), HELD_MAX);
    assert_eq!(sent(&mut view).dlid, address(MANAGER_THERE));
    // It is asked again when it may have changed.
    let later = NOW + PORT_AGE_MAX + Duration::from_millis(1);
    while view.poll_output().is_some() {}
    view.take(later, &own(), sa(MANAGER, 0x8123, Method::GET)).unwrap();
    assert_eq!(view.poll_output(), Some(ToView::PortQuery));
}

#[test]
fn pending_requests_are_bounded_and_forgotten() {
    let mut view = view();
    let request = |number: u64| {
        let mut request = smp(7, Attribute::NODE_INFO);
        request.mad.set_transaction(TransactionId(number));
        request
    };
    for number in 0..REQUESTS_MAX as u64 {
        passed(&mut view, request(number));
    }
    let beyond = request(REQUESTS_MAX as u64);
    assert_eq!(view.take(NOW, &own(), beyond.clone()), Err(DropReason::NoRoom));
    assert_eq!(view.take(NOW, &own(), request(5)), Ok(None), "a repeated one");
    let first = sent(&mut view).mad.transaction();
    view.forget(first);
    passed(&mut view, beyond);
    let later = NOW + REQUEST_TIMEOUT + Duration::from_millis(1);
    assert_eq!(view.take(later, &own(), request(u64::MAX)), Ok(None));
    assert_eq!(view.requests.by_number.len(), 1, "the others are too old");
    for number in 0..10 * REQUESTS_MAX as u64 {
        let arrived = passed(&mut view, request(number));
        view.receive(&own(), response(&arrived, Method::GET_RESP)).unwrap();
    }
    assert!(view.requests.deadlines.len() <= 2 * REQUESTS_MAX);
}

#[test]
fn outputs_that_nobody_takes_are_bounded() {
    let mut view = view();
    let results: Vec<_> = (0..2 * OUTPUTS_MAX as u64)
        .map(|number| {
            let mut report = smp(7, Attribute::NODE_INFO);
            report.mad.set_method(Method::GET_RESP);
            report.mad.set_transaction(TransactionId(number));
            view.take(NOW, &own(), report)
        })
        .collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), OUTPUTS_MAX);
}
