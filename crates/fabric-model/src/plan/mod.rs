//! What every device of a fabric is to hold: the result of a compilation, checked before it is sent.
//!
//! A [`FabricPlan`] leaves nothing to choose for whoever sends it. It cannot be changed; a [`Draft`] makes another one of
//! it, and what is not touched is shared by both. It holds no secrets: management keys are derived where they are used.

mod basis;
mod channels;
mod decode;
mod document;
mod draft;
mod finding;
mod qos;
mod switch;
mod tables;

use std::collections::BTreeMap;
use std::sync::Arc;

use ib_wire::sa::Rate;
use ib_wire::{
    DataLanes, Gid, Guid, Lid, Lmc, Mtu, MulticastLid, PartitionNumber, PortNum, QKey, ServiceLevel,
};
use serde::{Deserialize, Serialize};

pub use basis::Basis;
pub use decode::{PlanError, PlanProblem};
pub use draft::Draft;
pub use finding::PlanFinding;
pub use qos::PortQos;
pub use switch::{Enforcement, SwitchPlan, SwitchPortPlan};
pub use tables::{LINEAR_BYTES_MAX, LinearTable, MulticastTable, PkeyTable, PortSet};

use crate::decisions::Decisions;
use crate::intent::{MulticastScope, PortName, Role};
use crate::serde_with::{known, written_qkey};
use crate::shared_map::SharedMap;

/// The parts of a plan, in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanParts {
    /// The subnet manager's port.
    pub manager: ManagerPort,
    /// The switches.
    pub switches: Vec<SwitchPlan>,
    /// The ports of adapters and routers.
    pub adapter_ports: Vec<AdapterPortPlan>,
    /// The partitions.
    pub partitions: Vec<PartitionPlan>,
    /// The multicast groups.
    pub groups: Vec<GroupPlan>,
    /// What is not as it should be.
    pub findings: Vec<PlanFinding>,
    /// What the next compilation needs.
    pub decisions: Decisions,
}

