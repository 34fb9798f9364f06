//! Traffic classes of tenants divide the grant of their cluster and change nothing else.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabric_compiler::{Planner, compile, recompile};
use fabric_model::intent::{ClusterIntent, PortName};
use fabric_model::plan::{PlanFinding, PortQos};
use fabric_model::tenancy::{Class, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, SwitchModel};
use fabric_verifier::{Verified, verify};
use ib_wire::{DataLanes, Guid, VirtualLane};
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

use crate::clusters::{GIGABIT, cluster, ports, tree, unexpected};

const SEED: u64 = 20_261_117;

/// The same cluster with a latency guarantee.
fn with_latency(mut cluster: ClusterIntent, latency_ns: u64) -> ClusterIntent {
    if let Class::Guaranteed { latency_ns: guaranteed, .. } = &mut cluster.class {
        *guaranteed = Some(latency_ns);
    }
    cluster
}

/// Why a cluster is not divided.
fn rejection<'p>(plan: &'p FabricPlan, name: &str) -> Option<&'p str> {
    plan.findings().iter().find_map(|finding| match finding {
        PlanFinding::ClassWeightsRejected { cluster, reason } if cluster == name => Some(reason.as_str()),
        _ => None,
    })
}

/// The sharing tables of every port.
fn sharing(plan: &FabricPlan) -> impl Iterator<Item = (PortName, &PortQos)> {
    let switches = plan.switches().flat_map(|switch| {
        let name = |port| PortName { node: switch.guid, port };
        switch.ports.iter().filter_map(move |port| Some((name(port.number), port.qos.as_deref()?)))
    });
    switches.chain(plan.adapter_ports().filter_map(|port| Some((port.name, port.qos.as_deref()?))))
}

/// The weight of a lane per round.
fn weight(sharing: &PortQos, lane: VirtualLane) -> u32 {
    sharing.low.iter().filter(|entry| entry.lane == lane).map(|entry| u32::from(entry.weight)).sum()
}

#[test]
fn classes_divide_a_grant_and_leave_others_unchanged() {
    let topology = tree();
    let ports = ports(&topology);
    let mut intents = Intents::new(ports[0]);
    intents.capabilities.default_port.arbitration = 64;
    intents.clusters = vec![
        cluster("blue", &[ports[4], ports[5], ports[8], ports[9]], 12 * GIGABIT),
        cluster("red", &[ports[6], ports[7], ports[10], ports[11]], 12 * GIGABIT),
    ];
    let mut planner = Planner::new(Arc::clone(&topology), intents.clone(), &Decisions::default()).unwrap();
    let before = Arc::clone(planner.plan());
    let mut divided = intents.clone();
    divided.class_weights.insert("blue".to_owned(), vec![3, 1]);
    let after = Arc::clone(planner.change(&divided).unwrap());
    assert_eq!(rejection(&after, "blue"), None);
    assert_eq!(unexpected(&topology, &divided, &after), [""; 0]);
    assert_eq!(after.decisions().clusters, before.decisions().clusters, "no grant changed");
    assert!(*after == recompile(&topology, &divided, &before).unwrap());
    assert!(*after == recompile(&topology, &divided, &after).unwrap());
    assert!(*after == compile(&topology, &divided, after.decisions()).unwrap());

    let classes = &after.decisions().classes["blue"];
    let blue = &after.decisions().clusters["blue"];
    assert!(!blue.links[0].service_levels.contains(&classes.service_levels[0]));
    assert_eq!(classes.links.len(), blue.links.len());
    let shared: std::collections::HashMap<_, _> = sharing(&after).collect();
    for (link, grant) in classes.links.iter().zip(&blue.links) {
        let [own, further] = [grant.lane, link.lanes[0]].map(|lane| weight(shared[&grant.port], lane));
        assert_eq!((grant.port, vec![own, further]), (link.port, link.weights.clone()));
        // As close as whole packets allow.
        assert!((own * 4).abs_diff(3 * (own + further)) <= 4 * 65 / 2 + 20, "{own} to {further}");
    }
    let links: BTreeSet<PortName> = blue.links.iter().map(|grant| grant.port).collect();
    for ((name, old), (_, new)) in sharing(&before).zip(sharing(&after)) {
        assert!(links.contains(&name) || old == new, "{name}");
    }
    assert!(
        (225..=275).contains(&classes.min_share_permille(1).unwrap()),
        "{:?}",
        classes.min_share_permille(1)
    );
    assert!(**planner.change(&intents).unwrap() == *before, "as before");
}

