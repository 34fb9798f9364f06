//! The server: many clients, one thread, one fabric behind it.
//!
//! Two doors lead to the same [`FabricBackend`]: the ibsim protocol under a name ([`Server::bind`]), and the own framing at a
//! path ([`Server::listen`]). One round ([`Server::poll_once`]) waits, takes what came (up to 64 messages per system
//! call and socket), lets the backend act, and sends everything that was queued, again many messages per call. Nothing
//! a client sends or fails to read stops the others; what is wrong is counted ([`ServerCounters`]).

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

pub use backend::{ClientDatagram, ClientId, FabricBackend, Vendor};
pub use connections::{CLIENTS_MAX, CLIENTS_PER_USER_MAX};
pub use counters::ServerCounters;
pub use forwarded::{FORWARD_TIMEOUT, FORWARDED_MAX};
pub use outbox::Outbox;

use crate::access::{SocketAccess, UserId};
use crate::ibsim::{InvalidSocketName, SocketName};
use crate::socket_file::SocketBindError;
use crate::sys::{self, Epoll, EpollEvent, ReceiveBatch, SendBatch};
use crate::waker::Waker;
use connections::{ClientLink, ManagerChange};

/// Between two looks for clients that died without a word. A dead client costs nothing but its slot.
///
/// Also how long a listener stays shut after the operating system refused another connection.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(3);

/// The longest wait of [`Server::run`]: a stop flag set by a signal handler is seen without a [`Waker`].
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Files the process is allowed to open, if its hard limit admits: a socket for each client, and room for what else
/// the process does. The usual soft limit of 1024 does not hold [`CLIENTS_MAX`] clients.
const OPEN_FILES: u64 = 4 * CLIENTS_MAX as u64;

const TOKEN_CONTROL: u64 = u64::MAX;
const TOKEN_WAKE: u64 = u64::MAX - 1;
const TOKEN_LISTENER: u64 = u64::MAX - 2;
const TOKEN_BACKEND: u64 = u64::MAX - 3;

/// A server of the ibsim protocol and of the own framing.
pub struct Server<P> {
    name: SocketName,
    control: UnixDatagram,
    access: SocketAccess,
    /// The user this process acts as.
    own_user: UserId,
    framed_listener: Option<FramedListener>,
    epoll: Epoll,
    wake: Waker,
    outbox: Outbox<P>,
    received: ReceiveBatch,
    sending: SendBatch,
    next_tick: Option<Instant>,
    next_liveness_check: Instant,
    /// Clients from which nothing is read, by when that ends.
    paused: BTreeSet<(Instant, ClientId)>,
}

/// The second listener, and the file that goes when it closes.
struct FramedListener {
    socket: UnixListener,
    path: PathBuf,
    /// Nobody is let in for now: the operating system has run out of something.
    is_paused: bool,
}

/// Why a server has no name.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Not a name.
    #[error(transparent)]
    InvalidName(#[from] InvalidSocketName),
    /// Another server has it.
    #[error("a server named {name} is already running; choose another name")]
    NameInUse {
        /// The name.
        name: SocketName,
    },
    /// The operating system refused.
    #[error("cannot bind the sockets of server {name}")]
    Io {
        /// The name.
        name: String,
        /// Why.
        source: io::Error,
    },
}

impl<P: Copy + Eq> Server<P> {
    /// Opens the listener of the ibsim protocol under the base name `name`, as in `IBSIM_SOCKNAME`, for the user of this process
    /// and for root.
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

    /// A server without the listener of the ibsim protocol: only that of the own framing, at a path.
    pub fn framed_only(path: &Path) -> Result<Self, SocketBindError> {
        let system = |source| SocketBindError::Io { path: path.to_owned(), source };
        let name = SocketName::new("private").map_err(|error| system(io::Error::other(error)))?;
        // Nobody knows where to send to it.
        let control = UnixDatagram::unbound().map_err(system)?;
        let mut server = Self::with_control(name, control).map_err(system)?;
        server.listen(path)?;
        Ok(server)
    }

    /// Opens the listener of the own framing: a unix stream socket that only the owner of the process may use. A socket
    /// file at `path` on which nobody answers is replaced.
    pub fn listen(&mut self, path: &Path) -> Result<(), SocketBindError> {
        let listener = stream::listen(path)?;
        self.epoll
            .add(&listener, TOKEN_LISTENER)
            .map_err(|source| SocketBindError::Io { path: path.to_owned(), source })?;
        self.framed_listener =
            Some(FramedListener { socket: listener, path: path.to_owned(), is_paused: false });
        Ok(())
    }

    /// Says who may use the listener of the ibsim protocol from now on.
    pub fn set_access(&mut self, access: SocketAccess) {
        self.access = access;
    }

    /// Watches something of the backend's own: [`FabricBackend::handle_ready`] is called while it is readable.
    pub fn watch(&self, source: impl AsFd) -> io::Result<()> {
        self.epoll.add(source, TOKEN_BACKEND)
    }

    /// Serves until `stop` is set, which is seen within half a second, or at once with a [`Waker`].
    pub fn run<B: FabricBackend<Port = P>>(&mut self, backend: &mut B, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Acquire) {
            self.poll_once(backend, LONGEST_WAIT)?;
        }
        Ok(())
    }

    /// One round: waits for input, at most `timeout`, handles all there is, ticks the backend and sends what was queued.
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

    /// Something with which other threads can interrupt the wait.
    pub fn waker(&self) -> Waker {
        self.wake.clone()
    }

    /// What was counted so far.
    pub fn counters(&self) -> &ServerCounters {
        &self.outbox.counters
    }

    /// How many clients are attached.
    pub fn client_count(&self) -> usize {
        self.outbox.clients.iter().filter(|client| client.port.is_some()).count()
    }

    /// The base name of the sockets.
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
        // Not the time of the last wake-up: the caller may have done something else since.
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

    /// Reads nothing more from a client for a while if the backend says so.
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
                    tracing::warn!(client = %id, %error, "a client cannot be watched again");
                }
            }
        }
    }

    /// Sends what was queued; whoever turns out to be dead is removed, and the backend told by the next tick.
    fn flush<B: FabricBackend<Port = P>>(&mut self, backend: &mut B) {
        let mut queued = std::mem::take(&mut self.outbox.queued);
        for id in queued.drain(..) {
            if let Err(error) = self.flush_client(id) {
                tracing::debug!(client = %id, %error, "client is gone");
                self.reclaim(backend, id);
            }
        }
        // Nothing is queued while sending, so the vector keeps its memory for the next round.
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

    /// Removes a client that ended without a word.
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
        // The backend may have something to send because of it.
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
        // Best effort: a file left behind is replaced by the next server.
        let _ = std::fs::remove_file(&self.path);
    }
}
