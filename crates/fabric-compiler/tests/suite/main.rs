//! What the compiler promises, over many fabrics and clusters.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adoption;
mod arrangement;
mod balance;
mod channels;
mod classes;
mod clusters;
mod detours;
mod found;
mod multicast;
mod partitions;
mod planner;
mod promises;
mod recompile;
mod routes;
mod stability;
mod tenancy;
mod tenancy_exact;
mod travel;
mod world;
