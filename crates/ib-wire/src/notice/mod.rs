//! Events: the Notice attribute, the traps it carries, and the subscriptions that forward it.
//!
//! A node sends a [`Notice`] to its subnet manager as a trap; the subnet administration forwards it to subscribers
//! ([`InformInfo`]) as a report. A trap is a subnet management datagram and carries the first 64 bytes; a report
//! carries all 80, the issuer's GID included.

mod inform;
mod trap;

pub use inform::{InformInfo, InformInfoRecord, InformScope, Subscription};
pub use trap::{
    BadMKey, BadPkey, BadQKey, DETAILS_LEN, GidEvent, LocalChange, LocalChangeFlags, PortEvent,
    SwitchBadPkey, SwitchEvent, SystemGuidChange, Trap,
};

use crate::address::{Gid, LidAddress};
use crate::bits::{Field, LayoutError, WireValue, bits, bits_from, bytes};
use crate::smp::SMP_DATA_LEN;

layout! {
    /// The Notice attribute (0x0002) as a table: what it says depends on `is_generic` and the number.
    pub struct RawNotice[80] {
        /// Whether the specification or a vendor says what the number means.
        is_generic: bool = bits(0, 7, 7),
        /// How grave it is.
        kind: NoticeKind = bits(0, 6, 0),
        /// Generic: who reports. Vendor: whose number it is.
        producer_or_vendor: u32 = bytes(1, 3),
        /// Generic: the trap. Vendor: the device.
        number: u16 = bytes(4, 2),
        /// The port that reports.
        issuer_lid: Option<LidAddress> = bytes(6, 2),
        /// LocalChangeFlags with every new notice in a queue.
        toggle: bool = bits(8, 7, 7),
        /// Notices waiting behind this one.
        count: u16 = bits_from(8, 6, 15),
        /// What the number says.
        details: [u8; DETAILS_LEN] = bytes(10, DETAILS_LEN),
        /// The port that reports; only in reports of the subnet administration.
        issuer_gid: Gid = bytes(64, 16),
    }
}

/// An event, as a trap or a report says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// How grave it is.
    pub kind: NoticeKind,
    /// What happened.
    pub event: NoticeEvent,
    /// The port that reports.
    pub issuer_lid: Option<LidAddress>,
    /// LocalChangeFlags with every new notice in a queue.
    pub toggle: bool,
    /// Notices waiting behind this one, 15 bits.
    pub count: u16,
    /// The port that reports; all zero in traps.
    pub issuer_gid: Gid,
}

/// What a notice is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeEvent {
    /// The specification defines it.
    Generic {
        /// Who reports.
        producer: Producer,
        /// What happened.
        trap: Trap,
    },
    /// A vendor defines it.
    Vendor {
        /// The vendor, 24 bits.
        vendor_id: u32,
        /// The vendor's device.
        device_id: u16,
        /// What the vendor says.
        details: [u8; DETAILS_LEN],
    },
}

impl Notice {
    /// Length in bytes; a trap carries the first [`SMP_DATA_LEN`] of them.
    pub const LEN: usize = RawNotice::LEN;

    /// A generic notice of the usual gravity and producer for its trap, not queued.
    pub fn generic(trap: Trap, issuer_lid: Option<LidAddress>) -> Self {
        Self {
            kind: trap.default_kind(),
            event: NoticeEvent::Generic { producer: trap.default_producer(), trap },
            issuer_lid,
            toggle: false,
            count: 0,
            issuer_gid: Gid::default(),
        }
    }

    /// The trap, if the specification defines the event.
    pub fn trap(&self) -> Option<&Trap> {
        match &self.event {
            NoticeEvent::Generic { trap, .. } => Some(trap),
            NoticeEvent::Vendor { .. } => None,
        }
    }

    /// Reads the 80 bytes of a report.
    pub fn decode(raw: &[u8]) -> Result<Self, LayoutError> {
        let raw = RawNotice::decode(raw)?;
        let event = if raw.is_generic {
            let producer = Producer::from_wire(raw.producer_or_vendor);
            NoticeEvent::Generic { producer, trap: Trap::decode(raw.number, &raw.details)? }
        } else {
            NoticeEvent::Vendor {
                vendor_id: raw.producer_or_vendor,
                device_id: raw.number,
                details: raw.details,
            }
        };
        Ok(Self {
            kind: raw.kind,
            event,
            issuer_lid: raw.issuer_lid,
            toggle: raw.toggle,
            count: raw.count,
            issuer_gid: raw.issuer_gid,
        })
    }

