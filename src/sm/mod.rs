//! `heddle sm`: the subnet manager behind a device.

mod adoption;
mod control;
mod daemon;
mod metrics;
mod planner;
mod progress;
mod secret;
mod state;
mod stats;

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use ib_transport::{Device, DeviceSpec, Role, Waker};
use ib_wire::Guid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use subnet_manager::{Limits, Location, Manager, Settings, Watchfulness};

use crate::control_socket;
use control::SmRequest;
pub use daemon::FabricGone;
use daemon::{Adopt, Daemon, Stop};
use planner::{PlanProvider, PlanSource};
use progress::Bar;
pub use secret::{NodeKeyArgs, read as read_secret, show_key};
use state::State;
pub use state::{replace, secret_mark};
use stats::SmStatistics;

/// Run a subnet manager: make a fabric equal to what is decided for it, and keep it so.
///
/// Whatever the fabric holds already and may keep is left alone: a restart with the same `--state` writes nothing. With
/// `--secret`, every node is put under a management key of its own, derived from that secret, and answers nobody else
/// from then on; `heddle node-key` shows the key of a node to who owns the secret.
///
///     head -c 32 /dev/urandom > site.secret && chmod 600 site.secret
///     heddle sm --device ibsim:demo@host-00001 --state fabric.json --secret site.secret
///
/// It stays, follows traps, sweeps the fabric, repairs what others change, and reads `--partitions` again on SIGHUP.
/// SIGTERM and Ctrl-C end it; the fabric goes on as it is. If the device fails under it, it ends with status 75.
///
/// With `--external-plans` it decides nothing: it looks, tells at `--control` what it sees, and waits for a plan. Until one
/// comes, nothing is written and queries of subnet administration get no answer; a fabric that is configured goes on as
/// it is. From then on it keeps the fabric equal to the plan, also where devices restart and lose their tables, and waits
/// again where the fabric has become another one.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub struct SmArgs {
    #[command(subcommand)]
    command: Option<SmCommand>,
    #[command(flatten)]
    serve: Option<ServeArgs>,
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Where the fabric is: `umad:N`, `ibsim:NAME[@NODE]` or `heddle:SOCKET[@NODE]`.
    #[arg(long)]
    device: DeviceSpec,
    /// Configure the fabric and end.
    #[arg(long)]
    once: bool,
    /// Take over a fabric that somebody else runs: keep its LIDs and routes as far as they are safe, and tell what would
    /// change. Nothing is written without `--apply`.
    #[arg(long)]
    adopt: bool,
    /// Make the changes that `--adopt` tells, and go on.
    #[arg(long, requires = "adopt")]
    apply: bool,
    /// Take plans from a controller at `--control` instead of making them. Nothing is written before the first plan.
    #[arg(long, requires = "control", conflicts_with_all = ["once", "adopt", "partitions"])]
    external_plans: bool,
    /// The former name of `--external-plans`.
    #[arg(long, hide = true, value_parser = renamed_guided, num_args = 0, default_missing_value = "")]
    guided: Option<String>,
    /// Partitions, in the grammar of opensm's partitions.conf. Read again on SIGHUP.
    #[arg(long)]
    partitions: Option<PathBuf>,
    /// What was decided and who was met where: read from here, and written here before anything is changed.
    #[arg(long)]
    state: Option<PathBuf>,
    /// Put every node under a key of its own, derived from the random bytes in this file. Needs `--state`.
    #[arg(long, requires = "state")]
    secret: Option<PathBuf>,
    /// Write what happened to this file as JSON, whenever the fabric has become equal to the plan.
    #[arg(long, value_name = "FILE.json")]
    report: Option<PathBuf>,
    /// Write metrics to this file in the text format of Prometheus, for its textfile collector.
    #[arg(long, value_name = "FILE.prom")]
    metrics: Option<PathBuf>,
    /// Take commands at this socket, and tell what happens (`heddle sm watch`).
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// What other subnet managers are told, 0 to 15. opensm yields to a higher priority; this manager yields to nobody yet.
    #[arg(long, default_value_t = Settings::default().priority, value_parser = clap::value_parser!(u8).range(0..=15))]
    priority: u8,
    /// Requests in flight.
    #[arg(long, default_value_t = Limits::default().window as u64, value_parser = clap::value_parser!(u64).range(1..=4096))]
    window: u64,
    /// Seconds between sweeps, which find what no trap told.
    #[arg(long, default_value_t = Watchfulness::default().sweep.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    sweep: u64,
}

