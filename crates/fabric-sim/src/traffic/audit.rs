//! Checks on a simulation: blocked buffers, credit loops, conservation of packets and credits.

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::{LaneSet, VirtualLane};
use thiserror::Error;

use super::events::PacketEvent;
use super::network::NONE;
use super::simulation::Simulation;
use super::state::{LANES, Packet};
use crate::device::PortId;

/// Packets in a receive buffer that wait for credits of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockedBuffer {
    /// The port and lane of the buffer.
    pub at: (PortId, VirtualLane),
    /// The port and lane that they wait to leave through.
    pub out: (PortId, VirtualLane),
}

/// A violated invariant: a defect of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AuditError {
    /// Packets are neither delivered nor dropped nor in flight, or are counted twice.
    #[error("{created} packets were created, but {accounted} are delivered, dropped or in flight")]
    Packets { created: u64, accounted: u64 },
    /// The credits of a lane do not add up to its buffer.
    #[error("the credits of a lane add up to {found} blocks, but its buffer has {capacity}")]
    Credits {
        capacity: u16,
        /// Blocks that are free, occupied, or on the way back to the sender.
        found: u32,
    },
    /// A link is idle although a packet with sufficient credits waits for it.
    #[error("the link of port {} is idle although lane {lane} could send", .port.0)]
    Idle { port: PortId, lane: VirtualLane },
    /// An input of a switch is not read although a packet could leave it.
    #[error("the input of port {} is idle although a packet could leave it", .port.0)]
    Unread { port: PortId },
}

impl Simulation {
    /// The buffers at switches that wait for credits, each once, in ascending order.
    pub fn blocked(&self) -> impl Iterator<Item = BlockedBuffer> {
        let mut blocked = BTreeSet::new();
        for (out, _) in self.outputs.iter().enumerate().filter(|(_, output)| output.is_switch) {
            let out = out as u32;
            let short = self.lanes.of(out).filter(|state| state.first != NONE && !state.has_room());
            for state in short {
                for packet in self.waiting(state.first) {
                    let at = (PortId(packet.at), VirtualLane::from_wire(packet.lane).unwrap_or_default());
                    blocked.insert(BlockedBuffer { at, out: (PortId(out), packet.out_lane) });
                }
            }
        }
        // Packets at inputs wait for the same credits as those before them at the output.
        for (packet, place) in self.inputs.waiting() {
            let packet = &self.packets[packet];
            let state = self.lanes.get(packet.out, packet.out_lane);
            if state.first != NONE && !state.has_room() {
                let at = (PortId(packet.at), VirtualLane::from_wire(packet.lane).unwrap_or_default());
                blocked.insert(BlockedBuffer { at, out: (PortId(place / LANES), packet.out_lane) });
            }
        }
        blocked.into_iter()
    }

    /// The packets of a queue.
    fn waiting(&self, first: u32) -> impl Iterator<Item = &Packet> {
        let is_one = |id: &u32| *id != NONE;
        let next = move |id: &u32| Some(self.queue_entries[*id as usize].next).filter(is_one);
        std::iter::successors(Some(first).filter(is_one), next).map(|id| &self.packets[id])
    }

    /// Finds buffers that wait for each other in a ring: each for credits of the next, the last for credits
    /// of the first. If no other packet can leave them, this is a deadlock.
    ///
    /// The method is a depth-first search over the blocked buffers.
    pub fn credit_loop(&self) -> Option<Vec<BlockedBuffer>> {
        let mut waits: BTreeMap<u32, Vec<BlockedBuffer>> = BTreeMap::new();
        for blocked in self.blocked() {
            let at = blocked.at.0.0 * LANES + u32::from(blocked.at.1.to_wire());
            waits.entry(at).or_default().push(blocked);
        }
        let mut done: BTreeSet<u32> = BTreeSet::new();
        for start in waits.keys() {
            let mut path: Vec<(u32, usize)> = vec![(*start, 0)];
            while let Some((at, tried)) = path.last_mut() {
                let next = waits.get(at).and_then(|blocked| blocked.get(*tried)).copied();
                let Some(next) = next.filter(|_| !done.contains(at)) else {
                    done.insert(*at);
                    path.pop();
                    continue;
                };
                *tried += 1;
                let behind = self.behind(next);
                if let Some(first) = path.iter().position(|(at, _)| *at == behind) {
                    return Some(path[first..].iter().map(|(at, tried)| waits[at][tried - 1]).collect());
                }
                path.push((behind, 0));
            }
        }
        None
    }

