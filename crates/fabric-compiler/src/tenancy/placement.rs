//! Where clusters go: compact, so that they need few links, and leaving whole leaves and pods to those that need them.
//!
//! A request goes to one leaf if it fits there, else to one pod, else to several; each time to the fullest that can take
//! it. Every place is proposed to the [`Ledger`], which knows lanes, service levels and rates; the first that it admits
//! is taken. What runs is never moved.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_model::tenancy::{Bandwidth, ClusterNumber, SlMode};
use thiserror::Error;

use super::balance::{Balance, Picked, Survey};
use super::ledger::{Grant, Ledger, Refusal, Request, Routes};
use super::network::HostIndex;
use super::proposals::{Proposals, Shape, few_leaves};
use super::refused::Refused;
use super::tree::Tree;

/// Hosts of all places together that are tried for a cluster: bounds how long a decision takes.
const HOSTS_TRIED_MAX: usize = 2048;

/// Places that are tried for the largest clusters.
const TRIES_MIN: usize = 2;

/// Places anywhere that are tried in a tree of one pod, each without the leaves that no way led to before. In several pods
/// it is one: clusters that are squeezed in somewhere leave nothing whole to those that come next.
const ANYWHERE_MAX: usize = 4;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What was tried for a wish.
#[derive(Debug)]
struct Tries {
    wish: Wish,
    /// Why the first place was refused.
    refusal: Option<Refusal>,
}

