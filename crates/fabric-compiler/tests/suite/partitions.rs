//! P_Key tables: keys, indices and enforcement.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_compiler::{CompileError, Planner, compile, partitions_conf, recompile};
use fabric_model::generate::FatTree;
use fabric_model::intent::{
    Member, MemberSelector, PartitionIntent, PkeyPlacement, PortCapability, PortName, Role, SwitchCapability,
};
use fabric_model::plan::{Enforcement, PlanFinding};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use ib_wire::{DataLanes, Guid, Membership, Mtu, PartitionNumber, Pkey, PortNum};
use proptest::prelude::*;

use crate::world::intents;

const LIMITED: u16 = 0x7fff;
const FULL: u16 = 0xffff;

fn tree() -> Topology {
    FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap()
}

fn hosts(topology: &Topology) -> Vec<Guid> {
    topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect()
}

fn number(raw: u16) -> PartitionNumber {
    PartitionNumber::from_wire(raw).unwrap()
}

fn with_conf(topology: &Topology, conf: &str) -> Intents {
    Intents { partitions: partitions_conf::parse(conf).unwrap(), ..intents(topology) }
}

fn planned(topology: &Topology, conf: &str) -> FabricPlan {
    compile(topology, &with_conf(topology, conf), &Decisions::default()).unwrap()
}

/// The P_Key table of a host, 0 where empty.
fn table(plan: &FabricPlan, guid: Guid) -> Vec<u16> {
    let entries = plan.adapter_port(guid).unwrap().pkeys.entries();
    entries.iter().map(|key| key.map_or(0, Pkey::to_wire)).collect()
}

/// A partition of some hosts.
fn partition(raw: u16, members: &[Guid]) -> PartitionIntent {
    let member = |guid: &Guid| Member {
        selector: MemberSelector::Port(*guid),
        role: Role::Full,
        placement: PkeyPlacement::Anywhere,
    };
    PartitionIntent {
        name: format!("p{raw}"),
        number: Some(number(raw)),
        members: members.iter().map(member).collect(),
        ipoib: None,
    }
}

#[test]
fn the_default_partition_has_one_full_member() {
    let tree = tree();
    let plan = planned(&tree, "");
    let hosts = hosts(&tree);
    assert_eq!(table(&plan, hosts[0]), [FULL]);
    assert!(hosts[1..].iter().all(|host| table(&plan, *host) == [LIMITED]));
    let default = plan.partition(PartitionNumber::DEFAULT).unwrap();
    assert_eq!((default.members.len(), default.members[&hosts[0]]), (16 + 6, Role::Full));
    for switch in plan.switches() {
        assert_eq!(switch.pkeys.keys().map(Pkey::to_wire).collect::<Vec<_>>(), [LIMITED]);
    }
}

#[test]
fn a_partitions_file_may_add_full_members_to_default() {
    let tree = tree();
    let plan = planned(&tree, "Default=0x7fff : ALL=full, ALL_SWITCHES=limited;");
    assert!(hosts(&tree).into_iter().all(|host| table(&plan, host) == [FULL]));
    assert!(plan.switches().all(|switch| switch.pkeys.keys().all(|key| key.to_wire() == LIMITED)));
}

