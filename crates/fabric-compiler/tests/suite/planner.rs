//! A planner gives the plans that recompiling gives, change by change, also after rejected intents.

use std::sync::Arc;

use fabric_compiler::{CompileError, Planner, compile, recompile, recompile_on};
use fabric_model::generate::{DragonflyPlus, FatTree, FatTreeSize, Torus, without_links};
use fabric_model::intent::{
    ClusterIntent, Ipoib, Member, MemberSelector, PartitionIntent, PkeyPlacement, Role,
};
use fabric_model::plan::{Basis, PlanFinding};
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use ib_wire::{Guid, PartitionNumber};
use rand::seq::{IndexedMutRandom as _, IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

use crate::clusters::ports;

const SEED: u64 = 20_261_116;

fn tree(levels: usize) -> Topology {
    match levels {
        2 => FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap(),
        _ => FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(4)) }.generate().unwrap(),
    }
}

/// A generator of random intents for a fabric.
struct IntentGenerator {
    random: Pcg64,
    ports: Vec<Guid>,
    made: usize,
}

impl IntentGenerator {
    fn new(topology: &Topology, seed: u64) -> Self {
        Self { random: Pcg64::seed_from_u64(seed), ports: ports(topology), made: 0 }
    }

    /// Some ports, mostly unused ones.
    fn some_ports(&mut self, intents: &Intents) -> Vec<Guid> {
        let count = self.random.random_range(1..7);
        let is_free = |port: &Guid| intents.clusters.iter().all(|cluster| !cluster.ports.contains(port));
        let mut free: Vec<Guid> = self.ports.iter().copied().filter(is_free).collect();
        if self.random.random_bool(0.5) {
            free.shuffle(&mut self.random);
        }
        let start = self.random.random_range(0..=free.len().saturating_sub(count));
        let mut ports: Vec<Guid> = free.into_iter().skip(start).take(count).collect();
        if self.random.random_bool(0.05) {
            ports.extend(self.ports.choose(&mut self.random).filter(|port| !ports.contains(port)).copied());
        }
        if self.random.random_bool(0.03) {
            ports.push(Guid::from_wire(0xdead_0000 + self.made as u64).unwrap());
        }
        ports
    }

    fn class(&mut self) -> Class {
        let rate = [0, 0, 100_000_000, 1_000_000_000, 4_000_000_000, 15_000_000_000, 1_000_000_000_000];
        let bandwidth = Bandwidth::from_bits_per_s(*rate.choose(&mut self.random).unwrap());
        match self.random.random_range(0..12) {
            0 => Class::BestEffort,
            1 => Class::Guaranteed { bandwidth, latency_ns: Some(self.random.random_range(1..200_000)) },
            _ => Class::Guaranteed { bandwidth, latency_ns: None },
        }
    }

    fn members(&mut self, ports: &[Guid]) -> Vec<Member> {
        let place = *[PkeyPlacement::Anywhere, PkeyPlacement::First, PkeyPlacement::FirstIfAlone]
            .choose(&mut self.random)
            .unwrap();
        let role = *[Role::Full, Role::Full, Role::Limited, Role::Both].choose(&mut self.random).unwrap();
        ports
            .iter()
            .map(|port| Member { selector: MemberSelector::Port(*port), role, placement: place })
            .collect()
    }

    fn ipoib(&mut self) -> Option<Ipoib> {
        self.random.random_bool(0.7).then(|| Ipoib {
            rate: *[ib_wire::Rate::G10, ib_wire::Rate::G20].choose(&mut self.random).unwrap(),
            ..Ipoib::default()
        })
    }

    /// The next intents, with one or two differences.
    fn next(&mut self, intents: &Intents) -> Intents {
        let mut next = intents.clone();
        for _ in 0..self.random.random_range(1..3) {
            self.step(&mut next);
        }
        next
    }

