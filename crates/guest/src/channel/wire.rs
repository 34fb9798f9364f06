//! Encoding of messages: kinds and fields.

use super::codec::MessageTooLong;
use super::{
    CONTEXT_BYTES_MAX, DATA_BYTES_MAX, PAYLOAD_BYTES_MAX, SessionId, SessionRequest, ToGuest, ToHost,
};
use crate::probe::Reachability;

/// Most arguments of a command; their total length is bounded by the frame.
const ARGUMENTS_MAX: usize = 1024;

/// Most bytes of a context in one frame, without kind, part number and last-part flag.
const PART_BYTES_MAX: usize = PAYLOAD_BYTES_MAX - 4;

/// Encoding of the messages of one direction. Private, so that [`super::ChannelMessage`] is sealed.
pub trait WireFormat: Sized {
    /// The payload, kind and fields, of each frame of the message, in order.
    fn to_payloads(&self) -> Result<Vec<Vec<u8>>, MessageTooLong>;

    /// Decodes the payload of a frame. `None` if it is invalid, `Some(None)` if more frames of the message follow.
    fn from_payload(payload: &[u8], parts: &mut ContextParts) -> Option<Option<Self>>;
}

mod to_guest {
    pub(super) const HELLO: u8 = 1;
    pub(super) const CONTEXT: u8 = 2;
    pub(super) const OPEN: u8 = 3;
    pub(super) const INPUT: u8 = 4;
    pub(super) const CREDIT: u8 = 5;
    pub(super) const CLOSE: u8 = 6;

    pub(super) const EXEC: u8 = 0;
    pub(super) const SSH: u8 = 1;
}

/// Disjoint from the kinds of the other direction, so that a port that is looped back decodes to nothing.
mod to_host {
    pub(super) const WELCOME: u8 = 0x81;
    pub(super) const READY: u8 = 0x82;
    pub(super) const FAILED: u8 = 0x83;
    pub(super) const OUTPUT: u8 = 0x84;
    pub(super) const ERROR: u8 = 0x85;
    pub(super) const EXIT: u8 = 0x86;
    pub(super) const REFUSED: u8 = 0x87;
    pub(super) const CREDIT: u8 = 0x88;
    /// Added later: agents that do not know it drop the frame.
    pub(super) const NETWORK: u8 = 0x89;

    pub(super) const REACHED: u8 = 1;
    pub(super) const HEARD: u8 = 2;
}

impl WireFormat for ToGuest {
    fn to_payloads(&self) -> Result<Vec<Vec<u8>>, MessageTooLong> {
        let payload = match self {
            Self::Hello { nonce } => Writer::new(to_guest::HELLO).u64(*nonce),
            Self::Context(json) => return context_parts(json),
            Self::Open { session, request: SessionRequest::Ssh } => {
                Writer::new(to_guest::OPEN).session(*session).u8(to_guest::SSH)
            }
            Self::Open { session, request: SessionRequest::Exec { argv } } => {
                if argv.len() > ARGUMENTS_MAX {
                    return Err(MessageTooLong { bytes: argv.len(), max: ARGUMENTS_MAX });
                }
                let writer = Writer::new(to_guest::OPEN).session(*session).u8(to_guest::EXEC);
                argv.iter().try_fold(writer, |writer, argument| writer.argument(argument))?
            }
            Self::Input { session, bytes } => Writer::new(to_guest::INPUT).session(*session).data(bytes)?,
            Self::Credit { session, bytes } => Writer::new(to_guest::CREDIT).session(*session).u32(*bytes),
            Self::Close { session } => Writer::new(to_guest::CLOSE).session(*session),
        };
        Ok(vec![payload.0])
    }

