//! Keys: management keys, subnet manager keys, partition keys and queue keys.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bits::{Field, OutOfRange, WireValue};

/// A management key (M_Key), 64 bits, never 0: the right to configure a node. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MKey(NonZeroU64);

impl MKey {
    /// `None` if the number is 0, which means "no protection".
    #[inline]
    pub const fn from_wire(raw: u64) -> Option<Self> {
        match NonZeroU64::new(raw) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The secret itself, for MADs and key files only.
    #[inline]
    pub const fn to_wire(self) -> u64 {
        self.0.get()
    }
}

identifier_wire_value!(MKey, u64, optional);

impl fmt::Debug for MKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MKey(set)")
    }
}

/// A subnet manager key (SM_Key), 64 bits, never 0: requests to the SA that carry it are trusted. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SmKey(NonZeroU64);

impl SmKey {
    /// `None` if the number is 0, which means "no key".
    #[inline]
    pub const fn from_wire(raw: u64) -> Option<Self> {
        match NonZeroU64::new(raw) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The secret itself, for MADs and key files only.
    #[inline]
    pub const fn to_wire(self) -> u64 {
        self.0.get()
    }
}

identifier_wire_value!(SmKey, u64, optional);

impl fmt::Debug for SmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SmKey(set)")
    }
}

/// A partition, without membership: 15 bits, 1 to 0x7FFF.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct PartitionNumber(u16);

impl PartitionNumber {
    /// The lowest number, 1.
    pub const MIN: Self = Self(1);
    /// The default partition, 0x7FFF, of which every port is a member when it comes up.
    pub const DEFAULT: Self = Self(0x7fff);

    /// `None` if the number is 0 or above 0x7FFF.
    #[inline]
    pub const fn from_wire(raw: u16) -> Option<Self> {
        if raw == 0 || raw > 0x7fff { None } else { Some(Self(raw)) }
    }

    /// The partition number, 1 to 0x7FFF.
    #[inline]
    pub const fn to_wire(self) -> u16 {
        self.0
    }

    /// The P_Key of a member of this partition.
    pub const fn key(self, membership: Membership) -> Pkey {
        match membership {
            Membership::Full => Pkey(self.0 | FULL_MEMBER),
            Membership::Limited => Pkey(self.0),
        }
    }
}

impl TryFrom<u16> for PartitionNumber {
    type Error = OutOfRange;
    fn try_from(raw: u16) -> Result<Self, OutOfRange> {
        Self::from_wire(raw).ok_or(OutOfRange {
            what: "partition number",
            raw: raw.into(),
            allowed: "between 1 and 0x7fff",
        })
    }
}

impl From<PartitionNumber> for u16 {
    fn from(number: PartitionNumber) -> u16 {
        number.0
    }
}

impl fmt::Display for PartitionNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl fmt::Debug for PartitionNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartitionNumber({self})")
    }
}

/// Membership of a partition: two limited members cannot communicate with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Membership {
    /// Communicates with full members only.
    Limited,
    /// Communicates with every member.
    Full,
}

const FULL_MEMBER: u16 = 0x8000;

/// A partition key (P_Key) as packets and P_Key tables carry it: bit 15 is full membership, bits 14 to 0 are the partition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Pkey(u16);

impl Pkey {
    /// The P_Key 0xFFFF: full membership of the default partition.
    pub const DEFAULT_FULL: Self = PartitionNumber::DEFAULT.key(Membership::Full);

    /// `None` if the partition is 0: 0x0000 and 0x8000 mark empty table entries.
    #[inline]
    pub const fn from_wire(raw: u16) -> Option<Self> {
        match PartitionNumber::from_wire(raw & !FULL_MEMBER) {
            Some(_) => Some(Self(raw)),
            None => None,
        }
    }

    /// The P_Key as a number in host byte order.
    #[inline]
    pub const fn to_wire(self) -> u16 {
        self.0
    }

    /// The partition, without the membership bit.
    pub const fn partition(self) -> PartitionNumber {
        PartitionNumber(self.0 & !FULL_MEMBER)
    }

