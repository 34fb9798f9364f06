//! The host's end of a guest's channel: tracks the state of the guest, sends changed contexts and runs sessions.
//!
//! Guests are not trusted. The memory that a guest can make the agent use is bounded by windows and limits, and bytes that the
//! agent did not request are charged to a budget (`UnsolicitedBudget`). The connection to a guest that exceeds it is closed for
//! 30 s.

mod budget;
mod inbox;
mod liveness;
mod sessions;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use controller_api::agent::NetworkCheck;
use controller_api::session::NewSession;
use guest::channel::{Decoder, MessageTooLong, PROTOCOL_VERSION, ToGuest, ToHost, encode};
use guest::probe::Reachability;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use uuid::Uuid;

use crate::error_chain;
use budget::UnsolicitedBudget;
pub use inbox::SessionEvent;
pub use liveness::LivenessTimeouts;
use liveness::{Liveness, LivenessAction};
use sessions::{LinkCommand, Sessions};
pub use sessions::{Session, SessionError};

/// Buffer size of a read.
const READ_BYTES: usize = 16 * 1024;

/// Pause before a failed connection is retried. QEMU creates the socket before it starts the guest.
const CONNECT_PAUSE: Duration = Duration::from_millis(200);

/// How long the connection to a misbehaving guest stays closed.
const MISBEHAVIOUR_PAUSE: Duration = Duration::from_secs(30);

/// Interval of hellos until the guest answers: those sent while it boots may be lost.
const GREETING_PAUSE: Duration = Duration::from_millis(250);

/// Interval of hellos to a guest without sessions. A restarted channel server in the guest waits for one.
const REGREETING_PAUSE: Duration = Duration::from_secs(20);

/// How long opening a session waits for the first answer of a guest.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Least time between two transmissions of the same context.
const CONTEXT_PAUSE: Duration = Duration::from_secs(10);

/// Capacity of the queue of session commands.
const COMMANDS_MAX: usize = 64;

/// Most characters of a guest's message that are kept.
const REASON_CHARS_MAX: usize = 200;

/// State of a guest, according to its own messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GuestState {
    /// It has not answered a hello yet.
    #[default]
    Silent,
    /// It has answered a hello, but is not ready.
    Greeted,
    /// The context of this generation is applied; with the result of the network check, if it runs one.
    Ready(u64, Option<NetworkCheck>),
    Failed(String),
    /// It broke the protocol; a verb phrase says how.
    Misbehaving(String),
}

/// A context for the guest. `Debug` does not show the documents.
#[derive(Clone)]
pub struct GuestContext {
    pub generation: u64,
    /// The documents as JSON; contains a private key.
    pub documents: Arc<Vec<u8>>,
}

impl std::fmt::Debug for GuestContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GuestContext(generation {})", self.generation)
    }
}

/// The link to a guest. Dropping it closes the connection and ends all sessions.
#[derive(Debug)]
pub struct GuestLink {
    state: watch::Receiver<GuestState>,
    commands: mpsc::Sender<LinkCommand>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for GuestLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Opens sessions over a link, as long as the link exists.
#[derive(Clone, Debug)]
pub struct SessionOpener {
    commands: mpsc::Sender<LinkCommand>,
    state: watch::Receiver<GuestState>,
}

impl SessionOpener {
    /// Opens a session. Waits up to 5 s for a guest that has not answered yet.
    pub async fn open(&self, request: NewSession) -> Result<Session, SessionError> {
        // A guest that was just adopted has not answered a hello yet.
        let mut state = self.state.clone();
        let _ = timeout(OPEN_TIMEOUT, state.wait_for(|state| *state != GuestState::Silent)).await;
        sessions::open(&self.commands, request).await
    }
}

impl GuestLink {
    /// Connects to the socket of a virtual machine's channel, and reconnects whenever the connection breaks.
    pub fn start(id: Uuid, socket: PathBuf, context: watch::Receiver<GuestContext>) -> Self {
        Self::start_with(id, socket, context, LivenessTimeouts::default())
    }

