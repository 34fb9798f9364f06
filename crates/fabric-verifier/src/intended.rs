//! The partition memberships that the intents require.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fabric_model::intent::{Intents, Ipoib, MemberSelector, PartitionIntent, PkeyPlacement, Role};
use fabric_model::{FabricPlan, SharedMap, Topology};
use ib_wire::{Guid, NodeKind, PartitionNumber, Pkey};

use crate::network::{PresentPort, present_ends};

/// Name of the default partition.
const DEFAULT_NAME: &str = "Default";

/// Name of the partition in which handed-over ports reach subnet administration.
const MANAGEMENT_NAME: &str = "Management";

/// Ports per page. A page is copied when the intended memberships of one of its ports change.
const PAGE: usize = 32;

#[derive(Debug)]
pub(crate) struct IntendedPartition {
    /// The intents that contribute to the partition, in order.
    sources: Vec<Arc<PartitionIntent>>,
    pub ipoib: Option<Ipoib>,
    /// Roles by port GUID.
    pub members: BTreeMap<Guid, Role>,
    /// Members that want the partition at index 0 of their P_Key table.
    first: BTreeSet<Guid>,
    /// Managers that are members for subnet administration alone, and not in the broadcast group.
    outside_group: BTreeSet<Guid>,
    /// Whether managers had to be admitted because the partition has an owner.
    admits_managers: bool,
}

impl IntendedPartition {
    /// The members that belong to the broadcast group.
    pub fn grouped(&self) -> impl Iterator<Item = &Guid> {
        self.members.keys().filter(|guid| !self.outside_group.contains(guid))
    }
}

/// The P_Keys that an end port should hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct IntendedPort {
    /// In order of partition numbers.
    pub roles: Vec<(PartitionNumber, Role)>,
    /// The partitions that claim index 0, in order of their numbers.
    pub first: Vec<PartitionNumber>,
}

impl IntendedPort {
    /// The P_Keys in ascending order.
    pub fn keys(&self) -> Vec<Pkey> {
        let mut keys: Vec<Pkey> = self.roles.iter().flat_map(|(number, role)| role.keys(*number)).collect();
        keys.sort_unstable();
        keys
    }

    /// Replaces the port's role in one partition.
    fn put(&mut self, number: PartitionNumber, role: Option<Role>, is_first: bool) {
        let index = self.roles.partition_point(|(other, _)| *other < number);
        if self.roles.get(index).is_some_and(|(other, _)| *other == number) {
            self.roles.remove(index);
        }
        if let Some(role) = role {
            self.roles.insert(index, (number, role));
        }
        self.first.retain(|other| *other != number);
        if is_first {
            self.first.insert(self.first.partition_point(|other| *other < number), number);
        }
    }
}

/// What the intents say about ports that tenants use and ports that the site keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SitePorts {
    pub managers: BTreeSet<Guid>,
    /// Empty if every partition has an owner: then nothing has to be kept apart from the site.
    pub handed_over: BTreeSet<Guid>,
    /// Whether the intents want a port besides managers as a full member of the default partition.
    is_default_full: bool,
    /// The plan's number of the management partition, while one is needed.
    pub management: Option<PartitionNumber>,
}

impl SitePorts {
    pub fn of(intents: &Intents, plan: &FabricPlan) -> Self {
        let managers: BTreeSet<Guid> = intents.managers().collect();
        let mut site =
            Self { managers, handed_over: BTreeSet::new(), is_default_full: false, management: None };
        if intents.handed_over.is_empty() {
            return site;
        }
        let numbered: Vec<(&PartitionIntent, Option<PartitionNumber>)> =
            intents.partitions.iter().zip(requested(&intents.partitions)).collect();
        let is_owned =
            |number: &Option<PartitionNumber>| number.is_some_and(|it| intents.owners.contains_key(&it));
        if numbered.iter().any(|(_, number)| !is_owned(number)) {
            site.handed_over.clone_from(&intents.handed_over);
            let of_default = numbered.iter().filter(|(_, number)| *number == Some(PartitionNumber::DEFAULT));
            let of_default = of_default.map(|(intent, _)| *intent);
            site.is_default_full = of_default.flat_map(|it| &it.members).any(|member| {
                let is_manager = match member.selector {
                    MemberSelector::Manager => true,
                    MemberSelector::Port(guid) => site.managers.contains(&guid),
                    _ => false,
                };
                !is_manager && member.role != Role::Limited
            });
            site.management = plan.decisions().management_partition.filter(|_| site.is_default_full);
        }
        site
    }

