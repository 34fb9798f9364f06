//! From clusters that are wanted somewhere to a plan in which each has its place.
//!
//! Who has a place keeps it; who is to be larger gets more hosts near those it has. New clusters go where
//! [`placement`](crate::tenancy::placement) puts them, in the order they were asked for: guaranteed ones on hosts of their own,
//! others together on hosts that nobody owns.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fabric_model::intent::{ClusterIntent, Ipoib, KeyPlace, Member, PartitionIntent, Role, Who};
use fabric_model::tenancy::{Bandwidth, Class, ClusterNumber, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use ib_wire::Guid;
use thiserror::Error;

use crate::promises::{network, restored};
use crate::tenancy::ledger::Grant;
use crate::tenancy::network::{HostIndex, Network};
use crate::tenancy::placement::{Capacity, NoPlace, Places, Wish};
use crate::{CompileError, compile};

/// Keys that every port holds besides those of clusters: the default partition's, limited and full.
const DEFAULT_KEYS: usize = 2;

/// A cluster that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterWish {
    /// What it is called; also by the next arrangement.
    pub name: String,
    /// How many nodes.
    pub nodes: usize,
    /// What each needs of its host.
    pub needs: Capacity,
    /// What the network is to promise it.
    pub class: Class,
    /// How its packets are told from others'.
    pub sl_mode: SlMode,
    /// Partitions inside it. A node that is in one is a limited member of the cluster's own.
    pub partitions: Vec<InnerPartition>,
}

/// A partition inside a cluster; nodes by number from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InnerPartition {
    /// What it is called; one of the cluster's.
    pub name: String,
    /// Nodes that reach all its members.
    pub full: BTreeSet<u32>,
    /// Nodes that reach its full members only.
    pub limited: BTreeSet<u32>,
}

/// Clusters in their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// The ports of each cluster's nodes, in order.
    pub seats: BTreeMap<String, Vec<Guid>>,
    /// What the plan was made from.
    pub intents: Intents,
    /// The plan.
    pub plan: FabricPlan,
}

/// Why there is no arrangement.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotArranged {
    /// A cluster has no place.
    #[error("cluster {cluster} has no place: {reason}; the largest that would fit has {largest} nodes")]
    NoPlace {
        /// Its name.
        cluster: String,
        /// What is short.
        reason: String,
        /// The most nodes that it could have.
        largest: usize,
    },
    /// The fabric cannot be planned so.
    #[error(transparent)]
    Compile(#[from] CompileError),
}

/// Gives every cluster its place and plans the fabric. `fabric` tells the manager's port and what devices can hold; every host
/// but the manager's has the same for clusters.
pub fn arrange(
    topology: &Topology,
    fabric: &Intents,
    host: Capacity,
    wishes: &[ClusterWish],
    previous: Option<&Arrangement>,
) -> Result<Arrangement, NotArranged> {
    let mut seats: BTreeMap<String, Vec<Guid>> = BTreeMap::new();
    for wish in wishes {
        let before = previous.and_then(|previous| previous.seats.get(&wish.name));
        // The last nodes go first.
        let kept = before.map(|ports| ports[..ports.len().min(wish.nodes)].to_vec());
        seats.extend(kept.map(|ports| (wish.name.clone(), ports)));
    }
    let none = Decisions::default();
    let decisions = previous.map_or(&none, |previous| previous.plan.decisions());
    let kept = compile(topology, &intents(fabric, wishes, &seats), decisions)?;
    let mut search = Search::new(topology, fabric, host, wishes, &kept, seats);
    for (number, wish) in (0..).map(ClusterNumber).zip(wishes) {
        search.seat(number, wish)?;
    }
    let seats = search.seats;
    let intents = intents(fabric, wishes, &seats);
    let plan = compile(topology, &intents, kept.decisions())?;
    Ok(Arrangement { seats, intents, plan })
}

