//! Looking ahead. A large network does not fit into the cache, and memory answers many questions in the time of one: so
//! what packets that will arrive ask for is read for a batch of events together, before their time comes. The packet is
//! read first, where it goes a batch later, and so on: nobody waits for an answer to ask the next question. Nothing
//! depends on it but the time it takes.
//!
//! Batches are of events, not of time: adapters that began together have thousands of events at the same moment, and then
//! none for many buckets of the queue.

use super::events::PacketEvent;
use super::network::PortKind;
use super::simulation::Simulation;

/// Networks of fewer ports are in the cache anyway.
const PORTS_MIN: usize = 2048;

/// Events of a batch: about as many questions as memory answers at a time.
const BATCH: usize = 32;

/// Events before the batch whose packets are read: those of the two batches that are looked at further.
const AFTER: usize = 2 * BATCH;

/// What was seen of packets that will arrive, and is to be read next.
#[derive(Debug, Default)]
pub(super) struct Prefetch {
    /// Ports and packets that arrive there, both of which were read.
    arrivals: Vec<(u32, u32)>,
    /// The lanes of outputs that packets of the batch before will wait for.
    lanes: Vec<(u32, u8)>,
    /// The messages of those that are at their end.
    messages: Vec<u32>,
}

impl Simulation {
    /// Reads what coming events will ask for, if a batch of events has happened.
    #[inline]
    pub(super) fn prefetch(&mut self) {
        if self.totals.events.is_multiple_of(BATCH as u64) && self.network.lookups.len() >= PORTS_MIN {
            self.read_batch();
        }
    }

    fn read_batch(&mut self) {
        let Prefetch { arrivals, lanes, messages } = &mut self.prefetch;
        let mut read = 0;
        for (out, lane) in lanes.drain(..) {
            read ^= self.outputs[out as usize].until ^ u64::from(self.lanes.get(out, lane).last);
        }
        for message in messages.drain(..) {
            read ^= self.messages[message].at;
        }
        for (port, packet) in arrivals.drain(..) {
            let packet = &self.packets[packet];
            if self.network.lookups[port as usize].kind == PortKind::Adapter {
                messages.push(packet.message);
            } else if let Some(out) = self.network.exit(port, packet.headers.to) {
                // Most packets stay in their lane.
                lanes.push((out, packet.out_lane));
            }
        }
        self.queue.coming(AFTER, BATCH, |what| {
            if let PacketEvent::Arrive { port, packet } = PacketEvent::unpack(what) {
                read ^= self.packets[packet].head_since ^ u64::from(self.network.lookups[port as usize].mtu);
                arrivals.push((port, packet));
            }
        });
        std::hint::black_box(read);
    }
}
