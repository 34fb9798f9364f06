//! The view's own subnet manager: master while the tenant runs none, standby while one does.
//!
//! It is attached to port 0 of the first switch and has priority 0. When an adapter of the tenant announces a subnet
//! manager (IsSM), the default SM answers as standby for [`MASTER_TIMEOUT`], so that the newcomer finds no master and
//! becomes one itself. Meanwhile it polls all announced managers with SubnGet(SMInfo): a manager in standby is handed
//! the subnet with SubnSet(SMInfo) HANDOVER, and to one that is master it yields. When the tenant's master has not
//! answered for [`MASTER_TIMEOUT`], or no manager is announced any more, the default SM is master again.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ib_wire::{
    Attribute, Datagram, DirectedRoute, Guid, LidAddress, Mad, ManagementClass, Method, SmInfo, SmKey,
    SmState, Status, TransactionId,
};

use crate::view::AdapterId;

/// Time between two rounds of polling while no other manager is master. It starts at the minimum when a manager
/// appears and doubles up to the maximum: one that is ready need not wait, and one that never answers costs little.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(10);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(100);
/// Time between two rounds of polling while a manager of the tenant is master.
const MASTER_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long a master may be silent, and how long the default SM answers as standby for a new manager. Busy managers
/// answer within a second.
const MASTER_TIMEOUT: Duration = Duration::from_secs(5);
/// Managers that are polled: those with the lowest adapter ids. Tenants run no more than a few.
const MANAGERS_MAX: usize = 8;
/// Datagrams that wait to be sent. Callers send after each datagram they hand in.
const OUTGOING_MAX: usize = 64;
/// Upper half of the default SM's transaction ids, which no client of a server gets.
const TRANSACTIONS: u64 = 0xffff_0000_0000_0000;
/// Modifier HANDOVER of SubnSet(SMInfo): the receiver becomes master.
const HANDOVER: u32 = 1;

/// SM_Key 1, the default of stock managers; opensm ignores managers without it.
const SM_KEY: u64 = 1;

/// The master subnet manager of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Master {
    /// The default SM, in force while the tenant runs no manager.
    Own,
    /// A manager of the tenant, and when it last answered as master.
    Tenant(AdapterId, Duration),
}

/// What a call changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MasterChange {
    Unchanged,
    /// A manager of the tenant became master.
    Yielded,
    /// The default SM is master again: the caller has to install the default.
    Returned,
}

/// A subnet manager that the tenant announced, and a directed route to it.
#[derive(Clone, Debug)]
pub(crate) struct TenantManager {
    pub adapter: AdapterId,
    pub guid: Guid,
    pub route: DirectedRoute,
}

#[derive(Debug)]
pub(crate) struct DefaultSm {
    master: Master,
    /// Port GUID of the port that it is attached to.
    guid: Guid,
    activity: u32,
    managers: Vec<TenantManager>,
    /// Requests of this round without a response, by the lower half of the transaction id, which managers echo
    /// unchanged.
    outstanding: BTreeMap<u32, (AdapterId, Request)>,
    /// Managers that answered as standby in this round, with their priority.
    standby: BTreeMap<AdapterId, u8>,
    is_any_discovering: bool,
    /// Until then it answers as standby, for managers that appeared.
    standby_until: Duration,
    requests_sent: u32,
    /// Until the next round while no other manager is master.
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

    /// Moves it to another port.
    pub fn set_port_guid(&mut self, guid: Guid) {
        self.guid = guid;
    }

    /// Makes the default SM master even if another manager is, and polls the tenant's managers again.
    pub fn reclaim(&mut self, now: Duration) {
        self.master = Master::Own;
        self.outstanding.clear();
        self.standby.clear();
        self.is_any_discovering = false;
        self.poll_interval = POLL_INTERVAL_MIN;
        self.next_round = self.next_round.map(|_| now + POLL_INTERVAL_MIN);
    }

    /// Sets the managers that the tenant announces.
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

    /// Begins the next round when it is due: hands over to the best standby manager, or polls all.
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

    /// Hands the subnet to the best standby manager, if there is one and no manager is still discovering, which might
    /// be better.
    fn hand_over(&mut self, now: Duration) -> bool {
        let best = self.best().filter(|_| self.master == Master::Own && !self.is_any_discovering);
        let Some(best) = best else { return false };
        self.begin_round(now);
        self.send_request(&best, Request::Handover);
        true
    }

    /// The standby manager with the highest priority, then the lowest GUID.
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
            // The receiver accepts a handover only from a master.
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

    /// Handles a subnet management datagram that reached the default SM's port; `own` is the address of that port.
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
                // Tenants cannot set the default SM's state: it follows from the other managers.
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
