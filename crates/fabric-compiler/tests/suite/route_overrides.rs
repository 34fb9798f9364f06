//! Route overrides of tenants change the routes to their own ports and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_compiler::{Planner, compile, recompile};
use fabric_model::plan::PlanFinding;
use fabric_model::{Decisions, FabricPlan, Intents};
use fabric_verifier::{Verified, verify};
use ib_wire::{Guid, Lid, PortNum};
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

use crate::clusters::{GIGABIT, cluster, ports, tree, unexpected};

const SEED: u64 = 20_261_116;

/// The switch that a port is attached to.
fn leaf(plan: &FabricPlan, port: Guid) -> Guid {
    plan.adapter_port(port).unwrap().peer.node
}

fn is_leaf(plan: &FabricPlan, switch: Guid) -> bool {
    plan.adapter_ports().any(|port| port.peer.node == switch)
}

/// The port of a switch that leads to another.
fn toward(plan: &FabricPlan, switch: Guid, other: Guid) -> PortNum {
    plan.switch(switch).unwrap().ports.iter().find(|port| port.peer.node == other).unwrap().number
}

/// An override that leads packets from some leaves to a port over one spine.
fn by(plan: &FabricPlan, to: Guid, spine: Guid, from: &[Guid]) -> BTreeMap<Guid, PortNum> {
    let home = plan.adapter_port(to).unwrap().peer;
    let climbs = from.iter().filter(|leaf| **leaf != home.node);
    let mut exits: BTreeMap<_, _> = climbs.map(|leaf| (*leaf, toward(plan, *leaf, spine))).collect();
    exits.insert(spine, toward(plan, spine, home.node));
    exits.insert(home.node, home.port);
    exits
}

/// The LIDs for which a forwarding entry differs.
fn changed(before: &FabricPlan, after: &FabricPlan) -> BTreeSet<Lid> {
    let switches = before.switches().zip(after.switches());
    switches.flat_map(|(old, new)| old.linear.differences(&new.linear).collect::<Vec<_>>()).collect()
}

#[test]
fn an_override_changes_its_own_lid_and_can_be_withdrawn() {
    let topology = tree();
    let ports = ports(&topology);
    let mut intents = Intents::new(ports[0]);
    // Two hosts each on two leaves.
    let members = [ports[4], ports[5], ports[8], ports[9]];
    intents.clusters = vec![cluster("blue", &members, GIGABIT), cluster("red", &ports[16..20], GIGABIT)];
    let mut planner = Planner::new(Arc::clone(&topology), intents.clone(), &Decisions::default()).unwrap();
    let before = Arc::clone(planner.plan());

    // Both hosts of a leaf swap their paths, so that all links used still belong to the cluster.
    let (from, to) = (leaf(&before, members[0]), [members[2], members[3]]);
    let spines = to.map(|port| {
        let exit = before.switch(from).unwrap().linear.exit(before.adapter_port(port).unwrap().lid).unwrap();
        before.switch(from).unwrap().port(exit).unwrap().peer.node
    });
    assert_ne!(spines[0], spines[1], "there is something to change");
    let mut overridden = intents.clone();
    overridden.route_overrides.insert(to[0], by(&before, to[0], spines[1], &[from]));
    overridden.route_overrides.insert(to[1], by(&before, to[1], spines[0], &[from]));
    let after = Arc::clone(planner.change(&overridden).unwrap());
    let lids = to.map(|port| after.adapter_port(port).unwrap().lid);
    assert_eq!(changed(&before, &after), lids.into_iter().collect());
    assert_eq!(after.decisions().clusters, before.decisions().clusters, "no grant changed");
    assert_eq!(unexpected(&topology, &overridden, &after), [""; 0]);
    assert_eq!(*after, recompile(&topology, &overridden, &before).unwrap());
    assert_eq!(*after, compile(&topology, &overridden, before.decisions()).unwrap());
    for switch in after.switches() {
        let old = before.switch(switch.guid).unwrap();
        assert_eq!(after.default_linear_table(switch).to_exits(), old.linear.to_exits());
        for port in after.adapter_ports() {
            assert_eq!(after.default_exit(switch, port), old.linear.exit(port.lid));
        }
    }

    assert_eq!(**planner.change(&intents).unwrap(), *before, "as before");
}

#[test]
fn overrides_over_links_without_a_grant_are_found() {
    let topology = tree();
    let ports = ports(&topology);
    let mut intents = Intents::new(ports[0]);
    intents.clusters = vec![cluster("blue", &[ports[4], ports[8]], GIGABIT)];
    let before = compile(&topology, &intents, &Decisions::default()).unwrap();
    assert_eq!(unexpected(&topology, &intents, &before), [""; 0]);
    let (from, to) = (leaf(&before, ports[4]), ports[8]);
    let used = before.decisions().clusters["blue"].links.iter().map(|grant| grant.port.node);
    let used: BTreeSet<Guid> = used.collect();
    let mut spines = before.switches().map(|switch| switch.guid).filter(|guid| !is_leaf(&before, *guid));
    let spine = spines.find(|spine| !used.contains(spine)).unwrap();
    intents.route_overrides.insert(to, by(&before, to, spine, &[from]));
    let after = recompile(&topology, &intents, &before).unwrap();
    let found = unexpected(&topology, &intents, &after);
    assert!(found.iter().any(|finding| finding.contains("blue")), "{found:?}");
}

