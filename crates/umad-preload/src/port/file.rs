//! One open file of the device: its agents, and the messages that the program has not read yet.

use std::collections::VecDeque;

use super::agents::AgentId;
use crate::abi::{HeaderLayout, UmadHeader};
use crate::errno::Errno;

/// Agents per file, as in the kernel.
pub(super) const AGENTS_MAX: usize = 32;

/// Most bytes that wait to be read, 64 MiB: more than a program that reads at all leaves, and a bound for one that does not.
/// What arrives beyond it is dropped, as by a full receive queue.
const UNREAD_BYTES_MAX: usize = 64 << 20;

/// Length of a datagram: the longest message that has one segment.
const SEGMENT_LEN: usize = ib_wire::MAD_LEN;

/// A message that waits to be read.
#[derive(Debug)]
pub(super) struct UnreadMessage {
    pub(super) header: UmadHeader,
    pub(super) data: Vec<u8>,
}

/// An open file.
#[derive(Debug, Default)]
pub(super) struct UmadFile {
    pub(super) layout: HeaderLayout,
    /// An agent was registered, so the layout can no longer change.
    pub(super) is_used: bool,
    pub(super) agents: [Option<AgentId>; AGENTS_MAX],
    unread: VecDeque<UnreadMessage>,
    unread_bytes: usize,
}

impl UmadFile {
    pub(super) fn is_readable(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Appends a message for the program; drops it if too much is unread.
    pub(super) fn push(&mut self, message: UnreadMessage) {
        let bytes = self.layout.len() + message.data.len();
        if self.unread_bytes + bytes <= UNREAD_BYTES_MAX {
            self.unread_bytes += bytes;
            self.unread.push_back(message);
        }
    }

    /// Copies the next message to `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// The message stays the next one. EAGAIN: there is none. EINVAL: the buffer is too short for the header, or for a message
    /// of one segment. ENOSPC: it is too short for a message of several segments; header and first segment were copied, and
    /// the header tells the length of all of it.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let head = self.layout.len();
        if buffer.len() < head {
            return Err(Errno::INVALID);
        }
        let Some(message) = self.unread.front() else { return Err(Errno::AGAIN) };
        let length = message.data.len();
        let first = length.min(SEGMENT_LEN);
        if buffer.len() < head + first {
            return Err(Errno::INVALID);
        }
        buffer[..head].copy_from_slice(&message.header.encode(self.layout, length));
        let copied = if buffer.len() < head + length { first } else { length };
        buffer[head..head + copied].copy_from_slice(&message.data[..copied]);
        if copied < length {
            return Err(Errno::NO_SPACE);
        }
        self.unread_bytes -= head + length;
        self.unread.pop_front();
        Ok(head + length)
    }

    /// Drops the unread messages of an agent.
    pub(super) fn forget_agent(&mut self, slot: u32) {
        self.unread.retain(|message| message.header.agent != slot);
        let head = self.layout.len();
        self.unread_bytes = self.unread.iter().map(|message| head + message.data.len()).sum();
    }
}
