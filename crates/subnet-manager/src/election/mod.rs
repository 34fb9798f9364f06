//! Which of the declared subnet managers is the master.
//!
//! The operator declares the managers of a site by port GUID. They ask each other for SMInfo, and only they are asked: what any other
//! port says about its manager is reported and never obeyed. Each keeps to two rules, from which everything else follows:
//!
//! * **A manager sends a Set only with a lease.** It holds one while every declared manager that the fabric shows has, within the
//!   [lease time](ElectionTiming::lease), answered *Standby* or *NotActive*, or has been silent for the
//!   [silence time](ElectionTiming::silence) although it was asked all the while. The lease counts from when the question was *sent*.
//! * **A manager that answered *Standby* sends no Set for a lease time.** It waits much longer before it wants to become the master
//!   ([`Standby`](crate::Standby)), and answers *Discovering* from then on, which gives no lease.
//!
//! So the leases of two managers that hear each other never overlap. A manager that was stopped (SIGSTOP, a virtual machine that was
//! paused) notices at its next step that more than [`ElectionTiming::pause_max`] has passed: its lease is over, and it is a
//! candidate again, which yields to any master. A manager that is cut off from everything but its own node answers *NotActive* and is
//! a candidate when its cable is back.
//!
//! Two halves of a split fabric have a master each. When they are joined, both find the other's port before they plan for its
//! half, and a port whose manager has not answered yet gives no lease. Of two masters the one with the lower priority, or with the
//! higher GUID, yields; the other goes on when it has heard *Standby*.
//!
//! A candidate yields to every master, and to a candidate that outranks it. As it answers *Standby* afterwards, the other gets its
//! lease.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use fabric_model::intent::PortName;
use ib_wire::{
    Attribute, Datagram, DirectedRoute, Guid, Lid, LidAddress, Mad, Method, PortInfo, SMP_DATA_LEN, SmInfo,
    SmKey, SmState, Status, TransactionId,
};
use serde::Serialize;

use crate::event::SmEvent;
use crate::manager::Manager;
use crate::observed::{self, ObservedNode};

/// The upper part of the transactions of the election, so that they are not mistaken for those of other requests.
pub(crate) const TRANSACTIONS: u32 = 0x4000_0000;
/// Questions to a manager that may wait for an answer. Older ones are forgotten.
const IN_FLIGHT_MAX: usize = 8;
/// How long a new master looks for a declared manager that the fabric does not show, and a master for one whose port is gone. Later
/// traps and sweeps find it.
const SEARCH: Duration = Duration::from_secs(30);
/// Time between two reports of refused orders.
const CLAIM_REPORTS: Duration = Duration::from_secs(10);

/// The times of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionTiming {
    /// Time between two questions to a manager.
    pub interval: Duration,
    /// How long an answer allows to send Sets.
    pub lease: Duration,
    /// A manager that was asked, but did not answer for this long, is silent. Longer than `pause_max`: a manager that was stopped
    /// knows that its lease is over before others take it for silent.
    pub silence: Duration,
    /// A manager that did nothing for this long was stopped: its lease is over. After a lease time, another one may have taken
    /// over, and it waits as a standby manager again.
    pub pause_max: Duration,
    /// Time without an answer of the master after which a standby manager wants to become the master. Longer than `lease`.
    pub patience: Duration,
}

impl ElectionTiming {
    /// The times that go with a patience.
    pub fn with_patience(patience: Duration) -> Self {
        let part = |fifteenths: u32| patience * fifteenths / 15;
        Self { interval: part(2), lease: part(10), silence: part(6), pause_max: part(4), patience }
    }
}

/// Takeovers begin after 1.5 seconds of silence. A manager on a busy machine may pause for 0.4 seconds without losing its lease.
impl Default for ElectionTiming {
    fn default() -> Self {
        Self::with_patience(Duration::from_millis(1500))
    }
}

/// Whether a manager is the master or wants to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It sends no Set.
    #[default]
    Candidate,
    Master,
}

