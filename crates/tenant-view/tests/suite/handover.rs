//! A manager of the tenant's becomes master by the ordinary negotiation, and the default returns when it is gone.

use std::time::Duration;

use fabric_sim::BareDatagram;
use ib_wire::{
    Attribute, Datagram, Guid, Lid, ManagementClass, Method, PortInfo, QueuePair, SmInfo, SmState, Status,
};
use tenant_view::{AdapterId, OverlayChange, View, ViewManager, ViewOutput};

use crate::world::{self, Program, World, second};

/// Says who it is when it is asked, and does what it is told.
struct FakeManager {
    adapter: AdapterId,
    guid: Guid,
    priority: u8,
    state: SmState,
    handed_over: usize,
    is_alive: bool,
}

impl FakeManager {
    fn start(view: &mut View, now: Duration, node: &str, priority: u8) -> Self {
        let adapter = view.adapter(node).unwrap();
        let guid = view.fabric().guid_of(view.port(adapter).unwrap());
        view.set_is_sm(now, adapter, true);
        Self { adapter, guid, priority, state: SmState::Standby, handed_over: 0, is_alive: true }
    }

    fn answer(&mut self, view: &mut View, now: Duration, datagram: &Datagram) {
        let mad = &datagram.mad;
        if mad.attribute() != Attribute::SM_INFO || !self.is_alive || mad.method().is_response() {
            return;
        }
        if mad.method() == Method::SET {
            assert_eq!(mad.modifier(), 1, "HANDOVER");
            assert_eq!(SmInfo::decode(mad.smp_data()).unwrap().state, SmState::Master, "of the master");
            self.state = SmState::Master;
            self.handed_over += 1;
        }
        let (guid, priority, state) = (Some(self.guid), self.priority, self.state);
        let mut answer = mad.clone();
        answer.set_method(Method::GET_RESP);
        answer.set_returning();
        *answer.smp_data_mut() = SmInfo { guid, sm_key: None, activity: 0, priority, state }.encode();
        let qp = QueuePair::SUBNET_MANAGEMENT;
        let bare = BareDatagram { slid: None, dlid: None, sqp: qp, dqp: qp, mad: answer };
        view.handle_bare(now, self.adapter, bare).unwrap();
    }
}

/// Lets time pass in steps of what the view asks for.
fn run(view: &mut View, managers: &mut [FakeManager], from: Duration, to: Duration) {
    let mut now = from;
    loop {
        view.handle_timeout(now);
        while let Some(output) = view.poll_output() {
            let ViewOutput::Deliver { adapter, datagram } = output else { continue };
            if let Some(manager) = managers.iter_mut().find(|manager| manager.adapter == adapter) {
                manager.answer(view, now, &datagram);
            }
        }
        if now >= to {
            return;
        }
        now = view.poll_timeout().unwrap_or(to).max(now + Duration::from_millis(1)).min(to);
    }
}

/// What the default_sm says that it is.
fn default_sm(view: &mut View, now: Duration) -> SmState {
    let mut program = Program::on(view, "vm-0");
    program.now = now;
    SmInfo::decode(program.get(view, &[1], Attribute::SM_INFO, 0).unwrap().smp_data()).unwrap().state
}

fn tenant(node: &str) -> ViewManager {
    ViewManager::Tenant { node: node.to_owned() }
}

#[test]
fn one_that_stands_by_is_handed_the_subnet_and_when_it_leaves_the_default_returns() {
    let mut view = World::tree(32, 8).view(&[0, 1, 5, 9]);
    let mut managers = [FakeManager::start(&mut view, second(1.0), "vm-2", 0)];
    run(&mut view, &mut managers, second(1.0), second(2.0));
    assert_eq!(view.managed_by(), tenant("vm-2"));
    assert_eq!(managers[0].handed_over, 1);

    // It writes, and what it wrote is gone with it.
    let mut program = Program::on(&view, "vm-2");
    program.now = second(2.0);
    let info = program.get(&mut view, &[], Attribute::PORT_INFO, 1).unwrap();
    let mut info = PortInfo::decode(info.smp_data()).unwrap();
    let usual = info.lid;
    info.lid = Lid::from_wire(77);
    info.m_key = ib_wire::MKey::from_wire(1);
    (info.state, info.physical_state) = (ib_wire::PortState::NoChange, ib_wire::PhysicalState::NoChange);
    assert_eq!(
        program.set(&mut view, &[], Attribute::PORT_INFO, 1, info.encode()).unwrap().status(),
        Status::OK
    );
    view.commit(second(2.0));
    let adapter = view.adapter("vm-2").unwrap();
    view.set_is_sm(second(3.0), adapter, false);
    assert_eq!(view.managed_by(), ViewManager::Default);
    program.now = second(3.0);
    let info = program.get(&mut view, &[], Attribute::PORT_INFO, 1).unwrap();
    let info = PortInfo::decode(info.smp_data()).unwrap();
    assert_eq!((info.lid, info.m_key), (usual, None));
    assert!(matches!(view.poll_overlay(), Some(OverlayChange::Withdrawn { .. })), "overlays are withdrawn");
    let table = program.query(&mut view, Method::GET_TABLE, Attribute::NODE_RECORD).unwrap();
    assert_eq!(table.status(), Status::OK, "and the sa answers again");
}

