//! Control and data messages of the protocol.
//!
//! Control message, 80 bytes, host byte order:
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | u32 | magic 0xdeadbeef |
//! | 4 | u32 | client |
//! | 8 | u32 | type: 0 error (replies only), 1 connect, 2 disconnect, 3 port, 4 vendor, 5 GID, 6 GUID, 7 NodeInfo, 8 PortInfo, 9 is-SM, 10 P_Keys |
//! | 12 | u32 | length of the payload |
//! | 16 | 64 bytes | payload |
//!
//! Data message, 288 bytes; fields in network order are marked so:
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | u32 | destination LID, network order in the low half; 0xffff = directed route |
//! | 4 | u32 | source LID in the same form; 0 = the server fills in the LID of the port |
//! | 8 | u32, network | destination queue pair |
//! | 12 | u32, network | source queue pair |
//! | 16 | u32, network | status: 0 = ok, 110 (ETIMEDOUT) = the request was not answered |
//! | 20 | 4 bytes | unused |
//! | 24 | u64, network | length of the MAD, 24 to 256 |
//! | 32 | 256 bytes | the MAD |

use ib_wire::rmpp::{RmppFlags, RmppKind};
use ib_wire::{
    Datagram, Gid, Guid, Lid, LidAddress, MAD_LEN, Mad, ManagementClass, Pkey, PortState, QKey, QueuePair,
    ServiceLevel,
};

use crate::client_role::ClientRole;
pub use crate::sys::DATA_LEN;
use crate::vendor::Vendor;

/// Length of a control message in bytes.
pub const CONTROL_LEN: usize = 80;

const MAGIC: u32 = 0xdead_beef;
const PAYLOAD: usize = 16;
const PAYLOAD_LEN: usize = CONTROL_LEN - PAYLOAD;
const NODE_ID: usize = PAYLOAD + 12;
/// Length of a node id in bytes, including the terminating zero.
const NODE_ID_LEN: usize = 32;
const CONNECT_LEN: u32 = 44;

const DATA_STATUS: usize = 16;
const DATA_MAD_LEN: usize = 24;
const DATA_MAD: usize = 32;
/// Length of the common MAD header; a shorter MAD has no method or transaction.
const MAD_HEADER_LEN: u64 = 24;
/// ETIMEDOUT: the request was not answered.
const TIMED_OUT: u32 = 110;

mod kind {
    pub const ERROR: u32 = 0;
    pub const CONNECT: u32 = 1;
    pub const DISCONNECT: u32 = 2;
    pub const PORT: u32 = 3;
    pub const VENDOR: u32 = 4;
    pub const GID: u32 = 5;
    pub const GUID: u32 = 6;
    pub const NODE_INFO: u32 = 7;
    pub const PORT_INFO: u32 = 8;
    pub const IS_SM: u32 = 9;
    pub const PKEYS: u32 = 10;
}

/// Bytes that are not a message of the ibsim protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("the message must have {expected} bytes, got {actual}")]
    Length { expected: usize, actual: usize },
    #[error("the magic number must be {MAGIC:#010x}, got {0:#010x}")]
    Magic(u32),
    /// An unknown control type, or one that is not valid in this direction.
    #[error("unknown control type {0}")]
    UnknownType(u32),
    #[error("the MAD must have between {MAD_HEADER_LEN} and {MAD_LEN} bytes, got {0}")]
    MadLength(u64),
    #[error("the queue pair must have at most 24 bits, got {0:#x}")]
    QueuePair(u32),
}

/// The payload of a connect message and of the reply to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// In a request the number at the end of the client's socket names (for stock clients the process id), in a reply the client
    /// number that the server assigned.
    pub number: u32,
    pub role: ClientRole,
    /// Id or description of the node, at most 31 bytes; empty = the first node.
    pub node_id: String,
}

/// A control message from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlRequest {
    Connect(Connect),
    Disconnect,
    /// Queries LID and logical state of the port.
    Port,
    Vendor,
    Gid,
    Guid,
    NodeInfo,
    /// Queries PortInfo of this port of the node; 0 is the attached port.
    PortInfo(u8),
    /// Changes the role of the client at its port.
    IsSm(ClientRole),
    Pkeys,
}

