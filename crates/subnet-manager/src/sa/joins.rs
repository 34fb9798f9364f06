//! Multicast groups that ports create, join and leave.
//!
//! A group belongs to one partition; groups of two partitions may have the same GID and know nothing of each other. IP groups
//! use the multicast LID of the partition's broadcast group, whose tree reaches all its members: such a join changes no table.
//! Other groups get a multicast LID of their own while there are any, and the manager programs a part of the broadcast tree for
//! it ([`JoinedGroup`]); further ones share that of the broadcast group, too. Adapters discard packets of groups that no queue
//! pair of theirs is attached to. [Decision 0035](../../../../docs/decisions/0035-groups-use-the-tree-of-their-partition.md) has
//! the reasons.
//!
//! A port joins and leaves for itself and its aliases. For others it may join, in a partition of both, and leave what was joined
//! so (proxy joins); nobody outside the partition gets packets by that. The rules are those of IBA 15.2.5.17 (o15-0.1.5 to
//! o15-0.2.4), the statuses those of OpenSM.

use std::collections::btree_map::Range;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fabric_model::plan::GroupPlan;
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, Pattern, Selector};
use ib_wire::{
    Gid, Guid, Mad, Membership, Mtu, MulticastBlock, MulticastLid, PartitionNumber, QKey, Rate, ServiceLevel,
    Status,
};

use super::directory::{Directory, EndPort};
use super::group_gids::{LINK_LOCAL, assigned_gid, is_assigned, is_ip, is_valid_gid};
use super::join_request::{MembershipRequest, partition_of};
use super::paths::{is_selected, lower_mtu, lower_rate};
use super::remembered::{MemberKind, RememberedGroup};
use crate::lifetimes::SUBNET_TIMEOUT;

type M = McMemberRecord;

/// Limit on the groups that one port is in. IPoIB joins about five per interface.
const PORT_GROUPS_MAX: usize = 256;
/// Limit on the groups that ports may create in one partition.
const PARTITION_GROUPS_MAX: usize = 1024;
/// Limit on the groups of one partition with a multicast LID of their own. Each costs an entry in the table of every switch
/// that its tree touches.
const PARTITION_TREES_MAX: usize = 64;
/// Limit on created and deleted groups that wait to be reported.
const EVENTS_MAX: usize = 4096;

/// What a group is. Its members are elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub mgid: Gid,
    pub partition: PartitionNumber,
    pub mlid: MulticastLid,
    /// Whether no other group has its multicast LID.
    pub has_tree: bool,
    pub qkey: QKey,
    pub mtu: Mtu,
    pub rate: Rate,
    pub sl: ServiceLevel,
    pub scope: u8,
    pub traffic_class: u8,
    pub flow_label: u32,
    pub hop_limit: u8,
}

impl Group {
    pub fn planned(plan: &GroupPlan) -> Self {
        Self {
            mgid: plan.mgid,
            partition: plan.partition,
            mlid: plan.mlid,
            has_tree: false,
            qkey: plan.qkey,
            mtu: plan.mtu,
            rate: plan.rate,
            sl: plan.sl,
            scope: plan.scope.to_wire(),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 0,
        }
    }

    fn key(&self) -> GroupKey {
        (self.mgid, self.partition)
    }

    /// The record of the group, or of a member of it.
    pub fn record(&self, port_gid: Gid, member: Option<Member>) -> McMemberRecord {
        McMemberRecord {
            mgid: self.mgid,
            port_gid,
            qkey: self.qkey,
            mlid: Some(self.mlid),
            mtu_selector: Selector::Exactly,
            mtu: self.mtu,
            traffic_class: self.traffic_class,
            pkey: Some(self.partition.key(Membership::Full)),
            rate_selector: Selector::Exactly,
            rate: self.rate,
            packet_life_time_selector: Selector::Exactly,
            packet_life_time: SUBNET_TIMEOUT,
            sl: self.sl,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            scope: self.scope,
            join_state: member.map(|member| member.state).unwrap_or_default(),
            proxy_join: member.is_some_and(|member| member.is_proxy),
        }
    }

