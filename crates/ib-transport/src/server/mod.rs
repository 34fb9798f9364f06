//! The server: many clients, one thread, one fabric behind it.
//!
//! Two doors lead to the same [`Host`]: the ibsim protocol under a name ([`Server::bind`]), and the own framing at a
//! path ([`Server::listen`]). One round ([`Server::poll_once`]) waits, takes what came (up to 64 messages per system
//! call and socket), lets the host act, and sends everything that was queued, again many messages per call. Nothing
//! a client sends or fails to read stops the others; what is wrong is counted ([`Counters`]).

mod backlog;
mod clients;
mod control;
mod data;
mod forwarded;
mod host;
mod outbox;
mod stream;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use clients::{CLIENTS_MAX, CLIENTS_PER_USER_MAX};
pub use forwarded::{FORWARD_TIMEOUT, FORWARDED_MAX};
pub use host::{ClientId, Host, Sent, Vendor};
pub use outbox::Outbox;

use crate::access::{Access, UserId};
use crate::counters::Counters;
use crate::ibsim::{InvalidName, SocketName};
use crate::place::ListenError;
use crate::sys::{self, Epoll, Event, ReceiveBatch, SendBatch};
use crate::waker::Waker;
use clients::{Link, ManagerChange};

/// Between two looks for clients that died without a word. A dead client costs nothing but its slot.
///
/// Also how long a door stays shut after the operating system refused another connection.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(3);

/// The longest wait of [`Server::run`]: a stop flag set by a signal handler is seen without a [`Waker`].
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Files the process is allowed to open, if its hard limit admits: a socket for each client, and room for what else
/// the process does. The usual soft limit of 1024 does not hold [`CLIENTS_MAX`] clients.
const OPEN_FILES: u64 = 4 * CLIENTS_MAX as u64;

const TOKEN_CONTROL: u64 = u64::MAX;
const TOKEN_WAKE: u64 = u64::MAX - 1;
const TOKEN_LISTENER: u64 = u64::MAX - 2;
const TOKEN_HOST: u64 = u64::MAX - 3;

/// A server of the ibsim protocol and of the own framing.
pub struct Server<P> {
    name: SocketName,
    control: UnixDatagram,
    access: Access,
    /// The user this process acts as.
    own_user: UserId,
    door: Option<Door>,
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

/// The second door, and the file that goes when it closes.
struct Door {
    listener: UnixListener,
    path: PathBuf,
    /// Nobody is let in for now: the operating system has run out of something.
    is_shut: bool,
}

/// Why a server has no name.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Not a name.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// Another server has it.
    #[error("a server named {name} is already running; choose another name")]
    NameInUse {
        /// The name.
        name: SocketName,
    },
    /// The operating system refused.
    #[error("cannot bind the sockets of server {name}")]
    System {
        /// The name.
        name: String,
        /// Why.
        source: io::Error,
    },
}

