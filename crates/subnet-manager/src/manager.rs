//! The phases of a manager, and the verbs its caller uses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fabric_model::FabricPlan;
use ib_wire::{
    Datagram, DirectedRoute, Guid, MKey, Mad, ManagementClass, Method, NodeInfo, PortNum, SMP_DATA_LEN,
    SmKey, Status, TransactionId,
};

use crate::backlog::Backlog;
use crate::event::{Discovery, SmEvent};
use crate::foreign_managers::ForeignManager;
use crate::keys::{BoundNodes, Location, SiteSecret};
use crate::mad_window::{Answered, MadCounts, MadLimits, MadProgress, MadWindow};
use crate::observed::Observed;
use crate::persistence::{Persistence, PersistentState};
use crate::program::{Comparison, Stage, WeightWrite};
use crate::sa::{Directory, SaCounts, SubnetAdministration};
use crate::scope::Scope;
use crate::sweep::{SweepSchedule, SweepSettings};
use crate::topology;
use crate::transition::RouteStep;
use crate::unsupported::{AttributeRef, Unsupported};

/// How a manager works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagerSettings {
    /// How much it asks at once.
    pub limits: MadLimits,
    /// How closely it watches.
    pub sweeps: SweepSettings,
    /// What it tells other subnet managers, 0..=15: the higher is master.
    pub priority: u8,
    /// By what subnet managers take each other for their like. It guards nothing: everybody can ask for it.
    pub sm_key: Option<SmKey>,
    /// How long packets may be under way: so long it waits where new routes could block old ones.
    pub drain_time: Duration,
}

impl Default for ManagerSettings {
    fn default() -> Self {
        let (limits, sweeps) = (MadLimits::default(), SweepSettings::default());
        // What opensm has where nobody chose another: it yields only to a manager that has the same.
        let sm_key = SmKey::from_wire(1);
        Self { limits, sweeps, priority: 15, sm_key, drain_time: Duration::from_millis(500) }
    }
}

/// A subnet manager. Feed it with the `handle_` verbs; after each, empty `poll_persist`, `poll_transmit` and
/// `poll_event` and come back at `poll_timeout`.
#[derive(Debug)]
pub struct Manager {
    pub(crate) settings: ManagerSettings,
    pub(crate) secret: Option<SiteSecret>,
    pub(crate) window: MadWindow<Purpose>,
    pub(crate) backlog: Backlog,
    pub(crate) bound: BoundNodes,
    pub(crate) unsupported: Unsupported,
    pub(crate) observed: Observed,
    pub(crate) sweeps: SweepSchedule,
    pub(crate) plan: Option<Arc<FabricPlan>>,
    /// The plan that the fabric was last seen to be equal to.
    pub(crate) in_force: Option<Arc<FabricPlan>>,
    /// The fabric as it was last handed out.
    pub(crate) last_discovery: Option<Box<Discovery>>,
    pub(crate) phase: Phase,
    pub(crate) scope: Scope,
    /// What is read in this look is to be told.
    pub(crate) is_reading_back: bool,
    /// How arbitration tables change from here on.
    pub(crate) weight_steps: VecDeque<Vec<WeightWrite>>,
    /// How routes change from here on.
    pub(crate) route_steps: VecDeque<RouteStep>,
    /// Until then, packets are given time to leave by the old routes.
    pub(crate) drained_at: Option<Duration>,
    /// Counts looks at the fabric.
    pub(crate) discovery_run: u64,
    /// Nodes that were met in this look as if for the first time.
    pub(crate) fresh: BTreeSet<Guid>,
    /// Nodes that may hold something else than the plan says.
    pub(crate) changed: BTreeSet<Guid>,
    /// Nodes that did not answer in this pass.
    pub(crate) silent: BTreeSet<Guid>,
    /// Locations where somebody is who does not answer, or answers as somebody else; each is told once.
    pub(crate) unresolved: BTreeMap<Option<Location>, Option<Guid>>,
    /// Sets sent when the present pass began.
    pub(crate) sets_before: u64,
    /// Other subnet managers, by node and port.
    pub(crate) managers: BTreeMap<(Guid, PortNum), ForeignManager>,
    /// What has to be on disk is not what was last written there.
    pub(crate) state_is_new: bool,
    pub(crate) persistence: Persistence,
    pub(crate) sa: SubnetAdministration,
    /// What the administration answers from, or will.
    pub(crate) directory: Option<Arc<Directory>>,
    /// Nodes say something else of themselves than the directory knows.
    pub(crate) facts_are_new: bool,
    /// It was seen what devices do not take: kept when the pass is over, since losing it costs a few writes and no more.
    pub(crate) has_learned: bool,
    /// When the last verb was used.
    pub(crate) now: Duration,
    /// Counts up while the manager lives.
    pub(crate) activity: u32,
    pub(crate) answers: VecDeque<Datagram>,
    events: VecDeque<SmEvent>,
}

