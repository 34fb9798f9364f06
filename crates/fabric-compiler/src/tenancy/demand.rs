//! What a cluster needs of every link: how many of its ordered pairs of hosts use it, and which service levels.

use std::collections::BTreeMap;

use ib_wire::{ServiceLevel, ServiceLevelSet};

use super::admission::{PairServiceLevels, PathServiceLevel, Refusal, Reservations};
use super::link_graph::{HostIndex, LinkGraph, LinkIndex};
use super::path_selection::SelectedPaths;
use super::tree::UpPorts;

/// The demand of one cluster by link. The buffers are reused from cluster to cluster.
#[derive(Debug)]
pub(super) struct LinkDemands {
    /// By link: ordered pairs of hosts; 0 where the cluster does not use it.
    pairs: Vec<u64>,
    /// By link: the service levels of the cluster, where paths have service levels of their own.
    sls: Vec<ServiceLevelSet>,
    /// Links that the cluster uses, each once.
    touched: Vec<LinkIndex>,
    /// A bit for each link that the cluster uses.
    marks: Vec<u64>,
}

impl LinkDemands {
    pub fn new(links: usize) -> Self {
        let marks = vec![0; links.div_ceil(64)];
        let sls = vec![ServiceLevelSet::EMPTY; links];
        Self { pairs: vec![0; links], sls, touched: Vec::new(), marks }
    }

    /// The links that the cluster uses, with its pairs, in no particular order.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = (LinkIndex, u64)> + '_ {
        self.touched.iter().map(|link| (*link, self.pairs[link.index()]))
    }

    /// The links that the cluster uses in ascending order, with its pairs and the service levels of its paths.
    pub fn sorted(&mut self) -> Vec<(LinkIndex, u64, ServiceLevelSet)> {
        if self.touched.len() < self.marks.len() / 8 {
            self.touched.sort_unstable();
        } else {
            // Scanning all marks is faster than sorting many links.
            self.touched.clear();
            for (word, marks) in (0..).zip(&self.marks) {
                let mut rest = *marks;
                while rest != 0 {
                    self.touched.push(LinkIndex(64 * word + rest.trailing_zeros()));
                    rest &= rest - 1;
                }
            }
        }
        let all = self.touched.iter().map(|link| (*link, self.pairs[link.index()], self.sls[link.index()]));
        all.collect()
    }

    /// Counts the pairs on the links of the forwarding tables' routes.
    pub fn count_routes(&mut self, graph: &LinkGraph, hosts: &[HostIndex]) -> Result<(), Refusal> {
        self.count_ports(graph, hosts);
        for senders in hosts.chunk_by(|a, b| graph.switch_of(*a) == graph.switch_of(*b)) {
            let switch = graph.switch_of(senders[0]);
            for to in hosts.iter().filter(|to| graph.switch_of(**to) != switch) {
                let last = graph.hosts()[to.index()].outward;
                let count = senders.len() as u64;
                let arrives = graph.links_from(switch, *to, |link| {
                    if link != last {
                        self.add(link, count);
                    }
                });
                if !arrives {
                    return Err(Refusal::NoRoute { to: graph.hosts()[to.index()].port });
                }
            }
        }
        Ok(())
    }

    /// Counts the pairs on the links of selected paths.
    pub fn count_selected(&mut self, graph: &LinkGraph, hosts: &[HostIndex], chosen: &SelectedPaths) {
        self.count_ports(graph, hosts);
        for (link, count) in &chosen.pairs {
            self.add(*link, *count);
        }
    }

    /// Chooses a service level for each path that is free on all its links: the one the path had, else one that the cluster
    /// uses on all of them already, else the lowest.
    pub fn path_service_levels(
        &mut self,
        graph: &LinkGraph,
        reservations: &Reservations,
        hosts: &[HostIndex],
        up_ports: Option<&[UpPorts]>,
        all: ServiceLevelSet,
        had: &BTreeMap<(u32, HostIndex), ServiceLevel>,
    ) -> Result<Vec<PathServiceLevel>, Refusal> {
        let mut paths = Vec::new();
        let mut links = Vec::new();
        for senders in hosts.chunk_by(|a, b| graph.switch_of(*a) == graph.switch_of(*b)) {
            let from = graph.switch_of(senders[0]);
            for (index, to) in hosts.iter().enumerate() {
                if senders.len() == 1 && senders[0] == *to && hosts.len() > 1 {
                    continue;
                }
                links.clear();
                links_to(graph, senders[0], *to, up_ports.map(|up_ports| up_ports[index]), &mut links);
                let kept = had.get(&(from, *to)).map_or(all, |sl| ServiceLevelSet::of(*sl));
                let sl = self
                    .path_service_level(reservations, &links, all & kept)
                    .or_else(|_| self.path_service_level(reservations, &links, all))?;
                links.extend(senders.iter().map(|sender| graph.hosts()[sender.index()].inward));
                self.mark(&links, sl);
                paths.push(PathServiceLevel { from, to: *to, service_level: sl });
            }
        }
        Ok(paths)
    }

    /// Chooses a service level for each pair of switches with hosts of the cluster, for both directions, and for each switch
    /// with itself. It must be free on all links between their hosts: the one the pair had, else the one that the cluster
    /// uses on most of these links already, else the lowest. Greedy, in order of the pairs.
    pub fn pair_service_levels(
        &mut self,
        graph: &LinkGraph,
        reservations: &Reservations,
        hosts: &[HostIndex],
        up_ports: Option<&[UpPorts]>,
        all: ServiceLevelSet,
        had: impl Fn((u32, u32)) -> Option<ServiceLevel>,
    ) -> Result<PairServiceLevels, Refusal> {
        let mut sls = PairServiceLevels::new();
        each_pair(graph, hosts, up_ports, |switches, links| {
            let free = links.iter().fold(all, |free, link| free - reservations.sls_taken(*link));
            let kept = had(switches).filter(|sl| free.contains(*sl));
            let sl = kept.or_else(|| self.most_used(links, free));
            let sl = sl.ok_or_else(|| none_free(reservations, links, all))?;
            self.mark(links, sl);
            sls.insert(switches, sl);
            Ok(())
        })?;
        Ok(sls)
    }

    /// Marks known service levels of pairs on their links; `None` if a pair has none.
    pub fn mark_pair_service_levels(
        &mut self,
        graph: &LinkGraph,
        hosts: &[HostIndex],
        known: impl Fn((u32, u32)) -> Option<ServiceLevel>,
    ) -> Option<PairServiceLevels> {
        let mut sls = PairServiceLevels::new();
        let put: Result<(), ()> = each_pair(graph, hosts, None, |switches, links| {
            let sl = known(switches).ok_or(())?;
            self.mark(links, sl);
            sls.insert(switches, sl);
            Ok(())
        });
        put.ok().map(|()| sls)
    }

    /// The service level of `sls` that the cluster uses on the most links already.
    fn most_used(&self, links: &[LinkIndex], sls: ServiceLevelSet) -> Option<ServiceLevel> {
        let mut counts = [0_u32; 16];
        for link in links {
            for sl in self.sls[link.index()] & sls {
                counts[sl.index()] += 1;
            }
        }
        // Of several, the lowest.
        sls.iter().rev().max_by_key(|sl| counts[sl.index()])
    }

    /// Marks a service level as the cluster's on some links.
    fn mark(&mut self, links: &[LinkIndex], sl: ServiceLevel) {
        for link in links {
            self.sls[link.index()].insert(sl);
        }
    }

    fn path_service_level(
        &self,
        reservations: &Reservations,
        links: &[LinkIndex],
        all: ServiceLevelSet,
    ) -> Result<ServiceLevel, Refusal> {
        let (mut free, mut own) = (all, all);
        for link in links {
            free -= reservations.sls_taken(*link);
            own &= self.sls[link.index()];
        }
        (free & own).first().or_else(|| free.first()).ok_or_else(|| none_free(reservations, links, all))
    }

    /// Starts a new cluster with the links of its hosts.
    fn count_ports(&mut self, graph: &LinkGraph, hosts: &[HostIndex]) {
        for link in self.touched.drain(..) {
            self.pairs[link.index()] = 0;
            self.sls[link.index()] = ServiceLevelSet::EMPTY;
            self.marks[link.index() / 64] = 0;
        }
        let others = (hosts.len() as u64 - 1).max(1);
        hosts.iter().for_each(|host| self.add(graph.hosts()[host.index()].inward, others));
        hosts.iter().for_each(|host| self.add(graph.hosts()[host.index()].outward, others));
    }

    fn add(&mut self, link: LinkIndex, count: u64) {
        if self.pairs[link.index()] == 0 {
            self.touched.push(link);
            self.marks[link.index() / 64] |= 1 << (link.index() % 64);
        }
        self.pairs[link.index()] += count;
    }
}

