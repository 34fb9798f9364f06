//! Which entries differ between two plans for the same ports. Tables that both plans share are not read.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::plan::{
    AdapterPortPlan, Enforcement, MulticastTable, PkeyTable, PortSet, PortSharing, SwitchPlan, SwitchPortPlan,
};
use ib_wire::{Gid, Lid, MulticastLid, PartitionNumber, PortNum};

use crate::network::{Link, PORTS, Place};

/// Entries that differ between two plans.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub linear: Vec<(Place, Lid)>,
    pub multicast: Vec<(Place, MulticastLid)>,
    /// LIDs of groups that came, went or changed.
    pub groups: BTreeSet<MulticastLid>,
    /// Their addresses.
    pub mgids: BTreeSet<Gid>,
    /// Partitions of these groups, before or after.
    pub group_partitions: BTreeSet<PartitionNumber>,
    /// Partitions of the plan that came, went or changed.
    pub partitions: BTreeSet<PartitionNumber>,
    /// End ports with other keys.
    pub own_keys: Vec<usize>,
    /// Switch ports that let something else pass.
    pub enforced: Vec<(Place, PortNum)>,
    /// Links with other lanes, or shared otherwise.
    pub links: Vec<Link>,
    /// Switches that are to hold something else, ports apart.
    pub switches: Vec<Place>,
    /// Switch ports that are to hold something else.
    pub switch_ports: Vec<(Place, PortNum)>,
    /// Adapter ports that are to hold something else.
    pub adapters: Vec<usize>,
    /// Whether some cable or the manager is said to be elsewhere.
    pub is_cabled_otherwise: bool,
    /// Whether any link of the new plan is shared by the plan.
    pub is_shared: bool,
}

impl Changes {
    /// `None` if the plans do not have the same ports with the same LIDs.
    pub fn between(old: &FabricPlan, new: &FabricPlan) -> Option<Self> {
        let mut changes = Self { is_cabled_otherwise: old.manager() != new.manager(), ..Self::default() };
        let (switches, adapters) = (old.switches().len(), old.adapter_ports().len());
        if switches != new.switches().len() || adapters != new.adapter_ports().len() {
            return None;
        }
        let shared = old.shared_switches().iter().zip(new.shared_switches());
        for (place, (old, new)) in shared.enumerate() {
            changes.is_shared = changes.is_shared || new.ports.iter().any(|port| port.sharing.is_some());
            if Arc::ptr_eq(old, new) {
                continue;
            }
            if !is_same_switch(old, new) {
                return None;
            }
            changes.of_switch(place, old, new);
            if is_other(&old.pkeys, &new.pkeys) {
                changes.own_keys.push(adapters + place);
            }
            if !Arc::ptr_eq(&old.ports, &new.ports) {
                let ports = old.ports.iter().zip(new.ports.iter());
                ports.for_each(|(old, new)| changes.of_switch_port(place, old, new));
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

    /// Whether no level is carried elsewhere than it was.
    pub fn is_sharing_kept(&self) -> bool {
        let is_forwarding_kept =
            self.linear.is_empty() && self.multicast.is_empty() && self.groups.is_empty();
        self.links.is_empty() && (is_forwarding_kept || !self.is_shared)
    }

    fn of_switch(&mut self, place: Place, old: &SwitchPlan, new: &SwitchPlan) {
        let is_linear = !Arc::ptr_eq(&old.linear, &new.linear);
        let is_multicast = !Arc::ptr_eq(&old.multicast, &new.multicast);
        if is_linear {
            self.linear.extend(new.linear.differences(&old.linear).map(|lid| (place, lid)));
        }
        if is_multicast {
            self.of_multicast(place, &old.multicast, &new.multicast);
        }
        if is_linear || is_multicast || is_other(&old.pkeys, &new.pkeys) {
            self.switches.push(place);
        }
    }

    /// Both tables are in order.
    fn of_multicast(&mut self, place: Place, old: &MulticastTable, new: &MulticastTable) {
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
            self.multicast.extend(before.or(after).filter(|_| !is_same).map(|(mlid, _)| (place, mlid)));
        }
    }

    fn of_switch_port(&mut self, place: Place, old: &SwitchPortPlan, new: &SwitchPortPlan) {
        let is_enforced = match (&old.enforcement, &new.enforcement) {
            (Enforcement::Off, Enforcement::Off) => false,
            (Enforcement::Both(old), Enforcement::Both(new)) => is_other(old, new),
            _ => true,
        };
        if is_enforced {
            self.enforced.push((place, new.number));
        }
        let is_shared = old.lanes != new.lanes || is_shared_otherwise(&old.sharing, &new.sharing);
        if is_shared {
            self.links.push(place * PORTS + new.number.index());
        }
        let is_cabled = old.peer != new.peer;
        if is_enforced || is_shared || is_cabled || old.mtu != new.mtu {
            self.switch_ports.push((place, new.number));
        }
        self.is_cabled_otherwise |= is_cabled;
        self.is_shared |= new.sharing.is_some();
    }

    fn of_adapter(&mut self, end: usize, link: Link, old: &AdapterPortPlan, new: &AdapterPortPlan) {
        let is_keyed = is_other(&old.pkeys, &new.pkeys);
        if is_keyed {
            self.own_keys.push(end);
        }
        let is_shared = old.lanes != new.lanes || is_shared_otherwise(&old.sharing, &new.sharing);
        if is_shared {
            self.links.push(link);
        }
        let is_cabled = old.peer != new.peer;
        if is_keyed || is_shared || is_cabled || old.mtu != new.mtu {
            self.adapters.push(end);
        }
        self.is_cabled_otherwise |= is_cabled;
        self.is_shared |= new.sharing.is_some();
    }
}

/// Whether a switch has the same addresses and the same ports in both plans.
fn is_same_switch(old: &SwitchPlan, new: &SwitchPlan) -> bool {
    let numbers = |switch: &SwitchPlan| switch.ports.len();
    (old.guid, old.port_guid, old.lid, numbers(old)) == (new.guid, new.port_guid, new.lid, numbers(new))
        && (Arc::ptr_eq(&old.ports, &new.ports)
            || old.ports.iter().zip(new.ports.iter()).all(|(old, new)| old.number == new.number))
}

fn is_other(old: &Arc<PkeyTable>, new: &Arc<PkeyTable>) -> bool {
    !Arc::ptr_eq(old, new) && old != new
}

fn is_shared_otherwise(old: &Option<Arc<PortSharing>>, new: &Option<Arc<PortSharing>>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => !Arc::ptr_eq(old, new) && old != new,
        (None, None) => false,
        _ => true,
    }
}
