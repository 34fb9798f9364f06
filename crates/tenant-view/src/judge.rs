//! Reads the tables of a view as an overlay and judges whether it can be applied.
//!
//! All entries of the view's switches for virtual machines count, including those that no packet of the cluster would
//! use: the overlay that is handed out is exactly the one that was judged. Checks, in this order: unique LIDs, number of
//! partitions, forwarding loops, reachability and grants, credit loops. The first violation is the refusal. With n
//! virtual machines, s switches and paths of length p the cost is O(n·s + n²·p).

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::FabricPlan;
use fabric_model::intent::{PortName, Role};
use fabric_model::tenancy::Bandwidth;
use fabric_sim::{DeviceId, Fabric, PortId};
use fabric_verifier::graph::{Walk, WalkStep, cycles};
use ib_wire::{Guid, Lid, Membership, PartitionNumber, Pkey, PortNum, PortState};

use crate::classes;
use crate::overlay::{OverlayClass, PhysicalOverlay, ViewOverlay};
use crate::projection::{ADAPTER_PORT, PortMapping, Projection};
use crate::slice::{Shares, Slice};
use crate::verdict::{Adaptation, EgressPort, OverlayRefusal, UngrantedRoutes};

/// Sub-partitions that a cluster may have. Each takes a partition number of the subnet and an entry in P_Key tables
/// of its ports.
pub(crate) const PARTITIONS_MAX: usize = 64;

/// A view whose tables are judged.
#[derive(Clone, Copy)]
pub(crate) struct JudgeInput<'a> {
    pub fabric: &'a Fabric,
    pub projection: &'a Projection,
    pub slice: &'a Slice,
    /// The default plan of the view.
    pub plan: &'a FabricPlan,
    /// Whether SL-to-VL or arbitration tables were written.
    pub has_classes: bool,
    pub ungranted_routes: UngrantedRoutes,
}

/// An overlay with the result of the checks.
#[derive(Debug)]
pub(crate) struct Judgement {
    pub overlay: ViewOverlay,
    /// What to apply, or why it cannot be applied.
    pub outcome: Result<Granted, OverlayRefusal>,
}

#[derive(Debug)]
pub(crate) struct Granted {
    pub physical: PhysicalOverlay,
    pub adaptations: Vec<Adaptation>,
    pub all_to_all: Option<Bandwidth>,
}

/// Index of a switch among the switches of the view, which are ordered by GUID.
type SwitchIndex = usize;
/// A directed link, by the sending switch and its output port.
type Link = (SwitchIndex, PortNum);

/// Where an output port of a switch leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextHop {
    Nowhere,
    Node(usize),
    Switch(SwitchIndex),
}

/// The tables of a view, indexed.
struct IndexedTables<'a> {
    input: JudgeInput<'a>,
    switches: Vec<Switch>,
    nodes: Vec<Node>,
}

struct Switch {
    /// Node GUID in the view.
    guid: Guid,
    physical: Guid,
    name: String,
    device: DeviceId,
    next: BTreeMap<PortNum, NextHop>,
    physical_ports: BTreeMap<PortNum, PortNum>,
}

struct Node {
    name: String,
    port: PortId,
    home: SwitchIndex,
    lid: Option<Lid>,
    has_several_lids: bool,
    keys: Vec<Pkey>,
    /// Output port of each switch for the node's first LID.
    column: Vec<Option<PortNum>>,
    /// The default column is kept instead of the one that was written.
    is_kept: bool,
}

pub(crate) fn judge(input: JudgeInput<'_>) -> Judgement {
    let mut indexed = IndexedTables::of(input);
    let overlay = indexed.overlay();
    let kept = match input.ungranted_routes {
        UngrantedRoutes::Refuse => Vec::new(),
        UngrantedRoutes::KeepDefault => indexed.keep_default(),
    };
    let outcome = indexed.check(&overlay, kept);
    Judgement { overlay, outcome }
}

