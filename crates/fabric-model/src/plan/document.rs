//! Serialized form of a plan, for storage and for transfer between processes.
//!
//! Linear tables are packed, and P_Key and QoS tables, which most ports share, are listed once. Q_Keys of groups are
//! included, since members receive them; management keys are not.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ib_wire::{DataLanes, Guid, Lid, Mtu, MulticastLid, Pkey, PortNum};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::qos::{PortQos, QosEntry};
use super::{
    AdapterPortPlan, Enforcement, FabricPlan, GroupPlan, ManagerPort, PartitionPlan, PkeyTable, PlanFinding,
    SwitchPlan, SwitchPortPlan,
};
use crate::decisions::Decisions;
use crate::intent::{AliasTable, PortName};
use crate::packed;
use crate::serde_with::known;

/// Serialized form of a [`FabricPlan`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanDocument {
    /// As 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<String>,
    pub manager: ManagerPort,
    /// P_Key tables that ports refer to by index.
    pub pkey_tables: Vec<Vec<Option<Pkey>>>,
    /// QoS tables that ports refer to by index.
    #[serde(rename = "sharings", default, skip_serializing_if = "Vec::is_empty")]
    pub qos_tables: Vec<QosEntry>,
    pub switches: Vec<SwitchEntry>,
    pub adapter_ports: Vec<AdapterPortEntry>,
    pub partitions: Vec<PartitionPlan>,
    pub groups: Vec<GroupPlan>,
    pub findings: Vec<PlanFinding>,
    pub decisions: Decisions,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SwitchEntry {
    pub guid: Guid,
    pub port_guid: Guid,
    pub lid: Lid,
    /// Output ports by LID, packed.
    pub linear: String,
    /// Output ports by multicast LID.
    pub multicast: BTreeMap<MulticastLid, Vec<PortNum>>,
    /// Index into `pkey_tables`.
    pub pkeys: usize,
    pub ports: Vec<SwitchPortEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SwitchPortEntry {
    pub number: PortNum,
    pub peer: PortName,
    #[serde(deserialize_with = "known::mtu")]
    pub mtu: Mtu,
    #[serde(deserialize_with = "known::lanes")]
    pub lanes: DataLanes,
    /// Index of the P_Key table that the port enforces; `None` if it enforces none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pkeys: Option<usize>,
    /// Index into `qos_tables`.
    #[serde(rename = "sharing", default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<usize>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdapterPortEntry {
    pub guid: Guid,
    pub name: PortName,
    pub peer: PortName,
    pub lid: Lid,
    #[serde(deserialize_with = "known::mtu")]
    pub mtu: Mtu,
    #[serde(deserialize_with = "known::lanes")]
    pub lanes: DataLanes,
    /// Index into `pkey_tables`.
    pub pkeys: usize,
    /// Index into `qos_tables`.
    #[serde(rename = "sharing", default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<usize>,
    #[serde(default, skip_serializing_if = "AliasTable::is_empty")]
    pub aliases: AliasTable,
}

impl Serialize for FabricPlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        PlanDocument::of(self).serialize(serializer)
    }
}

/// Rejects documents that are not consistent plans; the error says where and why, see [`PlanError`](super::PlanError).
impl<'de> Deserialize<'de> for FabricPlan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PlanDocument::deserialize(deserializer)?.decode().map_err(serde::de::Error::custom)
    }
}

impl PlanDocument {
    fn of(plan: &FabricPlan) -> Self {
        let mut tables = Tables::default();
        Self {
            basis: plan.basis().map(|basis| basis.to_string()),
            manager: plan.manager(),
            switches: plan.switches().map(|switch| SwitchEntry::of(switch, &mut tables)).collect(),
            adapter_ports: plan.adapter_ports().map(|port| AdapterPortEntry::of(port, &mut tables)).collect(),
            pkey_tables: tables.pkeys,
            qos_tables: tables.qos_tables,
            partitions: plan.partitions().cloned().collect(),
            groups: plan.groups().cloned().collect(),
            findings: plan.findings().to_vec(),
            decisions: plan.decisions().clone(),
        }
    }
}

impl SwitchEntry {
    fn of(switch: &SwitchPlan, tables: &mut Tables) -> Self {
        Self {
            guid: switch.guid,
            port_guid: switch.port_guid,
            lid: switch.lid,
            linear: packed::pack(&switch.linear.to_exits()),
            multicast: switch.multicast.exits().map(|(mlid, ports)| (mlid, ports.iter().collect())).collect(),
            pkeys: tables.pkey_index(&switch.pkeys),
            ports: switch.ports.iter().map(|port| SwitchPortEntry::of(port, tables)).collect(),
        }
    }
}

impl SwitchPortEntry {
    fn of(port: &SwitchPortPlan, tables: &mut Tables) -> Self {
        Self {
            number: port.number,
            peer: port.peer,
            mtu: port.mtu,
            lanes: port.lanes,
            pkeys: match &port.enforcement {
                Enforcement::Off => None,
                Enforcement::Both(table) => Some(tables.pkey_index(table)),
            },
            qos: port.qos.as_ref().map(|qos| tables.qos_index(qos)),
        }
    }
}

impl AdapterPortEntry {
    fn of(port: &AdapterPortPlan, tables: &mut Tables) -> Self {
        Self {
            guid: port.guid,
            name: port.name,
            peer: port.peer,
            lid: port.lid,
            mtu: port.mtu,
            lanes: port.lanes,
            pkeys: tables.pkey_index(&port.pkeys),
            qos: port.qos.as_ref().map(|qos| tables.qos_index(qos)),
            aliases: AliasTable::clone(&port.aliases),
        }
    }
}

/// Collects tables in the order of their first use: equal P_Key tables once, QoS tables once per shared pointer.
#[derive(Debug, Default)]
struct Tables {
    pkeys: Vec<Vec<Option<Pkey>>>,
    pkey_indices: HashMap<Vec<Option<Pkey>>, usize>,
    qos_tables: Vec<QosEntry>,
    qos_indices: HashMap<*const PortQos, usize>,
}

impl Tables {
    fn pkey_index(&mut self, table: &Arc<PkeyTable>) -> usize {
        if let Some(index) = self.pkey_indices.get(table.entries()) {
            return *index;
        }
        self.pkeys.push(table.entries().to_vec());
        self.pkey_indices.insert(table.entries().to_vec(), self.pkeys.len() - 1);
        self.pkeys.len() - 1
    }

    fn qos_index(&mut self, qos: &Arc<PortQos>) -> usize {
        let next = self.qos_tables.len();
        let index = *self.qos_indices.entry(Arc::as_ptr(qos)).or_insert(next);
        if index == next {
            self.qos_tables.push(QosEntry::from(&**qos));
        }
        index
    }
}
