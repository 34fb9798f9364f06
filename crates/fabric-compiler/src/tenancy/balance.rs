//! Picks hosts of a regular tree whose up-links leave room for an even spread of destinations.
//!
//! A cluster with a rate spreads its destinations evenly over the up-ports. A leaf with `k` hosts of the cluster sends `k`
//! times to every destination behind an up-port, so what the leaf has left there bounds how many destinations of the whole
//! cluster may be behind that port. The bounds of all picked leaves together must leave room for all destinations; the same
//! holds for pods. That is a necessary condition, checked in O(up-ports) per leaf: path selection nearly always finds paths
//! for hosts picked so, but has the last word.

use super::candidates::PodFree;
use super::negative_cache::LastChanges;
use super::reservations::{PairDemand, Reservations};
use super::tree::RegularTree;

/// Leaves, each with a number of hosts.
pub(super) type LeafCounts = Vec<(usize, u32)>;

/// Pairs that the links of leaves and pods can still carry, cached until a leaf or pod changes.
#[derive(Debug, Default)]
pub(super) struct ResidualCache {
    nodes: u32,
    rate: u64,
    leaves: Vec<CachedPairs>,
    pods: Vec<CachedPairs>,
}

/// The pairs that each link up of a leaf or pod, and the link down of the same up-port, can carry.
#[derive(Clone, Debug, Default)]
struct CachedPairs {
    /// The time of the first change that is not included; 0 if nothing is cached.
    until: u64,
    pairs: Vec<u32>,
}

impl ResidualCache {
    /// Starts with clusters of `nodes` at a rate: forgets everything if the last ones were others.
    fn begin(&mut self, tree: &RegularTree, nodes: u32, rate: u64) {
        self.leaves.resize(tree.leaves, CachedPairs::default());
        self.pods.resize(tree.pods, CachedPairs::default());
        if (self.nodes, self.rate) != (nodes, rate) {
            (self.nodes, self.rate) = (nodes, rate);
            self.leaves.iter_mut().chain(&mut self.pods).for_each(|cached| cached.until = 0);
        }
    }
}

/// A pick in progress.
#[derive(Debug)]
pub(super) struct Balance<'a> {
    tree: &'a RegularTree,
    reservations: &'a Reservations,
    cache: &'a mut ResidualCache,
    changes: &'a LastChanges,
    /// Free hosts of each leaf.
    free: &'a [u32],
    nodes: u32,
    /// The demand of one pair.
    pair: PairDemand,
    /// By up-port of leaves: the most destinations behind it.
    leaf_bounds: Vec<u32>,
    /// By up-port of leaves and up-port of the switch there.
    pod_bounds: Vec<u32>,
}

impl<'a> Balance<'a> {
    /// For a cluster of `nodes` at `rate`; `free` are the free hosts of each leaf.
    pub fn new(
        tree: &'a RegularTree,
        reservations: &'a Reservations,
        (cache, changes): (&'a mut ResidualCache, &'a LastChanges),
        free: &'a [u32],
        (nodes, rate): (u32, u64),
    ) -> Self {
        cache.begin(tree, nodes, rate);
        let leaf_bounds = vec![u32::MAX; tree.leaf_ups];
        let pair = PairDemand::new(rate, nodes.into(), 1);
        Self { tree, reservations, cache, changes, free, nodes, pair, leaf_bounds, pod_bounds: Vec::new() }
    }

    /// Picks all hosts from the leaves of one pod, in the given order.
    pub fn in_pod(&mut self, leaves: &[usize]) -> Option<LeafCounts> {
        self.leaf_bounds.fill(u32::MAX);
        let mut picked = Vec::new();
        (self.pick(leaves, self.nodes, &mut picked) == self.nodes).then_some(picked)
    }

