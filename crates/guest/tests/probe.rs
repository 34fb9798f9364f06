//! The network check of a whole cluster, simulated in one process with virtual time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use guest::probe::{ProbeDestination, ProbeKey, ProbeTask, Prober, Probes, Reachability};
use proptest::prelude::*;

/// Step of virtual time; the latency of every packet.
const STEP: Duration = Duration::from_millis(10);

const COMPLETE: Reachability = Reachability { reached: true, heard: true };

fn address(node: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a80_0001 + u32::try_from(node).unwrap())
}

/// The probes that the controller assigns if all nodes may reach each other.
fn probes(node: usize, count: usize) -> Probes {
    let broadcaster = usize::from(node == 0);
    Probes { successor: Some(address((node + 1) % count)), broadcaster: Some(address(broadcaster)) }
}

fn prober(node: usize, count: usize, generation: u64, now: Instant) -> Prober {
    let key = ProbeKey::derive("the cluster's");
    let task = ProbeTask { own_address: address(node), generation, probes: probes(node, count), key };
    Prober::new(task, 0xfeed + node as u64, now)
}

/// Nodes by number; `None` if not up yet.
struct Cluster {
    nodes: Vec<Option<Prober>>,
    now: Instant,
    /// Packets in flight: sender, receiver, bytes.
    in_flight: Vec<(usize, usize, Vec<u8>)>,
    sent: usize,
    broadcasts: usize,
}

impl Cluster {
    fn new(count: usize) -> Self {
        let now = Instant::now();
        let nodes = (0..count).map(|node| Some(prober(node, count, 1, now))).collect();
        Self { nodes, now, in_flight: Vec::new(), sent: 0, broadcasts: 0 }
    }

    fn start(&mut self, node: usize) {
        self.nodes[node] = Some(prober(node, self.nodes.len(), 1, self.now));
    }

    fn reach(&self, node: usize) -> Reachability {
        self.nodes[node].as_ref().unwrap().reach()
    }

    fn is_complete(&self) -> bool {
        self.nodes.iter().flatten().all(|node| node.reach() == COMPLETE)
    }

