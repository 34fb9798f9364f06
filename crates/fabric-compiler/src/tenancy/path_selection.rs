//! Path selection: the up-ports that packets to each host of a cluster take, where the switches form a regular tree.
//!
//! A guaranteed cluster owns its hosts, so the columns of their LIDs are its own in every forwarding table, and the path to
//! each can be selected. Without a rate, up-ports that the cluster uses already go first, so that it needs few lanes. With a
//! rate, destinations go where most is left: if every cluster spreads its destinations evenly, the up-links of a leaf carry
//! what its hosts send, whichever clusters they belong to. Leaves with the least choice go first. A host that finds no path
//! swaps with another host that has an alternative. Greedy with repair, not exhaustive; see [`tier`](super::tier) for the
//! bounds that make each step O(up-ports).

use std::cmp::Reverse;

use ib_wire::{ServiceLevel, ServiceLevelSet};

use super::admission::Reservations;
use super::link_graph::{HostIndex, LinkIndex};
use super::tier::{Group, Tier};
use super::tree::{RegularTree, UpPorts};

/// Swaps that are tried for a cluster whose hosts do not all find a path at once. Bounds the time of a decision.
const SWAPS_MAX: usize = 20_000;

/// The paths to a cluster's hosts, and how many ordered pairs of hosts each link carries.
#[derive(Clone, Debug, Default)]
pub(super) struct SelectedPaths {
    /// In the order of the hosts.
    pub up_ports: Vec<UpPorts>,
    /// Links between switches, each once.
    pub pairs: Vec<(LinkIndex, u64)>,
}

/// Selects paths between some hosts. The residual capacity of links is read once, for all service levels tried.
#[derive(Debug)]
pub(super) struct PathSelector<'a> {
    tree: &'a RegularTree,
    reservations: &'a Reservations,
    /// Ordered by leaf.
    hosts: &'a [HostIndex],
    /// Bits per second of each host.
    rate: u64,
    /// Unlimited if all hosts are in one leaf.
    leaf_tier: Tier,
    /// Read when it is first needed.
    pod_tier: Option<Tier>,
    pods: Vec<Group>,
    /// By leaf of the cluster: the index of its pod in `pods`.
    pod_of: Vec<usize>,
    /// By leaf of the cluster: the index of its first host.
    starts: Vec<usize>,
}

impl<'a> PathSelector<'a> {
    /// For hosts that each send `rate` bits per second. The error is a host of the tightest leaf, if the links of leaves
    /// together cannot carry all destinations.
    pub fn new(
        tree: &'a RegularTree,
        reservations: &'a Reservations,
        hosts: &'a [HostIndex],
        rate: u64,
    ) -> Result<Self, HostIndex> {
        let leaves = grouped(hosts.iter().map(|host| tree.leaf_of(*host)));
        let (pods, pod_of) = pods_of(tree, &leaves);
        let starts = leaves.iter().scan(0, |start, leaf| {
            let this = *start;
            *start += leaf.hosts as usize;
            Some(this)
        });
        let starts = starts.collect();
        let numbers = if leaves.len() > 1 { tree.leaf_ups } else { 0 };
        let leaf_tier = Tier::new(leaves, numbers, rate, |leaf| reservations.residuals().of_leaf(leaf));
        let selector =
            Self { tree, reservations, hosts, rate, leaf_tier, pod_tier: None, pods, pod_of, starts };
        if selector.spans_leaves() && selector.leaf_tier.capacity_for_all() < hosts.len() as u64 {
            return Err(hosts[selector.starts[selector.leaf_tier.tightest()]]);
        }
        Ok(selector)
    }

    /// The service levels of `sls` that are free on all links of the leaves.
    pub fn sls_free(&self, sls: ServiceLevelSet) -> ServiceLevelSet {
        sls - self.leaf_tier.sls_taken()
    }

    /// The service levels whose free links of leaves can carry all destinations, those with the most spare first.
    pub fn sls_by_spare(&self, sls: ServiceLevelSet) -> Vec<ServiceLevel> {
        let spare = |sl: ServiceLevel| (self.leaf_tier.capacity_without(sl.into()), sl);
        let mut spares: Vec<(u64, ServiceLevel)> = sls.iter().map(spare).collect();
        spares.retain(|(spare, _)| *spare >= self.hosts.len() as u64);
        spares.sort_by_key(|(spare, sl)| (Reverse(*spare), *sl));
        spares.into_iter().map(|(_, sl)| sl).collect()
    }

