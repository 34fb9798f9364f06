//! The 256-byte management datagram and its common header.

use std::fmt;

use crate::bits::{Field, WireValue, bytes};

/// Length of every management datagram in bytes.
pub const MAD_LEN: usize = 256;

const BASE_VERSION: Field = bytes(0, 1);
const CLASS: Field = bytes(1, 1);
const CLASS_VERSION: Field = bytes(2, 1);
const METHOD: Field = bytes(3, 1);
const STATUS: Field = bytes(4, 2);
const TRANSACTION: Field = bytes(8, 8);
const ATTRIBUTE: Field = bytes(16, 2);
const MODIFIER: Field = bytes(20, 4);

/// A management datagram (MAD): 256 bytes in wire order, with accessors for the fields that every class has.
///
/// Accessors work on any bytes and never fail; they do not check that the datagram is valid.
#[derive(Clone, PartialEq, Eq)]
pub struct Mad(pub [u8; MAD_LEN]);

impl Mad {
    /// A datagram with base version 1, the version of its class, status 0 and transaction 0; all other bytes are 0.
    pub fn new(class: ManagementClass, method: Method, attribute: Attribute, modifier: u32) -> Self {
        let mut mad = Self([0; MAD_LEN]);
        BASE_VERSION.put(&mut mad.0, 1);
        CLASS.put(&mut mad.0, u64::from(class.0));
        CLASS_VERSION.put(&mut mad.0, u64::from(class.version()));
        mad.set_method(method);
        mad.set_attribute(attribute);
        mad.set_modifier(modifier);
        mad
    }

    /// Whether base version and class version are those this crate knows. Other datagrams must not be interpreted.
    pub fn has_known_versions(&self) -> bool {
        BASE_VERSION.get(&self.0) == 1 && CLASS_VERSION.get(&self.0) == u64::from(self.class().version())
    }

    /// The management class, byte 1.
    #[inline]
    pub fn class(&self) -> ManagementClass {
        ManagementClass(CLASS.get(&self.0) as u8)
    }

    /// The method, byte 3.
    #[inline]
    pub fn method(&self) -> Method {
        Method(METHOD.get(&self.0) as u8)
    }

    /// Sets the method; nothing else changes.
    #[inline]
    pub fn set_method(&mut self, method: Method) {
        METHOD.put(&mut self.0, u64::from(method.0));
    }

    /// The status, bytes 4 and 5, without the direction bit of directed-route SMPs.
    #[inline]
    pub fn status(&self) -> Status {
        let raw = STATUS.get(&self.0) as u16;
        Status(if self.class() == ManagementClass::SUBNET_DIRECTED { raw & 0x7fff } else { raw })
    }

    /// Sets the status and keeps the direction bit of directed-route SMPs.
    #[inline]
    pub fn set_status(&mut self, status: Status) {
        let direction = if self.class() == ManagementClass::SUBNET_DIRECTED { self.0[4] & 0x80 } else { 0 };
        STATUS.put(&mut self.0, u64::from(status.0));
        self.0[4] |= direction;
    }

    /// The transaction identifier, bytes 8 to 15.
    #[inline]
    pub fn transaction(&self) -> TransactionId {
        TransactionId(TRANSACTION.get(&self.0))
    }

    /// Sets the transaction identifier, bytes 8 to 15.
    #[inline]
    pub fn set_transaction(&mut self, id: TransactionId) {
        TRANSACTION.put(&mut self.0, id.0);
    }

    /// The attribute, bytes 16 and 17.
    #[inline]
    pub fn attribute(&self) -> Attribute {
        Attribute(ATTRIBUTE.get(&self.0) as u16)
    }

    /// Sets the attribute; nothing else changes.
    #[inline]
    pub fn set_attribute(&mut self, attribute: Attribute) {
        ATTRIBUTE.put(&mut self.0, u64::from(attribute.0));
    }

    /// The attribute modifier, bytes 20 to 23; its meaning depends on the attribute.
    #[inline]
    pub fn modifier(&self) -> u32 {
        MODIFIER.get(&self.0) as u32
    }

    /// Sets the attribute modifier, bytes 20 to 23.
    #[inline]
    pub fn set_modifier(&mut self, modifier: u32) {
        MODIFIER.put(&mut self.0, u64::from(modifier));
    }
}

