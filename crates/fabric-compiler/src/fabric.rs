//! The part of a topology that the manager reaches, in the form that the compiler uses: switches in order of their GUIDs,
//! and what is attached to them. All decisions iterate in this order, so the order of the topology's nodes does not matter.

use std::collections::BTreeSet;

use fabric_model::intent::{Capabilities, PortName, UnenforcedPorts};
use fabric_model::plan::PlanFinding;
use fabric_model::{Endpoint, Intents, NodeIndex, Topology};
use ib_wire::{Guid, NodeKind, PortNum};

use crate::CompileError;

/// An index into [`Fabric::switches`].
pub(crate) type SwitchIndex = usize;

/// The switches and end ports that the manager reaches.
#[derive(Debug)]
pub(crate) struct Fabric {
    /// Ordered by node GUID.
    pub switches: Vec<Switch>,
    /// Ordered by switch and switch port; ports that are not attached to a switch last.
    pub adapter_ports: Vec<AdapterPort>,
    /// GUID of the manager's port.
    pub manager: Guid,
    /// GUIDs of the ports of all managers, those of absent standby managers included.
    pub managers: BTreeSet<Guid>,
    /// Unreached nodes: their number, and the lowest GUID.
    pub unreached: Option<(usize, Guid)>,
    /// The finding about adapter ports whose partitions their switch ports cannot enforce.
    pub unenforced: Option<PlanFinding>,
    /// All end ports, ordered by GUID.
    ends: Vec<(Guid, EndPort)>,
}

/// The owner of an end port.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EndPort {
    /// An adapter or a router: index into [`Fabric::adapter_ports`].
    Adapter(usize),
    /// Port 0 of a switch.
    Switch(SwitchIndex),
}

/// A switch and what is attached to it.
#[derive(Debug)]
pub(crate) struct Switch {
    pub node: NodeIndex,
    pub guid: Guid,
    /// GUID of its port 0.
    pub port_guid: Guid,
    /// Ordered by switch.
    pub neighbours: Vec<Neighbour>,
    /// Its range in [`Fabric::adapter_ports`].
    pub adapters: std::ops::Range<usize>,
}

/// An adjacent switch and the cables to it.
#[derive(Debug)]
pub(crate) struct Neighbour {
    pub switch: SwitchIndex,
    /// Ordered by near port; never empty.
    pub cables: Vec<Cable>,
}

/// A cable between two switches, seen from one end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cable {
    pub near: PortNum,
    pub far: PortNum,
}

/// A port of an adapter or a router.
#[derive(Debug)]
pub(crate) struct AdapterPort {
    pub guid: Guid,
    pub name: PortName,
    pub kind: NodeKind,
    pub end: Endpoint,
    pub peer: Endpoint,
    /// The switch and port that it is attached to.
    pub attached: Option<(SwitchIndex, PortNum)>,
    /// The number of P_Keys that the switch port enforces; 0 if it does not enforce partitions.
    pub enforced_pkeys: u16,
}

impl Fabric {
    /// The part of a topology that the manager's port reaches, without the ports that nothing could isolate.
    pub fn around(topology: &Topology, intents: &Intents) -> Result<Self, CompileError> {
        let manager = intents.manager;
        let start =
            topology.by_port_guid(manager).ok_or(CompileError::ManagerMissing { port_guid: manager })?;
        let reached = reached_from(topology, start);
        if !topology[start.node].is_switch() && topology.peer(start).is_none() {
            return Err(CompileError::ManagerUnplugged { port_guid: manager });
        }
        let mut nodes = reached.switches.clone();
        nodes.sort_unstable_by_key(|node| topology[*node].guid);
        let mut indices = vec![None; topology.node_count()];
        for (index, node) in nodes.iter().enumerate() {
            indices[node.index()] = Some(index);
        }
        let mut adapter_ports = adapter_ports(topology, &reached.ends, &indices, &intents.capabilities);
        let unenforced = take_unenforced(&mut adapter_ports, intents);
        let switches: Vec<Switch> = (nodes.iter().enumerate())
            .map(|(index, node)| switch(topology, *node, index, &indices, &adapter_ports))
            .collect();
        let unreached = unreached(topology, &reached);
        let ends = ends(&switches, &adapter_ports);
        let managers = intents.managers().collect();
        Ok(Self { switches, adapter_ports, manager, managers, unreached, unenforced, ends })
    }

    /// The first switch on the manager's paths: the one it runs on or is attached to.
    pub fn manager_switch(&self) -> Option<SwitchIndex> {
        let own = self.switches.iter().position(|switch| switch.port_guid == self.manager);
        let attached = || {
            let port = self.adapter_ports.iter().find(|port| port.guid == self.manager)?;
            port.attached.map(|(index, _)| index)
        };
        own.or_else(attached)
    }

    /// The switch with this node GUID.
    pub fn switch_index(&self, guid: Guid) -> Option<SwitchIndex> {
        self.switches.binary_search_by_key(&guid, |switch| switch.guid).ok()
    }

    /// The end port with this GUID.
    pub fn end_port(&self, guid: Guid) -> Option<EndPort> {
        let index = self.ends.binary_search_by_key(&guid, |(guid, _)| *guid).ok()?;
        Some(self.ends[index].1)
    }

    /// The adapter port with this GUID.
    pub fn adapter_port(&self, guid: Guid) -> Option<&AdapterPort> {
        match self.end_port(guid)? {
            EndPort::Adapter(index) => self.adapter_ports.get(index),
            EndPort::Switch(_) => None,
        }
    }

    /// Every end port in order of its GUID.
    pub fn ends(&self) -> &[(Guid, EndPort)] {
        &self.ends
    }

