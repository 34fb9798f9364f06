//! A fabric in the format of opensm's `opensm-subnet.lst`, which ibdmchk reads: a line for each end of each cable.

use anyhow::Context;
use fabric_model::{Endpoint, Topology};
use ib_wire::PortNum;

use crate::probe::FabricSnapshot;

/// Writes the fabric with the LIDs its ports have.
pub fn write(topology: &Topology, seen: &FabricSnapshot) -> anyhow::Result<String> {
    let mut text = String::new();
    for (index, node) in topology.nodes() {
        for (number, peer) in node.cabled_ports() {
            let near = end(topology, seen, Endpoint::new(index, number))?;
            text += &format!("{near} {} PHY=4x LOG=ACT SPD=10\n", end(topology, seen, peer)?);
        }
    }
    Ok(text)
}

fn end(topology: &Topology, seen: &FabricSnapshot, end: Endpoint) -> anyhow::Result<String> {
    let node = topology.node(end.node).context("a cable that ends at an unknown node")?;
    let port = node.port(end.port).context("a cable without a port")?;
    let (kind, addressed, guid) = if node.is_switch() {
        ("SW", Endpoint::new(end.node, PortNum::MANAGEMENT), node.guid)
    } else {
        ("CA", end, port.guid)
    };
    let lid = seen.lids.get(&addressed).with_context(|| format!("{} has no LID", node.id))?;
    let plain: String = node.description.chars().filter(|char| !"{}".contains(*char)).collect();
    Ok(format!(
        "{{ {kind} Ports:{:02X} SystemGUID:{:016x} NodeGUID:{:016x} PortGUID:{:016x} VenID:{:06X} DevID:{:04X} \
         Rev:00000000 {{{plain}}} LID:{:04X} PN:{:02X} }}",
        node.port_count(),
        node.system_guid.unwrap_or(node.guid).to_wire(),
        node.guid.to_wire(),
        guid.to_wire(),
        node.vendor_id.unwrap_or(0),
        node.device_id.unwrap_or(0),
        lid.to_wire(),
        end.port.to_wire(),
    ))
}
