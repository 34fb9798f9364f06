//! Code that benchmarks and tests share: emulators and stock tools as processes, and checks of the tables that a subnet
//! manager left in a fabric.
//!
//! [`judge`] and [`bring_up`] are complete checks. Both start an emulator ([`process`]), let a subnet manager configure
//! it, read the tables of every node with a client of their own ([`probe`]), follow every route ([`walk`]), and compare
//! with stock tools ([`stock`]).

pub mod bring_up;
pub mod judge;
pub mod probe;
pub mod process;
mod programs;
pub mod scratch;
pub mod stock;
mod subnet_list;
pub mod walk;

pub use programs::Programs;
