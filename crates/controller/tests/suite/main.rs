//! Tests of the controller through its REST interface, with fake agents and a fake subnet manager.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access_matrix;
mod agents;
mod closed_ports;
mod clusters;
mod connections;
mod disclosure;
mod force_delete;
mod health;
mod link_rates;
mod many_hosts;
mod migration;
mod network_check;
mod openapi;
mod overlays;
mod site;
mod site_partitions;
mod tenant_isolation;
mod tokens;
mod view_slots;
