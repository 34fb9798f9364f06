//! Sets of service levels and of virtual lanes: one bit for each of the 16 numbers.

use std::fmt;
use std::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, Sub, SubAssign};

use serde::{Deserialize, Serialize};

use crate::lanes::{ServiceLevel, VirtualLane};

/// Declares a set of a four-bit identifier, its iterator and its operators.
macro_rules! sixteen_bit_set {
    ($(#[$meta:meta])* $set:ident of $item:ident, iterated by $iter:ident, listed as $list:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(from = $list, into = $list)]
        pub struct $set(u16);

        impl $set {
            pub const EMPTY: Self = Self(0);
            /// All 16 members, 0 to 15.
            pub const ALL: Self = Self(u16::MAX);

            /// The set whose bit n is bit n of `bits`; every number is a valid set.
            #[inline]
            pub const fn from_bits(bits: u16) -> Self {
                Self(bits)
            }

            /// The set as a number: bit n is set if member n is in the set.
            #[inline]
            pub const fn bits(self) -> u16 {
                self.0
            }

            /// The set with one member.
            #[inline]
            pub const fn of(item: $item) -> Self {
                Self(1 << item.to_wire())
            }

            /// `count` consecutive members from `first` on; those above 15 do not exist and are left out.
            pub const fn range(first: $item, count: u8) -> Self {
                let count = if count < 16 { count } else { 16 };
                Self((((1_u32 << count) - 1) << first.to_wire()) as u16)
            }

            #[inline]
            pub const fn contains(self, item: $item) -> bool {
                self.0 >> item.to_wire() & 1 == 1
            }

            /// Adds a member; `true` if it was not in the set before.
            #[inline]
            pub const fn insert(&mut self, item: $item) -> bool {
                let is_new = !self.contains(item);
                self.0 |= 1 << item.to_wire();
                is_new
            }

            /// Removes a member; `true` if it was in the set.
            #[inline]
            pub const fn remove(&mut self, item: $item) -> bool {
                let was_there = self.contains(item);
                self.0 &= !(1 << item.to_wire());
                was_there
            }

            /// Members of either set; also `|`.
            #[inline]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// Members of both sets; also `&`.
            #[inline]
            pub const fn intersection(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }

            /// Members of this set that are not in `other`; also `-`.
            #[inline]
            pub const fn difference(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Whether the sets have no member in common.
            #[inline]
            pub const fn is_disjoint(self, other: Self) -> bool {
                self.0 & other.0 == 0
            }

            /// Whether every member of this set is in `other`.
            #[inline]
            pub const fn is_subset(self, other: Self) -> bool {
                self.0 & !other.0 == 0
            }

            #[inline]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Number of members, 0 to 16.
            #[inline]
            pub const fn len(self) -> usize {
                self.0.count_ones() as usize
            }

            /// The lowest member; `None` if the set is empty.
            #[inline]
            pub const fn first(self) -> Option<$item> {
                // An empty set has 16 trailing zeros, which is no member.
                $item::from_wire(self.0.trailing_zeros() as u8)
            }

            /// The highest member; `None` if the set is empty.
            #[inline]
            pub const fn last(self) -> Option<$item> {
                match self.0.checked_ilog2() {
                    Some(bit) => $item::from_wire(bit as u8),
                    None => None,
                }
            }

            /// The members, in ascending order.
            #[inline]
            pub const fn iter(self) -> $iter {
                $iter(self)
            }
        }

        #[doc = concat!("The members of a [`", stringify!($set), "`], in ascending order.")]
        #[derive(Clone, Debug)]
        pub struct $iter($set);

        impl Iterator for $iter {
            type Item = $item;

            #[inline]
            fn next(&mut self) -> Option<$item> {
                let item = self.0.first()?;
                self.0.remove(item);
                Some(item)
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                (self.0.len(), Some(self.0.len()))
            }
        }

        impl DoubleEndedIterator for $iter {
            fn next_back(&mut self) -> Option<$item> {
                let item = self.0.last()?;
                self.0.remove(item);
                Some(item)
            }
        }

        impl ExactSizeIterator for $iter {}

        impl IntoIterator for $set {
            type Item = $item;
            type IntoIter = $iter;
            fn into_iter(self) -> $iter {
                self.iter()
            }
        }

        impl FromIterator<$item> for $set {
            fn from_iter<I: IntoIterator<Item = $item>>(items: I) -> Self {
                items.into_iter().fold(Self::EMPTY, |set, item| set.union(Self::of(item)))
            }
        }

        impl Extend<$item> for $set {
            fn extend<I: IntoIterator<Item = $item>>(&mut self, items: I) {
                *self |= items.into_iter().collect::<Self>();
            }
        }

        impl From<$item> for $set {
            fn from(item: $item) -> Self {
                Self::of(item)
            }
        }

        impl From<Vec<$item>> for $set {
            fn from(items: Vec<$item>) -> Self {
                items.into_iter().collect()
            }
        }

        impl From<$set> for Vec<$item> {
            fn from(set: $set) -> Self {
                set.iter().collect()
            }
        }

        impl BitOr for $set {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl BitOrAssign for $set {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }

        impl BitAnd for $set {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                self.intersection(other)
            }
        }

        impl BitAndAssign for $set {
            fn bitand_assign(&mut self, other: Self) {
                *self = self.intersection(other);
            }
        }

        impl Sub for $set {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                self.difference(other)
            }
        }

        impl SubAssign for $set {
            fn sub_assign(&mut self, other: Self) {
                *self = self.difference(other);
            }
        }

        /// As the numbers of its members: `{0, 3}`.
        impl fmt::Debug for $set {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_set().entries(self.iter().map(|item| item.to_wire())).finish()
            }
        }
    };
}

