//! What is promised to virtual clusters, and what they were given for it: classes, rates, service levels, shares of
//! links.

use std::fmt;
use std::str::FromStr;

use ib_wire::{Guid, ServiceLevel, VirtualLane};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use crate::intent::PortName;

/// A rate in bits per second, line code taken off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Bandwidth(u64);

impl Bandwidth {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// So many bits per second.
    pub const fn from_bits_per_s(bits_per_s: u64) -> Self {
        Self(bits_per_s)
    }

    /// Bits per second.
    #[inline]
    pub const fn bits_per_s(self) -> u64 {
        self.0
    }

    /// A part of it, rounded down to whole bits per second.
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

/// A text that is no rate.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a rate such as 10G, 2.5Gb/s or 800M")]
pub struct ParseBandwidthError(String);

/// Reads `10G`, `2.5 Gb/s`, `800Mb/s`: bits per second.
impl FromStr for Bandwidth {
    type Err = ParseBandwidthError;
    fn from_str(text: &str) -> Result<Self, ParseBandwidthError> {
        let wrong = || ParseBandwidthError(text.to_owned());
        let number = text.trim().trim_end_matches("b/s").trim_end();
        let (number, unit) = match number.char_indices().next_back() {
            Some((at, 'G')) => (&number[..at], 1e9),
            Some((at, 'M')) => (&number[..at], 1e6),
            Some((at, 'k')) => (&number[..at], 1e3),
            _ => (number, 1.0),
        };
        let number: f64 = number.trim_end().parse().map_err(|_| wrong())?;
        let bits = number * unit;
        (bits.is_finite() && (0.0..=1e15).contains(&bits))
            .then(|| Self(bits.round() as u64))
            .ok_or_else(wrong)
    }
}

/// A number of bits per second, or a text such as `10G`.
impl<'de> Deserialize<'de> for Bandwidth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Quantity::deserialize(deserializer)? {
            Quantity::Number(bits) => Ok(Self(bits)),
            Quantity::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// A quantity as people and programs write it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Quantity {
    Number(u64),
    Text(String),
}

/// A time in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LatencyBound(u64);

impl LatencyBound {
    /// So many nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds.
    pub const fn ns(self) -> u64 {
        self.0
    }
}

/// Prints as `1.5 µs`.
impl fmt::Display for LatencyBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} µs", self.0 as f64 / 1e3)
    }
}

/// A text that is no time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a time such as 80us or 1.5ms")]
pub struct ParseLatencyError(String);

/// Reads `80us`, `1.5 ms`, `900ns`; more than nothing, and no more than hours.
impl FromStr for LatencyBound {
    type Err = ParseLatencyError;
    fn from_str(text: &str) -> Result<Self, ParseLatencyError> {
        let wrong = || ParseLatencyError(text.to_owned());
        let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6)];
        let unit = units.iter().find_map(|(name, unit)| Some((text.trim().strip_suffix(name)?, unit)));
        let (number, unit) = unit.ok_or_else(wrong)?;
        let number: f64 = number.trim_end().parse().map_err(|_| wrong())?;
        let ns = (number * unit).round();
        (ns.is_finite() && (1.0..=1e13).contains(&ns)).then_some(Self(ns as u64)).ok_or_else(wrong)
    }
}

/// A number of nanoseconds, or a text such as `80us`.
fn latency_ns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match Option::<Quantity>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Quantity::Number(ns)) => Ok(Some(ns)),
        Some(Quantity::Text(text)) => {
            let latency: LatencyBound = text.parse().map_err(serde::de::Error::custom)?;
            Ok(Some(latency.ns()))
        }
    }
}

/// What a cluster is promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Class {
    /// Nothing: it shares the best-effort lane with all others of its class.
    #[default]
    BestEffort,
    /// Lanes of its own on every link it uses, and a rate.
    Guaranteed {
        /// What every node can sustain while all nodes of the cluster send to all others evenly. 0 promises the lanes only.
        bandwidth: Bandwidth,
        /// By how much a packet that finds its own lane empty is late at most, in nanoseconds.
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
                write!(f, "{bandwidth} guaranteed, {} at most", LatencyBound(*ns))
            }
        }
    }
}

/// How the packets of a guaranteed cluster are told from those of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlMode {
    /// One service level for all its packets, the same in both directions: works with unmodified software.
    #[default]
    Cluster,
    /// A service level for every two switches that its nodes are on, the same in both directions: for software that asks
    /// for path records. More clusters find levels that are free.
    Path,
}

/// A cluster's number in the books of who shares out the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterNumber(pub u32);

impl fmt::Display for ClusterNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a cluster has of one direction of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkGrant {
    /// The port by which packets leave.
    pub port: PortName,
    /// The lane that is the cluster's.
    pub lane: VirtualLane,
    /// The service levels that are the cluster's here.
    pub service_levels: Vec<ServiceLevel>,
    /// The rate that is kept for it.
    pub share: Bandwidth,
    /// Entries of the arbitration table that serve the lane.
    pub entries: u8,
    /// The position of the first of them; the others follow at equal distances. `None` in what was decided before
    /// positions were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_entry: Option<u8>,
    /// Weight of each of them, in units of 64 bytes; never 0.
    pub weight: u8,
}

/// The service level of a cluster's packets between the nodes on two switches, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairServiceLevel {
    /// The switches by node GUID, the lower first; the same twice for nodes on one switch.
    pub switches: (Guid, Guid),
    /// Their level.
    pub service_level: ServiceLevel,
}

impl PairServiceLevel {
    /// Two switches in the order in which levels name them.
    pub fn between(a: Guid, b: Guid) -> (Guid, Guid) {
        (a.min(b), a.max(b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_read_back_as_written_and_rates_print_in_gigabits() {
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
        assert_eq!("1.5 ms".parse::<LatencyBound>().unwrap().to_string(), "1500 µs");
        for text in ["", "us", "-1us", "0ns", "1s", "1e99ms", "NaNms"] {
            text.parse::<LatencyBound>().unwrap_err();
        }
        assert_eq!(serde_json::to_string(&SlMode::Path).unwrap(), r#""path""#);
    }
}
