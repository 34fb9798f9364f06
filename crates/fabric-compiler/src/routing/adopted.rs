//! Adopted routes: found on a fabric that another manager configured, and kept entry by entry.
//!
//! An adopted route to a LID is valid if it goes up, then down in our order of switches: then it closes no cycle with our
//! own routes. Where one of its cables is missing, the affected switches are led to others that still have a route; the
//! rest keeps its entries. When the cable returns, the route is as it was found.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_model::plan::LinearTable;
use ib_wire::{Guid, Lid, PortNum};

use super::down_up_hops::DownUpHops;
use super::hash;
use super::order::Order;
use crate::fabric::{Fabric, SwitchIndex};

/// The entry of a forwarding table without an exit.
const NO_PORT: u8 = 0xff;

/// Columns processed together: as many as a cache line of a row holds.
const BATCH: usize = 64;

/// An adapter port as a destination.
#[derive(Clone, Copy, Debug)]
struct AdapterEnd {
    lid: Lid,
    /// The switch that it is attached to, and the port there.
    switch: SwitchIndex,
    exit: PortNum,
}

/// How a switch reaches a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Not, as far as known.
    Not,
    /// By links down only.
    Down,
    /// By links up first.
    Other,
}

/// Replaces our own routes by the adopted ones that are valid or can be repaired.
pub(super) fn apply(
    fabric: &Fabric,
    order: &Order,
    hops: &DownUpHops<'_>,
    lids: &BTreeMap<Guid, Lid>,
    adopted: &BTreeMap<Guid, Arc<LinearTable>>,
    rows: &mut [Vec<u8>],
) {
    let tables: Vec<Option<&LinearTable>> =
        fabric.switches.iter().map(|switch| adopted.get(&switch.guid).map(|table| &**table)).collect();
    let mut check = RouteChecker::new(fabric, order);
    for ends in ends(fabric, lids).chunks(BATCH) {
        let mut batch = Batch::read(&tables, ends);
        batch.check(&mut check);
        for (index, end) in ends.iter().enumerate() {
            if !batch.holds[index] && batch.is_for(index, end) {
                let mut column = batch.column(index);
                batch.holds[index] = check.repair(end, &mut column, hops);
                batch.replace(index, &column);
            }
        }
        batch.write(rows);
    }
}

/// Selects the routes of found tables that can be adopted: those to adapter ports that go up, then down from every switch.
/// Routes that are equal to our own are counted, but not adopted.
pub(crate) fn takeover(
    fabric: &Fabric,
    order: &Order,
    lids: &BTreeMap<Guid, Lid>,
    found: &BTreeMap<Guid, LinearTable>,
    own: &[Option<&LinearTable>],
) -> Takeover {
    let tables: Vec<Option<&LinearTable>> =
        fabric.switches.iter().map(|switch| found.get(&switch.guid)).collect();
    let ends = ends(fabric, lids);
    let top = ends.last().map_or(0, |end| usize::from(end.lid.to_wire()));
    let mut rows = vec![vec![NO_PORT; top + 1]; fabric.switches.len()];
    let mut check = RouteChecker::new(fabric, order);
    let mut takeover = Takeover { routes: BTreeMap::new(), ends: ends.len(), same: 0, kept: 0 };
    for ends in ends.chunks(BATCH) {
        let mut batch = Batch::read(&tables, ends);
        let ours = Batch::read(own, ends);
        batch.check(&mut check);
        for index in 0..ends.len() {
            let is_same = batch.is_same(&ours, index);
            takeover.same += usize::from(is_same);
            takeover.kept += usize::from(batch.holds[index] && !is_same);
            batch.holds[index] &= !is_same;
        }
        batch.write(&mut rows);
    }
    if takeover.kept > 0 {
        let tables = rows.into_iter().map(|row| Arc::new(LinearTable::from_exits(row)));
        takeover.routes = fabric.switches.iter().map(|switch| switch.guid).zip(tables).collect();
    }
    takeover
}

/// The routes to adopt.
#[derive(Debug)]
pub(crate) struct Takeover {
    pub routes: BTreeMap<Guid, Arc<LinearTable>>,
    /// The number of adapter ports.
    pub ends: usize,
    /// Adapter ports whose found routes are equal to our own.
    pub same: usize,
    /// Adapter ports whose found routes are adopted.
    pub kept: usize,
}

/// The adapter ports attached to switches, in order of their LIDs.
fn ends(fabric: &Fabric, lids: &BTreeMap<Guid, Lid>) -> Vec<AdapterEnd> {
    let mut ends: Vec<AdapterEnd> = (fabric.adapter_ports.iter())
        .filter_map(|port| {
            let (switch, exit) = port.attached?;
            Some(AdapterEnd { lid: *lids.get(&port.guid)?, switch, exit })
        })
        .collect();
    ends.sort_unstable_by_key(|end| end.lid);
    ends
}

