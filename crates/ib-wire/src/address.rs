//! Addresses: local identifiers (LIDs), GUIDs, GIDs and port numbers.

use std::fmt;
use std::num::{NonZeroU16, NonZeroU64};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bits::{Field, OutOfRange, WireValue};

/// A unicast local identifier, 1 to 0xBFFF (49151): the address of an end port in its subnet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Lid(NonZeroU16);

impl Lid {
    /// The highest unicast LID, 49151.
    pub const MAX: u16 = 0xbfff;

    /// `None` if the number is 0 or above [`Lid::MAX`].
    #[inline]
    pub const fn from_wire(raw: u16) -> Option<Self> {
        match NonZeroU16::new(raw) {
            Some(number) if raw <= Self::MAX => Some(Self(number)),
            _ => None,
        }
    }

    /// The LID as a number in host byte order.
    #[inline]
    pub const fn to_wire(self) -> u16 {
        self.0.get()
    }
}

identifier_wire_value!(Lid, u16, optional);

impl TryFrom<u16> for Lid {
    type Error = OutOfRange;
    fn try_from(raw: u16) -> Result<Self, OutOfRange> {
        Self::from_wire(raw).ok_or(OutOfRange {
            what: "LID",
            raw: raw.into(),
            allowed: "between 1 and 0xbfff",
        })
    }
}

impl From<Lid> for u16 {
    fn from(lid: Lid) -> u16 {
        lid.to_wire()
    }
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lid({})", self.0)
    }
}

/// A multicast local identifier, 0xC000 to 0xFFFE: the address of a multicast group in its subnet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct MulticastLid(u16);

impl MulticastLid {
    /// The lowest multicast LID, which is entry 0 of the multicast forwarding tables.
    pub const MIN: u16 = 0xc000;

    /// `None` if the number is below [`MulticastLid::MIN`] or the permissive address 0xFFFF.
    #[inline]
    pub const fn from_wire(raw: u16) -> Option<Self> {
        if raw >= Self::MIN && raw != 0xffff { Some(Self(raw)) } else { None }
    }

    /// The LID as a number in host byte order.
    #[inline]
    pub const fn to_wire(self) -> u16 {
        self.0
    }

    /// Index of the LID's entry in a multicast forwarding table: the distance from [`MulticastLid::MIN`].
    pub const fn table_index(self) -> usize {
        (self.0 - Self::MIN) as usize
    }

    /// The LID with an index in multicast forwarding tables; `None` beyond the last.
    pub fn from_table_index(index: usize) -> Option<Self> {
        let raw = index.checked_add(usize::from(Self::MIN))?;
        u16::try_from(raw).ok().and_then(Self::from_wire)
    }
}

identifier_wire_value!(MulticastLid, u16, optional);

impl TryFrom<u16> for MulticastLid {
    type Error = OutOfRange;
    fn try_from(raw: u16) -> Result<Self, OutOfRange> {
        Self::from_wire(raw).ok_or(OutOfRange {
            what: "multicast LID",
            raw: raw.into(),
            allowed: "between 0xc000 and 0xfffe",
        })
    }
}

impl From<MulticastLid> for u16 {
    fn from(lid: MulticastLid) -> u16 {
        lid.0
    }
}

impl fmt::Display for MulticastLid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl fmt::Debug for MulticastLid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MulticastLid({self})")
    }
}

/// The source or destination of a packet: every value of a 16-bit LID field except 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LidAddress {
    Unicast(Lid),
    Multicast(MulticastLid),
    /// 0xFFFF: accepted by any port that receives it. Directed-route SMPs use it.
    Permissive,
}

impl LidAddress {
    /// `None` if the field is 0, which stands for "no LID".
    #[inline]
    pub const fn from_wire(raw: u16) -> Option<Self> {
        match raw {
            0 => None,
            0xffff => Some(Self::Permissive),
            _ => match Lid::from_wire(raw) {
                Some(lid) => Some(Self::Unicast(lid)),
                None => match MulticastLid::from_wire(raw) {
                    Some(lid) => Some(Self::Multicast(lid)),
                    None => None,
                },
            },
        }
    }

    /// The value of the LID field in host byte order.
    #[inline]
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::Unicast(lid) => lid.to_wire(),
            Self::Multicast(lid) => lid.to_wire(),
            Self::Permissive => 0xffff,
        }
    }
}

identifier_wire_value!(LidAddress, u16, optional);

impl From<Lid> for LidAddress {
    fn from(lid: Lid) -> Self {
        Self::Unicast(lid)
    }
}

