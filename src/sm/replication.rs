//! What a master remembers, on its way to the standby managers: both ends.
//!
//! A standby manager opens one stream to the control socket of each declared manager ([`SmRequest::Follow`]); only the master
//! serves it. The master sends what it remembers once, then every change, before the change takes effect: it waits until all
//! standby managers of its *set* have stored it. One that does not answer within [`PATIENCE`], or whose connection ended that long
//! ago, leaves the set, which is stored before the master goes on; it enters again when it has stored everything anew.
//!
//! A standby manager whose memory is *current* when it takes over continues like a manager that was restarted. Otherwise it reads the
//! fabric first ([`Following::is_current`] has the rule).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use anyhow::Context;
use control_protocol::{Replica, SmRequest};
use ib_transport::Waker;
use ib_wire::Guid;
use serde_json::json;
use subnet_manager::PersistentState;

use super::state;
use crate::control_socket::{self, Replies};

/// How long the master waits for a standby manager.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two beats.
const BEAT_INTERVAL: Duration = Duration::from_millis(250);
/// A stream without a beat for this long has no master at its end.
const QUIET_MAX: Duration = Duration::from_secs(1);
/// Pause before a standby manager connects again.
const RETRY: Duration = Duration::from_millis(300);

/// A declared manager: the GUID of its port, and its control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredManager {
    pub port: Guid,
    /// `None` for a manager that shares no memory.
    pub control: Option<PathBuf>,
}

impl FromStr for DeclaredManager {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (guid, control) = match text.split_once('=') {
            Some((guid, path)) if !path.is_empty() => (guid, Some(PathBuf::from(path))),
            Some(_) => return Err(format!("{text:?} names no socket after the =")),
            None => (text, None),
        };
        let port = guid.parse().map_err(|error| format!("{guid:?} is not a port GUID: {error}"))?;
        Ok(Self { port, control })
    }
}

/// The standby managers of a master.
#[derive(Debug)]
pub struct Followers {
    /// From 1 on: a standby manager that has stored nothing yet remembers 0.
    sequence: u64,
    connected: BTreeMap<Guid, Follower>,
    next_beat: Duration,
    /// A change that has not reached all of the set, and since when.
    pending: Option<Duration>,
    /// Standby managers that left the set, since the daemon started.
    pub left: u64,
}

#[derive(Debug)]
struct Follower {
    stream: Stream,
    /// Whether it has stored everything once.
    is_in_set: bool,
    remembered: u64,
}

/// The connection to a standby manager.
#[derive(Debug)]
enum Stream {
    Open(Replies),
    /// The manager may still take its memory for current.
    Ended {
        at: Duration,
    },
}

impl Follower {
    /// Sends something, or notices that the connection has ended.
    fn send(&mut self, now: Duration, replica: &Replica) {
        if let Stream::Open(replies) = &self.stream
            && !replies.send(Ok(json!(replica)))
        {
            self.stream = Stream::Ended { at: now };
        }
    }

    fn is_gone(&self, now: Duration) -> bool {
        match self.stream {
            Stream::Open(_) => false,
            Stream::Ended { at } => !self.is_in_set || now >= at + PATIENCE,
        }
    }
}

impl Default for Followers {
    fn default() -> Self {
        Self { sequence: 1, connected: BTreeMap::new(), next_beat: Duration::ZERO, pending: None, left: 0 }
    }
}

impl Followers {
    /// The standby managers that store every change before it takes effect.
    pub fn set(&self) -> BTreeSet<Guid> {
        self.connected.iter().filter(|(_, it)| it.is_in_set).map(|(guid, _)| *guid).collect()
    }

    /// A standby manager connected: it gets everything.
    pub fn add(&mut self, manager: Guid, stream: Replies, memory: &PersistentState, node: Option<Guid>) {
        let whole = serde_json::to_string(memory)
            .map(|state| Replica::Whole { sequence: self.sequence, state, node })
            .map_err(|error| error.to_string());
        let is_sent = match whole {
            Ok(whole) => stream.send(Ok(json!(whole))),
            Err(error) => stream.send(Err(error.into())),
        };
        if is_sent {
            // A former connection of the same manager ends here, but the manager may still take its memory for current: it
            // stays in the set.
            let stream = Stream::Open(stream);
            let follower = match self.connected.remove(&manager) {
                Some(known) => Follower { stream, ..known },
                None => Follower { stream, is_in_set: false, remembered: 0 },
            };
            self.connected.insert(manager, follower);
        }
    }

    /// Sends a change that is stored here to all. It takes effect when [`Followers::is_remembered`].
    pub fn send(&mut self, now: Duration, change: &str) {
        self.sequence += 1;
        let change = Replica::Change { sequence: self.sequence, change: change.to_owned() };
        // Those that cannot be reached leave the set when the patience is over.
        for follower in self.connected.values_mut() {
            follower.send(now, &change);
        }
        self.pending = Some(now);
    }

