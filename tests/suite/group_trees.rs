//! Groups that ports create: their trees reach their members and nobody else, at every instant, whatever is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fabric_model::Topology;
use fabric_model::generate::{FatTree, Torus};
use fabric_model::intent::{Alias, PortAliases};
use fabric_sim::{BuiltInProfile, Fabric, PortId};
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, PathRecord, Record, Selector};
use ib_wire::{
    Attribute, Datagram, Gid, Guid, Mad, ManagementClass, Method, Mtu, PartitionNumber, Pkey, QKey, Rate,
    ServiceLevel, Status, SwitchInfo,
};

use subnet_manager::{Manager, ManagerSettings, PersistentState};

use crate::in_process::running_manager::RunningManager;
use crate::in_process::world::{Ended, Step, World};

type M = McMemberRecord;

/// The components of a request that joins a group, and creates it if it does not exist.
const JOIN: ComponentMask = ComponentMask(
    M::MGID.0
        | M::PORT_GID.0
        | M::JOIN_STATE.0
        | M::QKEY.0
        | M::PKEY.0
        | M::SL.0
        | M::TRAFFIC_CLASS.0
        | M::FLOW_LABEL.0,
);
const LEAVE: ComponentMask = ComponentMask(M::MGID.0 | M::PORT_GID.0 | M::JOIN_STATE.0);

/// The alias of [`script`].
const ALIAS: Guid = Guid::from_wire(0xa11a_0000).unwrap();

/// Every partition has full and limited members.
pub const PARTITIONS: &str = "Default=0x7fff, ipoib : ALL=full;\n";

fn tree() -> Topology {
    FatTree { radix: 8, ..FatTree::with_hosts(24) }.generate().unwrap()
}

fn nothing(_: &mut Fabric, _: Duration, _: usize) {}

/// A group that is not of IP.
pub fn group(number: u16) -> Gid {
    let mut mgid = [0; 16];
    mgid[..4].copy_from_slice(&[0xff, 0x15, 0x12, 0x34]);
    mgid[14..].copy_from_slice(&number.to_be_bytes());
    Gid(mgid)
}

/// The IPv4 group of a number, in the default partition.
pub fn ip_group(number: u16) -> Gid {
    let mut mgid = [0; 16];
    mgid[..6].copy_from_slice(&[0xff, 0x12, 0x40, 0x1b, 0xff, 0xff]);
    mgid[14..].copy_from_slice(&number.to_be_bytes());
    Gid(mgid)
}

pub fn request(method: Method, mgid: Gid, port: Guid, join_state: JoinState) -> Mad {
    let is_ip = mgid.0[2..4] == [0x40, 0x1b];
    let record = McMemberRecord {
        mgid,
        port_gid: Gid::unicast(Gid::DEFAULT_PREFIX, port),
        qkey: QKey::from_wire(0x0b1b),
        mlid: None,
        mtu_selector: Selector::Exactly,
        mtu: Mtu::B2048,
        traffic_class: 0,
        pkey: Pkey::from_wire(0xffff),
        rate_selector: Selector::Exactly,
        rate: Rate::G10,
        packet_life_time_selector: Selector::Exactly,
        packet_life_time: 18,
        sl: ServiceLevel::default(),
        flow_label: 0,
        hop_limit: 0,
        scope: if is_ip { 2 } else { 5 },
        join_state,
        proxy_join: false,
    };
    let mut mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, method, McMemberRecord::ATTRIBUTE, 0);
    mad.sa_data_mut()[..McMemberRecord::LEN].copy_from_slice(&record.encode());
    mad.set_component_mask(if method == Method::SET { JOIN } else { LEAVE });
    mad
}

/// The hosts of a world, and the requests of their software.
struct Hosts(Vec<(PortId, Guid)>);

impl Hosts {
    fn of(world: &World) -> Self {
        let fabric = &world.fabric;
        let ports = fabric.device_ids().flat_map(|device| fabric.ports_of(device));
        let by_guid: BTreeMap<Guid, PortId> = ports.map(|port| (fabric.guid_of(port), port)).collect();
        Self(world.host_guids().into_iter().map(|guid| (by_guid[&guid], guid)).collect())
    }

