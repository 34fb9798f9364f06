//! Packet-level simulation: latency, sharing, blocking and conservation.

use fabric_model::generate::{FatTree, Torus};
use fabric_model::{LinkRate, StatedHardware, Topology, ibnetdiscover};
use fabric_sim::traffic::{
    BLOCK_BYTES, Buffer, HEADER_BYTES, Message, ROUTED_BYTES, RunOutcome, Service, Simulation, Tag, Time,
    TrafficSettings, Workload, WorkloadActions,
};
use fabric_sim::{DropReason, FunctionId, PortId};
use ib_wire::{DataLanes, Lid, PortNum};

use crate::planned::{Design, Saturating, Timed, hosts, lane, message, sharing};

/// Four switches in a row, with a host at each end and at each switch. All links have one rate, except
/// perhaps the last.
fn row(rate: &str, last: &str) -> Topology {
    let mut text = String::new();
    let rates = |index: usize| if index == 3 { last } else { rate };
    for index in 0..4 {
        text +=
            &format!("Switch 4 \"s{index}\"\n[1] \"h{index}\"[1] # \"h{index}\" lid 0 {}\n", rates(index));
        if index > 0 {
            text += &format!("[2] \"s{}\"[3] # \"s\" lid 0 {rate}\n", index - 1);
        }
        if index < 3 {
            text += &format!("[3] \"s{}\"[2] # \"s\" lid 0 {rate}\n", index + 1);
        }
    }
    for index in 0..4 {
        text +=
            &format!("Ca 1 \"h{index}\"\n[1] \"s{index}\"[1] # lid 0 lmc 0 \"s\" lid 0 {}\n", rates(index));
    }
    ibnetdiscover::parse(&text).unwrap()
}

fn run(simulation: &mut Simulation, messages: Vec<(Time, Message)>) -> (Timed, RunOutcome) {
    let mut workload = Timed { messages, ..Timed::default() };
    let outcome = simulation.run(&mut workload, Time::from_us(1_000_000));
    simulation.audit().unwrap();
    (workload, outcome)
}

fn ps_per_byte(rate: &str) -> f64 {
    8000.0 / rate.parse::<LinkRate>().unwrap().data_rate_gbps()
}

#[test]
fn the_latency_of_an_idle_path_is_the_sum_of_its_parts() {
    let settings = TrafficSettings::default();
    for rate in ["4xSDR", "4xDDR", "4xQDR", "4xFDR", "4xEDR", "2xHDR", "4xHDR", "4xNDR", "1xSDR"] {
        let design = Design::new(row(rate, rate));
        let passage = StatedHardware::default().passage(rate.parse().unwrap());
        let passage = f64::from(passage.total_ns()) * 1e3;
        for bytes in [0, 4, 64, 1000, 4096] {
            let mut simulation = design.simulation(settings);
            let hosts = hosts(simulation.network());
            let sent = message(hosts[0].0, hosts[3].1, 0, bytes);
            let (workload, outcome) = run(&mut simulation, vec![(Time::ZERO, sent)]);
            assert_eq!(outcome, RunOutcome::Done);
            // Five links: at each switch the head must arrive, at the end the whole packet.
            let wire = (bytes + u64::from(HEADER_BYTES)) as f64;
            let expected = 5.0 * passage + (4.0 * f64::from(ROUTED_BYTES) + wire) * ps_per_byte(rate);
            let taken = workload.delivered[0].0.ps() as f64;
            assert!((taken - expected).abs() <= 5.0, "{rate}, {bytes} bytes: {taken} for {expected}");
            let measure = simulation.measure(Tag(0)).unwrap();
            assert_eq!((measure.uncontended.count(), measure.delivered, measure.bytes), (1, 1, bytes));
        }
    }
}

