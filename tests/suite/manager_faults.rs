//! A manager that is killed at any datagram, on a fabric that loses and duplicates datagrams, whose nodes restart and
//! whose links flap: the fabric converges to the plan, and after every Set a port reaches only ports that the old or
//! the new plan allows, there is no forwarding loop and no credit loop.

use std::time::Duration;

use fabric_model::Topology;
use fabric_model::generate::FatTree;
use fabric_sim::{BuiltInProfile, Probability};

use crate::in_process::fleet::Dice;
use crate::in_process::world::{Ended, World};

const HOSTS: u32 = 24;

/// The kinds of devices, and every how manyth case is tried on them: each on strict ones.
const KINDS: [(BuiltInProfile, usize); 3] = [
    (BuiltInProfile::Strict, 1),
    (BuiltInProfile::ConnectX3SwitchX, 11),
    (BuiltInProfile::ConnectX6Quantum, 13),
];

fn tree() -> Topology {
    FatTree { radix: 8, ..FatTree::with_hosts(HOSTS) }.generate().unwrap()
}

/// Four partitions that overlap, with full and limited members; in the second variant some have come, some have gone, and
/// some are members of the other kind.
fn partitions(world: &World, variant: usize) -> String {
    let hosts = world.host_guids();
    let mut text = String::new();
    for number in 1..=4_usize {
        let member = |place: usize| match (place * 5 + number * 3 + variant * (1 + place % 3) * number) % 13 {
            0..=2 => Some("full"),
            3..=4 => Some("limited"),
            _ => None,
        };
        let members: Vec<String> = (hosts.iter().enumerate())
            .filter_map(|(place, guid)| Some(format!("{guid}={}", member(place)?)))
            .collect();
        text += &format!("p{number}={number:#x}, ipoib : {};\n", members.join(", "));
    }
    text
}

fn nothing(_: &mut fabric_sim::Fabric, _: Duration, _: usize) {}

fn assert_good(world: &World, what: &str) {
    assert_eq!(world.judge.verdict, None, "{what}");
    assert_eq!(world.difference(), None, "{what}");
}

/// A world with the first variant, its writes checked or assumed to be checked before.
fn configured(kind: BuiltInProfile, judging: bool) -> World {
    let mut world = World::new(&tree(), kind, 1);
    world.judging = judging;
    let text = partitions(&world, 0);
    assert_eq!(world.configure(&text, None, nothing), Ended::Programmed { troubles: 0 });
    world
}

#[test]
fn bring_up_and_partition_changes_are_safe_at_every_step() {
    for (kind, _) in KINDS {
        let name = kind.name();
        let mut world = configured(kind, true);
        assert_good(&world, &format!("{name}, bring-up"));
        let (sets, sent) = (world.judge.sets, world.sent);
        let text = partitions(&world, 1);
        assert_eq!(world.configure(&text, None, nothing), Ended::Programmed { troubles: 0 });
        println!(
            "{name}: bring-up: {sent} datagrams, {sets} Sets judged; change: {} Sets judged",
            world.judge.sets - sets
        );
        assert_good(&world, &format!("{name}, change"));
    }
}

#[test]
fn a_manager_may_be_killed_at_every_datagram_of_a_bring_up() {
    for (kind, step) in KINDS {
        let first = configured(kind, true);
        let whole = first.sent;
        let mut judge = first.judge;
        for kill in (1..=whole).step_by(step) {
            let mut world = World::new(&tree(), kind, 1);
            (world.judge, world.judging) = (judge, false);
            let text = partitions(&world, 0);
            assert_eq!(world.configure(&text, Some(kill), nothing), Ended::Killed);
            let ended = world.configure(&text, None, nothing);
            let what = format!("{}, killed after {kill}", kind.name());
            assert_eq!(ended, Ended::Programmed { troubles: 0 }, "{what}");
            assert_good(&world, &what);
            judge = world.judge;
        }
        let (name, sets) = (kind.name(), judge.sets);
        println!("{name}: killed at every {step}. of {whole} datagrams of a bring-up: {sets} Sets judged");
    }
}

