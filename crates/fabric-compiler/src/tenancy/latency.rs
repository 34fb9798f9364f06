//! The latency bound of a guaranteed cluster: how the time that was asked for is divided among the links of its paths.
//!
//! It is a bound on the wire, from the arbiter of the sending adapter to the last byte at the receiving one. Adapters and
//! PCIe are outside.
//!
//! On the cables of its hosts a cluster is alone with best effort and management, so that its packets wait for these only.
//! What is left of the latency is divided equally among the links between switches of the path that leaves the least.

use super::arbitration::PACKET_BYTES_MAX;
use super::grant::LinkShare;
use super::link_graph::{HostIndex, LinkGraph, LinkIndex};
use super::switch_inputs::input_wait_ns;
use super::tree::UpPorts;

/// The paths of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterPaths<'a> {
    pub graph: &'a LinkGraph,
    /// In ascending order.
    pub hosts: &'a [HostIndex],
    /// The selected up-ports towards each host; `None` if the forwarding tables decide.
    pub up_ports: Option<&'a [UpPorts]>,
}

impl ClusterPaths<'_> {
    /// An upper bound, in nanoseconds, on the time of a packet between any two hosts if it finds its own lane empty and waits
    /// at each link as long as the cluster's share says. `times_ns` has room for every link; what it holds does not matter.
    pub fn bound_ns(&self, shares: &[LinkShare], times_ns: &mut [u64]) -> u64 {
        for share in shares {
            times_ns[share.link.index()] = self.passage_ns(share.link) + share.wait_ns;
        }
        let mut worst = 0;
        self.each(|links| worst = worst.max(links.iter().map(|link| times_ns[link.index()]).sum()));
        worst
    }

    /// The time that a packet may wait at each link between switches if it is to take at most `latency_ns`; `None` if there
    /// are no such links. The error is the least latency that is possible on these paths.
    pub fn wait_between_ns(
        &self,
        latency_ns: u64,
        host_wait_ns: impl Fn(LinkIndex) -> u64,
    ) -> Result<Option<u64>, u64> {
        let (mut shortest, mut possible) = (None, 0);
        self.each(|links| {
            let (mut fixed, mut between) = (0, 0);
            for link in links {
                fixed += self.passage_ns(*link);
                match self.graph.links()[link.index()].is_of_host {
                    true => fixed += host_wait_ns(*link),
                    false => between += 1,
                }
            }
            possible = possible.max(fixed);
            if let Some(wait) = latency_ns.saturating_sub(fixed).checked_div(between) {
                shortest = Some(shortest.map_or(wait, |least: u64| least.min(wait)));
            }
        });
        if possible > latency_ns { Err(possible) } else { Ok(shortest) }
    }

    /// The time of a packet of the largest size through the device before a link, over the link, and at the input behind it.
    fn passage_ns(&self, link: LinkIndex) -> u64 {
        let link = &self.graph.links()[link.index()];
        let model = self.graph.limits().hardware.switch_model;
        let input_ns = if link.is_to_switch() {
            input_wait_ns(model, link.data_lanes().saturating_sub(1), &link.table)
        } else {
            0
        };
        u64::from(link.passage_ns) + link.table.ns_of(PACKET_BYTES_MAX) + input_ns
    }

    /// Visits the links of every path that can be the slowest.
    fn each(&self, mut visit: impl FnMut(&[LinkIndex])) {
        let (senders, mut links) = (self.senders(), Vec::new());
        for (index, to) in self.hosts.iter().enumerate() {
            for from in senders.iter().filter(|from| *from != to) {
                links.clear();
                if self.follow(*from, index, &mut links) {
                    visit(&links);
                }
            }
        }
    }

    /// Two hosts of every leaf for each rate of its cables. To any host, the path from one of them takes as long as from
    /// the others, because all hosts of a cluster have the same share of their links.
    fn senders(&self) -> Vec<HostIndex> {
        let inward = |host: &HostIndex| self.graph.hosts()[host.index()].inward;
        let rate = |host: &HostIndex| self.graph.links()[inward(host).index()].rate;
        let leaves = self.hosts.chunk_by(|a, b| self.graph.switch_of(*a) == self.graph.switch_of(*b));
        let of_leaf = leaves.flat_map(|hosts| {
            let alike =
                move |at: usize| hosts[..at].iter().filter(move |host| rate(host) == rate(&hosts[at]));
            (0..hosts.len()).filter(move |at| alike(*at).count() < 2).map(|at| hosts[at])
        });
        of_leaf.collect()
    }

    /// Collects the links from a host to the host at an index. Returns false if packets do not arrive.
    fn follow(&self, from: HostIndex, index: usize, links: &mut Vec<LinkIndex>) -> bool {
        let (graph, to) = (self.graph, self.hosts[index]);
        links.push(graph.hosts()[from.index()].inward);
        let Some((tree, up_ports)) = graph.tree().zip(self.up_ports) else {
            return graph.links_from(graph.switch_of(from), to, |link| links.push(link));
        };
        tree.between(tree.leaf_of(from), tree.leaf_of(to), up_ports[index], |link| links.push(link));
        links.push(graph.hosts()[to.index()].outward);
        true
    }
}
