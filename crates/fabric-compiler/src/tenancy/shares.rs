//! What a cluster needs of every link: how many of its ordered pairs of hosts pass it, and which service levels.

use std::collections::BTreeMap;

use ib_wire::ServiceLevel;

use super::choice::Chosen;
use super::ledger::{Books, PairLevels, PathLevel, Refusal};
use super::network::{HostIndex, LinkIndex, Network};
use super::tree::Way;

/// Room to count in, used again for every cluster.
#[derive(Debug)]
pub(super) struct Shares {
    /// By link; 0 where the cluster does not pass.
    pairs: Vec<u64>,
    /// By link: the cluster's service levels, where paths have their own.
    levels: Vec<u16>,
    touched: Vec<LinkIndex>,
    /// A bit for every link that the cluster passes.
    marks: Vec<u64>,
}

impl Shares {
    pub fn new(links: usize) -> Self {
        let marks = vec![0; links.div_ceil(64)];
        Self { pairs: vec![0; links], levels: vec![0; links], touched: Vec::new(), marks }
    }

    /// The links that the cluster passes, with its pairs.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = (LinkIndex, u64)> + '_ {
        self.touched.iter().map(|link| (*link, self.pairs[link.index()]))
    }

    /// The same in order of the links, with the service levels of its paths.
    pub fn sorted(&mut self) -> Vec<(LinkIndex, u64, u16)> {
        if self.touched.len() < self.marks.len() / 8 {
            self.touched.sort_unstable();
        } else {
            // Looking at all marks is quicker than sorting many links.
            self.touched.clear();
            for (word, marks) in (0..).zip(&self.marks) {
                let mut rest = *marks;
                while rest != 0 {
                    self.touched.push(LinkIndex(64 * word + rest.trailing_zeros()));
                    rest &= rest - 1;
                }
            }
        }
        let all =
            self.touched.iter().map(|link| (*link, self.pairs[link.index()], self.levels[link.index()]));
        all.collect()
    }

    /// Counts the pairs of hosts on the links of routes.
    pub fn of_routes(&mut self, network: &Network, hosts: &[HostIndex]) -> Result<(), Refusal> {
        self.of_ports(network, hosts);
        for senders in hosts.chunk_by(|a, b| network.switch_of(*a) == network.switch_of(*b)) {
            let switch = network.switch_of(senders[0]);
            for to in hosts.iter().filter(|to| network.switch_of(**to) != switch) {
                let last = network.hosts()[to.index()].outward;
                let count = senders.len() as u64;
                let arrives = network.links_from(switch, *to, |link| {
                    if link != last {
                        self.add(link, count);
                    }
                });
                if !arrives {
                    return Err(Refusal::NoRoute { to: network.hosts()[to.index()].port });
                }
            }
        }
        Ok(())
    }

    /// Counts the pairs of hosts on the links of chosen ways.
    pub fn of_ways(&mut self, network: &Network, hosts: &[HostIndex], chosen: &Chosen) {
        self.of_ports(network, hosts);
        for (link, count) in &chosen.pairs {
            self.add(*link, *count);
        }
    }

    /// A service level for each path, the lowest that others have on none of its links; levels that are the cluster's on
    /// all of them already go first, and before them what the path had.
    pub fn path_levels(
        &mut self,
        network: &Network,
        books: &Books,
        hosts: &[HostIndex],
        ways: Option<&[Way]>,
        all: u16,
        had: &BTreeMap<(u32, HostIndex), ServiceLevel>,
    ) -> Result<Vec<PathLevel>, Refusal> {
        let mut paths = Vec::new();
        let mut links = Vec::new();
        for senders in hosts.chunk_by(|a, b| network.switch_of(*a) == network.switch_of(*b)) {
            let from = network.switch_of(senders[0]);
            for (place, to) in hosts.iter().enumerate() {
                if senders.len() == 1 && senders[0] == *to && hosts.len() > 1 {
                    continue;
                }
                links.clear();
                links_to(network, senders[0], *to, ways.map(|ways| ways[place]), &mut links);
                let kept = had.get(&(from, *to)).map_or(all, |level| 1 << level.to_wire());
                let level = self
                    .path_level(books, &links, all & kept)
                    .or_else(|_| self.path_level(books, &links, all))?;
                links.extend(senders.iter().map(|sender| network.hosts()[sender.index()].inward));
                self.mark(&links, level);
                paths.push(PathLevel { from, to: *to, service_level: level });
            }
        }
        Ok(paths)
    }

    /// A service level for every two switches with hosts of the cluster, both ways, and for each with itself: one that
    /// others have on none of the links between their hosts. What they had goes first, then what is the cluster's on the
    /// most of these links already, then the lowest.
    pub fn pair_levels(
        &mut self,
        network: &Network,
        books: &Books,
        hosts: &[HostIndex],
        ways: Option<&[Way]>,
        all: u16,
        had: impl Fn((u32, u32)) -> Option<ServiceLevel>,
    ) -> Result<PairLevels, Refusal> {
        let mut levels = PairLevels::new();
        each_pair(network, hosts, ways, |switches, links| {
            let free = links.iter().fold(all, |free, link| free & !books.levels_taken(*link));
            let kept = had(switches).filter(|level| free >> level.to_wire() & 1 == 1);
            let level = kept.or_else(|| self.most_used(links, free));
            let level = level.ok_or_else(|| none_free(books, links, all))?;
            self.mark(links, level);
            levels.insert(switches, level);
            Ok(())
        })?;
        Ok(levels)
    }

    /// The same where levels are known; `None` if a pair has none.
    pub fn put_pair_levels(
        &mut self,
        network: &Network,
        hosts: &[HostIndex],
        known: impl Fn((u32, u32)) -> Option<ServiceLevel>,
    ) -> Option<PairLevels> {
        let mut levels = PairLevels::new();
        let put: Result<(), ()> = each_pair(network, hosts, None, |switches, links| {
            let level = known(switches).ok_or(())?;
            self.mark(links, level);
            levels.insert(switches, level);
            Ok(())
        });
        put.ok().map(|()| levels)
    }

    /// The level of some that the cluster has on the most links already.
    fn most_used(&self, links: &[LinkIndex], levels: u16) -> Option<ServiceLevel> {
        let mut counts = [0_u32; 16];
        for link in links {
            let mut own = self.levels[link.index()] & levels;
            while own != 0 {
                counts[own.trailing_zeros() as usize] += 1;
                own &= own - 1;
            }
        }
        let most = (0..16).filter(|level| levels >> level & 1 == 1).rev().max_by_key(|level| counts[*level]);
        ServiceLevel::from_wire(most? as u8)
    }

    /// A level is the cluster's on some links.
    fn mark(&mut self, links: &[LinkIndex], level: ServiceLevel) {
        for link in links {
            self.levels[link.index()] |= 1 << level.to_wire();
        }
    }

    fn path_level(&self, books: &Books, links: &[LinkIndex], all: u16) -> Result<ServiceLevel, Refusal> {
        let (mut free, mut own) = (all, all);
        for link in links {
            free &= !books.levels_taken(*link);
            own &= self.levels[link.index()];
        }
        lowest(free & own).or_else(|| lowest(free)).ok_or_else(|| none_free(books, links, all))
    }

    /// Begins anew with the hosts' own cables.
    fn of_ports(&mut self, network: &Network, hosts: &[HostIndex]) {
        for link in self.touched.drain(..) {
            self.pairs[link.index()] = 0;
            self.levels[link.index()] = 0;
            self.marks[link.index() / 64] = 0;
        }
        let others = (hosts.len() as u64 - 1).max(1);
        hosts.iter().for_each(|host| self.add(network.hosts()[host.index()].inward, others));
        hosts.iter().for_each(|host| self.add(network.hosts()[host.index()].outward, others));
    }

    fn add(&mut self, link: LinkIndex, count: u64) {
        if self.pairs[link.index()] == 0 {
            self.touched.push(link);
            self.marks[link.index() / 64] |= 1 << (link.index() % 64);
        }
        self.pairs[link.index()] += count;
    }
}

