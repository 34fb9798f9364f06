//! How ports share their links: the tables that follow from who has what.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_model::plan::{Draft, PortSharing};
use fabric_model::tenancy::ClusterNumber;
use ib_wire::{Guid, PortNum, SlToVl, VirtualLane, VlArbEntry};

use crate::fabric::Place;
use crate::tenancy::arbitration::{PACKET_BYTES_MAX, Table, WEIGHT_BYTES};
use crate::tenancy::ledger::Grant;
use crate::tenancy::network::{LinkIndex, Network};

/// The lane of best effort.
const BEST_EFFORT: VirtualLane = match VirtualLane::from_wire(0) {
    Some(lane) => lane,
    None => unreachable!(),
};

/// Weight of an entry of the best-effort lane where nobody is promised anything.
const PLAIN_WEIGHT: u8 = 64;

/// Who has what of every link.
#[derive(Debug)]
pub(super) struct Users {
    /// By link.
    users: Vec<Vec<User>>,
    /// By link: the port that packets leave by.
    ports: Vec<SendingPort>,
    /// By link: the other direction of its cable.
    opposite: Vec<Option<LinkIndex>>,
    /// By switch: the links out of it.
    exits: Vec<Vec<LinkIndex>>,
    /// Where nobody is promised anything.
    plain: Arc<PortSharing>,
    table_entries: u8,
}

/// What a cluster has of a link.
#[derive(Clone, Copy, Debug)]
struct User {
    cluster: ClusterNumber,
    lane: VirtualLane,
    /// As bits.
    service_levels: u16,
    entries: u8,
    weight: u8,
}

/// A port that packets leave by.
#[derive(Clone, Copy, Debug)]
enum SendingPort {
    Switch(Place, PortNum),
    /// By port GUID.
    Adapter(Guid),
}

impl Users {
    /// Nobody has anything.
    pub fn of(network: &Network) -> Self {
        let links = network.links();
        let exits: Vec<Vec<LinkIndex>> = network.exits().map(Iterator::collect).collect();
        // Those of adapters are put right below.
        let mut ports: Vec<SendingPort> =
            links.iter().map(|link| SendingPort::Switch(0, link.from.port)).collect();
        let mut opposite: Vec<Option<LinkIndex>> =
            (0..links.len() as u32).map(|link| network.reverse(LinkIndex(link))).collect();
        for (place, exits) in exits.iter().enumerate() {
            for link in exits {
                ports[link.index()] = SendingPort::Switch(place, links[link.index()].from.port);
            }
        }
        for host in network.hosts() {
            ports[host.inward.index()] = SendingPort::Adapter(host.port);
            opposite[host.outward.index()] = Some(host.inward);
        }
        let low = vec![VlArbEntry { lane: BEST_EFFORT, weight: PLAIN_WEIGHT }];
        let plain = PortSharing { by_input: BTreeMap::new(), otherwise: map(|_| None), low };
        Self {
            users: vec![Vec::new(); links.len()],
            ports,
            opposite,
            exits,
            plain: Arc::new(plain),
            table_entries: network.limits().table_entries,
        }
    }

