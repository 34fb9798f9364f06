//! Compiled plans have no findings, on fabrics of every kind.

use fabric_compiler::{CompileError, compile};
use fabric_model::generate::{DragonflyPlus, FatTree, FatTreeSize, Torus, without_links};
use fabric_model::intent::{Ipoib, Member, MemberSelector, PartitionIntent, PkeyPlacement, Role};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use fabric_verifier::{Finding, is_acknowledged, verify};
use ib_wire::Guid;
use proptest::prelude::*;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use crate::world::{add_cluster, below, dice, fabric, hosts, planned, random_intents, shared, tenants};

/// Findings that the plan does not acknowledge itself.
fn unexpected(topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Vec<Finding> {
    let mut findings = verify(topology, intents, plan);
    findings.retain(|finding| !is_acknowledged(finding, plan));
    findings
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn compiled_plans_verify_clean(seed: u64) {
        let mut dice = dice(seed);
        let topology = fabric(&mut dice);
        let intents = random_intents(&mut dice, &topology);
        let plan = planned(&topology, &intents);
        prop_assert_eq!(unexpected(&topology, &intents, &plan), []);
        let shared = shared(&mut dice, &topology, &plan);
        prop_assert_eq!(unexpected(&topology, &intents, &shared), []);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Clusters on ports of their own, as many as the fabric admits.
    #[test]
    fn guaranteed_clusters_verify_clean(seed: u64, bandwidth in 0u64..4_000_000_000) {
        let mut dice = dice(seed);
        let topology = fabric(&mut dice);
        let mut intents = tenants(&mut dice, &topology);
        let mut free = hosts(&topology);
        while free.len() >= 4 {
            let ports: Vec<_> = free.drain(..dice.random_range(1..=4)).collect();
            let latency_ns = (below(&mut dice, 3) == 0).then(|| dice.random_range(10_000..2_000_000));
            add_cluster(&mut intents, format!("c{}", free.len()), ports, bandwidth, latency_ns);
            match compile(&topology, &intents, &Decisions::default()) {
                Ok(plan) => prop_assert_eq!(unexpected(&topology, &intents, &plan), []),
                Err(error) => {
                    prop_assert!(matches!(error, CompileError::NotAdmitted { .. }), "{}", error);
                    intents.clusters.pop();
                }
            }
        }
    }
}

/// A fabric that often has no switch above all adapters.
fn without_apex(dice: &mut Pcg64Mcg) -> Topology {
    let mut up_to = |most: usize| 1 + below(dice, most);
    let topology = match up_to(4) {
        1 | 2 => {
            let (groups, leaves, spines) = (1 + up_to(6), up_to(3), up_to(4));
            let fly = DragonflyPlus::new(groups as u16);
            let global_links = up_to(3) as u8;
            let (leaves, spines) = (leaves as u8, spines as u8);
            DragonflyPlus { leaves, spines, hosts_per_leaf: 2, global_links, ..fly }.generate()
        }
        3 => FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(2 + up_to(6) as u16)) }.generate(),
        _ => FatTree { radix: 8, ..FatTree::new(FatTreeSize::Leaves(1 + up_to(7) as u16)) }.generate(),
    };
    let topology = topology.unwrap();
    let is_switch = |end: fabric_model::Endpoint| topology[end.node].is_switch();
    let cables = topology.links().filter(|link| is_switch(link.a) && is_switch(link.b)).count();
    let spare = cables + 1 - topology.switches().count();
    let missing = below(dice, spare + 1);
    without_links(topology, missing, dice.random()).unwrap()
}

/// Seeds with which recompiling a plan from its own decisions once gave another plan: the first on the whole fabric,
/// the second after the loss of a cable.
const FAILED: [u64; 2] = [3_865_929_656_842_663_470, 10_779_652_423_062_082_296];

/// Checks groups on a fabric of [`without_apex`], also after the loss of one more cable.
fn check_groups(seed: u64) -> Result<(), TestCaseError> {
    let mut dice = dice(seed);
    let topology = without_apex(&mut dice);
    let hosts = hosts(&topology);
    let mut intents = Intents::new(hosts[0]);
    for number in 0..3 {
        let members: Vec<_> = hosts.iter().filter(|_| number == 0 || below(&mut dice, 3) == 0).collect();
        let member = |guid: &&Guid| Member {
            selector: MemberSelector::Port(**guid),
            role: Role::Full,
            placement: PkeyPlacement::Anywhere,
        };
        let (name, members) = (format!("p{number}"), members.iter().map(member).collect());
        let ipoib = Some(Ipoib::default());
        intents.partitions.push(PartitionIntent { name, number: None, members, ipoib });
    }
    let judge = |topology: &Topology, plan: &FabricPlan| {
        prop_assert_eq!(unexpected(topology, &intents, plan), []);
        prop_assert_eq!(&compile(topology, &intents, plan.decisions()).unwrap(), plan);
        Ok(())
    };
    let plan = planned(&topology, &intents);
    judge(&topology, &plan)?;
    // One more cable is lost; the decisions are kept.
    if let Ok(cut) = without_links(topology, 1, seed)
        && let Ok(after) = compile(&cut, &intents, plan.decisions())
    {
        judge(&cut, &after)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn multicast_trees_have_no_cycle_without_a_common_root(seed: u64) {
        check_groups(seed)?;
    }
}

#[test]
fn multicast_trees_of_former_failures_have_no_cycle() {
    for seed in FAILED {
        check_groups(seed).unwrap();
    }
}

#[test]
fn larger_fabrics_verify_clean() {
    let fabrics = [
        FatTree::with_hosts(324).generate().unwrap(),
        without_links(FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(8)) }.generate().unwrap(), 20, 5)
            .unwrap(),
        Torus::new([5, 4, 3]).generate().unwrap(),
        DragonflyPlus::new(5).generate().unwrap(),
    ];
    for topology in fabrics {
        let intents = Intents::new(hosts(&topology)[0]);
        let plan = planned(&topology, &intents);
        assert_eq!(verify(&topology, &intents, &plan), []);
    }
}
