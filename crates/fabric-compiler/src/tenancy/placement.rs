//! Placement: selects hosts for clusters, compact so that they need few links, and best fit so that whole leaves and pods
//! stay free for large clusters.
//!
//! A request goes to one leaf if it fits there, else to one pod, else to several pods; each time to the fullest that can
//! hold it. If [`Admission`] refuses those candidates, hosts are picked by what their up-links have left (`balance`), then
//! from anywhere. The first candidate that is admitted is taken. Running nodes never move.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_model::tenancy::{Bandwidth, ClusterNumber, SlMode};
use thiserror::Error;

use super::admission::{Admission, AdmissionRequest, Grant, Refusal, RouteChoice};
use super::balance::{Balance, LeafCounts, ResidualCache};
use super::candidates::{Candidates, HostLayout, few_leaves};
use super::link_graph::HostIndex;
use super::negative_cache::NegativeCache;
use super::tree::RegularTree;

/// Hosts of all candidates together that are tried for a cluster. Bounds the time of a decision.
const HOSTS_TRIED_MAX: usize = 2048;

/// Candidates that are tried even for the largest clusters.
const CANDIDATES_MIN: usize = 2;

/// Candidates across all leaves that are tried in a tree of one pod, each without the leaves that no path led to before.
/// In several pods it is one: clusters that are scattered leave no whole leaf or pod to later ones.
const ANYWHERE_MAX: usize = 4;

/// Resources that a host has, or that a node needs of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub cores: u32,
    pub memory_mib: u64,
    /// SR-IOV virtual functions of the adapter.
    pub functions: u16,
}

impl Capacity {
    pub const NONE: Self = Self { cores: 0, memory_mib: 0, functions: 0 };

    pub const UNLIMITED: Self = Self { cores: u32::MAX, memory_mib: u64::MAX, functions: u16::MAX };

    /// The rest after `needs` are taken; never below zero.
    #[must_use]
    pub fn without(self, needs: Self) -> Self {
        Self {
            cores: self.cores.saturating_sub(needs.cores),
            memory_mib: self.memory_mib.saturating_sub(needs.memory_mib),
            functions: self.functions.saturating_sub(needs.functions),
        }
    }

    /// How many times `needs` fit; `usize::MAX` if nothing is needed.
    pub fn times(self, needs: Self) -> usize {
        let cores = self.cores.checked_div(needs.cores).map_or(usize::MAX, |times| times as usize);
        let memory = self.memory_mib.checked_div(needs.memory_mib).map_or(usize::MAX, |times| times as usize);
        let functions = self.functions.checked_div(needs.functions).map_or(usize::MAX, usize::from);
        cores.min(memory).min(functions)
    }

    /// Whether `needs` fit at least once.
    pub fn holds(self, needs: Self) -> bool {
        self.cores >= needs.cores && self.memory_mib >= needs.memory_mib && self.functions >= needs.functions
    }
}

/// A request to place a guaranteed cluster. Every node gets a host of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementRequest {
    /// Must not be in use.
    pub cluster: ClusterNumber,
    pub nodes: usize,
    /// The capacity that each node takes of its host.
    pub needs: Capacity,
    /// The rate that every node can sustain while all nodes send to all others evenly.
    pub bandwidth: Bandwidth,
    pub mode: SlMode,
}

/// Why a cluster cannot be placed or grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// Too few free hosts have the capacity that a node needs.
    #[error("{requested} nodes requested, but only {free} free hosts can hold one")]
    TooFewHosts { requested: usize, free: usize },
    /// There are enough hosts, but admission control refused every candidate. This is the refusal of the first one.
    #[error("no candidate placement has enough left on its links: {0}")]
    Refused(Refusal),
}

/// What a node needs of its host.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostNeeds {
    capacity: Capacity,
    /// Of each direction of the host's link.
    bits_per_s: u64,
}

/// The candidates that were tried for a request.
#[derive(Debug)]
struct Attempts {
    request: PlacementRequest,
    needs: HostNeeds,
    /// Of the first candidate.
    refusal: Option<Refusal>,
}

