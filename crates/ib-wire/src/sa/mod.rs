//! Subnet administration (SA): queries about the subnet, and the records that answer them.
//!
//! A request carries one record as a pattern and a [`ComponentMask`] that selects the fields to compare. Every record type
//! has constants for its components: `PathRecord::DGID | PathRecord::SGID` queries the paths between two ports. A response
//! carries the records that match, [`Mad::sa_record_len`] bytes apart, in one datagram or in several ([`rmpp`](crate::rmpp)).

mod inventory;
mod multicast;
mod path;
mod pattern;
mod service;
mod tables;

use std::ops::BitOr;

pub use inventory::{GuidInfoRecord, LinkRecord, NodeRecord, PortInfoRecord, SmInfoRecord, SwitchInfoRecord};
pub use multicast::{JoinState, McMemberRecord};
pub use path::{MultiPathRecord, PathRecord, Selector};
pub use pattern::{Matcher, Pattern};
pub use service::{ServiceKey, ServiceRecord};
pub use tables::{
    LinearForwardingRecord, MulticastForwardingRecord, PkeyTableRecord, SlToVlRecord, VlArbitrationRecord,
};

use crate::bits::{Field, LayoutError, WireValue, bytes, field_named, nested_field};
use crate::class_port_info::{ClassCapability, ClassCapability2};
use crate::keys::SmKey;
use crate::mad::{Attribute, MAD_LEN, Mad};
use crate::notice::{InformInfo, InformInfoRecord};

/// Length of the attribute data of a subnet administration datagram, in bytes.
pub const SA_DATA_LEN: usize = MAD_LEN - DATA;

const SM_KEY: Field = bytes(36, 8);
const ATTRIBUTE_OFFSET: Field = bytes(44, 2);
const COMPONENT_MASK: Field = bytes(48, 8);
const DATA: usize = 56;

/// Capabilities of a subnet administration: bits of CapabilityMask in its ClassPortInfo.
pub mod capability {
    use super::ClassCapability as C;

    /// Optional records (tables, switches, links, GUIDs) are supported.
    pub const OPTIONAL_RECORDS: C = C(1 << 8);
    /// Multicast groups are supported.
    pub const MULTICAST: C = C(1 << 9);
    /// The attribute MultiPathRecord is supported.
    pub const MULTI_PATH: C = C(1 << 10);
    /// Reinitialisation of ports on request is supported.
    pub const REINIT: C = C(1 << 11);
    /// MultiPathRecord may select ports by GID scope.
    pub const GID_SCOPED_MULTI_PATH: C = C(1 << 12);
    /// A PortInfoRecord query can match single bits of CapabilityMask.
    pub const PORT_INFO_CAPABILITY_MATCH: C = C(1 << 13);
    /// The attribute LinkSpeedWidthPairsTable is supported.
    pub const LINK_SPEED_WIDTH_PAIRS: C = C(1 << 14);
    /// Performance administration services are supported.
    pub const PERFORMANCE_SERVICES: C = C(1 << 15);
}

/// Capabilities of a subnet administration: bits of CapabilityMask2 in its ClassPortInfo.
pub mod capability2 {
    use super::ClassCapability2 as C;

    /// Traps 68 and 69 report paths that are lost and restored.
    pub const UNPATH_REPATH: C = C(1 << 0);
    /// Path queries may depend on the quality of service class.
    pub const QOS: C = C(1 << 1);
    /// The P_Key of a reversible path has the membership bit of the reverse direction.
    pub const REVERSE_PATH_PKEY_MEMBERSHIP: C = C(1 << 2);
    /// MulticastFDBTop of SwitchInfo is used.
    pub const MULTICAST_FDB_TOP: C = C(1 << 3);
    /// The attribute HierarchyInfo is supported.
    pub const HIERARCHY_INFO: C = C(1 << 4);
    /// Alias GUIDs of ports are supported.
    pub const ALIAS_GUIDS: C = C(1 << 5);
    /// A PortInfoRecord has all 64 bytes of PortInfo.
    pub const FULL_PORT_INFO: C = C(1 << 6);
    /// Extended link speeds are supported.
    pub const EXTENDED_SPEEDS: C = C(1 << 7);
    /// Service records of multicast groups are supported.
    pub const MULTICAST_SERVICES: C = C(1 << 8);
    /// The attribute CableInfo is supported.
    pub const CABLE_INFO: C = C(1 << 9);
    /// A PortInfoRecord query can match single bits of CapabilityMask2.
    pub const PORT_INFO_CAPABILITY2_MATCH: C = C(1 << 10);
    /// The attribute PortInfoExtended is supported.
    pub const PORT_INFO_EXTENDED: C = C(1 << 11);
    /// Ports may join multicast groups as send-only full members.
    pub const SEND_ONLY_FULL_MEMBERS: C = C(1 << 12);
}

