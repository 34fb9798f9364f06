//! How ports share their links: the tables that follow from who has what.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_model::plan::{Draft, PortSharing};
use fabric_model::tenancy::ClusterNumber;
use ib_wire::{Guid, PortNum, ServiceLevel, SlToVl, VirtualLane, VlArbEntry};

use crate::fabric::SwitchIndex;
use crate::tenancy::admission::Grant;
use crate::tenancy::arbitration::{PACKET_BYTES_MAX, WEIGHT_BYTES};
use crate::tenancy::link_graph::{LinkGraph, LinkIndex, reserved_lanes};

/// The lane of best effort.
const BEST_EFFORT: VirtualLane = match VirtualLane::from_wire(0) {
    Some(lane) => lane,
    None => unreachable!(),
};

/// Weight of an entry of the best-effort lane where nobody is promised anything.
const PLAIN_WEIGHT: u8 = 64;

/// Weight of a lane that has a packet of any size in a round, and no more.
const PACKET_WEIGHT: u8 = PACKET_BYTES_MAX.div_ceil(WEIGHT_BYTES) as u8;

/// What stands where nobody has an entry: best effort with the least weight.
pub(super) const FILLING: VlArbEntry = VlArbEntry { lane: BEST_EFFORT, weight: 1 };

/// Who has what of every link.
#[derive(Debug)]
pub(super) struct LinkUsers {
    /// By link.
    users: Vec<Vec<LinkUser>>,
    /// By link: the port that packets leave by.
    ports: Vec<SendingPort>,
    /// By link: the other direction of its cable.
    opposite: Vec<Option<LinkIndex>>,
    /// By switch: the links out of it.
    exits: Vec<Vec<LinkIndex>>,
    /// By link: the lane of management, if it has a level of its own.
    management: Vec<Option<Management>>,
    /// By link: entries of clusters that divide what they have.
    divided: BTreeMap<LinkIndex, Vec<(u8, VlArbEntry)>>,
    /// Where nobody is promised anything: by whether management has a lane of its own there.
    plain: [Arc<PortSharing>; 2],
    table_entries: u8,
}

/// The level of management, and its lane on a link.
#[derive(Clone, Copy, Debug)]
struct Management {
    level: ServiceLevel,
    lane: VirtualLane,
}

impl Management {
    /// On a link that has so many lanes for best effort and management.
    fn on(level: ServiceLevel, reserved: u8) -> Self {
        let lane = VirtualLane::from_wire(reserved.saturating_sub(1)).unwrap_or(BEST_EFFORT);
        Self { level, lane }
    }

    fn has_own_lane(self) -> bool {
        self.lane != BEST_EFFORT
    }
}

/// What a cluster has of a link.
#[derive(Clone, Copy, Debug)]
struct LinkUser {
    cluster: ClusterNumber,
    lane: VirtualLane,
    /// As bits.
    service_levels: u16,
    /// None if it is a further class of a cluster: see [`Users::divide`].
    entries: u8,
    first_entry: u8,
    weight: u8,
}

/// A port that packets leave by.
#[derive(Clone, Copy, Debug)]
enum SendingPort {
    Switch(SwitchIndex, PortNum),
    /// By port GUID.
    Adapter(Guid),
}

