//! The frames of the protocol, and a reader that finds them in a stream.
//!
//! Everything is in network byte order. A frame is
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | u32 | length of the frame after this field: 4 plus the length of the body |
//! | 4 | u8 | version, 1 |
//! | 5 | u8 | kind |
//! | 6 | u16 | 0 |
//! | 8 | | body |
//!
//! | kind | from | body |
//! |---|---|---|
//! | 1 attach | client | 0 u8 role (1 = subnet manager); 1 u8[3] zero; 4 node id or description, UTF-8, 0 to 64 bytes |
//! | 2 attached | server | 0 u16 client; 2 u16 LID (0 = none); 4 u8[4] zero; 8 u64 port GUID |
//! | 3 refused | server | 0 u16 reason: 1 unknown node, 2 too many clients, 3 malformed frame |
//! | 4 datagram | both | 0 u16 source LID; 2 u16 destination LID; 4 u8 service level; 5 u8 flags (1 = has a GRH); 6 u16 P_Key; 8 u32 Q_Key; 12 u32 source QP; 16 u32 destination QP; 20 GRH if there is one; then 256 bytes MAD |
//! | 5 lost | server | 0 u64 transaction of a request that will not be answered |
//! | 6 set role | client | 0 u8 role; 1 u8[3] zero |
//! | 7 get port state | client | empty |
//! | 8 port state | server | 0 u16 LID (0 = none); 2 u8 logical state; 3 u8 zero |
//! | 9 get port details | client | empty |
//! | 10 port details | server | 0 NodeInfo; 64 PortInfo; 128 the first 32 P_Keys, each as on the wire; 192 GID; 208 u64 port GUID; 216 u32 vendor; 220 u32 device; 224 u32 revision; 228 u64 firmware; 236 u16 LID (0 = none); 238 u8 logical state; 239 u8 zero; 240 node id, UTF-8, 0 to 64 bytes |
//!
//! The GRH, 40 bytes: 0 source GID; 16 destination GID; 32 u32 flow label; 36 u8 traffic class; 37 u8 hop limit;
//! 38 u16 zero.
//!
//! The first frame of a client is *attach*; the server answers *attached*, or *refused* and closes the stream. It also sends
//! *refused* before it closes a stream because of a malformed or unexpected frame. Receivers ignore fields that are zero.

use ib_wire::{
    Datagram, Gid, Grh, Guid, Lid, LidAddress, MAD_LEN, Mad, Pkey, PortState, QKey, QueuePair, ServiceLevel,
    TransactionId,
};

use crate::client_role::ClientRole;
use crate::vendor::Vendor;

/// Length of the longest frame in bytes: a datagram with a GRH.
pub const FRAME_MAX: usize = HEADER_LEN + DATAGRAM_HEADER_LEN + GRH_LEN + MAD_LEN;

/// Longest node id in bytes: that of a NodeDescription.
pub const NODE_ID_MAX: usize = 64;

const VERSION: u8 = 1;
const HEADER_LEN: usize = 8;
/// Bytes that the length field counts besides the body: version, kind and two zero bytes.
const COUNTED_HEADER: usize = 4;
const DATAGRAM_HEADER_LEN: usize = 20;
const GRH_LEN: usize = 40;
/// Length of the fixed part of *port details*, without the node id.
const PORT_DETAILS_LEN: usize = 240;
const HAS_GRH: u8 = 1;

mod kind {
    pub const ATTACH: u8 = 1;
    pub const ATTACHED: u8 = 2;
    pub const REFUSED: u8 = 3;
    pub const DATAGRAM: u8 = 4;
    pub const LOST: u8 = 5;
    pub const ROLE: u8 = 6;
    pub const GET_PORT_STATE: u8 = 7;
    pub const PORT_STATE: u8 = 8;
    pub const GET_PORT_DETAILS: u8 = 9;
    pub const PORT_DETAILS: u8 = 10;
}

