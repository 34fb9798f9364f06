//! `heddle plan` and `heddle verify`: compile and verify plans offline.

mod explain;
mod file;
pub use file::PlanFile;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use controller_api::intents::{ClusterSpec, DeviceShape, SiteIntents};
use fabric_compiler::arrangement::{self, Arrangement, InnerPartition, arrange};
use fabric_compiler::tenancy::placement::Capacity;
use fabric_model::decisions::ClusterDecision;
use fabric_model::tenancy::Nanoseconds;
use fabric_model::{FabricPlan, Intents, StatedHardware, Topology};
use fabric_verifier::{Finding, Rule, is_acknowledged, verify_rule};
use ib_wire::DataLanes;
use serde_json::json;

use crate::cli::output::{Format, count, or_dash, table};
use crate::topology::read_topology;

/// Findings printed in tables; `-o json` prints all.
const SHOWN_MAX: usize = 200;

/// Place clusters on a fabric, compile and verify the tables of every device, and explain them. No device is changed.
///
/// The intents file is TOML:
///
///     tenants = ["acme", "umbra"]
///
///     [hosts]                  # resources of each host for virtual machines
///     cores = 32
///     memory = "128G"
///
///     [[clusters]]
///     tenant = "acme"
///     name = "blue"
///     nodes = 8
///     cores = 4
///     memory = "8G"
///     class = { guaranteed = { bandwidth = "10G", latency = "50us" } }
///
///     [[clusters]]
///     tenant = "umbra"
///     name = "green"
///     nodes = 4                # no class: best effort
///     partitions = [{ name = "storage", full = [1], limited = [2, 3] }]
#[derive(Debug, Args)]
#[command(
    verbatim_doc_comment,
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  heddle topology generate fat-tree --hosts 64 --radix 8 -o net.topo
  heddle plan --topology net.topo --intents site.toml --out plan.json
  heddle plan explain acme/blue --topology net.topo --plan plan.json
  heddle plan --topology net.topo --intents later.toml --previous plan.json --out next.json
  heddle verify --topology net.topo --plan next.json"
)]
pub struct PlanArgs {
    #[command(subcommand)]
    command: Option<PlanCommand>,
    #[command(flatten)]
    plan: Option<NewPlanArgs>,
}

#[derive(Debug, Args)]
struct NewPlanArgs {
    /// Topology file of the fabric, in the format of ibnetdiscover; - reads standard input
    #[arg(long, value_name = "NET")]
    topology: PathBuf,
    /// Intents file: tenants, hosts and clusters
    #[arg(long, value_name = "FILE")]
    intents: PathBuf,
    /// Earlier plan file; its clusters keep their ports, lanes and LIDs
    #[arg(long, value_name = "FILE")]
    previous: Option<PathBuf>,
    /// Write the plan to this file, if it is verified
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Debug, Subcommand)]
enum PlanCommand {
    /// Explain what a plan assigns to a cluster: hosts, links, lanes, bandwidth, latency bound
    Explain(explain::ExplainArgs),
}

/// Verify isolation, reachability, freedom from deadlock and the guarantees of a plan.
///
/// With --tables, verify the tables that devices hold instead; `heddle sm read-back` reads them. The exit status is 0 if
/// there are no findings, else 1.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  heddle verify --topology net.topo --plan plan.json
  heddle sm read-back --control sm.sock > held.json
  heddle verify --topology net.topo --plan plan.json --tables held.json")]
