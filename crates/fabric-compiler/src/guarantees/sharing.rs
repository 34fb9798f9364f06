//! The SL-to-VL and arbitration tables of ports, derived from the owners of lanes on each link.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fabric_model::plan::{Draft, PortQos};
use fabric_model::tenancy::ClusterNumber;
use ib_wire::{Guid, LaneSet, PortNum, ServiceLevel, ServiceLevelSet, SlToVl, VirtualLane, VlArbEntry};

use crate::fabric::SwitchIndex;
use crate::tenancy::admission::{Admission, Grant};
use crate::tenancy::arbitration::{LaneDemand, TableLimits};
use crate::tenancy::link_graph::{LinkGraph, LinkIndex, reserved_lanes};

/// The lane of best effort.
const BEST_EFFORT: VirtualLane = match VirtualLane::from_wire(0) {
    Some(lane) => lane,
    None => unreachable!(),
};

/// The weight of the best-effort entry on a link without guaranteed clusters.
const PLAIN_WEIGHT: u8 = 64;

/// The owners of lanes and service levels on every link.
#[derive(Debug)]
pub(super) struct LinkUsers {
    users: Vec<Vec<LinkUser>>,
    /// Service levels of clusters whose guarantee is violated, in the lane of best effort.
    former: BTreeMap<LinkIndex, Vec<LinkUser>>,
    /// By link: the port that sends into it.
    ports: Vec<SendingPort>,
    /// By link: the opposite direction of its cable.
    opposite: Vec<Option<LinkIndex>>,
    /// By switch: the links out of it.
    exits: Vec<Vec<LinkIndex>>,
    /// By link: the lane of management, if management has a service level of its own.
    management: Vec<Option<Management>>,
    /// The arbitration tables of links on which clusters are divided into classes.
    divided: BTreeMap<LinkIndex, Vec<VlArbEntry>>,
    /// The tables of a link without guaranteed clusters: without and with a lane for management.
    plain: [Arc<PortQos>; 2],
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
    /// Whether it belongs to a further class of the cluster.
    is_further_class: bool,
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
        let on = |reserved| management.map(|sl| Management::on(sl, reserved));
        Self {
            users: vec![Vec::new(); links.len()],
            former: BTreeMap::new(),
            ports,
            opposite,
            exits,
            management: links.iter().map(|link| on(link.first_lane)).collect(),
            divided: BTreeMap::new(),
            plain: [1, 2].map(|reserved| Arc::new(plain(on(reserved)))),
        }
    }

    /// Adds the grant of a cluster.
    pub fn add(&mut self, grant: &Grant) {
        for share in &grant.links {
            self.users[share.link.index()].push(LinkUser {
                cluster: grant.cluster,
                lane: share.lane,
                service_levels: share.service_levels,
                is_further_class: false,
            });
        }
    }

    /// Removes the grant of a cluster.
    pub fn remove(&mut self, grant: &Grant) {
        for share in &grant.links {
            self.users[share.link.index()].retain(|user| user.cluster != grant.cluster);
        }
    }

    /// Carries former service levels of a cluster on a link at best effort.
    pub fn add_former(&mut self, link: LinkIndex, cluster: ClusterNumber, service_levels: ServiceLevelSet) {
        let former = LinkUser { cluster, lane: BEST_EFFORT, service_levels, is_further_class: false };
        self.former.entry(link).or_default().push(former);
    }

    /// Removes the former service levels of all clusters. Returns the links that carried them.
    pub fn clear_former(&mut self) -> impl Iterator<Item = LinkIndex> + use<> {
        std::mem::take(&mut self.former).into_keys()
    }

    /// The clusters on a link: those with a lane, and those that are carried at best effort.
    fn users_of(&self, link: LinkIndex) -> impl Iterator<Item = &LinkUser> {
        self.users[link.index()].iter().chain(self.former.get(&link).into_iter().flatten())
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
            is_further_class: true,
        }));
    }

    /// Removes the further classes of a cluster on a link.
    pub fn remove_classes(&mut self, link: LinkIndex, cluster: ClusterNumber) {
        self.users[link.index()].retain(|user| user.cluster != cluster || !user.is_further_class);
    }

    /// Sets the arbitration table of a link on which clusters are divided into classes.
    pub fn divide(&mut self, link: LinkIndex, table: Vec<VlArbEntry>) {
        self.divided.insert(link, table);
    }

    /// The arbitration table of a link on which clusters are divided into classes.
    pub fn divided(&self, link: LinkIndex) -> Option<&[VlArbEntry]> {
        self.divided.get(&link).map(Vec::as_slice)
    }

    /// Removes the classes of all clusters.
    pub fn unite(&mut self) {
        for link in std::mem::take(&mut self.divided).into_keys() {
            self.users[link.index()].retain(|user| !user.is_further_class);
        }
    }

    /// The owner of a lane of a link.
    pub fn owner(&self, link: LinkIndex, lane: VirtualLane) -> Option<ClusterNumber> {
        self.users[link.index()].iter().find(|user| user.lane == lane).map(|user| user.cluster)
    }

    /// The lanes of a cluster on a link: those of all its classes.
    pub fn lanes_of(&self, link: LinkIndex, cluster: ClusterNumber) -> LaneSet {
        let own = self.users[link.index()].iter().filter(|user| user.cluster == cluster);
        own.map(|user| user.lane).collect()
    }

    /// The service levels on a link that have an owner.
    pub fn sls_taken(&self, link: LinkIndex) -> ServiceLevelSet {
        sls_of(self.users[link.index()].iter())
    }

    /// The service levels that a link carries in a lane of a cluster, or at best effort for one that lost its guarantee.
    pub fn sls_carried(&self, link: LinkIndex) -> ServiceLevelSet {
        sls_of(self.users_of(link))
    }

    /// The lanes of a link that have an owner.
    pub fn lanes_taken(&self, link: LinkIndex) -> LaneSet {
        self.users[link.index()].iter().map(|user| user.lane).collect()
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
    pub fn put(&self, draft: &mut Draft, admission: &Admission, links: &[LinkIndex]) {
        // Many links carry the same lanes with the same rates.
        let mut tables: HashMap<(TableLimits, &[LaneDemand]), Option<Vec<VlArbEntry>>> = HashMap::new();
        for link in links {
            let key = (admission.table_limits(*link), admission.sold(*link));
            let composed = || tables.entry(key).or_insert_with(|| admission.table(*link)).clone();
            let low = self.divided.get(link).cloned().or_else(composed);
            let sharing = self.sharing(*link, low);
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

    fn sharing(&self, link: LinkIndex, low: Option<Vec<VlArbEntry>>) -> Arc<PortQos> {
        let management = self.management[link.index()];
        let plain = self.plain(if management.is_some_and(Management::has_own_lane) { 2 } else { 1 });
        if self.users_of(link).next().is_none() {
            return plain;
        }
        let has_lanes = !self.users[link.index()].is_empty();
        let low = low.filter(|_| has_lanes).unwrap_or_else(|| plain.low.clone());
        let (by_input, otherwise) = match self.ports[link.index()] {
            SendingPort::Adapter(_) => {
                (BTreeMap::new(), map(management, |sl| lane_of(self.users_of(link), sl)))
            }
            SendingPort::Switch(switch_index, _) => {
                (self.by_input(switch_index, link), map(management, |_| None))
            }
        };
        Arc::new(PortQos { by_input, otherwise, low, high: Vec::new() })
    }

    /// The SL-to-VL tables of a link out of a switch, by input port. A service level maps to a lane only if its owner is the
    /// same on the input link.
    fn by_input(&self, switch_index: SwitchIndex, link: LinkIndex) -> BTreeMap<PortNum, SlToVl> {
        let management = self.management[link.index()];
        let table_of = |input: LinkIndex| {
            let let_in = self.users_of(link).map(|user| {
                let sls_there = sls_of(self.users_of(input).filter(|other| other.cluster == user.cluster));
                LinkUser { service_levels: user.service_levels & sls_there, ..*user }
            });
            let let_in: Vec<LinkUser> = let_in.filter(|user| !user.service_levels.is_empty()).collect();
            (!let_in.is_empty()).then(|| map(management, |sl| lane_of(let_in.iter(), sl)))
        };
        let inputs = self.exits[switch_index].iter().filter(|exit| **exit != link);
        let tables = inputs.filter_map(|exit| {
            let SendingPort::Switch(_, number) = self.ports[exit.index()] else { return None };
            Some((number, table_of(self.opposite[exit.index()]?)?))
        });
        tables.collect()
    }
}

fn sls_of<'a>(users: impl Iterator<Item = &'a LinkUser>) -> ServiceLevelSet {
    users.fold(ServiceLevelSet::EMPTY, |sls, user| sls | user.service_levels)
}

fn lane_of<'a>(mut users: impl Iterator<Item = &'a LinkUser>, sl: ServiceLevel) -> Option<VirtualLane> {
    users.find(|user| user.service_levels.contains(sl)).map(|user| user.lane)
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

/// The tables of a link without guaranteed clusters.
fn plain(management: Option<Management>) -> PortQos {
    let own_lane = management.filter(|management| management.has_own_lane());
    let management_entry = own_lane.map(|management| VlArbEntry { lane: management.lane, weight: 1 });
    let low = [VlArbEntry { lane: BEST_EFFORT, weight: PLAIN_WEIGHT }].into_iter().chain(management_entry);
    let otherwise = map(management, |_| None);
    PortQos { by_input: BTreeMap::new(), otherwise, low: low.collect(), high: Vec::new() }
}
