//! What time it is: on the wall, for people, and since when, for durations.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Where time comes from.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The time of day. It may step in either direction: never subtract two of them to decide something.
    fn wall(&self) -> Timestamp;
    /// Time since some instant in the life of this process. Never steps.
    fn monotonic(&self) -> Duration;
}

/// The clocks of the operating system.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    /// Clocks that start now.
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

/// For how long controllers have run on a store, in whole milliseconds: a clock that goes on where the process before was
/// killed, at most a few seconds earlier, and that nobody can set. Durations measured by it may come out longer than they were,
/// never shorter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uptime(i64);

impl Uptime {
    /// So many milliseconds.
    pub const fn from_ms(ms: i64) -> Self {
        Self(ms)
    }

    /// In milliseconds.
    pub const fn ms(self) -> i64 {
        self.0
    }

    /// An instant that was `duration` before.
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0 - duration.as_millis() as i64)
    }

    /// Time that has passed since an earlier instant; nothing since a later one.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0).max(0) as u64)
    }
}

/// An instant, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// For people.
    pub wall: Timestamp,
    /// For durations.
    pub uptime: Uptime,
}
