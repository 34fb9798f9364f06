//! Tenants and their API tokens.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Name;
use crate::quota::{Quota, QuotaChange, QuotaUsage};

/// Tenant: the owner of clusters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    /// Unique id of the tenant; never reused, unlike its name.
    pub id: Uuid,
    /// Unique name of the tenant.
    pub name: Name,
    /// Time of the creation (RFC 3339).
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// Number of clusters of the tenant.
    pub clusters: u32,
    /// Resource limits of the tenant.
    pub quota: Quota,
    /// Resources that the tenant uses.
    pub usage: QuotaUsage,
}

/// Request to create a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTenant {
    /// Unique name of the tenant.
    pub name: Name,
    /// Limits that differ from the defaults.
    #[serde(default)]
    pub quota: QuotaChange,
}

/// Request to change a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantChange {
    /// Limits to set; absent limits keep their values.
    pub quota: QuotaChange,
}

/// API token without its secret, which is returned once at creation and stored as a hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Unique id, used to revoke the token.
    pub id: Uuid,
    /// Human-readable name of the token.
    pub name: Name,
    /// Name of the tenant it authenticates; absent for an operator token.
    pub tenant: Option<Name>,
    /// Time of the creation (RFC 3339).
    #[schema(value_type = String)]
    pub created: Timestamp,
    /// Time at which the token expires (RFC 3339); absent if it never does.
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
    /// Time of the last use (RFC 3339), accurate to the hour; absent if never used.
    #[schema(value_type = Option<String>)]
    pub last_used: Option<Timestamp>,
}

/// Lifetime of a token: `"never"` for no expiry, or `{"seconds": N}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TokenLifetime {
    /// The token does not expire.
    Never,
    /// Seconds from its creation, 1 to 315,360,000 (ten years).
    Seconds(u64),
}

impl TokenLifetime {
    /// Lifetime unless the request names another: 90 days.
    pub const DEFAULT: Self = Self::Seconds(90 * 24 * 60 * 60);
}

impl Default for TokenLifetime {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Request to create a token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Name of the token; derived from its id by default.
    #[serde(default)]
    pub name: Option<Name>,
    /// Lifetime of the token; 90 days by default.
    #[serde(default)]
    pub lifetime: TokenLifetime,
    /// Name of the tenant to authenticate; defaults to the tenant of the caller.
    #[serde(default)]
    pub tenant: Option<Name>,
    /// Whether to create an operator token. Explicit, so that an omitted tenant never grants all rights.
    #[serde(default)]
    pub operator: bool,
}

/// Newly created token with its secret, which is not shown again.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct IssuedToken {
    /// Description of the token.
    pub token: Token,
    /// Secret to send as `Authorization: Bearer …`.
    pub secret: String,
}

impl std::fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedToken").field("token", &self.token).finish_non_exhaustive()
    }
}
