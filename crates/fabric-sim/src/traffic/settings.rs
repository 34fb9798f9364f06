//! Parameters of the simulation that no table contains: buffers and delays.

use fabric_model::tenancy::Bandwidth;
use fabric_model::{LinkRate, Speed, StatedHardware, SwitchModel, Width};
use thiserror::Error;

use super::time::Time;

/// The unit of buffers, credits and arbitration weights, in bytes.
pub const BLOCK_BYTES: u32 = 64;

/// Bytes of a packet besides its payload: LRH 8, BTH 12, ICRC 4, VCRC 2.
pub const HEADER_BYTES: u8 = 26;

/// The most that a sender can add to the payload: GRH and extended headers such as RETH (A-LANE-12).
pub const HEADER_BYTES_MAX: u8 = 126;

/// Bytes that a switch must have before it can forward a packet: LRH and BTH, which contains the P_Key.
pub const ROUTED_BYTES: u32 = 20;

/// Payload of the largest packet, in bytes.
pub const PAYLOAD_BYTES_MAX: u32 = 4096;

/// Payload of the largest message, in bytes: 2 GiB, the limit of the IBA.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// Size of the largest packet, in blocks.
pub(crate) const PACKET_BLOCKS_MAX: u32 = (PAYLOAD_BYTES_MAX + HEADER_BYTES_MAX as u32).div_ceil(BLOCK_BYTES);

/// Receive buffer of a port, in blocks of 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// For each data lane.
    PerLane(u32),
    /// For the whole port, divided evenly over the lanes that it operates.
    PerPort(u32),
}

/// Parameters of the simulation that no table contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrafficSettings {
    /// Receive buffer of every port.
    pub buffer: Buffer,
    /// Delay of a device: at a switch from the arrival of a packet's head until it can leave, at an adapter
    /// from the arrival of its tail until it counts as delivered.
    pub device: Time,
    /// Propagation delay of a cable.
    pub cable: Time,
    /// Delay of forward error correction, on links that have it.
    pub fec: Time,
    /// Delay from the moment a packet has left a buffer until its credits are sent back; the cable delay
    /// comes on top.
    pub credit: Time,
    /// Buffers for subnet management of a port, in packets. Packets beyond are dropped.
    pub management_packets: u16,
    /// Rate between functions of the same adapter port; `None` means the rate of the link. Must not be 0.
    pub loopback_rate: Option<Bandwidth>,
    /// Length of the intervals in which delivered bytes are counted; must not be 0.
    pub interval: Time,
    /// How switches move packets from inputs to outputs.
    pub switch_model: SwitchModel,
}

/// The settings for the hardware of an operator who states nothing.
impl Default for TrafficSettings {
    fn default() -> Self {
        Self::of(&StatedHardware::default())
    }
}

/// Settings that no simulation can run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadTrafficSettings {
    /// The buffer of a lane is smaller than the largest packet.
    #[error("the buffer of a lane must have at least {PACKET_BLOCKS_MAX} blocks of 64 bytes, got {blocks}")]
    Buffer { blocks: u32 },
    /// The buffer of a lane is larger than flow control can count.
    #[error("the buffer of a lane must have at most {CREDITS_MAX} blocks of 64 bytes, got {blocks}")]
    Credits { blocks: u32 },
    #[error("the measuring interval must not be 0")]
    Interval,
    #[error("the loopback rate of adapters must not be 0")]
    LoopbackRate,
}

/// Blocks that a sender may have outstanding on a lane: half the range of the 12-bit counters of flow
/// control.
pub const CREDITS_MAX: u32 = 2048;

/// A link with forward error correction, whose delay is an input.
const WITH_FEC: LinkRate = LinkRate { speed: Speed::Ndr, width: Width::X4 };

impl TrafficSettings {
    /// The settings for stated hardware. Buffers have 64 KiB per lane, similar to public simulators (1000 to
    /// 4532 blocks in ib_flit_sim). The delays are those that latency bounds assume (A-LANE-13).
    pub fn of(hardware: &StatedHardware) -> Self {
        let passage = hardware.passage(WITH_FEC);
        Self {
            buffer: Buffer::PerLane(1024),
            device: Time::from_ns(passage.device_ns.into()),
            cable: Time::from_ns(passage.cable_ns.into()),
            fec: Time::from_ns(passage.fec_ns.into()),
            credit: Time::from_ns(50),
            management_packets: 4,
            loopback_rate: None,
            interval: Time::from_us(10),
            switch_model: hardware.switch_model,
        }
    }

    /// Blocks of each data lane of a port that operates `lanes` lanes.
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
    fn the_default_delays_match_those_of_latency_bounds() {
        let settings = TrafficSettings::default();
        assert_eq!(settings.device + settings.cable, Time::from_ns(250));
        let stated = StatedHardware::default();
        for rate in ["4xSDR", "4xEDR", "4xHDR", "4xNDR"].map(|rate| rate.parse::<LinkRate>().unwrap()) {
            let fec = if rate.has_fec() { settings.fec } else { Time::ZERO };
            let passage = settings.device + settings.cable + fec;
            assert_eq!(passage, Time::from_ns(stated.passage(rate).total_ns().into()), "{rate}");
        }
        assert_eq!(settings.check(), Ok(()));
    }

    #[test]
    fn a_port_buffer_is_divided_over_its_lanes_up_to_the_credit_limit() {
        let blocks =
            |buffer, lanes| TrafficSettings { buffer, ..TrafficSettings::default() }.lane_blocks(lanes);
        assert_eq!(blocks(Buffer::PerPort(1000), 8), Ok(125));
        assert_eq!(blocks(Buffer::PerPort(100_000), 1), Ok(2048));
        assert_eq!(blocks(Buffer::PerPort(500), 8), Err(BadTrafficSettings::Buffer { blocks: 62 }));
        assert_eq!(blocks(Buffer::PerLane(66), 15), Ok(66));
    }
}
