//! `heddle-bench sm`: `heddle sm` and opensm do the same work on the same emulated fabrics, side by side.

mod change;
pub mod manager;
mod sa;
mod table;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use fabric_compiler::compile;
use fabric_model::generate::FatTree;
use fabric_model::{Decisions, Intents, Topology, ibnetdiscover};
use ib_transport::ibsim::SocketName;
use serde::Serialize;
use serde_json::json;

use crate::sim_control;
use bench::Programs;
use bench::process::{Emulator, ServerProcess};
use bench::scratch::ScratchDir;
use change::{LinkFailure, PartitionChange};
use manager::{ManagerProcess, Setup, Side};
use sa::{Requested, SaRequests};

/// Compare `heddle sm` with the installed opensm: the same fat-trees, the same emulations, one after the other.
///
/// Bring-up, a partition of 16 ports that is added and removed, a failed link, path queries, and joins of multicast groups. Both managers are
/// observed from outside: their output, /proc, the requests that `heddle sim` counted, and tables read back by a third
/// program. A step that does not end as expected is an error, or a row that reports it.
#[derive(Debug, Args)]
pub struct BenchSmArgs {
    /// Sizes of the fat-trees, in hosts.
    #[arg(long, value_delimiter = ',', default_values_t = [324, 1944, 4860, 11664])]
    hosts: Vec<u32>,
    /// Parts to measure, separated by commas.
    #[arg(long, value_delimiter = ',', default_values = ["bring-up", "partition", "link", "paths", "joins", "routing"])]
    parts: Vec<Part>,
    /// Emulators to measure on, separated by commas.
    #[arg(long, value_delimiter = ',', default_values = ["heddle", "heddle-framed", "ibsim"])]
    on: Vec<On>,
    /// Largest fabric, in hosts, that both also bring up with QoS (opensm -Q, heddle sm --qos).
    #[arg(long, default_value_t = 4860)]
    qos_hosts: u32,
    /// Routing engine of opensm (option -R).
    #[arg(long, default_value = "minhop")]
    engine: String,
    /// Duration of the path queries, and of the joins, in seconds.
    #[arg(long, default_value_t = 5)]
    query_s: u64,
    /// Print the figures as JSON instead of Markdown.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    BringUp,
    Partition,
    Link,
    Paths,
    Joins,
    Routing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum On {
    Heddle,
    /// Both managers attach with the framed protocol, where one system call can carry many datagrams. Partitions and links are
    /// not changed there.
    HeddleFramed,
    Ibsim,
}

impl On {
    fn emulator(self) -> Emulator {
        match self {
            Self::Heddle => Emulator::Heddle,
            Self::HeddleFramed => Emulator::HeddleFramed,
            Self::Ibsim => Emulator::Ibsim,
        }
    }
}

/// All figures of a run.
#[derive(Debug, Default, Serialize)]
struct Report {
    engine: String,
    rows: Vec<Row>,
    routing: Vec<Routing>,
}

/// One manager on one fabric.
#[derive(Debug, Serialize)]
struct Row {
    hosts: u32,
    on: Emulator,
    side: Side,
    qos: bool,
    bring_up: BringUp,
    /// `None` if it was not requested; the reason if it failed.
    partition: Option<Outcome<PartitionChange>>,
    link: Option<Outcome<LinkFailure>>,
    paths: Option<Outcome<SaRequests>>,
    joins: Option<Outcome<SaRequests>>,
}

/// What was measured, or why it was not.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome<T> {
    Measured(T),
    Failed(String),
}

impl<T> Outcome<T> {
    fn of(result: anyhow::Result<T>, what: &str) -> Self {
        match result {
            Ok(value) => Self::Measured(value),
            Err(error) => {
                eprintln!("heddle-bench: {what}: {error:#}");
                Self::Failed(format!("{error:#}"))
            }
        }
    }

    fn measured(&self) -> Option<&T> {
        match self {
            Self::Measured(value) => Some(value),
            Self::Failed(_) => None,
        }
    }
}

