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

/// A management datagram: 256 bytes and the fields every class has. Reading judges nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Mad(pub [u8; MAD_LEN]);

impl Mad {
    /// A datagram of all zeros but for the common header.
    pub fn new(class: ManagementClass, method: Method, attribute: Attribute, modifier: u32) -> Self {
        let mut mad = Self([0; MAD_LEN]);
        BASE_VERSION.put(&mut mad.0, 1);
        CLASS.put(&mut mad.0, u64::from(class.0));
        CLASS_VERSION.put(&mut mad.0, u64::from(class.version()));
        mad.set_method(method);
        ATTRIBUTE.put(&mut mad.0, u64::from(attribute.0));
        mad.set_modifier(modifier);
        mad
    }

    /// Base and class version as the class demands them; anything else is not to be interpreted.
    pub fn has_known_versions(&self) -> bool {
        BASE_VERSION.get(&self.0) == 1 && CLASS_VERSION.get(&self.0) == u64::from(self.class().version())
    }

    /// The management class.
    #[inline]
    pub fn class(&self) -> ManagementClass {
        ManagementClass(CLASS.get(&self.0) as u8)
    }

    /// The method.
    #[inline]
    pub fn method(&self) -> Method {
        Method(METHOD.get(&self.0) as u8)
    }

    /// Replaces the method.
    #[inline]
    pub fn set_method(&mut self, method: Method) {
        METHOD.put(&mut self.0, u64::from(method.0));
    }

    /// The status, without the direction bit of directed routes.
    #[inline]
    pub fn status(&self) -> Status {
        let raw = STATUS.get(&self.0) as u16;
        Status(if self.class() == ManagementClass::SUBNET_DIRECTED { raw & 0x7fff } else { raw })
    }

    /// Replaces the status; the direction bit of directed routes stays.
    #[inline]
    pub fn set_status(&mut self, status: Status) {
        let direction = if self.class() == ManagementClass::SUBNET_DIRECTED { self.0[4] & 0x80 } else { 0 };
        STATUS.put(&mut self.0, u64::from(status.0));
        self.0[4] |= direction;
    }

    /// The transaction.
    #[inline]
    pub fn transaction(&self) -> TransactionId {
        TransactionId(TRANSACTION.get(&self.0))
    }

    /// Replaces the transaction.
    #[inline]
    pub fn set_transaction(&mut self, id: TransactionId) {
        TRANSACTION.put(&mut self.0, id.0);
    }

    /// The attribute.
    #[inline]
    pub fn attribute(&self) -> Attribute {
        Attribute(ATTRIBUTE.get(&self.0) as u16)
    }

    /// The attribute modifier.
    #[inline]
    pub fn modifier(&self) -> u32 {
        MODIFIER.get(&self.0) as u32
    }

    /// Replaces the attribute modifier.
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

/// Pairs a response with its request.
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
    /// A management class.
    ManagementClass(u8) {
        /// Subnet management by LID.
        SUBNET_LID = 0x01,
        /// Subnet management by directed route.
        SUBNET_DIRECTED = 0x81,
        /// Subnet administration.
        SUBNET_ADMINISTRATION = 0x03,
        /// Performance management.
        PERFORMANCE = 0x04,
        /// Device management.
        DEVICE = 0x06,
        /// Communication management.
        COMMUNICATION = 0x07,
        /// Congestion control.
        CONGESTION = 0x21,
    }
}

impl ManagementClass {
    /// The class version in use: 2 for subnet administration and congestion control, else 1.
    pub const fn version(self) -> u8 {
        match self {
            Self::SUBNET_ADMINISTRATION | Self::COMMUNICATION | Self::CONGESTION => 2,
            _ => 1,
        }
    }

    /// Whether it travels on QP0 and lane 15.
    #[inline]
    pub const fn is_subnet_management(self) -> bool {
        self.0 == Self::SUBNET_LID.0 || self.0 == Self::SUBNET_DIRECTED.0
    }
}

named_numbers! {
    /// A method.
    Method(u8) {
        /// Read.
        GET = 0x01,
        /// Write.
        SET = 0x02,
        /// Datagram of a class of its own, without an answer.
        SEND = 0x03,
        /// An event, unasked.
        TRAP = 0x05,
        /// An event, forwarded to a subscriber.
        REPORT = 0x06,
        /// Stops the repetition of a trap.
        TRAP_REPRESS = 0x07,
        /// Read several records.
        GET_TABLE = 0x12,
        /// Read a list of paths between many.
        GET_TRACE_TABLE = 0x13,
        /// Read a table of several attributes.
        GET_MULTI = 0x14,
        /// Delete.
        DELETE = 0x15,
        /// Answer to Get and Set.
        GET_RESP = 0x81,
        /// Answer to a report.
        REPORT_RESP = 0x86,
        /// Answer to a read of several records.
        GET_TABLE_RESP = 0x92,
        /// Answer to a read of several attributes.
        GET_MULTI_RESP = 0x94,
        /// Answer to Delete.
        DELETE_RESP = 0x95,
    }
}

