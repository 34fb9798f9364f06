//! A plan for the same fabric and other wishes: LIDs and routes stay, the rest is looked at only where it changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_model::plan::{Enforcement, Finding, MulticastTable, PartitionPlan, PkeyTable, PlanParts};
use fabric_model::{FabricPlan, Intents};
use ib_wire::{Guid, PartitionNumber, Pkey};

use crate::CompileError;
use crate::assembly::partition_plan;
use crate::fabric::{EndPort, Fabric};
use crate::multicast::{self, Groups};
use crate::partitions::{self, Held, KeyTables, Partition};
use crate::routing::order::Order;

/// What a plan for the same basis becomes with other wishes. `None` if the plan does not fit the fabric after all.
pub(crate) fn recompile(
    fabric: &Fabric<'_>,
    intents: &Intents,
    before: &FabricPlan,
) -> Result<Option<FabricPlan>, CompileError> {
    let Some(order) = Order::kept(fabric, &before.decisions().routing) else { return Ok(None) };
    let ports: Option<Vec<&Arc<PkeyTable>>> =
        fabric.ends().iter().map(|(guid, end)| table(fabric, before, *guid, *end)).collect();
    let Some(tables) = ports else { return Ok(None) };

    let (partitions, numbers) = partitions::resolve(fabric, intents, before.decisions())?;
    let held = HeldTables { fabric, tables };
    let keys = partitions::lay_out(fabric, &partitions, &intents.capabilities, &held)?;
    let groups = multicast::replan(fabric, &order, &partitions, &intents.capabilities, before)?;
    let mut parts = before.parts().clone();
    parts.decisions.partitions = numbers;
    replace_findings(&mut parts, &keys, &groups);
    replace_keys(&mut parts, fabric, &held, &keys);
    replace_groups(&mut parts, groups);
    replace_partitions(&mut parts, partitions);
    Ok(Some(FabricPlan::from_parts(parts)))
}

/// The P_Key table of an end port.
fn table<'p>(
    fabric: &Fabric<'_>,
    plan: &'p FabricPlan,
    guid: Guid,
    end: EndPort,
) -> Option<&'p Arc<PkeyTable>> {
    match end {
        EndPort::Adapter(_) => plan.adapter_port(guid).map(|port| &port.pkeys),
        EndPort::Switch(place) => plan.switch(fabric.switches[place].guid).map(|switch| &switch.pkeys),
    }
}

/// What ports hold by a plan that was made for the same devices.
struct HeldTables<'a> {
    fabric: &'a Fabric<'a>,
    /// In the order of [`Fabric::ends`].
    tables: Vec<&'a Arc<PkeyTable>>,
}

impl Held for HeldTables<'_> {
    fn entries(&self, port: Guid) -> &[Option<Pkey>] {
        self.table(port).map_or(&[][..], |table| table.entries())
    }

    fn table(&self, port: Guid) -> Option<&Arc<PkeyTable>> {
        let place = self.fabric.ends().binary_search_by_key(&port, |(guid, _)| *guid).ok()?;
        self.tables.get(place).copied()
    }
}

/// Findings about cables and routes stay.
fn replace_findings(parts: &mut PlanParts, keys: &KeyTables, groups: &Groups) {
    parts.findings.retain(|finding| match finding {
        Finding::Unreachable { .. } | Finding::NoRoute { .. } => true,
        Finding::IndexZeroContested { .. } | Finding::GroupTurns { .. } | Finding::PromiseBroken { .. } => {
            false
        }
    });
    parts.findings.extend(keys.findings.iter().chain(groups.findings.values()).cloned());
}

/// Puts new P_Key tables where ports hold them and where their switches enforce them.
fn replace_keys(parts: &mut PlanParts, fabric: &Fabric<'_>, held: &HeldTables<'_>, keys: &KeyTables) {
    for (((guid, end), old), new) in fabric.ends().iter().zip(&held.tables).zip(&keys.tables) {
        if Arc::ptr_eq(old, new) || ***old == **new {
            continue;
        }
        if let Some(decision) = parts.decisions.end_ports.get_mut(guid) {
            decision.pkeys = new.entries().to_vec();
        }
        match end {
            EndPort::Adapter(index) => {
                if let Ok(place) = parts.adapter_ports.binary_search_by_key(guid, |port| port.guid) {
                    parts.adapter_ports[place].pkeys = Arc::clone(new);
                }
                let Some((switch, number)) = fabric.adapter_ports[*index].attached else { continue };
                let Some(switch) = parts.switches.get_mut(switch) else { continue };
                if let Ok(place) = switch.ports.binary_search_by_key(&number, |port| port.number) {
                    switch.ports[place].enforcement = Enforcement::Both(Arc::clone(new));
                }
            }
            EndPort::Switch(place) => {
                if let Some(switch) = parts.switches.get_mut(*place) {
                    switch.pkeys = Arc::clone(new);
                }
            }
        }
    }
}

fn replace_groups(parts: &mut PlanParts, groups: Groups) {
    for (place, exits) in groups.tables {
        let table = MulticastTable::from_exits(exits);
        if let Some(switch) = parts.switches.get_mut(place).filter(|switch| *switch.multicast != table) {
            switch.multicast = Arc::new(table);
        }
    }
    parts.groups = groups.plans;
    parts.decisions.groups = groups.decisions;
}

/// Partitions with the same members keep their lists.
fn replace_partitions(parts: &mut PlanParts, partitions: Vec<Partition>) {
    let before: BTreeMap<PartitionNumber, PartitionPlan> =
        std::mem::take(&mut parts.partitions).into_iter().map(|plan| (plan.number, plan)).collect();
    let plan = |partition: Partition| match before.get(&partition.number) {
        Some(plan) if plan.name == partition.name && is_same(plan, &partition) => plan.clone(),
        _ => partition_plan(partition),
    };
    parts.partitions = partitions.into_iter().map(plan).collect();
}

fn is_same(plan: &PartitionPlan, partition: &Partition) -> bool {
    plan.members.len() == partition.members.len()
        && plan.members.iter().eq(partition.members.iter().map(|(guid, (role, _))| (guid, role)))
}