    fn admits_managers(&self, number: PartitionNumber, intents: &Intents) -> bool {
        self.is_default_full && intents.owners.contains_key(&number)
    }

    /// Whether a partition exists without an intent.
    fn is_implicit(&self, number: PartitionNumber) -> bool {
        number == PartitionNumber::DEFAULT || self.management == Some(number)
    }
}

/// The end ports that are connected to the subnet manager.
#[derive(Debug)]
pub(crate) struct Ends {
    managers: BTreeSet<Guid>,
    site: SitePorts,
    /// Sorted by port GUID.
    present: Vec<PresentPort>,
    indices: HashMap<Guid, usize>,
}

impl Ends {
    fn new(topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Self {
        let present = present_ends(topology, intents);
        let indices = present.iter().map(|end| end.guid).zip(0..).collect();
        let managers = intents.managers().collect();
        Self { managers, site: SitePorts::of(intents, plan), present, indices }
    }

    /// The port GUIDs that a member entry of an intent selects.
    fn named(&self, who: MemberSelector) -> Vec<Guid> {
        let of_kind = |intended: fn(NodeKind) -> bool| -> Vec<Guid> {
            let present = self.present.iter().filter(|end| intended(end.kind)).map(|end| end.guid);
            present.filter(|guid| !self.site.handed_over.contains(guid)).collect()
        };
        let one = |guid: Guid| -> Vec<Guid> {
            self.indices.contains_key(&guid).then_some(guid).into_iter().collect()
        };
        match who {
            MemberSelector::All => of_kind(|_| true),
            MemberSelector::AllAdapters => of_kind(|kind| kind == NodeKind::Adapter),
            MemberSelector::AllSwitches => of_kind(|kind| kind == NodeKind::Switch),
            MemberSelector::AllRouters => of_kind(|kind| kind == NodeKind::Router),
            MemberSelector::Manager => self.managers.iter().flat_map(|guid| one(*guid)).collect(),
            MemberSelector::Port(guid) => one(guid),
        }
    }

    fn partition(
        &self,
        number: PartitionNumber,
        sources: Vec<Arc<PartitionIntent>>,
        admits_managers: bool,
    ) -> IntendedPartition {
        let site = &self.site;
        let mut members: BTreeMap<Guid, (Role, PkeyPlacement)> = BTreeMap::new();
        // By default every port is a limited member of the default partition, and the subnet managers are full ones. Once other
        // ports are full members, handed-over ports are in the management partition instead.
        if site.is_implicit(number) {
            let is_default = number == PartitionNumber::DEFAULT;
            for guid in self.present.iter().map(|end| end.guid) {
                let is_kept_out = site.is_default_full && site.handed_over.contains(&guid);
                if site.managers.contains(&guid) {
                    members.insert(guid, (Role::Full, PkeyPlacement::Anywhere));
                } else if is_default != is_kept_out {
                    members.insert(guid, (Role::Limited, PkeyPlacement::Anywhere));
                }
            }
        }
        for member in sources.iter().flat_map(|intent| &intent.members) {
            let named = self.named(member.selector).into_iter();
            members.extend(named.map(|guid| (guid, (member.role, member.placement))));
        }
        let mut outside_group = BTreeSet::new();
        for manager in site.managers.iter().filter(|guid| admits_managers && self.indices.contains_key(guid))
        {
            match members.get_mut(manager).map(|(role, _)| role) {
                Some(role) if *role == Role::Limited => *role = Role::Both,
                Some(_) => {}
                None => {
                    members.insert(*manager, (Role::Full, PkeyPlacement::Anywhere));
                    outside_group.insert(*manager);
                }
            }
        }
        let is_first = |(_, (_, place)): &(&Guid, &(Role, PkeyPlacement))| *place == PkeyPlacement::First;
        IntendedPartition {
            ipoib: sources.iter().find_map(|intent| intent.ipoib),
            sources,
            first: members.iter().filter(is_first).map(|(guid, _)| *guid).collect(),
            members: members.into_iter().map(|(guid, (role, _))| (guid, role)).collect(),
            outside_group,
            admits_managers,
        }
    }
}

/// A partition intent with its number, if it has one.
#[derive(Clone, Debug)]
struct ListedPartition {
    intent: Arc<PartitionIntent>,
    number: Option<PartitionNumber>,
}

/// What the intents require of the end ports that are connected to the subnet manager. Clones share unchanged pages.
#[derive(Clone, Debug)]
pub(crate) struct Intended {
    pub partitions: SharedMap<PartitionNumber, Arc<IntendedPartition>>,
    /// In the order of the intents.
    listed: Vec<ListedPartition>,
    ends: Arc<Ends>,
    /// In the order of the end ports, [`PAGE`] in each page.
    ports: Vec<Arc<[IntendedPort]>>,
}

/// What changed between two [`Intended`] states.
#[derive(Debug, Default)]
pub(crate) struct IntentChanges {
    /// Partitions that were added, removed or changed.
    pub partitions: BTreeSet<PartitionNumber>,
    /// Members of these partitions before or after the change, by port GUID.
    pub ports: BTreeSet<Guid>,
}

impl Intended {
    pub fn new(topology: &Topology, intents: &Intents, plan: &FabricPlan) -> Self {
        let ends = Arc::new(Ends::new(topology, intents, plan));
        let ports = vec![IntendedPort::default(); ends.present.len()];
        let ports = ports.chunks(PAGE).map(Arc::from).collect();
        let nothing = Self { partitions: SharedMap::new(), listed: Vec::new(), ends, ports };
        nothing.renumbered(intents, (0, 0), numbers(intents, plan, &nothing.ends.site)).0
    }

