//! Compiles other intents for the same fabric, from the previous plan: LIDs and routes stay, everything else is computed.

use std::sync::Arc;

use fabric_model::plan::{Draft, Enforcement, PartitionPlan, PkeyTable, PlanFinding};
use fabric_model::{FabricPlan, Intents};
use ib_wire::{Guid, Pkey};

use crate::CompileError;
use crate::assembly::partition_plan;
use crate::fabric::{AdapterPort, EndPort, Fabric};
use crate::partitions::{self, KeyTables, Partition, Partitions, PreviousKeys};
use crate::routing::RoutingContext;
use crate::{multicast, route_overrides};

/// A draft for other intents of a plan with the same basis, without guarantees, classes and route overrides. `None` if the
/// plan lacks an end port of the fabric.
pub(crate) fn recompile(
    fabric: &Fabric,
    context: &RoutingContext,
    intents: &Intents,
    before: &FabricPlan,
) -> Result<Option<(Draft, Partitions, KeyTables)>, CompileError> {
    let ports: Option<Vec<&Arc<PkeyTable>>> =
        fabric.ends().iter().map(|(guid, end)| table(fabric, before, *guid, *end)).collect();
    let Some(tables) = ports else { return Ok(None) };

    let (partitions, numbers) = partitions::resolve(fabric, intents, before.decisions())?;
    let held = HeldTables { fabric, tables };
    let keys = partitions::lay_out(fabric, &partitions, &intents.capabilities, &held)?;
    let routing = (&context.order, &context.core_tree);
    let groups = multicast::replan(fabric, routing, &partitions, &intents.capabilities, before)?;
    let mut draft = before.draft();
    route_overrides::withdraw(&mut draft, fabric);
    draft.decisions().partitions = numbers;
    if partitions.management.is_some() {
        draft.decisions().management_partition = partitions.management;
    }
    put_findings(&mut draft, keys.findings());
    for (end_index, (old, new)) in held.tables.iter().zip(&keys.tables).enumerate() {
        if !Arc::ptr_eq(old, new) && ***old != **new {
            put_keys(&mut draft, fabric, end_index, new);
        }
    }
    groups.put(&mut draft);
    for number in before.partitions().map(|plan| plan.number) {
        if !partitions.by_number.contains_key(&number) {
            draft.remove_partition(number);
        }
    }
    for partition in partitions.by_number.values() {
        put_partition(&mut draft, partition);
    }
    Ok(Some((draft, partitions, keys)))
}

/// The P_Key table of an end port.
fn table<'p>(fabric: &Fabric, plan: &'p FabricPlan, guid: Guid, end: EndPort) -> Option<&'p Arc<PkeyTable>> {
    match end {
        EndPort::Adapter(_) => plan.adapter_port(guid).map(|port| &port.pkeys),
        EndPort::Switch(index) => plan.switch(fabric.switches[index].guid).map(|switch| &switch.pkeys),
    }
}

/// The P_Key tables of a plan for the same devices.
struct HeldTables<'a> {
    fabric: &'a Fabric,
    /// In the order of [`Fabric::ends`].
    tables: Vec<&'a Arc<PkeyTable>>,
}

impl PreviousKeys for HeldTables<'_> {
    fn entries(&self, port: Guid) -> &[Option<Pkey>] {
        self.table(port).map_or(&[][..], |table| table.entries())
    }

    fn table(&self, port: Guid) -> Option<&Arc<PkeyTable>> {
        let end_index = self.fabric.ends().binary_search_by_key(&port, |(guid, _)| *guid).ok()?;
        self.tables.get(end_index).copied()
    }
}

/// Keeps findings about cables and routes, and replaces those that follow from intents.
pub(crate) fn put_findings<'a>(draft: &mut Draft, keys: impl Iterator<Item = &'a PlanFinding>) {
    let findings = draft.findings();
    findings.retain(|finding| match finding {
        PlanFinding::Unreachable { .. }
        | PlanFinding::Unenforced { .. }
        | PlanFinding::EnforcedByAdapters { .. }
        | PlanFinding::RawUnfiltered { .. }
        | PlanFinding::AdaptiveRouting { .. }
        | PlanFinding::SlowLinks { .. }
        | PlanFinding::NoRoute { .. } => true,
        PlanFinding::IndexZeroContested { .. }
        | PlanFinding::GuaranteeViolated { .. }
        | PlanFinding::RouteOverrideRejected { .. }
        | PlanFinding::ClassWeightsRejected { .. } => false,
    });
    findings.extend(keys.cloned());
}

/// Writes the P_Key table of an end port, by its index in [`Fabric::ends`], into the port and into the switch port that
/// enforces it.
pub(crate) fn put_keys(draft: &mut Draft, fabric: &Fabric, end_index: usize, table: &Arc<PkeyTable>) {
    let (guid, end) = fabric.ends()[end_index];
    if let Some(decision) = draft.decisions().end_ports.get_mut(&guid) {
        decision.pkeys = table.entries().to_vec();
    }
    match end {
        EndPort::Adapter(index) => {
            if let Some(port) = draft.adapter_port(guid) {
                port.pkeys = Arc::clone(table);
            }
            let AdapterPort { attached, enforced_pkeys, .. } = fabric.adapter_ports[index];
            let Some((switch, number)) = attached.filter(|_| enforced_pkeys > 0) else { return };
            if let Some(port) = draft.switch(switch).and_then(|switch| switch.port_mut(number)) {
                port.enforcement = Enforcement::Both(Arc::clone(table));
            }
        }
        EndPort::Switch(index) => {
            if let Some(switch) = draft.switch(index) {
                switch.pkeys = Arc::clone(table);
            }
        }
    }
}

/// Writes a partition unless the plan has it already.
pub(crate) fn put_partition(draft: &mut Draft, partition: &Partition) {
    let is_same = |plan: &PartitionPlan| {
        plan.name == partition.name
            && plan.members.len() == partition.members.len()
            && plan.members.iter().eq(partition.members.iter().map(|(guid, (role, _))| (guid, role)))
    };
    if !draft.plan().partition(partition.number).is_some_and(is_same) {
        draft.put_partition(partition_plan(partition));
    }
}
