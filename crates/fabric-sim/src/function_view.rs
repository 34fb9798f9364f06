//! Management datagrams between a virtual function and the network view of its tenant.
//!
//! A function whose host has opened a view ([`Fabric::open_view`]) manages the view in place of the fabric:
//!
//! | datagram of the function | |
//! |---|---|
//! | to QP0 | its view, never the fabric |
//! | subnet administration in the default partition | the fabric: `ib_sa` of the kernel asks there |
//! | subnet administration in another partition | its view: tools send with the key at index 0, that of the cluster |
//! | performance management of the own port | the fabric; of other LIDs: its view |
//!
//! LIDs in these datagrams are those of the view. One has two meanings: programs find the LID of the subnet manager in the state of
//! their port, which is physical, so that requests to this LID for subnet administration or SMInfo go to the manager of the view.
//!
//! The kernel of the function uses all 64 bits of a transaction, the server of the view overwrites the upper 16. Requests of the
//! function therefore get numbers, and responses the transaction and the source address that the kernel expects. Requests from the view
//! keep their transactions. Kernels without an agent for subnet management give no directed request to software: those become
//! LID-routed ones, and the responses directed ones again.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use ib_wire::rmpp::RmppFlags;
use ib_wire::{
    Attribute, Datagram, Lid, LidAddress, Mad, ManagementClass, Method, PartitionNumber, Pkey, QKey,
    QueuePair, TransactionId,
};

use crate::fabric::DropReason;

/// Most requests of a function without a response. A subnet manager has some dozens in flight.
const REQUESTS_MAX: usize = 1024;

/// Time after which a request is forgotten, longer than clients wait for a response or its further segments.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Most datagrams that wait for the port of the view. Clients send again.
const HELD_MAX: usize = 64;

/// Most directed requests from the view that software at the function has not answered. A manager polls once a second.
const DIRECTED_MAX: usize = 64;

/// Most outputs that wait to be taken. Callers take them after every call.
const OUTPUTS_MAX: usize = 1024;

/// Longest age of what is known about the port of the view: tools send a series of requests.
const PORT_AGE_MAX: Duration = Duration::from_millis(20);

/// Time after which the port is queried again if there is no answer.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// Hop pointer of directed responses that end at a port. Kernels drop others.
const LAST_HOP: u8 = 1;

/// The port of a function in its view, where it has other addresses than on the fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewPort {
    pub lid: Option<Lid>,
    /// LID of the subnet manager of the view.
    pub manager: Option<Lid>,
    /// P_Key at index 0.
    pub key: Option<Pkey>,
}

/// What the server of a view is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToView {
    Datagram(Box<Datagram>),
    /// A query of the port, to be answered by [`Fabric::set_view_port`](crate::Fabric::set_view_port).
    PortQuery,
}

/// Addresses of a function on the fabric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FunctionAddress {
    pub lid: Option<Lid>,
    pub manager: Option<Lid>,
    /// Its first P_Key.
    pub key: Option<Pkey>,
}

/// The exchange of a function with its view.
#[derive(Debug, Default)]
pub(crate) struct FunctionView {
    /// The port in the view, and when that was received.
    port: Option<(Duration, ViewPort)>,
    /// When it was queried, unless the answer has arrived.
    queried: Option<Duration>,
    /// Datagrams that wait for the port.
    held: VecDeque<Datagram>,
    requests: PendingRequests,
    /// Directed requests from the view that were passed on as LID-routed ones, the oldest first.
    directed: VecDeque<Datagram>,
    outputs: VecDeque<ToView>,
}

impl FunctionView {
    /// Takes a management datagram of the function. Returns those that are for the fabric after all.
    ///
    /// # Errors
    ///
    /// The datagram is dropped.
    pub fn take(
        &mut self,
        now: Duration,
        own: &FunctionAddress,
        datagram: Datagram,
    ) -> Result<Option<Datagram>, DropReason> {
        if !concerns_view(own, &datagram) {
            return Ok(Some(datagram));
        }
        let is_known = self.port.is_some_and(|(since, _)| now.saturating_sub(since) <= PORT_AGE_MAX);
        if is_known || !depends_on_port(own, &datagram) {
            return self.forward(now, own, datagram);
        }
        // A query is lost with a view that reads too little.
        if self.queried.is_none_or(|since| now.saturating_sub(since) >= QUERY_TIMEOUT) {
            self.push(ToView::PortQuery)?;
            self.queried = Some(now);
        }
        if self.held.len() >= HELD_MAX {
            return Err(DropReason::NoRoom);
        }
        self.held.push_back(datagram);
        Ok(None)
    }

    /// Sets the port in the view. Returns what became of the datagrams that waited for it.
    pub fn set_port(
        &mut self,
        now: Duration,
        own: &FunctionAddress,
        port: ViewPort,
    ) -> Vec<Result<Option<Datagram>, DropReason>> {
        (self.port, self.queried) = (Some((now, port)), None);
        let held = std::mem::take(&mut self.held);
        held.into_iter().map(|datagram| self.forward(now, own, datagram)).collect()
    }

