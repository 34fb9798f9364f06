//! Simulation over random tables, valid and invalid: packets and credits are conserved, and packets arrive
//! exactly where datagrams in the fabric do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fabric_model::generate::RandomFabric;
use fabric_model::plan::PortQos;
use fabric_model::{NodeIndex, Speedup, SwitchModel};
use fabric_sim::traffic::{
    Buffer, HEADER_BYTES, HEADER_BYTES_MAX, Message, RunOutcome, Service, Simulation, Tag, Time,
    TrafficNetwork, TrafficSettings, Workload, WorkloadActions,
};
use fabric_sim::{DropReason, Fabric, FabricOutput, FunctionId};
use ib_wire::{
    Attribute, DataLanes, Datagram, Lid, LidAddress, Mad, ManagementClass, Method, Mtu, Pkey, PortNum,
    SlToVl, VlArbEntry,
};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::planned::{Design, Timed, hosts, lane, sl};

/// Keys of two partitions, full and limited, and the default one.
const KEYS: [u16; 5] = [0xffff, 0x8101, 0x0101, 0x8102, 0x0102];

fn key(raw: u16) -> Pkey {
    Pkey::from_wire(raw).unwrap()
}

/// A random fabric.
#[derive(Clone, Debug)]
struct Chaos {
    seed: u64,
    switches: u32,
    degree: u8,
    hosts: u8,
    lanes: DataLanes,
    mtu: Mtu,
    enforces: bool,
    /// Wrong routes, in percent.
    wrong: u64,
    /// Number of unplugged links.
    unplugged: usize,
    /// Whether devices keep their default arbitration.
    is_plain: bool,
    rate: &'static str,
}

fn chaos() -> impl Strategy<Value = Chaos> {
    let lanes = vec![DataLanes::One, DataLanes::Two, DataLanes::Four, DataLanes::Eight, DataLanes::Fifteen];
    let rates = vec!["1xSDR", "4xQDR", "4xFDR", "4xEDR", "4xNDR"];
    (
        (any::<u64>(), 3u32..6, 2u8..4, 1u8..3),
        (prop::sample::select(lanes), prop::sample::select(vec![Mtu::B256, Mtu::B2048, Mtu::B4096])),
        (any::<bool>(), prop::sample::select(vec![0u64, 0, 5, 20]), 0usize..3, any::<bool>()),
        prop::sample::select(rates),
    )
        .prop_map(
            |(
                (seed, switches, degree, hosts),
                (lanes, mtu),
                (enforces, wrong, unplugged, is_plain),
                rate,
            )| {
                let degree = degree.min(switches as u8 - 1);
                Chaos {
                    seed,
                    switches,
                    degree,
                    hosts,
                    lanes,
                    mtu,
                    enforces,
                    wrong,
                    unplugged,
                    is_plain,
                    rate,
                }
            },
        )
}

