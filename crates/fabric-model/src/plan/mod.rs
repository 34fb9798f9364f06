//! The fabric plan: the complete configuration of every device, as the compiler produces it, the verifier checks it and
//! the subnet manager programs it.
//!
//! A [`FabricPlan`] leaves no choice to the subnet manager. It is immutable; a [`Draft`] derives a new plan from it, and both
//! share what the draft does not change. A plan contains no secrets: management keys are derived where they are used.

mod basis;
mod channels;
mod decode;
mod document;
mod draft;
mod finding;
mod qos;
mod switch;

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_wire::{
    DataLanes, Gid, Guid, Lid, Lmc, Mtu, MulticastLid, PartitionNumber, PortNum, QKey, Rate, ServiceLevel,
};
use serde::{Deserialize, Serialize};

pub use basis::Basis;
pub use decode::{PlanError, PlanProblem};
pub use draft::Draft;
pub use finding::PlanFinding;
pub use qos::{PortQos, QosError};
pub use switch::{Enforcement, SwitchPlan, SwitchPortPlan};

use crate::decisions::Decisions;
pub use crate::packed::UnpackError;
pub use crate::tables::{LINEAR_BYTES_MAX, LinearTable, MulticastTable, PkeyTable, PortSet};

use crate::intent::{AliasTable, MulticastScope, PortName, Role};
use crate::serde_with::{known, qkey};
use crate::shared_map::SharedMap;

/// The parts of a plan. Lists may be in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanParts {
    pub manager: ManagerPort,
    pub switches: Vec<SwitchPlan>,
    /// Ports of adapters and of routers.
    pub adapter_ports: Vec<AdapterPortPlan>,
    pub partitions: Vec<PartitionPlan>,
    pub groups: Vec<GroupPlan>,
    /// Intents that the plan could not satisfy.
    pub findings: Vec<PlanFinding>,
    /// Input of the next compilation.
    pub decisions: Decisions,
}

/// The complete configuration of a fabric. Immutable and cheap to clone; plans that were derived from each other with a
/// [`Draft`] share what did not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricPlan {
    manager: ManagerPort,
    /// Sorted by node GUID.
    switches: Vec<Arc<SwitchPlan>>,
    adapter_ports: SharedMap<Guid, AdapterPortPlan>,
    partitions: SharedMap<PartitionNumber, Arc<PartitionPlan>>,
    groups: SharedMap<Gid, Arc<GroupPlan>>,
    findings: Vec<PlanFinding>,
    decisions: Decisions,
    by_lid: Arc<BTreeMap<Lid, Guid>>,
    basis: Option<Basis>,
}

impl FabricPlan {
    /// Assembles a plan. The caller ensures that GUIDs, partition numbers, MGIDs and LIDs are unique; of adapter ports,
    /// partitions and groups with the same key the last one wins.
    pub fn from_parts(parts: PlanParts) -> Self {
        let PlanParts { manager, mut switches, adapter_ports, partitions, groups, findings, decisions } =
            parts;
        switches.sort_by_key(|switch| switch.guid);
        let adapters = adapter_ports.iter().map(|port| (port.lid, port.guid));
        let by_lid = adapters.chain(switches.iter().map(|switch| (switch.lid, switch.port_guid))).collect();
        Self {
            manager,
            switches: switches.into_iter().map(Arc::new).collect(),
            adapter_ports: adapter_ports.into_iter().map(|port| (port.guid, port)).collect(),
            partitions: partitions.into_iter().map(|plan| (plan.number, Arc::new(plan))).collect(),
            groups: groups.into_iter().map(|plan| (plan.mgid, Arc::new(plan))).collect(),
            findings,
            decisions,
            by_lid: Arc::new(by_lid),
            basis: None,
        }
    }

    /// Starts a draft of a new plan that is equal to this one.
    pub fn draft(&self) -> Draft {
        Draft::from(self.clone())
    }

    /// Records the inputs that the plan was compiled from.
    #[must_use]
    pub fn with_basis(mut self, basis: Basis) -> Self {
        self.basis = Some(basis);
        self
    }

    /// Fingerprint of the inputs that the plan was compiled from, if it is known.
    pub fn basis(&self) -> Option<Basis> {
        self.basis
    }

