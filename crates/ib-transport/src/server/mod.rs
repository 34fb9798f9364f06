//! The server: serves many clients with one thread, in front of one [`FabricBackend`].
//!
//! Clients use the ibsim protocol under a name ([`Server::bind`]) or the framed protocol at a path ([`Server::listen`]). One
//! round ([`Server::poll_once`]) waits for input, receives it (up to 64 messages per system call and socket), passes it to the
//! backend, calls [`FabricBackend::tick`], and sends everything that was queued. No client can block another by what it sends
//! or does not read: queues are bounded, and errors are counted ([`ServerCounters`]).

mod backend;
mod backlog;
mod connections;
mod control;
mod counters;
mod data;
mod forwarded;
mod outbox;
mod stream;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use backend::{ClientDatagram, ClientId, FabricBackend};
pub(crate) use backlog::ByteQueue;
pub use connections::{CLIENTS_MAX, CLIENTS_PER_USER_MAX};
pub use counters::ServerCounters;
pub use forwarded::{FORWARD_TIMEOUT, FORWARDED_MAX};
pub use outbox::Outbox;

use crate::access::SocketAccess;
use crate::ibsim::{InvalidSocketName, SocketName};
use crate::socket_file::SocketBindError;
use crate::sys::{self, Epoll, EpollEvent, ReceiveBatch, SendBatch, UserId};
use crate::waker::Waker;
use connections::{ClientLink, ManagerChange};

/// Interval between checks for clients that ended without disconnecting; until then such a client only occupies its slot.
///
/// Also the longest time for which no connection is accepted after `accept` failed.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(3);

/// Longest wait of [`Server::run`], so that a stop flag set by a signal handler takes effect without a [`Waker`].
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Limit of open files that the server sets, as far as the hard limit allows: one socket per client, and some for the rest of
/// the process. The usual soft limit of 1024 is too low for [`CLIENTS_MAX`] clients.
const OPEN_FILES: u64 = 4 * CLIENTS_MAX as u64;

const TOKEN_CONTROL: u64 = u64::MAX;
const TOKEN_WAKE: u64 = u64::MAX - 1;
const TOKEN_LISTENER: u64 = u64::MAX - 2;
const TOKEN_BACKEND: u64 = u64::MAX - 3;

/// A server of the ibsim and framed protocols. `P` is the port type of its [`FabricBackend`].
///
/// Order of calls: [`bind`](Self::bind) or [`framed_only`](Self::framed_only), optionally [`listen`](Self::listen),
/// [`set_access`](Self::set_access) and [`watch`](Self::watch), then [`run`](Self::run), or
/// [`poll_once`](Self::poll_once) in a loop, always with the same backend. Dropping the server disconnects all clients and
/// removes its socket file.
pub struct Server<P> {
    name: SocketName,
    control: UnixDatagram,
    access: SocketAccess,
    /// The effective user of this process.
    own_user: UserId,
    framed_listener: Option<FramedListener>,
    epoll: Epoll,
    wake: Waker,
    outbox: Outbox<P>,
    received: ReceiveBatch,
    sending: SendBatch,
    next_tick: Option<Instant>,
    next_liveness_check: Instant,
    /// Clients that are not read from, by the end of their pause.
    paused: BTreeSet<(Instant, ClientId)>,
}

/// The listening socket of the framed protocol. Dropping it removes the socket file.
struct FramedListener {
    socket: UnixListener,
    path: PathBuf,
    /// No connections are accepted until the next liveness check, because `accept` failed.
    is_paused: bool,
}

/// Why a server could not be bound to a name.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(transparent)]
    InvalidName(#[from] InvalidSocketName),
    #[error("a server named {name} is already running; choose another name")]
    NameInUse { name: SocketName },
    #[error("cannot bind the sockets of server {name}")]
    Io { name: String, source: io::Error },
}

