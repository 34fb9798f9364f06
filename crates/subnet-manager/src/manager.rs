//! The phases of a manager, and the verbs its caller uses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fabric_model::intent::Capabilities;
use fabric_model::{BuildError, FabricPlan, NODES_MAX, Topology};
use ib_wire::{
    Attribute, Datagram, DirectedRoute, Guid, MKey, Mad, Method, NodeDescription, NodeInfo, NodeKind,
    PhysicalState, PortInfo, PortNum, PortState, SMP_DATA_LEN, Status, SwitchInfo, TransactionId,
};

use crate::discovery;
use crate::exchange::{Counts, Exchange, Limits};
use crate::keys::{Bindings, BoundNodes, Location, SiteSecret};
use crate::observed::{ObservedNode, TableKey};
use crate::program::{Comparison, Stage};

/// What a manager has to tell.
#[derive(Debug)]
pub enum Event {
    /// The fabric is known; somebody may compile a plan for it and [`Manager::apply`] it.
    Discovered(Box<Discovery>),
    /// Not even the node the manager sits on answers.
    Alone,
    /// What was found is no fabric: two nodes with one GUID, a cable with three ends.
    Inconsistent(BuildError),
    /// The fabric is equal to the plan, but for what was refused or silent.
    Programmed(Counts),
    /// Somebody is there, but does not answer: broken, or under a key that is not ours.
    SilentLocation {
        /// Where; `None` is where the manager itself sits.
        location: Option<Location>,
        /// Who was last met there.
        last: Option<Guid>,
    },
    /// A node that answered before does not answer any more.
    Silent {
        /// The node.
        node: Guid,
        /// What it was asked for.
        attribute: Attribute,
    },
    /// A node refused a request, or answered nonsense.
    Refused {
        /// The node.
        node: Guid,
        /// What it was asked for.
        attribute: Attribute,
        /// The modifier.
        modifier: u32,
        /// Its status; `None` if the answer made no sense.
        status: Option<Status>,
    },
}

/// What discovery found.
#[derive(Debug)]
pub struct Discovery {
    /// Nodes and cables.
    pub topology: Topology,
    /// What devices can hold.
    pub capabilities: Capabilities,
    /// The port the manager sits on.
    pub manager: Guid,
}

/// A subnet manager. Feed it with the `handle_` verbs; after each, empty `poll_transmit` and `poll_event` and come back
/// at `poll_timeout`.
#[derive(Debug)]
pub struct Manager {
    exchange: Exchange<Purpose>,
    secret: Option<SiteSecret>,
    bound: BoundNodes,
    nodes: BTreeMap<Guid, ObservedNode>,
    own: Option<OwnPort>,
    phase: Phase,
    plan: Option<Arc<FabricPlan>>,
    events: VecDeque<Event>,
}

#[derive(Clone, Copy, Debug)]
struct OwnPort {
    node: Guid,
    number: PortNum,
    guid: Guid,
}

/// What is going on until the exchange is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Discovering,
    Waiting,
    Reading,
    Writing(Stage),
}

/// What a request was for.
#[derive(Clone, Debug)]
enum Purpose {
    /// Who is there? Asked with the key of the node that was met there before, or without one.
    Probe { from: Option<Location>, route: DirectedRoute, expected: Option<Guid> },
    /// One attribute of a node, read or written.
    Attribute { node: Guid, port: PortNum, key: TableKey },
}

impl Manager {
    /// A manager that starts to discover and guards no node.
    pub fn new(limits: Limits) -> Self {
        Self::start(limits, None, &Bindings::default())
    }

    /// A manager that puts every node under a key of its own, and knows which node was met where.
    pub fn guarding(limits: Limits, secret: SiteSecret, bindings: &Bindings) -> Self {
        Self::start(limits, Some(secret), bindings)
    }

    fn start(limits: Limits, secret: Option<SiteSecret>, bindings: &Bindings) -> Self {
        let mut manager = Self {
            exchange: Exchange::new(limits),
            secret,
            bound: BoundNodes::new(bindings),
            nodes: BTreeMap::new(),
            own: None,
            phase: Phase::Discovering,
            plan: None,
            events: VecDeque::new(),
        };
        manager.probe(None, DirectedRoute::default());
        manager
    }

    /// Which node was met where, to be kept for the next manager: without it, nodes under a key stay silent.
    pub fn bindings(&self) -> Bindings {
        self.bound.to_bindings()
    }

    /// Makes the fabric equal to a plan; waits for [`Event::Programmed`].
    pub fn apply(&mut self, plan: Arc<FabricPlan>) {
        let reads = self.compare(&plan).reads();
        self.plan = Some(plan);
        self.phase = Phase::Reading;
        for (node, port, key) in reads {
            self.ask(Method::GET, node, port, key, [0; SMP_DATA_LEN]);
        }
        self.proceed();
    }

