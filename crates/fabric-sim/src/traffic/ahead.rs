//! Looking ahead. A large network does not fit into the cache, and memory answers many questions in the time of one: so
//! what the next events will ask for is read for all of them together, one link of the chain after the other. Nothing
//! depends on it but the time it takes.

use super::machine::What;
use super::network::{Kind, NONE};
use super::simulation::Simulation;
use super::state::{LANES, Output};

/// Events that are worth looking ahead for.
const EVENTS_MIN: usize = 3;

impl Simulation {
    /// Reads what the next events will ask for.
    pub(super) fn look_ahead(&mut self) {
        if self.queue.next().len() < EVENTS_MIN {
            return;
        }
        let mut ahead = std::mem::take(&mut self.ahead);
        ahead.clear();
        let seen = self.read_places() + self.read_queues(&mut ahead) + self.read_packets(&ahead);
        self.ahead = ahead;
        std::hint::black_box(seen);
    }

    /// Outputs, packets and ports that events name.
    fn read_places(&self) -> u64 {
        let read = |what: &u64| match What::unpack(*what) {
            What::Credit { lane, .. } => {
                let output = &self.outputs[(lane / LANES) as usize];
                output.until + u64::from(output.lanes[(lane % LANES) as usize].credits)
            }
            What::Arrive { port, packet } => {
                self.packets[packet].tail + u64::from(self.network.gates[port as usize].mtu)
            }
            What::Left { output } => {
                let output = &self.outputs[output as usize];
                output.until + u64::from(output.lanes[0].credits)
            }
            _ => 0,
        };
        self.queue.next().iter().map(|(_, what)| read(what)).sum()
    }

    /// Queues that packets go to or leave, and where packets go. Notes the packets that will be asked for next, and the
    /// outputs.
    fn read_queues(&self, ahead: &mut Vec<(u32, u32)>) -> u64 {
        let mut seen = 0u64;
        for (_, what) in self.queue.next() {
            match What::unpack(*what) {
                What::Arrive { port, packet } => {
                    let packet = &self.packets[packet];
                    if self.network.gates[port as usize].kind == Kind::Adapter {
                        seen += self.messages[packet.message].at;
                    } else {
                        ahead.push((NONE, self.network.exit(port, packet.headers.to).unwrap_or(NONE)));
                    }
                }
                What::Left { output } => {
                    let output = &self.outputs[output as usize];
                    let lane = &output.lanes[output.waiting.trailing_zeros() as usize % LANES as usize];
                    let first = |fifo: u32| self.fifos.get(fifo as usize).map_or(NONE, |fifo| fifo.first);
                    ahead.push((if output.is_switch { lane.first } else { first(lane.first) }, NONE));
                }
                _ => {}
            }
        }
        seen
    }

    /// The packets and outputs that were noted, and the lanes that these packets will wait for.
    fn read_packets(&self, ahead: &[(u32, u32)]) -> u64 {
        let read = |(packet, out): &(u32, u32)| {
            let packet = self.packets.get(*packet);
            let (out, lane) = match (*out, packet) {
                (NONE, Some(packet)) => (packet.out, packet.out_lane),
                _ => (*out, 0),
            };
            let waits = |output: &Output| output.until + u64::from(output.lanes[usize::from(lane)].last);
            packet.map_or(0, |packet| packet.tail) + self.outputs.get(out as usize).map_or(0, waits)
        };
        ahead.iter().map(read).fold(0, u64::wrapping_add)
    }
}