/// What is wanted of the fabric by the clusters that have seats.
fn intents(fabric: &Intents, wishes: &[ClusterWish], seats: &BTreeMap<String, Vec<Guid>>) -> Intents {
    let seated = || wishes.iter().filter_map(|wish| Some((wish, seats.get(&wish.name)?)));
    let mut intents = fabric.clone();
    intents.partitions.extend(seated().flat_map(|(wish, ports)| partitions(wish, ports)));
    let promised = seated().filter(|(wish, _)| wish.class != Class::BestEffort);
    intents.clusters.extend(promised.map(|(wish, ports)| ClusterIntent {
        name: wish.name.clone(),
        ports: distinct(ports),
        class: wish.class,
        sl_mode: wish.sl_mode,
    }));
    intents
}

fn distinct(ports: &[Guid]) -> Vec<Guid> {
    ports.iter().copied().collect::<BTreeSet<_>>().into_iter().collect()
}

/// The cluster's own partition, and those inside it.
fn partitions(wish: &ClusterWish, ports: &[Guid]) -> Vec<PartitionIntent> {
    let numbered = || (1_u32..).zip(ports);
    let partition = |name: String, role: &dyn Fn(u32) -> Option<Role>| {
        let mut members: BTreeMap<Guid, Role> = BTreeMap::new();
        for (number, port) in numbered() {
            // Two nodes on one port: the port is what the more trusted is.
            if let Some(role) = role(number) {
                members.entry(*port).and_modify(|known| *known = (*known).max(role)).or_insert(role);
            }
        }
        let member = |(port, role)| Member { who: Who::Port(port), role, place: KeyPlace::Anywhere };
        let members = members.into_iter().map(member).collect();
        PartitionIntent { name, number: None, members, ipoib: Some(Ipoib::default()) }
    };
    let is_inside = |number: u32| {
        wish.partitions.iter().any(|inner| inner.full.contains(&number) || inner.limited.contains(&number))
    };
    let own = |number: u32| Some(if is_inside(number) { Role::Limited } else { Role::Full });
    let mut all = vec![partition(wish.name.clone(), &own)];
    for inner in &wish.partitions {
        let role = |number: u32| {
            let limited = || inner.limited.contains(&number).then_some(Role::Limited);
            inner.full.contains(&number).then_some(Role::Full).or_else(limited)
        };
        all.push(partition(format!("{}/{}", wish.name, inner.name), &role));
    }
    all
}

/// What is left while clusters are seated.
struct Search<'a> {
    places: Places,
    network: Arc<Network>,
    by_port: HashMap<Guid, HostIndex>,
    manager: Guid,
    /// What every host has for clusters.
    host: Capacity,
    /// Keys that a port can hold for clusters.
    keys: usize,
    wishes: &'a [ClusterWish],
    seats: BTreeMap<String, Vec<Guid>>,
}

impl<'a> Search<'a> {
    fn new(
        topology: &Topology,
        fabric: &Intents,
        host: Capacity,
        wishes: &'a [ClusterWish],
        plan: &FabricPlan,
        seats: BTreeMap<String, Vec<Guid>>,
    ) -> Self {
        let network = network(topology, fabric, plan);
        let by_port = (0..).zip(network.hosts()).map(|(place, host)| (host.port, HostIndex(place))).collect();
        let numbered = (0..).map(ClusterNumber).zip(wishes.iter().map(|wish| wish.name.as_str()));
        let ledger = restored(&network, numbered, plan.decisions());
        let ports = &fabric.capabilities;
        let keys = usize::from(ports.usual_port.pkeys.min(ports.usual_switch.enforced_pkeys));
        let manager = fabric.manager;
        let mut search = Self {
            places: Places::new(ledger, |_| host),
            network,
            by_port,
            manager,
            host,
            keys: keys.saturating_sub(DEFAULT_KEYS),
            wishes,
            seats,
        };
        search.refresh();
        search
    }

    /// Tells who places guaranteed clusters which hosts nobody uses.
    fn refresh(&mut self) {
        let mut free = vec![self.host; self.network.hosts().len()];
        let used = self.seats.values().flatten().chain([&self.manager]);
        for host in used.filter_map(|port| self.by_port.get(port)) {
            free[host.index()] = Capacity::NONE;
        }
        self.places.set_capacities(free);
    }