    /// Whether the group meets the components of a request that are no GID, P_Key or join state.
    pub fn meets(&self, pattern: &Pattern<'_, M>) -> bool {
        let same = |component, own: u32| pattern.value::<u32>(component).is_none_or(|wanted| wanted == own);
        pattern.value::<QKey>(M::QKEY).is_none_or(|wanted| wanted == self.qkey)
            && pattern.value::<Option<MulticastLid>>(M::MLID).is_none_or(|wanted| wanted == Some(self.mlid))
            && pattern.value::<ServiceLevel>(M::SL).is_none_or(|wanted| wanted == self.sl)
            && same(M::TRAFFIC_CLASS, self.traffic_class.into())
            && same(M::FLOW_LABEL, self.flow_label)
            && same(M::HOP_LIMIT, self.hop_limit.into())
            && same(M::SCOPE, self.scope.into())
            && selects(pattern, M::MTU_SELECTOR, M::MTU, |selector, wanted: Mtu| {
                is_selected(self.mtu.bytes(), selector, wanted.bytes())
            })
            && selects(pattern, M::RATE_SELECTOR, M::RATE, |selector, wanted: Rate| {
                is_selected(self.rate.nominal_mbps(), selector, wanted.nominal_mbps())
            })
            && selects(pattern, M::PACKET_LIFE_TIME_SELECTOR, M::PACKET_LIFE_TIME, |selector, wanted: u8| {
                is_selected(SUBNET_TIMEOUT, selector, wanted)
            })
    }
}

/// Whether a component with a selector is met. A selector without a value, or a value without a selector, is ignored.
fn selects<T: ib_wire::WireValue>(
    pattern: &Pattern<'_, M>,
    selector: ComponentMask,
    value: ComponentMask,
    is_met: impl FnOnce(Selector, T) -> bool,
) -> bool {
    let both = pattern.value::<Selector>(selector).zip(pattern.value::<T>(value));
    both.is_none_or(|(selector, wanted)| is_met(selector, wanted))
}

type GroupKey = (Gid, PartitionNumber);

/// A group that began or ended to exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupEvent {
    pub mgid: Gid,
    pub partition: PartitionNumber,
    pub exists: bool,
}

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub state: JoinState,
    /// Whether another port joined on behalf of this one.
    pub is_proxy: bool,
    /// GUID of the port that joined.
    pub entered_by: Guid,
}

/// A created group with a multicast LID of its own, for which the manager programs a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JoinedGroup {
    pub partition: PartitionNumber,
    pub mlid: MulticastLid,
    /// Port GUIDs of those that send only, and of those that also receive.
    pub members: BTreeMap<Guid, MemberKind>,
}

impl MemberKind {
    fn of(state: JoinState) -> Self {
        if state.has(JoinState::FULL) || state.has(JoinState::NON_MEMBER) {
            Self::Receives
        } else {
            Self::SendsOnly
        }
    }
}

/// The groups that ports created, and the members of all groups.
#[derive(Debug, Default)]
pub(super) struct Joins {
    /// Whether somebody programs trees for groups.
    programs_trees: bool,
    created: BTreeMap<GroupKey, Group>,
    /// Members by GUID; groups of the plan may have none.
    members: BTreeMap<GroupKey, BTreeMap<Guid, Member>>,
    /// The number of members that each port entered, by port GUID.
    by_port: BTreeMap<Guid, usize>,
    /// The number of created groups of each partition.
    by_partition: BTreeMap<PartitionNumber, usize>,
    /// The number of groups of each partition with a multicast LID of their own.
    trees_by_partition: BTreeMap<PartitionNumber, usize>,
    /// The multicast LIDs of those groups, and of groups of a former manager.
    mlids: BTreeSet<MulticastLid>,
    /// Groups of a former manager, with the members that did not join again.
    remembered: BTreeMap<GroupKey, RememberedGroup>,
    /// How often the trees that the manager should program changed.
    tree_changes: u64,
    /// Ports whose membership ended although they may still believe in it.
    evicted: BTreeSet<Guid>,
    /// The last number that was used in an assigned GID.
    assigned: u32,
    events: VecDeque<GroupEvent>,
}

impl Joins {
    /// Gives groups multicast LIDs of their own, beside those that a former manager remembered.
    pub fn with_trees(remembered: &[RememberedGroup]) -> Self {
        let keyed = remembered.iter().map(|group| ((group.mgid, group.partition), group.clone()));
        let remembered: BTreeMap<GroupKey, RememberedGroup> = keyed.collect();
        Self {
            programs_trees: true,
            mlids: remembered.values().map(|group| group.mlid).collect(),
            tree_changes: u64::from(!remembered.is_empty()),
            remembered,
            ..Self::default()
        }
    }

