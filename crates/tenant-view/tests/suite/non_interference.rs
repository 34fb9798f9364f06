//! Two worlds that differ in every physical id, in everything off the cluster's routes, and in all other tenants look
//! the same to the cluster's tenant, byte by byte.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric_compiler::compile;
use fabric_model::decisions::ClusterDecision;
use fabric_model::generate::FatTree;
use fabric_model::intent::{ClusterIntent, PortName};
use fabric_model::plan::{LinearTable, ManagerPort, PlanParts};
use fabric_model::tenancy::{Bandwidth, Class, LinkGrant, SlMode};
use fabric_model::{Decisions, Endpoint, FabricPlan, Intents, NewNode, Topology, TopologyBuilder};
use ib_wire::{
    Attribute, ForwardingBlock, Guid, Lid, Mad, ManagementClass, Method, NodeKind, PkeyBlock, PortNum,
};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use tenant_view::{ClusterPlacement, Names, View};

use crate::world::{self, Program, World, second};

const HOSTS: [usize; 5] = [0, 1, 5, 9, 14];

/// A guaranteed cluster among others.
fn first_world() -> World {
    let topology = FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap();
    let ports = world::ports(&topology);
    let mut intents = Intents::new(*ports.last().unwrap());
    let cluster = |name: &str, hosts: &[usize]| ClusterIntent {
        name: name.to_owned(),
        ports: hosts.iter().map(|host| ports[*host]).collect(),
        class: Class::Guaranteed { bandwidth: Bandwidth::from_bits_per_s(1_000_000_000), latency_ns: None },
        sl_mode: SlMode::Cluster,
    };
    intents.clusters = vec![cluster("blue", &HOSTS), cluster("red", &[2, 6, 10])];
    let plan = compile(&topology, &intents, &Decisions::default()).unwrap();
    World { topology, plan }
}

/// Names in another world.
struct Renamed {
    guids: BTreeMap<Guid, Guid>,
    lids: BTreeMap<Lid, Lid>,
    ports: BTreeMap<PortName, PortNum>,
}

impl Renamed {
    fn port(&self, name: PortName) -> PortName {
        PortName { node: self.guids[&name.node], port: self.ports.get(&name).copied().unwrap_or(name.port) }
    }
}

