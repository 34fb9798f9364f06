//! How far every switch is from one destination switch, going up first and then down.

use std::collections::VecDeque;

use super::order::Order;
use crate::fabric::{Fabric, Place};

/// No way.
pub(crate) const NEVER: u16 = u16::MAX;

/// The switches above and below each, flat, because every destination looks at all of them.
#[derive(Debug)]
pub(crate) struct Ways {
    up: Vec<Vec<u32>>,
    descending: Vec<Place>,
}

impl Ways {
    pub fn of(fabric: &Fabric, order: &Order) -> Self {
        let place = |here: Place, slot: &usize| fabric.switches[here].neighbours[*slot].place as u32;
        let up = order.up.iter().enumerate();
        let up = up.map(|(here, slots)| slots.iter().map(|slot| place(here, slot)).collect()).collect();
        Self { up, descending: order.descending.clone() }
    }
}

/// Distances to one switch.
#[derive(Debug, Default)]
pub(crate) struct Distances {
    /// Going down only.
    pub down: Vec<u16>,
    /// Going up until a way down begins. Switches that have a way down take it, even if it is the longer one: otherwise
    /// packets would go up again after they went down.
    pub any: Vec<u16>,
    queue: VecDeque<Place>,
}

impl Distances {
    /// Measures the distances to a switch.
    pub fn measure(&mut self, ways: &Ways, target: Place) {
        self.down.clear();
        self.down.resize(ways.up.len(), NEVER);
        self.down[target] = 0;
        self.queue.push_back(target);
        while let Some(here) = self.queue.pop_front() {
            for &above in &ways.up[here] {
                if self.down[above as usize] == NEVER {
                    self.down[above as usize] = self.down[here].saturating_add(1);
                    self.queue.push_back(above as usize);
                }
            }
        }
        self.any.clone_from(&self.down);
        for &here in &ways.descending {
            if self.down[here] == NEVER {
                let nearest = ways.up[here].iter().map(|above| self.any[*above as usize]).min();
                self.any[here] = nearest.unwrap_or(NEVER).saturating_add(1);
            }
        }
    }
}
