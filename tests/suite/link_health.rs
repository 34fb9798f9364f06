//! Links that flap or whose error counters grow: they are damped, left out of plans where that cuts nobody off, and return.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use fabric_model::Topology;
use fabric_model::generate::{FatTree, RandomFabric, Torus};
use fabric_model::intent::PortName;
use fabric_sim::{LinkErrors, PortId};
use ib_wire::{ManagementClass, Method, NodeKind, PortState};
use subnet_manager::{DampedLinkUse, DampingReason, LinkErrorCounter, LinkName, PersistentState, SmEvent};

use crate::in_process::running_manager::RunningManager;
use crate::rig::tree::HOST;
use crate::rig::{self, SmDaemon, eventually};

const SECOND: Duration = Duration::from_secs(1);

/// The first quiet time of a damped link, and a sweep more.
const QUIET: Duration = Duration::from_secs(620);

fn tree() -> Topology {
    FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap()
}

fn ring() -> Topology {
    Torus { hosts_per_switch: 2, ..Torus::new([5]) }.generate().unwrap()
}

/// A manager that has programmed its fabric.
fn up(topology: Topology) -> RunningManager {
    let mut manager_run = RunningManager::new(topology, true, PersistentState::default());
    manager_run.run_for(20 * SECOND);
    assert_eq!(manager_run.told(|event| matches!(event, SmEvent::Programmed(_))), 1);
    manager_run.events.clear();
    manager_run
}

/// One end of each link between switches, in order.
fn trunks(manager_run: &RunningManager) -> Vec<PortId> {
    let fabric = &manager_run.fabric;
    let is_switch = |port: &PortId| fabric.node_of(*port).kind == NodeKind::Switch;
    let leads_up = |port: &PortId| {
        let peer = fabric.port_forwarding(*port).peer.filter(is_switch);
        peer.is_some_and(|peer| name(manager_run, *port) < name(manager_run, peer))
    };
    let ports = fabric.device_ids().flat_map(|device| fabric.ports_of(device));
    ports.filter(is_switch).filter(leads_up).collect()
}

fn name(manager_run: &RunningManager, port: PortId) -> PortName {
    PortName { node: manager_run.fabric.node_of(port).node_guid, port: manager_run.fabric.number_of(port) }
}

fn peer(manager_run: &RunningManager, port: PortId) -> PortId {
    manager_run.fabric.port_forwarding(port).peer.unwrap()
}

fn link(manager_run: &RunningManager, port: PortId) -> LinkName {
    LinkName::new(name(manager_run, port), name(manager_run, peer(manager_run, port)))
}

/// Lets a link flap some times, with time to be planned for each time.
fn flap(manager_run: &mut RunningManager, port: PortId, times: usize) {
    for _ in 0..times {
        manager_run.fabric.flap(manager_run.now, port, SECOND);
        manager_run.run_for(25 * SECOND);
    }
}

/// The last use of a damped link that was reported.
fn usage(manager_run: &RunningManager, port: PortId) -> Option<DampedLinkUse> {
    let link = link(manager_run, port);
    let mut reports = manager_run.events.iter().rev().filter_map(|event| match event {
        SmEvent::LinkDamped(report) if report.damped.link == link => Some(Some(report.usage)),
        SmEvent::LinkRestored { link: restored } if *restored == link => Some(None),
        _ => None,
    });
    reports.next().flatten()
}

fn is_planned(manager_run: &RunningManager, port: PortId) -> bool {
    let PortName { node, port } = name(manager_run, port);
    let plan = manager_run.plan.as_ref().unwrap();
    plan.switch(node).unwrap().port(port).is_some()
}

/// The ports that packets between all pairs of hosts leave, by the tables of the switches. Fails if a pair is cut off.
fn used_ports(manager_run: &RunningManager) -> std::collections::BTreeSet<PortId> {
    let fabric = &manager_run.fabric;
    let is_switch = |port: PortId| fabric.node_of(port).kind == NodeKind::Switch;
    let ports = fabric.device_ids().flat_map(|device| fabric.ports_of(device));
    let hosts: Vec<PortId> = ports.filter(|port| !is_switch(*port)).collect();
    let mut used = std::collections::BTreeSet::new();
    for from in &hosts {
        for to in &hosts {
            let lid = usize::from(fabric.lid(*to).unwrap().to_wire());
            let mut at = *from;
            for _ in 0..32 {
                assert_eq!(fabric.state_of(at), PortState::Active, "on the way to {}", fabric.id_of(*to));
                used.insert(at);
                at = fabric.port_forwarding(at).peer.unwrap();
                if !is_switch(at) {
                    break;
                }
                let switch = fabric.device_id_of(at);
                let exit = fabric.linear_of(switch).unwrap().0[lid];
                let exit = ib_wire::PortNum::new(exit).unwrap();
                at = fabric.port_of(switch, exit).unwrap();
            }
            assert!(at == *to || from == to, "{} does not reach {}", fabric.id_of(*from), fabric.id_of(*to));
        }
    }
    used
}

