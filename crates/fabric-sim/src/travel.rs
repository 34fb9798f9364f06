//! How datagrams travel: link by link, along directed routes, forwarding tables, or both.

use ib_wire::{
    DIRECTED_HOPS_MAX, Datagram, Lid, LidAddress, Mad, ManagementClass, MulticastLid, PhysicalState, Pkey,
    PortNum, PortState, QKey, QueuePair, SlToVl, VirtualLane,
};

use crate::agent::Verdict;
use crate::device::{DEFAULT_SL_TO_VL, PortId, lane_count};
use crate::fabric::{DropReason, Fabric, Output};
use crate::notices::Flow;

/// Switches a LID-routed packet may pass. Real packets have no such limit and circle until their lifetime ends;
/// longer than any sane path, short enough to stop a loop at once.
const HOPS_MAX: usize = 64;

/// Copies one multicast datagram may turn into: bounds the work of a looping multicast tree.
const MULTICAST_COPIES_MAX: usize = 65_536;

/// Where a datagram ended up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// The port it came in by, or the sending port itself.
    pub entered: PortId,
    /// The end port it is for: port 0 of a switch, else `entered`.
    pub end: PortId,
}

/// Whether a datagram is on its way once, or a second time because a fault duplicated it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twin {
    /// There is one of it, or this is the one that counts.
    Only,
    /// It is handled like the other, but its sender hears nothing of it.
    Second,
}

/// What a packet needs to pass a port.
#[derive(Clone, Copy, Debug)]
enum Traffic {
    /// Subnet management: lane 15, passes as soon as the link is up, knows no partition.
    Management,
    /// Everything else: needs active ports, its partition, and a lane on every turn.
    Data { flow: Flow, multicast: bool },
}

impl Fabric {
    /// Carries a datagram from the software behind `from` to its end, lets agents answer, and carries the answer back.
    pub(crate) fn carry(&mut self, from: PortId, mut datagram: Datagram, twin: Twin) {
        let asked = datagram.mad.method();
        let outcome = if datagram.mad.class().is_subnet_management() {
            self.carry_subnet_management(from, &mut datagram)
        } else if let LidAddress::Multicast(group) = datagram.dlid {
            return self.carry_multicast(from, group, datagram);
        } else {
            self.carry_general(from, &mut datagram)
        };
        match outcome {
            // The sender's adapter knows nothing any more of a request that was answered, and drops a second answer.
            Ok(Some(_)) if twin == Twin::Second && datagram.mad.method() != asked => {}
            Ok(Some(port)) => self.push_output(Output::Deliver { port, datagram }),
            Ok(None) => {}
            Err(reason) => {
                self.count_drop(reason);
                if twin == Twin::Only {
                    // Lost may be the answer; what its sender misses is the request.
                    datagram.mad.set_method(asked);
                    self.push_output(Output::Lost { port: from, datagram, reason });
                }
            }
        }
    }

    /// Subnet management: to an agent and back, or to the software behind a port. `None` if it was used up.
    pub(crate) fn carry_subnet_management(
        &mut self,
        from: PortId,
        datagram: &mut Datagram,
    ) -> Result<Option<PortId>, DropReason> {
        let directed = datagram.mad.class() == ManagementClass::SUBNET_DIRECTED;
        if datagram.mad.method().is_response() {
            let arrival = if directed {
                self.return_along_route(from, datagram)?
            } else {
                self.route(from, unicast(datagram.dlid)?, Traffic::Management)?
            };
            return Ok(Some(arrival.end));
        }
        let arrival = if directed {
            self.follow_route(from, datagram)?
        } else {
            self.route(from, unicast(datagram.dlid)?, Traffic::Management)?
        };
        match self.subnet_agent(arrival, datagram.slid, &mut datagram.mad) {
            Verdict::Answered => {
                let back = if directed {
                    datagram.mad.set_returning();
                    std::mem::swap(&mut datagram.slid, &mut datagram.dlid);
                    self.return_along_route(arrival.entered, datagram)?
                } else {
                    self.return_by_lid(from, arrival, datagram, Traffic::Management)?
                };
                if back.end == self.end_port(from) { Ok(Some(back.end)) } else { Err(DropReason::WrongPort) }
            }
            Verdict::ForSoftware => Ok(Some(arrival.end)),
            Verdict::UsedUp => Ok(None),
            Verdict::Dropped(reason) => Err(reason),
        }
    }

