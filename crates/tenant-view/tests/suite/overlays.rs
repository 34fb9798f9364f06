//! Overlays are judged: a forwarding loop, a credit loop, an unreachable node and a link without grant are named;
//! valid overlays are approved, others adapted.

use std::time::Duration;

use fabric_model::generate::{FatTree, Torus};
use fabric_model::intent::Role;
use ib_wire::{
    Attribute, Guid, Lid, PartitionNumber, PkeyBlock, PkeyBlockSelector, PortNum, SlToVl, VirtualLane,
    VlArbBlock, VlArbEntry, VlArbPart,
};
use tenant_view::{Adaptation, OverlayChange, OverlayRefusal, UngrantedRoutes, Verdict, View};

use crate::world::{self, Program, World, second};

/// A writer with directed routes to every switch, by description.
struct Writer {
    program: Program,
    routes: Vec<(String, Guid, Vec<u8>)>,
}

impl Writer {
    fn on(view: &mut View) -> Self {
        let mut program = Program::on(view, "vm-0");
        program.now = second(1.0);
        let routes = world::switches(&mut program, view);
        Self { program, routes }
    }

    fn route(&self, switch: &str) -> Vec<u8> {
        self.routes.iter().find(|(name, ..)| name == switch).unwrap().2.clone()
    }

    /// Exit of a switch for a LID.
    fn exit(&mut self, view: &mut View, switch: &str, lid: Lid) -> u8 {
        let block = u32::from(lid.to_wire()) / 64;
        let route = self.route(switch);
        let table = self.program.get(view, &route, Attribute::LINEAR_FORWARDING, block).unwrap();
        table.smp_data()[usize::from(lid.to_wire()) % 64]
    }

    fn set_exit(&mut self, view: &mut View, switch: &str, lid: Lid, exit: u8) {
        let block = u32::from(lid.to_wire()) / 64;
        let route = self.route(switch);
        let mut table =
            *self.program.get(view, &route, Attribute::LINEAR_FORWARDING, block).unwrap().smp_data();
        table[usize::from(lid.to_wire()) % 64] = exit;
        self.program.set(view, &route, Attribute::LINEAR_FORWARDING, block, table).unwrap();
    }

    /// The ports of a switch that lead to another.
    fn ports_between(&mut self, view: &View, from: &str, to: &str) -> Vec<u8> {
        let guid = |name: &str| self.routes.iter().find(|(known, ..)| known == name).unwrap().1;
        let (from, to) = (guid(from), guid(to));
        let fabric = view.fabric();
        let device = fabric.device_by_guid(from).unwrap();
        let leads = |port: &fabric_sim::PortId| {
            fabric.port_forwarding(*port).peer.is_some_and(|peer| fabric.node_of(peer).node_guid == to)
        };
        fabric.ports_of(device).filter(leads).map(|port| fabric.number_of(port).to_wire()).collect()
    }
}

fn lid(view: &View, node: &str) -> Lid {
    view.aliases().into_iter().find(|alias| alias.node == node).unwrap().lid
}

fn verdict(view: &mut View) -> Verdict {
    view.commit(second(2.0)).unwrap().verdict.clone()
}

fn refusal(view: &mut View) -> OverlayRefusal {
    match verdict(view) {
        Verdict::Refused { refusal } => refusal,
        other => panic!("{other:?}"),
    }
}

/// Two leaves and two spines: `switch-1` and another are leaves.
fn two_leaves() -> (World, View) {
    let world = World::of(FatTree { radix: 4, ..FatTree::with_hosts(8) }.generate().unwrap());
    let view = world.view(&[0, 1, 2, 3]);
    (world, view)
}

fn leaf_of(view: &View, node: &str) -> String {
    let adapter = view.port(view.adapter(node).unwrap()).unwrap();
    let peer = view.fabric().port_forwarding(adapter).peer.unwrap();
    view.fabric().device_view(view.fabric().device_id_of(peer)).description
}

fn spines(view: &View, writer: &Writer) -> Vec<String> {
    let leaves = [leaf_of(view, "vm-0"), leaf_of(view, "vm-3")];
    writer.routes.iter().map(|(name, ..)| name.clone()).filter(|name| !leaves.contains(name)).collect()
}

