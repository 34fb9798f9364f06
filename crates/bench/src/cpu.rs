//! The clock of what a decision costs.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// What this thread has used of a processor: others may use the machine at the same time.
pub fn processor_time() -> Result<Duration, nix::Error> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from)
}
