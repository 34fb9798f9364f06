//! All hosts reach each other without deadlocks, on complete and degraded trees and on other topologies.

use fabric_model::decisions::HeightScheme;
use fabric_model::generate::{DragonflyPlus, FatTree, FatTreeSize, RandomFabric, Torus, without_links};
use fabric_model::plan::PlanFinding;
use fabric_model::{Topology, TopologyBuilder, ibnetdiscover};
use proptest::prelude::*;

use crate::world::{Walker, fresh, intents, switch_cables, without_cable};

/// Checks reachability and deadlock freedom. Returns the number of pairs of switches that do not reach each other.
fn check(topology: &Topology) -> usize {
    let plan = fresh(topology);
    let walker = Walker::new(topology, &plan);
    walker.assert_deadlock_free();
    walker.assert_reachable()
}

fn small(size: FatTreeSize) -> FatTree {
    FatTree { radix: 8, ..FatTree::new(size) }
}

#[test]
fn complete_trees_are_routed_from_every_switch() {
    for tree in [
        FatTree::with_hosts(36),
        FatTree::with_hosts(324),
        FatTree::with_hosts(1944),
        small(FatTreeSize::Leaves(8)),
        small(FatTreeSize::Pods(3)),
        small(FatTreeSize::Pods(8)),
        FatTree { radix: 12, ..FatTree::new(FatTreeSize::Pods(5)) },
    ] {
        assert_eq!(check(&tree.generate().unwrap()), 0, "{tree:?}");
    }
}

#[test]
fn incomplete_trees_are_routed_from_every_switch() {
    let oversubscribed =
        |text: &str, tree: FatTree| FatTree { oversubscription: text.parse().unwrap(), ..tree };
    for tree in [
        oversubscribed("3:1", small(FatTreeSize::Leaves(5))),
        oversubscribed("2:1", FatTree { radix: 12, ..FatTree::new(FatTreeSize::Pods(4)) }),
        FatTree { radix: 8, ..FatTree::with_hosts(19) },
        FatTree { radix: 8, ..FatTree::with_hosts(67) },
    ] {
        assert_eq!(check(&tree.generate().unwrap()), 0, "{tree:?}");
    }
}

#[test]
fn any_single_cable_of_a_tree_may_fail() {
    for tree in [small(FatTreeSize::Leaves(8)), small(FatTreeSize::Pods(3))] {
        let tree = tree.generate().unwrap();
        for (end, _) in switch_cables(&tree) {
            assert_eq!(check(&without_cable(&tree, end)), 0, "{end:?}");
        }
    }
}

#[test]
fn trees_that_lack_a_cable_per_leaf_keep_their_tiers() {
    // No leaf reaches every spine, so no single switch joins all spines.
    let tree = small(FatTreeSize::Leaves(4)).generate().unwrap();
    let mut builder = TopologyBuilder::from(tree.clone());
    let leaves: Vec<_> = tree.switches().filter(|(_, node)| node.description.starts_with("leaf")).collect();
    for (number, (index, leaf)) in leaves.iter().enumerate() {
        let up: Vec<_> = leaf.cabled_ports().filter(|(_, peer)| tree[peer.node].is_switch()).collect();
        let spine = up[2 * (number % 2)].1.node;
        for (port, _) in up.iter().filter(|(_, peer)| peer.node == spine) {
            builder.disconnect(fabric_model::Endpoint::new(*index, *port)).unwrap();
        }
    }
    let damaged = builder.build().unwrap();
    assert_eq!(check(&damaged), 0);
    assert_eq!(fresh(&damaged).decisions().routing.scheme, HeightScheme::Tiers);
}

#[test]
fn tori_meshes_and_dragonflies_are_routed() {
    let torus = |dimensions: &[u16], hosts_per_switch| Torus { hosts_per_switch, ..Torus::new(dimensions) };
    for torus in [torus(&[4, 4], 2), torus(&[5, 3, 3], 1), torus(&[2, 2, 2, 2], 3), torus(&[7], 1)] {
        assert_eq!(check(&torus.generate().unwrap()), 0);
        assert_eq!(check(&Torus { wrap: false, ..torus }.generate().unwrap()), 0);
    }
    for groups in [2, 5, 9] {
        let dragonfly = DragonflyPlus { global_links: 4, ..DragonflyPlus::new(groups) };
        check(&dragonfly.generate().unwrap());
        check(&DragonflyPlus::new(groups).generate().unwrap());
    }
}

