//! The fabric is released to another manager and taken back: M_Keys before and after, whatever is killed meanwhile.

use std::collections::BTreeMap;
use std::time::Duration;

use fabric_sim::{BuiltInProfile, Fabric};
use ib_wire::{Attribute, Datagram, Guid, MKey, MKeyProtection, Method, PortInfo, PortState};
use subnet_manager::{
    KeyKind, Manager, ManagerSettings, OperatorKey, PersistentState, RotationRefused, RotationTarget, SmEvent,
};

use crate::in_process::running_manager::RunningManager;
use crate::rotation::{OLD, destination, held, holding, lost_nodes, secret, tree, up};

const SECOND: Duration = Duration::from_secs(1);

/// The key of the operator.
const KEY: u64 = 0x1122_3344_5566_7788;

fn operator_key() -> OperatorKey {
    OperatorKey::new(MKey::from_wire(KEY).unwrap())
}

/// What another manager gives a node: the operator's key (1), none (0), or nothing, so that it keeps what it has.
type Hand = fn(Guid) -> Option<u8>;

/// What nodes are released with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum With {
    Single,
    Removed,
}

impl With {
    fn begin(self, run: &mut RunningManager) {
        let target = match self {
            Self::Single => RotationTarget::Operator(operator_key()),
            Self::Removed => RotationTarget::Removed,
        };
        run.manager.rotate_to(run.now, target).unwrap();
    }

    fn key(self) -> Option<MKey> {
        (self == Self::Single).then(|| operator_key().key())
    }

    fn reached(self, fabric: &Fabric) -> usize {
        held(fabric).into_iter().filter(|(_, key)| *key == self.key()).count()
    }
}

/// Another manager takes over, with what the one before stored.
fn restart(run: &mut RunningManager, kept: PersistentState) {
    let (settings, keys) = (ManagerSettings::default(), [operator_key()]);
    run.manager = Manager::with_operator_keys(settings, [secret(OLD)], keys, &kept);
    run.kept = kept;
    run.plan = None;
    run.events.clear();
    run.manager.handle_timeout(run.now);
}

/// Releases the fabric, once the manager has nothing more to write.
fn release(run: &mut RunningManager) {
    run.run_for(SECOND);
    run.manager.release(run.now).unwrap();
    run.exchange_at_most(usize::MAX);
    assert!(run.manager.is_released() && run.kept.released);
}

/// The last Set of PortInfo to the port of each node that holds its M_Key, in all that was sent.
fn key_writes(run: &RunningManager) -> BTreeMap<Guid, Datagram> {
    let mut writes = BTreeMap::new();
    for sent in &run.sent {
        let is_write = (sent.mad.method(), sent.mad.attribute()) == (Method::SET, Attribute::PORT_INFO);
        let Some(info) = PortInfo::decode(sent.mad.smp_data()).ok().filter(|_| is_write) else { continue };
        if info.m_key.is_some() {
            writes.insert(destination(run, sent), sent.clone());
        }
    }
    writes
}

/// What another manager does: gives nodes an M_Key and a protection level.
fn write_keys(run: &mut RunningManager, level: MKeyProtection, new: impl Fn(Guid) -> Option<Option<MKey>>) {
    let now_held: BTreeMap<Guid, Option<MKey>> = held(&run.fabric).into_iter().collect();
    for (node, mut write) in key_writes(run) {
        let Some(key) = new(node) else { continue };
        let mut info = PortInfo::decode(write.mad.smp_data()).unwrap();
        (info.m_key, info.m_key_protection, info.state) = (key, level, PortState::NoChange);
        *write.mad.smp_data_mut() = info.encode();
        write.mad.set_m_key(now_held[&node]);
        run.fabric.handle_datagram(run.now, run.port, write);
    }
    while run.fabric.poll_output().is_some() {}
    for (node, key) in held(&run.fabric) {
        assert_eq!(key, new(node).unwrap_or(now_held[&node]), "{node}");
    }
}

#[test]
fn a_manager_may_be_killed_at_every_datagram_before_a_release() {
    for with in [With::Single, With::Removed] {
        let mut run = up(&tree(), BuiltInProfile::Strict);
        let nodes = held(&run.fabric).len();
        let before = run.sent.len();
        with.begin(&mut run);
        run.run_for(SECOND);
        let whole = run.sent.len() - before;
        assert_eq!(with.reached(&run.fabric), nodes, "{with:?}");
        let mut mixed = 0;
        for kill in 0..=whole {
            let mut run = up(&tree(), BuiltInProfile::Strict);
            with.begin(&mut run);
            run.exchange_at_most(kill);
            let what = format!("{with:?}, killed after {kill} of {whole}");
            let done = with.reached(&run.fabric);
            assert_eq!(done + holding(&run.fabric, OLD, 0), nodes, "{what}: its own key or the other");
            mixed += usize::from(done > 0 && done < nodes);
            let kept = run.kept.clone();
            let is_begun = kept.keys.released.is_some();
            restart(&mut run, kept);
            run.run_for(60 * SECOND);
            assert_eq!(lost_nodes(&run), 0, "{what}");
            let all = if is_begun { with.reached(&run.fabric) } else { holding(&run.fabric, OLD, 0) };
            assert_eq!(all, nodes, "{what}");
        }
        assert!(mixed > nodes / 2, "kills in between: {mixed}");
        println!("{with:?}: killed after each of {whole} datagrams, {mixed} times between old and new keys");
    }
}

