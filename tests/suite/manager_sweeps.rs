//! A manager that keeps running: what it detects by traps and by sweeps, how it reacts, and how many requests that
//! takes.

use std::time::Duration;

use fabric_model::Topology;
use fabric_model::generate::FatTree;
use fabric_sim::{Fabric, PortId};
use ib_wire::{
    Attribute, Datagram, DirectedRoute, LidAddress, Mad, Method, NodeKind, PhysicalState, Pkey, PkeyBlock,
    PortInfo, PortState, SmInfo, SmState,
};
use subnet_manager::{PersistentState, SmEvent};

use crate::in_process::fleet::Dice;
use crate::in_process::running_manager::RunningManager;

const SECOND: Duration = Duration::from_secs(1);

fn tree() -> Topology {
    FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap()
}

/// A manager that has programmed its fabric.
fn up(is_guarding: bool) -> RunningManager {
    let mut manager_run = RunningManager::new(tree(), is_guarding, PersistentState::default());
    manager_run.run_for(SECOND);
    assert_eq!(manager_run.told(|event| matches!(event, SmEvent::Programmed(_))), 1);
    manager_run.events.clear();
    manager_run
}

fn is_programmed(event: &SmEvent) -> bool {
    matches!(event, SmEvent::Programmed(_))
}

fn states(manager_run: &RunningManager, host: &str) -> (PortState, PortState) {
    let port = manager_run.fabric.find_port(host).unwrap();
    let peer = manager_run.fabric.port_forwarding(port).peer.unwrap();
    (manager_run.fabric.state_of(port), manager_run.fabric.state_of(peer))
}

#[test]
fn while_nothing_happens_sweeps_read_and_write_nothing() {
    for is_guarding in [false, true] {
        let mut manager_run = up(is_guarding);
        let before = manager_run.manager.counts();
        manager_run.run_for(60 * SECOND);
        let (gets, sets) = manager_run.sent_since(before);
        assert!(gets > 0 && sets == 0, "{gets} Gets, {sets} Sets");
        assert_eq!(manager_run.events.len(), 0, "{:?}", manager_run.events);
    }
}

/// The last port from the switch of a host to another switch.
fn uplink(fabric: &Fabric, host: &str) -> PortId {
    let leaf = fabric.port_forwarding(fabric.find_port(host).unwrap()).peer.unwrap();
    let is_uplink = |port: &PortId| {
        let peer = fabric.port_forwarding(*port).peer;
        peer.is_some_and(|peer| fabric.node_of(peer).kind == NodeKind::Switch)
    };
    fabric.ports_of(fabric.device_id_of(leaf)).filter(is_uplink).last().unwrap()
}

#[test]
fn a_replugged_cable_costs_only_the_changed_blocks() {
    let mut manager_run = up(true);
    let uplink = uplink(&manager_run.fabric, "host-00002");
    let old = manager_run.plan.clone().unwrap();
    let before = manager_run.manager.counts();
    manager_run.fabric.unplug(manager_run.now, uplink);
    manager_run.run_for(SECOND);
    let new = manager_run.plan.clone().unwrap();
    let changed: u64 = new
        .switches()
        .map(|switch| {
            let old = old.switch(switch.guid).unwrap();
            let blocks = 0..switch.linear.block_count();
            blocks.filter(|block| old.linear_block(*block) != switch.linear_block(*block)).count() as u64
        })
        .sum();
    let (gets, sets) = manager_run.sent_since(before);
    assert!(changed > 0, "the routes change");
    // Two switches say that they have been heard; a block may be written twice, emptied first.
    assert!(sets <= 2 * changed + 2, "{sets} Sets for {changed} blocks that change");
    assert!(gets < 60, "{gets} Gets: only the two switches at the ends are looked at");
    assert_eq!(manager_run.told(is_programmed), 1);

    manager_run.fabric.plug(manager_run.now, uplink);
    manager_run.run_for(5 * SECOND);
    assert_eq!(manager_run.fabric.state_of(uplink), PortState::Active, "it carries data again");
    let routes = |plan: &fabric_model::FabricPlan| -> Vec<_> {
        plan.switches().map(|switch| switch.linear.to_exits()).collect()
    };
    assert_eq!(routes(&old), routes(manager_run.plan.as_ref().unwrap()), "as before");
}

