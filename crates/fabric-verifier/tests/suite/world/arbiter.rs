//! Checks guarantees by brute force: every pair of ports is followed, and arbitration tables are served round after
//! round while all others send as much as they can. Shares no code with the rules.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use fabric_model::intent::{Intents, PortName};
use fabric_model::plan::PortQos;
use fabric_model::tenancy::Class;
use fabric_model::{Endpoint, FabricPlan, LinkRate, SwitchModel, Topology};
use ib_wire::{Guid, VirtualLane, VlArbEntry};

/// The largest packet on the wire, in bytes.
const PACKET: u64 = 4222;

/// Whether every guaranteed cluster gets its bandwidth and latency on the paths and by the tables of a plan. The
/// lanes are those to which the tables map its service level.
pub fn guarantees_hold(topology: &Topology, intents: &Intents, plan: &FabricPlan) -> bool {
    intents.clusters.iter().all(|cluster| {
        let Class::Guaranteed { bandwidth, latency_ns } = cluster.class else { return true };
        let decision = &plan.decisions().clusters[&cluster.name];
        let switch = |port: &Guid| plan.adapter_port(*port).unwrap().peer.node;
        let mut needed: BTreeMap<(PortName, VirtualLane), u64> = BTreeMap::new();
        let mut latest_ns = 0.0_f64;
        for from in &cluster.ports {
            for to in cluster.ports.iter().filter(|to| *to != from) {
                let sl = decision.service_level_between(switch(from), switch(to)).unwrap();
                let Some(path) = path(topology, plan, *from, *to, sl) else { return false };
                latest_ns =
                    latest_ns.max(late_ns(topology, plan, &path) + inputs_ns(topology, intents, plan, &path));
                for hop in path {
                    *needed.entry(hop).or_default() += bandwidth.bits_per_s();
                }
            }
        }
        let others = cluster.ports.len() as u64 - 1;
        let is_enough = |((port, lane), all): (&(PortName, VirtualLane), &u64)| {
            let sharing = sharing(plan, *port).unwrap();
            let rate = rate(topology, *port);
            // One thousandth of what is sent in 200 rounds belongs to the first round.
            served(&sharing.low, *lane)
                .is_some_and(|served| served.part * rate >= (all / others) as f64 * 0.999)
        };
        let guaranteed_ns = latency_ns.map_or(decision.bound_ns, |asked| asked.min(decision.bound_ns));
        needed.iter().all(is_enough) && latest_ns <= guaranteed_ns as f64 + 1.0
    })
}

/// The ports and lanes of a path; `None` if packets do not arrive, or use lanes of best effort or management.
fn path(
    topology: &Topology,
    plan: &FabricPlan,
    from: Guid,
    to: Guid,
    sl: ib_wire::ServiceLevel,
) -> Option<Vec<(PortName, VirtualLane)>> {
    let own = plan.adapter_port(from)?;
    let mut path = vec![(own.name, own.qos.as_ref()?.otherwise.lane(sl))];
    let lid = plan.adapter_port(to)?.lid;
    let mut here = topology.peer(topology.by_port_guid(from)?)?;
    while topology[here.node].is_switch() && path.len() < 100 {
        let node = topology[here.node].guid;
        let switch = plan.switch(node)?;
        let exit = switch.linear.exit(lid)?;
        let lane = switch.port(exit)?.qos.as_ref()?.lane(here.port, sl)?;
        path.push((PortName { node, port: exit }, lane));
        here = topology.peer(Endpoint::new(here.node, exit))?;
    }
    let best_effort = VirtualLane::from_wire(0).unwrap();
    let is_own = path.iter().all(|(_, lane)| *lane != VirtualLane::MANAGEMENT && *lane != best_effort);
    (topology.by_port_guid(to) == Some(here) && is_own).then_some(path)
}

fn late_ns(topology: &Topology, plan: &FabricPlan, path: &[(PortName, VirtualLane)]) -> f64 {
    let mut waits = 0.0;
    for (port, lane) in path {
        let bytes_per_ns = rate(topology, *port) / 8e9;
        let Some(served) = sharing(plan, *port).and_then(|sharing| served(&sharing.low, *lane)) else {
            return f64::INFINITY;
        };
        waits += (served.gap + PACKET) as f64 / bytes_per_ns + 250.0;
    }
    waits
}

/// The time that a packet waits at the inputs of switches for one packet of each other lane. All links of a path but the last
/// lead to a switch.
fn inputs_ns(
    topology: &Topology,
    intents: &Intents,
    plan: &FabricPlan,
    path: &[(PortName, VirtualLane)],
) -> f64 {
    let SwitchModel::LimitedSpeedup(speedup) = intents.hardware.switch_model else { return 0.0 };
    let links = path.split_last().map_or(path, |(_, links)| links);
    let bytes_ns = links.iter().map(|(port, own)| {
        let table = sharing(plan, *port).map_or(&[][..], |sharing| &sharing.low);
        let lanes: BTreeSet<VirtualLane> =
            table.iter().filter(|entry| entry.weight > 0).map(|entry| entry.lane).collect();
        let others = lanes.iter().filter(|lane| *lane != own).count() as u64;
        (others * PACKET) as f64 / (rate(topology, *port) / 8e9)
    });
    bytes_ns.sum::<f64>() / f64::from(speedup.factor())
}

/// What a lane got while a table was served.
struct Served {
    /// The lane's part of all bytes, from 0 to 1.
    part: f64,
    /// The most bytes of other lanes between two visits.
    gap: u64,
}

/// Serves a table for 200 rounds. The lane sends what its weight allows; others use their weight up to one unit and
/// then send the largest packet.
fn served(table: &[VlArbEntry], lane: VirtualLane) -> Option<Served> {
    let (mut own, mut all, mut gap) = (0, 0, 0);
    let mut seen = Served { part: 0.0, gap: 0 };
    for entry in (0..200).flat_map(|_| table).filter(|entry| entry.weight > 0) {
        let mut sent = 0;
        if entry.lane == lane {
            while sent < 64 * u64::from(entry.weight) {
                sent += 64;
            }
            (own, gap) = (own + sent, 0);
        } else {
            while sent + 64 < 64 * u64::from(entry.weight) {
                sent += 64;
            }
            sent += PACKET;
            gap += sent;
            seen.gap = seen.gap.max(gap);
        }
        all += sent;
    }
    seen.part = own as f64 / all as f64;
    (own > 0).then_some(seen)
}

fn sharing(plan: &FabricPlan, port: PortName) -> Option<&PortQos> {
    let adapter = plan.adapter_ports().find(|adapter| adapter.name == port);
    match adapter {
        Some(adapter) => adapter.qos.as_deref(),
        None => plan.switch(port.node)?.port(port.port)?.qos.as_deref(),
    }
}

fn rate(topology: &Topology, port: PortName) -> f64 {
    let end = Endpoint::new(topology.by_guid(port.node).unwrap(), port.port);
    let rate_of = |end: Endpoint| topology.port(end)?.rate;
    let rate = rate_of(end).or_else(|| rate_of(topology.peer(end)?));
    rate.unwrap_or(LinkRate::DEFAULT).data_rate_gbps() * 1e9
}
