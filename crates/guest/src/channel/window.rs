//! Flow control of one direction of a session.

/// Bytes that may be on their way in each direction of a session: what a pipe holds.
pub const WINDOW_BYTES: u32 = 64 * 1024;

/// Credit that has gathered before it is worth a message.
const GRANT_BYTES_MIN: u32 = WINDOW_BYTES / 4;

/// One direction of a session, seen from either end: the sender counts what it may still send, the receiver what it
/// may still get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    available: u32,
    consumed: u32,
}

/// The other side has sent or granted more than it may: an error in it, or malice. The session is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes where the window has room for {available}")]
pub struct WindowOverrun {
    /// Sent or granted.
    pub bytes: u64,
    /// SessionRequest there was room for.
    pub available: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}

impl Window {
    /// That of a session that begins: open.
    pub const fn new() -> Self {
        Self { available: WINDOW_BYTES, consumed: 0 }
    }

    /// Sender: how many bytes may go.
    pub const fn available(&self) -> usize {
        self.available as usize
    }

    /// Sender: `bytes` go; receiver: they have come. An error if the window has no room for them.
    pub fn debit(&mut self, bytes: usize) -> Result<(), WindowOverrun> {
        match u32::try_from(bytes).ok().and_then(|bytes| self.available.checked_sub(bytes)) {
            Some(available) => self.available = available,
            None => return Err(WindowOverrun { bytes: bytes as u64, available: self.available }),
        }
        Ok(())
    }

    /// Sender: the other side has granted `bytes`. An error if that is more than it got.
    pub fn grant(&mut self, bytes: u32) -> Result<(), WindowOverrun> {
        let available = WINDOW_BYTES - self.available;
        if bytes > available {
            return Err(WindowOverrun { bytes: bytes.into(), available });
        }
        self.available += bytes;
        Ok(())
    }

    /// Receiver: `bytes` that have come were handed on. Says how much credit to send, once it is worth it.
    #[must_use = "credit that is not sent stops the other side for good"]
    pub fn consume(&mut self, bytes: usize) -> Option<u32> {
        let outstanding = WINDOW_BYTES - self.available - self.consumed;
        // Nobody can hand on more than has come; saturating keeps a caller's mistake from granting what is not there.
        self.consumed += u32::try_from(bytes).unwrap_or(u32::MAX).min(outstanding);
        (self.consumed >= GRANT_BYTES_MIN).then(|| {
            self.available += self.consumed;
            std::mem::take(&mut self.consumed)
        })
    }
}
