//! In which order packets may hold links: what keeps rings of links from waiting for each other.
//!
//! Two plans that agree on it may be mixed on the way from one to the other: a switch that is still as it was and one
//! that is already as it will be close no ring between them.

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::Guid;

use super::FabricPlan;

impl FabricPlan {
    /// Whether the first of two switches, by node GUID, is above the second: packets go up, then down. `None` if the
    /// plan does not know one of them; no switch is above itself.
    pub fn is_above(&self, a: Guid, b: Guid) -> Option<bool> {
        self.decisions().routing.is_above(a, b)
    }

    /// Whether packets of this plan and of another hold links in the same order, so that routes can be changed from one
    /// to the other without a drain: the switches both have stand in the same order, and packets turn upwards again
    /// at the same places.
    pub fn same_channel_order(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.decisions().routing, &other.decisions().routing);
        ours.scheme == theirs.scheme
            && ours.down_up_switch == theirs.down_up_switch
            && ours.down_up_turns == theirs.down_up_turns
            && self.stands_as_in(other)
            && ours.down_up_switch.is_none_or(|turn| self.is_one_tree_with(other, turn))
    }

    /// Whether the switches that both have stand in the same order in both.
    fn stands_as_in(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.decisions().routing, &other.decisions().routing);
        let both = self.switches().map(|switch| switch.guid).filter(|guid| other.switch(*guid).is_some());
        let mut standings = Vec::new();
        for guid in both {
            match (ours.order_key(guid), theirs.order_key(guid)) {
                (Some(ours), Some(theirs)) => standings.push((ours, theirs)),
                _ => return false,
            }
        }
        standings.sort_unstable();
        standings.windows(2).all(|pair| pair[0].1 < pair[1].1)
    }

    /// Whether what is above the turn by the cables of both plans together still is a tree: each switch above it is
    /// reached from just one below. Only then packets may turn anywhere in it.
    fn is_one_tree_with(&self, other: &Self, turn: Guid) -> bool {
        let mut below: BTreeMap<Guid, Guid> = BTreeMap::new();
        let mut open = vec![turn];
        while let Some(here) = open.pop() {
            for above in self.switches_above(here).union(&other.switches_above(here)) {
                match below.insert(*above, here) {
                    None => open.push(*above),
                    Some(first) if first == here => {}
                    Some(_) => return false,
                }
            }
        }
        true
    }

    fn switches_above(&self, guid: Guid) -> BTreeSet<Guid> {
        let ports = self.switch(guid).into_iter().flat_map(|switch| switch.ports.iter());
        let peers = ports.map(|port| port.peer.node);
        peers.filter(|peer| self.is_above(*peer, guid) == Some(true)).collect()
    }
}
