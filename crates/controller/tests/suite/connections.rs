//! Connection limits: idle, slow and oversized connections affect only their peer.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::site::http::{HttpRequest, HttpResponse, read_response};
use crate::site::{Site, by_name, eventually, new_cluster, stays_open};

/// More connections than one peer may have open.
const MANY: usize = 400;

/// Concurrent changes of one tenant: more than can be delayed at once, fewer than the connections of one peer.
const AT_ONCE: usize = 240;

/// Longer than any of the tested timeouts, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The start of a request that never ends.
const HALF: &[u8] = b"GET /v1/clusters HTTP/1.1\r\nHost: heddle\r\n";

/// Sends a request by TCP, as another peer than the user of this process.
fn by_tcp(site: &Site, request: &HttpRequest) -> HttpResponse {
    let mut stream = TcpStream::connect(site.address()).unwrap();
    stream.write_all(&request.bytes()).unwrap();
    read_response(&mut stream).unwrap()
}

fn list(token: &str) -> HttpRequest<'_> {
    HttpRequest { method: "GET", path: "/v1/clusters", token: Some(token), ..HttpRequest::default() }
}

/// Waits until the other side closes; returns what it sent before.
fn end_of(stream: &mut (impl Read + Timed)) -> Vec<u8> {
    stream.set_timeout(PATIENCE);
    let (began, mut heard) = (Instant::now(), Vec::new());
    if let Err(error) = stream.read_to_end(&mut heard) {
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::ConnectionReset,
            "still open after {:?}",
            began.elapsed()
        );
    }
    heard
}

trait Timed {
    fn set_timeout(&self, limit: Duration);
}

impl Timed for UnixStream {
    fn set_timeout(&self, limit: Duration) {
        self.set_read_timeout(Some(limit)).unwrap();
    }
}

#[test]
fn half_open_connections_of_one_peer_leave_others_served() {
    let site = Site::new(4);
    let token = site.operator_token();
    let mut held: Vec<UnixStream> = Vec::new();
    let mut refused = 0;
    for _ in 0..MANY {
        let mut stream = UnixStream::connect(site.socket()).unwrap();
        // A connection over the limit may be closed before.
        let _ = stream.write_all(HALF);
        held.push(stream);
    }
    // This user has no connection left.
    let own = list(&token).send(&site.socket());
    assert_eq!((own.status, own.json()["type"].as_str()), (503, Some("too-many-connections")), "{own:?}");
    // Another peer is served.
    let other = by_tcp(&site, &list(&token));
    assert_eq!(other.status, 200, "{other:?}");
    for stream in &mut held {
        stream.set_nonblocking(true).unwrap();
        let mut byte = [0];
        refused += usize::from(matches!(stream.read(&mut byte), Ok(1)));
    }
    assert!(refused > 0 && refused < MANY, "{refused} of {MANY} are refused");
    // Slots of closed connections are free again.
    drop(held);
    eventually("a slot is free again", || list(&token).send(&site.socket()).status == 200);
}

#[test]
fn slow_headers_and_slow_bodies_are_cut() {
    let site = Site::new(4);
    let token = site.operator_token();
    let mut slow_head = UnixStream::connect(site.socket()).unwrap();
    slow_head.write_all(HALF).unwrap();
    let mut silent = UnixStream::connect(site.socket()).unwrap();
    let body = json!({ "name": "acme" });
    let request = HttpRequest {
        method: "POST",
        path: "/v1/tenants",
        token: Some(&token),
        body: Some(&body),
        ..HttpRequest::default()
    };
    let bytes = request.bytes();
    let mut slow_body = UnixStream::connect(site.socket()).unwrap();
    slow_body.write_all(&bytes[..bytes.len() - 1]).unwrap();

    end_of(&mut slow_head);
    assert_eq!(end_of(&mut silent), b"");
    let heard = String::from_utf8(end_of(&mut slow_body)).unwrap();
    assert!(heard.starts_with("HTTP/1.1 408 "), "{heard}");
    // Control: the complete request is accepted.
    assert_eq!(request.send(&site.socket()).status, 201);
}