/// The same network along the routes of the cluster; every id, every port number and everything else is different.
fn other_world(world: &World, cluster: &ClusterPlacement, seed: u64) -> (World, ClusterPlacement) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let slice = world.slice(cluster);
    let relevant: BTreeSet<Guid> = slice.switches().collect();
    let members: BTreeSet<Guid> = cluster.nodes.iter().map(|node| node.port).collect();
    let kept: BTreeSet<(PortName, PortName)> = slice.cables().collect();
    let mut renamed = Renamed { guids: BTreeMap::new(), lids: BTreeMap::new(), ports: BTreeMap::new() };
    let topology = &world.topology;

    let mut builder = TopologyBuilder::new();
    let mut order: Vec<_> = topology.nodes().collect();
    order.shuffle(&mut rng);
    let mut places = BTreeMap::new();
    for (_, node) in &order {
        let own = node.ports().any(|(_, port)| members.contains(&port.guid));
        // A third of what is off the routes is missing.
        if !(own || relevant.contains(&node.guid) || rng.random_bool(0.66)) {
            continue;
        }
        let guid = Guid::from_wire(rng.random_range(1..u64::MAX >> 1) & !0xff | 1).unwrap();
        renamed.guids.insert(node.guid, guid);
        let mut new = NewNode::new(node.kind, format!("n{}", builder_len(&places)), guid, node.port_count());
        new.description = format!("thing {}", rng.random::<u32>());
        (new.vendor_id, new.device_id) = (Some(rng.random_range(1..0xffffff)), Some(rng.random()));
        places.insert(node.guid, builder.add_node(new).unwrap());
        if node.kind == NodeKind::Switch {
            let mut numbers: Vec<u8> = (1..=node.port_count()).collect();
            numbers.shuffle(&mut rng);
            for (from, to) in (1..=node.port_count()).zip(numbers) {
                let name = PortName { node: node.guid, port: PortNum::new(from).unwrap() };
                renamed.ports.insert(name, PortNum::new(to).unwrap());
            }
        }
    }
    let is_relevant = |a: PortName, b: PortName| kept.contains(&(a.min(b), a.max(b)));
    let is_access = |end: PortName| {
        let node = topology.by_guid(end.node).map(|index| &topology[index]).unwrap();
        node.port(end.port).is_some_and(|port| members.contains(&port.guid))
    };
    for link in topology.links() {
        let [a, b] = [link.a, link.b].map(|end| PortName { node: topology[end.node].guid, port: end.port });
        let (Some(first), Some(second)) = (places.get(&a.node), places.get(&b.node)) else { continue };
        let wanted = is_relevant(a, b) || is_access(a) || is_access(b) || rng.random_bool(0.7);
        if wanted {
            let [a, b] =
                [(a, first), (b, second)].map(|(name, place)| Endpoint::new(*place, renamed.port(name).port));
            builder.connect(a, b, link.rate).unwrap();
        }
    }
    let topology_b = builder.build().unwrap();

    let mut lids: Vec<u16> = (1..2000).collect();
    lids.shuffle(&mut rng);
    for ((lid, _), raw) in world.plan.lids().zip(lids) {
        renamed.lids.insert(lid, Lid::from_wire(raw).unwrap());
    }
    let plan = other_plan(world, &topology_b, cluster, &renamed, &mut rng);
    let mut nodes = cluster.clone();
    for node in &mut nodes.nodes {
        let name = world.plan.adapter_port(node.port).unwrap().name;
        node.port = adapter_port(&topology_b, renamed.port(name));
    }
    (World { topology: topology_b, plan }, nodes)
}

fn builder_len(places: &BTreeMap<Guid, fabric_model::NodeIndex>) -> usize {
    places.len()
}

fn adapter_port(topology: &Topology, name: PortName) -> Guid {
    topology[topology.by_guid(name.node).unwrap()].port(name.port).unwrap().guid
}

