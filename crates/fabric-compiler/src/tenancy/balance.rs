//! Which hosts of a tree could have even ways: leaves and pods with enough left on all their up-ports.
//!
//! A cluster that is promised a rate spreads its destinations evenly over the up-ports. A leaf with `k` of its hosts sends
//! `k` times to every destination behind an up-port, so what the leaf has left there bounds how many destinations may be
//! behind it, for the whole cluster. The bounds of all leaves that were picked together must leave room for all
//! destinations. The same holds for pods. Hosts that are picked so nearly always find ways; the search for ways has the
//! last word.

use std::collections::HashMap;

use super::books::{Books, PairDemand};
use super::proposals::PodFree;
use super::tree::{Tree, Way};

/// Leaves with numbers of hosts.
pub(super) type Picked = Vec<(usize, u32)>;

/// A pick in progress.
#[derive(Debug)]
pub(super) struct Balance<'a> {
    tree: &'a Tree,
    books: &'a Books,
    /// Free hosts of each leaf.
    free: &'a [u32],
    nodes: u32,
    /// What a pair needs of a link.
    pair: PairDemand,
    /// By up-port of leaves: destinations that may be behind it.
    near: Vec<u64>,
    /// By up-port of leaves and of pods' switches.
    far: Vec<u64>,
    /// By leaf that was looked at: what each link up, and the link down next to it, have left.
    leaf_pairs: HashMap<usize, Vec<u64>>,
    /// The same for pods.
    pod_pairs: HashMap<usize, Vec<u64>>,
}

impl<'a> Balance<'a> {
    pub fn new(tree: &'a Tree, books: &'a Books, free: &'a [u32], nodes: u32, rate: u64) -> Self {
        let near = vec![u64::MAX; tree.leaf_ups];
        Self {
            tree,
            books,
            free,
            nodes,
            pair: PairDemand::new(rate, nodes.into(), 1, 0),
            near,
            far: Vec::new(),
            leaf_pairs: HashMap::new(),
            pod_pairs: HashMap::new(),
        }
    }

    /// All hosts in one pod, from leaves in an order.
    pub fn in_pod(&mut self, leaves: &[usize]) -> Option<Picked> {
        self.near.fill(u64::MAX);
        let mut picked = Vec::new();
        (self.pick(leaves, self.nodes, &mut picked) == self.nodes).then_some(picked)
    }

    /// All hosts in pods in an order.
    pub fn in_pods(&mut self, pods: &[PodFree]) -> Option<Picked> {
        self.near.fill(u64::MAX);
        self.far.clear();
        self.far.resize(self.tree.leaf_ups * self.tree.pod_ups, u64::MAX);
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
                take(&mut self.far, &self.pod_pairs[pod], count, self.nodes);
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
            take(&mut self.near, &self.leaf_pairs[leaf], count, self.nodes);
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
        let Self { tree, books, pair, .. } = self;
        let pairs = self.leaf_pairs.entry(leaf).or_insert_with(|| {
            let links = (0..tree.leaf_ups).flat_map(|up| [tree.leaf_up(leaf, up), tree.leaf_down(leaf, up)]);
            links.map(|link| books.times_left(link, pair)).collect()
        });
        fit(&self.near, pairs, self.nodes, most)
    }

    fn pod_fit(&mut self, pod: usize, most: u32) -> u32 {
        if most == 0 {
            return 0;
        }
        let Self { tree, books, pair, .. } = self;
        let pairs = self.pod_pairs.entry(pod).or_insert_with(|| {
            let ways = (0..tree.leaf_ups as u8)
                .flat_map(|leaf_up| (0..tree.pod_ups as u8).map(move |pod_up| Way { leaf_up, pod_up }));
            let links = ways.flat_map(|way| [tree.pod_up(pod, way), tree.pod_down(pod, way)]);
            links.map(|link| books.times_left(link, pair)).collect()
        });
        fit(&self.far, pairs, self.nodes, most)
    }
}

/// So many hosts of a leaf or pod were picked.
fn take(bounds: &mut [u64], pairs: &[u64], hosts: u32, nodes: u32) {
    for (bound, pairs) in bounds.iter_mut().zip(pairs.chunks_exact(2)) {
        *bound = (*bound).min(bound_of(pairs[0], hosts, nodes));
    }
}

/// Destinations that may be behind an up-port from which a group of so many hosts can send to so many pairs: those outside,
/// and one of its own.
fn bound_of(pairs: u64, hosts: u32, nodes: u32) -> u64 {
    (pairs / u64::from(hosts)).min(nodes.into()) + 1
}

/// The most hosts of a group, up to some, that leave room for all destinations of the cluster: behind the up-ports
/// together, and on the links down for its own.
fn fit(bounds: &[u64], pairs: &[u64], nodes: u32, most: u32) -> u32 {
    let outside = u64::from(nodes - most.min(nodes));
    let down: u64 = pairs.chunks_exact(2).map(|pairs| (pairs[1] / outside.max(1)).min(most.into())).sum();
    let most = most.min(u32::try_from(down).unwrap_or(u32::MAX));
    let has_room = |hosts: u32| {
        let (mut all, mut outside) = (0, 0);
        for (bound, pairs) in bounds.iter().zip(pairs.chunks_exact(2)) {
            all += (*bound).min(bound_of(pairs[0], hosts, nodes));
            outside += (pairs[0] / u64::from(hosts)).min(nodes.into());
        }
        all >= u64::from(nodes) && outside >= u64::from(nodes - hosts)
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
