//! How packets move: what happens at each event.

use super::network::{Kind, MANAGEMENT, NONE, Step};
use super::settings::ROUTED_BYTES;
use super::simulation::{Notice, Simulation};
use super::state::{Doing, Fifo, LANES};
use super::time::Time;
use crate::fabric::DropReason;
use crate::way::HOPS_MAX;

/// The lane of packets that stay inside an adapter.
pub(super) const INSIDE: u8 = 16;

/// What happens, in the order in which it does at the same moment: a link that falls free knows of all that has come by
/// then. Of packets that come to a free link at the same moment, the first in the order of ports begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Room is given back to a lane of an output.
    Credit { lane: u32, blocks: u8 },
    /// The head of a packet is at a switch, or all of it at an adapter.
    Arrive { port: u32, packet: u32 },
    /// A packet has come as far as it has to before it may leave.
    Ready { packet: u32 },
    /// All of a packet is at a switch that it is for.
    Take { packet: u32 },
    /// A workload wants to know.
    Wake { place: u32 },
    /// A packet has left by an output.
    Left { output: u32 },
}

impl What {
    /// A number of 64 bits: the kind in the upper four, ports and lanes in 28.
    #[inline]
    fn pack(self) -> u64 {
        match self {
            Self::Credit { lane, blocks } => u64::from(lane) << 8 | u64::from(blocks),
            Self::Arrive { port, packet } => 1 << 60 | u64::from(port) << 32 | u64::from(packet),
            Self::Ready { packet } => 2 << 60 | u64::from(packet),
            Self::Take { packet } => 3 << 60 | u64::from(packet),
            Self::Wake { place } => 4 << 60 | u64::from(place),
            Self::Left { output } => 5 << 60 | u64::from(output),
        }
    }

    #[inline]
    pub fn unpack(raw: u64) -> Self {
        let low = raw as u32;
        match raw >> 60 {
            0 => Self::Credit { lane: (raw >> 8) as u32, blocks: raw as u8 },
            1 => Self::Arrive { port: (raw >> 32) as u32 & 0x0fff_ffff, packet: low },
            2 => Self::Ready { packet: low },
            3 => Self::Take { packet: low },
            4 => Self::Wake { place: low },
            _ => Self::Left { output: low },
        }
    }
}

impl Simulation {
    #[inline]
    pub(super) fn handle(&mut self, what: u64) {
        match What::unpack(what) {
            What::Credit { lane, blocks } => self.give_back(lane, blocks),
            What::Arrive { packet, .. } => self.arrive(packet),
            What::Ready { packet } => {
                let out = self.wait(packet);
                self.try_send(out);
            }
            What::Take { packet } => self.take_at_switch(packet),
            What::Wake { place } => {
                self.notices.push(Notice::Woken(self.wakes[place]));
                self.wakes.free(place);
            }
            What::Left { output } => self.left(output),
        }
    }

    fn at(&mut self, time: u64, what: What) {
        self.queue.push(time, what.pack());
    }

    pub(super) fn wake(&mut self, at: u64, token: u64) {
        let place = self.wakes.insert(token);
        self.at(at.max(self.now), What::Wake { place });
    }

    /// Number of the first queue that is a function's.
    pub(super) fn first_source(&self) -> u32 {
        self.network.ports.len() as u32 * LANES
    }

    /// The first packet of a function's queue waits for its turn. The output by which it leaves.
    pub(super) fn enqueue(&mut self, fifo: u32) -> u32 {
        let waiting = &mut self.fifos[fifo as usize];
        (waiting.doing, waiting.next) = (Doing::Waiting, NONE);
        let packet = &mut self.packets[waiting.first];
        waiting.blocks = packet.blocks;
        let out = packet.out;
        let output = &mut self.outputs[out as usize];
        if let Some(last) = output.append(fifo, packet) {
            self.fifos[last as usize].next = fifo;
        } else {
            let in_turn = output.is_busy && output.lane == packet.out_lane;
            packet.head_since = if in_turn { output.until } else { self.now };
        }
        out
    }

    /// A packet at a switch waits for its turn. The output by which it leaves.
    fn wait(&mut self, id: u32) -> u32 {
        let packet = &mut self.packets[id];
        packet.next = NONE;
        let out = packet.out;
        if let Some(last) = self.outputs[out as usize].append(id, packet) {
            self.packets[last].next = id;
        }
        out
    }

    /// Begins to send, if the output is free and somebody may.
    #[inline]
    pub(super) fn try_send(&mut self, out: u32) {
        let output = &mut self.outputs[out as usize];
        if output.is_busy {
            return;
        }
        if output.waiting >> MANAGEMENT & 1 == 1 {
            return self.begin(out, MANAGEMENT);
        }
        let (mut ready, mut left) = (0, output.waiting);
        while left != 0 {
            let lane = left.trailing_zeros();
            left &= left - 1;
            let state = &output.lanes[lane as usize];
            ready |= u16::from(state.credits >= state.need) << lane;
        }
        let chosen = if output.is_inside { (ready != 0).then_some(0) } else { output.arbiter.choose(ready) };
        if let Some(lane) = chosen {
            self.begin(out, lane);
        }
    }