fn other_plan(
    world: &World,
    topology: &Topology,
    cluster: &ClusterPlacement,
    renamed: &Renamed,
    rng: &mut Pcg64Mcg,
) -> FabricPlan {
    // The entries on the routes of the cluster.
    let mut passed: BTreeSet<(Guid, Lid)> = BTreeSet::new();
    for from in &cluster.nodes {
        for to in cluster.nodes.iter().filter(|to| to.port != from.port) {
            let (source, sink) =
                (world.plan.adapter_port(from.port).unwrap(), world.plan.adapter_port(to.port).unwrap());
            let mut at = source.peer.node;
            loop {
                passed.insert((at, sink.lid));
                let switch = world.plan.switch(at).unwrap();
                let peer = switch.port(switch.linear.exit(sink.lid).unwrap()).unwrap().peer;
                if peer == sink.name {
                    break;
                }
                at = peer.node;
            }
        }
    }
    let parts = world.plan.parts();
    let switches = parts.switches.into_iter().filter(|switch| renamed.guids.contains_key(&switch.guid));
    let switches = switches.map(|mut switch| {
        let physical = switch.guid;
        let mut exits = vec![0xff; 2000];
        for (lid, other) in &renamed.lids {
            let count = u8::try_from(switch.ports.len()).unwrap();
            let exit = switch.linear.exit(*lid);
            exits[usize::from(other.to_wire())] = match exit {
                Some(exit) if passed.contains(&(physical, *lid)) => {
                    renamed.port(PortName { node: physical, port: exit }).port.to_wire()
                }
                _ => rng.random_range(0..=count),
            };
        }
        switch.linear = Arc::new(LinearTable::from_exits(exits));
        (switch.guid, switch.port_guid) = (renamed.guids[&physical], renamed.guids[&physical]);
        switch.lid = renamed.lids[&switch.lid];
        let kept = switch.ports.iter().filter(|port| renamed.guids.contains_key(&port.peer.node));
        let mut ports: Vec<_> = kept.cloned().collect();
        for port in &mut ports {
            port.number = renamed.port(PortName { node: physical, port: port.number }).port;
            port.peer = renamed.port(port.peer);
            port.qos = port.qos.take().filter(|_| rng.random());
        }
        ports.sort_by_key(|port| port.number);
        switch.ports = ports.into();
        switch
    });
    let adapter_ports = parts.adapter_ports.into_iter().filter(|port| {
        renamed.guids.contains_key(&port.name.node) && renamed.guids.contains_key(&port.peer.node)
    });
    let adapter_ports = adapter_ports.map(|mut port| {
        port.name = renamed.port(port.name);
        port.guid = adapter_port(topology, port.name);
        port.peer = renamed.port(port.peer);
        port.lid = renamed.lids[&port.lid];
        port
    });
    let mut decisions = Decisions::default();
    let blue = &world.plan.decisions().clusters["blue"];
    let links = blue.links.iter().map(|grant| LinkGrant { port: renamed.port(grant.port), ..grant.clone() });
    decisions.clusters.insert(
        "blue".to_owned(),
        Arc::new(ClusterDecision { links: links.collect(), ports: Vec::new(), ..(**blue).clone() }),
    );
    let manager = ManagerPort { guid: Guid::from_wire(4711).unwrap(), lid: Lid::from_wire(1999).unwrap() };
    FabricPlan::from_parts(PlanParts {
        manager,
        switches: switches.collect(),
        adapter_ports: adapter_ports.collect(),
        partitions: Vec::new(),
        groups: Vec::new(),
        findings: Vec::new(),
        decisions,
    })
}

/// Every response to every query, and to some writes.
struct Transcript {
    program: Program,
    lines: Vec<String>,
}

impl Transcript {
    fn of(view: &mut View, time: f64) -> Vec<String> {
        let mut program = Program::on(view, "vm-0");
        program.now = second(time);
        let mut transcript = Self { program, lines: Vec::new() };
        transcript.read(view);
        transcript.ask(view);
        transcript.write(view);
        transcript.read(view);
        let judged = view.commit(second(time + 1.0)).cloned();
        transcript.lines.push(serde_json::to_string(&judged).unwrap());
        transcript.lines.push(format!("{:?} {:?}", view.aliases(), view.status()));
        transcript.lines
    }

    fn note(&mut self, what: &str, answer: Option<Mad>) {
        self.lines.push(format!("{what}: {:?}", answer.map(|mad| mad.0)));
    }

    fn read(&mut self, view: &mut View) {
        let found = world::explore(&mut self.program, view);
        self.lines.push(format!("{found:?}"));
        for (_, _, kind, route) in found {
            let mut get = |attribute, modifier: u32| {
                let answer = self.program.get(view, &route, attribute, modifier);
                self.lines.push(format!("{attribute:?} {modifier:#x} {:?}", answer.map(|mad| mad.0)));
            };
            let ports: u32 = if kind == NodeKind::Switch { 17 } else { 2 };
            for attribute in [
                Attribute::NODE_DESCRIPTION,
                Attribute::NODE_INFO,
                Attribute::SWITCH_INFO,
                Attribute::SM_INFO,
                Attribute::GUID_INFO,
            ] {
                get(attribute, 0);
            }
            for port in 0..ports {
                get(Attribute::PORT_INFO, port);
                get(Attribute::PKEY_TABLE, port << 16);
                get(Attribute::MLNX_EXT_PORT_INFO, port);
                for part in 1..5 {
                    get(Attribute::VL_ARBITRATION, part << 16 | port);
                }
                for output in 0..ports.min(9) {
                    get(Attribute::SL_TO_VL, port << 8 | output);
                }
            }
            for block in 0..17 {
                get(Attribute::LINEAR_FORWARDING, block);
                get(Attribute::MULTICAST_FORWARDING, block);
            }
        }
        for lid in (0..40).filter_map(Lid::from_wire) {
            for (class, attribute) in [
                (ManagementClass::SUBNET_LID, Attribute::NODE_INFO),
                (ManagementClass::PERFORMANCE, Attribute::PORT_COUNTERS_EXT),
            ] {
                let mad = Mad::new(class, Method::GET, attribute, 0);
                let answer = self.program.ask(view, mad, Some(lid));
                self.note("by lid", answer);
            }
        }
    }

