//! The forwarding tables, column by column: all destinations of one switch at a time.

use ib_wire::PortNum;

use super::distances::{Distances, NEVER, Ways};
use super::homes::{Destination, Step};
use super::order::Order;
use super::toward::{Lanes, Toward, Way};
use super::turns::Turns;
use super::{Ground, hash};
use crate::fabric::{Fabric, Place};

/// What a table holds where there is no exit.
pub(crate) const NO_PORT: u8 = 0xff;

/// Columns worked on together: enough that a switch's row is written in long runs, few enough to stay in the cache.
const BATCH: usize = 32;

/// Where a summit has no column.
const NO_SUMMIT: u32 = u32::MAX;

/// The tables in the making.
#[derive(Debug)]
pub(crate) struct Columns<'a> {
    fabric: &'a Fabric,
    order: &'a Order,
    destinations: &'a [Vec<Destination>],
    ways: &'a Ways,
    toward: &'a Toward,
    lanes: &'a Lanes,
    seeds: &'a [u64],
    turns: Turns<'a>,
    /// Exit ports by column, for each switch.
    rows: Vec<Vec<u8>>,
    missing: Missing,
}

/// All destinations of one switch.
#[derive(Debug, Default)]
struct Column<'a> {
    target: Place,
    destinations: &'a [Destination],
    distances: Distances,
    /// By level above the target, for each destination.
    summits: Vec<Vec<Summit>>,
    /// The switches without a route yet.
    unrouted: Vec<Place>,
}

/// The switches of a destination's homes on one level: their columns, if they are as near as they should be.
#[derive(Clone, Copy, Debug)]
struct Summit {
    now: u32,
    /// By the home that the rows were right for.
    before: Option<u32>,
}

/// Which switches reach which not.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    /// Pairs of switches in one direction.
    pub pairs: usize,
    /// The first: from, to.
    pub witness: Option<(Place, Place)>,
    /// Whether adapters cannot reach each other, or the manager someone.
    pub is_critical: bool,
    /// Whether packets to groups cannot reach all adapters.
    pub groups: bool,
}

impl<'a> Columns<'a> {
    pub fn new(
        fabric: &'a Fabric,
        ground: &'a Ground,
        destinations: &'a [Vec<Destination>],
        turns: Turns<'a>,
    ) -> Self {
        let all = destinations.iter().flatten();
        let columns = all.map(|destination| destination.column + 1).max().unwrap_or(0);
        let rows = vec![vec![NO_PORT; columns]; fabric.switches.len()];
        Self::over(rows, fabric, ground, destinations, turns)
    }

    /// Over rows that are right for the homes of before.
    pub fn over(
        rows: Vec<Vec<u8>>,
        fabric: &'a Fabric,
        ground: &'a Ground,
        destinations: &'a [Vec<Destination>],
        turns: Turns<'a>,
    ) -> Self {
        let Ground { order, ways, lanes, seeds, .. } = ground;
        Self {
            fabric,
            order,
            destinations,
            ways,
            toward: ground.toward(fabric),
            lanes,
            seeds,
            turns,
            rows,
            missing: Missing::default(),
        }
    }

    /// Fills the columns of some switches; returns the exit ports by column of each switch, the turns that were used,
    /// and what is missing.
    pub fn fill(mut self, targets: &[Place]) -> (Vec<Vec<u8>>, Turns<'a>, Missing) {
        let manager = self.fabric.manager_switch();
        let mut batch: Vec<Column<'a>> = (0..BATCH.min(targets.len())).map(|_| Column::default()).collect();
        for targets in targets.chunks(BATCH) {
            let batch = &mut batch[..targets.len()];
            for (column, target) in batch.iter_mut().zip(targets) {
                self.begin(column, *target);
            }
            for place in 0..self.fabric.switches.len() {
                for column in &mut *batch {
                    self.fill_ordinary(column, place);
                }
            }
            for column in batch {
                self.fill_homes(column);
                self.fill_by_turns(column);
                for place in &column.unrouted {
                    self.missing.add(self.fabric, manager, *place, column.target);
                }
            }
        }
        (self.rows, self.turns, self.missing)
    }

    /// Measures the distances to a target, and finds where the homes of its destinations are.
    fn begin(&self, column: &mut Column<'a>, target: Place) {
        column.target = target;
        column.destinations = &self.destinations[target];
        column.unrouted.clear();
        column.distances.measure(self.ways, target);
        let levels = column.destinations.iter().map(|destination| destination.home.len()).max();
        let down = &column.distances.down;
        let summit = |home: &[Step], level: usize| {
            let node = home.get(level)?.node;
            self.toward.column(node).filter(|_| usize::from(down[node]) == level + 1)
        };
        let summits = |destination: &Destination, level: usize| Summit {
            now: summit(&destination.home, level).unwrap_or(NO_SUMMIT),
            before: summit(&destination.home_before, level),
        };
        column.summits.clear();
        column.summits.extend((0..levels.unwrap_or(0)).map(|level| {
            column.destinations.iter().map(|destination| summits(destination, level)).collect::<Vec<_>>()
        }));
    }

