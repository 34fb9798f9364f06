//! The part of the physical network that a cluster uses: the switches and cables on the routes between its ports.

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::intent::PortName;
use fabric_model::plan::{AdapterPortPlan, PortQos, SwitchPlan};
use fabric_model::tenancy::Bandwidth;
use fabric_model::{FabricPlan, LinkRate, Topology};
use ib_wire::{DataLanes, Guid, PartitionNumber, PortNum, ServiceLevel};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The most switches on a route; longer routes of a plan are loops.
const HOPS_MAX: usize = 64;

/// A cluster and the ports of its virtual machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterPlacement {
    /// Name of the cluster in plans.
    pub name: String,
    /// The cluster's own partition on the physical network.
    pub partition: PartitionNumber,
    /// In the order of the view's numbering.
    #[serde(alias = "seats")]
    pub nodes: Vec<NodePlacement>,
}

/// A virtual machine and the adapter port that it uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePlacement {
    /// Name of the virtual machine, unique in its cluster.
    pub node: String,
    /// GUID of the port, not of the node.
    pub port: Guid,
    /// Whether virtual machines of other clusters may use the port, too.
    #[serde(default)]
    pub shared: bool,
    /// Node and port GUID of its adapter in the view, which software in the virtual machine finds in its own device. A numbered one if
    /// there is none. It must not be that of another virtual machine, and below those of switches (`0x0248451000000000`).
    #[serde(default)]
    pub guid: Option<Guid>,
}

/// The structure that a view shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ViewShape {
    /// The physical structure, where the cluster uses it.
    #[default]
    Network,
    /// One switch with all virtual machines, which stands for everything between them.
    Crossbar,
}

/// Why there is no slice for a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SliceError {
    #[error("the cluster has no virtual machines")]
    Empty,
    #[error("two virtual machines of the cluster have the name {0:?}")]
    DuplicateNode(String),
    #[error("the plan does not contain port {port} of {node:?}")]
    NoSuchPort { node: String, port: Guid },
    #[error("the plan has no route from {from:?} to {to:?}")]
    NoRoute { from: String, to: String },
}

/// Physical GUID of a crossbar's switch; no device has it.
pub(crate) const CROSSBAR: Guid = match Guid::from_wire(u64::MAX) {
    Some(guid) => guid,
    None => unreachable!(),
};

/// A cluster's part of the physical network. All names in it are physical.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    pub(crate) shape: ViewShape,
    pub(crate) nodes: Vec<SliceNode>,
    /// Everything in the slice, in the order in which a walk along all routes visits it.
    pub(crate) visits: Vec<Visit>,
    /// Cables between switches, from both ends.
    pub(crate) cables: BTreeMap<PortName, Cable>,
    pub(crate) shares: Shares,
    pub(crate) wire: WireParameters,
    pub(crate) classes: Vec<WireClass>,
}

/// P_Key and service level that applications of a cluster must use on the physical network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireParameters {
    pub partition: PartitionNumber,
    pub service_level: ServiceLevel,
}

/// A class of service of a cluster on the physical network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireClass {
    pub service_level: ServiceLevel,
    /// The class's smallest part of the cluster's share over all links, in thousandths.
    pub min_share_permille: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SliceNode {
    pub node: String,
    /// Port GUID of the adapter port.
    pub port: Guid,
    /// Node and port GUID in the view, if it is not a numbered one.
    pub guid: Option<Guid>,
    /// Whether the tenant may choose routes to the port: no other virtual machine uses it.
    pub has_own_port: bool,
    pub name: PortName,
    /// The switch port in front of the adapter.
    pub access: PortName,
    /// Rate of the adapter's link.
    pub rate: Option<LinkRate>,
    /// Output ports of the cluster's routes to this node, by switch.
    pub exits: BTreeMap<Guid, PortNum>,
}

/// The other end of a cable, and the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cable {
    pub peer: PortName,
    pub rate: Option<LinkRate>,
}

/// Something that a walk visits for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Visit {
    /// By index among the nodes.
    Node(usize),
    Switch(Guid),
    /// The switch port in front of a virtual machine.
    Access(Guid, usize),
    /// A switch port with a cable to another switch.
    Link(PortName),
}

/// What a cluster may use of links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shares {
    /// All links, in the best-effort lane.
    BestEffort,
    /// Grants by output port.
    Granted(BTreeMap<PortName, Share>),
}

/// A grant on one direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub rate: Bandwidth,
    /// The cluster's own lane, and the lanes that no cluster has.
    pub lanes: u8,
}

