//! Distances of all switches to one destination switch, going up first and then down. One breadth-first search: O(links).

use std::collections::VecDeque;

use super::order::Order;
use crate::fabric::{Fabric, SwitchIndex};

/// The distance of a switch that does not reach the destination.
pub(crate) const UNREACHABLE: u16 = u16::MAX;

/// The neighbours above each switch in a compact form, because every destination reads all of them.
#[derive(Debug)]
pub(crate) struct UpNeighbours {
    up: Vec<Vec<u32>>,
    descending: Vec<SwitchIndex>,
}

impl UpNeighbours {
    pub fn of(fabric: &Fabric, order: &Order) -> Self {
        let index = |here: SwitchIndex, slot: &usize| fabric.switches[here].neighbours[*slot].switch as u32;
        let up = order.up.iter().enumerate();
        let up = up.map(|(here, slots)| slots.iter().map(|slot| index(here, slot)).collect()).collect();
        Self { up, descending: order.descending.clone() }
    }
}

/// Distances to one switch.
#[derive(Debug, Default)]
pub(crate) struct Distances {
    /// By switch: going down only.
    pub down: Vec<u16>,
    /// By switch: going up until a path down begins. A switch with a path down takes it even if it is longer: otherwise
    /// packets would go up again after they went down.
    pub any: Vec<u16>,
    queue: VecDeque<SwitchIndex>,
}

impl Distances {
    /// Measures the distances to a switch.
    pub fn measure(&mut self, up_neighbours: &UpNeighbours, target: SwitchIndex) {
        self.down.clear();
        self.down.resize(up_neighbours.up.len(), UNREACHABLE);
        self.down[target] = 0;
        self.queue.push_back(target);
        while let Some(here) = self.queue.pop_front() {
            for &above in &up_neighbours.up[here] {
                if self.down[above as usize] == UNREACHABLE {
                    self.down[above as usize] = self.down[here].saturating_add(1);
                    self.queue.push_back(above as usize);
                }
            }
        }
        self.any.clone_from(&self.down);
        for &here in &up_neighbours.descending {
            if self.down[here] == UNREACHABLE {
                let nearest = up_neighbours.up[here].iter().map(|above| self.any[*above as usize]).min();
                self.any[here] = nearest.unwrap_or(UNREACHABLE).saturating_add(1);
            }
        }
    }
}
