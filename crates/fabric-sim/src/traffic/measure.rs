//! Measurements: delivered packets, latencies, drops.

use std::collections::BTreeMap;

use serde::Serialize;

use super::time::Time;
use crate::fabric::DropReason;

/// Buckets per doubling: a bucket is at most 1/32 wide.
const PARTS: u64 = 32;

/// Shorter times, in picoseconds, share the first bucket.
const SMALLEST_PS: u64 = 1 << 10;

/// A histogram of times. Count, sum, minimum and maximum are exact; quantiles have a relative error of at
/// most 1/32.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum_ps: u128,
    min: Option<Time>,
    max: Time,
}

impl Histogram {
    /// Adds one time to the histogram.
    pub fn record(&mut self, time: Time) {
        let bucket = bucket(time.ps());
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.count += 1;
        self.sum_ps += u128::from(time.ps());
        self.min = Some(self.min.map_or(time, |min| min.min(time)));
        self.max = self.max.max(time);
    }

    /// Adds all times of another histogram.
    pub fn merge(&mut self, other: &Self) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (own, count) in self.counts.iter_mut().zip(&other.counts) {
            *own += count;
        }
        self.count += other.count;
        self.sum_ps += other.sum_ps;
        self.min = self.min.into_iter().chain(other.min).min();
        self.max = self.max.max(other.max);
    }

    /// Number of recorded times.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The shortest time; `None` if none was recorded.
    pub fn min(&self) -> Option<Time> {
        self.min
    }

    /// The longest time; `None` if none was recorded.
    pub fn max(&self) -> Option<Time> {
        (self.count > 0).then_some(self.max)
    }

    /// The mean time; `None` if none was recorded.
    pub fn mean(&self) -> Option<Time> {
        let mean = self.sum_ps.checked_div(u128::from(self.count))?;
        Some(Time::from_ps(u64::try_from(mean).unwrap_or(u64::MAX)))
    }

    /// An upper bound on the time that `part` of all times do not exceed; 0.99 is the 99th percentile. At
    /// most 1/32 too high.
    pub fn quantile(&self, part: f64) -> Option<Time> {
        let rank = ((part.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(Time::from_ps(end(bucket)).min(self.max))
    }

    /// The buckets that are not empty in ascending order: the longest time of each and the number of times.
    pub fn buckets(&self) -> impl Iterator<Item = (Time, u64)> {
        let counts = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        counts.map(|(bucket, count)| (Time::from_ps(end(bucket)), *count))
    }
}

fn bucket(ps: u64) -> usize {
    if ps < SMALLEST_PS {
        return 0;
    }
    let doublings = u64::from(ps.ilog2());
    let part = (ps >> (doublings - u64::from(PARTS.ilog2()))) - PARTS;
    1 + ((doublings - u64::from(SMALLEST_PS.ilog2())) * PARTS + part) as usize
}

/// The longest time of a bucket.
fn end(bucket: usize) -> u64 {
    let Some(index) = (bucket as u64).checked_sub(1) else { return SMALLEST_PS - 1 };
    let doublings = index / PARTS + u64::from(SMALLEST_PS.ilog2());
    let width = doublings - u64::from(PARTS.ilog2());
    let end = (u128::from(PARTS + index % PARTS + 1) << width) - 1;
    u64::try_from(end).unwrap_or(u64::MAX)
}

/// Measurements of the packets with one [`Tag`](super::Tag).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Measure {
    /// Packets that entered a queue. A message in a queue counts with the packets that were cut from it so
    /// far.
    pub created: u64,
    pub delivered: u64,
    /// Payload bytes delivered.
    pub bytes: u64,
    /// Bytes delivered, headers and CRCs included.
    pub wire_bytes: u64,
    pub drops: BTreeMap<DropReason, u64>,
    /// Latency from the posting of the message to the arrival of the packet.
    pub from_post: Histogram,
    /// Latency from the moment a packet was first in its lane at the sender to its arrival.
    pub from_head: Histogram,
    /// Latency from the head of the queue for packets that found their lane empty on the whole path: no
    /// packet waiting or being sent, and credits available. Latency bounds apply to these.
    pub uncontended: Histogram,
    /// Latency of whole messages from posting to arrival of the last packet.
    pub messages: Histogram,
    /// Delivered payload in each interval of [`TrafficSettings::interval`](super::TrafficSettings::interval),
    /// from the start.
    pub interval_bytes: Vec<u64>,
}

impl Measure {
    /// Adds the measurements of another tag.
    pub fn merge(&mut self, other: &Self) {
        self.created += other.created;
        self.delivered += other.delivered;
        self.bytes += other.bytes;
        self.wire_bytes += other.wire_bytes;
        for (reason, count) in &other.drops {
            *self.drops.entry(*reason).or_default() += count;
        }
        self.from_post.merge(&other.from_post);
        self.from_head.merge(&other.from_head);
        self.uncontended.merge(&other.uncontended);
        self.messages.merge(&other.messages);
        if other.interval_bytes.len() > self.interval_bytes.len() {
            self.interval_bytes.resize(other.interval_bytes.len(), 0);
        }
        for (own, bytes) in self.interval_bytes.iter_mut().zip(&other.interval_bytes) {
            *own += bytes;
        }
    }

    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_bucket_that_covers_it() {
        for ps in (0..70_000).chain((0..50).map(|shift| (1 << shift) + (1 << shift) / 3)) {
            let at = bucket(ps);
            assert!(ps <= end(at), "{ps}");
            assert!(at == 0 || end(at - 1) < ps, "{ps}");
            assert!(at == 0 || end(at) - ps <= ps / 32, "{ps}");
        }
        assert_eq!(end(bucket(u64::MAX)), u64::MAX);
    }

    #[test]
    fn quantiles_are_exact_to_one_bucket() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.quantile(0.5), histogram.max()), (None, None));
        (1..=1000).for_each(|ns| histogram.record(Time::from_ns(ns)));
        for (part, ns) in [(0.5, 500), (0.99, 990), (1.0, 1000)] {
            let found = histogram.quantile(part).unwrap();
            assert!(found >= Time::from_ns(ns) && found.ps() <= ns * 1000 * 33 / 32, "{part}: {found}");
        }
        assert_eq!(histogram.max(), Some(Time::from_us(1)));
        assert_eq!(histogram.mean(), Some(Time::from_ps(500_500)));
        let mut twice = histogram.clone();
        twice.merge(&histogram);
        assert_eq!((twice.count(), twice.quantile(0.5)), (2000, histogram.quantile(0.5)));
    }
}
