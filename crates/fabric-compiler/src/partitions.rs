//! Partitions: their numbers, their members, and the P_Key tables of all end ports.

mod keys;
mod numbers;
mod site;

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::SharedMap;
use fabric_model::decisions::Decisions;
use fabric_model::intent::{Intents, Ipoib, Member, MemberSelector, PartitionIntent, PkeyPlacement, Role};
use ib_wire::{Guid, NodeKind, PartitionNumber};

use crate::CompileError;
use crate::fabric::Fabric;
use crate::list_diff::{ChangedRange, changed_slices};

pub(crate) use keys::{KeyTables, PreviousKeys, lay_out};
use numbers::{CurrentNumbers, Numbers, RequestOrder};
use site::management_number;
pub(crate) use site::{SiteRules, check};

/// The name of the default partition.
const DEFAULT_NAME: &str = "Default";

/// The name of the management partition.
const MANAGEMENT_NAME: &str = "Management";

/// The partitions of a fabric.
#[derive(Debug)]
pub(crate) struct Partitions {
    /// The number of each partition intent, in order; those of the default partition and the management partition come
    /// first.
    numbers_in_order: Vec<PartitionNumber>,
    pub by_number: BTreeMap<PartitionNumber, Partition>,
    /// The partition in which handed-over ports reach subnet administration, if they do not hold the default partition.
    pub management: Option<PartitionNumber>,
}

/// A partition, merged from all intents with its number.
#[derive(Debug)]
pub(crate) struct Partition {
    pub number: PartitionNumber,
    pub name: String,
    pub ipoib: Option<Ipoib>,
    /// The present members, by port GUID.
    pub members: BTreeMap<Guid, (Role, PkeyPlacement)>,
    /// Members that are here for subnet administration alone, and not in the broadcast group.
    ungrouped: BTreeSet<Guid>,
}

impl Partition {
    /// The members that belong to the broadcast group.
    pub fn grouped(&self) -> impl Iterator<Item = &Guid> {
        self.members.keys().filter(|guid| !self.ungrouped.contains(guid))
    }
}

/// Changes to partitions between two intents.
#[derive(Debug)]
pub(crate) struct PartitionChanges {
    numbers_in_order: Vec<PartitionNumber>,
    /// Numbers assigned to partitions that request none, by name.
    pub numbers: SharedMap<String, PartitionNumber>,
    /// Changed partitions; `None` for removed ones.
    pub partitions: BTreeMap<PartitionNumber, Option<Partition>>,
}

/// The partitions of the intents, and the numbers assigned to those that request none.
pub(crate) fn resolve(
    fabric: &Fabric,
    intents: &Intents,
    previous: &Decisions,
) -> Result<(Partitions, SharedMap<String, PartitionNumber>), CompileError> {
    let site = SiteRules::of(intents);
    let management = management_number(&site, intents, previous)?;
    let implicit = implicit_partitions(&site, management);
    let wanted = wanted(&implicit, intents);
    let Numbers { numbers_in_order, given } = Numbers::of(&wanted, previous)?;
    let by_number = merged(fabric, &site, management, wanted.iter().copied().zip(&numbers_in_order));
    Ok((Partitions { numbers_in_order, by_number, management }, given))
}

