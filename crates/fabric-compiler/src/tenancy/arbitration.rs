//! The low-priority VL arbitration table of a link, composed from what its lanes were sold.
//!
//! # Model
//!
//! An arbiter visits the entries in turn and sends packets of the lane until the weight of the entry (in units of 64 bytes)
//! is used up; the last packet is sent whole. A visit of weight `w` therefore sends at least `64·w` bytes of a lane that has
//! them to send, and at most `64·w + 4158` ([`OVERSHOOT_BYTES`]). What a lane is guaranteed follows from one round: its own
//! bytes at least, the bytes of all others at most ([`ServiceCurve`](super::service_curve::ServiceCurve)). A guaranteed rate
//! counts whole units of weight, of which the last of a packet may be used in part. With full packets, a lane still gets its
//! rate: weights are chosen such that no visit ends with the last unit of one.
//!
//! # Composition
//!
//! A table consists of `f` *frames*. In every frame each lane with a rate has the same number of entries, spread evenly, so
//! that the lane waits less than a frame for its next visit. A lane that was sold no rate (best effort and management,
//! unless the operator gives them more) has one entry of weight 1 in the whole table, between two frames. The frames beside
//! such an entry may carry less weight than the others (`short`), so that a wait across the entry is no longer than others.
//!
//! For a given number of frames the least weights follow from a least fixpoint: a round of `T` bytes needs
//! `rate / link · (T − own overshoot)` bytes of each lane, and that sum with the overshoots of all entries is the next `T`.
//! All steps are monotone in `T` and in the set of lanes, so that
//!
//! - the fixpoint has the fewest entries, the least weights and the shortest waits of all tables with these frames (without
//!   waits to keep, the round is longer by at most one unit of weight per lane and frame, for speed),
//! - lanes that fit together also fit after some of them have left.
//!
//! Of the frame numbers that fit, the one with the fewest entries per frame is taken, then the smallest: the round is no
//! longer than the sold rates need. Short rounds mean short waits, and leave more of the unsold rate to best effort.
//!
//! # Replacement
//!
//! A table has at most 32 entries, the number that one Set writes, even if the port has 64. So a port holds the table from
//! before or the one from after a change, and both keep what was sold to the clusters that stay. The second half would add
//! less than 1 % to a rate without latency: at 32 entries, the overhead of best effort and management is below 2 %.
//!
//! Only the low-priority table is used, because the limit of the high-priority one is not reliable in all devices, and no
//! entry ever has weight 0.

use std::ops::RangeInclusive;

use ib_wire::{LaneSet, VirtualLane, VlArbBlock, VlArbEntry};

mod residual;

/// The unit of weight, in bytes (IBA).
pub const WEIGHT_BYTES: u64 = 64;

/// The largest packet on the wire, in bytes: the largest MTU and 126 bytes of headers and CRCs (A-LANE-12).
pub const PACKET_BYTES_MAX: u64 = 4096 + 126;

/// A packet of the largest MTU with the headers and CRCs that every packet has.
const FULL_PACKET_BYTES: u64 = 4096 + 26;

/// The most bytes by which the last packet of a visit may exceed the weight of its entry.
pub const OVERSHOOT_BYTES: u64 = PACKET_BYTES_MAX - WEIGHT_BYTES;

/// The largest weight of an entry (8 bits).
const ENTRY_WEIGHT_MAX: u64 = 255;

/// The most bytes that a visit sends.
pub const VISIT_BYTES_MAX: u64 = ENTRY_WEIGHT_MAX * WEIGHT_BYTES + OVERSHOOT_BYTES;

/// The most entries of a composed table: those of one Set.
pub const ENTRIES_MAX: u8 = VlArbBlock::ENTRIES as u8;

/// The number of lanes that 4 bits can name.
const LANES_MAX: usize = 16;

/// What is left of a link is searched in steps of its rate divided by this.
const LEFT_PART: u64 = 1 << 11;

/// Short frames carry this many eighths of the weight of the others; the first that fits is taken.
const SHORT_EIGHTHS: [u64; 8] = [8, 7, 6, 5, 4, 3, 2, 1];

/// What a lane was sold on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneDemand {
    pub lane: VirtualLane,
    /// Bits per second.
    pub rate: u64,
    /// The most bytes that all other lanes may send between two visits of the lane; `None` if any number is allowed.
    pub gap_bytes: Option<u64>,
}

impl LaneDemand {
    /// A lane with one entry of weight 1 per round.
    pub const fn entry_only(lane: VirtualLane) -> Self {
        Self { lane, rate: 0, gap_bytes: None }
    }

    fn is_entry_only(&self) -> bool {
        self.rate == 0 && self.gap_bytes.is_none()
    }
}

