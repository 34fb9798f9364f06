//! Which devices a pass over the fabric has to look at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::plan::{AdapterPortPlan, Enforcement, SwitchPlan, SwitchPortPlan};
use ib_wire::Guid;

use crate::observed::ObservedNode;

/// Devices whose tables may differ from a plan; all others are known to hold what it says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// Node GUIDs.
    pub switches: Vec<Guid>,
    /// Port GUIDs.
    pub adapter_ports: Vec<Guid>,
}

impl Scope {
    /// What differs between a plan that is in force and the next, and nodes that may have lost something. Devices that
    /// were not seen are left out.
    pub fn between(
        settled: Option<&FabricPlan>,
        plan: &FabricPlan,
        dirty: &BTreeSet<Guid>,
        nodes: &BTreeMap<Guid, ObservedNode>,
    ) -> Self {
        let settled = settled.filter(|settled| settled.manager() == plan.manager());
        let old_switch = |guid| settled.and_then(|settled| settled.switch(guid));
        let old_port = |guid| settled.and_then(|settled| settled.adapter_port(guid));
        let switches = plan.switches().filter(|switch| {
            dirty.contains(&switch.guid)
                || old_switch(switch.guid).is_none_or(|old| !same_switch(old, switch))
        });
        let ports = plan.adapter_ports().filter(|port| {
            dirty.contains(&port.name.node) || old_port(port.guid).is_none_or(|old| !same_port(old, port))
        });
        Self {
            switches: switches.map(|it| it.guid).filter(|guid| nodes.contains_key(guid)).collect(),
            adapter_ports: ports
                .filter(|port| nodes.contains_key(&port.name.node))
                .map(|port| port.guid)
                .collect(),
        }
    }
}

/// Whether two plans of a switch are the same, by the tables they share rather than entry by entry.
fn same_switch(old: &SwitchPlan, new: &SwitchPlan) -> bool {
    old.lid == new.lid
        && same(&old.linear, &new.linear)
        && same(&old.multicast, &new.multicast)
        && same(&old.pkeys, &new.pkeys)
        && old.ports.len() == new.ports.len()
        && old.ports.iter().zip(&new.ports).all(|(old, new)| same_external(old, new))
}

fn same_external(old: &SwitchPortPlan, new: &SwitchPortPlan) -> bool {
    let enforcement = match (&old.enforcement, &new.enforcement) {
        (Enforcement::Off, Enforcement::Off) => true,
        (Enforcement::Both(old), Enforcement::Both(new)) => same(old, new),
        _ => false,
    };
    enforcement
        && same_some(&old.sharing, &new.sharing)
        && (old.number, old.mtu, old.lanes) == (new.number, new.mtu, new.lanes)
}

fn same_port(old: &AdapterPortPlan, new: &AdapterPortPlan) -> bool {
    (old.name, old.lid, old.mtu, old.lanes) == (new.name, new.lid, new.mtu, new.lanes)
        && same(&old.pkeys, &new.pkeys)
        && same_some(&old.sharing, &new.sharing)
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
