//! How many path records a second a subnet administration answers: every host of a fat-tree of 4,860 asks for many others.
//!
//! Run it with `cargo run --release -p subnet-manager --example path_records`.
#![allow(clippy::unwrap_used, reason = "it has nobody to report to")]

#[path = "../tests/administration/world.rs"]
mod world;

use std::time::{Duration, Instant};

use fabric_model::generate::FatTree;
use ib_wire::sa::PathRecord;
use ib_wire::{Gid, Lid, Method, Status};
use world::World;

const HOSTS: u16 = 4860;
const QUERIES: u32 = 2_000_000;

fn main() {
    let topology = FatTree::with_hosts(HOSTS.into()).generate().unwrap();
    // Sixteen tenants; everybody is in the default partition besides.
    let tenants = 16;
    let world =
        (1..=HOSTS).fold(World::new(topology), |world, lid| world.with(0x8100 + lid % tenants, [lid]));
    let plan = world.plan();
    let start = Instant::now();
    let mut administration = world.administration();
    println!("directory of {HOSTS} hosts, plan included: {:.2?}", start.elapsed());
    let gid = |lid: u16| {
        let guid = plan.lid_owner(Lid::from_wire(lid).unwrap()).unwrap();
        Gid::unicast(Gid::DEFAULT_PREFIX, guid).0
    };
    let mask = PathRecord::DGID | PathRecord::SGID | PathRecord::IS_REVERSIBLE | PathRecord::PATH_COUNT;
    let requests: Vec<_> = (0..u32::from(HOSTS) * 8)
        .map(|number| {
            let from = 1 + (number % u32::from(HOSTS)) as u16;
            let to = 1 + (u32::from(from) + u32::from(tenants) * (1 + number / 61)) as u16 % HOSTS;
            let pattern: [(usize, &[u8]); 3] = [(8, &gid(to)), (24, &gid(from)), (49, &[0x81])];
            world::request(from, 0x7fff, world::question::<PathRecord>(Method::GET, &pattern, mask))
        })
        .collect();
    let (start, mut found) = (Instant::now(), 0);
    for request in requests.iter().cycle().take(QUERIES as usize) {
        administration.handle_datagram(Duration::ZERO, request);
        let answer = administration.poll_transmit(Duration::ZERO).unwrap();
        found += u32::from(answer.mad.status() == Status::OK);
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{QUERIES} questions in {seconds:.2} s on one core: {:.0} a second",
        f64::from(QUERIES) / seconds
    );
    println!("{found} of them found a path");
}