/// The state of the election, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ElectionStatus {
    pub standing: Standing,
    /// Whether Sets may be sent now.
    pub has_lease: bool,
    /// The declared managers, besides this one, with the state that they last reported; `None` if they do not answer.
    pub managers: BTreeMap<Guid, Option<String>>,
    /// How often a lease ended, because this manager was stopped or another one did not agree.
    pub lapses: u64,
}

/// What this manager knows of a declared one.
#[derive(Debug, Default)]
struct Peer {
    /// Where its port was found; `None` while the fabric does not show it.
    port: Option<PortName>,
    next_question: Duration,
    /// Questions without answer, with the time at which they were sent.
    in_flight: VecDeque<(u32, Duration)>,
    /// The last answer: when its question was sent, and the state.
    answer: Option<(Duration, SmState)>,
    /// When the first question was sent that was not answered since.
    silent_since: Option<Duration>,
    was_silent: bool,
}

impl Peer {
    /// Forgets what was said; it is asked again at once.
    fn forget(&mut self, now: Duration) {
        *self = Self { port: self.port, next_question: now, ..Self::default() };
    }

    fn gives_lease(&self, now: Duration, timing: &ElectionTiming) -> bool {
        if self.port.is_none() {
            return true;
        }
        let agrees = self.answer.is_some_and(|(sent, state)| {
            matches!(state, SmState::Standby | SmState::NotActive) && now < sent + timing.lease
        });
        agrees || self.is_silent(now, timing)
    }

    fn is_silent(&self, now: Duration, timing: &ElectionTiming) -> bool {
        // An answer may still be on its way until then.
        let heard = self.answer.is_some_and(|(sent, _)| now < sent + timing.silence);
        !heard && self.silent_since.is_some_and(|since| now >= since + timing.silence)
    }
}

/// The election, as one manager sees it.
#[derive(Debug, Default)]
pub(crate) struct Election {
    timing: ElectionTiming,
    peers: BTreeMap<Guid, Peer>,
    standing: Standing,
    /// The standing that was last reported as an event.
    reported: Standing,
    /// Whether it yielded; it does nothing afterwards.
    has_yielded: bool,
    /// Whether nothing but the manager's own node answers.
    is_cut_off: bool,
    /// Whether the link of the manager's own port is down.
    is_unplugged: bool,
    /// When the own port is asked next.
    next_look: Duration,
    /// When declared managers that the fabric does not show are looked for next, and until when.
    next_search: Duration,
    search_end: Duration,
    /// Whether a discovery run has shown which declared managers are there.
    has_looked: bool,
    /// No Set is sent before this time: this manager answered *Standby* or *NotActive* a lease time before.
    earliest: Duration,
    last_step: Option<Duration>,
    /// Whether the lease held at the last step, to notice when it ends.
    had_lease: bool,
    lapses: u64,
    /// Number of refused Sets of SMInfo: handovers and claims of other managers.
    pub claims_refused: u64,
    /// When the next of them is reported.
    next_claim_report: Duration,
    transactions: u32,
}

/// What follows from the answer of a declared manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Stay,
    Yield,
}

impl Election {
    fn is_contested(&self) -> bool {
        !self.peers.is_empty()
    }

    pub fn is_declared(&self, port: Guid) -> bool {
        self.peers.contains_key(&port)
    }

    /// Time passes. Notices that the manager was stopped; yields if another one may have taken over meanwhile.
    fn step(&mut self, now: Duration) -> Verdict {
        if !self.is_contested() || self.has_yielded {
            return Verdict::Stay;
        }
        let was_stopped = self.was_stopped(now);
        let pause = now.saturating_sub(self.last_step.replace(now).unwrap_or(now));
        if was_stopped {
            self.standing = Standing::Candidate;
            self.peers.values_mut().for_each(|peer| peer.forget(now));
        }
        if pause >= self.timing.lease {
            self.has_yielded = true;
            return Verdict::Yield;
        }
        let has_lease = self.has_lease(now);
        if has_lease && !self.is_cut_off {
            self.standing = Standing::Master;
        }
        self.lapses += u64::from(self.had_lease && !has_lease);
        self.had_lease = has_lease;
        Verdict::Stay
    }

