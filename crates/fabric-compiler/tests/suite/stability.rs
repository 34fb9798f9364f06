//! Plans are stable: only what a change affects is different.

use std::collections::{BTreeMap, BTreeSet};

use fabric_compiler::{CompileError, compile, partitions_conf};
use fabric_model::decisions::{
    EndPortDecision, GroupDecision, HeightScheme, RoutingDecision, SwitchDecision, Uplink,
};
use fabric_model::generate::{FatTree, FatTreeSize, RandomFabric};
use fabric_model::{Decisions, Endpoint, FabricPlan, Topology, TopologyBuilder};
use ib_wire::{Guid, Lid, MulticastLid, PartitionNumber, Pkey, PortNum};
use proptest::prelude::*;

use crate::world::{self, Walker, again, changes, fresh, guid, intents, switch_cables, without_cable};

fn lids(plan: &FabricPlan) -> BTreeMap<Guid, Lid> {
    plan.lids().map(|(lid, guid)| (guid, lid)).collect()
}

/// The fabric with only some hosts connected, always with the first one, which is the manager.
fn with_hosts(topology: &Topology, plugged: &[bool]) -> Topology {
    let mut builder = TopologyBuilder::from(topology.clone());
    for ((index, node), _) in topology.end_nodes().skip(1).zip(plugged).filter(|(_, plugged)| !**plugged) {
        let (port, _) = node.cabled_ports().next().unwrap();
        builder.disconnect(Endpoint::new(index, port)).unwrap();
    }
    builder.build().unwrap()
}

#[test]
fn compiling_with_its_own_decisions_gives_the_same_plan() {
    for topology in [
        FatTree::with_hosts(324).generate().unwrap(),
        FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(3)) }.generate().unwrap(),
        RandomFabric::new(20, 4, 1).generate().unwrap(),
    ] {
        let plan = fresh(&topology);
        let json = serde_json::to_string(plan.decisions()).unwrap();
        let stored: Decisions = serde_json::from_str(&json).unwrap();
        assert_eq!(compile(&topology, &intents(&topology), &stored).unwrap(), plan);
    }
}

#[test]
fn fresh_lids_are_consecutive_per_leaf() {
    let tree = FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(3)) }.generate().unwrap();
    let plan = fresh(&tree);
    let numbers: Vec<u16> = plan.lids().map(|(lid, _)| lid.to_wire()).collect();
    let switches = plan.switches().len() as u16;
    assert_eq!(numbers, (1..=48 + switches).collect::<Vec<_>>());
    let walker = Walker::new(&tree, &plan);
    let mut leaves: Vec<_> = walker.hosts().into_iter().map(|(_, switch)| switch).collect();
    leaves.dedup();
    assert_eq!(leaves.len(), 12, "no leaf is visited twice");
    assert!(plan.switches().all(|switch| switch.lid.to_wire() > 48));
}

#[test]
fn contradicting_decisions_are_resolved_in_a_fixed_order() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(8) }.generate().unwrap();
    let plan = fresh(&tree);
    let mut broken = plan.decisions().clone();
    let of = |lid: u16| EndPortDecision {
        lid: Lid::from_wire(lid).unwrap(),
        uplink_path: vec![200; 300],
        pkeys: vec![],
    };
    let ports: Vec<Guid> = plan.adapter_ports().map(|port| port.guid).collect();
    // An absent port and two present ones claim LID 5; down paths that lead nowhere.
    broken.end_ports.insert(guid(1), of(5));
    broken.end_ports.insert(ports[2], of(5));
    broken.end_ports.insert(ports[6], of(5));
    let repaired = compile(&tree, &intents(&tree), &broken).unwrap();
    let lids = lids(&repaired);
    assert_eq!(lids[&ports[2]].to_wire(), 5, "the lower GUID of those that are there");
    assert_eq!(lids.values().collect::<BTreeSet<_>>().len(), lids.len());
    assert!(!repaired.decisions().end_ports.contains_key(&guid(1)));
    Walker::new(&tree, &repaired).assert_reachable();
}

#[test]
fn lids_of_absent_ports_are_reused_when_none_is_free() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(8) }.generate().unwrap();
    let mut intents = intents(&tree);
    let needed = tree.node_count();
    intents.capabilities.default_switch.linear = needed as u16 + 1;
    let mut previous = Decisions::default();
    let absent = EndPortDecision { lid: Lid::from_wire(3).unwrap(), uplink_path: vec![], pkeys: vec![] };
    previous.end_ports.insert(guid(1), absent);
    let plan = compile(&tree, &intents, &previous).unwrap();
    assert_eq!(plan.lids().len(), needed);

    intents.capabilities.default_switch.linear = needed as u16;
    let refused = compile(&tree, &intents, &previous);
    assert_eq!(refused, Err(CompileError::LidsExhausted { needed, available: needed - 1 }));
}

