//! [`SharedMap`]: a copy-on-write sorted map.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Index;
use std::sync::Arc;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Largest number of entries in a part. A change copies one part; a clone increments one reference count per part.
const PART_MAX: usize = 64;

/// A sorted map with copy-on-write parts: a vector of reference-counted, sorted runs of at most 64 entries.
///
/// A clone costs about a hundredth of copying the entries, and a change to a clone copies only the part that holds the
/// entry. Plans and decisions that differ little therefore share nearly all their memory, and
/// [`differences`](Self::differences) skips what they share. Lookup is O(log n); insert and remove are O(log n) plus moving
/// the list of parts if a part is split or becomes empty.
#[derive(Clone)]
pub struct SharedMap<K, V> {
    /// Sorted; no part is empty.
    parts: Vec<Arc<Vec<(K, V)>>>,
    len: usize,
}

impl<K, V> SharedMap<K, V> {
    /// Creates a map without entries.
    pub const fn new() -> Self {
        Self { parts: Vec::new(), len: 0 }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the map has no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entries in the order of their keys.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter { parts: self.parts.iter(), part: [].iter(), left: self.len }
    }

    /// The keys in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// The values in the order of their keys.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Ord, V> SharedMap<K, V> {
    /// Looks up the value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (part, index) = self.position(key).ok()?;
        Some(&self.parts[part][index].1)
    }

    /// Whether the map has an entry for a key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.position(key).is_ok()
    }

    /// Position of a key as (part, index in the part): `Ok` if it is there, `Err` with the insertion point if not.
    fn position<Q: Ord + ?Sized>(&self, key: &Q) -> Result<(usize, usize), (usize, usize)>
    where
        K: Borrow<Q>,
    {
        let behind = self.parts.partition_point(|part| part[0].0.borrow() <= key);
        let part = behind.saturating_sub(1);
        let Some(entries) = self.parts.get(part) else { return Err((0, 0)) };
        match entries.binary_search_by(|(here, _)| here.borrow().cmp(key)) {
            Ok(index) => Ok((part, index)),
            Err(index) => Err((part, index)),
        }
    }
}

/// A key whose value differs between two maps, or that only one of them has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapDifference<'a, K, V> {
    pub key: &'a K,
    /// Value in the older map.
    pub before: Option<&'a V>,
    /// Value in the newer map, preceded by the number of smaller keys in that map.
    pub after: Option<(usize, &'a V)>,
}

impl<K: Ord, V: PartialEq> SharedMap<K, V> {
    /// The differences from an older map, in the order of keys. Parts that both maps share are skipped without comparing
    /// their entries, provided that both maps reach them at the same key.
    pub fn differences<'a>(&'a self, older: &'a Self) -> Vec<MapDifference<'a, K, V>> {
        let (mut old, mut new) = (Cursor::of(older), Cursor::of(self));
        let mut found = Vec::new();
        loop {
            if old.skip_shared(&mut new) {
                continue;
            }
            let order = match (old.entry(), new.entry()) {
                (None, None) => return found,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => a.cmp(b),
            };
            let before = if order.is_le() { old.next() } else { None };
            let rank = new.passed;
            let after = if order.is_ge() { new.next() } else { None };
            let values = (before.map(|(_, value)| value), after.map(|(_, value)| value));
            if let Some((key, _)) = before.or(after).filter(|_| values.0 != values.1) {
                found.push(MapDifference { key, before: values.0, after: values.1.map(|it| (rank, it)) });
            }
        }
    }
}

/// A position in a map.
struct Cursor<'a, K, V> {
    parts: &'a [Arc<Vec<(K, V)>>],
    /// Index in the first of `parts`.
    index: usize,
    /// Number of entries before the cursor.
    passed: usize,
}

impl<'a, K, V> Cursor<'a, K, V> {
    fn of(map: &'a SharedMap<K, V>) -> Self {
        Self { parts: &map.parts, index: 0, passed: 0 }
    }

    fn entry(&self) -> Option<&'a (K, V)> {
        self.parts.first()?.get(self.index)
    }

    fn next(&mut self) -> Option<&'a (K, V)> {
        let entry = self.entry()?;
        (self.index, self.passed) = (self.index + 1, self.passed + 1);
        if self.index == self.parts[0].len() {
            (self.parts, self.index) = (&self.parts[1..], 0);
        }
        Some(entry)
    }

    /// If both cursors are at the beginning of the same shared part, moves both behind it and returns true.
    fn skip_shared(&mut self, other: &mut Self) -> bool {
        let (Some(own), Some(theirs)) = (self.parts.first(), other.parts.first()) else { return false };
        let is_shared = self.index == 0 && other.index == 0 && Arc::ptr_eq(own, theirs);
        if is_shared {
            for cursor in [self, other] {
                cursor.passed += cursor.parts[0].len();
                cursor.parts = &cursor.parts[1..];
            }
        }
        is_shared
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// Mutable access to the value of a key. Copies its part if it is shared.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let (part, index) = self.position(key).ok()?;
        Some(&mut Arc::make_mut(&mut self.parts[part])[index].1)
    }

    /// Mutable access to all values in the order of their keys. Every part that the iterator reaches is copied if it is
    /// shared.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.parts.iter_mut().flat_map(|part| Arc::make_mut(part).iter_mut().map(|(_, value)| value))
    }

    /// Sets the value of a key and returns its previous value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.position(&key) {
            Ok((part, index)) => {
                let entries = Arc::make_mut(&mut self.parts[part]);
                Some(std::mem::replace(&mut entries[index].1, value))
            }
            Err((part, index)) => {
                self.len += 1;
                let Some(entries) = self.parts.get_mut(part) else {
                    self.parts.push(Arc::new(vec![(key, value)]));
                    return None;
                };
                let entries = Arc::make_mut(entries);
                entries.insert(index, (key, value));
                if entries.len() > PART_MAX {
                    let upper = entries.split_off(PART_MAX / 2);
                    self.parts.insert(part + 1, Arc::new(upper));
                }
                None
            }
        }
    }

    /// Removes a key and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (part, index) = self.position(key).ok()?;
        self.len -= 1;
        let (_, value) = Arc::make_mut(&mut self.parts[part]).remove(index);
        if self.parts[part].is_empty() {
            self.parts.remove(part);
        }
        Some(value)
    }
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Parts that both maps share are not compared entry by entry.
impl<K: PartialEq, V: PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        let all_shared = || self.parts.iter().zip(&other.parts).all(|(a, b)| Arc::ptr_eq(a, b) || a == b);
        let same_lengths =
            || self.parts.iter().map(|part| part.len()).eq(other.parts.iter().map(|p| p.len()));
        self.len == other.len && if same_lengths() { all_shared() } else { self.iter().eq(other.iter()) }
    }
}