#[test]
fn a_body_that_is_declared_too_large_is_refused_at_once() {
    let site = Site::new(4);
    let token = site.operator_token();
    for (length, status) in [(200 << 20, 413), (1 << 20, 0)] {
        let head = format!(
            "POST /v1/tenants HTTP/1.1\r\nHost: heddle\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        let mut stream = UnixStream::connect(site.socket()).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        if status == 0 {
            // The server waits for a body of the largest size: it has not answered when half of it is sent.
            stream.write_all(&vec![b' '; length / 2]).unwrap();
            stream.write_all(&vec![b' '; length / 2]).unwrap();
            assert_eq!(read_response(&mut stream).unwrap().status, 422);
        } else {
            stream.set_timeout(PATIENCE);
            assert_eq!(read_response(&mut stream).unwrap().status, status, "rejected before any of the body");
        }
    }
}

#[test]
fn streams_and_long_polls_outlast_the_request_timeout() {
    let site = Site::new(4);
    let acme = site.tenant("acme");
    let operation = site.ask(acme.cluster_create(&new_cluster("blue", 1))).unwrap();
    site.wait(&acme, &operation);
    eventually("the network can be seen", || site.ask(acme.view_show(&by_name("blue"))).is_ok());
    let mut stream = site.ask(acme.view_open(&by_name("blue"), 1)).unwrap();
    // A long poll lasts as long as the header timeout.
    let newest = site.ask(acme.event_list(None, false)).unwrap().last().unwrap().number;
    for _ in 0..2 {
        assert_eq!(site.ask(acme.event_list(Some(newest), true)).unwrap(), []);
    }
    assert!(site.ask(stays_open(&mut stream)), "the stream has ended");
}

#[test]
fn only_the_tenant_over_its_rate_is_delayed() {
    let site = Site::new(4);
    let (hasty, calm) = (site.tenant_token("hasty"), site.tenant_token("calm"));
    let delete = HttpRequest {
        method: "DELETE",
        path: "/v1/clusters/none",
        token: Some(&hasty),
        ..HttpRequest::default()
    };
    let mut streams: Vec<UnixStream> = Vec::new();
    for _ in 0..AT_ONCE {
        let mut stream = UnixStream::connect(site.socket()).unwrap();
        stream.set_timeout(PATIENCE);
        stream.write_all(&delete.bytes()).unwrap();
        streams.push(stream);
    }
    assert_eq!(list(&calm).send(&site.socket()).status, 200);
    let answers: Vec<HttpResponse> =
        streams.iter_mut().map(|stream| read_response(stream).unwrap()).collect();
    let kinds = |status: u16| -> Vec<Value> {
        answers
            .iter()
            .filter(|answer| answer.status == status)
            .map(|answer| answer.json()["type"].clone())
            .collect()
    };
    let (served, refused) = (kinds(404), kinds(429));
    assert_eq!(served.len() + refused.len(), AT_ONCE, "{answers:?}");
    assert!(!served.is_empty() && !refused.is_empty(), "{} served", served.len());
    assert!(refused.iter().all(|kind| kind == "too-many-requests"), "{refused:?}");
    // Sequential requests are delayed, and never rejected.
    for _ in 0..5 {
        assert_eq!(delete.send(&site.socket()).status, 404);
    }
}

#[test]
fn a_stopped_controller_removes_its_socket() {
    let mut site = Site::new(4);
    site.stop();
    let (settings, socket) = (site.settings(), site.socket());
    site.ask(controller::serve(settings, serves_at(socket.clone()))).unwrap();
    assert!(!socket.exists());
}

/// Returns once somebody listens at a socket.
async fn serves_at(socket: std::path::PathBuf) {
    while UnixStream::connect(&socket).is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
