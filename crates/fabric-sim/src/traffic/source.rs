//! Message queues of the functions of an adapter.

use ib_wire::VirtualLane;

use super::events::LOOPBACK;
use super::message::{Message, Service};
use super::network::{Headers, NONE, PortKind};
use super::settings::{HEADER_BYTES, HEADER_BYTES_MAX, MESSAGE_BYTES_MAX, PAYLOAD_BYTES_MAX};
use super::simulation::{Simulation, WorkloadNotice};
use super::state::{Fifo, Packet, Posted, QueueEntry, Source};
use crate::fabric::DropReason;

/// Payload of the largest management packet.
const MANAGEMENT_BYTES_MAX: u16 = 256;

/// Lanes of a function: those of the link, and the loopback.
const SOURCE_LANES: usize = 17;

impl Simulation {
    /// Queues a message at its function, or drops it whole.
    pub(super) fn post(&mut self, message: Message) {
        let tag = usize::from(message.tag.0);
        if tag >= self.measures.len() {
            self.measures.resize_with(tag + 1, Default::default);
        }
        let port = message.from.port().0;
        let lookup = &self.network.lookups[port as usize];
        let most = match message.service {
            Service::Data(_) => PAYLOAD_BYTES_MAX as u16,
            Service::Management => MANAGEMENT_BYTES_MAX,
        };
        let packet_bytes = message.packet_bytes.unwrap_or(lookup.mtu).clamp(1, most);
        let payload = message.bytes.min(packet_bytes.into()) as u16;
        let headers = headers(&message, payload);
        let packets = message.bytes.div_ceil(packet_bytes.into()).max(1);
        let output = match message.bytes <= MESSAGE_BYTES_MAX {
            true => self.output_for(port, &headers),
            false => Err(DropReason::TooLarge),
        };
        let (out, lane) = match output {
            Ok(output) => output,
            Err(reason) => {
                self.totals.created += packets;
                self.totals.dropped += packets;
                self.measures[tag].created += packets;
                *self.measures[tag].drops.entry(reason).or_default() += packets;
                return self.notices.push(WorkloadNotice::Lost(message, reason));
            }
        };
        let source = self.source(port, message.from.number(), out, lane);
        let fifo = self.first_source() + source;
        let waiting = &mut self.sources[source as usize];
        let uncontended = waiting.first == NONE && self.fifos[fifo as usize].is_idle();
        let posted = Posted {
            message,
            at: self.now,
            open: packets as u32,
            made: 0,
            next: NONE,
            packet_bytes,
            lost: None,
            uncontended,
        };
        let id = self.messages.insert(posted);
        if waiting.first == NONE {
            waiting.first = id;
        } else {
            self.messages[waiting.last].next = id;
        }
        waiting.last = id;
        if self.fifos[fifo as usize].is_idle() {
            self.fill(fifo);
            let out = self.enqueue(fifo);
            self.try_send(out);
        }
    }

    /// The output and lane through which an adapter sends a packet; `None` is the loopback.
    fn output_for(&self, port: u32, headers: &Headers) -> Result<(u32, Option<VirtualLane>), DropReason> {
        let lookup = &self.network.lookups[port as usize];
        if lookup.kind != PortKind::Adapter {
            return Err(DropReason::WrongPort);
        }
        if headers.sl().is_some() && headers.payload > lookup.mtu {
            return Err(DropReason::TooLarge);
        }
        if headers.sl().is_some() && !self.network.holds(port, headers.pkey) {
            return Err(DropReason::PartitionAtSender);
        }
        if self.network.owns(port, headers.to) {
            return Ok((self.loopback_outputs[port as usize], None));
        }
        Ok((port, Some(self.network.inject(port, headers)?)))
    }

    /// The number of a function's queue for a lane; `None` is the loopback.
    fn source(&mut self, port: u32, function: u8, out: u32, lane: Option<VirtualLane>) -> u32 {
        let numbers = &mut self.sources_of[port as usize];
        let index = usize::from(function) * SOURCE_LANES + lane.map_or(LOOPBACK.into(), VirtualLane::index);
        if index >= numbers.len() {
            numbers.resize(index + 1, NONE);
        }
        if numbers[index] == NONE {
            numbers[index] = self.sources.len() as u32;
            self.sources.push(Source { first: NONE, last: NONE, out, lane: lane.unwrap_or_default() });
            self.fifos.push(Fifo::EMPTY);
        }
        numbers[index]
    }

    /// Cuts the next packet from the messages of a function's queue, if there is one.
    pub(super) fn fill(&mut self, fifo: u32) {
        let number = fifo - self.first_source();
        let source = &mut self.sources[number as usize];
        if source.first == NONE {
            return;
        }
        let id = source.first;
        let posted = &mut self.messages[id];
        let left = posted.message.bytes - u64::from(posted.made) * u64::from(posted.packet_bytes);
        let payload = left.min(posted.packet_bytes.into()) as u16;
        posted.made += 1;
        let is_last = left <= posted.packet_bytes.into();
        if is_last {
            source.first = posted.next;
        }
        let packet = Packet {
            headers: headers(&posted.message, payload),
            head_since: self.now,
            message: id,
            at: NONE,
            out: source.out,
            lane: LOOPBACK,
            out_lane: source.lane,
            hops: 0,
            uncontended: posted.uncontended,
        };
        posted.uncontended = false;
        self.totals.created += 1;
        self.measures[usize::from(posted.message.tag.0)].created += 1;
        let packet = self.packets.insert(packet);
        if packet as usize >= self.queue_entries.len() {
            self.queue_entries.push(QueueEntry::EMPTY);
        }
        let waiting = &mut self.fifos[fifo as usize];
        (waiting.first, waiting.last, waiting.is_last) = (packet, packet, is_last);
    }
}

/// The headers of a packet of a message.
fn headers(message: &Message, payload: u16) -> Headers {
    let sl = match message.service {
        Service::Data(sl) => Some(sl),
        Service::Management => None,
    };
    let bytes = message.header_bytes.clamp(HEADER_BYTES, HEADER_BYTES_MAX);
    Headers::new(message.to, message.pkey, sl, payload, bytes)
}
