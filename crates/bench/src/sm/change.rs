//! Changes under a running manager: a partition is added and removed, a link fails.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use fabric_model::{Endpoint, NodeIndex};
use ib_wire::{Attribute, ForwardingBlock, PartitionNumber, PkeyBlock, PkeyBlockSelector};
use serde::Serialize;
use serde_json::json;

use super::manager::{ALL_HOSTS, ManagerProcess, Setup, Signaller};
use super::{Arena, Requests};
use crate::sim_control;
use bench::probe::{FabricSnapshot, Probe, SmpRead};
use bench::walk;

/// Ports of the partition that is added and removed.
const MEMBERS: usize = 16;

/// Partition number of that partition.
const PARTITION: u16 = 0x0100;

/// Longest time until a change is in force: a sweep of opensm on 11,664 hosts on a busy machine.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(240);

/// Interval of reading the tables of the members.
const LOOK: Duration = Duration::from_micros(500);

/// A partition of 16 ports that is added and removed.
#[derive(Debug, Serialize)]
pub struct PartitionChange {
    pub add: ChangeCost,
    pub remove: ChangeCost,
}

/// One change of the file of partitions.
#[derive(Debug, Serialize)]
pub struct ChangeCost {
    /// From the signal until the last member's table is right.
    pub in_force_ms: f64,
    /// Until the manager had nothing left to do.
    pub settled_ms: f64,
    pub cpu_ms: f64,
    /// `None` on emulations that do not count requests.
    pub requests: Option<Requests>,
}

/// A link between switches that fails.
#[derive(Debug, Serialize)]
pub struct LinkFailure {
    /// Until the manager had nothing left to do; the tables were then correct.
    pub settled_ms: f64,
    pub cpu_ms: f64,
    pub requests: Requests,
    /// Blocks of unicast routes that are different afterwards.
    pub blocks_changed: u64,
}

/// Adds a partition to the file and removes it again.
pub fn partition(
    arena: &Arena,
    setup: &Setup,
    manager: &mut ManagerProcess,
) -> anyhow::Result<PartitionChange> {
    let ends: Vec<(NodeIndex, Endpoint)> =
        arena.topology.end_nodes().skip(1).filter_map(first_port).collect();
    let members: Vec<Endpoint> =
        ends.iter().step_by((ends.len() / MEMBERS).max(1)).take(MEMBERS).map(|(_, end)| *end).collect();
    ensure!(members.len() == MEMBERS, "the fabric has fewer than {MEMBERS} ports");
    // The witness uses neither a member's port nor the manager's.
    let (witness, _) = ends.iter().find(|(_, end)| !members.contains(end)).context("no port is left")?;
    let mut probe = Probe::attach(&arena.socket, *witness, arena.topology)?;
    let reads = members.iter().map(|end| {
        let modifier = PkeyBlockSelector { port: 0, block: 0 }.to_modifier();
        Ok(SmpRead { route: probe.route(*end)?, attribute: Attribute::PKEY_TABLE, modifier })
    });
    let reads = reads.collect::<anyhow::Result<Vec<_>>>()?;

    let guids = members.iter().filter_map(|end| arena.topology.port(*end));
    let list: Vec<String> = guids.map(|port| format!("{}=full", port.guid)).collect();
    let with = format!("{ALL_HOSTS}bench={PARTITION:#06x} : {};\n", list.join(", "));
    let mut signaller = Signaller::start()?;
    let mut step = |text: &str, held: bool| -> anyhow::Result<ChangeCost> {
        let before = (arena.requests()?, manager.cpu()?);
        std::fs::write(setup.partitions(), text)?;
        let started = Instant::now();
        signaller.reload(manager)?;
        while !all_hold(&mut probe, &reads, held)? {
            ensure!(
                started.elapsed() < CHANGE_TIMEOUT,
                "the tables of the members did not change within {CHANGE_TIMEOUT:?}"
            );
            std::thread::sleep(LOOK);
        }
        let in_force = started.elapsed();
        let (settled, cpu) = manager.wait_idle(before.1)?;
        let requests = arena.requests()?.zip(before.0).map(|(now, before)| now.since(before));
        Ok(ChangeCost {
            in_force_ms: ms(in_force),
            settled_ms: ms(settled.saturating_duration_since(started).max(in_force)),
            cpu_ms: ms(cpu),
            requests,
        })
    };
    Ok(PartitionChange { add: step(&with, true)?, remove: step(ALL_HOSTS, false)? })
}