/// One frame of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The first frame of a client.
    Attach(Attach),
    /// The server accepted the client.
    Attached(Attached),
    /// The server closes the stream, and why.
    Refused(RefusalCode),
    /// A datagram, in either direction.
    Datagram(Box<Datagram>),
    /// The request of the client with this transaction will not be answered.
    Lost(TransactionId),
    /// The client changes its role; there is no answer.
    SetRole(ClientRole),
    /// The client queries LID and logical state of its port.
    GetPortState,
    /// The answer to `GetPortState`.
    PortState { lid: Option<Lid>, state: PortState },
    /// The client queries everything about its port.
    GetPortDetails,
    /// The answer to `GetPortDetails`.
    PortDetails(Box<PortDetails>),
}

/// Everything that clients of the ibsim protocol may query about their port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortDetails {
    /// NodeInfo in wire order.
    pub node_info: [u8; 64],
    /// PortInfo in wire order.
    pub port_info: [u8; 64],
    /// The first 32 P_Keys in wire order.
    pub pkeys: [u8; 64],
    /// GID of table index 0.
    pub gid: Gid,
    pub port_guid: Guid,
    pub lid: Option<Lid>,
    pub state: PortState,
    pub vendor: Vendor,
    /// Id of the node, at most [`NODE_ID_MAX`] bytes.
    pub node_id: String,
}

/// The body of an *attach* frame: the port and role that a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// Id or description of the node, truncated to [`NODE_ID_MAX`] bytes; empty = the first node.
    pub node_id: String,
    pub role: ClientRole,
}

/// The body of an *attached* frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Number of the client, which the server writes into bits 63 to 48 of the transactions of its requests.
    pub client: u16,
    /// LID of the port at the time of attaching.
    pub lid: Option<Lid>,
    pub port_guid: Option<Guid>,
}

/// Why a server closes a stream: the reason in a *refused* frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    UnknownNode,
    /// The server or the port has as many clients as it may have.
    Full,
    /// A frame was malformed or unexpected.
    Malformed,
    /// Any other code, kept as received.
    Unknown(u16),
}

impl RefusalCode {
    const fn from_wire(code: u16) -> Self {
        match code {
            1 => Self::UnknownNode,
            2 => Self::Full,
            3 => Self::Malformed,
            other => Self::Unknown(other),
        }
    }

    const fn to_wire(self) -> u16 {
        match self {
            Self::UnknownNode => 1,
            Self::Full => 2,
            Self::Malformed => 3,
            Self::Unknown(code) => code,
        }
    }
}

impl std::fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownNode => f.write_str("there is no such node"),
            Self::Full => f.write_str("the limit of clients is reached"),
            Self::Malformed => f.write_str("a frame was malformed or unexpected"),
            Self::Unknown(code) => write!(f, "unknown reason {code}"),
        }
    }
}

/// Bytes that are not a frame. The next frame cannot be found any more: close the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length field is outside the range of frames.
    #[error("the length of a frame must be between {COUNTED_HEADER} and {max}, got {0}", max = FRAME_MAX - 4)]
    Length(u32),
    #[error("the version of a frame must be {VERSION}, got {0}")]
    Version(u8),
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// The body has a wrong length for its kind; in bytes.
    #[error("a body of {length} bytes is not valid for frame kind {kind}")]
    BodyLength { kind: u8, length: usize },
    /// A field of the body holds an invalid value.
    #[error("{field} cannot be {value:#x}")]
    Field { field: &'static str, value: u64 },
    #[error("the node id is not UTF-8")]
    NodeId,
}

