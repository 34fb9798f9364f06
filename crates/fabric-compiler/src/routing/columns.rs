//! The forwarding tables, column by column: all destinations of one switch at a time.

use ib_wire::PortNum;

use super::distances::{Distances, UNREACHABLE, UpNeighbours};
use super::down_paths::{Destination, DownStep};
use super::down_up_hops::DownUpHops;
use super::order::Order;
use super::up_next_hops::{ParallelPorts, UpNextHop, UpNextHops};
use super::{RoutingContext, hash};
use crate::fabric::{Fabric, SwitchIndex};

/// What a table holds where there is no exit.
pub(crate) const NO_PORT: u8 = 0xff;

/// Columns worked on together: enough that a switch's row is written in long runs, few enough to stay in the cache.
const BATCH: usize = 32;

/// Where a summit has no column.
const NO_TOP: u32 = u32::MAX;

/// The tables in the making.
#[derive(Debug)]
pub(crate) struct Columns<'a> {
    fabric: &'a Fabric,
    order: &'a Order,
    destinations: &'a [Vec<Destination>],
    up_neighbours: &'a UpNeighbours,
    up_next_hops: &'a UpNextHops,
    parallel_ports: &'a ParallelPorts,
    seeds: &'a [u64],
    hops: DownUpHops<'a>,
    /// Exit ports by column, for each switch.
    rows: Vec<Vec<u8>>,
    missing: Missing,
}

/// All destinations of one switch.
#[derive(Debug, Default)]
struct Column<'a> {
    target: SwitchIndex,
    destinations: &'a [Destination],
    distances: Distances,
    /// By level above the target, for each destination.
    tops: Vec<Vec<PathTop>>,
    /// The switches without a route yet.
    unrouted: Vec<SwitchIndex>,
}

/// The switches of a destination's homes on one level: their columns, if they are as near as they should be.
#[derive(Clone, Copy, Debug)]
struct PathTop {
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
    pub witness: Option<(SwitchIndex, SwitchIndex)>,
    /// Whether adapters cannot reach each other, or the manager someone.
    pub is_critical: bool,
    /// Whether packets to groups cannot reach all adapters.
    pub groups: bool,
}

impl<'a> Columns<'a> {
    pub fn new(
        fabric: &'a Fabric,
        context: &'a RoutingContext,
        destinations: &'a [Vec<Destination>],
        hops: DownUpHops<'a>,
    ) -> Self {
        let all = destinations.iter().flatten();
        let columns = all.map(|destination| destination.column + 1).max().unwrap_or(0);
        let rows = vec![vec![NO_PORT; columns]; fabric.switches.len()];
        Self::over(rows, fabric, context, destinations, hops)
    }

    /// Over rows that are right for the homes of before.
    pub fn over(
        rows: Vec<Vec<u8>>,
        fabric: &'a Fabric,
        context: &'a RoutingContext,
        destinations: &'a [Vec<Destination>],
        hops: DownUpHops<'a>,
    ) -> Self {
        let RoutingContext { order, up_neighbours, parallel_ports, seeds, .. } = context;
        Self {
            fabric,
            order,
            destinations,
            up_neighbours,
            up_next_hops: context.up_next_hops(fabric),
            parallel_ports,
            seeds,
            hops,
            rows,
            missing: Missing::default(),
        }
    }

    /// Fills the columns of some switches; returns the exit ports by column of each switch, the turns that were used,
    /// and what is missing.
    pub fn fill(mut self, targets: &[SwitchIndex]) -> (Vec<Vec<u8>>, DownUpHops<'a>, Missing) {
        let manager = self.fabric.manager_switch();
        let mut batch: Vec<Column<'a>> = (0..BATCH.min(targets.len())).map(|_| Column::default()).collect();
        for targets in targets.chunks(BATCH) {
            let batch = &mut batch[..targets.len()];
            for (column, target) in batch.iter_mut().zip(targets) {
                self.begin(column, *target);
            }
            for index in 0..self.fabric.switches.len() {
                for column in &mut *batch {
                    self.fill_ordinary(column, index);
                }
            }
            for column in batch {
                self.fill_down_paths(column);
                self.fill_by_hops(column);
                for index in &column.unrouted {
                    self.missing.add(self.fabric, manager, *index, column.target);
                }
            }
        }
        (self.rows, self.hops, self.missing)
    }

    /// Measures the distances to a target, and finds where the homes of its destinations are.
    fn begin(&self, column: &mut Column<'a>, target: SwitchIndex) {
        column.target = target;
        column.destinations = &self.destinations[target];
        column.unrouted.clear();
        column.distances.measure(self.up_neighbours, target);
        let levels = column.destinations.iter().map(|destination| destination.down_path.len()).max();
        let down = &column.distances.down;
        let top = |down_path: &[DownStep], level: usize| {
            let node = down_path.get(level)?.node;
            self.up_next_hops.column(node).filter(|_| usize::from(down[node]) == level + 1)
        };
        let tops = |destination: &Destination, level: usize| PathTop {
            now: top(&destination.down_path, level).unwrap_or(NO_TOP),
            before: top(&destination.previous_down_path, level),
        };
        column.tops.clear();
        column.tops.extend((0..levels.unwrap_or(0)).map(|level| {
            column.destinations.iter().map(|destination| tops(destination, level)).collect::<Vec<_>>()
        }));
    }

