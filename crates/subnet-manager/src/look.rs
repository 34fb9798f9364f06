//! Looking at the fabric: who is there, what it says of itself, and whether that is what was known.

use ib_wire::{
    Attribute, Capability, DirectedRoute, Guid, Mad, Method, NodeDescription, NodeInfo, NodeKind, PortInfo,
    PortNum, PortState, SMP_DATA_LEN, SwitchInfo,
};

use fabric_model::NODES_MAX;

use crate::event::Event;
use crate::keys::Location;
use crate::manager::{Manager, Purpose};
use crate::observed::{ObservedNode, OwnPort, TableKey, is_up};
use crate::program::turns;
use crate::unsupported::Place;

impl Manager {
    /// Begins a look at everything from the manager's own port on.
    pub(crate) fn look_at_all(&mut self) {
        self.begin_look();
        self.probe(None, DirectedRoute::default());
    }

    /// Asks a node about itself and its ports, because there is a reason to.
    pub(crate) fn look_at(&mut self, guid: Guid) {
        let Some(node) = self.observed.nodes.get(&guid) else { return };
        if node.is_switch() {
            let place = (guid, PortNum::MANAGEMENT, (Attribute::SWITCH_INFO, 0));
            self.ask_for(place, Purpose::Suspect { place });
        } else {
            let ports: Vec<PortNum> = node.routes.keys().copied().collect();
            for port in ports {
                self.read((guid, port, (Attribute::NODE_DESCRIPTION, 0)));
                self.audit((guid, port, question_about_port(port)));
            }
        }
    }