#[test]
fn a_real_fabric_of_2014_is_routed() {
    let text = include_str!("../../../../fixtures/topologies/loginoff-2014.ibnetdiscover");
    let topology = ibnetdiscover::parse(text).unwrap();
    assert_eq!(check(&topology), 0);
}

#[test]
fn tiny_fabrics_are_planned() {
    for text in [
        include_str!("../../../../fixtures/topologies/short-form.ibsim"),
        include_str!("../../../../fixtures/topologies/modules.ibsim"),
        include_str!("../../../../fixtures/topologies/tree-16.ibnetdiscover"),
    ] {
        check(&ibnetdiscover::parse(text).unwrap());
    }
    let switchless = Torus { hosts_per_switch: 0, ..Torus::new([3, 3]) }.generate().unwrap();
    assert_eq!(check(&switchless), 0);
}

#[test]
fn unreached_nodes_are_left_out_and_reported() {
    let tree = small(FatTreeSize::Leaves(2)).generate().unwrap();
    let mut builder = TopologyBuilder::from(tree.clone());
    let leaf = tree.by_description("leaf-02").unwrap();
    for (port, peer) in tree[leaf].cabled_ports().filter(|(_, peer)| tree[peer.node].is_switch()) {
        assert_eq!(builder.disconnect(fabric_model::Endpoint::new(leaf, port)).unwrap(), peer);
    }
    let cut = builder.build().unwrap();
    let plan = fresh(&cut);
    assert_eq!((plan.switches().len(), plan.adapter_ports().len()), (2, 4));
    let lowest = cut.end_nodes().nth(4).unwrap().1.guid;
    assert_eq!(plan.findings(), [PlanFinding::Unreachable { nodes: 5, witness: lowest }]);
    Walker::new(&cut, &plan).assert_reachable();
}

#[test]
fn plans_do_not_depend_on_the_order_of_nodes() {
    let tree = small(FatTreeSize::Pods(3)).generate().unwrap();
    let plan = fresh(&tree);
    assert_eq!(fresh(&tree), plan);
    // The text lists switches in the order of discovery; start with another one.
    let text = ibnetdiscover::write(&tree);
    let mut parts: Vec<&str> = text.split("\n\n").collect();
    parts[1..].reverse();
    let reversed = ibnetdiscover::parse(&parts.join("\n\n")).unwrap();
    assert_ne!(reversed, tree);
    let manager = intents(&tree);
    let again = fabric_compiler::compile(&reversed, &manager, &Default::default()).unwrap();
    assert_eq!(again, plan);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_fabrics_are_routed(switches in 3u32..40, degree in 2u8..6, hosts in 0u8..3, seed: u64) {
        let degree = degree.min(switches as u8 - 1);
        let fabric = RandomFabric { hosts_per_switch: hosts, ..RandomFabric::new(switches, degree, seed) };
        prop_assert_eq!(check(&fabric.generate().unwrap()), 0);
    }

    #[test]
    fn degraded_trees_are_routed(leaves in 2u16..9, pods in 0u16..5, missing in 0usize..60, seed: u64) {
        let size = if pods > 1 { FatTreeSize::Pods(pods) } else { FatTreeSize::Leaves(leaves) };
        let tree = small(size).generate().unwrap();
        let spare = switch_cables(&tree).len() + 1 - tree.switches().count();
        check(&without_links(tree, missing.min(spare), seed).unwrap());
    }

    #[test]
    fn trees_with_few_missing_cables_connect_all_switches(pods in 2u16..6, missing in 0usize..6, seed: u64) {
        let tree = small(FatTreeSize::Pods(pods)).generate().unwrap();
        prop_assert_eq!(check(&without_links(tree, missing, seed).unwrap()), 0);
    }

    #[test]
    fn degraded_tori_and_dragonflies_are_routed(missing in 0usize..20, seed: u64, torus: bool) {
        let topology = if torus {
            Torus::new([4, 4]).generate().unwrap()
        } else {
            DragonflyPlus { global_links: 3, ..DragonflyPlus::new(4) }.generate().unwrap()
        };
        let spare = switch_cables(&topology).len() + 1 - topology.switches().count();
        check(&without_links(topology, missing.min(spare), seed).unwrap());
    }
}
