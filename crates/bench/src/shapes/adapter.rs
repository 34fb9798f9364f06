//! Functions of one adapter that send to as many of another, all at once.

use std::fmt::Write as _;

use anyhow::{Context, ensure};
use fabric_compiler::{compile, partitions_conf};
use fabric_model::{
    Decisions, Endpoint, Intents, LinkRate, NewNode, NodeIndex, Speed, Topology, TopologyBuilder, Width,
};
use fabric_sim::traffic::{
    HEADER_BYTES, Message, Service, Simulation, Tag, Time, TrafficNetwork, TrafficSettings, Workload,
    WorkloadActions,
};
use fabric_sim::{Capacities, Fabric, FunctionId, PortId};
use ib_wire::{Guid, Lid, Membership, NodeKind, PartitionNumber, Pkey, PortNum, ServiceLevel};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;
use serde::Serialize;

use super::{ShapesArgs, port_guids};

/// A size of messages between functions of shared adapters.
#[derive(Debug, Serialize)]
pub struct Row {
    bytes: u64,
    pub shared: Vec<SharedAdapter>,
    /// Between two functions of the same adapter.
    inside_latency_us: f64,
    inside_gbps: f64,
}

/// Figures for one number of virtual functions.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SharedAdapter {
    functions: u8,
    latency_us: f64,
    /// Payload of all functions.
    pub gbps: f64,
    /// Payload of the slowest and of the fastest function.
    pub least_gbps: f64,
    pub most_gbps: f64,
}

/// The links of FermiCloud: 16 Gb/s once the line code is taken off (section III.A).
const ADAPTER_RATE: LinkRate = LinkRate { speed: Speed::Ddr, width: Width::X4 };

/// Warm-up time, and measured time.
const SHARED_WARM_UP: Time = Time::from_us(200);
const SHARED_TIME: Time = Time::from_us(4000);

/// Functions begin at different moments within this.
const STAGGER_PS: u64 = 5_000_000;

/// Guests take longer or shorter to answer by up to this, so that they do not fall into step.
const JITTER_PERCENT: u64 = 10;

/// The partition that all adapters are in.
const LAB: u16 = 0x101;

/// Latency and throughput for every size of messages.
pub fn measure(args: &ShapesArgs) -> anyhow::Result<Vec<Row>> {
    let pair = Pair::new()?;
    let mut rows = Vec::new();
    for bytes in &args.sizes {
        eprintln!("messages of {bytes} bytes between shared adapters");
        let mut shared = Vec::new();
        for functions in &args.functions {
            let latency_us = pair.latency_us(args, *functions, *bytes, pair.ends[1])?;
            let rates = pair.rates_gbps(args, *functions, *bytes, pair.ends[1])?;
            shared.push(SharedAdapter {
                functions: *functions,
                latency_us,
                gbps: rates.iter().sum(),
                least_gbps: rates.iter().copied().fold(f64::INFINITY, f64::min),
                most_gbps: rates.iter().copied().fold(0.0, f64::max),
            });
        }
        let inside_latency_us = pair.latency_us(args, 1, *bytes, pair.ends[0])?;
        let inside_gbps = pair.rates_gbps(args, 1, *bytes, pair.ends[0])?.iter().sum();
        rows.push(Row { bytes: *bytes, shared, inside_latency_us, inside_gbps });
    }
    Ok(rows)
}

/// Two hosts at one switch.
struct Pair {
    fabric: Fabric,
    ends: [(PortId, Lid); 2],
    pkey: Pkey,
}

