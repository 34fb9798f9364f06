//! A subnet manager that waits: it asks the declared managers whether one of them is the master.
//!
//! It sends nothing but requests for SMInfo, to the LIDs that the managers had when the last master told it, and answers those of
//! others. So it needs neither topology nor M_Keys. When no declared manager has said for a while that it is the master, the caller
//! ends the wait and starts a [`Manager`](crate::Manager) as a candidate, which discovers the fabric and looks again: see
//! the rules of the [`election`](crate::ElectionTiming).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ib_wire::{
    Attribute, Datagram, Guid, Lid, LidAddress, Mad, ManagementClass, Method, SmInfo, SmState, Status,
};

use crate::election::{ElectionTiming, TRANSACTIONS, declared_answer, question};
use crate::manager_settings::ManagerSettings;

/// Limit on queued answers.
const ANSWERS_MAX: usize = 64;
/// Questions that may wait for an answer. Older ones are forgotten.
const IN_FLIGHT_MAX: usize = 64;
/// How much the patience grows after each candidacy that ended with a master.
const PATIENCE_FACTOR_MAX: u32 = 16;

/// A waiting subnet manager, as a state machine. After every `handle_` verb call `poll_transmit` until `None`, and
/// call `handle_timeout` no later than `poll_timeout`.
#[derive(Debug)]
pub struct Standby {
    settings: ManagerSettings,
    timing: ElectionTiming,
    /// The port GUID of this manager, if it is known.
    own: Option<Guid>,
    own_lid: Option<Lid>,
    /// The declared managers and their LIDs; `None` if nobody told it yet.
    peers: BTreeMap<Guid, Option<Lid>>,
    /// The master that answered last, and when.
    master: Option<(Guid, Duration)>,
    /// Since when it waits for an answer.
    since: Duration,
    /// Patience in units of [`ElectionTiming::patience`].
    patience: u32,
    /// Whether the master that sent what it remembers has stopped doing so.
    is_abandoned: bool,
    next_question: Duration,
    in_flight: VecDeque<(u32, Guid)>,
    transactions: u32,
    unsent: VecDeque<Datagram>,
    /// When it last answered *Standby*.
    last_answer: Option<Duration>,
    last_step: Duration,
    activity: u32,
}

impl Standby {
    /// A manager that begins to wait at `now`. `fruitless` is the number of candidacies in a row that ended with the same
    /// master: each doubles its patience.
    pub fn new(
        settings: ManagerSettings,
        timing: ElectionTiming,
        own: Option<Guid>,
        peers: impl IntoIterator<Item = Guid>,
        fruitless: u32,
        now: Duration,
    ) -> Self {
        Self {
            settings,
            timing,
            own,
            own_lid: None,
            peers: peers.into_iter().map(|peer| (peer, None)).collect(),
            master: None,
            since: now,
            patience: (1 << fruitless.min(16)).min(PATIENCE_FACTOR_MAX),
            is_abandoned: false,
            next_question: now,
            in_flight: VecDeque::new(),
            transactions: 0,
            unsent: VecDeque::new(),
            last_answer: None,
            last_step: now,
            activity: 0,
        }
    }

    /// The LIDs of ports, as the last plan of the master has them.
    pub fn set_lids(&mut self, lid: impl Fn(Guid) -> Option<Lid>) {
        for (peer, known) in &mut self.peers {
            *known = lid(*peer).or(*known);
        }
        self.own_lid = self.own.and_then(lid).or(self.own_lid);
    }

    /// Whether the master that sent what it remembers has stopped doing so. Then former candidacies do not lengthen the wait.
    pub fn set_abandoned(&mut self, is_abandoned: bool) {
        self.is_abandoned = is_abandoned;
    }

    /// The master that answers at present.
    pub fn master(&self) -> Option<Guid> {
        self.master.map(|(guid, _)| guid)
    }

    /// When a master last answered.
    pub fn heard_at(&self) -> Option<Duration> {
        self.master.map(|(_, at)| at)
    }

    /// Whether no master has answered for so long that this manager should become a candidate.
    pub fn is_over(&self, now: Duration) -> bool {
        now >= self.end()
    }