    fn was_stopped(&self, now: Duration) -> bool {
        self.last_step.is_some_and(|last| now.saturating_sub(last) > self.timing.pause_max)
    }

    /// Whether it is time to look for a declared manager that the fabric does not show, because the trap that reports its port may be
    /// lost.
    fn take_search(&mut self, now: Duration) -> bool {
        let is_absent = self.peers.values().any(|peer| peer.port.is_none());
        let is_due = self.next_search <= now && now < self.search_end;
        if !is_absent || !is_due || self.has_yielded || self.is_cut_off {
            return false;
        }
        self.next_search = now + self.timing.lease;
        true
    }

    /// The event that a changed standing is, once.
    fn take_change(&mut self, now: Duration) -> Option<SmEvent> {
        let before = std::mem::replace(&mut self.reported, self.standing);
        match (before, self.standing) {
            (Standing::Candidate, Standing::Master) => {
                self.search_end = now + SEARCH;
                Some(SmEvent::Elected)
            }
            (Standing::Master, Standing::Candidate) => Some(SmEvent::LeaseLost),
            _ => None,
        }
    }

    /// Whether a manager became silent since this was asked last.
    fn take_newly_silent(&mut self, now: Duration) -> bool {
        let timing = self.timing;
        let mut is_new = false;
        for peer in self.peers.values_mut() {
            let is_silent = peer.is_silent(now, &timing);
            is_new |= is_silent && !std::mem::replace(&mut peer.was_silent, is_silent);
            peer.was_silent = is_silent;
        }
        is_new
    }

    /// Whether Sets may be sent.
    fn has_lease(&self, now: Duration) -> bool {
        let is_allowed =
            self.has_looked && !self.has_yielded && now >= self.earliest && !self.was_stopped(now);
        is_allowed && self.peers.values().all(|peer| peer.gives_lease(now, &self.timing))
    }

    fn state(&self) -> SmState {
        match self.standing {
            _ if self.is_cut_off => SmState::NotActive,
            Standing::Candidate => SmState::Discovering,
            Standing::Master => SmState::Master,
        }
    }

    /// Nothing but the manager's own node answers, or that is over.
    fn set_cut_off(&mut self, now: Duration, is_cut_off: bool) {
        self.has_looked = !is_cut_off;
        if !self.is_contested() || self.is_cut_off == is_cut_off {
            return;
        }
        self.is_cut_off = is_cut_off;
        self.standing = Standing::Candidate;
        // It answered NotActive, which gave leases to others.
        self.earliest = now + self.timing.lease;
        self.peers.values_mut().for_each(|peer| peer.forget(now));
    }

    fn set_port(&mut self, now: Duration, guid: Guid, port: Option<PortName>) {
        let Some(peer) = self.peers.get_mut(&guid).filter(|peer| peer.port != port) else { return };
        *peer = Peer { port, next_question: now, ..Peer::default() };
        if port.is_none() {
            self.search_end = now + SEARCH;
        }
    }

    /// The next question that is due, and whom to ask.
    fn next_question(&mut self, now: Duration) -> Option<(u32, PortName)> {
        let timing = self.timing;
        let is_due = |peer: &&mut Peer| peer.port.is_some() && peer.next_question <= now;
        let peer = self.peers.values_mut().find(is_due).filter(|_| !self.has_yielded)?;
        peer.next_question = now + timing.interval;
        self.transactions = self.transactions.wrapping_add(1) & (TRANSACTIONS - 1);
        let transaction = TRANSACTIONS | self.transactions;
        if peer.in_flight.len() == IN_FLIGHT_MAX {
            peer.in_flight.pop_front();
        }
        peer.in_flight.push_back((transaction, now));
        peer.silent_since.get_or_insert(now);
        Some((transaction, peer.port?))
    }

