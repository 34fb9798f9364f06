//! Runs a scenario: every node of every workload keeps messages posted.

use fabric_model::{StatedHardware, SwitchModel};
use ib_wire::{Lid, Pkey, ServiceLevel};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::clusters::{ClusterSet, SimCluster};
use super::report::{JobResult, ScenarioReport, is_stalled, link_loads};
use super::rounds::Rounds;
use super::{Scenario, ScenarioError, SendPattern, SendRate, WorkloadSpec};
use crate::fabric::DropReason;
use crate::traffic::{
    BLOCK_BYTES, HEADER_BYTES, HEADER_BYTES_MAX, Message, PAYLOAD_BYTES_MAX, Service, Simulation, Tag, Time,
    TrafficNetwork, Workload, WorkloadActions,
};

/// Delay before a node retries a message that its own adapter dropped.
const RETRY: Time = Time::from_us(1);

/// Nodes start at random times within this.
pub(super) const STAGGER: Time = Time::from_us(1);

/// Payload of a packet that fills exactly one block.
const SMALL_PAYLOAD: u16 = BLOCK_BYTES as u16 - HEADER_BYTES as u16;

const SERVICE_LEVELS: u8 = 16;

/// Runs a scenario on a network and reports the results.
///
/// `hardware` is usually what the plan was made for; the scenario may name another switch model. `seed` determines start times and random destinations; the same arguments give the same report. Fails
/// before the simulation starts if the scenario does not fit the clusters.
pub fn run_scenario(
    network: TrafficNetwork,
    clusters: &ClusterSet,
    scenario: &Scenario,
    hardware: &StatedHardware,
    seed: u64,
) -> Result<ScenarioReport, ScenarioError> {
    scenario.check(clusters)?;
    let mut simulation = Simulation::new(network, scenario.settings(hardware))?;
    let model = simulation.settings().switch_model;
    let mut workload = ScenarioWorkload::new(clusters, scenario, model, seed);
    let warm_up = scenario.warm_up.time();
    simulation.run(&mut workload, warm_up);
    let ports: Vec<u64> = simulation.network().ports().map(|port| simulation.sent_bytes(port)).collect();
    let before: Vec<u64> = (0..workload.tags)
        .map(|tag| simulation.measure(Tag(tag)).map_or(0, |measure| measure.wire_bytes))
        .collect();
    let duration = scenario.duration.time();
    let outcome = simulation.run(&mut workload, warm_up + duration);
    let sent: Vec<u64> = simulation
        .network()
        .ports()
        .zip(&ports)
        .map(|(port, before)| simulation.sent_bytes(port) - before)
        .collect();
    let clusters =
        workload.results(&before).into_iter().map(|results| results.report(&simulation, &sent, duration));
    Ok(ScenarioReport {
        clusters: clusters.collect(),
        totals: simulation.totals(),
        is_stalled: is_stalled(outcome),
        duration,
        interval: simulation.settings().interval,
        links: link_loads(&simulation, &sent, duration),
    })
}

/// A node that runs a workload, on one service level.
struct Sender<'a> {
    spec: &'a WorkloadSpec,
    cluster: &'a SimCluster,
    /// Index among the nodes of the cluster.
    node: usize,
    tag: Tag,
    sl: ServiceLevel,
    /// Index of its job.
    job: usize,
    /// Messages posted so far.
    count: u64,
    /// Number of the message that has not left yet.
    pending: Option<u32>,
    /// Bits per second, headers included; `None` sends as much as possible.
    rate: Option<f64>,
}

/// A workload of one cluster.
struct Job<'a> {
    cluster: &'a SimCluster,
    spec: &'a WorkloadSpec,
    first_sender: usize,
    rounds: Rounds,
}

struct ScenarioWorkload<'a> {
    clusters: &'a ClusterSet,
    senders: Vec<Sender<'a>>,
    jobs: Vec<Job<'a>>,
    tags: u16,
    random: Pcg64,
    switch_model: SwitchModel,
}

/// Why a sender is woken.
#[derive(Clone, Copy)]
enum Wakeup {
    Next,
    Computed,
}

impl Wakeup {
    fn token(self, sender: usize) -> u64 {
        (sender as u64) << 1 | u64::from(matches!(self, Self::Computed))
    }

    fn of(token: u64) -> (Self, usize) {
        (if token & 1 == 1 { Self::Computed } else { Self::Next }, (token >> 1) as usize)
    }
}

