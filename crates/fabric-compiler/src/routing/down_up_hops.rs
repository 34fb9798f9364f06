//! Hops from a downward to an upward link, for switches that up-then-down paths do not connect: core switches of a tree
//! among each other, above all.
//!
//! A *hop* is the pair of links over which a packet enters and leaves a switch. Up*/down* routing forbids hops from a link
//! down to a link up. Some can be allowed without closing a cycle of links that wait for each other:
//!
//! - *Pivot tree*: one bottom switch, the pivot, and all switches above it form a tree if each of them has exactly one
//!   switch below that belongs to it. Packets may go down this tree and up again. That closes no cycle: what went up from the
//!   tree can come down only outside of it, and outside nothing goes up again. O(links) for each candidate pivot.
//! - *Single hops*: where cables are missing so that the pivot tree does not connect everything, further hops are allowed
//!   one by one. Each is allowed only if a search of the channel dependency graph (Dally and Seitz) finds no path from the
//!   second link of the hop back to the first. A search visits each switch a constant number of times, so it is O(links).

use std::collections::{BTreeSet, HashMap, HashSet};

use fabric_model::decisions::{DownUpTurn, HeightScheme};
use ib_wire::Guid;

use super::order::Order;
use crate::fabric::{Fabric, SwitchIndex};

/// Links visited by all cycle searches together, once for routes and once for groups: about a tenth of a second. Fabrics
/// that lack a few cables need a small part of it.
const SEARCH_STEPS_MAX: usize = 20_000_000;

/// The index of a neighbour in [`Switch::neighbours`](crate::fabric::Switch::neighbours).
type Slot = usize;

/// The hops from a link down to a link up that are allowed.
#[derive(Debug)]
pub(crate) struct DownUpHops<'a> {
    fabric: &'a Fabric,
    order: &'a Order,
    tree: Option<Tree>,
    /// By switch: its first channel. A channel is a directed link to a neighbour; they are numbered by switch, then neighbour.
    first_channel: Vec<usize>,
    /// Hops that would close a cycle: a channel down, and the neighbour above.
    refused: HashSet<(usize, Slot)>,
    /// By channel down: the neighbours above that an allowed hop leads to.
    allowed: HashMap<usize, Vec<Slot>>,
    /// The same hops in the order in which they were allowed.
    in_order: Vec<(usize, Slot)>,
    /// By switch: the number of allowed hops there.
    hops_at: Vec<u32>,
    steps_left: usize,
    search: Search,
}

/// The pivot and the switches above it.
#[derive(Debug)]
struct Tree {
    pivot: SwitchIndex,
    /// By switch: whether it is above the pivot.
    inside: Vec<bool>,
    /// By switch: the next neighbour towards the pivot, down inside the tree and up outside of it.
    next: Vec<Option<Slot>>,
}

impl<'a> DownUpHops<'a> {
    /// With the previous pivot if it is still valid, otherwise the bottom switch with the most switches above.
    pub fn of(fabric: &'a Fabric, order: &'a Order, previous: Option<Guid>) -> Self {
        let mut channels = 0;
        let first_channel = (fabric.switches.iter())
            .map(|switch| {
                channels += switch.neighbours.len();
                channels - switch.neighbours.len()
            })
            .collect();
        Self {
            fabric,
            order,
            tree: match order.scheme {
                HeightScheme::Tiers => {
                    Tree::of(fabric, order, previous.and_then(|guid| fabric.switch_index(guid)))
                }
                // All switches reach each other through the root.
                HeightScheme::Root => None,
            },
            first_channel,
            refused: HashSet::new(),
            allowed: HashMap::new(),
            in_order: Vec::new(),
            hops_at: vec![0; fabric.switches.len()],
            steps_left: SEARCH_STEPS_MAX,
            search: Search::new(fabric.switches.len(), channels),
        }
    }

    /// The node GUID of the pivot.
    pub fn pivot(&self) -> Option<Guid> {
        self.tree.as_ref().map(|tree| self.fabric.switches[tree.pivot].guid)
    }

