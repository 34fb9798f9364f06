//! The last known attributes of all nodes, and the cables between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fabric_model::LinkRate;
use fabric_model::intent::{Capabilities, PortCapability, PortName, SwitchCapability};
use ib_wire::{
    Attribute, Capability, DirectedRoute, Guid, NodeDescription, NodeInfo, NodeKind, PhysicalState, PortInfo,
    PortNum, PortState, SMP_DATA_LEN, SwitchInfo,
};

use crate::attribute_key::AttributeKey;
use crate::entry_class::EntryClass;
use crate::lacks::Lacks;
use crate::port_map::PortMap;
use crate::sa::NodeFacts;

/// A node as far as it answered.
#[derive(Clone, Debug)]
pub(crate) struct ObservedNode {
    pub info: NodeInfo,
    pub description: Option<NodeDescription>,
    pub switch: Option<SwitchInfo>,
    /// Directed routes to it: one to a switch, one per port to an adapter.
    pub routes: PortMap<DirectedRoute>,
    pub ports: PortMap<PortInfo>,
    pub port_guids: PortMap<Guid>,
    /// Ports whose link runs at FDR10. PortInfo shows it as QDR.
    pub fdr10_ports: BTreeSet<PortNum>,
    /// Whether adaptive routing of a switch is on.
    pub routes_adaptively: bool,
    /// The other end of each cable that was followed.
    pub links: PortMap<(Guid, PortNum)>,
    /// Table blocks that were read or written; those of a switch under port 0, those of an adapter under
    /// their port.
    pub tables: BTreeMap<(PortNum, AttributeKey), [u8; SMP_DATA_LEN]>,
    /// The discovery run in which it was last registered.
    pub seen_in_run: u64,
    /// The discovery run in which the external ports of a switch were last read.
    pub ports_read_in_run: u64,
    /// Programming runs in a row in which it did not answer.
    pub strikes: u8,
}

impl ObservedNode {
    /// A node of which only NodeInfo is known.
    pub fn new(info: NodeInfo) -> Self {
        Self {
            info,
            description: None,
            switch: None,
            routes: PortMap::default(),
            ports: PortMap::default(),
            port_guids: PortMap::default(),
            fdr10_ports: BTreeSet::new(),
            routes_adaptively: false,
            links: PortMap::default(),
            tables: BTreeMap::new(),
            seen_in_run: 0,
            ports_read_in_run: 0,
            strikes: 0,
        }
    }

    pub fn is_switch(&self) -> bool {
        self.info.kind == NodeKind::Switch
    }

    /// The directed route for the attributes of a port.
    pub fn route(&self, port: PortNum) -> Option<&DirectedRoute> {
        if self.is_switch() { self.routes.values().next() } else { self.routes.get(&port) }
    }

    /// Whether the port has extended speeds. Switches say so at port 0 for all their ports.
    pub fn has_extended_speeds(&self, port: PortNum) -> bool {
        let info = self.ports.get(if self.is_switch() { &PortNum::MANAGEMENT } else { &port });
        info.is_some_and(|info| info.capability.has(Capability::EXTENDED_SPEEDS))
    }

    /// The modifier to send for an attribute. Some devices show the extended speeds of a port only to requesters that
    /// understand them, and devices without extended speeds may refuse the bit that says so (A-PORT-4).
    pub fn request_modifier(&self, (attribute, modifier): AttributeKey) -> u32 {
        let port = PortInfo::port_of_modifier(modifier).filter(|_| attribute == Attribute::PORT_INFO);
        match port {
            Some(port) if self.has_extended_speeds(port) => modifier | PortInfo::EXTENDED_SPEEDS_KNOWN,
            _ => modifier,
        }
    }

    /// The active rate of the link at a port.
    pub fn link_rate(&self, port: PortNum) -> Option<LinkRate> {
        let info = self.ports.get(&port).filter(|info| is_up(info))?;
        LinkRate::active(info, self.fdr10_ports.contains(&port))
    }

