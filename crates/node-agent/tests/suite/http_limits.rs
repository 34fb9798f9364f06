//! Whoever holds connections open, or dawdles, costs the agent a bounded number of them for a bounded time.

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::{get, put};
use node_agent::http::{HttpLimits, serve};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

/// How long anything may take that is to happen.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

const SHORT: Duration = Duration::from_millis(300);

fn start(limits: HttpLimits) -> (TempDir, std::path::PathBuf) {
    let scratch = TempDir::new().unwrap();
    let socket = scratch.path().join("agent.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let router = Router::new()
        .route("/", get(|| async { "well" }))
        .route("/", put(|body: Bytes| async move { body.len().to_string() }));
    tokio::spawn(async move { serve(listener, router, limits).await });
    (scratch, socket)
}

/// Everything that comes until the connection is closed.
async fn to_the_end(mut stream: UnixStream) -> String {
    let mut answer = Vec::new();
    let read = timeout(TEST_TIMEOUT, stream.read_to_end(&mut answer)).await.expect("it is closed");
    // Closed with something unread, the rest is lost.
    read.map(|_| String::from_utf8_lossy(&answer).into_owned()).unwrap_or_default()
}

async fn send(socket: &std::path::Path, text: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn half_a_head_and_an_idle_connection_are_closed() {
    let (_scratch, socket) = start(HttpLimits { header: SHORT, ..HttpLimits::default() });
    assert_eq!(to_the_end(send(&socket, "GET / HTTP/1.1\r\nhost: a\r\n").await).await, "");
    assert_eq!(to_the_end(send(&socket, "").await).await, "");
    let idle = to_the_end(send(&socket, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await).await;
    assert!(idle.starts_with("HTTP/1.1 200") && idle.ends_with("well"), "{idle}");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let (_scratch, socket) =
        start(HttpLimits { request: SHORT, header: TEST_TIMEOUT, ..HttpLimits::default() });
    let head = "PUT / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 4\r\n\r\n";
    let late = to_the_end(send(&socket, &format!("{head}hal")).await).await;
    assert!(late.starts_with("HTTP/1.1 408"), "{late}");
    let whole = to_the_end(send(&socket, &format!("{head}half")).await).await;
    assert!(whole.starts_with("HTTP/1.1 200"), "{whole}");
}

#[tokio::test]
async fn more_connections_than_the_limit_wait_and_are_served_afterwards() {
    let (_scratch, socket) = start(HttpLimits { connections: 2, header: SHORT, ..HttpLimits::default() });
    let mut held = Vec::new();
    for _ in 0..16 {
        held.push(send(&socket, "GET / HTTP/1.1\r\n").await);
    }
    let served = send(&socket, "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    let served = to_the_end(served).await;
    assert!(served.ends_with("well"), "{served}");
    drop(held);
}
