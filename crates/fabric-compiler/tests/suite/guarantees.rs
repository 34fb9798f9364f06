//! Guarantees of clusters, checked by an independent walk through the tables of plans.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use fabric_compiler::tenancy::admission::{Admission, AdmissionRequest, Refusal, RouteChoice};
use fabric_compiler::tenancy::link_graph::{HostIndex, LinkGraph, TenancyLimits};
use fabric_compiler::{CompileError, GuaranteeError, Planner, compile, partitions_conf, recompile};
use fabric_model::generate::{FatTree, FatTreeSize, Oversubscription};
use fabric_model::intent::{ClusterIntent, LaneBuffer, PortCapability, PortName};
use fabric_model::plan::PortQos;
use fabric_model::tenancy::{Bandwidth, Class, ClusterNumber, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, SwitchModel, Topology, ibnetdiscover};
use ib_wire::{DataLanes, Guid, PortNum, ServiceLevel, VirtualLane};
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

use crate::clusters::{cluster, ports, unexpected};
use crate::world::{switch_cables, without_cable};

const SEED: u64 = 20_261_115;

fn tree(hosts: u32) -> Topology {
    FatTree { radix: 8, ..FatTree::with_hosts(hosts) }.generate().unwrap()
}

/// The output ports of a packet's path from an adapter to a LID, each with its input port.
fn walk(plan: &FabricPlan, from: Guid, to: Guid) -> Vec<(PortName, PortNum)> {
    let (start, end) = (plan.adapter_port(from).unwrap(), plan.adapter_port(to).unwrap());
    let mut steps = vec![(start.name, PortNum::MANAGEMENT)];
    let mut here = start.peer;
    while here != end.name {
        let switch = plan.switch(here.node).unwrap();
        let exit = switch.linear.exit(end.lid).unwrap();
        steps.push((PortName { node: here.node, port: exit }, here.port));
        here = switch.port(exit).unwrap().peer;
        assert!(steps.len() < 20, "a loop");
    }
    steps
}

fn sharing(plan: &FabricPlan, port: PortName) -> &PortQos {
    find_sharing(plan, port).unwrap()
}

fn find_sharing(plan: &FabricPlan, port: PortName) -> Option<&PortQos> {
    let of_switch = || plan.switch(port.node)?.port(port.port)?.qos.as_deref();
    let of_adapter = || plan.adapter_ports().find(|it| it.name == port)?.qos.as_deref();
    of_switch().or_else(of_adapter)
}

/// The lanes of a packet with a service level, up to where it is discarded.
fn lanes(plan: &FabricPlan, from: Guid, to: Guid, sl: ServiceLevel) -> Vec<(PortName, Option<VirtualLane>)> {
    let mut lanes = Vec::new();
    for (port, input) in walk(plan, from, to) {
        let lane = sharing(plan, port).lane(input, sl);
        lanes.push((port, lane));
        if lane.is_none() {
            break;
        }
    }
    lanes
}

fn lane_of(raw: u8) -> VirtualLane {
    VirtualLane::from_wire(raw).unwrap()
}

fn level(plan: &FabricPlan, cluster: &str) -> ServiceLevel {
    plan.decisions().clusters[cluster].service_level().unwrap()
}

/// Checks, from every port to every other at every service level, that each lane has one owner.
fn assert_kept(plan: &FabricPlan, intents: &Intents) {
    let all: Vec<Guid> = plan.adapter_ports().map(|port| port.guid).collect();
    let owner = |port: Guid| intents.clusters.iter().position(|cluster| cluster.ports.contains(&port));
    let mut owners: HashMap<(PortName, VirtualLane), BTreeSet<Option<usize>>> = HashMap::new();
    for from in &all {
        for to in all.iter().filter(|to| *to != from) {
            for sl in (0..16).filter_map(ServiceLevel::from_wire) {
                let lanes = lanes(plan, *from, *to, sl);
                let arrived = lanes.last().unwrap().1.is_some();
                if sl == ServiceLevel::default() {
                    assert!(arrived && lanes.iter().all(|(_, lane)| *lane == VirtualLane::from_wire(0)));
                    continue;
                }
                if Some(sl) == plan.decisions().management_sl {
                    assert!(arrived && lanes.iter().all(|(_, lane)| *lane == VirtualLane::from_wire(1)));
                    assert!(lanes.iter().all(|(port, _)| sharing(plan, *port).weight(lane_of(1)) == 1));
                    continue;
                }
                let own = owner(*from).map(|index| level(plan, &intents.clusters[index].name));
                if owner(*from).is_some() && owner(*from) == owner(*to) && own == Some(sl) {
                    assert!(arrived, "{from} to {to} at {sl:?}: {lanes:?}");
                }
                for (port, lane) in lanes {
                    if let Some(lane) = lane {
                        owners.entry((port, lane)).or_default().insert(owner(*from));
                    }
                }
            }
        }
    }
    for ((port, lane), owners) in owners {
        assert!(owners.len() == 1 && !owners.contains(&None), "{port} {lane:?}: {owners:?}");
        let weight = sharing(plan, port).weight(lane);
        assert!(weight > 0, "{port} {lane:?} is never served");
    }
}

