//! What a programming run wrote is read back, and what a device did not take is recorded as a [`Lack`].
//!
//! A device may refuse a Set, answer it with other values, or answer it well and hold something else. All three end here.
//! A host port that lacks what isolates tenants is taken down at once, at the switch side of its link, and stays down; the
//! rest of the run goes on. At its end the fabric is reported again, with the lacks among its capabilities, and the next
//! plan does without them.

use std::collections::BTreeSet;
use std::time::Duration;

use fabric_model::FabricPlan;
use fabric_model::intent::PortName;
use fabric_model::plan::SwitchPortPlan;
use ib_wire::{Attribute, Guid, Mad, PortInfo, PortNum, SMP_DATA_LEN, Status};

use crate::attribute_key::AttributeRef;
use crate::backlog::{Job, JobKind};
use crate::entry_class::{EntryClass, port_concerned};
use crate::event::SmEvent;
use crate::lacks::{Lack, LackAnswer, describe};
use crate::manager::{Manager, Phase};
use crate::observed::{Observed, ObservedNode, is_host};
use crate::program::{Stage, close, hops};

/// Blocks of forwarding tables that a run reads back. One that writes more, such as the first, has the answers to its Sets
/// and leaves the rest to the audits of sweeps: at 11,664 hosts, reading all of them back would cost half as many SMPs
/// again.
const ROUTES_MAX: usize = 4096;

/// The attributes that a programming run wrote.
#[derive(Debug, Default)]
pub(crate) struct Written {
    entries: Vec<AttributeRef>,
    /// Blocks of forwarding tables; not more than are of use.
    routes: Vec<AttributeRef>,
}

impl Written {
    pub fn note(&mut self, target: AttributeRef) {
        match target.2.0 {
            Attribute::LINEAR_FORWARDING | Attribute::MULTICAST_FORWARDING => {
                if self.routes.len() <= ROUTES_MAX {
                    self.routes.push(target);
                }
            }
            _ => self.entries.push(target),
        }
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.routes.clear();
    }

    /// Takes what has to be read back, each attribute once.
    fn take(&mut self) -> Vec<AttributeRef> {
        let mut targets = std::mem::take(&mut self.entries);
        let mut routes = std::mem::take(&mut self.routes);
        if routes.len() <= ROUTES_MAX {
            targets.append(&mut routes);
        }
        targets.sort_unstable();
        targets.dedup();
        targets
    }
}

impl Manager {
    /// All tables are written: reads them back before ports become active. Returns whether there is anything to read.
    pub(crate) fn begin_verification(&mut self) -> bool {
        let mut targets = Vec::new();
        for target in self.written.take() {
            let (guid, port, key) = target;
            match self.observed.nodes.get(&guid).and_then(|node| hops(node, key)) {
                Some(hops) => targets.extend(hops.map(|hop| (guid, port, hop))),
                None => targets.push(target),
            }
        }
        if targets.is_empty() {
            return false;
        }
        self.phase = Phase::Verifying;
        self.backlog.fill(targets.into_iter().map(|target| Job { target, kind: JobKind::Verify }));
        true
    }

    /// Everything is read back: closes ports if necessary, and goes on with the run.
    pub(crate) fn conclude_verification(&mut self, now: Duration) {
        if self.close_ports() {
            return;
        }
        if !self.silent.is_empty() {
            return self.interrupt(now);
        }
        self.begin_stage(Stage::Active);
    }

    /// Handles the answer to a read of what was written: the value that the device holds, or the status with which it
    /// refuses to show it.
    pub(crate) fn check_read_back_answer(&mut self, target: AttributeRef, answer: &Mad) {
        let (guid, port, key) = target;
        match answer.status() {
            Status::OK => self.check_read_back(target, answer.smp_data()),
            status => {
                let known = self.observed.nodes.get(&guid).and_then(|node| node.held(port, key));
                let wanted = known.unwrap_or([0; SMP_DATA_LEN]);
                self.record_lack(target, &wanted, None, LackAnswer::Refused(status));
            }
        }
    }

