//! Ports that are handed over to tenants on a fabric that a site goes on using.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabric_compiler::{CompileError, Planner, compile, partitions_conf, recompile};
use fabric_model::generate::FatTree;
use fabric_model::intent::{Ipoib, Member, MemberSelector, PartitionIntent, PkeyPlacement, Role};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use fabric_verifier::verify;
use ib_wire::{Guid, PartitionNumber, Pkey};
use proptest::prelude::*;

use crate::world::intents;

/// The number that the management partition gets on a fabric where it is free.
const MANAGEMENT: u16 = 0x7ffe;

fn tree() -> Topology {
    FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap()
}

fn hosts(topology: &Topology) -> Vec<Guid> {
    topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect()
}

fn number(raw: u16) -> PartitionNumber {
    PartitionNumber::from_wire(raw).unwrap()
}

/// The P_Key table of a host, 0 where empty.
fn table(plan: &FabricPlan, guid: Guid) -> Vec<u16> {
    let entries = plan.adapter_port(guid).unwrap().pkeys.entries();
    entries.iter().map(|key| key.map_or(0, Pkey::to_wire)).collect()
}

/// Adds a cluster with a partition of its own.
fn add_cluster(intents: &mut Intents, raw: u16, ports: &[Guid]) {
    let member = |guid: &Guid| Member {
        selector: MemberSelector::Port(*guid),
        role: Role::Full,
        placement: PkeyPlacement::FirstIfAlone,
    };
    intents.partitions.push(PartitionIntent {
        name: format!("cluster-{raw}"),
        number: Some(number(raw)),
        members: ports.iter().map(member).collect(),
        ipoib: Some(Ipoib::default()),
    });
    intents.owners.insert(number(raw), [(format!("cluster-{raw}"), ports[0])].into());
}

/// Hosts 8 to 15 are handed over; hosts 8 and 9 are a cluster.
fn site(topology: &Topology, conf: &str) -> Intents {
    let hosts = hosts(topology);
    let mut intents = intents(topology);
    intents.partitions = partitions_conf::parse(conf).unwrap();
    intents.handed_over = hosts[8..].iter().copied().collect();
    add_cluster(&mut intents, 0x101, &hosts[8..10]);
    intents
}

fn planned(topology: &Topology, intents: &Intents) -> FabricPlan {
    let plan = compile(topology, intents, &Decisions::default()).unwrap();
    assert_eq!(verify(topology, intents, &plan), []);
    plan
}

const OPEN: &str = "Default=0x7fff, ipoib : ALL=full;";

#[test]
fn handed_over_ports_leave_an_open_default_partition() {
    let tree = tree();
    let hosts = hosts(&tree);
    let plan = planned(&tree, &site(&tree, OPEN));
    assert_eq!(table(&plan, hosts[1]), [0xffff], "a port of the site");
    assert_eq!(table(&plan, hosts[12]), [MANAGEMENT], "a port of no cluster");
    assert_eq!(table(&plan, hosts[8]), [0x8101, MANAGEMENT], "the cluster's key is at index 0");
    assert_eq!(table(&plan, hosts[0]), [0xffff, 0x8101, 0x8000 | MANAGEMENT], "the manager");
}

#[test]
fn handed_over_ports_stay_in_a_closed_default_partition() {
    let tree = tree();
    let hosts = hosts(&tree);
    for conf in ["storage=0x20 : ALL=full;", "Default=0x7fff, ipoib : ALL=limited, SELF=full;"] {
        let plan = planned(&tree, &site(&tree, conf));
        assert_eq!(table(&plan, hosts[12]), [0x7fff]);
        assert_eq!(plan.decisions().management_partition, None);
        assert_eq!(plan.partition(number(0x101)).unwrap().members.len(), 2, "the manager is no member");
    }
}

#[test]
fn handed_over_ports_change_nothing_without_site_partitions() {
    let tree = tree();
    let mut intents = site(&tree, "");
    let plan = planned(&tree, &intents);
    intents.handed_over.clear();
    assert_eq!(planned(&tree, &intents), plan);
}

#[test]
fn selectors_of_many_ports_skip_handed_over_ones() {
    let tree = tree();
    let hosts = hosts(&tree);
    let plan = planned(&tree, &site(&tree, "a=0x20 : ALL=full; b=0x21 : ALL_CAS=limited;"));
    assert_eq!(table(&plan, hosts[8]), [0x8101, 0x7fff]);
    assert_eq!(table(&plan, hosts[1]), [0x7fff, 0x21, 0x8020], "a control");
}

#[test]
fn a_handed_over_port_may_be_a_limited_member_of_storage() {
    let tree = tree();
    let hosts = hosts(&tree);
    let conf = format!("{OPEN} storage=0x20 : {}=full, {}=limited;", hosts[1], hosts[8]);
    let plan = planned(&tree, &site(&tree, &conf));
    assert!(table(&plan, hosts[8]).contains(&0x20));
}

#[test]
fn a_handed_over_port_is_no_full_member_of_a_site_partition() {
    let tree = tree();
    let port = hosts(&tree)[8];
    for role in ["full", "both"] {
        let intents = site(&tree, &format!("storage=0x20 : {port}={role};"));
        let refused = compile(&tree, &intents, &Decisions::default());
        assert_eq!(refused, Err(CompileError::HandedOverFull { port, partition: "storage".to_owned() }));
    }
}

