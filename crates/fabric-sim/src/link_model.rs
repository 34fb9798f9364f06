//! The link model: a rate and a latency of links, for frames and packets of virtual functions.
//!
//! Without the model they pass the fabric at once. With it, each waits at every output port on its way, of an adapter or a
//! switch, in the queue of its lane there. The arbitration tables of the port say which lane is served next. A packet occupies
//! the link for its length at the rate of the model; the next device has it after the latency, and looks up its route and lane
//! with the tables of that moment, in the same code as without the model. Ports are served as long as anything waits
//! (work-conserving).
//!
//! The model is coarse. A packet arrives whole before it goes on. There are no credits: a queue holds whatever arrives, so a
//! full lane delays none at other ports. Instead, each function may have a bounded number of bytes waiting
//! ([`Fabric::is_congested`]): the caller stops taking more from it, so nothing is lost and memory is bounded. Functions that
//! share a port and a lane are served in order of arrival.
//!
//! Not delayed are management datagrams, and what functions of one port send each other inside the adapter.
//!
//! # What changes under way
//!
//! A packet that waits at a port stays there; every device that it reaches later uses its new tables. If the link of the port
//! is down when its turn comes or when it is sent completely, it is dropped with the reason, as without the model. New
//! arbitration tables are in force from the next packet on, from their first entry (A-LANE-21). A lane that no entry serves
//! (A-LANE-10) would wait for ever: its packets are dropped as expired.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fabric_model::tenancy::Bandwidth;
use thiserror::Error;

use crate::device::PortId;
use crate::fabric::Fabric;
use crate::link_queues::LinkQueues;
use crate::vf_frames::FunctionId;

/// Lowest rate of a modelled link: the largest packet takes 34 s.
pub const LINK_RATE_MIN: Bandwidth = Bandwidth::from_bits_per_s(1_000);

/// Longest latency of a modelled link; it bounds what is under way on one.
pub const LINK_LATENCY_MAX: Duration = Duration::from_secs(1);

/// Least bytes that a function may have waiting in a lane: seven of the largest packets, so that one can wait at each port of a
/// usual path.
const WAITING_BYTES_MIN: u64 = 32 * 1024;

/// A function may have at least what its link sends in this time: callers take packets once in a millisecond or so.
const WAITING_TIME_MIN: Duration = Duration::from_millis(4);

/// Rate of all modelled links. Parses and prints as `20M` or `1/2000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelledRate {
    /// The same for every link, at least [`LINK_RATE_MIN`].
    Same(Bandwidth),
    /// The rate of each link, divided by this number, at least 1.
    Divided(u32),
}

/// The text is not a rate of modelled links.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "invalid rate of links {0:?}: expected a rate of at least 1k such as 20M, or a part of each link's rate such as 1/2000"
)]
pub struct ParseModelledRateError(String);

impl FromStr for ModelledRate {
    type Err = ParseModelledRateError;

    fn from_str(text: &str) -> Result<Self, ParseModelledRateError> {
        let invalid = || ParseModelledRateError(text.to_owned());
        if let Some(divisor) = text.trim().strip_prefix("1/") {
            let divisor: u32 = divisor.parse().map_err(|_| invalid())?;
            return if divisor > 0 { Ok(Self::Divided(divisor)) } else { Err(invalid()) };
        }
        let rate: Bandwidth = text.parse().map_err(|_| invalid())?;
        if rate >= LINK_RATE_MIN { Ok(Self::Same(rate)) } else { Err(invalid()) }
    }
}

impl fmt::Display for ModelledRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same(rate) => rate.fmt(f),
            Self::Divided(divisor) => write!(f, "1/{divisor}"),
        }
    }
}

/// Rate and latency of all links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkModel {
    pub rate: ModelledRate,
    /// From the end of a packet at one port to its arrival in the device at the other, at most [`LINK_LATENCY_MAX`].
    pub latency: Duration,
}

/// What is inside the fabric now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LinkLoad {
    /// Frames and packets, each counted once whatever its copies.
    pub packets: u64,
    /// Bytes of those that wait at a port, headers included.
    pub waiting_bytes: u64,
    /// Functions from which no more is taken for the time being.
    pub congested_functions: u64,
}

impl Fabric {
    /// Switches the link model on, changes it, or switches it off. What is being sent keeps its time. When the model is switched
    /// off, everything inside the fabric arrives at once.
    pub fn set_link_model(&mut self, now: Duration, model: Option<LinkModel>) {
        self.handle_timeout(now);
        match (model, &mut self.link_queues) {
            (Some(model), Some(queues)) => queues.model = model,
            (Some(model), None) => self.link_queues = Some(Box::new(LinkQueues::new(model))),
            (None, _) => {
                self.run_links(Duration::MAX);
                self.link_queues = None;
            }
        }
    }

    /// The link model in force.
    pub fn link_model(&self) -> Option<LinkModel> {
        self.link_queues.as_ref().map(|queues| queues.model)
    }

    /// What the link model holds back; nothing without one.
    pub fn link_load(&self) -> LinkLoad {
        self.link_queues.as_ref().map(|queues| queues.load()).unwrap_or_default()
    }

    /// Whether a function has as much waiting inside the fabric as it may. Nothing is dropped if it sends nevertheless, but a
    /// caller that goes on gives up the bound on memory. It becomes false as the links are served, in
    /// [`handle_timeout`](Self::handle_timeout).
    pub fn is_congested(&self, function: FunctionId) -> bool {
        self.link_queues.as_ref().is_some_and(|queues| queues.is_congested(function))
    }

    /// Modelled rate of the link of a port in bits per second.
    pub(crate) fn modelled_rate(&self, model: &LinkModel, port: PortId) -> u64 {
        match model.rate {
            ModelledRate::Same(rate) => rate.bits_per_s(),
            ModelledRate::Divided(divisor) => {
                let whole = self.link_rate(port).data_rate_gbps() * 1e9;
                ((whole / f64::from(divisor)) as u64).max(LINK_RATE_MIN.bits_per_s())
            }
        }
    }
}

/// Time of a number of bytes at a rate in bits per second, rounded up.
pub(crate) fn time_on_link(bytes: u32, rate: u64) -> Duration {
    Duration::from_nanos((u64::from(bytes) * 8_000_000_000).div_ceil(rate))
}

/// Bytes that a function may have waiting in a lane, by the rate of its link.
pub(crate) fn waiting_bytes_max(rate: u64) -> u64 {
    let while_waiting = u128::from(rate / 8) * WAITING_TIME_MIN.as_nanos() / 1_000_000_000;
    WAITING_BYTES_MIN.max(while_waiting as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_parse_and_print() {
        let same = |bits| Ok(ModelledRate::Same(Bandwidth::from_bits_per_s(bits)));
        for (text, rate) in
            [("20M", same(20_000_000)), ("1k", same(1000)), ("1/2000", Ok(ModelledRate::Divided(2000)))]
        {
            let read: Result<ModelledRate, ParseModelledRateError> = text.parse();
            assert_eq!(read, rate);
            assert_eq!(read.unwrap().to_string().parse(), rate, "printed and read again");
        }
        for text in ["", "0", "999", "1/0", "1/-3", "2/3", "1/", "fast"] {
            assert!(text.parse::<ModelledRate>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn times_are_rounded_up() {
        assert_eq!(time_on_link(1000, 8_000_000), Duration::from_millis(1));
        assert_eq!(time_on_link(1, 3_000_000_000), Duration::from_nanos(3));
        assert_eq!(waiting_bytes_max(20_000_000), 32 * 1024);
        assert_eq!(waiting_bytes_max(1_000_000_000), 500_000);
    }
}