    /// Whether a refused order is reported: anybody may send any number of them.
    pub fn take_claim_report(&mut self, now: Duration) -> bool {
        let is_due = now >= self.next_claim_report;
        if is_due {
            self.next_claim_report = now + CLAIM_REPORTS;
        }
        is_due
    }

    /// Whether it is time to ask the own port.
    fn take_look(&mut self, now: Duration) -> Option<u32> {
        if !self.is_contested() || now < self.next_look || self.has_yielded {
            return None;
        }
        self.next_look = now + self.timing.interval;
        self.transactions = self.transactions.wrapping_add(1) & (TRANSACTIONS - 1);
        Some(TRANSACTIONS | self.transactions)
    }

    /// The declared manager that a transaction asked, and when.
    fn take_question(&mut self, transaction: u32) -> Option<(Guid, Duration)> {
        self.peers.iter_mut().find_map(|(guid, peer)| {
            let index = peer.in_flight.iter().position(|(known, _)| *known == transaction)?;
            // Answers to earlier questions would say less.
            let (_, sent) = peer.in_flight.drain(..=index).next_back()?;
            Some((*guid, sent))
        })
    }

    fn record(&mut self, guid: Guid, sent: Duration, state: SmState, outranks_us: bool) -> Verdict {
        if let Some(peer) = self.peers.get_mut(&guid) {
            peer.answer = Some((sent, state));
            peer.silent_since = None;
        }
        match (self.standing, state) {
            (Standing::Candidate, SmState::Master) => Verdict::Yield,
            (Standing::Candidate, SmState::Discovering) | (Standing::Master, SmState::Master)
                if outranks_us =>
            {
                Verdict::Yield
            }
            _ => Verdict::Stay,
        }
    }

    fn poll_timeout(&self, now: Duration) -> Option<Duration> {
        if !self.is_contested() || self.has_yielded {
            return None;
        }
        let asked = self.peers.values().filter(|peer| peer.port.is_some()).map(|peer| peer.next_question);
        // Steps often enough not to look stopped.
        asked.chain([now + self.timing.pause_max / 2]).min()
    }
}

impl Manager {
    /// Declares the other subnet managers of the site, by port GUID. Call it before anything else. From then on this manager is a
    /// candidate: it sends no Set until [`SmEvent::Elected`], and ends with [`SmEvent::Yielded`], after which nothing may
    /// be polled from it any more. `earliest` is when it may send a Set at the earliest: a lease time after a
    /// [`Standby`](crate::Standby) gave its last answer.
    pub fn set_peers(
        &mut self,
        peers: impl IntoIterator<Item = Guid>,
        timing: ElectionTiming,
        earliest: Duration,
    ) {
        let peers = peers.into_iter().map(|guid| (guid, Peer::default())).collect();
        self.election = Election { timing, peers, earliest, ..Election::default() };
    }

    /// Accepts no node at a location where none was bound before, because what this manager remembers may be old. Those that
    /// [`rebind`](Self::rebind) names are accepted.
    pub fn freeze_bindings(&mut self) {
        self.are_bindings_frozen = true;
    }

    /// The node that a port belongs to, if it was found.
    pub fn node_of(&self, port: Guid) -> Option<Guid> {
        let has = |node: &&ObservedNode| node.port_guids.values().any(|guid| *guid == port);
        self.observed.nodes.values().find(has).map(|node| node.info.node_guid)
    }

    /// PortInfo:MasterSMLID of the manager's own port: the manager that last configured it.
    pub fn last_master(&self) -> Option<Lid> {
        let own = self.observed.own?;
        self.observed.nodes.get(&own.node)?.ports.get(&own.number)?.master_sm_lid
    }

    /// Whether this manager is the master: always, if there are no others.
    pub fn is_master(&self) -> bool {
        !self.election.is_contested() || self.election.standing == Standing::Master
    }

