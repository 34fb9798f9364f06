//! The events of the simulation, and how packets move.

use ib_wire::VirtualLane;

use super::event_queue::CODE_BITS;
use super::network::{NONE, NextHop, PortKind};
use super::settings::ROUTED_BYTES;
use super::simulation::{Simulation, WorkloadNotice};
use super::state::{Fifo, LANES, QueueEntry, QueueStatus, blocks_of};
use super::time::Time;
use crate::fabric::DropReason;
use crate::forwarding::HOPS_MAX;

/// Pseudo lane of packets between functions of the same adapter port.
pub(super) const LOOPBACK: u8 = 16;

/// The number of the lane of subnet management.
pub(super) const MANAGEMENT: u8 = VirtualLane::MANAGEMENT.to_wire();

/// Bytes after which a lane carries its counter over, so that the counter cannot overflow with the next
/// packet.
const LANE_BYTES_MAX: u32 = u32::MAX - (1 << 16);

/// An event. At the same time, events happen in the order of the variants, then of their fields: a link that
/// becomes free sees all packets that have arrived by then. If packets arrive at a free link at the same
/// time, the one from the lowest port is sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketEvent {
    /// Credits return to a lane of an output.
    Credit { lane: u32, blocks: u8 },
    /// The head of a packet is at a switch, or its tail at an adapter.
    Arrive { port: u32, packet: u32 },
    /// Enough of a packet has arrived for it to leave through its output.
    Ready { packet: u32 },
    /// The tail of a packet is at the switch that it addresses.
    Take { packet: u32 },
    /// A wakeup that the workload requested.
    Wake { index: u32 },
    /// An input with limited speed-up can be read again.
    Read { port: u32 },
    /// The tail of a packet has left an output.
    Left { output: u32 },
}

/// Bits of a packet number: 2^29 packets would take 16 GiB.
const PACKET_BITS: u32 = 29;

/// Bits of a port number: 8 million ports, hundreds for each LID of a subnet.
const PORT_BITS: u32 = KIND_SHIFT - PACKET_BITS;

/// Position of the event kind in a code.
const KIND_SHIFT: u32 = CODE_BITS - 3;

impl PacketEvent {
    /// The event as a code; the kind is in the highest bits.
    #[inline]
    fn pack(self) -> u64 {
        let (kind, rest) = match self {
            Self::Credit { lane, blocks } => (0, u64::from(lane) << 8 | u64::from(blocks)),
            Self::Arrive { port, packet } => {
                debug_assert!(
                    port >> PORT_BITS == 0 && packet >> PACKET_BITS == 0,
                    "port and packet numbers fit their bits"
                );
                (1, u64::from(port) << PACKET_BITS | u64::from(packet))
            }
            Self::Ready { packet } => (2, packet.into()),
            Self::Take { packet } => (3, packet.into()),
            Self::Wake { index } => (4, index.into()),
            Self::Read { port } => (5, port.into()),
            Self::Left { output } => (6, output.into()),
        };
        kind << KIND_SHIFT | rest
    }

    #[inline]
    pub fn unpack(raw: u64) -> Self {
        let low = raw as u32;
        match raw >> KIND_SHIFT {
            0 => Self::Credit { lane: (raw >> 8) as u32, blocks: raw as u8 },
            1 => Self::Arrive {
                port: (raw >> PACKET_BITS) as u32 & ((1 << PORT_BITS) - 1),
                packet: low & ((1 << PACKET_BITS) - 1),
            },
            2 => Self::Ready { packet: low },
            3 => Self::Take { packet: low },
            4 => Self::Wake { index: low },
            5 => Self::Read { port: low },
            _ => Self::Left { output: low },
        }
    }
}

impl Simulation {
    #[inline]
    pub(super) fn handle(&mut self, code: u64) {
        match PacketEvent::unpack(code) {
            PacketEvent::Credit { lane, blocks } => self.give_back(lane, blocks),
            PacketEvent::Arrive { port, packet } => self.arrive(port, packet),
            PacketEvent::Ready { packet } => self.enter(packet),
            PacketEvent::Take { packet } => self.take_at_switch(packet),
            PacketEvent::Wake { index } => {
                self.notices.push(WorkloadNotice::Woken(self.wakes[index]));
                self.wakes.free(index);
            }
            PacketEvent::Read { port } => self.read_next(port),
            PacketEvent::Left { output } => self.left(output),
        }
    }

    pub(super) fn at(&mut self, time: u64, code: PacketEvent) {
        self.queue.push(time, code.pack());
    }

