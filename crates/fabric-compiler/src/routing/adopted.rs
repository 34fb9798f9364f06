//! Routes that were found on a fabric and taken over.
//!
//! They were chosen by somebody else, so no home describes them; they are kept entry by entry. A route to a LID counts
//! only where it goes up, then down in our order: then it closes no ring with our own. Where a cable of it is missing,
//! the switches that used it are led to others that still have a route; the rest of the fabric keeps what it has. When
//! the cable returns, everything is as it was found.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_model::plan::LinearTable;
use ib_wire::{Guid, Lid, PortNum};

use super::hash;
use super::order::Order;
use super::turns::Turns;
use crate::fabric::{Fabric, Place};

/// What a table holds where there is no exit.
const NO_PORT: u8 = 0xff;

/// Where a port leads to no other switch.
const NOWHERE: u16 = u16::MAX;

/// Columns looked at together: as many as a cache line of a row holds.
const BATCH: usize = 64;

/// An adapter port that packets are for.
#[derive(Clone, Copy, Debug)]
struct End {
    lid: Lid,
    /// The switch it hangs on, and the port there.
    home: Place,
    exit: PortNum,
}

/// How a switch reaches a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Not known to.
    Not,
    /// Going down all the way.
    Down,
    /// Otherwise.
    Other,
}

/// Puts the routes that were taken over in the place of our own, as far as they hold.
pub(super) fn apply(
    fabric: &Fabric<'_>,
    order: &Order,
    turns: &Turns<'_>,
    lids: &BTreeMap<Guid, Lid>,
    adopted: &BTreeMap<Guid, Arc<LinearTable>>,
    rows: &mut [Vec<u8>],
) {
    let tables: Vec<&[u8]> = (fabric.switches.iter())
        .map(|switch| adopted.get(&switch.guid).map_or(&[][..], |table| table.exits()))
        .collect();
    let has_route =
        |end: &End| tables[end.home].get(usize::from(end.lid.to_wire())) == Some(&end.exit.to_wire());
    let ends: Vec<End> = ends(fabric, lids).into_iter().filter(has_route).collect();
    let mut judge = Judge::new(fabric, order);
    for_columns(&tables, &ends, |end, column| {
        if judge.repair(end, column, turns) {
            for (row, exit) in rows.iter_mut().zip(column) {
                if let Some(entry) = row.get_mut(usize::from(end.lid.to_wire())) {
                    *entry = *exit;
                }
            }
        }
    });
}

/// The part of some tables that can be taken over: routes to adapter ports from everywhere that go up, then down, and
/// are not our own anyway. Also how many routes there were to choose from.
pub(crate) fn takeover(
    fabric: &Fabric<'_>,
    order: &Order,
    lids: &BTreeMap<Guid, Lid>,
    found: &BTreeMap<Guid, LinearTable>,
    own: &[&[u8]],
) -> Takeover {
    let tables: Vec<&[u8]> = (fabric.switches.iter())
        .map(|switch| found.get(&switch.guid).map_or(&[][..], LinearTable::exits))
        .collect();
    let ends = ends(fabric, lids);
    let top = ends.last().map_or(0, |end| usize::from(end.lid.to_wire()));
    let mut rows = vec![vec![NO_PORT; top + 1]; fabric.switches.len()];
    let mut judge = Judge::new(fabric, order);
    let mut takeover = Takeover { routes: BTreeMap::new(), ends: ends.len(), same: 0, kept: 0 };
    for_columns(&tables, &ends, |end, column| {
        let lid = usize::from(end.lid.to_wire());
        if column.iter().zip(own).all(|(exit, own)| own.get(lid) == Some(exit)) {
            takeover.same += 1;
        } else if column[end.home] == end.exit.to_wire() && judge.holds(end, column) {
            takeover.kept += 1;
            rows.iter_mut().zip(column).for_each(|(row, exit)| row[lid] = *exit);
        }
    });
    if takeover.kept > 0 {
        let tables = rows.into_iter().map(|row| Arc::new(LinearTable::from_exits(row)));
        takeover.routes = fabric.switches.iter().map(|switch| switch.guid).zip(tables).collect();
    }
    takeover
}

