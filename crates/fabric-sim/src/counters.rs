//! The performance counters of a port.

use ib_wire::ServiceLevel;
use serde::Serialize;

/// Counters of a port since the last reset, named as in PortCounters and PortCountersExtended (IBA 16.1.3).
/// Data counters are in units of 4 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    pub symbol_errors: u64,
    pub link_recoveries: u64,
    pub link_downed: u64,
    pub receive_errors: u64,
    /// Packets received with the EBP delimiter.
    pub remote_physical_errors: u64,
    /// Packets that a switch could not forward.
    pub relay_errors: u64,
    /// Packets discarded instead of sent: port down, or no lane for the service level.
    pub transmit_discards: u64,
    /// Packets not sent because of partition enforcement.
    pub transmit_constraint_errors: u64,
    /// Packets not accepted because of partition enforcement.
    pub receive_constraint_errors: u64,
    pub local_integrity_errors: u64,
    pub overrun_errors: u64,
    /// Subnet management packets dropped for lack of a buffer (VL15Dropped).
    pub management_dropped: u64,
    /// Ticks in which data was ready but no credits were available.
    pub transmit_wait: u64,
    pub transmit_data: u64,
    pub receive_data: u64,
    pub transmit_packets: u64,
    pub receive_packets: u64,
    pub unicast_transmit_packets: u64,
    pub unicast_receive_packets: u64,
    pub multicast_transmit_packets: u64,
    pub multicast_receive_packets: u64,
    /// Data sent at each service level, in units of 4 bytes.
    #[serde(skip_serializing_if = "SlCounters::is_empty")]
    pub transmit_data_by_sl: SlCounters,
    /// Data received at each service level, in units of 4 bytes.
    #[serde(skip_serializing_if = "SlCounters::is_empty")]
    pub receive_data_by_sl: SlCounters,
}

/// A counter for each service level. Ports that never counted have none, to save memory on large fabrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct SlCounters(Option<Box<[u64; 16]>>);

impl SlCounters {
    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The value of each service level.
    pub fn all(&self) -> [u64; 16] {
        self.0.as_deref().copied().unwrap_or_default()
    }

    /// Sets the counters of the service levels in a mask to 0.
    pub(crate) fn reset(&mut self, mask: u16) {
        let counters = self.0.iter_mut().flat_map(|counters| counters.iter_mut());
        for (_, counter) in counters.enumerate().filter(|(sl, _)| mask >> sl & 1 == 1) {
            *counter = 0;
        }
    }

    fn count(&mut self, sl: ServiceLevel, words: u64) {
        self.0.get_or_insert_default()[usize::from(sl.to_wire())] += words;
    }

    fn add(&mut self, other: &Self) {
        let Some(other) = &other.0 else { return };
        for (own, more) in self.0.get_or_insert_default().iter_mut().zip(**other) {
            *own = own.saturating_add(more);
        }
    }
}

/// Errors of a link that a port counts, such as those of a bad cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkErrors {
    pub symbol_errors: u64,
    pub link_recoveries: u64,
    pub receive_errors: u64,
    pub local_integrity_errors: u64,
    pub overrun_errors: u64,
}

/// Whether a packet has one receiver or a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CastKind {
    Unicast,
    Multicast,
}

/// Size of a MAD in bytes.
pub(crate) const MANAGEMENT_PAYLOAD: usize = 256;

/// Bytes of a packet besides its payload: LRH 8, BTH 12, DETH 8, ICRC 4.
const PACKET_OVERHEAD: usize = 8 + 12 + 8 + 4;

/// Size of a packet in units of 4 bytes, the payload padded.
#[inline]
fn words(payload: usize) -> u64 {
    (PACKET_OVERHEAD + payload).div_ceil(4) as u64
}

impl Counters {
    /// Counts errors of the link.
    pub(crate) fn add_errors(&mut self, errors: &LinkErrors) {
        let LinkErrors { symbol_errors, link_recoveries, receive_errors, .. } = *errors;
        for (counter, more) in [
            (&mut self.symbol_errors, symbol_errors),
            (&mut self.link_recoveries, link_recoveries),
            (&mut self.receive_errors, receive_errors),
            (&mut self.local_integrity_errors, errors.local_integrity_errors),
            (&mut self.overrun_errors, errors.overrun_errors),
        ] {
            *counter = counter.saturating_add(more);
        }
    }

    /// Counts a transmitted packet. Subnet management has no service level.
    #[inline]
    pub(crate) fn sent(&mut self, cast: CastKind, sl: Option<ServiceLevel>, payload: usize) {
        self.transmit_packets += 1;
        self.transmit_data += words(payload);
        if let Some(sl) = sl {
            self.transmit_data_by_sl.count(sl, words(payload));
        }
        match cast {
            CastKind::Unicast => self.unicast_transmit_packets += 1,
            CastKind::Multicast => self.multicast_transmit_packets += 1,
        }
    }

    /// Counts a received packet, as [`Self::sent`].
    #[inline]
    pub(crate) fn received(&mut self, cast: CastKind, sl: Option<ServiceLevel>, payload: usize) {
        self.receive_packets += 1;
        self.receive_data += words(payload);
        if let Some(sl) = sl {
            self.receive_data_by_sl.count(sl, words(payload));
        }
        match cast {
            CastKind::Unicast => self.unicast_receive_packets += 1,
            CastKind::Multicast => self.multicast_receive_packets += 1,
        }
    }

    /// Adds the counters of another port; each saturates.
    pub(crate) fn add(&mut self, other: &Self) {
        for (own, more) in self.all_mut().into_iter().zip(other.clone().all_mut()) {
            *own = own.saturating_add(*more);
        }
        self.transmit_data_by_sl.add(&other.transmit_data_by_sl);
        self.receive_data_by_sl.add(&other.receive_data_by_sl);
    }

    fn all_mut(&mut self) -> [&mut u64; 21] {
        [
            &mut self.symbol_errors,
            &mut self.link_recoveries,
            &mut self.link_downed,
            &mut self.receive_errors,
            &mut self.remote_physical_errors,
            &mut self.relay_errors,
            &mut self.transmit_discards,
            &mut self.transmit_constraint_errors,
            &mut self.receive_constraint_errors,
            &mut self.local_integrity_errors,
            &mut self.overrun_errors,
            &mut self.management_dropped,
            &mut self.transmit_wait,
            &mut self.transmit_data,
            &mut self.receive_data,
            &mut self.transmit_packets,
            &mut self.receive_packets,
            &mut self.unicast_transmit_packets,
            &mut self.unicast_receive_packets,
            &mut self.multicast_transmit_packets,
            &mut self.multicast_receive_packets,
        ]
    }
}
