//! Who owns what on every link, checked by counting again from the grants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_compiler::compile;
use fabric_compiler::tenancy::ledger::{Grant, Ledger, PathLevel, Refusal, Request, Routes};
use fabric_compiler::tenancy::network::{HostIndex, Limits, LinkIndex, Network};
use fabric_compiler::tenancy::placement::{Capacity, NoPlace, Places, Wish};
use fabric_model::generate::{FatTree, FatTreeSize, Oversubscription, Torus};
use fabric_model::tenancy::{Bandwidth, ClusterNumber, SlMode};
use fabric_model::{Decisions, Intents, Topology};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// What a cluster has, wherever its entries are.
fn without_places(grant: &Grant) -> Grant {
    let mut grant = grant.clone();
    grant.links.iter_mut().for_each(|share| share.first_entry = 0);
    grant
}

fn network(topology: &Topology, limits: Limits) -> Arc<Network> {
    let (_, host) = topology.end_nodes().next().unwrap();
    let (_, port) = host.ports().next().unwrap();
    let plan = compile(topology, &Intents::new(port.guid), &Decisions::default()).unwrap();
    Arc::new(Network::of(topology, &plan, limits))
}

fn tree(hosts: u32, radix: u8, levels: u8) -> Topology {
    let size = FatTreeSize::Hosts { hosts, levels: Some(levels) };
    FatTree { radix, ..FatTree::new(size) }.generate().unwrap()
}

fn seven_lanes() -> Limits {
    Limits { lanes: Some(7), ..Limits::default() }
}

/// The links between two hosts of a cluster, by its ways or by the forwarding tables.
fn path(network: &Network, grant: &Grant, from: usize, to: usize) -> Vec<LinkIndex> {
    let (source, target) = (grant.hosts[from], grant.hosts[to]);
    let Some((ways, tree)) = grant.ways.as_ref().zip(network.tree()) else {
        return network.route(source, target).unwrap();
    };
    let mut links = vec![network.hosts()[source.index()].inward];
    tree.between(tree.leaf_of(source), tree.leaf_of(target), ways[to], |link| links.push(link));
    links.push(network.hosts()[target.index()].outward);
    links
}

/// What every grant says of every link, worked out pair by pair; and that no link has two owners of anything.
fn check(ledger: &Ledger) {
    let network = ledger.network();
    let mut owners: BTreeSet<(LinkIndex, &str, u16)> = BTreeSet::new();
    let mut sums: BTreeMap<LinkIndex, u64> = BTreeMap::new();
    for grant in ledger.grants().values() {
        let mut pairs: BTreeMap<LinkIndex, u64> = BTreeMap::new();
        let mut levels: BTreeMap<LinkIndex, u16> = BTreeMap::new();
        for from in 0..grant.hosts.len() {
            for to in (0..grant.hosts.len()).filter(|to| *to != from) {
                let [leaf, other] = [from, to].map(|host| network.switch_of(grant.hosts[host]));
                let of_path = |path: &&PathLevel| path.from == leaf && path.to == grant.hosts[to];
                let of_pair = grant.pairs.get(&(leaf.min(other), leaf.max(other))).copied();
                let level = grant.service_level.or(of_pair);
                let level = level.or_else(|| Some(grant.paths.iter().find(of_path)?.service_level));
                for link in path(network, grant, from, to) {
                    *pairs.entry(link).or_default() += 1;
                    *levels.entry(link).or_default() |= 1 << level.unwrap().to_wire();
                }
            }
        }
        for share in &grant.links {
            assert_ne!(share.weight, 0);
            assert!(owners.insert((share.link, "lane", share.lane.to_wire().into())), "{share:?}");
            assert!((1..=7).contains(&share.lane.to_wire()));
            assert_eq!(share.service_levels & 1, 0, "level 0 is best effort's");
            for level in (0..16).filter(|level| share.service_levels & (1 << level) != 0) {
                assert!(owners.insert((share.link, "level", level)), "{share:?}");
            }
            *sums.entry(share.link).or_default() += share.share.bits_per_s();
            let sequence = ledger.table(share.link).unwrap().sequence(share.lane).unwrap();
            assert_eq!((sequence.entries(), sequence.weight), (share.entries, share.weight));
            if grant.hosts.len() > 1 {
                let others = grant.hosts.len() as u64 - 1;
                let needed = pairs[&share.link] * grant.bandwidth.bits_per_s() / others;
                assert_eq!(share.share.bits_per_s(), needed);
                assert_eq!(levels[&share.link] & !share.service_levels, 0);
            }
        }
        assert!(pairs.keys().all(|link| grant.links.iter().any(|share| share.link == *link)));
    }
    for (link, sum) in sums {
        assert!(sum <= ledger.usable(link).bits_per_s());
        keeps_its_shares(ledger, link);
    }
}

