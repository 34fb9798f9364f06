//! [`TopologyBuilder`] is the only way to construct a [`Topology`]. It checks every node and cable when it is added.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ib_wire::{Guid, Lid, LinkSpeed, LinkWidth, Lmc, NodeKind, PortNum};
use thiserror::Error;

use crate::link_rate::LinkRate;
use crate::topology::{
    DESCRIPTION_BYTES_MAX, Endpoint, MODULE_BYTES_MAX, NODE_ID_BYTES_MAX, NODE_PORTS_MAX, NODES_MAX, Node,
    NodeIndex, PORTS_MAX, Port, PortZero, Topology,
};

/// Why a node, a cable or a port property was rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BuildError {
    #[error("a topology has at most {NODES_MAX} nodes")]
    TooManyNodes,
    #[error("the nodes of a topology have at most {PORTS_MAX} ports together")]
    TooManyPorts,
    #[error("node {id:?} has the unknown kind {code}; it must be a switch, an adapter or a router")]
    UnknownKind {
        id: String,
        /// The value of NodeInfo:NodeType.
        code: u8,
    },
    /// The text format cannot represent the id.
    #[error(
        "invalid node id {id:?}: it must have 1 to {NODE_ID_BYTES_MAX} bytes without quotes, @ and control characters; \
         one # may separate a module name of at most {MODULE_BYTES_MAX} bytes"
    )]
    BadId { id: String },
    #[error("duplicate node id {id:?}")]
    DuplicateId { id: String },
    #[error("nodes {first:?} and {second:?} have the same GUID {guid}")]
    DuplicateGuid { guid: Guid, first: String, second: String },
    /// Two cabled ports have the same GUID. `first` and `second` are written as `"id"[port]`.
    #[error("ports {first} and {second} have the same GUID {guid}")]
    DuplicatePortGuid { guid: Guid, first: String, second: String },
    /// Node GUID plus port number does not fit in 64 bits.
    #[error("node {id:?} has GUID {guid}, which leaves no GUIDs for its {ports} ports")]
    PortGuidOverflow { id: String, guid: Guid, ports: u8 },
    #[error("node {id:?} must have between 1 and {NODE_PORTS_MAX} ports, got {ports}")]
    PortCount { id: String, ports: u8 },
    /// The index belongs to another topology.
    #[error("there is no node with index {}", .0.index())]
    NoSuchNode(NodeIndex),
    /// The node does not have this port, or port 0 was named as the end of a cable.
    #[error("port {port} of node {id:?} cannot be used here; its ports are 1..={ports}")]
    NoSuchPort {
        id: String,
        port: PortNum,
        /// Number of external ports of the node.
        ports: u8,
    },
    /// `port` and `peer` are written as `"id"[port]`.
    #[error("port {port} is already connected to {peer}")]
    PortTaken { port: String, peer: String },
    #[error("port {0} is connected to itself")]
    SelfLink(String),
    #[error("port {0} is not connected")]
    NotConnected(String),
    /// A LID was given to an external port of a switch.
    #[error("port {0} of a switch cannot have a LID; only port 0 of a switch has one")]
    NoLid(String),
    /// A mask of enabled widths or speeds is 0 or has undefined bits.
    #[error(
        "port {port}: enabled widths must be in 0x1..=0x1f, got {width:#x}; enabled speeds in 0x1..=0x7, got {speed:#x}"
    )]
    BadMask { port: String, width: u8, speed: u8 },
    /// The ends of a link have no width or no speed in common: the link could not train.
    #[error("ports {a} and {b} are connected but have no {what} enabled in common")]
    NothingInCommon {
        a: String,
        b: String,
        /// `width` or `speed`.
        what: &'static str,
    },
}

/// A node to add. [`NewNode::new`] takes the mandatory fields and sets the others to unknown.
#[derive(Clone, Debug)]
pub struct NewNode {
    /// Unique in the topology.
    pub id: String,
    pub kind: NodeKind,
    /// Node GUID, unique among nodes.
    pub guid: Guid,
    /// Number of external ports: a switch's port 0 is not counted. Between 1 and [`NODE_PORTS_MAX`].
    pub port_count: u8,
    /// NodeInfo:SystemImageGUID, the same for all nodes of a chassis.
    pub system_guid: Option<Guid>,
    /// 0 counts as unknown.
    pub vendor_id: Option<u32>,
    /// 0 counts as unknown.
    pub device_id: Option<u16>,
    /// NodeDescription. Double quotes become single quotes, control characters become blanks, and it is cut at
    /// [`DESCRIPTION_BYTES_MAX`] bytes. If it is empty, the node gets its id as description.
    pub description: String,
    /// Ignored unless the node is a switch.
    pub port_0: PortZero,
}

