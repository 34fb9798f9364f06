//! The part of a topology that the manager reaches, as the compiler looks at it: switches by GUID, and what hangs on
//! them. Everything that is decided here iterates in this order, so the order of the topology's file does not matter.

use fabric_model::intent::PortName;
use fabric_model::{Endpoint, NodeIndex, Topology};
use ib_wire::{Guid, NodeKind, PortNum};

use crate::CompileError;

/// A switch's place among the switches of a [`Fabric`].
pub(crate) type SwitchIndex = usize;

/// What the manager reaches.
#[derive(Debug)]
pub(crate) struct Fabric {
    /// By node GUID.
    pub switches: Vec<Switch>,
    /// By the switch they hang on and its port; ports without a switch last.
    pub adapter_ports: Vec<AdapterPort>,
    /// GUID of the manager's port.
    pub manager: Guid,
    /// Nodes that no cable joins to the manager: how many, and the lowest GUID.
    pub left_out: Option<(usize, Guid)>,
    /// Every end port by its GUID.
    ends: Vec<(Guid, EndPort)>,
}

/// What an end port belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EndPort {
    /// An adapter or a router: where in [`Fabric::adapter_ports`].
    Adapter(usize),
    /// The switch whose port 0 it is.
    Switch(SwitchIndex),
}

/// A switch and what is cabled to it.
#[derive(Debug)]
pub(crate) struct Switch {
    pub node: NodeIndex,
    pub guid: Guid,
    /// GUID of its port 0.
    pub port_guid: Guid,
    /// Other switches, by place.
    pub neighbours: Vec<Neighbour>,
    /// Where in [`Fabric::adapter_ports`] its own stand.
    pub adapters: std::ops::Range<usize>,
}

/// Another switch and the cables to it.
#[derive(Debug)]
pub(crate) struct Neighbour {
    pub switch: SwitchIndex,
    /// By the near port; never empty.
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
    /// The switch it hangs on, and the port there.
    pub attached: Option<(SwitchIndex, PortNum)>,
}

impl Fabric {
    /// What the port with this GUID reaches.
    pub fn around(topology: &Topology, manager: Guid) -> Result<Self, CompileError> {
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
        let adapter_ports = adapter_ports(topology, &reached.ends, &indices);
        let switches: Vec<Switch> = (nodes.iter().enumerate())
            .map(|(index, node)| switch(topology, *node, index, &indices, &adapter_ports))
            .collect();
        let left_out = left_out(topology, &reached);
        let ends = ends(&switches, &adapter_ports);
        Ok(Self { switches, adapter_ports, manager, left_out, ends })
    }

    /// The switch the manager's packets pass first: its own, if it is one.
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

    /// What an end port's node is.
    pub fn kind(&self, end: EndPort) -> NodeKind {
        match end {
            EndPort::Adapter(index) => self.adapter_ports[index].kind,
            EndPort::Switch(_) => NodeKind::Switch,
        }
    }
}

/// End ports by GUID. Those of cabled ports are unique.
fn ends(switches: &[Switch], adapter_ports: &[AdapterPort]) -> Vec<(Guid, EndPort)> {
    let adapters = adapter_ports.iter().enumerate().map(|(index, port)| (port.guid, EndPort::Adapter(index)));
    let switches = switches.iter().enumerate().map(|(at, switch)| (switch.port_guid, EndPort::Switch(at)));
    let mut ends: Vec<_> = adapters.chain(switches).collect();
    ends.sort_by_key(|(guid, _)| *guid);
    ends.dedup_by_key(|(guid, _)| *guid);
    ends
}

/// The ends of a search that passes switches only.
#[derive(Debug)]
struct Reached {
    switches: Vec<NodeIndex>,
    ends: Vec<Endpoint>,
    /// By node.
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
    // The manager's port is met twice: at the start, and from its switch.
    reached.ends.sort_unstable();
    reached.ends.dedup();
    reached
}

fn left_out(topology: &Topology, reached: &Reached) -> Option<(usize, Guid)> {
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
) -> Vec<AdapterPort> {
    let adapter_port = |end: &Endpoint| {
        let node = &topology[end.node];
        let peer = topology.peer(*end)?;
        Some(AdapterPort {
            guid: node.port(end.port)?.guid,
            name: PortName { node: node.guid, port: end.port },
            kind: node.kind,
            end: *end,
            peer,
            attached: indices[peer.node.index()].map(|index| (index, peer.port)),
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
