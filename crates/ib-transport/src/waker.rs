//! Interrupts a wait from another thread.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::sys;

/// Interrupts the wait of a server or of [`Device::wait`](crate::Device::wait), from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<File>);

impl Waker {
    /// A waker that nobody waits for yet.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(File::from(sys::event_counter()?))))
    }

    /// Ends the wait that is going on, or the next one.
    pub fn wake(&self) {
        // The one failure there is, a counter at its limit, means that the wait is about to end anyway.
        let _ = (&*self.0).write(&1_u64.to_ne_bytes());
    }

    /// Takes back all wake-ups so far: one serves all who wanted it.
    pub(crate) fn clear(&self) {
        let _ = (&*self.0).read(&mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
