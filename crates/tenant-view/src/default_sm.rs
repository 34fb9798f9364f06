//! The view's own subnet manager: master while the tenant runs none, in standby while one does.
//!
//! It sits on port 0 of the first switch and has the lowest priority there is. When somebody of the tenant's begins to say that
//! it is a subnet manager, the default_sm mapping by, so that a manager that looks around finds no master and becomes one without
//! being handed anything. Whoever says so is outstanding who it is; one that mapping by too is handed the subnet, one that is master is
//! given way to. When nobody has been master for a while, the subnet is the default_sm's again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ib_wire::{
    Attribute, Datagram, DirectedRoute, Guid, LidAddress, Mad, ManagementClass, Method, SmInfo, SmKey,
    SmState, Status, TransactionId,
};

use crate::view::AdapterId;

/// Between two rounds in which managers are outstanding who they are, after one has come and at most: it doubles, so that one that is
/// ready need not wait, and one that never says anything costs little.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(10);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(100);
/// The same while it waits.
const MASTER_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long the subnet stays with a manager that says nothing, and how long one that has come is stood by for. Busy managers answer
/// within a second.
const MASTER_TIMEOUT: Duration = Duration::from_secs(5);
/// Managers that are outstanding: those with the lowest numbers. Nobody runs more than a few.
const MANAGERS_MAX: usize = 8;
/// Answers that wait to be sent; callers send after each datagram.
const OUTGOING_MAX: usize = 64;
/// What transactions of the default_sm begin with: no client of a server has this number.
const TRANSACTIONS: u64 = 0xffff_0000_0000_0000;
/// SubnSet(SMInfo): the receiver is to be master.
const HANDOVER: u32 = 1;

/// What stock managers trust each other by where nobody chose another; opensm does not listen to one without.
const SM_KEY: u64 = 1;

/// Who manages the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Master {
    /// The default_sm.
    Own,
    /// A manager of the tenant's, which was last heard of as master then.
    Tenant(AdapterId, Duration),
}

/// What follows from something that was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MasterChange {
    /// Nothing.
    Unchanged,
    /// The default_sm gave way.
    Yielded,
    /// The subnet is the default_sm's again.
    Returned,
}

/// A manager of the tenant's, and how it is reached.
#[derive(Clone, Debug)]
pub(crate) struct TenantManager {
    pub adapter: AdapterId,
    pub guid: Guid,
    pub route: DirectedRoute,
}

#[derive(Debug)]
pub(crate) struct DefaultSm {
    master: Master,
    /// GUID of the port it sits on.
    guid: Guid,
    activity: u32,
    managers: Vec<TenantManager>,
    /// What was outstanding in this round, by the half of the transaction that comes back whatever is on the way.
    outstanding: BTreeMap<u32, (AdapterId, Request)>,
    /// Who mapping by, with its priority, and whether somebody still looks around, as far as this round has told.
    standby: BTreeMap<AdapterId, u8>,
    is_any_discovering: bool,
    /// Until then it mapping by for managers that have come.
    standby_until: Duration,
    requests_sent: u32,
    /// Until the next round while nobody else is master.
    poll_interval: Duration,
    next_round: Option<Duration>,
    outgoing: VecDeque<Datagram>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    GetSmInfo,
    Handover,
}

impl DefaultSm {
    pub fn new(guid: Guid) -> Self {
        Self {
            master: Master::Own,
            guid,
            activity: 0,
            managers: Vec::new(),
            outstanding: BTreeMap::new(),
            standby: BTreeMap::new(),
            is_any_discovering: false,
            standby_until: Duration::ZERO,
            requests_sent: 0,
            poll_interval: POLL_INTERVAL_MIN,
            next_round: None,
            outgoing: VecDeque::new(),
        }
    }

    pub fn master(&self) -> Master {
        self.master
    }

    /// It sits on another port from now on.
    pub fn set_port_guid(&mut self, guid: Guid) {
        self.guid = guid;
    }

    /// The subnet is the default_sm's, whoever else is there; they are outstanding again.
    pub fn reclaim(&mut self, now: Duration) {
        self.master = Master::Own;
        self.outstanding.clear();
        self.standby.clear();
        self.is_any_discovering = false;
        self.poll_interval = POLL_INTERVAL_MIN;
        self.next_round = self.next_round.map(|_| now + POLL_INTERVAL_MIN);
    }

    /// The tenant's managers are these from now on.
    pub fn set_managers(&mut self, now: Duration, mut managers: Vec<TenantManager>) -> MasterChange {
        managers.truncate(MANAGERS_MAX);
        let is_known = |new: &TenantManager| self.managers.iter().any(|known| known.adapter == new.adapter);
        if !managers.iter().all(is_known) {
            self.standby_until = now + MASTER_TIMEOUT;
        }
        self.managers = managers;
        let known = |adapter: &AdapterId| self.managers.iter().any(|manager| manager.adapter == *adapter);
        self.standby.retain(|adapter, _| known(adapter));
        if self.managers.is_empty() {
            self.next_round = None;
            self.outstanding.clear();
            return match std::mem::replace(&mut self.master, Master::Own) {
                Master::Own => MasterChange::Unchanged,
                Master::Tenant(..) => MasterChange::Returned,
            };
        }
        self.poll_interval = POLL_INTERVAL_MIN;
        let interval = self.interval();
        self.next_round = Some(self.next_round.unwrap_or(now + interval).min(now + interval));
        MasterChange::Unchanged
    }

