//! Replies: a value, or the reason why there is none.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::sm::PlanRejection;

/// The reason why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct ControlError {
    /// The reason in words, for people.
    pub text: String,
    /// For programs, where they have to distinguish reasons.
    pub code: Option<PlanRejection>,
}

impl From<String> for ControlError {
    fn from(text: String) -> Self {
        Self { text, code: None }
    }
}

impl From<PlanRejection> for ControlError {
    fn from(rejection: PlanRejection) -> Self {
        Self { text: rejection.to_string(), code: Some(rejection) }
    }
}

/// A line that is neither a value nor an error.
#[derive(Debug, Error)]
#[error("malformed reply")]
pub struct MalformedReply(#[source] Option<serde_json::Error>);

/// Fields of a reply line. They are read directly: an untagged enum would buffer a plan, and lose its integer keys.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields<T> {
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    ok: Option<T>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<PlanRejection>,
}

const fn none<T>() -> Option<T> {
    None
}

/// Writes a reply as one line, without the line end.
///
/// # Errors
///
/// Fails if the value cannot be written as JSON, for example because a map has keys that are neither strings nor numbers.
pub fn write_reply<T: Serialize>(reply: Result<T, ControlError>) -> serde_json::Result<String> {
    let fields = match reply {
        Ok(value) => Fields { ok: Some(value), error: None, code: None },
        Err(ControlError { text, code }) => Fields { ok: None, error: Some(text), code },
    };
    serde_json::to_string(&fields)
}

/// Reads a line that the server sent: the value, or the server's reason why there is none.
///
/// # Errors
///
/// Fails if the line is not a reply with a value of this type.
pub fn read_reply<T: DeserializeOwned>(line: &str) -> Result<Result<T, ControlError>, MalformedReply> {
    let fields: Fields<T> = serde_json::from_str(line).map_err(|error| MalformedReply(Some(error)))?;
    match fields {
        Fields { ok: Some(value), error: None, .. } => Ok(Ok(value)),
        Fields { ok: None, error: Some(text), code } => Ok(Err(ControlError { text, code })),
        _ => Err(MalformedReply(None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_as_they_were_written() {
        let rejected = ControlError::from(PlanRejection::FabricChanged);
        for reply in [Ok(7), Err(ControlError::from("no".to_owned())), Err(rejected)] {
            let line = write_reply(reply.clone()).unwrap();
            assert_eq!(read_reply::<u32>(&line).unwrap(), reply, "{line}");
        }
        assert_eq!(write_reply(Ok("pong")).unwrap(), r#"{"ok":"pong"}"#);
    }

    #[test]
    fn malformed_replies_are_rejected() {
        for line in ["", "{}", "7", r#"{"ok":1,"error":"x"}"#, r#"{"ok":"x"}"#, r#"{"ok":1,"more":2}"#] {
            assert!(read_reply::<u32>(line).is_err(), "{line}");
        }
        assert!(read_reply::<u32>(r#"{"ok":1}"#).is_ok());
    }
}