/// Places clusters on hosts, and admits them.
///
/// # Contract
///
/// - [`place`](Self::place) adds a cluster, [`grow`](Self::grow) and [`shrink`](Self::shrink) resize it,
///   [`release`](Self::release) removes it. [`largest`](Self::largest) and [`largest_growth`](Self::largest_growth)
///   change nothing. Calls may follow each other in any order.
/// - A refused request changes nothing. Hosts of other clusters never change.
/// - A host belongs to one guaranteed cluster at most. Hosts shared by best-effort clusters are excluded by giving them
///   [`Capacity::NONE`].
/// - Deterministic: refusals are cached, but the cache never changes an answer.
///
/// The search is a bounded heuristic: a refusal does not prove that no placement exists.
#[derive(Debug)]
pub struct Placer {
    pub(super) admission: Admission,
    capacities: Vec<Capacity>,
    /// Whether all hosts have the same capacity.
    is_uniform: bool,
    /// By host: bits per second that a cluster can be guaranteed on its link.
    link_rates: Vec<u64>,
    pub(super) layout: Arc<HostLayout>,
    leaf_of: Vec<u32>,
    /// By leaf: the number of hosts without an owner.
    free: Vec<u32>,
    /// Of each node of a cluster.
    needs: BTreeMap<ClusterNumber, Capacity>,
    negative_cache: NegativeCache,
    residual_cache: ResidualCache,
}

impl Placer {
    /// Starts with the clusters that are admitted already. Their hosts are not free.
    pub fn new(admission: Admission, capacities: impl Fn(HostIndex) -> Capacity) -> Self {
        let graph = Arc::clone(admission.graph());
        let hosts: Vec<HostIndex> = (0..graph.hosts().len() as u32).map(HostIndex).collect();
        let (mut leaves, mut pods): (Vec<Vec<HostIndex>>, Vec<Vec<usize>>) = Default::default();
        let mut leaf_of = vec![0; hosts.len()];
        for chunk in hosts.chunk_by(|a, b| graph.switch_of(*a) == graph.switch_of(*b)) {
            let pod = graph.tree().map_or(0, |tree| tree.pod_of(tree.leaf_of(chunk[0])));
            chunk.iter().for_each(|host| leaf_of[host.index()] = leaves.len() as u32);
            pods.resize(pods.len().max(pod + 1), Vec::new());
            pods[pod].push(leaves.len());
            leaves.push(chunk.to_vec());
        }
        let is_free = |host: &&HostIndex| admission.owner(**host).is_none();
        let free = leaves.iter().map(|hosts| hosts.iter().filter(is_free).count() as u32).collect();
        let capacities: Vec<Capacity> = hosts.iter().map(|host| capacities(*host)).collect();
        let is_uniform = capacities.windows(2).all(|pair| pair[0] == pair[1]);
        let link_rate = |host: &HostIndex| {
            let host = &graph.hosts()[host.index()];
            let [inward, outward] =
                [host.inward, host.outward].map(|link| admission.reservations().usable(link));
            inward.min(outward)
        };
        let link_rates = hosts.iter().map(link_rate).collect();
        let negative_cache = NegativeCache::new(leaves.len(), &pods);
        Self {
            admission,
            capacities,
            is_uniform,
            link_rates,
            layout: Arc::new(HostLayout { leaves, pods }),
            leaf_of,
            free,
            needs: BTreeMap::new(),
            negative_cache,
            residual_cache: ResidualCache::default(),
        }
    }

    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Replaces the capacities of all hosts, in order of [`LinkGraph::hosts`](super::link_graph::LinkGraph::hosts).
    pub fn set_capacities(&mut self, capacities: Vec<Capacity>) {
        self.is_uniform = capacities.windows(2).all(|pair| pair[0] == pair[1]);
        self.capacities = capacities;
        self.negative_cache = NegativeCache::new(self.layout.leaves.len(), &self.layout.pods);
        self.residual_cache = ResidualCache::default();
    }

    /// Sets the needs of each node of a cluster that was not placed here, before it is grown.
    pub fn set_needs(&mut self, cluster: ClusterNumber, needs: Capacity) {
        self.needs.insert(cluster, needs);
    }

