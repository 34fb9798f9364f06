//! Benchmarks as processes, small enough to run in seconds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod guarantees;
mod view;
