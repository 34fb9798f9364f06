//! Bindings between hosts and fabric ports. No I/O.
//!
//! A host is bound to the GUID of its port when it is added or, without a GUID, as soon as exactly one adapter has its
//! name as the first word of its NodeDescription, as in `node17 mlx5_0`. From then on only the GUID identifies it: a host
//! writes its NodeDescription itself, so a compromised one could claim the name of another.
//!
//! Routers and aggregation nodes are not adapters of hosts: no host is bound to them, and their ports are never used.

use std::collections::{HashMap, HashSet};

use controller_api::Name;
use controller_api::host::NewHost;
use fabric_model::{Node, NodeIndex, Topology};
use ib_wire::Guid;

use crate::observed::HostAttachment;

/// All cabled ports of adapters of hosts, by port GUID.
pub fn host_ports(topology: &Topology) -> HashMap<Guid, HostAttachment> {
    let mut host_ports = HashMap::new();
    for (_, node) in host_adapters(topology) {
        for (port, peer) in node.cabled_ports() {
            if let (Some(near), Some(leaf)) = (node.port(port), topology.node(peer.node)) {
                host_ports.insert(near.guid, HostAttachment { port_guid: near.guid, port, leaf: leaf.guid });
            }
        }
    }
    host_ports
}

/// Bindings for `pending` hosts: the first cabled port of the only adapter whose NodeDescription begins with the name of
/// the host, unless another host is bound to that adapter.
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
    for (_, node) in host_adapters(topology) {
        by_name.entry(node.host_name()).or_default().push(node);
    }
    by_name
}

fn host_adapters(topology: &Topology) -> impl Iterator<Item = (NodeIndex, &Node)> {
    topology.end_nodes().filter(|(_, node)| node.is_host_adapter())
}

fn owner(topology: &Topology, port: Guid) -> Option<&Node> {
    topology.by_port_guid(port).and_then(|end| topology.node(end.node))
}

#[cfg(test)]
mod tests {
    use fabric_model::ibnetdiscover;

    use super::*;

    /// A fabric of 144 adapters, recorded in 2014: `stage97 mlx4_0`, most with two ports of which either is cabled.
    const RECORDED: &str = include_str!("../../../fixtures/topologies/loginoff-2014.ibnetdiscover");

    fn names(topology: &Topology) -> Vec<Name> {
        topology.end_nodes().filter_map(|(_, node)| node.host_name().parse().ok()).collect()
    }

    #[test]
    fn all_hosts_of_a_recorded_fabric_are_found() {
        let topology = ibnetdiscover::parse(RECORDED).unwrap();
        let names = names(&topology);
        assert_eq!(names.len(), 144);
        let (bound, ports) = (choose(names.iter(), &topology, &[]), host_ports(&topology));
        assert_eq!(bound.len(), 144);
        assert!(bound.iter().all(|(_, guid)| ports.contains_key(guid)));
    }

    #[test]
    fn two_adapters_of_a_host_bind_nothing() {
        let twice = RECORDED.replace("stage99 mlx4_0", "stage97 mlx4_1");
        let topology = ibnetdiscover::parse(&twice).unwrap();
        let pending: [Name; 2] = ["stage97".parse().unwrap(), "stage101".parse().unwrap()];
        let bound = choose(pending.iter(), &topology, &[]);
        assert_eq!(bound.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["stage101"]);
    }

    #[test]
    fn aggregation_nodes_and_routers_are_never_hosts() {
        const FABRIC: &str = r#"
Switch 41 "S-0000000000000010" # "leaf"
[1] "H-0000000000000020"[1]
[2] "R-0000000000000030"[1]
[41] "H-0000000000000018"[1]

Ca 1 "H-0000000000000020" # "node17 mlx5_0"
[1](21) "S-0000000000000010"[1]

Rt 1 "R-0000000000000030" # "node18 router"
[1](31) "S-0000000000000010"[2]

vendid=0x2c9
devid=0xcf09
Ca 1 "H-0000000000000018" # "node19"
[1](19) "S-0000000000000010"[41]
"#;
        let topology = ibnetdiscover::parse(FABRIC).unwrap();
        let pending: [Name; 3] = ["node17", "node18", "node19"].map(|name| name.parse().unwrap());
        let host = Guid::from_wire(0x21).unwrap();
        assert_eq!(choose(pending.iter(), &topology, &[]), [(pending[0].clone(), host)]);
        assert_eq!(
            host_ports(&topology).into_keys().collect::<Vec<_>>(),
            [host],
            "a GUID does not help them either"
        );
    }
}
