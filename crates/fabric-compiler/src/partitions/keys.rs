//! The layout of P_Key tables.
//!
//! A key keeps its index while the port holds it. Index 0 has the key that claims it, else that of the one partition that
//! has the port alone, else that of the default partition or, without it, of the management partition. New keys get the lowest free index. Ports with the same keys at the same indices share one table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::decisions::Decisions;
use fabric_model::intent::{Capabilities, PkeyPlacement, PortName, Role};
use fabric_model::plan::{PkeyTable, PlanFinding};
use ib_wire::{Guid, PartitionNumber, Pkey, PortNum};

use super::{Partition, PartitionChanges, Partitions, RequestOrder};
use crate::CompileError;
use crate::fabric::{EndPort, Fabric};

/// An index into [`Fabric::ends`].
type EndPortIndex = usize;

/// The keys that every end port needs, in the order of [`Fabric::ends`], and the resulting tables.
#[derive(Debug)]
pub(crate) struct KeyTables {
    wanted: Vec<WantedKeys>,
    pub tables: Vec<Arc<PkeyTable>>,
    /// Findings about ports whose index 0 is claimed more than once.
    contested: BTreeMap<EndPortIndex, PlanFinding>,
}

/// The difference between two [`KeyTables`].
#[derive(Debug, Default)]
pub(crate) struct KeyChanges {
    wanted: BTreeMap<EndPortIndex, WantedKeys>,
    /// Of ports whose table differs.
    pub tables: BTreeMap<EndPortIndex, Arc<PkeyTable>>,
    contested: BTreeMap<EndPortIndex, PlanFinding>,
}

impl KeyTables {
    /// The table of an end port.
    pub fn of(&self, fabric: &Fabric, port_guid: Guid) -> &Arc<PkeyTable> {
        let end_index = fabric.ends().partition_point(|(guid, _)| *guid < port_guid);
        &self.tables[end_index]
    }

    /// Findings about ports whose index 0 is claimed more than once, in order of the ports.
    pub fn findings(&self) -> impl Iterator<Item = &PlanFinding> {
        self.contested.values()
    }

    /// The changes that follow from changed partitions.
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
        for (end_index, wanted) in &change.wanted {
            let (guid, end) = fabric.ends()[*end_index];
            change.contested.extend(contested(guid, wanted).map(|finding| (*end_index, finding)));
            let before = &self.tables[*end_index];
            if !is_kept(wanted, before.entries()) {
                let keys = place_keys(wanted, before.entries(), &limits(fabric, capabilities, end));
                let keys = keys.map_err(|full| full.at(guid, fabric, partitions))?;
                if keys != before.entries() {
                    change.tables.insert(*end_index, shared_table(&mut shared, keys));
                }
            }
        }
        Ok(change)
    }

    /// The findings after a change that was not applied yet.
    pub fn findings_after<'a>(&'a self, change: &'a KeyChanges) -> impl Iterator<Item = &'a PlanFinding> {
        let stays = |end_index: &EndPortIndex| !change.wanted.contains_key(end_index);
        let kept = self.contested.iter().filter(move |(end_index, _)| stays(end_index));
        kept.chain(&change.contested).collect::<BTreeMap<_, _>>().into_values()
    }

    pub fn apply(&mut self, change: KeyChanges) {
        for (end_index, wanted) in change.wanted {
            self.wanted[end_index] = wanted;
            self.contested.remove(&end_index);
        }
        for (end_index, table) in change.tables {
            self.tables[end_index] = table;
        }
        self.contested.extend(change.contested);
    }

    /// The keys that ports of changed partitions need.
    fn wanted_by(
        &self,
        fabric: &Fabric,
        partitions: &Partitions,
        changes: &PartitionChanges,
    ) -> BTreeMap<EndPortIndex, WantedKeys> {
        let mut wanted: BTreeMap<EndPortIndex, WantedKeys> = BTreeMap::new();
        let index_of = |guid: &Guid| fabric.ends().binary_search_by_key(guid, |(guid, _)| *guid).ok();
        for (number, after) in &changes.partitions {
            let before =
                partitions.by_number.get(number).into_iter().flat_map(|before| before.members.keys());
            for end_index in before.filter_map(index_of) {
                let port = wanted.entry(end_index).or_insert_with(|| self.wanted[end_index].clone());
                port.drop_partition(*number);
            }
            let after = after.iter().flat_map(|after| &after.members);
            for (end_index, member) in after.filter_map(|(guid, member)| Some((index_of(guid)?, *member))) {
                let port = wanted.entry(end_index).or_insert_with(|| self.wanted[end_index].clone());
                port.add(*number, member);
            }
        }
        let order = RequestOrder::of(&changes.numbers_in_order);
        wanted.values_mut().for_each(|port| port.sort(&order));
        wanted
    }
}