    pub(super) fn wake(&mut self, at: u64, token: u64) {
        let index = self.wakes.insert(token);
        self.at(at.max(self.now), PacketEvent::Wake { index });
    }

    /// Number of the first queue that belongs to a function.
    pub(super) fn first_source(&self) -> u32 {
        self.network.ports.len() as u32 * LANES
    }

    /// Queues the first packet of a function's queue at its output. Returns the output.
    pub(super) fn enqueue(&mut self, fifo: u32) -> u32 {
        let waiting = &mut self.fifos[fifo as usize];
        (waiting.status, waiting.next) = (QueueStatus::Waiting, NONE);
        let packet = &mut self.packets[waiting.first];
        waiting.blocks = packet.blocks();
        let out = packet.out;
        let output = &mut self.outputs[out as usize];
        if let Some(last) = output.append(self.lanes.get_mut(out, packet.out_lane), fifo, packet) {
            self.fifos[last as usize].next = fifo;
        } else {
            let in_turn = output.is_busy && output.lane == packet.out_lane;
            packet.head_since = if in_turn { output.until } else { self.now };
        }
        out
    }

    /// Queues a packet at a switch at its output. Returns the output.
    pub(super) fn wait(&mut self, id: u32) -> u32 {
        let packet = &mut self.packets[id];
        let out = packet.out;
        let fifo = packet.at * LANES + u32::from(packet.lane);
        self.queue_entries[id as usize] =
            QueueEntry { next: NONE, fifo, bytes: packet.bytes(), next_blocks: 0 };
        let state = self.lanes.get_mut(out, packet.out_lane);
        if let Some(last) = self.outputs[out as usize].append(state, id, packet) {
            let before = &mut self.queue_entries[last as usize];
            (before.next, before.next_blocks) = (id, packet.blocks());
        }
        out
    }

    /// Starts a transmission, if the output is idle and a packet may go.
    #[inline]
    pub(super) fn try_send(&mut self, out: u32) {
        let output = &mut self.outputs[out as usize];
        if output.is_busy {
            return;
        }
        if output.waiting.contains(VirtualLane::MANAGEMENT) {
            return self.begin(out, VirtualLane::MANAGEMENT);
        }
        let ready = output.ready;
        let chosen = if output.is_loopback { ready.first() } else { output.arbiter.choose(ready) };
        if let Some(lane) = chosen {
            self.begin(out, lane);
        }
    }

    /// Starts to send the first packet of a lane.
    fn begin(&mut self, out: u32, lane: VirtualLane) {
        let output = &mut self.outputs[out as usize];
        let state = self.lanes.get_mut(out, lane);
        let waiting = state.first;
        // The packet, its buffer, and the next in the queue.
        let (id, QueueEntry { next, fifo, bytes, next_blocks }) = if output.is_switch {
            (waiting, self.queue_entries[waiting as usize])
        } else {
            let sending = &mut self.fifos[waiting as usize];
            sending.status = QueueStatus::Sending;
            let (id, next) = (std::mem::replace(&mut sending.first, NONE), sending.next);
            let packet = &self.packets[id];
            if sending.is_last {
                self.notices.push(WorkloadNotice::Sent(self.messages[packet.message].message));
            }
            let next_blocks = self.fifos.get(next as usize).map_or(0, |next| next.blocks);
            (id, QueueEntry { next, fifo: waiting, bytes: packet.bytes(), next_blocks })
        };
        let blocks = blocks_of(bytes);
        let until = self.now + output.pace.time(bytes.into());
        (output.is_busy, output.lane, output.blocks) = (true, lane, blocks);
        (output.fifo, output.until) = (fifo, until);
        if lane != VirtualLane::MANAGEMENT && !output.is_loopback {
            debug_assert!(state.credits >= blocks.into(), "a packet starts only with credits for all of it");
            state.credits -= u16::from(blocks);
            output.arbiter.sent(blocks.into());
        }
        state.bytes += u32::from(bytes);
        let is_full = state.bytes > LANE_BYTES_MAX;
        state.first = next;
        if next == NONE {
            output.clear(lane);
        } else {
            state.need = next_blocks.into();
            output.set_ready(lane, state.has_room());
            if !output.is_switch {
                self.packets[self.fifos[next as usize].first].head_since = until;
            }
        }
        let comes = if output.to_switch { self.now + output.pace.time(ROUTED_BYTES.into()) } else { until };
        let arrival = PacketEvent::Arrive { port: output.to, packet: id };
        let is_switch = output.is_switch;
        let passage = self.settings.device + self.wire(out);
        self.totals.hops += 1;
        self.at(comes + passage.ps(), arrival);
        self.at(until, PacketEvent::Left { output: out });
        if is_full {
            self.lanes.put_down(out, lane);
        }
        if is_switch {
            self.free_place(out, lane, blocks);
        }
    }

