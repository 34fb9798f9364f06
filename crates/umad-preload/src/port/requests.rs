//! Requests that wait for their response.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ib_wire::Datagram;

use super::agents::AgentId;
use crate::abi::UmadHeader;

/// Most requests that wait at the same time. opensm keeps at most thousands under way, so more is a defect of the program.
pub(super) const REQUESTS_MAX: usize = 65_536;

/// What identifies a request in its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestKey {
    pub(super) agent: AgentId,
    /// Low 32 bits of the transaction.
    pub(super) transaction: u32,
    pub(super) class: u8,
}

impl RequestKey {
    pub(super) fn new(agent: AgentId, mad: &ib_wire::Mad) -> Self {
        Self { agent, transaction: mad.transaction().0 as u32, class: mad.class().0 }
    }
}

/// A request that waits for its response.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// As the program wrote it.
    pub(super) header: UmadHeader,
    /// As it was sent; for a request of several segments its headers.
    pub(super) datagram: Datagram,
    /// Whether `datagram` is the whole request, so that it can be sent again.
    pub(super) is_whole: bool,
    /// Number of times that it may still be sent again.
    pub(super) retries_left: u32,
    /// `None` while its segments are being sent.
    deadline: Option<Duration>,
}

impl Request {
    pub(super) fn new(header: UmadHeader, datagram: Datagram, is_whole: bool) -> Self {
        let retries_left = if is_whole { header.retries } else { 0 };
        Self { header, datagram, is_whole, retries_left, deadline: None }
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.header.timeout_ms.into())
    }
}

/// How an attempt without response ended.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// Send the request again.
    Retry(Box<Datagram>),
    /// It was the last attempt.
    GiveUp(Box<Request>),
}

/// All requests that wait, with their deadlines.
#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: BTreeMap<RequestKey, Request>,
    deadlines: BTreeSet<(Duration, RequestKey)>,
}

impl Requests {
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= REQUESTS_MAX
    }

    pub(super) fn contains(&self, key: RequestKey) -> bool {
        self.waiting.contains_key(&key)
    }

    /// Adds a request. Its time starts with [`Self::restart`].
    pub(super) fn insert(&mut self, key: RequestKey, request: Request) {
        self.remove(key);
        self.waiting.insert(key, request);
    }

    /// Starts the timeout of a request anew.
    pub(super) fn restart(&mut self, now: Duration, key: RequestKey) {
        let Some(request) = self.waiting.get_mut(&key) else { return };
        let deadline = now + request.timeout();
        if let Some(former) = request.deadline.replace(deadline) {
            self.deadlines.remove(&(former, key));
        }
        self.deadlines.insert((deadline, key));
    }

    pub(super) fn remove(&mut self, key: RequestKey) -> Option<Request> {
        let request = self.waiting.remove(&key)?;
        if let Some(deadline) = request.deadline {
            self.deadlines.remove(&(deadline, key));
        }
        Some(request)
    }

    /// Removes all requests of an agent.
    pub(super) fn remove_agent(&mut self, agent: AgentId) {
        let keys: Vec<RequestKey> = self.of_agent(agent).collect();
        for key in keys {
            self.remove(key);
        }
    }

    /// The requests with this agent and the low 32 bits of their transaction, one per class.
    pub(super) fn with_transaction(&self, agent: AgentId, transaction: u32) -> Vec<RequestKey> {
        let bound = |class| RequestKey { agent, transaction, class };
        self.waiting.range(bound(0)..=bound(u8::MAX)).map(|(key, _)| *key).collect()
    }

    /// A request whose deadline is over.
    pub(super) fn expired(&self, now: Duration) -> Option<RequestKey> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, key)| *key)
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Ends an attempt of a request: either it is to be sent again and waits once more, or it is removed.
    pub(super) fn unanswered(&mut self, now: Duration, key: RequestKey) -> Option<Unanswered> {
        let request = self.waiting.get_mut(&key)?;
        if request.is_whole && request.retries_left > 0 {
            request.retries_left -= 1;
            let datagram = Box::new(request.datagram.clone());
            self.restart(now, key);
            return Some(Unanswered::Retry(datagram));
        }
        self.remove(key).map(|request| Unanswered::GiveUp(Box::new(request)))
    }

    fn of_agent(&self, agent: AgentId) -> impl Iterator<Item = RequestKey> {
        let first = RequestKey { agent, transaction: 0, class: 0 };
        let last = RequestKey { agent, transaction: u32::MAX, class: u8::MAX };
        self.waiting.range(first..=last).map(|(key, _)| *key)
    }
}