impl Frame {
    /// Decodes a frame from its bytes after the length field.
    ///
    /// # Errors
    ///
    /// The bytes are not a frame.
    pub fn decode(raw: &[u8]) -> Result<Self, FrameError> {
        let Some((&[version, kind, _, _], body)) = raw.split_first_chunk() else {
            return Err(FrameError::Length(raw.len() as u32));
        };
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let wrong_length = FrameError::BodyLength { kind, length: body.len() };
        match kind {
            kind::ATTACH => decode_attach(body).ok_or(wrong_length)?,
            kind::ATTACHED => fixed::<16>(body).map(decode_attached).ok_or(wrong_length),
            kind::REFUSED => fixed(body)
                .map(|code| Self::Refused(RefusalCode::from_wire(u16::from_be_bytes(*code))))
                .ok_or(wrong_length),
            kind::DATAGRAM => decode_datagram(body).ok_or(wrong_length)?,
            kind::LOST => {
                fixed(body).map(|id| Self::Lost(TransactionId(u64::from_be_bytes(*id)))).ok_or(wrong_length)
            }
            kind::ROLE => fixed::<4>(body)
                .map(|body| Self::SetRole(ClientRole::from_flag(body[0].into())))
                .ok_or(wrong_length),
            kind::GET_PORT_STATE => fixed::<0>(body).map(|_| Self::GetPortState).ok_or(wrong_length),
            kind::PORT_STATE => fixed::<4>(body).map(decode_port_state).ok_or(wrong_length),
            kind::GET_PORT_DETAILS => fixed::<0>(body).map(|_| Self::GetPortDetails).ok_or(wrong_length),
            kind::PORT_DETAILS => decode_port_details(body).ok_or(wrong_length)?,
            other => Err(FrameError::Kind(other)),
        }
    }

    /// Appends the frame, with its length field, to `out`. A node id beyond [`NODE_ID_MAX`] bytes is cut.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Attach(attach) => {
                let text = cut(&attach.node_id);
                put_header(out, kind::ATTACH, 4 + text.len());
                out.extend([attach.role.to_flag() as u8, 0, 0, 0]);
                out.extend(text.as_bytes());
            }
            Self::Attached(attached) => {
                put_header(out, kind::ATTACHED, 16);
                out.extend(attached.client.to_be_bytes());
                out.extend(attached.lid.map_or(0, Lid::to_wire).to_be_bytes());
                out.extend([0; 4]);
                out.extend(attached.port_guid.map_or(0, Guid::to_wire).to_be_bytes());
            }
            Self::Refused(reason) => {
                put_header(out, kind::REFUSED, 2);
                out.extend(reason.to_wire().to_be_bytes());
            }
            Self::Datagram(datagram) => Self::encode_datagram(datagram, out),
            Self::Lost(transaction) => {
                put_header(out, kind::LOST, 8);
                out.extend(transaction.0.to_be_bytes());
            }
            Self::SetRole(role) => {
                put_header(out, kind::ROLE, 4);
                out.extend([role.to_flag() as u8, 0, 0, 0]);
            }
            Self::GetPortState => put_header(out, kind::GET_PORT_STATE, 0),
            Self::PortState { lid, state } => {
                put_header(out, kind::PORT_STATE, 4);
                out.extend(lid.map_or(0, Lid::to_wire).to_be_bytes());
                out.extend([state.to_wire(), 0]);
            }
            Self::GetPortDetails => put_header(out, kind::GET_PORT_DETAILS, 0),
            Self::PortDetails(details) => {
                let text = cut(&details.node_id);
                put_header(out, kind::PORT_DETAILS, PORT_DETAILS_LEN + text.len());
                out.extend([details.node_info, details.port_info, details.pkeys].concat());
                out.extend(details.gid.0);
                out.extend(details.port_guid.to_wire().to_be_bytes());
                let Vendor { vendor_id, part_id, hardware_version, firmware_version } = details.vendor;
                [vendor_id, part_id, hardware_version].iter().for_each(|it| out.extend(it.to_be_bytes()));
                out.extend(firmware_version.to_be_bytes());
                out.extend(details.lid.map_or(0, Lid::to_wire).to_be_bytes());
                out.extend([details.state.to_wire(), 0]);
                out.extend(text.as_bytes());
            }
        }
    }

    /// Appends an encoded datagram frame to `out`.
    pub fn encode_datagram(datagram: &Datagram, out: &mut Vec<u8>) {
        let grh_len = if datagram.grh.is_some() { GRH_LEN } else { 0 };
        put_header(out, kind::DATAGRAM, DATAGRAM_HEADER_LEN + grh_len + MAD_LEN);
        out.extend(datagram.slid.to_wire().to_be_bytes());
        out.extend(datagram.dlid.to_wire().to_be_bytes());
        out.extend([datagram.sl.to_wire(), if datagram.grh.is_some() { HAS_GRH } else { 0 }]);
        out.extend(datagram.pkey.to_wire().to_be_bytes());
        out.extend(datagram.qkey.to_wire().to_be_bytes());
        out.extend(datagram.sqp.to_wire().to_be_bytes());
        out.extend(datagram.dqp.to_wire().to_be_bytes());
        if let Some(grh) = &datagram.grh {
            out.extend(grh.source.0);
            out.extend(grh.destination.0);
            out.extend(grh.flow_label.to_be_bytes());
            out.extend([grh.traffic_class, grh.hop_limit, 0, 0]);
        }
        out.extend(&datagram.mad.0);
    }
}

