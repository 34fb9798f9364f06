//! System calls that std does not offer.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::thread;
use std::time::Duration;

/// Stack of the thread that serves the link, in bytes. It keeps messages on the heap.
const STACK_LEN: usize = 512 * 1024;

/// The error number of the calling thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: the location belongs to the calling thread and is always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets the error number of the calling thread.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the location belongs to the calling thread and is always valid.
    unsafe { *libc::__errno_location() = number };
}

unsafe extern "C" {
    /// Of `pthread.h`; the crate libc does not declare it.
    fn pthread_setcancelstate(state: c_int, former: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc.
const CANCEL_DISABLE: c_int = 1;

/// Runs `body`, which does not unwind, while the calling thread cannot be cancelled: cancellation would unwind through frames
/// that have something to drop.
pub(crate) fn without_cancellation<T>(body: impl FnOnce() -> T) -> T {
    let mut former = 0;
    // SAFETY: a valid place for the former state.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut former) };
    let result = body();
    // SAFETY: the state that the thread had; the result is not requested, which glibc allows.
    unsafe { pthread_setcancelstate(former, ptr::null_mut()) };
    result
}

/// Makes a socket non-blocking.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no pointers.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

/// Whether reads of a descriptor of the program are not to block; also if it is not open.
pub(crate) fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: no pointers; asking about a number that is not open only fails.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags < 0 || flags & libc::O_NONBLOCK != 0
}

/// A counter that is readable while it is not 0.
#[derive(Debug)]
pub(crate) struct EventCounter(File);

impl EventCounter {
    /// A counter that only this library uses.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(event_fd(libc::O_NONBLOCK | libc::O_CLOEXEC)?.into()))
    }

    /// A counter, and a descriptor of it for the program with these flags of `open`: `O_NONBLOCK` and `O_CLOEXEC` count.
    pub(crate) fn shared(open_flags: c_int) -> io::Result<(Self, OwnedFd)> {
        let program = event_fd(open_flags & (libc::O_NONBLOCK | libc::O_CLOEXEC))?;
        Ok((Self(program.try_clone()?.into()), program))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes it readable.
    pub(crate) fn signal(&self) {
        // Fails only if the counter is at its maximum, and then it is readable.
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    /// Sets it to 0, if it is readable.
    pub(crate) fn clear(&self) {
        let mut entries = [poll_entry(self.fd(), libc::POLLIN)];
        if wait(&mut entries, Some(Duration::ZERO)).is_ok_and(|count| count > 0) {
            // Fails only if the counter is 0.
            let _ = (&self.0).read(&mut [0; 8]);
        }
    }
}

/// An unnamed file with these contents, at its beginning. It vanishes with its last descriptor.
pub(crate) fn memory_file(contents: &str, open_flags: c_int) -> io::Result<OwnedFd> {
    let flags: c_uint = if open_flags & libc::O_CLOEXEC != 0 { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: the name is a C string; the result is checked and, if valid, owned by no one else.
    let fd = unsafe { owned(libc::memfd_create(c"heddle-umad".as_ptr(), flags))? };
    let mut file = File::from(fd);
    file.write_all(contents.as_bytes())?;
    file.rewind()?;
    Ok(file.into())
}

/// An entry for [`wait`].
pub(crate) fn poll_entry(fd: RawFd, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

/// Waits until an entry is ready and returns the number of ready entries; 0 after the timeout. `None` waits for ever.
pub(crate) fn wait(entries: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let milliseconds =
        timeout.map_or(-1, |it| c_int::try_from(it.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX));
    // SAFETY: the slice is valid for its length and outlives the call.
    let count = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, milliseconds) };
    check(count).map(|count| count as usize)
}

/// Starts a thread that receives no signals: they are for the threads of the program.
pub(crate) fn spawn_without_signals(body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: signal sets are plain bits, for which zero is valid.
    let mut all: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: as above.
    let mut former: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: a valid set, which outlives the call.
    unsafe { libc::sigfillset(&mut all) };
    // SAFETY: two valid sets, which outlive the call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut former) };
    let thread = thread::Builder::new().name("heddle-umad".to_owned()).stack_size(STACK_LEN).spawn(body);
    // SAFETY: a valid set; the result for the former one is not requested.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &former, ptr::null_mut()) };
    thread.map(drop)
}

/// Calls `handler` in every child process that is forked from now on.
pub(crate) fn on_fork(handler: extern "C" fn()) {
    // SAFETY: the handler is a function of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(handler)) };
}

fn event_fd(flags: c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the result is checked and, if valid, owned by no one else.
    unsafe { owned(libc::eventfd(0, flags)) }
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Takes ownership of a fresh descriptor.
///
/// # Safety
///
/// `result` is the result of a call that creates a descriptor, which no one else owns.
unsafe fn owned(result: c_int) -> io::Result<OwnedFd> {
    // SAFETY: checked to be a descriptor; the caller says no one else owns it.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}
