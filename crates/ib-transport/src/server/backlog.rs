//! Bounded queues of messages and bytes to send to a client. They reuse their memory.

use crate::sys::RawDataMessage;

/// Most data messages queued for one client. The socket buffer holds about 200 more; a client with more than that does not read.
pub(super) const MESSAGES_MAX: usize = 1024;

/// Most bytes queued for one stream: about as many datagrams as for an ibsim client.
pub(super) const BYTES_MAX: usize = MESSAGES_MAX * 288;

/// A queue of data messages in contiguous memory.
#[derive(Debug, Default)]
pub(super) struct MessageQueue {
    frames: Vec<RawDataMessage>,
    sent: usize,
}

impl MessageQueue {
    /// Appends a message of zeros, to be overwritten by the caller; `None` if the queue is full.
    #[inline]
    pub(super) fn push(&mut self) -> Option<&mut RawDataMessage> {
        if self.frames.len() - self.sent >= MESSAGES_MAX {
            return None;
        }
        if self.sent >= MESSAGES_MAX {
            self.frames.drain(..self.sent);
            self.sent = 0;
        }
        self.frames.push([0; size_of::<RawDataMessage>()]);
        self.frames.last_mut()
    }

    /// The messages that were not sent yet.
    pub(super) fn unsent(&self) -> &[RawDataMessage] {
        &self.frames[self.sent..]
    }

    /// Reports that the first `count` of [`unsent`](Self::unsent) were sent.
    pub(super) fn advance(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.frames.len() {
            self.frames.clear();
            self.sent = 0;
        }
    }
}

/// A queue of encoded frames, as bytes.
#[derive(Debug, Default)]
pub(crate) struct ByteQueue {
    bytes: Vec<u8>,
    sent: usize,
}

impl ByteQueue {
    /// Calls `write` to append to the queue; returns `false` without calling it if the queue is full.
    pub(crate) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        if self.bytes.len() - self.sent >= BYTES_MAX {
            return false;
        }
        if self.sent >= BYTES_MAX {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        write(&mut self.bytes);
        true
    }

    /// The bytes that were not sent yet.
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Reports that the first `count` of [`unsent`](Self::unsent) were sent.
    pub(crate) fn advance(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_bounded_and_stay_in_order() {
        let mut queue = MessageQueue::default();
        for round in 0..5 * MESSAGES_MAX {
            queue.push().unwrap()[0] = round as u8;
            queue.push().unwrap()[0] = round as u8;
            let sent = queue.unsent()[0][0];
            queue.advance(1);
            assert_eq!(sent, (round / 2) as u8);
            if queue.unsent().len() == MESSAGES_MAX - 1 {
                break;
            }
        }
        assert!(queue.push().is_some());
        assert!(queue.push().is_none());
        assert!(queue.frames.len() <= 2 * MESSAGES_MAX);
        queue.advance(queue.unsent().len());
        assert!(queue.unsent().is_empty() && queue.frames.is_empty());
    }

    #[test]
    fn bytes_are_bounded() {
        let mut queue = ByteQueue::default();
        while queue.push(|bytes| bytes.extend([7; 500])) {}
        assert!(queue.unsent().len() < BYTES_MAX + 500);
        queue.advance(queue.unsent().len());
        assert!(queue.push(|bytes| bytes.push(1)));
        assert_eq!(queue.unsent(), [1]);
    }
}