    /// The single hops that were allowed.
    pub fn hops(&self) -> BTreeSet<DownUpTurn> {
        let guid = |index: SwitchIndex| self.fabric.switches[index].guid;
        let mut hops = BTreeSet::new();
        for (channel, next) in &self.in_order {
            let (from, at) = self.ends(*channel);
            let to = self.fabric.switches[at].neighbours[*next].switch;
            hops.insert(DownUpTurn { from: guid(from), at: guid(at), to: guid(to) });
        }
        hops
    }

    /// The pivot, which must have a route to a destination before others can use the tree.
    pub fn pivot_switch(&self) -> Option<SwitchIndex> {
        self.tree.as_ref().map(|tree| tree.pivot)
    }

    /// The neighbour of a switch towards the pivot.
    pub fn tree_next_hop(&self, index: SwitchIndex) -> Option<Slot> {
        self.tree.as_ref()?.next[index]
    }

    /// Whether a single hop at a switch was allowed.
    pub fn has_hop(&self, index: SwitchIndex) -> bool {
        self.hops_at[index] > 0
    }

    /// Whether packets from `from` to its neighbour `slot` may go on to that one's neighbour `next`.
    pub fn may_follow(&self, from: SwitchIndex, slot: Slot, next: Slot) -> bool {
        let here = self.fabric.switches[from].neighbours[slot].switch;
        let onward = self.fabric.switches[here].neighbours[next].switch;
        let goes_up_again = self.order.is_above(from, here) && self.order.is_above(onward, here);
        let is_allowed = || {
            let channel = self.first_channel[from] + slot;
            self.allowed.get(&channel).is_some_and(|allowed| allowed.contains(&next))
        };
        onward != from && (!goes_up_again || self.tree_allows(from, here) || is_allowed())
    }

    /// Allows a hop unless that closes a cycle; returns whether it is allowed.
    pub fn allow(&mut self, from: SwitchIndex, slot: Slot, next: Slot) -> bool {
        let here = self.fabric.switches[from].neighbours[slot].switch;
        if self.may_follow(from, slot, next) {
            return true;
        }
        let channel = self.first_channel[from] + slot;
        let is_back = self.fabric.switches[here].neighbours[next].switch == from;
        // A hop that closed a cycle once does so until some hop is withdrawn.
        if is_back || !self.refused.insert((channel, next)) || self.leads_back((here, next), channel) {
            return false;
        }
        self.refused.remove(&(channel, next));
        self.allowed.entry(channel).or_default().push(next);
        self.in_order.push((channel, next));
        self.hops_at[here] += 1;
        true
    }

    /// The number of single hops allowed so far; see [`Self::undo_to`].
    pub fn count(&self) -> usize {
        self.in_order.len()
    }

    /// Withdraws all single hops but the first `count`.
    pub fn undo_to(&mut self, count: usize) {
        let taken = self.in_order.split_off(count);
        // Hops that closed a cycle with the withdrawn ones may close none now.
        if !taken.is_empty() {
            self.refused.clear();
        }
        for (channel, next) in taken {
            let (_, here) = self.ends(channel);
            self.hops_at[here] -= 1;
            self.allowed.entry(channel).or_default().retain(|allowed| *allowed != next);
        }
    }

    /// Whether packets may hop at a switch from one above it to another, and back.
    pub fn may_hop(&self, a: SwitchIndex, at: SwitchIndex, b: SwitchIndex) -> bool {
        let may = |(from, slot, next)| self.may_follow(from, slot, next);
        self.step(a, at, b).is_some_and(may) && self.step(b, at, a).is_some_and(may)
    }

