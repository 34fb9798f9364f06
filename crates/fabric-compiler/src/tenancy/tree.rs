//! Paths through a regular tree of two or three tiers.
//!
//! The up-ports of leaves are numbered. Those with the same number, in all leaves of a pod, lead to the same switch. With
//! three tiers the same holds for the up-ports of pod switches: those with the same numbers lead to the same core switch
//! from every pod. So one up-port number per tier defines the whole forwarding column of a destination: the path to it from
//! every host. Such trees are extended generalised fat trees (XGFT, Öhring et al.).

use std::collections::{BTreeMap, BTreeSet};

use super::link_graph::{HostIndex, LinkGraph, LinkIndex};

/// The up-ports that packets to a destination take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UpPorts {
    /// The number of the up-port at leaves.
    pub leaf_up: u8,
    /// The number of the up-port at pod switches; 0 with two tiers.
    pub pod_up: u8,
}

/// A regular tree of switches with hosts at its leaves.
#[derive(Clone, Debug)]
pub struct RegularTree {
    /// The number of up-ports of a leaf.
    pub leaf_ups: usize,
    /// The number of up-ports of a pod switch; 1 with two tiers, where it is not used.
    pub pod_ups: usize,
    pub leaves: usize,
    /// The number of pods; 1 with two tiers.
    pub pods: usize,
    leaf_of: Vec<u32>,
    pod_of: Vec<u32>,
    hosts: Vec<Vec<HostIndex>>,
    leaves_of: Vec<Vec<u32>>,
    /// By leaf and up-port.
    leaf_up: Vec<LinkIndex>,
    leaf_down: Vec<LinkIndex>,
    /// By pod, up-port of its leaves, and up-port of the switch there.
    pod_up: Vec<LinkIndex>,
    pod_down: Vec<LinkIndex>,
}

/// An up-port: the link up, the link down, and the index of the switch above.
type Up = (LinkIndex, LinkIndex, u32);

impl RegularTree {
    /// The tree that the switches form; `None` if they form no regular tree.
    pub(super) fn of(graph: &LinkGraph) -> Option<Self> {
        let with_hosts: BTreeSet<u32> = graph.hosts().iter().map(|host| host.switch_index()).collect();
        let leaves: Vec<u32> = with_hosts.iter().copied().collect();
        let ups: Vec<Vec<Up>> =
            leaves.iter().map(|leaf| ups(graph, *leaf, |_| true)).collect::<Option<_>>()?;
        let leaf_ups = ups.first()?.len();
        let mut pods: Vec<Vec<u32>> = Vec::new();
        let mut pod_of = Vec::new();
        for ports in &ups {
            let above: Vec<u32> = ports.iter().map(|(_, _, switch)| *switch).collect();
            if above.len() != leaf_ups
                || leaf_ups == 0
                || above.iter().any(|switch| with_hosts.contains(switch))
            {
                return None;
            }
            let known = pods.iter().position(|pod| *pod == above);
            pod_of.push(known.unwrap_or(pods.len()) as u32);
            if known.is_none() {
                pods.push(above);
            }
        }
        let distinct: BTreeSet<u32> = pods.iter().flatten().copied().collect();
        if distinct.len() != pods.iter().map(|pod| pod.iter().collect::<BTreeSet<_>>().len()).sum::<usize>() {
            return None;
        }
        let (pod_ups, upper) =
            if pods.len() == 1 { (1, Vec::new()) } else { uppers(graph, &pods, &with_hosts)? };
        let number: BTreeMap<u32, u32> = leaves.iter().copied().zip(0..).collect();
        let leaf_of: Vec<u32> = graph.hosts().iter().map(|host| number[&host.switch_index()]).collect();
        let mut hosts = vec![Vec::new(); leaves.len()];
        for (host, leaf) in (0..).map(HostIndex).zip(&leaf_of) {
            hosts[*leaf as usize].push(host);
        }
        let mut leaves_of = vec![Vec::new(); pods.len()];
        for (leaf, pod) in (0..).zip(&pod_of) {
            leaves_of[*pod as usize].push(leaf);
        }
        Some(Self {
            leaf_ups,
            pod_ups,
            leaves: leaves.len(),
            pods: pods.len(),
            leaf_of,
            pod_of,
            hosts,
            leaves_of,
            leaf_up: ups.iter().flatten().map(|(up, _, _)| *up).collect(),
            leaf_down: ups.iter().flatten().map(|(_, down, _)| *down).collect(),
            pod_up: upper.iter().map(|(up, _, _)| *up).collect(),
            pod_down: upper.iter().map(|(_, down, _)| *down).collect(),
        })
    }

