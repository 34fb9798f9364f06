//! Detects guests that hang while sessions are open. A command may be silent for hours, but its guest must still answer.
//!
//! A silent guest is probed with a request for a session with an empty command, which every guest refuses at once. If it does not
//! answer, users are warned, and finally their sessions are ended.

use std::time::Duration;

use guest::channel::{SessionId, SessionRequest, ToGuest};
use tokio::time::Instant;

/// Session number used for probes. Real sessions have numbers below `SESSIONS_MAX`.
const PROBE_SESSION: SessionId = SessionId(u16::MAX);

/// How long a guest with sessions may be silent before each step.
#[derive(Clone, Copy, Debug)]
pub struct LivenessTimeouts {
    /// Until it is probed.
    pub probe: Duration,
    /// Until users are warned.
    pub warn: Duration,
    /// Until its sessions are ended.
    pub end: Duration,
}

impl Default for LivenessTimeouts {
    /// A guest under TCG on a busy machine answers within seconds.
    fn default() -> Self {
        Self { probe: Duration::from_secs(10), warn: Duration::from_secs(30), end: Duration::from_secs(180) }
    }
}

/// What to do about a silent guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LivenessAction {
    /// Send this message, which a live guest answers.
    Probe(ToGuest),
    /// Send this text to the users of all sessions.
    Warn(String),
    GiveUp(String),
}

/// Time of the last sign of life, and the steps taken since.
#[derive(Debug)]
pub struct Liveness {
    timeouts: LivenessTimeouts,
    heard: Instant,
    steps: u8,
}

impl Liveness {
    /// Starts with a sign of life at `now`.
    pub fn new(timeouts: LivenessTimeouts, now: Instant) -> Self {
        Self { timeouts, heard: now, steps: 0 }
    }

    /// Records a sign of life: the guest sent something, or the first session was opened.
    pub fn heard(&mut self, now: Instant) {
        (self.heard, self.steps) = (now, 0);
    }

    /// When to call [`Liveness::poll`] next.
    pub fn deadline(&self) -> Instant {
        let LivenessTimeouts { probe, warn, end } = self.timeouts;
        self.heard + [probe, warn, end][usize::from(self.steps.min(2))]
    }

    /// The action due at `now`, if any.
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
                "heddle: the node has not answered for {} s; giving up after {} s, press Ctrl-C to end now\n",
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
