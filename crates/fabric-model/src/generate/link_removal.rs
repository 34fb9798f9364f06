//! Removal of random cables, as in real fabrics where some are missing.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use super::GenerateError;
use crate::builder::TopologyBuilder;
use crate::topology::{Link, NodeIndex, Topology};

/// Removes `count` random cables between switches, the same ones for the same seed. Connected nodes stay connected: only
/// cables outside a random spanning tree are removed (Kruskal's algorithm over the shuffled cables).
pub fn without_links(topology: Topology, count: usize, seed: u64) -> Result<Topology, GenerateError> {
    let is_switch = |node: NodeIndex| topology[node].is_switch();
    let mut links: Vec<Link> =
        topology.links().filter(|link| is_switch(link.a.node) && is_switch(link.b.node)).collect();
    links.shuffle(&mut Pcg64::seed_from_u64(seed));

    let mut tree = DisjointSets::of(topology.node_count());
    links.retain(|link| !tree.join(link.a.node.index(), link.b.node.index()));
    if count > links.len() {
        return Err(GenerateError::TooManyMissing { requested: count, removable: links.len() });
    }
    let mut builder = TopologyBuilder::from(topology);
    for link in &links[..count] {
        builder.disconnect(link.a)?;
    }
    Ok(builder.build()?)
}

/// Disjoint sets of connected nodes: a union-find forest.
#[derive(Debug)]
struct DisjointSets {
    parents: Vec<usize>,
}

impl DisjointSets {
    fn of(nodes: usize) -> Self {
        Self { parents: (0..nodes).collect() }
    }

    /// Merges the sets of two nodes; `false` if they were in the same set.
    fn join(&mut self, a: usize, b: usize) -> bool {
        let (a, b) = (self.root(a), self.root(b));
        self.parents[a] = b;
        a != b
    }

    /// The representative of a node's set. Halves the path while it walks it, which keeps the forest flat.
    fn root(&mut self, mut node: usize) -> usize {
        while self.parents[node] != node {
            self.parents[node] = self.parents[self.parents[node]];
            node = self.parents[node];
        }
        node
    }
}
