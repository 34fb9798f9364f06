//! Quantities in scenario files: sizes, times, rates.

use std::fmt;
use std::str::FromStr;

use fabric_model::tenancy::{Bandwidth, Nanoseconds, ParseNanosecondsError};
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::traffic::Time;

/// Why a text in a scenario file is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    #[error("a size must be a number of bytes such as 4096, 64k or 1M, got {0:?}")]
    Size(String),
    #[error(transparent)]
    Time(#[from] ParseNanosecondsError),
    #[error("a rate must be `full`, `guaranteed` or greater than 0 such as 10G, got {0:?}")]
    Rate(String),
    #[error("the rate `promised` was renamed to `guaranteed`")]
    RenamedRate,
}

/// A size in bytes. Written as a number, or as text with the binary suffix `k` or `M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(u64);

impl Size {
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (number, shift) = match text.trim().strip_suffix(['k', 'K']) {
            Some(number) => (number, 10),
            None => text.trim().strip_suffix('M').map_or((text.trim(), 0), |number| (number, 20)),
        };
        let bytes: Option<u64> = number.trim().parse().ok();
        let bytes = bytes.and_then(|bytes| bytes.checked_mul(1 << shift));
        bytes.map(Self).ok_or_else(|| QuantityError::Size(text.to_owned()))
    }
}

/// A length of simulated time, written as text such as `50us` or `1ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(Time);

impl Span {
    pub const fn from_time(time: Time) -> Self {
        Self(time)
    }

    pub const fn time(self) -> Time {
        self.0
    }
}

impl FromStr for Span {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let latency: Nanoseconds = text.parse()?;
        Ok(Self(Time::from_ns(latency.ns())))
    }
}

/// The rate of each node of a workload. Written as `full`, `guaranteed` or a rate such as `10G`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendRate {
    /// As much as the fabric accepts.
    #[default]
    Full,
    /// The guaranteed rate of the cluster.
    Guaranteed,
    /// This many bits per second, headers included.
    Fixed(Bandwidth),
}

impl FromStr for SendRate {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        match text {
            "full" => Ok(Self::Full),
            "guaranteed" => Ok(Self::Guaranteed),
            "promised" => Err(QuantityError::RenamedRate),
            rate => match rate.parse::<Bandwidth>() {
                Ok(rate) if rate > Bandwidth::ZERO => Ok(Self::Fixed(rate)),
                _ => Err(QuantityError::Rate(rate.to_owned())),
            },
        }
    }
}

/// A number or text in a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u64),
    Text(String),
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match NumberOrText::deserialize(deserializer)? {
            NumberOrText::Number(bytes) => Ok(Self(bytes)),
            NumberOrText::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err = QuantityError>>(
    deserializer: D,
) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer)
    }
}

impl<'de> Deserialize<'de> for SendRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_parse_from_text() {
        assert_eq!("64k".parse(), Ok(Size(65536)));
        assert_eq!("1M".parse(), Ok(Size(1 << 20)));
        assert_eq!(" 4096 ".parse(), Ok(Size(4096)));
        for wrong in ["", "k", "-1", "1G", "18446744073709551615k"] {
            wrong.parse::<Size>().unwrap_err();
        }
        assert_eq!("1ms".parse(), Ok(Span(Time::from_us(1000))));
        "1 hour".parse::<Span>().unwrap_err();
        assert_eq!("full".parse(), Ok(SendRate::Full));
        assert_eq!("guaranteed".parse(), Ok(SendRate::Guaranteed));
        assert_eq!("promised".parse::<SendRate>(), Err(QuantityError::RenamedRate));
        assert_eq!("2.5G".parse(), Ok(SendRate::Fixed(Bandwidth::from_bits_per_s(2_500_000_000))));
        "0".parse::<SendRate>().unwrap_err();
    }
}
