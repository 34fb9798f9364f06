//! Service levels (SL), virtual lanes (VL) and the code for numbers of lanes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bits::OutOfRange;

macro_rules! four_bits {
    ($(#[$meta:meta])* $name:ident, $what:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "u8", into = "u8")]
        pub struct $name(u8);

        impl $name {
            /// `None` if the number is above 15.
            #[inline]
            pub const fn from_wire(raw: u8) -> Option<Self> {
                if raw <= 15 { Some(Self(raw)) } else { None }
            }

            /// The number, 0 to 15.
            #[inline]
            pub const fn to_wire(self) -> u8 {
                self.0
            }

            /// The number as an index of a table with 16 entries.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        identifier_wire_value!($name, u8);

        impl TryFrom<u8> for $name {
            type Error = OutOfRange;
            fn try_from(raw: u8) -> Result<Self, OutOfRange> {
                Self::from_wire(raw).ok_or(OutOfRange { what: $what, raw: raw.into(), allowed: "between 0 and 15" })
            }
        }

        impl From<$name> for u8 {
            fn from(value: $name) -> u8 {
                value.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

four_bits!(
    /// A service level (SL), 0 to 15: set by the sender in the packet header and kept on the whole path. Every output port
    /// maps it to a virtual lane with its [`SlToVl`](crate::SlToVl) table.
    ServiceLevel,
    "service level"
);

four_bits!(
    /// A virtual lane (VL) of a link, 0 to 15, with its own buffers and credits. VL0 to VL14 carry data, VL15 carries subnet
    /// management packets only.
    VirtualLane,
    "virtual lane"
);

impl VirtualLane {
    /// VL15, the lane of subnet management packets. An SL-to-VL entry with this lane discards the packets of its SL.
    pub const MANAGEMENT: Self = Self(15);
}

wire_enum! {
    /// The number of data VLs of a port, in the code of VLCap and OperationalVLs: 1 = VL0, 2 = VL0-1, 3 = VL0-3, 4 = VL0-7,
    /// 5 = VL0-14. The order of the codes is the order of the numbers.
    pub enum DataLanes {
        /// In a Set: keep the current value.
        NoChange = 0,
        One = 1,
        Two = 2,
        Four = 3,
        Eight = 4,
        Fifteen = 5,
    }
}

impl DataLanes {
    /// The code for a number of data VLs; `None` unless it is 1, 2, 4, 8 or 15.
    pub const fn from_count(count: u8) -> Option<Self> {
        match count {
            1 => Some(Self::One),
            2 => Some(Self::Two),
            4 => Some(Self::Four),
            8 => Some(Self::Eight),
            15 => Some(Self::Fifteen),
            _ => None,
        }
    }

    /// The number of data VLs; 0 for `NoChange` and unknown codes.
    pub const fn count(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
            Self::Eight => 8,
            Self::Fifteen => 15,
            Self::NoChange | Self::Unknown(_) => 0,
        }
    }
}
