//! A slice under its aliases: the topology that a tenant sees, and the mapping back to the physical network.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_model::decisions::{Decisions, EndPortDecision};
use fabric_model::intent::{
    Capabilities, Intents, Member, MemberSelector, PartitionIntent, PkeyPlacement, PortCapability, PortName,
    Role, SwitchCapability,
};
use fabric_model::plan::LinearTable;
use fabric_model::{BuildError, Endpoint, NewNode, NodeIndex, Topology, TopologyBuilder};
use fabric_sim::Capacities;
use ib_wire::{Guid, Lid, NodeKind, PartitionNumber, PortNum};
use serde::Serialize;

use crate::names::Names;
use crate::slice::{Slice, Visit};

/// The only port of a virtual machine's adapter.
pub(crate) const ADAPTER_PORT: PortNum = match PortNum::new(1) {
    Some(port) => port,
    None => unreachable!(),
};

/// A slice as its tenant sees it.
#[derive(Debug)]
pub(crate) struct Projection {
    pub topology: Topology,
    /// The virtual machines in the order of the slice.
    pub nodes: Vec<ProjectedNode>,
    /// By GUID in the view.
    pub switches: BTreeMap<Guid, ProjectedSwitch>,
    /// The switch with the lowest number, to which the default SM is attached.
    pub first_switch: Guid,
}

#[derive(Clone, Debug)]
pub(crate) struct ProjectedNode {
    pub name: String,
    pub number: u32,
    pub port_guid: Guid,
    pub guid: Guid,
    pub lid: Lid,
    /// The switch port in front of it, in the view.
    pub access: PortName,
}

#[derive(Clone, Debug)]
pub(crate) struct ProjectedSwitch {
    pub physical: Guid,
    pub number: u32,
    pub lid: Lid,
    /// By port number in the view.
    pub ports: BTreeMap<PortNum, PortMapping>,
}

/// The physical port behind a port of a switch in the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortMapping {
    /// In front of a virtual machine: its index among the nodes, and the physical port.
    Access(usize, PortNum),
    /// Cabled to another switch.
    Link {
        physical: PortNum,
        /// The other end of the cable, in the view.
        peer: PortName,
    },
}

/// The addresses of a virtual machine in its view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeAlias {
    pub node: String,
    /// Node GUID of its adapter.
    pub guid: Guid,
    pub port_guid: Guid,
    /// LID by default; a subnet manager of the tenant may change it.
    pub lid: Lid,
}

impl Projection {
    /// Projects a slice that `names` has learned.
    pub fn of(slice: &Slice, names: &Names) -> Result<Self, BuildError> {
        let (nodes, switches) = (nodes(slice, names), switches(slice, names));
        let by_number: BTreeMap<u32, (Guid, &ProjectedSwitch)> =
            switches.iter().map(|(guid, switch)| (switch.number, (*guid, switch))).collect();
        let mut builder = TopologyBuilder::new();
        let mut indices: BTreeMap<Guid, NodeIndex> = BTreeMap::new();
        for (number, (guid, switch)) in &by_number {
            let size = names.switch(switch.physical).map_or(1, |(_, size)| size);
            let mut node = NewNode::new(NodeKind::Switch, id('S', *guid), *guid, size);
            node.description = format!("switch-{number}");
            indices.insert(*guid, builder.add_node(node)?);
        }
        for node in &nodes {
            let mut adapter =
                NewNode::new(NodeKind::Adapter, id('H', node.guid), node.guid, ADAPTER_PORT.to_wire());
            adapter.description = node.name.clone();
            let index = builder.add_node(adapter)?;
            builder.set_port_guid(Endpoint::new(index, ADAPTER_PORT), node.port_guid)?;
            indices.insert(node.guid, index);
        }
        let end = |name: PortName| Endpoint::new(indices[&name.node], name.port);
        for (guid, switch) in by_number.values() {
            for (number, mapping) in &switch.ports {
                let here = PortName { node: *guid, port: *number };
                match mapping {
                    PortMapping::Access(index, _) => {
                        let adapter = PortName { node: nodes[*index].guid, port: ADAPTER_PORT };
                        builder.connect(end(here), end(adapter), slice.nodes[*index].rate)?;
                    }
                    PortMapping::Link { physical, peer } if here < *peer => {
                        let physical = PortName { node: switch.physical, port: *physical };
                        let rate = slice.cables.get(&physical).and_then(|cable| cable.rate);
                        builder.connect(end(here), end(*peer), rate)?;
                    }
                    PortMapping::Link { .. } => {}
                }
            }
        }
        let first_switch = by_number.values().next().map(|(guid, _)| *guid);
        let first_switch = first_switch.expect("a slice has at least the switch of its first node");
        Ok(Self { topology: builder.build()?, nodes, switches, first_switch })
    }

