//! `heddle cluster check`: tries out a cluster from inside its nodes.
//!
//! [`plan`] lists the checks for the cluster's kind of adapter. Each runs commands in nodes ([`nodes`]), reads what they print
//! ([`parse`]) and becomes a row of the report. Nodes belong to the tenant, so their output is bounded and never trusted.

mod adapter;
mod isolation;
mod mpi;
mod nodes;
mod pairs;
mod parse;
mod plan;
mod report;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use controller_api::ApiClient;
use controller_api::cluster::AdapterKind;

use self::nodes::NodeCommands;
use self::plan::{Check, Group, Need};
use self::report::{CheckFinding, CheckReport, CheckVerdict, CheckedItem};
use super::cluster::ClusterArgs;
use super::output::Format;
use super::progress::WaitProgress;

#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Run only the checks of this group; may be repeated
    #[arg(long, value_enum, value_name = "GROUP")]
    only: Vec<Group>,
}

/// Runs the checks one after the other; fails if one that has to pass does not.
pub async fn run(client: &ApiClient, format: Format, args: CheckArgs) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let cluster = client.cluster_show(&args.cluster.to_ref()?).await?;
    let progress = WaitProgress::new("asking the nodes which tools they have");
    let nodes = NodeCommands::new(client, args.cluster.to_ref()?, &cluster)?;
    let checks = plan::checks(cluster.shape.adapter, &args.only);
    let inventory =
        adapter::inventory(&nodes, &checks).await.context("no command can be run in the first node")?;
    let mut items = Vec::new();
    for check in checks {
        progress.waits_for(&check.title());
        let began = Instant::now();
        let verdict = match obstacle(&check, &nodes, &inventory.tools) {
            Some(verdict) => verdict,
            None => match check.run(&nodes).await {
                Ok(finding) => CheckVerdict::Passed(finding),
                Err(error) => CheckVerdict::Failed(parse::short(&format!("{error:#}"))),
            },
        };
        let item = CheckedItem::new(&check, verdict, began.elapsed());
        progress.reached(&item.line());
        items.push(item);
    }
    drop(progress);
    let report = CheckReport::new(&cluster, inventory.is_emulated, items, started.elapsed());
    format.print(&report, CheckReport::render)?;
    Ok(if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Why a check cannot be run here.
fn obstacle(check: &Check, nodes: &NodeCommands<'_>, tools: &BTreeSet<String>) -> Option<CheckVerdict> {
    if check.need == Need::Pair && nodes.count() < 2 {
        return Some(CheckVerdict::Skipped("needs a cluster of two nodes or more".to_owned()));
    }
    let missing: Vec<&str> = check.tools.iter().copied().filter(|tool| !tools.contains(*tool)).collect();
    (!missing.is_empty()).then(|| CheckVerdict::Missing(missing.join(", ")))
}

impl Check {
    async fn run(&self, nodes: &NodeCommands<'_>) -> anyhow::Result<CheckFinding> {
        use plan::Work;
        match &self.work {
            Work::Port => adapter::port(nodes).await,
            Work::Address(device) => adapter::address(nodes, device).await,
            Work::Ping => adapter::ping(nodes).await,
            Work::Pair(tool) => pairs::run(nodes, tool).await,
            Work::Ring => mpi::ring(nodes).await,
            Work::Mpi(transport) => mpi::measure(nodes, transport).await,
            Work::Isolation(attempt) => isolation::run(nodes, *attempt).await,
        }
    }
}

/// The network device with the address of a node.
const fn device(adapter: AdapterKind) -> &'static str {
    match adapter {
        AdapterKind::Ethernet => "eth0",
        AdapterKind::Infiniband => "ib0",
    }
}
