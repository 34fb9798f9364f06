//! Reads the tables of a view as a wish, and tells whether it can be.
//!
//! What was judged is what is handed on: every entry by which a switch of the view forwards to a virtual machine counts,
//! whoever could send by it.

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::FabricPlan;
use fabric_model::intent::{PortName, Role};
use fabric_model::tenancy::Bandwidth;
use fabric_sim::{DeviceId, Fabric, PortId};
use ib_wire::{Guid, Lid, Membership, PartitionNumber, Pkey, PortNum, PortState};

use crate::classes;
use crate::projection::{ADAPTER_PORT, Projection, Stands};
use crate::slice::{Shares, Slice};
use crate::verdict::{Adaptation, Exit, Refusal, Unshared};
use crate::wish::{PhysicalWish, Wish, WishedClass};

/// Sub-partitions that a cluster may have. Each takes a key of the subnet's and an entry in the tables of its ports.
pub(crate) const PARTITIONS_MAX: usize = 64;

/// A view whose tables are read.
#[derive(Clone, Copy)]
pub(crate) struct Tables<'a> {
    pub fabric: &'a Fabric,
    pub projection: &'a Projection,
    pub slice: &'a Slice,
    /// What the view holds by default.
    pub plan: &'a FabricPlan,
    /// Whether tables of lanes or weights were written.
    pub has_classes: bool,
    /// What becomes of routes over links without a share.
    pub unshared: Unshared,
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Judgement {
    pub wish: Wish,
    /// What is to be done, unless it cannot be.
    pub outcome: Result<Granted, Refusal>,
}

#[derive(Debug)]
pub(crate) struct Granted {
    pub physical: PhysicalWish,
    pub adaptations: Vec<Adaptation>,
    pub all_to_all: Option<Bandwidth>,
}

/// A switch by its place among the switches of the view.
type Place = usize;
/// A link between switches: the place of the sending one and its port.
type Link = (Place, PortNum);

/// Where a port of a switch leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Nowhere,
    Node(usize),
    Switch(Place),
}

/// What a view holds, indexed.
struct Reading<'a> {
    tables: Tables<'a>,
    switches: Vec<Switch>,
    nodes: Vec<Node>,
}

struct Switch {
    /// Under its alias.
    guid: Guid,
    physical: Guid,
    name: String,
    device: DeviceId,
    next: BTreeMap<PortNum, Next>,
    stands: BTreeMap<PortNum, PortNum>,
}

struct Node {
    name: String,
    port: PortId,
    home: Place,
    lid: Option<Lid>,
    has_several: bool,
    keys: Vec<Pkey>,
    /// Where packets to it leave the switches.
    column: Vec<Option<PortNum>>,
    /// The column is the default one instead of what was written.
    is_kept: bool,
}

pub(crate) fn judge(tables: Tables<'_>) -> Judgement {
    let mut reading = Reading::of(tables);
    let wish = reading.wish();
    let kept = match tables.unshared {
        Unshared::Refuse => Vec::new(),
        Unshared::KeepDefault => reading.keep_default(),
    };
    let outcome = reading.check(&wish, kept);
    Judgement { wish, outcome }
}

impl<'a> Reading<'a> {
    fn of(tables: Tables<'a>) -> Self {
        let Tables { fabric, projection, .. } = tables;
        let places: BTreeMap<Guid, Place> = projection.switches.keys().copied().zip(0..).collect();
        let switches = projection.switches.iter().filter_map(|(guid, switch)| {
            let device = fabric.device_by_guid(*guid)?;
            let next = switch.ports.iter().map(|(number, stands)| {
                let next = match stands {
                    _ if !carries(fabric, device, *number) => Next::Nowhere,
                    Stands::Access(seat, _) => Next::Node(*seat),
                    Stands::Link { peer, .. } => {
                        places.get(&peer.node).map_or(Next::Nowhere, |to| Next::Switch(*to))
                    }
                };
                (*number, next)
            });
            let stands = switch.ports.iter().map(|(number, stands)| match stands {
                Stands::Access(_, physical) | Stands::Link { physical, .. } => (*number, *physical),
            });
            Some(Switch {
                guid: *guid,
                physical: switch.physical,
                name: format!("switch-{}", switch.number),
                device,
                next: next.collect(),
                stands: stands.collect(),
            })
        });
        let switches: Vec<Switch> = switches.collect();
        let node = |node: &crate::projection::ProjectedNode| {
            let port = fabric.port_of(fabric.device_by_guid(node.guid)?, ADAPTER_PORT)?;
            let lid = fabric.lid(port);
            let column = switches.iter().map(|switch| exit(fabric, switch.device, lid?)).collect();
            Some(Node {
                name: node.name.clone(),
                port,
                home: *places.get(&node.access.node)?,
                lid,
                has_several: fabric.port_view(port).lmc.lid_count() > 1,
                keys: fabric.keys_of(port),
                column,
                is_kept: false,
            })
        };
        let nodes = projection.nodes.iter().filter_map(node).collect();
        Self { tables, switches, nodes }
    }

