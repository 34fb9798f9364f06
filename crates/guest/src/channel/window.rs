//! Credit-based flow control of one direction of a session.

/// Bytes in flight per direction of a session: the capacity of a Linux pipe.
pub const WINDOW_BYTES: u32 = 64 * 1024;

/// Credit is returned in messages of at least this many bytes.
const GRANT_BYTES_MIN: u32 = WINDOW_BYTES / 4;

/// The window of one direction, kept by both ends: the sender's counts the bytes it may still send, the receiver's those it
/// may still receive.
///
/// The sender calls [`Window::debit`] for bytes sent and [`Window::grant`] for credit received. The receiver calls
/// [`Window::debit`] for bytes received and [`Window::consume`] for bytes passed on, and sends the credit that returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    available: u32,
    consumed: u32,
}

/// The peer has sent or granted more bytes than the window allows. The session must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("window overrun: {bytes} bytes sent or granted, but the window has room for {available}")]
pub struct WindowOverrun {
    pub bytes: u64,
    /// Bytes that would have been allowed.
    pub available: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}

impl Window {
    /// A window of [`WINDOW_BYTES`], as at the start of a session.
    pub const fn new() -> Self {
        Self { available: WINDOW_BYTES, consumed: 0 }
    }

    /// Sender: bytes that may be sent now.
    pub const fn available(&self) -> usize {
        self.available as usize
    }

    /// Sender: `bytes` are sent. Receiver: `bytes` were received. Fails, without effect, if the window is smaller.
    pub fn debit(&mut self, bytes: usize) -> Result<(), WindowOverrun> {
        match u32::try_from(bytes).ok().and_then(|bytes| self.available.checked_sub(bytes)) {
            Some(available) => self.available = available,
            None => return Err(WindowOverrun { bytes: bytes as u64, available: self.available }),
        }
        Ok(())
    }

    /// Sender: the receiver has granted `bytes`. Fails, without effect, if more is granted than is outstanding.
    pub fn grant(&mut self, bytes: u32) -> Result<(), WindowOverrun> {
        let available = WINDOW_BYTES - self.available;
        if bytes > available {
            return Err(WindowOverrun { bytes: bytes.into(), available });
        }
        self.available += bytes;
        Ok(())
    }

    /// Receiver: `bytes` were passed on. Returns the credit to send now, if enough has accumulated.
    #[must_use = "credit that is not sent blocks the sender for ever"]
    pub fn consume(&mut self, bytes: usize) -> Option<u32> {
        let outstanding = WINDOW_BYTES - self.available - self.consumed;
        // Capped at the outstanding bytes, so that a caller's mistake cannot grant too much.
        self.consumed += u32::try_from(bytes).unwrap_or(u32::MAX).min(outstanding);
        (self.consumed >= GRANT_BYTES_MIN).then(|| {
            self.available += self.consumed;
            std::mem::take(&mut self.consumed)
        })
    }
}
