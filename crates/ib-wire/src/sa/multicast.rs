//! MCMemberRecord: multicast groups and their members.

use super::{Selector, record};
use crate::address::{Gid, MulticastLid};
use crate::bits::{Field, WireValue, bits, bits_from, bytes, field_named};
use crate::keys::{Pkey, QKey};
use crate::lanes::ServiceLevel;
use crate::link::Mtu;
use crate::rate::Rate;

layout! {
    /// MCMemberRecord (attribute 0x0038): Set joins a group and creates it if need be, Delete leaves it.
    pub struct McMemberRecord[56] {
        /// GID of the group.
        mgid: Gid = bytes(0, 16),
        /// GID of the member port; all zero in a record that describes the group.
        port_gid: Gid = bytes(16, 16),
        qkey: QKey = bytes(32, 4),
        mlid: Option<MulticastLid> = bytes(36, 2),
        /// How a request compares `mtu`.
        mtu_selector: Selector = bits(38, 7, 6),
        /// Largest payload of packets to the group.
        mtu: Mtu = bits(38, 5, 0),
        traffic_class: u8 = bytes(39, 1),
        pkey: Option<Pkey> = bytes(40, 2),
        /// How a request compares `rate`.
        rate_selector: Selector = bits(42, 7, 6),
        /// Rate of the group: every member must support it.
        rate: Rate = bits(42, 5, 0),
        /// How a request compares `packet_life_time`.
        packet_life_time_selector: Selector = bits(43, 7, 6),
        /// PacketLifeTime: longest time that a packet takes to all members, 4.096 µs · 2ⁿ.
        packet_life_time: u8 = bits(43, 5, 0),
        sl: ServiceLevel = bits(44, 7, 4),
        /// Flow label of the GRH, 20 bits.
        flow_label: u32 = bits_from(44, 3, 20),
        hop_limit: u8 = bytes(47, 1),
        /// Scope of the group: 2 link-local, 5 site-local, 8 organisation-local, 14 global.
        scope: u8 = bits(48, 7, 4),
        /// In a request the states to join or leave, in a response those that the port has.
        join_state: JoinState = bits(48, 3, 0),
        /// Another port joined on behalf of this one.
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

/// JoinState: the ways in which a port takes part in a group, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct JoinState(pub u8);

impl JoinState {
    /// FullMember: sends and receives; the group exists while it has one.
    pub const FULL: Self = Self(1);
    /// NonMember: sends and receives; does not keep the group in existence.
    pub const NON_MEMBER: Self = Self(2);
    /// SendOnlyNonMember: sends only; does not keep the group in existence.
    pub const SEND_ONLY_NON_MEMBER: Self = Self(4);
    /// SendOnlyFullMember: sends only; keeps the group in existence.
    pub const SEND_ONLY_FULL: Self = Self(8);

    /// Whether this set has every state of `other`.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set with the states of `other` added.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set with the states of `other` removed.
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
