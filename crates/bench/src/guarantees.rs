//! `heddle-bench guarantees`: what guaranteed clusters get while all others attack them, with and without Heddle.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use clap::Args;
use fabric_compiler::compile;
use fabric_model::generate::{FatTree, FatTreeSize, Torus, without_links};
use fabric_model::intent::{ClusterIntent, Member, MemberSelector, PartitionIntent, PkeyPlacement, Role};
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, StatedHardware, SwitchModel, Topology};
use fabric_sim::scenario::{
    ClusterSet, QuantityError, Scenario, ScenarioReport, SendPattern, SendRate, Size, Span, WorkloadSpec,
    run_scenario, without_classes,
};
use fabric_sim::traffic::{Time, TrafficNetwork};
use fabric_sim::{Capacities, Fabric};
use ib_wire::{DataLanes, Guid};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde::Serialize;

/// Fill fabrics with guaranteed clusters, let half of them attack the others, and measure what the attacked clusters get.
///
/// Each cluster has the largest rate that is admitted; clusters are added until one is rejected. Half of them send all to
/// all at their guaranteed rate. The others are hostile: they send at full rate to all nodes on all service levels, or
/// overshoot their arbitration weight with large packets, or stop draining their receive buffers. Then the halves swap. A few
/// hosts belong to a best-effort cluster that sends at full rate. Each run is repeated with one service level for all.
///
/// Guarantees are sold for the model of the switches that they are measured on, unless `--sold-for` names another. Hostile
/// clusters send the longest headers there are. The run with one service level uses the first model only.
///
/// Rates are wire rates, with headers. Arbitration counts blocks of 64 bytes and rounds each packet up, so small packets
/// get a smaller share than full-size ones: 0.47 of it for messages of 4 bytes. The check takes that into account.
///
/// The exit status is 0 if every guarantee held in the model that it was sold for.
#[derive(Debug, Args)]
pub struct GuaranteesArgs {
    /// Shapes of the fabrics to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Shape::ALL)]
    fabrics: Vec<Shape>,
    /// Models of the switches: ideal-outputs, limited-speedup:N, fifo-inputs.
    #[arg(long, value_delimiter = ',', default_value = "ideal-outputs,limited-speedup:2,fifo-inputs")]
    switch_models: Vec<SwitchModel>,
    /// Sell all guarantees for this model of switches, whatever they are measured on.
    #[arg(long)]
    sold_for: Option<SwitchModel>,
    /// Data lanes of every port: 1, 2, 4, 8 or 15.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 8, 15])]
    lanes: Vec<u8>,
    /// Entries of each arbitration table, 8 to 64.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 64])]
    entries: Vec<u8>,
    /// Seeds of the placement and the sizes of clusters; one run for each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3, 4, 5])]
    seeds: Vec<u64>,
    /// Message size of all clusters but the best-effort one: a size in bytes such as 4k, or `any`, where each cluster draws
    /// its own: hostile ones from 4 bytes to 1 MiB, the others up to 64 KiB. Runs with `any` simulate a quarter of
    /// `--duration`.
    #[arg(long, value_delimiter = ',', default_value = "4k,any")]
    messages: Vec<Messages>,
    /// Simulated time of each run, such as 600us or 1ms.
    #[arg(long, default_value = "1ms", value_parser = |text: &str| text.parse::<Span>())]
    duration: Span,
    /// Print JSON instead of Markdown.
    #[arg(long)]
    json: bool,
}

/// A kind of fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Shape {
    /// 32 hosts in two tiers.
    TwoLevels,
    /// 54 hosts in three tiers.
    ThreeLevels,
    /// The same without four of its cables.
    Damaged,
    /// 32 hosts on a torus of 4 by 4.
    Torus,
}

/// Message sizes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Messages {
    Of(Size),
    Any,
}

impl FromStr for Messages {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        if text == "any" { Ok(Self::Any) } else { text.parse().map(Self::Of) }
    }
}

impl std::fmt::Display for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Of(size) => size.bytes().fmt(f),
            Self::Any => f.write_str("any"),
        }
    }
}

