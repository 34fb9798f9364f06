//! [`PortQos`]: the SL-to-VL maps and VL arbitration tables of a port, which divide its link among clusters.

use std::collections::BTreeMap;

use ib_wire::{PortNum, ServiceLevel, SlToVl, VirtualLane, VlArbEntry};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// SL-to-VL maps and VL arbitration of what a port sends.
///
/// A service level that no cluster was granted maps to lane 15, which makes devices discard data packets (IBA: data on
/// VL15 is dropped). A plan uses only the low-priority arbitration table and leaves the
/// high-priority table empty, because hardware does not implement the latter as specified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortQos {
    /// Maps by input port, for inputs that differ from `otherwise`. Empty for adapters, which have no input ports.
    pub by_input: BTreeMap<PortNum, SlToVl>,
    /// The map of all other inputs.
    pub otherwise: SlToVl,
    /// Low-priority arbitration table; no weight is 0.
    pub low: Vec<VlArbEntry>,
    /// High-priority arbitration table without entries of weight 0. Empty in a plan; filled if the tables were read from a
    /// device.
    pub high: Vec<VlArbEntry>,
}

impl PortQos {
    /// Largest number of entries of an arbitration table.
    pub const ENTRIES_MAX: usize = 64;

    /// The lane of general management traffic on a link with `data_lanes` lanes: lane 1 from 8 lanes on, else the
    /// best-effort lane 0.
    pub const fn management_lane(data_lanes: u8) -> VirtualLane {
        match VirtualLane::from_wire(if data_lanes >= 8 { 1 } else { 0 }) {
            Some(lane) => lane,
            None => unreachable!(),
        }
    }

    /// The lane of packets of a service level that entered at `input`; `None` if they are discarded.
    #[inline]
    pub fn lane(&self, input: PortNum, sl: ServiceLevel) -> Option<VirtualLane> {
        let map = self.by_input.get(&input).unwrap_or(&self.otherwise);
        Some(map.lane(sl)).filter(|lane| *lane != VirtualLane::MANAGEMENT)
    }

    /// Sum of the weights of the low-priority table, in units of 64 bytes.
    pub fn total_weight(&self) -> u32 {
        self.low.iter().map(|entry| u32::from(entry.weight)).sum()
    }

    /// Sum of the weights of a lane in the low-priority table, in units of 64 bytes.
    pub fn weight(&self, lane: VirtualLane) -> u32 {
        self.low.iter().filter(|entry| entry.lane == lane).map(|entry| u32::from(entry.weight)).sum()
    }
}

/// Serialized form of [`PortQos`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QosEntry {
    /// Maps as 16 hexadecimal digits: the lane of each service level, from 0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    by_input: BTreeMap<PortNum, String>,
    otherwise: String,
    /// Pairs of lane and weight.
    low: Vec<(u8, u8)>,
    /// Pairs of lane and weight.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    high: Vec<(u8, u8)>,
}

impl From<&PortQos> for QosEntry {
    fn from(qos: &PortQos) -> Self {
        let digits = |map: &SlToVl| format!("{:016x}", u64::from_be_bytes(map.encode()));
        let entries =
            |table: &[VlArbEntry]| table.iter().map(|entry| (entry.lane.to_wire(), entry.weight)).collect();
        Self {
            by_input: qos.by_input.iter().map(|(input, map)| (*input, digits(map))).collect(),
            otherwise: digits(&qos.otherwise),
            low: entries(&qos.low),
            high: entries(&qos.high),
        }
    }
}

/// A serialized [`PortQos`] that no device could hold.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QosError {
    #[error("an SL-to-VL map must have 16 hexadecimal digits, got {0:?}")]
    InvalidMap(String),
    #[error("an arbitration table has at most {} entries, got {got}", PortQos::ENTRIES_MAX)]
    TooManyEntries { got: usize },
    #[error("the lane of an arbitration entry must be between 0 and 14, got {0}")]
    InvalidLane(u8),
    #[error("the weight of an arbitration entry must be between 1 and 255, got 0 for lane {lane}")]
    ZeroWeight { lane: u8 },
}

impl TryFrom<QosEntry> for PortQos {
    type Error = QosError;
    fn try_from(entry: QosEntry) -> Result<Self, QosError> {
        let digits = |text: &String| {
            let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let number = is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten();
            let number = number.ok_or_else(|| QosError::InvalidMap(text.chars().take(20).collect()))?;
            Ok::<_, QosError>(SlToVl::decode(&number.to_be_bytes()))
        };
        let longest = entry.low.len().max(entry.high.len());
        if longest > Self::ENTRIES_MAX {
            return Err(QosError::TooManyEntries { got: longest });
        }
        let read = |(raw, weight): (u8, u8)| {
            let lane = VirtualLane::from_wire(raw).filter(|lane| *lane != VirtualLane::MANAGEMENT);
            match lane {
                None => Err(QosError::InvalidLane(raw)),
                Some(_) if weight == 0 => Err(QosError::ZeroWeight { lane: raw }),
                Some(lane) => Ok(VlArbEntry { lane, weight }),
            }
        };
        let by_input = entry.by_input.iter().map(|(input, text)| Ok::<_, QosError>((*input, digits(text)?)));
        Ok(Self {
            by_input: by_input.collect::<Result<_, _>>()?,
            otherwise: digits(&entry.otherwise)?,
            low: entry.low.into_iter().map(read).collect::<Result<_, _>>()?,
            high: entry.high.into_iter().map(read).collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qos_tables_survive_a_round_trip_and_invalid_ones_fail() {
        let lane = |raw| VirtualLane::from_wire(raw).unwrap();
        let mut map = SlToVl([VirtualLane::MANAGEMENT; 16]);
        map.0[0] = lane(0);
        let mut other = map;
        other.0[3] = lane(2);
        let qos = PortQos {
            by_input: [(PortNum::new(7).unwrap(), other)].into(),
            otherwise: map,
            low: vec![VlArbEntry { lane: lane(0), weight: 4 }, VlArbEntry { lane: lane(2), weight: 255 }],
            high: vec![VlArbEntry { lane: lane(1), weight: 9 }],
        };
        let sl = |raw| ServiceLevel::from_wire(raw).unwrap();
        assert_eq!(qos.lane(PortNum::new(7).unwrap(), sl(3)), Some(lane(2)));
        assert_eq!(qos.lane(PortNum::new(8).unwrap(), sl(3)), None);
        assert_eq!((qos.weight(lane(2)), qos.total_weight()), (255, 259));
        let json = serde_json::to_string(&QosEntry::from(&qos)).unwrap();
        let read = |json: &str| PortQos::try_from(serde_json::from_str::<QosEntry>(json).unwrap());
        assert_eq!(read(&json).unwrap(), qos);
        for (from, to) in [
            ("[0,4]", "[0,0]"),
            ("[0,4]", "[15,4]"),
            ("0fff", "0ff"),
            ("[0,4]", "[16,4]"),
            ("[1,9]", "[1,0]"),
        ] {
            assert!(read(&json.replacen(from, to, 1)).is_err(), "{from} as {to}");
        }
    }
}
