//! Amounts of memory.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

/// Amount of memory in whole MiB, written with its unit, such as `384M` or `2G`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, pattern = "^[0-9]+[MG]$", example = "384M")]
pub struct MemorySize(u32);

/// The text is not a [`MemorySize`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid amount of memory {text:?}: expected a number followed by M or G, such as 384M")]
pub struct InvalidMemorySize {
    text: String,
}

impl MemorySize {
    pub const fn from_mib(mib: u32) -> Self {
        Self(mib)
    }

    pub const fn mib(self) -> u32 {
        self.0
    }

    pub const fn bytes(self) -> u64 {
        self.0 as u64 * 1024 * 1024
    }
}

impl FromStr for MemorySize {
    type Err = InvalidMemorySize;
    fn from_str(text: &str) -> Result<Self, InvalidMemorySize> {
        let error = || InvalidMemorySize { text: text.chars().take(40).collect() };
        let upper = text.to_ascii_uppercase();
        let bare = upper.strip_suffix("IB").or(upper.strip_suffix('B')).unwrap_or(&upper);
        let (digits, unit) = match (bare.strip_suffix('M'), bare.strip_suffix('G')) {
            (Some(digits), _) => (digits, 1),
            (_, Some(digits)) => (digits, 1024),
            _ => return Err(error()),
        };
        let count: u32 = digits.parse().map_err(|_| error())?;
        count.checked_mul(unit).map(Self::from_mib).ok_or_else(error)
    }
}

impl TryFrom<String> for MemorySize {
    type Error = InvalidMemorySize;
    fn try_from(text: String) -> Result<Self, InvalidMemorySize> {
        text.parse()
    }
}

impl From<MemorySize> for String {
    fn from(size: MemorySize) -> Self {
        size.to_string()
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            mib if mib >= 1024 && mib % 1024 == 0 => f.pad(&format!("{}G", mib / 1024)),
            mib => f.pad(&format!("{mib}M")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_sizes_round_trip() {
        for (text, mib, written) in [
            ("384M", 384, "384M"),
            ("2G", 2048, "2G"),
            ("1024M", 1024, "1G"),
            ("512MiB", 512, "512M"),
            ("1g", 1024, "1G"),
        ] {
            let size: MemorySize = text.parse().unwrap();
            assert_eq!((size.mib(), size.to_string().as_str()), (mib, written));
        }
        for bad in ["", "384", "M", "-1M", "1.5G", "9999999G", "384K"] {
            assert!(bad.parse::<MemorySize>().is_err(), "{bad}");
        }
    }
}