impl<'a> ScenarioWorkload<'a> {
    fn new(clusters: &'a ClusterSet, scenario: &'a Scenario, switch_model: SwitchModel, seed: u64) -> Self {
        let mut workload = Self {
            clusters,
            senders: Vec::new(),
            jobs: Vec::new(),
            tags: 0,
            random: Pcg64::seed_from_u64(seed),
            switch_model,
        };
        for spec in &scenario.workloads {
            for cluster in scenario.clusters(clusters, spec) {
                workload.add_job(spec, cluster);
            }
        }
        workload
    }

    fn add_job(&mut self, spec: &'a WorkloadSpec, cluster: &'a SimCluster) {
        let job = self.jobs.len();
        self.jobs.push(Job { cluster, spec, first_sender: self.senders.len(), rounds: Rounds::default() });
        let rate = rate_of(spec, cluster, self.switch_model);
        for node in 0..cluster.nodes.len() {
            let tag = Tag(self.tags);
            self.tags = self.tags.saturating_add(1);
            // A hostile guest uses every service level, not only its own.
            let levels = if spec.send == SendPattern::Everything { 0..SERVICE_LEVELS } else { 0..1 };
            for sl in levels {
                let sl = match spec.send {
                    SendPattern::Everything => ServiceLevel::from_wire(sl).unwrap_or_default(),
                    _ => cluster.sl,
                };
                self.senders.push(Sender {
                    spec,
                    cluster,
                    node,
                    tag,
                    sl,
                    job,
                    count: 0,
                    pending: None,
                    rate,
                });
            }
        }
    }

