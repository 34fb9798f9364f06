//! `heddle`: one binary for operators and tenants.

mod bench;
mod control_socket;
mod sim;
mod sim_ctl;
mod sm;
mod smp;
mod topology;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Turns a shared InfiniBand cluster into many private ones.
///
/// Try it without hardware: generate a fabric, emulate it, and point stock InfiniBand tools at it.
///
///     heddle topology generate fat-tree --hosts 16 -o net
///     heddle sim net --name demo &
///     IBSIM_SOCKNAME=demo LD_PRELOAD=/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so ibnetdiscover
#[derive(Debug, Parser)]
#[command(name = "heddle", version, verbatim_doc_comment)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Generate topologies, and look at them.
    #[command(subcommand)]
    Topology(topology::TopologyCommand),
    /// Emulate a fabric that stock InfiniBand tools can attach to.
    Sim(sim::SimArgs),
    /// Act on a running emulation: pull cables, restart nodes, lose packets, look inside.
    SimCtl(sim_ctl::SimCtlArgs),
    Sm(sm::SmArgs),
    Smp(smp::SmpArgs),
    /// Show the management key of a node to who owns the site secret.
    NodeKey(sm::NodeKeyArgs),
    /// Compare with other software, side by side in one run.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Print a completion script for a shell.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env("HEDDLE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("heddle: {error:#}");
            status(&error)
        }
    }
}

/// Tells supervisors what is worth another try.
fn status(error: &anyhow::Error) -> ExitCode {
    /// EX_TEMPFAIL of sysexits.h.
    const TRY_AGAIN: u8 = 75;
    match error.downcast_ref::<sm::FabricGone>() {
        Some(_) => ExitCode::from(TRY_AGAIN),
        None => ExitCode::FAILURE,
    }
}

/// Prints a line; where nobody can read it any more that is an error like others, not a panic.
fn say(line: impl std::fmt::Display) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Topology(command) => topology::run(command),
        Command::Sim(args) => sim::run(args),
        Command::SimCtl(args) => sim_ctl::run(args),
        Command::Sm(args) => sm::run(args),
        Command::Smp(args) => smp::run(args),
        Command::NodeKey(args) => sm::show_key(args),
        Command::Bench(command) => bench::run(command),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "heddle", &mut script);
            Ok(io::stdout().write_all(&script)?)
        }
    }
}