/// Exponents of two of the message sizes that hostile clusters draw: 4 bytes to 1 MiB.
const DRAWN: RangeInclusive<u32> = 2..=20;

/// The same for attacked clusters: at most the buffer of a lane. A node that sends more to one node before it sends to
/// the next does not send uniformly, and guarantees hold for uniform traffic only.
const DRAWN_ATTACKED: RangeInclusive<u32> = 2..=16;

/// Runs with messages of any size are shorter by this factor, because they have many small packets.
const ANY_PART: u64 = 4;

impl Messages {
    /// The size of a cluster's messages.
    fn draw(self, send: SendPattern, random: &mut Pcg64) -> Size {
        let drawn = if send.is_hostile() { DRAWN } else { DRAWN_ATTACKED };
        match self {
            Self::Of(size) => size,
            Self::Any => Size::from_bytes(1 << random.random_range(drawn)),
        }
    }

    /// Duration of a run.
    fn duration(self, duration: Span) -> Span {
        match self {
            Self::Of(_) => duration,
            Self::Any => Span::from_time(Time::from_ps((duration.time().ps() / ANY_PART).max(1))),
        }
    }
}

/// Cables that a damaged tree lacks.
const CABLES_MISSING: usize = 4;

impl Shape {
    const ALL: [Self; 4] = [Self::TwoLevels, Self::ThreeLevels, Self::Damaged, Self::Torus];

    fn topology(self, seed: u64) -> Result<Topology> {
        let tree = |radix, hosts, levels| {
            let size = FatTreeSize::Hosts { hosts, tiers: Some(levels) };
            FatTree { radix, ..FatTree::new(size) }
        };
        Ok(match self {
            Self::TwoLevels => tree(8, 32, 2).generate()?,
            Self::ThreeLevels => tree(6, 54, 3).generate()?,
            Self::Damaged => without_links(tree(6, 54, 3).generate()?, CABLES_MISSING, seed)?,
            Self::Torus => Torus { hosts_per_switch: 2, ..Torus::new([4, 4]) }.generate()?,
        })
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TwoLevels => "two-levels",
            Self::ThreeLevels => "three-levels",
            Self::Damaged => "damaged",
            Self::Torus => "torus",
        })
    }
}

/// The worst of all seeds and both halves.
#[derive(Debug, Serialize)]
struct Row {
    switch_model: SwitchModel,
    sold_for: SwitchModel,
    fabric: Shape,
    lanes: u8,
    entries: u8,
    messages: String,
    attack: SendPattern,
    /// Clusters that were attacked.
    attacked: usize,
    /// Rate of their slowest node, as a fraction of the guarantee.
    rate: f64,
    /// The same with one class for all, if that was measured.
    rate_one_class: Option<f64>,
    /// Longest latency of a packet that found its lane empty, as a fraction of the bound.
    latency: f64,
    /// Number of violated guarantees.
    broken: usize,
    broken_one_class: Option<usize>,
    /// Mean Gb/s of a best-effort node.
    rest: f64,
    /// The fraction that best effort used of the capacity that all others left on the tightest link of its paths.
    of_rest: f64,
}

const ATTACKS: [SendPattern; 3] = [SendPattern::Everything, SendPattern::Overshoot, SendPattern::Stall];

