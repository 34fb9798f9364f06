//! Routing of management datagrams: LID-routed, directed-route or mixed, to an agent and back.

use ib_wire::{
    DIRECTED_HOPS_MAX, Datagram, Lid, LidAddress, Mad, ManagementClass, MulticastLid, Pkey, PortNum, QKey,
    QueuePair,
};

use crate::agent::AgentOutcome;
use crate::device::PortId;
use crate::fabric::{DropReason, Fabric, FabricOutput};
use crate::forwarding::{Arrival, PacketKind};
use crate::notices::Flow;

/// Whether a datagram is the copy that the duplication fault made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duplicate {
    Original,
    /// Processed like the original, but its outcome is not reported to the sender.
    Copy,
    /// No copy, but whether it is lost is not reported: its transaction is not one of a transport.
    Unreported,
}

impl Fabric {
    /// Carries a datagram from the software behind `from` to its destination, has an agent respond, and
    /// carries the response back.
    pub(crate) fn carry(&mut self, from: PortId, mut datagram: Datagram, duplicate: Duplicate) {
        let requested = datagram.mad.method();
        let outcome = if datagram.mad.class().is_subnet_management() {
            self.carry_subnet_management(from, &mut datagram)
        } else if let LidAddress::Multicast(group) = datagram.dlid {
            return self.carry_multicast(from, group, datagram);
        } else {
            self.carry_general(from, &mut datagram)
        };
        match outcome {
            // The adapter has already matched the first response to the request and drops the second one.
            Ok(Some(_)) if duplicate == Duplicate::Copy && datagram.mad.method() != requested => {}
            Ok(Some(port)) => self.deliver(port, datagram),
            Ok(None) => {}
            Err(reason) => {
                self.count_drop(reason);
                if duplicate == Duplicate::Original {
                    // If the response was dropped, the sender still misses the response to its request.
                    datagram.mad.set_method(requested);
                    self.push_output(FabricOutput::Lost { port: from, datagram, reason });
                }
            }
        }
    }

