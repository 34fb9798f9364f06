//! Responses to the requests of the manager, and requests without response.

use std::time::Duration;

use ib_wire::{
    AdaptiveRoutingInfo, Attribute, Mad, MlnxExtPortInfo, NodeInfo, PortInfo, PortState, SMP_DATA_LEN, Status,
};

use crate::attribute_key::AttributeRef;
use crate::event::SmEvent;
use crate::manager::{Manager, Phase};
use crate::program::Stage;
use crate::purpose::Purpose;
use crate::rotation::port_info_of;

/// Programming runs in a row that a silent node may interrupt before it is left out.
const STRIKES_MAX: u8 = 3;

impl Manager {
    /// Handles requests that were given up.
    pub(crate) fn handle_silence(&mut self, now: Duration, silent: impl IntoIterator<Item = Purpose>) {
        for purpose in silent {
            match purpose {
                Purpose::Probe { from, route, attempt, .. } => {
                    // Another node, or its key is another one.
                    let is_probed_again = self.probe_again(from, route, attempt + 1);
                    let last = self.bound.node(from);
                    if !is_probed_again && self.unresolved.insert(from, None) != Some(None) {
                        self.emit(SmEvent::SilentLocation { location: from, last });
                    }
                }
                // It counts as QDR, which is slower; adaptive routing counts as before.
                Purpose::Fdr10 { .. } | Purpose::AdaptiveRouting { .. } => {}
                Purpose::ForeignManager { node, port } => self.record_silent_manager(node, port),
                Purpose::Rekey { port } => {
                    // The nodes that are left wait for another batch, but for those that were asked before: they may have
                    // changed. Checks go on.
                    let is_rekey = |purpose: &Purpose| matches!(purpose, Purpose::Rekey { .. });
                    let asked = self.window.drop_waiting(is_rekey);
                    self.check_rekeyed(port);
                    for purpose in asked {
                        if let Purpose::Rekey { port } = purpose {
                            self.check_rekeyed(port);
                        }
                    }
                }
                Purpose::RekeyCheck { port, version } => self.handle_silent_check(now, port, version),
                Purpose::Read { target }
                | Purpose::Audit { target }
                | Purpose::LightSweep { target }
                | Purpose::Recheck { target }
                | Purpose::Write { target }
                | Purpose::Verify { target }
                | Purpose::Register { target }
                | Purpose::ActivationCheck { target, .. } => self.handle_silent_attribute(now, target),
            }
        }
    }

    /// A node does not answer. In a discovery run it counts as gone; in a programming run it is rechecked.
    pub(crate) fn handle_silent_attribute(&mut self, now: Duration, target: AttributeRef) {
        let (guid, port, key) = target;
        self.emit(SmEvent::NodeSilent { node: guid, attribute: key.0 });
        let is_discovering = self.is_discovering();
        let Some(node) = self.observed.nodes.get_mut(&guid) else { return };
        // It is unknown whether an unconfirmed Set took effect.
        node.tables.remove(&(port, key));
        if !self.silent.contains(&guid) {
            node.strikes = node.strikes.saturating_add(1);
        }
        if is_discovering || node.strikes >= STRIKES_MAX {
            self.observed.disconnect_all(guid);
        }
        if !is_discovering {
            self.silent.insert(guid);
            self.sweeps.schedule_recheck_of_silent(now, guid);
            self.give_up_step();
        }
    }

    /// A step of a programming run is not completed, so what follows would be in vain: sends nothing more of it. The sooner the run
    /// ends, the sooner a broken link is routed around.
    fn give_up_step(&mut self) {
        if !matches!(self.phase, Phase::Reading | Phase::Writing(_) | Phase::Verifying) {
            return;
        }
        self.backlog.clear();
        for purpose in self.window.drop_waiting(|_| true) {
            if let Purpose::Write { target: (node, port, key) } = purpose {
                // It was sent, and may have been carried out.
                self.changed.insert(node);
                if let Some(node) = self.observed.nodes.get_mut(&node) {
                    node.tables.remove(&(port, key));
                }
            }
        }
    }