impl<'a> IndexedTables<'a> {
    fn of(input: JudgeInput<'a>) -> Self {
        let JudgeInput { fabric, projection, .. } = input;
        let switch_indices: BTreeMap<Guid, SwitchIndex> =
            projection.switches.keys().copied().zip(0..).collect();
        let switches = projection.switches.iter().filter_map(|(guid, switch)| {
            let device = fabric.device_by_guid(*guid)?;
            let next = switch.ports.iter().map(|(number, mapping)| {
                let next = match mapping {
                    _ if !carries(fabric, device, *number) => NextHop::Nowhere,
                    PortMapping::Access(index, _) => NextHop::Node(*index),
                    PortMapping::Link { peer, .. } => {
                        switch_indices.get(&peer.node).map_or(NextHop::Nowhere, |to| NextHop::Switch(*to))
                    }
                };
                (*number, next)
            });
            let physical_ports = switch.ports.iter().map(|(number, mapping)| match mapping {
                PortMapping::Access(_, physical) | PortMapping::Link { physical, .. } => (*number, *physical),
            });
            Some(Switch {
                guid: *guid,
                physical: switch.physical,
                name: format!("switch-{}", switch.number),
                device,
                next: next.collect(),
                physical_ports: physical_ports.collect(),
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
                home: *switch_indices.get(&node.access.node)?,
                lid,
                has_several_lids: fabric.port_view(port).lmc.lid_count() > 1,
                keys: fabric.keys_of(port),
                column,
                is_kept: false,
            })
        };
        let nodes = projection.nodes.iter().filter_map(node).collect();
        Self { input, switches, nodes }
    }

    fn overlay(&self) -> ViewOverlay {
        let route = |node: &Node| {
            let exits = self.switches.iter().zip(&node.column);
            let exits = exits.filter_map(|(switch, exit)| Some((switch.name.clone(), (*exit)?)));
            (node.name.clone(), exits.collect())
        };
        let JudgeInput { fabric, has_classes, .. } = self.input;
        let classes = self.nodes.first().filter(|_| has_classes);
        ViewOverlay {
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

    /// Keeps the default column of each node whose column uses a link without grant.
    fn keep_default(&mut self) -> Vec<Adaptation> {
        let mut kept = Vec::new();
        for to in 0..self.nodes.len() {
            // Also from nodes that may not talk to it: grants cover the paths between every two ports of a cluster.
            let others = (0..self.nodes.len()).filter(|from| *from != to);
            let Some(link) = others.filter_map(|from| self.ungranted_link(from, to)).next() else {
                continue;
            };
            kept.push(Adaptation::RouteKept { node: self.nodes[to].name.clone(), link: self.exit(link) });
            let column = self.switches.iter().map(|switch| self.default_exit(switch, to)).collect();
            (self.nodes[to].column, self.nodes[to].is_kept) = (column, true);
        }
        kept
    }

    /// The first link without grant on the path between two nodes.
    fn ungranted_link(&self, from: usize, to: usize) -> Option<Link> {
        let mut at = self.nodes[from].home;
        for _ in 0..self.switches.len() {
            let link = (at, self.nodes[to].column[at]?);
            if !self.is_granted(link) {
                return Some(link);
            }
            let NextHop::Switch(further) = self.next(at, to) else { return None };
            at = further;
        }
        None
    }

    /// Output port of a switch for a node by default.
    fn default_exit(&self, switch: &Switch, to: usize) -> Option<PortNum> {
        let lid = self.input.projection.nodes[to].lid;
        self.input.plan.switch(switch.guid).and_then(|plan| plan.linear.exit(lid))
    }

    fn check(&self, overlay: &ViewOverlay, kept: Vec<Adaptation>) -> Result<Granted, OverlayRefusal> {
        self.check_addresses()?;
        if overlay.partitions.len() > PARTITIONS_MAX {
            let wanted = overlay.partitions.len();
            return Err(OverlayRefusal::TooManyPartitions { wanted, allowed: PARTITIONS_MAX });
        }
        let arrives = self.check_loops()?;
        let loads = self.check_reach()?;
        self.check_credits(&arrives)?;
        let mut adaptations = kept;
        if let Some(node) = self.nodes.iter().find(|node| node.has_several_lids) {
            adaptations.push(Adaptation::LmcFolded { node: node.name.clone() });
        }
        let routes = self.physical_routes(&arrives, &mut adaptations);
        let classes = self.classes(overlay, &loads, &mut adaptations);
        let partitions = self.physical_partitions(overlay, &mut adaptations);
        let physical = PhysicalOverlay { routes, partitions, classes };
        Ok(Granted { physical, adaptations, all_to_all: self.all_to_all(&loads) })
    }

    fn check_addresses(&self) -> Result<(), OverlayRefusal> {
        let mut holders: BTreeMap<Lid, &Node> = BTreeMap::new();
        for node in &self.nodes {
            let lid = node.lid.ok_or_else(|| OverlayRefusal::NoLid { node: node.name.clone() })?;
            if let Some(other) = holders.insert(lid, node) {
                let (node, other) = (node.name.clone(), other.name.clone());
                return Err(OverlayRefusal::DuplicateLid { node: other, other: node });
            }
        }
        Ok(())
    }

    /// Where packets to a node go from a switch.
    fn next(&self, switch_index: SwitchIndex, to: usize) -> NextHop {
        let exit = self.nodes[to].column[switch_index];
        exit.and_then(|exit| self.switches[switch_index].next.get(&exit)).copied().unwrap_or(NextHop::Nowhere)
    }

    /// By node, then switch: whether packets to the node arrive from there; fails if they loop.
    fn check_loops(&self) -> Result<Vec<Vec<bool>>, OverlayRefusal> {
        let mut walk = Walk::new(self.switches.len());
        let arrivals = |(to, node): (usize, &Node)| {
            let loops = walk.follow(|at| match self.next(at, to) {
                NextHop::Switch(next) => WalkStep::Switch(next),
                NextHop::Node(node) if node == to => WalkStep::Arrived,
                NextHop::Node(_) | NextHop::Nowhere => WalkStep::Lost,
            });
            if let Some(first) = loops.first() {
                let switches = first.iter().map(|switch_index| self.switches[*switch_index].name.clone());
                let to = node.name.clone();
                return Err(OverlayRefusal::ForwardingLoop { to, switches: switches.collect() });
            }
            Ok(walk.arrivals().collect())
        };
        self.nodes.iter().enumerate().map(arrivals).collect()
    }

    fn may_talk(&self, from: usize, to: usize) -> bool {
        let (sent, held) = (&self.nodes[from].keys, &self.nodes[to].keys);
        sent.iter().any(|key| held.iter().any(|held| key.is_accepted_by(*held)))
    }

    /// Follows every pair of nodes that may talk and returns how many pairs use each output port of the switches.
    fn check_reach(&self) -> Result<BTreeMap<Link, usize>, OverlayRefusal> {
        let mut loads: BTreeMap<Link, usize> = BTreeMap::new();
        let mut granted: BTreeSet<Link> = BTreeSet::new();
        for from in 0..self.nodes.len() {
            for to in (0..self.nodes.len()).filter(|to| *to != from && self.may_talk(from, *to)) {
                let mut at = self.nodes[from].home;
                loop {
                    let next = self.next(at, to);
                    let leads_on = matches!(next, NextHop::Switch(_)) || next == NextHop::Node(to);
                    let Some(exit) = self.nodes[to].column[at].filter(|_| leads_on) else {
                        return Err(self.unreachable(from, to, at));
                    };
                    let link = (at, exit);
                    if granted.insert(link) && !self.is_granted(link) {
                        let (from, to) = (self.nodes[from].name.clone(), self.nodes[to].name.clone());
                        return Err(OverlayRefusal::NoGrant { link: self.exit(link), from, to });
                    }
                    *loads.entry(link).or_default() += 1;
                    let NextHop::Switch(further) = next else { break };
                    at = further;
                }
            }
        }
        Ok(loads)
    }

    fn unreachable(&self, from: usize, to: usize, at: SwitchIndex) -> OverlayRefusal {
        OverlayRefusal::Unreachable {
            from: self.nodes[from].name.clone(),
            to: self.nodes[to].name.clone(),
            at: self.switches[at].name.clone(),
        }
    }

    fn exit(&self, (switch_index, port): Link) -> EgressPort {
        EgressPort { switch: self.switches[switch_index].name.clone(), port }
    }

    /// The physical port behind a port of the view.
    fn physical(&self, (switch_index, port): Link) -> Option<PortName> {
        let switch = &self.switches[switch_index];
        Some(PortName { node: switch.physical, port: *switch.physical_ports.get(&port)? })
    }

    fn is_granted(&self, link: Link) -> bool {
        match &self.input.slice.shares {
            Shares::BestEffort => true,
            Shares::Granted(_) if self.input.slice.cables.is_empty() => true,
            Shares::Granted(shares) => self.physical(link).is_some_and(|port| shares.contains_key(&port)),
        }
    }

    /// Checks the link dependencies of packets to all nodes, from all switches, for cycles, as the rule of
    /// the verifier does for a plan.
    fn check_credits(&self, arrives: &[Vec<bool>]) -> Result<(), OverlayRefusal> {
        let mut after: BTreeMap<Link, BTreeSet<Link>> = BTreeMap::new();
        for (to, node) in self.nodes.iter().enumerate() {
            for here in (0..self.switches.len()).filter(|here| arrives[to][*here]) {
                let (NextHop::Switch(there), Some(exit)) = (self.next(here, to), node.column[here]) else {
                    continue;
                };
                let (NextHop::Switch(_), Some(further)) = (self.next(there, to), node.column[there]) else {
                    continue;
                };
                after.entry((here, exit)).or_default().insert((there, further));
            }
        }
        let links: Vec<Link> = after.keys().copied().collect();
        let followers = |link: &Link| after.get(link).into_iter().flatten().copied().collect();
        match cycles(&links, followers).first() {
            Some(cycle) => Err(OverlayRefusal::CreditLoop {
                links: cycle.shortest.iter().map(|link| self.exit(*link)).collect(),
            }),
            None => Ok(()),
        }
    }

    fn physical_routes(
        &self,
        arrives: &[Vec<bool>],
        adaptations: &mut Vec<Adaptation>,
    ) -> BTreeMap<Guid, BTreeMap<Guid, PortNum>> {
        let mut routes = BTreeMap::new();
        for (to, (node, slice_node)) in self.nodes.iter().zip(&self.input.slice.nodes).enumerate() {
            if node.is_kept || self.is_default(to) {
                continue;
            }
            if !slice_node.has_own_port {
                adaptations.push(Adaptation::NotRouted { node: node.name.clone() });
                continue;
            }
            let exits = (0..self.switches.len())
                .filter(|switch_index| arrives[to][*switch_index])
                .filter_map(|switch_index| {
                    let physical = self.physical((switch_index, node.column[switch_index]?))?;
                    Some((physical.node, physical.port))
                });
            routes.insert(slice_node.port, exits.collect());
        }
        routes
    }

    /// The requested partitions, with every node in the partition of the cluster.
    fn physical_partitions(
        &self,
        overlay: &ViewOverlay,
        adaptations: &mut Vec<Adaptation>,
    ) -> BTreeMap<PartitionNumber, BTreeMap<String, Role>> {
        let mut partitions = overlay.partitions.clone();
        let own = partitions.entry(PartitionNumber::DEFAULT).or_default();
        for node in &self.nodes {
            if !own.contains_key(&node.name) {
                own.insert(node.name.clone(), Role::Limited);
                adaptations.push(Adaptation::MembershipKept { node: node.name.clone() });
            }
        }
        partitions
    }

    /// Whether the column of a node is the default one.
    fn is_default(&self, to: usize) -> bool {
        let mut entries = self.switches.iter().zip(&self.nodes[to].column);
        entries.all(|(switch, exit)| *exit == self.default_exit(switch, to))
    }

    fn classes(
        &self,
        overlay: &ViewOverlay,
        loads: &BTreeMap<Link, usize>,
        adaptations: &mut Vec<Adaptation>,
    ) -> Vec<OverlayClass> {
        let Some(requested) = &overlay.classes else { return Vec::new() };
        if let Some(port) = self.differing(requested) {
            adaptations.push(Adaptation::ClassesDiffer { port });
        }
        let (lanes, link) = self.free_lanes(loads);
        let (given, mut changed) = classes::fit(requested, lanes, link);
        adaptations.append(&mut changed);
        given
    }

    /// A port whose classes differ from the requested ones.
    fn differing(&self, requested: &[OverlayClass]) -> Option<String> {
        let fabric = self.input.fabric;
        let own = |node: &&Node| {
            !classes::are_alike(&classes::of(fabric, PortNum::MANAGEMENT, node.port), requested)
        };
        if let Some(node) = self.nodes.iter().find(own) {
            return Some(node.name.clone());
        }
        self.switches.iter().find_map(|switch| {
            let carrying =
                || switch.next.iter().filter(|(_, next)| **next != NextHop::Nowhere).map(|(port, _)| *port);
            let differs = |output: &PortNum| {
                let input = carrying().find(|input| input != output);
                let port = fabric.port_of(switch.device, *output);
                input.zip(port).is_some_and(|(input, port)| {
                    !classes::are_alike(&classes::of(fabric, input, port), requested)
                })
            };
            carrying().find(differs).map(|port| format!("{}[{port}]", switch.name))
        })
    }

    /// The fewest lanes that the cluster can have on a link it uses, and that link.
    fn free_lanes(&self, loads: &BTreeMap<Link, usize>) -> (usize, Option<EgressPort>) {
        let Shares::Granted(shares) = &self.input.slice.shares else { return (1, None) };
        let lane_counts = loads.keys().filter_map(|link| {
            let share = shares.get(&self.physical(*link)?)?;
            Some((usize::from(share.lanes), *link))
        });
        lane_counts.min().map_or((1, None), |(lanes, link)| (lanes, Some(self.exit(link))))
    }

    /// The bandwidth that every node can send evenly to all others: a link divides its grant among the pairs that use
    /// it.
    fn all_to_all(&self, loads: &BTreeMap<Link, usize>) -> Option<Bandwidth> {
        let Shares::Granted(shares) = &self.input.slice.shares else { return None };
        let others = self.nodes.len().saturating_sub(1) as u128;
        let rates = loads.iter().filter_map(|(link, pairs)| {
            let share = shares.get(&self.physical(*link)?)?;
            let rate = u128::from(share.rate.bits_per_s()) * others / *pairs as u128;
            u64::try_from(rate).ok()
        });
        let injected = self.input.slice.nodes.iter().filter_map(|slice_node| shares.get(&slice_node.name));
        let injected = injected.map(|share| share.rate.bits_per_s());
        rates.chain(injected).min().map(Bandwidth::from_bits_per_s)
    }
}

/// Output port of a switch for a LID, if it is not beyond the table's top.
fn exit(fabric: &Fabric, device: DeviceId, lid: Lid) -> Option<PortNum> {
    let (exits, top) = fabric.linear_of(device)?;
    let exit = exits.get(usize::from(lid.to_wire())).filter(|_| lid.to_wire() <= top)?;
    PortNum::new(*exit)
}

/// Whether the link behind a port is active at both ends.
fn carries(fabric: &Fabric, device: DeviceId, number: PortNum) -> bool {
    let Some(port) = fabric.port_of(device, number) else { return false };
    let gate = fabric.port_forwarding(port);
    let peer = gate.peer.map(|peer| fabric.port_forwarding(peer).state);
    gate.state == PortState::Active && peer == Some(PortState::Active)
}
