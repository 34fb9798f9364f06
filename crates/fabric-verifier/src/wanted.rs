//! Who is to be in which partition, as the intents say it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fabric_model::intent::{Intents, Ipoib, KeyPlace, PartitionIntent, Role, Who};
use fabric_model::{FabricPlan, Topology};
use ib_wire::{Guid, NodeKind, PartitionNumber, Pkey};

use crate::network::{Present, present_ends};

/// What people call the default partition.
const DEFAULT_NAME: &str = "Default";

/// A partition that is to exist.
#[derive(Debug, Default)]
pub(crate) struct WantedPartition {
    pub ipoib: Option<Ipoib>,
    /// By port GUID.
    pub members: BTreeMap<Guid, Role>,
}

/// What an end port is to hold.
#[derive(Debug, Default)]
pub(crate) struct WantedPort {
    /// In order of the partitions' numbers.
    pub roles: Vec<(PartitionNumber, Role)>,
    /// The partitions that claim index 0.
    pub first: Vec<PartitionNumber>,
}

impl WantedPort {
    /// The keys it is to hold, in order.
    pub fn keys(&self) -> Vec<Pkey> {
        let mut keys: Vec<Pkey> = self.roles.iter().flat_map(|(number, role)| role.keys(*number)).collect();
        keys.sort_unstable();
        keys
    }
}

/// What the intents ask of the part of a fabric that the manager reaches.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub partitions: BTreeMap<PartitionNumber, WantedPartition>,
    /// The end ports there are, by port GUID.
    pub ports: HashMap<Guid, WantedPort>,
    /// The same in order, with where they are.
    pub present: Vec<Present>,
    /// Partitions without a number for which the plan has none either.
    pub missing: Vec<String>,
}

impl Wanted {
    pub fn new(topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Self {
        let present = present_ends(topology, intents.manager);
        let guids: BTreeSet<Guid> = present.iter().map(|end| end.guid).collect();
        let of_kind = |wanted: fn(NodeKind) -> bool| -> Vec<Guid> {
            present.iter().filter(|end| wanted(end.kind)).map(|end| end.guid).collect()
        };
        let named = |who: Who| match who {
            Who::All => of_kind(|_| true),
            Who::AllAdapters => of_kind(|kind| kind == NodeKind::Adapter),
            Who::AllSwitches => of_kind(|kind| kind == NodeKind::Switch),
            Who::AllRouters => of_kind(|kind| kind == NodeKind::Router),
            Who::Manager => guids.get(&intents.manager).copied().into_iter().collect(),
            Who::Port(guid) => guids.get(&guid).copied().into_iter().collect(),
        };
        let mut members: BTreeMap<PartitionNumber, BTreeMap<Guid, (Role, KeyPlace)>> = BTreeMap::new();
        let mut ipoib: BTreeMap<PartitionNumber, Ipoib> = BTreeMap::new();
        // Everyone is a limited member of the default partition, the manager a full one, unless somebody asks otherwise.
        let default = members.entry(PartitionNumber::DEFAULT).or_default();
        for guid in &guids {
            let role = if *guid == intents.manager { Role::Full } else { Role::Limited };
            default.insert(*guid, (role, KeyPlace::Anywhere));
        }
        let mut missing = Vec::new();
        for (intent, number) in intents.partitions.iter().zip(numbers(intents, plan)) {
            let Some(number) = number else {
                missing.push(intent.name.clone());
                continue;
            };
            if let Some(asked) = intent.ipoib {
                ipoib.entry(number).or_insert(asked);
            }
            let held = members.entry(number).or_default();
            for member in &intent.members {
                held.extend(named(member.who).into_iter().map(|guid| (guid, (member.role, member.place))));
            }
        }
        let mut ports: HashMap<Guid, WantedPort> =
            guids.iter().map(|guid| (*guid, WantedPort::default())).collect();
        for (number, members) in &members {
            for (guid, (role, place)) in members {
                let port = ports.entry(*guid).or_default();
                port.roles.push((*number, *role));
                port.first.extend((*place == KeyPlace::First).then_some(*number));
            }
        }
        let partitions = members.into_iter().map(|(number, members)| {
            let members = members.into_iter().map(|(guid, (role, _))| (guid, role)).collect();
            (number, WantedPartition { ipoib: ipoib.get(&number).copied(), members })
        });
        Self { partitions: partitions.collect(), ports, present, missing }
    }

    /// What a port is to hold.
    pub fn port(&self, guid: Guid) -> Option<&WantedPort> {
        self.ports.get(&guid)
    }

    /// Whether two ports may exchange packets: some partition has both, and one of them as more than a limited member.
    pub fn may_talk(&self, a: Guid, b: Guid) -> bool {
        let (Some(a), Some(b)) = (self.ports.get(&a), self.ports.get(&b)) else { return false };
        a.roles.iter().any(|(number, role)| {
            let other = b.roles.binary_search_by_key(number, |(number, _)| *number).ok();
            other.is_some_and(|place| *role != Role::Limited || b.roles[place].1 != Role::Limited)
        })
    }
}

/// The number of each partition that is asked for. Those that name none have the number of an earlier one of the same
/// name, or what the plan gave them, which nobody else asked for.
fn numbers(intents: &Intents, plan: &FabricPlan) -> Vec<Option<PartitionNumber>> {
    let asked: BTreeSet<PartitionNumber> =
        intents.partitions.iter().filter_map(|intent| intent.number).collect();
    let mut by_name: HashMap<&str, PartitionNumber> =
        HashMap::from([(DEFAULT_NAME, PartitionNumber::DEFAULT)]);
    let mut given: HashMap<&str, PartitionNumber> = HashMap::new();
    for partition in plan.partitions() {
        if !asked.contains(&partition.number) && partition.number != PartitionNumber::DEFAULT {
            given.entry(partition.name.as_str()).or_insert(partition.number);
        }
    }
    let mut numbers = Vec::with_capacity(intents.partitions.len());
    for PartitionIntent { name, number, .. } in &intents.partitions {
        let known = by_name.get(name.as_str()).or_else(|| given.get(name.as_str())).copied();
        let number = number.or(known);
        if let Some(number) = number {
            by_name.entry(name.as_str()).or_insert(number);
        }
        numbers.push(number);
    }
    numbers
}
