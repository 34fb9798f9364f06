//! Detects where packets of a virtual machine are dropped, from the emulation's drop counters.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use controller_api::agent::PacketStop;
use ib_wire::PortNum;
use serde::Deserialize;

/// How long a drop is reported after the last packet; longer than the retry interval of the network check.
const STOP_RETENTION: Duration = Duration::from_secs(30);

/// Drop reasons caused by the fabric. Others are caused by the sender, such as spoofed or unknown addresses.
const REASONS: [&str; 11] = [
    "hop_limit",
    "injected",
    "link_down",
    "no_group",
    "no_route",
    "not_active",
    "partition_at_receiver",
    "partition_at_sender",
    "partition_at_switch",
    "service_level",
    "wrong_port",
];

/// Counters of a virtual function, as listed by the emulation.
#[derive(Debug, Default, Deserialize)]
pub(super) struct FrameCounts {
    #[serde(default)]
    drops: BTreeMap<String, u64>,
}

/// Where the last packet was dropped for a given reason.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct DropLocation {
    node: String,
    port: PortNum,
}

/// Drop counters of a virtual function between two polls.
#[derive(Debug, Default)]
pub(super) struct DropWatch {
    drops: BTreeMap<String, u64>,
    stop: Option<(PacketStop, Instant)>,
}

impl DropWatch {
    /// Compares the counters with those of the last call. Returns the location of the drop reason that grew most, or the last one for
    /// up to 30 s.
    pub(super) fn update(
        &mut self,
        counts: &FrameCounts,
        locations: &BTreeMap<String, DropLocation>,
        now: Instant,
    ) -> Option<PacketStop> {
        let grown = REASONS.iter().filter_map(|reason| {
            let count = *counts.drops.get(*reason)?;
            let before = self.drops.get(*reason).copied().unwrap_or(0);
            let location = locations.get(*reason)?;
            // A re-attached function counts from 0.
            let more = if count < before { count } else { count - before };
            (more > 0).then_some((more, *reason, location))
        });
        if let Some((_, reason, DropLocation { node, port })) = grown.max_by_key(|(more, ..)| *more) {
            let stop = PacketStop { node: node.clone(), port: *port, reason: reason.to_owned() };
            self.stop = Some((stop, now));
        }
        self.drops.clone_from(&counts.drops);
        self.stop =
            self.stop.take().filter(|(_, since)| now.saturating_duration_since(*since) < STOP_RETENTION);
        self.stop.as_ref().map(|(stop, _)| stop.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(drops: &[(&str, u64)]) -> (FrameCounts, BTreeMap<String, DropLocation>) {
        let drops: BTreeMap<String, u64> =
            drops.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect();
        let location = |reason: &String| {
            let location = DropLocation { node: format!("at {reason}"), port: PortNum::new(3).unwrap() };
            (reason.clone(), location)
        };
        let locations = drops.keys().map(location).collect();
        (FrameCounts { drops }, locations)
    }

    #[test]
    fn a_stop_is_told_while_packets_stop_and_a_while_after() {
        let (mut watch, start) = (DropWatch::default(), Instant::now());
        let mut update = |drops: &[(&str, u64)], seconds: u64| {
            let (counts, locations) = listed(drops);
            watch.update(&counts, &locations, start + Duration::from_secs(seconds)).map(|stop| stop.reason)
        };
        assert_eq!(update(&[], 0), None);
        assert_eq!(update(&[("no_route", 2)], 1).as_deref(), Some("no_route"));
        assert_eq!(update(&[("no_route", 2)], 20).as_deref(), Some("no_route"));
        assert_eq!(update(&[("no_route", 2)], 40), None);
        assert_eq!(update(&[("no_route", 3), ("link_down", 9)], 41).as_deref(), Some("link_down"));
        assert_eq!(update(&[("no_route", 1)], 42).as_deref(), Some("no_route"), "re-attached");
    }

    #[test]
    fn what_a_sender_does_wrong_is_no_stop_of_the_fabric() {
        let (counts, locations) = listed(&[("spoofed", 7), ("unknown_address", 7)]);
        assert_eq!(DropWatch::default().update(&counts, &locations, Instant::now()), None);
    }
}
