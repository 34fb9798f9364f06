//! `heddle traffic`: simulates the traffic of clusters, some of them hostile, on the tables of a plan.

mod charts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use fabric_model::{FabricPlan, SwitchModel, Topology};
use fabric_sim::scenario::{
    ClusterReport, ClusterSet, Scenario, ScenarioReport, run_scenario, without_classes,
};
use fabric_sim::traffic::{Histogram, Time, TrafficNetwork};
use fabric_sim::{Capacities, Fabric};
use ib_wire::DataLanes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::output::{Format, or_dash, table};
use crate::plan::PlanFile;
use crate::topology::read_topology;

/// Largest scenario file in bytes.
const SCENARIO_BYTES_MAX: u64 = 1 << 20;

/// Simulate the traffic of clusters, some of them hostile, and check the guarantees of a plan.
///
/// Packets move in simulated time through the tables of the plan: forwarding tables, P_Keys, SL-to-VL maps, arbitration
/// tables, credits. For comparison, the same traffic runs with one service level for all clusters.
///
/// The scenario is TOML:
///
///     duration = "500us"
///     warm_up = "50us"
///     switch_model = "limited-speedup:2"   # or ideal-outputs, fifo-inputs
///
///     [[workloads]]
///     cluster = "acme/blue"       # * is every cluster that is not named
///     send = "all-to-all"         # shift, incast, hotspot, random, bulk-synchronous
///     rate = "guaranteed"         # or full, or 10G
///     message = ["4k"]            # message sizes, used in turn
///
///     [[workloads]]
///     cluster = "umbra/red"
///     send = "everything"         # hostile: all sizes to all nodes; also overshoot, stall
#[derive(Debug, Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Examples:
  heddle topology generate fat-tree --hosts 64 --radix 8 -o net.topo
  heddle plan --topology net.topo --intents site.toml --out plan.json
  heddle traffic --topology net.topo --plan plan.json --scenario attack.toml --out charts