    /// The delay of the link of an output: cable and error correction.
    fn wire(&self, out: u32) -> Time {
        let output = &self.outputs[out as usize];
        match (output.is_loopback, output.has_fec) {
            (true, _) => Time::ZERO,
            (false, true) => self.settings.cable + self.settings.fec,
            (false, false) => self.settings.cable,
        }
    }

    /// A packet has left: returns its credits and starts the next transmission.
    fn left(&mut self, out: u32) {
        let output = &mut self.outputs[out as usize];
        output.is_busy = false;
        let (fifo, blocks) = (output.fifo, output.blocks);
        if fifo < self.first_source() {
            self.release(fifo / LANES, (fifo % LANES) as u8, blocks, self.now);
            self.leave(fifo);
        } else {
            self.fifos[fifo as usize].status = QueueStatus::Idle;
            self.fill(fifo);
            if self.fifos[fifo as usize].first != NONE {
                self.enqueue(fifo);
            }
        }
        self.try_send(out);
    }

    /// Returns the credits of a packet to the sender on the link.
    fn release(&mut self, port: u32, lane: u8, blocks: u8, when: u64) {
        match lane {
            LOOPBACK => {}
            MANAGEMENT => {
                let held = &mut self.held[port as usize];
                *held = held.saturating_sub(1);
            }
            lane => {
                let sender = self.network.lookups[port as usize].to;
                let lane = sender * LANES + u32::from(lane);
                let delay = self.wire(sender) + self.settings.credit;
                self.at(when + delay.ps(), PacketEvent::Credit { lane, blocks });
            }
        }
    }

    fn give_back(&mut self, lane: u32, blocks: u8) {
        let (out, lane) = (lane / LANES, VirtualLane::from_wire((lane % LANES) as u8).unwrap_or_default());
        let state = self.lanes.get_mut(out, lane);
        state.credits += u16::from(blocks);
        debug_assert!(
            state.credits <= self.capacity[out as usize],
            "a lane has at most the credits of its buffer"
        );
        if state.first != NONE {
            self.outputs[out as usize].set_ready(lane, state.has_room());
            self.try_send(out);
        }
    }

    fn arrive(&mut self, at: u32, id: u32) {
        let is_loopback = self.is_loopback(id);
        let packet = &mut self.packets[id];
        (packet.at, packet.lane) = (at, if is_loopback { LOOPBACK } else { packet.out_lane.to_wire() });
        packet.hops += 1;
        let lookup = &self.network.lookups[at as usize];
        if lookup.kind == PortKind::Adapter {
            return self.arrive_at_adapter(id);
        }
        if packet.lane == MANAGEMENT {
            let held = &mut self.held[at as usize];
            if *held >= self.settings.management_packets {
                return self.lose(id, DropReason::NoRoom);
            }
            *held += 1;
        }
        // When the tail arrives; the routed headers are already here.
        let rest = lookup.pace.time(packet.bytes().into()) - lookup.pace.time(ROUTED_BYTES.into());
        let tail = self.now + rest;
        let step = match usize::from(packet.hops) <= HOPS_MAX {
            true => self.network.next_hop(at, &packet.headers),
            false => Err(DropReason::HopLimit),
        };
        match step {
            Ok(NextHop::Out(out, lane)) => {
                (packet.out, packet.out_lane) = (out, lane);
                self.store(id, tail);
            }
            Ok(NextHop::Local(port)) => {
                packet.out = port;
                self.at(tail, PacketEvent::Take { packet: id });
            }
            Err(reason) => self.drop_at_port(id, reason, tail),
        }
    }

    /// Whether a packet stays inside an adapter.
    pub(super) fn is_loopback(&self, packet: u32) -> bool {
        self.packets[packet].out as usize >= self.network.ports.len()
    }

    /// Hands a packet over to its switch once the output can send it without waiting for bytes. The tail of the packet
    /// arrives at `tail`.
    fn store(&mut self, id: u32, tail: u64) {
        let packet = &self.packets[id];
        let takes = self.outputs[packet.out as usize].pace.time(packet.bytes().into());
        // If it starts now or later, the output never runs ahead of the arriving bytes.
        let ready = tail.saturating_sub(takes);
        if ready > self.now {
            return self.at(ready, PacketEvent::Ready { packet: id });
        }
        self.enter(id);
    }

