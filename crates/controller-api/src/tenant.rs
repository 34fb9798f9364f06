//! Tenants and the tokens by which they are known.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Name;
use crate::quota::{Quota, QuotaChange, Usage};

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
    pub usage: Usage,
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
    /// Whose it is; `None` is an operator's.
    pub tenant: Option<Name>,
    /// Since when.
    #[schema(value_type = String)]
    pub created: Timestamp,
}

/// Asks for a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Whose it is to be.
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
