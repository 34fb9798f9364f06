//! Guarantees of clusters, checked by an independent walk through the tables of plans.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fabric_compiler::tenancy::admission::{Admission, AdmissionRequest, Refusal, RouteChoice};
use fabric_compiler::tenancy::link_graph::{HostIndex, LinkGraph, TenancyLimits};
use fabric_compiler::{CompileError, GuaranteeError, Planner, compile, partitions_conf, recompile};
use fabric_model::decisions::ClusterDecision;
use fabric_model::generate::{FatTree, FatTreeSize, Oversubscription};
use fabric_model::intent::{LaneBuffer, PortCapability, PortName};
use fabric_model::plan::PortQos;
use fabric_model::tenancy::{Bandwidth, Class, ClusterNumber, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, Topology, ibnetdiscover};
use ib_wire::{DataLanes, Guid, PortNum, ServiceLevel, VirtualLane};
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

use crate::clusters::{cluster, ports};

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
                    assert!(lanes.iter().all(|(port, _)| sharing(plan, *port).weight(lane_of(1)) == 66));
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
        for bandwidth in [0, 100_000_000, 15_000_000_000] {
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
    let bound = attempt(&intents).unwrap().decisions().clusters["fit"].bound_ns;
    let with_latency = |latency_ns| {
        let mut request = intents.clone();
        let class = Class::Guaranteed { bandwidth: Bandwidth::ZERO, latency_ns: Some(latency_ns) };
        request.clusters[0].class = class;
        attempt(&request)
    };
    with_latency(bound).unwrap();
    let error = with_latency(bound - 1).unwrap_err().to_string();
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

/// The positions of a lane's entries.
fn positions(plan: &FabricPlan, port: PortName, lane: VirtualLane) -> Vec<usize> {
    let low = sharing(plan, port).low.iter().enumerate();
    low.filter(|(_, entry)| entry.lane == lane).map(|(position, _)| position).collect()
}

/// A decision without the positions of entries.
fn without_positions(decision: &ClusterDecision) -> ClusterDecision {
    let mut decision = decision.clone();
    decision.links.iter_mut().for_each(|link| link.first_entry = None);
    decision
}

/// Counts of events while clusters come and go.
#[derive(Debug, Default)]
struct Turnover {
    came: usize,
    went: usize,
    refused: usize,
    /// Sequences of other clusters' entries, summed over all changes.
    moved: usize,
    stayed: usize,
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
        let moved = assert_others_stay(&before, &plan, &name, &mut turnover);
        assert!(is_new || moved.is_empty(), "a removal moves nothing");
        assert_tables_differ_by_one(&before, &plan, &name, &moved);
    }
    turnover
}

/// Checks that all clusters but one have the same grant. Returns the ports at which their entries moved.
fn assert_others_stay(
    before: &FabricPlan,
    plan: &FabricPlan,
    changed: &str,
    turnover: &mut Turnover,
) -> BTreeSet<PortName> {
    let mut moved = BTreeSet::new();
    let others = before.decisions().clusters.iter().filter(|(name, _)| *name != changed);
    for (name, had) in others {
        let has = &plan.decisions().clusters[name];
        assert_eq!(without_positions(has), without_positions(had), "{name}");
        for (had, has) in had.links.iter().zip(&has.links) {
            let now = positions(plan, has.port, has.lane);
            let first = has.first_entry.unwrap();
            assert_eq!((now.len(), now[0]), (has.entries.into(), first.into()), "{name} at {}", has.port);
            if had == has {
                turnover.stayed += 1;
                assert_eq!(positions(before, had.port, had.lane), now, "{name} at {}", had.port);
            } else {
                turnover.moved += 1;
                moved.insert(had.port);
            }
        }
    }
    moved
}

/// Checks that tables differ only in entries of one cluster, except at ports where entries were moved.
fn assert_tables_differ_by_one(
    before: &FabricPlan,
    plan: &FabricPlan,
    changed: &str,
    moved: &BTreeSet<PortName>,
) {
    let own = [before, plan].map(|plan| plan.decisions().clusters.get(changed));
    let own = own.into_iter().flatten().flat_map(|decision| &decision.links);
    let own: BTreeMap<PortName, VirtualLane> = own.map(|link| (link.port, link.lane)).collect();
    let of_switches = plan
        .switches()
        .flat_map(|switch| switch.ports.iter().map(|port| PortName { node: switch.guid, port: port.number }));
    let all = of_switches.chain(plan.adapter_ports().map(|port| port.name));
    for port in all.filter(|port| !moved.contains(port)) {
        let [old, new] = [before, plan].map(|plan| find_sharing(plan, port));
        let (Some(old), Some(new)) = (old, new) else { continue };
        // A port without other clusters has a table of another length.
        if old.low.len() == new.low.len() {
            for (old, new) in old.low.iter().zip(&new.low).filter(|(old, new)| old != new) {
                assert!([old.lane, new.lane].contains(&own[&port]), "{port}: {old:?} {new:?}");
            }
        }
    }
}

