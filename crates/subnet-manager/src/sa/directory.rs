//! What is answered from: a plan and what the nodes said about themselves, indexed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::plan::{AdapterPortPlan, GroupPlan, PkeyTable, SwitchPlan, SwitchPortPlan};
use ib_wire::{
    Gid, Guid, Lid, NodeDescription, NodeInfo, PartitionNumber, PortInfo, PortNum, ServiceLevel, SwitchInfo,
};

use super::membership::{KeySet, SharedPartition};
use super::routes::{PathStart, Routes};
use super::service_levels::ServiceLevels;

/// What a node said about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// What it is.
    pub info: NodeInfo,
    /// What it is called.
    pub description: NodeDescription,
    /// What it can do, of a switch.
    pub switch: Option<SwitchInfo>,
    /// Its ports, of a switch also port 0.
    pub ports: BTreeMap<PortNum, PortInfo>,
    /// GUIDs of its end ports.
    pub port_guids: BTreeMap<PortNum, Guid>,
}

/// What is told about the subnet manager itself. Its port is the plan's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagerFacts {
    /// 0..=15, the higher becomes master.
    pub priority: u8,
    /// How much it did so far.
    pub activity: u32,
}

/// Who is where, who may know of whom, and how packets travel: made once for a plan, then only read.
#[derive(Debug)]
pub struct Directory {
    pub(super) plan: Arc<FabricPlan>,
    pub(super) manager: ManagerFacts,
    pub(super) nodes: Arc<BTreeMap<Guid, NodeFacts>>,
    pub(super) routes: Arc<Routes>,
    /// By LID.
    ports: Vec<EndPort>,
    /// Place in `ports` by LID, [`NO_INDEX`] for none.
    by_lid: Vec<u32>,
    by_guid: HashMap<Guid, u32>,
    /// The different sets of keys; ports name theirs by its place.
    key_sets: Vec<KeySet>,
    /// Multicast groups that may be told of.
    groups: Vec<GroupPlan>,
    /// What guaranteed clusters send at.
    levels: ServiceLevels,
    /// Every port of the plan may see everything.
    pub(super) is_open: bool,
}

const NO_INDEX: u32 = u32::MAX;

/// Whether two plans lead packets alike: by the tables they share rather than entry by entry.
fn same_routes(old: &FabricPlan, new: &FabricPlan) -> bool {
    let same_switch = |(old, new): (&SwitchPlan, &SwitchPlan)| {
        let link = |port: &SwitchPortPlan| (port.number, port.peer, port.mtu);
        (old.guid, old.lid) == (new.guid, new.lid)
            && Arc::ptr_eq(&old.linear, &new.linear)
            && old.ports.iter().map(link).eq(new.ports.iter().map(link))
    };
    let index = |port: &AdapterPortPlan| (port.name, port.lid, port.peer, port.mtu);
    old.switches().len() == new.switches().len()
        && old.switches().zip(new.switches()).all(same_switch)
        && old.adapter_ports().map(index).eq(new.adapter_ports().map(index))
}

/// An end port: a port of an adapter, or port 0 of a switch.
#[derive(Clone, Debug)]
pub(super) struct EndPort {
    pub guid: Guid,
    pub lid: Lid,
    /// Its node.
    pub node: Guid,
    pub number: PortNum,
    pub is_switch: bool,
    pub pkeys: Arc<PkeyTable>,
    pub start: PathStart,
    keys: u32,
}

impl EndPort {
    /// Its address.
    #[inline]
    pub fn gid(&self) -> Gid {
        Gid::unicast(Gid::DEFAULT_PREFIX, self.guid)
    }
}

impl Directory {
    /// Indexes a plan. `nodes` is what is known of its nodes: one that said nothing has no record, but paths to it.
    pub fn new(
        plan: Arc<FabricPlan>,
        manager: ManagerFacts,
        nodes: impl IntoIterator<Item = NodeFacts>,
    ) -> Self {
        let nodes: BTreeMap<Guid, NodeFacts> =
            nodes.into_iter().map(|facts| (facts.info.node_guid, facts)).collect();
        let routes = Routes::new(&plan, &nodes);
        Self::of(plan, manager, Arc::new(nodes), Arc::new(routes))
    }

