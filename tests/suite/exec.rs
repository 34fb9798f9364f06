//! `heddle cluster exec` and `proxy` against simulated nodes, which echo their input.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use axum::extract::{Path, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing};
use controller_api::session::{self, FrameKind, NewSession};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;

/// A controller with one cluster of two nodes, `blue-1` and `blue-2`; nothing else is there.
struct Played {
    url: String,
    _runtime: Runtime,
}

impl Played {
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/v1/clusters/blue", routing::get(cluster))
            .route("/v1/clusters/blue/nodes/{number}/sessions", routing::post(open));
        runtime.spawn(async { axum::serve(listener, router).await });
        Self { url, _runtime: runtime }
    }

    fn heddle(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_heddle"))
            .args(arguments)
            .env("HEDDLE_URL", &self.url)
            .env("HEDDLE_TOKEN", "token")
            .env_remove("HEDDLE_TENANT")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut to = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            // While the output is read, because a pipe does not hold all of it. Not every command reads its input.
            scope.spawn(move || drop(to.write_all(input)));
            child.wait_with_output().unwrap()
        })
    }
}

async fn cluster() -> Json<serde_json::Value> {
    let node = |number: u32| {
        json!({ "id": uuid::Uuid::nil(), "number": number, "name": format!("blue-{number}"),
                "address": format!("10.128.0.{number}"), "state": "ready" })
    };
    Json(json!({
        "id": uuid::Uuid::nil(), "tenant": "acme", "name": "blue", "size": 2, "cores": 1, "memory": "384M",
        "mode": "shared", "image": "debian-mpi", "phase": "ready", "partition": 1,
        "created": "2026-01-02T03:04:05Z", "host_key": "ssh-ed25519 AAAA heddle", "nodes": [node(1), node(2)],
    }))
}

async fn open(Path(number): Path<u32>, request: Request) -> Response {
    if number > 2 {
        let problem = json!({ "type": "no-such-node", "title": "no such node", "status": 404,
                              "detail": "blue has no node 3", "hint": "it has 1 and 2" });
        return (StatusCode::NOT_FOUND, Json(problem)).into_response();
    }
    let (mut parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 4096).await.unwrap();
    let open: NewSession = serde_json::from_slice(&body).unwrap();
    let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>().unwrap();
    tokio::spawn(async move {
        let stream = TokioIo::new(upgrade.await.unwrap());
        // The client may have gone; the test notices that on its side.
        let _ = serve(stream, number, open).await;
    });
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(session::PROTOCOL));
    response
}

/// Prints its command, then its input, and ends with its own status if the command is `fail`.
async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    number: u32,
    open: NewSession,
) -> std::io::Result<()> {
    let (mut from, mut to) = tokio::io::split(stream);
    let (words, status) = match open {
        NewSession::Ssh {} => ("SSH-2.0".to_owned(), 0),
        NewSession::Exec { argv } if argv == ["fail"] => (argv.join(" "), 10 * number),
        NewSession::Exec { argv } => (argv.join(" "), 0),
    };
    session::write_frame(&mut to, FrameKind::Output, format!("{words}\n").as_bytes()).await?;
    session::write_frame(&mut to, FrameKind::Error, b"careful\n").await?;
    while let Some((FrameKind::Input, bytes)) = session::read_frame(&mut from).await? {
        if bytes.is_empty() {
            break;
        }
        session::write_frame(&mut to, FrameKind::Output, &bytes).await?;
    }
    session::write_frame(&mut to, FrameKind::Exit, &status.to_be_bytes()).await
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_command_gets_arguments_and_input_and_separate_streams() {
    let output =
        Played::new().heddle(&["cluster", "exec", "blue", "--node", "2", "--", "cat", "-n"], b"one\ntwo");
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("cat -n\none\ntwo", "careful\n"));
    assert!(output.status.success());
}

#[test]
fn the_status_of_a_command_is_the_status_of_exec() {
    let played = Played::new();
    let output = played.heddle(&["cluster", "exec", "blue", "--node", "2", "--", "fail"], b"");
    assert_eq!(output.status.code(), Some(20));
}

#[test]
fn exec_all_prefixes_lines_and_returns_the_first_failure() {
    let played = Played::new();
    let output = played.heddle(&["cluster", "exec", "blue", "--all", "--", "hostname"], b"not for them");
    let mut lines: Vec<&str> = text(&output.stdout).lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["blue-1 | hostname", "blue-2 | hostname"]);
    assert!(output.status.success());
    let output = played.heddle(&["cluster", "exec", "blue", "--all", "--", "fail"], b"");
    assert_eq!(output.status.code(), Some(10));
    assert!(text(&output.stderr).contains("blue-1 ended with status 10"));
}

#[test]
fn the_bytes_of_an_ssh_connection_pass_unchanged() {
    let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    let output = Played::new().heddle(&["cluster", "proxy", "blue"], &bytes);
    assert_eq!(&output.stdout[..8], b"SSH-2.0\n");
    assert!(output.stdout[8..] == bytes, "{} bytes", output.stdout.len());
}

#[test]
fn a_node_that_is_not_there_is_told_with_those_that_are() {
    let output = Played::new().heddle(&["cluster", "exec", "blue", "--node", "3", "--", "true"], b"");
    assert_eq!(text(&output.stderr), "heddle: blue has no node 3; it has 1 and 2\n");
    assert_eq!(output.status.code(), Some(255));
}
