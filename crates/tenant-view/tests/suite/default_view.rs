//! A view without a manager of the tenant is up, configured, and answers SA queries.

use ib_wire::{Attribute, Lid, Method, NodeDescription, PortInfo, PortState, SmInfo, SmState, Status};

use crate::world::{Program, World};

#[test]
fn a_default_view_is_up_and_answers_queries() {
    let world = World::tree(32, 8);
    let mut view = world.view(&[0, 1, 5, 9]);
    let mut program = Program::on(&view, "vm-0");
    let own = program.get(&mut view, &[], Attribute::NODE_DESCRIPTION, 0).unwrap();
    assert_eq!(NodeDescription(*own.smp_data()).text(), "vm-0");
    let info = program.get(&mut view, &[], Attribute::PORT_INFO, 1).unwrap();
    let info = PortInfo::decode(info.smp_data()).unwrap();
    assert_eq!((info.state, info.lid), (PortState::Active, Lid::from_wire(1)));

    let master = program.get(&mut view, &[1], Attribute::SM_INFO, 0).unwrap();
    let master = SmInfo::decode(master.smp_data()).unwrap();
    assert_eq!((master.state, master.priority), (SmState::Master, 0));
    for attribute in
        [Attribute::NODE_RECORD, Attribute::PORT_INFO_RECORD, Attribute::PATH_RECORD, Attribute::LINK_RECORD]
    {
        let table = program.query(&mut view, Method::GET_TABLE, attribute);
        let table = table.unwrap_or_else(|| panic!("{attribute:?}"));
        assert_eq!(table.status(), Status::OK, "{attribute:?}");
        assert!(table.sa_record_len() > 0, "{attribute:?}");
    }
}
