//! The functions of the C library that this library replaces.
//!
//! Each asks whether its path or descriptor is an emulated one, and otherwise calls the function of the C library with the same
//! arguments. None of them lets a panic pass. A thread can be cancelled in a function of the C library, which unwinds through the
//! replaced one (`C-unwind`), but not in the emulation. `open` and `ioctl` are variadic in C: on the supported platforms a variadic
//! argument is passed like a fixed one, so they are defined with their third argument fixed, which is not used without need.
#![allow(unsafe_code)]
#![cfg_attr(test, allow(dead_code, reason = "the test program keeps the functions of the C library"))]

mod directories;
mod files;
mod status;

use std::ffi::{CStr, c_char, c_int};
use std::panic::{self, AssertUnwindSafe};

use crate::errno::Errno;
use crate::session::{self, Session};
use crate::sys;
use crate::sysfs::{self, Entry};

/// Runs the emulation of a function: returns its value and leaves `errno` as it was, or sets `errno` and returns `failed`.
fn emulate<T>(failed: T, body: impl FnOnce() -> Result<T, Errno>) -> T {
    let errno = sys::errno();
    let result = sys::without_cancellation(|| panic::catch_unwind(AssertUnwindSafe(body)));
    let (result, errno) = match result {
        Ok(Ok(value)) => (value, errno),
        Ok(Err(Errno(number))) => (failed, number),
        Err(_) => (failed, libc::EIO),
    };
    sys::set_errno(errno);
    result
}

/// The path, if it may be an emulated one.
///
/// # Safety
///
/// `path` is null or a C string that stays valid and unchanged for `'a`.
unsafe fn emulated_path<'a>(path: *const c_char) -> Option<&'a str> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller vouches for it.
    let path = unsafe { CStr::from_ptr(path) };
    // Quickly, because most paths are others.
    let bytes = path.to_bytes();
    let may_be = bytes.starts_with(b"/sys/") || bytes.starts_with(b"/dev/");
    let text = may_be.then(|| path.to_str().ok()).flatten()?;
    sysfs::components(text).map(|_| text)
}

/// What an emulated path is.
fn resolve(path: &str) -> Result<(Entry, &'static Session), Errno> {
    let session = Session::current().ok_or(Errno::NO_DEVICE)?;
    let parts = sysfs::components(path).ok_or(Errno::NO_ENTRY)?;
    Ok((session.resolve(&parts)?, session))
}

/// Called when the process exits, after the exit handlers of the program.
extern "C" fn at_exit() {
    emulate((), || {
        session::end();
        Ok(())
    });
}

/// The table of functions that the dynamic linker calls at exit.
#[used]
#[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
static AT_EXIT: extern "C" fn() = at_exit;

/// -1, the failure of most functions.
const FAILED: c_int = -1;
