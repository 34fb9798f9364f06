//! Sockets of virtual machines: every datagram is one Ethernet frame.
//!
//! A virtual machine (guest) binds its own socket and sends to one that is bound here for it, as QEMU does with
//! `-netdev dgram,local.type=unix,local.path=GUEST,remote.type=unix,remote.path=FABRIC`. Frames from any other socket are
//! dropped. A guest that does not read has a bounded backlog and does not block the others; a guest that starts later, or
//! restarts, is found again by its path.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::socket_file::{self, SocketBindError};
use crate::sys::{Epoll, Interest};

/// Largest frame in bytes: an InfiniBand packet with the largest payload and all headers, in an Ethernet frame. A larger one is received
/// truncated, one byte longer than this.
pub const FRAME_BYTES_MAX: usize = 4352;

/// A buffer for one frame, one byte longer than the largest valid one, so that a truncated frame is recognised.
pub type FrameBuffer = [u8; FRAME_BYTES_MAX + 1];

/// Most frames received from all guests in a round, about a millisecond of work, so that management datagrams are not starved.
const FRAMES_PER_ROUND: usize = 256;

/// Most frames queued for one guest, some milliseconds of a busy one. The socket itself holds only about ten
/// (`net.unix.max_dgram_qlen`), less than one burst.
const BACKLOG_FRAMES_MAX: usize = 256;

/// First pause before sending again to a guest whose socket was full; the kernel does not report when there is room.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Longest pause. The pause doubles whenever nothing could be sent, so that a stopped guest causes few wake-ups.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(128);

/// The sockets of virtual machines, by a key `K` of the caller.
///
/// Per round: [`begin_round`](Self::begin_round), then [`receive`](Self::receive) until it returns `None`; [`send`](Self::send)
/// at any time; [`flush`](Self::flush) at the end of the round, and again after the time that it returns.
#[derive(Debug)]
pub struct GuestSockets<K> {
    epoll: Epoll,
    guests: BTreeMap<K, GuestSocket>,
    /// Keys by epoll token.
    tokens: HashMap<u64, K>,
    tokens_given: u64,
    /// Guests that were readable when the round began, and how many frames may still be received from each.
    round: Vec<(K, usize)>,
    /// Guests that are not received from.
    paused: BTreeSet<K>,
}

/// Frames that were dropped at the socket of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct GuestCounters {
    /// Frames to a guest whose backlog was full.
    pub unread: u64,
    /// Frames to a guest that has no socket.
    pub absent: u64,
    /// Frames received from a socket other than the guest's.
    pub foreign: u64,
}

/// Why the socket of a guest could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    #[error(transparent)]
    Bind(#[from] SocketBindError),
    #[error("the path of a guest socket must be absolute, got {}", path.display())]
    RelativePath { path: PathBuf },
    #[error("{} is the socket of another virtual machine of this fabric", path.display())]
    PathInUse { path: PathBuf },
}

/// A guest and the socket to which it sends.
#[derive(Debug)]
struct GuestSocket {
    token: u64,
    socket: BoundSocket,
    guest: PathBuf,
    unsent: VecDeque<Box<[u8]>>,
    /// When to send again, and the length of the current pause.
    retry: Option<(Instant, Duration)>,
    counters: GuestCounters,
}

/// A bound socket. Dropping it removes the socket file.
#[derive(Debug)]
struct BoundSocket {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        // If this fails, the next socket at this path replaces the file.
        let _ = fs::remove_file(&self.path);
    }
}

/// The result of sending a frame.
enum SendOutcome {
    ClientDatagram,
    Full,
    Absent,
}