impl Partitions {
    /// The changes from the intents `before`, which these partitions came from, to other ones; `range` is where the lists of
    /// partitions differ. `None` if everything has to be computed again: unchanged partitions are in another order or have
    /// another owner, or the rules for the ports of the site differ.
    pub fn compare(
        &self,
        fabric: &Fabric,
        (before, intents): (&Intents, &Intents),
        range: &ChangedRange,
        previous: &Decisions,
    ) -> Result<Option<PartitionChanges>, CompileError> {
        let site = SiteRules::of(intents);
        if site != SiteRules::of(before) {
            return Ok(None);
        }
        let management = management_number(&site, intents, previous)?;
        if management != self.management {
            return Ok(None);
        }
        let implicit = implicit_partitions(&site, management);
        let (old, new) = (wanted(&implicit, before), wanted(&implicit, intents));
        let range = range.shifted(implicit.len());
        let current =
            CurrentNumbers { numbers_in_order: &self.numbers_in_order, count: self.by_number.len() };
        let (numbers, range) = match current.changed((&old, &new), &range, previous)? {
            Some(numbers) => (numbers, range),
            None => (Numbers::of(&new, previous)?, ChangedRange::whole(old.len(), new.len())),
        };
        let Numbers { numbers_in_order, given: numbers } = numbers;
        let old: Vec<_> = old.into_iter().zip(&self.numbers_in_order).collect();
        let new: Vec<_> = new.into_iter().zip(&numbers_in_order).collect();
        let (old, new_middle) = (&old[range.old], &new[range.new]);
        let changed = changed(old, new_middle);
        if site.is_default_open && !site::owned_alike((before, intents), &changed) {
            return Ok(None);
        }
        let order = |numbers_in_order| kept_order(numbers_in_order, &changed);
        // Partitions without an intent in the range are in the same order as before.
        let are_apart = old.iter().chain(new_middle).all(|(_, number)| changed.contains(number));
        if !are_apart && !order(&self.numbers_in_order).eq(order(&numbers_in_order)) {
            return Ok(None);
        }
        let changed_intents = new.iter().copied().filter(|(_, number)| changed.contains(number));
        let mut partitions: BTreeMap<PartitionNumber, Option<Partition>> =
            merged(fabric, &site, management, changed_intents)
                .into_iter()
                .map(|(number, partition)| (number, Some(partition)))
                .collect();
        for number in changed {
            partitions.entry(number).or_insert(None);
        }
        Ok(Some(PartitionChanges { numbers_in_order, numbers, partitions }))
    }

    pub fn apply(&mut self, changes: PartitionChanges) {
        self.numbers_in_order = changes.numbers_in_order;
        for (number, partition) in changes.partitions {
            match partition {
                Some(partition) => drop(self.by_number.insert(number, partition)),
                None => drop(self.by_number.remove(&number)),
            }
        }
    }
}

/// The implicit partitions, then those of the intents.
fn wanted<'a>(implicit: &'a [PartitionIntent], intents: &'a Intents) -> Vec<&'a PartitionIntent> {
    implicit.iter().chain(&intents.partitions).collect()
}

/// The numbers of partitions whose intents differ.
fn changed(
    old: &[(&PartitionIntent, &PartitionNumber)],
    new: &[(&PartitionIntent, &PartitionNumber)],
) -> BTreeSet<PartitionNumber> {
    let (old, new) = changed_slices(old, new);
    let by_number = |numbered: &[(&PartitionIntent, &PartitionNumber)]| {
        let mut numbers: Vec<(PartitionNumber, usize)> =
            numbered.iter().enumerate().map(|(index, (_, number))| (**number, index)).collect();
        numbers.sort_unstable();
        numbers
    };
    let (old_numbers, new_numbers) = (by_number(old), by_number(new));
    let mut changed = BTreeSet::new();
    let mut rest = new_numbers.as_slice();
    for of_one in old_numbers.chunk_by(|a, b| a.0 == b.0) {
        let number = of_one[0].0;
        let first = rest.partition_point(|(other, _)| *other < number);
        changed.extend(rest[..first].iter().map(|(other, _)| *other));
        let count = rest[first..].partition_point(|(other, _)| *other == number);
        let (same, behind) = rest[first..].split_at(count);
        rest = behind;
        let old = of_one.iter().map(|(_, index)| old[*index].0);
        if !old.eq(same.iter().map(|(_, index)| new[*index].0)) {
            changed.insert(number);
        }
    }
    changed.extend(rest.iter().map(|(number, _)| *number));
    changed
}

/// The unchanged partitions, each once, in the order of the intents.
fn kept_order<'a>(
    numbers_in_order: &'a [PartitionNumber],
    changed: &'a BTreeSet<PartitionNumber>,
) -> impl Iterator<Item = PartitionNumber> + 'a {
    let order = RequestOrder::of(numbers_in_order);
    let is_first = move |(index, number): &(usize, &PartitionNumber)| order.index(**number) == *index;
    let first = numbers_in_order.iter().enumerate().filter(is_first).map(|(_, number)| *number);
    first.filter(|number| !changed.contains(number))
}