    /// One switch's entries of a column, if it has an ordinary route.
    fn fill_ordinary(&mut self, column: &mut Column<'a>, place: Place) {
        let Distances { down, any, .. } = &column.distances;
        if place == column.target {
            for destination in column.destinations {
                self.rows[place][destination.column] = destination.exit.to_wire();
            }
        } else if down[place] != NEVER {
            let ports = self.ports_to(&self.order.down[place], place, down);
            self.fill_by_hash(place, column.destinations, &ports);
        } else if any[place] != NEVER {
            self.fill_upward(column, place);
        } else {
            for destination in column.destinations {
                self.rows[place][destination.column] = NO_PORT;
            }
            column.unrouted.push(place);
        }
    }

    /// The ports towards neighbours that are one step nearer.
    fn ports_to(&self, slots: &[usize], place: Place, distances: &[u16]) -> Vec<PortNum> {
        let neighbours = &self.fabric.switches[place].neighbours;
        let mut ports = Vec::new();
        for slot in slots {
            if distances[neighbours[*slot].place].saturating_add(1) == distances[place] {
                ports.extend(neighbours[*slot].cables.iter().map(|cable| cable.near));
            }
        }
        ports
    }

    fn fill_by_hash(&mut self, place: Place, destinations: &[Destination], ports: &[PortNum]) {
        let (seed, row) = (self.seeds[place], &mut self.rows[place]);
        for destination in destinations {
            let port = hash::choose(seed, ports, destination.lid);
            row[destination.column] = port.map_or(NO_PORT, PortNum::to_wire);
        }
    }

    /// A switch without a way down: it climbs towards each destination's home where it can, else by hash.
    fn fill_upward(&mut self, column: &Column<'a>, place: Place) {
        let climb = Climb::of(self.order, &column.distances, place, column.target);
        let summits = climb.and_then(|climb| column.summits.get(climb.summit)).map_or(&[][..], Vec::as_slice);
        let ways = self.toward.ways(place);
        let mut row = std::mem::take(&mut self.rows[place]);
        let mut others: Option<Vec<PortNum>> = None;
        for (index, destination) in column.destinations.iter().enumerate() {
            let summit = summits.get(index);
            let way_to = |summit: u32| ways.get(summit as usize).copied().unwrap_or(Way::NONE);
            let way = summit.map_or(Way::NONE, |summit| way_to(summit.now));
            // Chosen by hash before and now: the same.
            let before = summit.and_then(|summit| summit.before);
            if way == Way::NONE && before.is_some_and(|before| way_to(before) == Way::NONE) {
                continue;
            }
            let port = way.port().or_else(|| {
                let slot = way.slot()?;
                Some(self.climb(climb?, &column.distances, place, slot, destination)?.to_wire())
            });
            let port = port.or_else(|| {
                let any = &column.distances.any;
                let ports = others.get_or_insert_with(|| self.ports_to(&self.order.up[place], place, any));
                Some(hash::choose(self.seeds[place], ports, destination.lid)?.to_wire())
            });
            row[destination.column] = port.unwrap_or(NO_PORT);
        }
        self.rows[place] = row;
    }

    /// The cable to a neighbour above for a destination, if a shortest way leads there.
    fn climb(
        &self,
        climb: Climb,
        distances: &Distances,
        place: Place,
        slot: usize,
        destination: &Destination,
    ) -> Option<PortNum> {
        let neighbour = &self.fabric.switches[place].neighbours[slot];
        if distances.any[neighbour.place].saturating_add(1) != distances.any[place] {
            return None;
        }
        let lanes = &self.lanes[place][slot];
        let lane = destination.home.get(climb.level).map_or(0, |step| step.lane);
        let nominal = lanes.get(lane.checked_rem(lanes.len())?).copied().flatten();
        nominal.or_else(|| hash::choose(self.seeds[place], &self.cables(place, slot), destination.lid))
    }

    /// The ports of the cables to a neighbour.
    fn cables(&self, place: Place, slot: usize) -> Vec<PortNum> {
        self.fabric.switches[place].neighbours[slot].cables.iter().map(|cable| cable.near).collect()
    }

    /// The cables by which packets come down to each destination.
    fn fill_homes(&mut self, column: &Column<'a>) {
        let height = |place: Place| usize::from(column.distances.down[place]);
        for destination in column.destinations {
            let mut below = column.target;
            for (level, step) in destination.home.iter().enumerate() {
                if height(step.node) == level + 1 && height(below) == level {
                    self.rows[step.node][destination.column] = step.down.to_wire();
                }
                below = step.node;
            }
        }
    }

