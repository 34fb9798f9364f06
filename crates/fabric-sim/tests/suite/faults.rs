//! Injected faults, reboots and link flaps; arbitrary input does no harm.

use std::time::Duration;

use fabric_sim::{Capacities, DropReason, Probability};
use ib_wire::{Attribute, Datagram, LidAddress, Mad, Method, Pkey, PortState, QKey, QueuePair, ServiceLevel};
use proptest::prelude::*;

use crate::world::World;

fn probability(value: f64) -> Probability {
    Probability::try_from(value).unwrap()
}

/// Which of 200 requests across four links were answered.
fn answered(seed: u64, loss: f64) -> Vec<bool> {
    let mut world = World::with(Capacities::default(), seed);
    world.fabric.set_loss(None, probability(loss));
    (0..200).map(|_| world.try_get("c", Attribute::NODE_INFO, 0, None).is_some()).collect()
}

#[test]
fn the_same_seed_loses_the_same_datagrams() {
    assert_eq!(answered(7, 0.1), answered(7, 0.1));
    assert_ne!(answered(7, 0.1), answered(8, 0.1));
    assert!(answered(7, 0.0).into_iter().all(|ok| ok));
    assert!(answered(7, 1.0).into_iter().all(|ok| !ok));
    let share = answered(7, 0.1).iter().filter(|ok| **ok).count();
    // Six links there and back: 0.9^6 = 53 %.
    assert!((70..=145).contains(&share), "{share} of 200");
}

#[test]
fn loss_on_one_port_leaves_the_others_alone() {
    let mut world = World::new();
    let port = world.port_number("right", 1);
    world.fabric.set_loss(Some(port), Probability::ALWAYS);
    assert!(world.try_get("c", Attribute::NODE_INFO, 0, None).is_none());
    assert!(world.try_get("d", Attribute::NODE_INFO, 0, None).is_some());
    assert_eq!(world.fabric.statistics().drops[&DropReason::Injected], 1);
    world.fabric.set_loss(Some(port), Probability::NEVER);
    assert!(world.try_get("c", Attribute::NODE_INFO, 0, None).is_some());
}

#[test]
fn a_duplicated_request_is_processed_twice_and_answered_once() {
    let mut world = World::new();
    let port = world.port("c");
    let received = |world: &World| world.fabric.port_view(port).counters.receive_packets;
    let before = received(&world);
    world.fabric.set_duplication(Probability::ALWAYS);
    assert!(world.try_get("c", Attribute::NODE_INFO, 0, None).is_some());
    assert_eq!(received(&world) - before, 2);
    assert!(world.delivered.is_empty(), "the second answer ends at the sender's adapter");
}

#[test]
fn a_delayed_response_still_arrives() {
    let mut world = World::new();
    world.fabric.set_delay_max(Duration::from_millis(100));
    let early = (0..50).filter(|_| world.try_get("c", Attribute::NODE_INFO, 0, None).is_some()).count();
    assert!(early < 5, "{early} came at once");
    assert!(world.fabric.poll_timeout().is_some());
    world.wait(Duration::from_millis(100));
    assert_eq!(world.delivered.len() + early, 50);
    assert_eq!(world.fabric.poll_timeout(), None);
}

#[test]
fn a_flapping_link_comes_back_by_itself() {
    let mut world = World::configured();
    let port = world.port_number("right", 1);
    assert!(world.fabric.flap(world.now, port, Duration::from_millis(250)));
    assert!(world.try_get("c", Attribute::NODE_INFO, 0, None).is_none());
    world.wait(Duration::from_millis(249));
    assert!(world.try_get("c", Attribute::NODE_INFO, 0, None).is_none());
    world.wait(Duration::from_millis(1));
    assert!(world.try_get("c", Attribute::NODE_INFO, 0, None).is_some());
    assert_eq!(world.port_info("c", 1).state, PortState::Initialize);
    assert_eq!(world.fabric.port_view(port).counters.link_downed, 1);
}

#[test]
fn a_rebooted_switch_has_factory_defaults() {
    let mut world = World::configured();
    world.set("right", Attribute::SL_TO_VL, 0x0102, [0x11; 64]).unwrap();
    let device = world.fabric.find_device("right").unwrap();
    let fresh = World::new().fabric.table_view(device);
    assert_ne!(world.fabric.table_view(device), fresh);
    world.fabric.reboot(world.now, device);
    world.collect();
    assert_eq!(world.fabric.table_view(device), fresh);
    assert_eq!(world.port_info("right", 0).lid, None);
    assert_eq!(world.traps(), [128], "its neighbour noticed");
    assert!(world.try_get("c", Attribute::NODE_INFO, 0, None).is_some(), "its links are up again");
    assert_eq!(world.port_info("c", 1).state, PortState::Initialize);
}