#[test]
fn classes_that_cannot_be_applied_are_findings() {
    let topology = tree();
    let ports = ports(&topology);
    let mut intents = Intents::new(ports[0]);
    let hosts = [[4, 8], [5, 9], [6, 10]].map(|hosts| hosts.map(|host| ports[host]));
    let names = ["blue", "red", "green"];
    intents.clusters = names.iter().zip(&hosts).map(|(name, hosts)| cluster(name, hosts, GIGABIT)).collect();
    intents.class_weights.insert("blue".to_owned(), vec![3, 1]);
    let reason = |intents: &Intents| {
        let plan = compile(&topology, intents, &Decisions::default()).unwrap();
        assert_eq!(unexpected(&topology, intents, &plan), [""; 0]);
        assert_eq!(plan.decisions().classes.is_empty(), rejection(&plan, "blue").is_some());
        rejection(&plan, "blue").map(str::to_owned)
    };
    assert_eq!(reason(&intents), None, "the control");

    // Four lanes: three of them for clusters. Two hosts of each leave little choice of links.
    let mut narrow = intents.clone();
    narrow.capabilities.default_port.lanes = DataLanes::Two;
    assert!(reason(&narrow).unwrap().contains("lane"));
    let mut many = intents.clone();
    many.class_weights.insert("blue".to_owned(), vec![1; 16]);
    assert!(reason(&many).unwrap().contains("levels"));
    let mut paths = intents.clone();
    paths.clusters[0].sl_mode = SlMode::Path;
    assert!(reason(&paths).unwrap().contains("every pair of switches"));
    let mut nothing = intents.clone();
    nothing.clusters[0].class = Class::BestEffort;
    assert!(reason(&nothing).unwrap().contains("no guarantee"));
    nothing.clusters.clear();
    assert!(reason(&nothing).unwrap().contains("no guarantee"));

    // With a latency guarantee, packets of the first class wait no longer; a class that is too light cannot keep that.
    let mut timely = intents.clone();
    timely.hardware.switch_model = SwitchModel::IdealOutputs;
    timely.capabilities.default_port.arbitration = 64;
    timely.clusters[0] = with_latency(cluster("blue", &hosts[0], 12 * GIGABIT), 30_000);
    assert_eq!(reason(&timely), None);
    timely.class_weights.insert("blue".to_owned(), vec![1, 100]);
    timely.clusters[0] = with_latency(cluster("blue", &hosts[0], 12 * GIGABIT), 5_000);
    let rejected = reason(&timely).unwrap();
    assert!(rejected.contains("divided"), "{rejected}");
    timely.clusters[0] = cluster("blue", &hosts[0], 12 * GIGABIT);
    assert_eq!(reason(&timely), None, "possible without a latency guarantee");
}

#[test]
fn random_classes_are_planned_as_if_recompiled() {
    let topology = tree();
    let ports = ports(&topology);
    let mut random = Pcg64::seed_from_u64(SEED);
    for lanes in [DataLanes::Four, DataLanes::Eight] {
        let mut intents = Intents::new(ports[0]);
        intents.capabilities.default_port.lanes = lanes;
        let mut planner =
            Planner::new(Arc::clone(&topology), intents.clone(), &Decisions::default()).unwrap();
        let mut verified = Verified::of(&topology, &intents, Arc::clone(planner.plan()));
        let (mut taken, mut rejected) = (0, 0);
        for step in 0..250 {
            let before = Arc::clone(planner.plan());
            match random.random_range(0..5) {
                0 | 1 if intents.clusters.len() < 8 => {
                    let mut free: Vec<Guid> = ports.clone();
                    free.retain(|port| intents.clusters.iter().all(|cluster| !cluster.ports.contains(port)));
                    free.shuffle(&mut random);
                    free.truncate(random.random_range(2..6));
                    let is_timely = random.random_bool(0.3);
                    let intent = cluster(&format!("c{step}"), &free, random.random_range(0..8) * GIGABIT);
                    intents.clusters.push(if is_timely { with_latency(intent, 1_000_000) } else { intent });
                }
                2 if !intents.clusters.is_empty() => {
                    let gone = random.random_range(0..intents.clusters.len());
                    let gone = intents.clusters.remove(gone);
                    // Classes of a removed cluster may stay in the intents.
                    if random.random_bool(0.8) {
                        intents.class_weights.remove(&gone.name);
                    }
                }
                3 => {
                    let forgotten = intents.class_weights.keys().next().cloned();
                    forgotten.map(|name| intents.class_weights.remove(&name));
                }
                _ => {
                    if let Some(cluster) = intents.clusters.choose(&mut random) {
                        let count = random.random_range(2..5);
                        let weights = (0..count).map(|_| random.random_range(1..10)).collect();
                        intents.class_weights.insert(cluster.name.clone(), weights);
                    }
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
            assert!(made.as_ref() == Ok(&*after), "step {step}");
            assert!(*after == compile(&topology, &intents, after.decisions()).unwrap(), "step {step}");
            assert_eq!(unexpected(&topology, &intents, &after), [""; 0], "step {step}");
            let delta = verified.delta(&topology, &intents, Arc::clone(&after));
            let whole = verify(&topology, &intents, &after);
            assert!(delta.findings().eq(whole.iter()), "step {step}");
            taken += after.decisions().classes.len();
            rejected += intents.class_weights.len() - after.decisions().classes.len();
            verified = delta;
        }
        assert!(taken > 100 && rejected > 20, "{lanes:?}: {taken} {rejected}");
    }
}
