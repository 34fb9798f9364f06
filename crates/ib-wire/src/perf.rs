//! Performance management (PM): counters of a port.

use crate::bits::{Field, WireValue, bits, bytes};
use crate::class_port_info::{ClassCapability, ClassCapability2};
use crate::mad::{MAD_LEN, Mad};

/// Length of the attribute data of a performance management datagram, in bytes.
pub const PERF_DATA_LEN: usize = MAD_LEN - DATA;

/// PortSelect value for all ports of a node. Valid if the node has the capability [`ALL_PORT_SELECT`].
pub const ALL_PORTS: u8 = 0xff;

/// Capability: [`ALL_PORTS`] is supported.
pub const ALL_PORT_SELECT: ClassCapability = ClassCapability(0x0100);
/// Capability: all counters of [`PortCountersExtended`] are supported.
pub const EXTENDED_WIDTH: ClassCapability = ClassCapability(0x0200);
/// Capability: [`PortCountersExtended`] is supported without the unicast and multicast counters.
pub const EXTENDED_WIDTH_BASIC: ClassCapability = ClassCapability(0x0400);
/// Capability: some counters are available through PortSamples only.
pub const SAMPLES_ONLY: ClassCapability = ClassCapability(0x0800);
/// Capability: `transmit_wait` is supported.
pub const XMIT_WAIT: ClassCapability = ClassCapability(0x1000);
/// Capability: `qp1_dropped` is supported.
pub const QP1_DROPPED: ClassCapability = ClassCapability(0x8000);
/// Capability, second mask: access requires a PM_Key.
pub const PM_KEY: ClassCapability2 = ClassCapability2(0x1);
/// Capability, second mask: 64-bit error counters are supported.
pub const EXTENDED_ERRORS: ClassCapability2 = ClassCapability2(0x2);

const DATA: usize = 64;

layout! {
    /// PortCounters (attribute 0x0012). Counters saturate: they stop at their largest value and do not wrap. A Set writes the
    /// counters that `select` and `select2` name, usually 0 to reset them.
    pub struct PortCounters[44] {
        /// PortSelect: a port number, or [`ALL_PORTS`].
        port: u8 = bytes(1, 1),
        /// In a Set: the counters to write.
        select: CounterSelect = bytes(2, 2),
        /// Minor link errors on physical lanes.
        symbol_errors: u16 = bytes(4, 2),
        /// Successful link error recoveries.
        link_recoveries: u8 = bytes(6, 1),
        /// Failed link error recoveries, after which the link went down.
        link_downed: u8 = bytes(7, 1),
        /// Packets received with an error.
        receive_errors: u16 = bytes(8, 2),
        /// Packets received that a switch on the path had marked bad.
        receive_remote_physical_errors: u16 = bytes(10, 2),
        /// Packets that a switch received and could not forward.
        receive_relay_errors: u16 = bytes(12, 2),
        /// Packets discarded at the output: port down, lifetime expired or VL stalled.
        transmit_discards: u16 = bytes(14, 2),
        /// Packets that a switch did not send because of outbound P_Key or raw filters.
        transmit_constraint_errors: u8 = bytes(16, 1),
        /// Packets that a switch dropped because of inbound P_Key or raw filters.
        receive_constraint_errors: u8 = bytes(17, 1),
        /// In a Set: further counters to write; bit 0 is `transmit_wait`.
        select2: u8 = bytes(18, 1),
        /// How often local physical errors exceeded `local_phy_errors` of PortInfo.
        link_integrity_errors: u8 = bits(19, 7, 4),
        /// How often consecutive buffer overruns exceeded `overrun_errors` of PortInfo.
        buffer_overrun_errors: u8 = bits(19, 3, 0),
        /// Datagrams to QP1 dropped for lack of resources.
        qp1_dropped: u16 = bytes(20, 2),
        /// Subnet management packets dropped for lack of resources.
        vl15_dropped: u16 = bytes(22, 2),
        /// PortXmitData: data sent, in units of 4 bytes.
        transmit_words: u32 = bytes(24, 4),
        /// PortRcvData: data received, in units of 4 bytes.
        receive_words: u32 = bytes(28, 4),
        transmit_packets: u32 = bytes(32, 4),
        receive_packets: u32 = bytes(36, 4),
        /// PortXmitWait: ticks in which the port had data to send and could not. The length of a tick is the device's.
        transmit_wait: u32 = bytes(40, 4),
    }
}

