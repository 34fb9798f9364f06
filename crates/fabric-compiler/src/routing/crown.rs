//! Where packets to groups go whose members no single switch is above.
//!
//! A tree of switches, the *crown*, below which all adapters are. Packets may go any way in it, so wherever it has two
//! switches above one, packets may turn there from each to the other, by the turns that routes keep to as well. What hangs
//! below it is reached downwards. So packets to groups hold links in the same order as all others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fabric_model::decisions::RoutingDecision;
use ib_wire::Guid;

use super::order::Order;
use super::turns::Turns;
use crate::fabric::{Fabric, Place};

/// Ways that are tried to join one more switch, because turns of the ones before would close a ring.
const WAYS_TRIED_MAX: usize = 64;

/// The crown of a fabric; empty where one switch is above all adapters.
#[derive(Debug, Default)]
pub(crate) struct Crown {
    /// By place: the switch of the crown that a switch of it was joined to, and where in that one's list of neighbours.
    pub parents: BTreeMap<Place, (Place, usize)>,
    /// The first of its switches.
    pub top: Option<Place>,
}

impl Crown {
    /// As it was decided; empty if the fabric has other cables.
    pub fn kept(fabric: &Fabric, decision: &RoutingDecision) -> Self {
        let place = |guid: &Guid| fabric.place_of(*guid);
        let joint = |(child, parent): (&Guid, &Guid)| {
            let (child, parent) = (place(child)?, place(parent)?);
            Some((child, (parent, slot(fabric, parent, child)?)))
        };
        let parents: Option<BTreeMap<Place, (Place, usize)>> = decision.crown.iter().map(joint).collect();
        let parents = parents.unwrap_or_default();
        let top = parents.values().map(|(parent, _)| *parent).find(|parent| !parents.contains_key(parent));
        Self { parents, top }
    }

    /// To be stored.
    pub fn decision(&self, fabric: &Fabric) -> BTreeMap<Guid, Guid> {
        let guid = |place: Place| fabric.switches[place].guid;
        self.parents.iter().map(|(child, (parent, _))| (guid(*child), guid(*parent))).collect()
    }

    /// A crown above all adapters: that of before if it still can be one. Turns that it needs are allowed; `None` if they
    /// would close rings.
    pub fn of(fabric: &Fabric, order: &Order, turns: &mut Turns<'_>, previous: &Self) -> Option<Self> {
        let grounds = Grounds::of(fabric, order);
        if grounds.apex.is_none_or(|(_, covered)| covered == grounds.leaves.len()) {
            return Some(Self::default());
        }
        let before = turns.count();
        let kept = Growth::again(fabric, order, &grounds, turns, previous);
        let growth = kept.or_else(|| {
            turns.take_back(before);
            Growth::whole(fabric, order, &grounds, turns)
        })?;
        Some(Self { parents: growth.parents, top: Some(growth.top) })
    }
}

fn slot(fabric: &Fabric, from: Place, to: Place) -> Option<usize> {
    fabric.switches[from].neighbours.iter().position(|neighbour| neighbour.place == to)
}

/// What has to be below a crown.
struct Grounds {
    /// Switches with adapters.
    leaves: BTreeSet<Place>,
    /// The switch above most of them, and how many; the highest of several.
    apex: Option<(Place, usize)>,
}