    /// Allows the hops at a switch from one above it to another, and back; returns whether both are allowed. If not, one of
    /// them may have been allowed and has to be withdrawn by [`Self::undo_to`].
    pub fn allow_hop(&mut self, a: SwitchIndex, at: SwitchIndex, b: SwitchIndex) -> bool {
        let [there, back] = [(a, b), (b, a)].map(|(from, to)| self.step(from, at, to));
        let mut allow = |step: Option<(SwitchIndex, Slot, Slot)>| {
            step.is_some_and(|(from, slot, next)| self.allow(from, slot, next))
        };
        allow(there) && allow(back)
    }

    /// The hop from a switch through another to a third, with indices of neighbours.
    fn step(&self, from: SwitchIndex, at: SwitchIndex, to: SwitchIndex) -> Option<(SwitchIndex, Slot, Slot)> {
        let slot = |here: SwitchIndex, there: SwitchIndex| {
            self.fabric.switches[here].neighbours.iter().position(|neighbour| neighbour.switch == there)
        };
        Some((from, slot(from, at)?, slot(at, to)?))
    }

    /// Resets the limit on the steps of cycle searches.
    pub fn refresh(&mut self) {
        self.steps_left = SEARCH_STEPS_MAX;
    }

    /// The two ends of a channel.
    fn ends(&self, channel: usize) -> (SwitchIndex, SwitchIndex) {
        let from = self.first_channel.partition_point(|first| *first <= channel) - 1;
        (from, self.fabric.switches[from].neighbours[channel - self.first_channel[from]].switch)
    }

    /// Whether the pivot tree allows packets that came down from `from` to go up at `here`.
    fn tree_allows(&self, from: SwitchIndex, here: SwitchIndex) -> bool {
        let goes = |tree: &Tree| tree.inside[from] && (tree.inside[here] || tree.pivot == here);
        self.tree.as_ref().is_some_and(goes)
    }

    /// Whether packets that hold a channel can wait, over some hops, for the channel `target`. Also true if the search runs
    /// out of steps.
    fn leads_back(&mut self, from: (SwitchIndex, Slot), target: usize) -> bool {
        self.search.begin();
        let mut open = vec![from];
        while let Some((index, slot)) = open.pop() {
            let channel = self.first_channel[index] + slot;
            if channel == target {
                return true;
            }
            let here = self.fabric.switches[index].neighbours[slot].switch;
            let before = open.len();
            if self.order.is_above(index, here) {
                self.push_after_down(channel, index, here, &mut open);
            } else {
                self.push_after_up(index, here, &mut open);
            }
            let Some(left) = self.steps_left.checked_sub(1 + open.len() - before) else { return true };
            self.steps_left = left;
        }
        false
    }

    /// Pushes what may follow a channel down: all channels down, and those up that hops allow.
    fn push_after_down(
        &mut self,
        channel: usize,
        index: SwitchIndex,
        here: SwitchIndex,
        open: &mut Vec<(SwitchIndex, Slot)>,
    ) {
        if self.search.comes_down_first(here) {
            open.extend(self.order.down[here].iter().map(|slot| (here, *slot)));
        }
        let neighbours = &self.fabric.switches[here].neighbours;
        let allowed = self.allowed.get(&channel).map_or(&[][..], Vec::as_slice);
        let up = if self.tree_allows(index, here) { self.order.up[here].as_slice() } else { allowed };
        for slot in up.iter().filter(|slot| neighbours[**slot].switch != index) {
            if self.search.hops_first(self.first_channel[here] + slot) {
                open.push((here, *slot));
            }
        }
    }

    /// Pushes what may follow a channel up: all channels but the one back.
    fn push_after_up(&mut self, index: SwitchIndex, here: SwitchIndex, open: &mut Vec<(SwitchIndex, Slot)>) {
        let neighbours = &self.fabric.switches[here].neighbours;
        match self.search.comes_up(here, index) {
            Coming::First => {
                let down = self.order.down[here].iter().filter(|slot| neighbours[**slot].switch != index);
                open.extend(self.order.up[here].iter().chain(down).map(|slot| (here, *slot)));
            }
            // Reached from a second switch: now the channel back to the first one may follow, too.
            Coming::Second { first } => {
                let back = self.order.down[here].iter().find(|slot| neighbours[**slot].switch == first);
                open.extend(back.map(|slot| (here, *slot)));
            }
            Coming::Again => {}
        }
    }
}

