//! Table sizes that adapters and switches share.

use ib_wire::{DataLanes, Mtu};
use thiserror::Error;

/// Sizes of the strict profile, for fabrics whose adapters and switches do not differ:
/// [`DeviceProfile`](crate::DeviceProfile) is made from them. The default values are those of ibsim 0.10.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// Data lanes of every port (VLCap).
    pub lanes: DataLanes,
    /// P_Key table entries of adapter ports and external switch ports, 1 to 32768.
    pub pkeys: u16,
    /// P_Key table entries of switch port 0, 1 to 32768.
    pub switch_pkeys: u16,
    /// Entries of each VL arbitration table, high and low, 0 to 64.
    pub arbitration_entries: u8,
    /// Entries of the linear forwarding table, 1 to 49152.
    pub linear_forwarding: u16,
    /// Entries of the multicast forwarding table, 0 to 16383.
    pub multicast_forwarding: u16,
    /// GUID table entries of an adapter port, 1 to 255. Entry 0 is the port's own GUID.
    pub guids: u8,
    /// MTUCap of adapter ports and external switch ports.
    pub mtu: Mtu,
    /// Whether switches support optimized SLtoVLMappingTable programming (one Set for all inputs or all
    /// hops).
    pub optimised_sl_to_vl: bool,
}

/// The sizes of ibsim 0.10, so that stock tools print the same on both.
impl Default for Capacities {
    fn default() -> Self {
        Self {
            lanes: DataLanes::Eight,
            pkeys: 64,
            switch_pkeys: 8,
            arbitration_entries: 8,
            linear_forwarding: 30720,
            multicast_forwarding: 1024,
            guids: 32,
            mtu: Mtu::B2048,
            optimised_sl_to_vl: false,
        }
    }
}

/// A size of a profile outside its valid range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} must be {allowed}, got {value}")]
pub struct BadCapacity {
    pub what: &'static str,
    pub value: u32,
    pub allowed: &'static str,
}
