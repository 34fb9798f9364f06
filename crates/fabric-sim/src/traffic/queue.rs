//! What happens next: events in the order of their time.
//!
//! Events of the near future lie in buckets of equal width, which are sorted when their time comes; those further away
//! lie in a heap. Two events of the same moment are in the order of what they are, so that the order does not depend on
//! who asked first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens: when, in picoseconds, and what.
pub(crate) type Event = (u64, u64);

/// Width of a bucket as a power of two: an eighth of a nanosecond. A fabric of thousands of busy links has some
/// events in each.
const WIDTH_BITS: u32 = 7;

/// Buckets: together they hold a microsecond, more than a full-size packet takes on most links.
const BUCKETS: usize = 8192;

/// Bits of a word that tells which buckets are in use.
const WORD: usize = u64::BITS as usize;

/// Events that have not happened yet.
#[derive(Debug)]
pub(crate) struct EventQueue {
    /// Number of the bucket whose events are in `current`: a time in units of the width.
    number: u64,
    /// The next events, the first one last.
    current: Vec<Event>,
    buckets: Vec<Vec<Event>>,
    /// Which buckets are in use.
    used: [u64; BUCKETS / WORD],
    /// Events beyond the buckets.
    far: BinaryHeap<Reverse<Event>>,
    has_advanced: bool,
}

impl EventQueue {
    pub fn new() -> Self {
        Self {
            number: 0,
            current: Vec::new(),
            buckets: vec![Vec::new(); BUCKETS],
            used: [0; BUCKETS / WORD],
            far: BinaryHeap::new(),
            has_advanced: false,
        }
    }

    /// Adds an event. One in the past comes next.
    #[inline]
    pub fn push(&mut self, time: u64, what: u64) {
        let number = time >> WIDTH_BITS;
        if number <= self.number {
            let place = self.current.partition_point(|event| *event > (time, what));
            self.current.insert(place, (time, what));
        } else if number - self.number < BUCKETS as u64 {
            self.put((time, what), number);
        } else {
            self.far.push(Reverse((time, what)));
        }
    }

    /// Takes the next event, if it happens no later than this.
    #[inline]
    pub fn pop(&mut self, until: u64) -> Option<Event> {
        loop {
            if let Some(event) = self.current.last() {
                return if event.0 <= until { self.current.pop() } else { None };
            }
            if !self.advance() {
                return None;
            }
        }
    }

    /// Whether the last event taken was the first of a bucket. Says so once.
    #[inline]
    pub fn has_advanced(&mut self) -> bool {
        std::mem::take(&mut self.has_advanced)
    }

    /// The events that come next, as far as they are sorted, the first one last.
    pub fn next(&self) -> &[Event] {
        &self.current
    }

    pub fn is_empty(&self) -> bool {
        self.current.is_empty() && self.far.is_empty() && self.used.iter().all(|word| *word == 0)
    }

    /// All events, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Event> {
        let near = self.current.iter().chain(self.buckets.iter().flatten()).copied();
        near.chain(self.far.iter().map(|Reverse(event)| *event))
    }

    fn put(&mut self, event: Event, number: u64) {
        let place = number as usize % BUCKETS;
        self.buckets[place].push(event);
        self.used[place / WORD] |= 1 << (place % WORD);
    }

    /// Goes to the next bucket with events. Whether there is one.
    fn advance(&mut self) -> bool {
        let far = self.far.peek().map(|Reverse((time, _))| time >> WIDTH_BITS);
        // What is far away is later than all buckets.
        let Some(number) = self.next_used().or(far) else { return false };
        self.number = number;
        let place = number as usize % BUCKETS;
        std::mem::swap(&mut self.current, &mut self.buckets[place]);
        self.used[place / WORD] &= !(1 << (place % WORD));
        while let Some(Reverse((time, _))) = self.far.peek() {
            let number = time >> WIDTH_BITS;
            if number - self.number >= BUCKETS as u64 {
                break;
            }
            if let Some(Reverse(event)) = self.far.pop() {
                if number == self.number { self.current.push(event) } else { self.put(event, number) }
            }
        }
        self.current.sort_unstable_by(|a, b| b.cmp(a));
        self.has_advanced = true;
        true
    }

    /// Number of the first bucket in use behind the current one.
    fn next_used(&self) -> Option<u64> {
        let first = (self.number as usize + 1) % BUCKETS;
        let (word, bit) = (first / WORD, first % WORD);
        let ahead = self.used[word] & (u64::MAX << bit);
        let words = self.used.len();
        let place = if ahead != 0 {
            word * WORD + ahead.trailing_zeros() as usize
        } else {
            // Once around: the first word again at the end, for the places before the first.
            let next = (1..=words).map(|step| (word + step) % words).find(|word| self.used[*word] != 0)?;
            next * WORD + self.used[next].trailing_zeros() as usize
        };
        Some(self.number + 1 + ((place + BUCKETS - first) % BUCKETS) as u64)
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    #[test]
    fn events_come_in_the_order_of_a_sorted_list() {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        for reach in [100, 10_000, 5_000_000, 50_000_000] {
            let (mut queue, mut list, mut now) = (EventQueue::new(), Vec::new(), 0);
            for what in 0..20_000 {
                if rng.random_range(0..2) == 0 || list.is_empty() {
                    let time = now + rng.random_range(0..reach);
                    queue.push(time, what);
                    list.push((time, what));
                    list.sort_unstable_by(|a, b| b.cmp(a));
                } else {
                    let until = now + rng.random_range(0..reach);
                    let next = list.last().copied().filter(|event: &Event| event.0 <= until);
                    assert_eq!(queue.pop(until), next);
                    if let Some((time, _)) = next {
                        (_, now) = (list.pop(), time);
                    }
                }
                assert_eq!(queue.is_empty(), list.is_empty());
            }
            assert_eq!(queue.iter().count(), list.len());
        }
    }
}
