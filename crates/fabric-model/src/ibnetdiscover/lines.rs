//! Parses single lines of the format. References between lines are resolved by the reader.

use ib_wire::{Guid, LinkSpeed, NodeKind, PortNum};

use super::comment::{NodeComment, PortComment};
use super::cursor::Cursor;
use super::error::{ParseError, ParseErrorKind};
use crate::topology::NODE_PORTS_MAX;

/// Longest line in bytes. The tools print up to about 250.
pub const LINE_BYTES_MAX: usize = 4096;

/// A parsed line, by its first characters.
#[derive(Debug)]
pub(super) enum Line<'a> {
    Node(NodeLine<'a>),
    Port(PortLine<'a>),
    NodeGuid {
        kind: NodeKind,
        base: GuidBase,
        port_guid: Option<Guid>,
    },
    SystemGuid(Option<Guid>),
    VendorId(u32),
    DeviceId(u16),
    Width(u8),
    Speed(u8),
    Module(&'a str),
    /// Does not end a record.
    Comment,
    /// An empty or unknown line, which ends a record.
    Other,
}

/// Where the GUIDs of a kind of node continue.
#[derive(Clone, Copy, Debug)]
pub(super) enum GuidBase {
    /// The next node has this GUID.
    At(u64),
    /// At this distance from the last [`GuidBase::At`].
    Plus(u64),
}

/// A node line: `Switch 36 "S-…"  # …`.
#[derive(Debug)]
pub(super) struct NodeLine<'a> {
    pub kind: NodeKind,
    pub port_count: u8,
    pub name: &'a str,
    pub comment: NodeComment<'a>,
    /// Position of the name.
    pub at: Cursor<'a>,
}

/// A port line: `[1](guid) "S-…"[3](guid) w=2 s=1  # …`, or an alias: `@[1] "name"`.
#[derive(Debug)]
pub(super) struct PortLine<'a> {
    pub port: u64,
    pub port_guid: Option<Guid>,
    pub is_alias: bool,
    /// Node id of the other end, or the alias.
    pub name: &'a str,
    pub peer_port: PortNum,
    pub peer_guid: Option<Guid>,
    pub width: Option<u8>,
    pub speed: Option<u8>,
    pub comment: PortComment,
    /// Position of the port number.
    pub at: Cursor<'a>,
    /// Position of the name.
    pub name_at: Cursor<'a>,
}

impl<'a> Line<'a> {
    /// Parses a line. Its first characters decide what it is, as in `ibsim`.
    pub fn read(number: usize, text: &'a str) -> Result<Self, ParseError> {
        let mut cursor = Cursor::new(number, text);
        if text.len() > LINE_BYTES_MAX {
            return Err(cursor.error(ParseErrorKind::LineTooLong { bytes: text.len() }));
        }
        match text.as_bytes().first() {
            Some(b'[' | b'@') => PortLine::read(cursor).map(Line::Port),
            Some(b'#') => Ok(Line::Comment),
            Some(_) => keyword_line(&mut cursor),
            None => Ok(Line::Other),
        }
    }
}

fn keyword_line<'a>(cursor: &mut Cursor<'a>) -> Result<Line<'a>, ParseError> {
    let mut starts = |keyword: &str| cursor.eat(keyword);
    if starts("Switch") {
        NodeLine::read(*cursor, NodeKind::Switch).map(Line::Node)
    } else if starts("Hca") || starts("Ca") {
        NodeLine::read(*cursor, NodeKind::Adapter).map(Line::Node)
    } else if starts("Rt") {
        NodeLine::read(*cursor, NodeKind::Router).map(Line::Node)
    } else if starts("switchguid") {
        node_guid(cursor, NodeKind::Switch)
    } else if starts("hcaguids") || starts("caguid") {
        node_guid(cursor, NodeKind::Adapter)
    } else if starts("rtguid") {
        node_guid(cursor, NodeKind::Router)
    } else if starts("sysimgguid") {
        let guid = assigned(cursor, "a GUID like 0x0002c90300000001", 0..=u64::MAX)?;
        Ok(Line::SystemGuid(Guid::from_wire(guid)))
    } else if starts("vendid") {
        assigned(cursor, "a vendor id up to 0xffffff", 0..=0xff_ffff).map(|id| Line::VendorId(id as u32))
    } else if starts("devid") {
        assigned(cursor, "a device id up to 0xffff", 0..=0xffff).map(|id| Line::DeviceId(id as u16))
    } else if starts("width") {
        assigned(cursor, WIDTH_MASK, 1..=0x1f).map(|mask| Line::Width(mask as u8))
    } else if starts("speed") {
        assigned(cursor, SPEED_MASK, 1..=7).map(|mask| Line::Speed(mask as u8))
    } else if starts("module") {
        module(cursor)
    } else if starts("include") {
        Err(unsupported(cursor, "include", "merge the files into one"))
    } else if starts("do") {
        Err(unsupported(cursor, "do", "remove the line; a topology file contains no commands"))
    } else {
        Ok(Line::Other)
    }
}

const WIDTH_MASK: &str = "a mask of enabled widths 1..=31 (1 is 1x, 2 is 4x, 4 is 8x, 8 is 12x, 16 is 2x)";
const SPEED_MASK: &str = "a mask of enabled speeds 1..=7 (1 is SDR, 2 is DDR, 4 is QDR)";

