//! Tables as devices hold them, cut into the blocks in which they are sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_wire::{ForwardingBlock, Lid, MulticastBlock, MulticastLid, Pkey, PkeyBlock, PortMask, PortNum};

/// Bytes of all linear tables of a fabric together: 5,000 switches that forward to every LID there is.
pub const LINEAR_BYTES_MAX: usize = 256 << 20;

/// What a linear table holds where there is no exit.
const NO_PORT: u8 = 0xff;

/// Entries of a page: a table that changes copies the pages it changes and counts up once for each of the others. With
/// fewer entries the counting takes longer, with more the copying.
const PAGE: usize = 1024;

/// Where packets leave a switch, by LID. Copies share what they have in common: a copy takes a hundredth of what the entries
/// would take, and a change to it copies only what lies around the changed entry.
#[derive(Clone, Debug, Default)]
pub struct LinearTable {
    /// Exit port by LID, 0xFF for none, also beyond the end of the table.
    pages: Vec<Arc<[u8; PAGE]>>,
    /// LIDs from here on have no exit.
    len: usize,
}

impl LinearTable {
    /// Entries of a block.
    pub const BLOCK: usize = ForwardingBlock::ENTRIES;

    /// A table from its bytes: the exit port by LID, 0xFF for none. Entry 0 means nothing.
    pub fn from_exits(exits: impl AsRef<[u8]>) -> Self {
        let exits = exits.as_ref();
        let page = |part: &[u8]| {
            let mut page = [NO_PORT; PAGE];
            page[..part.len()].copy_from_slice(part);
            Arc::new(page)
        };
        Self { pages: exits.chunks(PAGE).map(page).collect(), len: exits.len() }
    }

    /// The bytes: the exit port by LID, 0xFF for none.
    pub fn to_exits(&self) -> Vec<u8> {
        let mut exits = Vec::with_capacity(self.pages.len() * PAGE);
        self.pages.iter().for_each(|page| exits.extend_from_slice(&page[..]));
        exits.truncate(self.len);
        exits
    }

    /// How many entries it has, entry 0 included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where packets to a LID leave.
    #[inline]
    pub fn exit(&self, lid: Lid) -> Option<PortNum> {
        let raw = usize::from(lid.to_wire());
        self.pages.get(raw / PAGE).and_then(|page| PortNum::new(page[raw % PAGE]))
    }

    /// Lets packets to a LID leave elsewhere; `None` for nowhere. A LID beyond the end makes the table longer.
    pub fn set_exit(&mut self, lid: Lid, exit: Option<PortNum>) {
        let raw = usize::from(lid.to_wire());
        let byte = exit.map_or(NO_PORT, PortNum::to_wire);
        if raw >= self.len {
            self.len = raw + 1;
            self.pages.resize_with(self.len.div_ceil(PAGE), || Arc::new([NO_PORT; PAGE]));
        }
        let page = &mut self.pages[raw / PAGE];
        if page[raw % PAGE] != byte {
            Arc::make_mut(page)[raw % PAGE] = byte;
        }
    }

    /// The LIDs whose packets leave elsewhere than by another table, in order. What both share is not looked into.
    pub fn differences<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = Lid> + 'a {
        (0..self.pages.len().max(other.pages.len()))
            .filter_map(|at| {
                let (own, others) = (self.pages.get(at), other.pages.get(at));
                let is_shared = own.zip(others).is_some_and(|(own, others)| Arc::ptr_eq(own, others));
                let bytes = |page: Option<&'a Arc<[u8; PAGE]>>| page.map_or(&[NO_PORT; PAGE], |page| &**page);
                (!is_shared).then(|| (at * PAGE, bytes(own), bytes(others)))
            })
            .flat_map(|(first, own, others)| {
                let blocks = own.chunks(Self::BLOCK).zip(others.chunks(Self::BLOCK)).enumerate();
                blocks.filter(|(_, (own, others))| own != others).flat_map(move |(block, (own, others))| {
                    let entries = own.iter().zip(others).enumerate().filter(|(_, (own, other))| own != other);
                    entries.filter_map(move |(place, _)| {
                        u16::try_from(first + block * Self::BLOCK + place).ok().and_then(Lid::from_wire)
                    })
                })
            })
    }

    /// The highest LID it speaks of: LinearFDBTop. 0 if it is empty.
    pub fn top(&self) -> u16 {
        u16::try_from(self.len.saturating_sub(1)).unwrap_or(Lid::MAX)
    }

    /// How many blocks it takes to send it.
    pub fn block_count(&self) -> u16 {
        u16::try_from(self.len.div_ceil(Self::BLOCK)).unwrap_or(u16::MAX)
    }

    /// A block as a datagram carries it; 0xFF beyond the top.
    pub fn block(&self, block: u16) -> [u8; Self::BLOCK] {
        let first = usize::from(block) * Self::BLOCK;
        let page = self.pages.get(first / PAGE);
        let part = page.and_then(|page| page[first % PAGE..].first_chunk());
        part.copied().unwrap_or([NO_PORT; Self::BLOCK])
    }
}

