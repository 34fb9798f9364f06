//! The *down path* of each destination: the links over which packets come down to it.
//!
//! In a tree, a destination gets one link on every tier above it, the least used one of its switch. All sources climb
//! towards the same top, so packets to different destinations of one leaf share no link on their way down. On a full tree
//! this is d-mod-k routing (Zahavi). Unlike d-mod-k it is stored, as indices into each switch's list of up-links, so a tree
//! may grow or lose cables without moving other destinations. O(destinations · tiers · up-links).

use std::collections::BTreeMap;

use fabric_model::decisions::{Decisions, HeightScheme, RoutingDecision, SwitchDecision, Uplink};
use ib_wire::{Guid, Lid, PortNum};

use super::hash;
use super::order::Order;
use crate::fabric::{Cable, Fabric, SwitchIndex};

/// Up-links that are stored of one switch: one per port.
const UPLINKS_MAX: usize = 254;

/// The links from every switch to higher ones, present or remembered.
#[derive(Debug)]
pub(crate) struct Uplinks {
    /// By switch. The index of an entry never changes.
    lists: Vec<Vec<Entry>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    uplink: Uplink,
    /// The switch above, if present.
    peer: Option<SwitchIndex>,
    /// The index among the cables to that switch, failed ones included.
    cable_index: usize,
    /// `None` if it failed.
    cable: Option<Cable>,
}

/// The owner of a LID: an adapter port, or the switch itself.
#[derive(Debug)]
pub(crate) struct Destination {
    pub lid: Lid,
    /// The index in the rows of exit ports: the LID if rows have all destinations.
    pub column: usize,
    /// The exit port at its own switch.
    pub exit: PortNum,
    /// From its own switch upwards.
    pub down_path: Vec<DownStep>,
    /// The down path that the rows were computed for; empty if rows are new.
    pub previous_down_path: Vec<DownStep>,
}

/// One tier of a down path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DownStep {
    /// The switch above, which packets come down from.
    pub node: SwitchIndex,
    /// The index among parallel cables.
    pub cable_index: usize,
    /// The port of the switch above.
    pub down: PortNum,
}

impl Uplinks {
    /// The stored up-links, then new ones, ordered by the lowest top they lead to. So the switches of a tier list their
    /// up-links in the same order.
    pub fn of(fabric: &Fabric, order: &Order, previous: &RoutingDecision) -> Self {
        let planes = planes(fabric, order);
        let lists = (0..fabric.switches.len())
            .map(|index| match order.scheme {
                HeightScheme::Tiers => list(fabric, order, &planes, previous, index),
                HeightScheme::Root => Vec::new(),
            })
            .collect();
        Self { lists }
    }

    /// The decision of a switch.
    pub fn decision(&self, index: SwitchIndex, height: i32) -> SwitchDecision {
        SwitchDecision { height, uplinks: self.lists[index].iter().map(|entry| entry.uplink).collect() }
    }

    /// The switches that down paths may come from.
    pub fn tops(&self) -> Vec<SwitchIndex> {
        self.lists.iter().flatten().filter_map(|entry| entry.peer).collect()
    }

    /// The near ports of the parallel cables from a switch to a higher one; `None` where one failed.
    pub fn parallel_ports(&self, index: SwitchIndex, above: SwitchIndex) -> Vec<Option<PortNum>> {
        let entries = self.lists[index].iter().filter(|entry| entry.peer == Some(above));
        entries.map(|entry| entry.cable.map(|cable| cable.near)).collect()
    }
}

/// By switch: the lowest top that it reaches upwards. It is the same for the switches of one plane in every pod.
fn planes(fabric: &Fabric, order: &Order) -> Vec<SwitchIndex> {
    let mut planes: Vec<SwitchIndex> = (0..fabric.switches.len()).collect();
    for &index in &order.descending {
        let above = higher(fabric, order, index).map(|(_, above, _)| planes[above]).min();
        planes[index] = above.unwrap_or(index);
    }
    planes
}

/// The cables from a switch to higher ones: index of the neighbour, its switch, and the cable.
fn higher<'f>(
    fabric: &'f Fabric,
    order: &'f Order,
    index: SwitchIndex,
) -> impl Iterator<Item = (usize, SwitchIndex, Cable)> + 'f {
    order.up[index].iter().flat_map(move |slot| {
        let neighbour = &fabric.switches[index].neighbours[*slot];
        let is_higher = order.heights[neighbour.switch] > order.heights[index];
        let cables = if is_higher { neighbour.cables.as_slice() } else { &[] };
        cables.iter().map(move |cable| (*slot, neighbour.switch, *cable))
    })
}

