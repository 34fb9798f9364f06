//! What everybody got.

use std::collections::BTreeMap;

use fabric_model::tenancy::Bandwidth;
use serde::Serialize;

use super::clusters::SimCluster;
use super::workload::STAGGER;
use crate::device::PortId;
use crate::traffic::{Histogram, Measure, RunOutcome, Simulation, Tag, Time, Totals, TrafficNetwork};

/// Packets of the largest size that may be under way when the time is up, besides those that wait for their turn.
const LAG_PACKETS: f64 = 2.0;

/// Bits of the largest packet.
const PACKET_BITS: f64 = 4122.0 * 8.0;

/// What became of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct ScenarioReport {
    /// By cluster.
    pub clusters: Vec<ClusterReport>,
    /// All packets.
    pub totals: Totals,
    /// Whether packets were left that could not move any more.
    pub is_stalled: bool,
    /// How long it was measured.
    pub duration: Time,
    /// The length of the slices in which deliveries were counted.
    pub interval: Time,
    /// Ports that sent, with the part of their links' rate that they used.
    #[serde(skip)]
    pub links: Vec<(PortId, f64)>,
}

/// What a cluster got.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterReport {
    /// Which.
    pub name: String,
    /// Whether it did something that is meant to harm others.
    pub is_hostile: bool,
    /// Its nodes.
    pub nodes: usize,
    /// What each was promised.
    pub guarantee: Option<Bandwidth>,
    /// By when a packet that finds its lane empty was to arrive.
    pub latency_bound: Option<Time>,
    /// What arrived of a node's packets, with headers: the least of all nodes.
    pub min_rate: Bandwidth,
    /// The mean of all nodes.
    pub mean_rate: Bandwidth,
    /// What arrived of a node's packets since all began to send, with headers: the least of all nodes.
    pub min_bytes: u64,
    /// How long all of them have been sending.
    pub sending_time: Time,
    /// Whether its nodes sent as much as they were promised.
    pub is_tested: bool,
    /// The part of the promise that packets of its size can carry: arbitration counts blocks of 64 bytes, the last one of a
    /// packet whole. 1 for full-size packets, less for smaller ones.
    pub fill: f64,
    /// What it took of what others left on the link of its ways where that was the least; `None` unless it sent all to all.
    /// Nearly 1 if that link was never idle.
    pub leftover_share: Option<f64>,
    /// From post to arrival of packets.
    pub latency: Histogram,
    /// Of packets that found their lane empty.
    pub uncontended: Histogram,
    /// Packets that were dropped.
    pub dropped: u64,
    /// How long rounds took from the end of computing until everything had arrived, if it played rounds.
    pub rounds: Option<Histogram>,
    /// Payload that arrived in each slice.
    pub interval_bytes: Vec<u64>,
}

impl ClusterReport {
    /// What the node that got the least got of the promise since it began to send, as far as its packets can carry that;
    /// `None` if it was not promised anything.
    pub fn rate_fraction(&self) -> Option<f64> {
        let promised = self.guarantee?.bits_per_s() as f64 * self.fill * self.sending_time.s();
        Some(self.min_bytes as f64 * 8.0 / promised)
    }

    /// Whether the rate was kept; `None` if it was not promised or not asked for. Who is served at a rate after a wait gets in
    /// any time what the rate gives in that time less the wait. Counted from the start: who sends large messages at a rate has
    /// sent more than that whenever it has posted one, and pauses then.
    pub fn meets_rate(&self) -> Option<bool> {
        let guarantee = self.guarantee.filter(|_| self.is_tested)?.bits_per_s() as f64 * self.fill;
        let wait = self.latency_bound.unwrap_or(Time::ZERO).s();
        let least = guarantee * (self.sending_time.s() - wait) - LAG_PACKETS * PACKET_BITS;
        Some(self.min_bytes as f64 * 8.0 >= least)
    }

    /// Whether no packet that found its lane empty came later than the bound; `None` if there is none, or no such packet.
    pub fn meets_latency_bound(&self) -> Option<bool> {
        Some(self.uncontended.max()? <= self.latency_bound?)
    }
}

impl ScenarioReport {
    /// Whether everybody who was promised something got it.
    pub fn meets_all_guarantees(&self) -> bool {
        let kept = |cluster: &ClusterReport| {
            cluster.meets_rate() != Some(false) && cluster.meets_latency_bound() != Some(false)
        };
        self.clusters.iter().all(kept)
    }
}

