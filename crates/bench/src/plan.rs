//! `heddle-bench plan`: CPU time of planning and verifying a fabric full of clusters, and one more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use fabric_compiler::tenancy::admission::Admission;
use fabric_compiler::tenancy::link_graph::{HostIndex, LinkGraph, LinkIndex, TenancyLimits};
use fabric_compiler::tenancy::placement::{Capacity, PlacementRequest, Placer};
use fabric_compiler::{Planner, compile, recompile_on};
use fabric_model::generate::FatTree;
use fabric_model::intent::{
    ClusterIntent, Ipoib, Member, MemberSelector, PartitionIntent, PkeyPlacement, Role,
};
use fabric_model::plan::Basis;
use fabric_model::tenancy::{Bandwidth, Class, ClusterNumber, SlMode};
use fabric_model::{Decisions, Intents, Topology};
use fabric_verifier::{Verified, verify};
use ib_wire::Guid;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;
use serde::Serialize;
use subnet_manager::changed_devices;

use crate::cpu::processor_time;
use crate::stream::size;

/// Plan and verify a fat-tree full of guaranteed clusters, then replace clusters one by one and measure the CPU time of each
/// change: placement, planning, verification, and comparison with the plan before.
///
/// For comparison, the same steps from scratch.
#[derive(Debug, Args)]
pub struct BenchPlanArgs {
    /// Size of the fat-tree, in hosts.
    #[arg(long, default_value_t = 11664)]
    hosts: u32,
    /// Mean size of a cluster, in hosts.
    #[arg(long, default_value_t = 8.0)]
    mean: f64,
    /// Guaranteed rate, as a fraction (0 to 1) of the usable rate of a link.
    #[arg(long, default_value_t = 0.5)]
    rate: f64,
    /// Fraction (0 to 1) of the hosts that are in use.
    #[arg(long, default_value_t = 0.95)]
    full: f64,
    /// Clusters to add one after the other.
    #[arg(long, default_value_t = 500)]
    changes: usize,
    /// Clusters, of those, for which the whole fabric is planned and verified anew, for comparison.
    #[arg(long, default_value_t = 5)]
    whole: usize,
    /// Seed of the sizes of clusters and of which are removed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the figures as JSON instead of Markdown.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    hosts: u32,
    clusters: usize,
    nodes: usize,
    compile_s: f64,
    verify_s: f64,
    findings: usize,
    /// Parts of a newcomer's time, and their sum.
    steps: Vec<Row>,
    refused: usize,
    /// The same from scratch: medians of planning and verification in milliseconds.
    whole_plan_ms: f64,
    whole_proof_ms: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    step: &'static str,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

/// Clusters on a fabric.
struct Site {
    topology: Arc<Topology>,
    intents: Intents,
    graph: Arc<LinkGraph>,
    places: Placer,
    bandwidth: Bandwidth,
    names: BTreeMap<ClusterNumber, String>,
    next: u32,
}

impl Site {
    fn new(hosts: u32, rate: f64) -> anyhow::Result<Self> {
        let topology = Arc::new(FatTree::with_hosts(hosts).generate()?);
        let (_, host) = topology.end_nodes().next().context("a tree without hosts")?;
        let (_, port) = host.ports().next().context("a host without ports")?;
        let mut intents = Intents::new(port.guid);
        intents.capabilities.default_port.arbitration = 64;
        intents.capabilities.default_switch.multicast = 4096;
        let plan = compile(&topology, &intents, &Decisions::default())?;
        let graph = Arc::new(LinkGraph::of(&topology, &plan, TenancyLimits::default()));
        let admission = Admission::new(Arc::clone(&graph));
        let bandwidth = admission.usable(LinkIndex(0)).part(rate);
        let manager = graph.hosts().iter().position(|host| host.port == intents.manager);
        let capacity = |host: HostIndex| match Some(host.index()) == manager {
            true => Capacity::NONE,
            false => Capacity::UNLIMITED,
        };
        let places = Placer::new(admission, capacity);
        Ok(Self { topology, intents, graph, places, bandwidth, names: BTreeMap::new(), next: 0 })
    }

    /// Places a cluster and adds it to the intents; false if it does not fit.
    fn add(&mut self, nodes: usize) -> bool {
        let needs = Capacity { cores: 1, memory_mib: 1, functions: 1 };
        let cluster = ClusterNumber(self.next);
        let wish =
            PlacementRequest { cluster, nodes, needs, bandwidth: self.bandwidth, mode: SlMode::Cluster };
        let Ok(grant) = self.places.place(wish) else { return false };
        self.next += 1;
        let mut ports: Vec<Guid> =
            grant.hosts.iter().map(|host| self.graph.hosts()[host.index()].port).collect();
        ports.sort_unstable();
        let name = format!("c{:06}", cluster.0);
        let member = |port: &Guid| Member {
            selector: MemberSelector::Port(*port),
            role: Role::Full,
            placement: PkeyPlacement::Anywhere,
        };
        self.intents.partitions.push(PartitionIntent {
            name: name.clone(),
            number: None,
            members: ports.iter().map(member).collect(),
            ipoib: Some(Ipoib::default()),
        });
        let class = Class::Guaranteed { bandwidth: self.bandwidth, latency_ns: None };
        self.names.insert(cluster, name.clone());
        self.intents.clusters.push(ClusterIntent { name, ports, class, sl_mode: SlMode::Cluster });
        true
    }

