//! Broadcasts reach each member exactly once and no other port; groups that share a multicast LID share no switch.

use std::collections::{BTreeMap, BTreeSet};

use fabric_compiler::{CompileError, compile, partitions_conf};
use fabric_model::generate::{FatTree, FatTreeSize, RandomFabric, without_links};
use fabric_model::plan::GroupPlan;
use fabric_model::{Decisions, Endpoint, FabricPlan, Intents, NodeIndex, Topology};
use ib_wire::{Guid, PartitionNumber, PortNum};
use proptest::prelude::*;

use crate::world::{intents, switch_cables};

fn hosts(topology: &Topology) -> Vec<Guid> {
    topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect()
}

fn with_conf(topology: &Topology, conf: &str) -> Intents {
    Intents { partitions: partitions_conf::parse(conf).unwrap(), ..intents(topology) }
}

fn planned(topology: &Topology, conf: &str) -> FabricPlan {
    compile(topology, &with_conf(topology, conf), &Decisions::default()).unwrap()
}

/// A rule for a partition of some hosts with IPoIB.
fn rule(number: u16, members: &[Guid]) -> String {
    let members: Vec<String> = members.iter().map(Guid::to_string).collect();
    format!("p{number}={number}, ipoib, defmember=full : {};\n", members.join(", "))
}

/// The port GUIDs that receive a packet sent by a host to a group. Panics if it reaches a switch twice.
fn flood(topology: &Topology, plan: &FabricPlan, group: &GroupPlan, from: Guid) -> Vec<Guid> {
    let start = topology.peer(topology.by_port_guid(from).unwrap()).unwrap();
    let mut open = vec![start];
    let mut seen = BTreeSet::new();
    let mut arrived = Vec::new();
    while let Some(end) = open.pop() {
        if !topology[end.node].is_switch() {
            arrived.push(topology.port(end).unwrap().guid);
            continue;
        }
        assert!(seen.insert(end.node), "comes to a switch twice");
        let exits = plan.switch(topology[end.node].guid).unwrap().multicast.exit(group.mlid);
        let exits = exits.iter().filter(|port| *port != end.port);
        open.extend(exits.map(|port| topology.peer(Endpoint::new(end.node, port)).unwrap()));
    }
    arrived.sort_unstable();
    arrived
}

fn assert_delivers(topology: &Topology, plan: &FabricPlan) {
    for group in plan.groups() {
        for from in &group.members {
            let others: Vec<Guid> = group.members.iter().copied().filter(|member| member != from).collect();
            assert_eq!(flood(topology, plan, group, *from), others, "{:?}", group.partition);
        }
    }
}

/// Whether the tree of a group goes up and then down: each switch but the root has one neighbour above, the root none.
fn goes_up_then_down(topology: &Topology, plan: &FabricPlan, group: &GroupPlan) -> bool {
    let height = |node: NodeIndex| {
        let guid = topology[node].guid;
        (plan.decisions().routing.switches[&guid].height, guid)
    };
    plan.switches().all(|switch| {
        let here = topology.by_guid(switch.guid).unwrap();
        let peers =
            switch.multicast.exit(group.mlid).iter().map(|port| topology.peer(Endpoint::new(here, port)));
        let peers = peers.flatten().map(|peer| peer.node).filter(|node| topology[*node].is_switch());
        peers.filter(|peer| height(*peer) > height(here)).count() <= 1
    })
}

