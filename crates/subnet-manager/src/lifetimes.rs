//! How long packets may stay in the fabric. One place for the values that devices get, that path records show and that
//! transitions wait for.
//!
//! Values are exponents: 4.096 µs · 2ⁿ. Power-on values of devices are unspecified, so all of them are written.

use std::time::Duration;

/// SwitchInfo:LifeTimeValue: the longest stay of a packet in a switch, 134 ms.
pub(crate) const SWITCH_LIFE_TIME: u8 = 15;

/// PortInfo:HOQLife of switch ports between switches: 134 ms.
pub(crate) const HOQ_LIFE: u8 = 15;

/// PortInfo:HOQLife of switch ports to adapters: 67 ms. A receiver that stalls blocks packets to others for no longer.
pub(crate) const LEAF_HOQ_LIFE: u8 = 14;

/// PortInfo:VLStallCount: packets in a row that are dropped for HOQLife before the lane counts as stalled.
pub(crate) const VL_STALL_COUNT: u8 = 7;

/// PortInfo:SubnetTimeOut and PacketLifeTime of path records: 1.07 s, the stay in 8 switches.
pub(crate) const SUBNET_TIMEOUT: u8 = 18;

/// The time after which no packet of before is left in the fabric.
pub(crate) const DRAIN_TIME: Duration = duration(SUBNET_TIMEOUT);

/// The duration that an exponent means.
const fn duration(exponent: u8) -> Duration {
    Duration::from_nanos(4096 << exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_gone_when_a_transition_goes_on() {
        assert_eq!(DRAIN_TIME.as_millis(), 1073);
        assert!(duration(SWITCH_LIFE_TIME) * 8 <= DRAIN_TIME, "a path of 8 switches");
        const { assert!(LEAF_HOQ_LIFE <= HOQ_LIFE && HOQ_LIFE <= SWITCH_LIFE_TIME) };
    }
}
