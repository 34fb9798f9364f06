//! Rules for a fabric that tenants share with ports of the site: storage, login nodes, bare metal.
//!
//! Partitions without an owner are those of the site. A handed-over port, which carries tenants, gets limited keys of them,
//! and only where an entry names it. Limited and full members match: once ports of the site are full members of the default
//! partition, handed-over ports hold no key of it, and reach subnet administration in two other ways. In the management
//! partition they are limited members and the managers full ones, so that a port of no cluster has a key. And the managers are
//! full members of the partitions with an owner, because stock kernels send requests with the key at index 0, which may be
//! that of a cluster (A-PART-11).

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::decisions::Decisions;
use fabric_model::intent::{Intents, Member, MemberSelector, PartitionIntent, PartitionOwners, Role};
use ib_wire::{Guid, PartitionNumber};

use crate::CompileError;

/// The rules for the ports of tenants and of the site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SiteRules<'a> {
    /// Empty while there are no partitions of the site.
    handed_over: Option<&'a BTreeSet<Guid>>,
    managers: BTreeSet<Guid>,
    owned: OwnedNumbers<'a>,
    /// Whether the intents make ports of the site full members of the default partition, present or not.
    pub is_default_open: bool,
}

/// Partition numbers with an owner. Compared where partitions are, not here.
#[derive(Clone, Debug)]
struct OwnedNumbers<'a>(&'a PartitionOwners);

impl PartialEq for OwnedNumbers<'_> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for OwnedNumbers<'_> {}

impl<'a> SiteRules<'a> {
    pub fn of(intents: &'a Intents) -> Self {
        let mut rules = Self {
            handed_over: None,
            managers: intents.managers().collect(),
            owned: OwnedNumbers(&intents.owners),
            is_default_open: false,
        };
        if intents.handed_over.is_empty() {
            return rules;
        }
        let has_site = requested_numbers(intents).any(|(_, number)| !rules.is_owned(number));
        let is_default =
            |(_, number): &(_, Option<PartitionNumber>)| *number == Some(PartitionNumber::DEFAULT);
        let of_default =
            requested_numbers(intents).filter(is_default).flat_map(|(intent, _)| &intent.members);
        rules.is_default_open = has_site && of_default.into_iter().any(|member| rules.opens(member));
        rules.handed_over = has_site.then_some(&intents.handed_over);
        rules
    }

    /// Whether an entry of the default partition makes a port of the site a full member.
    fn opens(&self, member: &Member) -> bool {
        let is_managers = match member.selector {
            MemberSelector::Manager => true,
            MemberSelector::Port(guid) => self.managers.contains(&guid),
            _ => false,
        };
        member.role != Role::Limited && !is_managers
    }

    /// The ports of the managers, in order.
    pub fn managers(&self) -> impl Iterator<Item = Guid> + '_ {
        self.managers.iter().copied()
    }

    /// The ports that carry tenants, in order. None while there are no partitions of the site.
    pub fn handed_over(&self) -> impl Iterator<Item = Guid> + '_ {
        self.handed_over.into_iter().flatten().copied()
    }

    pub fn is_handed_over(&self, port: Guid) -> bool {
        self.handed_over.is_some_and(|ports| ports.contains(&port))
    }

    /// Whether the partition of an intent belongs to a tenant.
    fn is_owned(&self, number: Option<PartitionNumber>) -> bool {
        number.is_some_and(|number| self.has_owner(number))
    }

    pub fn has_owner(&self, partition: PartitionNumber) -> bool {
        self.owned.0.contains_key(&partition)
    }
}

/// Rejects intents that cannot keep tenants apart from each other or from the site.
pub(crate) fn check(intents: &Intents) -> Result<(), CompileError> {
    let shared = intents.owners.iter().find(|(_, owners)| owners.len() > 1);
    if let Some((partition, owners)) = shared {
        let mut names = owners.keys().cloned();
        let (first, second) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
        return Err(CompileError::NumberShared { partition: *partition, first, second });
    }
    let site = SiteRules::of(intents);
    if site.handed_over.is_none() {
        return Ok(());
    }
    if let Some(port) = site.managers().find(|port| site.is_handed_over(*port)) {
        return Err(CompileError::ManagerHandedOver { port });
    }
    requested_numbers(intents).try_for_each(|(intent, number)| check_members(&site, intent, number))
}

