//! The host's side of a guest's channel: hears how the guest stands, tells it a changed context, and runs sessions.
//!
//! A guest is hostile until shown otherwise. What it may make the agent keep is bounded by windows and named limits,
//! and what it says beyond what was asked is paid from a budget (`Budget`); one that overdraws it is not listened
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
use guest::channel::{Decoder, PROTOCOL_VERSION, ToGuest, ToHost, TooLong, encode};
use guest::probe::Reach;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use uuid::Uuid;

use budget::Budget;
pub use inbox::FromGuest;
pub use liveness::Patience;
use liveness::{Liveness, Step};
use sessions::{Command, Sessions};
pub use sessions::{NoSession, Session};

/// Bytes read at once.
const READ_BYTES: usize = 16 * 1024;

/// How long to wait before trying again to connect: QEMU makes the socket before it starts the guest.
const CONNECT_PAUSE: Duration = Duration::from_millis(200);

/// How long a guest that talks too much, or nonsense, is not listened to.
const PENANCE: Duration = Duration::from_secs(30);

/// How often a guest is greeted until it answers: what was said while it started may be lost.
const GREETING_PAUSE: Duration = Duration::from_millis(250);

/// How often a guest without sessions is greeted again: its side may have been restarted, and then waits for it.
const REGREETING_PAUSE: Duration = Duration::from_secs(20);

/// How long those who want a session wait for a guest that has not said anything yet.
const OPEN_PATIENCE: Duration = Duration::from_secs(5);

/// How long a guest has to take a context before it may be sent again.
const CONTEXT_PAUSE: Duration = Duration::from_secs(10);

/// Commands of sessions that may wait. Each session has at most a few at a time.
const COMMANDS_MAX: usize = 64;

/// Letters of what a guest says that are told on.
const REASON_LETTERS_MAX: usize = 200;

/// How a guest stands, by its own words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It has not said anything yet.
    #[default]
    Silent,
    /// It is there, and not ready yet.
    Greeted,
    /// It is as the context of this generation says; what it has found out about its network, if it checks that.
    Ready(u64, Option<NetworkCheck>),
    /// It is not.
    Failed(String),
    /// It talks nonsense; says what.
    Misbehaving(String),
}

/// A context for the guest.
#[derive(Clone)]
pub struct Told {
    /// Its generation.
    pub generation: u64,
    /// The documents, as JSON. Secret.
    pub documents: Arc<Vec<u8>>,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Told(generation {})", self.generation)
    }
}

/// A guest's channel, for those who use it. Dropped, it is closed.
#[derive(Debug)]
pub struct Link {
    standing: watch::Receiver<Standing>,
    commands: mpsc::Sender<Command>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// By which sessions are opened, as long as the link lives.
#[derive(Clone, Debug)]
pub struct Opener {
    commands: mpsc::Sender<Command>,
    standing: watch::Receiver<Standing>,
}

impl Opener {
    /// Opens a session, or says why not.
    pub async fn open(&self, what: Open) -> Result<Session, NoSession> {
        // One that was just found running has yet to be greeted.
        let mut standing = self.standing.clone();
        let _ = timeout(OPEN_PATIENCE, standing.wait_for(|standing| *standing != Standing::Silent)).await;
        sessions::open(&self.commands, what).await
    }
}

impl Link {
    /// Connects to the socket of a virtual machine's port, and again whenever the connection breaks.
    pub fn start(id: Uuid, socket: PathBuf, told: watch::Receiver<Told>) -> Self {
        Self::start_with(id, socket, told, Patience::default())
    }

    /// Likewise, with another patience for guests that hang.
    pub fn start_with(id: Uuid, socket: PathBuf, told: watch::Receiver<Told>, patience: Patience) -> Self {
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let (sender, standing) = watch::channel(Standing::default());
        let conversation = Conversation { id, socket, told, standing: sender, commands: received, patience };
        Self { standing, commands, task: tokio::spawn(conversation.run()) }
    }

    /// How the guest stands, as it changes.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.clone()
    }

    /// For those who open sessions.
    pub fn opener(&self) -> Opener {
        Opener { commands: self.commands.clone(), standing: self.standing.clone() }
    }
}

struct Conversation {
    id: Uuid,
    socket: PathBuf,
    told: watch::Receiver<Told>,
    standing: watch::Sender<Standing>,
    commands: mpsc::Receiver<Command>,
    patience: Patience,
}

