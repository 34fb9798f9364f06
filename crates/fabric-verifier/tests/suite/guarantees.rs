//! Every kind of violation of the ownership or the guarantee of a cluster is reported.

use std::collections::BTreeSet;
use std::sync::Arc;

use fabric_compiler::compile;
use fabric_model::decisions::ClusterDecision;
use fabric_model::generate::FatTree;
use fabric_model::intent::{LaneBuffer, PortCapability, PortName};
use fabric_model::plan::{LinearTable, PlanParts, PortQos};
use fabric_model::tenancy::{Bandwidth, Class, PairServiceLevel, SlMode};
use fabric_model::{Decisions, FabricPlan, Intents, Topology};
use fabric_verifier::{Finding, Rule, verify};
use ib_wire::{Guid, PortNum, ServiceLevel, VirtualLane, VlArbEntry};

use crate::world::{add_cluster, hosts, level};

/// Two clusters with hosts on different leaves, and the subnet manager.
struct World {
    tree: Topology,
    hosts: Vec<Guid>,
    intents: Intents,
    plan: FabricPlan,
}

/// Breaks the plan or the intents.
type Change = fn(&World, &mut Intents, &mut PlanParts);

/// Recognises the expected finding.
type Named = fn(&World, &Finding) -> bool;

impl World {
    fn new() -> Self {
        // So few cables between switches that clusters have to share some.
        let oversubscription = "3:1".parse().unwrap();
        let tree = FatTree { radix: 8, oversubscription, ..FatTree::with_hosts(16) }.generate().unwrap();
        let hosts = hosts(&tree);
        let mut intents = Intents::new(hosts[0]);
        let [a, b] = [[1, 2, 5, 9], [3, 6, 10, 13]].map(|places| places.map(|place| hosts[place]).to_vec());
        add_cluster(&mut intents, "a".to_owned(), a, 1_000_000_000, Some(1_000_000));
        add_cluster(&mut intents, "b".to_owned(), b, 500_000_000, None);
        let plan = compile(&tree, &intents, &Decisions::default()).unwrap();
        Self { tree, hosts, intents, plan }
    }

    fn cluster(&self, name: &str) -> &ClusterDecision {
        &self.plan.decisions().clusters[name]
    }

    /// A port between switches on which both clusters hold a lane.
    fn shared_port(&self) -> PortName {
        let held = |name: &str, port: PortName| self.cluster(name).links.iter().any(|link| link.port == port);
        let ports = self.cluster("a").links.iter().map(|link| link.port);
        let is_inside = |port: &PortName| self.plan.switch(port.node).is_some();
        ports.filter(is_inside).find(|port| held("b", *port)).unwrap()
    }

    fn lane(&self, name: &str, port: PortName) -> VirtualLane {
        self.cluster(name).links.iter().find(|link| link.port == port).unwrap().lane
    }

    /// A service level for every pair of switches of a cluster, including each switch with itself.
    fn pairs(&self, name: &str, service_level: ServiceLevel) -> Vec<PairServiceLevel> {
        let ports = self.cluster(name).ports.iter();
        let switches = ports.map(|port| self.plan.adapter_port(*port).unwrap().peer.node);
        let switches: BTreeSet<Guid> = switches.collect();
        let pairs = switches.iter().flat_map(|a| switches.range(a..).map(move |b| (*a, *b)));
        pairs.map(|switches| PairServiceLevel { switches, service_level }).collect()
    }

    /// The adapter of the first host of a cluster.
    fn adapter(&self, name: &str) -> PortName {
        self.plan.adapter_port(self.cluster(name).ports[0]).unwrap().name
    }
}

fn sharing_of(parts: &mut PlanParts, name: PortName) -> &mut Option<Arc<PortQos>> {
    if let Some(port) = parts.adapter_ports.iter_mut().find(|port| port.name == name) {
        return &mut port.qos;
    }
    let switch = parts.switches.iter_mut().find(|switch| switch.guid == name.node).unwrap();
    &mut switch.port_mut(name.port).unwrap().qos
}