    /// What the intents say about ports of tenants and of the site.
    pub fn site(&self) -> &SitePorts {
        &self.ends.site
    }

    /// Computes the intended state for other intents and another plan on the same cables, with the same
    /// [`site`](Self::site). `replanned` lists the partitions that differ between the previous plan and the new one.
    pub fn changed(
        &self,
        intents: &Intents,
        (before, plan): (&FabricPlan, &FabricPlan),
        replanned: &BTreeSet<PartitionNumber>,
    ) -> (Self, IntentChanges) {
        let alike = self.alike(&intents.partitions);
        let kept = self.kept_numbers(intents, alike, (before, plan), replanned);
        let numbers = kept.unwrap_or_else(|| numbers(intents, plan, &self.ends.site));
        self.renumbered(intents, alike, numbers)
    }

    /// Names of partition intents without a number for which the plan has none either.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        let listed = self
            .listed
            .iter()
            .filter(|listed| listed.number.is_none())
            .map(|listed| listed.intent.name.as_str());
        let site = &self.ends.site;
        let is_management_missing = site.is_default_full && site.management.is_none();
        listed.chain(is_management_missing.then_some(MANAGEMENT_NAME))
    }

    /// How many partition intents at the beginning and at the end of a list equal those of this state.
    fn alike(&self, intents: &[PartitionIntent]) -> (usize, usize) {
        let is_same = |(listed, intent): &(&ListedPartition, &PartitionIntent)| *listed.intent == **intent;
        let front = self.listed.iter().zip(intents).take_while(is_same).count();
        let rest = self.listed[front..].iter().rev().zip(intents[front..].iter().rev());
        (front, rest.take_while(is_same).count())
    }

