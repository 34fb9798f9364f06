//! The phases of the subnet manager, and the verbs of its caller.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fabric_model::FabricPlan;
use fabric_model::intent::PortName;
use ib_wire::{Datagram, Guid, ManagementClass, PortNum, TransactionId};

use crate::attribute_key::AttributeRef;
use crate::backlog::Backlog;
use crate::election::{self, Election};
use crate::event::{Discovery, SmEvent};
use crate::foreign_managers::ForeignManager;
use crate::group_trees::GroupTrees;
use crate::key_ring::KeyRing;
use crate::keys::{BoundNodes, Location, SiteSecret};
use crate::lacks::{LackRetry, Lacks};
use crate::link_health::{CounterPoll, DampedLinkUse, LinkHealth, LinkName, ManagementUse};
use crate::mad_window::{Answered, MadCounts, MadProgress, MadWindow};
use crate::manager_settings::ManagerSettings;
use crate::observed::Observed;
use crate::persistence::{Persistence, PersistentState};
use crate::posture::SurveyNotes;
use crate::program::{Stage, WeightWrite};
use crate::purpose::Purpose;
use crate::registration::Registration;
use crate::rotation::Rotation;
use crate::sa::{Directory, SaCounts, SubnetAdministration};
use crate::scope::Scope;
use crate::survey::Reading;
use crate::sweep::SweepSchedule;
use crate::transition::RouteStep;
use crate::unsupported::Unsupported;
use crate::verification::Written;

