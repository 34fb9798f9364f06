//! Unsolicited datagrams: traps, and SMInfo requests of other subnet managers.

use std::time::Duration;

use fabric_model::FabricPlan;
use fabric_model::intent::PortName;
use ib_wire::notice::Notice;
use ib_wire::{Attribute, Datagram, LidAddress, Method, PortNum, SmInfo};

use crate::event::SmEvent;
use crate::manager::Manager;
use crate::standby::sm_info_answer;

/// Limit on queued responses. Further requests get none.
const ANSWERS_MAX: usize = 1024;

impl Manager {
    /// Handles a subnet management datagram that is not a response.
    pub(crate) fn handle_request(&mut self, now: Duration, datagram: &Datagram) {
        let mad = &datagram.mad;
        match (mad.method(), mad.attribute()) {
            (Method::TRAP, Attribute::NOTICE) => self.handle_trap(now, datagram),
            (Method::GET | Method::SET, Attribute::SM_INFO) => self.answer_sm_info(datagram),
            _ => {}
        }
    }

    /// Handles a trap. It only causes a recheck of the node and a report to those who may know about devices, because anybody
    /// can send one.
    fn handle_trap(&mut self, now: Duration, datagram: &Datagram) {
        let Some(plan) = &self.plan else { return };
        let (Some(port), Ok(notice)) =
            (port_of(plan, datagram.slid), Notice::decode_smp(datagram.mad.smp_data()))
        else {
            return;
        };
        let node = port.node;
        let manager = LidAddress::Unicast(plan.manager().lid);
        let mut mad = datagram.mad.clone();
        mad.set_method(Method::TRAP_REPRESS);
        // Devices check the key of a TrapRepress as that of a Set (A-TRAP-6). The owner of the source LID gets its own key.
        mad.set_m_key(self.key_of(port));
        self.answer(Datagram::subnet_management(manager, datagram.slid, mad));
        self.sweeps.schedule_recheck(now, node);
        self.sa.forward(now, datagram.slid, &notice);
        if let Some(trap) = notice.trap() {
            self.emit(SmEvent::TrapReceived { node, trap: trap.clone() });
        }
    }

    /// Responds to SMInfo. A Set is rejected: this manager obeys no other.
    fn answer_sm_info(&mut self, request: &Datagram) {
        if request.mad.method() == Method::SET {
            self.election.claims_refused += 1;
            if self.election.take_claim_report(self.now) {
                self.emit(SmEvent::ClaimRefused { from: request.slid, order: request.mad.modifier() });
            }
        }
        let info = SmInfo {
            guid: self.observed.own.map(|own| own.guid),
            sm_key: self.settings.sm_key,
            activity: self.activity,
            priority: self.settings.priority.min(15),
            state: self.sm_state(),
        };
        self.answer(sm_info_answer(request, &info));
    }

    fn answer(&mut self, datagram: Datagram) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back(datagram);
        }
    }
}

/// The end port that owns a LID.
fn port_of(plan: &FabricPlan, lid: LidAddress) -> Option<PortName> {
    let LidAddress::Unicast(lid) = lid else { return None };
    let owner = plan.lid_owner(lid)?;
    match plan.adapter_port(owner) {
        Some(port) => Some(port.name),
        // The port GUID of switch port 0 usually equals the node GUID, but need not.
        None => plan
            .switches()
            .find(|switch| switch.port_guid == owner)
            .map(|switch| PortName { node: switch.guid, port: PortNum::MANAGEMENT }),
    }
}
