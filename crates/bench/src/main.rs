//! `heddle-bench`: benchmarks that print both sides of a comparison in one run.

mod admission;
mod cpu;
mod failover;
mod guarantees;
mod placement;
mod plan;
mod sellable;
mod shapes;
mod sim;
mod sim_control;
mod sm;
mod stream;
mod tightness;
mod view;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use bench::{Programs, bring_up, judge};
use clap::{Parser, Subcommand};
use serde::Serialize;

/// Compare Heddle with other software and schemes, both sides in one run on this machine.
///
/// Each command prints its figures as Markdown, or as JSON with --json.
#[derive(Debug, Parser)]
#[command(name = "heddle-bench", version)]
struct Cli {
    /// The `heddle` program to measure [default: the one in the directory of this program]
    #[arg(long, global = true, value_name = "PATH")]
    heddle: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare the emulated fabric with ibsim and with an echo server, through the same sockets.
    Sim(sim::BenchSimArgs),
    /// Time opensm on `heddle sim` and on ibsim, and check the routes it leaves.
    BringUp(bring_up::BringUpArgs),
    /// Compare `heddle sm` with opensm: bring-up, changes, path queries.
    Sm(sm::BenchSmArgs),
    /// Kill, stop and cut off masters, and time until a host gets an answer; next to opensm.
    Failover(failover::FailoverArgs),
    /// Let `heddle sm` configure fabrics of every shape, and check them with stock tools and a walk of all routes.
    Judge(judge::JudgeArgs),
    /// Count the clusters that a fabric admits at given places, next to the rule of a paper.
    Admission(admission::AdmissionArgs),
    /// Place clusters one after the other until the fabric is full; measure utilisation and CPU time per decision.
    ///
    /// Waiting for a processor is not counted; other load on the machine still makes decisions slower.
    Placement(placement::PlacementArgs),
    /// Measure the CPU time of planning and verifying a fabric full of clusters, and of adding one.
    ///
    /// Waiting for a processor is not counted; other load on the machine still makes planning slower.
    Plan(plan::BenchPlanArgs),
    /// Measure what guaranteed clusters get while all others attack them, with and without Heddle.
    Guarantees(guarantees::GuaranteesArgs),
    /// Compare the rates that can be guaranteed on a link with the most that arbitration tables allow.
    Sellable(sellable::SellableArgs),
    /// Measure how close hostile neighbours come to the latency bound.
    Tightness(tightness::TightnessArgs),
    /// Measure shared adapters and jobs beside hostile neighbours, next to the figures of papers.
    Shapes(shapes::ShapesArgs),
    /// Compare tenant views with ibsim of the same topology; measure idle views and a flooded one.
    View(view::ViewArgs),
    /// Serve views of clusters, for `heddle-bench view`.
    #[command(hide = true)]
    Views(view::ViewsArgs),
    /// Answer every request with itself, for `heddle-bench sim`.
    #[command(hide = true)]
    Echo {
        /// Name of the sockets.
        name: String,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match Programs::find(cli.heddle).and_then(|programs| run(cli.command, &programs)) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("heddle-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command, programs: &Programs) -> anyhow::Result<ExitCode> {
    let measured = match command {
        // Its exit status says whether every guarantee held.
        Command::Guarantees(args) => return guarantees::run(&args),
        Command::Sim(args) => sim::run(&args, programs),
        Command::BringUp(args) => bring_up::measure(&args, programs)
            .and_then(|rows| print(args.json, &rows, |rows| bring_up::markdown(rows))),
        Command::Sm(args) => sm::run(&args, programs),
        Command::Failover(args) => failover::run(&args, programs),
        Command::Judge(args) => judge::judge(&args, programs)
            .and_then(|rows| print(args.json, &rows, |rows| judge::markdown(rows))),
        Command::Admission(args) => admission::run(args),
        Command::Placement(args) => placement::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Sellable(args) => sellable::run(&args),
        Command::Tightness(args) => tightness::run(args),
        Command::Shapes(args) => shapes::run(args),
        Command::View(args) => view::run(&args, programs),
        Command::Views(args) => view::serve(&args),
        Command::Echo { name } => sim::echo(&name),
    };
    measured.map(|()| ExitCode::SUCCESS)
}

/// Prints figures as JSON or as Markdown.
fn print<T: Serialize>(json: bool, figures: &T, markdown: impl Fn(&T) -> String) -> anyhow::Result<()> {
    let text = if json { serde_json::to_string_pretty(figures)? } else { markdown(figures) };
    let mut out = io::stdout().lock();
    writeln!(out, "{}", text.trim_end())?;
    Ok(out.flush()?)
}
