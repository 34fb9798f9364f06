//! How management datagrams travel between a program and a fabric.
//!
//! Three transports, one unit ([`ib_wire::Datagram`]):
//!
//! | transport | client | server | headers it carries |
//! |---|---|---|---|
//! | the ibsim protocol ([`ibsim`]) | [`ibsim::Client`] | [`Server::bind`] | LIDs and queue pairs |
//! | own framing over a unix stream ([`framed`]) | [`framed::Client`] | [`Server::listen`] | all of them |
//! | the kernel's umad device ([`umad`]) | [`umad::Umad`] | the kernel | all but the destination LID |
//!
//! [`Device`] opens any of them from one line of text. [`Server`] is the other end of the first two: a single
//! thread that feeds a [`Host`] (an emulated fabric) with what clients send and brings back what the host delivers.
//!
//! [`Relay`] puts a port that is elsewhere behind such a server.
//!
//! [`Guests`] are the sockets by which virtual machines send whole Ethernet frames to an emulated fabric.
//!
//! # Transaction identifiers
//!
//! Only the low 32 bits of a [`TransactionId`] are the application's. The server writes the
//! client into bits 63..48 of every request, libumad2sim writes its agent into bits 47..32, and the kernel owns the
//! whole upper half. Compare [`application_transaction`] of request and answer.

mod access;
mod counters;
mod device;
pub mod framed;
mod guests;
pub mod ibsim;
mod place;
mod relay;
mod role;
mod server;
mod sys;
pub mod umad;
mod waker;

use ib_wire::TransactionId;

pub use access::{Access, UserId};
pub use counters::Counters;
pub use device::{Device, DeviceError, DeviceSpec, Received, SpecError};
pub use guests::{FRAME_BYTES_MAX, FrameBuffer, GuestCounters, GuestError, Guests};
pub use place::ListenError;
pub use relay::{Relay, RelayPort};
pub use role::Role;
pub use server::{
    BindError, CLIENTS_MAX, CLIENTS_PER_USER_MAX, ClientId, FORWARD_TIMEOUT, FORWARDED_MAX, Host, Outbox,
    Sent, Server, Vendor,
};
pub use waker::Waker;

/// The part of a transaction identifier that an application chooses and gets back: the low 32 bits.
pub const fn application_transaction(id: TransactionId) -> u32 {
    id.0 as u32
}
