//! Whether a guest with sessions still answers. A command may be quiet for hours; a guest that hangs is quiet for ever.
//!
//! A guest that was not heard for a while is asked for a session without a command, which every guest refuses at once. If it does
//! not, those who wait are context, and in the end their sessions are given up.

use std::time::Duration;

use guest::channel::{SessionId, SessionRequest, ToGuest};
use tokio::time::Instant;

/// The number under which no session is ever opened: those in use are below `SESSIONS_MAX`.
const PROBE_SESSION: SessionId = SessionId(u16::MAX);

/// How long a guest with sessions may be quiet.
#[derive(Clone, Copy, Debug)]
pub struct LivenessTimeouts {
    /// Before it is asked whether it is there.
    pub probe: Duration,
    /// Before those who wait are context.
    pub warn: Duration,
    /// Before sessions are given up.
    pub end: Duration,
}

impl Default for LivenessTimeouts {
    /// A translated guest on a busy machine answers within seconds; a person waits for half a minute before doubts arise.
    fn default() -> Self {
        Self { probe: Duration::from_secs(10), warn: Duration::from_secs(30), end: Duration::from_secs(180) }
    }
}

/// What is to be done about a guest that is quiet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LivenessAction {
    /// Ask whether it is there.
    Probe(ToGuest),
    /// Tell those who wait.
    Warn(String),
    GiveUp(String),
}

/// When a guest was last heard, and what was done since.
#[derive(Debug)]
pub struct Liveness {
    timeouts: LivenessTimeouts,
    heard: Instant,
    steps: u8,
}

impl Liveness {
    /// Heard now.
    pub fn new(timeouts: LivenessTimeouts, now: Instant) -> Self {
        Self { timeouts, heard: now, steps: 0 }
    }

    /// The guest said something, or the first session was opened.
    pub fn heard(&mut self, now: Instant) {
        (self.heard, self.steps) = (now, 0);
    }

    /// When [`Liveness::poll`] has something to do next.
    pub fn deadline(&self) -> Instant {
        let LivenessTimeouts { probe, warn, end } = self.timeouts;
        self.heard + [probe, warn, end][usize::from(self.steps.min(2))]
    }

    /// What is to be done at this time.
    pub fn poll(&mut self, now: Instant) -> Option<LivenessAction> {
        if now < self.deadline() {
            return None;
        }
        self.steps += 1;
        let LivenessTimeouts { warn, end, .. } = self.timeouts;
        Some(match self.steps {
            1 => LivenessAction::Probe(ToGuest::Open {
                session: PROBE_SESSION,
                request: SessionRequest::Exec { argv: Vec::new() },
            }),
            2 => LivenessAction::Warn(format!(
                "heddle: the node has not answered for {} s; waiting until {} s have passed, Ctrl-C ends this now\n",
                warn.as_secs(),
                end.as_secs()
            )),
            _ => {
                self.heard(now);
                LivenessAction::GiveUp(format!("the node has not answered for {} s", end.as_secs()))
            }
        })
    }
}
