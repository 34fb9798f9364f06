//! Authentication of requests by tokens.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use controller_api::Name;
use controller_api::tenant::{IssuedToken, Token, TokenLifetime};
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::error::ApiError;
use super::lease::Lease;
use crate::rate;
use crate::site::Site;
use crate::store::{StoreError, TenantRef};

/// Prefix of tokens, so that people and secret scanners recognize them.
const PREFIX: &str = "heddle_";

/// Accuracy of the last use of a token: it is written at most once in this time.
const LAST_USE_STEP: SignedDuration = SignedDuration::from_hours(1);

/// Authenticated sender of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    Operator,
    Tenant(TenantRef),
}

impl Caller {
    /// Fails with 403 unless the caller is an operator.
    pub fn operator(&self) -> Result<(), ApiError> {
        match self {
            Self::Operator => Ok(()),
            Self::Tenant(_) => Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "not-allowed",
                "only operators may send this request",
            )),
        }
    }

    /// The tenant that a request concerns: the caller's own, or the one that an operator names.
    pub async fn tenant(&self, site: &Site, named: Option<&Name>) -> Result<TenantRef, ApiError> {
        match (self, named) {
            (Self::Tenant(own), None) => Ok(own.clone()),
            (Self::Tenant(own), Some(named)) if own.name == *named => Ok(own.clone()),
            // Whether the other tenant exists is not disclosed.
            (Self::Tenant(_), Some(named)) => Err(ApiError::not_found("tenant", named)),
            (Self::Operator, Some(named)) => {
                site.store.tenant_find(named).await?.ok_or_else(|| ApiError::not_found("tenant", named))
            }
            (Self::Operator, None) => Err(ApiError::invalid("tenant", "operators must name the tenant")
                .hint("add ?tenant=NAME, or --tenant NAME")),
        }
    }

    /// Tenant whose records the caller may see; `None` for all.
    pub fn scope(&self) -> Option<Uuid> {
        match self {
            Self::Operator => None,
            Self::Tenant(tenant) => Some(tenant.id),
        }
    }
}

impl FromRequestParts<Arc<Site>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, site: &Arc<Site>) -> Result<Self, ApiError> {
        let unknown = |detail| {
            ApiError::new(StatusCode::UNAUTHORIZED, "not-known", detail)
                .hint("send a token from `heddle token create` as Authorization: Bearer …")
        };
        let value = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let secret = value
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, secret)| secret.trim())
            .ok_or_else(|| unknown("the request has no token"))?;
        // Subscribe before the lookup, so that the lease notices every later revocation.
        let revocations = site.revocations.subscribe();
        let token = site.store.token_by_hash(hash(secret)).await?;
        let (token, tenant) = token.ok_or_else(|| unknown("the token is unknown or was revoked"))?;
        let now = site.store.now().wall;
        if token.expires.is_some_and(|expires| expires <= now) {
            return Err(unknown("the token has expired"));
        }
        if let Some(tenant) = &tenant {
            // The token may have been revoked since.
            if site.with_observed(|observed| observed.superseded.is_some()) {
                return Err(ApiError::superseded());
            }
            site.rates.admit(&tenant.id, rate::units(&parts.method)).await?;
        }
        note_use(site, &token, now).await;
        parts.extensions.insert(Lease::new(Arc::clone(site), token.id, revocations));
        Ok(tenant.map_or(Self::Operator, Self::Tenant))
    }
}

/// Records the use of a token now and then. A store that cannot be written must not prevent reading.
async fn note_use(site: &Site, token: &Token, now: Timestamp) {
    let is_known = token.last_used.is_some_and(|at| now.duration_since(at).abs() < LAST_USE_STEP);
    if !is_known && let Err(error) = site.store.token_used(token.id, now).await {
        tracing::warn!("{}", crate::chain(&error));
    }
}

/// Properties of a token to create.
#[derive(Debug)]
pub struct NewSecret {
    /// `None` for an operator token.
    pub tenant: Option<TenantRef>,
    /// Derived from the id by default.
    pub name: Option<Name>,
    pub lifetime: TokenLifetime,
}

/// Creates a token and stores the hash of its secret.
pub async fn issue(site: &Site, new: NewSecret) -> Result<IssuedToken, StoreError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|_| StoreError::Random)?;
    let mut secret = PREFIX.to_owned();
    for byte in bytes {
        // Writing to a text cannot fail.
        let _ = write!(secret, "{byte:02x}");
    }
    let (id, created) = (Uuid::new_v4(), site.store.now().wall);
    let by_id = || format!("token-{}", &id.simple().to_string()[..8]).parse();
    let name = match new.name {
        Some(name) => name,
        None => {
            by_id().map_err(|_| StoreError::InvalidValue { what: "id of a token", value: id.to_string() })?
        }
    };
    let expires = match new.lifetime {
        TokenLifetime::Never => None,
        // A time beyond the range of timestamps means never.
        TokenLifetime::Seconds(seconds) => created.checked_add(std::time::Duration::from_secs(seconds)).ok(),
    };
    let owner = new.tenant.as_ref().map(|tenant| tenant.id);
    let tenant = new.tenant.map(|tenant| tenant.name);
    let token = Token { id, name, tenant, created, expires, last_used: None };
    site.store.token_create(&token, owner, hash(&secret)).await?;
    Ok(IssuedToken { token, secret })
}

/// The token of a secret, if it is valid.
pub async fn read_token(site: &Site, secret: &str) -> Result<Option<Token>, StoreError> {
    let now = site.store.now().wall;
    let token = site.store.token_by_hash(hash(secret.trim())).await?.map(|(token, _)| token);
    Ok(token.filter(|token| token.expires.is_none_or(|expires| expires > now)))
}

/// The secret has 256 random bits, so a plain hash cannot be reversed by guessing, and the lookup by hash needs no
/// constant-time comparison.
fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}
