//! A plan on the cables of a topology: where every output port of every switch leads.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fabric_model::intent::{Capabilities, PortName, UnenforcedPorts};
use fabric_model::plan::{AdapterPortPlan, PkeyTable, PortQos, SwitchPlan};
use fabric_model::{Endpoint, FabricPlan, Intents, LinkRate, NodeIndex, Topology};
use ib_wire::{Guid, Lid, NodeKind, PortNum};

use crate::SwitchExit;

/// Index of a switch among the switches of a plan, which are ordered by node GUID.
pub(crate) type SwitchIndex = usize;

/// Values of a forwarding entry, including port 0 and 255 for "no entry".
pub(crate) const PORTS: usize = 256;

/// Where a packet is after it left a switch by an output port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextHop {
    NoCable,
    /// Delivered to the switch's own port 0.
    OwnPort,
    /// At another switch of the plan, and the input port there.
    Switch(u32, PortNum),
    /// At an end port of the plan, by index into [`Cables::ends`].
    EndPort(u32),
    /// At a port that the plan does not contain.
    UnknownPort,
}

/// A directed link, numbered by its sender: switch index times [`PORTS`] plus output port for switches, followed by
/// one number for each end port.
pub(crate) type Link = usize;

#[derive(Debug)]
pub(crate) struct EndPort {
    pub guid: Guid,
    pub name: PortName,
    pub lid: Lid,
    /// The first switch on the path of its packets, and the input port there. For port 0 of a switch that is the
    /// switch itself with input port 0.
    pub home: Option<(SwitchIndex, PortNum)>,
}

impl EndPort {
    /// Whether this is port 0 of a switch.
    pub fn is_switch(&self) -> bool {
        self.name.port == PortNum::MANAGEMENT
    }
}

/// End ports and cables of a plan. Equal for all plans with the same end ports on the same cables, and shared between
/// them.
#[derive(Debug)]
pub(crate) struct Cables {
    /// Adapter ports by port GUID, followed by port 0 of each switch by switch index.
    pub ends: Vec<EndPort>,
    by_guid: HashMap<Guid, usize>,
    by_lid: HashMap<Lid, usize>,
    /// Whether all end ports have distinct GUIDs, names and LIDs.
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

/// A plan together with the cables of the topology.
#[derive(Debug)]
pub(crate) struct PlannedNetwork<'a> {
    pub topology: &'a Topology,
    pub plan: &'a FabricPlan,
    pub switches: Vec<&'a SwitchPlan>,
    pub adapters: Vec<&'a AdapterPortPlan>,
    pub cables: Arc<Cables>,
}

impl<'a> PlannedNetwork<'a> {
    pub fn new(topology: &'a Topology, plan: &'a FabricPlan) -> Self {
        Self::on(Arc::new(Cables::new(topology, plan)), topology, plan)
    }

    /// Like [`PlannedNetwork::new`], with cables that were computed for an earlier plan with the same end ports.
    pub fn on(cables: Arc<Cables>, topology: &'a Topology, plan: &'a FabricPlan) -> Self {
        let switches: Vec<&SwitchPlan> = plan.switches().collect();
        Self { topology, plan, switches, adapters: plan.adapter_ports().collect(), cables }
    }

    /// All end ports, in the order of [`Cables::ends`].
    #[inline]
    pub fn ends(&self) -> &[EndPort] {
        &self.cables.ends
    }

