//! A plan on its cables, as the rules look at it: where every exit of every switch leads, by the cables there are.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fabric_model::intent::PortName;
use fabric_model::plan::{AdapterPortPlan, PkeyTable, PortSharing, SwitchPlan};
use fabric_model::{Endpoint, FabricPlan, LinkRate, NodeIndex, Topology};
use ib_wire::{Guid, Lid, NodeKind, PortNum};

use crate::SwitchExit;

/// A switch's switch_index among the switches of a plan.
pub(crate) type SwitchIndex = usize;

/// Ports a forwarding entry can name, port 0 and "none" among them.
pub(crate) const PORTS: usize = 256;

/// Where a packet is that left by an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextHop {
    /// Nowhere: the port has no cable.
    NoCable,
    /// At the switch's own port 0.
    OwnPort,
    /// At another switch of the plan, where it came in by a port.
    Switch(u32, PortNum),
    /// At an end port of the plan: its switch_index in [`Cables::ends`].
    EndPort(u32),
    /// At a port that the plan does not know.
    UnknownPort,
}

/// A directed link by who sends on it: a switch's are its switch_index times [`PORTS`] and its port, those of end ports follow.
pub(crate) type Link = usize;

/// An end port of the plan.
#[derive(Debug)]
pub(crate) struct EndPort {
    pub guid: Guid,
    pub name: PortName,
    pub lid: Lid,
    /// The switch its packets pass first and the port by which they come in; a switch's own come in by port 0.
    pub home: Option<(SwitchIndex, PortNum)>,
}

impl EndPort {
    /// Whether it is port 0 of a switch.
    pub fn is_switch(&self) -> bool {
        self.name.port == PortNum::MANAGEMENT
    }
}

/// Where the ports of a plan are, and where its cables lead. The same for all plans that have the same end ports on the
/// same cables.
#[derive(Debug)]
pub(crate) struct Cables {
    /// Adapter ports by GUID, then port 0 of each switch by switch_index.
    pub ends: Vec<EndPort>,
    by_guid: HashMap<Guid, usize>,
    by_lid: HashMap<Lid, usize>,
    /// Whether no two end ports have a GUID, a name or a LID in common.
    pub are_unique: bool,
    next: Vec<NextHop>,
}

impl Cables {
    pub fn new(topology: &Topology, plan: &FabricPlan) -> Self {
        let nodes: Vec<Option<NodeIndex>> =
            plan.switches().map(|switch| switch_node(topology, switch.guid)).collect();
        let mut switch_indices: Vec<Option<SwitchIndex>> = vec![None; topology.node_count()];
        for (switch_index, node) in nodes.iter().enumerate() {
            if let Some(node) = node {
                switch_indices[node.index()].get_or_insert(switch_index);
            }
        }
        let ends = ends(topology, plan, &switch_indices);
        let mut by_name: HashMap<PortName, usize> = HashMap::with_capacity(ends.len());
        let mut by_guid: HashMap<Guid, usize> = HashMap::with_capacity(ends.len());
        let mut by_lid: HashMap<Lid, usize> = HashMap::with_capacity(ends.len());
        for (index, end) in ends.iter().enumerate() {
            by_name.entry(end.name).or_insert(index);
            by_guid.entry(end.guid).or_insert(index);
            by_lid.entry(end.lid).or_insert(index);
        }
        let mut next = vec![NextHop::NoCable; nodes.len() * PORTS];
        for (switch_index, node) in nodes.iter().enumerate() {
            next[switch_index * PORTS] = NextHop::OwnPort;
            let Some(node) = node else { continue };
            for (number, peer) in topology[*node].cabled_ports() {
                let name = PortName { node: topology[peer.node].guid, port: peer.port };
                next[switch_index * PORTS + number.index()] =
                    match (switch_indices[peer.node.index()], by_name.get(&name)) {
                        (Some(there), _) => NextHop::Switch(narrow(there), peer.port),
                        (None, Some(end)) => NextHop::EndPort(narrow(*end)),
                        (None, None) => NextHop::UnknownPort,
                    };
            }
        }
        let are_unique = [by_name.len(), by_guid.len(), by_lid.len()] == [ends.len(); 3];
        Self { ends, by_guid, by_lid, are_unique, next }
    }
}

