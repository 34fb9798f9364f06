//! What guaranteed clusters get of every link, and the tables that follow from it.
//!
//! The engine of [`tenancy`](crate::tenancy) decides; what it decided before stays. On every turn of a switch, and at every
//! adapter, a service level goes to the lane of the cluster that owns it on both links, and level 0 to the best-effort lane;
//! everything else is discarded.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fabric_model::Decisions;
use fabric_model::decisions::ClusterDecision;
use fabric_model::intent::{ClusterIntent, Intents, PortName};
use fabric_model::plan::{FabricPlan, Finding, LinearTable, PlanParts, PortSharing};
use fabric_model::tenancy::{Class, ClusterNumber, SlMode};
use ib_wire::{Guid, Lid, PortNum, SlToVl, VirtualLane, VlArbEntry};

use crate::CompileError;
use crate::fabric::Fabric;
use crate::routing::reroute;
use crate::tenancy::arbitration::{
    Hop, OVERSHOOT_BYTES, PACKET_BYTES_MAX, ServiceCurve, Table, WEIGHT_BYTES, latency_bound_s,
};
use crate::tenancy::ledger::{Grant, Ledger, Refusal, Request, Routes};
use crate::tenancy::network::{HostIndex, Limits, LinkIndex, Network};

/// The lane of best effort.
const BEST_EFFORT: VirtualLane = match VirtualLane::from_wire(0) {
    Some(lane) => lane,
    None => unreachable!(),
};

/// Weight of an entry of the best-effort lane where nobody is promised anything.
const PLAIN_WEIGHT: u8 = 64;

/// Seconds that a packet takes through a device and along a cable when nothing is in its way: an input, taken high.
const PASSAGE_S: f64 = 0.25e-6;

/// The plan with what clusters are promised, or why one of them cannot be.
pub(crate) fn keep(
    plan: FabricPlan,
    fabric: &Fabric<'_>,
    intents: &Intents,
    previous: &Decisions,
) -> Result<FabricPlan, CompileError> {
    let promised: Vec<&ClusterIntent> =
        intents.clusters.iter().filter(|cluster| cluster.class != Class::BestEffort).collect();
    if promised.is_empty() && !previous.guarded {
        return Ok(plan);
    }
    let limits = Limits { table_entries: table_entries(intents), ..Limits::default() };
    let network = Arc::new(Network::of(fabric.topology, &plan, limits));
    let (basis, mut parts) = (plan.basis(), plan.parts().clone());
    // Routes that were taken over from somebody else are not ours to choose.
    let mut decided = Decided::of(&network, &promised, previous, parts.decisions.adopted.is_empty())?;
    if !put_ways(&mut parts, fabric, &decided.ways) {
        decided = Decided::of(&network, &promised, previous, false)?;
    }
    Sharings::of(&plan, &decided.clusters, limits.table_entries).put(&mut parts);
    (parts.decisions.clusters, parts.decisions.guarded) = (decided.clusters, true);
    parts.findings.extend(decided.broken);
    let plan = FabricPlan::from_parts(parts);
    Ok(match basis {
        Some(basis) => plan.with_basis(basis),
        None => plan,
    })
}