    /// The result of [`numbers`] without looking at unchanged intents. `None` if a change could affect the numbers of
    /// others: a changed intent requests a number, or its name occurs elsewhere.
    fn kept_numbers(
        &self,
        intents: &Intents,
        (front, back): (usize, usize),
        (before, plan): (&FabricPlan, &FabricPlan),
        replanned: &BTreeSet<PartitionNumber>,
    ) -> Option<Vec<Option<PartitionNumber>>> {
        let list = &intents.partitions;
        let (gone, come) = (&self.listed[front..self.listed.len() - back], &list[front..list.len() - back]);
        let changed = || gone.iter().map(|listed| &*listed.intent).chain(come);
        let mut names: BTreeSet<&str> = changed().map(|intent| intent.name.as_str()).collect();
        for number in replanned {
            let [before, after] =
                [before, plan].map(|plan| plan.partition(*number).map(|it| it.name.as_str()));
            if before != after {
                names.extend(before.into_iter().chain(after));
            }
        }
        let kept = || self.listed[..front].iter().chain(&self.listed[self.listed.len() - back..]);
        if changed().any(|intent| intent.number.is_some())
            || names.contains(DEFAULT_NAME)
            || kept().any(|listed| names.contains(listed.intent.name.as_str()))
        {
            return None;
        }
        let is_asked = |number: PartitionNumber| list.iter().any(|intent| intent.number == Some(number));
        let mut given: HashMap<&str, PartitionNumber> = HashMap::new();
        for partition in plan.partitions().filter(|partition| names.contains(partition.name.as_str())) {
            if !self.ends.site.is_implicit(partition.number) && !is_asked(partition.number) {
                given.entry(partition.name.as_str()).or_insert(partition.number);
            }
        }
        let number = |listed: &ListedPartition| listed.number;
        let numbers = self.listed[..front].iter().map(number);
        let numbers = numbers.chain(come.iter().map(|intent| given.get(intent.name.as_str()).copied()));
        Some(numbers.chain(self.listed[self.listed.len() - back..].iter().map(number)).collect())
    }

    /// Computes the state for a list of intents that begins and ends like the current one, each intent with its
    /// number.
    fn renumbered(
        &self,
        all: &Intents,
        (front, back): (usize, usize),
        numbers: Vec<Option<PartitionNumber>>,
    ) -> (Self, IntentChanges) {
        let (intents, site) = (&all.partitions, &self.ends.site);
        let first_behind = self.listed.len() - back;
        let held = |index: usize| match index.checked_sub(intents.len() - back) {
            Some(behind) => self.listed.get(first_behind + behind),
            None => self.listed[..front].get(index),
        };
        let mut suspects: BTreeSet<PartitionNumber> =
            self.listed[front..first_behind].iter().filter_map(|listed| listed.number).collect();
        let implicit = std::iter::once(PartitionNumber::DEFAULT).chain(site.management);
        suspects.extend(implicit.filter(|number| !self.partitions.contains_key(number)));
        if site.is_default_full {
            let other = self
                .partitions
                .iter()
                .filter(|(number, held)| held.admits_managers != site.admits_managers(**number, all));
            suspects.extend(other.map(|(number, _)| *number));
        }
        let mut listed = Vec::with_capacity(intents.len());
        for (index, (intent, number)) in intents.iter().zip(numbers).enumerate() {
            let intent = match held(index) {
                Some(held) if held.number == number => {
                    listed.push(held.clone());
                    continue;
                }
                Some(held) => {
                    suspects.extend(held.number);
                    Arc::clone(&held.intent)
                }
                None => Arc::new(intent.clone()),
            };
            suspects.extend(number);
            listed.push(ListedPartition { intent, number });
        }
        let mut sources: BTreeMap<PartitionNumber, Vec<Arc<PartitionIntent>>> =
            suspects.into_iter().map(|number| (number, Vec::new())).collect();
        for ListedPartition { intent, number } in &listed {
            if let Some(sources) = number.and_then(|number| sources.get_mut(&number)) {
                sources.push(Arc::clone(intent));
            }
        }
        let mut intended = Self { listed, ..self.clone() };
        let mut intent_changes = IntentChanges::default();
        for (number, sources) in sources {
            let admits_managers = site.admits_managers(number, all);
            let is_same = |held: &Arc<IntendedPartition>| {
                held.sources == sources && held.admits_managers == admits_managers
            };
            if self.partitions.get(&number).is_some_and(is_same) {
                continue;
            }
            let exists = !sources.is_empty() || site.is_implicit(number);
            let partition = exists.then(|| Arc::new(self.ends.partition(number, sources, admits_managers)));
            intended.put(number, partition, &mut intent_changes);
        }
        (intended, intent_changes)
    }

