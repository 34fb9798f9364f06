//! The SL-to-VL and arbitration tables of ports, derived from the owners of lanes on each link.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::plan::{Draft, PortQos};
use fabric_model::tenancy::ClusterNumber;
use ib_wire::{Guid, LaneSet, PortNum, ServiceLevel, ServiceLevelSet, SlToVl, VirtualLane, VlArbEntry};

use crate::fabric::SwitchIndex;
use crate::tenancy::admission::Grant;
use crate::tenancy::arbitration::{PACKET_BYTES_MAX, WEIGHT_BYTES};
use crate::tenancy::link_graph::{LinkGraph, LinkIndex, reserved_lanes};

/// The lane of best effort.
const BEST_EFFORT: VirtualLane = match VirtualLane::from_wire(0) {
    Some(lane) => lane,
    None => unreachable!(),
};

/// The weight of the best-effort entry on a link without guaranteed clusters.
const PLAIN_WEIGHT: u8 = 64;

/// The weight of a lane that may send one packet of any size per round.
const PACKET_WEIGHT: u8 = PACKET_BYTES_MAX.div_ceil(WEIGHT_BYTES) as u8;

/// A free entry of a table serves best effort with the least weight.
pub(super) const FILLING: VlArbEntry = VlArbEntry { lane: BEST_EFFORT, weight: 1 };

/// The owners of lanes, service levels and entries on every link.
#[derive(Debug)]
pub(super) struct LinkUsers {
    users: Vec<Vec<LinkUser>>,
    /// By link: the port that sends into it.
    ports: Vec<SendingPort>,
    /// By link: the opposite direction of its cable.
    opposite: Vec<Option<LinkIndex>>,
    /// By switch: the links out of it.
    exits: Vec<Vec<LinkIndex>>,
    /// By link: the lane of management, if management has a service level of its own.
    management: Vec<Option<Management>>,
    /// By link: positions and entries of clusters that are divided into classes.
    divided: BTreeMap<LinkIndex, Vec<(u8, VlArbEntry)>>,
    /// The tables of a link without guaranteed clusters: without and with a lane for management.
    plain: [Arc<PortQos>; 2],
    table_entries: u8,
}

/// The service level of management, and its lane on a link.
#[derive(Clone, Copy, Debug)]
struct Management {
    sl: ServiceLevel,
    lane: VirtualLane,
}

impl Management {
    /// On a link with `reserved` lanes for best effort and management.
    fn on(sl: ServiceLevel, reserved: u8) -> Self {
        let lane = VirtualLane::from_wire(reserved.saturating_sub(1)).unwrap_or(BEST_EFFORT);
        Self { sl, lane }
    }

    fn has_own_lane(self) -> bool {
        self.lane != BEST_EFFORT
    }
}

/// A lane of a link that belongs to a cluster.
#[derive(Clone, Copy, Debug)]
struct LinkUser {
    cluster: ClusterNumber,
    lane: VirtualLane,
    /// The service levels of the lane.
    service_levels: ServiceLevelSet,
    /// 0 for a further class of a cluster, whose entries are in [`LinkUsers::divided`].
    entries: u8,
    first_entry: u8,
    weight: u8,
}

/// A port that sends into a link.
#[derive(Clone, Copy, Debug)]
enum SendingPort {
    Switch(SwitchIndex, PortNum),
    /// An adapter port by its GUID.
    Adapter(Guid),
}

impl LinkUsers {
    pub fn of(graph: &LinkGraph, management: Option<ServiceLevel>) -> Self {
        let links = graph.links();
        let exits: Vec<Vec<LinkIndex>> = graph.exits().map(Iterator::collect).collect();
        // Switches and adapters are set below.
        let mut ports: Vec<SendingPort> =
            links.iter().map(|link| SendingPort::Switch(0, link.from.port)).collect();
        let mut opposite: Vec<Option<LinkIndex>> =
            (0..links.len() as u32).map(|link| graph.reverse(LinkIndex(link))).collect();
        for (switch_index, exits) in exits.iter().enumerate() {
            for link in exits {
                ports[link.index()] = SendingPort::Switch(switch_index, links[link.index()].from.port);
            }
        }
        for host in graph.hosts() {
            ports[host.inward.index()] = SendingPort::Adapter(host.port);
            opposite[host.outward.index()] = Some(host.inward);
        }
        let table_entries = graph.limits().table_entries;
        let on = |reserved| management.map(|sl| Management::on(sl, reserved));
        Self {
            users: vec![Vec::new(); links.len()],
            ports,
            opposite,
            exits,
            management: links.iter().map(|link| on(link.first_lane)).collect(),
            divided: BTreeMap::new(),
            plain: [1, 2].map(|reserved| Arc::new(plain(on(reserved), table_entries))),
            table_entries,
        }
    }

    /// Adds the grant of a cluster.
    pub fn add(&mut self, grant: &Grant) {
        for share in &grant.links {
            self.users[share.link.index()].push(LinkUser {
                cluster: grant.cluster,
                lane: share.lane,
                service_levels: share.service_levels,
                entries: share.entries,
                first_entry: share.first_entry,
                weight: share.weight,
            });
        }
    }

