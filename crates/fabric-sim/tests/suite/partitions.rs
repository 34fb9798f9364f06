//! Partitions: which packets pass, where others are dropped, what is counted and reported.

use ib_wire::notice::{Notice, Trap};
use ib_wire::{Attribute, Method, Pkey, PkeyBlock, PkeyBlockSelector, PortInfo, Status};

use crate::world::World;

const BLUE: u16 = 0x8101;
const BLUE_LIMITED: u16 = 0x0101;

fn give(world: &mut World, name: &str, port: u16, keys: &[u16]) {
    let mut block = PkeyBlock([None; 32]);
    for (entry, raw) in block.0.iter_mut().zip(keys) {
        *entry = Pkey::from_wire(*raw);
    }
    let modifier = PkeyBlockSelector { port, block: 0 }.to_modifier();
    world.set(name, Attribute::PKEY_TABLE, modifier, block.encode()).expect("the table is accepted");
}

fn enforce(world: &mut World, name: &str, port: u32, inbound: bool, outbound: bool) {
    world.change_port_info(name, port, |info| {
        info.enforce_inbound = inbound;
        info.enforce_outbound = outbound;
    });
}

#[test]
fn a_packet_without_a_shared_pkey_is_dropped_counted_and_reported() {
    let mut world = World::configured();
    give(&mut world, "b", 0, &[0xffff, BLUE]);
    give(&mut world, "c", 0, &[0xffff, BLUE]);
    assert!(world.passes("b", "c", World::message(4, 5, BLUE)), "both hold the key");

    give(&mut world, "c", 0, &[0xffff]);
    assert!(!world.passes("b", "c", World::message(4, 5, BLUE)), "the receiver lost its entry");
    assert_eq!(world.port_info("c", 0).pkey_violations, 1);
    assert!(world.passes("b", "c", World::message(4, 5, 0xffff)), "another key still passes");

    give(&mut world, "c", 0, &[0xffff, BLUE]);
    assert!(world.passes("b", "c", World::message(4, 5, BLUE)), "restored");
}

#[test]
fn trap_257_names_the_sender() {
    let mut world = World::configured();
    world.passes("b", "c", World::message(4, 5, BLUE));
    assert_eq!(world.traps(), [257]);
    let trap = &world.delivered.iter().find(|(_, d)| d.mad.method() == Method::TRAP).unwrap().1;
    let notice = Notice::decode_smp(trap.mad.smp_data()).unwrap();
    let Some(Trap::BadPkey(details)) = notice.trap() else { panic!("{notice:?}") };
    assert_eq!(details.pkey, Pkey::from_wire(BLUE));
    assert_eq!(details.source.map(|lid| lid.to_wire()), Some(4));
}

#[test]
fn limited_members_reach_full_members_only() {
    let mut world = World::configured();
    give(&mut world, "b", 0, &[0xffff, BLUE_LIMITED]);
    give(&mut world, "c", 0, &[0xffff, BLUE_LIMITED]);
    give(&mut world, "d", 0, &[0xffff, BLUE]);
    assert!(!world.passes("b", "c", World::message(4, 5, BLUE_LIMITED)));
    assert!(world.passes("b", "d", World::message(4, 6, BLUE_LIMITED)));
    assert!(world.passes("d", "b", World::message(6, 4, BLUE)));
}

#[test]
fn an_enforcing_switch_port_drops_what_the_receiver_would_accept() {
    for (switch, port, inbound) in [("left", 2, true), ("right", 1, false)] {
        let mut world = World::configured();
        give(&mut world, "b", 0, &[0xffff, BLUE]);
        give(&mut world, "c", 0, &[0xffff, BLUE]);
        give(&mut world, switch, port, &[0xffff, BLUE]);
        enforce(&mut world, switch, port.into(), inbound, !inbound);
        assert!(world.passes("b", "c", World::message(4, 5, BLUE)), "the switch port holds the key");

        give(&mut world, switch, port, &[0xffff]);
        assert!(!world.passes("b", "c", World::message(4, 5, BLUE)), "the switch port lost its entry");
        assert_eq!(world.traps(), [259], "{switch}");
        let view = world.fabric.port_view(world.port_number(switch, port as u8));
        let counted = (view.counters.receive_constraint_errors, view.counters.transmit_constraint_errors);
        assert_eq!(counted, if inbound { (1, 0) } else { (0, 1) });
        assert_eq!(view.pkey_violations, 1);

        give(&mut world, switch, port, &[0xffff, BLUE]);
        assert!(world.passes("b", "c", World::message(4, 5, BLUE)), "restored");
    }
}