/// The exits of all switches towards some destinations. Tables are read and written in long runs, since there are millions
/// of entries.
#[derive(Debug)]
struct Batch<'e> {
    ends: &'e [AdapterEnd],
    /// By switch, then by destination.
    exits: Vec<[u8; BATCH]>,
    /// By destination: whether its route is adopted.
    holds: [bool; BATCH],
}

impl<'e> Batch<'e> {
    fn read(tables: &[Option<&LinearTable>], ends: &'e [AdapterEnd]) -> Self {
        let read = |table: &Option<&LinearTable>| {
            let mut exits = [NO_PORT; BATCH];
            for (exit, end) in exits.iter_mut().zip(ends) {
                *exit = table.and_then(|table| table.exit(end.lid)).map_or(NO_PORT, PortNum::to_wire);
            }
            exits
        };
        Self { ends, exits: tables.iter().map(read).collect(), holds: [false; BATCH] }
    }

    /// Whether the last switch of a route delivers packets to the destination.
    fn is_for(&self, index: usize, end: &AdapterEnd) -> bool {
        self.exits[end.switch][index] == end.exit.to_wire()
    }

    /// Marks the routes on which packets arrive from every switch, going up and then down.
    fn check(&mut self, check: &mut RouteChecker<'_>) {
        let lost = check.follow(self);
        for (index, end) in self.ends.iter().enumerate() {
            self.holds[index] = !lost[index] && self.is_for(index, end);
        }
    }

    fn is_same(&self, other: &Self, index: usize) -> bool {
        self.exits.iter().zip(&other.exits).all(|(exits, other)| exits[index] == other[index])
    }

    fn column(&self, index: usize) -> Vec<u8> {
        self.exits.iter().map(|exits| exits[index]).collect()
    }

    fn replace(&mut self, index: usize, column: &[u8]) {
        self.exits.iter_mut().zip(column).for_each(|(exits, exit)| exits[index] = *exit);
    }

    /// Writes the adopted routes.
    fn write(&self, rows: &mut [Vec<u8>]) {
        for (row, exits) in rows.iter_mut().zip(&self.exits) {
            for ((end, exit), holds) in self.ends.iter().zip(exits).zip(&self.holds) {
                if let Some(entry) = row.get_mut(usize::from(end.lid.to_wire())).filter(|_| *holds) {
                    *entry = *exit;
                }
            }
        }
    }
}

/// Follows routes through the fabric, and repairs them.
#[derive(Debug)]
struct RouteChecker<'a> {
    fabric: &'a Fabric,
    order: &'a Order,
    /// By switch and port number.
    steps_by_port: Vec<[PortStep; 256]>,
    /// By switch: how it reaches the current destination.
    reach: Vec<Reach>,
    /// By switch: the number of links.
    steps: Vec<u32>,
}

/// Where a port leads.
#[derive(Clone, Copy, Debug)]
enum PortStep {
    Nowhere,
    Up { switch: u32, slot: u16 },
    Down { switch: u32, slot: u16 },
}

impl<'a> RouteChecker<'a> {
    fn new(fabric: &'a Fabric, order: &'a Order) -> Self {
        let count = fabric.switches.len();
        let steps_by_port = (0..count).map(|index| steps_by_port(fabric, order, index)).collect();
        Self { fabric, order, steps_by_port, reach: vec![Reach::Not; count], steps: vec![0; count] }
    }

    /// By destination: whether some switch has no route that goes up, then down.
    fn follow(&self, batch: &Batch<'_>) -> [bool; BATCH] {
        let mut reach = vec![[Reach::Not; BATCH]; batch.exits.len()];
        for (index, end) in batch.ends.iter().enumerate() {
            reach[end.switch][index] = Reach::Down;
        }
        for &switch in self.order.descending.iter().rev() {
            let (exits, steps) = (&batch.exits[switch], &self.steps_by_port[switch]);
            for (index, exit) in exits.iter().enumerate() {
                if let PortStep::Down { switch: next, .. } = steps[usize::from(*exit)]
                    && reach[next as usize][index] == Reach::Down
                {
                    reach[switch][index] = Reach::Down;
                }
            }
        }
        let mut lost = [false; BATCH];
        for &switch in &self.order.descending {
            let (exits, steps) = (&batch.exits[switch], &self.steps_by_port[switch]);
            for (index, exit) in exits.iter().enumerate() {
                if reach[switch][index] != Reach::Not {
                    continue;
                }
                match steps[usize::from(*exit)] {
                    PortStep::Up { switch: next, .. } if reach[next as usize][index] != Reach::Not => {
                        reach[switch][index] = Reach::Other;
                    }
                    _ => lost[index] = true,
                }
            }
        }
        lost
    }

    /// Replaces exits that lead nowhere; returns whether all switches reach the destination then.
    fn repair(&mut self, end: &AdapterEnd, column: &mut [u8], hops: &DownUpHops<'_>) -> bool {
        self.descend(end, column);
        let lost = self.climb(end, column);
        self.hop(end.lid, column, lost, hops)
    }

    fn step(&self, index: SwitchIndex, exit: u8) -> PortStep {
        self.steps_by_port[index][usize::from(exit)]
    }