/// Pages that are shared are not looked into.
impl PartialEq for LinearTable {
    fn eq(&self, other: &Self) -> bool {
        let mut pages = self.pages.iter().zip(&other.pages);
        self.len == other.len && pages.all(|(own, others)| Arc::ptr_eq(own, others) || own == others)
    }
}

impl Eq for LinearTable {}

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
    use proptest::prelude::*;

    use super::*;

    /// What happens to one of some tables.
    #[derive(Clone, Debug)]
    enum Step {
        /// An entry is written.
        Write { table: usize, lid: Lid, exit: Option<PortNum> },
        /// It becomes a copy of another.
        Copy { table: usize, from: usize },
        /// It is read anew from its bytes, so that it shares nothing.
        Read { table: usize },
    }

    const TABLES: usize = 3;

    fn step() -> impl Strategy<Value = Step> {
        // Around the ends of pages most of all.
        let raw = prop_oneof![1..4000_u16, 1020..1030_u16, 2040..2060_u16, Just(Lid::MAX)];
        let lid = raw.prop_map(|raw| Lid::from_wire(raw).unwrap());
        let exit = (0..=u8::MAX).prop_map(PortNum::new);
        let write = (0..TABLES, lid, exit).prop_map(|(table, lid, exit)| Step::Write { table, lid, exit });
        let copy = (0..TABLES, 0..TABLES).prop_map(|(table, from)| Step::Copy { table, from });
        prop_oneof![6 => write, 3 => copy, 1 => (0..TABLES).prop_map(|table| Step::Read { table })]
    }

    proptest! {
        #[test]
        fn a_table_in_pages_is_as_a_plain_list(steps in prop::collection::vec(step(), 1..60)) {
            let mut tables: [LinearTable; TABLES] = Default::default();
            let mut lists: [Vec<u8>; TABLES] = Default::default();
            for step in steps {
                match step {
                    Step::Write { table, lid, exit } => {
                        tables[table].set_exit(lid, exit);
                        let (list, raw) = (&mut lists[table], usize::from(lid.to_wire()));
                        list.resize(list.len().max(raw + 1), NO_PORT);
                        list[raw] = exit.map_or(NO_PORT, PortNum::to_wire);
                    }
                    Step::Copy { table, from } => {
                        tables[table] = tables[from].clone();
                        lists[table] = lists[from].clone();
                    }
                    Step::Read { table } => tables[table] = LinearTable::from_exits(&lists[table]),
                }
            }
            for (table, list) in tables.iter().zip(&lists) {
                prop_assert_eq!(&table.to_exits(), list);
                prop_assert_eq!(usize::from(table.block_count()), list.len().div_ceil(LinearTable::BLOCK));
                for (block, part) in (0..).zip(list.chunks(LinearTable::BLOCK)) {
                    prop_assert_eq!(&table.block(block)[..part.len()], part);
                }
                for (other, others) in tables.iter().zip(&lists) {
                    prop_assert_eq!(table == other, list == others);
                    let exit = |list: &[u8], lid: Lid| {
                        list.get(usize::from(lid.to_wire())).copied().and_then(PortNum::new)
                    };
                    let lids = (1..=Lid::MAX).filter_map(Lid::from_wire);
                    let differing: Vec<Lid> =
                        lids.filter(|lid| exit(list, *lid) != exit(others, *lid)).collect();
                    prop_assert_eq!(table.differences(other).collect::<Vec<_>>(), differing);
                }
            }
        }
    }

    #[test]
    fn linear_blocks_end_at_the_top_with_no_port() {
        let table = LinearTable::from_exits((0..70).collect::<Vec<u8>>());
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