    /// Begins to send the packet whose turn it is in a lane.
    fn begin(&mut self, out: u32, lane: u8) {
        let first_source = self.first_source();
        let output = &mut self.outputs[out as usize];
        let state = &mut output.lanes[usize::from(lane)];
        let waiting = state.first;
        // Where it comes from, and who is next.
        let (id, fifo, next) = if output.is_switch {
            let packet = &self.packets[waiting];
            (waiting, packet.at * LANES + u32::from(packet.lane), packet.next)
        } else {
            let sending = &mut self.fifos[waiting as usize];
            sending.doing = Doing::Sending;
            (std::mem::replace(&mut sending.first, NONE), waiting, sending.next)
        };
        state.first = next;
        let packet = &mut self.packets[id];
        let takes = output.pace.time(packet.bytes.into());
        let until = self.now + takes;
        (output.is_busy, output.lane, output.blocks) = (true, lane, packet.blocks);
        (output.fifo, output.until) = (fifo, until);
        if lane != MANAGEMENT && !output.is_inside {
            debug_assert!(state.credits >= packet.blocks.into(), "a packet is begun only with room for it");
            state.credits -= u16::from(packet.blocks);
            output.arbiter.sent(packet.blocks.into());
        }
        state.bytes += u64::from(packet.bytes);
        self.totals.hops += 1;
        packet.at = output.to;
        packet.hops += 1;
        packet.lane = if output.is_inside { INSIDE } else { lane };
        let passage = if output.is_inside { Time::ZERO } else { self.settings.cable } + self.settings.device;
        packet.tail = until + passage.ps();
        let arrives = if output.to_switch {
            self.now + output.pace.time(ROUTED_BYTES.into()) + passage.ps()
        } else {
            packet.tail
        };
        if packet.is_last && fifo >= first_source {
            self.notices.push(Notice::Sent(self.messages[packet.message].message));
        }
        let arrival = What::Arrive { port: packet.at, packet: id };
        if next == NONE {
            output.waiting &= !(1 << lane);
        } else if output.is_switch {
            state.need = self.packets[next].blocks.into();
        } else {
            let waiting = &self.fifos[next as usize];
            state.need = waiting.blocks.into();
            self.packets[waiting.first].head_since = until;
        }
        self.at(arrives, arrival);
        self.at(until, What::Left { output: out });
    }

    /// A packet has left: its room is given back, and the next one may go.
    fn left(&mut self, out: u32) {
        let output = &mut self.outputs[out as usize];
        output.is_busy = false;
        let (fifo, blocks) = (output.fifo, output.blocks);
        if fifo < self.first_source() {
            self.release(fifo / LANES, (fifo % LANES) as u8, blocks, self.now);
        } else {
            self.fifos[fifo as usize].doing = Doing::Nothing;
            self.fill(fifo);
            if self.fifos[fifo as usize].first != NONE {
                self.enqueue(fifo);
            }
        }
        self.try_send(out);
    }

    /// Gives room of a port's lane back to who sends there.
    fn release(&mut self, port: u32, lane: u8, blocks: u8, when: u64) {
        match lane {
            INSIDE => {}
            MANAGEMENT => {
                let held = &mut self.held[port as usize];
                *held = held.saturating_sub(1);
            }
            lane => {
                let lane = self.network.gates[port as usize].to * LANES + u32::from(lane);
                let delay = self.settings.cable + self.settings.credit;
                self.at(when + delay.ps(), What::Credit { lane, blocks });
            }
        }
    }

    fn give_back(&mut self, lane: u32, blocks: u8) {
        let out = lane / LANES;
        let state = &mut self.outputs[out as usize].lanes[(lane % LANES) as usize];
        state.credits += u16::from(blocks);
        debug_assert!(state.credits <= self.capacity[out as usize], "no more room than there is");
        if state.first != NONE {
            self.try_send(out);
        }
    }

    fn arrive(&mut self, id: u32) {
        let packet = &self.packets[id];
        let at = packet.at as usize;
        if self.network.gates[at].kind == Kind::Adapter {
            return self.arrive_at_adapter(id);
        }
        if packet.lane == MANAGEMENT {
            if self.held[at] >= self.settings.management_packets {
                return self.lose(id, DropReason::NoRoom);
            }
            self.held[at] += 1;
        }
        let step = match usize::from(packet.hops) <= HOPS_MAX {
            true => self.network.step(packet.at, &packet.headers),
            false => Err(DropReason::HopLimit),
        };
        match step {
            Ok(Step::Out(out, lane)) => self.store(id, out, lane),
            Ok(Step::Own(port)) => {
                let tail = packet.tail;
                self.packets[id].out = port;
                self.at(tail.max(self.now), What::Take { packet: id });
            }
            Err(reason) => self.drop_at_port(id, reason),
        }
    }