/// Why a connection is given up.
#[derive(Debug, Error)]
enum Broken {
    #[error("its channel broke: {0}")]
    Io(#[from] io::Error),
    #[error("its guest {0}")]
    Misbehaving(String),
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

impl Conversation {
    async fn run(mut self) {
        loop {
            let Ok(stream) = UnixStream::connect(&self.socket).await else {
                self.refuse_commands(CONNECT_PAUSE, "its channel is not there yet").await;
                continue;
            };
            let broken = self.converse(stream).await;
            tracing::debug!(vm = %self.id, "{broken}");
            match broken {
                Broken::Misbehaving(what) => {
                    tracing::warn!(vm = %self.id, "its guest {what}: not listened to for {} s", PENANCE.as_secs());
                    self.standing.send_replace(Standing::Misbehaving(what));
                    self.refuse_commands(PENANCE, "its guest talked nonsense").await;
                    self.standing.send_replace(Standing::Silent);
                }
                Broken::Io(_) | Broken::TooLong(_) => {
                    self.standing.send_replace(Standing::Silent);
                    self.refuse_commands(CONNECT_PAUSE, "its channel broke").await;
                }
            }
        }
    }

    /// Waits; whoever wants a session meanwhile is told that there is none.
    async fn refuse_commands(&mut self, pause: Duration, why: &str) {
        let end = sleep(pause);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return,
                command = self.commands.recv() => match command {
                    Some(Command::Open { answer, .. }) => drop(answer.send(Err(NoSession::NoGuest(why.to_owned())))),
                    Some(_) => {}
                    // Nobody can open a session any more: the link is about to be dropped.
                    None => return end.await,
                }
            }
        }
    }

    async fn converse(&mut self, stream: UnixStream) -> Broken {
        let (mut reader, mut writer) = stream.into_split();
        let mut side = HostSide::new(self.told.borrow_and_update().clone(), self.patience);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let (deadline, doubt_at) = (side.greeting_at, side.liveness.at());
            let step = tokio::select! {
                read = reader.read(&mut buffer) => match read {
                    Ok(0) => Err(Broken::Io(io::ErrorKind::UnexpectedEof.into())),
                    Ok(length) => side.hear(&buffer[..length]),
                    Err(error) => Err(error.into()),
                },
                written = writer.write(side.outgoing.as_slices().0), if !side.outgoing.is_empty() => match written {
                    Ok(0) => Err(Broken::Io(io::ErrorKind::WriteZero.into())),
                    Ok(length) => {
                        side.outgoing.drain(..length);
                        Ok(())
                    }
                    Err(error) => Err(error.into()),
                },
                Some(command) = self.commands.recv() => side.obey(command),
                changed = self.told.changed() => match changed {
                    Ok(()) => side.tell(self.told.borrow_and_update().clone()),
                    // Who tells is gone, and so are we in a moment.
                    Err(_) => return std::future::pending().await,
                },
                () = sleep_until(deadline) => side.greet(),
                () = sleep_until(doubt_at), if !side.sessions.is_empty() => side.doubt(),
            };
            if let Err(broken) = step {
                side.sessions.end_all(&broken.to_string());
                return broken;
            }
            self.standing.send_if_modified(|standing| {
                let changed = *standing != side.standing;
                if changed {
                    standing.clone_from(&side.standing);
                }
                changed
            });
        }
    }
}

/// What is known of one connection.
struct HostSide {
    decoder: Decoder<ToHost>,
    messages: VecDeque<ToHost>,
    outgoing: VecDeque<u8>,
    budget: Budget,
    sessions: Sessions,
    told: Told,
    nonce: u64,
    /// The boot of the guest that answered; nothing it said before counts.
    boot: Option<String>,
    standing: Standing,
    /// What the guest said last of its network, and for which context.
    network: Option<(u64, NetworkCheck)>,
    /// The context that was sent last, and when.
    sent: Option<(u64, Instant)>,
    greeting_at: Instant,
    liveness: Liveness,
}

impl HostSide {
    fn new(told: Told, patience: Patience) -> Self {
        Self {
            decoder: Decoder::new(),
            messages: VecDeque::new(),
            // Ends what an agent before us may have begun.
            outgoing: VecDeque::from([0]),
            budget: Budget::new(Instant::now()),
            sessions: Sessions::default(),
            told,
            // Another one than those of agents before us.
            nonce: Uuid::new_v4().as_u64_pair().0,
            boot: None,
            standing: Standing::Silent,
            network: None,
            sent: None,
            greeting_at: Instant::now(),
            liveness: Liveness::new(patience, Instant::now()),
        }
    }

    /// A guest with sessions has been quiet for a while.
    fn doubt(&mut self) -> Result<(), Broken> {
        match self.liveness.step(Instant::now()) {
            None => {}
            // What it does not read need not become more.
            Some(Step::Ask(_)) if self.outgoing.len() > 1 => {}
            Some(Step::Ask(question)) => self.say(&question)?,
            Some(Step::Warn(text)) => self.sessions.note_all(&text),
            Some(Step::End(why)) => {
                for close in self.sessions.give_up_all(&why) {
                    self.say(&close)?;
                }
            }
        }
        Ok(())
    }

