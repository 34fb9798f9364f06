//! The queues of the [link model](crate::link_model), and what happens at its moments: a packet has been sent, a packet arrives.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fabric_model::MacAddress;
use ib_wire::{LaneSet, Lid, LidAddress, VirtualLane};

use crate::device::PortId;
use crate::fabric::{DropReason, Fabric};
use crate::forwarding::{HOPS_MAX, PacketKind, Step};
use crate::link_model::{LinkLoad, LinkModel, time_on_link, waiting_bytes_max};
use crate::traffic::{Arbiter, ArbitrationTables, BLOCK_BYTES};
use crate::vf_frames::{FunctionId, VirtualFunction};

/// Copies of multicast packets of one function inside the fabric: bounds the memory that a looping multicast tree takes.
const COPIES_MAX: u32 = 65_536;

const LANES: usize = 16;

/// Everything that is inside the fabric.
#[derive(Debug)]
pub(crate) struct LinkQueues {
    pub model: LinkModel,
    /// By port; made when first used.
    outputs: Vec<Option<Box<Output>>>,
    /// What happens next, in order of time; at one moment in the order in which it was decided.
    events: BTreeMap<(Duration, u64), Event>,
    events_made: u64,
    packets: BTreeMap<PacketNumber, CarriedPacket>,
    packets_made: PacketNumber,
    /// The functions that have packets inside the fabric.
    senders: BTreeMap<FunctionId, SenderLoad>,
}

type PacketNumber = u64;

#[derive(Debug)]
enum Event {
    /// The link of this port has sent a packet completely.
    Sent(PortId),
    /// A copy enters a device through this port.
    Arrival(PortId, PacketCopy),
}

/// An output port.
#[derive(Debug)]
struct Output {
    arbiter: Arbiter,
    tables: Arc<ArbitrationTables>,
    queues: [VecDeque<PacketCopy>; LANES],
    /// Lanes whose queue is not empty.
    ready: LaneSet,
    sending: Option<PacketCopy>,
}

impl Output {
    fn new(tables: ArbitrationTables) -> Self {
        let tables = Arc::new(tables);
        let arbiter = Arbiter::new(Arc::clone(&tables));
        Self { arbiter, tables, queues: Default::default(), ready: LaneSet::default(), sending: None }
    }

    fn take(&mut self, lane: VirtualLane) -> Option<PacketCopy> {
        let queue = &mut self.queues[lane.index()];
        let copy = queue.pop_front();
        if queue.is_empty() {
            self.ready.remove(lane);
        }
        copy
    }
}

/// A packet on its way; one of several, if it has been multicast.
#[derive(Clone, Copy, Debug)]
struct PacketCopy {
    packet: PacketNumber,
    kind: PacketKind,
    /// Size on a link.
    bytes: u32,
    /// Devices that it has entered.
    hops: u8,
}

/// A frame or packet of a function, shared by its copies.
#[derive(Debug)]
struct CarriedPacket {
    content: Content,
    sender: FunctionId,
    /// Its lane at the port of its sender.
    lane: VirtualLane,
    bytes: u32,
    data: Box<[u8]>,
    /// Functions that a multicast frame has reached: one that shares several groups with the sender gets it once.
    reached: Vec<FunctionId>,
    copies: u32,
    /// Copies that wait at a port or are being sent.
    waiting: u32,
}

/// What to deliver, and the rules for it.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A frame to an address, or to groups; `sender` as it was then.
    Frame { sender: VirtualFunction, destination: MacAddress },
    /// An InfiniBand packet of the port with this LID.
    Packet { source: Lid },
}

/// What a function has inside the fabric.
#[derive(Debug, Default)]
struct SenderLoad {
    /// Bytes that wait at ports, by lane at its own port.
    waiting: [u64; LANES],
    copies: u32,
    is_congested: bool,
}

impl LinkQueues {
    pub fn new(model: LinkModel) -> Self {
        Self {
            model,
            outputs: Vec::new(),
            events: BTreeMap::new(),
            events_made: 0,
            packets: BTreeMap::new(),
            packets_made: 0,
            senders: BTreeMap::new(),
        }
    }

    /// When something happens next.
    pub fn next_event(&self) -> Option<Duration> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    pub fn load(&self) -> LinkLoad {
        let senders = self.senders.values();
        LinkLoad {
            packets: self.packets.len() as u64,
            waiting_bytes: senders.clone().flat_map(|sender| sender.waiting).sum(),
            congested_functions: senders.filter(|sender| sender.is_congested).count() as u64,
        }
    }

