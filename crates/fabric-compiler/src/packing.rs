//! Packs nodes without a guarantee onto hosts that they may share: few switches, least used hosts first.
//!
//! `heddle plan` and the controller both place best-effort nodes here. What a host can take is decided by the caller.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ib_wire::Guid;

/// A host that nodes may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedHost {
    /// The switch that it is cabled to.
    pub switch: Guid,
    /// Nodes of the cluster that it can still take.
    pub capacity: usize,
    /// Nodes on it, of all clusters.
    pub nodes: usize,
    /// Whether a node of the cluster is on it already.
    pub is_ours: bool,
}

/// Hosts of one switch, as indices.
#[derive(Default)]
struct SwitchHosts {
    hosts: Vec<usize>,
    capacity: usize,
    is_ours: bool,
}

/// Chooses hosts for `wanted` nodes of a cluster; returns their indices in `hosts`, fewer than `wanted` if no more fit.
///
/// Greedy best fit by switch: first the switches of the cluster itself, then the smallest switch that takes all remaining
/// nodes, else the largest. Within a switch, hosts with the fewest nodes come first, and every host gets one node before any
/// gets a second; ties go to the earlier host. `take` claims what else a node on a host needs, such as resources that
/// several hosts share, and returns whether it was available.
///
/// Sorting dominates: O(n log n) for n hosts, and one `take` for every node.
pub fn pack(hosts: &[SharedHost], wanted: usize, mut take: impl FnMut(usize) -> bool) -> Vec<usize> {
    let mut chosen = Vec::new();
    for switch in in_order(hosts, wanted) {
        fill(hosts, switch, wanted, &mut take, &mut chosen);
    }
    chosen
}

/// The switches in the order in which [`pack`] fills them.
fn in_order(hosts: &[SharedHost], wanted: usize) -> Vec<SwitchHosts> {
    let mut by_switch: BTreeMap<Guid, SwitchHosts> = BTreeMap::new();
    for (index, host) in hosts.iter().enumerate() {
        let switch = by_switch.entry(host.switch).or_default();
        switch.hosts.push(index);
        switch.capacity = switch.capacity.saturating_add(host.capacity);
        switch.is_ours |= host.is_ours;
    }
    let mut order: Vec<SwitchHosts> = by_switch.into_values().collect();
    // A stable sort: ties go to the lowest GUID.
    order.sort_by_key(|switch| (!switch.is_ours, Reverse(switch.capacity)));
    let ours = order.partition_point(|switch| switch.is_ours);
    let at_ours = order[..ours].iter().fold(0, |sum: usize, switch| sum.saturating_add(switch.capacity));
    if at_ours >= wanted {
        return order;
    }
    let others = &mut order[ours..];
    // The smallest one that takes the rest, so that larger ones stay free.
    let fitting = others.partition_point(|switch| switch.capacity >= wanted - at_ours);
    if let Some(smallest) = others[..fitting].last().map(|switch| switch.capacity) {
        let best = others.partition_point(|switch| switch.capacity > smallest);
        others[..=best].rotate_right(1);
    }
    order
}

/// Assigns nodes to the hosts of a switch round by round.
fn fill(
    hosts: &[SharedHost],
    switch: SwitchHosts,
    wanted: usize,
    take: &mut impl FnMut(usize) -> bool,
    chosen: &mut Vec<usize>,
) {
    let mut round: Vec<usize> = switch.hosts;
    round.sort_by_key(|host| hosts[*host].nodes);
    for given in 0.. {
        // A host that was refused once is refused later, too: resources only become fewer.
        round.retain(|host| {
            let is_chosen = chosen.len() < wanted && given < hosts[*host].capacity && take(*host);
            if is_chosen {
                chosen.push(*host);
            }
            is_chosen
        });
        if round.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(switches: &[u64], capacity: usize) -> Vec<SharedHost> {
        let host = |switch: &u64| SharedHost {
            switch: Guid::from_wire(*switch).unwrap(),
            capacity,
            nodes: 0,
            is_ours: false,
        };
        switches.iter().map(host).collect()
    }

    fn packed(hosts: &[SharedHost], wanted: usize) -> Vec<usize> {
        pack(hosts, wanted, |_| true)
    }

    #[test]
    fn few_switches_and_unused_hosts_come_first() {
        let mut hosts = hosts(&[1, 1, 2, 2, 2], 1);
        assert_eq!(packed(&hosts, 2), [0, 1], "the smallest switch that takes both");
        assert_eq!(packed(&hosts, 3), [2, 3, 4]);
        assert_eq!(packed(&hosts, 4), [2, 3, 4, 0], "the largest switch, then the other");
        hosts[2] = SharedHost { nodes: 1, capacity: 4, ..hosts[2] };
        assert_eq!(packed(&hosts, 3), [3, 4, 2]);
        assert_eq!(packed(&hosts, 5), [3, 4, 2, 2, 2], "a second node only after every host has one");
        assert_eq!(packed(&hosts, 100).len(), 8, "all that fit");
    }

    #[test]
    fn growing_stays_at_the_switches_of_the_cluster() {
        let mut hosts = hosts(&[1, 1, 1, 2, 2, 2], 1);
        hosts[4] = SharedHost { is_ours: true, capacity: 0, nodes: 1, ..hosts[4] };
        assert_eq!(packed(&hosts, 2), [3, 5]);
        assert_eq!(packed(&hosts, 3), [3, 5, 0]);
    }

    #[test]
    fn among_equal_switches_the_lowest_guid_is_filled_first() {
        assert_eq!(packed(&hosts(&[7, 7, 3, 3, 5, 5, 5], 1), 2), [2, 3]);
    }

    #[test]
    fn resources_that_hosts_share_are_taken_once() {
        let mut left = 2;
        let take = |_: usize| {
            let is_left = left > 0;
            left -= usize::from(is_left);
            is_left
        };
        assert_eq!(pack(&hosts(&[1, 1], 4), 4, take), [0, 1]);
    }

    #[test]
    fn hosts_without_limits_take_all() {
        assert_eq!(packed(&hosts(&[1, 2], usize::MAX), 3), [0, 0, 0]);
    }
}
