//! What devices of the field do and a forgiving emulator would not, and how the manager copes. Ids of the form A-PORT-9 are
//! those of docs/assumptions.md.

use std::time::Duration;

use fabric_model::generate::FatTree;
use fabric_model::intent::{ClusterIntent, PortCapability, PortName};
use fabric_model::plan::{AdapterPortPlan, PlanFinding};
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Endpoint, NewNode, Topology, TopologyBuilder};
use fabric_sim::{BuiltInProfile, Fabric, PortId};
use ib_wire::{
    Attribute, DataLanes, Guid, MKeyProtection, Method, Mtu, NodeKind, PortInfo, PortNum, PortState,
    TransactionId,
};
use subnet_manager::{PersistentState, SmEvent};

use crate::in_process::running_manager::RunningManager;

const SECOND: Duration = Duration::from_secs(1);

const RATES: [&str; 9] = ["4xSDR", "4xDDR", "4xQDR", "4xFDR10", "4xFDR", "4xEDR", "4xHDR", "4xNDR", "1xQDR"];

/// Two switches and a host for each rate; host number 0 runs the manager.
fn with_rates(rates: [&str; 9]) -> Topology {
    let mut builder = TopologyBuilder::new();
    let mut node = |kind, name: String, number: u64, ports| {
        builder.add_node(NewNode::new(kind, name, Guid::from_wire(0x100 * number).unwrap(), ports)).unwrap()
    };
    let [left, right] = [1, 2].map(|number| node(NodeKind::Switch, format!("switch-{number}"), number, 18));
    let hosts: Vec<_> = (0..RATES.len() as u64)
        .map(|index| node(NodeKind::Adapter, format!("host-{index}"), 10 + index, 1))
        .collect();
    let end = |node, port| Endpoint::new(node, PortNum::new(port).unwrap());
    builder.connect(end(left, 18), end(right, 18), Some("4xHDR".parse().unwrap())).unwrap();
    for (index, host) in (0..).zip(&hosts) {
        let switch = if index % 2 == 0 { left } else { right };
        let rate = rates[usize::from(index)].parse().unwrap();
        builder.connect(end(*host, 1), end(switch, index + 1), Some(rate)).unwrap();
    }
    builder.build().unwrap()
}

fn tree() -> Topology {
    FatTree { radix: 4, ..FatTree::with_hosts(4) }.generate().unwrap()
}

fn up_on(topology: Topology, is_guarding: bool) -> RunningManager {
    let mut run = RunningManager::new(topology, is_guarding, PersistentState::default());
    run.run_for(SECOND);
    assert_eq!(run.told(|event| matches!(event, SmEvent::Programmed(_))), 1, "{:?}", run.events);
    run
}

fn ports(fabric: &Fabric) -> impl Iterator<Item = PortId> {
    fabric.device_ids().flat_map(|device| fabric.ports_of(device))
}

fn port_info(fabric: &Fabric, port: PortId) -> PortInfo {
    let data = fabric.port_info_of(port, fabric.number_of(port).to_wire()).unwrap();
    PortInfo::decode(&data).unwrap()
}

fn is_refused(event: &SmEvent) -> bool {
    matches!(event, SmEvent::RequestRefused { .. })
}

/// D1, D17: rates come from PortInfo, asked for with bit 31, and FDR10 from the vendor attribute.
#[test]
fn the_rates_of_links_are_discovered() {
    let topology = with_rates(RATES);
    let run = up_on(topology.clone(), false);
    let found = &run.discovery.as_ref().unwrap().topology;
    for link in topology.links() {
        let guid = topology.node(link.a.node).unwrap().guid;
        let end = Endpoint::new(found.by_guid(guid).unwrap(), link.a.port);
        let rate = found.links().find(|other| other.a == end || other.b == end).unwrap().rate;
        assert_eq!(rate, link.rate, "{guid:x} port {}", link.a.port);
    }
    assert_eq!(run.told(is_refused), 0, "{:?}", run.events);
}

/// D1: a link that trains at another rate is another link.
#[test]
fn a_link_that_becomes_slower_is_discovered_again() {
    let mut run = up_on(with_rates(RATES), true);
    let rates = |run: &RunningManager| -> Vec<String> {
        let links =
            run.discovery.as_ref().unwrap().topology.links().map(|link| link.rate.unwrap().to_string());
        links.filter(|rate| rate.ends_with("FDR")).collect()
    };
    assert_eq!(rates(&run), ["4xFDR"]);
    let slower = RATES.map(|rate| if rate == "4xFDR" { "1xFDR" } else { rate });
    run.fabric.recable(run.now, &with_rates(slower)).unwrap();
    let port = run.fabric.find_port("host-4").unwrap();
    run.fabric.unplug(run.now, port);
    run.fabric.plug(run.now, port);
    run.run_for(5 * SECOND);
    assert_eq!(rates(&run), ["1xFDR"]);
}

