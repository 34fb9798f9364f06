//! The receiving end of a transfer.

use super::{
    CLASS_HEADER_LEN, RmppFlags, RmppHeader, RmppKind, RmppStatus, SEGMENT_DATA_LEN, TransferError, VERSION,
    control, stop_or_abort,
};
use crate::mad::Mad;

/// Longest message in bytes, 8 MiB. The largest table, a NodeRecord (112 bytes) for each of 49,151 LIDs, has 5.5 MB; a
/// sender of more is broken or hostile.
pub const RECEIVE_MAX: usize = 8 << 20;

/// Segments that the sender may send ahead of the acknowledged ones. 64 datagrams are 16 KiB, less than any socket buffers.
pub const WINDOW_SEGMENTS: u32 = 64;

/// A message that was received completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RmppMessage {
    /// The first datagram; its common and class headers are those of the message.
    pub header: Mad,
    /// The data of all segments; for a response without RMPP the whole data area of its datagram.
    pub data: Vec<u8>,
}

/// The receiving end of one transfer. Keep it after the message is complete: it acknowledges segments that are sent again.
#[derive(Debug, Default)]
pub struct Receiver {
    /// The first datagram received.
    header: Option<Mad>,
    data: Vec<u8>,
    /// The last segment received in order; 0 if none was.
    received: u32,
    window_last: u32,
    state: State,
    reply: Option<Mad>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Receiving,
    Done,
    Failed,
}

impl Receiver {
    /// A receiver that accepts the first datagram of any response.
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles a datagram of the sender and returns the message when it is complete. Datagrams of other transactions,
    /// classes or methods, and those that arrive after a failure, are ignored. Call [`Self::poll_transmit`] afterwards.
    ///
    /// # Errors
    ///
    /// The transfer failed and its data was dropped; all later datagrams are ignored.
    pub fn handle(&mut self, mad: &Mad) -> Result<Option<RmppMessage>, TransferError> {
        let ours = self.header.as_ref().is_none_or(|first| {
            (first.transaction(), first.class(), first.method())
                == (mad.transaction(), mad.class(), mad.method())
        });
        if !ours || self.state == State::Failed {
            return Ok(None);
        }
        let header = mad.rmpp();
        if !header.flags.has(RmppFlags::ACTIVE) {
            return Ok(self.single(mad));
        }
        if header.version != VERSION {
            return Err(self.fail(mad, RmppStatus::BadVersion));
        }
        match header.kind {
            RmppKind::Data => self.segment(mad, &header),
            RmppKind::Ack => Ok(None),
            RmppKind::Stop | RmppKind::Abort if self.state == State::Receiving => {
                self.state = State::Failed;
                self.data = Vec::new();
                Err(TransferError::Ended(header.status))
            }
            RmppKind::Stop | RmppKind::Abort => Ok(None),
            RmppKind::None | RmppKind::Unknown(_) => Err(self.fail(mad, RmppStatus::BadKind)),
        }
    }

    /// The datagram to send to the sender, if there is one: ACK, STOP or ABORT.
    pub fn poll_transmit(&mut self) -> Option<Mad> {
        self.reply.take()
    }

    /// The datagram that ends a transfer which began with `mad`, for a receiver that does not accept it.
    pub fn refusal(mad: &Mad, status: RmppStatus) -> Mad {
        stop_or_abort(mad, status)
    }

    /// Handles a response in one datagram, without RMPP.
    fn single(&mut self, mad: &Mad) -> Option<RmppMessage> {
        if self.state == State::Done || self.received > 0 {
            return None;
        }
        self.header = Some(mad.clone());
        self.state = State::Done;
        Some(RmppMessage { header: mad.clone(), data: mad.sa_data().to_vec() })
    }

    fn segment(&mut self, mad: &Mad, header: &RmppHeader) -> Result<Option<RmppMessage>, TransferError> {
        if self.state == State::Done || header.segment <= self.received && header.segment > 0 {
            // Sent again because an ACK was lost.
            self.acknowledge(mad);
            return Ok(None);
        }
        if let Err(status) = self.check(header) {
            return Err(self.fail(mad, status));
        }
        if header.segment > self.received + 1 {
            // A segment is missing. The sender resends it when the ACK of its window is overdue.
            return Ok(None);
        }
        if self.data.len() + SEGMENT_DATA_LEN > RECEIVE_MAX {
            return Err(self.fail(mad, RmppStatus::ResourcesExhausted));
        }
        let is_last = header.flags.has(RmppFlags::LAST);
        let len =
            if is_last { header.payload_length() as usize - CLASS_HEADER_LEN } else { SEGMENT_DATA_LEN };
        self.data.extend_from_slice(&mad.sa_data()[..len]);
        self.header.get_or_insert_with(|| mad.clone());
        self.received = header.segment;
        if is_last || header.segment >= self.window_last {
            self.window_last = header.segment + WINDOW_SEGMENTS;
            self.acknowledge(mad);
        }
        if !is_last {
            return Ok(None);
        }
        self.state = State::Done;
        let header = self.header.clone().unwrap_or_else(|| mad.clone());
        Ok(Some(RmppMessage { header, data: std::mem::take(&mut self.data) }))
    }

    /// Checks that flags, number and length of a segment are consistent with the state of the transfer.
    fn check(&self, header: &RmppHeader) -> Result<(), RmppStatus> {
        let payload = header.payload_length() as usize;
        if header.flags.has(RmppFlags::FIRST) != (header.segment == 1) || header.segment == 0 {
            return Err(RmppStatus::BadFirst);
        }
        if header.segment > self.window_last.max(1) {
            return Err(RmppStatus::SegmentTooBig);
        }
        if header.flags.has(RmppFlags::LAST) {
            let valid = CLASS_HEADER_LEN..=CLASS_HEADER_LEN + SEGMENT_DATA_LEN;
            return if valid.contains(&payload) { Ok(()) } else { Err(RmppStatus::BadLength) };
        }
        // The length in the first segment is optional; it serves to reject oversized messages early.
        let announced = payload / (CLASS_HEADER_LEN + SEGMENT_DATA_LEN) * SEGMENT_DATA_LEN;
        if header.segment == 1 && announced > RECEIVE_MAX {
            Err(RmppStatus::ResourcesExhausted)
        } else {
            Ok(())
        }
    }

    fn acknowledge(&mut self, about: &Mad) {
        let window_last = self.window_last.max(self.received + 1);
        self.reply = Some(control(about, RmppKind::Ack, RmppStatus::Normal, self.received, window_last));
    }

    fn fail(&mut self, about: &Mad, status: RmppStatus) -> TransferError {
        self.state = State::Failed;
        self.data = Vec::new();
        self.reply = Some(stop_or_abort(about, status));
        TransferError::Aborted(status)
    }
}
