//! Error numbers of the C library.

use std::ffi::c_int;
use std::io;

/// An error number, never 0, that an interposed function stores in `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const AGAIN: Self = Self(libc::EAGAIN);
    pub(crate) const BAD_DESCRIPTOR: Self = Self(libc::EBADF);
    pub(crate) const FAULT: Self = Self(libc::EFAULT);
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const IO: Self = Self(libc::EIO);
    pub(crate) const IS_DIRECTORY: Self = Self(libc::EISDIR);
    pub(crate) const NO_DEVICE: Self = Self(libc::ENODEV);
    pub(crate) const NO_ENTRY: Self = Self(libc::ENOENT);
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
    pub(crate) const NO_SPACE: Self = Self(libc::ENOSPC);
    pub(crate) const NOT_A_DIRECTORY: Self = Self(libc::ENOTDIR);
    pub(crate) const NOT_PERMITTED: Self = Self(libc::EACCES);
    pub(crate) const NOT_SUPPORTED: Self = Self(libc::ENOTTY);
    pub(crate) const TOO_MANY_FILES: Self = Self(libc::EMFILE);
}

/// The number of a system error, else EIO.
impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        error.raw_os_error().map_or(Self::IO, Self)
    }
}
