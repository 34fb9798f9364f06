//! The three switch models: what a packet waits for at the input of a switch, and what a lane loses there.

use fabric_model::{Speedup, StatedHardware, SwitchModel, Topology, ibnetdiscover};
use fabric_sim::PortId;
use fabric_sim::traffic::{
    HEADER_BYTES_MAX, Message, RunOutcome, Simulation, Tag, Time, TrafficSettings, Workload, WorkloadActions,
};
use ib_wire::{DataLanes, Lid};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::planned::{Design, Timed, hosts, message, sharing};

/// Lanes besides that of the victim.
const OTHERS: u8 = 7;

/// Wire time of a packet with the longest headers at 100 Gb/s, in picoseconds.
const PACKET_PS: u64 = 4222 * 80;

fn limited(speedup: u8) -> SwitchModel {
    SwitchModel::LimitedSpeedup(Speedup::new(speedup).unwrap())
}

fn settings(model: SwitchModel) -> TrafficSettings {
    TrafficSettings::of(&StatedHardware { switch_model: model, ..StatedHardware::default() })
}

/// Two switches with `hosts` hosts each, connected by one cable. Hosts of the first come first.
fn pair(hosts: usize) -> Topology {
    let mut text = String::new();
    for switch in 0..2 {
        text += &format!("Switch {} \"s{switch}\"\n", hosts + 1);
        for port in 1..=hosts {
            let host = switch * hosts + port;
            text += &format!("[{port}] \"h{host:02}\"[1] # \"h\" lid 0 4xEDR\n");
        }
        text += &format!("[{}] \"s{}\"[{}] # \"s\" lid 0 4xEDR\n", hosts + 1, 1 - switch, hosts + 1);
    }
    for host in 1..=2 * hosts {
        let (switch, port) = ((host - 1) / hosts, (host - 1) % hosts + 1);
        text += &format!("Ca 1 \"h{host:02}\"\n[1] \"s{switch}\"[{port}] # lid 0 lmc 0 \"s\" lid 0 4xEDR\n");
    }
    ibnetdiscover::parse(&text).unwrap()
}

fn simulation(topology: Topology, model: SwitchModel) -> (Simulation, Vec<(PortId, Lid)>) {
    let mut design = Design::new(topology);
    design.lanes = DataLanes::Eight;
    let table: Vec<(u8, u8)> = (0..=OTHERS).map(|lane| (lane, 66)).collect();
    design.sharing = Some(sharing(8, &table));
    let simulation = design.simulation(settings(model));
    let hosts = hosts(simulation.network());
    (simulation, hosts)
}

/// Other lanes fill the input between two switches, towards receivers that stop. All drain at once; then the
/// packet of the victim comes.
struct Release {
    hosts: Vec<(PortId, Lid)>,
    /// When receivers drain, and when the victim sends.
    drain: Time,
    victim: Time,
}

impl Release {
    const VICTIM: Tag = Tag(0);

    fn receiver(&self, lane: u8) -> (PortId, Lid) {
        self.hosts[usize::from(OTHERS) + 1 + usize::from(lane)]
    }
}

impl Workload for Release {
    fn start(&mut self, actions: &mut WorkloadActions) {
        for lane in 1..=OTHERS {
            actions.stop_draining(self.receiver(lane).0);
            let sent = message(self.hosts[usize::from(lane)].0, self.receiver(lane).1, lane, 1 << 20);
            actions.post(Message { header_bytes: HEADER_BYTES_MAX, ..sent });
        }
        actions.wake(self.drain, 0);
        actions.wake(self.victim, 1);
    }

    fn woken(&mut self, _: Time, token: u64, actions: &mut WorkloadActions) {
        if token == 0 {
            (1..=OTHERS).for_each(|lane| actions.drain(self.receiver(lane).0));
        } else {
            actions.post(message(self.hosts[0].0, self.receiver(0).1, 0, 4096));
        }
    }
}

/// The latest arrival of the victim, in picoseconds after it was sent, over many moments.
fn latest(model: SwitchModel) -> u64 {
    let drain = Time::from_us(400);
    let tried = (0..40).map(|step| {
        let (mut simulation, hosts) = simulation(pair(usize::from(OTHERS) + 1), model);
        let victim = Time::from_ps(drain.ps() - 2_000_000 + step * 100_000);
        let mut workload = Release { hosts, drain, victim };
        simulation.run(&mut workload, Time::from_us(440));
        simulation.audit().unwrap();
        simulation.measure(Release::VICTIM).unwrap().uncontended.max().unwrap().ps()
    });
    tried.max().unwrap()
}

#[test]
fn a_packet_waits_for_other_lanes_of_its_input_but_not_longer_than_the_term() {
    let ideal = latest(SwitchModel::IdealOutputs);
    // The others do not use the output of the victim, and its own lane is empty: only the link between the switches is shared.
    for speedup in [1, 2, 4] {
        let wait = latest(limited(speedup)) - ideal;
        let term = u64::from(OTHERS) * PACKET_PS / u64::from(speedup);
        assert!(wait <= term, "speed-up {speedup}: {wait} ps of {term}");
        assert!(speedup > 1 || wait > term / 3, "the wait must be real: {wait} ps of {term}");
    }
}