    /// Selects hosts for a cluster and admits it there.
    pub fn place(&mut self, request: PlacementRequest) -> Result<&Grant, PlacementError> {
        let needs = self.host_needs(request.needs, request.bandwidth, request.nodes);
        let free = self.free_for(needs);
        let total: u32 = free.iter().sum();
        if request.nodes == 0 || (total as usize) < request.nodes {
            return Err(PlacementError::TooFewHosts { requested: request.nodes, free: total as usize });
        }
        self.negative_cache.begin(request);
        let layout = Arc::clone(&self.layout);
        let candidates = Candidates::new(&free, &layout, request.nodes as u32);
        let candidates_max = (HOSTS_TRIED_MAX / request.nodes).max(CANDIDATES_MIN);
        let mut attempts = Attempts { request, needs, refusal: None };
        let is_placed = candidates
            .in_one_pod()
            .take(candidates_max)
            .any(|candidate| self.try_candidate(&mut attempts, &candidate).is_ok())
            || candidates
                .in_several_pods()
                .any(|candidate| self.try_candidate(&mut attempts, &candidate).is_ok())
            || self.place_balanced(&mut attempts, &free, &layout)
            || self.place_anywhere(&mut attempts, free.clone());
        if is_placed {
            return Ok(&self.admission.grants()[&request.cluster]);
        }
        Err(PlacementError::Refused(attempts.refusal.unwrap_or(Refusal::InvalidHosts)))
    }

    /// Tries hosts whose up-links have enough left for an even spread of destinations.
    fn place_balanced(&mut self, attempts: &mut Attempts, free: &[u32], layout: &HostLayout) -> bool {
        let graph = Arc::clone(self.admission.graph());
        let (nodes, rate) = (attempts.request.nodes as u32, attempts.request.bandwidth.bits_per_s());
        let Some(tree) = graph.tree().filter(|_| rate > 0) else { return false };
        let pods = layout.by_free(free);
        for pod in pods.iter().rev().filter(|pod| pod.free >= nodes) {
            if self.negative_cache.lacks_even_pick(pod.pod) {
                continue;
            }
            let picked = self.balance(tree, free, nodes, rate).in_pod(&pod.leaves);
            if picked.is_some_and(|picked| self.try_candidate(attempts, &picked).is_ok()) {
                return true;
            }
            self.negative_cache.note_no_even(pod.pod);
        }
        if tree.pods == 1 {
            return false;
        }
        let picked = self.balance(tree, free, nodes, rate).in_pods(&pods);
        picked.is_some_and(|picked| self.try_candidate(attempts, &picked).is_ok())
    }