/// A subnet manager, as a state machine without I/O, clock or threads. It makes a fabric equal to a plan and
/// keeps it so.
///
/// # Life
///
/// 1. [`Manager::new`] starts a discovery run. [`SmEvent::Discovered`] has the topology.
/// 2. The caller compiles a plan and calls [`apply`](Self::apply). The manager reads the tables of the
///    devices that the plan concerns, waits until its state is persisted, and writes the differences stage by
///    stage. [`SmEvent::Programmed`] ends the run.
/// 3. While idle it sweeps, answers traps and serves subnet administration queries. If the fabric has
///    changed, it reports `Discovered` again and waits for the next plan. If a device holds other values than
///    the plan, it reports [`SmEvent::Drift`] and restores them.
///
/// # Verbs
///
/// | verb | effect |
/// |---|---|
/// | [`handle_datagram`](Self::handle_datagram) | a datagram arrived at the manager's port |
/// | [`handle_lost`](Self::handle_lost) | the transport knows that a request gets no response |
/// | [`handle_timeout`](Self::handle_timeout) | time passes |
/// | [`handle_persisted`](Self::handle_persisted), [`handle_not_persisted`](Self::handle_not_persisted) | storing the state succeeded or failed |
/// | [`apply`](Self::apply) | make the fabric equal to a plan |
/// | [`rediscover`](Self::rediscover), [`rebind`](Self::rebind) | discover the whole fabric again |
/// | [`rotate_keys`](Self::rotate_keys) | give every node another M_Key |
/// | [`release`](Self::release) | write nothing any more: another manager gets the fabric |
/// | [`retry_lacks`](Self::retry_lacks) | try again what devices did not take |
/// | [`restore_link`](Self::restore_link), [`set_link_health`](Self::set_link_health) | let a damped link return; change the limits |
/// | [`set_peers`](Self::set_peers) | declare other managers of the site |
/// | [`survey`](Self::survey), [`compare`](Self::compare), [`read_back`](Self::read_back) | read tables and report them; `read_back` repairs differences afterwards |
///
/// # Order of calls
///
/// After every verb:
///
/// 1. Call [`poll_persist`](Self::poll_persist). If it returns a state, store it durably and answer with
///    exactly one of `handle_persisted` and `handle_not_persisted`.
/// 2. Send everything that [`poll_transmit`](Self::poll_transmit) returns, until `None`.
/// 3. Handle everything that [`poll_event`](Self::poll_event) returns, until `None`.
/// 4. Call `handle_timeout` no later than [`poll_timeout`](Self::poll_timeout).
///
/// `now` is the time since any fixed moment of the caller's choice and must not decrease. `apply` may be
/// called at any time: it ends a programming run at the current write, and the next run starts from what the
/// devices hold. `rediscover`, `survey`, `compare` and `read_back` have an effect only while the manager is
/// idle, that is after `Discovered` without a plan, or after `Programmed`. `rebind` always binds the node, but
/// discovers the fabric again only while idle. `survey` and `compare` are for a manager that was not given a
/// plan to apply.
///
/// # Guarantees
///
/// * Nothing is written before the first `apply`.
/// * Nothing is written that depends on decisions that are not persisted. So the process may be killed at any
///   time, and the next one continues from the stored [`PersistentState`].
/// * Only attributes that differ from the plan are written. After every single write the fabric is safe: no
///   partition reaches further than the old or the new plan allows, no packet is on a lane without weight,
///   and there is no new forwarding or credit loop ([`transition`](crate::transition)). Ports become active
///   last.
/// * What a run wrote is read back before ports become active. A host port that lacks an entry which isolates tenants is
///   taken down, whatever the plan says ([`SmEvent::Lacking`]).
/// * Subnet administration answers only what the plan in force allows; during a change, only what both plans
///   allow.
/// * An M_Key is sent only to the location of its node. No key is in an event, in `PersistentState` or in
///   `Debug` output.
/// * A node that does not answer in three programming runs in a row is left out, so that it cannot block the
///   others.
/// * Requests in flight, queued answers and queued trap events have limits.
#[derive(Debug)]
pub struct Manager {
    pub(crate) settings: ManagerSettings,
    /// `None` without M_Keys.
    pub(crate) keys: Option<KeyRing>,
    pub(crate) rotation: Rotation,
    pub(crate) window: MadWindow<Purpose>,
    /// Requests that no phase waits for: to managers that were not declared.
    pub(crate) inquiries: MadWindow<Purpose>,
    pub(crate) backlog: Backlog,
    pub(crate) bound: BoundNodes,
    /// Nodes that were not bound before count as strangers.
    pub(crate) are_bindings_frozen: bool,
    pub(crate) unsupported: Unsupported,
    pub(crate) lacks: Lacks,
    /// The lacks that were reported as events.
    pub(crate) reported_lacks: Lacks,
    /// Whether a lack was found since the fabric was last reported.
    pub(crate) has_new_lacks: bool,
    pub(crate) lack_retry: LackRetry,
    /// Nodes with lacks that had a LID when it was last seen.
    pub(crate) lacking_with_lid: BTreeSet<Guid>,
    /// Ports that this programming run took down for their lacks.
    pub(crate) closing: BTreeSet<PortName>,
    /// What this programming run wrote.
    pub(crate) written: Written,
    /// What was not there when it was read back, since the last run that ended.
    pub(crate) doubted: BTreeSet<AttributeRef>,
    pub(crate) observed: Observed,
    pub(crate) health: LinkHealth,
    pub(crate) counter_poll: CounterPoll,
    pub(crate) management_use: ManagementUse,
    /// Set during a survey.
    pub(crate) survey_notes: Option<SurveyNotes>,
    pub(crate) wanted_reading: Option<Reading>,
    /// The damped links that were reported as events, with what became of them.
    pub(crate) reported_damped: BTreeMap<LinkName, DampedLinkUse>,
    pub(crate) sweeps: SweepSchedule,
    pub(crate) plan: Option<Arc<FabricPlan>>,
    /// The plan that the fabric was last found to be equal to.
    pub(crate) in_force: Option<Arc<FabricPlan>>,
    /// The last discovery that was reported.
    pub(crate) last_discovery: Option<Box<Discovery>>,
    pub(crate) phase: Phase,
    pub(crate) scope: Scope,
    /// Whether the tables read in this discovery run are to be reported.
    pub(crate) is_reading_back: bool,
    /// The remaining steps of the VL arbitration tables.
    pub(crate) weight_steps: VecDeque<Vec<WeightWrite>>,
    /// The remaining steps of the routes.
    pub(crate) route_steps: VecDeque<RouteStep>,
    /// End of the current drain time.
    pub(crate) drained_at: Option<Duration>,
    /// Number of the current discovery run.
    pub(crate) discovery_run: u64,
    /// Nodes that were registered in this discovery run.
    pub(crate) fresh: BTreeSet<Guid>,
    /// Nodes whose attributes may differ from the plan.
    pub(crate) changed: BTreeSet<Guid>,
    /// Nodes that did not answer in this programming run.
    pub(crate) silent: BTreeSet<Guid>,
    /// Nodes at the ends of links that this run takes down, because they change only then.
    pub(crate) retrained: BTreeSet<Guid>,
    /// Locations with a silent device (`None`) or a stranger (the GUID it claims). Each is reported once.
    pub(crate) unresolved: BTreeMap<Option<Location>, Option<Guid>>,
    /// Sets sent before the current programming run.
    pub(crate) sets_before: u64,
    /// Other subnet managers by node and port.
    pub(crate) managers: BTreeMap<(Guid, PortNum), ForeignManager>,
    /// Whether the state differs from what was last persisted.
    pub(crate) state_is_new: bool,
    pub(crate) persistence: Persistence,
    pub(crate) registration: Registration,
    pub(crate) election: Election,
    pub(crate) group_trees: GroupTrees,
    pub(crate) sa: SubnetAdministration,
    /// The directory that subnet administration answers from, or will after the change.
    pub(crate) directory: Option<Arc<Directory>>,
    /// Whether nodes report other facts than `directory` has.
    pub(crate) facts_are_new: bool,
    /// Whether unsupported bits were found. They are persisted at the end of the programming run, because
    /// losing them costs only a few writes.
    pub(crate) has_learned: bool,
    /// Time of the last verb.
    pub(crate) now: Duration,
    /// ActCount of SMInfo; increases while the manager runs.
    pub(crate) activity: u32,
    pub(crate) answers: VecDeque<Datagram>,
    events: VecDeque<SmEvent>,
}

