//! The difference of two lists as one changed range: what remains without their common prefix and suffix.

use std::ops::Range;

/// The changed range of two lists. O(length) to find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangedRange {
    pub old: Range<usize>,
    pub new: Range<usize>,
}

impl ChangedRange {
    pub fn of<T: PartialEq>(old: &[T], new: &[T]) -> Self {
        let before = old.iter().zip(new).take_while(|(a, b)| a == b).count();
        let (left, right) = (&old[before..], &new[before..]);
        let behind = left.iter().rev().zip(right.iter().rev()).take_while(|(a, b)| a == b).count();
        Self { old: before..old.len() - behind, new: before..new.len() - behind }
    }

    /// The full range of two lists of the given lengths.
    pub fn whole(old: usize, new: usize) -> Self {
        Self { old: 0..old, new: 0..new }
    }

    /// The range after `count` equal elements were prepended to both lists.
    pub fn shifted(&self, count: usize) -> Self {
        let moved = |range: &Range<usize>| range.start + count..range.end + count;
        Self { old: moved(&self.old), new: moved(&self.new) }
    }

    /// Turns the old list into the new one.
    pub fn put<T: Clone>(&self, old: &mut Vec<T>, new: &[T]) {
        old.splice(self.old.clone(), new[self.new.clone()].iter().cloned());
    }
}

/// The changed slices of two lists.
pub(crate) fn changed_slices<'a, T: PartialEq>(old: &'a [T], new: &'a [T]) -> (&'a [T], &'a [T]) {
    let range = ChangedRange::of(old, new);
    (&old[range.old], &new[range.new])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_prefix_and_suffix_are_removed() {
        assert_eq!(changed_slices(&[1, 2, 3, 4], &[1, 3, 4]), (&[2][..], &[][..]));
        assert_eq!(changed_slices(&[1, 1], &[1, 1, 1]), (&[][..], &[1][..]));
        assert_eq!(changed_slices(&[1, 2, 3], &[1, 3, 2]), (&[2, 3][..], &[3, 2][..]));
        assert_eq!(changed_slices(&[7], &[7]), (&[][..], &[][..]));
    }

    #[test]
    fn putting_the_changed_range_gives_the_new_list() {
        for (old, new) in
            [(&[1, 2, 3, 4][..], &[1, 3, 4][..]), (&[1, 1], &[1, 1, 1]), (&[], &[5]), (&[7], &[])]
        {
            let mut changed = old.to_vec();
            ChangedRange::of(old, new).put(&mut changed, new);
            assert_eq!(changed, new);
        }
    }
}
