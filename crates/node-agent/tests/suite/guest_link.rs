//! The host's end of a guest's channel, against fake guests, some of them hostile.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use controller_api::agent::NetworkCheck;
use controller_api::session::{FrameKind, NewSession, read_frame, write_frame};
use guest::channel::{
    DATA_BYTES_MAX, Decoder, PROTOCOL_VERSION, SESSIONS_MAX, SessionId, SessionRequest, ToGuest, ToHost,
    WINDOW_BYTES, encode,
};
use guest::probe::Reachability;
use node_agent::link::{GuestContext, GuestLink, GuestState, LivenessTimeouts, SessionError, SessionEvent};
use node_agent::session::bridge;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;

/// Longer than any step takes; only a failing test waits for it.
const TEST_TIMEOUT: Duration = Duration::from_secs(90);

/// A fake guest.
struct Guest {
    stream: UnixStream,
    decoder: Decoder<ToGuest>,
    messages: VecDeque<ToGuest>,
}

impl Guest {
    async fn accept(listener: &UnixListener) -> Self {
        let (stream, _) =
            timeout(TEST_TIMEOUT, listener.accept()).await.expect("in time").expect("a connection");
        Self { stream, decoder: Decoder::new(), messages: VecDeque::new() }
    }

    /// A guest that has answered the hello.
    async fn greeted(listener: &UnixListener) -> Self {
        let mut guest = Self::accept(listener).await;
        let ToGuest::Hello { nonce } = guest.recv().await else { panic!("no hello") };
        guest.send(ToHost::Welcome { nonce, version: PROTOCOL_VERSION, boot: "boot".into() }).await;
        guest
    }

    async fn send(&mut self, message: ToHost) {
        let mut bytes = Vec::new();
        encode(&message, &mut bytes).expect("short enough");
        self.stream.write_all(&bytes).await.expect("the host reads");
    }

    async fn recv(&mut self) -> ToGuest {
        self.try_recv().await.expect("the host is there")
    }

    async fn try_recv(&mut self) -> Option<ToGuest> {
        while self.messages.is_empty() {
            let mut bytes = [0; 4096];
            let length = timeout(TEST_TIMEOUT, self.stream.read(&mut bytes)).await.expect("in time").ok()?;
            if length == 0 {
                return None;
            }
            self.decoder.push(&bytes[..length], &mut self.messages);
        }
        self.messages.pop_front()
    }

    /// The session that the host opens next.
    async fn opened(&mut self) -> SessionId {
        match self.recv().await {
            ToGuest::Open { session, .. } => session,
            other => panic!("{other:?} instead of a session"),
        }
    }
}

struct World {
    _scratch: TempDir,
    socket: PathBuf,
    listener: UnixListener,
    context: watch::Sender<GuestContext>,
    link: GuestLink,
}

fn context(generation: u64) -> GuestContext {
    GuestContext { generation, documents: Arc::new(format!("documents {generation}").into_bytes()) }
}

fn world() -> World {
    world_with(LivenessTimeouts::default())
}