pub struct VerifyArgs {
    /// Topology file of the fabric, in the format of ibnetdiscover; - reads standard input
    #[arg(long, value_name = "NET")]
    topology: PathBuf,
    /// Plan file, as `heddle plan --out` writes it
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// Tables of devices, as `heddle sm read-back` prints them
    #[arg(long, value_name = "FILE")]
    tables: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

pub fn run(args: PlanArgs) -> Result<ExitCode> {
    match (args.command, args.plan) {
        (Some(PlanCommand::Explain(args)), _) => explain::run(&args).map(|()| ExitCode::SUCCESS),
        (None, Some(args)) => make(&args),
        (None, None) => bail!("--topology and --intents are required"),
    }
}

fn make(args: &NewPlanArgs) -> Result<ExitCode> {
    let topology = read_topology(&args.topology)?;
    let site = file::read_intents(&args.intents)?;
    let previous = args.previous.as_deref().map(PlanFile::read).transpose()?;
    let previous = previous.map(PlanFile::into_arrangement);
    let fabric = fabric(&topology, &site)?;
    let host = site.hosts;
    let host =
        Capacity { cores: host.cores, memory_mib: host.memory.mib().into(), functions: host.functions };
    let desired: Vec<arrangement::DesiredCluster> = site.clusters.iter().map(desired_cluster).collect();
    let arranged = arrange(&topology, &fabric, host, &desired, previous.as_ref())?;
    let findings = findings(&topology, &arranged.intents, &arranged.plan);
    args.output.print(&summary(&arranged, &findings), |_| text(&topology, &site, &arranged, &findings))?;
    if !findings.is_empty() {
        // A plan with findings is not written.
        return Ok(ExitCode::FAILURE);
    }
    if let Some(out) = &args.out {
        PlanFile::of(site, arranged).write(out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Intents with the port of the subnet manager and the capabilities of devices.
fn fabric(topology: &Topology, site: &SiteIntents) -> Result<Intents> {
    let mut hosts = topology.end_nodes().map(|(_, node)| node);
    let node = match &site.manager {
        Some(name) => hosts.find(|node| node.description == *name || node.id == *name),
        None => hosts.next(),
    };
    let node = node.with_context(|| match &site.manager {
        Some(name) => format!("the subnet manager is to run on {name}, but no host has this name"),
        None => "the fabric has no host".to_owned(),
    })?;
    let port = node.cabled_ports().find_map(|(number, _)| node.port(number));
    let mut intents = Intents::new(port.context("the host of the subnet manager has no cable")?.guid);
    let DeviceShape { lanes, arbitration, pkeys, multicast, lane_buffer, switch_model, cable_metres } =
        site.devices;
    intents.hardware = StatedHardware { switch_model, cable_metres };
    let capabilities = &mut intents.capabilities;
    capabilities.default_port.lanes = data_lanes(lanes)?;
    ensure!(
        (8..=64).contains(&arbitration),
        "devices.arbitration must be between 8 and 64, got {arbitration}"
    );
    (capabilities.default_port.arbitration, capabilities.default_port.pkeys) = (arbitration, pkeys);
    capabilities.default_port.lane_buffer = lane_buffer;
    (capabilities.default_switch.enforced_pkeys, capabilities.default_switch.multicast) = (pkeys, multicast);
    Ok(intents)
}

fn data_lanes(count: u8) -> Result<DataLanes> {
    let kinds = [DataLanes::One, DataLanes::Two, DataLanes::Four, DataLanes::Eight, DataLanes::Fifteen];
    let lanes = kinds.into_iter().find(|lanes| lanes.count() == count);
    lanes.with_context(|| format!("devices.lanes must be 1, 2, 4, 8 or 15, got {count}"))
}

fn desired_cluster(cluster: &ClusterSpec) -> arrangement::DesiredCluster {
    let (cores, functions) = (cluster.cores, cluster.functions);
    let inner = |partition: &controller_api::cluster::SubPartition| InnerPartition {
        name: partition.name.to_string(),
        full: partition.full.clone(),
        limited: partition.limited.clone(),
    };
    arrangement::DesiredCluster {
        name: cluster.full_name(),
        nodes: cluster.nodes as usize,
        needs: Capacity { cores, memory_mib: cluster.memory.mib().into(), functions },
        class: cluster.class,
        sl_mode: cluster.sl_mode,
        partitions: cluster.partitions.iter().map(inner).collect(),
    }
}

/// Findings of the verifier that the plan does not report itself.
fn findings(topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Vec<(Rule, Finding)> {
    let all = Rule::ALL.into_iter().flat_map(|rule| {
        verify_rule(rule, topology, intents, plan).into_iter().map(move |finding| (rule, finding))
    });
    all.filter(|(_, finding)| !is_acknowledged(finding, plan)).collect()
}

fn summary(arranged: &Arrangement, findings: &[(Rule, Finding)]) -> serde_json::Value {
    let decisions = arranged.plan.decisions().clusters.iter();
    let decisions: BTreeMap<&String, &ClusterDecision> =
        decisions.map(|(name, decision)| (name, &**decision)).collect();
    json!({
        "clusters": arranged.node_ports,
        "decisions": decisions,
        "hardware": arranged.intents.hardware,
        "buffers_known": !has_unknown_buffers(&arranged.intents),
        "known": arranged.plan.findings().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "findings": findings.iter().map(|(rule, it)| format!("{rule}: {it}")).collect::<Vec<_>>(),
    })
}

fn text(
    topology: &Topology,
    site: &SiteIntents,
    arranged: &Arrangement,
    findings: &[(Rule, Finding)],
) -> String {
    let plan = &arranged.plan;
    let rows = site.clusters.iter().map(|cluster| {
        let name = cluster.full_name();
        let ports = &arranged.node_ports[&name];
        let hosts: BTreeSet<_> = ports.iter().collect();
        let leaves: BTreeSet<_> =
            ports.iter().filter_map(|port| Some(plan.adapter_port(*port)?.peer.node)).collect();
        let decision = plan.decisions().clusters.get(&name);
        [
            name,
            cluster.nodes.to_string(),
            hosts.len().to_string(),
            leaves.len().to_string(),
            cluster.class.to_string(),
            service_levels(decision.map(|it| &**it)),
            or_dash(decision.map(|it| it.links.len())),
            or_dash(decision.map(|it| Nanoseconds::from_ns(it.bound_ns))),
        ]
    });
    let clusters =
        table(["cluster", "nodes", "hosts", "switches", "guarantee", "sl", "links", "wire bound"], rows);
    let switches = topology.switches().count();
    let planned = format!(
        "planned: {} and {} with {}",
        count(switches, "switch"),
        count(plan.adapter_ports().len(), "port"),
        count(site.clusters.len(), "cluster"),
    );
    let sold = (!plan.decisions().clusters.is_empty()).then(|| guarantee_terms(&arranged.intents));
    let known = plan.findings().iter().map(|finding| format!("  {finding}"));
    let lines = [clusters, String::new(), planned].into_iter().chain(sold).chain(known);
    lines.chain([verdict(findings)]).collect::<Vec<_>>().join("\n")
}

/// What the guarantees of a plan presuppose.
fn guarantee_terms(intents: &Intents) -> String {
    let StatedHardware { switch_model, cable_metres } = intents.hardware;
    let buffers = if has_unknown_buffers(intents) { "; buffers unknown" } else { "" };
    format!("guarantees hold for switches with {switch_model} and cables up to {cable_metres} m{buffers}")
}

/// Whether some port has lane buffers of unknown size, so that guarantees do not account for them.
fn has_unknown_buffers(intents: &Intents) -> bool {
    let capabilities = &intents.capabilities;
    let mut ports = capabilities.ports.values().chain([&capabilities.default_port]);
    ports.any(|port| port.lane_buffer.is_none())
}

/// The service level of a cluster, or those between its switches.
fn service_levels(decision: Option<&ClusterDecision>) -> String {
    let one = decision.and_then(ClusterDecision::service_level);
    let pairs = decision.into_iter().flat_map(|decision| &decision.pairs);
    let all: BTreeSet<_> = one.into_iter().chain(pairs.map(|pair| pair.service_level)).collect();
    let all: Vec<String> = all.iter().map(|level| level.to_wire().to_string()).collect();
    or_dash(Some(all.join(",")).filter(|text| !text.is_empty()))
}

/// The result of a verification, as text.
fn verdict(findings: &[(Rule, Finding)]) -> String {
    if findings.is_empty() {
        return format!("verified: {} hold", count(Rule::ALL.len(), "rule"));
    }
    let lines = findings.iter().take(SHOWN_MAX).map(|(rule, finding)| format!("  {rule}: {finding}"));
    let more = findings.len().checked_sub(SHOWN_MAX).filter(|more| *more > 0);
    let lines: Vec<String> = lines.chain(more.map(|more| format!("  and {more} more"))).collect();
    format!("not verified: {}\n{}", count(findings.len(), "finding"), lines.join("\n"))
}

pub fn verify(args: &VerifyArgs) -> Result<ExitCode> {
    let topology = read_topology(&args.topology)?;
    let file = PlanFile::read(&args.plan)?;
    let tables = args.tables.as_deref().map(read_tables).transpose()?;
    let plan = tables.as_ref().unwrap_or(&file.plan);
    let findings = findings(&topology, &file.intents, plan);
    let lines = findings.iter().map(|(rule, finding)| format!("{rule}: {finding}")).collect::<Vec<_>>();
    args.output
        .print(&json!({ "proved": findings.is_empty(), "findings": lines }), |_| verdict(&findings))?;
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read_tables(path: &Path) -> Result<FabricPlan> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{} is not an output of heddle sm read-back", path.display()))
}
