//! Broadcast groups: for each a tree over the switches of its members, and a multicast LID that no other group uses on these
//! switches.
//!
//! The root of a tree is a switch above all members, near them and the root of few other groups ([`tree`]). Groups on
//! different switches may share a multicast LID, because forwarding tables of switches are small. Groups that exist keep
//! their LID and root. O(members' switches · links) for each group.

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

/// The number of multicast LIDs (0xC000 to 0xFFFE).
const GROUPS_MAX: u16 = 0x3fff;

/// The groups of a fabric.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// New and changed groups.
    pub plans: Vec<GroupPlan>,
    /// MGIDs of removed and changed groups.
    pub gone: Vec<Gid>,
    /// By switch: the exit ports of each group. Switches that are not listed stay as they were.
    pub tables: BTreeMap<SwitchIndex, BTreeMap<MulticastLid, PortSet>>,
    pub decisions: BTreeMap<PartitionNumber, GroupDecision>,
}

/// Plans a broadcast group for every partition with IPoIB.
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
    for (partition, ipoib) in in_order(partitions, previous) {
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

/// Plans the groups as [`plan`] would with the decisions of a plan for the same fabric, but computes only changed ones where
/// possible.
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

/// The partitions with IPoIB. Those that had a group come first, so that they keep their LIDs.
fn in_order<'p>(
    partitions: &'p Partitions,
    previous: &Decisions,
) -> impl Iterator<Item = (&'p Partition, Ipoib)> {
    let carrying = partitions.by_number.values().filter_map(|partition| Some((partition, partition.ipoib?)));
    let (known, new): (Vec<_>, Vec<_>) =
        carrying.partition(|(partition, _)| previous.groups.contains_key(&partition.number));
    known.into_iter().chain(new)
}

impl Groups {
    /// Writes the groups into a plan.
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

/// The IPv4 broadcast MGID of a partition (RFC 4391): `ff1s:401b:<full P_Key>::ffff:ffff`, where s is the scope.
fn broadcast_gid(partition: PartitionNumber, ipoib: Ipoib) -> Gid {
    let mut gid = [0; 16];
    gid[..4].copy_from_slice(&[0xff, 0x10 | ipoib.scope.to_wire(), 0x40, 0x1b]);
    gid[4..6].copy_from_slice(&partition.key(Membership::Full).to_wire().to_be_bytes());
    gid[12..].fill(0xff);
    Gid(gid)
}

/// The multicast LIDs in use on each switch.
#[derive(Debug)]
struct LidsInUse {
    /// By switch: a bit set.
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

    /// Takes the previous LID of a group if it is free on all switches of its tree, else the lowest that is.
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

/// The previous LID if it is free, else the lowest that is. `taken` is a bit set.
fn free_lid(taken: &[u64], capacity: u16, before: Option<MulticastLid>) -> Option<MulticastLid> {
    let is_free = |index: &usize| {
        *index < usize::from(capacity) && taken.get(*index / 64).is_none_or(|w| w >> (*index % 64) & 1 == 0)
    };
    let kept = before.map(MulticastLid::table_index).filter(is_free);
    let index = kept.or_else(|| (0..usize::from(capacity)).find(is_free))?;
    u16::try_from(usize::from(MulticastLid::MIN) + index).ok().and_then(MulticastLid::from_wire)
}
