//! Ports without a key of the default partition, which reach subnet administration by other partitions.

use std::collections::BTreeSet;

use fabric_model::generate::FatTree;
use ib_wire::sa::{ComponentMask, McMemberRecord, NodeRecord, PathRecord as P};
use ib_wire::{LidAddress, Method, PartitionNumber, ServiceLevel};

use crate::world::{World, get, query, request, table};

/// Ports 2 and 3 are handed over and a cluster, 4 is handed over alone; all others are full members of the default partition.
pub fn site() -> World {
    let tree = FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap();
    let mut world = World::new(tree);
    for lid in [2, 3] {
        world.keys.insert(lid, vec![0x8101, 0x7ffe]);
    }
    world.keys.insert(4, vec![0x7ffe]);
    for (_, keys) in world.keys.iter_mut().filter(|(lid, _)| **lid > 4) {
        *keys = vec![0xffff];
    }
    world.keys.insert(1, vec![0xffff, 0x8101, 0xfffe]);
    world.groups = vec![(0x101, 0)];
    world.decisions.management_partition = PartitionNumber::from_wire(0x7ffe);
    world.decisions.management_sl = ServiceLevel::from_wire(15);
    world
}

fn seen_by(world: &World, requester: u16, key: u16) -> BTreeSet<u16> {
    let everything = query::<NodeRecord>(Method::GET_TABLE, &[], ComponentMask::NONE);
    let records: Vec<NodeRecord> = table(&mut world.sa(), &request(requester, key, everything)).unwrap();
    records.iter().filter_map(|record| record.lid).map(LidAddress::to_wire).collect()
}

#[test]
fn a_handed_over_port_is_answered_and_sees_its_partitions() {
    let world = site();
    assert_eq!(seen_by(&world, 2, 0x8101), BTreeSet::from([1, 2, 3]));
    assert_eq!(seen_by(&world, 2, 0x7ffe), BTreeSet::from([1, 2, 3]));
    assert_eq!(seen_by(&world, 4, 0x7ffe), BTreeSet::from([1, 4]));
    let all: BTreeSet<u16> = world.keys.keys().copied().collect();
    let of_site: BTreeSet<u16> = all.into_iter().filter(|lid| !(2..=4).contains(lid)).collect();
    assert_eq!(seen_by(&world, 9, 0xffff), of_site, "a control");
}

#[test]
fn paths_between_manager_and_handed_over_ports_have_the_management_sl() {
    let world = site();
    let level = |from: u16, to: u16, key: u16| {
        let (slid, dlid, pkey) = (from.to_be_bytes(), to.to_be_bytes(), key.to_be_bytes());
        let pattern: &[(usize, &[u8])] = &[(40, &dlid), (42, &slid), (50, &pkey)];
        let mad = query::<P>(Method::GET, pattern, P::DLID | P::SLID | P::PKEY);
        let path: Result<P, _> = get(&mut world.sa(), &request(from, world.keys[&from][0], mad));
        path.map(|path| path.sl.to_wire())
    };
    assert_eq!(level(2, 1, 0x8101), Ok(15));
    assert_eq!(level(2, 1, 0x7ffe), Ok(15));
    assert_eq!(level(1, 2, 0x8101), Ok(15));
    assert_eq!(level(4, 1, 0x7ffe), Ok(15));
    assert_eq!(level(2, 3, 0x8101), Ok(0), "a control: inside the cluster");
    assert!(level(2, 9, 0xffff).is_err(), "no path to the site");
}

#[test]
fn a_handed_over_port_finds_the_group_of_its_cluster() {
    let world = site();
    let groups = |requester: u16, key: u16| {
        let everything = query::<McMemberRecord>(Method::GET_TABLE, &[], ComponentMask::NONE);
        let found: Result<Vec<McMemberRecord>, _> =
            table(&mut world.sa(), &request(requester, key, everything));
        found.map_or(0, |groups| groups.len())
    };
    assert_eq!((groups(2, 0x8101), groups(2, 0x7ffe)), (1, 1));
    assert_eq!(groups(4, 0x7ffe), 0);
}