/// Checks that a link is left out: no plan, no route and no data on it, and everybody reaches everybody.
fn assert_left_out(manager_run: &RunningManager, port: PortId) {
    let used = used_ports(manager_run);
    for end in [port, peer(manager_run, port)] {
        assert_eq!(usage(manager_run, end), Some(DampedLinkUse::LeftOut));
        assert!(!is_planned(manager_run, end));
        assert!(!used.contains(&end), "a route leads through {}", name(manager_run, end));
        assert_eq!(manager_run.fabric.state_of(end), PortState::Initialize, "it carries no data");
    }
}

fn assert_in_use(manager_run: &RunningManager, port: PortId) {
    used_ports(manager_run);
    for end in [port, peer(manager_run, port)] {
        assert_eq!(manager_run.fabric.state_of(end), PortState::Active);
    }
}

#[test]
fn a_flapping_link_of_a_fat_tree_is_left_out() {
    let mut manager_run = up(tree());
    let port = trunks(&manager_run)[0];
    assert!(used_ports(&manager_run).contains(&port), "it has routes at first");
    flap(&mut manager_run, port, 5);
    assert_left_out(&manager_run, port);
    let report = manager_run.events.iter().find_map(|event| match event {
        SmEvent::LinkDamped(report) => Some(report.clone()),
        _ => None,
    });
    let report = report.unwrap();
    assert_eq!(report.damped.reason, DampingReason::Flaps { count: 5, window_seconds: 600 });
    let text = report.to_string();
    for end in [port, peer(&manager_run, port)] {
        assert!(text.contains(&name(&manager_run, end).to_string()), "{text}");
        let node = manager_run.fabric.description_of(manager_run.fabric.device_id_of(end)).text();
        assert!(text.contains(&format!("{node:?}")), "{text}");
    }
}

#[test]
fn a_link_that_is_left_out_and_flaps_costs_no_plan() {
    let mut manager_run = up(tree());
    let port = trunks(&manager_run)[0];
    flap(&mut manager_run, port, 5);
    manager_run.events.clear();
    let before = manager_run.manager.counts();
    flap(&mut manager_run, port, 5);
    let is_plan = |event: &SmEvent| matches!(event, SmEvent::Discovered(_) | SmEvent::Programmed(_));
    assert_eq!(manager_run.told(is_plan), 0, "{:?}", manager_run.events);
    let (_, sets) = manager_run.sent_since(before);
    assert!(sets <= 2 * 2 * 5, "{sets} Sets: only that switches were heard");
    assert_eq!(manager_run.told(|event| matches!(event, SmEvent::LinkDamped(_))), 0, "reported once");
}

#[test]
fn a_flapping_link_of_a_ring_is_left_out_and_the_next_is_kept() {
    let mut manager_run = up(ring());
    let ports = trunks(&manager_run);
    flap(&mut manager_run, ports[0], 5);
    assert_left_out(&manager_run, ports[0]);
    flap(&mut manager_run, ports[2], 5);
    assert_left_out(&manager_run, ports[0]);
    assert_eq!(usage(&manager_run, ports[2]), Some(DampedLinkUse::Needed), "the ring would be divided");
    assert_in_use(&manager_run, ports[2]);
}

#[test]
fn a_left_out_link_is_used_when_it_becomes_the_only_one() {
    let mut manager_run = up(ring());
    let ports = trunks(&manager_run);
    flap(&mut manager_run, ports[0], 5);
    assert_left_out(&manager_run, ports[0]);
    manager_run.fabric.unplug(manager_run.now, ports[3]);
    manager_run.run_for(60 * SECOND);
    assert_eq!(usage(&manager_run, ports[0]), Some(DampedLinkUse::Needed));
    assert_in_use(&manager_run, ports[0]);
    manager_run.fabric.plug(manager_run.now, ports[3]);
    manager_run.run_for(60 * SECOND);
    assert_left_out(&manager_run, ports[0]);
}

#[test]
fn no_damped_link_of_an_irregular_fabric_cuts_off_a_host() {
    let fabric = RandomFabric { hosts_per_switch: 2, ..RandomFabric::new(7, 3, 5) };
    let topology = fabric.generate().unwrap();
    let mut manager_run = up(topology);
    for port in trunks(&manager_run) {
        manager_run
            .fabric
            .add_link_errors(port, &LinkErrors { symbol_errors: 2000, ..LinkErrors::default() });
        manager_run.run_for(60 * SECOND);
        assert!(usage(&manager_run, port).is_some(), "it is damped");
        used_ports(&manager_run);
    }
    let uses: Vec<_> = trunks(&manager_run).into_iter().map(|port| usage(&manager_run, port)).collect();
    assert!(uses.contains(&Some(DampedLinkUse::LeftOut)) && uses.contains(&Some(DampedLinkUse::Needed)));
}

