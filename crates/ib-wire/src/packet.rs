//! Packets of queue pairs: from the local route header (LRH) to the invariant CRC.
//!
//! ```text
//! LRH 8 | GRH 40, if there is one | BTH 12 | headers of the operation | payload, padding | ICRC 4
//! ```

use thiserror::Error;

use crate::address::{Gid, LidAddress};
use crate::bits::{bits, bits_from, bytes};
use crate::datagram::{Datagram, Grh, QueuePair};
use crate::keys::{Pkey, QKey};
use crate::lanes::{ServiceLevel, VirtualLane};
use crate::mad::{MAD_LEN, Mad};

/// Length of the invariant CRC.
const CRC_LEN: usize = 4;
/// Value of the field LNH: a GRH follows, or a BTH.
const GLOBAL: u8 = 3;
const LOCAL: u8 = 2;
/// IP version and next header of a GRH.
const IP_VERSION: u8 = 6;
const NEXT_IS_BTH: u8 = 0x1b;
/// SEND Only of unreliable datagrams.
const DATAGRAM: u8 = 0x64;
const DATAGRAM_WITH_IMMEDIATE: u8 = 0x65;

layout! {
    /// Local route header.
    pub struct LocalRouteHeader[8] {
        /// The virtual lane that the packet takes on this link.
        lane: VirtualLane = bits(0, 7, 4),
        /// Version of the link layer, 0.
        version: u8 = bits(0, 3, 0),
        sl: ServiceLevel = bits(1, 7, 4),
        /// LNH: what follows.
        next: u8 = bits(1, 1, 0),
        dlid: Option<LidAddress> = bytes(2, 2),
        /// Length of the packet in units of 4 bytes, with this header and the ICRC.
        words: u16 = bits_from(4, 2, 11),
        slid: Option<LidAddress> = bytes(6, 2),
    }
}

layout! {
    /// Global route header.
    pub struct GlobalRouteHeader[40] {
        ip_version: u8 = bits(0, 7, 4),
        traffic_class: u8 = bits_from(0, 3, 8),
        flow_label: u32 = bits_from(1, 3, 20),
        /// Bytes after this header, with the ICRC.
        payload: u16 = bytes(4, 2),
        next: u8 = bytes(6, 1),
        hop_limit: u8 = bytes(7, 1),
        source: Gid = bytes(8, 16),
        destination: Gid = bytes(24, 16),
    }
}

layout! {
    /// Base transport header.
    pub struct BaseTransportHeader[12] {
        opcode: u8 = bytes(0, 1),
        /// Bytes of padding after the payload.
        padding: u8 = bits(1, 5, 4),
        /// Version of the transport, 0.
        version: u8 = bits(1, 3, 0),
        pkey: Option<Pkey> = bytes(2, 2),
        dqp: QueuePair = bytes(5, 3),
        sequence: u32 = bytes(9, 3),
    }
}

layout! {
    /// Datagram extended transport header.
    pub struct DatagramHeader[8] {
        qkey: QKey = bytes(0, 4),
        sqp: QueuePair = bytes(5, 3),
    }
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    #[error("shorter than its headers")]
    TooShort,
    #[error("a header states another length")]
    BadLength,
    #[error("a header holds an invalid value")]
    BadHeader,
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
}

/// The headers of a packet, and its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    pub sl: ServiceLevel,
    pub slid: Option<LidAddress>,
    pub dlid: LidAddress,
    pub grh: Option<Grh>,
    pub opcode: u8,
    pub pkey: Pkey,
    pub dqp: QueuePair,
    /// Q_Key and source of an unreliable datagram. Packets of connections do not name the queue pair that sends them.
    pub datagram: Option<(QKey, QueuePair)>,
    /// What follows the headers, up to the padding.
    pub payload: &'a [u8],
}

/// Splits a header off.
fn header(raw: &[u8], length: usize) -> Result<(&[u8], &[u8]), PacketError> {
    raw.split_at_checked(length).ok_or(PacketError::TooShort)
}

/// Length of the headers between BTH and payload.
fn extension(opcode: u8) -> Result<usize, PacketError> {
    match opcode {
        // Reliable connections: SEND, RDMA WRITE, RDMA READ, acknowledgements, atomic operations, SEND with Invalidate.
        0x00..=0x02 | 0x04 | 0x07 | 0x08 | 0x0e => Ok(0),
        0x03 | 0x05 | 0x09 | 0x0d | 0x0f..=0x11 | 0x16 | 0x17 => Ok(4),
        0x06 | 0x0a | 0x0c => Ok(16),
        0x0b => Ok(20),
        0x12 => Ok(12),
        0x13 | 0x14 => Ok(28),
        // Unreliable connections: SEND, RDMA WRITE.
        0x20..=0x22 | 0x24 | 0x27 | 0x28 => Ok(0),
        0x23 | 0x25 | 0x29 => Ok(4),
        0x26 | 0x2a => Ok(16),
        0x2b => Ok(20),
        DATAGRAM => Ok(DatagramHeader::LEN),
        DATAGRAM_WITH_IMMEDIATE => Ok(DatagramHeader::LEN + 4),
        unknown => Err(PacketError::UnknownOpcode(unknown)),
    }
}

