//! The names of the protocol's sockets, in the abstract namespace.

use std::fmt;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::str::FromStr;

/// Bytes a base name may have: `sun_path` holds 108, of which the longest suffix (`:ctl4294967295`) takes 14 and the
/// zero bytes at both ends 2.
const NAME_MAX: usize = 108 - 14 - 2;

/// The base name of a server's sockets, as in `IBSIM_SOCKNAME`: 1 to 92 bytes, none of them zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SocketName(String);

/// A text that cannot be the base name of a server's sockets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSocketName {
    /// Nothing.
    #[error("the socket name is empty")]
    Empty,
    /// Too long.
    #[error("the socket name has {length} bytes, at most {NAME_MAX} fit")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// A zero byte inside.
    #[error("the socket name has a zero byte at position {position}")]
    ZeroByte {
        /// Where.
        position: usize,
    },
}

impl SocketName {
    /// Checks a name.
    pub fn new(text: &str) -> Result<Self, InvalidSocketName> {
        if text.is_empty() {
            return Err(InvalidSocketName::Empty);
        }
        if text.len() > NAME_MAX {
            return Err(InvalidSocketName::TooLong { length: text.len() });
        }
        if let Some(position) = text.bytes().position(|byte| byte == 0) {
            return Err(InvalidSocketName::ZeroByte { position });
        }
        Ok(Self(text.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Where a server takes control messages.
    pub(crate) fn server_control(&self) -> io::Result<SocketAddr> {
        abstract_address(&format!("{self}:ctl"))
    }

    /// Where a server takes the datagrams of client `id`.
    pub(crate) fn server_data(&self, id: u32) -> io::Result<SocketAddr> {
        abstract_address(&format!("{self}:out{id}"))
    }

    /// Where the client with this number takes control replies.
    pub(crate) fn client_control(&self, number: u32) -> io::Result<SocketAddr> {
        abstract_address(&format!("{self}:ctl{number}"))
    }

    /// Where the client with this number takes datagrams.
    pub(crate) fn client_data(&self, number: u32) -> io::Result<SocketAddr> {
        abstract_address(&format!("{self}:in{number}"))
    }
}

impl FromStr for SocketName {
    type Err = InvalidSocketName;
    fn from_str(text: &str) -> Result<Self, InvalidSocketName> {
        Self::new(text)
    }
}

impl fmt::Display for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The address of a name: ibsim counts the C string's terminating zero as part of it.
fn abstract_address(name: &str) -> io::Result<SocketAddr> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    SocketAddr::from_abstract_name(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_still_makes_every_address() {
        let name = SocketName::new(&"n".repeat(NAME_MAX)).unwrap();
        assert!(name.client_control(u32::MAX).is_ok());
        assert!(name.server_data(u32::from(u16::MAX)).is_ok());
        assert_eq!(
            SocketName::new(&"n".repeat(NAME_MAX + 1)),
            Err(InvalidSocketName::TooLong { length: NAME_MAX + 1 })
        );
    }

    #[test]
    fn empty_names_and_zero_bytes_are_refused() {
        assert_eq!(SocketName::new(""), Err(InvalidSocketName::Empty));
        assert_eq!(SocketName::new("a\0b"), Err(InvalidSocketName::ZeroByte { position: 1 }));
    }

    #[test]
    fn addresses_end_in_a_zero_byte() {
        let address = SocketName::new("t1").unwrap().server_control().unwrap();
        assert_eq!(address.as_abstract_name(), Some(&b"t1:ctl\0"[..]));
    }
}
