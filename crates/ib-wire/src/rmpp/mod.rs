//! The reliable multi-packet protocol: answers longer than one datagram.
//!
//! An answer of the subnet administration is a list of records, cut into segments of [`SEGMENT_DATA_LEN`] bytes without
//! regard to record borders. [`Sender`] and [`Receiver`] are the two ends. Neither has a socket or a clock: the caller
//! hands in what was received, sends what [`Sender::poll_transmit`] and [`Receiver::poll_transmit`] give out, and tells
//! the sender when an acknowledgement is overdue.
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
//!     while let Some(answer) = receiver.poll_transmit() {
//!         sender.handle(&answer)?;
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

/// Record data in one segment, in bytes.
pub const SEGMENT_DATA_LEN: usize = SA_DATA_LEN;

/// The only version there is.
const VERSION: u8 = 1;

/// Header of the class between the RMPP header and the data. PayloadLength counts it once in every segment, because
/// every segment repeats it.
const CLASS_HEADER_LEN: usize = 20;

const HEADER: usize = 24;

layout! {
    /// The RMPP header, bytes 24 to 35 of a datagram.
    pub struct RmppHeader[12] {
        /// 1 where the protocol is in use.
        version: u8 = bytes(0, 1),
        /// What the datagram is for.
        kind: RmppKind = bytes(1, 1),
        /// How long an answer may take, as an exponent; 31 says nothing.
        response_time: u8 = bits(2, 7, 3),
        /// Where in the transfer it stands.
        flags: RmppFlags = bits(2, 2, 0),
        /// Why a transfer stops.
        status: RmppStatus = bytes(3, 1),
        /// Data: the segment, from 1. Acknowledgement: the last segment received.
        segment: u32 = bytes(4, 4),
        /// Data: length of the rest, see [`RmppHeader::payload_length`]. Acknowledgement: the last segment that may be
        /// sent.
        length_or_window: u32 = bytes(8, 4),
    }
}

impl RmppHeader {
    /// PayloadLength of data: in the first segment that of the whole transfer or 0, in the last that of the segment
    /// itself, else 0. It counts 20 bytes of class header per segment.
    pub const fn payload_length(&self) -> u32 {
        self.length_or_window
    }

    /// NewWindowLast of an acknowledgement.
    pub const fn window_last(&self) -> u32 {
        self.length_or_window
    }
}

wire_enum! {
    /// What an RMPP datagram is for.
    pub enum RmppKind {
        /// RMPP is not in use.
        None = 0,
        /// A segment.
        Data = 1,
        /// Acknowledges segments and opens the window.
        Ack = 2,
        /// The other side shall stop: no room.
        Stop = 3,
        /// The transfer failed.
        Abort = 4,
    }
}

/// Where in a transfer a datagram stands, 3 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RmppFlags(pub u8);

impl RmppFlags {
    /// RMPP is in use.
    pub const ACTIVE: Self = Self(1);
    /// The first segment.
    pub const FIRST: Self = Self(2);
    /// The last segment.
    pub const LAST: Self = Self(4);

    /// Whether all of `other` is in this set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set with `other`.
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
    /// Why a transfer stops.
    pub enum RmppStatus {
        /// It does not.
        Normal = 0,
        /// The receiver has no room.
        ResourcesExhausted = 1,
        /// It took too long in all.
        TotalTimeTooLong = 118,
        /// The last segment and PayloadLength do not go together.
        BadLength = 119,
        /// The first segment and its number do not go together.
        BadFirst = 120,
        /// Neither data, acknowledgement, stop nor abort.
        BadKind = 121,
        /// The new window ends before the old one.
        WindowTooSmall = 122,
        /// A segment beyond the window.
        SegmentTooBig = 123,
        /// A status that does not go with the kind.
        IllegalStatus = 124,
        /// Not version 1.
        BadVersion = 125,
        /// Nobody answers.
        TooManyRetries = 126,
        /// Something else.
        Unspecified = 127,
    }
}

/// A transfer that came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TransferError {
    /// The other side gave up.
    #[error("the other side ended the transfer: {0:?}")]
    Ended(RmppStatus),
    /// This side gave up, and told the other side so.
    #[error("the transfer was ended: {0:?}")]
    Aborted(RmppStatus),
    /// The message is larger than a transfer may be.
    #[error("a message of {bytes} bytes is larger than a transfer may be ({limit})")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// What would have been allowed.
        limit: usize,
    },
}

/// The RMPP header of a datagram. It means something only in classes that use the protocol.
impl Mad {
    /// The RMPP header.
    pub fn rmpp(&self) -> RmppHeader {
        RmppHeader::decode(&self.0[HEADER..]).expect("every RMPP header can be read")
    }

    /// Replaces the RMPP header.
    pub fn set_rmpp(&mut self, header: &RmppHeader) {
        self.0[HEADER..HEADER + RmppHeader::LEN].copy_from_slice(&header.encode());
    }
}

/// A datagram about a transfer, to the other side of it: the header of `about`, its method turned round, no data.
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

/// The status by which this side ends a transfer; no room is a stop, all else an abort.
fn give_up(about: &Mad, status: RmppStatus) -> Mad {
    let kind = if status == RmppStatus::ResourcesExhausted { RmppKind::Stop } else { RmppKind::Abort };
    control(about, kind, status, 0, 0)
}

#[cfg(test)]
mod tests;
