//! Transports of management datagrams between a program and a fabric, real or emulated.
//!
//! There are three transports for one unit, the [`ib_wire::Datagram`]:
//!
//! | transport | client | server | headers it carries |
//! |---|---|---|---|
//! | the ibsim protocol ([`ibsim`]) | [`ibsim::IbsimClient`] | [`Server::bind`] | LIDs and queue pairs |
//! | the framed protocol over a unix stream ([`framed`]) | [`framed::FramedClient`] | [`Server::listen`] | all of them |
//! | the umad device of the kernel ([`umad`]) | [`umad::Umad`] | the kernel | all but the destination LID |
//!
//! [`Device`] opens a client of any of them from a specification in one line. [`Server`] serves the first two: one thread that
//! passes the datagrams of clients to a [`FabricBackend`] (an emulated fabric) and returns what the backend delivers.
//!
//! [`Relay`] is a backend whose only port belongs to a fabric elsewhere, reached through a framed stream.
//!
//! [`GuestSockets`] are datagram sockets through which virtual machines exchange Ethernet frames with an emulated fabric.
//!
//! # Transaction identifiers
//!
//! Only the low 32 bits of a [`TransactionId`] belong to the application. A server writes the client number into bits 63 to
//! 48 of every request, libumad2sim writes the agent into bits 47 to 32, and the kernel uses the whole upper half. Compare
//! [`application_transaction`] of request and response.

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
mod vendor;
mod waker;

use ib_wire::TransactionId;

pub use access::SocketAccess;
pub use client_role::ClientRole;
pub use device::{Device, DeviceError, DeviceSpec, DeviceSpecError, Received};
pub use guest_sockets::{FRAME_BYTES_MAX, FrameBuffer, GuestCounters, GuestError, GuestSockets};
pub use relay::{Relay, RelayPort};
pub use server::{
    BindError, CLIENTS_MAX, CLIENTS_PER_USER_MAX, ClientDatagram, ClientId, FORWARD_TIMEOUT, FORWARDED_MAX,
    FabricBackend, Outbox, Server, ServerCounters,
};
pub use socket_file::SocketBindError;
pub use sys::UserId;
pub use vendor::Vendor;
pub use waker::Waker;

/// The part of a transaction identifier that the application chooses and finds unchanged in the response: the low 32 bits.
pub const fn application_transaction(id: TransactionId) -> u32 {
    id.0 as u32
}

/// Compiles the example in README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
