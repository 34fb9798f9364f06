//! The CPU time of a decision.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// CPU time of this thread. Unlike elapsed time, it does not depend on other load of the machine.
pub fn processor_time() -> Result<Duration, nix::Error> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from)
}