/// Checks that every changed entry used the cable, or is for a LID whose packets came over it.
fn assert_minimal(tree: &Topology, cable: (Endpoint, Endpoint)) -> usize {
    let plan = fresh(tree);
    let cut = without_cable(tree, cable.0);
    let after = again(&cut, &plan);
    let walker = Walker::new(&cut, &after);
    walker.assert_reachable();
    let changes = changes(&plan, &after);
    for (switch, lid, was, is) in &changes.entries {
        let here = cut.by_guid(*switch).unwrap();
        assert!(is.is_some(), "{switch} loses {lid}");
        let used = [cable.0, cable.1].contains(&Endpoint::new(here, was.unwrap()));
        let came = [cable.0, cable.1].iter().any(|end| {
            Walker::new(tree, &plan).exit(end.node, *lid) == Some(end.port) && end.node == upper(tree, cable)
        });
        let moved = || format!("{switch} need not move {lid} from {was:?} to {is:?}");
        assert!(used || came || passed(tree, &plan, here, *lid, cable), "{}", moved());
    }
    assert_eq!(again(tree, &after), plan, "when the cable returns, all is as before");
    changes.blocks
}

/// The switch at the upper end: generated trees list lower tiers first, pod by pod.
fn upper(tree: &Topology, (a, b): (Endpoint, Endpoint)) -> fabric_model::NodeIndex {
    let level =
        |end: Endpoint| ["leaf", "spine", "core"].iter().position(|l| tree[end.node].description.contains(l));
    if level(a) > level(b) { a.node } else { b.node }
}

/// Whether the old route from a switch to a LID used a cable, in whichever direction.
fn passed(
    tree: &Topology,
    plan: &FabricPlan,
    from: fabric_model::NodeIndex,
    lid: Lid,
    cable: (Endpoint, Endpoint),
) -> bool {
    let world::Walk::Arrived(channels) = Walker::new(tree, plan).walk(from, lid) else { return false };
    channels.iter().any(|(node, port)| [cable.0, cable.1].contains(&Endpoint::new(*node, *port)))
}

#[test]
fn one_failed_cable_moves_only_routes_that_used_it() {
    let tree = FatTree::with_hosts(324).generate().unwrap();
    let cables = switch_cables(&tree);
    for cable in cables.iter().step_by(29) {
        let blocks = assert_minimal(&tree, *cable);
        assert!(blocks <= 32, "{blocks} blocks of {}", 27 * 6);
    }
}

#[test]
fn one_failed_cable_of_three_tiers_moves_only_its_routes() {
    let tree = FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(8)) }.generate().unwrap();
    for cable in switch_cables(&tree).iter().step_by(7) {
        assert_minimal(&tree, *cable);
    }
}

#[test]
fn one_failed_cable_of_any_fabric_moves_few_routes() {
    let fabric = RandomFabric { hosts_per_switch: 2, ..RandomFabric::new(24, 4, 7) }.generate().unwrap();
    let plan = fresh(&fabric);
    for (end, _) in switch_cables(&fabric).into_iter().step_by(5) {
        let cut = without_cable(&fabric, end);
        let after = again(&cut, &plan);
        Walker::new(&cut, &after).assert_deadlock_free();
        let (was, is) = (&plan.decisions().routing.switches, &after.decisions().routing.switches);
        let rehung = was.iter().filter(|(guid, switch)| is[guid] != **switch).count();
        assert!(rehung <= 3, "only what lost its last cable upwards, and what hung on that: {rehung}");
        let moved = changes(&plan, &after).entries.len();
        assert!(moved * 4 < 24 * 72, "{moved} of {} entries moved", 24 * 72);
        if rehung == 0 {
            assert_eq!(again(&fabric, &after), plan);
        }
    }
}

#[test]
fn a_new_leaf_changes_no_existing_route() {
    let whole = FatTree::with_hosts(324).generate().unwrap();
    let mut builder = TopologyBuilder::from(whole.clone());
    let leaf = whole.by_description("leaf-07").unwrap();
    for (port, _) in whole[leaf].cabled_ports().filter(|(_, peer)| whole[peer.node].is_switch()) {
        builder.disconnect(Endpoint::new(leaf, port)).unwrap();
    }
    let before = fresh(&builder.build().unwrap());
    let after = again(&whole, &before);
    let known: BTreeSet<Lid> = before.lids().map(|(lid, _)| lid).collect();
    let moved: Vec<_> =
        changes(&before, &after).entries.into_iter().filter(|(_, lid, ..)| known.contains(lid)).collect();
    assert_eq!(moved, []);
    assert_eq!(after.lids().len(), 324 + 27);
    Walker::new(&whole, &after).assert_reachable();
}

#[test]
fn plans_share_unchanged_tables() {
    let tree = FatTree::with_hosts(324).generate().unwrap();
    let plan = fresh(&tree);
    let cable = switch_cables(&tree)[40];
    let after = again(&without_cable(&tree, cable.0), &plan);
    let moved: BTreeSet<Guid> = changes(&plan, &after).entries.into_iter().map(|(guid, ..)| guid).collect();
    let sharing = after.clone().sharing_tables_with(&plan);
    assert_eq!(sharing, after);
    for (old, new) in plan.switches().zip(sharing.switches()) {
        assert_eq!(std::sync::Arc::ptr_eq(&old.linear, &new.linear), !moved.contains(&old.guid));
    }
    assert!(!moved.is_empty() && moved.len() < 27);
}