impl<K: Copy + Ord> GuestSockets<K> {
    /// No guests.
    ///
    /// # Errors
    ///
    /// The process cannot open an epoll instance.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new()?,
            guests: BTreeMap::new(),
            tokens: HashMap::new(),
            tokens_given: 0,
            round: Vec::new(),
            paused: BTreeSet::new(),
        })
    }

    /// Opens a socket at `fabric` for the guest whose own socket is at `guest`, now or later. It replaces the former socket of
    /// `key`; the same paths again change nothing. The socket file has mode 0666: access is that of its directory.
    ///
    /// # Errors
    ///
    /// A path is relative, is used by another guest, or cannot be bound.
    pub fn attach(&mut self, key: K, guest: &Path, fabric: &Path) -> Result<(), GuestError> {
        for path in [guest, fabric] {
            if !path.is_absolute() {
                return Err(GuestError::RelativePath { path: path.to_owned() });
            }
            let mut others = self.guests.iter().filter(|(other, _)| **other != key);
            if guest == fabric
                || others
                    .any(|(_, guest_socket)| guest_socket.guest == path || guest_socket.socket.path == path)
            {
                return Err(GuestError::PathInUse { path: path.to_owned() });
            }
        }
        match self.guests.get_mut(&key) {
            Some(guest_socket) if guest_socket.socket.path == fabric => {
                if guest_socket.guest != guest {
                    guest.clone_into(&mut guest_socket.guest);
                    (guest_socket.retry, guest_socket.counters) = (None, GuestCounters::default());
                    guest_socket.unsent.clear();
                }
            }
            _ => self.open(key, guest, fabric)?,
        }
        Ok(())
    }

    fn open(&mut self, key: K, guest: &Path, fabric: &Path) -> Result<(), SocketBindError> {
        let system = |source| SocketBindError::Io { path: fabric.to_owned(), source };
        let socket = socket_file::bind(
            fabric,
            |path| UnixDatagram::bind(path),
            |path| UnixDatagram::unbound()?.connect(path),
        )?;
        let socket = BoundSocket { socket, path: fabric.to_owned() };
        socket.socket.set_nonblocking(true).map_err(system)?;
        open_to_all(fabric).map_err(system)?;
        self.tokens_given += 1;
        let token = self.tokens_given;
        self.epoll.add(&socket.socket, token).map_err(system)?;
        self.detach(key);
        self.tokens.insert(token, key);
        let guest_socket = GuestSocket {
            token,
            socket,
            guest: guest.to_owned(),
            unsent: VecDeque::new(),
            retry: None,
            counters: GuestCounters::default(),
        };
        self.guests.insert(key, guest_socket);
        Ok(())
    }

    /// Closes the socket of a guest and removes its file; `false` if there was none.
    pub fn detach(&mut self, key: K) -> bool {
        let Some(guest_socket) = self.guests.remove(&key) else { return false };
        self.tokens.remove(&guest_socket.token);
        self.paused.remove(&key);
        true
    }

    /// Receives nothing more from a guest until [`resume`](Self::resume) or a new [`attach`](Self::attach). What it sends stays in
    /// its socket, which is full after about ten frames; then the guest has to wait.
    pub fn pause(&mut self, key: K) {
        let Some(guest_socket) = self.guests.get(&key).filter(|_| !self.paused.contains(&key)) else {
            return;
        };
        match self.epoll.modify(&guest_socket.socket.socket, guest_socket.token, Interest::None) {
            Ok(()) => drop(self.paused.insert(key)),
            Err(error) => tracing::warn!(%error, "cannot pause the socket of a virtual machine"),
        }
    }

    /// Receives from a paused guest again.
    pub fn resume(&mut self, key: K) {
        let Some(guest_socket) = self.guests.get(&key).filter(|_| self.paused.contains(&key)) else { return };
        match self.epoll.modify(&guest_socket.socket.socket, guest_socket.token, Interest::Read) {
            Ok(()) => drop(self.paused.remove(&key)),
            // It stays paused, and the caller tries again.
            Err(error) => tracing::warn!(%error, "cannot resume the socket of a virtual machine"),
        }
    }

    /// The guests that are paused.
    pub fn paused(&self) -> impl Iterator<Item = K> {
        self.paused.iter().copied()
    }

    /// The path of the guest's socket, that of the socket here, and the counters; `None` for an unknown key.
    pub fn get(&self, key: K) -> Option<(&Path, &Path, GuestCounters)> {
        let guest_socket = self.guests.get(&key)?;
        Some((&guest_socket.guest, &guest_socket.socket.path, guest_socket.counters))
    }

    /// Begins a round of [`receive`](Self::receive): divides the frames of a round equally among the guests that have sent.
    pub fn begin_round(&mut self) -> io::Result<()> {
        let count = self.epoll.wait(Duration::ZERO)?;
        let share = (FRAMES_PER_ROUND / count.max(1)).max(1);
        let ready = (0..count).filter_map(|index| self.tokens.get(&self.epoll.event(index).token));
        self.round.clear();
        self.round.extend(ready.map(|key| (*key, share)));
        Ok(())
    }

    /// Receives one frame: the key of its guest and its length in `buffer`. `None` when the round is over. A length of
    /// [`FRAME_BYTES_MAX`] + 1 means that the frame was longer and is truncated.
    pub fn receive(&mut self, buffer: &mut FrameBuffer) -> Option<(K, usize)> {
        while let Some((key, left)) = self.round.last_mut() {
            let Some(guest_socket) =
                self.guests.get_mut(key).filter(|_| *left > 0 && !self.paused.contains(key))
            else {
                self.round.pop();
                continue;
            };
            *left -= 1;
            match guest_socket.socket.socket.recv_from(buffer) {
                Ok((length, sender)) if sender.as_pathname() == Some(&guest_socket.guest) => {
                    return Some((*key, length));
                }
                Ok(_) => guest_socket.counters.foreign += 1,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => drop(self.round.pop()),
            }
        }
        None
    }

    /// Sends a frame to a guest, or queues it if the guest's socket is full. Frames to unknown keys, to guests without a socket
    /// and beyond the backlog are dropped; the last two are counted.
    pub fn send(&mut self, now: Instant, to: K, frame: &[u8]) {
        let Some(guest_socket) = self.guests.get_mut(&to) else { return };
        // The guest may have read since the last attempt.
        guest_socket.flush(now);
        if guest_socket.unsent.is_empty() {
            match guest_socket.try_send(frame) {
                SendOutcome::ClientDatagram => return,
                SendOutcome::Absent => return guest_socket.counters.absent += 1,
                SendOutcome::Full => guest_socket.retry = Some((now + RETRY_PAUSE, RETRY_PAUSE)),
            }
        }
        if guest_socket.unsent.len() < BACKLOG_FRAMES_MAX {
            guest_socket.unsent.push_back(frame.into());
        } else {
            guest_socket.counters.unread += 1;
        }
    }

    /// Sends queued frames to guests whose pause is over. Returns the time until the next call is due; `None` if nothing is
    /// queued.
    pub fn flush(&mut self, now: Instant) -> Option<Duration> {
        self.guests
            .values_mut()
            .filter_map(|guest_socket| guest_socket.flush(now))
            .min()
            .map(|due| due.saturating_duration_since(now))
    }
}