impl<'a> Packet<'a> {
    /// Reads a packet. The ICRC is not checked.
    ///
    /// # Errors
    ///
    /// The reason why this is no packet.
    pub fn read(raw: &'a [u8]) -> Result<Self, PacketError> {
        let bad = |_| PacketError::BadHeader;
        let (local, mut rest) = header(raw, LocalRouteHeader::LEN)?;
        let local = LocalRouteHeader::decode(local).map_err(bad)?;
        if usize::from(local.words) * 4 != raw.len() {
            return Err(PacketError::BadLength);
        }
        let mut grh = None;
        if local.next == GLOBAL {
            let (global, after) = header(rest, GlobalRouteHeader::LEN)?;
            let global = GlobalRouteHeader::decode(global).map_err(bad)?;
            if usize::from(global.payload) != after.len() {
                return Err(PacketError::BadLength);
            }
            if (global.ip_version, global.next) != (IP_VERSION, NEXT_IS_BTH) {
                return Err(PacketError::BadHeader);
            }
            let GlobalRouteHeader { source, destination, traffic_class, flow_label, hop_limit, .. } = global;
            grh = Some(Grh { source, destination, traffic_class, flow_label, hop_limit });
            rest = after;
        }
        let (base, after) = header(rest, BaseTransportHeader::LEN)?;
        let base = BaseTransportHeader::decode(base).map_err(bad)?;
        let is_known = matches!(local.next, LOCAL | GLOBAL) && (local.version, base.version) == (0, 0);
        let (Some(dlid), Some(pkey), true) = (local.dlid, base.pkey, is_known) else {
            return Err(PacketError::BadHeader);
        };
        let (own, after) = header(after, extension(base.opcode)?)?;
        let datagram = match base.opcode {
            DATAGRAM | DATAGRAM_WITH_IMMEDIATE => {
                let DatagramHeader { qkey, sqp } = DatagramHeader::decode(own).map_err(bad)?;
                Some((qkey, sqp))
            }
            _ => None,
        };
        let end = after.len().checked_sub(CRC_LEN + usize::from(base.padding));
        let payload = end.and_then(|end| after.get(..end)).ok_or(PacketError::TooShort)?;
        let LocalRouteHeader { sl, slid, .. } = local;
        let BaseTransportHeader { opcode, dqp, .. } = base;
        Ok(Self { sl, slid, dlid, grh, opcode, pkey, dqp, datagram, payload })
    }

    /// The management datagram that a packet to QP0 or QP1 is; `None` for others.
    pub fn to_datagram(&self) -> Option<Datagram> {
        let is_management = [QueuePair::SUBNET_MANAGEMENT, QueuePair::GENERAL_MANAGEMENT].contains(&self.dqp);
        let (qkey, sqp) = self.datagram.filter(|_| is_management)?;
        let mad = Mad(self.payload.try_into().ok()?);
        Some(Datagram {
            slid: self.slid.unwrap_or(LidAddress::Permissive),
            dlid: self.dlid,
            sl: self.sl,
            grh: self.grh,
            pkey: self.pkey,
            qkey,
            sqp,
            dqp: self.dqp,
            mad,
        })
    }
}

/// Replaces the source LID of a packet.
pub fn set_packet_source(packet: &mut [u8], slid: LidAddress) {
    if let Some(field) = packet.get_mut(LocalRouteHeader::LEN - 2..LocalRouteHeader::LEN) {
        field.copy_from_slice(&slid.to_wire().to_be_bytes());
    }
}