The exit status is 0 if every guarantee held, else 1."
)]
pub struct TrafficArgs {
    /// Topology file of the fabric, in the format of ibnetdiscover; - reads standard input
    #[arg(long, value_name = "NET")]
    topology: PathBuf,
    /// Plan file, as `heddle plan --out` writes it
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// Scenario file (TOML): workloads of clusters
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,
    /// Seed of random choices; the same seed gives the same result
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Write charts of latency, throughput and link load (SVG) to this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// How switches move packets to their outputs: ideal-outputs, limited-speedup:N or fifo-inputs; otherwise the model of
    /// the scenario, or the one that the plan was made for
    #[arg(long, value_name = "MODEL")]
    switch_model: Option<SwitchModel>,
    /// Run only as planned, not with one service level for all
    #[arg(long)]
    plan_only: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// A run, and the fabric it ran on.
struct Run {
    fabric: Fabric,
    report: ScenarioReport,
}

pub fn run(args: &TrafficArgs) -> Result<ExitCode> {
    let topology = read_topology(&args.topology)?;
    let file = PlanFile::read(&args.plan)?;
    let mut scenario = read_scenario(&args.scenario)?;
    scenario.switch_model = args.switch_model.or(scenario.switch_model);
    let planned = Run::of(&topology, &file, &scenario, args.seed, true)?;
    let shared =
        (!args.plan_only).then(|| Run::of(&topology, &file, &scenario, args.seed, false)).transpose()?;
    let model = scenario.switch_model.unwrap_or(file.intents.hardware.switch_model);
    let figures = json!({
        "switch_model": model,
        "planned": report_json(&planned.report),
        "one_class": shared.as_ref().map(|run| report_json(&run.report)),
    });
    args.output.print(&figures, |_| text(model, &planned, shared.as_ref()))?;
    if let Some(directory) = &args.out {
        charts::draw(directory, &topology, &planned, shared.as_ref())?;
    }
    Ok(if planned.report.meets_all_guarantees() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read_scenario(path: &Path) -> Result<Scenario> {
    let place = path.display();
    let size = fs::metadata(path).with_context(|| format!("cannot read {place}"))?.len();
    ensure!(size <= SCENARIO_BYTES_MAX, "{place} must have at most {SCENARIO_BYTES_MAX} bytes, got {size}");
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
        let plan = if is_planned { file.plan.clone() } else { without_classes(&file.plan) };
        let fabric = fabric_with_plan(topology, file, &plan)?;
        let cast = ClusterSet::of(&fabric, &plan, &file.seats)?;
        let cast = if is_planned { cast } else { cast.on_default_service_level() };
        let report =
            run_scenario(TrafficNetwork::of(&fabric), &cast, scenario, &file.intents.hardware, seed)?;
        Ok(Self { fabric, report })
    }
}

/// An emulated fabric with the tables of a plan.
fn fabric_with_plan(topology: &Topology, file: &PlanFile, plan: &FabricPlan) -> Result<Fabric> {
    let usual = &file.intents.capabilities.default_port;
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

/// A report as JSON.
fn report_json(report: &ScenarioReport) -> Value {
    #[derive(Serialize)]
    struct ClusterFigures<'a> {
        #[serde(flatten)]
        party: ClusterSummary<'a>,
        keeps_rate: Option<bool>,
        keeps_bound: Option<bool>,
    }
    let parties = report.clusters.iter().map(|party| ClusterFigures {
        party: ClusterSummary::of(party),
        keeps_rate: party.meets_rate(),
        keeps_bound: party.meets_latency_bound(),
    });
    json!({
        "clusters": parties.collect::<Vec<_>>(),
        "packets": report.totals,
        "is_stalled": report.is_stalled,
        "keeps_all": report.meets_all_guarantees(),
    })
}

/// Figures of a cluster; times in microseconds, rates in bits per second.
#[derive(Serialize)]
struct ClusterSummary<'a> {
    cluster: &'a str,
    nodes: usize,
    hostile: bool,
    guaranteed: Option<u64>,
    least: u64,
    mean: u64,
    latency_us: Option<[f64; 3]>,
    alone_max_us: Option<f64>,
    bound_us: Option<f64>,
    rounds_us: Option<[f64; 3]>,
    dropped: u64,
}

impl<'a> ClusterSummary<'a> {
    fn of(party: &'a ClusterReport) -> Self {
        Self {
            cluster: &party.name,
            nodes: party.nodes,
            hostile: party.is_hostile,
            guaranteed: party.guarantee.map(|promise| promise.bits_per_s()),
            least: party.min_rate.bits_per_s(),
            mean: party.mean_rate.bits_per_s(),
            latency_us: quantiles(&party.latency),
            alone_max_us: party.uncontended.max().map(Time::us),
            bound_us: party.latency_bound.map(Time::us),
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

fn text(model: SwitchModel, planned: &Run, shared: Option<&Run>) -> String {
    let mut text = format!("as planned, switches with {model}\n{}\n", clusters(&planned.report));
    if let Some(shared) = shared {
        text += &format!("\none class for all\n{}\n", clusters(&shared.report));
    }
    text += &format!("\n{}", verdict(&planned.report, "as planned"));
    if let Some(shared) = shared {
        text += &format!("\n{}", verdict(&shared.report, "with one class for all"));
    }
    text
}

fn verdict(report: &ScenarioReport, how: &str) -> String {
    let violated: Vec<&str> = report
        .clusters
        .iter()
        .filter(|party| party.meets_rate() == Some(false) || party.meets_latency_bound() == Some(false))
        .map(|party| party.name.as_str())
        .collect();
    let packets = report.totals.delivered;
    let stalled = if report.is_stalled { "; some packets could not move any more" } else { "" };
    match violated.as_slice() {
        [] => format!("{how}: every guarantee held, {packets} packets delivered{stalled}"),
        violated => {
            format!(
                "{how}: violated guarantees of {}, {packets} packets delivered{stalled}",
                violated.join(", ")
            )
        }
    }
}

fn clusters(report: &ScenarioReport) -> String {
    let rows = report.clusters.iter().map(|party| {
        let latency = quantiles(&party.latency);
        let gbps = |bits: u64| format!("{:.2}", bits as f64 / 1e9);
        let us = |us: f64| format!("{us:.1}");
        let rounds = party.rounds.as_ref().and_then(|rounds| {
            let [median, most, _] = quantiles(rounds)?;
            Some(format!("{median:.1} (+{:.1})", most - median))
        });
        let mark = |kept: Option<bool>| match kept {
            Some(true) => "held",
            Some(false) => "VIOLATED",
            None => "-",
        };
        [
            format!("{}{}", party.name, if party.is_hostile { " (hostile)" } else { "" }),
            party.nodes.to_string(),
            or_dash(party.guarantee.map(|promise| gbps(promise.bits_per_s()))),
            gbps(party.min_rate.bits_per_s()),
            gbps(party.mean_rate.bits_per_s()),
            mark(party.meets_rate()).to_owned(),
            or_dash(latency.map(|it| us(it[0]))),
            or_dash(latency.map(|it| us(it[1]))),
            or_dash(latency.map(|it| us(it[2]))),
            or_dash(party.uncontended.max().map(|max| us(max.us()))),
            or_dash(party.latency_bound.map(|bound| us(bound.us()))),
            mark(party.meets_latency_bound()).to_owned(),
            or_dash(rounds),
            party.dropped.to_string(),
        ]
    });
    table(
        [
            "cluster",
            "nodes",
            "guaranteed Gb/s",
            "least",
            "mean",
            "rate",
            "p50 µs",
            "p99",
            "max",
            "max with empty lane",
            "wire bound",
            "latency",
            "round (spread)",
            "dropped",
        ],
        rows,
    )
}
