//! Asking about paths: the families of `stat` and `access`.

use std::ffi::{c_char, c_int, c_uint};
use std::mem;

use super::{FAILED, emulate, emulated_path, resolve};
use crate::errno::Errno;
use crate::real::call_real;
use crate::sysfs::Entry;

/// Size that sysfs shows for its files, in bytes.
const SIZE: i64 = 4096;

/// Type and permissions of an emulated path.
fn mode(path: &str) -> Result<libc::mode_t, Errno> {
    Ok(match resolve(path)?.0 {
        Entry::Directory(_) => libc::S_IFDIR | 0o755,
        Entry::UmadDevice | Entry::IsSmDevice => libc::S_IFCHR | 0o600,
        Entry::Fixed(_) | Entry::Port(_) | Entry::Pkey(_) => libc::S_IFREG | 0o444,
    })
}

/// Fills in the status of an emulated path.
///
/// # Safety
///
/// `status` is null or may be written.
unsafe fn emulate_stat(path: &str, status: *mut libc::stat) -> c_int {
    emulate(FAILED, || {
        let mode = mode(path)?;
        if status.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: plain integers, for which zero is valid.
        let mut filled: libc::stat = unsafe { mem::zeroed() };
        filled.st_mode = mode;
        filled.st_nlink = 1;
        filled.st_size = SIZE;
        filled.st_blksize = SIZE;
        // SAFETY: not null, and the caller vouches for it.
        unsafe { status.write(filled) };
        Ok(0)
    })
}

/// Defines variants of `stat`, whose structures have the same layout on 64-bit platforms.
macro_rules! define_stat {
    ($($name:ident)*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name(path: *const c_char, status: *mut libc::stat) -> c_int {
            // SAFETY: the program passes a C string, or what the C library rejects.
            match unsafe { emulated_path(path) } {
                // SAFETY: the program passes a place for the status.
                Some(path) => unsafe { emulate_stat(path, status) },
                None => call_real!(
                    $name(path => *const c_char, status => *mut libc::stat) -> c_int, else FAILED
                ),
            }
        }
    )* };
}
define_stat!(stat lstat stat64 lstat64);

/// Defines variants of `fstatat`.
macro_rules! define_fstatat {
    ($($name:ident)*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name(
            folder: c_int,
            path: *const c_char,
            status: *mut libc::stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: the program passes a C string, or what the C library rejects.
            match unsafe { emulated_path(path) } {
                // SAFETY: the program passes a place for the status.
                Some(path) => unsafe { emulate_stat(path, status) },
                None => call_real!(
                    $name(
                        folder => c_int,
                        path => *const c_char,
                        status => *mut libc::stat,
                        flags => c_int
                    ) -> c_int,
                    else FAILED
                ),
            }
        }
    )* };
}
define_fstatat!(fstatat fstatat64);

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    status: *mut libc::statx,
) -> c_int {
    // SAFETY: the program passes a C string, or what the C library rejects.
    let Some(path) = (unsafe { emulated_path(path) }) else {
        return call_real!(
            statx(
                folder => c_int,
                path => *const c_char,
                flags => c_int,
                mask => c_uint,
                status => *mut libc::statx
            ) -> c_int,
            else FAILED
        );
    };
    emulate(FAILED, || {
        let mode = mode(path)?;
        if status.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: plain integers, for which zero is valid.
        let mut filled: libc::statx = unsafe { mem::zeroed() };
        filled.stx_mask = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_NLINK | libc::STATX_SIZE;
        filled.stx_mode = mode as u16;
        filled.stx_nlink = 1;
        filled.stx_size = SIZE as u64;
        filled.stx_blksize = SIZE as u32;
        // SAFETY: not null, and the program says that it may be written.
        unsafe { status.write(filled) };
        Ok(0)
    })
}

/// Whether the program may use an emulated path in this way. The emulated device belongs to its user.
fn emulate_access(path: &str, wanted: c_int) -> c_int {
    emulate(FAILED, || {
        let mode = mode(path)?;
        let is_file = mode & libc::S_IFMT == libc::S_IFREG;
        let is_device = mode & libc::S_IFMT == libc::S_IFCHR;
        let may_write = is_device || wanted & libc::W_OK == 0;
        let may_execute = !is_file && !is_device || wanted & libc::X_OK == 0;
        if may_write && may_execute { Ok(0) } else { Err(Errno::NOT_PERMITTED) }
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn access(path: *const c_char, wanted: c_int) -> c_int {
    // SAFETY: the program passes a C string, or what the C library rejects.
    match unsafe { emulated_path(path) } {
        Some(path) => emulate_access(path, wanted),
        None => call_real!(access(path => *const c_char, wanted => c_int) -> c_int, else FAILED),
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn faccessat(
    folder: c_int,
    path: *const c_char,
    wanted: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the program passes a C string, or what the C library rejects.
    match unsafe { emulated_path(path) } {
        Some(path) => emulate_access(path, wanted),
        None => call_real!(
            faccessat(folder => c_int, path => *const c_char, wanted => c_int, flags => c_int) -> c_int,
            else FAILED
        ),
    }
}