    /// Selects paths to all hosts over links on which nobody owns the service levels. Paths in `kept` (by host; may be
    /// shorter) stay. The error is a host that no path is left to.
    pub fn choose(
        &mut self,
        service_levels: ServiceLevelSet,
        kept: &[Option<UpPorts>],
    ) -> Result<SelectedPaths, HostIndex> {
        if !self.spans_leaves() {
            let up_ports = (0..self.hosts.len()).map(|host| kept.get(host).copied().flatten());
            return Ok(SelectedPaths {
                up_ports: up_ports.map(Option::unwrap_or_default).collect(),
                pairs: Vec::new(),
            });
        }
        let mut search = Search::new(self, service_levels).map_err(|host| self.hosts[host])?;
        search.run(kept).map_err(|host| self.hosts[host])?;
        Ok(SelectedPaths {
            pairs: search.pairs(),
            up_ports: search.up_ports.into_iter().map(|ports| ports.unwrap_or_default()).collect(),
        })
    }

    fn spans_leaves(&self) -> bool {
        self.leaf_tier.groups.len() > 1
    }

    /// The up-ports of a pod's switch if the cluster spans pods; else 1.
    fn pod_ups(&self) -> usize {
        if self.pods.len() > 1 { self.tree.pod_ups } else { 1 }
    }

    fn pod_tier(&mut self) -> &Tier {
        let pod_ups = self.pod_ups();
        let Self { tree, reservations, rate, pod_tier, pods, .. } = self;
        pod_tier.get_or_insert_with(|| {
            let numbers = if pods.len() > 1 { tree.leaf_ups * pod_ups } else { 0 };
            Tier::new(pods.clone(), numbers, *rate, |pod| reservations.residuals().of_pod(pod))
        })
    }
}

/// The indices of a leaf and of its pod among those of the cluster.
#[derive(Clone, Copy, Debug)]
struct TreePosition {
    leaf: usize,
    pod: usize,
}

/// One run of the selection. A *number* stands for up-ports: see [`up_ports`].
#[derive(Debug)]
struct Search<'a> {
    tree: &'a RegularTree,
    total: u64,
    /// By leaf, and up-port of leaves.
    leaf_tier: Tier,
    /// By pod, and number. Unlimited if the cluster is in one pod.
    pod_tier: Tier,
    /// By leaf: the index of its first host.
    starts: Vec<usize>,
    /// Indexed by leaf.
    pods: Vec<usize>,
    /// The up-ports of a pod's switch if the cluster spans pods; else 1.
    pod_ups: usize,
    /// Whether the cluster has a rate.
    is_spread: bool,
    /// Indexed by host.
    up_ports: Vec<Option<UpPorts>>,
    /// By host: whether its path must stay. Hosts beyond the end need not.
    kept: Vec<bool>,
    swaps_left: usize,
    /// By pod and up-port of leaves: the best number behind it, with the value of `changes` when it was found.
    behind: Vec<Option<(u32, Behind)>>,
    /// By up-port of leaves: how often numbers behind it were taken or given back.
    changes: Vec<u32>,
}

/// The number with the most spare behind an up-port of leaves, and its spare; `None` if none fits.
type Behind = Option<(u32, usize)>;

impl<'a> Search<'a> {
    /// The error is the index of a host in the tightest group, if all links together cannot carry all destinations.
    fn new(selector: &mut PathSelector<'a>, service_levels: ServiceLevelSet) -> Result<Self, usize> {
        let total = selector.hosts.len();
        let leaf_tier = selector.leaf_tier.without(service_levels);
        if leaf_tier.capacity_for_all() < total as u64 {
            return Err(selector.starts[leaf_tier.tightest()]);
        }
        let pod_tier = selector.pod_tier().without(service_levels);
        let PathSelector { tree, ref pods, .. } = *selector;
        if pods.len() > 1 && pod_tier.capacity_for_all() < total as u64 {
            let tightest = pod_tier.tightest();
            let leaf = selector.pod_of.iter().rposition(|pod| *pod == tightest);
            return Err(leaf.map_or(0, |leaf| selector.starts[leaf]));
        }
        Ok(Self {
            tree,
            total: total as u64,
            leaf_tier,
            pod_tier,
            starts: selector.starts.clone(),
            pods: selector.pod_of.clone(),
            pod_ups: selector.pod_ups(),
            is_spread: selector.rate > 0,
            up_ports: vec![None; total],
            kept: Vec::new(),
            swaps_left: SWAPS_MAX,
            behind: vec![None; pods.len() * tree.leaf_ups],
            changes: vec![0; tree.leaf_ups],
        })
    }

