//! One wrong entry in any table is named by a finding, or changes nothing that packets could show.

use std::collections::BTreeMap;

use fabric_model::{Intents, Topology};
use fabric_verifier::verify;
use rand_pcg::Pcg64Mcg;

use crate::world::arbiter::guarantees_hold;
use crate::world::mutant::{mutant, mutant_of_sharing};
use crate::world::walk::Fabric;
use crate::world::{brownfield, dice, fabric, guaranteed, planned, random_intents, shared};

/// Plans, each with its own seed, and wrong entries tried on each.
const PLANS: u64 = 80;
const MUTANTS: usize = 60;

#[test]
fn every_wrong_entry_is_named_or_changes_nothing() {
    check_mutants(0, random_intents);
}

#[test]
fn every_wrong_entry_beside_a_site_is_named_or_changes_nothing() {
    check_mutants(5000, brownfield);
}

fn check_mutants(first_seed: u64, intents: impl Fn(&mut Pcg64Mcg, &Topology) -> Intents) {
    // By kind of entry: how many were named, how many had no effect.
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for seed in first_seed..first_seed + PLANS {
        let mut dice = dice(seed);
        let topology = fabric(&mut dice);
        let intents = intents(&mut dice, &topology);
        let mut plan = planned(&topology, &intents);
        if seed % 2 == 1 {
            plan = shared(&mut dice, &topology, &plan);
        }
        if !verify(&topology, &intents, &plan).is_empty() {
            assert!(!plan.findings().is_empty(), "seed {seed}: the plan says itself what it lacks");
            continue;
        }
        let right = Fabric::new(&topology, &plan);
        let usual = (right.keys(), right.behaviour(&right.keys()));
        for _ in 0..MUTANTS {
            let Some((wrong, entry)) = mutant(&mut dice, &plan) else { continue };
            let findings = verify(&topology, &intents, &wrong);
            let count = counts.entry(entry.kind()).or_default();
            if findings.iter().any(|finding| entry.is_named_by(finding)) {
                count.0 += 1;
                continue;
            }
            let changed = Fabric::new(&topology, &wrong);
            let keys = usual.0.union(&changed.keys()).copied().collect();
            let other = (keys != usual.0).then(|| right.behaviour(&keys));
            assert!(
                other.as_ref().unwrap_or(&usual.1).is_kept_by(&changed.behaviour(&keys)),
                "seed {seed}: {entry:?} changes what packets do, and is not named by {findings:#?}"
            );
            count.1 += 1;
        }
    }
    println!("kind: named, without effect: {counts:?}");
    let total: usize = counts.values().map(|(named, without)| named + without).sum();
    assert!(total >= 2000, "{total} wrong entries: {counts:?}");
    for kind in [
        "linear",
        "multicast",
        "key",
        "enforcement",
        "LID",
        "level",
        "weight",
        "member",
        "group member",
        "cable",
    ] {
        assert!(counts[kind].0 >= 20, "too few of a kind are named: {counts:?}");
    }
}

#[test]
fn every_wrong_entry_is_named_or_keeps_guarantees() {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for seed in 0..PLANS {
        let mut dice = dice(1000 + seed);
        let topology = fabric(&mut dice);
        let (intents, plan) = guaranteed(&mut dice, &topology);
        if intents.clusters.is_empty() || !verify(&topology, &intents, &plan).is_empty() {
            assert!(intents.clusters.is_empty() || !plan.findings().is_empty(), "seed {seed}");
            continue;
        }
        let right = Fabric::new(&topology, &plan);
        assert!(
            guarantees_hold(&topology, &intents, &plan) && right.levels_come_back(&intents),
            "seed {seed}: the control"
        );
        let usual = (right.keys(), right.behaviour(&right.keys()));
        for place in 0..MUTANTS {
            let wrong =
                if place % 4 == 0 { mutant(&mut dice, &plan) } else { mutant_of_sharing(&mut dice, &plan) };
            let Some((wrong, entry)) = wrong else { continue };
            let findings = verify(&topology, &intents, &wrong);
            let count = counts.entry(entry.kind()).or_default();
            let changed = Fabric::new(&topology, &wrong);
            // The rule compares all pairs only where something is found.
            assert!(!findings.is_empty() || changed.levels_come_back(&intents), "seed {seed}: {entry:?}");
            if findings.iter().any(|finding| entry.is_named_by(finding)) {
                count.0 += 1;
                continue;
            }
            let keys = usual.0.union(&changed.keys()).copied().collect();
            let other = (keys != usual.0).then(|| right.behaviour(&keys));
            assert!(
                other.as_ref().unwrap_or(&usual.1).is_kept_by(&changed.behaviour(&keys))
                    && guarantees_hold(&topology, &intents, &wrong),
                "seed {seed}: {entry:?} changes what packets do, and is not named by {findings:#?}"
            );
            count.1 += 1;
        }
    }
    println!("kind: named, without effect: {counts:?}");
    let total: usize = counts.values().map(|(named, without)| named + without).sum();
    assert!(total >= 2000, "{total} wrong entries: {counts:?}");
    for kind in ["linear", "level", "weight"] {
        assert!(counts[kind].0 >= 100, "too few of a kind are named: {counts:?}");
    }
}
