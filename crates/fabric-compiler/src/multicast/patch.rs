//! The groups of a plan, with those replaced that changed.

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::FabricPlan;
use fabric_model::intent::Capabilities;
use fabric_model::plan::{Finding, GroupPlan, PortSet, SwitchPlan};
use ib_wire::{MulticastLid, PartitionNumber};

use super::tree::{Planter, Tree};
use super::{GROUPS_MAX, Groups, free_lid, group_plan, in_turn};
use crate::CompileError;
use crate::fabric::{Fabric, Place};
use crate::partitions::Partition;
use crate::routing::order::Order;

/// Plans the groups that changed. `None` if a group that stays would have to give its LID to one that changed: then all
/// have to be looked at in turn.
pub(super) fn patch(
    fabric: &Fabric<'_>,
    order: &Order,
    partitions: &[Partition],
    capabilities: &Capabilities,
    before: &FabricPlan,
) -> Result<Option<Groups>, CompileError> {
    let switches: Vec<&SwitchPlan> = before.switches().collect();
    let standing: BTreeMap<PartitionNumber, &GroupPlan> =
        before.groups().map(|group| (group.partition, group)).collect();
    if !fabric.switches.iter().map(|switch| switch.guid).eq(switches.iter().map(|switch| switch.guid))
        || !standing.keys().eq(before.decisions().groups.keys())
    {
        return Ok(None);
    }
    let mut groups = Groups::default();
    let mut garden = Garden { fabric, switches, changed: BTreeMap::new() };
    let mut planter = Planter::new(fabric, order);
    let stays: BTreeSet<PartitionNumber> = (partitions.iter())
        .filter(|partition| partition.ipoib.is_some())
        .filter(|partition| standing.get(&partition.number).is_some_and(|old| serves(fabric, old, partition)))
        .map(|partition| partition.number)
        .collect();
    for group in standing.values().filter(|group| !stays.contains(&group.partition)) {
        garden.uproot(group);
    }
    for (partition, ipoib) in in_turn(partitions, before.decisions()) {
        let old = standing.get(&partition.number);
        let root = old.and_then(|group| group.root);
        if let Some(old) = old.filter(|_| stays.contains(&partition.number)) {
            planter.count(root.and_then(|guid| fabric.place_of(guid)));
            let decision = before.decisions().groups.get(&partition.number);
            groups.decisions.extend(decision.map(|decision| (partition.number, *decision)));
            groups.plans.push(group_plan(partition, ipoib, old.mlid, root, old.members.clone()));
            continue;
        }
        let planted = planter.plant(partition, root);
        let wished = old.map(|group| group.mlid);
        let mlid = match garden.lid(partition.number, &planted.tree, capabilities, wished) {
            Ok(mlid) if wished.is_none_or(|wished| wished == mlid) => mlid,
            Err(error) if wished.is_none() => return Err(error),
            Ok(_) | Err(_) => return Ok(None),
        };
        garden.plant(&planted.tree, mlid);
        groups.add(fabric, partition, ipoib, mlid, planted);
    }
    groups.findings.extend(before.findings().iter().filter_map(|finding| match finding {
        Finding::GroupTurns { partition, .. } => {
            stays.contains(partition).then(|| (*partition, finding.clone()))
        }
        _ => None,
    }));
    groups.tables = garden.changed;
    Ok(Some(groups))
}

/// Whether a group serves just the members of a partition, so that its tree can stay.
fn serves(fabric: &Fabric<'_>, group: &GroupPlan, partition: &Partition) -> bool {
    let is_adapter = |guid: &&ib_wire::Guid| fabric.adapter_port(**guid).is_some();
    partition.members.len() >= group.members.len()
        && partition.members.keys().filter(is_adapter).eq(&group.members)
}

/// The trees of a plan, in which some are replaced.
#[derive(Debug)]
struct Garden<'a> {
    fabric: &'a Fabric<'a>,
    /// As they were, by place.
    switches: Vec<&'a SwitchPlan>,
    /// What differs now.
    changed: BTreeMap<Place, BTreeMap<MulticastLid, PortSet>>,
}

impl Garden<'_> {
    fn table(&mut self, place: Place) -> &mut BTreeMap<MulticastLid, PortSet> {
        let before = &self.switches[place].multicast;
        self.changed.entry(place).or_insert_with(|| before.exits().collect())
    }

    /// Takes a tree out, from its root along its branches.
    fn uproot(&mut self, group: &GroupPlan) {
        let mut open: Vec<Place> =
            group.root.and_then(|root| self.fabric.place_of(root)).into_iter().collect();
        while let Some(place) = open.pop() {
            let Some(exits) = self.table(place).remove(&group.mlid) else { continue };
            for neighbour in &self.fabric.switches[place].neighbours {
                if neighbour.cables.iter().any(|cable| exits.contains(cable.near)) {
                    open.push(neighbour.place);
                }
            }
        }
    }

    fn plant(&mut self, tree: &Tree, mlid: MulticastLid) {
        for (place, ports) in &tree.exits {
            self.table(*place).insert(mlid, *ports);
        }
    }

    /// The LID of before if no group on the switches of a tree has it, else the lowest such one.
    fn lid(
        &self,
        partition: PartitionNumber,
        tree: &Tree,
        capabilities: &Capabilities,
        before: Option<MulticastLid>,
    ) -> Result<MulticastLid, CompileError> {
        let capacity = |place: &Place| capabilities.switch(self.fabric.switches[*place].guid).multicast;
        let capacity = tree.exits.keys().map(capacity).min().unwrap_or(GROUPS_MAX).min(GROUPS_MAX);
        let mut taken: Vec<u64> = Vec::new();
        let mut take = |mlid: MulticastLid| {
            let (word, bit) = (mlid.table_index() / 64, mlid.table_index() % 64);
            taken.resize(taken.len().max(word + 1), 0);
            taken[word] |= 1 << bit;
        };
        for place in tree.exits.keys() {
            match self.changed.get(place) {
                Some(table) => table.keys().for_each(|mlid| take(*mlid)),
                None => self.switches[*place].multicast.exits().for_each(|(mlid, _)| take(mlid)),
            }
        }
        free_lid(&taken, capacity, before).ok_or(CompileError::MlidsExhausted { partition, capacity })
    }
}