#[test]
fn sweeps_find_what_no_trap_told() {
    let mut manager_run = up(true);
    manager_run.is_deaf = true;
    let host = manager_run.fabric.find_port("host-00005").unwrap();
    manager_run.fabric.flap(manager_run.now, host, Duration::from_millis(50));
    manager_run.run_for(SECOND);
    assert_ne!(states(&manager_run, "host-00005").0, PortState::Active, "nobody told");
    manager_run.run_for(15 * SECOND);
    assert_eq!(states(&manager_run, "host-00005"), (PortState::Active, PortState::Active));
}

/// Software on a host retrains the link of its port and sets another MasterSMLID, as opensm does.
fn retrain(fabric: &mut Fabric, now: Duration, host: &str) {
    let port = fabric.find_port(host).unwrap();
    let mut info = PortInfo::decode(&fabric.port_info_of(port, 1).unwrap()).unwrap();
    (info.state, info.physical_state, info.master_sm_lid) =
        (PortState::Down, PhysicalState::NoChange, info.lid);
    let mut mad = Mad::directed(Method::SET, Attribute::PORT_INFO, 1, &DirectedRoute::default());
    *mad.smp_data_mut() = info.encode();
    let here = LidAddress::Permissive;
    fabric.handle_datagram(now, port, Datagram::subnet_management(here, here, mad));
}

/// Checks that every link carries data and that the next manager has nothing to write.
fn assert_settled(manager_run: RunningManager, is_guarding: bool, what: &str) {
    let RunningManager { fabric, now, kept, partitions, .. } = manager_run;
    let names = (tree().nodes().map(|(_, node)| node.id.clone())).collect::<Vec<_>>();
    for name in names {
        let device = fabric.find_device(&name).unwrap();
        for port in fabric.ports_of(device).filter(|port| fabric.port_forwarding(*port).peer.is_some()) {
            let number = fabric.number_of(port);
            assert_eq!(fabric.state_of(port), PortState::Active, "{what}: {name} {number}");
        }
    }
    let mut next = RunningManager::on(fabric, &tree(), is_guarding, kept);
    (next.now, next.partitions) = (now, partitions);
    next.run_for(5 * SECOND);
    assert_eq!((next.told(is_programmed), next.manager.counts().sets), (1, 0), "{what}");
}

#[test]
fn a_link_that_trains_again_costs_no_routes() {
    let mut manager_run = up(false);
    let before = manager_run.manager.counts();
    retrain(&mut manager_run.fabric, manager_run.now, "host-00007");
    assert_eq!(states(&manager_run, "host-00007"), (PortState::Initialize, PortState::Initialize));
    manager_run.run_for(SECOND / 2);
    assert_eq!(states(&manager_run, "host-00007"), (PortState::Active, PortState::Active));
    assert_eq!(
        manager_run.told(|event| matches!(event, SmEvent::Discovered(_))),
        0,
        "the fabric is what it was"
    );
    let (_, sets) = manager_run.sent_since(before);
    assert_eq!(
        sets,
        1 + 1 + 2 * 2,
        "the switch was heard, the host knows its manager, both ends step up twice"
    );
}

#[test]
fn a_link_comes_back_whichever_end_is_discovered_first() {
    for sent in 0..40 {
        let mut manager_run = up(false);
        let host = manager_run.fabric.find_port("host-00007").unwrap();
        // Its host is rechecked because a subnet manager appears there, the switch because of the link.
        manager_run.fabric.set_is_sm(manager_run.now, host, true);
        manager_run.meanwhile = Some((sent, Box::new(|fabric, now| retrain(fabric, now, "host-00007"))));
        manager_run.run_for(30 * SECOND);
        assert_settled(manager_run, false, &format!("down after {sent} datagrams"));
    }
}

#[test]
fn a_running_manager_repairs_faults_at_any_datagram() {
    // With 22, 24, 42 and 93, ports that were down when they were to be armed once stayed so.
    (1..=100).for_each(trouble);
}

