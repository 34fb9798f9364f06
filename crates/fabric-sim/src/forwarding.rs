//! The forwarding pipeline: how a packet crosses ports, switches and links.
//!
//! Management datagrams and frames of virtual functions both pass through this module, so that the same
//! tables apply to them.

use ib_wire::{
    Datagram, Lid, LidAddress, MulticastLid, PhysicalState, PortNum, PortState, ServiceLevel, SlToVl,
    VirtualLane,
};

use crate::counters::{CastKind, MANAGEMENT_PAYLOAD};
use crate::device::{DEFAULT_SL_TO_VL, Device, PortId, lane_count};
use crate::fabric::{DropReason, Fabric};
use crate::notices::Flow;

/// Limit on the switches that a LID-routed packet passes. Longer than any sensible path; stops a forwarding
/// loop. Real packets have no hop limit and circulate until their lifetime ends.
pub(crate) const HOPS_MAX: usize = 64;

/// Limit on the copies of one multicast packet: bounds the work of a looping multicast tree.
const MULTICAST_COPIES_MAX: usize = 65_536;

/// Where a packet arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// The port through which it entered the device, or the sending port itself.
    pub entered: PortId,
    /// The end port that it addresses: port 0 of a switch, else `entered`.
    pub end: PortId,
}

/// What becomes of a packet at the device that it has reached.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    End(Arrival),
    /// It leaves through this port, on this lane.
    Out(PortId, VirtualLane),
}

/// What the ports on its path check of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PacketKind {
    /// Subnet management: lane 15, passes any link that is up, has no partition.
    Management,
    /// All other packets: they need active ports, partition membership, an MTU for the payload and a lane on
    /// every hop.
    Data {
        flow: Flow,
        cast: CastKind,
        /// Size of the payload in bytes.
        payload: usize,
    },
}

impl PacketKind {
    /// A general management datagram as a packet.
    pub fn of(datagram: &Datagram) -> Self {
        let cast = match datagram.dlid {
            LidAddress::Multicast(_) => CastKind::Multicast,
            LidAddress::Unicast(_) | LidAddress::Permissive => CastKind::Unicast,
        };
        Self::Data { flow: Flow::of(datagram), cast, payload: MANAGEMENT_PAYLOAD }
    }

    /// What ports count: the kind, the service level, and the length of the payload.
    fn counted(&self) -> (CastKind, Option<ServiceLevel>, usize) {
        match self {
            Self::Management => (CastKind::Unicast, None, MANAGEMENT_PAYLOAD),
            Self::Data { cast, payload, flow } => (*cast, Some(flow.sl), *payload),
        }
    }
}