#[test]
fn rewriting_the_default_is_approved() {
    let (_, mut view) = two_leaves();
    let mut writer = Writer::on(&mut view);
    let to = lid(&view, "vm-3");
    let exit = writer.exit(&mut view, "switch-1", to);
    writer.set_exit(&mut view, "switch-1", to, exit);
    assert!(view.status().is_open);
    assert_eq!(verdict(&mut view), Verdict::Approved);
    assert!(!view.status().is_open);
    let Some(OverlayChange::Set { number: 1, overlay }) = view.poll_overlay() else { panic!("no overlay") };
    assert_eq!(overlay.routes.len(), 0, "packets go as they do by default");
    view.put_in_force(1);
    assert_eq!(view.status().in_force, Some(1));
}

#[test]
fn a_route_by_another_spine_is_translated() {
    let (world, mut view) = two_leaves();
    let mut writer = Writer::on(&mut view);
    let (leaf, to) = (leaf_of(&view, "vm-0"), lid(&view, "vm-3"));
    let before = writer.exit(&mut view, &leaf, to);
    let spines = spines(&view, &writer);
    assert_eq!(spines.len(), 2, "{spines:?}");
    let exits: Vec<u8> = spines.iter().flat_map(|spine| writer.ports_between(&view, &leaf, spine)).collect();
    let other = exits.into_iter().find(|exit| *exit != before).unwrap();
    writer.set_exit(&mut view, &leaf, to, other);
    assert_eq!(verdict(&mut view), Verdict::Approved);
    let Some(OverlayChange::Set { overlay, .. }) = view.poll_overlay() else { panic!("no overlay") };
    let cluster = world.cluster(&[0, 1, 2, 3]);
    let access = world.plan.adapter_port(cluster.nodes[0].port).unwrap().peer.node;
    let physical = overlay.routes[&cluster.nodes[3].port][&access];
    let planned = world.plan.switch(access).unwrap();
    let usual = planned.linear.exit(world.plan.adapter_port(cluster.nodes[3].port).unwrap().lid).unwrap();
    assert_ne!(physical, usual, "another cable than before");
    let peer = planned.port(physical).unwrap().peer.node;
    assert_ne!(peer, planned.port(usual).unwrap().peer.node, "to another spine");
}

#[test]
fn a_forwarding_loop_is_refused_after_half_a_minute() {
    let (_, mut view) = two_leaves();
    let mut writer = Writer::on(&mut view);
    let to = lid(&view, "vm-3");
    let leaf = leaf_of(&view, "vm-0");
    let exit = writer.exit(&mut view, &leaf, to);
    let spine = spines(&view, &writer)
        .into_iter()
        .find(|spine| writer.ports_between(&view, &leaf, spine).contains(&exit))
        .unwrap();
    let back = writer.ports_between(&view, &spine, &leaf)[0];
    let fine = writer.exit(&mut view, &spine, to);
    writer.set_exit(&mut view, &spine, to, back);
    view.handle_timeout(second(1.6));
    assert_eq!(view.status().last, None, "the manager may still be writing");
    view.handle_timeout(second(32.0));
    let Some(Verdict::Refused { refusal: OverlayRefusal::ForwardingLoop { to: node, switches } }) =
        view.status().last.map(|judged| judged.verdict)
    else {
        panic!("{:?}", view.status())
    };
    assert_eq!(node, "vm-3");
    let mut expected = vec![leaf, spine.clone()];
    expected.sort();
    let mut named = switches;
    named.sort();
    assert_eq!(named, expected);
    assert_eq!(view.poll_overlay(), None, "nothing of it is handed on");

    // The control: the original entry.
    writer.program.now = second(33.0);
    writer.set_exit(&mut view, &spine, to, fine);
    view.handle_timeout(second(34.0));
    assert_eq!(view.status().last.unwrap().verdict, Verdict::Approved);
}

#[test]
fn an_unreachable_node_is_named_unless_isolated() {
    let (_, mut view) = two_leaves();
    let mut writer = Writer::on(&mut view);
    let leaf = leaf_of(&view, "vm-3");
    let to = lid(&view, "vm-3");
    writer.set_exit(&mut view, &leaf, to, 0xff);
    let expected = |refusal: OverlayRefusal| match refusal {
        OverlayRefusal::Unreachable { to, at, .. } => assert_eq!((to.as_str(), at), ("vm-3", leaf.clone())),
        other => panic!("{other:?}"),
    };
    expected(refusal(&mut view));

    // The control: a sub-partition of its own.
    let route = world::route_to(&mut writer.program, &mut view, "vm-3");
    let mut keys = PkeyBlock([None; 32]);
    keys.0[0] = ib_wire::Pkey::from_wire(0x8042);
    let position = PkeyBlockSelector { port: 0, block: 0 }.to_modifier();
    writer.program.set(&mut view, &route, Attribute::PKEY_TABLE, position, keys.encode()).unwrap();
    let kept = Adaptation::MembershipKept { node: "vm-3".to_owned() };
    assert_eq!(verdict(&mut view), Verdict::Adapted { adaptations: vec![kept] });
    let Some(OverlayChange::Set { overlay, .. }) = view.poll_overlay() else { panic!("no overlay") };
    let own = PartitionNumber::from_wire(0x42).unwrap();
    assert_eq!(overlay.partitions[&own], [("vm-3".to_owned(), Role::Full)].into());
    let members = &overlay.partitions[&PartitionNumber::DEFAULT];
    assert_eq!((members.len(), members["vm-0"], members["vm-3"]), (4, Role::Full, Role::Limited));
}

