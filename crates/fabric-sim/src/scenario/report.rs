//! What everybody got.

use fabric_model::tenancy::Bandwidth;
use serde::Serialize;

use super::cast::Party;
use crate::device::PortId;
use crate::traffic::{Histogram, Measure, Outcome, Simulation, Tag, Time, Totals};

/// Packets of the largest size that may be under way when the time is up, besides those that wait for their turn.
const LAG_PACKETS: f64 = 2.0;

/// Bits of the largest packet.
const PACKET_BITS: f64 = 4122.0 * 8.0;

/// What became of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// By cluster.
    pub parties: Vec<PartyReport>,
    /// All packets.
    pub totals: Totals,
    /// Whether packets were left that could not move any more.
    pub is_stalled: bool,
    /// How long it was measured.
    pub duration: Time,
    /// The length of the slices in which deliveries were counted.
    pub slice: Time,
    /// Ports that sent, with the part of their links' rate that they used.
    #[serde(skip)]
    pub links: Vec<(PortId, f64)>,
}

/// What a cluster got.
#[derive(Clone, Debug, Serialize)]
pub struct PartyReport {
    /// Which.
    pub name: String,
    /// Whether it did something that is meant to harm others.
    pub is_hostile: bool,
    /// Its nodes.
    pub nodes: usize,
    /// What each was promised.
    pub promise: Option<Bandwidth>,
    /// By when a packet that finds its lane empty was to arrive.
    pub bound: Option<Time>,
    /// What arrived of a node's packets, with headers: the least of all nodes.
    pub least: Bandwidth,
    /// The mean of all nodes.
    pub mean: Bandwidth,
    /// Whether its nodes sent as much as they were promised.
    pub is_tested: bool,
    /// From post to arrival of packets.
    pub latency: Histogram,
    /// Of packets that found their lane empty.
    pub alone: Histogram,
    /// Packets that were dropped.
    pub dropped: u64,
    /// How long rounds took from the end of computing until everything had arrived, if it played rounds.
    pub rounds: Option<Histogram>,
    /// Payload that arrived in each slice.
    pub slices: Vec<u64>,
}

impl PartyReport {
    /// Whether the rate was kept; `None` if it was not promised or not asked for. Who is served at a rate after a wait gets in
    /// any time what the rate gives in that time less the wait.
    pub fn keeps_rate(&self, duration: Time) -> Option<bool> {
        let promise = self.promise.filter(|_| self.is_tested)?.bits_per_s() as f64;
        let wait = self.bound.unwrap_or(Time::ZERO).s();
        let least = promise * (duration.s() - wait) - LAG_PACKETS * PACKET_BITS;
        Some(self.least.bits_per_s() as f64 * duration.s() >= least)
    }

    /// Whether no packet that found its lane empty came later than the bound; `None` if there is none, or no such packet.
    pub fn keeps_bound(&self) -> Option<bool> {
        Some(self.alone.max()? <= self.bound?)
    }
}

impl Report {
    /// Whether everybody who was promised something got it.
    pub fn keeps_all(&self) -> bool {
        let kept = |party: &PartyReport| {
            party.keeps_rate(self.duration) != Some(false) && party.keeps_bound() != Some(false)
        };
        self.parties.iter().all(kept)
    }
}

/// What is known of a cluster besides what was measured.
pub(super) struct Played<'a> {
    pub party: &'a Party,
    pub is_hostile: bool,
    pub is_tested: bool,
    /// The account of each node.
    pub tags: Vec<Tag>,
    /// Bytes, with headers, that had arrived of each node's packets before it was measured.
    pub before: Vec<u64>,
    pub rounds: Option<Histogram>,
}

impl Played<'_> {
    pub fn report(self, simulation: &Simulation, duration: Time) -> PartyReport {
        let mut all = Measure::default();
        let (mut least, mut sum) = (u64::MAX, 0);
        for (tag, before) in self.tags.iter().zip(&self.before) {
            let measure = simulation.measure(*tag);
            let bytes = measure.map_or(0, |measure| measure.wire_bytes) - before;
            least = least.min(bytes);
            sum += bytes;
            measure.into_iter().for_each(|measure| all.merge(measure));
        }
        let nodes = self.tags.len();
        let rate = |bytes: f64| Bandwidth::from_bits_per_s((bytes * 8.0 / duration.s()) as u64);
        PartyReport {
            name: self.party.name.clone(),
            is_hostile: self.is_hostile,
            nodes,
            promise: self.party.promise,
            bound: self.party.bound,
            least: rate(if nodes == 0 { 0.0 } else { least as f64 }),
            mean: rate(sum as f64 / nodes.max(1) as f64),
            is_tested: self.is_tested,
            dropped: all.dropped(),
            latency: all.from_post,
            alone: all.alone,
            rounds: self.rounds,
            slices: all.slices,
        }
    }
}

/// What links carried besides what they had carried before.
pub(super) fn link_loads(simulation: &Simulation, before: &[u64], duration: Time) -> Vec<(PortId, f64)> {
    let ports = simulation.network().ports();
    ports
        .zip(before)
        .filter_map(|(port, before)| {
            let bytes = simulation.sent_bytes(port) - before;
            let most = simulation.network().rate(port).data_rate_gbps() * 1e9 / 8.0 * duration.s();
            (bytes > 0).then(|| (port, bytes as f64 / most))
        })
        .collect()
}

/// Whether a simulation came to a stop with packets inside.
pub(super) fn is_stalled(outcome: Outcome) -> bool {
    outcome == Outcome::Stalled
}
