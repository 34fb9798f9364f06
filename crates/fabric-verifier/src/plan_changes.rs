//! The entries that differ between two plans with the same ports. Tables that both plans share by `Arc` are not
//! compared.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::plan::{
    AdapterPortPlan, Enforcement, MulticastTable, PkeyTable, PortQos, PortSet, SwitchPlan, SwitchPortPlan,
};
use ib_wire::{Gid, Lid, MulticastLid, PartitionNumber, PortNum};

use crate::network::{Link, PORTS, SwitchIndex};

#[derive(Debug, Default)]
pub(crate) struct PlanChanges {
    pub linear: Vec<(SwitchIndex, Lid)>,
    pub multicast: Vec<(SwitchIndex, MulticastLid)>,
    /// Multicast LIDs of groups that were added, removed or changed.
    pub groups: BTreeSet<MulticastLid>,
    /// MGIDs of these groups.
    pub mgids: BTreeSet<Gid>,
    /// Partitions of these groups, before or after the change.
    pub group_partitions: BTreeSet<PartitionNumber>,
    /// Partitions that were added, removed or changed.
    pub partitions: BTreeSet<PartitionNumber>,
    /// End ports with another P_Key table.
    pub own_keys: Vec<usize>,
    /// Switch ports with another enforced table.
    pub enforced: Vec<(SwitchIndex, PortNum)>,
    /// Links with other lanes, or with other SL-to-VL or arbitration tables.
    pub links: Vec<Link>,
    /// Switches with other tables of their own, not counting those of ports.
    pub switches: Vec<SwitchIndex>,
    /// Switch ports with any other setting.
    pub switch_ports: Vec<(SwitchIndex, PortNum)>,
    /// Adapter ports with any other setting.
    pub adapters: Vec<usize>,
    /// Whether the plan names another peer for some port, or another subnet manager.
    pub is_recabled: bool,
    /// Whether the new plan has SL-to-VL and arbitration tables for any link.
    pub is_shared: bool,
}

impl PlanChanges {
    /// Compares two plans; `None` if they do not have the same ports with the same LIDs.
    pub fn between(old: &FabricPlan, new: &FabricPlan) -> Option<Self> {
        let mut changes = Self { is_recabled: old.manager() != new.manager(), ..Self::default() };
        let (switches, adapters) = (old.switches().len(), old.adapter_ports().len());
        if switches != new.switches().len() || adapters != new.adapter_ports().len() {
            return None;
        }
        let shared = old.shared_switches().iter().zip(new.shared_switches());
        for (switch_index, (old, new)) in shared.enumerate() {
            changes.is_shared = changes.is_shared || new.ports.iter().any(|port| port.qos.is_some());
            if Arc::ptr_eq(old, new) {
                continue;
            }
            if !is_same_switch(old, new) {
                return None;
            }
            changes.of_switch(switch_index, old, new);
            if differs(&old.pkeys, &new.pkeys) {
                changes.own_keys.push(adapters + switch_index);
            }
            if !Arc::ptr_eq(&old.ports, &new.ports) {
                let ports = old.ports.iter().zip(new.ports.iter());
                ports.for_each(|(old, new)| changes.of_switch_port(switch_index, old, new));
            }
        }
        for difference in new.shared_adapter_ports().differences(old.shared_adapter_ports()) {
            let (old, (end, new)) = difference.before.zip(difference.after)?;
            if (old.name, old.lid) != (new.name, new.lid) {
                return None;
            }
            changes.of_adapter(end, switches * PORTS + end, old, new);
        }
        for difference in new.shared_groups().differences(old.shared_groups()) {
            let after = difference.after.map(|(_, group)| group);
            for group in difference.before.into_iter().chain(after) {
                changes.mgids.insert(group.mgid);
                changes.groups.insert(group.mlid);
                changes.group_partitions.insert(group.partition);
            }
        }
        let partitions = new.shared_partitions().differences(old.shared_partitions());
        changes.partitions = partitions.into_iter().map(|difference| *difference.key).collect();
        Some(changes)
    }

