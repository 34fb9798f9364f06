//! What tests of the manager share that run in one process, without sockets and without a clock.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "every test binary uses its own part")]

pub mod fleet;
pub mod managers;
pub mod pairs;
pub mod recorded;
pub mod running_manager;
pub mod served;
pub mod tables;
pub mod world;
