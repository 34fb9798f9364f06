//! Detects where packets of a virtual machine are dropped, from the emulation's drop counters.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use control_protocol::sim::{FrameCounts, PortLocation};
use controller_api::cluster::PacketStop;
use fabric_model::DropReason;

/// How long a drop is reported after the last packet; longer than the retry interval of the network check.
const STOP_RETENTION: Duration = Duration::from_secs(30);

/// Drop reasons caused by the fabric. Others are caused by the sender, such as spoofed or unknown addresses.
const REASONS: [DropReason; 12] = [
    DropReason::Expired,
    DropReason::HopLimit,
    DropReason::Injected,
    DropReason::LinkDown,
    DropReason::NoGroup,
    DropReason::NoRoute,
    DropReason::NotActive,
    DropReason::PartitionAtReceiver,
    DropReason::PartitionAtSender,
    DropReason::PartitionAtSwitch,
    DropReason::ServiceLevel,
    DropReason::WrongPort,
];

/// Drop counters of a virtual function between two polls.
#[derive(Debug, Default)]
pub(super) struct DropWatch {
    drops: BTreeMap<DropReason, u64>,
    stop: Option<(PacketStop, Instant)>,
}

impl DropWatch {
    /// Compares the counters with those of the last call. Returns the location of the drop reason that grew most, or the last one for
    /// up to 30 s.
    pub(super) fn update(
        &mut self,
        counts: &FrameCounts,
        locations: &BTreeMap<DropReason, PortLocation>,
        now: Instant,
    ) -> Option<PacketStop> {
        let grown = REASONS.into_iter().filter_map(|reason| {
            let count = *counts.drops.get(&reason)?;
            let before = self.drops.get(&reason).copied().unwrap_or(0);
            let location = locations.get(&reason)?;
            // A re-attached function counts from 0.
            let more = if count < before { count } else { count - before };
            (more > 0).then_some((more, reason, location))
        });
        if let Some((_, reason, PortLocation { node, port })) = grown.max_by_key(|(more, ..)| *more) {
            let stop = PacketStop { node: node.clone(), port: *port, reason: reason.to_string() };
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
    use ib_wire::PortNum;

    use super::*;
    use DropReason::{LinkDown, NoRoute, Spoofed, UnknownAddress};

    fn listed(drops: &[(DropReason, u64)]) -> (FrameCounts, BTreeMap<DropReason, PortLocation>) {
        let location = |(reason, _): &(DropReason, u64)| {
            (*reason, PortLocation { node: format!("at {reason}"), port: PortNum::new(3).unwrap() })
        };
        let locations = drops.iter().map(location).collect();
        (FrameCounts { drops: drops.iter().copied().collect(), ..FrameCounts::default() }, locations)
    }

    #[test]
    fn a_stop_is_reported_while_packets_stop_and_30_s_longer() {
        let (mut watch, start) = (DropWatch::default(), Instant::now());
        let mut update = |drops: &[(DropReason, u64)], seconds: u64| {
            let (counts, locations) = listed(drops);
            watch.update(&counts, &locations, start + Duration::from_secs(seconds)).map(|stop| stop.reason)
        };
        assert_eq!(update(&[], 0), None);
        assert_eq!(update(&[(NoRoute, 2)], 1).as_deref(), Some("no_route"));
        assert_eq!(update(&[(NoRoute, 2)], 20).as_deref(), Some("no_route"));
        assert_eq!(update(&[(NoRoute, 2)], 40), None);
        assert_eq!(update(&[(NoRoute, 3), (LinkDown, 9)], 41).as_deref(), Some("link_down"));
        assert_eq!(update(&[(NoRoute, 1)], 42).as_deref(), Some("no_route"), "re-attached");
    }

    #[test]
    fn drops_caused_by_the_sender_are_not_reported() {
        let (counts, locations) = listed(&[(Spoofed, 7), (UnknownAddress, 7)]);
        assert_eq!(DropWatch::default().update(&counts, &locations, Instant::now()), None);
    }
}
