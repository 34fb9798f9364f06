//! Who is to be in which partition, as the intents say it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fabric_model::intent::{Intents, Ipoib, KeyPlace, PartitionIntent, Role, Who};
use fabric_model::{FabricPlan, Topology};
use ib_wire::{Guid, NodeKind, PartitionNumber, Pkey};

use crate::network::{Present, present_ends};

/// What people call the default partition.
const DEFAULT_NAME: &str = "Default";

/// Ports that are copied together when what one of them is to hold changes.
const PAGE: usize = 32;

/// A partition that is to exist.
#[derive(Debug)]
pub(crate) struct WantedPartition {
    /// Where it is asked for.
    asked: Vec<PartitionIntent>,
    pub ipoib: Option<Ipoib>,
    /// By port GUID.
    pub members: BTreeMap<Guid, Role>,
    /// The members whose index 0 it claims.
    first: BTreeSet<Guid>,
}

/// What an end port is to hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedPort {
    /// In order of the partitions' numbers.
    pub roles: Vec<(PartitionNumber, Role)>,
    /// The partitions that claim index 0, in order too.
    pub first: Vec<PartitionNumber>,
}

impl WantedPort {
    /// The keys it is to hold, in order.
    pub fn keys(&self) -> Vec<Pkey> {
        let mut keys: Vec<Pkey> = self.roles.iter().flat_map(|(number, role)| role.keys(*number)).collect();
        keys.sort_unstable();
        keys
    }

    /// What it is to be in a partition instead of what it was.
    fn put(&mut self, number: PartitionNumber, role: Option<Role>, is_first: bool) {
        let place = self.roles.partition_point(|(other, _)| *other < number);
        if self.roles.get(place).is_some_and(|(other, _)| *other == number) {
            self.roles.remove(place);
        }
        if let Some(role) = role {
            self.roles.insert(place, (number, role));
        }
        self.first.retain(|other| *other != number);
        if is_first {
            self.first.insert(self.first.partition_point(|other| *other < number), number);
        }
    }
}

/// The end ports there are.
#[derive(Debug)]
pub(crate) struct Ends {
    manager: Guid,
    /// By GUID.
    present: Vec<Present>,
    places: HashMap<Guid, usize>,
}

impl Ends {
    fn new(topology: &Topology, manager: Guid) -> Self {
        let present = present_ends(topology, manager);
        let places = present.iter().map(|end| end.guid).zip(0..).collect();
        Self { manager, present, places }
    }

    /// Whom a member names.
    fn named(&self, who: Who) -> Vec<Guid> {
        let of_kind = |wanted: fn(NodeKind) -> bool| -> Vec<Guid> {
            self.present.iter().filter(|end| wanted(end.kind)).map(|end| end.guid).collect()
        };
        let one = |guid: Guid| self.places.contains_key(&guid).then_some(guid).into_iter().collect();
        match who {
            Who::All => of_kind(|_| true),
            Who::AllAdapters => of_kind(|kind| kind == NodeKind::Adapter),
            Who::AllSwitches => of_kind(|kind| kind == NodeKind::Switch),
            Who::AllRouters => of_kind(|kind| kind == NodeKind::Router),
            Who::Manager => one(self.manager),
            Who::Port(guid) => one(guid),
        }
    }

    fn partition(&self, number: PartitionNumber, asked: &[&PartitionIntent]) -> WantedPartition {
        let mut members: BTreeMap<Guid, (Role, KeyPlace)> = BTreeMap::new();
        // Everyone is a limited member of the default partition, the manager a full one, unless somebody asks otherwise.
        if number == PartitionNumber::DEFAULT {
            let role = |guid: Guid| if guid == self.manager { Role::Full } else { Role::Limited };
            members.extend(self.present.iter().map(|end| (end.guid, (role(end.guid), KeyPlace::Anywhere))));
        }
        for member in asked.iter().flat_map(|intent| &intent.members) {
            let named = self.named(member.who).into_iter();
            members.extend(named.map(|guid| (guid, (member.role, member.place))));
        }
        let is_first = |(_, (_, place)): &(&Guid, &(Role, KeyPlace))| *place == KeyPlace::First;
        WantedPartition {
            asked: asked.iter().map(|intent| (*intent).clone()).collect(),
            ipoib: asked.iter().find_map(|intent| intent.ipoib),
            first: members.iter().filter(is_first).map(|(guid, _)| *guid).collect(),
            members: members.into_iter().map(|(guid, (role, _))| (guid, role)).collect(),
        }
    }
}

