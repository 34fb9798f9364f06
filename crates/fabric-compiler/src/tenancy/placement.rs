//! Where clusters go: compact, so that they need few links, and leaving whole leaves and pods to those that need them.
//!
//! A request goes to one leaf if it fits there, else to one pod, else to several; each time to the fullest that can take
//! it. Every place is proposed to the [`Ledger`], which knows lanes, service levels and rates; the first that it admits
//! is taken. What runs is never moved.

use std::cmp::Reverse;
use std::sync::Arc;

use fabric_model::tenancy::{Bandwidth, ClusterNumber, SlMode};
use thiserror::Error;

use super::ledger::{Grant, Ledger, Refusal, Request, Routes};
use super::network::HostIndex;

/// Pods that are proposed for a cluster that fits into one, each in two ways; the search ends there because what does
/// not fit into any of them seldom fits into the next.
const PODS_TRIED_MAX: usize = 3;

/// Hosts of all places together that are tried for a cluster: bounds how long a decision takes.
const HOSTS_TRIED_MAX: usize = 2048;

/// Places that are tried for the largest clusters.
const TRIES_MIN: usize = 2;

/// Leaves that are left out one after the other because no way to their hosts has enough left.
const LEAVES_LEFT_OUT_MAX: usize = 4;

/// What a host has for clusters, or a node needs of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Processor cores.
    pub cores: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Virtual functions of the adapter.
    pub functions: u16,
}

impl Capacity {
    /// Nothing.
    pub const NONE: Self = Self { cores: 0, memory_mib: 0, functions: 0 };

    /// More than anyone needs.
    pub const UNLIMITED: Self = Self { cores: u32::MAX, memory_mib: u64::MAX, functions: u16::MAX };

    /// What is left of it for others.
    #[must_use]
    pub fn without(self, needs: Self) -> Self {
        Self {
            cores: self.cores.saturating_sub(needs.cores),
            memory_mib: self.memory_mib.saturating_sub(needs.memory_mib),
            functions: self.functions.saturating_sub(needs.functions),
        }
    }

    /// How often it holds what is needed.
    pub fn times(self, needs: Self) -> usize {
        let cores = self.cores.checked_div(needs.cores).map_or(usize::MAX, |times| times as usize);
        let memory = self.memory_mib.checked_div(needs.memory_mib).map_or(usize::MAX, |times| times as usize);
        let functions = self.functions.checked_div(needs.functions).map_or(usize::MAX, usize::from);
        cores.min(memory).min(functions)
    }

    /// Whether it holds what is needed.
    pub fn holds(self, needs: Self) -> bool {
        self.cores >= needs.cores && self.memory_mib >= needs.memory_mib && self.functions >= needs.functions
    }
}

/// A guaranteed cluster that wants a place. Every node gets a host of its own.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Its number, which no other has.
    pub cluster: ClusterNumber,
    /// How many nodes.
    pub nodes: usize,
    /// What each needs of its host.
    pub needs: Capacity,
    /// What every node can sustain while all send to all others evenly.
    pub bandwidth: Bandwidth,
    /// How its packets are told from others'.
    pub mode: SlMode,
}

/// Why a cluster has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoPlace {
    /// Too few free hosts hold what a node needs.
    #[error("{asked} nodes were asked for, {free} free hosts hold one")]
    Hosts {
        /// Nodes.
        asked: usize,
        /// Hosts.
        free: usize,
    },
    /// There are hosts, but links between them have not enough left. The first place that was tried failed by this.
    #[error("no place has the links: {0}")]
    Links(Refusal),
}

/// Places clusters and keeps the books of what they have.
#[derive(Debug)]
pub struct Places {
    ledger: Ledger,
    capacities: Vec<Capacity>,
    /// All hosts have the same capacity.
    is_uniform: bool,
    shape: Arc<Shape>,
    /// The leaf of each host.
    leaf_of: Vec<u32>,
    /// Free hosts of each leaf.
    free: Vec<u32>,
}

/// Which hosts are near each other.
#[derive(Debug)]
struct Shape {
    /// The hosts of each leaf.
    leaves: Vec<Vec<HostIndex>>,
    /// The leaves of each pod.
    pods: Vec<Vec<usize>>,
}