    #[inline]
    pub fn leaf_of(&self, host: HostIndex) -> usize {
        self.leaf_of[host.index()] as usize
    }

    #[inline]
    pub fn pod_of(&self, leaf: usize) -> usize {
        self.pod_of[leaf] as usize
    }

    pub fn hosts_of(&self, leaf: usize) -> &[HostIndex] {
        &self.hosts[leaf]
    }

    pub fn leaves_of(&self, pod: usize) -> &[u32] {
        &self.leaves_of[pod]
    }

    /// The link up from a leaf by an up-port.
    #[inline]
    pub fn leaf_up(&self, leaf: usize, up: usize) -> LinkIndex {
        self.leaf_up[leaf * self.leaf_ups + up]
    }

    /// The link down to a leaf, opposite to [`Self::leaf_up`].
    #[inline]
    pub fn leaf_down(&self, leaf: usize, up: usize) -> LinkIndex {
        self.leaf_down[leaf * self.leaf_ups + up]
    }

    /// The link up from the switch of a pod that is behind `ports.leaf_up`, by its up-port `ports.pod_up`.
    #[inline]
    pub fn pod_up(&self, pod: usize, ports: UpPorts) -> LinkIndex {
        self.pod_up[self.position(pod, ports)]
    }

    /// The link down opposite to [`Self::pod_up`].
    #[inline]
    pub fn pod_down(&self, pod: usize, ports: UpPorts) -> LinkIndex {
        self.pod_down[self.position(pod, ports)]
    }

    /// Visits the links from one leaf to another by the given up-ports; none if the leaves are the same.
    pub fn between(&self, from: usize, to: usize, ports: UpPorts, mut visit: impl FnMut(LinkIndex)) {
        if from == to {
            return;
        }
        visit(self.leaf_up(from, ports.leaf_up.into()));
        let (from_pod, to_pod) = (self.pod_of(from), self.pod_of(to));
        if from_pod != to_pod {
            visit(self.pod_up(from_pod, ports));
            visit(self.pod_down(to_pod, ports));
        }
        visit(self.leaf_down(to, ports.leaf_up.into()));
    }

    #[inline]
    fn position(&self, pod: usize, ports: UpPorts) -> usize {
        (pod * self.leaf_ups + usize::from(ports.leaf_up)) * self.pod_ups + usize::from(ports.pod_up)
    }
}

/// The up-ports of a switch, by port number; `None` if a link has no opposite direction.
fn ups(graph: &LinkGraph, switch: u32, is_above: impl Fn(u32) -> bool) -> Option<Vec<Up>> {
    let above = graph.cables(switch).filter(|(_, _, there)| is_above(*there));
    above.map(|(_, up, there)| Some((up, graph.reverse(up)?, there))).collect()
}

/// The number of up-ports that each pod switch has, and those of all pods; `None` if they are not regular.
fn uppers(graph: &LinkGraph, pods: &[Vec<u32>], leaves: &BTreeSet<u32>) -> Option<(usize, Vec<Up>)> {
    let mut upper: Vec<Up> = Vec::new();
    let mut count = None;
    for pod in pods {
        for (number, switch) in pod.iter().enumerate() {
            let ports = ups(graph, *switch, |there| !leaves.contains(&there))?;
            let above = |ports: &[Up]| ports.iter().map(|(_, _, there)| *there).collect::<Vec<_>>();
            let count = *count.get_or_insert(ports.len());
            // The same numbers must lead to the same switches from every pod.
            let first = upper.get(number * count..(number + 1) * count);
            if ports.len() != count || count == 0 || first.is_some_and(|first| above(first) != above(&ports))
            {
                return None;
            }
            upper.extend(ports);
        }
    }
    Some((count?, upper))
}
