//! Assignment of partition numbers to partitions that request none.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use fabric_model::SharedMap;
use fabric_model::decisions::Decisions;
use fabric_model::intent::PartitionIntent;
use ib_wire::PartitionNumber;

use crate::CompileError;
use crate::list_diff::ChangedRange;

/// Numbers that stay reserved for the names of removed partitions, so that a new partition does not get the traffic of an
/// old one: an eighth of all.
const RESERVED_MAX: usize = 4096;

/// The number of 15-bit values.
const NUMBERS: usize = 1 << 15;

/// The numbers of all partition intents.
#[derive(Debug)]
pub(super) struct Numbers {
    /// In the order of the intents.
    pub numbers_in_order: Vec<PartitionNumber>,
    /// Assigned numbers by name, including those of removed partitions.
    pub given: SharedMap<String, PartitionNumber>,
}

impl Numbers {
    pub fn of(wanted: &[&PartitionIntent], previous: &Decisions) -> Result<Self, CompileError> {
        let mut free = Free::new();
        for number in wanted.iter().filter_map(|intent| intent.number) {
            free.take(number);
        }
        let mut given = previous.partitions.clone();
        // Partitions in use keep their number however many removed ones have a reservation.
        let in_use = wanted.iter().filter(|intent| intent.number.is_none());
        let in_use: HashSet<&str> = in_use.map(|intent| intent.name.as_str()).collect();
        let (kept, resting): (Vec<_>, Vec<_>) =
            previous.partitions.iter().partition(|(name, _)| in_use.contains(name.as_str()));
        let late = resting.get(RESERVED_MAX..).unwrap_or_default();
        let resting = &resting[..resting.len() - late.len()];
        for (name, number) in kept.iter().chain(resting) {
            if !free.take(**number) {
                given.remove(*name);
            }
        }
        for (name, _) in late {
            given.remove(*name);
        }
        // Intents of the same name share the number of the first one, which matters if one of them requests a number.
        let numbered = wanted.iter().filter(|intent| intent.number.is_some());
        let numbered: BTreeSet<&str> = numbered.map(|intent| intent.name.as_str()).collect();
        let mut by_name: BTreeMap<&str, PartitionNumber> = BTreeMap::new();
        let mut numbers_in_order = Vec::with_capacity(wanted.len());
        for intent in wanted {
            let known = || by_name.get(intent.name.as_str()).or_else(|| given.get(&intent.name)).copied();
            let number = match intent.number.or_else(known) {
                Some(number) => number,
                None => free.give(&intent.name, &mut given)?,
            };
            if numbered.contains(intent.name.as_str()) {
                by_name.entry(intent.name.as_str()).or_insert(number);
            }
            numbers_in_order.push(number);
        }
        Ok(Self { numbers_in_order, given })
    }
}

/// The numbers of the current partitions.
#[derive(Debug)]
pub(super) struct CurrentNumbers<'a> {
    /// In the order of the intents.
    pub numbers_in_order: &'a [PartitionNumber],
    /// The number of distinct partitions.
    pub count: usize,
}

impl CurrentNumbers<'_> {
    /// What [`Numbers::of`] gives for other intents, with the decisions that the current numbers came from, computed from the
    /// changed range only. `None` if that is not possible: a changed intent requests a number or has the name of one that
    /// does, or too many numbers may be reserved.
    pub fn changed(
        &self,
        (old, new): (&[&PartitionIntent], &[&PartitionIntent]),
        range: &ChangedRange,
        previous: &Decisions,
    ) -> Result<Option<Numbers>, CompileError> {
        let (removed, added) = (&old[range.old.clone()], &new[range.new.clone()]);
        let names: HashSet<&str> = removed.iter().chain(added).map(|intent| intent.name.as_str()).collect();
        let numbered = || new.iter().filter(|intent| intent.number.is_some());
        // Partitions that request no number have one that was assigned to their name.
        let kept_min = self.count.saturating_sub(numbered().count() + removed.len());
        if removed.iter().chain(added).any(|intent| intent.number.is_some())
            || numbered().any(|intent| names.contains(intent.name.as_str()))
            || previous.partitions.len() > RESERVED_MAX + kept_min
        {
            return Ok(None);
        }
        let mut free = Free::new();
        let requested = numbered().filter_map(|intent| intent.number);
        for number in requested.chain(previous.partitions.values().copied()) {
            free.take(number);
        }
        let mut given = previous.partitions.clone();
        let mut numbers_in_order = Vec::with_capacity(new.len());
        numbers_in_order.extend_from_slice(&self.numbers_in_order[..range.old.start]);
        for intent in added {
            numbers_in_order.push(match given.get(&intent.name) {
                Some(number) => *number,
                None => free.give(&intent.name, &mut given)?,
            });
        }
        numbers_in_order.extend_from_slice(&self.numbers_in_order[range.old.end..]);
        Ok(Some(Numbers { numbers_in_order, given }))
    }
}

#[derive(Debug)]
struct Free {
    taken: Vec<bool>,
    /// No number below is free.
    next: u16,
}

impl Free {
    fn new() -> Self {
        Self { taken: vec![false; NUMBERS], next: 1 }
    }

    /// Marks a number as used; returns whether it was free.
    fn take(&mut self, number: PartitionNumber) -> bool {
        !std::mem::replace(&mut self.taken[usize::from(number.to_wire())], true)
    }

    /// Assigns the lowest free number to a name.
    fn give(
        &mut self,
        name: &str,
        given: &mut SharedMap<String, PartitionNumber>,
    ) -> Result<PartitionNumber, CompileError> {
        let mut left =
            (self.next..=PartitionNumber::DEFAULT.to_wire()).filter_map(PartitionNumber::from_wire);
        let number = left.find(|number| !self.taken[usize::from(number.to_wire())]);
        let number = number.ok_or_else(|| CompileError::PartitionsExhausted { name: name.to_owned() })?;
        self.next = number.to_wire() + 1;
        given.insert(name.to_owned(), number);
        Ok(number)
    }
}

/// The order of partitions in the intents.
#[derive(Debug)]
pub(super) struct RequestOrder {
    /// By number: the index of its first intent.
    indices: Vec<usize>,
}

impl RequestOrder {
    pub fn of(numbers_in_order: &[PartitionNumber]) -> Self {
        let mut indices = vec![usize::MAX; NUMBERS];
        for (index, number) in numbers_in_order.iter().enumerate().rev() {
            indices[usize::from(number.to_wire())] = index;
        }
        Self { indices }
    }

    /// The index of a partition's first intent.
    pub fn index(&self, number: PartitionNumber) -> usize {
        self.indices[usize::from(number.to_wire())]
    }
}
