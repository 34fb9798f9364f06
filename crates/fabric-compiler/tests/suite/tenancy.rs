//! Admission control and placement, checked by recounting every link from the grants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_compiler::compile;
use fabric_compiler::tenancy::admission::{
    Admission, AdmissionRequest, Grant, PathServiceLevel, Refusal, RouteChoice,
};
use fabric_compiler::tenancy::link_graph::{HostIndex, LinkGraph, LinkIndex, TenancyLimits};
use fabric_compiler::tenancy::placement::{Capacity, PlacementError, PlacementRequest, Placer};
use fabric_model::generate::{FatTree, FatTreeSize, Oversubscription, Torus};
use fabric_model::tenancy::{Bandwidth, ClusterNumber, SlMode};
use fabric_model::{Decisions, Intents, Topology};
use ib_wire::{ServiceLevel, ServiceLevelSet};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

fn graph(topology: &Topology, limits: TenancyLimits) -> Arc<LinkGraph> {
    let (_, host) = topology.end_nodes().next().unwrap();
    let (_, port) = host.ports().next().unwrap();
    let plan = compile(topology, &Intents::new(port.guid), &Decisions::default()).unwrap();
    Arc::new(LinkGraph::of(topology, &plan, limits))
}

fn tree(hosts: u32, radix: u8, levels: u8) -> Topology {
    let size = FatTreeSize::Hosts { hosts, tiers: Some(levels) };
    FatTree { radix, ..FatTree::new(size) }.generate().unwrap()
}

fn seven_lanes() -> TenancyLimits {
    TenancyLimits { lanes: Some(7), ..TenancyLimits::default() }
}

/// The links between two hosts of a cluster, by its up-ports or by the forwarding tables.
fn path(graph: &LinkGraph, grant: &Grant, from: usize, to: usize) -> Vec<LinkIndex> {
    let (source, target) = (grant.hosts[from], grant.hosts[to]);
    let Some((up_ports, tree)) = grant.up_ports.as_ref().zip(graph.tree()) else {
        return graph.route(source, target).unwrap();
    };
    let mut links = vec![graph.hosts()[source.index()].inward];
    tree.between(tree.leaf_of(source), tree.leaf_of(target), up_ports[to], |link| links.push(link));
    links.push(graph.hosts()[target.index()].outward);
    links
}

/// Recounts every grant pair by pair, and checks that nothing on a link has two owners.
fn check(admission: &Admission) {
    let graph = admission.graph();
    let mut owners: BTreeSet<(LinkIndex, &str, u8)> = BTreeSet::new();
    let mut sums: BTreeMap<LinkIndex, u64> = BTreeMap::new();
    for grant in admission.grants().values() {
        let mut pairs: BTreeMap<LinkIndex, u64> = BTreeMap::new();
        let mut levels: BTreeMap<LinkIndex, ServiceLevelSet> = BTreeMap::new();
        for from in 0..grant.hosts.len() {
            for to in (0..grant.hosts.len()).filter(|to| *to != from) {
                let [leaf, other] = [from, to].map(|host| graph.switch_of(grant.hosts[host]));
                let of_path = |path: &&PathServiceLevel| path.from == leaf && path.to == grant.hosts[to];
                let of_pair = grant.pairs.get(&(leaf.min(other), leaf.max(other))).copied();
                let level = grant.service_level.or(of_pair);
                let level = level.or_else(|| Some(grant.paths.iter().find(of_path)?.service_level));
                for link in path(graph, grant, from, to) {
                    *pairs.entry(link).or_default() += 1;
                    levels.entry(link).or_default().insert(level.unwrap());
                }
            }
        }
        for share in &grant.links {
            assert!(owners.insert((share.link, "lane", share.lane.to_wire())), "{share:?}");
            assert!((1..=7).contains(&share.lane.to_wire()));
            assert!(!share.service_levels.contains(ServiceLevel::default()), "0 is for best effort");
            for level in share.service_levels {
                assert!(owners.insert((share.link, "level", level.to_wire())), "{share:?}");
            }
            *sums.entry(share.link).or_default() += share.share.bits_per_s();
            if grant.hosts.len() > 1 {
                let others = grant.hosts.len() as u64 - 1;
                let needed = pairs[&share.link] * grant.bandwidth.bits_per_s() / others;
                assert_eq!(share.share.bits_per_s(), needed);
                assert!(levels[&share.link].is_subset(share.service_levels));
            }
        }
        assert!(pairs.keys().all(|link| grant.links.iter().any(|share| share.link == *link)));
    }
    for (link, sum) in sums {
        assert!(sum <= admission.usable(link).bits_per_s());
        keeps_its_shares(admission, link);
    }
}

