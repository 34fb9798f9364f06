//! Next hops of every switch up towards each switch that may be the top of a down path.

use ib_wire::PortNum;

use super::down_paths::Uplinks;
use super::order::Order;
use crate::fabric::{Fabric, SwitchIndex};

/// The most entries of the table, two bytes each. A tree for 65,536 hosts has 16 million. A fabric that needs more gets no
/// table, and its routes are balanced by hash only.
const ENTRIES_MAX: usize = 64 << 20;

/// The next hop of a switch up towards another, in two bytes, because there is one for every pair: nothing, a port, or a
/// neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UpNextHop(u16);

impl UpNextHop {
    pub const NONE: Self = Self(u16::MAX);
    const SLOT: u16 = 0x100;

    /// The port, if there is one cable only and it is on a shortest path.
    #[inline]
    pub fn port(self) -> Option<u8> {
        u8::try_from(self.0).ok()
    }

    /// The index of the neighbour, if one of several cables remains to be chosen.
    pub fn slot(self) -> Option<usize> {
        (self != Self::NONE).then(|| self.0.checked_sub(Self::SLOT)).flatten().map(usize::from)
    }
}

/// By switch and higher neighbour: the near ports of parallel cables, `None` where one failed.
pub(crate) type ParallelPorts = Vec<Vec<Vec<Option<PortNum>>>>;

/// The parallel cables of all switches.
pub(crate) fn parallel_ports(fabric: &Fabric, order: &Order, uplinks: &Uplinks) -> ParallelPorts {
    let of_switch = |(index, slots): (SwitchIndex, &Vec<usize>)| {
        let switch = &fabric.switches[index];
        let mut parallel_ports = vec![Vec::new(); switch.neighbours.len()];
        for slot in slots {
            parallel_ports[*slot] = uplinks.parallel_ports(index, switch.neighbours[*slot].switch);
        }
        parallel_ports
    };
    order.up.iter().enumerate().map(of_switch).collect()
}

/// The next hops of every switch towards some higher ones.
#[derive(Debug)]
pub(crate) struct UpNextHops {
    /// By switch, then by target, so that the targets of one switch share cache lines.
    next_hops: Vec<UpNextHop>,
    /// By switch: its column, if it is a target.
    columns: Vec<Option<u32>>,
    width: usize,
}

impl UpNextHops {
    /// The next hops towards `targets`, by links that gain height.
    pub fn of(
        fabric: &Fabric,
        order: &Order,
        parallel_ports: &ParallelPorts,
        targets: &[SwitchIndex],
    ) -> Self {
        let mut columns = vec![None; fabric.switches.len()];
        let mut width = 0;
        for target in targets {
            if columns[*target].is_none() {
                columns[*target] = Some(width);
                width += 1;
            }
        }
        let mut width = width as usize;
        if width * fabric.switches.len() > ENTRIES_MAX {
            columns.fill(None);
            width = 0;
        }
        let next_hops = vec![UpNextHop::NONE; width * fabric.switches.len()];
        let mut up_next_hops = Self { next_hops, columns, width };
        for target in 0..fabric.switches.len() {
            up_next_hops.spread(fabric, order, parallel_ports, target);
        }
        up_next_hops
    }

    pub fn column(&self, target: SwitchIndex) -> Option<u32> {
        self.columns[target]
    }

    /// The next hops of a switch, by column.
    pub fn next_hops(&self, from: SwitchIndex) -> &[UpNextHop] {
        &self.next_hops[from * self.width..(from + 1) * self.width]
    }

    /// Fills the column of a target by breadth-first search downwards. Of two paths of equal length, that of the first
    /// switch counts.
    fn spread(
        &mut self,
        fabric: &Fabric,
        order: &Order,
        parallel_ports: &ParallelPorts,
        target: SwitchIndex,
    ) {
        let Some(column) = self.columns[target] else { return };
        let mut frontier = vec![target];
        while !frontier.is_empty() {
            let mut below = Vec::new();
            for &here in &frontier {
                for slot in &order.down[here] {
                    let there = fabric.switches[here].neighbours[*slot].switch;
                    let next_hop = &mut self.next_hops[there * self.width + column as usize];
                    if *next_hop == UpNextHop::NONE && order.heights[there] < order.heights[here] {
                        *next_hop = next_hop_up(fabric, order, parallel_ports, there, here);
                        below.push(there);
                    }
                }
            }
            frontier = below;
        }
    }
}

/// The next hop to a neighbour above. A port suffices in strict trees only, where every path up is a shortest one.
fn next_hop_up(
    fabric: &Fabric,
    order: &Order,
    parallel_ports: &ParallelPorts,
    from: SwitchIndex,
    above: SwitchIndex,
) -> UpNextHop {
    let neighbours = &fabric.switches[from].neighbours;
    let Ok(slot) = neighbours.binary_search_by_key(&above, |neighbour| neighbour.switch) else {
        return UpNextHop::NONE;
    };
    match parallel_ports[from][slot][..] {
        [Some(port)] if order.is_strict => UpNextHop(port.to_wire().into()),
        _ => UpNextHop(UpNextHop::SLOT + slot as u16),
    }
}