/// What the manager does until the MAD window is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Discovering,
    /// Nothing: the fabric holds the plan, or there is no plan yet.
    Idle,
    /// Reading the tables of all nodes, to report them.
    Surveying,
    /// Reading the tables that a plan names, to report the differences.
    Comparing,
    /// Reading the tables that a plan names, before programming.
    Reading,
    /// Waiting until the state is persisted.
    Persisting,
    Writing(Stage),
    /// Reading back what was written.
    Verifying,
    /// Asking ports to register at subnet administration.
    Registering,
    /// Waiting until it is persisted which nodes are about to change their M_Keys.
    PersistingRotation,
    /// Nodes get other M_Keys, a batch at a time.
    Rotating,
}

/// Limit on queued events. Beyond it, traps are not reported.
const EVENTS_MAX: usize = 65_536;

impl Manager {
    /// Creates a manager and starts a discovery run. With a secret, every node gets an M_Key of its own; several are needed
    /// while nodes change from one to the next ([`rotate_keys`](Self::rotate_keys)). `state` is what a former manager
    /// persisted, or the default.
    pub fn new(
        settings: ManagerSettings,
        secrets: impl IntoIterator<Item = SiteSecret>,
        state: &PersistentState,
    ) -> Self {
        let secrets = secrets.into_iter().collect();
        let mut manager = Self {
            settings,
            keys: KeyRing::new(secrets, state.secret, &state.keys),
            rotation: Rotation::new(&state.keys),
            window: MadWindow::new(settings.limits),
            inquiries: MadWindow::for_inquiries(settings.limits),
            backlog: Backlog::default(),
            bound: BoundNodes::new(&state.bindings),
            are_bindings_frozen: false,
            unsupported: state.unsupported.clone(),
            lacks: state.lacks.clone(),
            reported_lacks: state.lacks.clone(),
            has_new_lacks: false,
            lack_retry: LackRetry::default(),
            lacking_with_lid: BTreeSet::new(),
            closing: BTreeSet::new(),
            written: Written::default(),
            doubted: BTreeSet::new(),
            observed: Observed::default(),
            health: LinkHealth::new(settings.link_health, &state.damped_links),
            counter_poll: CounterPoll::default(),
            management_use: ManagementUse::default(),
            survey_notes: None,
            wanted_reading: None,
            reported_damped: BTreeMap::new(),
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
            retrained: BTreeSet::new(),
            unresolved: BTreeMap::new(),
            sets_before: 0,
            managers: BTreeMap::new(),
            state_is_new: true,
            persistence: Persistence::default(),
            registration: Registration::default(),
            election: Election::default(),
            group_trees: GroupTrees::new(state.multicast_blocks),
            sa: SubnetAdministration::with_group_trees(&state.groups),
            directory: None,
            facts_are_new: true,
            has_learned: false,
            now: Duration::ZERO,
            activity: 0,
            answers: VecDeque::new(),
            events: VecDeque::new(),
        };
        for lack in state.lacks.iter().cloned() {
            manager.emit(SmEvent::Lacking(lack));
        }
        manager.discover_all();
        manager
    }

