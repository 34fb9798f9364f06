//! Network check of a cluster, from the results of its nodes.
//!
//! Every node must reach its successor, the next in the ring of the nodes that it may reach, and receive a broadcast
//! (`guest::probe`). A node that has not done so is *unsettled*. The network counts as broken when every guest is up and
//! some node is still unsettled after [`CHECK_TIMEOUT`]; until then nodes may just be slow.

use std::time::Duration;

use controller_api::agent::Probes;
use controller_api::cluster::{AdapterKind, NetworkState, NodeState, PacketStop};
use ib_wire::Pkey;
use jiff::Timestamp;

use super::{AdvanceOutcome, Observations, VmObservation, node_name};
use crate::clock::Moment;
use crate::network::node_keys;
use crate::node_address::ipv4_address;
use crate::store::{ClusterNetwork, ClusterRow, EventRecord, NodeRow};

/// Longest duration of the check once every guest is up: probes are repeated every four seconds, and emulated guests on a
/// busy machine are slow.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

/// Most nodes in one sentence; the rest are counted.
const NAMED_MAX: usize = 4;

/// Peers that the check of a node involves.
pub fn probes(cluster: &ClusterRow, node: &NodeRow) -> Probes {
    let number = |peer: &NodeRow| ipv4_address(peer.number);
    Probes {
        successor: successor(cluster, node).map(number),
        broadcaster: broadcaster(cluster, node).map(number),
    }
}

/// The next node in the ring that it may reach.
fn successor<'a>(cluster: &'a ClusterRow, node: &NodeRow) -> Option<&'a NodeRow> {
    let others = || partners(cluster, node);
    others().find(|peer| peer.number > node.number).or_else(|| others().next())
}

/// The first node that it may reach. In a cluster without sub-partitions that is the same for all other nodes, so one
/// broadcast serves them all.
fn broadcaster<'a>(cluster: &'a ClusterRow, node: &NodeRow) -> Option<&'a NodeRow> {
    partners(cluster, node).next()
}

/// The other nodes that a node knows and may reach, by number. Guests that are up and do not check, such as those of earlier
/// images, do not answer probes either; guests that check report the check before they report that they are up
/// (`guest::channel`).
fn partners<'a>(cluster: &'a ClusterRow, node: &NodeRow) -> impl Iterator<Item = &'a NodeRow> {
    let (own, number, joined) = (ip_keys(cluster, node.number), node.number, node.joined);
    let known = move |peer: &&NodeRow| peer.number != number && !peer.leaving && (peer.joined || !joined);
    let answers = |peer: &&NodeRow| peer.network.is_some() || peer.ready.is_none();
    cluster.nodes.iter().filter(known).filter(answers).filter(move |peer| {
        let keys = ip_keys(cluster, peer.number);
        own.iter().any(|own| keys.iter().any(|key| key.is_accepted_by(*own)))
    })
}

/// P_Keys of the IP packets of a node: all of its own with an Ethernet card. Those of an InfiniBand adapter go through `ib0` in the
/// cluster's own partition; interfaces for others are made by the tenant.
fn ip_keys(cluster: &ClusterRow, node: u32) -> Vec<Pkey> {
    let mut keys = node_keys(cluster, node);
    if cluster.adapter == AdapterKind::Infiniband {
        keys.truncate(1);
    }
    keys
}

/// Whether the check of a node has passed, or the node does not check.
pub(super) fn is_settled(node: &NodeRow) -> bool {
    node.network.is_none_or(|check| check.is_complete())
}

/// Check result of a node.
pub fn state(cluster: &ClusterRow, node: &NodeRow) -> NetworkState {
    match node.network {
        None => NetworkState::Unchecked,
        Some(check) if check.is_complete() => NetworkState::Carries,
        Some(_) if cluster.network.state == NetworkState::Broken => NetworkState::Broken,
        Some(_) => NetworkState::Checking,
    }
}

/// What a node has not passed; `None` for a settled one.
pub fn shortfall(cluster: &ClusterRow, node: &NodeRow) -> Option<String> {
    let check = node.network.filter(|check| !check.is_complete())?;
    let is_broken = cluster.network.state == NetworkState::Broken;
    let (unreached, unheard) = if is_broken {
        ("does not reach", "receives no broadcast")
    } else {
        ("has not yet reached", "has not yet received a broadcast")
    };
    let peer = successor(cluster, node).filter(|_| !check.reached);
    let unreached = peer.map(|peer| format!("{unreached} {}", node_name(cluster, peer)));
    let unheard = (!check.heard).then(|| unheard.to_owned());
    let parts: Vec<String> = unreached.into_iter().chain(unheard).collect();
    Some(parts.join(" and "))
}