#[derive(Debug, Subcommand)]
enum SmCommand {
    /// Tell what happened so far, as JSON.
    Status(ControlArgs),
    /// Tell what is seen and what happens, one line of JSON each, until interrupted.
    Watch(ControlArgs),
    /// Take a plan from a file (JSON), and no longer decide by itself; returns when the fabric is equal to it.
    Plan(PlanArgs),
    /// Read the file of partitions again; returns when the fabric is equal to the plan.
    Reload(ControlArgs),
    /// Print metrics in the text format of Prometheus.
    Metrics(ControlArgs),
    /// Read every table that the plan in force speaks of, and print that plan with the tables as devices hold them (JSON).
    ///
    /// `heddle verify` tells whether they keep what they should.
    ReadBack(ControlArgs),
    /// Say that a node was moved: its key may be shown behind another port from now on.
    ///
    /// A node under its key is silent to everybody who does not show it, and its key is shown only where it was met
    /// before. Either tell a running manager, or change the state of one that does not run.
    AdoptNode(AdoptNodeArgs),
}

#[derive(Debug, Args)]
struct ControlArgs {
    /// The control socket of the running manager.
    #[arg(long, value_name = "SOCKET")]
    control: PathBuf,
}

#[derive(Debug, Args)]
struct PlanArgs {
    /// The plan.
    file: PathBuf,
    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Debug, Args)]
struct AdoptNodeArgs {
    /// The node GUID.
    node: Guid,
    /// Where it sits now: the node and port before it, as in reports of silent locations (`GUID[PORT]`).
    #[arg(long, value_name = "GUID[PORT]", value_parser = location, required_unless_present = "here")]
    behind: Option<Location>,
    /// It is the node that the manager itself sits on.
    #[arg(long, conflicts_with = "behind")]
    here: bool,
    /// The control socket of the running manager.
    #[arg(long, value_name = "SOCKET", conflicts_with = "state", required_unless_present = "state")]
    control: Option<PathBuf>,
    /// The state of a manager that does not run.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

/// Files that are written as things happen.
struct Outputs {
    report: Option<PathBuf>,
    metrics: Option<PathBuf>,
}

/// What the outside asks of a running manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    Stop,
    Reload,
}

pub fn run(args: SmArgs) -> anyhow::Result<()> {
    match (args.command, args.serve) {
        (Some(command), _) => control_manager(command),
        (None, Some(serve)) => serve_fabric(serve),
        (None, None) => bail!("--device says where the fabric is; see heddle sm --help"),
    }
}

fn serve_fabric(args: ServeArgs) -> anyhow::Result<()> {
    let mut state = State::at(args.state)?;
    let memory = state.read()?;
    let secret = args.secret.as_deref().map(secret::read).transpose()?;
    if let (Some(secret), Some(mark)) = (&secret, memory.secret) {
        ensure!(
            secret.mark() == mark,
            "the nodes in --state are under keys of another secret: put back the one they were put under, from a backup"
        );
    }
    let source = if args.external_plans { PlanSource::External } else { PlanSource::Internal };
    let planner = PlanProvider::new(source, args.partitions, memory.decisions.clone())?;
    let mut device = Device::open(&args.device)?;
    let adoption = match (args.adopt, args.apply) {
        (false, _) => None,
        (true, false) => Some(Adopt::Only),
        (true, true) => Some(Adopt::AndApply),
    };
    if !args.once && adoption != Some(Adopt::Only) {
        device.set_role(Role::SubnetManager)?;
    }
    let waker = Waker::new()?;
    let (_socket, commands) = match &args.control {
        Some(path) => {
            let (socket, commands) = control_socket::listen(path, control::REQUEST_BYTES_MAX, waker.clone())?;
            (Some(socket), Some(commands))
        }
        None => (None, None),
    };
    let settings = Settings {
        limits: Limits { window: args.window as usize, ..Limits::default() },
        watchfulness: Watchfulness { sweep: Duration::from_secs(args.sweep), ..Watchfulness::default() },
        priority: args.priority,
        ..Settings::default()
    };
    let mut daemon = Daemon {
        device,
        manager: Manager::new(settings, secret, &memory),
        planner,
        state,
        stats: SmStatistics::default(),
        outputs: Outputs { report: args.report, metrics: args.metrics },
        started: Instant::now(),
        once: args.once,
        signals: signals(waker.clone())?,
        waker,
        commands,
        adoption,
        waiting: Vec::new(),
        watchers: Vec::new(),
        read_back: daemon::ReadBack::default(),
        bar: Bar::new(),
        unsent: Vec::new(),
        metrics_written: None,
    };
    let stop = daemon.run()?;
    ensure!(!(args.once && stop == Stop::Asked), "stopped before the fabric was configured");
    let (refused, unmet) = (daemon.stats.refused.count, daemon.stats.unmet.len());
    if stop == Stop::Programmed && refused + unmet as u64 > 0 {
        bail!("{refused} requests were refused, {unmet} ports lead to somebody who does not answer");
    }
    Ok(())
}