/// The links from a host's switch to another host, by a way if one was chosen.
fn links_to(network: &Network, from: HostIndex, to: HostIndex, way: Option<Way>, links: &mut Vec<LinkIndex>) {
    match network.tree().zip(way) {
        Some((tree, way)) => {
            tree.between(tree.leaf_of(from), tree.leaf_of(to), way, |link| links.push(link));
            links.push(network.hosts()[to.index()].outward);
        }
        None => {
            network.links_from(network.switch_of(from), to, |link| links.push(link));
        }
    }
}

/// Every two switches with hosts of a cluster, the lower first, with all links between their hosts in both directions; then
/// each switch with itself.
fn each_pair<E>(
    network: &Network,
    hosts: &[HostIndex],
    ways: Option<&[Way]>,
    mut visit: impl FnMut((u32, u32), &[LinkIndex]) -> Result<(), E>,
) -> Result<(), E> {
    let leaves: Vec<&[HostIndex]> =
        hosts.chunk_by(|a, b| network.switch_of(*a) == network.switch_of(*b)).collect();
    let firsts: Vec<usize> =
        leaves.iter().scan(0, |first, leaf| Some(std::mem::replace(first, *first + leaf.len()))).collect();
    let apart = (0..leaves.len()).flat_map(|a| (a + 1..leaves.len()).map(move |b| (a, b)));
    let mut links = Vec::new();
    for (a, b) in apart.chain((0..leaves.len()).map(|leaf| (leaf, leaf))) {
        links.clear();
        for (from, to) in [(a, b), (b, a)] {
            for (place, host) in (firsts[to]..).zip(leaves[to]) {
                links_to(network, leaves[from][0], *host, ways.map(|ways| ways[place]), &mut links);
                links.push(network.hosts()[host.index()].inward);
            }
        }
        links.sort_unstable();
        links.dedup();
        visit((network.switch_of(leaves[a][0]), network.switch_of(leaves[b][0])), &links)?;
    }
    Ok(())
}

/// That no level is free on all of some links.
fn none_free(books: &Books, links: &[LinkIndex], all: u16) -> Refusal {
    let left = |link: &LinkIndex| (all & !books.levels_taken(*link)).count_ones() as u8;
    let worst = links.iter().copied().min_by_key(left).unwrap_or(LinkIndex(0));
    Refusal::ServiceLevels { link: worst, free: left(&worst), levels: all.count_ones() as u8 }
}

/// The lowest level of some bits.
pub(super) fn lowest(bits: u16) -> Option<ServiceLevel> {
    ServiceLevel::from_wire(bits.trailing_zeros() as u8)
}