    fn wish(&self) -> Wish {
        let route = |node: &Node| {
            let exits = self.switches.iter().zip(&node.column);
            let exits = exits.filter_map(|(switch, exit)| Some((switch.name.clone(), (*exit)?)));
            (node.name.clone(), exits.collect())
        };
        let Tables { fabric, has_classes, .. } = self.tables;
        let classes = self.nodes.first().filter(|_| has_classes);
        Wish {
            routes: self.nodes.iter().map(route).collect(),
            partitions: self.partitions(),
            classes: classes.map(|node| classes::of(fabric, PortNum::MANAGEMENT, node.port)),
        }
    }

    fn partitions(&self) -> BTreeMap<PartitionNumber, BTreeMap<String, Role>> {
        let mut partitions: BTreeMap<PartitionNumber, BTreeMap<String, Role>> = BTreeMap::new();
        for node in &self.nodes {
            for key in &node.keys {
                let role = match key.membership() {
                    Membership::Full => Role::Full,
                    Membership::Limited => Role::Limited,
                };
                let members = partitions.entry(key.partition()).or_default();
                members
                    .entry(node.name.clone())
                    .and_modify(|held| {
                        if *held != role {
                            *held = Role::Both;
                        }
                    })
                    .or_insert(role);
            }
        }
        partitions
    }

    /// Where a column takes a link without a share, the default one stays in its place.
    fn keep_default(&mut self) -> Vec<Adaptation> {
        let mut kept = Vec::new();
        for to in 0..self.nodes.len() {
            // Also those who may not talk: the links of a cluster are its own for every two of its ports.
            let others = (0..self.nodes.len()).filter(|from| *from != to);
            let Some(link) = others.filter_map(|from| self.unshared_link(from, to)).next() else {
                continue;
            };
            kept.push(Adaptation::RouteKept { node: self.nodes[to].name.clone(), link: self.exit(link) });
            let column = self.switches.iter().map(|switch| self.usual_exit(switch, to)).collect();
            (self.nodes[to].column, self.nodes[to].is_kept) = (column, true);
        }
        kept
    }

    /// The first link without a share on the way from one node to another.
    fn unshared_link(&self, from: usize, to: usize) -> Option<Link> {
        let mut at = self.nodes[from].home;
        for _ in 0..self.switches.len() {
            let link = (at, self.nodes[to].column[at]?);
            if !self.has_share(link) {
                return Some(link);
            }
            let Next::Switch(further) = self.next(at, to) else { return None };
            at = further;
        }
        None
    }

    /// Where packets to a node leave a switch by default.
    fn usual_exit(&self, switch: &Switch, to: usize) -> Option<PortNum> {
        let lid = self.tables.projection.nodes[to].lid;
        self.tables.plan.switch(switch.guid).and_then(|plan| plan.linear.exit(lid))
    }

