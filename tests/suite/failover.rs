//! Declared subnet managers that take over from each other, on an emulated fabric and in simulated time.

use std::collections::BTreeSet;
use std::time::Duration;

use fabric_model::Topology;
use fabric_model::generate::{DragonflyPlus, FatTree, Torus};
use fabric_sim::{BuiltInProfile, Fabric, PortId, Probability};
use ib_wire::sa::{JoinState, PathRecord, Record};
use ib_wire::{Attribute, Guid, Mad, ManagementClass, Method, NodeKind, SmInfo, SmKey, SmState};
use subnet_manager::Standing;

use crate::group_trees;
use crate::in_process::fleet::Dice;
use crate::in_process::managers::{Managers, Role};

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn tree(hosts: u32, radix: u8) -> Topology {
    FatTree { radix, ..FatTree::with_hosts(hosts) }.generate().unwrap()
}

/// Two managers on hosts 0 and `second`; the first became the master.
fn two(topology: &Topology, second: usize, guards: bool) -> Managers {
    two_with(topology, second, guards, "blue=0x8001, ipoib : ALL_CAS=limited;")
}

fn two_with(topology: &Topology, second: usize, guards: bool, partitions: &str) -> Managers {
    let profile = BuiltInProfile::Strict.profile();
    let mut managers = Managers::new(topology, &profile, &[0, second], guards);
    bring_up(&mut managers, partitions);
    managers
}

/// Starts two managers; the first becomes the master.
fn bring_up(managers: &mut Managers, partitions: &str) {
    managers.partitions = partitions.to_owned();
    managers.start(0);
    managers.run_for(seconds(3.0));
    managers.start(1);
    managers.run_for(seconds(12.0));
    assert_eq!(managers.masters(), [0]);
}

fn host_port(managers: &Managers, host: usize) -> PortId {
    let (_, node) = managers.topology.end_nodes().nth(host).unwrap();
    managers.fabric.find_port(&node.id).unwrap()
}

/// Whether a host that asks every 100 ms gets an answer from subnet administration; and after how long.
fn answered_within(managers: &mut Managers, host: usize, limit: Duration) -> Option<Duration> {
    let port = host_port(managers, host);
    let start = managers.now;
    let mut mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET, PathRecord::ATTRIBUTE, 0);
    mad.set_component_mask(PathRecord::SLID);
    managers.heard.clear();
    while managers.now < start + limit {
        managers.ask(port, &mad);
        let end = managers.now + seconds(0.1);
        managers.run_until(end, |managers| managers.heard.iter().any(|(heard, _)| *heard == port));
        if managers.heard.iter().any(|(heard, _)| *heard == port) {
            return Some(managers.now - start);
        }
        managers.now = end;
    }
    None
}

fn assert_judged(managers: &Managers) {
    assert_eq!(managers.judge.verdict, None);
    assert!(managers.judge.sets > 100, "{}", managers.judge.sets);
}

/// Every Set after a takeover: PortInfo of each end port once, and nothing else.
fn assert_one_set_each(managers: &Managers, since: Duration, new: usize) {
    let counts = managers.sets_since(since);
    let sets: usize = counts.values().sum();
    let ends = managers.plan.as_ref().unwrap().lids().len();
    let port_info: usize = counts
        .iter()
        .filter(|((_, attribute, _), _)| *attribute == Attribute::PORT_INFO)
        .map(|(_, n)| *n)
        .sum();
    assert_eq!((sets, port_info), (ends, ends), "{counts:?}");
    assert!(counts.keys().all(|(member, ..)| *member == new), "{counts:?}");
}

#[test]
fn a_killed_master_is_replaced_with_one_set_for_each_port() {
    for (hosts, radix, second, guards) in [(16, 8, 9, true), (36, 12, 35, false), (24, 8, 1, true)] {
        let mut managers = two(&tree(hosts, radix), second, guards);
        let killed = managers.now;
        managers.kill(0);
        let took = answered_within(&mut managers, 5, seconds(5.0)).expect("an answer within 5 seconds");
        managers.run_for(seconds(5.0));
        assert_eq!(managers.masters(), [1]);
        assert_one_set_each(&managers, killed, 1);
        println!("{hosts} hosts: killed, answered after {took:?}");
        assert_judged(&managers);
    }
}

