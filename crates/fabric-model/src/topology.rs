//! What is cabled to what: nodes, ports and links, in the order of the file they came from.
//!
//! A [`Topology`] cannot be changed and always holds together: every link has two ends that name each other, node ids
//! and node GUIDs are unique, and so are the GUIDs of cabled ports. [`TopologyBuilder`](crate::TopologyBuilder) is the
//! only door.

use std::collections::HashMap;
use std::ops::Index;

use ib_wire::{Guid, Lid, LinkSpeed, LinkWidth, Lmc, NodeKind, PortNum};
use serde::Serialize;

use crate::link_rate::LinkRate;

/// Nodes a topology may have. A subnet has 49,151 unicast LIDs, so a real one has fewer.
pub const NODES_MAX: usize = 65_536;

/// Ports a node may have, a switch's port 0 not counted: 255 means "no port" in forwarding tables.
pub const NODE_PORTS_MAX: u8 = 254;

/// Ports of all nodes together: keeps a small hostile file from asking for gigabytes. The largest reference fabric,
/// 11,664 hosts, has 71,604.
pub const PORTS_MAX: usize = 1 << 20;

/// Bytes of a node id; `ibsim` keeps no more.
pub const NODE_ID_BYTES_MAX: usize = 64;

/// Bytes of the module name in front of `#` in a node id; `ibsim` keeps no more.
pub const MODULE_BYTES_MAX: usize = 20;

/// Bytes of a node description: what the NodeDescription attribute holds.
pub const DESCRIPTION_BYTES_MAX: usize = 64;

/// A node's place in its topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct NodeIndex(u32);

impl NodeIndex {
    /// The node at a place counted from 0, which need not exist.
    pub const fn new(place: u32) -> Self {
        Self(place)
    }

    /// The place as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// `place` comes from a list that [`NODES_MAX`] bounds.
    pub(crate) fn from_usize(place: usize) -> Self {
        Self(u32::try_from(place).expect("a topology has at most NODES_MAX nodes"))
    }
}

/// One port of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Endpoint {
    /// The node.
    pub node: NodeIndex,
    /// The port.
    pub port: PortNum,
}

impl Endpoint {
    /// A port of a node, which need not exist.
    pub const fn new(node: NodeIndex, port: PortNum) -> Self {
        Self { node, port }
    }
}

/// What a switch says about its port 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortZero {
    /// Nothing; always so for nodes that are no switches.
    #[default]
    Unknown,
    /// It answers management only.
    Base,
    /// It behaves as an adapter port.
    Enhanced,
}

/// A switch, an adapter or a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What the file calls it: `S-0002c9…`, `H-0002c9…`, or a name such as `sw0`. In a module: `module#name`.
    pub id: String,
    /// What it is; never `Unknown`.
    pub kind: NodeKind,
    /// Its own GUID.
    pub guid: Guid,
    /// The box it sits in.
    pub system_guid: Option<Guid>,
    /// Its maker; never 0.
    pub vendor_id: Option<u32>,
    /// Its model; never 0.
    pub device_id: Option<u16>,
    /// What people call it; the id where nobody said.
    pub description: String,
    /// What a switch says about its port 0.
    pub port_0: PortZero,
    /// A switch's begin with port 0, the others' with port 1.
    pub(crate) ports: Vec<Port>,
}

impl Node {
    /// Whether it is a switch.
    #[inline]
    pub fn is_switch(&self) -> bool {
        self.kind == NodeKind::Switch
    }

    /// Ports, a switch's port 0 not counted.
    #[inline]
    pub fn port_count(&self) -> u8 {
        let count = self.ports.len() - usize::from(self.is_switch());
        u8::try_from(count).expect("a node has at most NODE_PORTS_MAX ports")
    }

    /// A port; port 0 exists on switches only.
    #[inline]
    pub fn port(&self, number: PortNum) -> Option<&Port> {
        self.ports.get(self.place(number)?)
    }

    /// Its ports in order with their numbers, a switch's port 0 first.
    pub fn ports(&self) -> impl Iterator<Item = (PortNum, &Port)> {
        let first = u8::from(!self.is_switch());
        (first..=NODE_PORTS_MAX).filter_map(PortNum::new).zip(&self.ports)
    }

    /// The ports that have a cable, in order, with what is at its other end.
    pub fn cabled_ports(&self) -> impl Iterator<Item = (PortNum, Endpoint)> {
        self.ports().filter_map(|(number, port)| Some((number, port.peer?)))
    }

    /// The module its id names in front of `#`, if any.
    pub fn module(&self) -> Option<&str> {
        self.id.split_once('#').map(|(module, _)| module)
    }