    /// Removes the grant of a cluster.
    pub fn remove(&mut self, grant: &Grant) {
        for share in &grant.links {
            self.users[share.link.index()].retain(|user| user.cluster != grant.cluster);
        }
    }

    /// Updates the positions of entries on links where some were moved. Returns the clusters concerned.
    pub fn replace(
        &mut self,
        links: impl Iterator<Item = LinkIndex>,
        grants: &BTreeMap<ClusterNumber, Grant>,
    ) -> BTreeSet<ClusterNumber> {
        let mut moved = BTreeSet::new();
        for link in links {
            for user in &mut self.users[link.index()] {
                let share = grants.get(&user.cluster).and_then(|grant| grant.share(link));
                if let Some(share) = share.filter(|share| share.first_entry != user.first_entry) {
                    user.first_entry = share.first_entry;
                    moved.insert(user.cluster);
                }
            }
        }
        moved
    }

    /// Adds lanes and service levels of further classes of a cluster on a link.
    pub fn add_classes(
        &mut self,
        link: LinkIndex,
        cluster: ClusterNumber,
        classes: impl Iterator<Item = (VirtualLane, ServiceLevel)>,
    ) {
        self.users[link.index()].extend(classes.map(|(lane, sl)| LinkUser {
            cluster,
            lane,
            service_levels: sl.into(),
            entries: 0,
            first_entry: 0,
            weight: 0,
        }));
    }

    /// Removes the further classes of a cluster on a link.
    pub fn remove_classes(&mut self, link: LinkIndex, cluster: ClusterNumber) {
        self.users[link.index()].retain(|user| user.cluster != cluster || user.entries != 0);
    }

    /// Sets the entries of a cluster's classes on a link. They replace the undivided entries.
    pub fn divide(&mut self, link: LinkIndex, entries: impl Iterator<Item = (u8, VlArbEntry)>) {
        self.divided.entry(link).or_default().extend(entries);
    }

    /// Removes the classes of all clusters.
    pub fn unite(&mut self) {
        for link in std::mem::take(&mut self.divided).into_keys() {
            self.users[link.index()].retain(|user| user.entries != 0);
        }
    }

    /// The service levels on a link that have an owner.
    pub fn sls_taken(&self, link: LinkIndex) -> ServiceLevelSet {
        sls_of(self.users[link.index()].iter())
    }

    /// The lanes of a link that have an owner.
    pub fn lanes_taken(&self, link: LinkIndex) -> LaneSet {
        self.users[link.index()].iter().map(|user| user.lane).collect()
    }

    /// The arbitration table of a link.
    pub fn table(&self, link: LinkIndex) -> Vec<VlArbEntry> {
        let mut table = table(&self.users[link.index()], self.management[link.index()], self.table_entries);
        for (position, entry) in self.divided.get(&link).into_iter().flatten() {
            table[usize::from(*position)] = *entry;
        }
        table
    }

    /// Writes the tables of a fabric without guaranteed clusters into every port.
    pub fn put_plain(&self, draft: &mut Draft) {
        let adapters: Vec<Guid> = draft.plan().adapter_ports().map(|port| port.guid).collect();
        for port in adapters {
            if let Some(port) = draft.adapter_port(port) {
                port.qos = Some(self.plain(reserved_lanes(port.lanes.count())));
            }
        }
        for switch_index in 0..draft.plan().shared_switches().len() {
            let Some(switch) = draft.switch(switch_index) else { continue };
            for port in Arc::make_mut(&mut switch.ports) {
                port.qos = Some(self.plain(reserved_lanes(port.lanes.count())));
            }
        }
    }

    /// The tables of a link without guaranteed clusters that has `reserved` lanes for best effort and management.
    fn plain(&self, reserved: u8) -> Arc<PortQos> {
        Arc::clone(&self.plain[usize::from(reserved > 1)])
    }

    /// Writes the tables of the ports that send into some links. A change of the owners on a link concerns no other ports,
    /// because a service level passes from link to link only in lanes of the same cluster.
    pub fn put(&self, draft: &mut Draft, links: &[LinkIndex]) {
        for link in links {
            let sharing = self.sharing(*link);
            let plan = draft.plan();
            let is_same = |before: &Option<Arc<PortQos>>| before.as_ref() == Some(&sharing);
            match self.ports[link.index()] {
                SendingPort::Adapter(guid) => {
                    if plan.adapter_port(guid).is_some_and(|port| !is_same(&port.qos))
                        && let Some(port) = draft.adapter_port(guid)
                    {
                        port.qos = Some(sharing);
                    }
                }
                SendingPort::Switch(switch_index, number) => {
                    let port =
                        plan.shared_switches().get(switch_index).and_then(|switch| switch.port(number));
                    if port.is_some_and(|port| !is_same(&port.qos))
                        && let Some(port) =
                            draft.switch(switch_index).and_then(|switch| switch.port_mut(number))
                    {
                        port.qos = Some(sharing);
                    }
                }
            }
        }
    }