    /// Like [`GuestLink::start`], with other timeouts for guests that hang.
    pub fn start_with(
        id: Uuid,
        socket: PathBuf,
        context: watch::Receiver<GuestContext>,
        timeouts: LivenessTimeouts,
    ) -> Self {
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let (sender, state) = watch::channel(GuestState::default());
        let task = LinkTask { id, socket, context, state: sender, commands: received, timeouts };
        Self { state, commands, task: tokio::spawn(task.run()) }
    }

    /// State of the guest, as it changes.
    pub fn state(&self) -> watch::Receiver<GuestState> {
        self.state.clone()
    }

    /// A handle to open sessions.
    pub fn opener(&self) -> SessionOpener {
        SessionOpener { commands: self.commands.clone(), state: self.state.clone() }
    }
}

struct LinkTask {
    id: Uuid,
    socket: PathBuf,
    context: watch::Receiver<GuestContext>,
    state: watch::Sender<GuestState>,
    commands: mpsc::Receiver<LinkCommand>,
    timeouts: LivenessTimeouts,
}

/// Why a connection is closed.
#[derive(Debug, Error)]
enum LinkError {
    #[error("the channel to the guest broke")]
    Io(#[from] io::Error),
    #[error("the guest {0}")]
    Misbehaving(String),
    #[error(transparent)]
    MessageTooLong(#[from] MessageTooLong),
}

impl LinkTask {
    async fn run(mut self) {
        loop {
            let Ok(stream) = UnixStream::connect(&self.socket).await else {
                self.reject_commands(CONNECT_PAUSE, "the channel of the guest does not exist yet").await;
                continue;
            };
            let broken = self.run_connection(stream).await;
            tracing::debug!(vm = %self.id, "{}", error_chain(&broken));
            match broken {
                LinkError::Misbehaving(what) => {
                    tracing::warn!(vm = %self.id, "the guest {what}; closing its channel for {} s", MISBEHAVIOUR_PAUSE.as_secs());
                    self.state.send_replace(GuestState::Misbehaving(what));
                    self.reject_commands(MISBEHAVIOUR_PAUSE, "the guest broke the protocol").await;
                    self.state.send_replace(GuestState::Silent);
                }
                LinkError::Io(_) | LinkError::MessageTooLong(_) => {
                    self.state.send_replace(GuestState::Silent);
                    self.reject_commands(CONNECT_PAUSE, "the channel to the guest broke").await;
                }
            }
        }
    }

    /// Waits, and meanwhile rejects requests for sessions with `why`.
    async fn reject_commands(&mut self, pause: Duration, why: &str) {
        let end = sleep(pause);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return,
                command = self.commands.recv() => match command {
                    Some(LinkCommand::NewSession { answer, .. }) => drop(answer.send(Err(SessionError::GuestUnavailable(why.to_owned())))),
                    Some(_) => {}
                    // All handles are gone: the link is about to be dropped.
                    None => return end.await,
                }
            }
        }
    }

    async fn run_connection(&mut self, stream: UnixStream) -> LinkError {
        let (mut reader, mut writer) = stream.into_split();
        let mut connection = Connection::new(self.context.borrow_and_update().clone(), self.timeouts);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let (deadline, liveness_deadline) = (connection.greeting_at, connection.liveness.deadline());
            let step = tokio::select! {
                read = reader.read(&mut buffer) => match read {
                    Ok(0) => Err(LinkError::Io(io::ErrorKind::UnexpectedEof.into())),
                    Ok(length) => connection.receive(&buffer[..length]),
                    Err(error) => Err(error.into()),
                },
                written = writer.write(connection.outgoing.as_slices().0), if !connection.outgoing.is_empty() => match written {
                    Ok(0) => Err(LinkError::Io(io::ErrorKind::WriteZero.into())),
                    Ok(length) => {
                        connection.outgoing.drain(..length);
                        Ok(())
                    }
                    Err(error) => Err(error.into()),
                },
                Some(command) = self.commands.recv() => connection.execute(command),
                changed = self.context.changed() => match changed {
                    Ok(()) => connection.set_context(self.context.borrow_and_update().clone()),
                    // The sender is gone: the link is about to be dropped.
                    Err(_) => return std::future::pending().await,
                },
                () = sleep_until(deadline) => connection.greet(),
                () = sleep_until(liveness_deadline), if !connection.sessions.is_empty() => connection.check_liveness(),
            };
            if let Err(broken) = step {
                connection.sessions.end_all(&error_chain(&broken));
                return broken;
            }
            self.state.send_if_modified(|state| {
                let changed = *state != connection.state;
                if changed {
                    state.clone_from(&connection.state);
                }
                changed
            });
        }
    }
}

