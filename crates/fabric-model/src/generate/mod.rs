//! Fabrics made by rule: fat-trees, tori and meshes, dragonflies, random graphs.
//!
//! The same arguments give the same fabric, down to GUIDs and names. Switches come first, then hosts; a host has one
//! port. LIDs are left to a subnet manager.

mod assembler;
mod dragonfly;
mod fat_tree;
mod link_removal;
mod random;
mod torus;

use thiserror::Error;

pub use dragonfly::DragonflyPlus;
pub use fat_tree::{FatTree, FatTreeSize, Oversubscription};
pub use link_removal::without_links;
pub use random::RandomFabric;
pub use torus::Torus;

use crate::builder::BuildError;

/// Ports of the switches that generated fabrics have unless told otherwise.
pub const DEFAULT_RADIX: u8 = 36;

/// A fabric that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GenerateError {
    /// A size that makes no fabric.
    #[error("{what} is {value}; possible is {allowed}")]
    OutOfRange {
        /// The argument.
        what: &'static str,
        /// What it was.
        value: u64,
        /// What would work.
        allowed: String,
    },
    /// A switch would need more ports than it has.
    #[error("a switch would need {needed} ports, but the radix is {radix}")]
    TooFewPorts {
        /// Ports for hosts and other switches.
        needed: u64,
        /// Ports there are.
        radix: u8,
    },
    /// More hosts than the largest tree of this kind holds.
    #[error(
        "{hosts} hosts do not fit: a fat-tree of {tiers} tiers and radix {radix} holds at most {capacity}"
    )]
    TooManyHosts {
        /// Hosts asked for.
        hosts: u32,
        /// Levels of the largest tree that was considered.
        tiers: u8,
        /// Ports of its switches.
        radix: u8,
        /// What it holds.
        capacity: u32,
    },
    /// Taking out that many links would cut the fabric in two.
    #[error("{asked} links cannot be taken out: only {possible} are not needed to keep every host reachable")]
    TooManyMissing {
        /// Links to take out.
        asked: usize,
        /// Links that can be spared.
        possible: usize,
    },
    /// The fabric is beyond what a topology may be.
    #[error(transparent)]
    Impossible(#[from] BuildError),
}

fn out_of_range(what: &'static str, value: impl Into<u64>, allowed: impl Into<String>) -> GenerateError {
    GenerateError::OutOfRange { what, value: value.into(), allowed: allowed.into() }
}

/// How many digits a number of things needs, so that their names sort and align.
fn digits(count: u32) -> usize {
    count.max(10).ilog10() as usize + 1
}

#[cfg(test)]
mod tests;