    /// One switch's entries of a column, if it has an ordinary route.
    fn fill_ordinary(&mut self, column: &mut Column<'a>, index: SwitchIndex) {
        let Distances { down, any, .. } = &column.distances;
        if index == column.target {
            for destination in column.destinations {
                self.rows[index][destination.column] = destination.exit.to_wire();
            }
        } else if down[index] != UNREACHABLE {
            let ports = self.ports_to(&self.order.down[index], index, down);
            self.fill_by_hash(index, column.destinations, &ports);
        } else if any[index] != UNREACHABLE {
            self.fill_upward(column, index);
        } else {
            for destination in column.destinations {
                self.rows[index][destination.column] = NO_PORT;
            }
            column.unrouted.push(index);
        }
    }

    /// The ports towards neighbours that are one step nearer.
    fn ports_to(&self, slots: &[usize], index: SwitchIndex, distances: &[u16]) -> Vec<PortNum> {
        let neighbours = &self.fabric.switches[index].neighbours;
        let mut ports = Vec::new();
        for slot in slots {
            if distances[neighbours[*slot].switch].saturating_add(1) == distances[index] {
                ports.extend(neighbours[*slot].cables.iter().map(|cable| cable.near));
            }
        }
        ports
    }

    fn fill_by_hash(&mut self, index: SwitchIndex, destinations: &[Destination], ports: &[PortNum]) {
        let (seed, row) = (self.seeds[index], &mut self.rows[index]);
        for destination in destinations {
            let port = hash::choose(seed, ports, destination.lid);
            row[destination.column] = port.map_or(NO_PORT, PortNum::to_wire);
        }
    }

    /// A switch without a way down: it climbs towards each destination's home where it can, else by hash.
    fn fill_upward(&mut self, column: &Column<'a>, switch: SwitchIndex) {
        let climb = Climb::of(self.order, &column.distances, switch, column.target);
        let tops = climb.and_then(|climb| column.tops.get(climb.top)).map_or(&[][..], Vec::as_slice);
        let next_hops = self.up_next_hops.next_hops(switch);
        let mut row = std::mem::take(&mut self.rows[switch]);
        let mut others: Option<Vec<PortNum>> = None;
        for (index, destination) in column.destinations.iter().enumerate() {
            let top = tops.get(index);
            let next_hop_to = |top: u32| next_hops.get(top as usize).copied().unwrap_or(UpNextHop::NONE);
            let next_hop = top.map_or(UpNextHop::NONE, |top| next_hop_to(top.now));
            // Chosen by hash before and now: the same.
            let before = top.and_then(|top| top.before);
            if next_hop == UpNextHop::NONE
                && before.is_some_and(|before| next_hop_to(before) == UpNextHop::NONE)
            {
                continue;
            }
            let port = next_hop.port().or_else(|| {
                let slot = next_hop.slot()?;
                Some(self.climb(climb?, &column.distances, switch, slot, destination)?.to_wire())
            });
            let port = port.or_else(|| {
                let any = &column.distances.any;
                let ports = others.get_or_insert_with(|| self.ports_to(&self.order.up[switch], switch, any));
                Some(hash::choose(self.seeds[switch], ports, destination.lid)?.to_wire())
            });
            row[destination.column] = port.unwrap_or(NO_PORT);
        }
        self.rows[switch] = row;
    }

    /// The cable to a neighbour above for a destination, if a shortest way leads there.
    fn climb(
        &self,
        climb: Climb,
        distances: &Distances,
        index: SwitchIndex,
        slot: usize,
        destination: &Destination,
    ) -> Option<PortNum> {
        let neighbour = &self.fabric.switches[index].neighbours[slot];
        if distances.any[neighbour.switch].saturating_add(1) != distances.any[index] {
            return None;
        }
        let parallel_ports = &self.parallel_ports[index][slot];
        let cable_index = destination.down_path.get(climb.level).map_or(0, |step| step.cable_index);
        let nominal = parallel_ports.get(cable_index.checked_rem(parallel_ports.len())?).copied().flatten();
        nominal.or_else(|| hash::choose(self.seeds[index], &self.cables(index, slot), destination.lid))
    }

    /// The ports of the cables to a neighbour.
    fn cables(&self, index: SwitchIndex, slot: usize) -> Vec<PortNum> {
        self.fabric.switches[index].neighbours[slot].cables.iter().map(|cable| cable.near).collect()
    }