    /// Takes an answer.
    pub fn handle_datagram(&mut self, _now: Duration, datagram: &Datagram) {
        if !datagram.mad.method().is_response() {
            return;
        }
        if let Some(purpose) = self.exchange.answered(&datagram.mad) {
            self.understand(purpose, &datagram.mad);
            self.proceed();
        }
    }

    /// A transport knows that a request will not be answered.
    pub fn handle_lost(&mut self, _now: Duration, transaction: TransactionId) {
        let silent = self.exchange.lost(transaction);
        self.report_silent(silent);
        self.proceed();
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Duration) {
        let silent = self.exchange.handle_timeout(now);
        self.report_silent(silent);
        self.proceed();
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Datagram> {
        self.exchange.poll_transmit(now)
    }

    /// The next thing to tell.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Manager::handle_timeout`] has to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.exchange.poll_timeout()
    }

    /// Datagrams sent so far.
    pub fn counts(&self) -> Counts {
        self.exchange.counts
    }

    /// Goes on to the next phase once everything of this one was answered or given up.
    fn proceed(&mut self) {
        while self.exchange.is_idle() {
            match self.phase {
                Phase::Waiting => return,
                Phase::Discovering => self.finish_discovery(),
                Phase::Reading => self.write(Stage::ALL[0]),
                Phase::Writing(stage) => match Stage::ALL.into_iter().find(|next| *next > stage) {
                    Some(next) => self.write(next),
                    None => {
                        self.phase = Phase::Waiting;
                        self.events.push_back(Event::Programmed(self.exchange.counts));
                    }
                },
            }
        }
    }

    fn write(&mut self, stage: Stage) {
        self.phase = Phase::Writing(stage);
        let Some(plan) = self.plan.clone() else { return };
        for write in self.compare(&plan).writes(stage) {
            self.ask(Method::SET, write.node, write.port, write.key, write.data);
        }
    }

    fn compare<'a>(&'a self, plan: &'a FabricPlan) -> Comparison<'a> {
        Comparison { plan, nodes: &self.nodes, secret: self.secret.as_ref() }
    }

    fn finish_discovery(&mut self) {
        self.phase = Phase::Waiting;
        let Some(own) = self.own else { return self.events.push_back(Event::Alone) };
        self.events.push_back(match discovery::topology(&self.nodes) {
            Ok((topology, capabilities)) => {
                Event::Discovered(Box::new(Discovery { topology, capabilities, manager: own.guid }))
            }
            Err(error) => Event::Inconsistent(error),
        });
    }

    /// Asks who is at a location, as the node that was met there before if it is under a key.
    fn probe(&mut self, from: Option<Location>, route: DirectedRoute) {
        let expected = self.secret.as_ref().and_then(|_| self.bound.node(from));
        self.probe_as(from, route, expected);
    }

