//! Decodes a serialized plan and checks that it is consistent.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use ib_wire::{Guid, Lid, PortNum};
use thiserror::Error;

use super::document::{AdapterPortEntry, PlanDocument, SwitchEntry, SwitchPortEntry};
use super::qos::{QosEntry, QosError};
use super::{
    AdapterPortPlan, Basis, Enforcement, FabricPlan, LINEAR_BYTES_MAX, LinearTable, MulticastTable,
    PkeyTable, PlanParts, PortQos, SwitchPlan, SwitchPortPlan,
};
use crate::intent::PortName;
use crate::packed::{self, UnpackError};
use crate::topology::{NODES_MAX, PORTS_MAX};

/// Largest number of entries of a P_Key table: PartitionCap has 16 bits.
const PKEYS_MAX: usize = 0xffff;

/// Longest name of a partition, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Why a document was rejected as a plan, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{location}: {problem}")]
pub struct PlanError {
    /// The part of the plan, such as `switch 0x…`.
    pub location: String,
    pub problem: PlanProblem,
}

/// What is wrong with a part of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanProblem {
    #[error("at most {max} allowed, got {got}")]
    TooMany { max: usize, got: usize },
    /// A GUID, LID, port, partition or group that must be unique occurs twice.
    #[error("duplicate {0}")]
    Duplicate(String),
    /// The document refers to something that it does not contain.
    #[error("the plan has no {0}")]
    Missing(String),
    #[error("the basis must have 32 hexadecimal digits")]
    InvalidBasis,
    #[error("port 0 of a node cannot have a cable")]
    PortZeroCabled,
    #[error(transparent)]
    InvalidTable(UnpackError),
    #[error(transparent)]
    InvalidQos(QosError),
    /// A linear table forwards to a port without a cable.
    #[error("LID {lid} is forwarded to port {port}, which has no cable")]
    NoSuchExit { lid: usize, port: u8 },
    /// The ends of a cable do not name each other.
    #[error("the peer {0} does not name this port as its peer")]
    OneSided(PortName),
}

impl PlanProblem {
    fn at(self, location: impl fmt::Display) -> PlanError {
        PlanError { location: location.to_string(), problem: self }
    }
}

impl PlanDocument {
    /// Decodes the plan. Checks that GUIDs, LIDs, partitions and groups are unique, that the ends of every cable name each
    /// other, and that members, tables and output ports exist.
    pub(super) fn decode(self) -> Result<FabricPlan, PlanError> {
        check_count("switches", self.switches.len(), NODES_MAX)?;
        check_count("adapter ports", self.adapter_ports.len(), PORTS_MAX)?;
        check_count("P_Key tables", self.pkey_tables.len(), PORTS_MAX)?;
        let ends = Ends::of(&self)?;
        ends.check_manager(&self)?;
        ends.check_cables(&self)?;
        ends.check_members(&self)?;
        let basis = self.basis.as_deref().map(basis).transpose()?;
        check_count("QoS tables", self.qos_tables.len(), 2 * PORTS_MAX)?;
        let tables =
            Tables { pkeys: pkey_tables(self.pkey_tables)?, qos_tables: qos_tables(self.qos_tables)? };
        let mut bytes_left = LINEAR_BYTES_MAX;
        let switches = self.switches.into_iter().map(|entry| switch(entry, &ends, &tables, &mut bytes_left));
        let adapter_ports = self.adapter_ports.into_iter().map(|entry| adapter_port(entry, &tables));
        let plan = FabricPlan::from_parts(PlanParts {
            manager: self.manager,
            switches: switches.collect::<Result<_, _>>()?,
            adapter_ports: adapter_ports.collect::<Result<_, _>>()?,
            partitions: self.partitions,
            groups: self.groups,
            findings: self.findings,
            decisions: self.decisions,
        });
        Ok(match basis {
            Some(basis) => plan.with_basis(basis),
            None => plan,
        })
    }
}

fn check_count(what: &str, got: usize, max: usize) -> Result<(), PlanError> {
    if got > max { Err(PlanProblem::TooMany { max, got }.at(what)) } else { Ok(()) }
}

fn basis(text: &str) -> Result<Basis, PlanError> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = if is_hex { u128::from_str_radix(text, 16).ok() } else { None };
    number.map(Basis::from_number).ok_or_else(|| PlanProblem::InvalidBasis.at("basis"))
}

/// End ports, switches and cables of a document, to check references to them.
struct Ends {
    /// The peer of every cabled port.
    peers: HashMap<PortName, PortName>,
    switches: HashSet<Guid>,
    /// LIDs by port GUID.
    lids: HashMap<Guid, Lid>,
    highest_lid: Lid,
}