/// Splits a byte stream into frames. Repeat: read into [`room`](Self::room), report the length with [`filled`](Self::filled),
/// call [`next_frame`](Self::next_frame) until it returns `None`. After an error it must not be used any more.
#[derive(Debug)]
pub struct FrameReader {
    buffer: Box<[u8; Self::BUFFER_LEN]>,
    start: usize,
    end: usize,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self { buffer: Box::new([0; Self::BUFFER_LEN]), start: 0, end: 0 }
    }
}

impl FrameReader {
    /// Size of the buffer in bytes: about fifty datagrams per read, and more than one frame of any kind.
    const BUFFER_LEN: usize = 16 * 1024;

    /// The buffer for the next bytes of the stream. It is not empty if [`next_frame`](Self::next_frame) has returned `None`.
    pub fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.buffer[self.end..]
    }

    /// Reports that `count` bytes were written to the beginning of [`room`](Self::room).
    pub fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(Self::BUFFER_LEN);
    }

    /// The next complete frame; `None` if more bytes are needed.
    ///
    /// # Errors
    ///
    /// The bytes are not a frame.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let unread = &self.buffer[self.start..self.end];
        let Some((length, rest)) = unread.split_first_chunk() else { return Ok(None) };
        let length = u32::from_be_bytes(*length);
        // Checked before the frame is complete, so that an invalid length is rejected at once.
        if !(COUNTED_HEADER..=FRAME_MAX - 4).contains(&(length as usize)) {
            return Err(FrameError::Length(length));
        }
        let Some(raw) = rest.get(..length as usize) else { return Ok(None) };
        let frame = Frame::decode(raw)?;
        self.start += 4 + length as usize;
        Ok(Some(frame))
    }
}

fn put_header(out: &mut Vec<u8>, kind: u8, body_len: usize) {
    out.extend(((COUNTED_HEADER + body_len) as u32).to_be_bytes());
    out.extend([VERSION, kind, 0, 0]);
}

/// The text truncated at a character border to [`NODE_ID_MAX`] bytes.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(NODE_ID_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn fixed<const N: usize>(body: &[u8]) -> Option<&[u8; N]> {
    body.try_into().ok()
}

/// `None` if the length is wrong.
fn decode_attach(body: &[u8]) -> Option<Result<Frame, FrameError>> {
    let (&[role, ..], text) = body.split_first_chunk::<4>()?;
    if text.len() > NODE_ID_MAX {
        return None;
    }
    let frame = std::str::from_utf8(text).map_err(|_| FrameError::NodeId).map(|text| {
        Frame::Attach(Attach { node_id: text.to_owned(), role: ClientRole::from_flag(role.into()) })
    });
    Some(frame)
}

fn decode_attached(body: &[u8; 16]) -> Frame {
    Frame::Attached(Attached {
        client: u16_at(body, 0),
        lid: Lid::from_wire(u16_at(body, 2)),
        port_guid: Guid::from_wire(u64::from_be_bytes(array_at(body, 8))),
    })
}

fn decode_port_state(body: &[u8; 4]) -> Frame {
    Frame::PortState { lid: Lid::from_wire(u16_at(body, 0)), state: PortState::from_wire(body[2]) }
}

