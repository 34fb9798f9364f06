//! `heddle-bench sim`: the emulated fabric, ibsim, and a server that does nothing, behind the same sockets.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use fabric_model::generate::FatTree;
use fabric_model::ibnetdiscover;
use ib_transport::ibsim::{DataMessage, DataStatus, IbsimClient, SocketName};
use ib_transport::{ClientDatagram, FabricBackend, Outbox, Server, Vendor};
use ib_wire::{
    Attribute, Datagram, DirectedRoute, Gid, Guid, Lid, LidAddress, Mad, Method, PortNum, PortState,
    QueuePair, TransactionId,
};
use serde::Serialize;

use bench::Programs;
use bench::process::{Emulator, ServerProcess, pin};
use bench::scratch::ScratchDir;

/// Compare `heddle sim` with the installed ibsim and with an echo server.
///
/// Prints Markdown: requests per second and server CPU per request for Get(NodeInfo) over three hops, with client and
/// server on one core and on two; then load time and memory. Servers take turns in every round; each figure is the best
/// of the rounds, so compare ratios.
#[derive(Debug, Args)]
pub struct BenchSimArgs {
    /// Sizes of the fat-trees to load, in hosts; requests are measured on the first.
    #[arg(long, value_delimiter = ',', default_values_t = [1944, 11664])]
    hosts: Vec<u32>,
    /// Requests of each measurement.
    #[arg(long, default_value_t = 200_000)]
    requests: u32,
    /// Rounds; the best of them counts.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Requests kept in flight, one measurement each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 32])]
    outstanding: Vec<usize>,
    /// Print the figures as JSON instead of Markdown.
    #[arg(long)]
    json: bool,
}

const EMULATORS: [Emulator; 3] = [Emulator::Ibsim, Emulator::Heddle, Emulator::Echo];

/// Where client and server run. On one core they take turns, and every message waits for the other side's turn; on
/// two, every message crosses from one core's caches to the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    OneCore,
    TwoCores,
}

impl Placement {
    pub const ALL: [Self; 2] = [Self::OneCore, Self::TwoCores];

    /// Number of cores.
    pub fn count(self) -> u32 {
        match self {
            Self::OneCore => 1,
            Self::TwoCores => 2,
        }
    }

    /// Pins a server and this process to their cores.
    pub fn take(self, server: &ServerProcess) -> anyhow::Result<()> {
        server.pin(0)?;
        pin(std::process::id(), self.count() - 1)
    }
}

/// The best figures of one server at one number of requests in flight.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Throughput {
    pub requests_per_s: f64,
    pub cpu_us_per_request: f64,
}

impl Throughput {
    /// Sends a request `requests` times, with `outstanding` in flight.
    pub fn measure(
        client: &mut IbsimClient,
        server: &ServerProcess,
        template: &DataMessage,
        requests: u32,
        outstanding: usize,
    ) -> anyhow::Result<Self> {
        let cpu_before = server.cpu_time()?;
        let elapsed = drive(client, template, requests, outstanding)?;
        let cpu = server.cpu_time()? - cpu_before;
        Ok(Self {
            requests_per_s: f64::from(requests) / elapsed.as_secs_f64(),
            cpu_us_per_request: cpu.as_secs_f64() * 1e6 / f64::from(requests),
        })
    }

    /// The best of both.
    pub fn improve(&mut self, seen: Self) {
        self.requests_per_s = self.requests_per_s.max(seen.requests_per_s);
        self.cpu_us_per_request = self.cpu_us_per_request.min(seen.cpu_us_per_request);
    }
}

/// The best figures of one server loading one fabric.
#[derive(Clone, Copy, Debug, Serialize)]
struct Loading {
    load_ms: f64,
    load_cpu_ms: f64,
    resident_mib: f64,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    requests_hosts: u32,
    throughput: BTreeMap<Placement, BTreeMap<usize, BTreeMap<Emulator, Throughput>>>,
    loading: BTreeMap<u32, BTreeMap<Emulator, Loading>>,
}

/// Measures, and prints the figures.
pub fn run(args: &BenchSimArgs, programs: &Programs) -> anyhow::Result<()> {
    ensure!(
        !args.hosts.is_empty() && args.rounds > 0 && args.requests > 0,
        "--hosts, --rounds and --requests must not be empty or 0"
    );
    let scratch = ScratchDir::new("bench-sim")?;
    let report = measure(args, programs, scratch.path())?;
    crate::print(args.json, &report, markdown)
}

