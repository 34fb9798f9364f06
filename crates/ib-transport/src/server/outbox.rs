//! Delivery of datagrams from the backend to clients.

use std::time::Instant;

use ib_wire::rmpp::{RmppFlags, RmppKind};
use ib_wire::{Datagram, Mad, ManagementClass, Method};

use super::backend::ClientId;
use super::connections::{ClientLink, Connection, Connections};
use super::counters::ServerCounters;
use super::forwarded::Forwarded;
use crate::framed::Frame;
use crate::ibsim::{Addresses, DataMessage, DataStatus, encode_data};

/// Receives the datagrams that a [`FabricBackend`](super::FabricBackend) delivers and queues them for the right clients.
///
/// - A response goes to the client in its transaction, if that client is attached to the port and has sent a request of the
///   same class: stock clients crash on a class that they did not register.
/// - A request goes to the subnet manager client of the port if its class is one that every subnet manager registers (0x01,
///   0x81, 0x03). Otherwise it is reported to its sender as lost at once; if the client does not answer, it is reported as
///   lost after [`FORWARD_TIMEOUT`](super::FORWARD_TIMEOUT).
/// - TrapRepress goes to the client that sent the trap, like a response: a standby opensm sends a trap to the master and does
///   not sweep until the trap is repressed.
#[derive(Debug)]
pub struct Outbox<P> {
    pub(super) clients: Connections<P>,
    pub(super) counters: ServerCounters,
    pub(super) forwarded: Forwarded,
    /// Clients with something in their queue.
    pub(super) queued: Vec<ClientId>,
    /// Start time of the current round.
    pub(super) now: Instant,
}

impl<P: Copy + Eq> Outbox<P> {
    pub(super) fn new() -> Self {
        Self {
            clients: Connections::new(),
            counters: ServerCounters::default(),
            forwarded: Forwarded::default(),
            queued: Vec::new(),
            now: Instant::now(),
        }
    }

    /// Delivers a datagram that arrived at `port`.
    ///
    /// The sender of a request is read from its transaction, so the only requests that a backend may originate itself are traps,
    /// for which no response is expected.
    pub fn deliver(&mut self, port: P, datagram: Datagram) {
        match datagram.mad.method() {
            method if method.is_response() || method == Method::TRAP_REPRESS => {
                self.deliver_response(port, &datagram)
            }
            _ => self.deliver_request(port, datagram),
        }
    }

    /// Reports to `client` that its request `original` will not be answered. Datagrams that expect no response are not reported.
    pub fn report_lost(&mut self, client: ClientId, original: impl Into<DataMessage>) {
        self.queue_loss_report(client, &original.into());
    }

    /// Reports that a request will not be answered to the client in its transaction.
    pub fn report_lost_request(&mut self, request: impl Into<DataMessage>) {
        let request = request.into();
        self.queue_loss_report(requester(&request.mad), &request);
    }

    /// The start time of the current round, so that backends need not read the clock for every datagram.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The statistics of the server so far.
    pub fn counters(&self) -> &ServerCounters {
        &self.counters
    }

    /// Reports forwarded requests whose timeout is over as lost.
    pub(super) fn expire_forwarded(&mut self) {
        while let Some(request) = self.forwarded.expired(self.now) {
            self.counters.forwards_expired += 1;
            self.queue_loss_report(requester(&request.mad), &request);
        }
    }

    fn deliver_response(&mut self, port: P, datagram: &Datagram) {
        let mad = &datagram.mad;
        self.forwarded.answered(mad.transaction().0);
        let id = requester(mad);
        match self.clients.get_mut(id) {
            Some(client) if client.port == Some(port) && client.classes.contains(mad.class()) => {
                self.queue_datagram(id, datagram);
            }
            _ => self.counters.responses_unclaimed += 1,
        }
    }

    fn deliver_request(&mut self, port: P, datagram: Datagram) {
        let manager = self.clients.manager_of(port).filter(|_| is_manager_class(datagram.mad.class()));
        let Some(manager) = manager else {
            self.counters.requests_undeliverable += 1;
            return self.queue_loss_report(requester(&datagram.mad), &datagram.into());
        };
        let awaited = expects_answer(&datagram.mad) && self.clients.get(requester(&datagram.mad)).is_some();
        if awaited && !self.forwarded.remember(self.now, (&datagram).into()) {
            self.counters.forwards_refused += 1;
            return self.queue_loss_report(requester(&datagram.mad), &datagram.into());
        }
        self.queue_datagram(manager, &datagram);
    }

    #[inline]
    fn queue_datagram(&mut self, id: ClientId, datagram: &Datagram) {
        let queued = self.queue(id, |link| match link {
            ClientLink::Ibsim { unsent, .. } => unsent
                .push()
                .map(|frame| encode_data(frame, Addresses::of(datagram), DataStatus::Ok, &datagram.mad))
                .is_some(),
            ClientLink::Framed { unsent, .. } => unsent.push(|bytes| Frame::encode_datagram(datagram, bytes)),
        });
        self.counters.datagrams_out += u64::from(queued);
    }

    fn queue_loss_report(&mut self, id: ClientId, request: &DataMessage) {
        if !expects_answer(&request.mad) {
            return;
        }
        let queued = self.queue(id, |link| match link {
            ClientLink::Ibsim { unsent, .. } => unsent
                .push()
                .map(|frame| encode_data(frame, request.addresses(), DataStatus::TimedOut, &request.mad))
                .is_some(),
            ClientLink::Framed { unsent, .. } => {
                unsent.push(|bytes| Frame::Lost(request.mad.transaction()).encode(bytes))
            }
        });
        self.counters.lost += u64::from(queued);
    }

    /// Queues something for a client; `false` if the client is gone or its queue is full.
    #[inline]
    pub(super) fn queue(&mut self, id: ClientId, write: impl FnOnce(&mut ClientLink) -> bool) -> bool {
        let Some(client) = self.clients.get_mut(id) else { return false };
        let Connection { link, queued, .. } = client;
        if !write(link) {
            self.counters.backlog_dropped += 1;
            return false;
        }
        if !std::mem::replace(queued, true) {
            self.queued.push(id);
        }
        true
    }
}

/// Whether the sender of a datagram waits for a response.
fn expects_answer(mad: &Mad) -> bool {
    let method = mad.method();
    !method.is_response() && method != Method::TRAP && method != Method::TRAP_REPRESS && !is_rmpp_control(mad)
}

/// Whether a datagram acknowledges or ends an RMPP transfer. One for a response has the method of its request.
fn is_rmpp_control(mad: &Mad) -> bool {
    mad.class() == ManagementClass::SUBNET_ADMINISTRATION
        && mad.rmpp().flags.has(RmppFlags::ACTIVE)
        && matches!(mad.rmpp().kind, RmppKind::Ack | RmppKind::Stop | RmppKind::Abort)
}

/// Whether every subnet manager registers the class.
fn is_manager_class(class: ManagementClass) -> bool {
    class.is_subnet_management() || class == ManagementClass::SUBNET_ADMINISTRATION
}

/// The client in the transaction of a datagram.
fn requester(mad: &Mad) -> ClientId {
    ClientId::of_transaction(mad.transaction().0)
}