/// Measures, and prints the figures. The exit status is a failure if any guarantee was violated.
pub fn run(args: &GuaranteesArgs) -> Result<ExitCode> {
    ensure!(!args.seeds.is_empty(), "nothing to measure");
    let mut rows = Vec::new();
    for (model, is_first) in args.switch_models.iter().zip([true].into_iter().chain(std::iter::repeat(false)))
    {
        for fabric in &args.fabrics {
            for lanes in &args.lanes {
                for entries in &args.entries {
                    eprintln!("{model}, {fabric}, {lanes} lanes, tables of {entries}");
                    rows.extend(measure(*model, *fabric, *lanes, *entries, args, is_first)?);
                }
            }
        }
    }
    crate::print(args.json, &rows, |rows| markdown(rows))?;
    let is_kept = rows.iter().all(|row| row.broken == 0 || row.sold_for != row.switch_model);
    Ok(if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(
    switch_model: SwitchModel,
    fabric: Shape,
    lanes: u8,
    entries: u8,
    args: &GuaranteesArgs,
    has_one_class: bool,
) -> Result<Vec<Row>> {
    let sold_for = args.sold_for.unwrap_or(switch_model);
    let cases = args.messages.iter().flat_map(|messages| ATTACKS.map(|attack| (*messages, attack)));
    let mut rows: Vec<(Messages, Row)> = cases
        .map(|(messages, attack)| {
            (
                messages,
                Row {
                    switch_model,
                    sold_for,
                    fabric,
                    lanes,
                    entries,
                    messages: messages.to_string(),
                    attack,
                    attacked: 0,
                    rate: f64::INFINITY,
                    rate_one_class: None,
                    latency: 0.0,
                    broken: 0,
                    broken_one_class: None,
                    rest: f64::INFINITY,
                    of_rest: f64::INFINITY,
                },
            )
        })
        .collect();
    for seed in &args.seeds {
        let topology = fabric.topology(*seed)?;
        let filled = Filled::new(&topology, lanes, entries, sold_for, *seed)?;
        for (messages, row) in &mut rows {
            for half in 0..2 {
                let scenario =
                    filled.scenario(row.attack, *messages, half, *seed, messages.duration(args.duration));
                let scenario = Scenario { switch_model: Some(switch_model), ..scenario };
                row.add(&filled.run_scenario(&topology, &scenario, *seed, true)?);
                if has_one_class {
                    row.add_one_class(&filled.run_scenario(&topology, &scenario, *seed, false)?);
                }
            }
        }
    }
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

impl Row {
    fn add(&mut self, planned: &ScenarioReport) {
        for result in tested(planned) {
            self.attacked += 1;
            self.rate = self.rate.min(result.rate);
            self.latency = self.latency.max(result.latency);
            self.broken += usize::from(result.is_broken);
        }
        for party in planned.clusters.iter().filter(|party| party.name == REST) {
            self.rest = self.rest.min(party.mean_rate.bits_per_s() as f64 / 1e9);
            self.of_rest = party.leftover_share.unwrap_or(0.0).min(self.of_rest);
        }
    }

    fn add_one_class(&mut self, shared: &ScenarioReport) {
        for result in tested(shared) {
            self.rate_one_class = Some(self.rate_one_class.unwrap_or(f64::INFINITY).min(result.rate));
            *self.broken_one_class.get_or_insert_default() += usize::from(result.is_broken);
        }
    }
}

/// What an attacked cluster got, as fractions of its guarantee.
struct Tested {
    rate: f64,
    latency: f64,
    is_broken: bool,
}

fn tested(report: &ScenarioReport) -> impl Iterator<Item = Tested> {
    let tested = report.clusters.iter().filter(|party| party.is_tested);
    tested.filter_map(|party| {
        let latest = party.uncontended.max().map_or(0.0, |latest| latest.us());
        Some(Tested {
            rate: party.rate_fraction()?,
            latency: latest / party.latency_bound?.us(),
            is_broken: party.meets_rate() == Some(false) || party.meets_latency_bound() == Some(false),
        })
    })
}

/// Name of the cluster without a guarantee.
const REST: &str = "rest";

/// Number of nodes of that cluster.
const REST_NODES: usize = 4;

/// Clusters that are refused one after the other before a fabric counts as full.
const REFUSALS_MAX: usize = 3;

/// The lowest guarantee that is measured, in bit/s.
const LEAST: u64 = 1_000_000_000;

/// The highest rate that a cluster requests, in bit/s, so that several fit on a link.
const MOST: u64 = 80_000_000_000;

/// Distance, in bit/s, of the guaranteed rate from the largest rate that is admitted.
const NEAR: u64 = 50_000_000;

/// A fabric full of guaranteed clusters.
struct Filled {
    plan: FabricPlan,
    seats: BTreeMap<String, Vec<Guid>>,
    capacities: Capacities,
    hardware: StatedHardware,
}

impl Filled {
    fn new(topology: &Topology, lanes: u8, entries: u8, sold_for: SwitchModel, seed: u64) -> Result<Self> {
        let mut random = Pcg64::seed_from_u64(seed);
        let first = |node: &fabric_model::Node| node.ports().next().map(|(_, port)| port.guid);
        let mut hosts: Vec<Guid> = topology.end_nodes().filter_map(|(_, node)| first(node)).collect();
        let manager = hosts.remove(0);
        hosts.shuffle(&mut random);
        let mut intents = Intents::new(manager);
        let hardware = StatedHardware { switch_model: sold_for, ..StatedHardware::default() };
        intents.hardware = hardware;
        let lanes = DataLanes::from_count(lanes).context("ports have 1, 2, 4, 8 or 15 data lanes")?;
        (intents.capabilities.default_port.lanes, intents.capabilities.default_port.arbitration) =
            (lanes, entries);
        let rest: Vec<Guid> = hosts.drain(..REST_NODES).collect();
        intents.partitions.push(partition(REST, &rest));
        let mut seats = BTreeMap::from([(REST.to_owned(), rest)]);
        let mut plan = compile(topology, &intents, &Decisions::default())?;
        let mut refusals = 0;
        while hosts.len() >= 2 && refusals < REFUSALS_MAX {
            let nodes = (2 + random.random_range(0..5u64) as usize).min(hosts.len());
            let ports: Vec<Guid> = hosts.drain(..nodes).collect();
            let name = format!("c{:02}", seats.len());
            let (mut low, mut high) = (LEAST, random.random_range(2 * LEAST..MOST));
            let mut admitted = None;
            while high - low > NEAR {
                let rate =
                    if admitted.is_none() && high - low <= 2 * NEAR { low } else { low + (high - low) / 2 };
                let wanted = with_cluster(&intents, &name, &ports, rate);
                match compile(topology, &wanted, plan.decisions()) {
                    Ok(plan) => (admitted, low) = (Some((wanted, plan)), rate),
                    Err(_) if rate == low => break,
                    Err(_) => high = rate,
                }
            }
            match admitted {
                Some((wanted, next)) => {
                    (intents, plan) = (wanted, next);
                    seats.insert(name, ports);
                }
                None => refusals += 1,
            }
        }
        let capacities = Capacities { lanes, arbitration_entries: entries, ..Capacities::default() };
        Ok(Self { plan, seats, capacities, hardware })
    }

    /// One half of the clusters attacks the other.
    fn scenario(
        &self,
        attack: SendPattern,
        messages: Messages,
        half: usize,
        seed: u64,
        duration: Span,
    ) -> Scenario {
        let mut random = Pcg64::seed_from_u64(seed);
        let guaranteed = self.seats.keys().filter(|name| *name != REST);
        let mut act = |cluster: &str, send, rate| WorkloadSpec {
            cluster: cluster.to_owned(),
            send,
            message: vec![messages.draw(send, &mut random)],
            rate,
            to: 1,
            percent: 0,
            bursts: None,
            compute: Span::default(),
        };
        let mut acts: Vec<WorkloadSpec> = (guaranteed.enumerate())
            .map(|(place, name)| match place % 2 == half {
                true => act(name, attack, SendRate::Full),
                false => act(name, SendPattern::AllToAll, SendRate::Guaranteed),
            })
            .collect();
        // Best effort only adds load; small packets would add no more.
        let rest = act(REST, SendPattern::AllToAll, SendRate::Full);
        acts.push(WorkloadSpec { message: vec![Size::from_bytes(4096)], ..rest });
        let warm_up = Span::from_time(Time::from_us(50));
        let buffer = Size::from_bytes(64 << 10);
        Scenario { duration, warm_up, buffer, switch_model: None, workloads: acts }
    }

    fn run_scenario(
        &self,
        topology: &Topology,
        scenario: &Scenario,
        seed: u64,
        is_planned: bool,
    ) -> Result<ScenarioReport> {
        let plan = if is_planned { self.plan.clone() } else { without_classes(&self.plan) };
        let mut fabric = Fabric::new(topology.clone(), self.capacities.clone(), seed)?;
        fabric.install(&plan)?;
        let cast = ClusterSet::of(&fabric, &plan, &self.seats)?;
        let cast = if is_planned { cast } else { cast.on_default_service_level() };
        Ok(run_scenario(TrafficNetwork::of(&fabric), &cast, scenario, &self.hardware, seed)?)
    }
}

fn partition(name: &str, ports: &[Guid]) -> PartitionIntent {
    let member = |port: &Guid| Member {
        selector: MemberSelector::Port(*port),
        role: Role::Full,
        placement: PkeyPlacement::Anywhere,
    };
    PartitionIntent {
        name: name.to_owned(),
        number: None,
        members: ports.iter().map(member).collect(),
        ipoib: None,
    }
}

fn with_cluster(intents: &Intents, name: &str, ports: &[Guid], rate: u64) -> Intents {
    let mut intents = intents.clone();
    intents.partitions.push(partition(name, ports));
    intents.clusters.push(ClusterIntent {
        name: name.to_owned(),
        ports: ports.to_vec(),
        class: Class::Guaranteed { bandwidth: Bandwidth::from_bits_per_s(rate), latency_ns: None },
        sl_mode: SlMode::Cluster,
    });
    intents
}

fn markdown(rows: &[Row]) -> String {
    margins(rows) + &all_rows(rows)
}

/// The worst of all runs, by model of the switches.
fn margins(rows: &[Row]) -> String {
    let mut text = String::from(
        "Guarantees of attacked clusters by model of the switches: the worst of all runs.\n\n\
         | switches | sold for | guarantees | violated | rate ÷ sold rate | latency ÷ wire bound |\n\
         |---|---|---:|---:|---:|---:|\n",
    );
    for rows in rows.chunk_by(|a, b| a.switch_model == b.switch_model) {
        let sum = |of: fn(&Row) -> usize| rows.iter().map(of).sum::<usize>();
        text += &format!(
            "| {} | {} | {} | **{}** | {:.3} | {:.3} |\n",
            rows[0].switch_model,
            rows[0].sold_for,
            sum(|row| row.attacked),
            sum(|row| row.broken),
            rows.iter().map(|row| row.rate).fold(f64::INFINITY, f64::min),
            rows.iter().map(|row| row.latency).fold(0.0, f64::max),
        );
    }
    text
}

fn all_rows(rows: &[Row]) -> String {
    let mut text = String::from(
        "\nThe least that a node of an attacked cluster got of its guarantee, as planned and with one class for all; the latest \
         packet that found its lane empty next to its bound; clusters whose guarantee was violated; what best effort got, and \
         how much that is of what all others left on the tightest link of its paths. The worst of all seeds.\n\n\
         A guarantee is violated if a node got less than its rate gives in the time of the run without the latency bound, \
         less two packets. Runs are short, with messages of any size a quarter as long, so what waits at their end shows \
         in the rates.\n\n\
         | switches | fabric | lanes | table | messages | attack | attacked | rate ÷ guarantee | one class | latency ÷ bound | violated | one class \
         | best effort Gb/s | of what was left |\n\
         |---|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in rows {
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | **{:.3}** | {} | {:.3} | **{}** | {} | {:.1} | {:.3} |\n",
            row.switch_model,
            row.fabric,
            row.lanes,
            row.entries,
            row.messages,
            format!("{:?}", row.attack).to_lowercase(),
            row.attacked,
            row.rate,
            row.rate_one_class.map_or("–".to_owned(), |rate| format!("{rate:.3}")),
            row.latency,
            row.broken,
            row.broken_one_class.map_or("–".to_owned(), |broken| broken.to_string()),
            row.rest,
            row.of_rest,
        );
    }
    text
}
