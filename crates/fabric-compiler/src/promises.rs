//! What guaranteed clusters get of every link, and the tables that follow from it.
//!
//! The engine of [`tenancy`](crate::tenancy) decides; what it decided before stays. On every turn of a switch, and at every
//! adapter, a service level goes to the lane of the cluster that owns it on both links, and level 0 to the best-effort lane;
//! everything else is discarded.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fabric_model::decisions::ClusterDecision;
use fabric_model::intent::{ClusterIntent, Intents, PortName};
use fabric_model::plan::{FabricPlan, Finding, PlanParts, PortSharing};
use fabric_model::tenancy::{Class, ClusterNumber, SlMode};
use fabric_model::{Decisions, Topology};
use ib_wire::{Guid, PortNum, SlToVl, VirtualLane, VlArbEntry};

use crate::CompileError;
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
    topology: &Topology,
    intents: &Intents,
    previous: &Decisions,
) -> Result<FabricPlan, CompileError> {
    let promised: Vec<&ClusterIntent> =
        intents.clusters.iter().filter(|cluster| cluster.class != Class::BestEffort).collect();
    if promised.is_empty() && !previous.guarded {
        return Ok(plan);
    }
    let limits = Limits { table_entries: table_entries(intents), ..Limits::default() };
    let mut ledger = Ledger::new(Arc::new(Network::of(topology, &plan, limits)));
    let (clusters, broken) = decide(&mut ledger, &promised, previous)?;
    let sharings = Sharings::of(&plan, &clusters, limits.table_entries);
    let (basis, mut parts) = (plan.basis(), plan.parts().clone());
    sharings.put(&mut parts);
    (parts.decisions.clusters, parts.decisions.guarded) = (clusters, true);
    parts.findings.extend(broken);
    let plan = FabricPlan::from_parts(parts);
    Ok(match basis {
        Some(basis) => plan.with_basis(basis),
        None => plan,
    })
}

/// Entries that the arbitration tables of all ports have.
fn table_entries(intents: &Intents) -> u8 {
    let capabilities = &intents.capabilities;
    let least = capabilities.ports.values().map(|port| port.arbitration).min();
    let least = least.unwrap_or(capabilities.usual_port.arbitration).clamp(8, 64);
    // A power of two.
    1 << least.ilog2()
}

/// What clusters have: those that had something first, then the others in the order they were asked for. One that had it
/// and cannot have it any more, because the fabric has changed, goes on without.
fn decide(
    ledger: &mut Ledger,
    promised: &[&ClusterIntent],
    previous: &Decisions,
) -> Result<(BTreeMap<String, ClusterDecision>, Vec<Finding>), CompileError> {
    let places: HashMap<Guid, HostIndex> =
        (0..).zip(ledger.network().hosts()).map(|(at, host)| (host.port, HostIndex(at))).collect();
    let (mut decisions, mut broken) = (BTreeMap::new(), Vec::new());
    let mut new = Vec::new();
    for (number, cluster) in (0..).map(ClusterNumber).zip(promised) {
        let kept = previous.clusters.get(&cluster.name).filter(|before| is_same(before, cluster));
        let hosts: Option<Vec<HostIndex>> =
            cluster.ports.iter().map(|port| places.get(port).copied()).collect();
        let again = kept.zip(hosts.as_ref()).and_then(|(before, hosts)| {
            ledger.admit_again(request(number, cluster, hosts), &before.links).map(|_| before)
        });
        match again {
            Some(before) => drop(decisions.insert(cluster.name.clone(), before.clone())),
            None => new.push((number, *cluster, hosts, kept)),
        }
    }
    for (number, cluster, hosts, kept) in new {
        let name = cluster.name.clone();
        match (admit(ledger, number, cluster, hosts), kept) {
            (Ok(decision), _) => drop(decisions.insert(name, decision)),
            (Err(error), Some(before)) => {
                broken.push(Finding::PromiseBroken { cluster: name.clone(), reason: error.to_string() });
                decisions.insert(name, ClusterDecision { links: Vec::new(), ..before.clone() });
            }
            (Err(error), None) => return Err(error),
        }
    }
    Ok((decisions, broken))
}

fn admit(
    ledger: &mut Ledger,
    number: ClusterNumber,
    cluster: &ClusterIntent,
    hosts: Option<Vec<HostIndex>>,
) -> Result<ClusterDecision, CompileError> {
    let name = || cluster.name.clone();
    let hosts = hosts.ok_or_else(|| CompileError::PortsMissing { cluster: name() })?;
    let granted = ledger.admit(request(number, cluster, &hosts)).map(|(grant, _)| grant.clone());
    let decided = granted
        .map_err(|refusal: Refusal| refusal.told(ledger.network()))
        .and_then(|grant| decision(cluster, &grant, ledger.network()));
    if decided.is_err() {
        ledger.release(number);
    }
    decided.map_err(|reason| CompileError::NotAdmitted { cluster: name(), reason })
}

fn is_same(before: &ClusterDecision, cluster: &ClusterIntent) -> bool {
    before.ports == cluster.ports && before.class == cluster.class && before.sl_mode == cluster.sl_mode
}

fn request<'a>(number: ClusterNumber, cluster: &ClusterIntent, hosts: &'a [HostIndex]) -> Request<'a> {
    let bandwidth = match cluster.class {
        Class::Guaranteed { bandwidth, .. } => bandwidth,
        Class::BestEffort => Default::default(),
    };
    Request { cluster: number, hosts, bandwidth, mode: SlMode::Cluster, routes: Routes::Given }
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
    let pairs = grant.hosts.iter().flat_map(|from| grant.hosts.iter().map(move |to| (*from, *to)));
    let routes = pairs.filter(|(from, to)| from != to).filter_map(|(from, to)| network.route(from, to));
    let bounds = routes.map(|route| {
        let hops: Vec<Hop> = route.iter().filter_map(|link| hops.get(link).copied()).collect();
        latency_bound_s(&hops, PACKET_BYTES_MAX as f64)
    });
    (bounds.fold(0.0, f64::max) * 1e9).ceil() as u64
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