#[test]
fn churn_moves_no_foreign_entries_unless_room_is_needed() {
    let wide = come_and_go(&tree(32), 4, 64, 400);
    assert!(wide.came > 100 && wide.went > 100 && wide.stayed > 10_000, "{wide:?}");
    assert_eq!(wide.moved, 0, "{wide:?}");
    for table_entries in [64, 8] {
        let narrow = come_and_go(&two_leaves(), 2, table_entries, 400);
        assert!(narrow.came > 100 && narrow.went > 100 && narrow.refused > 10, "{narrow:?}");
        assert!(narrow.stayed > 10_000 && narrow.moved * 100 < narrow.stayed, "{narrow:?}");
    }
}

/// Two leaves with one cable each to the spine, which all paths between them share.
fn two_leaves() -> Topology {
    let oversubscription = Oversubscription { down: 11, up: 1 };
    FatTree { radix: 12, oversubscription, ..FatTree::new(FatTreeSize::Leaves(2)) }.generate().unwrap()
}

#[test]
fn moved_entries_keep_their_weight_and_refusals_move_none() {
    let topology = two_leaves();
    let all = ports(&topology);
    let mut intents = Intents::new(all[0]);
    intents.capabilities.default_port.arbitration = 64;
    let decisions = Decisions::default();
    let mut planner = Planner::new(Arc::new(topology.clone()), intents.clone(), &decisions).unwrap();
    let graph = Arc::new(LinkGraph::of(&topology, planner.plan(), TenancyLimits::default()));
    let usable = Admission::new(Arc::clone(&graph)).usable(graph.hosts()[0].inward);
    let leaf = |port: &Guid| planner.plan().adapter_port(*port).unwrap().peer.node;
    let (near, far): (Vec<Guid>, Vec<Guid>) = all[1..].iter().partition(|port| leaf(port) == leaf(&all[0]));
    let pair = |name: &str, at: usize, part: f64| {
        cluster(name, &[near[at], far[at]], usable.part(part).bits_per_s())
    };
    // They fill the first half of the cable's table with 16, 8, 4 and 2 entries; the last cluster is in the second half.
    let parts = [0.308, 0.15, 0.072, 0.0325, 0.001];
    for (at, part) in parts.into_iter().enumerate() {
        intents.clusters.push(pair(&format!("c{at}"), at, part));
        planner.change(&intents).unwrap();
    }
    let entries = |plan: &FabricPlan, name: &str| -> BTreeSet<u8> {
        plan.decisions().clusters[name].links.iter().map(|link| link.entries).collect()
    };
    for (at, count) in [16, 8, 4, 2, 1].into_iter().enumerate() {
        assert_eq!(entries(planner.plan(), &format!("c{at}")), BTreeSet::from([count]));
    }
    intents.clusters.drain(..4);
    planner.change(&intents).unwrap();
    let before = Arc::clone(planner.plan());

    // Half of all entries are free, but not at equal distances.
    let mut wide = pair("wide", 0, 0.62);
    let Class::Guaranteed { bandwidth, .. } = wide.class else { panic!("{wide:?}") };
    let without_wide = intents.clone();
    intents.clusters.push(wide.clone());
    intents.clusters[1].class = Class::Guaranteed { bandwidth, latency_ns: Some(1) };
    planner.change(&intents).unwrap_err();
    assert_eq!(*planner.plan(), before, "a refusal moves nothing");
    intents = without_wide;
    for again in 0..2 {
        wide.name = format!("wide{again}");
        intents.clusters.push(wide.clone());
        let before = Arc::clone(planner.plan());
        let plan = Arc::clone(planner.change(&intents).unwrap());
        assert_eq!(recompile(&topology, &intents, &before).unwrap(), *plan, "recompiled");
        assert_eq!(compile(&topology, &intents, plan.decisions()).unwrap(), *plan, "the same again");
        assert_eq!(entries(&plan, &wide.name), BTreeSet::from([32]));
        let mut turnover = Turnover::default();
        let moved = assert_others_stay(&before, &plan, &wide.name, &mut turnover);
        assert_tables_differ_by_one(&before, &plan, &wide.name, &moved);
        // The links up and down at both leaves.
        assert_eq!(moved.len(), if again == 0 { 4 } else { 0 }, "{moved:?}");
        assert_kept(&plan, &intents);
        intents.clusters.pop();
        planner.change(&intents).unwrap();
    }
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
            Ok(_) => Ok((1..100_000).collect::<Vec<u64>>().partition_point(|mbps| fits(*mbps).is_ok())),
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
    intents.capabilities.default_port.arbitration = 64;
    for (_, node) in topology.nodes() {
        for (port, _) in node.ports() {
            let arbitration = if port == PortNum::MANAGEMENT { 0 } else { 64 };
            let capability = PortCapability { arbitration, ..intents.capabilities.default_port };
            intents.capabilities.ports.insert(PortName { node: node.guid, port }, capability);
        }
    }
    intents.clusters = vec![cluster("one", &all[1..3], 1_000_000_000)];
    let plan = compile(&topology, &intents, &Decisions::default()).unwrap();
    let lengths: BTreeSet<usize> = plan
        .switches()
        .flat_map(|switch| switch.ports.iter().filter_map(|port| Some(port.qos.as_ref()?.low.len())))
        .collect();
    assert_eq!(lengths, BTreeSet::from([64]));
}
