//! The physical topology: nodes, ports and links, in the order of the file they were read from.
//!
//! A [`Topology`] is immutable and consistent: the two ends of every link name each other; node ids, node GUIDs and the
//! GUIDs of cabled ports are unique. [`TopologyBuilder`](crate::TopologyBuilder) is the only constructor.

use std::collections::HashMap;
use std::ops::Index;

use ib_wire::{Guid, Lid, LinkSpeed, LinkWidth, Lmc, NodeKind, PortNum};
use serde::Serialize;

use crate::link_rate::LinkRate;

/// Largest number of nodes. A subnet has 49,151 unicast LIDs, so a real topology has fewer.
pub const NODES_MAX: usize = 65_536;

/// Largest number of external ports of a node (a switch's port 0 is not counted): forwarding tables use 255 for "no
/// port".
pub const NODE_PORTS_MAX: u8 = 254;

/// Largest number of ports of all nodes together, so that a small hostile file cannot allocate gigabytes. The largest
/// reference fabric, 11,664 hosts, has 71,604.
pub const PORTS_MAX: usize = 1 << 20;

/// Longest node id in bytes, as in `ibsim`.
pub const NODE_ID_BYTES_MAX: usize = 64;

/// Longest module name in front of `#` in a node id, in bytes, as in `ibsim`.
pub const MODULE_BYTES_MAX: usize = 20;

/// Longest node description in bytes: the size of the NodeDescription attribute.
pub const DESCRIPTION_BYTES_MAX: usize = 64;

/// Position of a node in its topology, counted from 0 in file order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct NodeIndex(u32);

impl NodeIndex {
    /// An index, whether or not a topology has a node there.
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// The index as a `usize`, for slices.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// For an index below [`NODES_MAX`]; panics if it does not fit in 32 bits.
    pub(crate) fn from_usize(index: usize) -> Self {
        Self(u32::try_from(index).expect("a topology has at most NODES_MAX nodes"))
    }
}

/// One port of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Endpoint {
    pub node: NodeIndex,
    pub port: PortNum,
}

impl Endpoint {
    /// A port of a node, whether or not a topology has it.
    pub const fn new(node: NodeIndex, port: PortNum) -> Self {
        Self { node, port }
    }
}

/// Kind of a switch's port 0 (IBA: base or enhanced switch port 0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortZero {
    /// Not stated, or the node is not a switch.
    #[default]
    Unknown,
    /// The port handles management datagrams only.
    Base,
    /// The port behaves like the port of a channel adapter.
    Enhanced,
}

/// A switch, an adapter or a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Id in the file: `S-0002c9…`, `H-0002c9…`, or a name such as `sw0`. In a module: `module#name`.
    pub id: String,
    /// Never [`NodeKind::Unknown`]: the builder rejects it.
    pub kind: NodeKind,
    /// NodeInfo:NodeGUID, unique in the topology.
    pub guid: Guid,
    /// NodeInfo:SystemImageGUID, the same for all nodes of a chassis.
    pub system_guid: Option<Guid>,
    /// `None` if it is unknown, never `Some(0)`.
    pub vendor_id: Option<u32>,
    /// `None` if it is unknown, never `Some(0)`.
    pub device_id: Option<u16>,
    /// NodeDescription; the id if the file has none.
    pub description: String,
    pub port_0: PortZero,
    /// In order of their numbers, from port 0 on a switch and from port 1 on other nodes.
    pub(crate) ports: Vec<Port>,
}

impl Node {
    /// Whether the node kind is switch.
    #[inline]
    pub fn is_switch(&self) -> bool {
        self.kind == NodeKind::Switch
    }

    /// Number of external ports: a switch's port 0 is not counted.
    #[inline]
    pub fn port_count(&self) -> u8 {
        let count = self.ports.len() - usize::from(self.is_switch());
        u8::try_from(count).expect("a node has at most NODE_PORTS_MAX ports")
    }

    /// A port by its number; port 0 exists on switches only.
    #[inline]
    pub fn port(&self, number: PortNum) -> Option<&Port> {
        self.ports.get(self.port_position(number)?)
    }

    /// All ports with their numbers, in order, including port 0 of a switch.
    pub fn ports(&self) -> impl Iterator<Item = (PortNum, &Port)> {
        let first = u8::from(!self.is_switch());
        (first..=NODE_PORTS_MAX).filter_map(PortNum::new).zip(&self.ports)
    }

    /// The cabled ports in order, each with the port at the other end of its cable.
    pub fn cabled_ports(&self) -> impl Iterator<Item = (PortNum, Endpoint)> {
        self.ports().filter_map(|(number, port)| Some((number, port.peer?)))
    }

    /// The module name in front of `#` in the id, if there is one.
    pub fn module(&self) -> Option<&str> {
        self.id.split_once('#').map(|(module, _)| module)
    }

