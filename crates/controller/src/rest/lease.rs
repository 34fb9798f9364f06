//! Lifetime of streams: bounded by their tokens.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use tokio::sync::watch;
use uuid::Uuid;

use super::access::Caller;
use super::error::ApiError;
use crate::site::Site;

/// Interval at which open streams check whether their token has expired. Revocations are noticed at once.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(30);

/// Validity of a stream or a waiting query: ends with the token that started it.
#[derive(Clone, Debug)]
pub struct Lease {
    site: Arc<Site>,
    token: Uuid,
    revocations: watch::Receiver<u64>,
}

impl Lease {
    /// A lease for a token that was valid after `revocations` was subscribed, so that no revocation is missed.
    pub fn new(site: Arc<Site>, token: Uuid, revocations: watch::Receiver<u64>) -> Self {
        Self { site, token, revocations }
    }

    /// Returns when the token is revoked or has expired.
    pub async fn ended(&mut self) {
        loop {
            let revoked = tokio::time::timeout(EXPIRY_INTERVAL, self.revocations.changed()).await;
            let is_valid = self.site.store.token_is_valid(self.token, self.site.store.now().wall).await;
            match (is_valid, revoked) {
                (Ok(true), _) => {}
                (Ok(false), _) => return,
                (Err(error), Err(_)) => tracing::error!("{}", crate::chain(&error)),
                // A token was revoked, and it is not known whether it was this one: end the stream.
                (Err(error), Ok(_)) => return tracing::error!("{}", crate::chain(&error)),
            }
        }
    }
}

impl FromRequestParts<Arc<Site>> for Lease {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, site: &Arc<Site>) -> Result<Self, ApiError> {
        if parts.extensions.get::<Self>().is_none() {
            Caller::from_request_parts(parts, site).await?;
        }
        let lease = parts.extensions.get::<Self>().cloned();
        Ok(lease.expect("an authenticated caller has a lease"))
    }
}
