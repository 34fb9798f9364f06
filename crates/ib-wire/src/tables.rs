//! Tables of ports and switches, in the blocks that SMPs carry, and the attribute modifiers that select a block.

use crate::address::{Guid, PortNum};
use crate::bits::{Field, WireValue};
use crate::keys::Pkey;
use crate::lanes::{ServiceLevel, VirtualLane};
use crate::smp::SMP_DATA_LEN;

/// Implements [`WireValue`] for a block with `decode(&[u8; N])` and `encode() -> [u8; N]`, so that records can contain it.
macro_rules! block_wire_value {
    ($($ty:ty: $len:expr),* $(,)?) => { $(
        impl WireValue for $ty {
            const MIN_BITS: usize = $len * 8;
            const MAX_BITS: usize = $len * 8;
            fn read(raw: &[u8], field: Field) -> Option<Self> {
                <[u8; $len]>::read(raw, field).map(|block| Self::decode(&block))
            }
            fn write(&self, raw: &mut [u8], field: Field) {
                self.encode().write(raw, field);
            }
        }
    )* };
}
block_wire_value!(
    PkeyBlock: SMP_DATA_LEN,
    GuidBlock: SMP_DATA_LEN,
    SlToVl: SlToVl::LEN,
    VlArbBlock: SMP_DATA_LEN,
    ForwardingBlock: SMP_DATA_LEN,
    MulticastBlock: SMP_DATA_LEN,
);

/// A block of a P_KeyTable: 32 entries; `None` for an empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PkeyBlock(pub [Option<Pkey>; 32]);

impl PkeyBlock {
    pub const ENTRIES: usize = 32;

    /// Decodes a block. 0x0000 and 0x8000 are empty entries.
    pub fn decode(raw: &[u8; SMP_DATA_LEN]) -> Self {
        Self(std::array::from_fn(|i| Pkey::from_wire(u16::from_be_bytes([raw[2 * i], raw[2 * i + 1]]))))
    }

    /// Encodes the block as on the wire.
    pub fn encode(&self) -> [u8; SMP_DATA_LEN] {
        let mut raw = [0; SMP_DATA_LEN];
        for (bytes, key) in raw.chunks_exact_mut(2).zip(self.0) {
            bytes.copy_from_slice(&key.map_or(0, Pkey::to_wire).to_be_bytes());
        }
        raw
    }
}

/// The modifier of P_KeyTable: port in the upper 16 bits, block in the lower 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PkeyBlockSelector {
    /// Port of a switch; adapters ignore it.
    pub port: u16,
    /// Block n has entries 32·n to 32·n + 31.
    pub block: u16,
}

impl PkeyBlockSelector {
    /// Decodes a modifier; every number is valid.
    pub const fn from_modifier(modifier: u32) -> Self {
        Self { port: (modifier >> 16) as u16, block: modifier as u16 }
    }

    /// Encodes the attribute modifier.
    pub const fn to_modifier(self) -> u32 {
        (self.port as u32) << 16 | self.block as u32
    }
}

/// A block of a GUIDInfo table: 8 entries; `None` for an empty one. The modifier is the block number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuidBlock(pub [Option<Guid>; 8]);

impl GuidBlock {
    pub const ENTRIES: usize = 8;

    /// Decodes a block; every sequence of bytes is valid.
    pub fn decode(raw: &[u8; SMP_DATA_LEN]) -> Self {
        Self(std::array::from_fn(|i| {
            Guid::from_wire(u64::from_be_bytes(std::array::from_fn(|byte| raw[8 * i + byte])))
        }))
    }

    /// Encodes the block as on the wire.
    pub fn encode(&self) -> [u8; SMP_DATA_LEN] {
        let mut raw = [0; SMP_DATA_LEN];
        for (bytes, guid) in raw.chunks_exact_mut(8).zip(self.0) {
            bytes.copy_from_slice(&guid.map_or(0, Guid::to_wire).to_be_bytes());
        }
        raw
    }
}