    /// Makes the fabric equal to a plan and keeps it so. [`SmEvent::Programmed`] reports the end of the run.
    /// Replaces an earlier plan, even in the middle of a programming run.
    ///
    /// If a node of the plan is missing, nothing is programmed until the next discovery.
    pub fn apply(&mut self, now: Duration, plan: Arc<FabricPlan>) {
        if self.persistence.is_released {
            return;
        }
        self.forget_held_back();
        self.wanted_reading = None;
        self.forget_needed_bits(&plan);
        let before = self.plan.as_ref().map(|plan| plan.decisions());
        self.state_is_new |= before != Some(plan.decisions());
        self.distrust_interrupted_run();
        self.group_trees.is_only_change = false;
        self.plan = Some(plan);
        self.add_group_trees();
        if !matches!(self.phase, Phase::Discovering | Phase::PersistingRotation | Phase::Rotating) {
            // What was sent and may have taken effect is read again.
            let _ = self.window.drop_waiting(|_| true);
            self.backlog.clear();
            self.phase = Phase::Idle;
            self.begin_programming();
        }
        self.proceed(now);
    }

    /// Names the ports that may subscribe to notices about all devices, besides the manager's own, by GUID.
    pub fn set_event_ports(&mut self, ports: BTreeSet<Guid>) {
        self.sa.set_event_ports(ports);
    }

    /// Discovers the whole fabric again. Has no effect unless the manager is idle.
    pub fn rediscover(&mut self, now: Duration) {
        if self.phase == Phase::Idle && !self.persistence.is_released {
            self.discover_all();
            self.proceed(now);
        }
    }

    /// Accepts that a node was moved: its M_Key may be presented at `location` from now on (`None` is the
    /// manager's own node). Then discovers the fabric again.
    pub fn rebind(&mut self, now: Duration, location: Option<Location>, node: Guid) {
        self.state_is_new |= self.bound.bind(location, node);
        self.rediscover(now);
    }

    /// Handles a datagram that arrived at the manager's port. Datagrams of other classes than subnet
    /// management, subnet administration and performance management are ignored.
    pub fn handle_datagram(&mut self, now: Duration, datagram: &Datagram) {
        self.now = now;
        self.election_step(now);
        let mad = &datagram.mad;
        if mad.class() == ManagementClass::SUBNET_ADMINISTRATION {
            self.sa.handle_datagram(now, datagram);
            while let Some(port) = self.sa.poll_greedy() {
                self.emit(SmEvent::PortOverload { port });
            }
            return;
        }
        let is_counter = matches!(mad.class(), ManagementClass::PERFORMANCE | ManagementClass::CONGESTION);
        if is_counter && mad.has_known_versions() {
            self.handle_counters(now, datagram);
            return self.proceed(now);
        }
        if !mad.class().is_subnet_management() || !mad.has_known_versions() {
            return;
        }
        let asked_in_election =
            mad.transaction().0 as u32 & !(election::TRANSACTIONS - 1) == election::TRANSACTIONS;
        if !mad.method().is_response() {
            self.handle_request(now, datagram);
        } else if asked_in_election {
            self.handle_declared(mad);
            self.election_step(now);
        } else if let Some(Answered { purpose, request }) =
            self.window.answered(mad).or_else(|| self.inquiries.answered(mad))
        {
            self.handle_answer(now, purpose, &request, mad);
        }
        self.proceed(now);
    }

