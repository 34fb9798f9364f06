//! Configures the network device.

use std::fmt;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::{POLL_INTERVAL, load_module};
use crate::seed::{Ethernet, INFINIBAND_MODULES};
use crate::sys::{DeviceChange, change_device};

/// How long to wait for the network device.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the network could not be configured.
#[derive(Debug, thiserror::Error)]
pub(super) enum NetworkError {
    #[error("no network device {wanted}; found {found:?}")]
    NoDevice { wanted: String, found: Vec<String> },
    #[error(
        "addresses of {device} must be one IPv4 address with prefix length, such as 10.0.0.1/16, got {address:?}"
    )]
    Address { device: String, address: String },
    #[error("cannot apply {change} to network device {device}")]
    Change {
        device: String,
        change: String,
        #[source]
        error: io::Error,
    },
}

/// Brings up the loopback device.
pub(super) fn loopback() -> Result<(), NetworkError> {
    change("lo", DeviceChange::Up)
}

/// Waits up to 10 s for a device, then sets its name, MTU and address and brings it up. `entry` is the name of its entry.
pub(super) fn bring_up(entry: &str, device: &Ethernet) -> Result<(), NetworkError> {
    let name = device.set_name.as_deref().unwrap_or(entry);
    let mut changes = Vec::new();
    for address in &device.addresses {
        let invalid = || NetworkError::Address { device: name.to_owned(), address: address.clone() };
        let (address, mask) = parse_address(address).ok_or_else(invalid)?;
        changes.extend([DeviceChange::Address(address), DeviceChange::Netmask(mask)]);
    }
    if device.addresses.len() > 1 {
        // Setting a second address by ioctl would replace the first.
        let address = device.addresses.join(", ");
        return Err(NetworkError::Address { device: name.to_owned(), address });
    }
    let found = match &device.matching {
        Some(matching) => wait_for(Wanted::Address(&matching.macaddress), &["virtio_net"])?,
        None => wait_for(Wanted::Name(name), &INFINIBAND_MODULES)?,
    };
    if found != name {
        change(&found, DeviceChange::Name(name))?;
    }
    for step in [DeviceChange::Mtu(device.mtu)].into_iter().chain(changes).chain([DeviceChange::Up]) {
        change(name, step)?;
    }
    Ok(())
}

fn change(device: &str, change: DeviceChange<'_>) -> Result<(), NetworkError> {
    change_device(device, change).map_err(|error| NetworkError::Change {
        device: device.to_owned(),
        change: format!("{change:?}"),
        error,
    })
}

/// How a device is known before it is there.
#[derive(Clone, Copy, Debug)]
enum Wanted<'a> {
    Address(&'a str),
    Name(&'a str),
}

impl Wanted<'_> {
    fn is(self, name: &str, mac: &str) -> bool {
        match self {
            Self::Address(wanted) => wanted.eq_ignore_ascii_case(mac),
            Self::Name(wanted) => wanted == name,
        }
    }
}

impl fmt::Display for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(mac) => write!(f, "has the MAC address {mac}"),
            Self::Name(name) => write!(f, "is called {name}"),
        }
    }
}

/// Waits for a device and returns its name. Loads the modules of its driver if it is not there at once.
fn wait_for(wanted: Wanted<'_>, modules: &[&str]) -> Result<String, NetworkError> {
    let deadline = Instant::now() + DEVICE_TIMEOUT;
    let mut loaded = false;
    loop {
        let devices = devices(Path::new("/sys/class/net"));
        if let Some((name, _)) = devices.iter().find(|(name, mac)| wanted.is(name, mac)) {
            return Ok(name.clone());
        }
        if !loaded {
            modules.iter().for_each(|module| load_module(module));
            loaded = true;
        } else if Instant::now() > deadline {
            let found = devices.into_iter().map(|(name, mac)| format!("{name} {mac}")).collect();
            return Err(NetworkError::NoDevice { wanted: wanted.to_string(), found });
        } else {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Names and MAC addresses of all devices, sorted by name.
fn devices(class: &Path) -> Vec<(String, String)> {
    let mut devices: Vec<(String, String)> = fs::read_dir(class)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let address = fs::read_to_string(entry.path().join("address")).ok()?;
            Some((entry.file_name().into_string().ok()?, address.trim_end().to_owned()))
        })
        .collect();
    devices.sort();
    devices
}

/// Parses an address with prefix length into address and netmask.
fn parse_address(text: &str) -> Option<(Ipv4Addr, Ipv4Addr)> {
    let (address, length) = text.split_once('/')?;
    let length = length.parse::<u32>().ok().filter(|length| *length <= 32)?;
    let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
    Some((address.parse().ok()?, mask.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_prefix_length_is_rejected() {
        let mask = |text| parse_address(text).map(|(_, mask)| mask.to_string());
        assert_eq!(mask("10.128.0.1/16").as_deref(), Some("255.255.0.0"));
        assert_eq!(mask("10.128.0.1/32").as_deref(), Some("255.255.255.255"));
        assert_eq!(mask("10.128.0.1/0").as_deref(), Some("0.0.0.0"));
        for wrong in ["10.128.0.1", "10.128.0.1/33", "10.128.0/16", "fe80::1/64", "/", ""] {
            assert_eq!(mask(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn devices_are_listed_with_their_mac_addresses() {
        let class = tempfile::tempdir().expect("a folder");
        for (name, mac) in [("lo", "00:00:00:00:00:00"), ("eth0", "02:00:00:00:00:01")] {
            fs::create_dir(class.path().join(name)).expect("ours");
            fs::write(class.path().join(name).join("address"), format!("{mac}\n")).expect("ours");
        }
        let expected = [("eth0", "02:00:00:00:00:01"), ("lo", "00:00:00:00:00:00")];
        assert_eq!(devices(class.path()), expected.map(|(name, mac)| (name.to_owned(), mac.to_owned())));
    }
}