    /// Whether it yielded to another manager.
    pub fn has_yielded(&self) -> bool {
        self.election.has_yielded
    }

    /// Whether other managers are declared.
    pub(crate) fn has_peers(&self) -> bool {
        self.election.is_contested()
    }

    /// Sets of SMInfo that were refused: handovers and claims of other managers, which only the rules of the election decide about.
    pub fn claims_refused(&self) -> u64 {
        self.election.claims_refused
    }

    /// The state of the election; `None` if no other managers are declared.
    pub fn election_status(&self) -> Option<ElectionStatus> {
        let election = &self.election;
        let says = |peer: &Peer| {
            let is_silent = peer.port.is_none() || peer.is_silent(self.now, &election.timing);
            peer.answer.filter(|_| !is_silent).map(|(_, state)| format!("{state:?}"))
        };
        election.is_contested().then(|| ElectionStatus {
            standing: election.standing,
            has_lease: election.has_lease(self.now),
            managers: election.peers.iter().map(|(guid, peer)| (*guid, says(peer))).collect(),
            lapses: election.lapses,
        })
    }

    /// The declared managers besides this one.
    pub(crate) fn declared_managers(&self) -> BTreeSet<Guid> {
        self.election.peers.keys().copied().collect()
    }

    pub(crate) fn election_step(&mut self, now: Duration) {
        if self.election.step(now) == Verdict::Yield {
            return self.emit(SmEvent::Yielded { to: None });
        }
        // Is the other one gone, or this one cut off?
        if let Some(own) = self.observed.own.filter(|_| self.election.take_newly_silent(now)) {
            self.sweeps.schedule_recheck(now, own.node);
        }
        if let Some(change) = self.election.take_change(now) {
            self.emit(change);
        }
    }

    /// Looks for declared managers that the fabric does not show. Returns whether it is time to.
    pub(crate) fn begin_search(&mut self, now: Duration) -> bool {
        let is_due = self.observed.own.is_some() && self.election.take_search(now);
        if is_due {
            self.begin_discovery_run();
            self.look_at_switches();
        }
        is_due
    }

    /// Whether Sets may be sent, and answers of subnet administration.
    pub(crate) fn may_write(&self, now: Duration) -> bool {
        !self.election.is_contested()
            || self.election.standing == Standing::Master && self.election.has_lease(now)
    }

    /// The state that SMInfo reports.
    pub(crate) fn sm_state(&self) -> SmState {
        match self.election.is_contested() {
            true => self.election.state(),
            false if self.plan.is_some() => SmState::Master,
            false => SmState::Discovering,
        }
    }

    /// A port with the GUID of a declared manager was found. It counts where its node was bound before, and nowhere else.
    pub(crate) fn note_declared(&mut self, guid: Guid, port: PortName) {
        if self.election.is_declared(guid) {
            self.election.set_port(self.now, guid, Some(port));
        }
    }

    /// Whether a declared manager does not answer: it may be the master of another half of the fabric, which this run may have
    /// found.
    pub(crate) fn may_meet_other_master(&self) -> bool {
        self.election
            .peers
            .values()
            .any(|peer| peer.port.is_none() || peer.answer.is_none() || peer.was_silent)
    }

    /// After a discovery run: where the declared managers are.
    pub(crate) fn review_declared(&mut self, now: Duration) {
        if !self.election.is_contested() {
            return;
        }
        let is_cut_off = self.election.is_unplugged || self.observed.nodes.len() <= 1;
        self.election.set_cut_off(now, is_cut_off);
        let guids: Vec<Guid> = self.election.peers.keys().copied().collect();
        for guid in guids {
            let known = self.election.peers.get(&guid).and_then(|peer| peer.port);
            let is_there = |port: &PortName| {
                let node = self.observed.nodes.get(&port.node);
                node.is_some_and(|node| {
                    node.port_guids.get(&port.port) == Some(&guid) && node.route(port.port).is_some()
                })
            };
            self.election.set_port(now, guid, known.filter(is_there));
        }
    }

