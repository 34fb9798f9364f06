//! Errors of the REST interface: problem details of RFC 9457.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::limit::Limit;

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

/// Problem details of the controller: those of RFC 9457 with extension members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiProblem {
    #[serde(flatten)]
    pub problem: Problem,
    /// Limit that the request exceeds, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
}

impl ApiProblem {
    /// The media type of problem details.
    pub const MEDIA_TYPE: &str = Problem::MEDIA_TYPE;
}

impl From<Problem> for ApiProblem {
    /// A problem without extension members.
    fn from(problem: Problem) -> Self {
        Self { problem, limit: None }
    }
}

impl std::fmt::Display for ApiProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.problem.fmt(f)
    }
}

impl std::error::Error for ApiProblem {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_limit_is_a_member_of_the_problem() {
        let mut document = json!({
            "type": "cannot-guarantee", "title": "Conflict", "status": 409,
            "limit": {
                "kind": "guarantee", "requested_nodes": 2, "requested_bps": 5,
                "cause": {
                    "kind": "link-bandwidth", "port": { "node": "0x0002c90300100000", "port": 1 },
                    "needed_bps": 5, "available_bps": 3,
                },
            },
        });
        let problem: ApiProblem = serde_json::from_value(document.clone()).unwrap();
        assert!(matches!(problem.limit, Some(Limit::Guarantee { requested_nodes: 2, .. })), "{problem:?}");
        assert_eq!(serde_json::to_value(&problem).unwrap(), document);
        document.as_object_mut().unwrap().remove("limit");
        let without: ApiProblem = serde_json::from_value(document.clone()).unwrap();
        assert_eq!((&without.limit, serde_json::to_value(&without).unwrap()), (&None, document));
    }
}