    fn check(&self, wish: &Wish, kept: Vec<Adaptation>) -> Result<Granted, Refusal> {
        self.check_addresses()?;
        if wish.partitions.len() > PARTITIONS_MAX {
            let wanted = wish.partitions.len();
            return Err(Refusal::TooManyPartitions { wanted, allowed: PARTITIONS_MAX });
        }
        let arrives: Vec<Vec<bool>> =
            (0..self.nodes.len()).map(|to| self.check_loops(to)).collect::<Result<_, _>>()?;
        let loads = self.check_reach()?;
        self.check_credits(&arrives)?;
        let mut adaptations = kept;
        if let Some(node) = self.nodes.iter().find(|node| node.has_several) {
            adaptations.push(Adaptation::LmcFolded { node: node.name.clone() });
        }
        let routes = self.physical_routes(&arrives, &mut adaptations);
        let classes = self.classes(wish, &loads, &mut adaptations);
        let partitions = self.physical_partitions(wish, &mut adaptations);
        let physical = PhysicalWish { routes, partitions, classes };
        Ok(Granted { physical, adaptations, all_to_all: self.all_to_all(&loads) })
    }

    fn check_addresses(&self) -> Result<(), Refusal> {
        let mut holders: BTreeMap<Lid, &Node> = BTreeMap::new();
        for node in &self.nodes {
            let lid = node.lid.ok_or_else(|| Refusal::NoAddress { node: node.name.clone() })?;
            if let Some(other) = holders.insert(lid, node) {
                let (node, other) = (node.name.clone(), other.name.clone());
                return Err(Refusal::SameAddress { node: other, other: node });
            }
        }
        Ok(())
    }

    /// Where packets to a node go next from a switch.
    fn next(&self, place: Place, to: usize) -> Next {
        let exit = self.nodes[to].column[place];
        exit.and_then(|exit| self.switches[place].next.get(&exit)).copied().unwrap_or(Next::Nowhere)
    }

    /// From which switches packets to a node arrive, unless they circle.
    fn check_loops(&self, to: usize) -> Result<Vec<bool>, Refusal> {
        let mut arrives: Vec<Option<bool>> = vec![None; self.switches.len()];
        for start in 0..self.switches.len() {
            let mut way: Vec<Place> = Vec::new();
            let mut at = start;
            let reached = loop {
                if let Some(known) = arrives[at] {
                    break known;
                }
                if let Some(first) = way.iter().position(|passed| *passed == at) {
                    let switches = way[first..].iter().map(|place| self.switches[*place].name.clone());
                    return Err(Refusal::Loop {
                        to: self.nodes[to].name.clone(),
                        switches: switches.collect(),
                    });
                }
                way.push(at);
                match self.next(at, to) {
                    Next::Switch(next) => at = next,
                    Next::Node(node) => break node == to,
                    Next::Nowhere => break false,
                }
            };
            way.into_iter().for_each(|place| arrives[place] = Some(reached));
        }
        Ok(arrives.into_iter().map(|known| known.unwrap_or(false)).collect())
    }

    fn may_talk(&self, from: usize, to: usize) -> bool {
        let (sent, held) = (&self.nodes[from].keys, &self.nodes[to].keys);
        sent.iter().any(|key| held.iter().any(|held| key.is_accepted_by(*held)))
    }

    /// How many pairs of nodes use each port of the switches, the way from switches to adapters included.
    fn check_reach(&self) -> Result<BTreeMap<Link, usize>, Refusal> {
        let mut loads: BTreeMap<Link, usize> = BTreeMap::new();
        let mut granted: BTreeSet<Link> = BTreeSet::new();
        for from in 0..self.nodes.len() {
            for to in (0..self.nodes.len()).filter(|to| *to != from && self.may_talk(from, *to)) {
                let mut at = self.nodes[from].home;
                loop {
                    let next = self.next(at, to);
                    let leads_on = matches!(next, Next::Switch(_)) || next == Next::Node(to);
                    let Some(exit) = self.nodes[to].column[at].filter(|_| leads_on) else {
                        return Err(self.cut_off(from, to, at));
                    };
                    let link = (at, exit);
                    if granted.insert(link) && !self.has_share(link) {
                        let (from, to) = (self.nodes[from].name.clone(), self.nodes[to].name.clone());
                        return Err(Refusal::NoShare { link: self.exit(link), from, to });
                    }
                    *loads.entry(link).or_default() += 1;
                    let Next::Switch(further) = next else { break };
                    at = further;
                }
            }
        }
        Ok(loads)
    }

    fn cut_off(&self, from: usize, to: usize, at: Place) -> Refusal {
        Refusal::CutOff {
            from: self.nodes[from].name.clone(),
            to: self.nodes[to].name.clone(),
            at: self.switches[at].name.clone(),
        }
    }

