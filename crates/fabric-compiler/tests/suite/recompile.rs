//! Recompiling a plan gives what compiling with its decisions gives.

use std::sync::Arc;

use fabric_compiler::{CompileError, compile, partitions_conf, recompile};
use fabric_model::generate::{FatTree, FatTreeSize, RandomFabric, without_links};
use fabric_model::intent::{Ipoib, Member, MemberSelector, PartitionIntent, PkeyPlacement, Role};
use fabric_model::plan::Enforcement;
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use ib_wire::{Guid, PartitionNumber};
use proptest::prelude::*;

use crate::world::{guid, intents, switch_cables, without_cable};

fn hosts(topology: &Topology) -> Vec<Guid> {
    topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect()
}

fn rule(number: u16, members: &[Guid]) -> String {
    let members: Vec<String> = members.iter().map(Guid::to_string).collect();
    format!("p{number}={number}, ipoib : {};\n", members.join(", "))
}

/// The result of both functions, which must agree.
fn both(topology: &Topology, desired: &Intents, previous: &FabricPlan) -> Result<FabricPlan, CompileError> {
    let compiled = compile(topology, desired, previous.decisions());
    let recompiled = recompile(topology, desired, previous);
    assert!(compiled == recompiled, "recompiled to something else for {desired:?}");
    recompiled
}

#[test]
fn one_more_partition_shares_unchanged_tables() {
    let tree = FatTree::with_hosts(324).generate().unwrap();
    let hosts = hosts(&tree);
    let mut desired = intents(&tree);
    desired.partitions = partitions_conf::parse(&rule(1, &hosts[100..110])).unwrap();
    let before = compile(&tree, &desired, &Decisions::default()).unwrap();
    let members: Vec<Guid> = hosts.iter().step_by(20).copied().take(16).collect();
    desired.partitions.extend(partitions_conf::parse(&rule(2, &members)).unwrap());
    let after = both(&tree, &desired, &before).unwrap();

    for (old, new) in before.switches().zip(after.switches()) {
        assert!(Arc::ptr_eq(&old.linear, &new.linear));
        assert_eq!(Arc::ptr_eq(&old.multicast, &new.multicast), old.multicast == new.multicast);
        for (old, new) in old.ports.iter().zip(new.ports.iter()) {
            let (Enforcement::Both(a), Enforcement::Both(b)) = (&old.enforcement, &new.enforcement) else {
                continue;
            };
            assert_eq!(Arc::ptr_eq(a, b), a == b);
        }
    }
    let moved = before.switches().zip(after.switches()).filter(|(a, b)| a.multicast != b.multicast).count();
    assert!(moved > 0 && moved < 27, "{moved}");
    let touched = before.adapter_ports().zip(after.adapter_ports());
    let touched: Vec<Guid> =
        touched.filter(|(old, new)| !Arc::ptr_eq(&old.pkeys, &new.pkeys)).map(|(old, _)| old.guid).collect();
    assert_eq!(touched, members);
    assert_eq!(after.basis(), before.basis());

    desired.partitions.pop();
    let back = both(&tree, &desired, &after).unwrap();
    assert_eq!(back.switches().next().unwrap().multicast, before.switches().next().unwrap().multicast);
}

#[test]
fn a_plan_for_another_fabric_is_recompiled_in_full() {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap();
    let desired = intents(&tree);
    let plan = compile(&tree, &desired, &Decisions::default()).unwrap();
    let cut = without_cable(&tree, switch_cables(&tree)[3].0);
    let after = both(&cut, &desired, &plan).unwrap();
    assert_ne!(after, plan, "routes avoid the cable");

    let mut small = desired.clone();
    small.capabilities.default_port.mtu = ib_wire::Mtu::B1024;
    assert_ne!(both(&tree, &small, &plan).unwrap(), plan);
    let elsewhere = Intents::new(hosts(&tree)[3]);
    assert_ne!(both(&tree, &elsewhere, &plan).unwrap().manager(), plan.manager());
    assert!(both(&tree, &Intents::new(guid(1)), &plan).is_err());
}

