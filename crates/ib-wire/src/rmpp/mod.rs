//! The reliable multi-packet protocol (RMPP): responses longer than one datagram.
//!
//! A response of the subnet administration is a list of records, cut into segments of [`SEGMENT_DATA_LEN`] bytes without
//! regard to record borders. [`Sender`] and [`Receiver`] are the two ends of one transfer. Neither has a socket or a clock.
//! The caller
//!
//! 1. passes every received datagram to `handle`,
//! 2. then calls `poll_transmit` until it returns `None`, and sends what it returns,
//! 3. calls [`Sender::handle_timeout`] when the acknowledgement of the last datagram sent is overdue, then `poll_transmit`.
//!
//! A sender sends at most the receiver's window ahead and goes back to the first segment that was not acknowledged (go-back-N).
//! A transfer ends with the complete message on one side and [`Sender::is_done`] on the other, or with a [`TransferError`].
//!
//! ```
//! use ib_wire::rmpp::{Receiver, Sender};
//! use ib_wire::{Attribute, Mad, ManagementClass, Method};
//!
//! let header = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET_TABLE_RESP, Attribute::NODE_RECORD, 0);
//! let (mut sender, mut receiver) = (Sender::new(header, vec![7; 1000])?, Receiver::new());
//! let mut message = None;
//! while message.is_none() {
//!     while let Some(segment) = sender.poll_transmit() {
//!         message = receiver.handle(&segment)?.or(message);
//!     }
//!     while let Some(ack) = receiver.poll_transmit() {
//!         sender.handle(&ack)?;
//!     }
//! }
//! assert!(sender.is_done());
//! assert_eq!(message.unwrap().data, vec![7; 1000]);
//! # Ok::<(), ib_wire::rmpp::TransferError>(())
//! ```

mod receiver;
mod sender;

pub use receiver::{RECEIVE_MAX, Receiver, RmppMessage, WINDOW_SEGMENTS};
pub use sender::{RESENDS_MAX, Sender};

use thiserror::Error;

use crate::bits::{Field, WireValue, bits, bytes};
use crate::mad::{Mad, Method};
use crate::sa::SA_DATA_LEN;

/// Length of the record data in one segment, in bytes.
pub const SEGMENT_DATA_LEN: usize = SA_DATA_LEN;

/// The RMPP version, the only one so far.
const VERSION: u8 = 1;

/// Length of the SA class header between RMPP header and data, in bytes. Every segment repeats it, and PayloadLength
/// counts it in every segment.
const CLASS_HEADER_LEN: usize = 20;

const HEADER: usize = 24;

layout! {
    /// The RMPP header, bytes 24 to 35 of a datagram.
    pub struct RmppHeader[12] {
        /// 1 if RMPP is in use.
        version: u8 = bytes(0, 1),
        kind: RmppKind = bytes(1, 1),
        /// RRespTime: longest time until the response, 4.096 µs · 2ⁿ; 31 = not given.
        response_time: u8 = bits(2, 7, 3),
        flags: RmppFlags = bits(2, 2, 0),
        status: RmppStatus = bytes(3, 1),
        /// Data: number of the segment, from 1 on. ACK: the last segment received in order.
        segment: u32 = bytes(4, 4),
        /// Data: PayloadLength, see [`RmppHeader::payload_length`]. ACK: NewWindowLast, the last segment that may be sent.
        length_or_window: u32 = bytes(8, 4),
    }
}

impl RmppHeader {
    /// PayloadLength of a data segment, in bytes: in the first segment the length of the whole transfer or 0, in the last one
    /// the length of that segment, else 0. It includes 20 bytes of class header per segment.
    pub const fn payload_length(&self) -> u32 {
        self.length_or_window
    }

    /// NewWindowLast of an ACK: number of the last segment that may be sent.
    pub const fn window_last(&self) -> u32 {
        self.length_or_window
    }
}