/// Whatever sizes packets have, a lane gets its share of the whole round of the arbitration table.
fn keeps_its_shares(ledger: &Ledger, link: LinkIndex) {
    let rate = ledger.network().links()[link.index()].rate.bits_per_s() as f64;
    let table = ledger.table(link).unwrap();
    let round: u64 = table.entries().iter().map(|entry| 64 * u64::from(entry.weight) + 4122 - 64).sum();
    for grant in ledger.grants().values() {
        for share in grant.links.iter().filter(|share| share.link == link) {
            let own = 64 * u64::from(share.weight) * u64::from(share.entries);
            assert!(own as f64 / round as f64 * rate >= share.share.bits_per_s() as f64, "{share:?}");
        }
    }
}

/// Random admissions and releases; after each, everyone else has what they had.
fn churn(mut ledger: Ledger, steps: usize, seed: u8) {
    let network = &Arc::clone(ledger.network());
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]));
    let mut draw = |below: usize| (0..below).new_tree(&mut runner).unwrap().current();
    let (mut admitted, mut refused) = (0, 0);
    for number in 0..steps as u32 {
        let before = ledger.grants().clone();
        let touched = if !before.is_empty() && draw(3) == 0 {
            let cluster = *before.keys().nth(draw(before.len())).unwrap();
            assert_eq!(ledger.release(cluster).as_ref(), before.get(&cluster));
            cluster
        } else {
            let free: Vec<HostIndex> = (0..network.hosts().len() as u32)
                .map(HostIndex)
                .filter(|host| ledger.owner(*host).is_none())
                .collect();
            if free.is_empty() {
                continue;
            }
            let mut hosts: Vec<HostIndex> = (0..1 + draw(9)).map(|_| free[draw(free.len())]).collect();
            hosts.sort();
            hosts.dedup();
            let request = Request {
                cluster: ClusterNumber(number),
                hosts: &hosts,
                bandwidth: ledger.usable(LinkIndex(0)).part([0.0, 0.1, 0.5, 1.0][draw(4)]),
                mode: [SlMode::Cluster, SlMode::Path][draw(2)],
                routes: [Routes::Given, Routes::Chosen][draw(2)],
            };
            match ledger.admit(request) {
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
        let (before, after): (Vec<Grant>, Vec<Grant>) = (others(&before), others(ledger.grants()));
        assert_eq!(before, after);
        if number % 50 == 0 {
            check(&ledger);
        }
    }
    check(&ledger);
    assert!(admitted > steps / 10 && refused > 0, "{admitted} admitted, {refused} refused");
    for cluster in ledger.grants().keys().copied().collect::<Vec<_>>() {
        ledger.release(cluster);
    }
    for link in (0..network.links().len() as u32).map(LinkIndex) {
        assert_eq!(ledger.left(link), ledger.usable(link));
        assert!(ledger.table(link).is_none());
    }
}

#[test]
fn clusters_nobody_touched_keep_everything_over_a_thousand_changes_of_a_tree() {
    let network = network(&tree(64, 8, 3), seven_lanes());
    assert!(network.tree().is_some());
    churn(Ledger::new(Arc::clone(&network)), 1000, 1);
    churn(Ledger::new(network).with_one_way_levels(), 500, 4);
}

#[test]
fn the_same_holds_with_two_levels_and_fewer_up_ports_than_hosts() {
    let size = FatTreeSize::Leaves(6);
    let oversubscription = Oversubscription { down: 2, up: 1 };
    let topology = FatTree { radix: 12, oversubscription, ..FatTree::new(size) }.generate().unwrap();
    churn(Ledger::new(network(&topology, seven_lanes())), 400, 2);
}

#[test]
fn fabrics_that_are_no_trees_use_the_routes_they_have() {
    let topology = Torus { hosts_per_switch: 3, ..Torus::new([3, 3]) }.generate().unwrap();
    let network = network(&topology, seven_lanes());
    assert!(network.tree().is_none());
    churn(Ledger::new(network), 400, 3);
}

fn request(cluster: u32, hosts: &[HostIndex], bandwidth: Bandwidth) -> Request<'_> {
    let (mode, routes) = (SlMode::Cluster, Routes::Given);
    Request { cluster: ClusterNumber(cluster), hosts, bandwidth, mode, routes }
}