    /// General management: checked for its partition everywhere, answered by the performance agent or the software.
    fn carry_general(&mut self, from: PortId, datagram: &mut Datagram) -> Result<Option<PortId>, DropReason> {
        let traffic = Traffic::Data { flow: Flow::of(datagram), multicast: false };
        let arrival = self.route(from, unicast(datagram.dlid)?, traffic)?;
        self.accept(arrival.end, datagram)?;
        let is_request = !datagram.mad.method().is_response();
        if datagram.mad.class() != ManagementClass::PERFORMANCE || !is_request {
            return Ok(Some(arrival.end));
        }
        self.performance_agent(arrival, &mut datagram.mad);
        datagram.pkey = self.answering_key(arrival.end, datagram.pkey);
        let traffic = Traffic::Data { flow: Flow::of(datagram), multicast: false };
        let back = self.return_by_lid(from, arrival, datagram, traffic)?;
        self.accept(back.end, datagram)?;
        Ok(Some(back.end))
    }

    /// Swaps the addresses and carries an answer back to where the request came from.
    fn return_by_lid(
        &mut self,
        from: PortId,
        arrival: Arrival,
        datagram: &mut Datagram,
        traffic: Traffic,
    ) -> Result<Arrival, DropReason> {
        std::mem::swap(&mut datagram.slid, &mut datagram.dlid);
        std::mem::swap(&mut datagram.sqp, &mut datagram.dqp);
        if let Some(grh) = &mut datagram.grh {
            std::mem::swap(&mut grh.source, &mut grh.destination);
        }
        if arrival.entered == from {
            return Ok(arrival);
        }
        let LidAddress::Unicast(lid) = datagram.dlid else { return Err(DropReason::NoReturnAddress) };
        self.route(arrival.end, lid, traffic)
    }

    /// Follows the initial path of a directed route, with the LID-routed parts before and behind it.
    fn follow_route(&mut self, from: PortId, datagram: &mut Datagram) -> Result<Arrival, DropReason> {
        let count = hop_count(&datagram.mad)?;
        let origin = match (datagram.mad.directed_source(), datagram.dlid) {
            (Some(LidAddress::Permissive), _) => from,
            // The route starts at a switch further away: LID-routed up to there.
            (Some(LidAddress::Unicast(_)), LidAddress::Unicast(start)) => {
                self.route(from, start, Traffic::Management)?.end
            }
            _ => return Err(DropReason::BadDirectedRoute),
        };
        let mut at = origin;
        for hop in 1..=count {
            let exit = datagram.mad.initial_path(hop).and_then(PortNum::new);
            let out = self.directed_exit(at, origin, exit)?;
            datagram.mad.set_hop_pointer(hop);
            at = self.cross(out, Traffic::Management)?;
            datagram.mad.set_return_path(hop, self.port(at).number.to_wire());
        }
        match datagram.mad.directed_destination() {
            Some(LidAddress::Permissive) => {
                (datagram.slid, datagram.dlid) = (LidAddress::Permissive, LidAddress::Permissive);
                Ok(Arrival { entered: at, end: self.end_port(at) })
            }
            Some(LidAddress::Unicast(lid)) => {
                // The switch at the end of the path sends it on under its own LID: the answer has to find back to it.
                let turn = self.end_port(at);
                let own = self.port(turn).info.lid.ok_or(DropReason::NoReturnAddress)?;
                (datagram.slid, datagram.dlid) = (own.into(), lid.into());
                self.route(turn, lid, Traffic::Management)
            }
            _ => Err(DropReason::BadDirectedRoute),
        }
    }

