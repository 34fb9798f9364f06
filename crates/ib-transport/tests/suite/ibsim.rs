//! Guarantees to clients of the ibsim protocol.

use std::time::{Duration, Instant};

use ib_transport::ibsim::{DataMessage, DataStatus, IbsimClient, IbsimClientError, SocketName};
use ib_transport::{BindError, ClientRole, FORWARD_TIMEOUT, FORWARDED_MAX, Server, application_transaction};
use ib_wire::rmpp::{RmppFlags, RmppHeader, RmppKind};
use ib_wire::{Attribute, Lid, ManagementClass, Method, PortState};

use crate::common::{
    self, LONG, NEVER_ANSWERED, PASSED_ON, Running, ToyBackend, ask_node_info, assert_served, bare, guid,
    lid_routed, respond, unique_name,
};

/// Long enough for anything that is going to come.
const SHORT: Duration = Duration::from_millis(200);

#[test]
fn port_queries_are_answered() {
    let server = Running::start();
    let mut client = server.client("n3", ClientRole::Ordinary);
    assert_eq!(client.port().unwrap(), (Lid::from_wire(4), PortState::Active));
    assert_eq!(client.guid().unwrap(), Some(guid(3)));
    assert_eq!(client.gid().unwrap().guid(), Some(guid(3)));
    assert_eq!(client.vendor().unwrap().part_id, 4099);
    assert_eq!(client.node_info().unwrap(), common::node_info(3));
    assert_eq!(client.port_info(1).unwrap(), [1; 64]);
    assert!(matches!(client.port_info(9), Err(IbsimClientError::QueryRefused { .. })));
    assert_eq!(client.pkeys().unwrap(), [0xff; 64]);
    assert_served(&mut client, 3);
}

#[test]
fn an_unknown_node_is_refused() {
    let server = Running::start();
    let refused = IbsimClient::connect(&server.name, "nowhere", ClientRole::Ordinary);
    assert!(matches!(refused, Err(IbsimClientError::AttachRefused { .. })), "{refused:?}");
    assert_eq!(server.stop().1.refused_unknown_node, 1);
}

#[test]
fn connecting_without_a_server_fails() {
    let name = SocketName::new(&unique_name()).unwrap();
    let refused = IbsimClient::connect(&name, "", ClientRole::Ordinary);
    assert!(matches!(refused, Err(IbsimClientError::NoServer { .. })), "{refused:?}");
}

#[test]
fn a_name_can_be_bound_once() {
    let server = Running::start();
    let second = Server::<u16>::bind(server.name.as_str());
    assert!(matches!(second, Err(BindError::NameInUse { .. })), "{second:?}");
    assert!(matches!(Server::<u16>::bind(&"x".repeat(200)), Err(BindError::InvalidName(_))));
}

/// Longer than any test.
const FOR_GOOD: Duration = Duration::from_secs(3600);

#[test]
fn a_paused_client_is_not_read_and_others_are_served() {
    let server =
        Running::start_with(ToyBackend { paused: Some((1, FOR_GOOD)), ..ToyBackend::default() }, |_| {});
    let mut paused = server.client("n1", ClientRole::Ordinary);
    let mut other = server.client("n2", ClientRole::Ordinary);
    assert_served(&mut paused, 1);
    paused.send(&ask_node_info(1)).unwrap();
    for _ in 0..3 {
        assert_served(&mut other, 2);
    }
    assert_eq!(paused.receive(SHORT).unwrap(), None);
    // Control messages are still answered, it can disconnect, and the next client is read.
    assert_eq!(paused.guid().unwrap(), Some(guid(1)));
    drop(paused);
    assert_served(&mut server.client("n1", ClientRole::Ordinary), 1);
}

#[test]
fn a_briefly_paused_client_gets_every_response() {
    let moment = Duration::from_millis(1);
    let server =
        Running::start_with(ToyBackend { paused: Some((1, moment)), ..ToyBackend::default() }, |_| {});
    let mut client = server.client("n1", ClientRole::Ordinary);
    for _ in 0..20 {
        assert_served(&mut client, 1);
    }
}

#[test]
fn batches_are_answered_completely_and_in_order() {
    let server = Running::start();
    let mut client = server.client("n1", ClientRole::Ordinary);
    let requests: Vec<DataMessage> = (0..100).map(ask_node_info).collect();
    let mut answers = Vec::new();
    client.send_batch(&requests).unwrap();
    while answers.len() < requests.len() {
        assert!(client.receive_batch(&mut answers, LONG).unwrap() > 0);
    }
    let transactions: Vec<u32> =
        answers.iter().map(|answer| application_transaction(answer.mad.transaction())).collect();
    assert_eq!(transactions, (0..100).collect::<Vec<u32>>());
    assert_eq!(server.stop().1.datagrams_in, 100);
}

