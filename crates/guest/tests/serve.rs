//! The channel server of a guest, with a socket instead of the virtio-serial port and real commands.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use guest::channel::{
    DATA_BYTES_MAX, Decoder, PROTOCOL_VERSION, SESSIONS_MAX, SessionId, SessionRequest, ToGuest, ToHost,
    WINDOW_BYTES, encode,
};
use guest::probe::Probes;
use guest::probe::Reachability;
use guest::seed::{GuestAdapter, KeyPair, Peer, Seed, SeedInput};
use guest::serve::{ChannelServer, GuestNode, HostConnection};
use ib_wire::{Pkey, ServiceLevel};

/// A test that waits this long has failed.
const LIMIT: Duration = Duration::from_secs(90);

/// Waits until a condition holds.
fn within_limit(otherwise: &str, happened: impl Fn() -> bool) {
    let until = Instant::now() + LIMIT;
    while !happened() {
        assert!(Instant::now() < until, "{otherwise}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The host's end of the channel.
struct Host {
    stream: UnixStream,
    decoder: Decoder<ToHost>,
    messages: VecDeque<ToHost>,
    root: tempfile::TempDir,
    server: Option<thread::JoinHandle<()>>,
}

/// The server ends its sessions when the host disconnects, so nothing outlives a test.
impl Drop for Host {
    fn drop(&mut self) {
        // A server that has panicked has closed its end and printed the panic.
        let _ = self.stream.shutdown(Shutdown::Both);
        let _ = self.server.take().map(thread::JoinHandle::join);
    }
}

impl Host {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let (stream, port) = UnixStream::pair().expect("sockets");
        port.set_nonblocking(true).expect("a socket");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        let node = GuestNode::below(root.path());
        let server = thread::spawn(move || {
            let mut server = ChannelServer::new(File::from(OwnedFd::from(port)), node).expect("a server");
            while server.poll_once().expect("a socket") == HostConnection::Up {}
        });
        Self { stream, decoder: Decoder::new(), messages: VecDeque::new(), root, server: Some(server) }
    }

    /// A host that has been welcomed.
    fn greeted() -> Self {
        let mut host = Self::new();
        host.send(ToGuest::Hello { nonce: 1 });
        assert!(matches!(host.recv(), ToHost::Welcome { nonce: 1, .. }));
        host
    }

    fn send(&mut self, message: ToGuest) {
        let mut bytes = Vec::new();
        encode(&message, &mut bytes).expect("fits");
        self.stream.write_all(&bytes).expect("the guest reads");
    }

    fn recv(&mut self) -> ToHost {
        let mut bytes = [0; 4096];
        loop {
            if let Some(message) = self.messages.pop_front() {
                return message;
            }
            let length = self.stream.read(&mut bytes).expect("the guest says something in time");
            assert_ne!(length, 0, "the guest has hung up");
            self.decoder.push(&bytes[..length], &mut self.messages);
            assert_eq!(self.decoder.dropped_frames(), 0);
        }
    }

    fn exec(&mut self, session: u16, command: &str) -> SessionId {
        let session = SessionId(session);
        let argv = ["sh", "-c", command].map(str::to_owned).to_vec();
        self.send(ToGuest::Open { session, request: SessionRequest::Exec { argv } });
        session
    }

    fn input(&mut self, session: SessionId, bytes: &[u8]) {
        self.send(ToGuest::Input { session, bytes: bytes.to_vec() });
    }

    /// Output, error and exit status of the only session.
    fn until_exit(&mut self) -> (Vec<u8>, Vec<u8>, i32) {
        let (mut output, mut error) = (Vec::new(), Vec::new());
        loop {
            match self.recv() {
                ToHost::Output { session, bytes } => {
                    self.send(ToGuest::Credit { session, bytes: bytes.len() as u32 });
                    output.extend(bytes);
                }
                ToHost::Error { session, bytes } => {
                    self.send(ToGuest::Credit { session, bytes: bytes.len() as u32 });
                    error.extend(bytes);
                }
                ToHost::Credit { .. } => {}
                ToHost::Exit { status, .. } => return (output, error, status),
                other => panic!("{other:?} before the exit"),
            }
        }
    }
}

fn seed(generation: u64, nodes: u32) -> Seed {
    seed_with(generation, nodes, None)
}

fn seed_with(generation: u64, nodes: u32, probes: Option<Probes>) -> Seed {
    let peer =
        |number: u32| Peer { hostname: format!("n{number}"), address: format!("10.0.0.{number}"), slots: 1 };
    Seed::new(&SeedInput {
        instance_id: "1".to_owned(),
        adapter: GuestAdapter::Ethernet { mac: "02:00:00:00:00:01".to_owned() },
        generation,
        cluster: "c".to_owned(),
        hostname: "n1".to_owned(),
        address: "10.0.0.1/16".to_owned(),
        mtu: 1500,
        peers: (1..=nodes).map(peer).collect(),
        authorized_keys: Vec::new(),
        cluster_key: KeyPair { public: "public".to_owned(), private: "private".to_owned() },
        pkey: Pkey::from_wire(0x8001).expect("a key"),
        sl: ServiceLevel::from_wire(0),
        partitions: Vec::new(),
        classes: Vec::new(),
        probes,
    })
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

#[test]
fn a_command_returns_output_error_and_status() {
    let mut host = Host::greeted();
    host.exec(1, "echo out; echo err >&2; exit 3");
    let (output, error, status) = host.until_exit();
    assert_eq!((text(output).as_str(), text(error).as_str(), status), ("out\n", "err\n", 3));
    host.exec(1, "kill -9 $$");
    assert_eq!(host.until_exit().2, 128 + 9);
}

#[test]
fn a_command_sees_the_end_of_its_input() {
    let mut host = Host::greeted();
    let session = host.exec(1, "cat; echo end");
    host.input(session, b"one ");
    host.input(session, b"two\n");
    host.input(session, b"");
    assert_eq!(text(host.until_exit().0), "one two\nend\n");
}

#[test]
fn a_megabyte_passes_both_ways_with_credit() {
    let mut host = Host::greeted();
    let session = host.exec(1, "cat");
    let sent: Vec<u8> = (0..1_000_000_u32).map(|number| number as u8).collect();
    let (mut room, mut offset, mut ended) = (WINDOW_BYTES as usize, 0, false);
    let mut received = Vec::new();
    loop {
        while room > 0 && offset < sent.len() {
            let length = room.min(DATA_BYTES_MAX).min(sent.len() - offset);
            host.input(session, &sent[offset..offset + length]);
            (room, offset) = (room - length, offset + length);
        }
        if offset == sent.len() && !ended {
            host.input(session, b"");
            ended = true;
        }
        match host.recv() {
            ToHost::Credit { bytes, .. } => room += bytes as usize,
            ToHost::Output { bytes, .. } => {
                host.send(ToGuest::Credit { session, bytes: bytes.len() as u32 });
                received.extend(bytes);
            }
            ToHost::Exit { status, .. } => break assert_eq!(status, 0),
            other => panic!("{other:?}"),
        }
    }
    assert!(received == sent, "{} of {} bytes came back", received.len(), sent.len());
}

#[test]
fn an_unread_session_does_not_block_others() {
    let mut host = Host::greeted();
    let slow = host.exec(1, "yes");
    let mut taken = 0;
    while taken < WINDOW_BYTES as usize {
        match host.recv() {
            ToHost::Output { session, bytes } if session == slow => taken += bytes.len(),
            other => panic!("{other:?}"),
        }
    }
    host.exec(2, "echo quick");
    // The slow session has used up its window, so all further output belongs to the other.
    assert_eq!(taken, WINDOW_BYTES as usize);
    assert_eq!(text(host.until_exit().0), "quick\n");
    host.send(ToGuest::Close { session: slow });
    assert_eq!(host.recv(), ToHost::Exit { session: slow, status: 128 + 15 });
}

#[test]
fn output_of_an_exited_command_waits_for_credit() {
    let mut host = Host::greeted();
    let session = host.exec(1, "head -c 200000 /dev/zero");
    let mut taken = 0;
    // Without credit, exactly one window arrives.
    while taken < WINDOW_BYTES as usize {
        match host.recv() {
            ToHost::Output { bytes, .. } => taken += bytes.len(),
            other => panic!("{other:?}"),
        }
    }
    host.send(ToGuest::Credit { session, bytes: WINDOW_BYTES });
    let (output, _, status) = host.until_exit();
    assert_eq!((taken + output.len(), status), (200_000, 0));
}

#[test]
fn a_session_ends_although_a_background_process_remains() {
    let mut host = Host::greeted();
    host.exec(1, "sleep 1000 & echo $!");
    let (output, _, status) = host.until_exit();
    let background = text(output);
    assert_eq!(status, 0);
    let process = Path::new("/proc").join(background.trim());
    assert!(process.exists(), "background processes survive, as after a login");
    host.exec(1, &format!("kill {background}"));
    assert_eq!(host.until_exit().2, 0);
}

#[test]
fn closing_a_session_kills_its_process_group() {
    let mut host = Host::greeted();
    let session = host.exec(1, "trap '' TERM; sleep 1000 & echo $!; wait; wait");
    let ToHost::Output { bytes, .. } = host.recv() else { panic!("no output") };
    let child = Path::new("/proc").join(text(bytes).trim());
    assert!(child.exists());
    host.send(ToGuest::Close { session });
    let ToHost::Exit { status, .. } = host.recv() else { panic!("no exit") };
    // It has ignored SIGTERM.
    assert_eq!(status, 128 + 9);
    // It is killed with its parent, but asynchronously. It may remain as a zombie, because the test does not reap it.
    within_limit("the child process still runs", || {
        let state = std::fs::read_to_string(child.join("stat")).unwrap_or_default();
        state.is_empty() || state.contains(") Z ")
    });
}

#[test]
fn a_hello_ends_all_sessions_without_messages() {
    let mut host = Host::greeted();
    let session = host.exec(1, "echo $$; exec sleep 1000");
    let ToHost::Output { bytes, .. } = host.recv() else { panic!("no output") };
    let process = Path::new("/proc").join(text(bytes).trim());
    assert!(process.exists());
    host.send(ToGuest::Hello { nonce: 2 });
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux has one");
    let boot = boot.trim_end().to_owned();
    assert_eq!(host.recv(), ToHost::Welcome { nonce: 2, version: PROTOCOL_VERSION, boot });
    // The number is free at once, and the old session sends nothing.
    assert_eq!(host.exec(1, "true"), session);
    assert_eq!(host.until_exit().2, 0);
    within_limit("the old command still runs", || !process.exists());
}

#[test]
fn commands_that_cannot_run_are_refused_with_a_reason() {
    let mut host = Host::greeted();
    let session = SessionId(9);
    let open = |argv: &[&str]| ToGuest::Open {
        session,
        request: SessionRequest::Exec { argv: argv.iter().map(|&argument| argument.to_owned()).collect() },
    };
    host.send(open(&["/no/such/program"]));
    let reason = "cannot run \"/no/such/program\": No such file or directory (os error 2)".to_owned();
    assert_eq!(host.recv(), ToHost::Refused { session, reason });
    host.send(open(&[]));
    assert_eq!(host.recv(), ToHost::Refused { session, reason: "the command to run is empty".to_owned() });
    host.send(open(&[&"x".repeat(16_000)]));
    assert!(matches!(host.recv(), ToHost::Refused { .. }));
    host.send(open(&["true"]));
    assert_eq!(host.recv(), ToHost::Exit { session, status: 0 });
}

#[test]
fn sessions_beyond_the_limit_are_refused() {
    let mut host = Host::greeted();
    for number in 0..SESSIONS_MAX as u16 {
        host.exec(number, "cat");
    }
    let over = host.exec(100, "cat");
    assert!(matches!(host.recv(), ToHost::Refused { session, .. } if session == over));
    host.input(SessionId(0), b"");
    assert_eq!(host.recv(), ToHost::Exit { session: SessionId(0), status: 0 });
    host.exec(100, "exit 5");
    assert_eq!(host.until_exit().2, 5);
}

#[test]
fn a_window_overrun_ends_that_session_only() {
    let mut host = Host::greeted();
    let other = host.exec(2, "cat");
    let session = host.exec(1, "exec sleep 1000");
    let piece = vec![0; DATA_BYTES_MAX];
    for _ in 0..=WINDOW_BYTES as usize * 2 / DATA_BYTES_MAX {
        host.input(session, &piece);
    }
    loop {
        match host.recv() {
            ToHost::Credit { .. } => {}
            ToHost::Refused { session: refused, reason } => {
                assert_eq!(refused, session);
                break assert!(reason.contains("room for"), "{reason}");
            }
            message => panic!("{message:?}"),
        }
    }
    host.input(other, b"still here\n");
    host.input(other, b"");
    assert_eq!(text(host.until_exit().0), "still here\n");
}

#[test]
fn closed_standard_input_does_not_block_the_sender() {
    let mut host = Host::greeted();
    let session = host.exec(1, "exec <&-; echo closed; sleep 1000");
    assert!(matches!(host.recv(), ToHost::Output { .. }));
    let piece = vec![0; DATA_BYTES_MAX];
    let mut room = WINDOW_BYTES as usize;
    for _ in 0..20 {
        while room < piece.len() {
            let ToHost::Credit { bytes, .. } = host.recv() else { panic!("no credit") };
            room += bytes as usize;
        }
        host.input(session, &piece);
        room -= piece.len();
    }
}

#[test]
fn an_applied_context_is_reported_by_generation() {
    let mut host = Host::greeted();
    host.send(ToGuest::Context(seed(4, 2).to_context()));
    assert_eq!(host.recv(), ToHost::Ready { generation: 4 });
    host.send(ToGuest::Context(seed(5, 3).to_context()));
    assert_eq!(host.recv(), ToHost::Ready { generation: 5 });
    let hosts = std::fs::read_to_string(host.root.path().join("etc/hosts")).expect("written");
    assert!(hosts.contains("10.0.0.3 n3\n"), "{hosts}");
    // A new host gets the same report.
    host.send(ToGuest::Hello { nonce: 3 });
    assert!(matches!(host.recv(), ToHost::Welcome { nonce: 3, .. }));
    assert_eq!(host.recv(), ToHost::Ready { generation: 5 });
}

#[test]
fn the_network_check_is_reported_before_ready() {
    let mut host = Host::greeted();
    let alone = seed_with(4, 1, Some(Probes::default()));
    host.send(ToGuest::Context(alone.to_context()));
    let nothing_left = Reachability { reached: true, heard: true };
    assert_eq!(host.recv(), ToHost::Network { generation: 4, reach: nothing_left });
    assert_eq!(host.recv(), ToHost::Ready { generation: 4 });
    let successor = Some("10.0.0.2".parse().expect("an address"));
    let probes = Probes { successor, broadcaster: successor };
    host.send(ToGuest::Context(seed_with(5, 2, Some(probes)).to_context()));
    let nothing_yet = ToHost::Network { generation: 5, reach: Reachability { reached: false, heard: false } };
    assert_eq!(host.recv(), nothing_yet);
    assert_eq!(host.recv(), ToHost::Ready { generation: 5 });
    // A new host gets the same report.
    host.send(ToGuest::Hello { nonce: 3 });
    assert!(matches!(host.recv(), ToHost::Welcome { nonce: 3, .. }));
    assert_eq!(host.recv(), nothing_yet);
    assert_eq!(host.recv(), ToHost::Ready { generation: 5 });
    // Control: a context without probes gets no network report.
    host.send(ToGuest::Context(seed(6, 2).to_context()));
    assert_eq!(host.recv(), ToHost::Ready { generation: 6 });
}

#[test]
fn a_failed_context_is_reported_and_the_next_is_applied() {
    let mut host = Host::greeted();
    host.send(ToGuest::Context(b"nonsense".to_vec()));
    assert!(matches!(host.recv(), ToHost::Failed { generation: 0, .. }));
    let mut wrong = seed(6, 2);
    wrong.user_data = wrong.user_data.replace("\"0644\"", "\"6644\"");
    host.send(ToGuest::Context(wrong.to_context()));
    let ToHost::Failed { generation: 6, reason } = host.recv() else { panic!("not refused") };
    assert!(reason.contains("/etc/hosts") && reason.contains("6644"), "{reason}");
    host.send(ToGuest::Context(seed(6, 2).to_context()));
    assert_eq!(host.recv(), ToHost::Ready { generation: 6 });
}

#[test]
fn commands_get_the_environment_of_the_cluster() {
    let mut host = Host::greeted();
    host.send(ToGuest::Context(seed(1, 1).to_context()));
    assert_eq!(host.recv(), ToHost::Ready { generation: 1 });
    host.exec(1, "echo $HEDDLE_PKEY $HOME; pwd");
    let home = host.root.path().join("root");
    assert_eq!(text(host.until_exit().0), format!("0x8001 /root\n{}\n", home.display()));
}

#[test]
fn noise_on_the_port_is_ignored() {
    let mut host = Host::greeted();
    host.stream.write_all(&[7; 50_000]).expect("the guest reads");
    host.stream.write_all(&[0]).expect("the guest reads");
    host.exec(1, "echo heard");
    assert_eq!(text(host.until_exit().0), "heard\n");
}