fn world_with(timeouts: LivenessTimeouts) -> World {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("guest.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (sender, receiver) = watch::channel(context(1));
    let link = GuestLink::start_with(Uuid::new_v4(), socket.clone(), receiver, timeouts);
    World { _scratch: scratch, socket, listener, context: sender, link }
}

impl World {
    async fn until(&self, state: &GuestState) {
        let mut seen = self.link.state();
        let found = timeout(TEST_TIMEOUT, seen.wait_for(|seen| seen == state)).await;
        assert!(found.is_ok(), "{state:?} never came; it is {:?}", self.link.state().borrow());
    }
}

fn exec() -> NewSession {
    NewSession::Exec { argv: vec!["true".into()] }
}

#[tokio::test]
async fn messages_before_the_welcome_are_ignored() {
    let world = world();
    let mut guest = Guest::accept(&world.listener).await;
    guest.send(ToHost::Ready { generation: 1 }).await;
    let ToGuest::Hello { nonce } = guest.recv().await else { panic!("no hello") };
    guest.send(ToHost::Welcome { nonce: nonce ^ 1, version: PROTOCOL_VERSION, boot: "old".into() }).await;
    guest.send(ToHost::Ready { generation: 1 }).await;
    assert!(matches!(world.link.opener().open(exec()).await, Err(SessionError::GuestUnavailable(_))));
    assert_eq!(*world.link.state().borrow(), GuestState::Silent);
    guest.send(ToHost::Welcome { nonce, version: PROTOCOL_VERSION, boot: "boot".into() }).await;
    world.until(&GuestState::Greeted).await;
    guest.send(ToHost::Ready { generation: 1 }).await;
    world.until(&GuestState::Ready(1, None)).await;
}

#[tokio::test]
async fn a_new_context_is_sent_once() {
    let world = world();
    let mut guest = Guest::greeted(&world.listener).await;
    guest.send(ToHost::Ready { generation: 1 }).await;
    world.until(&GuestState::Ready(1, None)).await;
    world.context.send(context(2)).unwrap();
    assert_eq!(guest.recv().await, ToGuest::Context(b"documents 2".to_vec()));
    // Not repeated for each report of the old generation.
    for _ in 0..10 {
        guest.send(ToHost::Ready { generation: 1 }).await;
    }
    guest.send(ToHost::Ready { generation: 2 }).await;
    world.until(&GuestState::Ready(2, None)).await;
    world.context.send(context(3)).unwrap();
    assert_eq!(guest.recv().await, ToGuest::Context(b"documents 3".to_vec()));
}

#[tokio::test]
async fn network_checks_count_for_their_generation() {
    let world = world();
    let mut guest = Guest::greeted(&world.listener).await;
    let said =
        |generation, reached| ToHost::Network { generation, reach: Reachability { reached, heard: true } };
    let check = |reached| Some(NetworkCheck { reached, heard: true });
    guest.send(said(1, false)).await;
    guest.send(ToHost::Ready { generation: 1 }).await;
    world.until(&GuestState::Ready(1, check(false))).await;
    guest.send(said(1, true)).await;
    world.until(&GuestState::Ready(1, check(true))).await;
    // The state of the earlier generation is kept while the new context is applied.
    world.context.send(context(2)).unwrap();
    assert_eq!(guest.recv().await, ToGuest::Context(b"documents 2".to_vec()));
    guest.send(said(2, false)).await;
    assert_eq!(*world.link.state().borrow(), GuestState::Ready(1, check(true)));
    guest.send(ToHost::Ready { generation: 2 }).await;
    world.until(&GuestState::Ready(2, check(false))).await;
    // Control: a generation without a network report has no network check.
    guest.send(ToHost::Ready { generation: 3 }).await;
    world.until(&GuestState::Ready(3, None)).await;
}

#[tokio::test]
async fn a_guest_without_a_network_check_is_ready() {
    let world = world();
    let mut guest = Guest::greeted(&world.listener).await;
    guest.send(ToHost::Ready { generation: 1 }).await;
    world.until(&GuestState::Ready(1, None)).await;
}

/// A client session, as the controller opens one.
async fn client(world: &World) -> (DuplexStream, tokio::task::JoinHandle<std::io::Result<()>>) {
    let session = world.link.opener().open(exec()).await.expect("a session");
    let (client, agent) = tokio::io::duplex(1024);
    (client, tokio::spawn(bridge(agent, session)))
}

#[tokio::test]
async fn a_session_carries_all_streams_and_the_status() {
    let world = world();
    let mut guest = Guest::greeted(&world.listener).await;
    world.until(&GuestState::Greeted).await;
    let (mut client, bridged) = client(&world).await;
    let ToGuest::Open { session, request } = guest.recv().await else { panic!("no session") };
    assert_eq!(request, SessionRequest::Exec { argv: vec!["true".into()] });
    write_frame(&mut client, FrameKind::Input, b"question").await.unwrap();
    write_frame(&mut client, FrameKind::Input, b"").await.unwrap();
    assert_eq!(guest.recv().await, ToGuest::Input { session, bytes: b"question".to_vec() });
    assert_eq!(guest.recv().await, ToGuest::Input { session, bytes: Vec::new() });
    guest.send(ToHost::Output { session, bytes: b"answer".to_vec() }).await;
    guest.send(ToHost::Error { session, bytes: b"complaint".to_vec() }).await;
    guest.send(ToHost::Exit { session, status: 3 }).await;
    let mut frames = Vec::new();
    while let Some(frame) = read_frame(&mut client).await.unwrap() {
        frames.push(frame);
    }
    let exit = 3i32.to_be_bytes().to_vec();
    let wanted = [
        (FrameKind::Output, b"answer".to_vec()),
        (FrameKind::Error, b"complaint".to_vec()),
        (FrameKind::Exit, exit),
    ];
    assert_eq!(frames, wanted);
    drop(client);
    timeout(TEST_TIMEOUT, bridged).await.expect("in time").unwrap().unwrap();
}

#[tokio::test]
async fn a_disconnected_client_closes_its_session() {
    let world = world();
    let mut guest = Guest::greeted(&world.listener).await;
    world.until(&GuestState::Greeted).await;
    let (client, _bridged) = client(&world).await;
    let session = guest.opened().await;
    drop(client);
    assert_eq!(guest.recv().await, ToGuest::Close { session });
}

#[tokio::test]
async fn an_unread_session_does_not_block_others() {
    let world = world();
    let mut guest = Guest::greeted(&world.listener).await;
    world.until(&GuestState::Greeted).await;
    let slow = world.link.opener().open(exec()).await.unwrap();
    let slow_id = guest.opened().await;
    let window = WINDOW_BYTES as usize;
    for piece in vec![7; window].chunks(DATA_BYTES_MAX) {
        guest.send(ToHost::Output { session: slow_id, bytes: piece.to_vec() }).await;
    }
    let quick = world.link.opener().open(exec()).await.unwrap();
    let quick_id = guest.opened().await;
    guest.send(ToHost::Output { session: quick_id, bytes: b"hello".to_vec() }).await;
    assert_eq!(
        timeout(TEST_TIMEOUT, quick.recv()).await.expect("in time"),
        SessionEvent::Output(b"hello".to_vec())
    );
    // Credit is returned only for output that was read.
    let mut read = 0;
    while read < window {
        let SessionEvent::Output(bytes) = slow.recv().await else { panic!("only output was sent") };
        read += bytes.len();
        slow.consumed(bytes.len()).await;
    }
    assert!(matches!(guest.recv().await, ToGuest::Credit { session, .. } if session == slow_id));
}

#[tokio::test]
async fn input_waits_for_credit() {
    let world = world();
    let mut guest = Guest::greeted(&world.listener).await;
    world.until(&GuestState::Greeted).await;
    let session = Arc::new(world.link.opener().open(exec()).await.unwrap());
    let id = guest.opened().await;
    let window = WINDOW_BYTES as usize;
    let sending = {
        let session = Arc::clone(&session);
        tokio::spawn(async move { session.input(&vec![1; window + 1]).await })
    };
    // Messages are not split to fill the last bytes of a window.
    let mut received = 0;
    while received + DATA_BYTES_MAX <= window {
        let ToGuest::Input { bytes, .. } = guest.recv().await else { panic!("only input was sent") };
        received += bytes.len();
    }
    assert!(received <= window && !sending.is_finished());
    guest.send(ToHost::Credit { session: id, bytes: 1000 }).await;
    while received < window + 1 {
        let ToGuest::Input { bytes, .. } = guest.recv().await else { panic!("only input was sent") };
        received += bytes.len();
    }
    assert!(timeout(TEST_TIMEOUT, sending).await.expect("in time").unwrap());
}

#[tokio::test]
async fn a_window_overrun_ends_that_session_only() {
    let world = world();
    let mut guest = Guest::greeted(&world.listener).await;
    world.until(&GuestState::Greeted).await;
    let (bad, good) =
        (world.link.opener().open(exec()).await.unwrap(), world.link.opener().open(exec()).await.unwrap());
    let (bad_id, good_id) = (guest.opened().await, guest.opened().await);
    for piece in vec![7; WINDOW_BYTES as usize + 1].chunks(DATA_BYTES_MAX) {
        guest.send(ToHost::Output { session: bad_id, bytes: piece.to_vec() }).await;
    }
    assert_eq!(guest.recv().await, ToGuest::Close { session: bad_id });
    let mut last = bad.recv().await;
    while matches!(last, SessionEvent::Output(_)) {
        last = bad.recv().await;
    }
    assert!(matches!(last, SessionEvent::Refused(_)), "{last:?}");
    guest.send(ToHost::Exit { session: good_id, status: 0 }).await;
    assert_eq!(good.recv().await, SessionEvent::Exit(0));
}

#[tokio::test]
async fn excess_credit_ends_the_session() {
    let world = world();
    let mut guest = Guest::greeted(&world.listener).await;
    world.until(&GuestState::Greeted).await;
    let session = world.link.opener().open(exec()).await.unwrap();
    let id = guest.opened().await;
    guest.send(ToHost::Credit { session: id, bytes: u32::MAX }).await;
    assert!(matches!(session.recv().await, SessionEvent::Refused(_)));
    assert_eq!(guest.recv().await, ToGuest::Close { session: id });
}

#[tokio::test]
async fn session_numbers_are_limited_and_reused() {
    let world = world();
    let mut guest = Guest::greeted(&world.listener).await;
    world.until(&GuestState::Greeted).await;
    let opener = world.link.opener();
    let mut open = Vec::new();
    for _ in 0..SESSIONS_MAX {
        open.push(opener.open(exec()).await.unwrap());
    }
    assert_eq!(opener.open(exec()).await.unwrap_err(), SessionError::TooManySessions);
    let first = guest.opened().await;
    guest.send(ToHost::Exit { session: first, status: 0 }).await;
    assert_eq!(open[0].recv().await, SessionEvent::Exit(0));
    let again = opener.open(exec()).await.unwrap();
    for _ in 1..SESSIONS_MAX {
        guest.opened().await;
    }
    assert_eq!(guest.opened().await, first);
    // Dropping the earlier session late does not close the one that reuses its number.
    drop(open);
    guest.send(ToHost::Output { session: first, bytes: b"x".to_vec() }).await;
    assert_eq!(again.recv().await, SessionEvent::Output(b"x".to_vec()));
}

/// The host disconnects a guest that floods it, and serves others meanwhile.
async fn flood(bytes: &[u8]) {
    let (world, other) = (world(), world());
    let mut guest = Guest::greeted(&world.listener).await;
    let mut good = Guest::greeted(&other.listener).await;
    other.until(&GuestState::Greeted).await;
    let session = world_session(&world, &mut guest).await;
    let mut cut_off = false;
    for _ in 0..4096 {
        let written =
            timeout(TEST_TIMEOUT, guest.stream.write_all(bytes)).await.expect("the host reads or hangs up");
        cut_off |= written.is_err();
        if cut_off {
            break;
        }
    }
    assert!(cut_off, "the host read all of it");
    let mut state = world.link.state();
    timeout(TEST_TIMEOUT, state.wait_for(|state| matches!(state, GuestState::Misbehaving(_))))
        .await
        .unwrap()
        .unwrap();
    assert!(matches!(session.recv().await, SessionEvent::Refused(_)));
    good.send(ToHost::Ready { generation: 1 }).await;
    other.until(&GuestState::Ready(1, None)).await;
}

async fn world_session(world: &World, guest: &mut Guest) -> node_agent::link::Session {
    world.until(&GuestState::Greeted).await;
    let session = world.link.opener().open(exec()).await.unwrap();
    guest.opened().await;
    session
}

#[tokio::test]
async fn a_flood_of_zero_bytes_is_cut_off() {
    flood(&[0; 16 * 1024]).await;
}

#[tokio::test]
async fn a_flood_of_noise_is_cut_off() {
    flood(&[0x55; 16 * 1024]).await;
}

#[tokio::test]
async fn a_flood_of_valid_messages_is_cut_off() {
    let mut words = Vec::new();
    for generation in 0..500 {
        encode(&ToHost::Ready { generation }, &mut words).unwrap();
    }
    flood(&words).await;
}

#[tokio::test]
async fn a_broken_connection_ends_sessions_and_is_reopened() {
    let world = world();
    let mut guest = Guest::greeted(&world.listener).await;
    let session = world_session(&world, &mut guest).await;
    drop(guest);
    assert!(matches!(session.recv().await, SessionEvent::Refused(_)));
    let mut again = Guest::greeted(&world.listener).await;
    again.send(ToHost::Ready { generation: 1 }).await;
    world.until(&GuestState::Ready(1, None)).await;
}

#[tokio::test]
async fn dropping_a_link_closes_the_connection() {
    let world = world();
    let mut guest = Guest::greeted(&world.listener).await;
    let session = world_session(&world, &mut guest).await;
    let World { link, socket, .. } = &world;
    assert!(Path::new(socket).exists() && *link.state().borrow() == GuestState::Greeted);
    drop(world);
    while let Some(message) = guest.try_recv().await {
        assert!(!matches!(message, ToGuest::Open { .. }));
    }
    assert!(matches!(session.recv().await, SessionEvent::Refused(_)));
}

#[tokio::test]
async fn a_too_long_command_ends_only_its_session() {
    let world = world();
    let mut guest = Guest::greeted(&world.listener).await;
    world.until(&GuestState::Greeted).await;
    let long = NewSession::Exec { argv: vec!["x".repeat(40_000)] };
    let session = world.link.opener().open(long).await.unwrap();
    assert!(matches!(session.recv().await, SessionEvent::Refused(_)));
    let next = world.link.opener().open(exec()).await.unwrap();
    let id = guest.opened().await;
    guest.send(ToHost::Exit { session: id, status: 0 }).await;
    assert_eq!(next.recv().await, SessionEvent::Exit(0));
}

/// Timeouts that expire within a test.
const SHORT_TIMEOUTS: LivenessTimeouts = LivenessTimeouts {
    probe: Duration::from_millis(50),
    warn: Duration::from_secs(1),
    end: Duration::from_secs(2),
};

#[tokio::test]
async fn users_of_a_hung_guest_are_warned_and_released() {
    let world = world_with(SHORT_TIMEOUTS);
    let mut guest = Guest::greeted(&world.listener).await;
    world.until(&GuestState::Greeted).await;
    let session = world.link.opener().open(exec()).await.unwrap();
    guest.opened().await;
    // The guest hangs.
    let SessionEvent::Note(text) = timeout(TEST_TIMEOUT, session.recv()).await.unwrap() else {
        panic!("no note")
    };
    assert!(text.contains("has not answered for 1 s"), "{text}");
    let SessionEvent::Refused(why) = timeout(TEST_TIMEOUT, session.recv()).await.unwrap() else {
        panic!("no end")
    };
    assert!(why.contains("has not answered for 2 s"), "{why}");
}

#[tokio::test]
async fn a_silent_command_survives_while_its_guest_answers() {
    let world = world_with(LivenessTimeouts { warn: TEST_TIMEOUT, end: TEST_TIMEOUT, ..SHORT_TIMEOUTS });
    let mut guest = Guest::greeted(&world.listener).await;
    world.until(&GuestState::Greeted).await;
    let session = world.link.opener().open(exec()).await.unwrap();
    let id = guest.opened().await;
    for _ in 0..5 {
        let ToGuest::Open { session, request: SessionRequest::Exec { argv } } = guest.recv().await else {
            panic!("no probe")
        };
        assert!(session != id && argv.is_empty());
        guest.send(ToHost::Refused { session, reason: "no command".into() }).await;
    }
    guest.send(ToHost::Exit { session: id, status: 7 }).await;
    assert_eq!(timeout(TEST_TIMEOUT, session.recv()).await.unwrap(), SessionEvent::Exit(7));
}
