//! Tests of the agent's modules and of the agent as a process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent;
mod apparmor;
mod capacity;
mod common;
mod domains;
mod durability;
mod fabric;
mod guest_link;
mod http_limits;
mod images;
mod users;
