//! Who may: partition keys, management keys, queue keys.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bits::{Field, OutOfRange, WireValue};

/// A management key: whoever knows it may configure the node. It never prints.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MKey(NonZeroU64);

impl MKey {
    /// Checks a number; `None` if it is 0, which switches the protection off.
    #[inline]
    pub const fn from_wire(raw: u64) -> Option<Self> {
        match NonZeroU64::new(raw) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The key itself. Only for the wire and for key files.
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

/// A subnet manager's key: whoever presents it to the subnet administration is trusted. It never prints.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SmKey(NonZeroU64);

impl SmKey {
    /// Checks a number; `None` if it is 0, which is no key.
    #[inline]
    pub const fn from_wire(raw: u64) -> Option<Self> {
        match NonZeroU64::new(raw) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The key itself. Only for the wire and for key files.
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

/// A partition: 15 bits, never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct PartitionNumber(u16);

impl PartitionNumber {
    /// The partition every port starts in.
    pub const DEFAULT: Self = Self(0x7fff);

    /// Checks a number; `None` if it is 0 or has more than 15 bits.
    #[inline]
    pub const fn from_wire(raw: u16) -> Option<Self> {
        if raw == 0 || raw > 0x7fff { None } else { Some(Self(raw)) }
    }

    /// The number.
    #[inline]
    pub const fn to_wire(self) -> u16 {
        self.0
    }

    /// The key a member of this partition holds.
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
            allowed: "1..=0x7fff",
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

/// Limited members of a partition reach full members only; full members reach everyone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Membership {
    /// Reaches full members only.
    Limited,
    /// Reaches every member.
    Full,
}

const FULL_MEMBER: u16 = 0x8000;

/// A partition key as packets and tables carry it: partition and membership.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Pkey(u16);

impl Pkey {
    /// Full membership of the default partition, 0xFFFF.
    pub const DEFAULT_FULL: Self = PartitionNumber::DEFAULT.key(Membership::Full);

    /// Checks a number; `None` if its partition is 0 (0x0000 and 0x8000 mark empty table entries).
    #[inline]
    pub const fn from_wire(raw: u16) -> Option<Self> {
        match PartitionNumber::from_wire(raw & !FULL_MEMBER) {
            Some(_) => Some(Self(raw)),
            None => None,
        }
    }

    /// The number.
    #[inline]
    pub const fn to_wire(self) -> u16 {
        self.0
    }

    /// The partition.
    pub const fn partition(self) -> PartitionNumber {
        PartitionNumber(self.0 & !FULL_MEMBER)
    }

    /// The membership.
    pub const fn membership(self) -> Membership {
        if self.0 & FULL_MEMBER == 0 { Membership::Limited } else { Membership::Full }
    }

    /// Whether a packet with this key is accepted by a holder of `held`: same partition, and not both limited.
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
            allowed: "a partition 1..=0x7fff, plus 0x8000 for full members",
        })
    }
}

impl From<Pkey> for u16 {
    fn from(key: Pkey) -> u16 {
        key.0
    }
}

/// Hexadecimal with `0x`, or decimal.
impl FromStr for Pkey {
    type Err = OutOfRange;
    fn from_str(text: &str) -> Result<Self, OutOfRange> {
        let raw = match text.strip_prefix("0x") {
            Some(digits) => u16::from_str_radix(digits, 16),
            None => text.parse(),
        };
        Self::try_from(raw.unwrap_or(0))
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

/// A queue key. The well-known one of general management is public; others are a tenant's secret, so none prints.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct QKey(u32);

impl QKey {
    /// The key of the general management queue pair (QP1).
    pub const GENERAL_MANAGEMENT: Self = Self(0x8001_0000);

    /// Any number is a queue key.
    pub const fn from_wire(raw: u32) -> Self {
        Self(raw)
    }

    /// The number.
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
    fn a_pkey_is_its_partition_and_membership_for_all_numbers() {
        for raw in 0..=u16::MAX {
            match Pkey::from_wire(raw) {
                Some(key) => assert_eq!(key.partition().key(key.membership()).to_wire(), raw),
                None => assert!(raw == 0 || raw == 0x8000),
            }
        }
    }

    #[test]
    fn secrets_do_not_print() {
        let keys = (MKey::from_wire(0xdead_beef), SmKey::from_wire(0xdead_beef), QKey::from_wire(0xcafe));
        let text = format!("{keys:?} {keys:x?}");
        for secret in ["dead", "cafe", "3735928559", "51966"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}
