//! The framed protocol: datagrams with all their headers over a unix stream socket.

mod client;
mod frame;
mod streams;

pub use client::{FramedClient, FramedConnectError, FramedReceived};
pub use frame::{
    Attach, Attached, FRAME_MAX, Frame, FrameError, FrameReader, NODE_ID_MAX, PortDetails, RefusalCode,
};
pub use streams::{FramedStreams, StreamEvent};
