//! The way of a packet, link by link: what management sends and what virtual functions send pass the same ports and
//! tables, by the code of this file and no other.

use ib_wire::{
    Datagram, Lid, LidAddress, MulticastLid, PhysicalState, PortNum, PortState, SlToVl, VirtualLane,
};

use crate::counters::{CastKind, MANAGEMENT_PAYLOAD};
use crate::device::{DEFAULT_SL_TO_VL, PortId, lane_count};
use crate::fabric::{DropReason, Fabric};
use crate::notices::Flow;

/// Switches a LID-routed packet may pass. Real packets have no such limit and circle until their lifetime ends;
/// longer than any sane path, short enough to stop a loop at once.
pub(crate) const HOPS_MAX: usize = 64;

/// Copies one multicast packet may turn into: bounds the work of a looping multicast tree.
const MULTICAST_COPIES_MAX: usize = 65_536;

/// Where a packet ended up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// The port it came in by, or the sending port itself.
    pub entered: PortId,
    /// The end port it is for: port 0 of a switch, else `entered`.
    pub end: PortId,
}

/// What a packet needs to pass a port.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PacketKind {
    /// Subnet management: lane 15, passes as soon as the link is up, knows no partition.
    Management,
    /// Everything else: needs active ports, its partition, room for its payload, and a lane on every turn.
    Data {
        flow: Flow,
        cast: CastKind,
        /// Bytes of payload.
        payload: usize,
    },
}

impl PacketKind {
    /// A general management datagram.
    pub fn of(datagram: &Datagram) -> Self {
        let cast = match datagram.dlid {
            LidAddress::Multicast(_) => CastKind::Multicast,
            LidAddress::Unicast(_) | LidAddress::Permissive => CastKind::Unicast,
        };
        Self::Data { flow: Flow::of(datagram), cast, payload: MANAGEMENT_PAYLOAD }
    }

    fn size(&self) -> (CastKind, usize) {
        match self {
            Self::Management => (CastKind::Unicast, MANAGEMENT_PAYLOAD),
            Self::Data { cast, payload, .. } => (*cast, *payload),
        }
    }
}

impl Fabric {
    /// Carries a packet to the port that owns a LID, through the forwarding tables.
    pub(crate) fn route(
        &mut self,
        from: PortId,
        dlid: Lid,
        packet: &PacketKind,
    ) -> Result<Arrival, DropReason> {
        self.reached = from;
        if self.port(from).owns(dlid) {
            return Ok(Arrival { entered: from, end: from });
        }
        let mut at = from;
        if !self.is_switch(from) {
            self.inject(from, packet)?;
            at = self.cross_link(from, packet)?;
        }
        for _ in 0..HOPS_MAX {
            self.reached = at;
            if !self.is_switch(at) {
                return self.receive_at_adapter(at, dlid);
            }
            self.enforce(at, packet, Direction::Inbound)?;
            let out = self.next_hop(at, dlid)?;
            if self.port(out).number == PortNum::MANAGEMENT {
                let owned = self.port(out).owns(dlid);
                return if owned {
                    Ok(Arrival { entered: at, end: out })
                } else {
                    Err(DropReason::WrongPort)
                };
            }
            at = self.relay(at, out, packet)?;
        }
        Err(DropReason::HopLimit)
    }