impl NewNode {
    /// A node with its mandatory fields; everything else is unknown.
    pub fn new(kind: NodeKind, id: impl Into<String>, guid: Guid, port_count: u8) -> Self {
        Self {
            id: id.into(),
            kind,
            guid,
            port_count,
            system_guid: None,
            vendor_id: None,
            device_id: None,
            description: String::new(),
            port_0: PortZero::Unknown,
        }
    }
}

/// Builds a [`Topology`].
///
/// Add nodes first, then [`connect`](Self::connect) their ports and set port properties in any order, then call
/// [`build`](Self::build). A call that returns an error leaves the builder unchanged.
#[derive(Clone, Debug, Default)]
pub struct TopologyBuilder {
    nodes: Vec<Node>,
    ports: usize,
    by_id: HashMap<String, NodeIndex>,
    by_guid: HashMap<Guid, NodeIndex>,
}

impl TopologyBuilder {
    /// A builder without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node with all its ports, none of them cabled. Indices are handed out in order, from 0.
    pub fn add_node(&mut self, new: NewNode) -> Result<NodeIndex, BuildError> {
        self.check_new(&new)?;
        let ports = new_ports(&new)?;
        let index = NodeIndex::from_usize(self.nodes.len());
        self.ports += ports.len();
        self.by_id.insert(new.id.clone(), index);
        self.by_guid.insert(new.guid, index);
        let description = printable(&new.description);
        self.nodes.push(Node {
            kind: new.kind,
            guid: new.guid,
            system_guid: new.system_guid,
            vendor_id: new.vendor_id.filter(|id| *id != 0),
            device_id: new.device_id.filter(|id| *id != 0),
            description: if description.is_empty() { new.id.clone() } else { description },
            port_0: if new.kind == NodeKind::Switch { new.port_0 } else { PortZero::Unknown },
            id: new.id,
            ports,
        });
        Ok(index)
    }

    /// Looks a node up by its id.
    pub fn by_id(&self, id: &str) -> Option<NodeIndex> {
        self.by_id.get(id).copied()
    }

    /// The node at an index; `None` if this builder has not handed the index out.
    pub fn node(&self, index: NodeIndex) -> Option<&Node> {
        self.nodes.get(index.index())
    }

    /// Connects two free external ports. A `rate` of `None` keeps the rates that were set at the ends before.
    pub fn connect(&mut self, a: Endpoint, b: Endpoint, rate: Option<LinkRate>) -> Result<(), BuildError> {
        self.check_free(a)?;
        self.check_free(b)?;
        if a == b {
            return Err(BuildError::SelfLink(self.name(a)));
        }
        for (end, peer) in [(a, b), (b, a)] {
            let port = self.port_mut(end)?;
            port.peer = Some(peer);
            port.rate = rate.or(port.rate);
        }
        Ok(())
    }

    /// Removes the cable of a port, with the rates of both ends, and returns the other end.
    pub fn disconnect(&mut self, end: Endpoint) -> Result<Endpoint, BuildError> {
        let peer = self.port_mut(end)?.peer.ok_or_else(|| BuildError::NotConnected(self.name(end)))?;
        for end in [end, peer] {
            let port = self.port_mut(end)?;
            port.peer = None;
            port.rate = None;
        }
        Ok(peer)
    }

    /// Replaces the port GUID that was derived from the node GUID. On a switch it becomes the GUID of all ports.
    pub fn set_port_guid(&mut self, end: Endpoint, guid: Guid) -> Result<(), BuildError> {
        self.port_mut(end)?.guid = guid;
        let node = &mut self.nodes[end.node.index()];
        if node.is_switch() {
            node.ports.iter_mut().for_each(|port| port.guid = guid);
        }
        Ok(())
    }

    /// Sets LID and LMC of an end port: port 0 of a switch, or any port of another node.
    pub fn set_lid(&mut self, end: Endpoint, lid: Option<Lid>, lmc: Lmc) -> Result<(), BuildError> {
        let switch = self.node(end.node).is_some_and(Node::is_switch);
        if switch && end.port != PortNum::MANAGEMENT {
            return Err(BuildError::NoLid(self.name(end)));
        }
        let port = self.port_mut(end)?;
        (port.lid, port.lmc) = (lid, lmc);
        Ok(())
    }

