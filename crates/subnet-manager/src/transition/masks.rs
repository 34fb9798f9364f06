//! Multicast forwarding tables.

use fabric_model::plan::MulticastTable;
use ib_wire::{MulticastBlock, PortMask};

use super::{TwoPhases, two_phases};

/// A write of 32 groups and 16 ports of a multicast table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupBlock {
    /// Number of the block of 32 groups.
    pub block: u16,
    /// Number of the group of 16 ports.
    pub position: u8,
    pub masks: MulticastBlock,
}

/// The part of a multicast table that may be in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    blocks: u16,
    positions: u8,
}

/// The writes of a switch's multicast table. `held` is `None` for a block and position that was not read.
/// `blocks` is the number of blocks that may be in use; those of the plan are included anyway.
///
/// A packet to a group leaves through every port of the entry except its input port, so the ports of a group
/// over all switches must not form a cycle. Those of the old tree do not, those of the new one do not, but a
/// mixture may. During the first phase they are a subset of the old tree everywhere, during the second a
/// subset of the new one.
pub fn groups(
    held: impl Fn(u16, u8) -> Option<MulticastBlock>,
    wanted: &MulticastTable,
    blocks: u16,
    port_count: u8,
) -> TwoPhases<GroupBlock> {
    let extent = Extent { blocks: blocks.max(wanted.block_count()), positions: port_count / 16 + 1 };
    let mut writes = TwoPhases { shrink: Vec::new(), grow: Vec::new() };
    for (block, position) in extent.positions() {
        let wanted = wanted.block(block, position);
        let common = |held: &MulticastBlock| {
            MulticastBlock(std::array::from_fn(|group| PortMask(held.0[group].0 & wanted.0[group].0)))
        };
        let empty = MulticastBlock([PortMask::default(); MulticastBlock::ENTRIES]);
        let (shrink, grow) = two_phases(held(block, position), common, wanted, empty);
        writes.shrink.extend(shrink.map(|masks| GroupBlock { block, position, masks }));
        writes.grow.extend(grow.map(|masks| GroupBlock { block, position, masks }));
    }
    writes
}

impl Extent {
    fn positions(self) -> impl Iterator<Item = (u16, u8)> {
        (0..self.blocks).flat_map(move |block| (0..self.positions).map(move |position| (block, position)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric_model::plan::PortSet;
    use ib_wire::{MulticastLid, PortNum};

    fn table(ports: &[u8]) -> MulticastTable {
        let ports: PortSet = ports.iter().filter_map(|port| PortNum::new(*port)).collect();
        MulticastTable::from_exits([(MulticastLid::from_wire(0xc000).unwrap(), ports)].into())
    }

    #[test]
    fn ports_of_both_trees_stay_and_others_change_in_their_phase() {
        let (old, new) = (table(&[1, 2, 20]), table(&[2, 3, 20]));
        let writes = groups(|block, position| Some(old.block(block, position)), &new, 1, 36);
        let expected =
            |table: &MulticastTable| vec![GroupBlock { block: 0, position: 0, masks: table.block(0, 0) }];
        assert_eq!(writes.shrink, expected(&table(&[2])));
        assert_eq!(writes.grow, expected(&table(&[2, 3])));
        assert!(groups(|block, position| Some(new.block(block, position)), &new, 1, 36).is_empty());
    }

    #[test]
    fn groups_outside_the_plan_are_emptied() {
        let held = |_, _| Some(MulticastBlock([PortMask(2); 32]));
        let empty = MulticastTable::default();
        let writes = groups(held, &empty, 2, 8);
        assert_eq!((writes.shrink.len(), writes.grow.len()), (2, 0));
        assert_eq!(groups(|_, _| None, &empty, 1, 8).shrink.len(), 1, "an unread block may contain anything");
    }
}
