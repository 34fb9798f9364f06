//! Traps: link state changes, changes of a port's own attributes, key violations.
//!
//! A trap is sent at once and repeated until the subnet manager represses it or the repetitions are used up.
//! While it is pending, the same trap of the same port is not raised again, so that an attacker cannot flood
//! the subnet manager.

use std::time::Duration;

use ib_wire::notice::{
    BadMKey, BadPkey, BadQKey, LocalChange, LocalChangeFlags, Notice, NoticeEvent, Producer, SwitchBadPkey,
    SwitchEvent, Trap,
};
use ib_wire::{
    Attribute, Datagram, Gid, LidAddress, Mad, ManagementClass, Method, NodeKind, Pkey, QKey, QueuePair,
    ServiceLevel, TransactionId,
};

use crate::agent::{Access, AgentOutcome, Operation};
use crate::device::PortId;
use crate::fabric::{DropReason, Fabric, FabricOutput, Timer};

/// Time between repetitions of a trap that is not repressed.
const REPEAT_AFTER: Duration = Duration::from_secs(5);

/// Number of repetitions of a trap.
const REPEATS_MAX: u8 = 10;

/// Minimum time between two reports of the same kind of violation. The violation counters count all of them.
const VIOLATION_SPACING: Duration = Duration::from_secs(1);

/// Traps of a port that are not repressed yet, one per trap number, and the times of the last violation
/// reports.
#[derive(Debug, Default)]
pub(crate) struct PendingTraps {
    waiting: Vec<WaitingTrap>,
    reported: Vec<(u16, Duration)>,
}

#[derive(Debug)]
struct WaitingTrap {
    number: u16,
    transaction: u32,
    mad: Box<Mad>,
    repeat_at: Duration,
    repeats_left: u8,
}

/// The headers of a packet that a violation report contains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub pkey: Pkey,
    pub sl: ServiceLevel,
    pub source: LidAddress,
    pub destination: LidAddress,
    pub source_qp: QueuePair,
    pub destination_qp: QueuePair,
    pub source_gid: Option<Gid>,
    pub destination_gid: Option<Gid>,
}

impl Flow {
    pub fn of(datagram: &Datagram) -> Self {
        Self {
            pkey: datagram.pkey,
            sl: datagram.sl,
            source: datagram.slid,
            destination: datagram.dlid,
            source_qp: datagram.sqp,
            destination_qp: datagram.dqp,
            source_gid: datagram.grh.map(|grh| grh.source),
            destination_gid: datagram.grh.map(|grh| grh.destination),
        }
    }
}

impl Fabric {
    /// Raises trap 128: a link of a switch went up or down.
    pub(crate) fn raise_link_state_change(&mut self, end: PortId) {
        let lid = self.port(end).info.lid.map(LidAddress::from);
        self.raise(end, Trap::LinkStateChanged(SwitchEvent { lid }));
    }

    /// Raises trap 144: the capability mask of a port changed.
    pub(crate) fn raise_capability_change(&mut self, end: PortId) {
        self.raise_local_change(end, LocalChangeFlags::default());
    }

    /// Raises trap 144: the node description changed.
    pub(crate) fn raise_description_change(&mut self, end: PortId) {
        self.raise_local_change(end, LocalChangeFlags::NODE_DESCRIPTION);
    }

    fn raise_local_change(&mut self, end: PortId, changes: LocalChangeFlags) {
        let info = &self.port(end).info;
        let change = LocalChange {
            lid: info.lid.map(LidAddress::from),
            other_changes: changes != LocalChangeFlags::default(),
            capability: info.capability,
            changes,
        };
        self.raise(end, Trap::LocalChange(change));
    }

    /// Raises trap 256: wrong M_Key.
    pub(crate) fn report_bad_key(&mut self, guard: PortId, source: LidAddress, request: &Mad) {
        let is_directed = request.class() == ManagementClass::SUBNET_DIRECTED;
        let hops = if is_directed { request.hop_count() } else { 0 };
        let trap = BadMKey {
            lid: Some(source),
            directed_source: if is_directed { request.directed_source() } else { None },
            method: request.method(),
            attribute: request.attribute(),
            modifier: request.modifier(),
            m_key: request.m_key(),
            is_directed,
            is_truncated: usize::from(hops) > 30,
            hop_count: hops.min(30),
            return_path: std::array::from_fn(|i| {
                let hop = i as u8 + 1;
                if hop <= hops { request.return_path(hop).unwrap_or(0) } else { 0 }
            }),
        };
        self.report_violation(guard, Trap::BadMKey(trap));
    }

    /// Raises trap 257: an end port does not accept the P_Key of a packet.
    pub(crate) fn report_bad_pkey(&mut self, end: PortId, flow: Flow) {
        self.report_violation(
            end,
            Trap::BadPkey(BadPkey {
                source: Some(flow.source),
                destination: Some(flow.destination),
                pkey: Some(flow.pkey),
                sl: flow.sl,
                source_qp: flow.source_qp,
                destination_qp: flow.destination_qp,
                source_gid: flow.source_gid.unwrap_or_default(),
                destination_gid: flow.destination_gid.unwrap_or_default(),
            }),
        );
    }

    /// Raises trap 258: wrong Q_Key.
    pub(crate) fn report_bad_qkey(&mut self, end: PortId, flow: Flow, qkey: QKey) {
        self.report_violation(
            end,
            Trap::BadQKey(BadQKey {
                source: Some(flow.source),
                destination: Some(flow.destination),
                qkey,
                sl: flow.sl,
                source_qp: flow.source_qp,
                destination_qp: flow.destination_qp,
                source_gid: flow.source_gid.unwrap_or_default(),
                destination_gid: flow.destination_gid.unwrap_or_default(),
            }),
        );
    }