    /// The last known value of an attribute.
    pub fn held(&self, port: PortNum, key: AttributeKey) -> Option<[u8; SMP_DATA_LEN]> {
        match key.0 {
            Attribute::PORT_INFO => {
                PortInfo::port_of_modifier(key.1).and_then(|port| self.ports.get(&port)).map(PortInfo::encode)
            }
            Attribute::SWITCH_INFO => self.switch.as_ref().map(SwitchInfo::encode),
            _ => self.tables.get(&(port, key)).copied(),
        }
    }

    /// The known blocks of a table by modifier.
    pub fn tables_of(
        &self,
        port: PortNum,
        attribute: Attribute,
    ) -> impl Iterator<Item = (u32, &[u8; SMP_DATA_LEN])> {
        let parts = self.tables.range((port, (attribute, 0))..=(port, (attribute, u32::MAX)));
        parts.map(|((_, (_, modifier)), data)| (*modifier, data))
    }

    /// The facts for subnet administration, without the M_Key.
    pub fn facts(&self) -> Option<NodeFacts> {
        let open = |(port, info): (&PortNum, &PortInfo)| (*port, PortInfo { m_key: None, ..info.clone() });
        Some(NodeFacts {
            info: self.info.clone(),
            description: self.description?,
            switch: self.switch.clone(),
            ports: self.ports.iter().map(open).collect(),
            port_guids: self.port_guids.clone(),
        })
    }

    /// Whether a port maps service levels to lanes. Switches say so at port 0 for all their ports (A-TAKE-2).
    fn maps_service_levels(&self, port: PortNum) -> bool {
        let info = self.ports.get(if self.is_switch() { &PortNum::MANAGEMENT } else { &port });
        info.is_some_and(|info| info.capability.has(Capability::SL_MAPPING))
    }

    /// Adds the table sizes and other limits of the node.
    pub fn add_capabilities(&self, lacks: &Lacks, all: &mut Capabilities) {
        let node = self.info.node_guid;
        for (port, info) in &self.ports {
            let name = PortName { node, port: *port };
            let pkeys = match &self.switch {
                Some(switch) if *port != PortNum::MANAGEMENT => switch.partition_enforcement_capacity,
                _ => self.info.partition_capacity,
            };
            let PortInfo { mtu_cap: mtu, vl_cap: lanes, vl_arb_low_cap: arbitration, .. } = *info;
            let capability = PortCapability {
                pkeys,
                mtu,
                lanes,
                arbitration,
                lane_buffer: None,
                isolates: !lacks.has(name, EntryClass::Isolation),
                divides_lanes: self.maps_service_levels(*port) && !lacks.has(name, EntryClass::Guarantee),
                enabled_rate: LinkRate::enabled(info),
            };
            all.ports.insert(name, capability);
        }
        if let Some(switch) = &self.switch {
            let capability = SwitchCapability {
                linear: switch.linear_fdb_capacity,
                multicast: switch.multicast_fdb_capacity,
                // Enforcement in one direction only isolates nobody.
                enforced_pkeys: match switch.inbound_enforcement && switch.outbound_enforcement {
                    true => switch.partition_enforcement_capacity,
                    false => 0,
                },
                own_pkeys: self.info.partition_capacity,
                filters_raw: switch.filter_raw_inbound && switch.filter_raw_outbound,
            };
            all.switches.insert(node, capability);
            if self.routes_adaptively {
                all.adaptive_routing.insert(node);
            }
        }
    }
}

/// Whether the link of a port is up.
pub(crate) fn is_up(info: &PortInfo) -> bool {
    info.physical_state == PhysicalState::LinkUp && info.state != PortState::Down
}

/// Whether a port is that of a host, and not the manager's own.
pub(crate) fn is_host(nodes: &BTreeMap<Guid, ObservedNode>, own: Option<OwnPort>, port: PortName) -> bool {
    let is_own = own.is_some_and(|own| (own.node, own.number) == (port.node, port.port));
    !is_own && nodes.get(&port.node).is_none_or(|node| !node.is_switch())
}

/// The manager's own port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnPort {
    pub node: Guid,
    pub number: PortNum,
    pub guid: Guid,
}