    /// Gives a cluster the seats it lacks.
    fn seat(&mut self, number: ClusterNumber, wish: &ClusterWish) -> Result<(), NotArranged> {
        let has = self.seats.get(&wish.name).map_or(0, Vec::len);
        if has == wish.nodes {
            return Ok(());
        }
        let more = match wish.class {
            Class::BestEffort => self.beside_others(wish, wish.nodes - has),
            Class::Guaranteed { .. } if has > 0 => self.grown(number, wish),
            Class::Guaranteed { bandwidth, .. } => self.alone(number, wish, bandwidth),
        };
        let more = more.map_err(|(reason, largest)| NotArranged::NoPlace {
            cluster: wish.name.clone(),
            reason,
            largest,
        })?;
        self.seats.entry(wish.name.clone()).or_default().extend(more);
        self.refresh();
        Ok(())
    }

    /// Hosts of its own for a new cluster.
    fn alone(
        &mut self,
        cluster: ClusterNumber,
        wish: &ClusterWish,
        bandwidth: Bandwidth,
    ) -> Result<Vec<Guid>, (String, usize)> {
        let ClusterWish { nodes, needs, sl_mode: mode, .. } = *wish;
        place(&mut self.places, Wish { cluster, nodes, needs, bandwidth, mode })
    }

    /// More hosts for a guaranteed cluster, near those it has.
    fn grown(&mut self, cluster: ClusterNumber, wish: &ClusterWish) -> Result<Vec<Guid>, (String, usize)> {
        let own: BTreeSet<Guid> = self.seats[&wish.name].iter().copied().collect();
        self.places.set_needs(cluster, wish.needs);
        let more = grow(&mut self.places, cluster, wish.nodes - own.len());
        let more = more.map_err(|(reason, largest)| (reason, own.len() + largest))?;
        Ok(more.into_iter().filter(|port| !own.contains(port)).collect())
    }

    /// Hosts beside others that are promised nothing: those in use first, at few switches.
    fn beside_others(&self, wish: &ClusterWish, nodes: usize) -> Result<Vec<Guid>, (String, usize)> {
        let mut left: HashMap<Guid, (Capacity, usize)> = HashMap::new();
        let mut owned: BTreeSet<Guid> = BTreeSet::from([self.manager]);
        for other in self.wishes {
            let Some(ports) = self.seats.get(&other.name) else { continue };
            if other.class != Class::BestEffort {
                owned.extend(ports);
                continue;
            }
            for port in ports {
                let (left, _) = left.entry(*port).or_insert((self.host, self.keys));
                *left = left.without(other.needs);
            }
            for port in distinct(ports) {
                let (_, keys) = left.entry(port).or_insert((self.host, self.keys));
                *keys = keys.saturating_sub(1 + other.partitions.len());
            }
        }
        let mine: BTreeSet<Guid> = self.seats.get(&wish.name).into_iter().flatten().copied().collect();
        let rooms = self.network.hosts().iter().filter(|host| !owned.contains(&host.port)).map(|host| {
            let is_used = left.contains_key(&host.port);
            let (left, keys) = left.get(&host.port).copied().unwrap_or((self.host, self.keys));
            let has_keys = mine.contains(&host.port) || keys > wish.partitions.len();
            let room = if has_keys { left.times(wish.needs) } else { 0 };
            (self.network.switch_of(self.by_port[&host.port]), is_used, host.port, room)
        });
        let rooms: Vec<(u32, bool, Guid, usize)> = rooms.filter(|(.., room)| *room > 0).collect();
        let total: usize = rooms.iter().map(|(.., room)| room).sum();
        if total < nodes {
            let has = mine.len();
            return Err((format!("{nodes} nodes are wanted, the hosts have room for {total}"), has + total));
        }
        let mut leaves: BTreeMap<u32, Vec<(bool, Guid, usize)>> = BTreeMap::new();
        for (leaf, is_used, port, room) in rooms {
            leaves.entry(leaf).or_default().push((is_used, port, room));
        }
        let room = |hosts: &[(bool, Guid, usize)]| hosts.iter().map(|(.., room)| room).sum::<usize>();
        let mut order: Vec<Vec<(bool, Guid, usize)>> = leaves.into_values().collect();
        // The tightest switch that takes all, else the roomiest first.
        order.sort_by_key(|hosts| std::cmp::Reverse(room(hosts)));
        if let Some(best) = order.iter().rposition(|hosts| room(hosts) >= nodes) {
            order[..=best].rotate_right(1);
        }
        let mut chosen = Vec::new();
        for mut hosts in order {
            hosts.sort_by_key(|(is_used, port, _)| (!is_used, *port));
            // One node to each before any gets a second.
            let most = hosts.iter().map(|(.., room)| *room).max().unwrap_or(0);
            for round in 0..most {
                let with_room = hosts.iter().filter(|(.., room)| *room > round).map(|(_, port, _)| *port);
                chosen.extend(with_room.take(nodes - chosen.len()));
            }
        }
        Ok(chosen)
    }
}

