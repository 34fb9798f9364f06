//! Fabrics of every kind, random intents for them, and plans with lanes on their links.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "every test binary uses its own part")]

pub mod arbiter;
pub mod mutant;
pub mod walk;

use std::collections::BTreeMap;
use std::sync::Arc;

use fabric_compiler::compile;
use fabric_model::generate::{DragonflyPlus, FatTree, FatTreeSize, RandomFabric, Torus, without_links};
use fabric_model::intent::{
    ClusterIntent, Intents, Ipoib, Member, MemberSelector, PartitionIntent, PkeyPlacement, PortName, Role,
};
use fabric_model::plan::{PlanParts, PortQos};
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Decisions, Endpoint, FabricPlan, Topology};
use ib_wire::{Guid, PartitionNumber, PortNum, ServiceLevel, SlToVl, VirtualLane, VlArbEntry};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

pub fn dice(seed: u64) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(seed)
}

/// A random number below `count`.
pub fn below(dice: &mut Pcg64Mcg, count: usize) -> usize {
    dice.random_range(0..count)
}

pub fn one<T: Copy>(dice: &mut Pcg64Mcg, things: &[T]) -> T {
    things[below(dice, things.len())]
}

/// A small fabric of a random kind with some cables missing.
pub fn fabric(dice: &mut Pcg64Mcg) -> Topology {
    let small = |size| FatTree { radix: 8, ..FatTree::new(size) };
    let topology = match below(dice, 5) {
        0 => small(FatTreeSize::Leaves(2 + below(dice, 5) as u16)).generate(),
        1 => small(FatTreeSize::Pods(2 + below(dice, 2) as u16)).generate(),
        2 => {
            let shape: &[u16] = [&[4, 3][..], &[3, 3][..], &[2, 2, 3][..], &[5][..]][below(dice, 4)];
            let wrap = below(dice, 2) == 0;
            Torus { wrap, hosts_per_switch: 1 + below(dice, 2) as u8, ..Torus::new(shape) }.generate()
        }
        3 => {
            let fly = DragonflyPlus::new(2 + below(dice, 2) as u16);
            DragonflyPlus { leaves: 2, spines: 2, hosts_per_leaf: 2, global_links: 2, ..fly }.generate()
        }
        _ => {
            let switches = 3 + below(dice, 10) as u32;
            let degree = (2 + below(dice, 3) as u8).min(switches as u8 - 1);
            let hosts_per_switch = 1 + below(dice, 3) as u8;
            RandomFabric { hosts_per_switch, ..RandomFabric::new(switches, degree, dice.random()) }.generate()
        }
    }
    .unwrap();
    let cables =
        topology.links().filter(|l| topology[l.a.node].is_switch() && topology[l.b.node].is_switch());
    let spare = cables.count() + 1 - topology.switches().count();
    let missing = below(dice, 4).min(spare);
    without_links(topology, missing, dice.random()).unwrap()
}

pub fn hosts(topology: &Topology) -> Vec<Guid> {
    let cabled = |(index, node): (_, &fabric_model::Node)| {
        let (number, _) = node.cabled_ports().next()?;
        Some(topology.port(Endpoint::new(index, number)).unwrap().guid)
    };
    topology.end_nodes().filter_map(cabled).collect()
}

/// Random partitions: with and without numbers, with every role, some carrying IP.
pub fn random_intents(dice: &mut Pcg64Mcg, topology: &Topology) -> Intents {
    let hosts = hosts(topology);
    let mut intents = Intents::new(one(dice, &hosts));
    if below(dice, 5) == 0 {
        intents.manager = topology.switches().next().unwrap().1.guid;
    }
    intents.capabilities.default_switch.own_pkeys = 32;
    for place in 0..below(dice, 7) {
        let number =
            (below(dice, 2) == 0).then(|| PartitionNumber::from_wire(one(dice, &[1, 2, 3, 0x101])).unwrap());
        let mut members: Vec<Member> = Vec::new();
        for _ in 0..1 + below(dice, 8) {
            let who = match below(dice, 24) {
                0 => MemberSelector::All,
                1 => MemberSelector::AllAdapters,
                2 => MemberSelector::AllSwitches,
                3 => MemberSelector::Manager,
                _ => MemberSelector::Port(one(dice, &hosts)),
            };
            let place = if below(dice, 3) == 0 { PkeyPlacement::First } else { PkeyPlacement::Anywhere };
            members.push(Member {
                selector: who,
                role: one(dice, &[Role::Full, Role::Full, Role::Limited, Role::Both]),
                placement: place,
            });
        }
        let ipoib = (below(dice, 2) == 0).then(Ipoib::default);
        let name = if below(dice, 12) == 0 { "Default".to_owned() } else { format!("p{}", place % 4) };
        intents.partitions.push(PartitionIntent { name, number, members, ipoib });
    }
    intents
}