    /// Handles the response `mad` to a request.
    pub(crate) fn handle_answer(&mut self, now: Duration, purpose: Purpose, request: &Mad, mad: &Mad) {
        let data = mad.smp_data();
        let is_ok = mad.status() == Status::OK;
        match purpose {
            Purpose::Probe { from, route, presented, .. } => {
                if let Some(info) = NodeInfo::decode(data).ok().filter(|_| is_ok) {
                    self.register_node(info, from, route, presented);
                }
            }
            Purpose::Rekey { port } => {
                self.check_understood(is_ok, port_info_of(port), mad);
                self.check_rekeyed(port);
            }
            Purpose::RekeyCheck { port, version } => {
                let understood = is_ok && self.record(port_info_of(port), data);
                self.check_understood(understood, port_info_of(port), mad);
                self.record_version(now, port, version, data);
            }
            Purpose::ForeignManager { node, port } => self.record_foreign_manager(node, port, data),
            Purpose::Read { target } => {
                let understood = is_ok && self.record(target, data);
                self.check_understood(understood, target, mad);
                self.read_further_ports(target, request);
                self.review_key(target, data);
            }
            Purpose::Audit { target } => {
                self.compare_with_known(target, data);
                let understood = is_ok && self.record(target, data);
                self.check_understood(understood, target, mad);
            }
            Purpose::LightSweep { target } => {
                let understood = is_ok && self.record_switch(target, data, false);
                self.check_understood(understood, target, mad);
            }
            Purpose::Recheck { target } => {
                let understood = is_ok && self.record_switch(target, data, true);
                self.check_understood(understood, target, mad);
            }
            Purpose::Write { target } if !is_ok && is_activation(target, request) => {
                // The port may be Active already: data that arrive at an armed port activate it (A-PORT-9).
                let refusal = mad.status();
                self.request_get(target, Purpose::ActivationCheck { target, refusal });
            }
            Purpose::Fdr10 { target } => {
                self.record_fdr10(target, MlnxExtPortInfo::decode(data).ok().filter(|_| is_ok))
            }
            Purpose::AdaptiveRouting { node } => {
                self.record_adaptive_routing(node, AdaptiveRoutingInfo::decode(data).ok().filter(|_| is_ok))
            }
            Purpose::ActivationCheck { target, refusal } => {
                let is_active = is_ok
                    && self.record(target, data)
                    && PortInfo::decode(data).is_ok_and(|info| info.state == PortState::Active);
                if !is_active {
                    self.report_refusal(target, Some(refusal));
                }
            }
            Purpose::Register { target } => {
                self.record_asked(target);
                let understood = is_ok && self.record(target, data);
                self.check_understood(understood, target, mad);
            }
            Purpose::Verify { target } => {
                self.check_read_back_answer(target, mad);
                let understood = is_ok && self.record(target, data);
                self.check_understood(understood, target, mad);
            }
            Purpose::Write { target } => {
                if PortInfo::asks_to_register(request) {
                    self.record_asked(target);
                }
                self.check_taken(target, request, mad);
                let understood = is_ok && self.record(target, data);
                self.check_understood(understood, target, mad);
            }
        }
    }

    /// Marks a node as changed if an attribute differs from the known value.
    fn compare_with_known(&mut self, target: AttributeRef, data: &[u8; SMP_DATA_LEN]) {
        let (guid, port, key) = target;
        let known = self.observed.nodes.get(&guid).and_then(|node| node.held(port, key));
        if known.is_none_or(|known| known != *data) {
            self.changed.insert(guid);
        }
    }

    /// Reports a request that was refused or whose response cannot be decoded.
    fn check_understood(&mut self, understood: bool, target: AttributeRef, mad: &Mad) {
        if !understood {
            self.report_refusal(target, Some(mad.status()).filter(|status| *status != Status::OK));
        }
    }

    fn report_refusal(&mut self, (node, _, (attribute, modifier)): AttributeRef, status: Option<Status>) {
        self.emit(SmEvent::RequestRefused { node, attribute, modifier, status });
        if self.phase == Phase::Writing(Stage::Active) {
            // It was armed and is not any more: it may have restarted and lost its tables.
            self.silent.insert(node);
        }
    }
}

/// Whether a Set requests PortState Active.
fn is_activation((_, _, (attribute, _)): AttributeRef, request: &Mad) -> bool {
    attribute == Attribute::PORT_INFO
        && PortInfo::decode(request.smp_data()).is_ok_and(|info| info.state == PortState::Active)
}
