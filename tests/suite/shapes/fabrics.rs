//! Fabrics of every shape that can be generated, from dice.

use std::ops::RangeInclusive;

use fabric_model::Topology;
use fabric_model::generate::{
    DragonflyPlus, FatTree, FatTreeSize, GenerateError, Oversubscription, RandomFabric, Torus, without_links,
};
use fabric_sim::{BuiltInProfile, Capacities, DeviceProfile};
use ib_wire::{DataLanes, Mtu};
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use rand_pcg::Pcg64;

/// Attempts until a random set of sizes makes a fabric: more than a third do.
const ATTEMPTS_MAX: usize = 1_000;

/// Radices of switches: those of the field, and the ones where a word of a port mask begins or ends.
const RADICES: [u8; 14] = [4, 6, 8, 12, 15, 16, 17, 24, 31, 32, 36, 40, 64, 128];

pub struct Fabric {
    /// How to make it again.
    pub description: String,
    pub topology: Topology,
    pub profile: DeviceProfile,
}

/// How large fabrics are to be.
#[derive(Clone, Debug)]
pub struct Size {
    pub hosts: RangeInclusive<usize>,
    /// Ports of switches, cabled or not: what planning and programming take grows with them.
    pub switch_ports_max: usize,
}

/// A fabric of a size.
pub fn fabric(dice: &mut Pcg64, size: &Size) -> Fabric {
    for _ in 0..ATTEMPTS_MAX {
        let (description, topology) = shape(dice, *size.hosts.end());
        let missing = dice.random_range(0..4);
        let Ok(mut topology) = topology else { continue };
        let switch_ports: usize = topology.switches().map(|(_, it)| usize::from(it.port_count())).sum();
        if switch_ports > size.switch_ports_max {
            continue;
        }
        if let Ok(thinned) = without_links(topology.clone(), missing, dice.random()) {
            topology = thinned;
        }
        let count = topology.end_nodes().count();
        if size.hosts.contains(&count) {
            let (devices, profile) = devices(dice);
            let Ok(topology) = profile.furnish(&topology) else { continue };
            let description = format!("{description}, {count} hosts, {missing} cables out, {devices}");
            return Fabric { description, topology, profile };
        }
    }
    panic!("no fabric of {size:?} in {ATTEMPTS_MAX} attempts");
}

fn shape(dice: &mut Pcg64, hosts_max: usize) -> (String, Result<Topology, GenerateError>) {
    let radix = *RADICES.choose(dice).unwrap();
    match dice.random_range(0..6) {
        0 | 1 => {
            let levels = *[None, Some(2), Some(3)].choose(dice).unwrap();
            let size = FatTreeSize::Hosts { hosts: dice.random_range(2..=hosts_max as u32), tiers: levels };
            fat_tree(dice, size, radix)
        }
        2 => {
            let full = dice.random_range(1..=6);
            if dice.random() {
                return fat_tree(dice, FatTreeSize::Leaves(full), radix);
            }
            // A pod of larger switches has more hosts than any fabric here.
            fat_tree(dice, FatTreeSize::Pods(full), radix.min(24))
        }
        3 => {
            let dimensions: Vec<u16> =
                (0..dice.random_range(1..=3)).map(|_| dice.random_range(2..=6)).collect();
            let (wrap, hosts_per_switch) = (dice.random(), dice.random_range(1..=4));
            let torus = Torus { wrap, hosts_per_switch, radix, ..Torus::new(dimensions) };
            (format!("{torus:?}"), torus.generate())
        }
        4 => {
            let fly = DragonflyPlus {
                leaves: dice.random_range(1..=4),
                spines: dice.random_range(1..=4),
                hosts_per_leaf: dice.random_range(1..=6),
                global_links: dice.random_range(1..=3),
                radix,
                ..DragonflyPlus::new(dice.random_range(1..=6))
            };
            (format!("{fly:?}"), fly.generate())
        }
        _ => {
            let (switches, degree) = (dice.random_range(3..=16), dice.random_range(2..=5));
            let hosts_per_switch = dice.random_range(1..=8);
            let random = RandomFabric {
                hosts_per_switch,
                radix,
                ..RandomFabric::new(switches, degree, dice.random())
            };
            (format!("{random:?}"), random.generate())
        }
    }
}

fn fat_tree(dice: &mut Pcg64, size: FatTreeSize, radix: u8) -> (String, Result<Topology, GenerateError>) {
    let down = dice.random_range(1..=3);
    let oversubscription = Oversubscription { down, up: 1 };
    let tree = FatTree { radix, oversubscription, ..FatTree::new(size) };
    (format!("{tree:?}"), tree.generate())
}

/// Devices of a kind in the field, or strict ones of any size; with a description.
fn devices(dice: &mut Pcg64) -> (String, DeviceProfile) {
    let sizes = capacities(dice);
    match dice.random_range(0..4) {
        0 => of_kind(BuiltInProfile::ConnectX3SwitchX),
        1 => of_kind(BuiltInProfile::ConnectX6Quantum),
        _ => (format!("{sizes:?}"), sizes.into()),
    }
}

fn of_kind(kind: BuiltInProfile) -> (String, DeviceProfile) {
    (kind.name().to_owned(), kind.profile())
}

fn capacities(dice: &mut Pcg64) -> Capacities {
    let lanes = [DataLanes::One, DataLanes::Two, DataLanes::Four, DataLanes::Eight, DataLanes::Fifteen];
    Capacities {
        lanes: *lanes.choose(dice).unwrap(),
        pkeys: *[16, 64, 128].choose(dice).unwrap(),
        arbitration_entries: *[8, 16, 64].choose(dice).unwrap(),
        multicast_forwarding: *[32, 100, 1024].choose(dice).unwrap(),
        mtu: *[Mtu::B2048, Mtu::B4096].choose(dice).unwrap(),
        optimised_sl_to_vl: dice.random(),
        ..Capacities::default()
    }
}
