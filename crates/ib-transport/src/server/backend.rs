//! The interface between a server and the fabric that it serves.

use std::fmt;
use std::time::{Duration, Instant};

use ib_wire::{Datagram, Gid, Guid, Lid, PortState};

use super::Outbox;
use crate::ibsim::DataMessage;
use crate::vendor::Vendor;

/// The fabric that a [`Server`](super::Server) serves. The server calls all methods from its own thread, one at a time.
pub trait FabricBackend {
    /// A port a client can be attached to.
    type Port: Copy + Eq + fmt::Debug;

    /// Called before a control message of the ibsim protocol is answered, so that the backend can refresh what it knows about
    /// the port.
    fn handle_control(&mut self) {}

    /// The port to which a client attaches, by node id, then by node description; an empty text is the first node. `None` if
    /// there is no such node.
    fn find_port(&self, node_id: &str) -> Option<Self::Port>;

    /// The id of the node of a port, which is sent to its clients.
    fn node_id(&self, port: Self::Port) -> String;

    /// Vendor, device and versions of the adapter.
    fn vendor(&self, port: Self::Port) -> Vendor;

    /// NodeInfo in wire order.
    fn node_info(&self, port: Self::Port) -> [u8; 64];

    /// PortInfo of port `number` of the node of `port`, in wire order; 0 is the attached port. `None` if there is no such port.
    fn port_info(&self, port: Self::Port, number: u8) -> Option<[u8; 64]>;

    /// The first 32 P_Keys of the port, in wire order.
    fn pkeys(&self, port: Self::Port) -> [u8; 64];

    /// LID and logical state of the port.
    fn port_state(&self, port: Self::Port) -> (Option<Lid>, PortState);

    /// GUID of the port.
    fn port_guid(&self, port: Self::Port) -> Guid;

    /// GID 0 of the port.
    fn port_gid(&self, port: Self::Port) -> Gid;

    /// Called when a port gets its first subnet manager client (`on`) and when its last one is gone (not `on`).
    fn set_is_sm(&mut self, port: Self::Port, on: bool);

    /// Handles a datagram of a client. Put the datagrams to deliver into `outbox`, now or in a later call.
    fn handle(&mut self, from: Self::Port, sent: ClientDatagram, outbox: &mut Outbox<Self::Port>);

    /// Whether one more client may attach to `port`. `taken` yields the ports of all attached clients, so that the backend can
    /// divide the [limit of clients](super::CLIENTS_MAX) among its ports.
    fn may_attach(&self, port: Self::Port, taken: &mut dyn Iterator<Item = Self::Port>) -> bool {
        let (_, _) = (port, taken);
        true
    }

    /// Whether a port still exists. Clients of a removed port are disconnected within 3 seconds.
    fn port_exists(&self, port: Self::Port) -> bool {
        let _ = port;
        true
    }

    /// Called for every query and role frame of a framed client, before it is handled. A backend that limits the rate of its
    /// clients counts it, see [`paused_until`](Self::paused_until).
    fn charge(&mut self, port: Self::Port) {
        let _ = port;
    }

    /// The time until which the server does not read from the clients of a port, because they exceeded their rate; `None` to go
    /// on reading. Called after every batch of a client.
    fn paused_until(&self, port: Self::Port) -> Option<Instant> {
        let _ = port;
        None
    }

    /// Called while a file descriptor that was added with [`Server::watch`](super::Server::watch) is readable. It should read a
    /// bounded amount: the next round calls it again for the rest.
    fn handle_ready(&mut self, outbox: &mut Outbox<Self::Port>) {
        let _ = outbox;
    }

    /// Called once per round, after all input was handled, for timers and deferred work. Returns the longest time until the next
    /// call; input or a [`Waker`](super::Waker) brings it earlier.
    fn tick(&mut self, outbox: &mut Outbox<Self::Port>) -> Option<Duration>;
}

/// The number of an attached client, in bits 63 to 48 of the transactions of its requests: 10 bits of slot and 6 bits of
/// generation of the slot, so that a late response to a former client does not reach the next one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub(super) u16);

impl ClientId {
    /// The client number as on the wire.
    pub const fn to_wire(self) -> u16 {
        self.0
    }

    /// The client in bits 63 to 48 of a transaction.
    pub(super) const fn of_transaction(transaction: u64) -> Self {
        Self((transaction >> 48) as u16)
    }

    /// `transaction` with this client in bits 63 to 48.
    pub(super) const fn stamp(self, transaction: u64) -> u64 {
        (transaction & 0x0000_ffff_ffff_ffff) | ((self.0 as u64) << 48)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientId({})", self.0)
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A datagram from a client. If it is a request, the client number is in its transaction already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientDatagram {
    /// From an ibsim client, with LIDs and queue pairs only. The backend sets the source and the other headers.
    Ibsim { client: ClientId, message: DataMessage },
    /// From a framed client, with all headers as the client sent them. The backend has to check the source.
    Framed { client: ClientId, datagram: Datagram },
}