/// What the intents ask of the part of a fabric that the manager reaches. Copies share what they have in common.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub partitions: BTreeMap<PartitionNumber, Arc<WantedPartition>>,
    ends: Arc<Ends>,
    /// In the order of the ends, [`PAGE`] of them together.
    ports: Vec<Arc<[WantedPort]>>,
    /// Partitions without a number for which the plan has none either.
    pub missing: Vec<String>,
}

impl Wanted {
    pub fn new(topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Self {
        let ends = Arc::new(Ends::new(topology, intents.manager));
        let ports = vec![WantedPort::default(); ends.present.len()];
        let ports = ports.chunks(PAGE).map(Arc::from).collect();
        let nothing = Self { partitions: BTreeMap::new(), ends, ports, missing: Vec::new() };
        nothing.changed(intents, plan).0
    }

    /// What other intents ask on the same cables, and the ports of which it asks something else, by port GUID.
    pub fn changed(&self, intents: &Intents, plan: &FabricPlan) -> (Self, BTreeSet<Guid>) {
        let mut missing = Vec::new();
        let mut asked: BTreeMap<PartitionNumber, Vec<&PartitionIntent>> = BTreeMap::new();
        asked.entry(PartitionNumber::DEFAULT).or_default();
        for (intent, number) in intents.partitions.iter().zip(numbers(intents, plan)) {
            match number {
                Some(number) => asked.entry(number).or_default().push(intent),
                None => missing.push(intent.name.clone()),
            }
        }
        let mut wanted = Self { missing, ..self.clone() };
        let mut touched = BTreeSet::new();
        for number in self.partitions.keys().filter(|number| !asked.contains_key(number)) {
            wanted.put(*number, None, &mut touched);
        }
        for (number, asked) in asked {
            let is_same = |held: &Arc<WantedPartition>| held.asked.iter().eq(asked.iter().copied());
            if !self.partitions.get(&number).is_some_and(is_same) {
                let partition = self.ends.partition(number, &asked);
                wanted.put(number, Some(Arc::new(partition)), &mut touched);
            }
        }
        (wanted, touched)
    }

    /// Puts a partition in the place of what it was.
    fn put(
        &mut self,
        number: PartitionNumber,
        partition: Option<Arc<WantedPartition>>,
        touched: &mut BTreeSet<Guid>,
    ) {
        let before = self.partitions.remove(&number);
        let members = before.iter().chain(&partition).flat_map(|partition| partition.members.keys());
        for guid in members.copied().collect::<BTreeSet<_>>() {
            let Some(place) = self.ends.places.get(&guid) else { continue };
            let role = partition.as_ref().and_then(|partition| partition.members.get(&guid)).copied();
            let is_first = partition.as_ref().is_some_and(|partition| partition.first.contains(&guid));
            let page = Arc::make_mut(&mut self.ports[place / PAGE]);
            page[place % PAGE].put(number, role, is_first);
            touched.insert(guid);
        }
        self.partitions.extend(partition.map(|partition| (number, partition)));
    }

    /// The end ports there are, by GUID.
    pub fn present(&self) -> &[Present] {
        &self.ends.present
    }

    /// What a port is to hold.
    pub fn port(&self, guid: Guid) -> Option<&WantedPort> {
        self.ends.places.get(&guid).map(|place| &self.ports[place / PAGE][place % PAGE])
    }

    /// Whether two ports may exchange packets: some partition has both, and one of them as more than a limited member.
    pub fn may_talk(&self, a: Guid, b: Guid) -> bool {
        let (Some(a), Some(b)) = (self.port(a), self.port(b)) else { return false };
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
