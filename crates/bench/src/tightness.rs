//! `heddle-bench tightness`: how close hostile neighbours come to the latency bound.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::Args;
use fabric_compiler::tenancy::arbitration::{
    HopDelay, OVERSHOOT_BYTES, PACKET_BYTES_MAX, PacketSizes, ServiceCurve, WEIGHT_BYTES, packet_bound_s,
};
use fabric_compiler::{compile, partitions_conf};
use fabric_model::plan::PortQos;
use fabric_model::{Decisions, Endpoint, FabricPlan, Intents, LinkRate, NewNode, NodeIndex};
use fabric_model::{SwitchModel, Topology, TopologyBuilder};
use fabric_sim::traffic::{
    BLOCK_BYTES, HEADER_BYTES, HEADER_BYTES_MAX, Message, PAYLOAD_BYTES_MAX, ROUTED_BYTES, Service,
    Simulation, Tag, Time, TrafficNetwork, TrafficSettings, Workload, WorkloadActions,
};
use fabric_sim::{Capacities, Fabric, FunctionId, PortId};
use ib_wire::{
    DataLanes, Guid, Membership, Mtu, NodeKind, PartitionNumber, Pkey, PortNum, ServiceLevel, SlToVl,
    VirtualLane, VlArbEntry,
};
use serde::Serialize;

/// Compare the bound of a packet that finds its lane empty with the latest arrival that hostile neighbours bring about.
///
/// A packet of full size passes a chain of links whose arbitration tables have one entry for its lane; all others belong
/// to up to 14 other lanes. At every link all of these always have packets waiting, cut such that each visit uses its
/// weight to the last unit in packets of one block and then sends one of full size. When they begin is chosen link by link,
/// so that the packet comes when its entry has just been passed.
///
/// The bound is the compiler's formula with the weights of these tables: at every link 64 w + 4158 bytes for each other
/// entry, the packet itself, and 250 ns. Packets have the longest headers. Outputs of switches are ideal. Two more stand beside it: one that counts the packet once, and for other links only
/// what a switch has to see of it before it sends it on; and the guaranteed bound, which counts every other entry with
/// the largest weight there is, as a cluster that is added later may have it.
#[derive(Debug, Args)]
pub struct TightnessArgs {
    /// Links on the path, those of the sender and the receiver included.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3, 4, 5])]
    hops: Vec<usize>,
    /// Entries of each arbitration table, 8 to 64.
    #[arg(long, value_delimiter = ',', default_values_t = [8, 16, 32, 64])]
    entries: Vec<u8>,
    /// Weight of the entries of other lanes, 1 to 255, in units of 64 bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [65, 128, 255])]
    weights: Vec<u8>,
    /// Print the figures as JSON instead of Markdown.
    #[arg(long)]
    json: bool,
}

/// Links that a chain may have.
const HOPS_MAX: usize = 16;

/// What all links run at. A byte takes a whole number of picoseconds, so that no rounding is in the figures.
const RATE: LinkRate = LinkRate::DEFAULT;

/// Lanes besides the victim's: all that data can have.
const OTHER_LANES: u8 = 14;

/// The account of the victim.
const VICTIM: Tag = Tag(0);

/// The token of the victim's packet and of the call to send it; those of others are the number of their link.
const VICTIM_TOKEN: u64 = u64::MAX;

/// How long neighbours need until all their buffers are full, taken high: a buffer of 64 KiB fills in 5 µs.
const WARM_UP: Time = Time::from_us(40);

/// How often the neighbours of a link try to begin at a better moment.
const ATTEMPTS: usize = 6;

/// Figures of one combination of hops, entries and weight.
#[derive(Debug, Serialize)]
struct Row {
    entries: u8,
    weight: u8,
    hops: usize,
    /// Latency without other traffic.
    free_us: f64,
    worst_us: f64,
    bound_us: f64,
    /// The bound that counts the packet once.
    once_us: f64,
    /// The bound that counts other entries with the largest weight.
    guaranteed_us: f64,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.bound_us / self.worst_us
    }

    fn once_ratio(&self) -> f64 {
        self.once_us / self.worst_us
    }

    fn guaranteed_ratio(&self) -> f64 {
        self.guaranteed_us / self.worst_us
    }
}

