//! `heddle-bench failover`: a master is killed, stopped or cut off, and a host asks until somebody answers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use fabric_model::generate::FatTree;
use fabric_model::{NodeIndex, Topology, ibnetdiscover};
use ib_transport::ClientRole;
use ib_transport::ibsim::{DataMessage, DataStatus, IbsimClient, SocketName};
use ib_wire::sa::PathRecord;
use ib_wire::{
    Attribute, Gid, Guid, LidAddress, Mad, ManagementClass, Method, PortInfo, QueuePair, Status,
    TransactionId,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::sim_control;
use bench::Programs;
use bench::probe::{Probe, SmpRead};
use bench::process::{Emulator, ServerProcess};
use bench::scratch::{ScratchDir, unique};
use bench::stock::Stock;

/// Longest time without an answer.
const SILENCE_MAX: Duration = Duration::from_secs(180);
/// Longest time until a manager that comes back follows the master.
const CATCH_UP_MAX: Duration = Duration::from_secs(60);
/// Interval of the questions.
const INTERVAL: Duration = Duration::from_millis(20);
/// Time in which a former master may disturb.
const AFTERWARDS: Duration = Duration::from_millis(2500);
/// Time from the start of a programming run to its end by force.
const INTO_A_RUN: Duration = Duration::from_millis(15);

/// Two managers, `heddle sm` or opensm, and a host that sends a path query to the LID in its PortInfo every 20 ms: time from a fault
/// of the master until it is answered again.
#[derive(Debug, Args)]
pub struct FailoverArgs {
    /// Sizes of the fat-trees, in hosts.
    #[arg(long, value_delimiter = ',', default_values_t = [324, 1944])]
    hosts: Vec<u32>,
    /// Faults of the master.
    #[arg(long, value_delimiter = ',', default_values = ["kill", "stop", "cable", "programming"])]
    faults: Vec<Fault>,
    /// Rounds of each fault.
    #[arg(long, default_value_t = 50)]
    rounds: u32,
    /// Rounds in which opensm's master is killed.
    #[arg(long, default_value_t = 1)]
    opensm_rounds: u32,
    /// Print the figures as JSON instead of Markdown.
    #[arg(long)]
    json: bool,
}

/// What happens to the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Fault {
    /// It is killed (SIGKILL), and started again after the takeover.
    Kill,
    /// SIGSTOP, and SIGCONT after the takeover.
    Stop,
    /// Its cable is pulled, and plugged after the takeover.
    Cable,
    /// SIGKILL in the middle of a programming run.
    Programming,
}

/// One fault on one fabric.
#[derive(Debug, Serialize)]
struct Row {
    hosts: u32,
    manager: &'static str,
    fault: Fault,
    /// Seconds until an answer, ascending.
    seconds: Vec<f64>,
    /// End ports of the fabric.
    ports: usize,
    /// Sets of PortInfo that the new master sent until the host got its answer, of the median round.
    port_infos: u64,
    /// Its other Sets, of all rounds together, by attribute.
    others: BTreeMap<String, u64>,
    /// Sets of a master that was stopped or cut off, after it continued, of all rounds together.
    stray: u64,
}

/// Measures all faults on all fabrics, and prints a row for each.
pub fn run(args: &FailoverArgs, programs: &Programs) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let measured = measure(args, programs, &mut rows);
    // What was measured before something failed took long.
    crate::print(args.json, &rows, |rows| markdown(rows))?;
    measured
}

fn measure(args: &FailoverArgs, programs: &Programs, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    for hosts in &args.hosts {
        let topology = FatTree::with_hosts(*hosts).generate()?;
        for fault in &args.faults {
            rows.push(with_heddle(*hosts, &topology, *fault, args.rounds, programs)?);
        }
        if args.opensm_rounds > 0 {
            rows.push(with_opensm(*hosts, &topology, args.opensm_rounds, programs)?);
        }
    }
    Ok(())
}

/// A host that asks.
struct Witness {
    client: IbsimClient,
    own: Guid,
    name: SocketName,
    node: NodeIndex,
    number: u32,
}

impl Witness {
    fn attach(name: &SocketName, node: NodeIndex, topology: &Topology) -> anyhow::Result<Self> {
        let there = topology.node(node).context("no such node")?;
        let (_, port) = there.ports().next().context("a host without ports")?;
        let client = IbsimClient::connect(name, &there.id, ClientRole::Ordinary)?;
        Ok(Self { client, own: port.guid, name: name.clone(), node, number: 0 })
    }

