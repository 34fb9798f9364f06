//! Performance management: the counters of a port.

use crate::bits::{Field, WireValue, bits, bytes};
use crate::class_port_info::{ClassCapability, ClassCapability2};
use crate::mad::{MAD_LEN, Mad};

/// Attribute data of a performance management datagram in bytes.
pub const PERF_DATA_LEN: usize = MAD_LEN - DATA;

/// The port number that means every port of a node, where [`ALL_PORT_SELECT`] allows it.
pub const ALL_PORTS: u8 = 0xff;

/// Capability: [`ALL_PORTS`] is understood.
pub const ALL_PORT_SELECT: ClassCapability = ClassCapability(0x0100);
/// Capability: [`PortCountersExtended`] is there, all of it.
pub const EXTENDED_WIDTH: ClassCapability = ClassCapability(0x0200);
/// Capability: [`PortCountersExtended`] is there without unicast and multicast counters.
pub const EXTENDED_WIDTH_BASIC: ClassCapability = ClassCapability(0x0400);
/// Capability: some counters exist only as samples.
pub const SAMPLES_ONLY: ClassCapability = ClassCapability(0x0800);
/// Capability: `transmit_wait` counts.
pub const XMIT_WAIT: ClassCapability = ClassCapability(0x1000);
/// Capability: `qp1_dropped` counts.
pub const QP1_DROPPED: ClassCapability = ClassCapability(0x8000);
/// Second capabilities: access needs a key.
pub const PM_KEY: ClassCapability2 = ClassCapability2(0x1);
/// Second capabilities: error counters of 64 bits are there.
pub const EXTENDED_ERRORS: ClassCapability2 = ClassCapability2(0x2);

const DATA: usize = 64;

layout! {
    /// PortCounters (attribute 0x0012): counters that stop at their largest value.
    pub struct PortCounters[44] {
        /// The port, or [`ALL_PORTS`].
        port: u8 = bytes(1, 1),
        /// In a Set: the counters meant.
        select: CounterSelect = bytes(2, 2),
        /// Minor link errors.
        symbol_errors: u16 = bytes(4, 2),
        /// Times the link recovered.
        link_recoveries: u8 = bytes(6, 1),
        /// Times the link went down.
        link_downed: u8 = bytes(7, 1),
        /// Packets received with errors.
        receive_errors: u16 = bytes(8, 2),
        /// Packets received that were marked bad by somebody before.
        receive_remote_physical_errors: u16 = bytes(10, 2),
        /// Packets a switch could not forward.
        receive_relay_errors: u16 = bytes(12, 2),
        /// Packets dropped instead of sent.
        transmit_discards: u16 = bytes(14, 2),
        /// Packets not sent for partition or raw filters.
        transmit_constraint_errors: u8 = bytes(16, 1),
        /// Packets not taken for partition or raw filters.
        receive_constraint_errors: u8 = bytes(17, 1),
        /// In a Set: the counters meant, second part; bit 0 is `transmit_wait`.
        select2: u8 = bytes(18, 1),
        /// Times the error threshold of the link was passed.
        link_integrity_errors: u8 = bits(19, 7, 4),
        /// Times the overrun threshold was passed.
        buffer_overrun_errors: u8 = bits(19, 3, 0),
        /// General management datagrams dropped for want of room.
        qp1_dropped: u16 = bytes(20, 2),
        /// Subnet management datagrams dropped for want of room.
        vl15_dropped: u16 = bytes(22, 2),
        /// Data sent, in units of 4 bytes.
        transmit_words: u32 = bytes(24, 4),
        /// Data received, in units of 4 bytes.
        receive_words: u32 = bytes(28, 4),
        /// Packets sent.
        transmit_packets: u32 = bytes(32, 4),
        /// Packets received.
        receive_packets: u32 = bytes(36, 4),
        /// Ticks a packet was ready and could not be sent.
        transmit_wait: u32 = bytes(40, 4),
    }
}