#[test]
fn a_group_has_the_address_and_settings_of_its_partition() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    let plan = planned(
        &tree,
        "a=0x101, ipoib, mtu=5, rate=16, sl=3, scope=5, Q_Key=0xbeef : ALL_CAS; b=0x102 : ALL;",
    );
    let [group] = plan.groups().collect::<Vec<_>>()[..] else { panic!("one group") };
    assert_eq!(group.mgid.to_string(), "ff15:401b:8101::ffff:ffff");
    assert_eq!((group.mtu.bytes(), group.rate.nominal_mbps(), group.sl.to_wire()), (4096, 100_000, 3));
    assert_eq!((group.qkey.to_wire(), group.mlid.to_wire(), group.members.len()), (0xbeef, 0xc000, 16));
    assert!(!format!("{plan:?}").contains("beef"), "queue keys do not print");
    let default = planned(&tree, "a=0x101, ipoib : ALL;");
    assert_eq!(default.groups().next().unwrap().mgid.to_string(), "ff12:401b:8101::ffff:ffff");
}

#[test]
fn broadcasts_reach_every_member_once_and_nobody_else() {
    for tree in [FatTree::with_hosts(324), FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(4)) }] {
        let tree = tree.generate().unwrap();
        let hosts = hosts(&tree);
        let mut conf = String::from("Default, ipoib : ALL;\n");
        conf += &rule(1, &hosts[..3]);
        conf += &rule(2, &[hosts[0], hosts[hosts.len() - 1]]);
        conf += &rule(3, &hosts.iter().copied().step_by(7).collect::<Vec<_>>());
        let plan = planned(&tree, &conf);
        assert_delivers(&tree, &plan);
        assert!(plan.groups().all(|group| goes_up_then_down(&tree, &plan, group)));
        assert_eq!(plan.findings(), []);
    }
}

#[test]
fn roots_of_trees_spread_over_the_spines() {
    let tree = FatTree::with_hosts(324).generate().unwrap();
    let hosts = hosts(&tree);
    let conf: String =
        (1..=18).map(|n| rule(n, &[hosts[usize::from(n)], hosts[300 - usize::from(n)]])).collect();
    let plan = planned(&tree, &conf);
    let mut tops: BTreeMap<Guid, usize> = BTreeMap::new();
    plan.groups().for_each(|group| *tops.entry(group.root.unwrap()).or_default() += 1);
    assert_eq!(tops.into_values().collect::<Vec<_>>(), [2; 9]);
}

#[test]
fn groups_on_different_leaves_share_a_multicast_lid() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap();
    let hosts = hosts(&tree);
    let conf: String = (0..8).map(|leaf| rule(leaf + 1, &hosts[4 * usize::from(leaf)..][..4])).collect();
    let plan = planned(&tree, &conf);
    assert!(plan.groups().all(|group| group.mlid.to_wire() == 0xc000), "all alone on their leaf");
    assert_delivers(&tree, &plan);

    let more = planned(&tree, &format!("{conf}{}", rule(99, &hosts)));
    let last = more.groups().find(|group| group.partition.to_wire() == 99).unwrap();
    assert_eq!(last.mlid.to_wire(), 0xc001, "meets all others");
    assert_delivers(&tree, &more);
}

#[test]
fn a_group_keeps_its_multicast_lid_and_root() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap();
    let hosts = hosts(&tree);
    let all = [rule(1, &hosts), rule(2, &hosts), rule(3, &hosts)].concat();
    let plan = planned(&tree, &all);
    let fewer = compile(&tree, &with_conf(&tree, &rule(3, &hosts)), plan.decisions()).unwrap();
    let of = |plan: &FabricPlan, raw| plan.decisions().groups[&PartitionNumber::from_wire(raw).unwrap()];
    assert_eq!(of(&fewer, 3), of(&plan, 3));
    let back = compile(&tree, &with_conf(&tree, &all), fewer.decisions()).unwrap();
    assert_eq!(of(&back, 3), of(&plan, 3));
    assert_delivers(&tree, &back);
}