#[test]
fn one_that_falls_silent_loses_the_subnet_after_a_few_seconds() {
    let mut view = World::tree(32, 8).view(&[0, 1, 5, 9]);
    let mut managers = [FakeManager::start(&mut view, second(1.0), "vm-2", 3)];
    run(&mut view, &mut managers, second(1.0), second(60.0));
    assert_eq!(view.managed_by(), tenant("vm-2"), "while it answers, it stays");
    managers[0].is_alive = false;
    run(&mut view, &mut managers, second(60.0), second(63.0));
    assert_eq!(view.managed_by(), tenant("vm-2"));
    run(&mut view, &mut managers, second(63.0), second(67.0));
    assert_eq!(view.managed_by(), ViewManager::Default);
    assert_eq!(default_sm(&mut view, second(67.0)), SmState::Master);
}

#[test]
fn whoever_comes_finds_nobody_who_wants_to_be_master_for_a_while() {
    let mut view = World::tree(32, 8).view(&[0, 1, 5, 9]);
    assert_eq!(default_sm(&mut view, second(1.0)), SmState::Master);
    let adapter = view.adapter("vm-2").unwrap();
    view.set_is_sm(second(1.0), adapter, true);
    assert_eq!(default_sm(&mut view, second(1.0)), SmState::Standby);
    let mut program = Program::on(&view, "vm-0");
    program.now = second(1.0);
    let table = program.query(&mut view, Method::GET_TABLE, Attribute::NODE_RECORD).unwrap();
    assert_eq!(table.status(), Status::OK, "it serves nevertheless");
    // Nothing is heard of the one that came.
    run(&mut view, &mut [], second(1.0), second(7.0));
    assert_eq!(default_sm(&mut view, second(7.0)), SmState::Master);
    // It says so no longer, and again.
    view.set_is_sm(second(8.0), adapter, false);
    view.set_is_sm(second(8.0), adapter, true);
    assert_eq!(default_sm(&mut view, second(8.0)), SmState::Standby);
    view.set_is_sm(second(8.0), adapter, false);
    assert_eq!(default_sm(&mut view, second(8.0)), SmState::Master);
}

#[test]
fn one_that_stands_by_is_handed_nothing_while_another_looks_around() {
    let mut view = World::tree(32, 8).view(&[0, 1, 5, 9]);
    let mut managers = [
        FakeManager::start(&mut view, second(1.0), "vm-1", 2),
        FakeManager::start(&mut view, second(1.0), "vm-2", 7),
    ];
    managers[1].state = SmState::Discovering;
    run(&mut view, &mut managers, second(1.0), second(2.0));
    assert_eq!(view.managed_by(), ViewManager::Default);
    managers[1].state = SmState::Master;
    run(&mut view, &mut managers, second(2.0), second(3.0));
    assert_eq!(view.managed_by(), tenant("vm-2"));
    assert_eq!(managers.map(|manager| manager.handed_over), [0, 0]);
}

#[test]
fn of_several_the_one_with_the_highest_priority_is_chosen() {
    let mut view = World::tree(32, 8).view(&[0, 1, 5, 9]);
    let mut managers = [
        FakeManager::start(&mut view, second(1.0), "vm-1", 2),
        FakeManager::start(&mut view, second(1.0), "vm-2", 7),
        FakeManager::start(&mut view, second(1.0), "vm-3", 7),
    ];
    run(&mut view, &mut managers, second(1.0), second(2.0));
    assert_eq!(view.managed_by(), tenant("vm-2"), "of two the one with the lower GUID");
    assert_eq!(managers.iter().map(|manager| manager.handed_over).collect::<Vec<_>>(), [0, 1, 0]);
}