    /// Carries a subnet management datagram to an agent and back, or to the software behind a port. Returns
    /// the port to deliver at; `None` if the agent consumed the datagram.
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
                self.route(from, unicast(datagram.dlid)?, &PacketKind::Management)?
            };
            return Ok(Some(arrival.end));
        }
        let arrival = if directed {
            self.follow_route(from, datagram)?
        } else {
            self.route(from, unicast(datagram.dlid)?, &PacketKind::Management)?
        };
        match self.subnet_agent(arrival, datagram.slid, &mut datagram.mad) {
            AgentOutcome::Answered => {
                let back = if directed {
                    datagram.mad.set_returning();
                    std::mem::swap(&mut datagram.slid, &mut datagram.dlid);
                    self.return_along_route(arrival.entered, datagram)?
                } else {
                    self.return_by_lid(from, arrival, datagram, &PacketKind::Management)?
                };
                if back.end == self.end_port(from) { Ok(Some(back.end)) } else { Err(DropReason::WrongPort) }
            }
            AgentOutcome::ForSoftware => Ok(Some(arrival.end)),
            AgentOutcome::UsedUp => Ok(None),
            AgentOutcome::Dropped(reason) => Err(reason),
        }
    }

    /// Carries a general management datagram; partitions apply on the whole path. The agents of performance
    /// management and congestion control or the software at the destination responds.
    fn carry_general(&mut self, from: PortId, datagram: &mut Datagram) -> Result<Option<PortId>, DropReason> {
        let packet = PacketKind::of(datagram);
        let arrival = self.route(from, unicast(datagram.dlid)?, &packet)?;
        self.accept(arrival.end, datagram)?;
        let is_request = !datagram.mad.method().is_response();
        match datagram.mad.class() {
            ManagementClass::PERFORMANCE if is_request => {
                self.performance_agent(arrival, &mut datagram.mad);
            }
            ManagementClass::CONGESTION if is_request => self.congestion_agent(arrival, &mut datagram.mad),
            _ => return Ok(Some(arrival.end)),
        }
        datagram.pkey = self.answering_key(arrival.end, datagram.pkey);
        let packet = PacketKind::of(datagram);
        let back = self.return_by_lid(from, arrival, datagram, &packet)?;
        self.accept(back.end, datagram)?;
        Ok(Some(back.end))
    }

    /// Swaps the addresses and carries a response back to the requester.
    fn return_by_lid(
        &mut self,
        from: PortId,
        arrival: Arrival,
        datagram: &mut Datagram,
        packet: &PacketKind,
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
        self.route(arrival.end, lid, packet)
    }

    /// Follows the initial path of a directed route, and the LID-routed parts before and after it.
    fn follow_route(&mut self, from: PortId, datagram: &mut Datagram) -> Result<Arrival, DropReason> {
        let count = hop_count(&datagram.mad)?;
        let origin = match (datagram.mad.directed_source(), datagram.dlid) {
            (Some(LidAddress::Permissive), _) => from,
            // The directed part starts at a remote switch: LID-routed up to there.
            (Some(LidAddress::Unicast(_)), LidAddress::Unicast(start)) => {
                self.route(from, start, &PacketKind::Management)?.end
            }
            _ => return Err(DropReason::BadDirectedRoute),
        };
        let mut at = origin;
        for hop in 1..=count {
            let exit = datagram.mad.initial_path(hop).and_then(PortNum::new);
            let out = self.directed_exit(at, origin, exit)?;
            datagram.mad.set_hop_pointer(hop);
            at = self.cross_link(out, &PacketKind::Management)?;
            datagram.mad.set_return_path(hop, self.port(at).number.to_wire());
        }
        match datagram.mad.directed_destination() {
            Some(LidAddress::Permissive) => {
                (datagram.slid, datagram.dlid) = (LidAddress::Permissive, LidAddress::Permissive);
                Ok(Arrival { entered: at, end: self.end_port(at) })
            }
            Some(LidAddress::Unicast(lid)) => {
                // The switch at the end of the directed part sends on with its own LID as source, so that the
                // response returns to it.
                let turn = self.end_port(at);
                let own = self.port(turn).info.lid.ok_or(DropReason::NoReturnAddress)?;
                (datagram.slid, datagram.dlid) = (own.into(), lid.into());
                self.route(turn, lid, &PacketKind::Management)
            }
            _ => Err(DropReason::BadDirectedRoute),
        }
    }

    /// The port through which a directed route leaves a node. Only switches forward; an adapter sends only
    /// through the port of the sender.
    fn directed_exit(&self, at: PortId, origin: PortId, exit: Option<PortNum>) -> Result<PortId, DropReason> {
        let exit = exit.filter(|exit| *exit != PortNum::MANAGEMENT).ok_or(DropReason::BadDirectedRoute)?;
        let out = self.device_of(at).port(exit).ok_or(DropReason::BadDirectedRoute)?;
        if self.is_switch(at) || (at == origin && out == at) {
            Ok(out)
        } else {
            Err(DropReason::BadDirectedRoute)
        }
    }

    /// Follows the return path of a directed route, and the LID-routed parts before and after it.
    fn return_along_route(&mut self, from: PortId, datagram: &mut Datagram) -> Result<Arrival, DropReason> {
        let count = hop_count(&datagram.mad)?;
        let origin = match datagram.mad.directed_destination() {
            Some(LidAddress::Unicast(_)) => {
                let end = self.end_port(from);
                self.route(end, unicast(datagram.dlid)?, &PacketKind::Management)?.end
            }
            _ => from,
        };
        let mut at = origin;
        for hop in (1..=count).rev() {
            let exit = datagram.mad.return_path(hop).and_then(PortNum::new);
            let out = self.directed_exit(at, origin, exit)?;
            datagram.mad.set_hop_pointer(hop - 1);
            at = self.cross_link(out, &PacketKind::Management)?;
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
                self.route(start, requester, &PacketKind::Management)
            }
            _ => Err(DropReason::BadDirectedRoute),
        }
    }

    /// Checks P_Key and Q_Key of a general management datagram at its end port.
    fn accept(&mut self, end: PortId, datagram: &Datagram) -> Result<(), DropReason> {
        self.accept_partition(end, &Flow::of(datagram))?;
        let is_checked = self.profile.behaviour.receivers_check_keys;
        if is_checked
            && datagram.dqp == QueuePair::GENERAL_MANAGEMENT
            && datagram.qkey != QKey::GENERAL_MANAGEMENT
        {
            let port = self.port_mut(end);
            port.info.qkey_violations = port.info.qkey_violations.saturating_add(1);
            self.report_bad_qkey(end, Flow::of(datagram), datagram.qkey);
            return Err(DropReason::QueueKey);
        }
        Ok(())
    }

    /// The P_Key of a response: the port's own key in the partition of the request.
    fn answering_key(&self, end: PortId, requested: Pkey) -> Pkey {
        self.port(end).keys().find(|held| requested.is_accepted_by(*held)).unwrap_or(requested)
    }

    /// Carries a multicast datagram to every member of the group that accepts its P_Key.
    fn carry_multicast(&mut self, from: PortId, group: MulticastLid, datagram: Datagram) {
        let mut reached = Vec::new();
        let packet = PacketKind::of(&datagram);
        self.replicate(from, group, &packet, &mut reached, |fabric, reason| fabric.count_drop(reason));
        for end in reached {
            match self.accept(end, &datagram) {
                Ok(()) => self.deliver(end, datagram.clone()),
                Err(reason) => self.count_drop(reason),
            }
        }
    }
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
