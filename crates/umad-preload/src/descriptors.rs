//! Which descriptors of the program are files of the emulated device.
//!
//! Every interposed `read`, `write` and `close` of the program asks this table, those of this library included. It therefore
//! has no lock.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::port::FileId;

/// Descriptors from this number on cannot be files of the device. The usual limit of open files is far below.
const DESCRIPTORS_MAX: usize = 65_536;

/// The file of each descriptor; 0 if it is not one of the device.
static FILES: [AtomicU32; DESCRIPTORS_MAX] = [const { AtomicU32::new(0) }; DESCRIPTORS_MAX];

/// Records that a descriptor is a file of the device; `false` if its number is too high.
pub(crate) fn insert(fd: RawFd, file: FileId) -> bool {
    match entry(fd) {
        Some(entry) => {
            entry.store(file.0, Ordering::Release);
            true
        }
        None => false,
    }
}

/// The file of a descriptor; `None` if it is not one of the device.
pub(crate) fn get(fd: RawFd) -> Option<FileId> {
    entry(fd).map(|entry| entry.load(Ordering::Acquire)).filter(|file| *file != 0).map(FileId)
}

/// Removes a descriptor that is being closed, and returns its file.
pub(crate) fn remove(fd: RawFd) -> Option<FileId> {
    // Most calls are for other descriptors: no write without need.
    get(fd)?;
    entry(fd).map(|entry| entry.swap(0, Ordering::AcqRel)).filter(|file| *file != 0).map(FileId)
}

fn entry(fd: RawFd) -> Option<&'static AtomicU32> {
    usize::try_from(fd).ok().and_then(|index| FILES.get(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_has_a_file_until_it_is_removed() {
        // No descriptor of the test process has this number.
        assert!(insert(60_000, FileId(7)));
        assert_eq!(get(60_000), Some(FileId(7)));
        assert_eq!(remove(60_000), Some(FileId(7)));
        assert_eq!((get(60_000), remove(60_000)), (None, None));
    }

    #[test]
    fn numbers_out_of_range_have_no_file() {
        assert!(!insert(DESCRIPTORS_MAX as RawFd, FileId(1)));
        assert_eq!((get(-1), get(RawFd::MAX)), (None, None));
    }
}