/// Measures, and prints the figures.
pub fn run(args: TightnessArgs) -> anyhow::Result<()> {
    ensure!(
        args.hops.iter().all(|hops| (1..=HOPS_MAX).contains(hops)),
        "--hops must be between 1 and {HOPS_MAX}"
    );
    ensure!(
        args.entries.iter().all(|entries| (2..=64).contains(entries)),
        "--entries must be between 2 and 64"
    );
    ensure!(args.weights.iter().all(|weight| *weight > 0), "--weights must be between 1 and 255, got 0");
    let mut rows = Vec::new();
    for entries in &args.entries {
        for weight in &args.weights {
            eprintln!("{entries} entries of weight {weight}");
            for hops in &args.hops {
                rows.push(measure(*hops, *entries, *weight)?);
            }
        }
    }
    crate::print(args.json, &rows, |rows| markdown(rows))
}

/// The worst that neighbours can do to a packet on one chain, and the guaranteed bound.
fn measure(hops: usize, entries: u8, weight: u8) -> anyhow::Result<Row> {
    let table = table(entries, weight);
    let hop = hop_of(&table)?;
    let (bound_s, once_s) = (packet_bound_s(&vec![hop; hops]), once_bound_s(hop, hops));
    let guaranteed_s = packet_bound_s(&vec![hop_of(&self::table(entries, u8::MAX))?; hops]);

    let gap = Time::from_ps((hop.wait_s * 1e12).round() as u64);
    let chain = Chain::new(hops, table)?;
    let (free, worst) = chain.worst(gap)?;
    let us = |s: f64| s * 1e6;
    let row = Row {
        entries,
        weight,
        hops,
        free_us: free.us(),
        worst_us: worst.us(),
        bound_us: us(bound_s),
        once_us: us(once_s),
        guaranteed_us: us(guaranteed_s),
    };
    // Half a picosecond, as times are whole ones.
    ensure!(
        worst.s() <= bound_s.min(once_s) + 0.5e-12,
        "a packet that found its lane empty came after {worst}, later than its bound: {row:?}"
    );
    Ok(row)
}

/// A link with an arbitration table, as lane 0 sees it.
fn hop_of(table: &[VlArbEntry]) -> anyhow::Result<HopDelay> {
    let link_bytes_per_s = RATE.data_rate_gbps() * 1e9 / 8.0;
    let curve = ServiceCurve::of(table, VirtualLane::default(), link_bytes_per_s, PacketSizes::AnySize);
    let wait_s = curve.context("the victim has no entry")?.wait_s;
    Ok(HopDelay { wait_s, link_bytes_per_s, passage_s: passage().s() })
}

/// Through a device and along a cable.
fn passage() -> Time {
    settings().device + settings().cable
}

/// Ideal outputs: the bound of arbitration alone, without inputs.
fn settings() -> TrafficSettings {
    TrafficSettings { switch_model: SwitchModel::IdealOutputs, ..TrafficSettings::default() }
}

/// The same bound for links that are alike, where switches cut through: a packet that goes on while it still arrives takes
/// its own length once, and on every other link only the bytes that a switch needs to forward it.
fn once_bound_s(hop: HopDelay, hops: usize) -> f64 {
    let takes_s = |bytes: f64| bytes / hop.link_bytes_per_s;
    let others_s = hops as f64 * (hop.wait_s + hop.passage_s);
    others_s + (hops - 1) as f64 * takes_s(ROUTED_BYTES.into()) + takes_s(PACKET_BYTES_MAX as f64)
}

/// One entry for lane 0 and all others for as many lanes as there are.
fn table(entries: u8, weight: u8) -> Vec<VlArbEntry> {
    let other = |place: u8| VlArbEntry {
        lane: VirtualLane::from_wire(1 + (place - 1) % OTHER_LANES).unwrap_or_default(),
        weight,
    };
    let victim = VlArbEntry { lane: VirtualLane::default(), weight };
    std::iter::once(victim).chain((1..entries).map(other)).collect()
}

/// Switches in a row, the victim's sender before the first and its receiver behind the last, and at every switch an adapter
/// for each hostile lane.
///
/// The adapters of a switch attack the link out of it, and receive what those of the switch before sent: so the neighbours
/// of different links never meet. Those of the first link are other functions of the sender.
struct Chain {
    fabric: Fabric,
    pkey: Pkey,
    hops: usize,
    weight: u8,
    /// Ports by their GUID's number.
    ports: BTreeMap<u64, PortId>,
    lanes: u8,
}