    /// The groups with a tree of their own, for the next manager.
    pub fn to_remember(&self) -> Vec<RememberedGroup> {
        let mut groups = self.remembered.clone();
        for group in self.created.values().filter(|group| group.has_tree) {
            let Group { mgid, partition, mlid, .. } = *group;
            let new = RememberedGroup { mgid, partition, mlid, members: BTreeMap::new() };
            let known = &mut groups.entry(group.key()).or_insert(new).members;
            known.extend(self.members(group).map(|(guid, member)| (guid, MemberKind::of(member.state))));
        }
        groups.into_values().collect()
    }

    /// Whether groups or members of a former manager are left that did not join again.
    pub fn remembers(&self) -> bool {
        !self.remembered.is_empty()
    }

    /// Forgets who did not join again.
    pub fn forget_remembered(&mut self) {
        self.tree_changes += u64::from(!std::mem::take(&mut self.remembered).is_empty());
        self.mlids = self.created.values().filter(|group| group.has_tree).map(|group| group.mlid).collect();
    }

    /// The groups that exist, with a GID if one is given: those of the plan and those that ports created, each in ascending
    /// order.
    pub fn groups(&self, directory: &Directory, mgid: Option<Gid>) -> impl Iterator<Item = Group> {
        let planned = mgid.map_or_else(|| directory.groups(), |mgid| directory.groups_of(mgid));
        let created = mgid.map_or_else(|| self.created.range(..), |mgid| self.created_with(mgid));
        planned.iter().map(Group::planned).chain(created.map(|(_, group)| group.clone()))
    }

