//! Candidates for a placement: lists of leaves with a number of hosts in each, the best first.

use std::cmp::Reverse;

use super::balance::LeafCounts;
use super::link_graph::HostIndex;

/// Pods that are tried for a cluster that fits into one, each with two candidates. What the links of three pods refuse is
/// seldom admitted in a fourth.
const PODS_TRIED_MAX: usize = 3;

/// The hosts of each leaf, and the leaves of each pod.
#[derive(Debug)]
pub(super) struct HostLayout {
    pub leaves: Vec<Vec<HostIndex>>,
    pub pods: Vec<Vec<usize>>,
}

/// A pod that has free hosts.
#[derive(Debug)]
pub(super) struct PodFree {
    pub pod: usize,
    pub free: u32,
    /// Leaves with free hosts, those with the most first.
    pub leaves: Vec<usize>,
}

impl HostLayout {
    /// The pods with free hosts, those with the most first.
    pub fn by_free(&self, free: &[u32]) -> Vec<PodFree> {
        let of_pod = |(pod, leaves): (usize, &Vec<usize>)| {
            let mut leaves: Vec<usize> = leaves.iter().copied().filter(|leaf| free[*leaf] > 0).collect();
            leaves.sort_by_key(|leaf| (Reverse(free[*leaf]), *leaf));
            PodFree { pod, free: leaves.iter().map(|leaf| free[*leaf]).sum(), leaves }
        };
        let mut pods: Vec<PodFree> = self.pods.iter().enumerate().map(of_pod).collect();
        pods.retain(|pod| pod.free > 0);
        pods.sort_by_key(|pod| (Reverse(pod.free), Reverse(pod.pod)));
        pods
    }
}

/// The candidates for a cluster of `nodes`.
pub(super) struct Candidates<'a> {
    free: &'a [u32],
    pods: &'a [Vec<usize>],
    nodes: u32,
    /// Pods that can hold all nodes, the fullest first.
    single: Vec<usize>,
    /// The free hosts of each pod.
    pod_free: Vec<u32>,
}

impl<'a> Candidates<'a> {
    pub fn new(free: &'a [u32], layout: &'a HostLayout, nodes: u32) -> Self {
        let pods = &layout.pods;
        let pod_free: Vec<u32> = pods.iter().map(|pod| pod.iter().map(|leaf| free[*leaf]).sum()).collect();
        let mut single: Vec<usize> = (0..pods.len()).filter(|pod| pod_free[*pod] >= nodes).collect();
        single.sort_by_key(|pod| (pod_free[*pod], *pod));
        single.truncate(PODS_TRIED_MAX);
        Self { free, pods, nodes, single, pod_free }
    }

    /// One leaf; then single pods, with as few leaves as possible; then single pods, with their fullest leaves.
    pub fn in_one_pod(&self) -> impl Iterator<Item = LeafCounts> + '_ {
        let few = self.single.iter().map(|pod| self.few_leaves(*pod, self.nodes));
        let full = self.single.iter().map(|pod| self.full_leaves(*pod, self.nodes));
        self.one_leaf().into_iter().chain(few).chain(full)
    }

    /// As few pods as possible; then the fullest pods.
    pub fn in_several_pods(&self) -> impl Iterator<Item = LeafCounts> + '_ {
        [true, false].into_iter().map(|emptiest_first| self.several_pods(emptiest_first))
    }

    /// The fullest leaf that can hold all nodes.
    fn one_leaf(&self) -> Option<LeafCounts> {
        let able = (0..self.free.len()).filter(|leaf| self.free[*leaf] >= self.nodes);
        let leaf = able.min_by_key(|leaf| self.free[*leaf])?;
        Some(vec![(leaf, self.nodes)])
    }

    fn few_leaves(&self, pod: usize, nodes: u32) -> LeafCounts {
        few_leaves(self.free, &self.pods[pod], nodes)
    }

    /// The fullest leaves of a pod, so that empty ones stay empty.
    fn full_leaves(&self, pod: usize, nodes: u32) -> LeafCounts {
        let mut leaves: Vec<usize> =
            self.pods[pod].iter().copied().filter(|leaf| self.free[*leaf] > 0).collect();
        leaves.sort_by_key(|leaf| (self.free[*leaf], *leaf));
        let (mut taken, mut rest) = (Vec::new(), nodes);
        for leaf in leaves {
            let count = self.free[leaf].min(rest);
            if count > 0 {
                taken.push((leaf, count));
            }
            rest -= count;
        }
        taken.sort_unstable();
        taken
    }

    fn several_pods(&self, emptiest_first: bool) -> LeafCounts {
        let mut pods: Vec<usize> = (0..self.pods.len()).filter(|pod| self.pod_free[*pod] > 0).collect();
        pods.sort_by_key(|pod| (self.pod_free[*pod], *pod));
        if emptiest_first {
            pods.reverse();
        }
        let (mut taken, mut rest) = (Vec::new(), self.nodes);
        for (position, pod) in pods.iter().enumerate() {
            if rest == 0 {
                break;
            }
            if self.pod_free[*pod] >= rest && emptiest_first {
                let able = pods[position..].iter().rev().find(|pod| self.pod_free[**pod] >= rest);
                taken.extend(self.few_leaves(*able.unwrap_or(pod), rest));
                rest = 0;
            } else {
                let count = self.pod_free[*pod].min(rest);
                taken.extend(self.few_leaves(*pod, count));
                rest -= count;
            }
        }
        taken.sort_unstable();
        taken
    }
}

/// As few of the leaves `among` as possible: those with the most free hosts first, and last the fullest one that can hold
/// the rest. Best fit decreasing, O(n log n) in the number of leaves.
pub(super) fn few_leaves(free: &[u32], among: &[usize], nodes: u32) -> LeafCounts {
    let mut leaves: Vec<usize> = among.iter().copied().filter(|leaf| free[*leaf] > 0).collect();
    leaves.sort_by_key(|leaf| (Reverse(free[*leaf]), *leaf));
    let (mut taken, mut rest) = (Vec::new(), nodes);
    for (position, leaf) in leaves.iter().enumerate() {
        if rest == 0 {
            break;
        }
        if free[*leaf] >= rest {
            let able = leaves[position..].iter().rev().find(|leaf| free[**leaf] >= rest);
            taken.push((*able.unwrap_or(leaf), rest));
            rest = 0;
        } else {
            taken.push((*leaf, free[*leaf]));
            rest -= free[*leaf];
        }
    }
    taken.sort_unstable();
    taken
}
