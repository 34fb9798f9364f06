//! Shared by the tests: an evaluation of plans that is independent of the compiler.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "every test binary uses its own part")]

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fabric_compiler::compile;
use fabric_model::plan::PlanFinding;
use fabric_model::{Decisions, Endpoint, FabricPlan, Intents, NodeIndex, Topology, TopologyBuilder};
use ib_wire::{Guid, Lid, PortNum};

/// Intents with the manager at the first cabled port of the first host, or at the first switch if there is no host.
pub fn intents(topology: &Topology) -> Intents {
    let port = topology.end_nodes().find_map(|(index, node)| {
        let (number, _) = node.cabled_ports().next()?;
        Some(topology.port(Endpoint::new(index, number)).unwrap().guid)
    });
    Intents::new(port.unwrap_or_else(|| topology.switches().next().unwrap().1.guid))
}

pub fn fresh(topology: &Topology) -> FabricPlan {
    compile(topology, &intents(topology), &Decisions::default()).unwrap()
}

pub fn again(topology: &Topology, previous: &FabricPlan) -> FabricPlan {
    compile(topology, &intents(topology), previous.decisions()).unwrap()
}

/// The cables between switches, as pairs of ends.
pub fn switch_cables(topology: &Topology) -> Vec<(Endpoint, Endpoint)> {
    let both = |a: NodeIndex, b: NodeIndex| topology[a].is_switch() && topology[b].is_switch();
    topology.links().filter(|link| both(link.a.node, link.b.node)).map(|link| (link.a, link.b)).collect()
}

pub fn without_cable(topology: &Topology, end: Endpoint) -> Topology {
    let mut builder = TopologyBuilder::from(topology.clone());
    builder.disconnect(end).unwrap();
    builder.build().unwrap()
}

/// The linear forwarding entries and blocks that differ between two plans.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Switch, LID, exit before and after.
    pub entries: Vec<(Guid, Lid, Option<PortNum>, Option<PortNum>)>,
    pub blocks: usize,
}

pub fn changes(before: &FabricPlan, after: &FabricPlan) -> Changes {
    let mut changes = Changes::default();
    for old in before.switches() {
        let Some(new) = after.switch(old.guid) else { continue };
        let blocks = old.linear.block_count().max(new.linear.block_count());
        changes.blocks +=
            (0..blocks).filter(|block| old.linear_block(*block) != new.linear_block(*block)).count();
        for lid in (1..=old.linear.top().max(new.linear.top())).filter_map(Lid::from_wire) {
            let (was, is) = (old.linear.exit(lid), new.linear.exit(lid));
            if was != is {
                changes.entries.push((old.guid, lid, was, is));
            }
        }
    }
    changes
}

/// Follows packets by the tables of a plan and the cables.
pub struct Walker<'a> {
    topology: &'a Topology,
    pub plan: &'a FabricPlan,
    /// The switch of each end port's LID, and the port there.
    homes: BTreeMap<Lid, (NodeIndex, PortNum)>,
    switches: Vec<NodeIndex>,
}

/// The path of a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Walk {
    /// The channels it took: switch and exit port.
    Arrived(Vec<(NodeIndex, PortNum)>),
    Lost {
        at: NodeIndex,
    },
    Circled,
}

impl<'a> Walker<'a> {
    pub fn new(topology: &'a Topology, plan: &'a FabricPlan) -> Self {
        let adapters = plan.adapter_ports().map(|port| {
            let switch = topology.by_guid(port.peer.node).unwrap();
            (port.lid, (switch, port.peer.port))
        });
        let switches = plan
            .switches()
            .map(|switch| (switch.lid, (topology.by_guid(switch.guid).unwrap(), PortNum::MANAGEMENT)));
        let homes = adapters.chain(switches).collect();
        let switches = plan.switches().map(|switch| topology.by_guid(switch.guid).unwrap()).collect();
        Self { topology, plan, homes, switches }
    }

    pub fn lids(&self) -> impl Iterator<Item = Lid> {
        self.homes.keys().copied()
    }

    /// The LIDs of adapter ports in order, each with its switch.
    pub fn hosts(&self) -> Vec<(Lid, NodeIndex)> {
        let is_host = |(_, port): &(NodeIndex, PortNum)| *port != PortNum::MANAGEMENT;
        let hosts = self.homes.iter().filter(|(_, home)| is_host(home));
        hosts.map(|(lid, (switch, _))| (*lid, *switch)).collect()
    }

    pub fn exit(&self, switch: NodeIndex, lid: Lid) -> Option<PortNum> {
        self.plan.switch(self.topology[switch].guid).unwrap().linear.exit(lid)
    }

