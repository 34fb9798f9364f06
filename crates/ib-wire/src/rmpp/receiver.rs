//! The receiving end of a transfer.

use super::{
    CLASS_HEADER_LEN, RmppFlags, RmppHeader, RmppKind, RmppStatus, SEGMENT_DATA_LEN, TransferError, VERSION,
    control, give_up,
};
use crate::mad::Mad;

/// Longest message in bytes. The largest table there is, a NodeRecord (112 bytes) for each of 49,151 LIDs, needs
/// 5.5 MB; a sender that wants more is broken or hostile.
pub const RECEIVE_MAX: usize = 8 << 20;

/// Segments the sender may have under way. A window of 64 datagrams is 16 KiB, below what any socket buffers.
pub const WINDOW_SEGMENTS: u32 = 64;

/// A message that arrived whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RmppMessage {
    /// The first datagram, for its common and class header.
    pub header: Mad,
    /// The data of all segments. Of an answer that did not use RMPP: the data area of its datagram.
    pub data: Vec<u8>,
}

/// Puts one message together. It lives on after the message is complete, to acknowledge again what is sent again.
#[derive(Debug, Default)]
pub struct Receiver {
    /// The first datagram received, once there is one.
    header: Option<Mad>,
    data: Vec<u8>,
    /// Everything up to here arrived.
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
    /// Waits for the first datagram of an answer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a datagram of the sender: the message, when this was the last part of it. Datagrams of other transactions
    /// and what comes after the end are ignored.
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

    /// The datagram to send, if there is one: an acknowledgement, or the end of the transfer.
    pub fn poll_transmit(&mut self) -> Option<Mad> {
        self.reply.take()
    }

    /// An answer in one datagram, without RMPP.
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
            // Sent again: an acknowledgement was lost.
            self.acknowledge(mad);
            return Ok(None);
        }
        if let Err(status) = self.check(header) {
            return Err(self.fail(mad, status));
        }
        if header.segment > self.received + 1 {
            // A gap. The sender goes back to it when the acknowledgement of its window is overdue.
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

    /// Whether a segment makes sense where the transfer stands.
    fn check(&self, header: &RmppHeader) -> Result<(), RmppStatus> {
        let payload = header.payload_length() as usize;
        if header.flags.has(RmppFlags::FIRST) != (header.segment == 1) || header.segment == 0 {
            return Err(RmppStatus::BadFirst);
        }
        if header.segment > self.window_last.max(1) {
            return Err(RmppStatus::SegmentTooBig);
        }
        if header.flags.has(RmppFlags::LAST) {
            let room = CLASS_HEADER_LEN..=CLASS_HEADER_LEN + SEGMENT_DATA_LEN;
            return if room.contains(&payload) { Ok(()) } else { Err(RmppStatus::BadLength) };
        }
        // The length the first segment announces is a hint: senders may leave it 0. It serves to refuse early.
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
        self.reply = Some(give_up(about, status));
        TransferError::Aborted(status)
    }
}
