//! Link rates: width times speed, written as the tools print them (`4xEDR`).

use std::fmt;
use std::str::FromStr;

use ib_wire::{ExtendedSpeed, LinkSpeed, PortInfo};
use serde::{Deserialize, Serialize};

/// Link width, as a multiple of a 1x link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    X1,
    X2,
    X4,
    X8,
    X12,
}

impl Width {
    /// All widths, narrowest first.
    pub const ALL: [Self; 5] = [Self::X1, Self::X2, Self::X4, Self::X8, Self::X12];

    /// The number in the name: 4 for 4x. The data rate of a link is this many times that of a 1x link.
    pub const fn multiplier(self) -> u8 {
        match self {
            Self::X1 => 1,
            Self::X2 => 2,
            Self::X4 => 4,
            Self::X8 => 8,
            Self::X12 => 12,
        }
    }
}

/// Link speed. The variants name the signalling rate of a 1x link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Speed {
    /// 2.5 Gb/s signalling rate.
    Sdr,
    /// 5 Gb/s signalling rate.
    Ddr,
    /// 10 Gb/s signalling rate.
    Qdr,
    /// 10.3125 Gb/s signalling rate.
    Fdr10,
    /// 14.0625 Gb/s signalling rate.
    Fdr,
    /// 25.78125 Gb/s signalling rate.
    Edr,
    /// 53.125 Gb/s signalling rate.
    Hdr,
    /// 106.25 Gb/s signalling rate.
    Ndr,
}

impl Speed {
    /// All speeds, slowest first.
    pub const ALL: [Self; 8] =
        [Self::Sdr, Self::Ddr, Self::Qdr, Self::Fdr10, Self::Fdr, Self::Edr, Self::Hdr, Self::Ndr];

    /// The name as `ibstat` and `ibnetdiscover` print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sdr => "SDR",
            Self::Ddr => "DDR",
            Self::Qdr => "QDR",
            Self::Fdr10 => "FDR10",
            Self::Fdr => "FDR",
            Self::Edr => "EDR",
            Self::Hdr => "HDR",
            Self::Ndr => "NDR",
        }
    }

    /// Data rate of a 1x link in each direction, in Gb/s: the signalling rate without line coding (8b/10b up to QDR,
    /// 64b/66b and its successors above).
    pub const fn data_rate_1x_gbps(self) -> f64 {
        match self {
            Self::Sdr => 2.0,
            Self::Ddr => 4.0,
            Self::Qdr => 8.0,
            Self::Fdr10 => 10.0,
            Self::Fdr => 14.0625 * 64.0 / 66.0,
            Self::Edr => 25.0,
            Self::Hdr => 50.0,
            Self::Ndr => 100.0,
        }
    }
}

/// Rate of a link. Parses and prints as `4xEDR`. Rates are ordered by speed, then by width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LinkRate {
    pub speed: Speed,
    pub width: Width,
}

impl LinkRate {
    /// 4xEDR, 100 Gb/s: the default of generated fabrics.
    pub const DEFAULT: Self = Self { speed: Speed::Edr, width: Width::X4 };

    /// The active rate of a link by the registers of one of its ports; `None` if they show no width or no speed. FDR10 shows as
    /// QDR there; `is_fdr10` comes from a vendor attribute.
    pub fn active(info: &PortInfo, is_fdr10: bool) -> Option<Self> {
        let lanes = info.link_width_active.lanes();
        let width = Width::ALL.into_iter().find(|width| u32::from(width.multiplier()) == lanes)?;
        let speed = match (info.extended_speed_active.fastest(), info.link_speed_active.fastest()) {
            (Some(ExtendedSpeed::FDR), _) => Speed::Fdr,
            (Some(ExtendedSpeed::EDR), _) => Speed::Edr,
            (Some(ExtendedSpeed::HDR), _) => Speed::Hdr,
            (Some(_), _) => Speed::Ndr,
            (None, Some(LinkSpeed::QDR)) if is_fdr10 => Speed::Fdr10,
            (None, Some(LinkSpeed::QDR)) => Speed::Qdr,
            (None, Some(LinkSpeed::DDR)) => Speed::Ddr,
            (None, Some(_)) => Speed::Sdr,
            (None, None) => return None,
        };
        Some(Self { speed, width })
    }

    /// Whether the link corrects errors forward: all with PAM4 signalling, from HDR on (A-LANE-13).
    pub fn has_fec(self) -> bool {
        self.speed >= Speed::Hdr
    }

    /// Data rate of the link in each direction, in Gb/s, without line coding.
    pub fn data_rate_gbps(self) -> f64 {
        f64::from(self.width.multiplier()) * self.speed.data_rate_1x_gbps()
    }
}

/// The text is not a link rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid link rate {0:?}: expected 1x, 2x, 4x, 8x or 12x followed by SDR, DDR, QDR, FDR10, FDR, EDR, HDR or NDR, \
     such as 4xEDR"
)]
pub struct ParseLinkRateError(String);

impl FromStr for LinkRate {
    type Err = ParseLinkRateError;

    fn from_str(text: &str) -> Result<Self, ParseLinkRateError> {
        let read = || {
            let (multiplier, name) = text.split_once('x')?;
            let width = Width::ALL.into_iter().find(|width| multiplier.parse() == Ok(width.multiplier()))?;
            let speed = Speed::ALL.into_iter().find(|speed| speed.name() == name)?;
            Some(Self { speed, width })
        };
        read().ok_or_else(|| ParseLinkRateError(text.chars().take(20).collect()))
    }
}

impl TryFrom<String> for LinkRate {
    type Error = ParseLinkRateError;

    fn try_from(text: String) -> Result<Self, ParseLinkRateError> {
        text.parse()
    }
}

impl From<LinkRate> for String {
    fn from(rate: LinkRate) -> String {
        rate.to_string()
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width.multiplier(), self.speed.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_survives_printing_and_parsing() {
        for width in Width::ALL {
            for speed in Speed::ALL {
                let rate = LinkRate { speed, width };
                assert_eq!(rate.to_string().parse(), Ok(rate));
            }
        }
    }

    #[test]
    fn malformed_rates_are_rejected() {
        for text in ["", "4x", "xEDR", "3xEDR", "4xedr", "4EDR", "4x EDR", "+4xEDR2", "4xFDR1"] {
            assert!(text.parse::<LinkRate>().is_err(), "{text}");
        }
    }

    #[test]
    fn data_rates_match_the_nominal_rates() {
        let gbps = |text: &str| text.parse::<LinkRate>().unwrap().data_rate_gbps();
        assert_eq!(gbps("4xQDR"), 32.0);
        assert_eq!(gbps("4xFDR10"), 40.0);
        assert_eq!(gbps("4xEDR"), 100.0);
        assert_eq!(gbps("2xHDR"), 100.0);
        assert_eq!(gbps("4xNDR"), 400.0);
        assert!((gbps("4xFDR") - 54.54).abs() < 0.01);
    }
}
