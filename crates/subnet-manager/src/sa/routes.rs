//! Paths along the linear forwarding tables of a plan, and what their links can carry.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};

use fabric_model::FabricPlan;
use fabric_model::intent::PortName;
use fabric_model::plan::LinearTable;
use ib_wire::{Guid, Lid, Mtu, PortNum, Rate};

use super::directory::NodeFacts;

/// Number of switches after which a path counts as a loop. A directed route has at most 63 hops.
const HOPS_MAX: usize = 64;

/// The switches and links of a plan, in flat arrays.
#[derive(Debug)]
pub(super) struct Routes {
    switches: Vec<Switch>,
    /// By switch and port.
    links: Vec<Link>,
    /// The link of each adapter port, by LID.
    adapters: BTreeMap<Lid, Link>,
    found: FoundPaths,
}

/// Paths that were followed before, so that each is followed once: a path visits many tables, and on a large fabric none of them
/// is in the processor's cache.
#[derive(Debug)]
struct FoundPaths {
    /// By switch where the path begins and LID where it ends. Only switches that were asked for have entries.
    by_switch: Box<[OnceLock<Box<[AtomicU16]>>]>,
    /// Number of LIDs, including 0.
    lid_count: usize,
}

impl FoundPaths {
    /// An entry of a path that was not followed yet. No capability is encoded so, as MTU 0 does not exist.
    const NOT_YET: u16 = 0;
    /// An entry of a path that does not lead to its LID.
    const NO_PATH: u16 = u16::MAX;

    fn new(switch_count: usize, lid_count: usize) -> Self {
        Self { by_switch: (0..switch_count).map(|_| OnceLock::new()).collect(), lid_count }
    }

    /// The path from a switch to a LID; follows it if it is new.
    #[inline]
    fn get_or_follow(
        &self,
        from: u32,
        to: Lid,
        follow: impl FnOnce() -> Option<PathCapability>,
    ) -> Option<PathCapability> {
        let switch = self.by_switch.get(from as usize)?;
        let entries = switch.get_or_init(|| (0..self.lid_count).map(|_| AtomicU16::new(0)).collect());
        let entry = entries.get(usize::from(to.to_wire()))?;
        // Every thread would store the same value.
        match entry.load(Ordering::Relaxed) {
            Self::NOT_YET => {
                let path = follow();
                entry.store(path.map_or(Self::NO_PATH, PathCapability::to_bits), Ordering::Relaxed);
                path
            }
            Self::NO_PATH => None,
            bits => Some(PathCapability::from_bits(bits)),
        }
    }
}

/// A switch, and the range of its ports in the list of links.
#[derive(Debug)]
struct Switch {
    lid: Lid,
    /// Capability of port 0.
    own: PathCapability,
    linear: Arc<LinearTable>,
    first_link: usize,
    port_count: usize,
}

/// A link, as seen from one end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    to: LinkEnd,
    capability: PathCapability,
}

/// The other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkEnd {
    Unknown,
    Switch(u32),
    Adapter(Lid),
}

/// The capability of a link or of a whole path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathCapability {
    /// Index into the list of rates by speed; [`PathCapability::UNKNOWN`] if neither end reported one.
    speed: u8,
    /// MTU in its wire encoding.
    mtu: u8,
}

impl PathCapability {
    const UNKNOWN: u8 = u8::MAX;
    /// The capability of a path without links.
    const ANY: Self = Self { speed: Self::UNKNOWN, mtu: Mtu::B4096.to_wire() };

    fn new(ends: [Option<Rate>; 2], mtu: Mtu) -> Self {
        let index = |rate: Rate| Rate::SLOWEST_FIRST.iter().position(|listed| *listed == rate);
        let speeds =
            ends.into_iter().flatten().filter_map(index).filter_map(|index| u8::try_from(index).ok());
        // Every port supports an MTU of 256 bytes.
        let mtu = if mtu.bytes() == 0 { Mtu::B256 } else { mtu };
        Self { speed: speeds.min().unwrap_or(Self::UNKNOWN), mtu: mtu.to_wire() }
    }

    /// The minimum of both.
    #[inline]
    pub fn and(self, other: Self) -> Self {
        Self { speed: self.speed.min(other.speed), mtu: self.mtu.min(other.mtu) }
    }

    fn to_bits(self) -> u16 {
        u16::from_be_bytes([self.speed, self.mtu])
    }

    fn from_bits(bits: u16) -> Self {
        let [speed, mtu] = bits.to_be_bytes();
        Self { speed, mtu }
    }

    pub fn mtu(self) -> Mtu {
        Mtu::from_wire(self.mtu)
    }

    /// The rate of the slowest link; the lowest rate if no link reported one.
    pub fn rate(self) -> Rate {
        Rate::SLOWEST_FIRST.get(usize::from(self.speed)).copied().unwrap_or(Rate::G2_5)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PathStart {
    /// The link of an adapter port.
    Adapter(Link),
    /// Port 0 of a switch.
    Switch(u32),
}

impl Routes {
    /// The switches and links of a plan, with the rates that the nodes reported.
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
        let lids = plan.adapter_ports().map(|port| port.lid).chain(plan.switches().map(|switch| switch.lid));
        let top = lids.map(|lid| usize::from(lid.to_wire())).max().unwrap_or(0);
        let mut routes = Self {
            found: FoundPaths::new(plan.switches().len(), top + 1),
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

    /// The start of paths from an adapter port; `None` if the plan does not have it.
    pub fn start_of_adapter(&self, lid: Lid) -> Option<PathStart> {
        self.adapters.get(&lid).copied().map(PathStart::Adapter)
    }

    /// The capability of the path to a LID; `None` if the forwarding tables do not lead there.
    #[inline]
    pub fn walk(&self, start: PathStart, to: Lid) -> Option<PathCapability> {
        let (first, capability) = match start {
            PathStart::Adapter(link) => match link.to {
                LinkEnd::Switch(index) => (index, link.capability),
                LinkEnd::Adapter(lid) => return (lid == to).then_some(link.capability),
                LinkEnd::Unknown => return None,
            },
            PathStart::Switch(index) => (index, self.switches.get(index as usize)?.own),
        };
        let path = self.found.get_or_follow(first, to, || self.follow(first, to))?;
        Some(capability.and(path))
    }

    /// Follows the forwarding tables from a switch to a LID.
    fn follow(&self, first: u32, to: Lid) -> Option<PathCapability> {
        let (mut at, mut capability) = (first, PathCapability::ANY);
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

    /// The capability of a port to itself.
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