/// The visited part of a search. Visits to a switch are distinguished only by how packets arrive, because nothing else
/// decides which channels may follow. That keeps a search linear in the number of links.
#[derive(Debug)]
struct Search {
    /// The number of the current search; entries below hold the last search that visited them.
    number: u32,
    down: Vec<u32>,
    /// With the switch below that packets arrived from first.
    up: Vec<(u32, SwitchIndex)>,
    up_again: Vec<u32>,
    hopped: Vec<u32>,
}

/// How often packets arrived at a switch from below.
enum Coming {
    First,
    Second { first: SwitchIndex },
    Again,
}

impl Search {
    fn new(switches: usize, channels: usize) -> Self {
        Self {
            number: 0,
            down: vec![0; switches],
            up: vec![(0, 0); switches],
            up_again: vec![0; switches],
            hopped: vec![0; channels],
        }
    }

    fn begin(&mut self) {
        self.number += 1;
    }

    fn comes_down_first(&mut self, here: SwitchIndex) -> bool {
        std::mem::replace(&mut self.down[here], self.number) != self.number
    }

    fn hops_first(&mut self, channel: usize) -> bool {
        std::mem::replace(&mut self.hopped[channel], self.number) != self.number
    }

    fn comes_up(&mut self, here: SwitchIndex, from: SwitchIndex) -> Coming {
        let (number, first) = self.up[here];
        if number != self.number {
            self.up[here] = (self.number, from);
            Coming::First
        } else if first != from && std::mem::replace(&mut self.up_again[here], self.number) != self.number {
            Coming::Second { first }
        } else {
            Coming::Again
        }
    }
}

impl Tree {
    fn of(fabric: &Fabric, order: &Order, previous: Option<SwitchIndex>) -> Option<Self> {
        let above = |pivot: &SwitchIndex| above(fabric, order, *pivot);
        let kept = previous.and_then(|pivot| Some((pivot, above(&pivot)?)));
        let (pivot, inside) = kept.or_else(|| {
            let bottoms = (0..fabric.switches.len()).filter(|index| order.down[*index].is_empty());
            let candidates = bottoms.filter_map(|pivot| Some((pivot, above(&pivot)?)));
            candidates.max_by_key(|(pivot, inside)| {
                (inside.iter().filter(|inside| **inside).count(), std::cmp::Reverse(*pivot))
            })
        })?;
        let mut next = vec![None; fabric.switches.len()];
        for &index in &order.descending {
            let neighbour = |slot: &&usize| fabric.switches[index].neighbours[**slot].switch;
            next[index] = if inside[index] {
                order.down[index].iter().find(|slot| inside[neighbour(slot)] || neighbour(slot) == pivot)
            } else {
                order.up[index].iter().find(|slot| inside[neighbour(slot)] || next[neighbour(slot)].is_some())
            }
            .copied();
        }
        // The pivot sends up by ordinary routes only.
        next[pivot] = None;
        Some(Self { pivot, inside, next })
    }
}

/// The switches above a bottom switch; `None` unless each has exactly one switch below that is among them or the bottom
/// switch itself.
fn above(fabric: &Fabric, order: &Order, bottom: SwitchIndex) -> Option<Vec<bool>> {
    if !order.down[bottom].is_empty() {
        return None;
    }
    let mut inside = vec![false; fabric.switches.len()];
    let mut open = vec![bottom];
    while let Some(index) = open.pop() {
        for slot in &order.up[index] {
            let there = fabric.switches[index].neighbours[*slot].switch;
            if std::mem::replace(&mut inside[there], true) {
                // Two of its switches below belong to the tree.
                return None;
            }
            open.push(there);
        }
    }
    Some(inside)
}
