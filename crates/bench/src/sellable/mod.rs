//! `heddle-bench sellable`: how much of a link can be guaranteed to clusters, next to the most that arbitration tables allow.

mod limit;

use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use fabric_compiler::compile;
use fabric_compiler::tenancy::admission::{Admission, AdmissionRequest, RouteChoice};
use fabric_compiler::tenancy::link_graph::{HostIndex, LinkGraph, LinkIndex, TenancyLimits};
use fabric_model::generate::{FatTree, FatTreeSize, Oversubscription};
use fabric_model::tenancy::{Bandwidth, ClusterNumber, SlMode};
use fabric_model::{Decisions, Intents, StatedHardware, SwitchModel};
use ib_wire::DataLanes;
use serde::Serialize;

use limit::{Question, ShareLimit};

/// Compare the rates that admission control sells on a link with the most that whole arbitration entries of weight 1 to 255
/// and packets of up to 4222 bytes can guarantee.
///
/// Clusters of two hosts share the one cable between two leaves and their spine. The limit is found without the planner, up
/// to 16 entries by a complete search of the numbers of entries and of the weights. Under a latency it is an upper bound: the
/// gaps of a cluster may be as long as it allows on average. Best effort has one entry of weight 1, and so has management with
/// 8 lanes or more. The last row of equal clusters has as many as get 1 % of the link each.
///
/// The limit is that of switches with ideal outputs. What is sold for the two other models of switches stands beside it.
#[derive(Debug, Args)]
pub struct SellableArgs {
    /// Data lanes of the links.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 8, 15])]
    lanes: Vec<u8>,
    /// Entries of the arbitration tables.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 16, 32, 64])]
    entries: Vec<u8>,
    /// Latencies in microseconds, besides none.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 20, 50])]
    latencies: Vec<u64>,
    /// Print the figures as JSON instead of Markdown.
    #[arg(long)]
    json: bool,
}

/// The payload of a full packet as a part of its bytes on the wire: 4096 of 4122.
const PAYLOAD_PART: f64 = 4096.0 / 4122.0;

/// Time through a device and along a cable, and the largest packet, as the limit assumes them.
const PASSAGE_NS: f64 = 250.0;
const PACKET_BYTES: f64 = 4222.0;

/// The models of switches that guarantees are sold for. The limit is that of the first.
fn models() -> [SwitchModel; 3] {
    [SwitchModel::IdealOutputs, SwitchModel::default(), SwitchModel::FifoInputs]
}

/// Links of a path between two leaves, and those of them between switches.
const PATH_LINKS: f64 = 4.0;
const BETWEEN_LINKS: f64 = 2.0;

/// What equal clusters, or two unequal ones, can be sold on one link.
#[derive(Debug, Serialize)]
struct Row {
    lanes: u8,
    entries: u8,
    latency_us: Option<u64>,
    /// `4`, or `3:1`.
    clusters: String,
    /// What all get together, in percent of the link's rate.
    sold: f64,
    sold_payload: f64,
    /// What is sold for switches with limited speed-up, and with FIFO inputs.
    sold_limited_speedup: f64,
    sold_fifo_inputs: f64,
    /// The same at the limit; `None` if it is not known.
    limit: Option<f64>,
    /// Whether a table reaches the limit; otherwise it is an upper bound.
    is_exact: bool,
}

/// Measures what can be sold on one cable for all requested tables, and prints it next to the limits.
pub fn run(args: &SellableArgs) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for lanes in &args.lanes {
        for entries in &args.entries {
            let cable = SharedCable::new(*lanes, *entries)?;
            for latency_us in std::iter::once(None).chain(args.latencies.iter().copied().map(Some)) {
                rows.extend(cable.equal(latency_us));
                rows.extend([3, 5].map(|ratio| cable.unequal(latency_us, ratio)));
            }
        }
    }
    crate::print(args.json, &rows, |rows| markdown(rows))
}

/// Two leaves with one cable each to the spine, and pairs of hosts on both.
struct SharedCable {
    lanes: u8,
    entries: u8,
    /// For each of [`models`].
    graphs: [Arc<LinkGraph>; 3],
    pairs: Vec<[HostIndex; 2]>,
    /// The rate of all links, in bits per second.
    rate: u64,
    /// Lanes of best effort and management.
    reserved: u8,
}