    /// The same directory for a subnet that belongs to one owner: every port of the plan sees what otherwise only the
    /// manager's own does.
    #[must_use]
    pub fn open(self) -> Self {
        Self { is_open: true, ..self }
    }

    /// The directory of another plan for nodes that say what they said. If packets travel as before, that is taken over.
    #[must_use]
    pub fn after(&self, plan: Arc<FabricPlan>) -> Self {
        let routes = match same_routes(&self.plan, &plan) {
            true => Arc::clone(&self.routes),
            false => Arc::new(Routes::new(&plan, &self.nodes)),
        };
        let is_open = self.is_open;
        Self { is_open, ..Self::of(plan, self.manager, Arc::clone(&self.nodes), routes) }
    }

    fn of(
        plan: Arc<FabricPlan>,
        manager: ManagerFacts,
        nodes: Arc<BTreeMap<Guid, NodeFacts>>,
        routes: Arc<Routes>,
    ) -> Self {
        let levels = service_levels(&plan);
        let mut sets = KeySets::default();
        let mut ports = Vec::with_capacity(plan.adapter_ports().len() + plan.switches().len());
        for port in plan.adapter_ports() {
            let Some(start) = routes.start_of_adapter(port.lid) else { continue };
            ports.push(EndPort {
                guid: port.guid,
                lid: port.lid,
                node: port.name.node,
                number: port.name.port,
                is_switch: false,
                pkeys: Arc::clone(&port.pkeys),
                start,
                keys: sets.intern(KeySet::of(&port.pkeys, &levels)),
            });
        }
        for (switch, index) in plan.switches().zip(0..) {
            ports.push(EndPort {
                guid: switch.port_guid,
                lid: switch.lid,
                node: switch.guid,
                number: PortNum::MANAGEMENT,
                is_switch: true,
                pkeys: Arc::clone(&switch.pkeys),
                start: PathStart::Switch(index),
                keys: sets.intern(KeySet::of(&switch.pkeys, &levels)),
            });
        }
        let groups = plan.groups().cloned().collect();
        let service_levels = ServiceLevels::of(&plan);
        Self { levels: service_levels, ..Self::indexed(plan, manager, nodes, routes, ports, sets, groups) }
    }

    /// What both this directory and the next one allow: ports that keep their LID, keys that stay, groups that stay.
    #[must_use]
    pub fn restricted_to(&self, next: &Self) -> Self {
        let mut sets = KeySets::default();
        let mut both: HashMap<(u32, u32), u32> = HashMap::new();
        let mut ports = Vec::with_capacity(self.ports.len());
        for port in &self.ports {
            let Some(after) = next.port_by_lid(port.lid).filter(|after| after.guid == port.guid) else {
                continue;
            };
            let keys = *both
                .entry((port.keys, after.keys))
                .or_insert_with(|| sets.intern(self.keys(port).intersection(next.keys(after))));
            ports.push(EndPort { keys, ..port.clone() });
        }
        let stays = |group: &&GroupPlan| {
            next.groups.iter().any(|after| (after.mgid, after.partition) == (group.mgid, group.partition))
        };
        let groups = self.groups.iter().filter(stays).cloned().collect();
        let (plan, nodes) = (Arc::clone(&self.plan), Arc::clone(&self.nodes));
        let levels = self.levels.restricted_to(&next.levels);
        let restricted =
            Self::indexed(plan, self.manager, nodes, Arc::clone(&self.routes), ports, sets, groups);
        Self { levels, is_open: self.is_open, ..restricted }
    }

    fn indexed(
        plan: Arc<FabricPlan>,
        manager: ManagerFacts,
        nodes: Arc<BTreeMap<Guid, NodeFacts>>,
        routes: Arc<Routes>,
        mut ports: Vec<EndPort>,
        sets: KeySets,
        groups: Vec<GroupPlan>,
    ) -> Self {
        ports.sort_by_key(|port| port.lid);
        let top = ports.last().map_or(0, |port| usize::from(port.lid.to_wire()));
        let mut by_lid = vec![NO_INDEX; top + 1];
        let mut by_guid = HashMap::with_capacity(ports.len());
        for (port, index) in ports.iter().zip(0..) {
            by_lid[usize::from(port.lid.to_wire())] = index;
            by_guid.insert(port.guid, index);
        }
        Self {
            plan,
            manager,
            nodes,
            routes,
            ports,
            by_lid,
            by_guid,
            key_sets: sets.sets,
            groups,
            levels: ServiceLevels::default(),
            is_open: false,
        }
    }

