//! Subnet administration: the questions hosts ask about the subnet, and the records that answer them.
//!
//! A request carries one record as a pattern and a [`ComponentMask`] of the fields that count. Every record names its
//! components: `PathRecord::DGID | PathRecord::SGID` asks for the path between two ports. An answer carries the
//! records that match, [`Mad::sa_record_len`] bytes apart, in one datagram or in several ([`rmpp`](crate::rmpp)).

mod inventory;
mod multicast;
mod path;
mod pattern;
mod service;
mod tables;

use std::ops::BitOr;

pub use inventory::{GuidInfoRecord, LinkRecord, NodeRecord, PortInfoRecord, SmInfoRecord, SwitchInfoRecord};
pub use multicast::{JoinState, McMemberRecord};
pub use path::{PathRecord, Rate, Selector};
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

/// Attribute data of a subnet administration datagram in bytes.
pub const SA_DATA_LEN: usize = MAD_LEN - DATA;

const SM_KEY: Field = bytes(36, 8);
const ATTRIBUTE_OFFSET: Field = bytes(44, 2);
const COMPONENT_MASK: Field = bytes(48, 8);
const DATA: usize = 56;

/// What the subnet administration can do: bits of CapabilityMask in its ClassPortInfo.
pub mod capability {
    use super::ClassCapability as C;

    /// The records for tables, switches, links and GUIDs are answered.
    pub const OPTIONAL_RECORDS: C = C(1 << 8);
    /// Multicast groups for unreliable datagrams are managed.
    pub const MULTICAST: C = C(1 << 9);
    /// Several paths can be asked for at once.
    pub const MULTI_PATH: C = C(1 << 10);
    /// Ports are initialised again on demand.
    pub const REINIT: C = C(1 << 11);
    /// Several paths can be asked for by GID scope.
    pub const GID_SCOPED_MULTI_PATH: C = C(1 << 12);
    /// CapabilityMask of a PortInfoRecord matches bit by bit.
    pub const PORT_INFO_CAPABILITY_MATCH: C = C(1 << 13);
    /// Pairs of link speed and width are answered.
    pub const LINK_SPEED_WIDTH_PAIRS: C = C(1 << 14);
    /// Performance administration is answered.
    pub const PERFORMANCE_SERVICES: C = C(1 << 15);
}

/// What the subnet administration can do: bits of CapabilityMask2 in its ClassPortInfo.
pub mod capability2 {
    use super::ClassCapability2 as C;

    /// Traps 68 and 69 tell of paths that come and go.
    pub const UNPATH_REPATH: C = C(1 << 0);
    /// Paths answer by quality of service class.
    pub const QOS: C = C(1 << 1);
    /// A reversible path answers with the membership bit of its P_Key.
    pub const REVERSE_PATH_PKEY_MEMBERSHIP: C = C(1 << 2);
    /// MulticastFDBTop is used.
    pub const MULTICAST_FDB_TOP: C = C(1 << 3);
    /// Hierarchy information is answered.
    pub const HIERARCHY_INFO: C = C(1 << 4);
    /// Ports may have alias GUIDs.
    pub const ALIAS_GUIDS: C = C(1 << 5);
    /// A PortInfoRecord answers all 64 bytes of PortInfo.
    pub const FULL_PORT_INFO: C = C(1 << 6);
    /// Extended link speeds are known.
    pub const EXTENDED_SPEEDS: C = C(1 << 7);
    /// Service records of multicast groups are known.
    pub const MULTICAST_SERVICES: C = C(1 << 8);
    /// Cable information is answered.
    pub const CABLE_INFO: C = C(1 << 9);
    /// CapabilityMask2 of a PortInfoRecord matches bit by bit.
    pub const PORT_INFO_CAPABILITY2_MATCH: C = C(1 << 10);
    /// PortInfoExtended is answered.
    pub const PORT_INFO_EXTENDED: C = C(1 << 11);
}

/// Which fields of a record count in a request: one bit per component of the record.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ComponentMask(pub u64);

impl ComponentMask {
    /// No field counts: everything matches.
    pub const NONE: Self = Self(0);

    /// Whether all of `other` counts.
    #[inline]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This mask without `other`.
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
    /// The attribute that carries it.
    const ATTRIBUTE: Attribute;
    /// Its length in bytes, a multiple of 8.
    const LEN: usize;
    /// The components a mask can select, and where they are.
    const COMPONENTS: &'static [(ComponentMask, Field)];
    /// Reads a record from the start of `raw`.
    fn decode(raw: &[u8]) -> Result<Self, LayoutError>;
    /// Appends the record to `table`.
    fn append_to(&self, table: &mut Vec<u8>);
}

/// The bytes of several records, as an answer carries them.
pub fn table<'a, R: Record + 'a>(records: impl IntoIterator<Item = &'a R>) -> Vec<u8> {
    let mut table = Vec::new();
    for record in records {
        record.append_to(&mut table);
    }
    table
}