    /// Table sizes of the view's devices.
    pub fn capacities(&self) -> Capacities {
        let ends = self.nodes.len() + self.switches.len();
        let highest =
            self.nodes.iter().map(|node| node.lid).chain(self.switches.values().map(|s| s.lid)).max();
        let highest = highest.map_or(0, Lid::to_wire);
        Capacities {
            pkeys: PKEYS,
            linear_forwarding: linear_capacity(ends, highest),
            multicast_forwarding: MULTICAST,
            guids: GUIDS,
            ..Capacities::default()
        }
    }

    /// The default intents of the view: one partition with all ports as full members.
    pub fn intents(&self) -> Intents {
        let capacities = self.capacities();
        let mut intents = Intents::new(self.first_switch);
        intents.partitions = vec![PartitionIntent {
            name: "Default".to_owned(),
            number: Some(PartitionNumber::DEFAULT),
            members: vec![Member {
                selector: MemberSelector::All,
                role: Role::Full,
                placement: PkeyPlacement::First,
            }],
            ipoib: None,
        }];
        intents.capabilities = Capabilities {
            default_port: PortCapability {
                pkeys: capacities.pkeys,
                mtu: capacities.mtu,
                lanes: capacities.lanes,
                arbitration: capacities.arbitration_entries,
                ..PortCapability::default()
            },
            default_switch: SwitchCapability {
                linear: capacities.linear_forwarding,
                multicast: capacities.multicast_forwarding,
                enforced_pkeys: capacities.pkeys,
                own_pkeys: capacities.switch_pkeys,
                filters_raw: true,
            },
            ..Capabilities::default()
        };
        intents
    }

    /// The decisions that precede compilation: the LIDs of the aliases.
    pub fn decisions(&self) -> Decisions {
        let mut decisions = Decisions::default();
        let mut restore_default = |guid, lid| {
            decisions
                .end_ports
                .insert(guid, EndPortDecision { lid, uplink_path: Vec::new(), pkeys: Vec::new() });
        };
        self.nodes.iter().for_each(|node| restore_default(node.port_guid, node.lid));
        self.switches.iter().for_each(|(guid, switch)| restore_default(*guid, switch.lid));
        decisions
    }

    /// The cluster's routes as linear forwarding tables in the view, by switch.
    pub fn adopted_tables(&self, slice: &Slice) -> BTreeMap<Guid, Arc<LinearTable>> {
        let tables = self.switches.iter().map(|(guid, switch)| (*guid, self.adopted_table(slice, switch)));
        tables.map(|(guid, table)| (guid, Arc::new(table))).collect()
    }

    /// The cluster's routes at one switch.
    fn adopted_table(&self, slice: &Slice, switch: &ProjectedSwitch) -> LinearTable {
        let by_physical: BTreeMap<PortNum, PortNum> = (switch.ports.iter())
            .filter_map(|(number, mapping)| match mapping {
                PortMapping::Link { physical, .. } => Some((*physical, *number)),
                PortMapping::Access(..) => None,
            })
            .collect();
        let top = self.nodes.iter().map(|node| usize::from(node.lid.to_wire())).max().unwrap_or(0);
        let mut exits = vec![0xff; top + 1];
        for (port, mapping) in &switch.ports {
            if let PortMapping::Access(index, _) = mapping {
                exits[usize::from(self.nodes[*index].lid.to_wire())] = port.to_wire();
            }
        }
        for (node, slice_node) in self.nodes.iter().zip(&slice.nodes) {
            let exit = slice_node.exits.get(&switch.physical).and_then(|exit| by_physical.get(exit));
            if let Some(exit) = exit {
                exits[usize::from(node.lid.to_wire())] = exit.to_wire();
            }
        }
        LinearTable::from_exits(exits)
    }