fn change_sharing(parts: &mut PlanParts, name: PortName, change: impl FnOnce(&mut PortQos)) {
    let sharing = sharing_of(parts, name);
    let mut changed = PortQos::clone(sharing.as_ref().unwrap());
    change(&mut changed);
    *sharing = Some(Arc::new(changed));
}

fn decision<'a>(parts: &'a mut PlanParts, name: &str) -> &'a mut ClusterDecision {
    Arc::make_mut(parts.decisions.clusters.get_mut(name).unwrap())
}

fn lane(raw: u8) -> VirtualLane {
    VirtualLane::from_wire(raw).unwrap()
}

/// Every kind of finding with a change that leads to it.
const CHANGES: &[(Rule, Change, Named)] = &[
    (
        Rule::Ownership,
        |world, _, parts| {
            change_sharing(parts, world.shared_port(), |sharing| {
                sharing.otherwise.0[15] = VirtualLane::MANAGEMENT;
            });
        },
        |world, found| {
            matches!(found, Finding::ManagementLaneDiffers { port, input: None, sl, lane }
                if *port == world.shared_port() && *sl == level(15) && *lane == VirtualLane::MANAGEMENT)
        },
    ),
    (
        Rule::Ownership,
        |world, _, parts| {
            change_sharing(parts, world.adapter("a"), |sharing| sharing.otherwise.0[15] = lane(0));
        },
        |world, found| {
            matches!(found, Finding::ManagementLaneDiffers { port, lane: to, .. }
                if *port == world.adapter("a") && *to == lane(0))
        },
    ),
    (
        Rule::Ownership,
        |world, _, parts| {
            change_sharing(parts, world.shared_port(), |sharing| {
                sharing.by_input.values_mut().for_each(|map| map.0[0] = lane(1));
            });
        },
        |world, found| {
            matches!(found, Finding::ManagementLaneDiffers { port, input: Some(_), sl, lane: to }
                if *port == world.shared_port() && *sl == level(0) && *to == lane(1))
        },
    ),
    (
        Rule::Ownership,
        |world, _, parts| {
            let port = world.shared_port();
            let links = &mut decision(parts, "a").links;
            links.iter_mut().find(|link| link.port == port).unwrap().service_levels.push(level(15));
        },
        |world, found| {
            matches!(found, Finding::ManagementGranted { port, cluster }
                if *port == world.shared_port() && cluster == "a")
        },
    ),
    (
        Rule::Ownership,
        |world, _, parts| {
            let port = world.shared_port();
            let links = &mut decision(parts, "b").links;
            links.iter_mut().find(|link| link.port == port).unwrap().lane = lane(1);
        },
        |world, found| {
            matches!(found, Finding::ManagementGranted { port, cluster }
                if *port == world.shared_port() && cluster == "b")
        },
    ),
    (
        Rule::Sharing,
        |world, _, parts| {
            change_sharing(parts, world.shared_port(), |sharing| {
                sharing.low.retain(|entry| entry.lane != lane(1));
            });
        },
        |world, found| {
            matches!(found, Finding::LaneWithoutWeight { port, sl, .. }
                if *port == world.shared_port() && *sl == level(15))
        },
    ),
    (
        Rule::Sharing,
        |world, _, parts| {
            change_sharing(parts, world.adapter("b"), |sharing| {
                sharing.high = vec![VlArbEntry { lane: lane(0), weight: 1 }];
            });
        },
        |world, found| {
            matches!(found, Finding::HighPriorityWeight { port, index: 0, lane: to }
                if *port == world.adapter("b") && *to == lane(0))
        },
    ),
    (
        Rule::Guarantees,
        |world, intents, _| {
            // One byte less than what 1 Gb/s sends in a microsecond plus one packet.
            let peer = world.plan.adapter_port(world.cluster("a").ports[0]).unwrap().peer;
            let lane_buffer = Some(LaneBuffer { bytes: 125 + 4222 - 1, round_trip_ns: 1000 });
            let port = PortCapability { lane_buffer, ..intents.capabilities.port(peer) };
            intents.capabilities.ports.insert(peer, port);
        },
        |world, found| {
            matches!(found, Finding::BufferTooSmall { cluster, port, needed: 4347, held: 4346 }
                if cluster == "a" && *port == world.adapter("a"))
        },
    ),
    (
        Rule::Ownership,
        |_, intents, _| intents.clusters.push(intents.clusters[0].clone()),
        |_, found| matches!(found, Finding::DuplicateCluster { cluster } if cluster == "a"),
    ),
    (
        Rule::Ownership,
        |_, intents, parts| intents.capabilities.adaptive_routing.extend([parts.switches[0].guid]),
        |_, found| matches!(found, Finding::RoutedAdaptively { .. }),
    ),
    (
        Rule::Ownership,
        |_, intents, _| drop(intents.clusters.pop()),
        |_, found| matches!(found, Finding::ClusterUnwanted { cluster } if cluster == "b"),
    ),
    (
        Rule::Ownership,
        |_, intents, _| intents.clusters[0].class = Class::BestEffort,
        |_, found| matches!(found, Finding::ClusterUnwanted { cluster } if cluster == "a"),
    ),
    (
        Rule::Ownership,
        |world, intents, _| intents.clusters[1].ports.push(world.hosts[5]),
        |world, found| {
            matches!(found, Finding::PortShared { port, first, second }
                if *port == world.hosts[5] && first == "a" && second == "b")
        },
    ),
    (
        Rule::Ownership,
        |world, intents, _| {
            let more = fabric_model::intent::Member {
                selector: fabric_model::intent::MemberSelector::Port(world.hosts[5]),
                role: fabric_model::intent::Role::Full,
                placement: fabric_model::intent::PkeyPlacement::Anywhere,
            };
            intents.partitions[1].members.push(more);
        },
        |world, found| {
            matches!(found, Finding::PartitionShared { first_port, second_port, .. }
                if *first_port == world.hosts[5] || *second_port == world.hosts[5])
        },
    ),
    (
        Rule::Ownership,
        |world, _, parts| {
            let (port, lane) = (world.shared_port(), world.lane("b", world.shared_port()));
            let links = &mut decision(parts, "a").links;
            links.iter_mut().find(|link| link.port == port).unwrap().lane = lane;
        },
        |world, found| matches!(found, Finding::LaneShared { port, .. } if *port == world.shared_port()),
    ),
    (
        Rule::Ownership,
        |world, _, parts| {
            let (port, other) = (world.shared_port(), world.cluster("b").service_level().unwrap());
            let links = &mut decision(parts, "a").links;
            links.iter_mut().find(|link| link.port == port).unwrap().service_levels.push(other);
        },
        |world, found| matches!(found, Finding::ServiceLevelShared { port, .. } if *port == world.shared_port()),
    ),
    (
        Rule::Ownership,
        |_, _, parts| decision(parts, "a").links[0].service_levels.push(ServiceLevel::default()),
        |world, found| {
            matches!(found, Finding::BestEffortGranted { port, .. }
                if *port == world.cluster("a").links[0].port)
        },
    ),
    (
        Rule::Ownership,
        |world, _, parts| *sharing_of(parts, world.shared_port()) = None,
        |world, found| matches!(found, Finding::SharingMissing { port } if *port == world.shared_port()),
    ),
    (
        Rule::Ownership,
        |world, _, parts| *sharing_of(parts, world.adapter("a")) = None,
        |world, found| matches!(found, Finding::SharingMissing { port } if *port == world.adapter("a")),
    ),
    // A service level without owner, one that another cluster holds on the input link, and one at an adapter without
    // any.
    (
        Rule::Ownership,
        |world, _, parts| {
            let lane = world.lane("a", world.shared_port());
            change_sharing(parts, world.shared_port(), |sharing| sharing.otherwise.0[9] = lane);
        },
        |world, found| {
            matches!(found, Finding::ServiceLevelNotGranted { port, input: None, sl, here: None, .. }
                if *port == world.shared_port() && *sl == level(9))
        },
    ),
    (
        Rule::Ownership,
        |world, _, parts| {
            let port = world.shared_port();
            let (sl, lane) = (world.cluster("a").service_level().unwrap(), world.lane("a", port));
            change_sharing(parts, port, |sharing| {
                let inputs: Vec<PortNum> = sharing.by_input.keys().copied().collect();
                for input in inputs {
                    let map = sharing.by_input.get_mut(&input).unwrap();
                    map.0[sl.index()] = lane;
                }
            });
        },
        |world, found| {
            matches!(found, Finding::ServiceLevelNotGranted { port, input: Some(_), here: Some(here), there, .. }
                if *port == world.shared_port() && here == "a" && there.as_deref() != Some("a"))
        },
    ),
    (
        Rule::Ownership,
        |world, _, parts| {
            let name = world.plan.adapter_port(world.hosts[15]).unwrap().name;
            change_sharing(parts, name, |sharing| sharing.otherwise.0[1] = lane(1));
        },
        |world, found| {
            let name = world.plan.adapter_port(world.hosts[15]).unwrap().name;
            matches!(found, Finding::ServiceLevelNotGranted { port, there: None, .. } if *port == name)
        },
    ),
    // Service level 0 in a cluster's lane, and a cluster's service level in the lane of another.
    (
        Rule::Ownership,
        |world, _, parts| {
            let lane = world.lane("a", world.shared_port());
            change_sharing(parts, world.shared_port(), |sharing| sharing.otherwise.0[0] = lane);
        },
        |world, found| {
            matches!(found, Finding::ForeignLane { port, owner: Some(owner), sender: None, .. }
                if *port == world.shared_port() && owner == "a")
        },
    ),
    (
        Rule::Ownership,
        |world, _, parts| {
            let port = world.shared_port();
            let (sl, lane) = (world.cluster("a").service_level().unwrap(), world.lane("b", port));
            change_sharing(parts, port, |sharing| {
                let maps = sharing.by_input.values_mut();
                maps.filter(|map| map.lane(sl) != VirtualLane::MANAGEMENT)
                    .for_each(|map| map.0[sl.index()] = lane);
            });
        },
        |world, found| {
            matches!(found, Finding::ForeignLane { port, owner: Some(owner), sender: Some(sender), .. }
                if *port == world.shared_port() && owner == "b" && sender == "a")
        },
    ),
    (
        Rule::Guarantees,
        |_, _, parts| drop(parts.decisions.clusters.remove("b")),
        |_, found| matches!(found, Finding::GuaranteeMissing { cluster } if cluster == "b"),
    ),
    (
        Rule::Guarantees,
        |_, intents, _| {
            let bandwidth = Bandwidth::from_bits_per_s(600_000_000);
            intents.clusters[1].class = Class::Guaranteed { bandwidth, latency_ns: None };
        },
        |_, found| matches!(found, Finding::GuaranteeMissing { cluster } if cluster == "b"),
    ),
    (
        Rule::Guarantees,
        |world, intents, parts| {
            let absent = Guid::from_wire(0xdead).unwrap();
            assert!(world.tree.by_port_guid(absent).is_none());
            intents.clusters[1].ports.push(absent);
            decision(parts, "b").ports.push(absent);
        },
        |_, found| matches!(found, Finding::ClusterPortMissing { port, .. } if port.to_wire() == 0xdead),
    ),
    (
        Rule::Guarantees,
        |_, _, parts| decision(parts, "a").links[0].service_levels = vec![level(14)],
        |_, found| matches!(found, Finding::ServiceLevelMissing { cluster, between: None } if cluster == "a"),
    ),
    (
        Rule::Guarantees,
        |_, _, parts| {
            let mut more = decision(parts, "a").links[0].clone();
            more.port.port = PortNum::new(77).unwrap();
            decision(parts, "a").links.push(more);
        },
        |_, found| matches!(found, Finding::GrantWithoutLink { port, .. } if port.port.to_wire() == 77),
    ),
    (
        Rule::Guarantees,
        |world, _, parts| {
            let mut more = decision(parts, "a").links[0].clone();
            more.port = world.plan.adapter_port(world.hosts[15]).unwrap().name;
            decision(parts, "a").links.push(more);
        },
        |world, found| {
            let name = world.plan.adapter_port(world.hosts[15]).unwrap().name;
            matches!(found, Finding::GrantOnForeignPort { port, .. } if *port == name)
        },
    ),
    (
        Rule::Guarantees,
        |world, _, parts| decision(parts, "a").links.retain(|link| link.port != world.shared_port()),
        |world, found| {
            matches!(found, Finding::GrantMissing { cluster, port, .. }
                if cluster == "a" && *port == world.shared_port())
        },
    ),
    (
        Rule::Guarantees,
        |world, _, parts| {
            let to = world.plan.adapter_port(world.hosts[9]).unwrap();
            for switch in &mut parts.switches {
                let mut exits = switch.linear.to_exits();
                exits[usize::from(to.lid.to_wire())] = 0xff;
                switch.linear = Arc::new(LinearTable::from_exits(exits));
            }
        },
        |world, found| {
            matches!(found, Finding::ClusterPortUnreached { cluster, to, .. }
                if cluster == "a" && *to == world.hosts[9])
        },
    ),
    (
        Rule::Guarantees,
        |world, _, parts| {
            let sl = world.cluster("a").service_level().unwrap();
            change_sharing(parts, world.shared_port(), |sharing| {
                let maps = sharing.by_input.values_mut();
                maps.for_each(|map| map.0[sl.index()] = VirtualLane::MANAGEMENT);
            });
        },
        |world, found| {
            matches!(found, Finding::ServiceLevelDiscarded { cluster, at, input: Some(_), .. }
                if cluster == "a" && *at == world.shared_port())
        },
    ),
    (
        Rule::Guarantees,
        |world, _, parts| {
            let sl = world.cluster("a").service_level().unwrap();
            change_sharing(parts, world.adapter("a"), |sharing| {
                sharing.otherwise.0[sl.index()] = VirtualLane::MANAGEMENT;
            });
        },
        |world, found| {
            matches!(found, Finding::ServiceLevelDiscarded { cluster, at, input: None, .. }
                if cluster == "a" && *at == world.adapter("a"))
        },
    ),
    (
        Rule::Guarantees,
        |world, intents, parts| {
            intents.clusters[0].sl_mode = SlMode::Path;
            let sl = world.cluster("a").service_level().unwrap();
            let decision = decision(parts, "a");
            decision.sl_mode = SlMode::Path;
            decision.pairs = world.pairs("a", sl);
            decision.pairs.remove(1);
        },
        |world, found| {
            let switches = world.pairs("a", level(1))[1].switches;
            matches!(found, Finding::ServiceLevelMissing { cluster, between: Some(between) }
                if cluster == "a" && *between == switches)
        },
    ),
    (
        Rule::Guarantees,
        |world, intents, parts| {
            intents.clusters[0].sl_mode = SlMode::Path;
            let sl = world.cluster("a").service_level().unwrap();
            let decision = decision(parts, "a");
            decision.sl_mode = SlMode::Path;
            decision.pairs = world.pairs("a", sl);
            decision.pairs[1].service_level = level(14);
        },
        |world, found| {
            let switches = world.pairs("a", level(1))[1].switches;
            let switch = |port: &Guid| world.plan.adapter_port(*port).unwrap().peer.node;
            matches!(found, Finding::ServiceLevelDiscarded { cluster, sl, from, to, .. } if cluster == "a"
                && *sl == level(14) && PairServiceLevel::between(switch(from), switch(to)) == switches)
        },
    ),
    (
        Rule::Guarantees,
        |world, _, parts| {
            let lane = world.lane("a", world.shared_port());
            change_sharing(parts, world.shared_port(), |sharing| {
                sharing.low.retain(|entry| entry.lane != lane);
            });
        },
        |world, found| {
            matches!(found, Finding::LaneUnserved { cluster, port, .. }
                if cluster == "a" && *port == world.shared_port())
        },
    ),
    (
        Rule::Guarantees,
        |world, _, parts| {
            let lane = world.lane("a", world.shared_port());
            change_sharing(parts, world.shared_port(), |sharing| {
                let own = sharing.low.iter_mut().filter(|entry| entry.lane == lane);
                own.for_each(|entry| entry.weight = 1);
            });
        },
        |world, found| {
            matches!(found, Finding::ShareTooSmall { cluster, port, needed, given, .. }
                if cluster == "a" && *port == world.shared_port() && given < needed)
        },
    ),
    // Entries of other lanes in between delay packets, although more weight keeps the share.
    (
        Rule::Guarantees,
        |world, _, parts| {
            let lane = world.lane("a", world.shared_port());
            change_sharing(parts, world.shared_port(), |sharing| {
                let other = sharing.low[0].lane;
                let other = if other == lane { sharing.low[1].lane } else { other };
                sharing.low = vec![VlArbEntry { lane: other, weight: 255 }; 32];
                sharing.low.extend(vec![VlArbEntry { lane, weight: 255 }; 32]);
            });
        },
        |world, found| {
            matches!(found, Finding::LatencyExceeded { cluster, bound_ns, guaranteed_ns, waits, .. }
                if cluster == "a" && bound_ns > guaranteed_ns
                    && waits.iter().any(|wait| wait.port == world.shared_port() && wait.entry == 32))
        },
    ),
];

