//! Clusters come, grow, shrink, change and go in random order, on links of random rates and table lengths. After every
//! step, each arbitration table that changed gives every cluster what it was sold, computed from the tables alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_compiler::compile;
use fabric_compiler::tenancy::admission::{Admission, AdmissionRequest, Grant, RouteChoice};
use fabric_compiler::tenancy::link_graph::{HostIndex, LinkGraph, LinkIndex, TenancyLimits};
use fabric_model::generate::{FatTree, FatTreeSize, Oversubscription, Torus};
use fabric_model::intent::{PortCapability, PortName};
use fabric_model::tenancy::{Bandwidth, ClusterNumber, SlMode};
use fabric_model::{Decisions, Intents, Topology, ibnetdiscover};
use ib_wire::{DataLanes, VirtualLane, VlArbEntry};
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

type Table = Vec<VlArbEntry>;

/// A topology whose links have random rates.
fn with_random_rates(topology: &Topology, random: &mut Pcg64) -> Topology {
    let mut text = String::new();
    for part in ibnetdiscover::write(topology).split_inclusive(" 4xEDR") {
        let rate = [" 4xSDR", " 4xQDR", " 4xEDR", " 4xHDR"].choose(random).unwrap();
        text += &part.replace(" 4xEDR", rate);
    }
    ibnetdiscover::parse(&text).unwrap()
}

/// The links of a topology with random table lengths.
fn graph(topology: &Topology, random: &mut Pcg64, best_effort_percent: u8) -> Arc<LinkGraph> {
    let (_, host) = topology.end_nodes().next().unwrap();
    let mut intents = Intents::new(host.ports().next().unwrap().1.guid);
    intents.capabilities.default_port.lanes = *[DataLanes::Four, DataLanes::Eight].choose(random).unwrap();
    for (_, node) in topology.nodes() {
        for (port, _) in node.ports() {
            let arbitration = *[8, 8, 11, 16, 32, 64].choose(random).unwrap();
            let capability = PortCapability { arbitration, ..intents.capabilities.default_port };
            intents.capabilities.ports.insert(PortName { node: node.guid, port }, capability);
        }
    }
    let plan = compile(topology, &intents, &Decisions::default()).unwrap();
    let limits = TenancyLimits { best_effort_percent, ..TenancyLimits::default() };
    Arc::new(LinkGraph::of(topology, &plan, limits).with_capabilities(&intents.capabilities))
}

/// What a table gives a lane in the worst case: own bytes of a round, those of others, and the longest gap.
fn worst(table: &[VlArbEntry], lane: VirtualLane) -> (u64, u64, u64) {
    let most = |entry: &VlArbEntry| 64 * (u64::from(entry.weight) - 1) + 4222;
    let twice: Vec<&VlArbEntry> = table.iter().chain(table).collect();
    let gaps = twice.split(|entry| entry.lane == lane).map(|gap| gap.iter().map(|entry| most(entry)).sum());
    let own = table.iter().filter(|entry| entry.lane == lane).map(|entry| 64 * u64::from(entry.weight)).sum();
    let others = table.iter().filter(|entry| entry.lane != lane).map(most).sum();
    (own, others, gaps.max().unwrap())
}

/// Checks the tables of some links against all grants. Returns the number of lanes checked.
fn check(admission: &Admission, tables: &BTreeMap<LinkIndex, Table>) -> usize {
    let mut checked = 0;
    for grant in admission.grants().values() {
        for share in &grant.links {
            let Some(table) = tables.get(&share.link) else { continue };
            let link = &admission.graph().links()[share.link.index()];
            let (own, others, gap) = worst(table, share.lane);
            let rate = u128::from(link.rate.bits_per_s());
            let sold = u128::from(share.share.bits_per_s());
            assert!(rate * u128::from(own) >= sold * u128::from(own + others), "{share:?} {table:?}");
            assert!(
                u128::from(gap) * 8_000_000_000 <= u128::from(share.wait_ns) * rate,
                "{share:?} {table:?}"
            );
            assert!(table.len() <= usize::from(link.table.entries.min(32)), "{share:?} {table:?}");
            checked += 1;
        }
    }
    checked
}

/// Checks the latency of every path of a cluster by the tables.
fn check_bound(admission: &Admission, grant: &Grant) {
    let graph = admission.graph();
    for from in &grant.hosts {
        for to in grant.hosts.iter().filter(|to| *to != from) {
            let route = graph.route(*from, *to).unwrap();
            let late_ns = route.iter().map(|link| {
                let bytes_per_ns = graph.links()[link.index()].rate.bits_per_s() as f64 / 8e9;
                let lane = grant.share(*link).unwrap().lane;
                let (.., gap) = worst(&admission.table(*link).unwrap(), lane);
                (gap + 4222) as f64 / bytes_per_ns + 250.0
            });
            let late_ns: f64 = late_ns.sum();
            assert!(late_ns <= grant.bound_ns as f64, "{late_ns} of {}", grant.bound_ns);
        }
    }
    assert!(grant.latency_ns.is_none_or(|asked| grant.bound_ns <= asked));
}

