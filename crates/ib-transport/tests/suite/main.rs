//! Tests of the transports over real sockets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod framed;
mod guest_sockets;
mod hostile_clients;
mod ibsim;
mod relay;
mod stock_ibsim;
