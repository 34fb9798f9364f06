//! Wall-clock time for people, and a clock without steps for durations.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Source of time.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Time of day. It may step in either direction: never decide by the difference of two values.
    fn wall(&self) -> Timestamp;
    /// Time since an arbitrary instant in the life of this process. Never steps.
    fn monotonic(&self) -> Duration;
}

/// The clocks of the operating system.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    /// Starts the monotonic clock at zero.
    pub fn start() -> Arc<Self> {
        Arc::new(Self { started: Instant::now() })
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Total time that controllers have run on a store, in whole milliseconds: a clock that continues at most a few seconds
/// before the instant at which the previous process was killed, and that nobody can set. Measured durations may be longer
/// than real ones, never shorter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uptime(i64);

impl Uptime {
    pub const fn from_ms(ms: i64) -> Self {
        Self(ms)
    }

    pub const fn ms(self) -> i64 {
        self.0
    }

    /// The instant that lies `duration` earlier.
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0 - duration.as_millis() as i64)
    }

    /// Time elapsed since `earlier`; zero if that lies in the future.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0).max(0) as u64)
    }
}

/// An instant by both clocks: `wall` is shown to people, `uptime` decides on durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub wall: Timestamp,
    pub uptime: Uptime,
}

/// An instant by both clocks: `at` decides on durations, `wall` is shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    pub at: Instant,
    pub wall: Timestamp,
}

impl ClockReading {
    /// Reads both clocks.
    pub fn now() -> Self {
        Self { at: Instant::now(), wall: Timestamp::now() }
    }

    /// Whether more than `limit` lies between this instant and `now`.
    pub fn is_older(&self, limit: Duration, now: &Self) -> bool {
        now.at.saturating_duration_since(self.at) > limit
    }
}
