//! The agents of a port, and which of them receives a datagram.

use std::collections::BTreeMap;

use ib_wire::{Mad, ManagementClass, Method, TransactionId};

use super::FileId;
use crate::abi::{Registration, has_vendor_id};
use crate::errno::Errno;

/// Bandwidth management, whose responses are marked in the attribute modifier.
const BANDWIDTH_MANAGEMENT: ManagementClass = ManagementClass(0x05);

/// Bytes of a datagram of a vendor class that contain the id of the vendor.
const VENDOR_ID: std::ops::Range<usize> = 37..40;

/// The number of an agent at its port, in bits 47 to 32 of the transactions of its requests. The kernel uses bits 63 to 32;
/// here the server owns bits 63 to 48.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AgentId(u16);

impl AgentId {
    /// The transaction of a request whose low 32 bits the program chose.
    pub(super) fn stamp(self, transaction: TransactionId) -> TransactionId {
        TransactionId(u64::from(self.0) << 32 | transaction.0 & 0xffff_ffff)
    }

    /// The agent in the transaction of a response.
    pub(super) fn of(transaction: TransactionId) -> Self {
        Self((transaction.0 >> 32) as u16)
    }
}

/// A registered agent.
#[derive(Clone, Debug)]
pub(super) struct Agent {
    pub(super) file: FileId,
    /// The number that the program knows, unique in its file.
    pub(super) slot: u32,
    pub(super) registration: Registration,
}

/// The agents of all files.
#[derive(Debug, Default)]
pub(super) struct Agents {
    by_id: BTreeMap<AgentId, Agent>,
    /// The number given last. Numbers are reused late, so that a late response finds no new agent.
    last: u16,
}

impl Agents {
    /// No agents; the first one gets the number after `last`.
    pub(super) fn after(last: u16) -> Self {
        Self { by_id: BTreeMap::new(), last }
    }

    /// Adds an agent.
    ///
    /// # Errors
    ///
    /// Another agent receives one of the methods, or there are no more numbers.
    pub(super) fn register(&mut self, agent: Agent) -> Result<AgentId, Errno> {
        if self.by_id.values().any(|other| overlap(&other.registration, &agent.registration)) {
            return Err(Errno::INVALID);
        }
        if self.by_id.len() >= usize::from(u16::MAX) {
            return Err(Errno::NO_MEMORY);
        }
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            let id = AgentId(self.last);
            if let std::collections::btree_map::Entry::Vacant(entry) = self.by_id.entry(id) {
                entry.insert(agent);
                return Ok(id);
            }
        }
    }

    pub(super) fn remove(&mut self, id: AgentId) {
        self.by_id.remove(&id);
    }

    pub(super) fn get(&self, id: AgentId) -> Option<&Agent> {
        self.by_id.get(&id)
    }

    /// The agent that receives a datagram: a response by its transaction, a request by class, version and method.
    pub(super) fn receiver_of(&self, mad: &Mad) -> Option<(AgentId, &Agent)> {
        if is_response(mad) {
            let id = AgentId::of(mad.transaction());
            return self.by_id.get(&id).map(|agent| (id, agent));
        }
        let takes = |agent: &&Agent| {
            let Registration { class, class_version, methods, oui, .. } = &agent.registration;
            *class == Some(mad.class())
                && *class_version == mad.0[2]
                && methods >> (mad.method().0 & 0x7f) & 1 == 1
                && (!has_vendor_id(mad.class()) || mad.0[VENDOR_ID] == *oui)
        };
        self.by_id.iter().find(|(_, agent)| takes(agent)).map(|(id, agent)| (*id, agent))
    }
}

/// Whether two agents would receive the same requests.
fn overlap(a: &Registration, b: &Registration) -> bool {
    let same_class = a.class.is_some() && a.class == b.class && a.class_version == b.class_version;
    let same_vendor = !a.class.is_some_and(has_vendor_id) || a.oui == b.oui;
    same_class && same_vendor && a.methods & b.methods != 0
}

/// Whether the kernel treats a datagram as a response, which it passes on by transaction.
pub(super) fn is_response(mad: &Mad) -> bool {
    mad.method().is_response()
        || mad.method() == Method::TRAP_REPRESS
        || mad.class() == BANDWIDTH_MANAGEMENT && mad.modifier() & 1 == 1
}