    /// The port by which a directed route leaves the node it has reached: only switches let it pass, and an adapter
    /// sends by the port the sender sits on.
    fn directed_exit(&self, at: PortId, origin: PortId, exit: Option<PortNum>) -> Result<PortId, DropReason> {
        let exit = exit.filter(|exit| *exit != PortNum::MANAGEMENT).ok_or(DropReason::BadDirectedRoute)?;
        let out = self.device_of(at).port(exit).ok_or(DropReason::BadDirectedRoute)?;
        if self.is_switch(at) || (at == origin && out == at) {
            Ok(out)
        } else {
            Err(DropReason::BadDirectedRoute)
        }
    }

    /// Follows the return path of a directed route, with the LID-routed parts before and behind it.
    fn return_along_route(&mut self, from: PortId, datagram: &mut Datagram) -> Result<Arrival, DropReason> {
        let count = hop_count(&datagram.mad)?;
        let origin = match datagram.mad.directed_destination() {
            Some(LidAddress::Unicast(_)) => {
                let end = self.end_port(from);
                self.route(end, unicast(datagram.dlid)?, Traffic::Management)?.end
            }
            _ => from,
        };
        let mut at = origin;
        for hop in (1..=count).rev() {
            let exit = datagram.mad.return_path(hop).and_then(PortNum::new);
            let out = self.directed_exit(at, origin, exit)?;
            datagram.mad.set_hop_pointer(hop - 1);
            at = self.cross(out, Traffic::Management)?;
        }
        let start = self.end_port(at);
        match datagram.mad.directed_source() {
            Some(LidAddress::Permissive) => {
                (datagram.slid, datagram.dlid) = (LidAddress::Permissive, LidAddress::Permissive);
                Ok(Arrival { entered: at, end: start })
            }
            Some(LidAddress::Unicast(requester)) => {
                let own = self.port(start).info.lid.ok_or(DropReason::NoReturnAddress)?;
                (datagram.slid, datagram.dlid) = (own.into(), requester.into());
                self.route(start, requester, Traffic::Management)
            }
            _ => Err(DropReason::BadDirectedRoute),
        }
    }

    /// Carries a packet to the port that owns a LID, through the forwarding tables.
    fn route(&mut self, from: PortId, dlid: Lid, traffic: Traffic) -> Result<Arrival, DropReason> {
        if self.port(from).owns(dlid) {
            return Ok(Arrival { entered: from, end: from });
        }
        let mut at = from;
        if !self.is_switch(from) {
            self.inject(from, traffic)?;
            at = self.cross(from, traffic)?;
        }
        for _ in 0..HOPS_MAX {
            if !self.is_switch(at) {
                return self.receive_at_adapter(at, dlid);
            }
            self.enforce(at, traffic, Direction::Inbound)?;
            let out = self.next_hop(at, dlid)?;
            if self.port(out).number == PortNum::MANAGEMENT {
                let owned = self.port(out).owns(dlid);
                return if owned {
                    Ok(Arrival { entered: at, end: out })
                } else {
                    Err(DropReason::WrongPort)
                };
            }
            self.turn(at, out, traffic)?;
            self.enforce(out, traffic, Direction::Outbound)?;
            at = self.cross(out, traffic)?;
        }
        Err(DropReason::HopLimit)
    }

    fn receive_at_adapter(&mut self, at: PortId, dlid: Lid) -> Result<Arrival, DropReason> {
        if self.port(at).owns(dlid) {
            return Ok(Arrival { entered: at, end: at });
        }
        self.port_mut(at).counters.receive_errors += 1;
        Err(DropReason::WrongPort)
    }

    /// The exit port of a switch for a LID.
    fn next_hop(&mut self, at: PortId, dlid: Lid) -> Result<PortId, DropReason> {
        let device = self.device_of(at);
        let switch = device.switch.as_ref().ok_or(DropReason::NoRoute)?;
        let entry = if dlid.to_wire() > switch.info.linear_fdb_top {
            None
        } else {
            switch.linear.get(usize::from(dlid.to_wire())).copied()
        };
        match entry.and_then(PortNum::new).and_then(|exit| device.port(exit)) {
            Some(out) => Ok(out),
            None => {
                self.port_mut(at).counters.relay_errors += 1;
                Err(DropReason::NoRoute)
            }
        }
    }

