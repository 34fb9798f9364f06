//! A topology as a document for other programs, serialized with serde.

use ib_wire::{Guid, Lid, NodeKind, PortNum};
use serde::Serialize;

use crate::link_rate::LinkRate;
use crate::summary::TopologySummary;
use crate::topology::{Endpoint, Node, Topology};

/// A topology as plain records: a summary, the nodes in file order, and the links, whose ends refer to nodes by index.
/// It can be serialized only.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    summary: TopologySummary,
    nodes: Vec<NodeEntry>,
    links: Vec<LinkEntry>,
}

#[derive(Clone, Debug, Serialize)]
struct NodeEntry {
    id: String,
    kind: &'static str,
    guid: Guid,
    system_guid: Option<Guid>,
    vendor_id: Option<u32>,
    device_id: Option<u16>,
    description: String,
    port_count: u8,
    /// LID of port 0 of a switch; on other nodes the LID of the first port that has one.
    lid: Option<Lid>,
}

#[derive(Clone, Debug, Serialize)]
struct LinkEntry {
    a: Endpoint,
    b: Endpoint,
    rate: Option<LinkRate>,
    port_guids: [Guid; 2],
}

impl Document {
    /// Builds the document of a topology.
    pub fn of(topology: &Topology) -> Self {
        let guid_of = |end| topology.port(end).expect("links end at ports").guid;
        let links = topology.links().map(|link| LinkEntry {
            a: link.a,
            b: link.b,
            rate: link.rate,
            port_guids: [guid_of(link.a), guid_of(link.b)],
        });
        Self {
            summary: TopologySummary::of(topology),
            nodes: topology.nodes().map(|(_, node)| entry(node)).collect(),
            links: links.collect(),
        }
    }
}

fn entry(node: &Node) -> NodeEntry {
    NodeEntry {
        id: node.id.clone(),
        kind: match node.kind {
            NodeKind::Switch => "switch",
            NodeKind::Router => "router",
            NodeKind::Adapter | NodeKind::Unknown(_) => "adapter",
        },
        guid: node.guid,
        system_guid: node.system_guid,
        vendor_id: node.vendor_id,
        device_id: node.device_id,
        description: node.description.clone(),
        port_count: node.port_count(),
        lid: node.port(PortNum::MANAGEMENT).and_then(|port| port.lid).or_else(|| first_lid(node)),
    }
}

fn first_lid(node: &Node) -> Option<Lid> {
    node.ports().find_map(|(_, port)| port.lid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Torus;

    #[test]
    fn links_refer_to_nodes_by_index() {
        let document = Document::of(&Torus::new([2, 2]).generate().unwrap());
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["summary"]["links"], 8);
        assert_eq!(json["nodes"][0]["description"], "switch-0-0");
        assert_eq!(json["links"][0]["a"], serde_json::json!({ "node": 0, "port": 1 }));
        assert_eq!(json["links"][0]["rate"], "4xEDR");
    }
}