/// Links go down and nodes restart while a manager works, which then gets time to repair the fabric.
fn trouble(seed: u64) {
    let mut dice = Dice::new(seed);
    let is_running = dice.below(2) == 0;
    // Under keys, cables that were never seen are not followed.
    let is_guarding = is_running && dice.below(2) == 0;
    let mut manager_run = if is_running {
        up(is_guarding)
    } else {
        RunningManager::new(tree(), is_guarding, PersistentState::default())
    };
    manager_run.is_deaf = dice.below(4) == 0;
    for _ in 0..=dice.below(4) {
        if manager_run.discovery.is_some() && dice.below(2) == 0 {
            let member = manager_run.fabric.find_port(&format!("host-{:05}", 2 + dice.below(15))).unwrap();
            manager_run.partitions = format!("blue=0x123 : {}=full;", manager_run.fabric.guid_of(member));
            manager_run.decide();
        }
        let name = match dice.below(2) {
            0 => format!("host-{:05}", 2 + dice.below(15)),
            _ => {
                ["leaf-01", "leaf-02", "leaf-03", "leaf-04", "spine-01", "spine-02"][dice.below(6)].to_owned()
            }
        };
        let (what, port) = (dice.below(3), dice.below(8));
        let down_for = Duration::from_millis([0, 1, 20, 900][dice.below(4)]);
        let fault = move |fabric: &mut Fabric, now| {
            let device = fabric.find_device(&name).unwrap();
            let ports: Vec<_> =
                fabric.ports_of(device).filter(|it| fabric.port_forwarding(*it).peer.is_some()).collect();
            let port = ports[port % ports.len()];
            match what {
                0 => fabric.reboot(now, device),
                1 => fabric.set_is_sm(now, port, fabric.node_of(port).kind != NodeKind::Switch),
                _ => {}
            }
            if what > 0 {
                fabric.flap(now, port, down_for);
            }
        };
        let after = dice.below(if is_running { 60 } else { 450 });
        manager_run.meanwhile = Some((after, Box::new(fault)));
        manager_run.run_for(Duration::from_millis([0, 10, 500, 1500, 4000][dice.below(5)]));
    }
    manager_run.meanwhile = None;
    manager_run.run_for(60 * SECOND);
    assert_settled(manager_run, is_guarding, &format!("seed {seed}"));
}

#[test]
fn writes_of_a_superseded_plan_do_not_stay() {
    let key = Pkey::from_wire(0x8123).unwrap();
    let mut held = 0;
    for sent in 0..4 {
        let mut manager_run = up(true);
        let member = manager_run.fabric.find_port("host-00006").unwrap();
        manager_run.partitions = format!("blue=0x123 : {}=full;", manager_run.fabric.guid_of(member));
        manager_run.decide();
        manager_run.exchange_at_most(sent);
        held += usize::from(manager_run.fabric.holds_pkey(member, key));
        manager_run.partitions.clear();
        manager_run.decide();
        manager_run.run_for(30 * SECOND);
        assert!(!manager_run.fabric.holds_pkey(member, key), "replaced after {sent} datagrams");
    }
    assert!(held > 0, "some of it was written");
}

#[test]
fn a_node_that_restarts_is_made_what_it_was_under_its_key() {
    for name in ["host-00007", "leaf-02", "spine-01"] {
        let mut manager_run = up(true);
        let device = manager_run.fabric.find_device(name).unwrap();
        manager_run.fabric.reboot(manager_run.now, device);
        manager_run.run_for(20 * SECOND);
        assert!(manager_run.told(is_programmed) >= 1, "{name}");
        for port in manager_run
            .fabric
            .ports_of(device)
            .filter(|port| manager_run.fabric.port_forwarding(*port).peer.is_some())
        {
            assert_eq!(manager_run.fabric.state_of(port), PortState::Active, "{name}");
        }
        let guard = manager_run.fabric.ports_of(device).next().unwrap();
        assert!(manager_run.fabric.port_view(guard).m_key_set, "{name} is closed again");
        let before = manager_run.manager.counts();
        manager_run.run_for(30 * SECOND);
        assert_eq!(manager_run.sent_since(before).1, 0, "{name}: nothing is left to do");
    }
}