impl fmt::Debug for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Mad({:?} {:?} {:?} modifier {:#x} {:?} {:?})",
            self.class(),
            self.method(),
            self.attribute(),
            self.modifier(),
            self.status(),
            self.transaction()
        )
    }
}

/// A transaction identifier (TID): a response carries that of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u64);

macro_rules! named_numbers {
    ($(#[$meta:meta])* $name:ident($raw:ty) { $( $(#[$item_meta:meta])* $item:ident = $code:literal, )* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $raw);

        impl $name {
            $( $(#[$item_meta])* pub const $item: Self = Self($code); )*
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $( $code => f.write_str(stringify!($item)), )*
                    other => write!(f, concat!(stringify!($name), "({:#x})"), other),
                }
            }
        }

        impl WireValue for $name {
            const MAX_BITS: usize = <$raw>::BITS as usize;
            #[inline]
            fn read(raw: &[u8], field: Field) -> Option<Self> {
                <$raw>::read(raw, field).map(Self)
            }
            #[inline]
            fn write(&self, raw: &mut [u8], field: Field) {
                self.0.write(raw, field);
            }
        }
    };
}

named_numbers! {
    /// A management class; every number is a valid class, those without a name included.
    ManagementClass(u8) {
        /// Subnet management, routed by LID.
        SUBNET_LID = 0x01,
        /// Subnet management, routed by a directed route.
        SUBNET_DIRECTED = 0x81,
        SUBNET_ADMINISTRATION = 0x03,
        PERFORMANCE = 0x04,
        /// Device management (I/O units), used by SRP.
        DEVICE = 0x06,
        /// Connection setup (the communication manager, CM).
        COMMUNICATION = 0x07,
        CONGESTION = 0x21,
    }
}

impl ManagementClass {
    /// The class version in use: 2 for subnet administration, communication management and congestion control, else 1.
    pub const fn version(self) -> u8 {
        match self {
            Self::SUBNET_ADMINISTRATION | Self::COMMUNICATION | Self::CONGESTION => 2,
            _ => 1,
        }
    }

    /// Whether datagrams of this class are SMPs, which use QP0 and VL15.
    #[inline]
    pub const fn is_subnet_management(self) -> bool {
        self.0 == Self::SUBNET_LID.0 || self.0 == Self::SUBNET_DIRECTED.0
    }
}

named_numbers! {
    /// A method; bit 7 marks responses.
    Method(u8) {
        GET = 0x01,
        SET = 0x02,
        /// A datagram that has no response.
        SEND = 0x03,
        /// A notice from a device, repeated until it is repressed.
        TRAP = 0x05,
        /// A notice that the SA forwards to a subscriber.
        REPORT = 0x06,
        /// Stops the repetition of a trap.
        TRAP_REPRESS = 0x07,
        /// SA: get all records that match.
        GET_TABLE = 0x12,
        /// SA: get the hops of paths.
        GET_TRACE_TABLE = 0x13,
        /// SA: get paths between several sources and destinations.
        GET_MULTI = 0x14,
        DELETE = 0x15,
        /// Response to Get and Set.
        GET_RESP = 0x81,
        REPORT_RESP = 0x86,
        GET_TABLE_RESP = 0x92,
        GET_MULTI_RESP = 0x94,
        DELETE_RESP = 0x95,
    }
}

impl Method {
    /// The bit of a method that marks responses.
    pub const RESPONSE_BIT: u8 = 0x80;

    /// Whether bit 7 marks a response. TrapRepress, which responds to a trap, does not have it.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.0 & Self::RESPONSE_BIT != 0
    }
}

named_numbers! {
    /// The status of a response. The low byte means the same in every class; the high byte belongs to the class.
    Status(u16) {
        OK = 0x0000,
        /// The request was discarded; the requester may send it again.
        BUSY = 0x0001,
        /// Send the request to the port that ClassPortInfo names.
        REDIRECT = 0x0002,
        /// The class, or this version of it, is not supported.
        BAD_VERSION = 0x0004,
        UNSUPPORTED_METHOD = 0x0008,
        /// The attribute does not support the method.
        UNSUPPORTED_ATTRIBUTE = 0x000c,
        /// A field of the attribute, or the modifier, holds an invalid value.
        INVALID_FIELD = 0x001c,
        SA_NO_RESOURCES = 0x0100,
        SA_REQUEST_INVALID = 0x0200,
        SA_NO_RECORDS = 0x0300,
        /// More than one record matches a Get.
        SA_TOO_MANY_RECORDS = 0x0400,
        SA_INVALID_GID = 0x0500,
        /// The component mask lacks a component that the request needs.
        SA_INSUFFICIENT_COMPONENTS = 0x0600,
        /// The requester may not read or change the record.
        SA_DENIED = 0x0700,
    }
}