#[test]
fn switch_ports_enforce_the_table_of_the_adapter_behind_them() {
    let tree = tree();
    let hosts = hosts(&tree);
    let plan = planned(&tree, &format!("blue=0x101 : {}=full, {};", hosts[1], hosts[2]));
    assert_eq!(table(&plan, hosts[1]), [LIMITED, 0x8101]);
    assert_eq!(table(&plan, hosts[2]), [LIMITED, 0x0101]);
    let mut enforcing = 0;
    for (switch, port) in
        plan.switches().flat_map(|switch| switch.ports.iter().map(move |port| (switch, port)))
    {
        let adapter = plan.adapter_ports().find(|adapter| adapter.name == port.peer);
        match (&port.enforcement, adapter) {
            (Enforcement::Both(table), Some(adapter)) => {
                assert_eq!(*table, adapter.pkeys);
                assert_eq!(adapter.peer, PortName { node: switch.guid, port: port.number });
                enforcing += 1;
            }
            (Enforcement::Off, None) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(enforcing, 16);
}

#[test]
fn index_zero_holds_the_default_partition_unless_claimed() {
    let tree = tree();
    let [a, b] = hosts(&tree)[1..3] else { panic!() };
    let conf = format!("one=1 : {a}=both;\ntwo=2, indx0 : {b}=both;\n");
    let plan = planned(&tree, &conf);
    assert_eq!(table(&plan, a), [LIMITED, 0x0001, 0x8001]);
    assert_eq!(table(&plan, b), [0x8002, 0x0002, LIMITED]);
    assert_eq!(plan.findings(), []);

    let contested = planned(&tree, &format!("{conf} three=3, indx0 : {b}=full;"));
    assert_eq!(table(&contested, b)[0], 0x8002, "the first claim");
    let finding = PlanFinding::IndexZeroContested { port: b, given: number(2), refused: number(3) };
    assert_eq!(contested.findings(), [finding]);
}

#[test]
fn a_key_that_changes_membership_keeps_its_index() {
    let tree = tree();
    let host = hosts(&tree)[5];
    let conf = |role: &str| format!("a=1 : {host}=full; b=2 : {host}={role}; c=3 : {host}=full;");
    let plan = planned(&tree, &conf("full"));
    let index_of = |plan: &FabricPlan, raw| table(plan, host).iter().position(|key| *key == raw);
    let after = compile(&tree, &with_conf(&tree, &conf("limited")), plan.decisions()).unwrap();
    assert_eq!(index_of(&after, 0x0002), index_of(&plan, 0x8002));
    assert_eq!(index_of(&after, 0x8003), index_of(&plan, 0x8003));
}

#[test]
fn a_full_pkey_table_is_named_with_the_entries_needed() {
    let tree = tree();
    let host = hosts(&tree)[3];
    let mut intents = intents(&tree);
    intents.partitions = (1..64).map(|raw| partition(raw, &[host])).collect();
    compile(&tree, &intents, &Decisions::default()).expect("63 and the default partition fit");

    intents.partitions.push(partition(64, &[host]));
    let plan = |intents: &Intents| compile(&tree, intents, &Decisions::default());
    let end = tree.by_port_guid(host).unwrap();
    let port = PortName { node: tree[end.node].guid, port: end.port };
    assert_eq!(plan(&intents), Err(CompileError::PkeyTableFull { port, needed: 65, capacity: 64 }));

    let large = PortCapability { pkeys: 128, ..PortCapability::default() };
    intents.capabilities.ports.insert(port, large);
    let peer = tree.peer(end).unwrap();
    let port = PortName { node: tree[peer.node].guid, port: peer.port };
    let refused = plan(&intents);
    assert_eq!(
        refused,
        Err(CompileError::PkeyTableFull { port, needed: 65, capacity: 64 }),
        "the switch port"
    );

    intents.capabilities.default_switch.enforced_pkeys = 65;
    assert_eq!(plan(&intents).unwrap().adapter_port(host).unwrap().pkeys.entries().len(), 65);
}

#[test]
fn a_switch_port_zero_holds_few_keys() {
    let tree = tree();
    let conf: String = (1..=8).map(|raw| format!("p{raw}={raw} : ALL_SWITCHES=full;\n")).collect();
    let refused = compile(&tree, &with_conf(&tree, &conf), &Decisions::default());
    let port = PortName { node: tree.switches().next().unwrap().1.guid, port: PortNum::MANAGEMENT };
    assert_eq!(refused, Err(CompileError::PkeyTableFull { port, needed: 9, capacity: 8 }));
}

#[test]
fn assigned_partition_numbers_are_kept() {
    let tree = tree();
    let numbers =
        |plan: &FabricPlan| plan.partitions().map(|p| (p.name.clone(), p.number)).collect::<BTreeMap<_, _>>();
    let first = planned(&tree, "red : ALL=full; one=1 : ALL; green : ALL=full; Default : ALL;");
    let before = numbers(&first);
    assert_eq!((before["red"], before["green"], before["Default"]), (number(2), number(3), number(0x7fff)));
    let conf = "violet : ALL; green : ALL=full; green : SELF; two=4 : ALL;";
    let after = compile(&tree, &with_conf(&tree, conf), first.decisions()).unwrap();
    let after = numbers(&after);
    assert_eq!((after["green"], after["violet"], after["two"]), (number(3), number(1), number(4)));
    assert_eq!(after.len(), 4, "rules of one name are one partition");
}

#[test]
fn a_partition_in_use_keeps_its_number() {
    let tree = tree();
    let mut intents = intents(&tree);
    let named = |name: &str| PartitionIntent { name: name.to_owned(), number: None, ..partition(1, &[]) };
    let mut decisions = Decisions::default();
    // Names in use sort last; one of them has the number that is reserved for a removed name.
    for raw in 1..=5000 {
        decisions.partitions.insert(format!("gone-{raw:05}"), number(raw));
    }
    decisions.partitions.insert("in-use".to_owned(), number(6000));
    decisions.partitions.insert("in-use-too".to_owned(), number(17));
    intents.partitions = vec![named("in-use"), named("in-use-too"), named("new")];
    let plan = compile(&tree, &intents, &decisions).unwrap();
    let kept = &plan.decisions().partitions;
    assert_eq!(kept.get("in-use"), Some(&number(6000)));
    assert_eq!(kept.get("in-use-too"), Some(&number(17)), "it takes precedence over a reservation");
    let resting = kept.keys().filter(|name| name.starts_with("gone")).count();
    assert_eq!(resting, 4095, "one of the 4096 reservations had a number that is in use");
    assert_eq!(kept.get("new"), Some(&number(4097)), "the first unused number");
    assert_eq!(compile(&tree, &intents, plan.decisions()).unwrap().decisions(), plan.decisions());
}

#[test]
fn links_use_what_both_ends_support() {
    let tree = tree();
    let host = hosts(&tree)[2];
    let end = tree.by_port_guid(host).unwrap();
    let mut intents = intents(&tree);
    intents.capabilities.default_port =
        PortCapability { pkeys: 64, mtu: Mtu::B4096, lanes: DataLanes::Fifteen, ..PortCapability::default() };
    let name = PortName { node: tree[end.node].guid, port: end.port };
    let small =
        PortCapability { pkeys: 64, mtu: Mtu::B1024, lanes: DataLanes::Four, ..PortCapability::default() };
    intents.capabilities.ports.insert(name, small);
    let plan = compile(&tree, &intents, &Decisions::default()).unwrap();
    let adapter = plan.adapter_port(host).unwrap();
    let port = plan.switch(adapter.peer.node).unwrap().port(adapter.peer.port).unwrap();
    assert_eq!((adapter.mtu, adapter.lanes), (Mtu::B1024, DataLanes::Four));
    assert_eq!((port.mtu, port.lanes), (Mtu::B1024, DataLanes::Four));
    let others = plan.adapter_ports().filter(|other| other.guid != host);
    assert!(others.into_iter().all(|other| (other.mtu, other.lanes) == (Mtu::B4096, DataLanes::Fifteen)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_held_key_keeps_its_index(
        steps in prop::collection::vec(prop::collection::btree_set(1u16..40, 0..30), 1..8),
    ) {
        let tree = tree();
        let host = hosts(&tree)[4];
        let mut intents = intents(&tree);
        let mut decisions = Decisions::default();
        let mut indices: BTreeMap<Pkey, usize> = BTreeMap::new();
        for wanted in steps {
            intents.partitions = wanted.iter().map(|raw| partition(*raw, &[host])).collect();
            let plan = compile(&tree, &intents, &decisions).unwrap();
            let table = &plan.adapter_port(host).unwrap().pkeys;
            prop_assert_eq!(table.entries()[0], Some(PartitionNumber::DEFAULT.key(Membership::Limited)));
            let now: BTreeMap<Pkey, usize> =
                table.entries().iter().enumerate().filter_map(|(index, key)| Some(((*key)?, index))).collect();
            prop_assert_eq!(now.len(), wanted.len() + 1);
            for (key, index) in &now {
                prop_assert_eq!(indices.get(key).unwrap_or(index), index);
            }
            indices = now;
            decisions = plan.decisions().clone();
        }
    }
}

#[test]
fn a_partition_number_with_two_owners_is_rejected() {
    let topology = Arc::new(tree());
    let guids = hosts(&topology);
    let mut intents = intents(&topology);
    intents.partitions = vec![partition(0x101, &guids[1..3]), partition(0x102, &guids[3..5])];
    let owner = |name: &str, port: Guid| [(name.to_owned(), port)].into();
    intents.owners =
        [(number(0x101), owner("blue", guids[1])), (number(0x102), owner("red", guids[3]))].into();
    let mut planner = Planner::new(Arc::clone(&topology), intents.clone(), &Decisions::default()).unwrap();
    let before = Arc::clone(planner.plan());

    let mut merged = intents.clone();
    merged.partitions[1].number = Some(number(0x101));
    merged.owners =
        [(number(0x101), [("blue".to_owned(), guids[1]), ("red".to_owned(), guids[3])].into())].into();
    let shared = CompileError::NumberShared {
        partition: number(0x101),
        first: "blue".to_owned(),
        second: "red".to_owned(),
    };
    assert_eq!(planner.change(&merged).unwrap_err(), shared);
    assert!(Arc::ptr_eq(planner.plan(), &before), "everything stays as it was");
    assert_eq!(compile(&topology, &merged, &Decisions::default()).unwrap_err(), shared);
    assert_eq!(recompile(&topology, &merged, &before).unwrap_err(), shared);
    // Intents without an owner that have the same number are merged.
    merged.owners.clear();
    planner.change(&merged).unwrap();
}

/// One weak switch makes its own hosts unusable, not the fabric.
#[test]
fn hosts_at_a_switch_that_cannot_enforce_stay_closed() {
    let tree = tree();
    let hosts = hosts(&tree);
    let leaf = |host: Guid| tree[tree.peer(tree.by_port_guid(host).unwrap()).unwrap().node].guid;
    let weak = leaf(hosts[15]);
    assert_ne!(weak, leaf(hosts[0]), "the manager is elsewhere");
    let behind: Vec<Guid> = hosts.iter().copied().filter(|host| leaf(*host) == weak).collect();
    let mut intents = with_conf(&tree, "blue=1 : ALL_CAS=full;");
    let capability = intents.capabilities.switch(weak);
    intents.capabilities.switches.insert(weak, SwitchCapability { enforced_pkeys: 0, ..capability });

    let plan = compile(&tree, &intents, &Decisions::default()).unwrap();
    assert_eq!(plan.adapter_ports().count(), 16 - behind.len());
    assert!(behind.iter().all(|host| plan.adapter_port(*host).is_none()));
    let switch = plan.switch(weak).unwrap();
    assert!(
        switch.ports.iter().all(|port| port.enforcement == Enforcement::Off),
        "only links to switches are left"
    );
    let [PlanFinding::Unenforced { ports, witness }] = plan.findings() else {
        panic!("{:?}", plan.findings())
    };
    assert_eq!(*ports, behind.len());
    assert!(behind.iter().any(|host| tree[tree.by_port_guid(*host).unwrap().node].guid == witness.node));
    assert_eq!(fabric_verifier::verify(&tree, &intents, &plan), []);

    // The control: with entries for one key its hosts are in the fabric, though hardly of use to tenants.
    intents.capabilities.switches.insert(weak, SwitchCapability { enforced_pkeys: 2, ..capability });
    let plan = compile(&tree, &intents, &Decisions::default()).unwrap();
    assert_eq!((plan.adapter_ports().count(), plan.findings().len()), (16, 0));
    // A plan that has them nevertheless is rejected.
    intents.capabilities.switches.insert(weak, SwitchCapability { enforced_pkeys: 0, ..capability });
    assert!(!fabric_verifier::verify(&tree, &intents, &plan).is_empty());
}
