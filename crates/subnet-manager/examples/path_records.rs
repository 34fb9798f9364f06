//! Path records per second of a subnet administration: every host of a fat-tree of 4,860 queries many others.
//!
//! Run it with `cargo run --release -p subnet-manager --example path_records`.
#![allow(clippy::unwrap_used, reason = "an example ends with the error")]

#[path = "../tests/sa/world.rs"]
mod world;

use std::time::Duration;

use fabric_model::generate::FatTree;
use ib_wire::sa::PathRecord;
use ib_wire::{Datagram, Gid, Lid, Method, Status};
use subnet_manager::SubnetAdministration;
use world::{World, query, request};

const HOSTS: u16 = 4860;
/// Partitions, each with every 15th host; all hosts are in the default partition as well.
const TENANTS: u16 = 15;
/// Hosts that each host queries.
const PEERS: u16 = 32;
const ROUNDS: usize = 20;

fn main() {
    let topology = FatTree::with_hosts(HOSTS.into()).generate().unwrap();
    let alone = World::new(topology);
    let world = (1..=HOSTS).fold(alone, |world, lid| world.with(0x8100 + lid % TENANTS, [lid]));
    let plan = world.plan();
    let gids: Vec<[u8; 16]> = (1..=HOSTS)
        .map(|lid| plan.lid_owner(Lid::from_wire(lid).unwrap()).unwrap())
        .map(|guid| Gid::unicast(Gid::DEFAULT_PREFIX, guid).0)
        .collect();
    let mut sa = world.sa();

    // What a kernel queries, in the order in which many hosts would at the same time.
    let mask = PathRecord::DGID | PathRecord::SGID | PathRecord::IS_REVERSIBLE | PathRecord::PATH_COUNT;
    let path = |from: u16, to: u16| {
        let [sgid, dgid] = [from, to].map(|host| &gids[usize::from(host)][..]);
        let pattern = [(8, dgid), (24, sgid), (49, &[0x81][..])];
        request(from + 1, 0x7fff, query::<PathRecord>(Method::GET, &pattern, mask))
    };
    let peer =
        |host: u16, number: u16| (u32::from(host) + u32::from(TENANTS) * u32::from(number * 7 + 1)) % 4860;
    let inside: Vec<Datagram> = (0..PEERS)
        .flat_map(|number| (0..HOSTS).map(move |host| (host, peer(host, number) as u16)))
        .map(|(from, to)| path(from, to))
        .collect();
    measure("within their partition", &mut sa, &inside);
    let across: Vec<Datagram> = (0..PEERS)
        .flat_map(|number| (1..HOSTS).map(move |host| (host, (host + number * TENANTS + 1) % HOSTS)))
        .map(|(from, to)| path(from, to))
        .collect();
    measure("to hosts that are hidden from them", &mut sa, &across);
}

fn measure(what: &str, sa: &mut SubnetAdministration, requests: &[Datagram]) {
    let (start, mut found) = (cpu_time(), 0);
    for _ in 0..ROUNDS {
        for request in requests {
            sa.handle_datagram(Duration::ZERO, request);
            let answer = sa.poll_transmit(Duration::ZERO).unwrap();
            found += usize::from(answer.mad.status() == Status::OK);
        }
    }
    let seconds = (cpu_time() - start).as_secs_f64();
    let requested = requests.len() * ROUNDS;
    println!("{what}: {requested} queries, {found} paths, {:.0} per CPU second", requested as f64 / seconds);
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}
