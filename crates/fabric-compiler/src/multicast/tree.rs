//! The tree of a group over the switches of its members.
//!
//! It consists of shortest paths down from one switch that is above all members, so that packets go up and then down as
//! unicast packets do. Where no switch is above all members, the core tree of the fabric is the upper part of the tree.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fabric_model::plan::PortSet;
use ib_wire::{Guid, PortNum};

use crate::CompileError;
use crate::fabric::{Fabric, SwitchIndex};
use crate::partitions::Partition;
use crate::routing::core_tree::CoreTree;
use crate::routing::hash;
use crate::routing::order::Order;

/// Builds trees and counts their roots, so that these spread over the switches.
#[derive(Debug)]
pub(super) struct TreeBuilder<'a> {
    fabric: &'a Fabric,
    order: &'a Order,
    core_tree: &'a CoreTree,
    /// By switch: the number of trees that it is the root of.
    roots: Vec<u32>,
}

/// The exit ports of a group at each of its switches.
#[derive(Debug, Default)]
pub(super) struct GroupTree {
    pub root: Option<SwitchIndex>,
    pub exits: BTreeMap<SwitchIndex, PortSet>,
}

/// By switch: its parent in the tree, and its index among the neighbours of the parent.
type Parents = Vec<Option<(SwitchIndex, usize)>>;

/// A tree and the members of its group.
#[derive(Debug)]
pub(super) struct BuiltTree {
    pub tree: GroupTree,
    /// Port GUIDs of adapters, in order.
    pub members: Vec<Guid>,
}

/// The switches above the members of a group.
#[derive(Debug)]
struct Reach {
    /// By switch: the number of member switches below it, itself included.
    below: Vec<u32>,
    /// By switch: the distance to the farthest of those.
    depth: Vec<u32>,
}

impl<'a> TreeBuilder<'a> {
    pub fn new(fabric: &'a Fabric, order: &'a Order, core_tree: &'a CoreTree) -> Self {
        Self { fabric, order, core_tree, roots: vec![0; fabric.switches.len()] }
    }

    /// Counts the root of an existing tree.
    pub fn count(&mut self, root: Option<SwitchIndex>) {
        if let Some(root) = root {
            self.roots[root] += 1;
        }
    }

    /// Builds the tree of a partition's adapter ports; `previous` is the root to prefer.
    pub fn build(
        &mut self,
        partition: &Partition,
        previous: Option<Guid>,
    ) -> Result<BuiltTree, CompileError> {
        let mut tree = GroupTree::default();
        let mut members = Vec::new();
        for guid in partition.grouped() {
            let Some(port) = self.fabric.adapter_port(*guid) else { continue };
            members.push(*guid);
            if let Some((index, number)) = port.attached {
                tree.exits.entry(index).or_default().insert(number);
            }
        }
        let leaves: BTreeSet<SwitchIndex> = tree.exits.keys().copied().collect();
        let reach = self.reach(&leaves);
        let previous = previous.and_then(|guid| self.fabric.switch_index(guid));
        let Some((apex, is_above_all)) = self.apex(&leaves, &reach, previous) else {
            return Ok(BuiltTree { tree, members });
        };
        let planned = match is_above_all {
            true => Some((apex, self.parents([apex], |index| reach.below[index] > 0))),
            false => self.below_core_tree(&leaves),
        };
        let (root, parents) = planned.ok_or(CompileError::GroupNotJoined { partition: partition.number })?;
        self.roots[root] += 1;
        tree.root = Some(root);
        tree.exits.entry(root).or_default();
        self.grow(&mut tree, &leaves, &parents, partition);
        Ok(BuiltTree { tree, members })
    }