/// Random partitions of a site, and of tenants on the ports that were handed over to them.
pub fn brownfield(dice: &mut Pcg64Mcg, topology: &Topology) -> Intents {
    let hosts = hosts(topology);
    let mut intents = random_intents(dice, topology);
    let manager = intents.manager;
    let is_handed_over = |(place, guid): &(usize, &Guid)| place % 2 == 1 && **guid != manager;
    let handed_over: Vec<Guid> =
        hosts.iter().enumerate().filter(is_handed_over).map(|(_, guid)| *guid).collect();
    for partition in &mut intents.partitions {
        let is_default = partition.number == Some(PartitionNumber::DEFAULT)
            || partition.number.is_none() && partition.name == "Default";
        partition.members.retain(|member| match member.selector {
            MemberSelector::Port(guid) => !is_default || !handed_over.contains(&guid),
            _ => true,
        });
        for member in &mut partition.members {
            if matches!(member.selector, MemberSelector::Port(guid) if handed_over.contains(&guid)) {
                member.role = Role::Limited;
            }
        }
    }
    let site_member = Member {
        selector: MemberSelector::AllAdapters,
        role: Role::Full,
        placement: PkeyPlacement::Anywhere,
    };
    intents.partitions.push(PartitionIntent {
        name: "site".to_owned(),
        number: PartitionNumber::from_wire(0x20),
        members: vec![site_member],
        ipoib: None,
    });
    for (ports, raw) in handed_over.chunks(2 + below(dice, 3)).zip(0x200u16..) {
        let number = PartitionNumber::from_wire(raw).unwrap();
        let member = |guid: &Guid| Member {
            selector: MemberSelector::Port(*guid),
            role: one(dice, &[Role::Full, Role::Full, Role::Limited, Role::Both]),
            placement: PkeyPlacement::FirstIfAlone,
        };
        let members = ports.iter().map(member).collect();
        let ipoib = Some(Ipoib::default());
        intents.partitions.push(PartitionIntent {
            name: format!("t{raw}"),
            number: Some(number),
            members,
            ipoib,
        });
        intents.owners.insert(number, [(format!("t{raw}"), ports[0])].into());
    }
    intents.handed_over = handed_over.into_iter().collect();
    if below(dice, 3) > 0 {
        open_default(&mut intents);
    }
    intents
}

/// Makes all ports of the site full members of the default partition.
pub fn open_default(intents: &mut Intents) {
    let member =
        Member { selector: MemberSelector::All, role: Role::Full, placement: PkeyPlacement::Anywhere };
    intents.partitions.push(PartitionIntent {
        name: "Default".to_owned(),
        number: Some(PartitionNumber::DEFAULT),
        members: vec![member],
        ipoib: Some(Ipoib::default()),
    });
}

/// Random partitions that several clusters may be in: all members are limited.
pub fn tenants(dice: &mut Pcg64Mcg, topology: &Topology) -> Intents {
    let mut intents = random_intents(dice, topology);
    for partition in &mut intents.partitions {
        partition.members.iter_mut().for_each(|member| member.role = Role::Limited);
    }
    intents
}

/// Adds a guaranteed cluster with a partition of its own.
pub fn add_cluster(
    intents: &mut Intents,
    name: String,
    ports: Vec<Guid>,
    bandwidth: u64,
    latency_ns: Option<u64>,
) {
    let member = |guid: &Guid| Member {
        selector: MemberSelector::Port(*guid),
        role: Role::Full,
        placement: PkeyPlacement::First,
    };
    let members = ports.iter().map(member).collect();
    intents.partitions.push(PartitionIntent { name: name.clone(), number: None, members, ipoib: None });
    let class = Class::Guaranteed { bandwidth: Bandwidth::from_bits_per_s(bandwidth), latency_ns };
    intents.clusters.push(ClusterIntent { name, ports, class, sl_mode: SlMode::Cluster });
}

/// Gives the last cluster one service level, or one for each pair of switches.
pub fn set_random_mode(dice: &mut Pcg64Mcg, intents: &mut Intents) {
    if let Some(cluster) = intents.clusters.last_mut() {
        cluster.sl_mode = one(dice, &[SlMode::Cluster, SlMode::Path]);
    }
}