    fn sharing(&self, link: LinkIndex) -> Arc<PortQos> {
        let own = &self.users[link.index()];
        let management = self.management[link.index()];
        if own.is_empty() {
            return self.plain(if management.is_some_and(Management::has_own_lane) { 2 } else { 1 });
        }
        let low = self.table(link);
        let (by_input, otherwise) = match self.ports[link.index()] {
            SendingPort::Adapter(_) => (BTreeMap::new(), map(management, |sl| lane_of(own, sl))),
            SendingPort::Switch(switch_index, _) => {
                (self.by_input(switch_index, link), map(management, |_| None))
            }
        };
        Arc::new(PortQos { by_input, otherwise, low, high: Vec::new() })
    }

    /// The SL-to-VL tables of a link out of a switch, by input port. A service level maps to a lane only if its owner is the
    /// same on the input link.
    fn by_input(&self, switch_index: SwitchIndex, link: LinkIndex) -> BTreeMap<PortNum, SlToVl> {
        let (own, management) = (&self.users[link.index()], self.management[link.index()]);
        let table_of = |input: LinkIndex| {
            let there = &self.users[input.index()];
            let let_in = own.iter().map(|user| {
                let sls_there = sls_of(there.iter().filter(|other| other.cluster == user.cluster));
                LinkUser { service_levels: user.service_levels & sls_there, ..*user }
            });
            let let_in: Vec<LinkUser> = let_in.filter(|user| !user.service_levels.is_empty()).collect();
            (!let_in.is_empty()).then(|| map(management, |sl| lane_of(&let_in, sl)))
        };
        let inputs = self.exits[switch_index].iter().filter(|exit| **exit != link);
        let tables = inputs.filter_map(|exit| {
            let SendingPort::Switch(_, number) = self.ports[exit.index()] else { return None };
            Some((number, table_of(self.opposite[exit.index()]?)?))
        });
        tables.collect()
    }
}

/// The positions of `entries` entries at equal distances in a table of `table_entries`.
pub(super) fn positions(first: u8, entries: u8, table_entries: u8) -> impl Iterator<Item = usize> {
    let distance = table_entries / entries.max(1);
    (first.into()..table_entries.into()).step_by(distance.max(1).into())
}

fn sls_of<'a>(users: impl Iterator<Item = &'a LinkUser>) -> ServiceLevelSet {
    users.fold(ServiceLevelSet::EMPTY, |sls, user| sls | user.service_levels)
}

fn lane_of(users: &[LinkUser], sl: ServiceLevel) -> Option<VirtualLane> {
    users.iter().find(|user| user.service_levels.contains(sl)).map(|user| user.lane)
}

/// Maps service level 0 to best effort, that of management to its lane, and others to `lane`, or to VL15, which discards.
fn map(management: Option<Management>, lane: impl Fn(ServiceLevel) -> Option<VirtualLane>) -> SlToVl {
    let mut map = SlToVl([VirtualLane::MANAGEMENT; 16]);
    for (sl, mapped) in ServiceLevelSet::ALL.iter().zip(&mut map.0) {
        *mapped = match management {
            _ if sl == ServiceLevel::default() => BEST_EFFORT,
            Some(management) if sl == management.sl => management.lane,
            _ => lane(sl).unwrap_or(VirtualLane::MANAGEMENT),
        };
    }
    map
}

/// The tables of a link without guaranteed clusters. The entry of management is where it stays when clusters come.
fn plain(management: Option<Management>, entries: u8) -> PortQos {
    let low = match management.filter(|management| management.has_own_lane()) {
        Some(_) => table(&[], management, entries),
        None => vec![VlArbEntry { lane: BEST_EFFORT, weight: PLAIN_WEIGHT }],
    };
    PortQos { by_input: BTreeMap::new(), otherwise: map(management, |_| None), low, high: Vec::new() }
}

/// The arbitration table of a link.
///
/// Entries of clusters are at the positions of their grants, so nothing moves when others come or go. Best effort has
/// position 0, and management the middle one if it has a lane, each with one packet of any size. Free entries serve best
/// effort with weight 1. What these take from clusters is less than the packet that each has beyond its share.
fn table(users: &[LinkUser], management: Option<Management>, entries: u8) -> Vec<VlArbEntry> {
    let mut table = vec![FILLING; entries.into()];
    table[0].weight = PACKET_WEIGHT;
    if let Some(Management { lane, .. }) = management.filter(|management| management.has_own_lane()) {
        table[usize::from(entries / 2)] = VlArbEntry { lane, weight: PACKET_WEIGHT };
    }
    for user in users.iter().filter(|user| user.entries != 0) {
        let own = VlArbEntry { lane: user.lane, weight: user.weight };
        for position in positions(user.first_entry, user.entries, entries) {
            table[position] = own;
        }
    }
    table
}
