//! Scenarios on a small fat-tree: results, and rejected scenarios.

use std::collections::BTreeMap;

use fabric_model::StatedHardware;
use fabric_model::generate::{FatTree, FatTreeSize};
use fabric_sim::scenario::{
    Bursts, ClusterSet, Scenario, ScenarioError, ScenarioReport, SendPattern, SendRate, Size, Span,
    WorkloadSpec, run_scenario,
};
use fabric_sim::traffic::{Time, TrafficNetwork};
use ib_wire::Guid;

use crate::planned::{Design, sharing, sl};

/// Two clusters of four nodes on eight hosts behind two leaves, each with a lane and a service level of its
/// own.
struct World {
    design: Design,
    nodes: BTreeMap<String, Vec<Guid>>,
}

impl World {
    fn new() -> Self {
        let size = FatTreeSize::Hosts { hosts: 8, tiers: Some(2) };
        let topology = FatTree { radix: 8, ..FatTree::new(size) }.generate().unwrap();
        let ports: Vec<Guid> =
            topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect();
        let every_second = |first: usize| ports.iter().skip(first).step_by(2).copied().collect();
        let nodes = [("calm", every_second(0)), ("loud", every_second(1))];
        let mut design = Design::new(topology);
        design.sharing = Some(sharing(3, &[(0, 65), (1, 65), (2, 65)]));
        Self { design, nodes: nodes.map(|(name, ports)| (name.to_owned(), ports)).into() }
    }

    fn clusters(&self) -> ClusterSet {
        let fabric = self.design.fabric();
        let mut clusters = ClusterSet::of(&fabric, &self.design.plan(), &self.nodes).unwrap();
        for (cluster, level) in clusters.clusters.iter_mut().zip(1..) {
            cluster.sl = sl(level);
        }
        clusters
    }

    fn run(&self, workloads: Vec<WorkloadSpec>, seed: u64) -> Result<ScenarioReport, ScenarioError> {
        let us = |us| Span::from_time(Time::from_us(us));
        let scenario = Scenario {
            duration: us(200),
            warm_up: us(20),
            buffer: Size::from_bytes(65536),
            switch_model: None,
            workloads,
        };
        let hardware = StatedHardware::default();
        run_scenario(TrafficNetwork::of(&self.design.fabric()), &self.clusters(), &scenario, &hardware, seed)
    }
}

fn spec(cluster: &str, send: SendPattern) -> WorkloadSpec {
    WorkloadSpec {
        cluster: cluster.to_owned(),
        send,
        message: vec![Size::from_bytes(4096)],
        rate: SendRate::Full,
        to: 1,
        percent: 50,
        bursts: None,
        compute: Span::default(),
    }
}

fn gbps(report: &ScenarioReport, name: &str) -> f64 {
    let cluster = report.clusters.iter().find(|cluster| cluster.name == name).unwrap();
    cluster.mean_rate.bits_per_s() as f64 / 1e9
}

#[test]
fn patterns_deliver_what_their_links_can_carry() {
    let world = World::new();
    for (send, least, most) in [
        (SendPattern::AllToAll, 60.0, 101.0),
        (SendPattern::Shift, 60.0, 101.0),
        (SendPattern::Random, 40.0, 101.0),
        (SendPattern::Incast, 20.0, 26.0),
        (SendPattern::Hotspot, 20.0, 80.0),
    ] {
        let report = world.run(vec![spec("calm", send)], 1).unwrap();
        let got = gbps(&report, "calm");
        assert!((least..most).contains(&got), "{send:?}: {got} Gb/s of 100");
        assert_eq!(report.totals.dropped, 0, "{send:?}");
        assert!(!report.links.is_empty() && report.links.iter().all(|(_, load)| *load < 1.01));
    }
}

#[test]
fn a_rate_is_respected_and_bursts_pause() {
    let world = World::new();
    let paced = WorkloadSpec { rate: "10G".parse().unwrap(), ..spec("calm", SendPattern::AllToAll) };
    let report = world.run(vec![paced.clone()], 1).unwrap();
    assert!((9.5..10.5).contains(&gbps(&report, "calm")), "{}", gbps(&report, "calm"));
    let us = |us| Span::from_time(Time::from_us(us));
    let bursts = Some(Bursts { on: us(10), off: us(30) });
    let report = world.run(vec![WorkloadSpec { bursts, ..paced }], 1).unwrap();
    assert!((2.0..3.5).contains(&gbps(&report, "calm")), "{}", gbps(&report, "calm"));
}

