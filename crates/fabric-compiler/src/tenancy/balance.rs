//! Which hosts of a tree could have even ways: leaves and pods with enough left on all their up-ports.
//!
//! A cluster that is promised a rate spreads its destinations evenly over the up-ports. A leaf with `k` of its hosts sends
//! `k` times to every destination behind an up-port, so what the leaf has left there bounds how many destinations may be
//! behind it, for the whole cluster. The bounds of all leaves that were picked together must leave room for all
//! destinations. The same holds for pods. Hosts that are picked so nearly always find ways; the search for ways has the
//! last word.

use super::books::{Books, PairDemand};
use super::proposals::PodFree;
use super::refused::Changes;
use super::tree::Tree;

/// Leaves with numbers of hosts.
pub(super) type Picked = Vec<(usize, u32)>;

/// What leaves and pods have left for a wish. What has not changed is not looked up again.
#[derive(Debug, Default)]
pub(super) struct Survey {
    nodes: u32,
    rate: u64,
    leaves: Vec<Seen>,
    pods: Vec<Seen>,
}

/// What a leaf or pod has left: pairs that each link up, and the link down next to it, can carry.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// The number of the first change that it does not know; 0 before it was looked up.
    until: u64,
    pairs: Vec<u32>,
}

impl Survey {
    /// From now on it is about clusters of so many nodes at a rate.
    fn begin(&mut self, tree: &Tree, nodes: u32, rate: u64) {
        self.leaves.resize(tree.leaves, Seen::default());
        self.pods.resize(tree.pods, Seen::default());
        if (self.nodes, self.rate) != (nodes, rate) {
            (self.nodes, self.rate) = (nodes, rate);
            self.leaves.iter_mut().chain(&mut self.pods).for_each(|seen| seen.until = 0);
        }
    }
}

/// A pick in progress.
#[derive(Debug)]
pub(super) struct Balance<'a> {
    tree: &'a Tree,
    books: &'a Books,
    survey: &'a mut Survey,
    changes: &'a Changes,
    /// Free hosts of each leaf.
    free: &'a [u32],
    nodes: u32,
    /// What a pair needs of a link.
    pair: PairDemand,
    /// By up-port of leaves: destinations that may be behind it.
    near: Vec<u32>,
    /// By up-port of leaves and of pods' switches.
    far: Vec<u32>,
}

impl<'a> Balance<'a> {
    /// For a cluster of so many nodes at a rate, on free hosts of leaves.
    pub fn new(
        tree: &'a Tree,
        books: &'a Books,
        (survey, changes): (&'a mut Survey, &'a Changes),
        free: &'a [u32],
        (nodes, rate): (u32, u64),
    ) -> Self {
        survey.begin(tree, nodes, rate);
        let near = vec![u32::MAX; tree.leaf_ups];
        let pair = PairDemand::new(rate, nodes.into(), 1);
        Self { tree, books, survey, changes, free, nodes, pair, near, far: Vec::new() }
    }

    /// All hosts in one pod, from leaves in an order.
    pub fn in_pod(&mut self, leaves: &[usize]) -> Option<Picked> {
        self.near.fill(u32::MAX);
        let mut picked = Vec::new();
        (self.pick(leaves, self.nodes, &mut picked) == self.nodes).then_some(picked)
    }

    /// All hosts in pods in an order.
    pub fn in_pods(&mut self, pods: &[PodFree]) -> Option<Picked> {
        self.near.fill(u32::MAX);
        self.far.clear();
        self.far.resize(self.tree.leaf_ups * self.tree.pod_ups, u32::MAX);
        let (mut picked, mut rest) = (Vec::new(), self.nodes);
        for PodFree { pod, leaves, .. } in pods {
            if rest == 0 {
                break;
            }
            let (near, start) = (self.near.clone(), picked.len());
            let mut count = self.pick(leaves, rest, &mut picked);
            let most = self.pod_fit(*pod, count);
            if most < count {
                self.near = near;
                picked.truncate(start);
                count = self.pick(leaves, most, &mut picked);
            }
            if count > 0 {
                take(&mut self.far, &self.survey.pods[*pod].pairs, count, self.nodes);
            }
            rest -= count;
        }
        picked.sort_unstable();
        (rest == 0).then_some(picked)
    }

    /// Hosts of leaves in order, as many as there are and not more than `most`; how many.
    fn pick(&mut self, leaves: &[usize], most: u32, picked: &mut Picked) -> u32 {
        let mut rest = most;
        for leaf in leaves {
            if rest == 0 {
                break;
            }
            let count = self.leaf_fit(*leaf, rest.min(self.free[*leaf]));
            if count == 0 {
                continue;
            }
            take(&mut self.near, &self.survey.leaves[*leaf].pairs, count, self.nodes);
            picked.push((*leaf, count));
            rest -= count;
        }
        most - rest
    }

    /// How many hosts of a leaf leave room for all destinations.
    fn leaf_fit(&mut self, leaf: usize, most: u32) -> u32 {
        if most == 0 {
            return 0;
        }
        let Self { books, pair, .. } = self;
        let seen = &mut self.survey.leaves[leaf];
        if seen.until <= self.changes.of_leaf(leaf) {
            seen.until = self.changes.now() + 1;
            seen.pairs.clear();
            seen.pairs.extend(books.rooms().of_leaf(leaf).iter().map(|room| room.pairs_left(pair)));
        }
        fit(&self.near, &seen.pairs, self.nodes, most)
    }

    fn pod_fit(&mut self, pod: usize, most: u32) -> u32 {
        if most == 0 {
            return 0;
        }
        let Self { books, pair, .. } = self;
        let seen = &mut self.survey.pods[pod];
        if seen.until <= self.changes.of_pod(pod) {
            seen.until = self.changes.now() + 1;
            seen.pairs.clear();
            seen.pairs.extend(books.rooms().of_pod(pod).iter().map(|room| room.pairs_left(pair)));
        }
        fit(&self.far, &seen.pairs, self.nodes, most)
    }
}

/// So many hosts of a leaf or pod were picked.
fn take(bounds: &mut [u32], pairs: &[u32], hosts: u32, nodes: u32) {
    for (bound, pairs) in bounds.iter_mut().zip(pairs.chunks_exact(2)) {
        *bound = (*bound).min(bound_of(pairs[0], hosts, nodes));
    }
}

/// Destinations that may be behind an up-port from which a group of so many hosts can send to so many pairs: those outside,
/// and one of its own.
fn bound_of(pairs: u32, hosts: u32, nodes: u32) -> u32 {
    (pairs / hosts).min(nodes) + 1
}

/// The most hosts of a group, up to some, that leave room for all destinations of the cluster: behind the up-ports
/// together, and on the links down for its own.
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
