//! Shared by tests of clusters: a small tree, cluster intents, and unexpected findings.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "every test binary uses its own part")]

use std::sync::Arc;

use fabric_model::generate::FatTree;
use fabric_model::intent::ClusterIntent;
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{FabricPlan, Intents, Topology};
use fabric_verifier::{is_acknowledged, verify};
use ib_wire::Guid;

pub const GIGABIT: u64 = 1_000_000_000;

/// Eight leaves of four hosts below four spines.
pub fn tree() -> Arc<Topology> {
    Arc::new(FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap())
}

/// The first port of every host.
pub fn ports(topology: &Topology) -> Vec<Guid> {
    topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect()
}

/// A cluster with a guarantee of `bits_per_s` per host.
pub fn cluster(name: &str, ports: &[Guid], bits_per_s: u64) -> ClusterIntent {
    let class = Class::Guaranteed { bandwidth: Bandwidth::from_bits_per_s(bits_per_s), latency_ns: None };
    ClusterIntent { name: name.to_owned(), ports: ports.to_vec(), class, sl_mode: SlMode::Cluster }
}

/// Findings of the verifier that the plan does not report itself.
pub fn unexpected(topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Vec<String> {
    let findings = verify(topology, intents, plan);
    findings.iter().filter(|finding| !is_acknowledged(finding, plan)).map(ToString::to_string).collect()
}
