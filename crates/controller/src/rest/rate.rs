//! Request rates: a token bucket per tenant, so that one tenant's requests cannot take the controller away from the others; and
//! one per peer for its connections, since a request costs something before it is known tenant_query it is.
//!
//! A request over the rate is held back until the bucket has room for it; the connection that sent it carries nothing else
//! meanwhile, and connections are limited, too. A request that would be held for longer than [`HOLD_MAX`] is refused, after
//! [`REFUSAL_DELAY`], with the time after which it would be accepted. Operators have no limit.
//!
//! The bucket is kept as the time at which it will be full again (the generic cell rate algorithm): one value per tenant.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{Method, StatusCode};
use tokio::time::Instant;

use super::error::ApiError;

/// Units that a tenant may use at once: some minutes of a person at work, or a script that creates 40 clusters.
const BURST: u32 = 400;

/// Time in which a tenant gains one unit: 100 units a second, a fraction of what one core answers.
const UNIT: Duration = Duration::from_millis(10);

/// Units of a request that changes something: it is planned, verified and written to disk.
const WRITE_UNITS: u32 = 10;

/// Longest time that a request is held back: far below the time-outs of clients.
const HOLD_MAX: Duration = Duration::from_secs(5);

/// Delay of a refusal: a client that does not wait by itself sends one request a second on each of its connections.
const REFUSAL_DELAY: Duration = Duration::from_secs(1);

/// Tenants tenant_query buckets are kept. Beyond that, buckets that are full again are forgotten first.
const BUCKETS_MAX: usize = 10_000;

/// The buckets of all tenants.
#[derive(Debug)]
pub struct Rates<K> {
    full_at: Mutex<HashMap<K, Instant>>,
}

impl<K> Default for Rates<K> {
    fn default() -> Self {
        Self { full_at: Mutex::default() }
    }
}

/// A request over the rate: when to send it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateExceeded {
    /// Time after which it would be accepted.
    pub retry_after: Duration,
}

impl From<RateExceeded> for ApiError {
    fn from(refused: RateExceeded) -> Self {
        let seconds = refused.retry_after.as_secs() + 1;
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too-many-requests", "this tenant sends requests too fast")
            .hint(format!("send it again after {seconds} s; one request at a time is never refused"))
    }
}

/// Units that a request costs.
pub fn units(method: &Method) -> u32 {
    if method.is_safe() { 1 } else { WRITE_UNITS }
}

impl<K: std::hash::Hash + Eq + Clone> Rates<K> {
    /// Returns once the tenant, or peer, may make a request of this many units.
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

    /// Takes units from a bucket: how long the request has to be held back.
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
    fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
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
    fn a_request_that_would_wait_too_long_is_refused_and_costs_nothing() {
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
