//! Link state, width, speed and MTU, in the codes of PortInfo.

wire_enum! {
    /// PortState, the logical state of a port. A subnet manager moves a port from Initialize to Armed to Active, one step
    /// per Set; setting Down restarts the link training.
    pub enum PortState {
        /// In a Set: keep the current state.
        NoChange = 0,
        /// The link is down: no packet passes.
        Down = 1,
        /// Only subnet management packets pass.
        Initialize = 2,
        /// Data packets are received but not sent.
        Armed = 3,
        Active = 4,
    }
}

wire_enum! {
    /// PortPhysicalState, the state of the link training.
    pub enum PhysicalState {
        /// In a Set: keep the current state.
        NoChange = 0,
        Sleep = 1,
        /// Tries to detect a link partner.
        Polling = 2,
        Disabled = 3,
        Training = 4,
        LinkUp = 5,
        /// Retrains after link errors.
        ErrorRecovery = 6,
        PhyTest = 7,
    }
}

wire_enum! {
    /// LinkDownDefaultState, the physical state that a port enters when its link goes down.
    pub enum LinkDownDefault {
        /// In a Set: keep the current value.
        NoChange = 0,
        Sleep = 1,
        Polling = 2,
    }
}

wire_enum! {
    /// MTU: the largest packet payload, headers not counted. Code n (1 to 5) is 128 · 2ⁿ bytes.
    pub enum Mtu {
        /// In a Set: keep the current value.
        NoChange = 0,
        B256 = 1,
        B512 = 2,
        B1024 = 3,
        B2048 = 4,
        B4096 = 5,
    }
}

impl Mtu {
    /// The MTU in bytes; 0 for `NoChange` and unknown codes.
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

/// A set of link widths, one bit each. `active` fields have one bit set, `enabled` and `supported` fields one or more.
///
/// A width is a number of physical lanes, which have nothing to do with virtual lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LinkWidth(pub u8);

impl LinkWidth {
    pub const X1: Self = Self(1);
    pub const X4: Self = Self(2);
    pub const X8: Self = Self(4);
    pub const X12: Self = Self(8);
    /// Added to the specification later, hence the code out of order.
    pub const X2: Self = Self(16);

    /// Number of physical lanes of the widest width in the set: 1, 2, 4, 8 or 12; 0 if no known bit is set.
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

    /// The widest width in the set; `None` if no known bit is set.
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

/// A set of link speeds up to QDR, one bit each: signalling rates with 8b/10b encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LinkSpeed(pub u8);

impl LinkSpeed {
    /// 2.5 Gb/s per physical lane.
    pub const SDR: Self = Self(1);
    /// 5 Gb/s per physical lane.
    pub const DDR: Self = Self(2);
    /// 10 Gb/s per physical lane.
    pub const QDR: Self = Self(4);

    /// Nominal rate per physical lane of the fastest speed in the set, in Mb/s; 0 if no known bit is set.
    pub const fn lane_mbps(self) -> u32 {
        match self.fastest() {
            Some(Self::SDR) => 2_500,
            Some(Self::DDR) => 5_000,
            Some(_) => 10_000,
            None => 0,
        }
    }

    /// The fastest speed in the set; `None` if no known bit is set.
    pub const fn fastest(self) -> Option<Self> {
        match self.0 & 7 {
            0 => None,
            1 => Some(Self::SDR),
            2 | 3 => Some(Self::DDR),
            _ => Some(Self::QDR),
        }
    }
}

/// A set of extended link speeds (LinkSpeedExt), one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExtendedSpeed(pub u8);

impl ExtendedSpeed {
    /// 14.0625 Gb/s per physical lane.
    pub const FDR: Self = Self(1);
    /// 25.78125 Gb/s per physical lane.
    pub const EDR: Self = Self(2);
    /// 53.125 Gb/s per physical lane.
    pub const HDR: Self = Self(4);
    /// 106.25 Gb/s per physical lane.
    pub const NDR: Self = Self(8);

    /// Nominal rate per physical lane of the fastest speed in the set, in Mb/s: 14000, 25000, 50000 or 100000, as rate codes
    /// count it ([`Rate`](crate::Rate)); 0 if no known bit is set.
    pub const fn lane_mbps(self) -> u32 {
        match self.fastest() {
            Some(Self::FDR) => 14_000,
            Some(Self::EDR) => 25_000,
            Some(Self::HDR) => 50_000,
            Some(_) => 100_000,
            None => 0,
        }
    }

    /// The fastest speed in the set; `None` if no known bit is set.
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
