//! Reads a plan back: what comes from elsewhere is checked before anyone relies on it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use ib_wire::{Guid, Lid, PortNum};
use thiserror::Error;

use super::document::{AdapterPortEntry, PlanDocument, SwitchEntry, SwitchPortEntry};
use super::qos::QosEntry;
use super::{
    AdapterPortPlan, Basis, Enforcement, FabricPlan, LINEAR_BYTES_MAX, LinearTable, MulticastTable,
    PkeyTable, PlanParts, PortQos, SwitchPlan, SwitchPortPlan,
};
use crate::intent::PortName;
use crate::packed;
use crate::topology::{NODES_MAX, PORTS_MAX};

/// Entries of a P_Key table: PartitionCap has 16 bits.
const PKEYS_MAX: usize = 0xffff;

/// Bytes of a partition's name.
const NAME_BYTES_MAX: usize = 256;

/// A text that is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}: {problem}")]
pub struct PlanError {
    /// Where in the plan.
    pub place: String,
    /// What is wrong there.
    pub problem: PlanProblem,
}

/// What is wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanProblem {
    /// More of something than there can be.
    #[error("more than {most}")]
    TooMany {
        /// How many there may be.
        most: usize,
    },
    /// Something that has to be unique is not.
    #[error("{0} is there twice")]
    Twice(String),
    /// Something is spoken of that the plan does not have.
    #[error("the plan has no {0}")]
    Missing(String),
    /// Something cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// A table sends packets out of a port that has no cable.
    #[error("LID {lid} leaves by port {port}, which has no cable")]
    NoSuchExit {
        /// The LID.
        lid: usize,
        /// The port.
        port: u8,
    },
    /// The ends of a cable do not name each other.
    #[error("the port at the other end, {0}, is not cabled back")]
    OneSided(PortName),
}

impl PlanProblem {
    fn at(self, place: impl fmt::Display) -> PlanError {
        PlanError { place: place.to_string(), problem: self }
    }
}