    /// The buffer at the other end of the link that a packet waits for.
    fn behind(&self, blocked: BlockedBuffer) -> u32 {
        self.outputs[blocked.out.0.index()].to * LANES + u32::from(blocked.out.1.to_wire())
    }

    /// Counts all packets and credits anew and compares them with the running totals. Also finds links that
    /// are idle although a packet could be sent. Takes time linear in the number of ports and packets.
    pub fn audit(&self) -> Result<(), AuditError> {
        self.audit_links()?;
        if let Some(port) = self.inputs.neglected() {
            return Err(AuditError::Unread { port: PortId(port) });
        }
        let inputs = self.network.ports.len() * LANES as usize;
        // Occupied blocks of the buffer of each lane of each port.
        let mut taken = vec![0; inputs];
        let mut inside = 0;
        for (fifo, queue) in self.fifos.iter().enumerate() {
            // The queue of a function holds at most one packet, which is not linked.
            let most = if fifo < inputs { usize::MAX } else { 1 };
            for packet in self.waiting(queue.first).take(most) {
                inside += 1;
                if fifo < inputs && u32::from(packet.lane) < LANES {
                    taken[fifo] += u32::from(packet.blocks());
                }
            }
        }
        let switches = self.outputs.iter().enumerate().filter(|(_, output)| output.is_switch);
        let queued = switches.flat_map(|(out, _)| self.lanes.of(out as u32));
        let unread = self.inputs.waiting().flat_map(|(first, _)| self.waiting(first));
        for packet in queued.flat_map(|state| self.waiting(state.first)).chain(unread) {
            inside += 1;
            taken[(packet.at * LANES) as usize + usize::from(packet.lane)] += u32::from(packet.blocks());
        }
        for output in self.outputs.iter().filter(|output| output.is_busy) {
            if let Some(taken) = taken.get_mut(output.fifo as usize) {
                *taken += u32::from(output.blocks);
            }
        }
        for what in self.queue.iter() {
            match PacketEvent::unpack(what) {
                PacketEvent::Arrive { port, packet: id } => {
                    let packet = &self.packets[id];
                    inside += 1;
                    if !self.is_loopback(id) {
                        taken[(port * LANES) as usize + packet.out_lane.index()] +=
                            u32::from(packet.blocks());
                    }
                }
                PacketEvent::Take { packet } | PacketEvent::Ready { packet } => {
                    let packet = &self.packets[packet];
                    inside += 1;
                    taken[(packet.at * LANES) as usize + usize::from(packet.lane)] +=
                        u32::from(packet.blocks());
                }
                PacketEvent::Credit { lane, blocks } => {
                    let to = self.outputs[(lane / LANES) as usize].to;
                    taken[(to * LANES + lane % LANES) as usize] += u32::from(blocks);
                }
                PacketEvent::Wake { .. } | PacketEvent::Read { .. } | PacketEvent::Left { .. } => {}
            }
        }
        let totals = self.totals();
        let accounted = totals.delivered + totals.dropped + inside;
        if totals.created != accounted || totals.in_flight != inside {
            return Err(AuditError::Packets { created: totals.created, accounted });
        }
        for (out, output) in self.outputs[..self.network.ports.len()].iter().enumerate() {
            for lane in LaneSet::DATA.iter().filter(|_| output.to != NONE) {
                let free = self.lanes.get(out as u32, lane).credits;
                let found = u32::from(free) + taken[(output.to * LANES) as usize + lane.index()];
                if found != u32::from(self.capacity[out]) {
                    return Err(AuditError::Credits { capacity: self.capacity[out], found });
                }
            }
        }
        Ok(())
    }

    fn audit_links(&self) -> Result<(), AuditError> {
        let idle =
            self.outputs.iter().enumerate().filter(|(_, output)| !output.is_busy && !output.is_loopback);
        for (out, output) in idle {
            let served = self.network.ports[out].tables.served() | VirtualLane::MANAGEMENT.into();
            for (lane, state) in LaneSet::ALL.iter().zip(self.lanes.of(out as u32)) {
                let first = if output.is_switch { Some(state.first) } else { self.head(state.first) };
                let Some(first) = first.filter(|first| *first != NONE && served.contains(lane)) else {
                    continue;
                };
                if lane == VirtualLane::MANAGEMENT || state.credits >= self.packets[first].blocks().into() {
                    return Err(AuditError::Idle { port: PortId(out as u32), lane });
                }
            }
        }
        Ok(())
    }

    /// The first packet of a queue.
    fn head(&self, fifo: u32) -> Option<u32> {
        self.fifos.get(fifo as usize).map(|queue| queue.first)
    }
}