#[test]
fn what_somebody_else_changes_is_told_and_repaired() {
    let mut manager_run = up(false);
    let victim = manager_run.fabric.find_port("host-00003").unwrap();
    let rogue = Pkey::from_wire(0x8666).unwrap();
    let mut keys = PkeyBlock([None; 32]);
    (keys.0[0], keys.0[1]) = (Some(Pkey::DEFAULT_FULL), Some(rogue));
    // From the first host of the same leaf: out, and back to the third.
    manager_run.write_from("host-00002", &[1, 3], (Attribute::PKEY_TABLE, 0), keys.encode());
    manager_run.write_from("host-00002", &[1], (Attribute::LINEAR_FORWARDING, 0), [1; 64]);
    assert!(manager_run.fabric.holds_pkey(victim, rogue), "the fabric is open");
    let before = manager_run.manager.counts();
    manager_run.run_for(15 * SECOND);
    assert!(!manager_run.fabric.holds_pkey(victim, rogue));
    let drift = |what: Attribute| {
        manager_run.told(|event| matches!(event, SmEvent::Drift { attribute, .. } if *attribute == what))
    };
    assert_eq!((drift(Attribute::PKEY_TABLE), drift(Attribute::LINEAR_FORWARDING)), (1, 1));
    let (_, sets) = manager_run.sent_since(before);
    assert!((2..=4).contains(&sets), "{sets} Sets");

    let mut closed = up(true);
    closed.write_from("host-00002", &[1, 3], (Attribute::PKEY_TABLE, 0), keys.encode());
    let victim = closed.fabric.find_port("host-00003").unwrap();
    assert!(!closed.fabric.holds_pkey(victim, rogue), "a guarded fabric takes it from nobody");
}

#[test]
fn a_flood_of_traps_leads_to_few_reads() {
    let mut manager_run = up(false);
    let leaf =
        manager_run.fabric.port_forwarding(manager_run.fabric.find_port("host-00002").unwrap()).peer.unwrap();
    let issuer = manager_run
        .fabric
        .lid(manager_run.fabric.ports_of(manager_run.fabric.device_id_of(leaf)).next().unwrap());
    let trap = ib_wire::notice::Trap::LinkStateChanged(ib_wire::notice::SwitchEvent {
        lid: issuer.map(ib_wire::LidAddress::from),
    });
    let notice = ib_wire::notice::Notice::generic(trap, issuer.map(ib_wire::LidAddress::from));
    let class = ib_wire::ManagementClass::SUBNET_LID;
    let mut mad = ib_wire::Mad::new(class, ib_wire::Method::TRAP, Attribute::NOTICE, 0);
    *mad.smp_data_mut() = notice.encode_smp();
    let lid = ib_wire::LidAddress::from(issuer.unwrap());
    let own = ib_wire::LidAddress::from(manager_run.plan.as_ref().unwrap().manager().lid);
    let datagram = ib_wire::Datagram::subnet_management(lid, own, mad);
    let before = manager_run.manager.counts();
    for _ in 0..100_000 {
        manager_run.manager.handle_datagram(manager_run.now, &datagram);
    }
    manager_run.run_for(SECOND / 2);
    let (gets, sets) = manager_run.sent_since(before);
    assert!(gets > 0 && gets < 20, "one look at one switch: {gets} Gets");
    assert_eq!(sets, 0);
}

#[test]
fn a_node_without_its_key_is_not_trusted_elsewhere() {
    let mut first = up(true);
    let (kept, topology) = (first.kept.clone(), tree());
    let (here, there) = ("host-00006", "host-00007");
    let guid = |name: &str| {
        let port = first.fabric.find_port(name).unwrap();
        first.fabric.node_of(port).node_guid
    };
    let location = |name: &str| {
        let peer = first.fabric.port_forwarding(first.fabric.find_port(name).unwrap()).peer.unwrap();
        let near = first.fabric.node_of(peer).node_guid;
        subnet_manager::Location { near, port: first.fabric.port_forwarding(peer).number }
    };
    let mut wrong = kept.clone();
    wrong.bindings.rebind(Some(location(here)), guid(there));
    wrong.bindings.rebind(Some(location(there)), guid(here));
    let (guid_here, location_here) = (guid(here), location(here));
    let (guid_there, location_there) = (guid(there), location(there));
    let device = first.fabric.find_device(here).unwrap();
    first.fabric.reboot(first.now, device);

    let mut next = RunningManager::on(first.fabric, &topology, true, wrong);
    next.now = first.now;
    next.run_for(40 * SECOND);
    let stranger = |event: &SmEvent| {
        matches!(event, SmEvent::Stranger { location, claims }
            if *location == Some(location_here) && *claims == guid_here)
    };
    assert_eq!(next.told(stranger), 1, "told once");
    let silent = |event: &SmEvent| {
        matches!(event, SmEvent::SilentLocation { location, last }
            if *location == Some(location_there) && *last == Some(guid_here))
    };
    assert_eq!(next.told(silent), 1, "the other has its key, and is shown another");
    assert_eq!(next.plan.as_ref().unwrap().adapter_ports().len(), 14, "both are left out");
    let port = next.fabric.find_port(here).unwrap();
    assert!(!next.fabric.port_view(port).m_key_set, "and got no key");

    next.manager.rebind(next.now, Some(location_here), guid_here);
    next.run_for(40 * SECOND);
    assert_eq!(next.plan.as_ref().unwrap().adapter_ports().len(), 15, "until somebody vouches for it");
    assert!(next.fabric.port_view(port).m_key_set);
    next.manager.rebind(next.now, Some(location_there), guid_there);
    next.run_for(40 * SECOND);
    assert_eq!(next.plan.as_ref().unwrap().adapter_ports().len(), 16);
}