/// Sends packets to hosts by the ways that were chosen; false, and nothing is changed, if that is not possible.
fn put_ways(parts: &mut PlanParts, fabric: &Fabric<'_>, ways: &[ChosenWay]) -> bool {
    let Some(ups) = ways.iter().map(|way| way.up(&parts.decisions)).collect::<Option<Vec<_>>>() else {
        return false;
    };
    let mut moved: Vec<(Guid, Vec<u8>)> = Vec::new();
    for (way, up) in ways.iter().zip(ups) {
        let decision = parts.decisions.end_ports.get_mut(&way.port);
        if let Some(decision) = decision.filter(|decision| decision.up != up) {
            moved.push((way.port, std::mem::replace(&mut decision.up, up)));
        }
    }
    if moved.is_empty() {
        return true;
    }
    let ports: Vec<Guid> = moved.iter().map(|(port, _)| *port).collect();
    let Some(rows) = reroute(fabric, &parts.decisions, &ports) else {
        for (port, up) in moved {
            parts.decisions.end_ports.entry(port).and_modify(|decision| decision.up = up);
        }
        return false;
    };
    let lids: Vec<Lid> = ports.iter().map(|port| parts.decisions.end_ports[port].lid).collect();
    for (switch, row) in parts.switches.iter_mut().zip(rows) {
        let changed = lids.iter().zip(row).filter(|(lid, exit)| {
            switch.linear.exits().get(usize::from(lid.to_wire())).is_some_and(|before| before != exit)
        });
        let changed: Vec<(&Lid, u8)> = changed.collect();
        if !changed.is_empty() {
            let mut exits = switch.linear.exits().to_vec();
            changed.into_iter().for_each(|(lid, exit)| exits[usize::from(lid.to_wire())] = exit);
            switch.linear = Arc::new(LinearTable::from_exits(exits));
        }
    }
    true
}

/// By which ports packets to a host climb, from its own leaf upwards.
#[derive(Debug)]
struct ChosenWay {
    port: Guid,
    climbs: Vec<PortName>,
}

impl ChosenWay {
    /// The ways to the hosts of a cluster, as far as they matter to it.
    fn of<'a>(grant: &'a Grant, network: &'a Network) -> impl Iterator<Item = Self> + 'a {
        let chosen = network.tree().zip(grant.ways.as_ref()).into_iter();
        chosen.flat_map(move |(tree, ways)| {
            let leaves: BTreeSet<usize> = grant.hosts.iter().map(|host| tree.leaf_of(*host)).collect();
            let pods: BTreeSet<usize> = leaves.iter().map(|leaf| tree.pod_of(*leaf)).collect();
            let hosts = grant.hosts.iter().zip(ways).filter(move |_| leaves.len() > 1);
            hosts.map(move |(host, way)| {
                let leaf = tree.leaf_of(*host);
                let near = tree.leaf_up(leaf, way.leaf_up.into());
                let far = (pods.len() > 1).then(|| tree.pod_up(tree.pod_of(leaf), *way));
                let climbs = [Some(near), far].into_iter().flatten();
                Self {
                    port: network.hosts()[host.index()].port,
                    climbs: climbs.map(|link| network.links()[link.index()].from).collect(),
                }
            })
        })
    }

    /// The same as places in the lists of up-links. What the way leaves open stays as it was decided.
    fn up(&self, decisions: &Decisions) -> Option<Vec<u8>> {
        let mut up = decisions.end_ports.get(&self.port)?.up.clone();
        for (level, climb) in self.climbs.iter().enumerate() {
            let uplinks = &decisions.routing.switches.get(&climb.node)?.uplinks;
            let index = uplinks.iter().position(|uplink| uplink.port == climb.port)?;
            *up.get_mut(level)? = u8::try_from(index).ok()?;
        }
        Some(up)
    }
}

/// The books of who has what by some decisions: of the clusters that are named, as far as it can still be had.
pub(crate) fn restored<'a>(
    network: &Arc<Network>,
    clusters: impl Iterator<Item = (ClusterNumber, &'a str)>,
    decisions: &Decisions,
) -> Ledger {
    let mut ledger = Ledger::new(Arc::clone(network));
    let places = places(network);
    for (number, name) in clusters {
        let Some(before) = decisions.clusters.get(name) else { continue };
        let hosts: Option<Vec<HostIndex>> =
            before.ports.iter().map(|port| places.get(port).copied()).collect();
        if let (Some(hosts), Class::Guaranteed { bandwidth, .. }) = (hosts, before.class) {
            let (hosts, mode, routes) = (hosts.as_slice(), SlMode::Cluster, Routes::Given);
            let request = Request { cluster: number, hosts, bandwidth, mode, routes };
            ledger.admit_again(request, &before.links);
        }
    }
    ledger
}

