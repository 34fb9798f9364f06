//! The tables of a port or switch, in the blocks in which datagrams carry them, and the modifiers that select them.

use crate::address::{Guid, PortNum};
use crate::bits::{Field, WireValue};
use crate::keys::Pkey;
use crate::lanes::{ServiceLevel, VirtualLane};
use crate::smp::SMP_DATA_LEN;

/// Lets a block with `decode(&[u8; N])` and `encode() -> [u8; N]` stand in a field, for the records that carry it.
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

/// A block of a P_KeyTable: 32 entries, `None` where empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PkeyBlock(pub [Option<Pkey>; 32]);

impl PkeyBlock {
    /// Entries in a block.
    pub const ENTRIES: usize = 32;

    /// Reads a block; 0x0000 and 0x8000 both mean empty.
    pub fn decode(raw: &[u8; SMP_DATA_LEN]) -> Self {
        Self(std::array::from_fn(|i| Pkey::from_wire(u16::from_be_bytes([raw[2 * i], raw[2 * i + 1]]))))
    }

    /// The bytes.
    pub fn encode(&self) -> [u8; SMP_DATA_LEN] {
        let mut raw = [0; SMP_DATA_LEN];
        for (bytes, key) in raw.chunks_exact_mut(2).zip(self.0) {
            bytes.copy_from_slice(&key.map_or(0, Pkey::to_wire).to_be_bytes());
        }
        raw
    }
}

/// Which block of which port's P_KeyTable a modifier means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PkeyBlockSelector {
    /// The switch port; adapters ignore it.
    pub port: u16,
    /// The block of 32 entries.
    pub block: u16,
}

impl PkeyBlockSelector {
    /// Reads a modifier.
    pub const fn from_modifier(modifier: u32) -> Self {
        Self { port: (modifier >> 16) as u16, block: modifier as u16 }
    }

    /// The modifier.
    pub const fn to_modifier(self) -> u32 {
        (self.port as u32) << 16 | self.block as u32
    }
}

/// A block of a GUIDInfo table: 8 entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuidBlock(pub [Option<Guid>; 8]);

impl GuidBlock {
    /// Entries in a block.
    pub const ENTRIES: usize = 8;

    /// Reads a block.
    pub fn decode(raw: &[u8; SMP_DATA_LEN]) -> Self {
        Self(std::array::from_fn(|i| {
            Guid::from_wire(u64::from_be_bytes(std::array::from_fn(|byte| raw[8 * i + byte])))
        }))
    }

    /// The bytes.
    pub fn encode(&self) -> [u8; SMP_DATA_LEN] {
        let mut raw = [0; SMP_DATA_LEN];
        for (bytes, guid) in raw.chunks_exact_mut(8).zip(self.0) {
            bytes.copy_from_slice(&guid.map_or(0, Guid::to_wire).to_be_bytes());
        }
        raw
    }
}

/// Which lane each service level takes on one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlToVl(pub [VirtualLane; 16]);

impl SlToVl {
    /// Bytes of one mapping.
    pub const LEN: usize = 8;

    /// Reads one mapping: the even level sits in the high nibble.
    pub fn decode(raw: &[u8; Self::LEN]) -> Self {
        Self(std::array::from_fn(|sl| {
            let nibble = if sl % 2 == 0 { raw[sl / 2] >> 4 } else { raw[sl / 2] & 0x0f };
            VirtualLane::from_wire(nibble).expect("a nibble is a lane")
        }))
    }

    /// The bytes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        std::array::from_fn(|i| self.0[2 * i].to_wire() << 4 | self.0[2 * i + 1].to_wire())
    }

    /// The lane of a service level.
    pub fn lane(&self, sl: ServiceLevel) -> VirtualLane {
        self.0[sl.index()]
    }
}

/// What a modifier of SLtoVLMappingTable means on a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlToVlSelector {
    /// One turn.
    Hop {
        /// Where the packet comes in.
        input: u8,
        /// Where it leaves.
        output: u8,
    },
    /// One output, the same for every input (optimised form).
    AllInputs {
        /// Where the packet leaves.
        output: u8,
    },
    /// Every turn of the switch (optimised form).
    AllHops,
}

impl SlToVlSelector {
    /// Reads a modifier; `None` if it means nothing.
    pub const fn from_modifier(modifier: u32) -> Option<Self> {
        match modifier >> 16 {
            0 => Some(Self::Hop { input: (modifier >> 8) as u8, output: modifier as u8 }),
            2 => Some(Self::AllInputs { output: modifier as u8 }),
            3 => Some(Self::AllHops),
            _ => None,
        }
    }

