//! Generic traps of subnet management: their numbers and the layout of their details.

use super::{NoticeKind, Producer};
use crate::address::{Gid, Guid, LidAddress, PortNum};
use crate::bits::{Field, LayoutError, WireValue, bits, bytes};
use crate::datagram::QueuePair;
use crate::keys::{MKey, Pkey, QKey};
use crate::lanes::ServiceLevel;
use crate::mad::{Attribute, Method};
use crate::port_info::Capability;

/// Length of the part of a notice that depends on the trap number, in bytes.
pub const DETAILS_LEN: usize = 54;

macro_rules! traps {
    ($( $(#[$meta:meta])* $variant:ident($details:ty) = $number:literal, $kind:ident, $producer:ident; )*) => {
        /// A trap of subnet management, with its details.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Trap {
            $( $(#[$meta])* $variant($details), )*
            /// Any other trap number, with its details as received.
            Other { number: u16, details: [u8; DETAILS_LEN] },
        }

        impl Trap {
            /// The trap number on the wire.
            pub const fn number(&self) -> u16 {
                match self { $( Self::$variant(_) => $number, )* Self::Other { number, .. } => *number }
            }

            /// Decodes the details of a trap.
            ///
            /// # Errors
            ///
            /// [`LayoutError::BadField`] if a field holds an invalid value.
            pub fn decode(number: u16, details: &[u8; DETAILS_LEN]) -> Result<Self, LayoutError> {
                Ok(match number {
                    $( $number => Self::$variant(<$details>::decode(details)?), )*
                    _ => Self::Other { number, details: *details },
                })
            }

            /// Encodes the details as on the wire.
            pub fn encode(&self) -> [u8; DETAILS_LEN] {
                match self { $( Self::$variant(details) => details.encode(), )* Self::Other { details, .. } => *details }
            }

            /// The notice type that the specification gives the trap.
            pub(super) const fn default_kind(&self) -> NoticeKind {
                match self {
                    $( Self::$variant(_) => NoticeKind::$kind, )*
                    Self::Other { .. } => NoticeKind::Informational,
                }
            }

            /// The type of node that sends the trap; `Adapter` for traps that any node may send.
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
    /// A port is in service again, or for the first time.
    GidInService(GidEvent) = 64, SubnetManagement, ClassManager;
    /// A port is out of service.
    GidOutOfService(GidEvent) = 65, SubnetManagement, ClassManager;
    /// A multicast group was created.
    GroupCreated(GidEvent) = 66, SubnetManagement, ClassManager;
    /// A multicast group was deleted.
    GroupDeleted(GidEvent) = 67, SubnetManagement, ClassManager;
    /// The state of a port of a switch changed.
    LinkStateChanged(SwitchEvent) = 128, Urgent, Switch;
    /// Local link integrity threshold reached.
    LinkIntegrity(PortEvent) = 129, Urgent, Adapter;
    /// Excessive buffer overrun threshold reached.
    BufferOverrun(PortEvent) = 130, Urgent, Adapter;
    /// Flow control update watchdog timer expired.
    WatchdogExpired(PortEvent) = 131, Urgent, Switch;
    /// The capability mask, node description, enabled width or speed, or SM priority of a port changed.
    LocalChange(LocalChange) = 144, Informational, Adapter;
    /// The system image GUID of a node changed.
    SystemGuidChanged(SystemGuidChange) = 145, Informational, Adapter;
    /// An SMP with a wrong M_Key was received.
    BadMKey(BadMKey) = 256, Security, Adapter;
    /// A packet with a wrong P_Key was received.
    BadPkey(BadPkey) = 257, Security, Adapter;
    /// A packet with a wrong Q_Key was received.
    BadQKey(BadQKey) = 258, Security, Adapter;
    /// A packet with a wrong P_Key was seen at an external port of a switch.
    SwitchBadPkey(SwitchBadPkey) = 259, Security, Switch;
}

layout! {
    /// Details of traps 64 to 67.
    pub struct GidEvent[54] {
        /// The GID of the port, or of the multicast group.
        gid: Gid = bytes(6, 16),
    }
}

layout! {
    /// Details of trap 128.
    pub struct SwitchEvent[54] {
        /// LID of the switch.
        lid: Option<LidAddress> = bytes(0, 2),
    }
}

layout! {
    /// Details of traps 129 to 131.
    pub struct PortEvent[54] {
        /// LID of the node.
        lid: Option<LidAddress> = bytes(2, 2),
        port: PortNum = bytes(4, 1),
    }
}

layout! {
    /// Details of trap 144.
    pub struct LocalChange[54] {
        /// LID of the port.
        lid: Option<LidAddress> = bytes(2, 2),
        /// OtherLocalChanges: whether `changes` is valid; if not, the capability mask changed.
        other_changes: bool = bits(5, 0, 0),
        /// The current capability mask.
        capability: Capability = bytes(6, 4),
        changes: LocalChangeFlags = bytes(10, 2),
    }
}

layout! {
    /// Details of trap 145.
    pub struct SystemGuidChange[54] {
        /// LID of the port.
        lid: Option<LidAddress> = bytes(2, 2),
        /// The current system image GUID.
        system_guid: Option<Guid> = bytes(6, 8),
    }
}

layout! {
    /// Details of trap 256.
    pub struct BadMKey[54] {
        /// Source LID of the SMP.
        lid: Option<LidAddress> = bytes(2, 2),
        /// DrSLID of the SMP.
        directed_source: Option<LidAddress> = bytes(4, 2),
        method: Method = bytes(6, 1),
        attribute: Attribute = bytes(8, 2),
        modifier: u32 = bytes(10, 4),
        /// The M_Key of the SMP.
        m_key: Option<MKey> = bytes(14, 8),
        /// DRNotice: whether the SMP was directed-route; if not, the following fields are not valid.
        is_directed: bool = bits(23, 7, 7),
        /// Whether the return path is truncated.
        is_truncated: bool = bits(23, 6, 6),
        /// Number of valid bytes of the return path.
        hop_count: u8 = bits(23, 5, 0),
        return_path: [u8; 30] = bytes(24, 30),
    }
}

layout! {
    /// Details of trap 257.
    pub struct BadPkey[54] {
        /// Source LID of the packet.
        source: Option<LidAddress> = bytes(2, 2),
        /// Destination LID of the packet.
        destination: Option<LidAddress> = bytes(4, 2),
        /// The P_Key of the packet, in the lower half of a 32-bit field.
        pkey: Option<Pkey> = bytes(8, 2),
        sl: ServiceLevel = bits(10, 7, 4),
        source_qp: QueuePair = bytes(11, 3),
        destination_qp: QueuePair = bytes(15, 3),
        source_gid: Gid = bytes(18, 16),
        destination_gid: Gid = bytes(34, 16),
    }
}

layout! {
    /// Details of trap 258.
    pub struct BadQKey[54] {
        /// Source LID of the packet.
        source: Option<LidAddress> = bytes(2, 2),
        /// Destination LID of the packet.
        destination: Option<LidAddress> = bytes(4, 2),
        /// The Q_Key of the packet.
        qkey: QKey = bytes(6, 4),
        sl: ServiceLevel = bits(10, 7, 4),
        source_qp: QueuePair = bytes(11, 3),
        destination_qp: QueuePair = bytes(15, 3),
        source_gid: Gid = bytes(18, 16),
        destination_gid: Gid = bytes(34, 16),
    }
}

layout! {
    /// Details of trap 259.
    pub struct SwitchBadPkey[54] {
        /// Which of the following fields are valid, one bit each.
        valid: u16 = bytes(0, 2),
        /// Source LID of the packet.
        source: Option<LidAddress> = bytes(2, 2),
        /// Destination LID of the packet.
        destination: Option<LidAddress> = bytes(4, 2),
        /// The P_Key of the packet.
        pkey: Option<Pkey> = bytes(6, 2),
        sl: ServiceLevel = bits(8, 7, 4),
        source_qp: QueuePair = bytes(9, 3),
        destination_qp: QueuePair = bytes(13, 3),
        source_gid: Gid = bytes(16, 16),
        destination_gid: Gid = bytes(32, 16),
        switch_lid: Option<LidAddress> = bytes(48, 2),
        port: PortNum = bytes(50, 1),
    }
}

/// ChangeFlags of trap 144: what changed at a port besides its capability mask, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LocalChangeFlags(pub u16);

impl LocalChangeFlags {
    pub const NODE_DESCRIPTION: Self = Self(0x01);
    pub const LINK_WIDTH_ENABLED: Self = Self(0x02);
    pub const LINK_SPEED_ENABLED: Self = Self(0x04);
    /// Priority of the subnet manager at the port.
    pub const SM_PRIORITY: Self = Self(0x08);
    pub const HIERARCHY_INFO: Self = Self(0x10);
    pub const EXTENDED_SPEED_ENABLED: Self = Self(0x20);

    /// Whether this set has every flag of `other`.
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
    fn every_known_trap_number_has_its_own_variant() {
        for number in [64, 65, 66, 67, 128, 129, 130, 131, 144, 145, 256, 257, 258, 259] {
            let trap = Trap::decode(number, &[0; DETAILS_LEN]).unwrap();
            assert_eq!(trap.number(), number);
            assert!(!matches!(trap, Trap::Other { .. }), "{number}");
        }
        assert!(matches!(Trap::decode(132, &[0; DETAILS_LEN]), Ok(Trap::Other { number: 132, .. })));
    }

    /// Details with these bytes at these offsets, and 0 elsewhere.
    fn details(parts: &[(usize, &[u8])]) -> [u8; DETAILS_LEN] {
        let mut raw = [0; DETAILS_LEN];
        for (at, bytes) in parts {
            raw[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        raw
    }

    #[test]
    fn trap_256_describes_the_smp_with_the_wrong_m_key() {
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
    fn traps_257_and_258_describe_the_packet_with_the_wrong_key() {
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
    fn trap_259_names_the_switch_port() {
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
    fn debug_output_of_trap_256_hides_the_m_key() {
        let mut details = [0; DETAILS_LEN];
        details[14..22].copy_from_slice(&0xdead_beef_u64.to_be_bytes());
        let trap = Trap::decode(256, &details).unwrap();
        assert!(format!("{trap:?} {trap:x?}").contains("MKey(set)"));
        assert!(!format!("{trap:x?}").contains("dead"));
    }
}
