//! PathRecord: how to reach a port.

use super::record;
use crate::address::{Gid, LidAddress};
use crate::bits::{bits, bits_from, bytes, field_named};
use crate::keys::Pkey;
use crate::lanes::ServiceLevel;
use crate::link::Mtu;

layout! {
    /// PathRecord (attribute 0x0035).
    pub struct PathRecord[64] {
        /// The service the path is for; quality of service may depend on it.
        service_id: u64 = bytes(0, 8),
        /// Receiver.
        dgid: Gid = bytes(8, 16),
        /// Sender.
        sgid: Gid = bytes(24, 16),
        /// Receiver.
        dlid: Option<LidAddress> = bytes(40, 2),
        /// Sender.
        slid: Option<LidAddress> = bytes(42, 2),
        /// For raw packets.
        is_raw: bool = bits(44, 7, 7),
        /// Flow label of a global route header.
        flow_label: u32 = bits_from(44, 3, 20),
        /// Hop limit of a global route header.
        hop_limit: u8 = bytes(47, 1),
        /// Traffic class of a global route header.
        traffic_class: u8 = bytes(48, 1),
        /// Answers may take the same path back.
        is_reversible: bool = bits(49, 7, 7),
        /// In a request: most paths wanted for each pair.
        path_count: u8 = bits(49, 6, 0),
        /// Partition key to use.
        pkey: Option<Pkey> = bytes(50, 2),
        /// Quality of service class.
        qos_class: u16 = bits_from(52, 7, 12),
        /// Service level to use.
        sl: ServiceLevel = bits(53, 3, 0),
        /// How `mtu` is meant in a request.
        mtu_selector: Selector = bits(54, 7, 6),
        /// Largest packet.
        mtu: Mtu = bits(54, 5, 0),
        /// How `rate` is meant in a request.
        rate_selector: Selector = bits(55, 7, 6),
        /// The slowest link on the path.
        rate: Rate = bits(55, 5, 0),
        /// How `packet_life_time` is meant in a request.
        packet_life_time_selector: Selector = bits(56, 7, 6),
        /// How long a packet may be under way: 4.096 µs times 2 to this power.
        packet_life_time: u8 = bits(56, 5, 0),
        /// Which of several paths to prefer: the lower the better.
        preference: u8 = bytes(57, 1),
    }
}

record!(PathRecord, PATH_RECORD {
    SERVICE_ID_HIGH = 0 => bytes(0, 1),
    SERVICE_ID_LOW = 1 => bytes(1, 7),
    DGID = 2 => field_named(PathRecord::FIELDS, "dgid"),
    SGID = 3 => field_named(PathRecord::FIELDS, "sgid"),
    DLID = 4 => field_named(PathRecord::FIELDS, "dlid"),
    SLID = 5 => field_named(PathRecord::FIELDS, "slid"),
    IS_RAW = 6 => field_named(PathRecord::FIELDS, "is_raw"),
    FLOW_LABEL = 8 => field_named(PathRecord::FIELDS, "flow_label"),
    HOP_LIMIT = 9 => field_named(PathRecord::FIELDS, "hop_limit"),
    TRAFFIC_CLASS = 10 => field_named(PathRecord::FIELDS, "traffic_class"),
    IS_REVERSIBLE = 11 => field_named(PathRecord::FIELDS, "is_reversible"),
    PATH_COUNT = 12 => field_named(PathRecord::FIELDS, "path_count"),
    PKEY = 13 => field_named(PathRecord::FIELDS, "pkey"),
    QOS_CLASS = 14 => field_named(PathRecord::FIELDS, "qos_class"),
    SL = 15 => field_named(PathRecord::FIELDS, "sl"),
    MTU_SELECTOR = 16 => field_named(PathRecord::FIELDS, "mtu_selector"),
    MTU = 17 => field_named(PathRecord::FIELDS, "mtu"),
    RATE_SELECTOR = 18 => field_named(PathRecord::FIELDS, "rate_selector"),
    RATE = 19 => field_named(PathRecord::FIELDS, "rate"),
    PACKET_LIFE_TIME_SELECTOR = 20 => field_named(PathRecord::FIELDS, "packet_life_time_selector"),
    PACKET_LIFE_TIME = 21 => field_named(PathRecord::FIELDS, "packet_life_time"),
    PREFERENCE = 22 => field_named(PathRecord::FIELDS, "preference"),
});

wire_enum! {
    /// How a request means a value.
    pub enum Selector {
        /// Anything above it.
        GreaterThan = 0,
        /// Anything below it.
        LessThan = 1,
        /// Just that.
        Exactly = 2,
        /// The best there is: the largest, of life times the smallest.
        Best = 3,
    }
}