/// Appends the links from a host's switch to another host: by up-ports if they were selected, else by the tables.
fn links_to(
    graph: &LinkGraph,
    from: HostIndex,
    to: HostIndex,
    ports: Option<UpPorts>,
    links: &mut Vec<LinkIndex>,
) {
    match graph.tree().zip(ports) {
        Some((tree, ports)) => {
            tree.between(tree.leaf_of(from), tree.leaf_of(to), ports, |link| links.push(link));
            links.push(graph.hosts()[to.index()].outward);
        }
        None => {
            graph.links_from(graph.switch_of(from), to, |link| links.push(link));
        }
    }
}

/// Visits each pair of switches with hosts of a cluster, the lower first, with all links between their hosts in both
/// directions; then each switch with itself.
fn each_pair<E>(
    graph: &LinkGraph,
    hosts: &[HostIndex],
    up_ports: Option<&[UpPorts]>,
    mut visit: impl FnMut((u32, u32), &[LinkIndex]) -> Result<(), E>,
) -> Result<(), E> {
    let leaves: Vec<&[HostIndex]> =
        hosts.chunk_by(|a, b| graph.switch_of(*a) == graph.switch_of(*b)).collect();
    let firsts: Vec<usize> =
        leaves.iter().scan(0, |first, leaf| Some(std::mem::replace(first, *first + leaf.len()))).collect();
    let apart = (0..leaves.len()).flat_map(|a| (a + 1..leaves.len()).map(move |b| (a, b)));
    let mut links = Vec::new();
    for (a, b) in apart.chain((0..leaves.len()).map(|leaf| (leaf, leaf))) {
        links.clear();
        for (from, to) in [(a, b), (b, a)] {
            for (index, host) in (firsts[to]..).zip(leaves[to]) {
                links_to(graph, leaves[from][0], *host, up_ports.map(|up_ports| up_ports[index]), &mut links);
                links.push(graph.hosts()[host.index()].inward);
            }
        }
        links.sort_unstable();
        links.dedup();
        visit((graph.switch_of(leaves[a][0]), graph.switch_of(leaves[b][0])), &links)?;
    }
    Ok(())
}

/// The refusal if no service level is free on all of some links.
fn none_free(reservations: &Reservations, links: &[LinkIndex], all: ServiceLevelSet) -> Refusal {
    let left = |link: &LinkIndex| (all - reservations.sls_taken(*link)).len() as u8;
    let worst = links.iter().copied().min_by_key(left).unwrap_or(LinkIndex(0));
    Refusal::NoServiceLevelFree {
        port: reservations.port(worst),
        free: left(&worst),
        usable: all.len() as u8,
    }
}