#[test]
fn many_clients_are_served_concurrently() {
    let server = Running::start();
    let mut clients: Vec<IbsimClient> =
        (0..256).map(|port| server.client(&format!("n{port}"), ClientRole::Ordinary)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(&ask_node_info(number as u32)).unwrap();
    }
    for (port, client) in clients.iter_mut().enumerate() {
        let answer = client.receive(LONG).unwrap().expect("an answer");
        assert_eq!(usize::from(common::answering_port(&answer.mad)), port);
        assert_eq!(application_transaction(answer.mad.transaction()) as usize, port);
    }
    let counters = server.stop().1;
    assert_eq!((counters.datagrams_in, counters.datagrams_out), (256, 256));
}

#[test]
fn a_lost_request_is_returned_to_its_sender() {
    let server = Running::start();
    let mut client = server.client("n0", ClientRole::Ordinary);
    let request = bare(lid_routed(Method::GET, NEVER_ANSWERED, 2, 9));
    client.send(&request).unwrap();
    let lost = client.receive(LONG).unwrap().expect("the request");
    assert_eq!(lost.status, DataStatus::TimedOut);
    assert_eq!(lost.mad.attribute(), NEVER_ANSWERED);
    assert_eq!(application_transaction(lost.mad.transaction()), 9);
}

#[test]
fn requests_are_forwarded_to_the_subnet_manager_of_a_port() {
    let server = Running::start();
    let mut manager = server.client("n5", ClientRole::SubnetManager);
    let mut client = server.client("n6", ClientRole::Ordinary);
    client.send(&bare(lid_routed(Method::GET, Attribute::SM_INFO, 6, 0x1_0000_0007))).unwrap();
    let request = manager.receive(LONG).unwrap().expect("the request");
    assert_eq!(request.slid.map(|lid| lid.to_wire()), Some(7), "the backend filled in the source");
    manager.send(&respond(&request)).unwrap();
    let answer = client.receive(LONG).unwrap().expect("the answer");
    assert_eq!((answer.mad.method(), answer.mad.attribute()), (Method::GET_RESP, Attribute::SM_INFO));
    assert_eq!(answer.mad.transaction().0 & 0xffff_ffff_ffff, 0x1_0000_0007, "agent and number are kept");
    assert_eq!(server.stop().0.manager_changes[0], (5, true));
}

#[test]
fn a_request_without_a_receiver_is_lost_at_once() {
    let server = Running::start();
    let _ordinary = server.client("n5", ClientRole::Ordinary);
    let mut client = server.client("n6", ClientRole::Ordinary);
    client.send(&bare(lid_routed(Method::GET, Attribute::SM_INFO, 6, 1))).unwrap();
    assert_eq!(client.receive(LONG).unwrap().map(|lost| lost.status), Some(DataStatus::TimedOut));
    let counters = server.stop().1;
    assert_eq!((counters.requests_undeliverable, counters.forwards_expired), (1, 0), "without waiting");
}

#[test]
fn other_classes_are_not_forwarded_to_managers() {
    let server = Running::start();
    let mut manager = server.client("n5", ClientRole::SubnetManager);
    let mut client = server.client("n6", ClientRole::Ordinary);
    let mut ping = bare(lid_routed(Method::GET, Attribute(1), 6, 1));
    ping.mad.0[1] = 0x32;
    client.send(&ping).unwrap();
    assert_eq!(client.receive(LONG).unwrap().map(|lost| lost.status), Some(DataStatus::TimedOut));
    assert_eq!(manager.receive(SHORT).unwrap(), None);
}

#[test]
fn an_unanswered_forwarded_request_is_lost_after_3_s() {
    let server = Running::start();
    let mut manager = server.client("n5", ClientRole::SubnetManager);
    let mut client = server.client("n6", ClientRole::Ordinary);
    let start = Instant::now();
    client.send(&bare(lid_routed(Method::GET, Attribute::SM_INFO, 6, 1))).unwrap();
    assert!(manager.receive(LONG).unwrap().is_some());
    assert_eq!(client.receive(LONG).unwrap().map(|lost| lost.status), Some(DataStatus::TimedOut));
    assert!(start.elapsed() >= FORWARD_TIMEOUT, "{:?}", start.elapsed());
    assert_eq!(server.stop().1.forwards_expired, 1);
}

#[test]
fn rmpp_acknowledgements_do_not_wait_for_a_response() {
    let server = Running::start();
    let mut manager = server.client("n5", ClientRole::SubnetManager);
    let mut client = server.client("n6", ClientRole::Ordinary);
    let query = |transaction| {
        let mut message = bare(lid_routed(Method::GET_TABLE, Attribute::NODE_RECORD, 6, transaction));
        message.mad.0[1] = ManagementClass::SUBNET_ADMINISTRATION.0;
        message
    };
    // More than the server remembers.
    for transaction in 0..FORWARDED_MAX as u64 + 1 {
        let mut acknowledgement = query(transaction);
        let header = acknowledgement.mad.rmpp();
        acknowledgement.mad.set_rmpp(&RmppHeader {
            version: 1,
            kind: RmppKind::Ack,
            flags: RmppFlags::ACTIVE,
            ..header
        });
        client.send(&acknowledgement).unwrap();
        assert!(manager.receive(LONG).unwrap().is_some());
    }
    client.send(&query(u64::from(u32::MAX))).unwrap();
    assert!(manager.receive(LONG).unwrap().is_some(), "a query is still forwarded");
    assert_eq!(client.receive(SHORT).unwrap(), None);
    assert_eq!(server.stop().1.forwards_refused, 0);
}

