//! Random streams of clusters, and the fat-trees they are placed on.

use std::sync::Arc;

use anyhow::Context;
use fabric_compiler::compile;
use fabric_compiler::tenancy::link_graph::{LinkGraph, TenancyLimits};
use fabric_model::generate::{FatTree, FatTreeSize};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use rand::Rng;
use rand_pcg::Pcg64;

/// A fat-tree with its routing plan.
pub struct PlannedTree {
    topology: Topology,
    plan: FabricPlan,
}

impl PlannedTree {
    /// The tree for `hosts` hosts: up to 648 in two tiers of 36-port switches, up to 1,728 in three tiers of 24-port
    /// switches, more in three tiers of 36-port switches.
    pub fn with_hosts(hosts: u32) -> anyhow::Result<Self> {
        let (radix, levels) = match hosts {
            0..=648 => (36, 2),
            649..=1728 => (24, 3),
            _ => (36, 3),
        };
        let size = FatTreeSize::Hosts { hosts, tiers: Some(levels) };
        let topology = FatTree { radix, ..FatTree::new(size) }.generate()?;
        let (_, host) = topology.end_nodes().next().context("a tree without hosts")?;
        let (_, port) = host.ports().next().context("a host without ports")?;
        let plan = compile(&topology, &Intents::new(port.guid), &Decisions::default())?;
        Ok(Self { topology, plan })
    }

    /// The tree with so many lanes for guaranteed clusters on every link.
    pub fn graph(&self, lanes: u8) -> Arc<LinkGraph> {
        let limits = TenancyLimits { lanes: Some(lanes), ..TenancyLimits::default() };
        Arc::new(LinkGraph::of(&self.topology, &self.plan, limits))
    }
}

/// A number from 0 to 1, without 0.
pub fn unit(random: &mut Pcg64) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// An exponential size, rounded; at least 1 and at most `most`.
pub fn size(random: &mut Pcg64, mean: f64, most: usize) -> usize {
    ((-mean * unit(random).ln()).round() as usize).clamp(1, most)
}