/// The keys that one port needs.
#[derive(Clone, Debug, Default)]
struct WantedKeys {
    /// In order, each once.
    keys: Vec<Pkey>,
    /// Keys that claim index 0, in the order of the intents.
    first: Vec<Pkey>,
    /// Keys that take index 0 of a port that they have alone, in order.
    first_if_alone: Vec<Pkey>,
    /// The partition at index 0 of a port that is not in the default partition.
    management: Option<PartitionNumber>,
}

impl WantedKeys {
    fn add(&mut self, partition: PartitionNumber, (role, key_place): (Role, PkeyPlacement)) {
        match key_place {
            PkeyPlacement::First => self.first.extend(role.keys(partition).next()),
            PkeyPlacement::FirstIfAlone => self.first_if_alone.extend(role.keys(partition).next()),
            PkeyPlacement::Anywhere => {}
        }
        self.keys.extend(role.keys(partition));
    }

    /// The key at index 0 if no other claims it.
    fn of_management(&self) -> Option<Pkey> {
        let key = |partition| Role::Both.keys(partition).find(|key| self.keys.contains(key));
        key(PartitionNumber::DEFAULT).or_else(|| key(self.management?))
    }

    fn drop_partition(&mut self, partition: PartitionNumber) {
        self.keys.retain(|key| key.partition() != partition);
        self.first.retain(|key| key.partition() != partition);
        self.first_if_alone.retain(|key| key.partition() != partition);
    }

    fn sort(&mut self, order: &RequestOrder) {
        self.keys.sort_unstable();
        self.first.sort_unstable_by_key(|key| order.index(key.partition()));
        self.first_if_alone.sort_unstable();
    }
}

/// The P_Key tables of the previous plan.
pub(crate) trait PreviousKeys {
    /// The entries of a port's table.
    fn entries(&self, port: Guid) -> &[Option<Pkey>];

    /// The table, if it is known to fit the port: it can be shared without another check.
    fn table(&self, port: Guid) -> Option<&Arc<PkeyTable>>;
}

/// Decisions have the entries, but do not show whether they fit.
impl PreviousKeys for Decisions {
    fn entries(&self, port: Guid) -> &[Option<Pkey>] {
        self.end_ports.get(&port).map_or(&[][..], |decision| &decision.pkeys)
    }

    fn table(&self, _: Guid) -> Option<&Arc<PkeyTable>> {
        None
    }
}

/// Lays out the P_Key table of every end port.
pub(crate) fn lay_out(
    fabric: &Fabric,
    partitions: &Partitions,
    capabilities: &Capabilities,
    before: &impl PreviousKeys,
) -> Result<KeyTables, CompileError> {
    let wanted = wanted(fabric, partitions);
    let mut tables = Vec::with_capacity(wanted.len());
    let mut all_contested = BTreeMap::new();
    // Most ports hold the same keys at the same indices.
    let mut shared = BTreeMap::new();
    for (end_index, ((guid, end), wanted)) in fabric.ends().iter().zip(&wanted).enumerate() {
        all_contested.extend(contested(*guid, wanted).map(|finding| (end_index, finding)));
        let kept = before.table(*guid).filter(|table| is_kept(wanted, table.entries()));
        let table = match kept {
            Some(table) => Arc::clone(table),
            None => {
                let limits = limits(fabric, capabilities, *end);
                let keys = place_keys(wanted, before.entries(*guid), &limits);
                shared_table(&mut shared, keys.map_err(|full| full.at(*guid, fabric, partitions))?)
            }
        };
        tables.push(table);
    }
    Ok(KeyTables { wanted, tables, contested: all_contested })
}

/// The shared table with the given keys.
fn shared_table(
    shared: &mut BTreeMap<Vec<Option<Pkey>>, Arc<PkeyTable>>,
    keys: Vec<Option<Pkey>>,
) -> Arc<PkeyTable> {
    let table = shared.entry(keys);
    Arc::clone(table.or_insert_with_key(|keys| Arc::new(PkeyTable::from_keys(keys.clone()))))
}

fn contested(port: Guid, wanted: &WantedKeys) -> Option<PlanFinding> {
    let mut first = wanted.first.iter().map(|key| key.partition());
    let (given, refused) = (first.next()?, first.next()?);
    Some(PlanFinding::IndexZeroContested { port, given, refused })
}

