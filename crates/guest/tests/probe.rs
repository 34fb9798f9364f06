//! The network check of a whole cluster, in one process and without a clock.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use guest::probe::{ProbeDestination, ProbeKey, ProbeTask, Prober, Reachability};
use guest::seed::Probes;
use proptest::prelude::*;

/// Time goes on in steps of this length; a packet takes one.
const STEP: Duration = Duration::from_millis(10);

const COMPLETE: Reachability = Reachability { reached: true, heard: true };

fn address(node: usize) -> Ipv4Addr {
    Ipv4Addr::from(0x0a80_0001 + u32::try_from(node).unwrap())
}

/// As the controller asks where everybody may talk to everybody.
fn probes(node: usize, count: usize) -> Probes {
    let broadcaster = usize::from(node == 0);
    Probes { successor: Some(address((node + 1) % count)), broadcaster: Some(address(broadcaster)) }
}

fn prober(node: usize, count: usize, generation: u64, now: Instant) -> Prober {
    let key = ProbeKey::derive("the cluster's");
    let task = ProbeTask { own_address: address(node), generation, probes: probes(node, count), key };
    Prober::new(task, 0xfeed + node as u64, now)
}

/// Nodes by number, some of them not up yet.
struct Cluster {
    nodes: Vec<Option<Prober>>,
    now: Instant,
    /// From, to, and what.
    under_way: Vec<(usize, usize, Vec<u8>)>,
    sent: usize,
    broadcasts: usize,
}

impl Cluster {
    fn new(count: usize) -> Self {
        let now = Instant::now();
        let nodes = (0..count).map(|node| Some(prober(node, count, 1, now))).collect();
        Self { nodes, now, under_way: Vec::new(), sent: 0, broadcasts: 0 }
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

    /// Lets time pass; `carries` says which packets arrive: from, to, and whether it is a broadcast.
    fn run(&mut self, time: Duration, mut carries: impl FnMut(usize, usize, bool) -> bool) {
        let end = self.now + time;
        while self.now < end && !self.is_complete() {
            self.now += STEP;
            for (from, to, bytes) in std::mem::take(&mut self.under_way) {
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
                        if carries(from, receiver, to == ProbeDestination::Broadcast) {
                            self.under_way.push((from, receiver, bytes.clone()));
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
    fn nodes_of_a_network_that_loses_packets_find_out_that_it_carries(
        count in 2_usize..40,
        losses in prop::collection::vec(any::<bool>(), 400),
    ) {
        let mut cluster = Cluster::new(count);
        let mut losses = losses.into_iter();
        cluster.run(Duration::from_secs(600), |_, _, _| !losses.next().unwrap_or(false));
        prop_assert!(cluster.is_complete());
    }

    #[test]
    fn no_packet_does_harm(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let now = Instant::now();
        let mut node = prober(0, 2, 1, now);
        node.receive(address(1), &bytes, now);
        prop_assert_eq!(node.reach(), Reachability { reached: false, heard: false });
    }
}

#[test]
fn four_hundred_nodes_need_few_packets() {
    let mut cluster = Cluster::new(400);
    cluster.run(Duration::from_secs(60), |_, _, _| true);
    assert!(cluster.is_complete());
    // A probe, its answer and a call for each, and two who broadcast.
    assert!(cluster.sent <= 400 * 3 + 10, "{} packets", cluster.sent);
    assert!(cluster.broadcasts <= 4, "{} broadcasts", cluster.broadcasts);
}

#[test]
fn without_broadcasts_nobody_hears_one_and_all_reach_their_successor() {
    let mut cluster = Cluster::new(5);
    cluster.run(Duration::from_secs(60), |_, _, is_broadcast| !is_broadcast);
    for node in 0..5 {
        assert_eq!(cluster.reach(node), Reachability { reached: true, heard: false }, "node {node}");
    }
}

#[test]
fn a_node_whose_answers_are_lost_is_not_reached() {
    let mut cluster = Cluster::new(4);
    cluster.run(Duration::from_secs(60), |from, to, _| (from, to) != (2, 1));
    let unreached: Vec<usize> = (0..4).filter(|node| !cluster.reach(*node).reached).collect();
    assert_eq!(unreached, [1]);
    // The control: it comes back.
    cluster.run(Duration::from_secs(60), |_, _, _| true);
    assert!(cluster.is_complete());
}

#[test]
fn a_node_that_comes_late_is_noticed_at_once() {
    let mut cluster = Cluster::new(3);
    cluster.nodes[1] = None;
    cluster.run(Duration::from_secs(300), |_, _, _| true);
    assert!(!cluster.is_complete());
    cluster.start(1);
    cluster.run(Duration::from_secs(1), |_, _, _| true);
    assert!(cluster.is_complete());
}

#[test]
fn questions_without_an_answer_become_rare() {
    let mut cluster = Cluster::new(2);
    cluster.run(Duration::from_secs(3600), |_, _, _| false);
    // Two questions of two nodes every four seconds.
    assert!(cluster.sent <= 2 * 2 * 3600 / 4 + 40, "{} packets", cluster.sent);
}

#[test]
fn a_node_on_its_own_has_nothing_to_find_out() {
    let now = Instant::now();
    let key = ProbeKey::derive("the cluster's");
    let task = ProbeTask { own_address: address(0), generation: 1, probes: Probes::default(), key };
    let mut node = Prober::new(task, 1, now);
    assert_eq!((node.reach(), node.timeout()), (COMPLETE, None));
    assert_eq!(node.transmit(now), None);
}

#[test]
fn what_was_sent_before_a_change_does_not_count() {
    let now = Instant::now();
    let packets = |node: &mut Prober| -> Vec<Vec<u8>> {
        std::iter::from_fn(|| node.transmit(now)).map(|(_, bytes)| bytes).collect()
    };
    let (mut one, mut two) = (prober(0, 2, 1, now), prober(1, 2, 1, now));
    for bytes in packets(&mut one) {
        two.receive(address(0), &bytes, now);
    }
    let old = packets(&mut two);
    // The same node, told of a change: an answer to its earlier question and an earlier broadcast prove nothing.
    let key = ProbeKey::derive("the cluster's");
    let task = ProbeTask { own_address: address(0), generation: 2, probes: probes(0, 2), key };
    let mut later = Prober::new(task, 0xbeef, now);
    for bytes in &old {
        later.receive(address(1), bytes, now);
    }
    assert_eq!(later.reach(), Reachability { reached: false, heard: false });
    // The control: for the node as it was they do.
    for bytes in &old {
        one.receive(address(1), bytes, now);
    }
    assert_eq!(one.reach(), COMPLETE);
}

#[test]
fn packets_of_another_cluster_or_another_sender_do_not_count() {
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
fn a_flood_of_questions_is_answered_within_limits() {
    let now = Instant::now();
    let mut node = prober(0, 2, 1, now);
    let mut other = prober(1, 2, 1, now);
    let question = other.transmit(now).unwrap().1;
    let mut sent = 0;
    for _ in 0..10_000 {
        node.receive(address(1), &question, now);
        sent += std::iter::from_fn(|| node.transmit(now)).count();
    }
    assert!(sent <= 300, "{sent} packets in no time");
}
