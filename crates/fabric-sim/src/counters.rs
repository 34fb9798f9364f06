//! The performance counters of a port.

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

    /// Counts a transmitted packet.
    #[inline]
    pub(crate) fn sent(&mut self, cast: CastKind, payload: usize) {
        self.transmit_packets += 1;
        self.transmit_data += words(payload);
        match cast {
            CastKind::Unicast => self.unicast_transmit_packets += 1,
            CastKind::Multicast => self.multicast_transmit_packets += 1,
        }
    }

    /// Counts a received packet.
    #[inline]
    pub(crate) fn received(&mut self, cast: CastKind, payload: usize) {
        self.receive_packets += 1;
        self.receive_data += words(payload);
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
