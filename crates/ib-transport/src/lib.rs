//! How management datagrams travel between a program and a fabric.
//!
//! Three transports, one unit ([`ib_wire::Datagram`]):
//!
//! | transport | client | server | headers it carries |
//! |---|---|---|---|
//! | the ibsim protocol ([`ibsim`]) | [`ibsim::IbsimClient`] | [`Server::bind`] | LIDs and queue pairs |
//! | own framing over a unix stream ([`framed`]) | [`framed::FramedClient`] | [`Server::listen`] | all of them |
//! | the kernel's umad device ([`umad`]) | [`umad::Umad`] | the kernel | all but the destination LID |
//!
//! [`Device`] opens any of them from one line of text. [`Server`] is the other end of the first two: a single
//! thread that feeds a [`FabricBackend`] (an emulated fabric) with what clients send and brings back what the host delivers.
//!
//! [`Relay`] puts a port that is elsewhere behind such a server.
//!
//! [`GuestSockets`] are the sockets by which virtual machines send whole Ethernet frames to an emulated fabric.
//!
//! # Transaction identifiers
//!
//! Only the low 32 bits of a [`TransactionId`] are the application's. The server writes the
//! client into bits 63..48 of every request, libumad2sim writes its agent into bits 47..32, and the kernel owns the
//! whole upper half. Compare [`application_transaction`] of request and answer.

mod access;
mod client_role;
mod device;
pub mod framed;
mod guest_sockets;
pub mod ibsim;
mod relay;
mod server;
mod socket_file;
mod sys;
pub mod umad;
mod waker;

use ib_wire::TransactionId;

pub use access::{SocketAccess, UserId};
pub use client_role::ClientRole;
pub use device::{Device, DeviceError, DeviceSpec, DeviceSpecError, Received};
pub use guest_sockets::{FRAME_BYTES_MAX, FrameBuffer, GuestCounters, GuestError, GuestSockets};
pub use relay::{Relay, RelayPort};
pub use server::{
    BindError, CLIENTS_MAX, CLIENTS_PER_USER_MAX, ClientDatagram, ClientId, FORWARD_TIMEOUT, FORWARDED_MAX,
    FabricBackend, Outbox, Server, ServerCounters, Vendor,
};
pub use socket_file::SocketBindError;
pub use waker::Waker;

/// The part of a transaction identifier that an application chooses and gets back: the low 32 bits.
pub const fn application_transaction(id: TransactionId) -> u32 {
    id.0 as u32
}
