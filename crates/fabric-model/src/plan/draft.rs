//! Makes a plan of another one, for the same devices.

use std::sync::Arc;

use ib_wire::{Gid, Guid, PartitionNumber};

use super::{AdapterPortPlan, FabricPlan, GroupPlan, PartitionPlan, PlanFinding, SwitchPlan};
use crate::decisions::Decisions;

/// A plan in the making. It begins as another one and shares with it whatever is not touched. Devices, GUIDs and LIDs
/// stay; where those are to change, a plan is put together from its parts.
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
    /// As far as it is.
    pub fn plan(&self) -> &FabricPlan {
        &self.plan
    }

    /// The switch at a place among the switches, to be changed.
    pub fn switch(&mut self, place: usize) -> Option<&mut SwitchPlan> {
        self.plan.switches.get_mut(place).map(Arc::make_mut)
    }

    /// The adapter port with this port GUID, to be changed.
    pub fn adapter_port(&mut self, guid: Guid) -> Option<&mut AdapterPortPlan> {
        self.plan.adapter_ports.get_mut(&guid)
    }

    /// A partition in place of the one with its number.
    pub fn put_partition(&mut self, partition: PartitionPlan) {
        self.plan.partitions.insert(partition.number, Arc::new(partition));
    }

    /// The partition with this number no longer.
    pub fn remove_partition(&mut self, number: PartitionNumber) {
        self.plan.partitions.remove(&number);
    }

    /// A group in place of the one with its address.
    pub fn put_group(&mut self, group: GroupPlan) {
        self.plan.groups.insert(group.mgid, Arc::new(group));
    }

    /// The group with this address no longer.
    pub fn remove_group(&mut self, mgid: Gid) {
        self.plan.groups.remove(&mgid);
    }

    /// What is not as it should be, to be changed.
    pub fn findings(&mut self) -> &mut Vec<PlanFinding> {
        &mut self.plan.findings
    }

    /// What the next compilation needs, to be changed.
    pub fn decisions(&mut self) -> &mut Decisions {
        &mut self.plan.decisions
    }

    /// The plan.
    pub fn finish(self) -> FabricPlan {
        self.plan
    }
}
