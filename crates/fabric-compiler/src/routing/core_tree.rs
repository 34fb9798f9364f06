//! The core tree: the paths of multicast groups whose members have no common switch above them.
//!
//! The core tree is a tree of switches with all adapters below it. Packets may take any path in it, so wherever two of its
//! switches are above a third, packets may hop there from each to the other; the hops are those of [`down_up_hops`], which
//! unicast routes use as well. What is below the core tree is reached downwards. So packets of groups hold links in the same
//! order as all others, and add no cycle to the channel dependency graph.
//!
//! It grows from the switch above most adapters, by breadth-first search for a shortest path to a switch above an uncovered
//! one; paths whose hops would close a cycle are excluded and the search is repeated, at most 64 times for each path.
//!
//! [`down_up_hops`]: super::down_up_hops

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fabric_model::decisions::RoutingDecision;
use ib_wire::Guid;

use super::down_up_hops::DownUpHops;
use super::order::Order;
use crate::fabric::{Fabric, SwitchIndex};

/// Paths that are tried to join one more switch, if hops of earlier ones would close a cycle.
const PATHS_TRIED_MAX: usize = 64;

/// The core tree of a fabric; empty where one switch is above all adapters.
#[derive(Debug, Default)]
pub(crate) struct CoreTree {
    /// By switch of the tree: its parent, and its index among the neighbours of the parent.
    pub parents: BTreeMap<SwitchIndex, (SwitchIndex, usize)>,
    /// The root of the tree; `None` if it is empty.
    pub top: Option<SwitchIndex>,
}

impl CoreTree {
    /// The tree of a decision; empty if one of its links does not exist.
    pub fn kept(fabric: &Fabric, decision: &RoutingDecision) -> Self {
        let index = |guid: &Guid| fabric.switch_index(*guid);
        let joint = |(child, parent): (&Guid, &Guid)| {
            let (child, parent) = (index(child)?, index(parent)?);
            Some((child, (parent, slot(fabric, parent, child)?)))
        };
        let parents: Option<BTreeMap<SwitchIndex, (SwitchIndex, usize)>> =
            decision.core_tree.iter().map(joint).collect();
        let parents = parents.unwrap_or_default();
        let top = parents.values().map(|(parent, _)| *parent).find(|parent| !parents.contains_key(parent));
        Self { parents, top }
    }

    /// The tree as decisions store it: the parent of each switch, by node GUID.
    pub fn decision(&self, fabric: &Fabric) -> BTreeMap<Guid, Guid> {
        let guid = |index: SwitchIndex| fabric.switches[index].guid;
        self.parents.iter().map(|(child, (parent, _))| (guid(*child), guid(*parent))).collect()
    }

    /// A tree above all adapters: the previous one if it is still valid. Allows the hops that it needs; `None` if they would
    /// close cycles.
    pub fn of(fabric: &Fabric, order: &Order, hops: &mut DownUpHops<'_>, previous: &Self) -> Option<Self> {
        let coverage = Coverage::of(fabric, order);
        if coverage.apex.is_none_or(|(_, covered)| covered == coverage.leaves.len()) {
            return Some(Self::default());
        }
        let before = hops.count();
        let kept = CoreTreeBuilder::again(fabric, order, &coverage, hops, previous);
        let builder = kept.or_else(|| {
            hops.undo_to(before);
            CoreTreeBuilder::whole(fabric, order, &coverage, hops)
        })?;
        Some(Self { parents: builder.parents, top: Some(builder.top) })
    }
}

fn slot(fabric: &Fabric, from: SwitchIndex, to: SwitchIndex) -> Option<usize> {
    fabric.switches[from].neighbours.iter().position(|neighbour| neighbour.switch == to)
}

/// What has to be below the tree.
struct Coverage {
    /// The switches with adapters.
    leaves: BTreeSet<SwitchIndex>,
    /// The switch above most of them, and their number; the highest of several.
    apex: Option<(SwitchIndex, usize)>,
}

impl Coverage {
    fn of(fabric: &Fabric, order: &Order) -> Self {
        let leaves = (0..fabric.switches.len()).filter(|index| !fabric.switches[*index].adapters.is_empty());
        let leaves: BTreeSet<SwitchIndex> = leaves.collect();
        let mut apex = None;
        for top in order.descending.iter().filter(|index| order.up[**index].is_empty()) {
            let covered = below(fabric, order, *top).filter(|index| leaves.contains(index)).count();
            if apex.is_none_or(|(_, most)| covered > most) {
                apex = Some((*top, covered));
            }
            if covered == leaves.len() {
                break;
            }
        }
        Self { leaves, apex }
    }
}

/// A switch and all switches below it.
fn below(fabric: &Fabric, order: &Order, top: SwitchIndex) -> impl Iterator<Item = SwitchIndex> + use<> {
    let mut seen = vec![false; fabric.switches.len()];
    let mut open = vec![top];
    seen[top] = true;
    while let Some(here) = open.pop() {
        for slot in &order.down[here] {
            let there = fabric.switches[here].neighbours[*slot].switch;
            if !std::mem::replace(&mut seen[there], true) {
                open.push(there);
            }
        }
    }
    seen.into_iter().enumerate().filter_map(|(index, is_below)| is_below.then_some(index))
}

/// A core tree under construction.
struct CoreTreeBuilder<'a> {
    fabric: &'a Fabric,
    order: &'a Order,
    top: SwitchIndex,
    parents: BTreeMap<SwitchIndex, (SwitchIndex, usize)>,
    /// By switch of the tree: its switches of the tree that are above.
    above: BTreeMap<SwitchIndex, Vec<SwitchIndex>>,
    uncovered: BTreeSet<SwitchIndex>,
    /// Hops that would close a cycle, with the two outer switches in order.
    refused: BTreeSet<(SwitchIndex, SwitchIndex, SwitchIndex)>,
}

