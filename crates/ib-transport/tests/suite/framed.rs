//! Guarantees to clients of the framed protocol.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use ib_transport::framed::{FramedClient, FramedConnectError, FramedReceived, RefusalCode};
use ib_transport::{
    ClientRole, Device, DeviceSpec, Received, Server, SocketBindError, application_transaction,
};
use ib_wire::{
    Attribute, Datagram, DirectedRoute, Lid, LidAddress, Mad, Method, ServiceLevel, TransactionId,
};

use crate::common::{self, LONG, NEVER_ANSWERED, Running, ToyBackend, lid_routed, unique_name};

fn start_at(path: &Path) -> Running {
    Running::start_with(ToyBackend::default(), |server| server.listen(path).unwrap())
}

fn node_info_request(transaction: u64) -> Datagram {
    let mut mad = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &DirectedRoute::default());
    mad.set_transaction(TransactionId(transaction));
    Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad)
}

fn assert_served(client: &mut FramedClient, port: u16) {
    client.send(&node_info_request(5)).unwrap();
    match client.receive(LONG).unwrap() {
        Some(FramedReceived::Datagram(answer)) => assert_eq!(common::answering_port(&answer.mad), port),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_framed_client_gets_responses_and_loss_reports() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("framed.sock");
    let server = start_at(&path);
    let mut client = FramedClient::connect(&path, "n7", ClientRole::Ordinary).unwrap();
    assert_eq!(client.attached().lid, Lid::from_wire(8));
    assert_eq!(client.attached().port_guid, Some(common::guid(7)));
    assert_served(&mut client, 7);
    client.send(&node_info_request(6)).unwrap();
    assert_eq!(client.port().unwrap().0, Lid::from_wire(8), "queried while a datagram arrives");
    assert!(matches!(client.receive(LONG).unwrap(), Some(FramedReceived::Datagram(_))));
    client.send(&lid_routed(Method::GET, NEVER_ANSWERED, 2, 0xdead_beef)).unwrap();
    match client.receive(LONG).unwrap() {
        Some(FramedReceived::Lost(transaction)) => {
            assert_eq!(application_transaction(transaction), 0xdead_beef)
        }
        other => panic!("{other:?}"),
    }
    drop(client);
    drop(server);
    assert!(!path.exists(), "the socket file goes with the server");
}

#[test]
fn a_paused_stream_is_not_read_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("framed.sock");
    let backend = ToyBackend { paused: Some((1, Duration::from_secs(3600))), ..ToyBackend::default() };
    let server = Running::start_with(backend, |server| server.listen(&path).unwrap());
    let mut paused = FramedClient::connect(&path, "n1", ClientRole::Ordinary).unwrap();
    // It attached, which was its first batch.
    paused.send(&node_info_request(1)).unwrap();
    let mut other = FramedClient::connect(&path, "n2", ClientRole::Ordinary).unwrap();
    for _ in 0..3 {
        assert_served(&mut other, 2);
    }
    assert!(paused.receive(Duration::from_millis(200)).unwrap().is_none());
    drop(paused);
    // What it had sent was read then, and could not be answered.
    (0..10).for_each(|_| assert_served(&mut other, 2));
    assert_eq!(server.stop().1.clients_reclaimed, 1);
}

#[test]
fn every_kind_of_frame_counts_towards_a_pause() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("framed.sock");
    let backend = ToyBackend { charged_max: Some(4), ..ToyBackend::default() };
    let server = Running::start_with(backend, |server| server.listen(&path).unwrap());
    let mut client = FramedClient::connect(&path, "n1", ClientRole::Ordinary).unwrap();
    client.port_details().unwrap();
    client.port().unwrap();
    client.set_role(ClientRole::SubnetManager).unwrap();
    client.port_details().unwrap();
    // Four were counted: from here on nothing is read.
    client.send(&node_info_request(1)).unwrap();
    assert!(client.receive(Duration::from_millis(300)).unwrap().is_none());
    let (backend, _) = server.stop();
    assert_eq!(backend.charged, 4);
}

#[test]
fn the_backend_limits_the_clients_of_a_port() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("framed.sock");
    let backend = ToyBackend { clients_max: Some(2), ..ToyBackend::default() };
    let server = Running::start_with(backend, |server| server.listen(&path).unwrap());
    let full = || FramedClient::connect(&path, "n1", ClientRole::Ordinary);
    let taken: Vec<FramedClient> = (0..2).map(|_| full().unwrap()).collect();
    assert!(matches!(full(), Err(FramedConnectError::AttachRefused { reason: RefusalCode::Full, .. })));
    assert_served(&mut FramedClient::connect(&path, "n2", ClientRole::Ordinary).unwrap(), 2);
    drop(taken);
    let started = std::time::Instant::now();
    while full().is_err() {
        assert!(started.elapsed() < 3 * LONG, "a slot that is left is free again");
    }
    assert!(server.stop().1.refused_full > 0);
}