    fn ask(&mut self, view: &mut View) {
        for raw in (0..0x40).chain([0xf3]) {
            for method in [Method::GET, Method::GET_TABLE, Method::SET, Method::DELETE] {
                for answer in self.program.query_all(view, method, Attribute(raw)) {
                    self.note(&format!("sa {raw:#x} {method:?}"), Some(answer));
                }
            }
        }
    }

    fn write(&mut self, view: &mut View) {
        for (name, _, route) in world::switches(&mut self.program, view) {
            let table = self.program.get(view, &route, Attribute::LINEAR_FORWARDING, 0).unwrap();
            let mut exits = *table.smp_data();
            exits[ForwardingBlock::ENTRIES - 1] = 1;
            let answer = self.program.set(view, &route, Attribute::LINEAR_FORWARDING, 0, exits);
            self.note(&name, answer);
        }
        let route = world::route_to(&mut self.program, view, "vm-2");
        let mut keys = PkeyBlock([None; 32]);
        keys.0[0] = ib_wire::Pkey::from_wire(0xffff);
        keys.0[1] = ib_wire::Pkey::from_wire(0x8042);
        let answer = self.program.set(view, &route, Attribute::PKEY_TABLE, 0, keys.encode());
        self.note("keys", answer);
    }
}

#[test]
fn worlds_with_equal_slices_look_the_same() {
    let world = first_world();
    let cluster = world.cluster(&HOSTS);
    let grown = world.cluster(&[0, 1, 5, 9, 14, 13]);
    let look = |world: &World, cluster: &ClusterPlacement, grown: &ClusterPlacement| {
        let mut view = View::new(world.slice(cluster), Names::default()).unwrap();
        let mut lines = Transcript::of(&mut view, 1.0);
        view.set_slice(second(5.0), world.slice(grown)).unwrap();
        lines.extend(Transcript::of(&mut view, 6.0));
        lines
    };
    let expected = look(&world, &cluster, &grown);
    assert!(expected.len() > 5_000, "{}", expected.len());
    for seed in 0..5 {
        // Everything on the routes of the grown cluster is kept, which includes those of the small one.
        let (other, renamed_grown) = other_world(&world, &grown, seed);
        let mut renamed = renamed_grown.clone();
        renamed.nodes.truncate(HOSTS.len());
        let seen = look(&other, &renamed, &renamed_grown);
        let differing = seen.iter().zip(&expected).find(|(seen, expected)| seen != expected);
        assert!(differing.is_none() && seen.len() == expected.len(), "seed {seed}: {differing:?}");
    }
}

#[test]
fn a_world_without_a_relevant_cable_looks_different() {
    let world = first_world();
    let cluster = world.cluster(&HOSTS);
    let (a, _) = world.slice(&cluster).cables().next().unwrap();
    let mut builder = TopologyBuilder::from(world.topology.clone());
    builder.disconnect(Endpoint::new(world.topology.by_guid(a.node).unwrap(), a.port)).unwrap();
    let less = World::of(builder.build().unwrap());
    let look = |world: &World| Transcript::of(&mut world.view(&HOSTS), 1.0);
    assert_ne!(look(&World::of(world.topology.clone())), look(&less));
}