named_numbers! {
    /// An attribute identifier. The same number means different attributes in different classes; `Debug` shows the name
    /// that the number has in subnet management.
    Attribute(u16) {
        /// Common to all classes but subnet management: [`ClassPortInfo`](crate::ClassPortInfo).
        CLASS_PORT_INFO = 0x0001,
        /// Common to all classes: [`Notice`](crate::notice::Notice).
        NOTICE = 0x0002,
        /// Common to all classes: [`InformInfo`](crate::notice::InformInfo).
        INFORM_INFO = 0x0003,
        NODE_DESCRIPTION = 0x0010,
        NODE_INFO = 0x0011,
        SWITCH_INFO = 0x0012,
        /// The modifier is the block of 8 GUIDs.
        GUID_INFO = 0x0014,
        /// The modifier is the port number, see [`PortInfo`](crate::PortInfo).
        PORT_INFO = 0x0015,
        /// The modifier is a [`PkeyBlockSelector`](crate::PkeyBlockSelector).
        PKEY_TABLE = 0x0016,
        /// SLtoVLMappingTable. The modifier is an [`SlToVlSelector`](crate::SlToVlSelector).
        SL_TO_VL = 0x0017,
        /// VLArbitrationTable. The modifier is a [`VlArbPart`](crate::VlArbPart) with a port.
        VL_ARBITRATION = 0x0018,
        /// LinearForwardingTable. The modifier is the block of 64 LIDs.
        LINEAR_FORWARDING = 0x0019,
        /// MulticastForwardingTable. The modifier is a block of 32 groups and a position of 16 ports.
        MULTICAST_FORWARDING = 0x001b,
        SM_INFO = 0x0020,
        /// AdaptiveRoutingInfo of Mellanox.
        ADAPTIVE_ROUTING_INFO = 0xff20,
        /// ExtendedPortInfo of Mellanox, for FDR10.
        MLNX_EXT_PORT_INFO = 0xff90,
    }
}

/// Attributes of performance management and subnet administration, whose numbers other classes use differently.
impl Attribute {
    /// Performance management: 32-bit counters.
    pub const PORT_COUNTERS: Self = Self(0x0012);
    /// Performance management: 64-bit counters.
    pub const PORT_COUNTERS_EXT: Self = Self(0x001d);
    /// PortXmitDataSL: data sent, by service level.
    pub const PORT_XMIT_DATA_SL: Self = Self(0x0036);
    /// PortRcvDataSL: data received, by service level.
    pub const PORT_RCV_DATA_SL: Self = Self(0x0037);
    // Records of the subnet administration.
    pub const NODE_RECORD: Self = Self(0x0011);
    pub const PORT_INFO_RECORD: Self = Self(0x0012);
    pub const SL_TO_VL_RECORD: Self = Self(0x0013);
    pub const SWITCH_INFO_RECORD: Self = Self(0x0014);
    pub const LINEAR_FORWARDING_RECORD: Self = Self(0x0015);
    pub const MULTICAST_FORWARDING_RECORD: Self = Self(0x0017);
    pub const SM_INFO_RECORD: Self = Self(0x0018);
    pub const LINK_RECORD: Self = Self(0x0020);
    pub const GUID_INFO_RECORD: Self = Self(0x0030);
    pub const SERVICE_RECORD: Self = Self(0x0031);
    pub const PKEY_TABLE_RECORD: Self = Self(0x0033);
    pub const PATH_RECORD: Self = Self(0x0035);
    pub const VL_ARBITRATION_RECORD: Self = Self(0x0036);
    pub const MC_MEMBER_RECORD: Self = Self(0x0038);
    pub const MULTI_PATH_RECORD: Self = Self(0x003a);
    pub const INFORM_INFO_RECORD: Self = Self(0x00f3);
}