/// The hosts of a network by their ports.
fn places(network: &Network) -> HashMap<Guid, HostIndex> {
    (0..).zip(network.hosts()).map(|(at, host)| (host.port, HostIndex(at))).collect()
}

/// Entries that the arbitration tables of all ports have.
pub(crate) fn table_entries(intents: &Intents) -> u8 {
    let capabilities = &intents.capabilities;
    let least = capabilities.ports.values().map(|port| port.arbitration).min();
    let least = least.unwrap_or(capabilities.usual_port.arbitration).clamp(8, 64);
    // A power of two.
    1 << least.ilog2()
}

/// What clusters have.
#[derive(Debug)]
struct Decided {
    clusters: BTreeMap<String, ClusterDecision>,
    /// To hosts of clusters that were admitted now.
    ways: Vec<ChosenWay>,
    broken: Vec<Finding>,
}

impl Decided {
    /// Those that had something first, then the others in the order they were asked for. One that had it and cannot have
    /// it any more, because the fabric has changed, goes on without.
    fn of(
        network: &Arc<Network>,
        promised: &[&ClusterIntent],
        previous: &Decisions,
        may_choose: bool,
    ) -> Result<Self, CompileError> {
        let mut ledger = Ledger::new(Arc::clone(network));
        let places = places(network);
        let mut decided = Self { clusters: BTreeMap::new(), ways: Vec::new(), broken: Vec::new() };
        let mut new = Vec::new();
        for (number, cluster) in (0..).map(ClusterNumber).zip(promised) {
            let before = previous.clusters.get(&cluster.name);
            let kept = before.filter(|before| is_same(before, cluster));
            let hosts: Option<Vec<HostIndex>> =
                cluster.ports.iter().map(|port| places.get(port).copied()).collect();
            let again = kept.zip(hosts.as_ref()).and_then(|(before, hosts)| {
                let request = request(number, cluster, hosts, Routes::Given);
                ledger.admit_again(request, &before.links).map(|_| before)
            });
            match again {
                Some(before) => drop(decided.clusters.insert(cluster.name.clone(), before.clone())),
                None => new.push((number, *cluster, hosts, before, kept)),
            }
        }
        for (number, cluster, hosts, before, kept) in new {
            let name = || cluster.name.clone();
            // Packets that flow stay where they are if they can.
            let routes: &[Routes] = match (may_choose, before) {
                (false, _) => &[Routes::Given],
                (true, None) => &[Routes::Chosen, Routes::Given],
                (true, Some(_)) => &[Routes::Given, Routes::Chosen],
            };
            let hosts = hosts.ok_or_else(|| CompileError::PortsMissing { cluster: name() });
            let admitted = hosts.and_then(|hosts| admit(&mut ledger, number, cluster, &hosts, routes));
            match (admitted, kept) {
                (Ok(decision), _) => {
                    decided.ways.extend(ChosenWay::of(&ledger.grants()[&number], network));
                    decided.clusters.insert(name(), decision);
                }
                (Err(error), Some(before)) => {
                    decided
                        .broken
                        .push(Finding::PromiseBroken { cluster: name(), reason: error.to_string() });
                    decided.clusters.insert(name(), ClusterDecision { links: Vec::new(), ..before.clone() });
                }
                (Err(error), None) => return Err(error),
            }
        }
        Ok(decided)
    }
}

/// Admits a cluster by the first routes that will do; what is short on those that the tables have, if none will.
fn admit(
    ledger: &mut Ledger,
    number: ClusterNumber,
    cluster: &ClusterIntent,
    hosts: &[HostIndex],
    routes: &[Routes],
) -> Result<ClusterDecision, CompileError> {
    let mut reason = String::new();
    for routes in routes {
        let granted = ledger.admit(request(number, cluster, hosts, *routes)).map(|(grant, _)| grant.clone());
        let decided = granted
            .map_err(|refusal: Refusal| refusal.told(ledger.network()))
            .and_then(|grant| decision(cluster, &grant, ledger.network()));
        match decided {
            Ok(decision) => return Ok(decision),
            Err(short) => {
                ledger.release(number);
                if *routes == Routes::Given {
                    reason = short;
                }
            }
        }
    }
    Err(CompileError::NotAdmitted { cluster: cluster.name.clone(), reason })
}