    /// The kind of an end port's node.
    pub fn kind(&self, end: EndPort) -> NodeKind {
        match end {
            EndPort::Adapter(index) => self.adapter_ports[index].kind,
            EndPort::Switch(_) => NodeKind::Switch,
        }
    }
}

/// Leaves out the ports whose partitions nothing enforces, unless the intents open them.
fn take_unenforced(ports: &mut Vec<AdapterPort>, intents: &Intents) -> Option<PlanFinding> {
    let is_unenforced = |port: &AdapterPort| {
        port.attached.is_some() && port.enforced_pkeys == 0 && !intents.is_manager(port.guid)
    };
    let unenforced = || ports.iter().filter(|port| is_unenforced(port));
    let witness = unenforced().next()?.name;
    let count = unenforced().count();
    Some(match intents.unenforced_ports {
        UnenforcedPorts::Closed => {
            ports.retain(|port| !is_unenforced(port));
            PlanFinding::Unenforced { ports: count, witness }
        }
        UnenforcedPorts::Open => PlanFinding::EnforcedByAdapters { ports: count, witness },
    })
}

/// All end ports, ordered by GUID.
fn ends(switches: &[Switch], adapter_ports: &[AdapterPort]) -> Vec<(Guid, EndPort)> {
    let adapters = adapter_ports.iter().enumerate().map(|(index, port)| (port.guid, EndPort::Adapter(index)));
    let switches = switches.iter().enumerate().map(|(at, switch)| (switch.port_guid, EndPort::Switch(at)));
    let mut ends: Vec<_> = adapters.chain(switches).collect();
    ends.sort_by_key(|(guid, _)| *guid);
    ends.dedup_by_key(|(guid, _)| *guid);
    ends
}

/// The nodes reached by a search that continues through switches only.
#[derive(Debug)]
struct Reached {
    switches: Vec<NodeIndex>,
    ends: Vec<Endpoint>,
    /// Indexed by node.
    seen: Vec<bool>,
}

impl Reached {
    fn arrive(&mut self, topology: &Topology, end: Endpoint) {
        let is_new = !std::mem::replace(&mut self.seen[end.node.index()], true);
        if !topology[end.node].is_switch() {
            self.ends.push(end);
        } else if is_new {
            self.switches.push(end.node);
        }
    }
}

fn reached_from(topology: &Topology, start: Endpoint) -> Reached {
    let seen = vec![false; topology.node_count()];
    let mut reached = Reached { switches: Vec::new(), ends: Vec::new(), seen };
    reached.arrive(topology, start);
    if !topology[start.node].is_switch()
        && let Some(peer) = topology.peer(start)
    {
        reached.arrive(topology, peer);
    }
    let mut visited = 0;
    while let Some(node) = reached.switches.get(visited).copied() {
        visited += 1;
        for (_, peer) in topology[node].cabled_ports() {
            reached.arrive(topology, peer);
        }
    }
    // The manager's port is reached twice: at the start, and from its switch.
    reached.ends.sort_unstable();
    reached.ends.dedup();
    reached
}

fn unreached(topology: &Topology, reached: &Reached) -> Option<(usize, Guid)> {
    let left = topology.nodes().filter(|(index, _)| !reached.seen[index.index()]);
    let (count, lowest) = left.fold((0, None), |(count, lowest): (usize, Option<Guid>), (_, node)| {
        (count + 1, Some(lowest.map_or(node.guid, |guid| guid.min(node.guid))))
    });
    lowest.map(|guid| (count, guid))
}

fn adapter_ports(
    topology: &Topology,
    ends: &[Endpoint],
    indices: &[Option<SwitchIndex>],
    capabilities: &Capabilities,
) -> Vec<AdapterPort> {
    let adapter_port = |end: &Endpoint| {
        let node = &topology[end.node];
        let peer = topology.peer(*end)?;
        let name = PortName { node: node.guid, port: end.port };
        let switch_port = PortName { node: topology[peer.node].guid, port: peer.port };
        let attached = indices[peer.node.index()].map(|index| (index, peer.port));
        Some(AdapterPort {
            guid: node.port(end.port)?.guid,
            name,
            kind: node.kind,
            end: *end,
            peer,
            attached,
            enforced_pkeys: attached.map_or(0, |_| capabilities.enforced_pkeys(switch_port, name)),
        })
    };
    let mut ports: Vec<AdapterPort> = ends.iter().filter_map(adapter_port).collect();
    ports.sort_by_key(|port| (port.attached.is_none(), port.attached, port.guid));
    ports
}

fn switch(
    topology: &Topology,
    node: NodeIndex,
    index: SwitchIndex,
    indices: &[Option<SwitchIndex>],
    adapter_ports: &[AdapterPort],
) -> Switch {
    let mut cables: Vec<(SwitchIndex, Cable)> = (topology[node].cabled_ports())
        .filter_map(|(near, peer)| Some((indices[peer.node.index()]?, Cable { near, far: peer.port })))
        // A cable from a switch to itself leads nowhere.
        .filter(|(there, _)| *there != index)
        .collect();
    cables.sort_by_key(|(there, cable)| (*there, cable.near));
    let neighbours = (cables.chunk_by(|a, b| a.0 == b.0))
        .map(|chunk| Neighbour {
            switch: chunk[0].0,
            cables: chunk.iter().map(|(_, cable)| *cable).collect(),
        })
        .collect();
    let first = adapter_ports.partition_point(|port| port.attached.is_some_and(|(there, _)| there < index));
    let behind = adapter_ports.partition_point(|port| port.attached.is_some_and(|(there, _)| there <= index));
    let port_guid = topology[node].port(PortNum::MANAGEMENT).map_or(topology[node].guid, |port| port.guid);
    Switch { node, guid: topology[node].guid, port_guid, neighbours, adapters: first..behind }
}