/// D3: devices check the M_Key of a TrapRepress.
#[test]
fn a_trap_is_repressed_with_the_key_of_its_node() {
    let mut run = up_on(tree(), true);
    let switch = run.fabric.device_ids().find(|device| run.fabric.switch_info_of(*device).is_some()).unwrap();
    let leads_to_switch = |port: &PortId| {
        let peer = run.fabric.port_forwarding(*port).peer;
        peer.is_some_and(|peer| run.fabric.node_of(peer).kind == NodeKind::Switch)
    };
    let uplink = run.fabric.ports_of(switch).find(leads_to_switch).unwrap();
    run.fabric.unplug(run.now, uplink);
    // A trap whose route led through the cable is sent again after 5 seconds, on another route.
    run.run_for(10 * SECOND);
    let sent = run.fabric.statistics().traps[&128];
    run.run_for(60 * SECOND);
    assert_eq!(run.fabric.statistics().traps.get(&128), Some(&sent), "no trap is repeated");
    assert_eq!(run.fabric.statistics().traps.get(&256), None, "nobody saw a wrong key");
    for port in ports(&run.fabric) {
        assert_eq!(port_info(&run.fabric, port).m_key_violations, 0);
    }
    let protected = ports(&run.fabric)
        .filter(|port| port_info(&run.fabric, *port).m_key_protection == MKeyProtection::Closed);
    assert!(protected.count() > 4, "the control: there are keys to check");
}

/// D7: how long packets may stay is written, whatever devices come with.
#[test]
fn lifetimes_of_packets_are_programmed() {
    let run = up_on(tree(), false);
    let mut leaves = 0;
    for device in run.fabric.device_ids() {
        let Some(info) = run.fabric.switch_info_of(device) else { continue };
        assert_eq!(info.life_time, 15);
        for port in run.fabric.ports_of(device) {
            let Some(peer) = run.fabric.port_forwarding(port).peer else { continue };
            let is_leaf = run.fabric.node_of(peer).kind != NodeKind::Switch;
            let info = port_info(&run.fabric, port);
            assert_eq!((info.hoq_life, info.vl_stall_count), (if is_leaf { 14 } else { 15 }, 7));
            leaves += usize::from(is_leaf);
        }
    }
    assert_eq!(leaves, 4);
}

/// D11: a port that became Active by itself refuses to become so (A-PORT-9).
#[test]
fn a_port_that_is_active_already_is_no_fault() {
    let quiet = up_on(tree(), false);
    let activation = |run: &RunningManager| {
        let is_activation = |sent: &&ib_wire::Datagram| {
            sent.mad.method() == Method::SET
                && sent.mad.attribute() == Attribute::PORT_INFO
                && PortInfo::decode(sent.mad.smp_data()).unwrap().state == PortState::Active
        };
        run.sent.iter().find(is_activation).unwrap().clone()
    };
    let (gets, mut checked) = (quiet.manager.counts().gets, 0);
    for after in 0..quiet.sent.len() + 40 {
        let mut early = activation(&quiet);
        early.mad.set_transaction(TransactionId(0xdead_0000));
        let mut run = RunningManager::new(tree(), false, PersistentState::default());
        let port = run.port;
        run.meanwhile = Some((after, Box::new(move |fabric, now| fabric.handle_datagram(now, port, early))));
        run.run_for(SECOND);
        assert_eq!(run.told(is_refused), 0, "after {after}: {:?}", run.events);
        assert_eq!(run.told(|event| matches!(event, SmEvent::Programmed(_))), 1, "after {after}");
        checked += usize::from(run.manager.counts().gets > gets);
    }
    assert!(checked > 0, "at no point was the port active before its turn");
}

/// D12: the MTU and the lanes of a live link do not change; it goes down and is programmed anew (A-PORT-10).
#[test]
fn a_live_link_with_another_mtu_is_retrained() {
    retrain(
        |capability| capability.mtu = Mtu::B1024,
        |port| port.mtu == Mtu::B1024,
        |info| info.neighbor_mtu == Mtu::B1024,
    );
}

#[test]
fn a_live_link_with_other_lanes_is_retrained() {
    retrain(
        |capability| capability.lanes = DataLanes::Two,
        |port| port.lanes == DataLanes::Two,
        |info| info.operational_vls == DataLanes::Two,
    );
}