fn is_same(before: &ClusterDecision, cluster: &ClusterIntent) -> bool {
    before.ports == cluster.ports && before.class == cluster.class && before.sl_mode == cluster.sl_mode
}

fn request<'a>(
    number: ClusterNumber,
    cluster: &ClusterIntent,
    hosts: &'a [HostIndex],
    routes: Routes,
) -> Request<'a> {
    let bandwidth = match cluster.class {
        Class::Guaranteed { bandwidth, .. } => bandwidth,
        Class::BestEffort => Default::default(),
    };
    Request { cluster: number, hosts, bandwidth, mode: SlMode::Cluster, routes }
}

fn decision(cluster: &ClusterIntent, grant: &Grant, network: &Network) -> Result<ClusterDecision, String> {
    let bound_ns = bound_ns(grant, network);
    if let Class::Guaranteed { latency_ns: Some(asked), .. } = cluster.class
        && asked < bound_ns
    {
        let [bound, asked] = [bound_ns, asked].map(|ns| ns as f64 / 1000.0);
        let reason =
            format!("a packet may take {bound:.1} µs if others do their worst, {asked} µs were asked for");
        return Err(reason);
    }
    Ok(ClusterDecision {
        ports: cluster.ports.clone(),
        class: cluster.class,
        sl_mode: cluster.sl_mode,
        bound_ns,
        links: grant.link_grants(network).collect(),
    })
}

/// By when a packet that finds its own lane empty has arrived at the latest, between any two hosts of a cluster, whatever
/// others do and whoever else is admitted later: all other entries of every table count with their largest weight.
fn bound_ns(grant: &Grant, network: &Network) -> u64 {
    let hops: HashMap<LinkIndex, Hop> = (grant.links.iter())
        .map(|share| {
            let link_bytes_per_s = network.links()[share.link.index()].rate.bits_per_s() as f64 / 8.0;
            let others = f64::from(network.limits().table_entries / share.entries.max(1) - 1);
            let gap = others * (255 * WEIGHT_BYTES + OVERSHOOT_BYTES) as f64;
            let own = (u64::from(share.weight) * WEIGHT_BYTES) as f64;
            let rate_bytes_per_s = link_bytes_per_s * own / (own + gap);
            let curve = ServiceCurve { rate_bytes_per_s, wait_s: gap / link_bytes_per_s };
            (share.link, Hop { curve, link_bytes_per_s, passage_s: PASSAGE_S })
        })
        .collect();
    let mut worst = 0.0;
    for (place, to) in grant.hosts.iter().enumerate() {
        for from in senders(grant, network).filter(|from| from != to) {
            let Some(route) = route(grant, network, from, place) else { continue };
            let hops: Vec<Hop> = route.iter().filter_map(|link| hops.get(link).copied()).collect();
            worst = f64::max(worst, latency_bound_s(&hops, PACKET_BYTES_MAX as f64));
        }
    }
    (worst * 1e9).ceil() as u64
}

/// Two hosts of every leaf of a cluster: to any host, one of them has as long a way as all others of the leaf, because all
/// hosts of a cluster have the same of their links.
fn senders<'a>(grant: &'a Grant, network: &'a Network) -> impl Iterator<Item = HostIndex> + 'a {
    let leaves = grant.hosts.chunk_by(|a, b| network.switch_of(*a) == network.switch_of(*b));
    leaves.flat_map(|hosts| hosts.iter().take(2).copied())
}

/// The links from a host to one that a cluster has at some place.
fn route(grant: &Grant, network: &Network, from: HostIndex, place: usize) -> Option<Vec<LinkIndex>> {
    let to = grant.hosts[place];
    let Some((tree, ways)) = network.tree().zip(grant.ways.as_ref()) else {
        return network.route(from, to);
    };
    let mut links = vec![network.hosts()[from.index()].inward];
    tree.between(tree.leaf_of(from), tree.leaf_of(to), ways[place], |link| links.push(link));
    links.push(network.hosts()[to.index()].outward);
    Some(links)
}

