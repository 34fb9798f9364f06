//! The view's own subnet manager: master while the tenant runs none, in waiting while one does.
//!
//! It sits on port 0 of the first switch and has the lowest priority there is. When somebody of the tenant's begins to say that
//! it is a subnet manager, the steward stands by, so that a manager that looks around finds no master and becomes one without
//! being handed anything. Whoever says so is asked who it is; one that stands by too is handed the subnet, one that is master is
//! given way to. When nobody has been master for a while, the subnet is the steward's again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ib_wire::{
    Attribute, Datagram, DirectedRoute, Guid, LidAddress, Mad, ManagementClass, Method, SmInfo, SmKey,
    SmState, Status, TransactionId,
};

use crate::view::AdapterId;

/// Between two rounds in which managers are asked who they are, after one has come and at most: it doubles, so that one that is
/// ready need not wait, and one that never says anything costs little.
const ASK_FIRST: Duration = Duration::from_millis(10);
const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// The same while it waits.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How long the subnet stays with a manager that says nothing, and how long one that has come is stood by for. Busy managers answer
/// within a second.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Managers that are asked: those with the lowest numbers. Nobody runs more than a few.
const MANAGERS_MAX: usize = 8;
/// Answers that wait to be sent; callers send after each datagram.
const ANSWERS_MAX: usize = 64;
/// What transactions of the steward begin with: no client of a server has this number.
const TRANSACTIONS: u64 = 0xffff_0000_0000_0000;
/// SubnSet(SMInfo): the receiver is to be master.
const HANDOVER: u32 = 1;

/// What stock managers trust each other by where nobody chose another; opensm does not listen to one without.
const SM_KEY: u64 = 1;

/// Who manages the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The steward.
    Own,
    /// A manager of the tenant's, which was last heard of as master then.
    Tenant(AdapterId, Duration),
}

/// What follows from something that was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing.
    Stays,
    /// The steward gave way.
    Yielded,
    /// The subnet is the steward's again.
    Returned,
}

/// A manager of the tenant's, and how it is reached.
#[derive(Clone, Debug)]
pub(crate) struct Manager {
    pub adapter: AdapterId,
    pub guid: Guid,
    pub route: DirectedRoute,
}

#[derive(Debug)]
pub(crate) struct Steward {
    rule: Rule,
    /// GUID of the port it sits on.
    guid: Guid,
    activity: u32,
    managers: Vec<Manager>,
    /// What was asked in this round, by the half of the transaction that comes back whatever is on the way.
    asked: BTreeMap<u32, (AdapterId, Question)>,
    /// Who stands by, with its priority, and whether somebody still looks around, as far as this round has told.
    waiting: BTreeMap<AdapterId, u8>,
    is_any_looking: bool,
    /// Until then it stands by for managers that have come.
    courtesy: Duration,
    asks_given: u32,
    /// Until the next round while nobody else is master.
    pause: Duration,
    next_round: Option<Duration>,
    answers: VecDeque<Datagram>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    WhoAreYou,
    TakeOver,
}

impl Steward {
    pub fn new(guid: Guid) -> Self {
        Self {
            rule: Rule::Own,
            guid,
            activity: 0,
            managers: Vec::new(),
            asked: BTreeMap::new(),
            waiting: BTreeMap::new(),
            is_any_looking: false,
            courtesy: Duration::ZERO,
            asks_given: 0,
            pause: ASK_FIRST,
            next_round: None,
            answers: VecDeque::new(),
        }
    }

    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// It sits on another port from now on.
    pub fn move_to(&mut self, guid: Guid) {
        self.guid = guid;
    }

    /// The subnet is the steward's, whoever else is there; they are asked again.
    pub fn take_back(&mut self, now: Duration) {
        self.rule = Rule::Own;
        self.asked.clear();
        self.waiting.clear();
        self.is_any_looking = false;
        self.pause = ASK_FIRST;
        self.next_round = self.next_round.map(|_| now + ASK_FIRST);
    }

    /// The tenant's managers are these from now on.
    pub fn set_managers(&mut self, now: Duration, mut managers: Vec<Manager>) -> Turn {
        managers.truncate(MANAGERS_MAX);
        let is_known = |new: &Manager| self.managers.iter().any(|known| known.adapter == new.adapter);
        if !managers.iter().all(is_known) {
            self.courtesy = now + SILENCE_MAX;
        }
        self.managers = managers;
        let known = |adapter: &AdapterId| self.managers.iter().any(|manager| manager.adapter == *adapter);
        self.waiting.retain(|adapter, _| known(adapter));
        if self.managers.is_empty() {
            self.next_round = None;
            self.asked.clear();
            return match std::mem::replace(&mut self.rule, Rule::Own) {
                Rule::Own => Turn::Stays,
                Rule::Tenant(..) => Turn::Returned,
            };
        }
        self.pause = ASK_FIRST;
        let interval = self.interval();
        self.next_round = Some(self.next_round.unwrap_or(now + interval).min(now + interval));
        Turn::Stays
    }

    fn interval(&self) -> Duration {
        if self.rule == Rule::Own { self.pause } else { WATCH_INTERVAL }
    }

    pub fn poll_timeout(&self) -> Option<Duration> {
        self.next_round
    }

