//! The protocol of ibsim, byte for byte: what stock libumad2sim clients and the stock ibsim server speak.

mod client;
mod name;
mod wire;

pub use client::{IbsimClient, IbsimClientError};
pub use name::{InvalidSocketName, SocketName};
pub(crate) use wire::{Addresses, encode_data};
pub use wire::{
    CONTROL_LEN, Connect, ControlReply, ControlRequest, DATA_LEN, DataMessage, DataStatus, WireError,
};