/// What is going on until the exchange is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Finding out what is there.
    Discovering,
    /// Nothing: the fabric is as it should be, or nobody has said yet how it should be.
    Idle,
    /// Reading what there is, to tell it.
    Surveying,
    /// Reading the tables that a plan speaks of, to tell how they differ.
    Comparing,
    /// Reading the tables that a plan speaks of.
    Reading,
    /// Nothing is written before the memory of it is safe.
    Persisting,
    Writing(Stage),
}

/// What a request was for.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// Who is there? Asked with the key of the node that was met there before, or without one.
    Probe { from: Option<Location>, route: DirectedRoute, expected: Option<Guid> },
    /// An attribute is read.
    Read { target: AttributeRef },
    /// An attribute is read that should hold what is known.
    Audit { target: AttributeRef },
    /// Has anything changed at this switch?
    LightSweep { target: AttributeRef },
    /// Something has changed at this switch.
    Recheck { target: AttributeRef },
    /// An attribute is written.
    Write { target: AttributeRef },
    /// Who is this other manager, or what has become of it?
    ForeignManager { node: Guid, port: PortNum },
}

/// Passes in a row that a node may interrupt by not answering before it is left out.
const STRIKES_MAX: u8 = 3;

/// Events that wait to be told; further traps are not.
const EVENTS_MAX: usize = 65_536;

impl Manager {
    /// A manager that starts to look at the fabric. With a secret, it puts every node under a key of its own.
    pub fn new(settings: ManagerSettings, secret: Option<SiteSecret>, state: &PersistentState) -> Self {
        let mut manager = Self {
            settings,
            secret,
            window: MadWindow::new(settings.limits),
            backlog: Backlog::default(),
            bound: BoundNodes::new(&state.bindings),
            unsupported: state.unsupported.clone(),
            observed: Observed::default(),
            sweeps: SweepSchedule::new(settings.sweeps),
            plan: None,
            in_force: None,
            last_discovery: None,
            phase: Phase::Discovering,
            scope: Scope::default(),
            is_reading_back: false,
            weight_steps: VecDeque::new(),
            route_steps: VecDeque::new(),
            drained_at: None,
            discovery_run: 0,
            fresh: BTreeSet::new(),
            changed: BTreeSet::new(),
            silent: BTreeSet::new(),
            unresolved: BTreeMap::new(),
            sets_before: 0,
            managers: BTreeMap::new(),
            state_is_new: true,
            persistence: Persistence::default(),
            sa: SubnetAdministration::new(),
            directory: None,
            facts_are_new: true,
            has_learned: false,
            now: Duration::ZERO,
            activity: 0,
            answers: VecDeque::new(),
            events: VecDeque::new(),
        };
        manager.discover_all();
        manager
    }

    /// Makes the fabric equal to a plan; [`SmEvent::Programmed`] tells when it is.
    pub fn apply(&mut self, now: Duration, plan: Arc<FabricPlan>) {
        self.forget_held_back();
        let before = self.plan.as_ref().map(|plan| plan.decisions());
        self.state_is_new |= before != Some(plan.decisions());
        self.distrust_interrupted_run();
        self.plan = Some(plan);
        if !matches!(self.phase, Phase::Discovering) {
            self.window.drop_waiting();
            self.backlog.clear();
            self.phase = Phase::Idle;
            self.begin_programming();
        }
        self.proceed(now);
    }

