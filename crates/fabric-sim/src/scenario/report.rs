//! The results of a scenario.

use std::collections::BTreeMap;

use fabric_model::tenancy::Bandwidth;
use serde::Serialize;

use super::clusters::SimCluster;
use super::workload::STAGGER;
use crate::device::PortId;
use crate::traffic::{
    HEADER_BYTES, Histogram, Measure, PAYLOAD_BYTES_MAX, RunOutcome, Simulation, Tag, Time, Totals,
    TrafficNetwork,
};

/// Full-size packets that may be in flight at the end of the measurement, besides those that wait in queues.
const LAG_PACKETS: f64 = 2.0;

/// Size of a full-size packet in bits, headers included.
const PACKET_BITS: f64 = (PAYLOAD_BYTES_MAX + HEADER_BYTES as u32) as f64 * 8.0;

/// Results of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct ScenarioReport {
    /// One entry per workload and cluster.
    pub clusters: Vec<ClusterReport>,
    /// Totals over all packets, warm-up included.
    pub totals: Totals,
    /// Whether the simulation ended early because no remaining packet could move.
    pub is_stalled: bool,
    /// Measured time, without warm-up.
    pub duration: Time,
    /// Length of the intervals of [`ClusterReport::interval_bytes`].
    pub interval: Time,
    /// Ports that sent during the measurement, with the utilisation of their links, 0 to 1.
    #[serde(skip)]
    pub links: Vec<(PortId, f64)>,
}

/// Results of one workload of a cluster.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterReport {
    pub name: String,
    /// Whether the workload is meant to harm others.
    pub is_hostile: bool,
    pub nodes: usize,
    /// Guaranteed rate of each node.
    pub guarantee: Option<Bandwidth>,
    /// Upper bound on the latency of an uncontended packet.
    pub latency_bound: Option<Time>,
    /// Delivered rate of the slowest node during the measurement, headers included.
    pub min_rate: Bandwidth,
    /// Delivered rate averaged over the nodes, headers included.
    pub mean_rate: Bandwidth,
    /// Bytes delivered for the slowest node since the start, headers included.
    pub min_bytes: u64,
    /// Time since all nodes started to send.
    pub sending_time: Time,
    /// Whether the workload tests the guarantee: all to all, at the guaranteed rate, without bursts.
    pub is_tested: bool,
    /// The part of the guaranteed rate that packets of these sizes can use, 0 to 1. Arbitration counts blocks
    /// of 64 bytes and rounds up; full-size packets reach 1.
    pub fill: f64,
    /// The part that the cluster used of the capacity that others left on the tightest link of its paths.
    /// Close to 1 if that link was never idle; `None` unless every node sent to all others.
    pub leftover_share: Option<f64>,
    /// Latency of packets from posting to arrival.
    pub latency: Histogram,
    /// Latency of packets that found their lane empty on the whole path.
    pub uncontended: Histogram,
    pub dropped: u64,
    /// Duration of the exchange of each round, for `bulk-synchronous`.
    pub rounds: Option<Histogram>,
    /// Payload bytes delivered in each interval.
    pub interval_bytes: Vec<u64>,
}

impl ClusterReport {
    /// The rate of the slowest node relative to the guarantee, corrected by `fill`; `None` without a
    /// guarantee.
    pub fn rate_fraction(&self) -> Option<f64> {
        let promised = self.guarantee?.bits_per_s() as f64 * self.fill * self.sending_time.s();
        Some(self.min_bytes as f64 * 8.0 / promised)
    }

    /// Whether the guaranteed rate was met; `None` if there is no guarantee or the workload does not test it.
    ///
    /// The guarantee is a rate-latency curve: after a wait of at most the latency bound, a node gets its
    /// rate. Bytes are counted from the start, because a node that posts large messages at a rate is ahead of
    /// the rate after each of them and pauses.
    pub fn meets_rate(&self) -> Option<bool> {
        let guarantee = self.guarantee.filter(|_| self.is_tested)?.bits_per_s() as f64 * self.fill;
        let wait = self.latency_bound.unwrap_or(Time::ZERO).s();
        let least = guarantee * (self.sending_time.s() - wait) - LAG_PACKETS * PACKET_BITS;
        Some(self.min_bytes as f64 * 8.0 >= least)
    }

    /// Whether every uncontended packet met the latency bound; `None` if there is no bound or no such packet.
    pub fn meets_latency_bound(&self) -> Option<bool> {
        Some(self.uncontended.max()? <= self.latency_bound?)
    }
}

impl ScenarioReport {
    /// Whether no tested guarantee was violated.
    pub fn meets_all_guarantees(&self) -> bool {
        let kept = |cluster: &ClusterReport| {
            cluster.meets_rate() != Some(false) && cluster.meets_latency_bound() != Some(false)
        };
        self.clusters.iter().all(kept)
    }
}

/// A workload of a cluster after the run, with the facts that were not measured.
pub(super) struct JobResult<'a> {
    pub cluster: &'a SimCluster,
    pub is_hostile: bool,
    pub is_tested: bool,
    /// Whether every node sent the same amount to all others.
    pub is_uniform: bool,
    pub fill: f64,
    /// The tag of each node.
    pub tags: Vec<Tag>,
    /// Bytes delivered for each node before the measurement started, headers included.
    pub before: Vec<u64>,
    pub rounds: Option<Histogram>,
}

impl JobResult<'_> {
    /// The report, given the bytes that each port sent during the measurement.
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
    /// The part of the capacity left by others that the cluster used on the tightest link of its paths. Each
    /// node sent `by_node` bytes, evenly to all others.
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

/// Bytes that the link of a port carries in `duration`.
fn capacity(network: &TrafficNetwork, port: PortId, duration: Time) -> f64 {
    network.rate(port).data_rate_gbps() * 1e9 / 8.0 * duration.s()
}

/// The utilisation of the links of all ports that sent.
pub(super) fn link_loads(simulation: &Simulation, sent: &[u64], duration: Time) -> Vec<(PortId, f64)> {
    let network = simulation.network();
    let used = network.ports().zip(sent).filter(|(_, sent)| **sent > 0);
    used.map(|(port, sent)| (port, *sent as f64 / capacity(network, port, duration))).collect()
}

pub(super) fn is_stalled(outcome: RunOutcome) -> bool {
    outcome == RunOutcome::Stalled
}