    pub fn is_congested(&self, function: FunctionId) -> bool {
        self.senders.get(&function).is_some_and(|sender| sender.is_congested)
    }

    fn at(&mut self, moment: Duration, event: Event) {
        self.events_made += 1;
        self.events.insert((moment, self.events_made), event);
    }

    fn take_due(&mut self, until: Duration) -> Option<(Duration, Event)> {
        let next = self.events.first_entry().filter(|next| next.key().0 <= until)?;
        let ((moment, _), event) = next.remove_entry();
        Some((moment, event))
    }

    /// Counts one copy more of a packet.
    fn add_copy(&mut self, number: PacketNumber) {
        if let Some(packet) = self.packets.get_mut(&number) {
            packet.copies += 1;
            self.senders.entry(packet.sender).or_default().copies += 1;
        }
    }

    /// Whether a switch may make one copy more of a packet.
    fn may_copy(&self, number: PacketNumber) -> bool {
        let packet = self.packets.get(&number);
        packet
            .and_then(|packet| self.senders.get(&packet.sender))
            .is_some_and(|sender| sender.copies < COPIES_MAX)
    }

    /// A copy is delivered or dropped. The packet is forgotten with the last one.
    fn remove_copy(&mut self, number: PacketNumber) {
        let Some(packet) = self.packets.get_mut(&number) else { return };
        packet.copies -= 1;
        let (function, is_last) = (packet.sender, packet.copies == 0);
        if is_last {
            self.packets.remove(&number);
        }
        let Some(sender) = self.senders.get_mut(&function) else { return };
        sender.copies -= 1;
        if sender.copies == 0 {
            self.senders.remove(&function);
        }
    }

    /// A copy begins to wait at a port. A packet counts once, whatever its copies.
    fn begin_wait(&mut self, number: PacketNumber, bytes_max: u64) {
        let Some(packet) = self.packets.get_mut(&number) else { return };
        packet.waiting += 1;
        if packet.waiting == 1
            && let Some(sender) = self.senders.get_mut(&packet.sender)
        {
            let waiting = &mut sender.waiting[packet.lane.index()];
            *waiting += u64::from(packet.bytes);
            sender.is_congested |= *waiting >= bytes_max;
        }
    }

    fn end_wait(&mut self, number: PacketNumber, bytes_max: u64) {
        let Some(packet) = self.packets.get_mut(&number) else { return };
        packet.waiting -= 1;
        if packet.waiting == 0
            && let Some(sender) = self.senders.get_mut(&packet.sender)
        {
            sender.waiting[packet.lane.index()] -= u64::from(packet.bytes);
            // Not at the bound itself, so that the caller does not change its mind for every packet.
            sender.is_congested &= sender.waiting.iter().any(|waiting| *waiting > bytes_max / 2);
        }
    }
}

/// Headers and checksums besides the payload of a frame: LRH 8, BTH 12, DETH 8, ICRC 4, VCRC 2.
const FRAME_OVERHEAD: usize = 34;

/// The checksum that packets have on links only.
const VCRC: usize = 2;

impl Fabric {
    /// Whether what a port sends to a LID takes time.
    pub(crate) fn is_modelled(&self, from: PortId, to: LidAddress) -> bool {
        let is_own = |lid| self.port(from).owns(lid);
        self.link_queues.is_some() && !matches!(to, LidAddress::Unicast(lid) if is_own(lid))
    }

    /// Lets a packet of a function wait at its port: one copy, or one for each of several groups. Copies without a lane are dropped
    /// and counted.
    pub(crate) fn queue_at_sender(
        &mut self,
        from: FunctionId,
        content: Content,
        kinds: &[PacketKind],
        data: &[u8],
    ) {
        let port = from.port();
        let overhead = if matches!(content, Content::Frame { .. }) { FRAME_OVERHEAD } else { VCRC };
        // Packets fit the MTU.
        let bytes = (data.len() + overhead) as u32;
        let mut leaving = Vec::with_capacity(kinds.len());
        for kind in kinds {
            self.reached = port;
            match self.inject(port, kind) {
                Ok(lane) => leaving.push((kind, lane)),
                Err(reason) => self.count_drop_of(from, &content, reason),
            }
        }
        let Some((_, lane)) = leaving.first().copied() else { return };
        let data = data.into();
        let reached = Vec::new();
        let packet =
            CarriedPacket { content, sender: from, lane, bytes, data, reached, copies: 0, waiting: 0 };
        let Some(queues) = &mut self.link_queues else { return };
        queues.packets_made += 1;
        let number = queues.packets_made;
        queues.packets.insert(number, packet);
        // Before the first can be gone.
        for _ in &leaving {
            queues.add_copy(number);
        }
        for (kind, lane) in leaving {
            let copy = PacketCopy { packet: number, kind: *kind, bytes, hops: 0 };
            self.enqueue(self.now, port, lane, copy);
        }
    }