#[test]
fn exhausted_multicast_lids_name_the_group() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    let hosts = hosts(&tree);
    let conf = |groups: u16| (1..=groups).map(|number| rule(number, &hosts[..8])).collect::<String>();
    let plan = |groups| {
        let mut intents = with_conf(&tree, &conf(groups));
        intents.capabilities.default_switch.multicast = 5;
        compile(&tree, &intents, &Decisions::default())
    };
    assert_eq!(plan(5).unwrap().groups().len(), 5);
    let partition = PartitionNumber::from_wire(6).unwrap();
    assert_eq!(plan(6), Err(CompileError::MlidsExhausted { partition, capacity: 5 }));
}

#[test]
fn a_tree_without_a_common_root_uses_allowed_hops() {
    // Two spines; leaf 1 hangs on the first only, leaf 2 on the second only.
    let tree = FatTree { radix: 8, ..FatTree::new(FatTreeSize::Leaves(4)) }.generate().unwrap();
    let mut builder = fabric_model::TopologyBuilder::from(tree.clone());
    for (leaf, spine) in [("leaf-01", "spine-02"), ("leaf-02", "spine-01")] {
        let (leaf, spine) = (tree.by_description(leaf).unwrap(), tree.by_description(spine).unwrap());
        for (port, _) in tree[leaf].cabled_ports().filter(|(_, peer)| peer.node == spine) {
            builder.disconnect(Endpoint::new(leaf, port)).unwrap();
        }
    }
    let damaged = builder.build().unwrap();
    let plan = planned(&damaged, "a=1, ipoib : ALL_CAS;");
    assert_delivers(&damaged, &plan);
    let group = plan.groups().next().unwrap();
    assert!(!goes_up_then_down(&damaged, &plan, group) && plan.findings().is_empty());
    assert!(!plan.decisions().routing.core_tree.is_empty());
    // One group has a switch above all its members and does not use the core tree.
    let near: Vec<Guid> = hosts(&damaged).into_iter().take(4).collect();
    let other = planned(&damaged, &rule(1, &near));
    assert!(other.groups().all(|group| goes_up_then_down(&damaged, &other, group)));
    let again = compile(&damaged, &with_conf(&damaged, "a=1, ipoib : ALL_CAS;"), plan.decisions());
    assert_eq!(again.unwrap(), plan);
    assert_eq!(planned(&tree, "a=1, ipoib : ALL_CAS;").decisions().routing.core_tree.len(), 0);
}

#[test]
fn groups_with_no_or_one_member_are_planned() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    let host = hosts(&tree)[7];
    let plan = planned(&tree, &format!("none=1, ipoib : 0xdead; one=2, ipoib : {host};"));
    let members: Vec<usize> = plan.groups().map(|group| group.members.len()).collect();
    assert_eq!(members, [0, 1]);
    assert_delivers(&tree, &plan);
    let entries: Vec<_> = plan.switches().flat_map(|switch| switch.multicast.exits()).collect();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].1.iter().collect::<Vec<_>>(), [PortNum::new(4).unwrap()]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn random_groups_deliver_and_never_overlap(
        groups in prop::collection::vec(prop::collection::btree_set(0usize..24, 1..10), 1..12),
        missing in 0usize..8,
        seed: u64,
        is_tree: bool,
    ) {
        let fabric = if is_tree {
            FatTree { radix: 8, ..FatTree::with_hosts(24) }.generate().unwrap()
        } else {
            RandomFabric { hosts_per_switch: 2, ..RandomFabric::new(12, 3, seed) }.generate().unwrap()
        };
        let spare = switch_cables(&fabric).len() + 1 - fabric.switches().count();
        let fabric = without_links(fabric, missing.min(spare), seed).unwrap();
        let hosts = hosts(&fabric);
        let conf: String = (1..).zip(&groups).map(|(number, members)| {
            rule(number, &members.iter().map(|index| hosts[*index]).collect::<Vec<_>>())
        }).collect();
        let plan = planned(&fabric, &conf);
        assert_delivers(&fabric, &plan);
        prop_assert_eq!(compile(&fabric, &with_conf(&fabric, &conf), plan.decisions()).unwrap(), plan);
    }
}
