//! Credit loops: no cycle of links can wait for each other's buffers.
//!
//! Method: the channel dependency graph of Dally and Seitz (Deadlock-Free Message Routing in Multiprocessor
//! Interconnection Networks, IEEE ToC 1987). A packet holds a buffer behind a link until the next link has one for
//! it, so a link depends on every link that some packet in the tables takes next. Routing is
//! deadlock-free if the graph has no cycle. Links are examined first, in time linear in the forwarding entries: a
//! cycle of lanes implies one of links, so lanes are only distinguished on links of a cycle.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fabric_model::plan::{PortQos, PortSet};
use ib_wire::{Lid, MulticastLid, PortNum, ServiceLevel, VirtualLane};

use crate::bits::Bits;
use crate::graph::{self, cycles};
use crate::network::{ExitColumns, Link, NextHop, PORTS, PlannedNetwork, SwitchIndex, port_of as port};
use crate::{Finding, LinkWait, PacketDestination};

/// A link and a virtual lane; [`ANY_LANE`] where the plan leaves the mapping to the device.
type Channel = (Link, u8);

/// Stands for all lanes of a link that are not distinguished.
const ANY_LANE: u8 = 16;

pub(crate) fn check(network: &PlannedNetwork<'_>) -> Vec<Finding> {
    let dependencies = LinkDependencies::of(network);
    let cycles = cycles(&dependencies.links, |link| dependencies.after(link));
    if cycles.is_empty() {
        return Vec::new();
    }
    let shares = |link: &Link| network.sharing(link / PORTS, port(*link)).is_some();
    if !cycles.iter().flat_map(|cycle| &cycle.all).any(shares) {
        let channels = |links: &[Link]| links.iter().map(|link| (*link, ANY_LANE)).collect::<Vec<_>>();
        return cycles.iter().map(|cycle| finding(network, &channels(&cycle.shortest))).collect();
    }
    let suspects: BTreeSet<Link> = cycles.into_iter().flat_map(|cycle| cycle.all).collect();
    let after = lane_dependencies(network, &suspects);
    let channels: Vec<Channel> = after.keys().copied().collect::<BTreeSet<_>>().into_iter().collect();
    let next = |channel: &Channel| after.get(channel).into_iter().flatten().copied().collect();
    graph::cycles(&channels, next).iter().map(|cycle| finding(network, &cycle.shortest)).collect()
}

/// A topological order of the link dependency graph: its existence proves that there is no cycle.
#[derive(Clone, Debug)]
pub(crate) struct LinkOrder {
    /// Rank by link; 0 for links that are not between switches.
    ranks: Arc<[u32]>,
}

impl LinkOrder {
    /// The order of a network, or `None` if there is a cycle.
    pub fn of(network: &PlannedNetwork<'_>) -> Option<Self> {
        let dependencies = LinkDependencies::of(network);
        let sorted = graph::sorted(&dependencies.links, |link| dependencies.after(link))?;
        let mut ranks = vec![0; network.switches.len() * PORTS];
        for (link, rank) in sorted.into_iter().zip(0..) {
            ranks[link] = rank;
        }
        Some(Self { ranks: ranks.into() })
    }

    /// Whether the order is still valid for packets to the LIDs of changed columns and for packets that pass changed
    /// multicast entries. If not, there may still be another order.
    pub fn holds(
        &self,
        network: &PlannedNetwork<'_>,
        changed: &ExitColumns,
        groups: impl IntoIterator<Item = (SwitchIndex, MulticastLid)>,
    ) -> bool {
        // The link of an exit that leads to a switch, and that switch.
        let taken = |here: SwitchIndex, exit: Option<PortNum>| match (
            exit,
            exit.map(|exit| network.next(here, exit)),
        ) {
            (Some(exit), Some(NextHop::Switch(there, _))) => {
                Some((here * PORTS + exit.index(), there as SwitchIndex))
            }
            _ => None,
        };
        let goes_onward = |here: SwitchIndex| {
            (0..changed.lids.len()).all(|column| {
                let Some((link, there)) = taken(here, changed.exit(here, column)) else { return true };
                let next = taken(there, changed.exit(there, column));
                next.is_none_or(|(next, _)| self.ranks[link] < self.ranks[next])
            })
        };
        (0..network.switches.len()).all(goes_onward)
            && groups.into_iter().all(|(here, mlid)| {
                let to = PacketDestination::Group(mlid);
                let before = links_into(network, here).filter(|link| takes(network, *link, to));
                let own = exits(network, here, to).map(|exit| here * PORTS + exit.index());
                before.chain(own).all(|link| self.is_onward(network, link, to))
            })
    }

    /// Whether packets to a destination only take links of higher rank after a link.
    fn is_onward(&self, network: &PlannedNetwork<'_>, link: Link, to: PacketDestination) -> bool {
        let NextHop::Switch(there, input) = network.next(link / PORTS, port(link)) else { return true };
        let there = there as SwitchIndex;
        let is_group = matches!(to, PacketDestination::Group(_));
        exits(network, there, to).filter(|exit| !is_group || *exit != input).all(|exit| {
            let next = there * PORTS + exit.index();
            !matches!(network.next(there, exit), NextHop::Switch(..)) || self.ranks[link] < self.ranks[next]
        })
    }
}