impl ControlRequest {
    /// Decodes a message into the number of the client that it names and the request. The caller has to check that the sender is
    /// that client.
    pub fn decode(raw: &[u8]) -> Result<(u32, Self), WireError> {
        let message = control_message(raw)?;
        let request = match u32_at(message, 8) {
            kind::CONNECT => Self::Connect(Connect {
                number: u32_at(message, PAYLOAD),
                role: ClientRole::from_flag(u32_at(message, PAYLOAD + 8)),
                node_id: node_id(message),
            }),
            kind::DISCONNECT => Self::Disconnect,
            kind::PORT => Self::Port,
            kind::VENDOR => Self::Vendor,
            kind::GID => Self::Gid,
            kind::GUID => Self::Guid,
            kind::NODE_INFO => Self::NodeInfo,
            kind::PORT_INFO => Self::PortInfo(message[PAYLOAD]),
            kind::IS_SM => Self::IsSm(ClientRole::from_flag(u32_at(message, PAYLOAD))),
            kind::PKEYS => Self::Pkeys,
            other => return Err(WireError::UnknownType(other)),
        };
        Ok((u32_at(message, 4), request))
    }

    /// Encodes the request of client number `client`. A node id is truncated to 31 bytes.
    pub fn encode(&self, client: u32) -> [u8; CONTROL_LEN] {
        match self {
            Self::Connect(connect) => connect_message(client, connect.number, connect),
            Self::Disconnect => control(client, kind::DISCONNECT, &[]),
            Self::Port => control(client, kind::PORT, &[0; 4]),
            Self::Vendor => control(client, kind::VENDOR, &[0; 24]),
            Self::Gid => control(client, kind::GID, &[0; 16]),
            Self::Guid => control(client, kind::GUID, &[0; 8]),
            Self::NodeInfo => control(client, kind::NODE_INFO, &[0; PAYLOAD_LEN]),
            Self::PortInfo(port) => {
                let mut payload = [0; PAYLOAD_LEN];
                payload[0] = *port;
                control(client, kind::PORT_INFO, &payload)
            }
            Self::IsSm(role) => control(client, kind::IS_SM, &role.to_flag().to_ne_bytes()),
            Self::Pkeys => control(client, kind::PKEYS, &[0; PAYLOAD_LEN]),
        }
    }
}

/// A control message from a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlReply {
    /// The server refused the request.
    Error,
    /// `number` is the client number that the server assigned.
    Connected(Connect),
    Disconnected,
    /// LID and logical state of the port.
    Port {
        lid: Option<Lid>,
        state: PortState,
    },
    Vendor(Vendor),
    /// GID 0 of the port. The stock server builds it from the node GUID instead of the port GUID.
    Gid(Gid),
    /// The GUID of the port; `None` if it is 0. The stock server returns the node GUID.
    Guid(Option<Guid>),
    /// NodeInfo in wire order.
    NodeInfo([u8; 64]),
    /// PortInfo in wire order.
    PortInfo([u8; 64]),
    /// The new role of the client.
    IsSm(ClientRole),
    /// The first 32 P_Keys in wire order.
    Pkeys([u8; 64]),
}

impl ControlReply {
    /// Decodes a message of the server.
    pub fn decode(raw: &[u8]) -> Result<Self, WireError> {
        let message = control_message(raw)?;
        let payload: [u8; PAYLOAD_LEN] = array_at(message, PAYLOAD);
        Ok(match u32_at(message, 8) {
            kind::ERROR => Self::Error,
            kind::CONNECT => Self::Connected(Connect {
                number: u32_at(message, PAYLOAD),
                role: ClientRole::from_flag(u32_at(message, PAYLOAD + 8)),
                node_id: node_id(message),
            }),
            kind::DISCONNECT => Self::Disconnected,
            kind::PORT => Self::Port {
                lid: Lid::from_wire(u16::from_ne_bytes([payload[0], payload[1]])),
                state: PortState::from_wire(payload[2]),
            },
            kind::VENDOR => Self::Vendor(Vendor {
                vendor_id: u32_at(&payload, 0),
                part_id: u32_at(&payload, 4),
                hardware_version: u32_at(&payload, 8),
                firmware_version: u64::from_ne_bytes(array_at(&payload, 16)),
            }),
            kind::GID => Self::Gid(gid_from(array_at(&payload, 0))),
            kind::GUID => Self::Guid(Guid::from_wire(u64::from_ne_bytes(array_at(&payload, 0)))),
            kind::NODE_INFO => Self::NodeInfo(payload),
            kind::PORT_INFO => Self::PortInfo(payload),
            kind::IS_SM => Self::IsSm(ClientRole::from_flag(u32_at(&payload, 0))),
            kind::PKEYS => Self::Pkeys(payload),
            other => return Err(WireError::UnknownType(other)),
        })
    }