#[test]
fn a_takeover_keeps_the_trees_of_groups_that_ports_joined() {
    let topology = tree(36, 12);
    let mut managers = two_with(&topology, 35, true, group_trees::PARTITIONS);
    let tables = |managers: &Managers| -> Vec<_> {
        managers.fabric.device_ids().map(|device| managers.fabric.groups_of(device)).collect()
    };
    let planned = tables(&managers);
    for (host, number) in [(1, 1), (8, 1), (20, 1), (30, 2), (2, 2)] {
        let port = host_port(&managers, host);
        let guid = managers.fabric.guid_of(port);
        let mad = group_trees::request(Method::SET, group_trees::group(number), guid, JoinState::FULL);
        managers.ask(port, &mad);
    }
    managers.run_for(seconds(4.0));
    let joined = tables(&managers);
    assert_ne!(joined, planned);
    let killed = managers.now;
    managers.kill(0);
    managers.run_for(seconds(6.0));
    assert_eq!(managers.masters(), [1]);
    assert_one_set_each(&managers, killed, 1);
    assert_eq!(tables(&managers), joined);
    assert_judged(&managers);
}

#[test]
fn managers_take_over_in_both_directions() {
    let mut managers = two(&tree(16, 8), 9, true);
    let mut master = 0;
    for round in 0..20 {
        let killed = managers.now;
        managers.kill(master);
        let took = answered_within(&mut managers, 1 + round % 7, seconds(5.0));
        assert!(took.is_some(), "round {round}");
        managers.run_for(seconds(2.0));
        assert_one_set_each(&managers, killed, 1 - master);
        managers.start(master);
        managers.run_for(seconds(4.0));
        assert_eq!(
            managers.masters(),
            [1 - master],
            "a manager that comes back does not take over: round {round}"
        );
        master = 1 - master;
    }
    assert_judged(&managers);
}

#[test]
fn a_stopped_master_sends_nothing_when_it_continues() {
    for stopped_for in [0.3, 0.5, 0.9, 1.4, 2.0, 3.7, 30.0] {
        let mut managers = two(&tree(16, 8), 9, true);
        managers.stop(0);
        managers.run_for(seconds(stopped_for));
        let continued = managers.now;
        managers.go_on(0);
        managers.run_for(seconds(6.0));
        let masters = managers.masters();
        assert_eq!(masters.len(), 1, "stopped for {stopped_for} s");
        let sent: BTreeSet<usize> =
            managers.sets_since(continued).keys().map(|(member, ..)| *member).collect();
        assert!(sent.iter().all(|member| *member == masters[0]), "stopped for {stopped_for} s: {sent:?}");
        if stopped_for >= 3.7 {
            assert_eq!(masters, [1], "the other one took over");
        }
        assert_judged(&managers);
    }
}

#[test]
fn a_master_that_is_cut_off_yields_when_it_comes_back() {
    let mut managers = two(&tree(16, 8), 9, true);
    let port = managers.members[0].port;
    for round in 0..5 {
        managers.fabric.unplug(managers.now, port);
        assert!(answered_within(&mut managers, 5, seconds(5.0)).is_some(), "round {round}");
        managers.run_for(seconds(3.0 + f64::from(round)));
        assert!(managers.members[1].is_master());
        managers.fabric.plug(managers.now, port);
        let plugged = managers.now;
        managers.run_for(seconds(15.0));
        assert_eq!(managers.masters(), [1], "round {round}");
        assert!(managers.sets_since(plugged).keys().all(|(member, ..)| *member == 1));
        // And back, so that the next round begins with the first.
        managers.kill(1);
        managers.run_for(seconds(6.0));
        assert_eq!(managers.masters(), [0], "round {round}");
        managers.start(1);
        managers.run_for(seconds(4.0));
    }
    assert_judged(&managers);
}