/// A plan on its cables.
#[derive(Debug)]
pub(crate) struct PlannedNetwork<'a> {
    pub topology: &'a Topology,
    pub plan: &'a FabricPlan,
    /// By node GUID.
    pub switches: Vec<&'a SwitchPlan>,
    /// By port GUID.
    pub adapters: Vec<&'a AdapterPortPlan>,
    pub cables: Arc<Cables>,
}

impl<'a> PlannedNetwork<'a> {
    pub fn new(topology: &'a Topology, plan: &'a FabricPlan) -> Self {
        Self::on(Arc::new(Cables::new(topology, plan)), topology, plan)
    }

    /// The same where the cables are known.
    pub fn on(cables: Arc<Cables>, topology: &'a Topology, plan: &'a FabricPlan) -> Self {
        let switches: Vec<&SwitchPlan> = plan.switches().collect();
        Self { topology, plan, switches, adapters: plan.adapter_ports().collect(), cables }
    }

    /// The end ports: of adapters by GUID, then port 0 of each switch by switch_index.
    #[inline]
    pub fn ends(&self) -> &[EndPort] {
        &self.cables.ends
    }

    /// The keys of an end port.
    pub fn pkeys(&self, end: usize) -> &'a PkeyTable {
        match self.adapters.get(end) {
            Some(port) => &port.pkeys,
            None => &self.switches[end - self.adapters.len()].pkeys,
        }
    }

    /// How an end port's link is shared.
    pub fn end_sharing(&self, end: usize) -> Option<&'a PortSharing> {
        self.adapters.get(end)?.sharing.as_deref()
    }

    /// The lanes of an end port's link; switches' own ports have none.
    pub fn end_lanes(&self, end: usize) -> u8 {
        self.adapters.get(end).map_or(0, |port| port.lanes.count())
    }

    /// Links there can be.
    pub fn link_count(&self) -> usize {
        self.link_of_end(self.ends().len())
    }

    /// The link that an end port sends on.
    #[inline]
    pub fn link_of_end(&self, end: usize) -> Link {
        self.switches.len() * PORTS + end
    }

    /// The link with a name, if the plan has it.
    pub fn link(&self, port: PortName) -> Option<Link> {
        if let Ok(switch_index) = self.switches.binary_search_by_key(&port.node, |switch| switch.guid) {
            return self.switches[switch_index]
                .port(port.port)
                .map(|_| switch_index * PORTS + port.port.index());
        }
        let node = self.topology.by_guid(port.node)?;
        let guid = self.topology.port(Endpoint::new(node, port.port))?.guid;
        let end = self.end(guid).filter(|end| self.ends()[*end].name == port)?;
        Some(self.link_of_end(end))
    }

    /// The port that sends on a link, for people.
    pub fn link_name(&self, link: Link) -> PortName {
        match link.checked_sub(self.link_of_end(0)) {
            Some(end) => self.ends()[end].name,
            None => self.port_name(link / PORTS, port_of(link)),
        }
    }

    /// The port that a link leads to.
    pub fn receiver(&self, link: Link) -> Option<PortName> {
        match link.checked_sub(self.link_of_end(0)) {
            Some(end) => self.ends()[end].home.map(|(switch_index, port)| self.port_name(switch_index, port)),
            None => self.peer_name(link / PORTS, port_of(link)),
        }
    }

    /// How a link is shared, and its lanes.
    pub fn link_sharing(&self, link: Link) -> (Option<&'a PortSharing>, u8) {
        match link.checked_sub(self.link_of_end(0)) {
            Some(end) => (self.end_sharing(end), self.end_lanes(end)),
            None => match self.switches[link / PORTS].port(port_of(link)) {
                Some(port) => (port.sharing.as_deref(), port.lanes.count()),
                None => (None, 0),
            },
        }
    }

    /// The link by which packets come in at a port of a switch.
    pub fn link_into(&self, switch_index: SwitchIndex, input: PortNum) -> Option<Link> {
        match self.next(switch_index, input) {
            NextHop::Switch(there, port) => Some(there as SwitchIndex * PORTS + port.index()),
            NextHop::EndPort(end) => Some(self.link_of_end(end as usize)),
            NextHop::NoCable | NextHop::OwnPort | NextHop::UnknownPort => None,
        }
    }

    /// What a link carries in bits per second, line code taken off. A cable whose rate nobody told counts as usual.
    pub fn rate(&self, link: Link) -> u64 {
        let name = self.link_name(link);
        let end = self.topology.by_guid(name.node).map(|node| Endpoint::new(node, name.port));
        let told = |end: Endpoint| self.topology.port(end)?.rate;
        let rate = end.and_then(|end| told(end).or_else(|| told(self.topology.peer(end)?)));
        (rate.unwrap_or(LinkRate::DEFAULT).data_rate_gbps() * 1e9) as u64
    }

    /// Who has a LID. Of two, the first; the other is a finding of its own.
    pub fn lid_owner(&self, lid: Lid) -> Option<usize> {
        self.cables.by_lid.get(&lid).copied()
    }

    /// Where a packet to a LID leaves a switch.
    #[inline]
    pub fn exit(&self, switch_index: SwitchIndex, lid: Lid) -> Option<PortNum> {
        self.switches[switch_index].linear.exit(lid)
    }

    /// The highest LID that a table speaks of.
    pub fn top(&self) -> u16 {
        self.switches.iter().map(|switch| switch.linear.top()).max().unwrap_or(0)
    }

    /// Where a packet is that left a switch by a port.
    #[inline]
    pub fn next(&self, switch_index: SwitchIndex, exit: PortNum) -> NextHop {
        self.cables.next[switch_index * PORTS + exit.index()]
    }

    /// The switch_index of an end port in [`Cables::ends`].
    pub fn end(&self, guid: Guid) -> Option<usize> {
        self.cables.by_guid.get(&guid).copied()
    }

    /// Ports of a switch, port 0 not counted.
    pub fn port_count(&self, switch_index: SwitchIndex) -> usize {
        let node = switch_node(self.topology, self.switches[switch_index].guid);
        node.map_or(0, |node| usize::from(self.topology[node].port_count()))
    }

    /// What an exit leads to, for people.
    pub fn peer_name(&self, switch_index: SwitchIndex, exit: PortNum) -> Option<PortName> {
        if exit == PortNum::MANAGEMENT {
            return Some(PortName { node: self.switches[switch_index].guid, port: exit });
        }
        let node = switch_node(self.topology, self.switches[switch_index].guid)?;
        let peer = self.topology.peer(Endpoint::new(node, exit))?;
        Some(PortName { node: self.topology[peer.node].guid, port: peer.port })
    }

    /// A port of a switch, for people.
    pub fn port_name(&self, switch_index: SwitchIndex, port: PortNum) -> PortName {
        PortName { node: self.switches[switch_index].guid, port }
    }

    /// A switch and an exit, for people.
    pub fn hop(&self, switch_index: SwitchIndex, exit: PortNum) -> SwitchExit {
        SwitchExit { switch: self.switches[switch_index].guid, exit }
    }

    /// The exits that a packet to a LID takes from a switch, until it leaves the switches, is lost or comes to a switch
    /// again; and the switch where it ends.
    pub fn path(&self, from: SwitchIndex, lid: Lid) -> (Vec<SwitchExit>, SwitchIndex) {
        let mut path = Vec::new();
        let mut here = from;
        while path.len() <= self.switches.len() {
            let Some(exit) = self.exit(here, lid) else { break };
            path.push(self.hop(here, exit));
            match self.next(here, exit) {
                NextHop::Switch(there, _) => here = there as SwitchIndex,
                _ => break,
            }
        }
        (path, here)
    }

    /// How a switch port's link is shared.
    pub fn sharing(&self, switch_index: SwitchIndex, port: PortNum) -> Option<&'a PortSharing> {
        self.switches[switch_index].port(port)?.sharing.as_deref()
    }
}

