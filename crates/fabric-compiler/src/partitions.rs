//! Who holds which partition key, and where in its table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::decisions::Decisions;
use fabric_model::intent::{
    Capabilities, Intents, Ipoib, KeyPlace, Member, PartitionIntent, PortName, Role, Who,
};
use fabric_model::plan::{Finding, PkeyTable};
use ib_wire::{Guid, NodeKind, PartitionNumber, Pkey, PortNum};

use crate::CompileError;
use crate::fabric::Fabric;

/// What people call the default partition.
const DEFAULT_NAME: &str = "Default";

/// Numbers that stay with the names of partitions that are gone, so that neither gets the other's traffic: an eighth of
/// what there is.
const RESTING_MAX: usize = 4096;

/// A partition with everything that was asked for it.
#[derive(Debug)]
pub(crate) struct Partition {
    pub number: PartitionNumber,
    pub name: String,
    pub ipoib: Option<Ipoib>,
    /// The end ports in it, by port GUID; present ones only.
    pub members: BTreeMap<Guid, (Role, KeyPlace)>,
    /// Which of the partitions it was when they were asked for.
    asked: usize,
}

/// The partitions by number, and the numbers that were given to those that asked for none.
pub(crate) fn resolve(
    fabric: &Fabric<'_>,
    intents: &Intents,
    previous: &Decisions,
) -> Result<(Vec<Partition>, BTreeMap<String, PartitionNumber>), CompileError> {
    let default = default_partition();
    let wanted: Vec<&PartitionIntent> = std::iter::once(&default).chain(&intents.partitions).collect();
    let numbers = Numbers::of(&wanted, previous)?;
    let mut partitions: BTreeMap<PartitionNumber, Partition> = BTreeMap::new();
    for (asked, (intent, number)) in wanted.iter().zip(&numbers.each).enumerate() {
        let partition = partitions.entry(*number).or_insert_with(|| Partition {
            number: *number,
            name: intent.name.clone(),
            ipoib: None,
            members: BTreeMap::new(),
            asked,
        });
        partition.ipoib = partition.ipoib.or(intent.ipoib);
        for member in &intent.members {
            for guid in named(fabric, member.who) {
                partition.members.insert(guid, (member.role, member.place));
            }
        }
    }
    Ok((partitions.into_values().collect(), numbers.given))
}

/// Everyone is a limited member of the default partition and reaches the manager, which is a full one.
fn default_partition() -> PartitionIntent {
    let member = |who, role| Member { who, role, place: KeyPlace::Anywhere };
    PartitionIntent {
        name: DEFAULT_NAME.to_owned(),
        number: Some(PartitionNumber::DEFAULT),
        members: vec![member(Who::All, Role::Limited), member(Who::Manager, Role::Full)],
        ipoib: None,
    }
}

/// The end ports that an entry names, as far as they are present.
fn named(fabric: &Fabric<'_>, who: Who) -> Vec<Guid> {
    let of_kind = |wanted: fn(NodeKind) -> bool| {
        fabric.end_ports().filter(|(_, kind)| wanted(*kind)).map(|(guid, _)| guid).collect()
    };
    match who {
        Who::All => of_kind(|_| true),
        Who::AllAdapters => of_kind(|kind| kind == NodeKind::Adapter),
        Who::AllSwitches => of_kind(|kind| kind == NodeKind::Switch),
        Who::AllRouters => of_kind(|kind| kind == NodeKind::Router),
        Who::Manager => vec![fabric.manager],
        Who::Port(guid) if fabric.has_end_port(guid) => vec![guid],
        Who::Port(_) => Vec::new(),
    }
}

/// The numbers of partitions.
#[derive(Debug)]
struct Numbers {
    /// In the order they were asked for.
    each: Vec<PartitionNumber>,
    /// To those that asked for none, by name; also those of before.
    given: BTreeMap<String, PartitionNumber>,
}

impl Numbers {
    fn of(wanted: &[&PartitionIntent], previous: &Decisions) -> Result<Self, CompileError> {
        let asked: BTreeSet<PartitionNumber> = wanted.iter().filter_map(|intent| intent.number).collect();
        let mut by_name: BTreeMap<&str, PartitionNumber> = BTreeMap::new();
        let mut given: BTreeMap<String, PartitionNumber> = BTreeMap::new();
        let mut taken = asked.clone();
        for (name, number) in previous.partitions.iter().take(RESTING_MAX) {
            if taken.insert(*number) {
                given.insert(name.clone(), *number);
            }
        }
        let mut free = (1..=PartitionNumber::DEFAULT.to_wire()).filter_map(PartitionNumber::from_wire);
        let mut each = Vec::with_capacity(wanted.len());
        for intent in wanted {
            let known = || by_name.get(intent.name.as_str()).or_else(|| given.get(&intent.name)).copied();
            let number = match intent.number.or_else(known) {
                Some(number) => number,
                None => {
                    let next = free.find(|number| !taken.contains(number));
                    let next =
                        next.ok_or_else(|| CompileError::PartitionsExhausted { name: intent.name.clone() })?;
                    given.insert(intent.name.clone(), next);
                    next
                }
            };
            by_name.entry(intent.name.as_str()).or_insert(number);
            each.push(number);
        }
        Ok(Self { each, given })
    }
}

