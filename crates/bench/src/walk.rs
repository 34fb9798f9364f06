//! Follows the routes of all pairs of adapter ports through the forwarding tables, and checks that they are free of credit
//! loops: the graph of links with an edge from each link to the next link of any path has no cycle (Dally and Seitz, 1987).

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use fabric_model::{Endpoint, NodeIndex, Topology};
use ib_wire::{Lid, PortNum};

use crate::probe::FabricSnapshot;

/// The result of a walk of all paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkSummary {
    /// Ordered pairs of adapter ports; all of them are connected.
    pub pairs: u64,
    /// Number of switches on the longest path.
    pub longest: u32,
}

/// Port numbers are bytes.
const PORTS: usize = 256;

/// Follows the path of every ordered pair of adapter ports.
///
/// # Errors
/// If a pair is not connected, packets loop, or the routes have a credit loop; the message names the switch or link.
pub fn walk(topology: &Topology, seen: &FabricSnapshot) -> anyhow::Result<WalkSummary> {
    let mut walker = Walker::new(topology, seen)?;
    let ends: Vec<(Endpoint, Lid)> = adapter_ports(topology, seen)?;
    let mut longest = 0;
    for (end, lid) in &ends {
        longest = longest.max(walker.toward(*end, *lid)?);
    }
    walker.refuse_rings()?;
    let count = ends.len() as u64;
    Ok(WalkSummary { pairs: count * count.saturating_sub(1), longest })
}

/// The cabled adapter ports with their LIDs.
///
/// # Errors
/// If a port has no LID.
pub fn adapter_ports(topology: &Topology, seen: &FabricSnapshot) -> anyhow::Result<Vec<(Endpoint, Lid)>> {
    let mut ends = Vec::new();
    for (index, node) in topology.end_nodes() {
        for (number, _) in node.cabled_ports() {
            let end = Endpoint::new(index, number);
            let lid = seen.lids.get(&end).with_context(|| format!("{}[{number}] has no LID", node.id))?;
            ends.push((end, *lid));
        }
    }
    Ok(ends)
}

struct Walker<'a> {
    topology: &'a Topology,
    switches: Vec<NodeIndex>,
    tables: Vec<&'a [u8]>,
    /// What is behind each port of each switch.
    peers: Vec<[Behind; PORTS]>,
    /// Switches with adapters: where paths begin.
    leaves: Vec<usize>,
    /// For each link between switches, by its sending port: the exits that packets take at its other end.
    waits: Vec<[u64; 4]>,
    /// For each switch: the last destination it was followed for, and its distance in switches.
    followed: Vec<(usize, u32)>,
    round: usize,
}

#[derive(Clone, Copy)]
enum Behind {
    Nothing,
    Adapter(Endpoint),
    Switch(usize),
}

impl<'a> Walker<'a> {
    fn new(topology: &'a Topology, seen: &'a FabricSnapshot) -> anyhow::Result<Self> {
        let switches: Vec<NodeIndex> = topology.switches().map(|(index, _)| index).collect();
        let places: BTreeMap<NodeIndex, usize> =
            switches.iter().enumerate().map(|(place, index)| (*index, place)).collect();
        let (mut tables, mut peers, mut leaves) = (Vec::new(), Vec::new(), Vec::new());
        for (place, index) in switches.iter().enumerate() {
            let node = topology.node(*index).context("no such node")?;
            tables
                .push(seen.linear.get(index).with_context(|| format!("no table of {}", node.id))?.as_slice());
            let mut behind = [Behind::Nothing; PORTS];
            for (number, end) in node.cabled_ports() {
                behind[number.index()] = match places.get(&end.node) {
                    Some(other) => Behind::Switch(*other),
                    None => Behind::Adapter(end),
                };
            }
            if behind.iter().any(|it| matches!(it, Behind::Adapter(_))) {
                leaves.push(place);
            }
            peers.push(behind);
        }
        let (waits, followed) = (vec![[0; 4]; switches.len() * PORTS], vec![(0, 0); switches.len()]);
        Ok(Self { topology, switches, tables, peers, leaves, waits, followed, round: 0 })
    }

