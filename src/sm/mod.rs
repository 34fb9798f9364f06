//! `heddle sm`: the subnet manager behind a device.

mod adoption;
mod aliases;
mod control;
mod daemon;
mod handed_over;
mod link_health;
mod metrics;
mod persist;
mod planner;
mod planning;
mod progress;
mod release;
mod replication;
mod secret;
mod standby;
mod state;
mod stats;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use control_protocol::{ReleasedKeys, SmRequest};
use fabric_model::intent::{PortName, UnenforcedPorts};
use ib_transport::{ClientRole, Device, DeviceSpec, Waker};
use ib_wire::Guid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use subnet_manager::{Location, MadLimits, Manager, ManagerSettings, SweepSettings};

use crate::control_socket;
pub use daemon::FabricGone;
use daemon::{Adopt, Daemon, Stop};
use planner::{IntentFiles, PlanProvider, PlanSource};
use progress::Bar;
use replication::DeclaredManager;
pub use secret::{NodeKeyArgs, read as read_secret, show_key};
use standby::{Candidacy, redundancy, take_turns};
use state::State;
pub use state::secret_mark;
use stats::SmStatistics;

/// Run a subnet manager: program a fabric according to a plan and keep it programmed.
///
/// Values that devices hold already and that fit the plan are not rewritten: a restart with the same `--state` sends no
/// Set. With `--secret`, every node gets a management key (M_Key) of its own, derived from that secret, and rejects
/// requests without it; `heddle node-key` prints the key of a node.
///
///     head -c 32 /dev/urandom > site.secret && chmod 600 site.secret
///     heddle sm --device ibsim:demo@host-00001 --state fabric.json --secret site.secret
///
/// It runs until SIGTERM or Ctrl-C: it handles traps, sweeps the fabric, repairs drift, and reads `--partitions`,
/// `--handed-over` and `--link-health` again on SIGHUP. The fabric keeps working after it ends. If the device fails, it
/// exits with status 75.
///
/// With `--external-plans` it makes no plans: it discovers the fabric, reports it at `--control`, and waits for a plan.
/// Before the first plan it sends no Set and answers no SA query; a fabric that is configured keeps working. Afterwards
/// it keeps the fabric programmed, also when devices reboot and lose their tables. When the topology changes, it waits
/// for a new plan.
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
    /// Device to reach the fabric through: `umad:N`, `ibsim:NAME[@NODE]` or `heddle:SOCKET[@NODE]`.
    #[arg(long)]
    device: DeviceSpec,
    /// Program the fabric once and exit.
    #[arg(long)]
    once: bool,
    /// Take over a fabric that another subnet manager configured: keep its LIDs and routes as far as they are free of
    /// deadlock, and print the posture of the fabric, what would change, and why. Nothing is written without `--apply`.
    #[arg(long)]
    adopt: bool,
    /// Write the changes that `--adopt` prints, and keep running.
    #[arg(long, requires = "adopt")]
    apply: bool,
    /// Print the report of `--adopt` as JSON: `posture`, `kept`, `changes`, `differences`.
    #[arg(long, requires = "adopt", conflicts_with = "apply")]
    json: bool,
    /// Take plans from a controller at `--control` instead of making them. Nothing is written before the first plan.
    #[arg(long, requires = "control", conflicts_with_all = ["once", "adopt", "partitions"])]
    external_plans: bool,
    /// The former name of `--external-plans`.
    #[arg(long, hide = true, value_parser = renamed_guided, num_args = 0, default_missing_value = "")]
    guided: Option<String>,
    /// Partition file in the format of opensm's partitions.conf. Read again on SIGHUP.
    #[arg(long)]
    partitions: Option<PathBuf>,
    /// File with the GUIDs of ports that are handed over to tenants, one per line, on a fabric that others use, too; `#` starts
    /// a comment. `ALL` and the like in `--partitions` do not select them. A partition whose members are handed-over ports by
    /// GUID belongs to tenants. Of all others, handed-over ports hold limited keys where they are named by GUID, and none of
    /// 0x7fff while others are its full members. Read again on SIGHUP.
    #[arg(long, value_name = "FILE", requires = "partitions", conflicts_with = "external_plans")]
    handed_over: Option<PathBuf>,
    /// TOML file with alias GUIDs of ports, for virtual functions for example. Read again on SIGHUP. Each has an entry:
    /// `[[alias]]`, `port = "0x…"`, `index = 1`, `guid = "0x…"`, `partitions = [0x7fff]`.
    #[arg(long, value_name = "FILE.toml", conflicts_with = "external_plans")]
    aliases: Option<PathBuf>,
    /// Open ports at switches that cannot enforce partitions, although there are partitions besides the default one. Only
    /// adapters enforce them then, so whoever controls an adapter can join any. Without other partitions, such ports are
    /// open anyway.
    #[arg(long, conflicts_with = "external_plans")]
    allow_unenforced: bool,
    /// Program SL-to-VL and arbitration tables on every port: best effort has lanes, and all other service levels are discarded.
    /// They stay without this option, if `--state` remembers them.
    #[arg(long, conflicts_with = "external_plans")]
    qos: bool,
    /// Limits of link health, a TOML file such as `docs/link-health.toml`. Read again on SIGHUP.
    ///
    /// A link that goes down too often, or whose error counters grow too fast, is damped: `heddle sm status` names it, and
    /// plans leave it out as long as the fabric stays connected without it. Links of hosts stay in use. It returns after a
    /// quiet time, which doubles each time, or by `heddle sm restore-link`. Without this option, defaults apply.
    #[arg(long, value_name = "FILE.toml")]
    link_health: Option<PathBuf>,
    /// State file with LIDs, routes and the location of each node. Read at start; written before devices are.
    #[arg(long)]
    state: Option<PathBuf>,
    /// File with the site secret, at least 32 random bytes: gives every node an M_Key of its own. Needs `--state`. While nodes
    /// change to a new secret (`heddle sm rotate-keys --new-secret`), give the old and the new one.
    #[arg(long, requires = "state")]
    secret: Vec<PathBuf>,
    /// File with a key that an operator or another subnet manager gave to all nodes: 8 bytes, or `0x` and 16 hexadecimal
    /// digits. Needed as long as a node may hold it: after `heddle sm release --single-key`, and with `--reclaim`.
    #[arg(long, value_name = "FILE", requires = "secret")]
    operator_key: Vec<PathBuf>,
    /// Take the fabric back after `heddle sm release`: with the LIDs of the state file, and with a key of its own for every
    /// node that has had one. Nodes may hold their keys, one of `--operator-key`, or none.
    #[arg(long, requires = "state", conflicts_with = "adopt")]
    reclaim: bool,
    /// Write statistics to this file as JSON, each time programming has finished.
    #[arg(long, value_name = "FILE.json")]
    report: Option<PathBuf>,
    /// Write metrics to this file every 10 seconds, in the text format of Prometheus, for its textfile collector.
    #[arg(long, value_name = "FILE.prom")]
    metrics: Option<PathBuf>,
    /// Listen at this unix socket for the commands `heddle sm status`, `watch`, `plan`, `reload`, …
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Another subnet manager of this site, by the GUID of its port and its control socket; may be repeated. One of them is the
    /// master; the others store what it remembers and take over when it ends. `heddle sm` yields to nobody else. Each needs `--control`
    /// and a copy of the secret.
    #[arg(
        long = "peer", value_name = "GUID=SOCKET", requires = "control", requires = "state",
        conflicts_with_all = ["once", "adopt"]
    )]
    peers: Vec<DeclaredManager>,
    /// Seconds without an answer of the master after which a standby manager takes over, 0.5 to 60. A master that is busy for a
    /// quarter of it sends nothing for a moment, so large fabrics on slow machines need more.
    #[arg(long, value_name = "SECONDS", requires = "peers", default_value_t = 1.5, value_parser = standby::patience)]
    takeover_after: f64,
    /// SM priority announced to other subnet managers, 0 to 15. opensm yields to a higher priority, `heddle sm` to `--peer` only:
    /// where two halves of a fabric are joined, the master with the higher priority goes on.
    #[arg(long, default_value_t = ManagerSettings::default().priority, value_parser = clap::value_parser!(u8).range(0..=15))]
    priority: u8,
    /// GID prefix of the subnet, 64 bits: the first half of the GID of every port.
    #[arg(long, value_name = "HEX", default_value = "0xfe80000000000000", value_parser = gid_prefix)]
    gid_prefix: u64,
    /// Port that may subscribe to notices about all devices (traps 128, 144, 256 to 259), by GUID; may be repeated. Others get
    /// only reports about ports and groups of their own partitions.
    #[arg(long, value_name = "GUID")]
    event_port: Vec<Guid>,
    /// Maximum number of MADs in flight, 1 to 4096.
    #[arg(long, default_value_t = MadLimits::default().window as u64, value_parser = clap::value_parser!(u64).range(1..=4096))]
    window: u64,
    /// Seconds between sweeps, at least 1. A sweep finds changes that no trap reported.
    #[arg(long, default_value_t = SweepSettings::default().interval.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    sweep: u64,
}