/// The keys that each end port needs, in the order of [`Fabric::ends`].
fn wanted(fabric: &Fabric, partitions: &Partitions) -> Vec<WantedKeys> {
    let ends = fabric.ends();
    let nothing = WantedKeys { management: partitions.management, ..WantedKeys::default() };
    let mut wanted: Vec<WantedKeys> = vec![nothing; ends.len()];
    for Partition { number, members, .. } in partitions.by_number.values() {
        let mut next = 0;
        for (guid, member) in members {
            // Members are in order as well, and often include all end ports.
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
    let order = RequestOrder::of(&partitions.numbers_in_order);
    wanted.iter_mut().for_each(|port| port.sort(&order));
    wanted
}

/// Whether [`place_keys`] would give the previous table: the same keys, and the right one at index 0.
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

/// The ports whose tables must hold the keys of an end port, with their sizes: the port itself, and the switch port that
/// enforces.
type KeyLimits = Vec<(PortName, usize)>;

fn limits(fabric: &Fabric, capabilities: &Capabilities, end: EndPort) -> KeyLimits {
    match end {
        EndPort::Adapter(index) => {
            let port = &fabric.adapter_ports[index];
            let own = (port.name, usize::from(capabilities.port(port.name).pkeys));
            let enforcing = port.attached.filter(|_| port.enforced_pkeys > 0).map(|(switch, number)| {
                let node = fabric.switches[switch].guid;
                (PortName { node, port: number }, usize::from(port.enforced_pkeys))
            });
            std::iter::once(own).chain(enforcing).collect()
        }
        EndPort::Switch(end_index) => {
            let node = fabric.switches[end_index].guid;
            let own = usize::from(capabilities.switch(node).own_pkeys);
            vec![(PortName { node, port: PortNum::MANAGEMENT }, own)]
        }
    }
}

/// A table has fewer entries than a port needs.
#[derive(Debug)]
struct TableFull {
    port: PortName,
    needed: usize,
    capacity: usize,
}

impl TableFull {
    fn at(self, end: Guid, fabric: &Fabric, partitions: &Partitions) -> CompileError {
        let Self { port, needed, capacity } = self;
        if end == fabric.manager && partitions.management.is_some() {
            return CompileError::ManagerKeysFull { port, needed, capacity };
        }
        CompileError::PkeyTableFull { port, needed, capacity }
    }
}

fn place_keys(
    wanted: &WantedKeys,
    before: &[Option<Pkey>],
    limits: &KeyLimits,
) -> Result<Vec<Option<Pkey>>, TableFull> {
    let needed = wanted.keys.len();
    if let Some((port, capacity)) = limits.iter().find(|(_, capacity)| needed > *capacity) {
        return Err(TableFull { port: *port, needed, capacity: *capacity });
    }
    let capacity = limits.iter().map(|(_, capacity)| *capacity).min().unwrap_or(needed);
    let mut table: Vec<Option<Pkey>> = vec![None; capacity];
    let mut open: BTreeSet<Pkey> = wanted.keys.iter().copied().collect();
    if let Some(first) = first_key(wanted, before) {
        table[0] = Some(first);
        open.remove(&first);
    }
    for (entry, key) in table.iter_mut().zip(before).skip(1) {
        *entry = key.filter(|key| open.remove(key));
    }
    for key in open {
        // If the port had the other membership of the partition, the new key takes its index.
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

/// The key at index 0: one that claims it, else one that has or had the port alone, else that of the default partition,
/// else the previous one, else the lowest.
fn first_key(wanted: &WantedKeys, before: &[Option<Pkey>]) -> Option<Pkey> {
    let claimed = wanted.first.first().copied().or_else(|| key_alone(wanted, before));
    let stood = || before.first().copied().flatten().filter(|key| wanted.keys.contains(key));
    claimed.or_else(|| wanted.of_management()).or_else(stood).or_else(|| wanted.keys.first().copied())
}

/// The key that takes index 0 because it comes to a port that no other has, or that keeps it since. A change of its
/// membership is no change of its place.
fn key_alone(wanted: &WantedKeys, before: &[Option<Pkey>]) -> Option<Pkey> {
    let of = |partition| wanted.first_if_alone.iter().copied().find(|key| key.partition() == partition);
    let kept = before.first().copied().flatten().and_then(|key| of(key.partition()));
    let is_held = |key: &Pkey| before.iter().flatten().any(|held| held.partition() == key.partition());
    kept.or_else(|| match wanted.first_if_alone.as_slice() {
        [key] if !is_held(key) => Some(*key),
        _ => None,
    })
}
