//! M_Keys that change: by epoch and by secret, whatever is lost, killed, moved or restored meanwhile.

use std::process::Command;
use std::time::Duration;

use fabric_model::Topology;
use fabric_model::generate::{FatTree, Torus};
use fabric_sim::{BuiltInProfile, Fabric, PortId, Probability};
use ib_wire::{Datagram, Guid, LidAddress, MKey, ManagementClass, NodeKind, PortNum, PortState};
use subnet_manager::{
    Manager, ManagerSettings, PersistentState, RotationRefused, SECRET_LEN_MIN, SiteSecret, SmEvent,
};

use crate::in_process::running_manager::RunningManager;
use crate::rig::tree::{HOST, guids, host, once};
use crate::rig::{self, SmDaemon};

const SECOND: Duration = Duration::from_secs(1);

/// The secret of [`RunningManager`], and another.
pub const OLD: u8 = 0x5a;
pub const NEW: u8 = 0x33;

pub fn secret(byte: u8) -> SiteSecret {
    SiteSecret::new(vec![byte; SECRET_LEN_MIN]).unwrap()
}

pub fn tree() -> Topology {
    FatTree { radix: 8, ..FatTree::with_hosts(24) }.generate().unwrap()
}

pub fn up(topology: &Topology, profile: BuiltInProfile) -> RunningManager {
    let mut run =
        RunningManager::with_devices(topology, &profile.profile(), true, PersistentState::default());
    run.partitions = "blue=0x101 : ALL_CAS=limited;\n".to_owned();
    run.run_for(30 * SECOND);
    assert!(run.told(|event| matches!(event, SmEvent::Programmed(_))) > 0);
    run
}

/// The M_Keys of all nodes: port 0 of switches, and cabled ports of adapters.
pub fn held(fabric: &Fabric) -> Vec<(Guid, Option<MKey>)> {
    let ports = fabric.device_ids().flat_map(|device| fabric.ports_of(device));
    let guards = |port: &PortId| match fabric.node_of(*port).kind {
        NodeKind::Switch => fabric.number_of(*port) == PortNum::MANAGEMENT,
        _ => fabric.state_of(*port) != PortState::Down,
    };
    ports.filter(guards).map(|port| (fabric.node_of(port).node_guid, fabric.m_key_of(port))).collect()
}

/// How many nodes hold the key of a secret and an epoch.
pub fn holding(fabric: &Fabric, byte: u8, epoch: u32) -> usize {
    let secret = secret(byte);
    held(fabric).into_iter().filter(|(guid, key)| *key == Some(secret.key(*guid, epoch))).count()
}

/// Another manager takes over, with what the one before stored.
pub fn restart(run: &mut RunningManager, secrets: &[u8], kept: PersistentState) {
    run.manager = Manager::new(ManagerSettings::default(), secrets.iter().map(|byte| secret(*byte)), &kept);
    run.kept = kept;
    run.plan = None;
    run.events.clear();
    // The clock of a manager may begin anywhere.
    run.manager.handle_timeout(run.now);
}

pub fn lost_nodes(run: &RunningManager) -> usize {
    run.told(|event| matches!(event, SmEvent::SilentLocation { .. } | SmEvent::Stranger { .. }))
}

/// The node that a datagram is sent to.
pub fn destination(run: &RunningManager, sent: &Datagram) -> Guid {
    let fabric = &run.fabric;
    if let (ManagementClass::SUBNET_LID, LidAddress::Unicast(lid)) = (sent.mad.class(), sent.dlid) {
        // The answer to a trap.
        let mut ports = fabric.device_ids().flat_map(|device| fabric.ports_of(device));
        return fabric.node_of(ports.find(|port| fabric.owns(*port, lid)).unwrap()).node_guid;
    }
    let mut at = run.port;
    for hop in 1..=sent.mad.hop_count() {
        let exit = PortNum::new(sent.mad.initial_path(hop).unwrap()).unwrap();
        let port = fabric.port_of(fabric.device_id_of(at), exit).unwrap();
        at = fabric.port_forwarding(port).peer.unwrap();
    }
    fabric.node_of(at).node_guid
}

/// What to rotate to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    NextEpoch,
    NewSecret,
}

impl To {
    fn begin(self, run: &mut RunningManager) {
        let new = (self == Self::NewSecret).then(|| secret(NEW));
        run.manager.rotate_keys(run.now, new).unwrap();
    }