impl Ends {
    /// Checks that GUIDs, LIDs and ports are unique.
    fn of(document: &PlanDocument) -> Result<Self, PlanError> {
        let first = document.manager.lid;
        let mut ends = Self {
            peers: HashMap::new(),
            switches: HashSet::new(),
            lids: HashMap::new(),
            highest_lid: first,
        };
        let mut owners: HashSet<Lid> = HashSet::new();
        let adapters = document.adapter_ports.iter().map(|port| (port.guid, port.lid));
        let switches = document.switches.iter().map(|switch| (switch.port_guid, switch.lid));
        for (guid, lid) in adapters.chain(switches) {
            if ends.lids.insert(guid, lid).is_some() {
                return Err(PlanProblem::Duplicate(format!("port GUID {guid}")).at("end ports"));
            }
            if !owners.insert(lid) {
                return Err(PlanProblem::Duplicate(format!("LID {lid}")).at(format_args!("end port {guid}")));
            }
            ends.highest_lid = ends.highest_lid.max(lid);
        }
        let mut addresses: HashSet<Guid> = ends.lids.keys().copied().collect();
        for port in &document.adapter_ports {
            for (index, alias) in &port.aliases {
                if *index == 0 || !addresses.insert(alias.guid) {
                    let duplicate = PlanProblem::Duplicate(format!("alias GUID {}", alias.guid));
                    return Err(duplicate.at(format_args!("end port {}", port.guid)));
                }
            }
        }
        for switch in &document.switches {
            if !ends.switches.insert(switch.guid) {
                return Err(PlanProblem::Duplicate(format!("node GUID {}", switch.guid)).at("switches"));
            }
            for port in &switch.ports {
                ends.add(PortName { node: switch.guid, port: port.number }, port.peer)?;
            }
        }
        document.adapter_ports.iter().try_for_each(|port| ends.add(port.name, port.peer))?;
        Ok(ends)
    }

    fn add(&mut self, name: PortName, peer: PortName) -> Result<(), PlanError> {
        if name.port == PortNum::MANAGEMENT {
            return Err(PlanProblem::PortZeroCabled.at(format_args!("port {name}")));
        }
        match self.peers.insert(name, peer) {
            None => Ok(()),
            Some(_) => Err(PlanProblem::Duplicate(format!("port {name}")).at("ports")),
        }
    }

    fn check_manager(&self, document: &PlanDocument) -> Result<(), PlanError> {
        let manager = document.manager;
        let missing = || PlanProblem::Missing(format!("port {} with LID {}", manager.guid, manager.lid));
        let is_there = self.lids.get(&manager.guid) == Some(&manager.lid);
        is_there.then_some(()).ok_or_else(|| missing().at("manager"))
    }

    /// Checks that the ends of every cable name each other.
    fn check_cables(&self, document: &PlanDocument) -> Result<(), PlanError> {
        let switches = document.switches.iter().flat_map(|switch| {
            switch.ports.iter().map(|port| (PortName { node: switch.guid, port: port.number }, port.peer))
        });
        let adapters = document.adapter_ports.iter().map(|port| (port.name, port.peer));
        for (name, peer) in switches.chain(adapters) {
            if self.peers.get(&peer) != Some(&name) {
                return Err(PlanProblem::OneSided(peer).at(format_args!("port {name}")));
            }
        }
        Ok(())
    }

    /// Checks that partitions and groups are unique, and that their members, roots and partitions exist.
    fn check_members(&self, document: &PlanDocument) -> Result<(), PlanError> {
        let mut numbers = BTreeSet::new();
        for partition in &document.partitions {
            let location = format!("partition {}", partition.number);
            if !numbers.insert(partition.number) {
                return Err(PlanProblem::Duplicate(location).at("partitions"));
            }
            check_count(&format!("length of the name of {location}"), partition.name.len(), NAME_BYTES_MAX)?;
            self.check_ports(partition.members.keys(), &location)?;
        }
        let mut gids = BTreeSet::new();
        for group in &document.groups {
            let location = format!("group {}", group.mgid);
            if !gids.insert(group.mgid) {
                return Err(PlanProblem::Duplicate(location).at("groups"));
            }
            if !numbers.contains(&group.partition) {
                return Err(PlanProblem::Missing(format!("partition {}", group.partition)).at(location));
            }
            if let Some(root) = group.root.filter(|root| !self.switches.contains(root)) {
                return Err(PlanProblem::Missing(format!("switch {root}")).at(location));
            }
            self.check_ports(&group.members, &location)?;
        }
        Ok(())
    }

    fn check_ports<'g>(
        &self,
        members: impl IntoIterator<Item = &'g Guid>,
        location: &str,
    ) -> Result<(), PlanError> {
        match members.into_iter().find(|guid| !self.lids.contains_key(guid)) {
            Some(guid) => Err(PlanProblem::Missing(format!("end port {guid}")).at(location)),
            None => Ok(()),
        }
    }
}

/// Tables that ports refer to by index.
struct Tables {
    pkeys: Vec<Arc<PkeyTable>>,
    qos_tables: Vec<Arc<PortQos>>,
}

fn qos_tables(entries: Vec<QosEntry>) -> Result<Vec<Arc<PortQos>>, PlanError> {
    let table = |(index, entry): (usize, QosEntry)| {
        let invalid = |error| PlanProblem::InvalidQos(error).at(format_args!("QoS table {index}"));
        PortQos::try_from(entry).map(Arc::new).map_err(invalid)
    };
    entries.into_iter().enumerate().map(table).collect()
}