#[test]
fn the_default_partition_names_no_handed_over_port() {
    let tree = tree();
    let port = hosts(&tree)[8];
    let intents = site(&tree, &format!("Default=0x7fff : {port}=limited;"));
    let refused = compile(&tree, &intents, &Decisions::default());
    assert_eq!(refused, Err(CompileError::HandedOverInDefault { port }));
}

#[test]
fn a_partition_of_a_tenant_takes_no_port_of_the_site() {
    let tree = tree();
    let port = hosts(&tree)[1];
    for (member, named) in [(format!("{port}=limited"), Some(port)), ("ALL=limited".to_owned(), None)] {
        let intents = site(&tree, &format!("a=0x20 : SELF=full; b=0x101 : {member};"));
        let refused = compile(&tree, &intents, &Decisions::default());
        assert_eq!(refused, Err(CompileError::OwnedPartitionOpen { partition: "b".to_owned(), port: named }));
    }
}

#[test]
fn the_managers_port_is_not_handed_over_beside_a_site() {
    let tree = tree();
    let mut intents = site(&tree, OPEN);
    let port = intents.manager;
    intents.handed_over.insert(port);
    let refused = compile(&tree, &intents, &Decisions::default());
    assert_eq!(refused, Err(CompileError::ManagerHandedOver { port }));
    intents.partitions.remove(0);
    planned(&tree, &intents);
}

#[test]
fn the_manager_is_not_in_the_groups_of_clusters() {
    let tree = tree();
    let hosts = hosts(&tree);
    let plan = planned(&tree, &site(&tree, OPEN));
    let group = |raw: u16| plan.groups().find(|group| group.partition == number(raw)).unwrap();
    assert_eq!(group(0x101).members, hosts[8..10]);
    assert_eq!(
        group(0x7fff).members,
        hosts[..8],
        "a control: the manager is in the group of the default partition"
    );
}

#[test]
fn the_management_partition_keeps_its_number() {
    let tree = tree();
    let mut intents = site(&tree, &format!("{OPEN} a=0x7ffe : SELF=full;"));
    let plan = planned(&tree, &intents);
    assert_eq!(plan.decisions().management_partition, Some(number(0x7ffd)), "another partition has 0x7ffe");
    intents.partitions.remove(1);
    let later = recompile(&tree, &intents, &plan).unwrap();
    assert_eq!(later.decisions().management_partition, Some(number(0x7ffd)));
    intents.partitions.push(PartitionIntent {
        name: "late".to_owned(),
        number: Some(number(0x7ffd)),
        members: Vec::new(),
        ipoib: None,
    });
    let taken = CompileError::ManagementNumberTaken { partition: number(0x7ffd), name: "late".to_owned() };
    assert_eq!(recompile(&tree, &intents, &later), Err(taken));
}

#[test]
fn the_managers_table_limits_the_number_of_clusters() {
    let tree = tree();
    let hosts = hosts(&tree);
    let mut intents = site(&tree, OPEN);
    for raw in 0x200..0x200 + 61 {
        add_cluster(&mut intents, raw, &[hosts[8 + usize::from(raw) % 8]]);
    }
    planned(&tree, &intents);
    add_cluster(&mut intents, 0x300, &hosts[10..11]);
    match compile(&tree, &intents, &Decisions::default()) {
        Err(CompileError::ManagerKeysFull { needed: 65, capacity: 64, .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// A state of a site: which ports are handed over, what the site has, and the clusters by number.
#[derive(Clone, Debug)]
struct Step {
    handed_over: BTreeSet<usize>,
    conf: usize,
    clusters: Vec<(u16, BTreeSet<usize>)>,
}

const CONFS: [&str; 4] =
    ["", "s=0x20 : ALL=full;", OPEN, "Default=0x7fff : ALL_CAS=full; s=0x20 : ALL=limited, SELF=full;"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ports = || prop::collection::btree_set(1usize..16, 1..6);
    let clusters = prop::collection::btree_map(0x101u16..0x106, ports(), 0..4);
    let step = (prop::collection::btree_set(1usize..16, 0..16), 0..CONFS.len(), clusters).prop_map(
        |(mut handed_over, conf, clusters)| {
            handed_over.extend(clusters.values().flatten());
            Step { handed_over, conf, clusters: clusters.into_iter().collect() }
        },
    );
    prop::collection::vec(step, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_hand_overs_gives_sound_and_equal_plans(steps in steps()) {
        let tree = Arc::new(tree());
        let hosts = hosts(&tree);
        let guids = |places: &BTreeSet<usize>| places.iter().map(|place| hosts[*place]).collect::<Vec<Guid>>();
        let mut planner: Option<Planner> = None;
        for step in steps {
            let mut intents = intents(&tree);
            intents.partitions = partitions_conf::parse(CONFS[step.conf]).unwrap();
            intents.handed_over = guids(&step.handed_over).into_iter().collect();
            for (raw, places) in &step.clusters {
                add_cluster(&mut intents, *raw, &guids(places));
            }
            let planner = match &mut planner {
                None => planner.insert(Planner::new(Arc::clone(&tree), intents.clone(), &Decisions::default()).unwrap()),
                Some(planner) => {
                    let before = Arc::clone(planner.plan());
                    let after = Arc::clone(planner.change(&intents).unwrap());
                    prop_assert_eq!(&*after, &recompile(&tree, &intents, &before).unwrap());
                    planner
                }
            };
            prop_assert_eq!(planner.intents(), &intents);
            prop_assert_eq!(verify(&tree, &intents, planner.plan()), []);
            for port in &intents.handed_over {
                prop_assert!(!table(planner.plan(), *port).is_empty(), "a port without a key cannot ask");
            }
        }
    }
}