impl<P: Copy + Eq> Server<P> {
    /// A server of the ibsim protocol with the base name `name`, as in `IBSIM_SOCKNAME`. The user of this process and root have
    /// access, see [`set_access`](Self::set_access).
    pub fn bind(name: &str) -> Result<Self, BindError> {
        let name = SocketName::new(name)?;
        let control = name.server_control().and_then(|address| UnixDatagram::bind_addr(&address));
        let control = control.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => BindError::NameInUse { name: name.clone() },
            _ => BindError::Io { name: name.to_string(), source: error },
        })?;
        Self::with_control(name.clone(), control)
            .map_err(|source| BindError::Io { name: name.to_string(), source })
    }

    /// A server of the framed protocol only, listening at `path` (see [`listen`](Self::listen)).
    pub fn framed_only(path: &Path) -> Result<Self, SocketBindError> {
        let system = |source| SocketBindError::Io { path: path.to_owned(), source };
        let name = SocketName::new("private").map_err(|error| system(io::Error::other(error)))?;
        // Not bound to a name: it receives nothing.
        let control = UnixDatagram::unbound().map_err(system)?;
        let mut server = Self::with_control(name, control).map_err(system)?;
        server.listen(path)?;
        Ok(server)
    }

    /// Listens for clients of the framed protocol at `path`, a unix stream socket with mode 0600. The socket file of a process
    /// that is gone is replaced.
    pub fn listen(&mut self, path: &Path) -> Result<(), SocketBindError> {
        let listener = stream::listen(path)?;
        self.epoll
            .add(&listener, TOKEN_LISTENER)
            .map_err(|source| SocketBindError::Io { path: path.to_owned(), source })?;
        self.framed_listener =
            Some(FramedListener { socket: listener, path: path.to_owned(), is_paused: false });
        Ok(())
    }

    /// Sets which users may use the ibsim sockets from now on. Attached clients stay attached.
    pub fn set_access(&mut self, access: SocketAccess) {
        self.access = access;
    }

    /// Adds a file descriptor of the backend to the wait: [`FabricBackend::handle_ready`] is called while it is readable.
    pub fn watch(&self, source: impl AsFd) -> io::Result<()> {
        self.epoll.add(source, TOKEN_BACKEND)
    }

    /// Serves until `stop` is set. The flag is checked every half second, and at once after [`Waker::wake`].
    ///
    /// # Errors
    ///
    /// Waiting for events failed; errors of single clients are counted instead.
    pub fn run<B: FabricBackend<Port = P>>(&mut self, backend: &mut B, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Acquire) {
            self.poll_once(backend, LONGEST_WAIT)?;
        }
        Ok(())
    }

    /// One round: waits for input for at most `timeout`, handles it, calls [`FabricBackend::tick`] and sends what was queued.
    ///
    /// # Errors
    ///
    /// Waiting for events failed; errors of single clients are counted instead.
    pub fn poll_once<B: FabricBackend<Port = P>>(
        &mut self,
        backend: &mut B,
        timeout: Duration,
    ) -> io::Result<()> {
        let count = self.epoll.wait(self.wait_time(timeout))?;
        self.outbox.now = Instant::now();
        self.resume_due();
        for index in 0..count {
            self.serve(backend, self.epoll.event(index));
        }
        self.outbox.expire_forwarded();
        self.check_liveness(backend);
        self.next_tick = backend.tick(&mut self.outbox).map(|wait| self.outbox.now + wait);
        self.flush(backend);
        Ok(())
    }

    /// A waker with which other threads can interrupt the wait.
    pub fn waker(&self) -> Waker {
        self.wake.clone()
    }

    /// The statistics of the server so far.
    pub fn counters(&self) -> &ServerCounters {
        &self.outbox.counters
    }

    /// Number of attached clients, of both protocols.
    pub fn client_count(&self) -> usize {
        self.outbox.clients.iter().filter(|client| client.port.is_some()).count()
    }

    /// The base name of the ibsim sockets.
    pub fn name(&self) -> &SocketName {
        &self.name
    }

    fn with_control(name: SocketName, control: UnixDatagram) -> io::Result<Self> {
        control.set_nonblocking(true)?;
        sys::pass_credentials(&control)?;
        sys::raise_open_file_limit(OPEN_FILES);
        let wake = Waker::new()?;
        let epoll = Epoll::new()?;
        epoll.add(&control, TOKEN_CONTROL)?;
        epoll.add(&wake, TOKEN_WAKE)?;
        Ok(Self {
            name,
            control,
            access: SocketAccess::default(),
            own_user: UserId::own(),
            framed_listener: None,
            epoll,
            wake,
            outbox: Outbox::new(),
            received: ReceiveBatch::new(),
            sending: SendBatch::new(),
            next_tick: None,
            next_liveness_check: Instant::now() + LIVENESS_INTERVAL,
            paused: BTreeSet::new(),
        })
    }

    fn wait_time(&self, longest: Duration) -> Duration {
        let resumed = self.paused.first().map(|(until, _)| *until);
        let deadlines =
            [self.next_tick, self.outbox.forwarded.deadline(), Some(self.next_liveness_check), resumed];
        let Some(next) = deadlines.into_iter().flatten().min() else { return longest };
        // Not `outbox.now`: the caller may have spent time since the last round.
        longest.min(next.saturating_duration_since(Instant::now()))
    }

    fn serve<B: FabricBackend<Port = P>>(&mut self, backend: &mut B, event: EpollEvent) {
        match event.token {
            TOKEN_CONTROL => self.serve_control(backend),
            TOKEN_WAKE => {
                self.wake.clear();
            }
            TOKEN_LISTENER => self.accept(backend),
            TOKEN_BACKEND => backend.handle_ready(&mut self.outbox),
            token => self.serve_client(backend, ClientId(token as u16), event),
        }
    }

    fn serve_client<B: FabricBackend<Port = P>>(&mut self, backend: &mut B, id: ClientId, event: EpollEvent) {
        let Some(client) = self.outbox.clients.get_mut(id) else { return };
        if event.writable && !std::mem::replace(&mut client.queued, true) {
            self.outbox.queued.push(id);
        }
        if event.readable {
            match client.link {
                ClientLink::Ibsim { .. } => self.receive_data(backend, id),
                ClientLink::Framed { .. } => self.receive_frames(backend, id),
            }
            self.pause_if_due(backend, id);
        }
    }

    /// Stops reading from a client until the time that the backend gives, if it gives one.
    fn pause_if_due<B: FabricBackend<Port = P>>(&mut self, backend: &B, id: ClientId) {
        let Some(client) = self.outbox.clients.get_mut(id).filter(|client| !client.is_paused) else { return };
        let Some(until) = client.port.and_then(|port| backend.paused_until(port)) else { return };
        client.is_paused = true;
        match client.watch(&self.epoll) {
            Ok(()) => drop(self.paused.insert((until, id))),
            Err(_) => client.is_paused = false,
        }
    }

    fn resume_due(&mut self) {
        while let Some((_, id)) = self.paused.first().filter(|(until, _)| *until <= self.outbox.now).copied()
        {
            self.paused.pop_first();
            if let Some(client) = self.outbox.clients.get_mut(id) {
                client.is_paused = false;
                if let Err(error) = client.watch(&self.epoll) {
                    tracing::warn!(client = %id, %error, "cannot resume reading from a client");
                }
            }
        }
    }

    /// Sends what was queued and removes clients whose socket failed.
    fn flush<B: FabricBackend<Port = P>>(&mut self, backend: &mut B) {
        let mut queued = std::mem::take(&mut self.outbox.queued);
        for id in queued.drain(..) {
            if let Err(error) = self.flush_client(id) {
                tracing::debug!(client = %id, %error, "removing a client whose socket failed");
                self.reclaim(backend, id);
            }
        }
        // Sending queues nothing, so the vector can be put back to reuse its memory.
        self.outbox.queued = queued;
    }

    fn flush_client(&mut self, id: ClientId) -> io::Result<()> {
        let Some(client) = self.outbox.clients.get_mut(id) else { return Ok(()) };
        client.queued = false;
        let done = match &mut client.link {
            ClientLink::Ibsim { socket, unsent, .. } => data::send_all(&mut self.sending, socket, unsent)?,
            ClientLink::Framed { stream, unsent, .. } => stream::send_all(stream, unsent)?,
        };
        if client.is_write_blocked == done {
            client.is_write_blocked = !done;
            client.watch(&self.epoll)?;
        }
        Ok(())
    }

    fn check_liveness<B: FabricBackend<Port = P>>(&mut self, backend: &mut B) {
        if self.outbox.now >= self.next_liveness_check {
            self.next_liveness_check = self.outbox.now + LIVENESS_INTERVAL;
            self.reclaim_dead_clients(backend);
            self.resume_accepting();
        }
    }

    /// Removes a client that ended without disconnecting.
    fn reclaim<B: FabricBackend<Port = P>>(&mut self, backend: &mut B, id: ClientId) {
        self.outbox.counters.clients_reclaimed += 1;
        self.remove(backend, id);
    }

    fn remove<B: FabricBackend<Port = P>>(&mut self, backend: &mut B, id: ClientId) {
        let change = self.outbox.clients.remove(id);
        self.apply_manager_change(backend, change);
    }

    fn apply_manager_change<B: FabricBackend<Port = P>>(
        &mut self,
        backend: &mut B,
        change: Option<ManagerChange<P>>,
    ) {
        match change {
            Some(ManagerChange::First(port)) => backend.set_is_sm(port, true),
            Some(ManagerChange::None(port)) => backend.set_is_sm(port, false),
            None => return,
        }
        // The backend may have datagrams to send because of the change.
        self.next_tick = Some(self.outbox.now);
    }
}

impl<P> std::fmt::Debug for Server<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("name", &self.name)
            .field("listener", &self.framed_listener.as_ref().map(|listener| &listener.path))
            .field("clients", &self.outbox.clients)
            .field("counters", &self.outbox.counters)
            .finish_non_exhaustive()
    }
}

impl Drop for FramedListener {
    fn drop(&mut self) {
        // If this fails, the next server replaces the file.
        let _ = std::fs::remove_file(&self.path);
    }
}