/// What limits the table of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableLimits {
    /// The data rate of the link.
    pub link_bits_per_s: u64,
    /// The entries of the low-priority table of the sending port.
    pub entries: u8,
}

impl TableLimits {
    /// The entries that a composed table may have.
    pub fn entries_usable(&self) -> u8 {
        self.entries.min(ENTRIES_MAX)
    }

    /// The most bytes that other lanes send between two visits of a lane, in any table.
    pub fn gap_bytes_max(&self) -> u64 {
        u64::from(self.entries_usable().saturating_sub(1)) * VISIT_BYTES_MAX
    }

    /// The time of some bytes on the link, in nanoseconds, rounded up.
    pub fn ns_of(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(BITS_NS).div_ceil(self.link_bits_per_s.max(1))
    }

    /// The bytes that the link carries in some time, rounded down.
    pub fn bytes_in(&self, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.link_bits_per_s) / u128::from(BITS_NS)) as u64
    }

    /// Whether a table exists that keeps all demands, each of another lane. It stays true if demands are removed or lowered.
    pub fn fits(&self, demands: &[LaneDemand]) -> bool {
        // Without a gap to keep, more frames only add entries.
        let has_gap = demands.iter().any(|demand| demand.gap_bytes.is_some());
        let counts = if has_gap { self.frame_counts(demands) } else { 1..=1 };
        let mut frames = counts.flat_map(|count| short_eighths(demands).iter().map(move |it| (count, *it)));
        frames.any(|(count, short_eighths)| Frames { count, short_eighths }.solve(self, demands, 0).is_some())
    }

    /// The table that keeps all demands, each of another lane, in order of the lanes; `None` if there is none.
    pub fn compose(&self, demands: &[LaneDemand]) -> Option<Vec<VlArbEntry>> {
        self.compose_round(demands, 0)
    }

    /// Like [`Self::compose`], with weights as for a round of at least `round_bytes`, so that they can be divided.
    pub fn compose_round(&self, demands: &[LaneDemand], round_bytes: u64) -> Option<Vec<VlArbEntry>> {
        let (frames, lanes) = self.solve(demands, round_bytes)?;
        Some(frames.table(demands, &lanes[..demands.len()]))
    }

    /// A rate, in bits per second, that one more lane can be sold beside the others: the most, or at most 1 % of the link less.
    /// `None` if not even an entry is left.
    pub fn left(&self, demands: &[LaneDemand], lane: VirtualLane) -> Option<u64> {
        let has_gap = demands.iter().any(|demand| demand.gap_bytes.is_some());
        let in_one_frame = if has_gap { 0 } else { residual::in_one_frame(self, demands) };
        if in_one_frame > 0 {
            return Some(in_one_frame);
        }
        let fits = |rate| self.fits(&[demands, &[LaneDemand { lane, rate, gap_bytes: None }]].concat());
        if !fits(0) {
            return None;
        }
        let step = (self.link_bits_per_s / LEFT_PART).max(1);
        let (mut possible, mut impossible) = (0, self.link_bits_per_s.max(1));
        while impossible - possible > step {
            let middle = possible + (impossible - possible) / 2;
            if fits(middle) { possible = middle } else { impossible = middle }
        }
        Some(possible)
    }

    /// Whether a table keeps a demand. Lanes in `same` belong to the same cluster: they add to its rate, and waiting for them
    /// does not count.
    pub fn keeps(&self, table: &[VlArbEntry], demand: &LaneDemand, same: LaneSet) -> bool {
        let (mut own, mut others, mut gap, mut gap_max) = (0, 0, 0, 0);
        let Some(first) = table.iter().position(|entry| entry.lane == demand.lane) else { return false };
        for entry in table[first + 1..].iter().chain(&table[..=first]) {
            let least = WEIGHT_BYTES * u64::from(entry.weight);
            if entry.lane == demand.lane {
                own += least;
                gap = 0;
                continue;
            }
            if same.contains(entry.lane) {
                own += least;
            } else {
                others += least + OVERSHOOT_BYTES;
                gap += least + OVERSHOOT_BYTES;
                gap_max = gap_max.max(gap);
            }
        }
        own * self.link_bits_per_s >= demand.rate * (own + others)
            && demand.gap_bytes.is_none_or(|gap_bytes| gap_max <= gap_bytes)
    }

    /// The frames of the table, with the least weights. With a gap to keep, frames beside single entries may be short.
    fn solve(&self, demands: &[LaneDemand], round_bytes: u64) -> Option<(Frames, Lanes)> {
        let framed = framed(demands);
        short_eighths(demands).iter().find_map(|short_eighths| {
            let mut best: Option<(u64, Frames, Lanes)> = None;
            for count in self.frame_counts(demands) {
                let frames = Frames { count, short_eighths: *short_eighths };
                let Some(lanes) = frames.solve(self, demands, round_bytes) else { continue };
                let entries = lanes.iter().map(|lane| lane.entries).sum();
                if best.as_ref().is_none_or(|(least, ..)| entries < *least) {
                    best = Some((entries, frames, lanes));
                }
                if entries <= framed {
                    break;
                }
            }
            best.map(|(_, frames, lanes)| (frames, lanes))
        })
    }

    /// The numbers of frames for which the table can have an entry of each lane in each frame.
    fn frame_counts(&self, demands: &[LaneDemand]) -> RangeInclusive<u64> {
        1..=u64::from(self.entries_usable()) / framed(demands).max(1)
    }
}

