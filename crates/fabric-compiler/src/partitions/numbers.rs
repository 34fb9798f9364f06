//! The numbers of partitions.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use fabric_model::SharedMap;
use fabric_model::decisions::Decisions;
use fabric_model::intent::PartitionIntent;
use ib_wire::PartitionNumber;

use crate::CompileError;

/// Numbers that stay with the names of partitions that are gone, so that neither gets the other's traffic: an eighth of
/// what there is.
const RESTING_MAX: usize = 4096;

/// Numbers there can be: 15 bits.
const NUMBERS: usize = 1 << 15;

/// The numbers of partitions.
#[derive(Debug)]
pub(super) struct Numbers {
    /// In the order they were asked for.
    pub each: Vec<PartitionNumber>,
    /// To those that asked for none, by name; also those of before.
    pub given: SharedMap<String, PartitionNumber>,
}

impl Numbers {
    pub fn of(wanted: &[&PartitionIntent], previous: &Decisions) -> Result<Self, CompileError> {
        let mut taken = vec![false; NUMBERS];
        for number in wanted.iter().filter_map(|intent| intent.number) {
            taken[usize::from(number.to_wire())] = true;
        }
        let mut given = previous.partitions.clone();
        // What is asked for keeps its number, however many are gone.
        let in_use = wanted.iter().filter(|intent| intent.number.is_none());
        let in_use: HashSet<&str> = in_use.map(|intent| intent.name.as_str()).collect();
        let (kept, resting): (Vec<_>, Vec<_>) =
            previous.partitions.iter().partition(|(name, _)| in_use.contains(name.as_str()));
        let late = resting.get(RESTING_MAX..).unwrap_or_default();
        let resting = &resting[..resting.len() - late.len()];
        for (name, number) in kept.iter().chain(resting) {
            if std::mem::replace(&mut taken[usize::from(number.to_wire())], true) {
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
        let mut free = (1..=PartitionNumber::DEFAULT.to_wire()).filter_map(PartitionNumber::from_wire);
        let mut each = Vec::with_capacity(wanted.len());
        for intent in wanted {
            let known = || by_name.get(intent.name.as_str()).or_else(|| given.get(&intent.name)).copied();
            let number = match intent.number.or_else(known) {
                Some(number) => number,
                None => {
                    let next = free.find(|number| !taken[usize::from(number.to_wire())]);
                    let next =
                        next.ok_or_else(|| CompileError::PartitionsExhausted { name: intent.name.clone() })?;
                    given.insert(intent.name.clone(), next);
                    next
                }
            };
            if numbered.contains(intent.name.as_str()) {
                by_name.entry(intent.name.as_str()).or_insert(number);
            }
            each.push(number);
        }
        Ok(Self { each, given })
    }
}

/// When partitions were asked for.
#[derive(Debug)]
pub(super) struct Asked {
    /// By number: the place of the first that asked for it.
    places: Vec<usize>,
}

impl Asked {
    /// In the order of these numbers.
    pub fn of(each: &[PartitionNumber]) -> Self {
        let mut places = vec![usize::MAX; NUMBERS];
        for (place, number) in each.iter().enumerate().rev() {
            places[usize::from(number.to_wire())] = place;
        }
        Self { places }
    }

    /// Before which others a partition was asked for: those with a higher place.
    pub fn place(&self, number: PartitionNumber) -> usize {
        self.places[usize::from(number.to_wire())]
    }
}
