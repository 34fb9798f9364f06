//! ClassPortInfo: what a management class can do, and where it is answered.

use crate::address::{Gid, LidAddress};
use crate::bits::{Field, WireValue, bits, bits_from, bytes};
use crate::datagram::QueuePair;
use crate::keys::{Pkey, QKey};
use crate::lanes::ServiceLevel;

layout! {
    /// ClassPortInfo (attribute 0x0001), the same in every class but for the meaning of the capabilities: see
    /// [`perf`](crate::perf) and [`sa`](crate::sa).
    pub struct ClassPortInfo[72] {
        /// Version of the datagram format.
        base_version: u8 = bytes(0, 1),
        /// Version of the class.
        class_version: u8 = bytes(1, 1),
        /// What the class can do.
        capability: ClassCapability = bytes(2, 2),
        /// What the class can do, second part.
        capability2: ClassCapability2 = bits_from(4, 7, 27),
        /// How long an answer may take, as an exponent.
        response_time: u8 = bits(7, 4, 0),
        /// Whom to ask instead.
        redirect_gid: Gid = bytes(8, 16),
        /// Traffic class for that.
        redirect_traffic_class: u8 = bytes(24, 1),
        /// Service level for that.
        redirect_sl: ServiceLevel = bits(25, 7, 4),
        /// Flow label for that.
        redirect_flow_label: u32 = bits_from(25, 3, 20),
        /// Whom to ask instead; `None` for nobody.
        redirect_lid: Option<LidAddress> = bytes(28, 2),
        /// Partition key for that.
        redirect_pkey: Option<Pkey> = bytes(30, 2),
        /// Queue pair for that.
        redirect_qp: QueuePair = bytes(33, 3),
        /// Queue key for that.
        redirect_qkey: QKey = bytes(36, 4),
        /// Where traps of the class go.
        trap_gid: Gid = bytes(40, 16),
        /// Traffic class for that.
        trap_traffic_class: u8 = bytes(56, 1),
        /// Service level for that.
        trap_sl: ServiceLevel = bits(57, 7, 4),
        /// Flow label for that.
        trap_flow_label: u32 = bits_from(57, 3, 20),
        /// Where traps of the class go; `None` for nowhere.
        trap_lid: Option<LidAddress> = bytes(60, 2),
        /// Partition key for that.
        trap_pkey: Option<Pkey> = bytes(62, 2),
        /// Hop limit for that.
        trap_hop_limit: u8 = bytes(64, 1),
        /// Queue pair for that.
        trap_qp: QueuePair = bytes(65, 3),
        /// Queue key for that.
        trap_qkey: QKey = bytes(68, 4),
    }
}

macro_rules! capability_mask {
    ($(#[$meta:meta])* $name:ident($raw:ty), $bits:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub $raw);

        impl $name {
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
    /// CapabilityMask of a class: the lower 8 bits mean the same in every class.
    ClassCapability(u16),
    16
);

impl ClassCapability {
    /// The class sends traps.
    pub const TRAP: Self = Self(0x0001);
    /// The class keeps notices to be fetched.
    pub const NOTICE: Self = Self(0x0002);
}

capability_mask!(
    /// CapabilityMask2 of a class, 27 bits.
    ClassCapability2(u32),
    27
);
