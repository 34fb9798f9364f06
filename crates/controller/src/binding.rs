//! Bindings between hosts and fabric ports. No I/O.
//!
//! A host is bound to the GUID of its port when it is added or, without a GUID, as soon as exactly one adapter has its
//! name as NodeDescription. From then on only the GUID identifies it: a host writes its NodeDescription itself, so a
//! compromised one could claim the name of another.

use std::collections::{HashMap, HashSet};

use controller_api::Name;
use controller_api::host::NewHost;
use fabric_model::{Node, Topology};
use ib_wire::Guid;

use crate::observed::HostAttachment;

/// All cabled ports of adapters, by port GUID.
pub fn host_ports(topology: &Topology) -> HashMap<Guid, HostAttachment> {
    let mut host_ports = HashMap::new();
    for (_, node) in topology.end_nodes() {
        for (port, peer) in node.cabled_ports() {
            if let (Some(near), Some(leaf)) = (node.port(port), topology.node(peer.node)) {
                host_ports.insert(near.guid, HostAttachment { port_guid: near.guid, port, leaf: leaf.guid });
            }
        }
    }
    host_ports
}

/// Bindings for `pending` hosts: the first cabled port of the only adapter whose NodeDescription is the name of the host,
/// unless another host is bound to that adapter.
pub fn choose<'a>(
    pending: impl Iterator<Item = &'a Name>,
    topology: &Topology,
    hosts: &[NewHost],
) -> Vec<(Name, Guid)> {
    let bound: HashSet<Guid> = hosts.iter().filter_map(|host| host.port_guid).collect();
    let by_name = adapters_by_name(topology);
    let only = |name: &Name| {
        let [adapter] = by_name.get(name.as_str())?.as_slice() else { return None };
        let is_free = adapter.ports().all(|(_, port)| !bound.contains(&port.guid));
        let (number, _) = adapter.cabled_ports().next().filter(|_| is_free)?;
        Some((name.clone(), adapter.port(number)?.guid))
    };
    pending.filter_map(only).collect()
}

/// A NodeDescription that contradicts a binding, and is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Kind of the event.
    pub kind: &'static str,
    /// Text of the event, for operators.
    pub text: String,
}

/// Claims that are new since the previous discovery: a bound adapter with another NodeDescription than before, and an
/// adapter with the name of a host that is bound to a different one.
pub fn new_claims(before: Option<&Topology>, now: &Topology, hosts: &[NewHost]) -> Vec<Claim> {
    let mut claims = Vec::new();
    let (by_name, by_name_before) = (adapters_by_name(now), before.map(adapters_by_name).unwrap_or_default());
    for (name, guid) in hosts.iter().filter_map(|host| Some((&host.name, host.port_guid?))) {
        if let (Some(was), Some(is)) = (before.and_then(|it| owner(it, guid)), owner(now, guid))
            && was.description != is.description
        {
            let (was, is) = (&was.description, &is.description);
            let text = format!(
                "the adapter of host {name}, port {guid}, has the NodeDescription {is:?} instead of {was:?}"
            );
            claims.push(Claim { kind: "host.renamed", text });
        }
        let known: HashSet<Guid> =
            by_name_before.get(name.as_str()).into_iter().flatten().map(|adapter| adapter.guid).collect();
        for adapter in by_name.get(name.as_str()).into_iter().flatten() {
            let is_own = adapter.ports().any(|(_, port)| port.guid == guid);
            if !is_own && !known.contains(&adapter.guid) {
                let other = adapter.guid;
                let text = format!(
                    "adapter {other} claims the name {name}, but that host is bound to port {guid}; the claim is ignored"
                );
                claims.push(Claim { kind: "host.name-claimed", text });
            }
        }
    }
    claims
}

fn adapters_by_name(topology: &Topology) -> HashMap<&str, Vec<&Node>> {
    let mut by_name: HashMap<&str, Vec<&Node>> = HashMap::new();
    for (_, node) in topology.end_nodes() {
        by_name.entry(node.description.as_str()).or_default().push(node);
    }
    by_name
}

fn owner(topology: &Topology, port: Guid) -> Option<&Node> {
    topology.by_port_guid(port).and_then(|end| topology.node(end.node))
}