fn measure(args: &BenchSimArgs, programs: &Programs, directory: &Path) -> anyhow::Result<Report> {
    let mut report = Report { requests_hosts: args.hosts[0], ..Report::default() };
    for (index, hosts) in args.hosts.iter().enumerate() {
        let net = directory.join(format!("net-{hosts}"));
        std::fs::write(&net, ibnetdiscover::write(&FatTree::with_hosts(*hosts).generate()?))?;
        for round in 0..args.rounds {
            for emulator in EMULATORS {
                eprintln!("{hosts} hosts, round {} of {}: {emulator:?}", round + 1, args.rounds);
                let name = format!("heddle-bench-{}-{emulator:?}", std::process::id()).to_lowercase();
                let server = ServerProcess::start(
                    &mut emulator.command(programs, &net, &name),
                    &SocketName::new(&name)?,
                )?;
                if emulator != Emulator::Echo {
                    note_loading(&mut report, *hosts, emulator, &server)?;
                }
                if index == 0 {
                    note_throughput(&mut report, args, emulator, &server)?;
                }
            }
        }
    }
    Ok(report)
}

fn note_loading(
    report: &mut Report,
    hosts: u32,
    emulator: Emulator,
    server: &ServerProcess,
) -> anyhow::Result<()> {
    let seen = Loading {
        load_ms: server.load_time.as_secs_f64() * 1e3,
        load_cpu_ms: server.load_cpu.as_secs_f64() * 1e3,
        resident_mib: server.resident_kib()? as f64 / 1024.0,
    };
    let best = report.loading.entry(hosts).or_default().entry(emulator).or_insert(seen);
    best.load_ms = best.load_ms.min(seen.load_ms);
    best.load_cpu_ms = best.load_cpu_ms.min(seen.load_cpu_ms);
    best.resident_mib = best.resident_mib.min(seen.resident_mib);
    Ok(())
}

fn note_throughput(
    report: &mut Report,
    args: &BenchSimArgs,
    emulator: Emulator,
    server: &ServerProcess,
) -> anyhow::Result<()> {
    let mut client = server.client()?;
    let template = three_hops()?;
    for placement in Placement::ALL {
        placement.take(server)?;
        for outstanding in &args.outstanding {
            let seen = Throughput::measure(&mut client, server, &template, args.requests, *outstanding)?;
            let emulators = report.throughput.entry(placement).or_default().entry(*outstanding).or_default();
            emulators.entry(emulator).or_insert(seen).improve(seen);
        }
    }
    Ok(())
}

/// Get(NodeInfo) from the first switch of a fat-tree up and down again.
fn three_hops() -> anyhow::Result<DataMessage> {
    const ROUTE: [u8; 3] = [19, 2, 1];
    let route = DirectedRoute::new(ROUTE.iter().filter_map(|port| PortNum::new(*port))).context("route")?;
    Ok(DataMessage {
        dlid: Some(LidAddress::Permissive),
        slid: Some(LidAddress::Permissive),
        dqp: QueuePair::SUBNET_MANAGEMENT,
        sqp: QueuePair::SUBNET_MANAGEMENT,
        status: DataStatus::Ok,
        mad: Mad::directed(Method::GET, Attribute::NODE_INFO, 0, &route),
    })
}

/// Sends `requests` requests, keeping `outstanding` in flight, until all are answered.
fn drive(
    client: &mut IbsimClient,
    template: &DataMessage,
    requests: u32,
    outstanding: usize,
) -> anyhow::Result<Duration> {
    let request = |number: u32| {
        let mut message = template.clone();
        message.mad.set_transaction(TransactionId(number.into()));
        message
    };
    let started = Instant::now();
    let mut batch: Vec<DataMessage> = Vec::with_capacity(outstanding);
    let (mut sent, mut answered) = (0, 0);
    let mut answers = Vec::with_capacity(IbsimClient::RECEIVE_BATCH_MAX);
    while answered < requests {
        batch.clear();
        while sent < requests && ((sent - answered) as usize) < outstanding {
            batch.push(request(sent));
            sent += 1;
        }
        client.send_batch(&batch)?;
        answers.clear();
        let count = client.receive_batch(&mut answers, Duration::from_secs(10))?;
        ensure!(count > 0, "a request was not answered");
        ensure!(answers.iter().all(|answer| answer.status == DataStatus::Ok), "a request was lost");
        answered += count as u32;
    }
    Ok(started.elapsed())
}