impl<'a> CoreTreeBuilder<'a> {
    fn new(fabric: &'a Fabric, order: &'a Order, coverage: &Coverage, top: SwitchIndex) -> Self {
        let mut builder = Self {
            fabric,
            order,
            top,
            parents: BTreeMap::new(),
            above: BTreeMap::from([(top, Vec::new())]),
            uncovered: coverage.leaves.clone(),
            refused: BTreeSet::new(),
        };
        builder.cover(top);
        builder
    }

    /// The previous tree, if it is still valid.
    fn again(
        fabric: &'a Fabric,
        order: &'a Order,
        coverage: &Coverage,
        hops: &mut DownUpHops<'_>,
        previous: &CoreTree,
    ) -> Option<Self> {
        let mut builder = Self::new(fabric, order, coverage, previous.top?);
        let mut children: BTreeMap<SwitchIndex, Vec<SwitchIndex>> = BTreeMap::new();
        for (child, (parent, _)) in &previous.parents {
            children.entry(*parent).or_default().push(*child);
        }
        let mut open = VecDeque::from([builder.top]);
        while let Some(here) = open.pop_front() {
            for child in children.remove(&here).unwrap_or_default() {
                let is_joined = !builder.above.contains_key(&child) && builder.join(here, child, hops);
                if !is_joined {
                    return None;
                }
                open.push_back(child);
            }
        }
        (builder.uncovered.is_empty() && children.is_empty()).then_some(builder)
    }

    /// A new tree, from the switch above most adapters.
    fn whole(
        fabric: &'a Fabric,
        order: &'a Order,
        coverage: &Coverage,
        hops: &mut DownUpHops<'_>,
    ) -> Option<Self> {
        let mut builder = Self::new(fabric, order, coverage, coverage.apex?.0);
        while !builder.uncovered.is_empty() {
            let known =
                |builder: &Self, hops: &DownUpHops<'_>| builder.path(|a, at, b| hops.may_hop(a, at, b));
            let mut is_joined = known(&builder, hops).is_some_and(|path| builder.join_all(&path, hops));
            for _ in 0..PATHS_TRIED_MAX {
                if is_joined {
                    break;
                }
                let path = builder.path(|a, at, b| !builder.refused.contains(&(a.min(b), at, a.max(b))))?;
                is_joined = builder.join_all(&path, hops);
            }
            if !is_joined {
                return None;
            }
        }
        Some(builder)
    }

    fn cover(&mut self, index: SwitchIndex) {
        if self.uncovered.is_empty() {
            return;
        }
        for covered in below(self.fabric, self.order, index) {
            self.uncovered.remove(&covered);
        }
    }

    /// A shortest path from the tree to a switch above an uncovered adapter, by hops that `is_good` accepts.
    fn path(
        &self,
        is_good: impl Fn(SwitchIndex, SwitchIndex, SwitchIndex) -> bool,
    ) -> Option<Vec<SwitchIndex>> {
        let mut is_above = vec![false; self.fabric.switches.len()];
        let mut open: Vec<SwitchIndex> = self.uncovered.iter().copied().collect();
        open.iter().for_each(|index| is_above[*index] = true);
        while let Some(here) = open.pop() {
            for slot in &self.order.up[here] {
                let there = self.fabric.switches[here].neighbours[*slot].switch;
                if !std::mem::replace(&mut is_above[there], true) {
                    open.push(there);
                }
            }
        }
        let mut before: Vec<Option<SwitchIndex>> = vec![None; self.fabric.switches.len()];
        let mut queue: VecDeque<SwitchIndex> = self.above.keys().copied().collect();
        while let Some(here) = queue.pop_front() {
            if is_above[here] {
                let mut path = vec![here];
                while let Some(index) = before[path[path.len() - 1]] {
                    path.push(index);
                }
                path.reverse();
                return Some(path);
            }
            for neighbour in &self.fabric.switches[here].neighbours {
                let there = neighbour.switch;
                if before[there].is_some() || self.above.contains_key(&there) {
                    continue;
                }
                let from = before[here].filter(|from| self.order.is_above(*from, here));
                let of_tree = self.above.get(&here).into_iter().flatten().copied();
                let is_open = !self.order.is_above(there, here)
                    || from.into_iter().chain(of_tree).all(|above| is_good(above, here, there));
                if is_open {
                    before[there] = Some(here);
                    queue.push_back(there);
                }
            }
        }
        None
    }

    /// Joins the switches of a path in order, until a hop would close a cycle; returns whether all were joined.
    fn join_all(&mut self, path: &[SwitchIndex], hops: &mut DownUpHops<'_>) -> bool {
        path.windows(2).all(|pair| self.join(pair[0], pair[1], hops))
    }

    /// Joins a switch to one of the tree. False, and nothing is joined or allowed, if a hop would close a cycle. So only hops
    /// that the tree uses are allowed, and rebuilding the tree from its decision allows the same ones.
    fn join(&mut self, here: SwitchIndex, there: SwitchIndex, hops: &mut DownUpHops<'_>) -> bool {
        let Some(slot) = slot(self.fabric, here, there) else { return false };
        if self.order.is_above(there, here) {
            let before = hops.count();
            let above = self.above.get(&here).cloned().unwrap_or_default();
            for other in above {
                if !hops.allow_hop(other, here, there) {
                    hops.undo_to(before);
                    self.refused.insert((other.min(there), here, other.max(there)));
                    return false;
                }
            }
            self.above.entry(here).or_default().push(there);
            self.above.entry(there).or_default();
        } else {
            self.above.entry(there).or_default().push(here);
        }
        self.parents.insert(there, (here, slot));
        self.cover(there);
        true
    }
}
