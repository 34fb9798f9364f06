//! What happened, in order.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Name;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its place in the order; asking for what came after one gives the next ones.
    pub number: i64,
    /// When.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// Whom it concerns; `None` concerns the site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
    /// Which cluster it concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Name>,
    /// What, in a word that programs can rely on, such as `cluster.ready`.
    pub kind: String,
    /// What, for people.
    pub text: String,
}
