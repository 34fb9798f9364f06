//! A discovery run: probes locations, registers the nodes that answer, reads their attributes and compares
//! them with the known values.

use ib_wire::{
    Attribute, Capability, DirectedRoute, Guid, Mad, Method, MlnxExtPortInfo, NodeDescription, NodeInfo,
    NodeKind, PortInfo, PortNum, PortState, SMP_DATA_LEN, SwitchInfo,
};

use fabric_model::intent::PortName;
use fabric_model::{LinkRate, NODES_MAX, Speed};

use crate::adaptive_routing::may_route_adaptively;
use crate::attribute_key::AttributeKey;
use crate::attribute_key::AttributeRef;
use crate::event::SmEvent;
use crate::key_ring::KeyVersion;
use crate::keys::Location;
use crate::mad_window::RetryPolicy;
use crate::manager::Manager;
use crate::observed::{self, ObservedNode, OwnPort, is_up};
use crate::program::hops;
use crate::purpose::Purpose;

impl Manager {
    /// Starts a discovery run over the whole fabric, from the manager's own port.
    pub(crate) fn discover_all(&mut self) {
        self.begin_discovery_run();
        self.probe(None, DirectedRoute::default());
    }

    /// Reads the attributes of a node and its ports again.
    pub(crate) fn recheck_node(&mut self, guid: Guid) {
        let Some(node) = self.observed.nodes.get(&guid) else { return };
        if node.is_switch() {
            let target = (guid, PortNum::MANAGEMENT, (Attribute::SWITCH_INFO, 0));
            self.request_get(target, Purpose::Recheck { target });
        } else {
            let ports: Vec<PortNum> = node.routes.keys().copied().collect();
            for port in ports {
                self.read((guid, port, (Attribute::NODE_DESCRIPTION, 0)));
                self.audit((guid, port, port_info_key(port)));
            }
        }
    }

    /// Starts a light sweep: asks every switch for PortStateChange, probes locations that did not answer
    /// before, and audits a part of all known attributes.
    pub(crate) fn sweep(&mut self) {
        if self.observed.own.is_none() {
            return self.discover_all();
        }
        self.begin_discovery_run();
        self.look_at_switches();
        self.query_managers();
        self.sweep_counters();
        for (near, port, route) in self.observed.open_ends() {
            self.probe(Some(Location { near, port }), route);
        }
        let nodes = &self.observed.nodes;
        let audit = self.sweeps.take_audit(|| {
            let targets = |(guid, node): (&Guid, &ObservedNode)| -> Vec<AttributeRef> {
                let guid = *guid;
                let own = |port: PortNum| if node.is_switch() { PortNum::MANAGEMENT } else { port };
                let ports = node.ports.keys().map(|port| (guid, own(*port), port_info_key(*port)));
                let tables = node.tables.keys().map(|(port, key)| (guid, *port, *key));
                ports.chain(tables).collect()
            };
            nodes.iter().flat_map(targets).collect()
        });
        for target in audit {
            self.audit(target);
        }
    }

    /// Asks every switch whether the state of a port has changed.
    pub(crate) fn look_at_switches(&mut self) {
        let switches: Vec<Guid> =
            self.observed.nodes.iter().filter(|(_, node)| node.is_switch()).map(|(guid, _)| *guid).collect();
        for guid in switches {
            let target = (guid, PortNum::MANAGEMENT, (Attribute::SWITCH_INFO, 0));
            self.request_get(target, Purpose::LightSweep { target });
        }
    }

    /// Asks which node is at a location. If the node that was last seen there has an M_Key, the key is
    /// presented.
    pub(crate) fn probe(&mut self, from: Option<Location>, route: DirectedRoute) {
        self.probe_again(from, route, 0);
    }

