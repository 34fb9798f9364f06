//! Views of tenants, used by stock tools and attacked.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attacks;
mod classes;
mod default_view;
mod flows;
mod functions;
mod handover;
mod memory;
mod non_interference;
mod overlays;
mod projection;
mod routing;
mod served;
mod stock_tools;
mod world;
