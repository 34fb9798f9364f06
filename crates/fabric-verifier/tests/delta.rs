//! What is found in a plan does not depend on which plan was read before.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::sync::Arc;

use fabric_compiler::recompile;
use fabric_model::intent::{KeyPlace, Member, PartitionIntent, Role, Who};
use fabric_model::{FabricPlan, Intents, Topology};
use fabric_verifier::{Finding, Verified, verify};
use ib_wire::PartitionNumber;
use rand_pcg::Pcg64Mcg;
use world::mutant::mutant;
use world::{below, dice, fabric, planned, shared, wishes};

/// Fabrics, each with its own seed, and changes one after the other on each.
const FABRICS: u64 = 100;
const CHANGES: usize = 110;

/// Another plan or other wishes: one more wrong entry, other partitions, everyone in one, or all as it was at first.
fn changed(
    dice: &mut Pcg64Mcg,
    topology: &Topology,
    intents: &mut Intents,
    first: &(Intents, FabricPlan),
    plan: &FabricPlan,
) -> FabricPlan {
    match below(dice, 24) {
        0..4 => {
            intents.clone_from(&first.0);
            first.1.clone()
        }
        4 => {
            intents.partitions = wishes(dice, topology).partitions;
            recompile(topology, intents, &first.1).unwrap()
        }
        5 | 6 => {
            let number = PartitionNumber::from_wire(0x7000);
            let everyone = Member { who: Who::All, role: Role::Full, place: KeyPlace::Anywhere };
            let name = "everyone".to_owned();
            intents.partitions.push(PartitionIntent { name, number, members: vec![everyone], ipoib: None });
            plan.clone()
        }
        7 => shared(dice, topology, &first.1),
        _ => mutant(dice, plan).map_or_else(|| plan.clone(), |(plan, _)| plan),
    }
}

#[test]
fn a_delta_finds_exactly_what_a_whole_reading_finds() {
    let (mut changes, mut with_findings) = (0, 0);
    for seed in 0..FABRICS {
        let mut dice = dice(seed);
        let topology = fabric(&mut dice);
        let mut intents = wishes(&mut dice, &topology);
        let first = planned(&topology, &intents);
        let mut verified = Verified::of(&topology, &intents, Arc::new(first.clone()));
        assert_eq!(found(&verified), verify(&topology, &intents, &first));
        let first = (intents.clone(), first);
        for step in 0..CHANGES {
            let plan = changed(&mut dice, &topology, &mut intents, &first, verified.plan());
            let whole = verify(&topology, &intents, &plan);
            verified = verified.delta(&topology, &intents, Arc::new(plan));
            assert_eq!(found(&verified), whole, "seed {seed}, change {step}");
            changes += 1;
            with_findings += usize::from(!whole.is_empty());
        }
    }
    println!("{changes} changes, {with_findings} with findings");
    assert!(changes >= 10_000 && with_findings >= 5_000 && with_findings < changes);
}

fn found(verified: &Verified) -> Vec<Finding> {
    verified.findings().cloned().collect()
}