    pub fn walk(&self, from: NodeIndex, lid: Lid) -> Walk {
        let (home, last) = self.homes[&lid];
        let mut here = from;
        let mut channels = Vec::new();
        while channels.len() <= self.switches.len() {
            let Some(exit) = self.exit(here, lid) else { return Walk::Lost { at: here } };
            if here == home {
                assert_eq!(exit, last, "the last switch sends to the port of {lid}");
                return Walk::Arrived(channels);
            }
            channels.push((here, exit));
            match self.topology.peer(Endpoint::new(here, exit)) {
                Some(peer) if self.topology[peer.node].is_switch() => here = peer.node,
                _ => return Walk::Lost { at: here },
            }
        }
        Walk::Circled
    }

    /// Asserts that all hosts reach each other, and all switches but the pairs that the plan's findings count. Returns the
    /// number of such pairs.
    pub fn assert_reachable(&self) -> usize {
        let serving: BTreeSet<NodeIndex> = self.hosts().into_iter().map(|(_, switch)| switch).collect();
        let mut missing = BTreeSet::new();
        for (&lid, &(home, port)) in &self.homes {
            for &from in &self.switches {
                match self.walk(from, lid) {
                    Walk::Arrived(_) => {}
                    Walk::Circled => panic!("packets to {lid} circle from {from:?}"),
                    Walk::Lost { at } => {
                        let hosts = serving.contains(&from) && port != PortNum::MANAGEMENT;
                        assert!(!hosts, "packets to {lid} from {from:?} are lost at {at:?}");
                        missing.insert((from, home));
                    }
                }
            }
        }
        let found = self.plan.findings().iter().find_map(|finding| match finding {
            PlanFinding::NoRoute { pairs, .. } => Some(*pairs),
            _ => None,
        });
        assert_eq!(found.unwrap_or(0), missing.len(), "findings count what is missing");
        missing.len()
    }

    /// Asserts that the channel dependency graph of all routes has no cycle.
    pub fn assert_deadlock_free(&self) {
        let index: HashMap<NodeIndex, usize> = self.switches.iter().copied().zip(0..).collect();
        let channel = |switch: NodeIndex, port: PortNum| index[&switch] * 256 + port.index();
        let mut followers: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.switches.len() * 256];
        for (&lid, &(home, _)) in &self.homes {
            for &from in &self.switches {
                let Some(exit) = self.exit(from, lid).filter(|_| from != home) else { continue };
                let Some(peer) = self.topology.peer(Endpoint::new(from, exit)) else { continue };
                if peer.node != home
                    && self.topology[peer.node].is_switch()
                    && let Some(next) = self.exit(peer.node, lid)
                {
                    followers[channel(from, exit)].insert(channel(peer.node, next));
                }
            }
        }
        assert_eq!(cycle(&followers), None, "channels of switch * 256 + port that wait for each other");
    }
}

/// A node on a cycle of a directed graph, by depth-first search.
fn cycle(followers: &[BTreeSet<usize>]) -> Option<usize> {
    #[derive(Clone, Copy, PartialEq)]
    enum Colour {
        White,
        Grey,
        Black,
    }
    let mut colours = vec![Colour::White; followers.len()];
    for start in 0..followers.len() {
        if colours[start] != Colour::White {
            continue;
        }
        colours[start] = Colour::Grey;
        let mut path = vec![(start, followers[start].iter())];
        while let Some((node, rest)) = path.last_mut() {
            match rest.next() {
                None => {
                    colours[*node] = Colour::Black;
                    path.pop();
                }
                Some(&next) if colours[next] == Colour::Grey => return Some(next),
                Some(&next) if colours[next] == Colour::White => {
                    colours[next] = Colour::Grey;
                    path.push((next, followers[next].iter()));
                }
                Some(_) => {}
            }
        }
    }
    None
}

#[test]
fn the_checker_finds_cycles() {
    let graph = |edges: &[(usize, usize)]| {
        let mut followers = vec![BTreeSet::new(); 4];
        for (from, to) in edges {
            followers[*from].insert(*to);
        }
        followers
    };
    assert_eq!(cycle(&graph(&[(0, 1), (1, 2), (0, 2), (3, 0)])), None);
    assert!(cycle(&graph(&[(0, 1), (1, 2), (2, 3), (3, 1)])).is_some());
    assert!(cycle(&graph(&[(2, 2)])).is_some());
}

pub fn guid(raw: u64) -> Guid {
    Guid::from_wire(raw).unwrap()
}