    /// Runs what happens on links up to a moment, in order of time.
    pub(crate) fn run_links(&mut self, until: Duration) {
        while let Some((moment, event)) = self.link_queues.as_mut().and_then(|queues| queues.take_due(until))
        {
            match event {
                Event::Sent(port) => self.finish_sending(moment, port),
                Event::Arrival(port, copy) => self.enter_device(moment, port, copy),
            }
        }
    }

    fn waiting_bytes_max(&self, number: PacketNumber) -> u64 {
        let Some(queues) = &self.link_queues else { return u64::MAX };
        let port = queues.packets.get(&number).map(|packet| packet.sender.port());
        port.map_or(u64::MAX, |port| waiting_bytes_max(self.modelled_rate(&queues.model, port)))
    }

    fn enqueue(&mut self, moment: Duration, port: PortId, lane: VirtualLane, copy: PacketCopy) {
        let bytes_max = self.waiting_bytes_max(copy.packet);
        let output = self.refresh_output(port);
        output.queues[lane.index()].push_back(copy);
        output.ready.insert(lane);
        if let Some(queues) = &mut self.link_queues {
            queues.begin_wait(copy.packet, bytes_max);
        }
        self.send_next(moment, port);
    }

    /// The output of a port, with the arbitration tables of this moment.
    fn refresh_output(&mut self, port: PortId) -> &mut Output {
        let tables = self.arbitration_tables(port);
        let queues = self.link_queues.as_mut().expect("only the model uses outputs");
        if queues.outputs.len() <= port.index() {
            queues.outputs.resize_with(port.index() + 1, || None);
        }
        let output =
            queues.outputs[port.index()].get_or_insert_with(|| Box::new(Output::new(tables.clone())));
        if *output.tables != tables {
            output.tables = Arc::new(tables);
            output.arbiter = Arbiter::new(Arc::clone(&output.tables));
        }
        output
    }

    /// Begins to send the next packet of a port that is idle.
    fn send_next(&mut self, moment: Duration, port: PortId) {
        loop {
            let output = self.refresh_output(port);
            if output.sending.is_some() {
                return;
            }
            // Also without any, which ends the visit of the current entry (A-LANE-18).
            let ready = output.ready;
            let (copy, is_served) = match output.arbiter.choose(ready) {
                Some(lane) => (output.take(lane), true),
                None => (ready.first().and_then(|lane| output.take(lane)), false),
            };
            let Some(copy) = copy else { return };
            if !is_served {
                self.reached = port;
                self.port_mut(port).counters.transmit_discards += 1;
                self.end_wait(copy);
                self.lose(copy, DropReason::Expired);
                continue;
            }
            if self.other_end(port, &copy.kind).is_err() {
                self.end_wait(copy);
                self.cross_modelled(moment, port, copy);
                continue;
            }
            let output = self.refresh_output(port);
            output.arbiter.sent(copy.bytes.div_ceil(BLOCK_BYTES) as u16);
            output.sending = Some(copy);
            let Some(queues) = &self.link_queues else { return };
            let done = moment + time_on_link(copy.bytes, self.modelled_rate(&queues.model, port));
            if let Some(queues) = &mut self.link_queues {
                queues.at(done, Event::Sent(port));
            }
            return;
        }
    }

    fn end_wait(&mut self, copy: PacketCopy) {
        let bytes_max = self.waiting_bytes_max(copy.packet);
        if let Some(queues) = &mut self.link_queues {
            queues.end_wait(copy.packet, bytes_max);
        }
    }

    fn finish_sending(&mut self, moment: Duration, port: PortId) {
        if let Some(copy) = self.refresh_output(port).sending.take() {
            self.end_wait(copy);
            self.cross_modelled(moment, port, copy);
        }
        self.send_next(moment, port);
    }

