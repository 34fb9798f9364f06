//! The emulated fabric, datagram by datagram and frame by frame.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod frames;
mod install;
mod keys;
mod oracle;
mod partitions;
mod planned;
mod ports;
mod recable;
mod routes;
mod scenario;
mod traffic;
mod traffic_any;
mod traffic_arbiter;
mod traffic_idle;
mod world;
