//! Guarantees of virtual clusters and the grants that implement them: classes, rates, service levels, shares of links.

use std::fmt;
use std::str::FromStr;

use ib_wire::{Guid, ServiceLevel, VirtualLane};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use crate::port_name::PortName;

/// A data rate in bits per second, without line coding. Parses `10G`, `2.5 Gb/s`, `800M`; prints as `12.5 Gb/s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Bandwidth(u64);

impl Bandwidth {
    /// 0 bits per second.
    pub const ZERO: Self = Self(0);

    /// From bits per second.
    pub const fn from_bits_per_s(bits_per_s: u64) -> Self {
        Self(bits_per_s)
    }

    /// The rate in bits per second.
    #[inline]
    pub const fn bits_per_s(self) -> u64 {
        self.0
    }

    /// A fraction of the rate, rounded down to whole bits per second. `part` is clamped to 0..=1.
    pub fn part(self, part: f64) -> Self {
        Self((self.0 as f64 * part.clamp(0.0, 1.0)) as u64)
    }
}

/// Prints as `12.5 Gb/s`.
impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} Gb/s", self.0 as f64 / 1e9)
    }
}

/// The text is not a data rate.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "invalid rate {0:?}: expected a number with k, M or G up to 1e15 bits per second, such as 10G, 2.5Gb/s or 800M"
)]
pub struct ParseBandwidthError(String);

/// Accepts `10G`, `2.5 Gb/s`, `800Mb/s` and plain bits per second, from 0 to 1e15.
impl FromStr for Bandwidth {
    type Err = ParseBandwidthError;
    fn from_str(text: &str) -> Result<Self, ParseBandwidthError> {
        let invalid = || ParseBandwidthError(text.to_owned());
        let number = text.trim().trim_end_matches("b/s").trim_end();
        let (number, unit) = match number.char_indices().next_back() {
            Some((at, 'G')) => (&number[..at], 1e9),
            Some((at, 'M')) => (&number[..at], 1e6),
            Some((at, 'k')) => (&number[..at], 1e3),
            _ => (number, 1.0),
        };
        let number: f64 = number.trim_end().parse().map_err(|_| invalid())?;
        let bits = number * unit;
        (bits.is_finite() && (0.0..=1e15).contains(&bits))
            .then(|| Self(bits.round() as u64))
            .ok_or_else(invalid)
    }
}

/// Accepts a number of bits per second, or a text such as `10G`.
impl<'de> Deserialize<'de> for Bandwidth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Quantity::deserialize(deserializer)? {
            Quantity::Number(bits) => Ok(Self(bits)),
            Quantity::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// A quantity as programs (a number) or people (a text with a unit) write it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Quantity {
    Number(u64),
    Text(String),
}

/// A duration in whole nanoseconds. Parses `80us`, `1.5 ms`, `900ns`; prints as `1.5 µs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanoseconds(u64);

impl Nanoseconds {
    /// A duration of this many nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// The number of nanoseconds.
    pub const fn ns(self) -> u64 {
        self.0
    }
}

/// Prints as `1.5 µs`.
impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} µs", self.0 as f64 / 1e3)
    }
}

/// The text is not a duration with a unit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "invalid time {0:?}: expected a number with ns, us or ms between 1ns and 1e13ns, such as 80us or 1.5ms"
)]
pub struct ParseNanosecondsError(String);

/// Accepts `80us`, `1.5 ms`, `900ns`: between 1 and 1e13 nanoseconds.
impl FromStr for Nanoseconds {
    type Err = ParseNanosecondsError;
    fn from_str(text: &str) -> Result<Self, ParseNanosecondsError> {
        let invalid = || ParseNanosecondsError(text.to_owned());
        let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6)];
        let unit = units.iter().find_map(|(name, unit)| Some((text.trim().strip_suffix(name)?, unit)));
        let (number, unit) = unit.ok_or_else(invalid)?;
        let number: f64 = number.trim_end().parse().map_err(|_| invalid())?;
        let ns = (number * unit).round();
        (ns.is_finite() && (1.0..=1e13).contains(&ns)).then_some(Self(ns as u64)).ok_or_else(invalid)
    }
}

/// Accepts a number of nanoseconds, or a text such as `80us`.
fn latency_ns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match Option::<Quantity>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Quantity::Number(ns)) => Ok(Some(ns)),
        Some(Quantity::Text(text)) => {
            let latency: Nanoseconds = text.parse().map_err(serde::de::Error::custom)?;
            Ok(Some(latency.ns()))
        }
    }
}