#[test]
fn another_manager_is_told_once_and_told_who_is_master() {
    let mut manager_run = up(true);
    let other = manager_run.fabric.find_port("host-00009").unwrap();
    manager_run.fabric.set_is_sm(manager_run.now, other, true);
    manager_run.run_for(30 * SECOND);
    assert_eq!(manager_run.told(|event| matches!(event, SmEvent::ForeignManager { .. })), 1);
    manager_run.fabric.set_is_sm(manager_run.now, other, false);
    manager_run.run_for(30 * SECOND);
    assert_eq!(manager_run.told(|event| matches!(event, SmEvent::ForeignManagerGone { .. })), 1);
}

#[test]
fn what_cannot_be_kept_is_not_written_and_is_once_it_can() {
    for is_guarding in [false, true] {
        let mut manager_run = up(is_guarding);
        let member = manager_run.fabric.find_port("host-00005").unwrap();
        let key = Pkey::from_wire(0x8017).unwrap();
        manager_run.is_disk_full = true;
        manager_run.partitions = format!("red=0x17 : {}=full;\n", manager_run.fabric.guid_of(member));
        let before = manager_run.manager.counts();
        manager_run.decide();
        manager_run.run_for(60 * SECOND);
        assert_eq!(manager_run.sent_since(before).1, 0, "nothing is written that is not safe");
        assert!(!manager_run.fabric.holds_pkey(member, key) && manager_run.manager.is_holding_back());

        // Safe work continues: a host that restarts is programmed again according to the former plan.
        let rebooted = manager_run.fabric.find_device("host-00007").unwrap();
        manager_run.fabric.reboot(manager_run.now, rebooted);
        assert_ne!(states(&manager_run, "host-00007").0, PortState::Active);
        manager_run.run_for(60 * SECOND);
        assert_eq!(states(&manager_run, "host-00007").0, PortState::Active);
        assert!(!manager_run.fabric.holds_pkey(member, key));

        manager_run.is_disk_full = false;
        manager_run.run_for(30 * SECOND);
        assert!(manager_run.fabric.holds_pkey(member, key) && !manager_run.manager.is_holding_back());
        assert_eq!(manager_run.kept.decisions, *manager_run.plan.as_ref().unwrap().decisions());
    }
}

#[test]
fn a_new_manager_on_a_full_disk_sends_no_set() {
    let mut manager_run = RunningManager::new(tree(), true, PersistentState::default());
    manager_run.is_disk_full = true;
    manager_run.run_for(60 * SECOND);
    assert_eq!((manager_run.manager.counts().sets, manager_run.told(is_programmed)), (0, 0));
    manager_run.is_disk_full = false;
    manager_run.run_for(60 * SECOND);
    assert_eq!(manager_run.told(is_programmed), 1);
}

/// SMInfo of another manager, as the software of its host answers.
fn standby(manager_run: &RunningManager, port: PortId) -> SmInfo {
    SmInfo {
        guid: Some(manager_run.fabric.guid_of(port)),
        sm_key: None,
        activity: 1,
        priority: 3,
        state: SmState::Standby,
    }
}

fn sm_infos(manager_run: &RunningManager) -> Vec<&Mad> {
    manager_run
        .sent
        .iter()
        .map(|sent| &sent.mad)
        .filter(|mad| mad.attribute() == Attribute::SM_INFO)
        .collect()
}