impl Method {
    /// Whether it answers a request (bit 7; TrapRepress answers a trap without it).
    #[inline]
    pub const fn is_response(self) -> bool {
        self.0 & 0x80 != 0
    }
}

named_numbers! {
    /// A status as answers carry it.
    Status(u16) {
        /// Done.
        OK = 0x0000,
        /// Busy: discarded, try again.
        BUSY = 0x0001,
        /// Somebody else answers: ask there.
        REDIRECT = 0x0002,
        /// Class or version unknown.
        BAD_VERSION = 0x0004,
        /// Method unknown.
        UNSUPPORTED_METHOD = 0x0008,
        /// Method does not go with the attribute.
        UNSUPPORTED_ATTRIBUTE = 0x000c,
        /// A field of the attribute, or the modifier, holds what it must not.
        INVALID_FIELD = 0x001c,
        /// Subnet administration: out of resources.
        SA_NO_RESOURCES = 0x0100,
        /// Subnet administration: the request makes no sense.
        SA_REQUEST_INVALID = 0x0200,
        /// Subnet administration: nothing matches.
        SA_NO_RECORDS = 0x0300,
        /// Subnet administration: Get matched more than one.
        SA_TOO_MANY_RECORDS = 0x0400,
        /// Subnet administration: GID not valid.
        SA_INVALID_GID = 0x0500,
        /// Subnet administration: too few components.
        SA_INSUFFICIENT_COMPONENTS = 0x0600,
        /// Subnet administration: not allowed.
        SA_DENIED = 0x0700,
    }
}

named_numbers! {
    /// An attribute; the number means different things in different classes.
    Attribute(u16) {
        /// Subnet administration, performance: what the class can do.
        CLASS_PORT_INFO = 0x0001,
        /// An event.
        NOTICE = 0x0002,
        /// Subscription to events.
        INFORM_INFO = 0x0003,
        /// A node's name.
        NODE_DESCRIPTION = 0x0010,
        /// What a node is.
        NODE_INFO = 0x0011,
        /// What a switch can do (subnet management).
        SWITCH_INFO = 0x0012,
        /// GUIDs of a port.
        GUID_INFO = 0x0014,
        /// State of a port.
        PORT_INFO = 0x0015,
        /// Partitions of a port.
        PKEY_TABLE = 0x0016,
        /// Service levels to lanes.
        SL_TO_VL = 0x0017,
        /// Lane arbitration.
        VL_ARBITRATION = 0x0018,
        /// Unicast routes.
        LINEAR_FORWARDING = 0x0019,
        /// Multicast routes.
        MULTICAST_FORWARDING = 0x001b,
        /// State of a subnet manager.
        SM_INFO = 0x0020,
        /// Mellanox: FDR10.
        MLNX_EXT_PORT_INFO = 0xff90,
    }
}

impl Attribute {
    /// Performance: counters of a port, 32 bits.
    pub const PORT_COUNTERS: Self = Self(0x0012);
    /// Performance: counters of a port, 64 bits.
    pub const PORT_COUNTERS_EXT: Self = Self(0x001d);
    /// Subnet administration: a node.
    pub const NODE_RECORD: Self = Self(0x0011);
    /// Subnet administration: a port.
    pub const PORT_INFO_RECORD: Self = Self(0x0012);
    /// Subnet administration: service levels to lanes.
    pub const SL_TO_VL_RECORD: Self = Self(0x0013);
    /// Subnet administration: a switch.
    pub const SWITCH_INFO_RECORD: Self = Self(0x0014);
    /// Subnet administration: unicast routes.
    pub const LINEAR_FORWARDING_RECORD: Self = Self(0x0015);
    /// Subnet administration: multicast routes.
    pub const MULTICAST_FORWARDING_RECORD: Self = Self(0x0017);
    /// Subnet administration: a subnet manager.
    pub const SM_INFO_RECORD: Self = Self(0x0018);
    /// Subnet administration: a link.
    pub const LINK_RECORD: Self = Self(0x0020);
    /// Subnet administration: GUIDs of a port.
    pub const GUID_INFO_RECORD: Self = Self(0x0030);
    /// Subnet administration: a service.
    pub const SERVICE_RECORD: Self = Self(0x0031);
    /// Subnet administration: partitions of a port.
    pub const PKEY_TABLE_RECORD: Self = Self(0x0033);
    /// Subnet administration: a path.
    pub const PATH_RECORD: Self = Self(0x0035);
    /// Subnet administration: lane arbitration.
    pub const VL_ARBITRATION_RECORD: Self = Self(0x0036);
    /// Subnet administration: membership of a multicast group.
    pub const MC_MEMBER_RECORD: Self = Self(0x0038);
    /// Subnet administration: a subscription.
    pub const INFORM_INFO_RECORD: Self = Self(0x00f3);
}
