//! Whether a ring of links can wait for each other for ever.
//!
//! A packet holds room behind a link until the next link has room for it. Links are joined by every packet that the tables
//! admit, whoever sends it and wherever it is for. If these joints make no ring, no ring of lanes is among them either, so
//! lanes are looked at only where links do make one.

mod graph;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fabric_model::plan::{PortSet, PortSharing};
use ib_wire::{Lid, MulticastLid, PortNum, ServiceLevel, VirtualLane};

use crate::bits::Bits;
use crate::network::{Exits, Link, Network, Next, PORTS, Place, port_of as port};
use crate::{Destination, Finding, Wait};
use graph::rings;

/// A link and a lane of it; [`ANY_LANE`] where that is left to the device.
type Channel = (Link, u8);

/// What stands for all lanes of a link that are not told apart.
const ANY_LANE: u8 = 16;

pub(crate) fn check(network: &Network<'_>) -> Vec<Finding> {
    let joints = Joints::of(network);
    let rings = rings(&joints.links, |link| joints.after(link));
    if rings.is_empty() {
        return Vec::new();
    }
    let shares = |link: &Link| network.sharing(link / PORTS, port(*link)).is_some();
    if !rings.iter().flat_map(|ring| &ring.all).any(shares) {
        let channels = |links: &[Link]| links.iter().map(|link| (*link, ANY_LANE)).collect::<Vec<_>>();
        return rings.iter().map(|ring| told(network, &channels(&ring.shortest))).collect();
    }
    let suspects: BTreeSet<Link> = rings.into_iter().flat_map(|ring| ring.all).collect();
    let after = lanes_joined(network, &suspects);
    let channels: Vec<Channel> = after.keys().copied().collect::<BTreeSet<_>>().into_iter().collect();
    let next = |channel: &Channel| after.get(channel).into_iter().flatten().copied().collect();
    graph::rings(&channels, next).iter().map(|ring| told(network, &ring.shortest)).collect()
}

/// Links in an order in which packets only go onward: while there is one, there is no ring.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// By link; links that are not between switches have none.
    ranks: Arc<[u32]>,
}

impl Order {
    /// An order of the links of a network, if it has no ring.
    pub fn of(network: &Network<'_>) -> Option<Self> {
        let joints = Joints::of(network);
        let sorted = graph::sorted(&joints.links, |link| joints.after(link))?;
        let mut ranks = vec![0; network.switches.len() * PORTS];
        for (link, rank) in sorted.into_iter().zip(0..) {
            ranks[link] = rank;
        }
        Some(Self { ranks: ranks.into() })
    }

    /// Whether the order also holds for packets to LIDs of which entries changed, and for those that pass changed entries of
    /// groups.
    pub fn holds(
        &self,
        network: &Network<'_>,
        changed: &Exits,
        groups: impl IntoIterator<Item = (Place, MulticastLid)>,
    ) -> bool {
        // A link between switches that packets take who leave a switch by some exit.
        let taken =
            |here: Place, exit: Option<PortNum>| match (exit, exit.map(|exit| network.next(here, exit))) {
                (Some(exit), Some(Next::Switch(there, _))) => {
                    Some((here * PORTS + exit.index(), there as Place))
                }
                _ => None,
            };
        let goes_onward = |here: Place| {
            (0..changed.lids.len()).all(|column| {
                let Some((link, there)) = taken(here, changed.exit(here, column)) else { return true };
                let next = taken(there, changed.exit(there, column));
                next.is_none_or(|(next, _)| self.ranks[link] < self.ranks[next])
            })
        };
        (0..network.switches.len()).all(goes_onward)
            && groups.into_iter().all(|(here, mlid)| {
                let to = Destination::Group(mlid);
                let before = links_into(network, here).filter(|link| takes(network, *link, to));
                let own = exits(network, here, to).map(|exit| here * PORTS + exit.index());
                before.chain(own).all(|link| self.is_onward(network, link, to))
            })
    }

    /// Whether packets to a destination go onward from a link.
    fn is_onward(&self, network: &Network<'_>, link: Link, to: Destination) -> bool {
        let Next::Switch(there, input) = network.next(link / PORTS, port(link)) else { return true };
        let there = there as Place;
        let is_group = matches!(to, Destination::Group(_));
        exits(network, there, to).filter(|exit| !is_group || *exit != input).all(|exit| {
            let next = there * PORTS + exit.index();
            !matches!(network.next(there, exit), Next::Switch(..)) || self.ranks[link] < self.ranks[next]
        })
    }
}

