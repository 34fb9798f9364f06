//! What a cluster needs of every link: how many of its ordered pairs of hosts pass it, and which service levels.

use std::collections::BTreeMap;

use ib_wire::ServiceLevel;

use super::choice::Chosen;
use super::ledger::{Books, PathLevel, Refusal};
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
}

impl Shares {
    pub fn new(links: usize) -> Self {
        Self { pairs: vec![0; links], levels: vec![0; links], touched: Vec::new() }
    }

    /// The links that the cluster passes, with its pairs.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = (LinkIndex, u64)> + '_ {
        self.touched.iter().map(|link| (*link, self.pairs[link.index()]))
    }

    /// The same in order of the links, with the service levels of its paths.
    pub fn sorted(&mut self) -> Vec<(LinkIndex, u64, u16)> {
        self.touched.sort_unstable();
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
                match (ways, network.tree()) {
                    (Some(ways), Some(tree)) => {
                        let (near, far) = (tree.leaf_of(senders[0]), tree.leaf_of(*to));
                        tree.between(near, far, ways[place], |link| links.push(link));
                        links.push(network.hosts()[to.index()].outward);
                    }
                    _ => {
                        network.links_from(from, *to, |link| links.push(link));
                    }
                }
                let kept = had.get(&(from, *to)).map_or(all, |level| 1 << level.to_wire());
                let level = self
                    .path_level(books, &links, all & kept)
                    .or_else(|_| self.path_level(books, &links, all))?;
                links.extend(senders.iter().map(|sender| network.hosts()[sender.index()].inward));
                for link in &links {
                    self.levels[link.index()] |= 1 << level.to_wire();
                }
                paths.push(PathLevel { from, to: *to, service_level: level });
            }
        }
        Ok(paths)
    }

    fn path_level(&self, books: &Books, links: &[LinkIndex], all: u16) -> Result<ServiceLevel, Refusal> {
        let (mut free, mut own) = (all, all);
        for link in links {
            free &= !books.levels_taken(*link);
            own &= self.levels[link.index()];
        }
        lowest(free & own).or_else(|| lowest(free)).ok_or_else(|| {
            let left = |link: &LinkIndex| (all & !books.levels_taken(*link)).count_ones() as u8;
            let worst = links.iter().copied().min_by_key(left).unwrap_or(LinkIndex(0));
            Refusal::ServiceLevels { link: worst, free: left(&worst), levels: all.count_ones() as u8 }
        })
    }

    /// Begins anew with the hosts' own cables.
    fn of_ports(&mut self, network: &Network, hosts: &[HostIndex]) {
        for link in self.touched.drain(..) {
            self.pairs[link.index()] = 0;
            self.levels[link.index()] = 0;
        }
        let others = (hosts.len() as u64 - 1).max(1);
        for host in hosts {
            let host = &network.hosts()[host.index()];
            self.add(host.inward, others);
            self.add(host.outward, others);
        }
    }

    fn add(&mut self, link: LinkIndex, count: u64) {
        if self.pairs[link.index()] == 0 {
            self.touched.push(link);
        }
        self.pairs[link.index()] += count;
    }
}

/// The lowest level of some bits.
pub(super) fn lowest(bits: u16) -> Option<ServiceLevel> {
    ServiceLevel::from_wire(bits.trailing_zeros() as u8)
}