    /// Keeps a packet in the buffer of the lane it came by until its turn comes at an output.
    fn store(&mut self, id: u32, out: u32, lane: u8) {
        let packet = &mut self.packets[id];
        (packet.out, packet.out_lane) = (out, lane);
        let takes = self.outputs[out as usize].pace.time(packet.bytes.into());
        // Begun at this moment or later, it never has to wait for its own bytes.
        let ready = packet.tail.saturating_sub(takes);
        if ready > self.now {
            return self.at(ready, What::Ready { packet: id });
        }
        let out = self.wait(id);
        self.try_send(out);
    }

    fn take_at_switch(&mut self, id: u32) {
        let packet = &self.packets[id];
        if packet.headers.sl.is_some() && !self.network.accepts(packet.out, packet.headers.pkey) {
            return self.drop_at_port(id, DropReason::PartitionAtReceiver);
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
        } else if headers.sl.is_some() && !self.network.accepts(at, headers.pkey) {
            Some(DropReason::PartitionAtReceiver)
        } else {
            None
        };
        match reason {
            Some(reason) => self.drop_at_port(id, reason),
            None if self.drains[at as usize] || packet.lane == MANAGEMENT => self.deliver(id),
            None => self.park(id),
        }
    }

    /// Keeps a packet in its buffer until its receiver drains.
    fn park(&mut self, id: u32) {
        let packet = &mut self.packets[id];
        (packet.next, packet.alone) = (NONE, false);
        let fifo = packet.at * LANES + u32::from(packet.lane) % LANES;
        let queue = &mut self.fifos[fifo as usize];
        let last = std::mem::replace(&mut queue.last, id);
        if queue.first == NONE {
            queue.first = id;
        } else {
            self.packets[last].next = id;
        }
    }

    pub(super) fn set_draining(&mut self, port: u32, drains: bool) {
        self.drains[port as usize] = drains;
        if !drains || self.network.gates[port as usize].kind != Kind::Adapter {
            return;
        }
        for fifo in port * LANES..(port + 1) * LANES {
            let mut next = std::mem::replace(&mut self.fifos[fifo as usize], Fifo::EMPTY).first;
            while next != NONE {
                let id = next;
                next = self.packets[id].next;
                self.deliver(id);
            }
        }
    }

    fn deliver(&mut self, id: u32) {
        let packet = self.packets[id];
        self.release(packet.at, packet.lane, packet.blocks, self.now);
        self.totals.delivered += 1;
        let now = Time::from_ps(self.now);
        let measure = &mut self.measures[usize::from(packet.tag.0)];
        measure.delivered += 1;
        measure.bytes += u64::from(packet.headers.payload);
        measure.wire_bytes += u64::from(packet.bytes);
        measure.from_post.record(now - Time::from_ps(packet.posted));
        measure.from_head.record(now - Time::from_ps(packet.head_since));
        if packet.alone {
            measure.alone.record(now - Time::from_ps(packet.head_since));
        }
        let slice = (self.now / self.settings.slice.ps()) as usize;
        if slice >= measure.slices.len() {
            measure.slices.resize(slice + 1, 0);
        }
        measure.slices[slice] += u64::from(packet.headers.payload);
        self.packets.free(id);
        self.close(packet.message, None);
    }

    /// Drops a packet that has room at a port, which is given back when all of it has come.
    fn drop_at_port(&mut self, id: u32, reason: DropReason) {
        let packet = &self.packets[id];
        let (at, lane, blocks, tail) = (packet.at, packet.lane, packet.blocks, packet.tail);
        self.release(at, lane, blocks, tail.max(self.now));
        self.lose(id, reason);
    }

    fn lose(&mut self, id: u32, reason: DropReason) {
        let packet = &self.packets[id];
        let message = packet.message;
        self.totals.dropped += 1;
        *self.measures[usize::from(packet.tag.0)].drops.entry(reason).or_default() += 1;
        self.packets.free(id);
        self.close(message, Some(reason));
    }

    /// A packet of a message is done with.
    fn close(&mut self, id: u32, lost: Option<DropReason>) {
        let posted = &mut self.messages[id];
        posted.lost = posted.lost.or(lost);
        posted.open -= 1;
        if posted.open > 0 {
            return;
        }
        let (message, at) = (posted.message, posted.at);
        match posted.lost {
            Some(reason) => self.notices.push(Notice::Lost(message, reason)),
            None => {
                let measure = &mut self.measures[usize::from(message.tag.0)];
                measure.messages.record(Time::from_ps(self.now - at));
                self.notices.push(Notice::Delivered(message, at));
            }
        }
        self.messages.free(id);
    }
}