    /// The lowest switch of the core tree above all leaves, and the parents below it; `None` if a leaf is not below the core
    /// tree.
    fn below_core_tree(&self, leaves: &BTreeSet<SwitchIndex>) -> Option<(SwitchIndex, Parents)> {
        let top = self.core_tree.top?;
        let inside = || std::iter::once(top).chain(self.core_tree.parents.keys().copied());
        let mut parents = self.parents(inside(), |_| true);
        for (index, parent) in &self.core_tree.parents {
            parents[*index] = Some(*parent);
        }
        let mut joined = vec![0; self.fabric.switches.len()];
        for &leaf in leaves {
            let mut here = leaf;
            joined[here] += 1;
            while let Some((parent, _)) = parents[here] {
                here = parent;
                joined[here] += 1;
            }
            if here != top {
                return None;
            }
        }
        let mut root = *leaves.first()?;
        while joined[root] < leaves.len() {
            root = parents[root]?.0;
        }
        parents[root] = None;
        Some((root, parents))
    }

    fn reach(&self, leaves: &BTreeSet<SwitchIndex>) -> Reach {
        let count = self.fabric.switches.len();
        let mut reach = Reach { below: vec![0; count], depth: vec![0; count] };
        let mut seen = vec![None; count];
        for &leaf in leaves {
            let mut queue = VecDeque::from([(leaf, 0)]);
            seen[leaf] = Some(leaf);
            while let Some((here, distance)) = queue.pop_front() {
                reach.below[here] += 1;
                reach.depth[here] = reach.depth[here].max(distance);
                for slot in &self.order.up[here] {
                    let above = self.fabric.switches[here].neighbours[*slot].switch;
                    if seen[above].replace(leaf) != Some(leaf) {
                        queue.push_back((above, distance + 1));
                    }
                }
            }
        }
        reach
    }

    /// The switch above the most leaves, and whether it is above all. The previous one is kept if it is as good; otherwise
    /// the nearest one, then the root of the fewest trees.
    fn apex(
        &self,
        leaves: &BTreeSet<SwitchIndex>,
        reach: &Reach,
        previous: Option<SwitchIndex>,
    ) -> Option<(SwitchIndex, bool)> {
        if leaves.is_empty() {
            return None;
        }
        let uncovered = |index: SwitchIndex| leaves.len() - reach.below[index] as usize;
        let best = (0..self.fabric.switches.len())
            .min_by_key(|index| (uncovered(*index), reach.depth[*index], self.roots[*index], *index))?;
        let kept = previous.filter(|kept| uncovered(*kept) == uncovered(best));
        let root = kept.unwrap_or(best);
        Some((root, uncovered(root) == 0))
    }

    /// Parents on shortest paths down from some switches, through switches that `counts` accepts.
    fn parents(
        &self,
        from: impl IntoIterator<Item = SwitchIndex>,
        counts: impl Fn(SwitchIndex) -> bool,
    ) -> Parents {
        let mut parents = vec![None; self.fabric.switches.len()];
        let mut queue: VecDeque<SwitchIndex> = from.into_iter().collect();
        let tops: BTreeSet<SwitchIndex> = queue.iter().copied().collect();
        while let Some(here) = queue.pop_front() {
            for slot in &self.order.down[here] {
                let there = self.fabric.switches[here].neighbours[*slot].switch;
                if !tops.contains(&there) && parents[there].is_none() && counts(there) {
                    parents[there] = Some((here, *slot));
                    queue.push_back(there);
                }
            }
        }
        parents
    }

    /// Adds the links from every leaf to the root.
    fn grow(
        &self,
        tree: &mut GroupTree,
        leaves: &BTreeSet<SwitchIndex>,
        parents: &[Option<(SwitchIndex, usize)>],
        partition: &Partition,
    ) {
        let mut joined = vec![false; self.fabric.switches.len()];
        for &leaf in leaves {
            let mut here = leaf;
            while let Some((parent, slot)) = parents[here] {
                if std::mem::replace(&mut joined[here], true) {
                    break;
                }
                let cables = &self.fabric.switches[parent].neighbours[slot].cables;
                let ports: Vec<PortNum> = cables.iter().map(|cable| cable.near).collect();
                let seed = hash::seed(self.fabric.switches[parent].guid);
                let port = hash::choose_by(seed, &ports, u64::from(partition.number.to_wire()));
                if let Some(cable) = cables.iter().find(|cable| Some(cable.near) == port) {
                    tree.exits.entry(parent).or_default().insert(cable.near);
                    tree.exits.entry(here).or_default().insert(cable.far);
                }
                here = parent;
            }
        }
    }
}