/// Checks that every lane gets its share of a round of the arbitration table, whatever the packet sizes.
fn keeps_its_shares(admission: &Admission, link: LinkIndex) {
    let rate = admission.graph().links()[link.index()].rate.bits_per_s() as f64;
    let table = admission.table(link).unwrap();
    for grant in admission.grants().values() {
        for share in grant.links.iter().filter(|share| share.link == link) {
            let bytes = |is_own: bool, overshoot: u64| -> u64 {
                let entries = table.iter().filter(|entry| (entry.lane == share.lane) == is_own);
                entries.map(|entry| 64 * u64::from(entry.weight) + overshoot).sum()
            };
            let (own, others) = (bytes(true, 0), bytes(false, 4222 - 64));
            let given = own as f64 / (own + others) as f64 * rate;
            assert!(given >= share.share.bits_per_s() as f64 * (1.0 - 1e-12), "{share:?}");
        }
    }
}

/// Random admissions and releases; after each, the grants of other clusters are unchanged.
fn churn(mut admission: Admission, steps: usize, seed: u8) {
    let graph = &Arc::clone(admission.graph());
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]));
    let mut draw = |below: usize| (0..below).new_tree(&mut runner).unwrap().current();
    let (mut admitted, mut refused) = (0, 0);
    for number in 0..steps as u32 {
        let before = admission.grants().clone();
        let touched = if !before.is_empty() && draw(3) == 0 {
            let cluster = *before.keys().nth(draw(before.len())).unwrap();
            assert_eq!(admission.release(cluster).as_ref(), before.get(&cluster));
            cluster
        } else {
            let free: Vec<HostIndex> = (0..graph.hosts().len() as u32)
                .map(HostIndex)
                .filter(|host| admission.owner(*host).is_none())
                .collect();
            if free.is_empty() {
                continue;
            }
            let mut hosts: Vec<HostIndex> = (0..1 + draw(9)).map(|_| free[draw(free.len())]).collect();
            hosts.sort();
            hosts.dedup();
            let request = AdmissionRequest {
                cluster: ClusterNumber(number),
                hosts: &hosts,
                bandwidth: admission.usable(LinkIndex(0)).part([0.0, 0.1, 0.5, 1.0][draw(4)]),
                latency_ns: [None, Some(60_000), Some(20_000)][draw(3)],
                mode: [SlMode::Cluster, SlMode::Path][draw(2)],
                routes: [RouteChoice::Existing, RouteChoice::Selected][draw(2)],
            };
            match admission.admit(request) {
                Ok(_) => admitted += 1,
                Err(_) => refused += 1,
            }
            ClusterNumber(number)
        };
        let others = |grants: &BTreeMap<ClusterNumber, Grant>| {
            grants
                .iter()
                .filter(|(cluster, _)| **cluster != touched)
                .map(|(_, grant)| grant.clone())
                .collect()
        };
        let (before, after): (Vec<Grant>, Vec<Grant>) = (others(&before), others(admission.grants()));
        assert_eq!(before, after);
        if number % 50 == 0 {
            check(&admission);
        }
    }
    check(&admission);
    assert!(admitted > steps / 10 && refused > 0, "{admitted} admitted, {refused} refused");
    for cluster in admission.grants().keys().copied().collect::<Vec<_>>() {
        admission.release(cluster);
    }
    for link in (0..graph.links().len() as u32).map(LinkIndex) {
        assert_eq!(admission.left(link), admission.usable(link));
        assert!(admission.table(link).is_none());
    }
}

