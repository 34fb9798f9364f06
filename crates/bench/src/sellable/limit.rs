//! The most that arbitration tables can guarantee to equal clusters, found without the planner.
//!
//! A table has `entries` entries, of which each reserved lane has one of weight 1; all others belong to `clusters` lanes and
//! have weights from 1 to 255. A visit of weight `w` sends at least `64·w` bytes, and at most `64·w + 4158`. With `nᵢ`
//! entries and `Oᵢ` bytes of weight per round, cluster `i` is guaranteed `Oᵢ / (T − 4158·nᵢ)` of the link, where
//! `T = Σ (Oᵢ + 4158·nᵢ) + 4222·reserved` is the longest round. Under a latency, other lanes send at most `gap` bytes
//! between two of its visits.

/// The unit of weight, in bytes.
const UNIT: f64 = 64.0;
const WEIGHT_MAX: f64 = 255.0;
/// The largest packet, and the most by which it exceeds a weight.
const PACKET: f64 = 4222.0;
const OVERSHOOT: f64 = PACKET - UNIT;

/// A table whose limit is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    pub entries: u32,
    /// Lanes with one entry of weight 1.
    pub reserved: u32,
    /// Clusters with the same rate.
    pub clusters: u32,
    /// The most bytes of others between two visits of a cluster.
    pub gap: Option<f64>,
}

/// The most that each cluster can be guaranteed, as a part of the link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareLimit {
    pub part: f64,
    /// Whether a table reaches it, as far as the order of entries does not matter; otherwise it is an upper bound.
    pub is_exact: bool,
}

/// Tables up to this length are searched completely: all numbers of entries of the clusters, and all weights. Longer ones have
/// too many numbers of entries, and are taken to have equal ones.
const SEARCHED_ENTRIES_MAX: u32 = 16;

impl Question {
    /// The limit of this table.
    pub fn limit(&self) -> ShareLimit {
        let is_short = self.entries <= SEARCHED_ENTRIES_MAX;
        let part = if is_short { self.most_by_counts() } else { self.most_by_equal_counts() };
        ShareLimit { part, is_exact: self.gap.is_none() }
    }

    fn own_entries(&self) -> u32 {
        self.entries.saturating_sub(self.reserved)
    }

    /// The most over all weights if every cluster has the same number of entries, which is the best there is for two clusters
    /// and more. `most_by_counts` finds the same without this argument.
    ///
    /// Let a table give each cluster `part`, let cluster 1 have the fewest entries `m`, and let `X = part·(T − 4158·m)`, rounded
    /// up to whole weights, be what it needs. Another cluster with `n` entries has `O ≥ part·(T − 4158·n)`, so that
    /// `O + 4158·n ≥ X + 4158·m + (1 − part)·4158·(n − m)` up to one unit of weight, which is less than the last term as
    /// `part ≤ 1/2`. A table in which all have `m` entries and `X` bytes therefore sends no more to the others of a cluster than
    /// the first one to those of cluster 1: the rate is at least as high, and all gaps together are at most `m·gap`.
    fn most_by_equal_counts(&self) -> f64 {
        let others = f64::from(self.clusters - 1);
        let reserved = PACKET * f64::from(self.reserved);
        let of_count = |count: u32| {
            let entries = f64::from(count);
            let rest = others * OVERSHOOT * entries + reserved;
            let by_gap = self
                .gap
                .filter(|_| self.clusters > 1)
                .map_or(f64::MAX, |gap| ((entries * gap - rest) / (others * UNIT) + ROUNDING).floor());
            let weight = by_gap.min(WEIGHT_MAX * entries);
            let own = UNIT * weight;
            if weight < entries { 0.0 } else { own / (own + others * own + rest) }
        };
        (1..=self.own_entries() / self.clusters.max(1)).map(of_count).fold(0.0, f64::max)
    }

