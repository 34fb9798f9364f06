//! M_Keys: access by protection level, violation counters, leases.

use std::time::Duration;

use ib_wire::notice::{Notice, Trap};
use ib_wire::{Attribute, MKeyProtection, Method, PortInfo, Status};

use crate::world::{World, key, status};

/// Every attribute a switch and an adapter answer to a Get.
const SWITCH_READS: &[(Attribute, u32)] = &[
    (Attribute::NODE_DESCRIPTION, 0),
    (Attribute::NODE_INFO, 0),
    (Attribute::SWITCH_INFO, 0),
    (Attribute::GUID_INFO, 0),
    (Attribute::PORT_INFO, 0),
    (Attribute::PORT_INFO, 5),
    (Attribute::PKEY_TABLE, 0),
    (Attribute::SL_TO_VL, 0x0102),
    (Attribute::VL_ARBITRATION, 0x1_0001),
    (Attribute::LINEAR_FORWARDING, 0),
    (Attribute::MULTICAST_FORWARDING, 0),
];
const ADAPTER_READS: &[(Attribute, u32)] = &[
    (Attribute::NODE_DESCRIPTION, 0),
    (Attribute::NODE_INFO, 0),
    (Attribute::GUID_INFO, 0),
    (Attribute::PORT_INFO, 1),
    (Attribute::PKEY_TABLE, 0),
    (Attribute::SL_TO_VL, 0),
    (Attribute::VL_ARBITRATION, 0x1_0000),
];

fn guard(world: &mut World, name: &str, raw_key: u64, level: MKeyProtection) {
    world.change_port_info(name, 0, |info| {
        info.m_key = key(raw_key);
        info.m_key_protection = level;
        info.m_key_lease_period_s = 0;
    });
}

fn reads(name: &str) -> &'static [(Attribute, u32)] {
    if matches!(name, "left" | "right") { SWITCH_READS } else { ADAPTER_READS }
}

#[test]
fn at_protection_level_0_every_read_shows_the_key() {
    for name in ["right", "c"] {
        let mut world = World::configured();
        guard(&mut world, name, 0xfeed, MKeyProtection::ReadAll);
        for (attribute, modifier) in reads(name) {
            assert!(world.get(name, *attribute, *modifier).is_ok(), "{name} {attribute:?}");
        }
        assert_eq!(world.port_info(name, 0).m_key, key(0xfeed));
        assert_eq!(world.port_info(name, 0).m_key_violations, 0, "a read that is allowed is no violation");
    }
}

#[test]
fn at_protection_level_1_reads_hide_the_key() {
    for name in ["right", "c"] {
        let mut world = World::configured();
        guard(&mut world, name, 0xfeed, MKeyProtection::ReadAllButKey);
        for (attribute, modifier) in reads(name) {
            assert!(world.get(name, *attribute, *modifier).is_ok(), "{name} {attribute:?}");
        }
        assert_eq!(world.port_info(name, 0).m_key, None, "hidden without the key");
        let shown = world.try_get(name, Attribute::PORT_INFO, 0, key(0xfeed)).map(|mad| status(mad).unwrap());
        assert_eq!(PortInfo::decode(&shown.unwrap()).unwrap().m_key, key(0xfeed), "shown with the key");
    }
}

#[test]
fn at_protection_levels_2_and_3_only_the_key_gives_access() {
    for level in [MKeyProtection::Closed, MKeyProtection::ClosedCompatible] {
        for name in ["right", "c"] {
            let mut world = World::configured();
            guard(&mut world, name, 0xfeed, level);
            for (attribute, modifier) in reads(name) {
                for wrong in [None, key(0xfeee), key(u64::MAX)] {
                    assert!(
                        world.try_get(name, *attribute, *modifier, wrong).is_none(),
                        "{name} read {attribute:?}"
                    );
                    assert!(
                        world.try_set(name, *attribute, *modifier, wrong, [0; 64]).is_none(),
                        "{name} written {attribute:?}"
                    );
                }
                let answer =
                    world.try_get(name, *attribute, *modifier, key(0xfeed)).expect("the key opens it");
                assert_eq!(answer.status(), Status::OK, "{name} {attribute:?}");
            }
        }
    }
}

#[test]
fn a_set_without_the_key_is_dropped_at_every_protection_level() {
    for level in 0..=3 {
        for name in ["right", "c"] {
            let mut world = World::configured();
            guard(&mut world, name, 0xfeed, MKeyProtection::from_wire(level));
            let before = world.try_get(name, Attribute::PORT_INFO, 0, key(0xfeed)).unwrap();
            let mut wanted = PortInfo::decode(before.smp_data()).unwrap();
            wanted.m_key = None;
            wanted.lid = ib_wire::Lid::from_wire(0x100);
            wanted.state = ib_wire::PortState::NoChange;
            wanted.physical_state = ib_wire::PhysicalState::NoChange;
            assert!(
                world.try_set(name, Attribute::PORT_INFO, 0, key(1), wanted.encode()).is_none(),
                "level {level}"
            );
            let after = world.try_get(name, Attribute::PORT_INFO, 0, key(0xfeed)).unwrap();
            let after = PortInfo::decode(after.smp_data()).unwrap();
            assert_eq!(
                (after.lid, after.m_key, after.m_key_violations),
                (wanted_lid(&before), key(0xfeed), 1)
            );
            // Control: with the key, the same write is accepted.
            let taken = world.try_set(name, Attribute::PORT_INFO, 0, key(0xfeed), wanted.encode()).unwrap();
            assert_eq!(PortInfo::decode(taken.smp_data()).unwrap().lid, wanted.lid);
        }
    }
}

