//! Tables of which only a prefix is stored, because most entries of a large fabric are never written.
//!
//! A read returns a value for every index, stored or not. The length of the stored prefix says nothing about
//! the device.

use ib_wire::PortNum;

/// A table in which entries beyond the stored prefix have the value `empty`.
#[derive(Clone, Debug)]
pub(crate) struct LazyTable<T> {
    /// Its last entry is not `empty`.
    stored: Vec<T>,
    empty: T,
}

impl<T: Copy + PartialEq> LazyTable<T> {
    pub const fn new(empty: T) -> Self {
        Self { stored: Vec::new(), empty }
    }

    pub fn get(&self, index: usize) -> T {
        self.stored.get(index).copied().unwrap_or(self.empty)
    }

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

    /// The entries that are not `empty`, with their indices.
    pub fn filled(&self) -> impl Iterator<Item = (usize, T)> {
        self.stored.iter().copied().enumerate().filter(|(_, value)| *value != self.empty)
    }

    /// The stored prefix: all entries up to the last that is not `empty`.
    pub fn stored(&self) -> &[T] {
        &self.stored
    }
}

/// Ports in one mask of a multicast table.
const PORTS_PER_MASK: usize = 16;

/// The multicast forwarding table of a switch: a set of output ports for each group.
#[derive(Clone, Debug)]
pub(crate) struct MulticastTable {
    /// Masks per group, enough for one bit per port including port 0.
    positions: usize,
    masks: LazyTable<u16>,
}

impl MulticastTable {
    /// The table of a switch with this many external ports, without groups.
    pub fn new(port_count: u8) -> Self {
        Self { positions: usize::from(port_count) / PORTS_PER_MASK + 1, masks: LazyTable::new(0) }
    }

    /// Number of masks per group, at least 1.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// One mask of a group, the lowest port in the lowest bit. `position` must be below
    /// [`MulticastTable::positions`].
    pub fn mask(&self, group: usize, position: usize) -> u16 {
        self.masks.get(group * self.positions + position)
    }

    /// Writes one mask of a group. `position` must be below [`MulticastTable::positions`].
    pub fn put_mask(&mut self, group: usize, position: usize, mask: u16) {
        self.masks.put(group * self.positions + position, mask);
    }

    /// Whether a port is an output port of a group.
    pub fn has_exit(&self, group: usize, port: PortNum) -> bool {
        let (position, bit) = (port.index() / PORTS_PER_MASK, port.index() % PORTS_PER_MASK);
        position < self.positions && self.mask(group, position) >> bit & 1 == 1
    }

    /// One more than the highest group that has an output port.
    pub fn group_end(&self) -> usize {
        self.masks.stored().len().div_ceil(self.positions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_beyond_the_stored_prefix_is_empty() {
        let mut table = LazyTable::new(0xff_u8);
        table.put(70, 0xff);
        assert_eq!((table.stored(), table.get(70)), (&[][..], 0xff), "empty entries take no room");
        table.put(2, 7);
        assert_eq!((table.get(1), table.get(2), table.get(3)), (0xff, 7, 0xff));
        assert_eq!(table.filled().collect::<Vec<_>>(), [(2, 7)]);
        table.put(2, 0xff);
        assert_eq!((table.get(2), table.stored()), (0xff, &[][..]));
    }

    /// Regression: with all members on low ports, the higher masks are never stored.
    #[test]
    fn the_last_group_is_found_for_every_member_port() {
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