    /// Position of a port number in `ports`, which may be beyond its end; `None` for port 0 of a node without one.
    pub(crate) fn port_position(&self, number: PortNum) -> Option<usize> {
        number.index().checked_sub(usize::from(!self.is_switch()))
    }
}

/// One port of a node, as far as the file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Port GUID. Unless the file gives it: the node GUID on all ports of a switch, else node GUID plus port number.
    pub guid: Guid,
    /// LID when the file was written. Only end ports have one; on a switch that is port 0.
    pub lid: Option<Lid>,
    /// The port answers to 2^LMC LIDs.
    pub lmc: Lmc,
    /// The port at the other end of the cable; `None` if there is no cable.
    pub peer: Option<Endpoint>,
    /// PortInfo:LinkWidthEnabled as far as the file says; `rate` is more precise if it is known.
    pub enabled_width: LinkWidth,
    /// PortInfo:LinkSpeedEnabled as far as the file says; `rate` is more precise if it is known.
    pub enabled_speed: LinkSpeed,
    /// Active rate of the link when the file was written.
    pub rate: Option<LinkRate>,
}

impl Port {
    /// Enabled widths of ports for which the file gives none, as in `ibsim`.
    pub const DEFAULT_WIDTH: LinkWidth = LinkWidth::X4;
    /// Enabled speeds of ports for which the file gives none, as in `ibsim`.
    pub const DEFAULT_SPEED: LinkSpeed = LinkSpeed::SDR;

    /// A port without a cable, of which only the GUID is known.
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

/// A cable between two ports; `a < b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    pub a: Endpoint,
    pub b: Endpoint,
    /// The rate recorded at `a`, or else at `b`.
    pub rate: Option<LinkRate>,
}

/// The nodes of a fabric in file order, and the cables between their ports. Immutable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    pub(crate) nodes: Vec<Node>,
    pub(crate) by_id: HashMap<String, NodeIndex>,
    pub(crate) by_guid: HashMap<Guid, NodeIndex>,
    pub(crate) by_port_guid: HashMap<Guid, Endpoint>,
}

impl Topology {
    /// Number of nodes of all kinds.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// All nodes in file order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeIndex, &Node)> {
        self.nodes.iter().enumerate().map(|(index, node)| (NodeIndex::from_usize(index), node))
    }

    /// The switches in file order.
    pub fn switches(&self) -> impl Iterator<Item = (NodeIndex, &Node)> {
        self.nodes().filter(|(_, node)| node.is_switch())
    }

    /// The adapters and routers in file order.
    pub fn end_nodes(&self) -> impl Iterator<Item = (NodeIndex, &Node)> {
        self.nodes().filter(|(_, node)| !node.is_switch())
    }

    /// The node at an index; `None` if the topology has no such node.
    #[inline]
    pub fn node(&self, index: NodeIndex) -> Option<&Node> {
        self.nodes.get(index.index())
    }

    /// The port at an endpoint; `None` if the node or the port does not exist.
    #[inline]
    pub fn port(&self, end: Endpoint) -> Option<&Port> {
        self.node(end.node)?.port(end.port)
    }

    /// The port at the other end of a cable; `None` if the port has no cable or does not exist.
    #[inline]
    pub fn peer(&self, end: Endpoint) -> Option<Endpoint> {
        self.port(end)?.peer
    }

    /// Looks a node up by its id.
    pub fn by_id(&self, id: &str) -> Option<NodeIndex> {
        self.by_id.get(id).copied()
    }

    /// Looks a node up by its node GUID.
    pub fn by_guid(&self, guid: Guid) -> Option<NodeIndex> {
        self.by_guid.get(&guid).copied()
    }

    /// Looks an end port up by its port GUID; for a switch that is port 0. If several ports without a cable share the
    /// GUID, the first is returned.
    pub fn by_port_guid(&self, guid: Guid) -> Option<Endpoint> {
        self.by_port_guid.get(&guid).copied()
    }

    /// The first node with this description. Descriptions need not be unique. Linear search.
    pub fn by_description(&self, description: &str) -> Option<NodeIndex> {
        self.nodes().find(|(_, node)| node.description == description).map(|(index, _)| index)
    }

    /// Every link once, in the order of their `a` ends.
    pub fn links(&self) -> impl Iterator<Item = Link> {
        self.nodes().flat_map(move |(index, node)| {
            node.ports().filter_map(move |(number, port)| {
                let (a, b) = (Endpoint::new(index, number), port.peer?);
                (a < b).then(|| Link { a, b, rate: port.rate.or_else(|| self.port(b)?.rate) })
            })
        })
    }
}

/// Panics if the topology has no node at the index.
impl Index<NodeIndex> for Topology {
    type Output = Node;

    #[inline]
    fn index(&self, index: NodeIndex) -> &Node {
        &self.nodes[index.index()]
    }
}