    /// Replaces a partition and notes the change.
    fn put(
        &mut self,
        number: PartitionNumber,
        partition: Option<Arc<IntendedPartition>>,
        intent_changes: &mut IntentChanges,
    ) {
        let before = self.partitions.remove(&number);
        let members = before.iter().chain(&partition).flat_map(|partition| partition.members.keys());
        for guid in members.copied().collect::<BTreeSet<_>>() {
            let Some(index) = self.ends.indices.get(&guid) else { continue };
            let role = partition.as_ref().and_then(|partition| partition.members.get(&guid)).copied();
            let is_first = partition.as_ref().is_some_and(|partition| partition.first.contains(&guid));
            let page = Arc::make_mut(&mut self.ports[index / PAGE]);
            page[index % PAGE].put(number, role, is_first);
            intent_changes.ports.insert(guid);
        }
        intent_changes.partitions.insert(number);
        if let Some(partition) = partition {
            self.partitions.insert(number, partition);
        }
    }

    /// The end ports that are connected to the subnet manager, by GUID.
    pub fn present(&self) -> &[PresentPort] {
        &self.ends.present
    }

    /// What a port should hold; `None` for ports that are not connected.
    pub fn port(&self, guid: Guid) -> Option<&IntendedPort> {
        self.ends.indices.get(&guid).map(|index| &self.ports[index / PAGE][index % PAGE])
    }

    /// Whether two ports may exchange packets: both are in one partition, and at least one is not a limited member.
    pub fn may_talk(&self, a: Guid, b: Guid) -> bool {
        let (Some(a), Some(b)) = (self.port(a), self.port(b)) else { return false };
        a.roles.iter().any(|(number, role)| {
            let other = b.roles.binary_search_by_key(number, |(number, _)| *number).ok();
            other.is_some_and(|index| *role != Role::Limited || b.roles[index].1 != Role::Limited)
        })
    }
}

/// The numbers that partition intents request: their own, or that of an earlier one of the same name.
fn requested(intents: &[PartitionIntent]) -> Vec<Option<PartitionNumber>> {
    let mut by_name = HashMap::from([(DEFAULT_NAME, PartitionNumber::DEFAULT)]);
    let mut numbers = Vec::with_capacity(intents.len());
    for intent in intents {
        let number = intent.number.or_else(|| by_name.get(intent.name.as_str()).copied());
        if let Some(number) = number {
            by_name.entry(&intent.name).or_insert(number);
        }
        numbers.push(number);
    }
    numbers
}

/// The number of each partition intent. An intent without a number has that of an earlier one of the same name, or
/// the number that the plan gave to its name, unless another intent requests it.
fn numbers(intents: &Intents, plan: &FabricPlan, site: &SitePorts) -> Vec<Option<PartitionNumber>> {
    let requested: BTreeSet<PartitionNumber> =
        intents.partitions.iter().filter_map(|intent| intent.number).collect();
    let mut by_name: HashMap<&str, PartitionNumber> =
        HashMap::from([(DEFAULT_NAME, PartitionNumber::DEFAULT)]);
    let mut given: HashMap<&str, PartitionNumber> = HashMap::new();
    for partition in plan.partitions() {
        if !requested.contains(&partition.number) && !site.is_implicit(partition.number) {
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