/// Class of service of a cluster: what it is guaranteed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Class {
    /// No guarantee: the cluster shares the best-effort lane with all others of this class.
    #[default]
    BestEffort,
    /// A lane of its own on every link it uses, with a guaranteed rate.
    Guaranteed {
        /// Rate that every node can sustain while all nodes of the cluster send evenly to all others. 0 guarantees the
        /// lanes only.
        bandwidth: Bandwidth,
        /// Largest latency of a packet that finds its own lane empty, in nanoseconds.
        #[serde(
            default,
            alias = "latency",
            skip_serializing_if = "Option::is_none",
            deserialize_with = "latency_ns"
        )]
        latency_ns: Option<u64>,
    },
}

/// Prints as `best effort`, or `10 Gb/s guaranteed, 80 µs at most`.
impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BestEffort => f.write_str("best effort"),
            Self::Guaranteed { bandwidth, latency_ns: None } => write!(f, "{bandwidth} guaranteed"),
            Self::Guaranteed { bandwidth, latency_ns: Some(ns) } => {
                write!(f, "{bandwidth} guaranteed, {} at most", Nanoseconds(*ns))
            }
        }
    }
}

/// How service levels separate the packets of a guaranteed cluster from those of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlMode {
    /// One service level for all packets of the cluster, in both directions. Works with unmodified software.
    #[default]
    Cluster,
    /// One service level for each pair of switches that connect nodes of the cluster, in both directions. Needs software
    /// that queries path records; more clusters find a free service level.
    Path,
}

/// Number of a cluster in admission control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterNumber(pub u32);

impl fmt::Display for ClusterNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The share of one direction of a link that is reserved for a cluster.
///
/// Grants of earlier versions also have `entries`, `first_entry` and `weight`, which are ignored: arbitration tables are
/// composed from the shares and waits of all clusters of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkGrant {
    /// The port that sends in this direction.
    pub port: PortName,
    /// The lane that only this cluster uses here.
    pub lane: VirtualLane,
    /// The service levels that only this cluster uses here.
    pub service_levels: Vec<ServiceLevel>,
    /// Rate that is reserved for the cluster.
    pub share: Bandwidth,
    /// The longest time that its packets wait for other lanes on this link, in nanoseconds. `None` in decisions of versions
    /// that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ns: Option<u64>,
}

/// The service level of a cluster's packets between nodes on two switches, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairServiceLevel {
    /// Node GUIDs of the switches, the lower first; twice the same for nodes on one switch.
    pub switches: (Guid, Guid),
    pub service_level: ServiceLevel,
}

impl PairServiceLevel {
    /// The key of a pair of switches: their node GUIDs, the lower first.
    pub fn between(a: Guid, b: Guid) -> (Guid, Guid) {
        (a.min(b), a.max(b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_rates_survive_a_round_trip() {
        let bandwidth = Bandwidth::from_bits_per_s(12_500_000_000);
        assert_eq!(bandwidth.to_string(), "12.5 Gb/s");
        for text in ["12.5 Gb/s", "12.5G", "12500M", "12500000k", "12500000000"] {
            assert_eq!(text.parse(), Ok(bandwidth));
        }
        for text in ["", "G", "-1G", "1T", "1e99G", "NaN", "ten"] {
            text.parse::<Bandwidth>().unwrap_err();
        }
        assert_eq!(bandwidth.part(0.5).bits_per_s(), 6_250_000_000);
        let classes = [
            (Class::BestEffort, r#""best-effort""#),
            (
                Class::Guaranteed { bandwidth, latency_ns: None },
                r#"{"guaranteed":{"bandwidth":12500000000}}"#,
            ),
        ];
        for (class, text) in classes {
            assert_eq!(serde_json::to_string(&class).unwrap(), text);
            assert_eq!(serde_json::from_str::<Class>(text).unwrap(), class);
        }
        let written = r#"{"guaranteed":{"bandwidth":"12.5G","latency":"80us"}}"#;
        let class = Class::Guaranteed { bandwidth, latency_ns: Some(80_000) };
        assert_eq!(serde_json::from_str::<Class>(written).unwrap(), class);
        assert_eq!("1.5 ms".parse::<Nanoseconds>().unwrap().to_string(), "1500 µs");
        for text in ["", "us", "-1us", "0ns", "1s", "1e99ms", "NaNms"] {
            text.parse::<Nanoseconds>().unwrap_err();
        }
        assert_eq!(serde_json::to_string(&SlMode::Path).unwrap(), r#""path""#);
    }
}