    /// A standby manager has stored everything up to a number.
    pub fn remembered(&mut self, manager: Guid, sequence: u64) -> Result<(), String> {
        let follower =
            self.connected.get_mut(&manager).ok_or_else(|| format!("{manager} does not follow"))?;
        if sequence > self.sequence {
            return Err(format!("at most {} can have been remembered, got {sequence}", self.sequence));
        }
        follower.remembered = follower.remembered.max(sequence);
        follower.is_in_set |= sequence == self.sequence;
        Ok(())
    }

    /// Whether all of the set have stored the last change.
    pub fn is_remembered(&mut self) -> bool {
        let is_known = self.connected.values().all(|it| !it.is_in_set || it.remembered == self.sequence);
        if is_known {
            self.pending = None;
        }
        is_known
    }

    /// Removes those that did not store a change in time. Returns whether there were any: then the set must be stored before
    /// the change takes effect.
    pub fn leave_out_silent(&mut self, now: Duration) -> bool {
        let Some(since) = self.pending.filter(|since| now >= *since + PATIENCE) else { return false };
        tracing::debug!(?since, "standby managers did not answer in time");
        self.leave_out(now, |follower, sequence| follower.remembered < sequence)
    }

    /// Sends beats, and removes standby managers whose connection ended.
    pub fn beat(&mut self, now: Duration) {
        if now < self.next_beat {
            return;
        }
        self.next_beat = now + BEAT_INTERVAL;
        let left = &mut self.left;
        self.connected.retain(|guid, follower| {
            follower.send(now, &Replica::Beat { remembered: follower.remembered });
            let is_gone = follower.is_gone(now);
            if is_gone && follower.is_in_set {
                tracing::warn!(manager = %guid, "a standby manager is gone");
                *left += 1;
            }
            !is_gone
        });
    }

    /// Ends all connections: this manager is not the master any more, for a while at least.
    pub fn hang_up(&mut self, now: Duration) {
        for follower in self.connected.values_mut() {
            if matches!(follower.stream, Stream::Open(_)) {
                follower.stream = Stream::Ended { at: now };
            }
        }
    }

    fn leave_out(&mut self, now: Duration, is_late: impl Fn(&Follower, u64) -> bool) -> bool {
        let before = self.connected.len();
        let sequence = self.sequence;
        self.connected.retain(|guid, follower| {
            let stays = !(follower.is_in_set && is_late(follower, sequence));
            if !stays {
                follower.send(now, &Replica::LeftOut);
                crate::print_warning(format_args!(
                    "standby manager {guid} did not answer within {PATIENCE:?}: it is left out until it has caught up"
                ));
            }
            stays
        });
        self.left += (before - self.connected.len()) as u64;
        before != self.connected.len()
    }
}

/// What arrives from the control socket of a declared manager.
struct Incoming {
    /// Index of the stream.
    from: usize,
    connection: u64,
    replica: Option<Replica>,
}

/// A standby manager's end.
pub struct Following {
    incoming: Receiver<Incoming>,
    /// To the threads that confirm what was stored.
    confirm: Vec<Sender<u64>>,
    /// How often all connections were opened anew. Older ones end.
    round: Arc<AtomicU64>,
    /// Whether something was discarded.
    lacks_some: bool,
    source: Option<Source>,
    /// When the master last knew that everything it sent was stored here.
    confirmed_at: Option<Duration>,
    /// When a master sent its last beat, since the wait began.
    beat_at: Option<Duration>,
}

/// The stream that is listened to.
struct Source {
    from: usize,
    connection: u64,
    /// What the master remembers.
    memory: PersistentState,
    node: Option<Guid>,
    sequence: u64,
}

impl Following {
    /// Connects to all declared managers, again and again. `own` is the port GUID of this one.
    pub fn start(own: Guid, managers: &[DeclaredManager], waker: &Waker) -> anyhow::Result<Self> {
        let (sender, incoming) = mpsc::channel();
        let mut confirm = Vec::new();
        let round = Arc::new(AtomicU64::new(0));
        for (from, path) in managers.iter().filter_map(|manager| manager.control.clone()).enumerate() {
            let (confirmed, to_confirm) = mpsc::channel::<u64>();
            confirm.push(confirmed);
            let (sender, waker, address) = (sender.clone(), waker.clone(), path.clone());
            let round = Arc::clone(&round);
            std::thread::Builder::new()
                .name("follow".into())
                .spawn(move || follow(own, from, &path, &round, &sender, &waker))
                .context("cannot start a thread")?;
            std::thread::Builder::new()
                .name("confirm".into())
                .spawn(move || confirm_all(own, &address, &to_confirm))
                .context("cannot start a thread")?;
        }
        Ok(Self {
            incoming,
            confirm,
            round,
            lacks_some: false,
            source: None,
            confirmed_at: None,
            beat_at: None,
        })
    }

