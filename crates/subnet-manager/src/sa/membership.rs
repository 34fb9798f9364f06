//! Partition membership of ports.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use fabric_model::plan::PkeyTable;
use ib_wire::{Membership, PartitionNumber, Pkey, ServiceLevel};

/// The P_Keys of a port, one entry per partition. Most ports of a fabric share a few sets.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeySet {
    /// In ascending order of partition numbers, so that two sets are compared in one pass; the default
    /// partition is last.
    held: Vec<HeldPartition>,
}

/// A partition that a port is a member of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct HeldPartition {
    partition: PartitionNumber,
    full: bool,
    limited: bool,
    sl: ServiceLevel,
}

impl HeldPartition {
    /// Whether two ports can communicate: at least one is a full member.
    fn reaches(&self, other: &Self) -> bool {
        self.full || other.full
    }

    fn key(&self) -> Pkey {
        self.partition.key(if self.full { Membership::Full } else { Membership::Limited })
    }
}

/// A partition in which two ports can communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedPartition {
    /// The P_Key of the first port; the full one if it has both.
    pub key: Pkey,
    pub sl: ServiceLevel,
}

impl KeySet {
    /// The P_Keys of a table. `levels` has the service levels of partitions.
    pub fn of(table: &PkeyTable, levels: &BTreeMap<PartitionNumber, ServiceLevel>) -> Self {
        let mut held: BTreeMap<PartitionNumber, HeldPartition> = BTreeMap::new();
        for key in table.keys() {
            let partition = key.partition();
            let sl = levels.get(&partition).copied().unwrap_or_default();
            let entry =
                held.entry(partition).or_insert(HeldPartition { partition, full: false, limited: false, sl });
            match key.membership() {
                Membership::Full => entry.full = true,
                Membership::Limited => entry.limited = true,
            }
        }
        Self { held: held.into_values().collect() }
    }

    /// The keys that are in both sets, for a port before and after a change.
    pub fn intersection(&self, other: &Self) -> Self {
        let kept = self.held.iter().filter_map(|held| {
            let after = other.get(held.partition)?;
            let both = HeldPartition {
                full: held.full && after.full,
                limited: held.limited && after.limited,
                ..*held
            };
            // A port that changes between limited and full counts as limited meanwhile.
            let limited = both.limited || !both.full;
            Some(HeldPartition { limited, ..both })
        });
        Self { held: kept.collect() }
    }

    /// The keys of some partitions.
    pub fn within(&self, partitions: &BTreeSet<PartitionNumber>) -> Self {
        let kept = self.held.iter().filter(|held| partitions.contains(&held.partition));
        Self { held: kept.copied().collect() }
    }

    pub fn has(&self, partition: PartitionNumber) -> bool {
        self.get(partition).is_some()
    }

    /// The partition for two ports if none is requested: the lowest number in which they can communicate, as
    /// in OpenSM. The default partition has the highest number and comes last.
    #[inline]
    pub fn shared(&self, other: &Self) -> Option<SharedPartition> {
        self.shared_where(other, |_| true)
    }

    /// Like [`Self::shared`], of the partitions that `may` accepts.
    #[inline]
    pub fn shared_where(
        &self,
        other: &Self,
        may: impl Fn(PartitionNumber) -> bool,
    ) -> Option<SharedPartition> {
        let (mut ours, mut theirs) = (self.held.as_slice(), other.held.as_slice());
        while let ([first, rest @ ..], [second, others @ ..]) = (ours, theirs) {
            match first.partition.cmp(&second.partition) {
                Ordering::Less => ours = rest,
                Ordering::Greater => theirs = others,
                Ordering::Equal if first.reaches(second) && may(first.partition) => {
                    return Some(SharedPartition { key: first.key(), sl: first.sl });
                }
                Ordering::Equal => (ours, theirs) = (rest, others),
            }
        }
        None
    }

    /// A given partition, if the two ports can communicate in it.
    pub fn shared_in(&self, other: &Self, partition: PartitionNumber) -> Option<SharedPartition> {
        let (first, second) = (self.get(partition)?, other.get(partition)?);
        first.reaches(second).then(|| SharedPartition { key: first.key(), sl: first.sl })
    }

    fn get(&self, partition: PartitionNumber) -> Option<&HeldPartition> {
        let index = self.held.binary_search_by_key(&partition, |held| held.partition).ok()?;
        self.held.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(keys: &[u16]) -> KeySet {
        let keys = keys.iter().map(|raw| Pkey::from_wire(*raw)).collect();
        KeySet::of(&PkeyTable::from_keys(keys), &BTreeMap::new())
    }

    fn shared(first: &[u16], second: &[u16]) -> Option<u16> {
        set(first).shared(&set(second)).map(|shared| shared.key.to_wire())
    }

    #[test]
    fn two_limited_members_share_nothing() {
        assert_eq!(shared(&[0x7fff], &[0x7fff]), None);
        assert_eq!(shared(&[0x7fff], &[0xffff]), Some(0x7fff));
        assert_eq!(shared(&[0xffff], &[0x7fff]), Some(0xffff));
        assert_eq!(shared(&[0x101, 0x8101], &[0x101]), Some(0x8101));
    }

    #[test]
    fn the_default_partition_is_taken_last() {
        assert_eq!(shared(&[0xffff, 0x8101, 0x8102], &[0x8102, 0xffff]), Some(0x8102));
        assert_eq!(shared(&[0xffff, 0x101], &[0x101, 0xffff]), Some(0xffff));
    }

    #[test]
    fn a_requested_partition_must_be_shared() {
        let (first, second) = (set(&[0x8101, 0x102]), set(&[0x101, 0x102]));
        let in_partition = |number| first.shared_in(&second, PartitionNumber::from_wire(number).unwrap());
        assert!(in_partition(0x101).is_some());
        assert!(in_partition(0x102).is_none());
        assert!(in_partition(0x103).is_none());
    }

    #[test]
    fn during_a_change_a_port_has_the_keys_of_both_plans() {
        let both = set(&[0x8101, 0x8102, 0x103]).intersection(&set(&[0x101, 0x8102, 0x8104]));
        assert_eq!(both, set(&[0x101, 0x8102]));
    }
}
