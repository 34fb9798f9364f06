//! Which hosts of a tree could have even ways: leaves and pods with enough left on all their up-ports.
//!
//! A cluster that is promised a rate spreads its destinations evenly over the up-ports. A leaf with `k` of its hosts sends
//! `k` times to every destination behind an up-port, so what the leaf has left there bounds how many destinations may be
//! behind it, for the whole cluster. The bounds of all leaves that were picked together must leave room for all
//! destinations. The same holds for pods. Hosts that are picked so nearly always find ways; the search for ways has the
//! last word.

use super::ledger::Books;
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
    /// Bits per second of each host.
    rate: u64,
    /// Hosts of a leaf at most.
    leaf_most: u32,
    /// By up-port of leaves: destinations that may be behind it.
    near: Vec<u64>,
    /// By up-port of leaves and of pods' switches.
    far: Vec<u64>,
    /// What each link up of a leaf, and the link down next to it, have left.
    leaf_pairs: Vec<u64>,
    /// The same for a pod.
    pod_pairs: Vec<u64>,
}

impl<'a> Balance<'a> {
    pub fn new(tree: &'a Tree, books: &'a Books, free: &'a [u32], nodes: u32, rate: u64) -> Self {
        let near = vec![u64::MAX; tree.leaf_ups];
        Self {
            tree,
            books,
            free,
            nodes,
            rate,
            leaf_most: u32::MAX,
            near,
            far: Vec::new(),
            leaf_pairs: Vec::new(),
            pod_pairs: Vec::new(),
        }
    }

    /// The same with not more than so many hosts of a leaf: leaves whose hosts all belong to the cluster have nothing to
    /// spare on any up-port.
    pub fn with_leaf_most(mut self, leaf_most: u32) -> Self {
        self.leaf_most = leaf_most;
        self
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
                self.pod_take(count);
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
            let count = self.leaf_fit(*leaf, rest.min(self.free[*leaf]).min(self.leaf_most));
            if count == 0 {
                continue;
            }
            for (bound, pairs) in self.near.iter_mut().zip(self.leaf_pairs.chunks_exact(2)) {
                *bound = (*bound).min(bound_of(pairs[0], count, self.nodes));
            }
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
        self.leaf_pairs.clear();
        for up in 0..self.tree.leaf_ups {
            for link in [self.tree.leaf_up(leaf, up), self.tree.leaf_down(leaf, up)] {
                self.leaf_pairs.push(self.books.pairs_left(link, self.rate, u64::from(self.nodes) - 1, 0));
            }
        }
        fit(&self.near, &self.leaf_pairs, self.nodes, most)
    }

    fn pod_fit(&mut self, pod: usize, most: u32) -> u32 {
        if most == 0 {
            return 0;
        }
        self.pod_pairs.clear();
        for number in 0..self.far.len() {
            let (leaf_up, pod_up) = ((number / self.tree.pod_ups) as u8, (number % self.tree.pod_ups) as u8);
            let way = Way { leaf_up, pod_up };
            for link in [self.tree.pod_up(pod, way), self.tree.pod_down(pod, way)] {
                self.pod_pairs.push(self.books.pairs_left(link, self.rate, u64::from(self.nodes) - 1, 0));
            }
        }
        fit(&self.far, &self.pod_pairs, self.nodes, most)
    }

    fn pod_take(&mut self, count: u32) {
        for (bound, pairs) in self.far.iter_mut().zip(self.pod_pairs.chunks_exact(2)) {
            *bound = (*bound).min(bound_of(pairs[0], count, self.nodes));
        }
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
