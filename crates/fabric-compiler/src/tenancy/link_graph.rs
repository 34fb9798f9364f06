//! The fabric as admission control sees it: hosts, directed links, and routes between hosts.
//!
//! Routes are followed through the forwarding tables of a plan on demand, so no table of all pairs is needed. Where the
//! switches form a regular tree, [`RegularTree`] gives the links of every path that could be selected.

use std::collections::HashMap;
use std::sync::Arc;

use fabric_model::intent::{Capabilities, LaneBuffer, PortName};
use fabric_model::plan::LinearTable;
use fabric_model::tenancy::Bandwidth;
use fabric_model::{Endpoint, FabricPlan, LinkRate, StatedHardware, Topology};
use ib_wire::{DataLanes, Guid, LaneSet, Lid, PortNum, ServiceLevel, ServiceLevelSet, VirtualLane};

use super::tree::RegularTree;

/// The most links of a route, as a guard against loops: more than any route has in practice.
const ROUTE_LINKS_MAX: usize = 64;

/// The index of a host in [`LinkGraph::hosts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostIndex(pub u32);

/// The index of a directed link in [`LinkGraph::links`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkIndex(pub u32);

impl HostIndex {
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl LinkIndex {
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Limits on what guaranteed clusters may use of every link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenancyLimits {
    /// Lanes for guaranteed clusters, at most 14. `None`: what a link has, without [`reserved_lanes`].
    pub lanes: Option<u8>,
    /// Service levels for guaranteed clusters, counted from 1: at most 15, because 0 is best effort, and 14 where 15 is that
    /// of management.
    pub service_levels: u8,
    /// Entries of the low-priority arbitration table: 8, 16, 32 or 64.
    pub table_entries: u8,
    /// What guarantees are sold for.
    pub hardware: StatedHardware,
}

impl Default for TenancyLimits {
    fn default() -> Self {
        Self { lanes: None, service_levels: 15, table_entries: 64, hardware: StatedHardware::default() }
    }
}

impl TenancyLimits {
    /// The service levels for guaranteed clusters.
    pub fn cluster_service_levels(&self) -> ServiceLevelSet {
        let best_effort = ServiceLevel::default();
        ServiceLevelSet::range(best_effort, self.service_levels.saturating_add(1)) - best_effort.into()
    }
}

/// Lanes of a link that no guaranteed cluster gets: one for best effort, and one for management if there are at least 8.
pub const fn reserved_lanes(data_lanes: u8) -> u8 {
    if data_lanes >= 8 { 2 } else { 1 }
}

/// An adapter port that is attached to a switch, and the two links of its cable.
#[derive(Clone, Copy, Debug)]
pub struct AttachedHost {
    pub port: Guid,
    /// From the host into the fabric.
    pub inward: LinkIndex,
    /// From the fabric to the host.
    pub outward: LinkIndex,
    lid: Lid,
    switch: u32,
}

/// One direction of a cable.
#[derive(Clone, Copy, Debug)]
pub struct DirectedLink {
    /// The port that sends into it.
    pub from: PortName,
    /// The data rate, without line coding.
    pub rate: Bandwidth,
    /// Time of an unobstructed packet through the sending device and along the cable.
    pub passage_ns: u32,
    /// The number of lanes for guaranteed clusters.
    pub lanes: u8,
    /// The first of them. Lanes below are for best effort and management.
    pub first_lane: u8,
    /// The buffer of each lane at the receiving end, if known.
    pub buffer: Option<LaneBuffer>,
    /// The index of the receiving switch; `None` if it leads to a host.
    to: Option<u32>,
    peer: PortName,
}

impl DirectedLink {
    /// The number of data lanes in use at most: those of guaranteed clusters, best effort and management.
    pub fn data_lanes(&self) -> u8 {
        self.lanes + self.first_lane
    }

    /// Whether it leads to a switch.
    pub fn is_to_switch(&self) -> bool {
        self.to.is_some()
    }

    /// The lanes for guaranteed clusters.
    pub fn cluster_lanes(&self) -> LaneSet {
        let first = VirtualLane::from_wire(self.first_lane);
        first.map_or(LaneSet::EMPTY, |first| LaneSet::range(first, self.lanes) & LaneSet::DATA)
    }
}

impl AttachedHost {
    /// The index of its switch.
    pub(super) fn switch_index(&self) -> u32 {
        self.switch
    }
}

#[derive(Clone, Debug)]
struct SwitchRow {
    table: Arc<LinearTable>,
    /// The link out of each port, by port number.
    exits: Vec<Option<LinkIndex>>,
}

/// Hosts, directed links and routes of a fabric. Switches are numbered as in the plan.
#[derive(Clone, Debug)]
pub struct LinkGraph {
    hosts: Vec<AttachedHost>,
    links: Vec<DirectedLink>,
    switches: Vec<SwitchRow>,
    tree: Option<RegularTree>,
    limits: TenancyLimits,
}

impl LinkGraph {
    /// The graph of a plan for a topology. Adapter ports that are not attached to a switch are left out. Links of unknown
    /// rate have nothing to guarantee: their rate is 0.
    pub fn of(topology: &Topology, plan: &FabricPlan, limits: TenancyLimits) -> Self {
        let switch_indices: HashMap<Guid, u32> =
            (0..).zip(plan.switches()).map(|(at, switch)| (switch.guid, at)).collect();
        let mut graph =
            Self { hosts: Vec::new(), links: Vec::new(), switches: Vec::new(), tree: None, limits };
        for switch in plan.switches() {
            let mut exits = Vec::new();
            for port in switch.ports.iter() {
                let from = PortName { node: switch.guid, port: port.number };
                let to = switch_indices.get(&port.peer.node).copied();
                let link = graph.add_link(topology, from, port.peer, port.lanes, to);
                exits.resize(exits.len().max(port.number.index() + 1), None);
                exits[port.number.index()] = Some(link);
            }
            graph.switches.push(SwitchRow { table: plan.default_linear_table(switch), exits });
        }
        for port in plan.adapter_ports() {
            let Some(switch) = switch_indices.get(&port.peer.node).copied() else { continue };
            let Some(outward) = graph.exit(switch, port.peer.port) else { continue };
            let inward = graph.add_link(topology, port.name, port.peer, port.lanes, Some(switch));
            graph.hosts.push(AttachedHost { port: port.guid, inward, outward, lid: port.lid, switch });
        }
        graph.hosts.sort_by_key(|host| (host.switch, graph.links[host.outward.index()].from.port));
        graph.tree = RegularTree::of(&graph);
        graph
    }

    /// Sets the lane buffers that the capabilities declare.
    #[must_use]
    pub fn with_buffers(mut self, capabilities: &Capabilities) -> Self {
        for link in &mut self.links {
            link.buffer = capabilities.port(link.peer).lane_buffer;
        }
        self
    }

    /// Ordered by switch, then by switch port.
    pub fn hosts(&self) -> &[AttachedHost] {
        &self.hosts
    }

    pub fn links(&self) -> &[DirectedLink] {
        &self.links
    }

    /// The tree that the switches form; `None` if they form no regular tree of two or three tiers.
    pub fn tree(&self) -> Option<&RegularTree> {
        self.tree.as_ref()
    }

    pub fn limits(&self) -> TenancyLimits {
        self.limits
    }

    /// The index of the switch that a host is attached to.
    #[inline]
    pub fn switch_of(&self, host: HostIndex) -> u32 {
        self.hosts[host.index()].switch
    }

    /// The node GUID of the switch that a host is attached to.
    pub fn switch_guid(&self, host: HostIndex) -> Guid {
        self.links[self.hosts[host.index()].outward.index()].from.node
    }

    /// Visits the links from a switch to a host by the forwarding tables; the last one leads to the host. Returns false if
    /// packets do not arrive; some links may have been visited then.
    pub fn links_from(&self, switch: u32, to: HostIndex, mut visit: impl FnMut(LinkIndex)) -> bool {
        let host = &self.hosts[to.index()];
        let mut here = switch;
        for _ in 0..ROUTE_LINKS_MAX {
            let row = &self.switches[here as usize];
            let Some(link) = row.table.exit(host.lid).and_then(|port| self.exit(here, port)) else {
                return false;
            };
            visit(link);
            match self.links[link.index()].to {
                Some(next) => here = next,
                None => return link == host.outward,
            }
        }
        false
    }

    /// The links from one host to another by the forwarding tables; `None` if packets do not arrive.
    pub fn route(&self, from: HostIndex, to: HostIndex) -> Option<Vec<LinkIndex>> {
        let mut links = vec![self.hosts[from.index()].inward];
        self.links_from(self.switch_of(from), to, |link| links.push(link)).then_some(links)
    }

    /// The links from a switch to other switches: port number, link, and index of the other switch, by port number.
    pub(super) fn cables(&self, switch: u32) -> impl Iterator<Item = (PortNum, LinkIndex, u32)> + '_ {
        self.switches[switch as usize].exits.iter().flatten().filter_map(|link| {
            let DirectedLink { from, to, .. } = self.links[link.index()];
            Some((from.port, *link, to?))
        })
    }

    /// The links out of each switch, in order of the switches.
    pub(crate) fn exits(&self) -> impl Iterator<Item = impl Iterator<Item = LinkIndex> + '_> {
        self.switches.iter().map(|row| row.exits.iter().copied().flatten())
    }

