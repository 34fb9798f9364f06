//! The only door to a [`Topology`]: nodes and cables one by one, each checked when it is named.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ib_wire::{Guid, Lid, LinkSpeed, LinkWidth, Lmc, NodeKind, PortNum};
use thiserror::Error;

use crate::link_rate::LinkRate;
use crate::topology::{
    DESCRIPTION_BYTES_MAX, Endpoint, MODULE_BYTES_MAX, NODE_ID_BYTES_MAX, NODE_PORTS_MAX, NODES_MAX, Node,
    NodeIndex, PORTS_MAX, Port, PortZero, Topology,
};

/// What cannot be part of a topology, and why.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BuildError {
    /// The topology is full.
    #[error("more than {NODES_MAX} nodes")]
    TooManyNodes,
    /// The topology is full.
    #[error("more than {PORTS_MAX} ports in all")]
    TooManyPorts,
    /// No kind of node that could be cabled.
    #[error("node {id:?} is neither switch, adapter nor router but kind {code}")]
    UnknownKind {
        /// The node.
        id: String,
        /// Its kind as it stands on the wire.
        code: u8,
    },
    /// An id that the text format could not carry.
    #[error(
        "{id:?} is no node id: 1 to {NODE_ID_BYTES_MAX} bytes without quotes, @ and control characters; one # may \
         separate a module name of at most {MODULE_BYTES_MAX} bytes"
    )]
    BadId {
        /// The id.
        id: String,
    },
    /// The id is another node's.
    #[error("there are two nodes {id:?}")]
    DuplicateId {
        /// The id.
        id: String,
    },
    /// The GUID is another node's.
    #[error("nodes {first:?} and {second:?} have the same GUID {guid}")]
    DuplicateGuid {
        /// The GUID.
        guid: Guid,
        /// The node that has it.
        first: String,
        /// The node that wants it.
        second: String,
    },
    /// Two cabled ports with one GUID.
    #[error("ports {first} and {second} have the same GUID {guid}")]
    DuplicatePortGuid {
        /// The GUID.
        guid: Guid,
        /// The port that has it, as `"id"[port]`.
        first: String,
        /// The port that wants it.
        second: String,
    },
    /// Node GUID plus port number does not fit in 64 bits.
    #[error("node {id:?} has GUID {guid}, which leaves no numbers for its {ports} ports")]
    PortGuidOverflow {
        /// The node.
        id: String,
        /// Its GUID.
        guid: Guid,
        /// How many ports it has.
        ports: u8,
    },
    /// A node without ports, or with too many.
    #[error("node {id:?} has {ports} ports; 1..={NODE_PORTS_MAX} is possible")]
    PortCount {
        /// The node.
        id: String,
        /// How many ports it was to have.
        ports: u8,
    },
    /// An index of another topology.
    #[error("there is no node at place {}", .0.index())]
    NoSuchNode(NodeIndex),
    /// A port number the node does not have, or port 0 where a cable was meant.
    #[error("node {id:?} has no port {port} to use here; its ports are 1..={ports}")]
    NoSuchPort {
        /// The node.
        id: String,
        /// The port asked for.
        port: PortNum,
        /// How many ports it has.
        ports: u8,
    },
    /// A port that is already cabled.
    #[error("port {port} is already connected to {peer}")]
    PortTaken {
        /// The port, as `"id"[port]`.
        port: String,
        /// What it is connected to.
        peer: String,
    },
    /// A cable from a port to itself.
    #[error("port {0} is connected to itself")]
    SelfLink(String),
    /// A port without a cable where one was to be taken out.
    #[error("port {0} is not connected")]
    NotConnected(String),
    /// A LID for a port that has none: only port 0 of a switch has.
    #[error("port {0} of a switch has no LID of its own; its port 0 has")]
    NoLid(String),
    /// No width or no speed in the mask, or unknown ones.
    #[error("port {port}: enabled width {width:#x} and speed {speed:#x} must be in 0x1..=0x1f and 0x1..=0x7")]
    BadMask {
        /// The port.
        port: String,
        /// The widths.
        width: u8,
        /// The speeds.
        speed: u8,
    },
    /// The ends of a link have no width or no speed in common, so it would never come up.
    #[error("ports {a} and {b} are connected but have no {what} enabled in common")]
    NothingInCommon {
        /// One end.
        a: String,
        /// The other.
        b: String,
        /// `width` or `speed`.
        what: &'static str,
    },
}

/// A node to add. [`NewNode::new`] names what it must have; the other fields may be set.
#[derive(Clone, Debug)]
pub struct NewNode {
    /// Its id, unique in the topology.
    pub id: String,
    /// What it is.
    pub kind: NodeKind,
    /// Its GUID, unique among nodes.
    pub guid: Guid,
    /// Ports, a switch's port 0 not counted.
    pub port_count: u8,
    /// The box it sits in.
    pub system_guid: Option<Guid>,
    /// Its maker; 0 counts as unknown.
    pub vendor_id: Option<u32>,
    /// Its model; 0 counts as unknown.
    pub device_id: Option<u16>,
    /// What people call it. What the text format cannot carry is replaced; if it is empty, the id takes its place.
    pub description: String,
    /// What a switch says about its port 0; forgotten for other nodes.
    pub port_0: PortZero,
}

