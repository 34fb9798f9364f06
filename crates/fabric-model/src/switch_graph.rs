//! The graph of switches: neighbours, tiers, connected components, distances.

use std::collections::{BTreeMap, VecDeque};

use crate::topology::{NodeIndex, Topology};

/// Largest number of switches for which the diameter is computed: one search per switch, 0.1 s at this size.
const DIAMETER_SWITCHES_MAX: usize = 4096;

/// A switch with less than 1/4 of the hosts of the fullest switch may be a spine with a few service nodes.
const LEAF_SHARE: u32 = 4;

/// The index of a switch in [`SwitchGraph::switches`].
pub type SwitchIndex = usize;

/// The switches of a fabric as a graph, with the number of parallel cables between neighbours.
#[derive(Debug)]
pub struct SwitchGraph {
    /// Node indices of the switches, in file order.
    pub switches: Vec<NodeIndex>,
    /// Neighbours of each switch in order, with the number of cables to each.
    pub neighbours: Vec<Vec<(SwitchIndex, u32)>>,
    /// Adapters and routers at each switch, one entry per cable.
    pub hosts: Vec<Vec<NodeIndex>>,
}

impl SwitchGraph {
    /// Builds the graph of a topology.
    pub fn of(topology: &Topology) -> Self {
        let switches: Vec<NodeIndex> = topology.switches().map(|(index, _)| index).collect();
        let mut indices = vec![None; topology.node_count()];
        for (index, switch) in switches.iter().enumerate() {
            indices[switch.index()] = Some(index);
        }
        let mut graph = Self { switches, neighbours: Vec::new(), hosts: Vec::new() };
        for switch in &graph.switches {
            let (mut cables, mut hosts) = (BTreeMap::new(), Vec::new());
            for (_, peer) in topology[*switch].cabled_ports() {
                match indices[peer.node.index()] {
                    Some(index) => *cables.entry(index).or_insert(0) += 1,
                    None => hosts.push(peer.node),
                }
            }
            graph.neighbours.push(cables.into_iter().collect());
            graph.hosts.push(hosts);
        }
        graph
    }

    /// The number of switches in the graph.
    pub fn switch_count(&self) -> usize {
        self.switches.len()
    }

    /// The tier of each switch, counted from 1 at the leaves: its distance from the nearest leaf plus 1. `None` unless every
    /// cable joins adjacent tiers.
    ///
    /// Leaves are the switches with hosts. If that gives no tiers, only switches with at least a quarter of the hosts of
    /// the fullest switch count as leaves, so that a few hosts at a spine do no harm.
    pub fn tiers(&self) -> Option<Vec<u8>> {
        let host_count = |switch: SwitchIndex| self.hosts[switch].len() as u32;
        let fullest = (0..self.switch_count()).map(host_count).max().unwrap_or(0);
        let leaves =
            |at_least: u32| (0..self.switch_count()).filter(move |switch| host_count(*switch) >= at_least);
        self.tiers_over(leaves(1)).or_else(|| self.tiers_over(leaves((fullest / LEAF_SHARE).max(1))))
    }

    /// Connected components of the graph with only the cables for which `keep` is true. Each component is sorted; the
    /// components are sorted by their first switch.
    pub fn components(&self, keep: impl Fn(SwitchIndex, SwitchIndex) -> bool) -> Vec<Vec<SwitchIndex>> {
        let mut visited = vec![false; self.switch_count()];
        let mut components = Vec::new();
        for start in 0..self.switch_count() {
            if std::mem::replace(&mut visited[start], true) {
                continue;
            }
            let mut component = vec![start];
            let mut next = 0;
            while let Some(&here) = component.get(next) {
                next += 1;
                for &(there, _) in &self.neighbours[here] {
                    if keep(here, there) && !std::mem::replace(&mut visited[there], true) {
                        component.push(there);
                    }
                }
            }
            component.sort_unstable();
            components.push(component);
        }
        components
    }

    /// Largest number of switch-to-switch cables on a shortest path between two hosts, by breadth-first search from every
    /// switch with hosts. `None` if some hosts cannot reach each other, there are no hosts, or there are more than 4096
    /// switches.
    pub fn diameter(&self) -> Option<u32> {
        if self.switch_count() > DIAMETER_SWITCHES_MAX {
            return None;
        }
        let ends: Vec<SwitchIndex> =
            (0..self.switch_count()).filter(|switch| !self.hosts[*switch].is_empty()).collect();
        let mut farthest = None;
        for &end in &ends {
            let distances = self.distances([end]);
            for &other in &ends {
                farthest = farthest.max(Some(distances[other]?));
            }
        }
        farthest
    }

    /// Distance of each switch from the nearest of `from`; `None` if none is reachable.
    fn distances(&self, from: impl IntoIterator<Item = SwitchIndex>) -> Vec<Option<u32>> {
        let mut distances = vec![None; self.switch_count()];
        let mut queue = VecDeque::new();
        for switch in from {
            distances[switch] = Some(0);
            queue.push_back((switch, 0));
        }
        while let Some((here, distance)) = queue.pop_front() {
            for &(there, _) in &self.neighbours[here] {
                if distances[there].is_none() {
                    distances[there] = Some(distance + 1);
                    queue.push_back((there, distance + 1));
                }
            }
        }
        distances
    }

    fn tiers_over(&self, leaves: impl Iterator<Item = SwitchIndex>) -> Option<Vec<u8>> {
        let distances = self.distances(leaves);
        let tiers = distances.into_iter().map(|distance| u8::try_from(distance? + 1).ok());
        let tiers: Vec<u8> = tiers.collect::<Option<_>>()?;
        let adjacent = |here: SwitchIndex| {
            self.neighbours[here].iter().all(|(there, _)| tiers[here].abs_diff(tiers[*there]) == 1)
        };
        ((0..self.switch_count()).all(adjacent) && !tiers.is_empty()).then_some(tiers)
    }
}