fn wanted_lid(before: &ib_wire::Mad) -> Option<ib_wire::Lid> {
    PortInfo::decode(before.smp_data()).unwrap().lid
}

#[test]
fn mkey_violations_raise_trap_256_once_a_second() {
    let mut world = World::configured();
    guard(&mut world, "c", 0xfeed, MKeyProtection::Closed);
    world.delivered.clear();
    for _ in 0..5 {
        assert!(world.try_get("c", Attribute::NODE_INFO, 0, key(0xbad)).is_none());
    }
    assert_eq!(world.traps(), [256], "five attempts in one moment are one report");
    let trap = world.delivered.iter().find(|(_, d)| d.mad.method() == Method::TRAP).unwrap().1.clone();
    let notice = Notice::decode_smp(trap.mad.smp_data()).unwrap();
    let Some(Trap::BadMKey(details)) = notice.trap() else { panic!("{notice:?}") };
    assert_eq!(
        (details.attribute, details.method, details.m_key),
        (Attribute::NODE_INFO, Method::GET, key(0xbad))
    );
    assert!(details.is_directed);
    let info = world.try_get("c", Attribute::PORT_INFO, 0, key(0xfeed)).unwrap();
    assert_eq!(PortInfo::decode(info.smp_data()).unwrap().m_key_violations, 5);

    // Once repressed, with the key, and a second later, the next attempt is reported again.
    let manager = world.port("a");
    for (presented, reported) in [(None, false), (key(0xbad), false), (key(0xfeed), true)] {
        let mut repress = trap.mad.clone();
        repress.set_method(Method::TRAP_REPRESS);
        repress.set_m_key(presented);
        let datagram = ib_wire::Datagram::subnet_management(trap.dlid, trap.slid, repress);
        world.fabric.handle_datagram(world.now, manager, datagram);
        world.delivered.clear();
        world.wait(Duration::from_secs(1));
        assert!(world.try_get("c", Attribute::NODE_INFO, 0, None).is_none());
        assert_eq!(!world.traps().is_empty(), reported, "TrapRepress with {presented:?}");
    }
}

#[test]
fn each_node_answers_only_to_its_own_key() {
    let mut world = World::configured();
    let keys = [("right", 0x1111), ("c", 0x2222), ("d", 0x3333)];
    // The switch last: directed routes still pass a protected switch.
    for (name, raw) in keys {
        guard(&mut world, name, raw, MKeyProtection::Closed);
    }
    for (name, own) in keys {
        for (_, presented) in keys {
            let answered = world.try_get(name, Attribute::NODE_INFO, 0, key(presented)).is_some();
            assert_eq!(answered, presented == own, "{name} with key {presented:#x}");
        }
    }
}

#[test]
fn one_key_guards_all_ports_of_a_switch() {
    let mut world = World::configured();
    guard(&mut world, "right", 0xfeed, MKeyProtection::Closed);
    for port in 0..=6 {
        assert!(world.try_get("right", Attribute::PORT_INFO, port, None).is_none(), "port {port}");
        assert!(world.try_get("right", Attribute::PORT_INFO, port, key(0xfeed)).is_some(), "port {port}");
    }
}

#[test]
fn an_mkey_lease_expires_unless_the_key_is_presented() {
    let lease = |world: &mut World| {
        world.change_port_info("c", 0, |info| {
            info.m_key = key(0xfeed);
            info.m_key_protection = MKeyProtection::Closed;
            info.m_key_lease_period_s = 10;
        });
    };
    let open = |world: &mut World| world.try_get("c", Attribute::PORT_INFO, 0, None).is_some();

    let mut unattacked = World::configured();
    lease(&mut unattacked);
    unattacked.wait(Duration::from_secs(3600));
    assert!(!open(&mut unattacked), "a lease runs only once the key was attacked");

    let mut abandoned = World::configured();
    lease(&mut abandoned);
    assert!(!open(&mut abandoned));
    abandoned.wait(Duration::from_millis(9_999));
    assert!(!open(&mut abandoned), "not before the lease is over");
    abandoned.wait(Duration::from_millis(1));
    let info = abandoned.port_info("c", 0);
    assert_eq!(
        (info.m_key_protection, info.m_key),
        (MKeyProtection::ReadAll, key(0xfeed)),
        "open, and the key exposed"
    );
    assert!(
        abandoned.try_set("c", Attribute::PORT_INFO, 0, None, info.encode()).is_none(),
        "but not writable"
    );

    let mut managed = World::configured();
    lease(&mut managed);
    assert!(!open(&mut managed));
    managed.wait(Duration::from_secs(9));
    assert!(managed.try_get("c", Attribute::NODE_INFO, 0, key(0xfeed)).is_some(), "the manager is alive");
    managed.wait(Duration::from_secs(60));
    assert!(!open(&mut managed));
}

#[test]
fn a_reboot_loses_the_key() {
    let mut world = World::configured();
    guard(&mut world, "c", 0xfeed, MKeyProtection::Closed);
    assert!(world.try_get("c", Attribute::NODE_INFO, 0, None).is_none());
    let device = world.fabric.find_device("c").unwrap();
    world.fabric.reboot(world.now, device);
    assert!(world.try_get("c", Attribute::NODE_INFO, 0, None).is_some());
    assert_eq!(world.port_info("c", 0).lid, None);
}