wire_enum! {
    /// RMPPType of a datagram.
    pub enum RmppKind {
        /// Not an RMPP datagram.
        None = 0,
        Data = 1,
        /// Acknowledges segments and moves the window.
        Ack = 2,
        /// The receiver ends the transfer for lack of resources.
        Stop = 3,
        /// One side ends the transfer because of an error.
        Abort = 4,
    }
}

/// RMPPFlags of a datagram, 3 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RmppFlags(pub u8);

impl RmppFlags {
    pub const ACTIVE: Self = Self(1);
    pub const FIRST: Self = Self(2);
    pub const LAST: Self = Self(4);

    /// Whether this set has every flag of `other`.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set with the flags of `other` added.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl WireValue for RmppFlags {
    const MAX_BITS: usize = 8;
    fn read(raw: &[u8], field: Field) -> Option<Self> {
        u8::read(raw, field).map(Self)
    }
    fn write(&self, raw: &mut [u8], field: Field) {
        self.0.write(raw, field);
    }
}

wire_enum! {
    /// RMPPStatus: the reason in a STOP or ABORT.
    pub enum RmppStatus {
        Normal = 0,
        ResourcesExhausted = 1,
        TotalTimeTooLong = 118,
        /// The LAST flag and PayloadLength are inconsistent.
        BadLength = 119,
        /// The FIRST flag and the segment number are inconsistent.
        BadFirst = 120,
        /// The RMPPType is not known.
        BadKind = 121,
        /// NewWindowLast is lower than before.
        WindowTooSmall = 122,
        /// The segment number is outside the window.
        SegmentTooBig = 123,
        /// The status is not valid for the RMPPType.
        IllegalStatus = 124,
        /// The RMPP version is not supported.
        BadVersion = 125,
        TooManyRetries = 126,
        Unspecified = 127,
    }
}

/// Why a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TransferError {
    /// The peer sent STOP or ABORT with this status.
    #[error("the peer ended the RMPP transfer with status {0:?}")]
    Ended(RmppStatus),
    /// This side ended the transfer; the next `poll_transmit` returns the STOP or ABORT for the peer.
    #[error("the RMPP transfer was ended with status {0:?}")]
    Aborted(RmppStatus),
    /// The message is longer than [`RECEIVE_MAX`].
    #[error("an RMPP message must have at most {limit} bytes, got {bytes}")]
    TooLarge { bytes: usize, limit: usize },
}

/// The RMPP header of a datagram, bytes 24 to 35. It is meaningful only in classes that use RMPP.
impl Mad {
    /// Decodes the RMPP header.
    pub fn rmpp(&self) -> RmppHeader {
        RmppHeader::decode(&self.0[HEADER..]).expect("every RMPP header can be decoded")
    }

    /// Writes the RMPP header.
    pub fn set_rmpp(&mut self, header: &RmppHeader) {
        self.0[HEADER..HEADER + RmppHeader::LEN].copy_from_slice(&header.encode());
    }
}

/// An RMPP datagram for the peer: the header of `about` with the response bit of its method inverted, and no data.
fn control(about: &Mad, kind: RmppKind, status: RmppStatus, segment: u32, window_last: u32) -> Mad {
    let mut mad = about.clone();
    mad.set_method(Method(about.method().0 ^ 0x80));
    mad.sa_data_mut().fill(0);
    mad.set_rmpp(&RmppHeader {
        version: VERSION,
        kind,
        response_time: 0,
        flags: RmppFlags::ACTIVE,
        status,
        segment,
        length_or_window: window_last,
    });
    mad
}

/// The datagram that ends a transfer: STOP for lack of resources, ABORT for every other status.
fn stop_or_abort(about: &Mad, status: RmppStatus) -> Mad {
    let kind = if status == RmppStatus::ResourcesExhausted { RmppKind::Stop } else { RmppKind::Abort };
    control(about, kind, status, 0, 0)
}

#[cfg(test)]
mod tests;