wire_enum! {
    /// How fast a path is: width times speed of its slowest link, by nominal Gb/s.
    pub enum Rate {
        /// 2.5 Gb/s: SDR x1.
        G2_5 = 2,
        /// 10 Gb/s: SDR x4.
        G10 = 3,
        /// 30 Gb/s: SDR x12.
        G30 = 4,
        /// 5 Gb/s: DDR x1.
        G5 = 5,
        /// 20 Gb/s: DDR x4.
        G20 = 6,
        /// 40 Gb/s: QDR x4.
        G40 = 7,
        /// 60 Gb/s: DDR x12.
        G60 = 8,
        /// 80 Gb/s: QDR x8.
        G80 = 9,
        /// 120 Gb/s: QDR x12.
        G120 = 10,
        /// 14 Gb/s: FDR x1.
        G14 = 11,
        /// 56 Gb/s: FDR x4.
        G56 = 12,
        /// 112 Gb/s: FDR x8.
        G112 = 13,
        /// 168 Gb/s: FDR x12.
        G168 = 14,
        /// 25 Gb/s: EDR x1.
        G25 = 15,
        /// 100 Gb/s: EDR x4.
        G100 = 16,
        /// 200 Gb/s: EDR x8, HDR x4.
        G200 = 17,
        /// 300 Gb/s: EDR x12.
        G300 = 18,
        /// 28 Gb/s: FDR x2.
        G28 = 19,
        /// 50 Gb/s: EDR x2, HDR x1.
        G50 = 20,
        /// 400 Gb/s: HDR x8, NDR x4.
        G400 = 21,
        /// 600 Gb/s: HDR x12.
        G600 = 22,
        /// 800 Gb/s: NDR x8.
        G800 = 23,
        /// 1200 Gb/s: NDR x12.
        G1200 = 24,
    }
}

impl Rate {
    /// Every rate there is a code for, slowest first.
    pub const SLOWEST_FIRST: [Self; 23] = [
        Self::G2_5,
        Self::G5,
        Self::G10,
        Self::G14,
        Self::G20,
        Self::G25,
        Self::G28,
        Self::G30,
        Self::G40,
        Self::G50,
        Self::G56,
        Self::G60,
        Self::G80,
        Self::G100,
        Self::G112,
        Self::G120,
        Self::G168,
        Self::G200,
        Self::G300,
        Self::G400,
        Self::G600,
        Self::G800,
        Self::G1200,
    ];

    /// The fastest rate that is not above a nominal one; `None` below the slowest.
    pub fn at_most_mbps(nominal_mbps: u32) -> Option<Self> {
        Self::SLOWEST_FIRST.into_iter().rev().find(|rate| rate.nominal_mbps() <= nominal_mbps)
    }

    /// The nominal rate in Mb/s, by which rates compare (codes do not); 0 where the code says none.
    pub const fn nominal_mbps(self) -> u32 {
        match self {
            Self::G2_5 => 2_500,
            Self::G5 => 5_000,
            Self::G10 => 10_000,
            Self::G14 => 14_000,
            Self::G20 => 20_000,
            Self::G25 => 25_000,
            Self::G28 => 28_000,
            Self::G30 => 30_000,
            Self::G40 => 40_000,
            Self::G50 => 50_000,
            Self::G56 => 56_000,
            Self::G60 => 60_000,
            Self::G80 => 80_000,
            Self::G100 => 100_000,
            Self::G112 => 112_000,
            Self::G120 => 120_000,
            Self::G168 => 168_000,
            Self::G200 => 200_000,
            Self::G300 => 300_000,
            Self::G400 => 400_000,
            Self::G600 => 600_000,
            Self::G800 => 800_000,
            Self::G1200 => 1_200_000,
            Self::Unknown(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_listed_once_each_from_slow_to_fast() {
        let listed = Rate::SLOWEST_FIRST;
        assert!(listed.windows(2).all(|pair| pair[0].nominal_mbps() < pair[1].nominal_mbps()));
        let codes = (0..=u8::MAX).map(Rate::from_wire);
        assert_eq!(codes.filter(|rate| rate.nominal_mbps() > 0).count(), listed.len());
    }

    #[test]
    fn a_rate_without_a_code_is_the_next_slower_one() {
        assert_eq!(Rate::at_most_mbps(100_000), Some(Rate::G100));
        assert_eq!(Rate::at_most_mbps(99_999), Some(Rate::G80));
        assert_eq!(Rate::at_most_mbps(u32::MAX), Some(Rate::G1200));
        assert_eq!(Rate::at_most_mbps(2_499), None);
    }
}