    /// Looks at the whole fabric again.
    pub fn rediscover(&mut self, now: Duration) {
        if self.phase == Phase::Idle {
            self.discover_all();
            self.proceed(now);
        }
    }

    /// Says that a node was moved: its key may be shown at `location` from now on. `None` is where the manager sits.
    pub fn rebind(&mut self, now: Duration, location: Option<Location>, node: Guid) {
        self.state_is_new |= self.bound.bind(location, node);
        self.rediscover(now);
    }

    /// Takes a datagram that reached the manager's port.
    pub fn handle_datagram(&mut self, now: Duration, datagram: &Datagram) {
        self.now = now;
        let mad = &datagram.mad;
        if mad.class() == ManagementClass::SUBNET_ADMINISTRATION {
            return self.sa.handle_datagram(now, datagram);
        }
        if !mad.class().is_subnet_management() || !mad.has_known_versions() {
            return;
        }
        if !mad.method().is_response() {
            self.handle_request(now, datagram);
        } else if let Some(Answered { purpose, request }) = self.window.answered(mad) {
            self.handle_answer(purpose, &request, mad);
        }
        self.proceed(now);
    }

    /// A transport knows that a request will not be answered.
    pub fn handle_lost(&mut self, now: Duration, transaction: TransactionId) {
        self.now = now;
        let silent = self.window.lost(transaction);
        self.handle_silence(now, silent);
        self.proceed(now);
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = now;
        self.sa.handle_timeout(now);
        let silent = self.window.handle_timeout(now);
        self.handle_silence(now, silent);
        self.proceed(now);
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Datagram> {
        let answer = self.answers.pop_front().or_else(|| self.sa.poll_transmit(now));
        answer.or_else(|| self.window.poll_transmit(now))
    }

    /// The next thing to tell.
    pub fn poll_event(&mut self) -> Option<SmEvent> {
        self.events.pop_front()
    }

    /// When [`Manager::handle_timeout`] has to be called at the latest.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let watch = (self.phase == Phase::Idle).then(|| self.sweeps.poll_timeout());
        let others = [watch, self.drained_at, self.sa.poll_timeout(), self.persist_timeout()];
        self.window.poll_timeout().into_iter().chain(others.into_iter().flatten()).min()
    }

    /// Whether something can be done at once, without waiting for time or datagrams.
    pub fn has_more(&self) -> bool {
        !self.events.is_empty() || !self.answers.is_empty() || self.has_state_to_persist()
    }

    /// Datagrams sent so far.
    pub fn counts(&self) -> MadCounts {
        self.window.counts
    }

    /// What was asked of the subnet administration so far.
    pub fn sa_counts(&self) -> SaCounts {
        self.sa.counts()
    }

    /// How far what is going on has got.
    pub fn progress(&self) -> MadProgress {
        let MadProgress { done, total } = self.window.progress;
        MadProgress { done, total: total + self.backlog.len() }
    }

    /// Goes on to the next phase once everything of this one was answered or given up.
    pub(crate) fn proceed(&mut self, now: Duration) {
        loop {
            self.refill();
            if !self.window.is_idle() {
                return;
            }
            match self.phase {
                Phase::Discovering => self.conclude_discovery_run(now),
                Phase::Idle => {
                    if !self.start_due_work(now) {
                        return;
                    }
                }
                Phase::Surveying => self.conclude_survey(),
                Phase::Comparing => self.conclude_comparison(),
                Phase::Reading => self.persist_decisions(now),
                Phase::Persisting => return,
                Phase::Writing(_) if self.drained_at.is_some_and(|drained_at| now < drained_at) => return,
                Phase::Writing(stage) => self.conclude_stage(now, stage),
            }
        }
    }

    /// Looks at what is due; whether anything is.
    fn start_due_work(&mut self, now: Duration) -> bool {
        self.activity = self.activity.wrapping_add(1);
        if self.resume_held_back(now) {
            return true;
        }
        let rechecks = self.sweeps.take_rechecks(now);
        if !rechecks.is_empty() {
            self.begin_discovery_run();
            rechecks.into_iter().for_each(|node| self.recheck_node(node));
        } else if self.sweeps.take_sweep(now) {
            self.sweep();
        } else {
            return false;
        }
        true
    }

