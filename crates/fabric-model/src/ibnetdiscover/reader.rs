//! Reads a file in two passes: first all records, then the cables between them.

use std::borrow::Cow;
use std::collections::HashMap;

use ib_wire::{Guid, LinkSpeed, LinkWidth, NodeKind, PortNum};

use super::cursor::Cursor;
use super::error::{ParseError, ParseErrorKind};
use super::lines::{GuidBase, Line, NodeLine, PortLine};
use crate::builder::{NewNode, TopologyBuilder};
use crate::topology::{Endpoint, NodeIndex, Port, Topology};

/// Parses the bytes of a file. Invalid UTF-8 is replaced by U+FFFD. See [`parse`].
pub fn read(bytes: &[u8]) -> Result<Topology, ParseError> {
    parse(&String::from_utf8_lossy(bytes))
}

/// Parses a topology.
///
/// # Errors
///
/// The first error with its line and column. Time and memory are bounded by the size of the text and the limits of
/// [`Topology`], whatever the text is.
pub fn parse(text: &str) -> Result<Topology, ParseError> {
    let mut reader = Reader::default();
    for (line, number) in text.lines().zip(1..) {
        reader.line(Line::read(number, line)?)?;
    }
    reader.connect()?;
    reader.builder.finish().map_err(|(end, error)| reader.position_of(end).error(error))
}

/// State of the reader.
#[derive(Debug, Default)]
struct Reader<'a> {
    builder: TopologyBuilder,
    /// Position of each node's name.
    nodes: Vec<Cursor<'a>>,
    /// The node of the current record.
    open: Option<NodeIndex>,
    defaults: Defaults<'a>,
    guids: Guids,
    ports: Vec<PortEntry<'a>>,
    /// For each node, the index into `ports` of each port that was listed, from port 1.
    listed: Vec<Vec<Option<usize>>>,
    /// Index into `ports` of each alias; the key starts with the module.
    aliases: HashMap<String, usize>,
}

/// Attributes that apply to the nodes that follow.
#[derive(Debug)]
struct Defaults<'a> {
    module: &'a str,
    vendor_id: u32,
    device_id: u16,
    width: u8,
    speed: u8,
    /// For the next node only: the tools omit the line if a node has none.
    system_guid: Option<Guid>,
    /// For the next switch only.
    port_guid: Option<Guid>,
}

impl Default for Defaults<'_> {
    fn default() -> Self {
        Self {
            module: "",
            vendor_id: 0,
            device_id: 0,
            width: Port::DEFAULT_WIDTH.0,
            speed: Port::DEFAULT_SPEED.0,
            system_guid: None,
            port_guid: None,
        }
    }
}

/// A port line with its port and module.
#[derive(Debug)]
struct PortEntry<'a> {
    here: Endpoint,
    module: &'a str,
    line: PortLine<'a>,
}

impl<'a> Reader<'a> {
    fn line(&mut self, line: Line<'a>) -> Result<(), ParseError> {
        match line {
            Line::Port(port) => return self.port(port),
            Line::Comment => return Ok(()),
            Line::Node(node) => return self.node(node),
            Line::NodeGuid { kind, base, port_guid } => {
                self.guids.set(kind, base);
                self.defaults.port_guid = port_guid;
            }
            Line::SystemGuid(guid) => self.defaults.system_guid = guid,
            Line::VendorId(id) => self.defaults.vendor_id = id,
            Line::DeviceId(id) => self.defaults.device_id = id,
            Line::Width(mask) => self.defaults.width = mask,
            Line::Speed(mask) => self.defaults.speed = mask,
            Line::Module(name) => self.defaults.module = name,
            Line::Other => {}
        }
        self.open = None;
        Ok(())
    }

    fn node(&mut self, line: NodeLine<'a>) -> Result<(), ParseError> {
        let at = line.at;
        let guid = self.guids.take(line.kind, line.port_count);
        let guid =
            guid.ok_or_else(|| at.expected("a GUID before the node, since the automatic GUIDs overflowed"))?;
        let id = qualified(self.defaults.module, '#', line.name).into_owned();
        let new = NewNode {
            system_guid: self.defaults.system_guid.take(),
            // As in ibsim: vendid applies to one node, devid to all that follow.
            vendor_id: Some(std::mem::take(&mut self.defaults.vendor_id)),
            device_id: Some(self.defaults.device_id),
            description: line.comment.description.to_owned(),
            port_0: line.comment.port_0,
            ..NewNode::new(line.kind, id, guid, line.port_count)
        };
        let index = self.builder.add_node(new).map_err(|error| at.error(error))?;
        self.nodes.push(at);
        self.listed.push(vec![None; line.port_count.into()]);
        self.open = Some(index);
        self.set_node_attributes(index, &line).map_err(|error| at.error(error))
    }