#[test]
fn a_cable_may_be_pulled_again_at_once() {
    for (hosts, radix, second, pause) in
        [(16, 8, 9, 3.5), (16, 8, 9, 2.0), (36, 12, 35, 1.5), (24, 8, 1, 2.7)]
    {
        let mut managers = two(&tree(hosts, radix), second, true);
        let mut master = 0;
        for round in 0..12 {
            let port = managers.members[master].port;
            managers.fabric.unplug(managers.now, port);
            let took = answered_within(&mut managers, 5, seconds(8.0));
            println!("{hosts} hosts, {pause} s in between: {took:?}");
            assert!(took.is_some_and(|took| took <= seconds(4.0)), "round {round}: {took:?}");
            managers.fabric.plug(managers.now, port);
            managers.run_for(seconds(pause));
            master = 1 - master;
            assert_eq!(managers.masters(), [master], "round {round}");
        }
        assert_judged(&managers);
    }
}

#[test]
fn each_half_of_a_split_fabric_has_a_master_and_one_yields() {
    // Hosts 0..7 and 8..15 are on different leaves.
    let topology = tree(16, 8);
    let mut managers = two(&topology, 12, true);
    let spines: Vec<_> = (topology.switches())
        .filter(|(_, node)| node.cabled_ports().all(|(_, peer)| topology[peer.node].is_switch()))
        .map(|(index, _)| index)
        .collect();
    let leaf_of = |host: usize| {
        let (_, node) = topology.end_nodes().nth(host).unwrap();
        node.cabled_ports().next().unwrap().1.node
    };
    // Half of the leaves keep one half of the spines.
    let leaves: BTreeSet<_> = (0..16).map(leaf_of).collect();
    let near: BTreeSet<_> = leaves.iter().copied().take_while(|leaf| *leaf != leaf_of(12)).collect();
    let device = |index: fabric_model::NodeIndex| managers.fabric.device_ids().nth(index.index()).unwrap();
    let mut cables = Vec::new();
    for (number, spine) in spines.iter().enumerate() {
        for (port, peer) in topology[*spine].cabled_ports() {
            if near.contains(&peer.node) == (number % 2 == 1) {
                cables.push(managers.fabric.ports_of(device(*spine)).nth(port.index()).unwrap());
            }
        }
    }
    for round in 0..20 {
        let now = managers.now;
        cables.iter().for_each(|cable| assert!(managers.fabric.unplug(now, *cable)));
        managers.run_for(seconds(8.0));
        assert_eq!(managers.masters(), [0, 1], "round {round}: one for each half");
        assert!(answered_within(&mut managers, 1, seconds(2.0)).is_some(), "round {round}");
        assert!(answered_within(&mut managers, 13, seconds(2.0)).is_some(), "round {round}");
        managers.members.iter_mut().for_each(|member| member.yields.clear());
        let joined = managers.now;
        cables.iter().for_each(|cable| assert!(managers.fabric.plug(joined, *cable)));
        managers.run_for(seconds(20.0));
        assert_eq!(managers.masters(), [0], "round {round}: that with the higher priority");
        assert_eq!(managers.members[1].yields, [Some(managers.members[0].guid)], "round {round}");
        let sets = managers.sets_since(joined);
        assert!(sets.keys().all(|(member, ..)| *member == 0), "round {round}: {sets:?}");
    }
    assert_judged(&managers);
}

#[test]
fn a_master_killed_at_any_set_is_replaced() {
    let topology = tree(16, 8);
    let mut killed = 0;
    for after in (1..400).step_by(13) {
        let profile = BuiltInProfile::Strict.profile();
        let mut managers = Managers::new(&topology, &profile, &[0, 9], true);
        managers.partitions = "blue=0x8001, ipoib : ALL_CAS=limited;".to_owned();
        managers.start(0);
        managers.start(1);
        managers.kill_after_sets = Some(after);
        managers.run_for(seconds(12.0));
        if managers.kill_after_sets.is_none() {
            killed += 1;
        }
        assert_eq!(managers.masters().len(), 1, "killed after {after} Sets");
        assert!(answered_within(&mut managers, 5, seconds(2.0)).is_some(), "killed after {after} Sets");
        assert_judged(&managers);
    }
    assert!(killed > 20, "{killed}");
}