impl LinkUsers {
    /// Nobody has anything, but for management what its level needs.
    pub fn of(graph: &LinkGraph, management: Option<ServiceLevel>) -> Self {
        let links = graph.links();
        let exits: Vec<Vec<LinkIndex>> = graph.exits().map(Iterator::collect).collect();
        // Those of adapters are put right below.
        let mut ports: Vec<SendingPort> =
            links.iter().map(|link| SendingPort::Switch(0, link.from.port)).collect();
        let mut opposite: Vec<Option<LinkIndex>> =
            (0..links.len() as u32).map(|link| graph.reverse(LinkIndex(link))).collect();
        for (place, exits) in exits.iter().enumerate() {
            for link in exits {
                ports[link.index()] = SendingPort::Switch(place, links[link.index()].from.port);
            }
        }
        for host in graph.hosts() {
            ports[host.inward.index()] = SendingPort::Adapter(host.port);
            opposite[host.outward.index()] = Some(host.inward);
        }
        let table_entries = graph.limits().table_entries;
        let on = |reserved| management.map(|level| Management::on(level, reserved));
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

    /// A cluster has what it was granted.
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

    /// It has it no longer.
    pub fn remove(&mut self, grant: &Grant) {
        for share in &grant.links {
            self.users[share.link.index()].retain(|user| user.cluster != grant.cluster);
        }
    }

    /// Entries of some links were moved. Returns the clusters whose they are.
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

    /// A cluster has further lanes and levels on a link.
    pub fn add_classes(
        &mut self,
        link: LinkIndex,
        cluster: ClusterNumber,
        classes: impl Iterator<Item = (VirtualLane, ServiceLevel)>,
    ) {
        self.users[link.index()].extend(classes.map(|(lane, level)| LinkUser {
            cluster,
            lane,
            service_levels: 1 << level.to_wire(),
            entries: 0,
            first_entry: 0,
            weight: 0,
        }));
    }

    /// It has them no longer.
    pub fn remove_classes(&mut self, link: LinkIndex, cluster: ClusterNumber) {
        self.users[link.index()].retain(|user| user.cluster != cluster || user.entries != 0);
    }

    /// Entries of a link serve the classes of a cluster, those that it had among them.
    pub fn divide(&mut self, link: LinkIndex, entries: impl Iterator<Item = (u8, VlArbEntry)>) {
        self.divided.entry(link).or_default().extend(entries);
    }

    /// Nobody divides what it has.
    pub fn unite(&mut self) {
        for link in std::mem::take(&mut self.divided).into_keys() {
            self.users[link.index()].retain(|user| user.entries != 0);
        }
    }

    /// Levels that somebody has on a link, as bits.
    pub fn levels_taken(&self, link: LinkIndex) -> u16 {
        self.users[link.index()].iter().fold(0, |taken, user| taken | user.service_levels)
    }

    /// Lanes that somebody has on a link, as bits.
    pub fn lanes_taken(&self, link: LinkIndex) -> u16 {
        self.users[link.index()].iter().fold(0, |taken, user| taken | 1 << user.lane.to_wire())
    }

    /// The arbitration table of a link.
    pub fn table(&self, link: LinkIndex) -> Vec<VlArbEntry> {
        let mut table = table(&self.users[link.index()], self.management[link.index()], self.table_entries);
        for (position, entry) in self.divided.get(&link).into_iter().flatten() {
            table[usize::from(*position)] = *entry;
        }
        table
    }

    /// Every port as if nobody was promised anything.
    pub fn put_plain(&self, draft: &mut Draft) {
        let adapters: Vec<Guid> = draft.plan().adapter_ports().map(|port| port.guid).collect();
        for port in adapters {
            if let Some(port) = draft.adapter_port(port) {
                port.sharing = Some(self.plain(reserved_lanes(port.lanes.count())));
            }
        }
        for place in 0..draft.plan().shared_switches().len() {
            let Some(switch) = draft.switch(place) else { continue };
            for port in Arc::make_mut(&mut switch.ports) {
                port.sharing = Some(self.plain(reserved_lanes(port.lanes.count())));
            }
        }
    }

    /// Where nobody is promised anything, on a link that has so many lanes for best effort and management.
    fn plain(&self, reserved: u8) -> Arc<PortSharing> {
        Arc::clone(&self.plain[usize::from(reserved > 1)])
    }

    /// How the ports share that send into some links. A service level passes from link to link only in the lanes of one
    /// cluster, so that these are all ports that a change of the links' users touches.
    pub fn put(&self, draft: &mut Draft, links: &[LinkIndex]) {
        for link in links {
            let sharing = self.sharing(*link);
            let plan = draft.plan();
            let is_same = |before: &Option<Arc<PortSharing>>| before.as_ref() == Some(&sharing);
            match self.ports[link.index()] {
                SendingPort::Adapter(guid) => {
                    if plan.adapter_port(guid).is_some_and(|port| !is_same(&port.sharing))
                        && let Some(port) = draft.adapter_port(guid)
                    {
                        port.sharing = Some(sharing);
                    }
                }
                SendingPort::Switch(place, number) => {
                    let port = plan.shared_switches().get(place).and_then(|switch| switch.port(number));
                    if port.is_some_and(|port| !is_same(&port.sharing))
                        && let Some(port) = draft.switch(place).and_then(|switch| switch.port_mut(number))
                    {
                        port.sharing = Some(sharing);
                    }
                }
            }
        }
    }

    fn sharing(&self, link: LinkIndex) -> Arc<PortSharing> {
        let own = &self.users[link.index()];
        let management = self.management[link.index()];
        if own.is_empty() {
            return self.plain(if management.is_some_and(Management::has_own_lane) { 2 } else { 1 });
        }
        let low = self.table(link);
        let (by_input, otherwise) = match self.ports[link.index()] {
            SendingPort::Adapter(_) => (BTreeMap::new(), map(management, |sl| lane_of(own, sl))),
            SendingPort::Switch(place, _) => (self.by_input(place, link), map(management, |_| None)),
        };
        Arc::new(PortSharing { by_input, otherwise, low, high: Vec::new() })
    }

    /// The lanes of a link out of a switch by where packets come in. A level that belongs to somebody else on the way in
    /// is not let into the lane.
    fn by_input(&self, place: SwitchIndex, link: LinkIndex) -> BTreeMap<PortNum, SlToVl> {
        let (own, management) = (&self.users[link.index()], self.management[link.index()]);
        let turn = |input: LinkIndex| {
            let there = &self.users[input.index()];
            let levels_of = |cluster| {
                let same = there.iter().filter(|user| user.cluster == cluster);
                same.fold(0, |levels, user| levels | user.service_levels)
            };
            let let_in = own.iter().map(|user| LinkUser {
                service_levels: user.service_levels & levels_of(user.cluster),
                ..*user
            });
            let let_in: Vec<LinkUser> = let_in.filter(|user| user.service_levels != 0).collect();
            (!let_in.is_empty()).then(|| map(management, |sl| lane_of(&let_in, sl)))
        };
        let inputs = self.exits[place].iter().filter(|exit| **exit != link);
        let turns = inputs.filter_map(|exit| {
            let SendingPort::Switch(_, number) = self.ports[exit.index()] else { return None };
            Some((number, turn(self.opposite[exit.index()]?)?))
        });
        turns.collect()
    }
}

/// The positions of so many entries at equal distances in a table.
pub(super) fn positions(first: u8, entries: u8, table_entries: u8) -> impl Iterator<Item = usize> {
    let distance = table_entries / entries.max(1);
    (first.into()..table_entries.into()).step_by(distance.max(1).into())
}

fn lane_of(users: &[LinkUser], sl: usize) -> Option<VirtualLane> {
    users.iter().find(|user| user.service_levels >> sl & 1 == 1).map(|user| user.lane)
}

/// Level 0 to best effort, management's to its lane, others to a lane or nowhere.
fn map(management: Option<Management>, lane: impl Fn(usize) -> Option<VirtualLane>) -> SlToVl {
    SlToVl(std::array::from_fn(|sl| match management {
        _ if sl == 0 => BEST_EFFORT,
        Some(management) if sl == management.level.index() => management.lane,
        _ => lane(sl).unwrap_or(VirtualLane::MANAGEMENT),
    }))
}

/// How a link is shared on which nobody is promised anything. Where management has a lane, its entry is where it will be when
/// clusters come.
fn plain(management: Option<Management>, entries: u8) -> PortSharing {
    let low = match management.filter(|management| management.has_own_lane()) {
        Some(_) => table(&[], management, entries),
        None => vec![VlArbEntry { lane: BEST_EFFORT, weight: PLAIN_WEIGHT }],
    };
    PortSharing { by_input: BTreeMap::new(), otherwise: map(management, |_| None), low, high: Vec::new() }
}

/// The arbitration table of a link. Everybody's entries are where they were decided to be, so that nothing moves when
/// others come or go. Best effort has the first position, and management that in the range if it has a lane: one packet of
/// any size for each. The rest is for best effort with the least weight. What that takes from clusters is less than the
/// packet that each was given beyond its share.
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