impl Datagram {
    /// The packet of a management datagram, with an ICRC of 0. SMPs travel in lane 15.
    pub fn to_packet(&self) -> Vec<u8> {
        let transport = BaseTransportHeader::LEN + DatagramHeader::LEN + MAD_LEN + CRC_LEN;
        let length = LocalRouteHeader::LEN + self.grh.map_or(0, |_| GlobalRouteHeader::LEN) + transport;
        let mut packet = Vec::with_capacity(length);
        let is_smp = self.dqp == QueuePair::SUBNET_MANAGEMENT;
        let local = LocalRouteHeader {
            lane: if is_smp { VirtualLane::MANAGEMENT } else { VirtualLane::default() },
            version: 0,
            sl: self.sl,
            next: if self.grh.is_some() { GLOBAL } else { LOCAL },
            dlid: Some(self.dlid),
            words: (length / 4) as u16,
            slid: Some(self.slid),
        };
        packet.extend(local.encode());
        if let Some(Grh { source, destination, traffic_class, flow_label, hop_limit }) = self.grh {
            let global = GlobalRouteHeader {
                ip_version: IP_VERSION,
                traffic_class,
                flow_label,
                payload: transport as u16,
                next: NEXT_IS_BTH,
                hop_limit,
                source,
                destination,
            };
            packet.extend(global.encode());
        }
        let base = BaseTransportHeader {
            opcode: DATAGRAM,
            padding: 0,
            version: 0,
            pkey: Some(self.pkey),
            dqp: self.dqp,
            sequence: 0,
        };
        packet.extend(base.encode());
        packet.extend(DatagramHeader { qkey: self.qkey, sqp: self.sqp }.encode());
        packet.extend(self.mad.0);
        packet.extend([0; CRC_LEN]);
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::{Attribute, ManagementClass, Method};
    use proptest::prelude::*;

    fn datagram(grh: Option<Grh>) -> Datagram {
        let lid = |raw| LidAddress::from_wire(raw).unwrap();
        let mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET, Attribute::NODE_INFO, 7);
        let key = Pkey::from_wire(0x8001).unwrap();
        let whole = Datagram::general_management(lid(3), lid(9), key, mad);
        Datagram { grh, sl: ServiceLevel::from_wire(5).unwrap(), ..whole }
    }

    fn grh() -> Grh {
        let gid = |last| Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, last]);
        let (source, destination) = (gid(1), gid(2));
        Grh { source, destination, traffic_class: 0xa5, flow_label: 0xf_1234, hop_limit: 64 }
    }

    #[test]
    fn datagrams_come_back_from_packets() {
        for grh in [None, Some(grh())] {
            let sent = datagram(grh);
            let packet = sent.to_packet();
            assert_eq!(packet.len(), 8 + 12 + 8 + 256 + 4 + if grh.is_some() { 40 } else { 0 });
            assert_eq!(Packet::read(&packet).unwrap().to_datagram(), Some(sent));
        }
    }

    /// SEND Only with Immediate, 3 bytes of payload and one of padding.
    #[test]
    fn headers_stand_where_the_specification_puts_them() {
        let raw = [
            &[0x00, 0x52, 0x00, 0x09, 0x00, 0x0a, 0x00, 0x03][..],
            &[0x65, 0x10, 0x80, 0x01, 0x00, 0x08, 0x00, 0x11, 0x00, 0x00, 0x00, 0x2a],
            &[0x00, 0x00, 0x0b, 0x1b, 0x00, 0x10, 0x00, 0x12, 0xde, 0xad, 0xbe, 0xef],
            &[1, 2, 3, 0, 0, 0, 0, 0],
        ]
        .concat();
        let packet = Packet::read(&raw).unwrap();
        assert_eq!((packet.slid, Some(packet.dlid)), (LidAddress::from_wire(3), LidAddress::from_wire(9)));
        assert_eq!((packet.sl.to_wire(), packet.pkey.to_wire()), (5, 0x8001));
        assert_eq!(packet.dqp.to_wire(), 0x08_0011);
        let (qkey, sqp) = packet.datagram.unwrap();
        assert_eq!((qkey, sqp.to_wire()), (QKey::from_wire(0x0b1b), 0x10_0012));
        assert_eq!(packet.payload, [1, 2, 3]);
        for (change, byte) in [(0x1, 0), (0x3, 1), (0xff, 5), (0xff, 8), (0x1, 9)] {
            let mut wrong = raw.clone();
            wrong[byte] ^= change;
            assert!(Packet::read(&wrong).is_err(), "byte {byte}");
        }
        assert_eq!(Packet::read(&raw[..raw.len() - 4]), Err(PacketError::BadLength));
    }

    #[test]
    fn the_source_of_a_packet_is_replaced() {
        let mut packet = datagram(None).to_packet();
        set_packet_source(&mut packet, LidAddress::from_wire(0x1234).unwrap());
        assert_eq!(Packet::read(&packet).unwrap().slid, LidAddress::from_wire(0x1234));
        set_packet_source(&mut [], LidAddress::Permissive);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(mut raw in proptest::collection::vec(any::<u8>(), 0..400), fix in any::<bool>()) {
            if fix && raw.len() >= 8 {
                raw.truncate(raw.len() / 4 * 4);
                let words = (raw.len() / 4) as u16;
                (raw[0], raw[4], raw[5]) = (0, (words >> 8) as u8, words as u8);
            }
            if let Ok(packet) = Packet::read(&raw) {
                prop_assert!(packet.payload.len() < raw.len());
                let _ = packet.to_datagram();
            }
        }
    }
}
