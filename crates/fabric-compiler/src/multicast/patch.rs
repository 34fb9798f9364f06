//! Replaces the changed groups of a plan.

use std::collections::BTreeMap;

use fabric_model::FabricPlan;
use fabric_model::intent::{Capabilities, Ipoib};
use fabric_model::plan::{GroupPlan, PortSet, SwitchPlan};
use ib_wire::{MulticastLid, PartitionNumber};

use super::tree::{GroupTree, TreeBuilder};
use super::{GROUPS_MAX, Groups, free_lid, group_plan};
use crate::CompileError;
use crate::fabric::{Fabric, SwitchIndex};
use crate::partitions::Partition;
use crate::routing::core_tree::CoreTree;
use crate::routing::order::Order;

/// Plans the groups of changed and removed partitions. `None` if a changed group cannot keep its LID: then the order of all
/// groups decides, and all have to be planned again.
pub(crate) fn patch(
    fabric: &Fabric,
    (order, core_tree): (&Order, &CoreTree),
    changed: &BTreeMap<PartitionNumber, Option<&Partition>>,
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
    let decisions = before.decisions().groups.clone();
    let mut groups = Groups { decisions, ..Groups::default() };
    let mut tables = GroupTables { fabric, switches, changed: BTreeMap::new() };
    let mut builder = TreeBuilder::new(fabric, order, core_tree);
    let carrying = changed.iter().filter_map(|(number, partition)| Some((*number, (*partition)?)));
    let carrying: BTreeMap<PartitionNumber, (&Partition, Ipoib)> =
        carrying.filter_map(|(number, partition)| Some((number, (partition, partition.ipoib?)))).collect();
    let stays = |group: &GroupPlan| {
        carrying.get(&group.partition).is_some_and(|(partition, _)| serves(fabric, group, partition))
    };
    let touched = changed.keys().filter_map(|number| standing.get(number)).copied();
    for group in touched.filter(|group| !stays(group)) {
        tables.remove_tree(group);
        groups.gone.push(group.mgid);
        groups.decisions.remove(&group.partition);
    }
    for (number, old) in &standing {
        let root = old.root.and_then(|guid| fabric.switch_index(guid));
        match carrying.get(number) {
            Some((partition, ipoib)) if stays(old) => {
                builder.count(root);
                let plan = group_plan(partition, *ipoib, old.mlid, old.root, old.members.clone());
                if plan != **old {
                    groups.gone.push(old.mgid);
                    groups.plans.push(plan);
                }
            }
            Some((partition, ipoib)) => {
                let built = builder.build(partition, old.root)?;
                match tables.lid(*number, &built.tree, capabilities, Some(old.mlid)) {
                    Ok(mlid) if mlid == old.mlid => {
                        tables.add_tree(&built.tree, mlid);
                        groups.add(fabric, partition, *ipoib, mlid, built);
                    }
                    Ok(_) | Err(_) => return Ok(None),
                }
            }
            None if changed.contains_key(number) => {}
            None => builder.count(root),
        }
    }
    for (number, (partition, ipoib)) in carrying.iter().filter(|(number, _)| !standing.contains_key(number)) {
        let built = builder.build(partition, None)?;
        let mlid = tables.lid(*number, &built.tree, capabilities, None)?;
        tables.add_tree(&built.tree, mlid);
        groups.add(fabric, partition, *ipoib, mlid, built);
    }
    groups.tables = tables.changed;
    Ok(Some(groups))
}

/// Whether a group has exactly the members of a partition, so that its tree can stay.
fn serves(fabric: &Fabric, group: &GroupPlan, partition: &Partition) -> bool {
    let is_adapter = |guid: &&ib_wire::Guid| fabric.adapter_port(**guid).is_some();
    partition.members.len() >= group.members.len()
        && partition.grouped().filter(is_adapter).eq(&group.members)
}

/// The multicast tables of a plan, with the trees of some groups replaced.
#[derive(Debug)]
struct GroupTables<'a> {
    fabric: &'a Fabric,
    /// The previous plan, by switch.
    switches: Vec<&'a SwitchPlan>,
    /// By switch: its new table, if it differs.
    changed: BTreeMap<SwitchIndex, BTreeMap<MulticastLid, PortSet>>,
}

impl GroupTables<'_> {
    fn table(&mut self, index: SwitchIndex) -> &mut BTreeMap<MulticastLid, PortSet> {
        let before = &self.switches[index].multicast;
        self.changed.entry(index).or_insert_with(|| before.exits().collect())
    }

    /// Removes the tree of a group, from its root along its links.
    fn remove_tree(&mut self, group: &GroupPlan) {
        let mut open: Vec<SwitchIndex> =
            group.root.and_then(|root| self.fabric.switch_index(root)).into_iter().collect();
        while let Some(index) = open.pop() {
            let Some(exits) = self.table(index).remove(&group.mlid) else { continue };
            for neighbour in &self.fabric.switches[index].neighbours {
                if neighbour.cables.iter().any(|cable| exits.contains(cable.near)) {
                    open.push(neighbour.switch);
                }
            }
        }
    }

    fn add_tree(&mut self, tree: &GroupTree, mlid: MulticastLid) {
        for (index, ports) in &tree.exits {
            self.table(*index).insert(mlid, *ports);
        }
    }

    /// The previous LID of a group if it is free on all switches of its tree, else the lowest that is.
    fn lid(
        &self,
        partition: PartitionNumber,
        tree: &GroupTree,
        capabilities: &Capabilities,
        before: Option<MulticastLid>,
    ) -> Result<MulticastLid, CompileError> {
        let capacity = |index: &SwitchIndex| capabilities.switch(self.fabric.switches[*index].guid).multicast;
        let capacity = tree.exits.keys().map(capacity).min().unwrap_or(GROUPS_MAX).min(GROUPS_MAX);
        let mut taken: Vec<u64> = Vec::new();
        let mut take = |mlid: MulticastLid| {
            let (word, bit) = (mlid.table_index() / 64, mlid.table_index() % 64);
            taken.resize(taken.len().max(word + 1), 0);
            taken[word] |= 1 << bit;
        };
        for index in tree.exits.keys() {
            match self.changed.get(index) {
                Some(table) => table.keys().for_each(|mlid| take(*mlid)),
                None => self.switches[*index].multicast.exits().for_each(|(mlid, _)| take(mlid)),
            }
        }
        free_lid(&taken, capacity, before).ok_or(CompileError::MlidsExhausted { partition, capacity })
    }
}