    /// Carries a packet along the multicast tables and notes the end ports it comes to, the sender's never; `lost` is
    /// told of every copy that comes to nothing.
    pub(crate) fn replicate(
        &mut self,
        from: PortId,
        group: MulticastLid,
        packet: &PacketKind,
        reached: &mut Vec<PortId>,
        mut lost: impl FnMut(&mut Self, DropReason),
    ) {
        let mut pending = Vec::new();
        let mut copies = 0;
        self.reached = from;
        if self.is_switch(from) {
            pending.push(from);
        } else {
            match self.inject(from, packet).and_then(|()| self.cross_link(from, packet)) {
                Ok(at) => pending.push(at),
                Err(reason) => lost(self, reason),
            }
        }
        while let Some(at) = pending.pop() {
            copies += 1;
            self.reached = at;
            if copies > MULTICAST_COPIES_MAX {
                return lost(self, DropReason::HopLimit);
            }
            if !self.is_switch(at) {
                reached.push(at);
                continue;
            }
            if let Err(reason) = self.enforce(at, packet, Direction::Inbound) {
                lost(self, reason);
                continue;
            }
            let Some(exits) = self.multicast_exits(at, group) else {
                self.port_mut(at).counters.relay_errors += 1;
                lost(self, DropReason::NoRoute);
                continue;
            };
            for out in exits {
                if self.port(out).number == PortNum::MANAGEMENT {
                    reached.push(out);
                    continue;
                }
                match self.relay(at, out, packet) {
                    Ok(peer) => pending.push(peer),
                    Err(reason) => lost(self, reason),
                }
            }
        }
    }

    /// An end port accepts only what carries a partition key it holds.
    pub(crate) fn accept_partition(&mut self, end: PortId, flow: &Flow) -> Result<(), DropReason> {
        if self.port(end).accepts(flow.pkey) {
            return Ok(());
        }
        Err(self.refuse_partition(end, flow))
    }

    /// Counts and reports a packet that found no partition key in common at its end.
    pub(crate) fn refuse_partition(&mut self, end: PortId, flow: &Flow) -> DropReason {
        let port = self.port_mut(end);
        port.info.pkey_violations = port.info.pkey_violations.saturating_add(1);
        self.report_bad_pkey(end, *flow);
        // The report was a packet too.
        self.reached = end;
        DropReason::PartitionAtReceiver
    }

    fn receive_at_adapter(&mut self, at: PortId, dlid: Lid) -> Result<Arrival, DropReason> {
        if self.port(at).owns(dlid) {
            return Ok(Arrival { entered: at, end: at });
        }
        self.port_mut(at).counters.receive_errors += 1;
        Err(DropReason::WrongPort)
    }

    /// A switch sends a packet that came in by one port out by another.
    fn relay(&mut self, input: PortId, out: PortId, packet: &PacketKind) -> Result<PortId, DropReason> {
        self.reached = out;
        self.map_lane(input, out, packet)?;
        self.enforce(out, packet, Direction::Outbound)?;
        self.cross_link(out, packet)
    }

    /// The exit port of a switch for a LID.
    fn next_hop(&mut self, at: PortId, dlid: Lid) -> Result<PortId, DropReason> {
        match self.device_of(at).exit(dlid) {
            Some(out) => Ok(out),
            None => {
                self.port_mut(at).counters.relay_errors += 1;
                Err(DropReason::NoRoute)
            }
        }
    }

    /// An adapter puts data on the lane of its service level.
    fn inject(&mut self, from: PortId, packet: &PacketKind) -> Result<(), DropReason> {
        let PacketKind::Data { flow, .. } = packet else { return Ok(()) };
        let lane = self.port(from).injection_lane(flow.sl);
        self.check_lane(from, lane)
    }

    /// A switch maps the service level of data to a lane of the exit port.
    fn map_lane(&mut self, input: PortId, output: PortId, packet: &PacketKind) -> Result<(), DropReason> {
        let PacketKind::Data { flow, .. } = packet else { return Ok(()) };
        let mapping = self.hop_mapping(self.port(input).number, output);
        self.check_lane(output, SlToVl::decode(&mapping).lane(flow.sl))
    }

    /// The service levels to lanes from an input to an output port of the same switch.
    pub(crate) fn hop_mapping(&self, input: PortNum, output: PortId) -> [u8; SlToVl::LEN] {
        let device = self.device_of(output);
        let width = usize::from(device.info.port_count) + 1;
        let index = input.index() * width + self.port(output).number.index();
        device.switch.as_ref().map_or(DEFAULT_SL_TO_VL, |switch| switch.sl_to_vl.get(index))
    }

    fn check_lane(&mut self, out: PortId, lane: VirtualLane) -> Result<(), DropReason> {
        if lane.to_wire() < lane_count(self.port(out).info.operational_vls) {
            return Ok(());
        }
        self.port_mut(out).counters.transmit_discards += 1;
        Err(DropReason::ServiceLevel)
    }