    pub fn pkeys(&self, end: usize) -> &'a PkeyTable {
        match self.adapters.get(end) {
            Some(port) => &port.pkeys,
            None => &self.switches[end - self.adapters.len()].pkeys,
        }
    }

    /// SL-to-VL and arbitration tables of an end port; `None` if the plan leaves them to the device, and for port 0
    /// of switches.
    pub fn end_sharing(&self, end: usize) -> Option<&'a PortQos> {
        self.adapters.get(end)?.qos.as_deref()
    }

    /// Number of data lanes of an end port's link; 0 for port 0 of a switch.
    pub fn end_lanes(&self, end: usize) -> u8 {
        self.adapters.get(end).map_or(0, |port| port.lanes.count())
    }

    /// An upper bound for [`Link`] numbers.
    pub fn link_count(&self) -> usize {
        self.link_of_end(self.ends().len())
    }

    /// The link on which an end port sends.
    #[inline]
    pub fn link_of_end(&self, end: usize) -> Link {
        self.switches.len() * PORTS + end
    }

    /// The link on which a port sends, if the plan contains it.
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

    /// Name of the port that sends on a link.
    pub fn link_name(&self, link: Link) -> PortName {
        match link.checked_sub(self.link_of_end(0)) {
            Some(end) => self.ends()[end].name,
            None => self.port_name(link / PORTS, port_of(link)),
        }
    }

    /// Name of the port that receives from a link.
    pub fn receiver(&self, link: Link) -> Option<PortName> {
        match link.checked_sub(self.link_of_end(0)) {
            Some(end) => self.ends()[end].home.map(|(switch_index, port)| self.port_name(switch_index, port)),
            None => self.peer_name(link / PORTS, port_of(link)),
        }
    }

    /// The sender's SL-to-VL and arbitration tables, and the number of data lanes of the link.
    pub fn link_sharing(&self, link: Link) -> (Option<&'a PortQos>, u8) {
        match link.checked_sub(self.link_of_end(0)) {
            Some(end) => (self.end_sharing(end), self.end_lanes(end)),
            None => match self.switches[link / PORTS].port(port_of(link)) {
                Some(port) => (port.qos.as_deref(), port.lanes.count()),
                None => (None, 0),
            },
        }
    }

    /// The link over which packets enter a switch at an input port.
    pub fn link_into(&self, switch_index: SwitchIndex, input: PortNum) -> Option<Link> {
        match self.next(switch_index, input) {
            NextHop::Switch(there, port) => Some(there as SwitchIndex * PORTS + port.index()),
            NextHop::EndPort(end) => Some(self.link_of_end(end as usize)),
            NextHop::NoCable | NextHop::OwnPort | NextHop::UnknownPort => None,
        }
    }

    /// Data rate of a link in bits per second, without line code. A cable of unknown rate has
    /// rate 0: nothing can be guaranteed on it.
    pub fn rate(&self, link: Link) -> u64 {
        (self.link_rate(link).map_or(0.0, LinkRate::data_rate_gbps) * 1e9) as u64
    }

    /// Speed and width of a link, if either end knows them.
    pub fn link_rate(&self, link: Link) -> Option<LinkRate> {
        let name = self.link_name(link);
        let end = self.topology.by_guid(name.node).map(|node| Endpoint::new(node, name.port))?;
        let rate_of = |end: Endpoint| self.topology.port(end)?.rate;
        rate_of(end).or_else(|| rate_of(self.topology.peer(end)?))
    }

    /// The end port that owns a LID; the first of two (the duplicate is a finding of its own).
    pub fn lid_owner(&self, lid: Lid) -> Option<usize> {
        self.cables.by_lid.get(&lid).copied()
    }

    /// Output port of a switch for a LID.
    #[inline]
    pub fn exit(&self, switch_index: SwitchIndex, lid: Lid) -> Option<PortNum> {
        self.switches[switch_index].linear.exit(lid)
    }

    /// The highest LID in any linear forwarding table.
    pub fn top(&self) -> u16 {
        self.switches.iter().map(|switch| switch.linear.top()).max().unwrap_or(0)
    }

    #[inline]
    pub fn next(&self, switch_index: SwitchIndex, exit: PortNum) -> NextHop {
        self.cables.next[switch_index * PORTS + exit.index()]
    }

    /// Index of an end port in [`Cables::ends`], by port GUID.
    pub fn end(&self, guid: Guid) -> Option<usize> {
        self.cables.by_guid.get(&guid).copied()
    }

    /// Number of external ports of a switch.
    pub fn port_count(&self, switch_index: SwitchIndex) -> usize {
        let node = switch_node(self.topology, self.switches[switch_index].guid);
        node.map_or(0, |node| usize::from(self.topology[node].port_count()))
    }

    /// Name of the port at the other end of the cable; port 0 stands for itself.
    pub fn peer_name(&self, switch_index: SwitchIndex, exit: PortNum) -> Option<PortName> {
        if exit == PortNum::MANAGEMENT {
            return Some(PortName { node: self.switches[switch_index].guid, port: exit });
        }
        let node = switch_node(self.topology, self.switches[switch_index].guid)?;
        let peer = self.topology.peer(Endpoint::new(node, exit))?;
        Some(PortName { node: self.topology[peer.node].guid, port: peer.port })
    }

    pub fn port_name(&self, switch_index: SwitchIndex, port: PortNum) -> PortName {
        PortName { node: self.switches[switch_index].guid, port }
    }

    pub fn hop(&self, switch_index: SwitchIndex, exit: PortNum) -> SwitchExit {
        SwitchExit { switch: self.switches[switch_index].guid, exit }
    }

    /// Follows packets to a LID from a switch. Returns the exits and the last switch; the walk ends when packets
    /// leave the switches, are dropped, or have passed more exits than there are switches (a loop).
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

    /// SL-to-VL and arbitration tables of a switch port.
    pub fn sharing(&self, switch_index: SwitchIndex, port: PortNum) -> Option<&'a PortQos> {
        self.switches[switch_index].port(port)?.qos.as_deref()
    }
}

