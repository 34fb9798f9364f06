//! The host's connection of a guest's channel: hears how the guest stands, tells it a changed context, and runs sessions.
//!
//! A guest is hostile until shown otherwise. What it may make the agent keep is bounded by windows and named limits,
//! and what it says beyond what was asked is paid from a budget (`UnsolicitedBudget`); one that overdraws it is not listened
//! to for a while.

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
use controller_api::session::Open;
use guest::channel::{Decoder, MessageTooLong, PROTOCOL_VERSION, ToGuest, ToHost, encode};
use guest::probe::Reachability;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use uuid::Uuid;

use budget::UnsolicitedBudget;
pub use inbox::SessionEvent;
pub use liveness::LivenessTimeouts;
use liveness::{Liveness, LivenessAction};
use sessions::{LinkCommand, Sessions};
pub use sessions::{Session, SessionError};

/// Bytes read at once.
const READ_BYTES: usize = 16 * 1024;

/// How long to wait before trying again to connect: QEMU makes the socket before it starts the guest.
const CONNECT_PAUSE: Duration = Duration::from_millis(200);

/// How long a guest that talks too much, or nonsense, is not listened to.
const MISBEHAVIOUR_PAUSE: Duration = Duration::from_secs(30);

/// How often a guest is greeted until it answers: what was said while it started may be lost.
const GREETING_PAUSE: Duration = Duration::from_millis(250);

/// How often a guest without sessions is greeted again: its connection may have been restarted, and then waits for it.
const REGREETING_PAUSE: Duration = Duration::from_secs(20);

/// How long those who want a session wait for a guest that has not said anything yet.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a guest has to take a context before it may be sent again.
const CONTEXT_PAUSE: Duration = Duration::from_secs(10);

/// Commands of sessions that may wait. Each session has at most a few at a time.
const COMMANDS_MAX: usize = 64;

/// Letters of what a guest says that are context on.
const REASON_CHARS_MAX: usize = 200;

/// How a guest stands, by its own words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GuestState {
    /// It has not said anything yet.
    #[default]
    Silent,
    /// It is there, and not ready yet.
    Greeted,
    /// It is as the context of this generation says; what it has found out about its network, if it checks that.
    Ready(u64, Option<NetworkCheck>),
    Failed(String),
    /// It talks nonsense; says what.
    Misbehaving(String),
}

/// A context for the guest.
#[derive(Clone)]
pub struct GuestContext {
    pub generation: u64,
    /// The documents, as JSON. Secret.
    pub documents: Arc<Vec<u8>>,
}

impl std::fmt::Debug for GuestContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GuestContext(generation {})", self.generation)
    }
}

/// A guest's channel, for those who use it. Dropped, it is closed.
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

/// By which sessions are opened, as long as the link lives.
#[derive(Clone, Debug)]
pub struct SessionOpener {
    commands: mpsc::Sender<LinkCommand>,
    state: watch::Receiver<GuestState>,
}

impl SessionOpener {
    /// Opens a session, or says why not.
    pub async fn open(&self, request: Open) -> Result<Session, SessionError> {
        // One that was just found running has yet to be greeted.
        let mut state = self.state.clone();
        let _ = timeout(OPEN_TIMEOUT, state.wait_for(|state| *state != GuestState::Silent)).await;
        sessions::open(&self.commands, request).await
    }
}

impl GuestLink {
    /// Connects to the socket of a virtual machine's port, and again whenever the connection breaks.
    pub fn start(id: Uuid, socket: PathBuf, context: watch::Receiver<GuestContext>) -> Self {
        Self::start_with(id, socket, context, LivenessTimeouts::default())
    }

    /// Likewise, with another timeouts for guests that hang.
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

    /// How the guest stands, as it changes.
    pub fn state(&self) -> watch::Receiver<GuestState> {
        self.state.clone()
    }

