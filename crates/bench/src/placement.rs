//! `heddle-bench placement`: utilisation of a fabric that admits clusters one after the other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use fabric_compiler::tenancy::admission::Admission;
use fabric_compiler::tenancy::link_graph::{LinkGraph, LinkIndex};
use fabric_compiler::tenancy::placement::{Capacity, PlacementRequest, Placer};
use fabric_model::tenancy::{Bandwidth, ClusterNumber, SlMode};
use rand::SeedableRng;
use rand_pcg::Pcg64;
use serde::Serialize;

use crate::cpu::processor_time;
use crate::stream::{PlannedTree, size, unit};

/// Place clusters first come, first served, from a queue that is never empty; measure the time-averaged utilisation of hosts
/// and the CPU time per decision.
///
/// Clusters have exclusive hosts, lanes and service levels of their own, and a share of every link. The ideal counts free
/// hosts only. The figures of the exclusive-link scheme are published for a tree of 11,664 hosts (94.83 % for mean size 8) or
/// were measured with its program on that tree (91.30 % for 64, 86.77 % for the trace ALCF-Theta), not in this run. They
/// are printed for these streams on that tree only.
#[derive(Debug, Args)]
pub struct PlacementArgs {
    /// Size of the fat-tree, in hosts.
    #[arg(long, default_value_t = 11664)]
    hosts: u32,
    /// Data lanes for guaranteed clusters on every link, 1 to 14.
    #[arg(long, value_delimiter = ',', default_values_t = [14, 7])]
    lanes: Vec<u8>,
    /// Guaranteed rates, as fractions (0 to 1) of the usable rate of a link; 0 is best effort.
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 0.5, 1.0])]
    rates: Vec<f64>,
    /// Also place the first 10,000 jobs of this trace, a file in the Standard Workload Format.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Seed of the streams of clusters.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the figures as JSON instead of Markdown.
    #[arg(long)]
    json: bool,
}

/// A cluster of a stream.
#[derive(Clone, Copy, Debug)]
struct Job {
    nodes: usize,
    seconds: u64,
}