    /// Begins the next round when it is due: hands over to the best of those that stand by, or asks everybody again.
    pub fn handle_timeout(&mut self, now: Duration) -> Turn {
        if self.next_round.is_none_or(|due| now < due) {
            return Turn::Stays;
        }
        if let Rule::Tenant(_, heard) = self.rule
            && now.saturating_sub(heard) >= SILENCE_MAX
        {
            self.rule = Rule::Own;
            self.begin_round(now);
            return Turn::Returned;
        }
        if !self.hand_over(now) {
            self.begin_round(now);
            for manager in self.managers.clone() {
                self.ask(&manager, Question::WhoAreYou);
            }
        }
        Turn::Stays
    }

    fn begin_round(&mut self, now: Duration) {
        self.asked.clear();
        self.waiting.clear();
        self.is_any_looking = false;
        self.next_round = Some(now + self.interval());
        self.pause = (2 * self.pause).min(ASK_INTERVAL);
    }

    /// Hands the subnet to the best of those that stand by, if there is one; whoever still looks around may be better.
    fn hand_over(&mut self, now: Duration) -> bool {
        let best = self.best().filter(|_| self.rule == Rule::Own && !self.is_any_looking);
        let Some(best) = best else { return false };
        self.begin_round(now);
        self.ask(&best, Question::TakeOver);
        true
    }

    /// Of those that stand by the one with the highest priority, then the lowest GUID.
    fn best(&self) -> Option<Manager> {
        let standing = self.managers.iter().filter_map(|manager| {
            let priority = *self.waiting.get(&manager.adapter)?;
            Some((u8::MAX - priority, manager.guid, manager))
        });
        standing.min_by_key(|(rank, guid, _)| (*rank, *guid)).map(|(_, _, manager)| manager.clone())
    }

    fn ask(&mut self, manager: &Manager, question: Question) {
        self.asks_given = self.asks_given.wrapping_add(1);
        let (method, modifier) = match question {
            Question::WhoAreYou => (Method::GET, 0),
            Question::TakeOver => (Method::SET, HANDOVER),
        };
        let mut mad = Mad::directed(method, Attribute::SM_INFO, modifier, &manager.route);
        mad.set_transaction(TransactionId(TRANSACTIONS | u64::from(self.asks_given)));
        if question == Question::TakeOver {
            // The receiver learns from it who hands over: only a master can.
            *mad.smp_data_mut() = self.info(SmState::Master).encode();
        }
        self.asked.insert(self.asks_given, (manager.adapter, question));
        let ends = LidAddress::Permissive;
        self.answers.push_back(Datagram::subnet_management(ends, ends, mad));
    }

    fn state(&self, now: Duration) -> SmState {
        let is_master = self.rule == Rule::Own && (now >= self.courtesy || self.managers.is_empty());
        if is_master { SmState::Master } else { SmState::Standby }
    }

    fn info(&self, state: SmState) -> SmInfo {
        SmInfo {
            guid: Some(self.guid),
            sm_key: SmKey::from_wire(SM_KEY),
            activity: self.activity,
            priority: 0,
            state,
        }
    }

    /// Takes a subnet management datagram that reached the steward's port, whose address this is.
    pub fn handle_datagram(&mut self, now: Duration, datagram: &Datagram, own: LidAddress) -> Turn {
        let mad = &datagram.mad;
        match (mad.method(), mad.attribute()) {
            (Method::GET_RESP, Attribute::SM_INFO) => return self.handle_answer(now, mad),
            (Method::TRAP, Attribute::NOTICE) => {
                let mut mad = mad.clone();
                mad.set_method(Method::TRAP_REPRESS);
                mad.set_m_key(None);
                self.send(Datagram::subnet_management(own, datagram.slid, mad));
            }
            (method @ (Method::GET | Method::SET), Attribute::SM_INFO) => {
                self.activity = self.activity.wrapping_add(1);
                let mut answer = mad.clone();
                answer.set_method(Method::GET_RESP);
                answer.set_m_key(None);
                // Nobody tells the steward what to be: it follows from who else is there.
                let is_read = method == Method::GET;
                answer.set_status(if is_read { Status::OK } else { Status::INVALID_FIELD });
                if answer.class() == ManagementClass::SUBNET_DIRECTED {
                    answer.set_returning();
                }
                *answer.smp_data_mut() = self.info(self.state(now)).encode();
                self.send(Datagram {
                    slid: datagram.dlid,
                    dlid: datagram.slid,
                    mad: answer,
                    ..datagram.clone()
                });
            }
            _ => {}
        }
        Turn::Stays
    }

    fn handle_answer(&mut self, now: Duration, mad: &Mad) -> Turn {
        let Some((adapter, question)) = self.asked.remove(&(mad.transaction().0 as u32)) else {
            return Turn::Stays;
        };
        let Ok(info) = SmInfo::decode(mad.smp_data()) else { return Turn::Stays };
        if mad.status() != Status::OK {
            return Turn::Stays;
        }
        let is_master = info.state == SmState::Master || question == Question::TakeOver;
        match self.rule {
            _ if is_master => {
                let before = std::mem::replace(&mut self.rule, Rule::Tenant(adapter, now));
                if before == Rule::Own {
                    self.next_round = Some(now + WATCH_INTERVAL);
                    return Turn::Yielded;
                }
            }
            Rule::Own if info.state == SmState::Standby => {
                self.waiting.insert(adapter, info.priority);
            }
            Rule::Own if info.state == SmState::Discovering => self.is_any_looking = true,
            _ => {}
        }
        if self.asked.is_empty() {
            self.hand_over(now);
        }
        Turn::Stays
    }

    fn send(&mut self, datagram: Datagram) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back(datagram);
        }
    }

    pub fn poll_transmit(&mut self) -> Option<Datagram> {
        self.answers.pop_front()
    }
}
