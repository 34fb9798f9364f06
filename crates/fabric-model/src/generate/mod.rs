//! Generators of topologies: fat-trees, tori and meshes, Dragonfly+, random graphs.
//!
//! Each generator is a struct with public parameters and a `generate` method. The same parameters give the same topology,
//! including GUIDs and names. Switches come first, then hosts; a host has one adapter with one port. No LIDs are set.

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

/// Default number of ports of a generated switch.
pub const DEFAULT_RADIX: u8 = 36;

/// The parameters of a generator do not describe a valid fabric.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GenerateError {
    #[error("{what} must be {allowed}, got {value}")]
    OutOfRange { what: &'static str, value: u64, allowed: String },
    #[error("a switch needs {needed} ports for hosts and other switches, but the radix is {radix}")]
    TooFewPorts { needed: u64, radix: u8 },
    #[error(
        "{hosts} hosts do not fit: a fat-tree of {tiers} tiers and radix {radix} holds at most {capacity}"
    )]
    TooManyHosts {
        hosts: u32,
        /// Tiers of the largest tree that was considered.
        tiers: u8,
        radix: u8,
        /// Hosts of the largest tree with these tiers.
        capacity: u32,
    },
    /// Removing that many links would disconnect the fabric.
    #[error("cannot remove {requested} links: all but {removable} are needed to keep the fabric connected")]
    TooManyMissing { requested: usize, removable: usize },
    /// The fabric exceeds the limits of a topology.
    #[error(transparent)]
    Impossible(#[from] BuildError),
}

fn out_of_range(what: &'static str, value: impl Into<u64>, allowed: impl Into<String>) -> GenerateError {
    GenerateError::OutOfRange { what, value: value.into(), allowed: allowed.into() }
}

/// Number of digits for names that are numbered up to `count`, at least 2, so that they sort and align.
fn digits(count: u32) -> usize {
    count.max(10).ilog10() as usize + 1
}

#[cfg(test)]
mod tests;
