//! Who asks.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use controller_api::Name;
use controller_api::tenant::{IssuedToken, Token};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::refusal::Refusal;
use crate::site::Site;
use crate::store::{StoreError, TenantRef};

/// What tokens start with, so that people and scanners know what they found.
const PREFIX: &str = "heddle_";

/// Who asks, known by a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Runs the site.
    Operator,
    /// Owns clusters.
    Tenant(TenantRef),
}

impl Caller {
    /// Only operators go on.
    pub fn operator(&self) -> Result<(), Refusal> {
        match self {
            Self::Operator => Ok(()),
            Self::Tenant(_) => {
                Err(Refusal::new(StatusCode::FORBIDDEN, "not-allowed", "only operators may do that"))
            }
        }
    }

    /// Whose cluster is meant: a tenant's own, or the one an operator names.
    pub async fn tenant(&self, site: &Site, named: Option<&Name>) -> Result<TenantRef, Refusal> {
        match (self, named) {
            (Self::Tenant(own), None) => Ok(own.clone()),
            (Self::Tenant(own), Some(named)) if own.name == *named => Ok(own.clone()),
            // Whether the other tenant exists is not told.
            (Self::Tenant(_), Some(named)) => Err(Refusal::missing("tenant", named)),
            (Self::Operator, Some(named)) => {
                site.store.tenant_find(named).await?.ok_or_else(|| Refusal::missing("tenant", named))
            }
            (Self::Operator, None) => {
                Err(Refusal::invalid("tenant", "an operator has no clusters of their own")
                    .hint("say whose: ?tenant=NAME, or --tenant NAME"))
            }
        }
    }

    /// Whom to tell of: a tenant of its own, an operator of all.
    pub fn scope(&self) -> Option<Uuid> {
        match self {
            Self::Operator => None,
            Self::Tenant(tenant) => Some(tenant.id),
        }
    }
}

impl FromRequestParts<Arc<Site>> for Caller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, site: &Arc<Site>) -> Result<Self, Refusal> {
        let unknown = |detail| {
            Refusal::new(StatusCode::UNAUTHORIZED, "not-known", detail)
                .hint("send a token that `heddle token create` gave: Authorization: Bearer …")
        };
        let value = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let secret = value
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, secret)| secret.trim())
            .ok_or_else(|| unknown("there is no token"))?;
        let token = site.store.token_by_hash(hash(secret)).await?;
        match token {
            Some((_, Some(tenant))) => Ok(Self::Tenant(tenant)),
            Some((_, None)) => Ok(Self::Operator),
            None => Err(unknown("the token is not known; it may have been revoked")),
        }
    }
}

/// Makes a token and keeps its hash.
pub async fn issue(site: &Site, tenant: Option<TenantRef>) -> Result<IssuedToken, StoreError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|_| StoreError::Random)?;
    let mut secret = PREFIX.to_owned();
    for byte in bytes {
        // Writing to a text cannot fail.
        let _ = write!(secret, "{byte:02x}");
    }
    let id = tenant.as_ref().map(|tenant| tenant.id);
    let token =
        Token { id: Uuid::new_v4(), tenant: tenant.map(|it| it.name), created: site.store.now().wall };
    site.store.token_create(&token, id, hash(&secret)).await?;
    Ok(IssuedToken { token, secret })
}

/// The token behind a secret.
pub async fn read_token(site: &Site, secret: &str) -> Result<Option<Token>, StoreError> {
    Ok(site.store.token_by_hash(hash(secret.trim())).await?.map(|(token, _)| token))
}

/// The secret has 256 random bits: a plain hash cannot be reversed by guessing, and equal time is given by looking it up.
fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}
