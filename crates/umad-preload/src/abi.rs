//! The structures of the kernel's `rdma/ib_user_mad.h`, on the side of the kernel.
//!
//! Message header; host byte order unless marked:
//!
//! | offset | type | field |
//! |---|---|---|
//! | 0 | u32 | agent |
//! | 4 | u32 | status: 0, or ETIMEDOUT for a request that was not answered |
//! | 8 | u32 | response timeout in milliseconds; 0 = no response expected |
//! | 12 | u32 | retries |
//! | 16 | u32 | length of header and MAD |
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

use ib_wire::{Gid, Grh, ManagementClass};

/// An ioctl of the umad device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// `_IOWR(0x1b, 1, struct ib_user_mad_reg_req)`
    RegisterAgent,
    /// `_IOW(0x1b, 2, __u32)`
    UnregisterAgent,
    /// `_IO(0x1b, 3)`
    EnablePkey,
    /// `_IOWR(0x1b, 4, struct ib_user_mad_reg_req2)`
    RegisterAgent2,
}

impl Control {
    /// The ioctl with this request number; `None` if the device has none.
    pub(crate) fn from_request(request: u64) -> Option<Self> {
        match request as u32 {
            0xc01c_1b01 => Some(Self::RegisterAgent),
            0x4004_1b02 => Some(Self::UnregisterAgent),
            0x0000_1b03 => Some(Self::EnablePkey),
            0xc028_1b04 => Some(Self::RegisterAgent2),
            _ => None,
        }
    }

    /// Length of the argument in bytes.
    pub(crate) const fn argument_len(self) -> usize {
        match self {
            Self::RegisterAgent => 28,
            Self::UnregisterAgent => 4,
            Self::EnablePkey => 0,
            Self::RegisterAgent2 => 40,
        }
    }
}

/// Longest argument of an ioctl in bytes.
pub(crate) const ARGUMENT_MAX: usize = Control::RegisterAgent2.argument_len();

/// The header layout of an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HeaderLayout {
    /// 56 bytes; the P_Key index is always 0.
    #[default]
    Old,
    /// 64 bytes, after `IB_USER_MAD_ENABLE_PKEY`.
    WithPkeyIndex,
}

impl HeaderLayout {
    pub(crate) const fn len(self) -> usize {
        match self {
            Self::Old => 56,
            Self::WithPkeyIndex => 64,
        }
    }
}

/// The header of a message, with the raw numbers of the interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UmadHeader {
    pub(crate) agent: u32,
    pub(crate) status: u32,
    pub(crate) timeout_ms: u32,
    pub(crate) retries: u32,
    pub(crate) queue_pair: u32,
    pub(crate) queue_key: u32,
    pub(crate) lid: u16,
    pub(crate) service_level: u8,
    pub(crate) path_bits: u8,
    /// The GID of the other side is its `source` in a received message and its `destination` in one to send.
    pub(crate) grh: Option<Grh>,
    pub(crate) pkey_index: u16,
}

impl UmadHeader {
    /// Decodes the header of a message to send; `None` if `raw` is shorter than a header.
    pub(crate) fn decode(layout: HeaderLayout, raw: &[u8]) -> Option<Self> {
        let head = raw.get(..layout.len())?;
        let grh = (head[32] != 0).then(|| Grh {
            source: Gid::default(),
            destination: Gid(array_at(head, 36)),
            traffic_class: head[35],
            flow_label: u32::from_be_bytes(array_at(head, 52)),
            hop_limit: head[34],
        });
        let pkey_index = match layout {
            HeaderLayout::WithPkeyIndex => u16::from_ne_bytes(array_at(head, 56)),
            HeaderLayout::Old => 0,
        };
        Some(Self {
            agent: u32::from_ne_bytes(array_at(head, 0)),
            status: u32::from_ne_bytes(array_at(head, 4)),
            timeout_ms: u32::from_ne_bytes(array_at(head, 8)),
            retries: u32::from_ne_bytes(array_at(head, 12)),
            queue_pair: u32::from_be_bytes(array_at(head, 20)),
            queue_key: u32::from_be_bytes(array_at(head, 24)),
            lid: u16::from_be_bytes(array_at(head, 28)),
            service_level: head[30],
            path_bits: head[31],
            grh,
            pkey_index,
        })
    }

