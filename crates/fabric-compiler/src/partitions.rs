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
use crate::fabric::{EndPort, Fabric};

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
        let ends = fabric.ends().iter().filter(|(_, end)| wanted(fabric.kind(*end)));
        ends.map(|(guid, _)| *guid).collect()
    };
    match who {
        Who::All => of_kind(|_| true),
        Who::AllAdapters => of_kind(|kind| kind == NodeKind::Adapter),
        Who::AllSwitches => of_kind(|kind| kind == NodeKind::Switch),
        Who::AllRouters => of_kind(|kind| kind == NodeKind::Router),
        Who::Manager => vec![fabric.manager],
        Who::Port(guid) if fabric.end_port(guid).is_some() => vec![guid],
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

/// The P_Key tables of end ports.
#[derive(Debug)]
pub(crate) struct KeyTables {
    /// In the order of [`Fabric::ends`].
    pub tables: Vec<Arc<PkeyTable>>,
    pub findings: Vec<Finding>,
}

impl KeyTables {
    /// The table of an end port of the fabric.
    pub fn of(&self, fabric: &Fabric<'_>, port_guid: Guid) -> &Arc<PkeyTable> {
        let place = fabric.ends().partition_point(|(guid, _)| *guid < port_guid);
        &self.tables[place]
    }
}

/// The keys of one port.
#[derive(Debug, Default)]
struct Wanted {
    /// In order, each once.
    keys: Vec<Pkey>,
    /// For index 0: when it was asked for, and the key; the first asked for first.
    first: Vec<(usize, Pkey)>,
}

/// What ports held before.
pub(crate) trait Held {
    /// The entries of a port's table.
    fn entries(&self, port: Guid) -> &[Option<Pkey>];

    /// The table itself, if it fits the port: it need not be checked again, and can be shared.
    fn table(&self, port: Guid) -> Option<&Arc<PkeyTable>>;
}

/// Decisions tell what was held, not whether it fits.
impl Held for Decisions {
    fn entries(&self, port: Guid) -> &[Option<Pkey>] {
        self.end_ports.get(&port).map_or(&[][..], |decision| &decision.pkeys)
    }

    fn table(&self, _: Guid) -> Option<&Arc<PkeyTable>> {
        None
    }
}

/// Lays out the P_Key table of every end port. A key keeps its index while it stays, unless index 0 is claimed.
pub(crate) fn lay_out(
    fabric: &Fabric<'_>,
    partitions: &[Partition],
    capabilities: &Capabilities,
    before: &impl Held,
) -> Result<KeyTables, CompileError> {
    let wanted = wanted(fabric, partitions);
    let mut result = KeyTables { tables: Vec::with_capacity(wanted.len()), findings: Vec::new() };
    // Most ports hold the same keys at the same places.
    let mut shared: BTreeMap<Vec<Option<Pkey>>, Arc<PkeyTable>> = BTreeMap::new();
    for ((guid, end), wanted) in fabric.ends().iter().zip(&wanted) {
        let mut first = wanted.first.iter().map(|(_, key)| key.partition());
        if let (Some(given), Some(refused)) = (first.next(), first.next()) {
            result.findings.push(Finding::IndexZeroContested { port: *guid, given, refused });
        }
        let kept = before.table(*guid).filter(|table| is_kept(wanted, table.entries()));
        let table = match kept {
            Some(table) => Arc::clone(table),
            None => {
                let limits = limits(fabric, capabilities, *end);
                let keys = place_keys(wanted, before.entries(*guid), &limits)?;
                let table = shared.entry(keys);
                Arc::clone(table.or_insert_with_key(|keys| Arc::new(PkeyTable::from_keys(keys.clone()))))
            }
        };
        result.tables.push(table);
    }
    Ok(result)
}

/// What each end port is to hold, in the order of [`Fabric::ends`].
fn wanted(fabric: &Fabric<'_>, partitions: &[Partition]) -> Vec<Wanted> {
    let ends = fabric.ends();
    let mut wanted: Vec<Wanted> = ends.iter().map(|_| Wanted::default()).collect();
    for partition in partitions {
        let mut next = 0;
        for (guid, (role, place)) in &partition.members {
            // Members come in order too, and often they are all there is.
            let skipped = match ends.get(next) {
                Some((here, _)) if here == guid => 0,
                _ => ends[next..].partition_point(|(here, _)| here < guid),
            };
            next += skipped;
            if ends.get(next).is_none_or(|(here, _)| here != guid) {
                continue;
            }
            let keys = role.keys(partition.number);
            if *place == KeyPlace::First {
                wanted[next]
                    .first
                    .extend(role.keys(partition.number).next().map(|key| (partition.asked, key)));
            }
            wanted[next].keys.extend(keys);
            next += 1;
        }
    }
    for port in &mut wanted {
        port.keys.sort_unstable();
        port.first.sort_unstable_by_key(|(asked, _)| *asked);
    }
    wanted
}

/// Whether laying out what is wanted would give the table of before: the same keys, and the right one in front.
fn is_kept(wanted: &Wanted, before: &[Option<Pkey>]) -> bool {
    let held = before.iter().flatten();
    let is_wanted = |key: &Pkey| wanted.keys.binary_search(key).is_ok();
    let is_repeated = |(index, key): (usize, &Option<Pkey>)| key.is_some() && before[..index].contains(key);
    held.clone().count() == wanted.keys.len()
        && held.clone().all(is_wanted)
        && !before.iter().enumerate().any(is_repeated)
        && before.last().is_none_or(Option::is_some)
        && first_key(wanted, before) == before.first().copied().flatten()
}

/// How many keys a port can have, and whose table says so: an adapter's own, or that of the switch port that enforces.
type Limits = Vec<(PortName, usize)>;

fn limits(fabric: &Fabric<'_>, capabilities: &Capabilities, end: EndPort) -> Limits {
    match end {
        EndPort::Adapter(index) => {
            let port = &fabric.adapter_ports[index];
            let own = (port.name, usize::from(capabilities.port(port.name).pkeys));
            let enforcing = port.attached.map(|(place, number)| {
                let node = fabric.switches[place].guid;
                let entries = usize::from(capabilities.switch(node).enforced_pkeys);
                (PortName { node, port: number }, entries)
            });
            std::iter::once(own).chain(enforcing).collect()
        }
        EndPort::Switch(place) => {
            let node = fabric.switches[place].guid;
            let own = usize::from(capabilities.switch(node).own_pkeys);
            vec![(PortName { node, port: PortNum::MANAGEMENT }, own)]
        }
    }
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
    let mut open: BTreeSet<Pkey> = wanted.keys.iter().copied().collect();
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
    let claimed = wanted.first.first().map(|(_, key)| *key);
    let default = || Role::Both.keys(PartitionNumber::DEFAULT).find(|key| wanted.keys.contains(key));
    let stood = || before.first().copied().flatten().filter(|key| wanted.keys.contains(key));
    claimed.or_else(default).or_else(stood).or_else(|| wanted.keys.first().copied())
}
