//! A subnet manager of the tenant becomes master by the ordinary negotiation, and the default returns when it is
//! gone.

use std::time::Duration;

use fabric_sim::BareDatagram;
use ib_wire::{
    Attribute, Datagram, Guid, Lid, ManagementClass, Method, PortInfo, QueuePair, SmInfo, SmState, Status,
};
use tenant_view::{AdapterId, OverlayChange, View, ViewManager, ViewOutput};

use crate::world::{self, Program, World, second};

/// Answers SubnGet(SMInfo), and becomes master on HANDOVER.
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

/// Lets time pass in the steps that the view asks for.
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

/// The state that the default SM reports.
fn default_sm(view: &mut View, now: Duration) -> SmState {
    let mut program = Program::on(view, "vm-0");
    program.now = now;
    SmInfo::decode(program.get(view, &[1], Attribute::SM_INFO, 0).unwrap().smp_data()).unwrap().state
}

fn tenant(node: &str) -> ViewManager {
    ViewManager::Tenant { node: node.to_owned() }
}

#[test]
fn a_standby_manager_gets_the_subnet_until_it_leaves() {
    let mut view = World::tree(32, 8).view(&[0, 1, 5, 9]);
    let mut managers = [FakeManager::start(&mut view, second(1.0), "vm-2", 0)];
    run(&mut view, &mut managers, second(1.0), second(2.0));
    assert_eq!(view.managed_by(), tenant("vm-2"));
    assert_eq!(managers[0].handed_over, 1);

    // What it writes is gone when it leaves.
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
    assert!(matches!(view.poll_overlay(), Some(OverlayChange::Withdrawn { .. })), "the overlay is withdrawn");
    let table = program.query(&mut view, Method::GET_TABLE, Attribute::NODE_RECORD).unwrap();
    assert_eq!(table.status(), Status::OK, "the SA answers again");
}

#[test]
fn a_silent_master_loses_the_subnet() {
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
fn the_default_sm_is_standby_for_a_new_manager() {
    let mut view = World::tree(32, 8).view(&[0, 1, 5, 9]);
    assert_eq!(default_sm(&mut view, second(1.0)), SmState::Master);
    let adapter = view.adapter("vm-2").unwrap();
    view.set_is_sm(second(1.0), adapter, true);
    assert_eq!(default_sm(&mut view, second(1.0)), SmState::Standby);
    let mut program = Program::on(&view, "vm-0");
    program.now = second(1.0);
    let table = program.query(&mut view, Method::GET_TABLE, Attribute::NODE_RECORD).unwrap();
    assert_eq!(table.status(), Status::OK, "it serves nevertheless");
    // The new manager does not answer.
    run(&mut view, &mut [], second(1.0), second(7.0));
    assert_eq!(default_sm(&mut view, second(7.0)), SmState::Master);
    // It withdraws the announcement and announces itself again.
    view.set_is_sm(second(8.0), adapter, false);
    view.set_is_sm(second(8.0), adapter, true);
    assert_eq!(default_sm(&mut view, second(8.0)), SmState::Standby);
    view.set_is_sm(second(8.0), adapter, false);
    assert_eq!(default_sm(&mut view, second(8.0)), SmState::Master);
}

#[test]
fn no_handover_while_a_manager_is_discovering() {
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
fn the_standby_manager_with_highest_priority_is_chosen() {
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
fn the_default_sm_yields_to_a_master_after_discovery() {
    let mut view = World::tree(32, 8).view(&[0, 1, 5, 9]);
    let mut managers = [FakeManager::start(&mut view, second(1.0), "vm-1", 2)];
    managers[0].state = SmState::Discovering;
    run(&mut view, &mut managers, second(1.0), second(3.0));
    assert_eq!(view.managed_by(), ViewManager::Default);
    managers[0].state = SmState::Master;
    run(&mut view, &mut managers, second(3.0), second(4.0));
    assert_eq!((view.managed_by(), managers[0].handed_over), (tenant("vm-1"), 0));
    // The SA of the tenant's manager answers now, not that of the default SM.
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
fn reset_lets_in_a_tenant_locked_out_by_its_m_key() {
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
fn a_changed_slice_is_reported_by_traps() {
    let world = World::tree(32, 8);
    let mut view = world.view(&[0, 1, 5]);
    let adapter = view.adapter("vm-0").unwrap();
    let mut managers = [FakeManager::start(&mut view, second(1.0), "vm-0", 0)];
    run(&mut view, &mut managers, second(1.0), second(2.0));
    // Make it the master SM of every switch.
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
    assert_eq!(view.managed_by(), tenant("vm-0"), "the master stays the same");
    // The new node waits to be configured; the others are unchanged.
    let state =
        |view: &View, node: &str| view.fabric().state_of(view.port(view.adapter(node).unwrap()).unwrap());
    assert_eq!(state(&view, "vm-3"), ib_wire::PortState::Initialize);
    assert_eq!(state(&view, "vm-2"), ib_wire::PortState::Active);
    // A node leaves: its adapter is gone.
    let gone = view.adapter("vm-1").unwrap();
    let mut fewer = world.cluster(&[0, 1, 5, 6]);
    fewer.nodes.remove(1);
    view.set_slice(second(4.0), world.slice(&fewer)).unwrap();
    assert!(view.adapter("vm-1").is_none() && view.port(gone).is_none());
}