#[test]
fn a_faster_link_starts_only_when_it_can_send_without_a_gap() {
    let settings = TrafficSettings::default();
    let passage = (settings.device + settings.cable).ps() as f64;
    // To the last host from a slow to a fast link: the tail leaves when it has arrived. In the other
    // direction from fast to slow.
    for (from, to) in [(0, 3), (3, 0)] {
        let mut simulation = Design::new(row("4xQDR", "4xNDR")).simulation(settings);
        let hosts = hosts(simulation.network());
        let sent = message(hosts[from].0, hosts[to].1, 0, 4096);
        let (workload, _) = run(&mut simulation, vec![(Time::ZERO, sent)]);
        let (slow, fast) = (ps_per_byte("4xQDR"), ps_per_byte("4xNDR"));
        let (routed, fec) = (f64::from(ROUTED_BYTES), settings.fec.ps() as f64);
        let expected = match from {
            0 => 5.0 * passage + fec + 3.0 * routed * slow + 4122.0 * slow,
            _ => 5.0 * passage + fec + routed * fast + 3.0 * routed * slow + 4122.0 * slow,
        };
        let taken = workload.delivered[0].0.ps() as f64;
        assert!((taken - expected).abs() <= 5.0, "{from}: {taken} for {expected}");
    }
}

#[test]
fn messages_are_cut_into_packets_and_arrive_whole() {
    let mut simulation = Design::new(row("4xEDR", "4xEDR")).simulation(TrafficSettings::default());
    let hosts = hosts(simulation.network());
    let sizes = [0, 1, 4095, 4096, 4097, 1 << 20];
    let messages = sizes.map(|bytes| (Time::ZERO, message(hosts[0].0, hosts[2].1, 0, bytes)));
    let (workload, outcome) = run(&mut simulation, messages.to_vec());
    assert_eq!(outcome, RunOutcome::Done);
    assert_eq!(workload.delivered.iter().map(|(_, message)| message.bytes).collect::<Vec<_>>(), sizes);
    let measure = simulation.measure(Tag(0)).unwrap();
    assert_eq!((measure.delivered, measure.bytes), (1 + 1 + 1 + 1 + 2 + 256, sizes.iter().sum()));
    assert_eq!(measure.uncontended.count(), 1, "only the first found its lane empty");
    assert_eq!(measure.interval_bytes.iter().sum::<u64>(), measure.bytes);
}

#[test]
fn buffers_that_cover_the_round_trip_give_full_rate() {
    for rate in ["4xQDR", "4xEDR", "4xNDR"] {
        let mut simulation = Design::new(row(rate, rate)).simulation(TrafficSettings::default());
        let hosts = hosts(simulation.network());
        let mut workload = Saturating(vec![message(hosts[0].0, hosts[3].1, 0, 4096)]);
        simulation.run(&mut workload, Time::from_us(400));
        let measure = simulation.measure(Tag(0)).unwrap();
        let possible = 400e6 / ps_per_byte(rate);
        let part = measure.wire_bytes as f64 / possible;
        assert!((0.98..=1.0).contains(&part), "{rate}: {part}");
    }
}

#[test]
fn small_buffers_limit_a_link_to_one_buffer_per_round_trip() {
    let settings = TrafficSettings {
        buffer: Buffer::PerLane(66),
        cable: Time::from_us(10),
        ..TrafficSettings::default()
    };
    let mut simulation = Design::new(row("4xEDR", "4xEDR")).simulation(settings);
    let hosts = hosts(simulation.network());
    let mut workload = Saturating(vec![message(hosts[0].0, hosts[1].1, 0, 4096)]);
    simulation.run(&mut workload, Time::from_us(1000));
    // A packet occupies the buffer from its start until its tail has left and the credit has returned.
    let round = 2 * settings.cable.ps()
        + settings.device.ps()
        + settings.credit.ps()
        + (4122 + u64::from(ROUTED_BYTES)) * 80;
    let expected = 1_000_000_000 / round;
    let delivered = simulation.measure(Tag(0)).unwrap().delivered;
    assert!(delivered.abs_diff(expected) <= 2, "{delivered} for {expected}");
}

/// What each lane of a port sent, in bytes.
fn lane_bytes(simulation: &Simulation, port: PortId, lanes: u8) -> Vec<u64> {
    (0..lanes).map(|raw| simulation.lane_bytes(port, lane(raw))).collect()
}