impl<P: Copy + Eq> Server<P> {
    /// Opens the door of the ibsim protocol under the base name `name`, as in `IBSIM_SOCKNAME`, for the user of this process
    /// and for root.
    pub fn bind(name: &str) -> Result<Self, BindError> {
        let name = SocketName::new(name)?;
        let control = name.server_control().and_then(|address| UnixDatagram::bind_addr(&address));
        let control = control.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => BindError::NameInUse { name: name.clone() },
            _ => BindError::System { name: name.to_string(), source: error },
        })?;
        Self::with_control(name.clone(), control)
            .map_err(|source| BindError::System { name: name.to_string(), source })
    }

    /// A server without the door of the ibsim protocol: only that of the own framing, at a path.
    pub fn private(path: &Path) -> Result<Self, ListenError> {
        let system = |source| ListenError::System { path: path.to_owned(), source };
        let name = SocketName::new("private").map_err(|error| system(io::Error::other(error)))?;
        // Nobody knows where to send to it.
        let control = UnixDatagram::unbound().map_err(system)?;
        let mut server = Self::with_control(name, control).map_err(system)?;
        server.listen(path)?;
        Ok(server)
    }

    /// Opens the door of the own framing: a unix stream socket that only the owner of the process may use. A socket
    /// file at `path` on which nobody answers is replaced.
    pub fn listen(&mut self, path: &Path) -> Result<(), ListenError> {
        let listener = stream::listen(path)?;
        self.epoll
            .add(&listener, TOKEN_LISTENER)
            .map_err(|source| ListenError::System { path: path.to_owned(), source })?;
        self.door = Some(Door { listener, path: path.to_owned(), is_shut: false });
        Ok(())
    }

    /// Says who may use the door of the ibsim protocol from now on.
    pub fn set_access(&mut self, access: Access) {
        self.access = access;
    }

    /// Watches something of the host's own: [`Host::handle_ready`] is called while it is readable.
    pub fn watch(&self, source: impl AsFd) -> io::Result<()> {
        self.epoll.add(source, TOKEN_HOST)
    }

    /// Serves until `stop` is set, which is seen within half a second, or at once with a [`Waker`].
    pub fn run<H: Host<Port = P>>(&mut self, host: &mut H, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Acquire) {
            self.poll_once(host, LONGEST_WAIT)?;
        }
        Ok(())
    }

    /// One round: waits for input, at most `timeout`, handles all there is, ticks the host and sends what was queued.
    pub fn poll_once<H: Host<Port = P>>(&mut self, host: &mut H, timeout: Duration) -> io::Result<()> {
        let count = self.epoll.wait(self.wait_time(timeout))?;
        self.outbox.now = Instant::now();
        self.resume_due();
        for index in 0..count {
            self.serve(host, self.epoll.event(index));
        }
        self.outbox.expire_forwarded();
        self.look_for_the_dead(host);
        self.next_tick = host.tick(&mut self.outbox).map(|wait| self.outbox.now + wait);
        self.flush(host);
        Ok(())
    }

    /// Something with which other threads can interrupt the wait.
    pub fn waker(&self) -> Waker {
        self.wake.clone()
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
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
        sys::allow_open_files(OPEN_FILES);
        let wake = Waker::new()?;
        let epoll = Epoll::new()?;
        epoll.add(&control, TOKEN_CONTROL)?;
        epoll.add(&wake, TOKEN_WAKE)?;
        Ok(Self {
            name,
            control,
            access: Access::default(),
            own_user: UserId::own(),
            door: None,
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

    fn serve<H: Host<Port = P>>(&mut self, host: &mut H, event: Event) {
        match event.token {
            TOKEN_CONTROL => self.serve_control(host),
            TOKEN_WAKE => {
                self.wake.clear();
            }
            TOKEN_LISTENER => self.accept(host),
            TOKEN_HOST => host.handle_ready(&mut self.outbox),
            token => self.serve_client(host, ClientId(token as u16), event),
        }
    }

    fn serve_client<H: Host<Port = P>>(&mut self, host: &mut H, id: ClientId, event: Event) {
        let Some(client) = self.outbox.clients.get_mut(id) else { return };
        if event.writable && !std::mem::replace(&mut client.queued, true) {
            self.outbox.queued.push(id);
        }
        if event.readable {
            match client.link {
                Link::Ibsim { .. } => self.receive_data(host, id),
                Link::Framed { .. } => self.receive_frames(host, id),
            }
            self.pause_if_due(host, id);
        }
    }

    /// Reads nothing more from a client for a while if the host says so.
    fn pause_if_due<H: Host<Port = P>>(&mut self, host: &H, id: ClientId) {
        let Some(client) = self.outbox.clients.get_mut(id).filter(|client| !client.is_paused) else { return };
        let Some(until) = client.port.and_then(|port| host.pause(port)) else { return };
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

    /// Sends what was queued; whoever turns out to be dead is removed, and the host told by the next tick.
    fn flush<H: Host<Port = P>>(&mut self, host: &mut H) {
        let mut queued = std::mem::take(&mut self.outbox.queued);
        for id in queued.drain(..) {
            if let Err(error) = self.flush_client(id) {
                tracing::debug!(client = %id, %error, "client is gone");
                self.reclaim(host, id);
            }
        }
        // Nothing is queued while sending, so the vector keeps its memory for the next round.
        self.outbox.queued = queued;
    }

    fn flush_client(&mut self, id: ClientId) -> io::Result<()> {
        let Some(client) = self.outbox.clients.get_mut(id) else { return Ok(()) };
        client.queued = false;
        let done = match &mut client.link {
            Link::Ibsim { socket, unsent, .. } => data::send_all(&mut self.sending, socket, unsent)?,
            Link::Framed { stream, unsent, .. } => stream::send_all(stream, unsent)?,
        };
        if client.waits_for_room == done {
            client.waits_for_room = !done;
            client.watch(&self.epoll)?;
        }
        Ok(())
    }

    fn look_for_the_dead<H: Host<Port = P>>(&mut self, host: &mut H) {
        if self.outbox.now >= self.next_liveness_check {
            self.next_liveness_check = self.outbox.now + LIVENESS_INTERVAL;
            self.reclaim_dead_clients(host);
            self.reopen_door();
        }
    }

    /// Removes a client that ended without a word.
    fn reclaim<H: Host<Port = P>>(&mut self, host: &mut H, id: ClientId) {
        self.outbox.counters.clients_reclaimed += 1;
        self.remove(host, id);
    }

    fn remove<H: Host<Port = P>>(&mut self, host: &mut H, id: ClientId) {
        let change = self.outbox.clients.remove(id);
        self.tell_manager_change(host, change);
    }

    fn tell_manager_change<H: Host<Port = P>>(&mut self, host: &mut H, change: Option<ManagerChange<P>>) {
        match change {
            Some(ManagerChange::First(port)) => host.set_is_sm(port, true),
            Some(ManagerChange::None(port)) => host.set_is_sm(port, false),
            None => return,
        }
        // The host may have something to send because of it.
        self.next_tick = Some(self.outbox.now);
    }
}

impl<P> std::fmt::Debug for Server<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("name", &self.name)
            .field("door", &self.door.as_ref().map(|door| &door.path))
            .field("clients", &self.outbox.clients)
            .field("counters", &self.outbox.counters)
            .finish_non_exhaustive()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Best effort: a file left behind is replaced by the next server.
        let _ = std::fs::remove_file(&self.path);
    }
}
