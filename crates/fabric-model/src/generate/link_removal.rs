//! Fabrics as they are: with some cables missing.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use super::GenerateError;
use crate::builder::TopologyBuilder;
use crate::topology::{Link, NodeIndex, Topology};

/// Takes out `count` random cables between switches, the same for the same seed. What was connected stays connected:
/// only cables outside a random spanning tree are taken.
pub fn without_links(topology: Topology, count: usize, seed: u64) -> Result<Topology, GenerateError> {
    let is_switch = |node: NodeIndex| topology[node].is_switch();
    let mut links: Vec<Link> =
        topology.links().filter(|link| is_switch(link.a.node) && is_switch(link.b.node)).collect();
    links.shuffle(&mut Pcg64::seed_from_u64(seed));

    let mut tree = Islands::of(topology.node_count());
    links.retain(|link| !tree.join(link.a.node.index(), link.b.node.index()));
    if count > links.len() {
        return Err(GenerateError::TooManyMissing { asked: count, possible: links.len() });
    }
    let mut builder = TopologyBuilder::from(topology);
    for link in &links[..count] {
        builder.disconnect(link.a)?;
    }
    Ok(builder.build()?)
}

/// Which nodes hang together, as a forest of parents.
#[derive(Debug)]
struct Islands {
    parents: Vec<usize>,
}

impl Islands {
    fn of(nodes: usize) -> Self {
        Self { parents: (0..nodes).collect() }
    }

    /// Joins the components of two nodes; `false` if they were one already.
    fn join(&mut self, a: usize, b: usize) -> bool {
        let (a, b) = (self.root(a), self.root(b));
        self.parents[a] = b;
        a != b
    }

    /// Halves the path on the way, which keeps it short.
    fn root(&mut self, mut node: usize) -> usize {
        while self.parents[node] != node {
            self.parents[node] = self.parents[self.parents[node]];
            node = self.parents[node];
        }
        node
    }
}