    fn probe_as(&mut self, from: Option<Location>, route: DirectedRoute, expected: Option<Guid>) {
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

    fn ask(&mut self, method: Method, node: Guid, port: PortNum, key: TableKey, data: [u8; SMP_DATA_LEN]) {
        let Some(route) = self.nodes.get(&node).and_then(|seen| seen.route(port)) else { return };
        let mut mad = Mad::directed(method, key.0, key.1, route);
        *mad.smp_data_mut() = data;
        mad.set_m_key(self.key_for(node, port));
        self.exchange.ask(node, mad, Purpose::Attribute { node, port, key });
    }

    /// The key to present: that of the node, once it is known to be under it.
    fn key_for(&self, node: Guid, port: PortNum) -> Option<MKey> {
        let seen = self.nodes.get(&node)?;
        let keyed = seen.keyed.contains(&seen.guard(port));
        self.secret.as_ref().filter(|_| keyed).map(|secret| secret.key(node))
    }

    fn report_silent(&mut self, silent: impl IntoIterator<Item = Purpose>) {
        for purpose in silent {
            match purpose {
                // Not the node that was met there before, or it lost its key: ask as a stranger would.
                Purpose::Probe { from, route, expected: Some(_) } => self.probe_as(from, route, None),
                Purpose::Probe { from, .. } => {
                    let last = self.bound.node(from);
                    self.events.push_back(Event::SilentLocation { location: from, last });
                }
                Purpose::Attribute { node, key, .. } => {
                    self.events.push_back(Event::Silent { node, attribute: key.0 });
                }
            }
        }
    }

    fn understand(&mut self, purpose: Purpose, mad: &Mad) {
        match purpose {
            Purpose::Probe { from, route, expected } => {
                if let Ok(info) = NodeInfo::decode(mad.smp_data()) {
                    self.meet(info, from, route, expected);
                }
            }
            Purpose::Attribute { node, port, key } => {
                let understood = mad.status() == Status::OK && self.note(node, port, key, mad.smp_data());
                if !understood {
                    let status = Some(mad.status()).filter(|status| *status != Status::OK);
                    self.events.push_back(Event::Refused { node, attribute: key.0, modifier: key.1, status });
                }
            }
        }
    }

    /// A node answered a probe.
    fn meet(&mut self, info: NodeInfo, from: Option<Location>, route: DirectedRoute, expected: Option<Guid>) {
        let (guid, entered, port_guid) = (info.node_guid, info.local_port, info.port_guid);
        let is_switch = info.kind == NodeKind::Switch;
        let is_new = !self.nodes.contains_key(&guid);
        if is_new && self.nodes.len() >= NODES_MAX {
            return;
        }
        if from.is_none() {
            self.own = Some(OwnPort { node: guid, number: entered, guid: port_guid });
        }
        self.bound.bind(from, guid);
        if let Some(location) = from
            && let Some(near) = self.nodes.get_mut(&location.near)
        {
            near.links.insert(location.port, (guid, entered));
        }
        let whole_node = questions_about_node(&info);
        let node = self.nodes.entry(guid).or_insert_with(|| new_node(info));
        node.links.extend(from.map(|location| (entered, (location.near, location.port))));
        if expected == Some(guid) {
            // It answered to its key, or needs none yet; which, PortInfo will tell.
            node.keyed.insert(node.guard(entered));
        }
        let is_new_adapter_port = !is_switch && !node.routes.contains_key(&entered);
        let questions = if is_new {
            whole_node
        } else if is_new_adapter_port {
            vec![question_about_port(entered)]
        } else {
            return;
        };
        node.routes.insert(entered, route);
        node.port_guids.insert(entered, port_guid);
        for (port, key) in questions {
            self.ask(Method::GET, guid, port, key, [0; SMP_DATA_LEN]);
        }
    }

    /// Notes what an attribute holds; false if the bytes make no sense.
    fn note(&mut self, guid: Guid, port: PortNum, key: TableKey, data: &[u8; SMP_DATA_LEN]) -> bool {
        let Some(node) = self.nodes.get_mut(&guid) else { return false };
        match key.0 {
            Attribute::NODE_DESCRIPTION => node.description = Some(NodeDescription(*data)),
            Attribute::SWITCH_INFO => match SwitchInfo::decode(data) {
                Ok(info) => node.switch = Some(info),
                Err(_) => return false,
            },
            Attribute::PORT_INFO => match (PortInfo::decode(data), PortInfo::port_of_modifier(key.1)) {
                (Ok(info), Some(number)) => self.note_port(guid, number, info),
                _ => return false,
            },
            _ => {
                node.tables.insert((port, key), *data);
            }
        }
        true
    }

    fn note_port(&mut self, guid: Guid, number: PortNum, info: PortInfo) {
        let is_up = info.physical_state == PhysicalState::LinkUp && info.state != PortState::Down;
        let own = self.own.is_some_and(|own| own.node == guid && own.number == number);
        let expected = self.secret.as_ref().map(|secret| secret.key(guid));
        let Some(node) = self.nodes.get_mut(&guid) else { return };
        if node.guard(number) == number {
            // A node shows its key to whoever knows it.
            if info.m_key.is_some() && info.m_key == expected {
                node.keyed.insert(number);
            } else {
                node.keyed.remove(&number);
            }
        }
        node.ports.insert(number, info);
        // Adapters end a route; only the one the manager sits on begins one.
        let leads_on = is_up && number != PortNum::MANAGEMENT && (node.is_switch() || own);
        if self.phase == Phase::Discovering && leads_on && !node.links.contains_key(&number) {
            let route = node.route(number).and_then(|route| route.then(number));
            if let Some(route) = route {
                self.probe(Some(Location { near: guid, port: number }), route);
            }
        }
    }
}

/// What to ask a node that was never met before: its name, and every port that the answering one can speak for.
fn questions_about_node(info: &NodeInfo) -> Vec<(PortNum, TableKey)> {
    let name = (info.local_port, (Attribute::NODE_DESCRIPTION, 0));
    if info.kind != NodeKind::Switch {
        return vec![name, question_about_port(info.local_port)];
    }
    let own = |key| (PortNum::MANAGEMENT, key);
    let ports = (0..=info.port_count).map(|port| own((Attribute::PORT_INFO, port.into())));
    [name, own((Attribute::SWITCH_INFO, 0))].into_iter().chain(ports).collect()
}

fn question_about_port(port: PortNum) -> (PortNum, TableKey) {
    (port, (Attribute::PORT_INFO, port.to_wire().into()))
}

fn new_node(info: NodeInfo) -> ObservedNode {
    ObservedNode {
        info,
        description: None,
        switch: None,
        routes: BTreeMap::new(),
        keyed: BTreeSet::new(),
        ports: BTreeMap::new(),
        port_guids: BTreeMap::new(),
        links: BTreeMap::new(),
        tables: BTreeMap::new(),
    }
}