    fn step(&mut self, next: &mut Intents) {
        let any = (!next.clusters.is_empty()).then(|| self.random.random_range(0..next.clusters.len()));
        match (self.random.random_range(0..100), any) {
            (0..40, _) | (_, None) => self.add(next),
            (40..60, Some(at)) => {
                let name = next.clusters.remove(at).name;
                next.partitions.retain(|partition| partition.name != name);
            }
            (60..68, Some(at)) => {
                let more = self.some_ports(next);
                next.clusters[at].ports.extend(more.first());
            }
            (68..74, Some(at)) => drop(next.clusters[at].ports.pop()),
            (74..80, Some(at)) => next.clusters[at].class = self.class(),
            (80..82, Some(at)) => {
                let ports = next.clusters[at].ports.clone();
                next.clusters[at].sl_mode = SlMode::Path;
                if let Some(partition) = next.partitions.choose_mut(&mut self.random) {
                    partition.members = self.members(&ports);
                }
            }
            (82..85, _) => next.partitions.shuffle(&mut self.random),
            (85..88, _) => next.clusters.shuffle(&mut self.random),
            (88..93, _) => {
                let number = PartitionNumber::from_wire(self.random.random_range(1..12));
                let who = *[MemberSelector::All, MemberSelector::AllAdapters, MemberSelector::AllSwitches]
                    .choose(&mut self.random)
                    .unwrap();
                let role = Role::Limited;
                let members = vec![Member { selector: who, role, placement: PkeyPlacement::Anywhere }];
                let name = format!("extra{}", self.random.random_range(0..5));
                next.partitions.push(PartitionIntent { name, number, members, ipoib: self.ipoib() });
            }
            (93..95, _) => next.partitions.retain(|partition| !partition.name.starts_with("extra")),
            (95..97, _) => {
                let some = next.partitions.choose_mut(&mut self.random);
                let ipoib = self.ipoib();
                some.into_iter().for_each(|partition| partition.ipoib = ipoib);
            }
            (97..98, Some(at)) => next.clusters.push(next.clusters[at].clone()),
            (98..99, _) => next.capabilities.default_switch.own_pkeys ^= 1,
            _ => next.partitions.truncate(next.partitions.len() / 2),
        }
    }

    fn add(&mut self, next: &mut Intents) {
        let ports = self.some_ports(next);
        self.made += 1;
        let name = format!("c{}", if self.random.random_bool(0.9) { self.made } else { 1 });
        let (members, ipoib, class) = (self.members(&ports), self.ipoib(), self.class());
        next.partitions.push(PartitionIntent { name: name.clone(), number: None, members, ipoib });
        if !ports.is_empty() && next.clusters.iter().all(|cluster| cluster.name != name) {
            next.clusters.push(ClusterIntent { name, ports, class, sl_mode: SlMode::Cluster });
        }
    }
}

/// Counts of outcomes.
#[derive(Debug, Default)]
struct Outcomes {
    refused: usize,
    violated: usize,
    guaranteed: usize,
    rerouted: usize,
}

/// Applies random intents one after the other, and checks that the planner and recompilation agree on each.
fn assert_agrees(planner: &mut Planner, steps: usize, seed: u64) -> Outcomes {
    let topology = Arc::clone(planner.topology());
    let mut generator = IntentGenerator::new(&topology, seed);
    let mut outcomes = Outcomes::default();
    for step in 0..steps {
        let before = Arc::clone(planner.plan());
        let desired = generator.next(planner.intents());
        let basis = Basis::of(&topology, &desired);
        let expected = recompile_on(basis, &topology, &desired, &before);
        let old_intents = planner.intents().clone();
        let given = planner.change(&desired).map(|plan| (**plan).clone());
        assert!(given == expected, "step {step} of seed {seed}: {}", difference(&given, &expected));
        match given {
            Ok(plan) => {
                assert_eq!((planner.intents(), planner.basis()), (&desired, basis));
                outcomes.guaranteed = outcomes.guaranteed.max(plan.decisions().clusters.len());
                outcomes.violated += violated(&plan);
                let mut tables = before.switches().zip(plan.switches());
                outcomes.rerouted += usize::from(tables.any(|(a, b)| a.linear != b.linear));
            }
            Err(_) => {
                outcomes.refused += 1;
                assert!(planner.intents() == &old_intents && **planner.plan() == *before);
            }
        }
    }
    outcomes
}

fn violated(plan: &FabricPlan) -> usize {
    plan.findings().iter().filter(|finding| matches!(finding, PlanFinding::GuaranteeViolated { .. })).count()
}

fn difference(a: &Result<FabricPlan, CompileError>, b: &Result<FabricPlan, CompileError>) -> String {
    let (Ok(a), Ok(b)) = (a, b) else {
        return format!("{:?} instead of {:?}", a.as_ref().err(), b.as_ref().err());
    };
    let (old, new) = (b.decisions(), a.decisions());
    let same = [
        ("findings", a.findings() == b.findings()),
        ("switches", a.switches().eq(b.switches())),
        ("adapter ports", a.adapter_ports().eq(b.adapter_ports())),
        ("partitions", a.partitions().eq(b.partitions())),
        ("groups", a.groups().eq(b.groups())),
        ("end ports", old.end_ports == new.end_ports),
        ("numbers", old.partitions == new.partitions),
        ("group decisions", old.groups == new.groups),
        ("clusters", old.clusters == new.clusters),
    ];
    let names: Vec<&str> = same.iter().filter(|(_, same)| !same).map(|(name, _)| *name).collect();
    format!("other {}", names.join(", "))
}

