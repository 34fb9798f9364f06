//! How much each adapter port sends at the service level that is reserved for management.
//!
//! Every port may use that level, because it must reach the subnet manager, and a switch cannot tell who sends what. A port
//! that sends far more than requests can be is named; tenants cannot be told apart in the lane itself.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric_model::intent::PortName;

/// A port is named at most once in this time.
const NAMED_INTERVAL: Duration = Duration::from_secs(60);

/// The last reading of each port of a switch that leads to an adapter.
#[derive(Debug, Default)]
pub(crate) struct ManagementUse {
    readings: BTreeMap<PortName, Reading>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Duration,
    words: u32,
    named: Option<Duration>,
}

impl ManagementUse {
    /// Notes a reading. Returns the rate since the last one, in bytes per second, if it is above the limit and the port was not
    /// named recently. A counter that grew until it was saturated counts as above, and the rate is at least that. A limit of 0
    /// is never reached.
    pub fn note(&mut self, now: Duration, port: PortName, words: u32, limit: u64) -> Option<u64> {
        let reading = Reading { at: now, words, named: None };
        let last = self.readings.insert(port, reading)?;
        let named = last.named.filter(|named| now < *named + NAMED_INTERVAL);
        // Smaller: somebody else reset it.
        let grown = words.checked_sub(last.words).unwrap_or(words);
        let milliseconds = u64::try_from(now.saturating_sub(last.at).as_millis()).ok()?.max(1);
        let rate = u64::from(grown) * 4 * 1000 / milliseconds;
        let is_saturated = words == u32::MAX && grown > 0;
        let is_new = limit > 0 && (rate > limit || is_saturated) && named.is_none();
        self.readings.insert(port, Reading { named: if is_new { Some(now) } else { named }, ..reading });
        is_new.then_some(rate)
    }

    /// The counter of a port was set to 0.
    pub fn note_reset(&mut self, now: Duration, port: PortName) {
        if let Some(reading) = self.readings.get_mut(&port) {
            (reading.at, reading.words) = (now, 0);
        }
    }

    /// Forgets ports that no longer exist.
    pub fn retain(&mut self, is_known: impl Fn(PortName) -> bool) {
        self.readings.retain(|port, _| is_known(*port));
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::{Guid, PortNum};

    use super::*;

    const PORT: PortName = PortName {
        node: match Guid::from_wire(7) {
            Some(guid) => guid,
            None => unreachable!(),
        },
        port: PortNum::MANAGEMENT,
    };

    #[test]
    fn a_port_above_the_limit_is_named_once_a_minute() {
        let mut used = ManagementUse::default();
        let second = Duration::from_secs;
        assert_eq!(used.note(second(0), PORT, 4_000_000, 1000), None, "nothing is known of the time before");
        assert_eq!(used.note(second(10), PORT, 4_002_500, 1000), None, "at the limit");
        assert_eq!(used.note(second(20), PORT, 4_005_003, 1000), Some(1001), "above it");
        assert_eq!(used.note(second(79), PORT, 9_000_000, 1000), None, "it was named already");
        assert_eq!(used.note(second(80), PORT, 9_100_000, 1000), Some(400_000));
        assert_eq!(used.note(second(200), PORT, u32::MAX - 1, 0), None, "no limit");
        let (later, limit) = (second(100_200), 1 << 20);
        assert_eq!(used.note(later, PORT, u32::MAX, limit), Some(0), "it may have been saturated for long");
        assert_eq!(used.note(later + second(100), PORT, u32::MAX, limit), None, "nothing is known");
    }

    #[test]
    fn resets_are_no_traffic() {
        let mut used = ManagementUse::default();
        let second = Duration::from_secs;
        used.note(second(0), PORT, u32::MAX, 1000);
        used.note_reset(second(1), PORT);
        assert_eq!(used.note(second(11), PORT, 2000, 1000), None);
        assert_eq!(used.note(second(21), PORT, 1000, 1000), None, "reset by somebody else");
        assert_eq!(used.note(second(31), PORT, 11_000, 1000), Some(4000));
    }
}