/// A port of each cable between switches.
fn switch_cables(managers: &Managers) -> Vec<PortId> {
    let fabric = &managers.fabric;
    let ports = fabric.device_ids().flat_map(|device| fabric.ports_of(device));
    let is_switch = |port: PortId| fabric.node_of(port).kind == NodeKind::Switch;
    ports
        .filter(|port| {
            fabric.port_forwarding(*port).peer.is_some_and(|peer| is_switch(*port) && is_switch(peer))
        })
        .collect()
}

/// The managers that may send Sets now.
fn writers(managers: &Managers, plugged: &[bool]) -> Vec<usize> {
    let may_write = |index: &usize| {
        let member = &managers.members[*index];
        let Role::Runs(manager) = &member.role else { return false };
        let status = manager.election_status().unwrap();
        !member.is_stopped && plugged[*index] && status.standing == Standing::Master && status.has_lease
    };
    (0..managers.members.len()).filter(may_write).collect()
}

/// Two to four managers that are killed, started, stopped, continued, cut off and connected again, 30 times in any order, while
/// links between switches fail, one at a time, and datagrams get lost.
#[test]
fn random_faults_never_leave_two_writers() {
    for seed in 1..=number(SEEDS).unwrap_or(24) {
        let mut dice = Dice::new(seed as u64);
        let topology = match seed % 3 {
            0 => Torus { hosts_per_switch: 2, ..Torus::new([3, 4]) }.generate().unwrap(),
            1 => tree(24, 8),
            _ => DragonflyPlus { leaves: 2, spines: 2, hosts_per_leaf: 3, ..DragonflyPlus::new(3) }
                .generate()
                .unwrap(),
        };
        let mut places: Vec<usize> = (0..topology.end_nodes().count()).collect();
        dice.shuffle(&mut places);
        places.truncate(2 + seed / 3 % 3);
        let count = places.len();
        let profile = BuiltInProfile::Strict.profile();
        let mut managers = Managers::new(&topology, &profile, &places, seed % 2 == 0);
        managers.partitions = "blue=0x8001, ipoib : ALL_CAS=limited;".to_owned();
        for index in 0..count {
            managers.start(index);
            // In half of the cases all start at once.
            managers.run_for(Duration::from_millis((seed / 2 % 2 * dice.below(3000)) as u64));
        }
        managers.run_for(seconds(15.0));
        assert_eq!(managers.masters().len(), 1, "seed {seed}");
        managers.fabric.set_loss(None, Probability::try_from(0.01).unwrap());
        let cables = switch_cables(&managers);
        let (mut plugged, mut history, mut broken) = (vec![true; count], Vec::new(), None);
        for _ in 0..30 {
            let index = dice.below(count);
            let (fault, is_dead) = (dice.below(4), matches!(managers.members[index].role, Role::Dead));
            history.push((managers.now, index, fault));
            match fault {
                0 if is_dead => managers.start(index),
                0 => managers.kill(index),
                1 if managers.members[index].is_stopped => managers.go_on(index),
                1 => managers.stop(index),
                2 => {
                    let cable = cables[dice.below(cables.len())];
                    let now = managers.now;
                    match broken.take() {
                        Some(cable) => assert!(managers.fabric.plug(now, cable)),
                        None => assert!(managers.fabric.unplug(now, *broken.insert(cable))),
                    }
                }
                _ => {
                    let (now, port) = (managers.now, managers.members[index].port);
                    let is_plugged = plugged[index];
                    let change = if is_plugged { Fabric::unplug } else { Fabric::plug };
                    assert!(change(&mut managers.fabric, now, port));
                    plugged[index] = !is_plugged;
                }
            }
            let until = managers.now + Duration::from_millis(50 + dice.below(4000) as u64);
            while managers.now < until {
                managers.run_for(seconds(0.05));
                let writers = writers(&managers, &plugged);
                assert!(writers.len() <= 1, "seed {seed}: {writers:?} after {history:?}");
            }
            assert_eq!(managers.judge.verdict, None, "seed {seed}: {history:?}");
        }
        managers.fabric.set_loss(None, Probability::NEVER);
        for (index, is_plugged) in plugged.iter_mut().enumerate() {
            if managers.members[index].is_stopped {
                managers.go_on(index);
            }
            if matches!(managers.members[index].role, Role::Dead) {
                managers.start(index);
            }
            if !std::mem::replace(is_plugged, true) {
                let (now, port) = (managers.now, managers.members[index].port);
                managers.fabric.plug(now, port);
            }
        }
        let end = managers.now + seconds(10.0);
        let is_settled =
            |managers: &Managers| managers.masters().len() == 1 && writers(managers, &plugged).len() == 1;
        let took = managers.run_until(end, is_settled);
        assert!(took.is_some(), "seed {seed}: {history:?}");
        managers.run_for(seconds(20.0));
        assert!(is_settled(&managers), "seed {seed}: {history:?}");
        for pair in managers.sets.windows(2) {
            let pause = pair[1].at - pair[0].at;
            let is_same = pair[0].member == pair[1].member;
            assert!(is_same || pause >= seconds(0.2), "seed {seed}: {pair:?} after {history:?}");
        }
        assert_judged(&managers);
    }
}