#[test]
fn only_fifo_inputs_block_a_packet_behind_one_to_another_output() {
    for (model, expected) in
        [(SwitchModel::IdealOutputs, 1), (SwitchModel::default(), 1), (SwitchModel::FifoInputs, 0)]
    {
        let (mut simulation, hosts) = simulation(pair(3), model);
        let (stopped, open) = (hosts[4], hosts[5]);
        // Fills the buffer of the receiver that stops, from its own switch, then leaves one packet in the shared input.
        struct Stopped(Timed, PortId);
        impl Workload for Stopped {
            fn start(&mut self, actions: &mut WorkloadActions) {
                actions.stop_draining(self.1);
                self.0.start(actions);
            }
            fn woken(&mut self, now: Time, token: u64, actions: &mut WorkloadActions) {
                self.0.woken(now, token, actions);
            }
            fn delivered(&mut self, now: Time, message: &Message, at: Time, actions: &mut WorkloadActions) {
                self.0.delivered(now, message, at, actions);
            }
        }
        let messages = vec![
            (Time::ZERO, message(hosts[3].0, stopped.1, 0, 1 << 20)),
            (Time::from_us(100), message(hosts[0].0, stopped.1, 0, 4096)),
            (Time::from_us(110), message(hosts[0].0, open.1, 0, 4096)),
        ];
        let mut workload = Stopped(Timed { messages, ..Timed::default() }, stopped.0);
        assert_eq!(simulation.run(&mut workload, Time::from_us(1000)), RunOutcome::Stalled);
        simulation.audit().unwrap();
        let arrived = workload.0.delivered.iter().filter(|(_, message)| message.to == open.1).count();
        assert_eq!(arrived, expected, "{model}");
    }
}

/// Every host of one switch sends single packets to random others, as fast as its link.
struct Uniform {
    hosts: Vec<(PortId, Lid)>,
    random: Pcg64,
}

impl Uniform {
    fn post(&mut self, from: usize, actions: &mut WorkloadActions) {
        let others = self.hosts.len() as u64 - 1;
        let to = (from + 1 + self.random.random_range(0..others) as usize) % self.hosts.len();
        let sent = message(self.hosts[from].0, self.hosts[to].1, 0, 4096);
        actions.post(Message { token: from as u64, ..sent });
    }
}

impl Workload for Uniform {
    fn start(&mut self, actions: &mut WorkloadActions) {
        (0..self.hosts.len()).for_each(|from| self.post(from, actions));
    }

    fn sent(&mut self, _: Time, message: &Message, actions: &mut WorkloadActions) {
        self.post(message.token as usize, actions);
    }
}

/// The part of the links that uniform traffic of hosts at one switch reaches.
fn throughput(model: SwitchModel, count: usize) -> f64 {
    let mut text = format!("Switch {count} \"s\"\n");
    for host in 1..=count {
        text += &format!("[{host}] \"h{host:02}\"[1] # \"h\" lid 0 4xEDR\n");
    }
    for host in 1..=count {
        text += &format!("Ca 1 \"h{host:02}\"\n[1] \"s\"[{host}] # lid 0 lmc 0 \"s\" lid 0 4xEDR\n");
    }
    let (mut simulation, hosts) = simulation(ibnetdiscover::parse(&text).unwrap(), model);
    let mut workload = Uniform { hosts, random: Pcg64::seed_from_u64(1) };
    let end = Time::from_us(1000);
    simulation.run(&mut workload, end);
    simulation.audit().unwrap();
    let bytes = simulation.measure(Tag(0)).unwrap().wire_bytes;
    bytes as f64 * 80.0 / (end.ps() as f64 * count as f64)
}

#[test]
fn fifo_inputs_reach_the_known_part_of_uniform_traffic() {
    let fifo = throughput(SwitchModel::FifoInputs, 16);
    assert!((0.57..0.68).contains(&fifo), "2 − √2 for many hosts: {fifo}");
    for model in [SwitchModel::IdealOutputs, limited(1), limited(2)] {
        let part = throughput(model, 16);
        assert!(part > 0.85, "{model}: {part}");
    }
}

#[test]
fn models_agree_on_a_packet_alone() {
    let arrival = |model| {
        let (mut simulation, hosts) = simulation(pair(2), model);
        let sent = message(hosts[0].0, hosts[3].1, 3, 4096);
        let mut workload = Timed { messages: vec![(Time::ZERO, sent)], ..Timed::default() };
        assert_eq!(simulation.run(&mut workload, Time::from_us(100)), RunOutcome::Done);
        simulation.audit().unwrap();
        workload.delivered[0].0
    };
    let ideal = arrival(SwitchModel::IdealOutputs);
    assert_eq!([limited(1), limited(9), SwitchModel::FifoInputs].map(arrival), [ideal; 3]);
}
