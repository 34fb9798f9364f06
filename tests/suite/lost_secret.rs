//! The way back after the site secret was lost (docs/guides/keys.md): nodes that lost their M_Keys by a power-cycle are taken
//! over with a new secret; others stay silent and are named.

use std::collections::BTreeSet;
use std::time::Duration;

use fabric_model::Topology;
use fabric_sim::{BuiltInProfile, DeviceId, DeviceProfile};
use ib_wire::{Guid, NodeKind};
use subnet_manager::{Location, PersistentState, SmEvent};

use crate::in_process::running_manager::RunningManager;
use crate::rotation::{NEW, OLD, held, holding, restart, tree};

const SECOND: Duration = Duration::from_secs(1);

/// A fabric whose nodes hold keys of a secret that is lost.
fn up(profile: &DeviceProfile) -> RunningManager {
    let mut run = RunningManager::with_devices(&tree(), profile, true, PersistentState::default());
    run.run_for(30 * SECOND);
    assert_eq!(holding(&run.fabric, OLD, 0), held(&run.fabric).len());
    run
}

/// A manager with a new secret and without a state takes what it can.
fn take_over(run: &mut RunningManager) {
    restart(run, &[NEW], PersistentState::default());
    run.run_for(60 * SECOND);
}

fn power_cycle(run: &mut RunningManager, is_cycled: impl Fn(&RunningManager, DeviceId) -> bool) {
    for device in run.fabric.device_ids() {
        if is_cycled(run, device) {
            run.fabric.reboot(run.now, device);
        }
    }
}

fn guid_of(run: &RunningManager, device: DeviceId) -> Guid {
    run.fabric.node_of(run.fabric.ports_of(device).next().unwrap()).node_guid
}

/// The ports of switches that hosts are plugged into.
fn behind(run: &RunningManager, hosts: &BTreeSet<Guid>) -> BTreeSet<Location> {
    let devices = hosts.iter().map(|guid| run.fabric.device_by_guid(*guid).unwrap());
    let ports = devices.flat_map(|device| run.fabric.ports_of(device));
    let peers = ports.filter_map(|port| run.fabric.port_forwarding(port).peer);
    peers
        .map(|peer| Location { near: run.fabric.node_of(peer).node_guid, port: run.fabric.number_of(peer) })
        .collect()
}

/// The locations that were reported as silent.
fn silent(run: &RunningManager) -> BTreeSet<Location> {
    let silent = run.events.iter().filter_map(|event| match event {
        SmEvent::SilentLocation { location, .. } => *location,
        _ => None,
    });
    silent.collect()
}

fn hosts(topology: &Topology, numbers: impl IntoIterator<Item = usize>) -> BTreeSet<Guid> {
    let hosts: Vec<Guid> = topology.end_nodes().map(|(_, node)| node.guid).collect();
    numbers.into_iter().map(|number| hosts[number]).collect()
}

#[test]
fn nodes_that_lost_their_keys_get_new_ones_and_others_are_named() {
    let mut run = up(&BuiltInProfile::Strict.profile());
    let nodes = held(&run.fabric).len();
    let left = hosts(&tree(), [5, 11, 20]);
    power_cycle(&mut run, |run, device| !left.contains(&guid_of(run, device)));
    take_over(&mut run);
    assert_eq!(holding(&run.fabric, NEW, 0), nodes - 3, "taken over");
    assert_eq!(holding(&run.fabric, OLD, 0), 3, "no key was guessed");
    assert_eq!(silent(&run), behind(&run, &left), "named by the ports that lead to them");
    // They come back as soon as they are power-cycled, too.
    power_cycle(&mut run, |run, device| left.contains(&guid_of(run, device)));
    run.run_for(60 * SECOND);
    assert_eq!(holding(&run.fabric, NEW, 0), nodes);
    assert_eq!(run.discovery.as_ref().unwrap().topology.end_nodes().count(), 24);
}

#[test]
fn without_a_power_cycle_a_new_secret_changes_nothing() {
    let mut run = up(&BuiltInProfile::Strict.profile());
    let nodes = held(&run.fabric).len();
    take_over(&mut run);
    assert!(run.told(|event| matches!(event, SmEvent::LocalNodeSilent)) > 0, "not even its own node answers");
    assert_eq!(holding(&run.fabric, OLD, 0), nodes);
}

#[test]
fn a_node_with_a_non_volatile_key_does_not_come_back_by_a_power_cycle() {
    let mut profile = BuiltInProfile::Strict.profile();
    profile.switches.m_key_nvram = true;
    let mut run = up(&profile);
    let is_switch = |run: &RunningManager, device| {
        let port = run.fabric.ports_of(device).next().unwrap();
        run.fabric.node_of(port).kind == NodeKind::Switch
    };
    let switches = tree().switches().count();
    power_cycle(&mut run, |_, _| true);
    take_over(&mut run);
    assert_eq!(holding(&run.fabric, OLD, 0), switches, "they kept their keys");
    let own = hosts(&tree(), [0]);
    let leaf: BTreeSet<_> = silent(&run);
    let far = Location { near: *own.first().unwrap(), port: ib_wire::PortNum::new(1).unwrap() };
    assert_eq!(leaf, [far].into(), "the port that leads to the first of them");
    // The control: the same keys come off volatile switches.
    let mut volatile = up(&BuiltInProfile::Strict.profile());
    power_cycle(&mut volatile, is_switch);
    assert_eq!(holding(&volatile.fabric, OLD, 0), 24, "adapters alone keep theirs");
}