/// What opensm at priority 15 answers, and sends by itself: it claims the fabric and hands it over.
fn claim(state: SmState) -> SmInfo {
    SmInfo { guid: Guid::from_wire(1), sm_key: SmKey::from_wire(1), activity: 1, priority: 15, state }
}

#[test]
fn nobody_yields_to_a_manager_that_was_not_declared() {
    let mut managers = two(&tree(16, 8), 9, true);
    let stranger = host_port(&managers, 4);
    managers.fabric.set_is_sm(managers.now, stranger, true);
    managers.hostile = Some((stranger, claim(SmState::Master)));
    let mut master = 0;
    for round in 0..50 {
        // Handovers (1), acknowledgements (2) and orders to stand by (4), to the LID of the master.
        for modifier in [1, 2, 3, 4, 5] {
            let mut mad = Mad::new(ManagementClass::SUBNET_LID, Method::SET, Attribute::SM_INFO, modifier);
            *mad.smp_data_mut() = claim(SmState::Master).encode();
            managers.send_to_master(stranger, mad);
        }
        managers.run_for(seconds(1.5));
        assert_eq!(managers.masters(), [master], "round {round}");
        let Role::Runs(manager) = &managers.members[master].role else { panic!("the master runs") };
        assert!(manager.claims_refused() >= 5, "{}", manager.claims_refused());
        assert!(managers.claims_reported <= 1 + round / 4, "not each of them: {}", managers.claims_reported);
        if round % 5 == 4 {
            managers.kill(master);
            assert!(answered_within(&mut managers, 5, seconds(5.0)).is_some(), "round {round}");
            managers.run_for(seconds(1.0));
            managers.start(master);
            managers.run_for(seconds(3.0));
            master = 1 - master;
            assert_eq!(managers.masters(), [master], "round {round}");
        }
    }
    let yields: Vec<_> = managers.members.iter().flat_map(|member| &member.yields).collect();
    assert!(yields.is_empty(), "{yields:?}");
    assert_judged(&managers);
}