#[test]
fn saturated_lanes_share_by_weight_to_within_a_packet() {
    for payload in [0, 38, 64, 256, 1000, 2048, 4096] {
        for low in [
            vec![(0, 10), (1, 20), (2, 40)],
            vec![(0, 65), (1, 130), (0, 65), (2, 1)],
            vec![(2, 255), (1, 3)],
        ] {
            let mut design = Design::new(row("4xEDR", "4xEDR"));
            design.sharing = Some(sharing(3, &low));
            design.lanes = DataLanes::Four;
            let mut simulation = design.simulation(TrafficSettings::default());
            let hosts = hosts(simulation.network());
            let lanes: Vec<u8> = (0..3).filter(|raw| low.iter().any(|(lane, _)| lane == raw)).collect();
            // Two messages each, so that the next packet is queued when one has left.
            let messages =
                lanes.iter().flat_map(|level| [message(hosts[0].0, hosts[1].1, *level, payload); 2]);
            let mut workload = Saturating(messages.collect());
            simulation.run(&mut workload, Time::from_us(2000));
            simulation.audit().unwrap();
            let units = (payload + u64::from(HEADER_BYTES)).div_ceil(BLOCK_BYTES.into());
            let sent = lane_bytes(&simulation, hosts[0].0, 3);
            // Packets of a visit: as many as start before the weight is used up.
            let visit = |weight: u8| u64::from(weight).div_ceil(units);
            let round = |lane: u8| low.iter().filter(|it| it.0 == lane).map(|it| visit(it.1)).sum::<u64>();
            let rounds = |lane: u8| {
                let packets = sent[usize::from(lane)] / (payload + u64::from(HEADER_BYTES));
                packets as f64 / round(lane) as f64
            };
            for pair in lanes.windows(2) {
                let (a, b) = (rounds(pair[0]), rounds(pair[1]));
                assert!((a - b).abs() <= 1.0 && a > 5.0, "{payload} bytes, {low:?}: {a} and {b} rounds");
            }
        }
    }
}

#[test]
fn weights_hold_at_a_switch_that_changes_lanes() {
    let mut design = Design::new(row("4xEDR", "4xEDR"));
    design.sharing = Some(sharing(2, &[(0, 65), (1, 195)]));
    let mut simulation = design.simulation(TrafficSettings::default());
    let hosts = hosts(simulation.network());
    let mut workload =
        Saturating(vec![message(hosts[1].0, hosts[3].1, 0, 4096), message(hosts[0].0, hosts[3].1, 1, 4096)]);
    simulation.run(&mut workload, Time::from_us(2000));
    let [a, b] = [0, 1].map(|tag| simulation.measure(Tag(tag)).unwrap().bytes as f64);
    assert!((b / a - 3.0).abs() < 0.02, "{b} to {a}");
    let possible = 2e9 / 80.0 * 4096.0 / 4122.0;
    assert!((a + b) / possible > 0.99, "nothing is left unused");
}

#[test]
fn a_lane_without_rivals_gets_the_whole_link() {
    let mut design = Design::new(row("4xEDR", "4xEDR"));
    design.sharing = Some(sharing(8, &[(0, 1), (1, 255), (2, 255), (3, 255), (4, 255)]));
    let mut simulation = design.simulation(TrafficSettings::default());
    let hosts = hosts(simulation.network());
    let mut workload = Saturating(vec![message(hosts[0].0, hosts[3].1, 0, 4096)]);
    simulation.run(&mut workload, Time::from_us(400));
    let part = simulation.measure(Tag(0)).unwrap().wire_bytes as f64 * 80.0 / 400e6;
    assert!(part > 0.98, "{part}");
}

#[test]
fn inputs_take_turns_in_a_lane() {
    // Three hosts send to the fourth; two of them share a link.
    let mut simulation = Design::new(row("4xEDR", "4xEDR")).simulation(TrafficSettings::default());
    let hosts = hosts(simulation.network());
    let messages =
        (0..3).map(|from| Message { tag: Tag(from as u16), ..message(hosts[from].0, hosts[3].1, 0, 4096) });
    simulation.run(&mut Saturating(messages.collect()), Time::from_us(2000));
    let bytes = [0, 1, 2].map(|tag| simulation.measure(Tag(tag)).unwrap().bytes as f64);
    let total: f64 = bytes.iter().sum();
    // The parking-lot problem: the nearer sender gets more.
    for (got, part) in bytes.iter().zip([0.25, 0.25, 0.5]) {
        assert!((got / total - part).abs() < 0.01, "{bytes:?}");
    }
}