    /// Encodes the header of a message with `mad_len` bytes of MAD.
    pub(crate) fn encode(&self, layout: HeaderLayout, mad_len: usize) -> Vec<u8> {
        let mut out = vec![0; layout.len()];
        out[..4].copy_from_slice(&self.agent.to_ne_bytes());
        out[4..8].copy_from_slice(&self.status.to_ne_bytes());
        out[8..12].copy_from_slice(&self.timeout_ms.to_ne_bytes());
        out[12..16].copy_from_slice(&self.retries.to_ne_bytes());
        out[16..20].copy_from_slice(&((layout.len() + mad_len) as u32).to_ne_bytes());
        out[20..24].copy_from_slice(&self.queue_pair.to_be_bytes());
        out[24..28].copy_from_slice(&self.queue_key.to_be_bytes());
        out[28..30].copy_from_slice(&self.lid.to_be_bytes());
        out[30] = self.service_level;
        out[31] = self.path_bits;
        if let Some(grh) = &self.grh {
            out[32] = 1;
            out[34] = grh.hop_limit;
            out[35] = grh.traffic_class;
            out[36..52].copy_from_slice(&grh.source.0);
            out[52..56].copy_from_slice(&grh.flow_label.to_be_bytes());
        }
        if layout == HeaderLayout::WithPkeyIndex {
            out[56..58].copy_from_slice(&self.pkey_index.to_ne_bytes());
        }
        out
    }
}

/// Who handles RMPP for an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RmppHandling {
    /// The program: RMPP datagrams pass unchanged.
    Program,
    /// This library, as the kernel does: the program reads and writes whole messages.
    Library,
}

/// The registration of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    /// 0 or 1.
    pub(crate) queue_pair: u32,
    /// `None` (class 0): the agent receives only responses to its own requests.
    pub(crate) class: Option<ManagementClass>,
    pub(crate) class_version: u8,
    /// Requests with these methods are received: bit n for method n.
    pub(crate) methods: u128,
    /// Vendor of the class, for the vendor classes that have one.
    pub(crate) oui: [u8; 3],
    pub(crate) rmpp: RmppHandling,
}

/// Why the device rejects a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegistrationError {
    /// A field holds a value that is not allowed.
    Invalid,
    /// The flags of a registration of the second kind contain unknown ones.
    UnknownFlags,
}

/// `IB_USER_MAD_USER_RMPP`, the only flag of a registration of the second kind.
pub(crate) const USER_RMPP: u32 = 1;

/// Offset of the flags in the argument of `RegisterAgent2`.
pub(crate) const FLAGS_OFFSET: usize = 12;

/// Classes below this number have an entry in the kernel's tables.
const CLASSES_MAX: u8 = 80;

/// Versions below this number have an entry in the kernel's tables.
const CLASS_VERSIONS_MAX: u8 = 8;

impl Registration {
    /// Decodes the argument of `RegisterAgent`: 0 u32 agent; 4 16 bytes methods; 20 u8 queue pair; 21 u8 class; 22 u8 class
    /// version; 23 3 bytes vendor; 26 u8 RMPP version; 27 padding.
    pub(crate) fn decode(raw: &[u8; 28]) -> Result<Self, RegistrationError> {
        Self {
            queue_pair: raw[20].into(),
            class: (raw[21] != 0).then_some(ManagementClass(raw[21])),
            class_version: raw[22],
            methods: methods(array_at(raw, 4)),
            oui: array_at(raw, 23),
            rmpp: RmppHandling::Program,
        }
        .with_rmpp(raw[26], 0)
    }

    /// Decodes the argument of `RegisterAgent2`: 0 u32 agent; 4 u32 queue pair; 8 u8 class; 9 u8 class version; 12 u32 flags;
    /// 16 16 bytes methods; 32 u32 vendor; 36 u8 RMPP version.
    pub(crate) fn decode2(raw: &[u8; 40]) -> Result<Self, RegistrationError> {
        let flags = u32::from_ne_bytes(array_at(raw, FLAGS_OFFSET));
        if flags & !USER_RMPP != 0 {
            return Err(RegistrationError::UnknownFlags);
        }
        let [zero, oui @ ..] = u32::from_ne_bytes(array_at(raw, 32)).to_be_bytes();
        if zero != 0 {
            return Err(RegistrationError::Invalid);
        }
        Self {
            queue_pair: u32::from_ne_bytes(array_at(raw, 4)),
            class: (raw[8] != 0).then_some(ManagementClass(raw[8])),
            class_version: raw[9],
            methods: methods(array_at(raw, 16)),
            oui,
            rmpp: RmppHandling::Program,
        }
        .with_rmpp(raw[36], flags)
    }

    /// Checks the fields as the kernel does and sets who handles RMPP.
    fn with_rmpp(mut self, version: u8, flags: u32) -> Result<Self, RegistrationError> {
        let consistent = self.class.is_none_or(|class| {
            let known = class.0 < CLASSES_MAX || class == ManagementClass::SUBNET_DIRECTED;
            let has_vendor = !has_vendor_id(class) || self.oui != [0; 3];
            let on_its_pair = class.is_subnet_management() == (self.queue_pair == 0);
            let takes_rmpp = version == 0 || uses_rmpp(class);
            known && has_vendor && on_its_pair && takes_rmpp && self.class_version < CLASS_VERSIONS_MAX
        });
        if self.queue_pair > 1 || version > 1 || !consistent {
            return Err(RegistrationError::Invalid);
        }
        if version == 1 && flags & USER_RMPP == 0 {
            self.rmpp = RmppHandling::Library;
        }
        Ok(self)
    }
}