/// An SLtoVLMappingTable: the virtual lane of each service level on one hop (input-output pair) of a switch, or of an
/// adapter port. [`VirtualLane::MANAGEMENT`] discards the packets of the service level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlToVl(pub [VirtualLane; 16]);

impl SlToVl {
    /// Length on the wire in bytes.
    pub const LEN: usize = 8;

    /// Decodes a table: 4 bits per service level, the even one in the high nibble.
    pub fn decode(raw: &[u8; Self::LEN]) -> Self {
        Self(std::array::from_fn(|sl| {
            let nibble = if sl % 2 == 0 { raw[sl / 2] >> 4 } else { raw[sl / 2] & 0x0f };
            VirtualLane::from_wire(nibble).expect("4 bits are a valid lane number")
        }))
    }

    /// Encodes the block as on the wire.
    pub fn encode(&self) -> [u8; Self::LEN] {
        std::array::from_fn(|i| self.0[2 * i].to_wire() << 4 | self.0[2 * i + 1].to_wire())
    }

    /// The virtual lane of a service level.
    pub fn lane(&self, sl: ServiceLevel) -> VirtualLane {
        self.0[sl.index()]
    }
}

/// The modifier of SLtoVLMappingTable on a switch. `AllInputs` and `AllHops` are valid only where
/// [`SwitchInfo::optimised_sl_to_vl`](crate::SwitchInfo::optimised_sl_to_vl) has bit 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlToVlSelector {
    /// Packets from port `input` to port `output`: `input << 8 | output`.
    Hop { input: u8, output: u8 },
    /// Packets from any port to port `output`: `0x20000 | output`.
    AllInputs { output: u8 },
    /// All packets that pass the switch: `0x30000`.
    AllHops,
}

impl SlToVlSelector {
    /// Decodes a modifier; `None` if its upper half is none of 0, 2 and 3.
    pub const fn from_modifier(modifier: u32) -> Option<Self> {
        match modifier >> 16 {
            0 => Some(Self::Hop { input: (modifier >> 8) as u8, output: modifier as u8 }),
            2 => Some(Self::AllInputs { output: modifier as u8 }),
            3 => Some(Self::AllHops),
            _ => None,
        }
    }

    /// Encodes the attribute modifier.
    pub const fn to_modifier(self) -> u32 {
        match self {
            Self::Hop { input, output } => (input as u32) << 8 | output as u32,
            Self::AllInputs { output } => 0x20000 | output as u32,
            Self::AllHops => 0x30000,
        }
    }
}

/// One entry of a VL arbitration table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlArbEntry {
    pub lane: VirtualLane,
    /// Data that the lane may send per visit, in units of 64 bytes; 0 skips the entry.
    pub weight: u8,
}

/// A block of a VLArbitrationTable: 32 entries. A table has up to 64 entries in two blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlArbBlock(pub [VlArbEntry; 32]);

impl VlArbBlock {
    pub const ENTRIES: usize = 32;

    /// Decodes a block. The upper half of each lane byte is reserved.
    pub fn decode(raw: &[u8; SMP_DATA_LEN]) -> Self {
        Self(std::array::from_fn(|i| VlArbEntry {
            lane: VirtualLane::from_wire(raw[2 * i] & 0x0f).expect("4 bits are a valid lane number"),
            weight: raw[2 * i + 1],
        }))
    }

    /// Encodes the block as on the wire.
    pub fn encode(&self) -> [u8; SMP_DATA_LEN] {
        let mut raw = [0; SMP_DATA_LEN];
        for (bytes, entry) in raw.chunks_exact_mut(2).zip(self.0) {
            bytes.copy_from_slice(&[entry.lane.to_wire(), entry.weight]);
        }
        raw
    }
}