    /// From the lowest switch upwards, finds the switches with a path down. Switches whose exit leads nowhere get one if
    /// possible.
    fn descend(&mut self, end: &AdapterEnd, column: &mut [u8]) {
        self.reach.fill(Reach::Not);
        self.reach[end.switch] = Reach::Down;
        self.steps[end.switch] = 0;
        for &index in self.order.descending.iter().rev().filter(|index| **index != end.switch) {
            match self.step(index, column[index]) {
                PortStep::Up { .. } => {}
                PortStep::Down { switch: next, .. } if self.reach[next as usize] == Reach::Down => {
                    self.arrive(index, next as usize, Reach::Down);
                }
                PortStep::Down { .. } | PortStep::Nowhere => {
                    self.reroute(index, column, end.lid, Reach::Down);
                }
            }
        }
    }

    /// From the highest switch downwards, finds the switches with a path up and then down. Returns the others, in that
    /// order.
    fn climb(&mut self, end: &AdapterEnd, column: &mut [u8]) -> Vec<SwitchIndex> {
        let mut lost = Vec::new();
        for &index in &self.order.descending {
            if self.reach[index] != Reach::Not {
                continue;
            }
            match self.step(index, column[index]) {
                PortStep::Up { switch: next, .. } if self.reach[next as usize] != Reach::Not => {
                    self.arrive(index, next as usize, Reach::Other);
                }
                _ => {
                    let is_led = self.reroute(index, column, end.lid, Reach::Other)
                        || self.reroute(index, column, end.lid, Reach::Down);
                    if !is_led {
                        lost.push(index);
                    }
                }
            }
        }
        lost
    }

    fn arrive(&mut self, index: SwitchIndex, next: SwitchIndex, reach: Reach) {
        self.reach[index] = reach;
        self.steps[index] = self.steps[next] + 1;
    }

    /// Gives a switch an exit down to a neighbour with a path down, or up to any that reaches the destination: the nearest,
    /// by hash among equals.
    fn reroute(&mut self, index: SwitchIndex, column: &mut [u8], lid: Lid, reach: Reach) -> bool {
        let neighbours = &self.fabric.switches[index].neighbours;
        let slots = if reach == Reach::Down { &self.order.down[index] } else { &self.order.up[index] };
        let arrives = |slot: &&usize| {
            let there = self.reach[neighbours[**slot].switch];
            there == Reach::Down || reach == Reach::Other && there == Reach::Other
        };
        let steps = |slot: &usize| self.steps[neighbours[*slot].switch];
        let Some(nearest) = slots.iter().filter(arrives).map(steps).min() else { return false };
        let slots = slots.iter().filter(arrives).filter(|slot| steps(slot) == nearest);
        let ports: Vec<PortNum> =
            slots.flat_map(|slot| neighbours[*slot].cables.iter().map(|cable| cable.near)).collect();
        let Some(port) = hash::choose(hash::seed(self.fabric.switches[index].guid), &ports, lid) else {
            return false;
        };
        column[index] = port.to_wire();
        self.reach[index] = reach;
        self.steps[index] = nearest + 1;
        true
    }

    /// Routes the remaining switches by down-up hops that our own routes may use as well.
    fn hop(
        &mut self,
        lid: Lid,
        column: &mut [u8],
        mut lost: Vec<SwitchIndex>,
        hops: &DownUpHops<'_>,
    ) -> bool {
        while !lost.is_empty() {
            let before = lost.len();
            lost.retain(|&index| {
                let fabric = self.fabric;
                let neighbours = &fabric.switches[index].neighbours;
                let follow = |slot: &usize| {
                    let here = neighbours[*slot].switch;
                    let next = match self.step(here, column[here]) {
                        PortStep::Up { slot, .. } | PortStep::Down { slot, .. } => usize::from(slot),
                        PortStep::Nowhere => return false,
                    };
                    self.reach[here] != Reach::Not && hops.may_follow(index, *slot, next)
                };
                let Some(slot) = (0..neighbours.len()).find(follow) else { return true };
                let ports: Vec<PortNum> = neighbours[slot].cables.iter().map(|cable| cable.near).collect();
                let seed = hash::seed(fabric.switches[index].guid);
                let Some(port) = hash::choose(seed, &ports, lid) else { return true };
                column[index] = port.to_wire();
                self.arrive(index, neighbours[slot].switch, Reach::Other);
                false
            });
            if lost.len() == before {
                return false;
            }
        }
        true
    }
}

/// Where the ports of a switch lead.
fn steps_by_port(fabric: &Fabric, order: &Order, from: SwitchIndex) -> [PortStep; 256] {
    let mut steps = [PortStep::Nowhere; 256];
    for (slot, neighbour) in (0..).zip(&fabric.switches[from].neighbours) {
        let switch = neighbour.switch as u32;
        let is_up = order.is_above(neighbour.switch, from);
        for cable in &neighbour.cables {
            steps[cable.near.index()] =
                if is_up { PortStep::Up { switch, slot } } else { PortStep::Down { switch, slot } };
        }
    }
    steps
}