    /// Whether no service level takes another path or lane than before.
    pub fn is_sharing_kept(&self) -> bool {
        let is_forwarding_kept =
            self.linear.is_empty() && self.multicast.is_empty() && self.groups.is_empty();
        self.links.is_empty() && (is_forwarding_kept || !self.is_shared)
    }

    fn of_switch(&mut self, switch_index: SwitchIndex, old: &SwitchPlan, new: &SwitchPlan) {
        let is_linear = !Arc::ptr_eq(&old.linear, &new.linear);
        let is_multicast = !Arc::ptr_eq(&old.multicast, &new.multicast);
        if is_linear {
            self.linear.extend(new.linear.differences(&old.linear).map(|lid| (switch_index, lid)));
        }
        if is_multicast {
            self.of_multicast(switch_index, &old.multicast, &new.multicast);
        }
        if is_linear || is_multicast || differs(&old.pkeys, &new.pkeys) {
            self.switches.push(switch_index);
        }
    }

    /// Merges the two sorted tables.
    fn of_multicast(&mut self, switch_index: SwitchIndex, old: &MulticastTable, new: &MulticastTable) {
        let (mut old, mut new) = (old.exits().peekable(), new.exits().peekable());
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => a.cmp(b),
            };
            let before = if order.is_le() { old.next() } else { None };
            let after = if order.is_ge() { new.next() } else { None };
            let ports = |entry: Option<(_, PortSet)>| entry.map(|(_, ports)| ports);
            let is_same = ports(before).unwrap_or_default() == ports(after).unwrap_or_default();
            self.multicast
                .extend(before.or(after).filter(|_| !is_same).map(|(mlid, _)| (switch_index, mlid)));
        }
    }

    fn of_switch_port(&mut self, switch_index: SwitchIndex, old: &SwitchPortPlan, new: &SwitchPortPlan) {
        let is_enforced = match (&old.enforcement, &new.enforcement) {
            (Enforcement::Off, Enforcement::Off) => false,
            (Enforcement::Both(old), Enforcement::Both(new)) => differs(old, new),
            _ => true,
        };
        if is_enforced {
            self.enforced.push((switch_index, new.number));
        }
        let is_shared = old.lanes != new.lanes || has_other_sharing(&old.qos, &new.qos);
        if is_shared {
            self.links.push(switch_index * PORTS + new.number.index());
        }
        let is_cabled = old.peer != new.peer;
        if is_enforced || is_shared || is_cabled || old.mtu != new.mtu {
            self.switch_ports.push((switch_index, new.number));
        }
        self.is_recabled |= is_cabled;
        self.is_shared |= new.qos.is_some();
    }

    fn of_adapter(&mut self, end: usize, link: Link, old: &AdapterPortPlan, new: &AdapterPortPlan) {
        let is_keyed = differs(&old.pkeys, &new.pkeys);
        if is_keyed {
            self.own_keys.push(end);
        }
        let is_shared = old.lanes != new.lanes || has_other_sharing(&old.qos, &new.qos);
        if is_shared {
            self.links.push(link);
        }
        let is_cabled = old.peer != new.peer;
        if is_keyed || is_shared || is_cabled || old.mtu != new.mtu {
            self.adapters.push(end);
        }
        self.is_recabled |= is_cabled;
        self.is_shared |= new.qos.is_some();
    }
}

/// Whether a switch has the same addresses and the same ports in both plans.
fn is_same_switch(old: &SwitchPlan, new: &SwitchPlan) -> bool {
    let numbers = |switch: &SwitchPlan| switch.ports.len();
    (old.guid, old.port_guid, old.lid, numbers(old)) == (new.guid, new.port_guid, new.lid, numbers(new))
        && (Arc::ptr_eq(&old.ports, &new.ports)
            || old.ports.iter().zip(new.ports.iter()).all(|(old, new)| old.number == new.number))
}

fn differs(old: &Arc<PkeyTable>, new: &Arc<PkeyTable>) -> bool {
    !Arc::ptr_eq(old, new) && old != new
}

fn has_other_sharing(old: &Option<Arc<PortQos>>, new: &Option<Arc<PortQos>>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => !Arc::ptr_eq(old, new) && old != new,
        (None, None) => false,
        _ => true,
    }
}
