//! Requests that were forwarded to a client and wait for its response.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::ibsim::DataMessage;

/// Most forwarded requests that wait for a response. Every node of a fabric may query a subnet manager that starts; further
/// requests are reported as lost at once, and their senders repeat them.
pub const FORWARDED_MAX: usize = 4096;

/// Time after which a forwarded request without a response is reported as lost. Stock clients have no timers under
/// libumad2sim: they wait for the response or for the loss report.
pub const FORWARD_TIMEOUT: Duration = Duration::from_secs(3);

/// Forwarded requests by transaction.
#[derive(Debug, Default)]
pub(super) struct Forwarded {
    waiting: HashMap<u64, Waiting>,
    /// Deadlines in order, with their transactions; those of answered requests stay until they reach the front.
    deadlines: VecDeque<(Instant, u64)>,
}

#[derive(Debug)]
struct Waiting {
    deadline: Instant,
    request: DataMessage,
}

impl Forwarded {
    /// Adds a request; `false` if the table is full. A request with a known transaction replaces it and restarts the timeout.
    pub(super) fn remember(&mut self, now: Instant, request: DataMessage) -> bool {
        let transaction = request.mad.transaction().0;
        if self.waiting.len() >= FORWARDED_MAX && !self.waiting.contains_key(&transaction) {
            return false;
        }
        let deadline = now + FORWARD_TIMEOUT;
        self.waiting.insert(transaction, Waiting { deadline, request });
        self.forget_answered();
        self.deadlines.push_back((deadline, transaction));
        true
    }

    /// Removes a request because its response passed.
    #[inline]
    pub(super) fn answered(&mut self, transaction: u64) {
        if !self.waiting.is_empty() {
            self.waiting.remove(&transaction);
        }
    }

    /// Removes and returns one request whose timeout is over.
    pub(super) fn expired(&mut self, now: Instant) -> Option<DataMessage> {
        while let Some(&(deadline, transaction)) = self.deadlines.front() {
            if deadline > now {
                return None;
            }
            self.deadlines.pop_front();
            if self.is_waiting(deadline, transaction) {
                return self.waiting.remove(&transaction).map(|waiting| waiting.request);
            }
        }
        None
    }

    /// The earliest time at which a request may expire.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.waiting.is_empty() { None } else { self.deadlines.front().map(|(deadline, _)| *deadline) }
    }

    /// Limits the queue of deadlines to twice the size of the table.
    fn forget_answered(&mut self) {
        while self.deadlines.front().is_some_and(|&(deadline, id)| !self.is_waiting(deadline, id)) {
            self.deadlines.pop_front();
        }
        if self.deadlines.len() >= 2 * FORWARDED_MAX {
            let mut deadlines = std::mem::take(&mut self.deadlines);
            deadlines.retain(|&(deadline, id)| self.is_waiting(deadline, id));
            self.deadlines = deadlines;
        }
    }

    fn is_waiting(&self, deadline: Instant, transaction: u64) -> bool {
        self.waiting.get(&transaction).is_some_and(|waiting| waiting.deadline == deadline)
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::{Attribute, Mad, ManagementClass, Method, QueuePair, TransactionId};

    use super::*;
    use crate::ibsim::DataStatus;

    fn request(transaction: u64) -> DataMessage {
        let mut mad = Mad::new(ManagementClass::SUBNET_LID, Method::GET, Attribute::SM_INFO, 0);
        mad.set_transaction(TransactionId(transaction));
        let qp = QueuePair::SUBNET_MANAGEMENT;
        DataMessage { dlid: None, slid: None, dqp: qp, sqp: qp, status: DataStatus::Ok, mad }
    }

    #[test]
    fn only_unanswered_requests_expire_after_the_timeout() {
        let start = Instant::now();
        let mut table = Forwarded::default();
        assert!(table.remember(start, request(1)) && table.remember(start, request(2)));
        table.answered(1);
        assert_eq!(table.deadline(), Some(start + FORWARD_TIMEOUT));
        assert_eq!(table.expired(start), None);
        assert_eq!(table.expired(start + FORWARD_TIMEOUT), Some(request(2)));
        assert_eq!(table.expired(start + FORWARD_TIMEOUT), None);
        assert_eq!(table.deadline(), None);
    }

    #[test]
    fn a_repeated_request_restarts_its_timeout() {
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        let mut table = Forwarded::default();
        table.remember(start, request(1));
        table.remember(later, request(1));
        assert_eq!(table.expired(start + FORWARD_TIMEOUT), None);
        assert_eq!(table.expired(later + FORWARD_TIMEOUT), Some(request(1)));
    }

    #[test]
    fn the_table_and_its_queue_are_bounded() {
        let start = Instant::now();
        let mut table = Forwarded::default();
        table.remember(start, request(0));
        for transaction in 1..10 * FORWARDED_MAX as u64 {
            assert!(table.remember(start, request(transaction)));
            table.answered(transaction);
        }
        assert!(table.deadlines.len() <= 2 * FORWARDED_MAX, "{}", table.deadlines.len());
        for transaction in 1..FORWARDED_MAX as u64 {
            assert!(table.remember(start, request(transaction)));
        }
        assert!(!table.remember(start, request(u64::MAX)));
        assert!(table.remember(start, request(0)), "a known transaction may restart");
    }
}