/// How every port shares its link.
struct Sharings {
    by_port: HashMap<PortName, Arc<PortSharing>>,
    /// Where nobody is promised anything.
    plain: Arc<PortSharing>,
}

/// The owner of a service level on a link, and the lane it has there.
type Owners = [Option<(u32, VirtualLane)>; 16];

impl Sharings {
    fn of(plan: &FabricPlan, clusters: &BTreeMap<String, ClusterDecision>, entries: u8) -> Self {
        let mut owners: HashMap<PortName, Owners> = HashMap::new();
        let mut tables: HashMap<PortName, Vec<(u8, VlArbEntry)>> = HashMap::new();
        for (cluster, decision) in (0..).zip(clusters.values()) {
            for grant in &decision.links {
                let levels = owners.entry(grant.port).or_default();
                for level in &grant.service_levels {
                    levels[level.index()] = Some((cluster, grant.lane));
                }
                let entry = VlArbEntry { lane: grant.lane, weight: grant.weight };
                tables.entry(grant.port).or_default().push((grant.entries, entry));
            }
        }
        let adapters = plan.adapter_ports().map(|port| port.name);
        let mut by_port = HashMap::new();
        for name in adapters {
            if let (Some(own), Some(lanes)) = (owners.get(&name), tables.get(&name)) {
                let otherwise = map(|sl| own[sl].map(|(_, lane)| lane));
                let sharing =
                    PortSharing { by_input: BTreeMap::new(), otherwise, low: table(lanes, entries) };
                by_port.insert(name, Arc::new(sharing));
            }
        }
        for switch in plan.switches() {
            for port in &switch.ports {
                let name = PortName { node: switch.guid, port: port.number };
                let (Some(own), Some(lanes)) = (owners.get(&name), tables.get(&name)) else { continue };
                let turn = |input: PortName| {
                    let there = owners.get(&input)?;
                    // A level that belongs to somebody else on the way in is not let into the lane.
                    let same =
                        |sl: usize| own[sl].filter(|(owner, _)| there[sl].is_some_and(|it| it.0 == *owner));
                    (0..16).any(|sl| same(sl).is_some()).then(|| map(|sl| same(sl).map(|(_, lane)| lane)))
                };
                let inputs = switch.ports.iter().filter(|input| input.number != port.number);
                let by_input: BTreeMap<PortNum, SlToVl> =
                    inputs.filter_map(|input| Some((input.number, turn(input.peer)?))).collect();
                let sharing = PortSharing { by_input, otherwise: map(|_| None), low: table(lanes, entries) };
                by_port.insert(name, Arc::new(sharing));
            }
        }
        let low = vec![VlArbEntry { lane: BEST_EFFORT, weight: PLAIN_WEIGHT }; 1];
        let plain = PortSharing { by_input: BTreeMap::new(), otherwise: map(|_| None), low };
        Self { by_port, plain: Arc::new(plain) }
    }

    fn put(&self, parts: &mut PlanParts) {
        let of = |name: PortName| Some(Arc::clone(self.by_port.get(&name).unwrap_or(&self.plain)));
        for port in &mut parts.adapter_ports {
            port.sharing = of(port.name);
        }
        for switch in &mut parts.switches {
            for port in &mut switch.ports {
                port.sharing = of(PortName { node: switch.guid, port: port.number });
            }
        }
    }
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
fn table(lanes: &[(u8, VlArbEntry)], entries: u8) -> Vec<VlArbEntry> {
    let mut lanes = lanes.to_vec();
    lanes.sort_by_key(|(count, entry)| (std::cmp::Reverse(*count), entry.lane));
    let mut table = Table::new(entries).expect("a length that tables can have");
    for (count, entry) in lanes {
        let weight = u32::from(count) * u32::from(entry.weight);
        table
            .request(entry.lane, entries / count.max(1), weight)
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
