//! Which damped links plans can do without.
//!
//! A link between switches is left out of plans unless that divides the fabric or leaves a switch with less than half of its
//! links to other switches. The link of a host always stays: without it, a tenant would lose its machine over errors that it
//! may not even notice.

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::intent::PortName;
use ib_wire::Guid;

use super::history::LinkName;

/// What becomes of a damped link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DampedLinkUse {
    /// Plans do not have it: the discovered topology is without it.
    LeftOut,
    /// It stays in use, because it is the link of a host.
    HostLink,
    /// It stays in use, because without it the fabric would be divided, or a switch would have less than half of its links
    /// to other switches.
    Needed,
}

impl std::fmt::Display for DampedLinkUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::LeftOut => "plans leave it out",
            Self::HostLink => "it stays in use, because it is the link of a host",
            Self::Needed => "it stays in use, because the fabric needs it",
        })
    }
}

/// What becomes of each damped link.
///
/// `links` are all links between switches that are up. `damped` is in order of damping: those that were damped first are left
/// out first, so that a link which is left out stays so when others follow. `is_switch` knows the nodes at the ends of damped
/// links. The cost is almost linear in the number of links (union-find).
pub(crate) fn uses(
    links: &[LinkName],
    damped: &[LinkName],
    is_switch: impl Fn(Guid) -> bool,
) -> BTreeMap<LinkName, DampedLinkUse> {
    let mut uses = BTreeMap::new();
    if damped.is_empty() {
        return uses;
    }
    let present: BTreeSet<&LinkName> = links.iter().collect();
    let mut candidates = Vec::new();
    for link in damped {
        if !link.ends().iter().all(|end| is_switch(end.node)) {
            uses.insert(*link, DampedLinkUse::HostLink);
            continue;
        }
        uses.insert(*link, DampedLinkUse::LeftOut);
        if present.contains(link) {
            candidates.push(*link);
        }
    }
    let mut spare: BTreeMap<Guid, usize> = BTreeMap::new();
    for PortName { node, .. } in links.iter().flat_map(LinkName::ends) {
        *spare.entry(node).or_default() += 1;
    }
    spare.values_mut().for_each(|count| *count /= 2);
    candidates.retain(|link| {
        let nodes = link.ends().map(|end| end.node);
        let is_spare = nodes.iter().all(|node| spare.get(node).is_some_and(|count| *count > 0));
        for node in nodes.iter().filter(|_| is_spare) {
            spare.entry(*node).and_modify(|count| *count = count.saturating_sub(1));
        }
        if !is_spare {
            uses.insert(*link, DampedLinkUse::Needed);
        }
        is_spare
    });
    let mut parts = Parts::default();
    let stays = |link: &&LinkName| uses.get(link).is_none_or(|it| *it == DampedLinkUse::Needed);
    for link in links.iter().filter(stays) {
        parts.join(link);
    }
    for link in candidates.iter().rev() {
        if parts.join(link) {
            uses.insert(*link, DampedLinkUse::Needed);
        }
    }
    uses
}

/// Switches that are connected (union-find with path halving).
#[derive(Default)]
struct Parts(BTreeMap<Guid, Guid>);

impl Parts {
    fn root(&mut self, mut node: Guid) -> Guid {
        loop {
            let parent = *self.0.entry(node).or_insert(node);
            if parent == node {
                return node;
            }
            let above = *self.0.entry(parent).or_insert(parent);
            self.0.insert(node, above);
            node = above;
        }
    }

    /// Connects the ends of a link. Returns whether they were not connected before.
    fn join(&mut self, link: &LinkName) -> bool {
        let [a, b] = link.ends().map(|end| self.root(end.node));
        self.0.insert(a, b);
        a != b
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_wire::PortNum;

    fn port(node: u64, port: u8) -> PortName {
        PortName { node: Guid::from_wire(node).unwrap(), port: PortNum::new(port).unwrap() }
    }

    /// The cable between port 'b' of node `a` and port 'a' of node `b`.
    fn link(a: u64, b: u64) -> LinkName {
        LinkName::new(port(a, b as u8), port(b, a as u8))
    }

    /// Nodes below 100 are switches.
    fn uses_of(links: &[LinkName], damped: &[LinkName]) -> Vec<DampedLinkUse> {
        let uses = uses(links, damped, |guid| guid < Guid::from_wire(100).unwrap());
        damped.iter().map(|link| uses[link]).collect()
    }

    use DampedLinkUse::{HostLink, LeftOut, Needed};

    #[test]
    fn the_link_of_a_host_stays() {
        assert_eq!(uses_of(&[link(1, 2)], &[link(1, 150)]), [HostLink]);
    }

    #[test]
    fn a_bridge_between_two_parts_stays() {
        let line = [link(1, 2), link(2, 3)];
        assert_eq!(uses_of(&line, &[link(1, 2)]), [Needed]);
        // Two rings of three that one cable connects.
        let rings = [link(1, 2), link(2, 3), link(1, 3), link(3, 4), link(4, 5), link(5, 6), link(4, 6)];
        assert_eq!(uses_of(&rings, &[link(3, 4), link(5, 6)]), [Needed, LeftOut]);
    }

    #[test]
    fn a_ring_loses_one_link_and_keeps_the_next() {
        let ring = [link(1, 2), link(2, 3), link(3, 4), link(1, 4)];
        assert_eq!(uses_of(&ring, &[link(2, 3)]), [LeftOut]);
        assert_eq!(uses_of(&ring, &[link(2, 3), link(1, 4)]), [LeftOut, Needed]);
        assert_eq!(uses_of(&ring, &[link(1, 4), link(2, 3)]), [LeftOut, Needed]);
    }

    #[test]
    fn a_switch_keeps_half_of_its_links() {
        // Two spines, each with four leaves.
        let tree: Vec<LinkName> =
            (1..=2).flat_map(|spine| (11..=14).map(move |leaf| link(spine, leaf))).collect();
        let damped: Vec<LinkName> = (11..=14).map(|leaf| link(1, leaf)).collect();
        assert_eq!(uses_of(&tree, &damped), [LeftOut, LeftOut, Needed, Needed]);
    }

    #[test]
    fn a_link_that_is_gone_counts_as_left_out() {
        assert_eq!(uses_of(&[link(1, 2)], &[link(1, 3)]), [LeftOut]);
    }

    #[test]
    fn every_switch_stays_reachable_whatever_is_damped() {
        // A grid of 4 by 4.
        let at = |x: u64, y: u64| 1 + x + 4 * y;
        let mut grid = Vec::new();
        for x in 0..4 {
            for y in 0..4 {
                grid.extend((x < 3).then(|| link(at(x, y), at(x + 1, y))));
                grid.extend((y < 3).then(|| link(at(x, y), at(x, y + 1))));
            }
        }
        for first in 0..grid.len() {
            let mut damped = grid.clone();
            damped.rotate_left(first);
            let uses = uses(&grid, &damped, |_| true);
            let mut parts = Parts::default();
            let joined = grid.iter().filter(|link| uses[link] == Needed).filter(|link| parts.join(link));
            assert_eq!(joined.count(), 15, "a spanning tree of 16 switches remains");
            assert!(uses.values().any(|it| *it == LeftOut));
        }
    }
}