/// The links from other switches into a switch.
fn links_into<'a>(network: &'a PlannedNetwork<'_>, here: SwitchIndex) -> impl Iterator<Item = Link> + 'a {
    (1..=network.port_count(here)).map(port).filter_map(move |input| match network.next(here, input) {
        NextHop::Switch(there, exit) => Some(there as SwitchIndex * PORTS + exit.index()),
        _ => None,
    })
}

fn takes(network: &PlannedNetwork<'_>, link: Link, to: PacketDestination) -> bool {
    exits(network, link / PORTS, to).any(|exit| exit == port(link))
}

/// The dependencies between links, without lanes.
struct LinkDependencies {
    /// All links between switches.
    links: Vec<Link>,
    /// The links that packets on a link may wait for.
    after: HashMap<Link, Vec<Link>>,
}

/// By switch, then input port: the output ports of packets that enter there.
type Hops = Vec<Vec<Bits>>;

impl LinkDependencies {
    fn of(network: &PlannedNetwork<'_>) -> Self {
        let count = network.switches.len();
        let mut hops: Hops = (0..count)
            .map(|switch_index| vec![Bits::new(PORTS); network.port_count(switch_index) + 1])
            .collect();
        for here in 0..count {
            Self::add_unicast(network, here, &mut hops);
            Self::add_groups(network, here, &mut hops);
        }
        let is_link = |switch_index: SwitchIndex, exit: usize| {
            matches!(network.next(switch_index, port(exit)), NextHop::Switch(..))
        };
        let ports = |switch_index: SwitchIndex| {
            (1..=network.port_count(switch_index)).filter(move |exit| is_link(switch_index, *exit))
        };
        let links: Vec<Link> = (0..count)
            .flat_map(|switch_index| ports(switch_index).map(move |exit| switch_index * PORTS + exit))
            .collect();
        let after = |link: &Link| {
            let NextHop::Switch(there, input) = network.next(link / PORTS, port(*link)) else {
                return Vec::new();
            };
            let there = there as SwitchIndex;
            let exits = hops[there][input.index()].iter().filter(|exit| is_link(there, *exit));
            exits.map(|exit| there * PORTS + exit).collect()
        };
        Self { after: links.iter().map(|link| (*link, after(link))).collect(), links }
    }

    /// Adds the hops at the neighbours of a switch of unicast packets that come from it.
    fn add_unicast(network: &PlannedNetwork<'_>, here: SwitchIndex, hops: &mut Hops) {
        // LIDs by exit, so that the rows of two switches are read side by side.
        let mut by_exit: Vec<Vec<Lid>> = vec![Vec::new(); PORTS];
        for (lid, exit) in (0..=Lid::MAX).zip(network.switches[here].linear.to_exits()) {
            by_exit[usize::from(exit)].extend(Lid::from_wire(lid));
        }
        for (exit, lids) in by_exit.iter().enumerate().filter(|(_, lids)| !lids.is_empty()) {
            let NextHop::Switch(there, input) = network.next(here, port(exit)) else { continue };
            let at = &mut hops[there as SwitchIndex][input.index()];
            for exit in lids.iter().filter_map(|lid| network.exit(there as SwitchIndex, *lid)) {
                at.insert(exit.index());
            }
        }
    }

    /// Adds the hops of multicast packets, which do not leave by the port at which they entered.
    fn add_groups(network: &PlannedNetwork<'_>, here: SwitchIndex, hops: &mut Hops) {
        for (mlid, exits) in network.switches[here].multicast.exits() {
            for exit in exits.iter() {
                let NextHop::Switch(there, input) = network.next(here, exit) else { continue };
                let further = network.switches[there as SwitchIndex].multicast.exit(mlid);
                let at = &mut hops[there as SwitchIndex][input.index()];
                further.iter().filter(|exit| *exit != input).for_each(|exit| at.insert(exit.index()));
            }
        }
    }

    fn after(&self, link: &Link) -> Vec<Link> {
        self.after.get(link).cloned().unwrap_or_default()
    }
}

/// Output ports of a switch for a destination.
fn exits(
    network: &PlannedNetwork<'_>,
    here: SwitchIndex,
    to: PacketDestination,
) -> impl Iterator<Item = PortNum> + use<> {
    let (one, group) = match to {
        PacketDestination::Lid(lid) => (network.exit(here, lid), None),
        PacketDestination::Group(mlid) => (None, Some(network.switches[here].multicast.exit(mlid))),
    };
    one.into_iter().chain(group.into_iter().flat_map(PortSet::iter))
}

/// All destinations in the forwarding tables.
fn destinations(network: &PlannedNetwork<'_>) -> Vec<PacketDestination> {
    let lids = (1..=network.top()).filter_map(Lid::from_wire);
    let groups: BTreeSet<MulticastLid> =
        network.switches.iter().flat_map(|switch| switch.multicast.exits().map(|(mlid, _)| mlid)).collect();
    lids.map(PacketDestination::Lid).chain(groups.into_iter().map(PacketDestination::Group)).collect()
}