    fn balance<'a>(
        &'a mut self,
        tree: &'a RegularTree,
        free: &'a [u32],
        nodes: u32,
        rate: u64,
    ) -> Balance<'a> {
        let cached = (&mut self.residual_cache, self.negative_cache.changes());
        Balance::new(tree, self.admission.reservations(), cached, free, (nodes, rate))
    }

    /// Tries whole leaves and large parts of leaves from anywhere, without those that no path leads to.
    fn place_anywhere(&mut self, attempts: &mut Attempts, mut free: Vec<u32>) -> bool {
        let all: Vec<usize> = (0..free.len()).collect();
        let candidates_max = if self.layout.pods.len() == 1 { ANYWHERE_MAX } else { 1 };
        for _ in 0..candidates_max {
            if (free.iter().sum::<u32>() as usize) < attempts.request.nodes {
                break;
            }
            let candidate = few_leaves(&free, &all, attempts.request.nodes as u32);
            match self.try_candidate(attempts, &candidate) {
                Ok(()) => return true,
                Err(Refusal::NoPath { to, .. }) => {
                    let hosts = self.admission.graph().hosts();
                    let has_it = |(leaf, _): &&(usize, u32)| {
                        self.layout.leaves[*leaf].iter().any(|host| hosts[host.index()].port == to)
                    };
                    let Some((leaf, _)) = candidate.iter().find(has_it) else { break };
                    free[*leaf] = 0;
                }
                Err(_) => break,
            }
        }
        false
    }

    fn try_candidate(&mut self, attempts: &mut Attempts, candidate: &LeafCounts) -> Result<(), Refusal> {
        // In other topologies than trees, a path may use links far from its hosts, so cached refusals prove nothing.
        let is_tree = self.admission.graph().tree().is_some();
        let answer = match self.negative_cache.refusal(candidate).filter(|_| is_tree) {
            Some(refusal) => Err(refusal),
            None => {
                let hosts = self.hosts_of(candidate, attempts.needs);
                self.admit_request(attempts.request, &hosts)
            }
        };
        if let Err(refusal) = answer {
            attempts.refusal = attempts.refusal.or(Some(refusal));
            self.negative_cache.note(candidate.clone(), refusal);
        }
        answer
    }

    /// Removes a cluster and returns its grant; `None` if it is not admitted.
    pub fn release(&mut self, cluster: ClusterNumber) -> Option<Grant> {
        let grant = self.admission.release(cluster)?;
        grant.hosts.iter().for_each(|host| self.count_free(*host, 1));
        self.needs.remove(&cluster);
        Some(grant)
    }

    /// The most nodes, up to those requested, that [`Self::place`] would place now. Changes nothing. Takes O(log n)
    /// placements, and assumes that whatever fits also fits with fewer nodes.
    pub fn largest(&mut self, request: PlacementRequest) -> usize {
        let (mut fits, mut fails) = (0, request.nodes + 1);
        while fits + 1 < fails {
            let nodes = fits + (fails - fits) / 2;
            if self.place(PlacementRequest { nodes, ..request }).is_ok() {
                self.release(request.cluster);
                fits = nodes;
            } else {
                fails = nodes;
            }
        }
        fits
    }

    /// The needs of `nodes` further nodes of a cluster, and its hosts.
    pub(super) fn current(
        &self,
        cluster: ClusterNumber,
        nodes: usize,
    ) -> Result<(HostNeeds, Vec<HostIndex>), PlacementError> {
        let grant = self
            .admission
            .grants()
            .get(&cluster)
            .ok_or(PlacementError::Refused(Refusal::UnknownCluster(cluster)))?;
        let needs = self.needs.get(&cluster).copied().unwrap_or(Capacity::NONE);
        Ok((self.host_needs(needs, grant.bandwidth, nodes), grant.hosts.clone()))
    }

    pub(super) fn leaf_of(&self, host: HostIndex) -> usize {
        self.leaf_of[host.index()] as usize
    }

    /// Counts a host that becomes free (1) or taken (-1).
    pub(super) fn count_free(&mut self, host: HostIndex, more: i32) {
        let leaf = self.leaf_of[host.index()] as usize;
        self.free[leaf] = self.free[leaf].saturating_add_signed(more);
        self.negative_cache.change(leaf);
    }

    /// What nodes of a cluster need of their hosts. Where links differ, those too slow for the bandwidth are left out, unless
    /// too few hosts for `nodes` would remain: then admission control says which link binds.
    fn host_needs(&self, capacity: Capacity, bandwidth: Bandwidth, nodes: usize) -> HostNeeds {
        let any = HostNeeds { capacity, bits_per_s: 0 };
        if self.link_rates.iter().all(|rate| *rate >= bandwidth.bits_per_s()) {
            return any;
        }
        let fast = HostNeeds { bits_per_s: bandwidth.bits_per_s(), ..any };
        if self.free_for(fast).iter().sum::<u32>() as usize >= nodes { fast } else { any }
    }

    /// By leaf: the number of free hosts with enough capacity.
    pub(super) fn free_for(&self, needs: HostNeeds) -> Vec<u32> {
        match self.capacities.first().filter(|_| self.is_uniform && needs.bits_per_s == 0) {
            Some(capacity) if capacity.holds(needs.capacity) => self.free.clone(),
            Some(_) => vec![0; self.free.len()],
            None => {
                let suits = |host: &&HostIndex| self.suits(**host, needs);
                self.layout.leaves.iter().map(|hosts| hosts.iter().filter(suits).count() as u32).collect()
            }
        }
    }

    /// Whether a host is free and has enough capacity.
    fn suits(&self, host: HostIndex, needs: HostNeeds) -> bool {
        self.admission.owner(host).is_none()
            && self.capacities[host.index()].holds(needs.capacity)
            && self.link_rates[host.index()] >= needs.bits_per_s
    }

    pub(super) fn hosts_of(&self, candidate: &[(usize, u32)], needs: HostNeeds) -> Vec<HostIndex> {
        let mut hosts = Vec::new();
        for (leaf, count) in candidate {
            let suiting = self.layout.leaves[*leaf].iter().filter(|host| self.suits(**host, needs));
            hosts.extend(suiting.take(*count as usize));
        }
        hosts
    }

    fn admit_request(&mut self, request: PlacementRequest, hosts: &[HostIndex]) -> Result<(), Refusal> {
        let PlacementRequest { cluster, bandwidth, mode, .. } = request;
        // A latency is decided with the plan.
        let (latency_ns, routes) = (None, RouteChoice::Selected);
        self.admit_on(AdmissionRequest { cluster, hosts, bandwidth, latency_ns, mode, routes })?;
        self.needs.insert(cluster, request.needs);
        Ok(())
    }

    /// Admits a cluster on the hosts of a request, whatever their capacity.
    pub fn admit_on(&mut self, request: AdmissionRequest<'_>) -> Result<(), Refusal> {
        self.admission.admit(request)?;
        request.hosts.iter().for_each(|host| self.count_free(*host, -1));
        Ok(())
    }
}