/// The links by which packets come to a switch from others.
fn links_into<'a>(network: &'a Network<'_>, here: Place) -> impl Iterator<Item = Link> + 'a {
    (1..=network.port_count(here)).map(port).filter_map(move |input| match network.next(here, input) {
        Next::Switch(there, exit) => Some(there as Place * PORTS + exit.index()),
        _ => None,
    })
}

/// Whether packets to a destination take a link.
fn takes(network: &Network<'_>, link: Link, to: Destination) -> bool {
    exits(network, link / PORTS, to).any(|exit| exit == port(link))
}

/// By which turns packets come from one link to another.
struct Joints {
    /// Links between switches.
    links: Vec<Link>,
    /// The links for which packets on a link wait.
    after: HashMap<Link, Vec<Link>>,
}

/// By switch, then input: where packets that came in there leave.
type Turns = Vec<Vec<Bits>>;

impl Joints {
    fn of(network: &Network<'_>) -> Self {
        let count = network.switches.len();
        let mut turns: Turns =
            (0..count).map(|place| vec![Bits::new(PORTS); network.port_count(place) + 1]).collect();
        for here in 0..count {
            Self::join_unicast(network, here, &mut turns);
            Self::join_groups(network, here, &mut turns);
        }
        let is_link = |place: Place, exit: usize| matches!(network.next(place, port(exit)), Next::Switch(..));
        let ports = |place: Place| (1..=network.port_count(place)).filter(move |exit| is_link(place, *exit));
        let links: Vec<Link> =
            (0..count).flat_map(|place| ports(place).map(move |exit| place * PORTS + exit)).collect();
        let after = |link: &Link| {
            let Next::Switch(there, input) = network.next(link / PORTS, port(*link)) else {
                return Vec::new();
            };
            let there = there as Place;
            let exits = turns[there][input.index()].iter().filter(|exit| is_link(there, *exit));
            exits.map(|exit| there * PORTS + exit).collect()
        };
        Self { after: links.iter().map(|link| (*link, after(link))).collect(), links }
    }

    /// Adds the turns at the neighbours of a switch, for packets that come from it.
    fn join_unicast(network: &Network<'_>, here: Place, turns: &mut Turns) {
        // LIDs by exit, so that two rows are read side by side.
        let mut by_exit: Vec<Vec<Lid>> = vec![Vec::new(); PORTS];
        for (lid, exit) in (0..=Lid::MAX).zip(network.switches[here].linear.to_exits()) {
            by_exit[usize::from(exit)].extend(Lid::from_wire(lid));
        }
        for (exit, lids) in by_exit.iter().enumerate().filter(|(_, lids)| !lids.is_empty()) {
            let Next::Switch(there, input) = network.next(here, port(exit)) else { continue };
            let at = &mut turns[there as Place][input.index()];
            for exit in lids.iter().filter_map(|lid| network.exit(there as Place, *lid)) {
                at.insert(exit.index());
            }
        }
    }

    /// The same for packets to groups, which do not go back by the port they came in by.
    fn join_groups(network: &Network<'_>, here: Place, turns: &mut Turns) {
        for (mlid, exits) in network.switches[here].multicast.exits() {
            for exit in exits.iter() {
                let Next::Switch(there, input) = network.next(here, exit) else { continue };
                let further = network.switches[there as Place].multicast.exit(mlid);
                let at = &mut turns[there as Place][input.index()];
                further.iter().filter(|exit| *exit != input).for_each(|exit| at.insert(exit.index()));
            }
        }
    }

    fn after(&self, link: &Link) -> Vec<Link> {
        self.after.get(link).cloned().unwrap_or_default()
    }
}

/// Where packets to a destination leave a switch.
fn exits(network: &Network<'_>, here: Place, to: Destination) -> impl Iterator<Item = PortNum> + use<> {
    let (one, group) = match to {
        Destination::Lid(lid) => (network.exit(here, lid), None),
        Destination::Group(mlid) => (None, Some(network.switches[here].multicast.exit(mlid))),
    };
    one.into_iter().chain(group.into_iter().flat_map(PortSet::iter))
}

/// Every destination that some table speaks of.
fn destinations(network: &Network<'_>) -> Vec<Destination> {
    let lids = (1..=network.top()).filter_map(Lid::from_wire);
    let groups: BTreeSet<MulticastLid> =
        network.switches.iter().flat_map(|switch| switch.multicast.exits().map(|(mlid, _)| mlid)).collect();
    lids.map(Destination::Lid).chain(groups.into_iter().map(Destination::Group)).collect()
}

