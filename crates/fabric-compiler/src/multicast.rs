//! Broadcast groups: a tree for each over the switches of its members, and a LID that no other group has there.

mod patch;
mod tree;

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::decisions::{Decisions, GroupDecision};
use fabric_model::intent::{Capabilities, Ipoib};
use fabric_model::plan::{Draft, GroupPlan, MulticastTable, PortSet};
use ib_wire::{Gid, Guid, Membership, MulticastLid, PartitionNumber};

use crate::CompileError;
use crate::fabric::{Fabric, SwitchIndex};
use crate::partitions::{Partition, Partitions};
use crate::routing::core_tree::CoreTree;
use crate::routing::order::Order;
pub(crate) use patch::patch;
use tree::{BuiltTree, GroupTree, TreeBuilder};

/// Groups a switch can tell apart at most: the LIDs there are.
const GROUPS_MAX: u16 = 0x3fff;

/// The groups of a fabric.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Those that are new or not as before.
    pub plans: Vec<GroupPlan>,
    /// Addresses of groups that are no more, or not as before.
    pub gone: Vec<Gid>,
    /// Where packets to groups leave, for each switch by its place; switches that are not listed stay as they were.
    pub tables: BTreeMap<SwitchIndex, BTreeMap<MulticastLid, PortSet>>,
    pub decisions: BTreeMap<PartitionNumber, GroupDecision>,
}

/// Plans a broadcast group for every partition that carries IP.
pub(crate) fn plan(
    fabric: &Fabric,
    (order, core_tree): (&Order, &CoreTree),
    partitions: &Partitions,
    capabilities: &Capabilities,
    previous: &Decisions,
) -> Result<Groups, CompileError> {
    let tables = (0..fabric.switches.len()).map(|index| (index, BTreeMap::new())).collect();
    let mut groups = Groups { tables, ..Groups::default() };
    let mut builder = TreeBuilder::new(fabric, order, core_tree);
    let mut lids = LidsInUse::new(fabric, capabilities);
    for (partition, ipoib) in in_turn(partitions, previous) {
        let before = previous.groups.get(&partition.number);
        let built = builder.build(partition, before.and_then(|group| group.root))?;
        let mlid = lids.take(partition.number, &built.tree, before.map(|group| group.mlid))?;
        for (index, ports) in &built.tree.exits {
            groups.tables.entry(*index).or_default().insert(mlid, *ports);
        }
        groups.add(fabric, partition, ipoib, mlid, built);
    }
    Ok(groups)
}

/// Plans the groups as [`plan`] would with the decisions of a plan for the same fabric, and looks only at those that
/// changed.
pub(crate) fn replan(
    fabric: &Fabric,
    (order, core_tree): (&Order, &CoreTree),
    partitions: &Partitions,
    capabilities: &Capabilities,
    before: &FabricPlan,
) -> Result<Groups, CompileError> {
    let mut changed: BTreeMap<PartitionNumber, Option<&Partition>> =
        before.groups().map(|group| (group.partition, None)).collect();
    changed.extend(partitions.by_number.iter().map(|(number, partition)| (*number, Some(partition))));
    if let Some(groups) = patch(fabric, (order, core_tree), &changed, capabilities, before)? {
        return Ok(groups);
    }
    let gone = before.groups().map(|group| group.mgid).collect();
    Ok(Groups { gone, ..plan(fabric, (order, core_tree), partitions, capabilities, before.decisions())? })
}

/// The partitions that carry IP. Groups of before come first: their LIDs are theirs.
fn in_turn<'p>(
    partitions: &'p Partitions,
    previous: &Decisions,
) -> impl Iterator<Item = (&'p Partition, Ipoib)> {
    let carrying = partitions.by_number.values().filter_map(|partition| Some((partition, partition.ipoib?)));
    let (known, new): (Vec<_>, Vec<_>) =
        carrying.partition(|(partition, _)| previous.groups.contains_key(&partition.number));
    known.into_iter().chain(new)
}

impl Groups {
    /// Puts the groups into a plan.
    pub fn put(self, draft: &mut Draft) {
        self.gone.into_iter().for_each(|mgid| draft.remove_group(mgid));
        self.plans.into_iter().for_each(|plan| draft.put_group(plan));
        for (index, exits) in self.tables {
            let table = MulticastTable::from_exits(exits);
            let before = draft.plan().shared_switches().get(index);
            if before.is_some_and(|switch| *switch.multicast != table)
                && let Some(switch) = draft.switch(index)
            {
                switch.multicast = Arc::new(table);
            }
        }
        draft.decisions().groups = self.decisions;
    }