#[test]
fn a_credit_loop_is_refused_with_its_links() {
    let world = World::of(Torus::new([4]).generate().unwrap());
    let mut view = world.view(&[0, 1, 2, 3]);
    let mut writer = Writer::on(&mut view);
    assert_eq!(writer.routes.len(), 4, "a ring of four switches");
    // All packets go round the ring in one direction, at most two steps: no forwarding loop, but a credit loop.
    let ring = ring_order(&view, &mut writer);
    let homes: Vec<String> = (0..4).map(|node| leaf_of(&view, &format!("vm-{node}"))).collect();
    let write = |view: &mut View, writer: &mut Writer, is_cyclic: bool| {
        for (node, home) in homes.iter().enumerate() {
            let to = lid(view, &format!("vm-{node}"));
            let goal = ring.iter().position(|switch| switch == home).unwrap();
            for (index, switch) in ring.iter().enumerate().filter(|(index, _)| *index != goal) {
                let onward = if is_cyclic { (index + 1) % 4 } else { toward(index, goal) };
                let exit = writer.ports_between(view, switch, &ring[onward])[0];
                writer.set_exit(view, switch, to, exit);
            }
        }
    };
    write(&mut view, &mut writer, true);
    match refusal(&mut view) {
        OverlayRefusal::CreditLoop { links } => {
            let named: std::collections::BTreeSet<&str> =
                links.iter().map(|link| link.switch.as_str()).collect();
            assert_eq!((links.len(), named.len()), (4, 4), "{links:?}");
        }
        other => panic!("{other:?}"),
    }
    // The control: never over the cable between the last and the first.
    write(&mut view, &mut writer, false);
    assert_eq!(verdict(&mut view), Verdict::Approved);
}

/// One step along a line.
fn toward(index: usize, goal: usize) -> usize {
    if goal > index { index + 1 } else { index - 1 }
}

fn ring_order(view: &View, writer: &mut Writer) -> Vec<String> {
    let names: Vec<String> = writer.routes.iter().map(|(name, ..)| name.clone()).collect();
    let mut ring = vec![names[0].clone()];
    while ring.len() < names.len() {
        let last = ring.last().unwrap().clone();
        let next = names
            .iter()
            .find(|name| !ring.contains(name) && !writer.ports_between(view, &last, name).is_empty())
            .unwrap();
        ring.push(next.clone());
    }
    ring
}