impl Places {
    /// All hosts that the ledger knows nobody to own are free.
    pub fn new(ledger: Ledger, capacities: impl Fn(HostIndex) -> Capacity) -> Self {
        let network = Arc::clone(ledger.network());
        let hosts: Vec<HostIndex> = (0..network.hosts().len() as u32).map(HostIndex).collect();
        let (mut leaves, mut pods): (Vec<Vec<HostIndex>>, Vec<Vec<usize>>) = Default::default();
        let mut leaf_of = vec![0; hosts.len()];
        for chunk in hosts.chunk_by(|a, b| network.switch_of(*a) == network.switch_of(*b)) {
            let pod = network.tree().map_or(0, |tree| tree.pod_of(tree.leaf_of(chunk[0])));
            chunk.iter().for_each(|host| leaf_of[host.index()] = leaves.len() as u32);
            pods.resize(pods.len().max(pod + 1), Vec::new());
            pods[pod].push(leaves.len());
            leaves.push(chunk.to_vec());
        }
        let is_free = |host: &&HostIndex| ledger.owner(**host).is_none();
        let free = leaves.iter().map(|hosts| hosts.iter().filter(is_free).count() as u32).collect();
        let capacities: Vec<Capacity> = hosts.iter().map(|host| capacities(*host)).collect();
        let is_uniform = capacities.windows(2).all(|pair| pair[0] == pair[1]);
        Self { ledger, capacities, is_uniform, shape: Arc::new(Shape { leaves, pods }), leaf_of, free }
    }

    /// The books.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Says anew what hosts have, in their order.
    pub fn set_capacities(&mut self, capacities: Vec<Capacity>) {
        self.is_uniform = capacities.windows(2).all(|pair| pair[0] == pair[1]);
        self.capacities = capacities;
    }

    /// Finds a place and takes it.
    pub fn place(&mut self, wish: Wish) -> Result<&Grant, NoPlace> {
        let free = self.free_for(wish.needs);
        let total: u32 = free.iter().sum();
        if wish.nodes == 0 || (total as usize) < wish.nodes {
            return Err(NoPlace::Hosts { asked: wish.nodes, free: total as usize });
        }
        let mut first_refusal = None;
        let tries_max = (HOSTS_TRIED_MAX / wish.nodes).max(TRIES_MIN);
        let shape = Arc::clone(&self.shape);
        for proposal in Proposals::new(&free, &shape, wish.nodes as u32).take(tries_max) {
            let hosts = self.hosts_of(&proposal, wish.needs);
            match self.admit(wish, &hosts) {
                Ok(()) => return Ok(&self.ledger.grants()[&wish.cluster]),
                Err(refusal) => first_refusal = first_refusal.or(Some(refusal)),
            }
        }
        // Whole leaves and large parts of leaves from anywhere, without those that no way leads to.
        let mut free = free;
        for _ in 0..LEAVES_LEFT_OUT_MAX.min(tries_max) {
            let all: Vec<usize> = (0..free.len()).collect();
            if (free.iter().sum::<u32>() as usize) < wish.nodes {
                break;
            }
            let hosts = self.hosts_of(&few_leaves(&free, &all, wish.nodes as u32), wish.needs);
            match self.admit(wish, &hosts) {
                Ok(()) => return Ok(&self.ledger.grants()[&wish.cluster]),
                Err(Refusal::NoWay { to, .. }) => {
                    let is_it = |host: &&HostIndex| self.ledger.network().hosts()[host.index()].port == to;
                    let Some(host) = hosts.iter().find(is_it) else { break };
                    free[self.leaf_of[host.index()] as usize] = 0;
                }
                Err(_) => break,
            }
        }
        Err(NoPlace::Links(first_refusal.unwrap_or(Refusal::Hosts)))
    }

    /// Takes back all that a cluster had.
    pub fn release(&mut self, cluster: ClusterNumber) -> Option<Grant> {
        let grant = self.ledger.release(cluster)?;
        for host in &grant.hosts {
            self.free[self.leaf_of[host.index()] as usize] += 1;
        }
        Some(grant)
    }

    /// The most nodes that a wish like this one would be given now, without giving them.
    pub fn largest(&mut self, wish: Wish) -> usize {
        let (mut fits, mut fails) = (0, wish.nodes + 1);
        while fits + 1 < fails {
            let nodes = fits + (fails - fits) / 2;
            if self.place(Wish { nodes, ..wish }).is_ok() {
                self.release(wish.cluster);
                fits = nodes;
            } else {
                fails = nodes;
            }
        }
        fits
    }

    /// Free hosts of each leaf that hold what a node needs.
    fn free_for(&self, needs: Capacity) -> Vec<u32> {
        match self.capacities.first() {
            Some(capacity) if self.is_uniform && capacity.holds(needs) => self.free.clone(),
            Some(_) if self.is_uniform => vec![0; self.free.len()],
            _ => {
                let suits = |host: &&HostIndex| self.suits(**host, needs);
                self.shape.leaves.iter().map(|hosts| hosts.iter().filter(suits).count() as u32).collect()
            }
        }
    }

    /// Whether a host is free and has what a node needs.
    pub fn suits(&self, host: HostIndex, needs: Capacity) -> bool {
        self.ledger.owner(host).is_none() && self.capacities[host.index()].holds(needs)
    }