/// What could be taken over.
#[derive(Debug)]
pub(crate) struct Takeover {
    pub routes: BTreeMap<Guid, Arc<LinearTable>>,
    /// Adapter ports.
    pub ends: usize,
    /// Those to which the routes found are our own.
    pub same: usize,
    /// Those whose routes are taken over.
    pub kept: usize,
}

/// Adapter ports on switches in order of their LIDs.
fn ends(fabric: &Fabric<'_>, lids: &BTreeMap<Guid, Lid>) -> Vec<End> {
    let mut ends: Vec<End> = (fabric.adapter_ports.iter())
        .filter_map(|port| {
            let (home, exit) = port.attached?;
            Some(End { lid: *lids.get(&port.guid)?, home, exit })
        })
        .collect();
    ends.sort_unstable_by_key(|end| end.lid);
    ends
}

/// Calls with the exits of all switches towards each end. Rows are read in long stretches.
fn for_columns(tables: &[&[u8]], ends: &[End], mut each: impl FnMut(&End, &mut [u8])) {
    let mut columns: Vec<Vec<u8>> = vec![vec![NO_PORT; tables.len()]; BATCH];
    for batch in ends.chunks(BATCH) {
        for (place, table) in tables.iter().enumerate() {
            for (column, end) in columns.iter_mut().zip(batch) {
                column[place] = table.get(usize::from(end.lid.to_wire())).copied().unwrap_or(NO_PORT);
            }
        }
        for (column, end) in columns.iter_mut().zip(batch) {
            each(end, column);
        }
    }
}

/// Follows routes through the fabric.
#[derive(Debug)]
struct Judge<'a> {
    fabric: &'a Fabric<'a>,
    order: &'a Order,
    /// Which neighbour each port of each switch leads to.
    slots: Vec<Vec<u16>>,
    /// Where each switch stands in the order.
    standing: Vec<u32>,
    /// How each switch reaches the destination at hand.
    reach: Vec<Reach>,
    /// By how many steps.
    steps: Vec<u32>,
}

impl<'a> Judge<'a> {
    fn new(fabric: &'a Fabric<'a>, order: &'a Order) -> Self {
        let count = fabric.switches.len();
        let mut standing = vec![0; count];
        for (place, number) in order.descending.iter().rev().zip(0..) {
            standing[*place] = number;
        }
        let slots = fabric.switches.iter().map(slots_by_port).collect();
        Self { fabric, order, slots, standing, reach: vec![Reach::Not; count], steps: vec![0; count] }
    }

    /// Whether packets from every switch arrive, going up and then down.
    fn holds(&mut self, end: &End, column: &mut [u8]) -> bool {
        self.descend(end, column, None);
        self.climb(end, column, None).is_empty()
    }

    /// Gives switches another exit where theirs leads nowhere; whether all have one then.
    fn repair(&mut self, end: &End, column: &mut [u8], turns: &Turns<'_>) -> bool {
        self.descend(end, column, Some(end.lid));
        let lost = self.climb(end, column, Some(end.lid));
        self.turn(end.lid, column, lost, turns)
    }

    /// The neighbour that a switch sends to.
    fn next(&self, place: Place, exit: u8) -> Option<Place> {
        let slot = self.slot(place, exit)?;
        Some(self.fabric.switches[place].neighbours[slot].place)
    }

    fn slot(&self, place: Place, exit: u8) -> Option<usize> {
        self.slots[place]
            .get(usize::from(exit))
            .filter(|slot| **slot != NOWHERE)
            .map(|slot| usize::from(*slot))
    }

    /// From the lowest switch upwards: who goes down to one that goes down. With a LID to repair for, switches whose exit
    /// leads nowhere do so too if they can.
    fn descend(&mut self, end: &End, column: &mut [u8], repair: Option<Lid>) {
        self.reach.fill(Reach::Not);
        self.reach[end.home] = Reach::Down;
        self.steps[end.home] = 0;
        column[end.home] = end.exit.to_wire();
        for &place in self.order.descending.iter().rev().filter(|place| **place != end.home) {
            let next = self.next(place, column[place]);
            match next {
                Some(next) if self.standing[next] > self.standing[place] => {}
                Some(next) if self.reach[next] == Reach::Down => self.arrive(place, next, Reach::Down),
                _ => {
                    if let Some(lid) = repair {
                        self.reroute(place, column, lid, Reach::Down);
                    }
                }
            }
        }
    }