#[test]
fn a_link_returns_after_its_quiet_time() {
    for topology in [tree(), ring()] {
        let mut manager_run = up(topology);
        let port = trunks(&manager_run)[0];
        let before = used_ports(&manager_run);
        flap(&mut manager_run, port, 5);
        manager_run.run_for(QUIET - 60 * SECOND);
        assert_left_out(&manager_run, port);
        manager_run.run_for(60 * SECOND);
        assert_eq!(usage(&manager_run, port), None);
        assert_in_use(&manager_run, port);
        assert_eq!(used_ports(&manager_run), before, "as before");
        assert!(manager_run.kept.damped_links.is_empty());
    }
}

#[test]
fn a_link_returns_by_command() {
    let mut manager_run = up(tree());
    let port = trunks(&manager_run)[0];
    let name = name(&manager_run, peer(&manager_run, port));
    assert_eq!(manager_run.manager.restore_link(manager_run.now, name), None, "it is not damped");
    flap(&mut manager_run, port, 5);
    let restored = manager_run.manager.restore_link(manager_run.now, name);
    assert_eq!(restored, Some(link(&manager_run, port)));
    manager_run.run_for(5 * SECOND);
    assert_eq!(usage(&manager_run, port), None);
    assert_in_use(&manager_run, port);
}

#[test]
fn a_link_that_goes_down_once_is_not_damped() {
    for topology in [tree(), ring()] {
        let mut manager_run = up(topology);
        let port = trunks(&manager_run)[0];
        manager_run.fabric.unplug(manager_run.now, port);
        manager_run.run_for(60 * SECOND);
        manager_run.fabric.plug(manager_run.now, port);
        manager_run.run_for(60 * SECOND);
        assert_eq!(manager_run.told(|event| matches!(event, SmEvent::LinkDamped(_))), 0);
        assert_in_use(&manager_run, port);
    }
}

#[test]
fn what_the_manager_takes_down_itself_is_no_flap() {
    let mut manager_run = up(tree());
    let ports = trunks(&manager_run);
    for _ in 0..8 {
        flap(&mut manager_run, ports[0], 5);
        // The manager takes the link down when plans leave it out, and it trains when it returns.
        assert_left_out(&manager_run, ports[0]);
        let name = name(&manager_run, ports[0]);
        manager_run.manager.restore_link(manager_run.now, name).unwrap();
        manager_run.run_for(10 * SECOND);
        assert_in_use(&manager_run, ports[0]);
        assert_eq!(usage(&manager_run, ports[0]), None);
    }
}

#[test]
fn the_flapping_link_of_a_host_is_named_and_stays_in_use() {
    let mut manager_run = up(tree());
    let host = manager_run.fabric.find_port("host-00005").unwrap();
    flap(&mut manager_run, host, 6);
    assert_eq!(usage(&manager_run, host), Some(DampedLinkUse::HostLink));
    assert_in_use(&manager_run, host);
    assert_eq!(manager_run.kept.damped_links.len(), 1);
}

#[test]
fn growing_error_counters_damp_a_link() {
    let bad = |count| LinkErrors { symbol_errors: count, ..LinkErrors::default() };
    let mut manager_run = up(tree());
    let port = trunks(&manager_run)[1];
    manager_run.fabric.add_link_errors(port, &bad(999));
    manager_run.run_for(20 * SECOND);
    assert_eq!(usage(&manager_run, port), None, "below the limit");
    manager_run.fabric.add_link_errors(port, &bad(1));
    manager_run.run_for(20 * SECOND);
    assert_left_out(&manager_run, port);
    let DampingReason::Errors { port: counted, counter, growth, .. } =
        manager_run.kept.damped_links[0].reason
    else {
        panic!("{:?}", manager_run.kept.damped_links);
    };
    assert_eq!((counted, counter, growth), (name(&manager_run, port), LinkErrorCounter::SymbolErrors, 1000));
    assert_eq!(manager_run.manager.counter_poll_counts().resets, 0, "nothing is written");
}

#[test]
fn saturated_counters_are_reset_and_growth_is_seen_again() {
    let bad = |count| LinkErrors { symbol_errors: count, ..LinkErrors::default() };
    let mut manager_run = RunningManager::new(tree(), true, PersistentState::default());
    let port = trunks(&manager_run)[1];
    manager_run.fabric.add_link_errors(port, &bad(100_000));
    manager_run.run_for(60 * SECOND);
    assert_eq!(usage(&manager_run, port), None, "nobody knows when they grew");
    assert_eq!(manager_run.manager.counter_poll_counts().resets, 1);
    assert_eq!(manager_run.fabric.port_view(port).counters.symbol_errors, 0);
    manager_run.fabric.add_link_errors(port, &bad(1000));
    manager_run.run_for(20 * SECOND);
    assert_left_out(&manager_run, port);
}