    fn from_payload(payload: &[u8], parts: &mut ContextParts) -> Option<Option<Self>> {
        let mut reader = Reader(payload);
        let message = match reader.u8()? {
            to_guest::HELLO => Self::Hello { nonce: reader.u64()? },
            to_guest::CONTEXT => {
                let (number, last) = (reader.u16()?, reader.u8()?);
                let context = parts.add(number, last != 0, reader.rest())?;
                return Some(context.map(Self::Context));
            }
            to_guest::OPEN => Self::Open { session: reader.session()?, request: reader.session_request()? },
            to_guest::INPUT => Self::Input { session: reader.session()?, bytes: reader.rest().to_vec() },
            to_guest::CREDIT => Self::Credit { session: reader.session()?, bytes: reader.u32()? },
            to_guest::CLOSE => Self::Close { session: reader.session()? },
            _ => return None,
        };
        reader.is_done().then_some(Some(message))
    }
}

impl WireFormat for ToHost {
    fn to_payloads(&self) -> Result<Vec<Vec<u8>>, MessageTooLong> {
        let payload = match self {
            Self::Welcome { nonce, version, boot } => {
                Writer::new(to_host::WELCOME).u64(*nonce).u16(*version).data(boot.as_bytes())?
            }
            Self::Ready { generation } => Writer::new(to_host::READY).u64(*generation),
            Self::Network { generation, reach } => {
                let reached = if reach.reached { to_host::REACHED } else { 0 };
                let heard = if reach.heard { to_host::HEARD } else { 0 };
                Writer::new(to_host::NETWORK).u64(*generation).u8(reached | heard)
            }
            Self::Failed { generation, reason } => {
                Writer::new(to_host::FAILED).u64(*generation).data(reason.as_bytes())?
            }
            Self::Output { session, bytes } => Writer::new(to_host::OUTPUT).session(*session).data(bytes)?,
            Self::Error { session, bytes } => Writer::new(to_host::ERROR).session(*session).data(bytes)?,
            Self::Exit { session, status } => {
                Writer::new(to_host::EXIT).session(*session).u32(status.cast_unsigned())
            }
            Self::Refused { session, reason } => {
                Writer::new(to_host::REFUSED).session(*session).data(reason.as_bytes())?
            }
            Self::Credit { session, bytes } => Writer::new(to_host::CREDIT).session(*session).u32(*bytes),
        };
        Ok(vec![payload.0])
    }

    fn from_payload(payload: &[u8], _: &mut ContextParts) -> Option<Option<Self>> {
        let mut reader = Reader(payload);
        let message = match reader.u8()? {
            to_host::WELCOME => {
                Self::Welcome { nonce: reader.u64()?, version: reader.u16()?, boot: reader.text()? }
            }
            to_host::READY => Self::Ready { generation: reader.u64()? },
            to_host::NETWORK => Self::Network { generation: reader.u64()?, reach: reader.reach()? },
            to_host::FAILED => Self::Failed { generation: reader.u64()?, reason: reader.text()? },
            to_host::OUTPUT => Self::Output { session: reader.session()?, bytes: reader.some()? },
            to_host::ERROR => Self::Error { session: reader.session()?, bytes: reader.some()? },
            to_host::EXIT => Self::Exit { session: reader.session()?, status: reader.u32()?.cast_signed() },
            to_host::REFUSED => Self::Refused { session: reader.session()?, reason: reader.text()? },
            to_host::CREDIT => Self::Credit { session: reader.session()?, bytes: reader.u32()? },
            _ => return None,
        };
        reader.is_done().then_some(Some(message))
    }
}

fn context_parts(json: &[u8]) -> Result<Vec<Vec<u8>>, MessageTooLong> {
    if json.len() > CONTEXT_BYTES_MAX {
        return Err(MessageTooLong { bytes: json.len(), max: CONTEXT_BYTES_MAX });
    }
    // An empty context is one empty part.
    let count = json.len().div_ceil(PART_BYTES_MAX).max(1);
    let part = |number: usize| {
        let start = number * PART_BYTES_MAX;
        let bytes = &json[start..json.len().min(start + PART_BYTES_MAX)];
        let number_on_wire = u16::try_from(number).expect("1 MiB has at most 65 parts of 16 KiB");
        let mut payload =
            Writer::new(to_guest::CONTEXT).u16(number_on_wire).u8(u8::from(number + 1 == count)).0;
        payload.extend_from_slice(bytes);
        payload
    };
    Ok((0..count).map(part).collect())
}

