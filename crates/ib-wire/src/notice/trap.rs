//! Generic traps: their numbers and the 54 bytes of details each number has.

use super::{NoticeKind, Producer};
use crate::address::{Gid, Guid, LidAddress, PortNum};
use crate::bits::{Field, LayoutError, WireValue, bits, bytes};
use crate::datagram::QueuePair;
use crate::keys::{MKey, Pkey, QKey};
use crate::lanes::ServiceLevel;
use crate::mad::{Attribute, Method};
use crate::port_info::Capability;

/// Bytes of a notice that depend on its trap number.
pub const DETAILS_LEN: usize = 54;

macro_rules! traps {
    ($( $(#[$meta:meta])* $variant:ident($details:ty) = $number:literal, $kind:ident, $producer:ident; )*) => {
        /// What happened, for the trap numbers the specification gives to subnet management.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Trap {
            $( $(#[$meta])* $variant($details), )*
            /// A number this crate has no name for.
            Other {
                /// The trap number.
                number: u16,
                /// What it says.
                details: [u8; DETAILS_LEN],
            },
        }

        impl Trap {
            /// The trap number.
            pub const fn number(&self) -> u16 {
                match self { $( Self::$variant(_) => $number, )* Self::Other { number, .. } => *number }
            }

            /// Reads the details of a trap.
            pub fn decode(number: u16, details: &[u8; DETAILS_LEN]) -> Result<Self, LayoutError> {
                Ok(match number {
                    $( $number => Self::$variant(<$details>::decode(details)?), )*
                    _ => Self::Other { number, details: *details },
                })
            }

            /// The details.
            pub fn encode(&self) -> [u8; DETAILS_LEN] {
                match self { $( Self::$variant(details) => details.encode(), )* Self::Other { details, .. } => *details }
            }

            /// How grave the specification holds it to be.
            pub(super) const fn default_kind(&self) -> NoticeKind {
                match self {
                    $( Self::$variant(_) => NoticeKind::$kind, )*
                    Self::Other { .. } => NoticeKind::Informational,
                }
            }

            /// Who reports it; adapters stand for any kind of node.
            pub(super) const fn default_producer(&self) -> Producer {
                match self {
                    $( Self::$variant(_) => Producer::$producer, )*
                    Self::Other { .. } => Producer::Adapter,
                }
            }
        }
    };
}

traps! {
    /// A port can be reached.
    GidInService(GidEvent) = 64, SubnetManagement, ClassManager;
    /// A port can no longer be reached.
    GidOutOfService(GidEvent) = 65, SubnetManagement, ClassManager;
    /// A multicast group has its first member.
    GroupCreated(GidEvent) = 66, SubnetManagement, ClassManager;
    /// A multicast group lost its last member.
    GroupDeleted(GidEvent) = 67, SubnetManagement, ClassManager;
    /// A port of a switch changed its state.
    LinkStateChanged(SwitchEvent) = 128, Urgent, Switch;
    /// Too many errors on a link.
    LinkIntegrity(PortEvent) = 129, Urgent, Adapter;
    /// Too many buffer overruns.
    BufferOverrun(PortEvent) = 130, Urgent, Adapter;
    /// No flow control update in time.
    WatchdogExpired(PortEvent) = 131, Urgent, Switch;
    /// Capabilities, description, width, speed or priority changed at a port.
    LocalChange(LocalChange) = 144, Informational, Adapter;
    /// A node has a new system GUID.
    SystemGuidChanged(SystemGuidChange) = 145, Informational, Adapter;
    /// A datagram with a wrong management key.
    BadMKey(BadMKey) = 256, Security, Adapter;
    /// A packet with a wrong partition key.
    BadPkey(BadPkey) = 257, Security, Adapter;
    /// A packet with a wrong queue key.
    BadQKey(BadQKey) = 258, Security, Adapter;
    /// A packet with a wrong partition key at an external port of a switch.
    SwitchBadPkey(SwitchBadPkey) = 259, Security, Switch;
}

layout! {
    /// Details of traps 64 to 67.
    pub struct GidEvent[54] {
        /// The port or group.
        gid: Gid = bytes(6, 16),
    }
}

layout! {
    /// Details of trap 128.
    pub struct SwitchEvent[54] {
        /// The switch.
        lid: Option<LidAddress> = bytes(0, 2),
    }
}

layout! {
    /// Details of traps 129 to 131.
    pub struct PortEvent[54] {
        /// The node.
        lid: Option<LidAddress> = bytes(2, 2),
        /// Its port.
        port: PortNum = bytes(4, 1),
    }
}

layout! {
    /// Details of trap 144.
    pub struct LocalChange[54] {
        /// The port.
        lid: Option<LidAddress> = bytes(2, 2),
        /// Whether `changes` counts; if not, the capabilities changed.
        other_changes: bool = bits(5, 0, 0),
        /// The capabilities as they are now.
        capability: Capability = bytes(6, 4),
        /// What else changed.
        changes: LocalChangeFlags = bytes(10, 2),
    }
}

layout! {
    /// Details of trap 145.
    pub struct SystemGuidChange[54] {
        /// The port.
        lid: Option<LidAddress> = bytes(2, 2),
        /// The system GUID as it is now.
        system_guid: Option<Guid> = bytes(6, 8),
    }
}

layout! {
    /// Details of trap 256.
    pub struct BadMKey[54] {
        /// Who sent the datagram.
        lid: Option<LidAddress> = bytes(2, 2),
        /// Where its directed part started.
        directed_source: Option<LidAddress> = bytes(4, 2),
        /// Its method.
        method: Method = bytes(6, 1),
        /// Its attribute.
        attribute: Attribute = bytes(8, 2),
        /// Its modifier.
        modifier: u32 = bytes(10, 4),
        /// The key it presented.
        m_key: Option<MKey> = bytes(14, 8),
        /// Whether it came by a directed route; if not, the fields that follow mean nothing.
        is_directed: bool = bits(23, 7, 7),
        /// Whether the return path is cut.
        is_truncated: bool = bits(23, 6, 6),
        /// How many bytes of the return path count.
        hop_count: u8 = bits(23, 5, 0),
        /// The way back, as far as it fits.
        return_path: [u8; 30] = bytes(24, 30),
    }
}

layout! {
    /// Details of trap 257.
    pub struct BadPkey[54] {
        /// Who sent the packet.
        source: Option<LidAddress> = bytes(2, 2),
        /// Whom it was for.
        destination: Option<LidAddress> = bytes(4, 2),
        /// The key it carried: the lower half of a 32-bit field.
        pkey: Option<Pkey> = bytes(8, 2),
        /// Its service level.
        sl: ServiceLevel = bits(10, 7, 4),
        /// The sending queue pair.
        source_qp: QueuePair = bytes(11, 3),
        /// The receiving queue pair.
        destination_qp: QueuePair = bytes(15, 3),
        /// Sender.
        source_gid: Gid = bytes(18, 16),
        /// Receiver.
        destination_gid: Gid = bytes(34, 16),
    }
}

layout! {
    /// Details of trap 258.
    pub struct BadQKey[54] {
        /// Who sent the packet.
        source: Option<LidAddress> = bytes(2, 2),
        /// Whom it was for.
        destination: Option<LidAddress> = bytes(4, 2),
        /// The key it carried.
        qkey: QKey = bytes(6, 4),
        /// Its service level.
        sl: ServiceLevel = bits(10, 7, 4),
        /// The sending queue pair.
        source_qp: QueuePair = bytes(11, 3),
        /// The receiving queue pair.
        destination_qp: QueuePair = bytes(15, 3),
        /// Sender.
        source_gid: Gid = bytes(18, 16),
        /// Receiver.
        destination_gid: Gid = bytes(34, 16),
    }
}

layout! {
    /// Details of trap 259.
    pub struct SwitchBadPkey[54] {
        /// Which of the following fields count, one bit each.
        valid: u16 = bytes(0, 2),
        /// Who sent the packet.
        source: Option<LidAddress> = bytes(2, 2),
        /// Whom it was for.
        destination: Option<LidAddress> = bytes(4, 2),
        /// The key it carried.
        pkey: Option<Pkey> = bytes(6, 2),
        /// Its service level.
        sl: ServiceLevel = bits(8, 7, 4),
        /// The sending queue pair.
        source_qp: QueuePair = bytes(9, 3),
        /// The receiving queue pair.
        destination_qp: QueuePair = bytes(13, 3),
        /// Sender.
        source_gid: Gid = bytes(16, 16),
        /// Receiver.
        destination_gid: Gid = bytes(32, 16),
        /// The switch.
        switch_lid: Option<LidAddress> = bytes(48, 2),
        /// Its port.
        port: PortNum = bytes(50, 1),
    }
}

/// What changed at a port, besides its capabilities: one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LocalChangeFlags(pub u16);

impl LocalChangeFlags {
    /// The node's description.
    pub const NODE_DESCRIPTION: Self = Self(0x01);
    /// The widths allowed.
    pub const LINK_WIDTH_ENABLED: Self = Self(0x02);
    /// The speeds allowed.
    pub const LINK_SPEED_ENABLED: Self = Self(0x04);
    /// The priority of the subnet manager behind the port.
    pub const SM_PRIORITY: Self = Self(0x08);
    /// The hierarchy information.
    pub const HIERARCHY_INFO: Self = Self(0x10);
    /// The extended speeds allowed.
    pub const EXTENDED_SPEED_ENABLED: Self = Self(0x20);

    /// Whether all of `other` is in this set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl WireValue for LocalChangeFlags {
    const MAX_BITS: usize = 16;
    fn read(raw: &[u8], field: Field) -> Option<Self> {
        u16::read(raw, field).map(Self)
    }
    fn write(&self, raw: &mut [u8], field: Field) {
        self.0.write(raw, field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_number_reads_as_its_own_trap() {
        for number in [64, 65, 66, 67, 128, 129, 130, 131, 144, 145, 256, 257, 258, 259] {
            let trap = Trap::decode(number, &[0; DETAILS_LEN]).unwrap();
            assert_eq!(trap.number(), number);
            assert!(!matches!(trap, Trap::Other { .. }), "{number}");
        }
        assert!(matches!(Trap::decode(132, &[0; DETAILS_LEN]), Ok(Trap::Other { number: 132, .. })));
    }

    /// Bytes at their parts, the rest 0.
    fn details(parts: &[(usize, &[u8])]) -> [u8; DETAILS_LEN] {
        let mut raw = [0; DETAILS_LEN];
        for (at, bytes) in parts {
            raw[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        raw
    }

    #[test]
    fn a_wrong_management_key_is_reported_with_the_datagram_that_presented_it() {
        let raw = details(&[
            (2, &[0, 7, 0xff, 0xff, 2, 0, 0, 0x15, 0x80, 0, 0, 3]),
            (14, &[0, 0, 0, 0, 0, 0, 0, 9, 0, 0xc2, 0, 4, 5]),
        ]);
        let Ok(Trap::BadMKey(event)) = Trap::decode(256, &raw) else { panic!("not trap 256") };
        assert_eq!(
            (event.lid, event.directed_source),
            (LidAddress::from_wire(7), Some(LidAddress::Permissive))
        );
        assert_eq!(
            (event.method, event.attribute, event.modifier),
            (Method::SET, Attribute::PORT_INFO, 0x8000_0003)
        );
        assert_eq!(event.m_key, MKey::from_wire(9));
        assert_eq!((event.is_directed, event.is_truncated, event.hop_count), (true, true, 2));
        assert_eq!(event.return_path[..3], [0, 4, 5]);
    }

    #[test]
    fn a_wrong_partition_or_queue_key_is_reported_with_its_packet() {
        let parts: &[(usize, &[u8])] = &[
            (2, &[0, 1, 0, 2, 0, 0, 0x81, 1, 0x30, 0, 0, 4, 0, 0, 0, 5]),
            (18, &[0xa; 16]),
            (34, &[0xb; 16]),
        ];
        let Ok(Trap::BadPkey(event)) = Trap::decode(257, &details(parts)) else { panic!("not trap 257") };
        assert_eq!((event.source, event.destination), (LidAddress::from_wire(1), LidAddress::from_wire(2)));
        assert_eq!((event.pkey, event.sl.to_wire()), (Pkey::from_wire(0x8101), 3));
        assert_eq!((event.source_qp.to_wire(), event.destination_qp.to_wire()), (4, 5));
        assert_eq!((event.source_gid, event.destination_gid), (Gid([0xa; 16]), Gid([0xb; 16])));
        let Ok(Trap::BadQKey(event)) = Trap::decode(258, &details(parts)) else { panic!("not trap 258") };
        assert_eq!(event.qkey, QKey::from_wire(0x8101));
    }

    #[test]
    fn a_wrong_partition_key_at_a_switch_is_reported_with_its_port() {
        let raw = details(&[
            (0, &[0, 0x1f, 0, 1, 0, 2, 0x81, 1, 0x30, 0, 0, 4, 0, 0, 0, 5]),
            (16, &[0xa; 16]),
            (32, &[0xb; 16]),
            (48, &[0, 6, 17]),
        ]);
        let Ok(Trap::SwitchBadPkey(event)) = Trap::decode(259, &raw) else { panic!("not trap 259") };
        assert_eq!((event.valid, event.pkey, event.sl.to_wire()), (0x1f, Pkey::from_wire(0x8101), 3));
        assert_eq!((event.source_qp.to_wire(), event.destination_qp.to_wire()), (4, 5));
        assert_eq!((event.switch_lid, event.port.to_wire()), (LidAddress::from_wire(6), 17));
    }

    #[test]
    fn a_reported_key_does_not_print() {
        let mut details = [0; DETAILS_LEN];
        details[14..22].copy_from_slice(&0xdead_beef_u64.to_be_bytes());
        let trap = Trap::decode(256, &details).unwrap();
        assert!(format!("{trap:?} {trap:x?}").contains("MKey(set)"));
        assert!(!format!("{trap:x?}").contains("dead"));
    }
}
