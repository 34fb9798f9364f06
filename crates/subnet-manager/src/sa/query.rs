//! A request and who asks, and the records that are found for it.

use std::ops::ControlFlow;

use ib_wire::rmpp::RECEIVE_MAX;
use ib_wire::{LidAddress, Mad, Method, Status};

use super::directory::{Directory, EndPort};

/// Records looked at for one request. The largest question about a fabric of 11,664 hosts, all its 71,604 ports, is
/// answered; all pairs of more than 362 ports are not, and have to be asked for port by port.
pub(super) const EXAMINED_MAX: usize = 1 << 17;

/// A request, and who asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query<'a> {
    pub directory: &'a Directory,
    /// The port that asks.
    pub requester: &'a EndPort,
    /// The subnet manager's own port asks, or one that may see as much: it sees everything.
    pub is_manager: bool,
    pub request: &'a Mad,
}

impl<'a> Query<'a> {
    /// Whether the asker may know of a port: they could talk, or it is itself.
    #[inline]
    pub fn sees(&self, port: &EndPort) -> bool {
        self.is_manager
            || port.guid == self.requester.guid
            || self.directory.shared(self.requester, port).is_some()
    }

    /// Whether a table is asked for, not a single record.
    pub fn wants_table(&self) -> bool {
        self.request.method() == Method::GET_TABLE
    }

    /// The end ports that a LID component leaves: all if it was `not_asked`.
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

/// The records found so far. It says when to stop.
#[derive(Debug, Default)]
pub(super) struct Answer {
    data: Vec<u8>,
    record_len: usize,
    records: usize,
    /// Records after which nothing more can change the answer.
    enough: usize,
    examined: usize,
    /// What the asker may have looked at now.
    budget: usize,
    excess: Option<Status>,
}

impl Answer {
    /// Forgets the last answer. `enough` records end the search; `budget` is what the asker may still have looked at.
    pub fn start(&mut self, enough: usize, budget: usize) {
        self.data.clear();
        (self.record_len, self.records, self.examined, self.excess) = (0, 0, 0, None);
        (self.enough, self.budget) = (enough, budget);
    }

    /// Counts something looked at; stops the search when it was too much.
    #[inline]
    pub fn examine(&mut self) -> ControlFlow<()> {
        self.examined += 1;
        if self.examined > self.budget.min(EXAMINED_MAX) {
            let too_large = self.examined > EXAMINED_MAX;
            self.excess = Some(if too_large { Status::SA_NO_RESOURCES } else { Status::BUSY });
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Adds a record; stops the search when it is enough.
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

    /// How much was looked at.
    pub fn examined(&self) -> usize {
        self.examined
    }

    /// How many records there are.
    pub fn records(&self) -> usize {
        self.records
    }

    /// The distance between records; 0 if there are none.
    pub fn record_len(&self) -> usize {
        self.record_len
    }

    /// Why there is no answer, if the search was given up.
    pub fn excess(&self) -> Option<Status> {
        self.excess
    }

    /// The bytes of the records.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Takes the bytes of the records out.
    pub fn take_data(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.data)
    }
}