#[test]
fn a_response_of_an_unused_class_is_not_delivered() {
    let server = Running::start();
    let mut victim = server.client("n5", ClientRole::Ordinary);
    let mut attacker = server.client("n6", ClientRole::Ordinary);
    assert_served(&mut victim, 5);
    let forged = |class: ManagementClass| {
        let mut message = bare(lid_routed(Method::GET_RESP, Attribute::NODE_INFO, 6, 0));
        message.mad.set_transaction(ib_wire::TransactionId(u64::from(victim.id()) << 48 | 3));
        message.mad.0[1] = class.0;
        message
    };
    let messages = [ManagementClass::SUBNET_ADMINISTRATION, ManagementClass::SUBNET_LID].map(forged);
    attacker.send_batch(&messages).unwrap();
    assert_eq!(victim.receive(SHORT).unwrap(), None);
    assert_eq!(server.stop().1.responses_unclaimed, 2);
}

#[test]
fn an_undeliverable_trap_is_not_reported_as_lost() {
    let mut backend = ToyBackend { trap_for: Some(4), ..ToyBackend::default() };
    let mut server = Server::<u16>::bind(&unique_name()).unwrap();
    server.poll_once(&mut backend, Duration::ZERO).unwrap();
    assert_eq!((server.counters().requests_undeliverable, server.counters().lost), (1, 0));
}

#[test]
fn traps_reach_the_manager() {
    let mut backend = ToyBackend::default();
    let mut server = Server::<u16>::bind(&unique_name()).unwrap();
    let name = server.name().clone();
    let thread =
        std::thread::spawn(move || IbsimClient::connect(&name, "n4", ClientRole::SubnetManager).unwrap());
    while server.client_count() == 0 {
        server.poll_once(&mut backend, LONG).unwrap();
    }
    let mut manager = thread.join().unwrap();
    backend.trap_for = Some(4);
    server.poll_once(&mut backend, Duration::ZERO).unwrap();
    let trap = manager.receive(LONG).unwrap().expect("the trap");
    assert_eq!((trap.mad.method(), trap.mad.transaction().0), (Method::TRAP, 0x7777));
}

#[test]
fn a_repressed_trap_keeps_its_transaction() {
    let server = Running::start();
    let mut manager = server.client("n4", ClientRole::SubnetManager);
    manager
        .send(&bare(lid_routed(Method::TRAP_REPRESS, Attribute::NOTICE, 1, 0xbeef_0000_0000_7777)))
        .unwrap();
    assert_served(&mut manager, 4);
    assert_eq!(server.stop().0.repressed, [0xbeef_0000_0000_7777]);
}

#[test]
fn trap_repress_reaches_only_the_sender_of_the_trap() {
    let server = Running::start();
    let mut sender = server.client("n2", ClientRole::SubnetManager);
    let mut master = server.client("n4", ClientRole::SubnetManager);
    let mut other = server.client("n2", ClientRole::Ordinary);
    sender.send(&bare(lid_routed(Method::TRAP, Attribute::NOTICE, 5, 0x1111))).unwrap();
    let trap = master.receive(LONG).unwrap().expect("the trap");
    assert_eq!(trap.mad.method(), Method::TRAP);
    let transaction = trap.mad.transaction().0;
    master.send(&bare(lid_routed(Method::TRAP_REPRESS, PASSED_ON, 3, transaction))).unwrap();
    let heard = sender.receive(LONG).unwrap().expect("the TrapRepress");
    assert_eq!((heard.mad.method(), heard.mad.transaction().0), (Method::TRAP_REPRESS, transaction));
    assert_served(&mut other, 2);
}

#[test]
fn the_backend_learns_the_first_and_last_manager_of_a_port() {
    let server = Running::start();
    let first = server.client("n2", ClientRole::SubnetManager);
    let mut second = server.client("n2", ClientRole::Ordinary);
    second.set_role(ClientRole::SubnetManager).unwrap();
    drop(first);
    second.set_role(ClientRole::Ordinary).unwrap();
    second.set_role(ClientRole::SubnetManager).unwrap();
    drop(second);
    assert_served(&mut server.client("n1", ClientRole::Ordinary), 1);
    assert_eq!(server.stop().0.manager_changes, [(2, true), (2, false), (2, true), (2, false)]);
}

#[test]
fn a_waker_triggers_a_tick() {
    let mut backend = ToyBackend::default();
    let mut server = Server::<u16>::bind(&unique_name()).unwrap();
    let waker = server.waker();
    let start = Instant::now();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        waker.wake();
    });
    server.poll_once(&mut backend, LONG).unwrap();
    thread.join().unwrap();
    assert!(start.elapsed() < LONG / 2);
    assert_eq!(backend.ticks, 1);
}