    fn interval(&self) -> Duration {
        if self.master == Master::Own { self.poll_interval } else { MASTER_POLL_INTERVAL }
    }

    pub fn poll_timeout(&self) -> Option<Duration> {
        self.next_round
    }

    /// Begins the next round when it is due: hands over to the best of those that stand by, or asks everybody again.
    pub fn handle_timeout(&mut self, now: Duration) -> MasterChange {
        if self.next_round.is_none_or(|due| now < due) {
            return MasterChange::Unchanged;
        }
        if let Master::Tenant(_, heard) = self.master
            && now.saturating_sub(heard) >= MASTER_TIMEOUT
        {
            self.master = Master::Own;
            self.begin_round(now);
            return MasterChange::Returned;
        }
        if !self.hand_over(now) {
            self.begin_round(now);
            for manager in self.managers.clone() {
                self.send_request(&manager, Request::GetSmInfo);
            }
        }
        MasterChange::Unchanged
    }

    fn begin_round(&mut self, now: Duration) {
        self.outstanding.clear();
        self.standby.clear();
        self.is_any_discovering = false;
        self.next_round = Some(now + self.interval());
        self.poll_interval = (2 * self.poll_interval).min(POLL_INTERVAL_MAX);
    }

    /// Hands the subnet to the best of those that stand by, if there is one; whoever still looks around may be better.
    fn hand_over(&mut self, now: Duration) -> bool {
        let best = self.best().filter(|_| self.master == Master::Own && !self.is_any_discovering);
        let Some(best) = best else { return false };
        self.begin_round(now);
        self.send_request(&best, Request::Handover);
        true
    }

    /// Of those that stand by the one with the highest priority, then the lowest GUID.
    fn best(&self) -> Option<TenantManager> {
        let standing = self.managers.iter().filter_map(|manager| {
            let priority = *self.standby.get(&manager.adapter)?;
            Some((u8::MAX - priority, manager.guid, manager))
        });
        standing.min_by_key(|(rank, guid, _)| (*rank, *guid)).map(|(_, _, manager)| manager.clone())
    }

    fn send_request(&mut self, manager: &TenantManager, request: Request) {
        self.requests_sent = self.requests_sent.wrapping_add(1);
        let (method, modifier) = match request {
            Request::GetSmInfo => (Method::GET, 0),
            Request::Handover => (Method::SET, HANDOVER),
        };
        let mut mad = Mad::directed(method, Attribute::SM_INFO, modifier, &manager.route);
        mad.set_transaction(TransactionId(TRANSACTIONS | u64::from(self.requests_sent)));
        if request == Request::Handover {
            // The receiver learns from it who hands over: only a master can.
            *mad.smp_data_mut() = self.info(SmState::Master).encode();
        }
        self.outstanding.insert(self.requests_sent, (manager.adapter, request));
        let ends = LidAddress::Permissive;
        self.outgoing.push_back(Datagram::subnet_management(ends, ends, mad));
    }

    fn state(&self, now: Duration) -> SmState {
        let is_master = self.master == Master::Own && (now >= self.standby_until || self.managers.is_empty());
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

    /// Takes a subnet management datagram that reached the default_sm's port, whose address this is.
    pub fn handle_datagram(&mut self, now: Duration, datagram: &Datagram, own: LidAddress) -> MasterChange {
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
                // Nobody tells the default_sm what to be: it follows from who else is there.
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
        MasterChange::Unchanged
    }

    fn handle_answer(&mut self, now: Duration, mad: &Mad) -> MasterChange {
        let Some((adapter, request)) = self.outstanding.remove(&(mad.transaction().0 as u32)) else {
            return MasterChange::Unchanged;
        };
        let Ok(info) = SmInfo::decode(mad.smp_data()) else { return MasterChange::Unchanged };
        if mad.status() != Status::OK {
            return MasterChange::Unchanged;
        }
        let is_master = info.state == SmState::Master || request == Request::Handover;
        match self.master {
            _ if is_master => {
                let before = std::mem::replace(&mut self.master, Master::Tenant(adapter, now));
                if before == Master::Own {
                    self.next_round = Some(now + MASTER_POLL_INTERVAL);
                    return MasterChange::Yielded;
                }
            }
            Master::Own if info.state == SmState::Standby => {
                self.standby.insert(adapter, info.priority);
            }
            Master::Own if info.state == SmState::Discovering => self.is_any_discovering = true,
            _ => {}
        }
        if self.outstanding.is_empty() {
            self.hand_over(now);
        }
        MasterChange::Unchanged
    }

    fn send(&mut self, datagram: Datagram) {
        if self.outgoing.len() < OUTGOING_MAX {
            self.outgoing.push_back(datagram);
        }
    }

    pub fn poll_transmit(&mut self) -> Option<Datagram> {
        self.outgoing.pop_front()
    }
}