fn markdown(report: &Report) -> String {
    let mut text = format!(
        "Get(NodeInfo) over three hops on {} hosts; server CPU in µs per request.\n\n\
         | cores | in flight | ibsim req/s | heddle req/s | ratio | ceiling req/s | ibsim CPU | heddle CPU | ratio | ceiling CPU |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        report.requests_hosts
    );
    let rows =
        report.throughput.iter().flat_map(|(placement, rows)| rows.iter().map(move |row| (placement, row)));
    for (placement, (outstanding, emulators)) in rows {
        let cores = placement.count();
        let [ibsim, heddle, nothing] =
            EMULATORS.map(|emulator| emulators.get(&emulator).copied().unwrap_or_default());
        text += &format!(
            "| {cores} | {outstanding} | {:.0} | {:.0} | **{:.2}** | {:.0} | {:.2} | {:.2} | **{:.2}** | {:.2} |\n",
            ibsim.requests_per_s,
            heddle.requests_per_s,
            heddle.requests_per_s / ibsim.requests_per_s,
            nothing.requests_per_s,
            ibsim.cpu_us_per_request,
            heddle.cpu_us_per_request,
            heddle.cpu_us_per_request / ibsim.cpu_us_per_request,
            nothing.cpu_us_per_request,
        );
    }
    text += "\nThe ceiling is a server that answers every request with itself.\n\n\
             | hosts | ibsim load ms | heddle load ms | ratio | ibsim CPU ms | heddle CPU ms | ibsim MiB | heddle MiB | ratio |\n\
             |---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    for (hosts, emulators) in &report.loading {
        let (Some(ibsim), Some(heddle)) = (emulators.get(&Emulator::Ibsim), emulators.get(&Emulator::Heddle))
        else {
            continue;
        };
        text += &format!(
            "| {hosts} | {:.0} | {:.0} | **{:.2}** | {:.0} | {:.0} | {:.1} | {:.1} | **{:.2}** |\n",
            ibsim.load_ms,
            heddle.load_ms,
            heddle.load_ms / ibsim.load_ms,
            ibsim.load_cpu_ms,
            heddle.load_cpu_ms,
            ibsim.resident_mib,
            heddle.resident_mib,
            heddle.resident_mib / ibsim.resident_mib,
        );
    }
    text
}

/// Serves the sockets of an emulation and answers every request with itself, until it is ended.
pub fn echo(name: &str) -> anyhow::Result<()> {
    let mut server = Server::bind(name)?;
    server.run(&mut Echo, &AtomicBool::new(false))?;
    Ok(())
}

struct Echo;

impl FabricBackend for Echo {
    type Port = ();

    fn find_port(&self, _: &str) -> Option<()> {
        Some(())
    }
    fn node_id(&self, (): ()) -> String {
        String::new()
    }
    fn vendor(&self, (): ()) -> Vendor {
        Vendor::default()
    }
    fn node_info(&self, (): ()) -> [u8; 64] {
        [0; 64]
    }
    fn port_info(&self, (): (), _: u8) -> Option<[u8; 64]> {
        Some([0; 64])
    }
    fn pkeys(&self, (): ()) -> [u8; 64] {
        [0; 64]
    }
    fn port_state(&self, (): ()) -> (Option<Lid>, PortState) {
        (None, PortState::Initialize)
    }
    fn port_guid(&self, (): ()) -> Guid {
        Guid::from_wire(1).expect("1 is not 0")
    }
    fn port_gid(&self, (): ()) -> Gid {
        Gid::default()
    }
    fn set_is_sm(&mut self, (): (), _: bool) {}
    fn handle(&mut self, (): (), sent: ClientDatagram, outbox: &mut Outbox<()>) {
        let mut mad = match sent {
            ClientDatagram::Ibsim { message, .. } => message.mad,
            ClientDatagram::Framed { datagram, .. } => datagram.mad,
        };
        mad.set_method(Method::GET_RESP);
        outbox.deliver((), Datagram::subnet_management(LidAddress::Permissive, LidAddress::Permissive, mad));
    }
    fn tick(&mut self, _: &mut Outbox<()>) -> Option<Duration> {
        None
    }
}
