//! How errors are told: problem details of RFC 9457.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What was wrong, where, and what would work; sent as `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// A word that programs can rely on, such as `no-such-cluster`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The same for people, in general.
    pub title: String,
    /// Status of the response.
    pub status: u16,
    /// What was wrong this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Where: the field or parameter.
    #[serde(default, alias = "place", skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What would work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Problem {
    /// The media type of problems.
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
