//! Alias GUIDs: what differs from the intents, and addresses that two ports have.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabric_compiler::compile;
use fabric_model::generate::FatTree;
use fabric_model::intent::{Alias, AliasTable};
use fabric_model::{Decisions, FabricPlan, Intents};
use fabric_verifier::{Finding, Verified, verify};
use ib_wire::{Guid, PartitionNumber};

use crate::world::hosts;

fn alias(guid: u64) -> Alias {
    let partitions = BTreeSet::from([PartitionNumber::DEFAULT]);
    Alias { guid: Guid::from_wire(guid).unwrap(), partitions }
}

/// The plan with other aliases of some ports.
fn with_aliases(plan: &FabricPlan, changed: &[(Guid, AliasTable)]) -> FabricPlan {
    let mut draft = plan.draft();
    for (port, aliases) in changed {
        draft.adapter_port(*port).unwrap().aliases = Arc::new(aliases.clone());
    }
    draft.finish()
}

#[test]
fn every_wrong_alias_is_a_finding() {
    let tree = Arc::new(FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap());
    let ports = hosts(&tree);
    let mut intents = Intents::new(ports[0]);
    intents.aliases.insert(ports[1], [(1, alias(0xa1)), (9, alias(0xa9))].into());
    let plan = compile(&tree, &intents, &Decisions::default()).unwrap();
    let verified = Verified::of(&tree, &intents, Arc::new(plan.clone()));
    assert_eq!(verify(&tree, &intents, &plan), []);
    let differs = |index| vec![Finding::AliasDiffers { port: ports[1], index }];
    let shared = |alias: Guid, first, second| {
        vec![Finding::AliasDiffers { port: second, index: 3 }, Finding::AliasShared { alias, first, second }]
    };
    let mut limited = alias(0xa9);
    limited.partitions.clear();
    let switch = plan.switches().next().unwrap().port_guid;
    let own = |guid: Guid| Alias { guid, ..alias(1) };
    let cases: Vec<(Guid, AliasTable, Vec<Finding>)> = vec![
        (ports[1], [(1, alias(0xa1)), (9, alias(0xa9))].into(), vec![]),
        (ports[1], [(1, alias(0xa1))].into(), differs(9)),
        (ports[1], [(1, alias(0xa2)), (9, alias(0xa9))].into(), differs(1)),
        (ports[1], [(1, alias(0xa1)), (9, limited)].into(), differs(9)),
        (ports[1], [(0, alias(5)), (1, alias(0xa1)), (9, alias(0xa9))].into(), differs(0)),
        (ports[2], [(3, alias(0xa1))].into(), shared(alias(0xa1).guid, ports[1], ports[2])),
        (ports[2], [(3, own(ports[4]))].into(), shared(ports[4], ports[4], ports[2])),
        (ports[2], [(3, own(switch))].into(), shared(switch, switch, ports[2])),
    ];
    for (port, aliases, expected) in cases {
        let mut changed = with_aliases(&plan, &[(port, aliases)]);
        let findings = verify(&tree, &intents, &changed);
        assert_eq!(findings, expected);
        changed = with_aliases(&changed, &[]);
        let delta = verified.delta(&tree, &intents, Arc::new(changed));
        assert_eq!(delta.findings().cloned().collect::<Vec<_>>(), expected);
    }
    // The intents changed, and the plan did not.
    intents.aliases.clear();
    let delta = verified.delta(&tree, &intents, Arc::new(plan.clone()));
    assert_eq!(delta.findings().cloned().collect::<Vec<_>>(), differs(1));
}
