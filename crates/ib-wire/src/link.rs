//! The state of a link: logical, physical, width, speed and packet size.

wire_enum! {
    /// The logical state of a port. In a Set, `NoChange` leaves it.
    pub enum PortState {
        /// Nothing said.
        NoChange = 0,
        /// No packet passes.
        Down = 1,
        /// Subnet management packets pass.
        Initialize = 2,
        /// Data may be received, not sent.
        Armed = 3,
        /// Everything passes.
        Active = 4,
    }
}

wire_enum! {
    /// The physical state of a port. In a Set, `NoChange` leaves it.
    pub enum PhysicalState {
        /// Nothing said.
        NoChange = 0,
        /// Idle.
        Sleep = 1,
        /// Looks for a partner.
        Polling = 2,
        /// Switched off.
        Disabled = 3,
        /// Negotiates.
        Training = 4,
        /// Connected.
        LinkUp = 5,
        /// Recovers from errors.
        ErrorRecovery = 6,
        /// Under test.
        PhyTest = 7,
    }
}

wire_enum! {
    /// What a port does when its link is down.
    pub enum LinkDownDefault {
        /// Nothing said.
        NoChange = 0,
        /// Sleeps.
        Sleep = 1,
        /// Polls.
        Polling = 2,
    }
}

wire_enum! {
    /// Largest packet payload, in the code of PortInfo.
    pub enum Mtu {
        /// Nothing said.
        NoChange = 0,
        /// 256 bytes.
        B256 = 1,
        /// 512 bytes.
        B512 = 2,
        /// 1024 bytes.
        B1024 = 3,
        /// 2048 bytes.
        B2048 = 4,
        /// 4096 bytes.
        B4096 = 5,
    }
}

impl Mtu {
    /// The payload in bytes; 0 where the code says none.
    pub const fn bytes(self) -> u16 {
        match self {
            Self::B256 => 256,
            Self::B512 => 512,
            Self::B1024 => 1024,
            Self::B2048 => 2048,
            Self::B4096 => 4096,
            Self::NoChange | Self::Unknown(_) => 0,
        }
    }
}

/// A set of link widths: one bit each. `active` fields hold one bit, `enabled` and `supported` several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LinkWidth(pub u8);

impl LinkWidth {
    /// One physical lane.
    pub const X1: Self = Self(1);
    /// Four.
    pub const X4: Self = Self(2);
    /// Eight.
    pub const X8: Self = Self(4);
    /// Twelve.
    pub const X12: Self = Self(8);
    /// Two.
    pub const X2: Self = Self(16);

    /// Physical lanes of the widest of the set; 0 if it is empty.
    pub const fn lanes(self) -> u32 {
        match self.widest() {
            Some(Self::X12) => 12,
            Some(Self::X8) => 8,
            Some(Self::X4) => 4,
            Some(Self::X2) => 2,
            Some(_) => 1,
            None => 0,
        }
    }

    /// The widest of the set; `None` if it is empty.
    pub const fn widest(self) -> Option<Self> {
        let order = [Self::X12, Self::X8, Self::X4, Self::X2, Self::X1];
        let mut i = 0;
        while i < order.len() {
            if self.0 & order[i].0 != 0 {
                return Some(order[i]);
            }
            i += 1;
        }
        None
    }
}

/// A set of link speeds up to QDR: one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LinkSpeed(pub u8);

impl LinkSpeed {
    /// 2.5 Gb/s per lane.
    pub const SDR: Self = Self(1);
    /// 5 Gb/s per lane.
    pub const DDR: Self = Self(2);
    /// 10 Gb/s per lane.
    pub const QDR: Self = Self(4);

    /// Nominal Mb/s per lane of the fastest of the set; 0 if it is empty.
    pub const fn lane_mbps(self) -> u32 {
        match self.fastest() {
            Some(Self::SDR) => 2_500,
            Some(Self::DDR) => 5_000,
            Some(_) => 10_000,
            None => 0,
        }
    }

    /// The fastest of the set; `None` if it is empty.
    pub const fn fastest(self) -> Option<Self> {
        match self.0 & 7 {
            0 => None,
            1 => Some(Self::SDR),
            2 | 3 => Some(Self::DDR),
            _ => Some(Self::QDR),
        }
    }
}

/// A set of extended link speeds: one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExtendedSpeed(pub u8);

impl ExtendedSpeed {
    /// 14.0625 Gb/s per lane.
    pub const FDR: Self = Self(1);
    /// 25.78125 Gb/s per lane.
    pub const EDR: Self = Self(2);
    /// 53.125 Gb/s per lane.
    pub const HDR: Self = Self(4);
    /// 106.25 Gb/s per lane.
    pub const NDR: Self = Self(8);

    /// Nominal Mb/s per lane of the fastest of the set; 0 if it is empty.
    pub const fn lane_mbps(self) -> u32 {
        match self.fastest() {
            Some(Self::FDR) => 14_000,
            Some(Self::EDR) => 25_000,
            Some(Self::HDR) => 50_000,
            Some(_) => 100_000,
            None => 0,
        }
    }

    /// The fastest of the set; `None` if it is empty.
    pub const fn fastest(self) -> Option<Self> {
        match self.0 & 0xf {
            0 => None,
            1 => Some(Self::FDR),
            2 | 3 => Some(Self::EDR),
            4..=7 => Some(Self::HDR),
            _ => Some(Self::NDR),
        }
    }
}

macro_rules! set_wire_value {
    ($($ty:ident),*) => { $(
        impl $crate::bits::WireValue for $ty {
            const MAX_BITS: usize = 8;
            #[inline]
            fn read(raw: &[u8], field: $crate::bits::Field) -> Option<Self> {
                u8::try_from(field.get(raw)).ok().map(Self)
            }
            #[inline]
            fn write(&self, raw: &mut [u8], field: $crate::bits::Field) {
                field.put(raw, u64::from(self.0));
            }
        }
    )* };
}
set_wire_value!(LinkWidth, LinkSpeed, ExtendedSpeed);