/// Places clusters and keeps the books of what they have.
#[derive(Debug)]
pub struct Places {
    pub(super) ledger: Ledger,
    capacities: Vec<Capacity>,
    /// All hosts have the same capacity.
    is_uniform: bool,
    pub(super) shape: Arc<Shape>,
    /// The leaf of each host.
    leaf_of: Vec<u32>,
    /// Free hosts of each leaf.
    free: Vec<u32>,
    /// What a node of each cluster needs of its host.
    needs: BTreeMap<ClusterNumber, Capacity>,
    refused: Refused,
    survey: Survey,
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
        let refused = Refused::new(leaves.len(), &pods);
        Self {
            ledger,
            capacities,
            is_uniform,
            shape: Arc::new(Shape { leaves, pods }),
            leaf_of,
            free,
            needs: BTreeMap::new(),
            refused,
            survey: Survey::default(),
        }
    }

    /// The books.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Says anew what hosts have, in their order.
    pub fn set_capacities(&mut self, capacities: Vec<Capacity>) {
        self.is_uniform = capacities.windows(2).all(|pair| pair[0] == pair[1]);
        self.capacities = capacities;
        self.refused = Refused::new(self.shape.leaves.len(), &self.shape.pods);
        self.survey = Survey::default();
    }

    /// Says what a node of a cluster needs of its host that was there before.
    pub fn set_needs(&mut self, cluster: ClusterNumber, needs: Capacity) {
        self.needs.insert(cluster, needs);
    }

    /// Finds a place and takes it.
    pub fn place(&mut self, wish: Wish) -> Result<&Grant, NoPlace> {
        let free = self.free_for(wish.needs);
        let total: u32 = free.iter().sum();
        if wish.nodes == 0 || (total as usize) < wish.nodes {
            return Err(NoPlace::Hosts { asked: wish.nodes, free: total as usize });
        }
        self.refused.begin(wish);
        let shape = Arc::clone(&self.shape);
        let proposals = Proposals::new(&free, &shape, wish.nodes as u32);
        let tries_max = (HOSTS_TRIED_MAX / wish.nodes).max(TRIES_MIN);
        let mut tries = Tries { wish, refusal: None };
        let is_placed =
            proposals.in_one_pod().take(tries_max).any(|place| self.tried(&mut tries, &place).is_ok())
                || proposals.in_several_pods().any(|place| self.tried(&mut tries, &place).is_ok())
                || self.place_balanced(&mut tries, &free, &shape)
                || self.place_anywhere(&mut tries, free.clone());
        if is_placed {
            return Ok(&self.ledger.grants()[&wish.cluster]);
        }
        Err(NoPlace::Links(tries.refusal.unwrap_or(Refusal::Hosts)))
    }

    /// Hosts with as much left on all up-ports as an even spread needs.
    fn place_balanced(&mut self, tries: &mut Tries, free: &[u32], shape: &Shape) -> bool {
        let network = Arc::clone(self.ledger.network());
        let (nodes, rate) = (tries.wish.nodes as u32, tries.wish.bandwidth.bits_per_s());
        let Some(tree) = network.tree().filter(|_| rate > 0) else { return false };
        let pods = shape.by_free(free);
        for pod in pods.iter().rev().filter(|pod| pod.free >= nodes) {
            if self.refused.has_no_even(pod.pod) {
                continue;
            }
            let picked = self.balance(tree, free, nodes, rate).in_pod(&pod.leaves);
            if picked.is_some_and(|picked| self.tried(tries, &picked).is_ok()) {
                return true;
            }
            self.refused.note_no_even(pod.pod);
        }
        if tree.pods == 1 {
            return false;
        }
        let picked = self.balance(tree, free, nodes, rate).in_pods(&pods);
        picked.is_some_and(|picked| self.tried(tries, &picked).is_ok())
    }

    fn balance<'a>(&'a mut self, tree: &'a Tree, free: &'a [u32], nodes: u32, rate: u64) -> Balance<'a> {
        let seen = (&mut self.survey, self.refused.changes());
        Balance::new(tree, self.ledger.books(), seen, free, (nodes, rate))
    }

    /// Whole leaves and large parts of leaves from anywhere, without those that no way leads to.
    fn place_anywhere(&mut self, tries: &mut Tries, mut free: Vec<u32>) -> bool {
        let all: Vec<usize> = (0..free.len()).collect();
        let tries_max = if self.shape.pods.len() == 1 { ANYWHERE_MAX } else { 1 };
        for _ in 0..tries_max {
            if (free.iter().sum::<u32>() as usize) < tries.wish.nodes {
                break;
            }
            let place = few_leaves(&free, &all, tries.wish.nodes as u32);
            match self.tried(tries, &place) {
                Ok(()) => return true,
                Err(Refusal::NoWay { to, .. }) => {
                    let hosts = self.ledger.network().hosts();
                    let has_it = |(leaf, _): &&(usize, u32)| {
                        self.shape.leaves[*leaf].iter().any(|host| hosts[host.index()].port == to)
                    };
                    let Some((leaf, _)) = place.iter().find(has_it) else { break };
                    free[*leaf] = 0;
                }
                Err(_) => break,
            }
        }
        false
    }

    fn tried(&mut self, tries: &mut Tries, place: &Picked) -> Result<(), Refusal> {
        // On other shapes than trees, links of anywhere may be on the way.
        let is_tree = self.ledger.network().tree().is_some();
        let answer = match self.refused.why(place).filter(|_| is_tree) {
            Some(refusal) => Err(refusal),
            None => {
                let hosts = self.hosts_of(place, tries.wish.needs);
                self.admit(tries.wish, &hosts)
            }
        };
        if let Err(refusal) = answer {
            tries.refusal = tries.refusal.or(Some(refusal));
            self.refused.note(place.clone(), refusal);
        }
        answer
    }

    /// Takes back all that a cluster had.
    pub fn release(&mut self, cluster: ClusterNumber) -> Option<Grant> {
        let grant = self.ledger.release(cluster)?;
        grant.hosts.iter().for_each(|host| self.count_free(*host, 1));
        self.needs.remove(&cluster);
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

    /// What a node of a cluster needs, and the hosts it has.
    pub(super) fn had(&self, cluster: ClusterNumber) -> Result<(Capacity, Vec<HostIndex>), NoPlace> {
        let grant = self.ledger.grants().get(&cluster).ok_or(NoPlace::Links(Refusal::Unknown(cluster)))?;
        let needs = self.needs.get(&cluster).copied().unwrap_or(Capacity::NONE);
        Ok((needs, grant.hosts.clone()))
    }

    /// The leaf of a host.
    pub(super) fn leaf_of(&self, host: HostIndex) -> usize {
        self.leaf_of[host.index()] as usize
    }

    /// Counts a host that becomes free, or not.
    pub(super) fn count_free(&mut self, host: HostIndex, more: i32) {
        let leaf = self.leaf_of[host.index()] as usize;
        self.free[leaf] = self.free[leaf].saturating_add_signed(more);
        self.refused.change(leaf);
    }

    /// Free hosts of each leaf that hold what a node needs.
    pub(super) fn free_for(&self, needs: Capacity) -> Vec<u32> {
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

    pub(super) fn hosts_of(&self, proposal: &[(usize, u32)], needs: Capacity) -> Vec<HostIndex> {
        let mut hosts = Vec::new();
        for (leaf, count) in proposal {
            let suiting = self.shape.leaves[*leaf].iter().filter(|host| self.suits(**host, needs));
            hosts.extend(suiting.take(*count as usize));
        }
        hosts
    }

    fn admit(&mut self, wish: Wish, hosts: &[HostIndex]) -> Result<(), Refusal> {
        let Wish { cluster, bandwidth, mode, .. } = wish;
        self.admit_on(Request { cluster, hosts, bandwidth, mode, routes: Routes::Chosen })?;
        self.needs.insert(cluster, wish.needs);
        Ok(())
    }

    /// Admits a cluster on hosts that somebody has chosen.
    pub fn admit_on(&mut self, request: Request<'_>) -> Result<(), Refusal> {
        self.ledger.admit(request)?;
        request.hosts.iter().for_each(|host| self.count_free(*host, -1));
        Ok(())
    }
}
