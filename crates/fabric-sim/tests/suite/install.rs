//! Installing a plan: what devices hold afterwards, and what is rejected.

use std::sync::Arc;

use fabric_model::generate::FatTree;
use fabric_model::plan::{MulticastTable, PlanParts, PortSet};
use fabric_model::{FabricPlan, Topology};
use fabric_sim::{Capacities, Fabric, InstallError};
use ib_wire::{Attribute, DataLanes, Mtu, MulticastLid, Pkey, PortInfo, PortNum, PortState};

use crate::planned::{Design, lid, sharing};

fn tree() -> Topology {
    FatTree { radix: 8, ..FatTree::with_hosts(12) }.generate().unwrap()
}

fn design() -> Design {
    let mut design = Design::new(tree());
    design.lanes = DataLanes::Four;
    design.sharing = Some(sharing(3, &[(0, 10), (1, 20), (2, 30)]));
    design.enforces = true;
    design.keys = Box::new(|node| vec![Pkey::from_wire(0x8000 | (node.index() as u16 % 3 + 1)).unwrap()]);
    design
}

fn port_info(fabric: &Fabric, node: fabric_sim::DeviceId, number: PortNum) -> PortInfo {
    let port = fabric.port_of(node, number).unwrap();
    PortInfo::decode(&fabric.port_info_of(port, number.to_wire()).unwrap()).unwrap()
}

#[test]
fn devices_hold_what_the_plan_says() {
    let design = design();
    let (fabric, plan) = (design.fabric(), design.plan());
    for switch in plan.switches() {
        let device = fabric.device_by_guid(switch.guid).unwrap();
        let own = fabric.port_of(device, PortNum::MANAGEMENT).unwrap();
        assert_eq!(fabric.lid(own), Some(switch.lid));
        let (linear, top) = fabric.linear_of(device).unwrap();
        assert_eq!(
            (&linear[1..=usize::from(top)], top),
            (&switch.linear.to_exits()[1..], switch.linear.top())
        );
        for port in switch.ports.iter() {
            let gate = fabric.port_forwarding(fabric.port_of(device, port.number).unwrap());
            assert_eq!(gate.state, PortState::Active);
            let to_host = !design.topology[design.topology.by_guid(port.peer.node).unwrap()].is_switch();
            assert_eq!(gate.enforces, (to_host, to_host));
            let info = port_info(&fabric, device, port.number);
            assert_eq!((info.operational_vls, info.neighbor_mtu), (DataLanes::Four, Mtu::B4096));
        }
        let turns = fabric.table_view(device).sl_to_vl;
        assert_eq!(turns.values().next().unwrap()[..5], [0, 1, 2, 15, 15]);
    }
    for port in plan.adapter_ports() {
        let device = fabric.device_by_guid(port.name.node).unwrap();
        let id = fabric.port_of(device, port.name.port).unwrap();
        let gate = fabric.port_forwarding(id);
        assert_eq!((gate.lid, gate.state), (Some(port.lid), PortState::Active));
        assert_eq!(gate.keys, port.pkeys.entries(), "the factory default key is gone");
        let info = port_info(&fabric, device, port.name.port);
        assert_eq!(info.master_sm_lid, Some(plan.manager().lid));
    }
}

#[test]
fn installing_again_is_idempotent_and_another_plan_replaces_it() {
    let design = design();
    let mut fabric = design.fabric();
    let views = |fabric: &Fabric| -> Vec<_> {
        fabric.device_ids().map(|id| (fabric.device_view(id), fabric.table_view(id))).collect()
    };
    let before = views(&fabric);
    fabric.install(&design.plan()).unwrap();
    assert_eq!(views(&fabric), before);
    let mut other = Design::new(tree());
    other.lanes = DataLanes::Eight;
    fabric.install(&other.plan()).unwrap();
    let host = design.topology.end_nodes().next().unwrap();
    let device = fabric.device_by_guid(host.1.guid).unwrap();
    let port = fabric.port_of(device, PortNum::new(1).unwrap()).unwrap();
    assert_eq!(fabric.first_pkey(port), Some(Pkey::DEFAULT_FULL));
    assert_eq!(fabric.lid(port), Some(lid(host.0)));
}

#[test]
fn groups_of_the_previous_plan_are_removed() {
    let design = design();
    let mut fabric = design.fabric();
    let with_groups = |count: u16| {
        let PlanParts { mut switches, .. } = design.plan().parts();
        let exits: PortSet = [PortNum::new(1).unwrap()].into_iter().collect();
        let groups =
            (0..count).map(|group| (MulticastLid::from_wire(MulticastLid::MIN + group).unwrap(), exits));
        switches[0].multicast = Arc::new(MulticastTable::from_exits(groups.collect()));
        FabricPlan::from_parts(PlanParts { switches, ..design.plan().parts() })
    };
    let device = fabric.device_by_guid(design.plan().switches().next().unwrap().guid).unwrap();
    // Four blocks of 32, one, none.
    for count in [100, 3, 0] {
        fabric.install(&with_groups(count)).unwrap();
        assert_eq!(fabric.groups_of(device).len(), usize::from(count));
    }
}

#[test]
fn links_outside_the_plan_carry_no_data() {
    let design = design();
    let mut fabric = design.fabric();
    let PlanParts { mut switches, .. } = design.plan().parts();
    let mut ports = switches[0].ports.to_vec();
    let stray = ports.pop().unwrap();
    switches[0].ports = ports.into();
    let guid = switches[0].guid;
    fabric.install(&FabricPlan::from_parts(PlanParts { switches, ..design.plan().parts() })).unwrap();
    let port = fabric.port_of(fabric.device_by_guid(guid).unwrap(), stray.number).unwrap();
    assert_ne!(fabric.state_of(port), PortState::Active);
}

#[test]
fn errors_name_the_missing_node_or_rejected_table() {
    let design = design();
    let small = FatTree { radix: 8, ..FatTree::with_hosts(4) }.generate().unwrap();
    let mut fabric = Fabric::new(small, design.capacities(), 1).unwrap();
    assert!(matches!(
        fabric.install(&design.plan()),
        Err(InstallError::NoSuchNode(_) | InstallError::NoSuchPort { .. })
    ));
    let capacities = Capacities { mtu: Mtu::B2048, ..design.capacities() };
    let mut fabric = Fabric::new(tree(), capacities, 1).unwrap();
    let refused = fabric.install(&design.plan());
    assert!(
        matches!(refused, Err(InstallError::Refused { attribute: Attribute::PORT_INFO, .. })),
        "{refused:?}"
    );
}