    /// An adapter puts data on the lane of its service level.
    fn inject(&mut self, from: PortId, traffic: Traffic) -> Result<(), DropReason> {
        let Traffic::Data { flow, .. } = traffic else { return Ok(()) };
        let port = self.port(from);
        let lane = port.injection_lane(flow.sl);
        self.check_lane(from, lane)
    }

    /// A switch maps the service level of data to a lane of the exit port.
    fn turn(&mut self, input: PortId, output: PortId, traffic: Traffic) -> Result<(), DropReason> {
        let Traffic::Data { flow, .. } = traffic else { return Ok(()) };
        let mapping = self.turn_mapping(self.port(input).number, output);
        self.check_lane(output, SlToVl::decode(&mapping).lane(flow.sl))
    }

    /// The service levels to lanes from an input to an output port of the same switch.
    pub(crate) fn turn_mapping(&self, input: PortNum, output: PortId) -> [u8; SlToVl::LEN] {
        let device = self.device_of(output);
        let width = usize::from(device.info.port_count) + 1;
        let index = input.index() * width + self.port(output).number.index();
        let written = device.switch.as_ref().and_then(|switch| switch.sl_to_vl.get(index));
        written.copied().unwrap_or(DEFAULT_SL_TO_VL)
    }

    fn check_lane(&mut self, out: PortId, lane: VirtualLane) -> Result<(), DropReason> {
        if lane.to_wire() < lane_count(self.port(out).info.operational_vls) {
            return Ok(());
        }
        self.port_mut(out).counters.transmit_discards += 1;
        Err(DropReason::ServiceLevel)
    }

    /// A switch port lets only its partitions pass, in the directions in which it enforces them.
    fn enforce(&mut self, port: PortId, traffic: Traffic, direction: Direction) -> Result<(), DropReason> {
        let Traffic::Data { flow, .. } = traffic else { return Ok(()) };
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
        self.report_bad_pkey_at_switch(port, flow);
        Err(DropReason::PartitionAtSwitch)
    }

    /// An end port accepts general management only with a partition key it holds and the queue key of its queue pair.
    fn accept(&mut self, end: PortId, datagram: &Datagram) -> Result<(), DropReason> {
        let port = self.port_mut(end);
        if !port.accepts(datagram.pkey) {
            port.info.pkey_violations = port.info.pkey_violations.saturating_add(1);
            self.report_bad_pkey(end, Flow::of(datagram));
            return Err(DropReason::PartitionAtReceiver);
        }
        if datagram.dqp == QueuePair::GENERAL_MANAGEMENT && datagram.qkey != QKey::GENERAL_MANAGEMENT {
            port.info.qkey_violations = port.info.qkey_violations.saturating_add(1);
            self.report_bad_qkey(end, Flow::of(datagram), datagram.qkey);
            return Err(DropReason::QueueKey);
        }
        Ok(())
    }

    /// The key with which an end port answers in the partition of a key it accepted.
    fn answering_key(&self, end: PortId, asked: Pkey) -> Pkey {
        self.port(end)
            .pkeys
            .iter()
            .flatten()
            .copied()
            .find(|held| asked.is_accepted_by(*held))
            .unwrap_or(asked)
    }

    /// Crosses the link behind a port.
    fn cross(&mut self, out: PortId, traffic: Traffic) -> Result<PortId, DropReason> {
        let sender = self.port(out);
        let up = |info: &ib_wire::PortInfo| {
            info.physical_state == PhysicalState::LinkUp && info.state != PortState::Down
        };
        let passable = match sender.peer {
            Some(peer) if sender.plugged && up(&sender.info) && up(&self.port(peer).info) => Ok(peer),
            _ => Err(DropReason::LinkDown),
        };
        let passable = passable.and_then(|peer| match traffic {
            Traffic::Data { .. } if !self.carries_data(out, peer) => Err(DropReason::NotActive),
            _ => Ok(peer),
        });
        let peer = match passable {
            Ok(peer) => peer,
            Err(reason) => {
                self.port_mut(out).counters.transmit_discards += 1;
                return Err(reason);
            }
        };
        let multicast = matches!(traffic, Traffic::Data { multicast: true, .. });
        self.port_mut(out).counters.sent(multicast);
        if self.faults.loses(out, peer) {
            self.port_mut(peer).counters.receive_errors += 1;
            return Err(DropReason::Injected);
        }
        self.port_mut(peer).counters.received(multicast);
        Ok(peer)
    }