    fn reached(self, fabric: &Fabric) -> usize {
        match self {
            Self::NextEpoch => holding(fabric, OLD, 1),
            Self::NewSecret => holding(fabric, NEW, 0),
        }
    }
}

#[test]
fn every_node_gets_its_next_key_with_two_datagrams() {
    let torus = Torus { hosts_per_switch: 2, ..Torus::new([3, 4]) }.generate().unwrap();
    for (topology, profile) in [
        (tree(), BuiltInProfile::Strict),
        (torus, BuiltInProfile::ConnectX6Quantum),
        (tree(), BuiltInProfile::ConnectX3SwitchX),
    ] {
        for to in [To::NextEpoch, To::NewSecret] {
            let mut run = up(&topology, profile);
            let nodes = held(&run.fabric).len();
            assert_eq!(holding(&run.fabric, OLD, 0), nodes, "all have the first key");
            let before = run.manager.counts();
            to.begin(&mut run);
            run.run_for(3 * SECOND);
            assert_eq!(to.reached(&run.fabric), nodes, "{to:?}");
            let (gets, sets) = run.sent_since(before);
            assert_eq!(sets, nodes as u64, "one Set for each");
            assert!(gets >= nodes as u64 && gets < 3 * nodes as u64, "{gets} Gets, sweeps included");
            assert_eq!(run.told(|event| matches!(event, SmEvent::KeysRotated { absent: 0, .. })), 1);
            assert_eq!(run.manager.key_status().unwrap().behind, 0);
            // Nothing is lost, and nothing is done again.
            let before = run.manager.counts();
            run.run_for(120 * SECOND);
            assert_eq!((lost_nodes(&run), run.sent_since(before).1), (0, 0));
        }
    }
}

#[test]
fn a_manager_may_be_killed_at_every_datagram_of_a_rotation() {
    for to in [To::NextEpoch, To::NewSecret] {
        let mut run = up(&tree(), BuiltInProfile::Strict);
        let nodes = held(&run.fabric).len();
        let before = run.sent.len();
        to.begin(&mut run);
        run.run_for(SECOND);
        let whole = run.sent.len() - before;
        assert_eq!(to.reached(&run.fabric), nodes);
        assert!(whole >= 2 * nodes, "{whole} datagrams");
        let mut mixed = 0;
        for kill in 0..=whole {
            let mut run = up(&tree(), BuiltInProfile::Strict);
            to.begin(&mut run);
            run.exchange_at_most(kill);
            let what = format!("{to:?}, killed after {kill} of {whole}");
            let done = to.reached(&run.fabric);
            assert_eq!(done + holding(&run.fabric, OLD, 0), nodes, "{what}: each has the old or the new key");
            mixed += usize::from(done > 0 && done < nodes);
            let kept = run.kept.clone();
            restart(&mut run, &[OLD, NEW], kept);
            run.run_for(60 * SECOND);
            assert_eq!(lost_nodes(&run), 0, "{what}");
            // Killed before anything was stored, nothing has begun.
            let is_begun = run.kept.keys.epoch == 1 || run.kept.secret == Some(secret(NEW).fingerprint());
            let all = if is_begun { to.reached(&run.fabric) } else { holding(&run.fabric, OLD, 0) };
            assert_eq!(all, nodes, "{what}");
            assert_eq!(run.manager.key_status().unwrap().behind, 0, "{what}");
        }
        assert!(mixed > nodes / 2, "kills in between: {mixed}");
        println!("{to:?}: killed after each of {whole} datagrams, {mixed} times between old and new keys");
    }
}

#[test]
fn lost_and_repeated_datagrams_lose_no_node() {
    for seed in 1..=12 {
        let mut run = up(&tree(), BuiltInProfile::Strict);
        let nodes = held(&run.fabric).len();
        run.fabric.set_loss(None, Probability::try_from(f64::from(seed) * 0.02).unwrap());
        run.fabric.set_duplication(Probability::try_from(0.05).unwrap());
        To::NextEpoch.begin(&mut run);
        run.run_for(20 * SECOND);
        run.fabric.set_loss(None, Probability::NEVER);
        run.run_for(180 * SECOND);
        assert_eq!(holding(&run.fabric, OLD, 1), nodes, "with a loss of {} %", seed * 2);
        assert_eq!(run.manager.key_status().unwrap().behind, 0);
        assert_eq!(run.discovery.as_ref().unwrap().topology.end_nodes().count(), 24, "all are back");
    }
}