impl fmt::Display for LidAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unicast(lid) => lid.fmt(f),
            Self::Multicast(lid) => lid.fmt(f),
            Self::Permissive => f.write_str("permissive"),
        }
    }
}

/// LID mask control, 0 to 7: a port owns `2^lmc` consecutive LIDs, the first of them a multiple of that number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Lmc(u8);

impl Lmc {
    /// `None` if the number is above 7.
    #[inline]
    pub const fn from_wire(raw: u8) -> Option<Self> {
        if raw <= 7 { Some(Self(raw)) } else { None }
    }

    /// The exponent, 0 to 7.
    #[inline]
    pub const fn to_wire(self) -> u8 {
        self.0
    }

    /// Number of LIDs that the port owns, 1 to 128.
    pub const fn lid_count(self) -> u16 {
        1 << self.0
    }
}

identifier_wire_value!(Lmc, u8);

impl TryFrom<u8> for Lmc {
    type Error = OutOfRange;
    fn try_from(raw: u8) -> Result<Self, OutOfRange> {
        Self::from_wire(raw).ok_or(OutOfRange { what: "LMC", raw: raw.into(), allowed: "between 0 and 7" })
    }
}

impl From<Lmc> for u8 {
    fn from(lmc: Lmc) -> u8 {
        lmc.0
    }
}

/// A 64-bit globally unique identifier of a node, port or system image; never 0. Serialized as `0x` and 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Guid(NonZeroU64);

impl Guid {
    /// `None` if the number is 0, which stands for "no GUID".
    #[inline]
    pub const fn from_wire(raw: u64) -> Option<Self> {
        match NonZeroU64::new(raw) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The GUID as a number in host byte order.
    #[inline]
    pub const fn to_wire(self) -> u64 {
        self.0.get()
    }
}

identifier_wire_value!(Guid, u64, optional);

impl TryFrom<u64> for Guid {
    type Error = OutOfRange;
    fn try_from(raw: u64) -> Result<Self, OutOfRange> {
        Self::from_wire(raw).ok_or(OutOfRange { what: "GUID", raw, allowed: "a 64-bit number other than 0" })
    }
}

/// A text that is not a GUID. It keeps the first 40 characters of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a GUID: expected 1 to 16 hexadecimal digits, not all 0, optionally with 0x in front or : between them"
)]
pub struct ParseGuidError(String);

/// Accepts the spellings of OpenSM (`0x0002c903…`), UFM (`0002c903…`), netlink (`00:02:c9:…`) and sysfs (`0002:c903:…`).
impl FromStr for Guid {
    type Err = ParseGuidError;
    fn from_str(text: &str) -> Result<Self, ParseGuidError> {
        let digits: String = text.strip_prefix("0x").unwrap_or(text).chars().filter(|c| *c != ':').collect();
        let hexadecimal = (1..=16).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let number = if hexadecimal { u64::from_str_radix(&digits, 16).ok() } else { None };
        number.and_then(Self::from_wire).ok_or_else(|| ParseGuidError(text.chars().take(40).collect()))
    }
}

impl TryFrom<String> for Guid {
    type Error = ParseGuidError;
    fn try_from(text: String) -> Result<Self, ParseGuidError> {
        text.parse()
    }
}

