//! Incremental verification has the same findings, whichever plan it starts from.

use std::sync::Arc;

use fabric_compiler::recompile;
use fabric_model::intent::{Member, MemberSelector, PartitionIntent, PkeyPlacement, Role};
use fabric_model::{FabricPlan, Intents, Topology};
use fabric_verifier::{Finding, Verified, verify};
use ib_wire::{PartitionNumber, VirtualLane};
use rand_pcg::Pcg64Mcg;

use crate::world::mutant::{mutant, mutant_of_sharing};
use crate::world::{
    add_cluster, below, dice, fabric, guaranteed, hosts, level, one, planned, random_intents, rebuilt,
    set_random_mode, shared, tenants,
};

/// Fabrics, each with its own seed, and successive changes on each.
const FABRICS: u64 = 100;
const CHANGES: usize = 110;

/// Changes the plan or the intents: one more wrong entry, other partitions, a partition of all ports, or a return to
/// the start.
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
            intents.partitions = random_intents(dice, topology).partitions;
            recompile(topology, intents, &first.1).unwrap()
        }
        5 | 6 => {
            let number = PartitionNumber::from_wire(0x7000);
            let everyone = Member {
                selector: MemberSelector::All,
                role: Role::Full,
                placement: PkeyPlacement::Anywhere,
            };
            let name = "everyone".to_owned();
            intents.partitions.push(PartitionIntent { name, number, members: vec![everyone], ipoib: None });
            plan.clone()
        }
        7 => shared(dice, topology, &first.1),
        _ => mutant(dice, plan).map_or_else(|| plan.clone(), |(plan, _)| plan),
    }
}

/// Changes the plan or the intents of guaranteed clusters: one cluster more or less, with or without a new plan, one
/// more wrong entry, other grants, or a return to the start.
fn changed_guarantees(
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
        4..8 => {
            intents.clone_from(&first.0);
            add_or_remove_cluster(dice, topology, intents);
            recompile(topology, intents, &first.1).unwrap_or_else(|_| {
                intents.clone_from(&first.0);
                first.1.clone()
            })
        }
        8 => {
            add_or_remove_cluster(dice, topology, intents);
            plan.clone()
        }
        9 => {
            intents.partitions = tenants(dice, topology).partitions;
            recompile(topology, intents, &first.1).unwrap_or_else(|_| first.1.clone())
        }
        10..13 => with_other_grants(dice, plan),
        13..19 => mutant_of_sharing(dice, plan).map_or_else(|| plan.clone(), |(plan, _)| plan),
        _ => mutant(dice, plan).map_or_else(|| plan.clone(), |(plan, _)| plan),
    }
}

fn add_or_remove_cluster(dice: &mut Pcg64Mcg, topology: &Topology, intents: &mut Intents) {
    if !intents.clusters.is_empty() && below(dice, 2) == 0 {
        let gone = intents.clusters.remove(below(dice, intents.clusters.len()));
        if below(dice, 4) > 0 {
            intents.partitions.retain(|partition| partition.name != gone.name);
        }
        return;
    }
    let mut free = hosts(topology);
    // Sometimes also ports that are in a cluster already.
    if below(dice, 6) > 0 {
        free.retain(|port| !intents.clusters.iter().any(|cluster| cluster.ports.contains(port)));
    }
    let count = (1 + below(dice, 4)).min(free.len());
    let ports: Vec<_> = (0..count).map(|_| free.swap_remove(below(dice, free.len()))).collect();
    if !ports.is_empty() {
        let name = format!("n{}", below(dice, 6));
        add_cluster(intents, name, ports, one(dice, &[0, 1_000_000_000]), None);
        set_random_mode(dice, intents);
    }
}

/// Changes a grant in the plan's decisions.
fn with_other_grants(dice: &mut Pcg64Mcg, plan: &FabricPlan) -> FabricPlan {
    let mut parts = plan.parts().clone();
    let names: Vec<String> = parts.decisions.clusters.keys().cloned().collect();
    if names.is_empty() {
        return plan.clone();
    }
    let name = &names[below(dice, names.len())];
    let decision = Arc::make_mut(parts.decisions.clusters.get_mut(name).unwrap());
    let place = below(dice, decision.links.len().max(1));
    let pair = below(dice, decision.pairs.len().max(1));
    if let Some(pair) = decision.pairs.get_mut(pair).filter(|_| below(dice, 3) == 0) {
        pair.service_level = level(below(dice, 16) as u8);
        return rebuilt(parts, plan);
    }
    match (below(dice, 6), decision.links.get_mut(place)) {
        (0, _) => drop(parts.decisions.clusters.remove(name)),
        (1, Some(link)) => link.lane = VirtualLane::from_wire(1 + below(dice, 5) as u8).unwrap(),
        (2, Some(link)) => link.service_levels = vec![level(below(dice, 5) as u8)],
        (3, Some(_)) => drop(decision.links.remove(place)),
        (4, _) => decision.bound_ns = 1000,
        _ => parts.decisions.sl_enforcement = !parts.decisions.sl_enforcement,
    }
    rebuilt(parts, plan)
}

/// A change of intents and plan; the next change starts from its result.
type Change = fn(&mut Pcg64Mcg, &Topology, &mut Intents, &(Intents, FabricPlan), &FabricPlan) -> FabricPlan;

/// Makes changes, and returns how many there were and how many had findings.
fn follow(
    seed: u64,
    topology: &Arc<Topology>,
    first: (Intents, FabricPlan),
    change: Change,
) -> (usize, usize) {
    let mut dice = dice(seed);
    let (mut intents, plan) = first.clone();
    let mut verified = Verified::of(topology, &intents, Arc::new(plan));
    assert_eq!(found(&verified), verify(topology, &intents, &first.1));
    let (mut changes, mut with_findings) = (0, 0);
    for step in 0..CHANGES {
        let plan = change(&mut dice, topology, &mut intents, &first, verified.plan());
        let whole = verify(topology, &intents, &plan);
        verified = verified.delta(topology, &intents, Arc::new(plan));
        assert_eq!(found(&verified), whole, "seed {seed}, change {step}");
        changes += 1;
        with_findings += usize::from(!whole.is_empty());
    }
    (changes, with_findings)
}

#[test]
fn a_delta_finds_what_verify_finds() {
    let (mut changes, mut with_findings) = (0, 0);
    for seed in 0..FABRICS {
        let mut dice = dice(seed);
        let topology = Arc::new(fabric(&mut dice));
        let intents = random_intents(&mut dice, &topology);
        let plan = planned(&topology, &intents);
        let count = follow(seed, &topology, (intents, plan), changed);
        (changes, with_findings) = (changes + count.0, with_findings + count.1);
    }
    println!("{changes} changes, {with_findings} with findings");
    assert!(changes >= 10_000 && with_findings >= 5_000 && with_findings < changes);
}

#[test]
fn a_delta_finds_what_verify_finds_with_guarantees() {
    let (mut changes, mut with_findings) = (0, 0);
    for seed in 0..FABRICS {
        let mut dice = dice(2000 + seed);
        let topology = Arc::new(fabric(&mut dice));
        let first = guaranteed(&mut dice, &topology);
        let count = follow(seed, &topology, first, changed_guarantees);
        (changes, with_findings) = (changes + count.0, with_findings + count.1);
    }
    println!("{changes} changes, {with_findings} with findings");
    assert!(changes >= 10_000 && with_findings >= 5_000 && with_findings < changes * 9 / 10);
}

fn found(verified: &Verified) -> Vec<Finding> {
    verified.findings().cloned().collect()
}
