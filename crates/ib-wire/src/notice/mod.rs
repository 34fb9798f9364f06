//! The Notice attribute, the traps it carries, and subscriptions to it.
//!
//! A device sends a [`Notice`] to its subnet manager as a trap; the subnet administration forwards it to subscribers
//! ([`InformInfo`]) as a report. A trap is an SMP and carries the first 64 bytes of the notice; a report carries all 80,
//! including the GID of the issuer.

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
    /// The Notice attribute (0x0002) with its details undecoded. [`Notice`] is the decoded form.
    pub struct RawNotice[80] {
        /// Whether the specification (1) or a vendor (0) defines `number` and `details`.
        is_generic: bool = bits(0, 7, 7),
        kind: NoticeKind = bits(0, 6, 0),
        /// Generic: a [`Producer`] code. Vendor: the vendor id. 24 bits.
        producer_or_vendor: u32 = bytes(1, 3),
        /// Generic: the trap number. Vendor: the device id.
        number: u16 = bytes(4, 2),
        /// LID of the port that issued the notice.
        issuer_lid: Option<LidAddress> = bytes(6, 2),
        /// NoticeToggle: alternates with every notice that leaves the queue of the issuer.
        toggle: bool = bits(8, 7, 7),
        /// NoticeCount: notices queued behind this one, 15 bits.
        count: u16 = bits_from(8, 6, 15),
        /// Depends on the trap number, see [`Trap`].
        details: [u8; DETAILS_LEN] = bytes(10, DETAILS_LEN),
        /// GID of the port that issued the notice; only in reports of the subnet administration.
        issuer_gid: Gid = bytes(64, 16),
    }
}

/// A decoded notice, as a trap or a report carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub kind: NoticeKind,
    pub event: NoticeEvent,
    /// LID of the port that issued the notice.
    pub issuer_lid: Option<LidAddress>,
    /// NoticeToggle: alternates with every notice that leaves the queue of the issuer.
    pub toggle: bool,
    /// Notices queued behind this one, 15 bits.
    pub count: u16,
    /// GID of the port that issued the notice; all zero in traps.
    pub issuer_gid: Gid,
}

/// The event that a notice reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeEvent {
    /// Defined by the specification.
    Generic { producer: Producer, trap: Trap },
    /// Defined by a vendor; the vendor id has 24 bits.
    Vendor { vendor_id: u32, device_id: u16, details: [u8; DETAILS_LEN] },
}

impl Notice {
    /// Length of a report's notice in bytes; a trap carries the first [`SMP_DATA_LEN`] of them.
    pub const LEN: usize = RawNotice::LEN;

    /// A generic notice with the kind and producer that the specification gives the trap (adapter where any node may send
    /// it), toggle and count 0, and no issuer GID.
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

    /// The trap; `None` for a vendor's event.
    pub fn trap(&self) -> Option<&Trap> {
        match &self.event {
            NoticeEvent::Generic { trap, .. } => Some(trap),
            NoticeEvent::Vendor { .. } => None,
        }
    }

    /// Decodes the 80 bytes of a report.
    ///
    /// # Errors
    ///
    /// [`LayoutError::TooShort`] if `raw` has fewer than 80 bytes, [`LayoutError::BadField`] if a field or a field of the
    /// trap's details holds an invalid value.
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

    /// Decodes the 64 bytes of a trap; the issuer GID is all zero.
    ///
    /// # Errors
    ///
    /// [`LayoutError::BadField`] if a field or a field of the trap's details holds an invalid value.
    pub fn decode_smp(raw: &[u8; SMP_DATA_LEN]) -> Result<Self, LayoutError> {
        let mut whole = [0; Self::LEN];
        whole[..SMP_DATA_LEN].copy_from_slice(raw);
        Self::decode(&whole)
    }

    /// Encodes the 80 bytes of a report.
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

    /// Encodes the 64 bytes of a trap; the issuer GID is lost.
    pub fn encode_smp(&self) -> [u8; SMP_DATA_LEN] {
        let mut data = [0; SMP_DATA_LEN];
        data.copy_from_slice(&self.encode()[..SMP_DATA_LEN]);
        data
    }
}

wire_enum! {
    /// Type of a notice, by severity or by subject.
    pub enum NoticeKind {
        Fatal = 0,
        Urgent = 1,
        /// A datagram or packet had a wrong key.
        Security = 2,
        SubnetManagement = 3,
        Informational = 4,
        /// The notice queue is empty.
        Empty = 0x7f,
    }
}

/// ProducerType: the type of node that issued a generic notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Producer {
    Adapter,
    Switch,
    Router,
    /// The manager of the class; in subnet administration the subnet manager.
    ClassManager,
    /// Any other code, 24 bits, kept as received.
    Unknown(u32),
}

impl Producer {
    /// Decodes a code; every code has a value.
    pub const fn from_wire(number: u32) -> Self {
        match number {
            1 => Self::Adapter,
            2 => Self::Switch,
            3 => Self::Router,
            4 => Self::ClassManager,
            other => Self::Unknown(other),
        }
    }

    /// The wire code, 24 bits.
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
    fn a_trap_drops_only_the_issuer_gid() {
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
    fn a_vendor_notice_survives_a_round_trip() {
        let notice = Notice {
            kind: NoticeKind::Informational,
            event: NoticeEvent::Vendor { vendor_id: 0x2c9, device_id: 128, details: [9; DETAILS_LEN] },
            issuer_lid: None,
            toggle: false,
            count: 0,
            issuer_gid: Gid::default(),
        };
        assert_eq!(Notice::decode(&notice.encode()), Ok(notice.clone()));
        assert_eq!(notice.trap(), None, "device id 128 of a vendor is not trap 128");
    }
}