fn list(
    fabric: &Fabric,
    order: &Order,
    planes: &[SwitchIndex],
    previous: &RoutingDecision,
    index: SwitchIndex,
) -> Vec<Entry> {
    let mut cables: Vec<(SwitchIndex, Cable)> =
        higher(fabric, order, index).map(|(_, above, cable)| (above, cable)).collect();
    cables.sort_by_key(|(above, cable)| (planes[*above], *above, cable.near));
    let by_port: BTreeMap<PortNum, (SwitchIndex, Cable)> =
        cables.iter().map(|(above, cable)| (cable.near, (*above, *cable))).collect();

    let mut uplinks: Vec<Uplink> = Vec::new();
    let mut listed = [false; 256];
    let remembered = previous.switches.get(&fabric.switches[index].guid);
    let remembered = remembered.into_iter().flat_map(|decision| decision.uplinks.iter().copied());
    // A port that now leads to another switch keeps its index.
    let moved = remembered.map(|uplink| match by_port.get(&uplink.port) {
        Some((above, _)) => Uplink { peer: fabric.switches[*above].guid, ..uplink },
        None => uplink,
    });
    let new =
        cables.iter().map(|(above, cable)| Uplink { port: cable.near, peer: fabric.switches[*above].guid });
    for uplink in moved.chain(new) {
        if uplinks.len() < UPLINKS_MAX && !std::mem::replace(&mut listed[uplink.port.index()], true) {
            uplinks.push(uplink);
        }
    }
    let mut parallel_ports: BTreeMap<Guid, usize> = BTreeMap::new();
    (uplinks.into_iter())
        .map(|uplink| {
            let cable_index = parallel_ports.entry(uplink.peer).or_insert(0);
            let cable = by_port.get(&uplink.port).map(|(_, cable)| *cable);
            let is_above = |peer: &SwitchIndex| order.heights[*peer] > order.heights[index];
            let peer = fabric.switch_index(uplink.peer).filter(is_above);
            let entry = Entry { uplink, peer, cable_index: *cable_index, cable };
            *cable_index += 1;
            entry
        })
        .collect()
}

/// Assigns a down path to every end port; stored ones are kept. Returns the destinations of each switch by LID, and the
/// down paths to store, by port GUID.
pub(crate) fn assign_down_paths(
    fabric: &Fabric,
    uplinks: &Uplinks,
    lids: &BTreeMap<Guid, Lid>,
    previous: &Decisions,
) -> (Vec<Vec<Destination>>, BTreeMap<Guid, Vec<u8>>) {
    let mut end_port_paths = end_port_paths(fabric, lids);
    end_port_paths.sort_by_key(|end_port| (end_port.kind, end_port.lid));
    let mut used = UplinkLoad::of(uplinks);
    for end_port in &mut end_port_paths {
        let before = previous.end_ports.get(&end_port.guid).map_or(&[][..], |decision| &decision.uplink_path);
        end_port.up = valid_start(uplinks, end_port.switch, before);
        used.count(uplinks, end_port);
    }
    let mut destinations: Vec<Vec<Destination>> = fabric.switches.iter().map(|_| Vec::new()).collect();
    let mut ups = BTreeMap::new();
    for mut end_port in end_port_paths {
        used.climb(uplinks, &mut end_port);
        let column = end_port.lid.to_wire().into();
        destinations[end_port.switch].push(destination(fabric, uplinks, &end_port, column));
        ups.insert(end_port.guid, end_port.up);
    }
    for list in &mut destinations {
        list.sort_by_key(|destination| destination.lid);
    }
    (destinations, ups)
}

/// The destinations, by switch, of adapter ports whose down path in `decisions` is new; `ports` has the previous one. Their
/// columns are the indices in `ports`. `None` if a new down path does not exist in full.
pub(crate) fn reassign_down_paths(
    fabric: &Fabric,
    uplinks: &Uplinks,
    decisions: &Decisions,
    ports: &[(Guid, Vec<u8>)],
) -> Option<Vec<Vec<Destination>>> {
    let mut destinations: Vec<Vec<Destination>> = fabric.switches.iter().map(|_| Vec::new()).collect();
    for (column, (guid, before)) in ports.iter().enumerate() {
        let (switch, exit) = fabric.adapter_port(*guid)?.attached?;
        let decision = decisions.end_ports.get(guid)?;
        let end_port = |up: &[u8]| {
            let up = valid_start(uplinks, switch, up);
            EndPortPath { kind: Kind::Adapter, guid: *guid, lid: decision.lid, switch, exit, up }
        };
        let previous_down_path = down_path(fabric, uplinks, &end_port(before));
        let destination = destination(fabric, uplinks, &end_port(&decision.uplink_path), column);
        let destination = Destination { previous_down_path, ..destination };
        if destination.down_path.len() != decision.uplink_path.len() {
            return None;
        }
        destinations[switch].push(destination);
    }
    Some(destinations)
}

fn destination(fabric: &Fabric, uplinks: &Uplinks, end_port: &EndPortPath, column: usize) -> Destination {
    let down_path = down_path(fabric, uplinks, end_port);
    Destination { lid: end_port.lid, column, exit: end_port.exit, down_path, previous_down_path: Vec::new() }
}

/// Adapters are balanced before switches and separately, because they carry the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Adapter,
    Switch,
}

/// An end port whose down path is being assigned.
#[derive(Debug)]
struct EndPortPath {
    kind: Kind,
    guid: Guid,
    lid: Lid,
    switch: SwitchIndex,
    exit: PortNum,
    up: Vec<u8>,
}