#[test]
fn untouched_clusters_keep_their_grants_over_1000_changes() {
    let graph = graph(&tree(64, 8, 3), seven_lanes());
    assert!(graph.tree().is_some());
    churn(Admission::new(Arc::clone(&graph)), 1000, 1);
    churn(Admission::new(graph).with_one_way_service_levels(), 500, 4);
}

#[test]
fn untouched_clusters_keep_grants_in_oversubscribed_trees() {
    let size = FatTreeSize::Leaves(6);
    let oversubscription = Oversubscription { down: 2, up: 1 };
    let topology = FatTree { radix: 12, oversubscription, ..FatTree::new(size) }.generate().unwrap();
    churn(Admission::new(graph(&topology, seven_lanes())), 400, 2);
}

#[test]
fn fabrics_that_are_not_trees_use_existing_routes() {
    let topology = Torus { hosts_per_switch: 3, ..Torus::new([3, 3]) }.generate().unwrap();
    let graph = graph(&topology, seven_lanes());
    assert!(graph.tree().is_none());
    churn(Admission::new(graph), 400, 3);
}

fn request(cluster: u32, hosts: &[HostIndex], bandwidth: Bandwidth) -> AdmissionRequest<'_> {
    let (mode, routes) = (SlMode::Cluster, RouteChoice::Existing);
    AdmissionRequest { cluster: ClusterNumber(cluster), hosts, bandwidth, latency_ns: None, mode, routes }
}

#[test]
fn refusals_name_the_binding_limit() {
    let graph = graph(&tree(64, 8, 3), TenancyLimits { lanes: Some(1), ..TenancyLimits::default() });
    let mut admission = Admission::new(Arc::clone(&graph));
    let usable = admission.usable(LinkIndex(0));
    let [a, b, c, d] = [0, 1, 16, 17].map(HostIndex);
    assert_eq!(admission.admit(request(1, &[], usable)).unwrap_err(), Refusal::InvalidHosts);
    assert_eq!(admission.admit(request(1, &[a, a], usable)).unwrap_err(), Refusal::InvalidHosts);
    assert_eq!(admission.admit(request(1, &[HostIndex(64)], usable)).unwrap_err(), Refusal::InvalidHosts);
    let more = Bandwidth::from_bits_per_s(usable.bits_per_s() + usable.bits_per_s() / 1000);
    let refusal = admission.admit(request(1, &[a, b], more)).unwrap_err();
    assert!(
        matches!(refusal, Refusal::BandwidthShort { needed, free, .. } if needed == more && free == usable)
    );
    admission.admit(request(1, &[a, c], usable)).unwrap();
    assert_eq!(
        admission.admit(request(1, &[b], usable)).unwrap_err(),
        Refusal::AlreadyAdmitted(ClusterNumber(1))
    );
    let refusal = admission.admit(request(2, &[a, b], usable)).unwrap_err();
    assert!(matches!(refusal, Refusal::HostTaken { cluster: ClusterNumber(1), .. }));
    // Hosts b and d are on the same leaves: on links shared with the first cluster the only lane is taken.
    let up_links = |admission: &Admission| admission.grants()[&ClusterNumber(1)].links.len();
    assert!(up_links(&admission) > 4);
    if let Err(refusal) = admission.admit(request(2, &[b, d], Bandwidth::ZERO)) {
        assert!(matches!(refusal, Refusal::NoLaneFree { lanes: 1, .. }), "{refusal}");
    }
}

fn wanted(cluster: u32, nodes: usize, bandwidth: Bandwidth) -> PlacementRequest {
    let needs = Capacity { cores: 2, memory_mib: 1024, functions: 1 };
    PlacementRequest { cluster: ClusterNumber(cluster), nodes, needs, bandwidth, mode: SlMode::Cluster }
}

