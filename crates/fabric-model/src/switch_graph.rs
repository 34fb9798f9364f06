//! What kind of graph the switches form: neighbours, tiers, components, distances.

use std::collections::{BTreeMap, VecDeque};

use crate::topology::{NodeIndex, Topology};

/// Switches up to which the diameter is worked out: one search per switch, 0.1 s at this size.
const DIAMETER_SWITCHES_MAX: usize = 4096;

/// A switch with fewer hosts than this share of the fullest one's may be a spine that serves a few service nodes.
const LEAF_SHARE: u32 = 4;

/// The index of a switch in [`SwitchGraph::switches`].
pub type SwitchIndex = usize;

/// The switches of a fabric and what is cabled to each, parallel cables counted.
#[derive(Debug)]
pub struct SwitchGraph {
    /// The switches in file order.
    pub switches: Vec<NodeIndex>,
    /// Each switch's neighbours in order, with the number of cables.
    pub neighbours: Vec<Vec<(SwitchIndex, u32)>>,
    /// Each switch's adapters and routers, one entry per cable.
    pub hosts: Vec<Vec<NodeIndex>>,
}

impl SwitchGraph {
    pub fn of(topology: &Topology) -> Self {
        let switches: Vec<NodeIndex> = topology.switches().map(|(index, _)| index).collect();
        let mut places = vec![None; topology.node_count()];
        for (place, switch) in switches.iter().enumerate() {
            places[switch.index()] = Some(place);
        }
        let mut graph = Self { switches, neighbours: Vec::new(), hosts: Vec::new() };
        for switch in &graph.switches {
            let (mut cables, mut hosts) = (BTreeMap::new(), Vec::new());
            for (_, peer) in topology[*switch].cabled_ports() {
                match places[peer.node.index()] {
                    Some(place) => *cables.entry(place).or_insert(0) += 1,
                    None => hosts.push(peer.node),
                }
            }
            graph.neighbours.push(cables.into_iter().collect());
            graph.hosts.push(hosts);
        }
        graph
    }

    pub fn switch_count(&self) -> usize {
        self.switches.len()
    }

    /// Each switch's tier, leaves being 1, if every cable joins a tier to the next: a tree in the wide sense.
    pub fn tiers(&self) -> Option<Vec<u8>> {
        let host_count = |place: SwitchIndex| self.hosts[place].len() as u32;
        let fullest = (0..self.switch_count()).map(host_count).max().unwrap_or(0);
        let leaves =
            |at_least: u32| (0..self.switch_count()).filter(move |place| host_count(*place) >= at_least);
        self.tiers_over(leaves(1)).or_else(|| self.tiers_over(leaves((fullest / LEAF_SHARE).max(1))))
    }

    /// The components that are left when only some cables count; each island in order, the components by their first switch.
    pub fn components(&self, counts: impl Fn(SwitchIndex, SwitchIndex) -> bool) -> Vec<Vec<SwitchIndex>> {
        let mut seen = vec![false; self.switch_count()];
        let mut components = Vec::new();
        for start in 0..self.switch_count() {
            if std::mem::replace(&mut seen[start], true) {
                continue;
            }
            let mut island = vec![start];
            let mut next = 0;
            while let Some(&here) = island.get(next) {
                next += 1;
                for &(there, _) in &self.neighbours[here] {
                    if counts(here, there) && !std::mem::replace(&mut seen[there], true) {
                        island.push(there);
                    }
                }
            }
            island.sort_unstable();
            components.push(island);
        }
        components
    }

    /// The most switch-to-switch cables a packet between two hosts must pass; `None` if some cannot reach each other
    /// or there are too many switches to tell.
    pub fn diameter(&self) -> Option<u32> {
        if self.switch_count() > DIAMETER_SWITCHES_MAX {
            return None;
        }
        let ends: Vec<SwitchIndex> =
            (0..self.switch_count()).filter(|place| !self.hosts[*place].is_empty()).collect();
        let mut farthest = None;
        for &end in &ends {
            let distances = self.distances([end]);
            for &other in &ends {
                farthest = farthest.max(Some(distances[other]?));
            }
        }
        farthest
    }

    /// How far each switch is from the nearest of some.
    fn distances(&self, from: impl IntoIterator<Item = SwitchIndex>) -> Vec<Option<u32>> {
        let mut distances = vec![None; self.switch_count()];
        let mut queue = VecDeque::new();
        for place in from {
            distances[place] = Some(0);
            queue.push_back((place, 0));
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
