//! What an operator states about the hardware of a site, because no attribute of a device reports it: how switches move
//! packets from inputs to outputs, and how long cables are. Guarantees are computed for these statements.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::link_rate::LinkRate;

/// How a switch moves packets from its inputs to its outputs. Parses and prints as `ideal-outputs`, `limited-speedup:2` or
/// `fifo-inputs`; `limited-speedup` alone means the default speed-up.
///
/// `fabric_sim::traffic` defines the models precisely; A-LANE-16 says what is known of real switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SwitchModel {
    /// Any number of packets leave an input at once; a packet waits for its output only.
    IdealOutputs,
    /// Packets for different outputs do not block each other, but an input is read at this many times the rate of its link.
    LimitedSpeedup(Speedup),
    /// Each lane of an input is a FIFO: a packet also waits for the packets before it, whatever their outputs are.
    FifoInputs,
}

impl Default for SwitchModel {
    fn default() -> Self {
        Self::LimitedSpeedup(Speedup::default())
    }
}

/// How many times faster than its link an input of a switch is read: 1 to 64. The default is 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Speedup(u8);

impl Speedup {
    /// `None` if the factor is 0 or above 64.
    pub const fn new(factor: u8) -> Option<Self> {
        if factor >= 1 && factor <= 64 { Some(Self(factor)) } else { None }
    }

    pub const fn factor(self) -> u8 {
        self.0
    }
}

impl Default for Speedup {
    fn default() -> Self {
        Self(2)
    }
}

const IDEAL_OUTPUTS: &str = "ideal-outputs";
const LIMITED_SPEEDUP: &str = "limited-speedup";
const FIFO_INPUTS: &str = "fifo-inputs";

/// The text is not a switch model.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "invalid switch model {0:?}: expected ideal-outputs, limited-speedup, limited-speedup:N with N from 1 to 64, or fifo-inputs"
)]
pub struct ParseSwitchModelError(String);

impl FromStr for SwitchModel {
    type Err = ParseSwitchModelError;

    fn from_str(text: &str) -> Result<Self, ParseSwitchModelError> {
        let invalid = || ParseSwitchModelError(text.chars().take(40).collect());
        let speedup = |factor: &str| Speedup::new(factor.parse().ok()?);
        match text.split_once(':') {
            None if text == IDEAL_OUTPUTS => Ok(Self::IdealOutputs),
            None if text == LIMITED_SPEEDUP => Ok(Self::default()),
            None if text == FIFO_INPUTS => Ok(Self::FifoInputs),
            Some((LIMITED_SPEEDUP, factor)) => speedup(factor).map(Self::LimitedSpeedup).ok_or_else(invalid),
            _ => Err(invalid()),
        }
    }
}

impl fmt::Display for SwitchModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IdealOutputs => f.write_str(IDEAL_OUTPUTS),
            Self::LimitedSpeedup(speedup) => write!(f, "{LIMITED_SPEEDUP}:{}", speedup.factor()),
            Self::FifoInputs => f.write_str(FIFO_INPUTS),
        }
    }
}

impl TryFrom<String> for SwitchModel {
    type Error = ParseSwitchModelError;

    fn try_from(text: String) -> Result<Self, ParseSwitchModelError> {
        text.parse()
    }
}

impl From<SwitchModel> for String {
    fn from(model: SwitchModel) -> String {
        model.to_string()
    }
}

/// What an operator states about the hardware of a site. All links are alike in this; rates come from the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StatedHardware {
    /// The model of all switches.
    pub switch_model: SwitchModel,
    /// Length of the longest cable, in metres.
    pub cable_metres: u16,
}

/// Cables of 10 m: longer than those within a row of racks.
impl Default for StatedHardware {
    fn default() -> Self {
        Self { switch_model: SwitchModel::default(), cable_metres: 10 }
    }
}

/// Time of a packet's head through an idle device, in nanoseconds (A-LANE-13).
const DEVICE_NS: u32 = 200;

/// Propagation in a cable, in nanoseconds per metre (A-LANE-13).
const CABLE_NS_PER_METRE: u32 = 5;

/// Forward error correction of a link with PAM4 signalling, in nanoseconds (A-LANE-13).
const FEC_NS: u32 = 120;

/// The parts of the time that a packet takes from the output of one device to that of the next, in nanoseconds, if nothing
/// delays it and no link repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassageTimes {
    pub device_ns: u32,
    pub cable_ns: u32,
    /// 0 on links without error correction.
    pub fec_ns: u32,
}

impl PassageTimes {
    /// The whole time, in nanoseconds.
    pub const fn total_ns(self) -> u32 {
        self.device_ns + self.cable_ns + self.fec_ns
    }
}

impl StatedHardware {
    /// The passage times of a link of this rate.
    pub fn passage(&self, rate: LinkRate) -> PassageTimes {
        PassageTimes {
            device_ns: DEVICE_NS,
            cable_ns: CABLE_NS_PER_METRE * u32::from(self.cable_metres),
            fec_ns: if rate.has_fec() { FEC_NS } else { 0 },
        }
    }

    /// Whether this is what a site has if its operator states nothing.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switch_models_survive_printing_and_parsing() {
        let fast = SwitchModel::LimitedSpeedup(Speedup::new(7).unwrap());
        for model in [SwitchModel::IdealOutputs, SwitchModel::default(), fast, SwitchModel::FifoInputs] {
            assert_eq!(model.to_string().parse(), Ok(model));
            let json = serde_json::to_string(&model).unwrap();
            assert_eq!(serde_json::from_str::<SwitchModel>(&json).unwrap(), model);
        }
        assert_eq!("limited-speedup".parse(), Ok(SwitchModel::default()));
        for text in
            ["", "ideal", "limited-speedup:", "limited-speedup:0", "limited-speedup:65", "fifo-inputs:2"]
        {
            assert!(text.parse::<SwitchModel>().is_err(), "{text}");
        }
    }

    #[test]
    fn passage_takes_longer_on_long_cables_and_with_error_correction() {
        let passage = |metres, rate: &str| {
            let hardware = StatedHardware { cable_metres: metres, ..StatedHardware::default() };
            hardware.passage(rate.parse().unwrap()).total_ns()
        };
        assert_eq!(StatedHardware::default().passage(LinkRate::DEFAULT).total_ns(), 250);
        for rate in ["4xSDR", "4xFDR10", "1xEDR", "12xEDR"] {
            assert_eq!((passage(10, rate), passage(100, rate)), (250, 700), "{rate}");
        }
        for rate in ["1xHDR", "4xNDR"] {
            assert_eq!((passage(0, rate), passage(100, rate)), (320, 820), "{rate}");
        }
    }
}