fn end_port_paths(fabric: &Fabric, lids: &BTreeMap<Guid, Lid>) -> Vec<EndPortPath> {
    let adapters = fabric.adapter_ports.iter().filter_map(|port| {
        let (switch, exit) = port.attached?;
        Some((Kind::Adapter, port.guid, switch, exit))
    });
    let switches = (fabric.switches.iter().enumerate())
        .map(|(index, switch)| (Kind::Switch, switch.port_guid, index, PortNum::MANAGEMENT));
    (adapters.chain(switches))
        .filter_map(|(kind, guid, switch, exit)| {
            let lid = *lids.get(&guid)?;
            Some(EndPortPath { kind, guid, lid, switch, exit, up: Vec::new() })
        })
        .collect()
}

/// The valid beginning of a stored down path. Indices above an absent switch are kept, in case it returns.
fn valid_start(uplinks: &Uplinks, switch: SwitchIndex, before: &[u8]) -> Vec<u8> {
    let mut next = Some(switch);
    let mut valid = Vec::new();
    for &index in before {
        match next {
            Some(here) => match uplinks.lists[here].get(usize::from(index)) {
                Some(entry) => next = entry.peer,
                None => break,
            },
            // Above an absent switch, bounded by the number of tiers there can be.
            None if valid.len() < UPLINKS_MAX => {}
            None => break,
        }
        valid.push(index);
    }
    valid
}

/// The down path over present cables. A missing cable is replaced by another one, the same for all sources, so that sources
/// that the replacement does not concern keep their routes.
fn down_path(fabric: &Fabric, uplinks: &Uplinks, end_port: &EndPortPath) -> Vec<DownStep> {
    let mut here = end_port.switch;
    let mut steps = Vec::with_capacity(end_port.up.len());
    for &index in &end_port.up {
        let list = &uplinks.lists[here];
        let nominal = list.get(usize::from(index)).copied();
        let present = nominal.filter(|entry| entry.cable.is_some());
        let seed = hash::seed(fabric.switches[here].guid);
        let Some(entry) = present.or_else(|| substitute(list, nominal, seed, end_port.lid)) else { break };
        let (Some(node), Some(cable)) = (entry.peer, entry.cable) else { break };
        // Other switches may have the parallel cable that is missing here.
        let same = nominal.filter(|nominal| nominal.peer == entry.peer);
        steps.push(DownStep { node, cable_index: same.unwrap_or(entry).cable_index, down: cable.far });
        here = node;
    }
    steps
}

/// A replacement for a missing up-link: a cable to the same switch if there is one, else any.
fn substitute(list: &[Entry], missing: Option<Entry>, seed: u64, lid: Lid) -> Option<Entry> {
    let present = || list.iter().filter(|entry| entry.cable.is_some());
    let port = |entry: &Entry| entry.uplink.port;
    let same =
        present().filter(|entry| missing.is_some_and(|missing| missing.uplink.peer == entry.uplink.peer));
    let mut ports: Vec<PortNum> = same.map(port).collect();
    if ports.is_empty() {
        ports.extend(present().map(port));
    }
    let chosen = hash::choose(seed, &ports, lid)?;
    present().find(|entry| entry.uplink.port == chosen).copied()
}

/// The number of destinations on each up-link, by switch and up-link.
#[derive(Debug)]
struct UplinkLoad {
    adapters: Vec<Vec<u32>>,
    switches: Vec<Vec<u32>>,
}

impl UplinkLoad {
    fn of(uplinks: &Uplinks) -> Self {
        let zero: Vec<Vec<u32>> = uplinks.lists.iter().map(|list| vec![0; list.len()]).collect();
        Self { adapters: zero.clone(), switches: zero }
    }

    fn counters(&mut self, kind: Kind, index: SwitchIndex) -> &mut Vec<u32> {
        match kind {
            Kind::Adapter => &mut self.adapters[index],
            Kind::Switch => &mut self.switches[index],
        }
    }

    /// Counts a stored down path.
    fn count(&mut self, uplinks: &Uplinks, end_port: &EndPortPath) {
        let mut here = end_port.switch;
        for &index in &end_port.up {
            let Some(entry) = uplinks.lists[here].get(usize::from(index)) else { break };
            self.counters(end_port.kind, here)[usize::from(index)] += 1;
            let Some(peer) = entry.peer else { break };
            here = peer;
        }
    }

    /// Completes a down path to a top, by the least used link of each switch.
    fn climb(&mut self, uplinks: &Uplinks, end_port: &mut EndPortPath) {
        let mut here = end_port.switch;
        for &index in &end_port.up {
            match uplinks.lists[here].get(usize::from(index)).and_then(|entry| entry.peer) {
                Some(peer) => here = peer,
                None => return,
            }
        }
        loop {
            let list = &uplinks.lists[here];
            let counters = self.counters(end_port.kind, here);
            let present = (0..list.len()).filter(|index| list[*index].cable.is_some());
            let Some(index) = present.min_by_key(|index| (counters[*index], *index)) else { return };
            counters[index] += 1;
            end_port.up.push(u8::try_from(index).expect("UPLINKS_MAX fits a byte"));
            match list[index].peer {
                Some(peer) => here = peer,
                None => return,
            }
        }
    }
}
