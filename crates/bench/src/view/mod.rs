//! `heddle-bench view`: a tenant view next to ibsim of the same topology, a thousand idle views, and a view beside a flooded
//! one.

mod beside_ibsim;
mod flood;
mod host;
mod idle;
mod table;

use std::path::Path;
use std::process::Command;

use anyhow::ensure;
use clap::Args;
use ib_transport::ibsim::SocketName;
use serde::Serialize;

use bench::Programs;
use bench::process::ServerProcess;
use bench::scratch::ScratchDir;
use beside_ibsim::{BringUp, Datagrams};
use flood::Flood;
pub use host::{ViewsArgs, serve};
use idle::Idle;

/// Compare tenant views with ibsim of the same topology, and measure idle and flooded views.
///
/// Gets of subnet management and a bring-up by stock opensm go to a view and to ibsim in turn, through the same sockets. Idle
/// views are counted in one process. Then Gets are measured in one view while another is flooded. Each
/// throughput is the best of the rounds, each bring-up the shortest, so compare ratios.
#[derive(Debug, Args)]
pub struct ViewArgs {
    /// Virtual machines of the view that is compared with ibsim, at least 2.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..))]
    nodes: u32,
    /// Requests per measurement. A view takes 131,072 without pause, and every round sends 12 times as many.
    #[arg(long, default_value_t = 10_000)]
    requests: u32,
    /// Requests kept in flight, one measurement each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 32])]
    outstanding: Vec<usize>,
    /// Rounds; the best of them counts.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Number of idle views, of 16 virtual machines each.
    #[arg(long, default_value_t = 1000)]
    views: u32,
    /// Duration of the measurement of idle views and of each flood, in seconds.
    #[arg(long, default_value_t = 5.0)]
    watch_s: f64,
    /// Measure Heddle only, without ibsim.
    #[arg(long)]
    alone: bool,
    /// Print the figures as JSON instead of Markdown.
    #[arg(long)]
    json: bool,
}

/// What is measured: ibsim, or a tenant view of the same topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Side {
    Ibsim,
    View,
}

/// All figures of a run.
#[derive(Debug, Serialize)]
struct Report {
    nodes: u32,
    switches: usize,
    /// What could not be compared, and why.
    missing: Vec<String>,
    datagrams: Vec<Datagrams>,
    bring_up: Vec<BringUp>,
    idle: Idle,
    flood: Flood,
}

/// Measures, and prints the figures.
pub fn run(args: &ViewArgs, programs: &Programs) -> anyhow::Result<()> {
    ensure!(
        args.rounds > 0 && args.requests > 0 && args.views > 0,
        "--rounds, --requests and --views must be at least 1"
    );
    let scratch = ScratchDir::new("bench-view")?;
    let report = measure(args, programs, scratch.path())?;
    crate::print(args.json, &report, table::markdown)
}

fn measure(args: &ViewArgs, programs: &Programs, directory: &Path) -> anyhow::Result<Report> {
    let (sides, missing) = sides(args.alone);
    let pair = beside_ibsim::Pair::new(args.nodes, programs, directory)?;
    // Datagrams last: they keep this process on one core.
    let has_opensm = is_installed("opensm");
    let bring_up = match has_opensm {
        true => beside_ibsim::bring_up(&pair, &sides, args.rounds)?,
        false => Vec::new(),
    };
    let idle = idle::measure(programs, args.views, args.watch_s)?;
    let flood = flood::measure(programs, args.watch_s)?;
    let datagrams = beside_ibsim::datagrams(&pair, &sides, has_opensm, args)?;
    Ok(Report { nodes: args.nodes, switches: pair.switches(), missing, datagrams, bring_up, idle, flood })
}

/// The sides that can be measured, and notes on those that cannot.
fn sides(alone: bool) -> (Vec<Side>, Vec<String>) {
    let mut missing = Vec::new();
    let mut sides = vec![Side::View];
    if alone {
        missing.push("ibsim was left out.".to_owned());
    } else if is_installed("ibsim") {
        sides.insert(0, Side::Ibsim);
    } else {
        missing.push("ibsim is not installed (Debian package ibsim-utils).".to_owned());
    }
    if !is_installed("opensm") {
        let complaint = "opensm is not installed: no bring-up, and nothing is routed by LID on ibsim.";
        missing.push(complaint.to_owned());
    }
    (sides, missing)
}

/// Whether a program is in PATH.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Starts a process that serves `views` views of `nodes` nodes each.
fn start_views(
    programs: &Programs,
    purpose: &str,
    nodes: u32,
    views: u32,
) -> anyhow::Result<(ServerProcess, SocketName)> {
    let name = SocketName::new(&format!("heddle-{purpose}-{}", std::process::id()))?;
    // Ends with this process even if that is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(&programs.heddle_bench).args(["views", name.as_str()]);
    command.args(["--nodes", &nodes.to_string(), "--views", &views.to_string()]);
    Ok((ServerProcess::start(&mut command, &name)?, name))
}