impl SharedCable {
    fn new(lanes: u8, entries: u8) -> anyhow::Result<Self> {
        let oversubscription = Oversubscription { down: 15, up: 1 };
        let size = FatTreeSize::Leaves(2);
        let topology = FatTree { radix: 16, oversubscription, ..FatTree::new(size) }.generate()?;
        let manager =
            topology.end_nodes().find_map(|(_, node)| node.ports().next()).map(|(_, port)| port.guid);
        let mut intents = Intents::new(manager.context("the tree has no host")?);
        let kinds = [DataLanes::One, DataLanes::Two, DataLanes::Four, DataLanes::Eight, DataLanes::Fifteen];
        let kind = kinds.into_iter().find(|kind| kind.count() == lanes);
        let kind = kind.with_context(|| format!("lanes must be 1, 2, 4, 8 or 15, got {lanes}"))?;
        intents.capabilities.default_port.lanes = kind;
        intents.capabilities.default_port.arbitration = entries;
        let plan = compile(&topology, &intents, &Decisions::default())?;
        let graphs = models().map(|switch_model| {
            let hardware = StatedHardware { switch_model, ..StatedHardware::default() };
            let graph =
                LinkGraph::of(&topology, &plan, TenancyLimits { hardware, ..TenancyLimits::default() });
            Arc::new(graph.with_capabilities(&intents.capabilities))
        });
        let graph = &graphs[0];
        let hosts: Vec<HostIndex> = (0..graph.hosts().len() as u32).map(HostIndex).collect();
        let leaf = |host: &HostIndex| graph.switch_guid(*host);
        let (near, far): (Vec<HostIndex>, Vec<HostIndex>) =
            hosts.iter().partition(|host| leaf(host) == leaf(&hosts[0]));
        let pairs = near.into_iter().zip(far).map(|(near, far)| [near, far]).collect();
        let link = graph.links()[LinkIndex(0).index()];
        Ok(Self { lanes, entries, pairs, rate: link.rate.bits_per_s(), reserved: link.first_lane, graphs })
    }

    /// One, two, four and as many equal clusters as fit.
    fn equal(&self, latency_us: Option<u64>) -> Vec<Row> {
        let most = self.lanes.saturating_sub(self.reserved);
        let fitting = (1..=most).rev().find(|count| {
            self.admits(&self.graphs[0], &vec![1; (*count).into()], self.rate / 100, latency_us)
        });
        let fitting = fitting.unwrap_or(1);
        let mut counts: Vec<u8> = [1, 2, 4].into_iter().filter(|count| *count < fitting).collect();
        counts.push(fitting);
        counts.into_iter().map(|count| self.row(latency_us, &vec![1; count.into()])).collect()
    }

    fn unequal(&self, latency_us: Option<u64>, ratio: u64) -> Row {
        self.row(latency_us, &[ratio, 1])
    }

    /// The most that clusters with rates in these proportions are sold together.
    fn row(&self, latency_us: Option<u64>, parts: &[u64]) -> Row {
        let sold_for = |graph: &Arc<LinkGraph>| {
            let (mut possible, mut impossible) = (0, self.rate);
            while impossible - possible > 10_000 {
                let middle = u64::midpoint(possible, impossible);
                if self.admits(graph, parts, middle, latency_us) {
                    possible = middle;
                } else {
                    impossible = middle;
                }
            }
            100.0 * (possible * parts.iter().sum::<u64>()) as f64 / self.rate as f64
        };
        let [sold, sold_limited_speedup, sold_fifo_inputs] = self.graphs.each_ref().map(sold_for);
        let limit = self.limit(latency_us, parts);
        let is_equal = parts.iter().all(|part| *part == 1);
        let names: Vec<String> = parts.iter().map(u64::to_string).collect();
        Row {
            lanes: self.lanes,
            entries: self.entries,
            latency_us,
            clusters: if is_equal { parts.len().to_string() } else { names.join(":") },
            sold,
            sold_payload: sold * PAYLOAD_PART,
            sold_limited_speedup,
            sold_fifo_inputs,
            limit: limit.map(|limit| 100.0 * limit.part * parts.iter().sum::<u64>() as f64),
            is_exact: limit.is_some_and(|limit| limit.is_exact),
        }
    }

