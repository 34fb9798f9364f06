//! Arrangements are sound and stable, and a refused cluster fits at the size that the refusal names.

use std::collections::{BTreeMap, BTreeSet};

use fabric_compiler::arrangement::{ArrangeError, Arrangement, DesiredCluster, InnerPartition, arrange};
use fabric_compiler::tenancy::placement::Capacity;
use fabric_model::generate::{DragonflyPlus, FatTree, RandomFabric, Torus, without_links};
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Intents, LinkRate, Topology};
use fabric_verifier::{is_acknowledged, verify};
use ib_wire::{Guid, PartitionNumber};
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

const SEED: u64 = 20_261_115;

const HOST: Capacity = Capacity { cores: 4, memory_mib: 4096, functions: 4 };

const NODE: Capacity = Capacity { cores: 1, memory_mib: 1024, functions: 1 };

fn fabrics() -> Vec<(&'static str, Topology)> {
    let tree = |hosts| FatTree { radix: 8, ..FatTree::with_hosts(hosts) }.generate().unwrap();
    let rate = LinkRate::DEFAULT;
    let torus = Torus { dimensions: vec![4, 4], wrap: true, hosts_per_switch: 2, radix: 12, rate };
    let dragonfly = DragonflyPlus {
        groups: 4,
        leaves: 2,
        spines: 2,
        hosts_per_leaf: 3,
        global_links: 1,
        radix: 12,
        rate,
    };
    let random = RandomFabric { switches: 12, degree: 4, hosts_per_switch: 2, seed: 3, radix: 12, rate };
    vec![
        ("two tiers", tree(16)),
        ("three tiers", tree(48)),
        ("three tiers, some cables missing", without_links(tree(48), 5, 7).unwrap()),
        ("torus", torus.generate().unwrap()),
        ("dragonfly+", dragonfly.generate().unwrap()),
        ("random", random.generate().unwrap()),
    ]
}

fn fabric(topology: &Topology) -> Intents {
    let (_, host) = topology.end_nodes().next().unwrap();
    Intents::new(host.ports().next().unwrap().1.guid)
}

fn desired(name: &str, nodes: usize, class: Class) -> DesiredCluster {
    let (name, partitions) = (name.to_owned(), Vec::new());
    DesiredCluster { name, nodes, needs: NODE, class, sl_mode: SlMode::Cluster, partitions }
}

fn class(random: &mut Pcg64) -> Class {
    match random.random_range(0..6) {
        0..=2 => Class::BestEffort,
        step => {
            let bandwidth = Bandwidth::from_bits_per_s([0, 100_000_000, 4_000_000_000][step - 3]);
            Class::Guaranteed { bandwidth, latency_ns: None }
        }
    }
}

/// Checks the invariants of every arrangement.
fn assert_sound(topology: &Topology, clusters: &[DesiredCluster], arranged: &Arrangement) {
    let mut findings = verify(topology, &arranged.intents, &arranged.plan);
    findings.retain(|finding| !is_acknowledged(finding, &arranged.plan));
    assert_eq!(findings, []);
    let mut nodes: BTreeMap<Guid, usize> = BTreeMap::new();
    let mut owners: BTreeMap<Guid, BTreeSet<&str>> = BTreeMap::new();
    for cluster in clusters {
        let ports = &arranged.node_ports[&cluster.name];
        assert_eq!(ports.len(), cluster.nodes);
        assert!(!ports.contains(&arranged.intents.manager));
        for port in ports {
            *nodes.entry(*port).or_default() += 1;
            owners.entry(*port).or_default().insert(&cluster.name);
        }
        if cluster.class != Class::BestEffort {
            assert_eq!(
                ports.iter().collect::<BTreeSet<_>>().len(),
                cluster.nodes,
                "each has a host of its own"
            );
        }
    }
    assert!(nodes.values().all(|count| *count <= 4), "a host has four cores");
    for cluster in clusters.iter().filter(|cluster| cluster.class != Class::BestEffort) {
        assert!(
            arranged.node_ports[&cluster.name].iter().all(|port| owners[port].len() == 1),
            "no other cluster uses it"
        );
    }
}

