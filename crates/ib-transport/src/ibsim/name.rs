//! Names of the protocol's sockets in the abstract namespace.

use std::fmt;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::str::FromStr;

/// Longest base name in bytes: `sun_path` has 108, of which the longest suffix (`:ctl4294967295`) takes 14 and the zero bytes
/// at both ends 2.
const NAME_MAX: usize = 108 - 14 - 2;

/// The base name of a server's sockets, as in `IBSIM_SOCKNAME`: 1 to 92 bytes without zero bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SocketName(String);

/// A text that is not a valid base name of a server's sockets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSocketName {
    #[error("the socket name must have between 1 and {NAME_MAX} bytes, got none")]
    Empty,
    #[error("the socket name must have between 1 and {NAME_MAX} bytes, got {length}")]
    TooLong { length: usize },
    #[error("the socket name must not contain zero bytes, got one at position {position}")]
    ZeroByte { position: usize },
}

impl SocketName {
    /// A base name.
    ///
    /// # Errors
    ///
    /// The text is empty, longer than 92 bytes, or contains a zero byte.
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

    /// The base name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The address at which a server receives control messages.
    pub(crate) fn server_control(&self) -> io::Result<SocketAddr> {
        abstract_address(&format!("{self}:ctl"))
    }

    /// The address at which a server receives the data messages of client `id`.
    pub(crate) fn server_data(&self, id: u32) -> io::Result<SocketAddr> {
        abstract_address(&format!("{self}:out{id}"))
    }

    /// The address at which the client with this number receives control replies.
    pub(crate) fn client_control(&self, number: u32) -> io::Result<SocketAddr> {
        abstract_address(&format!("{self}:ctl{number}"))
    }

    /// The address at which the client with this number receives data messages.
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

/// The abstract address of a name. ibsim includes the terminating zero of the C string.
fn abstract_address(name: &str) -> io::Result<SocketAddr> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    SocketAddr::from_abstract_name(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_yields_valid_addresses() {
        let name = SocketName::new(&"n".repeat(NAME_MAX)).unwrap();
        assert!(name.client_control(u32::MAX).is_ok());
        assert!(name.server_data(u32::from(u16::MAX)).is_ok());
        assert_eq!(
            SocketName::new(&"n".repeat(NAME_MAX + 1)),
            Err(InvalidSocketName::TooLong { length: NAME_MAX + 1 })
        );
    }

    #[test]
    fn empty_names_and_zero_bytes_are_rejected() {
        assert_eq!(SocketName::new(""), Err(InvalidSocketName::Empty));
        assert_eq!(SocketName::new("a\0b"), Err(InvalidSocketName::ZeroByte { position: 1 }));
    }

    #[test]
    fn addresses_end_in_a_zero_byte() {
        let address = SocketName::new("t1").unwrap().server_control().unwrap();
        assert_eq!(address.as_abstract_name(), Some(&b"t1:ctl\0"[..]));
    }
}
