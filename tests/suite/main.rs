//! Heddle as a whole: its programs as processes, and its parts together in one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod asked;
mod attacker;
mod cli;
mod clusters_come_and_go;
mod exec;
mod frames;
mod full_disk;
mod guided;
mod host_identity;
mod impostor;
mod in_process;
mod judged;
mod keys_and_partitions;
mod lanes;
mod leash;
mod manager_faults;
mod manager_watch;
mod path_levels;
mod recovery;
mod resident;
mod rig;
mod shapes;
mod silence;
mod sim_control;
#[path = "../../crates/controller/tests/suite/site/mod.rs"]
mod site;
mod socket_access;
mod stock_tools;
mod subnet_manager;
mod tidy;
mod traffic;
mod transition;
mod two_tenants;
mod weights;