#[derive(Debug)]
struct Stream {
    name: String,
    jobs: Vec<Job>,
    /// What the exclusive-link scheme reached on this stream, in percent; `None` if that is not known.
    exclusive: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Row {
    stream: String,
    lanes: u8,
    rate: f64,
    /// Rate of a host's link.
    link_gbps: f64,
    /// Rate that each node of a cluster is guaranteed.
    guaranteed_gbps: f64,
    ideal: f64,
    exclusive: Option<f64>,
    used: f64,
    /// Guaranteed rate on the link of a host, averaged over time and hosts.
    used_gbps: f64,
    decisions: usize,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// Jobs of the trace that are placed.
const TRACE_JOBS: usize = 10_000;

/// Hosts of the tree for which the figures of the exclusive-link scheme are known.
const EXCLUSIVE_HOSTS: u32 = 11_664;

/// The fingerprint of the first jobs of ALCF-Theta, on which the exclusive-link scheme was measured.
const THETA: u64 = 0xba3a_f516_4a08_980c;

/// What the exclusive-link scheme reached on ALCF-Theta, in percent.
const THETA_EXCLUSIVE: f64 = 86.77;

/// Measures, and prints the figures.
pub fn run(args: PlacementArgs) -> anyhow::Result<()> {
    ensure!(args.lanes.iter().all(|lanes| (1..=14).contains(lanes)), "--lanes must be between 1 and 14");
    let streams = streams(&args)?;
    let fabric = PlannedTree::with_hosts(args.hosts)?;
    let mut rows = Vec::new();
    for stream in &streams {
        let mut count = Count { hosts: args.hosts as usize, free: args.hosts as usize };
        let ideal = drive(&stream.jobs, &mut count)?;
        for lanes in &args.lanes {
            let graph = fabric.graph(*lanes);
            for rate in &args.rates {
                eprintln!("{}, {lanes} lanes, rate {rate}", stream.name);
                let mut shared = Shared::new(&graph, *rate, stream.jobs.len());
                let used = drive(&stream.jobs, &mut shared)?;
                shared.latencies.sort_unstable();
                let at = |part: f64| {
                    let last = shared.latencies.len() - 1;
                    shared.latencies[(last as f64 * part) as usize].as_secs_f64() * 1e6
                };
                let gbps = |rate: Bandwidth| rate.bits_per_s() as f64 / 1e9;
                let guaranteed_gbps = gbps(shared.wish.bandwidth);
                rows.push(Row {
                    stream: stream.name.clone(),
                    lanes: *lanes,
                    rate: *rate,
                    link_gbps: gbps(graph.links()[0].rate),
                    guaranteed_gbps,
                    used_gbps: used / 100.0 * guaranteed_gbps,
                    ideal,
                    exclusive: stream.exclusive,
                    used,
                    decisions: shared.latencies.len(),
                    p50_us: at(0.5),
                    p99_us: at(0.99),
                    max_us: at(1.0),
                });
            }
        }
    }
    crate::print(args.json, &rows, |rows| markdown(rows))
}

fn streams(args: &PlacementArgs) -> anyhow::Result<Vec<Stream>> {
    let is_known = args.hosts == EXCLUSIVE_HOSTS;
    let exponential = |mean: f64, jobs: usize, exclusive: f64| {
        let exclusive = is_known.then_some(exclusive);
        let mut random = Pcg64::seed_from_u64(args.seed);
        let job = |_| Job {
            nodes: size(&mut random, mean, args.hosts as usize),
            seconds: 20 + (unit(&mut random) * 2980.0) as u64,
        };
        Stream { name: format!("exponential {mean}"), jobs: (0..jobs).map(job).collect(), exclusive }
    };
    let mut streams = vec![exponential(8.0, 10_000, 94.83), exponential(64.0, 4_000, 91.30)];
    if let Some(path) = &args.trace {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let jobs: Vec<Job> = text.lines().filter_map(trace_job).take(TRACE_JOBS).collect();
        let most = jobs.iter().map(|job| job.nodes).max().context("a trace without jobs")?;
        ensure!(most <= args.hosts as usize, "the trace has a job of {most} hosts");
        let exclusive = (is_known && fingerprint(&jobs) == THETA).then_some(THETA_EXCLUSIVE);
        let name = path.file_stem().map_or("trace".into(), |stem| stem.to_string_lossy());
        streams.push(Stream { name: name.into_owned(), jobs, exclusive });
    }
    Ok(streams)
}

/// Tells traces apart: FNV-1a over the sizes and run times of their jobs.
fn fingerprint(jobs: &[Job]) -> u64 {
    let words = jobs.iter().flat_map(|job| [job.nodes as u64, job.seconds]);
    words
        .flat_map(u64::to_le_bytes)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A line of the Standard Workload Format: run time in field 4, processors in field 5.
fn trace_job(line: &str) -> Option<Job> {
    let mut fields = line.split_whitespace().skip(3);
    let seconds: u64 = fields.next()?.parse().ok()?;
    let nodes: usize = fields.next()?.parse().ok()?;
    (nodes > 0 && !line.starts_with(';')).then_some(Job { nodes, seconds: seconds.max(1) })
}

/// A scheme that admits clusters.
trait Takes {
    fn hosts(&self) -> usize;
    fn take(&mut self, number: u32, nodes: usize) -> anyhow::Result<bool>;
    fn give_back(&mut self, number: u32, nodes: usize);
}

/// Only the number of free hosts counts.
struct Count {
    hosts: usize,
    free: usize,
}

impl Takes for Count {
    fn hosts(&self) -> usize {
        self.hosts
    }

    fn take(&mut self, _: u32, nodes: usize) -> anyhow::Result<bool> {
        let fits = nodes <= self.free;
        self.free -= if fits { nodes } else { 0 };
        Ok(fits)
    }

    fn give_back(&mut self, _: u32, nodes: usize) {
        self.free += nodes;
    }
}

/// The admission control of Heddle.
struct Shared {
    places: Placer,
    wish: PlacementRequest,
    latencies: Vec<Duration>,
}

impl Shared {
    fn new(graph: &Arc<LinkGraph>, rate: f64, jobs: usize) -> Self {
        let admission = Admission::new(Arc::clone(graph));
        let bandwidth = admission.usable(LinkIndex(0)).part(rate);
        let wish = PlacementRequest {
            cluster: ClusterNumber(0),
            nodes: 0,
            needs: Capacity::NONE,
            bandwidth,
            mode: SlMode::Cluster,
        };
        let places = Placer::new(admission, |_| Capacity::UNLIMITED);
        Self { places, wish, latencies: Vec::with_capacity(2 * jobs) }
    }
}

impl Takes for Shared {
    fn hosts(&self) -> usize {
        self.places.admission().graph().hosts().len()
    }

    fn take(&mut self, number: u32, nodes: usize) -> anyhow::Result<bool> {
        let wish = PlacementRequest { cluster: ClusterNumber(number), nodes, ..self.wish };
        let started = processor_time()?;
        let placed = self.places.place(wish).is_ok();
        self.latencies.push(processor_time()? - started);
        Ok(placed)
    }

    fn give_back(&mut self, number: u32, _: usize) {
        self.places.release(ClusterNumber(number));
    }
}

/// Utilisation of hosts in percent, averaged over the time in which clusters wait.
fn drive(jobs: &[Job], takes: &mut impl Takes) -> anyhow::Result<f64> {
    let mut ends: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
    let (mut now, mut busy, mut used) = (0, 0usize, 0u128);
    for (number, job) in (0..).zip(jobs) {
        while !takes.take(number, job.nodes)? {
            // All that end at the same time, then the next attempt.
            let Some(Reverse((end, _))) = ends.peek().copied() else { return Ok(f64::NAN) };
            used += busy as u128 * u128::from(end - now);
            now = end;
            while let Some(Reverse((at, done))) = ends.peek().copied().filter(|Reverse((at, _))| *at == end) {
                debug_assert_eq!(at, end);
                ends.pop();
                busy -= jobs[done as usize].nodes;
                takes.give_back(done, jobs[done as usize].nodes);
            }
        }
        busy += job.nodes;
        ends.push(Reverse((now + job.seconds, number)));
    }
    Ok(100.0 * used as f64 / (takes.hosts() as f64 * now as f64))
}

fn markdown(rows: &[Row]) -> String {
    let mut text = String::from(
        "Utilisation of hosts in %; decisions in µs of CPU time, refusals included. Exclusive-link figures are from elsewhere, and \
         known for some streams only. Guaranteed: Gb/s of each node and the rate of its link; sold: Gb/s guaranteed on a host's \
         link, averaged over time and hosts.\n\n\
         | stream | lanes | rate | guaranteed | ideal | exclusive links | heddle | sold | decisions | p50 | p99 | max |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in rows {
        text += &format!(
            "| {} | {} | {} | {:.1} of {:.0} | {:.2} | {} | **{:.2}** | {:.1} | {} | {:.1} | {:.0} | {:.0} |\n",
            row.stream,
            row.lanes,
            row.rate,
            row.guaranteed_gbps,
            row.link_gbps,
            row.ideal,
            row.exclusive.map_or("–".to_owned(), |used| format!("{used:.2}")),
            row.used,
            row.used_gbps,
            row.decisions,
            row.p50_us,
            row.p99_us,
            row.max_us
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_with_other_jobs_have_other_fingerprints() {
        let jobs = |text: &str| text.lines().filter_map(trace_job).collect::<Vec<Job>>();
        let trace = jobs("; 1 2 3 4\n1 0 0 600 128\n2 0 0 0 8\n3 0 0 -1 4");
        assert_eq!(
            trace.iter().map(|job| (job.nodes, job.seconds)).collect::<Vec<_>>(),
            [(128, 600), (8, 1)]
        );
        let same = jobs("7 9 9 600 128 x y\n8 9 9 1 8");
        assert_eq!(fingerprint(&trace), fingerprint(&same));
        for other in ["1 0 0 600 128", "1 0 0 600 128\n2 0 0 1 9", "2 0 0 1 8\n1 0 0 600 128"] {
            assert_ne!(fingerprint(&trace), fingerprint(&jobs(other)), "{other}");
        }
        assert_ne!(fingerprint(&trace), THETA);
    }
}