#[test]
fn no_management_key_is_ever_sent_in_sm_info() {
    let mut manager_run = up(true);
    let [answering, silent] =
        ["host-00009", "host-00011"].map(|host| manager_run.fabric.find_port(host).unwrap());
    for port in [answering, silent] {
        manager_run.fabric.set_is_sm(manager_run.now, port, true);
    }
    manager_run.other = Some((answering, standby(&manager_run, answering)));
    manager_run.run_for(120 * SECOND);
    // The host restarts, a cable is moved, a partition is added: every phase sends its own requests.
    let device = manager_run.fabric.find_device("host-00009").unwrap();
    manager_run.fabric.reboot(manager_run.now, device);
    manager_run.run_for(60 * SECOND);
    manager_run.partitions = format!("red=0x17 : {}=full;\n", manager_run.fabric.guid_of(answering));
    manager_run.decide();
    manager_run.run_for(60 * SECOND);

    let asked = sm_infos(&manager_run);
    assert!(asked.len() > 10, "both were asked: {} times", asked.len());
    assert!(asked.iter().all(|mad| mad.m_key().is_none()), "a key was shown to software");
    let sets: Vec<&Mad> =
        manager_run.sent.iter().map(|sent| &sent.mad).filter(|mad| mad.method() == Method::SET).collect();
    assert!(!sets.is_empty() && sets.iter().all(|mad| mad.m_key().is_some()), "agents are shown theirs");
}

#[test]
fn a_silent_manager_is_told_once_and_asked_ever_more_rarely() {
    let mut manager_run = up(true);
    let other = manager_run.fabric.find_port("host-00009").unwrap();
    manager_run.fabric.set_is_sm(manager_run.now, other, true);
    manager_run.run_for(60 * SECOND);
    let is_silent = |event: &SmEvent| matches!(event, SmEvent::ForeignManager { info: None, .. });
    assert_eq!(manager_run.told(is_silent), 1);
    manager_run.sent.clear();
    manager_run.run_for(3600 * SECOND);
    assert_eq!(manager_run.told(is_silent), 1, "told once");
    let asked = sm_infos(&manager_run).len();
    assert!((6..=12).contains(&asked), "asked {asked} times in an hour");
    assert_eq!(
        manager_run.sent.iter().filter(|sent| sent.mad.method() == Method::SET).count(),
        0,
        "not fought"
    );

    manager_run.other = Some((other, standby(&manager_run, other)));
    manager_run.run_for(700 * SECOND);
    let answers = |event: &SmEvent| matches!(event, SmEvent::ForeignManager { info: Some(_), .. });
    assert_eq!(manager_run.told(answers), 1, "it answers now");
}

/// Each silent one is asked for seconds, and few at a time.
#[test]
fn hosts_that_claim_to_run_managers_and_are_silent_delay_nothing() {
    let mut manager_run = RunningManager::new(tree(), true, PersistentState::default());
    for host in 2..=16 {
        let port = manager_run.fabric.find_port(&format!("host-{host:05}")).unwrap();
        manager_run.fabric.set_is_sm(manager_run.now, port, true);
    }
    manager_run.run_for(SECOND);
    assert_eq!(manager_run.told(is_programmed), 1);
    // A cable is pulled while they are asked.
    let uplink = uplink(&manager_run.fabric, "host-00002");
    assert!(manager_run.fabric.unplug(manager_run.now, uplink));
    manager_run.run_for(SECOND);
    assert_eq!(manager_run.told(is_programmed), 2);
    manager_run.run_for(30 * SECOND);
    assert_eq!(manager_run.told(|event| matches!(event, SmEvent::ForeignManager { info: None, .. })), 15);
}

#[test]
fn a_manager_that_answers_is_asked_with_every_sweep() {
    let mut manager_run = up(true);
    let other = manager_run.fabric.find_port("host-00009").unwrap();
    manager_run.other = Some((other, standby(&manager_run, other)));
    manager_run.fabric.set_is_sm(manager_run.now, other, true);
    manager_run.run_for(600 * SECOND);
    let asked = sm_infos(&manager_run).len();
    assert!(asked >= 50, "asked {asked} times in ten minutes");
    assert_eq!(manager_run.told(|event| matches!(event, SmEvent::ForeignManager { .. })), 1);
}

