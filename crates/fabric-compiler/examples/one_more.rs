//! Prints how long it takes to plan a fabric full of guaranteed clusters, and to plan one more.
//!
//! `cargo run --release -p fabric-compiler --example one_more -- 1944 11664`

use std::time::Instant;

use fabric_compiler::{compile, recompile_on};
use fabric_model::generate::FatTree;
use fabric_model::intent::{ClusterIntent, Ipoib, KeyPlace, Member, PartitionIntent, Role, Who};
use fabric_model::plan::Basis;
use fabric_model::tenancy::{Bandwidth, Class, SlMode};
use fabric_model::{Decisions, Intents};
use ib_wire::Guid;

/// Nodes of a cluster: with 11,664 hosts that makes 1,458 of them.
const CLUSTER: usize = 8;

/// Clusters that are taken away and brought back.
const CHANGES: usize = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hosts: Vec<u32> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    for hosts in if hosts.is_empty() { vec![1944, 11664] } else { hosts } {
        measure(hosts)?;
    }
    Ok(())
}

fn measure(hosts: u32) -> Result<(), Box<dyn std::error::Error>> {
    let tree = FatTree::with_hosts(hosts).generate()?;
    let ports: Vec<Guid> =
        tree.end_nodes().filter_map(|(_, node)| Some(node.ports().next()?.1.guid)).collect();
    let mut intents = Intents::new(*ports.first().ok_or("no host")?);
    intents.capabilities.usual_port.arbitration = 64;
    for (number, ports) in ports[1..].chunks(CLUSTER).enumerate() {
        add(&mut intents, &format!("c{number}"), ports);
    }
    let start = Instant::now();
    let mut plan = compile(&tree, &intents, &Decisions::default())?;
    let whole = start.elapsed().as_secs_f64();
    let count = intents.clusters.len();
    println!("{hosts} hosts, {count} clusters: {whole:.2} s");
    let basis = Basis::of(&tree, &intents);
    let mut times = Vec::new();
    for change in 0..CHANGES {
        let mut fewer = intents.clone();
        let at = change * (count / CHANGES);
        fewer.clusters.remove(at);
        fewer.partitions.remove(at);
        plan = recompile_on(basis, &tree, &fewer, &plan)?;
        let start = Instant::now();
        plan = recompile_on(basis, &tree, &intents, &plan)?;
        times.push(start.elapsed().as_micros());
    }
    times.sort_unstable();
    println!("one more: median {} µs, most {} µs", times[times.len() / 2], times[times.len() - 1]);
    Ok(())
}

fn add(intents: &mut Intents, name: &str, ports: &[Guid]) {
    let class = Class::Guaranteed { bandwidth: Bandwidth::from_bits_per_s(1_000_000_000), latency_ns: None };
    let member = |port: &Guid| Member { who: Who::Port(*port), role: Role::Full, place: KeyPlace::Anywhere };
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