    /// Asks until there is an answer.
    fn wait_answer(&mut self, topology: &Topology) -> anyhow::Result<Duration> {
        let start = Instant::now();
        let mut probe = Probe::attach(&self.name, self.node, topology)?;
        let here = SmpRead { route: Default::default(), attribute: Attribute::PORT_INFO, modifier: 0 };
        let mut answers = Vec::new();
        while start.elapsed() < SILENCE_MAX {
            let info = probe.read(std::slice::from_ref(&here))?;
            let info = info.first().and_then(|raw| PortInfo::decode(raw).ok()).context("no PortInfo")?;
            if let (Some(lid), Some(manager)) = (info.lid, info.master_sm_lid) {
                self.number += 1;
                let mad = self.question()?;
                let message = DataMessage {
                    dlid: Some(LidAddress::from(manager)),
                    slid: Some(LidAddress::from(lid)),
                    dqp: QueuePair::GENERAL_MANAGEMENT,
                    sqp: QueuePair::GENERAL_MANAGEMENT,
                    status: DataStatus::Ok,
                    mad,
                };
                self.client.send_batch(&[message])?;
            }
            answers.clear();
            self.client.receive_batch(&mut answers, INTERVAL)?;
            let is_answer = |answer: &DataMessage| {
                answer.status == DataStatus::Ok
                    && answer.mad.method() == Method::GET_RESP
                    && answer.mad.status() == Status::OK
            };
            if answers.iter().any(is_answer) {
                return Ok(start.elapsed());
            }
            std::thread::sleep(INTERVAL);
        }
        bail!("no answer for {SILENCE_MAX:?}")
    }

    /// Drops answers to earlier questions.
    fn drain(&mut self) -> anyhow::Result<()> {
        let mut answers = Vec::new();
        while self.client.receive_batch(&mut answers, Duration::from_millis(1))? > 0 {
            answers.clear();
        }
        Ok(())
    }

    /// The path to itself, which every manager allows.
    fn question(&self) -> anyhow::Result<Mad> {
        let mut mad =
            Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET, Attribute::PATH_RECORD, 0);
        let mut record = PathRecord::decode(&[0; PathRecord::LEN]).context("an empty record")?;
        record.sgid = Gid::unicast(Gid::DEFAULT_PREFIX, self.own);
        record.dgid = record.sgid;
        (record.is_reversible, record.path_count) = (true, 1);
        let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::IS_REVERSIBLE | PathRecord::PATH_COUNT;
        mad.set_component_mask(mask);
        mad.sa_data_mut()[..PathRecord::LEN].copy_from_slice(&record.encode());
        mad.set_transaction(TransactionId(self.number.into()));
        Ok(mad)
    }
}

/// An emulation with its hosts.
struct Arena<'a> {
    topology: &'a Topology,
    hosts: Vec<NodeIndex>,
    name: String,
    scratch: ScratchDir,
    _server: ServerProcess,
}

impl<'a> Arena<'a> {
    fn start(topology: &'a Topology, programs: &Programs) -> anyhow::Result<Self> {
        let scratch = ScratchDir::new("failover")?;
        let net = scratch.path().join("net");
        fs::write(&net, ibnetdiscover::write(topology))?;
        let name = unique("failover");
        let socket = SocketName::new(&name)?;
        let mut command = Emulator::Heddle.command(programs, &net, &name);
        let server = ServerProcess::start(&mut command, &socket)?;
        let hosts = topology.end_nodes().map(|(index, _)| index).collect();
        Ok(Self { topology, hosts, name, scratch, _server: server })
    }

    /// The hosts of the two managers, and that of the witness.
    fn places(&self) -> anyhow::Result<[NodeIndex; 3]> {
        let last = self.hosts.len().checked_sub(1).context("no hosts")?;
        Ok([self.hosts[0], self.hosts[last], self.hosts[last / 2]])
    }

    fn node(&self, index: NodeIndex) -> anyhow::Result<(String, Guid)> {
        let node = self.topology.node(index).context("no such node")?;
        let (_, port) = node.ports().next().context("a host without ports")?;
        Ok((node.id.clone(), port.guid))
    }

    fn control(&self, request: &Value) -> anyhow::Result<Value> {
        sim_control::ask(self.scratch.path(), &self.name, request)
    }

    /// Sets that the manager at a node has sent, by attribute.
    fn sets_of(&self, node: &str) -> anyhow::Result<BTreeMap<String, u64>> {
        let status = self.control(&json!({ "command": "status" }))?;
        let sets = status["requests"][node]["set"].as_object();
        let sets = sets.into_iter().flatten();
        Ok(sets.filter_map(|(attribute, count)| Some((attribute.clone(), count.as_u64()?))).collect())
    }
}

/// A `heddle sm` with another declared.
struct HeddleManager {
    command: Vec<String>,
    heddle: PathBuf,
    said: PathBuf,
    socket: PathBuf,
    node: String,
    guid: Guid,
    child: Option<Child>,
}