impl Pair {
    fn new() -> anyhow::Result<Self> {
        let topology = one_switch()?;
        let mut intents = Intents::new(port_guids(&topology)[0]);
        intents.partitions = partitions_conf::parse(&format!("lab={LAB:#x} : ALL_CAS=full;"))?;
        let plan = compile(&topology, &intents, &Decisions::default())?;
        let mut fabric = Fabric::new(topology, Capacities::default(), 0)?;
        fabric.install(&plan)?;
        let ports = plan.adapter_ports().map(|port| {
            let device = fabric.device_by_guid(port.name.node)?;
            Some((fabric.port_of(device, port.name.port)?, port.lid))
        });
        let ends: Option<Vec<(PortId, Lid)>> = ports.collect();
        let ends = ends.and_then(|ends| ends.try_into().ok()).context("not two hosts")?;
        let number = PartitionNumber::from_wire(LAB).context("a partition number")?;
        Ok(Self { fabric, ends, pkey: number.key(Membership::Full) })
    }

    /// Half of the mean round-trip time, of functions that all do the same.
    fn latency_us(
        &self,
        args: &ShapesArgs,
        functions: u8,
        bytes: u64,
        to: (PortId, Lid),
    ) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for seed in &args.seeds {
            let mut game = PingPong {
                pairs: (0..functions).map(|number| self.there_and_back(number, bytes, to)).collect(),
                answer: Time::from_ns(args.answer_ns),
                random: Pcg64::seed_from_u64(*seed),
                ended: 0,
            };
            let mut simulation =
                Simulation::new(TrafficNetwork::of(&self.fabric), TrafficSettings::default())?;
            simulation.run(&mut game, SHARED_WARM_UP);
            let before = game.ended;
            simulation.run(&mut game, SHARED_WARM_UP + SHARED_TIME);
            let ended = (game.ended - before) as f64 / f64::from(functions);
            ensure!(ended >= 1.0, "no message was answered");
            sum += SHARED_TIME.us() / ended / 2.0;
        }
        Ok(sum / args.seeds.len() as f64)
    }

    /// Messages of a function, and of the one that answers it. The answering one has another number, so that both may be at
    /// the same adapter.
    fn there_and_back(&self, number: u8, bytes: u64, to: (PortId, Lid)) -> [Message; 2] {
        let (here, back) = (self.ends[0], FunctionId::new(to.0, u8::MAX - number));
        let there = self.message(FunctionId::new(here.0, number), to.1, bytes, number);
        [there, Message { from: back, to: here.1, ..there }]
    }

    /// What arrives of each function's messages.
    fn rates_gbps(
        &self,
        args: &ShapesArgs,
        functions: u8,
        bytes: u64,
        to: (PortId, Lid),
    ) -> anyhow::Result<Vec<f64>> {
        let mut rates = vec![0.0; functions.into()];
        for seed in &args.seeds {
            let message = |number| self.message(FunctionId::new(self.ends[0].0, number), to.1, bytes, number);
            let mut stream = Stream {
                messages: (0..functions).map(message).collect(),
                posted: vec![Time::ZERO; functions.into()],
                post: Time::from_ns(args.post_ns),
                random: Pcg64::seed_from_u64(*seed),
            };
            let mut simulation =
                Simulation::new(TrafficNetwork::of(&self.fabric), TrafficSettings::default())?;
            let arrived = |simulation: &Simulation| -> Vec<u64> {
                let of =
                    |number: u8| simulation.measure(Tag(number.into())).map_or(0, |measure| measure.bytes);
                (0..functions).map(of).collect()
            };
            simulation.run(&mut stream, SHARED_WARM_UP);
            let before = arrived(&simulation);
            simulation.run(&mut stream, SHARED_WARM_UP + SHARED_TIME);
            for ((rate, after), before) in rates.iter_mut().zip(arrived(&simulation)).zip(before) {
                *rate += (after - before) as f64 * 8.0 / SHARED_TIME.s() / 1e9 / args.seeds.len() as f64;
            }
        }
        Ok(rates)
    }

    fn message(&self, from: FunctionId, to: Lid, bytes: u64, number: u8) -> Message {
        let service = Service::Data(ServiceLevel::default());
        let (tag, token) = (Tag(number.into()), u64::from(number));
        Message {
            from,
            to,
            service,
            pkey: self.pkey,
            bytes,
            packet_bytes: None,
            header_bytes: HEADER_BYTES,
            tag,
            token,
        }
    }
}