    /// Follows the paths from every leaf to one adapter port: how many switches the longest passes.
    fn toward(&mut self, end: Endpoint, lid: Lid) -> anyhow::Result<u32> {
        self.round += 1;
        let mut longest = 0;
        for leaf in 0..self.leaves.len() {
            longest = longest.max(self.follow(self.leaves[leaf], end, lid)?);
        }
        Ok(longest)
    }

    fn follow(&mut self, from: usize, end: Endpoint, lid: Lid) -> anyhow::Result<u32> {
        let mut path: Vec<usize> = Vec::new();
        let mut at = from;
        let rest = loop {
            if self.followed[at].0 == self.round {
                break self.followed[at].1;
            }
            let name = || self.topology.node(self.switches[at]).map_or("?", |node| node.id.as_str());
            ensure!(!path.contains(&at), "LID {lid}: packets from {} loop at {}", self.name(from), name());
            let exit = self.exit(at, lid);
            path.push(at);
            match self.peers[at][usize::from(exit)] {
                Behind::Adapter(reached) if reached == end => break 0,
                Behind::Switch(next) => {
                    let onward = self.exit(next, lid);
                    if matches!(self.peers[next][usize::from(onward)], Behind::Switch(_)) {
                        let waits = &mut self.waits[at * PORTS + usize::from(exit)];
                        waits[usize::from(onward) / 64] |= 1 << (onward % 64);
                    }
                    at = next;
                }
                _ => bail!(
                    "LID {lid}: {} forwards it to port {exit}, which does not lead to its destination",
                    name()
                ),
            }
        };
        let length = rest + path.len() as u32;
        for (passed, place) in path.into_iter().enumerate() {
            self.followed[place] = (self.round, length - passed as u32);
        }
        Ok(length)
    }

    fn exit(&self, switch: usize, lid: Lid) -> u8 {
        self.tables[switch].get(usize::from(lid.to_wire())).copied().unwrap_or(u8::MAX)
    }

    fn name(&self, switch: usize) -> &str {
        self.topology.node(self.switches[switch]).map_or("?", |node| node.id.as_str())
    }

    /// Fails if the graph of link dependencies has a cycle: a credit loop can deadlock.
    fn refuse_rings(&self) -> anyhow::Result<()> {
        // 0 = not visited, 1 = on the current path, 2 = done.
        let mut state = vec![0u8; self.waits.len()];
        for start in 0..self.waits.len() {
            let mut stack = vec![(start, self.next_links(start))];
            if state[start] != 0 {
                continue;
            }
            state[start] = 1;
            while let Some((link, rest)) = stack.last_mut() {
                match rest.pop() {
                    Some(next) if state[next] == 1 => {
                        let (switch, port) = (next / PORTS, next % PORTS);
                        bail!("a ring of links wait for each other, through {}[{port}]", self.name(switch));
                    }
                    Some(next) if state[next] == 0 => {
                        state[next] = 1;
                        stack.push((next, self.next_links(next)));
                    }
                    Some(_) => {}
                    None => {
                        state[*link] = 2;
                        stack.pop();
                    }
                }
            }
        }
        Ok(())
    }

    /// The links that packets on this link take next.
    fn next_links(&self, link: usize) -> Vec<usize> {
        let Behind::Switch(switch) = self.peers[link / PORTS][link % PORTS] else { return Vec::new() };
        let waits = self.waits[link];
        let exits = (0..PORTS).filter(|exit| waits[exit / 64] >> (exit % 64) & 1 == 1);
        exits.map(|exit| switch * PORTS + exit).collect()
    }
}