    /// Carries a copy across a link, with the checks and counters of both ends.
    fn cross_modelled(&mut self, moment: Duration, port: PortId, copy: PacketCopy) {
        self.reached = port;
        match self.cross_link(port, &copy.kind) {
            Ok(peer) => {
                if let Some(queues) = &mut self.link_queues {
                    queues.at(moment.saturating_add(queues.model.latency), Event::Arrival(peer, copy));
                }
            }
            Err(reason) => self.lose(copy, reason),
        }
    }

    fn enter_device(&mut self, moment: Duration, at: PortId, copy: PacketCopy) {
        self.reached = at;
        let copy = PacketCopy { hops: copy.hops + 1, ..copy };
        let PacketKind::Data { flow, .. } = copy.kind else { return };
        match flow.destination {
            _ if usize::from(copy.hops) > HOPS_MAX => self.lose(copy, DropReason::HopLimit),
            LidAddress::Unicast(lid) => match self.step(at, lid, &copy.kind) {
                Ok(Step::Out(out, lane)) => self.enqueue(moment, out, lane, copy),
                Ok(Step::End(arrival)) => self.deliver_copy(copy, arrival.end),
                Err(reason) => self.lose(copy, reason),
            },
            LidAddress::Multicast(group) => {
                let (mut ends, mut exits) = (Vec::new(), Vec::new());
                let branched =
                    self.branch(at, group, &copy.kind, &mut ends, |fabric, out, lane| match lane {
                        Ok(lane) => exits.push((out, lane)),
                        Err(reason) => fabric.count_copy_drop(copy, reason),
                    });
                if let Err(reason) = branched {
                    self.count_copy_drop(copy, reason);
                }
                for (out, lane) in exits {
                    match &mut self.link_queues {
                        Some(queues) if queues.may_copy(copy.packet) => {
                            queues.add_copy(copy.packet);
                            self.enqueue(moment, out, lane, copy);
                        }
                        _ => {
                            self.reached = out;
                            self.count_copy_drop(copy, DropReason::HopLimit);
                        }
                    }
                }
                for end in ends {
                    self.arrive(copy, end);
                }
                self.forget(copy);
            }
            LidAddress::Permissive => self.lose(copy, DropReason::NoRoute),
        }
    }

    fn deliver_copy(&mut self, copy: PacketCopy, end: PortId) {
        self.arrive(copy, end);
        self.forget(copy);
    }

    /// Hands a copy over to the functions at its end port that it is for.
    fn arrive(&mut self, copy: PacketCopy, end: PortId) {
        let PacketKind::Data { flow, .. } = copy.kind else { return };
        let found = self.link_queues.as_mut().and_then(|queues| queues.packets.get_mut(&copy.packet));
        let Some(packet) = found else { return };
        let (sender, content) = (packet.sender, packet.content.clone());
        let (data, mut reached) = (std::mem::take(&mut packet.data), std::mem::take(&mut packet.reached));
        let arrived = match &content {
            Content::Frame { sender, destination } => {
                self.arrive_frame(sender, *destination, end, &flow, &data, &mut reached)
            }
            Content::Packet { source } => self.arrive_packet(sender, *source, end, &flow, &data),
        };
        if let Err(reason) = arrived {
            self.count_drop_of(sender, &content, reason);
        }
        let queues = self.link_queues.as_mut();
        if let Some(packet) = queues.and_then(|queues| queues.packets.get_mut(&copy.packet)) {
            (packet.data, packet.reached) = (data, reached);
        }
    }

    fn lose(&mut self, copy: PacketCopy, reason: DropReason) {
        self.count_copy_drop(copy, reason);
        self.forget(copy);
    }

    fn forget(&mut self, copy: PacketCopy) {
        if let Some(queues) = &mut self.link_queues {
            queues.remove_copy(copy.packet);
        }
    }

    /// Counts a dropped copy for the function that sent it.
    fn count_copy_drop(&mut self, copy: PacketCopy, reason: DropReason) {
        let packet = self.link_queues.as_ref().and_then(|queues| queues.packets.get(&copy.packet));
        if let Some((sender, content)) = packet.map(|packet| (packet.sender, packet.content.clone())) {
            self.count_drop_of(sender, &content, reason);
        }
    }

    fn count_drop_of(&mut self, sender: FunctionId, content: &Content, reason: DropReason) {
        match content {
            Content::Frame { .. } => self.count_frame_drop(sender, reason),
            Content::Packet { .. } => self.count_packet_drop(sender, reason),
        }
    }
}
