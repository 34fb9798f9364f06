//! How every switch climbs towards each of the switches where packets turn.

use ib_wire::PortNum;

use super::homes::Uplinks;
use super::order::Order;
use crate::fabric::{Fabric, Place};

/// Entries the table may have, two bytes each. A tree for 65,536 hosts has 16 million; without the table, routes are
/// balanced by hash only.
const ENTRIES_MAX: usize = 64 << 20;

/// How a switch climbs towards another, in two bytes: there is one for every pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way(u16);

impl Way {
    /// Not at all.
    pub const NONE: Self = Self(u16::MAX);
    const SLOT: u16 = 0x100;

    /// By the only cable there is, which is on a shortest way.
    #[inline]
    pub fn port(self) -> Option<u8> {
        u8::try_from(self.0).ok()
    }

    /// By a neighbour, as a place in the switch's list; which cable is left to choose.
    pub fn slot(self) -> Option<usize> {
        (self != Self::NONE).then(|| self.0.checked_sub(Self::SLOT)).flatten().map(usize::from)
    }
}

/// The near ports towards each higher neighbour by lane, `None` where one failed; by switch and neighbour.
pub(crate) type Lanes = Vec<Vec<Vec<Option<PortNum>>>>;

/// The lanes of all switches.
pub(crate) fn lanes(fabric: &Fabric, order: &Order, uplinks: &Uplinks) -> Lanes {
    let of_switch = |(place, slots): (Place, &Vec<usize>)| {
        let switch = &fabric.switches[place];
        let mut lanes = vec![Vec::new(); switch.neighbours.len()];
        for slot in slots {
            lanes[*slot] = uplinks.lanes(place, switch.neighbours[*slot].place);
        }
        lanes
    };
    order.up.iter().enumerate().map(of_switch).collect()
}

/// The ways of every switch towards higher ones.
#[derive(Debug)]
pub(crate) struct Toward {
    /// By switch, then by target, so that the targets of one switch stay in the cache.
    ways: Vec<Way>,
    /// The column of each switch that is a target.
    columns: Vec<Option<u32>>,
    width: usize,
}

impl Toward {
    /// The ways towards some switches, by cables that gain height.
    pub fn of(fabric: &Fabric, order: &Order, lanes: &Lanes, targets: &[Place]) -> Self {
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
        let ways = vec![Way::NONE; width * fabric.switches.len()];
        let mut toward = Self { ways, columns, width };
        for target in 0..fabric.switches.len() {
            toward.spread(fabric, order, lanes, target);
        }
        toward
    }

    /// The column of a target.
    pub fn column(&self, target: Place) -> Option<u32> {
        self.columns[target]
    }

    /// The ways of a switch by column.
    pub fn ways(&self, from: Place) -> &[Way] {
        &self.ways[from * self.width..(from + 1) * self.width]
    }

    /// Fills the column of a target, level by level downwards. Of two ways of equal length the first switch's counts.
    fn spread(&mut self, fabric: &Fabric, order: &Order, lanes: &Lanes, target: Place) {
        let Some(column) = self.columns[target] else { return };
        let mut level = vec![target];
        while !level.is_empty() {
            let mut below = Vec::new();
            for &here in &level {
                for slot in &order.down[here] {
                    let there = fabric.switches[here].neighbours[*slot].place;
                    let way = &mut self.ways[there * self.width + column as usize];
                    if *way == Way::NONE && order.heights[there] < order.heights[here] {
                        *way = way_up(fabric, order, lanes, there, here);
                        below.push(there);
                    }
                }
            }
            level = below;
        }
    }
}

/// The way to a neighbour above. Only in strict trees every climb is a shortest way, so only there a port will do.
fn way_up(fabric: &Fabric, order: &Order, lanes: &Lanes, from: Place, above: Place) -> Way {
    let neighbours = &fabric.switches[from].neighbours;
    let Ok(slot) = neighbours.binary_search_by_key(&above, |neighbour| neighbour.place) else {
        return Way::NONE;
    };
    match lanes[from][slot][..] {
        [Some(port)] if order.is_strict => Way(port.to_wire().into()),
        _ => Way(Way::SLOT + slot as u16),
    }
}