impl HeddleManager {
    fn start(&mut self) -> anyhow::Result<()> {
        let said = File::options().create(true).append(true).open(&self.said)?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.heddle).args(&self.command);
        command.stdin(Stdio::null()).stderr(said.try_clone()?).stdout(said);
        self.child = Some(command.spawn().context("cannot start heddle sm")?);
        Ok(())
    }

    fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let child = self.child.as_ref().context("the manager does not run")?;
        let status = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status()?;
        ensure!(status.success(), "cannot send SIG{signal}");
        Ok(())
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    fn status(&self) -> anyhow::Result<Value> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        writeln!(stream, "{}", json!({ "command": "status" }))?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        let reply: Value = serde_json::from_str(&line)?;
        Ok(reply["ok"].clone())
    }

    /// The end of what it said.
    fn last_lines(&self) -> String {
        let said = fs::read_to_string(&self.said).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    fn is_master(&self) -> bool {
        self.status().is_ok_and(|status| status["role"] == "master")
    }

    /// Whether this master's changes are stored by the other manager.
    fn is_followed_by(&self, other: Guid) -> bool {
        let has = |status: &Value| {
            let standbys = status["standbys"].as_array();
            standbys.is_some_and(|standbys| standbys.iter().any(|it| *it == json!(other)))
        };
        self.status().is_ok_and(|status| has(&status))
    }
}

