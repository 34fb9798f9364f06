//! The performance counters of a port.

use serde::Serialize;

/// What a port has counted since it was reset. Data is in words of 4 bytes, as the counters of the field are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Bit errors.
    pub symbol_errors: u64,
    /// Successful recoveries of the link.
    pub link_recoveries: u64,
    /// Times the link went down.
    pub link_downed: u64,
    /// Packets received with an error.
    pub receive_errors: u64,
    /// Packets received marked bad.
    pub remote_physical_errors: u64,
    /// Packets a switch could not forward: no route, or back to where they came from.
    pub relay_errors: u64,
    /// Packets not sent: port down, lane discards.
    pub transmit_discards: u64,
    /// Packets not sent because of their partition.
    pub transmit_constraint_errors: u64,
    /// Packets not accepted because of their partition.
    pub receive_constraint_errors: u64,
    /// Local link integrity threshold exceeded.
    pub local_integrity_errors: u64,
    /// Buffer overrun threshold exceeded.
    pub overrun_errors: u64,
    /// Subnet management packets dropped.
    pub management_dropped: u64,
    /// Ticks during which there was something to send and no credit.
    pub transmit_wait: u64,
    /// Words sent.
    pub transmit_data: u64,
    /// Words received.
    pub receive_data: u64,
    /// Packets sent.
    pub transmit_packets: u64,
    /// Packets received.
    pub receive_packets: u64,
    /// Unicast packets sent.
    pub unicast_transmit_packets: u64,
    /// Unicast packets received.
    pub unicast_receive_packets: u64,
    /// Multicast packets sent.
    pub multicast_transmit_packets: u64,
    /// Multicast packets received.
    pub multicast_receive_packets: u64,
}

/// Whether a packet is for one receiver or for many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CastKind {
    Unicast,
    Multicast,
}

/// Bytes of a management datagram.
pub(crate) const MANAGEMENT_PAYLOAD: usize = 256;

/// What a packet has besides its payload: local route 8, base transport 12, datagram extended transport 8, invariant
/// CRC 4.
const PACKET_OVERHEAD: usize = 8 + 12 + 8 + 4;

/// The size of a packet on the wire, in words; payloads are padded to whole ones.
#[inline]
fn words(payload: usize) -> u64 {
    (PACKET_OVERHEAD + payload).div_ceil(4) as u64
}

impl Counters {
    /// Counts a packet that leaves.
    #[inline]
    pub(crate) fn sent(&mut self, cast: CastKind, payload: usize) {
        self.transmit_packets += 1;
        self.transmit_data += words(payload);
        match cast {
            CastKind::Unicast => self.unicast_transmit_packets += 1,
            CastKind::Multicast => self.multicast_transmit_packets += 1,
        }
    }

    /// Counts a packet that arrives.
    #[inline]
    pub(crate) fn received(&mut self, cast: CastKind, payload: usize) {
        self.receive_packets += 1;
        self.receive_data += words(payload);
        match cast {
            CastKind::Unicast => self.unicast_receive_packets += 1,
            CastKind::Multicast => self.multicast_receive_packets += 1,
        }
    }

    /// Adds another port's counts; ends at the largest number instead of wrapping.
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