    /// Sends a datagram to the view, with addresses of the view. Returns it if it concerns the own port, whose counters are physical.
    fn forward(
        &mut self,
        now: Duration,
        own: &FunctionAddress,
        mut datagram: Datagram,
    ) -> Result<Option<Datagram>, DropReason> {
        let port = self.port.map(|(_, port)| port).unwrap_or_default();
        let (class, asked) = (datagram.mad.class(), datagram.dlid);
        if class == ManagementClass::PERFORMANCE && port.lid.map(LidAddress::from) == Some(asked) {
            let dlid = own.lid.ok_or(DropReason::NotActive)?.into();
            return Ok(Some(Datagram { dlid, ..datagram }));
        }
        if asks_manager(own, &datagram) {
            datagram.dlid = port.manager.ok_or(DropReason::NoRoute)?.into();
        }
        let key = datagram.pkey;
        if !class.is_subnet_management() {
            datagram.pkey = port.key.ok_or(DropReason::PartitionAtSender)?;
        }
        // The view replaces it by an address of the port.
        datagram.slid = port.lid.map_or(LidAddress::Permissive, LidAddress::from);
        datagram.grh = None;
        if is_response(&datagram.mad) {
            self.restore_direction(&mut datagram);
        } else {
            let request = PendingRequest { transaction: datagram.mad.transaction(), asked, key };
            let number = self.requests.add(now, request).ok_or(DropReason::NoRoom)?;
            datagram.mad.set_transaction(number);
        }
        if datagram.mad.class() == ManagementClass::SUBNET_DIRECTED {
            // The hop pointer is between agents.
            datagram.mad.set_hop_pointer(0);
        }
        self.push(ToView::Datagram(Box::new(datagram)))?;
        Ok(None)
    }

    /// Makes the response to a directed request that software received as a LID-routed one a directed one.
    fn restore_direction(&mut self, datagram: &mut Datagram) {
        let transaction = datagram.mad.transaction();
        let is_it = |request: &Datagram| request.mad.transaction() == transaction;
        if datagram.mad.class() != ManagementClass::SUBNET_LID {
            return;
        }
        let Some(request) =
            self.directed.iter().position(is_it).and_then(|index| self.directed.remove(index))
        else {
            return;
        };
        let mut mad = request.mad;
        mad.set_method(datagram.mad.method());
        mad.set_status(datagram.mad.status());
        mad.set_m_key(datagram.mad.m_key());
        *mad.smp_data_mut() = *datagram.mad.smp_data();
        mad.set_returning();
        *datagram = Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad);
    }

    /// Takes a datagram of the view. Returns it as the function receives it; `None` if there is nobody who waits for it.
    pub fn receive(&mut self, own: &FunctionAddress, mut datagram: Datagram) -> Option<Datagram> {
        let directed = datagram.mad.class() == ManagementClass::SUBNET_DIRECTED;
        let dlid = own.lid.map_or(LidAddress::Permissive, LidAddress::from);
        datagram.grh = None;
        if is_response(&datagram.mad) {
            let number = datagram.mad.transaction();
            let request = self.requests.answered(number, uses_rmpp(&datagram.mad))?;
            datagram.mad.set_transaction(request.transaction);
            if directed {
                datagram.mad.set_hop_pointer(LAST_HOP);
                return Some(datagram);
            }
            let is_smp = datagram.mad.class().is_subnet_management();
            let pkey = if is_smp { datagram.pkey } else { request.key };
            return Some(Datagram { slid: request.asked, dlid, pkey, ..datagram });
        }
        if directed {
            if self.directed.len() >= DIRECTED_MAX {
                self.directed.pop_front();
            }
            self.directed.push_back(datagram.clone());
            datagram.mad = lid_routed(&datagram.mad);
            return Some(datagram);
        }
        let is_smp = datagram.mad.class().is_subnet_management();
        let pkey = if is_smp { datagram.pkey } else { own.key? };
        Some(Datagram { dlid, pkey, ..datagram })
    }

    /// Forgets a request that the view will not answer.
    pub fn forget(&mut self, number: TransactionId) {
        self.requests.answered(number, false);
    }

    pub fn poll_output(&mut self) -> Option<ToView> {
        self.outputs.pop_front()
    }

    fn push(&mut self, output: ToView) -> Result<(), DropReason> {
        if self.outputs.len() >= OUTPUTS_MAX {
            return Err(DropReason::NoRoom);
        }
        self.outputs.push_back(output);
        Ok(())
    }
}

/// Whether a datagram is for the view, as far as can be said without knowing the view.
fn concerns_view(own: &FunctionAddress, datagram: &Datagram) -> bool {
    match datagram.mad.class() {
        class if class.is_subnet_management() => datagram.dqp == QueuePair::SUBNET_MANAGEMENT,
        ManagementClass::SUBNET_ADMINISTRATION => datagram.pkey.partition() != PartitionNumber::DEFAULT,
        ManagementClass::PERFORMANCE => own.lid.map(LidAddress::from) != Some(datagram.dlid),
        _ => false,
    }
}