#[test]
fn hostile_clusters_do_not_affect_other_lanes() {
    let world = World::new();
    let calm = || WorkloadSpec { rate: "20G".parse().unwrap(), ..spec("calm", SendPattern::AllToAll) };
    for send in [SendPattern::Everything, SendPattern::Overshoot, SendPattern::Stall] {
        let report = world.run(vec![calm(), spec("loud", send)], 1).unwrap();
        assert!((19.0..21.0).contains(&gbps(&report, "calm")), "{send:?}: {}", gbps(&report, "calm"));
        let loud = report.clusters.iter().find(|cluster| cluster.name == "loud").unwrap();
        assert!(loud.is_hostile && (loud.latency.count() > 0 || report.totals.in_flight > 50), "{send:?}");
    }
}

#[test]
fn in_a_shared_lane_a_flooding_cluster_takes_the_link() {
    let world = World::new();
    let scenario = |clusters: &ClusterSet| {
        let us = |us| Span::from_time(Time::from_us(us));
        let workloads = vec![
            WorkloadSpec { rate: "20G".parse().unwrap(), ..spec("calm", SendPattern::Incast) },
            spec("loud", SendPattern::Incast),
        ];
        let scenario = Scenario {
            duration: us(200),
            warm_up: us(20),
            buffer: Size::from_bytes(65536),
            switch_model: None,
            workloads,
        };
        let hardware = StatedHardware::default();
        run_scenario(TrafficNetwork::of(&world.design.fabric()), clusters, &scenario, &hardware, 1).unwrap()
    };
    let mut clusters = world.clusters();
    // The loud cluster sends to the node that the calm one sends to.
    let target = clusters.clusters[0].nodes[0].clone();
    clusters.clusters[1].nodes[0] = target;
    let apart = gbps(&scenario(&clusters), "calm");
    let together = gbps(&scenario(&clusters.on_default_service_level()), "calm");
    // Three of four nodes send: half of the link is 12.5 Gb/s each, on average.
    assert!(apart > 12.3 && together < apart * 0.85, "{apart} {together}");
}

#[test]
fn rounds_last_as_long_as_their_exchange() {
    let world = World::new();
    let compute = Span::from_time(Time::from_us(5));
    let rounds = |message: u64| {
        let messages = vec![Size::from_bytes(message)];
        let spec = WorkloadSpec { message: messages, compute, ..spec("calm", SendPattern::BulkSynchronous) };
        let report = world.run(vec![spec], 1).unwrap();
        report.clusters[0].rounds.clone().unwrap()
    };
    let (small, large) = (rounds(1 << 10), rounds(1 << 16));
    assert!(small.count() > 20 && large.count() >= 5, "{} {}", small.count(), large.count());
    // Three messages of 64 KiB take 15.7 µs on a link of 100 Gb/s.
    let median = large.quantile(0.5).unwrap().us();
    assert!((15.7..40.0).contains(&median), "{median}");
    assert!(small.quantile(0.5).unwrap().us() < 4.0);
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let world = World::new();
    let workloads = || vec![spec("calm", SendPattern::Random), spec("*", SendPattern::Everything)];
    let [one, two, other] = [7, 7, 8].map(|seed| world.run(workloads(), seed).unwrap());
    assert_eq!(one.totals, two.totals);
    assert_ne!(one.totals, other.totals);
}

#[test]
fn a_scenario_that_does_not_fit_the_clusters_is_rejected() {
    let world = World::new();
    let bad = [
        (spec("nobody", SendPattern::Shift), "cluster nobody does not exist"),
        (
            WorkloadSpec { message: vec![], ..spec("calm", SendPattern::Shift) },
            "cluster calm: a workload needs at least one message size",
        ),
        (
            WorkloadSpec { message: vec![Size::from_bytes(0)], ..spec("calm", SendPattern::Shift) },
            "cluster calm: a message must have 1 byte to 64 MiB, got 0 bytes",
        ),
        (
            WorkloadSpec { to: 9, ..spec("calm", SendPattern::Incast) },
            "cluster calm: `to` must be between 1 and 4, got 9",
        ),
        (
            WorkloadSpec { percent: 101, ..spec("calm", SendPattern::Hotspot) },
            "cluster calm: percent must be between 0 and 100, got 101",
        ),
        (
            WorkloadSpec { rate: SendRate::Guaranteed, ..spec("calm", SendPattern::AllToAll) },
            "cluster calm: the rate cannot be `guaranteed`, because the plan guarantees it none",
        ),
    ];
    for (spec, why) in bad {
        assert_eq!(world.run(vec![spec], 1).unwrap_err().to_string(), why);
    }
}

