use super::*;
use crate::summary::TopologySummary;
use crate::topology::Topology;

/// Hosts, switches and links.
fn counts(topology: &Topology) -> (usize, usize, usize) {
    let summary = TopologySummary::of(topology);
    (summary.adapters, summary.switches, summary.links)
}

fn switch_names(topology: &Topology, part: &str) -> usize {
    topology.switches().filter(|(_, node)| node.description.contains(part)).count()
}

#[test]
fn reference_trees_have_their_exact_sizes() {
    for (hosts, switches, links) in [
        (324, 18 + 9, 648),
        (648, 36 + 18, 1_296),
        (1_944, 270, 5_832),
        (4_860, 702, 14_580),
        (11_664, 1_620, 34_992),
    ] {
        let tree = FatTree::with_hosts(hosts).generate().unwrap();
        assert_eq!(counts(&tree), (hosts as usize, switches, links));
    }
}

#[test]
fn leaves_and_pods_give_the_reference_trees() {
    for (size, hosts) in [
        (FatTreeSize::Leaves(18), 324),
        (FatTreeSize::Leaves(36), 648),
        (FatTreeSize::Pods(6), 1_944),
        (FatTreeSize::Pods(15), 4_860),
        (FatTreeSize::Pods(36), 11_664),
    ] {
        let tree = FatTree::new(size).generate().unwrap();
        assert_eq!(tree, FatTree::with_hosts(hosts).generate().unwrap());
    }
}

#[test]
fn trees_use_as_few_spines_as_possible() {
    let tree = FatTree::with_hosts(324).generate().unwrap();
    assert_eq!((switch_names(&tree, "leaf-"), switch_names(&tree, "spine-")), (18, 9));
    for (_, node) in tree.switches() {
        assert_eq!(node.cabled_ports().count(), 36, "{}", node.description);
    }
}

#[test]
fn pods_and_cores_are_named() {
    let tree = FatTree::with_hosts(1_944).generate().unwrap();
    assert_eq!(switch_names(&tree, "core-"), 54);
    for name in ["pod01-leaf01", "pod06-leaf18", "pod06-spine18", "core-54", "host-01944"] {
        assert!(tree.by_description(name).is_some(), "{name}");
    }
}

#[test]
fn hosts_are_distributed_evenly_over_the_leaves() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(18) }.generate().unwrap();
    assert_eq!((switch_names(&tree, "leaf-"), counts(&tree).0), (5, 18));
    let hosts_of = |name| {
        let leaf = &tree[tree.by_description(name).unwrap()];
        leaf.cabled_ports().filter(|(_, peer)| !tree[peer.node].is_switch()).count()
    };
    assert_eq!((hosts_of("leaf-01"), hosts_of("leaf-05")), (4, 3));
    let summary = TopologySummary::of(&tree);
    assert!(summary.oversubscription.unwrap() <= 1.0, "full bisection");
}

#[test]
fn too_many_hosts_are_rejected_with_the_capacity() {
    let error = FatTree { radix: 8, ..FatTree::with_hosts(129) }.generate().unwrap_err();
    assert_eq!(
        error.to_string(),
        "129 hosts do not fit: a fat-tree of 3 tiers and radix 8 holds at most 128"
    );
    let two_tiers = FatTree::new(FatTreeSize::Hosts { hosts: 649, tiers: Some(2) });
    let expected = GenerateError::TooManyHosts { hosts: 649, tiers: 2, radix: 36, capacity: 648 };
    assert_eq!(two_tiers.generate().unwrap_err(), expected);
    assert!(FatTree::with_hosts(0).generate().is_err());
    assert!(FatTree::new(FatTreeSize::Pods(37)).generate().is_err());
}

#[test]
fn oversubscribed_leaves_have_more_hosts_than_uplinks() {
    let tree = FatTree { oversubscription: "3:1".parse().unwrap(), ..FatTree::with_hosts(27 * 36) };
    let tree = tree.generate().unwrap();
    assert_eq!(counts(&tree), (972, 36 + 9, 972 + 36 * 9));
    for text in ["", "1", "1:2", "0:0", "a:b", "100:1"] {
        assert!(text.parse::<Oversubscription>().is_err(), "{text}");
    }
}

#[test]
fn tori_have_wrap_around_cables_and_meshes_do_not() {
    let torus = Torus { hosts_per_switch: 2, ..Torus::new([4, 4]) };
    assert_eq!(counts(&torus.generate().unwrap()), (32, 16, 32 + 32));
    let mesh = Torus { wrap: false, ..torus };
    assert_eq!(counts(&mesh.generate().unwrap()), (32, 16, 32 + 24));
    let cube = Torus { hosts_per_switch: 0, ..Torus::new([2, 2, 2]) };
    assert_eq!(
        counts(&cube.generate().unwrap()),
        (0, 8, 12),
        "no double cables in a dimension of two switches"
    );
}

#[test]
fn every_two_dragonfly_groups_are_connected() {
    let dragonfly = DragonflyPlus { global_links: 2, ..DragonflyPlus::new(5) }.generate().unwrap();
    assert_eq!(counts(&dragonfly), (80, 40, 80 + 5 * 16 + 10 * 2));
    assert_eq!(TopologySummary::of(&dragonfly).components, 1);
    let too_many = DragonflyPlus { global_links: 40, ..DragonflyPlus::new(5) }.generate();
    assert_eq!(too_many, Err(GenerateError::TooFewPorts { needed: 44, radix: 36 }));
}

#[test]
fn random_fabrics_are_connected_and_reproducible() {
    for seed in 0..20 {
        let fabric = RandomFabric { hosts_per_switch: 3, ..RandomFabric::new(30, 4, seed) };
        let topology = fabric.generate().unwrap();
        let summary = TopologySummary::of(&topology);
        assert_eq!((summary.components, summary.adapters), (1, 90));
        assert!((57..=60).contains(&summary.switch_links), "{}", summary.switch_links);
        assert_eq!(fabric.generate().unwrap(), topology);
    }
    let other = |seed| RandomFabric::new(30, 4, seed).generate().unwrap();
    assert_ne!(other(1), other(2));
}

#[test]
fn removed_links_do_not_disconnect_hosts() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    for seed in 0..20 {
        let thinned = without_links(tree.clone(), 11, seed).unwrap();
        let summary = TopologySummary::of(&thinned);
        assert_eq!((summary.components, summary.switch_links, summary.adapters), (1, 5, 16));
        assert_eq!(thinned, without_links(tree.clone(), 11, seed).unwrap());
    }
    let expected = GenerateError::TooManyMissing { requested: 12, removable: 11 };
    assert_eq!(without_links(tree, 12, 0), Err(expected));
}

#[test]
fn parameters_that_exceed_the_radix_are_rejected() {
    assert_eq!(
        Torus { hosts_per_switch: 33, ..Torus::new([3, 3]) }.generate(),
        Err(GenerateError::TooFewPorts { needed: 37, radix: 36 })
    );
    assert!(Torus::new([1, 4]).generate().is_err());
    assert!(RandomFabric::new(2, 2, 0).generate().is_err());
    assert!(FatTree { radix: 255, ..FatTree::with_hosts(16) }.generate().is_err());
}
