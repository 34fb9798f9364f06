//! Ways through a regular tree of two or three levels.
//!
//! The up-ports of leaves are numbered; those with the same number, in all leaves of a pod, lead to the same switch. So
//! do, with three levels, the up-ports of pods' switches. Whoever chooses an up-port number at each level for a
//! destination has chosen its whole column: where packets to it pass, from everywhere.

use std::collections::{BTreeMap, BTreeSet};

use super::network::{HostIndex, LinkIndex, Network};

/// A way to a destination: which up-ports packets to it take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Way {
    /// The up-port of leaves.
    pub leaf_up: u8,
    /// The up-port of pods' switches; 0 with two levels.
    pub pod_up: u8,
}

/// A regular tree.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Up-ports of a leaf.
    pub leaf_ups: usize,
    /// Up-ports of a pod's switch; 1 with two levels, where none is used.
    pub pod_ups: usize,
    /// Leaves.
    pub leaves: usize,
    /// Pods; 1 with two levels.
    pub pods: usize,
    /// By host.
    leaf_of: Vec<u32>,
    /// By leaf.
    pod_of: Vec<u32>,
    /// The hosts of each leaf.
    hosts: Vec<Vec<HostIndex>>,
    /// The leaves of each pod.
    leaves_of: Vec<Vec<u32>>,
    /// By leaf and up-port: from the leaf, and back to it.
    leaf_up: Vec<LinkIndex>,
    leaf_down: Vec<LinkIndex>,
    /// By pod, leaves' up-port and up-port.
    pod_up: Vec<LinkIndex>,
    pod_down: Vec<LinkIndex>,
}

/// An up-port: the link up, the link down, and the switch above.
type Up = (LinkIndex, LinkIndex, u32);

impl Tree {
    /// The tree that the switches form, if they form a regular one.
    pub(super) fn of(network: &Network) -> Option<Self> {
        let with_hosts: BTreeSet<u32> = network.hosts().iter().map(|host| host.switch_place()).collect();
        let leaves: Vec<u32> = with_hosts.iter().copied().collect();
        let ups: Vec<Vec<Up>> =
            leaves.iter().map(|leaf| ups(network, *leaf, |_| true)).collect::<Option<_>>()?;
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
            if pods.len() == 1 { (1, Vec::new()) } else { uppers(network, &pods, &with_hosts)? };
        let number: BTreeMap<u32, u32> = leaves.iter().copied().zip(0..).collect();
        let leaf_of: Vec<u32> = network.hosts().iter().map(|host| number[&host.switch_place()]).collect();
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

    /// The leaf of a host.
    #[inline]
    pub fn leaf_of(&self, host: HostIndex) -> usize {
        self.leaf_of[host.index()] as usize
    }

    /// The pod of a leaf.
    #[inline]
    pub fn pod_of(&self, leaf: usize) -> usize {
        self.pod_of[leaf] as usize
    }

    /// The hosts of a leaf.
    pub fn hosts_of(&self, leaf: usize) -> &[HostIndex] {
        &self.hosts[leaf]
    }

    /// The leaves of a pod.
    pub fn leaves_of(&self, pod: usize) -> &[u32] {
        &self.leaves_of[pod]
    }

    /// From a leaf by an up-port.
    #[inline]
    pub fn leaf_up(&self, leaf: usize, up: usize) -> LinkIndex {
        self.leaf_up[leaf * self.leaf_ups + up]
    }

    /// To a leaf from behind its up-port.
    #[inline]
    pub fn leaf_down(&self, leaf: usize, up: usize) -> LinkIndex {
        self.leaf_down[leaf * self.leaf_ups + up]
    }

    /// From a pod, behind an up-port of its leaves, by an up-port of that switch.
    #[inline]
    pub fn pod_up(&self, pod: usize, way: Way) -> LinkIndex {
        self.pod_up[self.place(pod, way)]
    }

    /// To a pod's switch behind an up-port of its leaves, from behind an up-port of that switch.
    #[inline]
    pub fn pod_down(&self, pod: usize, way: Way) -> LinkIndex {
        self.pod_down[self.place(pod, way)]
    }

    /// The links from a leaf to another leaf by a way; none if they are one.
    pub fn between(&self, from: usize, to: usize, way: Way, mut visit: impl FnMut(LinkIndex)) {
        if from == to {
            return;
        }
        visit(self.leaf_up(from, way.leaf_up.into()));
        let (from_pod, to_pod) = (self.pod_of(from), self.pod_of(to));
        if from_pod != to_pod {
            visit(self.pod_up(from_pod, way));
            visit(self.pod_down(to_pod, way));
        }
        visit(self.leaf_down(to, way.leaf_up.into()));
    }

    #[inline]
    fn place(&self, pod: usize, way: Way) -> usize {
        (pod * self.leaf_ups + usize::from(way.leaf_up)) * self.pod_ups + usize::from(way.pod_up)
    }
}

/// The cables from a switch to switches above, by port; `None` if one has no way back.
fn ups(network: &Network, switch: u32, is_above: impl Fn(u32) -> bool) -> Option<Vec<Up>> {
    let above = network.cables(switch).filter(|(_, _, there)| is_above(*there));
    above.map(|(_, up, there)| Some((up, network.reverse(up)?, there))).collect()
}

/// The up-ports of the switches of all pods, and how many each has.
fn uppers(network: &Network, pods: &[Vec<u32>], leaves: &BTreeSet<u32>) -> Option<(usize, Vec<Up>)> {
    let mut upper: Vec<Up> = Vec::new();
    let mut count = None;
    for pod in pods {
        for (number, switch) in pod.iter().enumerate() {
            let ports = ups(network, *switch, |there| !leaves.contains(&there))?;
            let above = |ports: &[Up]| ports.iter().map(|(_, _, there)| *there).collect::<Vec<_>>();
            let count = *count.get_or_insert(ports.len());
            // The same numbers lead to the same switches from every pod.
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
