//! Transports over real sockets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod framed;
mod guests;
mod hostile;
mod relay;
mod server;
mod stock_ibsim;