/// The rate of the calm cluster while the loud one is hostile, relative to the part of the guarantee that its packets can use,
/// and to all of it.
fn kept(message: u64, guarantee: &str) -> (f64, f64) {
    let world = World::new();
    let mut clusters = world.clusters();
    clusters.clusters[0].guarantee = Some(guarantee.parse().unwrap());
    let us = |us| Span::from_time(Time::from_us(us));
    let sizes = vec![Size::from_bytes(message)];
    let calm =
        WorkloadSpec { rate: SendRate::Guaranteed, message: sizes, ..spec("calm", SendPattern::AllToAll) };
    let workloads = vec![calm, spec("loud", SendPattern::Overshoot)];
    let scenario = Scenario {
        duration: us(200),
        warm_up: us(20),
        buffer: Size::from_bytes(65536),
        switch_model: None,
        workloads,
    };
    let network = TrafficNetwork::of(&world.design.fabric());
    let report = run_scenario(network, &clusters, &scenario, &StatedHardware::default(), 1).unwrap();
    let cluster = &report.clusters[0];
    assert!(cluster.is_tested);
    (cluster.rate_fraction().unwrap(), cluster.rate_fraction().unwrap() * cluster.fill)
}

#[test]
fn small_packets_use_only_part_of_the_guaranteed_blocks() {
    // 30 bytes in a block of 64, where full-size packets have 4122 in 65.
    for (message, fill) in [(4, 30.0 / 64.0), (38, 1.0), (39, 65.0 / 128.0), (4096, 1.0), (65536, 1.0)] {
        let whole: f64 = 4122.0 / (65.0 * 64.0);
        let (kept, of_all) = kept(message, "10G");
        assert!((0.97..1.6).contains(&kept), "{message} bytes: {kept}");
        let expected = (fill / whole).min(1.0) * kept;
        assert!((of_all - expected).abs() < 0.001, "{message} bytes: {of_all} for {expected}");
    }
}

#[test]
fn alternating_message_sizes_keep_all_to_all_even() {
    let world = World::new();
    let sizes = [64 << 10, 4, 4].map(Size::from_bytes).to_vec();
    let calm =
        WorkloadSpec { message: sizes, rate: "5G".parse().unwrap(), ..spec("calm", SendPattern::AllToAll) };
    let report = world.run(vec![calm], 1).unwrap();
    // As many sizes as receivers: if sizes alternated per message, one receiver would get all large ones.
    let into = |index: usize| {
        let clusters = world.clusters();
        let network = TrafficNetwork::of(&world.design.fabric());
        let port = network.peer(clusters.clusters[0].nodes[index].function.port()).unwrap();
        report.links.iter().find(|(link, _)| *link == port).map_or(0.0, |(_, load)| *load)
    };
    let loads: Vec<f64> = (0..4).map(into).collect();
    assert!(loads.iter().all(|load| (0.02..0.09).contains(load)), "{loads:?}");
}

#[test]
fn best_effort_uses_what_others_leave_on_its_tightest_link() {
    let world = World::new();
    let leftover_share = |workloads: Vec<WorkloadSpec>, name: &str| {
        let report = world.run(workloads, 1).unwrap();
        report.clusters.iter().find(|cluster| cluster.name == name).unwrap().leftover_share
    };
    let calm =
        |rate: &str| WorkloadSpec { rate: rate.parse().unwrap(), ..spec("calm", SendPattern::AllToAll) };
    for workloads in [
        vec![spec("calm", SendPattern::AllToAll)],
        vec![spec("calm", SendPattern::AllToAll), spec("loud", SendPattern::AllToAll)],
        vec![spec("calm", SendPattern::AllToAll), spec("loud", SendPattern::Overshoot)],
    ] {
        let part = leftover_share(workloads, "calm").unwrap();
        assert!((0.95..=1.0).contains(&part), "{part}");
    }
    let part = leftover_share(vec![calm("10G")], "calm").unwrap();
    assert!((0.05..0.45).contains(&part), "a low rate uses a small share: {part}");
    assert_eq!(leftover_share(vec![spec("loud", SendPattern::Stall)], "loud"), None);
}

#[test]
fn a_path_leads_from_port_to_port_to_the_last_switch() {
    let world = World::new();
    let network = TrafficNetwork::of(&world.design.fabric());
    let clusters = world.clusters();
    let nodes: Vec<_> = clusters.clusters.iter().flat_map(|cluster| &cluster.nodes).collect();
    for (from, to) in nodes.iter().flat_map(|from| nodes.iter().map(move |to| (from, to))) {
        let path: Vec<_> = network.path(from.function.port(), to.lid).collect();
        if from.lid != to.lid {
            let last = *path.last().unwrap();
            assert_eq!(network.peer(last), Some(to.function.port()), "{path:?}");
            assert!(path.len() == 2 || path.len() == 4, "{path:?}");
        }
    }
}

#[test]
fn hostile_packets_have_the_longest_headers() {
    let world = World::new();
    for (send, packet) in [(SendPattern::AllToAll, 4122), (SendPattern::Overshoot, 4222)] {
        let report = world.run(vec![spec("loud", send)], 1).unwrap();
        let bytes = report.clusters.iter().find(|cluster| cluster.name == "loud").unwrap().min_bytes;
        assert!(bytes > 0 && bytes.is_multiple_of(packet), "{send:?}: {bytes}");
    }
}