    /// Handles a request that gets no response, as the transport knows. It is sent again or given up without
    /// waiting for its timeout.
    pub fn handle_lost(&mut self, now: Duration, transaction: TransactionId) {
        self.now = now;
        self.counter_poll.lost(transaction);
        let mut silent = self.window.lost(transaction);
        silent.extend(self.inquiries.lost(transaction));
        self.handle_silence(now, silent);
        self.proceed(now);
    }

    /// Handles timeouts, sweeps and retries that are due at `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = now;
        self.election_step(now);
        self.sa.handle_timeout(now);
        self.counter_poll.handle_timeout(now);
        let mut silent = self.window.handle_timeout(now);
        silent.extend(self.inquiries.handle_timeout(now));
        self.handle_silence(now, silent);
        self.proceed(now);
    }

    /// The next datagram to send: first responses, then requests as the windows permit, then inquiries and reads of counters.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Datagram> {
        let first = self.answers.pop_front().or_else(|| self.poll_question(now));
        let may_write = self.may_write(now);
        let answer = first.or_else(|| if may_write { self.sa.poll_transmit(now) } else { None });
        let request = answer.or_else(|| self.window.poll_transmit(now, may_write));
        request.or_else(|| self.inquiries.poll_transmit(now, may_write)).or_else(|| self.poll_counters(now))
    }

    /// The next event, in order of occurrence.
    pub fn poll_event(&mut self) -> Option<SmEvent> {
        self.events.pop_front()
    }

    /// When [`Manager::handle_timeout`] must be called at the latest; `None` if only a datagram or a
    /// persisted state can continue the work.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let is_idle = self.phase == Phase::Idle && !self.persistence.is_released;
        let watch = is_idle.then(|| self.sweeps.poll_timeout());
        let retry = self.lack_retry.poll_timeout().filter(|_| is_idle);
        let trees = self.group_trees_timeout();
        let health = self.health.poll_timeout().filter(|_| is_idle);
        let counters = self.counter_poll.poll_timeout();
        let rotation = self.rotation_timeout();
        // Later than that, only the last answers are waited for.
        let drained = self.drained_at.filter(|at| *at > self.now);
        let served = [self.sa.poll_timeout(), self.persist_timeout(), drained, rotation];
        let others =
            [watch, retry, trees, health, counters, self.election_timeout()].into_iter().chain(served);
        let requests = [self.window.poll_timeout(), self.inquiries.poll_timeout()];
        requests.into_iter().chain(others).flatten().min()
    }

    /// Whether an event, a response or a state to persist is waiting. They do not need a datagram or a
    /// timeout to become available.
    pub fn has_more(&self) -> bool {
        !self.events.is_empty() || !self.answers.is_empty() || self.has_state_to_persist()
    }

    /// Requests sent since the start.
    pub fn counts(&self) -> MadCounts {
        let (own, inquiries) = (self.window.counts, self.inquiries.counts);
        MadCounts { gets: own.gets + inquiries.gets, retries: own.retries + inquiries.retries, ..own }
    }

    /// Counters of subnet administration since the start.
    pub fn sa_counts(&self) -> SaCounts {
        self.sa.counts()
    }

    /// Progress of the current phase.
    pub fn progress(&self) -> MadProgress {
        let MadProgress { done, total } = self.window.progress;
        MadProgress { done, total: total + self.backlog.len() }
    }

    /// Continues with the next phase once every request of this one was answered or given up.
    pub(crate) fn proceed(&mut self, now: Duration) {
        loop {
            self.refill();
            if !self.window.is_idle() {
                return;
            }
            match self.phase {
                Phase::Discovering => self.conclude_discovery_run(now),
                Phase::Idle => {
                    if self.persistence.is_released || !self.start_due_work(now) {
                        return;
                    }
                }
                Phase::Surveying if !self.counter_poll.is_idle() || !self.inquiries.is_idle() => return,
                Phase::Surveying => self.conclude_survey(),
                Phase::Comparing => self.conclude_comparison(),
                Phase::Reading => self.persist_decisions(now),
                Phase::Persisting => return,
                Phase::Writing(_) if self.drained_at.is_some_and(|drained_at| now < drained_at) => return,
                Phase::Writing(stage) => self.conclude_stage(now, stage),
                Phase::Verifying => self.conclude_verification(now),
                Phase::Registering => self.conclude_registration(now),
                Phase::PersistingRotation => return,
                Phase::Rotating => self.conclude_rotation_batch(now),
            }
        }
    }

    /// Starts what is due while idle: a survey or comparison, a held-back plan, trees of groups, rechecks or a sweep. Returns whether there was
    /// anything.
    fn start_due_work(&mut self, now: Duration) -> bool {
        self.activity = self.activity.wrapping_add(1);
        if self.begin_wanted_reading() {
            return true;
        }
        if self.resume_held_back(now) {
            return true;
        }
        if self.begin_group_trees(now) {
            return true;
        }
        if self.lack_retry.take(now) {
            self.forget_lacks(now);
        }
        if self.settle_link_health(now) {
            return true;
        }
        // Before a rotation goes on: a node may not answer because its routes are gone.
        let rechecks = self.sweeps.take_rechecks(now);
        if !rechecks.is_empty() {
            self.begin_discovery_run();
            rechecks.into_iter().for_each(|node| self.recheck_node(node));
            return true;
        }
        if self.begin_search(now) || self.begin_rotation_batch(now) {
            return true;
        }
        let is_due = self.sweeps.take_sweep(now);
        if is_due {
            self.sweep();
        }
        is_due
    }

    pub(crate) fn begin_discovery_run(&mut self) {
        self.phase = Phase::Discovering;
        self.discovery_run += 1;
    }

    pub(crate) fn is_discovering(&self) -> bool {
        self.phase == Phase::Discovering
    }

    /// Ends a discovery run: reports a changed fabric, or starts programming if attributes differ from the
    /// plan.
    fn conclude_discovery_run(&mut self, now: Duration) {
        self.phase = Phase::Idle;
        self.conclude_reading_back();
        self.review_declared(now);
        if self.plan.is_none() {
            self.sweeps.put_off_sweep(now);
        }
        let Some(own) = self.observed.own.filter(|own| self.observed.nodes.contains_key(&own.node)) else {
            self.observed.own = None;
            return self.emit(SmEvent::LocalNodeSilent);
        };
        if self.observed.nodes.len() == 1 {
            // The manager is cut off, and no trap can report when that ends.
            self.sweeps.schedule_recheck(now, own.node);
        }
        self.changed.extend(self.fresh.iter().copied());
        let mut is_new = false;
        if std::mem::take(&mut self.observed.changed) || !self.fresh.is_empty() {
            self.review_damped_links();
            self.observed.reroute();
            self.observed.changed = false;
            is_new = self.report_fabric(own.guid);
        }
        // If the fabric has changed, a new plan will follow.
        if !is_new && (!self.changed.is_empty() || self.plan_is_new()) {
            self.report_drift();
            self.begin_programming();
        } else if self.facts_are_new && self.in_force.is_some() && !self.plan_is_new() {
            self.publish();
        }
    }

    pub(crate) fn emit(&mut self, event: SmEvent) {
        if self.events.len() < EVENTS_MAX || !matches!(event, SmEvent::TrapReceived { .. }) {
            self.events.push_back(event);
        }
    }
}
