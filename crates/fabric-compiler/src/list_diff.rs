//! Where two lists differ.

use std::ops::Range;

/// The parts of two lists that are left when what they begin and end with in common is taken off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangedRange {
    pub old: Range<usize>,
    pub new: Range<usize>,
}

impl ChangedRange {
    /// Of two lists.
    pub fn of<T: PartialEq>(old: &[T], new: &[T]) -> Self {
        let before = old.iter().zip(new).take_while(|(a, b)| a == b).count();
        let (left, right) = (&old[before..], &new[before..]);
        let behind = left.iter().rev().zip(right.iter().rev()).take_while(|(a, b)| a == b).count();
        Self { old: before..old.len() - behind, new: before..new.len() - behind }
    }

    /// All of two lists that are so long.
    pub fn whole(old: usize, new: usize) -> Self {
        Self { old: 0..old, new: 0..new }
    }

    /// The same where each list has one more in front.
    pub fn behind_one(&self) -> Self {
        let moved = |range: &Range<usize>| range.start + 1..range.end + 1;
        Self { old: moved(&self.old), new: moved(&self.new) }
    }

    /// Makes the old list the new one.
    pub fn put<T: Clone>(&self, old: &mut Vec<T>, new: &[T]) {
        old.splice(self.old.clone(), new[self.new.clone()].iter().cloned());
    }
}

/// The parts of two lists that are left when what they begin and end with in common is taken off. Mostly one thing is
/// added or taken away, and little is left.
pub(crate) fn changed_ranges<'a, T: PartialEq>(old: &'a [T], new: &'a [T]) -> (&'a [T], &'a [T]) {
    let range = ChangedRange::of(old, new);
    (&old[range.old], &new[range.new])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_middle_is_left() {
        assert_eq!(changed_ranges(&[1, 2, 3, 4], &[1, 3, 4]), (&[2][..], &[][..]));
        assert_eq!(changed_ranges(&[1, 1], &[1, 1, 1]), (&[][..], &[1][..]));
        assert_eq!(changed_ranges(&[1, 2, 3], &[1, 3, 2]), (&[2, 3][..], &[3, 2][..]));
        assert_eq!(changed_ranges(&[7], &[7]), (&[][..], &[][..]));
    }

    #[test]
    fn the_old_list_with_the_other_middle_is_the_new_one() {
        for (old, new) in
            [(&[1, 2, 3, 4][..], &[1, 3, 4][..]), (&[1, 1], &[1, 1, 1]), (&[], &[5]), (&[7], &[])]
        {
            let mut changed = old.to_vec();
            ChangedRange::of(old, new).put(&mut changed, new);
            assert_eq!(changed, new);
        }
    }
}