#[test]
fn refusals_name_what_binds() {
    let network = network(&tree(64, 8, 3), Limits { lanes: Some(1), ..Limits::default() });
    let mut ledger = Ledger::new(Arc::clone(&network));
    let usable = ledger.usable(LinkIndex(0));
    let [a, b, c, d] = [0, 1, 16, 17].map(HostIndex);
    assert_eq!(ledger.admit(request(1, &[], usable)).unwrap_err(), Refusal::Hosts);
    assert_eq!(ledger.admit(request(1, &[a, a], usable)).unwrap_err(), Refusal::Hosts);
    assert_eq!(ledger.admit(request(1, &[HostIndex(64)], usable)).unwrap_err(), Refusal::Hosts);
    let more = Bandwidth::from_bits_per_s(usable.bits_per_s() + 1);
    let refusal = ledger.admit(request(1, &[a, b], more)).unwrap_err();
    assert!(matches!(refusal, Refusal::Bandwidth { needed, free, .. } if needed == more && free == usable));
    ledger.admit(request(1, &[a, c], usable)).unwrap();
    assert_eq!(ledger.admit(request(1, &[b], usable)).unwrap_err(), Refusal::Known(ClusterNumber(1)));
    let refusal = ledger.admit(request(2, &[a, b], usable)).unwrap_err();
    assert!(matches!(refusal, Refusal::HostTaken { cluster: ClusterNumber(1), .. }));
    // Hosts b and d hang on the same leaves: where they share a link with the first cluster, its only lane is taken.
    let up_links = |ledger: &Ledger| ledger.grants()[&ClusterNumber(1)].links.len();
    assert!(up_links(&ledger) > 4);
    if let Err(refusal) = ledger.admit(request(2, &[b, d], Bandwidth::ZERO)) {
        assert!(matches!(refusal, Refusal::Lanes { lanes: 1, .. }), "{refusal}");
    }
}

fn wish(cluster: u32, nodes: usize, bandwidth: Bandwidth) -> Wish {
    let needs = Capacity { cores: 2, memory_mib: 1024, functions: 1 };
    Wish { cluster: ClusterNumber(cluster), nodes, needs, bandwidth, mode: SlMode::Cluster }
}

#[test]
fn small_clusters_share_leaves_and_leave_whole_ones_to_large_ones() {
    let network = network(&tree(64, 8, 3), seven_lanes());
    let mut places = Places::new(Ledger::new(Arc::clone(&network)), |_| Capacity::UNLIMITED);
    let rate = places.ledger().usable(LinkIndex(0));
    let leaves = |grant: &Grant| -> BTreeSet<u32> {
        grant.hosts.iter().map(|host| network.switch_of(*host)).collect()
    };
    let first = leaves(places.place(wish(1, 2, rate)).unwrap());
    let second = leaves(places.place(wish(2, 2, rate)).unwrap());
    assert_eq!((first.len(), &first), (1, &second));
    // A pod has 16 hosts. One more than it has left goes to a pod that nobody is in.
    let grant = places.place(wish(3, 16, rate)).unwrap();
    assert_eq!(leaves(grant).len(), 4);
    assert!(leaves(grant).is_disjoint(&first));
    let refusal = places.place(wish(4, 45, rate)).unwrap_err();
    assert_eq!(refusal, NoPlace::Hosts { asked: 45, free: 44 });
    let largest = places.largest(wish(4, 45, rate));
    assert!((32..=44).contains(&largest), "{largest}");
    places.place(wish(4, largest, rate)).unwrap();
    check(places.ledger());
}

#[test]
fn hosts_that_are_too_small_are_passed_over() {
    let network = network(&tree(64, 8, 3), seven_lanes());
    let capacity = |host: HostIndex| Capacity { cores: host.0 % 3, memory_mib: 2048, functions: 8 };
    let mut places = Places::new(Ledger::new(network), capacity);
    let grant = places.place(wish(1, 5, Bandwidth::ZERO)).unwrap();
    assert!(grant.hosts.iter().all(|host| host.0 % 3 == 2));
    let refusal = places.place(wish(2, 60, Bandwidth::ZERO)).unwrap_err();
    assert_eq!(refusal, NoPlace::Hosts { asked: 60, free: 16 });
}

