//! Ports that do not isolate tenants or do not divide their lanes, and links that are slower than they could be.

use std::sync::Arc;

use fabric_compiler::tenancy::admission::Refusal;
use fabric_compiler::{CompileError, GuaranteeError, Planner, compile, partitions_conf, recompile};
use fabric_model::generate::FatTree;
use fabric_model::intent::{ClusterIntent, PortCapability, PortName, UnenforcedPorts};
use fabric_model::plan::{Enforcement, PlanFinding};
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Decisions, Endpoint, Intents, Topology, TopologyBuilder};
use fabric_verifier::verify;
use ib_wire::{Guid, PortNum};

/// A fabric, the ports of its hosts, and intents with a partition of all.
fn world(radix: u8, count: u32) -> (Topology, Vec<Guid>, Intents) {
    let topology = FatTree { radix, ..FatTree::with_hosts(count) }.generate().unwrap();
    let hosts: Vec<Guid> =
        topology.end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect();
    let mut intents = Intents::new(hosts[0]);
    intents.partitions = partitions_conf::parse("blue=1 : ALL_CAS=full;").unwrap();
    (topology, hosts, intents)
}

/// The port of a host, and the switch port in front of it.
fn link(topology: &Topology, host: Guid) -> [PortName; 2] {
    let end = topology.by_port_guid(host).unwrap();
    [end, topology.peer(end).unwrap()].map(|end| PortName { node: topology[end.node].guid, port: end.port })
}

fn lack(intents: &mut Intents, port: PortName, isolates: bool, divides_lanes: bool) {
    let capability = PortCapability { isolates, divides_lanes, ..PortCapability::default() };
    intents.capabilities.ports.insert(port, capability);
}

#[test]
fn hosts_that_a_port_or_a_switch_does_not_isolate_stay_closed() {
    for (radix, count) in [(4, 4), (8, 16), (6, 54)] {
        let (topology, hosts, intents) = world(radix, count);
        let control = compile(&topology, &intents, &Decisions::default()).unwrap();
        assert_eq!((control.adapter_ports().count(), control.findings().len()), (hosts.len(), 0));
        let victim = *hosts.last().unwrap();
        let [own, leaf] = link(&topology, victim);
        let switch = PortName { port: PortNum::MANAGEMENT, ..leaf };
        let behind = hosts.iter().filter(|host| link(&topology, **host)[1].node == leaf.node).count();
        for (port, closed) in [(own, 1), (leaf, 1), (switch, behind)] {
            let mut intents = intents.clone();
            lack(&mut intents, port, false, true);
            let plan = compile(&topology, &intents, &Decisions::default()).unwrap();
            assert!(plan.adapter_port(victim).is_none(), "{port}");
            assert_eq!(plan.adapter_ports().count(), hosts.len() - closed, "{port}");
            let is_told = |finding: &PlanFinding| matches!(finding, PlanFinding::Unenforced { ports, .. } if *ports == closed);
            assert!(plan.findings().iter().all(is_told) && plan.findings().len() == 1, "{port}");
            assert_eq!(verify(&topology, &intents, &plan), [], "{port}");
            assert!(
                !verify(&topology, &intents, &control).is_empty(),
                "the verifier finds it by itself: {port}"
            );
            assert_eq!(recompile(&topology, &intents, &control).unwrap().findings(), plan.findings());
        }
    }
}

#[test]
fn the_port_of_the_manager_is_open_whatever_its_switch_takes() {
    let (topology, hosts, mut intents) = world(8, 16);
    let [own, leaf] = link(&topology, hosts[0]);
    for port in [own, leaf] {
        lack(&mut intents, port, false, true);
    }
    intents.capabilities.default_switch.enforced_pkeys = 0;
    let plan = compile(&topology, &intents, &Decisions::default()).unwrap();
    assert_eq!(plan.adapter_ports().map(|port| port.guid).collect::<Vec<_>>(), [hosts[0]]);
    let port = plan.switch(leaf.node).unwrap().port(leaf.port).unwrap();
    assert_eq!(port.enforcement, Enforcement::Off, "there is nothing to enforce it with");
    assert_eq!(verify(&topology, &intents, &plan), []);
}