impl PlanDocument {
    /// The plan, if it is one.
    pub(super) fn read(self) -> Result<FabricPlan, PlanError> {
        check_count("switches", self.switches.len(), NODES_MAX)?;
        check_count("adapter ports", self.adapter_ports.len(), PORTS_MAX)?;
        check_count("P_Key tables", self.pkey_tables.len(), PORTS_MAX)?;
        let ends = Ends::of(&self)?;
        ends.check_manager(&self)?;
        ends.check_cables(&self)?;
        ends.check_members(&self)?;
        let basis = self.basis.as_deref().map(basis).transpose()?;
        check_count("qos_tables", self.qos_tables.len(), 2 * PORTS_MAX)?;
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

fn check_count(what: &str, count: usize, most: usize) -> Result<(), PlanError> {
    if count > most { Err(PlanProblem::TooMany { most }.at(what)) } else { Ok(()) }
}

fn basis(text: &str) -> Result<Basis, PlanError> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = if is_hex { u128::from_str_radix(text, 16).ok() } else { None };
    let unreadable = || PlanProblem::Unreadable("not 32 hexadecimal digits".to_owned()).at("basis");
    number.map(Basis::from_number).ok_or_else(unreadable)
}

/// MemberSelector is who in a plan.
struct Ends {
    /// What is at the other end of every port that is spoken of.
    peers: HashMap<PortName, PortName>,
    switches: HashSet<Guid>,
    /// By port GUID.
    lids: HashMap<Guid, Lid>,
    highest: Lid,
}

impl Ends {
    /// Checks that GUIDs, LIDs and ports are there once.
    fn of(document: &PlanDocument) -> Result<Self, PlanError> {
        let first = document.manager.lid;
        let mut ends =
            Self { peers: HashMap::new(), switches: HashSet::new(), lids: HashMap::new(), highest: first };
        let mut owners: HashSet<Lid> = HashSet::new();
        let adapters = document.adapter_ports.iter().map(|port| (port.guid, port.lid));
        let switches = document.switches.iter().map(|switch| (switch.port_guid, switch.lid));
        for (guid, lid) in adapters.chain(switches) {
            if ends.lids.insert(guid, lid).is_some() {
                return Err(PlanProblem::Twice(format!("port GUID {guid}")).at("end ports"));
            }
            if !owners.insert(lid) {
                return Err(PlanProblem::Twice(format!("LID {lid}")).at(format_args!("end port {guid}")));
            }
            ends.highest = ends.highest.max(lid);
        }
        for switch in &document.switches {
            if !ends.switches.insert(switch.guid) {
                return Err(PlanProblem::Twice(format!("node GUID {}", switch.guid)).at("switches"));
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
            return Err(
                PlanProblem::Unreadable("port 0 has no cable".to_owned()).at(format_args!("port {name}"))
            );
        }
        match self.peers.insert(name, peer) {
            None => Ok(()),
            Some(_) => Err(PlanProblem::Twice(format!("port {name}")).at("ports")),
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

    /// Checks that partitions and groups are there once, and that their members are there at all.
    fn check_members(&self, document: &PlanDocument) -> Result<(), PlanError> {
        let mut numbers = BTreeSet::new();
        for partition in &document.partitions {
            let place = format!("partition {}", partition.number);
            if !numbers.insert(partition.number) {
                return Err(PlanProblem::Twice(place).at("partitions"));
            }
            check_count(&format!("name of {place}"), partition.name.len(), NAME_BYTES_MAX)?;
            self.check_ports(partition.members.keys(), &place)?;
        }
        let mut gids = BTreeSet::new();
        for group in &document.groups {
            let place = format!("group {}", group.mgid);
            if !gids.insert(group.mgid) {
                return Err(PlanProblem::Twice(place).at("groups"));
            }
            if !numbers.contains(&group.partition) {
                return Err(PlanProblem::Missing(format!("partition {}", group.partition)).at(place));
            }
            if let Some(root) = group.root.filter(|root| !self.switches.contains(root)) {
                return Err(PlanProblem::Missing(format!("switch {root}")).at(place));
            }
            self.check_ports(&group.members, &place)?;
        }
        Ok(())
    }

    fn check_ports<'g>(
        &self,
        members: impl IntoIterator<Item = &'g Guid>,
        place: &str,
    ) -> Result<(), PlanError> {
        match members.into_iter().find(|guid| !self.lids.contains_key(guid)) {
            Some(guid) => Err(PlanProblem::Missing(format!("end port {guid}")).at(place)),
            None => Ok(()),
        }
    }
}

/// Tables that ports refer to by their place.
struct Tables {
    pkeys: Vec<Arc<PkeyTable>>,
    qos_tables: Vec<Arc<PortQos>>,
}

fn qos_tables(entries: Vec<QosEntry>) -> Result<Vec<Arc<PortQos>>, PlanError> {
    let qos = |(index, entry): (usize, QosEntry)| {
        let unreadable = |why| PlanProblem::Unreadable(why).at(format_args!("qos {index}"));
        PortQos::try_from(entry).map(Arc::new).map_err(unreadable)
    };
    entries.into_iter().enumerate().map(qos).collect()
}

fn qos(
    tables: &Tables,
    index: Option<usize>,
    place: impl fmt::Display,
) -> Result<Option<Arc<PortQos>>, PlanError> {
    let Some(index) = index else { return Ok(None) };
    let missing = || PlanProblem::Missing(format!("qos {index}")).at(place);
    tables.qos_tables.get(index).cloned().map(Some).ok_or_else(missing)
}

fn pkey_tables(lists: Vec<Vec<Option<ib_wire::Pkey>>>) -> Result<Vec<Arc<PkeyTable>>, PlanError> {
    let table = |(index, keys): (usize, Vec<_>)| {
        check_count(&format!("P_Key table {index}"), keys.len(), PKEYS_MAX)?;
        Ok(Arc::new(PkeyTable::from_keys(keys)))
    };
    lists.into_iter().enumerate().map(table).collect()
}

fn pkeys(tables: &Tables, index: usize, place: impl fmt::Display) -> Result<Arc<PkeyTable>, PlanError> {
    let missing = || PlanProblem::Missing(format!("P_Key table {index}")).at(place);
    tables.pkeys.get(index).map(Arc::clone).ok_or_else(missing)
}

fn adapter_port(entry: AdapterPortEntry, tables: &Tables) -> Result<AdapterPortPlan, PlanError> {
    let AdapterPortEntry { guid, name, peer, lid, mtu, lanes, pkeys: index, qos: shared } = entry;
    let pkeys = pkeys(tables, index, format_args!("adapter port {guid}"))?;
    let qos = qos(tables, shared, format_args!("adapter port {guid}"))?;
    Ok(AdapterPortPlan { guid, name, peer, lid, mtu, lanes, pkeys, qos })
}

fn switch(
    entry: SwitchEntry,
    ends: &Ends,
    tables: &Tables,
    bytes_left: &mut usize,
) -> Result<SwitchPlan, PlanError> {
    let place = format!("switch {}", entry.guid);
    let mut cabled = [false; 256];
    entry.ports.iter().for_each(|port| cabled[port.number.index()] = true);
    let linear = linear(&entry, ends, &cabled, *bytes_left, &place)?;
    *bytes_left -= linear.len();
    let multicast = multicast(&entry, &cabled, &place)?;
    let mut ports: Vec<SwitchPortPlan> =
        entry.ports.into_iter().map(|port| switch_port(port, tables, &place)).collect::<Result<_, _>>()?;
    ports.sort_by_key(|port| port.number);
    Ok(SwitchPlan {
        guid: entry.guid,
        port_guid: entry.port_guid,
        lid: entry.lid,
        linear: Arc::new(linear),
        multicast: Arc::new(multicast),
        pkeys: pkeys(tables, entry.pkeys, &place)?,
        ports: ports.into(),
    })
}

/// Checks that the table speaks of no LID beyond the highest, and that every exit is a port with a cable, or its own port
/// for its own LID.
fn linear(
    entry: &SwitchEntry,
    ends: &Ends,
    cabled: &[bool; 256],
    bytes_left: usize,
    place: &str,
) -> Result<LinearTable, PlanError> {
    let place = format!("linear table of {place}");
    let most = bytes_left.min(usize::from(ends.highest.to_wire()) + 1);
    let exits = packed::unpack(&entry.linear, most);
    let exits = exits.map_err(|error| PlanProblem::Unreadable(error.to_string()).at(&place))?;
    let own = usize::from(entry.lid.to_wire());
    let is_wrong = |(lid, exit): &(usize, &u8)| match **exit {
        0xff => false,
        0 => *lid != own,
        port => !cabled[usize::from(port)],
    };
    match exits.iter().enumerate().find(is_wrong) {
        Some((lid, port)) => Err(PlanProblem::NoSuchExit { lid, port: *port }.at(place)),
        None => Ok(LinearTable::from_exits(exits)),
    }
}

fn multicast(entry: &SwitchEntry, cabled: &[bool; 256], place: &str) -> Result<MulticastTable, PlanError> {
    let is_wrong = |port: &&PortNum| **port != PortNum::MANAGEMENT && !cabled[port.index()];
    let mut exits = BTreeMap::new();
    for (mlid, ports) in &entry.multicast {
        if let Some(port) = ports.iter().find(is_wrong) {
            return Err(
                PlanProblem::Missing(format!("port {port}")).at(format_args!("group {mlid} of {place}"))
            );
        }
        exits.insert(*mlid, ports.iter().copied().collect());
    }
    Ok(MulticastTable::from_exits(exits))
}

fn switch_port(entry: SwitchPortEntry, tables: &Tables, place: &str) -> Result<SwitchPortPlan, PlanError> {
    let SwitchPortEntry { number, peer, mtu, lanes, pkeys: index, qos: shared } = entry;
    let qos = qos(tables, shared, format_args!("port {number} of {place}"))?;
    let enforcement = match index {
        None => Enforcement::Off,
        Some(index) => Enforcement::Both(pkeys(tables, index, format_args!("port {number} of {place}"))?),
    };
    Ok(SwitchPortPlan { number, peer, mtu, lanes, enforcement, qos })
}