    /// Data leaves active ports only; an armed port already receives it.
    fn carries_data(&self, out: PortId, peer: PortId) -> bool {
        self.port(out).info.state == PortState::Active
            && matches!(self.port(peer).info.state, PortState::Active | PortState::Armed)
    }

    /// Carries a multicast datagram along the multicast tables to every member that holds its partition.
    fn carry_multicast(&mut self, from: PortId, group: MulticastLid, datagram: Datagram) {
        let traffic = Traffic::Data { flow: Flow::of(&datagram), multicast: true };
        let mut pending = Vec::new();
        let mut copies = 0;
        if self.is_switch(from) {
            pending.push(from);
        } else if let Err(reason) =
            self.inject(from, traffic).and_then(|()| self.cross(from, traffic)).map(|at| pending.push(at))
        {
            self.count_drop(reason);
        }
        while let Some(at) = pending.pop() {
            copies += 1;
            if copies > MULTICAST_COPIES_MAX {
                return self.count_drop(DropReason::HopLimit);
            }
            if !self.is_switch(at) {
                self.deliver_copy(at, &datagram);
                continue;
            }
            if let Err(reason) = self.enforce(at, traffic, Direction::Inbound) {
                self.count_drop(reason);
                continue;
            }
            for out in self.multicast_exits(at, group) {
                if self.port(out).number == PortNum::MANAGEMENT {
                    self.deliver_copy(out, &datagram);
                    continue;
                }
                let crossed = self
                    .turn(at, out, traffic)
                    .and_then(|()| self.enforce(out, traffic, Direction::Outbound))
                    .and_then(|()| self.cross(out, traffic));
                match crossed {
                    Ok(peer) => pending.push(peer),
                    Err(reason) => self.count_drop(reason),
                }
            }
        }
    }

    fn deliver_copy(&mut self, end: PortId, datagram: &Datagram) {
        match self.accept(end, datagram) {
            Ok(()) => self.push_output(Output::Deliver { port: end, datagram: datagram.clone() }),
            Err(reason) => self.count_drop(reason),
        }
    }

    /// The exit ports of a switch for a group, without the one the packet came in by.
    fn multicast_exits(&self, at: PortId, group: MulticastLid) -> Vec<PortId> {
        let device = self.device_of(at);
        let Some(switch) = &device.switch else { return Vec::new() };
        let positions = multicast_positions(device.info.port_count);
        let first = group.table_index() * positions;
        let masks = switch.multicast.get(first..first + positions).unwrap_or_default();
        device
            .ports()
            .filter(|id| *id != at)
            .filter(|id| {
                let number = self.port(*id).number.index();
                masks.get(number / 16).is_some_and(|mask| mask >> (number % 16) & 1 == 1)
            })
            .collect()
    }
}

/// Words of sixteen ports a switch with this many ports needs for a group.
pub(crate) fn multicast_positions(port_count: u8) -> usize {
    usize::from(port_count) / 16 + 1
}

#[derive(Clone, Copy)]
enum Direction {
    Inbound,
    Outbound,
}

fn hop_count(mad: &Mad) -> Result<u8, DropReason> {
    let count = mad.hop_count();
    if usize::from(count) <= DIRECTED_HOPS_MAX { Ok(count) } else { Err(DropReason::BadDirectedRoute) }
}

fn unicast(address: LidAddress) -> Result<Lid, DropReason> {
    match address {
        LidAddress::Unicast(lid) => Ok(lid),
        LidAddress::Multicast(_) | LidAddress::Permissive => Err(DropReason::NoRoute),
    }
}