#[derive(Debug, Subcommand)]
enum SmCommand {
    /// Print the statistics of a running manager as JSON.
    Status(ControlArgs),
    /// Print the discovered fabric, then each event, one line of JSON each, until interrupted.
    Watch(ControlArgs),
    /// Send a plan (a JSON file) to a running manager; it makes no plans of its own from then on.
    ///
    /// Returns when the fabric is programmed.
    Plan(PlanArgs),
    /// Read the files of partitions, aliases and handed-over ports and the limits of link health again; returns when the fabric is
    /// programmed.
    Reload(ControlArgs),
    /// Try again the entries that devices refused or ignored, instead of waiting for the next try.
    ///
    /// Ports that lack an entry which isolates tenants are closed, and nothing is guaranteed on links that lack one which
    /// carries guarantees; `heddle sm status` lists them. They are tried again when their device restarts, and after 1, 2,
    /// 4 … up to 60 minutes.
    Retry(ControlArgs),
    /// Let a damped link return to plans at once, after its cable was replaced for example.
    ///
    /// `heddle sm status` lists damped links under `damped_links`.
    RestoreLink(RestoreLinkArgs),
    /// Give every node another M_Key, under traffic; returns when all nodes that answer have it.
    ///
    /// Each node holds the old key or the new one at any time, and the manager knows which: it may be killed and started again.
    /// Nodes that do not answer keep their key and get the new one when they come back. Without `--new-secret`, keys of the
    /// next epoch of the same secret are used. `heddle sm status` shows the epoch and the nodes that are behind.
    RotateKeys(RotateKeysArgs),
    /// Leave the fabric to another subnet manager, such as opensm: write what it needs into a directory, and end.
    ///
    /// The directory gets partitions.conf, guid2lid, guid2mkey and neighbors in the formats of OpenSM 3.3, and a README that
    /// says what to do next; guid2mkey holds M_Keys. Nodes keep their keys, or get one key, or none. From then on the manager
    /// writes nothing, and does not start again with its state file without `--reclaim`. A request that was accepted is
    /// carried out even if this command is interrupted.
    Release(ReleaseArgs),
    /// Print metrics in the text format of Prometheus.
    Metrics(ControlArgs),
    /// Read back every table of the plan in force, and print the plan with the tables that devices hold, as JSON.
    ///
    /// `heddle verify --tables` checks the output.
    ReadBack(ControlArgs),
    /// Declare that a node was moved, so that its M_Key may be sent to its new location.
    ///
    /// A protected node ignores requests without its M_Key, and the manager sends an M_Key only to the port behind which
    /// the node was found before. Name either the control socket of a running manager or the state file of a stopped one.
    AdoptNode(AdoptNodeArgs),
}