impl<K: Eq, V: Eq> Eq for SharedMap<K, V> {}

/// Of entries with the same key the last one wins.
impl<K: Ord, V> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut entries: Vec<(K, V)> = entries.into_iter().collect();
        entries.reverse();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries.dedup_by(|later, kept| later.0 == kept.0);
        let len = entries.len();
        let mut parts = Vec::with_capacity(len.div_ceil(PART_MAX));
        let mut entries = entries.into_iter();
        while entries.len() > 0 {
            parts.push(Arc::new(entries.by_ref().take(PART_MAX).collect()));
        }
        Self { parts, len }
    }
}

impl<K: Ord + Clone, V: Clone> Extend<(K, V)> for SharedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

/// Panics if the map has no entry for the key.
impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V> Index<&Q> for SharedMap<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("the key is there")
    }
}

/// Iterator over the entries of a [`SharedMap`] in the order of their keys.
#[derive(Debug)]
pub struct Iter<'a, K, V> {
    parts: std::slice::Iter<'a, Arc<Vec<(K, V)>>>,
    part: std::slice::Iter<'a, (K, V)>,
    left: usize,
}

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone(), part: self.part.clone(), left: self.left }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.part.next() {
                self.left -= 1;
                return Some((key, value));
            }
            self.part = self.parts.next()?.iter();
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}

impl<'a, K, V> IntoIterator for &'a SharedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<K: Serialize, V: Serialize> Serialize for SharedMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Deserialize<'de> for SharedMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader(PhantomData))
    }
}

struct Reader<K, V>(PhantomData<(K, V)>);

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for Reader<K, V> {
    type Value = SharedMap<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(entries.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn a_shared_map_behaves_like_a_plain_map(
            start in prop::collection::vec((0u16..600, any::<u8>()), 0..400),
            changes in prop::collection::vec((0u16..600, prop::option::of(any::<u8>())), 0..300),
        ) {
            let mut plain: BTreeMap<u16, u8> = start.iter().copied().collect();
            let mut shared: SharedMap<u16, u8> = start.into_iter().collect();
            let (copy, before) = (shared.clone(), plain.clone());
            for (key, value) in changes {
                match value {
                    Some(value) => prop_assert_eq!(shared.insert(key, value), plain.insert(key, value)),
                    None => prop_assert_eq!(shared.remove(&key), plain.remove(&key)),
                }
            }
            for (map, plain) in [(&shared, &plain), (&copy, &before)] {
                prop_assert!(map.iter().eq(plain) && map.len() == plain.len());
                prop_assert!((0..600).all(|key| map.get(&key) == plain.get(&key)));
                prop_assert!(map.parts.iter().all(|part| (1..=PART_MAX).contains(&part.len())));
            }
            prop_assert_eq!(shared == copy, plain == before);
            let keys = (0..600).filter(|key| plain.get(key) != before.get(key));
            let expected = keys.map(|key| {
                let rank = plain.range(..key).count();
                (key, before.get(&key).copied(), plain.get(&key).map(|value| (rank, *value)))
            });
            let found = shared.differences(&copy).into_iter();
            let found = found.map(|it| (*it.key, it.before.copied(), it.after.map(|(at, value)| (at, *value))));
            prop_assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            prop_assert_eq!(&shared, &plain.iter().map(|(key, value)| (*key, *value)).collect());
            let json = serde_json::to_string(&shared).unwrap();
            prop_assert_eq!(&json, &serde_json::to_string(&plain).unwrap());
            prop_assert_eq!(serde_json::from_str::<SharedMap<u16, u8>>(&json).unwrap(), shared);
        }
    }

    #[test]
    fn a_change_copies_one_part() {
        let map: SharedMap<u32, u32> = (0..1000).map(|key| (key, 0)).collect();
        let mut copy = map.clone();
        *copy.get_mut(&500).unwrap() = 1;
        let shared = map.parts.iter().zip(&copy.parts).filter(|(a, b)| Arc::ptr_eq(a, b)).count();
        assert_eq!((shared, map.parts.len(), map[&500], copy[&500]), (15, 16, 0, 1));
    }
}