impl Slice {
    /// Walks the routes of a plan between all ports of a cluster.
    pub fn of(
        topology: &Topology,
        plan: &FabricPlan,
        cluster: &ClusterPlacement,
        shape: ViewShape,
    ) -> Result<Self, SliceError> {
        let mut nodes = slice_nodes(topology, plan, cluster)?;
        let behind_switches = nodes.iter().all(|node| plan.switch(node.access.node).is_some());
        let shape = if behind_switches { shape } else { ViewShape::Crossbar };
        let (visits, cables) = match shape {
            ViewShape::Network => Walker::new(topology, plan, &nodes).walk()?.into_parts(&mut nodes),
            ViewShape::Crossbar => crossbar(&mut nodes),
        };
        let decision = plan.decisions().clusters.get(&cluster.name);
        let service_level = decision.and_then(|decision| decision.service_level()).unwrap_or_default();
        let wire = WireParameters { partition: cluster.partition, service_level };
        let shares = shares(plan, cluster, &nodes);
        Ok(Self {
            shape,
            shares,
            nodes,
            visits,
            cables,
            wire,
            classes: classes(plan, cluster, service_level),
        })
    }

    /// The structure shown. If an adapter of the cluster is cabled to another adapter, it is always a crossbar.
    pub fn shape(&self) -> ViewShape {
        self.shape
    }

    /// P_Key and service level on the physical network.
    pub fn wire_parameters(&self) -> WireParameters {
        self.wire
    }

    /// Classes of service on the physical network, in the order of the overlay's classes; none if the cluster is not
    /// divided.
    pub fn classes(&self) -> &[WireClass] {
        &self.classes
    }

    /// Names of the virtual machines, in order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &str> {
        self.nodes.iter().map(|node| node.node.as_str())
    }

    /// Node GUIDs of the switches, in the order of the walk.
    pub fn switches(&self) -> impl Iterator<Item = Guid> {
        self.visits.iter().filter_map(|visit| match visit {
            Visit::Switch(guid) => Some(*guid),
            _ => None,
        })
    }

    /// Cables between switches, each once, with the lower end first.
    pub fn cables(&self) -> impl Iterator<Item = (PortName, PortName)> {
        self.cables.iter().map(|(port, cable)| (*port, cable.peer)).filter(|(port, peer)| port < peer)
    }

    /// Port GUID of the adapter port of a virtual machine.
    pub fn port_of(&self, name: &str) -> Option<Guid> {
        self.nodes.iter().find(|node| node.node == name).map(|node| node.port)
    }
}

fn slice_nodes(
    topology: &Topology,
    plan: &FabricPlan,
    cluster: &ClusterPlacement,
) -> Result<Vec<SliceNode>, SliceError> {
    if cluster.nodes.is_empty() {
        return Err(SliceError::Empty);
    }
    let mut names: BTreeSet<String> = BTreeSet::new();
    let mut on_port: BTreeMap<Guid, usize> = BTreeMap::new();
    cluster.nodes.iter().for_each(|node| *on_port.entry(node.port).or_default() += 1);
    let mut slice_node = |node: &NodePlacement| {
        if !names.insert(node.node.clone()) {
            return Err(SliceError::DuplicateNode(node.node.clone()));
        }
        let missing = || SliceError::NoSuchPort { node: node.node.clone(), port: node.port };
        let port = plan.adapter_port(node.port).ok_or_else(missing)?;
        Ok(SliceNode {
            node: node.node.clone(),
            port: node.port,
            guid: node.guid,
            has_own_port: !node.shared && on_port[&node.port] == 1,
            name: port.name,
            access: port.peer,
            rate: rate(topology, port.peer),
            exits: BTreeMap::new(),
        })
    };
    cluster.nodes.iter().map(&mut slice_node).collect()
}

fn rate(topology: &Topology, port: PortName) -> Option<LinkRate> {
    topology.node(topology.by_guid(port.node)?)?.port(port.port)?.rate
}

/// One switch with all nodes. Its routes are not physical.
fn crossbar(nodes: &mut [SliceNode]) -> (Vec<Visit>, BTreeMap<PortName, Cable>) {
    let mut visits = vec![Visit::Node(0), Visit::Switch(CROSSBAR), Visit::Access(CROSSBAR, 0)];
    for (index, node) in nodes.iter_mut().enumerate() {
        node.access = PortName { node: CROSSBAR, port: node.access.port };
        node.has_own_port = false;
        if index > 0 {
            visits.extend([Visit::Node(index), Visit::Access(CROSSBAR, index)]);
        }
    }
    (visits, BTreeMap::new())
}

/// Walks along routes and records what it visits.
struct Walker<'a> {
    topology: &'a Topology,
    plan: &'a FabricPlan,
    nodes: &'a [SliceNode],
    visits: Vec<Visit>,
    known: BTreeSet<Visit>,
    cables: BTreeMap<PortName, Cable>,
    exits: Vec<BTreeMap<Guid, PortNum>>,
}

impl<'a> Walker<'a> {
    fn new(topology: &'a Topology, plan: &'a FabricPlan, nodes: &'a [SliceNode]) -> Self {
        Self {
            topology,
            plan,
            nodes,
            visits: Vec::new(),
            known: BTreeSet::new(),
            cables: BTreeMap::new(),
            exits: vec![BTreeMap::new(); nodes.len()],
        }
    }

