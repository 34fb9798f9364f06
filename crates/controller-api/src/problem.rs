//! Errors of the REST interface: problem details of RFC 9457.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Problem details (RFC 9457), sent as `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Stable machine-readable type, such as `no-such-cluster`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Human-readable summary of the status.
    pub title: String,
    /// HTTP status of the response.
    pub status: u16,
    /// Human-readable description of this occurrence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Field or parameter of the request that is invalid.
    #[serde(default, alias = "place", skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Suggested next step for the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Problem {
    /// The media type of problem details.
    pub const MEDIA_TYPE: &str = "application/problem+json";
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.detail.as_deref().unwrap_or(&self.title))?;
        if let Some(field) = &self.field {
            write!(f, " (in {field})")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}
