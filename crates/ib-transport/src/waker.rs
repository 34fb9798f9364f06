//! Wake-ups from other threads.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::sys;

/// Interrupts the wait of a [`Server`](crate::Server) or of [`Device::wait`](crate::Device::wait) from any thread. Clones wake
/// the same wait.
#[derive(Clone, Debug)]
pub struct Waker(Arc<File>);

impl Waker {
    /// A waker to pass to [`Device::wait`](crate::Device::wait); that of a server is [`Server::waker`](crate::Server::waker).
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(File::from(sys::event_counter()?))))
    }

    /// Ends the current wait, or the next one if there is none. Wake-ups do not add up.
    pub fn wake(&self) {
        // It fails only if the counter is at its limit: then the wait ends anyway.
        let _ = (&*self.0).write(&1_u64.to_ne_bytes());
    }

    /// Resets all wake-ups so far.
    pub(crate) fn clear(&self) {
        let _ = (&*self.0).read(&mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