/// A hash of the numbers.
fn mixed(numbers: &[u64]) -> u64 {
    numbers.iter().fold(7, |sum, number| (sum ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
}

impl Chaos {
    fn design(&self) -> Design {
        let fabric = RandomFabric {
            hosts_per_switch: self.hosts,
            radix: 8,
            rate: self.rate.parse().unwrap(),
            ..RandomFabric::new(self.switches, self.degree, self.seed)
        };
        let mut design = Design::new(fabric.generate().unwrap());
        (design.lanes, design.mtu, design.enforces) = (self.lanes, self.mtu, self.enforces);
        let (seed, wrong) = (self.seed, self.wrong);
        design.keys = Box::new(move |host| {
            let number = mixed(&[seed, 1, host.index() as u64]);
            let held = |index: &usize| number >> index & 1 == 1;
            (0..KEYS.len()).filter(held).map(|index| key(KEYS[index])).collect()
        });
        design.detour = Box::new(move |at: NodeIndex, to: NodeIndex| {
            let number = mixed(&[seed, 2, at.index() as u64, to.index() as u64]);
            (number % 100 < wrong).then(|| PortNum::new((number >> 20) as u8 % 9).unwrap())
        });
        design.sharing = (!self.is_plain).then(|| self.sharing());
        design
    }

    /// Some service levels are discarded, some on lanes that may not be operated, one input has another map,
    /// and every lane has weight.
    fn sharing(&self) -> Arc<PortQos> {
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed);
        let mut map = || SlToVl(std::array::from_fn(|_| lane(rng.random_range(0..16))));
        let (otherwise, other) = (map(), map());
        let mut low: Vec<VlArbEntry> =
            (0..15).map(|raw| VlArbEntry { lane: lane(raw), weight: rng.random_range(1..=255) }).collect();
        low.extend(
            (0..20)
                .map(|_| VlArbEntry { lane: lane(rng.random_range(0..15)), weight: rng.random_range(1..9) }),
        );
        let by_input = [(PortNum::new(rng.random_range(1..4)).unwrap(), other)].into();
        Arc::new(PortQos { by_input, otherwise, low, high: Vec::new() })
    }

    fn fabric(&self) -> Fabric {
        let mut fabric = self.design().fabric();
        let ports: Vec<_> = fabric.device_ids().flat_map(|device| fabric.ports_of(device)).collect();
        for number in 0..self.unplugged {
            let port = ports[mixed(&[self.seed, 3, number as u64]) as usize % ports.len()];
            fabric.unplug(Duration::ZERO, port);
        }
        fabric
    }
}

/// The outcome of the same packet as a datagram in the fabric.
fn carried(fabric: &mut Fabric, message: &Message) -> Result<(), DropReason> {
    let Service::Data(level) = message.service else { panic!("data only") };
    let mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET, Attribute::CLASS_PORT_INFO, 0);
    let from = message.from.port();
    let source = fabric.lid(from).unwrap();
    let mut datagram = Datagram::general_management(
        LidAddress::from(source),
        LidAddress::from(message.to),
        message.pkey,
        mad,
    );
    datagram.sl = level;
    fabric.handle_datagram(Duration::ZERO, from, datagram);
    let mut outcome = None;
    while let Some(output) = fabric.poll_output() {
        match output {
            // Traps of violations are delivered, too, on lane 15.
            FabricOutput::Deliver { datagram, .. } if !datagram.mad.class().is_subnet_management() => {
                outcome = Some(Ok(()))
            }
            FabricOutput::Lost { port, reason, datagram }
                if port == from && !datagram.mad.class().is_subnet_management() =>
            {
                outcome = Some(Err(reason));
            }
            _ => {}
        }
    }
    outcome.expect("a datagram is delivered or lost")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Every host sends to every LID and to one that does not exist, on some service levels with some P_Keys,
    /// one at a time.
    #[test]
    fn packets_arrive_exactly_where_datagrams_do(chaos in chaos()) {
        let mut fabric = chaos.fabric();
        let mut lids: Vec<Lid> = (1..=chaos.switches as u16 * (1 + u16::from(chaos.hosts)) + 1)
            .map(|raw| Lid::from_wire(raw).unwrap())
            .collect();
        lids.push(Lid::from_wire(0xbfff).unwrap());
        let senders: Vec<_> = fabric
            .device_ids()
            .flat_map(|device| fabric.ports_of(device))
            .filter(|port| fabric.node_of(*port).kind != ib_wire::NodeKind::Switch && fabric.lid(*port).is_some())
            .collect();
        let mut messages = Vec::new();
        for port in &senders {
            for to in &lids {
                let number = mixed(&[chaos.seed, 4, u64::from(to.to_wire()), messages.len() as u64]);
                let any_key = key(KEYS[(number >> 16) as usize % KEYS.len()]);
                messages.push(Message {
                    from: FunctionId::new(*port, (number % 3) as u8),
                    to: *to,
                    service: Service::Data(sl(if number & 8 == 0 { 0 } else { (number >> 8) as u8 % 16 })),
                    pkey: fabric.first_pkey(*port).filter(|_| number & 16 == 0).unwrap_or(any_key),
                    // The payload of a management datagram.
                    bytes: 256,
                    packet_bytes: Some(256),
                    header_bytes: HEADER_BYTES,
                    tag: Tag(0),
                    token: messages.len() as u64,
                });
            }
        }
        // Far enough apart that packets do not interfere, even on the longest loops.
        let spaced = messages.iter().enumerate().map(|(index, it)| (Time::from_us(index as u64 * 200), *it));
        let mut workload = Timed { messages: spaced.collect(), ..Timed::default() };
        let mut simulation = Simulation::new(TrafficNetwork::of(&fabric), TrafficSettings::default()).unwrap();
        simulation.run(&mut workload, Time::MAX);
        simulation.audit().unwrap();
        let mut results: BTreeMap<u64, Result<(), DropReason>> = BTreeMap::new();
        results.extend(workload.delivered.iter().map(|(_, message)| (message.token, Ok(()))));
        results.extend(workload.lost.iter().map(|(message, reason)| (message.token, Err(*reason))));
        for message in &messages {
            let expected = match fabric.holds_pkey(message.from.port(), message.pkey) {
                true => carried(&mut fabric, message),
                false => Err(DropReason::PartitionAtSender),
            };
            // A device with default arbitration may have lanes without weight: then a packet waits for ever.
            match results.get(&message.token) {
                Some(result) => prop_assert_eq!(*result, expected, "{:?}", message),
                None => prop_assert!(chaos.is_plain && simulation.totals().in_flight > 0, "{:?}", message),
            }
        }
    }

}