/// Sets the mode of a socket file to 0666, because virtual machines run as other users; they are identified by their path. A
/// symbolic link that another process puts in its place is not followed.
fn open_to_all(path: &Path) -> io::Result<()> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let (found, own) = (file.metadata()?, fs::metadata("/proc/self")?);
    if !found.file_type().is_socket() || found.uid() != own.uid() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the socket file was replaced by another process",
        ));
    }
    // Through the open descriptor: the path may refer to another file by now.
    let held = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::set_permissions(held, fs::Permissions::from_mode(0o666))
}

impl<K> AsFd for GuestSockets<K> {
    /// Readable while there is something to [`receive`](GuestSockets::receive).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl GuestSocket {
    fn try_send(&self, frame: &[u8]) -> SendOutcome {
        match self.socket.socket.send_to(frame, &self.guest) {
            Ok(_) => SendOutcome::ClientDatagram,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => SendOutcome::Full,
                _ => SendOutcome::Absent,
            },
        }
    }

    /// Sends queued frames as far as the socket has room. Returns when to try again.
    fn flush(&mut self, now: Instant) -> Option<Instant> {
        let (due, pause) = self.retry?;
        // A guest that reads is tried at every call; one that does not only after the whole pause.
        if now < due && pause > RETRY_PAUSE {
            return Some(due);
        }
        let before = self.unsent.len();
        while let Some(frame) = self.unsent.front() {
            match self.try_send(frame) {
                SendOutcome::ClientDatagram => drop(self.unsent.pop_front()),
                SendOutcome::Absent => {
                    self.counters.absent += self.unsent.len() as u64;
                    self.unsent.clear();
                }
                SendOutcome::Full => {
                    let pause = match self.unsent.len() < before {
                        true => RETRY_PAUSE,
                        false if now < due => return Some(due),
                        false => (pause * 2).min(RETRY_PAUSE_MAX),
                    };
                    self.retry = Some((now + pause, pause));
                    return Some(now + pause);
                }
            }
        }
        self.retry = None;
        None
    }
}
