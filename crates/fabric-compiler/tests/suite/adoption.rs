//! Adoption of a foreign configuration changes as little as possible.

use std::collections::BTreeSet;

use fabric_compiler::{adopt, compile, partitions_conf, recompile};
use fabric_model::generate::{DragonflyPlus, FatTree, FatTreeSize, RandomFabric, Torus, without_links};
use fabric_model::plan::{LinearTable, PkeyTable};
use fabric_model::{Decisions, Endpoint, FabricPlan, ObservedTables, Topology, TopologyBuilder};
use ib_wire::{Guid, Lid, PartitionNumber, Pkey};
use proptest::prelude::*;

use crate::found::{Choose, by_lid, programmed, scattered, shortest_paths};
use crate::world::{Walk, Walker, again, changes, fresh, intents, switch_cables, without_cable};

fn adopted(topology: &Topology, found: &ObservedTables) -> FabricPlan {
    let adoption = adopt(topology, &intents(topology), found).unwrap();
    compile(topology, &intents(topology), &adoption.decisions).unwrap()
}

/// The number of forwarding entries for adapters that differ from those found, and of all.
fn moved(plan: &FabricPlan, found: &ObservedTables) -> (usize, usize) {
    let (mut moved, mut all) = (0, 0);
    for switch in plan.switches() {
        for port in plan.adapter_ports() {
            all += 1;
            moved += usize::from(switch.linear.exit(port.lid) != found.linear[&switch.guid].exit(port.lid));
        }
    }
    (moved, all)
}

fn trees() -> Vec<Topology> {
    vec![
        FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap(),
        FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(3)) }.generate().unwrap(),
        FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(8)) }.generate().unwrap(),
        FatTree::with_hosts(324).generate().unwrap(),
    ]
}

#[test]
fn shortest_paths_of_a_tree_are_adopted_unchanged() {
    for tree in trees() {
        for choose in [scattered as Choose, by_lid] {
            let found = shortest_paths(&tree, choose);
            let adoption = adopt(&tree, &intents(&tree), &found).unwrap();
            assert_eq!(adoption.routes_kept, adoption.routes);
            assert_eq!(adoption.lids_kept, found.lids.len());
            let plan = compile(&tree, &intents(&tree), &adoption.decisions).unwrap();
            assert_eq!(moved(&plan, &found).0, 0);
            assert!(plan.lids().all(|(lid, guid)| found.lids[&guid] == lid));
            let walker = Walker::new(&tree, &plan);
            walker.assert_deadlock_free();
            assert_eq!(walker.assert_reachable(), 0);
            assert_eq!(again(&tree, &plan), plan);

            // Control: without the adopted tables, the routes are our own.
            let mut own = plan.decisions().clone();
            own.adopted.clear();
            let own = compile(&tree, &intents(&tree), &own).unwrap();
            assert!(moved(&own, &found).0 > 0);
        }
    }
}

#[test]
fn routes_that_could_deadlock_are_replaced() {
    let mut kept = Vec::new();
    for fabric in [
        Torus::new([4, 4]).generate().unwrap(),
        DragonflyPlus::new(5).generate().unwrap(),
        RandomFabric { hosts_per_switch: 2, ..RandomFabric::new(16, 4, 7) }.generate().unwrap(),
    ] {
        let found = shortest_paths(&fabric, scattered);
        let adoption = adopt(&fabric, &intents(&fabric), &found).unwrap();
        let plan = compile(&fabric, &intents(&fabric), &adoption.decisions).unwrap();
        let walker = Walker::new(&fabric, &plan);
        walker.assert_deadlock_free();
        walker.assert_reachable();
        assert!(plan.lids().all(|(lid, guid)| found.lids[&guid] == lid));
        assert!(adoption.routes_kept < adoption.routes, "some shortest paths have down-up hops");
        kept.push((adoption.routes_kept, adoption.routes));
        assert_eq!(again(&fabric, &plan), plan);
    }
    assert!(kept.iter().any(|(kept, _)| *kept > 0), "{kept:?}");
}

#[test]
fn a_fabric_programmed_from_a_plan_is_adopted_as_that_plan() {
    for fabric in trees().into_iter().chain([Torus::new([4, 4]).generate().unwrap()]) {
        let plan = fresh(&fabric);
        let found = programmed(&plan);
        assert_eq!(adopted(&fabric, &found), plan);
        let theirs = adopted(&fabric, &shortest_paths(&fabric, scattered));
        assert_eq!(changes(&theirs, &adopted(&fabric, &programmed(&theirs))).entries, []);
    }
}

/// Whether the route from a switch to a LID uses a cable.
fn used(topology: &Topology, walker: &Walker<'_>, from: Guid, lid: Lid, cable: (Endpoint, Endpoint)) -> bool {
    let Walk::Arrived(channels) = walker.walk(topology.by_guid(from).unwrap(), lid) else { return true };
    channels.iter().any(|(node, port)| [cable.0, cable.1].contains(&Endpoint::new(*node, *port)))
}

