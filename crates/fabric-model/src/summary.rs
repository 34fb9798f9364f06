//! [`TopologySummary`]: counts, rates and shape of a topology.

use std::collections::BTreeMap;
use std::fmt;

use ib_wire::NodeKind;
use serde::Serialize;

use crate::link_rate::LinkRate;
use crate::switch_graph::SwitchGraph;
use crate::topology::{Link, Topology};

/// Number of links that run at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RateCount {
    /// `None` if the file does not give the rate.
    pub rate: Option<LinkRate>,
    pub links: usize,
}

/// Counts, rates and shape of a topology. Prints as a few lines of text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopologySummary {
    pub switches: usize,
    pub adapters: usize,
    pub routers: usize,
    /// External ports of all nodes: port 0 of switches is not counted.
    pub ports: usize,
    pub links: usize,
    /// Links between two switches.
    pub switch_links: usize,
    /// Links by rate, unknown rates first, then from the slowest to the fastest.
    pub links_by_rate: Vec<RateCount>,
    /// Connected components of the graph of switches; 1 if the fabric is connected.
    pub components: usize,
    /// Number of tiers of switches, if every cable joins adjacent tiers: a tree with any number of roots.
    pub tiers: Option<u8>,
    /// Largest number of switch-to-switch cables on a shortest path between two hosts. `None` if some hosts cannot reach
    /// each other, there are no hosts, or there are more than 4096 switches.
    pub diameter: Option<u32>,
    /// Largest ratio, over all tiers but the top, of capacity towards the hosts to capacity towards the roots. 1 is full
    /// bisection. An estimate: it compares sums of link rates, not paths. `None` if the fabric is not a tree.
    pub oversubscription: Option<f64>,
}

impl TopologySummary {
    /// Computes the summary of a topology. The diameter costs one breadth-first search per switch with hosts.
    pub fn of(topology: &Topology) -> Self {
        let graph = SwitchGraph::of(topology);
        let tiers = graph.tiers();
        let kind = |kind| topology.nodes().filter(|(_, node)| node.kind == kind).count();
        let between_switches =
            |link: &Link| topology[link.a.node].is_switch() && topology[link.b.node].is_switch();
        Self {
            switches: graph.switch_count(),
            adapters: kind(NodeKind::Adapter),
            routers: kind(NodeKind::Router),
            ports: topology.nodes().map(|(_, node)| usize::from(node.port_count())).sum(),
            links: topology.links().count(),
            switch_links: topology.links().filter(between_switches).count(),
            links_by_rate: links_by_rate(topology),
            components: graph.components(|_, _| true).len(),
            diameter: graph.diameter(),
            oversubscription: tiers.as_ref().and_then(|tiers| oversubscription(topology, &graph, tiers)),
            tiers: tiers.and_then(|tiers| tiers.into_iter().max()),
        }
    }
}

fn links_by_rate(topology: &Topology) -> Vec<RateCount> {
    let mut counts = BTreeMap::new();
    for link in topology.links() {
        *counts.entry(link.rate).or_insert(0) += 1;
    }
    counts.into_iter().map(|(rate, links)| RateCount { rate, links }).collect()
}

/// The largest ratio of downward to upward capacity of a tier.
fn oversubscription(topology: &Topology, graph: &SwitchGraph, tiers: &[u8]) -> Option<f64> {
    let mut tier_of = vec![0; topology.node_count()];
    for (switch, tier) in graph.switches.iter().zip(tiers) {
        tier_of[switch.index()] = *tier;
    }
    let top = usize::from(*tiers.iter().max()?);
    let (mut below, mut above) = (vec![0.0; top + 1], vec![0.0; top + 1]);
    for link in topology.links() {
        let (a, b) = (tier_of[link.a.node.index()], tier_of[link.b.node.index()]);
        let capacity = link.rate.map_or(1.0, LinkRate::data_rate_gbps);
        above[usize::from(a.min(b))] += capacity;
        below[usize::from(a.max(b))] += capacity;
    }
    (1..top).map(|tier| below[tier] / above[tier]).max_by(f64::total_cmp)
}

impl fmt::Display for TopologySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "switches          {}", self.switches)?;
        writeln!(f, "adapters          {}", self.adapters)?;
        if self.routers > 0 {
            writeln!(f, "routers           {}", self.routers)?;
        }
        writeln!(f, "ports             {}, {} of them cabled", self.ports, 2 * self.links)?;
        writeln!(f, "links             {}, {} of them between switches", self.links, self.switch_links)?;
        for RateCount { rate, links } in &self.links_by_rate {
            match rate {
                Some(rate) => writeln!(
                    f,
                    "  {:<15} {links} ({:.0} Gb/s each)",
                    rate.to_string(),
                    rate.data_rate_gbps()
                )?,
                None => writeln!(f, "  unknown rate    {links}")?,
            }
        }
        if self.components != 1 {
            writeln!(f, "components        {}", self.components)?;
        }
        match self.tiers {
            Some(tiers) => writeln!(f, "tiers             {tiers}")?,
            None => writeln!(f, "tiers             none: not a tree")?,
        }
        if let Some(diameter) = self.diameter {
            writeln!(f, "diameter          {diameter} hops between switches")?;
        }
        if let Some(ratio) = self.oversubscription {
            writeln!(f, "oversubscription  {ratio:.2}:1")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{DragonflyPlus, FatTree, FatTreeSize, RandomFabric, Torus};

    #[test]
    fn the_diameter_of_a_tree_is_twice_its_height() {
        for (hosts, tiers, diameter) in [(324, 2, 2), (1944, 3, 4)] {
            let summary = TopologySummary::of(&FatTree::with_hosts(hosts).generate().unwrap());
            assert_eq!((summary.tiers, summary.diameter), (Some(tiers), Some(diameter)));
            assert_eq!(summary.oversubscription, Some(1.0));
            assert_eq!(summary.components, 1);
        }
    }

    #[test]
    fn oversubscription_is_reported() {
        let tree =
            FatTree { oversubscription: "2:1".parse().unwrap(), ..FatTree::new(FatTreeSize::Leaves(18)) };
        assert_eq!(TopologySummary::of(&tree.generate().unwrap()).oversubscription, Some(2.0));
    }

    #[test]
    fn fabrics_that_are_not_trees_have_no_tiers() {
        let torus = TopologySummary::of(&Torus::new([4, 4]).generate().unwrap());
        assert_eq!((torus.tiers, torus.diameter, torus.oversubscription), (None, Some(4), None));
        let dragonfly = TopologySummary::of(&DragonflyPlus::new(5).generate().unwrap());
        assert_eq!((dragonfly.tiers, dragonfly.components), (None, 1));
        let random = TopologySummary::of(&RandomFabric::new(20, 4, 7).generate().unwrap());
        assert_eq!((random.tiers, random.components), (None, 1));
    }

    #[test]
    fn an_empty_fabric_has_a_summary() {
        let summary = TopologySummary::of(&Topology::default());
        assert_eq!(
            (summary.switches, summary.components, summary.tiers, summary.diameter),
            (0, 0, None, None)
        );
    }

    #[test]
    fn the_text_shows_counts_rates_and_shape() {
        let tree = FatTree::with_hosts(324).generate().unwrap();
        insta::assert_snapshot!(TopologySummary::of(&tree), @r"
        switches          27
        adapters          324
        ports             1296, 1296 of them cabled
        links             648, 324 of them between switches
          4xEDR           648 (100 Gb/s each)
        tiers             2
        diameter          2 hops between switches
        oversubscription  1.00:1
        ");
    }
}
