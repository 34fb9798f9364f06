//! Prints the time to plan a fabric full of guaranteed clusters, and then to remove and to add one cluster: by recompiling
//! from the previous plan, and by a planner. The clusters have 8 nodes, adjacent or scattered.
//!
//! `cargo run --release -p fabric-compiler --example one_more -- 1944 11664`

use std::sync::Arc;
use std::time::Instant;

use fabric_compiler::{Planner, recompile_on};
use fabric_model::generate::FatTree;
use fabric_model::intent::{
    ClusterIntent, Ipoib, Member, MemberSelector, PartitionIntent, PkeyPlacement, Role,
};
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Decisions, Intents, Topology};
use ib_wire::Guid;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;

/// Nodes of a cluster: with 11,664 hosts that makes 1,457 of them.
const CLUSTER: usize = 8;

/// Clusters that are removed, each followed by an added one.
const CHANGES: usize = 200;

/// Further changes that are timed by recompilation only, because recompiling evicts the planner's data from the caches.
const RECOMPILED: usize = 20;

const SEED: u64 = 20_261_115;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hosts: Vec<u32> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    for hosts in if hosts.is_empty() { vec![1944, 11664] } else { hosts } {
        let tree = Arc::new(FatTree::with_hosts(hosts).generate()?);
        let mut ports: Vec<Guid> =
            tree.end_nodes().filter_map(|(_, node)| Some(node.ports().next()?.1.guid)).collect();
        println!("{hosts} hosts, clusters of nodes next to each other");
        measure(&tree, &ports, Nodes::Together)?;
        ports[1..].shuffle(&mut Pcg64::seed_from_u64(SEED));
        println!("{hosts} hosts, clusters of nodes anywhere");
        measure(&tree, &ports, Nodes::Anywhere)?;
    }
    Ok(())
}

/// The placement of a cluster's nodes.
#[derive(Clone, Copy, PartialEq)]
enum Nodes {
    Together,
    Anywhere,
}

fn measure(tree: &Arc<Topology>, ports: &[Guid], nodes: Nodes) -> Result<(), Box<dyn std::error::Error>> {
    let mut intents = Intents::new(*ports.first().ok_or("no host")?);
    intents.capabilities.default_port.arbitration = 64;
    let mut random = Pcg64::seed_from_u64(SEED);
    let groups = ports[1..].chunks_exact(CLUSTER);
    // Scattered nodes share so many links that not all clusters find a service level.
    let count = if nodes == Nodes::Together { groups.len() } else { groups.len() / 5 };
    for (number, ports) in groups.enumerate().take(count) {
        add(&mut intents, &format!("c{number}"), ports);
    }
    let start = Instant::now();
    let mut planner = Planner::new(Arc::clone(tree), intents, &Decisions::default())?;
    println!("  {count} clusters planned from nothing: {:.2} s", start.elapsed().as_secs_f64());

    let mut times = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    let mut refused = 0;
    let mut spare: Vec<Guid> = ports[1 + count * CLUSTER..].to_vec();
    for change in 0..CHANGES + RECOMPILED {
        let mut intents = planner.intents().clone();
        let at = random.random_range(0..intents.clusters.len());
        intents.partitions.remove(at);
        spare.extend(intents.clusters.remove(at).ports);
        if nodes == Nodes::Anywhere {
            spare.shuffle(&mut random);
        }
        let mut more = intents.clone();
        let chosen = spare.split_off(spare.len() - CLUSTER);
        add(&mut more, &format!("d{change}"), &chosen);
        for (place, intents) in [intents, more].into_iter().enumerate() {
            let before = Arc::clone(planner.plan());
            if change >= CHANGES {
                let start = Instant::now();
                drop(recompile_on(planner.basis(), tree, &intents, &before));
                times[place].push(start.elapsed().as_micros());
            }
            let start = Instant::now();
            let answer = planner.change(&intents).map(|plan| plan.switches().len());
            if change < CHANGES {
                times[2 + place].push(start.elapsed().as_micros());
            }
            if answer.is_err() {
                refused += 1;
                spare.extend(&chosen);
            }
        }
    }
    let names = ["recompiled, one less", "recompiled, one more", "changed, one less", "changed, one more"];
    for (name, times) in names.iter().zip(&mut times) {
        times.sort_unstable();
        let [p50, p99] = [50, 99].map(|part| times[(times.len() * part / 100).min(times.len() - 1)]);
        println!("  {name:<21} p50 {p50:>7} µs, p99 {p99:>7} µs, most {:>7} µs", times[times.len() - 1]);
    }
    println!("  {refused} refused");
    Ok(())
}

fn add(intents: &mut Intents, name: &str, ports: &[Guid]) {
    let class = Class::Guaranteed { bandwidth: Bandwidth::from_bits_per_s(1_000_000_000), latency_ns: None };
    let member = |port: &Guid| Member {
        selector: MemberSelector::Port(*port),
        role: Role::Full,
        placement: PkeyPlacement::Anywhere,
    };
    intents.partitions.push(PartitionIntent {
        name: name.to_owned(),
        number: None,
        members: ports.iter().map(member).collect(),
        ipoib: Some(Ipoib::default()),
    });
    intents.clusters.push(ClusterIntent {
        name: name.to_owned(),
        ports: ports.to_vec(),
        class,
        sl_mode: SlMode::Cluster,
    });
}
