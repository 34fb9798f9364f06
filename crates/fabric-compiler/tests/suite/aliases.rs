//! Alias GUIDs in plans.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabric_compiler::{CompileError, Planner, compile, recompile};
use fabric_model::generate::FatTree;
use fabric_model::intent::{Alias, AliasTable};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use ib_wire::{Guid, PartitionNumber};

use crate::world::intents;

fn tree() -> Topology {
    FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap()
}

fn ports(plan: &FabricPlan) -> Vec<Guid> {
    plan.adapter_ports().map(|port| port.guid).collect()
}

fn table(entries: &[(u8, u64)]) -> AliasTable {
    let partitions = BTreeSet::from([PartitionNumber::DEFAULT]);
    let alias = |guid: u64| Alias { guid: Guid::from_wire(guid).unwrap(), partitions: partitions.clone() };
    entries.iter().map(|(index, guid)| (*index, alias(*guid))).collect()
}

#[test]
fn ports_have_the_aliases_of_the_intents() {
    let topology = tree();
    let mut wanted = intents(&topology);
    let plain = compile(&topology, &wanted, &Decisions::default()).unwrap();
    let hosts = ports(&plain);
    assert!(plain.adapter_ports().all(|port| port.aliases.is_empty()));
    let absent = Guid::from_wire(0xabc).unwrap();
    wanted.aliases = [(hosts[1], table(&[(1, 0xa1), (9, 0xa9)])), (absent, table(&[(1, 0xb1)]))].into();
    let plan = compile(&topology, &wanted, &Decisions::default()).unwrap();
    assert_eq!(*plan.adapter_port(hosts[1]).unwrap().aliases, wanted.aliases[&hosts[1]]);
    assert_eq!(plan.adapter_ports().filter(|port| !port.aliases.is_empty()).count(), 1);
    // Plans from another plan, and step by step, are the same; so is one that was stored.
    assert_eq!(recompile(&topology, &wanted, &plain).unwrap(), plan);
    let mut planner =
        Planner::new(Arc::new(topology.clone()), intents(&topology), &Decisions::default()).unwrap();
    assert_eq!(**planner.change(&wanted).unwrap(), plan);
    assert_eq!(serde_json::from_str::<FabricPlan>(&serde_json::to_string(&plan).unwrap()).unwrap(), plan);
    wanted.aliases.insert(hosts[2], table(&[(1, 0xa2)]));
    wanted.aliases.remove(&hosts[1]);
    let moved = compile(&topology, &wanted, &Decisions::default()).unwrap();
    assert_eq!(**planner.change(&wanted).unwrap(), moved);
    assert_eq!(recompile(&topology, &wanted, &plan).unwrap(), moved);
}

#[test]
fn shared_and_misplaced_aliases_are_rejected() {
    let topology = tree();
    let plain = compile(&topology, &intents(&topology), &Decisions::default()).unwrap();
    let hosts = ports(&plain);
    let switch = plain.switches().next().unwrap().port_guid;
    let shared = |error: Option<CompileError>| matches!(error, Some(CompileError::AliasShared { .. }));
    let error = |aliases: Vec<(Guid, AliasTable)>| {
        let wanted = Intents { aliases: aliases.into_iter().collect(), ..intents(&topology) };
        let error = compile(&topology, &wanted, &Decisions::default()).err();
        let mut planner =
            Planner::new(Arc::new(topology.clone()), intents(&topology), &Decisions::default()).unwrap();
        assert_eq!(planner.change(&wanted).err(), error);
        assert_eq!(**planner.plan(), plain, "nothing has changed");
        error
    };
    assert!(shared(error(vec![(hosts[1], table(&[(1, 7)])), (hosts[2], table(&[(1, 7)]))])));
    assert!(shared(error(vec![(hosts[1], table(&[(1, 7), (2, 7)]))])));
    assert!(shared(error(vec![(hosts[1], table(&[(1, hosts[2].to_wire())]))])));
    assert!(shared(error(vec![(hosts[1], table(&[(1, switch.to_wire())]))])));
    let misplaced = error(vec![(hosts[1], table(&[(0, 7)]))]);
    assert_eq!(misplaced, Some(CompileError::AliasAtIndexZero { port: hosts[1] }));
}