/// The fields of a record that a request selects: one bit per component of the record.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ComponentMask(pub u64);

impl ComponentMask {
    /// Selects no component, so that every record matches.
    pub const NONE: Self = Self(0);

    /// Whether this mask selects every component of `other`.
    #[inline]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This mask with the components of `other` cleared.
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for ComponentMask {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl std::fmt::Debug for ComponentMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ComponentMask({:#x})", self.0)
    }
}

/// A record of the subnet administration.
pub trait Record: Sized {
    /// The attribute identifier of the record.
    const ATTRIBUTE: Attribute;
    /// Length of the record in bytes, a multiple of 8.
    const LEN: usize;
    /// The components that a mask can select, with their fields.
    const COMPONENTS: &'static [(ComponentMask, Field)];
    /// Decodes a record from the start of `raw`.
    ///
    /// # Errors
    ///
    /// See [`LayoutError`].
    fn decode(raw: &[u8]) -> Result<Self, LayoutError>;
    /// Appends the encoded record to `table`.
    fn append_to(&self, table: &mut Vec<u8>);
}

/// Encodes records as the data of a response, [`Record::LEN`] bytes apart.
pub fn table<'a, R: Record + 'a>(records: impl IntoIterator<Item = &'a R>) -> Vec<u8> {
    let mut table = Vec::new();
    for record in records {
        record.append_to(&mut table);
    }
    table
}

/// Decodes the records in the data of a response. `record_len` is [`Mad::sa_record_len`] of the response; 0 means that there
/// are none. Bytes after the last complete record are ignored as padding.
pub fn records<R: Record>(data: &[u8], record_len: usize) -> impl Iterator<Item = Result<R, LayoutError>> {
    // chunks_exact does not take 0; a record longer than the data leaves no chunk.
    let step = if record_len == 0 { data.len() + 1 } else { record_len };
    data.chunks_exact(step).map(R::decode)
}

/// Whether a record matches a request: all components that `mask` selects are equal to those of `pattern`, bit by bit.
///
/// `pattern` is the data of the request. It need not be a valid record: a NodeRecord query by [`NodeRecord::LID`] alone has
/// no GUID. Components that are not compared for equality (selectors, capability masks) have to be cleared in the mask and
/// compared by the caller. A mask bit that is not a component of the record has no effect. To compare many records use
/// [`Pattern::matcher`].
pub fn matches<R: Record>(record: &R, pattern: &[u8; SA_DATA_LEN], mask: ComponentMask) -> bool {
    let mut raw = Vec::with_capacity(R::LEN);
    record.append_to(&mut raw);
    let selected = R::COMPONENTS.iter().filter(|(component, _)| mask.has(*component));
    selected.into_iter().all(|(_, field)| same_bits(*field, &raw, pattern))
}

fn same_bits(field: Field, left: &[u8], right: &[u8]) -> bool {
    // Fields of more than 64 bits consist of whole bytes.
    match field.width() {
        0..=64 => field.get(left) == field.get(right),
        _ => left[field.first_byte()..field.end_byte()] == right[field.first_byte()..field.end_byte()],
    }
}

/// Fields of SA datagrams. The accessors read and write fixed offsets whatever the class of the datagram is.
impl Mad {
    /// The SM_Key of the sender; `None` if it is 0.
    #[inline]
    pub fn sm_key(&self) -> Option<SmKey> {
        SmKey::from_wire(SM_KEY.get(&self.0))
    }

    /// Sets the SM_Key of the sender.
    #[inline]
    pub fn set_sm_key(&mut self, key: Option<SmKey>) {
        key.write(&mut self.0, SM_KEY);
    }

    /// AttributeOffset: distance between the records of a response in bytes, a multiple of 8; 0 if there are none.
    #[inline]
    pub fn sa_record_len(&self) -> usize {
        ATTRIBUTE_OFFSET.get(&self.0) as usize * 8
    }

    /// Sets AttributeOffset; `bytes` is rounded up to a multiple of 8.
    #[inline]
    pub fn set_sa_record_len(&mut self, bytes: usize) {
        ATTRIBUTE_OFFSET.put(&mut self.0, bytes.div_ceil(8) as u64);
    }

    /// The components that the request selects.
    #[inline]
    pub fn component_mask(&self) -> ComponentMask {
        ComponentMask(COMPONENT_MASK.get(&self.0))
    }

    /// Sets the components that the request selects.
    #[inline]
    pub fn set_component_mask(&mut self, mask: ComponentMask) {
        COMPONENT_MASK.put(&mut self.0, mask.0);
    }

    /// The attribute data, bytes 56 to 255.
    #[inline]
    pub fn sa_data(&self) -> &[u8; SA_DATA_LEN] {
        self.0[DATA..].try_into().expect("bytes 56 to 255 of a MAD are SA_DATA_LEN bytes")
    }

    /// The attribute data, bytes 56 to 255.
    #[inline]
    pub fn sa_data_mut(&mut self) -> &mut [u8; SA_DATA_LEN] {
        (&mut self.0[DATA..]).try_into().expect("bytes 56 to 255 of a MAD are SA_DATA_LEN bytes")
    }
}

/// Implements [`Record`] for a layout and declares its components, each with its bit of the mask and its field.
macro_rules! record {
    ($ty:ident, $attribute:ident { $( $component:ident = $bit:literal => $field:expr, )* }) => {
        impl $crate::sa::Record for $ty {
            const ATTRIBUTE: $crate::mad::Attribute = $crate::mad::Attribute::$attribute;
            const LEN: usize = $ty::LEN;
            const COMPONENTS: &'static [($crate::sa::ComponentMask, $crate::bits::Field)] =
                &[$( ($ty::$component, $field) ),*];
            fn decode(raw: &[u8]) -> Result<Self, $crate::bits::LayoutError> {
                $ty::decode(raw)
            }
            fn append_to(&self, table: &mut Vec<u8>) {
                table.extend_from_slice(&self.encode());
            }
        }

        // AttributeOffset is in units of 8 bytes.
        const _: () = assert!($ty::LEN.is_multiple_of(8));

        /// Components that a [`ComponentMask`](crate::sa::ComponentMask) can select.
        impl $ty {
            $(
                #[doc = concat!("Bit ", stringify!($bit), " of the component mask.")]
                pub const $component: $crate::sa::ComponentMask = $crate::sa::ComponentMask(1 << $bit);
            )*
        }
    };
}
use record;

const fn inform(name: &str) -> Field {
    nested_field(InformInfoRecord::FIELDS, "inform_info", InformInfo::FIELDS, name)
}

record!(InformInfoRecord, INFORM_INFO_RECORD {
    SUBSCRIBER = 0 => field_named(InformInfoRecord::FIELDS, "subscriber"),
    SUBSCRIBER_ENUM = 1 => field_named(InformInfoRecord::FIELDS, "subscriber_enum"),
    GID = 3 => inform("gid"),
    LID_RANGE_BEGIN = 4 => inform("lid_range_begin"),
    LID_RANGE_END = 5 => inform("lid_range_end"),
    SCOPE = 7 => inform("scope"),
    SUBSCRIPTION = 8 => inform("subscription"),
    KIND = 9 => inform("kind"),
    NUMBER = 10 => inform("number"),
    QP = 11 => inform("qp"),
    RESPONSE_TIME = 13 => inform("response_time"),
    PRODUCER_OR_VENDOR = 15 => inform("producer_or_vendor"),
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::{ManagementClass, Method};

    #[test]
    fn the_sa_header_is_between_rmpp_and_data() {
        let mut mad =
            Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET_TABLE, Attribute::PATH_RECORD, 0);
        mad.set_sm_key(SmKey::from_wire(0x0102_0304_0506_0708));
        mad.set_sa_record_len(108);
        mad.set_component_mask(PathRecord::DLID | PathRecord::SLID);
        assert_eq!(mad.0[36..56], [1, 2, 3, 4, 5, 6, 7, 8, 0, 14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x30]);
        assert_eq!(mad.sa_record_len(), 112);
        assert!(mad.component_mask().has(PathRecord::DLID) && !mad.component_mask().has(PathRecord::DGID));
    }

    #[test]
    fn only_selected_components_are_compared() {
        let link = LinkRecord::decode(&[0, 1, 2, 3, 0, 4, 0, 0]).unwrap();
        let mut pattern = [0; SA_DATA_LEN];
        pattern[..8].copy_from_slice(&[0, 1, 9, 3, 9, 9, 9, 9]);
        assert!(matches(&link, &pattern, LinkRecord::FROM_LID | LinkRecord::TO_PORT));
        assert!(!matches(&link, &pattern, LinkRecord::FROM_LID | LinkRecord::FROM_PORT));
        assert!(matches(&link, &pattern, ComponentMask::NONE));
    }

    #[test]
    fn a_response_without_records_is_empty() {
        assert_eq!(records::<LinkRecord>(&[0; 200], 0).count(), 0);
        assert_eq!(records::<LinkRecord>(&[0; 200], usize::MAX).count(), 0);
        assert_eq!(records::<LinkRecord>(&[], 8).count(), 0);
        assert_eq!(records::<LinkRecord>(&[0; 23], 8).count(), 2);
    }
}
