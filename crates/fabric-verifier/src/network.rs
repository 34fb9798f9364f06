//! A plan on its cables, as the rules look at it: where every exit of every switch leads, by the cables there are.

use std::collections::{HashMap, VecDeque};

use fabric_model::intent::PortName;
use fabric_model::plan::{PkeyTable, PortSharing, SwitchPlan};
use fabric_model::{Endpoint, FabricPlan, NodeIndex, Topology};
use ib_wire::{Guid, Lid, PortNum};

use crate::Hop;

/// A switch's place among the switches of a plan.
pub(crate) type Place = usize;

/// Ports a forwarding entry can name, port 0 and "none" among them.
pub(crate) const PORTS: usize = 256;

/// Where a packet is that left by an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nowhere: the port has no cable.
    Nothing,
    /// At the switch's own port 0.
    Itself,
    /// At another switch of the plan, where it came in by a port.
    Switch(u32, PortNum),
    /// At an end port of the plan: its place in [`Network::ends`].
    End(u32),
    /// At a port that the plan does not know.
    Stranger,
}

/// An end port of the plan.
#[derive(Debug)]
pub(crate) struct End<'a> {
    pub guid: Guid,
    pub name: PortName,
    pub lid: Lid,
    /// The switch its packets pass first and the port by which they come in; a switch's own come in by port 0.
    pub home: Option<(Place, PortNum)>,
    pub pkeys: &'a PkeyTable,
    pub sharing: Option<&'a PortSharing>,
    /// The lanes of its link.
    pub lanes: u8,
}

impl End<'_> {
    /// Whether it is port 0 of a switch.
    pub fn is_switch(&self) -> bool {
        self.name.port == PortNum::MANAGEMENT
    }
}

/// A plan on its cables.
#[derive(Debug)]
pub(crate) struct Network<'a> {
    pub topology: &'a Topology,
    pub plan: &'a FabricPlan,
    /// By node GUID.
    pub switches: Vec<&'a SwitchPlan>,
    /// The linear tables, by place.
    pub rows: Vec<&'a [u8]>,
    /// Adapter ports by GUID, then port 0 of each switch by place.
    pub ends: Vec<End<'a>>,
    by_guid: HashMap<Guid, usize>,
    next: Vec<Next>,
}

impl<'a> Network<'a> {
    pub fn new(topology: &'a Topology, plan: &'a FabricPlan) -> Self {
        let switches: Vec<&SwitchPlan> = plan.switches().collect();
        let nodes: Vec<Option<NodeIndex>> =
            switches.iter().map(|switch| switch_node(topology, switch.guid)).collect();
        let mut places: Vec<Option<Place>> = vec![None; topology.node_count()];
        for (place, node) in nodes.iter().enumerate() {
            if let Some(node) = node {
                places[node.index()].get_or_insert(place);
            }
        }
        let ends = ends(topology, plan, &places);
        let mut by_name: HashMap<PortName, usize> = HashMap::with_capacity(ends.len());
        let mut by_guid: HashMap<Guid, usize> = HashMap::with_capacity(ends.len());
        for (index, end) in ends.iter().enumerate() {
            by_name.entry(end.name).or_insert(index);
            by_guid.entry(end.guid).or_insert(index);
        }
        let mut next = vec![Next::Nothing; switches.len() * PORTS];
        for (place, node) in nodes.iter().enumerate() {
            next[place * PORTS] = Next::Itself;
            let Some(node) = node else { continue };
            for (number, peer) in topology[*node].cabled_ports() {
                let name = PortName { node: topology[peer.node].guid, port: peer.port };
                next[place * PORTS + number.index()] = match (places[peer.node.index()], by_name.get(&name)) {
                    (Some(there), _) => Next::Switch(narrow(there), peer.port),
                    (None, Some(end)) => Next::End(narrow(*end)),
                    (None, None) => Next::Stranger,
                };
            }
        }
        let rows = switches.iter().map(|switch| switch.linear.exits()).collect();
        Self { topology, plan, switches, rows, ends, by_guid, next }
    }

    /// Where a packet to a LID leaves a switch.
    #[inline]
    pub fn exit(&self, place: Place, lid: usize) -> Option<PortNum> {
        self.rows[place].get(lid).copied().and_then(PortNum::new)
    }

    /// Where a packet is that left a switch by a port.
    #[inline]
    pub fn next(&self, place: Place, exit: PortNum) -> Next {
        self.next[place * PORTS + exit.index()]
    }

    /// The place of an end port in [`Network::ends`].
    pub fn end(&self, guid: Guid) -> Option<usize> {
        self.by_guid.get(&guid).copied()
    }

    /// Ports of a switch, port 0 not counted.
    pub fn port_count(&self, place: Place) -> usize {
        let node = switch_node(self.topology, self.switches[place].guid);
        node.map_or(0, |node| usize::from(self.topology[node].port_count()))
    }

