//! What a server asks of the fabric behind it, and what it hands over.

use std::fmt;
use std::time::{Duration, Instant};

use ib_wire::{Datagram, Gid, Guid, Lid, PortState};

use super::Outbox;
use crate::ibsim::DataMessage;

/// What a server asks of the fabric behind it.
pub trait FabricBackend {
    /// A port a client can be attached to.
    type Port: Copy + Eq + fmt::Debug;

    /// Called before clients of the ibsim protocol are answered what they ask about their port.
    fn handle_control(&mut self) {}

    /// Finds the port a client wants: by node id, then by node description; empty = the first node.
    fn find_port(&self, node_id: &str) -> Option<Self::Port>;

    /// The id of the node a port belongs to, as clients are told where they sit.
    fn node_id(&self, port: Self::Port) -> String;

    /// What the attached adapter is.
    fn vendor(&self, port: Self::Port) -> Vendor;

    /// NodeInfo as on the wire.
    fn node_info(&self, port: Self::Port) -> [u8; 64];

    /// PortInfo as on the wire, of port `number` of the same node; 0 means the attached port itself.
    fn port_info(&self, port: Self::Port, number: u8) -> Option<[u8; 64]>;

    /// The first 32 P_Keys of the port, as on the wire.
    fn pkeys(&self, port: Self::Port) -> [u8; 64];

    /// The port's LID and logical state.
    fn port_state(&self, port: Self::Port) -> (Option<Lid>, PortState);

    /// The port's GUID.
    fn port_guid(&self, port: Self::Port) -> Guid;

    /// The port's first GID.
    fn port_gid(&self, port: Self::Port) -> Gid;

    /// Called when the number of subnet manager clients of a port leaves 0 (`on`) or returns to it.
    fn set_is_sm(&mut self, port: Self::Port, on: bool);

    /// Takes one datagram that a client sent; what comes of it goes to `outbox`, now or in a later call.
    fn handle(&mut self, from: Self::Port, sent: ClientDatagram, outbox: &mut Outbox<Self::Port>);

    /// Whether one more client may attach to a port, given the ports of those that are attached: by this a backend shares out
    /// the [slots](super::CLIENTS_MAX) among those its ports belong to.
    fn may_attach(&self, port: Self::Port, taken: &mut dyn Iterator<Item = Self::Port>) -> bool {
        let (_, _) = (port, taken);
        true
    }

    /// Whether a port still exists. Connections of one that does not are removed within seconds.
    fn port_exists(&self, port: Self::Port) -> bool {
        let _ = port;
        true
    }

    /// Called for every frame of a stream that is no datagram, before it is answered: what a client asks about its port, and
    /// each word about its role. A backend that limits what clients send counts it ([`paused_until`](Self::paused_until)).
    fn charge(&mut self, port: Self::Port) {
        let _ = port;
    }

    /// Until when nothing more is to be read from a port's clients, because they have sent too much. Asked after every batch
    /// of theirs: whoever sends more waits, and costs nobody else anything meanwhile.
    fn paused_until(&self, port: Self::Port) -> Option<Instant> {
        let _ = port;
        None
    }

    /// Called while something that the backend has asked to [watch](super::Server::watch) is readable. What is left when it
    /// returns is seen by the next round, so that a backend takes a bounded amount.
    fn handle_ready(&mut self, outbox: &mut Outbox<Self::Port>) {
        let _ = outbox;
    }

    /// Called once per wake-up, after all input was handled (timers, deferred work).
    ///
    /// Returns the time until the next call is wanted; input and a [`Waker`](super::Waker) bring it earlier.
    fn tick(&mut self, outbox: &mut Outbox<Self::Port>) -> Option<Duration>;
}

/// What GET_VENDOR of the ibsim protocol tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vendor {
    /// Maker, 24 bits.
    pub vendor_id: u32,
    /// Device.
    pub part_id: u32,
    /// Revision of the device.
    pub hardware_version: u32,
    /// Firmware.
    pub firmware_version: u64,
}

/// One attachment of one client.
///
/// It is the name in bits 63..48 of the transaction of each of its requests: 10 bits of slot and 6 bits that count
/// how often the slot was given away, so that what is late for a former owner does not reach the next one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub(super) u16);

impl ClientId {
    /// The number on the wire.
    pub const fn to_wire(self) -> u16 {
        self.0
    }

    /// The client that a transaction names.
    pub(super) const fn of_transaction(transaction: u64) -> Self {
        Self((transaction >> 48) as u16)
    }

    /// `transaction` with this client in it.
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

/// One datagram from a client, its transaction already carrying the client where it is a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientDatagram {
    /// From a client of the ibsim protocol: only LIDs and queue pairs are known. The backend forces the source and
    /// fills in the rest.
    Ibsim {
        /// Who sent it.
        client: ClientId,
        /// What it sent.
        message: DataMessage,
    },
    /// From a client of the own framing, as it claims to be: the backend judges the source.
    Framed {
        /// Who sent it.
        client: ClientId,
        /// What it sent.
        datagram: Datagram,
    },
}
