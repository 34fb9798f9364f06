//! From text to [`Topology`]: first every record by itself, then the cables between them.

use std::borrow::Cow;
use std::collections::HashMap;

use ib_wire::{Guid, LinkSpeed, LinkWidth, NodeKind, PortNum};

use super::cursor::Cursor;
use super::error::{ParseError, ParseErrorKind};
use super::lines::{GuidBase, Line, NodeLine, PortLine};
use crate::builder::{NewNode, TopologyBuilder};
use crate::topology::{Endpoint, NodeIndex, Port, Topology};

/// Reads a file's bytes; what is not UTF-8 is replaced.
pub fn read(bytes: &[u8]) -> Result<Topology, ParseError> {
    parse(&String::from_utf8_lossy(bytes))
}

/// Reads a text.
pub fn parse(text: &str) -> Result<Topology, ParseError> {
    let mut reader = Reader::default();
    for (line, number) in text.lines().zip(1..) {
        reader.line(Line::read(number, line)?)?;
    }
    reader.connect()?;
    reader.builder.finish().map_err(|(end, error)| reader.place_of(end).error(error))
}

/// What was read so far.
#[derive(Debug, Default)]
struct Reader<'a> {
    builder: TopologyBuilder,
    /// Where each node stands.
    nodes: Vec<Cursor<'a>>,
    /// The node whose port lines may follow.
    open: Option<NodeIndex>,
    defaults: Defaults<'a>,
    guids: Guids,
    ports: Vec<PortEntry<'a>>,
    /// Where in `ports` each port of each node was listed; port 1 comes first.
    listed: Vec<Vec<Option<usize>>>,
    /// Where in `ports` an alias was given; the key has its module in front.
    aliases: HashMap<String, usize>,
}

/// What lines before a node say about it.
#[derive(Debug)]
struct Defaults<'a> {
    module: &'a str,
    vendor_id: u32,
    device_id: u16,
    width: u8,
    speed: u8,
    /// Of the next node only: the tools leave the line out where there is none.
    system_guid: Option<Guid>,
    /// Of the next switch only.
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