#[test]
fn a_limited_member_cannot_send_as_full_through_an_enforcing_port() {
    let mut world = World::configured();
    give(&mut world, "b", 0, &[0xffff, BLUE_LIMITED]);
    give(&mut world, "c", 0, &[0xffff, BLUE]);
    give(&mut world, "d", 0, &[0xffff, BLUE_LIMITED]);
    give(&mut world, "left", 2, &[0x7fff, BLUE_LIMITED]);
    enforce(&mut world, "left", 2, true, true);
    assert!(world.passes("b", "c", World::message(4, 5, BLUE_LIMITED)));
    assert!(world.passes("c", "b", World::message(5, 4, BLUE)), "and is reached by full members");
    assert!(!world.passes("b", "d", World::message(4, 6, BLUE_LIMITED)), "two limited members");

    give(&mut world, "b", 0, &[0xffff, BLUE]);
    assert!(
        !world.passes("b", "d", World::message(4, 6, BLUE)),
        "its switch port holds the limited key only"
    );
    give(&mut world, "left", 2, &[0x7fff, BLUE]);
    assert!(world.passes("b", "d", World::message(4, 6, BLUE)), "now it is a full member");
    assert!(
        world.passes("b", "c", World::message(4, 5, BLUE_LIMITED)),
        "a full member may send as a limited one"
    );
}

#[test]
fn a_switch_port_enforces_each_direction_separately() {
    let mut world = World::configured();
    give(&mut world, "b", 0, &[0xffff, BLUE]);
    give(&mut world, "c", 0, &[0xffff, BLUE]);
    give(&mut world, "left", 2, &[0xffff]);
    enforce(&mut world, "left", 2, false, true);
    assert!(world.passes("b", "c", World::message(4, 5, BLUE)), "outbound enforcement is not inbound");
    enforce(&mut world, "left", 2, true, false);
    assert!(!world.passes("b", "c", World::message(4, 5, BLUE)));
}

#[test]
fn trap_259_names_the_switch_and_the_port() {
    let mut world = World::configured();
    give(&mut world, "left", 2, &[0xffff]);
    enforce(&mut world, "left", 2, true, false);
    world.passes("b", "c", World::message(4, 5, BLUE));
    let trap = &world.delivered.iter().find(|(_, d)| d.mad.method() == Method::TRAP).unwrap().1;
    let notice = Notice::decode_smp(trap.mad.smp_data()).unwrap();
    let Some(Trap::SwitchBadPkey(details)) = notice.trap() else { panic!("{notice:?}") };
    assert_eq!(details.switch_lid.map(|lid| lid.to_wire()), Some(1));
    assert_eq!(details.port.to_wire(), 2);
}

#[test]
fn a_wrong_queue_key_is_dropped_counted_and_reported_by_trap_258() {
    let mut world = World::configured();
    assert!(world.passes("b", "c", World::message(4, 5, 0xffff)), "the queue key of general management");
    let mut wrong = World::message(4, 5, 0xffff);
    wrong.qkey = ib_wire::QKey::from_wire(0x1234);
    assert!(!world.passes("b", "c", wrong));
    assert_eq!(world.traps(), [258]);
    assert_eq!(world.port_info("c", 0).qkey_violations, 1);
}

#[test]
fn subnet_management_ignores_partitions() {
    let mut world = World::configured();
    give(&mut world, "right", 1, &[BLUE]);
    enforce(&mut world, "right", 1, true, true);
    give(&mut world, "c", 0, &[]);
    assert!(world.get("c", Attribute::NODE_INFO, 0).is_ok());
}

#[test]
fn pkey_tables_have_the_configured_capacity() {
    for pkeys in [1u16, 32, 33, 128] {
        let capacities = fabric_sim::Capacities { pkeys, ..Default::default() };
        let mut world = World::configured_with(capacities, 1);
        for (name, port) in [("c", 0u16), ("left", 1)] {
            let last = PkeyBlockSelector { port, block: (pkeys - 1) / 32 };
            let beyond = PkeyBlockSelector { port, block: last.block + 1 };
            let full = PkeyBlock([Pkey::from_wire(BLUE); 32]).encode();
            let stored = world.set(name, Attribute::PKEY_TABLE, last.to_modifier(), full).unwrap();
            let entries = PkeyBlock::decode(&stored).0.iter().flatten().count();
            assert_eq!(entries, usize::from((pkeys - 1) % 32) + 1, "{name} with {pkeys}");
            let refused = world.set(name, Attribute::PKEY_TABLE, beyond.to_modifier(), full);
            assert_eq!(refused, Err(Status::INVALID_FIELD));
        }
    }
}

#[test]
fn writing_zero_resets_violation_counters() {
    let mut world = World::configured();
    world.passes("b", "c", World::message(4, 5, BLUE));
    let kept: PortInfo = world.change_port_info("c", 0, |_| {});
    assert_eq!(kept.pkey_violations, 1, "writing back what was read changes nothing");
    let reset = world.change_port_info("c", 0, |info| info.pkey_violations = 0);
    assert_eq!(reset.pkey_violations, 0);
}