#[test]
fn a_route_without_grant_is_refused_with_its_link() {
    let world = World::guaranteed(&[0, 1, 4, 8], &[]);
    let mut view = world.view(&[0, 1, 4, 8]);
    let mut writer = Writer::on(&mut view);
    // As by default: within the grants.
    let leaf = leaf_of(&view, "vm-0");
    let to = lid(&view, "vm-2");
    let exit = writer.exit(&mut view, &leaf, to);
    writer.set_exit(&mut view, &leaf, to, exit);
    let judged = view.commit(second(2.0)).unwrap();
    assert_eq!(judged.verdict, Verdict::Approved);
    let rate = judged.all_to_all.unwrap();
    assert!(rate.bits_per_s() >= 999_999_000, "{rate}");
    // By another cable of the view, on which the cluster sends nothing in that direction.
    let spines: Vec<String> = writer
        .routes
        .iter()
        .map(|(name, ..)| name.clone())
        .filter(|name| (0..4).all(|node| leaf_of(&view, &format!("vm-{node}")) != *name))
        .collect();
    let (mut refused, mut kept) = (0, 0);
    for spine in &spines {
        for up in writer.ports_between(&view, &leaf, spine) {
            writer.set_exit(&mut view, &leaf, to, up);
            // A tenant who does not care about routes has the rest of its overlay applied.
            view.set_ungranted_routes(UngrantedRoutes::KeepDefault);
            if let Verdict::Adapted { adaptations } = verdict(&mut view) {
                let Adaptation::RouteKept { node, .. } = &adaptations[0] else { panic!("{adaptations:?}") };
                assert_eq!((node.as_str(), adaptations.len()), ("vm-2", 1));
                let Some(OverlayChange::Set { overlay, .. }) = view.poll_overlay() else {
                    panic!("no overlay")
                };
                assert_eq!(
                    overlay.routes.len(),
                    0,
                    "the route without a grant is dropped, the others are as by default"
                );
                kept += 1;
            }
            view.set_ungranted_routes(UngrantedRoutes::Refuse);
            writer.set_exit(&mut view, &leaf, to, up);
            match verdict(&mut view) {
                Verdict::Refused { refusal: OverlayRefusal::NoGrant { link, .. } } => {
                    assert!(link.switch == leaf || link.switch == *spine, "{link:?}");
                    refused += 1;
                }
                Verdict::Approved | Verdict::Refused { refusal: OverlayRefusal::Unreachable { .. } } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(refused, kept);
    assert!(refused > 0, "no cable of the view is without a share in one direction");
}

fn write_classes(view: &mut View, writer: &mut Writer, weights: &[u8]) {
    let route: Vec<u8> = Vec::new();
    let lanes = SlToVl(std::array::from_fn(|level| {
        VirtualLane::from_wire(level.min(weights.len() - 1) as u8).unwrap()
    }));
    let mut data = [0; 64];
    data[..8].copy_from_slice(&lanes.encode());
    writer.program.set(view, &route, Attribute::SL_TO_VL, 0, data).unwrap();
    let mut low = [VlArbEntry::default(); 32];
    for (lane, weight) in weights.iter().enumerate() {
        low[lane] = VlArbEntry { lane: VirtualLane::from_wire(lane as u8).unwrap(), weight: *weight };
    }
    let port = PortNum::new(1).unwrap();
    for (part, block) in [
        (VlArbPart::LowFirst, VlArbBlock(low)),
        (VlArbPart::HighFirst, VlArbBlock([VlArbEntry::default(); 32])),
    ] {
        let modifier = part.to_modifier(port);
        writer.program.set(view, &route, Attribute::VL_ARBITRATION, modifier, block.encode()).unwrap();
    }
}

fn folded(verdict: &Verdict) -> Option<(usize, usize)> {
    let Verdict::Adapted { adaptations } = verdict else { return None };
    adaptations.iter().find_map(|adaptation| match adaptation {
        Adaptation::ClassesFolded { wanted, given, .. } => Some((*wanted, *given)),
        _ => None,
    })
}

#[test]
fn classes_are_folded_to_the_free_lanes() {
    // Best effort: one lane for all.
    let (_, mut view) = two_leaves();
    let mut writer = Writer::on(&mut view);
    write_classes(&mut view, &mut writer, &[3, 1]);
    assert_eq!(folded(&verdict(&mut view)), Some((2, 1)));
    // Guaranteed and alone: there are lanes for three to one.
    let world = World::guaranteed(&[0, 1, 4, 8], &[]);
    let mut view = world.view(&[0, 1, 4, 8]);
    let mut writer = Writer::on(&mut view);
    write_classes(&mut view, &mut writer, &[3, 1]);
    assert_eq!(folded(&verdict(&mut view)), None);
    let Some(OverlayChange::Set { overlay, .. }) = view.poll_overlay() else { panic!("no overlay") };
    let weights: Vec<u32> = overlay.classes.iter().map(|class| class.weight).collect();
    assert_eq!(weights, [3, 1]);
    // More classes than lanes.
    write_classes(&mut view, &mut writer, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let (wanted, given) = folded(&verdict(&mut view)).unwrap();
    assert!(wanted == 8 && (2..8).contains(&given), "{wanted} {given}");
}

#[test]
fn several_lids_of_a_port_are_folded_to_one() {
    let (_, mut view) = two_leaves();
    let mut writer = Writer::on(&mut view);
    let route = world::route_to(&mut writer.program, &mut view, "vm-2");
    let info = writer.program.get(&mut view, &route, Attribute::PORT_INFO, 1).unwrap();
    let mut info = ib_wire::PortInfo::decode(info.smp_data()).unwrap();
    info.lmc = ib_wire::Lmc::from_wire(1).unwrap();
    info.lid = Lid::from_wire(100);
    (info.state, info.physical_state) = (ib_wire::PortState::NoChange, ib_wire::PhysicalState::NoChange);
    writer.program.set(&mut view, &route, Attribute::PORT_INFO, 1, info.encode()).unwrap();
    let (usual, moved) = (lid(&view, "vm-2"), Lid::from_wire(100).unwrap());
    for (switch, _, route) in writer.routes.clone() {
        let exit = writer.exit(&mut view, &switch, usual);
        let info = writer.program.get(&mut view, &route, Attribute::SWITCH_INFO, 0).unwrap();
        let mut info = ib_wire::SwitchInfo::decode(info.smp_data()).unwrap();
        info.linear_fdb_top = 101;
        writer.program.set(&mut view, &route, Attribute::SWITCH_INFO, 0, info.encode()).unwrap();
        writer.set_exit(&mut view, &switch, moved, exit);
    }
    assert_eq!(
        verdict(&mut view),
        Verdict::Adapted { adaptations: vec![Adaptation::LmcFolded { node: "vm-2".to_owned() }] }
    );
}

#[test]
fn a_change_set_closes_half_a_second_after_the_last_write() {
    let (_, mut view) = two_leaves();
    let mut writer = Writer::on(&mut view);
    let to = lid(&view, "vm-3");
    let exit = writer.exit(&mut view, "switch-1", to);
    for step in 0..4 {
        writer.program.now = second(1.0) + step * Duration::from_millis(400);
        writer.set_exit(&mut view, "switch-1", to, exit);
        view.handle_timeout(writer.program.now + Duration::from_millis(399));
        assert_eq!(view.status().last, None);
    }
    assert_eq!(view.poll_timeout(), Some(second(2.7)));
    view.handle_timeout(second(2.7));
    assert_eq!(view.status().last.unwrap().verdict, Verdict::Approved);
}

#[test]
fn routes_to_a_shared_port_cannot_be_chosen() {
    let world = World::of(FatTree { radix: 4, ..FatTree::with_hosts(8) }.generate().unwrap());
    // Two virtual machines on the port of the last host, and others may use that of the first.
    let mut cluster = world.cluster(&[0, 1, 2, 3, 3]);
    cluster.nodes[0].shared = true;
    let mut view = View::new(world.slice(&cluster), tenant_view::Names::default()).unwrap();
    let mut writer = Writer::on(&mut view);
    let leaf = leaf_of(&view, "vm-0");
    let spines = spines(&view, &writer);
    for node in ["vm-2", "vm-3", "vm-4"] {
        let to = lid(&view, node);
        let before = writer.exit(&mut view, &leaf, to);
        let exits: Vec<u8> =
            spines.iter().flat_map(|spine| writer.ports_between(&view, &leaf, spine)).collect();
        let other = exits.into_iter().find(|exit| *exit != before).unwrap();
        writer.set_exit(&mut view, &leaf, to, other);
    }
    let not_routed = |node: &str| Adaptation::NotRouted { node: node.to_owned() };
    let adaptations = vec![not_routed("vm-3"), not_routed("vm-4")];
    assert_eq!(verdict(&mut view), Verdict::Adapted { adaptations });
    let Some(OverlayChange::Set { overlay, .. }) = view.poll_overlay() else { panic!("no overlay") };
    let alone = cluster.nodes[2].port;
    assert_eq!(
        overlay.routes.keys().collect::<Vec<_>>(),
        [&alone],
        "only to the node with a port of its own"
    );
}

#[test]
fn an_unplannable_overlay_leaves_the_old_one_in_force() {
    let (_, mut view) = two_leaves();
    let mut writer = Writer::on(&mut view);
    let to = lid(&view, "vm-3");
    let exit = writer.exit(&mut view, "switch-1", to);
    writer.set_exit(&mut view, "switch-1", to, exit);
    assert_eq!(verdict(&mut view), Verdict::Approved);
    let Some(OverlayChange::Set { number, .. }) = view.poll_overlay() else { panic!("no overlay") };
    view.refuse(number, "no lane is left".to_owned());
    let status = view.status();
    let refusal = OverlayRefusal::NotPlannable { reason: "no lane is left".to_owned() };
    assert_eq!(status.last.unwrap().verdict, Verdict::Refused { refusal });
    assert_eq!(status.in_force, None);
    let text = serde_json::to_value(view.status()).unwrap();
    assert_eq!(text["last"]["verdict"], "refused");
}
