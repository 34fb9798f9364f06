//! Mounts the kernel's file systems.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::mount::{MsFlags, mount};

/// Mount point, file system and options.
const MOUNTS: [(&str, &str, &str); 7] = [
    ("/proc", "proc", ""),
    ("/sys", "sysfs", ""),
    ("/dev", "devtmpfs", "mode=0755"),
    ("/dev/pts", "devpts", "gid=5,mode=620,ptmxmode=666"),
    ("/dev/shm", "tmpfs", "mode=1777"),
    ("/run", "tmpfs", "mode=0755"),
    ("/tmp", "tmpfs", "mode=1777"),
];

/// Directories below /run. sshd does not start without its own.
const DIRECTORIES: [&str; 3] = ["/run/sshd", "/run/lock", "/run/heddle"];

/// Symbolic links in /dev that devtmpfs does not create: target and path.
const LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
];

/// Why a mount, directory or link could not be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot create or mount {path}")]
pub(super) struct MountError {
    path: &'static str,
    #[source]
    error: io::Error,
}

/// Creates all mounts, directories and links. Those already present from the initramfs are kept.
pub(super) fn mount_all() -> Result<(), MountError> {
    for (path, kind, options) in MOUNTS {
        let failed = |error: io::Error| MountError { path, error };
        fs::create_dir_all(path).map_err(failed)?;
        let flags = if path == "/dev" || path == "/dev/pts" { MsFlags::MS_NOSUID } else { NO_DEVICES };
        match mount(Some(kind), path, Some(kind), flags, Some(options)) {
            Ok(()) | Err(nix::Error::EBUSY) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
    for path in DIRECTORIES {
        fs::create_dir_all(path).map_err(|error| MountError { path, error })?;
    }
    for (target, path) in LINKS {
        if !Path::new(path).exists() {
            symlink(target, path).map_err(|error| MountError { path, error })?;
        }
    }
    Ok(())
}

/// Flags of file systems without device nodes and set-user-id programs.
const NO_DEVICES: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);