/// Random placements, growths, shrinkages and releases; after each, everyone else has what they had, and those who grew or
/// shrank have their level, and their lanes where they pass the same links.
fn live(network: &Arc<Network>, steps: u32, seed: u8) {
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]));
    let mut draw = |below: usize| (0..below).new_tree(&mut runner).unwrap().current();
    let mut places = Places::new(Ledger::new(Arc::clone(network)), |_| Capacity::UNLIMITED);
    let usable = places.ledger().usable(LinkIndex(0));
    let tables = |places: &Places| -> Vec<_> {
        (0..network.links().len() as u32)
            .map(|link| places.ledger().table(LinkIndex(link)).copied())
            .collect()
    };
    let (mut changed, mut refused) = (0, 0);
    for number in 0..steps {
        let before = places.ledger().grants().clone();
        let tables_before = tables(&places);
        let someone = before.keys().nth(draw(before.len().max(1))).copied();
        let (touched, is_refused) = match (draw(6), someone) {
            (0 | 1, Some(cluster)) => (cluster, places.grow(cluster, 1 + draw(6)).is_err()),
            (2, Some(cluster)) => {
                let hosts = &before[&cluster].hosts;
                let gone: Vec<HostIndex> = (0..1 + draw(3)).map(|_| hosts[draw(hosts.len())]).collect();
                (cluster, places.shrink(cluster, &gone).is_err())
            }
            (3, Some(cluster)) => {
                places.release(cluster);
                (cluster, false)
            }
            _ => {
                let rate = usable.part([0.0, 0.2, 0.5, 1.0][draw(4)]);
                let mode = [SlMode::Cluster, SlMode::Path][draw(2)];
                let wish = Wish { mode, ..wish(number, 1 + draw(12), rate) };
                (ClusterNumber(number), places.place(wish).is_err())
            }
        };
        refused += u32::from(is_refused);
        let after = places.ledger().grants();
        for (cluster, had) in &before {
            match after.get(cluster) {
                Some(has) if is_refused => assert_eq!(had, has),
                // Entries may have been moved to make room.
                Some(has) if *cluster != touched => assert_eq!(without_places(had), without_places(has)),
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
            assert_eq!(tables(&places), tables_before, "a refusal leaves no trace");
        }
        if number % 50 == 0 {
            check(places.ledger());
        }
    }
    check(places.ledger());
    assert!(changed > steps / 10 && refused > 0, "{changed} changed, {refused} refused");
}

#[test]
fn clusters_grow_and_shrink_in_place_over_a_thousand_changes() {
    live(&network(&tree(64, 8, 3), seven_lanes()), 1000, 4);
}

#[test]
fn refusals_leave_short_tables_as_they_were() {
    live(&network(&tree(64, 8, 3), Limits { table_entries: 16, ..seven_lanes() }), 400, 5);
}

#[test]
fn the_largest_growth_is_given_and_one_more_is_not() {
    let mut places =
        Places::new(Ledger::new(network(&tree(64, 8, 3), seven_lanes())), |_| Capacity::UNLIMITED);
    let rate = places.ledger().usable(LinkIndex(0));
    places.place(wish(1, 6, rate)).unwrap();
    places.place(wish(2, 30, rate)).unwrap();
    let before = places.ledger().grants().clone();
    let most = places.largest_growth(ClusterNumber(1), 28).unwrap();
    assert_eq!(&before, places.ledger().grants());
    assert!(most > 0);
    if most < 28 {
        assert!(matches!(places.grow(ClusterNumber(1), most + 1), Err(NoPlace::Links(_))));
        assert_eq!(&before, places.ledger().grants());
    }
    assert_eq!(places.grow(ClusterNumber(1), most).unwrap().hosts.len(), 6 + most);
    assert!(matches!(
        places.grow(ClusterNumber(9), 1),
        Err(NoPlace::Links(Refusal::Unknown(ClusterNumber(9))))
    ));
    check(places.ledger());
}

#[test]
fn what_is_remembered_changes_no_decision() {
    let network = network(&tree(64, 8, 3), seven_lanes());
    for (seed, part) in [(6, 0.0), (7, 0.5), (8, 1.0)] {
        let [mut remembers, mut forgets] =
            [0; 2].map(|_| Places::new(Ledger::new(Arc::clone(&network)), |_| Capacity::UNLIMITED));
        let rate = remembers.ledger().usable(LinkIndex(0)).part(part);
        let mut runner = TestRunner::new_with_rng(
            Config::default(),
            TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]),
        );
        let mut draw = |below: usize| (0..below).new_tree(&mut runner).unwrap().current();
        let (mut asked_again, mut number) = (0, 0);
        while number < 150 {
            let nodes = 1 + draw(24);
            while number < 150 {
                // A wish of another size in between makes it forget.
                if forgets.place(wish(1000, 1, rate)).is_ok() {
                    forgets.release(ClusterNumber(1000));
                }
                let [one, other] = [&mut remembers, &mut forgets]
                    .map(|places| places.place(wish(number, nodes, rate)).map(|grant| grant.hosts.clone()));
                assert_eq!(one, other);
                if one.is_ok() {
                    number += 1;
                    break;
                }
                asked_again += 1;
                let clusters: Vec<ClusterNumber> = remembers.ledger().grants().keys().copied().collect();
                let gone = clusters[draw(clusters.len())];
                assert_eq!(remembers.release(gone), forgets.release(gone));
            }
        }
        assert!(asked_again > 20, "{asked_again}");
    }
}
