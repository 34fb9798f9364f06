//! The data that subnet administration answers from: a plan and the facts of the nodes, indexed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fabric_model::FabricPlan;
use fabric_model::plan::{AdapterPortPlan, GroupPlan, PkeyTable, SwitchPlan, SwitchPortPlan};
use ib_wire::{
    Gid, Guid, Lid, MulticastLid, NodeDescription, NodeInfo, PartitionNumber, PortInfo, PortNum,
    ServiceLevel, SwitchInfo,
};

use super::guid_map::GuidMap;
use super::membership::{KeySet, SharedPartition};
use super::routes::{PathStart, Routes};
use super::service_levels::ServiceLevels;
use crate::port_map::PortMap;

/// Attributes that a node reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    pub info: NodeInfo,
    pub description: NodeDescription,
    /// `None` for an adapter.
    pub switch: Option<SwitchInfo>,
    /// PortInfo by port number, including port 0 of a switch.
    pub ports: PortMap<PortInfo>,
    /// GUIDs of its end ports.
    pub port_guids: PortMap<Guid>,
}

/// SMInfo values of the subnet manager. Its port is in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagerFacts {
    /// 0 to 15; the highest becomes master.
    pub priority: u8,
    /// ActCount in SMInfo records.
    pub activity: u32,
    /// GID prefix of the subnet.
    pub gid_prefix: u64,
}

/// Priority 0, and the prefix of link-local GIDs.
impl Default for ManagerFacts {
    fn default() -> Self {
        Self { priority: 0, activity: 0, gid_prefix: Gid::DEFAULT_PREFIX }
    }
}

/// An index over a plan: end ports, partition membership and paths. Immutable; a new plan needs a new
/// directory.
#[derive(Clone, Debug)]
pub struct Directory {
    pub(super) plan: Arc<FabricPlan>,
    pub(super) manager: ManagerFacts,
    pub(super) nodes: Arc<BTreeMap<Guid, NodeFacts>>,
    pub(super) routes: Arc<Routes>,
    /// End ports in ascending order of their LIDs, then their aliases.
    addresses: Vec<EndPort>,
    /// The number of end ports among the addresses.
    port_count: usize,
    /// Index into `addresses` by LID, or [`NO_INDEX`].
    by_lid: Vec<u32>,
    by_guid: GuidMap<u32>,
    /// The distinct P_Key sets; end ports refer to them by index.
    key_sets: Vec<KeySet>,
    /// Multicast groups that may be reported.
    groups: Vec<GroupPlan>,
    /// Index into `groups` of the broadcast group of each partition.
    broadcast_groups: HashMap<PartitionNumber, usize>,
    /// The multicast LIDs of the groups.
    planned_mlids: BTreeSet<MulticastLid>,
    /// The number of multicast groups that every switch has room for.
    multicast_capacity: usize,
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

/// An address: an adapter port, port 0 of a switch, or an alias of an adapter port. An alias differs from its port in its
/// GUID and its partitions only.
#[derive(Clone, Debug)]
pub(super) struct EndPort {
    pub guid: Guid,
    /// GUID of the port itself.
    pub port_guid: Guid,
    pub lid: Lid,
    pub node: Guid,
    pub number: PortNum,
    pub is_switch: bool,
    pub pkeys: Arc<PkeyTable>,
    pub start: PathStart,
    gid_prefix: u64,
    keys: u32,
}

impl EndPort {
    #[inline]
    pub fn gid(&self) -> Gid {
        Gid::unicast(self.gid_prefix, self.guid)
    }

    pub fn is_alias(&self) -> bool {
        self.guid != self.port_guid
    }