    /// Replaces the forwarding table of a switch.
    pub(crate) fn set_table(&mut self, switch: usize, table: &Arc<LinearTable>) {
        self.switches[switch].table = Arc::clone(table);
    }

    /// The other direction of a link that leads to a switch.
    pub(crate) fn reverse(&self, link: LinkIndex) -> Option<LinkIndex> {
        let DirectedLink { to, peer, .. } = self.links[link.index()];
        self.exit(to?, peer.port)
    }

    fn exit(&self, switch: u32, port: PortNum) -> Option<LinkIndex> {
        self.switches.get(switch as usize)?.exits.get(port.index()).copied().flatten()
    }

    fn add_link(
        &mut self,
        topology: &Topology,
        from: PortName,
        peer: PortName,
        lanes: DataLanes,
        to: Option<u32>,
    ) -> LinkIndex {
        let end = topology.by_guid(from.node).map(|node| Endpoint::new(node, from.port));
        let rate_of = |end: Endpoint| topology.port(end)?.rate;
        let rate = end.and_then(|end| rate_of(end).or_else(|| rate_of(topology.peer(end)?)));
        let rate_gbps = rate.map_or(0.0, LinkRate::data_rate_gbps);
        let passage_ns = rate.map_or(0, |rate| self.limits.hardware.passage(rate).total_ns());
        let rate = Bandwidth::from_bits_per_s((rate_gbps * 1e9) as u64);
        let data_lanes = lanes.count();
        let (lanes, first_lane) = match self.limits.lanes {
            Some(lanes) => (lanes.min(14), 1),
            None => (data_lanes.saturating_sub(reserved_lanes(data_lanes)), reserved_lanes(data_lanes)),
        };
        self.links.push(DirectedLink { from, rate, passage_ns, lanes, first_lane, buffer: None, to, peer });
        LinkIndex(u32::try_from(self.links.len() - 1).expect("a topology has fewer ports"))
    }
}