/// The lanes of some links for which packets on others of them wait: every destination and level is followed from every
/// port that can send it.
fn lanes_joined(network: &Network<'_>, suspects: &BTreeSet<Link>) -> HashMap<Channel, BTreeSet<Channel>> {
    let mut after: HashMap<Channel, BTreeSet<Channel>> = HashMap::new();
    let levels: Vec<(ServiceLevel, Vec<(Place, PortNum)>)> =
        distinct_levels(network).map(|sl| (sl, senders(network, sl).collect())).collect();
    for to in destinations(network) {
        for (sl, senders) in &levels {
            let sl = *sl;
            let mut seen: BTreeSet<Channel> = BTreeSet::new();
            let mut open: Vec<Channel> = Vec::new();
            for (place, input) in senders {
                open.extend(onward(network, *place, *input, to, sl));
            }
            while let Some(channel) = open.pop() {
                if !seen.insert(channel) {
                    continue;
                }
                let Next::Switch(there, input) = network.next(channel.0 / PORTS, port(channel.0)) else {
                    continue;
                };
                for further in onward(network, there as Place, input, to, sl) {
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

/// Levels that some port tells apart, one for each set of levels that all ports treat alike.
fn distinct_levels(network: &Network<'_>) -> impl Iterator<Item = ServiceLevel> + use<> {
    let ports = network.switches.iter().flat_map(|switch| switch.ports.iter());
    let sharings = ports.filter_map(|port| port.sharing.as_deref());
    let sharings: Vec<&PortSharing> =
        sharings.chain((0..network.ends().len()).filter_map(|end| network.end_sharing(end))).collect();
    let lanes = |sl: ServiceLevel| -> Vec<VirtualLane> {
        let maps = sharings.iter().flat_map(|sharing| sharing.by_input.values().chain([&sharing.otherwise]));
        maps.map(|map| map.lane(sl)).collect()
    };
    let levels = (0..16).filter_map(ServiceLevel::from_wire);
    let distinct: BTreeMap<Vec<VirtualLane>, ServiceLevel> = levels.map(|sl| (lanes(sl), sl)).collect();
    distinct.into_values()
}

/// Where packets of a level enter switches: from adapters that have a lane for it, and from switches themselves.
fn senders<'a>(network: &'a Network<'_>, sl: ServiceLevel) -> impl Iterator<Item = (Place, PortNum)> + 'a {
    let can = move |sharing: Option<&PortSharing>| {
        sharing.is_none_or(|sharing| sharing.otherwise.lane(sl) != VirtualLane::MANAGEMENT)
    };
    let ends = network.ends().iter().enumerate();
    ends.filter(move |(index, _)| can(network.end_sharing(*index))).filter_map(|(_, end)| end.home)
}

/// The links between switches, with lanes, by which packets go on from a switch.
fn onward(
    network: &Network<'_>,
    here: Place,
    input: PortNum,
    to: Destination,
    sl: ServiceLevel,
) -> Vec<Channel> {
    let is_group = matches!(to, Destination::Group(_));
    let exits = exits(network, here, to).filter(|exit| !is_group || *exit != input);
    let exits = exits.filter(|exit| matches!(network.next(here, *exit), Next::Switch(..)));
    let channel = |exit: PortNum| {
        let link = here * PORTS + exit.index();
        match network.sharing(here, exit) {
            None => Some((link, ANY_LANE)),
            Some(sharing) => sharing.lane(input, sl).map(|lane| (link, lane.to_wire())),
        }
    };
    exits.filter_map(channel).collect()
}

/// A ring with packets that make it.
fn told(network: &Network<'_>, ring: &[Channel]) -> Finding {
    let followers = ring.iter().cycle().skip(1);
    let waits = ring.iter().zip(followers).map(|((link, lane), (next, _))| Wait {
        link: network.hop(link / PORTS, port(*link)),
        lane: VirtualLane::from_wire(*lane),
        packets: between(network, *link, *next),
    });
    Finding::CreditLoop { ring: waits.collect() }
}

/// Some packets that take one link after the other.
fn between(network: &Network<'_>, link: Link, next: Link) -> Destination {
    let takes_both = |to: &Destination| takes(network, link, *to) && takes(network, next, *to);
    let found = destinations(network).into_iter().find(takes_both);
    found.expect("links are joined by packets that take both")
}
