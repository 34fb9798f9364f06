//! Malformed, forged and dead clients do not affect others.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use ib_transport::ibsim::{
    CONTROL_LEN, Connect, ControlReply, ControlRequest, DataMessage, IbsimClient, SocketName,
};
use ib_transport::{CLIENTS_MAX, ClientRole, Server, ServerCounters, application_transaction};

use crate::common::{LONG, Running, ToyBackend, ask_node_info, assert_served, unique_name};

/// A client that uses the sockets directly: it can send anything, and ends without disconnecting.
struct Raw {
    control: UnixDatagram,
    data: UnixDatagram,
    number: u32,
    id: u32,
}

impl Raw {
    fn connect(name: &SocketName, number: u32) -> Self {
        let raw = Self::bind(name, number);
        raw.attach(name)
    }

    fn bind(name: &SocketName, number: u32) -> Self {
        let control = UnixDatagram::bind_addr(&address(&format!("{name}:ctl{number}"))).unwrap();
        control.connect_addr(&address(&format!("{name}:ctl"))).unwrap();
        control.set_read_timeout(Some(LONG)).unwrap();
        let data = UnixDatagram::bind_addr(&address(&format!("{name}:in{number}"))).unwrap();
        data.set_read_timeout(Some(LONG)).unwrap();
        Self { control, data, number, id: 0 }
    }

    fn attach(mut self, name: &SocketName) -> Self {
        let connect = Connect { number: self.number, role: ClientRole::Ordinary, node_id: "n9".to_owned() };
        match self.ask(&ControlRequest::Connect(connect)) {
            ControlReply::Connected(connected) => self.id = connected.number,
            other => panic!("{other:?}"),
        }
        self.data.connect_addr(&address(&format!("{name}:out{}", self.id))).unwrap();
        self
    }

    fn ask(&self, request: &ControlRequest) -> ControlReply {
        self.control.send(&request.encode(self.id)).unwrap();
        let mut reply = [0; CONTROL_LEN];
        let length = self.control.recv(&mut reply).unwrap();
        ControlReply::decode(&reply[..length]).unwrap()
    }

    fn is_unanswered(&self, request: &ControlRequest, id: u32) -> bool {
        self.control.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        self.control.send(&request.encode(id)).unwrap();
        self.control.recv(&mut [0; CONTROL_LEN]).is_err()
    }
}

fn address(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("{name}\0")).unwrap()
}

#[test]
fn malformed_messages_are_counted_and_others_served() {
    let server = Running::start();
    let mut good = server.client("n1", ClientRole::Ordinary);
    let bad = Raw::connect(&server.name, 1);
    let frame = ask_node_info(1).encode();

    bad.data.send(&[]).unwrap();
    bad.data.send(&frame[..287]).unwrap();
    bad.data.send(&[0; 289]).unwrap();
    bad.data.send(&[0; 60_000]).unwrap();
    bad.data.send(&[0xff; 288]).unwrap();
    bad.data.send(&[0; 288]).unwrap();
    bad.control.send(&[]).unwrap();
    bad.control.send(&[7; 79]).unwrap();
    bad.control.send(&[7; 81]).unwrap();
    bad.control.send(&[7; 80]).unwrap();
    let mut unknown = ControlRequest::Port.encode(bad.id);
    unknown[8] = 200;
    bad.control.send(&unknown).unwrap();

    assert_served(&mut good, 1);
    bad.data.send(&frame).unwrap();
    assert_eq!(bad.data.recv(&mut [0; 400]).unwrap(), 288, "even the bad client is served when it behaves");
    let ServerCounters {
        data_wrong_length,
        data_malformed,
        control_wrong_length,
        control_wrong_magic,
        control_unknown_type,
        ..
    } = server.stop().1;
    assert_eq!((data_wrong_length, data_malformed), (4, 2));
    assert_eq!((control_wrong_length, control_wrong_magic, control_unknown_type), (3, 1, 1));
}

#[test]
fn control_messages_for_another_client_are_ignored() {
    let server = Running::start();
    let mut victim = server.client("n1", ClientRole::SubnetManager);
    let attacker = Raw::connect(&server.name, 1);
    assert!(attacker.is_unanswered(&ControlRequest::Disconnect, victim.id()));
    assert!(attacker.is_unanswered(&ControlRequest::IsSm(ClientRole::Ordinary), victim.id()));
    assert!(attacker.is_unanswered(&ControlRequest::Port, 500), "an unused client number");
    assert!(attacker.is_unanswered(&ControlRequest::Port, u32::MAX), "not a client number");
    let theft = Connect { number: 77, role: ClientRole::Ordinary, node_id: String::new() };
    assert!(attacker.is_unanswered(&ControlRequest::Connect(theft), 0), "the number of another client");
    assert_served(&mut victim, 1);
    victim.port().unwrap();
    let (backend, counters) = server.stop();
    assert_eq!(counters.control_forged, 5);
    assert_eq!(backend.manager_changes, [(1, true)]);
}

#[test]
fn only_the_client_can_send_to_its_data_socket() {
    let server = Running::start();
    let mut victim = server.client("n1", ClientRole::Ordinary);
    let stranger = UnixDatagram::unbound().unwrap();
    let refused = stranger.connect_addr(&address(&format!("{}:out{}", server.name, victim.id())));
    assert!(refused.is_err(), "the kernel rejects senders that the socket is not connected to");
    assert_served(&mut victim, 1);
}

