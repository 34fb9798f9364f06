//! The guest's end of the channel: reports the status of the node and runs sessions.
//!
//! One thread polls the port, the socket of the network check and the pipes of all sessions, and never blocks on one of them.
//! The output of a session is bounded by its window, and no pipe is read while too many bytes wait for the port.

mod network_probe;
mod port;
mod session;
mod status;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::consts::SIGCHLD;
use thiserror::Error;

use network_probe::NetworkProbe;
pub use port::open as open_port;
use session::{Pipe, Session, SessionStartError, TerminatingSession};
pub use status::{GuestNode, NodeStatus};
pub(crate) use status::{error_chain, report_failure, ssh_is_served};

use crate::channel::{
    self, Decoder, PROTOCOL_VERSION, SESSIONS_MAX, SessionId, SessionRequest, ToGuest, ToHost,
};

/// With more bytes than this waiting for the port, pipes of sessions are not read.
const BACKPRESSURE_BYTES: usize = 64 * 1024;

/// With more bytes than this waiting for the port, the port is not read either: the host sends requests without reading replies.
const OUTGOING_BYTES_MAX: usize = 256 * 1024;

/// Polling interval while no host is connected: the port cannot be polled for a connection.
const NO_HOST_PAUSE: Duration = Duration::from_millis(200);

/// Polling interval until sshd listens.
const SSH_PAUSE: Duration = Duration::from_millis(100);

/// Whether a host is connected to the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostConnection {
    Up,
    Down,
}

/// The guest's end of the channel. Call [`ChannelServer::run`], or [`ChannelServer::poll_once`] in a loop.
#[derive(Debug)]
pub struct ChannelServer {
    port: File,
    node: GuestNode,
    decoder: Decoder<ToGuest>,
    messages: VecDeque<ToGuest>,
    outgoing: VecDeque<u8>,
    /// Status last reported to the host; `None` if it must be reported.
    reported: Option<NodeStatus>,
    /// The host has sent a hello.
    greeted: bool,
    /// The network check requested by the current context.
    network: Option<NetworkProbe>,
    /// Generation of the context for which `network` was set up.
    network_generation: Option<u64>,
    /// Result of the network check last reported to the host.
    reported_network: Option<ToHost>,
    sessions: BTreeMap<SessionId, Session>,
    terminating: Vec<TerminatingSession>,
    /// Becomes readable on SIGCHLD.
    children: UnixStream,
    buffer: Vec<u8>,
}

/// A polled descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Port,
    Children,
    NetworkProbe,
    Session(SessionId, Pipe),
}

/// Why a session could not be opened. Sent to the host as the reason of [`ToHost::Refused`].
#[derive(Debug, Error)]
enum OpenError {
    #[error("session {} is already open", .0.0)]
    InUse(SessionId),
    #[error("{SESSIONS_MAX} sessions are open, the most that a node allows; end one first")]
    TooMany,
    #[error(transparent)]
    Start(#[from] SessionStartError),
}

impl ChannelServer {
    /// A server on an open, non-blocking port. Registers a handler for SIGCHLD.
    pub fn new(port: File, node: GuestNode) -> io::Result<Self> {
        let (children, signal) = UnixStream::pair()?;
        children.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(SIGCHLD, signal)?;
        Ok(Self {
            port,
            node,
            decoder: Decoder::new(),
            messages: VecDeque::new(),
            outgoing: VecDeque::new(),
            reported: None,
            greeted: false,
            network: None,
            network_generation: None,
            reported_network: None,
            sessions: BTreeMap::new(),
            terminating: Vec::new(),
            children,
            buffer: vec![0; channel::DATA_BYTES_MAX],
        })
    }

    /// Serves for ever; returns only if the port fails.
    pub fn run(&mut self) -> io::Result<std::convert::Infallible> {
        loop {
            if self.poll_once()? == HostConnection::Down {
                std::thread::sleep(NO_HOST_PAUSE);
            }
        }
    }

    /// Waits for the next event and handles it. Returns whether a host is connected; if not, the caller should pause.
    pub fn poll_once(&mut self) -> io::Result<HostConnection> {
        let connection = self.transfer()?;
        let now = Instant::now();
        self.finish_sessions(now);
        self.check_network(now);
        self.report();
        if connection == HostConnection::Down {
            self.disconnect(now);
        }
        Ok(connection)
    }