impl Fabric {
    /// Carries a packet along the linear forwarding tables to the port that owns `dlid`.
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
            match self.step(at, dlid, packet)? {
                Step::End(arrival) => return Ok(arrival),
                Step::Out(out, _) => at = self.cross_link(out, packet)?,
            }
        }
        Err(DropReason::HopLimit)
    }

    /// What becomes of a packet to `dlid` at the device of the port that it has entered.
    pub(crate) fn step(&mut self, at: PortId, dlid: Lid, packet: &PacketKind) -> Result<Step, DropReason> {
        self.reached = at;
        if !self.is_switch(at) {
            return self.receive_at_adapter(at, dlid).map(Step::End);
        }
        self.enforce(at, packet, Direction::Inbound)?;
        let out = self.next_hop(at, dlid)?;
        if self.port(out).number == PortNum::MANAGEMENT {
            let owned = self.port(out).owns(dlid);
            return if owned {
                Ok(Step::End(Arrival { entered: at, end: out }))
            } else {
                Err(DropReason::WrongPort)
            };
        }
        Ok(Step::Out(out, self.leave(at, out, packet)?))
    }

    /// Carries a packet along the multicast forwarding tables. Adds the end ports that it arrives at to
    /// `reached`, never the sender; calls `lost` for every copy that is dropped.
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
            match self.inject(from, packet).and_then(|_| self.cross_link(from, packet)) {
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
            let branched = self.branch(at, group, packet, reached, |fabric, out, lane| {
                match lane.and_then(|_| fabric.cross_link(out, packet)) {
                    Ok(peer) => pending.push(peer),
                    Err(reason) => lost(fabric, reason),
                }
            });
            if let Err(reason) = branched {
                lost(self, reason);
            }
        }
    }

    /// What becomes of a multicast packet at the device of the port that it has entered: adds the end ports there to `reached`, and
    /// calls `leaves` for every copy that leaves through a port, with its lane or the reason why it is dropped there.
    pub(crate) fn branch(
        &mut self,
        at: PortId,
        group: MulticastLid,
        packet: &PacketKind,
        reached: &mut Vec<PortId>,
        mut leaves: impl FnMut(&mut Self, PortId, Result<VirtualLane, DropReason>),
    ) -> Result<(), DropReason> {
        self.reached = at;
        if !self.is_switch(at) {
            reached.push(at);
            return Ok(());
        }
        self.enforce(at, packet, Direction::Inbound)?;
        let Some(exits) = self.multicast_exits(at, group) else {
            self.port_mut(at).counters.relay_errors += 1;
            return Err(DropReason::NoRoute);
        };
        for out in exits {
            if self.port(out).number == PortNum::MANAGEMENT {
                reached.push(out);
                continue;
            }
            let lane = self.leave(at, out, packet);
            leaves(self, out, lane);
        }
        Ok(())
    }

    /// Checks the P_Key of a packet at its end port.
    pub(crate) fn accept_partition(&mut self, end: PortId, flow: &Flow) -> Result<(), DropReason> {
        if !self.profile.behaviour.receivers_check_keys || self.port(end).accepts(flow.pkey) {
            return Ok(());
        }
        Err(self.refuse_partition(end, flow))
    }

    /// Counts and reports a packet whose P_Key the end port does not accept.
    pub(crate) fn refuse_partition(&mut self, end: PortId, flow: &Flow) -> DropReason {
        let port = self.port_mut(end);
        port.info.pkey_violations = port.info.pkey_violations.saturating_add(1);
        self.report_bad_pkey(end, *flow);
        // The trap was a packet, too, and moved `reached`.
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

    /// Forwards a packet inside a switch from an input to an output port. Returns its lane there.
    fn leave(&mut self, input: PortId, out: PortId, packet: &PacketKind) -> Result<VirtualLane, DropReason> {
        self.reached = out;
        let lane = self.map_lane(input, out, packet)?;
        self.enforce(out, packet, Direction::Outbound)?;
        Ok(lane)
    }

    /// The output port of a switch for a LID.
    fn next_hop(&mut self, at: PortId, dlid: Lid) -> Result<PortId, DropReason> {
        match self.device_of(at).exit(dlid) {
            Some(out) => Ok(out),
            None => {
                self.port_mut(at).counters.relay_errors += 1;
                Err(DropReason::NoRoute)
            }
        }
    }

    /// The lane on which an adapter sends a packet, if it has one for the service level.
    pub(crate) fn inject(&mut self, from: PortId, packet: &PacketKind) -> Result<VirtualLane, DropReason> {
        let PacketKind::Data { flow, .. } = packet else { return Ok(VirtualLane::MANAGEMENT) };
        let lane = self.port(from).injection_lane(flow.sl);
        self.check_lane(from, lane)
    }

    /// The lane of the hop from `input` to `output`, if it has one for the service level.
    fn map_lane(
        &mut self,
        input: PortId,
        output: PortId,
        packet: &PacketKind,
    ) -> Result<VirtualLane, DropReason> {
        let PacketKind::Data { flow, .. } = packet else { return Ok(VirtualLane::MANAGEMENT) };
        let mapping = self.hop_mapping(self.port(input).number, output);
        self.check_lane(output, SlToVl::decode(&mapping).lane(flow.sl))
    }

    /// The SLtoVLMappingTable of the hop from an input to an output port of the same switch.
    pub(crate) fn hop_mapping(&self, input: PortNum, output: PortId) -> [u8; SlToVl::LEN] {
        let device = self.device_of(output);
        let width = usize::from(device.info.port_count) + 1;
        let index = input.index() * width + self.port(output).number.index();
        device.switch.as_ref().map_or(DEFAULT_SL_TO_VL, |switch| switch.sl_to_vl.get(index))
    }

    fn check_lane(&mut self, out: PortId, lane: VirtualLane) -> Result<VirtualLane, DropReason> {
        let is_checked = self.profile.behaviour.lanes_are_checked;
        if !is_checked || lane.to_wire() < lane_count(self.port(out).info.operational_vls) {
            return Ok(lane);
        }
        self.port_mut(out).counters.transmit_discards += 1;
        Err(DropReason::ServiceLevel)
    }

    /// Applies the partition enforcement of a switch port in one direction.
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

    /// Carries a packet across the link behind a port and counts it at both ends. Returns the port at the
    /// other end.
    pub(crate) fn cross_link(&mut self, out: PortId, packet: &PacketKind) -> Result<PortId, DropReason> {
        let peer = match self.other_end(out, packet) {
            Ok(peer) => peer,
            Err(reason) => {
                self.port_mut(out).counters.transmit_discards += 1;
                return Err(reason);
            }
        };
        let (cast, sl, payload) = packet.counted();
        self.port_mut(out).counters.sent(cast, sl, payload);
        if self.faults.loses(out, peer, matches!(packet, PacketKind::Data { .. })) {
            self.port_mut(peer).counters.receive_errors += 1;
            return Err(DropReason::Injected);
        }
        let receiver = self.port_mut(peer);
        receiver.counters.received(cast, sl, payload);
        // Data activate an armed port (A-PORT-9).
        let is_armed = receiver.info.state == PortState::Armed;
        if matches!(packet, PacketKind::Data { .. }) && is_armed && self.profile.behaviour.data_activate_armed
        {
            self.port_mut(peer).info.state = PortState::Active;
        }
        Ok(peer)
    }

    /// The port at the other end of a link, if the link can carry the packet now.
    pub(crate) fn other_end(&self, out: PortId, packet: &PacketKind) -> Result<PortId, DropReason> {
        let peer = self.linked_port(out).ok_or(DropReason::LinkDown)?;
        match packet {
            PacketKind::Data { .. } if !self.carries_data(out, peer) => Err(DropReason::NotActive),
            PacketKind::Data { payload, .. } if !self.has_room(out, *payload) => Err(DropReason::TooLarge),
            PacketKind::Data { .. } if self.expires_at(out) => Err(DropReason::Expired),
            _ => Ok(peer),
        }
    }

    /// Whether packets have no time to wait at an output of a switch: HOQLife or LifeTimeValue is 0 (A-PROF-3).
    fn expires_at(&self, out: PortId) -> bool {
        let is_short = |info: &ib_wire::SwitchInfo| info.life_time == 0 || self.port(out).info.hoq_life == 0;
        self.profile.behaviour.zero_lifetimes_drop
            && self.device_of(out).switch.as_ref().is_some_and(|switch| is_short(&switch.info))
    }

    /// The port at the other end of a link that is up.
    pub(crate) fn linked_port(&self, out: PortId) -> Option<PortId> {
        let sender = self.port(out);
        let up = |info: &ib_wire::PortInfo| {
            info.physical_state == PhysicalState::LinkUp && info.state != PortState::Down
        };
        sender.peer.filter(|peer| sender.plugged && up(&sender.info) && up(&self.port(*peer).info))
    }

    /// Whether a link carries data: the sender must be active, the receiver armed or active.
    pub(crate) fn carries_data(&self, out: PortId, peer: PortId) -> bool {
        self.port(out).info.state == PortState::Active
            && matches!(self.port(peer).info.state, PortState::Active | PortState::Armed)
    }

    /// Whether a payload fits the NeighborMTU of a port.
    pub(crate) fn has_room(&self, out: PortId, payload: usize) -> bool {
        payload <= usize::from(self.port(out).info.neighbor_mtu.bytes())
    }

    /// Number of groups that a switch forwards: those up to MulticastFDBTop, if it has that bound.
    pub(crate) fn multicast_end(&self, device: &Device) -> usize {
        let top = device.switch.as_ref().map_or(0, |switch| usize::from(switch.info.multicast_fdb_top));
        match self.profile.switches.multicast_fdb_top && top != 0 {
            true => (top + 1).saturating_sub(usize::from(MulticastLid::MIN)),
            false => usize::MAX,
        }
    }

    /// The output ports of a switch for a group, without the input port; `None` if the group has no entry.
    fn multicast_exits(&self, at: PortId, group: MulticastLid) -> Option<Vec<PortId>> {
        let device = self.device_of(at);
        let table = &device.switch.as_ref()?.multicast;
        if group.table_index() >= self.multicast_end(device) {
            return None;
        }
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
