//! Bits that devices do not support: those that stayed unchanged after a Set. They are recorded once and not
//! written again.

use std::collections::BTreeMap;

use ib_wire::{Attribute, Guid, PortNum, SMP_DATA_LEN};
use serde::{Deserialize, Serialize};

use crate::attribute_key::AttributeRef;
use crate::entry_class::EntryClass;
use crate::lacks::Lacks;

/// Bits of attributes that devices do not support.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Entry>", into = "Vec<Entry>")]
pub struct Unsupported {
    targets: BTreeMap<AttributeRef, [u8; SMP_DATA_LEN]>,
}

/// One entry of the list, as stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    node: Guid,
    port: PortNum,
    attribute: u16,
    modifier: u32,
    /// Byte offsets and masks of the unsupported bits.
    bits: Vec<(u8, u8)>,
}

impl Unsupported {
    /// Records the bits that a Set should have changed and did not. Returns whether any of them is new.
    pub(crate) fn learn(
        &mut self,
        target: AttributeRef,
        before: &[u8; SMP_DATA_LEN],
        requested: &[u8; SMP_DATA_LEN],
        answered: &[u8; SMP_DATA_LEN],
    ) -> bool {
        let counts = mask_that_counts(target.2.0);
        let stayed: [u8; SMP_DATA_LEN] =
            std::array::from_fn(|i| (requested[i] ^ before[i]) & (requested[i] ^ answered[i]) & counts[i]);
        if stayed == [0; SMP_DATA_LEN] {
            return false;
        }
        let known = self.targets.entry(target).or_insert([0; SMP_DATA_LEN]);
        let all: [u8; SMP_DATA_LEN] = std::array::from_fn(|i| known[i] | stayed[i]);
        std::mem::replace(known, all) != all
    }

    /// Whether a held value differs from the wanted one in a supported bit.
    pub(crate) fn differs(
        &self,
        target: AttributeRef,
        held: &[u8; SMP_DATA_LEN],
        wanted: &[u8; SMP_DATA_LEN],
    ) -> bool {
        held != wanted
            && match self.targets.get(&target) {
                None => true,
                Some(mask) => (0..SMP_DATA_LEN).any(|i| (held[i] ^ wanted[i]) & !mask[i] != 0),
            }
    }

    /// Forgets the bits of an attribute, so that they are written again.
    pub(crate) fn forget(&mut self, target: &AttributeRef) {
        self.targets.remove(target);
    }

    /// Forgets the bits of a class that are not known as lacks, so that they are written again and recorded as such.
    pub(crate) fn forget_unless_lacking(&mut self, class: EntryClass, lacks: &Lacks) {
        self.targets.retain(|target, mask| {
            let of_mask = EntryClass::of_difference(target.2.0, mask, Some(&[0; SMP_DATA_LEN]));
            of_mask != class || lacks.contains(target)
        });
    }

    /// Number of attributes with unsupported bits.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Whether no unsupported bit is known.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }
}

/// Bits that show whether a Set took effect. States, counters and one-time commands do not.
fn mask_that_counts(attribute: Attribute) -> [u8; SMP_DATA_LEN] {
    let mut mask = [0xff; SMP_DATA_LEN];
    match attribute {
        Attribute::PORT_INFO => {
            // PortState, PortPhysicalState, ClientReregister and the violation counters.
            (mask[32], mask[33], mask[51]) = (0xf0, 0x0f, 0x7f);
            mask[44..50].fill(0);
        }
        // PortStateChange.
        Attribute::SWITCH_INFO => mask[11] = 0xfb,
        _ => {}
    }
    mask
}

impl From<Vec<Entry>> for Unsupported {
    fn from(entries: Vec<Entry>) -> Self {
        let mut targets = BTreeMap::new();
        for entry in entries {
            let mut mask = [0; SMP_DATA_LEN];
            for (offset, bits) in entry.bits {
                if let Some(byte) = mask.get_mut(usize::from(offset)) {
                    *byte = bits;
                }
            }
            targets.insert((entry.node, entry.port, (Attribute(entry.attribute), entry.modifier)), mask);
        }
        Self { targets }
    }
}

impl From<Unsupported> for Vec<Entry> {
    fn from(unsupported: Unsupported) -> Self {
        let entry = |((node, port, key), mask): (AttributeRef, [u8; SMP_DATA_LEN])| Entry {
            node,
            port,
            attribute: key.0.0,
            modifier: key.1,
            bits: (0..).zip(mask).filter(|(_, bits)| *bits != 0).collect(),
        };
        unsupported.targets.into_iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(attribute: Attribute) -> AttributeRef {
        (Guid::from_wire(7).unwrap(), PortNum::MANAGEMENT, (attribute, 3))
    }

    #[test]
    fn unsupported_bits_no_longer_count_as_different() {
        let mut unsupported = Unsupported::default();
        let target = target(Attribute::PORT_INFO);
        let (before, mut requested, mut answered) = ([0; 64], [0; 64], [0; 64]);
        requested[36] = 0x40;
        requested[16] = 9;
        answered[16] = 9;
        assert!(unsupported.differs(target, &before, &requested));
        assert!(unsupported.learn(target, &before, &requested, &answered));
        assert!(!unsupported.learn(target, &before, &requested, &answered), "no news");
        assert!(!unsupported.differs(target, &answered, &requested));
        answered[16] = 8;
        assert!(unsupported.differs(target, &answered, &requested), "what it takes still counts");

        let json = serde_json::to_string(&unsupported).unwrap();
        assert_eq!(serde_json::from_str::<Unsupported>(&json).unwrap(), unsupported);
    }

    #[test]
    fn states_and_counters_do_not_count_as_unsupported() {
        let mut unsupported = Unsupported::default();
        let mut requested = [0; 64];
        (requested[32], requested[33], requested[45], requested[51]) = (0x03, 0x50, 1, 0x80);
        assert!(!unsupported.learn(target(Attribute::PORT_INFO), &[0; 64], &requested, &[0; 64]));
        assert!(unsupported.learn(target(Attribute::PKEY_TABLE), &[0; 64], &requested, &[0; 64]));
    }
}
