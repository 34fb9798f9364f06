//! Where two lists differ.

/// The parts of two lists that are left when what they begin and end with in common is taken off. Mostly one thing is
/// added or taken away, and little is left.
pub(crate) fn middles<'a, T: PartialEq>(old: &'a [T], new: &'a [T]) -> (&'a [T], &'a [T]) {
    let before = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[before..], &new[before..]);
    let behind = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    (&old[..old.len() - behind], &new[..new.len() - behind])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_middle_is_left() {
        assert_eq!(middles(&[1, 2, 3, 4], &[1, 3, 4]), (&[2][..], &[][..]));
        assert_eq!(middles(&[1, 1], &[1, 1, 1]), (&[][..], &[1][..]));
        assert_eq!(middles(&[1, 2, 3], &[1, 3, 2]), (&[2, 3][..], &[3, 2][..]));
        assert_eq!(middles(&[7], &[7]), (&[][..], &[][..]));
    }
}