/// Reads the records of an answer. `record_len` is [`Mad::sa_record_len`] of it; 0 means that there are none. What
/// follows the last whole record is padding.
pub fn records<R: Record>(data: &[u8], record_len: usize) -> impl Iterator<Item = Result<R, LayoutError>> {
    // chunks_exact does not take 0; a record longer than the data leaves no chunk.
    let step = if record_len == 0 { data.len() + 1 } else { record_len };
    data.chunks_exact(step).map(R::decode)
}

/// Whether a record is what a request asks for: all components that `mask` selects are equal, bit by bit. `pattern` is
/// the data of the request; it need not be a record ([`NodeRecord::LID`] alone is a question, a node without GUID is
/// none). Components that do not compare for equality (selectors, capabilities) are for the caller to take out of the
/// mask and to judge. A mask bit that is no component of the record matches everything.
pub fn matches<R: Record>(record: &R, pattern: &[u8; SA_DATA_LEN], mask: ComponentMask) -> bool {
    let mut raw = Vec::with_capacity(R::LEN);
    record.append_to(&mut raw);
    let selected = R::COMPONENTS.iter().filter(|(component, _)| mask.has(*component));
    selected.into_iter().all(|(_, field)| same_bits(*field, &raw, pattern))
}

fn same_bits(field: Field, left: &[u8], right: &[u8]) -> bool {
    // Only whole bytes are longer than a number.
    match field.width() {
        0..=64 => field.get(left) == field.get(right),
        _ => left[field.first_byte()..field.end_byte()] == right[field.first_byte()..field.end_byte()],
    }
}

/// The fields only subnet administration datagrams have. They read and write fixed places and judge nothing.
impl Mad {
    /// The SM_Key it presents.
    #[inline]
    pub fn sm_key(&self) -> Option<SmKey> {
        SmKey::from_wire(SM_KEY.get(&self.0))
    }

    /// Replaces the SM_Key it presents.
    #[inline]
    pub fn set_sm_key(&mut self, key: Option<SmKey>) {
        key.write(&mut self.0, SM_KEY);
    }

    /// Distance between the records of an answer in bytes; 0 where there are none.
    #[inline]
    pub fn sa_record_len(&self) -> usize {
        ATTRIBUTE_OFFSET.get(&self.0) as usize * 8
    }

    /// Replaces the distance between records, rounded up to the multiple of 8 that the wire can say.
    #[inline]
    pub fn set_sa_record_len(&mut self, bytes: usize) {
        ATTRIBUTE_OFFSET.put(&mut self.0, bytes.div_ceil(8) as u64);
    }

    /// The fields of the record that count.
    #[inline]
    pub fn component_mask(&self) -> ComponentMask {
        ComponentMask(COMPONENT_MASK.get(&self.0))
    }

    /// Replaces the fields of the record that count.
    #[inline]
    pub fn set_component_mask(&mut self, mask: ComponentMask) {
        COMPONENT_MASK.put(&mut self.0, mask.0);
    }

    /// The attribute data.
    #[inline]
    pub fn sa_data(&self) -> &[u8; SA_DATA_LEN] {
        self.0[DATA..].try_into().expect("the data is the rest of the MAD")
    }

    /// The attribute data, to be written.
    #[inline]
    pub fn sa_data_mut(&mut self) -> &mut [u8; SA_DATA_LEN] {
        (&mut self.0[DATA..]).try_into().expect("the data is the rest of the MAD")
    }
}

/// Makes a layout a [`Record`] and names its components: bit of the mask and field, `inner: field` for a field of a
/// layout inside. Component names are those of the fields where the specification does not tell two apart.
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

        // The distance between records is said in units of 8 bytes.
        const _: () = assert!($ty::LEN.is_multiple_of(8));

        /// Components: what a [`ComponentMask`](crate::sa::ComponentMask) can select.
        impl $ty {
            $(
                #[doc = concat!("Component ", stringify!($bit), " of the mask.")]
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
    fn the_header_of_the_class_sits_between_rmpp_and_data() {
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
    fn a_record_matches_by_the_selected_components_only() {
        let link = LinkRecord::decode(&[0, 1, 2, 3, 0, 4, 0, 0]).unwrap();
        let mut pattern = [0; SA_DATA_LEN];
        pattern[..8].copy_from_slice(&[0, 1, 9, 3, 9, 9, 9, 9]);
        assert!(matches(&link, &pattern, LinkRecord::FROM_LID | LinkRecord::TO_PORT));
        assert!(!matches(&link, &pattern, LinkRecord::FROM_LID | LinkRecord::FROM_PORT));
        assert!(matches(&link, &pattern, ComponentMask::NONE));
    }

    #[test]
    fn an_answer_without_records_has_none() {
        assert_eq!(records::<LinkRecord>(&[0; 200], 0).count(), 0);
        assert_eq!(records::<LinkRecord>(&[0; 200], usize::MAX).count(), 0);
        assert_eq!(records::<LinkRecord>(&[], 8).count(), 0);
        assert_eq!(records::<LinkRecord>(&[0; 23], 8).count(), 2);
    }
}
