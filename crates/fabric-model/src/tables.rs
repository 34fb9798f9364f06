//! Forwarding and P_Key tables, and the blocks in which management datagrams carry them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_wire::{ForwardingBlock, Lid, MulticastBlock, MulticastLid, Pkey, PkeyBlock, PortMask, PortNum};

/// Largest size of all linear tables of a fabric together: about 5,000 switches with an entry for every unicast LID.
pub const LINEAR_BYTES_MAX: usize = 256 << 20;

/// Table entry for LIDs without a route.
const NO_PORT: u8 = 0xff;

/// Entries of a page. A change copies one page; a clone increments one reference count per page. Smaller pages make clones
/// slower, larger ones make changes slower.
const PAGE: usize = 1024;

/// Linear forwarding table: the output port of a switch by unicast LID. Copy-on-write in pages: a clone costs about a
/// hundredth of copying the entries, and a change copies only the page that holds the entry.
#[derive(Clone, Debug, Default)]
pub struct LinearTable {
    /// Output port by LID, 0xFF for none; the last page is filled with 0xFF.
    pages: Vec<Arc<[u8; PAGE]>>,
    /// Number of entries; LIDs from here on have no route.
    len: usize,
}

impl LinearTable {
    /// Entries of a block of LinearForwardingTable.
    pub const BLOCK: usize = ForwardingBlock::ENTRIES;

    /// From the output ports by LID, 0xFF for none. Entry 0 is ignored.
    pub fn from_exits(exits: impl AsRef<[u8]>) -> Self {
        let exits = exits.as_ref();
        let page = |part: &[u8]| {
            let mut page = [NO_PORT; PAGE];
            page[..part.len()].copy_from_slice(part);
            Arc::new(page)
        };
        Self { pages: exits.chunks(PAGE).map(page).collect(), len: exits.len() }
    }

    /// The output ports by LID, 0xFF for none.
    pub fn to_exits(&self) -> Vec<u8> {
        let mut exits = Vec::with_capacity(self.pages.len() * PAGE);
        self.pages.iter().for_each(|page| exits.extend_from_slice(&page[..]));
        exits.truncate(self.len);
        exits
    }

    /// Number of entries, including entry 0.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table has no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The output port for a LID; `None` if there is no route.
    #[inline]
    pub fn exit(&self, lid: Lid) -> Option<PortNum> {
        let raw = usize::from(lid.to_wire());
        self.pages.get(raw / PAGE).and_then(|page| PortNum::new(page[raw % PAGE]))
    }

    /// Sets or, with `None`, removes the output port for a LID. Extends the table if the LID is beyond its end.
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

    /// The LIDs with different output ports in both tables, in order. Shared pages are skipped.
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
                    entries.filter_map(move |(entry, _)| {
                        u16::try_from(first + block * Self::BLOCK + entry).ok().and_then(Lid::from_wire)
                    })
                })
            })
    }

    /// The highest LID with an entry: SwitchInfo:LinearFDBTop. 0 if the table is empty.
    pub fn top(&self) -> u16 {
        u16::try_from(self.len.saturating_sub(1)).unwrap_or(Lid::MAX)
    }

    /// Number of blocks up to the last entry.
    pub fn block_count(&self) -> u16 {
        u16::try_from(self.len.div_ceil(Self::BLOCK)).unwrap_or(u16::MAX)
    }

    /// A block of output ports; 0xFF beyond the top.
    pub fn block(&self, block: u16) -> [u8; Self::BLOCK] {
        let first = usize::from(block) * Self::BLOCK;
        let page = self.pages.get(first / PAGE);
        let part = page.and_then(|page| page[first % PAGE..].first_chunk());
        part.copied().unwrap_or([NO_PORT; Self::BLOCK])
    }
}

/// Shared pages are not compared entry by entry.
impl PartialEq for LinearTable {
    fn eq(&self, other: &Self) -> bool {
        let mut pages = self.pages.iter().zip(&other.pages);
        self.len == other.len && pages.all(|(own, others)| Arc::ptr_eq(own, others) || own == others)
    }
}

impl Eq for LinearTable {}

/// A set of ports of a switch, which may include port 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortSet([u64; 4]);

impl PortSet {
    /// The set without ports.
    pub const EMPTY: Self = Self([0; 4]);

    /// Adds a port to the set.
    pub fn insert(&mut self, port: PortNum) {
        self.0[port.index() / 64] |= 1 << (port.index() % 64);
    }

    /// Whether the set contains a port.
    pub const fn contains(self, port: PortNum) -> bool {
        self.0[port.index() / 64] & (1 << (port.index() % 64)) != 0
    }

    /// Whether the set contains no port.
    pub const fn is_empty(self) -> bool {
        self.0[0] | self.0[1] | self.0[2] | self.0[3] == 0
    }

    /// The ports in order.
    pub fn iter(self) -> impl Iterator<Item = PortNum> {
        (0..=u8::MAX).filter_map(PortNum::new).filter(move |port| self.contains(*port))
    }

    /// The mask of 16 ports as MulticastForwardingTable carries it: bit n is port `16 * position + n`. `position` is taken
    /// modulo 16.
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

/// Multicast forwarding table: the output ports of a switch by multicast LID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MulticastTable {
    exits: BTreeMap<MulticastLid, PortSet>,
}

impl MulticastTable {
    /// From the output ports by multicast LID.
    pub fn from_exits(exits: BTreeMap<MulticastLid, PortSet>) -> Self {
        Self { exits }
    }