#[test]
fn without_performance_management_only_flaps_count() {
    let mut manager_run = up(tree());
    manager_run.has_no_counters = true;
    let ports = trunks(&manager_run);
    manager_run
        .fabric
        .add_link_errors(ports[1], &LinkErrors { symbol_errors: 9000, ..LinkErrors::default() });
    manager_run.run_for(300 * SECOND);
    assert_eq!(manager_run.events.len(), 0, "{:?}", manager_run.events);
    assert!(manager_run.manager.counter_poll_counts().unanswered > 0);
    flap(&mut manager_run, ports[0], 5);
    assert_left_out(&manager_run, ports[0]);
}

#[test]
fn damped_links_survive_a_restart_of_the_manager() {
    let mut manager_run = up(tree());
    let port = trunks(&manager_run)[0];
    flap(&mut manager_run, port, 5);
    let RunningManager { fabric, now, kept, .. } = manager_run;
    assert_eq!(kept.damped_links.len(), 1);
    let mut next = RunningManager::on(fabric, &tree(), true, kept);
    next.now = now;
    next.run_for(60 * SECOND);
    assert_left_out(&next, port);
    assert_eq!(next.manager.counts().sets, 0, "nothing changes");
    next.run_for(QUIET);
    assert_eq!(usage(&next, port), None);
    assert_in_use(&next, port);
}

#[test]
fn each_sweep_reads_a_bounded_number_of_counters() {
    let mut manager_run = up(tree());
    manager_run
        .manager
        .set_link_health(subnet_manager::LinkHealthSettings { ports_per_sweep: 3, ..Default::default() });
    manager_run.run_for(15 * SECOND);
    let before = manager_run.sent.len();
    manager_run.run_for(100 * SECOND);
    let polls = manager_run.sent[before..]
        .iter()
        .filter(|datagram| datagram.mad.class() == ManagementClass::PERFORMANCE)
        .inspect(|datagram| assert_eq!(datagram.mad.method(), Method::GET));
    let polls = polls.count();
    assert!((27..=33).contains(&polls), "{polls} reads in 10 sweeps");
}

#[test]
fn the_daemon_names_damped_links_and_restores_them() {
    let server = rig::tree::tree();
    let limits = server.file("limits.toml");
    std::fs::write(&limits, "symbol_errors = 50\n").unwrap();
    let manager = SmDaemon::up(&server, HOST, &["--link-health", &limits]);
    eventually("all counters were read", || manager.status()["counter_reads"].as_u64() >= Some(300));
    assert!(server.control(&["errors", "spine-01", "1", "--symbol", "60"]).success);
    eventually("plans leave the link out", || manager.ups().len() == 2);
    let status = manager.status();
    let damped = status["damped_links"].as_object().unwrap();
    let (link, entry) = damped.iter().next().unwrap();
    assert_eq!((damped.len(), &entry["left_out"]), (1, &serde_json::json!(true)));
    let text = entry["text"].as_str().unwrap();
    assert!(text.contains("\"spine-01\"") && text.contains("SymbolErrorCounter"), "{text}");
    assert!(manager.stderr().contains(text), "{}", manager.stderr());
    let metrics = manager.control(&["metrics"]).stdout;
    assert!(metrics.contains(&format!("heddle_sm_damped_link{{link=\"{link}\"")), "{metrics}");
    let mut watcher = manager.command(&["watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watcher.stdout.take().unwrap()).lines();
    let first: Vec<serde_json::Value> =
        lines.take(2).map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    watcher.kill().unwrap();
    watcher.wait().unwrap();
    assert_eq!(first[0]["event"], "discovered");
    assert_eq!((&first[1]["event"], first[1]["text"].as_str()), (&"link-damped".into(), Some(text)));

    std::fs::write(&limits, "symbol_errors = 100000\n").unwrap();
    manager.hang_up();
    eventually("wrong limits are refused", || {
        manager.stderr().contains("symbol_errors must be between 0 and 65535, got 100000")
    });
    std::fs::write(&limits, "symbol_errors = 0\n").unwrap();
    manager.hang_up();
    let end = link.split(" - ").next().unwrap();
    let unknown = manager.control(&["restore-link", "0x0002c90300100000[1]"]);
    assert!(!unknown.success && unknown.stderr.contains("is damped"), "{}", unknown.stderr);
    assert!(manager.control(&["restore-link", end]).success);
    eventually("the link is back", || {
        manager.status()["damped_links"].as_object().unwrap().is_empty()
            && server.control(&["counters", "spine-01", "1"]).stdout.contains("Active")
    });
}
