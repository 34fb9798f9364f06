//! The sockets of the ibsim protocol here, the port that they lead to elsewhere.
//!
//! A [`Relay`] is the [`FabricBackend`] of a [`Server`](crate::Server) whose clients all sit at one port behind a stream of the own
//! framing: stock tools on one machine, the network they look at on another. Whoever opened the stream has said at which
//! port it ends ([`framed::FramedClient::from_attached_stream`]), so that nothing that comes from here can claim to be anybody else.
//!
//! Applications choose half of a transaction, libraries and servers on the way the rest. What goes out gets a number that
//! only the relay knows, and what comes back gets what it had.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use std::{fmt, io};

use ib_wire::rmpp::RmppFlags;
use ib_wire::{Datagram, Gid, Guid, Lid, Mad, ManagementClass, Method, Pkey, PortState, TransactionId};

use crate::client_role::ClientRole;
use crate::framed::{self, FramedReceived, PortDetails};
use crate::ibsim::DataMessage;
use crate::server::{ClientDatagram, ClientId, FabricBackend, Outbox, Vendor};

/// Requests whose answers are awaited, either way. A subnet manager has some dozens in flight.
const PENDING_MAX: usize = 4096;

/// How long an answer may come, its later parts included: longer than clients wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// How long what was refreshed about the port holds: tools ask for one thing after the other when they start.
const DETAILS_AGE_MAX: Duration = Duration::from_millis(20);

/// Datagrams taken from the stream per round, so that local clients have their turn.
const RECEIVED_PER_ROUND: usize = 256;

/// Requests from elsewhere carry this in place of a local client, which has a lower number.
const REMOTE_CLIENT: u64 = 0xffff << 48;

/// All clients sit at the same port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayPort;

/// Carries what local clients send to a port elsewhere, and back.
pub struct Relay {
    upstream: framed::FramedClient,
    details: PortDetails,
    refreshed: Instant,
    outgoing: PendingRequests<(ClientId, DataMessage)>,
    /// Requests from elsewhere by the transaction they have here.
    incoming: PendingRequests<TransactionId>,
    /// The stream ended, and why.
    error: Option<io::Error>,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("node", &self.details.node_id).finish_non_exhaustive()
    }
}

impl Relay {
    /// A relay over a stream that leads to a port.
    pub fn new(mut upstream: framed::FramedClient) -> io::Result<Self> {
        let details = upstream.port_details()?;
        let (outgoing, incoming) = (PendingRequests::default(), PendingRequests::default());
        Ok(Self { upstream, details, refreshed: Instant::now(), outgoing, incoming, error: None })
    }

    /// Why it carries nothing any more, if it does not.
    pub fn error(&self) -> Option<&io::Error> {
        self.error.as_ref()
    }

    fn with_upstream(&mut self, act: impl FnOnce(&mut framed::FramedClient) -> io::Result<()>) {
        if self.error.is_none() {
            self.error = act(&mut self.upstream).err();
        }
    }

    /// What is refreshed about the port, no older than a moment.
    fn refresh(&mut self) {
        if self.refreshed.elapsed() > DETAILS_AGE_MAX {
            let mut details = None;
            self.with_upstream(|upstream| upstream.port_details().map(|refreshed| details = Some(refreshed)));
            if let Some(details) = details {
                (self.details, self.refreshed) = (details, Instant::now());
            }
        }
    }

    /// The key of table index 0.
    fn first_pkey(&self) -> Option<Pkey> {
        Pkey::from_wire(u16::from_be_bytes([self.details.pkeys[0], self.details.pkeys[1]]))
    }

    fn send(&mut self, client: ClientId, message: DataMessage, outbox: &mut Outbox<RelayPort>) {
        // Without a key only subnet management leaves, which has none.
        let key = self.first_pkey().unwrap_or(Pkey::DEFAULT_FULL);
        let Some(mut datagram) = message.clone().into_datagram(self.details.lid, key) else {
            return outbox.report_lost(client, message);
        };
        let local = message.mad.transaction();
        let now = outbox.now();
        let there = if is_answer(&message.mad) {
            // To a request from elsewhere, or of a transfer in several parts that was outgoing for here.
            let outgoing = self.incoming.get(local).copied();
            if let Some(tag) = self.incoming.tag_of(local).filter(|_| !has_parts(&message.mad)) {
                self.incoming.take(tag);
            }
            outgoing.or_else(|| self.outgoing.tag_of(local))
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
        let here = if is_answer(&datagram.mad) {
            let here = self.outgoing.local_of(transaction);
            if !has_parts(&datagram.mad) {
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

    /// There is one port, whatever the client calls it.
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
        // Of an adapter with one port.
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
            // Nobody has another door here.
            ClientDatagram::Framed { client, datagram } => outbox.report_lost(client, datagram),
        }
    }

    fn handle_ready(&mut self, outbox: &mut Outbox<RelayPort>) {
        self.receive(outbox);
    }

    fn tick(&mut self, outbox: &mut Outbox<RelayPort>) -> Option<Duration> {
        // What was set aside while something else was outgoing for wakes nobody up.
        self.receive(outbox);
        self.outgoing.expire(outbox.now());
        self.incoming.expire(outbox.now());
        None
    }
}

/// Whether a datagram belongs to what somebody else outgoing for.
fn is_answer(mad: &Mad) -> bool {
    mad.method().is_response() || mad.method() == Method::TRAP_REPRESS
}

/// Whether it is one of several that have the same transaction.
fn has_parts(mad: &Mad) -> bool {
    mad.class() == ManagementClass::SUBNET_ADMINISTRATION && mad.rmpp().flags.has(RmppFlags::ACTIVE)
}

/// Requests under way, by the number they have there and by the transaction they have here.
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
    /// A number for a request; the one it has if it is sent again. `None` if too many are under way.
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
        self.deadlines.push_back((now + ANSWER_TIMEOUT, tag));
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

    /// Forgets those whose time is over. What is answered in several parts stays until then.
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
