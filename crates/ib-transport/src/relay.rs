//! A backend that forwards local ibsim clients to a port of a fabric elsewhere.
//!
//! A [`Relay`] is the [`FabricBackend`] of a [`Server`](crate::Server) whose clients all use one port, that of a framed stream:
//! stock tools run on one machine, the fabric that they manage on another. The port is fixed by the process that opened the
//! stream ([`framed::FramedClient::from_attached_stream`]), so that local clients cannot choose another one.
//!
//! The application owns only half of a transaction identifier; libraries and servers overwrite the rest. The relay therefore
//! replaces the transaction of every request by a number of its own, and restores the original in the response.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use std::{fmt, io};

use ib_wire::rmpp::RmppFlags;
use ib_wire::{Datagram, Gid, Guid, Lid, Mad, ManagementClass, Method, Pkey, PortState, TransactionId};

use crate::client_role::ClientRole;
use crate::framed::{self, FramedReceived, PortDetails};
use crate::ibsim::DataMessage;
use crate::server::{ClientDatagram, ClientId, FabricBackend, Outbox};
use crate::vendor::Vendor;

/// Most pending requests per direction. A subnet manager has some dozens in flight.
const PENDING_MAX: usize = 4096;

/// Time after which a pending request is forgotten, longer than clients wait for a response or its further segments.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest age of the cached port details: tools send a series of queries when they start.
const DETAILS_AGE_MAX: Duration = Duration::from_millis(20);

/// Most datagrams received from the stream per round, so that local clients are served, too.
const RECEIVED_PER_ROUND: usize = 256;

/// Bits 63 to 48 of requests from the stream, a client number that no local client has.
const REMOTE_CLIENT: u64 = 0xffff << 48;

/// The only port of a [`Relay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayPort;

/// Forwards the datagrams of local clients to a port elsewhere, and the responses, requests and traps of that port to the
/// clients. Register it with [`Server::watch`](crate::Server::watch), and stop serving when [`Relay::error`] returns an error.
pub struct Relay {
    upstream: framed::FramedClient,
    details: PortDetails,
    refreshed: Instant,
    outgoing: PendingRequests<(ClientId, DataMessage)>,
    /// Requests from the stream; the value is their original transaction.
    incoming: PendingRequests<TransactionId>,
    /// Why the stream failed.
    error: Option<io::Error>,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("node", &self.details.node_id).finish_non_exhaustive()
    }
}

impl Relay {
    /// A relay to the port that `upstream` is attached to. Queries the port details, which blocks at most 5 seconds.
    pub fn new(mut upstream: framed::FramedClient) -> io::Result<Self> {
        let details = upstream.port_details()?;
        let (outgoing, incoming) = (PendingRequests::default(), PendingRequests::default());
        Ok(Self { upstream, details, refreshed: Instant::now(), outgoing, incoming, error: None })
    }

    /// Why the stream failed; `None` while it works. After an error all requests of local clients are reported as lost.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    fn with_upstream(&mut self, act: impl FnOnce(&mut framed::FramedClient) -> io::Result<()>) {
        if self.error.is_none() {
            self.error = act(&mut self.upstream).err();
        }
    }

    /// Queries the port details again if they are older than [`DETAILS_AGE_MAX`].
    fn refresh(&mut self) {
        if self.refreshed.elapsed() > DETAILS_AGE_MAX {
            let mut details = None;
            self.with_upstream(|upstream| upstream.port_details().map(|current| details = Some(current)));
            if let Some(details) = details {
                (self.details, self.refreshed) = (details, Instant::now());
            }
        }
    }

    /// P_Key 0 of the port.
    fn first_pkey(&self) -> Option<Pkey> {
        Pkey::from_wire(u16::from_be_bytes([self.details.pkeys[0], self.details.pkeys[1]]))
    }

    fn send(&mut self, client: ClientId, message: DataMessage, outbox: &mut Outbox<RelayPort>) {
        // A port without a P_Key sends only SMPs, which carry none.
        let key = self.first_pkey().unwrap_or(Pkey::DEFAULT_FULL);
        let Some(mut datagram) = message.clone().into_datagram(self.details.lid, key) else {
            return outbox.report_lost(client, message);
        };
        let local = message.mad.transaction();
        let now = outbox.now();
        let there = if is_response(&message.mad) {
            // The response to a request from the stream, or an RMPP acknowledgement for a request of a local client.
            let original = self.incoming.get(local).copied();
            if let Some(tag) = self.incoming.tag_of(local).filter(|_| !uses_rmpp(&message.mad)) {
                self.incoming.take(tag);
            }
            original.or_else(|| self.outgoing.tag_of(local))
        } else {
            self.outgoing.add(now, local, (client, message.clone()))
        };
        let Some(there) = there else { return outbox.report_lost(client, message) };
        datagram.mad.set_transaction(there);
        self.with_upstream(|upstream| upstream.send(&datagram));
        if self.error.is_some() {
            outbox.report_lost(client, message);
        }
    }

    fn receive(&mut self, outbox: &mut Outbox<RelayPort>) {
        for _ in 0..RECEIVED_PER_ROUND {
            if self.error.is_some() {
                return;
            }
            match self.upstream.receive(Duration::ZERO) {
                Ok(None) => return,
                Ok(Some(FramedReceived::Datagram(datagram))) => self.forward(*datagram, outbox),
                Ok(Some(FramedReceived::Lost(transaction))) => {
                    if let Some((client, original)) = self.outgoing.take(transaction) {
                        outbox.report_lost(client, original);
                    }
                }
                Err(error) => self.error = Some(error),
            }
        }
    }

    fn forward(&mut self, mut datagram: Datagram, outbox: &mut Outbox<RelayPort>) {
        let transaction = datagram.mad.transaction();
        let here = if is_response(&datagram.mad) {
            let here = self.outgoing.local_of(transaction);
            if !uses_rmpp(&datagram.mad) {
                self.outgoing.take(transaction);
            }
            here
        } else {
            let number = self.incoming.next;
            let here = TransactionId(REMOTE_CLIENT | u64::from(number));
            self.incoming.add(outbox.now(), here, transaction).map(|_| here)
        };
        if let Some(here) = here {
            datagram.mad.set_transaction(here);
            outbox.deliver(RelayPort, datagram);
        }
    }
}

