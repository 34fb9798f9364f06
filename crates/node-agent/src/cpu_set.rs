//! Sets of logical CPUs.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Highest CPU number: the limit of Linux.
const CORE_MAX: u32 = 8191;

/// A set of logical CPUs in the kernel's list format, such as `0-3,6`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

/// A text that is not a CPU list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cores must be a list such as 0-3,6 with numbers up to {CORE_MAX}, got {text:?}")]
pub struct ParseCpuSetError {
    text: String,
}

impl CpuSet {
    /// CPU numbers in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Whether a CPU is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Number of CPUs in the set.
    pub fn count(&self) -> u32 {
        u32::try_from(self.0.len()).expect("there are at most 8192 cores")
    }

    /// Whether the set has no CPU.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The CPUs of this set that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// libvirt's CPU map: one bit per CPU, lowest first.
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
    fn cpu_lists_parse_and_print() {
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
    fn the_bitmap_has_one_bit_per_cpu() {
        let cores: CpuSet = "0,9".parse().unwrap();
        assert_eq!(cores.to_bitmap(), [1, 2]);
    }
}