    /// Sets LID, port GUID and masks of a new node.
    fn set_node_attributes(
        &mut self,
        index: NodeIndex,
        line: &NodeLine<'_>,
    ) -> Result<(), crate::BuildError> {
        let port_guid = self.defaults.port_guid.take();
        if line.kind == NodeKind::Switch {
            let management = Endpoint::new(index, PortNum::MANAGEMENT);
            self.builder.set_lid(management, line.comment.lid, line.comment.lmc)?;
            if let Some(guid) = port_guid {
                self.builder.set_port_guid(management, guid)?;
            }
        }
        let (width, speed) = (LinkWidth(self.defaults.width), LinkSpeed(self.defaults.speed));
        if (width, speed) != (Port::DEFAULT_WIDTH, Port::DEFAULT_SPEED) {
            let first = u8::from(line.kind != NodeKind::Switch);
            for port in (first..=line.port_count).filter_map(PortNum::new) {
                self.builder.set_enabled(Endpoint::new(index, port), width, speed)?;
            }
        }
        Ok(())
    }

    fn port(&mut self, line: PortLine<'a>) -> Result<(), ParseError> {
        let at = line.at;
        let node = self.open.ok_or_else(|| at.error(ParseErrorKind::PortOutsideNode))?;
        let count = self.builder.node(node).map_or(0, |node| node.port_count());
        let port =
            u8::try_from(line.port).ok().filter(|port| (1..=count).contains(port)).and_then(PortNum::new);
        let port = port.ok_or_else(|| at.expected(&format!("a port number 1..={count}")))?;
        let here = Endpoint::new(node, port);
        self.set_port_attributes(here, &line).map_err(|error| at.error(error))?;
        self.list(PortEntry { here, module: self.defaults.module, line })
    }

    /// Sets what a port line says about its own end.
    fn set_port_attributes(&mut self, here: Endpoint, line: &PortLine<'_>) -> Result<(), crate::BuildError> {
        if !self.builder.node(here.node).is_some_and(|node| node.is_switch()) {
            self.builder.set_lid(here, line.comment.lid, line.comment.lmc)?;
            if let Some(guid) = line.port_guid {
                self.builder.set_port_guid(here, guid)?;
            }
        }
        if line.width.is_some() || line.speed.is_some() {
            let width = LinkWidth(line.width.unwrap_or(self.defaults.width));
            let speed = LinkSpeed(line.speed.unwrap_or(self.defaults.speed));
            self.builder.set_enabled(here, width, speed)?;
        }
        self.builder.set_rate(here, line.comment.rate)
    }

    fn list(&mut self, entry: PortEntry<'a>) -> Result<(), ParseError> {
        let index = self.ports.len();
        if let Some(first) = self.entry_of(entry.here) {
            let kind =
                ParseErrorKind::DuplicatePort { port: entry.here.port, first_line: first.line.at.line };
            return Err(entry.line.at.error(kind));
        }
        self.listed[entry.here.node.index()][entry.here.port.index() - 1] = Some(index);
        if entry.line.is_alias {
            self.define_alias(&entry, index)?;
        }
        self.ports.push(entry);
        Ok(())
    }

    fn define_alias(&mut self, entry: &PortEntry<'a>, index: usize) -> Result<(), ParseError> {
        let name = entry.line.name;
        if name.is_empty() || name.contains(['#', '@']) {
            return Err(entry.line.name_at.ahead(1).expected("an alias without # and @"));
        }
        let alias = format!("{}@{name}", entry.module);
        if let Some(first) = self.aliases.insert(alias.clone(), index) {
            let kind = ParseErrorKind::DuplicateAlias { alias, first_line: self.ports[first].line.at.line };
            return Err(entry.line.name_at.error(kind));
        }
        Ok(())
    }

    /// Second pass: connects the ports, now that all nodes are known.
    fn connect(&mut self) -> Result<(), ParseError> {
        let ends = self.ports.iter().map(|entry| self.other_end(entry)).collect::<Result<Vec<_>, _>>()?;
        for (index, there) in ends.iter().enumerate() {
            let Some(there) = *there else { continue };
            let entry = &self.ports[index];
            self.check_agreement(entry, there, &ends)?;
            let (here, at, guid) = (entry.here, entry.line.name_at, entry.line.peer_guid);
            self.set_peer_guid(there, guid).map_err(|error| at.error(error))?;
            let peer = self.builder.node(here.node).and_then(|node| node.port(here.port)?.peer);
            if peer != Some(there) {
                self.builder.connect(here, there, None).map_err(|error| at.error(error))?;
            }
        }
        Ok(())
    }

