//! Disk space accounting. An overlay grows while its guest writes; its full virtual size is reserved from the start, so that guests
//! cannot fill the host's file system.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use controller_api::image::DiskFormat;
use nix::sys::statvfs::statvfs;
use thiserror::Error;

use crate::image::VerifiedImage;
use crate::state_dir::StateDir;

/// MiB that stay free for the host.
const RESERVE_MIB: u64 = 512;

/// Magic number of a qcow2 file.
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";

/// Offset of the virtual size in a qcow2 header.
const QCOW2_SIZE_OFFSET: u64 = 24;

/// Unit of `st_blocks`, in bytes.
const BLOCK_BYTES: u64 = 512;

/// Why a new disk cannot be created.
#[derive(Debug, Error)]
pub enum DiskSpaceError {
    #[error(
        "the disk needs up to {needed} MiB, but only {left} MiB are available: {free} MiB are free, of which {reserved} are \
         reserved for other disks and {RESERVE_MIB} for the host"
    )]
    Full {
        /// Virtual size of the disk, in MiB.
        needed: u64,
        /// MiB left for it.
        left: u64,
        /// Free space of the file system, in MiB.
        free: u64,
        /// MiB by which existing disks may still grow.
        reserved: u64,
    },
    #[error("cannot determine the free disk space")]
    Unknown(#[from] io::Error),
}

/// Checks that the file system has space for a new overlay over `image`, at its full virtual size, beside all existing ones.
pub fn check(state_dir: &StateDir, image: &VerifiedImage) -> Result<(), DiskSpaceError> {
    let needed = match image.root_format {
        DiskFormat::Raw => fs::metadata(&image.root)?.len(),
        DiskFormat::Qcow2 => qcow2_size(&image.root)?,
    };
    let mut reserved = 0;
    for id in state_dir.vm_ids().map_err(io::Error::other)? {
        let overlay = state_dir.vm(id).overlay;
        match fs::metadata(&overlay) {
            Ok(found) => reserved += qcow2_size(&overlay)?.saturating_sub(found.blocks() * BLOCK_BYTES),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    check_space(free(state_dir)?, reserved, needed)
}

/// Whether the host's reserve is free, so that domains halted by a write error can resume.
pub fn has_reserve(state_dir: &StateDir) -> bool {
    free(state_dir).is_ok_and(|free| free >= RESERVE_MIB << 20)
}

fn free(state_dir: &StateDir) -> io::Result<u64> {
    let found = statvfs(state_dir.vms_directory().as_path())?;
    Ok(found.blocks_available() * found.fragment_size())
}

fn check_space(free: u64, reserved: u64, needed: u64) -> Result<(), DiskSpaceError> {
    let left = free.saturating_sub(reserved).saturating_sub(RESERVE_MIB << 20);
    if needed <= left {
        return Ok(());
    }
    Err(DiskSpaceError::Full {
        needed: needed.div_ceil(1 << 20),
        left: left >> 20,
        free: free >> 20,
        reserved: reserved >> 20,
    })
}

/// Virtual size of a qcow2 disk, in bytes.
fn qcow2_size(path: &Path) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let (mut magic, mut size) = ([0; 4], [0; 8]);
    file.read_exact(&mut magic)?;
    if magic != QCOW2_MAGIC {
        return Err(io::Error::other(format!("{} is not a qcow2 file", path.display())));
    }
    file.seek(SeekFrom::Start(QCOW2_SIZE_OFFSET))?;
    file.read_exact(&mut size)?;
    Ok(u64::from_be_bytes(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn space_is_available_up_to_the_last_unreserved_byte() {
        check_space(2000 * MIB, 1000 * MIB, 488 * MIB).unwrap();
        let error = check_space(2000 * MIB, 1000 * MIB, 488 * MIB + 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the disk needs up to 489 MiB, but only 488 MiB are available: 2000 MiB are free, of which 1000 are reserved for \
             other disks and 512 for the host"
        );
        check_space(100 * MIB, 1000 * MIB, MIB).unwrap_err();
    }

    #[test]
    fn the_virtual_size_is_read_from_a_qcow2_header() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("disk");
        let mut command = std::process::Command::new("qemu-img");
        command.args(["create", "-q", "-f", "qcow2"]).arg(&path).arg("123M");
        assert!(command.status().unwrap().success());
        assert_eq!(qcow2_size(&path).unwrap(), 123 * MIB);
        fs::write(&path, [0; 64]).unwrap();
        qcow2_size(&path).unwrap_err();
    }
}
