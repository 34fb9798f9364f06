//! The rate that is left for one more lane, where no lane has a gap to keep.
//!
//! A round of `T` bytes is possible if all lanes together send at most `T` in it. For a given `T`, what the other lanes need
//! follows at once, and the rest is left. A longer round is better for the new lane while no lane needs more entries for it;
//! so the rounds to compare are the longest before some lane needs one entry more. They are compared in floating point, from
//! the longest on, until shorter ones cannot be better; the rate in the best one is then computed exactly.

use super::{
    ENTRY_WEIGHT_MAX, FrameShare, Frames, LANES_MAX, LaneDemand, OVERSHOOT_BYTES, PACKET_BYTES_MAX,
    TableLimits, VISIT_BYTES_MAX, WEIGHT_BYTES, full_weight,
};

/// A round is good enough if no other gives a rate that is higher by a larger part.
const GOOD_ENOUGH: f64 = 2e-3;

/// Rounds that differ by fewer bytes are as good as each other.
const ROUND_STEP: f64 = 512.0;

const OVERSHOOT: f64 = OVERSHOOT_BYTES as f64;
const VISIT: f64 = VISIT_BYTES_MAX as f64;

/// A rate that one more lane can have in a table of one frame; 0 if there is none.
///
/// [`Frames::solve`] finds it, too: in the round that is chosen here, all lanes have what they need, and by the lower bound
/// from which the fixpoint is searched, no longer round is necessary.
pub(super) fn in_one_frame(limits: &TableLimits, demands: &[LaneDemand]) -> u64 {
    let (link, usable) = (limits.link_bits_per_s, u64::from(limits.entries_usable()));
    let Some(others) = Others::new(link, demands) else { return 0 };
    let Some(round) = others.best_round(usable as f64) else { return 0 };
    let unit = Frames::ONE.rounding(link);
    let (mut entries, mut bytes) = (others.single, others.single * PACKET_BYTES_MAX);
    let (mut unsold, mut least) = (link, bytes * link + unit);
    for demand in demands.iter().filter(|demand| !demand.is_entry_only()) {
        let mut lane = FrameShare { entries: 1, ..FrameShare::default() };
        Frames::ONE.give(&mut lane, demand.rate, link, round, 0);
        entries += lane.entries;
        bytes += lane.bytes();
        unsold -= demand.rate;
        least += lane.entries * OVERSHOOT_BYTES * (link - demand.rate) + unit;
    }
    let free = (round * unsold).saturating_sub(least);
    let bytes = round.saturating_sub(bytes).min(usable.saturating_sub(entries) * VISIT_BYTES_MAX);
    let rate = |entries: u64| {
        let weight = bytes.saturating_sub(entries * OVERSHOOT_BYTES) / WEIGHT_BYTES;
        let mut weights = (entries..=weight.min(ENTRY_WEIGHT_MAX * entries)).rev();
        let weight = weights.find(|weight| full_weight(*weight, entries) == *weight).unwrap_or(0);
        let own = (WEIGHT_BYTES * weight * link).min(free.saturating_sub(entries * OVERSHOOT_BYTES * link));
        own / round.saturating_sub(entries * OVERSHOOT_BYTES).max(1)
    };
    // The last entry may be worth less than its overshoot.
    let entries = bytes.div_ceil(VISIT_BYTES_MAX).max(1);
    rate(entries).max(rate((entries - 1).max(1)))
}

/// The lanes beside the new one, in parts of the link.
#[derive(Debug)]
struct Others {
    /// The number of lanes with a single entry.
    single: u64,
    lanes: [Lane; LANES_MAX],
    count: usize,
    /// The part of the link that is not sold.
    unsold: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    part: f64,
    /// The longest round in which the lane does with one entry; with n entries it is n times as long.
    round: f64,
    /// 1 / `round`.
    entries_per_byte: f64,
}

/// What is needed and left in a round, in bytes.
#[derive(Clone, Copy, Debug)]
struct Needs {
    entries: f64,
    /// What is left for the new lane.
    left: f64,
    /// The same if entries could be divided.
    left_max: f64,
    /// The longest shorter round in which another lane needs fewer entries.
    shorter: f64,
}

impl Others {
    /// `None` if nothing is unsold, or there are more lanes than a link can have.
    fn new(link: u64, demands: &[LaneDemand]) -> Option<Self> {
        let (mut lanes, mut count, mut sold) = ([Lane::default(); LANES_MAX], 0, 0.0);
        for demand in demands.iter().filter(|demand| !demand.is_entry_only()) {
            let part = demand.rate as f64 / link as f64;
            let round = OVERSHOOT + (VISIT - OVERSHOOT) / part.max(f64::MIN_POSITIVE);
            *lanes.get_mut(count)? = Lane { part, round, entries_per_byte: 1.0 / round };
            (count, sold) = (count + 1, sold + part);
        }
        let single = (demands.len() - count) as u64;
        (sold < 1.0).then_some(Self { single, lanes, count, unsold: 1.0 - sold })
    }

    fn needs(&self, round: f64) -> Needs {
        let free = round * self.unsold - self.single as f64 * PACKET_BYTES_MAX as f64;
        let mut needs = Needs { entries: self.single as f64, left: free, left_max: free, shorter: 0.0 };
        for lane in &self.lanes[..self.count] {
            let divided = round * lane.entries_per_byte;
            let fewer = ((divided - 1e-9) as i32) as f64;
            let overshoot = OVERSHOOT * (1.0 - lane.part);
            needs.entries += fewer + 1.0;
            needs.left -= overshoot * (fewer + 1.0) + WEIGHT_BYTES as f64;
            needs.left_max -= overshoot * divided.max(1.0);
            needs.shorter = needs.shorter.max(fewer * lane.round);
        }
        needs
    }

    /// The round in which the new lane gets the highest rate; `None` if there is none.
    fn best_round(&self, usable: f64) -> Option<u64> {
        let (mut best, mut best_round) = (0.0, 0.0);
        let mut round = usable * VISIT;
        while round > OVERSHOOT {
            let needs = self.needs(round);
            let entries_min = (needs.left_max / VISIT).max(1.0);
            if part_of(needs.left_max, round, entries_min) <= best * (1.0 + GOOD_ENOUGH) {
                break;
            }
            let most = (usable - needs.entries) * VISIT;
            if most <= 0.0 {
                round = needs.shorter;
                continue;
            }
            // If the lane cannot use all that is left, its part is larger in a shorter round.
            let enough = round - (needs.left - most) / self.unsold;
            if enough + ROUND_STEP < round {
                round = enough.max(needs.shorter);
                continue;
            }
            let left = needs.left.min(most);
            let fewer = ((left / VISIT - 1e-9) as i32) as f64;
            let part = part_of(left, round, fewer + 1.0).max(part_of(fewer * VISIT, round, fewer));
            if part > best {
                (best, best_round) = (part, round);
            }
            // The next one in which some lane needs an entry less.
            let own_shorter = if fewer > 0.0 { round - (left - fewer * VISIT) / self.unsold } else { 0.0 };
            round = needs.shorter.max(own_shorter).min(round - 1.0);
        }
        (best > 0.0).then_some(best_round as u64)
    }
}

/// The part of the link that a lane has if it may send `bytes` in a round and has this number of entries.
fn part_of(bytes: f64, round: f64, entries: f64) -> f64 {
    (bytes - OVERSHOOT * entries) / (round - OVERSHOOT * entries)
}
