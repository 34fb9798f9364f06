//! Software prefetching of the state that coming events will need.
//!
//! A large network does not fit into the cache, but memory can serve many independent reads at the same time.
//! So the reads for a batch of coming events are issued together before the events happen: first the packets,
//! one batch later the outputs and messages that they refer to. This changes only the running time, no
//! result.
//!
//! A batch is a number of events, not a length of time: adapters that start together have thousands of events
//! at one moment and then none for many buckets of the event queue.

use ib_wire::VirtualLane;

use super::events::PacketEvent;
use super::network::PortKind;
use super::simulation::Simulation;

/// Smaller networks fit into the cache.
const PORTS_MIN: usize = 2048;

/// Events per batch: about the number of reads that memory serves in parallel.
const BATCH: usize = 32;

/// Events before the batch whose packets are read: the two batches that are already being processed.
const AFTER: usize = 2 * BATCH;

/// State that was read and refers to what is read next.
#[derive(Debug, Default)]
pub(super) struct Prefetch {
    /// Ports and packets that arrive there; both were read.
    arrivals: Vec<(u32, u32)>,
    /// Outputs and lanes that packets of the previous batch will wait for.
    lanes: Vec<(u32, VirtualLane)>,
    /// Messages of packets that reach their destination.
    messages: Vec<u32>,
}

impl Simulation {
    /// Reads the state for coming events after every batch of events.
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
                // Most packets stay on their lane.
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
