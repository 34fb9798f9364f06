//! MAC addresses of virtual functions on an emulated fabric.

use std::fmt;
use std::str::FromStr;

use ib_wire::Lid;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A MAC address, written `02:00:0a:01:00:00`.
///
/// The address of a virtual function encodes its location: the LID of its port and its function number. A guest can
/// therefore address a frame to any port of the fabric; only the tables of the fabric decide whether it arrives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddress([u8; 6]);

/// The text is not a [`MacAddress`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid MAC address {text:?}: expected six bytes in hexadecimal, such as 02:00:0a:01:00:00")]
pub struct ParseMacAddressError {
    text: String,
}

impl MacAddress {
    /// First byte of the address of a virtual function: locally administered, unicast.
    const PREFIX: u8 = 0x02;

    /// `ff:ff:ff:ff:ff:ff`, the broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// The address of virtual function `function` at the port with this LID.
    pub const fn of_function(lid: Lid, function: u8) -> Self {
        let [high, low] = lid.to_wire().to_be_bytes();
        Self([Self::PREFIX, high, low, function, 0, 0])
    }

    /// The address of the network card that carries the packets of a guest's InfiniBand adapter, for the function with this
    /// address. The driver in the guest finds the card by its first three bytes.
    pub const fn of_wire(self) -> Self {
        let [_, high, low, function, ..] = self.0;
        Self([0x06, 0x68, 0x63, high, low, function])
    }

    /// From the six bytes of a frame, in wire order.
    pub const fn from_bytes(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }

    /// The six bytes in wire order.
    pub const fn bytes(self) -> [u8; 6] {
        self.0
    }

    /// Whether it is a multicast or broadcast address.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// The LID of the port of a virtual function; `None` if it is not the address of a virtual function.
    pub fn lid(self) -> Option<Lid> {
        match self.0 {
            [Self::PREFIX, high, low, _, 0, 0] => Lid::from_wire(u16::from_be_bytes([high, low])),
            _ => None,
        }
    }
}

impl FromStr for MacAddress {
    type Err = ParseMacAddressError;
    fn from_str(text: &str) -> Result<Self, ParseMacAddressError> {
        let error = || ParseMacAddressError { text: text.chars().take(40).collect() };
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(error)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| error())?;
        }
        if parts.next().is_some() { Err(error()) } else { Ok(Self(bytes)) }
    }
}

impl TryFrom<String> for MacAddress {
    type Error = ParseMacAddressError;
    fn try_from(text: String) -> Result<Self, ParseMacAddressError> {
        text.parse()
    }
}

impl From<MacAddress> for String {
    fn from(address: MacAddress) -> Self {
        address.to_string()
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_encode_lid_and_function_number() {
        let lid = Lid::from_wire(0x0a1b).unwrap();
        let address = MacAddress::of_function(lid, 3);
        assert_eq!(address.to_string(), "02:0a:1b:03:00:00");
        assert_eq!((address.lid(), address.is_group()), (Some(lid), false));
        assert_eq!("02:0a:1b:03:00:00".parse(), Ok(address));
        assert!(MacAddress::BROADCAST.is_group());
        assert_eq!("52:54:00:00:00:01".parse::<MacAddress>().unwrap().lid(), None);
        for bad in ["", "02:0a:1b:03:00", "02:0a:1b:03:00:00:00", "2:a:1b:03:00:00", "+2:0a:1b:03:00:0g"] {
            assert!(bad.parse::<MacAddress>().is_err(), "{bad}");
        }
    }
}