/// Parses the output of ibroute: exit port by LID.
pub fn printed_routes(printed: &str) -> BTreeMap<u16, PortNum> {
    let entry = |line: &str| {
        let mut words = line.split_whitespace();
        let lid = u16::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        let port = words.next()?.parse().ok().and_then(PortNum::new)?;
        Some((lid, port))
    };
    printed.lines().filter_map(entry).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use fabric_compiler::compile;
    use fabric_model::generate::{FatTree, Torus};
    use fabric_model::{Decisions, Intents};

    use super::*;

    /// The tables of a fabric that was programmed with a compiled plan.
    fn programmed(topology: &Topology) -> FabricSnapshot {
        let (_, host) = topology.end_nodes().next().unwrap();
        let (_, port) = host.ports().next().unwrap();
        let plan = compile(topology, &Intents::new(port.guid), &Decisions::default()).unwrap();
        let mut seen = FabricSnapshot::default();
        for adapter in plan.adapter_ports() {
            seen.lids.insert(topology.by_port_guid(adapter.guid).unwrap(), adapter.lid);
        }
        for switch in plan.switches() {
            let blocks = (0..switch.linear.block_count()).flat_map(|block| switch.linear_block(block));
            seen.linear.insert(topology.by_guid(switch.guid).unwrap(), blocks.collect());
        }
        seen
    }

    fn tree() -> Topology {
        FatTree { radix: 8, ..FatTree::with_hosts(16) }.generate().unwrap()
    }

    #[test]
    fn every_pair_of_a_compiled_tree_arrives() {
        let tree = tree();
        let walked = walk(&tree, &programmed(&tree)).unwrap();
        assert_eq!(walked, WalkSummary { pairs: 16 * 15, longest: 3 });
    }

    #[test]
    fn missing_wrong_and_looping_routes_are_found() {
        let tree = tree();
        let victim = tree.switches().next().unwrap().0;
        let lid = *programmed(&tree).lids.values().last().unwrap();
        let said = |exit: u8| {
            let mut seen = programmed(&tree);
            seen.linear.get_mut(&victim).unwrap()[usize::from(lid.to_wire())] = exit;
            walk(&tree, &seen).unwrap_err().to_string()
        };
        assert!(said(255).contains("which does not lead to its destination"), "{}", said(255));
        assert!(said(1).contains("which does not lead to its destination"), "{}", said(1));
        let mut seen = programmed(&tree);
        // A leaf sends up what the spine sends down to it.
        let last = tree.switches().filter(|(_, node)| node.description.starts_with("leaf")).last().unwrap().0;
        seen.linear.get_mut(&last).unwrap()[usize::from(lid.to_wire())] = 5;
        let circling = walk(&tree, &seen).unwrap_err().to_string();
        assert!(circling.contains("loop at"), "{circling}");
    }

    #[test]
    fn routes_that_all_go_round_a_ring_the_same_way_are_refused() {
        let ring = Torus { hosts_per_switch: 1, ..Torus::new(vec![4]) }.generate().unwrap();
        let mut seen = programmed(&ring);
        walk(&ring, &seen).unwrap();
        // Everything leaves by the port towards the next switch until it is home.
        let switches: Vec<NodeIndex> = ring.switches().map(|(index, _)| index).collect();
        for (place, index) in switches.iter().enumerate() {
            let next = switches[(place + 1) % switches.len()];
            let node = ring.node(*index).unwrap();
            let onward = node.cabled_ports().find(|(_, end)| end.node == next).unwrap().0;
            for (end, lid) in seen.lids.clone() {
                let home = ring.peer(end).unwrap();
                let exit = if home.node == *index { home.port } else { onward };
                seen.linear.get_mut(index).unwrap()[usize::from(lid.to_wire())] = exit.to_wire();
            }
        }
        let said = walk(&ring, &seen).unwrap_err().to_string();
        assert!(said.contains("wait for each other"), "{said}");
    }
}
