//! Links are not idle while a packet could be sent: best effort gets what guaranteed lanes leave.

use fabric_model::{Topology, ibnetdiscover};
use fabric_sim::PortId;
use fabric_sim::traffic::{Buffer, Message, Simulation, Time, TrafficSettings, Workload, WorkloadActions};
use ib_wire::DataLanes;
use proptest::prelude::*;

use crate::planned::{Design, Saturating, hosts, lane, message, sharing};

/// Time per byte on the links of these tests.
const PS_PER_BYTE: u64 = 80;

/// The largest packet on the wire.
const PACKET: u64 = 4122;

/// Three hosts at one switch.
fn star() -> Topology {
    let mut text = String::from("Switch 4 \"s\"\n");
    for host in 1..=3 {
        text += &format!("[{host}] \"h{host}\"[1] # \"h\" lid 0 4xEDR\n");
    }
    for host in 1..=3 {
        text += &format!("Ca 1 \"h{host}\"\n[1] \"s\"[{host}] # lid 0 lmc 0 \"s\" lid 0 4xEDR\n");
    }
    ibnetdiscover::parse(&text).unwrap()
}

fn simulation(table: &[(u8, u8)], settings: TrafficSettings) -> Simulation {
    let mut design = Design::new(star());
    design.lanes = DataLanes::Eight;
    design.sharing = Some(sharing(8, table));
    design.simulation(settings)
}

/// The unused capacity of a link in bytes, from the bytes it has sent.
struct Observer {
    port: PortId,
    since: Time,
    before: u64,
}

impl Observer {
    fn new(simulation: &Simulation, port: PortId) -> Self {
        Self { port, since: simulation.now(), before: simulation.sent_bytes(port) }
    }

    fn idle_bytes(&self, simulation: &Simulation) -> i64 {
        let possible = (simulation.now() - self.since).ps() / PS_PER_BYTE;
        possible as i64 - (simulation.sent_bytes(self.port) - self.before) as i64
    }
}

/// Best effort at full rate, and a guaranteed lane now and then.
struct Beside {
    rest: Saturating,
    guaranteed: Option<(Message, Time)>,
}

impl Workload for Beside {
    fn start(&mut self, actions: &mut WorkloadActions) {
        self.rest.start(actions);
        actions.wake(Time::ZERO, 0);
    }

    fn sent(&mut self, now: Time, message: &Message, actions: &mut WorkloadActions) {
        if self.rest.0.iter().any(|other| other.service == message.service) {
            self.rest.sent(now, message, actions);
        }
    }

    fn woken(&mut self, now: Time, _: u64, actions: &mut WorkloadActions) {
        if let Some((message, pause)) = self.guaranteed {
            actions.post(message);
            actions.wake(now + pause, 0);
        }
    }
}

#[test]
fn best_effort_has_all_that_guaranteed_lanes_leave() {
    // Best effort has the smallest weight; one guaranteed lane is idle, the other asks for nothing, a third,
    // and three quarters of the link, which is nearly its share.
    for pause_ns in [None, Some(1000), Some(440)] {
        let mut simulation = simulation(&[(0, 1), (1, 255), (2, 255)], TrafficSettings::default());
        let hosts = hosts(simulation.network());
        let out = simulation.network().peer(hosts[1].0).unwrap();
        let guaranteed = pause_ns.map(|ns| (message(hosts[0].0, hosts[1].1, 1, 4096), Time::from_ns(ns)));
        let rest = Saturating(vec![message(hosts[0].0, hosts[1].1, 0, 4096); 2]);
        let mut workload = Beside { rest, guaranteed };
        simulation.run(&mut workload, Time::from_us(20));
        for port in [hosts[0].0, out] {
            let lanes = |simulation: &Simulation| [0, 1].map(|raw| simulation.lane_bytes(port, lane(raw)));
            let (observer, before) = (Observer::new(&simulation, port), lanes(&simulation));
            simulation.run(&mut workload, simulation.now() + Time::from_us(400));
            let after = lanes(&simulation);
            let [rest, own] = [0, 1].map(|place| after[place] - before[place]);
            let left = 400_000_000 / PS_PER_BYTE - own;
            assert!(rest.abs_diff(left) <= PACKET, "{pause_ns:?} {port:?}: {rest} of {left}");
            assert!(observer.idle_bytes(&simulation).unsigned_abs() <= PACKET);
            let wanted = pause_ns.map_or(0, |ns| 400_000 / ns);
            assert!((own / PACKET).abs_diff(wanted) <= 1, "the guaranteed lane gets all it asks for: {own}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    /// Two hosts send to the third on some lanes, in packets of any size: the link to it always has a packet
    /// to send.
    #[test]
    fn a_link_for_which_lanes_wait_is_never_idle(
        weights in prop::collection::vec(1u8..=255, 1..8),
        payloads in prop::collection::vec(prop::sample::select(vec![0u64, 4, 38, 39, 256, 1000, 4096]), 8),
        steps in prop::collection::vec(1u64..9_000, 20),
    ) {
        let table: Vec<(u8, u8)> = weights.iter().enumerate().map(|(raw, weight)| (raw as u8, *weight)).collect();
        let mut simulation = simulation(&table, TrafficSettings::default());
        let hosts = hosts(simulation.network());
        let out = simulation.network().peer(hosts[2].0).unwrap();
        let messages = table.iter().flat_map(|(raw, _)| {
            [0, 1].map(|from| message(hosts[from].0, hosts[2].1, *raw, payloads[usize::from(*raw)]))
        });
        let mut workload = Saturating(messages.collect());
        simulation.run(&mut workload, Time::from_us(20));
        let observer = Observer::new(&simulation, out);
        for ns in steps {
            simulation.run(&mut workload, simulation.now() + Time::from_ns(ns));
            simulation.audit().unwrap();
            let idle = observer.idle_bytes(&simulation);
            prop_assert!(idle.unsigned_abs() <= PACKET, "{} bytes after {}", idle, simulation.now());
        }
    }

    /// With buffers that are always full, no packet with credits waits for an idle link.
    #[test]
    fn a_packet_with_credits_and_an_idle_link_does_not_wait(
        weights in prop::collection::vec(1u8..=255, 1..8),
        payloads in prop::collection::vec(0u64..=4096, 8),
        blocks in 66u32..140,
        cable_ns in 10u64..2_000,
        steps in prop::collection::vec(1u64..3_000, 60),
    ) {
        let table: Vec<(u8, u8)> = weights.iter().enumerate().map(|(raw, weight)| (raw as u8, *weight)).collect();
        let cable = Time::from_ns(cable_ns);
        let mut simulation =
            simulation(&table, TrafficSettings { buffer: Buffer::PerLane(blocks), cable, ..TrafficSettings::default() });
        let hosts = hosts(simulation.network());
        let messages = table.iter().flat_map(|(raw, _)| {
            [(0, 2), (1, 2), (1, 0)]
                .map(|(from, to)| message(hosts[from].0, hosts[to].1, *raw, payloads[usize::from(*raw)]))
        });
        let mut workload = Saturating(messages.collect());
        for ns in steps {
            simulation.run(&mut workload, simulation.now() + Time::from_ns(ns));
            simulation.audit().unwrap();
        }
    }
}