    /// Selects paths to all hosts, in the leaves with the least choice first. The error is the index of a host without one.
    fn run(&mut self, kept: &[Option<UpPorts>]) -> Result<(), usize> {
        let leaves = self.leaf_tier.groups.len();
        for leaf in 0..leaves {
            for host in self.hosts_of(leaf) {
                let Some(ports) = kept.get(host).copied().flatten() else { continue };
                let number = self.number(ports);
                if !self.fits(number, self.position(leaf)) {
                    return Err(host);
                }
                self.give(host, number);
                self.up_ports[host] = Some(ports);
            }
        }
        self.kept = kept.iter().map(Option::is_some).collect();
        let mut order: Vec<usize> = (0..leaves).collect();
        // Across pods, the given order of leaves spreads destinations better over the up-ports of pods.
        if self.is_spread && !self.spans_pods() {
            order.sort_by_cached_key(|leaf| self.leaf_tier.spare_ports(*leaf));
        }
        for leaf in order {
            for host in self.hosts_of(leaf) {
                if self.up_ports[host].is_some() {
                    continue;
                }
                match self.best(self.position(leaf)) {
                    Some(number) => self.give(host, number),
                    None if self.is_spread && self.swap(host, leaf) => {}
                    None => return Err(host),
                }
            }
        }
        Ok(())
    }

    fn spans_pods(&self) -> bool {
        self.pod_tier.groups.len() > 1
    }

    /// The indices of a leaf's hosts.
    fn hosts_of(&self, leaf: usize) -> std::ops::Range<usize> {
        self.starts[leaf]..self.starts[leaf] + self.leaf_tier.groups[leaf].hosts as usize
    }

    fn position(&self, leaf: usize) -> TreePosition {
        TreePosition { leaf, pod: self.pods[leaf] }
    }

    fn leaf_of(&self, host: usize) -> usize {
        self.starts.partition_point(|start| *start <= host) - 1
    }

    fn number(&self, ports: UpPorts) -> usize {
        usize::from(ports.leaf_up) * self.pod_ups
            + if self.spans_pods() { usize::from(ports.pod_up) } else { 0 }
    }

    fn fits(&self, number: usize, position: TreePosition) -> bool {
        self.leaf_tier.fits(number / self.pod_ups, position.leaf)
            && (!self.spans_pods() || self.pod_tier.fits(number, position.pod))
    }

    fn give(&mut self, host: usize, number: usize) {
        let position = self.position(self.leaf_of(host));
        self.leaf_tier.take(number / self.pod_ups, position.leaf);
        if self.spans_pods() {
            self.pod_tier.take(number, position.pod);
            self.changes[number / self.pod_ups] += 1;
        }
        self.up_ports[host] = Some(up_ports(number, self.pod_ups));
    }

    fn give_back(&mut self, host: usize) -> Option<usize> {
        let ports = self.up_ports[host].take()?;
        let number = self.number(ports);
        let position = self.position(self.leaf_of(host));
        self.leaf_tier.untake(number / self.pod_ups, position.leaf);
        if self.spans_pods() {
            self.pod_tier.untake(number, position.pod);
            self.changes[number / self.pod_ups] += 1;
        }
        Some(number)
    }

    /// The best number for one more destination.
    fn best(&mut self, position: TreePosition) -> Option<usize> {
        if self.is_spread { self.most_spare(position) } else { self.cheapest(position) }
    }

    /// The number with the most spare: at the up-ports of pods first, which are scarcer, then at those of leaves. Leaves start
    /// at different up-ports, so that leaves with few hosts do not all take the same.
    fn most_spare(&mut self, position: TreePosition) -> Option<usize> {
        let ups = self.tree.leaf_ups;
        let first = self.leaf_tier.groups[position.leaf].at % ups;
        let mut best: Option<((u32, u32), usize)> = None;
        for up in (first..ups).chain(0..first) {
            if !self.leaf_tier.fits(up, position.leaf) {
                continue;
            }
            let behind =
                if self.spans_pods() { self.most_spare_behind(up, position.pod) } else { Some((0, up)) };
            let Some((pod_tier, number)) = behind else { continue };
            let spare = (pod_tier, self.leaf_tier.spare(up, position.leaf));
            if best.is_none_or(|(most, _)| spare > most) {
                best = Some((spare, number));
            }
        }
        best.map(|(_, number)| number)
    }

    fn most_spare_behind(&mut self, up: usize, pod: usize) -> Behind {
        let host = pod * self.tree.leaf_ups + up;
        if let Some((changes, behind)) = self.behind[host]
            && changes == self.changes[up]
        {
            return behind;
        }
        let mut behind: Behind = None;
        for number in up * self.pod_ups..(up + 1) * self.pod_ups {
            let spare = self.pod_tier.spare(number, pod);
            if behind.is_none_or(|(most, _)| spare > most) && self.pod_tier.fits(number, pod) {
                behind = Some((spare, number));
            }
        }
        self.behind[host] = Some((self.changes[up], behind));
        behind
    }