    /// A cluster has what it was granted.
    pub fn add(&mut self, grant: &Grant) {
        for share in &grant.links {
            self.users[share.link.index()].push(User {
                cluster: grant.cluster,
                lane: share.lane,
                service_levels: share.service_levels,
                entries: share.entries,
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

    /// Every port as if nobody was promised anything.
    pub fn put_plain(&self, draft: &mut Draft) {
        let adapters: Vec<Guid> = draft.plan().adapter_ports().map(|port| port.guid).collect();
        for port in adapters {
            if let Some(port) = draft.adapter_port(port) {
                port.sharing = Some(Arc::clone(&self.plain));
            }
        }
        for place in 0..draft.plan().shared_switches().len() {
            for port in draft.switch(place).into_iter().flat_map(|switch| &mut switch.ports) {
                port.sharing = Some(Arc::clone(&self.plain));
            }
        }
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
                    let Some(switch) = plan.shared_switches().get(place) else { continue };
                    let at = switch.ports.binary_search_by_key(&number, |port| port.number);
                    let Some(at) = at.ok().filter(|at| !is_same(&switch.ports[*at].sharing)) else {
                        continue;
                    };
                    if let Some(switch) = draft.switch(place) {
                        switch.ports[at].sharing = Some(sharing);
                    }
                }
            }
        }
    }

    fn sharing(&self, link: LinkIndex) -> Arc<PortSharing> {
        let own = &self.users[link.index()];
        if own.is_empty() {
            return Arc::clone(&self.plain);
        }
        let low = table(own, self.table_entries);
        let (by_input, otherwise) = match self.ports[link.index()] {
            SendingPort::Adapter(_) => (BTreeMap::new(), map(|sl| lane_of(own, sl))),
            SendingPort::Switch(place, _) => (self.by_input(place, link), map(|_| None)),
        };
        Arc::new(PortSharing { by_input, otherwise, low })
    }

    /// The lanes of a link out of a switch by where packets come in. A level that belongs to somebody else on the way in
    /// is not let into the lane.
    fn by_input(&self, place: Place, link: LinkIndex) -> BTreeMap<PortNum, SlToVl> {
        let own = &self.users[link.index()];
        let turn = |input: LinkIndex| {
            let there = &self.users[input.index()];
            let levels_of = |cluster| {
                there.iter().find(|user| user.cluster == cluster).map_or(0, |user| user.service_levels)
            };
            let let_in = own
                .iter()
                .map(|user| User { service_levels: user.service_levels & levels_of(user.cluster), ..*user });
            let let_in: Vec<User> = let_in.filter(|user| user.service_levels != 0).collect();
            (!let_in.is_empty()).then(|| map(|sl| lane_of(&let_in, sl)))
        };
        let inputs = self.exits[place].iter().filter(|exit| **exit != link);
        let turns = inputs.filter_map(|exit| {
            let SendingPort::Switch(_, number) = self.ports[exit.index()] else { return None };
            Some((number, turn(self.opposite[exit.index()]?)?))
        });
        turns.collect()
    }
}

fn lane_of(users: &[User], sl: usize) -> Option<VirtualLane> {
    users.iter().find(|user| user.service_levels >> sl & 1 == 1).map(|user| user.lane)
}

/// Level 0 to best effort, others to a lane or nowhere.
fn map(lane: impl Fn(usize) -> Option<VirtualLane>) -> SlToVl {
    SlToVl(std::array::from_fn(|sl| match sl {
        0 => BEST_EFFORT,
        _ => lane(sl).unwrap_or(VirtualLane::MANAGEMENT),
    }))
}

/// The arbitration table of a link: the lanes with most entries first, so that all find room, and what is left for best
/// effort. It follows from who has what, not from the order in which they came.
fn table(users: &[User], entries: u8) -> Vec<VlArbEntry> {
    let mut users = users.to_vec();
    users.sort_by_key(|user| (std::cmp::Reverse(user.entries), user.lane));
    let mut table = Table::new(entries).expect("a length that tables can have");
    for user in users {
        let weight = u32::from(user.entries) * u32::from(user.weight);
        table
            .request(user.lane, entries / user.entries.max(1), weight)
            .expect("the ledger has counted the entries");
    }
    let least = PACKET_BYTES_MAX.div_ceil(WEIGHT_BYTES) as u8;
    let best_effort = VlArbEntry { lane: BEST_EFFORT, weight: least };
    let mut is_served = false;
    let positions = table.positions().into_iter();
    let filled = positions.filter_map(|entry| match entry {
        Some(entry) => Some(entry),
        None if is_served => None,
        None => {
            is_served = true;
            Some(best_effort)
        }
    });
    filled.collect()
}
