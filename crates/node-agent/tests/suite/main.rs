//! The agent's parts, and the agent as a process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent;
mod apparmor;
mod common;
mod domains;
mod durability;
mod fabric;
mod guests;
mod images;
mod limits;
mod machine;
mod users;