/// State of one connection.
struct Connection {
    decoder: Decoder<ToHost>,
    messages: VecDeque<ToHost>,
    outgoing: VecDeque<u8>,
    budget: UnsolicitedBudget,
    sessions: Sessions,
    context: GuestContext,
    nonce: u64,
    /// Boot id of the guest that answered the hello; messages before that are ignored.
    boot: Option<String>,
    state: GuestState,
    /// Last network check received, and the generation it is for.
    network: Option<(u64, NetworkCheck)>,
    /// Generation of the last context sent, and when.
    sent: Option<(u64, Instant)>,
    greeting_at: Instant,
    liveness: Liveness,
}

impl Connection {
    fn new(context: GuestContext, timeouts: LivenessTimeouts) -> Self {
        Self {
            decoder: Decoder::new(),
            messages: VecDeque::new(),
            // Ends a frame that an earlier agent may have left incomplete.
            outgoing: VecDeque::from([0]),
            budget: UnsolicitedBudget::new(Instant::now()),
            sessions: Sessions::default(),
            context,
            // Differs from the nonces of earlier agents.
            nonce: Uuid::new_v4().as_u64_pair().0,
            boot: None,
            state: GuestState::Silent,
            network: None,
            sent: None,
            greeting_at: Instant::now(),
            liveness: Liveness::new(timeouts, Instant::now()),
        }
    }

    /// Handles a guest with sessions that has been silent for a while.
    fn check_liveness(&mut self) -> Result<(), LinkError> {
        match self.liveness.poll(Instant::now()) {
            None => {}
            // A guest that does not read gets no further messages.
            Some(LivenessAction::Probe(_)) if self.outgoing.len() > 1 => {}
            Some(LivenessAction::Probe(question)) => self.send(&question)?,
            Some(LivenessAction::Warn(text)) => self.sessions.notify_all(&text),
            Some(LivenessAction::GiveUp(why)) => {
                for close in self.sessions.abort_all(&why) {
                    self.send(&close)?;
                }
            }
        }
        Ok(())
    }

    /// Sends a hello, unless that would end sessions.
    fn greet(&mut self) -> Result<(), LinkError> {
        self.greeting_at =
            Instant::now() + if self.boot.is_some() { REGREETING_PAUSE } else { GREETING_PAUSE };
        // A guest that does not read, or has sessions, is not disturbed.
        if self.sessions.is_empty() && self.outgoing.len() <= 1 {
            self.send(&ToGuest::Hello { nonce: self.nonce })?;
        }
        Ok(())
    }

    fn send(&mut self, message: &ToGuest) -> Result<(), MessageTooLong> {
        let mut bytes = Vec::new();
        encode(message, &mut bytes)?;
        self.outgoing.extend(bytes);
        Ok(())
    }

    fn set_context(&mut self, context: GuestContext) -> Result<(), LinkError> {
        self.context = context;
        if matches!(self.state, GuestState::Failed(_)) {
            return self.send_context();
        }
        self.catch_up()
    }

    /// Sends the context if the guest reports another generation.
    fn catch_up(&mut self) -> Result<(), LinkError> {
        match self.state {
            GuestState::Ready(generation, _) if generation != self.context.generation => self.send_context(),
            _ => Ok(()),
        }
    }

