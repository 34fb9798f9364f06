//! The sending end of a transfer.

use super::{
    CLASS_HEADER_LEN, RECEIVE_MAX, RmppFlags, RmppHeader, RmppKind, RmppStatus, SEGMENT_DATA_LEN,
    TransferError, VERSION, control, stop_or_abort,
};
use crate::mad::Mad;

/// Consecutive timeouts without progress after which the transfer fails.
pub const RESENDS_MAX: u32 = 3;

/// The sending end of one transfer: sends a message in segments, as fast as the receiver's window allows.
#[derive(Debug)]
pub struct Sender {
    header: Mad,
    data: Vec<u8>,
    segments: u32,
    /// The next segment to send.
    next: u32,
    /// The highest segment sent so far; after a resend an ACK may name it before `next` reaches it again.
    sent: u32,
    /// The last segment that the receiver acknowledged.
    acknowledged: u32,
    /// The last segment that may be sent.
    window_last: u32,
    resends: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sending,
    Done,
    Failed(TransferError),
    /// Failed on this side; the ABORT for the peer was not sent yet.
    AbortPending(RmppStatus),
}

impl Sender {
    /// A transfer of `data` (whole records, see [`sa::table`](crate::sa::table)) with the common and class headers of `header`,
    /// whose RMPP header and data are ignored. An empty table is one segment without data.
    ///
    /// # Errors
    ///
    /// [`TransferError::TooLarge`] if `data` is longer than [`RECEIVE_MAX`].
    pub fn new(header: Mad, data: Vec<u8>) -> Result<Self, TransferError> {
        if data.len() > RECEIVE_MAX {
            return Err(TransferError::TooLarge { bytes: data.len(), limit: RECEIVE_MAX });
        }
        let segments = data.len().div_ceil(SEGMENT_DATA_LEN).max(1) as u32;
        // The window has one segment until the receiver announces a larger one.
        let window_last = 1;
        Ok(Self {
            header,
            data,
            segments,
            next: 1,
            sent: 0,
            acknowledged: 0,
            window_last,
            resends: 0,
            state: State::Sending,
        })
    }

    /// The next datagram to send; `None` until an ACK or a timeout allows more.
    pub fn poll_transmit(&mut self) -> Option<Mad> {
        match self.state {
            State::Sending if self.next <= self.window_last.min(self.segments) => {
                let segment = self.segment(self.next);
                self.sent = self.sent.max(self.next);
                self.next += 1;
                Some(segment)
            }
            State::AbortPending(status) => {
                self.state = State::Failed(TransferError::Aborted(status));
                // The sender's ABORT has the method of its data.
                let mut mad = stop_or_abort(&self.header, status);
                mad.set_method(self.header.method());
                Some(mad)
            }
            _ => None,
        }
    }

    /// Handles a datagram of the receiver. Datagrams of other transactions or classes, data segments, and those that arrive
    /// after the end of the transfer are ignored. Call [`Self::poll_transmit`] afterwards.
    ///
    /// # Errors
    ///
    /// The transfer failed.
    pub fn handle(&mut self, mad: &Mad) -> Result<(), TransferError> {
        let ours = mad.transaction() == self.header.transaction() && mad.class() == self.header.class();
        let header = mad.rmpp();
        if !ours || self.state != State::Sending || !header.flags.has(RmppFlags::ACTIVE) {
            return Ok(());
        }
        if header.version != VERSION {
            return Err(self.fail(RmppStatus::BadVersion));
        }
        match header.kind {
            RmppKind::Ack => self.acknowledge(&header),
            RmppKind::Stop | RmppKind::Abort => {
                let error = TransferError::Ended(header.status);
                self.state = State::Failed(error);
                Err(error)
            }
            RmppKind::Data => Ok(()),
            RmppKind::None | RmppKind::Unknown(_) => Err(self.fail(RmppStatus::BadKind)),
        }
    }

    /// The ACK is overdue: prepares all unacknowledged segments to be sent again.
    ///
    /// # Errors
    ///
    /// The transfer failed after [`RESENDS_MAX`] timeouts without progress.
    pub fn handle_timeout(&mut self) -> Result<(), TransferError> {
        if self.state != State::Sending {
            return Ok(());
        }
        if self.resends == RESENDS_MAX {
            return Err(self.fail(RmppStatus::TooManyRetries));
        }
        self.resends += 1;
        self.next = self.acknowledged + 1;
        Ok(())
    }

    /// Ends the transfer; the next [`Self::poll_transmit`] returns the ABORT with `status`.
    pub fn abort(&mut self, status: RmppStatus) {
        if self.state == State::Sending {
            self.state = State::AbortPending(status);
        }
    }

    /// Whether the receiver acknowledged the whole message.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Why the transfer failed, if it did.
    pub fn error(&self) -> Option<TransferError> {
        match self.state {
            State::Failed(error) => Some(error),
            State::AbortPending(status) => Some(TransferError::Aborted(status)),
            State::Sending | State::Done => None,
        }
    }

    fn acknowledge(&mut self, header: &RmppHeader) -> Result<(), TransferError> {
        let (segment, window_last) = (header.segment, header.window_last());
        if segment > self.sent {
            return Err(self.fail(RmppStatus::SegmentTooBig));
        }
        if segment < self.acknowledged {
            // Overtaken by a later ACK.
            return Ok(());
        }
        if window_last < segment || window_last < self.window_last {
            return Err(self.fail(RmppStatus::WindowTooSmall));
        }
        if segment > self.acknowledged {
            self.resends = 0;
        }
        self.acknowledged = segment;
        self.next = self.next.max(segment + 1);
        self.window_last = window_last;
        if segment == self.segments {
            self.state = State::Done;
        }
        Ok(())
    }

    fn fail(&mut self, status: RmppStatus) -> TransferError {
        self.state = State::AbortPending(status);
        TransferError::Aborted(status)
    }

    fn segment(&self, number: u32) -> Mad {
        let start = (number as usize - 1) * SEGMENT_DATA_LEN;
        let end = self.data.len().min(start + SEGMENT_DATA_LEN);
        let here = &self.data[start..end];
        let (is_first, is_last) = (number == 1, number == self.segments);
        let (mut flags, mut payload) = (RmppFlags::ACTIVE, 0);
        if is_first {
            flags = flags.with(RmppFlags::FIRST);
            payload = self.data.len() + self.segments as usize * CLASS_HEADER_LEN;
        }
        if is_last {
            flags = flags.with(RmppFlags::LAST);
            payload = here.len() + CLASS_HEADER_LEN;
        }
        let mut mad = control(&self.header, RmppKind::Data, RmppStatus::Normal, number, payload as u32);
        mad.set_method(self.header.method());
        mad.set_rmpp(&RmppHeader { flags, ..mad.rmpp() });
        mad.sa_data_mut()[..here.len()].copy_from_slice(here);
        mad
    }
}
