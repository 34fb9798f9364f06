//! The latency bound of a guaranteed cluster: a bound on the wire, from the arbiter of the sending adapter to the last byte at
//! the receiving one. Adapters and PCIe are outside.

use std::collections::HashMap;

use crate::tenancy::admission::Grant;
use crate::tenancy::arbitration::{HopDelay, OVERSHOOT_BYTES, WEIGHT_BYTES, packet_bound_s};
use crate::tenancy::link_graph::{HostIndex, LinkGraph, LinkIndex};
use crate::tenancy::switch_inputs::input_wait_s;

/// An upper bound, in nanoseconds, on the time of a packet between any two hosts of a cluster if it finds its own lane empty.
/// It holds whatever other clusters send and whichever are admitted later: all other entries count with the largest weight.
pub(super) fn latency_bound_ns(grant: &Grant, graph: &LinkGraph) -> u64 {
    let model = graph.limits().hardware.switch_model;
    let hops: HashMap<LinkIndex, HopDelay> = (grant.links.iter())
        .map(|share| {
            let link = &graph.links()[share.link.index()];
            let link_bytes_per_s = link.rate.bits_per_s() as f64 / 8.0;
            let others = f64::from(graph.limits().table_entries / share.entries.max(1) - 1);
            let gap = others * (255 * WEIGHT_BYTES + OVERSHOOT_BYTES) as f64;
            let wait_s = gap / link_bytes_per_s;
            let input_s = match link.is_to_switch() {
                true => input_wait_s(model, link.data_lanes().saturating_sub(1), link_bytes_per_s),
                false => 0.0,
            };
            let passage_s = f64::from(link.passage_ns) * 1e-9 + input_s;
            (share.link, HopDelay { wait_s, link_bytes_per_s, passage_s })
        })
        .collect();
    let mut worst = 0.0;
    for (index, to) in grant.hosts.iter().enumerate() {
        for from in senders(grant, graph).filter(|from| from != to) {
            let Some(route) = route(grant, graph, from, index) else { continue };
            let hops: Vec<HopDelay> = route.iter().filter_map(|link| hops.get(link).copied()).collect();
            worst = f64::max(worst, packet_bound_s(&hops));
        }
    }
    (worst * 1e9).ceil() as u64
}

/// Two hosts of every leaf of a cluster. To any host, the path from one of them takes as long as from all others of the
/// leaf, because all hosts of a cluster have the same share of their links.
fn senders<'a>(grant: &'a Grant, graph: &'a LinkGraph) -> impl Iterator<Item = HostIndex> + 'a {
    let leaves = grant.hosts.chunk_by(|a, b| graph.switch_of(*a) == graph.switch_of(*b));
    leaves.flat_map(|hosts| hosts.iter().take(2).copied())
}

/// The links from a host to the host at an index of the grant.
fn route(grant: &Grant, graph: &LinkGraph, from: HostIndex, index: usize) -> Option<Vec<LinkIndex>> {
    let to = grant.hosts[index];
    let Some((tree, up_ports)) = graph.tree().zip(grant.up_ports.as_ref()) else {
        return graph.route(from, to);
    };
    let mut links = vec![graph.hosts()[from.index()].inward];
    tree.between(tree.leaf_of(from), tree.leaf_of(to), up_ports[index], |link| links.push(link));
    links.push(graph.hosts()[to.index()].outward);
    Some(links)
}