    /// The created groups with a GID, at most one for each partition.
    fn created_with(&self, mgid: Gid) -> Range<'_, GroupKey, Group> {
        self.created.range((mgid, PartitionNumber::MIN)..=(mgid, PartitionNumber::DEFAULT))
    }

    /// The members of a group, in ascending order of their port GUIDs.
    pub fn members(&self, group: &Group) -> impl Iterator<Item = (Guid, Member)> {
        let members = self.members.get(&group.key());
        members.into_iter().flatten().map(|(guid, member)| (*guid, *member))
    }

    /// How often the groups with a tree of their own, or their members, changed since the start.
    pub fn tree_changes(&self) -> u64 {
        self.tree_changes
    }

    /// The groups with a tree of their own, those of a former manager included. `port_of` is the port that a GUID is the GUID or an
    /// alias of.
    pub fn joined_groups(&self, port_of: impl Fn(Guid) -> Option<Guid>) -> Vec<JoinedGroup> {
        let on_port = |group: RememberedGroup| {
            let mut members: BTreeMap<Guid, MemberKind> = BTreeMap::new();
            for (guid, kind) in group.members {
                let Some(port) = port_of(guid) else { continue };
                let known = members.entry(port).or_insert(MemberKind::SendsOnly);
                *known = kind.max(*known);
            }
            JoinedGroup { partition: group.partition, mlid: group.mlid, members }
        };
        self.to_remember().into_iter().map(on_port).collect()
    }

    /// Takes the ports that should be asked to join again.
    pub fn take_evicted(&mut self) -> BTreeSet<Guid> {
        std::mem::take(&mut self.evicted)
    }

    /// The next group that was created or deleted.
    pub fn poll_event(&mut self) -> Option<GroupEvent> {
        self.events.pop_front()
    }

    /// Set(MCMemberRecord): a port joins a group, which is created if it does not exist.
    pub fn join(
        &mut self,
        directory: &Directory,
        requester: &EndPort,
        request: &Mad,
    ) -> Result<McMemberRecord, Status> {
        let request = MembershipRequest::read(directory, requester, request)?;
        let found = self.find(directory, &request);
        let is_new = found.is_none();
        let group = match found {
            Some(group) if group.meets(&request.pattern) => group,
            Some(_) => return Err(Status::SA_REQUEST_INVALID),
            None => self.creatable(directory, &request)?,
        };
        let own = directory.routes.own(request.named.start);
        let can_carry =
            own.mtu().bytes() >= group.mtu.bytes() && own.rate().nominal_mbps() >= group.rate.nominal_mbps();
        if !can_carry || !directory.is_member(request.named, group.partition) {
            return Err(Status::SA_REQUEST_INVALID);
        }
        let current = self.member(&group, request.named.guid);
        if current.is_some_and(|member| request.is_proxy && !member.is_proxy) {
            return Err(Status::SA_REQUEST_INVALID);
        }
        let entered_by = current.map_or(requester.port_guid, |member| member.entered_by);
        if current.is_none() {
            let count = self.by_port.entry(entered_by).or_default();
            if *count >= PORT_GROUPS_MAX {
                return Err(Status::SA_NO_RESOURCES);
            }
            *count += 1;
        }
        if is_new {
            self.create(group.clone());
        }
        let state = current.map(|member| member.state).unwrap_or_default().with(request.state);
        let member = Member { state, is_proxy: request.is_proxy, entered_by };
        self.put_member(&group, request.named.guid, member);
        Ok(group.record(request.named.gid(), Some(member)))
    }

    /// Delete(MCMemberRecord): a port gives up join states, and leaves the group with the last of them. A created group ends
    /// with its last full member.
    pub fn leave(
        &mut self,
        directory: &Directory,
        requester: &EndPort,
        request: &Mad,
    ) -> Result<McMemberRecord, Status> {
        let invalid = Status::SA_REQUEST_INVALID;
        let request = MembershipRequest::read(directory, requester, request)?;
        let group = self.find(directory, &request).ok_or(invalid)?;
        let member = self.member(&group, request.named.guid).ok_or(invalid)?;
        // Whoever is in the partition may end what another joined on behalf of a third.
        if !member.state.has(request.state) || request.is_proxy && !member.is_proxy {
            return Err(invalid);
        }
        let left = Member { state: member.state.without(request.state), ..member };
        if left.state == JoinState::default() {
            self.remove_member(&group.key(), request.named.guid);
        } else {
            self.put_member(&group, request.named.guid, left);
        }
        self.remove_if_over(&group.key());
        Ok(group.record(request.named.gid(), Some(left)))
    }

    fn put_member(&mut self, group: &Group, guid: Guid, member: Member) {
        let before = self.members.entry(group.key()).or_default().insert(guid, member);
        let kind = |member: Member| MemberKind::of(member.state);
        let known = self.remembered.get_mut(&group.key()).and_then(|group| group.members.remove(&guid));
        let in_tree = Some(kind(member)).filter(|_| group.has_tree);
        if before.map(kind).filter(|_| group.has_tree).or(known) != in_tree {
            self.tree_changes += 1;
        }
    }

    fn member(&self, group: &Group, guid: Guid) -> Option<Member> {
        self.members.get(&group.key())?.get(&guid).copied()
    }

    /// Removes what a directory no longer allows: members that are gone or left the partition, and groups whose multicast LID
    /// or service level is used otherwise now. Their members should be asked to join again, and so should members of planned
    /// groups that differ from those `before`.
    pub fn restrict_to(&mut self, directory: &Directory, before: Option<&Directory>) {
        let planned = directory.planned_mlids();
        let is_valid = |group: &Group| match directory.broadcast_group(group.partition) {
            Some(broadcast) if broadcast.sl != group.sl => false,
            Some(_) if group.has_tree => !planned.contains(&group.mlid),
            Some(broadcast) => broadcast.mlid == group.mlid,
            None => false,
        };
        for group in before.into_iter().flat_map(Directory::groups).map(Group::planned) {
            let now = directory.groups_of(group.mgid).iter().map(Group::planned);
            if now.into_iter().any(|now| now.key() == group.key() && now != group) {
                self.evicted.extend(self.members.get(&group.key()).into_iter().flat_map(BTreeMap::keys));
            }
        }
        let over: Vec<GroupKey> =
            self.created.values().filter(|group| !is_valid(group)).map(Group::key).collect();
        for key in over {
            self.evicted.extend(self.members.get(&key).into_iter().flat_map(BTreeMap::keys));
            self.delete(&key);
        }
        let tree_is_valid = |group: &RememberedGroup| {
            directory.broadcast_group(group.partition).is_some() && !planned.contains(&group.mlid)
        };
        self.remembered.retain(|_, group| tree_is_valid(group));
        let is_member = |guid, partition| {
            directory.port_by_guid(guid).is_some_and(|port| directory.is_member(port, partition))
        };
        let gone: Vec<(GroupKey, Guid)> = (self.members.iter())
            .flat_map(|(key, members)| members.keys().map(|guid| (*key, *guid)))
            .filter(|((_, partition), guid)| !is_member(*guid, *partition))
            .collect();
        for (key, guid) in gone {
            self.remove_member(&key, guid);
            self.remove_if_over(&key);
        }
    }

    /// The group of a GID in the partitions of the requester; in that of the request, if it names one.
    fn find(&self, directory: &Directory, request: &MembershipRequest<'_>) -> Option<Group> {
        let partition = partition_of(&request.pattern);
        let may = |group: &Group| {
            partition.is_none_or(|wanted| wanted == group.partition)
                && directory.is_member(request.speaker, group.partition)
        };
        let mgid = request.mgid;
        let planned = directory.groups_of(mgid).iter().map(Group::planned).find(may);
        planned.or_else(|| self.created_with(mgid).map(|(_, group)| group).find(|group| may(group)).cloned())
    }

    /// The group that a request creates. Nothing is changed.
    fn creatable(&self, directory: &Directory, request: &MembershipRequest<'_>) -> Result<Group, Status> {
        let (pattern, mgid) = (&request.pattern, request.mgid);
        let invalid = Status::SA_REQUEST_INVALID;
        if !keeps_group(request.state) {
            return Err(invalid);
        }
        if !pattern.selects(M::QKEY | M::PKEY | M::SL | M::TRAFFIC_CLASS | M::FLOW_LABEL) {
            return Err(Status::SA_INSUFFICIENT_COMPONENTS);
        }
        let partition = partition_of(pattern).ok_or(invalid)?;
        if !directory.is_member(request.speaker, partition) {
            return Err(invalid);
        }
        let broadcast =
            directory.broadcast_group(partition).map(Group::planned).ok_or(Status::SA_NO_RESOURCES)?;
        if self.by_partition.get(&partition).is_some_and(|count| *count >= PARTITION_GROUPS_MAX) {
            return Err(Status::SA_NO_RESOURCES);
        }
        let scope = pattern.value::<u8>(M::SCOPE);
        let mgid = match mgid == Gid::default() {
            true => self.unused_gid(directory, partition, scope.unwrap_or(LINK_LOCAL)),
            false => mgid,
        };
        let own_mlid = if is_ip(mgid) { None } else { self.own_mlid(directory, (mgid, partition)) };
        let own = directory.routes.own(request.named.start);
        let mtu_max = if own.mtu().bytes() < broadcast.mtu.bytes() { own.mtu() } else { broadcast.mtu };
        let mtu = pattern.value(M::MTU_SELECTOR).zip(pattern.value(M::MTU));
        let rate = pattern.value(M::RATE_SELECTOR).zip(pattern.value(M::RATE));
        let group = Group {
            mgid,
            qkey: pattern.value(M::QKEY).ok_or(invalid)?,
            mtu: mtu
                .map_or(Some(mtu_max), |(selector, mtu)| lower_mtu(mtu_max, selector, mtu))
                .ok_or(invalid)?,
            rate: rate
                .map_or(Some(broadcast.rate), |(selector, rate)| lower_rate(own.rate(), selector, rate))
                .ok_or(invalid)?,
            scope: mgid.0[1] & 0xf,
            traffic_class: pattern.value(M::TRAFFIC_CLASS).ok_or(invalid)?,
            flow_label: pattern.value(M::FLOW_LABEL).ok_or(invalid)?,
            hop_limit: pattern.value(M::HOP_LIMIT).unwrap_or_default(),
            // Lanes are planned for this service level; others may be those of guarantees.
            sl: broadcast.sl,
            mlid: own_mlid.unwrap_or(broadcast.mlid),
            has_tree: own_mlid.is_some(),
            partition,
        };
        let is_valid = is_valid_gid(mgid, partition, pattern.value::<Gid>(M::MGID) == Some(mgid))
            // The scope is that of the GID, whatever the component says.
            && group.meets(&pattern.without(M::MLID | M::SCOPE))
            && (!is_ip(mgid) || group.qkey == broadcast.qkey);
        if is_valid { Ok(group) } else { Err(invalid) }
    }

    /// A multicast LID for a group of a partition that needs one of its own. Groups of the plan have the lowest LIDs; these are
    /// taken from the end of each block, so that groups that are planned later seldom need them.
    /// A group of a former manager keeps its own.
    fn own_mlid(&self, directory: &Directory, (mgid, partition): GroupKey) -> Option<MulticastLid> {
        if !self.programs_trees {
            return None;
        }
        let planned = directory.planned_mlids();
        let remembered = self.remembered.get(&(mgid, partition)).map(|group| group.mlid);
        if remembered.is_some_and(|mlid| !planned.contains(&mlid)) {
            return remembered;
        }
        let has_room = |count: &usize| *count < PARTITION_TREES_MAX;
        if !self.trees_by_partition.get(&partition).is_none_or(has_room) {
            return None;
        }
        let capacity = directory.multicast_capacity();
        // The other half is left to partitions that come.
        if self.mlids.len() >= capacity / 2 {
            return None;
        }
        let blocks = 0..capacity / MulticastBlock::ENTRIES;
        let indices = blocks.flat_map(|block| {
            (0..MulticastBlock::ENTRIES).rev().map(move |entry| block * MulticastBlock::ENTRIES + entry)
        });
        let mut mlids = indices.filter_map(MulticastLid::from_table_index);
        mlids.find(|mlid| !planned.contains(mlid) && !self.mlids.contains(mlid))
    }

    /// A GID that no group of the partition has.
    fn unused_gid(&self, directory: &Directory, partition: PartitionNumber, scope: u8) -> Gid {
        let mut number = self.assigned;
        loop {
            number = number.wrapping_add(1);
            let gid = assigned_gid(directory.manager.gid_prefix, scope, number);
            // There are fewer groups than numbers.
            if !self.created.contains_key(&(gid, partition)) {
                return gid;
            }
        }
    }

    fn create(&mut self, group: Group) {
        if is_assigned(group.mgid) {
            self.assigned = self.assigned.wrapping_add(1);
        }
        *self.by_partition.entry(group.partition).or_default() += 1;
        if group.has_tree {
            *self.trees_by_partition.entry(group.partition).or_default() += 1;
            self.mlids.insert(group.mlid);
            if self.remembered.get(&group.key()).is_some_and(|known| known.mlid != group.mlid) {
                self.remembered.remove(&group.key());
            }
        }
        self.note(GroupEvent { mgid: group.mgid, partition: group.partition, exists: true });
        self.created.insert(group.key(), group);
    }

    /// Deletes a created group without a full member.
    fn remove_if_over(&mut self, key: &GroupKey) {
        let members = self.members.get(key);
        let has_full =
            members.is_some_and(|members| members.values().any(|member| keeps_group(member.state)));
        if !has_full {
            self.delete(key);
        }
    }

    /// Deletes a created group; one of the plan stays.
    fn delete(&mut self, key: &GroupKey) {
        let Some(group) = self.created.remove(key) else { return };
        let members: Vec<Guid> = self.members(&group).map(|(guid, _)| guid).collect();
        members.into_iter().for_each(|guid| self.remove_member(key, guid));
        decrement(&mut self.by_partition, &group.partition);
        if group.has_tree {
            decrement(&mut self.trees_by_partition, &group.partition);
            if !self.remembered.contains_key(key) {
                self.mlids.remove(&group.mlid);
            }
            self.tree_changes += 1;
        }
        self.note(GroupEvent { mgid: group.mgid, partition: group.partition, exists: false });
    }

    fn remove_member(&mut self, key: &GroupKey, guid: Guid) {
        let Some(members) = self.members.get_mut(key) else { return };
        if let Some(member) = members.remove(&guid) {
            decrement(&mut self.by_port, &member.entered_by);
            self.tree_changes += u64::from(self.created.get(key).is_some_and(|group| group.has_tree));
        }
        if members.is_empty() {
            self.members.remove(key);
        }
    }

    fn note(&mut self, event: GroupEvent) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(event);
        }
    }
}

fn decrement<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// Whether members with these join states keep a group in existence.
fn keeps_group(state: JoinState) -> bool {
    state.has(JoinState::FULL) || state.has(JoinState::SEND_ONLY_FULL)
}