#[test]
fn small_clusters_share_leaves() {
    let graph = graph(&tree(64, 8, 3), seven_lanes());
    let mut placer = Placer::new(Admission::new(Arc::clone(&graph)), |_| Capacity::UNLIMITED);
    let rate = placer.admission().usable(LinkIndex(0));
    let leaves =
        |grant: &Grant| -> BTreeSet<u32> { grant.hosts.iter().map(|host| graph.switch_of(*host)).collect() };
    let first = leaves(placer.place(wanted(1, 2, rate)).unwrap());
    let second = leaves(placer.place(wanted(2, 2, rate)).unwrap());
    assert_eq!((first.len(), &first), (1, &second));
    // A pod has 16 hosts. A cluster that does not fit into the used one goes to an empty pod.
    let grant = placer.place(wanted(3, 16, rate)).unwrap();
    assert_eq!(leaves(grant).len(), 4);
    assert!(leaves(grant).is_disjoint(&first));
    let refusal = placer.place(wanted(4, 45, rate)).unwrap_err();
    assert_eq!(refusal, PlacementError::TooFewHosts { requested: 45, free: 44 });
    let largest = placer.largest(wanted(4, 45, rate));
    assert!((32..=44).contains(&largest), "{largest}");
    placer.place(wanted(4, largest, rate)).unwrap();
    check(placer.admission());
}

#[test]
fn hosts_without_capacity_are_skipped() {
    let graph = graph(&tree(64, 8, 3), seven_lanes());
    let capacity = |host: HostIndex| Capacity { cores: host.0 % 3, memory_mib: 2048, functions: 8 };
    let mut placer = Placer::new(Admission::new(graph), capacity);
    let grant = placer.place(wanted(1, 5, Bandwidth::ZERO)).unwrap();
    assert!(grant.hosts.iter().all(|host| host.0 % 3 == 2));
    let refusal = placer.place(wanted(2, 60, Bandwidth::ZERO)).unwrap_err();
    assert_eq!(refusal, PlacementError::TooFewHosts { requested: 60, free: 16 });
}

/// Random placements, resizes and releases; after each, the grants of other clusters are unchanged, and a resized cluster
/// has the same service level, and the same lanes on links that it still uses.
fn resize_randomly(graph: &Arc<LinkGraph>, steps: u32, seed: u8) {
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]));
    let mut draw = |below: usize| (0..below).new_tree(&mut runner).unwrap().current();
    let mut placer = Placer::new(Admission::new(Arc::clone(graph)), |_| Capacity::UNLIMITED);
    let usable = placer.admission().usable(LinkIndex(0));
    let tables = |placer: &Placer| -> Vec<_> {
        (0..graph.links().len() as u32).map(|link| placer.admission().table(LinkIndex(link))).collect()
    };
    let (mut changed, mut refused) = (0, 0);
    for number in 0..steps {
        let before = placer.admission().grants().clone();
        let tables_before = tables(&placer);
        let someone = before.keys().nth(draw(before.len().max(1))).copied();
        let (touched, is_refused) = match (draw(6), someone) {
            (0 | 1, Some(cluster)) => (cluster, placer.grow(cluster, 1 + draw(6)).is_err()),
            (2, Some(cluster)) => {
                let hosts = &before[&cluster].hosts;
                let gone: Vec<HostIndex> = (0..1 + draw(3)).map(|_| hosts[draw(hosts.len())]).collect();
                (cluster, placer.shrink(cluster, &gone).is_err())
            }
            (3, Some(cluster)) => {
                placer.release(cluster);
                (cluster, false)
            }
            _ => {
                let rate = usable.part([0.0, 0.2, 0.5, 1.0][draw(4)]);
                let mode = [SlMode::Cluster, SlMode::Path][draw(2)];
                let request = PlacementRequest { mode, ..wanted(number, 1 + draw(12), rate) };
                (ClusterNumber(number), placer.place(request).is_err())
            }
        };
        refused += u32::from(is_refused);
        let after = placer.admission().grants();
        for (cluster, had) in &before {
            match after.get(cluster) {
                Some(has) if is_refused => assert_eq!(had, has),
                Some(has) if *cluster != touched => assert_eq!(had, has),
                Some(has) => {
                    changed += 1;
                    assert_eq!(had.service_level, has.service_level);
                    for share in &has.links {
                        let same = had.links.iter().find(|before| before.link == share.link);
                        assert!(same.is_none_or(|before| before.lane == share.lane));
                    }
                }
                None => assert_eq!(*cluster, touched),
            }
        }
        if is_refused {
            assert_eq!(tables(&placer), tables_before, "a refusal leaves no trace");
        }
        if number % 50 == 0 {
            check(placer.admission());
        }
    }
    check(placer.admission());
    assert!(changed > steps / 10 && refused > 0, "{changed} changed, {refused} refused");
}