    /// Whether admission control takes a pair of hosts for each part, with that many times the rate.
    fn admits(
        &self,
        graph: &Arc<LinkGraph>,
        parts: &[u64],
        bits_per_s: u64,
        latency_us: Option<u64>,
    ) -> bool {
        let mut admission = Admission::new(Arc::clone(graph));
        (0..).zip(parts).zip(&self.pairs).all(|((number, part), hosts)| {
            let request = AdmissionRequest {
                cluster: ClusterNumber(number),
                hosts,
                bandwidth: Bandwidth::from_bits_per_s(part * bits_per_s),
                latency_ns: latency_us.map(|us| 1000 * us),
                mode: SlMode::Cluster,
                routes: RouteChoice::Existing,
            };
            admission.admit(request).is_ok()
        })
    }

    fn limit(&self, latency_us: Option<u64>, parts: &[u64]) -> Option<ShareLimit> {
        let (entries, reserved) = (u32::from(self.entries), u32::from(self.reserved));
        match (latency_us, parts) {
            (None, [ratio, 1]) if *ratio > 1 => {
                let part = limit::mix(entries, reserved, *ratio as u32);
                Some(ShareLimit { part, is_exact: true })
            }
            _ if parts.iter().any(|part| *part > 1) => None,
            _ => {
                let gap = latency_us.map(|us| self.gap_bytes(us));
                let clusters = parts.len() as u32;
                Some(Question { entries, reserved, clusters, gap }.limit())
            }
        }
    }

    /// The bytes of others between two visits that a latency allows on the shared links: on the links of hosts a packet waits
    /// for best effort and management only.
    fn gap_bytes(&self, latency_us: u64) -> f64 {
        let bytes_per_ns = self.rate as f64 / 8e9;
        let packet_ns = PACKET_BYTES / bytes_per_ns;
        let hosts_ns = (PATH_LINKS - BETWEEN_LINKS) * f64::from(self.reserved) * packet_ns;
        let rest_ns = 1000.0 * latency_us as f64 - PATH_LINKS * (packet_ns + PASSAGE_NS) - hosts_ns;
        rest_ns / BETWEEN_LINKS * bytes_per_ns
    }
}

fn markdown(rows: &[Row]) -> String {
    let mut text = "What clusters are guaranteed together, in percent of the rate of the link they share, on the wire and as payload of \
        full packets. The limit is exact (=) or an upper bound (<). Switches have ideal outputs, except in the last two columns.\n\n\
        | lanes | entries | latency | clusters | sold | payload | limit | sold / limit | limited speed-up | FIFO inputs |\n\
        |---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for row in rows {
        let latency = row.latency_us.map_or_else(|| "–".to_owned(), |us| format!("{us} µs"));
        let sign = if row.is_exact { "=" } else { "<" };
        let limit = row.limit.map_or_else(|| "–".to_owned(), |limit| format!("{sign} {limit:.1}"));
        let ratio = row.limit.filter(|limit| *limit > 0.0);
        let ratio = ratio.map_or_else(|| "–".to_owned(), |limit| format!("{:.3}", row.sold / limit));
        text += &format!(
            "| {} | {} | {latency} | {} | {:.1} | {:.1} | {limit} | {ratio} | {:.1} | {:.1} |\n",
            row.lanes,
            row.entries,
            row.clusters,
            row.sold,
            row.sold_payload,
            row.sold_limited_speedup,
            row.sold_fifo_inputs
        );
    }
    let ratio = |row: &&Row| row.limit.filter(|limit| *limit > 0.0).map(|limit| row.sold / limit);
    let equal = || rows.iter().filter(|row| !row.clusters.contains(':'));
    let least = equal().filter_map(|row| ratio(&row)).fold(f64::MAX, f64::min);
    let below = equal().filter_map(|row| ratio(&row)).filter(|ratio| *ratio < 0.95).count();
    text += &format!(
        "\nOf {} rows with equal clusters, {below} are below 0.95 of the limit; the least is {least:.3}.\n",
        equal().count()
    );
    text
}