    fn add(
        &mut self,
        fabric: &Fabric,
        partition: &Partition,
        ipoib: Ipoib,
        mlid: MulticastLid,
        built: BuiltTree,
    ) {
        let root = built.tree.root.map(|index| fabric.switches[index].guid);
        self.decisions.insert(partition.number, GroupDecision { mlid, root });
        self.plans.push(group_plan(partition, ipoib, mlid, root, built.members));
    }
}

fn group_plan(
    partition: &Partition,
    ipoib: Ipoib,
    mlid: MulticastLid,
    root: Option<Guid>,
    members: Vec<Guid>,
) -> GroupPlan {
    GroupPlan {
        mgid: broadcast_gid(partition.number, ipoib),
        mlid,
        partition: partition.number,
        mtu: ipoib.mtu,
        rate: ipoib.rate,
        sl: ipoib.sl,
        scope: ipoib.scope,
        qkey: ipoib.qkey,
        root,
        members,
    }
}

/// `ff1s:401b:<full key>::ffff:ffff`, s being the scope: the group every IPv4 interface of the partition joins.
fn broadcast_gid(partition: PartitionNumber, ipoib: Ipoib) -> Gid {
    let mut gid = [0; 16];
    gid[..4].copy_from_slice(&[0xff, 0x10 | ipoib.scope.to_wire(), 0x40, 0x1b]);
    gid[4..6].copy_from_slice(&partition.key(Membership::Full).to_wire().to_be_bytes());
    gid[12..].fill(0xff);
    Gid(gid)
}

/// Which multicast LIDs each switch has entries for.
#[derive(Debug)]
struct LidsInUse {
    /// By switch: a bit for each LID.
    used: Vec<Vec<u64>>,
    capacities: Vec<u16>,
}

impl LidsInUse {
    fn new(fabric: &Fabric, capabilities: &Capabilities) -> Self {
        let capacity = |guid| capabilities.switch(guid).multicast.min(GROUPS_MAX);
        Self {
            used: vec![Vec::new(); fabric.switches.len()],
            capacities: fabric.switches.iter().map(|switch| capacity(switch.guid)).collect(),
        }
    }

    /// The LID of before if no group on the same switches has it, else the lowest such one.
    fn take(
        &mut self,
        partition: PartitionNumber,
        tree: &GroupTree,
        before: Option<MulticastLid>,
    ) -> Result<MulticastLid, CompileError> {
        let capacity = tree.exits.keys().map(|index| self.capacities[*index]).min().unwrap_or(GROUPS_MAX);
        let taken = self.taken(tree.exits.keys().copied());
        let mlid = free_lid(&taken, capacity, before);
        let mlid = mlid.ok_or(CompileError::MlidsExhausted { partition, capacity })?;
        for index in tree.exits.keys() {
            let (word, bit) = (mlid.table_index() / 64, mlid.table_index() % 64);
            let used = &mut self.used[*index];
            used.resize(used.len().max(word + 1), 0);
            used[word] |= 1 << bit;
        }
        Ok(mlid)
    }

    fn taken(&self, indices: impl Iterator<Item = SwitchIndex>) -> Vec<u64> {
        let mut taken: Vec<u64> = Vec::new();
        for index in indices {
            let used = &self.used[index];
            taken.resize(taken.len().max(used.len()), 0);
            for (word, used) in taken.iter_mut().zip(used) {
                *word |= used;
            }
        }
        taken
    }
}

/// The LID of before if it is free, else the lowest that is. `taken` has a bit for each LID.
fn free_lid(taken: &[u64], capacity: u16, before: Option<MulticastLid>) -> Option<MulticastLid> {
    let is_free = |index: &usize| {
        *index < usize::from(capacity) && taken.get(*index / 64).is_none_or(|w| w >> (*index % 64) & 1 == 0)
    };
    let kept = before.map(MulticastLid::table_index).filter(is_free);
    let index = kept.or_else(|| (0..usize::from(capacity)).find(is_free))?;
    u16::try_from(usize::from(MulticastLid::MIN) + index).ok().and_then(MulticastLid::from_wire)
}
