//! How the clusters of a fabric share a link: which lane each service level takes, and how lanes take turns.

use std::collections::BTreeMap;

use ib_wire::{PortNum, ServiceLevel, SlToVl, VirtualLane, VlArbEntry};
use serde::{Deserialize, Serialize};

/// How packets that leave by a port share it.
///
/// A level that nobody was granted maps to lane 15, by which devices discard data. All arbitration is in the low-priority
/// table; the high-priority one is empty, since hardware does not keep what it promises there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortQos {
    /// The lane of each service level by where packets come in, where that matters. Adapters have no inputs.
    pub by_input: BTreeMap<PortNum, SlToVl>,
    /// The lane of each service level from every other input.
    pub otherwise: SlToVl,
    /// The low-priority arbitration table; no weight is 0.
    pub low: Vec<VlArbEntry>,
    /// Entries with weight of the high-priority table. A plan has none; what a device holds is told here.
    pub high: Vec<VlArbEntry>,
}

impl PortQos {
    /// Entries of the longest table there is.
    pub const ENTRIES_MAX: usize = 64;

    /// The lane of management on a link of so many data lanes: one of its own from 8 on, else that of best effort.
    pub const fn management_lane(data_lanes: u8) -> VirtualLane {
        match VirtualLane::from_wire(if data_lanes >= 8 { 1 } else { 0 }) {
            Some(lane) => lane,
            None => unreachable!(),
        }
    }

    /// Where packets of a service level go that came in by a port; `None` if they are discarded.
    #[inline]
    pub fn lane(&self, input: PortNum, sl: ServiceLevel) -> Option<VirtualLane> {
        let map = self.by_input.get(&input).unwrap_or(&self.otherwise);
        Some(map.lane(sl)).filter(|lane| *lane != VirtualLane::MANAGEMENT)
    }

    /// The weights of all entries together.
    pub fn total_weight(&self) -> u32 {
        self.low.iter().map(|entry| u32::from(entry.weight)).sum()
    }

    /// The weights of a lane's entries together.
    pub fn weight(&self, lane: VirtualLane) -> u32 {
        self.low.iter().filter(|entry| entry.lane == lane).map(|entry| u32::from(entry.weight)).sum()
    }
}

/// The same in plain fields.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QosEntry {
    /// A hexadecimal digit for each service level.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    by_input: BTreeMap<PortNum, String>,
    otherwise: String,
    /// Lane and weight.
    low: Vec<(u8, u8)>,
    /// Likewise.
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

/// Says what is wrong, if it cannot be.
impl TryFrom<QosEntry> for PortQos {
    type Error = String;
    fn try_from(entry: QosEntry) -> Result<Self, String> {
        let digits = |text: &String| {
            let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let number = is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten();
            let number = number.ok_or_else(|| format!("{text:?} is not 16 hexadecimal digits"))?;
            Ok::<_, String>(SlToVl::decode(&number.to_be_bytes()))
        };
        if entry.low.len().max(entry.high.len()) > Self::ENTRIES_MAX {
            return Err(format!("an arbitration table of more than {} entries", Self::ENTRIES_MAX));
        }
        let read = |(lane, weight): (u8, u8)| {
            let lane = VirtualLane::from_wire(lane).filter(|lane| *lane != VirtualLane::MANAGEMENT);
            match lane {
                Some(lane) if weight != 0 => Ok(VlArbEntry { lane, weight }),
                _ => Err("an arbitration entry without weight, or of no data lane".to_owned()),
            }
        };
        let by_input = entry.by_input.iter().map(|(input, text)| Ok::<_, String>((*input, digits(text)?)));
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
    fn sharings_read_back_as_written_and_nonsense_is_refused() {
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
