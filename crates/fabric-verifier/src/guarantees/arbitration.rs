//! The share and the waiting time that a low-priority VL arbitration table guarantees a lane, whatever the other
//! lanes send.
//!
//! Method: the table is served round robin (IBA 7.6.9). Between two visits of a lane, every other entry sends at most
//! its weight less one unit plus one packet of the largest size, since a packet is started while one unit is left and
//! is then sent whole. The share follows from one full round, the waiting time from the longest gap between two
//! visits.

use ib_wire::{LaneSet, VirtualLane, VlArbEntry};

/// Bytes of one unit of arbitration weight.
const UNIT_BYTES: u64 = 64;

/// The largest packet on the wire: 4096 bytes of payload and up to 126 bytes of headers and CRCs (A-LANE-12).
pub(super) const PACKET_BYTES: u64 = 4222;

/// The worst-case service of a lane of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneService {
    /// Data rate of the link in bits per second.
    link: u64,
    /// Bytes that the cluster may send in one round of the table, in all its lanes.
    own: u64,
    /// The most bytes that all others send in one round.
    others: u64,
    /// The most bytes that all other lanes send between two visits.
    gap: u64,
    /// Index of the entry with the longest gap before it.
    pub entry: usize,
    /// See [`Self::with_passage`].
    passage_ps: u64,
}

impl LaneService {
    /// Computes the service of `lane` on a link of `link` bits per second; `None` if no entry has weight for it.
    /// Lanes in `same` belong to the same cluster: they add to its share, but its packets wait for them
    /// as for any other.
    pub fn of(table: &[VlArbEntry], lane: VirtualLane, same: LaneSet, link: u64) -> Option<Self> {
        let serves = |entry: &VlArbEntry| entry.lane == lane && entry.weight != 0;
        let first = table.iter().position(serves)?;
        let mut service = Self { link, own: 0, others: 0, gap: 0, entry: first, passage_ps: 0 };
        let mut gap = 0;
        // One round, from behind the first entry of the lane up to and including it.
        for index in (first + 1..table.len()).chain(0..=first) {
            let entry = &table[index];
            let bytes = UNIT_BYTES * u64::from(entry.weight);
            if serves(entry) {
                service.own += bytes;
                if gap > service.gap {
                    (service.gap, service.entry) = (gap, index);
                }
                gap = 0;
            } else if entry.weight != 0 {
                // A packet is started while one unit is left, and sent whole.
                let most = bytes - UNIT_BYTES + PACKET_BYTES;
                gap += most;
                if same.contains(entry.lane) {
                    service.own += bytes;
                } else {
                    service.others += most;
                }
            }
        }
        Some(service)
    }

    /// Adds the longest time from the output of the link to that of the next device, or to the receiver, in picoseconds:
    /// device, cable and the wait at the next input. It is 0 unless set.
    #[must_use]
    pub fn with_passage(self, passage_ps: u64) -> Self {
        Self { passage_ps, ..self }
    }

    /// Bits per second that the cluster gets at least while all its lanes have packets to send.
    pub fn share(&self) -> u64 {
        let (own, all) = (u128::from(self.own), u128::from(self.own + self.others));
        u64::try_from(u128::from(self.link) * own / all).unwrap_or(self.link)
    }

    /// The longest time that a packet at the head of its lane waits for other lanes, in seconds.
    pub fn wait_s(&self) -> f64 {
        self.gap as f64 / self.link_bytes_per_s()
    }

    fn link_bytes_per_s(&self) -> f64 {
        self.link as f64 / 8.0
    }
}

/// The worst-case latency of a packet along a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathBound {
    waits_s: f64,
}

impl PathBound {
    /// A path without links, on which packets do not wait.
    pub const START: Self = Self { waits_s: 0.0 };

    /// Extends the path by one link.
    #[must_use]
    pub fn then(self, service: &LaneService) -> Self {
        let packet_s = PACKET_BYTES as f64 / service.link_bytes_per_s();
        Self { waits_s: self.waits_s + service.wait_s() + packet_s + service.passage_ps as f64 * 1e-12 }
    }

    /// Latest arrival of a packet that finds its own lane empty everywhere, in nanoseconds after it was sent.
    pub fn bound_ns(&self) -> f64 {
        self.waits_s * 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(lane: u8, weight: u8) -> VlArbEntry {
        VlArbEntry { lane: VirtualLane::from_wire(lane).unwrap(), weight }
    }

    fn lane(raw: u8) -> VirtualLane {
        VirtualLane::from_wire(raw).unwrap()
    }

    #[test]
    fn a_lone_lane_gets_all_and_weight_zero_gets_nothing() {
        let alone = LaneService::of(&[entry(3, 1)], lane(3), LaneSet::EMPTY, 1000).unwrap();
        assert_eq!((alone.share(), alone.wait_s()), (1000, 0.0));
        assert_eq!(LaneService::of(&[entry(3, 0), entry(0, 9)], lane(3), LaneSet::EMPTY, 1000), None);
        assert_eq!(LaneService::of(&[], lane(3), LaneSet::EMPTY, 1000), None);
    }

    #[test]
    fn other_lanes_count_with_the_last_packet_of_a_visit() {
        // Two visits of 65 units each; before the second, two others of 65 and 1 unit.
        let table = [entry(2, 65), entry(0, 65), entry(1, 1), entry(2, 65)];
        let service = LaneService::of(&table, lane(2), LaneSet::EMPTY, 8_000_000_000).unwrap();
        let others = (65 * 64 + PACKET_BYTES - 64) + PACKET_BYTES;
        assert_eq!((service.gap, service.entry), (others, 3));
        assert_eq!(service.share(), 8_000_000_000 * 8320 / (8320 + others));
        // At 1 GB/s a byte takes a nanosecond.
        assert!((service.wait_s() * 1e9 - others as f64).abs() < 1e-6);
        let bound = PathBound::START.then(&service.with_passage(250_000)).bound_ns();
        let packet = PACKET_BYTES as f64;
        assert!((bound - (others as f64 + packet + 250.0)).abs() < 1e-6, "{bound}");
    }
    #[test]
    fn lanes_of_a_cluster_add_up_and_wait_for_each_other() {
        let table = [entry(2, 65), entry(0, 65), entry(3, 130)];
        let alone = LaneService::of(&table, lane(2), LaneSet::EMPTY, 1000).unwrap();
        let both = LaneService::of(&table, lane(2), lane(3).into(), 1000).unwrap();
        assert_eq!(both.gap, alone.gap);
        assert_eq!((both.own, both.others), (3 * 65 * 64, 64 * 64 + PACKET_BYTES));
        assert!(both.share() > alone.share());
    }
}