    fn join(&self, host: usize, mgid: Gid, state: JoinState) -> Step {
        let (port, guid) = self.0[host];
        Step::Ask(port, Box::new(request(Method::SET, mgid, guid, state)))
    }

    fn leave(&self, host: usize, mgid: Gid, state: JoinState) -> Step {
        let (port, guid) = self.0[host];
        Step::Ask(port, Box::new(request(Method::DELETE, mgid, guid, state)))
    }
}

/// The multicast LIDs of all groups that were answered with one.
fn mlids(world: &World) -> BTreeMap<Gid, u16> {
    let records = world.heard.iter().filter(|(_, datagram)| datagram.mad.status() == Status::OK);
    let records = records.map(|(_, datagram)| McMemberRecord::decode(datagram.mad.sa_data()).unwrap());
    records.map(|record| (record.mgid, record.mlid.unwrap().to_wire())).collect()
}

/// The hosts that a packet of a host to a multicast LID reaches. Each at most once.
fn reached(world: &World, hosts: &Hosts, from: usize, mlid: u16) -> BTreeSet<usize> {
    let places: BTreeMap<PortId, usize> =
        hosts.0.iter().zip(0..).map(|((port, _), host)| (*port, host)).collect();
    let fabric = &world.fabric;
    let mut found = BTreeSet::new();
    let mut open = vec![fabric.port_forwarding(hosts.0[from].0).peer.unwrap()];
    for _ in 0..1000 {
        let Some(input) = open.pop() else { return found };
        let device = fabric.device_id_of(input);
        let groups: BTreeMap<u16, BTreeSet<u8>> = fabric
            .groups_of(device)
            .into_iter()
            .map(|(mlid, ports)| (mlid, ports.into_iter().collect()))
            .collect();
        let exits = groups.get(&mlid).cloned().unwrap_or_default();
        for port in fabric.ports_of(device).filter(|port| *port != input) {
            let gate = fabric.port_forwarding(port);
            let Some(peer) = gate.peer.filter(|_| exits.contains(&gate.number.to_wire())) else { continue };
            match places.get(&peer) {
                Some(host) => assert!(found.insert(*host), "host {host} gets a packet twice"),
                None => open.push(peer),
            }
        }
    }
    panic!("packets to {mlid:#x} go round");
}

/// All multicast tables.
fn tables(world: &World) -> BTreeMap<usize, Vec<(u16, BTreeSet<u8>)>> {
    let tables = world.tables().switches.into_iter().enumerate();
    tables.map(|(index, switch)| (index, switch.groups.into_iter().collect())).collect()
}

fn shapes() -> Vec<Topology> {
    let torus = Torus { hosts_per_switch: 2, ..Torus::new([3, 4]) };
    vec![
        tree(),
        torus.generate().unwrap(),
        FatTree { radix: 36, ..FatTree::with_hosts(37) }.generate().unwrap(),
    ]
}

#[test]
fn a_tree_reaches_the_members_of_its_group_only() {
    for topology in shapes() {
        let mut world = World::new(&topology, BuiltInProfile::Strict, 1);
        let hosts = Hosts::of(&world);
        let members = [1, 2, 5, 9, 15, 20];
        let mut steps: Vec<Step> = members.map(|host| hosts.join(host, group(1), JoinState::FULL)).into();
        steps.extend([3, 4, 5].map(|host| hosts.join(host, group(2), JoinState::FULL)));
        steps.push(hosts.join(18, group(1), JoinState::SEND_ONLY_NON_MEMBER));
        assert_eq!(world.play(PARTITIONS, &steps, None, nothing), Ended::Programmed { troubles: 0 });
        assert_eq!(world.judge.verdict, None);
        let mlids = mlids(&world);
        assert_ne!(mlids[&group(1)], mlids[&group(2)]);
        let all: BTreeSet<usize> = members.into();
        for host in members {
            let others: BTreeSet<usize> = all.iter().copied().filter(|other| *other != host).collect();
            assert_eq!(reached(&world, &hosts, host, mlids[&group(1)]), others, "from {host}");
        }
        assert_eq!(reached(&world, &hosts, 18, mlids[&group(1)]), all, "a port that only sends gets nothing");
        assert_eq!(reached(&world, &hosts, 4, mlids[&group(2)]), [3, 5].into());
    }
}

