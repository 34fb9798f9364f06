//! Routes for ends that going up, then down, does not join: the tops of a tree among themselves, above all.
//!
//! One bottom switch, the *turn*, and everything above it form a tree of their own, if each of those switches has just
//! one below it that belongs to it too. Packets may go down this tree and up again. That closes no ring: whatever went
//! up from the tree can only come down outside of it, and outside nothing goes up again.
//!
//! Where cables are missing so that this does not help, further turns are allowed one by one, each after a search that
//! finds no ring through it.

use std::collections::{BTreeSet, HashMap, HashSet};

use fabric_model::decisions::{Scheme, TurnAt};
use ib_wire::Guid;

use super::order::Order;
use crate::fabric::{Fabric, Place};

/// Links looked at in all searches for rings together, for routes and once more for groups; about a tenth of a second.
/// Fabrics that lack a few cables need a small part of it.
const SEARCH_STEPS_MAX: usize = 20_000_000;

/// A neighbour of a switch, as a place in its list.
type Slot = usize;

/// Which packets may go up after they went down.
#[derive(Debug)]
pub(crate) struct Turns<'a> {
    fabric: &'a Fabric,
    order: &'a Order,
    tree: Option<Tree>,
    /// The first channel of each switch: channels are numbered by switch, then by neighbour.
    first_channel: Vec<usize>,
    /// Turns that would close a ring: a channel down and the neighbour above.
    refused: HashSet<(usize, Slot)>,
    /// The neighbours above that an allowed turn leads to, by the channel down.
    allowed: HashMap<usize, Vec<Slot>>,
    /// The same turns, the latest last.
    in_turn: Vec<(usize, Slot)>,
    /// How many of them are at each switch.
    turning: Vec<u32>,
    steps_left: usize,
    search: Search,
}

/// The tree of the turn.
#[derive(Debug)]
struct Tree {
    turn: Place,
    /// Whether a switch belongs to it.
    inside: Vec<bool>,
    /// From a switch of the tree down to the turn, from others up to the tree.
    next: Vec<Option<Slot>>,
}