    /// The modifier.
    pub const fn to_modifier(self) -> u32 {
        match self {
            Self::Hop { input, output } => (input as u32) << 8 | output as u32,
            Self::AllInputs { output } => 0x20000 | output as u32,
            Self::AllHops => 0x30000,
        }
    }
}

/// One entry of an arbitration table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlArbEntry {
    /// The lane served.
    pub lane: VirtualLane,
    /// How much of it, in units of 64 bytes; 0 skips the entry.
    pub weight: u8,
}

/// A block of an arbitration table: 32 entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlArbBlock(pub [VlArbEntry; 32]);

impl VlArbBlock {
    /// Entries in a block.
    pub const ENTRIES: usize = 32;

    /// Reads a block; the upper half of each lane byte is reserved.
    pub fn decode(raw: &[u8; SMP_DATA_LEN]) -> Self {
        Self(std::array::from_fn(|i| VlArbEntry {
            lane: VirtualLane::from_wire(raw[2 * i] & 0x0f).expect("a nibble is a lane"),
            weight: raw[2 * i + 1],
        }))
    }

    /// The bytes.
    pub fn encode(&self) -> [u8; SMP_DATA_LEN] {
        let mut raw = [0; SMP_DATA_LEN];
        for (bytes, entry) in raw.chunks_exact_mut(2).zip(self.0) {
            bytes.copy_from_slice(&[entry.lane.to_wire(), entry.weight]);
        }
        raw
    }
}

/// Which part of an arbitration table a modifier means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VlArbPart {
    /// Low priority, entries 0..32.
    LowFirst,
    /// Low priority, entries 32..64.
    LowSecond,
    /// High priority, entries 0..32.
    HighFirst,
    /// High priority, entries 32..64.
    HighSecond,
}

impl VlArbPart {
    /// Splits a modifier into part and port; `None` if there is no such part.
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

    /// The modifier for this part of a port's table.
    pub const fn to_modifier(self, port: PortNum) -> u32 {
        let part = match self {
            Self::LowFirst => 1,
            Self::LowSecond => 2,
            Self::HighFirst => 3,
            Self::HighSecond => 4,
        };
        part << 16 | port.to_wire() as u32
    }

    /// Whether it belongs to the high-priority table.
    pub const fn is_high(self) -> bool {
        matches!(self, Self::HighFirst | Self::HighSecond)
    }

    /// The first entry of the part.
    pub const fn first_entry(self) -> usize {
        match self {
            Self::LowFirst | Self::HighFirst => 0,
            Self::LowSecond | Self::HighSecond => VlArbBlock::ENTRIES,
        }
    }
}

/// A block of a LinearForwardingTable: the exit port of 64 LIDs, `None` where there is none (255).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardingBlock(pub [Option<PortNum>; 64]);

impl ForwardingBlock {
    /// Entries in a block.
    pub const ENTRIES: usize = 64;

    /// Reads a block.
    pub fn decode(raw: &[u8; SMP_DATA_LEN]) -> Self {
        Self(raw.map(PortNum::new))
    }

    /// The bytes.
    pub fn encode(&self) -> [u8; SMP_DATA_LEN] {
        self.0.map(|port| port.map_or(0xff, PortNum::to_wire))
    }
}

/// Sixteen ports of a switch: bit n is port `16 * position + n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortMask(pub u16);

/// A block of a MulticastForwardingTable: 32 groups, 16 ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastBlock(pub [PortMask; 32]);

impl MulticastBlock {
    /// Groups in a block.
    pub const ENTRIES: usize = 32;

    /// Reads a block.
    pub fn decode(raw: &[u8; SMP_DATA_LEN]) -> Self {
        Self(std::array::from_fn(|i| PortMask(u16::from_be_bytes([raw[2 * i], raw[2 * i + 1]]))))
    }

    /// The bytes.
    pub fn encode(&self) -> [u8; SMP_DATA_LEN] {
        let mut raw = [0; SMP_DATA_LEN];
        for (bytes, mask) in raw.chunks_exact_mut(2).zip(self.0) {
            bytes.copy_from_slice(&mask.0.to_be_bytes());
        }
        raw
    }

    /// Splits a modifier into block of groups (low 9 bits) and position of ports (high 4 bits).
    pub const fn from_modifier(modifier: u32) -> (u16, u8) {
        ((modifier & 0x1ff) as u16, (modifier >> 28) as u8)
    }

    /// The modifier for a block of groups and a position of ports.
    pub const fn to_modifier(block: u16, position: u8) -> u32 {
        (position as u32) << 28 | (block & 0x1ff) as u32
    }
}
