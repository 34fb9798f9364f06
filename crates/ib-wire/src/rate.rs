//! Rates of paths, groups and links.

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
