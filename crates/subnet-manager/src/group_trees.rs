//! Trees of multicast groups that ports created.
//!
//! The tree of such a group is the part of its partition's broadcast tree that connects its members. So it needs no routing: a part
//! of a tree that is verified has no loop and reaches no port outside the partition, whatever ports join and leave. The trees are
//! added to the plan that the caller gave, and the result is programmed as every plan is: entries shrink everywhere before they
//! grow. The groups and their members are persisted before their entries are written: the next manager finds these right, and keeps
//! them for a [time](REMEMBERED) in which ports join again.
//!
//! Joins and leaves are collected: however fast ports join, there is an [`INTERVAL`] for other work between two programming runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fabric_model::FabricPlan;
use fabric_model::plan::{Draft, MulticastTable, PortSet, SwitchPlan};
use ib_wire::{Guid, MulticastLid, PortNum};

use crate::manager::{Manager, Phase};
use crate::sa::{JoinedGroup, MemberKind};

/// Least time from the end of a programming run for groups to the next.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long the members of a former manager keep their trees without joining again, after all ports were asked to.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Which trees are in the plan.
#[derive(Debug, Default)]
pub(crate) struct GroupTrees {
    /// [`SubnetAdministration::tree_changes`](crate::sa::SubnetAdministration::tree_changes) of the trees in the plan.
    built: u64,
    /// No programming run for groups begins before this time.
    earliest: Duration,
    /// When the groups of a former manager are forgotten.
    forget_at: Option<Duration>,
    /// Whether the plan differs from the one before in nothing but these trees.
    pub is_only_change: bool,
    /// Number of blocks of multicast forwarding tables that may have entries of such groups, those of former managers included.
    blocks_used: u16,
}

impl GroupTrees {
    pub fn new(blocks_used: u16) -> Self {
        Self { blocks_used, ..Self::default() }
    }

    pub fn blocks_used(&self) -> u16 {
        self.blocks_used
    }
}

impl Manager {
    /// Adds the trees of the groups that exist to the plan.
    pub(crate) fn add_group_trees(&mut self) {
        let Some(plan) = &self.plan else { return };
        let changes = self.sa.tree_changes();
        self.state_is_new |= std::mem::replace(&mut self.group_trees.built, changes) != changes;
        let groups = self.sa.joined_groups(plan);
        let last =
            groups.iter().map(|group| group.mlid.table_index() / ib_wire::MulticastBlock::ENTRIES + 1).max();
        let blocks = last.and_then(|blocks| u16::try_from(blocks).ok()).unwrap_or(0);
        if blocks > self.group_trees.blocks_used {
            self.group_trees.blocks_used = blocks;
            self.state_is_new = true;
        }
        self.plan = Some(with_trees(plan, &groups));
    }

    /// Starts to program trees that changed, if it is time. Returns whether it did.
    pub(crate) fn begin_group_trees(&mut self, now: Duration) -> bool {
        if self.in_force.is_some() && self.sa.remembers_groups() {
            let forget_at = *self.group_trees.forget_at.get_or_insert(now + REMEMBERED);
            if forget_at <= now {
                self.sa.forget_remembered_groups();
            }
        }
        let is_due = self.group_trees_timeout().is_some_and(|due| due <= now);
        // A plan that is held back goes first, and its decisions are stored with the groups.
        if !is_due || self.plan_is_new() || self.persistence.is_failing() {
            return false;
        }
        self.put_off_group_trees(now);
        self.add_group_trees();
        if !self.plan_is_new() {
            return false;
        }
        self.group_trees.is_only_change = true;
        self.begin_programming();
        self.phase == Phase::Reading
    }

    /// Leaves time for other work before the next programming run for groups.
    pub(crate) fn put_off_group_trees(&mut self, now: Duration) {
        self.group_trees.earliest = now + INTERVAL;
    }

    /// When the next programming run for groups begins; `None` if no tree changed.
    pub(crate) fn group_trees_timeout(&self) -> Option<Duration> {
        let is_idle = self.phase == Phase::Idle && self.in_force.is_some() && !self.persistence.is_failing();
        let is_due = is_idle && self.sa.tree_changes() != self.group_trees.built;
        let forgets = self.group_trees.forget_at.filter(|_| self.sa.remembers_groups() && is_idle);
        is_due.then_some(self.group_trees.earliest).into_iter().chain(forgets).min()
    }
}