#[derive(Debug, Args)]
struct ControlArgs {
    /// Control socket of the running manager.
    #[arg(long, value_name = "SOCKET")]
    control: PathBuf,
}

#[derive(Debug, Args)]
struct PlanArgs {
    /// Plan file, as the controller or `heddle sm read-back` writes it.
    file: PathBuf,
    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Debug, Args)]
struct RestoreLinkArgs {
    /// GUID and port of one end of the link, as `heddle sm status` prints it.
    #[arg(value_name = "GUID[PORT]", value_parser = location)]
    port: Location,
    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Debug, Args)]
struct RotateKeysArgs {
    /// File with a new site secret, which the manager must be able to read. Start the manager with both secrets from then on,
    /// and with the new one alone when no node is behind.
    #[arg(long, value_name = "FILE")]
    new_secret: Option<PathBuf>,
    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Debug, Args)]
struct ReleaseArgs {
    /// Directory for the files, created with mode 700.
    #[arg(long, value_name = "DIR")]
    export: PathBuf,
    /// File with one key for all nodes, 8 random bytes or `0x` and 16 hexadecimal digits, with mode 600.
    #[arg(long, value_name = "FILE", conflicts_with = "remove_keys")]
    single_key: Option<PathBuf>,
    /// Take the keys of all nodes away: whoever reaches a node can configure it then.
    #[arg(long)]
    remove_keys: bool,
    #[command(flatten)]
    control: ControlArgs,
}