impl Drop for HeddleManager {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.kill();
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> anyhow::Result<()> {
    let start = Instant::now();
    while !is_so() {
        ensure!(start.elapsed() < CATCH_UP_MAX, "{what}: not within {CATCH_UP_MAX:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn with_heddle(
    hosts: u32,
    topology: &Topology,
    fault: Fault,
    rounds: u32,
    programs: &Programs,
) -> anyhow::Result<Row> {
    let arena = Arena::start(topology, programs)?;
    let [first, second, witness] = arena.places()?;
    let partitions = arena.scratch.path().join("partitions.conf");
    fs::write(&partitions, "all-hosts=0x7ffe, ipoib : ALL_CAS=full;\n")?;
    let mut pair = Vec::new();
    for (number, (own, other)) in [(first, second), (second, first)].into_iter().enumerate() {
        pair.push(heddle_manager(&arena, programs, &partitions, number, own, other)?);
    }
    let socket = SocketName::new(&arena.name)?;
    pair[0].start()?;
    wait_until("the first manager is the master", || pair[0].is_master())?;
    let mut asking = Witness::attach(&socket, witness, topology)?;
    asking.wait_answer(topology)?;
    pair[1].start()?;
    let mut master = 0;
    let (mut seconds, mut port_infos, mut others, mut stray) = (Vec::new(), Vec::new(), BTreeMap::new(), 0);
    for round in 0..rounds {
        let other = 1 - master;
        wait_until("the standby manager follows", || pair[master].is_followed_by(pair[other].guid))?;
        std::thread::sleep(Duration::from_millis(500));
        asking.drain()?;
        let (node, successor) = (pair[master].node.clone(), pair[other].node.clone());
        let before = arena.sets_of(&successor)?;
        match fault {
            Fault::Kill => pair[master].kill()?,
            Fault::Stop => pair[master].signal("STOP")?,
            Fault::Cable => drop(arena.control(&json!({ "command": "link-down", "node": node, "port": 1 }))?),
            Fault::Programming => {
                let more = format!(
                    "all-hosts=0x7ffe, ipoib : ALL_CAS=full;\nround-{round}={:#x} : ALL_CAS=full;\n",
                    0x100 + round
                );
                fs::write(&partitions, more)?;
                pair[master].signal("HUP")?;
                std::thread::sleep(INTO_A_RUN);
                pair[master].kill()?;
            }
        }
        let answered = asking.wait_answer(topology);
        let answered =
            answered.with_context(|| format!("the successor said:\n{}", pair[other].last_lines()))?;
        seconds.push(answered.as_secs_f64());
        let mut sets = added(&before, arena.sets_of(&successor)?);
        port_infos.push(sets.remove("PORT_INFO").unwrap_or(0));
        sets.into_iter().for_each(|(attribute, count)| *others.entry(attribute).or_insert(0) += count);
        let before = arena.sets_of(&node)?;
        match fault {
            Fault::Kill | Fault::Programming => pair[master].start()?,
            Fault::Stop => pair[master].signal("CONT")?,
            Fault::Cable => drop(arena.control(&json!({ "command": "link-up", "node": node, "port": 1 }))?),
        }
        std::thread::sleep(AFTERWARDS);
        stray += added(&before, arena.sets_of(&node)?).values().sum::<u64>();
        ensure!(!pair[master].is_master(), "two masters");
        master = other;
        eprintln!(
            "heddle-bench: {hosts} hosts, {fault:?}, round {round}: {:.2} s",
            seconds[seconds.len() - 1]
        );
    }
    seconds.sort_by(f64::total_cmp);
    port_infos.sort_unstable();
    Ok(Row {
        hosts,
        manager: "heddle sm",
        fault,
        seconds,
        ports: topology.node_count(),
        port_infos: port_infos.get(port_infos.len() / 2).copied().unwrap_or(0),
        others,
        stray,
    })
}

/// The differences of two maps of counts, where a count has grown.
fn added(before: &BTreeMap<String, u64>, mut after: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    for (attribute, count) in before {
        after.entry(attribute.clone()).and_modify(|after| *after -= count);
    }
    after.retain(|_, count| *count > 0);
    after
}

fn heddle_manager(
    arena: &Arena<'_>,
    programs: &Programs,
    partitions: &Path,
    number: usize,
    own: NodeIndex,
    other: NodeIndex,
) -> anyhow::Result<HeddleManager> {
    let ((node, guid), (_, peer)) = (arena.node(own)?, arena.node(other)?);
    let file = |name: String| arena.scratch.path().join(name);
    let socket = file(format!("sm-{number}.sock"));
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let command = [
        "sm".to_owned(),
        "--device".to_owned(),
        format!("ibsim:{}@{node}", arena.name),
        "--state".to_owned(),
        text(&file(format!("state-{number}.json"))),
        "--partitions".to_owned(),
        text(partitions),
        "--control".to_owned(),
        text(&socket),
        "--peer".to_owned(),
        format!("{peer}={}", file(format!("sm-{}.sock", 1 - number)).display()),
        "--priority".to_owned(),
        (15 - number).to_string(),
    ];
    Ok(HeddleManager {
        command: command.to_vec(),
        heddle: programs.heddle.clone(),
        said: file(format!("said-{number}")),
        socket,
        node,
        guid,
        child: None,
    })
}

fn with_opensm(hosts: u32, topology: &Topology, rounds: u32, programs: &Programs) -> anyhow::Result<Row> {
    let mut seconds = Vec::new();
    for _ in 0..rounds {
        let arena = Arena::start(topology, programs)?;
        let [first, second, witness] = arena.places()?;
        let mut managers = Vec::new();
        for (number, (place, priority)) in [(first, "14"), (second, "5")].into_iter().enumerate() {
            let (node, _) = arena.node(place)?;
            let directory = arena.scratch.path().join(format!("opensm-{number}"));
            let stock = Stock::new(&arena.name, &node, &directory)?;
            let mut command = stock.command("setpriv");
            command.args(["--pdeathsig", "KILL", "--", "opensm", "-p", priority, "-f"]);
            command.arg(directory.join("opensm.log")).stdin(Stdio::null());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            managers.push(command.spawn().context("cannot start opensm")?);
            // The second finds the first as the master.
            std::thread::sleep(Duration::from_secs(if number == 0 { 8 } else { 15 }));
        }
        let mut asking = Witness::attach(&SocketName::new(&arena.name)?, witness, topology)?;
        asking.wait_answer(topology)?;
        asking.drain()?;
        managers[0].kill()?;
        managers[0].wait()?;
        let answered = asking.wait_answer(topology);
        managers[1].kill()?;
        managers[1].wait()?;
        seconds.push(answered?.as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let ports = topology.node_count();
    let fault = Fault::Kill;
    let others = BTreeMap::new();
    Ok(Row { hosts, manager: "opensm", fault, seconds, ports, port_infos: 0, others, stray: 0 })
}

fn markdown(rows: &[Row]) -> String {
    let mut text = "| hosts | manager | fault of the master | rounds | seconds until an answer: least | median | most | \
                    end ports | Sets of PortInfo, median | other Sets, all rounds | Sets of the former master, all rounds \
                    |\n|---|---|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for row in rows {
        let fault = format!("{:?}", row.fault).to_lowercase();
        let second = |index: usize| row.seconds.get(index).copied().unwrap_or(f64::NAN);
        let count = row.seconds.len();
        let sets = |text: String| if row.manager == "opensm" { "-".to_owned() } else { text };
        let others: Vec<String> = row.others.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let others = if others.is_empty() { "0".to_owned() } else { others.join(", ") };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {fault} | {count} | {:.2} | {:.2} | {:.2} | {} | {} | {} | {} |",
            row.hosts,
            row.manager,
            second(0),
            second(count / 2),
            second(count.saturating_sub(1)),
            row.ports,
            sets(row.port_infos.to_string()),
            sets(others),
            sets(row.stray.to_string()),
        );
    }
    text
}
