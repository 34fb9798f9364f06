//! What the emulated devices can do: the sizes of their tables, and their lanes.

use ib_wire::{DataLanes, Mtu};
use thiserror::Error;

/// Sizes and abilities common to all devices of an emulated fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// Data lanes of every port (VLCap).
    pub lanes: DataLanes,
    /// P_Key table entries of adapter ports and of external switch ports.
    pub pkeys: u16,
    /// P_Key table entries of a switch's own port 0.
    pub switch_pkeys: u16,
    /// Entries of each arbitration table, high and low.
    pub arbitration_entries: u8,
    /// Entries of the linear forwarding tables.
    pub linear_forwarding: u16,
    /// Entries of the multicast forwarding tables.
    pub multicast_forwarding: u16,
    /// GUIDs of an adapter port, the first being its own.
    pub guids: u8,
    /// Largest packet.
    pub mtu: Mtu,
    /// Whether switches take the optimised Sets of service-level tables.
    pub optimised_sl_to_vl: bool,
}

/// The sizes ibsim 0.10 has, so that stock tools print the same on both.
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

/// A size outside what a device may have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} cannot be {value}: {allowed}")]
pub struct BadCapacity {
    /// Which size.
    pub what: &'static str,
    /// What was asked for.
    pub value: u32,
    /// What would work.
    pub allowed: &'static str,
}

impl Capacities {
    /// Checks every size against what the attribute layouts can express.
    pub fn check(&self) -> Result<(), BadCapacity> {
        let within = |what, value: u32, allowed_range: std::ops::RangeInclusive<u32>, allowed| {
            if allowed_range.contains(&value) { Ok(()) } else { Err(BadCapacity { what, value, allowed }) }
        };
        within("number of data lanes", self.lanes.count().into(), 1..=15, "1, 2, 4, 8 or 15")?;
        within("P_Key table", self.pkeys.into(), 1..=32768, "1 to 32768 entries")?;
        within("P_Key table of switch port 0", self.switch_pkeys.into(), 1..=32768, "1 to 32768 entries")?;
        within("arbitration table", self.arbitration_entries.into(), 1..=64, "1 to 64 entries")?;
        within("linear forwarding table", self.linear_forwarding.into(), 1..=49152, "1 to 49152 entries")?;
        within(
            "multicast forwarding table",
            self.multicast_forwarding.into(),
            0..=16383,
            "0 to 16383 entries",
        )?;
        within("GUID table", self.guids.into(), 1..=255, "1 to 255 entries")
    }
}
