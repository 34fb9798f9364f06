//! Tests of the emulated fabric and of the traffic simulation.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
mod frames;
mod install;
mod keys;
mod link_model;
mod oracle;
mod packets;
mod partitions;
mod planned;
mod ports;
mod profiles;
mod recable;
mod routes;
mod scenario;
mod scenario_file;
mod switch_models;
mod traffic;
mod traffic_any;
mod traffic_arbiter;
mod traffic_idle;
mod world;