    /// Removes the cluster at this position in the order of cluster numbers.
    fn remove(&mut self, place: usize) {
        let Some((number, name)) = self.names.iter().nth(place).map(|(number, name)| (*number, name.clone()))
        else {
            return;
        };
        self.names.remove(&number);
        self.places.release(number);
        self.intents.partitions.retain(|partition| partition.name != name);
        self.intents.clusters.retain(|cluster| cluster.name != name);
    }
}

/// Measures, and prints the figures.
pub fn run(args: BenchPlanArgs) -> anyhow::Result<()> {
    ensure!(
        (0.0..=1.0).contains(&args.rate) && (0.0..=1.0).contains(&args.full),
        "--rate and --full must be between 0 and 1"
    );
    let mut random = Pcg64::seed_from_u64(args.seed);
    let mut site = Site::new(args.hosts, args.rate)?;
    let goal = (f64::from(args.hosts) * args.full) as usize;
    let mut nodes = 0;
    while nodes < goal {
        let next = size(&mut random, args.mean, args.hosts as usize).min(goal - nodes);
        ensure!(site.add(next), "a cluster of {next} nodes does not fit beside {nodes} nodes");
        nodes += next;
    }
    let clusters = site.names.len();
    eprintln!("{} hosts, {clusters} clusters with {nodes} nodes", args.hosts);
    let started = processor_time()?;
    let mut planner = Planner::new(Arc::clone(&site.topology), site.intents.clone(), &Decisions::default())?;
    let compiled = processor_time()?;
    let mut verified = Verified::of(&site.topology, &site.intents, Arc::clone(planner.plan()));
    let verified_at = processor_time()?;
    let findings = verified.findings().count();

    let names = ["placed", "planned", "proved", "compared", "all"];
    let mut times: [Vec<Duration>; 5] = Default::default();
    let (mut refused, mut whole) = (0, [Vec::new(), Vec::new()]);
    for change in 0..args.changes {
        site.remove(random.random_range(0..site.names.len()));
        planner.change(&site.intents)?;
        let basis = planner.basis();
        verified =
            verified.delta_with_basis(basis, &site.topology, &site.intents, Arc::clone(planner.plan()));
        let nodes = size(&mut random, args.mean, args.hosts as usize);
        let before = Arc::clone(planner.plan());
        let start = processor_time()?;
        if !site.add(nodes) {
            refused += 1;
            continue;
        }
        let placed = processor_time()?;
        let plan = Arc::clone(planner.change(&site.intents)?);
        let planned = processor_time()?;
        let next = verified.delta_with_basis(basis, &site.topology, &site.intents, Arc::clone(&plan));
        let proved = processor_time()?;
        let sent = changed_devices(Some(&before), &plan);
        let compared = processor_time()?;
        ensure!(
            next.findings().next().is_none() && !sent.adapter_ports.is_empty(),
            "the plan with one more cluster has findings"
        );
        let steps = [placed - start, planned - placed, proved - planned, compared - proved];
        times.iter_mut().zip(steps).for_each(|(times, step)| times.push(step));
        times[4].push(steps.iter().sum());
        verified = next;
        if change < args.whole {
            let from_nothing = from_nothing(&site, basis, &before)?;
            whole.iter_mut().zip(from_nothing).for_each(|(times, time)| times.push(time));
        }
    }
    let report = Report {
        hosts: args.hosts,
        clusters,
        nodes,
        compile_s: (compiled - started).as_secs_f64(),
        verify_s: (verified_at - compiled).as_secs_f64(),
        findings,
        steps: names.iter().zip(&mut times).map(|(step, times)| row(step, times)).collect(),
        refused,
        whole_plan_ms: row("", &mut whole[0]).p50_ms,
        whole_proof_ms: row("", &mut whole[1]).p50_ms,
    };
    crate::print(args.json, &report, markdown)
}

/// Plans and verifies from scratch, given only the former plan.
fn from_nothing(
    site: &Site,
    basis: Basis,
    before: &fabric_model::FabricPlan,
) -> anyhow::Result<[Duration; 2]> {
    let start = processor_time()?;
    let plan = recompile_on(basis, &site.topology, &site.intents, before)?;
    let planned = processor_time()?;
    ensure!(
        verify(&site.topology, &site.intents, &plan).is_empty(),
        "the plan with one more cluster has findings"
    );
    Ok([planned - start, processor_time()? - planned])
}

fn row(step: &'static str, times: &mut [Duration]) -> Row {
    times.sort_unstable();
    let at = |part: f64| {
        let place = (times.len().saturating_sub(1) as f64 * part) as usize;
        times.get(place).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    };
    Row { step, p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1.0) }
}

fn markdown(report: &Report) -> String {
    let mut text = format!(
        "{} hosts, {} guaranteed clusters with {} nodes: planned in {:.2} s, proved in {:.2} s of CPU time ({} findings).\n\n\
         One more cluster, in ms of CPU time ({} found no place):\n\n\
         | step | p50 | p99 | max |\n|---|---:|---:|---:|\n",
        report.hosts,
        report.clusters,
        report.nodes,
        report.compile_s,
        report.verify_s,
        report.findings,
        report.refused,
    );
    for row in &report.steps {
        text += &format!("| {} | {:.2} | {:.2} | {:.2} |\n", row.step, row.p50_ms, row.p99_ms, row.max_ms);
    }
    let all = report.steps.last().map_or(f64::NAN, |row| row.p50_ms);
    let whole = report.whole_plan_ms + report.whole_proof_ms;
    text + &format!(
        "\nWithout anything kept: planned in {:.0} ms, proved in {:.0} ms; {:.0} times as long.\n",
        report.whole_plan_ms,
        report.whole_proof_ms,
        whole / all,
    )
}