    /// Compares the value that a device holds after a programming run with the one that it confirmed.
    fn check_read_back(&mut self, target: AttributeRef, data: &[u8; SMP_DATA_LEN]) {
        let (guid, port, key) = target;
        let known = self.observed.nodes.get(&guid).and_then(|node| node.held(port, key));
        let Some(known) = known.filter(|known| known != data) else { return };
        let has_fields = matches!(key.0, Attribute::PORT_INFO | Attribute::SWITCH_INFO);
        let class = EntryClass::of_difference(key.0, &known, Some(data));
        // Fields beside those of a class change by themselves, such as states and counters; tables do not.
        if class == EntryClass::Other && has_fields {
            return;
        }
        // A device that restarted meanwhile has lost everything: it is programmed once more before it is judged.
        if self.doubted.insert(target) {
            self.silent.insert(guid);
            return;
        }
        self.record_lack(target, &known, Some(data), LackAnswer::Ineffective);
        if class == EntryClass::Other {
            let blank = known.map(|byte| !byte);
            self.learn_unsupported(target, &blank, &known, data);
        }
    }

    /// Handles the answer to a Set, before it is recorded.
    pub(crate) fn check_taken(&mut self, target: AttributeRef, request: &Mad, answer: &Mad) {
        let (guid, port, key) = target;
        // A device may repeat the request to register, or not: it is no state.
        let (wanted, answered) = (&without_request(request), &without_request(answer));
        let status = answer.status();
        if status == Status::OK && wanted == answered {
            return;
        }
        let before = self.observed.nodes.get(&guid).and_then(|node| node.held(port, key));
        if status == Status::OK {
            self.record_lack(target, wanted, Some(answered), LackAnswer::Ineffective);
            // Of a value that was not read, no bit is known to be as it should.
            let before = before.unwrap_or_else(|| wanted.map(|byte| !byte));
            self.learn_unsupported(target, &before, wanted, answered);
        } else {
            self.record_lack(target, wanted, before.as_ref(), LackAnswer::Refused(status));
        }
    }

    /// Records bits that a Set left unchanged.
    fn learn_unsupported(
        &mut self,
        target: AttributeRef,
        before: &[u8; SMP_DATA_LEN],
        wanted: &[u8; SMP_DATA_LEN],
        held: &[u8; SMP_DATA_LEN],
    ) {
        if self.unsupported.learn(target, before, wanted, held) {
            self.has_learned = true;
            let (node, _, (attribute, modifier)) = target;
            self.emit(SmEvent::Unsupported { node, attribute, modifier });
        }
    }

    /// Records an entry that a device did not take, if it isolates a port that the plan isolates, or carries guarantees of
    /// the plan.
    fn record_lack(
        &mut self,
        target: AttributeRef,
        wanted: &[u8; SMP_DATA_LEN],
        held: Option<&[u8; SMP_DATA_LEN]>,
        answer: LackAnswer,
    ) {
        let (guid, reached, key) = target;
        let Some(node) = self.observed.nodes.get(&guid) else { return };
        if let Some(hops) = hops(node, key) {
            let hops: Vec<_> = hops.map(|hop| (hop, node.held(reached, hop))).collect();
            for (hop, before) in hops {
                self.record_lack((guid, reached, hop), wanted, held.or(before.as_ref()), answer);
            }
            return;
        }
        let mut class = EntryClass::of_difference(key.0, wanted, held);
        let port_of =
            |class| PortName { node: guid, port: port_concerned(reached, key, class, node.is_switch()) };
        // Where packets of switches come in, a service level that is not discarded harms guarantees only.
        let is_hop = key.0 == Attribute::SL_TO_VL && node.is_switch();
        if class == EntryClass::Isolation && is_hop && self.host_behind(port_of(class)).is_none() {
            class = EntryClass::Guarantee;
        }
        let is_needed = match (class, &self.plan) {
            (EntryClass::Isolation, Some(plan)) => self.is_isolated(plan, port_of(class)),
            (EntryClass::Guarantee, Some(plan)) => carries_guarantees(plan),
            (EntryClass::Other, _) | (_, None) => false,
        };
        if !is_needed {
            return;
        }
        let lack = Lack {
            port: port_of(class),
            class,
            attribute: key.0,
            modifier: key.1,
            answer,
            written: describe(key.0, wanted),
        };
        let end = if node.is_switch() { PortNum::MANAGEMENT } else { reached };
        if node.ports.get(&end).is_some_and(|info| info.lid.is_some()) {
            self.lacking_with_lid.insert(guid);
        }
        if self.lacks.learn(target, lack.clone()) {
            (self.has_new_lacks, self.has_learned) = (true, true);
            if !self.reported_lacks.contains(&target) {
                self.emit(SmEvent::Lacking(lack));
            }
        }
    }

