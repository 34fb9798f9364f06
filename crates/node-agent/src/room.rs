//! Room for disks. A virtual machine's disk is a file that grows while its guest writes; what all of them may grow to is set
//! aside from the start, so that guests cannot fill the host's disk, neither for each other nor for the host.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use controller_api::image::DiskFormat;
use nix::sys::statvfs::statvfs;
use thiserror::Error;

use crate::image::CheckedImage;
use crate::place::Place;

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
pub enum RoomError {
    /// There is too little.
    #[error(
        "its disk may grow to {wanted} MiB, and the host's has room for {left}: {free} MiB are free, {promised} of them \
         promised to other disks and {RESERVE_MIB} kept for the host"
    )]
    Full {
        /// MiB of the disk.
        wanted: u64,
        /// MiB that are left for it.
        left: u64,
        /// MiB that are free.
        free: u64,
        /// MiB that other disks may still grow.
        promised: u64,
    },
    /// That cannot be found out.
    #[error("cannot tell how much room there is: {0}")]
    Unknown(#[from] io::Error),
}

/// Whether a disk over this image finds room beside all that are there.
pub fn check(place: &Place, image: &CheckedImage) -> Result<(), RoomError> {
    let wanted = match image.root_format {
        DiskFormat::Raw => fs::metadata(&image.root)?.len(),
        DiskFormat::Qcow2 => qcow2_size(&image.root)?,
    };
    let mut promised = 0;
    for id in place.vms().map_err(io::Error::other)? {
        let overlay = place.vm(id).overlay;
        match fs::metadata(&overlay) {
            Ok(found) => promised += qcow2_size(&overlay)?.saturating_sub(found.blocks() * BLOCK_BYTES),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    judge(free(place)?, promised, wanted)
}

/// Whether halted disks may be written again: the host has what is kept for it.
pub fn has_reserve(place: &Place) -> bool {
    free(place).is_ok_and(|free| free >= RESERVE_MIB << 20)
}

fn free(place: &Place) -> io::Result<u64> {
    let found = statvfs(place.vms_directory().as_path())?;
    Ok(found.blocks_available() * found.fragment_size())
}

fn judge(free: u64, promised: u64, wanted: u64) -> Result<(), RoomError> {
    let left = free.saturating_sub(promised).saturating_sub(RESERVE_MIB << 20);
    if wanted <= left {
        return Ok(());
    }
    Err(RoomError::Full {
        wanted: wanted.div_ceil(1 << 20),
        left: left >> 20,
        free: free >> 20,
        promised: promised >> 20,
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
        judge(2000 * MIB, 1000 * MIB, 488 * MIB).unwrap();
        let error = judge(2000 * MIB, 1000 * MIB, 488 * MIB + 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "its disk may grow to 489 MiB, and the host's has room for 488: 2000 MiB are free, 1000 of them promised to \
             other disks and 512 kept for the host"
        );
        judge(100 * MIB, 1000 * MIB, MIB).unwrap_err();
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
