//! Limits of the HTTP server: slow or idle clients occupy a bounded number of connections for a bounded time.

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::{get, put};
use node_agent::http::{HttpLimits, serve};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

/// Longer than any step takes.
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

/// Reads until the connection is closed.
async fn to_the_end(mut stream: UnixStream) -> String {
    let mut answer = Vec::new();
    let read = timeout(TEST_TIMEOUT, stream.read_to_end(&mut answer)).await.expect("it is closed");
    // If the server closes with unread input, its output may be lost.
    read.map(|_| String::from_utf8_lossy(&answer).into_owned()).unwrap_or_default()
}

async fn send(socket: &std::path::Path, text: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn partial_headers_and_idle_connections_time_out() {
    let (_scratch, socket) = start(HttpLimits { header: SHORT, ..HttpLimits::default() });
    assert_eq!(to_the_end(send(&socket, "GET / HTTP/1.1\r\nhost: a\r\n").await).await, "");
    assert_eq!(to_the_end(send(&socket, "").await).await, "");
    let idle = to_the_end(send(&socket, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await).await;
    assert!(idle.starts_with("HTTP/1.1 200") && idle.ends_with("well"), "{idle}");
}

#[tokio::test]
async fn an_incomplete_body_times_out() {
    let (_scratch, socket) =
        start(HttpLimits { request: SHORT, header: TEST_TIMEOUT, ..HttpLimits::default() });
    let head = "PUT / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 4\r\n\r\n";
    let late = to_the_end(send(&socket, &format!("{head}hal")).await).await;
    assert!(late.starts_with("HTTP/1.1 408"), "{late}");
    let whole = to_the_end(send(&socket, &format!("{head}half")).await).await;
    assert!(whole.starts_with("HTTP/1.1 200"), "{whole}");
}

#[tokio::test]
async fn connections_over_the_limit_wait_and_are_served() {
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
