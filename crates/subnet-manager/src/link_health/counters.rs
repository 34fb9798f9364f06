//! The error counters of a port that show the health of its link.

use std::fmt;

use ib_wire::perf::{CounterSelect, PortCounters};
use serde::{Deserialize, Serialize};

/// An error counter of PortCounters that the link of a port causes, and nothing beyond it. PortRcvRemotePhysicalErrors and
/// PortXmitDiscards are not among them: they grow where packets arrive that another link damaged or delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkErrorCounter {
    SymbolErrors,
    LinkRecoveries,
    LinkDowned,
    ReceiveErrors,
    LinkIntegrityErrors,
    BufferOverrunErrors,
}

impl LinkErrorCounter {
    pub(crate) const ALL: [Self; 6] = [
        Self::SymbolErrors,
        Self::LinkRecoveries,
        Self::LinkDowned,
        Self::ReceiveErrors,
        Self::LinkIntegrityErrors,
        Self::BufferOverrunErrors,
    ];

    /// The value at which the counter saturates.
    pub const fn saturation(self) -> u32 {
        match self {
            Self::SymbolErrors | Self::ReceiveErrors => 0xffff,
            Self::LinkRecoveries | Self::LinkDowned => 0xff,
            Self::LinkIntegrityErrors | Self::BufferOverrunErrors => 0xf,
        }
    }

    const fn select(self) -> CounterSelect {
        match self {
            Self::SymbolErrors => CounterSelect::SYMBOL_ERRORS,
            Self::LinkRecoveries => CounterSelect::LINK_RECOVERIES,
            Self::LinkDowned => CounterSelect::LINK_DOWNED,
            Self::ReceiveErrors => CounterSelect::RECEIVE_ERRORS,
            Self::LinkIntegrityErrors => CounterSelect::LINK_INTEGRITY_ERRORS,
            Self::BufferOverrunErrors => CounterSelect::BUFFER_OVERRUN_ERRORS,
        }
    }
}

impl fmt::Display for LinkErrorCounter {
    /// The name of the field in PortCounters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SymbolErrors => "SymbolErrorCounter",
            Self::LinkRecoveries => "LinkErrorRecoveryCounter",
            Self::LinkDowned => "LinkDownedCounter",
            Self::ReceiveErrors => "PortRcvErrors",
            Self::LinkIntegrityErrors => "LocalLinkIntegrityErrors",
            Self::BufferOverrunErrors => "ExcessiveBufferOverrunErrors",
        })
    }
}

/// A number for each error counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts([u32; LinkErrorCounter::ALL.len()]);

impl ErrorCounts {
    /// Growth in an hour that a healthy link does not show. A bit error rate of 1e-12, the most that IBA permits, is 360
    /// bit errors per hour at 100 Gbit/s; links with error correction show almost none.
    pub(super) fn default_limits() -> Self {
        let mut limits = Self::default();
        for (counter, limit) in [
            (LinkErrorCounter::SymbolErrors, 1000),
            (LinkErrorCounter::LinkRecoveries, 10),
            (LinkErrorCounter::LinkDowned, 10),
            (LinkErrorCounter::ReceiveErrors, 100),
            (LinkErrorCounter::LinkIntegrityErrors, 5),
            (LinkErrorCounter::BufferOverrunErrors, 5),
        ] {
            limits.set(counter, limit);
        }
        limits
    }

    /// The error counters of a port.
    pub(super) fn of(counters: &PortCounters) -> Self {
        let mut counts = Self::default();
        for counter in LinkErrorCounter::ALL {
            let value = match counter {
                LinkErrorCounter::SymbolErrors => counters.symbol_errors.into(),
                LinkErrorCounter::LinkRecoveries => counters.link_recoveries.into(),
                LinkErrorCounter::LinkDowned => counters.link_downed.into(),
                LinkErrorCounter::ReceiveErrors => counters.receive_errors.into(),
                LinkErrorCounter::LinkIntegrityErrors => counters.link_integrity_errors.into(),
                LinkErrorCounter::BufferOverrunErrors => counters.buffer_overrun_errors.into(),
            };
            counts.set(counter, value);
        }
        counts
    }

    pub const fn get(&self, counter: LinkErrorCounter) -> u32 {
        self.0[counter as usize]
    }

    pub const fn set(&mut self, counter: LinkErrorCounter, count: u32) {
        self.0[counter as usize] = count;
    }

    /// The growth since an earlier reading. A counter that is smaller than before was reset, and has grown to its value since.
    pub(super) fn growth_since(&self, before: &Self) -> Self {
        Self(std::array::from_fn(|index| self.0[index].checked_sub(before.0[index]).unwrap_or(self.0[index])))
    }

    pub(super) fn add(&mut self, more: &Self) {
        self.0.iter_mut().zip(more.0).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }

    /// The counters that stand at their largest value, and show no further growth.
    pub(super) fn saturated(&self) -> CounterSelect {
        let full =
            LinkErrorCounter::ALL.into_iter().filter(|counter| self.get(*counter) >= counter.saturation());
        full.fold(CounterSelect::default(), |all, counter| all.with(counter.select()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LinkErrorCounter::*;

    fn counts(symbols: u32, downed: u32) -> ErrorCounts {
        let mut counts = ErrorCounts::default();
        counts.set(SymbolErrors, symbols);
        counts.set(LinkDowned, downed);
        counts
    }

    #[test]
    fn a_counter_that_was_reset_has_grown_to_its_value() {
        assert_eq!(counts(7, 4).growth_since(&counts(5, 4)), counts(2, 0));
        assert_eq!(counts(3, 1).growth_since(&counts(60_000, 255)), counts(3, 1));
    }

    #[test]
    fn saturated_counters_are_named_alone() {
        assert_eq!(counts(0xfffe, 0xfe).saturated(), CounterSelect::default());
        assert_eq!(counts(0xffff, 0xfe).saturated(), CounterSelect::SYMBOL_ERRORS);
        assert_eq!(
            counts(0xffff, 0xff).saturated(),
            CounterSelect::SYMBOL_ERRORS.with(CounterSelect::LINK_DOWNED)
        );
    }
}