    /// A deep copy of all parts, lists in order, as input of [`from_parts`](Self::from_parts).
    pub fn parts(&self) -> PlanParts {
        PlanParts {
            manager: self.manager,
            switches: self.switches().cloned().collect(),
            adapter_ports: self.adapter_ports().cloned().collect(),
            partitions: self.partitions().cloned().collect(),
            groups: self.groups().cloned().collect(),
            findings: self.findings.clone(),
            decisions: self.decisions.clone(),
        }
    }

    /// GUID and LID of the subnet manager's port.
    pub fn manager(&self) -> ManagerPort {
        self.manager
    }

    /// Service level of traffic to and from the subnet manager: PortInfo:MasterSMSL of every end port.
    pub fn management_service_level(&self) -> ServiceLevel {
        self.decisions.management_sl.unwrap_or_default()
    }

    /// The partition in which handed-over ports reach subnet administration, if they do not use the default partition.
    pub fn management_partition(&self) -> Option<PartitionNumber> {
        self.decisions.management_partition.filter(|number| self.partition(*number).is_some())
    }

    /// The switches, sorted by node GUID.
    pub fn switches(&self) -> impl ExactSizeIterator<Item = &SwitchPlan> {
        self.switches.iter().map(|switch| &**switch)
    }

    /// The switches, sorted by node GUID, as shared pointers: pointer equality between two plans means equal switches.
    pub fn shared_switches(&self) -> &[Arc<SwitchPlan>] {
        &self.switches
    }

    /// Looks a switch up by its node GUID.
    pub fn switch(&self, guid: Guid) -> Option<&SwitchPlan> {
        let index = self.switches.binary_search_by_key(&guid, |switch| switch.guid).ok()?;
        self.switches.get(index).map(|switch| &**switch)
    }

    /// The ports of adapters and routers, sorted by port GUID.
    pub fn adapter_ports(&self) -> impl ExactSizeIterator<Item = &AdapterPortPlan> {
        self.adapter_ports.values()
    }

    /// The ports of adapters and routers as a copy-on-write map by port GUID.
    pub fn shared_adapter_ports(&self) -> &SharedMap<Guid, AdapterPortPlan> {
        &self.adapter_ports
    }

    /// Looks an adapter or router port up by its port GUID.
    pub fn adapter_port(&self, guid: Guid) -> Option<&AdapterPortPlan> {
        self.adapter_ports.get(&guid)
    }

    /// The output port of a switch towards an adapter port without route overrides; `None` if there is no route.
    pub fn default_exit(&self, switch: &SwitchPlan, port: &AdapterPortPlan) -> Option<PortNum> {
        let overridden =
            self.decisions.overridden_exits.get(&port.guid).and_then(|exits| exits.get(&switch.guid));
        overridden.copied().unwrap_or_else(|| switch.linear.exit(port.lid))
    }

    /// The linear forwarding table of a switch without route overrides.
    pub fn default_linear_table(&self, switch: &SwitchPlan) -> Arc<LinearTable> {
        let mut table = Arc::clone(&switch.linear);
        for (port, exits) in &self.decisions.overridden_exits {
            if let (Some(exit), Some(port)) = (exits.get(&switch.guid), self.adapter_port(*port)) {
                Arc::make_mut(&mut table).set_exit(port.lid, *exit);
            }
        }
        table
    }

    /// The partitions, sorted by number.
    pub fn partitions(&self) -> impl ExactSizeIterator<Item = &PartitionPlan> {
        self.partitions.values().map(|partition| &**partition)
    }

    /// The partitions as a copy-on-write map by number.
    pub fn shared_partitions(&self) -> &SharedMap<PartitionNumber, Arc<PartitionPlan>> {
        &self.partitions
    }

    /// Looks a partition up by its number.
    pub fn partition(&self, number: PartitionNumber) -> Option<&PartitionPlan> {
        self.partitions.get(&number).map(|partition| &**partition)
    }

