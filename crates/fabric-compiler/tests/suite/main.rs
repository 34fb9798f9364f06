//! Properties of the compiler over many fabrics and clusters.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adoption;
mod aliases;
mod arbitration_orders;
mod arrangement;
mod balance;
mod channels;
mod classes;
mod clusters;
mod found;
mod guarantees;
mod handed_over;
mod lacks;
mod multicast;
mod partitions;
mod planner;
mod recompile;
mod route_overrides;
mod routes;
mod serialization;
mod stability;
mod switch_models;
mod tenancy;
mod tenancy_exact;
mod world;
