//! The agent's parts, and the agent as a process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent;
mod common;
mod domains;
mod fabric;
mod guests;
mod images;
mod machine;
