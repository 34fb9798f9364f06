//! From observed nodes to a topology.

use std::collections::BTreeMap;

use fabric_model::intent::Capabilities;
use fabric_model::{BuildError, Endpoint, LinkRate, NewNode, NodeIndex, Topology, TopologyBuilder};
use ib_wire::{Guid, NodeKind, PortNum};

use crate::lacks::Lacks;
use crate::observed::ObservedNode;

/// The topology and the capabilities of the observed nodes, without what they lack.
pub(crate) fn topology(
    nodes: &BTreeMap<Guid, ObservedNode>,
    lacks: &Lacks,
) -> Result<(Topology, Capabilities), BuildError> {
    let mut builder = TopologyBuilder::new();
    let mut capabilities = Capabilities::default();
    let mut indices: BTreeMap<Guid, NodeIndex> = BTreeMap::new();
    for (guid, node) in nodes {
        indices.insert(*guid, builder.add_node(new_node(*guid, node))?);
        node.add_capabilities(lacks, &mut capabilities);
    }
    for (guid, node) in nodes {
        for (port, port_guid) in node.port_guids.iter().filter(|_| !node.is_switch()) {
            builder.set_port_guid(Endpoint::new(indices[guid], *port), *port_guid)?;
        }
        for (port, (peer, peer_port)) in &node.links {
            let (here, there) = (Endpoint::new(indices[guid], *port), peer_end(&indices, *peer, *peer_port));
            // A cable is observed from both ends, but added once.
            if let Some(there) = there.filter(|there| here < *there) {
                builder.connect(here, there, link_rate(node, *port, nodes.get(peer), *peer_port))?;
            }
        }
    }
    Ok((builder.build()?, capabilities))
}

/// The rate of a link by the registers of both its ports; the slower one if they differ.
fn link_rate(
    node: &ObservedNode,
    port: PortNum,
    peer: Option<&ObservedNode>,
    peer_port: PortNum,
) -> Option<LinkRate> {
    let rates = [node.link_rate(port), peer.and_then(|peer| peer.link_rate(peer_port))];
    rates.into_iter().flatten().min_by(|a, b| a.data_rate_gbps().total_cmp(&b.data_rate_gbps()))
}

fn new_node(guid: Guid, node: &ObservedNode) -> NewNode {
    let letter = match node.info.kind {
        NodeKind::Switch => 'S',
        NodeKind::Router => 'R',
        _ => 'H',
    };
    let mut new = NewNode::new(node.info.kind, format!("{letter}-{guid:016x}"), guid, node.info.port_count);
    if let Some(description) = &node.description {
        new.description = description.text();
    }
    new
}

fn peer_end(indices: &BTreeMap<Guid, NodeIndex>, peer: Guid, port: PortNum) -> Option<Endpoint> {
    indices.get(&peer).map(|index| Endpoint::new(*index, port))
}