#[test]
fn an_unrepressed_trap_is_repeated_a_limited_number_of_times() {
    let mut world = World::configured();
    let port = world.port_number("right", 1);
    world.fabric.unplug(world.now, port);
    for _ in 0..40 {
        world.wait(Duration::from_secs(1));
    }
    assert!(world.traps().len() >= 8, "{:?}", world.traps());
    world.wait(Duration::from_secs(600));
    world.wait(Duration::from_secs(600));
    let sent = world.fabric.statistics().traps[&128];
    world.wait(Duration::from_secs(600));
    assert_eq!(world.fabric.statistics().traps[&128], sent, "given up");
    assert_eq!(world.fabric.poll_timeout(), None, "and nothing is left to do");
}

#[test]
fn only_the_subnet_manager_represses_a_trap() {
    let mut world = World::configured();
    let port = world.port_number("right", 1);
    world.fabric.unplug(world.now, port);
    world.collect();
    let trap = world.delivered.iter().find(|(_, d)| d.mad.method() == Method::TRAP).unwrap().1.clone();
    let repress = |from: &str, world: &mut World| {
        let mut mad = trap.mad.clone();
        mad.set_method(Method::TRAP_REPRESS);
        let source = world.port(from);
        let slid = world.fabric.lid(source).unwrap().into();
        world.fabric.handle_datagram(world.now, source, Datagram::subnet_management(slid, trap.slid, mad));
        world.wait(Duration::from_secs(6));
        world.fabric.statistics().traps[&128]
    };
    assert_eq!(
        repress("b", &mut world),
        2,
        "a TrapRepress from another port is ignored: the trap is repeated"
    );
    assert_eq!(repress("a", &mut world), 2, "the manager's TrapRepress ends the repetition");
}

proptest! {
    #[test]
    fn arbitrary_datagrams_do_no_harm(
        raw in prop::collection::vec(any::<u8>(), 256),
        class in prop::sample::select(vec![0x01u8, 0x81, 0x03, 0x04, 0x21, 0x09]),
        method in prop::sample::select(vec![1u8, 2, 3, 5, 7, 0x12, 0x81, 0x92]),
        attribute in prop::sample::select(vec![0x01u16, 0x02, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1b, 0x1d, 0x20, 0xff90]),
        hops in 0u8..6,
        addresses in any::<(u16, u16, u16)>(),
        sane_header in any::<bool>(),
        from in prop::sample::select(vec!["a", "b", "c", "left", "right"]),
    ) {
        let mut mad = Mad(raw.try_into().unwrap());
        if sane_header {
            mad.0[0] = 1;
            mad.0[2] = 1;
            mad.0[16..18].copy_from_slice(&attribute.to_be_bytes());
            mad.0[32..36].fill(0xff);
            mad.0[129..135].copy_from_slice(&[1, 5, 1, 1, 2, 6]);
        }
        (mad.0[1], mad.0[3], mad.0[7]) = (class, method, hops);
        let address = |raw: u16| LidAddress::from_wire(raw % 8).unwrap_or(LidAddress::Permissive);
        let datagram = Datagram {
            slid: address(addresses.0),
            dlid: if class == 0x81 { LidAddress::Permissive } else { address(addresses.1) },
            sl: ServiceLevel::from_wire((addresses.2 % 16) as u8).unwrap(),
            grh: None,
            pkey: Pkey::from_wire(addresses.2).unwrap_or(Pkey::DEFAULT_FULL),
            qkey: QKey::GENERAL_MANAGEMENT,
            sqp: QueuePair::GENERAL_MANAGEMENT,
            dqp: QueuePair::GENERAL_MANAGEMENT,
            mad,
        };
        let mut world = World::configured();
        let port = world.port(from);
        world.fabric.handle_datagram(Duration::from_secs(1), port, datagram);
        world.wait(Duration::from_secs(20));
        // Nodes that got no Set still answer.
        prop_assert!(world.fabric.size() == (6, 18, 6));
    }
}