/// A few guaranteed clusters on random ports, as far as the fabric admits them, and the plan.
pub fn guaranteed(dice: &mut Pcg64Mcg, topology: &Topology) -> (Intents, FabricPlan) {
    let mut intents = tenants(dice, topology);
    let mut plan = planned(topology, &intents);
    let mut free = hosts(topology);
    for place in 0..1 + below(dice, 4) {
        let count = (2 + below(dice, 3)).min(free.len());
        let ports: Vec<Guid> = (0..count).map(|_| free.swap_remove(below(dice, free.len()))).collect();
        if ports.len() < 2 {
            break;
        }
        let mut more = intents.clone();
        let bandwidth = one(dice, &[0, 100_000_000, 2_000_000_000, 5_000_000_000]);
        let latency_ns = (below(dice, 2) == 0).then_some(1_000_000);
        add_cluster(&mut more, format!("c{place}"), ports, bandwidth, latency_ns);
        set_random_mode(dice, &mut more);
        if let Ok(admitted) = compile(topology, &more, &Decisions::default()) {
            (intents, plan) = (more, admitted);
        }
    }
    (intents, plan)
}

pub fn planned(topology: &Topology, intents: &Intents) -> FabricPlan {
    compile(topology, intents, &Decisions::default()).unwrap()
}

/// Data lanes of the links of generated fabrics.
const LANES: u8 = 8;

/// A plan in which some clusters of hosts have a service level of their own, granted hop by hop along their routes.
pub fn shared(dice: &mut Pcg64Mcg, topology: &Topology, plan: &FabricPlan) -> FabricPlan {
    let lane = |raw| VirtualLane::from_wire(raw).unwrap();
    let mut base = SlToVl([VirtualLane::MANAGEMENT; 16]);
    base.0[0] = lane(0);
    let ports = plan.switches().flat_map(|switch| switch.ports.iter().map(|port| (switch.guid, port.number)));
    let mut exits: BTreeMap<PortName, PortQos> = (ports.map(|(node, port)| PortName { node, port }))
        .chain(plan.adapter_ports().map(|port| port.name))
        .map(|name| {
            (name, PortQos { by_input: BTreeMap::new(), otherwise: base, low: Vec::new(), high: Vec::new() })
        })
        .collect();
    let hosts: Vec<Guid> = plan.adapter_ports().map(|port| port.guid).collect();
    for cluster in 1..=3u8 {
        let own = lane(1 + cluster % (LANES - 1));
        let members: Vec<Guid> = (0..2 + below(dice, 3)).map(|_| one(dice, &hosts)).collect();
        for a in &members {
            let from = plan.adapter_port(*a).unwrap();
            exits.get_mut(&from.name).unwrap().otherwise.0[usize::from(cluster)] = own;
            for b in members.iter().filter(|b| *b != a) {
                let lid = plan.adapter_port(*b).unwrap().lid;
                let mut end = topology.peer(topology.by_port_guid(*a).unwrap()).unwrap();
                while topology[end.node].is_switch() {
                    let node = topology[end.node].guid;
                    let exit = plan.switch(node).unwrap().linear.exit(lid).unwrap();
                    let sharing = exits.get_mut(&PortName { node, port: exit }).unwrap();
                    sharing.by_input.entry(end.port).or_insert(base).0[usize::from(cluster)] = own;
                    end = topology.peer(Endpoint::new(end.node, exit)).unwrap();
                }
            }
        }
    }
    for sharing in exits.values_mut() {
        let used = (0..LANES).map(lane).filter(|lane| {
            let maps = sharing.by_input.values().chain([&sharing.otherwise]);
            maps.into_iter().any(|map| map.0.contains(lane))
        });
        sharing.low = used.map(|lane| VlArbEntry { lane, weight: dice.random_range(1..=255) }).collect();
    }
    let mut parts: PlanParts = plan.parts().clone();
    for switch in &mut parts.switches {
        for port in Arc::make_mut(&mut switch.ports) {
            let name = PortName { node: switch.guid, port: port.number };
            port.qos = exits.remove(&name).map(Arc::new);
        }
    }
    for port in &mut parts.adapter_ports {
        port.qos = exits.remove(&port.name).map(Arc::new);
    }
    rebuilt(parts, plan)
}

/// A plan from changed parts that keeps the basis of the original.
pub fn rebuilt(parts: PlanParts, plan: &FabricPlan) -> FabricPlan {
    let changed = FabricPlan::from_parts(parts);
    match plan.basis() {
        Some(basis) => changed.with_basis(basis),
        None => changed,
    }
}

pub fn level(raw: u8) -> ServiceLevel {
    ServiceLevel::from_wire(raw).unwrap()
}

pub fn number(raw: u8) -> PortNum {
    PortNum::new(raw).unwrap()
}