/// Where packets to some LIDs leave every switch: what many ways go through, read from the tables once.
#[derive(Debug)]
pub(crate) struct ExitColumns {
    /// The LIDs, which are columns.
    pub lids: Vec<Lid>,
    /// By switch_index, then column.
    exits: Vec<Option<PortNum>>,
}

impl ExitColumns {
    pub fn of(network: &PlannedNetwork<'_>, lids: Vec<Lid>) -> Self {
        let mut exits = Vec::with_capacity(network.switches.len() * lids.len());
        for switch in &network.switches {
            exits.extend(lids.iter().map(|lid| switch.linear.exit(*lid)));
        }
        Self { lids, exits }
    }

    /// Where a packet to the LID of a column leaves a switch.
    #[inline]
    pub fn exit(&self, switch_index: SwitchIndex, column: usize) -> Option<PortNum> {
        self.exits[switch_index * self.lids.len() + column]
    }
}

/// Places are counted by a topology, which has fewer than 2³² nodes.
fn narrow(index: usize) -> u32 {
    u32::try_from(index).expect("a plan has fewer devices than a topology may have")
}

fn switch_node(topology: &Topology, guid: Guid) -> Option<NodeIndex> {
    topology.by_guid(guid).filter(|node| topology[*node].is_switch())
}

