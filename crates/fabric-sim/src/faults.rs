//! Injected faults: loss, duplication and delay, from a seeded generator.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::device::PortId;

/// A probability, in parts per million. Reads and writes as a number from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Probability(u32);

const MILLION: u32 = 1_000_000;

/// A number outside 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("a probability must be between 0 and 1, got {0}")]
pub struct InvalidProbability(f64);

impl Probability {
    pub const NEVER: Self = Self(0);
    pub const ALWAYS: Self = Self(MILLION);
}

impl TryFrom<f64> for Probability {
    type Error = InvalidProbability;
    fn try_from(value: f64) -> Result<Self, InvalidProbability> {
        if !(0.0..=1.0).contains(&value) {
            return Err(InvalidProbability(value));
        }
        Ok(Self((value * f64::from(MILLION)).round() as u32))
    }
}

impl From<Probability> for f64 {
    fn from(probability: Probability) -> f64 {
        f64::from(probability.0) / f64::from(MILLION)
    }
}

/// The faults in force. The same seed and the same sequence of packets give the same faults.
#[derive(Debug)]
pub(crate) struct Faults {
    rng: Pcg64Mcg,
    /// Loss on every link.
    loss: Probability,
    /// Loss of packets that leave or enter one port.
    port_loss: BTreeMap<PortId, Probability>,
    /// Loss of data packets that leave or enter one port. Management passes, so that the device appears
    /// healthy.
    data_loss: BTreeMap<PortId, Probability>,
    duplication: Probability,
    /// Upper bound of the random delay of a delivery.
    delay_max: Duration,
}

impl Faults {
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Pcg64Mcg::seed_from_u64(seed),
            loss: Probability::NEVER,
            port_loss: BTreeMap::new(),
            data_loss: BTreeMap::new(),
            duplication: Probability::NEVER,
            delay_max: Duration::ZERO,
        }
    }

    pub fn set_loss(&mut self, port: Option<PortId>, probability: Probability) {
        match port {
            None => self.loss = probability,
            Some(port) if probability == Probability::NEVER => drop(self.port_loss.remove(&port)),
            Some(port) => drop(self.port_loss.insert(port, probability)),
        }
    }

    pub fn set_data_loss(&mut self, port: PortId, probability: Probability) {
        match probability {
            Probability::NEVER => drop(self.data_loss.remove(&port)),
            probability => drop(self.data_loss.insert(port, probability)),
        }
    }

    pub fn set_duplication(&mut self, probability: Probability) {
        self.duplication = probability;
    }

    pub fn set_delay_max(&mut self, longest: Duration) {
        self.delay_max = longest;
    }

    /// Whether a packet from `out` to `into` is lost.
    #[inline]
    pub fn loses(&mut self, out: PortId, into: PortId, is_data: bool) -> bool {
        if self.loss == Probability::NEVER && self.port_loss.is_empty() && self.data_loss.is_empty() {
            return false;
        }
        let at_ports = [out, into].map(|port| {
            let any = self.port_loss.get(&port).copied().unwrap_or_default();
            let data = self.data_loss.get(&port).copied().filter(|_| is_data).unwrap_or_default();
            any.max(data)
        });
        let worst = at_ports.into_iter().chain([self.loss]).max().unwrap_or_default();
        self.happens(worst)
    }

    /// Whether a datagram is duplicated.
    #[inline]
    pub fn duplicates(&mut self) -> bool {
        self.duplication != Probability::NEVER && self.happens(self.duplication)
    }

    /// The delay of the next delivery.
    #[inline]
    pub fn delay(&mut self) -> Duration {
        if self.delay_max.is_zero() {
            return Duration::ZERO;
        }
        let longest = u64::try_from(self.delay_max.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.rng.random_range(0..=longest))
    }

    fn happens(&mut self, probability: Probability) -> bool {
        self.rng.random_range(0..MILLION) < probability.0
    }
}