/// Reassembly of a context from its parts.
#[derive(Default)]
pub struct ContextParts {
    bytes: Vec<u8>,
    /// Number of the next part; `None` until part 0 arrives.
    next: Option<u16>,
}

/// Does not print the bytes: a context holds a private key.
impl std::fmt::Debug for ContextParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ContextParts({} bytes)", self.bytes.len())
    }
}

impl ContextParts {
    /// Adds a part: `Some(Some(context))` if it was the last one, `Some(None)` if more follow, `None` if it is out of order or
    /// the context becomes too long.
    fn add(&mut self, number: u16, last: bool, bytes: &[u8]) -> Option<Option<Vec<u8>>> {
        if number == 0 {
            *self = Self { bytes: Vec::new(), next: Some(0) };
        }
        if self.next != Some(number) || self.bytes.len() + bytes.len() > CONTEXT_BYTES_MAX {
            // Reassembly restarts at the next part 0.
            *self = Self::default();
            return None;
        }
        self.bytes.extend_from_slice(bytes);
        if last {
            return Some(Some(std::mem::take(self).bytes));
        }
        self.next = number.checked_add(1);
        Some(None)
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8) -> Self {
        Self(vec![kind])
    }

    fn u8(self, value: u8) -> Self {
        self.raw(&[value])
    }

    fn u16(self, value: u16) -> Self {
        self.raw(&value.to_be_bytes())
    }

    fn u32(self, value: u32) -> Self {
        self.raw(&value.to_be_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.raw(&value.to_be_bytes())
    }

    fn session(self, session: SessionId) -> Self {
        self.u16(session.0)
    }

    /// Length and bytes.
    fn argument(self, text: &str) -> Result<Self, MessageTooLong> {
        let length = u16::try_from(text.len())
            .map_err(|_| MessageTooLong { bytes: text.len(), max: PAYLOAD_BYTES_MAX })?;
        Ok(self.u16(length).raw(text.as_bytes()))
    }

    /// The last field.
    fn data(self, bytes: &[u8]) -> Result<Self, MessageTooLong> {
        if bytes.len() > DATA_BYTES_MAX {
            return Err(MessageTooLong { bytes: bytes.len(), max: DATA_BYTES_MAX });
        }
        Ok(self.raw(bytes))
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// Reads fields; `None` if there are too few bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn session(&mut self) -> Option<SessionId> {
        self.u16().map(SessionId)
    }

    fn reach(&mut self) -> Option<Reachability> {
        let bits = self.u8()?;
        let reach = Reachability { reached: bits & to_host::REACHED != 0, heard: bits & to_host::HEARD != 0 };
        (bits & !(to_host::REACHED | to_host::HEARD) == 0).then_some(reach)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// The remaining bytes; `None` if there are none.
    fn some(&mut self) -> Option<Vec<u8>> {
        Some(self.rest().to_vec()).filter(|bytes| !bytes.is_empty())
    }

    fn text(&mut self) -> Option<String> {
        std::str::from_utf8(self.rest()).ok().map(str::to_owned)
    }

    fn session_request(&mut self) -> Option<SessionRequest> {
        match self.u8()? {
            to_guest::SSH => Some(SessionRequest::Ssh),
            to_guest::EXEC => {
                let mut argv = Vec::new();
                while !self.is_done() {
                    let length = self.u16()?.into();
                    let (argument, rest) = self.0.split_at_checked(length)?;
                    self.0 = rest;
                    argv.push(std::str::from_utf8(argument).ok()?.to_owned());
                    if argv.len() > ARGUMENTS_MAX {
                        return None;
                    }
                }
                Some(SessionRequest::Exec { argv })
            }
            _ => None,
        }
    }

    fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}
