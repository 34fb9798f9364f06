//! ClassPortInfo: capabilities of a management class, redirection of its requests and destination of its traps.

use crate::address::{Gid, LidAddress};
use crate::bits::{Field, WireValue, bits, bits_from, bytes};
use crate::datagram::QueuePair;
use crate::keys::{Pkey, QKey};
use crate::lanes::ServiceLevel;

layout! {
    /// ClassPortInfo (attribute 0x0001). Every class has the same layout; the meaning of the capability bits above the
    /// common ones differs: see [`perf`](crate::perf) and [`sa`](crate::sa).
    ///
    /// The `redirect_…` fields name the port to send requests to instead of this one; the `trap_…` fields name the
    /// destination of the class's traps.
    pub struct ClassPortInfo[72] {
        /// Version of the MAD format, 1.
        base_version: u8 = bytes(0, 1),
        class_version: u8 = bytes(1, 1),
        capability: ClassCapability = bytes(2, 2),
        capability2: ClassCapability2 = bits_from(4, 7, 27),
        /// RespTimeValue: longest time between request and response, 4.096 µs · 2ⁿ.
        response_time: u8 = bits(7, 4, 0),
        redirect_gid: Gid = bytes(8, 16),
        redirect_traffic_class: u8 = bytes(24, 1),
        redirect_sl: ServiceLevel = bits(25, 7, 4),
        /// Flow label of the GRH, 20 bits.
        redirect_flow_label: u32 = bits_from(25, 3, 20),
        /// `None` if requests are not redirected.
        redirect_lid: Option<LidAddress> = bytes(28, 2),
        redirect_pkey: Option<Pkey> = bytes(30, 2),
        redirect_qp: QueuePair = bytes(33, 3),
        redirect_qkey: QKey = bytes(36, 4),
        trap_gid: Gid = bytes(40, 16),
        trap_traffic_class: u8 = bytes(56, 1),
        trap_sl: ServiceLevel = bits(57, 7, 4),
        /// Flow label of the GRH, 20 bits.
        trap_flow_label: u32 = bits_from(57, 3, 20),
        /// `None` if the class sends no traps.
        trap_lid: Option<LidAddress> = bytes(60, 2),
        trap_pkey: Option<Pkey> = bytes(62, 2),
        trap_hop_limit: u8 = bytes(64, 1),
        trap_qp: QueuePair = bytes(65, 3),
        trap_qkey: QKey = bytes(68, 4),
    }
}

macro_rules! capability_mask {
    ($(#[$meta:meta])* $name:ident($raw:ty), $bits:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $raw);

        impl $name {
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
            const MAX_BITS: usize = $bits;
            fn read(raw: &[u8], field: Field) -> Option<Self> {
                <$raw>::read(raw, field).map(Self)
            }
            fn write(&self, raw: &mut [u8], field: Field) {
                self.0.write(raw, field);
            }
        }
    };
}

capability_mask!(
    /// CapabilityMask of a class, 16 bits. The lower 8 bits mean the same in every class.
    ClassCapability(u16),
    16
);

impl ClassCapability {
    /// The class sends traps.
    pub const TRAP: Self = Self(0x0001);
    /// The class answers Get and Set of the Notice attribute.
    pub const NOTICE: Self = Self(0x0002);
}

capability_mask!(
    /// CapabilityMask2 of a class, 27 bits.
    ClassCapability2(u32),
    27
);
