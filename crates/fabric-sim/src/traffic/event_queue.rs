//! The event queue: events in order of time.
//!
//! Events of the near future are in buckets of equal width, which are sorted when they become current; later
//! events are in a heap (a calendar queue). Events at the same time are ordered by their codes, so that the
//! order does not depend on the order of insertion.
//!
//! A large fabric has tens of thousands of pending events, and an insertion touches a random bucket. So
//! events are small: in a bucket, an event is one number, with the time within the bucket in the highest
//! bits. Buckets are linked lists of cache lines, which are reused.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The time of an event in picoseconds, and its code.
pub(crate) type Event = (u64, u64);

/// Width of a bucket as a power of two, in picoseconds: a quarter of a nanosecond. With thousands of busy
/// links, a bucket has dozens of events.
const WIDTH_BITS: u32 = 8;

/// Bits of an event code; the other bits are the time within the bucket.
pub(crate) const CODE_BITS: u32 = u64::BITS - WIDTH_BITS;

/// Together the buckets cover a microsecond, longer than a full-size packet takes on most links.
const BUCKETS: usize = 4096;

const WORD: usize = u64::BITS as usize;

/// Events of a list, so that a list is one cache line.
const LIST_EVENTS: usize = 7;

/// Buckets after the current one that `coming` looks into.
const AHEAD: u64 = 8;

const NONE: u32 = u32::MAX;

/// A part of a bucket.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct List {
    events: [u64; LIST_EVENTS],
    count: u32,
    /// The next list of the same bucket or of the free list.
    next: u32,
}

const _: () = assert!(size_of::<List>() == 64);

/// Pending events, taken in order of time and code.
#[derive(Debug)]
pub(crate) struct EventQueue {
    /// Number of the current bucket: its time in units of the width.
    number: u64,
    /// The events of the current bucket in order.
    current: Vec<u64>,
    /// How many events of `current` were taken.
    taken: usize,
    /// The first list of each bucket.
    buckets: Vec<u32>,
    lists: Vec<List>,
    /// The first free list.
    free: u32,
    /// One bit per bucket in use.
    used: [u64; BUCKETS / WORD],
    /// Events after the last bucket.
    far: BinaryHeap<Reverse<Event>>,
}

impl EventQueue {
    pub fn new() -> Self {
        Self {
            number: 0,
            current: Vec::new(),
            taken: 0,
            buckets: vec![NONE; BUCKETS],
            lists: Vec::new(),
            free: NONE,
            used: [0; BUCKETS / WORD],
            far: BinaryHeap::new(),
        }
    }

    /// Adds an event. Its time must not be before the last event taken, nor before the last `until` for which
    /// `pop` returned `None`.
    #[inline]
    pub fn push(&mut self, time: u64, code: u64) {
        let number = time >> WIDTH_BITS;
        debug_assert!(
            number >= self.number && code >> CODE_BITS == 0,
            "an event is in the future and its code fits"
        );
        if number <= self.number {
            let event = pack(time, code);
            let index = self.current[self.taken..].partition_point(|other| *other < event);
            self.current.insert(self.taken + index, event);
        } else if number - self.number < BUCKETS as u64 {
            self.put(pack(time, code), number);
        } else {
            self.far.push(Reverse((time, code)));
        }
    }

    /// Takes the next event, if its time is at most `until`.
    #[inline]
    pub fn pop(&mut self, until: u64) -> Option<Event> {
        loop {
            if let Some(event) = self.current.get(self.taken) {
                let (time, code) = unpack(self.number, *event);
                let is_due = time <= until;
                self.taken += usize::from(is_due);
                return is_due.then_some((time, code));
            }
            if !self.advance(until) {
                return None;
            }
        }
    }

