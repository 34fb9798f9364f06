//! Sockets of virtual machines: sender checks, bounded backlogs and fairness.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ib_transport::{FRAME_BYTES_MAX, FrameBuffer, GuestError, GuestSockets, SocketBindError};
use tempfile::TempDir;

struct Rig {
    directory: TempDir,
    guests: GuestSockets<u8>,
    buffer: Box<FrameBuffer>,
}

impl Rig {
    fn new() -> Self {
        let buffer = Box::new([0; FRAME_BYTES_MAX + 1]);
        Self { directory: tempfile::tempdir().unwrap(), guests: GuestSockets::new().unwrap(), buffer }
    }

    fn guest(&self, key: u8) -> PathBuf {
        self.directory.path().join(format!("guest-{key}"))
    }

    fn fabric(&self, key: u8) -> PathBuf {
        self.directory.path().join(format!("fabric-{key}"))
    }

    fn attach(&mut self, key: u8) -> Result<(), GuestError> {
        let (guest, fabric) = (self.guest(key), self.fabric(key));
        self.guests.attach(key, &guest, &fabric)
    }

    /// A machine that has its socket where it is expected.
    fn machine(&self, key: u8) -> UnixDatagram {
        let socket = UnixDatagram::bind(self.guest(key)).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    }

    /// All frames of a round: key of the sender and length.
    fn round(&mut self) -> Vec<(u8, usize)> {
        self.guests.begin_round().unwrap();
        std::iter::from_fn(|| self.guests.receive(&mut self.buffer)).collect()
    }

    fn counters(&self, key: u8) -> ib_transport::GuestCounters {
        self.guests.get(key).unwrap().2
    }
}