#[test]
fn a_slow_link_blocks_only_its_own_lane() {
    let messages = |hosts: &[(PortId, Lid)], level| {
        vec![
            // Three senders to one receiver, and one that shares the path of the first up to the second
            // switch.
            message(hosts[0].0, hosts[3].1, 0, 4096),
            message(hosts[1].0, hosts[3].1, 0, 4096),
            message(hosts[2].0, hosts[3].1, 0, 4096),
            Message {
                tag: Tag(9),
                from: FunctionId::new(hosts[0].0, 1),
                ..message(hosts[0].0, hosts[1].1, level, 4096)
            },
        ]
    };
    let part = |level| {
        let mut design = Design::new(row("4xEDR", "4xEDR"));
        design.sharing = Some(sharing(2, &[(0, 65), (1, 65)]));
        let mut simulation = design.simulation(TrafficSettings::default());
        let hosts = hosts(simulation.network());
        simulation.run(&mut Saturating(messages(&hosts, level)), Time::from_us(2000));
        simulation.measure(Tag(9)).unwrap().wire_bytes as f64 * 80.0 / 2e9
    };
    let (same, own) = (part(0), part(1));
    assert!(same < 0.3, "in the same lane it gets {same}");
    assert!(own > 0.7, "in a lane of its own it gets {own}");
}

#[test]
fn functions_of_an_adapter_share_a_lane_and_use_loopback() {
    let mut simulation = Design::new(row("4xEDR", "4xEDR")).simulation(TrafficSettings::default());
    let hosts = hosts(simulation.network());
    let from = |number: u8, to, bytes| Message {
        from: FunctionId::new(hosts[0].0, number),
        tag: Tag(number.into()),
        ..message(hosts[0].0, to, 0, bytes)
    };
    let mut messages: Vec<Message> = (0..7).map(|number| from(number, hosts[1].1, 4096)).collect();
    messages.push(from(7, hosts[0].1, 4096));
    simulation.run(&mut Saturating(messages), Time::from_us(1000));
    simulation.audit().unwrap();
    let bytes: Vec<u64> = (0..8).map(|tag| simulation.measure(Tag(tag)).unwrap().bytes).collect();
    for got in &bytes[..7] {
        assert!(got.abs_diff(bytes[0]) <= 2 * 4096, "{bytes:?}");
    }
    let possible = (1e9 / 80.0 * 4096.0 / 4122.0) as u64;
    assert!(bytes[..7].iter().sum::<u64>() > possible * 98 / 100, "the link is theirs: {bytes:?}");
    assert!(bytes[7] > possible * 98 / 100, "loopback does not affect the link: {bytes:?}");
}

/// Four switches in a ring with a host at each.
fn ring() -> Topology {
    Torus { wrap: true, ..Torus::new([4]) }.generate().unwrap()
}

/// Every host sends to the opposite one, always clockwise or on the shortest path; three messages of a
/// megabyte.
fn across(is_clockwise: bool) -> (Simulation, RunOutcome) {
    let topology = ring();
    let switches: Vec<_> = topology.switches().map(|(index, _)| index).collect();
    let clockwise: Vec<PortNum> = (0..4)
        .map(|index| {
            let next = switches[(index + 1) % 4];
            topology[switches[index]].cabled_ports().find(|(_, peer)| peer.node == next).unwrap().0
        })
        .collect();
    let ends: Vec<_> = topology
        .end_nodes()
        .map(|(index, node)| (index, node.cabled_ports().next().unwrap().1.node))
        .collect();
    let mut design = Design::new(topology);
    if is_clockwise {
        design.detour = Box::new(move |at, to| {
            let (_, switch) = ends.iter().find(|(end, _)| *end == to)?;
            let index = switches.iter().position(|switch| *switch == at)?;
            (at != *switch).then(|| clockwise[index])
        });
    }
    let settings = TrafficSettings { buffer: Buffer::PerLane(130), ..TrafficSettings::default() };
    let mut simulation = design.simulation(settings);
    let hosts = hosts(simulation.network());
    let messages = (0..4).flat_map(|from| {
        // Three quarters around: every packet holds a link while it waits for the next.
        let sent = message(hosts[from].0, hosts[(from + 3) % 4].1, 0, 1 << 20);
        [(Time::ZERO, sent); 3]
    });
    let (_, outcome) = run(&mut simulation, messages.collect());
    (simulation, outcome)
}