#[test]
fn a_manager_restored_from_an_old_backup_finds_the_epoch() {
    for rotations in 1..=3 {
        let mut run = up(&tree(), BuiltInProfile::Strict);
        let (nodes, backup) = (held(&run.fabric).len(), run.kept.clone());
        for _ in 0..rotations {
            To::NextEpoch.begin(&mut run);
            run.run_for(5 * SECOND);
        }
        assert_eq!(holding(&run.fabric, OLD, rotations), nodes);
        restart(&mut run, &[OLD], backup);
        run.run_for(120 * SECOND);
        assert_eq!(lost_nodes(&run), 0);
        assert_eq!(run.manager.key_status().unwrap().epoch, rotations);
        assert_eq!(holding(&run.fabric, OLD, rotations), nodes, "and all stay");
        assert_eq!(run.kept.keys.epoch, rotations, "it is stored");
        // Keys of later epochs were presented to their nodes alone.
        for (guid, _) in held(&run.fabric) {
            let keys: Vec<MKey> = (1..=6).map(|epoch| secret(OLD).key(guid, epoch)).collect();
            let shown =
                run.sent.iter().filter(|sent| sent.mad.m_key().is_some_and(|key| keys.contains(&key)));
            let mut ends = shown.map(|sent| destination(&run, sent)).peekable();
            assert!(ends.peek().is_some() && ends.all(|end| end == guid), "{guid}");
        }
    }
}

#[test]
fn a_node_that_was_away_gets_its_key_when_it_comes_back() {
    let topology = tree();
    let host = topology.end_nodes().nth(7).unwrap().1.clone();
    for to in [To::NextEpoch, To::NewSecret] {
        let mut run = up(&topology, BuiltInProfile::Strict);
        let port = run.fabric.find_port(&host.id).unwrap();
        let nodes = held(&run.fabric).len();
        run.fabric.unplug(run.now, port);
        run.run_for(30 * SECOND);
        to.begin(&mut run);
        run.run_for(10 * SECOND);
        assert_eq!(to.reached(&run.fabric), nodes - 1);
        assert_eq!(run.told(|event| matches!(event, SmEvent::KeysRotated { absent: 1, .. })), 1);
        assert_eq!(run.manager.key_status().unwrap().absent, [host.guid]);
        // The manager is restarted meanwhile: both secrets are needed as long as a node is behind.
        let kept = run.kept.clone();
        assert_eq!(kept.keys.older_secrets(), [secret(OLD).fingerprint()].into());
        restart(&mut run, &[OLD, NEW], kept);
        run.run_for(30 * SECOND);
        run.fabric.plug(run.now, port);
        run.run_for(60 * SECOND);
        assert_eq!((to.reached(&run.fabric), lost_nodes(&run)), (nodes, 0), "{to:?}");
        assert_eq!(run.kept.keys.older_secrets().len(), 0);
    }
}

#[test]
fn a_plan_that_comes_in_between_is_programmed() {
    for sent in [1, 7, 20, 40, 60] {
        let mut run = up(&tree(), BuiltInProfile::Strict);
        let nodes = held(&run.fabric).len();
        To::NextEpoch.begin(&mut run);
        run.exchange_at_most(sent);
        run.partitions.push_str("green=0x102 : ALL_CAS=limited;\n");
        run.decide();
        run.run_for(60 * SECOND);
        assert_eq!(holding(&run.fabric, OLD, 1), nodes, "after {sent}");
        let green = ib_wire::Pkey::from_wire(0x102).unwrap();
        let port = run.fabric.find_port(&tree().end_nodes().nth(3).unwrap().1.id).unwrap();
        assert!(run.fabric.holds_pkey(port, green), "after {sent}");
        assert_eq!(lost_nodes(&run), 0);
    }
}

/// Nodes that do not answer are asked for their old and their new key first: 9 seconds.
#[test]
fn a_link_that_breaks_in_a_rotation_is_routed_around() {
    let topology = FatTree { radix: 12, ..FatTree::with_hosts(216) }.generate().unwrap();
    for (sent, uplink) in [(3, 0), (70, 1), (200, 2), (400, 0)] {
        let mut run = up(&topology, BuiltInProfile::Strict);
        let nodes = held(&run.fabric).len();
        To::NextEpoch.begin(&mut run);
        run.exchange_at_most(sent);
        let took = run.break_uplink(uplink, 12 * SECOND);
        println!("uplink {uplink}, after {sent} datagrams: routed around after {took:?}");
        assert!(took.is_some(), "after {sent}");
        run.run_for(60 * SECOND);
        assert_eq!(holding(&run.fabric, OLD, 1), nodes, "after {sent}");
        assert_eq!(run.manager.key_status().unwrap().behind, 0);
    }
}

