//! Reads the seed volume, and creates names for virtio-serial ports.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::{POLL_INTERVAL, load_module};
use crate::channel::CONTEXT_BYTES_MAX;
use crate::seed::Seed;

/// Label of the seed volume, compared without case.
const LABEL: &str = "cidata";

/// How long to wait for the seed volume.
const VOLUME_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the seed volume is mounted while it is read.
const MOUNT_POINT: &str = "/run/heddle/seed";

/// Supported file systems: name, offset of the label in bytes, length of the label in bytes.
const FILE_SYSTEMS: [(&str, u64, usize); 3] = [
    // Volume identifier of the primary volume descriptor, the 17th sector.
    ("iso9660", 16 * 2048 + 40, 32),
    // FAT12 and FAT16, then FAT32.
    ("vfat", 43, 11),
    ("vfat", 71, 11),
];

/// Why the seed could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum SeedError {
    #[error("no disk is labelled {LABEL}; found {disks:?}")]
    NoVolume { disks: Vec<PathBuf> },
    #[error("cannot mount the seed volume {device} as {kind}")]
    Mount {
        device: PathBuf,
        kind: &'static str,
        #[source]
        error: io::Error,
    },
    #[error("cannot read {file} of the seed")]
    Read {
        file: &'static str,
        #[source]
        error: io::Error,
    },
}

/// Waits up to 10 s for the seed volume and reads it. The volume is unmounted afterwards, because it holds a private key.
pub(super) fn read_seed() -> Result<Seed, SeedError> {
    let (device, kind) = wait_for_volume()?;
    let failed = |error: io::Error| SeedError::Mount { device: device.clone(), kind, error };
    fs::create_dir_all(MOUNT_POINT).map_err(failed)?;
    match mount_volume(&device, kind) {
        // The file system's module is not loaded.
        Err(nix::Error::ENODEV) => {
            load_module(if kind == "iso9660" { "isofs" } else { kind });
            mount_volume(&device, kind)
        }
        mounted => mounted,
    }
    .map_err(|error| failed(error.into()))?;
    let seed = read_files(Path::new(MOUNT_POINT));
    // Tidiness, not security: root can mount it again.
    let _ = umount2(MOUNT_POINT, MntFlags::MNT_DETACH);
    seed
}

fn mount_volume(device: &Path, kind: &'static str) -> nix::Result<()> {
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some(device), MOUNT_POINT, Some(kind), flags, None::<&str>)
}

fn read_files(folder: &Path) -> Result<Seed, SeedError> {
    let text = |file: &'static str| {
        let mut text = String::new();
        let limit = CONTEXT_BYTES_MAX as u64;
        let read = File::open(folder.join(file)).and_then(|open| open.take(limit).read_to_string(&mut text));
        read.map(|_| text).map_err(|error| SeedError::Read { file, error })
    };
    Ok(Seed {
        meta_data: text("meta-data")?,
        user_data: text("user-data")?,
        network_config: text("network-config")?,
    })
}

fn wait_for_volume() -> Result<(PathBuf, &'static str), SeedError> {
    let deadline = Instant::now() + VOLUME_TIMEOUT;
    loop {
        let disks = disks();
        if let Some(found) = disks.iter().find_map(|disk| label_kind(disk).map(|kind| (disk.clone(), kind))) {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err(SeedError::NoVolume { disks });
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// All block devices, sorted by path.
fn disks() -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut disks: Vec<PathBuf> = entries.map(|entry| Path::new("/dev").join(entry.file_name())).collect();
    disks.sort();
    disks
}

/// The file system of a disk that carries the label; `None` if it does not.
fn label_kind(disk: &Path) -> Option<&'static str> {
    let disk = File::open(disk).ok()?;
    let has_label = |(_, at, length): &&(&str, u64, usize)| {
        let mut bytes = vec![0; *length];
        disk.read_exact_at(&mut bytes, *at).is_ok()
            && String::from_utf8_lossy(&bytes).trim_end_matches([' ', '\0']).eq_ignore_ascii_case(LABEL)
    };
    FILE_SYSTEMS.iter().find(has_label).map(|(kind, _, _)| *kind)
}

/// Creates /dev/virtio-ports as udev does. The channel server does not need it; users may.
pub(super) fn link_ports() {
    let ports = fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten();
    for port in ports {
        let name = fs::read_to_string(port.path().join("name")).unwrap_or_default();
        let name = name.trim_end();
        if name.is_empty() || name.contains('/') {
            continue;
        }
        // Errors are ignored: the links are a convenience.
        let _ = fs::create_dir_all("/dev/virtio-ports");
        let _ = symlink(Path::new("..").join(port.file_name()), Path::new("/dev/virtio-ports").join(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(at: usize, label: &str) -> tempfile::NamedTempFile {
        let mut bytes = vec![0; 40_000];
        bytes[at..at + label.len()].copy_from_slice(label.as_bytes());
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), bytes).expect("ours");
        file
    }

    #[test]
    fn the_label_is_found_on_iso9660_and_fat() {
        let kind = |at, label| label_kind(disk(at, label).path());
        assert_eq!(kind(32_808, "cidata                          "), Some("iso9660"));
        assert_eq!(kind(32_808, "CIDATA"), Some("iso9660"));
        assert_eq!(kind(43, "CIDATA     "), Some("vfat"));
        assert_eq!(kind(71, "cidata"), Some("vfat"));
        assert_eq!(kind(32_808, "cidata2"), None);
        assert_eq!(kind(100, "cidata"), None);
        assert_eq!(label_kind(Path::new("/no/such/disk")), None);
    }

    #[test]
    fn a_missing_seed_file_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("meta-data"), "{}").expect("ours");
        let missing = read_files(folder.path()).expect_err("it is not there");
        assert_eq!(missing.to_string(), "cannot read user-data of the seed");
    }
}
