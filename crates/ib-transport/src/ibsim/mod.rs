//! The ibsim protocol, byte for byte as stock libumad2sim clients and the stock ibsim server use it.

mod client;
mod name;
mod wire;

pub use client::{IbsimClient, IbsimClientError};
pub use name::{InvalidSocketName, SocketName};
pub(crate) use wire::{Addresses, encode_data};
pub use wire::{
    CONTROL_LEN, Connect, ControlReply, ControlRequest, DATA_LEN, DataMessage, DataStatus, WireError,
};