    /// Asks with the next key that the node may have. Returns whether there is one.
    pub(crate) fn probe_again(
        &mut self,
        from: Option<Location>,
        route: DirectedRoute,
        attempt: usize,
    ) -> bool {
        /// Stands for the unknown neighbour before the first answer.
        const NOBODY: Guid = match Guid::from_wire(u64::MAX) {
            Some(guid) => guid,
            None => unreachable!(),
        };
        let known = self.keys.as_ref().zip(self.bound.node(from));
        let attempts = known.map_or_else(|| vec![None], |(keys, node)| keys.attempts(node));
        let Some(version) = attempts.get(attempt) else { return false };
        let presented = known.and_then(|(_, node)| Some((node, (*version)?)));
        let mut mad = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &route);
        mad.set_m_key(
            known
                .zip(presented)
                .and_then(|((keys, _), (node, version))| keys.key_at(version, &self.bound, from, node)),
        );
        // What follows is improbable.
        let is_likely = attempts[..attempt].iter().all(Option::is_some);
        let retry = if is_likely { RetryPolicy::Limits } else { RetryPolicy::Once };
        let near = from.map_or(NOBODY, |location| location.near);
        self.window.request_beyond(retry, near, mad, Purpose::Probe { from, route, presented, attempt });
        true
    }

    /// Handles the answer to a probe.
    pub(crate) fn register_node(
        &mut self,
        info: NodeInfo,
        from: Option<Location>,
        route: DirectedRoute,
        presented: Option<(Guid, KeyVersion)>,
    ) {
        let expected = presented.map(|(node, _)| node);
        let (guid, entered, port_guid) = (info.node_guid, info.local_port, info.port_guid);
        let known = self.observed.nodes.get(&guid);
        let is_new = known.is_none_or(|node| node.seen_in_run < self.discovery_run);
        if known.is_none() && self.observed.nodes.len() >= NODES_MAX {
            return;
        }
        let is_late = self.is_late_port(&info, from, expected);
        let is_unknown = self.are_bindings_frozen && self.keys.is_some() && self.bound.node(from).is_none();
        if is_unknown || !is_late && self.is_stranger(guid, entered, from, expected) {
            if self.unresolved.insert(from, Some(guid)) != Some(Some(guid)) {
                self.emit(SmEvent::Stranger { location: from, claims: guid });
            }
            return;
        }
        self.forget_unresolved(from);
        if let Some(location) = from.filter(|_| is_late) {
            self.bound.bind_late_port(location, PortName { node: guid, port: entered });
        }
        // A declared manager counts at its place only, also where no M_Key tells an impostor.
        let is_declared = self.election.is_declared(port_guid);
        let is_at_home = !is_declared || self.bound.is_at_home(guid, from);
        if is_at_home {
            self.state_is_new |= self.bound.bind(from, guid);
        }
        if let Some((_, version)) = presented.filter(|(node, _)| *node == guid) {
            let number = if info.kind == NodeKind::Switch { PortNum::MANAGEMENT } else { entered };
            self.record_presented(PortName { node: guid, port: number }, version);
        }
        if from.is_none() {
            self.observed.own = Some(OwnPort { node: guid, number: entered, guid: port_guid });
        }
        let reads = reads_of_node(&info);
        let may_route_adaptively = may_route_adaptively(&info);
        let is_switch = info.kind == NodeKind::Switch;
        let node = self.observed.nodes.entry(guid).or_insert_with(|| ObservedNode::new(info.clone()));
        let is_new_adapter_port = !is_switch && !node.port_guids.contains_key(&entered);
        node.port_guids.insert(entered, port_guid);
        if is_new {
            // The node may have restarted or been replaced: nothing known about it is trusted.
            (node.info, node.seen_in_run) = (info, self.discovery_run);
            node.tables.clear();
            node.routes.clear();
            if !is_switch {
                // The lost link of this port is already known, because the cable was just followed.
                node.ports.remove(&entered);
            }
            self.fresh.insert(guid);
        }
        if is_new || is_new_adapter_port {
            node.routes.get_or_insert(entered, route);
        }
        if let Some(location) = from {
            self.observed.connect((location.near, location.port), (guid, entered));
            // If another cable fails, this one may be followed from its other end.
            let back = Location { near: guid, port: entered };
            self.state_is_new |= self.bound.bind(Some(back), location.near);
        }
        if is_declared && is_at_home {
            self.note_declared(port_guid, PortName { node: guid, port: entered });
        }
        if is_new {
            reads.into_iter().for_each(|(port, key)| self.read((guid, port, key)));
            if may_route_adaptively {
                self.query_adaptive_routing(guid);
            }
        } else if is_new_adapter_port {
            self.read((guid, entered, port_info_key(entered)));
        }
    }

    /// Whether a device without an M_Key is a port of a known adapter that was never connected before. No key of the adapter
    /// is presented to it: it gets one of its own.
    fn is_late_port(&self, info: &NodeInfo, from: Option<Location>, expected: Option<Guid>) -> bool {
        let own_end = Location { near: info.node_guid, port: info.local_port };
        self.keys.is_some()
            && info.kind != NodeKind::Switch
            && expected.is_none()
            && from.is_some_and(|from| self.bound.node(Some(from)).is_none())
            && self.bound.is_sealed(info.node_guid)
            && self.bound.node(Some(own_end)).is_none()
            && self.observed.own.is_none_or(|own| (own.node, own.number) != (info.node_guid, info.local_port))
    }

    /// Whether a device without the M_Key claims the GUID of a node that is bound to another location.
    /// Presenting the key would disclose it.
    fn is_stranger(
        &self,
        guid: Guid,
        entered: PortNum,
        from: Option<Location>,
        expected: Option<Guid>,
    ) -> bool {
        if self.keys.is_none() || expected == Some(guid) || self.bound.node(from) == Some(guid) {
            return false;
        }
        let is_taken = |node: &ObservedNode| node.links.contains_key(&entered);
        self.bound.is_sealed(guid) || self.observed.nodes.get(&guid).is_some_and(is_taken)
    }

    /// Records the value of an attribute. Returns false if the data cannot be decoded.
    pub(crate) fn record(&mut self, target: AttributeRef, data: &[u8; SMP_DATA_LEN]) -> bool {
        let (guid, port, key) = target;
        let Some(node) = self.observed.nodes.get_mut(&guid) else { return false };
        match key.0 {
            Attribute::NODE_DESCRIPTION => {
                let description = NodeDescription(*data);
                let is_new = node.description.replace(description) != node.description;
                self.facts_are_new |= is_new;
            }
            Attribute::SWITCH_INFO => match SwitchInfo::decode(data) {
                Ok(info) => node.switch = Some(info),
                Err(_) => return false,
            },
            Attribute::PORT_INFO => match (PortInfo::decode(data), PortInfo::port_of_modifier(key.1)) {
                (Ok(info), Some(number)) => self.record_port(guid, number, info),
                _ => return false,
            },
            _ => match hops(node, key) {
                Some(hops) => node.tables.extend(hops.map(|hop| ((port, hop), *data))),
                None => {
                    node.tables.insert((port, key), *data);
                }
            },
        }
        true
    }

    /// Records PortInfo and follows the cable of the port if that is new.
    fn record_port(&mut self, guid: Guid, number: PortNum, info: PortInfo) {
        self.notice_restart(guid, number, &info);
        // A device may repeat the bit of a request; it is no state.
        let info = PortInfo { client_reregister: false, ..info };
        if info.state != PortState::Active {
            self.registration.forget(PortName { node: guid, port: number });
        }
        let Some(node) = self.observed.nodes.get_mut(&guid) else { return };
        let (is_up, state, is_manager) = (is_up(&info), info.state, info.capability.has(Capability::IS_SM));
        self.facts_are_new |= node.ports.get(&number) != Some(&info);
        let is_qdr = is_up && LinkRate::active(&info, false).is_some_and(|rate| rate.speed == Speed::Qdr);
        let rate_before = node.link_rate(number);
        let before = node.ports.insert(number, info);
        let was_up = before.as_ref().is_some_and(observed::is_up);
        let before = before.map(|before| before.state);
        // A link that trained at another rate is another link for what is planned on it.
        self.observed.changed |= rate_before != node.link_rate(number);
        let has_bounced = before == Some(PortState::Active) && state == PortState::Initialize;
        if is_up && !has_bounced {
            self.record_manager(guid, number, is_manager);
        }
        if !is_up || has_bounced {
            if was_up {
                self.note_down(guid, number);
            }
            self.lose_link(guid, number);
        }
        // An adapter that may hide a faster speed is asked for that first.
        let hides_none =
            self.observed.nodes[&guid].is_switch() || !self.observed.nodes[&guid].has_extended_speeds(number);
        if is_qdr && hides_none && (rate_before.is_none() || has_bounced) {
            self.query_fdr10(guid, number);
        }
        if !is_up {
            self.forget_unresolved(Some(Location { near: guid, port: number }));
        }
        let node = &self.observed.nodes[&guid];
        let leads_on = is_up && self.observed.leads_on(guid, number);
        if self.is_discovering() && leads_on && !node.links.contains_key(&number) {
            let route = node.route(number).and_then(|route| route.then(number));
            if let Some(route) = route {
                self.probe(Some(Location { near: guid, port: number }), route);
            }
        }
    }

    /// Asks whether the link of a port that shows QDR runs at FDR10.
    fn query_fdr10(&mut self, guid: Guid, number: PortNum) {
        let Some(node) = self.observed.nodes.get(&guid) else { return };
        let own = if node.is_switch() { PortNum::MANAGEMENT } else { number };
        let target = (guid, own, (Attribute::MLNX_EXT_PORT_INFO, number.to_wire().into()));
        self.request_get(target, Purpose::Fdr10 { target });
    }

    pub(crate) fn record_fdr10(&mut self, (guid, _, key): AttributeRef, info: Option<MlnxExtPortInfo>) {
        let is_fdr10 = info.is_some_and(|info| info.link_speed_active & 1 != 0);
        let (Some(node), Some(port)) =
            (self.observed.nodes.get_mut(&guid), PortInfo::port_of_modifier(key.1))
        else {
            return;
        };
        let has_changed =
            if is_fdr10 { node.fdr10_ports.insert(port) } else { node.fdr10_ports.remove(&port) };
        self.observed.changed |= has_changed;
    }

    /// After PortInfo was read: reads what it says how to ask for.
    pub(crate) fn read_further_ports(&mut self, (guid, port, key): AttributeRef, request: &Mad) {
        let Some(node) = self.observed.nodes.get_mut(&guid).filter(|_| key.0 == Attribute::PORT_INFO) else {
            return;
        };
        if node.is_switch() {
            // All other ports, once in a run; also if port 0 was not understood.
            if key == port_info_key(PortNum::MANAGEMENT) && node.ports_read_in_run < node.seen_in_run {
                node.ports_read_in_run = node.seen_in_run;
                for port in (1..=node.info.port_count).filter_map(PortNum::new) {
                    self.read((guid, PortNum::MANAGEMENT, port_info_key(port)));
                }
            }
            return;
        }
        let may_hide_speed = |info: &PortInfo| is_up(info) && info.extended_speed_active.0 == 0;
        let asked_plainly = request.modifier() & PortInfo::EXTENDED_SPEEDS_KNOWN == 0;
        if asked_plainly
            && node.has_extended_speeds(port)
            && node.ports.get(&port).is_some_and(may_hide_speed)
        {
            self.read((guid, port, key));
            return;
        }
        let is_qdr = |info: &PortInfo| {
            is_up(info) && LinkRate::active(info, false).is_some_and(|rate| rate.speed == Speed::Qdr)
        };
        let is_known = node.fdr10_ports.contains(&port);
        if !is_known && node.has_extended_speeds(port) && node.ports.get(&port).is_some_and(is_qdr) {
            self.query_fdr10(guid, port);
        }
    }

    /// A location no longer has a silent device or a stranger.
    fn forget_unresolved(&mut self, location: Option<Location>) {
        if self.unresolved.remove(&location).is_some() {
            self.emit(SmEvent::LocationRecovered { location });
        }
    }

    /// Removes a cable. Schedules a recheck, because the cable may come back while the trap for it is
    /// suppressed by the previous one.
    fn lose_link(&mut self, guid: Guid, number: PortNum) {
        if self.observed.disconnect(guid, number) {
            self.sweeps.schedule_recheck(self.now, guid);
        }
    }

    /// Records SwitchInfo; if PortStateChange is set, reads all ports of the switch.
    pub(crate) fn record_switch(
        &mut self,
        target: AttributeRef,
        data: &[u8; SMP_DATA_LEN],
        is_recheck: bool,
    ) -> bool {
        let Ok(info) = SwitchInfo::decode(data) else { return false };
        let guid = target.0;
        let before = self.observed.nodes.get(&guid).and_then(|node| node.switch.clone());
        let has_changed = info.port_state_change;
        if let Some(before) = before
            && (before.linear_fdb_top, before.multicast_fdb_top)
                != (info.linear_fdb_top, info.multicast_fdb_top)
        {
            self.changed.insert(guid);
        }
        // Without a plan nothing is written, nor before another manager was met. So the bit stays set and the ports are read in
        // every sweep.
        if has_changed && self.plan.is_some() && !self.may_meet_other_master() {
            // Cleared before the ports are read, so that a later change sets it again.
            self.write(target, *data);
        }
        self.record(target, data);
        if has_changed || is_recheck {
            let count = self.observed.nodes.get(&guid).map_or(0, |node| node.info.port_count);
            for port in (0..=count).filter_map(PortNum::new) {
                self.audit((guid, PortNum::MANAGEMENT, port_info_key(port)));
            }
        }
        true
    }
}

/// The attributes to read first of a node that is new in this run: description, SwitchInfo and PortInfo. PortInfo of port
/// 0 says how to ask for the other ports of a switch.
fn reads_of_node(info: &NodeInfo) -> Vec<(PortNum, AttributeKey)> {
    let name = (info.local_port, (Attribute::NODE_DESCRIPTION, 0));
    if info.kind != NodeKind::Switch {
        return vec![name, (info.local_port, port_info_key(info.local_port))];
    }
    let own = |key| (PortNum::MANAGEMENT, key);
    vec![name, own((Attribute::SWITCH_INFO, 0)), own(port_info_key(PortNum::MANAGEMENT))]
}

fn port_info_key(port: PortNum) -> AttributeKey {
    (Attribute::PORT_INFO, port.to_wire().into())
}