fn ends(topology: &Topology, plan: &FabricPlan, switch_indices: &[Option<SwitchIndex>]) -> Vec<EndPort> {
    let adapters = plan.adapter_ports().map(|port| {
        let end = topology.by_guid(port.name.node).map(|node| Endpoint::new(node, port.name.port));
        let peer = end.and_then(|end| topology.peer(end));
        let home = peer.and_then(|peer| Some((switch_indices[peer.node.index()]?, peer.port)));
        EndPort { guid: port.guid, name: port.name, lid: port.lid, home }
    });
    let switches = plan.switches().enumerate().map(|(switch_index, switch)| EndPort {
        guid: switch.port_guid,
        name: PortName { node: switch.guid, port: PortNum::MANAGEMENT },
        lid: switch.lid,
        home: Some((switch_index, PortNum::MANAGEMENT)),
    });
    adapters.chain(switches).collect()
}

/// The port of a switch that sends on a link.
pub(crate) fn port_of(link: Link) -> PortNum {
    u8::try_from(link % PORTS).ok().and_then(PortNum::new).unwrap_or(PortNum::MANAGEMENT)
}

/// An end port that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PresentPort {
    pub guid: Guid,
    pub name: PortName,
    pub kind: NodeKind,
}

/// The end ports that cables join to the manager's, by GUID: those a plan has to speak of. All that have a cable if the
/// manager's port does not exist.
pub(crate) fn present_ends(topology: &Topology, manager: Guid) -> Vec<PresentPort> {
    let mut seen = vec![false; topology.node_count()];
    let mut open: VecDeque<NodeIndex> = match topology.by_port_guid(manager) {
        Some(start) => [start.node].into_iter().chain(topology.peer(start).map(|peer| peer.node)).collect(),
        None => topology.nodes().map(|(node, _)| node).collect(),
    };
    let mut ends = Vec::new();
    let name = |end: Endpoint| {
        let name = PortName { node: topology[end.node].guid, port: end.port };
        Some(PresentPort { guid: topology.port(end)?.guid, name, kind: topology[end.node].kind })
    };
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
    ends.dedup_by_key(|end| end.guid);
    ends
}