    /// Picks all hosts from several pods, in the given order.
    pub fn in_pods(&mut self, pods: &[PodFree]) -> Option<LeafCounts> {
        self.leaf_bounds.fill(u32::MAX);
        self.pod_bounds.clear();
        self.pod_bounds.resize(self.tree.leaf_ups * self.tree.pod_ups, u32::MAX);
        let (mut picked, mut rest) = (Vec::new(), self.nodes);
        for PodFree { pod, leaves, .. } in pods {
            if rest == 0 {
                break;
            }
            let (leaf_bounds, start) = (self.leaf_bounds.clone(), picked.len());
            let mut count = self.pick(leaves, rest, &mut picked);
            let most = self.pod_fit(*pod, count);
            if most < count {
                self.leaf_bounds = leaf_bounds;
                picked.truncate(start);
                count = self.pick(leaves, most, &mut picked);
            }
            if count > 0 {
                take(&mut self.pod_bounds, &self.cache.pods[*pod].pairs, count, self.nodes);
            }
            rest -= count;
        }
        picked.sort_unstable();
        (rest == 0).then_some(picked)
    }

    /// Picks at most `most` hosts from leaves in the given order; returns how many.
    fn pick(&mut self, leaves: &[usize], most: u32, picked: &mut LeafCounts) -> u32 {
        let mut rest = most;
        for leaf in leaves {
            if rest == 0 {
                break;
            }
            let count = self.leaf_fit(*leaf, rest.min(self.free[*leaf]));
            if count == 0 {
                continue;
            }
            take(&mut self.leaf_bounds, &self.cache.leaves[*leaf].pairs, count, self.nodes);
            picked.push((*leaf, count));
            rest -= count;
        }
        most - rest
    }

    /// The most hosts of a leaf, up to `most`, that leave room for all destinations.
    fn leaf_fit(&mut self, leaf: usize, most: u32) -> u32 {
        if most == 0 {
            return 0;
        }
        let Self { reservations, pair, .. } = self;
        let cached = &mut self.cache.leaves[leaf];
        if cached.until <= self.changes.of_leaf(leaf) {
            cached.until = self.changes.now() + 1;
            cached.pairs.clear();
            cached.pairs.extend(
                reservations.residuals().of_leaf(leaf).iter().map(|residual| residual.pairs_left(pair)),
            );
        }
        fit(&self.leaf_bounds, &cached.pairs, self.nodes, most)
    }

    fn pod_fit(&mut self, pod: usize, most: u32) -> u32 {
        if most == 0 {
            return 0;
        }
        let Self { reservations, pair, .. } = self;
        let cached = &mut self.cache.pods[pod];
        if cached.until <= self.changes.of_pod(pod) {
            cached.until = self.changes.now() + 1;
            cached.pairs.clear();
            cached.pairs.extend(
                reservations.residuals().of_pod(pod).iter().map(|residual| residual.pairs_left(pair)),
            );
        }
        fit(&self.pod_bounds, &cached.pairs, self.nodes, most)
    }
}

/// Lowers the bounds for `hosts` picked from a leaf or pod.
fn take(bounds: &mut [u32], pairs: &[u32], hosts: u32, nodes: u32) {
    for (bound, pairs) in bounds.iter_mut().zip(pairs.chunks_exact(2)) {
        *bound = (*bound).min(bound_of(pairs[0], hosts, nodes));
    }
}

/// The most destinations behind an up-port of a group of `hosts` whose link up can carry `pairs`: those outside the group,
/// and one inside.
fn bound_of(pairs: u32, hosts: u32, nodes: u32) -> u32 {
    (pairs / hosts).min(nodes) + 1
}

/// The most hosts of a group, up to `most`, that leave room for all destinations of the cluster: behind all up-ports
/// together, and on the links down for those inside. Binary search.
fn fit(bounds: &[u32], pairs: &[u32], nodes: u32, most: u32) -> u32 {
    let outside = (nodes - most.min(nodes)).max(1);
    let down: u32 = pairs.chunks_exact(2).map(|pairs| (pairs[1] / outside).min(most)).sum();
    let most = most.min(down);
    let has_room = |hosts: u32| {
        let (mut all, mut outside) = (0, 0);
        for (bound, pairs) in bounds.iter().zip(pairs.chunks_exact(2)) {
            let here = (pairs[0] / hosts).min(nodes);
            all += (*bound).min(here + 1);
            outside += here;
        }
        all >= nodes && outside >= nodes - hosts
    };
    if most == 0 || has_room(most) {
        return most;
    }
    let (mut fits, mut fails) = (0, most);
    while fits + 1 < fails {
        let hosts = (fits + fails) / 2;
        if has_room(hosts) { fits = hosts } else { fails = hosts }
    }
    fits
}