impl<'a> NodeLine<'a> {
    fn read(mut cursor: Cursor<'a>, kind: NodeKind) -> Result<Self, ParseError> {
        cursor.skip_blanks();
        let port_count = cursor.number("a number of ports 1..=254", 1..=NODE_PORTS_MAX.into())? as u8;
        cursor.skip_blanks();
        let at = cursor;
        let name = cursor.quoted("the node's id in quotes")?;
        if name.is_empty() || name.contains(['#', '@']) {
            return Err(at.ahead(1).expected("a node id without # and @"));
        }
        Ok(Self { kind, port_count, name, comment: NodeComment::read(cursor.rest()), at })
    }
}

impl<'a> PortLine<'a> {
    fn read(mut cursor: Cursor<'a>) -> Result<Self, ParseError> {
        let is_alias = cursor.eat("@");
        cursor.expect("[", "a port number in brackets")?;
        let at = cursor;
        let port = cursor.number("a port number", 0..=u64::MAX)?;
        cursor.expect("]", "] after the port number")?;
        let port_guid = guid_in_parentheses(&mut cursor)?;
        cursor.skip_blanks();
        let name_at = cursor;
        let name = cursor.quoted(if is_alias {
            "an alias in quotes"
        } else {
            "the other end's node id in quotes"
        })?;
        let peer_port = peer_port(&mut cursor)?;
        let peer_guid = guid_in_parentheses(&mut cursor)?;
        let (width, speed) = masks(cursor.up_to('#'))?;
        let comment = cursor.rest().split_once('#').map(|(_, comment)| PortComment::read(comment));
        let comment = comment.unwrap_or_default();
        Ok(Self { port, port_guid, is_alias, name, peer_port, peer_guid, width, speed, comment, at, name_at })
    }
}

/// The port number of the other end; 1 if it is not given.
fn peer_port(cursor: &mut Cursor<'_>) -> Result<PortNum, ParseError> {
    let mut number = 1;
    if cursor.eat("[") {
        number = cursor.number("a port number 1..=254", 1..=NODE_PORTS_MAX.into())? as u8;
        cursor.expect("]", "] after the port number")?;
    }
    Ok(PortNum::new(number).expect("1..=254 are port numbers"))
}

fn guid_in_parentheses(cursor: &mut Cursor<'_>) -> Result<Option<Guid>, ParseError> {
    // Between two adapters ibnetdiscover prints a blank before the GUID.
    let mut ahead = *cursor;
    ahead.skip_blanks();
    if !ahead.eat("(") {
        return Ok(None);
    }
    *cursor = ahead;
    cursor.eat("0x");
    let guid = cursor.hexadecimal("a GUID in hexadecimal")?;
    cursor.expect(")", ") after the GUID")?;
    Ok(Guid::from_wire(guid))
}

/// Parses the options `w=`, `s=` and `e=` before the comment, in any order, to the masks of widths and speeds.
fn masks(mut cursor: Cursor<'_>) -> Result<(Option<u8>, Option<u8>), ParseError> {
    const EXPECTED: &str = "w=, s=, e= or a comment that begins with #";
    let (mut width, mut speed) = (None, None);
    loop {
        cursor.skip_blanks();
        if cursor.rest().is_empty() {
            return Ok((width, speed));
        }
        let option = cursor;
        match cursor.word(EXPECTED)? {
            "w" => width = Some(assigned(&mut cursor, WIDTH_MASK, 1..=0x1f)? as u8),
            // To ibsim, 0 means QDR.
            "s" => match assigned(&mut cursor, SPEED_MASK, 0..=7)? {
                0 => speed = Some(LinkSpeed::QDR.0),
                mask => speed = Some(mask as u8),
            },
            // Extended speeds follow from the rate.
            "e" => drop(assigned(&mut cursor, "a mask of extended speeds 0..=15", 0..=15)?),
            _ => return Err(option.expected(EXPECTED)),
        }
    }
}

fn assigned(
    cursor: &mut Cursor<'_>,
    what: &str,
    range: std::ops::RangeInclusive<u64>,
) -> Result<u64, ParseError> {
    cursor.skip_blanks();
    cursor.expect("=", "=")?;
    cursor.skip_blanks();
    cursor.number(what, range)
}

fn node_guid<'a>(cursor: &mut Cursor<'_>, kind: NodeKind) -> Result<Line<'a>, ParseError> {
    cursor.skip_blanks();
    let relative = cursor.eat("+");
    if !relative {
        cursor.expect("=", "= or +")?;
    }
    cursor.skip_blanks();
    let (what, range) = if relative {
        ("a distance from the last GUID that was set with =", 0..=u64::MAX)
    } else {
        ("a GUID like 0x0002c90300000001", 1..=u64::MAX)
    };
    let number = cursor.number(what, range)?;
    let base = if relative { GuidBase::Plus(number) } else { GuidBase::At(number) };
    Ok(Line::NodeGuid { kind, base, port_guid: guid_in_parentheses(cursor)? })
}

fn module<'a>(cursor: &mut Cursor<'a>) -> Result<Line<'a>, ParseError> {
    cursor.skip_blanks();
    cursor.expect("=", "=")?;
    cursor.skip_blanks();
    let at = *cursor;
    let name = cursor.quoted("a module name in quotes")?;
    if name.len() > crate::topology::MODULE_BYTES_MAX || name.contains(['#', '@']) {
        return Err(at.ahead(1).expected("a module name of at most 20 bytes without # and @"));
    }
    Ok(Line::Module(name))
}

fn unsupported(cursor: &Cursor<'_>, keyword: &'static str, advice: &'static str) -> ParseError {
    Cursor::new(cursor.line, "").error(ParseErrorKind::Unsupported { keyword, advice })
}