/// Two adapters at a switch.
fn one_switch() -> anyhow::Result<Topology> {
    let mut builder = TopologyBuilder::new();
    let mut add = |kind, number: u16, ports| -> anyhow::Result<NodeIndex> {
        let guid = Guid::from_wire(u64::from(number) << 16).context("a GUID")?;
        Ok(builder.add_node(NewNode::new(kind, format!("N-{number}"), guid, ports))?)
    };
    let switch = add(NodeKind::Switch, 1, 24)?;
    let hosts = [add(NodeKind::Adapter, 2, 1)?, add(NodeKind::Adapter, 3, 1)?];
    for (port, host) in (1..).zip(hosts) {
        let ends = PortNum::new(port).zip(PortNum::new(1));
        let (port, first) = ends.context("a port number")?;
        builder.connect(Endpoint::new(switch, port), Endpoint::new(host, first), Some(ADAPTER_RATE))?;
    }
    Ok(builder.build()?)
}

/// Functions that each send a message, get one back, and begin anew.
struct PingPong {
    /// The message and its answer.
    pairs: Vec<[Message; 2]>,
    /// Processing time of guest and function per message.
    answer: Time,
    random: Pcg64,
    /// Messages that came back.
    ended: u64,
}

/// The bit of a token that marks an answer.
const BACK: u64 = 1 << 32;

impl Workload for PingPong {
    fn start(&mut self, orders: &mut WorkloadActions) {
        for pair in 0..self.pairs.len() as u64 {
            orders.wake(Time::from_ps(self.random.random_range(0..STAGGER_PS)), pair);
        }
    }

    fn woken(&mut self, _: Time, token: u64, orders: &mut WorkloadActions) {
        let [there, back] = self.pairs[(token & !BACK) as usize];
        orders.post(Message { token, ..if token & BACK == 0 { there } else { back } });
    }

    fn delivered(&mut self, now: Time, message: &Message, _: Time, orders: &mut WorkloadActions) {
        self.ended += u64::from(message.token & BACK != 0);
        let percent = self.random.random_range(100 - JITTER_PERCENT..=100 + JITTER_PERCENT);
        let answer = Time::from_ps(self.answer.ps() / 100 * percent);
        orders.wake(now + answer, message.token ^ BACK);
    }
}

/// Functions that each post one message after the other, as fast as their guests can and packets leave.
struct Stream {
    messages: Vec<Message>,
    /// When each posted its last one.
    posted: Vec<Time>,
    /// Between two messages at least.
    post: Time,
    random: Pcg64,
}

impl Workload for Stream {
    fn start(&mut self, orders: &mut WorkloadActions) {
        for function in 0..self.messages.len() as u64 {
            orders.wake(Time::from_ps(self.random.random_range(0..STAGGER_PS)), function);
        }
    }

    fn woken(&mut self, now: Time, token: u64, orders: &mut WorkloadActions) {
        self.posted[token as usize] = now;
        orders.post(self.messages[token as usize]);
    }

    fn sent(&mut self, now: Time, message: &Message, orders: &mut WorkloadActions) {
        let next = self.posted[message.token as usize] + self.post;
        orders.wake(next.max(now), message.token);
    }
}