    /// Says hello, unless that would end sessions.
    fn greet(&mut self) -> Result<(), Broken> {
        self.greeting_at =
            Instant::now() + if self.boot.is_some() { REGREETING_PAUSE } else { GREETING_PAUSE };
        // A guest that does not read, or works for somebody, is left alone.
        if self.sessions.is_empty() && self.outgoing.len() <= 1 {
            self.say(&ToGuest::Hello { nonce: self.nonce })?;
        }
        Ok(())
    }

    fn say(&mut self, message: &ToGuest) -> Result<(), TooLong> {
        let mut bytes = Vec::new();
        encode(message, &mut bytes)?;
        self.outgoing.extend(bytes);
        Ok(())
    }

    fn tell(&mut self, told: Told) -> Result<(), Broken> {
        self.told = told;
        if matches!(self.standing, Standing::Failed(_)) {
            return self.send_context();
        }
        self.catch_up()
    }

    /// Sends the context if the guest has said that it has another.
    fn catch_up(&mut self) -> Result<(), Broken> {
        match self.standing {
            Standing::Ready(generation, _) if generation != self.told.generation => self.send_context(),
            _ => Ok(()),
        }
    }

    fn send_context(&mut self) -> Result<(), Broken> {
        // One that is ready for an earlier context stays so until it says otherwise.
        if matches!(self.standing, Standing::Failed(_)) {
            self.standing = Standing::Greeted;
        }
        let (generation, now) = (self.told.generation, Instant::now());
        // A context is long: a guest that keeps saying it has another does not get it each time.
        if self.sent.is_some_and(|(sent, at)| sent == generation && now < at + CONTEXT_PAUSE) {
            return Ok(());
        }
        self.sent = Some((generation, now));
        let documents = Vec::clone(&self.told.documents);
        Ok(self.say(&ToGuest::Context(documents))?)
    }

    fn hear(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let now = Instant::now();
        self.liveness.heard(now);
        self.decoder.push(bytes, &mut self.messages);
        let mut asked_for = 0;
        while let Some(message) = self.messages.pop_front() {
            asked_for += self.handle(message)?;
        }
        // A message may come in several pieces: what was paid for the first is given back with the last.
        self.budget.spend(bytes.len(), asked_for, now).map_err(|over| Broken::Misbehaving(over.to_string()))
    }

    /// Takes a message; how many bytes of the stream were asked for by it.
    fn handle(&mut self, message: ToHost) -> Result<usize, Broken> {
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
                let Reach { reached, heard } = reach;
                self.network = Some((generation, NetworkCheck { reached, heard }));
                if let Standing::Ready(ready, network) = &mut self.standing
                    && *ready == generation
                {
                    *network = Some(NetworkCheck { reached, heard });
                }
                Ok(0)
            }
            ToHost::Ready { generation } => {
                let network = self.network.filter(|(of, _)| *of == generation).map(|(_, network)| network);
                self.standing = Standing::Ready(generation, network);
                self.catch_up().map(|()| 0)
            }
            ToHost::Failed { reason, .. } => {
                self.standing = Standing::Failed(plain(&reason));
                Ok(0)
            }
            message => {
                let (asked_for, reply) = self.sessions.hear(message);
                if let Some(reply) = reply {
                    self.say(&reply)?;
                }
                Ok(asked_for)
            }
        }
    }

    fn welcome(&mut self, nonce: u64, version: u16, boot: String) -> Result<(), Broken> {
        if nonce != self.nonce {
            return Ok(());
        }
        if version != PROTOCOL_VERSION {
            let what = format!("speaks version {version} of the channel, this agent {PROTOCOL_VERSION}");
            return Err(Broken::Misbehaving(what));
        }
        if self.boot.as_deref() != Some(boot.as_str()) {
            self.boot = Some(boot);
            self.standing = Standing::Greeted;
            self.network = None;
        }
        Ok(())
    }

    fn obey(&mut self, command: Command) -> Result<(), Broken> {
        if self.sessions.is_empty() {
            // Nobody doubted it before.
            self.liveness.heard(Instant::now());
        }
        let message = match command {
            Command::Open { answer, .. } if self.boot.is_none() => {
                let why = "its guest has not said anything yet".to_owned();
                drop(answer.send(Err(NoSession::NoGuest(why))));
                None
            }
            command => self.sessions.obey(command),
        };
        if let Some(message) = message
            && let Err(error) = self.say(&message)
        {
            // Nothing was sent: a command with too many arguments. Only its session ends.
            self.sessions.cannot(&message, &error.to_string());
        }
        Ok(())
    }
}

/// A guest's words, made fit for a log and a terminal.
fn plain(text: &str) -> String {
    let letters = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    letters.take(REASON_LETTERS_MAX).collect()
}