/// The dependencies between lanes of the suspect links. Every destination and service level is followed from every
/// port that can send it.
fn lane_dependencies(
    network: &PlannedNetwork<'_>,
    suspects: &BTreeSet<Link>,
) -> HashMap<Channel, BTreeSet<Channel>> {
    let mut after: HashMap<Channel, BTreeSet<Channel>> = HashMap::new();
    let levels: Vec<(ServiceLevel, Vec<(SwitchIndex, PortNum)>)> =
        distinct_levels(network).map(|sl| (sl, senders(network, sl).collect())).collect();
    for to in destinations(network) {
        for (sl, senders) in &levels {
            let sl = *sl;
            let mut seen: BTreeSet<Channel> = BTreeSet::new();
            let mut open: Vec<Channel> = Vec::new();
            for (switch_index, input) in senders {
                open.extend(onward(network, *switch_index, *input, to, sl));
            }
            while let Some(channel) = open.pop() {
                if !seen.insert(channel) {
                    continue;
                }
                let NextHop::Switch(there, input) = network.next(channel.0 / PORTS, port(channel.0)) else {
                    continue;
                };
                for further in onward(network, there as SwitchIndex, input, to, sl) {
                    if suspects.contains(&channel.0) && suspects.contains(&further.0) {
                        after.entry(channel).or_default().insert(further);
                        after.entry(further).or_default();
                    }
                    open.push(further);
                }
            }
        }
    }
    after
}

/// One service level for each class of service levels that all ports map alike.
fn distinct_levels(network: &PlannedNetwork<'_>) -> impl Iterator<Item = ServiceLevel> + use<> {
    let ports = network.switches.iter().flat_map(|switch| switch.ports.iter());
    let sharings = ports.filter_map(|port| port.qos.as_deref());
    let sharings: Vec<&PortQos> =
        sharings.chain((0..network.ends().len()).filter_map(|end| network.end_sharing(end))).collect();
    let lanes = |sl: ServiceLevel| -> Vec<VirtualLane> {
        let maps = sharings.iter().flat_map(|sharing| sharing.by_input.values().chain([&sharing.otherwise]));
        maps.map(|map| map.lane(sl)).collect()
    };
    let levels = (0..16).filter_map(ServiceLevel::from_wire);
    let distinct: BTreeMap<Vec<VirtualLane>, ServiceLevel> = levels.map(|sl| (lanes(sl), sl)).collect();
    distinct.into_values()
}

/// Where packets with a service level enter switches: from adapters that have a lane for it, and from switches
/// themselves.
fn senders<'a>(
    network: &'a PlannedNetwork<'_>,
    sl: ServiceLevel,
) -> impl Iterator<Item = (SwitchIndex, PortNum)> + 'a {
    let can = move |sharing: Option<&PortQos>| {
        sharing.is_none_or(|sharing| sharing.otherwise.lane(sl) != VirtualLane::MANAGEMENT)
    };
    let ends = network.ends().iter().enumerate();
    ends.filter(move |(index, _)| can(network.end_sharing(*index))).filter_map(|(_, end)| end.home)
}

/// The channels between switches that packets take next from a switch.
fn onward(
    network: &PlannedNetwork<'_>,
    here: SwitchIndex,
    input: PortNum,
    to: PacketDestination,
    sl: ServiceLevel,
) -> Vec<Channel> {
    let is_group = matches!(to, PacketDestination::Group(_));
    let exits = exits(network, here, to).filter(|exit| !is_group || *exit != input);
    let exits = exits.filter(|exit| matches!(network.next(here, *exit), NextHop::Switch(..)));
    let channel = |exit: PortNum| {
        let link = here * PORTS + exit.index();
        match network.sharing(here, exit) {
            None => Some((link, ANY_LANE)),
            Some(sharing) => sharing.lane(input, sl).map(|lane| (link, lane.to_wire())),
        }
    };
    exits.filter_map(channel).collect()
}

/// Describes a cycle, with a destination for each dependency.
fn finding(network: &PlannedNetwork<'_>, cycle: &[Channel]) -> Finding {
    let followers = cycle.iter().cycle().skip(1);
    let waits = cycle.iter().zip(followers).map(|((link, lane), (next, _))| LinkWait {
        link: network.hop(link / PORTS, port(*link)),
        lane: VirtualLane::from_wire(*lane),
        packets: between(network, *link, *next),
    });
    Finding::CreditLoop { cycle: waits.collect() }
}

/// A destination whose packets take one link after the other.
fn between(network: &PlannedNetwork<'_>, link: Link, next: Link) -> PacketDestination {
    let takes_both = |to: &PacketDestination| takes(network, link, *to) && takes(network, next, *to);
    let found = destinations(network).into_iter().find(takes_both);
    found.expect("links are joined by packets that take both")
}