/// From the start of a manager until it reports that the fabric is up.
#[derive(Debug, Serialize)]
struct BringUp {
    up_s: f64,
    cpu_s: f64,
    peak_mib: f64,
    /// `None` on emulations that do not count requests.
    requests: Option<Requests>,
}

/// Reads and writes of subnet management that one node sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Requests {
    gets: u64,
    sets: u64,
    /// Of the writes: blocks of unicast routes.
    route_blocks: u64,
}

impl Requests {
    fn all(self) -> u64 {
        self.gets + self.sets
    }

    fn since(self, before: Self) -> Self {
        Self {
            gets: self.gets - before.gets,
            sets: self.sets - before.sets,
            route_blocks: self.route_blocks - before.route_blocks,
        }
    }
}

/// Time of computing a plan, without anything else.
#[derive(Debug, Serialize)]
struct Routing {
    hosts: u32,
    plan_s: f64,
}

/// A fabric that is emulated.
struct Arena<'a> {
    hosts: u32,
    topology: &'a Topology,
    emulator: Emulator,
    name: String,
    socket: SocketName,
    /// The socket with which managers attach, if they use the framed protocol.
    framed: Option<PathBuf>,
    runtime: PathBuf,
    server: ServerProcess,
}

impl<'a> Arena<'a> {
    /// Starts the emulation of a fabric whose file of cables is `net`.
    fn start(
        programs: &Programs,
        topology: &'a Topology,
        net: &Path,
        emulator: Emulator,
        label: &str,
    ) -> anyhow::Result<Self> {
        let hosts = u32::try_from(topology.end_nodes().count())?;
        let name = format!("heddle-sm-{}-{hosts}-{emulator:?}-{label}", std::process::id()).to_lowercase();
        let socket = SocketName::new(&name)?;
        let server = ServerProcess::start(&mut emulator.command(programs, net, &name), &socket)?;
        let runtime = net.parent().unwrap_or(net).to_owned();
        let framed = emulator.framed_socket(net, &name);
        Ok(Self { hosts, topology, emulator, name, socket, framed, runtime, server })
    }

    /// The first host, on which managers run.
    fn manager_id(&self) -> anyhow::Result<&str> {
        Ok(&self.topology.end_nodes().next().context("a fabric without hosts")?.1.id)
    }

    /// The requests of the manager's node so far; `None` on emulations that do not count.
    fn requests(&self) -> anyhow::Result<Option<Requests>> {
        if self.emulator == Emulator::Ibsim {
            return Ok(None);
        }
        let status = sim_control::ask(&self.runtime, &self.name, &json!({ "command": "status" }))?;
        let asked = &status["requests"][self.manager_id()?];
        let sum = |method: &str| -> u64 {
            let counts = asked[method].as_object().into_iter().flatten();
            counts.filter_map(|(_, count)| count.as_u64()).sum()
        };
        let route_blocks = asked["set"]["LINEAR_FORWARDING"].as_u64().unwrap_or(0);
        Ok(Some(Requests { gets: sum("get"), sets: sum("set"), route_blocks }))
    }
}

/// Measures, and prints the figures.
pub fn run(args: &BenchSmArgs, programs: &Programs) -> anyhow::Result<()> {
    let scratch = ScratchDir::new("sm")?;
    let mut report = Report { engine: args.engine.clone(), ..Report::default() };
    for hosts in &args.hosts {
        let topology = FatTree::with_hosts(*hosts).generate()?;
        if args.parts.contains(&Part::Routing) {
            report.routing.push(route(*hosts, &topology)?);
        }
        let net = scratch.path().join(format!("net-{hosts}"));
        std::fs::write(&net, ibnetdiscover::write(&topology))?;
        for on in &args.on {
            let emulator = on.emulator();
            let sides = [Side::Opensm, Side::Heddle];
            for (qos, side) in [false, true].into_iter().flat_map(|qos| sides.map(|side| (qos, side))) {
                if args.parts == [Part::Routing]
                    || (qos && (*hosts > args.qos_hosts || *on == On::HeddleFramed))
                {
                    continue;
                }
                let with = if qos { " with QoS" } else { "" };
                eprintln!("{hosts} hosts on {emulator:?}: {side:?}{with}");
                let row = measure(args, programs, &topology, &net, emulator, side, qos);
                report
                    .rows
                    .push(row.with_context(|| format!("{hosts} hosts on {emulator:?}, {side:?}{with}"))?);
            }
        }
    }
    crate::print(args.json, &report, table::markdown)
}