    fn results(&self, before: &[u64]) -> Vec<JobResult<'a>> {
        self.jobs
            .iter()
            .enumerate()
            .map(|(index, job)| {
                let mut tags: Vec<Tag> = self
                    .senders
                    .iter()
                    .filter(|sender| sender.job == index)
                    .map(|sender| sender.tag)
                    .collect();
                tags.dedup();
                let rounds = (job.spec.send == SendPattern::BulkSynchronous).then(|| job.rounds.took.clone());
                JobResult {
                    cluster: job.cluster,
                    is_hostile: job.spec.send.is_hostile(),
                    is_tested: is_test(job.spec),
                    is_uniform: job.spec.send == SendPattern::AllToAll,
                    fill: fill(job.spec, self.switch_model),
                    before: tags.iter().map(|tag| before[usize::from(tag.0)]).collect(),
                    tags,
                    rounds,
                }
            })
            .collect()
    }

    /// A random number below `below`.
    fn draw(&mut self, below: usize) -> usize {
        self.random.random_range(0..below.max(1) as u64) as usize
    }

    /// The next message of a sender; `None` if it has no receiver.
    fn message(&mut self, index: usize) -> Option<Message> {
        let sender = &self.senders[index];
        let (spec, cluster, node, count) = (sender.spec, sender.cluster, sender.node, sender.count);
        let (mut sl, tag, nodes) = (sender.sl, sender.tag, &cluster.nodes);
        let mut pkey = cluster.pkey;
        let others = nodes
            .len()
            .checked_sub(1)
            .filter(|others| *others > 0 || spec.send == SendPattern::Everything)?;
        // Every receiver gets one size before the next size is used; otherwise one receiver could get all
        // large messages.
        let lap = if spec.send == SendPattern::AllToAll { others.max(1) as u64 } else { 1 };
        let size = spec.message[(count / lap % spec.message.len() as u64) as usize].bytes();
        let (mut bytes, mut packet_bytes) = (size, None);
        // Nothing stops a hostile guest from adding a GRH and extended headers to every packet.
        let mut header_bytes = if spec.send.is_hostile() { HEADER_BYTES_MAX } else { HEADER_BYTES };
        let target = (spec.to as usize).saturating_sub(1);
        // The receiver itself sends to all others in turn.
        let to_target = if node == target { in_turn(node, count, others) } else { target };
        let to = match spec.send {
            SendPattern::AllToAll | SendPattern::Overshoot => in_turn(node, count, others),
            SendPattern::Shift => (node + spec.to as usize % nodes.len()) % nodes.len(),
            SendPattern::Incast | SendPattern::Stall if node == target => return None,
            SendPattern::Incast | SendPattern::Stall => to_target,
            SendPattern::Hotspot if self.draw(100) < usize::from(spec.percent) => to_target,
            SendPattern::Hotspot | SendPattern::Random => in_turn(node, self.draw(others) as u64, others),
            SendPattern::BulkSynchronous => in_turn(node, count, others),
            SendPattern::Everything => node,
        };
        if to == node && spec.send != SendPattern::Everything {
            return None;
        }
        if spec.send != SendPattern::Everything {
            sl = cluster.service_level(node, to);
        }
        let mut lid: Lid = nodes[to].lid;
        match spec.send {
            SendPattern::Everything => {
                lid = self.clusters.addresses[self.draw(self.clusters.addresses.len())];
                let keys: &[Pkey] = &nodes[node].keys;
                pkey = keys.get(self.draw(keys.len())).copied().unwrap_or(pkey);
                bytes = 1 + self.draw(size as usize) as u64;
            }
            // The smallest packets use the weight up to the last unit, then a full-size packet exceeds it.
            SendPattern::Overshoot if count % 2 == 0 && cluster.weight > 1 => {
                bytes = u64::from(SMALL_PAYLOAD) * u64::from(cluster.weight - 1);
                packet_bytes = Some(SMALL_PAYLOAD);
                header_bytes = HEADER_BYTES;
            }
            SendPattern::Overshoot => bytes = PAYLOAD_BYTES_MAX.into(),
            _ => {}
        }
        let sender = &mut self.senders[index];
        sender.count += 1;
        let from = cluster.nodes[node].function;
        let token = (index as u64) << 32 | sender.count & 0xffff_ffff;
        let service = Service::Data(sl);
        Some(Message { from, to: lid, service, pkey, bytes, packet_bytes, header_bytes, tag, token })
    }

    /// Posts the next message, now or at the start of the next burst.
    fn next(&mut self, now: Time, index: usize, actions: &mut WorkloadActions) {
        let sender = &self.senders[index];
        if let Some(bursts) = sender.spec.bursts {
            let (on, off) = (bursts.on.time().ps(), bursts.off.time().ps());
            let phase = now.ps() % (on + off).max(1);
            if phase >= on {
                return actions.wake(now + Time::from_ps(on + off - phase), Wakeup::Next.token(index));
            }
        }
        let rate = sender.rate;
        let Some(message) = self.message(index) else { return };
        self.senders[index].pending = Some(message.token as u32);
        actions.post(message);
        if let Some(rate) = rate {
            let ps = wire_bytes(message.bytes, message.header_bytes) as f64 * 8e12 / rate;
            actions.wake(now + Time::from_ps(ps as u64), Wakeup::Next.token(index));
        }
    }

    /// Handles a message that left its function or was dropped before. Returns its sender, if the sender was
    /// waiting for it.
    fn is_gone(&mut self, message: &Message) -> Option<usize> {
        let index = (message.token >> 32) as usize;
        let sender = &mut self.senders[index];
        let is_it =
            sender.pending == Some(message.token as u32) && sender.spec.send != SendPattern::BulkSynchronous;
        is_it.then(|| sender.pending = None).map(|()| index)
    }

    fn begin_round(&mut self, now: Time, job: usize, actions: &mut WorkloadActions) {
        let Job { cluster, spec, first_sender, .. } = self.jobs[job];
        let nodes = cluster.nodes.len();
        if nodes < 2 {
            return;
        }
        self.jobs[job].rounds.begin(nodes, nodes as u64 - 1);
        for sender in first_sender..first_sender + nodes {
            actions.wake(now + spec.compute.time(), Wakeup::Computed.token(sender));
        }
    }

    /// Counts a message of a round as arrived or lost.
    fn count_round(&mut self, now: Time, message: &Message, actions: &mut WorkloadActions) {
        let sender = &self.senders[(message.token >> 32) as usize];
        let job = sender.job;
        if sender.spec.send == SendPattern::BulkSynchronous && self.jobs[job].rounds.ended(now) {
            self.begin_round(now, job, actions);
        }
    }
}

