//! The residual capacity of the links between the switches of a regular tree, laid out for path selection.
//!
//! Path selection reads all links of a leaf, or all of a pod, at once. In [`LinkGraph`] these lie apart, each with the
//! switch it leaves; here they lie next to each other, the link up and the link down of each up-port in turn.

use ib_wire::ServiceLevelSet;

use super::link_graph::{LinkGraph, LinkIndex};
use super::reservations::PairDemand;
use super::tree::UpPorts;

/// The residual capacity of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Residual {
    /// One more than the bits per second that one cluster can reserve; 0 if no lane is free.
    pub below: u64,
    /// The service levels that have an owner.
    pub sls_taken: ServiceLevelSet,
    /// The number of lanes that have an owner.
    pub lanes_taken: u8,
}

impl Residual {
    /// How many times the link can carry the pairs of `demand`.
    #[inline]
    pub fn times_left(&self, demand: &PairDemand) -> u64 {
        // A share is rounded down to whole bits per second, so anything below one bit more fits.
        if self.below == 0 { 0 } else { demand.times(self.below) }
    }

    /// How many pairs the link can carry, at most `u32::MAX`.
    #[inline]
    pub fn pairs_left(&self, pair: &PairDemand) -> u32 {
        u32::try_from(self.times_left(pair)).unwrap_or(u32::MAX)
    }
}

/// The residual capacity of all links between switches; empty where the switches form no regular tree.
#[derive(Clone, Debug, Default)]
pub(super) struct Residuals {
    /// By link: its position in `residuals`; `None` for links of hosts.
    positions: Vec<Option<u32>>,
    residuals: Vec<Residual>,
    /// The number of links of a leaf.
    of_leaf: usize,
    /// The number of links of a pod.
    of_pod: usize,
    /// The position of the first pod's links.
    pods: usize,
}

impl Residuals {
    /// Starts with nothing left on any link.
    pub fn new(graph: &LinkGraph) -> Self {
        let Some(tree) = graph.tree() else { return Self::default() };
        let mut links: Vec<LinkIndex> = (0..tree.leaves)
            .flat_map(|leaf| (0..tree.leaf_ups).map(move |up| (leaf, up)))
            .flat_map(|(leaf, up)| [tree.leaf_up(leaf, up), tree.leaf_down(leaf, up)])
            .collect();
        let pods = links.len();
        let spans_pods = tree.pods > 1;
        for pod in 0..if spans_pods { tree.pods } else { 0 } {
            for leaf_up in 0..tree.leaf_ups as u8 {
                let up_ports = (0..tree.pod_ups as u8).map(|pod_up| UpPorts { leaf_up, pod_up });
                links.extend(up_ports.flat_map(|ports| [tree.pod_up(pod, ports), tree.pod_down(pod, ports)]));
            }
        }
        let mut positions = vec![None; graph.links().len()];
        for (position, link) in (0..).zip(&links) {
            positions[link.index()] = Some(position);
        }
        let residuals = vec![Residual::default(); links.len()];
        let of_pod = if spans_pods { 2 * tree.leaf_ups * tree.pod_ups } else { 0 };
        Self { positions, residuals, of_leaf: 2 * tree.leaf_ups, of_pod, pods }
    }

    /// Updates a link, if it is between switches.
    #[inline]
    pub fn set(&mut self, link: LinkIndex, residual: impl FnOnce() -> Residual) {
        if let Some(position) = self.positions.get(link.index()).copied().flatten() {
            self.residuals[position as usize] = residual();
        }
    }

    /// The links of a leaf: for each of its up-ports the link up, then the link down.
    #[inline]
    pub fn of_leaf(&self, leaf: usize) -> &[Residual] {
        &self.residuals[leaf * self.of_leaf..][..self.of_leaf]
    }

    /// The links of a pod: for each up-port of its leaves and each up-port of the switch there, the link up, then the link
    /// down.
    #[inline]
    pub fn of_pod(&self, pod: usize) -> &[Residual] {
        &self.residuals[self.pods + pod * self.of_pod..][..self.of_pod]
    }
}
