//! Opening, reading, writing and closing.

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::os::fd::IntoRawFd;
use std::slice;

use libc::{mode_t, size_t, ssize_t};

use super::{FAILED, emulate, emulated_path, resolve};
use crate::abi::{ARGUMENT_MAX, Control};
use crate::descriptors;
use crate::errno::Errno;
use crate::port::FileId;
use crate::real::call_real;
use crate::session::Session;
use crate::sys;

/// Opens an emulated path.
fn open_emulated(path: &str, flags: c_int) -> c_int {
    emulate(FAILED, || {
        let (entry, session) = resolve(path)?;
        let opened = session.open(&entry, flags)?;
        let fd = opened.fd.into_raw_fd();
        if let Some(file) = opened.file
            && !descriptors::insert(fd, file)
        {
            session.close(file);
            call_real!(close(fd => c_int) -> c_int, else FAILED);
            return Err(Errno::TOO_MANY_FILES);
        }
        Ok(fd)
    })
}

/// Defines variants of `open` that have the same signature.
macro_rules! define_open {
    ($($name:ident)*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the program passes a C string, or what the C library rejects.
            match unsafe { emulated_path(path) } {
                Some(path) => open_emulated(path, flags),
                None => call_real!(
                    $name(path => *const c_char, flags => c_int, mode => mode_t) -> c_int, else FAILED
                ),
            }
        }
    )* };
}
define_open!(open open64);

/// Defines the variants of `open` without mode, which checked programs call.
macro_rules! define_open_2 {
    ($($name:ident)*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the program passes a C string, or what the C library rejects.
            match unsafe { emulated_path(path) } {
                Some(path) => open_emulated(path, flags),
                None => call_real!($name(path => *const c_char, flags => c_int) -> c_int, else FAILED),
            }
        }
    )* };
}
define_open_2!(__open_2 __open64_2);

/// Defines variants of `openat`. Emulated paths are absolute, so the directory does not matter to them.
macro_rules! define_openat {
    ($($name:ident)*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the program passes a C string, or what the C library rejects.
            match unsafe { emulated_path(path) } {
                Some(path) => open_emulated(path, flags),
                None => call_real!(
                    $name(folder => c_int, path => *const c_char, flags => c_int, mode => mode_t) -> c_int,
                    else FAILED
                ),
            }
        }
    )* };
}
define_openat!(openat openat64);

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    forget(fd);
    call_real!(close(fd => c_int) -> c_int, else FAILED)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    if old != new {
        forget(new);
    }
    call_real!(dup2(old => c_int, new => c_int) -> c_int, else FAILED)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if old != new {
        forget(new);
    }
    call_real!(dup3(old => c_int, new => c_int, flags => c_int) -> c_int, else FAILED)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
    let Some(file) = descriptors::get(fd) else {
        return call_real!(read(fd => c_int, buffer => *mut c_void, count => size_t) -> ssize_t, else -1);
    };
    loop {
        // SAFETY: the program says that it may be written.
        let length = unsafe { read_emulated(file, buffer, count) };
        if length >= 0 || sys::errno() != libc::EAGAIN || sys::is_nonblocking(fd) {
            return length;
        }
        let mut entry = sys::poll_entry(fd, libc::POLLIN);
        let count: libc::nfds_t = 1;
        if call_real!(poll(&raw mut entry => *mut libc::pollfd, count => libc::nfds_t, -1 => c_int) -> c_int, else -1)
            < 0
        {
            return -1;
        }
    }
}

/// Reads from a file of the device without waiting.
///
/// # Safety
///
/// `buffer` is null or may be written for `count` bytes.
unsafe fn read_emulated(file: FileId, buffer: *mut c_void, count: size_t) -> ssize_t {
    emulate(-1, || {
        if buffer.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: the caller vouches for it; a slice has at most isize::MAX bytes.
        let buffer = unsafe { slice::from_raw_parts_mut(buffer.cast(), count.min(isize::MAX as usize)) };
        session()?.read(file, buffer).map(|length| length as ssize_t)
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
    let Some(file) = descriptors::get(fd) else {
        return call_real!(write(fd => c_int, buffer => *const c_void, count => size_t) -> ssize_t, else -1);
    };
    emulate(-1, || {
        if buffer.is_null() || count > isize::MAX as usize {
            return Err(Errno::FAULT);
        }
        // SAFETY: the program says that it may be read; the length was checked.
        let message = unsafe { slice::from_raw_parts(buffer.cast(), count) };
        session()?.write(file, message).map(|()| count as ssize_t)
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    match descriptors::get(fd) {
        // SAFETY: the argument is the one of the program for this request.
        Some(file) => emulate(FAILED, || unsafe { control(file, request, argument) }),
        None => {
            call_real!(ioctl(fd => c_int, request => c_ulong, argument => *mut c_void) -> c_int, else FAILED)
        }
    }
}

/// An ioctl of the device.
///
/// # Safety
///
/// `argument` is valid for what `request` reads and writes.
unsafe fn control(file: FileId, request: c_ulong, argument: *mut c_void) -> Result<c_int, Errno> {
    let control = Control::from_request(request).ok_or(Errno::NOT_SUPPORTED)?;
    let length = control.argument_len();
    if length > 0 && argument.is_null() {
        return Err(Errno::FAULT);
    }
    let mut copy = [0_u8; ARGUMENT_MAX];
    let copy = &mut copy[..length];
    if length > 0 {
        // SAFETY: the caller vouches for the `length` bytes that belong to the request.
        unsafe { std::ptr::copy_nonoverlapping(argument.cast(), copy.as_mut_ptr(), length) };
    }
    let result = session()?.control(file, control, copy);
    if length > 0 && control != Control::UnregisterAgent {
        // SAFETY: as above; the request writes its argument, too.
        unsafe { std::ptr::copy_nonoverlapping(copy.as_ptr(), argument.cast(), length) };
    }
    result.map(|()| 0)
}

/// Closes the file of a descriptor that the program is about to close.
fn forget(fd: c_int) {
    if let Some(file) = descriptors::remove(fd) {
        emulate((), || {
            session()?.close(file);
            Ok(())
        });
    }
}

fn session() -> Result<&'static Session, Errno> {
    Session::current().ok_or(Errno::IO)
}
