//! `heddle traffic`: clusters of a plan send packets, some of them hostile, and everybody is told what they got.

mod charts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use fabric_model::{FabricPlan, Topology};
use fabric_sim::scenario::{Cast, PartyReport, Report, Scenario, one_class, play};
use fabric_sim::traffic::{Histogram, Network, Time};
use fabric_sim::{Capacities, Fabric};
use ib_wire::DataLanes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::output::{Format, or_dash, table};
use crate::plan::PlanFile;
use crate::topology::read_topology;

/// Bytes of a scenario file at most.
const SCENARIO_BYTES_MAX: u64 = 1 << 20;

/// Let clusters of a plan send packets, some of them hostile, and see what everybody gets of what was promised.
///
/// Packets move in simulated time over the very tables that the plan gives to devices: forwarding tables, partition keys,
/// SL-to-VL maps, arbitration tables, credits. Next to it the same runs where nobody tells clusters apart.
///
/// The scenario is TOML:
///
///     duration = "500us"
///     warm_up = "50us"
///
///     [[acts]]
///     cluster = "acme/blue"       # * is everybody who is not named
///     send = "all-to-all"         # shift, incast, hotspot, random, bulk-synchronous
///     rate = "promised"           # or full, or 10G
///     message = ["4k"]            # sizes that take turns
///
///     [[acts]]
///     cluster = "umbra/red"
///     send = "everything"         # hostile: everything to everybody; also overshoot, stall
#[derive(Debug, Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:
  heddle topology generate fat-tree --hosts 64 --radix 8 -o net.topo
  heddle plan --topology net.topo --intents site.toml --out plan.json
  heddle traffic --topology net.topo --plan plan.json --scenario attack.toml --out charts