layout! {
    /// PortCountersExtended (attribute 0x001d): the traffic counters in 64 bits.
    pub struct PortCountersExtended[72] {
        /// The port, or [`ALL_PORTS`].
        port: u8 = bytes(1, 1),
        /// In a Set: the counters meant.
        select: ExtendedCounterSelect = bytes(2, 2),
        /// In a Set: the error counters meant.
        select2: u32 = bytes(4, 4),
        /// Data sent, in units of 4 bytes.
        transmit_words: u64 = bytes(8, 8),
        /// Data received, in units of 4 bytes.
        receive_words: u64 = bytes(16, 8),
        /// Packets sent.
        transmit_packets: u64 = bytes(24, 8),
        /// Packets received.
        receive_packets: u64 = bytes(32, 8),
        /// Packets sent to one.
        transmit_unicast_packets: u64 = bytes(40, 8),
        /// Packets received from one.
        receive_unicast_packets: u64 = bytes(48, 8),
        /// Packets sent to a group.
        transmit_multicast_packets: u64 = bytes(56, 8),
        /// Packets received for a group.
        receive_multicast_packets: u64 = bytes(64, 8),
    }
}

macro_rules! counter_select {
    ($(#[$meta:meta])* $name:ident { $( $(#[$item_meta:meta])* $item:ident = $bit:literal, )* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub u16);

        impl $name {
            $( $(#[$item_meta])* pub const $item: Self = Self(1 << $bit); )*

            /// Every counter.
            pub const ALL: Self = Self(0 $( | 1 << $bit )*);

            /// Whether all of `other` is in this mask.
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// This mask with `other`.
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl WireValue for $name {
            const MAX_BITS: usize = 16;
            fn read(raw: &[u8], field: Field) -> Option<Self> {
                u16::read(raw, field).map(Self)
            }
            fn write(&self, raw: &mut [u8], field: Field) {
                self.0.write(raw, field);
            }
        }
    };
}

counter_select! {
    /// Which counters of [`PortCounters`] a Set means.
    CounterSelect {
        /// `symbol_errors`.
        SYMBOL_ERRORS = 0,
        /// `link_recoveries`.
        LINK_RECOVERIES = 1,
        /// `link_downed`.
        LINK_DOWNED = 2,
        /// `receive_errors`.
        RECEIVE_ERRORS = 3,
        /// `receive_remote_physical_errors`.
        RECEIVE_REMOTE_PHYSICAL_ERRORS = 4,
        /// `receive_relay_errors`.
        RECEIVE_RELAY_ERRORS = 5,
        /// `transmit_discards`.
        TRANSMIT_DISCARDS = 6,
        /// `transmit_constraint_errors`.
        TRANSMIT_CONSTRAINT_ERRORS = 7,
        /// `receive_constraint_errors`.
        RECEIVE_CONSTRAINT_ERRORS = 8,
        /// `link_integrity_errors`.
        LINK_INTEGRITY_ERRORS = 9,
        /// `buffer_overrun_errors`.
        BUFFER_OVERRUN_ERRORS = 10,
        /// `vl15_dropped`.
        VL15_DROPPED = 11,
        /// `transmit_words`.
        TRANSMIT_WORDS = 12,
        /// `receive_words`.
        RECEIVE_WORDS = 13,
        /// `transmit_packets`.
        TRANSMIT_PACKETS = 14,
        /// `receive_packets`.
        RECEIVE_PACKETS = 15,
    }
}

counter_select! {
    /// Which counters of [`PortCountersExtended`] a Set means.
    ExtendedCounterSelect {
        /// `transmit_words`.
        TRANSMIT_WORDS = 0,
        /// `receive_words`.
        RECEIVE_WORDS = 1,
        /// `transmit_packets`.
        TRANSMIT_PACKETS = 2,
        /// `receive_packets`.
        RECEIVE_PACKETS = 3,
        /// `transmit_unicast_packets`.
        TRANSMIT_UNICAST_PACKETS = 4,
        /// `receive_unicast_packets`.
        RECEIVE_UNICAST_PACKETS = 5,
        /// `transmit_multicast_packets`.
        TRANSMIT_MULTICAST_PACKETS = 6,
        /// `receive_multicast_packets`.
        RECEIVE_MULTICAST_PACKETS = 7,
    }
}

/// The data of performance management datagrams.
impl Mad {
    /// The attribute data.
    #[inline]
    pub fn perf_data(&self) -> &[u8; PERF_DATA_LEN] {
        self.0[DATA..].try_into().expect("the data is the rest of the MAD")
    }

    /// The attribute data, to be written.
    #[inline]
    pub fn perf_data_mut(&mut self) -> &mut [u8; PERF_DATA_LEN] {
        (&mut self.0[DATA..]).try_into().expect("the data is the rest of the MAD")
    }
}
