//! Compiled plans keep every rule, on fabrics of every kind.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use fabric_compiler::{CompileError, compile};
use fabric_model::generate::{DragonflyPlus, FatTree, FatTreeSize, Torus, without_links};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use fabric_verifier::{Finding, is_told, verify};
use proptest::prelude::*;
use rand::RngExt;
use world::{add_cluster, below, dice, fabric, hosts, planned, shared, tenants, wishes};

/// What is found besides what the plan says of itself.
fn unexpected(topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Vec<Finding> {
    let mut findings = verify(topology, intents, plan);
    findings.retain(|finding| !is_told(finding, plan));
    findings
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn compiled_plans_verify_clean(seed: u64) {
        let mut dice = dice(seed);
        let topology = fabric(&mut dice);
        let intents = wishes(&mut dice, &topology);
        let plan = planned(&topology, &intents);
        prop_assert_eq!(unexpected(&topology, &intents, &plan), []);
        let shared = shared(&mut dice, &topology, &plan);
        prop_assert_eq!(unexpected(&topology, &intents, &shared), []);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Clusters on ports of their own, as many as the fabric can promise something.
    #[test]
    fn what_clusters_are_promised_verifies_clean(seed: u64, bandwidth in 0u64..4_000_000_000) {
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
