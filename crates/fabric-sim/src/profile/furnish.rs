//! What a profile adds to a topology: rates of cables, enhanced ports 0, aggregation nodes.

use std::collections::HashSet;

use fabric_model::{
    BuildError, Endpoint, LinkRate, NewNode, Node, NodeIndex, PortZero, Speed, Topology, TopologyBuilder,
    Width,
};
use ib_wire::{Guid, NodeKind, PortNum};

use super::DeviceProfile;

/// Distance between the GUIDs of a switch and of its aggregation node (A-PROF-4).
const AGGREGATION_GUID_OFFSET: u64 = 8;

/// Rate of the internal link to an aggregation node.
const AGGREGATION_RATE: LinkRate = LinkRate { speed: Speed::Hdr, width: Width::X4 };

impl DeviceProfile {
    /// The topology of a fabric that is built of these devices. Nodes keep their indices; aggregation nodes
    /// follow them.
    ///
    /// Fails if a switch has no room for another port.
    pub fn furnish(&self, topology: &Topology) -> Result<Topology, BuildError> {
        let mut builder = TopologyBuilder::new();
        for (_, node) in topology.nodes() {
            builder.add_node(self.furnished_node(node))?;
        }
        for (index, node) in topology.nodes() {
            copy_ports(&mut builder, index, node)?;
        }
        let mut rates = self.links.rates.iter().copied().cycle();
        for link in topology.links() {
            builder.connect(link.a, link.b, rates.next())?;
        }
        if self.switches.aggregation_nodes {
            add_aggregation_nodes(&mut builder, topology)?;
        }
        builder.build()
    }

    fn furnished_node(&self, node: &Node) -> NewNode {
        let extra_port = u8::from(node.is_switch() && self.switches.aggregation_nodes);
        let is_enhanced = self.switches.enhanced_port_0 && node.port_0 == PortZero::Unknown;
        NewNode {
            id: node.id.clone(),
            kind: node.kind,
            guid: node.guid,
            port_count: node.port_count().saturating_add(extra_port),
            system_guid: node.system_guid,
            vendor_id: node.vendor_id,
            device_id: node.device_id,
            description: node.description.clone(),
            port_0: if is_enhanced { PortZero::Enhanced } else { node.port_0 },
        }
    }
}

fn copy_ports(builder: &mut TopologyBuilder, index: NodeIndex, node: &Node) -> Result<(), BuildError> {
    for (number, port) in node.ports() {
        let end = Endpoint::new(index, number);
        builder.set_port_guid(end, port.guid)?;
        if !node.is_switch() || number == PortNum::MANAGEMENT {
            builder.set_lid(end, port.lid, port.lmc)?;
        }
        builder.set_enabled(end, port.enabled_width, port.enabled_speed)?;
        builder.set_rate(end, port.rate)?;
    }
    Ok(())
}

fn add_aggregation_nodes(builder: &mut TopologyBuilder, topology: &Topology) -> Result<(), BuildError> {
    let mut guids: HashSet<Guid> = topology.nodes().map(|(_, node)| node.guid).collect();
    guids.extend(topology.nodes().flat_map(|(_, node)| node.ports().map(|(_, port)| port.guid)));
    for (switch, node) in topology.switches() {
        let guid = free_guid(node.guid, &guids);
        guids.insert(guid);
        let aggregation = builder.add_node(NewNode {
            system_guid: Some(node.system_guid.unwrap_or(node.guid)),
            vendor_id: Some(Node::AGGREGATION_VENDOR),
            device_id: Some(Node::AGGREGATION_DEVICE),
            description: Node::AGGREGATION_DESCRIPTION.to_owned(),
            ..NewNode::new(NodeKind::Adapter, format!("H-{:016x}", guid.to_wire()), guid, 1)
        })?;
        let last = node.port_count().saturating_add(1);
        let [own, last] = [1, last].map(|number| PortNum::new(number).unwrap_or(PortNum::MANAGEMENT));
        let own = Endpoint::new(aggregation, own);
        builder.set_port_guid(own, guid)?;
        builder.connect(Endpoint::new(switch, last), own, Some(AGGREGATION_RATE))?;
    }
    Ok(())
}

/// The GUID after that of the switch, in steps of the usual distance, that nothing has.
fn free_guid(switch: Guid, taken: &HashSet<Guid>) -> Guid {
    let candidates = (1..).map(|step| switch.to_wire().wrapping_add(step * AGGREGATION_GUID_OFFSET));
    let mut free = candidates.filter_map(Guid::from_wire).filter(|guid| !taken.contains(guid));
    free.next().unwrap_or(switch)
}

#[cfg(test)]
mod tests {
    use fabric_model::generate::FatTree;

    use super::*;
    use crate::BuiltInProfile;

    fn tree() -> Topology {
        FatTree { radix: 4, ..FatTree::with_hosts(4) }.generate().unwrap()
    }

    #[test]
    fn the_strict_profile_leaves_a_topology_as_it_is() {
        assert_eq!(DeviceProfile::default().furnish(&tree()).unwrap(), tree());
    }

    #[test]
    fn every_quantum_switch_has_an_aggregation_node_at_its_last_port() {
        let topology = BuiltInProfile::ConnectX6Quantum.profile().furnish(&tree()).unwrap();
        let switches = tree().switches().count();
        assert_eq!(topology.node_count(), tree().node_count() + switches);
        let mut found = 0;
        for (_, node) in topology.end_nodes().filter(|(_, node)| node.is_aggregation_node()) {
            let (_, peer) = node.cabled_ports().next().unwrap();
            assert_eq!(peer.port.to_wire(), topology[peer.node].port_count());
            found += 1;
        }
        assert_eq!(found, switches);
    }

    #[test]
    fn cables_take_the_rates_of_the_profile_in_turn() {
        let mut profile = DeviceProfile::default();
        profile.links.rates = ["4xSDR", "4xFDR10", "4xHDR"].map(|rate| rate.parse().unwrap()).to_vec();
        let topology = profile.furnish(&tree()).unwrap();
        let rates: Vec<String> = topology.links().map(|link| link.rate.unwrap().to_string()).collect();
        let expected = ["4xSDR", "4xFDR10", "4xHDR"].into_iter().cycle().take(rates.len());
        assert!(rates.len() > 3);
        assert_eq!(rates, expected.collect::<Vec<_>>());
    }
}
