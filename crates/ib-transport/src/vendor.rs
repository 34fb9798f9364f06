//! Identity of an adapter.

/// The payload of GET_VENDOR of the ibsim protocol: vendor, device and versions of an adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vendor {
    /// IEEE OUI of the vendor, 24 bits.
    pub vendor_id: u32,
    /// Device id of the vendor.
    pub part_id: u32,
    pub hardware_version: u32,
    pub firmware_version: u64,
}
