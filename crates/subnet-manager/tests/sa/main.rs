//! What ports are told about the subnet, and what they are not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod any_input;
mod captured;
mod changes;
mod paths;
mod records;
mod transfers;
mod visibility;
mod world;
