//! How long packets of a guaranteed cluster may take.

use std::collections::HashMap;

use crate::tenancy::admission::Grant;
use crate::tenancy::arbitration::{HopDelay, OVERSHOOT_BYTES, WEIGHT_BYTES, packet_bound_s};
use crate::tenancy::link_graph::{HostIndex, LinkGraph, LinkIndex};

/// Seconds that a packet takes through a device and along a cable when nothing is in its way: an input, taken high.
const PASSAGE_S: f64 = 0.25e-6;

/// By when a packet that finds its own lane empty has arrived at the latest, between any two hosts of a cluster, whatever
/// others do and whoever else is admitted later: all other entries of every table count with their largest weight.
pub(super) fn latency_bound_ns(grant: &Grant, graph: &LinkGraph) -> u64 {
    let hops: HashMap<LinkIndex, HopDelay> = (grant.links.iter())
        .map(|share| {
            let link_bytes_per_s = graph.links()[share.link.index()].rate.bits_per_s() as f64 / 8.0;
            let others = f64::from(graph.limits().table_entries / share.entries.max(1) - 1);
            let gap = others * (255 * WEIGHT_BYTES + OVERSHOOT_BYTES) as f64;
            let wait_s = gap / link_bytes_per_s;
            (share.link, HopDelay { wait_s, link_bytes_per_s, passage_s: PASSAGE_S })
        })
        .collect();
    let mut worst = 0.0;
    for (place, to) in grant.hosts.iter().enumerate() {
        for from in senders(grant, graph).filter(|from| from != to) {
            let Some(route) = route(grant, graph, from, place) else { continue };
            let hops: Vec<HopDelay> = route.iter().filter_map(|link| hops.get(link).copied()).collect();
            worst = f64::max(worst, packet_bound_s(&hops));
        }
    }
    (worst * 1e9).ceil() as u64
}

/// Two hosts of every leaf of a cluster: to any host, one of them has as long a way as all others of the leaf, because all
/// hosts of a cluster have the same of their links.
fn senders<'a>(grant: &'a Grant, graph: &'a LinkGraph) -> impl Iterator<Item = HostIndex> + 'a {
    let leaves = grant.hosts.chunk_by(|a, b| graph.switch_of(*a) == graph.switch_of(*b));
    leaves.flat_map(|hosts| hosts.iter().take(2).copied())
}

/// The links from a host to one that a cluster has at some place.
fn route(grant: &Grant, graph: &LinkGraph, from: HostIndex, place: usize) -> Option<Vec<LinkIndex>> {
    let to = grant.hosts[place];
    let Some((tree, up_ports)) = graph.tree().zip(grant.up_ports.as_ref()) else {
        return graph.route(from, to);
    };
    let mut links = vec![graph.hosts()[from.index()].inward];
    tree.between(tree.leaf_of(from), tree.leaf_of(to), up_ports[place], |link| links.push(link));
    links.push(graph.hosts()[to.index()].outward);
    Some(links)
}