/// `None` if the length is wrong.
fn decode_port_details(body: &[u8]) -> Option<Result<Frame, FrameError>> {
    let (details, text) = body.split_first_chunk::<PORT_DETAILS_LEN>()?;
    if text.len() > NODE_ID_MAX {
        return None;
    }
    let vendor = Vendor {
        vendor_id: u32_at(details, 216),
        part_id: u32_at(details, 220),
        hardware_version: u32_at(details, 224),
        firmware_version: u64::from_be_bytes(array_at(details, 228)),
    };
    let no_guid = FrameError::Field { field: "the port GUID", value: 0 };
    let decoded = |text: &str, port_guid: Guid| PortDetails {
        node_info: array_at(details, 0),
        port_info: array_at(details, 64),
        pkeys: array_at(details, 128),
        gid: Gid(array_at(details, 192)),
        port_guid,
        lid: Lid::from_wire(u16_at(details, 236)),
        state: PortState::from_wire(details[238]),
        vendor,
        node_id: text.to_owned(),
    };
    let guid = Guid::from_wire(u64::from_be_bytes(array_at(details, 208))).ok_or(no_guid);
    let text = std::str::from_utf8(text).map_err(|_| FrameError::NodeId);
    Some(text.and_then(|text| Ok(Frame::PortDetails(Box::new(decoded(text, guid?))))))
}

/// `None` if the length is wrong.
fn decode_datagram(body: &[u8]) -> Option<Result<Frame, FrameError>> {
    let (header, rest) = body.split_first_chunk::<DATAGRAM_HEADER_LEN>()?;
    let (grh, mad) = match header[5] & HAS_GRH {
        0 => (None, rest),
        _ => rest.split_first_chunk::<GRH_LEN>().map(|(grh, mad)| (Some(grh), mad))?,
    };
    let mad = fixed::<MAD_LEN>(mad)?;
    Some(datagram_from(header, grh, mad).map(|datagram| Frame::Datagram(Box::new(datagram))))
}

fn datagram_from(
    header: &[u8; DATAGRAM_HEADER_LEN],
    grh: Option<&[u8; GRH_LEN]>,
    mad: &[u8; MAD_LEN],
) -> Result<Datagram, FrameError> {
    fn known<T>(value: Option<T>, field: &'static str, raw: impl Into<u64>) -> Result<T, FrameError> {
        value.ok_or_else(|| FrameError::Field { field, value: raw.into() })
    }
    let (slid, dlid, pkey) = (u16_at(header, 0), u16_at(header, 2), u16_at(header, 6));
    let (sqp, dqp) = (u32_at(header, 12), u32_at(header, 16));
    Ok(Datagram {
        slid: known(LidAddress::from_wire(slid), "the source LID", slid)?,
        dlid: known(LidAddress::from_wire(dlid), "the destination LID", dlid)?,
        sl: known(ServiceLevel::from_wire(header[4]), "the service level", header[4])?,
        grh: grh.map(decode_grh).transpose()?,
        pkey: known(Pkey::from_wire(pkey), "the P_Key", pkey)?,
        qkey: QKey::from_wire(u32_at(header, 8)),
        sqp: known(QueuePair::from_wire(sqp), "the source queue pair", sqp)?,
        dqp: known(QueuePair::from_wire(dqp), "the destination queue pair", dqp)?,
        mad: Mad(*mad),
    })
}

fn decode_grh(raw: &[u8; GRH_LEN]) -> Result<Grh, FrameError> {
    /// The flow label has 20 bits.
    const FLOW_LABEL_MAX: u32 = 0xf_ffff;
    let flow_label = u32_at(raw, 32);
    if flow_label > FLOW_LABEL_MAX {
        return Err(FrameError::Field { field: "the flow label", value: flow_label.into() });
    }
    Ok(Grh {
        source: Gid(array_at(raw, 0)),
        destination: Gid(array_at(raw, 16)),
        traffic_class: raw[36],
        flow_label,
        hop_limit: raw[37],
    })
}

/// The `N` bytes at a fixed offset of a fixed-length part.
fn array_at<const N: usize>(raw: &[u8], offset: usize) -> [u8; N] {
    raw[offset..offset + N].try_into().expect("a slice of N bytes is an array of N bytes")
}

fn u16_at(raw: &[u8], offset: usize) -> u16 {
    u16::from_be_bytes(array_at(raw, offset))
}

fn u32_at(raw: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(array_at(raw, offset))
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
