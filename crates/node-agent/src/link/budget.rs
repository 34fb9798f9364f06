//! How much a guest may say that nobody asked for.

use thiserror::Error;
use tokio::time::Instant;

/// What may come at once: a few hundred messages, or the rest of what was on its way when the connection was made.
const BYTES_MAX: usize = 256 * 1024;

/// What may come per second in the long run.
const BYTES_PER_SECOND: f64 = 16.0 * 1024.0;

/// Bytes that may still come unasked.
#[derive(Debug)]
pub struct Budget {
    left: f64,
    at: Instant,
}

/// More came.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("says more than was asked for: {BYTES_MAX} bytes at once, or over {} KiB/s", BYTES_PER_SECOND / 1024.0)]
pub struct Overdrawn;

impl Budget {
    /// A full one.
    pub const fn new(now: Instant) -> Self {
        Self { left: BYTES_MAX as f64, at: now }
    }

    /// Pays for bytes that nobody asked for.
    pub fn spend(&mut self, bytes: usize, now: Instant) -> Result<(), Overdrawn> {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * BYTES_PER_SECOND;
        self.at = now;
        self.left = (self.left + earned).min(BYTES_MAX as f64) - bytes as f64;
        if self.left < 0.0 { Err(Overdrawn) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_is_over_at_once_and_a_trickle_never() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        for second in 0..1000 {
            assert_eq!(budget.spend(10_000, start + Duration::from_secs(second)), Ok(()));
        }
        let mut flooded = Budget::new(start);
        assert_eq!(flooded.spend(BYTES_MAX, start), Ok(()));
        assert_eq!(flooded.spend(1, start), Err(Overdrawn));
    }
}