#[test]
fn a_manager_may_be_killed_while_it_reclaims_a_fabric() {
    let mut run = up(&tree(), BuiltInProfile::Strict);
    With::Single.begin(&mut run);
    release(&mut run);
    let (released, nodes) = (run.kept.clone(), held(&run.fabric).len());
    let step = 3;
    let mut kills = 0;
    for kill in (0..).step_by(step) {
        let mut run = up(&tree(), BuiltInProfile::Strict);
        With::Single.begin(&mut run);
        release(&mut run);
        restart(&mut run, released.clone());
        run.exchange_at_most(kill);
        let what = format!("killed after {kill}");
        let done = holding(&run.fabric, OLD, 1);
        assert_eq!(done + With::Single.reached(&run.fabric), nodes, "{what}");
        let kept = run.kept.clone();
        restart(&mut run, kept);
        run.run_for(60 * SECOND);
        assert_eq!((lost_nodes(&run), holding(&run.fabric, OLD, 1)), (0, nodes), "{what}");
        assert!(!run.kept.released && run.kept.keys.behind.is_empty(), "{what}");
        kills += 1;
        if done == nodes {
            break;
        }
    }
    println!("killed {kills} times");
    assert!(kills > 2 * nodes / step, "kills in between");
}

#[test]
fn nodes_are_reclaimed_with_whatever_key_another_manager_left() {
    let levels = [
        MKeyProtection::ReadAll,
        MKeyProtection::ReadAllButKey,
        MKeyProtection::Closed,
        MKeyProtection::ClosedCompatible,
    ];
    let single = Some(operator_key().key());
    // All get the operator's key, none, a part of them either; or they are never reached.
    let hands: [(&str, Hand); 4] = [
        ("one key", |_| Some(1)),
        ("no key", |_| Some(0)),
        ("a part of each", |guid| Some((guid.to_wire() / 0x10 % 3) as u8).filter(|hand| *hand < 2)),
        ("nothing", |_| None),
    ];
    for with in [None, Some(With::Single), Some(With::Removed)] {
        for level in levels {
            for (name, hand) in hands {
                let mut run = up(&tree(), BuiltInProfile::Strict);
                let nodes = held(&run.fabric).len();
                if let Some(with) = with {
                    with.begin(&mut run);
                }
                release(&mut run);
                write_keys(&mut run, level, |node| hand(node).map(|hand| single.filter(|_| hand == 1)));
                let kept = run.kept.clone();
                restart(&mut run, kept);
                run.run_for(120 * SECOND);
                let what = format!("released with {with:?}, then {name} at {level:?}");
                assert_eq!(holding(&run.fabric, OLD, 1), nodes, "{what}");
                assert_eq!(lost_nodes(&run), 0, "{what}");
                assert_eq!(run.manager.key_status().unwrap().kind, KeyKind::Derived, "{what}");
                assert_eq!(run.kept.keys.operator_keys().len(), 0, "{what}: no longer needed");
            }
        }
    }
}

#[test]
fn a_released_manager_writes_nothing() {
    for is_released in [false, true] {
        let mut run = up(&tree(), BuiltInProfile::Strict);
        if is_released {
            release(&mut run);
        }
        let before = run.manager.counts();
        let host = tree().end_nodes().nth(3).unwrap().1.clone();
        let port = run.fabric.find_port(&host.id).unwrap();
        let device = run.fabric.device_id_of(port);
        run.fabric.reboot(run.now, device);
        run.run_for(60 * SECOND);
        let (gets, sets) = run.sent_since(before);
        if is_released {
            assert_eq!((gets, sets), (0, 0), "not even asked");
            let refused = run.manager.rotate_keys(run.now, None);
            run.run_for(60 * SECOND);
            assert_eq!((refused.is_err(), run.sent_since(before)), (true, (0, 0)));
        } else {
            assert!(gets > 0 && sets > 0, "the control: it is configured again");
        }
    }
}

#[test]
fn a_release_waits_until_the_manager_is_done() {
    let mut run = up(&tree(), BuiltInProfile::Strict);
    With::Single.begin(&mut run);
    run.exchange_at_most(3);
    assert!(run.manager.release(run.now).is_err());
    assert!(!run.kept.released);
    let other = RotationTarget::Removed;
    let refused = run.manager.rotate_to(run.now, other);
    assert!(matches!(refused, Err(RotationRefused::InProgress { .. })), "{refused:?}");
    // The same again only waits for the same end.
    With::Single.begin(&mut run);
    release(&mut run);
    assert_eq!(run.told(|event| matches!(event, SmEvent::KeysRotated { .. })), 1);
}

#[test]
fn a_node_that_does_not_hold_the_key_of_the_release_holds_it_up() {
    let mut run = up(&tree(), BuiltInProfile::Strict);
    run.is_disk_full = true;
    With::Single.begin(&mut run);
    run.run_for(SECOND);
    assert_eq!(With::Single.reached(&run.fabric), 0);
    assert!(run.manager.check_release().is_err());
    run.is_disk_full = false;
    run.run_for(60 * SECOND);
    assert_eq!(With::Single.reached(&run.fabric), held(&run.fabric).len());
    assert_eq!(run.manager.check_release(), Ok(()));
}

#[test]
fn the_state_of_a_release_holds_no_key() {
    let mut run = up(&tree(), BuiltInProfile::Strict);
    With::Single.begin(&mut run);
    release(&mut run);
    let text = format!("{:?}", run.kept);
    let keys: Vec<u64> = held(&run.fabric).iter().map(|(_, key)| key.unwrap().to_wire()).collect();
    assert_eq!(keys, vec![KEY; keys.len()]);
    for form in [KEY.to_string(), format!("{KEY:x}"), format!("{KEY:#018x}")] {
        assert!(!text.contains(&form), "{form}");
    }
    assert_eq!(run.kept.keys.operator_keys(), [operator_key().fingerprint()].into());
}
