//! Subnet administration: which records a port gets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod any_input;
mod captured;
mod changes;
mod paths;
mod records;
mod transfers;
mod visibility;
mod world;