    /// Waits for events and transfers bytes of every ready descriptor.
    fn transfer(&mut self) -> io::Result<HostConnection> {
        let mut connection = HostConnection::Up;
        for (source, events) in self.wait()? {
            match source {
                Source::Port => {
                    if events.contains(PollFlags::POLLOUT) {
                        self.send()?;
                    }
                    // A hang-up is detected by reading, because there may be bytes before it.
                    if events.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
                        connection = self.receive()?;
                    }
                }
                Source::Children => drain(&self.children),
                // Handled by check_network.
                Source::NetworkProbe => {}
                Source::Session(id, pipe) => {
                    if let Some(session) = self.sessions.get_mut(&id) {
                        let message = session.transfer(pipe, &mut self.buffer);
                        queue(&mut self.outgoing, message);
                    }
                }
            }
        }
        Ok(connection)
    }

    fn wait(&self) -> io::Result<Vec<(Source, PollFlags)>> {
        let mut sources = vec![Source::Port, Source::Children];
        let mut events = PollFlags::empty();
        events.set(PollFlags::POLLIN, self.outgoing.len() < OUTGOING_BYTES_MAX);
        events.set(PollFlags::POLLOUT, !self.outgoing.is_empty());
        let mut waits = vec![
            PollFd::new(self.port.as_fd(), events),
            PollFd::new(self.children.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(socket) = self.network.as_ref().and_then(NetworkProbe::as_fd) {
            sources.push(Source::NetworkProbe);
            waits.push(PollFd::new(socket, PollFlags::POLLIN));
        }
        for (id, session) in &self.sessions {
            for (pipe, file, events) in session.waits(self.has_backpressure()) {
                sources.push(Source::Session(*id, pipe));
                waits.push(PollFd::new(file.as_fd(), events));
            }
        }
        match poll(&mut waits, self.timeout(Instant::now())) {
            Ok(_) => {}
            Err(nix::Error::EINTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        // Unknown flags count as an error, which reading reports.
        let found = waits.iter().map(|wait| wait.revents().unwrap_or(PollFlags::POLLERR));
        Ok(sources.into_iter().zip(found).filter(|(_, events)| !events.is_empty()).collect())
    }

    fn has_backpressure(&self) -> bool {
        self.outgoing.len() > BACKPRESSURE_BYTES
    }

    /// Time until the next deadline.
    fn timeout(&self, now: Instant) -> PollTimeout {
        // Under backpressure, sessions wait for the port, not for a deadline.
        let lingering =
            self.sessions.values().filter(|_| !self.has_backpressure()).filter_map(Session::deadline);
        let terminating = self.terminating.iter().map(TerminatingSession::deadline);
        let ssh = (self.node.status() == NodeStatus::Waiting).then(|| now + SSH_PAUSE);
        let network = self.network.as_ref().and_then(NetworkProbe::deadline);
        let Some(first) = lingering.chain(terminating).chain(ssh).chain(network).min() else {
            return PollTimeout::NONE;
        };
        // Rounded up, so that poll does not return just before the deadline.
        let wait = first.saturating_duration_since(now) + Duration::from_millis(1);
        PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)
    }

    fn send(&mut self) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            match self.port.write(self.outgoing.as_slices().0) {
                Ok(written) => drop(self.outgoing.drain(..written)),
                Err(error) if would_block(&error) => break,
                // The host has disconnected; reading reports it, too.
                Err(error) if is_disconnected(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<HostConnection> {
        match self.port.read(&mut self.buffer) {
            Ok(0) => return Ok(HostConnection::Down),
            Ok(length) => self.decoder.push(&self.buffer[..length], &mut self.messages),
            Err(error) if would_block(&error) => return Ok(HostConnection::Up),
            Err(error) if is_disconnected(&error) => return Ok(HostConnection::Down),
            Err(error) => return Err(error),
        }
        while let Some(message) = self.messages.pop_front() {
            self.handle(message);
        }
        Ok(HostConnection::Up)
    }

    fn handle(&mut self, message: ToGuest) {
        match message {
            ToGuest::Hello { nonce } => self.welcome(nonce),
            ToGuest::Context(json) => {
                self.node.apply(&json);
                self.network_generation = None;
                self.reported = None;
            }
            ToGuest::Open { session, request } => {
                if let Err(error) = self.open(session, request) {
                    self.refuse(session, error_chain(&error));
                }
            }
            ToGuest::Close { session } => {
                if let Some(open) = self.sessions.remove(&session) {
                    self.terminating.push(open.end(Some(session), Instant::now()));
                }
            }
            // Input and credit of a session that has just ended may still arrive; they are ignored.
            ToGuest::Input { session, bytes } => {
                match self.sessions.get_mut(&session).map(|open| open.input(bytes)) {
                    Some(Ok(credit)) => queue(&mut self.outgoing, credit),
                    Some(Err(overrun)) => self.refuse(session, overrun.to_string()),
                    None => {}
                }
            }
            ToGuest::Credit { session, bytes } => {
                let taken = self.sessions.get_mut(&session).map(|open| open.grant(bytes));
                if let Some(Err(overrun)) = taken {
                    self.refuse(session, overrun.to_string());
                }
            }
        }
    }

    fn welcome(&mut self, nonce: u64) {
        self.end_sessions(Instant::now());
        let boot = self.node.boot_id();
        queue(&mut self.outgoing, [ToHost::Welcome { nonce, version: PROTOCOL_VERSION, boot }]);
        self.greeted = true;
        self.reported = None;
        self.reported_network = None;
    }

    fn open(&mut self, session: SessionId, request: SessionRequest) -> Result<(), OpenError> {
        if self.sessions.contains_key(&session) {
            return Err(OpenError::InUse(session));
        }
        if self.sessions.len() >= SESSIONS_MAX {
            return Err(OpenError::TooMany);
        }
        let open = Session::start(session, request, &self.node.environment())?;
        self.sessions.insert(session, open);
        Ok(())
    }

    /// Sends [`ToHost::Refused`], and ends the session if it is open.
    fn refuse(&mut self, session: SessionId, reason: String) {
        if let Some(open) = self.sessions.remove(&session) {
            self.terminating.push(open.end(None, Instant::now()));
        }
        queue(&mut self.outgoing, [ToHost::Refused { session, reason: status::truncate_reason(reason) }]);
    }

    /// Ends all sessions without a message: the host that opened them is gone.
    fn end_sessions(&mut self, now: Instant) {
        let terminating = std::mem::take(&mut self.sessions).into_values().map(|open| open.end(None, now));
        self.terminating.extend(terminating);
    }

    fn disconnect(&mut self, now: Instant) {
        self.end_sessions(now);
        self.outgoing.clear();
        self.decoder = Decoder::new();
        self.greeted = false;
    }

    fn finish_sessions(&mut self, now: Instant) {
        let backpressure = self.has_backpressure();
        for session in self.sessions.values_mut() {
            session.poll_exit(now);
            if !backpressure && session.has_lingered(now) {
                let last = [Pipe::Output, Pipe::Error].map(|pipe| session.transfer(pipe, &mut self.buffer));
                if last == [None, None] {
                    session.close();
                }
                queue(&mut self.outgoing, last.into_iter().flatten());
            }
        }
        let outgoing = &mut self.outgoing;
        self.sessions.retain(|id, open| {
            let exit = open.finished().map(|status| ToHost::Exit { session: *id, status });
            let stays = exit.is_none();
            queue(outgoing, exit);
            stays
        });
        self.terminating.retain_mut(|terminating| {
            let Some(status) = terminating.finished(now) else { return true };
            queue(outgoing, terminating.session.map(|session| ToHost::Exit { session, status }));
            false
        });
        self.node.refresh();
    }

    /// Continues the network check; starts a new one when the context has changed.
    fn check_network(&mut self, now: Instant) {
        if let NodeStatus::Ready { generation } = self.node.status()
            && self.network_generation != Some(generation)
        {
            self.network_generation = Some(generation);
            self.network =
                self.node.probe_task().map(|task| NetworkProbe::new(task, self.node.device(), now));
        }
        if let Some(network) = &mut self.network {
            network.poll(now);
        }
    }

    /// Reports the network check and the node's status to the host, once and after every change. The network check comes
    /// first, so that the host knows whether there is one as soon as the node is ready.
    fn report(&mut self) {
        let network = self.network.as_ref().map(NetworkProbe::message);
        if self.greeted && network.is_some() && self.reported_network != network {
            queue(&mut self.outgoing, network.clone());
            self.reported_network = network;
        }
        let status = self.node.status();
        if !self.greeted || self.reported.as_ref() == Some(&status) {
            return;
        }
        let message = match status.clone() {
            NodeStatus::Waiting => None,
            NodeStatus::Ready { generation } => Some(ToHost::Ready { generation }),
            NodeStatus::Failed { generation, reason } => Some(ToHost::Failed { generation, reason }),
        };
        queue(&mut self.outgoing, message);
        self.reported = Some(status);
    }
}

fn queue(outgoing: &mut VecDeque<u8>, messages: impl IntoIterator<Item = ToHost>) {
    let mut bytes = Vec::new();
    for message in messages {
        channel::encode(&message, &mut bytes).expect("buffers and reasons are truncated to fit a frame");
    }
    outgoing.extend(bytes);
}

fn drain(mut pipe: &UnixStream) {
    let mut bytes = [0; 64];
    while pipe.read(&mut bytes).is_ok_and(|length| length > 0) {}
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn is_disconnected(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