/// A block of one of the two VL arbitration tables of a port, as the upper half of the modifier selects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VlArbPart {
    /// 1: low priority, entries 0 to 31.
    LowFirst,
    /// 2: low priority, entries 32 to 63.
    LowSecond,
    /// 3: high priority, entries 0 to 31.
    HighFirst,
    /// 4: high priority, entries 32 to 63.
    HighSecond,
}

impl VlArbPart {
    /// Decodes a modifier into block and port; `None` if its upper half is not 1 to 4.
    pub const fn from_modifier(modifier: u32) -> Option<(Self, u16)> {
        let part = match modifier >> 16 {
            1 => Self::LowFirst,
            2 => Self::LowSecond,
            3 => Self::HighFirst,
            4 => Self::HighSecond,
            _ => return None,
        };
        Some((part, modifier as u16))
    }

    /// The modifier for this block of the tables of `port`.
    pub const fn to_modifier(self, port: PortNum) -> u32 {
        let part = match self {
            Self::LowFirst => 1,
            Self::LowSecond => 2,
            Self::HighFirst => 3,
            Self::HighSecond => 4,
        };
        part << 16 | port.to_wire() as u32
    }

    /// Whether the block belongs to the high-priority table.
    pub const fn is_high(self) -> bool {
        matches!(self, Self::HighFirst | Self::HighSecond)
    }

    /// Index of the first entry of the block in its table, 0 or 32.
    pub const fn first_entry(self) -> usize {
        match self {
            Self::LowFirst | Self::HighFirst => 0,
            Self::LowSecond | Self::HighSecond => VlArbBlock::ENTRIES,
        }
    }
}

/// A block of a LinearForwardingTable: the output ports of 64 LIDs; `None` (255 on the wire) drops the packet. Block n, the
/// modifier, has LIDs 64·n to 64·n + 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardingBlock(pub [Option<PortNum>; 64]);

impl ForwardingBlock {
    pub const ENTRIES: usize = 64;

    /// Decodes a block; every sequence of bytes is valid.
    pub fn decode(raw: &[u8; SMP_DATA_LEN]) -> Self {
        Self(raw.map(PortNum::new))
    }

    /// Encodes the block as on the wire.
    pub fn encode(&self) -> [u8; SMP_DATA_LEN] {
        self.0.map(|port| port.map_or(0xff, PortNum::to_wire))
    }
}

/// A set of 16 ports of a switch: bit n is port 16 · position + n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortMask(pub u16);

/// A block of a MulticastForwardingTable: the output ports of 32 multicast LIDs among the 16 ports of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastBlock(pub [PortMask; 32]);

impl MulticastBlock {
    /// Multicast LIDs per block.
    pub const ENTRIES: usize = 32;

    /// Decodes a block; every sequence of bytes is valid.
    pub fn decode(raw: &[u8; SMP_DATA_LEN]) -> Self {
        Self(std::array::from_fn(|i| PortMask(u16::from_be_bytes([raw[2 * i], raw[2 * i + 1]]))))
    }

    /// Encodes the block as on the wire.
    pub fn encode(&self) -> [u8; SMP_DATA_LEN] {
        let mut raw = [0; SMP_DATA_LEN];
        for (bytes, mask) in raw.chunks_exact_mut(2).zip(self.0) {
            bytes.copy_from_slice(&mask.0.to_be_bytes());
        }
        raw
    }

    /// Decodes a modifier into block (bits 8 to 0: multicast LIDs from 0xC000 + 32·block on) and position (bits 31 to 28:
    /// ports from 16·position on).
    pub const fn from_modifier(modifier: u32) -> (u16, u8) {
        ((modifier & 0x1ff) as u16, (modifier >> 28) as u8)
    }

    /// The modifier for a block of multicast LIDs and a position of ports; bits of `block` above the ninth are dropped.
    pub const fn to_modifier(block: u16, position: u8) -> u32 {
        (position as u32) << 28 | (block & 0x1ff) as u32
    }
}
