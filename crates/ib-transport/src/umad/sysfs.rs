//! Properties of a port in `/sys/class`.

use std::ffi::CString;
use std::io;

use ib_wire::{Guid, Lid, Pkey};

use super::UmadError;
use crate::sys::RawDevice;

/// Most P_Key table entries searched; tables of real devices are smaller.
const PKEYS_MAX: u16 = 1024;

/// Longest file in bytes; each contains one number or name.
const FILE_MAX: usize = 256;

/// The sysfs files of one port.
#[derive(Clone, Debug)]
pub(super) struct PortFiles {
    /// `/sys/class/infiniband/<device>/ports/<port>`.
    folder: String,
}

impl PortFiles {
    /// The files of the port behind `umad<number>`.
    pub(super) fn of_device(number: u32) -> Result<Self, UmadError> {
        let folder = format!("/sys/class/infiniband_mad/umad{number}");
        let device = read_text(&format!("{folder}/ibdev"))?;
        let port = read_text(&format!("{folder}/port"))?;
        Ok(Self { folder: format!("/sys/class/infiniband/{device}/ports/{port}") })
    }

    /// The LID of the port; `None` if it is 0 or not unicast.
    pub(super) fn lid(&self) -> Result<Option<Lid>, UmadError> {
        let path = format!("{}/lid", self.folder);
        let text = read_text(&path)?;
        let number =
            number(&text).ok_or_else(|| UmadError::Describe { path, source: not_a_number(&text) })?;
        Ok(Lid::from_wire(number))
    }

    /// The GUID of the port: the lower half of its first GID.
    pub(super) fn port_guid(&self) -> Option<Guid> {
        let gid = read_text(&format!("{}/gids/0", self.folder)).ok()?;
        let digits: String = gid.trim().split(':').skip(4).collect();
        u64::from_str_radix(&digits, 16).ok().and_then(Guid::from_wire)
    }

    /// An entry of the P_Key table; `None` if it is empty or missing.
    pub(super) fn pkey(&self, index: u16) -> Option<Pkey> {
        let text = read_text(&format!("{}/pkeys/{index}", self.folder)).ok()?;
        number(&text).and_then(Pkey::from_wire)
    }

    /// The index of a P_Key in the table; `None` if it is not there.
    pub(super) fn pkey_index(&self, wanted: Pkey) -> Option<u16> {
        (0..PKEYS_MAX)
            .map_while(|index| {
                // There is one file per entry.
                let text = read_text(&format!("{}/pkeys/{index}", self.folder)).ok()?;
                Some((index, number(&text)))
            })
            .find(|(_, raw)| *raw == Some(wanted.to_wire()))
            .map(|(index, _)| index)
    }
}

/// The first line of a file, trimmed.
fn read_text(path: &str) -> Result<String, UmadError> {
    let read = || -> io::Result<String> {
        let file = RawDevice::open(&CString::new(path)?, libc::O_RDONLY)?;
        let mut buffer = [0; FILE_MAX];
        let length = file.read(&mut buffer)?;
        let text = String::from_utf8_lossy(&buffer[..length]);
        Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    };
    read().map_err(|source| UmadError::Describe { path: path.to_owned(), source })
}

/// Parses a hexadecimal number with `0x`, or a decimal one.
fn number(text: &str) -> Option<u16> {
    match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn not_a_number(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_parse_in_hexadecimal_and_decimal() {
        assert_eq!(number("0xffff"), Some(0xffff));
        assert_eq!(number("17"), Some(17));
        assert_eq!(number("0x10000"), None);
        assert_eq!(number(""), None);
    }
}