fn read_all(machine: &UnixDatagram) -> Vec<u8> {
    let mut buffer = [0; 64];
    let mut first_bytes = Vec::new();
    loop {
        match machine.recv(&mut buffer) {
            Ok(_) => first_bytes.push(buffer[0]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return first_bytes,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn frames_are_accepted_only_from_the_guests_own_path() {
    let mut rig = Rig::new();
    rig.attach(1).unwrap();
    rig.attach(2).unwrap();
    let (one, two) = (rig.machine(1), rig.machine(2));
    one.send_to(b"mine", rig.fabric(1)).unwrap();
    two.send_to(b"not mine", rig.fabric(1)).unwrap();
    UnixDatagram::unbound().unwrap().send_to(b"nobody's", rig.fabric(1)).unwrap();
    rig.guests.begin_round().unwrap();
    assert_eq!(rig.guests.receive(&mut rig.buffer), Some((1, 4)));
    assert_eq!(rig.buffer[..4], *b"mine");
    assert_eq!(rig.guests.receive(&mut rig.buffer), None);
    assert_eq!(rig.counters(1).foreign, 2);
    two.send_to(b"its own", rig.fabric(2)).unwrap();
    assert_eq!(rig.round(), [(2, 7)], "the control");
}

#[test]
fn the_socket_has_mode_0666_and_is_removed_on_detach() {
    let mut rig = Rig::new();
    rig.attach(1).unwrap();
    let found = fs::metadata(rig.fabric(1)).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o666);
    assert!(rig.guests.detach(1) && !rig.guests.detach(1));
    assert!(!rig.fabric(1).exists());
    rig.attach(2).unwrap();
    let (left, directory) = (rig.fabric(2), rig.directory);
    drop(rig.guests);
    assert!(!left.exists(), "also at the end");
    drop(directory);
}

#[test]
fn only_the_socket_of_a_dead_process_is_replaced() {
    let mut rig = Rig::new();
    drop(UnixDatagram::bind(rig.fabric(1)).unwrap());
    assert!(rig.fabric(1).exists(), "a dead socket leaves its file");
    rig.attach(1).unwrap();
    rig.machine(1).send_to(b"heard", rig.fabric(1)).unwrap();
    assert_eq!(rig.round(), [(1, 5)]);

    let _alive = UnixDatagram::bind(rig.fabric(2)).unwrap();
    let refused = rig.attach(2);
    assert!(matches!(refused, Err(GuestError::Bind(SocketBindError::InUse { .. }))), "{refused:?}");
    fs::write(rig.fabric(3), "precious").unwrap();
    let refused = rig.attach(3);
    assert!(matches!(refused, Err(GuestError::Bind(SocketBindError::NotASocket { .. }))), "{refused:?}");
    assert_eq!(fs::read(rig.fabric(3)).unwrap(), b"precious");
}

#[test]
fn paths_are_absolute_and_not_shared() {
    let mut rig = Rig::new();
    rig.attach(1).unwrap();
    let (guest, fabric) = (rig.guest(1), rig.fabric(1));
    let taken = |result| matches!(result, Err(GuestError::PathInUse { .. }));
    let (other_guest, other_fabric) = (rig.guest(2), rig.fabric(2));
    assert!(taken(rig.guests.attach(2, &guest, &other_fabric)));
    assert!(taken(rig.guests.attach(2, &other_guest, &fabric)));
    assert!(taken(rig.guests.attach(2, &other_guest, &guest)));
    assert!(taken(rig.guests.attach(2, &other_guest, &other_guest)));
    let relative = rig.guests.attach(2, Path::new("guest"), &other_fabric);
    assert!(matches!(relative, Err(GuestError::RelativePath { .. })), "{relative:?}");
    rig.guests.attach(2, &other_guest, &other_fabric).unwrap();
}

#[test]
fn attaching_again_keeps_the_socket_unless_a_path_changes() {
    let mut rig = Rig::new();
    rig.attach(1).unwrap();
    let machine = rig.machine(1);
    machine.send_to(b"before", rig.fabric(1)).unwrap();
    rig.attach(1).unwrap();
    assert_eq!(rig.round(), [(1, 6)], "nothing is lost");

    let (elsewhere, guest) = (rig.fabric(9), rig.guest(1));
    rig.guests.attach(1, &guest, &elsewhere).unwrap();
    assert!(!rig.fabric(1).exists());
    machine.send_to(b"after!!", &elsewhere).unwrap();
    assert_eq!(rig.round(), [(1, 7)]);

    let successor = rig.guest(2);
    rig.guests.attach(1, &successor, &elsewhere).unwrap();
    machine.send_to(b"the old one", &elsewhere).unwrap();
    assert_eq!(rig.round(), []);
    assert_eq!(rig.counters(1).foreign, 1);
}

#[test]
fn the_backlog_of_a_slow_guest_is_bounded_and_in_order() {
    let mut rig = Rig::new();
    rig.attach(1).unwrap();
    rig.attach(2).unwrap();
    let (slow, quick) = (rig.machine(1), rig.machine(2));
    let mut now = Instant::now();
    const SENT: u64 = 400;
    for number in 0..SENT {
        rig.guests.send(now, 1, &[number as u8; 60]);
        rig.guests.send(now, 2, &[number as u8; 60]);
        assert_eq!(read_all(&quick), [number as u8], "no other guest waits");
    }
    let unread = rig.counters(1).unread;
    assert!(unread > 0 && unread < SENT, "{unread} of {SENT}");

    let mut got = Vec::new();
    for _ in 0..SENT {
        got.extend(read_all(&slow));
        match rig.guests.flush(now) {
            Some(pause) => now += pause,
            None => break,
        }
    }
    got.extend(read_all(&slow));
    let kept = SENT - unread;
    assert_eq!(got, (0..kept).map(|number| number as u8).collect::<Vec<_>>(), "the first ones, in order");
    assert_eq!(rig.guests.flush(now), None, "nothing is left");
}

#[test]
fn retries_to_a_stopped_guest_back_off() {
    let mut rig = Rig::new();
    rig.attach(1).unwrap();
    let _stopped = rig.machine(1);
    let mut now = Instant::now();
    for _ in 0..100 {
        rig.guests.send(now, 1, b"frame");
    }
    let mut pauses = Vec::new();
    for _ in 0..20 {
        let pause = rig.guests.flush(now).expect("something waits");
        pauses.push(pause);
        now += pause;
    }
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert!(*pauses.last().unwrap() >= Duration::from_millis(100), "{pauses:?}");
}

#[test]
fn a_guest_that_starts_later_is_found() {
    let mut rig = Rig::new();
    rig.attach(1).unwrap();
    let now = Instant::now();
    rig.guests.send(now, 1, b"too early");
    assert_eq!(rig.counters(1).absent, 1);
    let machine = rig.machine(1);
    rig.guests.send(now, 1, b"first");
    assert_eq!(read_all(&machine), *b"f");
    drop(machine);
    rig.guests.send(now, 1, b"gone");
    assert_eq!(rig.counters(1).absent, 2);
    fs::remove_file(rig.guest(1)).unwrap();
    let machine = rig.machine(1);
    rig.guests.send(now, 1, b"again");
    assert_eq!(read_all(&machine), *b"a");
}

#[test]
fn the_backlog_of_a_dead_guest_is_dropped() {
    let mut rig = Rig::new();
    rig.attach(1).unwrap();
    let machine = rig.machine(1);
    let now = Instant::now();
    for _ in 0..100 {
        rig.guests.send(now, 1, b"frame");
    }
    drop(machine);
    assert_eq!(rig.guests.flush(now), None);
    assert!(rig.counters(1).absent > 0);
}

#[test]
fn oversized_frames_are_recognised() {
    let mut rig = Rig::new();
    rig.attach(1).unwrap();
    let machine = rig.machine(1);
    for (length, seen) in [(0, 0), (FRAME_BYTES_MAX, FRAME_BYTES_MAX), (9000, FRAME_BYTES_MAX + 1)] {
        machine.send_to(&vec![7; length], rig.fabric(1)).unwrap();
        assert_eq!(rig.round(), [(1, seen)]);
    }
}

#[test]
fn a_flood_of_one_guest_does_not_starve_the_others() {
    let mut rig = Rig::new();
    (1..=3).for_each(|key| rig.attach(key).unwrap());
    let flooding = rig.machine(1);
    while flooding.send_to(b"flood", rig.fabric(1)).is_ok() {}
    let polite = [2, 3].map(|key| (key, rig.machine(key)));
    for (key, machine) in &polite {
        machine.send_to(b"please", rig.fabric(*key)).unwrap();
    }
    let heard = rig.round();
    for (key, _) in polite {
        assert!(heard.contains(&(key, 6)), "{key}: {heard:?}");
    }
}

#[test]
fn a_paused_guest_is_not_read_and_loses_nothing() {
    let mut rig = Rig::new();
    (1..=2).for_each(|key| rig.attach(key).unwrap());
    let [paused, other] = [1, 2].map(|key| rig.machine(key));
    let mut sent = 0;
    rig.guests.pause(1);
    while paused.send_to(b"later", rig.fabric(1)).is_ok() {
        sent += 1;
    }
    other.send_to(b"now", rig.fabric(2)).unwrap();
    assert_eq!(rig.round(), [(2, 3)]);
    assert_eq!(rig.round(), [], "nothing is reported as readable either");
    assert_eq!(rig.guests.paused().collect::<Vec<_>>(), [1]);
    rig.guests.resume(1);
    assert_eq!(rig.guests.paused().count(), 0);
    assert_eq!(rig.round(), vec![(1, 5); sent]);
    // In the middle of a round.
    for _ in 0..3 {
        paused.send_to(b"later", rig.fabric(1)).unwrap();
    }
    rig.guests.begin_round().unwrap();
    assert!(rig.guests.receive(&mut rig.buffer).is_some());
    rig.guests.pause(1);
    assert_eq!(rig.guests.receive(&mut rig.buffer), None);
    // A new attachment is read.
    rig.guests.detach(1);
    rig.attach(1).unwrap();
    paused.send_to(b"anew", rig.fabric(1)).unwrap();
    assert_eq!(rig.round(), [(1, 4)]);
}
