//! File systems of the kernel.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::mount::{MsFlags, mount};

/// Place, kind and options of what every program expects.
const MOUNTS: [(&str, &str, &str); 7] = [
    ("/proc", "proc", ""),
    ("/sys", "sysfs", ""),
    ("/dev", "devtmpfs", "mode=0755"),
    ("/dev/pts", "devpts", "gid=5,mode=620,ptmxmode=666"),
    ("/dev/shm", "tmpfs", "mode=1777"),
    ("/run", "tmpfs", "mode=0755"),
    ("/tmp", "tmpfs", "mode=1777"),
];

/// Folders in memory that programs expect. sshd does not start without its own.
const FOLDERS: [&str; 3] = ["/run/sshd", "/run/lock", "/run/heddle"];

/// Names in /dev that shells expect and the kernel does not make.
const LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
];

/// Why a file system is missing.
#[derive(Debug, thiserror::Error)]
#[error("{place} could not be made")]
pub(super) struct NoMount {
    place: &'static str,
    #[source]
    error: io::Error,
}

/// Mounts all of them; those that the initial file system has left are taken as they are.
pub(super) fn mount_all() -> Result<(), NoMount> {
    for (place, kind, options) in MOUNTS {
        let failed = |error: io::Error| NoMount { place, error };
        fs::create_dir_all(place).map_err(failed)?;
        let flags = if place == "/dev" || place == "/dev/pts" { MsFlags::MS_NOSUID } else { QUIET };
        match mount(Some(kind), place, Some(kind), flags, Some(options)) {
            Ok(()) | Err(nix::Error::EBUSY) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
    for place in FOLDERS {
        fs::create_dir_all(place).map_err(|error| NoMount { place, error })?;
    }
    for (target, place) in LINKS {
        if !Path::new(place).exists() {
            symlink(target, place).map_err(|error| NoMount { place, error })?;
        }
    }
    Ok(())
}

/// For what is no place for devices and set-user-id programs.
const QUIET: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);