    /// Takes down the links that must carry no data, at the switch side. Returns whether there are any.
    pub(crate) fn close_ports(&mut self) -> bool {
        let mut writes = Vec::new();
        for port in self.closed_ports() {
            let node = self.observed.nodes.get(&port.node);
            let write = node.and_then(|node| close(node, port.port));
            // A device that refuses to is not asked again in this run.
            if let Some((key, data)) = write.filter(|_| self.closing.insert(port)) {
                let target = (port.node, PortNum::MANAGEMENT, key);
                writes.push(Job { target, kind: JobKind::Write(data) });
            }
        }
        let is_any = !writes.is_empty();
        self.backlog.fill(writes);
        is_any
    }

    /// The switch ports whose links must carry no data.
    fn closed_ports(&self) -> BTreeSet<PortName> {
        let mut ports = BTreeSet::new();
        for lack in self.lacks.iter().filter(|lack| lack.class == EntryClass::Isolation) {
            let Some(node) = self.observed.nodes.get(&lack.port.node) else { continue };
            if !node.is_switch() {
                ports.extend(self.switch_port_before(node, lack.port.port));
            } else if lack.port.port == PortNum::MANAGEMENT {
                ports.extend(node.ports.keys().map(|port| PortName { port: *port, ..lack.port }));
            } else {
                ports.insert(lack.port);
            }
        }
        ports.retain(|port| {
            let is_isolated = self.plan.as_ref().is_some_and(|plan| self.is_isolated(plan, *port));
            is_isolated && self.host_behind(*port).is_some_and(|host| self.lacks.close(*port, host))
        });
        ports
    }

    /// Whether a plan isolates a port: switch ports to hosts enforce partitions, unless nobody has to be isolated. Port 0
    /// stands for all ports of its switch.
    fn is_isolated(&self, plan: &FabricPlan, port: PortName) -> bool {
        if let Some(switch) = plan.switch(port.node) {
            return match port.port {
                PortNum::MANAGEMENT => switch.ports.iter().any(SwitchPortPlan::is_enforced),
                number => switch.port(number).is_some_and(SwitchPortPlan::is_enforced),
            };
        }
        let node = self.observed.nodes.get(&port.node);
        let switch_port = node.and_then(|node| self.switch_port_before(node, port.port));
        switch_port.is_some_and(|port| plan.switch(port.node).is_some() && self.is_isolated(plan, port))
    }

    /// Before a plan is applied that isolates ports or carries guarantees, and the one before did not: what devices ignored
    /// meanwhile is written again, and recorded as a lack if they ignore it still.
    pub(crate) fn forget_needed_bits(&mut self, plan: &FabricPlan) {
        let is_new = |has: fn(&FabricPlan) -> bool| has(plan) && !self.plan.as_deref().is_some_and(has);
        let isolation = is_new(isolates_ports).then_some(EntryClass::Isolation);
        let guarantee = is_new(carries_guarantees).then_some(EntryClass::Guarantee);
        for class in isolation.into_iter().chain(guarantee) {
            self.unsupported.forget_unless_lacking(class, &self.lacks);
        }
    }