layout! {
    /// PortCountersExtended (attribute 0x001d): traffic counters of 64 bits.
    pub struct PortCountersExtended[72] {
        /// PortSelect: a port number, or [`ALL_PORTS`].
        port: u8 = bytes(1, 1),
        /// In a Set: the counters to write.
        select: ExtendedCounterSelect = bytes(2, 2),
        /// In a Set: the 64-bit error counters to write, if the device has them ([`EXTENDED_ERRORS`]).
        select2: u32 = bytes(4, 4),
        /// PortXmitData: data sent, in units of 4 bytes.
        transmit_words: u64 = bytes(8, 8),
        /// PortRcvData: data received, in units of 4 bytes.
        receive_words: u64 = bytes(16, 8),
        transmit_packets: u64 = bytes(24, 8),
        receive_packets: u64 = bytes(32, 8),
        transmit_unicast_packets: u64 = bytes(40, 8),
        receive_unicast_packets: u64 = bytes(48, 8),
        transmit_multicast_packets: u64 = bytes(56, 8),
        receive_multicast_packets: u64 = bytes(64, 8),
    }
}

/// PortXmitDataSL (attribute 0x0036) or PortRcvDataSL (0x0037): data sent or received, by service level. Counters saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlDataCounters {
    /// PortSelect: a port number, or [`ALL_PORTS`].
    pub port: u8,
    /// In a Set: the counters to write, bit n for service level n.
    pub select: u16,
    /// In units of 4 bytes, by service level.
    pub words: [u32; 16],
}

impl SlDataCounters {
    /// Length in bytes.
    pub const LEN: usize = 68;

    /// Reads the attribute data of a performance management datagram.
    pub fn decode(raw: &[u8; PERF_DATA_LEN]) -> Self {
        let words = std::array::from_fn(|sl| {
            let at = 4 + 4 * sl;
            u32::from_be_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
        });
        Self { port: raw[1], select: u16::from_be_bytes([raw[2], raw[3]]), words }
    }

    /// Writes the attribute data of a performance management datagram.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut raw = [0; Self::LEN];
        raw[1] = self.port;
        raw[2..4].copy_from_slice(&self.select.to_be_bytes());
        for (at, words) in raw[4..].chunks_exact_mut(4).zip(self.words) {
            at.copy_from_slice(&words.to_be_bytes());
        }
        raw
    }
}

macro_rules! counter_select {
    ($(#[$meta:meta])* $name:ident { $( $(#[$item_meta:meta])* $item:ident = $bit:literal, )* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub u16);

        impl $name {
            $( $(#[$item_meta])* pub const $item: Self = Self(1 << $bit); )*

            /// The bits of all counters.
            pub const ALL: Self = Self(0 $( | 1 << $bit )*);

            /// Whether this mask has every bit of `other`.
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// This mask with the bits of `other` added.
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
    /// CounterSelect: the counters of [`PortCounters`] that a Set writes.
    CounterSelect {
        SYMBOL_ERRORS = 0,
        LINK_RECOVERIES = 1,
        LINK_DOWNED = 2,
        RECEIVE_ERRORS = 3,
        RECEIVE_REMOTE_PHYSICAL_ERRORS = 4,
        RECEIVE_RELAY_ERRORS = 5,
        TRANSMIT_DISCARDS = 6,
        TRANSMIT_CONSTRAINT_ERRORS = 7,
        RECEIVE_CONSTRAINT_ERRORS = 8,
        LINK_INTEGRITY_ERRORS = 9,
        BUFFER_OVERRUN_ERRORS = 10,
        VL15_DROPPED = 11,
        TRANSMIT_WORDS = 12,
        RECEIVE_WORDS = 13,
        TRANSMIT_PACKETS = 14,
        RECEIVE_PACKETS = 15,
    }
}

counter_select! {
    /// CounterSelect: the counters of [`PortCountersExtended`] that a Set writes.
    ExtendedCounterSelect {
        TRANSMIT_WORDS = 0,
        RECEIVE_WORDS = 1,
        TRANSMIT_PACKETS = 2,
        RECEIVE_PACKETS = 3,
        TRANSMIT_UNICAST_PACKETS = 4,
        RECEIVE_UNICAST_PACKETS = 5,
        TRANSMIT_MULTICAST_PACKETS = 6,
        RECEIVE_MULTICAST_PACKETS = 7,
    }
}

/// Attribute data of performance management datagrams.
impl Mad {
    /// The attribute data, bytes 64 to 255.
    #[inline]
    pub fn perf_data(&self) -> &[u8; PERF_DATA_LEN] {
        self.0[DATA..].try_into().expect("bytes 64 to 255 of a MAD are PERF_DATA_LEN bytes")
    }

    /// The attribute data, bytes 64 to 255.
    #[inline]
    pub fn perf_data_mut(&mut self) -> &mut [u8; PERF_DATA_LEN] {
        (&mut self.0[DATA..]).try_into().expect("bytes 64 to 255 of a MAD are PERF_DATA_LEN bytes")
    }
}