/// Hosts that a new guaranteed cluster can have in addition to what a plan gives everybody, or one that the plan knows: those
/// that `suits` takes, by port. Otherwise why not, and how many it could have.
pub fn seats(
    topology: &Topology,
    fabric: &Intents,
    plan: &FabricPlan,
    (cluster, bandwidth): (&str, Bandwidth),
    nodes: usize,
    suits: impl Fn(Guid) -> bool,
) -> Result<Vec<Guid>, (String, usize)> {
    let network = network(topology, fabric, plan);
    let names = || (0..).map(ClusterNumber).zip(plan.decisions().clusters.keys().map(String::as_str));
    let ledger = restored(&network, names(), plan.decisions());
    let needs = Capacity { cores: 1, memory_mib: 0, functions: 0 };
    let mut places = Places::new(ledger, |host| match suits(network.hosts()[host.index()].port) {
        true => needs,
        false => Capacity::NONE,
    });
    let known = names().find(|(_, name)| *name == cluster).map(|(number, _)| number);
    match known.filter(|number| places.ledger().grants().contains_key(number)) {
        Some(number) => {
            places.set_needs(number, needs);
            let own = &plan.decisions().clusters[cluster].ports;
            let hosts = grow(&mut places, number, nodes)?;
            Ok(hosts.into_iter().filter(|port| !own.contains(port)).collect())
        }
        None => {
            let cluster = ClusterNumber(u32::MAX);
            place(&mut places, Wish { cluster, nodes, needs, bandwidth, mode: SlMode::Cluster })
        }
    }
}

/// All hosts of a cluster after it was placed.
fn place(places: &mut Places, wish: Wish) -> Result<Vec<Guid>, (String, usize)> {
    let network = Arc::clone(places.ledger().network());
    match places.place(wish) {
        Ok(grant) => Ok(ports(grant, &network)),
        Err(no_place) => Err((told(no_place, &network), places.largest(wish))),
    }
}

/// All hosts of a cluster after it has grown.
fn grow(places: &mut Places, cluster: ClusterNumber, nodes: usize) -> Result<Vec<Guid>, (String, usize)> {
    let network = Arc::clone(places.ledger().network());
    match places.grow(cluster, nodes) {
        Ok(grant) => Ok(ports(grant, &network)),
        Err(no_place) => Err((told(no_place, &network), places.largest_growth(cluster, nodes).unwrap_or(0))),
    }
}

fn ports(grant: &Grant, network: &Network) -> Vec<Guid> {
    grant.hosts.iter().map(|host| network.hosts()[host.index()].port).collect()
}

fn told(no_place: NoPlace, network: &Network) -> String {
    match no_place {
        NoPlace::Links(refusal) => format!("no place has the links: {}", refusal.told(network)),
        hosts => hosts.to_string(),
    }
}