    /// The host port behind a switch port, as observed or, while the link trains, as planned.
    fn host_behind(&self, switch_port: PortName) -> Option<PortName> {
        let Observed { nodes, own, .. } = &self.observed;
        let node = nodes.get(&switch_port.node)?;
        let observed =
            node.links.get(&switch_port.port).map(|(node, port)| PortName { node: *node, port: *port });
        let planned = || Some(self.plan.as_ref()?.switch(switch_port.node)?.port(switch_port.port)?.peer);
        observed.or_else(planned).filter(|peer| is_host(nodes, *own, *peer))
    }

    /// The switch port in front of an adapter port, as observed or, while the link trains, as planned.
    fn switch_port_before(&self, adapter: &ObservedNode, port: PortNum) -> Option<PortName> {
        let observed = adapter.links.get(&port).map(|(node, port)| PortName { node: *node, port: *port });
        let planned = || Some(self.plan.as_ref()?.adapter_port(*adapter.port_guids.get(&port)?)?.peer);
        observed.or_else(planned)
    }

    /// At the end of a programming run: reports lacks that are gone, and the fabric if there are new ones.
    /// Returns whether the fabric was reported, so that another plan follows.
    pub(crate) fn settle_lacks(&mut self, now: Duration) -> bool {
        let ended: Vec<Lack> = self.reported_lacks.without(&self.lacks).cloned().collect();
        ended.into_iter().for_each(|lack| self.emit(SmEvent::LackEnded(lack)));
        self.reported_lacks.clone_from(&self.lacks);
        if self.lacks.is_empty() {
            self.lack_retry.reset();
        } else {
            self.lack_retry.schedule(now);
        }
        std::mem::take(&mut self.has_new_lacks) && self.report_capabilities()
    }

    /// Tries again what devices did not take, at the request of an operator. Reports the fabric without these lacks, as
    /// [`SmEvent::Discovered`]; the plan that follows has the entries.
    pub fn retry_lacks(&mut self, now: Duration) {
        self.now = now;
        self.forget_lacks(now);
        self.proceed(now);
    }

    /// Forgets what devices did not take, so that it is tried again.
    pub(crate) fn forget_lacks(&mut self, now: Duration) {
        let targets: Vec<AttributeRef> = self.lacks.targets().copied().collect();
        for target in &targets {
            self.unsupported.forget(target);
        }
        self.lacks = Default::default();
        self.forget_lacks_of(now, targets.into_iter().map(|(node, ..)| node));
    }

    /// A node that had a LID has none: it has restarted, perhaps with other firmware, and may take what it did not.
    pub(crate) fn notice_restart(&mut self, guid: Guid, number: PortNum, info: &PortInfo) {
        let is_end = self.observed.nodes.get(&guid).is_some_and(|node| !node.is_switch())
            || number == PortNum::MANAGEMENT;
        if !is_end || info.lid.is_some() || !self.lacking_with_lid.remove(&guid) {
            return;
        }
        let targets: Vec<AttributeRef> =
            self.lacks.targets().filter(|(node, ..)| *node == guid).copied().collect();
        targets.iter().for_each(|target| self.unsupported.forget(target));
        if self.lacks.forget_node(guid) {
            self.forget_lacks_of(self.now, [guid].into_iter());
        }
    }

    fn forget_lacks_of(&mut self, now: Duration, nodes: impl Iterator<Item = Guid>) {
        self.has_learned = true;
        self.observed.changed = true;
        for node in nodes {
            self.changed.insert(node);
            self.sweeps.schedule_recheck(now, node);
        }
    }
}

fn isolates_ports(plan: &FabricPlan) -> bool {
    plan.switches().any(|switch| switch.ports.iter().any(SwitchPortPlan::is_enforced))
}

fn carries_guarantees(plan: &FabricPlan) -> bool {
    plan.decisions().sl_enforcement
}

/// The data of a subnet management datagram, without the request to register at subnet administration.
fn without_request(mad: &Mad) -> [u8; SMP_DATA_LEN] {
    let data = *mad.smp_data();
    match PortInfo::decode(&data) {
        Ok(info) if mad.attribute() == Attribute::PORT_INFO && info.client_reregister => {
            PortInfo { client_reregister: false, ..info }.encode()
        }
        _ => data,
    }
}