#[derive(Debug, Args)]
struct AdoptNodeArgs {
    /// GUID of the node.
    node: Guid,
    /// New location: GUID and port of the neighbouring node, as warnings of silent locations print it.
    #[arg(long, value_name = "GUID[PORT]", value_parser = location, required_unless_present = "here")]
    behind: Option<Location>,
    /// The node is the one that the manager itself runs on.
    #[arg(long, conflicts_with = "behind")]
    here: bool,
    /// Control socket of the running manager.
    #[arg(long, value_name = "SOCKET", conflicts_with = "state", required_unless_present = "state")]
    control: Option<PathBuf>,
    /// State file of a manager that is stopped.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

/// Files that the daemon rewrites while it runs.
struct Outputs {
    report: Option<PathBuf>,
    metrics: Option<PathBuf>,
    /// Only the report of an adoption is printed, as JSON.
    json: bool,
}

/// A signal that the process received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    Stop,
    Reload,
}

pub fn run(args: SmArgs) -> anyhow::Result<()> {
    match (args.command, args.serve) {
        (Some(command), _) => control_manager(command),
        (None, Some(serve)) => serve_fabric(serve),
        (None, None) => bail!("--device is required: see heddle sm --help"),
    }
}

fn serve_fabric(args: ServeArgs) -> anyhow::Result<()> {
    let mut state = State::at(args.state)?;
    let memory = state.read()?;
    if memory.released {
        ensure!(
            args.reclaim || (args.adopt && !args.apply),
            "the fabric was released to another subnet manager (heddle sm release): take it back with --reclaim, after the \
             other manager has ended"
        );
    } else if args.reclaim {
        crate::print_warning("--reclaim: the fabric of this state file is not released any more");
    }
    let operator_keys: Vec<_> = args
        .operator_key
        .iter()
        .map(|path| secret::read_operator_key(path))
        .collect::<anyhow::Result<_>>()?;
    let has_operator_key = |mark: &u64| operator_keys.iter().any(|key| key.fingerprint() == *mark);
    ensure!(
        args.secret.is_empty() || memory.keys.operator_keys().iter().all(has_operator_key),
        "nodes may hold the key that they were released with: give it with --operator-key FILE"
    );
    let secrets = args.secret.iter().map(|path| secret::read(path)).collect::<anyhow::Result<Vec<_>>>()?;
    if !secrets.is_empty() {
        let is_given = |mark: &u64| secrets.iter().any(|secret| secret.fingerprint() == *mark);
        ensure!(
            memory.secret.is_none_or(|mark| is_given(&mark)),
            "the nodes in --state have keys of another secret: restore the secret they were protected with from a backup"
        );
        let behind = memory.keys.behind.len();
        ensure!(
            memory.keys.older_secrets().iter().all(is_given),
            "{behind} nodes may still have keys of the secret before: give both, --secret OLD --secret NEW"
        );
    }
    let plan_source = if args.external_plans { PlanSource::External } else { PlanSource::Internal };
    let unenforced = if args.allow_unenforced { UnenforcedPorts::Open } else { UnenforcedPorts::Closed };
    let files =
        IntentFiles { partitions: args.partitions, aliases: args.aliases, handed_over: args.handed_over };
    let mut decisions = memory.decisions.clone();
    decisions.sl_enforcement |= args.qos;
    let planner = PlanProvider::new(plan_source, files.clone(), decisions, unenforced)?;
    let mut device = Device::open(&args.device)?;
    let adoption = match (args.adopt, args.apply) {
        (false, _) => None,
        (true, false) => Some(Adopt::Only),
        (true, true) => Some(Adopt::AndApply),
    };
    if !args.once && adoption != Some(Adopt::Only) {
        device.set_role(ClientRole::SubnetManager)?;
    }
    let waker = Waker::new()?;
    let (_socket, commands) = match &args.control {
        Some(path) => {
            let (socket, commands) = control_socket::listen(path, control::REQUEST_BYTES_MAX, waker.clone())?;
            (Some(socket), Some(commands))
        }
        None => (None, None),
    };
    let settings = ManagerSettings {
        limits: MadLimits { window: args.window as usize, ..MadLimits::default() },
        sweeps: SweepSettings { interval: Duration::from_secs(args.sweep), ..SweepSettings::default() },
        priority: args.priority,
        gid_prefix: args.gid_prefix,
        link_health: args.link_health.as_deref().map(link_health::read).transpose()?.unwrap_or_default(),
        ..ManagerSettings::default()
    };
    let event_ports: BTreeSet<Guid> = args.event_port.into_iter().collect();
    let mut manager = Manager::with_operator_keys(settings, secrets, operator_keys, &memory);
    manager.set_event_ports(event_ports.clone());
    let redundancy = match args.peers.as_slice() {
        [] => None,
        peers => Some(redundancy(&mut device, peers, args.takeover_after, &waker)?),
    };
    let mut daemon = Daemon {
        device,
        manager,
        settings,
        memory,
        redundancy,
        awaits_followers: false,
        planner,
        state,
        stats: SmStatistics::default(),
        link_health: args.link_health,
        outputs: Outputs { report: args.report, metrics: args.metrics, json: args.json },
        started: Instant::now(),
        once: args.once,
        signals: signals(waker.clone())?,
        waker,
        commands,
        adoption,
        adoption_report: adoption::AdoptionReport::default(),
        waiting: Vec::new(),
        rotating: Vec::new(),
        release: None,
        watchers: Vec::new(),
        damped: BTreeMap::new(),
        read_back: daemon::ReadBack::default(),
        bar: Bar::new(),
        unsent: Vec::new(),
        metrics_written: None,
        released_with: Vec::new(),
    };
    let start = Candidacy {
        secrets: args.secret,
        event_ports,
        plan_source,
        files,
        unenforced,
        qos: args.qos,
        operator_keys: args.operator_key,
        reclaim: args.reclaim,
    };
    let stop = if daemon.redundancy.is_some() { take_turns(&mut daemon, &start)? } else { daemon.run()? };
    if stop == Stop::Released {
        return end_released(daemon);
    }
    ensure!(!(args.once && stop == Stop::Asked), "interrupted before the fabric was programmed");
    let (refused, unmet) = (daemon.stats.refused.count, daemon.stats.unmet.len());
    let lacks = daemon.stats.lacks.len();
    if stop == Stop::Programmed && refused + (unmet + lacks) as u64 > 0 {
        bail!(
            "devices rejected {refused} requests, {lacks} entries of isolation or guarantees are missing, and {unmet} ports \
             lead to nodes that do not answer"
        );
    }
    Ok(())
}

