//! Local ibsim clients at a port of another server.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ib_transport::framed::{self, FramedReceived};
use ib_transport::ibsim::{DataMessage, DataStatus, IbsimClient, SocketName};
use ib_transport::{ClientRole, Relay, Server};
use ib_wire::{Attribute, Datagram, DirectedRoute, Lid, LidAddress, Mad, Method, PortState, TransactionId};

use crate::common::{self, LONG, NEVER_ANSWERED, Running, ToyBackend, lid_routed, unique_name};

/// A relay on a thread of its own, at a port of a server.
struct Relayed {
    name: SocketName,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Relay>>,
}

impl Relayed {
    /// Sends the attach frame, as a process does that opens the stream for another one, and passes the stream on.
    fn at(path: &Path, node: &str) -> Self {
        let mut stream = UnixStream::connect(path).unwrap();
        let mut attach = Vec::new();
        let body = framed::Attach { node_id: node.to_owned(), role: ClientRole::Ordinary };
        framed::Frame::Attach(body).encode(&mut attach);
        std::io::Write::write_all(&mut stream, &attach).unwrap();
        let mut relay = Relay::new(framed::FramedClient::from_attached_stream(stream).unwrap()).unwrap();
        let mut server = Server::bind(&unique_name()).unwrap();
        server.watch(&relay).unwrap();
        let (name, stop) = (server.name().clone(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) && relay.error().is_none() {
                server.poll_once(&mut relay, Duration::from_millis(50)).unwrap();
            }
            relay
        });
        Self { name, stop, thread: Some(thread) }
    }

    fn client(&self, role: ClientRole) -> IbsimClient {
        IbsimClient::connect(&self.name, "whatever", role).unwrap()
    }

    fn end(mut self) -> Relay {
        self.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn framed_node_info_request() -> Datagram {
    let mad = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &DirectedRoute::default());
    Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad)
}

fn node_info_request(transaction: u64) -> DataMessage {
    let mut datagram = framed_node_info_request();
    datagram.mad.set_transaction(TransactionId(transaction));
    datagram.into()
}

fn answer(client: &mut IbsimClient) -> DataMessage {
    client.receive(LONG).unwrap().unwrap()
}

#[test]
fn local_clients_are_at_the_port_of_the_stream() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("framed.sock");
    let server = Running::start_with(ToyBackend::default(), |server| server.listen(&path).unwrap());
    let relay = Relayed::at(&path, "n7");
    let (mut one, mut two) = (relay.client(ClientRole::Ordinary), relay.client(ClientRole::Ordinary));
    assert_eq!(one.port().unwrap(), (Lid::from_wire(8), PortState::Active));
    assert_eq!(one.guid().unwrap(), Some(common::guid(7)));
    // Both send the same transaction, and each gets its own back, including the half that libraries use.
    let transaction = 0x0000_1234_dead_beef;
    for client in [&mut one, &mut two] {
        client.send(&node_info_request(transaction)).unwrap();
    }
    for client in [&mut one, &mut two] {
        let answer = answer(client);
        assert_eq!(answer.mad.transaction().0 & 0x0000_ffff_ffff_ffff, transaction);
        assert_eq!(common::answering_port(&answer.mad), 7);
    }
    // A request without an answer is reported as lost to its sender.
    one.send(&lid_routed(Method::GET, NEVER_ANSWERED, 2, 9).into()).unwrap();
    let lost = answer(&mut one);
    assert_eq!((lost.status, lost.mad.transaction().0 as u32), (DataStatus::TimedOut, 9));
    assert!(two.receive(Duration::ZERO).unwrap().is_none());
    drop((one, two));
    relay.end();
    drop(server);
}

#[test]
fn a_local_manager_answers_requests_from_the_stream() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("framed.sock");
    let server = Running::start_with(ToyBackend::default(), |server| server.listen(&path).unwrap());
    let relay = Relayed::at(&path, "n1");
    let mut manager = relay.client(ClientRole::SubnetManager);
    // The role frame is handled first, so requests from now on reach a manager.
    manager.send(&node_info_request(1)).unwrap();
    assert_eq!(common::answering_port(&answer(&mut manager).mad), 1);
    let mut asker = framed::FramedClient::connect(&path, "n2", ClientRole::Ordinary).unwrap();
    let mut request = lid_routed(Method::GET, Attribute::SM_INFO, 2, 3);
    request.slid = LidAddress::from_wire(3).unwrap();
    asker.send(&request).unwrap();
    let mut asked = answer(&mut manager);
    assert_eq!(asked.mad.attribute(), Attribute::SM_INFO);
    asked.mad.set_method(Method::GET_RESP);
    std::mem::swap(&mut asked.slid, &mut asked.dlid);
    manager.send(&asked).unwrap();
    match asker.receive(LONG).unwrap() {
        Some(FramedReceived::Datagram(answer)) => {
            assert_eq!(answer.mad.attribute(), Attribute::SM_INFO);
            assert_eq!(answer.mad.transaction().0 as u32, 3);
        }
        other => panic!("{other:?}"),
    }
    drop(manager);
    drop(relay.end());
    // The end of the stream was handled before this.
    asker.send(&framed_node_info_request()).unwrap();
    assert!(matches!(asker.receive(LONG).unwrap(), Some(FramedReceived::Datagram(_))));
    drop(asker);
    assert_eq!(server.stop().0.manager_changes[..2], [(1, true), (1, false)]);
}

#[test]
fn the_relay_reports_the_end_of_the_stream() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("framed.sock");
    let server = Running::start_with(ToyBackend::default(), |server| server.listen(&path).unwrap());
    let relay = Relayed::at(&path, "n1");
    drop(server);
    let relay = relay.thread.unwrap().join().unwrap();
    assert!(relay.error().is_some());
}
