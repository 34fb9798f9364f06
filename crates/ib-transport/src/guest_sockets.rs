//! Sockets of virtual machines: each datagram is a whole Ethernet frame.
//!
//! A machine binds a socket of its own and sends to one that is bound here for it, as QEMU does with
//! `-netdev dgram,local.type=unix,local.path=GUEST,remote.type=unix,remote.path=FABRIC`. Only what comes from that very
//! path is taken. A machine that does not read gets a bounded backlog and stops nobody; one that is not there, or gone
//! for a while, is found again by its path.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::socket_file::{self, SocketBindError};
use crate::sys::Epoll;

/// The largest payload of any fabric. Larger frames are received cut, and one byte longer than this.
pub const FRAME_BYTES_MAX: usize = 4096;

/// Where a frame is received: one byte longer than any fabric takes, so that what was cut is seen to be too large.
pub type FrameBuffer = [u8; FRAME_BYTES_MAX + 1];

/// Frames taken from all machines in a round, so that management gets its turn. About a millisecond of work.
const FRAMES_PER_ROUND: usize = 256;

/// Frames that may wait for one machine: some milliseconds of a busy one. Sockets themselves hold only ten or so
/// (`net.unix.max_dgram_qlen`), less than one burst.
const BACKLOG_FRAMES_MAX: usize = 256;

/// How soon a machine whose socket was full is tried again; the system tells nobody when there is room.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// How long the pause may become, doubled each time nothing went: a stopped machine costs few wake-ups.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(128);

/// The sockets of virtual machines, by a name `K` that the caller gives each.
#[derive(Debug)]
pub struct GuestSockets<K> {
    epoll: Epoll,
    guests: BTreeMap<K, GuestSocket>,
    /// Which socket the system means.
    tokens: HashMap<u64, K>,
    tokens_given: u64,
    /// Sockets that had something when the round began, and how much may still be taken from each.
    round: Vec<(K, usize)>,
}

/// What became of frames at the socket of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct GuestCounters {
    /// Frames for a machine that does not read fast enough.
    pub unread: u64,
    /// Frames for a machine that is not there.
    pub absent: u64,
    /// Datagrams that somebody else sent in its place.
    pub foreign: u64,
}

/// Why a machine gets no socket.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The socket here.
    #[error(transparent)]
    Bind(#[from] SocketBindError),
    /// A path that is not the same for everybody.
    #[error("{} does not begin at the root: a path must be absolute", path.display())]
    RelativePath {
        /// The path.
        path: PathBuf,
    },
    /// Two machines cannot share a socket.
    #[error("{} belongs to another machine of this fabric", path.display())]
    PathInUse {
        /// The path.
        path: PathBuf,
    },
}

/// A machine and the socket here that it sends to.
#[derive(Debug)]
struct GuestSocket {
    token: u64,
    socket: BoundSocket,
    guest: PathBuf,
    unsent: VecDeque<Box<[u8]>>,
    /// When it is worth trying again, and how long the pause before was.
    retry: Option<(Instant, Duration)>,
    counters: GuestCounters,
}

/// A socket and its file, which goes with it.
#[derive(Debug)]
struct BoundSocket {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        // Best effort: a file left behind is replaced by the next socket.
        let _ = fs::remove_file(&self.path);
    }
}

/// What the system made of a frame.
enum SendOutcome {
    ClientDatagram,
    Full,
    Absent,
}

impl<K: Copy + Ord> GuestSockets<K> {
    /// Nobody yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new()?,
            guests: BTreeMap::new(),
            tokens: HashMap::new(),
            tokens_given: 0,
            round: Vec::new(),
        })
    }

    /// Opens a socket at `fabric`, which everybody who can enter its directory may send to, for the machine that has its
    /// own at `guest`, now or later. In place of the one that `key` had before; the same again changes nothing.
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

    /// Closes the socket of a machine and removes its file; whether there was one.
    pub fn detach(&mut self, key: K) -> bool {
        let Some(guest_socket) = self.guests.remove(&key) else { return false };
        self.tokens.remove(&guest_socket.token);
        true
    }

    /// Where the socket of a machine is, and the one here, and what was counted.
    pub fn get(&self, key: K) -> Option<(&Path, &Path, GuestCounters)> {
        let guest_socket = self.guests.get(&key)?;
        Some((&guest_socket.guest, &guest_socket.socket.path, guest_socket.counters))
    }

    /// Begins a round of [`receive`](Self::receive): what may be taken is shared fairly between machines that sent.
    pub fn begin_round(&mut self) -> io::Result<()> {
        let count = self.epoll.wait(Duration::ZERO)?;
        let share = (FRAMES_PER_ROUND / count.max(1)).max(1);
        let ready = (0..count).filter_map(|index| self.tokens.get(&self.epoll.event(index).token));
        self.round.clear();
        self.round.extend(ready.map(|key| (*key, share)));
        Ok(())
    }

    /// Takes one frame: who sent it, and its length in `buffer`. `None` when the round is over.
    pub fn receive(&mut self, buffer: &mut FrameBuffer) -> Option<(K, usize)> {
        while let Some((key, left)) = self.round.last_mut() {
            let Some(guest_socket) = self.guests.get_mut(key).filter(|_| *left > 0) else {
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

    /// Sends a frame to a machine, now or, if its socket is full, soon.
    pub fn send(&mut self, now: Instant, to: K, frame: &[u8]) {
        let Some(guest_socket) = self.guests.get_mut(&to) else { return };
        // Machines read while others send: most likely there is room by now.
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

    /// Tries again where sockets were full; when to come back, if frames still wait.
    pub fn flush(&mut self, now: Instant) -> Option<Duration> {
        self.guests
            .values_mut()
            .filter_map(|guest_socket| guest_socket.flush(now))
            .min()
            .map(|due| due.saturating_duration_since(now))
    }
}

/// Lets everybody who can enter its directory send to a socket: machines run as users of their own, and are told from
/// others by their path. Whoever may write to the directory could put a link in its place: that is not followed.
fn open_to_all(path: &Path) -> io::Result<()> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let (found, own) = (file.metadata()?, fs::metadata("/proc/self")?);
    if !found.file_type().is_socket() || found.uid() != own.uid() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "somebody else has put something in its place",
        ));
    }
    // By way of the open file: the path may be something else by now.
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

    /// Sends what waits, as far as there is room; when to try again.
    fn flush(&mut self, now: Instant) -> Option<Instant> {
        let (due, pause) = self.retry?;
        // While a machine reads, every wake-up is a chance; one that does not is left alone for the whole pause.
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