#[test]
fn unenforced_ports_are_open_only_if_the_intents_say_so() {
    let (topology, hosts, mut intents) = world(8, 16);
    intents.capabilities.default_switch.enforced_pkeys = 0;
    let closed = compile(&topology, &intents, &Decisions::default()).unwrap();
    assert_eq!(closed.adapter_ports().count(), 1);
    intents.unenforced_ports = UnenforcedPorts::Open;
    let open = compile(&topology, &intents, &Decisions::default()).unwrap();
    assert_eq!(open.adapter_ports().count(), hosts.len());
    let [PlanFinding::EnforcedByAdapters { ports, .. }] = open.findings() else {
        panic!("{:?}", open.findings())
    };
    assert_eq!(*ports, hosts.len() - 1);
    let enforced = |switch: &fabric_model::plan::SwitchPlan| {
        switch.ports.iter().any(|port| port.enforcement != Enforcement::Off)
    };
    assert!(!open.switches().any(enforced));
    assert_eq!(verify(&topology, &intents, &open), []);

    // A planner follows the choice, and a change of partitions keeps it.
    let mut planner = Planner::resume(Arc::new(topology.clone()), intents.clone(), &open).unwrap();
    intents.partitions = partitions_conf::parse("red=2 : ALL_CAS=full;").unwrap();
    let changed = Arc::clone(planner.change(&intents).unwrap());
    assert_eq!(verify(&topology, &intents, &changed), []);
    intents.unenforced_ports = UnenforcedPorts::Closed;
    assert!(!verify(&topology, &intents, &changed).is_empty(), "the verifier rejects open ports");
    assert_eq!(planner.change(&intents).unwrap().adapter_ports().count(), 1);
}

fn cluster(ports: &[Guid]) -> ClusterIntent {
    let bandwidth = Bandwidth::from_bits_per_s(1_000_000_000);
    ClusterIntent {
        name: "blue".to_owned(),
        ports: ports.to_vec(),
        class: Class::Guaranteed { bandwidth, latency_ns: None },
        sl_mode: SlMode::Cluster,
    }
}

#[test]
fn nothing_is_guaranteed_across_a_port_that_does_not_divide_its_lanes() {
    for (radix, count) in [(4, 4), (8, 16)] {
        let (topology, hosts, mut intents) = world(radix, count);
        intents.clusters = vec![cluster(&hosts[1..3])];
        let before = compile(&topology, &intents, &Decisions::default()).unwrap();
        assert_eq!(before.findings(), []);
        let [own, leaf] = link(&topology, hosts[2]);
        for port in [own, leaf] {
            let mut intents = intents.clone();
            lack(&mut intents, port, true, false);
            let refused = compile(&topology, &intents, &Decisions::default()).unwrap_err();
            let CompileError::NotAdmitted { reason: GuaranteeError::Refused(refusal), .. } = refused else {
                panic!("{refused}")
            };
            assert_eq!(refusal, Refusal::NoLanes { port });
            // A cluster that had the guarantee keeps its network.
            let after = recompile(&topology, &intents, &before).unwrap();
            assert!(
                matches!(after.findings(), [PlanFinding::GuaranteeViolated { .. }]),
                "{:?}",
                after.findings()
            );
            assert_eq!(verify(&topology, &intents, &after), []);
            // One that does not cross the port is admitted.
            intents.clusters = vec![cluster(&hosts[..2])];
            compile(&topology, &intents, &Decisions::default()).unwrap();
        }
    }
}

#[test]
fn a_link_slower_than_both_its_ports_allow_is_a_finding() {
    let (tree, hosts, mut intents) = world(8, 16);
    let [own, leaf] = link(&tree, hosts[3]);
    let found = |rate: &str, enabled: [Option<&str>; 2]| {
        let mut intents = intents.clone();
        for (port, enabled) in [own, leaf].into_iter().zip(enabled) {
            let enabled_rate = enabled.map(|rate| rate.parse().unwrap());
            let capability = PortCapability { enabled_rate, ..PortCapability::default() };
            intents.capabilities.ports.insert(port, capability);
        }
        let mut builder = TopologyBuilder::from(tree.clone());
        let ends = [own, leaf].map(|port| Endpoint::new(tree.by_guid(port.node).unwrap(), port.port));
        builder.disconnect(ends[0]).unwrap();
        builder.connect(ends[0], ends[1], Some(rate.parse().unwrap())).unwrap();
        let topology = builder.build().unwrap();
        let plan = compile(&topology, &intents, &Decisions::default()).unwrap();
        assert_eq!(verify(&topology, &intents, &plan), []);
        plan.findings().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let fast = Some("4xEDR");
    let [text] = &found("1xEDR", [fast, fast])[..] else { panic!("one finding") };
    assert!(text.ends_with("1xEDR instead of 4xEDR"), "{text}");
    // The controls: as fast as one of the ports allows, or nothing is known.
    for (rate, enabled) in
        [("4xEDR", [fast, fast]), ("1xHDR", [fast, Some("1xHDR")]), ("1xEDR", [fast, None])]
    {
        assert_eq!(found(rate, enabled), [""; 0], "{rate} {enabled:?}");
    }
    intents.capabilities.default_port.enabled_rate = Some("4xHDR".parse().unwrap());
    let plan = compile(&tree, &intents, &Decisions::default()).unwrap();
    let PlanFinding::SlowLinks { links, .. } = &plan.findings()[0] else { panic!("{:?}", plan.findings()) };
    assert_eq!(*links, tree.links().count(), "all links are EDR");
}