#[test]
fn dead_ends_loops_and_down_up_hops_are_rejected() {
    let topology = tree();
    let ports = ports(&topology);
    let intents = Intents::new(ports[0]);
    let before = compile(&topology, &intents, &Decisions::default()).unwrap();
    let to = ports[8];
    let [from, other, home] = [ports[4], ports[20], to].map(|port| leaf(&before, port));
    let spines: Vec<Guid> =
        before.switches().map(|switch| switch.guid).filter(|guid| !is_leaf(&before, *guid)).collect();
    let up = |leaf, spine: usize| (leaf, toward(&before, leaf, spines[spine]));
    let down = |spine: usize, leaf| (spines[spine], toward(&before, spines[spine], leaf));
    let ends = before.adapter_port(ports[4]).unwrap().peer.port;
    let wrong: [(&str, Vec<(Guid, PortNum)>); 4] = [
        ("end at", vec![(from, ends)]),
        ("in a loop", vec![up(from, 0), down(0, from)]),
        ("up again", vec![up(from, 0), down(0, other), up(other, 1), down(1, home)]),
        ("no switch", vec![(Guid::from_wire(0xdead).unwrap(), ends)]),
    ];
    for (what, exits) in wrong {
        let mut overridden = intents.clone();
        overridden.route_overrides.insert(to, exits.into_iter().collect());
        let after = recompile(&topology, &overridden, &before).unwrap();
        let reported = after.findings().iter().any(|finding| {
            matches!(finding, PlanFinding::RouteOverrideRejected { port, reason } if *port == to && reason.contains(what))
        });
        assert!(reported, "{what}: {:?}", after.findings());
        assert_eq!(changed(&before, &after), BTreeSet::new());
    }
    let mut overridden = intents.clone();
    overridden.route_overrides.insert(to, [up(from, 0), down(0, home)].into_iter().collect());
    let after = recompile(&topology, &overridden, &before).unwrap();
    assert_eq!(after.findings(), before.findings(), "control");
}

#[test]
fn random_overrides_are_planned_as_if_recompiled() {
    let topology = tree();
    let ports = ports(&topology);
    let mut random = Pcg64::seed_from_u64(SEED);
    let mut intents = Intents::new(ports[0]);
    let mut planner = Planner::new(Arc::clone(&topology), intents.clone(), &Decisions::default()).unwrap();
    let mut verified = Verified::of(&topology, &intents, Arc::clone(planner.plan()));
    let leaves: BTreeSet<Guid> = ports.iter().map(|port| leaf(planner.plan(), *port)).collect();
    let leaves: Vec<Guid> = leaves.into_iter().collect();
    let all = planner.plan().switches().map(|switch| switch.guid);
    let spines: Vec<Guid> = all.filter(|guid| !leaves.contains(guid)).collect();
    let (mut taken, mut named) = (0, 0);
    for step in 0..300 {
        let before = Arc::clone(planner.plan());
        match random.random_range(0..4) {
            0 if intents.clusters.len() < 5 => {
                let mut free: Vec<Guid> = ports.clone();
                free.retain(|port| intents.clusters.iter().all(|cluster| !cluster.ports.contains(port)));
                free.shuffle(&mut random);
                free.truncate(random.random_range(2..6));
                intents.clusters.push(cluster(&format!("c{step}"), &free, GIGABIT));
            }
            1 if !intents.clusters.is_empty() => {
                let gone = random.random_range(0..intents.clusters.len());
                intents.clusters.remove(gone);
            }
            2 => {
                let forgotten = intents.route_overrides.keys().next().copied();
                forgotten.map(|port| intents.route_overrides.remove(&port));
            }
            _ => {
                let (to, spine) = (random.random_range(0..ports.len()), random.random_range(0..spines.len()));
                let mut from = leaves.clone();
                from.shuffle(&mut random);
                from.truncate(random.random_range(1..=leaves.len()));
                let exits = by(&before, ports[to], spines[spine], &from);
                intents.route_overrides.insert(ports[to], exits);
            }
        }
        let made = recompile(&topology, &intents, &before);
        let after = match planner.change(&intents) {
            Ok(after) => Arc::clone(after),
            Err(error) => {
                assert_eq!(made, Err(error));
                intents = planner.intents().clone();
                continue;
            }
        };
        assert_eq!(Ok(&*after), made.as_ref(), "step {step}");
        let delta = verified.delta(&topology, &intents, Arc::clone(&after));
        let whole = verify(&topology, &intents, &after);
        assert!(delta.findings().eq(whole.iter()), "step {step}");
        named += whole.len();
        taken += after.decisions().overridden_exits.len();
        verified = delta;
    }
    assert!(taken > 500 && named > 50, "{taken} {named}");
}