/// Number of rounds of each fault, to repeat the test for longer: `HEDDLE_FAILOVER_ROUNDS=50 cargo nextest run …`.
const ROUNDS: &str = "HEDDLE_FAILOVER_ROUNDS";
/// Its hosts.
const HOSTS: &str = "HEDDLE_FAILOVER_HOSTS";
/// Number of seeds of random faults.
const SEEDS: &str = "HEDDLE_FAILOVER_SEEDS";

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Judged after every Set; every other round takes over in the other direction.
#[test]
fn faults_of_masters_of_a_large_fabric() {
    let (hosts, asked) = (number(HOSTS).unwrap_or(324), number(ROUNDS));
    let topology = tree(hosts as u32, 36);
    let profile = BuiltInProfile::Strict.profile();
    let mut managers = Managers::new(&topology, &profile, &[0, hosts - 1], false);
    // Blank tables of large fabrics take long to judge.
    managers.is_judging = hosts <= 324;
    bring_up(&mut managers, "blue=0x8001, ipoib : ALL_CAS=limited;");
    managers.judge_from_now();
    let (ends, partitions) = (managers.plan.as_ref().unwrap().lids().len(), managers.partitions.clone());
    let mut master = 0;
    for fault in ["killed", "stopped", "cut off", "killed in a programming run"] {
        let rounds = match fault {
            "killed in a programming run" => asked.unwrap_or(2),
            _ => asked.unwrap_or(6),
        };
        let (mut took, mut repaired) = (Vec::new(), 0);
        for round in 0..rounds {
            let port = managers.members[master].port;
            if fault == "killed in a programming run" {
                let more = format!("round{round}={:#x} : ALL_CAS=limited;", 0x8100 + round);
                managers.partitions =
                    if round % 2 == 0 { format!("{partitions}\n{more}") } else { partitions.clone() };
                managers.kill_after_sets = Some(1 + 29 * round % hosts);
                managers.reload(master);
                managers
                    .run_until(managers.now + seconds(2.0), |managers| managers.kill_after_sets.is_none());
                assert_eq!(managers.kill_after_sets, None, "{fault}, round {round}");
                managers.sets.clear();
            }
            let since = managers.now;
            match fault {
                "killed" => managers.kill(master),
                "stopped" => managers.stop(master),
                "cut off" => assert!(managers.fabric.unplug(since, port)),
                _ => {}
            }
            let answered = answered_within(&mut managers, 1 + 7 * round % (hosts - 4), seconds(8.0));
            took.push(answered.unwrap_or_else(|| panic!("{fault}, round {round}")));
            managers.run_for(seconds(2.0));
            let continued = managers.now;
            match fault {
                "stopped" => managers.go_on(master),
                "cut off" => assert!(managers.fabric.plug(continued, port)),
                _ => managers.start(master),
            }
            managers.run_for(seconds(6.0));
            assert_eq!(managers.masters(), [1 - master], "{fault}, round {round}");
            let sets = managers.sets_since(since);
            assert!(
                sets.keys().all(|(member, ..)| *member == 1 - master),
                "{fault}, round {round}: {sets:?}"
            );
            let count = sets.values().sum::<usize>();
            match fault {
                "cut off" => {}
                "killed" | "stopped" => assert_eq!(count, ends, "{fault}, round {round}: {sets:?}"),
                _ => repaired += count - ends,
            }
            managers.sets.clear();
            master = 1 - master;
        }
        took.sort();
        let (least, median, most) = (took[0], took[rounds / 2], took[rounds - 1]);
        println!(
            "{hosts} hosts, {rounds} rounds, {fault}: {least:?} to {most:?}, median {median:?}, {repaired} Sets repaired tables"
        );
    }
    println!("{} Sets judged", managers.judge.sets);
    assert_judged(&managers);
}

#[test]
fn a_single_declared_manager_becomes_the_master() {
    let profile = BuiltInProfile::Strict.profile();
    let mut managers = Managers::new(&tree(16, 8), &profile, &[3, 9], true);
    managers.start(0);
    managers.run_for(seconds(5.0));
    assert_eq!(managers.masters(), [0]);
    assert!(matches!(managers.members[1].role, Role::Dead));
    assert!(answered_within(&mut managers, 5, seconds(1.0)).is_some());
}
