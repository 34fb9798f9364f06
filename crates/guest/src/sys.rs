//! System calls that neither std nor nix wraps. Contains all unsafe code of the crate.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Longest name of a network device: IFNAMSIZ without the terminating zero.
const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;

/// A change to a network device, by ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChange<'a> {
    /// Renames the device, which must be down.
    Name(&'a str),
    Mtu(u16),
    Address(Ipv4Addr),
    /// Must follow the address, which sets a default mask.
    Netmask(Ipv4Addr),
    Up,
}

/// Applies a change to the network device `name`.
pub(crate) fn change_device(name: &str, change: DeviceChange<'_>) -> io::Result<()> {
    // SAFETY: ifreq is integers and bytes, for which zero is valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    write_name(&mut request.ifr_name, name)?;
    let operation = match change {
        DeviceChange::Name(new) => {
            let mut bytes = [0; libc::IFNAMSIZ];
            write_name(&mut bytes, new)?;
            request.ifr_ifru.ifru_newname = bytes;
            libc::SIOCSIFNAME
        }
        DeviceChange::Mtu(mtu) => {
            request.ifr_ifru.ifru_mtu = mtu.into();
            libc::SIOCSIFMTU
        }
        DeviceChange::Address(address) => {
            request.ifr_ifru.ifru_addr = socket_address(address);
            libc::SIOCSIFADDR
        }
        DeviceChange::Netmask(mask) => {
            request.ifr_ifru.ifru_netmask = socket_address(mask);
            libc::SIOCSIFNETMASK
        }
        DeviceChange::Up => {
            let up = libc::IFF_UP | libc::IFF_RUNNING;
            request.ifr_ifru.ifru_flags = up as libc::c_short;
            libc::SIOCSIFFLAGS
        }
    };
    // SAFETY: a plain call; the result is checked before it becomes a descriptor.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created and is owned by nothing else.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all of these operations read one ifreq, which is borrowed for the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), operation, &raw const request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn write_name(field: &mut [libc::c_char; libc::IFNAMSIZ], name: &str) -> io::Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(['\0', '/']) {
        let message =
            format!("the name of a network device must have 1 to {NAME_BYTES_MAX} bytes, got {name:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    for (slot, byte) in field.iter_mut().zip(name.bytes()) {
        *slot = byte.cast_signed();
    }
    Ok(())
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    // SAFETY: sockaddr is integers and bytes, for which zero is valid.
    let mut general: libc::sockaddr = unsafe { mem::zeroed() };
    general.sa_family = libc::AF_INET as libc::sa_family_t;
    // The layout of sockaddr_in: two bytes of port, then the address in network order.
    for (slot, byte) in general.sa_data[2..6].iter_mut().zip(address.octets()) {
        *slot = byte.cast_signed();
    }
    general
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_device_names_are_rejected_before_the_ioctl() {
        for name in ["", "sixteen-bytes-xx", "a\0b", "a/b"] {
            let refused = change_device(name, DeviceChange::Mtu(1500)).expect_err("no such name");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
        // Control: a valid name of a device that does not exist.
        let unknown = change_device("fifteen-bytes-x", DeviceChange::Mtu(1500)).expect_err("no such device");
        assert_ne!(unknown.kind(), io::ErrorKind::InvalidInput);
    }
}