/// A plan with exactly the trees of some groups, besides those of its own groups. Returns the same plan if it has them.
fn with_trees(plan: &Arc<FabricPlan>, groups: &[JoinedGroup]) -> Arc<FabricPlan> {
    let planned: BTreeSet<MulticastLid> = plan.groups().map(|group| group.mlid).collect();
    let mut added: BTreeMap<Guid, BTreeMap<MulticastLid, PortSet>> = BTreeMap::new();
    // A group whose multicast LID the plan uses ends when subnet administration answers from it.
    for group in groups.iter().filter(|group| !planned.contains(&group.mlid)) {
        for (switch, exits) in tree(plan, group) {
            added.entry(switch).or_default().insert(group.mlid, exits);
        }
    }
    let mut draft: Option<Draft> = None;
    for (index, switch) in plan.shared_switches().iter().enumerate() {
        let own = switch.multicast.exits().filter(|(mlid, _)| planned.contains(mlid));
        let mut exits: BTreeMap<MulticastLid, PortSet> = own.collect();
        exits.extend(added.remove(&switch.guid).into_iter().flatten());
        if !switch.multicast.exits().eq(exits.iter().map(|(mlid, ports)| (*mlid, *ports)))
            && let Some(switch) = draft.get_or_insert_with(|| plan.draft()).switch(index)
        {
            switch.multicast = Arc::new(MulticastTable::from_exits(exits));
        }
    }
    draft.map_or_else(|| Arc::clone(plan), |draft| Arc::new(draft.finish()))
}

/// The part of the broadcast tree of its partition that connects the members of a group: output ports by switch.
fn tree(plan: &FabricPlan, group: &JoinedGroup) -> BTreeMap<Guid, PortSet> {
    let Some(broadcast) = plan.groups().find(|planned| planned.partition == group.partition) else {
        return BTreeMap::new();
    };
    let mut members: BTreeMap<Guid, BTreeMap<PortNum, MemberKind>> = BTreeMap::new();
    for (guid, kind) in &group.members {
        if let Some(port) = plan.adapter_port(*guid) {
            members.entry(port.peer.node).or_default().insert(port.peer.port, *kind);
        }
    }
    let Some(root) = members.keys().next().copied() else { return BTreeMap::new() };
    // Each switch of the tree after the one from which it is reached: (switch, switch before, exit of that one to it).
    let mut visited: Vec<Visit<'_>> = Vec::new();
    let mut seen = BTreeSet::from([root]);
    visited.extend(plan.switch(root).map(|switch| Visit { switch, before: None }));
    let mut next = 0;
    while let Some(Visit { switch, .. }) = visited.get(next).copied() {
        for exit in switch.multicast.exit(broadcast.mlid).iter() {
            let peer = switch.port(exit).and_then(|port| plan.switch(port.peer.node));
            if let Some(there) = peer.filter(|there| seen.insert(there.guid)) {
                visited.push(Visit { switch: there, before: Some((next, exit)) });
            }
        }
        next += 1;
    }
    // From the leaves to the root: what leads to a member stays.
    let mut exits: BTreeMap<Guid, PortSet> = BTreeMap::new();
    for Visit { switch, before } in visited.iter().rev() {
        for (port, kind) in members.get(&switch.guid).into_iter().flatten() {
            let ports = exits.entry(switch.guid).or_default();
            let reached = switch.multicast.exit(broadcast.mlid).contains(*port);
            if *kind == MemberKind::Receives && reached {
                ports.insert(*port);
            }
        }
        let Some((above, exit)) = before.filter(|_| exits.contains_key(&switch.guid)) else { continue };
        let above = visited[above].switch;
        exits.entry(above.guid).or_default().insert(exit);
        if let Some(back) = above.port(exit).map(|port| port.peer.port) {
            exits.entry(switch.guid).or_default().insert(back);
        }
    }
    exits
}

/// A switch of a tree, and the one from which it is reached: its position and its output port.
#[derive(Clone, Copy)]
struct Visit<'a> {
    switch: &'a SwitchPlan,
    before: Option<(usize, PortNum)>,
}

/// Tables that devices hold, without the entries of groups that are not in the plan and that devices should hold according to
/// `in_force`.
pub(crate) fn without_joined(held: FabricPlan, in_force: &FabricPlan) -> FabricPlan {
    let planned: BTreeSet<MulticastLid> = held.groups().map(|group| group.mlid).collect();
    let mut draft = held.draft();
    for (index, switch) in held.switches().enumerate() {
        let wanted = in_force.switch(switch.guid);
        let is_joined = |mlid: MulticastLid, ports: PortSet| {
            !planned.contains(&mlid) && wanted.is_some_and(|wanted| wanted.multicast.exit(mlid) == ports)
        };
        let exits: BTreeMap<MulticastLid, PortSet> =
            switch.multicast.exits().filter(|(mlid, ports)| !is_joined(*mlid, *ports)).collect();
        if exits.len() < switch.multicast.exits().len()
            && let Some(switch) = draft.switch(index)
        {
            switch.multicast = Arc::new(MulticastTable::from_exits(exits));
        }
    }
    draft.finish()
}
