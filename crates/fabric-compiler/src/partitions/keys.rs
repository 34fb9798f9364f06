//! Where keys stand in the tables of ports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::decisions::Decisions;
use fabric_model::intent::{Capabilities, KeyPlace, PortName, Role};
use fabric_model::plan::{Finding, PkeyTable};
use ib_wire::{Guid, PartitionNumber, Pkey, PortNum};

use super::{Partition, PartitionChanges, Partitions, RequestOrder};
use crate::CompileError;
use crate::fabric::{EndPort, Fabric};

/// An end port's place in [`Fabric::ends`].
type EndPortIndex = usize;

/// What every end port is to hold, in the order of [`Fabric::ends`], and the tables that follow.
#[derive(Debug)]
pub(crate) struct KeyTables {
    wanted: Vec<WantedKeys>,
    pub tables: Vec<Arc<PkeyTable>>,
    /// Ports whose index 0 is claimed more than once.
    contested: BTreeMap<EndPortIndex, Finding>,
}

/// What of it is different.
#[derive(Debug, Default)]
pub(crate) struct KeyChanges {
    wanted: BTreeMap<EndPortIndex, WantedKeys>,
    /// Of ports that hold something else than before.
    pub tables: BTreeMap<EndPortIndex, Arc<PkeyTable>>,
    contested: BTreeMap<EndPortIndex, Finding>,
}

impl KeyTables {
    /// The table of an end port of the fabric.
    pub fn of(&self, fabric: &Fabric, port_guid: Guid) -> &Arc<PkeyTable> {
        let place = fabric.ends().partition_point(|(guid, _)| *guid < port_guid);
        &self.tables[place]
    }

    /// The ports whose index 0 is claimed more than once, in order.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.contested.values()
    }

    /// What other partitions change about it.
    pub fn change(
        &self,
        fabric: &Fabric,
        partitions: &Partitions,
        changes: &PartitionChanges,
        capabilities: &Capabilities,
    ) -> Result<KeyChanges, CompileError> {
        let mut change =
            KeyChanges { wanted: self.wanted_by(fabric, partitions, changes), ..KeyChanges::default() };
        let mut shared = BTreeMap::new();
        for (place, wanted) in &change.wanted {
            let (guid, end) = fabric.ends()[*place];
            change.contested.extend(contested(guid, wanted).map(|finding| (*place, finding)));
            let before = &self.tables[*place];
            if !is_kept(wanted, before.entries()) {
                let keys = place_keys(wanted, before.entries(), &limits(fabric, capabilities, end))?;
                if keys != before.entries() {
                    change.tables.insert(*place, shared_table(&mut shared, keys));
                }
            }
        }
        Ok(change)
    }

    /// The findings as they are after a change.
    pub fn findings_after<'a>(&'a self, change: &'a KeyChanges) -> impl Iterator<Item = &'a Finding> {
        let stays = |place: &EndPortIndex| !change.wanted.contains_key(place);
        let kept = self.contested.iter().filter(move |(place, _)| stays(place));
        kept.chain(&change.contested).collect::<BTreeMap<_, _>>().into_values()
    }

    /// Makes a change hold.
    pub fn apply(&mut self, change: KeyChanges) {
        for (place, wanted) in change.wanted {
            self.wanted[place] = wanted;
            self.contested.remove(&place);
        }
        for (place, table) in change.tables {
            self.tables[place] = table;
        }
        self.contested.extend(change.contested);
    }

    /// What ports are to hold whose partitions changed.
    fn wanted_by(
        &self,
        fabric: &Fabric,
        partitions: &Partitions,
        changes: &PartitionChanges,
    ) -> BTreeMap<EndPortIndex, WantedKeys> {
        let mut wanted: BTreeMap<EndPortIndex, WantedKeys> = BTreeMap::new();
        let place_of = |guid: &Guid| fabric.ends().binary_search_by_key(guid, |(guid, _)| *guid).ok();
        for (number, after) in &changes.partitions {
            let before =
                partitions.by_number.get(number).into_iter().flat_map(|before| before.members.keys());
            for place in before.filter_map(place_of) {
                let port = wanted.entry(place).or_insert_with(|| self.wanted[place].clone());
                port.drop_partition(*number);
            }
            let after = after.iter().flat_map(|after| &after.members);
            for (place, member) in after.filter_map(|(guid, member)| Some((place_of(guid)?, *member))) {
                let port = wanted.entry(place).or_insert_with(|| self.wanted[place].clone());
                port.add(*number, member);
            }
        }
        let asked = RequestOrder::of(&changes.numbers_in_order);
        wanted.values_mut().for_each(|port| port.sort(&asked));
        wanted
    }
}

/// The keys of one port.
#[derive(Clone, Debug, Default)]
struct WantedKeys {
    /// In order, each once.
    keys: Vec<Pkey>,
    /// For index 0; the first asked for first.
    first: Vec<Pkey>,
}