impl Workload for ScenarioWorkload<'_> {
    fn start(&mut self, actions: &mut WorkloadActions) {
        for job in 0..self.jobs.len() {
            let Job { spec, cluster, .. } = self.jobs[job];
            match spec.send {
                SendPattern::BulkSynchronous => self.begin_round(Time::ZERO, job, actions),
                SendPattern::Stall => {
                    let node = cluster.nodes.get((spec.to as usize).saturating_sub(1));
                    node.into_iter().for_each(|node| actions.stop_draining(node.function.port()));
                }
                _ => {}
            }
        }
        for index in 0..self.senders.len() {
            if self.senders[index].spec.send != SendPattern::BulkSynchronous {
                let begin = Time::from_ps(self.random.random_range(0..STAGGER.ps()));
                actions.wake(begin, Wakeup::Next.token(index));
            }
        }
    }

    fn sent(&mut self, now: Time, message: &Message, actions: &mut WorkloadActions) {
        if let Some(index) = self.is_gone(message)
            && self.senders[index].rate.is_none()
        {
            self.next(now, index, actions);
        }
    }

    fn delivered(&mut self, now: Time, message: &Message, _: Time, actions: &mut WorkloadActions) {
        self.count_round(now, message, actions);
    }

    fn lost(&mut self, now: Time, message: &Message, _: DropReason, actions: &mut WorkloadActions) {
        // Retry later: a retry at the same moment would never end.
        if let Some(index) = self.is_gone(message)
            && self.senders[index].rate.is_none()
        {
            actions.wake(now + RETRY, Wakeup::Next.token(index));
        }
        self.count_round(now, message, actions);
    }

    fn woken(&mut self, now: Time, token: u64, actions: &mut WorkloadActions) {
        match Wakeup::of(token) {
            (Wakeup::Next, index) => self.next(now, index, actions),
            (Wakeup::Computed, index) => {
                let job = self.senders[index].job;
                self.jobs[job].rounds.computed(now);
                for _ in 1..self.senders[index].cluster.nodes.len() {
                    self.message(index).into_iter().for_each(|message| actions.post(message));
                }
            }
        }
    }
}

/// Whether a workload tests the guarantee in the way it is defined.
fn is_test(spec: &WorkloadSpec) -> bool {
    spec.send == SendPattern::AllToAll && spec.rate == SendRate::Guaranteed && spec.bursts.is_none()
}

/// Bytes of the packets of a message, headers included.
fn wire_bytes(bytes: u64, header_bytes: u8) -> u64 {
    bytes + bytes.div_ceil(PAYLOAD_BYTES_MAX.into()).max(1) * u64::from(header_bytes)
}

/// The part of a guaranteed rate that packets of these sizes can use. Arbitration and buffers count blocks of
/// 64 bytes and round up, so small packets use up the weight with fewer bytes. In FIFO inputs a packet of any size waits for a
/// visit of its own, so packets count, not bytes. Full-size packets define 1.
fn fill(spec: &WorkloadSpec, model: SwitchModel) -> f64 {
    let sum = |of: fn(u64) -> u64| spec.message.iter().map(|size| of(size.bytes())).sum::<u64>() as f64;
    let full = u64::from(PAYLOAD_BYTES_MAX);
    let bytes: fn(u64) -> u64 = |size| wire_bytes(size, HEADER_BYTES);
    let of_full = bytes(full) as f64 / wire_blocks(full) as f64;
    if model == SwitchModel::FifoInputs {
        let packets: fn(u64) -> u64 = |size| size.div_ceil(PAYLOAD_BYTES_MAX.into()).max(1);
        return (sum(bytes) / sum(packets) / bytes(full) as f64).min(1.0);
    }
    (sum(bytes) / sum(wire_blocks) / of_full).min(1.0)
}

/// Blocks of the packets of a message, the last block of each counted whole.
fn wire_blocks(bytes: u64) -> u64 {
    let full = u64::from(PAYLOAD_BYTES_MAX);
    let blocks = |payload: u64| (payload + u64::from(HEADER_BYTES)).div_ceil(BLOCK_BYTES.into());
    let last = bytes - bytes.saturating_sub(1) / full * full;
    bytes.saturating_sub(1) / full * blocks(full) + blocks(last)
}

/// The rate of a node in bits per second, headers included; `None` means as much as possible.
fn rate_of(spec: &WorkloadSpec, cluster: &SimCluster, model: SwitchModel) -> Option<f64> {
    match spec.rate {
        SendRate::Full => None,
        SendRate::Guaranteed => {
            cluster.guarantee.map(|guarantee| guarantee.bits_per_s() as f64 * fill(spec, model))
        }
        SendRate::Fixed(rate) => Some(rate.bits_per_s() as f64),
    }
}

/// The receiver of message `count` if a node sends to all others in turn.
fn in_turn(node: usize, count: u64, others: usize) -> usize {
    (node + 1 + (count % others.max(1) as u64) as usize) % (others + 1)
}
