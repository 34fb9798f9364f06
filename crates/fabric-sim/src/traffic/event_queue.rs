//! What happens next: events in the order of their time.
//!
//! Events of the near future lie in buckets of equal width, which are sorted when their time comes; those further away
//! lie in a heap. Two events of the same moment are in the order of what they are, so that the order does not depend on
//! who asked first.
//!
//! A large fabric has tens of thousands of them, and who adds one finds its bucket at random: so they are kept small. In
//! a bucket an event is one number, with what the bucket does not tell of its time before all else, and buckets are rows
//! of short lists that are used again as soon as they are free.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens: when, in picoseconds, and what.
pub(crate) type Event = (u64, u64);

/// Width of a bucket as a power of two: a quarter of a nanosecond. A fabric of thousands of busy links has dozens of
/// events in each.
const WIDTH_BITS: u32 = 8;

/// Bits that tell what happens; the others tell when within a bucket.
pub(crate) const CODE_BITS: u32 = u64::BITS - WIDTH_BITS;

/// Buckets: together they hold a microsecond, more than a full-size packet takes on most links.
const BUCKETS: usize = 4096;

/// Bits of a word that tells which buckets are in use.
const WORD: usize = u64::BITS as usize;

/// Events of a list: as many as make it one line of the cache.
const LIST_EVENTS: usize = 7;

/// Buckets beyond the current one that are looked into for what comes: where few events are in each, a batch or two.
const AHEAD: u64 = 8;

/// No list.
const NONE: u32 = u32::MAX;

/// Some events of a bucket.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct List {
    events: [u64; LIST_EVENTS],
    count: u32,
    /// The next one of the same bucket, or the next that is free.
    next: u32,
}

const _: () = assert!(size_of::<List>() == 64);

/// Events that have not happened yet.
#[derive(Debug)]
pub(crate) struct EventQueue {
    /// Number of the bucket whose events are in `current`: a time in units of the width.
    number: u64,
    /// The events of that bucket, in order.
    current: Vec<u64>,
    /// How many of them have happened.
    taken: usize,
    /// The first list of each bucket.
    buckets: Vec<u32>,
    lists: Vec<List>,
    /// The first list that is free.
    free: u32,
    /// Which buckets are in use.
    used: [u64; BUCKETS / WORD],
    /// Events beyond the buckets.
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

    /// Adds an event, which is not before the last one taken, nor before the last moment that was asked for in vain.
    #[inline]
    pub fn push(&mut self, time: u64, code: u64) {
        let number = time >> WIDTH_BITS;
        debug_assert!(number >= self.number && code >> CODE_BITS == 0, "what has not happened yet");
        if number <= self.number {
            let event = pack(time, code);
            let place = self.current[self.taken..].partition_point(|other| *other < event);
            self.current.insert(self.taken + place, event);
        } else if number - self.number < BUCKETS as u64 {
            self.put(pack(time, code), number);
        } else {
            self.far.push(Reverse((time, code)));
        }
    }

    /// Takes the next event, if it happens no later than this.
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

    /// Shows events that come after so many others: so many of the current bucket, or at least so many of those that follow
    /// soon. Nearly in order: of other buckets not sorted yet, to the nearest list.
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

    /// What will happen, in no order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        let near = (0..BUCKETS).flat_map(|place| self.bucket(place));
        let next = self.current[self.taken..].iter().map(|event| unpack(0, *event).1);
        near.chain(next).chain(self.far.iter().map(|Reverse((_, code))| *code))
    }

    fn bucket(&self, place: usize) -> impl Iterator<Item = u64> {
        self.lists_of(place).flatten().map(|event| unpack(0, *event).1)
    }

    /// The events of a bucket, list by list.
    #[inline]
    fn lists_of(&self, place: usize) -> impl Iterator<Item = &[u64]> {
        let list = |number: u32| self.lists.get(number as usize);
        let lists = std::iter::successors(list(self.buckets[place]), move |before| list(before.next));
        lists.map(|list| &list.events[..list.count as usize])
    }

    #[inline]
    fn put(&mut self, event: u64, number: u64) {
        let place = number as usize % BUCKETS;
        let first = self.buckets[place];
        if let Some(list) = self.lists.get_mut(first as usize)
            && let Some(room) = list.events.get_mut(list.count as usize)
        {
            *room = event;
            list.count += 1;
            return;
        }
        self.put_first(event, place);
    }

    /// Begins a list of a bucket.
    fn put_first(&mut self, event: u64, place: usize) {
        let next = std::mem::replace(&mut self.buckets[place], self.free);
        let list = List { events: [event; LIST_EVENTS], count: 1, next };
        if let Some(free) = self.lists.get_mut(self.free as usize) {
            self.free = free.next;
            *free = list;
        } else {
            self.buckets[place] = self.lists.len() as u32;
            self.lists.push(list);
        }
        self.used[place / WORD] |= 1 << (place % WORD);
    }

    /// Goes to the next bucket with events, if it begins no later than this. Whether there is one.
    fn advance(&mut self, until: u64) -> bool {
        let far = self.far.peek().map(|Reverse((time, _))| time >> WIDTH_BITS);
        // What is far away is later than all buckets.
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

    /// Takes all events out of a bucket.
    fn take(&mut self, place: usize) {
        let mut next = std::mem::replace(&mut self.buckets[place], NONE);
        while let Some(list) = self.lists.get_mut(next as usize) {
            self.current.extend_from_slice(&list.events[..list.count as usize]);
            let after = std::mem::replace(&mut list.next, self.free);
            self.free = std::mem::replace(&mut next, after);
        }
        self.used[place / WORD] &= !(1 << (place % WORD));
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

/// An event in its bucket.
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
    fn events_come_in_the_order_of_a_sorted_list() {
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
                        // Nothing is added before a moment that has passed.
                        None => until,
                    };
                }
                assert_eq!(queue.is_empty(), list.is_empty());
            }
            assert_eq!(queue.iter().count(), list.len());
        }
    }

    #[test]
    fn most_of_what_comes_is_seen_batch_by_batch_before_it_happens() {
        const BATCH: usize = 16;
        // All at the same moment, or a few dozen in each bucket.
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