    /// The most over all numbers of entries, in ascending order of clusters because these are alike.
    fn most_by_counts(&self) -> f64 {
        let mut best = 0.0;
        let mut counts = vec![1; self.clusters as usize];
        while counts.iter().sum::<u32>() <= self.own_entries() {
            best = self.most_of(&counts, best);
            // The next ascending sequence.
            let fits = |at: &usize| {
                let before: u32 = counts[..*at].iter().sum();
                before + (counts[*at] + 1) * (counts.len() - at) as u32 <= self.own_entries()
            };
            let Some(at) = (0..counts.len()).rev().find(fits) else { break };
            let raised = counts[at] + 1;
            counts[at..].fill(raised);
        }
        best
    }

    /// The most that clusters with these numbers of entries are guaranteed, or `at_least` if that is more: over all sums of
    /// weights, which give the length of the round.
    ///
    /// In a round of `T` bytes a cluster needs a weight for its part, one unit for each entry, and, since all its gaps
    /// together are at most `nᵢ·gap`, what the others may not send: `Oᵢ ≥ T − 4158·nᵢ − nᵢ·gap`. That the order of entries
    /// must divide the gaps evenly is not asked for, so that with a gap the result is an upper bound.
    fn most_of(&self, counts: &[u32], at_least: f64) -> f64 {
        let entries: u32 = counts.iter().sum();
        let mut best = at_least;
        for units in entries..=entries * WEIGHT_MAX as u32 {
            let round =
                UNIT * f64::from(units) + OVERSHOOT * f64::from(entries) + PACKET * f64::from(self.reserved);
            let is_possible = |part: f64| {
                let needed = counts.iter().map(|count| self.units_needed(*count, round, part));
                needed.sum::<Option<u32>>().is_some_and(|needed| needed <= units)
            };
            if !is_possible(best + PRECISION) {
                continue;
            }
            let (mut possible, mut impossible) = (best, 1.0);
            while impossible - possible > PRECISION {
                let middle = f64::midpoint(possible, impossible);
                if is_possible(middle) { possible = middle } else { impossible = middle }
            }
            best = possible;
        }
        best
    }

    /// The weight that a cluster with some entries needs for a part of the link; `None` if it is too much for them.
    fn units_needed(&self, count: u32, round: f64, part: f64) -> Option<u32> {
        let entries = f64::from(count);
        let others = round - OVERSHOOT * entries;
        let by_gap = self.gap.map_or(0.0, |gap| others - entries * gap);
        let units = ((part * others).max(by_gap) / UNIT - ROUNDING).ceil().max(entries);
        (units <= WEIGHT_MAX * entries).then_some(units as u32)
    }
}

/// How exactly parts of a link are found.
const PRECISION: f64 = 1e-7;

/// Below this, a difference of weights is a rounding error.
const ROUNDING: f64 = 1e-9;

/// The most that the second of two clusters gets if the first has `ratio` times its rate: over all numbers of entries, with
/// whole weights and without a latency.
pub fn mix(entries: u32, reserved: u32, ratio: u32) -> f64 {
    let own = entries.saturating_sub(reserved);
    let mut best = 0.0;
    for first in 1..own {
        for second in 1..=own - first {
            let is_possible =
                |part: f64| is_mix_possible([first, second], reserved, [part * f64::from(ratio), part]);
            if !is_possible(best + PRECISION) {
                continue;
            }
            let (mut possible, mut impossible) = (best, 1.0);
            while impossible - possible > PRECISION {
                let middle = f64::midpoint(possible, impossible);
                if is_possible(middle) { possible = middle } else { impossible = middle }
            }
            best = possible;
        }
    }
    best
}