    /// The line of a port, if it was listed.
    fn entry_of(&self, end: Endpoint) -> Option<&PortEntry<'a>> {
        self.entry_index(end).map(|index| &self.ports[index])
    }

    fn entry_index(&self, end: Endpoint) -> Option<usize> {
        *self.listed[end.node.index()].get(end.port.index().checked_sub(1)?)?
    }

    /// The port that a line names as its other end; `None` for the definition of an alias.
    fn other_end(&self, entry: &PortEntry<'_>) -> Result<Option<Endpoint>, ParseError> {
        let (name, at) = (entry.line.name, entry.line.name_at);
        if entry.line.is_alias {
            return Ok(None);
        }
        if name.contains('@') {
            let alias =
                if name.starts_with('@') { format!("{}{name}", entry.module) } else { name.to_owned() };
            let index = self.aliases.get(&alias);
            let index = index.ok_or_else(|| at.error(ParseErrorKind::UnknownAlias { alias }))?;
            return Ok(Some(self.ports[*index].here));
        }
        let id = match name.strip_prefix('#') {
            Some(outside) => Cow::Borrowed(outside),
            None if name.contains('#') => Cow::Borrowed(name),
            None => qualified(entry.module, '#', name),
        };
        let node = self.builder.by_id(&id);
        let node = node.ok_or_else(|| at.error(ParseErrorKind::UnknownNode { name: id.into_owned() }))?;
        Ok(Some(Endpoint::new(node, entry.line.peer_port)))
    }

    /// Checks that both ends list the link, or that one refers to the alias of the other.
    fn check_agreement(
        &self,
        entry: &PortEntry<'_>,
        there: Endpoint,
        ends: &[Option<Endpoint>],
    ) -> Result<(), ParseError> {
        let index = self.entry_index(there);
        let instead = match index.map(|index| (ends[index], self.ports[index].line.at.line)) {
            None => "not listed".to_owned(),
            Some((None, _)) if entry.line.name.contains('@') => return Ok(()),
            Some((None, line)) => format!("an alias in line {line}"),
            Some((Some(end), _)) if end == entry.here => return Ok(()),
            Some((Some(end), line)) => format!("connected to {} in line {line}", self.builder.name(end)),
        };
        let (here, there) = (self.builder.name(entry.here), self.builder.name(there));
        Err(entry.line.name_at.error(ParseErrorKind::OneSided { here, there, instead }))
    }

    /// Sets the port GUID that a line gives for its other end, unless the line of that end gives one.
    fn set_peer_guid(&mut self, there: Endpoint, guid: Option<Guid>) -> Result<(), crate::BuildError> {
        let own = self.entry_of(there).and_then(|entry| entry.line.port_guid);
        let switch = self.builder.node(there.node).is_some_and(|node| node.is_switch());
        match guid {
            Some(guid) if own.is_none() && !switch => self.builder.set_port_guid(there, guid),
            _ => Ok(()),
        }
    }

    /// The position to report for a port: that of its own line, or else that of its node.
    fn position_of(&self, end: Endpoint) -> Cursor<'a> {
        self.entry_of(end).map_or(self.nodes[end.node.index()], |entry| entry.line.at)
    }
}

/// `module#name`, or the name alone outside of modules.
fn qualified<'n>(module: &str, separator: char, name: &'n str) -> Cow<'n, str> {
    if module.is_empty() { Cow::Borrowed(name) } else { Cow::Owned(format!("{module}{separator}{name}")) }
}

/// Automatic GUIDs by kind of node, for nodes without one.
#[derive(Debug)]
struct Guids {
    adapters: Counter,
    switches: Counter,
    routers: Counter,
}

#[derive(Debug)]
struct Counter {
    base: u64,
    next: u64,
}

impl Default for Guids {
    fn default() -> Self {
        let from = |base| Counter { base, next: base };
        Self { adapters: from(0x10_0000), switches: from(0x20_0000), routers: from(0x30_0000) }
    }
}

impl Guids {
    fn set(&mut self, kind: NodeKind, base: GuidBase) {
        let counter = self.counter(kind);
        match base {
            GuidBase::At(guid) => *counter = Counter { base: guid, next: guid },
            GuidBase::Plus(distance) => counter.next = counter.base.wrapping_add(distance),
        }
    }

    /// Takes the GUID of the next node; `None` if the counter has wrapped around to 0. A switch uses one GUID, other nodes
    /// one more than they have ports.
    fn take(&mut self, kind: NodeKind, ports: u8) -> Option<Guid> {
        let step = if kind == NodeKind::Switch { 1 } else { u64::from(ports) + 1 };
        let counter = self.counter(kind);
        let guid = Guid::from_wire(counter.next);
        counter.next = counter.next.wrapping_add(step);
        guid
    }

    fn counter(&mut self, kind: NodeKind) -> &mut Counter {
        match kind {
            NodeKind::Switch => &mut self.switches,
            NodeKind::Router => &mut self.routers,
            NodeKind::Adapter | NodeKind::Unknown(_) => &mut self.adapters,
        }
    }
}