fn check_members(
    site: &SiteRules<'_>,
    intent: &PartitionIntent,
    number: Option<PartitionNumber>,
) -> Result<(), CompileError> {
    let partition = || intent.name.clone();
    let is_owned = site.is_owned(number);
    for member in &intent.members {
        match member.selector {
            MemberSelector::Manager => {}
            MemberSelector::Port(port) if site.managers.contains(&port) => {}
            MemberSelector::Port(port) if site.is_handed_over(port) => {
                if number == Some(PartitionNumber::DEFAULT) {
                    return Err(CompileError::HandedOverInDefault { port });
                }
                if member.role != Role::Limited && !is_owned {
                    return Err(CompileError::HandedOverFull { port, partition: partition() });
                }
            }
            MemberSelector::Port(port) if is_owned => {
                return Err(CompileError::OwnedPartitionOpen { partition: partition(), port: Some(port) });
            }
            _ if is_owned => {
                return Err(CompileError::OwnedPartitionOpen { partition: partition(), port: None });
            }
            _ => {}
        }
    }
    Ok(())
}

/// The partition intents with the number that each requests, itself or by the name of an earlier one.
fn requested_numbers(intents: &Intents) -> impl Iterator<Item = (&PartitionIntent, Option<PartitionNumber>)> {
    let mut by_name = BTreeMap::from([(super::DEFAULT_NAME, PartitionNumber::DEFAULT)]);
    intents.partitions.iter().map(move |intent| {
        let number = intent.number.or_else(|| by_name.get(intent.name.as_str()).copied());
        if let Some(number) = number {
            by_name.entry(intent.name.as_str()).or_insert(number);
        }
        (intent, number)
    })
}

/// The number of the management partition: the previous one, else the highest that is neither requested nor assigned.
/// `None` if none is needed.
pub(super) fn management_number(
    site: &SiteRules<'_>,
    intents: &Intents,
    previous: &Decisions,
) -> Result<Option<PartitionNumber>, CompileError> {
    if !site.is_default_open {
        return Ok(None);
    }
    let numbered = requested_numbers(intents).filter_map(|(intent, number)| Some((number?, intent)));
    let requested: BTreeMap<PartitionNumber, &PartitionIntent> = numbered.collect();
    let assigned: BTreeSet<PartitionNumber> = previous.partitions.values().copied().collect();
    let below_default = (1..PartitionNumber::DEFAULT.to_wire()).rev().filter_map(PartitionNumber::from_wire);
    let mut free = below_default.filter(|it| !requested.contains_key(it) && !assigned.contains(it));
    let exhausted = || CompileError::PartitionsExhausted { name: super::MANAGEMENT_NAME.to_owned() };
    let number = previous.management_partition.or_else(|| free.next()).ok_or_else(exhausted)?;
    // An intent with the name alone would be merged with the management partition.
    let same_name = requested_numbers(intents)
        .find(|(intent, number)| number.is_none() && intent.name == super::MANAGEMENT_NAME);
    match requested.get(&number).copied().or(same_name.map(|(intent, _)| intent)) {
        Some(intent) => {
            Err(CompileError::ManagementNumberTaken { partition: number, name: intent.name.clone() })
        }
        None => Ok(Some(number)),
    }
}

/// Whether partitions that did not change have an owner before and after a change, or not.
pub(super) fn owned_alike(
    (before, after): (&Intents, &Intents),
    changed: &BTreeSet<PartitionNumber>,
) -> bool {
    let gone = before.owners.keys().filter(|number| !after.owners.contains_key(number));
    let come = after.owners.keys().filter(|number| !before.owners.contains_key(number));
    gone.chain(come).all(|number| changed.contains(number))
}