#[test]
fn a_partition_change_survives_a_kill_at_every_datagram() {
    for (kind, step) in KINDS {
        let mut world = configured(kind, true);
        let before = world.sent;
        let text = partitions(&world, 1);
        world.configure(&text, None, nothing);
        let whole = world.sent - before;
        let mut judge = world.judge;
        for kill in (1..=whole).step_by(step) {
            let mut world = configured(kind, false);
            world.judge = judge;
            assert_eq!(world.configure(&text, Some(kill), nothing), Ended::Killed);
            // In half of the cases the next manager gets another plan: the former one.
            let text = if kill % 2 == 0 { text.clone() } else { partitions(&world, 0) };
            let ended = world.configure(&text, None, nothing);
            let what = format!("{}, killed after {kill}", kind.name());
            assert_eq!(ended, Ended::Programmed { troubles: 0 }, "{what}");
            assert_good(&world, &what);
            judge = world.judge;
        }
        let (name, sets) = (kind.name(), judge.sets);
        println!(
            "{name}: killed at every {step}. of {whole} datagrams of a partition change: {sets} Sets judged"
        );
    }
}

#[test]
fn losses_and_duplicates_change_nothing_of_it() {
    let mut judged = 0;
    for (kind, seed) in kinds_and_seeds() {
        let mut world = World::new(&tree(), kind, seed);
        world.fabric.set_loss(None, Probability::try_from(0.01).unwrap());
        world.fabric.set_duplication(Probability::try_from(0.02).unwrap());
        for variant in [0, 1] {
            let text = partitions(&world, variant);
            let what = format!("{}, seed {seed}, variant {variant}", kind.name());
            assert_eq!(until_quiet(&mut world, &text, nothing), Ended::Programmed { troubles: 0 }, "{what}");
            assert_good(&world, &what);
        }
        judged += world.judge.sets;
    }
    println!("1 % lost, 2 % doubled, {} runs: {judged} Sets judged", kinds_and_seeds().count());
}

#[test]
fn restarting_nodes_and_flapping_links_are_made_good() {
    let mut judged = 0;
    for (kind, seed) in kinds_and_seeds() {
        let mut world = World::new(&tree(), kind, seed);
        let mut dice = Dice::new(seed);
        let devices = world.devices_but_own();
        for variant in [0, 1] {
            let text = partitions(&world, variant);
            let mut faults: Vec<(usize, usize)> =
                (0..3).map(|_| (1 + dice.below(700), dice.below(devices.len()))).collect();
            let ended = until_quiet(&mut world, &text, |fabric, now, sent| {
                let due = faults.iter().position(|(at, _)| *at == sent);
                let Some((_, device)) = due.map(|place| faults.swap_remove(place)) else { return };
                let device = devices[device];
                if sent % 2 == 0 {
                    fabric.reboot(now, device);
                } else {
                    let port = fabric.ports_of(device).nth(1).or_else(|| fabric.ports_of(device).next());
                    fabric.flap(now, port.unwrap(), Duration::from_millis(20));
                }
            });
            let what = format!("{}, seed {seed}, variant {variant}", kind.name());
            assert_eq!(ended, Ended::Programmed { troubles: 0 }, "{what}");
            assert_good(&world, &what);
        }
        judged += world.judge.sets;
    }
    println!("three restarts or flaps a run, {} runs: {judged} Sets judged", kinds_and_seeds().count());
}

/// Twenty seeds on strict devices, and some on each other kind.
fn kinds_and_seeds() -> impl Iterator<Item = (BuiltInProfile, u64)> {
    KINDS.into_iter().flat_map(|(kind, step)| (1..=20).step_by(step.min(5)).map(move |seed| (kind, seed)))
}

/// Starts managers one after the other until one is not interrupted, as a supervisor would.
fn until_quiet(
    world: &mut World,
    partitions: &str,
    mut meanwhile: impl FnMut(&mut fabric_sim::Fabric, Duration, usize),
) -> Ended {
    let mut ended = Ended::GaveUp;
    for _ in 0..10 {
        ended = world.configure(partitions, None, &mut meanwhile);
        if ended == (Ended::Programmed { troubles: 0 }) && world.difference().is_none() {
            break;
        }
    }
    ended
}