    /// For those who open sessions.
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

/// Why a connection is given up.
#[derive(Debug, Error)]
enum LinkError {
    #[error("its channel broke: {0}")]
    Io(#[from] io::Error),
    #[error("its guest {0}")]
    Misbehaving(String),
    #[error(transparent)]
    MessageTooLong(#[from] MessageTooLong),
}

impl LinkTask {
    async fn run(mut self) {
        loop {
            let Ok(stream) = UnixStream::connect(&self.socket).await else {
                self.reject_commands(CONNECT_PAUSE, "its channel is not there yet").await;
                continue;
            };
            let broken = self.run_connection(stream).await;
            tracing::debug!(vm = %self.id, "{broken}");
            match broken {
                LinkError::Misbehaving(what) => {
                    tracing::warn!(vm = %self.id, "its guest {what}: not listened to for {} s", MISBEHAVIOUR_PAUSE.as_secs());
                    self.state.send_replace(GuestState::Misbehaving(what));
                    self.reject_commands(MISBEHAVIOUR_PAUSE, "its guest talked nonsense").await;
                    self.state.send_replace(GuestState::Silent);
                }
                LinkError::Io(_) | LinkError::MessageTooLong(_) => {
                    self.state.send_replace(GuestState::Silent);
                    self.reject_commands(CONNECT_PAUSE, "its channel broke").await;
                }
            }
        }
    }

    /// Waits; whoever wants a session meanwhile is context that there is none.
    async fn reject_commands(&mut self, pause: Duration, why: &str) {
        let end = sleep(pause);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return,
                command = self.commands.recv() => match command {
                    Some(LinkCommand::Open { answer, .. }) => drop(answer.send(Err(SessionError::GuestUnavailable(why.to_owned())))),
                    Some(_) => {}
                    // Nobody can open a session any more: the link is about to be dropped.
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
                    // Who tells is gone, and so are we in a moment.
                    Err(_) => return std::future::pending().await,
                },
                () = sleep_until(deadline) => connection.greet(),
                () = sleep_until(liveness_deadline), if !connection.sessions.is_empty() => connection.check_liveness(),
            };
            if let Err(broken) = step {
                connection.sessions.end_all(&broken.to_string());
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

/// What is known of one connection.
struct Connection {
    decoder: Decoder<ToHost>,
    messages: VecDeque<ToHost>,
    outgoing: VecDeque<u8>,
    budget: UnsolicitedBudget,
    sessions: Sessions,
    context: GuestContext,
    nonce: u64,
    /// The boot of the guest that answered; nothing it said before counts.
    boot: Option<String>,
    state: GuestState,
    /// What the guest said last of its network, and for which context.
    network: Option<(u64, NetworkCheck)>,
    /// The context that was sent last, and when.
    sent: Option<(u64, Instant)>,
    greeting_at: Instant,
    liveness: Liveness,
}

impl Connection {
    fn new(context: GuestContext, timeouts: LivenessTimeouts) -> Self {
        Self {
            decoder: Decoder::new(),
            messages: VecDeque::new(),
            // Ends what an agent before us may have begun.
            outgoing: VecDeque::from([0]),
            budget: UnsolicitedBudget::new(Instant::now()),
            sessions: Sessions::default(),
            context,
            // Another one than those of agents before us.
            nonce: Uuid::new_v4().as_u64_pair().0,
            boot: None,
            state: GuestState::Silent,
            network: None,
            sent: None,
            greeting_at: Instant::now(),
            liveness: Liveness::new(timeouts, Instant::now()),
        }
    }

    /// A guest with sessions has been quiet for a while.
    fn check_liveness(&mut self) -> Result<(), LinkError> {
        match self.liveness.poll(Instant::now()) {
            None => {}
            // What it does not read need not become more.
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

    /// Says hello, unless that would end sessions.
    fn greet(&mut self) -> Result<(), LinkError> {
        self.greeting_at =
            Instant::now() + if self.boot.is_some() { REGREETING_PAUSE } else { GREETING_PAUSE };
        // A guest that does not read, or works for somebody, is left alone.
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

    /// Sends the context if the guest has said that it has another.
    fn catch_up(&mut self) -> Result<(), LinkError> {
        match self.state {
            GuestState::Ready(generation, _) if generation != self.context.generation => self.send_context(),
            _ => Ok(()),
        }
    }

    fn send_context(&mut self) -> Result<(), LinkError> {
        // One that is ready for an earlier context stays so until it says otherwise.
        if matches!(self.state, GuestState::Failed(_)) {
            self.state = GuestState::Greeted;
        }
        let (generation, now) = (self.context.generation, Instant::now());
        // A context is long: a guest that keeps saying it has another does not get it each time.
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
        // A message may come in several pieces: what was paid for the first is given back with the last.
        self.budget
            .spend(bytes.len(), solicited, now)
            .map_err(|over| LinkError::Misbehaving(over.to_string()))
    }

    /// Takes a message; how many bytes of the stream were asked for by it.
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
            let what = format!("speaks version {version} of the channel, this agent {PROTOCOL_VERSION}");
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
            // Nobody doubted it before.
            self.liveness.heard(Instant::now());
        }
        let message = match command {
            LinkCommand::Open { answer, .. } if self.boot.is_none() => {
                let why = "its guest has not said anything yet".to_owned();
                drop(answer.send(Err(SessionError::GuestUnavailable(why))));
                None
            }
            command => self.sessions.execute(command),
        };
        if let Some(message) = message
            && let Err(error) = self.send(&message)
        {
            // Nothing was sent: a command with too many arguments. Only its session ends.
            self.sessions.fail(&message, &error.to_string());
        }
        Ok(())
    }
}

/// A guest's words, made fit for a log and a terminal.
fn sanitize(text: &str) -> String {
    let letters = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    letters.take(REASON_CHARS_MAX).collect()
}
