//! `heddle`: one binary for operators and tenants.

mod cli;
mod control_socket;
mod controller;
mod files;
mod hardware;
mod plan;
mod sim;
mod sim_ctl;
mod sm;
mod smp;
mod topology;
mod traffic;
mod up;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use cli::{Noun, block_on};

/// Carve isolated virtual clusters out of one shared InfiniBand fabric.
///
/// To try it without hardware, start a site with an emulated fabric and real virtual machines on this machine:
///
///     heddle up                                     # in one terminal, as root
///     heddle tenant create acme                     # in another
///     heddle cluster create blue --tenant acme --nodes 2 --memory 384M
///     heddle cluster exec blue --tenant acme -- mpirun -np 2 mpi-ring
#[derive(Debug, Parser)]
#[command(name = "heddle", version, verbatim_doc_comment)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::UpArgs),
    Down(up::DownArgs),
    Status(up::StatusArgs),
    /// Manage virtual clusters: create, show, resize, delete, log in, run commands.
    Cluster(Noun<cli::cluster::ClusterCommand>),
    /// Inspect and manage the network view of a cluster with stock InfiniBand tools.
    View(Noun<cli::view::ViewCommand>),
    /// Manage tenants and their quotas.
    Tenant(Noun<cli::tenant::TenantCommand>),
    /// Manage API tokens.
    Token(Noun<cli::token::TokenCommand>),
    /// Manage the hosts that run virtual machines.
    Host(Noun<cli::host::HostCommand>),
    /// Manage the images that virtual machines boot from.
    Image(Noun<cli::image::ImageCommand>),
    /// List and follow events.
    Event(Noun<cli::event::EventCommand>),
    /// Show and verify the physical fabric.
    Fabric(Noun<cli::fabric::FabricCommand>),
    #[command(flatten)]
    Daemon(Daemon),
    #[command(hide = true)]
    DieWithParent(up::die_with_parent::DieWithParentArgs),
    /// Generate and show topology files.
    #[command(subcommand)]
    Topology(topology::TopologyCommand),
    Plan(plan::PlanArgs),
    Verify(plan::VerifyArgs),
    Traffic(traffic::TrafficArgs),
    /// Control a running emulation: pull cables, reboot nodes, inject faults, show tables.
    SimCtl(sim_ctl::SimCtlArgs),
    Smp(smp::SmpArgs),
    /// Print the management key (M_Key) of a node, derived from the site secret.
    NodeKey(sm::NodeKeyArgs),
    #[command(hide = true)]
    Bench(MovedArgs),
    /// Print a completion script for a shell.
    Completion {
        /// Shell to print the script for.
        shell: clap_complete::Shell,
    },
}

/// Programs that run for as long as a site does.
#[derive(Debug, Subcommand)]
enum Daemon {
    Controller(controller::ControllerArgs),
    Sm(Box<sm::SmArgs>),
    /// Emulate a fabric that stock InfiniBand tools can attach to.
    Sim(sim::SimArgs),
}

/// The command line of a daemon alone. It is the same as that of [`Cli`], but takes half a MiB less memory: the arguments of all other
/// commands are not built.
#[derive(Debug, Parser)]
#[command(name = "heddle", version)]
struct DaemonCli {
    #[command(subcommand)]
    daemon: Daemon,
}

/// Arguments of a command that has become a program of its own.
#[derive(Debug, clap::Args)]
struct MovedArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl MovedArgs {
    fn reject(self) -> anyhow::Result<ExitCode> {
        let command = [vec!["heddle-bench".to_owned()], self.arguments].concat().join(" ");
        anyhow::bail!("`heddle bench` is now the program heddle-bench: run `{command}`")
    }
}

fn main() -> ExitCode {
    let command = command_line();
    let filter = EnvFilter::try_from_env("HEDDLE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
    match run(command) {
        Ok(status) => status,
        Err(error) => {
            // Parts of the message may come from untrusted peers.
            eprintln!("heddle: {}", cli::output::harmless(&format!("{error:#}")));
            status(&error)
        }
    }
}

fn command_line() -> Command {
    let names_daemon = |name: OsString| Daemon::has_subcommand(name.to_str().unwrap_or_default());
    if std::env::args_os().nth(1).is_some_and(names_daemon) {
        Command::Daemon(DaemonCli::parse().daemon)
    } else {
        Cli::parse().command
    }
}

/// The exit status that tells a supervisor whether a restart may help.
fn status(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref::<sm::FabricGone>() {
        Some(_) => ExitCode::from(up::supervisor::EXIT_OTHERS),
        None => ExitCode::FAILURE,
    }
}

/// Prints a line to standard output. A closed pipe is an error, not a panic.
fn print_line(line: impl std::fmt::Display) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Prints a warning to standard error. A failure to write is ignored: a full disk must not stop a daemon.
fn print_warning(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "heddle: {line}");
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up(args) => block_on(up::run(args)),
        Command::Down(args) => block_on(up::down(args)),
        Command::Status(args) => block_on(up::status(args)),
        Command::Cluster(noun) => block_on(cli::cluster::run(noun)),
        Command::View(noun) => block_on(cli::view::run(noun)),
        Command::Tenant(noun) => block_on(cli::tenant::run(noun)),
        Command::Token(noun) => block_on(cli::token::run(noun)),
        Command::Host(noun) => block_on(cli::host::run(noun)),
        Command::Image(noun) => block_on(cli::image::run(noun)),
        Command::Event(noun) => block_on(cli::event::run(noun)),
        Command::Fabric(noun) => block_on(cli::fabric::run(noun)),
        Command::Daemon(Daemon::Controller(args)) => controller::run(args),
        Command::Daemon(Daemon::Sm(args)) => done(sm::run(*args)),
        Command::Daemon(Daemon::Sim(args)) => done(sim::run(args)),
        Command::DieWithParent(args) => up::die_with_parent::run(args),
        Command::Topology(command) => done(topology::run(command)),
        Command::Plan(args) => plan::run(args),
        Command::Verify(args) => plan::verify(&args),
        Command::Traffic(args) => traffic::run(&args),
        Command::SimCtl(args) => done(sim_ctl::run(args)),
        Command::Smp(args) => done(smp::run(args)),
        Command::NodeKey(args) => done(sm::show_key(args)),
        Command::Bench(args) => args.reject(),
        Command::Completion { shell } => done(complete(shell)),
    }
}

/// Exit status 0 for commands that either succeed or return an error.
fn done(outcome: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    outcome.map(|()| ExitCode::SUCCESS)
}

fn complete(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "heddle", &mut script);
    Ok(io::stdout().write_all(&script)?)
}
