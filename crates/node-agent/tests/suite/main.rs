//! The agent's parts, and the agent as a process.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod agent;
mod common;
mod domains;
mod fabric;
mod guests;
mod images;
mod machine;
