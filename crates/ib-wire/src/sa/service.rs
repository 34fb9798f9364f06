//! ServiceRecord: services that ports offer.

use std::fmt;

use super::{ComponentMask, record};
use crate::address::Gid;
use crate::bits::{Field, WireValue, bytes, field_named};
use crate::keys::Pkey;

layout! {
    /// ServiceRecord (attribute 0x0031): Set registers a service, Delete removes it.
    pub struct ServiceRecord[176] {
        service_id: u64 = bytes(0, 8),
        /// GID of the port that offers the service.
        gid: Gid = bytes(8, 16),
        /// Partition in which the service is offered.
        pkey: Option<Pkey> = bytes(24, 2),
        /// ServiceLease: seconds until the registration expires; 0xFFFF_FFFF = never.
        lease_s: u32 = bytes(28, 4),
        /// Required to change or delete the record.
        key: ServiceKey = bytes(32, 16),
        /// UTF-8 text, padded with zeros.
        name: [u8; 64] = bytes(48, 64),
        /// Service data: 16 bytes.
        data8: [u8; 16] = bytes(112, 16),
        /// Service data: 8 numbers of 16 bits in wire order.
        data16: [u8; 16] = bytes(128, 16),
        /// Service data: 4 numbers of 32 bits in wire order.
        data32: [u8; 16] = bytes(144, 16),
        /// Service data: 2 numbers of 64 bits in wire order.
        data64: [u8; 16] = bytes(160, 16),
    }
}

record!(ServiceRecord, SERVICE_RECORD {
    SERVICE_ID = 0 => field_named(ServiceRecord::FIELDS, "service_id"),
    GID = 1 => field_named(ServiceRecord::FIELDS, "gid"),
    PKEY = 2 => field_named(ServiceRecord::FIELDS, "pkey"),
    LEASE = 4 => field_named(ServiceRecord::FIELDS, "lease_s"),
    KEY = 5 => field_named(ServiceRecord::FIELDS, "key"),
    NAME = 6 => field_named(ServiceRecord::FIELDS, "name"),
});

/// Components of the service data, one per number.
impl ServiceRecord {
    /// The component of byte `index` of `data8`; `None` above 15.
    pub const fn data8_component(index: u8) -> Option<ComponentMask> {
        component(7, index, 16)
    }

    /// The component of number `index` of `data16`; `None` above 7.
    pub const fn data16_component(index: u8) -> Option<ComponentMask> {
        component(23, index, 8)
    }

    /// The component of number `index` of `data32`; `None` above 3.
    pub const fn data32_component(index: u8) -> Option<ComponentMask> {
        component(31, index, 4)
    }

    /// The component of number `index` of `data64`; `None` above 1.
    pub const fn data64_component(index: u8) -> Option<ComponentMask> {
        component(35, index, 2)
    }
}

/// The key of a service record, 128 bits; all zero means "no key". `Debug` does not show it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct ServiceKey(pub [u8; 16]);

impl WireValue for ServiceKey {
    const MIN_BITS: usize = 128;
    const MAX_BITS: usize = 128;
    fn read(raw: &[u8], field: Field) -> Option<Self> {
        <[u8; 16]>::read(raw, field).map(Self)
    }
    fn write(&self, raw: &mut [u8], field: Field) {
        self.0.write(raw, field);
    }
}

impl fmt::Debug for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::default() { "ServiceKey(none)" } else { "ServiceKey(set)" })
    }
}

const fn component(first_bit: u8, index: u8, count: u8) -> Option<ComponentMask> {
    if index < count { Some(ComponentMask(1 << (first_bit + index))) } else { None }
}
