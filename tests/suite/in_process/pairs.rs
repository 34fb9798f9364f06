//! Sets of pairs of adapter ports, a bit for each: large fabrics have millions.

use fabric_model::FabricPlan;
use ib_wire::{Membership, PartitionNumber, Pkey};
use std::collections::BTreeMap;

use super::tables::{Places, Violation};

/// Pairs of places in [`Places::ends`]: who sends, and who receives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PairSet {
    ends: usize,
    /// A row of bits for each sender.
    rows: Vec<Bits>,
}

/// Places of ends.
type Bits = Vec<u64>;

fn bits(ends: usize) -> Bits {
    vec![0; ends.div_ceil(64)]
}

fn set_bit(row: &mut Bits, place: usize) {
    row[place / 64] |= 1 << (place % 64);
}

fn unite(row: &mut Bits, other: &Bits) {
    row.iter_mut().zip(other).for_each(|(word, more)| *word |= more);
}

impl PairSet {
    /// No pair of some ends.
    pub fn new(ends: usize) -> Self {
        Self { ends, rows: vec![bits(ends); ends] }
    }

    pub fn insert(&mut self, (from, to): (usize, usize)) {
        set_bit(&mut self.rows[from], to);
    }

    pub fn contains(&self, (from, to): (usize, usize)) -> bool {
        self.rows.get(from).is_some_and(|row| row[to / 64] >> (to % 64) & 1 == 1)
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = (0..self.rows.len()).flat_map(|from| (0..self.ends).map(move |to| (from, to)));
        all.filter(|pair| self.contains(*pair))
    }

    pub fn len(&self) -> usize {
        self.rows.iter().flatten().map(|word| word.count_ones() as usize).sum()
    }

    /// Adds the pairs of another set. A set that was never given a size gets that of the other.
    pub fn unite(&mut self, other: &Self) {
        if self.rows.is_empty() {
            return self.clone_from(other);
        }
        self.rows.iter_mut().zip(&other.rows).for_each(|(row, more)| unite(row, more));
    }

    /// The first pair that another set does not have.
    fn beyond(&self, other: &Self) -> Option<(usize, usize)> {
        let none = Bits::new();
        (self.rows.iter().enumerate()).find_map(|(from, row)| {
            let allowed = other.rows.get(from).unwrap_or(&none).iter().copied().chain(std::iter::repeat(0));
            let mut words = row.iter().zip(allowed).map(|(word, allowed)| word & !allowed).enumerate();
            let (index, word) = words.find(|(_, word)| *word != 0)?;
            Some((from, 64 * index + word.trailing_zeros() as usize))
        })
    }
}

/// Pairs of ports that reach each other: from adapters that obey their tables, and from adapters that send with any key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pairs {
    pub honest: PairSet,
    pub hostile: PairSet,
}

impl Pairs {
    pub fn new(ends: usize) -> Self {
        Self { honest: PairSet::new(ends), hostile: PairSet::new(ends) }
    }

    /// The pairs that a plan allows.
    pub fn of_plan(plan: &FabricPlan, places: &Places) -> Self {
        let ends = places.ends.len();
        let held = |wanted: fn(Pkey) -> bool| {
            let mut holders: BTreeMap<PartitionNumber, Bits> = BTreeMap::new();
            for port in plan.adapter_ports() {
                for key in port.pkeys.keys().filter(|key| wanted(*key)) {
                    let holders = holders.entry(key.partition()).or_insert_with(|| bits(ends));
                    set_bit(holders, places.ends[&port.guid]);
                }
            }
            holders
        };
        let (members, full) = (held(|_| true), held(|key| key.membership() == Membership::Full));
        let mut pairs = Self::new(ends);
        for port in plan.adapter_ports() {
            let from = places.ends[&port.guid];
            for key in port.pkeys.keys() {
                // A full member talks to all, a limited one to full members.
                let reached = if key.membership() == Membership::Full { &members } else { &full };
                reached
                    .get(&key.partition())
                    .into_iter()
                    .for_each(|reached| unite(&mut pairs.honest.rows[from], reached));
                unite(&mut pairs.hostile.rows[from], &members[&key.partition()]);
            }
            for row in [&mut pairs.honest.rows[from], &mut pairs.hostile.rows[from]] {
                row[from / 64] &= !(1 << (from % 64));
            }
        }
        pairs
    }

    pub fn or(mut self, other: &Self) -> Self {
        self.honest.unite(&other.honest);
        self.hostile.unite(&other.hostile);
        self
    }

    /// The first pair that is not allowed.
    pub fn beyond(&self, allowed: &Self) -> Option<Violation> {
        let honest = self.honest.beyond(&allowed.honest).map(|pair| (pair, false));
        let reaches = honest.or_else(|| self.hostile.beyond(&allowed.hostile).map(|pair| (pair, true)));
        reaches.map(|((from, to), hostile)| Violation::Reaches { from, to, hostile })
    }
}
