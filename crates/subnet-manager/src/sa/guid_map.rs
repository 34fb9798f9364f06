//! A map by GUID.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use ib_wire::Guid;

/// A map whose keys only the plan of a fabric chooses. A hash function that resists chosen keys would take a large part of the
/// time of a path query.
pub(super) type GuidMap<V> = HashMap<Guid, V, BuildHasherDefault<GuidHasher>>;

/// Multiplies a GUID and folds the product, so that all of its bits count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GuidHasher(u64);

/// The fractional part of the golden ratio: odd, and without a pattern of bits.
const FACTOR: u128 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for GuidHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * FACTOR;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::Hash;

    use super::*;

    #[test]
    fn guids_in_a_row_have_different_hashes_in_low_and_high_bits() {
        let hash = |number: u64| {
            let mut hasher = GuidHasher::default();
            Guid::from_wire(number).unwrap().hash(&mut hasher);
            hasher.finish()
        };
        for step in [1, 4, 16, 1 << 16, 1 << 32, 1 << 48] {
            let hashes: Vec<u64> = (1..=4096).map(|number| hash(number * step)).collect();
            let low: BTreeSet<u64> = hashes.iter().map(|hash| hash % 4096).collect();
            let high: BTreeSet<u64> = hashes.iter().map(|hash| hash >> 52).collect();
            assert!(low.len() > 2048 && high.len() > 2048, "step {step}: {} {}", low.len(), high.len());
        }
    }
}