#[test]
fn cyclic_routes_deadlock_and_acyclic_ones_do_not() {
    let (simulation, outcome) = across(true);
    assert_eq!(outcome, RunOutcome::Stalled);
    let ring = simulation.credit_loop().expect("a ring");
    assert_eq!(ring.len(), 4, "{ring:?}");
    assert!(ring.windows(2).all(|pair| simulation.network().peer(pair[0].out.0) == Some(pair[1].at.0)));
    assert!(simulation.totals().in_flight > 0);
    let (simulation, outcome) = across(false);
    assert_eq!((outcome, simulation.credit_loop()), (RunOutcome::Done, None));
    assert_eq!(simulation.totals().delivered, 4 * 3 * 256);
}

/// Sends without pause, and one receiver stops draining for a while.
struct Stopping {
    senders: Saturating,
    port: PortId,
}

impl Workload for Stopping {
    fn start(&mut self, actions: &mut WorkloadActions) {
        self.senders.start(actions);
        actions.wake(Time::from_us(200), 0);
        actions.wake(Time::from_us(600), 1);
    }

    fn sent(&mut self, now: Time, message: &Message, actions: &mut WorkloadActions) {
        self.senders.sent(now, message, actions);
    }

    fn woken(&mut self, _: Time, token: u64, actions: &mut WorkloadActions) {
        match token {
            0 => actions.stop_draining(self.port),
            _ => actions.drain(self.port),
        }
    }
}

#[test]
fn a_receiver_that_stops_draining_stalls_its_own_lane_only() {
    let mut design = Design::new(row("4xEDR", "4xEDR"));
    design.sharing = Some(sharing(2, &[(0, 65), (1, 65)]));
    let settings = TrafficSettings { interval: Time::from_us(100), ..TrafficSettings::default() };
    let mut simulation = design.simulation(settings);
    let hosts = hosts(simulation.network());
    let senders = Saturating(vec![
        message(hosts[0].0, hosts[3].1, 0, 4096),
        message(hosts[1].0, hosts[2].1, 1, 4096),
        Message { tag: Tag(2), ..message(hosts[1].0, hosts[2].1, 0, 4096) },
    ]);
    let mut workload = Stopping { senders, port: hosts[3].0 };
    for step in 1..=10 {
        simulation.run(&mut workload, Time::from_us(step * 100));
        simulation.audit().unwrap();
    }
    let interval_bytes = |tag| simulation.measure(Tag(tag)).unwrap().interval_bytes.clone();
    let (stopped, other, behind) = (interval_bytes(0), interval_bytes(1), interval_bytes(2));
    assert_eq!(stopped[3..6], [0, 0, 0], "the receiver does not drain");
    assert_eq!(behind[4..6], [0, 0], "packets of the same lane wait behind it");
    let whole = (100e6 / 80.0 * 4096.0 / 4122.0) as u64;
    assert!(
        other[4] > whole * 97 / 100 && other[5] > whole * 97 / 100,
        "the other lane has it all: {other:?}"
    );
    assert!(other[0] < whole * 60 / 100 && other[8] < whole * 60 / 100, "and shares otherwise: {other:?}");
    assert!(stopped[8] > whole / 5 && behind[8] > whole / 5, "it goes on when it drains: {stopped:?}");
}

#[test]
fn the_same_workload_gives_the_same_results() {
    let once = || {
        let mut simulation =
            Design::new(FatTree::with_hosts(40).generate().unwrap()).simulation(TrafficSettings::default());
        let hosts = hosts(simulation.network());
        let messages = (0..40).map(|from| message(hosts[from].0, hosts[(from * 7 + 3) % 40].1, 0, 10_000));
        simulation.run(&mut Saturating(messages.collect()), Time::from_us(100));
        let measures: Vec<_> = simulation.measures().map(|(tag, measure)| (tag, measure.clone())).collect();
        (simulation.totals(), measures)
    };
    assert_eq!(once(), once());
}