#[test]
fn a_group_that_needs_a_taken_mlid_is_planned_from_scratch() {
    // Groups on separate leaves share one multicast LID; when the first grows, the other has to change its LID.
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap();
    let hosts = hosts(&tree);
    let mut desired = intents(&tree);
    desired.partitions = partitions_conf::parse(&(rule(1, &hosts[..2]) + &rule(2, &hosts[4..6]))).unwrap();
    let before = compile(&tree, &desired, &Decisions::default()).unwrap();
    let lids: Vec<_> = before.groups().map(|group| group.mlid).collect();
    assert_eq!(lids[0], lids[1]);
    desired.partitions = partitions_conf::parse(&(rule(1, &hosts[..6]) + &rule(2, &hosts[4..6]))).unwrap();
    let after = both(&tree, &desired, &before).unwrap();
    let lids: Vec<_> = after.groups().map(|group| group.mlid).collect();
    assert_ne!(lids[0], lids[1]);
}

/// Up to six partitions, some twice, some without a number or members, with small P_Key tables.
fn any_partitions(topology: &Topology) -> impl Strategy<Value = Vec<PartitionIntent>> + use<> {
    let ends: Vec<Guid> =
        topology.nodes().flat_map(|(_, node)| node.ports().map(|(_, port)| port.guid)).collect();
    let port = prop::sample::select(ends).prop_map(MemberSelector::Port);
    let all = prop::sample::select(vec![
        MemberSelector::All,
        MemberSelector::AllAdapters,
        MemberSelector::AllSwitches,
        MemberSelector::Manager,
    ]);
    let who = prop_oneof![12 => port, 1 => all];
    let role = prop::sample::select(vec![Role::Limited, Role::Full, Role::Both]);
    let place = prop_oneof![8 => Just(PkeyPlacement::Anywhere), 1 => Just(PkeyPlacement::First), 2 => Just(PkeyPlacement::FirstIfAlone)];
    let member =
        (who, role, place).prop_map(|(who, role, place)| Member { selector: who, role, placement: place });
    let number = prop::option::weighted(0.8, 1u16..7)
        .prop_map(|raw| raw.map(|raw| PartitionNumber::from_wire(raw).unwrap()));
    let partition = ("[a-d]", number, prop::collection::vec(member, 0..9), any::<bool>()).prop_map(
        |(name, number, members, ip)| PartitionIntent {
            name,
            number,
            members,
            ipoib: ip.then(Ipoib::default),
        },
    );
    prop::collection::vec(partition, 0..7)
}

fn tree() -> Topology {
    FatTree { radix: 4, ..FatTree::new(FatTreeSize::Pods(3)) }.generate().unwrap()
}

fn degraded_tree() -> Topology {
    without_links(FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(3)) }.generate().unwrap(), 9, 4)
        .unwrap()
}

fn random() -> Topology {
    RandomFabric { radix: 8, hosts_per_switch: 1, ..RandomFabric::new(12, 4, 3) }.generate().unwrap()
}

/// Applies intents one after the other; both functions must reject the same ones.
fn assert_agrees(topology: &Topology, steps: Vec<Vec<PartitionIntent>>) {
    let mut desired = intents(topology);
    desired.capabilities.default_switch.own_pkeys = 6;
    desired.capabilities.default_switch.multicast = 4;
    let mut plan = compile(topology, &desired, &Decisions::default()).unwrap();
    for partitions in steps {
        desired.partitions = partitions;
        if let Ok(next) = both(topology, &desired, &plan) {
            plan = next;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn trees_are_recompiled_as_if_compiled(steps in prop::collection::vec(any_partitions(&tree()), 1..6)) {
        assert_agrees(&tree(), steps);
    }

    #[test]
    fn degraded_trees_are_recompiled_as_if_compiled(
        steps in prop::collection::vec(any_partitions(&degraded_tree()), 1..4),
    ) {
        assert_agrees(&degraded_tree(), steps);
    }

    #[test]
    fn random_fabrics_are_recompiled_as_if_compiled(
        steps in prop::collection::vec(any_partitions(&random()), 1..6),
    ) {
        assert_agrees(&random(), steps);
    }
}
