//! Options for what an operator states about the hardware of a site.

use std::ffi::OsString;

use clap::Args;
use fabric_model::{StatedHardware, SwitchModel};

/// What the operator states about the hardware, because no device reports it.
#[derive(Clone, Copy, Debug, Args)]
pub struct HardwareArgs {
    /// How the switches move packets to their outputs: ideal-outputs, limited-speedup:N or fifo-inputs. Guarantees are
    /// sold for this model
    #[arg(long, value_name = "MODEL", default_value_t = StatedHardware::default().switch_model)]
    switch_model: SwitchModel,
    /// Length of the longest cable, in metres; it adds to latency bounds
    #[arg(long, value_name = "METRES", default_value_t = StatedHardware::default().cable_metres)]
    cable_metres: u16,
}

impl HardwareArgs {
    /// The statement that the options make.
    pub fn stated(self) -> StatedHardware {
        StatedHardware { switch_model: self.switch_model, cable_metres: self.cable_metres }
    }

    /// The options, for another program of Heddle.
    pub fn arguments(self) -> [OsString; 4] {
        [
            "--switch-model".into(),
            self.switch_model.to_string().into(),
            "--cable-metres".into(),
            self.cable_metres.to_string().into(),
        ]
    }
}