    fn hosts_of(&self, proposal: &[(usize, u32)], needs: Capacity) -> Vec<HostIndex> {
        let mut hosts = Vec::new();
        for (leaf, count) in proposal {
            let suiting = self.shape.leaves[*leaf].iter().filter(|host| self.suits(**host, needs));
            hosts.extend(suiting.take(*count as usize));
        }
        hosts
    }

    fn admit(&mut self, wish: Wish, hosts: &[HostIndex]) -> Result<(), Refusal> {
        let Wish { cluster, bandwidth, mode, .. } = wish;
        self.admit_on(Request { cluster, hosts, bandwidth, mode, routes: Routes::Chosen })
    }

    /// Admits a cluster on hosts that somebody has chosen.
    pub fn admit_on(&mut self, request: Request<'_>) -> Result<(), Refusal> {
        self.ledger.admit(request)?;
        for host in request.hosts {
            self.free[self.leaf_of[host.index()] as usize] -= 1;
        }
        Ok(())
    }
}

/// Places for a cluster, the best first: each a list of leaves with the number of hosts there.
struct Proposals<'a> {
    free: &'a [u32],
    pods: &'a [Vec<usize>],
    nodes: u32,
    /// Pods that can take all, the fullest first.
    single: Vec<usize>,
    /// Free hosts by pod.
    pod_free: Vec<u32>,
    next: usize,
}

impl<'a> Proposals<'a> {
    fn new(free: &'a [u32], shape: &'a Shape, nodes: u32) -> Self {
        let pods = &shape.pods;
        let pod_free: Vec<u32> = pods.iter().map(|pod| pod.iter().map(|leaf| free[*leaf]).sum()).collect();
        let mut single: Vec<usize> = (0..pods.len()).filter(|pod| pod_free[*pod] >= nodes).collect();
        single.sort_by_key(|pod| (pod_free[*pod], *pod));
        single.truncate(PODS_TRIED_MAX);
        Self { free, pods, nodes, single, pod_free, next: 0 }
    }

    /// The fullest leaf that can take all.
    fn one_leaf(&self) -> Option<Vec<(usize, u32)>> {
        let able = (0..self.free.len()).filter(|leaf| self.free[*leaf] >= self.nodes);
        let leaf = able.min_by_key(|leaf| self.free[*leaf])?;
        Some(vec![(leaf, self.nodes)])
    }

    fn few_leaves(&self, pod: usize, nodes: u32) -> Vec<(usize, u32)> {
        few_leaves(self.free, &self.pods[pod], nodes)
    }

    /// The fullest leaves of a pod, so that empty ones stay empty.
    fn full_leaves(&self, pod: usize, nodes: u32) -> Vec<(usize, u32)> {
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

    /// Few pods, or the fullest.
    fn several_pods(&self, emptiest_first: bool) -> Vec<(usize, u32)> {
        let mut pods: Vec<usize> = (0..self.pods.len()).filter(|pod| self.pod_free[*pod] > 0).collect();
        pods.sort_by_key(|pod| (self.pod_free[*pod], *pod));
        if emptiest_first {
            pods.reverse();
        }
        let (mut taken, mut rest) = (Vec::new(), self.nodes);
        for (place, pod) in pods.iter().enumerate() {
            if rest == 0 {
                break;
            }
            if self.pod_free[*pod] >= rest && emptiest_first {
                let able = pods[place..].iter().rev().find(|pod| self.pod_free[**pod] >= rest);
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

impl Iterator for Proposals<'_> {
    type Item = Vec<(usize, u32)>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.next;
        self.next += 1;
        if step == 0 {
            return self.one_leaf().or_else(|| self.next());
        }
        let singles = self.single.len();
        match step - 1 {
            step if step < singles => Some(self.few_leaves(self.single[step], self.nodes)),
            step if step < 2 * singles => Some(self.full_leaves(self.single[step - singles], self.nodes)),
            step if step == 2 * singles => Some(self.several_pods(true)),
            step if step == 2 * singles + 1 => Some(self.several_pods(false)),
            _ => None,
        }
    }
}

/// Few of some leaves: the emptiest, the last one being the fullest that can take the rest.
fn few_leaves(free: &[u32], among: &[usize], nodes: u32) -> Vec<(usize, u32)> {
    let mut leaves: Vec<usize> = among.iter().copied().filter(|leaf| free[*leaf] > 0).collect();
    leaves.sort_by_key(|leaf| (Reverse(free[*leaf]), *leaf));
    let (mut taken, mut rest) = (Vec::new(), nodes);
    for (place, leaf) in leaves.iter().enumerate() {
        if rest == 0 {
            break;
        }
        if free[*leaf] >= rest {
            let able = leaves[place..].iter().rev().find(|leaf| free[**leaf] >= rest);
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
