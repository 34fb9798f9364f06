//! A look at what waits, and whether everything is accounted for.

use std::collections::HashMap;

use ib_wire::VirtualLane;
use thiserror::Error;

use super::machine::What;
use super::network::NONE;
use super::simulation::Simulation;
use super::state::{Doing, LANES};
use crate::device::PortId;

/// Packets in a buffer whose first one waits for room behind a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stuck {
    /// The port and lane they came by.
    pub at: (PortId, VirtualLane),
    /// The port and lane the first one is to leave by.
    pub out: (PortId, VirtualLane),
}

/// Something that is not accounted for: a defect of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Broken {
    /// Packets are neither delivered nor dropped nor inside.
    #[error("{created} packets were made, {accounted} are accounted for")]
    Packets {
        /// Packets that were made.
        created: u64,
        /// Packets that arrived, were dropped, or are in a buffer or on a link.
        accounted: u64,
    },
    /// A lane has more or less room than its buffer.
    #[error("a lane of {capacity} blocks has {found}")]
    Credits {
        /// Blocks of its buffer.
        capacity: u16,
        /// Blocks that are free, taken, or on their way back.
        found: u32,
    },
}

impl Simulation {
    /// The buffers of switches whose first packet waits for room, in order of ports and lanes.
    pub fn stuck(&self) -> impl Iterator<Item = Stuck> {
        (0..self.network.ports.len() as u32 * LANES).filter_map(|fifo| self.stuck_at(fifo))
    }

    /// Buffers that wait for each other in a ring, if there are any: each for room in the next, the last for room in the
    /// first. If no room is on its way back to one of them, they wait for ever.
    pub fn ring(&self) -> Option<Vec<Stuck>> {
        // Which walk has been at a buffer.
        let mut seen: HashMap<u32, u32> = HashMap::new();
        for start in 0..self.network.ports.len() as u32 * LANES {
            let mut at = start;
            while let Some(stuck) = self.stuck_at(at) {
                match seen.insert(at, start) {
                    Some(walk) if walk != start => break,
                    Some(_) => return Some(self.ring_from(at)),
                    None => at = self.behind(stuck),
                }
            }
        }
        None
    }

    fn ring_from(&self, start: u32) -> Vec<Stuck> {
        let (mut ring, mut at) = (Vec::new(), start);
        while let Some(stuck) = self.stuck_at(at) {
            ring.push(stuck);
            at = self.behind(stuck);
            if at == start {
                break;
            }
        }
        ring
    }

    /// The buffer behind the link that a packet waits for.
    fn behind(&self, stuck: Stuck) -> u32 {
        self.outputs[stuck.out.0.index()].to * LANES + u32::from(stuck.out.1.to_wire())
    }

    fn stuck_at(&self, fifo: u32) -> Option<Stuck> {
        let queue = self.fifos.get(fifo as usize).filter(|queue| queue.doing == Doing::Waiting)?;
        let packet = &self.packets[queue.first];
        let state = &self.outputs[packet.out as usize].lanes[usize::from(packet.out_lane)];
        let lane = |raw: u8| VirtualLane::from_wire(raw).unwrap_or_default();
        (state.credits < state.need && state.first != NONE).then(|| Stuck {
            at: (PortId(fifo / LANES), lane((fifo % LANES) as u8)),
            out: (PortId(packet.out), lane(packet.out_lane)),
        })
    }

    /// Counts every packet and every block of room anew, and compares.
    pub fn audit(&self) -> Result<(), Broken> {
        let inputs = self.network.ports.len() * LANES as usize;
        // Blocks of the buffer of each lane of each port that are not free.
        let mut taken = vec![0; inputs];
        let mut inside = 0;
        for (fifo, queue) in self.fifos.iter().enumerate() {
            let mut next = queue.first;
            while next != NONE {
                let packet = &self.packets[next];
                inside += 1;
                if fifo < inputs && u32::from(packet.lane) < LANES {
                    taken[fifo] += u32::from(packet.blocks);
                }
                next = packet.next;
            }
        }
        for output in self.outputs.iter().filter(|output| output.is_busy) {
            if let Some(taken) = taken.get_mut(output.fifo as usize) {
                *taken += u32::from(output.blocks);
            }
        }
        for (_, what) in self.queue.iter() {
            match What::unpack(what) {
                What::Arrive { packet, .. } | What::Take { packet } => {
                    let packet = &self.packets[packet];
                    inside += 1;
                    if u32::from(packet.lane) < LANES {
                        taken[(packet.at * LANES) as usize + usize::from(packet.lane)] +=
                            u32::from(packet.blocks);
                    }
                }
                What::Credit { lane, blocks } => {
                    let to = self.outputs[(lane / LANES) as usize].to;
                    taken[(to * LANES + lane % LANES) as usize] += u32::from(blocks);
                }
                What::Ready { .. } | What::Wake { .. } | What::Left { .. } => {}
            }
        }
        let totals = self.totals();
        let accounted = totals.delivered + totals.dropped + inside;
        if totals.created != accounted || totals.inside != inside {
            return Err(Broken::Packets { created: totals.created, accounted });
        }
        for (out, output) in self.outputs[..self.network.ports.len()].iter().enumerate() {
            for lane in (0..LANES - 1).filter(|_| output.to != NONE) {
                let free = output.lanes[lane as usize].credits;
                let found = u32::from(free) + taken[(output.to * LANES + lane) as usize];
                if found != u32::from(self.capacity[out]) {
                    return Err(Broken::Credits { capacity: self.capacity[out], found });
                }
            }
        }
        Ok(())
    }
}
