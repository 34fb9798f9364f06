//! PathRecord: addresses, service level and limits of a path between two ports.

use super::record;
use crate::address::{Gid, LidAddress};
use crate::bits::{bits, bits_from, bytes, field_named};
use crate::keys::Pkey;
use crate::lanes::ServiceLevel;
use crate::link::Mtu;

layout! {
    /// PathRecord (attribute 0x0035): a path from `slid`, `sgid` to `dlid`, `dgid`.
    pub struct PathRecord[64] {
        /// The service that the path is for; the SA may choose the service level by it.
        service_id: u64 = bytes(0, 8),
        dgid: Gid = bytes(8, 16),
        sgid: Gid = bytes(24, 16),
        dlid: Option<LidAddress> = bytes(40, 2),
        slid: Option<LidAddress> = bytes(42, 2),
        /// RawTraffic: the path is for raw packets.
        is_raw: bool = bits(44, 7, 7),
        /// Flow label of the GRH, 20 bits.
        flow_label: u32 = bits_from(44, 3, 20),
        /// Hop limit of the GRH.
        hop_limit: u8 = bytes(47, 1),
        traffic_class: u8 = bytes(48, 1),
        /// Responses may use the same path in the reverse direction.
        is_reversible: bool = bits(49, 7, 7),
        /// NumbPath: in a request the most paths per pair of ports, 7 bits.
        path_count: u8 = bits(49, 6, 0),
        pkey: Option<Pkey> = bytes(50, 2),
        /// Quality of service class, 12 bits.
        qos_class: u16 = bits_from(52, 7, 12),
        sl: ServiceLevel = bits(53, 3, 0),
        /// How a request compares `mtu`.
        mtu_selector: Selector = bits(54, 7, 6),
        /// Largest payload on the path.
        mtu: Mtu = bits(54, 5, 0),
        /// How a request compares `rate`.
        rate_selector: Selector = bits(55, 7, 6),
        /// Rate of the slowest link on the path.
        rate: Rate = bits(55, 5, 0),
        /// How a request compares `packet_life_time`.
        packet_life_time_selector: Selector = bits(56, 7, 6),
        /// PacketLifeTime: longest time that a packet takes on the path, 4.096 µs · 2ⁿ.
        packet_life_time: u8 = bits(56, 5, 0),
        /// Rank among several paths; 0 is the best.
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
    /// How a request compares MTU, rate or packet lifetime.
    pub enum Selector {
        GreaterThan = 0,
        LessThan = 1,
        Exactly = 2,
        /// The largest available MTU or rate, the smallest available packet lifetime.
        Best = 3,
    }
}

wire_enum! {
    /// The rate of a path or group, by nominal Gb/s: link width times speed. The order of the codes is not the order of the
    /// rates: compare by [`Rate::nominal_mbps`].
    pub enum Rate {
        /// 2.5 Gb/s, a 1x SDR link.
        G2_5 = 2,
        /// 10 Gb/s, a 4x SDR link.
        G10 = 3,
        /// 30 Gb/s, a 12x SDR link.
        G30 = 4,
        /// 5 Gb/s, a 1x DDR link.
        G5 = 5,
        /// 20 Gb/s, a 4x DDR link.
        G20 = 6,
        /// 40 Gb/s, a 4x QDR link.
        G40 = 7,
        /// 60 Gb/s, a 12x DDR link.
        G60 = 8,
        /// 80 Gb/s, an 8x QDR link.
        G80 = 9,
        /// 120 Gb/s, a 12x QDR link.
        G120 = 10,
        /// 14 Gb/s, a 1x FDR link.
        G14 = 11,
        /// 56 Gb/s, a 4x FDR link.
        G56 = 12,
        /// 112 Gb/s, an 8x FDR link.
        G112 = 13,
        /// 168 Gb/s, a 12x FDR link.
        G168 = 14,
        /// 25 Gb/s, a 1x EDR link.
        G25 = 15,
        /// 100 Gb/s, a 4x EDR link.
        G100 = 16,
        /// 200 Gb/s, an 8x EDR or 4x HDR link.
        G200 = 17,
        /// 300 Gb/s, a 12x EDR link.
        G300 = 18,
        /// 28 Gb/s, a 2x FDR link.
        G28 = 19,
        /// 50 Gb/s, a 2x EDR or 1x HDR link.
        G50 = 20,
        /// 400 Gb/s, an 8x HDR or 4x NDR link.
        G400 = 21,
        /// 600 Gb/s, a 12x HDR link.
        G600 = 22,
        /// 800 Gb/s, an 8x NDR link.
        G800 = 23,
        /// 1200 Gb/s, a 12x NDR link.
        G1200 = 24,
    }
}

impl Rate {
    /// All rates that have a code, slowest first.
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

    /// The fastest rate that is at most `nominal_mbps` Mb/s; `None` below 2500.
    pub fn at_most_mbps(nominal_mbps: u32) -> Option<Self> {
        Self::SLOWEST_FIRST.into_iter().rev().find(|rate| rate.nominal_mbps() <= nominal_mbps)
    }

    /// The nominal rate in Mb/s; 0 for unknown codes.
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
    fn every_rate_is_listed_once_in_ascending_order() {
        let listed = Rate::SLOWEST_FIRST;
        assert!(listed.windows(2).all(|pair| pair[0].nominal_mbps() < pair[1].nominal_mbps()));
        let codes = (0..=u8::MAX).map(Rate::from_wire);
        assert_eq!(codes.filter(|rate| rate.nominal_mbps() > 0).count(), listed.len());
    }

    #[test]
    fn rates_round_down_to_one_with_a_code() {
        assert_eq!(Rate::at_most_mbps(100_000), Some(Rate::G100));
        assert_eq!(Rate::at_most_mbps(99_999), Some(Rate::G80));
        assert_eq!(Rate::at_most_mbps(u32::MAX), Some(Rate::G1200));
        assert_eq!(Rate::at_most_mbps(2_499), None);
    }
}