sixteen_bit_set!(
    /// A set of service levels in 16 bits. Serialized as the ascending list of its members.
    ///
    /// ```
    /// use ib_wire::{ServiceLevel, ServiceLevelSet};
    ///
    /// let sl = |number| ServiceLevel::from_wire(number).unwrap();
    /// let mut free = ServiceLevelSet::range(sl(1), 7);
    /// free.remove(sl(1));
    /// assert_eq!(free.first(), Some(sl(2)));
    /// assert_eq!((free.len(), free.bits()), (6, 0b1111_1100));
    /// ```
    ServiceLevelSet of ServiceLevel, iterated by ServiceLevelSetIter, listed as "Vec<ServiceLevel>"
);

sixteen_bit_set!(
    /// A set of virtual lanes in 16 bits. Serialized as the ascending list of its members.
    LaneSet of VirtualLane, iterated by LaneSetIter, listed as "Vec<VirtualLane>"
);

impl LaneSet {
    /// The lanes that carry data, VL0 to VL14: all but [`VirtualLane::MANAGEMENT`].
    pub const DATA: Self = Self(0x7fff);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sl(number: u8) -> ServiceLevel {
        ServiceLevel::from_wire(number).unwrap()
    }

    fn vl(number: u8) -> VirtualLane {
        VirtualLane::from_wire(number).unwrap()
    }

    #[test]
    fn every_number_is_the_set_of_its_bits() {
        for bits in 0..=u16::MAX {
            let set = LaneSet::from_bits(bits);
            let members: Vec<u8> = (0..16).filter(|bit| bits >> bit & 1 == 1).collect();
            assert!(set.iter().map(VirtualLane::to_wire).eq(members.iter().copied()));
            assert!(set.iter().rev().map(VirtualLane::to_wire).eq(members.iter().rev().copied()));
            assert_eq!((set.len(), set.iter().len()), (members.len(), members.len()));
            assert_eq!(set.first().map(VirtualLane::to_wire), members.first().copied());
            assert_eq!(set.last().map(VirtualLane::to_wire), members.last().copied());
            assert_eq!(set.iter().collect::<LaneSet>().bits(), bits);
            assert_eq!(set.is_empty(), bits == 0);
        }
    }

    #[test]
    fn insert_and_remove_report_whether_the_set_changed() {
        let mut set = ServiceLevelSet::EMPTY;
        assert!(set.insert(sl(15)) && !set.insert(sl(15)));
        assert!(set.contains(sl(15)) && !set.contains(sl(14)));
        assert!(set.remove(sl(15)) && !set.remove(sl(15)));
        assert_eq!(set, ServiceLevelSet::default());
    }

    #[test]
    fn operators_are_those_of_sets() {
        let (left, right) = (LaneSet::from_bits(0b0111), LaneSet::from_bits(0b1110));
        assert_eq!((left | right).bits(), 0b1111);
        assert_eq!((left & right).bits(), 0b0110);
        assert_eq!((left - right).bits(), 0b0001);
        assert!(!left.is_disjoint(right) && left.is_disjoint(LaneSet::of(vl(3))));
        assert!((left & right).is_subset(left) && !left.is_subset(right));
        let mut set = left;
        set |= right;
        set -= LaneSet::of(vl(0));
        set &= LaneSet::from_bits(0b0011);
        assert_eq!(set, vl(1).into());
        set.extend([vl(4), vl(1)]);
        assert_eq!(set.bits(), 0b1_0010);
    }

    #[test]
    fn a_range_ends_at_fifteen() {
        assert_eq!(ServiceLevelSet::range(sl(1), 3).bits(), 0b1110);
        assert_eq!(ServiceLevelSet::range(sl(1), 0), ServiceLevelSet::EMPTY);
        assert_eq!(ServiceLevelSet::range(sl(14), 8).bits(), 0xc000);
        assert_eq!(ServiceLevelSet::range(sl(0), 200), ServiceLevelSet::ALL);
    }

    #[test]
    fn data_lanes_are_all_but_the_management_lane() {
        assert_eq!(LaneSet::ALL - LaneSet::DATA, VirtualLane::MANAGEMENT.into());
        assert_eq!(LaneSet::range(vl(0), 15), LaneSet::DATA);
    }

    #[test]
    fn sets_are_serialized_as_ascending_lists() {
        let set: ServiceLevelSet = [sl(7), sl(2)].into_iter().collect();
        assert_eq!(serde_json::to_string(&set).unwrap(), "[2,7]");
        assert_eq!(serde_json::from_str::<ServiceLevelSet>("[7,2,7]").unwrap(), set);
        assert!(serde_json::from_str::<ServiceLevelSet>("[16]").is_err());
        assert_eq!(format!("{set:?}"), "{2, 7}");
    }
}
