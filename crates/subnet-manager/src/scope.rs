//! The devices that a programming run concerns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::plan::{AdapterPortPlan, Enforcement, SwitchPlan, SwitchPortPlan};
use ib_wire::Guid;

use crate::observed::ObservedNode;

/// Devices whose tables may differ from a plan; all others are known to hold it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// Node GUIDs of switches.
    pub switches: Vec<Guid>,
    /// Port GUIDs of adapters.
    pub adapter_ports: Vec<Guid>,
}

impl Scope {
    /// The devices that differ between the plan in force and the next one, and those in `dirty`. Unknown
    /// devices are excluded.
    pub fn between(
        in_force: Option<&FabricPlan>,
        plan: &FabricPlan,
        dirty: &BTreeSet<Guid>,
        nodes: &BTreeMap<Guid, ObservedNode>,
    ) -> Self {
        let changed = changed_devices(in_force, plan);
        let of_dirty = |guid: &Guid| dirty.contains(guid) && plan.switch(*guid).is_some();
        let mut switches: BTreeSet<Guid> = dirty.iter().copied().filter(of_dirty).collect();
        switches.extend(changed.switches);
        let mut ports: BTreeSet<Guid> = changed.adapter_ports.into_iter().collect();
        if !dirty.is_empty() {
            let dirty = plan.adapter_ports().filter(|port| dirty.contains(&port.name.node));
            ports.extend(dirty.map(|port| port.guid));
        }
        let is_seen =
            |port: &Guid| plan.adapter_port(*port).is_some_and(|port| nodes.contains_key(&port.name.node));
        Self {
            switches: switches.into_iter().filter(|guid| nodes.contains_key(guid)).collect(),
            adapter_ports: ports.into_iter().filter(is_seen).collect(),
        }
    }
}

/// Devices for which two plans have different tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedDevices {
    /// Node GUIDs of switches.
    pub switches: Vec<Guid>,
    /// Port GUIDs of adapters.
    pub adapter_ports: Vec<Guid>,
}

/// The devices that differ between the plan in force and the next one: all, if there is none in force or the
/// manager's port differs. Tables that both plans share are compared by identity.
pub fn changed_devices(in_force: Option<&FabricPlan>, plan: &FabricPlan) -> ChangedDevices {
    let Some(in_force) = in_force.filter(|in_force| in_force.manager() == plan.manager()) else {
        let switches = plan.switches().map(|switch| switch.guid).collect();
        return ChangedDevices {
            switches,
            adapter_ports: plan.adapter_ports().map(|port| port.guid).collect(),
        };
    };
    let mut changed = ChangedDevices::default();
    let switches = in_force.shared_switches();
    for (index, switch) in plan.shared_switches().iter().enumerate() {
        // Usually it has the same index in both plans.
        let there = switches.get(index).filter(|old| old.guid == switch.guid).map(|old| &**old);
        let old = there.or_else(|| in_force.switch(switch.guid));
        if old.is_none_or(|old| !std::ptr::eq(old, &**switch) && !same_switch(old, switch)) {
            changed.switches.push(switch.guid);
        }
    }
    for difference in plan.shared_adapter_ports().differences(in_force.shared_adapter_ports()) {
        let Some((_, port)) = difference.after else { continue };
        if difference.before.is_none_or(|old| !same_port(old, port)) {
            changed.adapter_ports.push(port.guid);
        }
    }
    changed
}

/// Whether two plans of a switch are equal. Shared tables are compared by identity first.
fn same_switch(old: &SwitchPlan, new: &SwitchPlan) -> bool {
    old.lid == new.lid
        && same(&old.linear, &new.linear)
        && same(&old.multicast, &new.multicast)
        && same(&old.pkeys, &new.pkeys)
        && same_externals(&old.ports, &new.ports)
}

fn same_externals(old: &Arc<[SwitchPortPlan]>, new: &Arc<[SwitchPortPlan]>) -> bool {
    let same_ports = || old.iter().zip(&**new).all(|(old, new)| same_external(old, new));
    Arc::ptr_eq(old, new) || old.len() == new.len() && same_ports()
}

fn same_external(old: &SwitchPortPlan, new: &SwitchPortPlan) -> bool {
    let enforcement = match (&old.enforcement, &new.enforcement) {
        (Enforcement::Off, Enforcement::Off) => true,
        (Enforcement::Both(old), Enforcement::Both(new)) => same(old, new),
        _ => false,
    };
    enforcement
        && same_some(&old.qos, &new.qos)
        && (old.number, old.mtu, old.lanes) == (new.number, new.mtu, new.lanes)
}

fn same_port(old: &AdapterPortPlan, new: &AdapterPortPlan) -> bool {
    (old.name, old.lid, old.mtu, old.lanes) == (new.name, new.lid, new.mtu, new.lanes)
        && same(&old.pkeys, &new.pkeys)
        && same_some(&old.qos, &new.qos)
        && same(&old.aliases, &new.aliases)
}

fn same_some<T: PartialEq>(old: &Option<Arc<T>>, new: &Option<Arc<T>>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => same(old, new),
        (old, new) => old.is_none() && new.is_none(),
    }
}

fn same<T: PartialEq>(old: &Arc<T>, new: &Arc<T>) -> bool {
    Arc::ptr_eq(old, new) || old == new
}