    pub(crate) fn begin_discovery_run(&mut self) {
        self.phase = Phase::Discovering;
        self.discovery_run += 1;
    }

    pub(crate) fn is_discovering(&self) -> bool {
        self.phase == Phase::Discovering
    }

    /// Everybody answered or did not: has the fabric changed, or does anybody hold what it should not?
    fn conclude_discovery_run(&mut self, now: Duration) {
        self.phase = Phase::Idle;
        self.conclude_reading_back();
        if self.plan.is_none() {
            self.sweeps.put_off_sweep(now);
        }
        let Some(own) = self.observed.own.filter(|own| self.observed.nodes.contains_key(&own.node)) else {
            self.observed.own = None;
            return self.emit(SmEvent::LocalNodeSilent);
        };
        if self.observed.nodes.len() == 1 {
            // Cut off: nobody can tell when that is over.
            self.sweeps.schedule_recheck(now, own.node);
        }
        self.changed.extend(self.fresh.iter().copied());
        let mut is_news = false;
        if std::mem::take(&mut self.observed.changed) || !self.fresh.is_empty() {
            self.observed.reroute();
            self.observed.changed = false;
            match topology::topology(&self.observed.nodes) {
                Ok((topology, capabilities)) => {
                    is_news = self.publish_discovery(Discovery { topology, capabilities, manager: own.guid });
                }
                Err(error) => self.emit(SmEvent::Inconsistent(error)),
            }
        }
        // If the fabric has changed, the next plan is about to come.
        if !is_news && (!self.changed.is_empty() || self.plan_is_new()) {
            self.report_drift();
            self.begin_programming();
        } else if self.facts_are_new && self.in_force.is_some() && !self.plan_is_new() {
            self.publish();
        }
    }

    /// Tells what was found, if it is not what was told before.
    fn publish_discovery(&mut self, found: Discovery) -> bool {
        let is_news = self.last_discovery.as_deref() != Some(&found);
        if is_news {
            self.last_discovery = Some(Box::new(found.clone()));
            self.emit(SmEvent::Discovered(Box::new(found)));
        }
        is_news
    }