#[test]
fn leaves_shrink_a_tree_and_the_last_ends_it() {
    let mut world = World::new(&tree(), BuiltInProfile::Strict, 1);
    let hosts = Hosts::of(&world);
    let full = JoinState::FULL;
    let joins = [1, 9, 15].map(|host| hosts.join(host, group(1), full));
    let steps = [joins.to_vec(), vec![hosts.leave(9, group(1), full)]].concat();
    world.play(PARTITIONS, &steps, None, nothing);
    let mlid = mlids(&world)[&group(1)];
    assert_eq!(reached(&world, &hosts, 1, mlid), [15].into());
    assert_eq!(reached(&world, &hosts, 9, mlid), BTreeSet::new());
    let rest = [1, 15].map(|host| hosts.leave(host, group(1), full));
    world.play(PARTITIONS, &[steps, rest.to_vec()].concat(), None, nothing);
    assert_eq!(world.difference(), None, "the tables of the plan alone are left");
    assert_eq!(world.judge.verdict, None);
}

#[test]
fn joins_of_ip_groups_change_no_table() {
    let mut world = World::new(&tree(), BuiltInProfile::Strict, 1);
    let hosts = Hosts::of(&world);
    let steps: Vec<Step> =
        (1..9).map(|host| hosts.join(host, ip_group(host as u16), JoinState::FULL)).collect();
    assert_eq!(world.play(PARTITIONS, &steps, None, nothing), Ended::Programmed { troubles: 0 });
    let mlids = mlids(&world);
    assert_eq!(mlids.len(), 8, "all are answered");
    assert_eq!(mlids.values().collect::<BTreeSet<_>>().len(), 1, "with the LID of the broadcast group");
    assert_eq!(world.difference(), None);
}

/// One alias, of a host.
fn alias(hosts: &Hosts, host: usize, index: u8) -> PortAliases {
    let partitions = BTreeSet::from([PartitionNumber::DEFAULT]);
    let alias = Alias { guid: ALIAS, partitions };
    [(hosts.0[host].1, [(index, alias)].into())].into()
}

/// What software at several hosts does: groups come, change and end, and aliases move.
fn script(hosts: &Hosts) -> Vec<Step> {
    let full = JoinState::FULL;
    let mut steps: Vec<Step> = [1, 6, 12].map(|host| hosts.join(host, group(1), full)).into();
    steps.push(Step::Aliases(alias(hosts, 3, 1)));
    steps.extend([2, 7].map(|host| hosts.join(host, group(2), full)));
    steps.push(hosts.leave(6, group(1), full));
    steps.push(Step::Aliases(alias(hosts, 4, 3)));
    steps.push(hosts.join(20, group(1), JoinState::NON_MEMBER));
    steps.extend([2, 7].map(|host| hosts.leave(host, group(2), full)));
    steps.push(hosts.join(22, ip_group(5), full));
    steps
}

/// What software asks at the end: about groups that are and that were, about the alias and where it was before.
fn questions(hosts: &Hosts) -> Vec<Step> {
    let question = |host: usize, attribute, mask, record: &[u8]| {
        let mut mad = Mad::new(ManagementClass::SUBNET_ADMINISTRATION, Method::GET, attribute, 0);
        mad.sa_data_mut()[..record.len()].copy_from_slice(record);
        mad.set_component_mask(mask);
        Step::Ask(hosts.0[host].0, Box::new(mad))
    };
    let member = |host: usize, mgid: Gid| {
        let record = request(Method::GET, mgid, hosts.0[host].1, JoinState::FULL);
        question(host, M::ATTRIBUTE, M::MGID | M::PORT_GID, &record.sa_data()[..M::LEN])
    };
    let path = |host: usize, to: Guid| {
        let mut record = PathRecord::decode(&[0; PathRecord::LEN]).unwrap();
        record.sgid = Gid::unicast(Gid::DEFAULT_PREFIX, hosts.0[host].1);
        record.dgid = Gid::unicast(Gid::DEFAULT_PREFIX, to);
        question(host, PathRecord::ATTRIBUTE, PathRecord::SGID | PathRecord::DGID, &record.encode())
    };
    let mut asked: Vec<Step> = [1, 6, 12, 20].map(|host| member(host, group(1))).into();
    asked.extend([member(2, group(2)), member(22, ip_group(5))]);
    asked.extend([path(1, ALIAS), path(1, hosts.0[3].1), path(4, hosts.0[22].1)]);
    asked
}