    /// Encodes the reply to client number `client`. A node id is truncated to 31 bytes.
    pub fn encode(&self, client: u32) -> [u8; CONTROL_LEN] {
        match self {
            Self::Error => control(client, kind::ERROR, &[]),
            Self::Connected(connect) => connect_message(client, connect.number, connect),
            Self::Disconnected => control(client, kind::DISCONNECT, &[]),
            Self::Port { lid, state } => {
                let [high, low] = lid.map_or(0, Lid::to_wire).to_ne_bytes();
                control(client, kind::PORT, &[high, low, state.to_wire(), 0])
            }
            Self::Vendor(vendor) => control(client, kind::VENDOR, &vendor_payload(vendor)),
            Self::Gid(gid) => control(client, kind::GID, &gid_payload(*gid)),
            Self::Guid(guid) => control(client, kind::GUID, &guid.map_or(0, Guid::to_wire).to_ne_bytes()),
            Self::NodeInfo(payload) => control(client, kind::NODE_INFO, payload),
            Self::PortInfo(payload) => control(client, kind::PORT_INFO, payload),
            Self::IsSm(role) => control(client, kind::IS_SM, &role.to_flag().to_ne_bytes()),
            Self::Pkeys(payload) => control(client, kind::PKEYS, payload),
        }
    }
}

/// The status of a data message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataStatus {
    /// The message carries a datagram for its receiver.
    Ok,
    /// The message returns a request to its sender because it will not be answered. Every code other than 0 means this.
    TimedOut,
}

/// A data message: a MAD with LIDs and queue pairs. The protocol carries no other headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataMessage {
    /// Destination LID; `None` if it is 0.
    pub dlid: Option<LidAddress>,
    /// Source LID; `None` (0) asks the server to fill in the LID of the port.
    pub slid: Option<LidAddress>,
    pub dqp: QueuePair,
    pub sqp: QueuePair,
    pub status: DataStatus,
    pub mad: Mad,
}

impl DataMessage {
    /// Decodes a message of [`DATA_LEN`] bytes. A MAD shorter than 256 bytes is padded with zeros.
    pub fn decode(raw: &[u8]) -> Result<Self, WireError> {
        let message: &[u8; DATA_LEN] =
            raw.try_into().map_err(|_| WireError::Length { expected: DATA_LEN, actual: raw.len() })?;
        let length = u64::from_be_bytes(array_at(message, DATA_MAD_LEN));
        if !(MAD_HEADER_LEN..=MAD_LEN as u64).contains(&length) {
            return Err(WireError::MadLength(length));
        }
        let mut mad = Mad(array_at(message, DATA_MAD));
        mad.0[length as usize..].fill(0);
        complete_rmpp(&mut mad, length as usize);
        let status =
            if array_at(message, DATA_STATUS) == [0; 4] { DataStatus::Ok } else { DataStatus::TimedOut };
        Ok(Self {
            dlid: lid_at(message, 0),
            slid: lid_at(message, 4),
            dqp: queue_pair_at(message, 8)?,
            sqp: queue_pair_at(message, 12)?,
            status,
            mad,
        })
    }

    /// Encodes the message as on the wire.
    pub fn encode(&self) -> [u8; DATA_LEN] {
        let mut message = [0; DATA_LEN];
        encode_data(&mut message, self.addresses(), self.status, &self.mad);
        message
    }

