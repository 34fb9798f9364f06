//! A view shows every route between the nodes of a cluster and nothing else, under persistent aliases.

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::generate::{FatTree, RandomFabric, Torus};
use fabric_model::intent::PortName;
use ib_wire::{Attribute, Guid, NodeKind};
use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use tenant_view::{ClusterPlacement, Names, NodePlacement, Slice, View, ViewShape};

use crate::world::{self, Program, World, partition, second};

fn worlds(which: usize, seed: u64) -> World {
    World::of(match which {
        0 => FatTree { radix: 8, ..FatTree::with_hosts(32) }.generate().unwrap(),
        1 => FatTree { radix: 4, ..FatTree::with_hosts(16) }.generate().unwrap(),
        2 => Torus::new([4, 3]).generate().unwrap(),
        _ => RandomFabric::new(9, 3, seed).generate().unwrap(),
    })
}

/// Some virtual machines on some ports; several may share a port.
fn cluster(world: &World, rng: &mut Pcg64Mcg) -> ClusterPlacement {
    let mut ports = world.ports();
    ports.shuffle(rng);
    ports.truncate(rng.random_range(1..=ports.len().min(8)));
    let count = rng.random_range(1..=ports.len() + 3);
    let nodes = (0..count).map(|index| NodePlacement {
        node: format!("vm-{index}"),
        port: ports[index % ports.len()],
        shared: false,
        guid: None,
    });
    ClusterPlacement { name: "blue".to_owned(), partition: partition(), nodes: nodes.collect() }
}

/// The cables and switches on the routes between the ports of a cluster, walked by the plan alone.
fn walked(world: &World, cluster: &ClusterPlacement) -> (BTreeSet<Guid>, BTreeSet<(PortName, PortName)>) {
    let (mut switches, mut cables) = (BTreeSet::new(), BTreeSet::new());
    for from in &cluster.nodes {
        for to in &cluster.nodes {
            let (source, sink) =
                (world.plan.adapter_port(from.port).unwrap(), world.plan.adapter_port(to.port).unwrap());
            let mut at = source.peer;
            switches.insert(at.node);
            if from.port == to.port {
                continue;
            }
            loop {
                switches.insert(at.node);
                let switch = world.plan.switch(at.node).unwrap();
                let exit = switch.linear.exit(sink.lid).unwrap();
                let here = PortName { node: at.node, port: exit };
                let peer = switch.port(exit).unwrap().peer;
                if peer == sink.name {
                    break;
                }
                cables.insert(if here < peer { (here, peer) } else { (peer, here) });
                at = peer;
            }
        }
    }
    (switches, cables)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_view_shows_exactly_the_routes_of_its_cluster(which in 0_usize..4, seed in 0_u64..1000) {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let world = worlds(which, seed);
        let cluster = cluster(&world, &mut rng);
        let (switches, cables) = walked(&world, &cluster);
        let slice = world.slice(&cluster);
        prop_assert_eq!(slice.switches().collect::<BTreeSet<_>>(), switches.clone());
        prop_assert_eq!(slice.cables().collect::<BTreeSet<_>>(), cables.clone());

        // A tool that follows directed routes finds the same numbers.
        let mut view = View::new(slice, Names::default()).unwrap();
        let mut program = Program::on(&view, "vm-0");
        let found = world::explore(&mut program, &mut view);
        let kinds = |kind: NodeKind| found.iter().filter(|(_, _, known, _)| *known == kind).count();
        prop_assert_eq!(kinds(NodeKind::Switch), switches.len());
        prop_assert_eq!(kinds(NodeKind::Adapter), cluster.nodes.len());
        let (_, _, links) = view.fabric().size();
        prop_assert_eq!(links, cables.len() + cluster.nodes.len());
        // All nodes reach each other by LID.
        let aliases = view.aliases();
        for alias in &aliases {
            let mad = ib_wire::Mad::new(
                ib_wire::ManagementClass::SUBNET_LID, ib_wire::Method::GET, Attribute::NODE_DESCRIPTION, 0,
            );
            let answer = program.ask(&mut view, mad, Some(alias.lid)).unwrap();
            prop_assert_eq!(ib_wire::NodeDescription(*answer.smp_data()).text(), alias.node.clone());
        }
    }

    #[test]
    fn aliases_stay_when_a_cluster_changes(which in 0_usize..4, seed in 0_u64..1000) {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let world = worlds(which, seed);
        let mut names = Names::default();
        let mut known: BTreeMap<String, (Guid, u16)> = BTreeMap::new();
        let mut view: Option<View> = None;
        for step in 0..6 {
            let cluster = cluster(&world, &mut rng);
            let slice = world.slice(&cluster);
            // Names survive serialization.
            let text = serde_json::to_string(&names).unwrap();
            names = serde_json::from_str(&text).unwrap();
            let fresh = View::new(slice.clone(), names.clone()).unwrap();
            names = fresh.names().clone();
            for alias in fresh.aliases() {
                let now = (alias.guid, alias.lid.to_wire());
                let before = known.insert(alias.node.clone(), now);
                prop_assert!(before.is_none_or(|before| before == now), "{} had {:?}", alias.node, before);
            }
            let lids: BTreeSet<u16> = fresh.aliases().iter().map(|alias| alias.lid.to_wire()).collect();
            prop_assert_eq!(lids.len(), fresh.aliases().len());
            // A running view shows the same.
            match &mut view {
                Some(view) => view.set_slice(second(f64::from(step)), slice).unwrap(),
                None => view = Some(View::new(slice, Names::default()).unwrap()),
            }
            let running = view.as_mut().unwrap();
            prop_assert_eq!(running.aliases(), fresh.aliases());
            let mut program = Program::on(running, &cluster.nodes[0].node);
            program.now = second(f64::from(step));
            let found = world::explore(&mut program, running);
            let mut others = fresh;
            let mut program = Program::on(&others, &cluster.nodes[0].node);
            let expected = world::explore(&mut program, &mut others);
            let sorted = |mut found: Vec<_>| { found.sort_by_key(|(_, guid, _, _): &(String, Guid, NodeKind, Vec<u8>)| *guid); found };
            prop_assert_eq!(sorted(found), sorted(expected), "a running view equals a new one");
        }
    }
}

#[test]
fn a_crossbar_is_one_switch_with_all_nodes() {
    let world = World::tree(32, 8);
    let slice =
        Slice::of(&world.topology, &world.plan, &world.cluster(&[0, 5, 9, 13]), ViewShape::Crossbar).unwrap();
    let mut view = View::new(slice, Names::default()).unwrap();
    let mut program = Program::on(&view, "");
    let found = world::explore(&mut program, &mut view);
    assert_eq!(found.len(), 5);
    assert!(view.adapter("switch-1").is_none(), "no program sits on a switch");
}