/// Whether the addresses in the view decide about a datagram. Most SMPs of a subnet manager need not wait for them.
fn depends_on_port(own: &FunctionAddress, datagram: &Datagram) -> bool {
    !datagram.mad.class().is_subnet_management() || asks_manager(own, datagram)
}

/// Whether a request to the LID of the physical subnet manager means the manager of the view.
fn asks_manager(own: &FunctionAddress, datagram: &Datagram) -> bool {
    if own.manager.map(LidAddress::from) != Some(datagram.dlid) || is_response(&datagram.mad) {
        return false;
    }
    match datagram.mad.class() {
        ManagementClass::SUBNET_LID => datagram.mad.attribute() == Attribute::SM_INFO,
        // Reports go from a manager to subscribers.
        ManagementClass::SUBNET_ADMINISTRATION => datagram.mad.method() != Method::REPORT,
        _ => false,
    }
}

/// Whether a datagram responds to one of the other side.
fn is_response(mad: &Mad) -> bool {
    mad.method().is_response() || mad.method() == Method::TRAP_REPRESS
}

/// Whether further datagrams with the same transaction may follow.
fn uses_rmpp(mad: &Mad) -> bool {
    mad.class() == ManagementClass::SUBNET_ADMINISTRATION && mad.rmpp().flags.has(RmppFlags::ACTIVE)
}

/// A directed SMP at its destination as a LID-routed one.
fn lid_routed(mad: &Mad) -> Mad {
    let mut routed = Mad::new(ManagementClass::SUBNET_LID, mad.method(), mad.attribute(), mad.modifier());
    routed.set_transaction(mad.transaction());
    routed.set_m_key(mad.m_key());
    *routed.smp_data_mut() = *mad.smp_data();
    routed
}

/// Whether a datagram that the view sends can be for the queue pairs of a function.
pub(crate) fn is_management(datagram: &Datagram) -> bool {
    if datagram.mad.class().is_subnet_management() {
        return datagram.dqp == QueuePair::SUBNET_MANAGEMENT;
    }
    datagram.dqp != QueuePair::SUBNET_MANAGEMENT && datagram.qkey == QKey::GENERAL_MANAGEMENT
}

/// A request of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PendingRequest {
    transaction: TransactionId,
    /// The address that it was sent to. The kernel expects the response from there.
    asked: LidAddress,
    key: Pkey,
}

/// Requests without a response, by the number that they have in the view.
#[derive(Debug, Default)]
struct PendingRequests {
    by_number: HashMap<u32, PendingRequest>,
    numbers: HashMap<TransactionId, u32>,
    /// The oldest first; those that were answered stay until they reach the front.
    deadlines: VecDeque<(Duration, u32)>,
    last: u32,
}

impl PendingRequests {
    /// Adds a request, and returns its number as a transaction; a repeated one keeps its number. `None` if too many are pending.
    fn add(&mut self, now: Duration, request: PendingRequest) -> Option<TransactionId> {
        if let Some(number) = self.numbers.get(&request.transaction) {
            self.by_number.insert(*number, request);
            return Some(TransactionId((*number).into()));
        }
        self.expire(now);
        if self.by_number.len() >= REQUESTS_MAX {
            return None;
        }
        self.last = self.last.wrapping_add(1);
        self.by_number.insert(self.last, request);
        self.numbers.insert(request.transaction, self.last);
        self.deadlines.push_back((now + REQUEST_TIMEOUT, self.last));
        Some(TransactionId(self.last.into()))
    }

    /// The request with a number. It is forgotten unless more responses may follow.
    fn answered(&mut self, number: TransactionId, may_follow: bool) -> Option<PendingRequest> {
        // The upper half belongs to the server of the view.
        let number = number.0 as u32;
        let request = *self.by_number.get(&number)?;
        if !may_follow {
            self.remove(number);
        }
        Some(request)
    }

    fn remove(&mut self, number: u32) {
        if let Some(request) = self.by_number.remove(&number) {
            self.numbers.remove(&request.transaction);
        }
    }

    /// Forgets what is too old, and keeps the queue of deadlines as short as the table.
    fn expire(&mut self, now: Duration) {
        while let Some((deadline, number)) = self.deadlines.front().copied() {
            if deadline > now && self.by_number.contains_key(&number) {
                break;
            }
            self.deadlines.pop_front();
            self.remove(number);
        }
        if self.deadlines.len() >= 2 * REQUESTS_MAX {
            let mut deadlines = std::mem::take(&mut self.deadlines);
            deadlines.retain(|(_, number)| self.by_number.contains_key(number));
            self.deadlines = deadlines;
        }
    }
}

#[cfg(test)]
#[path = "function_view_tests.rs"]
mod tests;