    /// Addresses of the virtual machines, in order.
    pub fn aliases(&self) -> Vec<NodeAlias> {
        let alias = |node: &ProjectedNode| NodeAlias {
            node: node.name.clone(),
            guid: node.guid,
            port_guid: node.port_guid,
            lid: node.lid,
        };
        self.nodes.iter().map(alias).collect()
    }
}

/// P_Key table entries of a port: one block, hence at most that many sub-partitions on a port.
pub(crate) const PKEYS: u16 = 32;
/// Multicast table entries of a switch: broadcast and a few other groups in each sub-partition.
const MULTICAST: u16 = 128;
/// GUID table entries of an adapter port.
const GUIDS: u8 = 8;
/// Linear forwarding table entries in the smallest views.
const LINEAR_MIN: u16 = 1024;
/// Table entries for each end port, so that managers can use LMC and nodes can be added.
const LINEAR_EACH: usize = 4;
/// The number of unicast LIDs.
const LINEAR_MAX: u16 = 0xc000;

/// Linear forwarding table entries of a view: a power of two, so that growth rarely changes it.
fn linear_capacity(ends: usize, highest: u16) -> u16 {
    let wanted = (ends * LINEAR_EACH).max(usize::from(highest) * 2).max(usize::from(LINEAR_MIN));
    u16::try_from(wanted.next_power_of_two()).unwrap_or(u16::MAX).min(LINEAR_MAX)
}

fn id(kind: char, guid: Guid) -> String {
    format!("{kind}-{:016x}", guid.to_wire())
}

fn nodes(slice: &Slice, names: &Names) -> Vec<ProjectedNode> {
    let project = |node: &crate::slice::SliceNode| {
        let alias = names.node(&node.node)?;
        let (switch, _) = names.switch(node.access.node)?;
        let port = names.access(node.access.node, &node.node)?;
        let numbered = || Guid::from_wire(alias.guid.to_wire() + u64::from(ADAPTER_PORT.to_wire()));
        Some(ProjectedNode {
            name: node.node.clone(),
            number: alias.number,
            guid: node.guid.unwrap_or(alias.guid),
            port_guid: node.guid.or_else(numbered)?,
            lid: alias.lid,
            access: PortName { node: switch.guid, port },
        })
    };
    slice.nodes.iter().map(|node| project(node).expect("the names have learned the slice")).collect()
}

fn switches(slice: &Slice, names: &Names) -> BTreeMap<Guid, ProjectedSwitch> {
    let mut switches: BTreeMap<Guid, ProjectedSwitch> = BTreeMap::new();
    let alias = |physical: Guid| names.switch(physical).expect("the names have learned the slice").0;
    for visit in &slice.visits {
        match *visit {
            Visit::Node(_) => {}
            Visit::Switch(physical) => {
                let alias = alias(physical);
                let switch = ProjectedSwitch {
                    physical,
                    number: alias.number,
                    lid: alias.lid,
                    ports: BTreeMap::new(),
                };
                switches.insert(alias.guid, switch);
            }
            Visit::Access(physical, index) => {
                let node = &slice.nodes[index];
                let port = names.access(physical, &node.node).expect("the names have learned the slice");
                let mapping = PortMapping::Access(index, node.access.port);
                if let Some(switch) = switches.get_mut(&alias(physical).guid) {
                    switch.ports.insert(port, mapping);
                }
            }
            Visit::Link(name) => {
                let port = names.link(name.node, name.port).expect("the names have learned the slice");
                let peer = slice.cables[&name].peer;
                let peer_port = names.link(peer.node, peer.port).expect("the names have learned the slice");
                let peer = PortName { node: alias(peer.node).guid, port: peer_port };
                if let Some(switch) = switches.get_mut(&alias(name.node).guid) {
                    switch.ports.insert(port, PortMapping::Link { physical: name.port, peer });
                }
            }
        }
    }
    switches
}
