//! A job beside a hostile neighbour, with lanes and without.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Context;
use fabric_compiler::compile;
use fabric_compiler::tenancy::admission::Admission;
use fabric_compiler::tenancy::link_graph::{LinkGraph, LinkIndex, TenancyLimits};
use fabric_model::generate::{FatTree, FatTreeSize};
use fabric_model::intent::{ClusterIntent, Member, MemberSelector, PartitionIntent, PkeyPlacement, Role};
use fabric_model::tenancy::{Class, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, LinkRate, StatedHardware, Topology};
use fabric_sim::scenario::{
    ClusterSet, Scenario, SendPattern, SendRate, Size, Span, WorkloadSpec, run_scenario, without_classes,
};
use fabric_sim::traffic::{Histogram, Time, TrafficNetwork};
use fabric_sim::{Capacities, Fabric};
use ib_wire::{Guid, Mtu};
use serde::Serialize;

use super::{ShapesArgs, port_guids};

/// A job beside a neighbour.
#[derive(Debug, Serialize)]
pub struct Row {
    pub neighbour: SendPattern,
    message_bytes: u64,
    compute_us: u64,
    pub alone: Rounds,
    pub planned: Rounds,
    pub without_classes: Rounds,
}

/// Results of the rounds. Times in µs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rounds {
    pub ended: u64,
    /// A round with its computing. Where none ended, or a run came to a stop, it takes longer than this.
    round: f64,
    /// From the end of computing until all messages had arrived.
    median_exchange: Option<f64>,
    slowest_exchange: Option<f64>,
}

/// Names of the two clusters.
const JOB: &str = "job";
const NEIGHBOUR: &str = "neighbour";

/// What the neighbour does: all its nodes send to one of them; they send to all nodes on all service levels; they
/// exceed every arbitration visit of their own lane as far as possible; all send to one that does not drain its
/// buffers.
const NEIGHBOURS: [SendPattern; 4] =
    [SendPattern::Incast, SendPattern::Everything, SendPattern::Overshoot, SendPattern::Stall];

/// Hosts of a leaf: the first is the job's, the others are the neighbour's.
const LEAF_HOSTS: usize = 4;

/// Warm-up time before the measurement.
const JOB_WARM_UP_US: u64 = 50;

/// Rounds for every message, time of computing and neighbour.
pub fn measure(args: &ShapesArgs) -> anyhow::Result<Vec<Row>> {
    let site = Site::new(args.rate)?;
    let mut rows = Vec::new();
    for message_bytes in &args.messages {
        for compute_us in &args.compute {
            eprintln!("a job that computes {compute_us} µs and sends {message_bytes} bytes");
            let rounds =
                |neighbour, has_lanes| site.rounds(args, *message_bytes, *compute_us, neighbour, has_lanes);
            let alone = rounds(None, true)?;
            for neighbour in NEIGHBOURS {
                rows.push(Row {
                    neighbour,
                    message_bytes: *message_bytes,
                    compute_us: *compute_us,
                    alone,
                    planned: rounds(Some(neighbour), true)?,
                    without_classes: rounds(Some(neighbour), false)?,
                });
            }
        }
    }
    Ok(rows)
}

/// A tree with two clusters, whose nodes are at the same leaves.
struct Site {
    topology: Topology,
    plan: FabricPlan,
    capacities: Capacities,
    seats: BTreeMap<String, Vec<Guid>>,
}

impl Site {
    /// 16 hosts at 4 leaves: one is the manager's, the others belong to job and neighbour.
    fn new(rate: f64) -> anyhow::Result<Self> {
        let size = FatTreeSize::Hosts { hosts: 16, tiers: Some(2) };
        let topology = FatTree { radix: 8, ..FatTree::new(size) }.generate()?;
        let mut hosts = port_guids(&topology);
        let mut intents = Intents::new(hosts.pop().context("a tree without hosts")?);
        let usual = &mut intents.capabilities.default_port;
        (usual.arbitration, usual.mtu) = (64, Mtu::B4096);
        let capacities =
            Capacities { arbitration_entries: usual.arbitration, mtu: usual.mtu, ..Capacities::default() };
        let plain = compile(&topology, &intents, &Decisions::default())?;
        let books = LinkGraph::of(&topology, &plain, TenancyLimits::default());
        let bandwidth = Admission::new(books.into()).usable(LinkIndex(0)).part(rate);
        let mut seats = BTreeMap::new();
        let owned = |name| {
            let of = hosts.iter().enumerate().filter(|(place, _)| (place % LEAF_HOSTS == 0) == (name == JOB));
            of.map(|(_, port)| *port).collect()
        };
        for name in [JOB, NEIGHBOUR] {
            let ports: Vec<Guid> = owned(name);
            let member = |port: &Guid| Member {
                selector: MemberSelector::Port(*port),
                role: Role::Full,
                placement: PkeyPlacement::Anywhere,
            };
            intents.partitions.push(PartitionIntent {
                name: name.to_owned(),
                number: None,
                members: ports.iter().map(member).collect(),
                ipoib: None,
            });
            intents.clusters.push(ClusterIntent {
                name: name.to_owned(),
                ports: ports.clone(),
                class: Class::Guaranteed { bandwidth, latency_ns: None },
                sl_mode: SlMode::Cluster,
            });
            seats.insert(name.to_owned(), ports);
        }
        let plan = compile(&topology, &intents, &Decisions::default())?;
        Ok(Self { topology, plan, capacities, seats })
    }

