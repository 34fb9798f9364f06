//! The data that subnet administration answers from: a plan and the facts of the nodes, indexed.

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

/// Attributes that a node reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    pub info: NodeInfo,
    pub description: NodeDescription,
    /// `None` for an adapter.
    pub switch: Option<SwitchInfo>,
    /// PortInfo by port number, including port 0 of a switch.
    pub ports: BTreeMap<PortNum, PortInfo>,
    /// GUIDs of its end ports.
    pub port_guids: BTreeMap<PortNum, Guid>,
}

/// SMInfo values of the subnet manager. Its port is in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagerFacts {
    /// 0 to 15; the highest becomes master.
    pub priority: u8,
    /// ActCount in SMInfo records.
    pub activity: u32,
}

/// An index over a plan: end ports, partition membership and paths. Immutable; a new plan needs a new
/// directory.
#[derive(Debug)]
pub struct Directory {
    pub(super) plan: Arc<FabricPlan>,
    pub(super) manager: ManagerFacts,
    pub(super) nodes: Arc<BTreeMap<Guid, NodeFacts>>,
    pub(super) routes: Arc<Routes>,
    /// In ascending order of their LIDs.
    ports: Vec<EndPort>,
    /// Index into `ports` by LID, or [`NO_INDEX`].
    by_lid: Vec<u32>,
    by_guid: HashMap<Guid, u32>,
    /// The distinct P_Key sets; end ports refer to them by index.
    key_sets: Vec<KeySet>,
    /// Multicast groups that may be reported.
    groups: Vec<GroupPlan>,
    /// Service levels of guaranteed clusters.
    levels: ServiceLevels,
    /// Whether every port may see everything.
    pub(super) is_open: bool,
}

const NO_INDEX: u32 = u32::MAX;

/// Whether two plans have the same routes. Compares shared tables by identity, not by entry.
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

/// An adapter port, or port 0 of a switch.
#[derive(Clone, Debug)]
pub(super) struct EndPort {
    pub guid: Guid,
    pub lid: Lid,
    pub node: Guid,
    pub number: PortNum,
    pub is_switch: bool,
    pub pkeys: Arc<PkeyTable>,
    pub start: PathStart,
    keys: u32,
}

impl EndPort {
    #[inline]
    pub fn gid(&self) -> Gid {
        Gid::unicast(Gid::DEFAULT_PREFIX, self.guid)
    }
}

impl Directory {
    /// Indexes a plan. A node without facts has no records, but paths to it exist.
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

    /// The same directory for a subnet with a single owner: every port of the plan sees what otherwise only
    /// the manager's port does.
    #[must_use]
    pub fn open(self) -> Self {
        Self { is_open: true, ..self }
    }

    /// The directory of another plan with the same node facts. Reuses the path index if the routes are the
    /// same.
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

    /// What both this directory and the next one allow: ports that keep their LID, P_Keys and groups that are
    /// in both.
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

    pub(super) fn ports(&self) -> &[EndPort] {
        &self.ports
    }

    #[inline]
    pub(super) fn port_by_lid(&self, lid: Lid) -> Option<&EndPort> {
        let index = *self.by_lid.get(usize::from(lid.to_wire()))?;
        self.ports.get(index as usize)
    }

    #[inline]
    pub(super) fn port_by_guid(&self, guid: Guid) -> Option<&EndPort> {
        self.ports.get(*self.by_guid.get(&guid)? as usize)
    }

    #[inline]
    pub(super) fn port_by_gid(&self, gid: Gid) -> Option<&EndPort> {
        if gid.prefix() != Gid::DEFAULT_PREFIX {
            return None;
        }
        self.port_by_guid(gid.guid()?)
    }

    pub(super) fn manager_port(&self) -> Option<&EndPort> {
        self.port_by_lid(self.plan.manager().lid)
    }

    /// The facts of a node.
    pub(super) fn facts(&self, node: Guid) -> Option<&NodeFacts> {
        self.nodes.get(&node)
    }

    /// In ascending order of their GIDs.
    pub(super) fn groups(&self) -> &[GroupPlan] {
        &self.groups
    }

    /// The partition for packets between two ports, see [`KeySet::shared`].
    #[inline]
    pub(super) fn shared(&self, from: &EndPort, to: &EndPort) -> Option<SharedPartition> {
        self.keys(from).shared(self.keys(to))
    }

    /// The partition for packets between two ports, of those that a third port is in.
    pub(super) fn shared_before(
        &self,
        requester: &EndPort,
        from: &EndPort,
        to: &EndPort,
    ) -> Option<SharedPartition> {
        let requester = self.keys(requester);
        self.keys(from).shared_where(self.keys(to), |partition| requester.has(partition))
    }

    /// A given partition, if two ports can communicate in it.
    pub(super) fn shared_in(
        &self,
        from: &EndPort,
        to: &EndPort,
        partition: PartitionNumber,
    ) -> Option<SharedPartition> {
        self.keys(from).shared_in(self.keys(to), partition)
    }

    /// The service level of packets between two ports in a shared partition: that of the guaranteed cluster
    /// of both, if there is one, else that of the partition. Packets to and from the manager in the default
    /// partition have the management service level.
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
        if let Some(level) = self.plan.decisions().management_sl.filter(|_| is_management) {
            return level;
        }
        self.levels.between(from.guid, to.guid).unwrap_or(shared.sl)
    }

    pub(super) fn is_member(&self, port: &EndPort, partition: PartitionNumber) -> bool {
        self.keys(port).has(partition)
    }

    #[inline]
    fn keys(&self, port: &EndPort) -> &KeySet {
        &self.key_sets[port.keys as usize]
    }
}

/// The service level of each partition with a broadcast group: that of the group. Others use service level 0.
fn service_levels(plan: &FabricPlan) -> BTreeMap<PartitionNumber, ServiceLevel> {
    plan.groups().map(|group| (group.partition, group.sl)).collect()
}

/// Interns P_Key sets, so that each is stored once.
#[derive(Debug, Default)]
struct KeySets {
    sets: Vec<KeySet>,
    indices: BTreeMap<KeySet, u32>,
}

impl KeySets {
    /// The index of a set; adds it if it is new.
    fn intern(&mut self, set: KeySet) -> u32 {
        let Self { sets, indices } = self;
        *indices.entry(set).or_insert_with_key(|set| {
            sets.push(set.clone());
            sets.len() as u32 - 1
        })
    }
}