#[test]
fn violated_guarantees_are_reported_with_the_entry() {
    let world = World::new();
    assert_eq!(verify(&world.tree, &world.intents, &world.plan), [], "the control");
    for (place, (rule, change, is_named)) in CHANGES.iter().enumerate() {
        let (mut intents, mut parts) = (world.intents.clone(), world.plan.parts().clone());
        change(&world, &mut intents, &mut parts);
        let found = verify(&world.tree, &intents, &FabricPlan::from_parts(parts));
        let named = found.iter().find(|finding| is_named(&world, finding));
        let named = named.unwrap_or_else(|| panic!("change {place} is not reported by {found:#?}"));
        assert_eq!(named.rule(), *rule);
        let text = named.to_string();
        assert!(!text.contains(" { "), "{text}");
    }
}

#[test]
fn an_acknowledged_violation_is_not_reported() {
    let world = World::new();
    let mut parts = world.plan.parts().clone();
    // As the compiler leaves it after the loss of a cable: no share, no service level, and the plan acknowledges it.
    let mut intents = world.intents.clone();
    intents.clusters.pop();
    let without = compile(&world.tree, &intents, &Decisions::default()).unwrap();
    parts.switches = without.parts().switches.clone();
    for (port, other) in parts.adapter_ports.iter_mut().zip(without.adapter_ports()) {
        port.qos = other.qos.clone();
    }
    parts.decisions.clusters.insert("a".to_owned(), without.decisions().clusters["a"].clone());
    for (switch, own) in parts.switches.iter_mut().zip(world.plan.switches()) {
        for (port, own) in Arc::make_mut(&mut switch.ports).iter_mut().zip(own.ports.iter()) {
            port.enforcement = own.enforcement.clone();
        }
    }
    decision(&mut parts, "b").links.clear();
    let silent = verify(&world.tree, &world.intents, &FabricPlan::from_parts(parts.clone()));
    assert!(silent.iter().any(|found| matches!(found, Finding::GrantMissing { .. })), "{silent:?}");
    let reason = "a cable is lost".to_owned();
    parts
        .findings
        .push(fabric_model::plan::PlanFinding::GuaranteeViolated { cluster: "b".to_owned(), reason });
    assert_eq!(verify(&world.tree, &world.intents, &FabricPlan::from_parts(parts)), []);
}
