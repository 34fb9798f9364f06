//! What no table tells: buffers and delays.

use fabric_model::tenancy::Bandwidth;
use thiserror::Error;

use super::time::Time;

/// Bytes of a block: the unit of buffers, credits and arbitration weights.
pub const BLOCK_BYTES: u32 = 64;

/// Bytes of a packet besides its payload: LRH 8, BTH 12, ICRC 4, VCRC 2.
pub const HEADER_BYTES: u32 = 26;

/// Bytes of a packet that a switch has to have before it can send it on: LRH and BTH, which has the partition key.
pub const ROUTED_BYTES: u32 = 20;

/// Payload of the largest packet there is.
pub const PAYLOAD_BYTES_MAX: u32 = 4096;

/// Payload of the largest message there is, as adapters have it: 2 GiB.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// Blocks of the largest packet there is.
pub(crate) const PACKET_BLOCKS_MAX: u32 = (PAYLOAD_BYTES_MAX + HEADER_BYTES).div_ceil(BLOCK_BYTES);

/// The receive buffer of a port, in blocks of 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// So many for each data lane.
    PerLane(u32),
    /// So many altogether, which the port divides evenly over the lanes it operates.
    PerPort(u32),
}

/// What no table tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrafficSettings {
    /// The receive buffer of every port.
    pub buffer: Buffer,
    /// From the arrival of a packet's head at a switch until it can leave, or of its tail at an adapter until it counts
    /// as delivered, if nothing is in its way.
    pub device: Time,
    /// Along a cable.
    pub cable: Time,
    /// From the moment a packet has left a buffer until its sender may be told, the cable not counted.
    pub credit: Time,
    /// Management packets that a port can hold; what comes beyond is dropped.
    pub management_packets: u16,
    /// How fast an adapter moves packets between its own functions; `None` is as fast as its link.
    pub loopback_rate: Option<Bandwidth>,
    /// The length of the slices for which delivered bytes are told apart.
    pub interval: Time,
}

/// Buffers of 64 KiB a lane, as public simulators have them (1000 to 4532 blocks in ib_flit_sim); delays that add up
/// to the passage that latency bounds count with (A-LANE-13).
impl Default for TrafficSettings {
    fn default() -> Self {
        Self {
            buffer: Buffer::PerLane(1024),
            device: Time::from_ns(200),
            cable: Time::from_ns(50),
            credit: Time::from_ns(50),
            management_packets: 4,
            loopback_rate: None,
            interval: Time::from_us(10),
        }
    }
}

/// Settings with which no simulation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadTrafficSettings {
    /// A packet would never fit.
    #[error("a buffer of {blocks} blocks a lane: the largest packet needs {PACKET_BLOCKS_MAX}")]
    Buffer {
        /// Blocks of a lane.
        blocks: u32,
    },
    /// More credits than flow control can count.
    #[error("a buffer of {blocks} blocks a lane: flow control counts {CREDITS_MAX} at most")]
    Credits {
        /// Blocks of a lane.
        blocks: u32,
    },
    /// Slices without length.
    #[error("slices of no length")]
    Interval,
    /// Nothing would ever move inside adapters.
    #[error("no rate inside adapters")]
    LoopbackRate,
}

/// Blocks that a sender may have outstanding on a lane: what the 12-bit counters of flow control can tell apart.
pub const CREDITS_MAX: u32 = 2048;

impl TrafficSettings {
    /// Blocks of each data lane of a port that operates so many.
    pub(crate) fn lane_blocks(&self, lanes: u8) -> Result<u16, BadTrafficSettings> {
        let blocks = match self.buffer {
            Buffer::PerLane(blocks) => blocks,
            Buffer::PerPort(blocks) => (blocks / u32::from(lanes.max(1))).min(CREDITS_MAX),
        };
        match blocks {
            blocks if blocks < PACKET_BLOCKS_MAX => Err(BadTrafficSettings::Buffer { blocks }),
            blocks if blocks > CREDITS_MAX => Err(BadTrafficSettings::Credits { blocks }),
            blocks => Ok(blocks as u16),
        }
    }

    pub(crate) fn check(&self) -> Result<(), BadTrafficSettings> {
        if self.interval == Time::ZERO {
            return Err(BadTrafficSettings::Interval);
        }
        match self.loopback_rate {
            Some(Bandwidth::ZERO) => Err(BadTrafficSettings::LoopbackRate),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_and_its_cable_take_no_longer_than_latency_bounds_count_with() {
        let settings = TrafficSettings::default();
        assert_eq!(settings.device + settings.cable, Time::from_ns(250));
        assert_eq!(settings.check(), Ok(()));
    }

    #[test]
    fn a_buffer_of_a_port_is_divided_over_its_lanes_and_never_more_than_credits_can_count() {
        let blocks =
            |buffer, lanes| TrafficSettings { buffer, ..TrafficSettings::default() }.lane_blocks(lanes);
        assert_eq!(blocks(Buffer::PerPort(1000), 8), Ok(125));
        assert_eq!(blocks(Buffer::PerPort(100_000), 1), Ok(2048));
        assert_eq!(blocks(Buffer::PerPort(500), 8), Err(BadTrafficSettings::Buffer { blocks: 62 }));
        assert_eq!(blocks(Buffer::PerLane(65), 15), Ok(65));
    }
}