    /// The end ports by LID.
    pub(super) fn ports(&self) -> &[EndPort] {
        &self.ports
    }

    /// The end port with a LID.
    #[inline]
    pub(super) fn port_by_lid(&self, lid: Lid) -> Option<&EndPort> {
        let index = *self.by_lid.get(usize::from(lid.to_wire()))?;
        self.ports.get(index as usize)
    }

    /// The end port with a GUID.
    #[inline]
    pub(super) fn port_by_guid(&self, guid: Guid) -> Option<&EndPort> {
        self.ports.get(*self.by_guid.get(&guid)? as usize)
    }

    /// The end port with an address.
    #[inline]
    pub(super) fn port_by_gid(&self, gid: Gid) -> Option<&EndPort> {
        if gid.prefix() != Gid::DEFAULT_PREFIX {
            return None;
        }
        self.port_by_guid(gid.guid()?)
    }

    /// The subnet manager's port.
    pub(super) fn manager_port(&self) -> Option<&EndPort> {
        self.port_by_lid(self.plan.manager().lid)
    }

    /// What a node said.
    pub(super) fn facts(&self, node: Guid) -> Option<&NodeFacts> {
        self.nodes.get(&node)
    }

    /// The multicast groups by GID.
    pub(super) fn groups(&self) -> &[GroupPlan] {
        &self.groups
    }

    /// The partition in which a port may talk to another, see [`KeySet::shared`].
    #[inline]
    pub(super) fn shared(&self, from: &EndPort, to: &EndPort) -> Option<SharedPartition> {
        self.keys(from).shared(self.keys(to))
    }

    /// The partition in which a port talks to another, as far as a third that is in it may know.
    pub(super) fn shared_before(
        &self,
        requester: &EndPort,
        from: &EndPort,
        to: &EndPort,
    ) -> Option<SharedPartition> {
        let requester = self.keys(requester);
        self.keys(from).shared_where(self.keys(to), |partition| requester.has(partition))
    }

    /// A partition, if a port may talk to another in it.
    pub(super) fn shared_in(
        &self,
        from: &EndPort,
        to: &EndPort,
        partition: PartitionNumber,
    ) -> Option<SharedPartition> {
        self.keys(from).shared_in(self.keys(to), partition)
    }

    /// The service level of packets from a port to another in a partition that both share: that of the guaranteed cluster both
    /// belong to, if there is one. What asks the manager, and what it answers, goes in the default partition.
    #[inline]
    pub(super) fn service_level(
        &self,
        from: &EndPort,
        to: &EndPort,
        shared: SharedPartition,
    ) -> ServiceLevel {
        let manager = self.plan.manager().guid;
        let is_management = shared.key.partition() == PartitionNumber::DEFAULT
            && (from.guid == manager || to.guid == manager);
        if let Some(level) = self.plan.decisions().management.filter(|_| is_management) {
            return level;
        }
        self.levels.between(from.guid, to.guid).unwrap_or(shared.sl)
    }

    /// Whether a port is in a partition.
    pub(super) fn is_member(&self, port: &EndPort, partition: PartitionNumber) -> bool {
        self.keys(port).has(partition)
    }

    #[inline]
    fn keys(&self, port: &EndPort) -> &KeySet {
        &self.key_sets[port.keys as usize]
    }
}

/// The service level of each partition that has one: that of its broadcast group. Others use the one that always works.
fn service_levels(plan: &FabricPlan) -> BTreeMap<PartitionNumber, ServiceLevel> {
    plan.groups().map(|group| (group.partition, group.sl)).collect()
}

/// Sets of keys, each once.
#[derive(Debug, Default)]
struct KeySets {
    sets: Vec<KeySet>,
    indices: BTreeMap<KeySet, u32>,
}

impl KeySets {
    /// Where a set is.
    fn intern(&mut self, set: KeySet) -> u32 {
        let Self { sets, indices } = self;
        *indices.entry(set).or_insert_with_key(|set| {
            sets.push(set.clone());
            sets.len() as u32 - 1
        })
    }
}
