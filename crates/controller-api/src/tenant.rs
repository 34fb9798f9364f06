//! Tenants and the tokens by which they are known.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Name;
use crate::quota::{Quota, QuotaChange, QuotaUsage};

/// Who owns clusters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    /// Its id; names may be used again, ids never.
    pub id: Uuid,
    /// What it is called.
    pub name: Name,
    /// Since when.
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// Clusters it has now.
    pub clusters: u32,
    /// What it may have at once.
    pub quota: Quota,
    /// What it has of that.
    pub usage: QuotaUsage,
}

/// Asks for a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTenant {
    /// What it is to be called.
    pub name: Name,
    /// Limits other than the default ones.
    #[serde(default)]
    pub quota: QuotaChange,
}

/// Asks for a tenant to be changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantChange {
    /// Limits from now on; those that are not given stay as they are.
    pub quota: QuotaChange,
}

/// A token, without its secret: that is told once and kept as a hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// By which it can be revoked.
    pub id: Uuid,
    /// Its name, by which people tell it from others.
    pub name: Name,
    /// Whose it is; `None` is an operator's.
    pub tenant: Option<Name>,
    /// Since when.
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// Time at which it stops working; never without.
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
    /// Time of its last use, to the hour; never without.
    #[schema(value_type = Option<String>)]
    pub last_used: Option<Timestamp>,
}

/// How long a token is valid: `"never"` ends, or `{"seconds": N}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TokenLifetime {
    /// It never expires.
    Never,
    /// Seconds from its creation.
    Seconds(u64),
}

impl TokenLifetime {
    /// That of a token for which nobody says another: 90 days.
    pub const DEFAULT: Self = Self::Seconds(90 * 24 * 60 * 60);
}

impl Default for TokenLifetime {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Asks for a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Name of the token; made from its id without.
    #[serde(default)]
    pub name: Option<Name>,
    /// How long it is valid; 90 days without.
    #[serde(default)]
    pub lifetime: TokenLifetime,
    /// Whose it is to be; a tenant that asks need not say.
    #[serde(default)]
    pub tenant: Option<Name>,
    /// An operator's instead: has to be said, so that a field that was forgotten gives nobody all rights.
    #[serde(default)]
    pub operator: bool,
}

/// A token that was just made. The only time its secret is told.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct IssuedToken {
    /// Which it is.
    pub token: Token,
    /// What to send as `Authorization: Bearer …`.
    pub secret: String,
}

impl std::fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedToken").field("token", &self.token).finish_non_exhaustive()
    }
}
