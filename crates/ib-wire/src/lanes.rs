//! Service levels and virtual lanes: what a packet asks for, and what a link gives it.

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
            /// Checks a number; `None` above 15.
            #[inline]
            pub const fn from_wire(raw: u8) -> Option<Self> {
                if raw <= 15 { Some(Self(raw)) } else { None }
            }

            /// The number.
            #[inline]
            pub const fn to_wire(self) -> u8 {
                self.0
            }

            /// The number as an index.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        identifier_wire_value!($name, u8);

        impl TryFrom<u8> for $name {
            type Error = OutOfRange;
            fn try_from(raw: u8) -> Result<Self, OutOfRange> {
                Self::from_wire(raw).ok_or(OutOfRange { what: $what, raw: raw.into(), allowed: "0..=15" })
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
    /// What a packet asks for; every link maps it to a lane of its own choosing.
    ServiceLevel,
    "service level"
);

four_bits!(
    /// A lane of a link, with buffers of its own. Lane 15 carries subnet management only.
    VirtualLane,
    "virtual lane"
);

impl VirtualLane {
    /// The lane of subnet management packets. As the target of a service level it means: discard.
    pub const MANAGEMENT: Self = Self(15);
}

wire_enum! {
    /// How many data lanes a port has, in the code that VLCap and OperationalVLs share.
    pub enum DataLanes {
        /// Nothing said; in a Set: leave it.
        NoChange = 0,
        /// VL0.
        One = 1,
        /// VL0-1.
        Two = 2,
        /// VL0-3.
        Four = 3,
        /// VL0-7.
        Eight = 4,
        /// VL0-14.
        Fifteen = 5,
    }
}

impl DataLanes {
    /// The code for a number of lanes; `None` unless it is 1, 2, 4, 8 or 15.
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

    /// The number of lanes; 0 where the code says none.
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