    /// From the highest switch downwards: who goes up to one that arrives. Returns those who do not, in that order.
    fn climb(&mut self, end: &End, column: &mut [u8], repair: Option<Lid>) -> Vec<Place> {
        let mut lost = Vec::new();
        for &place in self.order.descending.iter().filter(|place| **place != end.home) {
            if self.reach[place] != Reach::Not {
                continue;
            }
            let next = self.next(place, column[place]);
            match next {
                Some(next)
                    if self.standing[next] > self.standing[place] && self.reach[next] != Reach::Not =>
                {
                    self.arrive(place, next, Reach::Other);
                }
                _ => {
                    let is_led = repair.is_some_and(|lid| {
                        self.reroute(place, column, lid, Reach::Other)
                            || self.reroute(place, column, lid, Reach::Down)
                    });
                    if !is_led {
                        lost.push(place);
                    }
                }
            }
        }
        lost
    }

    fn arrive(&mut self, place: Place, next: Place, reach: Reach) {
        self.reach[place] = reach;
        self.steps[place] = self.steps[next] + 1;
    }

    /// Sends down to neighbours that go down, or up to any that arrive: to the nearest, by hash among equals.
    fn reroute(&mut self, place: Place, column: &mut [u8], lid: Lid, reach: Reach) -> bool {
        let neighbours = &self.fabric.switches[place].neighbours;
        let slots = if reach == Reach::Down { &self.order.down[place] } else { &self.order.up[place] };
        let arrives = |slot: &&usize| {
            let there = self.reach[neighbours[**slot].place];
            there == Reach::Down || reach == Reach::Other && there == Reach::Other
        };
        let steps = |slot: &usize| self.steps[neighbours[*slot].place];
        let Some(nearest) = slots.iter().filter(arrives).map(steps).min() else { return false };
        let slots = slots.iter().filter(arrives).filter(|slot| steps(slot) == nearest);
        let ports: Vec<PortNum> =
            slots.flat_map(|slot| neighbours[*slot].cables.iter().map(|cable| cable.near)).collect();
        let Some(port) = hash::choose(hash::seed(self.fabric.switches[place].guid), &ports, lid) else {
            return false;
        };
        column[place] = port.to_wire();
        self.reach[place] = reach;
        self.steps[place] = nearest + 1;
        true
    }

    /// Leads switches that have no way by going up, then down, by turns that our own routes may use too.
    fn turn(&mut self, lid: Lid, column: &mut [u8], mut lost: Vec<Place>, turns: &Turns<'_>) -> bool {
        while !lost.is_empty() {
            let before = lost.len();
            lost.retain(|&place| {
                let fabric = self.fabric;
                let neighbours = &fabric.switches[place].neighbours;
                let follow = |slot: &usize| {
                    let here = neighbours[*slot].place;
                    self.reach[here] != Reach::Not
                        && self
                            .slot(here, column[here])
                            .is_some_and(|next| turns.may_follow(place, *slot, next))
                };
                let Some(slot) = (0..neighbours.len()).find(follow) else { return true };
                let ports: Vec<PortNum> = neighbours[slot].cables.iter().map(|cable| cable.near).collect();
                let seed = hash::seed(fabric.switches[place].guid);
                let Some(port) = hash::choose(seed, &ports, lid) else { return true };
                column[place] = port.to_wire();
                self.arrive(place, neighbours[slot].place, Reach::Other);
                false
            });
            if lost.len() == before {
                return false;
            }
        }
        true
    }
}

fn slots_by_port(switch: &crate::fabric::Switch) -> Vec<u16> {
    let mut slots = vec![NOWHERE; usize::from(NO_PORT)];
    for (slot, neighbour) in (0..).zip(&switch.neighbours) {
        for cable in &neighbour.cables {
            slots[cable.near.index()] = slot;
        }
    }
    slots
}
