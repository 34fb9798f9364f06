//! Rate limit for the datagrams of a tenant.

use std::time::Duration;

/// Datagrams that are accepted at once: twice what stock opensm sends to bring up 256 nodes with service levels.
pub(crate) const BURST: u32 = 1 << 17;
/// Datagrams accepted per second on average: less than a tenth of what one core can answer.
pub(crate) const PER_SECOND: u32 = 1 << 14;
/// Tokens that must be available before reading is resumed: several times what is read at once, because datagrams
/// that find no token are lost.
const RESUMED: u32 = 1 << 10;

/// A token bucket with one token for each datagram. A view has its own; a server of several views of one tenant keeps
/// a further one for all of them, so that the rate limits the tenant and not the view.
#[derive(Debug)]
pub struct TokenBucket {
    tokens: u32,
    /// Up to when tokens were added.
    filled: Duration,
}

impl TokenBucket {
    /// Makes a full bucket.
    pub fn new() -> Self {
        Self { tokens: BURST, filled: Duration::ZERO }
    }

    /// Takes a token at time `now` (time since the caller's epoch); returns false if there is none.
    pub fn take(&mut self, now: Duration) -> bool {
        self.fill(now);
        let has = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        has
    }

    /// Takes further tokens for datagrams that one datagram caused, as far as there are any.
    pub fn charge(&mut self, copies: usize) {
        self.tokens = self.tokens.saturating_sub(u32::try_from(copies).unwrap_or(u32::MAX));
    }

    /// If the bucket is empty, the time at which reading should resume.
    pub fn empty_until(&self) -> Option<Duration> {
        let wait = Duration::from_secs(1) * RESUMED / PER_SECOND;
        (self.tokens == 0).then(|| self.filled + wait)
    }

    fn fill(&mut self, now: Duration) {
        let Some(passed) = now.checked_sub(self.filled) else { return };
        let due = passed.as_nanos() * u128::from(PER_SECOND) / NANOS;
        let tokens = u32::try_from(due).unwrap_or(BURST).saturating_add(self.tokens);
        if tokens >= BURST {
            (self.tokens, self.filled) = (BURST, now);
        } else if due > 0 {
            self.tokens = tokens;
            let given = (due * NANOS).div_ceil(u128::from(PER_SECOND));
            self.filled += Duration::from_nanos(u64::try_from(given).unwrap_or(u64::MAX));
        }
    }
}

impl Default for TokenBucket {
    fn default() -> Self {
        Self::new()
    }
}

/// Nanoseconds of a second.
const NANOS: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_burst_the_rate_is_limited() {
        let mut bucket = TokenBucket::new();
        let taken = |bucket: &mut TokenBucket, now| (0..).take_while(|_| bucket.take(now)).count() as u32;
        assert_eq!(taken(&mut bucket, Duration::from_secs(1)), BURST);
        assert_eq!(taken(&mut bucket, Duration::from_secs(1)), 0);
        let on = bucket.empty_until().unwrap();
        assert_eq!(taken(&mut bucket, on), RESUMED);
        let mut bucket = TokenBucket { tokens: 0, filled: Duration::from_secs(1) };
        let mut later = 0;
        for millisecond in 1..=1000 {
            later += taken(&mut bucket, Duration::from_millis(1000 + millisecond));
        }
        assert!((PER_SECOND - 1..=PER_SECOND).contains(&later), "{later}");
        assert_eq!(taken(&mut bucket, Duration::from_secs(100)), BURST, "more are not saved up");
    }
}
