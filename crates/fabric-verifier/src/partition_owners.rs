//! Partition ownership: every partition number belongs to one owner.
//!
//! Tables cannot show this. Partitions are requested by number, so that two owners with one number look like one
//! owner with more ports. Only the owners in the intents are read.

use fabric_model::Intents;

use crate::bounded::bounded;
use crate::{Finding, Rule};

/// Reports each partition number with several owners once, with the first two of them.
pub(crate) fn check(intents: &Intents) -> Vec<Finding> {
    let shared = intents.owners.iter().filter_map(|(partition, owners)| {
        let mut owners = owners.iter();
        let ((first, first_port), (second, second_port)) = (owners.next()?, owners.next()?);
        Some(Finding::PartitionNumberShared {
            partition: *partition,
            first: first.clone(),
            first_port: *first_port,
            second: second.clone(),
            second_port: *second_port,
        })
    });
    bounded(Rule::Ownership, shared.collect())
}