#[derive(Debug, Default)]
struct Counts {
    admitted: usize,
    refused: usize,
    changed: usize,
    released: usize,
    tables: usize,
    lanes: usize,
    /// Changed tables with lanes of at least two clusters.
    shared: usize,
}

/// Makes random changes on a graph.
fn change_randomly(graph: &Arc<LinkGraph>, random: &mut Pcg64, steps: u32, counts: &mut Counts) {
    let mut admission = Admission::new(Arc::clone(graph));
    let mut tables: BTreeMap<LinkIndex, Table> = BTreeMap::new();
    for number in 0..steps {
        let before = admission.grants().clone();
        let someone = before.keys().nth(random.random_range(0..before.len().max(1))).copied();
        let kind = random.random_range(0..10);
        let touched = match someone {
            Some(cluster) if kind < 2 => {
                admission.release(cluster);
                counts.released += 1;
                cluster
            }
            _ => {
                let is_change = kind < 5 && someone.is_some();
                let cluster = someone.filter(|_| is_change).unwrap_or(ClusterNumber(number));
                let mut hosts = before.get(&cluster).map(|grant| grant.hosts.clone()).unwrap_or_default();
                if hosts.len() > 2 && random.random_bool(0.5) {
                    hosts.remove(random.random_range(0..hosts.len()));
                }
                for _ in 0..random.random_range(1..4) {
                    let host = HostIndex(random.random_range(0..graph.hosts().len() as u32));
                    if admission.owner(host).is_none() && !hosts.contains(&host) {
                        hosts.push(host);
                    }
                }
                let mbps = *[0, 1, 300, 1_000, 5_000, 20_000].choose(random).unwrap();
                let latency_us = *[None, None, Some(200), Some(60), Some(25)].choose(random).unwrap();
                let request = AdmissionRequest {
                    cluster,
                    hosts: &hosts,
                    bandwidth: Bandwidth::from_bits_per_s(mbps * 1_000_000),
                    latency_ns: latency_us.map(|us: u64| 1000 * us),
                    mode: SlMode::Cluster,
                    routes: RouteChoice::Existing,
                };
                let answer =
                    if is_change { admission.change(request) } else { admission.admit(request) }.map(drop);
                match answer {
                    Ok(()) if is_change => counts.changed += 1,
                    Ok(()) => counts.admitted += 1,
                    Err(_) => {
                        counts.refused += 1;
                        assert_eq!(*admission.grants(), before, "a refusal changes nothing");
                        continue;
                    }
                }
                cluster
            }
        };
        for (cluster, had) in before.iter().filter(|(cluster, _)| **cluster != touched) {
            assert_eq!(admission.grants().get(cluster), Some(had), "others keep what they have");
        }
        let links = [before.get(&touched), admission.grants().get(&touched)];
        let links = links.into_iter().flatten().flat_map(|grant| grant.links.iter().map(|share| share.link));
        let mut new: BTreeMap<LinkIndex, Table> = BTreeMap::new();
        for link in links {
            match admission.table(link) {
                Some(table) if tables.get(&link) != Some(&table) => drop(new.insert(link, table)),
                Some(_) => {}
                // Only if no cluster uses the link.
                None => assert!(admission.grants().values().all(|grant| grant.share(link).is_none())),
            }
        }
        counts.tables += new.len();
        counts.shared += new.keys().filter(|link| admission.sold(**link).len() > 3).count();
        counts.lanes += check(&admission, &new);
        tables.extend(new);
        if number % 10 == 0 {
            admission.grants().values().for_each(|grant| check_bound(&admission, grant));
        }
    }
    assert!(graph.links().len() >= tables.len());
}

#[test]
fn no_order_of_changes_undercuts_what_was_sold() {
    let mut random = Pcg64::seed_from_u64(20_261_117);
    let oversubscription = Oversubscription { down: 11, up: 1 };
    let two_leaves = FatTree { radix: 12, oversubscription, ..FatTree::new(FatTreeSize::Leaves(2)) };
    let shapes = [
        two_leaves.generate().unwrap(),
        FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap(),
        Torus { hosts_per_switch: 3, ..Torus::new([3, 3]) }.generate().unwrap(),
    ];
    let mut counts = Counts::default();
    for topology in &shapes {
        for best_effort_percent in [0, 0, 15] {
            let topology = with_random_rates(topology, &mut random);
            let graph = graph(&topology, &mut random, best_effort_percent);
            change_randomly(&graph, &mut random, 2000, &mut counts);
        }
    }
    println!("{counts:?}");
    assert!(counts.admitted > 500 && counts.refused > 200 && counts.changed > 200 && counts.released > 400);
    assert!(counts.tables > 10_000 && counts.lanes > counts.tables && counts.shared > 500, "{counts:?}");
}