/// Admits clusters of random sizes on random ports until the ports are used up. Returns the number of refusals as well.
fn crowd(topology: &Topology, random: &mut Pcg64, bandwidth: u64) -> (Intents, FabricPlan, usize) {
    let mut free = ports(topology);
    let mut intents = Intents::new(free.remove(0));
    free.shuffle(random);
    let mut plan = compile(topology, &intents, &Decisions::default()).unwrap();
    let mut refused = 0;
    while free.len() >= 4 {
        let size = random.random_range(1..=4);
        let name = format!("c{}", free.len());
        let intent = cluster(&name, &free[free.len() - size..], bandwidth);
        free.truncate(free.len() - size);
        intents.clusters.push(intent);
        match recompile(topology, &intents, &plan) {
            Ok(next) => {
                // Existing clusters are unchanged.
                for (name, decision) in &plan.decisions().clusters {
                    assert_eq!(next.decisions().clusters.get(name), Some(decision));
                }
                plan = next;
            }
            Err(CompileError::NotAdmitted { cluster, reason }) => {
                assert!(cluster == name && reason.to_string().contains("link"), "{reason}");
                intents.clusters.pop();
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    (intents, plan, refused)
}

#[test]
fn every_lane_has_one_owner_and_service_level_0_works() {
    let mut random = Pcg64::seed_from_u64(SEED);
    let mut refused = 0;
    for hosts in [16, 32, 32] {
        let topology = tree(hosts);
        for bandwidth in [0, 100_000_000, 60_000_000_000] {
            let (intents, plan, not) = crowd(&topology, &mut random, bandwidth);
            refused += not;
            assert!(!intents.clusters.is_empty());
            assert_kept(&plan, &intents);
            assert_eq!(compile(&topology, &intents, plan.decisions()).unwrap(), plan, "the same again");
        }
    }
    assert!(refused > 0, "some ask for more than a link has");
}

#[test]
fn released_lanes_are_reused_and_stay_guarded() {
    let topology = tree(16);
    let all = ports(&topology);
    let mut intents = Intents::new(all[0]);
    let before = compile(&topology, &intents, &Decisions::default()).unwrap();
    assert!(before.adapter_ports().all(|port| port.qos.is_none()), "no guarantee was requested");
    intents.clusters = vec![cluster("one", &all[1..5], 0), cluster("two", &all[5..9], 0)];
    let both = recompile(&topology, &intents, &before).unwrap();
    assert_kept(&both, &intents);
    intents.clusters.remove(0);
    let one = recompile(&topology, &intents, &both).unwrap();
    assert_eq!(one.decisions().clusters["two"], both.decisions().clusters["two"]);
    assert_kept(&one, &intents);
    intents.clusters.clear();
    let none = recompile(&topology, &intents, &one).unwrap();
    assert!(none.decisions().sl_enforcement && none.decisions().clusters.is_empty());
    assert_kept(&none, &intents);
}

#[test]
fn requests_beyond_a_limit_are_refused_with_the_limit() {
    let topology = tree(16);
    let all = ports(&topology);
    let mut intents = Intents::new(all[0]);
    let attempt = |intents: &Intents| compile(&topology, intents, &Decisions::default());
    intents.clusters = vec![cluster("fast", &all[1..9], 1_000_000_000_000)];
    let error = attempt(&intents).unwrap_err().to_string();
    assert!(error.contains("cluster fast cannot be guaranteed") && error.contains("Gb/s left"), "{error}");

    intents.clusters = vec![cluster("fit", &all[1..9], 0)];
    let with_latency = |latency_ns| {
        let mut request = intents.clone();
        let class = Class::Guaranteed { bandwidth: Bandwidth::ZERO, latency_ns: Some(latency_ns) };
        request.clusters[0].class = class;
        attempt(&request)
    };
    let bound = with_latency(20_000).unwrap().decisions().clusters["fit"].bound_ns;
    assert!((19_000..=20_000).contains(&bound), "{bound}");
    let error = with_latency(3_000).unwrap_err().to_string();
    assert!(error.contains("were requested"), "{error}");

    intents.clusters = vec![cluster("lost", &[Guid::from_wire(0xdead).unwrap()], 0)];
    assert_eq!(attempt(&intents), Err(CompileError::PortsMissing { cluster: "lost".to_owned() }));
}

#[test]
fn paths_are_selected_to_avoid_shared_links() {
    let topology = tree(16);
    let all = ports(&topology);
    let mut intents = Intents::new(all[0]);
    let before = compile(&topology, &intents, &Decisions::default()).unwrap();
    let leaf = |port: &Guid| before.adapter_port(*port).unwrap().peer.node;
    let home = |port: &Guid| &before.decisions().end_ports[port].uplink_path;
    let own: Vec<Guid> =
        all[1..].iter().copied().filter(|port| leaf(port) == leaf(&all[1])).take(2).collect();
    // Two hosts on other leaves that are reached by the same up-port.
    let far: Vec<Guid> = all.iter().copied().filter(|port| leaf(port) != leaf(&all[1])).collect();
    let pairs = far.iter().flat_map(|a| far.iter().map(move |b| (*a, *b)));
    let (a, b) = pairs.into_iter().find(|(a, b)| leaf(a) != leaf(b) && home(a) == home(b)).unwrap();
    let hosts = [own[0], own[1], a, b];

    let graph = Arc::new(LinkGraph::of(
        &topology,
        &before,
        TenancyLimits { table_entries: 8, ..TenancyLimits::default() },
    ));
    let host = |port: &Guid| graph.hosts().iter().position(|host| host.port == *port).unwrap() as u32;
    let host_indices: Vec<HostIndex> = hosts.iter().map(|port| HostIndex(host(port))).collect();
    let mut admission = Admission::new(Arc::clone(&graph));
    let usable = admission.usable(graph.route(host_indices[0], host_indices[2]).unwrap()[1]);
    let bandwidth = usable.part(0.9);
    let request = AdmissionRequest {
        cluster: ClusterNumber(0),
        hosts: &host_indices,
        bandwidth,
        latency_ns: None,
        mode: SlMode::Cluster,
        routes: RouteChoice::Existing,
    };
    let refused = admission.admit(request).unwrap_err();
    assert!(matches!(refused, Refusal::BandwidthShort { .. }), "{refused}");

    intents.clusters = vec![cluster("wide", &hosts, bandwidth.bits_per_s())];
    let plan = recompile(&topology, &intents, &before).unwrap();
    assert_kept(&plan, &intents);
    let up_ports = |to: Guid| walk(&plan, own[0], to)[1].0;
    assert_ne!(up_ports(a), up_ports(b), "each has a cable of its own");
    assert_eq!(compile(&topology, &intents, plan.decisions()).unwrap(), plan, "the same again");
    let moved = |port: &Guid| plan.decisions().end_ports[port].uplink_path != *home(port);
    assert!(all.iter().filter(|port| moved(port)).all(|port| hosts.contains(port)), "others stay");
}

#[test]
fn a_resized_cluster_keeps_its_service_level() {
    let topology = tree(32);
    let all = ports(&topology);
    let mut intents = Intents::new(all[0]);
    let sizes = [&all[1..4], &all[4..9], &all[9..13]];
    intents.clusters =
        (0..).zip(sizes).map(|(at, ports)| cluster(&format!("c{at}"), ports, 100_000_000)).collect();
    let mut plan = compile(&topology, &intents, &Decisions::default()).unwrap();
    let before: Vec<ServiceLevel> = ["c0", "c1", "c2"].map(|name| level(&plan, name)).to_vec();
    // The first cluster is removed, so its service level is free.
    intents.clusters.remove(0);
    for ports in [&all[4..9], &all[4..8], &all[4..6]] {
        intents.clusters[0].ports = ports.to_vec();
        for more in [all[13], all[20], all[27]] {
            intents.clusters[0].ports.push(more);
            plan = recompile(&topology, &intents, &plan).unwrap();
            assert_kept(&plan, &intents);
            assert_eq!([level(&plan, "c1"), level(&plan, "c2")], before[1..], "{ports:?}");
        }
    }
    assert_eq!(compile(&topology, &intents, plan.decisions()).unwrap(), plan, "the same again");
}

/// Counts of events while clusters come and go.
#[derive(Debug, Default)]
struct Turnover {
    came: usize,
    went: usize,
    refused: usize,
    /// Grants of other clusters, summed over all changes.
    stayed: usize,
    /// Arbitration tables that changed although their cluster stayed, summed over all changes.
    recomposed: usize,
}

/// Adds and removes random clusters, and checks that the grants of others stay.
fn come_and_go(topology: &Topology, size_max: usize, table_entries: u8, changes: usize) -> Turnover {
    let all = ports(topology);
    let mut random = Pcg64::seed_from_u64(SEED);
    let mut intents = Intents::new(all[0]);
    intents.capabilities.default_port.arbitration = table_entries;
    let mut free = all[1..].to_vec();
    let decisions = Decisions::default();
    let mut planner = Planner::new(Arc::new(topology.clone()), intents.clone(), &decisions).unwrap();
    let mut plan = Arc::clone(planner.plan());
    let limits = TenancyLimits { table_entries, ..TenancyLimits::default() };
    let graph = Arc::new(LinkGraph::of(topology, &plan, limits));
    let usable = Admission::new(Arc::clone(&graph)).usable(graph.hosts()[0].inward).bits_per_s();
    let mut turnover = Turnover::default();
    for change in 0..changes {
        let before_change = intents.clone();
        let is_new = free.len() >= 2 && random.random_bool(0.7);
        let name = if is_new {
            free.shuffle(&mut random);
            let size = random.random_range(2..=free.len().min(size_max));
            let name = format!("c{change}");
            let bandwidth = (usable >> random.random_range(0..8)) / 10 * random.random_range(5..=9);
            intents.clusters.push(cluster(&name, &free[..size], bandwidth));
            name
        } else if intents.clusters.is_empty() {
            continue;
        } else {
            intents.clusters.remove(random.random_range(0..intents.clusters.len())).name
        };
        let before = Arc::clone(&plan);
        match planner.change(&intents) {
            Ok(next) => plan = Arc::clone(next),
            Err(_) => {
                assert_eq!(*planner.plan(), before, "a refusal leaves nothing behind");
                turnover.refused += 1;
                intents = before_change;
                continue;
            }
        }
        assert_eq!(recompile(topology, &intents, &before).unwrap(), *plan, "recompiled");
        assert_eq!(compile(topology, &intents, plan.decisions()).unwrap(), *plan, "the same again");
        *if is_new { &mut turnover.came } else { &mut turnover.went } += 1;
        let taken: BTreeSet<Guid> = intents.clusters.iter().flat_map(|it| it.ports.clone()).collect();
        free = all[1..].iter().copied().filter(|port| !taken.contains(port)).collect();
        assert_others_stay(&before, &plan, &name, &mut turnover);
    }
    turnover
}

/// Checks that all clusters but one have the same grant, and that tables change only at ports of that one.
fn assert_others_stay(before: &FabricPlan, plan: &FabricPlan, changed: &str, turnover: &mut Turnover) {
    let own = [before, plan].map(|plan| plan.decisions().clusters.get(changed));
    let own = own.into_iter().flatten().flat_map(|decision| &decision.links);
    let own: BTreeSet<PortName> = own.map(|link| link.port).collect();
    for (name, had) in before.decisions().clusters.iter().filter(|(name, _)| *name != changed) {
        assert_eq!(plan.decisions().clusters[name], *had, "{name}");
        for link in &had.links {
            let [old, new] = [before, plan].map(|plan| find_sharing(plan, link.port));
            turnover.stayed += 1;
            turnover.recomposed += usize::from(old != new);
            assert!(old == new || own.contains(&link.port), "{name} at {}", link.port);
        }
    }
}

#[test]
fn churn_changes_no_grant_and_no_table_of_other_links() {
    let wide = come_and_go(&tree(32), 4, 64, 400);
    assert!(wide.came > 100 && wide.went > 100 && wide.stayed > 10_000, "{wide:?}");
    for table_entries in [64, 8] {
        let narrow = come_and_go(&two_leaves(), 2, table_entries, 400);
        assert!(narrow.came > 100 && narrow.went > 100 && narrow.refused > 10, "{narrow:?}");
        assert!(narrow.stayed > 5_000 && narrow.recomposed > 100, "{narrow:?}");
    }
}

/// Two leaves with one cable each to the spine, which all paths between them share.
fn two_leaves() -> Topology {
    let oversubscription = Oversubscription { down: 11, up: 1 };
    FatTree { radix: 12, oversubscription, ..FatTree::new(FatTreeSize::Leaves(2)) }.generate().unwrap()
}

/// Pairs of hosts on two leaves, whose paths share one cable to the spine.
struct SharedCable {
    topology: Topology,
    near: Vec<Guid>,
    far: Vec<Guid>,
    intents: Intents,
}

impl SharedCable {
    fn new(arbitration: u8) -> Self {
        let topology = two_leaves();
        let all = ports(&topology);
        let mut intents = Intents::new(all[0]);
        intents.capabilities.default_port.arbitration = arbitration;
        intents.hardware.switch_model = SwitchModel::IdealOutputs;
        let plan = compile(&topology, &intents, &Decisions::default()).unwrap();
        let leaf = |port: &Guid| plan.adapter_port(*port).unwrap().peer.node;
        let (near, far) = all[1..].iter().partition(|port| leaf(port) == leaf(&all[0]));
        Self { topology, near, far, intents }
    }

    fn pair(&self, at: usize, mbps: u64, latency_ns: Option<u64>) -> ClusterIntent {
        let bandwidth = Bandwidth::from_bits_per_s(mbps * 1_000_000);
        let class = Class::Guaranteed { bandwidth, latency_ns };
        ClusterIntent { class, ..cluster(&format!("c{at}"), &[self.near[at], self.far[at]], 0) }
    }

    fn compile(&self, clusters: Vec<ClusterIntent>) -> Result<FabricPlan, CompileError> {
        let intents = Intents { clusters, ..self.intents.clone() };
        compile(&self.topology, &intents, &Decisions::default())
    }

    /// The most that `count` pairs of hosts with the same rate can be guaranteed each, in Mb/s.
    fn most(&self, count: usize) -> u64 {
        let fits = |mbps: u64| self.compile((0..count).map(|at| self.pair(at, mbps, None)).collect()).is_ok();
        let (mut possible, mut impossible) = (0, 100_000);
        while impossible - possible > 1 {
            let middle = u64::midpoint(possible, impossible);
            if fits(middle) { possible = middle } else { impossible = middle }
        }
        possible
    }
}

#[test]
fn most_of_a_link_can_be_guaranteed() {
    // Entries, clusters, and the least that they get together on 100 Gb/s, in Mb/s.
    for (entries, count, least) in [(64, 1, 98_000), (8, 1, 91_900), (64, 6, 81_000), (8, 2, 80_000)] {
        let most = SharedCable::new(entries).most(count);
        assert!(count as u64 * most >= least, "{entries} entries, {count} clusters: {most} Mb/s each");
    }
}

/// The tables of each link have the length of its own sending port.
#[test]
fn a_port_with_few_entries_limits_only_its_own_link() {
    let cable = SharedCable::new(64);
    let plan = cable.compile(vec![cable.pair(0, 97_000, None)]).unwrap();
    let weak = plan.adapter_port(cable.near[1]).unwrap().name;
    let mut short = SharedCable::new(64);
    let capability = PortCapability { arbitration: 8, ..short.intents.capabilities.default_port };
    short.intents.capabilities.ports.insert(weak, capability);
    let length = |plan: &FabricPlan, port: PortName| sharing(plan, port).low.len();
    let strong = plan.adapter_port(cable.near[0]).unwrap().name;
    let same = short.compile(vec![short.pair(0, 97_000, None)]).unwrap();
    assert_eq!(length(&same, strong), length(&plan, strong), "another adapter is short");
    let refused = short.compile(vec![short.pair(1, 97_000, None)]).unwrap_err().to_string();
    assert!(refused.contains(&format!("the link out of port {weak}")), "{refused}");
    let less = short.compile(vec![short.pair(1, 90_000, None)]).unwrap();
    assert!(length(&less, weak) <= 8 && length(&less, strong.max(weak)) > 0);
}

#[test]
fn a_newcomer_that_would_lengthen_a_sold_wait_is_refused() {
    let cable = SharedCable::new(64);
    let timely = || cable.pair(0, 1_000, Some(10_000));
    let bound = cable.compile(vec![timely()]).unwrap().decisions().clusters["c0"].bound_ns;
    assert!(bound <= 10_000, "{bound}");
    let others = |count: usize, mbps: u64| -> Vec<ClusterIntent> {
        (1..=count).map(|at| cable.pair(at, mbps, None)).collect()
    };
    // Without the latency, all fit; beside it, three do, and the fourth would make the first wait too long.
    cable.compile([vec![cable.pair(0, 1_000, None)], others(4, 18_000)].concat()).unwrap();
    let plan = cable.compile([vec![timely()], others(2, 18_000)].concat()).unwrap();
    assert_eq!(plan.decisions().clusters["c0"].bound_ns, bound, "the bound is the one that was sold");
    let refused = cable.compile([vec![timely()], others(4, 18_000)].concat()).unwrap_err().to_string();
    assert!(refused.contains("the link out of port"), "{refused}");
    // A latency that comes last is refused as well, and so is one below what an empty link needs.
    let late = cable.compile([others(4, 18_000), vec![timely()]].concat()).unwrap_err().to_string();
    assert!(late.contains("cannot serve the cluster every"), "{late}");
    let none = cable.compile(vec![cable.pair(0, 1_000, Some(3_000))]).unwrap_err().to_string();
    assert!(none.contains("beside best effort, but 3 µs were requested"), "{none}");
}

#[test]
fn best_effort_gets_the_share_that_the_operator_asks_for() {
    let mut cable = SharedCable::new(64);
    let all = cable.most(1);
    cable.intents.best_effort_percent = 20;
    let rest = cable.most(1);
    assert!(all > 98_000 && (68_000..80_000).contains(&rest), "{all} {rest}");
    let plan = cable.compile(vec![cable.pair(0, rest, None)]).unwrap();
    let port = plan.adapter_port(cable.near[0]).unwrap().name;
    let low = &sharing(&plan, port).low;
    let bytes = |is_own: bool, overshoot: u64| -> u64 {
        let entries = low.iter().filter(|entry| (entry.lane == lane_of(0)) == is_own);
        entries.map(|entry| 64 * u64::from(entry.weight) + overshoot).sum()
    };
    let (own, others) = (bytes(true, 0), bytes(false, 4158));
    assert!(own * 5 >= own + others, "{low:?}");
}

/// Decisions of versions that placed entries one by one are still read, and get waits.
#[test]
fn decisions_without_waits_keep_lanes_and_service_levels() {
    let cable = SharedCable::new(64);
    let clusters: Vec<ClusterIntent> = (0..3).map(|at| cable.pair(at, 9_000, None)).collect();
    let intents = Intents { clusters, ..cable.intents.clone() };
    let plan = compile(&cable.topology, &intents, &Decisions::default()).unwrap();
    let mut old = serde_json::to_value(plan.decisions()).unwrap();
    for decision in old["clusters"].as_object_mut().unwrap().values_mut() {
        decision["bound_ns"] = 1.into();
        for link in decision["links"].as_array_mut().unwrap() {
            let link = link.as_object_mut().unwrap();
            link.remove("wait_ns").unwrap();
            link.extend(
                [("entries", 4), ("first_entry", 1), ("weight", 99)].map(|(k, v)| (k.to_owned(), v.into())),
            );
        }
    }
    let old: Decisions = serde_json::from_value(old).unwrap();
    assert_ne!(old, *plan.decisions());
    assert_eq!(compile(&cable.topology, &intents, &old).unwrap(), plan);
}

/// Two hosts of one leaf and one of another.
fn small(intents: &mut Intents, topology: &Topology) {
    let all = ports(topology);
    intents.clusters.push(cluster("c", &[all[1], all[2], all[9]], 1_000_000_000));
}

/// The lane of a service level on every link between two ports.
fn lanes_of(plan: &FabricPlan, from: Guid, to: Guid, raw: u8) -> Vec<Option<u8>> {
    let sl = ServiceLevel::from_wire(raw).unwrap();
    lanes(plan, from, to, sl).into_iter().map(|(_, lane)| lane.map(VirtualLane::to_wire)).collect()
}

#[test]
fn management_has_a_lane_where_switches_can_spare_one() {
    let topology = tree(16);
    let all = ports(&topology);
    let mut intents = Intents::new(all[0]);
    let without = compile(&topology, &intents, &Decisions::default()).unwrap();
    assert_eq!((without.decisions().management_sl, without.management_service_level().to_wire()), (None, 0));
    small(&mut intents, &topology);

    let eight = compile(&topology, &intents, &Decisions::default()).unwrap();
    assert_eq!(eight.management_service_level().to_wire(), 15);
    assert_eq!(lanes_of(&eight, all[1], all[9], 15), [Some(1); 4]);
    assert_eq!(lanes_of(&eight, all[3], all[8], 15), [Some(1); 4], "on links without guarantees");

    // Adapters with four lanes have none to spare.
    let mut mixed = intents.clone();
    for port in eight.adapter_ports() {
        let four = PortCapability { lanes: DataLanes::Four, ..PortCapability::default() };
        mixed.capabilities.ports.insert(port.name, four);
    }
    let plan = compile(&topology, &mixed, &Decisions::default()).unwrap();
    assert_eq!(plan.management_service_level().to_wire(), 15);
    assert_eq!(lanes_of(&plan, all[1], all[9], 15), [Some(0), Some(1), Some(1), Some(0)]);

    let mut few = intents.clone();
    few.capabilities.default_port.lanes = DataLanes::Four;
    let plan = compile(&topology, &few, &Decisions::default()).unwrap();
    assert_eq!((plan.decisions().management_sl, plan.management_service_level().to_wire()), (None, 0));
    assert_eq!(lanes_of(&plan, all[1], all[9], 15), [None]);

    // The decision stays, whatever devices are added.
    let after = recompile(&topology, &few, &eight).unwrap();
    assert_eq!(after.management_service_level().to_wire(), 15);
    assert_eq!(lanes_of(&after, all[1], all[9], 15), [Some(0); 4]);
    let after = recompile(&topology, &intents, &plan).unwrap();
    assert_eq!((after.decisions().management_sl, lanes_of(&after, all[1], all[9], 15)), (None, vec![None]));
}

#[test]
fn groups_need_service_level_0_beside_guarantees() {
    let topology = tree(16);
    let mut intents = Intents::new(ports(&topology)[0]);
    let conf =
        |sl: u8| partitions_conf::parse(&format!("blue=0x101, ipoib, sl={sl} : ALL_CAS=full;")).unwrap();
    intents.partitions = conf(3);
    let plain = compile(&topology, &intents, &Decisions::default()).unwrap();
    assert_eq!(
        plain.groups().next().unwrap().sl.to_wire(),
        3,
        "control: without guarantees any service level is allowed"
    );
    small(&mut intents, &topology);
    let refusals = [
        compile(&topology, &intents, &Decisions::default()).unwrap_err(),
        recompile(&topology, &intents, &plain).unwrap_err(),
    ];
    for refused in refusals {
        assert!(matches!(refused, CompileError::GroupServiceLevel { sl, .. } if sl.to_wire() == 3));
        assert!(refused.to_string().contains("partition 0x0101 uses service level 3"), "{refused}");
    }
    intents.partitions = conf(0);
    let mut planner =
        Planner::new(Arc::new(topology.clone()), intents.clone(), &Decisions::default()).unwrap();
    let before = Arc::clone(planner.plan());
    let wrong = Intents { partitions: conf(15), ..intents.clone() };
    assert!(matches!(planner.change(&wrong), Err(CompileError::GroupServiceLevel { .. })), "management's");
    assert_eq!(**planner.change(&intents).unwrap(), *before, "and everything stays as it was");
    // Lanes stay guarded after the last guarantee is gone.
    let mut later = Intents::new(ports(&topology)[0]);
    later.partitions = conf(3);
    compile(&topology, &later, before.decisions()).unwrap_err();
}

#[test]
fn small_lane_buffers_are_refused_with_the_bytes_needed() {
    let topology = tree(16);
    let all = ports(&topology);
    let mut intents = Intents::new(all[0]);
    intents.clusters.push(cluster("c", &[all[1], all[9]], 8_000_000_000));
    let unknown = compile(&topology, &intents, &Decisions::default()).unwrap();
    // One gigabyte per second is one byte per nanosecond.
    let narrow = unknown.adapter_port(all[1]).unwrap().name;
    let with = |bytes: u32| {
        let mut intents = intents.clone();
        let lane_buffer = Some(LaneBuffer { bytes, round_trip_ns: 300 });
        intents
            .capabilities
            .ports
            .insert(narrow, PortCapability { lane_buffer, ..PortCapability::default() });
        intents
    };
    let enough = compile(&topology, &with(4522), &Decisions::default()).unwrap();
    assert_eq!(enough.decisions().clusters["c"], unknown.decisions().clusters["c"]);
    let refused = compile(&topology, &with(4521), &Decisions::default()).unwrap_err().to_string();
    let port = unknown.adapter_port(all[1]).unwrap().peer;
    for part in ["4521 bytes", "4522 are needed", &format!("the link out of port {port}")] {
        assert!(refused.contains(part), "{refused}");
    }
    // A buffer that becomes known later violates the guarantee, and nothing else.
    let broken = compile(&topology, &with(4521), unknown.decisions()).unwrap();
    assert!(broken.decisions().clusters["c"].links.is_empty() && broken.findings().len() == 1);
    let mut slower = with(4521);
    slower.clusters[0] = cluster("c", &[all[1], all[9]], 7_000_000_000);
    assert_kept(&compile(&topology, &slower, &Decisions::default()).unwrap(), &slower);
}

/// The rate of a link limits what is guaranteed on it, and nothing is guaranteed on a link of unknown rate.
#[test]
fn guarantees_depend_on_the_rates_of_links() {
    let text = ibnetdiscover::write(&tree(16));
    let most = |rate: &str| {
        let topology = ibnetdiscover::parse(&text.replace(" 4xEDR", rate)).unwrap();
        let all = ports(&topology);
        let fits = |mbps: u64| {
            let mut intents = Intents::new(all[0]);
            intents.clusters = vec![cluster("one", &all[1..3], mbps * 1_000_000)];
            compile(&topology, &intents, &Decisions::default())
        };
        match fits(1) {
            Ok(_) => Ok((1..250_000).collect::<Vec<u64>>().partition_point(|mbps| fits(*mbps).is_ok())),
            Err(CompileError::NotAdmitted { reason, .. }) => Err(reason),
            Err(other) => panic!("{other}"),
        }
    };
    let [sdr, edr, hdr] = [" 4xSDR", " 4xEDR", " 4xHDR"].map(|rate| most(rate).unwrap());
    assert!(sdr < 8_000, "{sdr} Mb/s on a link of 8 Gb/s");
    assert!((edr as f64 / sdr as f64 - 12.5).abs() < 0.1 && (hdr as f64 / edr as f64 - 2.0).abs() < 0.01);
    assert!(matches!(most(""), Err(GuaranteeError::Refused(Refusal::RateUnknown { .. }))));
}

/// Port 0 of a switch sends over no link: whatever it says about arbitration, tables have the length of the links' ports.
#[test]
fn port_0_does_not_limit_arbitration_tables() {
    let topology = tree(16);
    let all = ports(&topology);
    let mut intents = Intents::new(all[0]);
    intents.hardware.switch_model = SwitchModel::IdealOutputs;
    intents.capabilities.default_port.arbitration = 64;
    for (_, node) in topology.nodes() {
        for (port, _) in node.ports() {
            let arbitration = if port == PortNum::MANAGEMENT { 0 } else { 64 };
            let capability = PortCapability { arbitration, ..intents.capabilities.default_port };
            intents.capabilities.ports.insert(PortName { node: node.guid, port }, capability);
        }
    }
    intents.clusters = vec![cluster("one", &all[1..3], 97_000_000_000)];
    let plan = compile(&topology, &intents, &Decisions::default()).unwrap();
    let lengths =
        plan.switches().flat_map(|it| it.ports.iter().filter_map(|port| Some(port.qos.as_ref()?.low.len())));
    assert!(lengths.max() > Some(8), "8 entries would not do");
}

/// Cables between switches fail one after the other under clusters that nearly fill their links.
#[test]
fn a_cluster_that_loses_its_guarantee_keeps_its_connections() {
    let (mut violated, mut discarded, mut again) = (0, 0, 0);
    for (count, seed) in [(16, 1), (16, 2), (32, 3), (32, 4)] {
        let whole = tree(count);
        let ports = ports(&whole);
        let mut intents = Intents::new(ports[0]);
        intents.hardware.switch_model = SwitchModel::IdealOutputs;
        let mut hosts = ports[1..].to_vec();
        hosts.shuffle(&mut Pcg64::seed_from_u64(seed));
        let bits_per_s = 70_000_000_000;
        let mut plan = compile(&whole, &intents, &Decisions::default()).unwrap();
        for (number, hosts) in hosts.chunks(4).enumerate() {
            let mut more = intents.clone();
            more.clusters.push(cluster(&format!("c{number}"), hosts, bits_per_s));
            if let Ok(admitted) = recompile(&whole, &more, &plan) {
                (plan, intents) = (admitted, more);
            }
        }
        assert!(!intents.clusters.is_empty());
        let mut had: HashMap<String, ServiceLevel> =
            plan.decisions().clusters.keys().map(|name| (name.clone(), level(&plan, name))).collect();
        let mut topology = whole.clone();
        let mut cables = switch_cables(&whole);
        cables.shuffle(&mut Pcg64::seed_from_u64(seed));
        for (end, _) in &cables[..4] {
            let Ok(after) = recompile(&without_cable(&topology, *end), &intents, &plan) else { break };
            topology = without_cable(&topology, *end);
            plan = after;
            assert_eq!(unexpected(&topology, &intents, &plan), [] as [String; 0]);
            for cluster in &intents.clusters {
                let decision = &plan.decisions().clusters[&cluster.name];
                if !decision.links.is_empty() {
                    had.insert(cluster.name.clone(), level(&plan, &cluster.name));
                    continue;
                }
                let sl = had[&cluster.name];
                assert!(decision.former_sls.contains(sl));
                let pairs = cluster.ports.iter().flat_map(|from| {
                    let others = cluster.ports.iter().filter(move |to| *to != from);
                    others.map(move |to| (*from, *to))
                });
                let paths: Vec<_> = pairs.map(|(from, to)| lanes(&plan, from, to, sl)).collect();
                let arrives = |path: &Vec<(PortName, Option<VirtualLane>)>| {
                    path.iter().all(|(_, lane)| *lane == Some(lane_of(0)))
                };
                assert!(
                    paths.iter().all(arrives) || !paths.iter().any(arrives),
                    "{}: all or none",
                    cluster.name
                );
                if paths.iter().all(arrives) {
                    violated += 1;
                } else {
                    discarded += 1;
                }
            }
        }
        // With the cables back, the guarantees are back, at the same service levels.
        let lost: Vec<String> = (plan.decisions().clusters.iter())
            .filter(|(_, decision)| decision.links.is_empty())
            .map(|(name, _)| name.clone())
            .collect();
        plan = recompile(&whole, &intents, &plan).unwrap();
        assert_eq!(unexpected(&whole, &intents, &plan), [] as [String; 0]);
        assert_kept(&plan, &intents);
        again += lost.iter().filter(|name| level(&plan, name) == had[*name]).count();
    }
    assert!(violated >= 3 && again >= 2, "{violated} at best effort, {discarded} discarded, {again} again");
}