impl WantedKeys {
    fn add(&mut self, partition: PartitionNumber, (role, place): (Role, KeyPlace)) {
        if place == KeyPlace::First {
            self.first.extend(role.keys(partition).next());
        }
        self.keys.extend(role.keys(partition));
    }

    fn drop_partition(&mut self, partition: PartitionNumber) {
        self.keys.retain(|key| key.partition() != partition);
        self.first.retain(|key| key.partition() != partition);
    }

    fn sort(&mut self, asked: &RequestOrder) {
        self.keys.sort_unstable();
        self.first.sort_unstable_by_key(|key| asked.place(key.partition()));
    }
}

/// What ports held before.
pub(crate) trait PreviousKeys {
    /// The entries of a port's table.
    fn entries(&self, port: Guid) -> &[Option<Pkey>];

    /// The table itself, if it fits the port: it need not be checked again, and can be shared.
    fn table(&self, port: Guid) -> Option<&Arc<PkeyTable>>;
}

/// Decisions tell what was held, not whether it fits.
impl PreviousKeys for Decisions {
    fn entries(&self, port: Guid) -> &[Option<Pkey>] {
        self.end_ports.get(&port).map_or(&[][..], |decision| &decision.pkeys)
    }

    fn table(&self, _: Guid) -> Option<&Arc<PkeyTable>> {
        None
    }
}

/// Lays out the P_Key table of every end port. A key keeps its index while it stays, unless index 0 is claimed.
pub(crate) fn lay_out(
    fabric: &Fabric,
    partitions: &Partitions,
    capabilities: &Capabilities,
    before: &impl PreviousKeys,
) -> Result<KeyTables, CompileError> {
    let wanted = wanted(fabric, partitions);
    let mut tables = Vec::with_capacity(wanted.len());
    let mut all_contested = BTreeMap::new();
    // Most ports hold the same keys at the same places.
    let mut shared = BTreeMap::new();
    for (place, ((guid, end), wanted)) in fabric.ends().iter().zip(&wanted).enumerate() {
        all_contested.extend(contested(*guid, wanted).map(|finding| (place, finding)));
        let kept = before.table(*guid).filter(|table| is_kept(wanted, table.entries()));
        let table = match kept {
            Some(table) => Arc::clone(table),
            None => {
                let limits = limits(fabric, capabilities, *end);
                shared_table(&mut shared, place_keys(wanted, before.entries(*guid), &limits)?)
            }
        };
        tables.push(table);
    }
    Ok(KeyTables { wanted, tables, contested: all_contested })
}

/// A table with these keys, the same for all ports.
fn shared_table(
    shared: &mut BTreeMap<Vec<Option<Pkey>>, Arc<PkeyTable>>,
    keys: Vec<Option<Pkey>>,
) -> Arc<PkeyTable> {
    let table = shared.entry(keys);
    Arc::clone(table.or_insert_with_key(|keys| Arc::new(PkeyTable::from_keys(keys.clone()))))
}

fn contested(port: Guid, wanted: &WantedKeys) -> Option<Finding> {
    let mut first = wanted.first.iter().map(|key| key.partition());
    let (given, refused) = (first.next()?, first.next()?);
    Some(Finding::IndexZeroContested { port, given, refused })
}

/// What each end port is to hold, in the order of [`Fabric::ends`].
fn wanted(fabric: &Fabric, partitions: &Partitions) -> Vec<WantedKeys> {
    let ends = fabric.ends();
    let mut wanted: Vec<WantedKeys> = ends.iter().map(|_| WantedKeys::default()).collect();
    for Partition { number, members, .. } in partitions.by_number.values() {
        let mut next = 0;
        for (guid, member) in members {
            // Members come in order too, and often they are all there is.
            let skipped = match ends.get(next) {
                Some((here, _)) if here == guid => 0,
                _ => ends[next..].partition_point(|(here, _)| here < guid),
            };
            next += skipped;
            if ends.get(next).is_some_and(|(here, _)| here == guid) {
                wanted[next].add(*number, *member);
                next += 1;
            }
        }
    }
    let asked = RequestOrder::of(&partitions.numbers_in_order);
    wanted.iter_mut().for_each(|port| port.sort(&asked));
    wanted
}

/// Whether laying out what is wanted would give the table of before: the same keys, and the right one in front.
fn is_kept(wanted: &WantedKeys, before: &[Option<Pkey>]) -> bool {
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
type KeyLimits = Vec<(PortName, usize)>;

fn limits(fabric: &Fabric, capabilities: &Capabilities, end: EndPort) -> KeyLimits {
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
    wanted: &WantedKeys,
    before: &[Option<Pkey>],
    limits: &KeyLimits,
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
fn first_key(wanted: &WantedKeys, before: &[Option<Pkey>]) -> Option<Pkey> {
    let claimed = wanted.first.first().copied();
    let default = || Role::Both.keys(PartitionNumber::DEFAULT).find(|key| wanted.keys.contains(key));
    let stood = || before.first().copied().flatten().filter(|key| wanted.keys.contains(key));
    claimed.or_else(default).or_else(stood).or_else(|| wanted.keys.first().copied())
}
