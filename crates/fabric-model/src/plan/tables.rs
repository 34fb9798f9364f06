//! Tables as devices hold them, cut into the blocks in which they are sent.

use std::collections::BTreeMap;

use ib_wire::{ForwardingBlock, Lid, MulticastBlock, MulticastLid, Pkey, PkeyBlock, PortMask, PortNum};

/// Bytes of all linear tables of a fabric together: 5,000 switches that forward to every LID there is.
pub const LINEAR_BYTES_MAX: usize = 256 << 20;

/// What a linear table holds where there is no exit.
const NO_PORT: u8 = 0xff;

/// Where packets leave a switch, by LID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinearTable {
    /// Exit port by LID, 0xFF for none; LIDs beyond the end have none.
    exits: Vec<u8>,
}

impl LinearTable {
    /// Entries of a block.
    pub const BLOCK: usize = ForwardingBlock::ENTRIES;

    /// A table from its bytes: the exit port by LID, 0xFF for none. Entry 0 means nothing.
    pub fn from_exits(exits: Vec<u8>) -> Self {
        Self { exits }
    }

    /// The bytes: the exit port by LID, 0xFF for none.
    pub fn exits(&self) -> &[u8] {
        &self.exits
    }

    /// Where packets to a LID leave.
    #[inline]
    pub fn exit(&self, lid: Lid) -> Option<PortNum> {
        self.exits.get(usize::from(lid.to_wire())).copied().and_then(PortNum::new)
    }

    /// The highest LID it speaks of: LinearFDBTop. 0 if it is empty.
    pub fn top(&self) -> u16 {
        u16::try_from(self.exits.len().saturating_sub(1)).unwrap_or(Lid::MAX)
    }

    /// How many blocks it takes to send it.
    pub fn block_count(&self) -> u16 {
        u16::try_from(self.exits.len().div_ceil(Self::BLOCK)).unwrap_or(u16::MAX)
    }

    /// A block as a datagram carries it; 0xFF beyond the top.
    pub fn block(&self, block: u16) -> [u8; Self::BLOCK] {
        let mut bytes = [NO_PORT; Self::BLOCK];
        let start = usize::from(block) * Self::BLOCK;
        let end = self.exits.len().min(start + Self::BLOCK);
        if let Some(part) = self.exits.get(start..end) {
            bytes[..part.len()].copy_from_slice(part);
        }
        bytes
    }
}

/// Some ports of a switch, its port 0 included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortSet([u64; 4]);

impl PortSet {
    /// No port.
    pub const EMPTY: Self = Self([0; 4]);

    /// Adds a port.
    pub fn insert(&mut self, port: PortNum) {
        self.0[port.index() / 64] |= 1 << (port.index() % 64);
    }

    /// Whether a port is in it.
    pub const fn contains(self, port: PortNum) -> bool {
        self.0[port.index() / 64] & (1 << (port.index() % 64)) != 0
    }

    /// Whether no port is in it.
    pub const fn is_empty(self) -> bool {
        self.0[0] | self.0[1] | self.0[2] | self.0[3] == 0
    }

    /// Its ports in order.
    pub fn iter(self) -> impl Iterator<Item = PortNum> {
        (0..=u8::MAX).filter_map(PortNum::new).filter(move |port| self.contains(*port))
    }

    /// Sixteen of its ports: bit n is port `16 * position + n`.
    pub const fn mask(self, position: u8) -> PortMask {
        let first = 16 * (position & 0xf) as usize;
        PortMask((self.0[first / 64] >> (first % 64)) as u16)
    }
}

impl FromIterator<PortNum> for PortSet {
    fn from_iter<I: IntoIterator<Item = PortNum>>(ports: I) -> Self {
        let mut set = Self::EMPTY;
        ports.into_iter().for_each(|port| set.insert(port));
        set
    }
}

/// Where packets to groups leave a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MulticastTable {
    exits: BTreeMap<MulticastLid, PortSet>,
}

impl MulticastTable {
    /// A table with these entries.
    pub fn from_exits(exits: BTreeMap<MulticastLid, PortSet>) -> Self {
        Self { exits }
    }