    /// Switches without an ordinary route: by the tree of the turn, by turns that were allowed, by one more, and again.
    fn fill_by_turns(&mut self, column: &mut Column<'a>) {
        while !column.unrouted.is_empty() {
            let routed = self.fill_by_tree(column) || self.fill_by_allowed_turns(column);
            if !routed && !self.fill_by_new_turn(column) {
                return;
            }
        }
    }

    /// Sends to a neighbour for all destinations of a column.
    fn send(&mut self, column: &Column<'a>, place: Place, slot: usize) {
        let ports = self.cables(place, slot);
        self.fill_by_hash(place, column.destinations, &ports);
    }

    /// Goes by the tree where it leads, once the turn has a route.
    fn fill_by_tree(&mut self, column: &mut Column<'a>) -> bool {
        if self.turns.turn_place().is_none_or(|turn| column.unrouted.contains(&turn)) {
            return false;
        }
        let detour = |place: &Place| Some((*place, self.turns.detour(*place)?));
        let detours: Vec<(Place, usize)> = column.unrouted.iter().filter_map(detour).collect();
        for &(place, slot) in &detours {
            self.send(column, place, slot);
        }
        let turns = &self.turns;
        column.unrouted.retain(|place| turns.detour(*place).is_none());
        !detours.is_empty()
    }

    /// Sends to neighbours that have a route which packets from here may follow.
    fn fill_by_allowed_turns(&mut self, column: &mut Column<'a>) -> bool {
        let before = column.unrouted.len();
        let mut left = std::mem::take(&mut column.unrouted);
        left.retain(|&place| {
            let mut slots = 0..self.fabric.switches[place].neighbours.len();
            let follow = |slot: &usize| {
                let onward = self.onward(place, *slot, column);
                onward.is_some_and(|on| on.iter().all(|next| self.turns.may_follow(place, *slot, *next)))
            };
            match slots.find(follow) {
                Some(slot) => self.send(column, place, slot),
                None => return true,
            }
            false
        });
        column.unrouted = left;
        column.unrouted.len() < before
    }

    /// Allows one more turn, where packets turn already if it can be.
    fn fill_by_new_turn(&mut self, column: &mut Column<'a>) -> bool {
        let mut candidates: Vec<(bool, Place, Place, usize)> = Vec::new();
        for &place in &column.unrouted {
            for (slot, neighbour) in self.fabric.switches[place].neighbours.iter().enumerate() {
                candidates.push((!self.turns.is_turning(neighbour.place), neighbour.place, place, slot));
            }
        }
        candidates.sort_unstable();
        for (_, _, place, slot) in candidates {
            let Some(onward) = self.onward(place, slot, column) else { continue };
            if onward.into_iter().all(|next| self.turns.allow(place, slot, next)) {
                self.send(column, place, slot);
                column.unrouted.retain(|unrouted| *unrouted != place);
                return true;
            }
        }
        false
    }

    /// By which of its neighbours a neighbour sends to the destinations of a column, if it has a route to all of them.
    fn onward(&self, place: Place, slot: usize, column: &Column<'a>) -> Option<Vec<usize>> {
        let here = self.fabric.switches[place].neighbours[slot].place;
        if here == column.target {
            return Some(Vec::new());
        }
        let exit = |destination: &Destination| self.rows[here][destination.column];
        let mut exits: Vec<u8> = column.destinations.iter().map(exit).collect();
        exits.sort_unstable();
        exits.dedup();
        let leads = |exit: u8| {
            let mut neighbours = self.fabric.switches[here].neighbours.iter();
            neighbours.position(|neighbour| neighbour.cables.iter().any(|c| c.near.to_wire() == exit))
        };
        exits.into_iter().map(leads).collect()
    }
}

impl Missing {
    fn add(&mut self, fabric: &Fabric, manager: Option<Place>, from: Place, to: Place) {
        let serves = |place: Place| !fabric.switches[place].adapters.is_empty();
        self.pairs += 1;
        self.witness.get_or_insert((from, to));
        self.is_critical |= serves(from) && serves(to) || manager == Some(from) || manager == Some(to);
    }
}

/// Where in a destination's home a switch meets it, and which level it stands on itself.
#[derive(Clone, Copy, Debug)]
struct Climb {
    summit: usize,
    level: usize,
}

impl Climb {
    /// In a tree, what is gained above the source is lost above the target: the distance tells the height between.
    fn of(order: &Order, distances: &Distances, place: Place, target: Place) -> Option<Self> {
        let (here, there) = (i64::from(order.heights[place]), i64::from(order.heights[target]));
        let doubled = i64::from(distances.any[place]) + here - there;
        let levels = (doubled % 2 == 0).then_some(doubled / 2)?;
        Some(Self {
            summit: usize::try_from(levels - 1).ok()?,
            level: usize::try_from(here - there).unwrap_or(0),
        })
    }
}
