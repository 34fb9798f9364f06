//! What the verifier reports, and that it reports nothing where nothing is wrong.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod aliases;
mod clean;
mod delta;
mod guarantees;
mod handed_over;
mod link_rates;
mod mutants;
mod path_service_levels;
mod rules;
mod world;