/// Plans a live link with a lower capability of one end, which devices take only while the link is down.
fn retrain(
    lower: fn(&mut PortCapability),
    is_planned: fn(&AdapterPortPlan) -> bool,
    is_held: fn(&PortInfo) -> bool,
) {
    let mut run = up_on(tree(), true);
    let host = run.fabric.find_port("host-00002").unwrap();
    let leaf = run.fabric.port_forwarding(host).peer.unwrap();
    let guid = run.fabric.guid_of(host);
    let name = PortName { node: run.fabric.node_of(host).node_guid, port: run.fabric.number_of(host) };
    let held_by_both = |run: &RunningManager| {
        [host, leaf].map(|port| {
            let info = port_info(&run.fabric, port);
            assert_eq!(info.state, PortState::Active, "{:?}", run.events);
            is_held(&info)
        })
    };
    assert_eq!(held_by_both(&run), [false, false]);
    let capabilities = &mut run.discovery.as_mut().unwrap().capabilities;
    lower(capabilities.ports.get_mut(&name).unwrap());
    run.decide();
    assert!(is_planned(run.plan.as_ref().unwrap().adapter_port(guid).unwrap()));
    run.run_for(60 * SECOND);
    let is_still_planned = is_planned(run.plan.as_ref().unwrap().adapter_port(guid).unwrap());
    assert_eq!(held_by_both(&run), [is_still_planned, is_still_planned]);
    assert!(run.told(|event| matches!(event, SmEvent::Interrupted)) > 0, "the run started over");
    assert_eq!(run.told(is_refused), 0, "{:?}", run.events);
}

/// Another manager switched adaptive routing on: packets need not follow the planned routes, and nothing is guaranteed.
#[test]
fn nothing_is_guaranteed_where_switches_route_adaptively() {
    for (is_on, switches) in [(false, 0), (true, tree().switches().count())] {
        let mut profile = BuiltInProfile::ConnectX6Quantum.profile();
        profile.inherited.adaptive_routing = is_on;
        let mut run = RunningManager::with_devices(&tree(), &profile, true, PersistentState::default());
        run.run_for(SECOND);
        let discovery = run.discovery.as_ref().unwrap();
        assert_eq!(discovery.capabilities.adaptive_routing.len(), switches);
        let found = run.plan.as_ref().unwrap().findings().iter();
        let found = found.filter(|finding| matches!(finding, PlanFinding::AdaptiveRouting { .. })).count();
        assert_eq!(found, usize::from(is_on));
        let hosts =
            tree().end_nodes().map(|(_, node)| node.ports().next().unwrap().1.guid).collect::<Vec<_>>();
        run.clusters = vec![ClusterIntent {
            name: "paid".to_owned(),
            ports: hosts[1..3].to_vec(),
            class: Class::Guaranteed { bandwidth: Bandwidth::from_bits_per_s(1_000_000), latency_ns: None },
            sl_mode: SlMode::Cluster,
        }];
        run.may_be_refused = true;
        run.decide();
        assert_eq!(run.refusal.is_some(), is_on, "{:?}", run.refusal);
    }
}

/// Aggregation nodes look like adapters. They are recognised, and get the default partition only.
#[test]
fn aggregation_nodes_are_recognised() {
    let profile = BuiltInProfile::ConnectX6Quantum.profile();
    let mut run = RunningManager::with_devices(&tree(), &profile, true, PersistentState::default());
    run.run_for(SECOND);
    let found = &run.discovery.as_ref().unwrap().topology;
    let [hosts, others]: [Vec<_>; 2] =
        [true, false].map(|is| found.end_nodes().filter(|(_, node)| node.is_host_adapter() == is).collect());
    assert_eq!((hosts.len(), others.len()), (4, tree().switches().count()));
    for (_, node) in others {
        let port = node.ports().next().unwrap().1.guid;
        let keys = run.plan.as_ref().unwrap().adapter_port(port).unwrap().pkeys.entries().iter().flatten();
        assert_eq!(keys.map(|key| key.to_wire()).collect::<Vec<_>>(), [0x7fff]);
    }
}

/// The manager of a switch's own software, at its enhanced port 0, is found.
#[test]
fn a_manager_in_a_switch_is_recognised() {
    let profile = BuiltInProfile::ConnectX3SwitchX.profile();
    let mut run = RunningManager::with_devices(&tree(), &profile, true, PersistentState::default());
    let switch = run.fabric.device_ids().find(|device| run.fabric.switch_info_of(*device).is_some()).unwrap();
    assert!(run.fabric.switch_info_of(switch).unwrap().enhanced_port_0);
    let port = run.fabric.port_of(switch, PortNum::MANAGEMENT).unwrap();
    run.fabric.set_is_sm(run.now, port, true);
    run.run_for(60 * SECOND);
    let is_found =
        |event: &SmEvent| matches!(event, SmEvent::ForeignManager { port: PortNum::MANAGEMENT, .. });
    assert_eq!(run.told(is_found), 1, "{:?}", run.events);
}

/// D16: raw packets have no P_Key, and are filtered where packets of hosts enter and leave.
#[test]
fn ports_to_hosts_filter_raw_packets() {
    let run = up_on(tree(), false);
    let mut filtered = 0;
    for port in ports(&run.fabric).filter(|port| run.fabric.node_of(*port).kind == NodeKind::Switch) {
        let Some(peer) = run.fabric.port_forwarding(port).peer else { continue };
        let is_leaf = run.fabric.node_of(peer).kind != NodeKind::Switch;
        let info = port_info(&run.fabric, port);
        assert_eq!((info.filter_raw_inbound, info.filter_raw_outbound), (is_leaf, is_leaf));
        filtered += usize::from(is_leaf);
    }
    assert_eq!(filtered, 4);
}