    fn exit(&self, (place, port): Link) -> Exit {
        Exit { switch: self.switches[place].name.clone(), port }
    }

    /// The physical port that a port of the view stands for.
    fn physical(&self, (place, port): Link) -> Option<PortName> {
        let switch = &self.switches[place];
        Some(PortName { node: switch.physical, port: *switch.stands.get(&port)? })
    }

    fn has_share(&self, link: Link) -> bool {
        match &self.tables.slice.shares {
            Shares::BestEffort => true,
            Shares::Granted(_) if self.tables.slice.cables.is_empty() => true,
            Shares::Granted(shares) => self.physical(link).is_some_and(|port| shares.contains_key(&port)),
        }
    }

    /// Links wait for each other as packets to any node, from anywhere, take one after the other.
    fn check_credits(&self, arrives: &[Vec<bool>]) -> Result<(), Refusal> {
        let mut after: BTreeMap<Link, BTreeSet<Link>> = BTreeMap::new();
        for (to, node) in self.nodes.iter().enumerate() {
            for here in (0..self.switches.len()).filter(|here| arrives[to][*here]) {
                let (Next::Switch(there), Some(exit)) = (self.next(here, to), node.column[here]) else {
                    continue;
                };
                let (Next::Switch(_), Some(further)) = (self.next(there, to), node.column[there]) else {
                    continue;
                };
                after.entry((here, exit)).or_default().insert((there, further));
            }
        }
        match ring(&after) {
            Some(ring) => {
                Err(Refusal::CreditCycle { links: ring.into_iter().map(|link| self.exit(link)).collect() })
            }
            None => Ok(()),
        }
    }

    fn physical_routes(
        &self,
        arrives: &[Vec<bool>],
        adaptations: &mut Vec<Adaptation>,
    ) -> BTreeMap<Guid, BTreeMap<Guid, PortNum>> {
        let mut routes = BTreeMap::new();
        for (to, (node, seat)) in self.nodes.iter().zip(&self.tables.slice.seats).enumerate() {
            if node.is_kept || self.is_default(to) {
                continue;
            }
            if !seat.is_alone {
                adaptations.push(Adaptation::NotRouted { node: node.name.clone() });
                continue;
            }
            let exits = (0..self.switches.len()).filter(|place| arrives[to][*place]).filter_map(|place| {
                let physical = self.physical((place, node.column[place]?))?;
                Some((physical.node, physical.port))
            });
            routes.insert(seat.port, exits.collect());
        }
        routes
    }

    /// What is wished, with everybody in the partition of the cluster.
    fn physical_partitions(
        &self,
        wish: &Wish,
        adaptations: &mut Vec<Adaptation>,
    ) -> BTreeMap<PartitionNumber, BTreeMap<String, Role>> {
        let mut partitions = wish.partitions.clone();
        let own = partitions.entry(PartitionNumber::DEFAULT).or_default();
        for node in &self.nodes {
            if !own.contains_key(&node.name) {
                own.insert(node.name.clone(), Role::Limited);
                adaptations.push(Adaptation::MembershipKept { node: node.name.clone() });
            }
        }
        partitions
    }

    /// Whether packets to a node go as they go by default.
    fn is_default(&self, to: usize) -> bool {
        let mut entries = self.switches.iter().zip(&self.nodes[to].column);
        entries.all(|(switch, exit)| *exit == self.usual_exit(switch, to))
    }

    fn classes(
        &self,
        wish: &Wish,
        loads: &BTreeMap<Link, usize>,
        adaptations: &mut Vec<Adaptation>,
    ) -> Vec<WishedClass> {
        let Some(wished) = &wish.classes else { return Vec::new() };
        if let Some(port) = self.differing(wished) {
            adaptations.push(Adaptation::ClassesDiffer { port });
        }
        let (room, link) = self.lanes_left(loads);
        let (given, mut changed) = classes::fit(wished, room, link);
        adaptations.append(&mut changed);
        given
    }