/// Numbers of nodes; the GUIDs of their first ports are one higher.
const SENDER: u64 = 0x1000;
const RECEIVER: u64 = 0x2000;

fn switch_guid(switch: usize) -> u64 {
    0x10_0000 + 0x1_0000 * switch as u64
}

fn neighbour_guid(switch: usize, lane: u8) -> u64 {
    switch_guid(switch) + 0x100 * u64::from(lane)
}

impl Chain {
    fn new(hops: usize, table: Vec<VlArbEntry>) -> anyhow::Result<Self> {
        let lanes = OTHER_LANES.min(table.len() as u8 - 1);
        let weight = table[0].weight;
        let entries = table.len() as u8;
        let topology = topology(hops - 1, lanes)?;
        let number = PartitionNumber::from_wire(LAB).context("a partition number")?;
        let plan = plan(&topology, table)?;
        let capacities = Capacities {
            lanes: DataLanes::Fifteen,
            mtu: Mtu::B4096,
            arbitration_entries: entries,
            ..Capacities::default()
        };
        let mut fabric = Fabric::new(topology, capacities, 0)?;
        fabric.install(&plan)?;
        let ports = fabric.device_ids().flat_map(|device| fabric.ports_of(device));
        let ports = ports.map(|port| (fabric.guid_of(port).to_wire(), port)).collect();
        Ok(Self { fabric, pkey: number.key(Membership::Full), hops, weight, ports, lanes })
    }

    fn port(&self, node: u64) -> anyhow::Result<PortId> {
        self.ports.get(&(node + 1)).copied().context("a node without a port")
    }

    /// How long the packet takes alone, and how long with neighbours that begin at the worst moments. `gap` is what they can
    /// hold it up at a link.
    fn worst(&self, gap: Time) -> anyhow::Result<(Time, Time)> {
        let free = self.latency(Time::ZERO, &[], gap)?;
        let posted = WARM_UP + gap + free;
        let mut starts = Vec::new();
        let mut before = free;
        for _ in 0..self.hops {
            // The packet comes to this link no earlier than if it passed the others in no time.
            let mut start = (posted + before).saturating_sub(free + WARM_UP);
            let (mut worst, mut best) = (Time::ZERO, start);
            for _ in 0..ATTEMPTS {
                let tried: Vec<Time> = starts.iter().copied().chain([start]).collect();
                let latency = self.latency(posted, &tried, gap)?;
                if latency > worst {
                    (worst, best) = (latency, start);
                }
                // It was held up until its entry was visited. Had all been earlier by that and a little more, it would
                // have come when the entry was just passed.
                let held = latency - before;
                if held + Time::from_ps(1) >= gap {
                    break;
                }
                start = start.saturating_sub(held + Time::from_ps(1));
            }
            starts.push(best);
            before = worst;
        }
        Ok((free, before))
    }

    /// How long the packet takes if it is posted at a moment and the neighbours of the first links begin at these.
    fn latency(&self, posted: Time, starts: &[Time], gap: Time) -> anyhow::Result<Time> {
        let mut attack = Attack { victim: self.victim()?, posted, gangs: Vec::new(), arrived: None };
        for (link, start) in starts.iter().enumerate() {
            // Long enough for one round before it comes, and one while it waits.
            let end = *start + WARM_UP + WARM_UP + gap + gap;
            attack.gangs.push(Gang { start: *start, end, messages: self.hostile(link)? });
        }
        let mut simulation = Simulation::new(TrafficNetwork::of(&self.fabric), settings())?;
        let step = gap + WARM_UP;
        let mut until = posted + step;
        while attack.arrived.is_none() {
            ensure!(simulation.totals().dropped == 0, "a packet was dropped");
            ensure!(until.ps() < posted.ps() + 64 * step.ps(), "the packet never comes");
            simulation.run(&mut attack, until);
            until += step;
        }
        let alone = simulation.measure(VICTIM).and_then(|measure| measure.uncontended.max());
        alone.context("the packet did not find its lane empty")
    }

    fn victim(&self) -> anyhow::Result<Message> {
        let from = FunctionId::new(self.port(SENDER)?, 0);
        let message = self.message(from, RECEIVER, 0)?;
        Ok(Message {
            bytes: PAYLOAD_BYTES_MAX.into(),
            header_bytes: HEADER_BYTES_MAX,
            tag: VICTIM,
            token: VICTIM_TOKEN,
            ..message
        })
    }

