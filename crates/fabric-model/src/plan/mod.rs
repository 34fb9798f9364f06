//! What every device of a fabric is to hold: the result of a compilation, checked before it is sent.
//!
//! A [`FabricPlan`] leaves nothing to choose for whoever sends it. It cannot be changed; tables are shared between
//! plans by [`FabricPlan::sharing_tables_with`]. It holds no secrets: management keys are derived where they are used.

mod basis;
mod channels;
mod document;
mod finding;
mod reading;
mod sharing;
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
pub use finding::Finding;
pub use reading::{PlanError, PlanProblem};
pub use sharing::PortSharing;
pub use switch::{Enforcement, SwitchPlan, SwitchPortPlan};
pub use tables::{LINEAR_BYTES_MAX, LinearTable, MulticastTable, PkeyTable, PortSet};

use crate::decisions::Decisions;
use crate::intent::{MulticastScope, PortName, Role};
use crate::written::{known, written_qkey};

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
    pub findings: Vec<Finding>,
    /// What the next compilation needs.
    pub decisions: Decisions,
}

/// A whole fabric as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricPlan {
    parts: PlanParts,
    by_lid: BTreeMap<Lid, Guid>,
    basis: Option<Basis>,
}

impl FabricPlan {
    /// Puts a plan together. GUIDs and LIDs are unique; of two with the same, lookups see one.
    pub fn from_parts(mut parts: PlanParts) -> Self {
        parts.switches.sort_by_key(|switch| switch.guid);
        parts.adapter_ports.sort_by_key(|port| port.guid);
        parts.partitions.sort_by_key(|partition| partition.number);
        parts.groups.sort_by_key(|group| group.mgid);
        let adapters = parts.adapter_ports.iter().map(|port| (port.lid, port.guid));
        let switches = parts.switches.iter().map(|switch| (switch.lid, switch.port_guid));
        let by_lid = adapters.chain(switches).collect();
        Self { parts, by_lid, basis: None }
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

    /// Its parts; lists are in order.
    pub fn parts(&self) -> &PlanParts {
        &self.parts
    }

    /// The subnet manager's port.
    pub fn manager(&self) -> ManagerPort {
        self.parts.manager
    }

    /// The switches by node GUID.
    pub fn switches(&self) -> impl ExactSizeIterator<Item = &SwitchPlan> {
        self.parts.switches.iter()
    }

    /// The switch with this node GUID.
    pub fn switch(&self, guid: Guid) -> Option<&SwitchPlan> {
        let place = self.parts.switches.binary_search_by_key(&guid, |switch| switch.guid).ok()?;
        self.parts.switches.get(place)
    }

    /// The ports of adapters and routers by port GUID.
    pub fn adapter_ports(&self) -> impl ExactSizeIterator<Item = &AdapterPortPlan> {
        self.parts.adapter_ports.iter()
    }

    /// The adapter port with this port GUID.
    pub fn adapter_port(&self, guid: Guid) -> Option<&AdapterPortPlan> {
        let place = self.parts.adapter_ports.binary_search_by_key(&guid, |port| port.guid).ok()?;
        self.parts.adapter_ports.get(place)
    }

    /// The partitions by number.
    pub fn partitions(&self) -> impl ExactSizeIterator<Item = &PartitionPlan> {
        self.parts.partitions.iter()
    }

    /// The partition with this number.
    pub fn partition(&self, number: PartitionNumber) -> Option<&PartitionPlan> {
        let place = self.parts.partitions.binary_search_by_key(&number, |partition| partition.number).ok()?;
        self.parts.partitions.get(place)
    }

    /// The multicast groups by GID.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = &GroupPlan> {
        self.parts.groups.iter()
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
    pub fn findings(&self) -> &[Finding] {
        &self.parts.findings
    }

    /// What the next compilation needs.
    pub fn decisions(&self) -> &Decisions {
        &self.parts.decisions
    }

    /// The same plan, its tables sharing memory with those of an older plan where they are equal, so that whoever looks
    /// for differences can skip them.
    #[must_use]
    pub fn sharing_tables_with(mut self, older: &Self) -> Self {
        for switch in &mut self.parts.switches {
            let Some(old) = older.switch(switch.guid) else { continue };
            share(&mut switch.linear, &old.linear);
            share(&mut switch.multicast, &old.multicast);
            share(&mut switch.pkeys, &old.pkeys);
            for port in &mut switch.ports {
                let old = old.port(port.number).map(|port| &port.enforcement);
                if let (Enforcement::Both(keys), Some(Enforcement::Both(old))) = (&mut port.enforcement, old)
                {
                    share(keys, old);
                }
                share_some(&mut port.sharing, older_sharing(older, switch.guid, port.number));
            }
        }
        for port in &mut self.parts.adapter_ports {
            if let Some(old) = older.adapter_port(port.guid) {
                share(&mut port.pkeys, &old.pkeys);
                share_some(&mut port.sharing, old.sharing.as_ref());
            }
        }
        self
    }
}

fn older_sharing(older: &FabricPlan, switch: Guid, port: PortNum) -> Option<&Arc<PortSharing>> {
    older.switch(switch)?.port(port)?.sharing.as_ref()
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
    pub sharing: Option<Arc<PortSharing>>,
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
