//! The controller through its REST interface, with agents and a subnet manager that are played.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agents;
mod connections;
mod disclosure;
mod force;
mod health;
mod many_hosts;
mod matrix;
mod migration;
mod network_check;
mod openapi;
mod shares;
mod site;
mod story;
mod tokens;
mod view_slots;
mod wishes;