/// The last answers, and who got them.
fn answers(world: &World, count: usize) -> Vec<(PortId, Status, Vec<u8>)> {
    let last = &world.heard[world.heard.len() - count..];
    let answer = |(port, it): &(PortId, Datagram)| (*port, it.mad.status(), it.mad.sa_data().to_vec());
    last.iter().map(answer).collect()
}

/// The aliases that adapters hold.
fn aliases(world: &World, hosts: &Hosts) -> BTreeMap<usize, Vec<Guid>> {
    let held = hosts.0.iter().map(|(port, _)| world.fabric.aliases_of(*port).collect::<Vec<Guid>>());
    held.enumerate().filter(|(_, held)| !held.is_empty()).collect()
}

/// After a kill the next manager asks all ports to register again, so software goes through its script again.
#[test]
fn joins_leaves_and_aliases_survive_a_kill_at_every_datagram() {
    for (kind, step) in [
        (BuiltInProfile::Strict, 1),
        (BuiltInProfile::ConnectX3SwitchX, 5),
        (BuiltInProfile::ConnectX6Quantum, 7),
    ] {
        let bring_up = {
            let mut world = World::new(&tree(), kind, 1);
            world.configure(PARTITIONS, None, nothing);
            world.sent
        };
        let mut world = World::new(&tree(), kind, 1);
        let hosts = Hosts::of(&world);
        let questions = questions(&hosts);
        let script = [script(&hosts), questions.clone()].concat();
        assert_eq!(world.play(PARTITIONS, &script, None, nothing), Ended::Programmed { troubles: 0 });
        assert_eq!(world.judge.verdict, None);
        let (whole, right, held) = (world.sent, tables(&world), aliases(&world, &hosts));
        assert!(whole > bring_up + 30, "{whole} datagrams, {bring_up} of them before the first step");
        assert_eq!(held.keys().copied().collect::<Vec<_>>(), [4]);
        let answered = answers(&world, questions.len());
        let found = answered.iter().map(|(_, status, _)| *status == Status::OK).collect::<Vec<_>>();
        assert_eq!(found, [true, false, true, true, false, true, true, true, true], "{answered:?}");
        let mut judge = world.judge;
        let mut kills = 0;
        for kill in (bring_up + 1..=whole).step_by(step) {
            let mut world = World::new(&tree(), kind, 1);
            (world.judge, world.judging) = (judge, false);
            assert_eq!(world.play(PARTITIONS, &script, Some(kill), nothing), Ended::Killed);
            let what = format!("{}, killed after {kill} of {whole}", kind.name());
            assert_eq!(
                world.play(PARTITIONS, &script, None, nothing),
                Ended::Programmed { troubles: 0 },
                "{what}"
            );
            assert_eq!(world.judge.verdict, None, "{what}");
            assert_eq!(tables(&world), right, "{what}");
            assert_eq!(aliases(&world, &hosts), held, "{what}");
            assert_eq!(answers(&world, questions.len()), answered, "{what}");
            judge = world.judge;
            kills += 1;
        }
        println!(
            "{}: killed at {kills} of {} datagrams: {} Sets judged",
            kind.name(),
            whole - bring_up,
            judge.sets
        );
    }
}

#[test]
fn trees_follow_an_alias_that_moves() {
    let mut world = World::new(&tree(), BuiltInProfile::Strict, 1);
    let hosts = Hosts::of(&world);
    let full = JoinState::FULL;
    let of_alias = Step::Ask(hosts.0[3].0, Box::new(request(Method::SET, group(1), ALIAS, full)));
    let before = [Step::Aliases(alias(&hosts, 3, 1)), of_alias, hosts.join(9, group(1), full)];
    world.play(PARTITIONS, &before, None, nothing);
    let mlid = mlids(&world)[&group(1)];
    assert_eq!(reached(&world, &hosts, 9, mlid), [3].into());
    let after = [before.to_vec(), vec![Step::Aliases(alias(&hosts, 15, 2))]].concat();
    world.play(PARTITIONS, &after, None, nothing);
    assert_eq!(reached(&world, &hosts, 9, mlid), [15].into());
    assert_eq!(world.judge.verdict, None);
}