    /// What an exit leads to, for people.
    pub fn peer_name(&self, place: Place, exit: PortNum) -> Option<PortName> {
        if exit == PortNum::MANAGEMENT {
            return Some(PortName { node: self.switches[place].guid, port: exit });
        }
        let node = switch_node(self.topology, self.switches[place].guid)?;
        let peer = self.topology.peer(Endpoint::new(node, exit))?;
        Some(PortName { node: self.topology[peer.node].guid, port: peer.port })
    }

    /// A port of a switch, for people.
    pub fn port_name(&self, place: Place, port: PortNum) -> PortName {
        PortName { node: self.switches[place].guid, port }
    }

    /// A switch and an exit, for people.
    pub fn hop(&self, place: Place, exit: PortNum) -> Hop {
        Hop { switch: self.switches[place].guid, exit }
    }

    /// The exits that a packet to a LID takes from a switch, until it leaves the switches, is lost or comes to a switch
    /// again; and the switch where it ends.
    pub fn path(&self, from: Place, lid: usize) -> (Vec<Hop>, Place) {
        let mut path = Vec::new();
        let mut here = from;
        while path.len() <= self.switches.len() {
            let Some(exit) = self.exit(here, lid) else { break };
            path.push(self.hop(here, exit));
            match self.next(here, exit) {
                Next::Switch(there, _) => here = there as Place,
                _ => break,
            }
        }
        (path, here)
    }

    /// How a switch port's link is shared.
    pub fn sharing(&self, place: Place, port: PortNum) -> Option<&'a PortSharing> {
        self.switches[place].port(port)?.sharing.as_deref()
    }
}

/// Places are counted by a topology, which has fewer than 2³² nodes.
fn narrow(place: usize) -> u32 {
    u32::try_from(place).expect("a plan has fewer devices than a topology may have")
}

fn switch_node(topology: &Topology, guid: Guid) -> Option<NodeIndex> {
    topology.by_guid(guid).filter(|node| topology[*node].is_switch())
}

fn ends<'a>(topology: &Topology, plan: &'a FabricPlan, places: &[Option<Place>]) -> Vec<End<'a>> {
    let adapters = plan.adapter_ports().map(|port| {
        let end = topology.by_guid(port.name.node).map(|node| Endpoint::new(node, port.name.port));
        let peer = end.and_then(|end| topology.peer(end));
        End {
            guid: port.guid,
            name: port.name,
            lid: port.lid,
            home: peer.and_then(|peer| Some((places[peer.node.index()]?, peer.port))),
            pkeys: &port.pkeys,
            sharing: port.sharing.as_deref(),
            lanes: port.lanes.count(),
        }
    });
    let switches = plan.switches().enumerate().map(|(place, switch)| End {
        guid: switch.port_guid,
        name: PortName { node: switch.guid, port: PortNum::MANAGEMENT },
        lid: switch.lid,
        home: Some((place, PortNum::MANAGEMENT)),
        pkeys: &switch.pkeys,
        sharing: None,
        lanes: 0,
    });
    adapters.chain(switches).collect()
}

/// The end ports that cables join to the manager's, by GUID: those a plan has to speak of. All that have a cable if the
/// manager's port does not exist.
pub(crate) fn present_ends(topology: &Topology, manager: Guid) -> Vec<(Guid, Endpoint)> {
    let mut seen = vec![false; topology.node_count()];
    let mut open: VecDeque<NodeIndex> = match topology.by_port_guid(manager) {
        Some(start) => [start.node].into_iter().chain(topology.peer(start).map(|peer| peer.node)).collect(),
        None => topology.nodes().map(|(node, _)| node).collect(),
    };
    let mut ends = Vec::new();
    let name = |end: Endpoint| Some((topology.port(end)?.guid, end));
    while let Some(node) = open.pop_front() {
        if !topology[node].is_switch() || std::mem::replace(&mut seen[node.index()], true) {
            continue;
        }
        ends.extend(name(Endpoint::new(node, PortNum::MANAGEMENT)));
        for (_, peer) in topology[node].cabled_ports() {
            if topology[peer.node].is_switch() {
                open.push_back(peer.node);
            } else {
                ends.extend(name(peer));
            }
        }
    }
    // Two adapters that a cable joins without a switch.
    if let Some(start) = topology.by_port_guid(manager)
        && !topology[start.node].is_switch()
        && let Some(peer) = topology.peer(start)
    {
        ends.extend(name(start));
        ends.extend(name(peer).filter(|_| !topology[peer.node].is_switch()));
    }
    ends.sort_unstable();
    ends.dedup_by_key(|(guid, _)| *guid);
    ends
}
