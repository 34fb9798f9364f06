//! Table sizes and capabilities of the emulated devices.

use ib_wire::{DataLanes, Mtu};
use thiserror::Error;

/// Table sizes and capabilities that all devices of an emulated fabric share.
///
/// [`Capacities::check`] states the valid range of each; [`Fabric::new`](crate::Fabric::new) checks them. The
/// default values are those of ibsim 0.10.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// Data lanes of every port (VLCap).
    pub lanes: DataLanes,
    /// P_Key table entries of adapter ports and external switch ports, 1 to 32768.
    pub pkeys: u16,
    /// P_Key table entries of switch port 0, 1 to 32768.
    pub switch_pkeys: u16,
    /// Entries of each VL arbitration table, high and low, 1 to 64.
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

/// A capacity outside its valid range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} must be {allowed}, got {value}")]
pub struct BadCapacity {
    pub what: &'static str,
    pub value: u32,
    pub allowed: &'static str,
}

impl Capacities {
    /// Checks that every size can be expressed in the attribute layouts. Reports the first that cannot.
    pub fn check(&self) -> Result<(), BadCapacity> {
        let within = |what, value: u32, allowed_range: std::ops::RangeInclusive<u32>, allowed| {
            if allowed_range.contains(&value) { Ok(()) } else { Err(BadCapacity { what, value, allowed }) }
        };
        within("the number of data lanes", self.lanes.count().into(), 1..=15, "1, 2, 4, 8 or 15")?;
        within("the P_Key table", self.pkeys.into(), 1..=32768, "1 to 32768 entries")?;
        within(
            "the P_Key table of switch port 0",
            self.switch_pkeys.into(),
            1..=32768,
            "1 to 32768 entries",
        )?;
        within("a VL arbitration table", self.arbitration_entries.into(), 1..=64, "1 to 64 entries")?;
        within(
            "the linear forwarding table",
            self.linear_forwarding.into(),
            1..=49152,
            "1 to 49152 entries",
        )?;
        within(
            "the multicast forwarding table",
            self.multicast_forwarding.into(),
            0..=16383,
            "0 to 16383 entries",
        )?;
        within("the GUID table", self.guids.into(), 1..=255, "1 to 255 entries")
    }
}