    /// The datagram of this message, with P_Key `pkey` and, if the sender left out the source LID, source LID `own` (permissive
    /// if that is `None`). `None` if the message has no destination LID.
    pub fn into_datagram(self, own: Option<Lid>, pkey: Pkey) -> Option<Datagram> {
        let subnet_management = self.dqp == QueuePair::SUBNET_MANAGEMENT;
        Some(Datagram {
            slid: self.slid.or(own.map(LidAddress::Unicast)).unwrap_or(LidAddress::Permissive),
            dlid: self.dlid?,
            sl: ServiceLevel::default(),
            grh: None,
            pkey,
            qkey: if subnet_management { QKey::from_wire(0) } else { QKey::GENERAL_MANAGEMENT },
            sqp: self.sqp,
            dqp: self.dqp,
            mad: self.mad,
        })
    }

    pub(crate) fn addresses(&self) -> Addresses {
        Addresses { dlid: self.dlid, slid: self.slid, dqp: self.dqp, sqp: self.sqp }
    }
}

/// Drops the headers that the protocol does not carry.
impl From<Datagram> for DataMessage {
    fn from(datagram: Datagram) -> Self {
        let Addresses { dlid, slid, dqp, sqp } = Addresses::of(&datagram);
        Self { dlid, slid, dqp, sqp, status: DataStatus::Ok, mad: datagram.mad }
    }
}

/// Drops the headers that the protocol does not carry.
impl From<&Datagram> for DataMessage {
    fn from(datagram: &Datagram) -> Self {
        datagram.clone().into()
    }
}

/// The headers of a data message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    dlid: Option<LidAddress>,
    slid: Option<LidAddress>,
    dqp: QueuePair,
    sqp: QueuePair,
}

impl Addresses {
    pub(crate) fn of(datagram: &Datagram) -> Self {
        Self { dlid: Some(datagram.dlid), slid: Some(datagram.slid), dqp: datagram.dqp, sqp: datagram.sqp }
    }
}

/// Encodes a data message into all 288 bytes of `message`.
#[inline]
pub(crate) fn encode_data(message: &mut [u8; DATA_LEN], addresses: Addresses, status: DataStatus, mad: &Mad) {
    put_lid(message, 0, addresses.dlid);
    put_lid(message, 4, addresses.slid);
    message[8..12].copy_from_slice(&addresses.dqp.to_wire().to_be_bytes());
    message[12..16].copy_from_slice(&addresses.sqp.to_wire().to_be_bytes());
    let status = match status {
        DataStatus::Ok => 0,
        DataStatus::TimedOut => TIMED_OUT,
    };
    message[DATA_STATUS..DATA_STATUS + 4].copy_from_slice(&status.to_be_bytes());
    message[20..DATA_MAD_LEN].fill(0);
    message[DATA_MAD_LEN..DATA_MAD].copy_from_slice(&(reported_length(mad) as u64).to_be_bytes());
    message[DATA_MAD..].copy_from_slice(&mad.0);
}

/// Offset of the first byte that the RMPP payload length counts: the end of the RMPP header.
const RMPP_PAYLOAD: usize = 36;

/// Completes the RMPP header of a table that a client sends, as a kernel would do: the client only sets the active flag and
/// gives the length of the table as the length of the message.
fn complete_rmpp(mad: &mut Mad, length: usize) {
    if mad.class() != ManagementClass::SUBNET_ADMINISTRATION {
        return;
    }
    let mut header = mad.rmpp();
    if header.version != 0 || !header.flags.has(RmppFlags::ACTIVE) || length < RMPP_PAYLOAD {
        return;
    }
    header.version = 1;
    header.kind = RmppKind::Data;
    header.flags = header.flags.with(RmppFlags::FIRST).with(RmppFlags::LAST);
    header.segment = 1;
    header.length_or_window = (length - RMPP_PAYLOAD) as u32;
    mad.set_rmpp(&header);
}

/// The MAD length to report to a client: up to the end of the table if the MAD is the last segment of one, else 256.
fn reported_length(mad: &Mad) -> usize {
    if mad.class() != ManagementClass::SUBNET_ADMINISTRATION {
        return MAD_LEN;
    }
    let header = mad.rmpp();
    let is_last = header.kind == RmppKind::Data && header.flags.has(RmppFlags::ACTIVE.with(RmppFlags::LAST));
    if header.version == 1 && is_last {
        RMPP_PAYLOAD.saturating_add(header.payload_length() as usize).min(MAD_LEN)
    } else {
        MAD_LEN
    }
}