/// The P_Key tables of end ports, by port GUID.
#[derive(Debug)]
pub(crate) struct KeyTables {
    pub tables: BTreeMap<Guid, Arc<PkeyTable>>,
    pub findings: Vec<Finding>,
}

/// The keys of one port.
#[derive(Debug, Default)]
struct Wanted {
    keys: BTreeSet<Pkey>,
    /// For index 0: when it was asked for, and the key.
    first: BTreeMap<usize, Pkey>,
}

/// Lays out the P_Key table of every end port. A key keeps its index while it stays, unless index 0 is claimed.
pub(crate) fn lay_out(
    fabric: &Fabric<'_>,
    partitions: &[Partition],
    capabilities: &Capabilities,
    previous: &Decisions,
) -> Result<KeyTables, CompileError> {
    let mut wanted: BTreeMap<Guid, Wanted> =
        fabric.end_ports().map(|(guid, _)| (guid, Wanted::default())).collect();
    for partition in partitions {
        for (guid, (role, place)) in &partition.members {
            let Some(port) = wanted.get_mut(guid) else { continue };
            let keys: Vec<Pkey> = role.keys(partition.number).collect();
            if *place == KeyPlace::First {
                port.first.insert(partition.asked, keys[0]);
            }
            port.keys.extend(keys);
        }
    }
    let limits = limits(fabric, capabilities);
    let mut result = KeyTables { tables: BTreeMap::new(), findings: Vec::new() };
    // Most ports hold the same keys at the same places.
    let mut shared: BTreeMap<Vec<Option<Pkey>>, Arc<PkeyTable>> = BTreeMap::new();
    for (guid, wanted) in &wanted {
        let before = previous.end_ports.get(guid).map_or(&[][..], |decision| &decision.pkeys);
        let keys = place_keys(wanted, before, &limits[guid])?;
        let mut first = wanted.first.values().map(|key| key.partition());
        if let (Some(given), Some(refused)) = (first.next(), first.next()) {
            result.findings.push(Finding::IndexZeroContested { port: *guid, given, refused });
        }
        let table =
            shared.entry(keys).or_insert_with_key(|keys| Arc::new(PkeyTable::from_keys(keys.clone())));
        result.tables.insert(*guid, Arc::clone(table));
    }
    Ok(result)
}

/// How many keys a port can have, and whose table says so: an adapter's own, or that of the switch port that enforces.
type Limits = Vec<(PortName, usize)>;

fn limits(fabric: &Fabric<'_>, capabilities: &Capabilities) -> BTreeMap<Guid, Limits> {
    let mut limits = BTreeMap::new();
    for port in &fabric.adapter_ports {
        let mut of_port = vec![(port.name, usize::from(capabilities.port(port.name).pkeys))];
        if let Some((place, number)) = port.attached {
            let node = fabric.switches[place].guid;
            let enforced = usize::from(capabilities.switch(node).enforced_pkeys);
            of_port.push((PortName { node, port: number }, enforced));
        }
        limits.insert(port.guid, of_port);
    }
    for switch in &fabric.switches {
        let own = usize::from(capabilities.switch(switch.guid).own_pkeys);
        let name = PortName { node: switch.guid, port: PortNum::MANAGEMENT };
        limits.insert(switch.port_guid, vec![(name, own)]);
    }
    limits
}

fn place_keys(
    wanted: &Wanted,
    before: &[Option<Pkey>],
    limits: &Limits,
) -> Result<Vec<Option<Pkey>>, CompileError> {
    let needed = wanted.keys.len();
    if let Some((port, capacity)) = limits.iter().find(|(_, capacity)| needed > *capacity) {
        return Err(CompileError::PkeyTableFull { port: *port, needed, capacity: *capacity });
    }
    let capacity = limits.iter().map(|(_, capacity)| *capacity).min().unwrap_or(needed);
    let mut table: Vec<Option<Pkey>> = vec![None; capacity];
    let mut open = wanted.keys.clone();
    if let Some(first) = first_key(wanted, before) {
        table[0] = Some(first);
        open.remove(&first);
    }
    for (place, key) in table.iter_mut().zip(before).skip(1) {
        *place = key.filter(|key| open.remove(key));
    }
    for key in open {
        // Where the other membership of the partition stood, the partition stays.
        let same = before.iter().position(|old| old.is_some_and(|old| old.partition() == key.partition()));
        let same = same.filter(|index| table.get(*index) == Some(&None));
        let free = same.or_else(|| table.iter().position(Option::is_none));
        if let Some(index) = free {
            table[index] = Some(key);
        }
    }
    let used = table.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    table.truncate(used);
    Ok(table)
}

/// What stands at index 0: what claims it, else the default partition, else what stood there, else the lowest key.
fn first_key(wanted: &Wanted, before: &[Option<Pkey>]) -> Option<Pkey> {
    let claimed = wanted.first.values().next().copied();
    let default = || Role::Both.keys(PartitionNumber::DEFAULT).find(|key| wanted.keys.contains(key));
    let stood = || before.first().copied().flatten().filter(|key| wanted.keys.contains(key));
    claimed.or_else(default).or_else(stood).or_else(|| wanted.keys.first().copied())
}