/// The number of lanes that have entries in every frame.
fn framed(demands: &[LaneDemand]) -> u64 {
    demands.iter().filter(|demand| !demand.is_entry_only()).count() as u64
}

/// The weights of short frames that are tried: less than that of others only helps to keep a gap.
fn short_eighths(demands: &[LaneDemand]) -> &'static [u64] {
    let has_gap = demands.iter().any(|demand| demand.gap_bytes.is_some());
    if has_gap { &SHORT_EIGHTHS } else { &SHORT_EIGHTHS[..1] }
}

/// The least weight from `weight` on with which a visit sends as many bytes in full packets as its weight says, divided
/// evenly among `entries` entries. An entry of exactly one, two or three full packets would send 1 % less. A weight that is too
/// large for the entries stays as it is.
fn full_weight(weight: u64, entries: u64) -> u64 {
    let sends_less = |each: u64| {
        let packets = (each * WEIGHT_BYTES).div_ceil(FULL_PACKET_BYTES.next_multiple_of(WEIGHT_BYTES));
        packets * FULL_PACKET_BYTES < each * WEIGHT_BYTES
    };
    let is_full = |weight: &u64| !sends_less(weight / entries) && !sends_less(weight.div_ceil(entries));
    (weight..=ENTRY_WEIGHT_MAX * entries).find(is_full).unwrap_or(weight)
}

/// One byte per nanosecond, in bits per second.
const BITS_NS: u64 = 8_000_000_000;

/// The structure of a table.
#[derive(Clone, Copy, Debug)]
struct Frames {
    /// The number of frames.
    count: u64,
    /// The weight of frames beside single entries, in eighths of that of the others.
    short_eighths: u64,
}

/// The entries of a lane in a frame; nothing for a lane with a single entry in the whole table.
#[derive(Clone, Copy, Debug, Default)]
struct FrameShare {
    /// The number of entries.
    entries: u64,
    /// The weight of all of them together.
    weight: u64,
    /// The same in a short frame.
    short_weight: u64,
}

impl FrameShare {
    /// The most bytes that it sends in a frame.
    fn bytes(&self) -> u64 {
        WEIGHT_BYTES * self.weight + OVERSHOOT_BYTES * self.entries
    }

    fn short_bytes(&self) -> u64 {
        WEIGHT_BYTES * self.short_weight + OVERSHOOT_BYTES * self.entries
    }
}

/// What each lane gets in a frame, in the order of the demands.
type Lanes = [FrameShare; LANES_MAX];

impl Frames {
    /// A table of a single frame.
    const ONE: Self = Self { count: 1, short_eighths: 8 };

    /// The least weights of all lanes for rounds of at least `round_bytes`; `None` if the lanes do not fit.
    fn solve(self, limits: &TableLimits, demands: &[LaneDemand], round_bytes: u64) -> Option<Lanes> {
        let (link, usable) = (limits.link_bits_per_s, u64::from(limits.entries_usable()));
        let single = demands.iter().filter(|demand| demand.is_entry_only()).count() as u64;
        let short = self.short(single);
        let sold: u64 = demands.iter().map(|demand| demand.rate).try_fold(0, u64::checked_add)?;
        let unsold = link.checked_sub(sold).filter(|unsold| *unsold > 0)?;
        let mut lanes = Lanes::default();
        let lanes_used = lanes.get_mut(..demands.len())?;
        for (lane, demand) in lanes_used.iter_mut().zip(demands) {
            lane.entries = u64::from(!demand.is_entry_only());
        }
        // Without a gap to keep, the round may be longer by what rounding can add, so that a few steps suffice.
        let has_gap = demands.iter().any(|demand| demand.gap_bytes.is_some());
        let rounding = if has_gap { 0 } else { self.rounding(link) };
        let round_max = usable * VISIT_BYTES_MAX;
        let mut round = round_bytes.min(round_max);
        loop {
            let mut next = single * PACKET_BYTES_MAX;
            let (mut entries, mut least) = (single, single * PACKET_BYTES_MAX * link);
            for (lane, demand) in lanes_used.iter_mut().zip(demands) {
                if lane.entries == 0 {
                    continue;
                }
                self.give(lane, demand.rate, link, round, short);
                next += (self.count - short) * lane.bytes() + short * lane.short_bytes();
                entries += self.count * lane.entries;
                least += self.count * lane.entries * OVERSHOOT_BYTES * (link - demand.rate) + rounding;
            }
            if entries > usable || next > round_max || !self.keeps_gaps(demands, lanes_used, single) {
                return None;
            }
            if next <= round {
                return Some(lanes);
            }
            // With at least these entries, no shorter round is possible.
            round = next.max(least.div_ceil(unsold));
            if round > round_max {
                return None;
            }
        }
    }

