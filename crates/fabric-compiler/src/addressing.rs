//! LID assignment: end ports keep their LID, and new ones get the lowest that is free.

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::decisions::Decisions;
use fabric_model::intent::Capabilities;
use ib_wire::{Guid, Lid};

use crate::CompileError;
use crate::fabric::{Fabric, SwitchIndex};
use crate::routing::order::Order;

/// LIDs that stay reserved for absent ports: a sixth of all. Beyond that, the highest are released.
pub(crate) const ABSENT_LIDS_MAX: usize = 8192;

/// The LIDs of a subnet.
#[derive(Debug)]
pub(crate) struct Lids {
    /// By port GUID.
    pub present: BTreeMap<Guid, Lid>,
    /// Reserved for absent ports, by port GUID.
    pub absent: BTreeMap<Guid, Lid>,
}

/// Assigns a LID to every end port. On a new fabric the adapters of a leaf, the leaves of a pod and the switches have
/// consecutive LIDs, which keeps forwarding tables regular.
pub(crate) fn assign(
    fabric: &Fabric,
    capabilities: &Capabilities,
    previous: &Decisions,
) -> Result<Lids, CompileError> {
    let highest = highest_lid(fabric, capabilities);
    let order = address_order(fabric);
    if order.len() > usize::from(highest) {
        return Err(CompileError::LidsExhausted { needed: order.len(), available: highest.into() });
    }
    let ports: BTreeSet<Guid> = order.iter().copied().collect();
    let mut holders: BTreeMap<Lid, Guid> = BTreeMap::new();
    // Present ports first: if two have the same LID, the absent one loses it, or the one with the higher GUID.
    for present in [true, false] {
        for (guid, decision) in &previous.end_ports {
            if ports.contains(guid) == present && decision.lid.to_wire() <= highest {
                holders.entry(decision.lid).or_insert(*guid);
            }
        }
    }
    let mut absent: Vec<Lid> =
        holders.iter().filter(|(_, guid)| !ports.contains(guid)).map(|(lid, _)| *lid).collect();
    let available = usize::from(highest) - order.len();
    for lid in absent.split_off(absent.len().min(available).min(ABSENT_LIDS_MAX)) {
        holders.remove(&lid);
    }

    let held: BTreeSet<Guid> = holders.values().copied().collect();
    let mut free = (1..=highest).filter_map(Lid::from_wire).filter(|lid| !holders.contains_key(lid));
    let new: Vec<(Guid, Lid)> =
        order.into_iter().filter(|guid| !held.contains(guid)).zip(&mut free).collect();
    let (mut present, mut absent) = (BTreeMap::new(), BTreeMap::new());
    for (lid, guid) in &holders {
        let side = if ports.contains(guid) { &mut present } else { &mut absent };
        side.insert(*guid, *lid);
    }
    present.extend(new);
    Ok(Lids { present, absent })
}

/// The highest LID that all switches can forward to.
fn highest_lid(fabric: &Fabric, capabilities: &Capabilities) -> u16 {
    let tables = fabric.switches.iter().map(|switch| capabilities.switch(switch.guid).linear);
    tables.map(|entries| entries.saturating_sub(1)).min().unwrap_or(Lid::MAX).min(Lid::MAX)
}

/// The end ports in the order in which new ones get LIDs: adapters leaf by leaf, then switches.
fn address_order(fabric: &Fabric) -> Vec<Guid> {
    let switches = leaves_pod_by_pod(fabric);
    let attached = switches.iter().flat_map(|switch| fabric.switches[*switch].adapters.clone());
    let loose = fabric.adapter_ports.iter().filter(|port| port.attached.is_none());
    let adapters = attached.map(|index| &fabric.adapter_ports[index]).chain(loose).map(|port| port.guid);
    adapters.chain(fabric.switches.iter().map(|switch| switch.port_guid)).collect()
}

/// The switches ordered so that those of one pod are next to each other: components without the top tier, inside these
/// components without the two top tiers, and so on; otherwise by GUID.
fn leaves_pod_by_pod(fabric: &Fabric) -> Vec<SwitchIndex> {
    let mut order: Vec<SwitchIndex> = (0..fabric.switches.len()).collect();
    let Some(order_by_tier) = Order::by_tiers(fabric) else { return order };
    let highest = order_by_tier.heights.iter().copied().max().unwrap_or(1);
    let pods: Vec<Vec<SwitchIndex>> =
        (1..highest).rev().map(|below| components(fabric, &order_by_tier.heights, below)).collect();
    order.sort_by_key(|index| (pods.iter().map(|pods| pods[*index]).collect::<Vec<_>>(), *index));
    order
}

/// By switch: the first switch of its component, if switches above a height are removed.
fn components(fabric: &Fabric, heights: &[i32], highest: i32) -> Vec<SwitchIndex> {
    let mut components: Vec<SwitchIndex> = (0..fabric.switches.len()).collect();
    let mut seen = vec![false; fabric.switches.len()];
    for start in 0..fabric.switches.len() {
        if heights[start] > highest || std::mem::replace(&mut seen[start], true) {
            continue;
        }
        let mut open = vec![start];
        while let Some(index) = open.pop() {
            components[index] = start;
            for neighbour in &fabric.switches[index].neighbours {
                let there = neighbour.switch;
                if heights[there] <= highest && !std::mem::replace(&mut seen[there], true) {
                    open.push(there);
                }
            }
        }
    }
    components
}
