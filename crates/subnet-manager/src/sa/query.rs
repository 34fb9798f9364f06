//! A query, its requester, and the records found for it.

use std::ops::ControlFlow;

use ib_wire::rmpp::RECEIVE_MAX;
use ib_wire::{LidAddress, Mad, Method, Status};

use super::directory::{Directory, EndPort};
use super::joins::Joins;
use super::subscriptions::Subscriptions;

/// Limit on records examined for one request. Enough for all 71,604 ports of 11,664 hosts, the largest table
/// of such a fabric; not for all pairs of more than 362 ports, which have to be queried port by port.
pub(super) const EXAMINED_MAX: usize = 1 << 17;
/// The same for the subnet manager's own port, whose software may read the tables of all switch ports: enough for the SLtoVL
/// mapping tables of 4,000 hosts.
pub(super) const MANAGER_EXAMINED_MAX: usize = 1 << 20;

/// A request and its requester.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query<'a> {
    pub directory: &'a Directory,
    pub joins: &'a Joins,
    pub subscriptions: &'a Subscriptions,
    pub requester: &'a EndPort,
    /// Whether the requester sees everything: the subnet manager's own port, or any port of an open
    /// directory.
    pub is_manager: bool,
    pub request: &'a Mad,
}

impl<'a> Query<'a> {
    /// Whether the requester may see a port: itself, or one that it can communicate with.
    #[inline]
    pub fn sees(&self, port: &EndPort) -> bool {
        self.is_manager
            || self.requester.speaks_for(port)
            || self.directory.shared(self.requester, port).is_some()
    }

    /// Whether the response has any number of records: to a GetTable or GetMulti.
    pub fn wants_table(&self) -> bool {
        matches!(self.request.method(), Method::GET_TABLE | Method::GET_MULTI)
    }

    /// The end ports that a LID component selects: all if it was `not_asked`.
    pub fn ports_at(&self, lid: Option<LidAddress>, not_asked: bool) -> &'a [EndPort] {
        match lid {
            _ if not_asked => self.directory.ports(),
            Some(LidAddress::Unicast(lid)) => {
                self.directory.port_by_lid(lid).map_or(&[], std::slice::from_ref)
            }
            _ => &[],
        }
    }
}

/// The records found so far, and when to stop searching.
#[derive(Debug, Default)]
pub(super) struct Answer {
    data: Vec<u8>,
    record_len: usize,
    records: usize,
    /// Number of records that ends the search.
    enough: usize,
    examined: usize,
    /// Number of records that may be examined for the requester.
    budget: usize,
    /// Number of records that may be examined for one request.
    limit: usize,
    excess: Option<Status>,
}

impl Answer {
    /// Clears the records. `enough` records end the search; `budget` records may be examined for the requester now, and `limit`
    /// for any request.
    pub fn start(&mut self, enough: usize, budget: usize, limit: usize) {
        self.data.clear();
        (self.record_len, self.records, self.examined, self.excess) = (0, 0, 0, None);
        (self.enough, self.budget, self.limit) = (enough, budget, limit);
    }

    /// Counts an examined record. Stops the search at the limit.
    #[inline]
    pub fn examine(&mut self) -> ControlFlow<()> {
        self.examined += 1;
        if self.examined > self.budget.min(self.limit) {
            let too_large = self.examined > self.limit;
            self.excess = Some(if too_large { Status::SA_NO_RESOURCES } else { Status::BUSY });
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Adds a record. Stops the search when there are enough.
    #[inline]
    pub fn add(&mut self, record: &[u8]) -> ControlFlow<()> {
        if self.data.len() + record.len() > RECEIVE_MAX {
            self.excess = Some(Status::SA_NO_RESOURCES);
            return ControlFlow::Break(());
        }
        self.data.extend_from_slice(record);
        self.record_len = record.len();
        self.records += 1;
        if self.records >= self.enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    pub fn examined(&self) -> usize {
        self.examined
    }

    pub fn records(&self) -> usize {
        self.records
    }

    /// Size of a record in bytes; 0 if there are none.
    pub fn record_len(&self) -> usize {
        self.record_len
    }

    /// The status if the search hit a limit.
    pub fn excess(&self) -> Option<Status> {
        self.excess
    }

    /// Whether the search ended because the requester may cause no more work now.
    pub fn is_over_budget(&self) -> bool {
        self.excess == Some(Status::BUSY)
    }

    pub fn data(&self) -> &[u8] {
        &self.data
    }

    pub fn take_data(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.data)
    }
}