    fn send_context(&mut self) -> Result<(), LinkError> {
        // A guest that is ready for an earlier context remains so until it reports otherwise.
        if matches!(self.state, GuestState::Failed(_)) {
            self.state = GuestState::Greeted;
        }
        let (generation, now) = (self.context.generation, Instant::now());
        // Contexts are long: a guest that keeps reporting another generation does not get it each time.
        if self.sent.is_some_and(|(sent, at)| sent == generation && now < at + CONTEXT_PAUSE) {
            return Ok(());
        }
        self.sent = Some((generation, now));
        let documents = Vec::clone(&self.context.documents);
        Ok(self.send(&ToGuest::Context(documents))?)
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), LinkError> {
        let now = Instant::now();
        self.liveness.heard(now);
        self.decoder.push(bytes, &mut self.messages);
        let mut solicited = 0;
        while let Some(message) = self.messages.pop_front() {
            solicited += self.handle(message)?;
        }
        // A message may arrive in several reads: what the first were charged is refunded with the last.
        self.budget
            .spend(bytes.len(), solicited, now)
            .map_err(|over| LinkError::Misbehaving(over.to_string()))
    }

    /// Handles a message; returns how many bytes of it were solicited.
    fn handle(&mut self, message: ToHost) -> Result<usize, LinkError> {
        if let ToHost::Welcome { nonce, version, boot } = message {
            self.welcome(nonce, version, boot)?;
            return Ok(0);
        }
        if self.boot.is_none() {
            return Ok(0);
        }
        match message {
            ToHost::Welcome { .. } => Ok(0),
            ToHost::Network { generation, reach } => {
                let Reachability { reached, heard } = reach;
                self.network = Some((generation, NetworkCheck { reached, heard }));
                if let GuestState::Ready(ready, network) = &mut self.state
                    && *ready == generation
                {
                    *network = Some(NetworkCheck { reached, heard });
                }
                Ok(0)
            }
            ToHost::Ready { generation } => {
                let network = self.network.filter(|(of, _)| *of == generation).map(|(_, network)| network);
                self.state = GuestState::Ready(generation, network);
                self.catch_up().map(|()| 0)
            }
            ToHost::Failed { reason, .. } => {
                self.state = GuestState::Failed(sanitize(&reason));
                Ok(0)
            }
            message => {
                let (solicited, reply) = self.sessions.handle(message);
                if let Some(reply) = reply {
                    self.send(&reply)?;
                }
                Ok(solicited)
            }
        }
    }

    fn welcome(&mut self, nonce: u64, version: u16, boot: String) -> Result<(), LinkError> {
        if nonce != self.nonce {
            return Ok(());
        }
        if version != PROTOCOL_VERSION {
            let what = format!("uses protocol version {version}, but this agent requires {PROTOCOL_VERSION}");
            return Err(LinkError::Misbehaving(what));
        }
        if self.boot.as_deref() != Some(boot.as_str()) {
            self.boot = Some(boot);
            self.state = GuestState::Greeted;
            self.network = None;
        }
        Ok(())
    }

    fn execute(&mut self, command: LinkCommand) -> Result<(), LinkError> {
        if self.sessions.is_empty() {
            // Silence before the first session does not count.
            self.liveness.heard(Instant::now());
        }
        let message = match command {
            LinkCommand::NewSession { answer, .. } if self.boot.is_none() => {
                let why = "the guest has not answered yet".to_owned();
                drop(answer.send(Err(SessionError::GuestUnavailable(why))));
                None
            }
            command => self.sessions.execute(command),
        };
        if let Some(message) = message
            && let Err(error) = self.send(&message)
        {
            // Nothing was sent, because the command is too long. Only its session ends.
            self.sessions.fail(&message, &error.to_string());
        }
        Ok(())
    }
}

/// A guest's message made safe for logs and terminals: without control characters, truncated.
fn sanitize(text: &str) -> String {
    let letters = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    letters.take(REASON_CHARS_MAX).collect()
}