/// Merges intents with the same number into partitions.
fn merged<'a>(
    fabric: &Fabric,
    site: &SiteRules<'_>,
    management: Option<PartitionNumber>,
    numbered: impl Iterator<Item = (&'a PartitionIntent, &'a PartitionNumber)>,
) -> BTreeMap<PartitionNumber, Partition> {
    let mut partitions: BTreeMap<PartitionNumber, Partition> = BTreeMap::new();
    for (intent, number) in numbered {
        let is_new = !partitions.contains_key(number);
        let partition = partitions.entry(*number).or_insert_with(|| Partition {
            number: *number,
            name: intent.name.clone(),
            ipoib: None,
            members: BTreeMap::new(),
            ungrouped: BTreeSet::new(),
        });
        partition.ipoib = partition.ipoib.or(intent.ipoib);
        // The first intent of the default partition is the implicit one.
        let selects_tenants = *number == PartitionNumber::DEFAULT && is_new && !site.is_default_open;
        for member in &intent.members {
            for guid in named(fabric, member.selector) {
                let is_named = matches!(member.selector, MemberSelector::Port(_) | MemberSelector::Manager);
                if is_named || selects_tenants || !site.is_handed_over(guid) {
                    partition.members.insert(guid, (member.role, member.placement));
                }
            }
        }
    }
    if let Some(management) = management.and_then(|number| partitions.get_mut(&number)) {
        let is_present = |guid: &Guid| fabric.end_port(*guid).is_some();
        let handed_over = site.handed_over().filter(is_present);
        management.members.extend(handed_over.map(|guid| (guid, (Role::Limited, PkeyPlacement::Anywhere))));
    }
    if site.is_default_open {
        partitions
            .values_mut()
            .filter(|it| site.has_owner(it.number))
            .for_each(|it| admit_managers(it, site, fabric));
    }
    partitions
}

/// Makes the managers' ports full members of a partition of tenants: ports without the default partition send requests to
/// subnet administration with the key at index 0, which may be that of their cluster.
fn admit_managers(partition: &mut Partition, site: &SiteRules<'_>, fabric: &Fabric) {
    for manager in site.managers().filter(|guid| fabric.end_port(*guid).is_some()) {
        match partition.members.get_mut(&manager) {
            Some((role @ Role::Limited, _)) => *role = Role::Both,
            Some(_) => {}
            None => {
                partition.members.insert(manager, (Role::Full, PkeyPlacement::Anywhere));
                partition.ungrouped.insert(manager);
            }
        }
    }
}

/// The partitions that exist without an intent. In the default partition all end ports are limited members, and the
/// manager is the full member that they reach. While ports of the site are full members of it, handed-over ports are in the
/// management partition instead.
fn implicit_partitions(site: &SiteRules<'_>, management: Option<PartitionNumber>) -> Vec<PartitionIntent> {
    let member = |selector, role| Member { selector, role, placement: PkeyPlacement::Anywhere };
    let managers = || site.managers().map(|guid| member(MemberSelector::Port(guid), Role::Full));
    let default = PartitionIntent {
        name: DEFAULT_NAME.to_owned(),
        number: Some(PartitionNumber::DEFAULT),
        members: std::iter::once(member(MemberSelector::All, Role::Limited)).chain(managers()).collect(),
        ipoib: None,
    };
    let management = management.map(|number| PartitionIntent {
        name: MANAGEMENT_NAME.to_owned(),
        number: Some(number),
        members: managers().collect(),
        ipoib: None,
    });
    std::iter::once(default).chain(management).collect()
}

/// The present end ports that a member entry names.
fn named(fabric: &Fabric, who: MemberSelector) -> Vec<Guid> {
    let of_kind = |wanted: fn(NodeKind) -> bool| {
        let ends = fabric.ends().iter().filter(|(_, end)| wanted(fabric.kind(*end)));
        ends.map(|(guid, _)| *guid).collect()
    };
    match who {
        MemberSelector::All => of_kind(|_| true),
        MemberSelector::AllAdapters => of_kind(|kind| kind == NodeKind::Adapter),
        MemberSelector::AllSwitches => of_kind(|kind| kind == NodeKind::Switch),
        MemberSelector::AllRouters => of_kind(|kind| kind == NodeKind::Router),
        MemberSelector::Manager => {
            fabric.managers.iter().copied().filter(|guid| fabric.end_port(*guid).is_some()).collect()
        }
        MemberSelector::Port(guid) if fabric.end_port(guid).is_some() => vec![guid],
        MemberSelector::Port(_) => Vec::new(),
    }
}