#[test]
fn invalid_settings_are_rejected() {
    let design = Design::new(row("4xEDR", "4xEDR"));
    let network = || fabric_sim::traffic::TrafficNetwork::of(&design.fabric());
    for buffer in [Buffer::PerLane(65), Buffer::PerPort(65 * 8), Buffer::PerLane(2049)] {
        assert!(
            Simulation::new(network(), TrafficSettings { buffer, ..TrafficSettings::default() }).is_err(),
            "{buffer:?}"
        );
    }
    assert!(
        Simulation::new(network(), TrafficSettings { interval: Time::ZERO, ..TrafficSettings::default() })
            .is_err()
    );
}

fn management(from: PortId, to: Lid) -> Message {
    Message { service: Service::Management, tag: Tag(15), ..message(from, to, 0, 256) }
}

#[test]
fn management_has_priority_and_is_dropped_without_a_buffer() {
    // Two hosts flood the third with management, and the first also sends data to it.
    let mut simulation = Design::new(row("4xEDR", "4xEDR")).simulation(TrafficSettings::default());
    let hosts = hosts(simulation.network());
    let mut workload = Saturating(vec![
        management(hosts[0].0, hosts[2].1),
        management(hosts[1].0, hosts[2].1),
        message(hosts[0].0, hosts[2].1, 0, 4096),
        Message { tag: Tag(1), ..message(hosts[3].0, hosts[1].1, 0, 4096) },
    ]);
    simulation.run(&mut workload, Time::from_us(400));
    simulation.audit().unwrap();
    let flood = simulation.measure(Tag(15)).unwrap();
    let part = flood.wire_bytes as f64 * 80.0 / 400e6;
    assert!(part > 0.95, "management has the link: {part}");
    assert!(flood.drops[&DropReason::NoRoom] > 1000, "{:?}", flood.drops);
    assert_eq!(simulation.measure(Tag(0)).unwrap().delivered, 0, "data behind it waits");
    let other = simulation.measure(Tag(1)).unwrap();
    assert_eq!((other.dropped(), other.delivered > 1100), (0, true), "another path is not affected");
}

#[test]
fn an_uncontended_packet_waits_at_most_one_arbitration_round() {
    // Lane 1 of four, each lane once in the table: the other three are saturated, and lane 1 has a packet now
    // and then.
    let mut design = Design::new(row("4xEDR", "4xEDR"));
    design.sharing = Some(sharing(4, &[(0, 65), (1, 65), (2, 65), (3, 65)]));
    let mut simulation = design.simulation(TrafficSettings::default());
    let hosts = hosts(simulation.network());
    let mut workload = Beside {
        others: Saturating([0, 2, 3].map(|level| message(hosts[0].0, hosts[3].1, level, 4096)).to_vec()),
        own: message(hosts[0].0, hosts[3].1, 1, 4096),
    };
    simulation.run(&mut workload, Time::from_us(5000));
    let own = simulation.measure(Tag(1)).unwrap();
    assert_eq!(own.uncontended.count(), own.delivered);
    // Three visits of a packet each, the packet's own time, and the delays of devices and heads. Only the
    // first link is contended: on the others packets arrive one after the other.
    let settings = TrafficSettings::default();
    let packet = 4122 * 80;
    let passage = 5 * (settings.device + settings.cable).ps() + 4 * u64::from(ROUTED_BYTES) * 80;
    let bound = 3 * packet + packet + passage;
    let (least, most) = (own.uncontended.min().unwrap().ps(), own.uncontended.max().unwrap().ps());
    assert!(most <= bound, "{most} with a bound of {bound}");
    assert!(most > bound - packet, "and nearly that: {most} with a bound of {bound}");
    assert!(most > least + packet && least >= packet + passage, "{least} to {most}");
}

/// Saturating senders, and a packet about every ten microseconds.
struct Beside {
    others: Saturating,
    own: Message,
}

impl Workload for Beside {
    fn start(&mut self, actions: &mut WorkloadActions) {
        self.others.start(actions);
        actions.wake(Time::from_us(20), 0);
    }

    fn sent(&mut self, now: Time, message: &Message, actions: &mut WorkloadActions) {
        if message.tag != self.own.tag {
            self.others.sent(now, message, actions);
        }
    }

    fn woken(&mut self, now: Time, _: u64, actions: &mut WorkloadActions) {
        actions.post(self.own);
        actions.wake(now + Time::from_ns(10_037), 0);
    }
}
