//! From observed nodes to a topology, which is reported if it has changed.

use std::collections::BTreeMap;

use fabric_model::intent::{Capabilities, PortName};
use fabric_model::{BuildError, Endpoint, LinkRate, NewNode, NodeIndex, Topology, TopologyBuilder};
use ib_wire::{Guid, NodeKind, PortNum};

use crate::event::{Discovery, SmEvent};
use crate::lacks::Lacks;
use crate::manager::Manager;
use crate::observed::{Observed, ObservedNode};

impl Manager {
    /// Reports the fabric if its devices lack other entries than in the last report. Returns whether it was reported.
    pub(crate) fn report_capabilities(&mut self) -> bool {
        self.observed.own.is_some_and(|own| self.report_fabric(own.guid))
    }

    /// Reports the fabric, unless it is as it was. Returns whether it was reported.
    pub(crate) fn report_fabric(&mut self, manager: Guid) -> bool {
        match topology(&self.observed, &self.lacks) {
            Ok((topology, capabilities)) => {
                let lacks = self.lacks.clone();
                let standby_managers = self.declared_managers();
                self.publish_discovery(Discovery { topology, capabilities, lacks, manager, standby_managers })
            }
            Err(error) => {
                self.emit(SmEvent::Inconsistent(error));
                false
            }
        }
    }

    /// Reports a discovery, unless it equals the last one. Returns whether it was reported.
    fn publish_discovery(&mut self, found: Discovery) -> bool {
        let is_new = self.last_discovery.as_deref() != Some(&found);
        if is_new {
            self.last_discovery = Some(Box::new(found.clone()));
            self.emit(SmEvent::Discovered(Box::new(found)));
        }
        is_new
    }
}

/// The topology and the capabilities of the observed nodes, without what they lack and without avoided links.
fn topology(observed: &Observed, lacks: &Lacks) -> Result<(Topology, Capabilities), BuildError> {
    let nodes = &observed.nodes;
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
            if observed.avoided.contains(&PortName { node: *guid, port: *port }) {
                continue;
            }
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