/// Whether every member's table holds the partition, or none does.
fn all_hold(probe: &mut Probe, reads: &[SmpRead], held: bool) -> anyhow::Result<bool> {
    let number = PartitionNumber::from_wire(PARTITION).context("no partition number")?;
    let answers = probe.read(reads)?;
    let holds = |raw| PkeyBlock::decode(raw).0.iter().flatten().any(|key| key.partition() == number);
    Ok(answers.iter().all(|raw| holds(raw) == held))
}

fn first_port((index, node): (NodeIndex, &fabric_model::Node)) -> Option<(NodeIndex, Endpoint)> {
    node.cabled_ports().next().map(|(number, _)| (index, Endpoint::new(index, number)))
}

/// Pulls a cable between two switches, and checks the routes that the manager then installs.
pub fn link(arena: &Arena, manager: &mut ManagerProcess) -> anyhow::Result<LinkFailure> {
    let (witness, _) = arena.topology.end_nodes().nth(1).context("a fabric of one host")?;
    let mut probe = Probe::attach(&arena.socket, witness, arena.topology)?;
    let ends = expendable(arena, &probe)?;
    let before = probe.snapshot()?;
    let (requests_before, cpu_before) =
        (arena.requests()?.context("the emulation does not count requests")?, manager.cpu()?);
    let node = arena.topology.node(ends[0].node).context("no such node")?;
    let started = Instant::now();
    let request = json!({ "command": "link-down", "node": node.id, "port": ends[0].port });
    sim_control::ask(&arena.runtime, &arena.name, &request)?;
    let (settled, cpu) = manager.wait_idle(cpu_before)?;
    let requests = arena.requests()?.context("the emulation does not count requests")?.since(requests_before);
    let after = probe.snapshot()?;
    for end in ends {
        refuse_use(arena, &after, end)?;
    }
    walk::walk(arena.topology, &after)?;
    Ok(LinkFailure {
        settled_ms: ms(settled.saturating_duration_since(started)),
        cpu_ms: ms(cpu),
        requests,
        blocks_changed: blocks_changed(&before, &after),
    })
}

/// The ends of a link between switches that carries traffic, but not the witness' own reads.
fn expendable(arena: &Arena, probe: &Probe) -> anyhow::Result<[Endpoint; 2]> {
    let is_switch = |end: Endpoint| arena.topology.node(end.node).is_some_and(fabric_model::Node::is_switch);
    let links = arena.topology.links().map(|link| [link.a, link.b]);
    let mut free =
        links.filter(|[a, b]| is_switch(*a) && is_switch(*b) && !probe.uses(*a) && !probe.uses(*b));
    // Not one at the start of the list, near the manager and the witness.
    free.nth(20).context("no link between switches can be spared")
}

/// A port without a cable must not be the exit of any adapter's LID.
fn refuse_use(arena: &Arena, seen: &FabricSnapshot, end: Endpoint) -> anyhow::Result<()> {
    let table = seen.linear.get(&end.node).context("a switch without a table")?;
    let adapters = walk::adapter_ports(arena.topology, seen)?;
    let lids: BTreeSet<usize> = adapters.iter().map(|(_, lid)| usize::from(lid.to_wire())).collect();
    match lids.into_iter().find(|lid| table.get(*lid) == Some(&end.port.to_wire())) {
        Some(lid) => bail!("LID {lid} still leaves by the port whose cable was pulled"),
        None => Ok(()),
    }
}

fn blocks_changed(before: &FabricSnapshot, after: &FabricSnapshot) -> u64 {
    let block = ForwardingBlock::ENTRIES;
    let pairs = after.linear.iter().filter_map(|(node, new)| Some((before.linear.get(node)?, new)));
    pairs
        .map(|(old, new)| {
            let count = old.len().max(new.len()).div_ceil(block);
            let part = |table: &[u8], number: usize| -> Vec<u8> {
                (number * block..(number + 1) * block)
                    .map(|lid| table.get(lid).copied().unwrap_or(u8::MAX))
                    .collect()
            };
            (0..count).filter(|number| part(old, *number) != part(new, *number)).count() as u64
        })
        .sum()
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
