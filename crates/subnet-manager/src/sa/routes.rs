//! The ways that packets take, as the forwarding tables of a plan lead, and what the links on them can do.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::intent::PortName;
use fabric_model::plan::LinearTable;
use ib_wire::sa::Rate;
use ib_wire::{Guid, Lid, Mtu, PortNum};

use super::directory::NodeFacts;

/// Switches a packet may pass before its route counts as a loop. Directed routes, the longest ways there are, have 63.
const HOPS_MAX: usize = 64;

/// The switches and cables of a plan, in flat arrays.
#[derive(Debug)]
pub(super) struct Routes {
    switches: Vec<Switch>,
    /// Cables by switch and port.
    links: Vec<Link>,
    /// The cable of each adapter port, by LID.
    adapters: BTreeMap<Lid, Link>,
}

/// A switch and where its ports are in the list of links.
#[derive(Debug)]
struct Switch {
    lid: Lid,
    /// What its own port 0 can take.
    own: PathCapability,
    linear: Arc<LinearTable>,
    first_link: usize,
    port_count: usize,
}

/// A cable as seen from one of its ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    to: LinkEnd,
    capability: PathCapability,
}

/// What a cable leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkEnd {
    Unknown,
    Switch(u32),
    Adapter(Lid),
}

/// What a link, or all links of a path, can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathCapability {
    /// Place in the list of rates by speed; [`PathCapability::UNKNOWN`] where neither end said.
    speed: u8,
    /// Code of the largest packet.
    mtu: u8,
}

impl PathCapability {
    const UNKNOWN: u8 = u8::MAX;
    /// What a path without links can do.
    const ANY: Self = Self { speed: Self::UNKNOWN, mtu: Mtu::B4096.to_wire() };

    fn new(ends: [Option<Rate>; 2], mtu: Mtu) -> Self {
        let index = |rate: Rate| Rate::SLOWEST_FIRST.iter().position(|listed| *listed == rate);
        let speeds =
            ends.into_iter().flatten().filter_map(index).filter_map(|index| u8::try_from(index).ok());
        // Every port takes 256 bytes, whatever it says.
        let mtu = if mtu.bytes() == 0 { Mtu::B256 } else { mtu };
        Self { speed: speeds.min().unwrap_or(Self::UNKNOWN), mtu: mtu.to_wire() }
    }

    /// What both can do.
    #[inline]
    pub fn and(self, other: Self) -> Self {
        Self { speed: self.speed.min(other.speed), mtu: self.mtu.min(other.mtu) }
    }

    /// Largest packet.
    pub fn mtu(self) -> Mtu {
        Mtu::from_wire(self.mtu)
    }

    /// The slowest link. Where no end of any link told its speed it is the slowest there is.
    pub fn rate(self) -> Rate {
        Rate::SLOWEST_FIRST.get(usize::from(self.speed)).copied().unwrap_or(Rate::G2_5)
    }
}

/// Where a path starts.
#[derive(Clone, Copy, Debug)]
pub(super) enum PathStart {
    /// An adapter port, at its cable.
    Adapter(Link),
    /// Port 0 of a switch.
    Switch(u32),
}

impl Routes {
    /// The switches and cables of a plan; how fast they are is what the nodes say.
    pub fn new(plan: &FabricPlan, nodes: &BTreeMap<Guid, NodeFacts>) -> Self {
        let indices: BTreeMap<Guid, u32> =
            plan.switches().zip(0..).map(|(switch, index)| (switch.guid, index)).collect();
        let adapters: BTreeMap<PortName, Lid> =
            plan.adapter_ports().map(|port| (port.name, port.lid)).collect();
        let link = |from: PortName, to: PortName, mtu| Link {
            to: match (indices.get(&to.node), adapters.get(&to)) {
                (Some(index), _) => LinkEnd::Switch(*index),
                (None, Some(lid)) => LinkEnd::Adapter(*lid),
                (None, None) => LinkEnd::Unknown,
            },
            capability: PathCapability::new([from, to].map(|end| rate(nodes, end)), mtu),
        };
        let mut routes = Self {
            switches: Vec::new(),
            links: Vec::new(),
            adapters: plan
                .adapter_ports()
                .map(|port| (port.lid, link(port.name, port.peer, port.mtu)))
                .collect(),
        };
        for switch in plan.switches() {
            let port_count = switch.ports.iter().map(|port| port.number.index() + 1).max().unwrap_or(0);
            let first_link = routes.links.len();
            routes.links.resize(
                first_link + port_count,
                Link { to: LinkEnd::Unknown, capability: PathCapability::ANY },
            );
            for port in switch.ports.iter() {
                let from = PortName { node: switch.guid, port: port.number };
                routes.links[first_link + port.number.index()] = link(from, port.peer, port.mtu);
            }
            let port_0 = nodes.get(&switch.guid).and_then(|facts| facts.ports.get(&PortNum::MANAGEMENT));
            routes.switches.push(Switch {
                lid: switch.lid,
                own: port_0.map_or(PathCapability::ANY, |info| PathCapability::new([None; 2], info.mtu_cap)),
                linear: Arc::clone(&switch.linear),
                first_link,
                port_count,
            });
        }
        routes
    }

    /// Where paths from an adapter port start; `None` if the plan has no such port.
    pub fn start_of_adapter(&self, lid: Lid) -> Option<PathStart> {
        self.adapters.get(&lid).copied().map(PathStart::Adapter)
    }

    /// What the path from a port to a LID can do; `None` if packets do not get there.
    #[inline]
    pub fn walk(&self, start: PathStart, to: Lid) -> Option<PathCapability> {
        let (mut at, mut capability) = match start {
            PathStart::Adapter(link) => match link.to {
                LinkEnd::Switch(index) => (index, link.capability),
                LinkEnd::Adapter(lid) => return (lid == to).then_some(link.capability),
                LinkEnd::Unknown => return None,
            },
            PathStart::Switch(index) => (index, self.switches.get(index as usize)?.own),
        };
        for _ in 0..HOPS_MAX {
            let switch = self.switches.get(at as usize)?;
            let exit = switch.linear.exit(to)?;
            if exit == PortNum::MANAGEMENT {
                return (switch.lid == to).then(|| capability.and(switch.own));
            }
            let link = self.exit(switch, exit)?;
            capability = capability.and(link.capability);
            match link.to {
                LinkEnd::Switch(next) => at = next,
                LinkEnd::Adapter(lid) => return (lid == to).then_some(capability),
                LinkEnd::Unknown => return None,
            }
        }
        None
    }

    /// What a port can do when it talks to itself.
    pub fn own(&self, start: PathStart) -> PathCapability {
        match start {
            PathStart::Adapter(link) => link.capability,
            PathStart::Switch(index) => {
                self.switches.get(index as usize).map_or(PathCapability::ANY, |switch| switch.own)
            }
        }
    }

    #[inline]
    fn exit(&self, switch: &Switch, port: PortNum) -> Option<&Link> {
        let inside = port.index() < switch.port_count;
        inside.then(|| self.links.get(switch.first_link + port.index())).flatten()
    }
}

fn rate(nodes: &BTreeMap<Guid, NodeFacts>, port: PortName) -> Option<Rate> {
    nodes.get(&port.node)?.ports.get(&port.port)?.active_rate()
}
