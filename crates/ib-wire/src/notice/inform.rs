//! InformInfo: subscriptions to notices at the subnet administration.

use crate::address::{Gid, LidAddress};
use crate::bits::{bits, bytes};
use crate::datagram::QueuePair;

wire_enum! {
    /// IsGeneric of a subscription: who defines the trap numbers.
    pub enum InformScope {
        Vendor = 0,
        /// Trap numbers are those of the InfiniBand specification.
        Generic = 1,
    }
}

wire_enum! {
    /// Subscribe of a subscription.
    pub enum Subscription {
        Unsubscribe = 0,
        Subscribe = 1,
    }
}

layout! {
    /// InformInfo (attribute 0x0003): starts or ends the forwarding of notices that match all criteria.
    pub struct InformInfo[36] {
        /// Notices about this port only; all zero to select ports by LID instead.
        gid: Gid = bytes(0, 16),
        /// First LID of the range; permissive (0xFFFF) selects all ports.
        lid_range_begin: Option<LidAddress> = bytes(16, 2),
        /// Last LID of the range.
        lid_range_end: Option<LidAddress> = bytes(18, 2),
        scope: InformScope = bytes(22, 1),
        subscription: Subscription = bytes(23, 1),
        /// Type: a [`NoticeKind`](super::NoticeKind) code, or [`InformInfo::ALL`].
        kind: u16 = bytes(24, 2),
        /// Generic: the trap number. Vendor: the device id. Or [`InformInfo::ALL`].
        number: u16 = bytes(26, 2),
        /// Queue pair of the subscriber to which reports are sent.
        qp: QueuePair = bytes(28, 3),
        /// RespTimeValue: longest time until the subscriber answers a report, 4.096 µs · 2ⁿ.
        response_time: u8 = bits(31, 4, 0),
        /// Generic: a [`Producer`](super::Producer) code. Vendor: the vendor id. Or [`InformInfo::ALL_PRODUCERS`]. 24 bits.
        producer_or_vendor: u32 = bytes(33, 3),
    }
}

impl InformInfo {
    /// In `kind` and `number`: matches every value.
    pub const ALL: u16 = 0xffff;
    /// In `producer_or_vendor`: matches every value.
    pub const ALL_PRODUCERS: u32 = 0xff_ffff;
}

layout! {
    /// InformInfoRecord of the subnet administration (attribute 0x00f3): an existing subscription.
    pub struct InformInfoRecord[64] {
        /// GID of the subscriber's port.
        subscriber: Gid = bytes(0, 16),
        /// Distinguishes the subscriptions of one subscriber.
        subscriber_enum: u16 = bytes(16, 2),
        inform_info: InformInfo = bytes(24, 36),
    }
}