    /// The next question to a declared manager, or to the own port.
    pub(crate) fn poll_question(&mut self, now: Duration) -> Option<Datagram> {
        if let Some((own, transaction)) = self.observed.own.zip(self.election.take_look(now)) {
            let number = own.number.to_wire().into();
            let mut mad = Mad::directed(Method::GET, Attribute::PORT_INFO, number, &DirectedRoute::default());
            mad.set_transaction(TransactionId(transaction.into()));
            mad.set_m_key(self.key_of(PortName { node: own.node, port: own.number }));
            return Some(Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad));
        }
        let (transaction, port) = self.election.next_question(now)?;
        let route = self.observed.nodes.get(&port.node)?.route(port.port)?;
        Some(question(transaction, Some(route), LidAddress::Permissive))
    }

    /// Handles the PortInfo of the own port: without a link, this manager is cut off, whatever it believes about the fabric.
    fn handle_own_port(&mut self, mad: &Mad) {
        let (now, own) = (self.now, self.observed.own);
        let Some(info) = PortInfo::decode(mad.smp_data()).ok().filter(|_| mad.status() == Status::OK) else {
            return;
        };
        let is_unplugged = !observed::is_up(&info);
        if std::mem::replace(&mut self.election.is_unplugged, is_unplugged) == is_unplugged {
            return;
        }
        if is_unplugged {
            self.election.set_cut_off(now, true);
        }
        own.into_iter().for_each(|own| self.sweeps.schedule_recheck(now, own.node));
    }

    /// Handles an answer to a question of the election.
    pub(crate) fn handle_declared(&mut self, mad: &Mad) {
        if mad.attribute() == Attribute::PORT_INFO {
            return self.handle_own_port(mad);
        }
        // The upper half of a transaction id belongs to the transport.
        let Some((guid, sent)) = self.election.take_question(mad.transaction().0 as u32) else { return };
        let Some(info) = declared_answer(mad, guid, self.settings.sm_key) else { return };
        let own =
            Rank { priority: self.settings.priority.min(15), guid: self.observed.own.map(|own| own.guid) };
        let other = Rank { priority: info.priority, guid: Some(guid) };
        if self.election.record(guid, sent, info.state, other.outranks(own)) == Verdict::Yield {
            self.election.has_yielded = true;
            self.emit(SmEvent::Yielded { to: Some(guid) });
        }
    }

    pub(crate) fn election_timeout(&self) -> Option<Duration> {
        self.election.poll_timeout(self.now)
    }
}

/// What decides between two managers in the same state.
#[derive(Clone, Copy, Debug)]
struct Rank {
    priority: u8,
    guid: Option<Guid>,
}

impl Rank {
    fn outranks(self, other: Self) -> bool {
        self.priority > other.priority || self.priority == other.priority && self.guid < other.guid
    }
}

/// A request for SMInfo, without an M_Key: software answers it.
pub(crate) fn question(transaction: u32, route: Option<&DirectedRoute>, to: LidAddress) -> Datagram {
    let mut mad = match route {
        Some(route) => Mad::directed(Method::GET, Attribute::SM_INFO, 0, route),
        None => Mad::new(ib_wire::ManagementClass::SUBNET_LID, Method::GET, Attribute::SM_INFO, 0),
    };
    mad.set_transaction(TransactionId(transaction.into()));
    Datagram::subnet_management(LidAddress::Permissive, to, mad)
}

/// The SMInfo of a declared manager. `None` if another port answered, or one with another SM_Key.
pub(crate) fn declared_answer(mad: &Mad, guid: Guid, sm_key: Option<SmKey>) -> Option<SmInfo> {
    let data: &[u8; SMP_DATA_LEN] = mad.smp_data();
    let info = SmInfo::decode(data).ok().filter(|_| mad.status() == Status::OK)?;
    (info.guid == Some(guid) && info.sm_key == sm_key).then_some(info)
}