/// Tables of latency and throughput, and what the paper reports.
pub fn markdown(args: &ShapesArgs, rows: &[Row]) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut head = String::from("| bytes |");
    let mut rule = String::from("\n|---:|");
    for functions in &args.functions {
        write!(head, " {functions} |")?;
        rule += "---:|";
    }
    writeln!(
        text,
        "Functions of one adapter to as many of another, links of {ADAPTER_RATE}; guests take {} ns to answer a message and \
         {} ns to post one.\n\n\
         Latency in µs by the number of functions, and the latency of {} as a fraction of it:\n\n{head} 1, inside the adapter \
         |{rule}---:|",
        args.answer_ns, args.post_ns, args.functions[0],
    )?;
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    for row in rows {
        let first = row.shared[0].latency_us;
        let cell = |us: f64| format!(" {us:.2} ({}) |", percent(first / us));
        let cells: String = row.shared.iter().map(|shared| cell(shared.latency_us)).collect();
        writeln!(text, "| {} |{cells}{}", row.bytes, cell(row.inside_latency_us))?;
    }
    writeln!(
        text,
        "\nThroughput in Gb/s of payload, all functions together, as a multiple of {}; least and most of a function:\n\n\
         {head} 1, inside the adapter |{rule}---:|",
        args.functions[0],
    )?;
    for row in rows {
        let cell = |shared: &SharedAdapter| {
            let SharedAdapter { gbps, least_gbps, most_gbps, .. } = shared;
            format!(" {gbps:.2} (×{:.2}; {least_gbps:.2}–{most_gbps:.2}) |", gbps / row.shared[0].gbps)
        };
        let cells: String = row.shared.iter().map(cell).collect();
        let inside = row.inside_gbps;
        writeln!(text, "| {} |{cells} {inside:.2} (×{:.2}) |", row.bytes, inside / row.shared[0].gbps)?;
    }
    paper(args, rows, &mut text)?;
    Ok(text)
}

/// What the paper reports, next to the smallest and the largest messages and the most functions here. Its figures are
/// pictures: only what its text says of them is here.
fn paper(args: &ShapesArgs, rows: &[Row], text: &mut String) -> anyhow::Result<()> {
    let (Some(small), Some(large)) = (rows.first(), rows.last()) else { return Ok(()) };
    let one = args.functions[0];
    let most = args.functions[args.functions.len() - 1];
    let ends = |row: &Row| (row.shared[0], row.shared[row.shared.len() - 1]);
    let latency = |row: &Row| 100.0 * ends(row).0.latency_us / ends(row).1.latency_us;
    let throughput = |row: &Row| 100.0 * ends(row).1.gbps / ends(row).0.gbps;
    let inside = |row: &Row| 100.0 * row.shared[0].latency_us / row.inside_latency_us;
    let (few, many) = (small.bytes, large.bytes);
    writeln!(
        text,
        "\n| | Ruivo et al. (CCGrid 2014): ConnectX-2, 4xDDR, 1 to 7 VMs a host | here, {most} functions against {one} |\n\
         |---|---|---|\n\
         | latency, small messages | 7 VMs: about 80 % of 1 VM (figures 6–8, section III.C) | {few} bytes: {:.0} % |\n\
         | latency, messages of many packets | 7 VMs: falls further once messages exceed a packet (figures 6–8) \
         | {many} bytes: {:.0} % |\n\
         | throughput in sum, small messages | above that of hosts, up to twice for twice the VMs (figures 9–11) \
         | {few} bytes: {:.0} % |\n\
         | throughput in sum, large messages | that of hosts, however many VMs (figures 9–11) | {many} bytes: {:.0} % |\n\
         | inside one host against two hosts | up to 150 % in latency and in throughput (figure 5) | {few} bytes: {:.0} % in \
         latency; {many} bytes: {:.0} % in throughput |\n\
         | VM against host, latency | 75.6 % at 128 bytes, 100.2 % at 256 (table I) | not modelled |\n\n\
         Not modelled: what an adapter takes to tell functions apart, inline data of small messages, the bus and the \
         processors that VMs share. Inside the adapter packets move as fast as on its link.",
        latency(small),
        latency(large),
        throughput(small),
        throughput(large),
        inside(small),
        100.0 * large.inside_gbps / large.shared[0].gbps,
    )?;
    Ok(())
}
