//! Simulated time in picoseconds, and the time per byte of a link.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use serde::Serialize;

/// A moment since the start of a simulation, or a length of time, in picoseconds. Additions saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Time(u64);

impl Time {
    /// The start of a simulation, or no time.
    pub const ZERO: Self = Self(0);
    /// The latest moment: 213 days.
    pub const MAX: Self = Self(u64::MAX);

    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    pub const fn from_ns(ns: u64) -> Self {
        Self(ns.saturating_mul(1_000))
    }

    pub const fn from_us(us: u64) -> Self {
        Self(us.saturating_mul(1_000_000))
    }

    #[inline]
    pub const fn ps(self) -> u64 {
        self.0
    }

    pub fn us(self) -> f64 {
        self.0 as f64 / 1e6
    }

    pub fn s(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// The difference, or zero if `span` is longer.
    pub const fn saturating_sub(self, span: Self) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Add for Time {
    type Output = Self;
    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, span: Self) {
        *self = *self + span;
    }
}

/// The time from an earlier to a later moment. Panics in debug builds if `earlier` is later.
impl Sub for Time {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        Self(self.0 - earlier.0)
    }
}

/// Prints as `1.5 µs`.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} µs", self.us())
    }
}

/// Time per byte on a link, in 2⁻¹⁶ picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace(u32);

impl Pace {
    /// The pace of a link with this data rate, without line coding; at least 122 Mb/s.
    pub fn of(bits_per_s: f64) -> Self {
        Self((8e12 / bits_per_s * 65536.0).round() as u32)
    }

    /// Transmission time in picoseconds, rounded up.
    #[inline]
    pub const fn time(self, bytes: u64) -> u64 {
        (bytes * self.0 as u64 + 0xffff) >> 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_bytes_follows_the_data_rate() {
        for (gbps, ps) in [(2.0, 4000), (8.0, 1000), (32.0, 250), (100.0, 80), (400.0, 20)] {
            assert_eq!(Pace::of(gbps * 1e9).time(4122), 4122 * ps, "{gbps} Gb/s");
        }
        let fdr = Pace::of(4e9 * 14.0625 * 64.0 / 66.0).time(1_000_000);
        assert!((fdr as f64 - 1e6 * 8.0 / 54.545454e9 * 1e12).abs() < 50.0, "{fdr}");
    }
}
