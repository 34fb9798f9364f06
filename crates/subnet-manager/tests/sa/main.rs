//! Subnet administration: which records a port gets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod aliases;
mod any_input;
mod captured;
mod changes;
mod handed_over;
mod joins;
mod paths;
mod records;
mod subscriptions;
mod transfers;
mod visibility;
mod world;
