//! Finds and opens the virtio-serial port.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::channel::PORT_NAME;

/// How long to wait for the port: drivers may be loaded while the system boots.
const PORT_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between two searches for the port.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// sysfs directory of the virtio-serial ports.
const PORTS_DIRECTORY: &str = "/sys/class/virtio-ports";

/// Opens the port in non-blocking mode, waiting up to 60 s for it to appear. In blocking mode, a write would block while no
/// host is connected. Only one process may open the port at a time.
pub fn open() -> io::Result<File> {
    let deadline = Instant::now() + PORT_TIMEOUT;
    loop {
        if let Some(device) = find(Path::new(PORTS_DIRECTORY)) {
            return OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(device);
        }
        if Instant::now() > deadline {
            let message = format!("no virtio-serial port {PORT_NAME} in {PORTS_DIRECTORY}");
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Searches sysfs instead of /dev/virtio-ports, whose links need udev.
fn find(ports: &Path) -> Option<PathBuf> {
    let is_ours = |entry: &fs::DirEntry| {
        fs::read_to_string(entry.path().join("name")).is_ok_and(|name| name.trim_end() == PORT_NAME)
    };
    let found = fs::read_dir(ports).ok()?.flatten().find(is_ours)?;
    Some(Path::new("/dev").join(found.file_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_found_by_its_name() {
        let ports = tempfile::tempdir().expect("a folder");
        assert_eq!(find(ports.path()), None);
        for (device, name) in [("vport1p1", "org.qemu.guest_agent.0"), ("vport1p2", PORT_NAME)] {
            fs::create_dir(ports.path().join(device)).expect("ours");
            fs::write(ports.path().join(device).join("name"), format!("{name}\n")).expect("ours");
        }
        assert_eq!(find(ports.path()), Some(PathBuf::from("/dev/vport1p2")));
    }
}