    /// Whether software that speaks for this address also speaks for another: for itself, and that of a port for its aliases.
    #[inline]
    pub fn speaks_for(&self, other: &Self) -> bool {
        self.guid == other.guid || self.guid == other.port_guid
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

    /// The directory of a plan that differs in multicast forwarding tables only.
    pub(crate) fn with_multicast_tables_of(&self, plan: Arc<FabricPlan>) -> Self {
        Self { plan, ..self.clone() }
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
        let mut aliases = Vec::new();
        for port in plan.adapter_ports() {
            let Some(start) = routes.start_of_adapter(port.lid) else { continue };
            let keys = KeySet::of(&port.pkeys, &levels);
            let end = EndPort {
                guid: port.guid,
                port_guid: port.guid,
                lid: port.lid,
                node: port.name.node,
                number: port.name.port,
                is_switch: false,
                pkeys: Arc::clone(&port.pkeys),
                start,
                gid_prefix: manager.gid_prefix,
                keys: sets.intern(keys.clone()),
            };
            for alias in port.aliases.values() {
                let keys = sets.intern(keys.within(&alias.partitions));
                aliases.push(EndPort { guid: alias.guid, keys, ..end.clone() });
            }
            ports.push(end);
        }
        for (switch, index) in plan.switches().zip(0..) {
            ports.push(EndPort {
                guid: switch.port_guid,
                port_guid: switch.port_guid,
                lid: switch.lid,
                node: switch.guid,
                number: PortNum::MANAGEMENT,
                is_switch: true,
                pkeys: Arc::clone(&switch.pkeys),
                start: PathStart::Switch(index),
                gid_prefix: manager.gid_prefix,
                keys: sets.intern(KeySet::of(&switch.pkeys, &levels)),
            });
        }
        let groups = plan.groups().cloned().collect();
        let service_levels = ServiceLevels::of(&plan);
        ports.append(&mut aliases);
        Self { levels: service_levels, ..Self::indexed(plan, manager, nodes, routes, ports, sets, groups) }
    }

    /// What both this directory and the next one allow: ports that keep their LID, P_Keys and groups that are
    /// in both.
    #[must_use]
    pub fn restricted_to(&self, next: &Self) -> Self {
        let mut sets = KeySets::default();
        let mut both: HashMap<(u32, u32), u32> = HashMap::new();
        let mut ports = Vec::with_capacity(self.addresses.len());
        for port in &self.addresses {
            let is_same = |after: &&EndPort| (after.lid, after.port_guid) == (port.lid, port.port_guid);
            let Some(after) = next.port_by_guid(port.guid).filter(is_same) else { continue };
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
        mut addresses: Vec<EndPort>,
        sets: KeySets,
        groups: Vec<GroupPlan>,
    ) -> Self {
        addresses.sort_by_key(|port| (port.is_alias(), port.lid));
        let port_count = addresses.partition_point(|port| !port.is_alias());
        let top = addresses.iter().map(|port| usize::from(port.lid.to_wire())).max().unwrap_or(0);
        let mut by_lid = vec![NO_INDEX; top + 1];
        let mut by_guid = GuidMap::with_capacity_and_hasher(addresses.len(), Default::default());
        for (port, index) in addresses.iter().zip(0..) {
            if !port.is_alias() {
                by_lid[usize::from(port.lid.to_wire())] = index;
            }
            by_guid.insert(port.guid, index);
        }
        let mut broadcast_groups = HashMap::with_capacity(groups.len());
        for (index, group) in groups.iter().enumerate() {
            broadcast_groups.entry(group.partition).or_insert(index);
        }
        let switches = nodes.values().filter_map(|node| node.switch.as_ref());
        let capacities = switches.map(|switch| usize::from(switch.multicast_fdb_capacity));
        Self {
            broadcast_groups,
            planned_mlids: groups.iter().map(|group| group.mlid).collect(),
            multicast_capacity: capacities.min().unwrap_or(0),
            plan,
            manager,
            nodes,
            routes,
            addresses,
            port_count,
            by_lid,
            by_guid,
            key_sets: sets.sets,
            groups,
            levels: ServiceLevels::default(),
            is_open: false,
        }
    }

    /// The end ports, without aliases, in ascending order of their LIDs.
    pub(super) fn ports(&self) -> &[EndPort] {
        self.addresses.get(..self.port_count).unwrap_or_default()
    }

    #[inline]
    pub(super) fn port_by_lid(&self, lid: Lid) -> Option<&EndPort> {
        let index = *self.by_lid.get(usize::from(lid.to_wire()))?;
        self.addresses.get(index as usize)
    }

    /// The end port or alias with a GUID.
    #[inline]
    pub(super) fn port_by_guid(&self, guid: Guid) -> Option<&EndPort> {
        self.addresses.get(*self.by_guid.get(&guid)? as usize)
    }

    #[inline]
    pub(super) fn port_by_gid(&self, gid: Gid) -> Option<&EndPort> {
        if !self.is_in_subnet(gid) {
            return None;
        }
        self.port_by_guid(gid.guid()?)
    }

    /// Whether a unicast GID has the prefix of the subnet.
    pub(super) fn is_in_subnet(&self, gid: Gid) -> bool {
        gid.prefix() == self.manager.gid_prefix
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

    /// The groups of the plan with a GID, at most one for each partition.
    pub(super) fn groups_of(&self, mgid: Gid) -> &[GroupPlan] {
        let start = self.groups.partition_point(|group| group.mgid < mgid);
        let end = self.groups.partition_point(|group| group.mgid <= mgid);
        self.groups.get(start..end).unwrap_or_default()
    }

    /// The multicast LIDs that groups of the plan have.
    pub(super) fn planned_mlids(&self) -> &BTreeSet<MulticastLid> {
        &self.planned_mlids
    }

    /// The addresses that are in only one of two directories, or in other partitions. All, if another number of ports may see
    /// everything.
    pub(super) fn changed_since(&self, before: &Self) -> BTreeSet<Guid> {
        let sees_all = |directory: &Self| (directory.is_open, directory.plan.manager().guid);
        let all = || self.addresses.iter().chain(&before.addresses).map(|port| port.guid);
        if sees_all(self) != sees_all(before) {
            return all().collect();
        }
        all().filter(|guid| self.key_set(*guid) != before.key_set(*guid)).collect()
    }

    fn key_set(&self, guid: Guid) -> Option<&KeySet> {
        self.port_by_guid(guid).map(|port| self.keys(port))
    }

    /// The number of groups that every switch has room for.
    pub(super) fn multicast_capacity(&self) -> usize {
        self.multicast_capacity
    }

    /// The broadcast group of a partition.
    pub(super) fn broadcast_group(&self, partition: PartitionNumber) -> Option<&GroupPlan> {
        self.groups.get(*self.broadcast_groups.get(&partition)?)
    }

    /// Whether a port may know of a partition: it is a member, or it sees everything.
    pub(super) fn may_see_partition(&self, viewer: Guid, partition: PartitionNumber) -> bool {
        self.sees_all(viewer)
            || self.port_by_guid(viewer).is_some_and(|viewer| self.is_member(viewer, partition))
    }

    /// The GUIDs of all ports and aliases.
    pub(super) fn guids(&self) -> impl Iterator<Item = Guid> {
        self.addresses.iter().map(|port| port.guid)
    }

    /// Whether a port may see another: they can communicate, or it sees everything.
    pub(super) fn is_visible_to(&self, viewer: Guid, port: Guid) -> bool {
        let (Some(viewer), Some(port)) = (self.port_by_guid(viewer), self.port_by_guid(port)) else {
            return false;
        };
        viewer.speaks_for(port) || self.sees_all(viewer.guid) || self.shared(viewer, port).is_some()
    }

    fn sees_all(&self, viewer: Guid) -> bool {
        self.is_open || viewer == self.plan.manager().guid
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
    /// partition have the management service level, and all between the manager and a handed-over port.
    #[inline]
    pub(super) fn service_level(
        &self,
        from: &EndPort,
        to: &EndPort,
        shared: SharedPartition,
    ) -> ServiceLevel {
        let manager = self.plan.manager().guid;
        let other = if from.port_guid == manager { to } else { from };
        let is_management = (from.port_guid == manager || to.port_guid == manager)
            && (shared.key.partition() == PartitionNumber::DEFAULT || self.is_handed_over(other.port_guid));
        if let Some(level) = self.plan.decisions().management_sl.filter(|_| is_management) {
            return level;
        }
        self.levels.between(from.port_guid, to.port_guid).unwrap_or(shared.sl)
    }

    /// Whether a port reaches subnet administration by the management partition.
    fn is_handed_over(&self, port: Guid) -> bool {
        let is_member = |number| self.port_by_guid(port).is_some_and(|port| self.is_member(port, number));
        self.plan.management_partition().is_some_and(is_member)
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
