//! MCMemberRecord: multicast groups and who is in them.

use super::{Rate, Selector, record};
use crate::address::{Gid, MulticastLid};
use crate::bits::{Field, WireValue, bits, bits_from, bytes, field_named};
use crate::keys::{Pkey, QKey};
use crate::lanes::ServiceLevel;
use crate::link::Mtu;

layout! {
    /// MCMemberRecord (attribute 0x0038): Set joins, Delete leaves.
    pub struct McMemberRecord[56] {
        /// The group.
        mgid: Gid = bytes(0, 16),
        /// The member; all zero where a record stands for the group.
        port_gid: Gid = bytes(16, 16),
        /// Queue key of the group.
        qkey: QKey = bytes(32, 4),
        /// LID of the group.
        mlid: Option<MulticastLid> = bytes(36, 2),
        /// How `mtu` is meant in a request.
        mtu_selector: Selector = bits(38, 7, 6),
        /// Largest packet.
        mtu: Mtu = bits(38, 5, 0),
        /// Traffic class of a global route header.
        traffic_class: u8 = bytes(39, 1),
        /// Partition key of the group.
        pkey: Option<Pkey> = bytes(40, 2),
        /// How `rate` is meant in a request.
        rate_selector: Selector = bits(42, 7, 6),
        /// The slowest link.
        rate: Rate = bits(42, 5, 0),
        /// How `packet_life_time` is meant in a request.
        packet_life_time_selector: Selector = bits(43, 7, 6),
        /// How long a packet may be under way: 4.096 µs times 2 to this power.
        packet_life_time: u8 = bits(43, 5, 0),
        /// Service level of the group.
        sl: ServiceLevel = bits(44, 7, 4),
        /// Flow label of a global route header.
        flow_label: u32 = bits_from(44, 3, 20),
        /// Hop limit of a global route header.
        hop_limit: u8 = bytes(47, 1),
        /// How far the group reaches: 2 link, 5 site, 8 organisation, 14 everywhere.
        scope: u8 = bits(48, 7, 4),
        /// What the member wants, or has.
        join_state: JoinState = bits(48, 3, 0),
        /// Somebody else joined for the member.
        proxy_join: bool = bits(49, 7, 7),
    }
}

record!(McMemberRecord, MC_MEMBER_RECORD {
    MGID = 0 => field_named(McMemberRecord::FIELDS, "mgid"),
    PORT_GID = 1 => field_named(McMemberRecord::FIELDS, "port_gid"),
    QKEY = 2 => field_named(McMemberRecord::FIELDS, "qkey"),
    MLID = 3 => field_named(McMemberRecord::FIELDS, "mlid"),
    MTU_SELECTOR = 4 => field_named(McMemberRecord::FIELDS, "mtu_selector"),
    MTU = 5 => field_named(McMemberRecord::FIELDS, "mtu"),
    TRAFFIC_CLASS = 6 => field_named(McMemberRecord::FIELDS, "traffic_class"),
    PKEY = 7 => field_named(McMemberRecord::FIELDS, "pkey"),
    RATE_SELECTOR = 8 => field_named(McMemberRecord::FIELDS, "rate_selector"),
    RATE = 9 => field_named(McMemberRecord::FIELDS, "rate"),
    PACKET_LIFE_TIME_SELECTOR = 10 => field_named(McMemberRecord::FIELDS, "packet_life_time_selector"),
    PACKET_LIFE_TIME = 11 => field_named(McMemberRecord::FIELDS, "packet_life_time"),
    SL = 12 => field_named(McMemberRecord::FIELDS, "sl"),
    FLOW_LABEL = 13 => field_named(McMemberRecord::FIELDS, "flow_label"),
    HOP_LIMIT = 14 => field_named(McMemberRecord::FIELDS, "hop_limit"),
    SCOPE = 15 => field_named(McMemberRecord::FIELDS, "scope"),
    JOIN_STATE = 16 => field_named(McMemberRecord::FIELDS, "join_state"),
    PROXY_JOIN = 17 => field_named(McMemberRecord::FIELDS, "proxy_join"),
});

/// What a member of a group wants, or has: one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct JoinState(pub u8);

impl JoinState {
    /// Sends and receives; keeps the group alive.
    pub const FULL: Self = Self(1);
    /// Sends and receives; does not keep the group alive.
    pub const NON_MEMBER: Self = Self(2);
    /// Sends only; does not keep the group alive.
    pub const SEND_ONLY_NON_MEMBER: Self = Self(4);
    /// Sends only; keeps the group alive.
    pub const SEND_ONLY_FULL: Self = Self(8);

    /// Whether all of `other` is in this set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set with `other`.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl WireValue for JoinState {
    const MAX_BITS: usize = 8;
    fn read(raw: &[u8], field: Field) -> Option<Self> {
        u8::read(raw, field).map(Self)
    }
    fn write(&self, raw: &mut [u8], field: Field) {
        self.0.write(raw, field);
    }
}