/// A port line and what it belongs to.
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
        let guid = guid.ok_or_else(|| at.expected("a GUID before the node: the count has run over"))?;
        let id = qualified(self.defaults.module, '#', line.name).into_owned();
        let new = NewNode {
            system_guid: self.defaults.system_guid.take(),
            // Like ibsim: a vendor is named for one node, a device for all that follow.
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
        self.note_node(index, &line).map_err(|error| at.error(error))
    }

    /// What only some nodes have said.
    fn note_node(&mut self, index: NodeIndex, line: &NodeLine<'_>) -> Result<(), crate::BuildError> {
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
        self.note_port(here, &line).map_err(|error| at.error(error))?;
        self.list(PortEntry { here, module: self.defaults.module, line })
    }

    /// What the line says about its own end.
    fn note_port(&mut self, here: Endpoint, line: &PortLine<'_>) -> Result<(), crate::BuildError> {
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
        let place = self.ports.len();
        if let Some(first) = self.entry_of(entry.here) {
            let kind = ParseErrorKind::PortTwice { port: entry.here.port, first_line: first.line.at.line };
            return Err(entry.line.at.error(kind));
        }
        self.listed[entry.here.node.index()][entry.here.port.index() - 1] = Some(place);
        if entry.line.is_alias {
            self.give_alias(&entry, place)?;
        }
        self.ports.push(entry);
        Ok(())
    }

    fn give_alias(&mut self, entry: &PortEntry<'a>, place: usize) -> Result<(), ParseError> {
        let name = entry.line.name;
        if name.is_empty() || name.contains(['#', '@']) {
            return Err(entry.line.name_at.ahead(1).expected("an alias without # and @"));
        }
        let alias = format!("{}@{name}", entry.module);
        if let Some(first) = self.aliases.insert(alias.clone(), place) {
            let kind = ParseErrorKind::AliasTwice { alias, first_line: self.ports[first].line.at.line };
            return Err(entry.line.name_at.error(kind));
        }
        Ok(())
    }

    /// Puts in the cables, now that every node is known.
    fn connect(&mut self) -> Result<(), ParseError> {
        let ends = self.ports.iter().map(|entry| self.other_end(entry)).collect::<Result<Vec<_>, _>>()?;
        for (place, there) in ends.iter().enumerate() {
            let Some(there) = *there else { continue };
            let entry = &self.ports[place];
            self.check_agreement(entry, there, &ends)?;
            let (here, at, guid) = (entry.here, entry.line.name_at, entry.line.peer_guid);
            self.note_peer_guid(there, guid).map_err(|error| at.error(error))?;
            let peer = self.builder.node(here.node).and_then(|node| node.port(here.port)?.peer);
            if peer != Some(there) {
                self.builder.connect(here, there, None).map_err(|error| at.error(error))?;
            }
        }
        Ok(())
    }

    /// The line that lists a port.
    fn entry_of(&self, end: Endpoint) -> Option<&PortEntry<'a>> {
        self.place_in_ports(end).map(|place| &self.ports[place])
    }

    fn place_in_ports(&self, end: Endpoint) -> Option<usize> {
        *self.listed[end.node.index()].get(end.port.index().checked_sub(1)?)?
    }

    /// The port that a line names as its other end; `None` for aliases, which name no end.
    fn other_end(&self, entry: &PortEntry<'_>) -> Result<Option<Endpoint>, ParseError> {
        let (name, at) = (entry.line.name, entry.line.name_at);
        if entry.line.is_alias {
            return Ok(None);
        }
        if name.contains('@') {
            let alias =
                if name.starts_with('@') { format!("{}{name}", entry.module) } else { name.to_owned() };
            let place = self.aliases.get(&alias);
            let place = place.ok_or_else(|| at.error(ParseErrorKind::UnknownAlias { alias }))?;
            return Ok(Some(self.ports[*place].here));
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

    /// Both ends list the link, or one names the other's alias.
    fn check_agreement(
        &self,
        entry: &PortEntry<'_>,
        there: Endpoint,
        ends: &[Option<Endpoint>],
    ) -> Result<(), ParseError> {
        let place = self.place_in_ports(there);
        let instead = match place.map(|place| (ends[place], self.ports[place].line.at.line)) {
            None => "not listed".to_owned(),
            Some((None, _)) if entry.line.name.contains('@') => return Ok(()),
            Some((None, line)) => format!("an alias in line {line}"),
            Some((Some(end), _)) if end == entry.here => return Ok(()),
            Some((Some(end), line)) => format!("connected to {} in line {line}", self.builder.name(end)),
        };
        let (here, there) = (self.builder.name(entry.here), self.builder.name(there));
        Err(entry.line.name_at.error(ParseErrorKind::OneSided { here, there, instead }))
    }

    /// The port GUID a line gives for its other end, unless that end gives one itself.
    fn note_peer_guid(&mut self, there: Endpoint, guid: Option<Guid>) -> Result<(), crate::BuildError> {
        let told = self.entry_of(there).and_then(|entry| entry.line.port_guid);
        let switch = self.builder.node(there.node).is_some_and(|node| node.is_switch());
        match guid {
            Some(guid) if told.is_none() && !switch => self.builder.set_port_guid(there, guid),
            _ => Ok(()),
        }
    }

    /// Where the text speaks of a port: its own line, or else its node's.
    fn place_of(&self, end: Endpoint) -> Cursor<'a> {
        self.entry_of(end).map_or(self.nodes[end.node.index()], |entry| entry.line.at)
    }
}

/// `module#name`, or the name alone outside of modules.
fn qualified<'n>(module: &str, separator: char, name: &'n str) -> Cow<'n, str> {
    if module.is_empty() { Cow::Borrowed(name) } else { Cow::Owned(format!("{module}{separator}{name}")) }
}

/// Where the GUIDs of each kind of node are, for nodes that are given none.
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

    /// The GUID of the next node; `None` where the count has come to 0. A switch uses one number, the others one
    /// more than they have ports.
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