    /// Advances time. `delivers(from, to, is_broadcast)` decides which packets arrive.
    fn run(&mut self, time: Duration, mut delivers: impl FnMut(usize, usize, bool) -> bool) {
        let end = self.now + time;
        while self.now < end && !self.is_complete() {
            self.now += STEP;
            for (from, to, bytes) in std::mem::take(&mut self.in_flight) {
                if let Some(node) = &mut self.nodes[to] {
                    node.receive(address(from), &bytes, self.now);
                }
            }
            for from in 0..self.nodes.len() {
                let Some(node) = &mut self.nodes[from] else { continue };
                let mut packets = Vec::new();
                while let Some(packet) = node.transmit(self.now) {
                    packets.push(packet);
                }
                for (to, bytes) in packets {
                    self.sent += 1;
                    self.broadcasts += usize::from(to == ProbeDestination::Broadcast);
                    let is_for = |node: usize| match to {
                        ProbeDestination::Node(other) => other == address(node),
                        ProbeDestination::Broadcast => true,
                    };
                    for receiver in (0..self.nodes.len()).filter(|node| is_for(*node)) {
                        if delivers(from, receiver, to == ProbeDestination::Broadcast) {
                            self.in_flight.push((from, receiver, bytes.clone()));
                        }
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_check_completes_despite_packet_loss(
        count in 2_usize..40,
        losses in prop::collection::vec(any::<bool>(), 400),
    ) {
        let mut cluster = Cluster::new(count);
        let mut losses = losses.into_iter();
        cluster.run(Duration::from_secs(600), |_, _, _| !losses.next().unwrap_or(false));
        prop_assert!(cluster.is_complete());
    }

    #[test]
    fn random_packets_are_ignored(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let now = Instant::now();
        let mut node = prober(0, 2, 1, now);
        node.receive(address(1), &bytes, now);
        prop_assert_eq!(node.reach(), Reachability { reached: false, heard: false });
    }
}

#[test]
fn four_hundred_nodes_need_three_packets_each() {
    let mut cluster = Cluster::new(400);
    cluster.run(Duration::from_secs(60), |_, _, _| true);
    assert!(cluster.is_complete());
    // A probe, a reply and a broadcast request per node, and the broadcasts of two nodes.
    assert!(cluster.sent <= 400 * 3 + 10, "{} packets", cluster.sent);
    assert!(cluster.broadcasts <= 4, "{} broadcasts", cluster.broadcasts);
}

#[test]
fn without_broadcasts_only_the_probes_succeed() {
    let mut cluster = Cluster::new(5);
    cluster.run(Duration::from_secs(60), |_, _, is_broadcast| !is_broadcast);
    for node in 0..5 {
        assert_eq!(cluster.reach(node), Reachability { reached: true, heard: false }, "node {node}");
    }
}

#[test]
fn a_node_whose_replies_are_lost_is_not_reached() {
    let mut cluster = Cluster::new(4);
    cluster.run(Duration::from_secs(60), |from, to, _| (from, to) != (2, 1));
    let unreached: Vec<usize> = (0..4).filter(|node| !cluster.reach(*node).reached).collect();
    assert_eq!(unreached, [1]);
    // Control: the check completes once replies arrive.
    cluster.run(Duration::from_secs(60), |_, _, _| true);
    assert!(cluster.is_complete());
}

#[test]
fn a_late_node_completes_the_check_within_a_second() {
    let mut cluster = Cluster::new(3);
    cluster.nodes[1] = None;
    cluster.run(Duration::from_secs(300), |_, _, _| true);
    assert!(!cluster.is_complete());
    cluster.start(1);
    cluster.run(Duration::from_secs(1), |_, _, _| true);
    assert!(cluster.is_complete());
}

#[test]
fn unanswered_requests_back_off_to_four_seconds() {
    let mut cluster = Cluster::new(2);
    cluster.run(Duration::from_secs(3600), |_, _, _| false);
    // Two requests of two nodes every four seconds.
    assert!(cluster.sent <= 2 * 2 * 3600 / 4 + 40, "{} packets", cluster.sent);
}

#[test]
fn a_single_node_has_nothing_to_check() {
    let now = Instant::now();
    let key = ProbeKey::derive("the cluster's");
    let task = ProbeTask { own_address: address(0), generation: 1, probes: Probes::default(), key };
    let mut node = Prober::new(task, 1, now);
    assert_eq!((node.reach(), node.timeout()), (COMPLETE, None));
    assert_eq!(node.transmit(now), None);
}

#[test]
fn packets_from_before_a_change_do_not_count() {
    let now = Instant::now();
    let packets = |node: &mut Prober| -> Vec<Vec<u8>> {
        std::iter::from_fn(|| node.transmit(now)).map(|(_, bytes)| bytes).collect()
    };
    let (mut one, mut two) = (prober(0, 2, 1, now), prober(1, 2, 1, now));
    for bytes in packets(&mut one) {
        two.receive(address(0), &bytes, now);
    }
    let old = packets(&mut two);
    // The same node with a new context: replies to the earlier probe and earlier broadcasts do not count.
    let key = ProbeKey::derive("the cluster's");
    let task = ProbeTask { own_address: address(0), generation: 2, probes: probes(0, 2), key };
    let mut later = Prober::new(task, 0xbeef, now);
    for bytes in &old {
        later.receive(address(1), bytes, now);
    }
    assert_eq!(later.reach(), Reachability { reached: false, heard: false });
    // Control: they do count for the earlier context.
    for bytes in &old {
        one.receive(address(1), bytes, now);
    }
    assert_eq!(one.reach(), COMPLETE);
}

#[test]
fn packets_of_another_cluster_or_sender_do_not_count() {
    let now = Instant::now();
    let (mut one, mut two) = (prober(0, 2, 1, now), prober(1, 2, 1, now));
    while let Some((_, bytes)) = one.transmit(now) {
        two.receive(address(0), &bytes, now);
    }
    let answers: Vec<Vec<u8>> = std::iter::from_fn(|| two.transmit(now)).map(|(_, bytes)| bytes).collect();
    for bytes in &answers {
        one.receive(address(7), bytes, now);
    }
    let foreign = ProbeTask {
        own_address: address(0),
        generation: 1,
        probes: probes(0, 2),
        key: ProbeKey::derive("another's"),
    };
    let mut foreign = Prober::new(foreign, 0xfeed, now);
    for bytes in &answers {
        foreign.receive(address(1), bytes, now);
    }
    let nothing = Reachability { reached: false, heard: false };
    assert_eq!((one.reach(), foreign.reach()), (nothing, nothing));
}

#[test]
fn replies_to_a_flood_of_probes_are_limited() {
    let now = Instant::now();
    let mut node = prober(0, 2, 1, now);
    let mut other = prober(1, 2, 1, now);
    let question = other.transmit(now).unwrap().1;
    let mut sent = 0;
    for _ in 0..10_000 {
        node.receive(address(1), &question, now);
        sent += std::iter::from_fn(|| node.transmit(now)).count();
    }
    assert!(sent <= 300, "{sent} packets at once");
}