    fn take_at_switch(&mut self, id: u32) {
        let packet = &self.packets[id];
        if packet.headers.sl().is_some() && !self.network.accepts(packet.out, packet.headers.pkey) {
            return self.drop_at_port(id, DropReason::PartitionAtReceiver, self.now);
        }
        self.deliver(id);
    }

    fn arrive_at_adapter(&mut self, id: u32) {
        let packet = &self.packets[id];
        let (at, headers) = (packet.at, packet.headers);
        let reason = if usize::from(packet.hops) > HOPS_MAX {
            Some(DropReason::HopLimit)
        } else if !self.network.owns(at, headers.to) {
            Some(DropReason::WrongPort)
        } else if headers.sl().is_some() && !self.network.accepts(at, headers.pkey) {
            Some(DropReason::PartitionAtReceiver)
        } else {
            None
        };
        match reason {
            Some(reason) => self.drop_at_port(id, reason, self.now),
            None if self.drains[at as usize] || packet.lane == MANAGEMENT => self.deliver(id),
            None => self.park(id),
        }
    }

    /// Keeps a packet in its buffer until the receiver drains.
    fn park(&mut self, id: u32) {
        let packet = &mut self.packets[id];
        packet.uncontended = false;
        self.queue_entries[id as usize] = QueueEntry::EMPTY;
        let fifo = packet.at * LANES + u32::from(packet.lane) % LANES;
        let queue = &mut self.fifos[fifo as usize];
        let last = std::mem::replace(&mut queue.last, id);
        if queue.first == NONE {
            queue.first = id;
        } else {
            self.queue_entries[last as usize].next = id;
        }
    }

    pub(super) fn set_draining(&mut self, port: u32, drains: bool) {
        self.drains[port as usize] = drains;
        if !drains || self.network.lookups[port as usize].kind != PortKind::Adapter {
            return;
        }
        for fifo in port * LANES..(port + 1) * LANES {
            let mut next = std::mem::replace(&mut self.fifos[fifo as usize], Fifo::EMPTY).first;
            while next != NONE {
                let id = next;
                next = self.queue_entries[id as usize].next;
                self.deliver(id);
            }
        }
    }

    fn deliver(&mut self, id: u32) {
        let packet = self.packets[id];
        self.release(packet.at, packet.lane, packet.blocks(), self.now);
        self.totals.delivered += 1;
        let now = Time::from_ps(self.now);
        let posted = &self.messages[packet.message];
        let measure = &mut self.measures[usize::from(posted.message.tag.0)];
        measure.delivered += 1;
        measure.bytes += u64::from(packet.headers.payload);
        measure.wire_bytes += u64::from(packet.bytes());
        measure.from_post.record(now - Time::from_ps(posted.at));
        measure.from_head.record(now - Time::from_ps(packet.head_since));
        if packet.uncontended {
            measure.uncontended.record(now - Time::from_ps(packet.head_since));
        }
        let interval = (self.now / self.settings.interval.ps()) as usize;
        if interval >= measure.interval_bytes.len() {
            measure.interval_bytes.resize(interval + 1, 0);
        }
        measure.interval_bytes[interval] += u64::from(packet.headers.payload);
        self.packets.free(id);
        self.close(packet.message, None);
    }

    /// Drops a packet that occupies a buffer. Its credits return when its tail has arrived.
    fn drop_at_port(&mut self, id: u32, reason: DropReason, tail: u64) {
        let packet = &self.packets[id];
        self.release(packet.at, packet.lane, packet.blocks(), tail);
        self.lose(id, reason);
    }

    fn lose(&mut self, id: u32, reason: DropReason) {
        let message = self.packets[id].message;
        let tag = self.messages[message].message.tag;
        self.totals.dropped += 1;
        *self.measures[usize::from(tag.0)].drops.entry(reason).or_default() += 1;
        self.packets.free(id);
        self.close(message, Some(reason));
    }

    /// Closes one packet of a message; after the last one the workload is notified.
    fn close(&mut self, id: u32, lost: Option<DropReason>) {
        let posted = &mut self.messages[id];
        posted.lost = posted.lost.or(lost);
        posted.open -= 1;
        if posted.open > 0 {
            return;
        }
        let (message, at) = (posted.message, posted.at);
        match posted.lost {
            Some(reason) => self.notices.push(WorkloadNotice::Lost(message, reason)),
            None => {
                let measure = &mut self.measures[usize::from(message.tag.0)];
                measure.messages.record(Time::from_ps(self.now - at));
                self.notices.push(WorkloadNotice::Delivered(message, at));
            }
        }
        self.messages.free(id);
    }
}
