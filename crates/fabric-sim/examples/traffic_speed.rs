//! How fast packets are simulated: `cargo run --release -p fabric-sim --example traffic_speed [-- MICROSECONDS [HOSTS …]]`.
//!
//! Every host sends messages of one full packet to hosts drawn at random, without pause: uniform all-to-all. Hosts that begin
//! together stay in step, so that much happens at the same moment; those that do not are the harder case.
#![allow(clippy::unwrap_used, reason = "an example ends with the error")]

#[path = "../tests/planned/mod.rs"]
mod planned;

use std::time::Instant;

use fabric_model::generate::FatTree;
use fabric_sim::PortId;
use fabric_sim::traffic::{Message, Orders, Settings, Time, Workload};
use ib_wire::Lid;
use planned::{Design, hosts, message};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Sizes of fat-trees: two levels, and three from 1,944 on.
const HOSTS: [u32; 4] = [100, 324, 648, 1944];

/// Network time of each run unless told otherwise.
const MICROSECONDS: u64 = 100;

/// How long a full packet takes on the links of these networks, in picoseconds.
const PACKET_PS: u64 = 4122 * 80;

struct AllToAll {
    hosts: Vec<(PortId, Lid)>,
    in_step: bool,
    rng: Pcg64Mcg,
}

impl AllToAll {
    /// The next message of a host; the token says which.
    fn next(&mut self, from: u64) -> Message {
        let count = self.hosts.len() as u64;
        let to = (from + self.rng.random_range(1..count)) % count;
        let (port, lid) = (self.hosts[from as usize].0, self.hosts[to as usize].1);
        Message { token: from, ..message(port, lid, 0, 4096) }
    }
}

impl Workload for AllToAll {
    fn start(&mut self, orders: &mut Orders) {
        for from in 0..self.hosts.len() as u64 {
            if self.in_step {
                orders.post(self.next(from));
            } else {
                orders.wake(Time::from_ps(self.rng.random_range(0..PACKET_PS)), from);
            }
        }
    }

    fn woken(&mut self, _: Time, from: u64, orders: &mut Orders) {
        orders.post(self.next(from));
    }

    fn sent(&mut self, _: Time, message: &Message, orders: &mut Orders) {
        orders.post(self.next(message.token));
    }
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|text| text.parse().ok());
    let microseconds: u64 = numbers.next().unwrap_or(MICROSECONDS);
    let mut sizes: Vec<u32> = numbers.map(|hosts| hosts as u32).collect();
    if sizes.is_empty() {
        sizes.extend(HOSTS);
    }
    println!(
        "hosts  begin     network time  packets      packet-hops  events          wall       cpu   events/s  ns/packet-hop  delivered"
    );
    let runs = sizes.iter().flat_map(|count| [(*count, true), (*count, false)]);
    for (count, in_step) in runs {
        let mut design = Design::new(FatTree::with_hosts(count).generate().unwrap());
        if count > 648 {
            // Three levels: the hosts of a leaf over spines, those of a spine over cores.
            design.spread = |level, host| if level > 1 { host / 18 } else { host };
        }
        let mut simulation = design.simulation(Settings::default());
        let mut workload =
            AllToAll { hosts: hosts(simulation.network()), in_step, rng: Pcg64Mcg::seed_from_u64(1) };
        let (began, used) = (Instant::now(), cpu_seconds());
        simulation.run(&mut workload, Time::from_us(microseconds));
        let wall = began.elapsed().as_secs_f64();
        let seconds = cpu_seconds().zip(used).map_or(wall, |(now, then)| now - then);
        simulation.audit().unwrap();
        let totals = simulation.totals();
        let bytes: u64 = simulation.measures().map(|(_, measure)| measure.wire_bytes).sum();
        let begin = if in_step { "together" } else { "apart   " };
        let possible = f64::from(count) * microseconds as f64 * 1e6 / 80.0;
        println!(
            "{count:5}  {begin}  {microseconds:9} µs  {:10}  {:12}  {:12} {wall:7.2} s {seconds:7.2} s  {:5.2} M  {:13.1}  {:7.1} %",
            totals.delivered,
            totals.hops,
            totals.events,
            totals.events as f64 / seconds / 1e6,
            seconds * 1e9 / totals.hops as f64,
            bytes as f64 / possible * 100.0,
        );
    }
}

/// Seconds that this program has been running on a core, where the system tells: others may be at work on the machine.
fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    let ns: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(ns / 1e9)
}