    /// Takes what has arrived. `store` makes a memory durable. Returns whether the memory has changed.
    pub fn receive(
        &mut self,
        now: Duration,
        mut store: impl FnMut(&PersistentState) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let mut has_changed = false;
        while let Ok(Incoming { from, connection, replica }) = self.incoming.try_recv() {
            let is_source = self
                .source
                .as_ref()
                .is_some_and(|source| (source.from, source.connection) == (from, connection));
            match replica {
                Some(Replica::Whole { sequence, state, node }) => {
                    let memory: PersistentState =
                        serde_json::from_str(&state).context("invalid memory of the master")?;
                    self.confirmed_at = None;
                    self.source = Some(Source { from, connection, memory, node, sequence });
                    self.store(&mut store)?;
                    has_changed = true;
                }
                Some(Replica::Change { sequence, change }) if is_source => {
                    if let Some(source) = &mut self.source {
                        source.memory = state::with_change(&source.memory, &change)?;
                        source.sequence = sequence;
                    }
                    self.store(&mut store)?;
                    has_changed = true;
                }
                Some(Replica::Beat { remembered }) if is_source => {
                    self.beat_at = Some(now);
                    if self.source.as_ref().is_some_and(|source| source.sequence == remembered) {
                        self.confirmed_at = Some(now);
                    }
                }
                Some(Replica::LeftOut) if is_source => self.confirmed_at = None,
                // The master ended, or nothing can be said about it; what it confirmed last counts.
                None | Some(_) => {}
            }
        }
        Ok(has_changed)
    }

    /// Forgets what has arrived: this manager is the master itself.
    pub fn discard(&mut self) {
        while self.incoming.try_recv().is_ok() {
            self.lacks_some = true;
        }
    }

    /// A wait begins, and with it the question whether the master sends beats.
    pub fn begin_wait(&mut self) {
        self.beat_at = None;
        if std::mem::take(&mut self.lacks_some) {
            self.connect_anew();
        }
    }

    /// Whether a master sent beats during this wait, and stopped.
    pub fn is_abandoned(&self, now: Duration) -> bool {
        self.beat_at.is_some_and(|at| now >= at + QUIET_MAX)
    }

    /// Something is missing of what arrived, or it is not known when it arrived: a master has to send everything again.
    pub fn connect_anew(&mut self) {
        self.round.fetch_add(1, Ordering::Relaxed);
        self.confirmed_at = None;
        self.beat_at = None;
        self.source = None;
    }

    /// Whether the memory is that of the master that answered last at `heard_at`: a master leaves out a standby manager only when it had
    /// no confirmation for [`PATIENCE`], and it confirmed less than half of that before it was last heard.
    pub fn is_current(&self, heard_at: Option<Duration>) -> bool {
        match (self.confirmed_at, heard_at) {
            (Some(confirmed), Some(heard)) => heard <= confirmed + PATIENCE / 2,
            _ => false,
        }
    }

    fn store(
        &mut self,
        store: &mut impl FnMut(&PersistentState) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Some(Source { from, memory, node, sequence, .. }) = &self.source else { return Ok(()) };
        let mut memory = memory.clone();
        if let Some(node) = node {
            // The location of the own node is that of this manager, not of the master.
            memory.bindings.rebind(None, *node);
        }
        store(&memory)?;
        if let Some(confirm) = self.confirm.get(*from) {
            // The thread ends with the process only.
            let _ = confirm.send(*sequence);
        }
        Ok(())
    }
}

/// Reads the stream of one manager for as long as the process lives.
fn follow(own: Guid, from: usize, path: &Path, round: &AtomicU64, sender: &Sender<Incoming>, waker: &Waker) {
    for connection in 0.. {
        let this_round = round.load(Ordering::Relaxed);
        if let Ok(replies) = control_socket::request::<Replica>(path, &SmRequest::Follow { manager: own }) {
            for replica in replies {
                let Ok(replica) = replica else { break };
                if round.load(Ordering::Relaxed) != this_round {
                    break;
                }
                if sender.send(Incoming { from, connection, replica: Some(replica) }).is_err() {
                    return;
                }
                waker.wake();
            }
        }
        if sender.send(Incoming { from, connection, replica: None }).is_err() {
            return;
        }
        std::thread::sleep(RETRY);
    }
}

/// Confirms to one manager what was stored, the latest number only.
fn confirm_all(own: Guid, path: &Path, to_confirm: &Receiver<u64>) {
    while let Ok(mut sequence) = to_confirm.recv() {
        while let Ok(later) = to_confirm.try_recv() {
            sequence = later;
        }
        let request = SmRequest::Remembered { manager: own, sequence };
        if let Err(error) = control_socket::request_one::<serde_json::Value>(path, &request) {
            tracing::info!("cannot confirm to {}: {error:#}", path.display());
        }
    }
}
