//! Clusters with a service level for each pair of switches: plans verify clean, and a wrong service level is
//! reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_compiler::{CompileError, Planner, compile, recompile};
use fabric_model::decisions::ClusterDecision;
use fabric_model::generate::{FatTree, FatTreeSize};
use fabric_model::intent::PortName;
use fabric_model::tenancy::{PairServiceLevel, SlMode};
use fabric_model::{Decisions, Endpoint, FabricPlan, Intents, Topology};
use fabric_verifier::{Finding, is_acknowledged, verify};
use ib_wire::{Guid, ServiceLevel, VirtualLane};
use proptest::prelude::*;

use crate::world::arbiter::guarantees_hold;
use crate::world::{
    add_cluster, below, dice, fabric, guaranteed, hosts, level, one, planned, rebuilt, tenants,
};

/// Findings that the plan does not acknowledge itself.
fn unexpected(topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Vec<Finding> {
    let mut findings = verify(topology, intents, plan);
    findings.retain(|finding| !is_acknowledged(finding, plan));
    findings
}

fn switch(plan: &FabricPlan, port: Guid) -> Guid {
    plan.adapter_port(port).unwrap().peer.node
}

/// The ports and lanes that a packet reaches.
fn lanes(
    topology: &Topology,
    plan: &FabricPlan,
    from: Guid,
    to: Guid,
    sl: ServiceLevel,
) -> Vec<(PortName, VirtualLane)> {
    let own = plan.adapter_port(from).unwrap();
    let lid = plan.adapter_port(to).unwrap().lid;
    let mut here = topology.peer(topology.by_port_guid(from).unwrap()).unwrap();
    let mut lanes = vec![(own.name, own.qos.as_ref().unwrap().otherwise.lane(sl))];
    while topology[here.node].is_switch() && lanes.last().unwrap().1 != VirtualLane::MANAGEMENT {
        let node = topology[here.node].guid;
        let switch = plan.switch(node).unwrap();
        let Some(exit) = switch.linear.exit(lid) else { break };
        let sharing = switch.port(exit).unwrap().qos.as_ref().unwrap();
        let lane = sharing.lane(here.port, sl).unwrap_or(VirtualLane::MANAGEMENT);
        lanes.push((PortName { node, port: exit }, lane));
        here = topology.peer(Endpoint::new(here.node, exit)).unwrap();
    }
    lanes.retain(|(_, lane)| *lane != VirtualLane::MANAGEMENT);
    lanes
}

/// Checks that packets of a cluster stay in the cluster's lanes or are dropped, whatever service level a port sends
/// with (except 0 and management) and to whatever port. Returns how many hops were seen with a service level that is
/// not that of the two switches.
fn strays(topology: &Topology, plan: &FabricPlan, decision: &ClusterDecision) -> usize {
    let own: BTreeMap<PortName, VirtualLane> =
        decision.links.iter().map(|link| (link.port, link.lane)).collect();
    let mut seen = 0;
    for from in &decision.ports {
        for to in plan.adapter_ports().map(|port| port.guid).filter(|to| to != from) {
            let right = decision.service_level_between(switch(plan, *from), switch(plan, to));
            let for_everybody = [Some(level(0)), plan.decisions().management_sl];
            for sl in (0..16).map(level).filter(|sl| !for_everybody.contains(&Some(*sl))) {
                for (port, lane) in lanes(topology, plan, *from, to, sl) {
                    assert_eq!(own.get(&port), Some(&lane), "{from} to {to} at {sl:?}, {port}");
                    seen += usize::from(right != Some(sl));
                }
            }
        }
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Clusters of both modes on ports of their own, as many as the fabric admits.
    #[test]
    fn path_service_levels_are_refused_or_verify_clean(seed: u64, bandwidth in 0u64..2_000_000_000) {
        let mut dice = dice(seed);
        let topology = fabric(&mut dice);
        let mut intents = tenants(&mut dice, &topology);
        let mut free = hosts(&topology);
        let mut planner =
            Planner::new(Arc::new(topology.clone()), intents.clone(), &Decisions::default()).unwrap();
        while free.len() >= 2 {
            let count = (1 + below(&mut dice, 6)).min(free.len());
            let ports: Vec<Guid> = (0..count).map(|_| free.swap_remove(below(&mut dice, free.len()))).collect();
            let before = (intents.clone(), Arc::clone(planner.plan()));
            add_cluster(&mut intents, format!("c{}", free.len()), ports, bandwidth, None);
            intents.clusters.last_mut().unwrap().sl_mode = one(&mut dice, &[SlMode::Path, SlMode::Path, SlMode::Cluster]);
            match planner.change(&intents) {
                Ok(plan) => {
                    let plan = Arc::clone(plan);
                    prop_assert_eq!(unexpected(&topology, &intents, &plan), []);
                    prop_assert!(guarantees_hold(&topology, &intents, &plan));
                    prop_assert_eq!(&*plan, &recompile(&topology, &intents, &before.1).unwrap());
                    prop_assert_eq!(&*plan, &compile(&topology, &intents, plan.decisions()).unwrap());
                }
                Err(error) => {
                    prop_assert!(matches!(error, CompileError::NotAdmitted { .. }), "{}", error);
                    intents = before.0;
                }
            }
        }
        for decision in planner.plan().decisions().clusters.values() {
            strays(&topology, planner.plan(), decision);
        }
        // A cluster that grows keeps the service levels of pairs of switches that the new port does not affect.
        let Some(place) = intents.clusters.iter().position(|cluster| cluster.sl_mode == SlMode::Path) else {
            return Ok(());
        };
        let before = Arc::clone(planner.plan());
        let name = intents.clusters[place].name.clone();
        let new = free.pop();
        intents.clusters[place].ports.extend(new);
        if let Ok(plan) = planner.change(&intents) {
            prop_assert_eq!(unexpected(&topology, &intents, plan), []);
            let up = |plan: &FabricPlan, port: Guid| plan.decisions().end_ports[&port].uplink_path.clone();
            let after = &plan.decisions().clusters[&name];
            let new = new.map(|port| switch(plan, port));
            let is_same = |pair: &&PairServiceLevel| Some(pair.switches.0) != new && Some(pair.switches.1) != new;
            if after.ports.iter().all(|port| up(plan, *port) == up(&before, *port)) {
                for pair in before.decisions().clusters[&name].pairs.iter().filter(is_same) {
                    prop_assert!(after.pairs.contains(pair));
                }
            }
        }
    }
}

/// A tree with one switch on top and seven hosts on each of eight leaves. Every service level is taken somewhere
/// between three leaves, but between any two of them some are free.
struct Crowded {
    tree: Topology,
    intents: Intents,
    plan: FabricPlan,
    /// A host of each of the three leaves.
    three: Vec<Guid>,
}

impl Crowded {
    fn new() -> Self {
        let oversubscription = "7:1".parse().unwrap();
        let tree = FatTree { radix: 8, oversubscription, ..FatTree::new(FatTreeSize::Leaves(8)) };
        let tree = tree.generate().unwrap();
        let all = hosts(&tree);
        let mut intents = Intents::new(all[0]);
        let bare = planned(&tree, &intents);
        let mut leaves: BTreeMap<Guid, Vec<Guid>> = BTreeMap::new();
        for host in all {
            leaves.entry(switch(&bare, host)).or_default().push(host);
        }
        let first = leaves.remove(&switch(&bare, intents.manager)).unwrap();
        assert_eq!((leaves.len(), first.len()), (7, 7));
        let leaves: Vec<Vec<Guid>> = leaves.into_values().collect();
        for (leaf, count) in [(0, 5), (1, 5), (2, 4)] {
            let apart = leaves[leaf].iter().zip(&leaves[leaf + 3]).take(count);
            for (place, (near, far)) in apart.enumerate() {
                let ports = vec![*near, *far];
                add_cluster(&mut intents, format!("c{leaf}-{place}"), ports, 0, None);
            }
        }
        let plan = planned(&tree, &intents);
        // Each cluster keeps a service level that no other has.
        let mut decisions = plan.decisions().clone();
        let names: Vec<String> = decisions.clusters.keys().cloned().collect();
        for (raw, name) in (1..).zip(&names) {
            let decision: &mut ClusterDecision = Arc::make_mut(decisions.clusters.get_mut(name).unwrap());
            decision.links.iter_mut().for_each(|link| link.service_levels = vec![level(raw)]);
        }
        let plan = compile(&tree, &intents, &decisions).unwrap();
        assert_eq!(plan.decisions().clusters, decisions.clusters);
        assert_eq!((names.len(), verify(&tree, &intents, &plan)), (14, Vec::new()));
        let three = leaves[..3].iter().map(|leaf| leaf[5]).collect();
        Self { tree, intents, plan, three }
    }

    fn with(&self, sl_mode: SlMode) -> (Intents, Result<FabricPlan, CompileError>) {
        let mut intents = self.intents.clone();
        add_cluster(&mut intents, "wide".to_owned(), self.three.clone(), 0, None);
        intents.clusters.last_mut().unwrap().sl_mode = sl_mode;
        let plan = recompile(&self.tree, &intents, &self.plan);
        (intents, plan)
    }
}

#[test]
fn pairs_of_switches_get_levels_when_no_common_one_is_free() {
    let crowded = Crowded::new();
    let (_, refused) = crowded.with(SlMode::Cluster);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("no service level is free on every link"), "the control: {refused}");

    let (intents, plan) = crowded.with(SlMode::Path);
    let plan = plan.unwrap();
    assert_eq!(verify(&crowded.tree, &intents, &plan), []);
    assert!(guarantees_hold(&crowded.tree, &intents, &plan));
    let wide = &plan.decisions().clusters["wide"];
    assert_eq!(wide.pairs.len(), 6, "every two of three, and each with itself");
    let between = |a: usize, b: usize| {
        wide.service_level_between(switch(&plan, crowded.three[a]), switch(&plan, crowded.three[b])).unwrap()
    };
    // The leaves' own clusters have 1 to 5, 6 to 10 and 11 to 14.
    assert_eq!([between(0, 1), between(2, 0), between(1, 2)], [level(11), level(6), level(1)]);
    assert_eq!(between(1, 0), between(0, 1));
    assert_eq!(wide.service_level(), None, "the cluster has no common service level");
    let lanes: BTreeSet<usize> = wide.links.iter().map(|link| link.service_levels.len()).collect();
    assert_eq!(lanes, BTreeSet::from([2]), "a link has the levels of the pairs that use it");
    // With the service level of another pair of switches, a packet gets as far as the leaf or the top.
    assert!(strays(&crowded.tree, &plan, wide) > 0);
    for name in crowded.plan.decisions().clusters.keys() {
        assert_eq!(plan.decisions().clusters[name], crowded.plan.decisions().clusters[name]);
    }
    assert_eq!(compile(&crowded.tree, &intents, plan.decisions()).unwrap(), plan, "the same again");
}

#[test]
fn a_cluster_can_switch_between_service_level_modes() {
    let crowded = Crowded::new();
    let mut intents = crowded.intents.clone();
    let before = crowded.plan.decisions().clusters["c1-0"].service_level();
    let cluster = intents.clusters.iter_mut().position(|cluster| cluster.name == "c1-0").unwrap();
    intents.clusters[cluster].sl_mode = SlMode::Path;
    let by_pairs = recompile(&crowded.tree, &intents, &crowded.plan).unwrap();
    assert_eq!(verify(&crowded.tree, &intents, &by_pairs), []);
    let pairs = &by_pairs.decisions().clusters["c1-0"].pairs;
    let levels: BTreeSet<Option<ServiceLevel>> = pairs.iter().map(|pair| Some(pair.service_level)).collect();
    assert_eq!((pairs.len(), levels), (3, BTreeSet::from([before])), "it keeps the level it had");
    intents.clusters[cluster].sl_mode = SlMode::Cluster;
    let back = recompile(&crowded.tree, &intents, &by_pairs).unwrap();
    assert_eq!(verify(&crowded.tree, &intents, &back), []);
    assert_eq!(back.decisions().clusters["c1-0"].pairs, []);
}

#[test]
fn a_wrong_path_service_level_is_reported_or_harmless() {
    let (mut reported, mut harmless) = (0, 0);
    for seed in 0..200 {
        let mut dice = dice(3000 + seed);
        let topology = fabric(&mut dice);
        let (intents, plan) = guaranteed(&mut dice, &topology);
        if !verify(&topology, &intents, &plan).is_empty() {
            assert!(!plan.findings().is_empty(), "seed {seed}");
            continue;
        }
        let pairs = |decision: &ClusterDecision| decision.pairs.len();
        let names: Vec<(&String, usize)> =
            plan.decisions().clusters.iter().map(|(name, decision)| (name, pairs(decision))).collect();
        for (name, place) in
            names.iter().flat_map(|(name, count)| (0..*count).map(move |place| (*name, place)))
        {
            let decision = &plan.decisions().clusters[name];
            let wrong = level(below(&mut dice, 16) as u8);
            let PairServiceLevel { switches, service_level: right } = decision.pairs[place];
            if wrong == right {
                continue;
            }
            let mut parts = plan.parts().clone();
            let decision = Arc::make_mut(parts.decisions.clusters.get_mut(name).unwrap());
            decision.pairs[place].service_level = wrong;
            let changed = rebuilt(parts.clone(), &plan);
            let findings = verify(&topology, &intents, &changed);
            let is_it = |found: &Finding| {
                matches!(found, Finding::ServiceLevelDiscarded { cluster, sl, from, to, .. }
                if cluster == name && *sl == wrong
                    && PairServiceLevel::between(switch(&plan, *from), switch(&plan, *to)) == switches)
            };
            if findings.iter().any(is_it) {
                reported += 1;
            } else {
                assert!(
                    findings.is_empty() && guarantees_hold(&topology, &intents, &changed),
                    "{findings:#?}"
                );
                harmless += 1;
            }
            // A missing service level is reported as well.
            let decision = Arc::make_mut(parts.decisions.clusters.get_mut(name).unwrap());
            decision.pairs.remove(place);
            let findings = verify(&topology, &intents, &rebuilt(parts, &plan));
            let is_it = |found: &Finding| {
                matches!(found, Finding::ServiceLevelMissing { cluster, between }
                if cluster == name && *between == Some(switches))
            };
            assert!(findings.iter().any(is_it), "{findings:#?}");
        }
    }
    println!("{reported} reported, {harmless} harmless");
    assert!(reported >= 300, "{reported} reported, {harmless} harmless");
}
