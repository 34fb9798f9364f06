//! Stock tools through the preload library. Needs ibsim, opensm and infiniband-diags (see `scripts/setup.sh`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod processes;
mod stock_ibsim;
