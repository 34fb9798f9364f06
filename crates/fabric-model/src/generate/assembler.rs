//! Assembles generated fabrics: assigns GUIDs and ports in order.

use ib_wire::{Guid, NodeKind, PortNum};

use super::GenerateError;
use crate::builder::{NewNode, TopologyBuilder};
use crate::link_rate::{LinkRate, Speed};
use crate::topology::{Endpoint, NODES_MAX, NodeIndex, PortZero, Topology};

/// First GUID of generated adapters; with a Mellanox prefix, which tools expect.
const ADAPTER_GUIDS: u64 = 0x0002_c903_0010_0000;

/// First GUID of generated switches: behind the adapters of the largest fabric.
const SWITCH_GUIDS: u64 = ADAPTER_GUIDS + GUID_STEP * NODES_MAX as u64;

/// Distance between the GUIDs of two nodes. Real adapters leave room for port GUIDs and the system image GUID.
const GUID_STEP: u64 = 0x10;

/// Vendor id of Mellanox.
const VENDOR_ID: u32 = 0x2c9;

/// A [`TopologyBuilder`] that numbers nodes and picks the next free port of each.
#[derive(Debug)]
pub(super) struct Assembler {
    builder: TopologyBuilder,
    rate: LinkRate,
    radix: u8,
    adapters: u64,
    switches: u64,
    /// Next free port of each node.
    next_port: Vec<u8>,
}

impl Assembler {
    pub fn new(radix: u8, rate: LinkRate) -> Self {
        Self { builder: TopologyBuilder::new(), rate, radix, adapters: 0, switches: 0, next_port: Vec::new() }
    }

    /// Adds a switch with `radix` ports.
    pub fn switch(&mut self, description: String) -> Result<NodeIndex, GenerateError> {
        let guid = guid(SWITCH_GUIDS + GUID_STEP * self.switches);
        self.switches += 1;
        let (device_id, _) = device_ids(self.rate.speed);
        self.add(NewNode {
            system_guid: Some(guid),
            device_id: Some(device_id),
            description,
            port_0: PortZero::Enhanced,
            ..NewNode::new(NodeKind::Switch, format!("S-{:016x}", guid.to_wire()), guid, self.radix)
        })
    }

    /// Adds a host with one adapter and connects it to the next free port of a switch.
    pub fn host(&mut self, switch: NodeIndex) -> Result<(), GenerateError> {
        let guid_number = ADAPTER_GUIDS + GUID_STEP * self.adapters;
        let node_guid = guid(guid_number);
        self.adapters += 1;
        let (_, device_id) = device_ids(self.rate.speed);
        let host = self.add(NewNode {
            system_guid: Some(guid(guid_number + 3)),
            device_id: Some(device_id),
            description: format!("host-{:05}", self.adapters),
            ..NewNode::new(NodeKind::Adapter, format!("H-{guid_number:016x}"), node_guid, 1)
        })?;
        self.cable(switch, host)
    }

    /// Connects the next free ports of two nodes.
    pub fn cable(&mut self, a: NodeIndex, b: NodeIndex) -> Result<(), GenerateError> {
        let (a, b) = (self.free_port(a)?, self.free_port(b)?);
        Ok(self.builder.connect(a, b, Some(self.rate))?)
    }

    /// Skips the next `ports` ports of a node, for hosts that are added later.
    pub fn reserve(&mut self, node: NodeIndex, ports: u8) {
        self.next_port[node.index()] += ports;
    }

    /// Continues at port 1 of a node, to fill the ports that were reserved.
    pub fn rewind(&mut self, node: NodeIndex) {
        self.next_port[node.index()] = 1;
    }

    pub fn finish(self) -> Result<Topology, GenerateError> {
        Ok(self.builder.build()?)
    }

    fn add(&mut self, node: NewNode) -> Result<NodeIndex, GenerateError> {
        self.next_port.push(1);
        Ok(self.builder.add_node(NewNode { vendor_id: Some(VENDOR_ID), ..node })?)
    }

    fn free_port(&mut self, node: NodeIndex) -> Result<Endpoint, GenerateError> {
        let number = self.next_port[node.index()];
        self.next_port[node.index()] = number.saturating_add(1);
        let port = PortNum::new(number);
        let port = port.ok_or(GenerateError::TooFewPorts { needed: number.into(), radix: self.radix })?;
        Ok(Endpoint::new(node, port))
    }
}

fn guid(number: u64) -> Guid {
    Guid::from_wire(number).expect("generated GUIDs begin above 0")
}

/// Device ids of the switch and the adapter generation of a speed.
fn device_ids(speed: Speed) -> (u16, u16) {
    match speed {
        Speed::Sdr | Speed::Ddr | Speed::Qdr | Speed::Fdr10 | Speed::Fdr => (0xc738, 0x1003),
        Speed::Edr => (0xcb20, 0x1013),
        Speed::Hdr => (0xd2f0, 0x101b),
        Speed::Ndr => (0xd2f2, 0x1021),
    }
}
