//! What is promised to virtual clusters, and what they were given for it: classes, rates, service levels, shares of
//! links.

use std::fmt;

use ib_wire::{ServiceLevel, VirtualLane};
use serde::{Deserialize, Serialize};

use crate::intent::PortName;

/// A rate in bits per second, line code taken off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
        #[serde(default, skip_serializing_if = "Option::is_none")]
        latency_ns: Option<u64>,
    },
}

/// How the packets of a guaranteed cluster are told from those of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlMode {
    /// One service level for all its packets, the same in both directions: works with unmodified software.
    #[default]
    Cluster,
    /// A service level for each path: for software that asks for path records.
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
    /// Weight of each of them, in units of 64 bytes; never 0.
    pub weight: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_read_back_as_written_and_rates_print_in_gigabits() {
        let bandwidth = Bandwidth::from_bits_per_s(12_500_000_000);
        assert_eq!(bandwidth.to_string(), "12.5 Gb/s");
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
        assert_eq!(serde_json::to_string(&SlMode::Path).unwrap(), r#""path""#);
    }
}