    fn rounds(
        &self,
        args: &ShapesArgs,
        message_bytes: u64,
        compute_us: u64,
        neighbour: Option<SendPattern>,
        has_lanes: bool,
    ) -> anyhow::Result<Rounds> {
        let plan = if has_lanes { self.plan.clone() } else { without_classes(&self.plan) };
        let mut fabric = Fabric::new(self.topology.clone(), self.capacities.clone(), 0)?;
        fabric.install(&plan)?;
        let cast = ClusterSet::of(&fabric, &plan, &self.seats)?;
        let cast = if has_lanes { cast } else { cast.on_default_service_level() };
        let job =
            WorkloadSpec { compute: us(compute_us), ..act(JOB, SendPattern::BulkSynchronous, message_bytes) };
        let neighbour = neighbour.map(|pattern| act(NEIGHBOUR, pattern, 4096));
        let scenario = Scenario {
            duration: us(args.duration),
            warm_up: us(JOB_WARM_UP_US),
            buffer: Size::from_bytes(64 << 10),
            switch_model: None,
            workloads: [job].into_iter().chain(neighbour).collect(),
        };
        let hardware = StatedHardware::default();
        let mut exchanges = Histogram::default();
        for seed in &args.seeds {
            let report = run_scenario(TrafficNetwork::of(&fabric), &cast, &scenario, &hardware, *seed)?;
            let parties = report.clusters.iter().filter(|party| party.name == JOB);
            parties.filter_map(|party| party.rounds.as_ref()).for_each(|rounds| exchanges.merge(rounds));
        }
        let ended = exchanges.count();
        let mean = exchanges.mean().map_or(0.0, |mean| compute_us as f64 + mean.us());
        // Every run ends within a round.
        let runs = args.seeds.len() as u64;
        let least = (runs * (args.duration + JOB_WARM_UP_US)) as f64 / (ended + runs) as f64;
        Ok(Rounds {
            ended,
            round: mean.max(least),
            median_exchange: exchanges.quantile(0.5).map(Time::us),
            slowest_exchange: exchanges.max().map(Time::us),
        })
    }
}

fn us(us: u64) -> Span {
    Span::from_time(Time::from_us(us))
}

fn act(cluster: &str, send: SendPattern, bytes: u64) -> WorkloadSpec {
    WorkloadSpec {
        cluster: cluster.to_owned(),
        send,
        message: vec![Size::from_bytes(bytes)],
        rate: SendRate::Full,
        to: 1,
        percent: 50,
        bursts: None,
        compute: Span::default(),
    }
}

/// Exchanges and rounds, side by side.
pub fn markdown(args: &ShapesArgs, rows: &[Row]) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(
        text,
        "A job of 4 nodes beside a neighbour of 11, all at the same 4 leaves, links of {}; both have a guarantee of {:.0} % of what \
         clusters may use of a link. Exchange: median and slowest in µs. Round: its time as a multiple of alone.\n\n\
         | neighbour | message | compute µs | exchange alone | with lanes | one class | round with lanes | one class \
         | one class ÷ lanes |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        LinkRate::DEFAULT,
        100.0 * args.rate,
    )?;
    let exchange = |rounds: &Rounds| match (rounds.median_exchange, rounds.slowest_exchange) {
        (Some(median), Some(slowest)) => format!("{median:.1}, {slowest:.1}"),
        _ => "none ended".to_owned(),
    };
    for row in rows {
        let times = |rounds: &Rounds, of: &Rounds| {
            let more = if rounds.ended == 0 { "> " } else { "" };
            format!("{more}×{:.2}", rounds.round / of.round)
        };
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            serde_json::to_value(row.neighbour)?.as_str().unwrap_or_default(),
            row.message_bytes,
            row.compute_us,
            exchange(&row.alone),
            exchange(&row.planned),
            exchange(&row.without_classes),
            times(&row.planned, &row.alone),
            times(&row.without_classes, &row.alone),
            times(&row.without_classes, &row.planned),
        )?;
    }
    Ok(text)
}
