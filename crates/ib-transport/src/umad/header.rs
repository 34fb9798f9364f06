//! The structures of `rdma/ib_user_mad.h`.
//!
//! Message header; host byte order unless marked:
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | u32 | agent |
//! | 4 | u32 | status: 0, or ETIMEDOUT for a request that was not answered |
//! | 8 | u32 | response timeout in milliseconds |
//! | 12 | u32 | retries |
//! | 16 | u32 | length |
//! | 20 | u32, network | the other side's queue pair |
//! | 24 | u32, network | Q_Key |
//! | 28 | u16, network | the other side's LID |
//! | 30 | u8 | service level |
//! | 31 | u8 | path bits |
//! | 32 | u8 | has a GRH |
//! | 33 | u8 | GID index |
//! | 34 | u8 | hop limit |
//! | 35 | u8 | traffic class |
//! | 36 | 16 bytes | the other side's GID |
//! | 52 | u32, network | flow label |
//! | 56 | u16 | P_Key index (not in the old layout, which ends here) |
//! | 58 | 6 bytes | not used |

use std::ffi::c_ulong;

use ib_wire::{Gid, Grh, MAD_LEN, Mad, ManagementClass, Method};

/// `_IOWR(0x1b, 1, struct ib_user_mad_reg_req)`.
pub(super) const REGISTER_AGENT: c_ulong = 0xc01c_1b01;
/// `_IOW(0x1b, 2, __u32)`.
pub(super) const UNREGISTER_AGENT: c_ulong = 0x4004_1b02;
/// `_IO(0x1b, 3)`.
pub(super) const ENABLE_PKEY: c_ulong = 0x1b03;

/// Length of a registration in bytes.
const REGISTRATION_LEN: usize = 28;

/// Length of the longest message in bytes.
pub(super) const MESSAGE_MAX: usize = Layout::WithPkeyIndex.len() + MAD_LEN;

/// The header layout of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// 56 bytes; the P_Key index is always 0.
    Old,
    WithPkeyIndex,
}

impl Layout {
    const fn len(self) -> usize {
        match self {
            Self::Old => 56,
            Self::WithPkeyIndex => 64,
        }
    }
}

/// The header of a message, with the raw numbers of the kernel interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) agent: u32,
    pub(super) status: u32,
    pub(super) timeout_ms: u32,
    pub(super) queue_pair: u32,
    pub(super) queue_key: u32,
    pub(super) lid: u16,
    pub(super) service_level: u8,
    /// Only the GID of the other side is part of the interface: the destination when sending, the source when receiving.
    pub(super) grh: Option<Grh>,
    pub(super) pkey_index: u16,
}

impl Header {
    /// Encodes header and datagram; returns the length of both in bytes.
    pub(super) fn encode(&self, layout: Layout, mad: &Mad, out: &mut [u8; MESSAGE_MAX]) -> usize {
        let length = layout.len() + MAD_LEN;
        out.fill(0);
        out[..4].copy_from_slice(&self.agent.to_ne_bytes());
        out[4..8].copy_from_slice(&self.status.to_ne_bytes());
        out[8..12].copy_from_slice(&self.timeout_ms.to_ne_bytes());
        out[16..20].copy_from_slice(&(length as u32).to_ne_bytes());
        out[20..24].copy_from_slice(&self.queue_pair.to_be_bytes());
        out[24..28].copy_from_slice(&self.queue_key.to_be_bytes());
        out[28..30].copy_from_slice(&self.lid.to_be_bytes());
        out[30] = self.service_level;
        if let Some(grh) = &self.grh {
            out[32] = 1;
            out[34] = grh.hop_limit;
            out[35] = grh.traffic_class;
            out[36..52].copy_from_slice(&grh.destination.0);
            out[52..56].copy_from_slice(&grh.flow_label.to_be_bytes());
        }
        if layout == Layout::WithPkeyIndex {
            out[56..58].copy_from_slice(&self.pkey_index.to_ne_bytes());
        }
        out[layout.len()..length].copy_from_slice(&mad.0);
        length
    }

    /// Decodes header and datagram; `None` if `raw` is too short for a header. A short datagram is padded with zeros: the kernel
    /// returns only the first bytes of a lost request.
    pub(super) fn decode(layout: Layout, raw: &[u8]) -> Option<(Self, Mad)> {
        let (head, data) = raw.split_at_checked(layout.len())?;
        let mut mad = Mad([0; MAD_LEN]);
        for (target, byte) in mad.0.iter_mut().zip(data) {
            *target = *byte;
        }
        let grh = (head[32] != 0).then(|| Grh {
            source: Gid(array_at(head, 36)),
            destination: Gid::default(),
            traffic_class: head[35],
            flow_label: u32::from_be_bytes(array_at(head, 52)),
            hop_limit: head[34],
        });
        let header = Self {
            agent: u32::from_ne_bytes(array_at(head, 0)),
            status: u32::from_ne_bytes(array_at(head, 4)),
            timeout_ms: u32::from_ne_bytes(array_at(head, 8)),
            queue_pair: u32::from_be_bytes(array_at(head, 20)),
            queue_key: u32::from_be_bytes(array_at(head, 24)),
            lid: u16::from_be_bytes(array_at(head, 28)),
            service_level: head[30],
            grh,
            pkey_index: if layout == Layout::WithPkeyIndex {
                u16::from_ne_bytes(array_at(head, 56))
            } else {
                0
            },
        };
        Some((header, mad))
    }
}

