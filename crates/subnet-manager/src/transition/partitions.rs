//! P_Key tables of adapter ports, of switch port 0, and of switch ports that enforce partitions.

use fabric_model::plan::PkeyTable;
use ib_wire::{Membership, Pkey, PkeyBlock};

use super::{TwoPhases, two_phases};

/// A write of a P_Key table block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PkeyWrite {
    /// Number of the block of 32 entries.
    pub block: u16,
    pub keys: PkeyBlock,
}

/// The writes of a port's table of `capacity` entries. `held` is `None` for a block that was not read.
///
/// Two ports can communicate if both hold a P_Key of one partition and at least one of them a full one. In
/// the first phase every table is a subset of what it was; in the second phase a subset of what is wanted. So
/// during the first phase ports that can communicate could do so before, and during the second phase they are
/// meant to. This holds for any two ports and any progress, because it holds for each table by itself.
///
/// For a switch port that does not enforce its table yet, write `wanted` directly, because the table has no
/// effect. Then enable enforcement, which only restricts, before keys grow. Disable enforcement only after
/// keys have grown.
pub fn pkeys(
    held: impl Fn(u16) -> Option<PkeyBlock>,
    wanted: &PkeyTable,
    capacity: u16,
) -> TwoPhases<PkeyWrite> {
    let mut writes = TwoPhases { shrink: Vec::new(), grow: Vec::new() };
    for block in 0..capacity.div_ceil(PkeyBlock::ENTRIES as u16) {
        let common = |held: &PkeyBlock| PkeyBlock(held.0.map(|key| kept(key?, wanted)));
        let empty = PkeyBlock([None; PkeyBlock::ENTRIES]);
        let (shrink, grow) = two_phases(held(block), common, wanted.block(block), empty);
        writes.shrink.extend(shrink.map(|keys| PkeyWrite { block, keys }));
        writes.grow.extend(grow.map(|keys| PkeyWrite { block, keys }));
    }
    writes
}

/// The entries of a table that may stay, at their indices.
pub fn shrunk(held: &[Option<Pkey>], wanted: &PkeyTable) -> Vec<Option<Pkey>> {
    held.iter().map(|key| kept((*key)?, wanted)).collect()
}

/// What may stay of a P_Key: the key itself if the partition is wanted with the same or full membership, the
/// limited key if it is wanted with less.
fn kept(key: Pkey, wanted: &PkeyTable) -> Option<Pkey> {
    let mut same = wanted.keys().filter(|other| other.partition() == key.partition()).peekable();
    same.peek()?;
    let full = same.any(|other| other.membership() == Membership::Full);
    Some(if full { key } else { key.partition().key(Membership::Limited) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(raw: &[u16]) -> Vec<Option<Pkey>> {
        raw.iter().map(|raw| Pkey::from_wire(*raw)).collect()
    }

    fn block(raw: &[u16]) -> PkeyBlock {
        PkeyTable::from_keys(keys(raw)).block(0)
    }

    #[test]
    fn the_shrunk_table_is_a_subset_of_both() {
        let wanted = PkeyTable::from_keys(keys(&[0xffff, 0x8001, 0x0002, 0x8003, 0x0003]));
        let held = keys(&[0x7fff, 0x0001, 0x8002, 0x0002, 0, 0x8003, 0x8004]);
        assert_eq!(shrunk(&held, &wanted), keys(&[0x7fff, 0x0001, 0x0002, 0x0002, 0, 0x8003, 0]));
        assert_eq!(shrunk(&held, &PkeyTable::default()), vec![None; 7]);
        assert_eq!(shrunk(wanted.entries(), &wanted), wanted.entries());
    }

    #[test]
    fn a_table_that_only_grows_or_only_shrinks_is_written_once() {
        let (small, large) = ([0xffff], [0xffff, 0x8001]);
        let writes = |held: &'static [u16], wanted: &[u16]| {
            pkeys(|_| Some(block(held)), &PkeyTable::from_keys(keys(wanted)), 32)
        };
        let grown = writes(&[0xffff], &large);
        assert_eq!((grown.shrink.len(), grown.grow.len()), (0, 1));
        let shrunk = writes(&[0xffff, 0x8001], &small);
        assert_eq!((shrunk.shrink.len(), shrunk.grow.len()), (1, 0));
        let replaced = writes(&[0xffff, 0x8002], &large);
        assert_eq!(replaced.shrink, [PkeyWrite { block: 0, keys: block(&small) }]);
        assert_eq!(replaced.grow, [PkeyWrite { block: 0, keys: block(&large) }]);
        assert!(writes(&[0xffff], &small).is_empty());
    }

    #[test]
    fn an_unread_block_is_emptied_first() {
        let wanted = PkeyTable::from_keys(keys(&[0xffff]));
        let writes = pkeys(|number| (number == 0).then(|| block(&[0xffff])), &wanted, 64);
        assert_eq!(writes.shrink, [PkeyWrite { block: 1, keys: block(&[]) }]);
        assert_eq!(writes.grow, []);
    }
}
