//! The numbers of partitions.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use fabric_model::SharedMap;
use fabric_model::decisions::Decisions;
use fabric_model::intent::PartitionIntent;
use ib_wire::PartitionNumber;

use crate::CompileError;
use crate::list_diff::ChangedRange;

/// Numbers that stay with the names of partitions that are gone, so that neither gets the other's traffic: an eighth of
/// what there is.
const RESERVED_MAX: usize = 4096;

/// Numbers there can be: 15 bits.
const NUMBERS: usize = 1 << 15;

/// The numbers of partitions.
#[derive(Debug)]
pub(super) struct Numbers {
    /// In the order they were asked for.
    pub numbers_in_order: Vec<PartitionNumber>,
    /// To those that asked for none, by name; also those of before.
    pub given: SharedMap<String, PartitionNumber>,
}

impl Numbers {
    pub fn of(wanted: &[&PartitionIntent], previous: &Decisions) -> Result<Self, CompileError> {
        let mut free = Free::new();
        for number in wanted.iter().filter_map(|intent| intent.number) {
            free.take(number);
        }
        let mut given = previous.partitions.clone();
        // What is asked for keeps its number, however many are gone.
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
        // The first of a name tells the number of all, which matters where one of them asks for a number.
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

/// The numbers of what is there.
#[derive(Debug)]
pub(super) struct CurrentNumbers<'a> {
    /// In the order they were asked for.
    pub numbers_in_order: &'a [PartitionNumber],
    /// How many there are, each counted once.
    pub count: usize,
}

impl CurrentNumbers<'_> {
    /// What [`Numbers::of`] makes of other wishes, the decisions being those that gave these numbers. `None` if all wishes
    /// have to be looked at: one that differs asks for a number or has the name of one that does, or too many numbers may
    /// rest.
    pub fn changed(
        &self,
        (old, new): (&[&PartitionIntent], &[&PartitionIntent]),
        range: &ChangedRange,
        previous: &Decisions,
    ) -> Result<Option<Numbers>, CompileError> {
        let (gone, come) = (&old[range.old.clone()], &new[range.new.clone()]);
        let names: HashSet<&str> = gone.iter().chain(come).map(|intent| intent.name.as_str()).collect();
        let numbered = || new.iter().filter(|intent| intent.number.is_some());
        // Who asked for no number has one that was given to its name.
        let kept_min = self.count.saturating_sub(numbered().count() + gone.len());
        if gone.iter().chain(come).any(|intent| intent.number.is_some())
            || numbered().any(|intent| names.contains(intent.name.as_str()))
            || previous.partitions.len() > RESERVED_MAX + kept_min
        {
            return Ok(None);
        }
        let mut free = Free::new();
        let asked = numbered().filter_map(|intent| intent.number);
        for number in asked.chain(previous.partitions.values().copied()) {
            free.take(number);
        }
        let mut given = previous.partitions.clone();
        let mut numbers_in_order = Vec::with_capacity(new.len());
        numbers_in_order.extend_from_slice(&self.numbers_in_order[..range.old.start]);
        for intent in come {
            numbers_in_order.push(match given.get(&intent.name) {
                Some(number) => *number,
                None => free.give(&intent.name, &mut given)?,
            });
        }
        numbers_in_order.extend_from_slice(&self.numbers_in_order[range.old.end..]);
        Ok(Some(Numbers { numbers_in_order, given }))
    }
}

/// Numbers that are nobody's.
#[derive(Debug)]
struct Free {
    /// By number.
    taken: Vec<bool>,
    /// Those below are given.
    next: u16,
}

impl Free {
    fn new() -> Self {
        Self { taken: vec![false; NUMBERS], next: 1 }
    }

    /// Whether it was nobody's.
    fn take(&mut self, number: PartitionNumber) -> bool {
        !std::mem::replace(&mut self.taken[usize::from(number.to_wire())], true)
    }

    /// Gives the lowest to a name.
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

/// When partitions were asked for.
#[derive(Debug)]
pub(super) struct RequestOrder {
    /// By number: the place of the first that asked for it.
    places: Vec<usize>,
}

impl RequestOrder {
    /// In the order of these numbers.
    pub fn of(numbers_in_order: &[PartitionNumber]) -> Self {
        let mut places = vec![usize::MAX; NUMBERS];
        for (place, number) in numbers_in_order.iter().enumerate().rev() {
            places[usize::from(number.to_wire())] = place;
        }
        Self { places }
    }

    /// Before which others a partition was asked for: those with a higher place.
    pub fn place(&self, number: PartitionNumber) -> usize {
        self.places[usize::from(number.to_wire())]
    }
}
