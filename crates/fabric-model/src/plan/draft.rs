//! [`Draft`]: derives a plan from another one for the same devices.

use std::sync::Arc;

use ib_wire::{Gid, Guid, PartitionNumber};

use super::{AdapterPortPlan, FabricPlan, GroupPlan, PartitionPlan, PlanFinding, SwitchPlan};
use crate::decisions::Decisions;

/// A modifiable copy of a plan, made by [`FabricPlan::draft`]. It shares with the original what is not modified;
/// [`finish`](Self::finish) returns the new plan.
///
/// Devices, GUIDs and LIDs must not change: indices over them are kept. To change those, use [`FabricPlan::from_parts`].
#[derive(Debug)]
pub struct Draft {
    plan: FabricPlan,
}

impl From<FabricPlan> for Draft {
    fn from(plan: FabricPlan) -> Self {
        Self { plan }
    }
}

impl Draft {
    /// The current state of the draft.
    pub fn plan(&self) -> &FabricPlan {
        &self.plan
    }

    /// Mutable access to a switch by its index in [`FabricPlan::shared_switches`]. Copies it if it is shared.
    pub fn switch(&mut self, index: usize) -> Option<&mut SwitchPlan> {
        self.plan.switches.get_mut(index).map(Arc::make_mut)
    }

    /// Mutable access to an adapter port by its port GUID. Copies its part of the map if it is shared.
    pub fn adapter_port(&mut self, guid: Guid) -> Option<&mut AdapterPortPlan> {
        self.plan.adapter_ports.get_mut(&guid)
    }

    /// Adds a partition, or replaces the one with the same number.
    pub fn put_partition(&mut self, partition: PartitionPlan) {
        self.plan.partitions.insert(partition.number, Arc::new(partition));
    }

    /// Removes a partition; does nothing if there is none with this number.
    pub fn remove_partition(&mut self, number: PartitionNumber) {
        self.plan.partitions.remove(&number);
    }

    /// Adds a multicast group, or replaces the one with the same MGID.
    pub fn put_group(&mut self, group: GroupPlan) {
        self.plan.groups.insert(group.mgid, Arc::new(group));
    }

    /// Removes a multicast group; does nothing if there is none with this MGID.
    pub fn remove_group(&mut self, mgid: Gid) {
        self.plan.groups.remove(&mgid);
    }

    /// Mutable access to the findings.
    pub fn findings(&mut self) -> &mut Vec<PlanFinding> {
        &mut self.plan.findings
    }

    /// Mutable access to the decisions.
    pub fn decisions(&mut self) -> &mut Decisions {
        &mut self.plan.decisions
    }

    /// Turns the draft into a plan.
    pub fn finish(self) -> FabricPlan {
        self.plan
    }
}
