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
use fabric_model::tenancy::{ClusterNumber, SlMode};
use rand::SeedableRng;
use rand_pcg::Pcg64;
use serde::Serialize;

use crate::cpu::processor_time;
use crate::stream::{PlannedTree, size, unit};

/// Place clusters first come, first served, from a queue that is never empty; measure the time-averaged utilisation of hosts
/// and the CPU time per decision.
///
/// Clusters have exclusive hosts, lanes and service levels of their own, and a share of every link. The ideal counts free
/// hosts only. The figures of the exclusive-link scheme are published for the same tree
/// (94.83 % for mean size 8) or were measured with its program (91.30 % for 64, 86.77 % for the trace), not in this run.
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
    /// What the exclusive-link scheme reached, in percent.
    exclusive: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    stream: String,
    lanes: u8,
    rate: f64,
    ideal: f64,
    exclusive: f64,
    used: f64,
    decisions: usize,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// Jobs of the trace that are placed.
const TRACE_JOBS: usize = 10_000;

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
                rows.push(Row {
                    stream: stream.name.clone(),
                    lanes: *lanes,
                    rate: *rate,
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
    let exponential = |mean: f64, jobs: usize, exclusive| {
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
        streams.push(Stream { name: "trace".to_owned(), jobs, exclusive: 86.77 });
    }
    Ok(streams)
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
        "Utilisation of hosts in %; decisions in µs of CPU time, refusals included. The exclusive-link figures are from elsewhere.\n\n\
         | stream | lanes | rate | ideal | exclusive links | heddle | decisions | p50 | p99 | max |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in rows {
        text += &format!(
            "| {} | {} | {} | {:.2} | {:.2} | **{:.2}** | {} | {:.1} | {:.0} | {:.0} |\n",
            row.stream,
            row.lanes,
            row.rate,
            row.ideal,
            row.exclusive,
            row.used,
            row.decisions,
            row.p50_us,
            row.p99_us,
            row.max_us
        );
    }
    text
}