/// The columns of some LIDs in the linear forwarding tables of all switches, read once because many paths pass them.
#[derive(Debug)]
pub(crate) struct ExitColumns {
    /// The LIDs of the columns, in ascending order.
    pub lids: Vec<Lid>,
    /// Row by switch index, then column.
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

    /// Output port of a switch for the LID of a column.
    #[inline]
    pub fn exit(&self, switch_index: SwitchIndex, column: usize) -> Option<PortNum> {
        self.exits[switch_index * self.lids.len() + column]
    }
}

/// Indices come from a topology, which has fewer than 2³² nodes.
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

/// Output port of a link that a switch sends on.
pub(crate) fn port_of(link: Link) -> PortNum {
    u8::try_from(link % PORTS).ok().and_then(PortNum::new).unwrap_or(PortNum::MANAGEMENT)
}

/// An end port of the topology that is connected to the subnet manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PresentPort {
    pub guid: Guid,
    pub name: PortName,
    pub kind: NodeKind,
}

/// Whether a switch port can enforce partitions on an adapter port: the switch has entries for it, and neither the switch
/// nor one of the two ports failed to take what isolates tenants.
pub(crate) fn enforces(capabilities: &Capabilities, switch_port: PortName, adapter_port: PortName) -> bool {
    let switch = PortName { node: switch_port.node, port: PortNum::MANAGEMENT };
    let fails = [switch, switch_port, adapter_port].map(|name| !capabilities.port(name).isolates);
    capabilities.switch(switch_port.node).enforced_pkeys != 0 && !fails.contains(&true)
}

/// The end ports that cables connect to the subnet manager's port, by port GUID: exactly those that a plan must
/// contain. If no port has the manager's GUID, all end ports that are cabled to a switch. Ports that nothing isolates are
/// not among them and must stay closed, unless the intents open them. The manager's own is always there.
pub(crate) fn present_ends(topology: &Topology, intents: &Intents) -> Vec<PresentPort> {
    let manager = intents.manager;
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
        for (number, peer) in topology[node].cabled_ports() {
            if topology[peer.node].is_switch() {
                open.push_back(peer.node);
            } else {
                let switch_port = PortName { node: topology[node].guid, port: number };
                let may_be_open = |end: &PresentPort| {
                    intents.is_manager(end.guid)
                        || intents.unenforced_ports == UnenforcedPorts::Open
                        || enforces(&intents.capabilities, switch_port, end.name)
                };
                ends.extend(name(peer).filter(may_be_open));
            }
        }
    }
    // Two adapters that are cabled to each other without a switch.
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