#[test]
fn all_headers_are_carried_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("framed.sock");
    let _server = start_at(&path);
    let mut manager = FramedClient::connect(&path, "n1", ClientRole::SubnetManager).unwrap();
    let mut client = FramedClient::connect(&path, "n2", ClientRole::Ordinary).unwrap();
    let mut request = lid_routed(Method::GET, Attribute::SM_INFO, 2, 3);
    request.sl = ServiceLevel::from_wire(5).unwrap();
    request.slid = LidAddress::from_wire(3).unwrap();
    client.send(&request).unwrap();
    let Some(FramedReceived::Datagram(mut arrived)) = manager.receive(LONG).unwrap() else {
        panic!("no request")
    };
    assert_eq!(arrived.mad.transaction().0 >> 48, u64::from(client.attached().client));
    arrived.mad.set_transaction(TransactionId(3));
    assert_eq!(*arrived, request);
}

#[test]
fn both_protocols_reach_the_same_fabric() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("framed.sock");
    let server = start_at(&path);
    let mut manager = FramedClient::connect(&path, "n1", ClientRole::Ordinary).unwrap();
    manager.set_role(ClientRole::SubnetManager).unwrap();
    assert_served(&mut manager, 1);
    let spec: DeviceSpec = format!("ibsim:{}@n2", server.name).parse().unwrap();
    let mut device = Device::open(&spec).unwrap();
    assert_eq!(device.lid().unwrap(), Lid::from_wire(3));
    let mut request = lid_routed(Method::GET, Attribute::SM_INFO, 2, 3);
    request.slid = LidAddress::from_wire(3).unwrap();
    device.send(&request).unwrap();
    let Some(FramedReceived::Datagram(mut answer)) = manager.receive(LONG).unwrap() else {
        panic!("no request")
    };
    answer.mad.set_method(Method::GET_RESP);
    std::mem::swap(&mut answer.slid, &mut answer.dlid);
    manager.send(&answer).unwrap();
    match device.receive(LONG).unwrap() {
        Some(Received::Datagram(answer)) => assert_eq!(answer.mad.attribute(), Attribute::SM_INFO),
        other => panic!("{other:?}"),
    }
    assert_eq!(server.stop().0.manager_changes[0], (1, true));
}

#[test]
fn a_malformed_frame_closes_only_its_stream() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("framed.sock");
    let server = start_at(&path);
    let mut good = FramedClient::connect(&path, "n1", ClientRole::Ordinary).unwrap();
    let datagram_before_attach = {
        let mut bytes = Vec::new();
        ib_transport::framed::Frame::encode_datagram(&node_info_request(1), &mut bytes);
        bytes
    };
    for bytes in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 5000], &[0, 0, 0, 4, 9, 9, 0, 0], &datagram_before_attach]
    {
        let mut bad = UnixStream::connect(&path).unwrap();
        bad.set_read_timeout(Some(LONG)).unwrap();
        bad.write_all(bytes).unwrap();
        let mut rest = Vec::new();
        // A reset is an end, too: it comes when the server had not read everything.
        let _ = bad.read_to_end(&mut rest);
        assert_served(&mut good, 1);
    }
    assert_eq!(server.stop().1.frames_malformed, 4);
}

#[test]
fn an_unknown_node_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("framed.sock");
    let _server = start_at(&path);
    let refused = FramedClient::connect(&path, "nowhere", ClientRole::Ordinary);
    assert!(
        matches!(refused, Err(FramedConnectError::AttachRefused { reason: RefusalCode::UnknownNode, .. })),
        "{refused:?}"
    );
}

#[test]
fn the_socket_is_private_and_replaces_only_dead_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("framed.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a stale socket file");
    let server = start_at(&path);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let mut second = Server::<u16>::bind(&unique_name()).unwrap();
    assert!(matches!(second.listen(&path), Err(SocketBindError::InUse { .. })));
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(second.listen(&file), Err(SocketBindError::NotASocket { .. })));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    drop(second);
    assert_served(&mut FramedClient::connect(&path, "n3", ClientRole::Ordinary).unwrap(), 3);
    drop(server);
}

#[test]
fn a_stream_that_does_not_read_does_not_block_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("framed.sock");
    let server = start_at(&path);
    let mut good = FramedClient::connect(&path, "n1", ClientRole::Ordinary).unwrap();
    let mut deaf = FramedClient::connect(&path, "n2", ClientRole::Ordinary).unwrap();
    let batch = vec![node_info_request(1); 100];
    for _ in 0..50 {
        deaf.send_batch(&batch).unwrap();
    }
    assert_served(&mut good, 1);
    drop(deaf);
    assert_served(&mut good, 1);
    assert!(server.stop().1.backlog_dropped > 0);
}