    /// What neighbours send again and again into a link: for every lane as much as a visit takes to the last unit but one, in
    /// packets of one block, and a packet of full size.
    fn hostile(&self, link: usize) -> anyhow::Result<Vec<Message>> {
        let mut messages = Vec::new();
        for lane in 1..=self.lanes {
            let from = match link {
                0 => FunctionId::new(self.port(SENDER)?, lane),
                _ => FunctionId::new(self.port(neighbour_guid(link, lane))?, 0),
            };
            let to = if link + 1 < self.hops { neighbour_guid(link + 1, lane) } else { RECEIVER };
            let message = Message { token: link as u64, ..self.message(from, to, lane)? };
            let small = BLOCK_BYTES as u16 - u16::from(HEADER_BYTES);
            let bytes = u64::from(small) * u64::from(self.weight - 1);
            if bytes > 0 {
                messages.push(Message { bytes, packet_bytes: Some(small), ..message });
            }
            let (bytes, header_bytes) = (PAYLOAD_BYTES_MAX.into(), HEADER_BYTES_MAX);
            messages.push(Message { bytes, header_bytes, ..message });
        }
        Ok(messages)
    }

    fn message(&self, from: FunctionId, to: u64, lane: u8) -> anyhow::Result<Message> {
        let to = self.fabric.lid(self.port(to)?).context("a port without a LID")?;
        let sl = ServiceLevel::from_wire(lane).context("no such service level")?;
        let tag = Tag(lane.into());
        let service = Service::Data(sl);
        let (pkey, header_bytes) = (self.pkey, HEADER_BYTES);
        Ok(Message { from, to, service, pkey, bytes: 0, packet_bytes: None, header_bytes, tag, token: 0 })
    }
}

/// The partition that all adapters are in.
const LAB: u16 = 0x101;

fn topology(switches: usize, lanes: u8) -> anyhow::Result<Topology> {
    let mut builder = TopologyBuilder::new();
    let mut add = |kind, number: u64, ports| -> anyhow::Result<NodeIndex> {
        let guid = Guid::from_wire(number).context("a GUID")?;
        Ok(builder.add_node(NewNode::new(kind, format!("N-{number:x}"), guid, ports))?)
    };
    let sender = add(NodeKind::Adapter, SENDER, 1)?;
    let receiver = add(NodeKind::Adapter, RECEIVER, 1)?;
    let mut cables = Vec::new();
    let mut last = (sender, 1);
    for number in 1..=switches {
        let switch = add(NodeKind::Switch, switch_guid(number), lanes + 2)?;
        for lane in 1..=lanes {
            let neighbour = add(NodeKind::Adapter, neighbour_guid(number, lane), 1)?;
            cables.push(((neighbour, 1), (switch, lane)));
        }
        cables.push((last, (switch, lanes + 1)));
        last = (switch, lanes + 2);
    }
    cables.push((last, (receiver, 1)));
    for ((a, a_port), (b, b_port)) in cables {
        let end = |node, port| Some(Endpoint::new(node, PortNum::new(port)?));
        let ends = end(a, a_port).zip(end(b, b_port));
        let (a, b) = ends.context("a port number")?;
        builder.connect(a, b, Some(RATE))?;
    }
    Ok(builder.build()?)
}

/// A plan in which every service level has the lane of its number and all ports this table.
fn plan(topology: &Topology, table: Vec<VlArbEntry>) -> anyhow::Result<FabricPlan> {
    let mut intents = Intents::new(Guid::from_wire(SENDER + 1).context("a GUID")?);
    intents.partitions = partitions_conf::parse(&format!("lab={LAB:#x} : ALL_CAS=full;"))?;
    let port = &mut intents.capabilities.default_port;
    (port.mtu, port.lanes, port.arbitration) = (Mtu::B4096, DataLanes::Fifteen, table.len() as u8);
    let plan = compile(topology, &intents, &Decisions::default())?;
    let mapped = SlToVl(std::array::from_fn(|level| {
        VirtualLane::from_wire(level as u8).unwrap_or(VirtualLane::MANAGEMENT)
    }));
    let sharing =
        Arc::new(PortQos { by_input: BTreeMap::new(), otherwise: mapped, low: table, high: Vec::new() });
    let mut draft = plan.draft();
    for guid in plan.adapter_ports().map(|port| port.guid) {
        let ports = draft.adapter_port(guid).into_iter();
        ports.for_each(|port| port.qos = Some(Arc::clone(&sharing)));
    }
    for place in 0..plan.shared_switches().len() {
        let ports = draft.switch(place).into_iter().flat_map(|switch| Arc::make_mut(&mut switch.ports));
        ports.for_each(|port| port.qos = Some(Arc::clone(&sharing)));
    }
    Ok(draft.finish())
}

