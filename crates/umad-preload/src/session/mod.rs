//! The state of the process: one link to a server, the device behind it, and the thread that serves both.
//!
//! Calls of the program lock the state, change the device and send what it wants to send. A thread of the library receives
//! from the link and keeps the time. It waits without the lock and holds it only while it works. The program waits at the
//! event counter of its file, which is readable while the device has a message for it: a descriptor of the kernel, so `poll`,
//! `select` and `epoll` need no help.
//!
//! Nobody waits for anything but the server while it holds the lock, and the server answers a query within 5 seconds or counts
//! as gone.

mod state;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use ib_transport::ClientRole;

use crate::abi::{Control, FLAGS_OFFSET, Registration, RegistrationError, USER_RMPP};
use crate::errno::Errno;
use crate::link::LinkError;
use crate::port::FileId;
use crate::sys::{self, EventCounter};
use crate::sysfs::{self, Entry};
use state::{OpenFile, State, since_start};

/// Generations of forked processes that can each have a link of their own. Tools fork once, to become daemons.
const GENERATIONS_MAX: usize = 16;

/// Longest wait for the lock when the process exits.
const EXIT_WAIT: Duration = Duration::from_secs(1);

static SESSIONS: [OnceLock<Session>; GENERATIONS_MAX] = [const { OnceLock::new() }; GENERATIONS_MAX];

/// Number of forks between the process that loaded the library and this one.
static GENERATION: AtomicUsize = AtomicUsize::new(0);

/// The state of this process.
#[derive(Debug)]
pub(crate) struct Session {
    state: Mutex<State>,
    /// Ends the wait of the thread.
    wake: EventCounter,
}

/// A file that was opened for the program.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) fd: OwnedFd,
    /// The file of the device; `None` for other files, which need no help after they are opened.
    pub(crate) file: Option<FileId>,
}