    /// A switch port lets only its partitions pass, in the directions in which it enforces them.
    fn enforce(&mut self, port: PortId, packet: &PacketKind, direction: Direction) -> Result<(), DropReason> {
        let PacketKind::Data { flow, .. } = packet else { return Ok(()) };
        let state = self.port(port);
        let passes = match direction {
            Direction::Inbound => !state.info.enforce_inbound || state.lets_send(flow.pkey),
            Direction::Outbound => !state.info.enforce_outbound || state.accepts(flow.pkey),
        };
        if passes || state.number == PortNum::MANAGEMENT {
            return Ok(());
        }
        let state = self.port_mut(port);
        state.info.pkey_violations = state.info.pkey_violations.saturating_add(1);
        match direction {
            Direction::Inbound => state.counters.receive_constraint_errors += 1,
            Direction::Outbound => state.counters.transmit_constraint_errors += 1,
        }
        self.report_bad_pkey_at_switch(port, *flow);
        self.reached = port;
        Err(DropReason::PartitionAtSwitch)
    }

    /// Crosses the link behind a port.
    pub(crate) fn cross_link(&mut self, out: PortId, packet: &PacketKind) -> Result<PortId, DropReason> {
        let peer = match self.other_end(out, packet) {
            Ok(peer) => peer,
            Err(reason) => {
                self.port_mut(out).counters.transmit_discards += 1;
                return Err(reason);
            }
        };
        let (cast, payload) = packet.size();
        self.port_mut(out).counters.sent(cast, payload);
        if self.faults.loses(out, peer, matches!(packet, PacketKind::Data { .. })) {
            self.port_mut(peer).counters.receive_errors += 1;
            return Err(DropReason::Injected);
        }
        self.port_mut(peer).counters.received(cast, payload);
        Ok(peer)
    }

    /// The port behind a link, if the link carries such a packet now.
    fn other_end(&self, out: PortId, packet: &PacketKind) -> Result<PortId, DropReason> {
        let peer = self.linked_port(out).ok_or(DropReason::LinkDown)?;
        match packet {
            PacketKind::Data { .. } if !self.carries_data(out, peer) => Err(DropReason::NotActive),
            PacketKind::Data { payload, .. } if !self.has_room(out, *payload) => Err(DropReason::TooLarge),
            _ => Ok(peer),
        }
    }

    /// The port behind a link that is up.
    pub(crate) fn linked_port(&self, out: PortId) -> Option<PortId> {
        let sender = self.port(out);
        let up = |info: &ib_wire::PortInfo| {
            info.physical_state == PhysicalState::LinkUp && info.state != PortState::Down
        };
        sender.peer.filter(|peer| sender.plugged && up(&sender.info) && up(&self.port(*peer).info))
    }

    /// Data leaves active ports only; an armed port already receives it.
    pub(crate) fn carries_data(&self, out: PortId, peer: PortId) -> bool {
        self.port(out).info.state == PortState::Active
            && matches!(self.port(peer).info.state, PortState::Active | PortState::Armed)
    }

    /// Whether a payload is no larger than what the manager lets the port send.
    pub(crate) fn has_room(&self, out: PortId, payload: usize) -> bool {
        payload <= usize::from(self.port(out).info.neighbor_mtu.bytes())
    }

    /// The exit ports of a switch for a group, without the one the packet came in by; `None` if it knows no such group.
    fn multicast_exits(&self, at: PortId, group: MulticastLid) -> Option<Vec<PortId>> {
        let device = self.device_of(at);
        let table = &device.switch.as_ref()?.multicast;
        let is_exit = |id: &PortId| table.has_exit(group.table_index(), self.port(*id).number);
        let mut exits: Vec<PortId> = device.ports().filter(is_exit).collect();
        if exits.is_empty() {
            return None;
        }
        exits.retain(|id| *id != at);
        Some(exits)
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Inbound,
    Outbound,
}