    /// The number that adds the fewest links to the cluster, and of those the ones that others use least.
    fn cheapest(&self, position: TreePosition) -> Option<usize> {
        let mut best: Option<((u32, u32), usize)> = None;
        for up in (0..self.tree.leaf_ups).filter(|up| self.leaf_tier.fits(*up, position.leaf)) {
            let (links, taken) = self.leaf_tier.cost(up, position.leaf);
            if best.is_some_and(|(cost, _)| cost <= (links, taken)) {
                continue;
            }
            if !self.spans_pods() {
                best = Some(((links, taken), up));
                continue;
            }
            for number in up * self.pod_ups..(up + 1) * self.pod_ups {
                let (more, further) = self.pod_tier.cost(number, position.pod);
                let cost = (links + more, taken + further);
                if best.is_none_or(|(least, _)| cost < least) && self.pod_tier.fits(number, position.pod) {
                    best = Some((cost, number));
                }
            }
        }
        best.map(|(_, number)| number)
    }

    /// Selects a path for a host by moving another host to another path.
    fn swap(&mut self, host: usize, leaf: usize) -> bool {
        for up in (0..self.tree.leaf_ups).filter(|up| self.leaf_tier.fits_down(*up, leaf)).collect::<Vec<_>>()
        {
            for group in 0..self.leaf_tier.groups.len() {
                let goes_elsewhere = |search: &Self| {
                    (0..search.tree.leaf_ups).any(|to| to != up && search.leaf_tier.fits(to, group))
                };
                if !self.leaf_tier.has(up, group) || (!self.spans_pods() && !goes_elsewhere(self)) {
                    continue;
                }
                for other in self.hosts_of(group) {
                    let uses = self.up_ports[other].is_some_and(|ports| usize::from(ports.leaf_up) == up);
                    let stays = self.kept.get(other).copied().unwrap_or(false);
                    if !uses || stays || self.swaps_left == 0 {
                        continue;
                    }
                    self.swaps_left -= 1;
                    if self.swap_with(host, leaf, other, up) {
                        return true;
                    }
                }
            }
        }
        false
    }

    fn swap_with(&mut self, host: usize, leaf: usize, other: usize, up: usize) -> bool {
        let Some(had) = self.give_back(other) else { return false };
        // The number that was given up, or another one behind the same up-port.
        let position = self.position(leaf);
        let freed = if self.fits(had, position) {
            Some(had)
        } else if self.spans_pods() && self.leaf_tier.fits(up, leaf) {
            self.most_spare_behind(up, position.pod).map(|(_, number)| number)
        } else {
            None
        };
        if let Some(number) = freed {
            self.give(host, number);
            if let Some(number) = self.best(self.position(self.leaf_of(other))) {
                self.give(other, number);
                return true;
            }
            self.give_back(host);
        }
        self.give(other, had);
        false
    }

    /// The pairs on each link: sources below it times destinations beyond it.
    fn pairs(&self) -> Vec<(LinkIndex, u64)> {
        let tree = self.tree;
        let mut pairs = Vec::new();
        let leaf_tier = |up: usize, leaf: usize| (tree.leaf_up(leaf, up), tree.leaf_down(leaf, up));
        self.leaf_tier.pairs(self.total, leaf_tier, &mut pairs);
        if self.spans_pods() {
            let pod_tier = |number: usize, pod: usize| {
                let ports = up_ports(number, self.pod_ups);
                (tree.pod_up(pod, ports), tree.pod_down(pod, ports))
            };
            self.pod_tier.pairs(self.total, pod_tier, &mut pairs);
        }
        pairs
    }
}

fn up_ports(number: usize, pod_ups: usize) -> UpPorts {
    UpPorts { leaf_up: (number / pod_ups) as u8, pod_up: (number % pod_ups) as u8 }
}

fn grouped(indices: impl Iterator<Item = usize>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for at in indices {
        match groups.last_mut() {
            Some(group) if group.at == at => group.hosts += 1,
            _ => groups.push(Group { at, hosts: 1 }),
        }
    }
    groups
}

/// The pods of some leaves, and for each leaf the index of its pod among them.
fn pods_of(tree: &RegularTree, leaves: &[Group]) -> (Vec<Group>, Vec<usize>) {
    let mut pods: Vec<Group> = Vec::new();
    let mut indices = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        let at = tree.pod_of(leaf.at);
        // Hosts in order of their leaves are not always in order of pods.
        match pods.iter().position(|pod| pod.at == at) {
            Some(host) => {
                pods[host].hosts += leaf.hosts;
                indices.push(host);
            }
            None => {
                indices.push(pods.len());
                pods.push(Group { at, hosts: leaf.hosts });
            }
        }
    }
    (pods, indices)
}