fn switch_model() -> impl Strategy<Value = SwitchModel> {
    let limited = (1u8..5).prop_map(|factor| SwitchModel::LimitedSpeedup(Speedup::new(factor).unwrap()));
    prop_oneof![Just(SwitchModel::IdealOutputs), limited, Just(SwitchModel::FifoInputs)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 90, ..ProptestConfig::default() })]

    /// All send at once, more than fits, with receivers that stop now and then. Audits run repeatedly.
    #[test]
    fn packets_and_credits_are_conserved(
        chaos in chaos(),
        blocks in 66u32..200,
        steps in 20u64..60,
        switch_model in switch_model(),
    ) {
        let fabric = chaos.fabric();
        let network = TrafficNetwork::of(&fabric);
        let ends = hosts(&network);
        prop_assume!(ends.len() > 1);
        let settings = TrafficSettings {
            buffer: Buffer::PerLane(blocks),
            management_packets: 1,
            switch_model,
            ..TrafficSettings::default()
        };
        let mut simulation = Simulation::new(network, settings).unwrap();
        let mut workload = Storm { ends, rng: Pcg64Mcg::seed_from_u64(chaos.seed), left: 3000 };
        let mut outcome = RunOutcome::TimeLimit;
        for step in 1..=steps {
            outcome = simulation.run(&mut workload, Time::from_ns(step * step * 137));
            simulation.audit().unwrap();
        }
        if outcome == RunOutcome::TimeLimit {
            outcome = simulation.run(&mut workload, Time::from_us(100_000_000));
            simulation.audit().unwrap();
        }
        let totals = simulation.totals();
        prop_assert_eq!(totals.created, totals.delivered + totals.dropped + totals.in_flight);
        match outcome {
            RunOutcome::Done => prop_assert_eq!(totals.in_flight, 0),
            RunOutcome::Stalled => prop_assert!(totals.in_flight > 0),
            RunOutcome::TimeLimit => prop_assert!(false, "a hundred seconds are enough"),
        }
        // With valid routes and weight on all lanes every run ends.
        if chaos.wrong == 0 && !chaos.is_plain && outcome == RunOutcome::Stalled {
            prop_assert!(simulation.credit_loop().is_some(), "shortest routes may close a ring; nothing else stops packets");
        }
        let by_account = simulation.measures().map(|(_, measure)| (measure.delivered, measure.dropped()));
        let (delivered, dropped) = by_account.fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
        prop_assert_eq!((delivered, dropped), (totals.delivered, totals.dropped));
    }
}

/// Sends random messages to random receivers.
struct Storm {
    ends: Vec<(fabric_sim::PortId, Lid)>,
    rng: Pcg64Mcg,
    left: u32,
}

impl Storm {
    fn post(&mut self, from: usize, actions: &mut WorkloadActions) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let rng = &mut self.rng;
        let service = match rng.random_range(0..20) {
            0 => Service::Management,
            _ => Service::Data(sl(rng.random_range(0..16))),
        };
        let most = [0, 40, 256, 2000, 9000][rng.random_range(0..5)];
        actions.post(Message {
            from: FunctionId::new(self.ends[from].0, rng.random_range(0..3)),
            to: self.ends[rng.random_range(0..self.ends.len())].1,
            service,
            pkey: key(KEYS[rng.random_range(0..KEYS.len())]),
            bytes: rng.random_range(0..=most),
            packet_bytes: [None, None, Some(1), Some(256), Some(5000)][rng.random_range(0..5)],
            header_bytes: [HEADER_BYTES, HEADER_BYTES_MAX, 82][rng.random_range(0..3)],
            tag: Tag(rng.random_range(0..4)),
            token: from as u64,
        });
    }
}

impl Workload for Storm {
    fn start(&mut self, actions: &mut WorkloadActions) {
        for from in 0..self.ends.len() {
            (0..8).for_each(|_| self.post(from, actions));
        }
        actions.wake(Time::from_ns(900), 0);
    }

    fn sent(&mut self, _: Time, message: &Message, actions: &mut WorkloadActions) {
        self.post(message.token as usize, actions);
    }

    fn lost(&mut self, _: Time, message: &Message, _: DropReason, actions: &mut WorkloadActions) {
        self.post(message.token as usize, actions);
    }

    fn delivered(&mut self, _: Time, message: &Message, _: Time, actions: &mut WorkloadActions) {
        if self.left.is_multiple_of(3) {
            self.post(message.token as usize, actions);
        }
    }

    /// A receiver stops draining and resumes later.
    fn woken(&mut self, now: Time, token: u64, actions: &mut WorkloadActions) {
        let index = self.rng.random_range(0..self.ends.len());
        match token {
            0 => {
                actions.stop_draining(self.ends[index].0);
                actions.wake(now + Time::from_us(3), index as u64 + 1);
            }
            stopped => {
                actions.drain(self.ends[stopped as usize - 1].0);
                if self.left > 0 {
                    actions.wake(now + Time::from_us(2), 0);
                }
            }
        }
    }
}
