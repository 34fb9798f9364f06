//! Heddle as a whole: its programs as processes, and its parts together in one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod arbitration_changes;
mod attacker;
mod cli;
mod clusters_come_and_go;
mod conformance;
mod die_with_parent;
mod exec;
mod external_plans;
mod fail_closed;
mod frames;
mod full_disk;
mod group_trees;
mod host_identity;
mod hung_processes;
mod impostor;
mod in_process;
mod keys_and_partitions;
mod lacking_capabilities;
mod lanes;
mod late_ports;
mod link_health;
mod management_flood;
mod manager_faults;
mod manager_sweeps;
mod osmtest;
mod path_service_levels;
mod preload;
mod real_devices;
mod recovery;
mod registrations;
mod rig;
mod sa_queries;
mod saquery_sets;
mod shapes;
mod sim_control;
#[path = "../../crates/controller/tests/suite/site/mod.rs"]
mod site;
mod sm_daemon;
mod socket_access;
mod stock_tools;
mod subnet_manager;
mod tidy;
mod traffic;
mod transition;
mod two_tenants;
