//! The fabric as those see it who share out its links: hosts, directed links, and the links from host to host.
//!
//! Routes are read from the forwarding tables of a plan while they are asked for, so that no table of all pairs is needed.
//! Where the switches form a regular tree, [`Tree`] gives the links of every way that could be chosen.

use std::collections::HashMap;
use std::sync::Arc;

use fabric_model::intent::{Capabilities, LaneBuffer, PortName};
use fabric_model::plan::LinearTable;
use fabric_model::tenancy::Bandwidth;
use fabric_model::{Endpoint, FabricPlan, LinkRate, Topology};
use ib_wire::{DataLanes, Guid, Lid, PortNum};

use super::tree::Tree;

/// Links that a route may have: more than any route that is free of loops in practice.
const ROUTE_LINKS_MAX: usize = 64;

/// A host's place in a [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostIndex(pub u32);

/// A directed link's place in a [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkIndex(pub u32);

impl HostIndex {
    /// The place as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl LinkIndex {
    /// The place as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What guaranteed clusters may use of every link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Lanes for guaranteed clusters, 14 at most; `None` takes what a link has, less [`reserved_lanes`].
    pub lanes: Option<u8>,
    /// Service levels for guaranteed clusters, from 1 on: at most 15, as level 0 is best effort, and 14 where the highest is
    /// management's.
    pub service_levels: u8,
    /// Entries of the low-priority arbitration table.
    pub table_entries: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Self { lanes: None, service_levels: 15, table_entries: 64 }
    }
}

/// Lanes that no guaranteed cluster gets: best effort has one, and from 8 lanes on management has one of its own.
pub const fn reserved_lanes(data_lanes: u8) -> u8 {
    if data_lanes >= 8 { 2 } else { 1 }
}

/// A port of an adapter, and the links of its cable.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// GUID of the port.
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
    /// The port by which packets leave.
    pub from: PortName,
    /// What it carries, line code taken off.
    pub rate: Bandwidth,
    /// Lanes that guaranteed clusters may have.
    pub lanes: u8,
    /// The first of them; the ones before are for best effort and management.
    pub first_lane: u8,
    /// What each lane has at the other end, if that is known.
    pub buffer: Option<LaneBuffer>,
    /// The switch it leads to; none if it leads to a host.
    to: Option<u32>,
    /// The port it leads to.
    peer: PortName,
}

impl Host {
    /// The place of its switch.
    pub(super) fn switch_place(&self) -> u32 {
        self.switch
    }
}

#[derive(Clone, Debug)]
struct SwitchRow {
    table: Arc<LinearTable>,
    /// The link by exit port.
    exits: Vec<Option<LinkIndex>>,
}

/// Hosts, directed links and routes.
#[derive(Clone, Debug)]
pub struct Network {
    hosts: Vec<Host>,
    links: Vec<DirectedLink>,
    switches: Vec<SwitchRow>,
    tree: Option<Tree>,
    limits: Limits,
}

impl Network {
    /// The network of a plan for a topology. Adapter ports without a switch are left out; links whose rate nobody told
    /// count as the usual ones.
    pub fn of(topology: &Topology, plan: &FabricPlan, limits: Limits) -> Self {
        let places: HashMap<Guid, u32> =
            (0..).zip(plan.switches()).map(|(at, switch)| (switch.guid, at)).collect();
        let mut network =
            Self { hosts: Vec::new(), links: Vec::new(), switches: Vec::new(), tree: None, limits };
        for switch in plan.switches() {
            let mut exits = Vec::new();
            for port in switch.ports.iter() {
                let from = PortName { node: switch.guid, port: port.number };
                let to = places.get(&port.peer.node).copied();
                let link = network.add_link(topology, from, port.peer, port.lanes, to);
                exits.resize(exits.len().max(port.number.index() + 1), None);
                exits[port.number.index()] = Some(link);
            }
            network.switches.push(SwitchRow { table: plan.usual_table(switch), exits });
        }
        for port in plan.adapter_ports() {
            let Some(switch) = places.get(&port.peer.node).copied() else { continue };
            let Some(outward) = network.exit(switch, port.peer.port) else { continue };
            let inward = network.add_link(topology, port.name, port.peer, port.lanes, Some(switch));
            network.hosts.push(Host { port: port.guid, inward, outward, lid: port.lid, switch });
        }
        network.hosts.sort_by_key(|host| (host.switch, network.links[host.outward.index()].from.port));
        network.tree = Tree::of(&network);
        network
    }

    /// The same where buffers are as devices' owners say.
    #[must_use]
    pub fn with_buffers(mut self, capabilities: &Capabilities) -> Self {
        for link in &mut self.links {
            link.buffer = capabilities.port(link.peer).lane_buffer;
        }
        self
    }

    /// The hosts, those of a switch next to each other.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The directed links.
    pub fn links(&self) -> &[DirectedLink] {
        &self.links
    }

    /// The ways that could be chosen, if the switches form a regular tree.
    pub fn tree(&self) -> Option<&Tree> {
        self.tree.as_ref()
    }

    /// What guaranteed clusters may use.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The switch a host hangs on, by its place among the switches.
    #[inline]
    pub fn switch_of(&self, host: HostIndex) -> u32 {
        self.hosts[host.index()].switch
    }

    /// The same by node GUID.
    pub fn switch_guid(&self, host: HostIndex) -> Guid {
        self.links[self.hosts[host.index()].outward.index()].from.node
    }

    /// The links from a switch to a host, the last one leading to the host; false if they do not lead there.
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

    /// All links between two hosts; `None` if there is no route.
    pub fn route(&self, from: HostIndex, to: HostIndex) -> Option<Vec<LinkIndex>> {
        let mut links = vec![self.hosts[from.index()].inward];
        self.links_from(self.switch_of(from), to, |link| links.push(link)).then_some(links)
    }

    /// Cables from a switch to others, by port: the port's number, the link, and the other switch.
    pub(super) fn cables(&self, switch: u32) -> impl Iterator<Item = (PortNum, LinkIndex, u32)> + '_ {
        self.switches[switch as usize].exits.iter().flatten().filter_map(|link| {
            let DirectedLink { from, to, .. } = self.links[link.index()];
            Some((from.port, *link, to?))
        })
    }

    /// The links out of every switch.
    pub(crate) fn exits(&self) -> impl Iterator<Item = impl Iterator<Item = LinkIndex> + '_> {
        self.switches.iter().map(|row| row.exits.iter().copied().flatten())
    }

    /// Gives a switch another forwarding table.
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
        let rate_gbps = rate.unwrap_or(LinkRate::DEFAULT).data_rate_gbps();
        let rate = Bandwidth::from_bits_per_s((rate_gbps * 1e9) as u64);
        let data_lanes = lanes.count();
        let (lanes, first_lane) = match self.limits.lanes {
            Some(lanes) => (lanes.min(14), 1),
            None => (data_lanes.saturating_sub(reserved_lanes(data_lanes)), reserved_lanes(data_lanes)),
        };
        self.links.push(DirectedLink { from, rate, lanes, first_lane, buffer: None, to, peer });
        LinkIndex(u32::try_from(self.links.len() - 1).expect("a topology has fewer ports"))
    }
}