    /// Asks every switch whether something changed at its ports, knocks where nobody answered, and compares a part of
    /// all tables with what they should hold.
    pub(crate) fn sweep(&mut self) {
        if self.observed.own.is_none() {
            return self.look_at_all();
        }
        self.begin_look();
        let switches: Vec<Guid> =
            self.observed.nodes.iter().filter(|(_, node)| node.is_switch()).map(|(guid, _)| *guid).collect();
        for guid in switches {
            let place = (guid, PortNum::MANAGEMENT, (Attribute::SWITCH_INFO, 0));
            self.ask_for(place, Purpose::Glance { place });
        }
        self.ask_managers();
        for (near, port, route) in self.observed.open_ends() {
            self.probe(Some(Location { near, port }), route);
        }
        let nodes = &self.observed.nodes;
        let audit = self.watch.take_audit(|| {
            let places = |(guid, node): (&Guid, &ObservedNode)| -> Vec<Place> {
                let guid = *guid;
                let own = |port: PortNum| if node.is_switch() { PortNum::MANAGEMENT } else { port };
                let ports = node.ports.keys().map(|port| (guid, own(*port), question_about_port(*port)));
                let tables = node.tables.keys().map(|(port, key)| (guid, *port, *key));
                ports.chain(tables).collect()
            };
            nodes.iter().flat_map(places).collect()
        });
        for place in audit {
            self.audit(place);
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
        self.exchange.ask(near, mad, Purpose::Probe { from, route, expected });
    }

    /// A node answered a probe.
    pub(crate) fn meet(
        &mut self,
        info: NodeInfo,
        from: Option<Location>,
        route: DirectedRoute,
        expected: Option<Guid>,
    ) {
        let (guid, entered, port_guid) = (info.node_guid, info.local_port, info.port_guid);
        let known = self.observed.nodes.get(&guid);
        let is_new = known.is_none_or(|node| node.met < self.look);
        if known.is_none() && self.observed.nodes.len() >= NODES_MAX {
            return;
        }
        if self.is_stranger(guid, entered, from, expected) {
            if self.unmet.insert(from, Some(guid)) != Some(Some(guid)) {
                self.tell(Event::Stranger { location: from, claims: guid });
            }
            return;
        }
        self.forget_unmet(from);
        self.memory_is_new |= self.bound.bind(from, guid);
        if from.is_none() {
            self.observed.own = Some(OwnPort { node: guid, number: entered, guid: port_guid });
        }
        let questions = questions_about_node(&info);
        let is_switch = info.kind == NodeKind::Switch;
        let node = self.observed.nodes.entry(guid).or_insert_with(|| ObservedNode::new(info.clone()));
        let is_new_adapter_port = !is_switch && !node.port_guids.contains_key(&entered);
        node.port_guids.insert(entered, port_guid);
        if is_new {
            // It may have been restarted, or replaced, since: nothing is taken for granted.
            (node.info, node.met) = (info, self.look);
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
            self.memory_is_new |= self.bound.bind(Some(back), location.near);
        }
        if is_new {
            questions.into_iter().for_each(|(port, key)| self.read((guid, port, key)));
        } else if is_new_adapter_port {
            self.read((guid, entered, question_about_port(entered)));
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
    pub(crate) fn note(&mut self, place: Place, data: &[u8; SMP_DATA_LEN]) -> bool {
        let (guid, port, key) = place;
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
                (Ok(info), Some(number)) => self.note_port(guid, number, info),
                _ => return false,
            },
            _ => match turns(node, key) {
                Some(turns) => node.tables.extend(turns.map(|turn| ((port, turn), *data))),
                None => {
                    node.tables.insert((port, key), *data);
                }
            },
        }
        true
    }

    /// Notes the state of a port, and follows its cable if that is new.
    fn note_port(&mut self, guid: Guid, number: PortNum, info: PortInfo) {
        let Some(node) = self.observed.nodes.get_mut(&guid) else { return };
        let (is_up, state, is_manager) = (is_up(&info), info.state, info.capability.has(Capability::IS_SM));
        self.facts_are_new |= node.ports.get(&number) != Some(&info);
        let before = node.ports.insert(number, info).map(|before| before.state);
        let has_bounced = before == Some(PortState::Active) && state == PortState::Initialize;
        if is_up && !has_bounced {
            self.note_manager(guid, number, is_manager);
        }
        if !is_up || has_bounced {
            self.lose_link(guid, number);
        }
        if !is_up {
            self.forget_unmet(Some(Location { near: guid, port: number }));
        }
        let node = &self.observed.nodes[&guid];
        let leads_on = is_up && self.observed.leads_on(guid, number);
        if self.is_looking() && leads_on && !node.links.contains_key(&number) {
            let route = node.route(number).and_then(|route| route.then(number));
            if let Some(route) = route {
                self.probe(Some(Location { near: guid, port: number }), route);
            }
        }
    }

    /// Nobody silent or strange is at a location any more.
    fn forget_unmet(&mut self, location: Option<Location>) {
        if self.unmet.remove(&location).is_some() {
            self.tell(Event::Answered { location });
        }
    }

    /// A cable is gone. It may be back any moment, while the trap that tells so is held back by the one before.
    fn lose_link(&mut self, guid: Guid, number: PortNum) {
        if self.observed.disconnect(guid, number) {
            self.watch.suspect(self.now, guid);
        }
    }

    /// A switch said whether something changed at its ports.
    pub(crate) fn note_switch(&mut self, place: Place, data: &[u8; SMP_DATA_LEN], is_suspect: bool) -> bool {
        let Ok(info) = SwitchInfo::decode(data) else { return false };
        let guid = place.0;
        let before = self.observed.nodes.get(&guid).and_then(|node| node.switch.clone());
        let has_changed = info.port_state_change;
        if let Some(before) = before
            && before.linear_fdb_top != info.linear_fdb_top
        {
            self.touched.insert(guid);
        }
        // Before there is a plan, nothing is written: then it is read every time.
        if has_changed && self.plan.is_some() {
            // First cleared, then read: what changes after this is told again.
            self.write(place, *data);
        }
        self.note(place, data);
        if has_changed || is_suspect {
            let count = self.observed.nodes.get(&guid).map_or(0, |node| node.info.port_count);
            for port in (0..=count).filter_map(PortNum::new) {
                self.audit((guid, PortNum::MANAGEMENT, question_about_port(port)));
            }
        }
        true
    }
}

/// What to ask a node that was not met in this look: its name, and every port that the answering one can speak for.
fn questions_about_node(info: &NodeInfo) -> Vec<(PortNum, TableKey)> {
    let name = (info.local_port, (Attribute::NODE_DESCRIPTION, 0));
    if info.kind != NodeKind::Switch {
        return vec![name, (info.local_port, question_about_port(info.local_port))];
    }
    let own = |key| (PortNum::MANAGEMENT, key);
    let ports = (0..=info.port_count).map(|port| own((Attribute::PORT_INFO, port.into())));
    [name, own((Attribute::SWITCH_INFO, 0))].into_iter().chain(ports).collect()
}

fn question_about_port(port: PortNum) -> TableKey {
    (Attribute::PORT_INFO, port.to_wire().into())
}