/// A registration: 0 u32 agent (set by the kernel); 4 16 bytes methods, one bit each; 20 u8 queue pair; 21 u8 class;
/// 22 u8 class version; 23 3 bytes vendor; 26 u8 RMPP version; 27 padding.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegisterAgent<'a> {
    pub(super) class: ManagementClass,
    /// Requests with these methods are received; responses are always received.
    pub(super) methods: &'a [Method],
}

impl RegisterAgent<'_> {
    pub(super) fn encode(&self) -> [u8; REGISTRATION_LEN] {
        let mut raw = [0; REGISTRATION_LEN];
        let mask = self.methods.iter().fold(0_u128, |mask, method| mask | 1 << (method.0 & 0x7f));
        // To the kernel the mask is a bitmap: two native words, the lower one first.
        raw[4..12].copy_from_slice(&(mask as u64).to_ne_bytes());
        raw[12..20].copy_from_slice(&((mask >> 64) as u64).to_ne_bytes());
        raw[20] = u8::from(!self.class.is_subnet_management());
        raw[21] = self.class.0;
        raw[22] = self.class.version();
        raw
    }

    /// The agent id that the kernel has filled in.
    pub(super) fn id(raw: &[u8; REGISTRATION_LEN]) -> u32 {
        u32::from_ne_bytes(array_at(raw, 0))
    }
}

/// The `N` bytes at a fixed offset of a fixed-length part.
fn array_at<const N: usize>(raw: &[u8], offset: usize) -> [u8; N] {
    raw[offset..offset + N].try_into().expect("a slice of N bytes is an array of N bytes")
}

#[cfg(test)]
mod tests {
    use ib_wire::{Attribute, DirectedRoute};

    use super::*;

    fn header() -> Header {
        Header {
            agent: 3,
            status: 0,
            timeout_ms: 1000,
            queue_pair: 1,
            queue_key: 0x8001_0000,
            lid: 0x0102,
            service_level: 4,
            grh: None,
            pkey_index: 5,
        }
    }

    fn mad() -> Mad {
        Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &DirectedRoute::default())
    }

    #[test]
    fn headers_survive_a_round_trip_in_both_layouts() {
        let mut raw = [0; MESSAGE_MAX];
        let length = header().encode(Layout::WithPkeyIndex, &mad(), &mut raw);
        assert_eq!(length, 320);
        assert_eq!(Header::decode(Layout::WithPkeyIndex, &raw), Some((header(), mad())));
        let length = header().encode(Layout::Old, &mad(), &mut raw);
        assert_eq!(length, 312);
        let old = Header { pkey_index: 0, ..header() };
        assert_eq!(Header::decode(Layout::Old, &raw[..length]), Some((old, mad())));
    }

    #[test]
    fn field_offsets_are_those_of_the_kernel() {
        let mut raw = [0; MESSAGE_MAX];
        header().encode(Layout::WithPkeyIndex, &mad(), &mut raw);
        assert_eq!(raw[20..31], [0, 0, 0, 1, 0x80, 1, 0, 0, 1, 2, 4]);
        assert_eq!(raw[56..58], 5_u16.to_ne_bytes());
        assert_eq!(raw[64..66], [1, 0x81]);
    }

    #[test]
    fn a_short_message_is_padded_and_a_short_header_rejected() {
        let mut raw = [0; MESSAGE_MAX];
        header().encode(Layout::WithPkeyIndex, &mad(), &mut raw);
        let (_, cut) = Header::decode(Layout::WithPkeyIndex, &raw[..64 + 24]).unwrap();
        assert_eq!(cut.0[..24], mad().0[..24]);
        assert_eq!(cut.0[24..], [0; 232]);
        assert_eq!(Header::decode(Layout::WithPkeyIndex, &raw[..63]), None);
    }

    #[test]
    fn a_registration_has_the_bytes_of_the_kernel() {
        let raw = RegisterAgent {
            class: ManagementClass::SUBNET_ADMINISTRATION,
            methods: &[Method::GET, Method::DELETE],
        }
        .encode();
        assert_eq!(raw[4..8], (1_u32 << 1 | 1 << 0x15).to_ne_bytes());
        assert_eq!(raw[20..27], [1, 3, 2, 0, 0, 0, 0]);
        assert_eq!((REGISTER_AGENT >> 16) & 0x3fff, REGISTRATION_LEN as u64);
    }
}