impl<'a> Turns<'a> {
    /// Keeps the turn of before if it can be one; otherwise the bottom switch below most others.
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
                Scheme::Levels => Tree::of(fabric, order, previous.and_then(|guid| fabric.place_of(guid))),
                // Everyone reaches everyone by the root.
                Scheme::Root => None,
            },
            first_channel,
            refused: HashSet::new(),
            allowed: HashMap::new(),
            in_turn: Vec::new(),
            turning: vec![0; fabric.switches.len()],
            steps_left: SEARCH_STEPS_MAX,
            search: Search::new(fabric.switches.len(), channels),
        }
    }

    /// The turn, to be stored.
    pub fn turn(&self) -> Option<Guid> {
        self.tree.as_ref().map(|tree| self.fabric.switches[tree.turn].guid)
    }

    /// The turns that were allowed one by one, to be stored.
    pub fn further(&self) -> BTreeSet<TurnAt> {
        let guid = |place: Place| self.fabric.switches[place].guid;
        let mut turns = BTreeSet::new();
        for (channel, next) in &self.in_turn {
            let (from, at) = self.ends(*channel);
            let to = self.fabric.switches[at].neighbours[*next].place;
            turns.insert(TurnAt { from: guid(from), at: guid(at), to: guid(to) });
        }
        turns
    }

    /// The switch that has to have a route before others can go by the tree.
    pub fn turn_place(&self) -> Option<Place> {
        self.tree.as_ref().map(|tree| tree.turn)
    }

    /// The neighbour to send to where there is no ordinary route, if the turn has one.
    pub fn detour(&self, place: Place) -> Option<Slot> {
        self.tree.as_ref()?.next[place]
    }

    /// Whether packets turn at a switch that is not of the tree.
    pub fn is_turning(&self, place: Place) -> bool {
        self.turning[place] > 0
    }

    /// Whether packets that come from `from` by its neighbour `slot` may go on by that one's neighbour `next`.
    pub fn may_follow(&self, from: Place, slot: Slot, next: Slot) -> bool {
        let here = self.fabric.switches[from].neighbours[slot].place;
        let onward = self.fabric.switches[here].neighbours[next].place;
        let turns_up = self.order.is_above(from, here) && self.order.is_above(onward, here);
        let is_allowed = || {
            let channel = self.first_channel[from] + slot;
            self.allowed.get(&channel).is_some_and(|allowed| allowed.contains(&next))
        };
        onward != from && (!turns_up || self.tree_turns(from, here) || is_allowed())
    }

    /// Allows packets to follow, unless that closes a ring.
    pub fn allow(&mut self, from: Place, slot: Slot, next: Slot) -> bool {
        let here = self.fabric.switches[from].neighbours[slot].place;
        if self.may_follow(from, slot, next) {
            return true;
        }
        let channel = self.first_channel[from] + slot;
        let is_back = self.fabric.switches[here].neighbours[next].place == from;
        // What closed a ring once does so until something is taken back.
        if is_back || !self.refused.insert((channel, next)) || self.leads_back((here, next), channel) {
            return false;
        }
        self.refused.remove(&(channel, next));
        self.allowed.entry(channel).or_default().push(next);
        self.in_turn.push((channel, next));
        self.turning[here] += 1;
        true
    }

    /// How many turns were allowed one by one, to be [taken back](Self::take_back) to.
    pub fn count(&self) -> usize {
        self.in_turn.len()
    }

    /// Allows only the first turns that were allowed, as many as there were before something was tried in vain.
    pub fn take_back(&mut self, count: usize) {
        let taken = self.in_turn.split_off(count);
        // What closed a ring with them may close none without.
        if !taken.is_empty() {
            self.refused.clear();
        }
        for (channel, next) in taken {
            let (_, here) = self.ends(channel);
            self.turning[here] -= 1;
            self.allowed.entry(channel).or_default().retain(|allowed| *allowed != next);
        }
    }

    /// Whether packets may turn at a switch from one above it to another, and back.
    pub fn may_turn(&self, a: Place, at: Place, b: Place) -> bool {
        let may = |(from, slot, next)| self.may_follow(from, slot, next);
        self.step(a, at, b).is_some_and(may) && self.step(b, at, a).is_some_and(may)
    }

    /// Allows packets to turn at a switch from one above it to another, and back, unless that closes a ring: then one of both
    /// may be left to be [taken back](Self::take_back).
    pub fn allow_turn(&mut self, a: Place, at: Place, b: Place) -> bool {
        let [there, back] = [(a, b), (b, a)].map(|(from, to)| self.step(from, at, to));
        let mut allow = |step: Option<(Place, Slot, Slot)>| {
            step.is_some_and(|(from, slot, next)| self.allow(from, slot, next))
        };
        allow(there) && allow(back)
    }

    /// A switch, its way to the next, and the way from there to a third.
    fn step(&self, from: Place, at: Place, to: Place) -> Option<(Place, Slot, Slot)> {
        let slot = |here: Place, there: Place| {
            self.fabric.switches[here].neighbours.iter().position(|neighbour| neighbour.place == there)
        };
        Some((from, slot(from, at)?, slot(at, to)?))
    }

    /// Has as many steps to look for rings again as at first.
    pub fn refresh(&mut self) {
        self.steps_left = SEARCH_STEPS_MAX;
    }

    /// The switches that a channel leads from and to.
    fn ends(&self, channel: usize) -> (Place, Place) {
        let from = self.first_channel.partition_point(|first| *first <= channel) - 1;
        (from, self.fabric.switches[from].neighbours[channel - self.first_channel[from]].place)
    }

    /// Whether the tree allows packets from `from` to turn upwards at `here`, below it.
    fn tree_turns(&self, from: Place, here: Place) -> bool {
        let goes = |tree: &Tree| tree.inside[from] && (tree.inside[here] || tree.turn == here);
        self.tree.as_ref().is_some_and(goes)
    }

    /// Whether packets that hold a channel can come to wait for another; also if that would take too long to find out.
    fn leads_back(&mut self, from: (Place, Slot), target: usize) -> bool {
        self.search.begin();
        let mut open = vec![from];
        while let Some((place, slot)) = open.pop() {
            let channel = self.first_channel[place] + slot;
            if channel == target {
                return true;
            }
            let here = self.fabric.switches[place].neighbours[slot].place;
            let before = open.len();
            if self.order.is_above(place, here) {
                self.push_after_down(channel, place, here, &mut open);
            } else {
                self.push_after_up(place, here, &mut open);
            }
            let Some(left) = self.steps_left.checked_sub(1 + open.len() - before) else { return true };
            self.steps_left = left;
        }
        false
    }

    /// What may follow a channel down: every other one down, and what turns allow.
    fn push_after_down(&mut self, channel: usize, place: Place, here: Place, open: &mut Vec<(Place, Slot)>) {
        if self.search.comes_down_first(here) {
            open.extend(self.order.down[here].iter().map(|slot| (here, *slot)));
        }
        let neighbours = &self.fabric.switches[here].neighbours;
        let allowed = self.allowed.get(&channel).map_or(&[][..], Vec::as_slice);
        let up = if self.tree_turns(place, here) { self.order.up[here].as_slice() } else { allowed };
        for slot in up.iter().filter(|slot| neighbours[**slot].place != place) {
            if self.search.turns_first(self.first_channel[here] + slot) {
                open.push((here, *slot));
            }
        }
    }

    /// What may follow a channel up: every other one but the way back.
    fn push_after_up(&mut self, place: Place, here: Place, open: &mut Vec<(Place, Slot)>) {
        let neighbours = &self.fabric.switches[here].neighbours;
        match self.search.comes_up(here, place) {
            Coming::First => {
                let down = self.order.down[here].iter().filter(|slot| neighbours[**slot].place != place);
                open.extend(self.order.up[here].iter().chain(down).map(|slot| (here, *slot)));
            }
            // From elsewhere than before: now the way back to there is open too.
            Coming::Second { first } => {
                let back = self.order.down[here].iter().find(|slot| neighbours[**slot].place == first);
                open.extend(back.map(|slot| (here, *slot)));
            }
            Coming::Again => {}
        }
    }
}

