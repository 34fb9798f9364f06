//! Token bucket for bytes that a guest sends unsolicited.

use thiserror::Error;
use tokio::time::Instant;

/// Burst size in bytes: a few hundred messages, or what was in flight when the connection was made.
const BYTES_MAX: usize = 256 * 1024;

/// Sustained rate in bytes per second.
const BYTES_PER_SECOND: f64 = 16.0 * 1024.0;

/// Bytes that a guest may still send unsolicited.
#[derive(Debug)]
pub struct UnsolicitedBudget {
    left: f64,
    at: Instant,
}

/// A guest exceeded its budget.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("sends more unsolicited data than {BYTES_MAX} bytes at once or {} KiB/s", BYTES_PER_SECOND / 1024.0)]
pub struct BudgetExceeded;

impl UnsolicitedBudget {
    /// A full bucket.
    pub const fn new(now: Instant) -> Self {
        Self { left: BYTES_MAX as f64, at: now }
    }

    /// Charges `bytes` received and refunds `solicited` bytes, those of messages that the agent requested.
    pub fn spend(&mut self, bytes: usize, solicited: usize, now: Instant) -> Result<(), BudgetExceeded> {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * BYTES_PER_SECOND;
        self.at = now;
        let left = (self.left + earned).min(BYTES_MAX as f64) - bytes as f64;
        self.left = (left + solicited as f64).min(BYTES_MAX as f64);
        if self.left < 0.0 { Err(BudgetExceeded) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_exceeds_the_budget_and_a_trickle_does_not() {
        let start = Instant::now();
        let mut budget = UnsolicitedBudget::new(start);
        for second in 0..1000 {
            assert_eq!(budget.spend(10_000, 0, start + Duration::from_secs(second)), Ok(()));
        }
        let mut flooded = UnsolicitedBudget::new(start);
        assert_eq!(flooded.spend(BYTES_MAX, 0, start), Ok(()));
        assert_eq!(flooded.spend(1, 0, start), Err(BudgetExceeded));
    }

    #[test]
    fn solicited_bytes_are_refunded_across_reads() {
        let start = Instant::now();
        let mut budget = UnsolicitedBudget::new(start);
        for _ in 0..1000 {
            assert_eq!(budget.spend(15_000, 0, start), Ok(()), "the first piece");
            assert_eq!(budget.spend(1_000, 16_000, start), Ok(()), "the last, with the rest");
        }
        assert_eq!(budget.spend(BYTES_MAX, 0, start), Ok(()), "nothing was used up");
    }
}