/// Ends after a release: first the fabric sees that no manager runs here, then the request is answered.
fn end_released(daemon: Daemon) -> anyhow::Result<()> {
    let absent = daemon.manager.key_status().map(|keys| keys.absent).unwrap_or_default();
    let Daemon { device, release, released_with, .. } = daemon;
    drop(device);
    let mut told = released_with;
    if !absent.is_empty() {
        let names: Vec<String> = absent.iter().map(ToString::to_string).collect();
        told.push(format!("these nodes do not answer and hold older keys: {}", names.join(", ")));
    }
    told.push("released: the manager has ended; start it with --reclaim to take the fabric back".to_owned());
    let told = told.join("\n");
    if let Some(release) = release {
        release.answers.send(Ok(serde_json::json!(told)));
        release.answers.flush();
    }
    crate::print_line("released: another subnet manager may start")
}

/// Forwards SIGHUP, SIGINT and SIGTERM to the daemon and wakes it.
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
        SmCommand::Retry(args) => (args, SmRequest::Retry {}),
        SmCommand::Metrics(args) => (args, SmRequest::Metrics {}),
        SmCommand::ReadBack(args) => (args, SmRequest::ReadBack {}),
        SmCommand::Plan(args) => {
            let place = args.file.display();
            let text = std::fs::read(&args.file).with_context(|| format!("cannot read {place}"))?;
            let plan = serde_json::from_slice(&text).with_context(|| format!("{place} is not a plan"))?;
            (args.control, SmRequest::Plan { plan })
        }
        SmCommand::RestoreLink(args) => {
            let port = PortName { node: args.port.near, port: args.port.port };
            (args.control, SmRequest::RestoreLink { port })
        }
        SmCommand::RotateKeys(args) => {
            let file = args
                .new_secret
                .map(|path| path.canonicalize().with_context(|| format!("cannot read {}", path.display())));
            (args.control, SmRequest::RotateKeys { new_secret: file.transpose()? })
        }
        SmCommand::Release(args) => {
            let absolute = |path: PathBuf| {
                std::path::absolute(&path).with_context(|| format!("no path: {}", path.display()))
            };
            let keys = match args.single_key {
                Some(path) => ReleasedKeys::Single(absolute(path)?),
                None if args.remove_keys => ReleasedKeys::Removed,
                None => ReleasedKeys::Kept,
            };
            (args.control, SmRequest::Release { export: absolute(args.export)?, keys })
        }
        SmCommand::AdoptNode(args) => return adopt_node(args),
    };
    let is_watch = matches!(request, SmRequest::Watch {});
    let mut is_answered = false;
    for answer in control_socket::request(&args.control, &request)? {
        is_answered = true;
        match answer? {
            serde_json::Value::String(text) => crate::print_line(text.trim_end())?,
            value if is_watch => crate::print_line(value)?,
            value => crate::print_line(serde_json::to_string_pretty(&value)?)?,
        }
    }
    ensure!(is_answered, "the manager ended before it replied");
    Ok(())
}