    /// The cables by which packets come down to each destination.
    fn fill_down_paths(&mut self, column: &Column<'a>) {
        let height = |index: SwitchIndex| usize::from(column.distances.down[index]);
        for destination in column.destinations {
            let mut below = column.target;
            for (level, step) in destination.down_path.iter().enumerate() {
                if height(step.node) == level + 1 && height(below) == level {
                    self.rows[step.node][destination.column] = step.down.to_wire();
                }
                below = step.node;
            }
        }
    }

    /// Switches without an ordinary route: by the tree of the turn, by turns that were allowed, by one more, and again.
    fn fill_by_hops(&mut self, column: &mut Column<'a>) {
        while !column.unrouted.is_empty() {
            let routed = self.fill_by_tree(column) || self.fill_by_allowed_hops(column);
            if !routed && !self.fill_by_new_hop(column) {
                return;
            }
        }
    }

    /// Sends to a neighbour for all destinations of a column.
    fn send(&mut self, column: &Column<'a>, index: SwitchIndex, slot: usize) {
        let ports = self.cables(index, slot);
        self.fill_by_hash(index, column.destinations, &ports);
    }

    /// Goes by the tree where it leads, once the turn has a route.
    fn fill_by_tree(&mut self, column: &mut Column<'a>) -> bool {
        if self.hops.pivot_switch().is_none_or(|pivot| column.unrouted.contains(&pivot)) {
            return false;
        }
        let tree_next_hop = |index: &SwitchIndex| Some((*index, self.hops.tree_next_hop(*index)?));
        let next_hops: Vec<(SwitchIndex, usize)> = column.unrouted.iter().filter_map(tree_next_hop).collect();
        for &(index, slot) in &next_hops {
            self.send(column, index, slot);
        }
        let hops = &self.hops;
        column.unrouted.retain(|index| hops.tree_next_hop(*index).is_none());
        !next_hops.is_empty()
    }

    /// Sends to neighbours that have a route which packets from here may follow.
    fn fill_by_allowed_hops(&mut self, column: &mut Column<'a>) -> bool {
        let before = column.unrouted.len();
        let mut left = std::mem::take(&mut column.unrouted);
        left.retain(|&index| {
            let mut slots = 0..self.fabric.switches[index].neighbours.len();
            let follow = |slot: &usize| {
                let onward = self.onward(index, *slot, column);
                onward.is_some_and(|on| on.iter().all(|next| self.hops.may_follow(index, *slot, *next)))
            };
            match slots.find(follow) {
                Some(slot) => self.send(column, index, slot),
                None => return true,
            }
            false
        });
        column.unrouted = left;
        column.unrouted.len() < before
    }

    /// Allows one more turn, where packets turn already if it can be.
    fn fill_by_new_hop(&mut self, column: &mut Column<'a>) -> bool {
        let mut candidates: Vec<(bool, SwitchIndex, SwitchIndex, usize)> = Vec::new();
        for &index in &column.unrouted {
            for (slot, neighbour) in self.fabric.switches[index].neighbours.iter().enumerate() {
                candidates.push((!self.hops.has_hop(neighbour.switch), neighbour.switch, index, slot));
            }
        }
        candidates.sort_unstable();
        for (_, _, index, slot) in candidates {
            let Some(onward) = self.onward(index, slot, column) else { continue };
            if onward.into_iter().all(|next| self.hops.allow(index, slot, next)) {
                self.send(column, index, slot);
                column.unrouted.retain(|unrouted| *unrouted != index);
                return true;
            }
        }
        false
    }

    /// By which of its neighbours a neighbour sends to the destinations of a column, if it has a route to all of them.
    fn onward(&self, index: SwitchIndex, slot: usize, column: &Column<'a>) -> Option<Vec<usize>> {
        let here = self.fabric.switches[index].neighbours[slot].switch;
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
    fn add(&mut self, fabric: &Fabric, manager: Option<SwitchIndex>, from: SwitchIndex, to: SwitchIndex) {
        let serves = |index: SwitchIndex| !fabric.switches[index].adapters.is_empty();
        self.pairs += 1;
        self.witness.get_or_insert((from, to));
        self.is_critical |= serves(from) && serves(to) || manager == Some(from) || manager == Some(to);
    }
}

/// Where in a destination's home a switch meets it, and which level it stands on itself.
#[derive(Clone, Copy, Debug)]
struct Climb {
    top: usize,
    level: usize,
}

impl Climb {
    /// In a tree, what is gained above the source is lost above the target: the distance tells the height between.
    fn of(order: &Order, distances: &Distances, index: SwitchIndex, target: SwitchIndex) -> Option<Self> {
        let (here, there) = (i64::from(order.heights[index]), i64::from(order.heights[target]));
        let doubled = i64::from(distances.any[index]) + here - there;
        let levels = (doubled % 2 == 0).then_some(doubled / 2)?;
        Some(Self {
            top: usize::try_from(levels - 1).ok()?,
            level: usize::try_from(here - there).unwrap_or(0),
        })
    }
}