/// Hands signals over to the daemon.
fn signals(waker: Waker) -> anyhow::Result<Receiver<Signal>> {
    let mut signals =
        signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot handle signals")?;
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in &mut signals {
            let signal = if signal == SIGHUP { Signal::Reload } else { Signal::Stop };
            if sender.send(signal).is_err() {
                return;
            }
            waker.wake();
        }
    })?;
    Ok(receiver)
}

fn control_manager(command: SmCommand) -> anyhow::Result<()> {
    let (args, request) = match command {
        SmCommand::Status(args) => (args, SmRequest::Status {}),
        SmCommand::Watch(args) => (args, SmRequest::Watch {}),
        SmCommand::Reload(args) => (args, SmRequest::Reload {}),
        SmCommand::Metrics(args) => (args, SmRequest::Metrics {}),
        SmCommand::ReadBack(args) => (args, SmRequest::ReadBack {}),
        SmCommand::Plan(args) => {
            let place = args.file.display();
            let text = std::fs::read(&args.file).with_context(|| format!("cannot read {place}"))?;
            let plan = serde_json::from_slice(&text).with_context(|| format!("{place} is no plan"))?;
            (args.control, SmRequest::Plan { plan })
        }
        SmCommand::AdoptNode(args) => return adopt_node(args),
    };
    let is_watch = matches!(request, SmRequest::Watch {});
    let mut is_answered = false;
    for answer in control_socket::request(&args.control, &request)? {
        is_answered = true;
        match answer? {
            serde_json::Value::String(text) => crate::say(text.trim_end())?,
            value if is_watch => crate::say(value)?,
            value => crate::say(serde_json::to_string_pretty(&value)?)?,
        }
    }
    ensure!(is_answered, "the manager ended before it answered");
    Ok(())
}

fn adopt_node(args: AdoptNodeArgs) -> anyhow::Result<()> {
    if let Some(control) = args.control {
        let behind = args.behind.map(|it| control::PortAddress { node: it.near, port: it.port });
        let answer =
            control_socket::request_one(&control, &SmRequest::AdoptNode { node: args.node, behind })?;
        return crate::say(answer.as_str().unwrap_or_default());
    }
    let path = args.state.context("--state or --control says whose nodes these are")?;
    ensure!(path.exists(), "there is no {}", path.display());
    let mut state = State::at(Some(path))?;
    let mut memory = state.read()?;
    memory.bindings.rebind(args.behind, args.node);
    state.write(memory)?;
    crate::say("bound; the next manager shows its key there")
}

/// Rejects the former name of an option with the name it has now.
fn renamed_guided(_: &str) -> Result<String, String> {
    Err("--guided is now --external-plans".to_owned())
}

/// Reads `GUID[PORT]`, as reports write it.
fn location(text: &str) -> Result<Location, String> {
    let parts = text.strip_suffix(']').and_then(|text| text.split_once('['));
    let (near, port) = parts.ok_or_else(|| format!("{text:?} is not GUID[PORT]"))?;
    let near = near.parse().map_err(|error| format!("{near:?}: {error}"))?;
    let port = port.parse().ok().and_then(ib_wire::PortNum::new);
    Ok(Location { near, port: port.ok_or_else(|| format!("{text:?} names no port"))? })
}
