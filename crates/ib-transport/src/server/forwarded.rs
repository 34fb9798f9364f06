//! Requests that were handed to a client and wait for its answer.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::ibsim::DataMessage;

/// Forwarded requests that may wait for an answer at once. A subnet manager is asked by every node of a fabric when
/// it starts; beyond, a requester is told at once that its request is lost, and asks again.
pub const FORWARDED_MAX: usize = 4096;

/// How long a forwarded request may stay without an answer. Stock clients have no timer of their own under
/// libumad2sim: they wait for the answer or for word that there will be none.
pub const FORWARD_TIMEOUT: Duration = Duration::from_secs(3);

/// The table of forwarded requests, by transaction.
#[derive(Debug, Default)]
pub(super) struct Forwarded {
    waiting: HashMap<u64, Waiting>,
    /// Deadlines in order, with what they are for; answered ones stay until they come to the front.
    deadlines: VecDeque<(Instant, u64)>,
}

#[derive(Debug)]
struct Waiting {
    deadline: Instant,
    request: DataMessage,
}

impl Forwarded {
    /// Remembers a request; false if the table is full. The same transaction again starts anew.
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

    /// Notes that an answer passed.
    #[inline]
    pub(super) fn answered(&mut self, transaction: u64) {
        if !self.waiting.is_empty() {
            self.waiting.remove(&transaction);
        }
    }

    /// Takes one request whose time is over.
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

    /// When the next request may expire.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.waiting.is_empty() { None } else { self.deadlines.front().map(|(deadline, _)| *deadline) }
    }

    /// Keeps the queue of deadlines no longer than twice the table.
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
    fn only_unanswered_requests_expire_and_only_in_their_time() {
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
    fn a_request_sent_again_waits_from_then_on() {
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        let mut table = Forwarded::default();
        table.remember(start, request(1));
        table.remember(later, request(1));
        assert_eq!(table.expired(start + FORWARD_TIMEOUT), None);
        assert_eq!(table.expired(later + FORWARD_TIMEOUT), Some(request(1)));
    }

    #[test]
    fn the_table_is_bounded_and_so_is_its_queue() {
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
        assert!(table.remember(start, request(0)), "a known one may start anew");
    }
}