    /// The most that rounding can add to a round for a lane, in bytes, times the rate of the link.
    fn rounding(self, link: u64) -> u64 {
        self.count * WEIGHT_BYTES * link
    }

    /// Raises the entries and the weight of a lane to what it needs in a round of `round` bytes.
    fn give(self, lane: &mut FrameShare, rate: u64, link: u64, round: u64, short: u64) {
        // In eighths of a frame's weight.
        let frames = 8 * (self.count - short) + self.short_eighths * short;
        // With fewer entries, they would need more than the largest weight.
        let per_entry =
            frames * ENTRY_WEIGHT_MAX * WEIGHT_BYTES * link + 8 * rate * OVERSHOOT_BYTES * self.count;
        lane.entries = lane.entries.max(8 * rate * round / per_entry);
        loop {
            let others = round.saturating_sub(OVERSHOOT_BYTES * self.count * lane.entries);
            let needed = (rate * others).div_ceil(WEIGHT_BYTES * link);
            lane.weight = full_weight((8 * needed).div_ceil(frames).max(lane.entries), lane.entries);
            if lane.weight <= ENTRY_WEIGHT_MAX * lane.entries {
                break;
            }
            lane.entries += 1;
        }
        let short_weight = (lane.weight * self.short_eighths).div_ceil(8).max(lane.entries);
        lane.short_weight = full_weight(short_weight, lane.entries);
    }

    /// The number of short frames: those beside single entries.
    fn short(self, single: u64) -> u64 {
        if single == 0 { 0 } else { self.count.min(single + 1) }
    }

    /// Whether no lane waits longer than allowed: for one frame of all others, and the single entries between two frames.
    fn keeps_gaps(self, demands: &[LaneDemand], lanes: &[FrameShare], single: u64) -> bool {
        let frame: u64 = lanes.iter().map(FrameShare::bytes).sum();
        let short_frame: u64 = lanes.iter().map(FrameShare::short_bytes).sum();
        let between = single.div_ceil(self.count) * PACKET_BYTES_MAX;
        let is_long = self.count > self.short(single);
        demands.iter().zip(lanes).all(|(demand, lane)| {
            let Some(gap_bytes) = demand.gap_bytes else { return true };
            let long = if is_long { frame - lane.bytes() } else { 0 };
            long.max(short_frame - lane.short_bytes() + between) <= gap_bytes
        })
    }

    /// The entries in order.
    fn table(self, demands: &[LaneDemand], lanes: &[FrameShare]) -> Vec<VlArbEntry> {
        let singles: Vec<VirtualLane> =
            demands.iter().filter(|demand| demand.is_entry_only()).map(|demand| demand.lane).collect();
        let single = singles.len() as u64;
        // By the middle of its part of the frame, in multiples of 1 / (2 · entries).
        let mut order: Vec<(u64, u64, usize)> = Vec::new();
        for (at, lane) in lanes.iter().enumerate() {
            order.extend((0..lane.entries).map(|number| (2 * number + 1, lane.entries, at)));
        }
        order.sort_by(|a, b| (a.0 * b.1, a.2).cmp(&(b.0 * a.1, b.2)));
        let mut table = Vec::new();
        for frame in 0..self.count {
            let here = singles
                .iter()
                .zip(0..)
                .filter(|(_, number)| number * self.count / single.max(self.count) == frame);
            table.extend(here.map(|(lane, _)| VlArbEntry { lane: *lane, weight: 1 }));
            // A single entry is before this frame or before the next.
            let is_short = self.short(single) > 0 && (frame < single || frame + 1 == self.count);
            table.extend(order.iter().map(|(position, entries, at)| {
                let lane = &lanes[*at];
                let weight = if is_short { lane.short_weight } else { lane.weight };
                let number = position / 2;
                let weight = weight / entries + u64::from(number < weight % entries);
                VlArbEntry { lane: demands[*at].lane, weight: weight as u8 }
            }));
        }
        table
    }
}

#[cfg(test)]
mod tests;
