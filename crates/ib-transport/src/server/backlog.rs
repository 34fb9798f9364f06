//! What waits to be sent to a client: bounded, and kept without allocating once it has grown.

use crate::sys::RawDataMessage;

/// Data messages that may wait for one client. A socket's own buffer holds some 200 more; a client that lets more than
/// that pile up does not read.
pub(super) const MESSAGES_MAX: usize = 1024;

/// ByteQueue that may wait for one stream: as many datagrams, roughly, as for the other kind of client.
pub(super) const BYTES_MAX: usize = MESSAGES_MAX * 288;

/// A queue of data messages that lie next to each other in memory.
#[derive(Debug, Default)]
pub(super) struct MessageQueue {
    frames: Vec<RawDataMessage>,
    sent: usize,
}

impl MessageQueue {
    /// The place of one message more, to be written by the caller; `None` if the queue is full.
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

    /// What was not sent yet.
    pub(super) fn unsent(&self) -> &[RawDataMessage] {
        &self.frames[self.sent..]
    }

    /// Notes that the first `count` of [`unsent`](Self::unsent) went.
    pub(super) fn advance(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.frames.len() {
            self.frames.clear();
            self.sent = 0;
        }
    }
}

/// A queue of bytes.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    bytes: Vec<u8>,
    sent: usize,
}

impl ByteQueue {
    /// Lets `write` append to the queue; false, and nothing is written, if the queue is full.
    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> bool {
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

    /// What was not sent yet.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Notes that the first `count` of [`unsent`](Self::unsent) went.
    pub(super) fn advance(&mut self, count: usize) {
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
    fn frames_are_bounded_and_leave_in_order() {
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