    pub(crate) fn comparison<'a>(&'a self, plan: &'a FabricPlan, scope: &'a Scope) -> Comparison<'a> {
        Comparison {
            plan,
            scope,
            nodes: &self.observed.nodes,
            secret: self.secret.as_ref(),
            unsupported: &self.unsupported,
        }
    }

    pub(crate) fn read(&mut self, target: AttributeRef) {
        self.request_get(target, Purpose::Read { target });
    }

    /// Reads what is known: who holds something else is compared with the plan.
    pub(crate) fn audit(&mut self, target: AttributeRef) {
        self.request_get(target, Purpose::Audit { target });
    }

    pub(crate) fn write(&mut self, target: AttributeRef, data: [u8; SMP_DATA_LEN]) {
        self.request(Method::SET, target, data, Purpose::Write { target });
    }

    pub(crate) fn request_get(&mut self, target: AttributeRef, purpose: Purpose) {
        self.request(Method::GET, target, [0; SMP_DATA_LEN], purpose);
    }

    fn request(&mut self, method: Method, target: AttributeRef, data: [u8; SMP_DATA_LEN], purpose: Purpose) {
        let (node, port, key) = target;
        let Some(route) = self.observed.nodes.get(&node).and_then(|seen| seen.route(port)) else { return };
        let mut mad = Mad::directed(method, key.0, key.1, route);
        *mad.smp_data_mut() = data;
        mad.set_m_key(self.key_of(node));
        self.window.request(node, mad, purpose);
    }

    /// The key to present. A node that is not under it yet takes any.
    fn key_of(&self, node: Guid) -> Option<MKey> {
        self.secret.as_ref().map(|secret| secret.key(node))
    }

    fn handle_silence(&mut self, now: Duration, silent: impl IntoIterator<Item = Purpose>) {
        for purpose in silent {
            match purpose {
                // Not the node that was met there before, or it lost its key: ask as a stranger would.
                Purpose::Probe { from, route, expected: Some(_) } => self.probe_as(from, route, None),
                Purpose::Probe { from, .. } => {
                    let last = self.bound.node(from);
                    if self.unresolved.insert(from, None) != Some(None) {
                        self.emit(SmEvent::SilentLocation { location: from, last });
                    }
                }
                Purpose::ForeignManager { node, port } => self.record_silent_manager(node, port),
                Purpose::Read { target }
                | Purpose::Audit { target }
                | Purpose::LightSweep { target }
                | Purpose::Recheck { target }
                | Purpose::Write { target } => self.handle_silent_attribute(now, target),
            }
        }
    }

    /// A node that answered before does not: in a look it counts as gone, in a pass it is looked at.
    fn handle_silent_attribute(&mut self, now: Duration, target: AttributeRef) {
        let (guid, port, key) = target;
        self.emit(SmEvent::NodeSilent { node: guid, attribute: key.0 });
        let is_discovering = self.is_discovering();
        let Some(node) = self.observed.nodes.get_mut(&guid) else { return };
        // Whether it did what it did not confirm is not known.
        node.tables.remove(&(port, key));
        node.strikes = node.strikes.saturating_add(1);
        if is_discovering || node.strikes >= STRIKES_MAX {
            self.observed.disconnect_all(guid);
        }
        if !is_discovering {
            self.silent.insert(guid);
            self.sweeps.schedule_recheck(now, guid);
        }
    }

    fn handle_answer(&mut self, purpose: Purpose, request: &Mad, mad: &Mad) {
        let data = mad.smp_data();
        let is_ok = mad.status() == Status::OK;
        match purpose {
            Purpose::Probe { from, route, expected } => {
                if let Some(info) = NodeInfo::decode(data).ok().filter(|_| is_ok) {
                    self.register_node(info, from, route, expected);
                }
            }
            Purpose::ForeignManager { node, port } => self.record_foreign_manager(node, port, data),
            Purpose::Read { target } => {
                let understood = is_ok && self.record(target, data);
                self.expect(understood, target, mad);
            }
            Purpose::Audit { target } => {
                self.compare_with_known(target, data);
                let understood = is_ok && self.record(target, data);
                self.expect(understood, target, mad);
            }
            Purpose::LightSweep { target } => {
                let understood = is_ok && self.record_switch(target, data, false);
                self.expect(understood, target, mad);
            }
            Purpose::Recheck { target } => {
                let understood = is_ok && self.record_switch(target, data, true);
                self.expect(understood, target, mad);
            }
            Purpose::Write { target } => {
                self.learn(target, request, mad);
                let understood = is_ok && self.record(target, data);
                self.expect(understood, target, mad);
            }
        }
    }

    /// Notes what a Set left as it was.
    fn learn(&mut self, target: AttributeRef, request: &Mad, mad: &Mad) {
        let (guid, port, key) = target;
        if mad.smp_data() == request.smp_data() {
            return;
        }
        let before = self.observed.nodes.get(&guid).and_then(|node| node.held(port, key));
        if let Some(before) = before.filter(|_| mad.status() == Status::OK)
            && self.unsupported.learn(target, &before, request.smp_data(), mad.smp_data())
        {
            self.has_learned = true;
            self.emit(SmEvent::Unsupported { node: guid, attribute: key.0, modifier: key.1 });
        }
    }

    fn compare_with_known(&mut self, target: AttributeRef, data: &[u8; SMP_DATA_LEN]) {
        let (guid, port, key) = target;
        let known = self.observed.nodes.get(&guid).and_then(|node| node.held(port, key));
        if known.is_none_or(|known| known != *data) {
            self.changed.insert(guid);
        }
    }

    fn expect(&mut self, understood: bool, target: AttributeRef, mad: &Mad) {
        if !understood {
            let (node, _, (attribute, modifier)) = target;
            let status = Some(mad.status()).filter(|status| *status != Status::OK);
            self.emit(SmEvent::RequestRefused { node, attribute, modifier, status });
            if self.phase == Phase::Writing(Stage::Active) {
                // It was ready and is not any more: it may have restarted, and lost its tables.
                self.silent.insert(node);
            }
        }
    }

    pub(crate) fn emit(&mut self, event: SmEvent) {
        if self.events.len() < EVENTS_MAX || !matches!(event, SmEvent::TrapReceived { .. }) {
            self.events.push_back(event);
        }
    }
}
