//! Subscriptions to events.

use crate::address::{Gid, LidAddress};
use crate::bits::{bits, bytes};
use crate::datagram::QueuePair;

wire_enum! {
    /// Whose events a subscription is for.
    pub enum InformScope {
        /// A vendor's.
        Vendor = 0,
        /// The specification's.
        Generic = 1,
    }
}

wire_enum! {
    /// What a subscription asks for.
    pub enum Subscription {
        /// No more reports.
        Unsubscribe = 0,
        /// Reports.
        Subscribe = 1,
    }
}

layout! {
    /// InformInfo (attribute 0x0003).
    pub struct InformInfo[36] {
        /// Events of this port only; all zero for the range of LIDs.
        gid: Gid = bytes(0, 16),
        /// Events of the ports from here; permissive for all.
        lid_range_begin: Option<LidAddress> = bytes(16, 2),
        /// Events of the ports up to here.
        lid_range_end: Option<LidAddress> = bytes(18, 2),
        /// Whose events.
        scope: InformScope = bytes(22, 1),
        /// On or off.
        subscription: Subscription = bytes(23, 1),
        /// Gravity; 0xffff for all.
        kind: u16 = bytes(24, 2),
        /// Generic: the trap. Vendor: the device. 0xffff for all.
        number: u16 = bytes(26, 2),
        /// Where reports go.
        qp: QueuePair = bytes(28, 3),
        /// How long an answer may take, as an exponent.
        response_time: u8 = bits(31, 4, 0),
        /// Generic: who reports. Vendor: whose event. 0xffffff for all.
        producer_or_vendor: u32 = bytes(33, 3),
    }
}

impl InformInfo {
    /// In `kind` and `number`: every value.
    pub const ALL: u16 = 0xffff;
    /// In `producer_or_vendor`: every value.
    pub const ALL_PRODUCERS: u32 = 0xff_ffff;
}

layout! {
    /// InformInfoRecord of the subnet administration (attribute 0x00f3).
    pub struct InformInfoRecord[64] {
        /// Who subscribed.
        subscriber: Gid = bytes(0, 16),
        /// Tells several subscriptions of one subscriber apart.
        subscriber_enum: u16 = bytes(16, 2),
        /// The subscription.
        inform_info: InformInfo = bytes(24, 36),
    }
}
