//! A bit set for small numbers.

/// A set of numbers below a limit that is fixed at construction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    /// Makes an empty set for numbers below `limit`.
    pub fn new(limit: usize) -> Self {
        Self(vec![0; limit.div_ceil(64)])
    }

    #[inline]
    pub fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    /// Adds the numbers of another set with the same limit.
    pub fn join(&mut self, other: &Self) {
        for (word, more) in self.0.iter_mut().zip(&other.0) {
            *word |= more;
        }
    }

    /// Iterates in ascending order over the numbers that `other` does not contain.
    pub fn without<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = usize> + 'a {
        let words = self.0.iter().zip(&other.0).map(|(word, other)| word & !other);
        words.enumerate().flat_map(|(word_index, word)| bits(word).map(move |bit| word_index * 64 + bit))
    }

    /// Iterates over the numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0
            .iter()
            .enumerate()
            .flat_map(|(word_index, word)| bits(*word).map(move |bit| word_index * 64 + bit))
    }
}

fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_is_iterated_in_order() {
        let (mut a, mut b) = (Bits::new(200), Bits::new(200));
        [0, 63, 64, 130, 199].into_iter().for_each(|number| a.insert(number));
        [63, 65].into_iter().for_each(|number| b.insert(number));
        assert_eq!(a.without(&b).collect::<Vec<_>>(), [0, 64, 130, 199]);
        b.join(&a);
        assert_eq!(a.without(&b).count(), 0);
        assert_eq!(b.without(&a).collect::<Vec<_>>(), [65]);
        assert_eq!(b.iter().collect::<Vec<_>>(), [0, 63, 64, 65, 130, 199]);
        b.clear();
        assert_eq!(a.without(&b).count(), 5);
    }
}