fn start(topology: Topology) -> Planner {
    let mut intents = Intents::new(ports(&topology)[0]);
    intents.capabilities.default_switch.own_pkeys = 8;
    intents.capabilities.default_port.pkeys = 6;
    intents.capabilities.default_switch.multicast = 6;
    Planner::new(Arc::new(topology), intents, &Decisions::default()).unwrap()
}

#[test]
fn two_tier_trees_are_planned_as_if_recompiled() {
    for seed in 0..4 {
        let outcomes = assert_agrees(&mut start(tree(2)), 100, SEED + seed);
        assert!(outcomes.refused > 3 && outcomes.guaranteed > 3, "{outcomes:?}");
    }
}

#[test]
fn three_tier_trees_are_planned_as_if_recompiled() {
    let mut rerouted = 0;
    for seed in 10..13 {
        let outcomes = assert_agrees(&mut start(tree(3)), 100, SEED + seed);
        assert!(outcomes.refused > 3 && outcomes.guaranteed > 3, "{outcomes:?}");
        rerouted += outcomes.rerouted;
    }
    assert!(rerouted > 0, "paths were selected");
}

#[test]
fn degraded_trees_are_planned_as_if_recompiled() {
    for seed in 20..23 {
        let degraded = without_links(tree(3), 7, seed).unwrap();
        let outcomes = assert_agrees(&mut start(degraded), 80, SEED + seed);
        assert!(outcomes.refused > 3 && outcomes.guaranteed > 3, "{outcomes:?}");
    }
}

#[test]
fn other_fabrics_are_planned_as_if_recompiled() {
    let torus = Torus { hosts_per_switch: 2, radix: 8, ..Torus::new([3, 4]) }.generate().unwrap();
    let dragonfly = DragonflyPlus { leaves: 2, spines: 2, hosts_per_leaf: 3, ..DragonflyPlus::new(4) };
    for (topology, seed) in [(torus, 30), (dragonfly.generate().unwrap(), 31)] {
        let outcomes = assert_agrees(&mut start(topology), 100, SEED + seed);
        assert!(outcomes.refused > 3 && outcomes.guaranteed > 3, "{outcomes:?}");
    }
}

#[test]
fn violated_guarantees_are_reconsidered_with_every_change() {
    let mut violated = 0;
    for seed in 40..44 {
        let mut whole = start(tree(2));
        assert_agrees(&mut whole, 60, SEED + seed);
        let degraded = Arc::new(without_links(tree(2), 6, seed).unwrap());
        let mut planner = Planner::resume(degraded, whole.intents().clone(), whole.plan()).unwrap();
        let expected = recompile(planner.topology(), planner.intents(), whole.plan()).unwrap();
        assert_eq!(**planner.plan(), expected);
        violated += assert_agrees(&mut planner, 40, SEED + 100 + seed).violated;
    }
    assert!(violated > 0, "some guarantees cannot be kept without those cables");
}

#[test]
fn one_more_cluster_shares_unchanged_tables() {
    let mut planner = start(tree(3));
    let ports = ports(planner.topology());
    let mut intents = planner.intents().clone();
    let mut generator = IntentGenerator::new(planner.topology(), SEED);
    for (number, ports) in ports[1..].chunks(4).enumerate().take(20) {
        let (name, class) =
            (format!("c{number}"), Class::Guaranteed { bandwidth: Bandwidth::ZERO, latency_ns: None });
        let members = generator.members(ports);
        let ipoib = Some(Ipoib::default());
        intents.partitions.push(PartitionIntent { name: name.clone(), number: None, members, ipoib });
        let ports = ports.to_vec();
        intents.clusters.push(ClusterIntent { name, ports, class, sl_mode: SlMode::Cluster });
        let before = Arc::clone(planner.plan());
        let after = planner.change(&intents).unwrap();
        assert_eq!(compile(&tree(3), &intents, before.decisions()).unwrap(), **after);
        if number == 0 {
            // The first guarantee changes the tables of every port.
            continue;
        }
        let switches = before.shared_switches().iter().zip(after.shared_switches());
        let shared = switches.clone().filter(|(old, new)| Arc::ptr_eq(old, new)).count();
        assert_eq!(shared, switches.filter(|(old, new)| old == new).count());
        assert!(shared > 0);
    }
}
