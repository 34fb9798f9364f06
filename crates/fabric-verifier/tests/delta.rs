//! What is found in a plan does not depend on which plan was read before.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::sync::Arc;

use fabric_compiler::recompile;
use fabric_model::{FabricPlan, Intents, Topology};
use fabric_verifier::{Finding, Verified, verify};
use rand_pcg::Pcg64Mcg;
use world::mutant::mutant;
use world::{below, dice, fabric, planned, shared, wishes};

/// Fabrics, each with its own seed, and changes one after the other on each.
const FABRICS: u64 = 100;
const CHANGES: usize = 110;

/// Another plan: with one more wrong entry, with other partitions, or as it was at first.
fn changed(
    dice: &mut Pcg64Mcg,
    topology: &Topology,
    intents: &mut Intents,
    first: &FabricPlan,
    plan: &FabricPlan,
) -> FabricPlan {
    match below(dice, 20) {
        0 => first.clone(),
        1 => {
            let other = wishes(dice, topology);
            intents.partitions = other.partitions;
            recompile(topology, intents, first).unwrap()
        }
        2 => {
            let partition = below(dice, intents.partitions.len().max(1));
            if partition < intents.partitions.len() {
                intents.partitions.remove(partition);
            }
            plan.clone()
        }
        3 => shared(dice, topology, first),
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