    /// Sets the masks of enabled widths (1..=0x1f) and speeds (1..=7) of a port.
    pub fn set_enabled(
        &mut self,
        end: Endpoint,
        width: LinkWidth,
        speed: LinkSpeed,
    ) -> Result<(), BuildError> {
        if !(1..=0x1f).contains(&width.0) || !(1..=7).contains(&speed.0) {
            return Err(BuildError::BadMask { port: self.name(end), width: width.0, speed: speed.0 });
        }
        let port = self.port_mut(end)?;
        (port.enabled_width, port.enabled_speed) = (width, speed);
        Ok(())
    }

    /// Sets the active rate of a port's link, at this end only.
    pub fn set_rate(&mut self, end: Endpoint, rate: Option<LinkRate>) -> Result<(), BuildError> {
        self.port_mut(end)?.rate = rate;
        Ok(())
    }

    /// Finishes the topology.
    ///
    /// # Errors
    ///
    /// [`BuildError::DuplicatePortGuid`] if two cabled ports share a GUID, [`BuildError::NothingInCommon`] if the ends of
    /// a link have no enabled width or speed in common.
    pub fn build(mut self) -> Result<Topology, BuildError> {
        self.finish().map_err(|(_, error)| error)
    }

    /// Does what [`build`](Self::build) does and reports the offending port with the error. Empties the builder on
    /// success; leaves it unchanged on failure.
    pub(crate) fn finish(&mut self) -> Result<Topology, (Endpoint, BuildError)> {
        let by_port_guid = self.index_port_guids()?;
        self.check_links()?;
        let Self { nodes, by_id, by_guid, .. } = std::mem::take(self);
        Ok(Topology { nodes, by_id, by_guid, by_port_guid })
    }

    fn check_new(&self, new: &NewNode) -> Result<(), BuildError> {
        let id = || new.id.clone();
        if self.nodes.len() >= NODES_MAX {
            return Err(BuildError::TooManyNodes);
        }
        if self.ports + usize::from(new.port_count) + 1 > PORTS_MAX {
            return Err(BuildError::TooManyPorts);
        }
        if let NodeKind::Unknown(code) = new.kind {
            return Err(BuildError::UnknownKind { id: id(), code });
        }
        if !is_node_id(&new.id) {
            return Err(BuildError::BadId { id: id() });
        }
        if self.by_id.contains_key(&new.id) {
            return Err(BuildError::DuplicateId { id: id() });
        }
        if let Some(first) = self.by_guid.get(&new.guid) {
            let first = self.nodes[first.index()].id.clone();
            return Err(BuildError::DuplicateGuid { guid: new.guid, first, second: id() });
        }
        Ok(())
    }

    fn check_free(&self, end: Endpoint) -> Result<(), BuildError> {
        let node = self.node(end.node).ok_or(BuildError::NoSuchNode(end.node))?;
        if end.port == PortNum::MANAGEMENT {
            return Err(no_such_port(node, end.port));
        }
        match node.port(end.port).ok_or_else(|| no_such_port(node, end.port))?.peer {
            None => Ok(()),
            Some(peer) => Err(BuildError::PortTaken { port: self.name(end), peer: self.name(peer) }),
        }
    }

    /// Indexes ports by GUID and checks that GUIDs of cabled ports are unique. Ports without a cable may share a GUID:
    /// files do not contain theirs, and the derived one (node GUID plus port number) can collide with adapters whose port
    /// GUID is their node GUID.
    fn index_port_guids(&self) -> Result<HashMap<Guid, Endpoint>, (Endpoint, BuildError)> {
        let mut index = HashMap::with_capacity(self.nodes.len());
        for end in self.guid_holders(true) {
            let guid = self.port(end).guid;
            if let Some(first) = index.insert(guid, end) {
                let (first, second) = (self.name(first), self.name(end));
                return Err((end, BuildError::DuplicatePortGuid { guid, first, second }));
            }
        }
        for end in self.guid_holders(false) {
            if let Entry::Vacant(free) = index.entry(self.port(end).guid) {
                free.insert(end);
            }
        }
        Ok(index)
    }