/// All nodes that are known.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    pub nodes: BTreeMap<Guid, ObservedNode>,
    pub own: Option<OwnPort>,
    /// Ends of links that directed routes take only where nothing else leads.
    pub avoided: BTreeSet<PortName>,
    /// Whether nodes or cables changed since this was last reset.
    pub changed: bool,
}

impl Observed {
    /// Whether a directed route can leave through a port: adapters do not forward, except for the manager's
    /// own port.
    pub fn leads_on(&self, guid: Guid, port: PortNum) -> bool {
        let own = self.own.is_some_and(|own| own.node == guid && own.number == port);
        let is_switch = self.nodes.get(&guid).is_some_and(ObservedNode::is_switch);
        port != PortNum::MANAGEMENT && (is_switch || own)
    }

    /// Records a cable at both of its ends.
    pub fn connect(&mut self, a: (Guid, PortNum), b: (Guid, PortNum)) {
        for ((guid, port), peer) in [(a, b), (b, a)] {
            if let Some(node) = self.nodes.get_mut(&guid) {
                self.changed |= node.links.insert(port, peer) != Some(peer);
            }
        }
    }

    /// Removes a cable. Returns whether there was one.
    pub fn disconnect(&mut self, guid: Guid, port: PortNum) -> bool {
        let lost = self.nodes.get_mut(&guid).and_then(|node| node.links.remove(&port));
        let Some(peer) = lost else { return false };
        self.changed = true;
        if let Some(node) = self.nodes.get_mut(&peer.0)
            && node.links.get(&peer.1) == Some(&(guid, port))
        {
            node.links.remove(&peer.1);
        }
        true
    }

    /// Removes all cables of a node that does not answer.
    pub fn disconnect_all(&mut self, guid: Guid) {
        let ports: Vec<PortNum> =
            self.nodes.get(&guid).map(|node| node.links.keys().copied().collect()).unwrap_or_default();
        for port in ports {
            self.disconnect(guid, port);
        }
    }

    /// Computes the shortest directed route to every reachable port by breadth-first search, and forgets
    /// nodes that are not reachable. Avoided links are followed after all others.
    pub fn reroute(&mut self) {
        let Some(own) = self.own else { return };
        self.nodes.values_mut().for_each(|node| node.routes.clear());
        let mut reached = BTreeSet::new();
        let mut queue = VecDeque::from([(own.node, own.number, DirectedRoute::default())]);
        let mut later = VecDeque::new();
        while let Some((guid, entered, route)) = queue.pop_front().or_else(|| later.pop_front()) {
            let Some(node) = self.nodes.get_mut(&guid) else { continue };
            if node.routes.contains_key(&entered) || node.is_switch() && reached.contains(&guid) {
                continue;
            }
            reached.insert(guid);
            node.routes.insert(entered, route.clone());
            let exits: Vec<_> = node.links.iter().map(|(port, peer)| (*port, *peer)).collect();
            for (port, (peer, peer_port)) in exits {
                if self.leads_on(guid, port) {
                    let is_avoided = self.avoided.contains(&PortName { node: guid, port });
                    let queue = if is_avoided { &mut later } else { &mut queue };
                    queue.extend(route.then(port).map(|route| (peer, peer_port, route)));
                }
            }
        }
        let before = self.nodes.len();
        self.nodes.retain(|guid, _| reached.contains(guid));
        self.changed |= self.nodes.len() != before;
    }

    /// Ports whose link is up but whose neighbour is unknown, with the directed route to the neighbour.
    pub fn open_ends(&self) -> Vec<(Guid, PortNum, DirectedRoute)> {
        let mut ends = Vec::new();
        for (guid, node) in &self.nodes {
            let unknown =
                node.ports.iter().filter(|(port, info)| is_up(info) && !node.links.contains_key(port));
            for (port, _) in unknown.filter(|(port, _)| self.leads_on(*guid, **port)) {
                let route = node.route(*port).and_then(|route| route.then(*port));
                ends.extend(route.map(|route| (*guid, *port, route)));
            }
        }
        ends
    }
}
