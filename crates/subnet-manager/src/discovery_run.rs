//! Looking at the fabric: who is there, what it says of itself, and whether that is what was known.

use ib_wire::{
    Attribute, Capability, DirectedRoute, Guid, Mad, Method, NodeDescription, NodeInfo, NodeKind, PortInfo,
    PortNum, PortState, SMP_DATA_LEN, SwitchInfo,
};

use fabric_model::NODES_MAX;

use crate::event::SmEvent;
use crate::keys::Location;
use crate::manager::{Manager, Purpose};
use crate::observed::{AttributeKey, ObservedNode, OwnPort, is_up};
use crate::program::hops;
use crate::unsupported::AttributeRef;

impl Manager {
    /// Begins a look at everything from the manager's own port on.
    pub(crate) fn discover_all(&mut self) {
        self.begin_discovery_run();
        self.probe(None, DirectedRoute::default());
    }

    /// Asks a node about itself and its ports, because there is a reason to.
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

    /// Asks every switch whether something changed at its ports, knocks where nobody answered, and compares a part of
    /// all tables with what they should hold.
    pub(crate) fn sweep(&mut self) {
        if self.observed.own.is_none() {
            return self.discover_all();
        }
        self.begin_discovery_run();
        let switches: Vec<Guid> =
            self.observed.nodes.iter().filter(|(_, node)| node.is_switch()).map(|(guid, _)| *guid).collect();
        for guid in switches {
            let target = (guid, PortNum::MANAGEMENT, (Attribute::SWITCH_INFO, 0));
            self.request_get(target, Purpose::LightSweep { target });
        }
        self.query_managers();
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

    /// Asks who is at a location, as the node that was met there before if it is under a key.
    pub(crate) fn probe(&mut self, from: Option<Location>, route: DirectedRoute) {
        let expected = self.secret.as_ref().and_then(|_| self.bound.node(from));
        self.probe_as(from, route, expected);
    }

    pub(crate) fn probe_as(&mut self, from: Option<Location>, route: DirectedRoute, expected: Option<Guid>) {
        /// Stands for the device behind which nothing is known yet, before the first answer.
        const NOBODY: Guid = match Guid::from_wire(u64::MAX) {
            Some(guid) => guid,
            None => unreachable!(),
        };
        let mut mad = Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &route);
        mad.set_m_key(expected.and_then(|guid| self.secret.as_ref().map(|secret| secret.key(guid))));
        let near = from.map_or(NOBODY, |location| location.near);
        self.window.request(near, mad, Purpose::Probe { from, route, expected });
    }

    /// A node answered a probe.
    pub(crate) fn register_node(
        &mut self,
        info: NodeInfo,
        from: Option<Location>,
        route: DirectedRoute,
        expected: Option<Guid>,
    ) {
        let (guid, entered, port_guid) = (info.node_guid, info.local_port, info.port_guid);
        let known = self.observed.nodes.get(&guid);
        let is_new = known.is_none_or(|node| node.seen_in_run < self.discovery_run);
        if known.is_none() && self.observed.nodes.len() >= NODES_MAX {
            return;
        }
        if self.is_stranger(guid, entered, from, expected) {
            if self.unresolved.insert(from, Some(guid)) != Some(Some(guid)) {
                self.emit(SmEvent::Stranger { location: from, claims: guid });
            }
            return;
        }
        self.forget_unresolved(from);
        self.state_is_new |= self.bound.bind(from, guid);
        if from.is_none() {
            self.observed.own = Some(OwnPort { node: guid, number: entered, guid: port_guid });
        }
        let reads = reads_of_node(&info);
        let is_switch = info.kind == NodeKind::Switch;
        let node = self.observed.nodes.entry(guid).or_insert_with(|| ObservedNode::new(info.clone()));
        let is_new_adapter_port = !is_switch && !node.port_guids.contains_key(&entered);
        node.port_guids.insert(entered, port_guid);
        if is_new {
            // It may have been restarted, or replaced, since: nothing is taken for granted.
            (node.info, node.seen_in_run) = (info, self.discovery_run);
            node.tables.clear();
            node.routes.clear();
            if !is_switch {
                // Its cable was just followed: that its port went down with it is known.
                node.ports.remove(&entered);
            }
            self.fresh.insert(guid);
        }
        if is_new || is_new_adapter_port {
            node.routes.entry(entered).or_insert(route);
        }
        if let Some(location) = from {
            self.observed.connect((location.near, location.port), (guid, entered));
            // A cable leads both ways: if another one fails, it may be followed from its other end.
            let back = Location { near: guid, port: entered };
            self.state_is_new |= self.bound.bind(Some(back), location.near);
        }
        if is_new {
            reads.into_iter().for_each(|(port, key)| self.read((guid, port, key)));
        } else if is_new_adapter_port {
            self.read((guid, entered, port_info_key(entered)));
        }
    }

