//! Sets of the machine's cores.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Highest core there can be: what Linux is built for.
const CORE_MAX: u32 = 8191;

/// A set of cores, written as the kernel does: `0-3,6`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

/// A text that is no set of cores.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not a list of cores such as 0-3,6")]
pub struct ParseCpuSetError {
    text: String,
}

impl CpuSet {
    /// In order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.0.iter().copied()
    }

    /// How many.
    pub fn count(&self) -> u32 {
        u32::try_from(self.0.len()).expect("there are at most 8192 cores")
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that are not in the other set.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// A bit for each core, as libvirt wants it.
    pub fn to_bitmap(&self) -> Vec<u8> {
        let bytes = self.0.last().map_or(1, |last| *last as usize / 8 + 1);
        let mut bits = vec![0; bytes];
        for core in self.iter() {
            bits[core as usize / 8] |= 1 << (core % 8);
        }
        bits
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(cores: T) -> Self {
        Self(cores.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;
    fn from_str(text: &str) -> Result<Self, ParseCpuSetError> {
        let error = || ParseCpuSetError { text: text.chars().take(80).collect() };
        let mut cores = BTreeSet::new();
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) =
                (first.parse().map_err(|_| error())?, last.parse().map_err(|_| error())?);
            if first > last || last > CORE_MAX {
                return Err(error());
            }
            cores.extend(first..=last);
        }
        Ok(Self(cores))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for core in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == core => *last = core,
                _ => ranges.push((core, core)),
            }
        }
        let ranges = ranges
            .iter()
            .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") });
        f.pad(&ranges.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_written_as_they_are_read() {
        for (text, written, count) in
            [("0", "0", 1), ("0-3,6", "0-3,6", 5), ("1,0", "0-1", 2), ("5,5-7", "5-7", 3)]
        {
            let cores: CpuSet = text.parse().unwrap();
            assert_eq!((cores.to_string().as_str(), cores.count()), (written, count));
        }
        for bad in ["", "a", "3-1", "1,", "0-99999999", "-1"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad}");
        }
    }

    #[test]
    fn bits_are_those_of_the_cores() {
        let cores: CpuSet = "0,9".parse().unwrap();
        assert_eq!(cores.to_bitmap(), [1, 2]);
    }
}