#[test]
fn random_clusters_are_placed_soundly_or_refused_with_a_size() {
    let mut random = Pcg64::seed_from_u64(SEED);
    let (mut arranged_count, mut refused_count) = (0, 0);
    for (what, topology) in fabrics() {
        let fabric = fabric(&topology);
        let mut clusters: Vec<DesiredCluster> = Vec::new();
        let mut now: Option<Arrangement> = None;
        for step in 0..40 {
            let mut next = clusters.clone();
            match random.random_range(0..4) {
                0 if !next.is_empty() => drop(next.remove(random.random_range(0..next.len()))),
                1 if !next.is_empty() => {
                    let at = random.random_range(0..next.len());
                    next[at].nodes = (next[at].nodes + random.random_range(0..4)).saturating_sub(1).max(1);
                }
                _ => {
                    let nodes = *[1, 2, 3, 5, 9, 20].choose(&mut random).unwrap();
                    next.push(desired(&format!("c{step}"), nodes, class(&mut random)));
                }
            }
            match arrange(&topology, &fabric, HOST, &next, now.as_ref()) {
                Ok(arranged) => {
                    assert_sound(&topology, &next, &arranged);
                    for cluster in &next {
                        let before = now.as_ref().and_then(|now| now.node_ports.get(&cluster.name));
                        let after = &arranged.node_ports[&cluster.name];
                        let stays = before.map_or(0, |before| before.len().min(after.len()));
                        assert_eq!(
                            before.map(|before| &before[..stays]),
                            before.map(|_| &after[..stays]),
                            "{what}"
                        );
                        let decided =
                            |it: &Arrangement| it.plan.decisions().clusters.get(&cluster.name).cloned();
                        if let Some(now) = now.as_ref().filter(|_| clusters.contains(cluster)) {
                            assert_eq!(
                                decided(now),
                                decided(&arranged),
                                "{what}: untouched {}",
                                cluster.name
                            );
                        }
                    }
                    let again = arrange(&topology, &fabric, HOST, &next, Some(&arranged)).unwrap();
                    assert_eq!(again, arranged, "{what}: nothing changed");
                    (clusters, now) = (next, Some(arranged));
                    arranged_count += 1;
                }
                Err(ArrangeError::NotPlaced { cluster: refused, error }) => {
                    let largest = error.largest;
                    refused_count += 1;
                    let at = next.iter().position(|cluster| cluster.name == refused).unwrap();
                    assert!(largest < next[at].nodes && !error.to_string().is_empty(), "{what}: {error}");
                    next[at].nodes = largest;
                    if largest > 0 {
                        let smaller = arrange(&topology, &fabric, HOST, &next, now.as_ref());
                        assert!(
                            smaller.is_ok(),
                            "{what}: {largest} nodes were said to fit: {:?}",
                            smaller.err()
                        );
                    }
                }
                Err(other) => panic!("{what}: {other}"),
            }
        }
    }
    assert!(arranged_count > 100 && refused_count > 10, "{arranged_count} {refused_count}");
}

#[test]
fn partitions_inside_a_cluster_keep_their_members_apart() {
    let topology = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    let mut cluster =
        desired("acme/blue", 5, Class::Guaranteed { bandwidth: Bandwidth::ZERO, latency_ns: None });
    let inner = |name: &str, full: &[u32], limited: &[u32]| InnerPartition {
        name: name.to_owned(),
        full: full.iter().copied().collect(),
        limited: limited.iter().copied().collect(),
    };
    cluster.partitions = vec![inner("left", &[1, 2], &[]), inner("right", &[3], &[4])];
    let arranged = arrange(&topology, &fabric(&topology), HOST, &[cluster], None).unwrap();
    assert_eq!(verify(&topology, &arranged.intents, &arranged.plan), []);
    let keys =
        |node: usize| &arranged.plan.adapter_port(arranged.node_ports["acme/blue"][node - 1]).unwrap().pkeys;
    let own: BTreeSet<_> = arranged.plan.partitions().map(|partition| partition.number).collect();
    // Whether two nodes share a partition other than the default one.
    let meet = |a: usize, b: usize| {
        keys(a)
            .keys()
            .filter(|key| own.contains(&key.partition()) && key.partition() != PartitionNumber::DEFAULT)
            .any(|sent| keys(b).keys().any(|held| sent.is_accepted_by(held)))
    };
    assert!(meet(1, 2) && meet(3, 4), "inside one they reach each other");
    assert!(!meet(1, 3) && !meet(2, 4) && !meet(1, 4), "members of different ones do not");
    assert!((1..5).all(|node| meet(node, 5) && meet(5, node)), "a node in none of them reaches all");
    let own = arranged.plan.partitions().find(|partition| partition.name == "acme/blue").unwrap().number;
    for node in 1..=5 {
        let first = keys(node).entries()[0].unwrap();
        assert_eq!(first.partition(), own, "the cluster has the port alone, so that its key is at index 0");
    }
}