impl Grounds {
    fn of(fabric: &Fabric, order: &Order) -> Self {
        let leaves = (0..fabric.switches.len()).filter(|place| !fabric.switches[*place].adapters.is_empty());
        let leaves: BTreeSet<Place> = leaves.collect();
        let mut apex = None;
        for top in order.descending.iter().filter(|place| order.up[**place].is_empty()) {
            let covered = below(fabric, order, *top).filter(|place| leaves.contains(place)).count();
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

/// A switch and all below it.
fn below(fabric: &Fabric, order: &Order, top: Place) -> impl Iterator<Item = Place> + use<> {
    let mut seen = vec![false; fabric.switches.len()];
    let mut open = vec![top];
    seen[top] = true;
    while let Some(here) = open.pop() {
        for slot in &order.down[here] {
            let there = fabric.switches[here].neighbours[*slot].place;
            if !std::mem::replace(&mut seen[there], true) {
                open.push(there);
            }
        }
    }
    seen.into_iter().enumerate().filter_map(|(place, is_below)| is_below.then_some(place))
}

/// A crown in the making.
struct Growth<'a> {
    fabric: &'a Fabric,
    order: &'a Order,
    top: Place,
    parents: BTreeMap<Place, (Place, usize)>,
    /// By switch of the crown: those of it that are above.
    above: BTreeMap<Place, Vec<Place>>,
    uncovered: BTreeSet<Place>,
    /// Turns that would close a ring.
    refused: BTreeSet<(Place, Place, Place)>,
}

impl<'a> Growth<'a> {
    fn new(fabric: &'a Fabric, order: &'a Order, grounds: &Grounds, top: Place) -> Self {
        let mut growth = Self {
            fabric,
            order,
            top,
            parents: BTreeMap::new(),
            above: BTreeMap::from([(top, Vec::new())]),
            uncovered: grounds.leaves.clone(),
            refused: BTreeSet::new(),
        };
        growth.cover(top);
        growth
    }

    /// The crown of before, if it is one.
    fn again(
        fabric: &'a Fabric,
        order: &'a Order,
        grounds: &Grounds,
        turns: &mut Turns<'_>,
        previous: &Crown,
    ) -> Option<Self> {
        let mut growth = Self::new(fabric, order, grounds, previous.top?);
        let mut children: BTreeMap<Place, Vec<Place>> = BTreeMap::new();
        for (child, (parent, _)) in &previous.parents {
            children.entry(*parent).or_default().push(*child);
        }
        let mut open = VecDeque::from([growth.top]);
        while let Some(here) = open.pop_front() {
            for child in children.remove(&here).unwrap_or_default() {
                let is_joined = !growth.above.contains_key(&child) && growth.join(here, child, turns);
                if !is_joined {
                    return None;
                }
                open.push_back(child);
            }
        }
        (growth.uncovered.is_empty() && children.is_empty()).then_some(growth)
    }

    /// From the switch above most adapters on, until all are covered.
    fn whole(fabric: &'a Fabric, order: &'a Order, grounds: &Grounds, turns: &mut Turns<'_>) -> Option<Self> {
        let mut growth = Self::new(fabric, order, grounds, grounds.apex?.0);
        while !growth.uncovered.is_empty() {
            let known = |growth: &Self, turns: &Turns<'_>| growth.way(|a, at, b| turns.may_turn(a, at, b));
            let mut is_joined = known(&growth, turns).is_some_and(|way| growth.join_all(&way, turns));
            for _ in 0..WAYS_TRIED_MAX {
                if is_joined {
                    break;
                }
                let way = growth.way(|a, at, b| !growth.refused.contains(&(a.min(b), at, a.max(b))))?;
                is_joined = growth.join_all(&way, turns);
            }
            if !is_joined {
                return None;
            }
        }
        Some(growth)
    }

    fn cover(&mut self, place: Place) {
        if self.uncovered.is_empty() {
            return;
        }
        for covered in below(self.fabric, self.order, place) {
            self.uncovered.remove(&covered);
        }
    }

    /// A shortest way from the crown to a switch above an adapter that is not covered, by turns that are good.
    fn way(&self, is_good: impl Fn(Place, Place, Place) -> bool) -> Option<Vec<Place>> {
        let mut is_above = vec![false; self.fabric.switches.len()];
        let mut open: Vec<Place> = self.uncovered.iter().copied().collect();
        open.iter().for_each(|place| is_above[*place] = true);
        while let Some(here) = open.pop() {
            for slot in &self.order.up[here] {
                let there = self.fabric.switches[here].neighbours[*slot].place;
                if !std::mem::replace(&mut is_above[there], true) {
                    open.push(there);
                }
            }
        }
        let mut before: Vec<Option<Place>> = vec![None; self.fabric.switches.len()];
        let mut queue: VecDeque<Place> = self.above.keys().copied().collect();
        while let Some(here) = queue.pop_front() {
            if is_above[here] {
                let mut way = vec![here];
                while let Some(place) = before[way[way.len() - 1]] {
                    way.push(place);
                }
                way.reverse();
                return Some(way);
            }
            for neighbour in &self.fabric.switches[here].neighbours {
                let there = neighbour.place;
                if before[there].is_some() || self.above.contains_key(&there) {
                    continue;
                }
                let from = before[here].filter(|from| self.order.is_above(*from, here));
                let of_crown = self.above.get(&here).into_iter().flatten().copied();
                let is_open = !self.order.is_above(there, here)
                    || from.into_iter().chain(of_crown).all(|above| is_good(above, here, there));
                if is_open {
                    before[there] = Some(here);
                    queue.push_back(there);
                }
            }
        }
        None
    }

    /// Joins the switches of a way, as far as turns close no ring; false if not all.
    fn join_all(&mut self, way: &[Place], turns: &mut Turns<'_>) -> bool {
        way.windows(2).all(|pair| self.join(pair[0], pair[1], turns))
    }

    /// Joins a switch to one of the crown; false, and nothing is joined or allowed, if turns would close a ring. So the turns
    /// of a crown are those that the next one, which begins with it, needs as well.
    fn join(&mut self, here: Place, there: Place, turns: &mut Turns<'_>) -> bool {
        let Some(slot) = slot(self.fabric, here, there) else { return false };
        if self.order.is_above(there, here) {
            let before = turns.count();
            let above = self.above.get(&here).cloned().unwrap_or_default();
            for other in above {
                if !turns.allow_turn(other, here, there) {
                    turns.take_back(before);
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