#[test]
fn a_partition_costs_two_writes_a_member_and_their_read_back() {
    let mut manager_run = up(true);
    let members: Vec<String> = (2..=5)
        .map(|host| {
            let port = manager_run.fabric.find_port(&format!("host-{host:05}")).unwrap();
            format!("{}=full", manager_run.fabric.guid_of(port))
        })
        .collect();
    let before = manager_run.manager.counts();
    manager_run.partitions = format!("blue=0x123 : {};", members.join(", "));
    manager_run.decide();
    manager_run.run_for(SECOND);
    assert_eq!(
        manager_run.sent_since(before),
        (8, 8),
        "each adapter port and its switch port, and both are read back"
    );
    let before = manager_run.manager.counts();
    manager_run.partitions.clear();
    manager_run.decide();
    manager_run.run_for(SECOND);
    assert_eq!(manager_run.sent_since(before), (8, 8));
}

#[test]
fn a_manager_cut_off_does_not_report_programmed() {
    let mut manager_run = up(true);
    let member = manager_run.fabric.find_port("host-00006").unwrap();
    let key = Pkey::from_wire(0x8123).unwrap();
    manager_run.partitions = format!("blue=0x123 : {}=full;", manager_run.fabric.guid_of(member));
    manager_run.fabric.unplug(manager_run.now, manager_run.port);
    manager_run.run_until_cut_off();
    manager_run.events.clear();
    manager_run.apply_anyway();
    manager_run.run_for(30 * SECOND);
    assert_eq!(manager_run.told(is_programmed), 0, "nobody was reached");
    assert!(!manager_run.fabric.holds_pkey(member, key));

    manager_run.fabric.plug(manager_run.now, manager_run.port);
    manager_run.run_for(5 * SECOND);
    assert!(manager_run.told(is_programmed) >= 1, "and soon after it is");
    assert!(manager_run.fabric.holds_pkey(member, key));
}

/// The first uplink is that of most of the manager's own routes: nearly all nodes stop answering at once.
#[test]
fn a_link_that_breaks_in_a_programming_run_is_routed_around() {
    for (hosts, radix, guards) in [(216, 12, false), (648, 36, true)] {
        let topology = FatTree { radix, ..FatTree::with_hosts(hosts) }.generate().unwrap();
        for (sent, uplink) in [(3, 0), (70, 1), (400, 0)] {
            let mut run = RunningManager::new(topology.clone(), guards, PersistentState::default());
            run.run_for(Duration::from_secs(15));
            run.partitions.push_str("green=0x102 : ALL_CAS=limited;\n");
            run.decide();
            run.exchange_at_most(sent);
            let took = run.break_uplink(uplink, 8 * SECOND);
            println!("{hosts} hosts, uplink {uplink}, after {sent} datagrams: routed around after {took:?}");
            assert!(took.is_some(), "{hosts} hosts, after {sent}");
            let found = run.events.iter().filter_map(|event| match event {
                SmEvent::Discovered(discovery) => Some(discovery.topology.end_nodes().count()),
                _ => None,
            });
            assert!(found.min().unwrap_or(0) >= hosts as usize, "no host is taken for gone");
        }
    }
}

/// A program plans beside its manager, which may sweep meanwhile: what it asks for then is not lost.
#[test]
fn a_survey_and_a_comparison_that_are_asked_for_during_a_sweep_follow_it() {
    let mut manager_run = up(true);
    let plan = manager_run.plan.clone().unwrap();
    let before = manager_run.manager.counts();
    let now = manager_run.now;
    manager_run.manager.rediscover(now);
    assert!(manager_run.manager.progress().total > 0, "a sweep has begun");
    manager_run.manager.survey(now);
    manager_run.run_for(SECOND);
    assert_eq!(manager_run.told(|event| matches!(event, SmEvent::Surveyed(_))), 1);
    let now = manager_run.now;
    manager_run.manager.rediscover(now);
    manager_run.manager.compare(now, plan);
    manager_run.run_for(SECOND);
    assert_eq!(manager_run.told(|event| matches!(event, SmEvent::Compared(same) if same.is_empty())), 1);
    let (gets, sets) = manager_run.sent_since(before);
    assert!(gets > 0 && sets == 0, "{gets} Gets, {sets} Sets");
}
