//! An idle view of 16 nodes takes at most 1 MiB.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;
use tenant_view::{Names, View};

use crate::world::World;

const VIEWS: usize = 200;

/// Resident memory of the process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn an_idle_view_of_16_nodes_takes_less_than_a_mebibyte() {
    let world = World::tree(324, 36);
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let before = resident();
    let views: Vec<View> = (0..VIEWS)
        .map(|_| {
            // Spread over the whole tree: as many switches as 16 nodes can have.
            let mut hosts: Vec<usize> = (0..324).collect();
            hosts.shuffle(&mut rng);
            View::new(world.slice(&world.cluster(&hosts[..16])), Names::default()).unwrap()
        })
        .collect();
    let each = (resident() - before) / VIEWS;
    let switches: usize = views.iter().map(|view| view.fabric().size().0 - 16).sum::<usize>() / VIEWS;
    println!("{each} bytes for a view of 16 nodes and {switches} switches");
    assert!(each <= 1 << 20, "{each} bytes");
}