#[test]
fn a_failed_cable_moves_only_routes_that_used_it() {
    for tree in trees().into_iter().take(3) {
        let plan = adopted(&tree, &shortest_paths(&tree, scattered));
        let hosts: BTreeSet<Lid> = plan.adapter_ports().map(|port| port.lid).collect();
        for cable in switch_cables(&tree).into_iter().step_by(7) {
            let cut = without_cable(&tree, cable.0);
            let after = again(&cut, &plan);
            let walker = Walker::new(&cut, &after);
            walker.assert_deadlock_free();
            walker.assert_reachable();
            let before = Walker::new(&tree, &plan);
            let changes = changes(&plan, &after).entries;
            let of_hosts: Vec<_> = changes.iter().filter(|(_, lid, ..)| hosts.contains(lid)).collect();
            assert!(!of_hosts.is_empty());
            for (switch, lid, was, is) in of_hosts {
                let used = used(&tree, &before, *switch, *lid, cable);
                assert!(used, "{switch} need not move {lid} from {was:?} to {is:?}");
            }
            assert_eq!(again(&tree, &after), plan, "when the cable returns, all is as it was found");
        }
    }
}

#[test]
fn many_failed_cables_leave_everyone_reachable() {
    let tree = FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(8)) }.generate().unwrap();
    let plan = adopted(&tree, &shortest_paths(&tree, scattered));
    for seed in 0..8 {
        let degraded = without_links(tree.clone(), 40, seed).unwrap();
        let after = compile(&degraded, &intents(&degraded), plan.decisions()).unwrap();
        let walker = Walker::new(&degraded, &after);
        walker.assert_deadlock_free();
        walker.assert_reachable();
        assert_eq!(again(&tree, &after), plan);
    }
}

#[test]
fn new_hosts_and_switches_get_routes() {
    let whole = FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(3)) }.generate().unwrap();
    let mut builder = TopologyBuilder::from(whole.clone());
    let leaf = switch_cables(&whole)[0].0.node;
    for (port, _) in whole[leaf].cabled_ports().filter(|(_, peer)| whole[peer.node].is_switch()) {
        builder.disconnect(Endpoint::new(leaf, port)).unwrap();
    }
    let part = builder.build().unwrap();
    let mut desired = intents(&part);
    let far = whole.end_nodes().last().unwrap().1.ports().next().unwrap().1.guid;
    desired.manager = far;
    let found = shortest_paths_of_reached(&part, far);
    let adoption = adopt(&part, &desired, &found).unwrap();
    let before = compile(&part, &desired, &adoption.decisions).unwrap();
    let after = compile(&whole, &desired, before.decisions()).unwrap();
    let known: BTreeSet<Lid> = before.adapter_ports().map(|port| port.lid).collect();
    let moved = changes(&before, &after).entries;
    assert_eq!(moved.iter().filter(|(_, lid, was, _)| known.contains(lid) && was.is_some()).count(), 0);
    assert!(after.adapter_ports().len() > before.adapter_ports().len());
    let walker = Walker::new(&whole, &after);
    walker.assert_deadlock_free();
    walker.assert_reachable();
}

/// Like [`shortest_paths`], for the part that a port reaches.
fn shortest_paths_of_reached(topology: &Topology, from: Guid) -> ObservedTables {
    let mut builder = TopologyBuilder::from(topology.clone());
    let plan = compile(topology, &fabric_model::Intents::new(from), &Decisions::default()).unwrap();
    let reached: BTreeSet<Guid> = plan.lids().map(|(_, guid)| guid).collect();
    for (index, node) in topology.nodes() {
        for (port, _) in node.cabled_ports() {
            let guid = topology.port(Endpoint::new(index, port)).unwrap().guid;
            if !node.is_switch() && !reached.contains(&guid) {
                let _ = builder.disconnect(Endpoint::new(index, port));
            }
        }
    }
    let mut found = ObservedTables::default();
    let kept = builder.build().unwrap();
    let own = programmed(&plan);
    found.lids = own.lids;
    found.pkeys = own.pkeys;
    // Our own routes shifted by one up-link: different from those we choose, and as good.
    for switch in plan.switches() {
        let index = kept.by_guid(switch.guid).unwrap();
        let ups: Vec<u8> = (kept[index].cabled_ports())
            .filter(|(_, peer)| plan.is_above(kept[peer.node].guid, switch.guid) == Some(true))
            .map(|(port, _)| port.to_wire())
            .collect();
        let shift = |exit: &u8| match ups.iter().position(|up| up == exit) {
            Some(index) => ups[(index + 1) % ups.len()],
            None => *exit,
        };
        let shifted: Vec<u8> = switch.linear.to_exits().iter().map(shift).collect();
        found.linear.insert(switch.guid, LinearTable::from_exits(shifted));
    }
    found
}