impl NewNode {
    /// A node of which no more is known.
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

/// A topology in the making.
#[derive(Clone, Debug, Default)]
pub struct TopologyBuilder {
    nodes: Vec<Node>,
    ports: usize,
    by_id: HashMap<String, NodeIndex>,
    by_guid: HashMap<Guid, NodeIndex>,
}

impl TopologyBuilder {
    /// A topology without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node with all its ports, none of them cabled.
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

    /// The node with this id, if it was added.
    pub fn by_id(&self, id: &str) -> Option<NodeIndex> {
        self.by_id.get(id).copied()
    }

    /// The node at an index that this builder handed out.
    pub fn node(&self, index: NodeIndex) -> Option<&Node> {
        self.nodes.get(index.index())
    }

    /// Puts a cable between two free ports. `rate` is noted at both ends.
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

    /// Takes the cable out of a port and returns where its other end was.
    pub fn disconnect(&mut self, end: Endpoint) -> Result<Endpoint, BuildError> {
        let peer = self.port_mut(end)?.peer.ok_or_else(|| BuildError::NotConnected(self.name(end)))?;
        for end in [end, peer] {
            let port = self.port_mut(end)?;
            port.peer = None;
            port.rate = None;
        }
        Ok(peer)
    }

    /// Gives a port a GUID other than the usual one. On a switch it is the GUID of all ports.
    pub fn set_port_guid(&mut self, end: Endpoint, guid: Guid) -> Result<(), BuildError> {
        self.port_mut(end)?.guid = guid;
        let node = &mut self.nodes[end.node.index()];
        if node.is_switch() {
            node.ports.iter_mut().for_each(|port| port.guid = guid);
        }
        Ok(())
    }

    /// Notes the LIDs of an end port: port 0 of a switch, any port of other nodes.
    pub fn set_lid(&mut self, end: Endpoint, lid: Option<Lid>, lmc: Lmc) -> Result<(), BuildError> {
        let switch = self.node(end.node).is_some_and(Node::is_switch);
        if switch && end.port != PortNum::MANAGEMENT {
            return Err(BuildError::NoLid(self.name(end)));
        }
        let port = self.port_mut(end)?;
        (port.lid, port.lmc) = (lid, lmc);
        Ok(())
    }

    /// Notes which widths and speeds a port may train to.
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

    /// Notes what the link of a port runs at.
    pub fn set_rate(&mut self, end: Endpoint, rate: Option<LinkRate>) -> Result<(), BuildError> {
        self.port_mut(end)?.rate = rate;
        Ok(())
    }

    /// The topology, if its links could come up and its cabled ports can be told apart.
    pub fn build(mut self) -> Result<Topology, BuildError> {
        self.finish().map_err(|(_, error)| error)
    }

    /// [`build`](Self::build), with the port to blame; leaves the builder empty only if all is well.
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

    /// GUIDs of cabled ports are unique. A port without a cable may share the GUID it got by rule: files do not print
    /// it, and adapters whose port GUID is their node GUID break the rule.
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

    /// The ports that stand for a GUID: port 0 of switches, which counts as cabled, and every port of other nodes.
    fn guid_holders(&self, cabled: bool) -> impl Iterator<Item = Endpoint> {
        self.nodes.iter().enumerate().flat_map(move |(place, node)| {
            let node_index = NodeIndex::from_usize(place);
            let holders = if node.is_switch() { 1 } else { node.ports.len() };
            let wanted = move |port: &Port| (node.is_switch() || port.peer.is_some()) == cabled;
            let ports = node.ports().take(holders).filter(move |(_, port)| wanted(port));
            ports.map(move |(number, _)| Endpoint::new(node_index, number))
        })
    }

    fn check_links(&self) -> Result<(), (Endpoint, BuildError)> {
        for (place, node) in self.nodes.iter().enumerate() {
            for (number, peer) in node.cabled_ports() {
                let end = Endpoint::new(NodeIndex::from_usize(place), number);
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

    /// A port that is known to exist.
    fn port(&self, end: Endpoint) -> &Port {
        let node = &self.nodes[end.node.index()];
        node.port(end.port).expect("peers and listed ports exist")
    }

    fn port_mut(&mut self, end: Endpoint) -> Result<&mut Port, BuildError> {
        let node = self.nodes.get_mut(end.node.index()).ok_or(BuildError::NoSuchNode(end.node))?;
        match node.place(end.port).filter(|place| *place < node.ports.len()) {
            Some(place) => Ok(&mut node.ports[place]),
            None => Err(no_such_port(node, end.port)),
        }
    }

    /// How messages name a port: `"sw0"[3]`.
    pub(crate) fn name(&self, end: Endpoint) -> String {
        let id = self.node(end.node).map_or("?", |node| &node.id);
        format!("{id:?}[{}]", end.port)
    }
}

/// Opens a topology to change it; the nodes keep their places.
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
    let speakable = !id.chars().any(|c| c.is_control() || c == '"' || c == '@');
    let in_module = |(module, name): (&str, &str)| {
        (1..=MODULE_BYTES_MAX).contains(&module.len()) && !name.is_empty() && !name.contains('#')
    };
    (1..=NODE_ID_BYTES_MAX).contains(&id.len()) && speakable && id.split_once('#').is_none_or(in_module)
}

/// A description as the text format can carry it: no control characters, no double quotes, at most 64 bytes.
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