    /// Raises trap 259: a switch port filtered a packet for its P_Key.
    pub(crate) fn report_bad_pkey_at_switch(&mut self, port: PortId, flow: Flow) {
        /// Valid-bits of the trap: LIDs, P_Key, service level and queue pairs are valid; GIDs if the packet
        /// had a GRH.
        const VALID: u16 = 0xff;
        let end = self.end_port(port);
        let trap = SwitchBadPkey {
            valid: VALID,
            source: Some(flow.source),
            destination: Some(flow.destination),
            pkey: Some(flow.pkey),
            sl: flow.sl,
            source_qp: flow.source_qp,
            destination_qp: flow.destination_qp,
            source_gid: flow.source_gid.unwrap_or_default(),
            destination_gid: flow.destination_gid.unwrap_or_default(),
            switch_lid: self.port(end).info.lid.map(LidAddress::from),
            port: self.port(port).number,
        };
        self.report_violation(end, Trap::SwitchBadPkey(trap));
    }

    fn report_violation(&mut self, end: PortId, trap: Trap) {
        let (now, number) = (self.now, trap.number());
        let reported = &mut self.port_mut(end).traps.reported;
        match reported.iter_mut().find(|(known, _)| *known == number) {
            Some((_, at)) if now < *at + VIOLATION_SPACING => return,
            Some((_, at)) => *at = now,
            None => reported.push((number, now)),
        }
        self.raise(end, trap);
    }

    /// Sends a trap to the master subnet manager, if the port has a LID and MasterSMLID is set.
    fn raise(&mut self, end: PortId, trap: Trap) {
        let number = trap.number();
        let info = &self.port(end).info;
        let (Some(lid), Some(_)) = (info.lid, info.master_sm_lid) else { return };
        if self.port(end).traps.waiting.iter().any(|waiting| waiting.number == number) {
            return;
        }
        self.trap_transactions = self.trap_transactions.wrapping_add(1);
        let transaction = self.trap_transactions as u32;
        let mut mad = Mad::new(ManagementClass::SUBNET_LID, Method::TRAP, Attribute::NOTICE, 0);
        mad.set_transaction(TransactionId(transaction.into()));
        *mad.smp_data_mut() = self.notice(end, trap, lid.into()).encode_smp();
        let repeat_at = self.now + REPEAT_AFTER;
        let waiting = WaitingTrap {
            number,
            transaction,
            mad: Box::new(mad.clone()),
            repeat_at,
            repeats_left: REPEATS_MAX,
        };
        self.port_mut(end).traps.waiting.push(waiting);
        self.start_timer(repeat_at, Timer::Traps(end));
        self.send_trap(end, mad, number);
    }

    fn notice(&self, end: PortId, trap: Trap, lid: LidAddress) -> Notice {
        let producer = match self.device_of(end).info.kind {
            NodeKind::Switch => Producer::Switch,
            NodeKind::Router => Producer::Router,
            _ => Producer::Adapter,
        };
        let mut notice = Notice::generic(trap, Some(lid));
        if let NoticeEvent::Generic { producer: usual, .. } = &mut notice.event {
            *usual = producer;
        }
        notice
    }

    fn send_trap(&mut self, end: PortId, mad: Mad, number: u16) {
        let info = &self.port(end).info;
        let (Some(lid), Some(manager)) = (info.lid, info.master_sm_lid) else { return };
        let mut datagram = Datagram::subnet_management(lid.into(), manager.into(), mad);
        datagram.sl = info.master_sm_sl;
        *self.traps_sent.entry(number).or_default() += 1;
        match self.carry_subnet_management(end, &mut datagram) {
            Ok(Some(port)) => self.push_output(FabricOutput::Deliver { port, datagram }),
            Ok(None) => {}
            Err(reason) => self.count_drop(reason),
        }
    }

    /// Handles TrapRepress. Only the master subnet manager can repress a trap, and only with the M_Key.
    pub(crate) fn repress_trap(&mut self, end: PortId, source: LidAddress, mad: &Mad) -> AgentOutcome {
        if self.port(end).info.master_sm_lid.map(LidAddress::from) != Some(source) {
            return AgentOutcome::Dropped(DropReason::ManagementKey);
        }
        // The upper half of a transaction id belongs to the transport.
        let transaction = mad.transaction().0 as u32;
        let is_waiting = self.port(end).traps.waiting.iter().any(|trap| trap.transaction == transaction);
        // The software behind the port is a subnet manager and may have sent the trap itself.
        if !is_waiting && self.port(end).is_sm {
            return AgentOutcome::ForSoftware;
        }
        let needs_key = self.profile.behaviour.trap_repress_needs_key;
        if needs_key && self.check_key(end, Operation::Set, source, mad) == Access::Denied {
            return AgentOutcome::Dropped(DropReason::ManagementKey);
        }
        if !is_waiting {
            return AgentOutcome::Dropped(DropReason::Unanswered);
        }
        self.port_mut(end).traps.waiting.retain(|trap| trap.transaction != transaction);
        AgentOutcome::UsedUp
    }

    /// Repeats the traps of a port that are due.
    pub(crate) fn repeat_traps(&mut self, end: PortId) {
        let now = self.now;
        let mut again = Vec::new();
        let waiting = &mut self.port_mut(end).traps.waiting;
        waiting.retain_mut(|trap| {
            if trap.repeat_at > now {
                return true;
            }
            if trap.repeats_left == 0 {
                return false;
            }
            trap.repeats_left -= 1;
            trap.repeat_at = now + REPEAT_AFTER;
            again.push((trap.number, trap.mad.as_ref().clone()));
            true
        });
        for (number, mad) in again {
            self.start_timer(now + REPEAT_AFTER, Timer::Traps(end));
            self.send_trap(end, mad, number);
        }
    }
}