    /// Where in `ports` a number stands, if it can exist at all.
    pub(crate) fn place(&self, number: PortNum) -> Option<usize> {
        number.index().checked_sub(usize::from(!self.is_switch()))
    }
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its GUID: the node's on every port of a switch, else the node's plus the port number unless the file said
    /// otherwise.
    pub guid: Guid,
    /// Its LID when the file was made; end ports only, which is port 0 of a switch.
    pub lid: Option<Lid>,
    /// How many LIDs it had.
    pub lmc: Lmc,
    /// The other end of its cable.
    pub peer: Option<Endpoint>,
    /// The widths it may train to as far as the file says; where the rate is known, that tells more.
    pub enabled_width: LinkWidth,
    /// The speeds it may train to as far as the file says; where the rate is known, that tells more.
    pub enabled_speed: LinkSpeed,
    /// What its link ran at when the file was made.
    pub rate: Option<LinkRate>,
}

impl Port {
    /// The width of ports nobody spoke of; `ibsim` has the same.
    pub const DEFAULT_WIDTH: LinkWidth = LinkWidth::X4;
    /// The speed of ports nobody spoke of; `ibsim` has the same.
    pub const DEFAULT_SPEED: LinkSpeed = LinkSpeed::SDR;

    /// A port with this GUID of which nothing else is known.
    pub(crate) fn new(guid: Guid) -> Self {
        Self {
            guid,
            lid: None,
            lmc: Lmc::default(),
            peer: None,
            enabled_width: Self::DEFAULT_WIDTH,
            enabled_speed: Self::DEFAULT_SPEED,
            rate: None,
        }
    }
}

/// A cable and the two ports it joins; `a` comes first in the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// One end.
    pub a: Endpoint,
    /// The other.
    pub b: Endpoint,
    /// The rate either end told, `a` before `b`.
    pub rate: Option<LinkRate>,
}

/// A fabric: nodes in file order and the cables between their ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    pub(crate) nodes: Vec<Node>,
    pub(crate) by_id: HashMap<String, NodeIndex>,
    pub(crate) by_guid: HashMap<Guid, NodeIndex>,
    pub(crate) by_port_guid: HashMap<Guid, Endpoint>,
}

impl Topology {
    /// How many nodes it has.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Its nodes in file order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeIndex, &Node)> {
        self.nodes.iter().enumerate().map(|(place, node)| (NodeIndex::from_usize(place), node))
    }

    /// Its switches in file order.
    pub fn switches(&self) -> impl Iterator<Item = (NodeIndex, &Node)> {
        self.nodes().filter(|(_, node)| node.is_switch())
    }

    /// Its nodes that are no switches — adapters and routers — in file order.
    pub fn end_nodes(&self) -> impl Iterator<Item = (NodeIndex, &Node)> {
        self.nodes().filter(|(_, node)| !node.is_switch())
    }

    /// A node, if the index is one of this topology.
    #[inline]
    pub fn node(&self, index: NodeIndex) -> Option<&Node> {
        self.nodes.get(index.index())
    }

    /// A port, if it exists.
    #[inline]
    pub fn port(&self, end: Endpoint) -> Option<&Port> {
        self.node(end.node)?.port(end.port)
    }

    /// What is at the other end of a port's cable.
    #[inline]
    pub fn peer(&self, end: Endpoint) -> Option<Endpoint> {
        self.port(end)?.peer
    }

    /// The node with this id.
    pub fn by_id(&self, id: &str) -> Option<NodeIndex> {
        self.by_id.get(id).copied()
    }

    /// The node with this node GUID.
    pub fn by_guid(&self, guid: Guid) -> Option<NodeIndex> {
        self.by_guid.get(&guid).copied()
    }

    /// The port with this port GUID: port 0 of a switch. Of ports without a cable that share one, the first.
    pub fn by_port_guid(&self, guid: Guid) -> Option<Endpoint> {
        self.by_port_guid.get(&guid).copied()
    }

    /// The first node with this description; descriptions need not be unique.
    pub fn by_description(&self, description: &str) -> Option<NodeIndex> {
        self.nodes().find(|(_, node)| node.description == description).map(|(index, _)| index)
    }

    /// Its links, each once, in the order of their first ends.
    pub fn links(&self) -> impl Iterator<Item = Link> {
        self.nodes().flat_map(move |(index, node)| {
            node.ports().filter_map(move |(number, port)| {
                let (a, b) = (Endpoint::new(index, number), port.peer?);
                (a < b).then(|| Link { a, b, rate: port.rate.or_else(|| self.port(b)?.rate) })
            })
        })
    }
}

/// For an index that this topology handed out; panics on others.
impl Index<NodeIndex> for Topology {
    type Output = Node;

    #[inline]
    fn index(&self, index: NodeIndex) -> &Node {
        &self.nodes[index.index()]
    }
}
