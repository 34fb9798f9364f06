//! Fills the forwarding tables column by column: all destinations of one switch at a time.
//!
//! A column starts with the distances to its target. Switches with a path down take a shortest one, by hash, except where a
//! down path prescribes the link; the others go up towards the top of each destination's down path, or by hash. Switches
//! without such a route then use down-up hops: the pivot tree, hops that are allowed already, or one more.

use ib_wire::PortNum;

use super::distances::{Distances, UNREACHABLE, UpNeighbours};
use super::down_paths::{Destination, DownStep};
use super::down_up_hops::DownUpHops;
use super::order::Order;
use super::up_next_hops::{ParallelPorts, UpNextHop, UpNextHops};
use super::{RoutingContext, hash};
use crate::fabric::{Fabric, SwitchIndex};

/// The entry of a forwarding table without an exit.
pub(crate) const NO_PORT: u8 = 0xff;

/// Columns processed together: enough that rows are written in long runs, few enough to stay in the cache.
const BATCH: usize = 32;

/// Stands for a top without a column.
const NO_TOP: u32 = u32::MAX;

/// Forwarding tables under construction.
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
    /// By switch: exit ports by column.
    rows: Vec<Vec<u8>>,
    missing: Missing,
}

/// All destinations at one switch.
#[derive(Debug, Default)]
struct Column<'a> {
    target: SwitchIndex,
    destinations: &'a [Destination],
    distances: Distances,
    /// By tier above the target, then by destination.
    tops: Vec<Vec<PathTop>>,
    /// Switches without a route so far.
    unrouted: Vec<SwitchIndex>,
}

/// The switches of a destination's down paths on one tier, as columns of [`UpNextHops`], where their distance is that of a
/// shortest path.
#[derive(Clone, Copy, Debug)]
struct PathTop {
    now: u32,
    /// Of the down path that the rows were computed for.
    before: Option<u32>,
}

/// Switches that do not reach each other.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    /// The number of ordered pairs.
    pub pairs: usize,
    /// The first pair: from, to.
    pub witness: Option<(SwitchIndex, SwitchIndex)>,
    /// Whether some adapters do not reach each other, or the manager does not reach a switch or the reverse.
    pub is_critical: bool,
    /// Whether no core tree joins all adapters.
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

    /// Changes rows that were computed for the previous down paths.
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

    /// Fills the columns of the target switches. Returns the rows of all switches, the hops that were allowed, and what is
    /// missing.
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

    /// Measures the distances to a target, and finds the tops of its destinations' down paths.
    fn begin(&self, column: &mut Column<'a>, target: SwitchIndex) {
        column.target = target;
        column.destinations = &self.destinations[target];
        column.unrouted.clear();
        column.distances.measure(self.up_neighbours, target);
        let tiers = column.destinations.iter().map(|destination| destination.down_path.len()).max();
        let down = &column.distances.down;
        let top = |down_path: &[DownStep], tier: usize| {
            let node = down_path.get(tier)?.node;
            self.up_next_hops.column(node).filter(|_| usize::from(down[node]) == tier + 1)
        };
        let tops = |destination: &Destination, tier: usize| PathTop {
            now: top(&destination.down_path, tier).unwrap_or(NO_TOP),
            before: top(&destination.previous_down_path, tier),
        };
        column.tops.clear();
        column.tops.extend((0..tiers.unwrap_or(0)).map(|tier| {
            column.destinations.iter().map(|destination| tops(destination, tier)).collect::<Vec<_>>()
        }));
    }

    /// Fills one switch's entries of a column, if it has an up-then-down route.
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

    /// The ports to neighbours that are one link nearer.
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

    /// Fills the entries of a switch without a path down: towards the top of each destination's down path, else by hash.
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
            // Chosen by hash before and now, so unchanged.
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

    /// The port to a neighbour above for a destination, if a shortest path leads there.
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
        let cable_index = destination.down_path.get(climb.tier).map_or(0, |step| step.cable_index);
        let nominal = parallel_ports.get(cable_index.checked_rem(parallel_ports.len())?).copied().flatten();
        nominal.or_else(|| hash::choose(self.seeds[index], &self.cables(index, slot), destination.lid))
    }

    /// The ports of the cables to a neighbour.
    fn cables(&self, index: SwitchIndex, slot: usize) -> Vec<PortNum> {
        self.fabric.switches[index].neighbours[slot].cables.iter().map(|cable| cable.near).collect()
    }

    /// Writes the links of the down paths.
    fn fill_down_paths(&mut self, column: &Column<'a>) {
        let height = |index: SwitchIndex| usize::from(column.distances.down[index]);
        for destination in column.destinations {
            let mut below = column.target;
            for (tier, step) in destination.down_path.iter().enumerate() {
                if height(step.node) == tier + 1 && height(below) == tier {
                    self.rows[step.node][destination.column] = step.down.to_wire();
                }
                below = step.node;
            }
        }
    }

    /// Routes switches without an up-then-down route: by the pivot tree, by allowed hops, by one more hop, repeatedly.
    fn fill_by_hops(&mut self, column: &mut Column<'a>) {
        while !column.unrouted.is_empty() {
            let routed = self.fill_by_tree(column) || self.fill_by_allowed_hops(column);
            if !routed && !self.fill_by_new_hop(column) {
                return;
            }
        }
    }

    /// Forwards all destinations of a column to a neighbour.
    fn send(&mut self, column: &Column<'a>, index: SwitchIndex, slot: usize) {
        let ports = self.cables(index, slot);
        self.fill_by_hash(index, column.destinations, &ports);
    }

    /// Routes switches by the pivot tree, once the pivot has a route.
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

    /// Forwards to neighbours that have a route with allowed hops.
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

    /// Allows one more hop, preferably at a switch that has some already.
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

    /// The neighbours to which the neighbour `slot` forwards the destinations of a column; `None` if it lacks a route to one.
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

/// The tier at which the path from a switch joins a down path, and the tier of the switch itself, both above the target.
#[derive(Clone, Copy, Debug)]
struct Climb {
    top: usize,
    tier: usize,
}

impl Climb {
    /// In a tree the climb above the source and the descent to the target end at the same height, so the distance gives it.
    fn of(order: &Order, distances: &Distances, index: SwitchIndex, target: SwitchIndex) -> Option<Self> {
        let (here, there) = (i64::from(order.heights[index]), i64::from(order.heights[target]));
        let doubled = i64::from(distances.any[index]) + here - there;
        let tiers = (doubled % 2 == 0).then_some(doubled / 2)?;
        Some(Self { top: usize::try_from(tiers - 1).ok()?, tier: usize::try_from(here - there).unwrap_or(0) })
    }
}
