//! Channel order: the order in which packets may occupy links, which excludes cyclic waits (Dally and Seitz: a route set is
//! deadlock-free if its channel dependency graph has no cycle).
//!
//! Two plans with the same channel order can be mixed during a transition: switches with old and with new tables together
//! close no cycle of links that wait for each other.

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::Guid;

use super::FabricPlan;

impl FabricPlan {
    /// Whether switch `a` is above switch `b`, both by node GUID. `None` if the plan does not contain one of them. No switch
    /// is above itself.
    pub fn is_above(&self, a: Guid, b: Guid) -> Option<bool> {
        self.decisions().routing.is_above(a, b)
    }

    /// Whether both plans have the same channel order, so that routes can change from one to the other without draining the
    /// fabric: the switches that both have are in the same order, and the same down-up turns are allowed.
    pub fn same_channel_order(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.decisions().routing, &other.decisions().routing);
        ours.scheme == theirs.scheme
            && ours.down_up_switch == theirs.down_up_switch
            && ours.down_up_turns == theirs.down_up_turns
            && self.has_switch_order_of(other)
            && ours.down_up_switch.is_none_or(|root| self.is_one_tree_with(other, root))
    }

    /// Whether the switches that both plans have are in the same order in both.
    fn has_switch_order_of(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.decisions().routing, &other.decisions().routing);
        let both = self.switches().map(|switch| switch.guid).filter(|guid| other.switch(*guid).is_some());
        let mut keys = Vec::new();
        for guid in both {
            match (ours.order_key(guid), theirs.order_key(guid)) {
                (Some(ours), Some(theirs)) => keys.push((ours, theirs)),
                _ => return false,
            }
        }
        keys.sort_unstable();
        keys.windows(2).all(|pair| pair[0].1 < pair[1].1)
    }

    /// Whether the switches above `root`, by the cables of both plans together, form a tree: each is reached from only one
    /// switch below it. Only then are all turns in it safe.
    fn is_one_tree_with(&self, other: &Self, root: Guid) -> bool {
        let mut below: BTreeMap<Guid, Guid> = BTreeMap::new();
        let mut open = vec![root];
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