#[test]
fn a_client_that_reconnects_replaces_its_connection() {
    let server = Running::start();
    let first = Raw::connect(&server.name, 1);
    let former = first.id;
    drop(first);
    let second = Raw::connect(&server.name, 1);
    assert_ne!(former, second.id);
    assert!(second.is_unanswered(&ControlRequest::Port, former));
    second.data.send(&ask_node_info(1).encode()).unwrap();
    assert_eq!(second.data.recv(&mut [0; 288]).unwrap(), 288);
}

#[test]
fn a_failed_second_attachment_keeps_the_first() {
    let server = Running::start();
    let client = Raw::connect(&server.name, 1);
    // Its data socket is still tied to the first attachment: the kernel refuses the second.
    let connect = Connect { number: 1, role: ClientRole::Ordinary, node_id: "n2".to_owned() };
    client.control.send(&ControlRequest::Connect(connect).encode(0)).unwrap();
    client.control.recv(&mut [0; 80]).unwrap();
    client.data.send(&ask_node_info(1).encode()).unwrap();
    assert_eq!(client.data.recv(&mut [0; 288]).unwrap(), 288, "the first attachment is still served");
    let (_, counters) = server.stop();
    assert_eq!(counters.refused_by_system, 1);
}

#[test]
fn a_crashed_manager_client_is_removed_from_its_port() {
    let mut backend = ToyBackend::default();
    let mut server = Server::<u16>::bind(&unique_name()).unwrap();
    let name = server.name().clone();
    let crashing = Raw::bind(&name, 1);
    let connect = Connect { number: 1, role: ClientRole::SubnetManager, node_id: "n9".to_owned() };
    crashing.control.send(&ControlRequest::Connect(connect).encode(0)).unwrap();
    server.poll_once(&mut backend, LONG).unwrap();
    assert_eq!(server.client_count(), 1);
    drop(crashing);
    let start = std::time::Instant::now();
    while server.client_count() > 0 {
        server.poll_once(&mut backend, Duration::from_millis(100)).unwrap();
        assert!(start.elapsed() < LONG);
    }
    assert_eq!(server.counters().clients_reclaimed, 1);
    assert_eq!(backend.manager_changes, [(9, true), (9, false)]);
}

#[test]
fn a_client_that_cannot_be_sent_to_is_removed_at_once() {
    let mut backend = ToyBackend::default();
    let mut server = Server::<u16>::bind(&unique_name()).unwrap();
    let name = server.name().clone();
    let thread = std::thread::spawn(move || Raw::connect(&name, 1));
    while server.client_count() == 0 {
        server.poll_once(&mut backend, LONG).unwrap();
    }
    let crashing = thread.join().unwrap();
    crashing.data.send(&ask_node_info(1).encode()).unwrap();
    drop(crashing);
    server.poll_once(&mut backend, LONG).unwrap();
    assert_eq!((server.client_count(), server.counters().clients_reclaimed), (0, 1));
}

#[test]
fn slots_of_crashed_clients_are_reused_when_all_are_taken() {
    let server = Running::start();
    let mut living = server.client("n1", ClientRole::Ordinary);
    for number in 0..CLIENTS_MAX as u32 + 50 {
        Raw::connect(&server.name, 1_000_000 + number);
    }
    assert_served(&mut living, 1);
    assert_served(&mut server.client("n2", ClientRole::Ordinary), 2);
    let counters = server.stop().1;
    assert!(counters.clients_reclaimed >= 50, "{counters:?}");
    assert_eq!(counters.refused_full, 0);
}

#[test]
fn clients_above_the_limit_are_refused() {
    let server = Running::start();
    let clients: Vec<Raw> =
        (0..CLIENTS_MAX as u32).map(|number| Raw::connect(&server.name, 1_000_000 + number)).collect();
    assert!(IbsimClient::connect(&server.name, "", ClientRole::Ordinary).is_err());
    drop(clients);
    assert_served(&mut server.client("", ClientRole::Ordinary), 0);
    assert_eq!(server.stop().1.refused_full, 1);
}

#[test]
fn a_client_that_does_not_read_does_not_block_the_server() {
    let server = Running::start();
    let mut good = server.client("n1", ClientRole::Ordinary);
    let deaf = Raw::connect(&server.name, 1);
    deaf.data.set_write_timeout(Some(LONG)).unwrap();
    let frame = ask_node_info(1).encode();
    let mut sent = 5000_u32;
    for _ in 0..sent {
        deaf.data.send(&frame).unwrap();
    }
    assert_served(&mut good, 1);
    // It reads the backlog and sends one more request until that is answered: its answer comes after all others.
    deaf.data.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (mut received, mut is_last) = (0_u64, false);
    let started = std::time::Instant::now();
    while !is_last {
        assert!(started.elapsed() < LONG, "{received} answers, and the last one never");
        sent += 1;
        deaf.data.send(&ask_node_info(sent).encode()).unwrap();
        let mut answer = [0; 288];
        while deaf.data.recv(&mut answer).is_ok() {
            received += 1;
            let answer = DataMessage::decode(&answer).unwrap();
            is_last |= application_transaction(answer.mad.transaction()) == sent;
        }
    }
    let (backend, counters) = server.stop();
    assert!(counters.backlog_dropped > 0);
    assert_eq!(
        received + counters.backlog_dropped,
        u64::from(sent),
        "the backlog is sent as soon as there is room"
    );
    assert!(backend.ticks < 10_000, "{} wake-ups", backend.ticks);
}