/// Whether datagrams of the class contain the id of a vendor, in bytes 37 to 39.
pub(crate) fn has_vendor_id(class: ManagementClass) -> bool {
    (0x30..=0x4f).contains(&class.0)
}

/// Whether datagrams of the class have an RMPP header.
pub(crate) fn uses_rmpp(class: ManagementClass) -> bool {
    // Subnet administration, device management, device administration, BIS and vendor classes with a vendor id.
    matches!(class.0, 0x03 | 0x06 | 0x10 | 0x12) || has_vendor_id(class)
}

/// The mask of methods: to the kernel a bitmap of two native words, the lower one first.
fn methods(raw: [u8; 16]) -> u128 {
    let low = u64::from_ne_bytes(array_at(&raw, 0));
    let high = u64::from_ne_bytes(array_at(&raw, 8));
    u128::from(high) << 64 | u128::from(low)
}

/// The `N` bytes at a fixed offset of a fixed-length part.
fn array_at<const N: usize>(raw: &[u8], offset: usize) -> [u8; N] {
    raw[offset..offset + N].try_into().expect("a slice of N bytes is an array of N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(class: u8, queue_pair: u8, rmpp_version: u8) -> Result<Registration, RegistrationError> {
        let mut raw = [0; 28];
        raw[4..8].copy_from_slice(&(1_u32 << 1 | 1 << 0x12).to_ne_bytes());
        (raw[20], raw[21], raw[22], raw[26]) = (queue_pair, class, 2, rmpp_version);
        Registration::decode(&raw)
    }

    #[test]
    fn request_numbers_encode_the_length_of_their_argument() {
        for request in [0xc01c_1b01_u64, 0x4004_1b02, 0x1b03, 0xc028_1b04] {
            let control = Control::from_request(request).unwrap();
            assert_eq!(control.argument_len() as u64, request >> 16 & 0x3fff);
        }
        assert_eq!(Control::from_request(0x5401), None);
    }

    #[test]
    fn a_registration_names_class_methods_and_rmpp() {
        let agent = register(3, 1, 1).unwrap();
        assert_eq!(agent.class, Some(ManagementClass::SUBNET_ADMINISTRATION));
        assert_eq!(agent.methods, 1 << 1 | 1 << 0x12);
        assert_eq!(agent.rmpp, RmppHandling::Library);
        assert_eq!(register(3, 1, 0).unwrap().rmpp, RmppHandling::Program);
    }

    #[test]
    fn inconsistent_registrations_are_rejected() {
        assert!(register(0x81, 0, 0).is_ok());
        for (class, queue_pair, rmpp) in [(3, 0, 0), (1, 1, 0), (3, 2, 0), (3, 1, 2), (4, 1, 1), (0x50, 1, 0)]
        {
            assert_eq!(register(class, queue_pair, rmpp), Err(RegistrationError::Invalid), "{class:#x}");
        }
        assert_eq!(register(0x32, 1, 0), Err(RegistrationError::Invalid), "it has no vendor");
    }

    #[test]
    fn the_second_registration_has_flags_and_a_vendor() {
        let mut raw = [0; 40];
        raw[4] = 1;
        (raw[8], raw[9], raw[36]) = (3, 2, 1);
        raw[32..36].copy_from_slice(&0x0012_3456_u32.to_ne_bytes());
        let agent = Registration::decode2(&raw).unwrap();
        assert_eq!((agent.oui, agent.rmpp), ([0x12, 0x34, 0x56], RmppHandling::Library));
        raw[FLAGS_OFFSET] = 1;
        assert_eq!(Registration::decode2(&raw).unwrap().rmpp, RmppHandling::Program);
        raw[FLAGS_OFFSET] = 2;
        assert_eq!(Registration::decode2(&raw), Err(RegistrationError::UnknownFlags));
    }

    #[test]
    fn headers_survive_a_round_trip_in_both_layouts() {
        let header = UmadHeader {
            agent: 3,
            timeout_ms: 1000,
            retries: 2,
            queue_pair: 1,
            queue_key: 0x8001_0000,
            lid: 0x0102,
            service_level: 4,
            pkey_index: 5,
            ..UmadHeader::default()
        };
        let raw = header.encode(HeaderLayout::WithPkeyIndex, 256);
        assert_eq!(raw[16..20], 320_u32.to_ne_bytes());
        assert_eq!(raw[20..31], [0, 0, 0, 1, 0x80, 1, 0, 0, 1, 2, 4]);
        assert_eq!(UmadHeader::decode(HeaderLayout::WithPkeyIndex, &raw), Some(header.clone()));
        let old = header.encode(HeaderLayout::Old, 256);
        assert_eq!((old.len(), &old[16..20]), (56, &312_u32.to_ne_bytes()[..]));
        assert_eq!(UmadHeader::decode(HeaderLayout::Old, &old), Some(UmadHeader { pkey_index: 0, ..header }));
        assert_eq!(UmadHeader::decode(HeaderLayout::Old, &old[1..]), None);
    }
}