impl Session {
    /// The session of this process; `None` after too many forks.
    pub(crate) fn current() -> Option<&'static Self> {
        let session = SESSIONS.get(GENERATION.load(Ordering::Acquire))?;
        if let Some(session) = session.get() {
            return Some(session);
        }
        let wake = EventCounter::new().ok()?;
        Some(session.get_or_init(|| Self { state: Mutex::new(State::new(random_number())), wake }))
    }

    /// What an emulated path is. Attaches to the server, if that has not happened yet.
    pub(crate) fn resolve(&self, parts: &[&str]) -> Result<Entry, Errno> {
        let mut state = self.lock();
        let facts = &state.attached()?.facts;
        sysfs::resolve(parts, facts).ok_or(Errno::NO_ENTRY)
    }

    /// Opens an entry for the program, with the flags of `open`.
    pub(crate) fn open(&'static self, entry: &Entry, flags: i32) -> Result<Opened, Errno> {
        let contents = match entry {
            Entry::UmadDevice => return self.open_umad(flags),
            Entry::IsSmDevice => return self.open_issm(flags),
            Entry::Directory(_) => return Err(Errno::IS_DIRECTORY),
            _ if flags & libc::O_ACCMODE != libc::O_RDONLY => return Err(Errno::NOT_PERMITTED),
            _ if flags & libc::O_DIRECTORY != 0 => return Err(Errno::NOT_A_DIRECTORY),
            Entry::Fixed(contents) => contents.clone(),
            Entry::Port(property) => {
                let mut state = self.lock();
                let attached = state.attached()?;
                let port = query(attached.link()?.port_info())?;
                property.contents(&port, &attached.facts)
            }
            Entry::Pkey(index) => {
                let mut state = self.lock();
                let pkeys = query(state.attached()?.link()?.pkeys())?;
                sysfs::pkey_contents(pkeys.get(usize::from(*index)).copied().flatten())
            }
        };
        // Datagrams may have arrived together with the answer.
        self.wake.signal();
        Ok(Opened { fd: sys::memory_file(&contents, flags)?, file: None })
    }

    /// Reads the next message of a file into `buffer`; EAGAIN if there is none.
    pub(crate) fn read(&self, file: FileId, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut state = self.lock();
        let result = state.port.read(file, buffer);
        state.update_readiness();
        result
    }

    /// Sends the message that the program wrote.
    pub(crate) fn write(&self, file: FileId, message: &[u8]) -> Result<(), Errno> {
        let mut state = self.lock();
        let now = Instant::now();
        let was_queried = state.refresh_pkeys(now);
        state.port.write(since_start(now), file, message)?;
        state.transmit(now);
        state.update_readiness();
        let is_early = state.next_deadline().is_some_and(|next| state.wakes_at.is_none_or(|at| next < at));
        let must_wake = is_early || was_queried || state.unsent.is_some();
        drop(state);
        if must_wake {
            self.wake.signal();
        }
        Ok(())
    }

    /// An ioctl of the device. `argument` has the length that the ioctl requires and is written back.
    pub(crate) fn control(&self, file: FileId, control: Control, argument: &mut [u8]) -> Result<(), Errno> {
        let mut state = self.lock();
        let registration = match control {
            Control::EnablePkey => return state.port.enable_pkey(file),
            Control::UnregisterAgent => {
                let slot = argument.first_chunk().ok_or(Errno::INVALID)?;
                state.port.unregister(file, u32::from_ne_bytes(*slot))?;
                state.update_readiness();
                return Ok(());
            }
            Control::RegisterAgent => argument.first_chunk().map(Registration::decode),
            Control::RegisterAgent2 => argument.first_chunk().map(Registration::decode2),
        };
        match registration.ok_or(Errno::INVALID)? {
            Ok(registration) => {
                let slot = state.port.register(file, registration)?;
                argument[..4].copy_from_slice(&slot.to_ne_bytes());
                Ok(())
            }
            Err(RegistrationError::UnknownFlags) => {
                // The kernel tells the flags that it knows.
                argument[FLAGS_OFFSET..FLAGS_OFFSET + 4].copy_from_slice(&USER_RMPP.to_ne_bytes());
                Err(Errno::INVALID)
            }
            Err(RegistrationError::Invalid) => Err(Errno::INVALID),
        }
    }

    /// Closes a file of the device.
    pub(crate) fn close(&self, file: FileId) {
        let mut state = self.lock();
        match state.files.remove(&file) {
            Some(OpenFile::Umad { .. }) => state.port.close_file(file),
            Some(OpenFile::IsSm) => {
                let role = state.link.as_ref().map(|attached| attached.attachment.role);
                let link = state.link.as_mut().and_then(|attached| attached.link.as_mut());
                if let (Some(link), Some(role)) = (link, role) {
                    // If the server is gone, so is the role.
                    let _ = link.set_role(role);
                }
            }
            None => {}
        }
        drop(state);
        self.wake.signal();
    }

    fn open_umad(&'static self, flags: i32) -> Result<Opened, Errno> {
        let mut state = self.lock();
        state.attached()?;
        if !state.is_serving {
            sys::spawn_without_signals(move || self.serve())?;
            state.is_serving = true;
        }
        let (ready, fd) = EventCounter::shared(flags)?;
        let file = new_file();
        state.port.open_file(file)?;
        state.files.insert(file, OpenFile::Umad { ready, is_ready: false });
        Ok(Opened { fd, file: Some(file) })
    }

    /// Makes the client the subnet manager of its port while the file is open. Where the kernel would wait until another file
    /// is closed, this fails with EAGAIN: the file is one of the same process.
    fn open_issm(&self, flags: i32) -> Result<Opened, Errno> {
        let mut state = self.lock();
        if state.files.values().any(|file| matches!(file, OpenFile::IsSm)) {
            return Err(Errno::AGAIN);
        }
        query(state.attached()?.link()?.set_role(ClientRole::SubnetManager))?;
        let (_, fd) = EventCounter::shared(flags)?;
        let file = new_file();
        state.files.insert(file, OpenFile::IsSm);
        drop(state);
        self.wake.signal();
        Ok(Opened { fd, file: Some(file) })
    }

    /// Serves the link until the process exits.
    fn serve(&self) {
        let mut has_more = false;
        loop {
            let (socket, events, timeout) = {
                let mut state = self.lock();
                if state.is_ended {
                    return;
                }
                let now = Instant::now();
                let wakes_at = state.plan_wake(now);
                let timeout = if has_more { Some(Duration::ZERO) } else { wakes_at.map(|at| at - now) };
                let events = if state.unsent.is_some() { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
                (state.socket(), events, timeout)
            };
            let fd = socket.as_ref().map_or(-1, |socket| socket.as_raw_fd());
            let mut entries = [sys::poll_entry(self.wake.fd(), libc::POLLIN), sys::poll_entry(fd, events)];
            if sys::wait(&mut entries, timeout).is_err() {
                // Signals are blocked, so the descriptors are not open: the program has closed all of its descriptors.
                return;
            }
            if entries[0].revents != 0 {
                self.wake.clear();
            }
            has_more = self.lock().step(Instant::now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic leaves the state usable: no invariant spans two of its parts.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Detaches from the server, if the process is attached. Called when the process exits.
pub(crate) fn end() {
    let Some(session) = SESSIONS.get(GENERATION.load(Ordering::Acquire)).and_then(OnceLock::get) else {
        return;
    };
    let started = Instant::now();
    loop {
        match session.state.try_lock() {
            Ok(mut state) => return state.end(),
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner().end(),
            Err(TryLockError::WouldBlock) if started.elapsed() > EXIT_WAIT => return,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// A number that differs from process to process.
fn random_number() -> u16 {
    RandomState::new().build_hasher().finish() as u16
}

/// A number that no file of this process had, those of the parent before a fork included.
fn new_file() -> FileId {
    static LAST: AtomicU32 = AtomicU32::new(0);
    FileId(LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1))
}

/// In a child process: neither link nor thread of the parent can be used.
extern "C" fn forked() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// The answer of a query; a server that does not answer looks like a device that fails.
fn query<T>(result: Result<T, LinkError>) -> Result<T, Errno> {
    result.map_err(|_| Errno::IO)
}