    /// All entries in the order of their multicast LIDs.
    pub fn exits(&self) -> impl ExactSizeIterator<Item = (MulticastLid, PortSet)> {
        self.exits.iter().map(|(mlid, ports)| (*mlid, *ports))
    }

    /// The output ports for a multicast LID; empty if the table has no entry for it.
    pub fn exit(&self, mlid: MulticastLid) -> PortSet {
        self.exits.get(&mlid).copied().unwrap_or_default()
    }

    /// Number of blocks of 32 groups up to the last entry, for each position.
    pub fn block_count(&self) -> u16 {
        let last = self.exits.last_key_value().map(|(mlid, _)| mlid.table_index() / MulticastBlock::ENTRIES);
        last.map_or(0, |block| u16::try_from(block + 1).unwrap_or(u16::MAX))
    }

    /// A block of 32 groups with the masks of 16 ports, from port `16 * position`.
    pub fn block(&self, block: u16, position: u8) -> MulticastBlock {
        let first = usize::from(block) * MulticastBlock::ENTRIES;
        MulticastBlock(std::array::from_fn(|entry| {
            let mlid = MulticastLid::from_table_index(first + entry);
            mlid.map_or(PortMask::default(), |mlid| self.exit(mlid).mask(position))
        }))
    }
}

/// P_Key table of a port, by index. Copying it is not cheap; plans share tables with `Arc`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PkeyTable {
    keys: Vec<Option<Pkey>>,
}

impl PkeyTable {
    /// From the entries by index; entries beyond the end are empty.
    pub fn from_keys(keys: Vec<Option<Pkey>>) -> Self {
        Self { keys }
    }

    /// The entries by index, including empty ones.
    pub fn entries(&self) -> &[Option<Pkey>] {
        &self.keys
    }

    /// The P_Keys in the order of their indices.
    pub fn keys(&self) -> impl Iterator<Item = Pkey> {
        self.keys.iter().copied().flatten()
    }

    /// The first index of a P_Key.
    pub fn index_of(&self, key: Pkey) -> Option<usize> {
        self.keys.iter().position(|held| *held == Some(key))
    }

    /// Number of blocks up to the last entry.
    pub fn block_count(&self) -> u16 {
        u16::try_from(self.keys.len().div_ceil(PkeyBlock::ENTRIES)).unwrap_or(u16::MAX)
    }

    /// A block of 32 entries as P_KeyTable carries it.
    pub fn block(&self, block: u16) -> PkeyBlock {
        let first = usize::from(block) * PkeyBlock::ENTRIES;
        PkeyBlock(std::array::from_fn(|entry| self.keys.get(first + entry).copied().flatten()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An operation on one of several tables.
    #[derive(Clone, Debug)]
    enum TableStep {
        Write {
            table: usize,
            lid: Lid,
            exit: Option<PortNum>,
        },
        /// The table becomes a clone of another one.
        Copy {
            table: usize,
            from: usize,
        },
        /// The table is rebuilt from its bytes, so that it shares no page.
        Read {
            table: usize,
        },
    }

    const TABLES: usize = 3;

    fn step() -> impl Strategy<Value = TableStep> {
        // Mostly around the ends of pages.
        let raw = prop_oneof![1..4000_u16, 1020..1030_u16, 2040..2060_u16, Just(Lid::MAX)];
        let lid = raw.prop_map(|raw| Lid::from_wire(raw).unwrap());
        let exit = (0..=u8::MAX).prop_map(PortNum::new);
        let write =
            (0..TABLES, lid, exit).prop_map(|(table, lid, exit)| TableStep::Write { table, lid, exit });
        let copy = (0..TABLES, 0..TABLES).prop_map(|(table, from)| TableStep::Copy { table, from });
        prop_oneof![6 => write, 3 => copy, 1 => (0..TABLES).prop_map(|table| TableStep::Read { table })]
    }

    proptest! {
        #[test]
        fn a_paged_table_behaves_like_a_plain_list(steps in prop::collection::vec(step(), 1..60)) {
            let mut tables: [LinearTable; TABLES] = Default::default();
            let mut lists: [Vec<u8>; TABLES] = Default::default();
            for step in steps {
                match step {
                    TableStep::Write { table, lid, exit } => {
                        tables[table].set_exit(lid, exit);
                        let (list, raw) = (&mut lists[table], usize::from(lid.to_wire()));
                        list.resize(list.len().max(raw + 1), NO_PORT);
                        list[raw] = exit.map_or(NO_PORT, PortNum::to_wire);
                    }
                    TableStep::Copy { table, from } => {
                        tables[table] = tables[from].clone();
                        lists[table] = lists[from].clone();
                    }
                    TableStep::Read { table } => tables[table] = LinearTable::from_exits(&lists[table]),
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
    fn linear_blocks_are_0xff_beyond_the_top() {
        let table = LinearTable::from_exits((0..70).collect::<Vec<u8>>());
        assert_eq!((table.top(), table.block_count()), (69, 2));
        assert_eq!(table.block(0)[63], 63);
        assert_eq!(table.block(1)[..7], [64, 65, 66, 67, 68, 69, 0xff]);
        assert_eq!(table.block(2), [0xff; 64]);
        assert_eq!(table.exit(Lid::from_wire(69).unwrap()), PortNum::new(69));
        assert_eq!(table.exit(Lid::from_wire(70).unwrap()), None);
    }

    #[test]
    fn multicast_blocks_hold_16_ports_per_position() {
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
