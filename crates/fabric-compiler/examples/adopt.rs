//! Prints how many LIDs and routes can be adopted from a manager that uses shortest paths.
//!
//! `cargo run --release -p fabric-compiler --example adopt`

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use fabric_compiler::{adopt, compile};
use fabric_model::generate::{DragonflyPlus, FatTree, RandomFabric, Torus};
use fabric_model::plan::LinearTable;
use fabric_model::{Endpoint, Intents, NodeIndex, ObservedTables, Topology};
use ib_wire::{Lid, PortNum};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    println!(
        "{:<16} {:>7} {:>12} {:>14} {:>9} {:>11} {:>12}",
        "fabric", "hosts", "routes kept", "entries moved", "adopt ms", "compile ms", "decisions MB"
    );
    for hosts in [324, 1944, 4860, 11664] {
        measure("fat-tree", &FatTree::with_hosts(hosts).generate()?)?;
    }
    measure("torus 8x8", &Torus::new([8, 8]).generate()?)?;
    measure("dragonfly+ 9", &DragonflyPlus::new(9).generate()?)?;
    measure("random 40", &RandomFabric { hosts_per_switch: 4, ..RandomFabric::new(40, 6, 1) }.generate()?)
}

fn measure(name: &str, topology: &Topology) -> Result<(), Failure> {
    let (_, host) = topology.end_nodes().next().ok_or("no host")?;
    let intents = Intents::new(host.ports().next().ok_or("no port")?.1.guid);
    let found = shortest_path_tables(topology)?;
    let start = Instant::now();
    let adoption = adopt(topology, &intents, &found)?;
    let adopting = start.elapsed().as_millis();
    let start = Instant::now();
    let plan = compile(topology, &intents, &adoption.decisions)?;
    let compiling = start.elapsed().as_millis();
    let mut moved = 0;
    for switch in plan.switches() {
        let before = &found.linear[&switch.guid];
        moved += plan.adapter_ports().filter(|p| switch.linear.exit(p.lid) != before.exit(p.lid)).count();
    }
    let entries = plan.switches().len() * plan.adapter_ports().len();
    println!(
        "{name:<16} {:>7} {:>11.1}% {:>13.1}% {adopting:>9} {compiling:>11} {:>12.1}",
        plan.adapter_ports().len(),
        percent(adoption.routes_kept, adoption.routes),
        percent(moved, entries),
        serde_json::to_string(plan.decisions())?.len() as f64 / 1e6,
    );
    Ok(())
}

fn percent(part: usize, whole: usize) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

/// LIDs in the order of nodes, and any of the shortest exits for each.
fn shortest_path_tables(topology: &Topology) -> Result<ObservedTables, Failure> {
    let mut found = ObservedTables::default();
    let mut homes: HashMap<NodeIndex, Vec<(Lid, PortNum)>> = HashMap::new();
    let mut numbers = (1..).filter_map(Lid::from_wire);
    for (index, node) in topology.nodes() {
        let (number, port) = node.ports().next().ok_or("no port")?;
        let lid = numbers.next().ok_or("no LID left")?;
        found.lids.insert(port.guid, lid);
        let peer = topology.peer(Endpoint::new(index, number));
        let (home, exit) = peer.map_or((index, PortNum::MANAGEMENT), |peer| (peer.node, peer.port));
        homes.entry(home).or_default().push((lid, exit));
    }
    let mut rows: HashMap<NodeIndex, Vec<u8>> =
        topology.switches().map(|(index, _)| (index, vec![0xff; topology.node_count() + 1])).collect();
    for (home, lids) in &homes {
        let distances = distances(topology, *home);
        for (index, node) in topology.switches() {
            let nearer = |peer: NodeIndex| {
                distances[peer.index()].is_some_and(|d| Some(d + 1) == distances[index.index()])
            };
            let exits: Vec<PortNum> =
                node.cabled_ports().filter(|(_, p)| nearer(p.node)).map(|(port, _)| port).collect();
            let row = rows.get_mut(&index).ok_or("no row")?;
            for (lid, exit) in lids {
                let exit = if index == *home { *exit } else { exits[scatter(index, *lid) % exits.len()] };
                row[usize::from(lid.to_wire())] = exit.to_wire();
            }
        }
    }
    found.linear =
        rows.into_iter().map(|(index, row)| (topology[index].guid, LinearTable::from_exits(row))).collect();
    Ok(found)
}

fn scatter(switch: NodeIndex, lid: Lid) -> usize {
    let mut number = (switch.index() as u64) << 32 | u64::from(lid.to_wire());
    for _ in 0..3 {
        number = (number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    (number >> 33) as usize
}

fn distances(topology: &Topology, from: NodeIndex) -> Vec<Option<u32>> {
    let mut distances = vec![None; topology.node_count()];
    distances[from.index()] = Some(0);
    let mut queue = VecDeque::from([(from, 0)]);
    while let Some((here, distance)) = queue.pop_front() {
        for (_, peer) in topology[here].cabled_ports().filter(|(_, peer)| topology[peer.node].is_switch()) {
            if distances[peer.node.index()].is_none() {
                distances[peer.node.index()] = Some(distance + 1);
                queue.push_back((peer.node, distance + 1));
            }
        }
    }
    distances
}