    /// Reads the 64 bytes of a trap.
    pub fn decode_smp(raw: &[u8; SMP_DATA_LEN]) -> Result<Self, LayoutError> {
        let mut whole = [0; Self::LEN];
        whole[..SMP_DATA_LEN].copy_from_slice(raw);
        Self::decode(&whole)
    }

    /// The 80 bytes of a report.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let (is_generic, producer_or_vendor, number, details) = match &self.event {
            NoticeEvent::Generic { producer, trap } => {
                (true, producer.to_wire(), trap.number(), trap.encode())
            }
            NoticeEvent::Vendor { vendor_id, device_id, details } => {
                (false, *vendor_id, *device_id, *details)
            }
        };
        RawNotice {
            is_generic,
            kind: self.kind,
            producer_or_vendor,
            number,
            issuer_lid: self.issuer_lid,
            toggle: self.toggle,
            count: self.count,
            details,
            issuer_gid: self.issuer_gid,
        }
        .encode()
    }

    /// The 64 bytes of a trap.
    pub fn encode_smp(&self) -> [u8; SMP_DATA_LEN] {
        let mut data = [0; SMP_DATA_LEN];
        data.copy_from_slice(&self.encode()[..SMP_DATA_LEN]);
        data
    }
}

wire_enum! {
    /// How grave a notice is.
    pub enum NoticeKind {
        /// Something is broken.
        Fatal = 0,
        /// Needs attention now.
        Urgent = 1,
        /// Somebody lacked a key.
        Security = 2,
        /// The subnet changed.
        SubnetManagement = 3,
        /// Worth knowing.
        Informational = 4,
        /// No notice is waiting.
        Empty = 0x7f,
    }
}

/// Who reports a generic event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Producer {
    /// A channel adapter.
    Adapter,
    /// A switch.
    Switch,
    /// A router.
    Router,
    /// The manager of a class, the subnet manager in ours.
    ClassManager,
    /// A number this crate has no name for, 24 bits.
    Unknown(u32),
}

impl Producer {
    /// The producer behind a number; never fails.
    pub const fn from_wire(number: u32) -> Self {
        match number {
            1 => Self::Adapter,
            2 => Self::Switch,
            3 => Self::Router,
            4 => Self::ClassManager,
            other => Self::Unknown(other),
        }
    }

    /// The number.
    pub const fn to_wire(self) -> u32 {
        match self {
            Self::Adapter => 1,
            Self::Switch => 2,
            Self::Router => 3,
            Self::ClassManager => 4,
            Self::Unknown(number) => number,
        }
    }
}

impl WireValue for Producer {
    const MAX_BITS: usize = 32;
    fn read(raw: &[u8], field: Field) -> Option<Self> {
        u32::read(raw, field).map(Self::from_wire)
    }
    fn write(&self, raw: &mut [u8], field: Field) {
        self.to_wire().write(raw, field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Guid, Lid};

    #[test]
    fn a_trap_loses_the_issuer_gid_and_nothing_else() {
        let lid = Lid::from_wire(7).unwrap();
        let mut notice =
            Notice::generic(Trap::LinkStateChanged(SwitchEvent { lid: Some(lid.into()) }), Some(lid.into()));
        notice.toggle = true;
        notice.count = 0x7fff;
        notice.issuer_gid = Gid::unicast(Gid::DEFAULT_PREFIX, Guid::from_wire(5).unwrap());
        assert_eq!(Notice::decode(&notice.encode()), Ok(notice.clone()));
        let received = Notice::decode_smp(&notice.encode_smp()).unwrap();
        assert_eq!(received, Notice { issuer_gid: Gid::default(), ..notice });
    }

    #[test]
    fn a_vendor_notice_is_kept_as_it_is() {
        let notice = Notice {
            kind: NoticeKind::Informational,
            event: NoticeEvent::Vendor { vendor_id: 0x2c9, device_id: 128, details: [9; DETAILS_LEN] },
            issuer_lid: None,
            toggle: false,
            count: 0,
            issuer_gid: Gid::default(),
        };
        assert_eq!(Notice::decode(&notice.encode()), Ok(notice.clone()));
        assert_eq!(notice.trap(), None, "a vendor's 128 is not a link change");
    }
}