    /// The earliest time at which a manager that was waiting until now may send a Set.
    pub fn earliest_set(&self) -> Duration {
        self.last_answer.map_or(Duration::ZERO, |at| at + self.timing.lease)
    }

    fn end(&self) -> Duration {
        match self.master {
            Some((_, at)) => at + self.timing.patience,
            None if self.is_abandoned => self.since + self.timing.patience,
            None => self.since + self.timing.patience * self.patience,
        }
    }

    /// Handles a datagram that arrived at the port.
    pub fn handle_datagram(&mut self, now: Duration, datagram: &Datagram) {
        self.step(now);
        let mad = &datagram.mad;
        if !mad.class().is_subnet_management()
            || !mad.has_known_versions()
            || mad.attribute() != Attribute::SM_INFO
        {
            return;
        }
        if matches!(mad.method(), Method::GET | Method::SET) {
            self.answer(now, datagram);
        } else if mad.method() == Method::GET_RESP {
            self.handle_answer(now, mad);
        }
    }

    fn handle_answer(&mut self, now: Duration, mad: &Mad) {
        // The upper half of a transaction id belongs to the transport.
        let transaction = mad.transaction().0 as u32;
        let Some(index) = self.in_flight.iter().position(|(known, _)| *known == transaction) else { return };
        let Some((_, guid)) = self.in_flight.remove(index) else { return };
        let info = declared_answer(mad, guid, self.settings.sm_key);
        if info.is_some_and(|info| info.state == SmState::Master) {
            self.master = Some((guid, now));
            self.patience = 1;
        }
    }

    /// Answers *Standby*, which gives the other manager a lease. A Set is rejected: only the rules of the election count.
    fn answer(&mut self, now: Duration, request: &Datagram) {
        if self.unsent.len() >= ANSWERS_MAX {
            return;
        }
        let info = SmInfo {
            guid: self.own,
            sm_key: self.settings.sm_key,
            activity: self.activity,
            priority: self.settings.priority.min(15),
            state: SmState::Standby,
        };
        self.unsent.push_back(sm_info_answer(request, &info));
        self.last_answer = Some(now);
    }

    /// Handles what is due at `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.step(now);
        if now < self.next_question {
            return;
        }
        self.next_question = now + self.timing.interval;
        self.activity = self.activity.wrapping_add(1);
        let known: Vec<(Guid, Lid)> =
            self.peers.iter().filter_map(|(peer, lid)| Some((*peer, (*lid)?))).collect();
        for (peer, lid) in known {
            self.transactions = self.transactions.wrapping_add(1) & (TRANSACTIONS - 1);
            let transaction = TRANSACTIONS | self.transactions;
            if self.in_flight.len() == IN_FLIGHT_MAX {
                self.in_flight.pop_front();
            }
            self.in_flight.push_back((transaction, peer));
            let own = self.own_lid.map_or(LidAddress::Permissive, LidAddress::Unicast);
            let question = question(transaction, None, LidAddress::Unicast(lid));
            self.unsent.push_back(Datagram { slid: own, ..question });
        }
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Datagram> {
        self.unsent.pop_front()
    }

    /// When [`Standby::handle_timeout`] must be called at the latest.
    pub fn poll_timeout(&self) -> Duration {
        self.next_question.min(self.end())
    }

    /// A manager that was stopped itself heard nobody: it waits anew.
    fn step(&mut self, now: Duration) {
        if now.saturating_sub(self.last_step) > self.timing.pause_max {
            self.since = now;
            self.master = self.master.map(|(guid, _)| (guid, now));
        }
        self.last_step = now;
    }
}

/// The response to a request for SMInfo. A Set is rejected.
pub(crate) fn sm_info_answer(request: &Datagram, info: &SmInfo) -> Datagram {
    let mut mad: Mad = request.mad.clone();
    let is_read = mad.method() == Method::GET;
    mad.set_method(Method::GET_RESP);
    mad.set_m_key(None);
    mad.set_status(if is_read { Status::OK } else { Status::INVALID_FIELD });
    if mad.class() == ManagementClass::SUBNET_DIRECTED {
        mad.set_returning();
    }
    *mad.smp_data_mut() = info.encode();
    Datagram { slid: request.dlid, dlid: request.slid, mad, ..request.clone() }
}