    fn walk(mut self) -> Result<WalkResult, SliceError> {
        // Virtual machines on one port have one LID; the routes to it are walked once.
        let mut walked = BTreeSet::new();
        for (from, node) in self.nodes.iter().enumerate() {
            self.visit(Visit::Node(from));
            self.visit(Visit::Switch(node.access.node));
            self.visit(Visit::Access(node.access.node, from));
            self.exits[from].insert(node.access.node, node.access.port);
            for (to, other) in self.nodes.iter().enumerate() {
                if node.port != other.port && walked.insert((node.port, other.port)) {
                    self.follow(from, to)?;
                }
            }
        }
        let mut by_port: BTreeMap<Guid, BTreeMap<Guid, PortNum>> = BTreeMap::new();
        for (node, exits) in self.nodes.iter().zip(&self.exits) {
            by_port.entry(node.port).or_default().extend(exits.clone());
        }
        let exits = self.nodes.iter().map(|node| by_port[&node.port].clone()).collect();
        Ok(WalkResult { visits: self.visits, cables: self.cables, exits })
    }

    fn follow(&mut self, from: usize, to: usize) -> Result<(), SliceError> {
        let nodes = self.nodes;
        let (node, other) = (&nodes[from], &nodes[to]);
        let missing = || SliceError::NoRoute { from: node.node.clone(), to: other.node.clone() };
        let port = self.plan.adapter_port(other.port).ok_or_else(missing)?;
        let mut at = node.access.node;
        for _ in 0..HOPS_MAX {
            let switch = self.plan.switch(at).ok_or_else(missing)?;
            let exit = self.plan.default_exit(switch, port).ok_or_else(missing)?;
            self.exits[to].insert(at, exit);
            let here = PortName { node: at, port: exit };
            if here == other.access {
                return Ok(());
            }
            let peer = switch.port(exit).ok_or_else(missing)?.peer;
            self.visit(Visit::Switch(at));
            self.visit(Visit::Link(here));
            self.visit(Visit::Switch(peer.node));
            self.visit(Visit::Link(peer));
            let rate = rate(self.topology, here).or_else(|| rate(self.topology, peer));
            self.cables.insert(here, Cable { peer, rate });
            self.cables.insert(peer, Cable { peer: here, rate });
            at = peer.node;
        }
        Err(missing())
    }

    fn visit(&mut self, visit: Visit) {
        if self.known.insert(visit) {
            self.visits.push(visit);
        }
    }
}

/// What a walk has visited.
struct WalkResult {
    visits: Vec<Visit>,
    cables: BTreeMap<PortName, Cable>,
    exits: Vec<BTreeMap<Guid, PortNum>>,
}

impl WalkResult {
    fn into_parts(self, nodes: &mut [SliceNode]) -> (Vec<Visit>, BTreeMap<PortName, Cable>) {
        nodes.iter_mut().zip(self.exits).for_each(|(node, exits)| node.exits = exits);
        (self.visits, self.cables)
    }
}

fn shares(plan: &FabricPlan, cluster: &ClusterPlacement, nodes: &[SliceNode]) -> Shares {
    let Some(decision) = plan.decisions().clusters.get(&cluster.name) else { return Shares::BestEffort };
    let further = plan.decisions().classes.get(&cluster.name);
    let further = further.map_or(0, |classes| classes.service_levels.len() as u8);
    let adapters: BTreeMap<PortName, &AdapterPortPlan> =
        (nodes.iter()).filter_map(|node| Some((node.name, plan.adapter_port(node.port)?))).collect();
    let granted = decision.links.iter().map(|grant| {
        let of_switch = |switch: &SwitchPlan| {
            let port = switch.port(grant.port.port)?;
            Some(lanes_left(port.lanes, port.qos.as_deref()))
        };
        let of_adapter = || adapters.get(&grant.port).map(|port| lanes_left(port.lanes, port.qos.as_deref()));
        let lanes = plan.switch(grant.port.node).and_then(of_switch).or_else(of_adapter).unwrap_or(1);
        (grant.port, Share { rate: grant.share, lanes: lanes + further })
    });
    Shares::Granted(granted.collect())
}

fn classes(plan: &FabricPlan, cluster: &ClusterPlacement, own: ServiceLevel) -> Vec<WireClass> {
    let Some(decision) = plan.decisions().classes.get(&cluster.name) else { return Vec::new() };
    let levels = std::iter::once(own).chain(decision.service_levels.iter().copied());
    let class = |(class, service_level)| {
        let min_share_permille = decision.min_share_permille(class).unwrap_or_default();
        WireClass { service_level, min_share_permille }
    };
    levels.enumerate().map(class).collect()
}

/// The lanes that no cluster has, and one that the cluster has without classes.
fn lanes_left(lanes: DataLanes, sharing: Option<&PortQos>) -> u8 {
    let Some(sharing) = sharing else { return 1 };
    let taken: BTreeSet<u8> =
        sharing.low.iter().filter(|entry| entry.weight > 0).map(|entry| entry.lane.to_wire()).collect();
    1 + lanes.count().saturating_sub(u8::try_from(taken.len()).unwrap_or(u8::MAX))
}
