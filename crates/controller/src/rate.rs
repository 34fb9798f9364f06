//! Rate limits: a token bucket per tenant, so that one tenant cannot take the controller away from the others, and one
//! per peer for connections, which cost something before the tenant is known.
//!
//! A request over the rate is delayed until its bucket has room; its connection carries nothing else meanwhile, and
//! connections are limited, too. A request that would be delayed for longer than [`HOLD_MAX`] is rejected after
//! [`REFUSAL_DELAY`], with the time after which it would be accepted. Operators have no limit.
//!
//! A bucket is stored as the time at which it will be full again (generic cell rate algorithm): one value per tenant.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::Method;
use tokio::time::Instant;

/// Units that a tenant may use at once: some minutes of a person at work, or a script that creates 40 clusters.
const BURST: u32 = 400;

/// Time in which a tenant gains one unit: 100 units per second, a fraction of what one core can serve.
const UNIT: Duration = Duration::from_millis(10);

/// Units of a change: it is planned, verified and written to disk.
const WRITE_UNITS: u32 = 10;

/// Longest delay of a request: far below the timeouts of clients.
const HOLD_MAX: Duration = Duration::from_secs(5);

/// Delay of a rejection: a client that does not wait by itself then sends one request per second and connection.
const REFUSAL_DELAY: Duration = Duration::from_secs(1);

/// Most buckets. Beyond that, full ones are dropped.
const BUCKETS_MAX: usize = 10_000;

/// Token buckets by tenant or peer.
#[derive(Debug)]
pub struct Rates<K> {
    full_at: Mutex<HashMap<K, Instant>>,
}

impl<K> Default for Rates<K> {
    fn default() -> Self {
        Self { full_at: Mutex::default() }
    }
}

/// A request over the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateExceeded {
    /// Time after which it would be accepted.
    pub retry_after: Duration,
}

/// Units of a request.
pub fn units(method: &Method) -> u32 {
    if method.is_safe() { 1 } else { WRITE_UNITS }
}

impl<K: std::hash::Hash + Eq + Clone> Rates<K> {
    /// Returns once the tenant or peer may send a request of `units`; delays it if necessary.
    pub async fn admit(&self, tenant: &K, units: u32) -> Result<(), RateExceeded> {
        match self.reserve(tenant, units, Instant::now()) {
            Ok(hold) => {
                tokio::time::sleep(hold).await;
                Ok(())
            }
            Err(refused) => {
                tokio::time::sleep(REFUSAL_DELAY).await;
                Err(refused)
            }
        }
    }

    /// Takes units from a bucket; returns the delay of the request.
    fn reserve(&self, tenant: &K, units: u32, now: Instant) -> Result<Duration, RateExceeded> {
        let mut full_at = self.buckets();
        let refilled = full_at.get(tenant).map_or(now, |at| (*at).max(now)) + UNIT * units;
        let hold = (refilled - now).saturating_sub(UNIT * BURST);
        if hold > HOLD_MAX {
            return Err(RateExceeded { retry_after: hold - HOLD_MAX });
        }
        full_at.insert(tenant.clone(), refilled);
        if full_at.len() > BUCKETS_MAX {
            full_at.retain(|_, at| *at > now);
        }
        Ok(hold)
    }

    fn buckets(&self) -> MutexGuard<'_, HashMap<K, Instant>> {
        self.full_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_follows_the_rate() {
        let (rates, now) = (Rates::default(), Instant::now());
        for _ in 0..BURST {
            assert_eq!(rates.reserve(&"a", 1, now), Ok(Duration::ZERO));
        }
        assert_eq!(rates.reserve(&"a", 1, now), Ok(UNIT));
        assert_eq!(rates.reserve(&"a", WRITE_UNITS, now), Ok(UNIT * (1 + WRITE_UNITS)));
        let later = now + UNIT * BURST * 2;
        assert_eq!(
            rates.reserve(&"a", BURST, later),
            Ok(Duration::ZERO),
            "a full bucket holds a burst, not more"
        );
        assert_eq!(rates.reserve(&"a", 1, later), Ok(UNIT));
    }

    #[test]
    fn a_rejected_request_costs_no_units() {
        let (rates, now) = (Rates::default(), Instant::now());
        let room = BURST + (HOLD_MAX.as_millis() / UNIT.as_millis()) as u32;
        assert_eq!(rates.reserve(&"a", room, now), Ok(HOLD_MAX));
        for _ in 0..3 {
            assert_eq!(rates.reserve(&"a", 1, now), Err(RateExceeded { retry_after: UNIT }));
        }
        assert_eq!(rates.reserve(&"a", 1, now + UNIT), Ok(HOLD_MAX));
    }

    #[test]
    fn tenants_do_not_share_a_bucket() {
        let (rates, now) = (Rates::default(), Instant::now());
        while rates.reserve(&"a", BURST, now).is_ok() {}
        assert_eq!(rates.reserve(&"b", BURST, now), Ok(Duration::ZERO));
    }
}