/// Whether weights give clusters with these numbers of entries these parts of the link. Weights are raised only as far as in
/// every solution, so that none is missed.
fn is_mix_possible(counts: [u32; 2], reserved: u32, parts: [f64; 2]) -> bool {
    let counts = counts.map(f64::from);
    let mut weights = counts;
    loop {
        let own: f64 = weights.iter().map(|weight| UNIT * weight).sum();
        let round = own + OVERSHOOT * (counts[0] + counts[1]) + PACKET * f64::from(reserved);
        let mut is_enough = true;
        for ((weight, count), part) in weights.iter_mut().zip(counts).zip(parts) {
            let needed = (part * (round - OVERSHOOT * count) / UNIT - ROUNDING).ceil();
            if needed > WEIGHT_MAX * count {
                return false;
            }
            if needed > *weight {
                (*weight, is_enough) = (needed, false);
            }
        }
        if is_enough {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_of_entries_are_best_for_equal_clusters() {
        let mut compared = 0;
        for gap in [None, Some(9_000.0), Some(30_000.0), Some(39_362.0), Some(101_861.0)] {
            for (entries, reserved) in [(5, 1), (8, 2), (11, 2), (13, 1)] {
                for clusters in 2..=entries - reserved {
                    let question = Question { entries, reserved, clusters, gap };
                    let (all, equal) = (question.most_by_counts(), question.most_by_equal_counts());
                    assert!((all - equal).abs() < 1e-6, "{question:?}: {all} {equal}");
                    compared += usize::from(all > 0.0);
                }
            }
        }
        assert!(compared > 60, "{compared}");
    }

    /// Every order of a few entries, and every choice of some weights.
    #[test]
    fn no_small_table_exceeds_the_limit() {
        let weights = [1_u32, 40, 140, 255];
        for gap in [None, Some(14_000.0), Some(25_000.0), Some(60_000.0)] {
            let question = Question { entries: 6, reserved: 1, clusters: 2, gap };
            let limit = question.limit().part;
            let (mut best, mut tables) = (0.0_f64, 0);
            for lanes in 0..1_u32 << 5 {
                for choice in 0..weights.len().pow(5) {
                    let weight = |at: u32| weights[choice / weights.len().pow(at) % weights.len()];
                    let entry = |at: u32| (1 + (lanes >> at & 1), weight(at));
                    let table: Vec<(u32, u32)> = [(0, 1)].into_iter().chain((0..5).map(entry)).collect();
                    let parts = [1, 2].map(|lane| part_of(&table, lane, gap));
                    best = best.max(parts[0].min(parts[1]));
                    tables += 1;
                }
            }
            assert!(tables == 32 * 1024 && best > 0.0 && best <= limit + 1e-6, "{gap:?}: {best} {limit}");
            assert!(best > 0.5 * limit, "{gap:?}: {best} {limit}");
        }
    }

    /// The part of a link that a table of lanes and weights guarantees to a lane; 0 if it waits too long.
    fn part_of(table: &[(u32, u32)], lane: u32, gap: Option<f64>) -> f64 {
        let Some(first) = table.iter().position(|(owner, _)| *owner == lane) else { return 0.0 };
        let (mut own, mut others, mut wait, mut longest) = (0.0, 0.0, 0.0, 0.0_f64);
        for at in 1..=table.len() {
            let (owner, weight) = table[(first + at) % table.len()];
            let bytes = UNIT * f64::from(weight);
            if owner == lane {
                own += bytes;
                wait = 0.0;
            } else {
                others += bytes + OVERSHOOT;
                wait += bytes + OVERSHOOT;
                longest = longest.max(wait);
            }
        }
        if gap.is_some_and(|gap| longest > gap) { 0.0 } else { own / (own + others) }
    }

    #[test]
    fn a_mix_of_one_to_one_is_two_equal_clusters() {
        for entries in [8, 12, 16] {
            let equal = Question { entries, reserved: 2, clusters: 2, gap: None }.limit().part;
            assert!((mix(entries, 2, 1) - equal).abs() < 1e-6);
            assert!(4.0 * mix(entries, 2, 3) > 2.0 * equal, "unequal clusters have less overhead");
        }
    }

    #[test]
    fn no_latency_is_the_limit_of_long_ones() {
        let free = Question { entries: 64, reserved: 2, clusters: 4, gap: None };
        let gaps =
            [20_000.0, 40_000.0, 80_000.0, 2e6].map(|gap| Question { gap: Some(gap), ..free }.limit().part);
        assert!(gaps.is_sorted() && gaps[0] > 0.0 && gaps[1] < gaps[2], "{gaps:?}");
        assert!((gaps[3] - free.limit().part).abs() < 1e-12);
        // Three others send at least a packet each.
        assert_eq!(Question { gap: Some(3.0 * PACKET - 1.0), ..free }.limit().part, 0.0);
    }
}