/// A manager that runs on a tree, and the requests of hosts to it.
struct Site {
    running: RunningManager,
    hosts: Vec<(PortId, Guid)>,
}

impl Site {
    fn new(partitions: &str) -> Self {
        let topology = tree();
        let mut running = RunningManager::new(topology.clone(), false, PersistentState::default());
        running.partitions = partitions.to_owned();
        running.run_for(Duration::from_secs(30));
        let fabric = &running.fabric;
        let ports = topology.end_nodes().map(|(_, host)| fabric.find_port(&host.id).unwrap());
        Self { hosts: ports.map(|port| (port, fabric.guid_of(port))).collect(), running }
    }

    fn ask(&mut self, host: usize, method: Method, mgid: Gid) {
        let (port, guid) = self.hosts[host];
        let lid = |port| self.running.fabric.port_forwarding(port).lid.unwrap().into();
        let (from, to) = (lid(port), lid(self.running.port));
        let mad = request(method, mgid, guid, JoinState::FULL);
        let datagram = Datagram::general_management(from, to, Pkey::from_wire(0x7fff).unwrap(), mad);
        let now = self.running.now;
        self.running.fabric.handle_datagram(now, port, datagram);
    }

    /// Another manager takes over, with what the one before stored.
    fn restart(&mut self) {
        let running = &mut self.running;
        running.manager = Manager::new(ManagerSettings::default(), None, &running.kept);
        running.plan = None;
        running.manager.handle_timeout(running.now);
    }

    /// The multicast tables of all switches.
    fn tables(&self) -> Vec<BTreeMap<u16, Vec<u8>>> {
        let fabric = &self.running.fabric;
        fabric.device_ids().map(|device| fabric.groups_of(device)).collect()
    }
}

#[test]
fn a_group_gives_way_to_a_partition_that_gets_its_multicast_lid() {
    let more: String =
        (0..10).map(|number| format!("p{number}={:#x}, ipoib : ALL_CAS=full;\n", 0x101 + number)).collect();
    let more = format!("{PARTITIONS}{more}");
    let mut undisturbed = Site::new(PARTITIONS);
    undisturbed.running.partitions.clone_from(&more);
    undisturbed.running.decide();
    undisturbed.running.run_for(Duration::from_secs(60));
    let right = undisturbed.tables();
    let planned: BTreeSet<u16> = right.iter().flat_map(|table| table.keys().copied()).collect();

    let mut site = Site::new(PARTITIONS);
    for number in 0..40 {
        site.ask(1, Method::SET, group(number));
        site.running.run_for(Duration::from_millis(20));
    }
    site.running.run_for(Duration::from_secs(5));
    let created: BTreeSet<u16> = site.tables().iter().flat_map(|table| table.keys().copied()).collect();
    assert!(created.intersection(&planned).count() > 5, "{created:x?} and {planned:x?}");
    site.running.partitions = more;
    site.running.decide();
    site.running.run_for(Duration::from_secs(60));
    let only_planned = |table: BTreeMap<u16, Vec<u8>>| -> BTreeMap<u16, Vec<u8>> {
        table.into_iter().filter(|(mlid, _)| planned.contains(mlid)).collect()
    };
    let found: Vec<_> = site.tables().into_iter().map(only_planned).collect();
    assert_eq!(found, right, "no group of a port has changed the tree of a partition");
}

#[test]
fn a_join_on_a_full_disk_takes_no_plan_away() {
    let mut site = Site::new(PARTITIONS);
    let green = Pkey::from_wire(0x8102).unwrap();
    let has_green = |site: &Site| site.running.fabric.holds_pkey(site.hosts[3].0, green);
    site.running.is_disk_full = true;
    site.running.partitions.push_str("green=0x102, ipoib : ALL_CAS=full;\n");
    site.running.decide();
    site.running.run_for(Duration::from_secs(2));
    site.ask(9, Method::SET, group(1));
    site.running.run_for(Duration::from_secs(20));
    assert!(!has_green(&site), "its decisions are not stored");
    site.running.is_disk_full = false;
    site.running.run_for(Duration::from_secs(30));
    assert!(has_green(&site));
}