/// What is known of a cluster besides what was measured.
pub(super) struct JobResult<'a> {
    pub cluster: &'a SimCluster,
    pub is_hostile: bool,
    pub is_tested: bool,
    /// Whether each node sent the same to all others.
    pub is_uniform: bool,
    pub fill: f64,
    /// The account of each node.
    pub tags: Vec<Tag>,
    /// Bytes, with headers, that had arrived of each node's packets before it was measured.
    pub before: Vec<u64>,
    pub rounds: Option<Histogram>,
}

impl JobResult<'_> {
    /// What it got, while ports sent so many bytes.
    pub fn report(self, simulation: &Simulation, sent: &[u64], duration: Time) -> ClusterReport {
        let mut all = Measure::default();
        let (mut least, mut sum, mut min_bytes) = (u64::MAX, 0, u64::MAX);
        let mut by_node = Vec::with_capacity(self.tags.len());
        for (tag, before) in self.tags.iter().zip(&self.before) {
            let measure = simulation.measure(*tag);
            let all_bytes = measure.map_or(0, |measure| measure.wire_bytes);
            min_bytes = min_bytes.min(all_bytes);
            let bytes = all_bytes - before;
            least = least.min(bytes);
            sum += bytes;
            by_node.push(bytes);
            measure.into_iter().for_each(|measure| all.merge(measure));
        }
        let nodes = self.tags.len();
        let rate = |bytes: f64| Bandwidth::from_bits_per_s((bytes * 8.0 / duration.s()) as u64);
        ClusterReport {
            name: self.cluster.name.clone(),
            is_hostile: self.is_hostile,
            nodes,
            guarantee: self.cluster.guarantee,
            latency_bound: self.cluster.latency_bound,
            min_rate: rate(if nodes == 0 { 0.0 } else { least as f64 }),
            mean_rate: rate(sum as f64 / nodes.max(1) as f64),
            min_bytes: if nodes == 0 { 0 } else { min_bytes },
            sending_time: simulation.now().saturating_sub(STAGGER),
            is_tested: self.is_tested,
            fill: self.fill,
            leftover_share: self
                .is_uniform
                .then(|| self.leftover_share(simulation, &by_node, sent, duration))
                .flatten(),
            dropped: all.dropped(),
            latency: all.from_post,
            uncontended: all.uncontended,
            rounds: self.rounds,
            interval_bytes: all.interval_bytes,
        }
    }
}

impl JobResult<'_> {
    /// What it took of what others left on the tightest link of its ways. Nodes have sent so many bytes, to all others the same.
    fn leftover_share(
        &self,
        simulation: &Simulation,
        by_node: &[u64],
        sent: &[u64],
        duration: Time,
    ) -> Option<f64> {
        let network = simulation.network();
        let mut own: BTreeMap<PortId, f64> = BTreeMap::new();
        let nodes = &self.cluster.nodes;
        for (from, bytes) in nodes.iter().zip(by_node) {
            for to in nodes.iter().filter(|to| to.function.port() != from.function.port()) {
                let part = *bytes as f64 / (nodes.len() - 1) as f64;
                network
                    .path(from.function.port(), to.lid)
                    .for_each(|port| *own.entry(port).or_default() += part);
            }
        }
        let taken = own.iter().map(|(port, own)| {
            let others = (sent[port.index()] as f64 - own).max(0.0);
            own / (capacity(network, *port, duration) - others).max(*own)
        });
        taken.reduce(f64::max)
    }
}

/// Bytes that the link of a port carries in a time.
fn capacity(network: &TrafficNetwork, port: PortId, duration: Time) -> f64 {
    network.rate(port).data_rate_gbps() * 1e9 / 8.0 * duration.s()
}

/// What part of their links' rate ports used that sent so many bytes.
pub(super) fn link_loads(simulation: &Simulation, sent: &[u64], duration: Time) -> Vec<(PortId, f64)> {
    let network = simulation.network();
    let used = network.ports().zip(sent).filter(|(_, sent)| **sent > 0);
    used.map(|(port, sent)| (port, *sent as f64 / capacity(network, port, duration))).collect()
}

/// Whether a simulation came to a stop with packets inside.
pub(super) fn is_stalled(outcome: RunOutcome) -> bool {
    outcome == RunOutcome::Stalled
}