impl From<Guid> for String {
    fn from(guid: Guid) -> String {
        guid.to_string()
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

impl fmt::LowerHex for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

/// A 128-bit global identifier, unicast (subnet prefix and GUID) or multicast. The bytes are in wire order. Printed,
/// parsed and serialized as an IPv6 address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The default subnet prefix, `fe80::`.
    pub const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;

    /// The unicast GID of a port: the subnet prefix in the upper half, the port GUID in the lower half.
    pub fn unicast(prefix: u64, guid: Guid) -> Self {
        Self((u128::from(prefix) << 64 | u128::from(guid.to_wire())).to_be_bytes())
    }

    /// The upper half; of a unicast GID the subnet prefix.
    pub fn prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The lower half as a GUID; `None` if it is 0.
    pub fn guid(self) -> Option<Guid> {
        Guid::from_wire(u128::from_be_bytes(self.0) as u64)
    }

    /// Whether it names a multicast group: the first byte is 0xFF.
    pub fn is_multicast(self) -> bool {
        self.0[0] == 0xff
    }
}

impl WireValue for Gid {
    const MIN_BITS: usize = 16 * 8;
    const MAX_BITS: usize = 16 * 8;
    fn read(raw: &[u8], field: Field) -> Option<Self> {
        <[u8; 16]>::read(raw, field).map(Self)
    }
    fn write(&self, raw: &mut [u8], field: Field) {
        self.0.write(raw, field);
    }
}

/// A text that is not a GID. It keeps the first 50 characters of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a GID: expected the form of an IPv6 address, such as fe80::2:c903:21:6e70")]
pub struct ParseGidError(String);

impl FromStr for Gid {
    type Err = ParseGidError;
    fn from_str(text: &str) -> Result<Self, ParseGidError> {
        let address = text.parse::<std::net::Ipv6Addr>();
        address
            .map(|address| Self(address.octets()))
            .map_err(|_| ParseGidError(text.chars().take(50).collect()))
    }
}

impl TryFrom<String> for Gid {
    type Error = ParseGidError;
    fn try_from(text: String) -> Result<Self, ParseGidError> {
        text.parse()
    }
}

impl From<Gid> for String {
    fn from(gid: Gid) -> String {
        gid.to_string()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// A port number of a node, 0 to 254. Port 0 is the management port of a switch; adapters count from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct PortNum(u8);

impl PortNum {
    /// Port 0, the management port of a switch.
    pub const MANAGEMENT: Self = Self(0);

    /// `None` if the number is 255, which forwarding tables use for "no port".
    #[inline]
    pub const fn new(raw: u8) -> Option<Self> {
        if raw == 0xff { None } else { Some(Self(raw)) }
    }

    /// The same as [`PortNum::new`], under the name that every identifier of this crate has.
    #[inline]
    pub const fn from_wire(raw: u8) -> Option<Self> {
        Self::new(raw)
    }

    /// The port number, 0 to 254.
    #[inline]
    pub const fn to_wire(self) -> u8 {
        self.0
    }

    /// The port number as an index of a table with one entry per port, port 0 included.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

identifier_wire_value!(PortNum, u8);

impl TryFrom<u8> for PortNum {
    type Error = OutOfRange;
    fn try_from(raw: u8) -> Result<Self, OutOfRange> {
        Self::new(raw).ok_or(OutOfRange {
            what: "port number",
            raw: raw.into(),
            allowed: "between 0 and 254",
        })
    }
}

impl From<PortNum> for u8 {
    fn from(port: PortNum) -> u8 {
        port.0
    }
}

/// A text that is not a port number. It keeps the first 20 characters of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a port number: expected a decimal number between 0 and 254")]
pub struct ParsePortNumError(String);

/// Accepts decimal numbers only, as InfiniBand tools print ports.
impl FromStr for PortNum {
    type Err = ParsePortNumError;
    fn from_str(text: &str) -> Result<Self, ParsePortNumError> {
        text.parse()
            .ok()
            .and_then(Self::new)
            .ok_or_else(|| ParsePortNumError(text.chars().take(20).collect()))
    }
}

impl fmt::Display for PortNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for PortNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortNum({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_number_is_one_kind_of_lid() {
        for raw in 0..=u16::MAX {
            let kinds = usize::from(raw == 0)
                + usize::from(raw == 0xffff)
                + usize::from(Lid::from_wire(raw).is_some())
                + usize::from(MulticastLid::from_wire(raw).is_some());
            assert_eq!(kinds, 1, "{raw:#x}");
            assert_eq!(LidAddress::from_wire(raw).map_or(0, LidAddress::to_wire), raw);
        }
    }

    #[test]
    fn a_printed_gid_parses_to_the_same_gid() {
        for gid in [
            Gid::unicast(Gid::DEFAULT_PREFIX, Guid::from_wire(0x0002_c903_0021_6e70).unwrap()),
            Gid([0xff; 16]),
            Gid::default(),
        ] {
            assert_eq!(gid.to_string().parse(), Ok(gid));
        }
        for text in ["", "fe80", "fe80::1%eth0", "10.0.0.1"] {
            assert!(text.parse::<Gid>().is_err(), "{text}");
        }
    }

    #[test]
    fn guids_parse_in_every_spelling_in_use() {
        let guid = Guid::from_wire(0x0002_c903_0021_6e70).unwrap();
        for text in [
            "0x0002c90300216e70",
            "0002c90300216e70",
            "2c90300216e70",
            "00:02:c9:03:00:21:6e:70",
            "0002:c903:0021:6e70",
        ] {
            assert_eq!(text.parse(), Ok(guid), "{text}");
        }
        for text in ["", "0x", "0", "0x0", "g", "+1", "0x10002c90300216e70", "-5"] {
            assert!(text.parse::<Guid>().is_err(), "{text}");
        }
    }
}