/// A whole fabric as it is to be. A copy takes little, and plans that were made from each other by a [`Draft`] share
/// what did not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricPlan {
    manager: ManagerPort,
    /// By node GUID.
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
    /// Puts a plan together. GUIDs, numbers and LIDs are unique; of two with the same, the plan has one.
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

    /// A plan that begins as this one.
    pub fn draft(&self) -> Draft {
        Draft::from(self.clone())
    }

    /// The same plan, made from this.
    #[must_use]
    pub fn with_basis(mut self, basis: Basis) -> Self {
        self.basis = Some(basis);
        self
    }

    /// What it was made from, if that is known.
    pub fn basis(&self) -> Option<Basis> {
        self.basis
    }

    /// Its parts, lists in order: a copy of everything, to make another plan of.
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

    /// The subnet manager's port.
    pub fn manager(&self) -> ManagerPort {
        self.manager
    }

    /// The service level of what goes to and from the subnet manager: MasterSMSL of every end port.
    pub fn management_service_level(&self) -> ServiceLevel {
        self.decisions.management_sl.unwrap_or_default()
    }

    /// The switches by node GUID.
    pub fn switches(&self) -> impl ExactSizeIterator<Item = &SwitchPlan> {
        self.switches.iter().map(|switch| &**switch)
    }

    /// The switches by node GUID, to be shared: what two plans share is the same in both.
    pub fn shared_switches(&self) -> &[Arc<SwitchPlan>] {
        &self.switches
    }

    /// The switch with this node GUID.
    pub fn switch(&self, guid: Guid) -> Option<&SwitchPlan> {
        let place = self.switches.binary_search_by_key(&guid, |switch| switch.guid).ok()?;
        self.switches.get(place).map(|switch| &**switch)
    }

    /// The ports of adapters and routers by port GUID.
    pub fn adapter_ports(&self) -> impl ExactSizeIterator<Item = &AdapterPortPlan> {
        self.adapter_ports.values()
    }

    /// The same as a map, of which plans share parts.
    pub fn shared_adapter_ports(&self) -> &SharedMap<Guid, AdapterPortPlan> {
        &self.adapter_ports
    }

    /// The adapter port with this port GUID.
    pub fn adapter_port(&self, guid: Guid) -> Option<&AdapterPortPlan> {
        self.adapter_ports.get(&guid)
    }

    /// Where packets to a port leave a switch if nobody wishes for another way.
    pub fn default_exit(&self, switch: &SwitchPlan, port: &AdapterPortPlan) -> Option<PortNum> {
        let detour =
            self.decisions.overridden_exits.get(&port.guid).and_then(|exits| exits.get(&switch.guid));
        detour.copied().unwrap_or_else(|| switch.linear.exit(port.lid))
    }

    /// The forwarding table of a switch if nobody wishes for other ways.
    pub fn default_linear_table(&self, switch: &SwitchPlan) -> Arc<LinearTable> {
        let mut table = Arc::clone(&switch.linear);
        for (port, exits) in &self.decisions.overridden_exits {
            if let (Some(exit), Some(port)) = (exits.get(&switch.guid), self.adapter_port(*port)) {
                Arc::make_mut(&mut table).set_exit(port.lid, *exit);
            }
        }
        table
    }

    /// The partitions by number.
    pub fn partitions(&self) -> impl ExactSizeIterator<Item = &PartitionPlan> {
        self.partitions.values().map(|partition| &**partition)
    }

    /// The same as a map, of which plans share parts.
    pub fn shared_partitions(&self) -> &SharedMap<PartitionNumber, Arc<PartitionPlan>> {
        &self.partitions
    }

    /// The partition with this number.
    pub fn partition(&self, number: PartitionNumber) -> Option<&PartitionPlan> {
        self.partitions.get(&number).map(|partition| &**partition)
    }

    /// The multicast groups by GID.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = &GroupPlan> {
        self.groups.values().map(|group| &**group)
    }

    /// The same as a map, of which plans share parts.
    pub fn shared_groups(&self) -> &SharedMap<Gid, Arc<GroupPlan>> {
        &self.groups
    }

    /// LIDs in order, with the GUID of the end port that has each.
    pub fn lids(&self) -> impl ExactSizeIterator<Item = (Lid, Guid)> {
        self.by_lid.iter().map(|(lid, guid)| (*lid, *guid))
    }

    /// GUID of the end port that has a LID.
    pub fn lid_owner(&self, lid: Lid) -> Option<Guid> {
        self.by_lid.get(&lid).copied()
    }

    /// What is not as it should be.
    pub fn findings(&self) -> &[PlanFinding] {
        &self.findings
    }

    /// What the next compilation needs.
    pub fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    /// The same plan, its tables sharing memory with those of an older plan where they are equal, so that whoever looks
    /// for differences can skip them.
    #[must_use]
    pub fn sharing_tables_with(mut self, older: &Self) -> Self {
        for switch in &mut self.switches {
            let place = older.switches.binary_search_by_key(&switch.guid, |switch| switch.guid);
            let Some(old) = place.ok().and_then(|place| older.switches.get(place)) else { continue };
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

/// The subnet manager's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerPort {
    /// Its port GUID.
    pub guid: Guid,
    /// Its LID: MasterSMLID of every end port.
    pub lid: Lid,
}

/// A port of an adapter or a router. It is to be Active, and its MasterSMLID the manager's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterPortPlan {
    /// Its port GUID.
    pub guid: Guid,
    /// Its node and number.
    pub name: PortName,
    /// The port at the other end of its cable.
    pub peer: PortName,
    /// Its LID.
    pub lid: Lid,
    /// Largest packet of its link: the smaller of what both ends can.
    pub mtu: Mtu,
    /// Lanes of its link: the fewer of what both ends have.
    pub lanes: DataLanes,
    /// Its P_Key table.
    pub pkeys: Arc<PkeyTable>,
    /// How what it sends shares its link; `None` leaves that to the device.
    pub qos: Option<Arc<PortQos>>,
}

impl AdapterPortPlan {
    /// Every port has one LID.
    pub const LMC: Lmc = match Lmc::from_wire(0) {
        Some(lmc) => lmc,
        None => unreachable!(),
    };
}

/// A partition and who is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionPlan {
    /// Its number.
    pub number: PartitionNumber,
    /// What people call it.
    pub name: String,
    /// The end ports in it, by port GUID; present ones only.
    pub members: BTreeMap<Guid, Role>,
}

/// A multicast group and what its members have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPlan {
    /// Its address.
    pub mgid: Gid,
    /// Its LID, which groups on other switches may have too.
    pub mlid: MulticastLid,
    /// The partition it belongs to; packets carry the full key.
    pub partition: PartitionNumber,
    /// Largest packet.
    #[serde(deserialize_with = "known::mtu")]
    pub mtu: Mtu,
    /// The slowest port that may take part.
    #[serde(deserialize_with = "known::rate")]
    pub rate: Rate,
    /// Service level.
    pub sl: ServiceLevel,
    /// How far it reaches.
    pub scope: MulticastScope,
    /// Queue key.
    #[serde(with = "written_qkey")]
    pub qkey: QKey,
    /// Top of its tree, by node GUID, unless no switch takes part.
    pub root: Option<Guid>,
    /// The ports its tree serves, by port GUID.
    pub members: Vec<Guid>,
}