/// Random decisions: any heights, up-links, down paths, tables and groups for the nodes of a fabric.
fn any_decisions(topology: &Topology) -> impl Strategy<Value = Decisions> + use<> {
    let guids: Vec<Guid> = topology.nodes().map(|(_, node)| node.guid).collect();
    let port_guids: Vec<Guid> =
        topology.nodes().flat_map(|(_, node)| node.ports().map(|(_, port)| port.guid)).collect();
    let some = |guids: &[Guid]| prop::sample::select(guids.to_vec());
    let port = (0u8..9).prop_map(|raw| PortNum::new(raw).unwrap());
    let uplink = (port, some(&guids)).prop_map(|(port, peer)| Uplink { port, peer });
    let height = prop_oneof![-3..4, Just(i32::MIN), Just(i32::MAX)];
    let switch = (height, prop::collection::vec(uplink, 0..9))
        .prop_map(|(height, uplinks)| SwitchDecision { height, uplinks });
    let lid = (1u16..60).prop_map(|raw| Lid::from_wire(raw).unwrap());
    let key = (0u16..4).prop_map(Pkey::from_wire);
    let end_port = (lid, prop::collection::vec(0u8..5, 0..5), prop::collection::vec(key, 0..70))
        .prop_map(|(lid, up, pkeys)| EndPortDecision { lid, uplink_path: up, pkeys });
    let mlid = (0xc000u16..0xc005).prop_map(|raw| MulticastLid::from_wire(raw).unwrap());
    let group = (mlid, prop::option::of(some(&guids))).prop_map(|(mlid, root)| GroupDecision { mlid, root });
    let number = (1u16..4).prop_map(|raw| PartitionNumber::from_wire(raw).unwrap());
    (
        prop::collection::btree_map(some(&port_guids), end_port, 0..40),
        prop::sample::select(vec![HeightScheme::Tiers, HeightScheme::Root]),
        prop::collection::btree_map(some(&guids), switch, 0..40),
        prop::option::of(some(&guids)),
        prop::collection::btree_map(number, group, 0..4),
    )
        .prop_map(|(end_ports, scheme, switches, turn, groups)| Decisions {
            end_ports: end_ports.into_iter().collect(),
            routing: RoutingDecision {
                scheme,
                switches: switches.into_iter().collect(),
                down_up_switch: turn,
                ..RoutingDecision::default()
            },
            groups,
            ..Decisions::default()
        })
}

fn small_tree() -> Topology {
    FatTree { radix: 4, ..FatTree::new(FatTreeSize::Pods(3)) }.generate().unwrap()
}

fn small_random() -> Topology {
    RandomFabric { radix: 8, hosts_per_switch: 1, ..RandomFabric::new(12, 4, 3) }.generate().unwrap()
}

fn assert_any_decisions_do(topology: &Topology, decisions: &Decisions) {
    let mut intents = intents(topology);
    intents.partitions = partitions_conf::parse("a=1,ipoib:ALL;b=2,ipoib:ALL;").unwrap();
    let plan = compile(topology, &intents, decisions).unwrap();
    let walker = Walker::new(topology, &plan);
    walker.assert_deadlock_free();
    walker.assert_reachable();
    let settled = compile(topology, &intents, plan.decisions()).unwrap();
    assert_eq!(changes(&plan, &settled).entries, []);
    assert_eq!(settled.findings(), plan.findings());
    assert_eq!(settled.decisions().groups, plan.decisions().groups);
    assert_eq!(settled.decisions().routing.down_up_switch, plan.decisions().routing.down_up_switch);
    assert!(settled == plan, "once repaired, nothing moves");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn trees_with_random_decisions_are_routed(decisions in any_decisions(&small_tree())) {
        assert_any_decisions_do(&small_tree(), &decisions);
    }

    #[test]
    fn fabrics_with_random_decisions_are_routed(decisions in any_decisions(&small_random())) {
        assert_any_decisions_do(&small_random(), &decisions);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_port_keeps_its_lid_while_the_fabric_resizes(
        steps in prop::collection::vec(prop::collection::vec(any::<bool>(), 31), 1..6),
    ) {
        let tree = FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap();
        let mut seen: BTreeMap<Guid, Lid> = BTreeMap::new();
        let mut decisions = Decisions::default();
        for plugged in steps {
            let topology = with_hosts(&tree, &plugged);
            let plan = compile(&topology, &intents(&topology), &decisions).unwrap();
            for (guid, lid) in lids(&plan) {
                prop_assert_eq!(*seen.entry(guid).or_insert(lid), lid);
            }
            let distinct: BTreeSet<Lid> = seen.values().copied().collect();
            prop_assert_eq!(distinct.len(), seen.len(), "a LID never changes hands");
            let walker = Walker::new(&topology, &plan);
            walker.assert_deadlock_free();
            prop_assert_eq!(walker.assert_reachable(), 0);
            decisions = plan.decisions().clone();
        }
    }
}