    /// The groups that have ports here, in order.
    pub fn exits(&self) -> impl ExactSizeIterator<Item = (MulticastLid, PortSet)> {
        self.exits.iter().map(|(mlid, ports)| (*mlid, *ports))
    }

    /// Where packets to a group leave.
    pub fn exit(&self, mlid: MulticastLid) -> PortSet {
        self.exits.get(&mlid).copied().unwrap_or_default()
    }

    /// How many blocks of 32 groups it takes to send it, at each position.
    pub fn block_count(&self) -> u16 {
        let last = self.exits.last_key_value().map(|(mlid, _)| mlid.table_index() / MulticastBlock::ENTRIES);
        last.map_or(0, |block| u16::try_from(block + 1).unwrap_or(u16::MAX))
    }

    /// A block of 32 groups and 16 ports.
    pub fn block(&self, block: u16, position: u8) -> MulticastBlock {
        let first = usize::from(block) * MulticastBlock::ENTRIES;
        MulticastBlock(std::array::from_fn(|place| {
            let raw = u16::try_from(usize::from(MulticastLid::MIN) + first + place).ok();
            let mlid = raw.and_then(MulticastLid::from_wire);
            mlid.map_or(PortMask::default(), |mlid| self.exit(mlid).mask(position))
        }))
    }
}

/// The P_Keys of a port, by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PkeyTable {
    keys: Vec<Option<Pkey>>,
}

impl PkeyTable {
    /// A table with these entries; those beyond the end are empty.
    pub fn from_keys(keys: Vec<Option<Pkey>>) -> Self {
        Self { keys }
    }

    /// The entries by index, empty ones included.
    pub fn entries(&self) -> &[Option<Pkey>] {
        &self.keys
    }

    /// The keys in order of their indices.
    pub fn keys(&self) -> impl Iterator<Item = Pkey> {
        self.keys.iter().copied().flatten()
    }

    /// Where a key stands.
    pub fn index_of(&self, key: Pkey) -> Option<usize> {
        self.keys.iter().position(|held| *held == Some(key))
    }

    /// How many blocks it takes to send it.
    pub fn block_count(&self) -> u16 {
        u16::try_from(self.keys.len().div_ceil(PkeyBlock::ENTRIES)).unwrap_or(u16::MAX)
    }

    /// A block of 32 entries.
    pub fn block(&self, block: u16) -> PkeyBlock {
        let first = usize::from(block) * PkeyBlock::ENTRIES;
        PkeyBlock(std::array::from_fn(|place| self.keys.get(first + place).copied().flatten()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_blocks_end_at_the_top_with_no_port() {
        let table = LinearTable::from_exits((0..70).collect());
        assert_eq!((table.top(), table.block_count()), (69, 2));
        assert_eq!(table.block(0)[63], 63);
        assert_eq!(table.block(1)[..7], [64, 65, 66, 67, 68, 69, 0xff]);
        assert_eq!(table.block(2), [0xff; 64]);
        assert_eq!(table.exit(Lid::from_wire(69).unwrap()), PortNum::new(69));
        assert_eq!(table.exit(Lid::from_wire(70).unwrap()), None);
    }

    #[test]
    fn multicast_blocks_hold_sixteen_ports_a_position() {
        let ports: PortSet = [0, 1, 17, 36, 254].into_iter().filter_map(PortNum::new).collect();
        let group = MulticastLid::from_wire(0xc021).unwrap();
        let table = MulticastTable::from_exits([(group, ports)].into());
        assert_eq!(table.block_count(), 2);
        let masks = |position| table.block(1, position).0[1].0;
        assert_eq!((masks(0), masks(1), masks(2), masks(15)), (0b11, 0b10, 0b1_0000, 1 << 14));
        assert_eq!(table.block(0, 0).0[1].0, 0);
        assert_eq!(ports.iter().map(PortNum::to_wire).collect::<Vec<_>>(), [0, 1, 17, 36, 254]);
    }

    #[test]
    fn empty_entries_keep_their_index() {
        let table = PkeyTable::from_keys(vec![None, Some(Pkey::DEFAULT_FULL)]);
        assert_eq!(table.index_of(Pkey::DEFAULT_FULL), Some(1));
        assert_eq!(table.block(0).0[..2], [None, Some(Pkey::DEFAULT_FULL)]);
    }
}
