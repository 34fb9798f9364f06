//! Names of tenants, clusters, hosts and images.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

/// Name of a tenant, cluster, host or image: a DNS label of 1 to 40 characters, usable in host names and URL paths.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, pattern = "^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$", example = "blue")]
pub struct Name(String);

/// Most characters of a name: with the number of a node appended, a host name stays within 63.
const LEN_MAX: usize = 40;

/// The text is not a [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "invalid name {text:?}: expected 1 to 40 lower-case letters, digits and hyphens, without a hyphen at either end"
)]
pub struct InvalidResourceName {
    text: String,
}

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = InvalidResourceName;
    fn from_str(text: &str) -> Result<Self, InvalidResourceName> {
        let plain =
            text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        let ends = !text.starts_with('-') && !text.ends_with('-');
        if plain && ends && !text.is_empty() && text.len() <= LEN_MAX {
            Ok(Self(text.to_owned()))
        } else {
            // The error echoes a bounded part of the input.
            Err(InvalidResourceName { text: text.chars().take(2 * LEN_MAX).collect() })
        }
    }
}

impl TryFrom<String> for Name {
    type Error = InvalidResourceName;
    fn try_from(text: String) -> Result<Self, InvalidResourceName> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_labels() {
        for good in ["a", "blue", "blue-2", "0", &"x".repeat(40)] {
            assert_eq!(good.parse::<Name>().map(String::from), Ok(good.to_owned()));
        }
        for bad in ["", "-a", "a-", "Blue", "a.b", "a b", "ä", "../etc", &"x".repeat(41)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }
}