    /// Whether somebody answers as a node that sits elsewhere, without having its key: to show it the key would give it
    /// away.
    fn is_stranger(
        &self,
        guid: Guid,
        entered: PortNum,
        from: Option<Location>,
        expected: Option<Guid>,
    ) -> bool {
        if self.secret.is_none() || expected == Some(guid) || self.bound.node(from) == Some(guid) {
            return false;
        }
        let is_taken = |node: &ObservedNode| node.links.contains_key(&entered);
        self.bound.is_sealed(guid) || self.observed.nodes.get(&guid).is_some_and(is_taken)
    }

    /// Notes what an attribute holds; false if the bytes make no sense.
    pub(crate) fn record(&mut self, target: AttributeRef, data: &[u8; SMP_DATA_LEN]) -> bool {
        let (guid, port, key) = target;
        let Some(node) = self.observed.nodes.get_mut(&guid) else { return false };
        match key.0 {
            Attribute::NODE_DESCRIPTION => {
                let description = NodeDescription(*data);
                let is_news = node.description.replace(description) != node.description;
                self.facts_are_new |= is_news;
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

    /// Notes the state of a port, and follows its cable if that is new.
    fn record_port(&mut self, guid: Guid, number: PortNum, info: PortInfo) {
        let Some(node) = self.observed.nodes.get_mut(&guid) else { return };
        let (is_up, state, is_manager) = (is_up(&info), info.state, info.capability.has(Capability::IS_SM));
        self.facts_are_new |= node.ports.get(&number) != Some(&info);
        let before = node.ports.insert(number, info).map(|before| before.state);
        let has_bounced = before == Some(PortState::Active) && state == PortState::Initialize;
        if is_up && !has_bounced {
            self.record_manager(guid, number, is_manager);
        }
        if !is_up || has_bounced {
            self.lose_link(guid, number);
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

    /// Nobody silent or strange is at a location any more.
    fn forget_unresolved(&mut self, location: Option<Location>) {
        if self.unresolved.remove(&location).is_some() {
            self.emit(SmEvent::LocationRecovered { location });
        }
    }

    /// A cable is gone. It may be back any moment, while the trap that tells so is held back by the one before.
    fn lose_link(&mut self, guid: Guid, number: PortNum) {
        if self.observed.disconnect(guid, number) {
            self.sweeps.schedule_recheck(self.now, guid);
        }
    }

    /// A switch said whether something changed at its ports.
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
            && before.linear_fdb_top != info.linear_fdb_top
        {
            self.changed.insert(guid);
        }
        // Before there is a plan, nothing is written: then it is read every time.
        if has_changed && self.plan.is_some() {
            // First cleared, then read: what changes after this is told again.
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

/// What to ask a node that was not met in this look: its name, and every port that the answering one can speak for.
fn reads_of_node(info: &NodeInfo) -> Vec<(PortNum, AttributeKey)> {
    let name = (info.local_port, (Attribute::NODE_DESCRIPTION, 0));
    if info.kind != NodeKind::Switch {
        return vec![name, (info.local_port, port_info_key(info.local_port))];
    }
    let own = |key| (PortNum::MANAGEMENT, key);
    let ports = (0..=info.port_count).map(|port| own((Attribute::PORT_INFO, port.into())));
    [name, own((Attribute::SWITCH_INFO, 0))].into_iter().chain(ports).collect()
}

fn port_info_key(port: PortNum) -> AttributeKey {
    (Attribute::PORT_INFO, port.to_wire().into())
}