#[test]
fn one_that_looks_around_is_waited_for_and_one_that_is_master_is_given_way_to() {
    let mut view = World::tree(32, 8).view(&[0, 1, 5, 9]);
    let mut managers = [FakeManager::start(&mut view, second(1.0), "vm-1", 2)];
    managers[0].state = SmState::Discovering;
    run(&mut view, &mut managers, second(1.0), second(3.0));
    assert_eq!(view.managed_by(), ViewManager::Default);
    managers[0].state = SmState::Master;
    run(&mut view, &mut managers, second(3.0), second(4.0));
    assert_eq!((view.managed_by(), managers[0].handed_over), (tenant("vm-1"), 0));
    // Its own sa answers now: the default_sm does not.
    let mut program = Program::on(&view, "vm-0");
    program.now = second(4.0);
    let mad = ib_wire::Mad::new(
        ManagementClass::SUBNET_ADMINISTRATION,
        Method::GET_TABLE,
        Attribute::NODE_RECORD,
        0,
    );
    assert_eq!(program.ask(&mut view, mad, Lid::from_wire(2)), None);
}

#[test]
fn a_tenant_that_has_locked_itself_out_is_let_in_again() {
    let mut view = World::tree(32, 8).view(&[0, 1, 5, 9]);
    let mut managers = [FakeManager::start(&mut view, second(1.0), "vm-1", 2)];
    run(&mut view, &mut managers, second(1.0), second(2.0));
    let mut program = Program::on(&view, "vm-1");
    program.now = second(2.0);
    let info = program.get(&mut view, &[], Attribute::PORT_INFO, 1).unwrap();
    let mut info = PortInfo::decode(info.smp_data()).unwrap();
    info.m_key = ib_wire::MKey::from_wire(0xdead);
    info.m_key_protection = ib_wire::MKeyProtection::Closed;
    (info.state, info.physical_state) = (ib_wire::PortState::NoChange, ib_wire::PhysicalState::NoChange);
    program.set(&mut view, &[], Attribute::PORT_INFO, 1, info.encode());
    assert_eq!(program.get(&mut view, &[], Attribute::PORT_INFO, 1), None, "not without the key");
    view.reset(second(3.0));
    assert_eq!(view.managed_by(), ViewManager::Default);
    program.now = second(3.0);
    assert!(program.get(&mut view, &[], Attribute::PORT_INFO, 1).is_some());
    // The manager is still there, and says that it is master.
    run(&mut view, &mut managers, second(3.0), second(4.0));
    assert_eq!(view.managed_by(), tenant("vm-1"));
}

#[test]
fn a_cluster_that_changes_tells_its_manager_by_traps() {
    let world = World::tree(32, 8);
    let mut view = world.view(&[0, 1, 5]);
    let adapter = view.adapter("vm-0").unwrap();
    let mut managers = [FakeManager::start(&mut view, second(1.0), "vm-0", 0)];
    run(&mut view, &mut managers, second(1.0), second(2.0));
    // It is the master of every switch.
    let mut program = Program::on(&view, "vm-0");
    program.now = second(2.0);
    for (_, _, route) in world::switches(&mut program, &mut view) {
        let info = program.get(&mut view, &route, Attribute::PORT_INFO, 0).unwrap();
        let mut info = PortInfo::decode(info.smp_data()).unwrap();
        info.master_sm_lid = Lid::from_wire(1);
        (info.state, info.physical_state) = (ib_wire::PortState::NoChange, ib_wire::PhysicalState::NoChange);
        program.set(&mut view, &route, Attribute::PORT_INFO, 0, info.encode()).unwrap();
    }
    world::drain(&mut view);
    view.set_slice(second(3.0), world.slice(&world.cluster(&[0, 1, 5, 6]))).unwrap();
    let traps: Vec<_> = world::drain(&mut view)
        .into_iter()
        .filter(|(to, datagram)| *to == adapter && datagram.mad.method() == Method::TRAP)
        .collect();
    assert!(!traps.is_empty(), "a link of a switch came up");
    assert_eq!(view.managed_by(), tenant("vm-0"), "and nobody else is master for that");
    // The new node is there and waits to be configured; the others are as they were.
    let state =
        |view: &View, node: &str| view.fabric().state_of(view.port(view.adapter(node).unwrap()).unwrap());
    assert_eq!(state(&view, "vm-3"), ib_wire::PortState::Initialize);
    assert_eq!(state(&view, "vm-2"), ib_wire::PortState::Active);
    // One goes: its adapter is no longer there.
    let gone = view.adapter("vm-1").unwrap();
    let mut fewer = world.cluster(&[0, 1, 5, 6]);
    fewer.nodes.remove(1);
    view.set_slice(second(4.0), world.slice(&fewer)).unwrap();
    assert!(view.adapter("vm-1").is_none() && view.port(gone).is_none());
}