fn qos(
    tables: &Tables,
    index: Option<usize>,
    location: impl fmt::Display,
) -> Result<Option<Arc<PortQos>>, PlanError> {
    let Some(index) = index else { return Ok(None) };
    let missing = || PlanProblem::Missing(format!("QoS table {index}")).at(location);
    tables.qos_tables.get(index).cloned().map(Some).ok_or_else(missing)
}

fn pkey_tables(lists: Vec<Vec<Option<ib_wire::Pkey>>>) -> Result<Vec<Arc<PkeyTable>>, PlanError> {
    let table = |(index, keys): (usize, Vec<_>)| {
        check_count(&format!("P_Key table {index}"), keys.len(), PKEYS_MAX)?;
        Ok(Arc::new(PkeyTable::from_keys(keys)))
    };
    lists.into_iter().enumerate().map(table).collect()
}

fn pkeys(tables: &Tables, index: usize, location: impl fmt::Display) -> Result<Arc<PkeyTable>, PlanError> {
    let missing = || PlanProblem::Missing(format!("P_Key table {index}")).at(location);
    tables.pkeys.get(index).map(Arc::clone).ok_or_else(missing)
}

fn adapter_port(entry: AdapterPortEntry, tables: &Tables) -> Result<AdapterPortPlan, PlanError> {
    let AdapterPortEntry { guid, name, peer, lid, mtu, lanes, pkeys: index, qos: shared, aliases } = entry;
    let pkeys = pkeys(tables, index, format_args!("adapter port {guid}"))?;
    let qos = qos(tables, shared, format_args!("adapter port {guid}"))?;
    Ok(AdapterPortPlan { guid, name, peer, lid, mtu, lanes, pkeys, qos, aliases: Arc::new(aliases) })
}

fn switch(
    entry: SwitchEntry,
    ends: &Ends,
    tables: &Tables,
    bytes_left: &mut usize,
) -> Result<SwitchPlan, PlanError> {
    let location = format!("switch {}", entry.guid);
    let mut cabled = [false; 256];
    entry.ports.iter().for_each(|port| cabled[port.number.index()] = true);
    let linear = linear(&entry, ends, &cabled, *bytes_left, &location)?;
    *bytes_left -= linear.len();
    let multicast = multicast(&entry, &cabled, &location)?;
    let mut ports: Vec<SwitchPortPlan> =
        entry.ports.into_iter().map(|port| switch_port(port, tables, &location)).collect::<Result<_, _>>()?;
    ports.sort_by_key(|port| port.number);
    Ok(SwitchPlan {
        guid: entry.guid,
        port_guid: entry.port_guid,
        lid: entry.lid,
        linear: Arc::new(linear),
        multicast: Arc::new(multicast),
        pkeys: pkeys(tables, entry.pkeys, &location)?,
        ports: ports.into(),
    })
}

/// Checks that the table has no LID above the highest of the plan, and that it forwards only to cabled ports, or to port 0
/// for the switch's own LID.
fn linear(
    entry: &SwitchEntry,
    ends: &Ends,
    cabled: &[bool; 256],
    bytes_left: usize,
    location: &str,
) -> Result<LinearTable, PlanError> {
    let location = format!("linear table of {location}");
    let max = bytes_left.min(usize::from(ends.highest_lid.to_wire()) + 1);
    let exits = packed::unpack(&entry.linear, max);
    let exits = exits.map_err(|error| PlanProblem::InvalidTable(error).at(&location))?;
    let own = usize::from(entry.lid.to_wire());
    let is_wrong = |(lid, exit): &(usize, &u8)| match **exit {
        0xff => false,
        0 => *lid != own,
        port => !cabled[usize::from(port)],
    };
    match exits.iter().enumerate().find(is_wrong) {
        Some((lid, port)) => Err(PlanProblem::NoSuchExit { lid, port: *port }.at(location)),
        None => Ok(LinearTable::from_exits(exits)),
    }
}

fn multicast(entry: &SwitchEntry, cabled: &[bool; 256], location: &str) -> Result<MulticastTable, PlanError> {
    let is_wrong = |port: &&PortNum| **port != PortNum::MANAGEMENT && !cabled[port.index()];
    let mut exits = BTreeMap::new();
    for (mlid, ports) in &entry.multicast {
        if let Some(port) = ports.iter().find(is_wrong) {
            return Err(
                PlanProblem::Missing(format!("port {port}")).at(format_args!("group {mlid} of {location}"))
            );
        }
        exits.insert(*mlid, ports.iter().copied().collect());
    }
    Ok(MulticastTable::from_exits(exits))
}

fn switch_port(entry: SwitchPortEntry, tables: &Tables, location: &str) -> Result<SwitchPortPlan, PlanError> {
    let SwitchPortEntry { number, peer, mtu, lanes, pkeys: index, qos: shared } = entry;
    let qos = qos(tables, shared, format_args!("port {number} of {location}"))?;
    let enforcement = match index {
        None => Enforcement::Off,
        Some(index) => Enforcement::Both(pkeys(tables, index, format_args!("port {number} of {location}"))?),
    };
    Ok(SwitchPortPlan { number, peer, mtu, lanes, enforcement, qos })
}