/// The neighbours of one link.
struct Gang {
    start: Time,
    /// They send nothing new from then on: the packet has passed.
    end: Time,
    messages: Vec<Message>,
}

/// A packet, and the hostile neighbours that delay it.
struct Attack {
    victim: Message,
    posted: Time,
    gangs: Vec<Gang>,
    arrived: Option<Time>,
}

impl Workload for Attack {
    fn start(&mut self, orders: &mut WorkloadActions) {
        orders.wake(self.posted, VICTIM_TOKEN);
        for (link, gang) in self.gangs.iter().enumerate() {
            orders.wake(gang.start, link as u64);
        }
    }

    fn woken(&mut self, _: Time, token: u64, orders: &mut WorkloadActions) {
        match self.gangs.get(token as usize) {
            Some(gang) => gang.messages.iter().for_each(|message| orders.post(*message)),
            None => orders.post(self.victim),
        }
    }

    fn sent(&mut self, now: Time, message: &Message, orders: &mut WorkloadActions) {
        if self.gangs.get(message.token as usize).is_some_and(|gang| now < gang.end) {
            orders.post(*message);
        }
    }

    fn delivered(&mut self, now: Time, message: &Message, _: Time, _: &mut WorkloadActions) {
        if message.token == VICTIM_TOKEN {
            self.arrived = Some(now);
        }
    }
}

fn markdown(rows: &[Row]) -> String {
    let mut text = format!(
        "A packet of full size that finds its lane empty on every link; links of {RATE}. Times in µs.\n\
         Bound: at every link {WEIGHT_BYTES} w + {OVERSHOOT_BYTES} bytes for each other entry, {PACKET_BYTES_MAX} bytes \
         for the packet, {:.0} ns.\n\
         Counted once: {PACKET_BYTES_MAX} bytes on the last link, {ROUTED_BYTES} on the others.\n\
         Guaranteed: w is 255 for every other entry, as a cluster that is added later may have it.\n\n\
         | entries | weight | links | alone | worst reached | bound | bound ÷ worst | counted once | ÷ worst | guaranteed \
         | ÷ worst |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        passage().us() * 1e3,
    );
    for row in rows {
        text += &format!(
            "| {} | {} | {} | {:.3} | {:.3} | {:.3} | {:.4} | {:.3} | {:.4} | {:.3} | {:.2} |\n",
            row.entries,
            row.weight,
            row.hops,
            row.free_us,
            row.worst_us,
            row.bound_us,
            row.ratio(),
            row.once_us,
            row.once_ratio(),
            row.guaranteed_us,
            row.guaranteed_ratio(),
        );
    }
    let most = |of: fn(&Row) -> f64| rows.iter().map(of).fold(0.0, f64::max);
    text + &format!(
        "\nThe bound is at most {:.4} times the worst that was reached, counted once {:.4} times.\n",
        most(Row::ratio),
        most(Row::once_ratio),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_worst_case_reaches_the_bound_within_a_picosecond() {
        for (hops, entries, weight) in [(1, 8, 65), (2, 16, 65), (3, 8, 255), (5, 8, 65)] {
            let row = measure(hops, entries, weight).unwrap();
            let short_us = row.once_us - row.worst_us;
            assert!((-0.5e-6..(hops as f64 + 0.5) * 1e-6).contains(&short_us), "{row:?}");
            assert!(row.ratio() >= 1.0 && row.ratio() <= 1.25, "{row:?}");
        }
    }

    #[test]
    fn an_unloaded_packet_takes_its_length_and_link_delays() {
        let row = measure(3, 8, 65).unwrap();
        let ps = 3 * passage().ps() + (PACKET_BYTES_MAX + 2 * 20) * 80;
        assert_eq!(row.free_us, Time::from_ps(ps).us());
    }
}