/// What a search has seen. Switches are told apart by how packets come to them, which is all that matters for what may
/// follow; that keeps a search linear in the number of cables.
#[derive(Debug)]
struct Search {
    /// The number of the search that something was last seen by.
    number: u32,
    down: Vec<u32>,
    /// With the switch below that packets came from first.
    up: Vec<(u32, Place)>,
    up_again: Vec<u32>,
    turned: Vec<u32>,
}

/// How packets come up to a switch.
enum Coming {
    First,
    Second { first: Place },
    Again,
}

impl Search {
    fn new(switches: usize, channels: usize) -> Self {
        Self {
            number: 0,
            down: vec![0; switches],
            up: vec![(0, 0); switches],
            up_again: vec![0; switches],
            turned: vec![0; channels],
        }
    }

    fn begin(&mut self) {
        self.number += 1;
    }

    fn comes_down_first(&mut self, here: Place) -> bool {
        std::mem::replace(&mut self.down[here], self.number) != self.number
    }

    fn turns_first(&mut self, channel: usize) -> bool {
        std::mem::replace(&mut self.turned[channel], self.number) != self.number
    }

    fn comes_up(&mut self, here: Place, from: Place) -> Coming {
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
    fn of(fabric: &Fabric, order: &Order, previous: Option<Place>) -> Option<Self> {
        let above = |turn: &Place| above(fabric, order, *turn);
        let kept = previous.and_then(|turn| Some((turn, above(&turn)?)));
        let (turn, inside) = kept.or_else(|| {
            let bottoms = (0..fabric.switches.len()).filter(|place| order.down[*place].is_empty());
            let candidates = bottoms.filter_map(|turn| Some((turn, above(&turn)?)));
            candidates.max_by_key(|(turn, inside)| {
                (inside.iter().filter(|inside| **inside).count(), std::cmp::Reverse(*turn))
            })
        })?;
        let mut next = vec![None; fabric.switches.len()];
        for &place in &order.descending {
            let neighbour = |slot: &&usize| fabric.switches[place].neighbours[**slot].place;
            next[place] = if inside[place] {
                order.down[place].iter().find(|slot| inside[neighbour(slot)] || neighbour(slot) == turn)
            } else {
                order.up[place].iter().find(|slot| inside[neighbour(slot)] || next[neighbour(slot)].is_some())
            }
            .copied();
        }
        // The turn sends up by ordinary routes only.
        next[turn] = None;
        Some(Self { turn, inside, next })
    }
}

/// The switches above a bottom switch, if each has just one below it that is among them or the bottom switch itself.
fn above(fabric: &Fabric, order: &Order, bottom: Place) -> Option<Vec<bool>> {
    if !order.down[bottom].is_empty() {
        return None;
    }
    let mut inside = vec![false; fabric.switches.len()];
    let mut open = vec![bottom];
    while let Some(place) = open.pop() {
        for slot in &order.up[place] {
            let there = fabric.switches[place].neighbours[*slot].place;
            if std::mem::replace(&mut inside[there], true) {
                // Reached from two switches below.
                return None;
            }
            open.push(there);
        }
    }
    Some(inside)
}