#[test]
fn nothing_changes_while_the_state_cannot_be_stored() {
    let mut run = up(&tree(), BuiltInProfile::Strict);
    let nodes = held(&run.fabric).len();
    run.is_disk_full = true;
    let before = run.manager.counts();
    To::NextEpoch.begin(&mut run);
    run.run_for(30 * SECOND);
    assert_eq!((holding(&run.fabric, OLD, 0), run.sent_since(before).1), (nodes, 0));
    run.is_disk_full = false;
    run.run_for(30 * SECOND);
    assert_eq!(holding(&run.fabric, OLD, 1), nodes);
}

#[test]
fn rotations_are_refused_with_a_reason() {
    let mut open = RunningManager::new(tree(), false, PersistentState::default());
    open.run_for(10 * SECOND);
    assert_eq!(open.manager.rotate_keys(open.now, None), Err(RotationRefused::NoKeys));
    let mut young = RunningManager::new(tree(), true, PersistentState::default());
    assert_eq!(young.manager.rotate_keys(young.now, None), Err(RotationRefused::NotProgrammed));
    let mut run = up(&tree(), BuiltInProfile::Strict);
    assert_eq!(run.manager.rotate_keys(run.now, Some(secret(OLD))), Err(RotationRefused::SameSecret));
    run.manager.rotate_keys(run.now, None).unwrap();
    run.exchange_at_most(5);
    let refused = run.manager.rotate_keys(run.now, None);
    assert!(matches!(refused, Err(RotationRefused::InProgress { .. })), "{refused:?}");
    run.run_for(10 * SECOND);
    assert!(run.manager.rotate_keys(run.now, None).is_ok(), "the next one may begin");
}

#[test]
fn stock_tools_need_the_new_key_after_a_rotation() {
    let server = rig::tree::tree();
    let (old, new) = (server.secret(&[0x5a; 32]), server.file("new.secret"));
    // With its mode.
    std::fs::copy(&old, &new).unwrap();
    std::fs::write(&new, [0x33; 32]).unwrap();
    let manager = SmDaemon::up(&server, HOST, &["--secret", &old]);
    let guid = guids(7).0;
    // With the timeout of the tool itself: the machine may be slow.
    let asked =
        |key: &str| server.tool(&host(8), "smpquery", &["-y", key, "-D", "nodeinfo", "0,1,3"]).success;
    let key = |options: &[&str]| {
        let output = Command::new(rig::HEDDLE).args(["node-key", &guid]).args(options).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let first = key(&["--secret", &old]);
    assert!(asked(&first));

    let told = manager.control(&["rotate-keys"]);
    assert!(told.success && told.stdout.contains("hold M_Keys of epoch 1"), "{told:?}");
    let second = key(&["--secret", &old, "--epoch", "1"]);
    assert_ne!(first, second);
    assert_eq!((asked(&first), asked(&second)), (false, true));
    assert_eq!(key(&["--secret", &old, "--state", &server.file("state.json")]), second);
    let status = manager.status();
    assert_eq!((&status["keys"]["epoch"], &status["keys"]["behind"]), (&1.into(), &0.into()));

    let told = manager.control(&["rotate-keys", "--new-secret", &new]);
    assert!(told.success && told.stdout.contains("epoch 0"), "{told:?}");
    assert_eq!((asked(&second), asked(&key(&["--secret", &new]))), (false, true));
    let again = manager.control(&["rotate-keys", "--new-secret", &new]);
    assert!(!again.success && again.stderr.contains("already"), "{again:?}");
    let missing = manager.control(&["rotate-keys", "--new-secret", "/nowhere"]);
    assert!(!missing.success && missing.stderr.contains("/nowhere"), "{missing:?}");
    drop(manager);

    // The new secret alone is sufficient, and the old one is not.
    let refused = once(&server, &["--secret", &old, "--state", &server.file("state.json")]);
    assert!(!refused.success && refused.stderr.contains("keys of another secret"), "{refused:?}");
    let again = once(&server, &["--secret", &new, "--state", &server.file("state.json")]);
    assert!(again.success && again.stdout.contains(" 0 Sets"), "{again:?}");
}