/// What all nodes have not passed, in one sentence.
pub(super) fn shortfalls(cluster: &ClusterRow) -> Option<String> {
    let nodes = cluster.nodes.iter().filter(|node| !node.leaving);
    let all: Vec<String> = nodes
        .filter_map(|node| Some(format!("{} {}", node_name(cluster, node), shortfall(cluster, node)?)))
        .collect();
    if all.is_empty() {
        return None;
    }
    let more = all.len().saturating_sub(NAMED_MAX);
    let named = all[..all.len() - more].join(", ");
    let what = match cluster.network.state {
        NetworkState::Broken => "the network check fails",
        _ => "checking the network",
    };
    Some(if more == 0 { format!("{what}: {named}") } else { format!("{what}: {named} and {more} more") })
}

/// Updates the check result of the cluster, and since when it waits for nothing but the check.
pub(super) fn observe(
    cluster: &mut ClusterRow,
    observed: &impl Observations,
    now: Moment,
    outcome: &mut AdvanceOutcome,
) {
    let generation = cluster.generation;
    let nodes = || cluster.nodes.iter().filter(|node| !node.leaving);
    let is_up = |node: &NodeRow| node.state == NodeState::Ready && node.ready >= Some(generation);
    let before = cluster.network.state;
    if nodes().next().is_none() || !nodes().all(is_up) {
        // A node that is not up cannot be reached. Earlier results hold until all nodes have the new generation.
        cluster.network.since = None;
        if before == NetworkState::Broken {
            cluster.network.state = NetworkState::Checking;
        }
        return;
    }
    if nodes().all(is_settled) {
        let is_checked = nodes().all(|node| node.network.is_some());
        let state = if is_checked { NetworkState::Carries } else { NetworkState::Unchecked };
        cluster.network = ClusterNetwork { state, since: None };
    } else {
        let since = *cluster.network.since.get_or_insert(now.uptime);
        let is_overdue = now.uptime.since(since) >= CHECK_TIMEOUT;
        let is_broken = is_overdue || before == NetworkState::Broken;
        cluster.network.state = if is_broken { NetworkState::Broken } else { NetworkState::Checking };
    }
    match (before, cluster.network.state) {
        (NetworkState::Broken, NetworkState::Carries) => {
            outcome.note(
                cluster,
                now.wall,
                "cluster.network-carries",
                "its nodes reach each other".to_owned(),
            );
        }
        (before, NetworkState::Broken) if before != NetworkState::Broken => {
            outcome.note(
                cluster,
                now.wall,
                "cluster.network-broken",
                shortfalls(cluster).unwrap_or_default(),
            );
            outcome.events.push(packet_stop_event(cluster, observed, now.wall));
        }
        _ => {}
    }
}

/// Event for operators with the places where packets are dropped; tenants do not see the fabric.
fn packet_stop_event(cluster: &ClusterRow, observed: &impl Observations, at: Timestamp) -> EventRecord {
    let nodes = cluster.nodes.iter().filter(|node| !node.leaving);
    let stops: Vec<String> = nodes
        .filter_map(|node| Some(format!("{} at {}", node_name(cluster, node), packet_stop(observed, node)?)))
        .take(NAMED_MAX)
        .collect();
    let places = if stops.is_empty() {
        "the fabric reports no dropped packets of its nodes".to_owned()
    } else {
        format!("packets are dropped: {}", stops.join(", "))
    };
    let text = format!("cluster {} of {}: {places}", cluster.name, cluster.tenant.name);
    EventRecord { at, tenant: None, cluster: None, kind: "cluster.network-broken", text }
}

/// Where packets of a node are dropped.
pub fn packet_stop<'a>(observed: &'a impl Observations, node: &NodeRow) -> Option<&'a PacketStop> {
    match observed.vm(&node.host, node.id) {
        VmObservation::Reported(report) => report.stop.as_ref(),
        VmObservation::Unknown | VmObservation::NotInSpec | VmObservation::Removed => None,
    }
}