fn route(hosts: u32, topology: &Topology) -> anyhow::Result<Routing> {
    let (_, host) = topology.end_nodes().next().context("a fabric without hosts")?;
    let (_, port) = host.ports().next().context("a host without ports")?;
    let intents = Intents::new(port.guid);
    let started = Instant::now();
    let plan = compile(topology, &intents, &Decisions::default())?;
    let plan_s = started.elapsed().as_secs_f64();
    ensure!(plan.adapter_ports().len() as u64 == u64::from(hosts), "a plan without some of the hosts");
    Ok(Routing { hosts, plan_s })
}

fn measure(
    args: &BenchSmArgs,
    programs: &Programs,
    topology: &Topology,
    net: &Path,
    emulator: Emulator,
    side: Side,
    qos: bool,
) -> anyhow::Result<Row> {
    let arena = Arena::start(programs, topology, net, emulator, &format!("{side:?}-{qos}"))?;
    let directory = net.with_extension(format!("{emulator:?}-{side:?}-{qos}"));
    let setup = Setup {
        heddle: &programs.heddle,
        name: &arena.name,
        framed: arena.framed.as_deref(),
        node: arena.manager_id()?,
        directory: &directory,
        qos,
        engine: &args.engine,
    };
    let mut manager = ManagerProcess::start(side, &setup)?;
    let up = manager.wait_up()?;
    let bring_up = BringUp {
        up_s: up.as_secs_f64(),
        cpu_s: manager.cpu()?.as_secs_f64(),
        peak_mib: manager.peak_kib() as f64 / 1024.0,
        requests: arena.requests()?,
    };
    let before = manager.cpu()?;
    manager.wait_idle(before)?;
    let wanted = |part: Part| args.parts.contains(&part) && !qos;
    let partition = (wanted(Part::Partition) && emulator != Emulator::HeddleFramed)
        .then(|| Outcome::of(change::partition(&arena, &setup, &mut manager), "partition change"));
    let paths = wanted(Part::Paths)
        .then(|| Outcome::of(sa::request(&arena, &manager, Requested::Paths, args.query_s), "path queries"));
    let link = (wanted(Part::Link) && emulator == Emulator::Heddle)
        .then(|| Outcome::of(change::link(&arena, &mut manager), "link failure"));
    eprintln!("  up after {:.2} s; the emulation used {:.2?}", bring_up.up_s, arena.server.cpu_time()?);
    drop(manager);
    let joins = wanted(Part::Joins).then(|| {
        let arena = Arena::start(programs, topology, net, emulator, &format!("{side:?}-joins"))?;
        let directory = directory.with_extension(format!("{emulator:?}-{side:?}-joins"));
        let framed = arena.framed.as_deref();
        let setup = Setup { name: &arena.name, framed, directory: &directory, ..setup.clone() };
        joins(args, &arena, &setup, side)
    });
    let joins = joins.map(|result| Outcome::of(result, "joins"));
    Ok(Row { hosts: arena.hosts, on: emulator, side, qos, bring_up, partition, link, paths, joins })
}

/// Joins of multicast groups, of a manager that has a partition with IPoIB.
fn joins(args: &BenchSmArgs, arena: &Arena, setup: &Setup, side: Side) -> anyhow::Result<SaRequests> {
    std::fs::create_dir_all(setup.directory)?;
    std::fs::write(setup.partitions(), manager::ALL_HOSTS_IPOIB)?;
    let mut manager = ManagerProcess::start(side, setup)?;
    manager.wait_up()?;
    let before = manager.cpu()?;
    manager.wait_idle(before)?;
    sa::request(arena, &manager, Requested::Joins, args.query_s)
}
