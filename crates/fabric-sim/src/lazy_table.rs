//! Tables that are stored only as far as something was written: most entries of a large fabric never are.
//!
//! Whoever reads one asks for an entry and gets a value, whether it is stored or not. There is no way to ask for a
//! range of stored entries: the end of what is stored says nothing about a device.

use ib_wire::PortNum;

/// A table whose entries beyond the stored ones hold `empty`.
#[derive(Clone, Debug)]
pub(crate) struct LazyTable<T> {
    /// Ends with an entry that is not empty, if there is one.
    stored: Vec<T>,
    empty: T,
}

impl<T: Copy + PartialEq> LazyTable<T> {
    /// A table of empty entries.
    pub const fn new(empty: T) -> Self {
        Self { stored: Vec::new(), empty }
    }

    /// The entry at an index.
    pub fn get(&self, index: usize) -> T {
        self.stored.get(index).copied().unwrap_or(self.empty)
    }

    /// Writes an entry.
    pub fn put(&mut self, index: usize, value: T) {
        if index >= self.stored.len() {
            if value == self.empty {
                return;
            }
            self.stored.resize(index + 1, self.empty);
        }
        self.stored[index] = value;
        while self.stored.last().is_some_and(|last| *last == self.empty) {
            self.stored.pop();
        }
    }

    /// The entries that are not empty, each with its index.
    pub fn filled(&self) -> impl Iterator<Item = (usize, T)> {
        self.stored.iter().copied().enumerate().filter(|(_, value)| *value != self.empty)
    }

    /// All entries up to the last one that is not empty.
    pub fn stored(&self) -> &[T] {
        &self.stored
    }
}

/// Ports in a word of a multicast table.
const PORTS_PER_MASK: usize = 16;

/// The multicast forwarding table of a switch: the exit ports of each group.
#[derive(Clone, Debug)]
pub(crate) struct MulticastTable {
    /// Words of a group: as many as it takes for a bit per port, port 0 included.
    positions: usize,
    masks: LazyTable<u16>,
}

impl MulticastTable {
    /// The table of a switch with this many ports, without any group.
    pub fn new(port_count: u8) -> Self {
        Self { positions: usize::from(port_count) / PORTS_PER_MASK + 1, masks: LazyTable::new(0) }
    }

    /// Words of a group.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Sixteen ports of a group, the lowest in the lowest bit. `position` is below [`MulticastTable::positions`].
    pub fn mask(&self, group: usize, position: usize) -> u16 {
        self.masks.get(group * self.positions + position)
    }

    /// Writes sixteen ports of a group. `position` is below [`MulticastTable::positions`].
    pub fn put_mask(&mut self, group: usize, position: usize, mask: u16) {
        self.masks.put(group * self.positions + position, mask);
    }

    /// Whether packets to a group leave by a port.
    pub fn has_exit(&self, group: usize, port: PortNum) -> bool {
        let (position, bit) = (port.index() / PORTS_PER_MASK, port.index() % PORTS_PER_MASK);
        position < self.positions && self.mask(group, position) >> bit & 1 == 1
    }

    /// One more than the highest group that has an exit.
    pub fn group_end(&self) -> usize {
        self.masks.stored().len().div_ceil(self.positions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_beyond_what_is_stored_is_empty() {
        let mut table = LazyTable::new(0xff_u8);
        table.put(70, 0xff);
        assert_eq!((table.stored(), table.get(70)), (&[][..], 0xff), "empty entries take no room");
        table.put(2, 7);
        assert_eq!((table.get(1), table.get(2), table.get(3)), (0xff, 7, 0xff));
        assert_eq!(table.filled().collect::<Vec<_>>(), [(2, 7)]);
        table.put(2, 0xff);
        assert_eq!((table.get(2), table.stored()), (0xff, &[][..]));
    }

    /// The defect this type exists for: all members on low ports, so the higher words were never stored.
    #[test]
    fn the_last_group_is_found_whichever_ports_it_has() {
        for port_count in [1, 15, 16, 36, 64, 254] {
            for port in (0..=port_count).filter_map(PortNum::new) {
                let mut table = MulticastTable::new(port_count);
                table.put_mask(3, port.index() / 16, 1 << (port.index() % 16));
                let exits = |group| {
                    (0..=port_count).filter_map(PortNum::new).filter(move |it| (group, *it) == (3, port))
                };
                for group in 0..5 {
                    let found =
                        (0..=port_count).filter_map(PortNum::new).filter(|it| table.has_exit(group, *it));
                    assert!(found.eq(exits(group)), "port {port} of {port_count}, group {group}");
                }
                assert_eq!(table.group_end(), 4);
            }
        }
    }
}