fn control_message(raw: &[u8]) -> Result<&[u8; CONTROL_LEN], WireError> {
    let message: &[u8; CONTROL_LEN] =
        raw.try_into().map_err(|_| WireError::Length { expected: CONTROL_LEN, actual: raw.len() })?;
    match u32_at(message, 0) {
        MAGIC => Ok(message),
        other => Err(WireError::Magic(other)),
    }
}

fn control(client: u32, kind: u32, payload: &[u8]) -> [u8; CONTROL_LEN] {
    let mut message = [0; CONTROL_LEN];
    for (bytes, word) in message.chunks_exact_mut(4).zip([MAGIC, client, kind, payload.len() as u32]) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    message[PAYLOAD..PAYLOAD + payload.len()].copy_from_slice(payload);
    message
}

fn connect_message(client: u32, id: u32, connect: &Connect) -> [u8; CONTROL_LEN] {
    let mut payload = [0; CONNECT_LEN as usize];
    payload[..4].copy_from_slice(&id.to_ne_bytes());
    payload[8..12].copy_from_slice(&connect.role.to_flag().to_ne_bytes());
    let text = connect.node_id.as_bytes();
    let length = text.len().min(NODE_ID_LEN - 1);
    payload[12..12 + length].copy_from_slice(&text[..length]);
    control(client, kind::CONNECT, &payload)
}

fn vendor_payload(vendor: &Vendor) -> [u8; 24] {
    let mut payload = [0; 24];
    payload[..4].copy_from_slice(&vendor.vendor_id.to_ne_bytes());
    payload[4..8].copy_from_slice(&vendor.part_id.to_ne_bytes());
    payload[8..12].copy_from_slice(&vendor.hardware_version.to_ne_bytes());
    payload[16..].copy_from_slice(&vendor.firmware_version.to_ne_bytes());
    payload
}

/// Encodes a GID as the stock server does: the prefix in network byte order, the GUID in host byte order.
fn gid_payload(gid: Gid) -> [u8; 16] {
    let guid = gid.guid().map_or(0, Guid::to_wire);
    let mut payload = [0; 16];
    payload[..8].copy_from_slice(&gid.prefix().to_be_bytes());
    payload[8..].copy_from_slice(&guid.to_ne_bytes());
    payload
}

fn gid_from(payload: [u8; 16]) -> Gid {
    let guid = u64::from_ne_bytes(array_at(&payload, 8));
    let mut raw = payload;
    raw[8..].copy_from_slice(&guid.to_be_bytes());
    Gid(raw)
}

fn node_id(message: &[u8; CONTROL_LEN]) -> String {
    let raw = &message[NODE_ID..NODE_ID + NODE_ID_LEN];
    let end = raw.iter().position(|byte| *byte == 0).unwrap_or(NODE_ID_LEN);
    String::from_utf8_lossy(&raw[..end]).into_owned()
}

/// The `N` bytes at a fixed offset of a fixed-length message.
fn array_at<const N: usize>(message: &[u8], offset: usize) -> [u8; N] {
    message[offset..offset + N].try_into().expect("a slice of N bytes is an array of N bytes")
}

fn u32_at(message: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(array_at(message, offset))
}

fn lid_at(message: &[u8; DATA_LEN], offset: usize) -> Option<LidAddress> {
    LidAddress::from_wire(u16::from_be(u32_at(message, offset) as u16))
}

fn put_lid(message: &mut [u8; DATA_LEN], offset: usize, lid: Option<LidAddress>) {
    let raw = lid.map_or(0, LidAddress::to_wire).to_be();
    message[offset..offset + 4].copy_from_slice(&u32::from(raw).to_ne_bytes());
}

fn queue_pair_at(message: &[u8; DATA_LEN], offset: usize) -> Result<QueuePair, WireError> {
    let raw = u32::from_be_bytes(array_at(message, offset));
    QueuePair::from_wire(raw).ok_or(WireError::QueuePair(raw))
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