    /// The membership, from bit 15.
    pub const fn membership(self) -> Membership {
        if self.0 & FULL_MEMBER == 0 { Membership::Limited } else { Membership::Full }
    }

    /// Whether a port that holds the P_Key `held` accepts a packet with this P_Key: the partition is the same and at least
    /// one of both is a full member.
    #[inline]
    pub const fn is_accepted_by(self, held: Pkey) -> bool {
        self.0 & !FULL_MEMBER == held.0 & !FULL_MEMBER && (self.0 | held.0) & FULL_MEMBER != 0
    }
}

identifier_wire_value!(Pkey, u16, optional);

impl TryFrom<u16> for Pkey {
    type Error = OutOfRange;
    fn try_from(raw: u16) -> Result<Self, OutOfRange> {
        Self::from_wire(raw).ok_or(OutOfRange {
            what: "P_Key",
            raw: raw.into(),
            allowed: "a partition between 1 and 0x7fff, plus 0x8000 for full membership",
        })
    }
}

impl From<Pkey> for u16 {
    fn from(key: Pkey) -> u16 {
        key.0
    }
}

/// A text that is not a P_Key. It keeps the first 20 characters of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a P_Key: expected a partition between 1 and 0x7fff, plus 0x8000 for full membership, such as 0x8001"
)]
pub struct ParsePkeyError(String);

/// Accepts hexadecimal numbers with `0x` in front, and decimal ones.
impl FromStr for Pkey {
    type Err = ParsePkeyError;
    fn from_str(text: &str) -> Result<Self, ParsePkeyError> {
        let raw = match text.strip_prefix("0x") {
            Some(digits) => u16::from_str_radix(digits, 16),
            None => text.parse(),
        };
        raw.ok().and_then(Self::from_wire).ok_or_else(|| ParsePkeyError(text.chars().take(20).collect()))
    }
}

impl fmt::Display for Pkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl fmt::Debug for Pkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pkey({self})")
    }
}

/// A queue key (Q_Key), 32 bits. Apart from the well-known key of QP1, a Q_Key is a tenant's secret: `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct QKey(u32);

impl QKey {
    /// The well-known Q_Key of QP1, 0x8001_0000.
    pub const GENERAL_MANAGEMENT: Self = Self(0x8001_0000);

    /// Every 32-bit number is a valid Q_Key.
    pub const fn from_wire(raw: u32) -> Self {
        Self(raw)
    }

    /// The secret itself, for packets only.
    pub const fn to_wire(self) -> u32 {
        self.0
    }
}

impl WireValue for QKey {
    const MAX_BITS: usize = 32;
    fn read(raw: &[u8], field: Field) -> Option<Self> {
        u32::read(raw, field).map(Self)
    }
    fn write(&self, raw: &mut [u8], field: Field) {
        self.0.write(raw, field);
    }
}

impl fmt::Debug for QKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::GENERAL_MANAGEMENT { "QKey(general management)" } else { "QKey(set)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limited_members_cannot_reach_each_other() {
        let partition = PartitionNumber::from_wire(0x101).unwrap();
        let (full, limited) = (partition.key(Membership::Full), partition.key(Membership::Limited));
        assert!(full.is_accepted_by(full) && full.is_accepted_by(limited) && limited.is_accepted_by(full));
        assert!(!limited.is_accepted_by(limited));
        assert!(!full.is_accepted_by(Pkey::DEFAULT_FULL));
    }

    #[test]
    fn a_pkey_is_its_partition_and_membership() {
        for raw in 0..=u16::MAX {
            match Pkey::from_wire(raw) {
                Some(key) => assert_eq!(key.partition().key(key.membership()).to_wire(), raw),
                None => assert!(raw == 0 || raw == 0x8000),
            }
        }
    }

    #[test]
    fn debug_output_hides_secrets() {
        let keys = (MKey::from_wire(0xdead_beef), SmKey::from_wire(0xdead_beef), QKey::from_wire(0xcafe));
        let text = format!("{keys:?} {keys:x?}");
        for secret in ["dead", "cafe", "3735928559", "51966"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}
