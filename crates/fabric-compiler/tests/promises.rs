//! What guaranteed clusters are promised, read from the tables of plans: an own walk from port to port.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use fabric_compiler::tenancy::ledger::{Ledger, Refusal, Request, Routes};
use fabric_compiler::tenancy::network::{HostIndex, Limits, Network};
use fabric_compiler::{CompileError, compile, recompile};
use fabric_model::generate::FatTree;
use fabric_model::intent::{ClusterIntent, PortName};
use fabric_model::plan::PortSharing;
use fabric_model::tenancy::{Bandwidth, Class, ClusterNumber, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use ib_wire::{Guid, PortNum, ServiceLevel, VirtualLane};
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

const SEED: u64 = 20_261_115;

fn tree(hosts: u32) -> Topology {
    FatTree { radix: 8, ..FatTree::with_hosts(hosts) }.generate().unwrap()
}

fn ports(topology: &Topology) -> Vec<Guid> {
    topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect()
}

fn cluster(name: &str, ports: &[Guid], bandwidth: u64) -> ClusterIntent {
    let class = Class::Guaranteed { bandwidth: Bandwidth::from_bits_per_s(bandwidth), latency_ns: None };
    ClusterIntent { name: name.to_owned(), ports: ports.to_vec(), class, sl_mode: SlMode::Cluster }
}

/// The ports that a packet leaves by, from an adapter to a LID, with the input of each.
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

fn sharing(plan: &FabricPlan, port: PortName) -> &PortSharing {
    let of_switch = || plan.switch(port.node)?.port(port.port)?.sharing.as_deref();
    let of_adapter = || plan.adapter_ports().find(|it| it.name == port)?.sharing.as_deref();
    of_switch().or_else(of_adapter).unwrap()
}

/// Lanes of a packet with a service level as far as it gets.
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

fn level(plan: &FabricPlan, cluster: &str) -> ServiceLevel {
    plan.decisions().clusters[cluster].service_level().unwrap()
}

/// From every port to every other, with every service level: whoever has a lane has it to himself.
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

/// Clusters of random sizes on random ports of their own, as many as are admitted.
fn crowd(topology: &Topology, random: &mut Pcg64, bandwidth: u64) -> (Intents, FabricPlan, usize) {
    let mut free = ports(topology);
    let mut intents = Intents::new(free.remove(0));
    free.shuffle(random);
    let mut plan = compile(topology, &intents, &Decisions::default()).unwrap();
    let mut refused = 0;
    while free.len() >= 4 {
        let size = random.random_range(1..=4);
        let name = format!("c{}", free.len());
        let wish = cluster(&name, &free[free.len() - size..], bandwidth);
        free.truncate(free.len() - size);
        intents.clusters.push(wish);
        match recompile(topology, &intents, &plan) {
            Ok(next) => {
                // Nobody who was there is touched.
                for (name, decision) in &plan.decisions().clusters {
                    assert_eq!(next.decisions().clusters.get(name), Some(decision));
                }
                plan = next;
            }
            Err(CompileError::NotAdmitted { cluster, reason }) => {
                assert!(cluster == name && reason.contains("link"), "{reason}");
                intents.clusters.pop();
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    (intents, plan, refused)
}

#[test]
fn whoever_has_a_lane_has_it_to_himself_and_level_0_always_works() {
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
fn what_is_released_is_given_to_others_and_lanes_stay_guarded() {
    let topology = tree(16);
    let all = ports(&topology);
    let mut intents = Intents::new(all[0]);
    let before = compile(&topology, &intents, &Decisions::default()).unwrap();
    assert!(before.adapter_ports().all(|port| port.sharing.is_none()), "nobody asked for it");
    intents.clusters = vec![cluster("one", &all[1..5], 0), cluster("two", &all[5..9], 0)];
    let both = recompile(&topology, &intents, &before).unwrap();
    assert_kept(&both, &intents);
    intents.clusters.remove(0);
    let one = recompile(&topology, &intents, &both).unwrap();
    assert_eq!(one.decisions().clusters["two"], both.decisions().clusters["two"]);
    assert_kept(&one, &intents);
    intents.clusters.clear();
    let none = recompile(&topology, &intents, &one).unwrap();
    assert!(none.decisions().guarded && none.decisions().clusters.is_empty());
    assert_kept(&none, &intents);
}

#[test]
fn what_cannot_be_kept_is_refused_with_the_limit_and_what_fits_is_not() {
    let topology = tree(16);
    let all = ports(&topology);
    let mut intents = Intents::new(all[0]);
    let attempt = |intents: &Intents| compile(&topology, intents, &Decisions::default());
    intents.clusters = vec![cluster("fast", &all[1..9], 1_000_000_000_000)];
    let error = attempt(&intents).unwrap_err().to_string();
    assert!(error.contains("fast cannot be promised that") && error.contains("Gb/s left"), "{error}");

    intents.clusters = vec![cluster("fit", &all[1..9], 0)];
    let bound = attempt(&intents).unwrap().decisions().clusters["fit"].bound_ns;
    let with_latency = |latency_ns| {
        let mut asked = intents.clone();
        let class = Class::Guaranteed { bandwidth: Bandwidth::ZERO, latency_ns: Some(latency_ns) };
        asked.clusters[0].class = class;
        attempt(&asked)
    };
    with_latency(bound).unwrap();
    let error = with_latency(bound - 1).unwrap_err().to_string();
    assert!(error.contains("were asked for"), "{error}");

    intents.clusters = vec![cluster("lost", &[Guid::from_wire(0xdead).unwrap()], 0)];
    assert_eq!(attempt(&intents), Err(CompileError::PortsMissing { cluster: "lost".to_owned() }));
}

#[test]
fn ways_are_chosen_so_that_packets_to_two_hosts_need_not_share_a_cable() {
    let topology = tree(16);
    let all = ports(&topology);
    let mut intents = Intents::new(all[0]);
    let before = compile(&topology, &intents, &Decisions::default()).unwrap();
    let leaf = |port: &Guid| before.adapter_port(*port).unwrap().peer.node;
    let home = |port: &Guid| &before.decisions().end_ports[port].up;
    let own: Vec<Guid> =
        all[1..].iter().copied().filter(|port| leaf(port) == leaf(&all[1])).take(2).collect();
    // Two hosts elsewhere to which packets come by the same up-port.
    let far: Vec<Guid> = all.iter().copied().filter(|port| leaf(port) != leaf(&all[1])).collect();
    let pairs = far.iter().flat_map(|a| far.iter().map(move |b| (*a, *b)));
    let (a, b) = pairs.into_iter().find(|(a, b)| leaf(a) != leaf(b) && home(a) == home(b)).unwrap();
    let hosts = [own[0], own[1], a, b];

    let network = Arc::new(Network::of(&topology, &before, Limits { table_entries: 8, ..Limits::default() }));
    let host = |port: &Guid| network.hosts().iter().position(|host| host.port == *port).unwrap() as u32;
    let places: Vec<HostIndex> = hosts.iter().map(|port| HostIndex(host(port))).collect();
    let mut ledger = Ledger::new(Arc::clone(&network));
    let usable = ledger.usable(network.route(places[0], places[2]).unwrap()[1]);
    let bandwidth = usable.part(0.9);
    let request = Request {
        cluster: ClusterNumber(0),
        hosts: &places,
        bandwidth,
        mode: SlMode::Cluster,
        routes: Routes::Given,
    };
    let refused = ledger.admit(request).unwrap_err();
    assert!(matches!(refused, Refusal::Bandwidth { .. }), "{refused}");

    intents.clusters = vec![cluster("wide", &hosts, bandwidth.bits_per_s())];
    let plan = recompile(&topology, &intents, &before).unwrap();
    assert_kept(&plan, &intents);
    let up_ports = |to: Guid| walk(&plan, own[0], to)[1].0;
    assert_ne!(up_ports(a), up_ports(b), "each has a cable of its own");
    assert_eq!(compile(&topology, &intents, plan.decisions()).unwrap(), plan, "the same again");
    let moved = |port: &Guid| plan.decisions().end_ports[port].up != *home(port);
    assert!(all.iter().filter(|port| moved(port)).all(|port| hosts.contains(port)), "others stay");
}

#[test]
fn a_cluster_that_grows_or_shrinks_keeps_its_service_level() {
    let topology = tree(32);
    let all = ports(&topology);
    let mut intents = Intents::new(all[0]);
    let sizes = [&all[1..4], &all[4..9], &all[9..13]];
    intents.clusters =
        (0..).zip(sizes).map(|(at, ports)| cluster(&format!("c{at}"), ports, 100_000_000)).collect();
    let mut plan = compile(&topology, &intents, &Decisions::default()).unwrap();
    let before: Vec<ServiceLevel> = ["c0", "c1", "c2"].map(|name| level(&plan, name)).to_vec();
    // The first is gone: its level is free for whoever asks anew.
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