    /// A port that treats service levels otherwise than wished.
    fn differing(&self, wished: &[WishedClass]) -> Option<String> {
        let fabric = self.tables.fabric;
        let own =
            |node: &&Node| !classes::are_alike(&classes::of(fabric, PortNum::MANAGEMENT, node.port), wished);
        if let Some(node) = self.nodes.iter().find(own) {
            return Some(node.name.clone());
        }
        self.switches.iter().find_map(|switch| {
            let carrying =
                || switch.next.iter().filter(|(_, next)| **next != Next::Nowhere).map(|(port, _)| *port);
            let differs = |output: &PortNum| {
                let input = carrying().find(|input| input != output);
                let port = fabric.port_of(switch.device, *output);
                input.zip(port).is_some_and(|(input, port)| {
                    !classes::are_alike(&classes::of(fabric, input, port), wished)
                })
            };
            carrying().find(differs).map(|port| format!("{}[{port}]", switch.name))
        })
    }

    /// The fewest lanes that are left to the cluster on a link that it uses, and that link.
    fn lanes_left(&self, loads: &BTreeMap<Link, usize>) -> (usize, Option<Exit>) {
        let Shares::Granted(shares) = &self.tables.slice.shares else { return (1, None) };
        let rooms = loads.keys().filter_map(|link| {
            let share = shares.get(&self.physical(*link)?)?;
            Some((usize::from(share.lanes), *link))
        });
        rooms.min().map_or((1, None), |(room, link)| (room, Some(self.exit(link))))
    }

    /// What every node can send to all others evenly: a link that many pairs use leaves each a part of its share.
    fn all_to_all(&self, loads: &BTreeMap<Link, usize>) -> Option<Bandwidth> {
        let Shares::Granted(shares) = &self.tables.slice.shares else { return None };
        let others = self.nodes.len().saturating_sub(1) as u128;
        let rates = loads.iter().filter_map(|(link, pairs)| {
            let share = shares.get(&self.physical(*link)?)?;
            let rate = u128::from(share.rate.bits_per_s()) * others / *pairs as u128;
            u64::try_from(rate).ok()
        });
        let injected = self.tables.slice.seats.iter().filter_map(|seat| shares.get(&seat.name));
        let injected = injected.map(|share| share.rate.bits_per_s());
        rates.chain(injected).min().map(Bandwidth::from_bits_per_s)
    }
}

/// The exit port of a switch for a LID.
fn exit(fabric: &Fabric, device: DeviceId, lid: Lid) -> Option<PortNum> {
    let (exits, top) = fabric.linear_of(device)?;
    let exit = exits.get(usize::from(lid.to_wire())).filter(|_| lid.to_wire() <= top)?;
    PortNum::new(*exit)
}

/// Whether data passes the link behind a port.
fn carries(fabric: &Fabric, device: DeviceId, number: PortNum) -> bool {
    let Some(port) = fabric.port_of(device, number) else { return false };
    let gate = fabric.gate(port);
    let peer = gate.peer.map(|peer| fabric.gate(peer).state);
    gate.state == PortState::Active && peer == Some(PortState::Active)
}

/// A ring of links, if there is one: depth first, without recursion.
fn ring(after: &BTreeMap<Link, BTreeSet<Link>>) -> Option<Vec<Link>> {
    let mut done: BTreeSet<Link> = BTreeSet::new();
    for start in after.keys() {
        let mut way: Vec<(Link, Vec<Link>)> = vec![(*start, followers(after, start))];
        let mut on_way: BTreeSet<Link> = BTreeSet::from([*start]);
        if done.contains(start) {
            continue;
        }
        while let Some((link, rest)) = way.last_mut() {
            let Some(next) = rest.pop() else {
                done.insert(*link);
                on_way.remove(link);
                way.pop();
                continue;
            };
            if on_way.contains(&next) {
                let first = way.iter().position(|(link, _)| *link == next)?;
                return Some(way[first..].iter().map(|(link, _)| *link).collect());
            }
            if !done.contains(&next) {
                on_way.insert(next);
                let further = followers(after, &next);
                way.push((next, further));
            }
        }
    }
    None
}

fn followers(after: &BTreeMap<Link, BTreeSet<Link>>, link: &Link) -> Vec<Link> {
    after.get(link).into_iter().flatten().copied().collect()
}
