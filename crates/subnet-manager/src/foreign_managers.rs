//! Other subnet managers on the fabric: found by the IsSM bit of their ports, queried with SMInfo, never
//! obeyed.
//!
//! Software answers SMInfo, not the agent of the device. Root on a host could claim to be a subnet manager,
//! read the M_Key of its port from the request and control the port from then on. So the request never
//! carries a key. A device that drops it for that reason (A-MKEY-7) makes the manager behind it *silent*: it
//! is reported as such and queried with increasing intervals. Nothing waits for answers but the report of a survey: otherwise hosts that claim
//! to run managers, and say nothing, would delay every discovery and takeover.

use std::collections::btree_map::Entry;
use std::time::Duration;

use ib_wire::{Attribute, Guid, Mad, Method, PortNum, SMP_DATA_LEN, SmInfo, SmState};

use crate::event::SmEvent;
use crate::mad_window::RetryPolicy;
use crate::manager::Manager;
use crate::purpose::Purpose;

/// First interval between queries of a silent manager. Doubles with every query without answer.
const SILENT_PAUSE_MIN: Duration = Duration::from_secs(20);

/// Longest interval: a manager that starts to answer is noticed within ten minutes, at the cost of six
/// datagrams an hour.
const SILENT_PAUSE_MAX: Duration = Duration::from_secs(600);

/// Another subnet manager, by the outcome of the last query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForeignManager {
    /// Not queried or not answered yet.
    New,
    Known {
        state: SmState,
        priority: u8,
    },
    /// Does not answer; queried again at `next`.
    Silent {
        pause: Duration,
        next: Duration,
    },
}

impl Manager {
    /// Records whether a subnet manager runs behind a port, and queries a new one.
    pub(crate) fn record_manager(&mut self, node: Guid, port: PortNum, is_manager: bool) {
        let own = self.observed.own.is_some_and(|own| (own.node, own.number) == (node, port));
        let guid = self.observed.nodes.get(&node).and_then(|node| node.port_guids.get(&port)).copied();
        let is_declared = guid.is_some_and(|guid| self.election.is_declared(guid));
        if !is_manager || own || is_declared {
            if self.managers.remove(&(node, port)).is_some() {
                self.emit(SmEvent::ForeignManagerGone { node, port });
            }
        } else if let Entry::Vacant(unknown) = self.managers.entry((node, port)) {
            unknown.insert(ForeignManager::New);
            self.query_manager(node, port, RetryPolicy::Limits);
        }
    }

    /// Queries all other managers, unless some were not given up since the last time. A silent one gets a single datagram, when its
    /// interval is over.
    pub(crate) fn query_managers(&mut self) {
        if !self.inquiries.is_idle() {
            return;
        }
        let now = self.now;
        let due = |known: &ForeignManager| match *known {
            ForeignManager::New | ForeignManager::Known { .. } => Some(RetryPolicy::Limits),
            ForeignManager::Silent { next, .. } => (next <= now).then_some(RetryPolicy::Once),
        };
        let asked: Vec<_> =
            self.managers.iter().filter_map(|(place, known)| Some((*place, due(known)?))).collect();
        for ((node, port), retry) in asked {
            self.query_manager(node, port, retry);
        }
    }

    /// Handles the SMInfo of another manager.
    pub(crate) fn record_foreign_manager(&mut self, node: Guid, port: PortNum, data: &[u8; SMP_DATA_LEN]) {
        let Ok(info) = SmInfo::decode(data) else { return self.record_silent_manager(node, port) };
        let says = ForeignManager::Known { state: info.state, priority: info.priority };
        if let Some(known) = self.managers.get_mut(&(node, port))
            && std::mem::replace(known, says) != says
        {
            self.emit(SmEvent::ForeignManager { node, port, info: Some(info) });
        }
    }

    /// Another manager did not answer, or its answer cannot be decoded.
    pub(crate) fn record_silent_manager(&mut self, node: Guid, port: PortNum) {
        let now = self.now;
        let Some(known) = self.managers.get_mut(&(node, port)) else { return };
        let (pause, is_new) = match *known {
            ForeignManager::Silent { pause, .. } => ((2 * pause).min(SILENT_PAUSE_MAX), false),
            ForeignManager::New | ForeignManager::Known { .. } => (SILENT_PAUSE_MIN, true),
        };
        *known = ForeignManager::Silent { pause, next: now + pause };
        if is_new {
            self.emit(SmEvent::ForeignManager { node, port, info: None });
        }
    }

    /// Sends SMInfo without an M_Key.
    fn query_manager(&mut self, node: Guid, port: PortNum, retry: RetryPolicy) {
        let Some(route) = self.observed.nodes.get(&node).and_then(|seen| seen.route(port)) else { return };
        let mad = Mad::directed(Method::GET, Attribute::SM_INFO, 0, route);
        self.inquiries.request_beyond(retry, node, mad, Purpose::ForeignManager { node, port });
    }
}