fn adopt_node(args: AdoptNodeArgs) -> anyhow::Result<()> {
    if let Some(control) = args.control {
        let behind = args.behind.map(|it| PortName { node: it.near, port: it.port });
        let answer: String =
            control_socket::request_one(&control, &SmRequest::AdoptNode { node: args.node, behind })?;
        return crate::print_line(answer);
    }
    let path = args.state.context("one of --state and --control is required")?;
    ensure!(path.exists(), "{} does not exist", path.display());
    let mut state = State::at(Some(path))?;
    let mut memory = state.read()?;
    memory.bindings.rebind(args.behind, args.node);
    state.write(memory)?;
    crate::print_line("location recorded: the next manager sends the key of the node there")
}

/// Rejects the former name of an option with the name it has now.
fn renamed_guided(_: &str) -> Result<String, String> {
    Err("--guided is now --external-plans".to_owned())
}

fn gid_prefix(text: &str) -> Result<u64, String> {
    let hex = text.strip_prefix("0x").unwrap_or(text);
    let prefix = u64::from_str_radix(hex, 16).ok();
    // The upper byte of a multicast GID is 0xff, and a GID of zeros is none.
    prefix.filter(|prefix| *prefix != 0 && prefix >> 56 != 0xff).ok_or_else(|| {
        format!("a GID prefix is 1 to 16 hexadecimal digits, not 0, and does not begin with ff: got {text:?}")
    })
}

/// Parses `GUID[PORT]`, the format of locations in warnings.
fn location(text: &str) -> Result<Location, String> {
    let parts = text.strip_suffix(']').and_then(|text| text.split_once('['));
    let (near, port) = parts.ok_or_else(|| format!("{text:?} is not GUID[PORT]"))?;
    let near = near.parse().map_err(|error| format!("{near:?}: {error}"))?;
    let port = port.parse().ok().and_then(ib_wire::PortNum::new);
    Ok(Location {
        near,
        port: port.ok_or_else(|| format!("the port in {text:?} must be a number from 0 to 254"))?,
    })
}