impl AsFd for Relay {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.upstream.as_fd()
    }
}

impl FabricBackend for Relay {
    type Port = RelayPort;

    /// The only port, whatever node the client names.
    fn find_port(&self, _node_id: &str) -> Option<RelayPort> {
        Some(RelayPort)
    }

    fn node_id(&self, _port: RelayPort) -> String {
        self.details.node_id.clone()
    }

    fn vendor(&self, _port: RelayPort) -> Vendor {
        self.details.vendor
    }

    fn node_info(&self, _port: RelayPort) -> [u8; 64] {
        self.details.node_info
    }

    fn port_info(&self, _port: RelayPort, number: u8) -> Option<[u8; 64]> {
        // The node is an adapter with one port.
        (number <= 1).then_some(self.details.port_info)
    }

    fn pkeys(&self, _port: RelayPort) -> [u8; 64] {
        self.details.pkeys
    }

    fn port_state(&self, _port: RelayPort) -> (Option<Lid>, PortState) {
        (self.details.lid, self.details.state)
    }

    fn port_guid(&self, _port: RelayPort) -> Guid {
        self.details.port_guid
    }

    fn port_gid(&self, _port: RelayPort) -> Gid {
        self.details.gid
    }

    fn handle_control(&mut self) {
        self.refresh();
    }

    fn set_is_sm(&mut self, _port: RelayPort, on: bool) {
        let role = if on { ClientRole::SubnetManager } else { ClientRole::Ordinary };
        self.with_upstream(|upstream| upstream.set_role(role));
    }

    fn handle(&mut self, _from: RelayPort, sent: ClientDatagram, outbox: &mut Outbox<RelayPort>) {
        match sent {
            ClientDatagram::Ibsim { client, message } => self.send(client, message, outbox),
            // The server of a relay has no framed clients.
            ClientDatagram::Framed { client, datagram } => outbox.report_lost(client, datagram),
        }
    }

    fn handle_ready(&mut self, outbox: &mut Outbox<RelayPort>) {
        self.receive(outbox);
    }

    fn tick(&mut self, outbox: &mut Outbox<RelayPort>) -> Option<Duration> {
        // Datagrams that were buffered while waiting for port details do not make the stream readable.
        self.receive(outbox);
        self.outgoing.expire(outbox.now());
        self.incoming.expire(outbox.now());
        None
    }
}

/// Whether a datagram responds to one of the other side.
fn is_response(mad: &Mad) -> bool {
    mad.method().is_response() || mad.method() == Method::TRAP_REPRESS
}

/// Whether further datagrams with the same transaction may follow (RMPP).
fn uses_rmpp(mad: &Mad) -> bool {
    mad.class() == ManagementClass::SUBNET_ADMINISTRATION && mad.rmpp().flags.has(RmppFlags::ACTIVE)
}

/// Pending requests, by the number that the relay gave them and by their transaction at the local server.
#[derive(Debug)]
struct PendingRequests<T> {
    by_tag: HashMap<u32, (TransactionId, T)>,
    by_local: HashMap<TransactionId, u32>,
    deadlines: VecDeque<(Instant, u32)>,
    next: u32,
}

impl<T> Default for PendingRequests<T> {
    fn default() -> Self {
        Self { by_tag: HashMap::new(), by_local: HashMap::new(), deadlines: VecDeque::new(), next: 1 }
    }
}

impl<T> PendingRequests<T> {
    /// Adds a request and returns its number as a transaction; a repeated request keeps its number. `None` if [`PENDING_MAX`]
    /// requests are pending.
    fn add(&mut self, now: Instant, local: TransactionId, what: T) -> Option<TransactionId> {
        if let Some(tag) = self.tag_of(local) {
            return Some(tag);
        }
        self.expire(now);
        if self.by_tag.len() >= PENDING_MAX {
            return None;
        }
        let tag = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        self.by_tag.insert(tag, (local, what));
        self.by_local.insert(local, tag);
        self.deadlines.push_back((now + RESPONSE_TIMEOUT, tag));
        Some(TransactionId(tag.into()))
    }

    fn get(&self, local: TransactionId) -> Option<&T> {
        self.by_tag.get(self.by_local.get(&local)?).map(|(_, what)| what)
    }

    fn tag_of(&self, local: TransactionId) -> Option<TransactionId> {
        self.by_local.get(&local).map(|tag| TransactionId(u64::from(*tag)))
    }

    fn local_of(&self, there: TransactionId) -> Option<TransactionId> {
        self.by_tag.get(&(there.0 as u32)).map(|(local, _)| *local)
    }

    fn take(&mut self, there: TransactionId) -> Option<T> {
        let (local, what) = self.by_tag.remove(&(there.0 as u32))?;
        self.by_local.remove(&local);
        Some(what)
    }

    /// Removes requests that are older than [`RESPONSE_TIMEOUT`]; those with RMPP responses are only removed here.
    fn expire(&mut self, now: Instant) {
        while let Some((deadline, tag)) = self.deadlines.front().copied() {
            if deadline > now && self.deadlines.len() <= PENDING_MAX {
                return;
            }
            self.deadlines.pop_front();
            self.take(TransactionId(tag.into()));
        }
    }
}
