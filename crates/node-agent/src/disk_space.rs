//! Room for disks. A virtual machine's disk is a file that grows while its guest writes; what all of them may grow to is set
//! aside from the start, so that guests cannot fill the host's disk, neither for each other nor for the host.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use controller_api::image::DiskFormat;
use nix::sys::statvfs::statvfs;
use thiserror::Error;

use crate::image::VerifiedImage;
use crate::state_dir::StateDir;

/// MiB that stay free for the host and what manages it.
const RESERVE_MIB: u64 = 512;

/// What a file in the format qcow2 begins with.
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";

/// Where such a file says how large the disk is.
const QCOW2_SIZE_OFFSET: u64 = 24;

/// Bytes of a block as the kernel counts them for files.
const BLOCK_BYTES: u64 = 512;

/// Why there is no disk.
#[derive(Debug, Error)]
pub enum DiskSpaceError {
    /// There is too little.
    #[error(
        "its disk may grow to {needed} MiB, and the host's has room for {left}: {free} MiB are free, {reserved} of them \
         reserved to other disks and {RESERVE_MIB} kept for the host"
    )]
    Full {
        /// MiB of the disk.
        needed: u64,
        /// MiB that are left for it.
        left: u64,
        /// MiB that are free.
        free: u64,
        /// MiB that other disks may still grow.
        reserved: u64,
    },
    /// That cannot be found out.
    #[error("cannot tell how much room there is: {0}")]
    Unknown(#[from] io::Error),
}

/// Whether a disk over this image finds room beside all that are there.
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

/// Whether halted disks may be written again: the host has what is kept for it.
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

/// How large a disk in the format qcow2 is for its guest.
fn qcow2_size(path: &Path) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let (mut magic, mut size) = ([0; 4], [0; 8]);
    file.read_exact(&mut magic)?;
    if magic != QCOW2_MAGIC {
        return Err(io::Error::other(format!("{} is no disk in the format qcow2", path.display())));
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
    fn a_disk_finds_room_beside_what_is_promised_and_kept_to_the_last_byte() {
        check_space(2000 * MIB, 1000 * MIB, 488 * MIB).unwrap();
        let error = check_space(2000 * MIB, 1000 * MIB, 488 * MIB + 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "its disk may grow to 489 MiB, and the host's has room for 488: 2000 MiB are free, 1000 of them reserved to \
             other disks and 512 kept for the host"
        );
        check_space(100 * MIB, 1000 * MIB, MIB).unwrap_err();
    }

    #[test]
    fn a_disk_says_how_large_it_is_as_qemu_wrote_it() {
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
