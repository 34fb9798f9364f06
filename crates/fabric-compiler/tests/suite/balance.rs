//! Balance of routes: on full trees every shift permutation of the hosts loads every link with one flow.

use std::collections::HashMap;

use fabric_model::generate::{FatTree, FatTreeSize, Torus};
use fabric_model::{NodeIndex, Topology, ibnetdiscover};
use ib_wire::{Lid, PortNum};
use proptest::prelude::*;

use crate::world::{self, Walk, Walker, fresh};

/// The most flows on a channel when host i sends to host i + shift, in LID order.
fn most_flows(walker: &Walker<'_>, hosts: &[(Lid, NodeIndex)], shift: usize) -> usize {
    let mut flows: HashMap<(NodeIndex, PortNum), usize> = HashMap::new();
    for (index, (_, from)) in hosts.iter().enumerate() {
        let (to, _) = hosts[(index + shift) % hosts.len()];
        let Walk::Arrived(channels) = walker.walk(*from, to) else { panic!("lost") };
        for channel in channels {
            *flows.entry(channel).or_default() += 1;
        }
    }
    flows.into_values().max().unwrap_or(0)
}

fn worst_shift(topology: &Topology, shifts: impl Iterator<Item = usize>) -> usize {
    let plan = fresh(topology);
    let walker = Walker::new(topology, &plan);
    let hosts = walker.hosts();
    shifts.map(|shift| most_flows(&walker, &hosts, shift % hosts.len())).max().unwrap_or(0)
}

#[test]
fn shifts_load_links_of_two_tier_trees_with_one_flow() {
    for leaves in [2, 3, 9] {
        let tree = FatTree::new(FatTreeSize::Leaves(leaves)).generate().unwrap();
        assert_eq!(worst_shift(&tree, 1..usize::from(leaves) * 18), 1, "{leaves} leaves");
    }
    for leaves in 2..=8 {
        let tree = FatTree { radix: 8, ..FatTree::new(FatTreeSize::Leaves(leaves)) }.generate().unwrap();
        assert_eq!(worst_shift(&tree, 1..usize::from(leaves) * 4), 1, "{leaves} leaves of radix 8");
    }
}

#[test]
fn shifts_load_links_of_three_tier_trees_with_one_flow() {
    for (radix, pods) in [(4, 4), (8, 2), (8, 3), (8, 8), (12, 4)] {
        let tree = FatTree { radix, ..FatTree::new(FatTreeSize::Pods(pods)) }.generate().unwrap();
        let hosts = tree.end_nodes().count();
        assert_eq!(worst_shift(&tree, 1..hosts), 1, "{pods} pods of radix {radix}");
    }
}

#[test]
fn balance_does_not_depend_on_guid_order() {
    // Real switches have GUIDs in no order: reverse them within each kind.
    let tree = FatTree { radix: 8, ..FatTree::new(FatTreeSize::Pods(4)) }.generate().unwrap();
    let mut text = ibnetdiscover::write(&tree);
    let guids: Vec<u64> = tree.switches().map(|(_, node)| node.guid.to_wire()).collect();
    for (number, guid) in guids.iter().enumerate() {
        let scrambled = 0x2_c903_0100_0000 + (((number as u64 * 0x9e37) % 0xffff) << 4);
        text = text.replace(&format!("{guid:x}"), &format!("{scrambled:x}"));
    }
    let scrambled = ibnetdiscover::parse(&text).unwrap();
    let order: Vec<_> = scrambled.switches().map(|(_, node)| node.guid).collect();
    assert!(!order.is_sorted());
    assert_eq!(worst_shift(&scrambled, 1..scrambled.end_nodes().count()), 1);
}

#[test]
fn oversubscribed_trees_share_links_evenly() {
    let tree = FatTree {
        radix: 12,
        oversubscription: "3:1".parse().unwrap(),
        ..FatTree::new(FatTreeSize::Leaves(6))
    };
    let tree = tree.generate().unwrap();
    assert_eq!(worst_shift(&tree, 1..54), 3, "nine hosts on three uplinks");
}

#[test]
fn a_torus_uses_every_allowed_path() {
    // 16 switches with 4 hosts each: every exit of a switch towards a switch is used.
    let torus = Torus { hosts_per_switch: 4, ..Torus::new([4, 4]) }.generate().unwrap();
    let plan = fresh(&torus);
    let walker = Walker::new(&torus, &plan);
    let mut flows: HashMap<(NodeIndex, PortNum), usize> = HashMap::new();
    for (_, from) in walker.hosts() {
        for (to, _) in walker.hosts() {
            let Walk::Arrived(channels) = walker.walk(from, to) else { panic!("lost") };
            channels.into_iter().for_each(|channel| *flows.entry(channel).or_default() += 1);
        }
    }
    let channels = 2 * world::switch_cables(&torus).len();
    let (most, all) = (*flows.values().max().unwrap(), flows.values().sum::<usize>());
    assert!(flows.len() * 10 >= channels * 8, "{} of {channels} are used", flows.len());
    assert!(most * channels <= 4 * all, "the busiest carries {most}, the average {}", all / channels);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn sampled_shifts_load_links_of_large_trees_with_one_flow(shift in 1usize..1944) {
        for tree in [FatTree::new(FatTreeSize::Leaves(36)), FatTree::new(FatTreeSize::Pods(6))] {
            let tree = tree.generate().unwrap();
            prop_assert!(worst_shift(&tree, [shift].into_iter()) <= 1);
        }
    }
}