#[test]
fn ports_that_join_and_leave_put_off_no_sweep() {
    let mut site = Site::new(PARTITIONS);
    let sweeps = |site: &Site| {
        let asked = |datagram: &&Datagram| datagram.mad.attribute() == Attribute::SWITCH_INFO;
        site.running.sent.iter().filter(asked).count()
    };
    let before = sweeps(&site);
    site.running.run_for(Duration::from_secs(60));
    let quiet = sweeps(&site) - before;
    for round in 0..12 {
        let method = if round % 2 == 0 { Method::SET } else { Method::DELETE };
        site.ask(1, method, group(1));
        site.running.run_for(Duration::from_secs(5));
    }
    let busy = sweeps(&site) - before - quiet;
    assert!(quiet > 0 && busy >= quiet, "{busy} requests of sweeps while a port joins, {quiet} before");
}

#[test]
fn the_bound_of_multicast_tables_that_another_manager_left_is_lifted() {
    let mut site = Site::new(PARTITIONS);
    let full = site.tables();
    // At the switch of a host, as another manager would: no group is forwarded.
    let written = site.running.sent.iter().rfind(|datagram| {
        (datagram.mad.method(), datagram.mad.attribute()) == (Method::SET, Attribute::SWITCH_INFO)
    });
    let mut info = SwitchInfo::decode(written.unwrap().mad.smp_data()).unwrap();
    assert_eq!(info.multicast_fdb_top, 0xbfff + info.multicast_fdb_capacity);
    (info.multicast_fdb_top, info.port_state_change) = (0xbfff, false);
    let host = tree().end_nodes().nth(5).unwrap().1.id.clone();
    site.running.write_from(&host, &[1], (Attribute::SWITCH_INFO, 0), info.encode());
    assert_ne!(site.tables(), full);
    site.running.run_for(Duration::from_secs(120));
    assert_eq!(site.tables(), full);
}

#[test]
fn the_next_manager_keeps_trees_until_ports_had_time_to_join_again() {
    let mut site = Site::new(PARTITIONS);
    let planned = site.tables();
    for host in [3, 9, 15, 20] {
        site.ask(host, Method::SET, group(1));
    }
    site.ask(7, Method::SET, group(2));
    site.running.run_for(Duration::from_secs(5));
    let joined = site.tables();
    assert_ne!(joined, planned);
    let kept = serde_json::to_string(&site.running.kept).unwrap();
    let qkey = u32::from_str_radix("0b1b", 16).unwrap();
    assert!(kept.contains("receives") && !kept.contains(&format!(":{qkey},")), "members, but no Q_Key");
    // It stops after Sets of a multicast table, and goes on.
    for _ in 0..2 {
        site.restart();
        let sent = site.running.sent.len();
        site.running.run_for(Duration::from_secs(20));
        assert_eq!(site.tables(), joined);
        let is_write = |sent: &&Datagram| {
            sent.mad.method() == Method::SET && sent.mad.attribute() == Attribute::MULTICAST_FORWARDING
        };
        assert_eq!(site.running.sent[sent..].iter().filter(is_write).count(), 0);
    }
    // Some join again, in another order; a new group gets another multicast LID.
    site.ask(5, Method::SET, group(3));
    site.ask(7, Method::SET, group(2));
    for host in [20, 3] {
        site.ask(host, Method::SET, group(1));
    }
    site.running.run_for(Duration::from_secs(5));
    let with_new = site.tables();
    let entries = |tables: &[BTreeMap<u16, Vec<u8>>]| -> BTreeSet<u16> {
        tables.iter().flat_map(|table| table.keys().copied()).collect()
    };
    assert_eq!(entries(&with_new).len(), entries(&joined).len() + 1);
    for (new, old) in with_new.iter().zip(&joined) {
        assert!(old.iter().all(|(mlid, ports)| new.get(mlid) == Some(ports)), "what was there has stayed");
    }
    // The others do not.
    site.running.run_for(Duration::from_secs(70));
    let mut undisturbed = Site::new(PARTITIONS);
    for (host, number) in [(3, 1), (7, 2), (20, 1), (5, 3)] {
        undisturbed.ask(host, Method::SET, group(number));
        undisturbed.running.run_for(Duration::from_secs(2));
    }
    assert_eq!(site.tables(), undisturbed.tables());
    assert_eq!(site.running.kept.groups.iter().map(|group| group.members.len()).sum::<usize>(), 4);
}