    /// Calls `see` for events that follow after `after` others, about `count` of them. Approximate: other
    /// buckets are not sorted, and lists are taken whole.
    #[inline]
    pub fn coming(&self, after: usize, count: usize, mut see: impl FnMut(u64)) {
        let current = &self.current[self.taken..];
        let due = current.get(after..).unwrap_or_default();
        due.iter().take(count).for_each(|event| see(unpack(0, *event).1));
        let (mut passed, mut seen) = (current.len().min(after), due.len());
        for number in self.number + 1..self.number + AHEAD {
            if seen >= count {
                break;
            }
            for list in self.lists_of(number as usize % BUCKETS) {
                if passed < after {
                    passed += list.len();
                } else {
                    seen += list.len();
                    list.iter().for_each(|event| see(unpack(0, *event).1));
                }
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.taken == self.current.len() && self.far.is_empty() && self.used.iter().all(|word| *word == 0)
    }

    /// All pending events, unordered.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        let near = (0..BUCKETS).flat_map(|index| self.bucket(index));
        let next = self.current[self.taken..].iter().map(|event| unpack(0, *event).1);
        near.chain(next).chain(self.far.iter().map(|Reverse((_, code))| *code))
    }

    fn bucket(&self, index: usize) -> impl Iterator<Item = u64> {
        self.lists_of(index).flatten().map(|event| unpack(0, *event).1)
    }

    /// The events of a bucket, list by list.
    #[inline]
    fn lists_of(&self, index: usize) -> impl Iterator<Item = &[u64]> {
        let list = |number: u32| self.lists.get(number as usize);
        let lists = std::iter::successors(list(self.buckets[index]), move |before| list(before.next));
        lists.map(|list| &list.events[..list.count as usize])
    }

    #[inline]
    fn put(&mut self, event: u64, number: u64) {
        let index = number as usize % BUCKETS;
        let first = self.buckets[index];
        if let Some(list) = self.lists.get_mut(first as usize)
            && let Some(room) = list.events.get_mut(list.count as usize)
        {
            *room = event;
            list.count += 1;
            return;
        }
        self.put_first(event, index);
    }

    /// Starts a new list in a bucket.
    fn put_first(&mut self, event: u64, index: usize) {
        let next = std::mem::replace(&mut self.buckets[index], self.free);
        let list = List { events: [event; LIST_EVENTS], count: 1, next };
        if let Some(free) = self.lists.get_mut(self.free as usize) {
            self.free = free.next;
            *free = list;
        } else {
            self.buckets[index] = self.lists.len() as u32;
            self.lists.push(list);
        }
        self.used[index / WORD] |= 1 << (index % WORD);
    }

    /// Advances to the next bucket that has events, if it begins no later than `until`. Returns whether there
    /// is one.
    fn advance(&mut self, until: u64) -> bool {
        let far = self.far.peek().map(|Reverse((time, _))| time >> WIDTH_BITS);
        // Events in the heap are later than those in all buckets.
        let next = self.next_used().or(far).filter(|number| *number <= until >> WIDTH_BITS);
        let Some(number) = next else { return false };
        self.number = number;
        self.current.clear();
        self.taken = 0;
        self.take(number as usize % BUCKETS);
        while let Some(Reverse((time, code))) = self.far.peek().copied() {
            let number = time >> WIDTH_BITS;
            if number - self.number >= BUCKETS as u64 {
                break;
            }
            self.far.pop();
            let event = pack(time, code);
            if number == self.number { self.current.push(event) } else { self.put(event, number) }
        }
        self.current.sort_unstable();
        true
    }

    /// Moves the events of a bucket to `current`.
    fn take(&mut self, index: usize) {
        let mut next = std::mem::replace(&mut self.buckets[index], NONE);
        while let Some(list) = self.lists.get_mut(next as usize) {
            self.current.extend_from_slice(&list.events[..list.count as usize]);
            let after = std::mem::replace(&mut list.next, self.free);
            self.free = std::mem::replace(&mut next, after);
        }
        self.used[index / WORD] &= !(1 << (index % WORD));
    }

    /// Number of the first bucket in use after the current one.
    fn next_used(&self) -> Option<u64> {
        let first = (self.number as usize + 1) % BUCKETS;
        let (word, bit) = (first / WORD, first % WORD);
        let ahead = self.used[word] & (u64::MAX << bit);
        let words = self.used.len();
        let index = if ahead != 0 {
            word * WORD + ahead.trailing_zeros() as usize
        } else {
            // Wraps around: the first word is looked at again for the buckets before the first.
            let next = (1..=words).map(|step| (word + step) % words).find(|word| self.used[*word] != 0)?;
            next * WORD + self.used[next].trailing_zeros() as usize
        };
        Some(self.number + 1 + ((index + BUCKETS - first) % BUCKETS) as u64)
    }
}

/// An event as stored in its bucket.
#[inline]
const fn pack(time: u64, code: u64) -> u64 {
    time << CODE_BITS | code
}

/// An event of the bucket with this number.
#[inline]
const fn unpack(number: u64, event: u64) -> Event {
    (number << WIDTH_BITS | event >> CODE_BITS, event & ((1 << CODE_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    #[test]
    fn events_are_taken_in_sorted_order() {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        for reach in [100, 10_000, 5_000_000, 50_000_000] {
            let (mut queue, mut list, mut now) = (EventQueue::new(), Vec::new(), 0);
            for code in 0..20_000 {
                if rng.random_range(0..2) == 0 || list.is_empty() {
                    let time = now + rng.random_range(0..reach);
                    queue.push(time, code);
                    list.push((time, code));
                    list.sort_unstable_by(|a, b| b.cmp(a));
                } else {
                    let until = now + rng.random_range(0..reach);
                    let next = list.last().copied().filter(|event: &Event| event.0 <= until);
                    assert_eq!(queue.pop(until), next);
                    now = match next {
                        Some((time, _)) => list.pop().map_or(time, |event| event.0),
                        // Nothing may be added before `until` now.
                        None => until,
                    };
                }
                assert_eq!(queue.is_empty(), list.is_empty());
            }
            assert_eq!(queue.iter().count(), list.len());
        }
    }

    #[test]
    fn most_events_are_prefetched_before_they_happen() {
        const BATCH: usize = 16;
        // All at the same time, or a few dozen in each bucket.
        for step in [0, 10] {
            let (mut queue, mut seen, mut unseen) = (EventQueue::new(), Vec::new(), 0);
            (0..1000).for_each(|code| queue.push(300 + code * step, code));
            for happened in 0..1000 {
                let (_, code) = queue.pop(u64::MAX).unwrap();
                unseen += usize::from(!seen.contains(&code));
                if happened % BATCH == 0 {
                    queue.coming(BATCH, BATCH, |code| seen.push(code));
                }
            }
            assert!((BATCH..10 * BATCH).contains(&unseen), "{unseen} came unseen");
            assert!(seen.len() < 2000, "{} were seen", seen.len());
        }
    }
}
