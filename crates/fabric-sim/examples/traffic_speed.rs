//! Speed of the packet simulation: `cargo run --release -p fabric-sim --example traffic_speed [--
//! MICROSECONDS [HOSTS …]]`.
//!
//! Every host sends messages of one full packet to random hosts without pause: uniform all-to-all. Hosts that
//! start together stay in step, so that many events happen at the same time; hosts that do not are the harder
//! case.
#![allow(clippy::unwrap_used, reason = "an example ends with the error")]

#[path = "../tests/suite/planned/mod.rs"]
mod planned;

use std::time::Instant;

use fabric_model::generate::FatTree;
use fabric_sim::PortId;
use fabric_sim::traffic::{Message, Time, TrafficSettings, Workload, WorkloadActions};
use ib_wire::Lid;
use planned::{Design, hosts, message};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Sizes of fat-trees: two tiers, and three from 1,944 hosts on.
const HOSTS: [u32; 4] = [100, 324, 648, 1944];

/// Simulated time of each run by default.
const MICROSECONDS: u64 = 100;

/// Repetitions, because a shared machine is slow at times.
const ROUNDS: u32 = 5;

/// Time of a full packet on the links of these networks, in picoseconds.
const PACKET_PS: u64 = 4122 * 80;

struct AllToAll {
    hosts: Vec<(PortId, Lid)>,
    in_step: bool,
    rng: Pcg64Mcg,
}

impl AllToAll {
    /// The next message of a host; the token is the number of the host.
    fn next(&mut self, from: u64) -> Message {
        let count = self.hosts.len() as u64;
        let to = (from + self.rng.random_range(1..count)) % count;
        let (port, lid) = (self.hosts[from as usize].0, self.hosts[to as usize].1);
        Message { token: from, ..message(port, lid, 0, 4096) }
    }
}

impl Workload for AllToAll {
    fn start(&mut self, actions: &mut WorkloadActions) {
        for from in 0..self.hosts.len() as u64 {
            if self.in_step {
                actions.post(self.next(from));
            } else {
                actions.wake(Time::from_ps(self.rng.random_range(0..PACKET_PS)), from);
            }
        }
    }

    fn woken(&mut self, _: Time, from: u64, actions: &mut WorkloadActions) {
        actions.post(self.next(from));
    }

    fn sent(&mut self, _: Time, message: &Message, actions: &mut WorkloadActions) {
        actions.post(self.next(message.token));
    }
}

/// The result of a run, and its CPU time.
struct Run {
    delivered: u64,
    hops: u64,
    events: u64,
    wire_bytes: u64,
    seconds: f64,
}

impl Run {
    fn ns_per_hop(&self) -> f64 {
        self.seconds * 1e9 / self.hops as f64
    }
}

fn run(count: u32, in_step: bool, microseconds: u64) -> Run {
    let mut design = Design::new(FatTree::with_hosts(count).generate().unwrap());
    if count > 648 {
        // Three tiers: the hosts of a leaf over spines, those of a spine over cores.
        design.spread = |level, host| if level > 1 { host / 18 } else { host };
    }
    let mut simulation = design.simulation(TrafficSettings::default());
    let mut workload =
        AllToAll { hosts: hosts(simulation.network()), in_step, rng: Pcg64Mcg::seed_from_u64(1) };
    let (began, used) = (Instant::now(), cpu_seconds());
    simulation.run(&mut workload, Time::from_us(microseconds));
    let wall = began.elapsed().as_secs_f64();
    let seconds = cpu_seconds().zip(used).map_or(wall, |(now, then)| now - then);
    simulation.audit().unwrap();
    let totals = simulation.totals();
    let wire_bytes = simulation.measures().map(|(_, measure)| measure.wire_bytes).sum();
    Run { delivered: totals.delivered, hops: totals.hops, events: totals.events, wire_bytes, seconds }
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|text| text.parse().ok());
    let microseconds: u64 = numbers.next().unwrap_or(MICROSECONDS);
    let mut sizes: Vec<u32> = numbers.map(|hosts| hosts as u32).collect();
    if sizes.is_empty() {
        sizes.extend(HOSTS);
    }
    let cases: Vec<(u32, bool)> = sizes.iter().flat_map(|count| [(*count, true), (*count, false)]).collect();
    let mut best: Vec<Option<Run>> = cases.iter().map(|_| None).collect();
    for _ in 0..ROUNDS {
        for ((count, in_step), best) in cases.iter().zip(&mut best) {
            let run = run(*count, *in_step, microseconds);
            if best.as_ref().is_none_or(|best| run.seconds < best.seconds) {
                *best = Some(run);
            }
        }
    }
    println!("{microseconds} µs of network time; the quickest of {ROUNDS} rounds, in CPU time");
    println!(
        "hosts  begin     packets      packet-hops  events           cpu   events/s  ns/packet-hop  to the smallest  delivered"
    );
    for (index, ((count, in_step), run)) in cases.iter().zip(best.iter().flatten()).enumerate() {
        let begin = if *in_step { "together" } else { "apart   " };
        let possible = f64::from(*count) * microseconds as f64 * 1e6 / 80.0;
        let smallest = best[index % 2].as_ref().map_or(f64::NAN, Run::ns_per_hop);
        println!(
            "{count:5}  {begin}  {:7}  {:12}  {:12} {:9.2} s  {:5.2} M  {:13.1}  {:15.2}  {:7.1} %",
            run.delivered,
            run.hops,
            run.events,
            run.seconds,
            run.events as f64 / run.seconds / 1e6,
            run.ns_per_hop(),
            run.ns_per_hop() / smallest,
            run.wire_bytes as f64 / possible * 100.0,
        );
    }
}

/// CPU time of this program in seconds, if the system reports it.
fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    let ns: f64 = text.split_whitespace().next()?.parse().ok()?;
    Some(ns / 1e9)
}
