//! Looking ahead. A large network does not fit into the cache, and memory answers many questions in the time of one: so
//! what events of the next buckets will ask for is read for all of them together, before their time comes. What an event
//! names is read first, what that leads to a bucket later, and so on: nobody waits for an answer to ask the next question.
//! Nothing depends on it but the time it takes.

use super::machine::What;
use super::network::{Kind, NONE};
use super::simulation::Simulation;
use super::state::LANES;

/// Networks of fewer ports are in the cache anyway.
const PORTS_MIN: usize = 2048;

/// What was seen and is to be read next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    /// A packet that waits at a switch.
    Waiting(u32),
    /// The lane of an output.
    Lane(u32, u8),
    /// A message.
    Message(u32),
}

impl Simulation {
    /// Reads what coming events will ask for, if a bucket of events has been begun.
    #[inline]
    pub(super) fn look_ahead(&mut self) {
        if self.queue.has_begun() && self.network.gates.len() >= PORTS_MIN {
            let mut seen = std::mem::take(&mut self.seen);
            let read = self.read_seen(&seen);
            seen.clear();
            self.see(&mut seen);
            self.seen = seen;
            std::hint::black_box((read, self.read_named()));
        }
    }

    /// What events of the third bucket from here name: outputs, packets and ports.
    fn read_named(&self) -> u64 {
        let read = |what: u64| match What::unpack(what) {
            What::Credit { lane, .. } => {
                let (out, lane) = (lane / LANES, (lane % LANES) as u8);
                self.outputs[out as usize].until + u64::from(self.lanes.get(out, lane).credits)
            }
            What::Arrive { port, packet } => {
                self.packets[packet].head_since + u64::from(self.network.gates[port as usize].mtu)
            }
            What::Left { output } => self.outputs[output as usize].until,
            _ => 0,
        };
        self.queue.coming(3).map(read).fold(0, u64::wrapping_add)
    }

    /// What that leads to, of the bucket before that: queues that packets go to or leave.
    fn see(&self, seen: &mut Vec<Seen>) {
        seen.extend(self.queue.coming(2).filter_map(|what| match What::unpack(what) {
            What::Arrive { port, packet } => {
                let packet = &self.packets[packet];
                if self.network.gates[port as usize].kind == Kind::Adapter {
                    return Some(Seen::Message(packet.message));
                }
                // Most packets stay in their lane.
                self.network.exit(port, packet.headers.to).map(|out| Seen::Lane(out, packet.out_lane))
            }
            What::Left { output: out } => {
                let output = &self.outputs[out as usize];
                if let Some(source) = output.fifo.checked_sub(self.first_source()) {
                    let first = self.sources[source as usize].first;
                    return (first != NONE).then_some(Seen::Message(first));
                }
                let lane = output.ready.trailing_zeros() as u8 % LANES as u8;
                let first = self.lanes.get(out, lane).first;
                (output.is_switch && first != NONE).then_some(Seen::Waiting(first))
            }
            _ => None,
        }));
    }

    /// What was seen a bucket ago.
    fn read_seen(&self, seen: &[Seen]) -> u64 {
        let read = |seen: &Seen| match *seen {
            Seen::Waiting(packet) => self.places[packet as usize].next.into(),
            Seen::Lane(out, lane) => {
                self.outputs[out as usize].until + u64::from(self.lanes.get(out, lane).last)
            }
            Seen::Message(message) => self.messages[message].at,
        };
        seen.iter().map(read).fold(0, u64::wrapping_add)
    }
}