    /// The ports that have a GUID of their own: port 0 of switches, which counts as cabled, and every port of other
    /// nodes.
    fn guid_holders(&self, cabled: bool) -> impl Iterator<Item = Endpoint> {
        self.nodes.iter().enumerate().flat_map(move |(index, node)| {
            let node_index = NodeIndex::from_usize(index);
            let holders = if node.is_switch() { 1 } else { node.ports.len() };
            let wanted = move |port: &Port| (node.is_switch() || port.peer.is_some()) == cabled;
            let ports = node.ports().take(holders).filter(move |(_, port)| wanted(port));
            ports.map(move |(number, _)| Endpoint::new(node_index, number))
        })
    }

    fn check_links(&self) -> Result<(), (Endpoint, BuildError)> {
        for (index, node) in self.nodes.iter().enumerate() {
            for (number, peer) in node.cabled_ports() {
                let end = Endpoint::new(NodeIndex::from_usize(index), number);
                let (here, there) = (self.port(end), self.port(peer));
                let width = here.enabled_width.0 & there.enabled_width.0;
                let speed = here.enabled_speed.0 & there.enabled_speed.0;
                if width == 0 || speed == 0 {
                    let what = if width == 0 { "width" } else { "speed" };
                    let (a, b) = (self.name(end), self.name(peer));
                    return Err((end, BuildError::NothingInCommon { a, b, what }));
                }
            }
        }
        Ok(())
    }

    /// Panics if the port does not exist.
    fn port(&self, end: Endpoint) -> &Port {
        let node = &self.nodes[end.node.index()];
        node.port(end.port).expect("peers and listed ports exist")
    }

    fn port_mut(&mut self, end: Endpoint) -> Result<&mut Port, BuildError> {
        let node = self.nodes.get_mut(end.node.index()).ok_or(BuildError::NoSuchNode(end.node))?;
        match node.port_position(end.port).filter(|position| *position < node.ports.len()) {
            Some(position) => Ok(&mut node.ports[position]),
            None => Err(no_such_port(node, end.port)),
        }
    }

    /// A port as messages write it: `"sw0"[3]`.
    pub(crate) fn name(&self, end: Endpoint) -> String {
        let id = self.node(end.node).map_or("?", |node| &node.id);
        format!("{id:?}[{}]", end.port)
    }
}

/// Reopens a topology for changes. Nodes keep their indices.
impl From<Topology> for TopologyBuilder {
    fn from(topology: Topology) -> Self {
        let ports = topology.nodes.iter().map(|node| node.ports.len()).sum();
        Self { nodes: topology.nodes, ports, by_id: topology.by_id, by_guid: topology.by_guid }
    }
}

fn no_such_port(node: &Node, port: PortNum) -> BuildError {
    BuildError::NoSuchPort { id: node.id.clone(), port, ports: node.port_count() }
}

fn new_ports(new: &NewNode) -> Result<Vec<Port>, BuildError> {
    if !(1..=NODE_PORTS_MAX).contains(&new.port_count) {
        return Err(BuildError::PortCount { id: new.id.clone(), ports: new.port_count });
    }
    if new.kind == NodeKind::Switch {
        return Ok(vec![Port::new(new.guid); usize::from(new.port_count) + 1]);
    }
    let guid = |number: u8| new.guid.to_wire().checked_add(number.into()).and_then(Guid::from_wire);
    (1..=new.port_count).map(|number| guid(number).map(Port::new)).collect::<Option<_>>().ok_or_else(|| {
        BuildError::PortGuidOverflow { id: new.id.clone(), guid: new.guid, ports: new.port_count }
    })
}

fn is_node_id(id: &str) -> bool {
    let printable = !id.chars().any(|c| c.is_control() || c == '"' || c == '@');
    let in_module = |(module, name): (&str, &str)| {
        (1..=MODULE_BYTES_MAX).contains(&module.len()) && !name.is_empty() && !name.contains('#')
    };
    (1..=NODE_ID_BYTES_MAX).contains(&id.len()) && printable && id.split_once('#').is_none_or(in_module)
}

/// A description that the text format can represent: no control characters, no double quotes, at most 64 bytes.
fn printable(text: &str) -> String {
    let mut clean = String::with_capacity(text.len().min(DESCRIPTION_BYTES_MAX));
    for c in text.chars() {
        let c = match c {
            '"' => '\'',
            c if c.is_control() => ' ',
            c => c,
        };
        if clean.len() + c.len_utf8() > DESCRIPTION_BYTES_MAX {
            break;
        }
        clean.push(c);
    }
    clean
}

#[cfg(test)]
mod tests;
