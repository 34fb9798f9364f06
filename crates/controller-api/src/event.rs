//! Events: what happened, in order.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Name;

/// Event of a cluster, a tenant or the site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Sequence number, ascending; `after` of an event query refers to it.
    pub number: i64,
    /// Time of the event (RFC 3339).
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// Name of the tenant concerned; absent for an event of the site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
    /// Name of the cluster concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Name>,
    /// Stable machine-readable kind, such as `cluster.ready`.
    pub kind: String,
    /// Human-readable description of the event.
    pub text: String,
}