    /// The multicast groups, sorted by MGID.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = &GroupPlan> {
        self.groups.values().map(|group| &**group)
    }

    /// The multicast groups as a copy-on-write map by MGID.
    pub fn shared_groups(&self) -> &SharedMap<Gid, Arc<GroupPlan>> {
        &self.groups
    }

    /// All LIDs in order, each with the port GUID of its owner.
    pub fn lids(&self) -> impl ExactSizeIterator<Item = (Lid, Guid)> {
        self.by_lid.iter().map(|(lid, guid)| (*lid, *guid))
    }

    /// Port GUID of the end port that owns a LID.
    pub fn lid_owner(&self, lid: Lid) -> Option<Guid> {
        self.by_lid.get(&lid).copied()
    }

    /// Intents that the plan could not satisfy.
    pub fn findings(&self) -> &[PlanFinding] {
        &self.findings
    }

    /// The decisions behind the plan: input of the next compilation.
    pub fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    /// Replaces tables that are equal to those of an older plan by pointers to them, so that a comparison of both plans can
    /// skip them. The plan stays equal to itself.
    #[must_use]
    pub fn sharing_tables_with(mut self, older: &Self) -> Self {
        for switch in &mut self.switches {
            let index = older.switches.binary_search_by_key(&switch.guid, |switch| switch.guid);
            let Some(old) = index.ok().and_then(|index| older.switches.get(index)) else { continue };
            if Arc::ptr_eq(switch, old) {
                continue;
            }
            if *switch == *old {
                *switch = Arc::clone(old);
                continue;
            }
            share_switch(Arc::make_mut(switch), old);
        }
        let ports = self.adapter_ports.iter().map(|(guid, port)| {
            let mut port = port.clone();
            if let Some(old) = older.adapter_port(*guid) {
                share(&mut port.pkeys, &old.pkeys);
                share_some(&mut port.qos, old.qos.as_ref());
            }
            (*guid, port)
        });
        self.adapter_ports = ports.collect();
        self
    }
}

fn share_switch(switch: &mut SwitchPlan, old: &SwitchPlan) {
    share(&mut switch.linear, &old.linear);
    share(&mut switch.multicast, &old.multicast);
    share(&mut switch.pkeys, &old.pkeys);
    if switch.ports == old.ports {
        switch.ports = Arc::clone(&old.ports);
        return;
    }
    for port in Arc::make_mut(&mut switch.ports) {
        let Some(old) = old.port(port.number) else { continue };
        if let (Enforcement::Both(keys), Enforcement::Both(old)) = (&mut port.enforcement, &old.enforcement) {
            share(keys, old);
        }
        share_some(&mut port.qos, old.qos.as_ref());
    }
}

fn share_some<T: PartialEq>(table: &mut Option<Arc<T>>, older: Option<&Arc<T>>) {
    if let (Some(table), Some(older)) = (table, older) {
        share(table, older);
    }
}

fn share<T: PartialEq>(table: &mut Arc<T>, older: &Arc<T>) {
    if *table == *older {
        *table = Arc::clone(older);
    }
}

/// The port of the subnet manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerPort {
    pub guid: Guid,
    /// PortInfo:MasterSMLID of every end port.
    pub lid: Lid,
}

/// Configuration of a port of an adapter or a router. The port becomes Active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterPortPlan {
    pub guid: Guid,
    pub name: PortName,
    /// The port at the other end of the cable.
    pub peer: PortName,
    pub lid: Lid,
    /// PortInfo:NeighborMTU: the smaller MTUCap of both ends.
    pub mtu: Mtu,
    /// PortInfo:OperationalVLs: the smaller VLCap of both ends.
    pub lanes: DataLanes,
    pub pkeys: Arc<PkeyTable>,
    /// SL-to-VL maps and arbitration tables for what the port sends; `None` leaves the device's own tables in place.
    pub qos: Option<Arc<PortQos>>,
    /// Further addresses of the port.
    pub aliases: Arc<AliasTable>,
}

impl AdapterPortPlan {
    /// LMC of every port: one LID each.
    pub const LMC: Lmc = match Lmc::from_wire(0) {
        Some(lmc) => lmc,
        None => unreachable!(),
    };
}

/// A partition and its members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionPlan {
    pub number: PartitionNumber,
    pub name: String,
    /// Member end ports that are present, by port GUID.
    pub members: BTreeMap<Guid, Role>,
}

/// A multicast group: the attributes of its MCMemberRecord, its tree and its members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPlan {
    pub mgid: Gid,
    /// Groups whose trees share no switch may have the same multicast LID.
    pub mlid: MulticastLid,
    /// Packets carry the full P_Key of this partition.
    pub partition: PartitionNumber,
    #[serde(deserialize_with = "known::mtu")]
    pub mtu: Mtu,
    /// Minimum rate of a member port.
    #[serde(deserialize_with = "known::rate")]
    pub rate: Rate,
    pub sl: ServiceLevel,
    pub scope: MulticastScope,
    #[serde(with = "qkey")]
    pub qkey: QKey,
    /// Node GUID of the root of the tree; `None` if the tree has no switch.
    pub root: Option<Guid>,
    /// Port GUIDs of the ports that the tree reaches.
    pub members: Vec<Guid>,
}