The exit status tells whether everybody got what was promised."
)]
pub struct TrafficArgs {
    /// The fabric, as ibnetdiscover prints it; - reads standard input
    #[arg(long, value_name = "NET")]
    topology: PathBuf,
    /// The plan, as `heddle plan --out` writes it
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// Who sends what
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,
    /// Which of the random choices to make; the same seed gives the same result
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Draw latencies, throughput and links into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Do not run it a second time without telling clusters apart
    #[arg(long)]
    plan_only: bool,
    /// How to tell the result
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// A run, and the fabric it ran on.
struct Run {
    fabric: Fabric,
    report: Report,
}

/// Runs `heddle traffic`.
pub fn run(args: &TrafficArgs) -> Result<ExitCode> {
    let topology = read_topology(&args.topology)?;
    let file = PlanFile::read(&args.plan)?;
    let scenario = read_scenario(&args.scenario)?;
    let planned = Run::of(&topology, &file, &scenario, args.seed, true)?;
    let shared =
        (!args.plan_only).then(|| Run::of(&topology, &file, &scenario, args.seed, false)).transpose()?;
    let told = json!({
        "planned": report_json(&planned.report),
        "one_class": shared.as_ref().map(|run| report_json(&run.report)),
    });
    args.output.print(&told, |_| people(&planned, shared.as_ref()))?;
    if let Some(directory) = &args.out {
        charts::draw(directory, &topology, &planned, shared.as_ref())?;
    }
    Ok(if planned.report.keeps_all() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read_scenario(path: &Path) -> Result<Scenario> {
    let place = path.display();
    let size = fs::metadata(path).with_context(|| format!("cannot read {place}"))?.len();
    ensure!(size <= SCENARIO_BYTES_MAX, "{place} is larger than a scenario can be");
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {place}"))?;
    toml::from_str(&text).with_context(|| format!("in {place}"))
}

impl Run {
    fn of(
        topology: &Topology,
        file: &PlanFile,
        scenario: &Scenario,
        seed: u64,
        is_planned: bool,
    ) -> Result<Self> {
        let plan = if is_planned { file.plan.clone() } else { one_class(&file.plan) };
        let fabric = holding(topology, file, &plan)?;
        let cast = Cast::of(&fabric, &plan, &file.seats)?;
        let cast = if is_planned { cast } else { cast.on_one_level() };
        let report = play(Network::of(&fabric), &cast, scenario, seed)?;
        Ok(Self { fabric, report })
    }
}

/// A fabric whose devices hold a plan.
fn holding(topology: &Topology, file: &PlanFile, plan: &FabricPlan) -> Result<Fabric> {
    let usual = &file.intents.capabilities.usual_port;
    let capacities = Capacities { lanes: usual.lanes, arbitration_entries: usual.arbitration, ..roomy() };
    let mut fabric = Fabric::new(topology.clone(), capacities, 0)?;
    fabric.install(plan)?;
    Ok(fabric)
}

/// Tables large enough for any plan.
fn roomy() -> Capacities {
    let most = Capacities::default();
    Capacities { lanes: DataLanes::Fifteen, ..most }
}

/// A report for programs.
fn report_json(report: &Report) -> Value {
    #[derive(Serialize)]
    struct ClusterFigures<'a> {
        #[serde(flatten)]
        party: ClusterSummary<'a>,
        keeps_rate: Option<bool>,
        keeps_bound: Option<bool>,
    }
    let parties = report.parties.iter().map(|party| ClusterFigures {
        party: ClusterSummary::of(party),
        keeps_rate: party.keeps_rate(),
        keeps_bound: party.keeps_bound(),
    });
    json!({
        "clusters": parties.collect::<Vec<_>>(),
        "packets": report.totals,
        "is_stalled": report.is_stalled,
        "keeps_all": report.keeps_all(),
    })
}

/// What is told of a cluster; times in microseconds, rates in bits per second.
#[derive(Serialize)]
struct ClusterSummary<'a> {
    cluster: &'a str,
    nodes: usize,
    hostile: bool,
    promised: Option<u64>,
    least: u64,
    mean: u64,
    latency_us: Option<[f64; 3]>,
    alone_max_us: Option<f64>,
    bound_us: Option<f64>,
    rounds_us: Option<[f64; 3]>,
    dropped: u64,
}

impl<'a> ClusterSummary<'a> {
    fn of(party: &'a PartyReport) -> Self {
        Self {
            cluster: &party.name,
            nodes: party.nodes,
            hostile: party.is_hostile,
            promised: party.promise.map(|promise| promise.bits_per_s()),
            least: party.least.bits_per_s(),
            mean: party.mean.bits_per_s(),
            latency_us: quantiles(&party.latency),
            alone_max_us: party.alone.max().map(Time::us),
            bound_us: party.bound.map(Time::us),
            rounds_us: party.rounds.as_ref().and_then(quantiles),
            dropped: party.dropped,
        }
    }
}

/// Median, 99th percentile and maximum, in microseconds.
fn quantiles(histogram: &Histogram) -> Option<[f64; 3]> {
    let of = |part| histogram.quantile(part).map(Time::us);
    Some([of(0.5)?, of(0.99)?, histogram.max()?.us()])
}

fn people(planned: &Run, shared: Option<&Run>) -> String {
    let mut text = format!("as planned\n{}\n", clusters(&planned.report));
    if let Some(shared) = shared {
        text += &format!("\none class for all\n{}\n", clusters(&shared.report));
    }
    text += &format!("\n{}", verdict(&planned.report, "as planned"));
    if let Some(shared) = shared {
        text += &format!("\n{}", verdict(&shared.report, "with one class for all"));
    }
    text
}

fn verdict(report: &Report, how: &str) -> String {
    let broken: Vec<&str> = report
        .parties
        .iter()
        .filter(|party| party.keeps_rate() == Some(false) || party.keeps_bound() == Some(false))
        .map(|party| party.name.as_str())
        .collect();
    let packets = report.totals.delivered;
    let stalled = if report.is_stalled { "; packets were left that could not move" } else { "" };
    match broken.as_slice() {
        [] => format!("{how}: every promise kept, {packets} packets delivered{stalled}"),
        broken => {
            format!("{how}: promises broken to {}, {packets} packets delivered{stalled}", broken.join(", "))
        }
    }
}

fn clusters(report: &Report) -> String {
    let rows = report.parties.iter().map(|party| {
        let latency = quantiles(&party.latency);
        let gbps = |bits: u64| format!("{:.2}", bits as f64 / 1e9);
        let us = |us: f64| format!("{us:.1}");
        let rounds = party.rounds.as_ref().and_then(|rounds| {
            let [median, most, _] = quantiles(rounds)?;
            Some(format!("{median:.1} (+{:.1})", most - median))
        });
        let mark = |kept: Option<bool>| match kept {
            Some(true) => "kept",
            Some(false) => "BROKEN",
            None => "-",
        };
        [
            format!("{}{}", party.name, if party.is_hostile { " (hostile)" } else { "" }),
            party.nodes.to_string(),
            or_dash(party.promise.map(|promise| gbps(promise.bits_per_s()))),
            gbps(party.least.bits_per_s()),
            gbps(party.mean.bits_per_s()),
            mark(party.keeps_rate()).to_owned(),
            or_dash(latency.map(|it| us(it[0]))),
            or_dash(latency.map(|it| us(it[1]))),
            or_dash(latency.map(|it| us(it[2]))),
            or_dash(party.alone.max().map(|max| us(max.us()))),
            or_dash(party.bound.map(|bound| us(bound.us()))),
            mark(party.keeps_bound()).to_owned(),
            or_dash(rounds),
            party.dropped.to_string(),
        ]
    });
    table(
        [
            "cluster",
            "nodes",
            "promised Gb/s",
            "least",
            "mean",
            "rate",
            "p50 µs",
            "p99",
            "max",
            "lane empty: max",
            "bound",
            "latency",
            "round (spread)",
            "dropped",
        ],
        rows,
    )
}