#[test]
fn invalid_lids_are_reassigned() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap();
    let mut found = shortest_paths(&tree, scattered);
    let mut desired = intents(&tree);
    desired.capabilities.default_switch.linear = 1000;
    let ports: Vec<Guid> = found.lids.keys().copied().collect();
    found.lids.insert(ports[5], Lid::from_wire(1000).unwrap());
    found.lids.insert(ports[7], found.lids[&ports[6]]);
    found.lids.remove(&ports[8]);
    let adoption = adopt(&tree, &desired, &found).unwrap();
    let plan = compile(&tree, &desired, &adoption.decisions).unwrap();
    assert_eq!(adoption.lids_kept, ports.len() - 3);
    assert_eq!(plan.lids().len(), ports.len());
    assert_eq!(plan.lid_owner(found.lids[&ports[6]]), Some(ports[6]), "the lower GUID keeps it");
    let walker = Walker::new(&tree, &plan);
    walker.assert_deadlock_free();
    assert_eq!(walker.assert_reachable(), 0);
}

#[test]
fn adopted_pkeys_keep_their_index() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap();
    let mut found = shortest_paths(&tree, by_lid);
    let member = tree.end_nodes().nth(4).unwrap().1.ports().next().unwrap().1.guid;
    let key = Pkey::from_wire(0x8101).unwrap();
    let keys = vec![Some(Pkey::DEFAULT_FULL), Pkey::from_wire(0x8999), None, Some(key)];
    found.pkeys.insert(member, PkeyTable::from_keys(keys));
    let mut desired = intents(&tree);
    desired.partitions = partitions_conf::parse("blue=0x101, defmember=full : ALL_CAS;").unwrap();
    let adoption = adopt(&tree, &desired, &found).unwrap();
    let plan = compile(&tree, &desired, &adoption.decisions).unwrap();
    let limited = PartitionNumber::DEFAULT.key(ib_wire::Membership::Limited);
    let table = &plan.adapter_port(member).unwrap().pkeys;
    assert_eq!(table.entries(), [Some(limited), None, None, Some(key)]);
    let other =
        plan.adapter_ports().find(|port| port.guid != member && port.guid != desired.manager).unwrap();
    assert_eq!(other.pkeys.entries(), [Some(limited), Some(key)]);
}

#[test]
fn intents_can_change_on_an_adopted_fabric() {
    let tree = FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(3)) }.generate().unwrap();
    let plan = adopted(&tree, &shortest_paths(&tree, scattered));
    let mut desired = intents(&tree);
    desired.partitions = partitions_conf::parse("blue=0x101, ipoib, defmember=full : ALL_CAS;").unwrap();
    let compiled = compile(&tree, &desired, plan.decisions()).unwrap();
    assert_eq!(recompile(&tree, &desired, &plan).unwrap(), compiled);
    assert_eq!(changes(&plan, &compiled).entries, []);
}

/// Random forwarding tables.
fn any_tables(topology: &Topology) -> impl Strategy<Value = ObservedTables> + use<> {
    let found = shortest_paths(topology, scattered);
    let guids: Vec<Guid> = found.linear.keys().copied().collect();
    let edit = (prop::sample::select(guids), 0usize..80, prop_oneof![0u8..9, Just(0xff), any::<u8>()]);
    prop::collection::vec(edit, 0..60).prop_map(move |edits| {
        let mut found = found.clone();
        for (guid, lid, exit) in edits {
            let mut row = found.linear[&guid].to_exits();
            if let Some(entry) = row.get_mut(lid) {
                *entry = exit;
            }
            found.linear.insert(guid, LinearTable::from_exits(row));
        }
        found
    })
}

fn assert_any_found_does(topology: &Topology, found: &ObservedTables, all: bool) {
    let mut adoption = adopt(topology, &intents(topology), found).unwrap();
    if all {
        // As if everything had been adopted: decisions may come from anywhere.
        adoption.decisions.adopted =
            found.linear.iter().map(|(guid, table)| (*guid, std::sync::Arc::new(table.clone()))).collect();
    }
    let plan = compile(topology, &intents(topology), &adoption.decisions).unwrap();
    let walker = Walker::new(topology, &plan);
    walker.assert_deadlock_free();
    walker.assert_reachable();
    assert_eq!(again(topology, &plan), plan);
}

fn small_tree() -> Topology {
    FatTree { radix: 4, ..FatTree::new(FatTreeSize::Pods(4)) }.generate().unwrap()
}

fn small_random() -> Topology {
    RandomFabric { radix: 8, hosts_per_switch: 1, ..RandomFabric::new(12, 4, 3) }.generate().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn trees_with_random_adopted_tables_are_routed(found in any_tables(&small_tree()), all in any::<bool>()) {
        assert_any_found_does(&small_tree(), &found, all);
    }

    #[test]
    fn fabrics_with_random_adopted_tables_are_routed(found in any_tables(&small_random()), all in any::<bool>()) {
        assert_any_found_does(&small_random(), &found, all);
    }
}