#[test]
fn clusters_resize_in_place_over_1000_changes() {
    resize_randomly(&graph(&tree(64, 8, 3), seven_lanes()), 1000, 4);
}

#[test]
fn refusals_leave_arbitration_tables_unchanged() {
    resize_randomly(&graph(&tree(64, 8, 3), TenancyLimits { table_entries: 16, ..seven_lanes() }), 400, 5);
}

#[test]
fn largest_growth_succeeds_and_one_more_fails() {
    let mut placer =
        Placer::new(Admission::new(graph(&tree(64, 8, 3), seven_lanes())), |_| Capacity::UNLIMITED);
    let rate = placer.admission().usable(LinkIndex(0));
    placer.place(wanted(1, 6, rate)).unwrap();
    placer.place(wanted(2, 30, rate)).unwrap();
    let before = placer.admission().grants().clone();
    let most = placer.largest_growth(ClusterNumber(1), 28).unwrap();
    assert_eq!(&before, placer.admission().grants());
    assert!(most > 0);
    if most < 28 {
        assert!(matches!(placer.grow(ClusterNumber(1), most + 1), Err(PlacementError::Refused(_))));
        assert_eq!(&before, placer.admission().grants());
    }
    assert_eq!(placer.grow(ClusterNumber(1), most).unwrap().hosts.len(), 6 + most);
    assert!(matches!(
        placer.grow(ClusterNumber(9), 1),
        Err(PlacementError::Refused(Refusal::UnknownCluster(ClusterNumber(9))))
    ));
    check(placer.admission());
}

#[test]
fn the_negative_cache_changes_no_decision() {
    let graph = graph(&tree(64, 8, 3), seven_lanes());
    for (seed, part) in [(6, 0.0), (7, 0.5), (8, 1.0)] {
        let [mut cached, mut uncached] =
            [0; 2].map(|_| Placer::new(Admission::new(Arc::clone(&graph)), |_| Capacity::UNLIMITED));
        let rate = cached.admission().usable(LinkIndex(0)).part(part);
        let mut runner = TestRunner::new_with_rng(
            Config::default(),
            TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]),
        );
        let mut draw = |below: usize| (0..below).new_tree(&mut runner).unwrap().current();
        let (mut retries, mut number) = (0, 0);
        while number < 150 {
            let nodes = 1 + draw(24);
            while number < 150 {
                // A request of another size in between clears the cache.
                if uncached.place(wanted(1000, 1, rate)).is_ok() {
                    uncached.release(ClusterNumber(1000));
                }
                let [one, other] = [&mut cached, &mut uncached]
                    .map(|placer| placer.place(wanted(number, nodes, rate)).map(|grant| grant.hosts.clone()));
                assert_eq!(one, other);
                if one.is_ok() {
                    number += 1;
                    break;
                }
                retries += 1;
                let clusters: Vec<ClusterNumber> = cached.admission().grants().keys().copied().collect();
                let gone = clusters[draw(clusters.len())];
                assert_eq!(cached.release(gone), uncached.release(gone));
            }
        }
        assert!(retries > 20, "{retries}");
    }
}
